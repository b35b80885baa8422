"""What can go wrong between PTX and an executed program; each error names the line of the PTX."""

from __future__ import annotations

from tilefold.errors import TilefoldError


class XrayError(TilefoldError):
    """Base of everything the X-ray raises on purpose."""


class PtxError(XrayError, ValueError):
    """The text is not PTX as Triton writes it."""


class UnknownInstructionError(XrayError, NotImplementedError):
    """An instruction that the interpreter does not know."""


class ExecutionError(XrayError, RuntimeError):
    """A program did something that no chip defines: divergent shuffles, deadlocks, misaligned accesses."""
