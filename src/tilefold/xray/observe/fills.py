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
from tilefold.xray.observe.values import (
    MOVES,
    Element,
    UnknownError,
    World,
    combine,
    integer_arguments,
    is_elementwise,
    literal,
)  # fmt: skip
from tilefold.xray.report.model import Observation, Report
from tilefold.xray.report.static import line_of

if TYPE_CHECKING:
    from tilefold.xray.report.build import Evidence

_DRAWS = 8  # pairs of elements that are tried
_SEEDS, _PLACES = 48, 12  # among so many
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
    world = World(function, integer_arguments(evidence), report.grid)
    loads = [o for o in function.walk() if o.name == "tt.load" and len(o.operands) > 1 and tensors(o.types)]
    for load in loads:
        place = line_of(load.place)
        folding = next(_spoiled(function, world, load), None)
        if folding is not None and place is not None:
            yield _wrong(load, folding, world.made, place)


def _spoiled(function: Function, world: World, load: Operation) -> Iterator[Operation]:
    """Reductions, and updates of loops' variables, whose result a masked element of the load changes."""
    made = world.made
    for operation in function.walk():
        with contextlib.suppress(UnknownError):
            if operation.name == "tt.reduce" and _reaches(made, load, operation.operands):
                axis = int(operation.attributes.split("axis = ")[1].split()[0])
                along = axis in varying(made, load.operands[1], len(_shape(load)))
                if along and _changes_reduction(world, load, operation):
                    yield operation
            elif operation.name == "scf.for":
                yield from _spoiled_updates(world, load, operation)


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


def _pairs(world: World, mask: str) -> Iterator[tuple[int, int, int]]:
    """(seed, place of a masked element, place of one that is not), of the same program and iteration."""
    found = 0
    for seed in range(_SEEDS):
        places: dict[bool, int] = {}
        for place in range(_PLACES):
            places.setdefault(bool(Element(world, seed, place).value(mask)), place)
            if len(places) == 2:
                yield seed, places[False], places[True]
                found += 1
                break
        if found == _DRAWS:
            return


def _changes_reduction(world: World, load: Operation, reduction: Operation) -> bool:
    region = reduction.blocks[0]
    for seed, masked, plain in _pairs(world, load.operands[1]):
        fill = [Element(world, seed, masked).value(v) for v in reduction.operands]
        others = [Element(world, seed, plain).value(v) for v in reduction.operands]
        if np.isnan(others[0]):  # a maximum may drop it, whatever the fill
            continue
        if not all(
            _same(combine(region, left, right)[0], others[0])
            for left, right in ((others, fill), (fill, others))
        ):
            return True
    return False


def _spoiled_updates(world: World, load: Operation, loop: Operation) -> Iterator[Operation]:
    """The operations that make a loop's next values, where a masked element changes them."""
    (block,) = loop.blocks
    _, *carried = block.arguments
    inside = {r for o in block.operations for r in o.results}
    mask, made = load.operands[1], world.made
    if load.results[0] not in inside or not _depends(made, mask, set(block.arguments)):
        return
    yielded = next((o.operands for o in block.operations if o.name == "scf.yield"), ())
    for name, first, last in zip(carried, loop.carried, yielded, strict=False):
        reached = closure(made, (last,))
        if load.results[0] not in reached or name not in reached or not _is_tile(made, last):
            continue
        for seed, masked, _ in _pairs(world, mask):
            before = Element(world, seed, masked).like(first)
            if not _same(Element(world, seed, masked, {name: before}).value(last), before):
                yield made[last]
                break


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
