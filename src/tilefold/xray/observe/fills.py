"""Masked loads whose fill may change the result of the reduction they feed.

Found by computing: one masked element is followed from its load to the reduction, and combined there with elements that
are not masked, for several draws of all that is not known. A fill is right if the others come out as they were.
"""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from tilefold.xray.ir import tensors
from tilefold.xray.ir.syntax import Function, Operation
from tilefold.xray.observe.values import (
    MOVES,
    Element,
    UnknownError,
    World,
    combine,
    is_elementwise,
    literal,
)  # fmt: skip
from tilefold.xray.reach import reached

_DRAWS = 8  # seeds that are tried
_SEEDS, _PLACES = 48, 12  # among so many, with so many elements each
_TURNED = ("tt.reshape", "tt.trans")  # behind these a dim is another one, unless all dims became one
_IDENTITY = {
    "arith.addf": "0", "arith.addi": "0", "arith.maxnumf": "-inf", "arith.maximumf": "-inf", "arith.minnumf": "+inf",
    "arith.minimumf": "+inf", "arith.mulf": "1", "arith.muli": "1", "arith.andi": "all ones (-1)", "arith.ori": "0",
    "arith.xori": "0", "arith.maxsi": "the least integer", "arith.minsi": "the greatest integer",
}  # fmt: skip
_NAMES = {
    "add": "sum", "max": "maximum", "min": "minimum", "mul": "product", "and": "and", "ori": "or", "xor": "xor",
}  # fmt: skip


@dataclass(frozen=True)
class Counterexample:
    """Elements in order, of which the one at `masked` is not to be used; what came of all of them, and of the others alone.

    `folding` is the reduction, or the update of a loop's variable, which is named `update`: after and before. All is of the
    draw `seed`.
    """

    folding: Operation
    elements: tuple[float, ...]
    masked: int
    got: float
    wanted: float
    seed: int
    update: tuple[str, str] = ("", "")
    rows: int = -1  # the dim along which rows were folded before, -1 where they were not
    turned: bool = False  # whether the dims of what is folded are the load's in the other order
    joined: bool = (
        False  # whether `update` is no loop's, but tiles of other elements taken together in straight code
    )
    along: int = (
        -1
    )  # the dim of what is folded that a load of one dim goes along, -1 where it has as many dims

    def __str__(self) -> str:
        alike = (n for n in range(4, 17) if _number(self.got, n) != _number(self.wanted, n))
        digits = next(alike, 17)
        shown = ", ".join(
            f"[masked: {_number(x, digits)}]" if i == self.masked else _number(x, digits)
            for i, x in enumerate(self.elements)
        )
        return f"{shown} gives {_number(self.got, digits)} and should give {_number(self.wanted, digits)}"


@dataclass(frozen=True)
class Suspect:
    """A masked load whose fill changes results when single elements are followed to them: an example of each."""

    load: Operation
    examples: tuple[Counterexample, ...]


def suspects(function: Function, world: World) -> Iterator[Suspect]:
    """Masked loads whose fill is no identity of a reduction, or of a loop's accumulation, that it reaches.

    Raises:
        StoppedError: the world's steps are used up.
    """
    for load in function.walk():
        if load.name == "tt.load" and len(load.operands) > 1 and tensors(load.types):
            examples = tuple(_spoiled(function, world, load))
            if examples:
                yield Suspect(load, examples)


def _spoiled(function: Function, world: World, load: Operation) -> Iterator[Counterexample]:
    """Reductions, and updates of loops' variables, whose result a masked element of the load changes."""
    made, dims = world.made, varying(function)
    for operation in function.walk():
        with contextlib.suppress(UnknownError):
            if operation.name == "tt.reduce" and not _is_served(world, load, operation):
                varies = _varies_in(operation, load, made, dims)
                if varies is not None and _folds_along(operation, load, varies):
                    along = lifted(load, operation.operands, made)
                    turned = along < 0 and varies != dims.get(load.operands[1], varies)
                    joins = _joins(world, load, operation, dims, varies)
                    examples = (
                        _spoiled_joins(world, load, joins)
                        if joins
                        else _changed_reduction(world, load, operation)
                    )
                    yield from (replace(e, turned=turned, along=along) for e in examples)
                elif varies is None:
                    yield from _changed_rows(world, load, operation, dims)
            elif operation.name == "tt.dot":
                yield from _spoiled_product(world, load, operation, dims)
            elif operation.name == "scf.for":
                yield from _spoiled_updates(world, load, operation)


def _joins(
    world: World, load: Operation, reduction: Operation, dims: Mapping[str, set[int]], varies: set[int]
) -> list[tuple[Operation, str]]:
    """Where tiles of other elements are taken together with a load's, by what they are folded with later: a sum of parts. An
    element of these counts where only the load is masked. With each the tile of the others.

    Tiles that are the same along the masked dims (a bias of each column, where rows are masked) belong to the element.
    """
    made, found = world.made, []
    folds = {o.name for block in reduction.blocks for o in block.operations}
    for name in closure(made, reduction.operands):
        join = made.get(name)
        if join is None or join.name not in folds or len(join.operands) != 2:
            continue
        reached = [set(load.results) & closure(made, (v,)) for v in join.operands]
        if bool(reached[0]) == bool(reached[1]):
            continue
        other = join.operands[1 if reached[0] else 0]
        if dims.get(other, varies) & varies and _is_kept(world, load, closure(made, (other,))):
            found.append((join, other))
    return found


def _is_served(world: World, load: Operation, reduction: Operation) -> bool:
    """Whether another load has an element just where this one is masked: the two halves of one tile."""
    names = closure(world.made, reduction.operands)
    masks = {
        o.operands[1]
        for n in names
        if (o := world.made.get(n)) is not None and o.name == "tt.load" and len(o.operands) > 1
    } - {load.operands[1]}
    drawn = [*_draws(world, load.operands[1])] if masks and load.results[0] in names else []
    return bool(drawn) and any(
        all(bool(Element(world, s, p).value(mask)) for s, masked, _ in drawn for p in masked)
        and not any(bool(Element(world, s, p).value(mask)) for s, _, plain in drawn for p in plain)
        for mask in masks
    )


def _is_kept(world: World, load: Operation, others: set[str]) -> bool:
    """Whether a load among these values has an element where another load is masked, in some draw."""
    masks = {
        o.operands[1] if len(o.operands) > 1 else ""
        for name in others
        if (o := world.made.get(name)) is not None and o.name == "tt.load"
    } - {load.operands[1]}
    if "" in masks:
        return True
    return any(
        bool(Element(world, seed, places[0]).value(mask))
        for mask in masks
        for seed, places, _ in _draws(world, load.operands[1])
    )


def _spoiled_joins(
    world: World, load: Operation, joins: Sequence[tuple[Operation, str]]
) -> Iterator[Counterexample]:
    """Tiles taken together, whose elements of others a masked element changes."""
    for join, other in joins:
        for seed, masked, _ in _draws(world, load.operands[1]):
            element = Element(world, seed, masked[0])
            before, after = element.value(other), element.value(join.results[0])
            if not _same(after, before):
                elements = (before, element.value(load.results[0]))
                update = (join.results[0], other)
                yield Counterexample(join, elements, 1, after, before, seed, update, joined=True)
                break


def _changed_rows(
    world: World, load: Operation, reduction: Operation, dims: Mapping[str, set[int]]
) -> Iterator[Counterexample]:
    """Masked rows that are folded on their own first, and then with the others: distances, of which the least is taken."""
    made, loaded = world.made, tensors(load.types)[-1]
    varies, folded = dims.get(load.operands[1], set(range(len(loaded.shape)))), tensors(reduction.types)[0]
    if len(folded.shape) != len(loaded.shape) - 1:
        return
    for name in closure(made, reduction.operands):
        inner = made.get(name)
        if inner is None or inner.name != "tt.reduce" or len(inner.operands) != 1:
            continue
        axis = inner.axis
        rest = {d - (d > axis) for d in varies - {axis}}
        whole = tensors(inner.types)[0].shape == loaded.shape
        if whole and reduction.axis in rest and set(load.results) & closure(made, inner.operands):
            world.through = frozenset([name])
            try:
                yield from (replace(e, rows=axis) for e in _changed_reduction(world, load, reduction))
            finally:
                world.through = frozenset()


def _spoiled_product(
    world: World, load: Operation, product: Operation, dims: Mapping[str, set[int]]
) -> Iterator[Counterexample]:
    """Masked elements along a product's K that are not 0 times their factor."""
    number = factor_of(load, product, world.made)
    if number is None:
        return
    along = lifted(load, product.operands[number : number + 1], world.made)
    if 1 - number not in (dims.get(load.operands[1], {0, 1}) if along < 0 else {along}):
        return
    for seed, masked, plain in _draws(world, load.operands[1]):
        (spoiled, kept) = (
            float(element.value(product.operands[0]) * element.value(product.operands[1]))
            for element in (Element(world, seed, places[0]) for places in (masked, plain))
        )
        if spoiled and not np.isnan(spoiled + kept):
            yield Counterexample(product, (kept, spoiled), 1, kept + spoiled, kept, seed, along=along)
            return


def factor_of(load: Operation, product: Operation, made: Mapping[str, Operation]) -> int | None:
    """Which factor of a product a load's elements arrive in, each at its own place."""
    found = (n for n, v in enumerate(product.operands[:2]) if set(load.results) & closure(made, (v,)))
    return next(found, None)


def _folds_along(reduction: Operation, load: Operation, varies: set[int]) -> bool:
    """Whether a reduction folds masked elements of a load with others: its dim is one along which the mask varies.

    A reduction of all dims folds the tile as one dim (`tl.max(x)` reshapes it first).
    """
    folded, loaded = tensors(reduction.types)[0], tensors(load.types)[-1]
    return bool(varies) if len(folded.shape) == 1 < len(loaded.shape) else reduction.axis in varies


def _varies_in(
    reduction: Operation, load: Operation, made: Mapping[str, Operation], dims: Mapping[str, set[int]]
) -> set[int] | None:
    """Dims of what is folded along which the mask of a load varies. None where its elements do not arrive there, through
    operations on single elements, or as whole rows or columns through a product."""
    loaded = tensors(load.types)[-1]
    varies = dims.get(load.operands[1], set(range(len(loaded.shape))))
    if set(load.results) & closure(made, reduction.operands, varies if len(loaded.shape) == 2 else None):
        along = lifted(load, reduction.operands, made)
        return varies if along < 0 else {along}
    turned = {1 - d for d in varies}
    if len(loaded.shape) == 2 and set(load.results) & closure(made, reduction.operands, turned, turned=True):
        return turned
    return None


def closure(
    made: Mapping[str, Operation],
    names: tuple[str, ...],
    varies: set[int] | None = None,
    *,
    turned: bool = False,
) -> set[str]:
    """Values that elements of these are computed from, element by element, along the same dims.

    `varies`: the dims of a product's operand along which a mask varies. Where they are the rows of its first operand, or the
    columns of its second, they are so of the result. `turned`: this operand is the transpose of what was loaded.
    """
    found: set[str] = set()
    pending = list(names)
    while pending:
        name = pending.pop()
        if name in found:
            continue
        found.add(name)
        operation = made.get(name)
        if operation is not None and is_elementwise(operation) and not _turns(operation):
            pending += operation.operands
        elif operation is not None and operation.name == "tt.dot":
            pending += [operation.operands[2]]
            pending += [
                _ahead(made, v, turned) for n, v in enumerate(operation.operands[:2]) if varies == {n}
            ]
    return found


def lifted(load: Operation, names: Sequence[str], made: Mapping[str, Operation]) -> int:
    """The dim of tiles that elements of a load of one dim go along where they arrive in them; -1 where the load has as many
    dims, or it is not known."""
    if len(tensors(load.types)[-1].shape) != 1:
        return -1
    pending, seen = [*names], set[str]()
    while pending:
        operation = made.get(pending.pop())
        if (
            operation is None
            or set(operation.results) & seen
            or not set(load.results) & closure(made, operation.results)
        ):
            continue
        seen |= {*operation.results}
        if operation.name == "tt.expand_dims" and len(tensors(operation.types)[-1].shape) == 2:
            return 1 - operation.axis
        pending += operation.operands
    return -1


def _ahead(made: Mapping[str, Operation], name: str, turned: bool) -> str:
    """An operand of a product, or what it is the transpose of; nothing where it is none."""
    source = made.get(name)
    transposed = source is not None and source.name == "tt.trans"
    if not turned:
        return name
    return source.operands[0] if source is not None and transposed else ""


def _turns(operation: Operation) -> bool:
    """Whether the dims of a tile are others behind an operation than ahead of it; all of them as one are told apart."""
    return operation.name in _TURNED and len(tensors(operation.types)[-1].shape) > 1


def _draws(world: World, mask: str) -> Iterator[tuple[int, list[int], list[int]]]:
    """(seed, places of masked elements, places of others), of the same program and iteration; some of both."""
    found = 0
    for seed in range(_SEEDS):
        places: dict[bool, list[int]] = {True: [], False: []}
        for place in range(_PLACES):
            places[bool(Element(world, seed, place).value(mask))].append(place)
        if places[True] and places[False]:
            yield seed, places[False], places[True]
            found += 1
        if found == _DRAWS:
            return


def _changed_reduction(world: World, load: Operation, reduction: Operation) -> Iterator[Counterexample]:
    """Elements that come out otherwise together with a masked one. All that are not masked take part: some of them may not
    count for other reasons, as elements of a state that a flag of theirs calls empty."""
    region = reduction.blocks[0]

    def folded(seed: int, places: list[int]) -> list[Any]:
        states = [[Element(world, seed, p).value(v) for v in reduction.operands] for p in places]
        return functools.reduce(lambda a, b: combine(world, seed, region, a, b), states)

    for seed, masked, plain in _draws(world, load.operands[1]):
        wanted = folded(seed, plain)
        if np.isnan(wanted[0]):  # a maximum may drop it, whatever the fill
            continue
        for order in ([*plain, masked[0]], [masked[0], *plain]):
            got = folded(seed, order)
            if not _same(got[0], wanted[0]):
                yield _shortest(folded, world, reduction, seed, order, masked[0], got[0], wanted[0])
                return


def _shortest(
    folded: Callable[[int, list[int]], list[Any]], world: World, reduction: Operation, seed: int, order: list[int],
    masked: int, got: Any, wanted: Any,
) -> Counterexample:  # fmt: skip
    """With one element beside the masked one if that shows it, else with all, in the order in which they were folded."""

    def shown(places: list[int], came: Any, owed: Any) -> Counterexample:
        held = tuple(Element(world, seed, p).value(reduction.operands[0]) for p in places)
        return Counterexample(reduction, held, places.index(masked), came, owed, seed)

    for place in (p for p in order if p != masked):
        pair = [p for p in order if p in (place, masked)]
        alone, both = folded(seed, [place])[0], folded(seed, pair)[0]
        if _same(both, got) and not _same(alone, both):
            return shown(pair, both, alone)
    return shown(order, got, wanted)


def _spoiled_updates(world: World, load: Operation, loop: Operation) -> Iterator[Counterexample]:
    """Updates of a loop's variables that a masked element changes."""
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
        for seed, masked, plain in _draws(world, mask):
            before = Element(world, seed, masked[0]).like(first)
            if not _folds(world, seed, plain[0], load, (last, name), before):
                continue
            element = Element(world, seed, masked[0], {name: before})
            if not _same(element.value(last), before):
                elements = (before, element.value(load.results[0]))
                yield Counterexample(made[last], elements, 1, element.value(last), before, seed, (last, name))
                break


def _folds(
    world: World, seed: int, place: int, load: Operation, update: tuple[str, str], before: Any
) -> bool:
    """Whether some element leaves a loop's variable as it was. Of one that every round changes none does: no fill could."""
    after, name = update
    tried = (0, 1, -1, before, np.inf, -np.inf)
    held = (
        {name: before, load.results[0]: type(before)(x)}
        for x in tried
        if np.isfinite(x) or isinstance(before, float)
    )
    return any(_same(Element(world, seed, place, fixed).value(after), before) for fixed in held)


def _is_tile(made: Mapping[str, Operation], name: str) -> bool:
    return name in made and bool(tensors(made[name].types))


def _depends(made: Mapping[str, Operation], name: str, on: set[str]) -> bool:
    return any(v in on for v in reached([name], lambda v: made[v].operands if v in made else ()))


def varying(function: Function) -> dict[str, set[int]]:
    """Dims of each tile along which its value may change; all of them where that is not known."""
    found: dict[str, set[int]] = {}
    for operation in function.walk():
        tile = next(reversed(tensors(operation.types)), None)
        everywhere = set(range(len(tile.shape))) if tile is not None else set()
        dims = _varying(operation, found, everywhere)
        found.update(dict.fromkeys(operation.results, dims))
    return found


def _varying(operation: Operation, known: Mapping[str, set[int]], everywhere: set[int]) -> set[int]:
    if operation.name in ("arith.constant", "tt.splat"):
        return set()
    if operation.name == "tt.expand_dims":
        inner = known.get(operation.operands[0], set(range(len(everywhere) - 1)))
        return {d + (d >= operation.axis) for d in inner}
    if operation.name == "tt.broadcast" or (is_elementwise(operation) and operation.name not in MOVES):
        return {d for v in operation.operands for d in known.get(v, everywhere)}
    return everywhere


def _same(a: Any, b: Any) -> bool:
    return bool(np.isclose(a, b, rtol=1e-12, atol=0, equal_nan=True))


def _number(value: Any, digits: int) -> str:
    return str(value) if isinstance(value, (bool, int, np.integer)) else f"{float(value):.{digits}g}"


def identity_of(folding: Operation) -> tuple[str, str]:
    """The name of a reduction or an update, and its identity."""
    if folding.name == "tt.dot":
        return "product (a sum along K)", "0"
    inner = folding.blocks[0].operations[0].name if folding.blocks else folding.name
    if len(folding.operands) > 1 and folding.blocks:
        return _chosen(folding)
    what = next((name for key, name in _NAMES.items() if key in inner), "reduction")
    return what, _IDENTITY.get(inner, "")


def _chosen(folding: Operation) -> tuple[str, str]:
    """A fold of several values that keeps those where the first is the largest or the least."""
    orders = {
        o.attributes.split(",")[0].strip()
        for o in folding.blocks[0].operations
        if o.name.startswith("arith.cmp")
    }
    integers = any(
        o.name == "arith.cmpi" and "eq" in o.attributes.split(",")[0] for o in folding.blocks[0].operations
    )
    if integers or not orders & {"ogt", "olt"} or {"ogt", "olt"} <= orders:
        return "reduction", ""
    return ("argmax", "-inf") if "ogt" in orders else ("argmin", "+inf")


def filled(load: Operation, made: Mapping[str, Operation]) -> str:
    """What masked elements of a load are, in words."""
    if len(load.operands) < 3:
        return "undefined (the load names no other)"
    source = made.get(load.operands[2])
    while source is not None and source.name in MOVES:
        source = made.get(source.operands[0])
    try:
        return f"{literal(source)}" if source is not None and source.name == "arith.constant" else "filled"
    except UnknownError:
        return "filled"
