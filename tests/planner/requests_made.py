"""Every request that one program's loads and stores make, enumerated: the exact count of what a launch asks memory for.

A request is one instruction of one warp. It moves the 32-byte sectors that its active lanes touch.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from planner.coalescing import Loads, Spread, groups_of_geometry, loads_of, power_of, spread_over
from tilefold.planner.folds import NARROW
from tilefold.planner.geometry import Geometry, Operand, Steps
from tilefold.planner.plan import Stage
from tilefold.planner.programs import Programs, programs_of, tiling_of
from tilefold.planner.sizes import LINE_BYTES, SECTOR, VECTOR_BYTES, power_above

Array = NDArray[Any]


@dataclass(frozen=True)
class Moved:
    """What requests moved: their number (with an active lane), sectors and lines by request, bytes of active lanes."""

    requests: int = 0
    sectors: int = 0
    lines: int = 0
    asked: int = 0

    def __add__(self, other: Moved) -> Moved:
        return Moved(
            self.requests + other.requests,
            self.sectors + other.sectors,
            self.lines + other.lines,
            self.asked + other.asked,
        )

    def times(self, n: int) -> Moved:
        """As often as that."""
        return Moved(self.requests * n, self.sectors * n, self.lines * n, self.asked * n)


@dataclass(frozen=True)
class Laid:
    """How a launch's results lie: steps along the outer dims and the last one, places `before` the first and `beyond` the
    last."""

    outer: Steps
    along: int
    before: int = 0
    beyond: int = 0


def masks(geometry: Geometry, stage: Stage) -> bool:
    """Whether the last block has too few results."""
    return geometry.width % stage.block_outputs != 0


def splits_first(geometry: Geometry, stage: Stage) -> bool:
    """Whether neighbours in launch order share a result."""
    return max(operand.inner for operand in geometry.operands) == 1 or stage.block_outputs == 1


def is_wide(geometry: Geometry, stage: Stage) -> bool:
    """Whether places among a result's elements take 64 bits."""
    sizes = (*geometry.deep, geometry.inner)
    steps = [(*operand.deep, operand.inner) for operand in geometry.operands]
    reach = max(sum((n - 1) * s for n, s in zip(sizes, some, strict=True)) for some in steps)
    return max(reach, geometry.length) + 2 * stage.step + stage.align > NARROW


def program_loads(geometry: Geometry, stage: Stage, number: int) -> Moved:
    """What the loads of program `number` of a launch move, from and into registers or shared memory."""
    grid = programs_of(geometry, stage)
    outer, block, split = place_of(geometry, stage, grid, number)
    total = Moved()
    if stage.gathered:
        return _gathered(geometry, stage, grid, block)
    for part, step in _loaded(stage, grid, geometry.length, split, geometry.ragged > 0):
        masked = part.masked
        for i, loads in enumerate(loads_of(geometry, stage, grid, part.unroll, step)):
            addresses, active = _tile(geometry, i, stage, loads, (outer, block), part, masks(geometry, stage))
            vector = loads.masked_vector if masked else loads.vector
            total += _moved(addresses, active, vector * loads.itemsize)
    return total


def _gathered(geometry: Geometry, stage: Stage, grid: Programs, block: int) -> Moved:
    """What the vectors move that a program's rows lie in."""
    (loads,) = loads_of(geometry, stage, grid, 1)
    (operand,), size = geometry.operands, loads.itemsize
    (places,), active = _held(loads.spread, loads.vector)
    groups, unit = groups_of_geometry(geometry, operand), VECTOR_BYTES // size
    owned = stage.block_outputs // groups.inner
    left = min(owned, geometry.width // groups.inner - block * owned)
    lead = operand.residue % VECTOR_BYTES
    begin = operand.residue - lead + block * owned * groups.between * size
    end = lead // size + groups.extent(left)
    return _moved(begin + places * size, active & (places // unit * unit < end), loads.vector * size)


def program_stores(
    geometry: Geometry, stage: Stage, laid: Laid, number: int, itemsizes: Steps, partial: bool
) -> Moved:
    """What program `number` stores: a result of each of `itemsizes` bytes, or (`partial`) a state at its split's place."""
    grid = programs_of(geometry, stage)
    outer, block, split = place_of(geometry, stage, grid, number)
    total = Moved()
    for itemsize in itemsizes:
        spread, vector = stores_of(geometry, stage, laid, grid, itemsize, partial)
        (*lanes, places), once = _held(spread, vector)
        results = block * stage.block_outputs + places - laid.before
        begin = split * geometry.outputs if partial else 0
        addresses = _results(geometry, outer, results, laid.outer, laid.along)
        active = once & (results >= 0) & (results < geometry.width - laid.before - laid.beyond)
        active &= (
            places < stage.block_outputs
        )  # gathered: a power of two of threads, of which some own nothing
        for lane in lanes:
            active &= lane == stage.lanes - 1
        total += _moved((begin + addresses) * itemsize, active, vector * itemsize)
    return total


def stores_of(
    geometry: Geometry, stage: Stage, laid: Laid, grid: Programs, itemsize: int, partial: bool
) -> tuple[Spread, int]:
    """How a program's results lie on threads when they are stored, and how many one store takes.

    In order every lane has states, and the last one's are stored.
    """
    outputs = power_above(stage.block_outputs)
    row = power_of(geometry.flat[-1], outputs) if geometry.flat else outputs
    contiguous = row if laid.along == 1 else 1
    terms = [16 // itemsize, outputs, *(power_of(s) for s in laid.outer)]
    terms += [power_of(geometry.outputs)] if partial and grid.splits > 1 else []
    terms += [power_of(n) for n in (laid.before, laid.beyond)]
    divides = math.gcd(*terms)
    vector = min(contiguous, divides, VECTOR_BYTES // itemsize)
    shape, order = (
        ((stage.lanes, outputs), (1, 0) if contiguous > 1 else (0, 1))
        if stage.ordered
        else ((outputs,), (0,))
    )
    share = max(1, math.prod(shape) // (32 * stage.num_warps))
    spread = spread_over(shape, order, min(vector, share), stage.num_warps)
    # The kernel always stores under a mask.
    return spread, min(spread.each[-1], math.gcd(outputs, power_of(geometry.width)))


def place_of(geometry: Geometry, stage: Stage, grid: Programs, number: int) -> tuple[int, int, int]:
    """Outer position, block of results and split of a program, as the kernel takes them apart."""
    split = 0
    if grid.splits > 1 and splits_first(geometry, stage):
        number, split = divmod(number, grid.splits)
    block = number % grid.blocks
    outer = number // grid.blocks
    if grid.splits > 1 and not splits_first(geometry, stage):
        outer, split = divmod(outer, grid.splits)
    return outer, block, split


@dataclass(frozen=True)
class _Part:
    """A tile: where it begins, how many runs a lane has in it, how far apart lanes of an ordered one begin, and whether its
    loads are masked."""

    begin: int
    unroll: int
    lane_step: int
    masked: bool


def _tiles(stage: Stage, grid: Programs, length: int, split: int, ragged: bool = False) -> Iterator[_Part]:
    """The tiles of a program, in order."""
    tiling = tiling_of(stage, grid, length, split, ragged)
    runs = stage.run * stage.lanes
    if tiling.head:
        yield _Part(tiling.start, tiling.head, stage.run * tiling.head, True)
    at = tiling.start + runs * tiling.head
    lane = stage.run * stage.unroll
    step, lane_step = (lane, lane * tiling.full) if stage.shares else (stage.step, lane)
    for tile in range(tiling.full):
        ahead = stage.prefetch and not stage.ordered and grid.has_full > 1 and (tile > 0 or tiling.head > 0)
        yield _Part(at + tile * step, stage.unroll, lane_step, ahead)
    at += tiling.full * stage.step
    for tile in range(tiling.tail):
        begin = at + tile * runs * tiling.tail_runs
        yield _Part(begin, tiling.tail_runs, stage.run * tiling.tail_runs, True)


def _loaded(
    stage: Stage, grid: Programs, length: int, split: int, ragged: bool
) -> Iterator[tuple[_Part, int]]:
    """The tiles as they are loaded: in order, each run of the lanes by itself."""
    for part in _tiles(stage, grid, length, split, ragged):
        for step in range(part.unroll if stage.ordered else 1):
            yield replace(part, begin=part.begin + step * stage.run), step


def _walked(number: Any, sizes: Steps, steps: Steps) -> Any:
    """Where a row-major position over `sizes` lies."""
    offset = number * 0
    for size, step in zip(reversed(sizes), reversed(steps), strict=True):
        offset = offset + number % size * step
        number = number // size
    return offset


def _results(geometry: Geometry, outer: int, results: Array, steps: Steps, along: int) -> Any:
    """Where results, or the first of their elements, lie."""
    if geometry.flat:
        return _walked(results, geometry.flat, (*steps, along))
    return _walked(outer, geometry.outer, steps) + results * along


def _tile(
    geometry: Geometry,
    i: int,
    stage: Stage,
    loads: Loads,
    place: tuple[int, int],
    part: _Part,
    masks: bool,
) -> tuple[Array, Array]:
    """Addresses [instructions, warps, 32] of a tile's loads, and which lanes are active."""
    operand = geometry.operands[i]
    masked = part.masked
    vector = loads.masked_vector if masked else loads.vector
    where, _ = _held(loads.spread, vector)
    places, outputs = _places(stage, where, part.lane_step)
    places = part.begin + places
    outputs = place[1] * stage.block_outputs + outputs
    first = operand.residue // operand.itemsize
    rows = first + _results(geometry, place[0], outputs, operand.outer, operand.along)
    lead: Any = 0
    if stage.align > 1:
        lead = rows % stage.align
        rows = rows - lead
    offsets = rows + _reduced(geometry, operand, places)
    active = np.ones(offsets.shape, bool)
    if masked:
        unit = VECTOR_BYTES // operand.itemsize  # whose loads are not cut
        ragged = geometry.ragged and outputs // unit * unit >= geometry.ragged
        ends = lead + geometry.length - ragged
        active &= (outputs < geometry.width) & (places // stage.run * stage.run < ends)
    elif masks:
        active &= outputs < geometry.width
    return offsets * operand.itemsize, active


def _reduced(geometry: Geometry, operand: Operand, places: Array) -> Any:
    """Where reduced positions lie. Rows that are one run are walked beyond their end, where a vector ends there."""
    if not geometry.deep:
        return places * operand.inner
    deep = _walked(places // geometry.inner, geometry.deep, operand.deep)
    return places % geometry.inner * operand.inner + deep


def _places(stage: Stage, where: tuple[Array, ...], lane_step: int) -> tuple[Array, Array]:
    """Reduced places in the tile, and results in the block, of the elements at these coordinates."""
    if stage.ordered:
        lane, outputs, run = where
        return lane * lane_step + run, outputs
    run, lane, outputs, step = where
    return run + lane * stage.run + step * (stage.lanes * stage.run), outputs


def _held(spread: Spread, vector: int) -> tuple[tuple[Array, ...], Array]:
    """Coordinates along each axis of each load's first element: [instructions, warps, 32]; and who holds it first.

    A thread's own elements go by `order`, as its lane and its warp do.
    """
    axes = range(len(spread.shape))
    repeats = [
        max(1, n // (e * t * w))
        for n, e, t, w in zip(spread.shape, spread.each, spread.lanes, spread.warps, strict=True)
    ]
    lanes, warps = np.arange(32), np.arange(math.prod(spread.warps))
    lane_at, warp_at = _digits(lanes, spread.lanes, spread.order), _digits(warps, spread.warps, spread.order)
    own = np.arange(0, math.prod(spread.each), vector)
    own_at = _digits(own, spread.each, spread.order)
    again = np.arange(math.prod(repeats))
    again_at = _digits(again, tuple(repeats), spread.order)
    once = np.ones((len(again) * len(own), len(warps), 32), bool)
    found = []
    for a in axes:
        unit = spread.each[a]
        at = (
            (again_at[a] * unit * spread.lanes[a] * spread.warps[a])[:, None, None, None]
            + own_at[a][None, :, None, None]
            + (lane_at[a] * unit)[None, None, None, :]
            + (warp_at[a] * unit * spread.lanes[a])[None, None, :, None]
        ).reshape(-1, len(warps), 32)
        once &= at < spread.shape[a]
        found.append(at % spread.shape[a])
    return tuple(found), once


def _digits(numbers: Array, sizes: Steps, order: Steps) -> list[Array]:
    """Numbers taken apart, the first axis of `order` fastest."""
    found: list[Array] = [numbers] * len(sizes)
    for axis in order:
        found[axis] = numbers % sizes[axis]
        numbers = numbers // sizes[axis]
    return found


def _moved(addresses: Array, active: Array, size: int) -> Moved:
    """What requests of [..., 32] lanes move; an access is aligned to its size, so it lies in one sector."""
    addresses = np.broadcast_to(addresses, active.shape).reshape(-1, 32)
    active = active.reshape(-1, 32)
    return Moved(
        int(active.any(1).sum()),
        _distinct(addresses // SECTOR, active),
        _distinct(addresses // LINE_BYTES, active),
        int(active.sum()) * size,
    )


def _distinct(numbers: Array, active: Array) -> int:
    """Distinct numbers among the active of each row, added up."""
    ordered = np.sort(np.where(active, numbers, -1), axis=1)
    new = np.ones(ordered.shape, bool)
    new[:, 1:] = ordered[:, 1:] != ordered[:, :-1]
    return int((new & (ordered >= 0)).sum())
