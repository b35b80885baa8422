"""`mma.sync`: each warp multiplies what its lanes hold."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tilefold.errors import ExecutionError
from tilefold.xray.machine.binding import Binder, Mask, Step, unknown
from tilefold.xray.machine.matrix.arithmetic import BYTES, SUMS, product, shape_of
from tilefold.xray.machine.matrix.fragments import Factor, Sums
from tilefold.xray.ptx.syntax import Instruction

if TYPE_CHECKING:
    from tilefold.xray.machine.cta import Cta


def bind(binder: Binder, instruction: Instruction) -> Step | None:
    """The step of `mma.sync` of dense matrices; None if this is none."""
    if instruction.opcode != "mma":
        return None
    _, _, size, *words = instruction.modifiers
    saturate = "satfinite" in words
    layout, kinds = words[:2], [w for w in words[2:] if w != "satfinite"]
    if (
        layout != ["row", "col"]
        or len(kinds) != 4
        or not size.startswith("m")
        or len(instruction.operands) != 4
    ):
        raise unknown(instruction)
    to, of_a, of_b, of_c = kinds
    shape = shape_of(size)
    if to not in SUMS or of_c not in SUMS or of_a not in BYTES or of_b not in BYTES or shape.n != 8:
        raise unknown(instruction)
    target, left, right, start = instruction.operands
    a, b = Factor(binder, left, of_a, shape.m), Factor(binder, right, of_b, shape.n)
    c, d = Sums(binder, start, of_c, shape.m // 8), Sums(binder, target, to, shape.m // 8)
    if (a.k, b.k) != (shape.k, shape.k):
        raise unknown(instruction)

    def multiply(cta: Cta, mask: Mask) -> None:
        together(cta, mask, 32, instruction)
        d.write(cta, product(a.read(cta), b.read(cta), c.read(cta), to, saturate=saturate), mask)

    return multiply


def together(cta: Cta, mask: Mask, threads: int, instruction: Instruction) -> None:
    """All of so many neighbouring threads execute the instruction, or none.

    Raises:
        ExecutionError: some of them do.
    """
    if mask is None:
        return
    counts = mask.reshape(-1, threads).sum(1)
    if ((counts != 0) & (counts != threads)).any():
        raise ExecutionError(
            f"xray: {instruction.name!r} must be executed by {threads} threads together, got {counts.min()} to "
            f"{counts.max()} of them"
        )
