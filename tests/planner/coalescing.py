"""How Triton shares a tile among threads, and in what widths they load: from sizes and what divides addresses.

Triton's analysis knows of an address what is contiguous along each axis of the tile, and a power of two that divides it. It
gives each thread a vector along the most contiguous axis, then lanes and warps to that axis, then to the others from the left
(triton/lib/Dialect/TritonGPU/Transforms/Coalesce.cpp and BlockedEncodingAttr's builder, Triton 3.6). Nothing here calls
Triton; tests compare with what it compiles.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property

from tilefold.planner.geometry import Geometry, Operand, Steps
from tilefold.planner.plan import Stage
from tilefold.planner.programs import Programs, shared_inputs
from tilefold.planner.sizes import VECTOR_BYTES, WARP
from tilefold.planner.stages.gathered import Groups

DIVIDES = 16  # by definition the greatest power of two that Triton is told to divide a number


@dataclass(frozen=True)
class Spread:
    """A tile of `shape` on threads: `each` elements a thread in a row, `lanes` and `warps` along each axis, in `order`.

    What is larger than each * lanes * warps is repeated, in registers; what is smaller is held more than once. `held` are
    the elements of a thread.
    """

    shape: Steps
    each: Steps
    lanes: Steps
    warps: Steps
    order: Steps
    held: int

    @cached_property
    def repeated(self) -> float:
        """How many warps load the same, where a tile has fewer elements than the warps take."""
        sizes = zip(self.shape, self.each, self.lanes, self.warps, strict=True)
        return math.prod(max(1.0, e * t * w / max(n, e * t)) for n, e, t, w in sizes)

    def held_along(self, axis: int) -> int:
        """Elements along an axis that one thread holds."""
        unit = self.each[axis] * self.lanes[axis] * self.warps[axis]
        return min(self.shape[axis], self.each[axis] * max(1, self.shape[axis] // unit))

    def warps_along(self, axis: int) -> int:
        """How many warps hold different elements along an axis."""
        return max(1, min(self.warps[axis], self.shape[axis] // (self.each[axis] * self.lanes[axis])))


@dataclass(frozen=True)
class Loads:
    """How one operand's tile is loaded: on which threads, `vector` elements a load, `count` loads a thread.

    `masked_vector` and `masked_count` are those of a load under a mask.
    """

    spread: Spread
    vector: int
    masked_vector: int
    itemsize: int
    count: int
    masked_count: int


def widest(loads: Sequence[Loads]) -> Spread:
    """How the operand of the largest tile lies on threads: states lie as its elements do."""
    return max((one.spread for one in loads), key=lambda some: math.prod(some.shape))


def power_of(n: int, most: int = DIVIDES) -> int:
    """The greatest power of two up to `most` that divides n."""
    return math.gcd(n, most)


@functools.lru_cache(4096)
def spread_over(shape: Steps, order: Steps, vector: int, warps: int) -> Spread:
    """Threads shared over a tile: along the first axis of `order` as many as it has vectors, then along the next."""
    each = [1] * len(shape)
    each[order[0]] = vector
    lanes, warps_along = [1] * len(shape), [1] * len(shape)
    lanes_left, warps_left, threads_left = WARP, warps, WARP * warps
    for axis in order[:-1]:
        threads = max(1, min(threads_left, max(1, shape[axis] // each[axis])))
        lanes[axis] = max(1, min(threads, lanes_left))
        warps_along[axis] = max(1, min(threads // lanes[axis], warps_left))
        warps_left //= warps_along[axis]
        lanes_left //= lanes[axis]
        threads_left //= threads
    lanes[order[-1]] = lanes_left
    warps_along[order[-1]] = warps_left
    held = 1
    for size, one, lane, warp in zip(shape, each, lanes, warps_along, strict=True):
        held *= one * max(1, size // (one * lane * warp))
    return Spread(shape, tuple(each), tuple(lanes), tuple(warps_along), order, held)


def tile_shape(stage: Stage, unroll: int) -> Steps:
    """The tile as the kernel writes it: [run, lanes, results, unroll], in order [lanes, results, run]."""
    if stage.ordered:
        return (stage.lanes, stage.block_outputs, stage.run)
    return (stage.run, stage.lanes, stage.block_outputs, unroll)


def loads_of(
    geometry: Geometry, stage: Stage, grid: Programs, unroll: int, step: int = 0
) -> tuple[Loads, ...]:
    """How each operand's tile of `unroll` runs a lane is loaded; in order, run `step` of every lane."""
    if stage.gathered:
        return tuple(_gathered(geometry, o, stage) for o in geometry.operands)
    shape = tile_shape(stage, unroll)
    shared = shared_inputs(stage, [o.along for o in geometry.operands], geometry.ragged)
    facts = [_facts(geometry, o, stage, grid, unroll, step) for o in geometry.operands]
    orders = [_order(f.contiguous) for f in facts]
    vectors = _vectors(geometry, facts, orders)
    alike = vectors
    if (
        stage.ordered
    ):  # all runs of all parts are tiles of one shape, of which the first run of the longest is best aligned
        longest = max(stage.unroll if grid.has_full else 1, grid.head, grid.tail)
        alike = _vectors(
            geometry, [_facts(geometry, o, stage, grid, longest, 0) for o in geometry.operands], orders
        )
    found = []
    for i, (fact, order, operand) in enumerate(zip(facts, orders, geometry.operands, strict=True)):
        # Loads of one tile and order get the widest of their vectors; nobody more than a share of the tile.
        widest = max(v for v, o in zip(alike, orders, strict=True) if o == order)
        share = max(1, math.prod(shape) // (WARP * stage.num_warps))
        spread = spread_over(shape, order, min(widest, share), stage.num_warps)
        vector = min(vectors[i], spread.each[order[0]])
        masked = min(vector, _mask_runs(geometry, stage, grid, order, fact))
        vector = masked if geometry.width % stage.block_outputs else vector
        counts = (max(1, spread.held // vector), max(1, spread.held // masked))
        found.append(Loads(spread, vector, masked, operand.itemsize, *counts))
    whole = next((one for i, one in enumerate(found) if i not in shared), None)
    for i in shared:
        assert whole is not None
        found[i] = _shared(whole.spread, orders[i], vectors[i], geometry.operands[i].itemsize)
    return tuple(found)


def _shared(whole: Spread, order: Steps, vector: int, itemsize: int) -> Loads:
    """One result's elements for all of a program's: on the threads of another input's tile where they are fewer than the
    threads, as Triton's `isExpensiveLoadOrStore` has it, else on their own."""
    shape = (*whole.shape[:2], 1, *whole.shape[3:])
    threads = math.prod(whole.lanes) * math.prod(whole.warps)
    if math.prod(shape) >= threads:
        share = max(1, math.prod(shape) // threads)
        spread = spread_over(shape, order, min(vector, share), math.prod(whole.warps))
        vector = spread.each[order[0]]
    else:
        each, vector = (*whole.each[:2], 1, *whole.each[3:]), 1
        held = whole.held // whole.held_along(2)
        spread = replace(whole, shape=shape, each=each, held=held)
    count = max(1, spread.held // vector)
    return Loads(spread, vector, vector, itemsize, count, count)


def _gathered(geometry: Geometry, operand: Operand, stage: Stage) -> Loads:
    """The run of memory that a program's rows lie in: vectors side by side."""
    groups = groups_of_geometry(geometry, operand)
    span = groups.span(operand.residue, operand.itemsize, stage.block_outputs // groups.inner)
    vector = VECTOR_BYTES // operand.itemsize
    spread = spread_over(
        (span,), (0,), min(vector, max(1, span // (WARP * stage.num_warps))), stage.num_warps
    )
    count = max(1, spread.held // spread.each[0])
    return Loads(spread, spread.each[0], spread.each[0], operand.itemsize, count, count)


def _vectors(geometry: Geometry, facts: Sequence[_Facts], orders: Sequence[Steps]) -> list[int]:
    """Elements of each operand that one load may take, as far as addresses go."""
    each = zip(facts, orders, geometry.operands, strict=True)
    return [min(f.contiguous[order[0]], f.divides, VECTOR_BYTES // o.itemsize) for f, order, o in each]


@dataclass(frozen=True)
class _Facts:
    """What Triton knows of an operand's addresses: contiguous elements along each axis, elements that divide them."""

    contiguous: Steps
    divides: int


def _facts(
    geometry: Geometry, operand: Operand, stage: Stage, grid: Programs, unroll: int, step: int
) -> _Facts:
    run, lanes, outputs = stage.run, stage.lanes, stage.block_outputs
    rows = operand.along == 1 and stage.align == 1
    row = power_of(geometry.flat[-1], outputs) if geometry.flat else outputs
    along = row if rows else 1
    begin = _begin_divides(stage, grid)
    runs = 1
    if operand.inner == 1:
        runs = run
        if geometry.deep:
            runs = math.gcd(math.gcd(run, begin), power_of(geometry.inner))
    if stage.ordered:
        contiguous: Steps = (
            lanes if operand.inner == 1 and run == 1 and unroll == 1 and not geometry.deep else 1,
            along,
            runs,
        )
    else:
        over = lanes if operand.inner == 1 and run == 1 else 1
        beyond = unroll if operand.inner == 1 and run * lanes == 1 else 1
        if geometry.deep:
            over, beyond = (
                math.gcd(over, power_of(geometry.inner)),
                math.gcd(beyond, power_of(geometry.inner)),
            )
        contiguous = (runs, over, along, beyond)
    places = 1  # what divides all reduced places of a tile
    if stage.ordered and run == 1:
        places = math.gcd(begin, unroll if lanes > 1 else DIVIDES, step or DIVIDES)
    return _Facts(contiguous, _divides(geometry, operand, stage, grid, contiguous, places))


def _begin_divides(stage: Stage, grid: Programs) -> int:
    """What is known to divide the place where a tile begins."""
    return min(DIVIDES, power_of(grid.chunk) if grid.splits > 1 else DIVIDES)


def _divides(
    geometry: Geometry, operand: Operand, stage: Stage, grid: Programs, contiguous: Steps, places: int
) -> int:
    """Elements that are known to divide the address of a contiguous run's begin."""
    by_results = contiguous[1 if stage.ordered else 2] > 1
    if stage.align > 1:
        return max(1, math.gcd(16, stage.align * operand.itemsize, 16) // operand.itemsize)
    if by_results:
        terms = (power_of(operand.inner) * places, stage.block_outputs)
    else:
        terms = (operand.along, math.gcd(_begin_divides(stage, grid), max(contiguous)))
    divides = math.gcd(operand.divides, *(t * operand.itemsize for t in terms))
    return max(1, divides // operand.itemsize)


@functools.lru_cache(1024)
def _order(contiguous: Steps) -> Steps:
    """Axes by how contiguous they are, from the left among equals."""
    return tuple(sorted(range(len(contiguous)), key=lambda axis: -contiguous[axis]))


def _mask_runs(geometry: Geometry, stage: Stage, grid: Programs, order: Steps, fact: _Facts) -> int:
    """Neighbours that a mask is known to treat alike: by what divides the number of results, or of places."""
    lane_axis, results, run_axis = (0, 1, 2) if stage.ordered else (1, 2, 0)
    first = order[0]
    if first == results:
        return math.gcd(stage.block_outputs, power_of(geometry.width))
    if first == run_axis:
        return fact.contiguous[first]
    if first == lane_axis and stage.align == 1:
        return math.gcd(fact.contiguous[first], _begin_divides(stage, grid), power_of(geometry.length))
    return 1


def groups_of_geometry(geometry: Geometry, operand: Operand) -> Groups:
    """The groups of a geometry: flat, where groups have several results."""
    if not geometry.flat:
        return Groups(operand.along, 1, operand.inner, geometry.length)
    return Groups(operand.outer[0], geometry.flat[-1], operand.inner, geometry.length)
