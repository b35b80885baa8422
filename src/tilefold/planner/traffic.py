"""What a launch moves, in closed form: sectors and lines that its loads ask for, sectors stored, bytes on their way.

A request is one load of one warp. Its lanes lie at fixed distances from the first one, which begins somewhere in a sector;
how often it begins where follows from what divides the steps between requests. So a request's sectors are known on average
over all of them (within 15 %, mostly within 1 %, of what `memory_requests` enumerates program by program).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from tilefold.planner.geometry import LINE, SECTOR, Geometry, Operand, Steps, unique_sectors
from tilefold.planner.plan import Stage
from tilefold.planner.stages.gathered import groups_of_geometry
from tilefold.planner.threads import Loads, loads_of, widest
from tilefold.planner.view import WARP
from tilefold.planner.walk import Walk

BANKS = 32  # of shared memory, a word each: a limit of the hardware

Seen = dict[
    tuple[object, ...], tuple[float, float]
]  # requests of one problem whose sectors and lines are known


@dataclass(frozen=True)
class Traffic:
    """What one launch moves. Sectors are of 32 bytes, lines of 128; `unique` are the distinct sectors of its inputs.

    `sectors` and `lines` are what its loads ask for, request by request, all programs together; `requests` are warps' loads.
    `stored` are sectors written. `flying` are bytes that a thread has on their way at a time, `copied` whether they go
    through shared memory, of which a program takes `shared_bytes`. `passes` are turns of its banks.
    """

    unique: int
    sectors: float
    lines: float
    requests: float
    stored: float
    flying: float
    shared_bytes: int
    copied: bool
    passes: float = 0.0

    @property
    def bytes(self) -> float:
        """Bytes that memory delivers and takes at least."""
        return SECTOR * (self.unique + self.stored)


@dataclass(frozen=True)
class Asked:
    """What the loads of a launch ask for, whatever its splits: sectors, lines, requests; bytes of a thread in one tile."""

    sectors: float
    lines: float
    requests: float
    flying: float


def asked_of(geometry: Geometry, stage: Stage, loads: Sequence[Loads], seen: Seen) -> Asked:
    """What all loads of a launch ask for. `seen` keeps requests that other plans of the problem make as well."""
    sectors = lines = requests = flying = 0.0
    for operand, one in zip(geometry.operands, loads, strict=True):
        found = _asked(geometry, operand, stage, one, seen)
        sectors += found[0]
        lines += found[1]
        requests += found[2]
        flying += one.count * one.vector * one.itemsize * (stage.unroll if stage.ordered else 1)
    return Asked(sectors, lines, requests, flying)


def traffic_of(
    geometry: Geometry,
    stage: Stage,
    walk: Walk,
    loads: Sequence[Loads],
    itemsizes: Steps,
    partial: bool,
    unique: int | None = None,
    asked: Asked | None = None,
    words: float = 1,
) -> Traffic:
    """The traffic of one launch that writes results (or, `partial`, states) of these item sizes.

    `unique` and `asked` are given where they are known. A state has so many `words`.
    """
    asked = asked_of(geometry, stage, loads, {}) if asked is None else asked
    copied = stage.num_stages > 1 and all(one.vector * one.itemsize >= 4 for one in loads)
    ahead = stage.num_stages - 1 if copied else 2 if stage.prefetch else 1
    return Traffic(
        unique=unique_sectors(geometry) if unique is None else unique,
        sectors=asked.sectors,
        lines=asked.lines,
        requests=asked.requests,
        stored=_stored(geometry, stage, walk, itemsizes, partial),
        flying=asked.flying * ahead,
        shared_bytes=_shared(stage, loads, copied),
        copied=copied,
        passes=_passes(geometry, stage, walk)
        if stage.gathered
        else _meeting_passes(geometry, stage, walk, loads, words),
    )


def _asked(
    geometry: Geometry, operand: Operand, stage: Stage, loads: Loads, seen: Seen
) -> tuple[float, float, float]:
    """Sectors, lines and requests that load an operand: whole requests, and those cut by a row's or a block's end."""
    if stage.gathered:
        return _gathered(geometry, operand, stage, loads)
    spread = loads.spread
    lane_axis, output_axis, run_axis = (0, 1, 2) if stage.ordered else (1, 2, 0)
    again = 1 if stage.ordered else spread.lanes[3]
    lanes = spread.lanes
    # Results and places of one request; lanes beyond the tile hold what others hold.
    results = min(spread.shape[output_axis], lanes[output_axis] * spread.each[output_axis])
    runs = min(spread.shape[run_axis], lanes[run_axis] * spread.each[run_axis])
    places = runs * min(spread.shape[lane_axis], lanes[lane_axis] * spread.each[lane_axis]) * again
    split = max(spread.each) // loads.vector  # requests that share these results and places
    repeated = spread.repeated
    length = _walked(geometry, operand, stage)
    if spread.shape[output_axis] < stage.block_outputs:  # loaded once for all results of a program
        whole_rows, cut_row = -(-geometry.width // stage.block_outputs), 0
    else:
        whole_rows, cut_row = divmod(geometry.width, results)
    whole, cut = divmod(length, places)
    sectors = lines = requests = 0.0
    beside = stage.lanes if again > 1 or stage.shares else 0
    parts = (stage.unroll, stage.shares and (stage.splits, geometry.length)) if stage.ordered else None
    tile = (operand, geometry.flat, geometry.deep, geometry.inner, stage.align, stage.run, spread.each, lanes,
            loads.vector, beside, parts, results, places)  # fmt: skip
    for rows, of_results in ((whole_rows, results), (1, cut_row)):
        for times, of_places in ((whole, places), (1, cut)):
            if of_results and of_places and rows and times:
                key = (*tile, of_results, of_places)
                found = seen.get(key)
                if found is None:
                    shape = (results, places)
                    found = seen[key] = _request(
                        geometry, operand, stage, loads, shape, of_results, of_places
                    )
                n = geometry.rows * rows * times * split * repeated
                sectors, lines, requests = sectors + n * found[0], lines + n * found[1], requests + n
    return sectors, lines, requests


def _gathered(geometry: Geometry, operand: Operand, stage: Stage, loads: Loads) -> tuple[float, float, float]:
    """Sectors, lines and requests of programs that each read the vectors of their rows."""
    groups = groups_of_geometry(geometry, operand)
    programs = geometry.rows * math.ceil(geometry.width / stage.block_outputs)
    extent = geometry.width // groups.inner * groups.between * operand.itemsize / programs
    size = stage.block_outputs // groups.inner * groups.between * operand.itemsize
    sectors, lines = (extent / unit + (size % unit > 0) for unit in (SECTOR, LINE))
    return programs * sectors, programs * lines, float(programs * stage.num_warps * loads.count)


def _passes(geometry: Geometry, stage: Stage, walk: Walk) -> float:
    """Turns of shared memory's banks in which warps store vectors and load elements of their results."""
    (operand,) = geometry.operands
    groups = groups_of_geometry(geometry, operand)
    stored = groups.span(operand.residue, operand.itemsize, stage.block_outputs // groups.inner)
    warps = -(-stage.block_outputs // WARP)
    turns = groups.bank_turns(operand.itemsize)
    return walk.programs(geometry) * (stored * operand.itemsize / LINE + warps * geometry.length * turns)


def _meeting_passes(
    geometry: Geometry, stage: Stage, walk: Walk, loads: Sequence[Loads], words: float
) -> float:
    """Turns of shared memory's banks in which warps exchange the states of lanes, once a program.

    Triton lays the states of a result side by side, one a warp: a thread's neighbouring results are as many words apart, and
    a store of 32 threads takes as many turns as their words share banks. States are stored, and then what they combine to,
    and that is loaded by all (docs/experiments/planning.md#banks).
    """
    if stage.ordered:
        return 0.0
    spread = widest(loads)
    warps, threads = spread.warps_along(1), spread.lanes_along(2)
    if warps < 2:
        return 0.0
    turns = max(1.0, min(threads, threads * spread.each[2] * warps / BANKS))
    return walk.programs(geometry) * stage.num_warps * spread.held_along(2) * words * 2 * turns


def _walked(geometry: Geometry, operand: Operand, stage: Stage) -> int:
    """Elements of a result that are read: with whole vectors from anywhere also those beside its ends."""
    if stage.align == 1:
        return geometry.length
    steps = (geometry.length, operand.along if geometry.width > 1 else 0, *operand.outer)
    uneven = math.gcd(stage.align, operand.residue // operand.itemsize, *steps) < stage.align
    more = stage.align - 1 if uneven else 0
    return -(-(geometry.length + more) // stage.align) * stage.align


def _request(
    geometry: Geometry,
    operand: Operand,
    stage: Stage,
    loads: Loads,
    shape: tuple[int, int],
    results: int,
    places: int,
) -> tuple[float, float]:
    """Sectors and lines of one request over so many results and places, on average over where requests begin."""
    size, spread = operand.itemsize, loads.spread
    output_axis = 1 if stage.ordered else 2
    rows = _results(geometry, operand, spread.each[output_axis], results)
    dims = _places(stage, loads, places, geometry.length)
    extent, offsets = loads.vector, [0]
    if geometry.deep:
        offsets = list({_offset(geometry, operand, at) for at in _products(offsets, dims)})
        dims = []
    dims = [(abs(step * operand.inner), n) for step, n in dims]
    dims = sorted((step, n) for step, n in (dims if stage.align > 1 else [*dims, *rows]) if n > 1 and step)
    while dims and dims[0][0] == extent and not geometry.deep:
        extent *= dims.pop(0)[1]
    begins = _begins(geometry, operand, stage, shape)
    count = len(begins)
    rows_at = _products([0], rows) if stage.align > 1 else [0]
    if stage.align > 1 and len(rows_at) == 1:
        begins = [b // stage.align * stage.align for b in begins]
    units = (SECTOR // size).bit_length() - 1, (LINE // size).bit_length() - 1
    if len(rows_at) == len(offsets) == 1 and len(dims) < 2:
        step, n = dims[0] if dims else (0, 1)
        touched = [_touched_in_steps(begins, step, n, extent, unit) for unit in units]
    else:
        offsets = sorted(_products(offsets, dims))
        if len(rows_at) > 1:
            at_rows = ([(b + at) // stage.align * stage.align for at in rows_at] for b in begins)
            starts = np.array([sorted([row + at for row in some for at in offsets]) for some in at_rows])
        else:
            starts = np.add.outer(begins, offsets)
        touched = [_touched(starts, extent, unit) for unit in units]
    return touched[0] / count, touched[1] / count


def _products(offsets: list[int], dims: Sequence[tuple[int, int]]) -> list[int]:
    """Offsets from each of these along dims of so long steps and so many places."""
    for step, n in dims:
        offsets = [at + k * step for k in range(n) for at in offsets]
    return offsets


def _results(geometry: Geometry, operand: Operand, each: int, results: int) -> list[tuple[int, int]]:
    """Steps and counts of the loads of one request that lies over so many results: along one output dim, or several."""
    left = -(-results // each)
    if not geometry.flat:
        return [(operand.along * each, left)]
    found = []
    for size, step in zip(reversed(geometry.flat), reversed((*operand.outer, operand.along)), strict=True):
        count = max(1, min(left, size // each))
        found.append((step * each, count))
        left, each = -(-left // count), 1
    return found


def _places(stage: Stage, loads: Loads, places: int, length: int) -> list[tuple[int, int]]:
    """Steps and counts, in places, of the loads of one request that lies over so many of a result's `length` ones."""
    spread = loads.spread
    lane_axis, run_axis = (0, 2) if stage.ordered else (1, 0)
    runs = spread.lanes[run_axis] * spread.each[run_axis]
    distance = stage.run * (stage.unroll if stage.ordered else 1)
    if stage.shares:
        distance *= max(1, length // stage.splits // stage.step)
    found = [(spread.each[run_axis], min(spread.lanes[run_axis], -(-places // spread.each[run_axis])))]
    found += [(distance, min(spread.lanes[lane_axis], -(-places // min(runs, stage.run))))]
    if not stage.ordered and spread.lanes[3] > 1:
        before = min(runs, stage.run) * spread.lanes[lane_axis]
        found += [(stage.run * stage.lanes, min(spread.lanes[3], -(-places // before)))]
    return [(step, n) for step, n in found if n > 1]


def _offset(geometry: Geometry, operand: Operand, place: int) -> int:
    """Where a reduced place lies, from the first."""
    offset, place = place % geometry.inner * operand.inner, place // geometry.inner
    for size, step in zip(reversed(geometry.deep), reversed(operand.deep), strict=True):
        offset += place % size * step
        place //= size
    return offset


def _begins(geometry: Geometry, operand: Operand, stage: Stage, shape: tuple[int, int]) -> list[int]:
    """Places of a line at which requests of `shape` results and places begin, in elements: at most eight of them."""
    period = LINE // operand.itemsize
    if stage.align > 1:
        unit = math.gcd(period, operand.along, *operand.outer)
    else:
        step = stage.run if stage.ordered else shape[1]
        row = math.gcd(shape[0], geometry.flat[-1]) if geometry.flat else shape[0]
        unit = math.gcd(period, *operand.outer, *operand.deep, operand.along * row, operand.inner * step)
    first = operand.residue // operand.itemsize
    count = period // unit
    if count <= 8:
        return [first + k * unit for k in range(count)]
    return [first + 5 * k * unit for k in range(8)]  # odd, so that they spread over a sector


def _touched_in_steps(begins: Sequence[int], step: int, n: int, extent: int, unit: int) -> int:
    """Units of 2^`unit` elements that `n` extents touch, `step` elements apart, from each of `begins` on; added up."""
    if step - extent < 1 << unit:  # no unit lies between two of them
        n, extent = 1, (n - 1) * step + extent
    if n > 1 and step % (1 << unit):
        places = np.add.outer(begins, range(0, n * step, step))
        return int(((places + (extent - 1) >> unit) - (places >> unit)).sum()) + places.size
    return n * sum([(b + extent - 1 >> unit) - (b >> unit) + 1 for b in begins])


def _touched(places: NDArray[np.int64], extent: int, unit: int) -> int:
    """Units of 2^`unit` elements that extents touch: in each row of `places` these begin in order; rows are added up."""
    first, last = places >> unit, places + (extent - 1) >> unit
    again = np.maximum(last[:, :-1] - first[:, 1:] + 1, 0)  # of an extent with the one before
    return int((last - first).sum()) + places.size - int(again.sum())


def _stored(geometry: Geometry, stage: Stage, walk: Walk, itemsizes: Steps, partial: bool) -> float:
    """Sectors written: results side by side share them, as far as one program owns them."""
    states = walk.splits if partial else 1
    found = 0.0
    for size in itemsizes:
        if geometry.output_along == 1 and not geometry.flat:
            whole = geometry.width // stage.block_outputs
            row = whole * _span(stage.block_outputs * size) + (
                _span(geometry.width % stage.block_outputs * size) if walk.masks else 0
            )
            found += geometry.rows * states * row
        elif geometry.flat and _are_one_run(geometry):
            found += states * _span(geometry.outputs * size)
        elif geometry.flat and geometry.output_outer[-1] == 1:
            # Of a program's groups each result is a run of its own, which takes whole sectors.
            beside = max(1, min(geometry.flat[-2], stage.block_outputs // geometry.flat[-1]))
            found += states * geometry.outputs / beside * max(1.0, _span(beside * size))
        else:
            found += geometry.outputs * states
    return found


def _are_one_run(geometry: Geometry) -> bool:
    """Whether results of all output dims lie end to end."""
    steps = (*geometry.output_outer, geometry.output_along)
    return steps == tuple(math.prod(geometry.flat[n + 1 :]) for n in range(len(steps)))


def _span(extent: int) -> float:
    """Sectors of an extent of bytes: whole ones; less than one counts as its part, since neighbours fill it in the L2."""
    return max(extent / SECTOR, float(-(-extent // SECTOR)) if extent >= SECTOR else extent / SECTOR)


def _shared(stage: Stage, loads: Sequence[Loads], copied: bool) -> int:
    """Bytes of shared memory for tiles on their way; what warps exchange at the end is less than the occupancy's step."""
    threads = WARP * stage.num_warps
    if stage.gathered:
        return sum(one.count * one.vector * one.itemsize for one in loads) * threads
    if not copied:
        return 0
    return stage.num_stages * sum(one.spread.held * one.itemsize for one in loads) * threads


def all_loads(geometry: Geometry, stage: Stage, walk: Walk) -> tuple[Loads, ...]:
    """The loads of a whole tile or, where there is none, of the masked one."""
    return loads_of(geometry, stage, walk, unroll_of(stage, walk))


def unroll_of(stage: Stage, walk: Walk) -> int:
    """Runs of a lane in the tile that stands for all: a whole one or, where there is none, the masked one."""
    return stage.unroll if walk.has_full else walk.tail or walk.head
