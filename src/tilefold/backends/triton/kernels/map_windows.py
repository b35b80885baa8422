"""The kernel that folds and maps rows too long to be held: in one launch, so that the second read comes from the L2.

Rows are cut into `splits` parts, and stand in windows of `window` rows that the L2 holds.
A job is a part that is folded, or a part that is mapped; a program does one. Jobs come in the order

    fold window 0, fold window 1, map window 0, fold window 2, map window 1, ..., map the last window

and a program takes the next of them from a counter in memory. So a job that waits for a window's states waits for programs
that have begun already, whatever order a chip starts programs in, and however few it runs at a time: none waits for ever. The
parts' states are combined in one order, by whichever program folded the last of them, so no bit depends on timing. Generated
functions and arguments as in `map_blocks`, and
    states       one pointer a state field: [splits + 1, rows], the last row has the combined states
    counters     the next job, then for each row how many of its parts are folded, and one more once these are combined; zero
                 at the launch's begin
"""

import triton.language as tl

from tilefold.backends.triton.kernels.map_tiles import load_extras, map_edges, map_tile
from tilefold.backends.triton.kernels.tiles import (
    fold_part,
    load_tile,
    outer_offset,
    row_begin,
    rows_of,
    tile_places,
    whole_mask,
)


def clear(y_ptrs, length, BLOCK: tl.constexpr, RELEASE: tl.constexpr):
    """Write zeros: a program owns BLOCK of them, reads and holds nothing."""
    if RELEASE:
        gdc_launch_dependents()
    place = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(y_ptrs[0] + place, tl.full([BLOCK], 0, tl.int32), mask=place < length)


def job_of(ticket, groups, splits, window):
    """(whether it maps, row, split) of a job: parts of a row come one after another."""
    jobs = window * splits
    slot = ticket // jobs
    place = ticket % jobs
    last = 2 * ((groups + window - 1) // window) - 1
    maps = ((slot > 0) & (slot % 2 == 0)) | (slot == last)
    number = tl.where(slot == last, slot // 2, tl.where(maps, slot // 2 - 1, (slot + 1) // 2))
    return maps, number * window + place // splits, place % splits


def load_states(states, at, first, splits, rows, PARTS: tl.constexpr):
    """The states of PARTS parts of a row from `first` on, combined in one order: numbers."""
    split = first + tl.arange(0, PARTS)
    mask = split < splits
    place = split.to(tl.int64) * rows + at
    loaded = ()
    for f in tl.static_range(len(states)):
        loaded = loaded + (tl.load(states[f] + place, mask=mask, cache_modifier=".cg"),)
    return tl.reduce(OR_IDENTITY(mask, *loaded), 0, COMBINE_SYMMETRIC)


def combine_parts(states, at, splits, rows, PARTS: tl.constexpr):
    """Store the combined state behind the parts' states."""
    whole = load_states(states, at, 0, splits, rows, PARTS)
    for first in range(PARTS, splits, PARTS):
        whole = COMBINE(*whole, *load_states(states, at, first, splits, rows, PARTS))
    for f in tl.static_range(len(states)):
        tl.store(states[f] + tl.cast(splits, tl.int64) * rows + at, whole[f])


def row_results(states, at, splits, rows):
    """The results of a row's fold, which APPLY takes beside an element.

    It is numbers: Triton would spread a tensor of one element over a tile before it knows the tile's threads.
    """
    loaded = ()
    for f in tl.static_range(len(states)):
        loaded = loaded + (tl.load(states[f] + tl.cast(splits, tl.int64) * rows + at, cache_modifier=".cg"),)
    return PROJECT(*loaded)


def map_windows(
    inputs, extras, states, counters, y, position, sizes, blocks, chunk, splits, groups, rows, window,
    TILE: tl.constexpr, WAY: tl.constexpr, OVER: tl.constexpr, PARTS: tl.constexpr, WAIT: tl.constexpr,
):  # fmt: skip
    """Do one job: fold a part of a row and leave its state, or map one. BLOCK_OUTPUTS is 1.

    A program owns the job whose number a counter gives it. It reads its part of a row once, tile after tile; one that folds
    holds a state and writes it, and the last of a row the combined one; one that maps waits for this and writes its elements.
    """
    if WAIT:
        gdc_wait()
    ticket = tl.atomic_add(counters, 1, sem="relaxed")
    maps, group, split = job_of(ticket, groups, splits, window)
    # Divided before it is widened: a 64-bit division is a call, around which registers are saved.
    outer = (group // blocks).to(tl.int64)
    output = (group % blocks).to(tl.int64) * TILE.BLOCK_OUTPUTS + tl.arange(0, TILE.BLOCK_OUTPUTS)
    group = group.to(tl.int64)
    split = split.to(tl.int64)
    owned = output < sizes.output
    done = counters + 1 + group
    if group < groups:
        if maps:
            while tl.atomic_add(done, 0, sem="acquire") <= splits:
                pass
            results = row_results(states, group, splits, rows)
            map_part(
                inputs, extras, y, results, outer, output, split, sizes, chunk, splits, TILE, WAY.ALIGN, WAY.WIDE, OVER
            )
        else:
            folded = fold_part(
                inputs, outer, output, owned, split, position, sizes, chunk, splits, 0, TILE, WAY, False
            )
            place = split * rows + outer * sizes.output + output
            for f in tl.static_range(len(states)):
                tl.store(states[f] + place, folded[f], mask=owned)
            # Every thread's stores come before the one thread's that counts them.
            tl.debug_barrier()
            if tl.atomic_add(done, 1, sem="acq_rel") == splits - 1:
                combine_parts(states, group, splits, rows, PARTS)
                tl.debug_barrier()
                tl.atomic_add(done, 1, sem="release")


def map_part(
    inputs, extras, y, results, outer, output, split, sizes, chunk, splits,
    TILE: tl.constexpr, ALIGN: tl.constexpr, WIDE: tl.constexpr, OVER: tl.constexpr,
):  # fmt: skip
    """Map one part of BLOCK_OUTPUTS rows, tile by tile. These elements are read for the last time."""
    BLOCK_OUTPUTS: tl.constexpr = TILE.BLOCK_OUTPUTS
    LANES: tl.constexpr = TILE.LANES
    RUN: tl.constexpr = TILE.RUN
    UNROLL: tl.constexpr = TILE.UNROLL
    keep = (output < sizes.output)[None, None, :, None]
    read = rows_of(inputs, outer, sizes.outer, output, ALIGN)
    if ALIGN > 1:
        lead = (row_begin(inputs[0], outer, sizes.outer, output) % ALIGN).to(tl.int32)
        limit = sizes.length + (ALIGN - 1)
    else:
        lead = 0
        limit = sizes.length
    end = lead + sizes.length
    start = split * chunk
    stop = tl.where(split == splits - 1, limit, start + chunk)
    if not WIDE:
        start = start.to(tl.int32)
        stop = stop.to(tl.int32)
    y_begin = (outer_offset(outer, sizes.outer, y.outer) + output * y.output)[None, None, :, None]
    for k in range(start, stop, RUN * LANES * UNROLL):
        places = tile_places(k, RUN, LANES, UNROLL)
        xs = load_tile(read, places, places // RUN * RUN < end, keep, (sizes.deep, sizes.reduced), True, "evict_first")
        counted = whole_mask((places >= lead) & (places < end) & keep, places, BLOCK_OUTPUTS)
        values = ()
        for i in tl.static_range(len(xs)):
            values = values + (xs[i],)
        beside = load_extras(extras, outer, sizes, output, places, lead, keep, OVER, True, True)
        map_tile(
            values, results, beside, y.pointers, y_begin, (y.deep, y.reduced), places, lead, counted, keep, sizes, True,
            RUN, ALIGN, "evict_first",
        )  # fmt: skip
    if ALIGN > 1:
        if split == splits - 1:
            map_edges(
                read, results, extras, y.pointers, y_begin, outer, sizes, output, lead, keep, OVER, RUN, ALIGN, "evict_first"
            )
