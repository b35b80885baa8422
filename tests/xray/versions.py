"""Which Triton compiles the kernels of the tests."""

from __future__ import annotations

import triton

TRITON = tuple(map(int, triton.__version__.split(".")[:2]))
