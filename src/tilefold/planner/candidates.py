"""Which tiles of a fold a tuner may try: the rule's own, and tiles, warps, splits and ways of reading around it."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass

from tilefold.algebra.program import Program
from tilefold.planner.device import Device
from tilefold.planner.gathered import gathered_stage, gathers
from tilefold.planner.geometry import Geometry
from tilefold.planner.in_order import LANE_BYTES, is_known_row
from tilefold.planner.plan import Stage
from tilefold.planner.problem.canonical import Problem
from tilefold.planner.reading import Reading
from tilefold.planner.registers import state_words, within_registers
from tilefold.planner.sizes import SM_REGISTERS, SMALL_AXIS, WARP, power_above, power_below, whole_splits
from tilefold.planner.thread_order import as_first_launch, kept_in_threads

# Not measured: how far a tuner goes.
MOST = 150  # candidates of one problem
THREAD_LOADS = 16  # vectors of a thread in a tile, at most
TILE = 65536  # elements of the largest tile
HELD_WORDS = 80  # 32-bit words of elements and states that a thread holds, at most
SM_WARPS = (16, 8, 32)  # warps of one SM where a fold of few results is split; the first one stands for all

# Of a result at least, where tiles come through shared memory, three at a time (docs/experiments/folds.md#walks).
COPIED_TILES = 6


@dataclass(frozen=True)
class Wanted:
    """A problem of which plans are wanted, and the rules' own first launch."""

    rule: Stage
    reading: Reading
    problem: Problem
    geometry: Geometry
    program: Program
    device: Device


def candidates(wanted: Wanted) -> tuple[Stage, ...]:
    """First launches of a problem, each with its splits, the rules' own one first: distinct, at most `MOST`."""
    found = dict.fromkeys([wanted.rule])
    tiles = base_tiles(wanted)
    variants = [variants_of(tile, wanted) for tile in tiles]
    for turn in range(max(map(len, variants), default=0)):
        found.update(dict.fromkeys(some[turn] for some in variants if turn < len(some)))
    return tuple(found)[:MOST]


def base_tiles(wanted: Wanted) -> tuple[Stage, ...]:
    """Tiles as first launches: neither loading ahead nor split by more than one number; the rules' own tile among them."""
    reading = wanted.reading
    if wanted.rule.ordered:
        tiles = tuple(_ordered_tiles(wanted.rule, reading))
    else:
        tiles = tuple(
            _row_tiles(reading) if reading.by_rows else _column_tiles(reading, wanted.geometry.close_groups)
        )
    if gathers(wanted.problem, reading, state_words(wanted.program)):
        tiles = (*tiles, *(gathered_stage(wanted.problem, wanted.rule.ordered, n) for n in (2, 4)))
    own = wanted.rule.but(splits=1, prefetch=False, num_stages=1)
    fitting = (tile for tile in tiles if fits_registers(tile, reading, wanted.program))
    return tuple(dict.fromkeys(_launched(tile, wanted, SM_WARPS[0]) for tile in (own, *fitting)))


def variants_of(tile: Stage, wanted: Wanted) -> tuple[Stage, ...]:
    """The same tile, then loading ahead and through shared memory, each with other splits."""
    found = dict.fromkeys([tile])
    whole = tile.but(splits=1)
    forms = [whole]
    if not tile.ordered and wanted.reading.length >= 3 * tile.step:
        loads = tile.block_outputs * tile.step // (tile.num_warps * WARP * _vector(tile, wanted.reading))
        ahead = whole.but(prefetch=True)
        fits = fits_registers(whole, wanted.reading, wanted.program)  # the rules' own may not
        if loads <= 8 and fits and within_registers(ahead, wanted.program) == ahead:
            forms.append(ahead)
        copied = _vector(tile, wanted.reading) * wanted.reading.element >= 4
        long = wanted.reading.length >= COPIED_TILES * tile.step
        if copied and long and 4 <= loads <= 8 and wanted.device.capability >= 80:
            copied_tile = whole.but(num_stages=3)
            forms += [copied_tile] * fits_registers(copied_tile, wanted.reading, wanted.program)
    for warps in SM_WARPS:
        for form in forms:
            found[_split(form, wanted, warps)] = None
    return tuple(found)


def fits_registers(tile: Stage, reading: Reading, program: Program) -> bool:
    """Whether a thread's elements and states surely fit its registers, with as many again to compute in.

    Elements that come through shared memory are converted when they are read, to a word each.
    """
    threads = tile.num_warps * WARP
    states = max(1, tile.block_outputs * tile.lanes // threads)
    elements = tile.block_outputs * tile.step / threads
    words = elements * (1 if tile.num_stages > 1 else reading.element * reading.operands / 4)
    return words + 2 * states * state_words(program) <= min(HELD_WORDS, SM_REGISTERS // threads // 2)


def _vector(tile: Stage, reading: Reading) -> int:
    """Elements of one load."""
    return tile.run if reading.by_rows else reading.vector


def _launched(tile: Stage, wanted: Wanted, warps: int) -> Stage:
    """A tile as a first launch of this problem."""
    stage = as_first_launch(
        kept_in_threads(tile, wanted.reading, wanted.program), wanted.problem, wanted.program
    )
    return _split(within_registers(stage, wanted.program), wanted, warps)


def _split(stage: Stage, wanted: Wanted, warps: int) -> Stage:
    """As many programs share a result as give every SM about so many warps; one where results are many."""
    geometry, sms = wanted.geometry, wanted.device.sms
    programs = -(-geometry.width // stage.block_outputs) * geometry.rows
    tiles = (geometry.length - (geometry.ragged > 0)) // stage.step - (stage.align > 1)
    if tiles < 2 or programs * stage.num_warps >= warps * sms // 2:
        return stage
    splits = whole_splits(tiles, min(tiles, max(1, sms * warps // (stage.num_warps * programs))))
    return stage if splits == 1 else stage.but(splits=splits)


def _row_tiles(reading: Reading) -> Iterator[Stage]:
    """Tiles of runs of neighbours: from threads that own rows to rows that all threads share."""
    run, align = min(reading.vector, power_below(reading.length)), 1
    if reading.aligns and reading.vector < reading.full_vector <= reading.length:
        if 2 * reading.vector == reading.full_vector:
            yield from _rows_by(reading, run, 1)
        run = align = reading.full_vector
    yield from _rows_by(reading, run, align)


def _rows_by(reading: Reading, run: int, align: int) -> Iterator[Stage]:
    """Tiles of one kind of loads: few lanes and several rows a program where rows are short, else whole warps on a row.

    No thread alone reads a row that starts anywhere in aligned vectors: of six such plans that the model took, measured ones
    were up to 1.8 times as slow as the rules' (docs/experiments/planning.md#model).
    """
    vectors = power_above(math.ceil((reading.length + align - 1) / run))
    if vectors >= 256:
        for warps in (1, 2, 4, 8, 16):
            for unroll in (1, 2, 4, 8):
                yield from _row_tile(reading, vectors, (1, WARP * warps, run, unroll, warps, align))
        return
    for lanes in _powers(max(1 if align == 1 else 2, vectors // 16), min(vectors, 128)):
        for unroll in _powers(1, min(8, vectors // lanes)):
            warps_of_row = max(1, lanes // WARP)
            for warps in {warps_of_row, 2 * warps_of_row, 4}:
                for held in (1, 2, 4) if lanes == 1 else (1,):
                    outputs = min(power_above(reading.inner), max(1, warps * WARP * held // lanes))
                    yield from _row_tile(reading, vectors, (outputs, lanes, run, unroll, warps, align))


def _row_tile(reading: Reading, vectors: int, sizes: tuple[int, int, int, int, int, int]) -> Iterator[Stage]:
    """A tile that keeps every thread at work: of so many results, lanes, a run, an unroll, warps and an alignment."""
    outputs, lanes, run, unroll, warps, align = sizes
    loads = outputs * lanes * unroll // (warps * WARP)
    if not 1 <= loads <= THREAD_LOADS or lanes * unroll > vectors:
        return
    whole = lanes * unroll >= vectors
    family = "small_axis" if reading.length <= SMALL_AXIS else "rows" if whole else "long_rows"
    yield Stage(family, outputs, lanes, run, unroll, 1, warps, align=align)


def _column_tiles(reading: Reading, groups: bool) -> Iterator[Stage]:
    """Tiles of neighbouring results: a line of memory and more side by side, other threads down the columns. Of `groups` that
    are less than a sector also less than a line: lanes then read several of their rows, and so fewer groups at a time.

    Of at most four warps: programs of eight, where the model took them, were slower than the rules' in seven of eight
    problems held back (docs/experiments/planning.md#model).
    """
    line = max(1, 8 * reading.full_vector // reading.vector)  # vectors of 128 bytes
    narrower = (line // 4, line // 2) if groups and reading.vector == 1 else ()
    for warps in (1, 2, 4):
        for width in (*narrower, line, 2 * line, 4 * line, 4 * WARP):
            outputs = min(power_above(reading.inner), width * reading.vector)
            lanes = max(1, warps * WARP * reading.vector // outputs)
            lanes = min(lanes, power_below(reading.length))
            if outputs * lanes < warps * WARP or width > 4 * WARP:
                continue
            for unroll in (4, 8, 16):
                if unroll * lanes > reading.length or outputs * lanes * unroll > TILE:
                    continue
                yield Stage("columns", outputs, lanes, 1, unroll, 1, warps)
        if reading.length < 8 * 2:  # whole columns in one tile of their own
            outputs = min(power_above(reading.inner), warps * WARP * reading.vector)
            yield Stage("columns", outputs, 1, 1, power_above(reading.length), 1, warps)


def _ordered_tiles(rule: Stage, reading: Reading) -> Iterator[Stage]:
    """Neighbours of a lane, lanes of a result and results of a program; of columns also lanes that are combined once.

    Lanes of a row that were combined once were slower in each of nine comparisons (docs/experiments/folds.md#ordered).
    """
    yield from _ordered_rows(rule, reading) if reading.by_rows else _ordered_columns(reading)


def _ordered_rows(rule: Stage, reading: Reading) -> Iterator[Stage]:
    """Lanes of one row are one warp's: of more, warps would wait for each other in every tile."""
    run, align = rule.run, rule.align
    for lanes in _powers(1, 1 if is_known_row(reading) else WARP):
        most = max(1, LANE_BYTES // (run * reading.element))
        for unroll in _powers(1, most if lanes > 1 else 2 * most):
            for warps in (1, 4) if lanes == 1 else (1,):
                if run * lanes * unroll > max(run, 2 * (reading.length + align - 1)):
                    continue
                rows = min(power_above(reading.inner), warps * WARP // lanes)
                yield Stage("ordered", rows, lanes, run, unroll, 1, warps, ordered=True, align=align)


def _ordered_columns(reading: Reading) -> Iterator[Stage]:
    """A line of memory and more side by side, other threads down the columns; those are combined in every tile, or once."""
    line = max(1, 8 * reading.full_vector // reading.vector)  # vectors of 128 bytes
    for warps in (1, 2, 4, 8):
        for width in (line, 2 * line, 4 * line, 8 * line):
            outputs = min(power_above(reading.inner), width * reading.vector)
            lanes = max(1, warps * WARP * reading.vector // outputs)
            if lanes > reading.length or outputs * lanes < warps * WARP or width > 4 * WARP:
                continue
            for unroll in (2, 4, 8, 16):
                if unroll * lanes <= reading.length or unroll == 2:
                    once = lanes > 1 and reading.length >= 2 * unroll * lanes
                    yield Stage("ordered", outputs, lanes, 1, unroll, 1, warps, ordered=True, shares=once)


def _powers(least: int, most: int) -> list[int]:
    """Powers of two from `least` to `most`, both of them powers."""
    return [1 << n for n in range(least.bit_length() - 1, most.bit_length())]
