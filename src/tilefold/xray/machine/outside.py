"""Calls that leave the kernel: a device's printing, which changes no value, and its failed assertions."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from tilefold.errors import ExecutionError
from tilefold.xray.machine.binding import Binder, Mask, Step, unknown
from tilefold.xray.machine.types import TYPES
from tilefold.xray.ptx.syntax import Instruction, Symbol, Vector

if TYPE_CHECKING:
    from tilefold.xray.machine.cta import Cta


def bind(binder: Binder, instruction: Instruction) -> Step | None:
    """The step of a call of `vprintf` or `__assertfail`; None if this is none."""
    if instruction.opcode != "call":
        return None
    name = next((o.name for o in instruction.operands if isinstance(o, Symbol)), "")
    if name == "vprintf":
        results = instruction.operands[0]
        assert isinstance(results, Vector)
        write = binder.write(results.items[0], TYPES["b32"])
        return lambda cta, mask: write(cta, np.zeros(cta.threads, np.uint32), mask)
    if name == "__assertfail":
        return _fail
    raise unknown(instruction)


def _fail(cta: Cta, mask: Mask) -> None:
    count = cta.threads if mask is None else int(mask.sum())
    raise ExecutionError(f"xray: assertions of the kernel must hold, got one that fails for {count} threads")
