"""Kernels that do nothing, to time a launch: alone, in a row, and overlapped as plans overlap their stages."""

import triton
from triton.language.extra.cuda import gdc_launch_dependents, gdc_wait


@triton.jit
def empty(x_ptr):
    """One launch."""


@triton.jit
def empty_first(x_ptr):
    """The first of an overlapped chain: lets the next one start at once."""
    gdc_launch_dependents()


@triton.jit
def empty_next(x_ptr):
    """A later one: starts early and waits for the one before."""
    gdc_wait()
