"""Fill values of masked loads that change the result of the reduction they feed.

Shown by computing: one masked element is followed from its load to the reduction, and combined there with elements that
are not masked, for several draws of all that is not known. A fill is right if the others come out as they were.
"""

from __future__ import annotations

import contextlib
import re
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

import numpy as np

from tilefold.xray.ir import tensors
from tilefold.xray.ir.syntax import Function, Operation
from tilefold.xray.observe.values import MOVES, Element, UnknownError, combine, is_elementwise, literal
from tilefold.xray.report.model import Observation, Report
from tilefold.xray.report.static import line_of

if TYPE_CHECKING:
    from tilefold.xray.report.build import Evidence

_DRAWS = 8
_IDENTITY = {
    "arith.addf": "0", "arith.addi": "0", "arith.maxnumf": "-inf", "arith.maximumf": "-inf", "arith.minnumf": "+inf",
    "arith.minimumf": "+inf", "arith.mulf": "1", "arith.muli": "1", "arith.andi": "all ones (-1)", "arith.ori": "0",
    "arith.xori": "0", "arith.maxsi": "the least integer", "arith.minsi": "the greatest integer",
}  # fmt: skip
_NAMES = {
    "add": "sum",
    "max": "maximum",
    "min": "minimum",
    "mul": "product",
    "and": "and",
    "ori": "or",
    "xor": "xor",
}


def wrong_fill(report: Report, evidence: Evidence) -> Iterator[Observation]:
    """Masked loads whose fill is no identity of a reduction, or of a loop's accumulation, that it reaches."""
    function = evidence.ttir
    made = function.made_by()
    loads = [o for o in function.walk() if o.name == "tt.load" and len(o.operands) > 1 and tensors(o.types)]
    for load in loads:
        for folding, spoiled in _spoiled(function, made, load):
            place = line_of(load.place)
            if spoiled and place is not None:
                yield _wrong(load, folding, made, place)
                break


def _spoiled(
    function: Function, made: Mapping[str, Operation], load: Operation
) -> Iterator[tuple[Operation, bool]]:
    """(what folds the load's elements, whether a masked one changes it), for reductions and loops."""
    for operation in function.walk():
        with contextlib.suppress(UnknownError):
            if operation.name == "tt.reduce" and _reaches(made, load, operation.operands):
                axis = int(operation.attributes.split("axis = ")[1].split()[0])
                if axis in varying(made, load.operands[1], len(_shape(load))):
                    yield operation, _changes_reduction(made, load, operation)
            elif operation.name == "scf.for":
                update = _spoiled_update(made, load, operation)
                if update is not None:
                    yield update, True


def _reaches(made: Mapping[str, Operation], load: Operation, names: tuple[str, ...]) -> bool:
    """Whether elements of the load arrive at these values through operations on single elements."""
    return bool(set(load.results) & closure(made, names))


def closure(made: Mapping[str, Operation], names: tuple[str, ...]) -> set[str]:
    """Values that elements of these are computed from, element by element."""
    found: set[str] = set()
    pending = list(names)
    while pending:
        name = pending.pop()
        if name in found:
            continue
        found.add(name)
        operation = made.get(name)
        if operation is not None and is_elementwise(operation):
            pending += operation.operands
    return found


def _changes_reduction(made: Mapping[str, Operation], load: Operation, reduction: Operation) -> bool:
    region, mask = reduction.blocks[0], load.operands[1]
    for seed in range(_DRAWS):
        masked = Element(made, {mask: False}, seed, masked_by=mask)
        plain = Element(made, {mask: True}, seed)
        fill = [masked.value(v) for v in reduction.operands]
        others = [plain.value(v) for v in reduction.operands]
        # Positions of masked elements come last: an element before them.
        for left, right in ((others, fill), (fill, others)):
            if not _same(combine(region, left, right)[0], others[0]):
                return True
    return False


def _spoiled_update(made: Mapping[str, Operation], load: Operation, loop: Operation) -> Operation | None:
    """The operation that makes a loop's next value, if a masked element changes that."""
    (block,) = loop.blocks
    _, *carried = block.arguments
    inside = {r for o in block.operations for r in o.results}
    mask = load.operands[1]
    if load.results[0] not in inside or not _depends(made, mask, set(block.arguments)):
        return None
    yielded = next((o.operands for o in block.operations if o.name == "scf.yield"), ())
    for name, first, last in zip(carried, loop.carried, yielded, strict=False):
        reached = closure(made, (last,))
        if load.results[0] not in reached or name not in reached or not _is_tile(made, last):
            continue
        for seed in range(_DRAWS):
            before = Element(made, {}, seed).drawn_like(first)
            masked = Element(made, {mask: False, name: before}, seed, masked_by=mask)
            if not _same(masked.value(last), before):
                return made[last]
    return None


def _is_tile(made: Mapping[str, Operation], name: str) -> bool:
    return name in made and bool(tensors(made[name].types))


def _depends(made: Mapping[str, Operation], name: str, on: set[str]) -> bool:
    pending, seen = [name], set()
    while pending:
        value = pending.pop()
        if value in on:
            return True
        if value not in seen and value in made:
            seen.add(value)
            pending += made[value].operands
    return False


def varying(made: Mapping[str, Operation], name: str, rank: int) -> set[int]:
    """Dims of a tile along which a value may change; all of them where that is not known."""
    operation = made.get(name)
    if operation is None or operation.name in ("arith.constant", "tt.splat"):
        return set()
    if operation.name == "tt.make_range":
        return {0}
    if operation.name == "tt.expand_dims":
        found = re.search(r"axis = (\d+)", operation.attributes)
        axis = int(found[1]) if found else 0
        return {d + (d >= axis) for d in varying(made, operation.operands[0], rank - 1)}
    if operation.name == "tt.broadcast" or (is_elementwise(operation) and operation.name not in MOVES):
        return {d for v in operation.operands for d in varying(made, v, rank)}
    return set(range(rank))


def _shape(load: Operation) -> tuple[int, ...]:
    return tensors(load.types)[0].shape


def _same(a: Any, b: Any) -> bool:
    return bool(np.isclose(a, b, rtol=1e-12, atol=0, equal_nan=True))


def _wrong(
    load: Operation, folding: Operation, made: Mapping[str, Operation], place: tuple[str, int]
) -> Observation:
    inner = folding.blocks[0].operations[0].name if folding.blocks else folding.name
    what = next((name for key, name in _NAMES.items() if key in inner), "reduction")
    at = line_of(folding.place)
    fold = f"the {what} in line {at[1]}" if at else f"a {what}"
    identity = _IDENTITY.get(inner, "the value that leaves the others as they are")
    return Observation(
        "wrong-fill",
        "error",
        *place,
        f"masked elements are {_filled(load, made)}, and {fold} takes them in",
        f"masked elements must not change the result: the identity of this {what} is {identity}",
        f"say other={identity}" if inner in _IDENTITY and not inner.endswith("i") else
        "fill with tl.where(mask, x, identity) in front of the reduction",
        numbers=(("identity", identity),),
    )  # fmt: skip


def _filled(load: Operation, made: Mapping[str, Operation]) -> str:
    if len(load.operands) < 3:
        return "undefined (the load names no other)"
    source = made.get(load.operands[2])
    while source is not None and source.name in MOVES:
        source = made.get(source.operands[0])
    try:
        return f"{literal(source)}" if source is not None and source.name == "arith.constant" else "filled"
    except UnknownError:
        return "filled"
