"""The kernels of ragged folds. Generated functions as in `tiles`, and JOINED, IN_TURN and COMBINE_SEGMENTS.

The elements of one dim are cut into segments by `offsets`: segment s is [offsets[s], offsets[s + 1]).

Arguments:
    inputs         Lines, one an input: a row, or a column, is cut into segments
    y              SegmentResults
    left           Left: where chunks are several, what a chunk leaves of segments that cross its ends
    sizes          SegmentSizes
"""

import triton.language as tl

from tilefold.backends.triton.kernels.segment_borders import (
    all_lanes,
    chunk_borders,
    count_below,
    ends_of,
    load_runs,
    load_state,
    longer,
    offset_at,
    plus,
    states_of,
)
from tilefold.backends.triton.kernels.segment_runs import fold_by_runs
from tilefold.backends.triton.kernels.tiles import (
    either_bits,
    last_along,
    outer_offset,
    store_results,
    tree,
)


def last_until(offsets_ptr, low, count, segments, position):
    """The last of `count` entries behind `low` whose offset is not beyond a position; `low` if there is none."""
    while count > 0:
        half = (count + 1) // 2
        place = low + half
        inside = place <= segments
        offset = tl.load(offsets_ptr + place, mask=inside, other=0).to(tl.int64)
        low = tl.where(inside & (offset <= position), place, low)
        count = count - half
    return low


def border(offsets_ptr, place, sizes, start, FAR: tl.constexpr):
    """Offset number `place`, counted from a chunk's start; FAR beyond it, and where there is none."""
    there = (place >= 0) & (place <= sizes.segments)
    near = tl.minimum(offset_at(offsets_ptr, place, there, sizes.length) - start, FAR).to(tl.int32)
    return tl.where(there, near, FAR)


def of_runs(per_window, TILE: tl.constexpr):
    """A value a window beside the runs of every window: [LANES] -> [LANES * STEPS, 1]."""
    if TILE.STEPS == 1:
        beside = per_window
    else:
        beside = tl.broadcast_to(per_window[:, None], (TILE.LANES, TILE.STEPS))
        beside = tl.reshape(beside, (TILE.LANES * TILE.STEPS,))
    return beside[:, None]


def fold_each_window(xs, position, keep, TILE: tl.constexpr):
    """Every lane's window as one state, in order, of the elements to `keep`, or of all."""
    runs = states_of(xs, position, keep, TILE.LANES * TILE.STEPS, TILE.RUN, TILE.LEVELS)
    runs = [tl.reshape(s, (TILE.LANES, TILE.STEPS)) for s in runs]
    return tree(runs, TILE.LANES, TILE.STEPS, TILE.DEPTH)


def fold_inner(starts, offsets_ptr, y, y_base, sizes, start, first, last, LANES: tl.constexpr, WINDOW: tl.constexpr):
    """Segments of [first, last) that a lane's window holds whole between two borders, and empty ones; a lane each."""
    lane = tl.arange(0, LANES)
    for at in range(first, last, LANES):
        segment = at + lane
        there = segment < last
        begin, end = ends_of(offsets_ptr, segment, there, sizes.length)
        inner = (begin > start) & (end > begin) & ((begin - start - 1) // WINDOW == (end - start - 1) // WINDOW)
        length = tl.where(there & inner, end - begin, 0).to(tl.int32)
        state = IDENTITY((LANES,))
        for i in range(tl.reduce(length, 0, longer)):
            xs = load_runs(starts, begin + i, i < length)
            lifted = LIFT(*xs, tl.broadcast_to(TO_INDEX(begin * 0 + i), xs[0].shape))
            state = COMBINE(*state, *OR_IDENTITY(i < length, *lifted))
        store_results(y.pointers, y_base + segment.to(tl.int64) * y.step, there & (inner | (end <= begin)), state, False)


def fold_by_windows(starts, offsets_ptr, y, y_base, left, sizes, chunk, outer, TILE: tl.constexpr, SPLIT: tl.constexpr):
    """Fold a chunk of a row where elements are told their positions.

    In every tile a lane owns a window of STEPS runs. It folds what is before the first border inside its window, (p, p +
    WINDOW], and what is from the last one on; a scan over the lanes carries open segments from window to window. Segments
    that lie within one window between its borders, and empty ones, are folded after that, a lane each.
    """
    WINDOW: tl.constexpr = TILE.RUN * TILE.STEPS
    LENGTH: tl.constexpr = WINDOW * TILE.LANES
    lane = tl.arange(0, TILE.LANES)
    start = chunk * TILE.CHUNK
    reach = tl.minimum(sizes.length - start, TILE.CHUNK).to(tl.int32)
    rows = [(x[0] + start * x[1], x[1]) for x in starts]
    first, last = chunk_borders(
        offsets_ptr, left, sizes, chunk, start, start + TILE.CHUNK, outer == 0, TILE.LANES, SPLIT
    )
    runs = tl.arange(0, TILE.LANES * TILE.STEPS)
    places = (runs % TILE.STEPS)[:, None] * TILE.RUN + tl.arange(0, TILE.RUN)[None, :]
    state = IDENTITY(())
    for at in range(0, reach, LENGTH):
        begins = at + lane * WINDOW
        there = at + runs[:, None] * TILE.RUN + tl.arange(0, TILE.RUN)[None, :]
        bound = there // TILE.RUN * TILE.RUN < reach if TILE.WHOLE_RUNS else there < reach
        xs = load_runs(rows, there, bound)
        segment = last_until(offsets_ptr, first - 1 + lane * 0, last - first, sizes.segments, start + begins)
        border_at = border(offsets_ptr, segment + 1, sizes, start, 2 * TILE.CHUNK) - begins
        lead = start + begins - offset_at(offsets_ptr, segment, segment >= 0, sizes.length)
        closes = (border_at <= WINDOW) & (begins < reach)
        if tl.reduce(closes.to(tl.int32), 0, either_bits) > 0:
            newest_at = border(offsets_ptr, segment + 2, sizes, start, 2 * TILE.CHUNK) - begins
            many = closes & (newest_at <= WINDOW)
            newest_at = border_at
            if tl.reduce(many.to(tl.int32), 0, either_bits) > 0:
                newest = last_until(offsets_ptr, segment, last - first + 1, sizes.segments, start + begins + WINDOW)
                newest_at = tl.where(many, border(offsets_ptr, newest, sizes, start, 2 * TILE.CHUNK) - begins, border_at)
            head = fold_each_window(xs, of_runs(lead, TILE) + places, places < of_runs(border_at, TILE), TILE)
            behind = places - of_runs(newest_at, TILE)
            tail = fold_each_window(xs, behind.to(tl.int64), behind >= 0, TILE)
        else:
            head = fold_each_window(xs, of_runs(lead, TILE) + places, None, TILE)
            tail = IDENTITY((TILE.LANES,))
        carried = OR_IDENTITY(lane == 0, *[tl.broadcast_to(s, (TILE.LANES,)) for s in state])
        head = COMBINE(*carried, *head)
        flagged = IN_TURN(lane * 0, *head, closes.to(tl.int32), *tail)
        scanned = tl.associative_scan(flagged, 0, COMBINE_SEGMENTS)
        halves = [tl.split(tl.reshape(s, (TILE.LANES, 2))) for s in scanned[1:]]
        closed = [half[0] for half in halves]
        y_place = y_base + segment.to(tl.int64) * y.step
        store_results(y.pointers, y_place, closes & (segment >= first), closed, False)
        if SPLIT:
            store_results(left.states, chunk * sizes.outputs + outer + lane * 0, closes & (segment < first), closed, True)
        state = COMBINE(*IDENTITY(()), *[last_along(half[1], TILE.LANES) for half in halves])
    if SPLIT:
        store_results(left.states, (sizes.chunks + chunk) * sizes.outputs + outer, True, state, True)
    last = tl.minimum(last, sizes.segments)
    fold_inner(starts, offsets_ptr, y, y_base, sizes, start, first, last, TILE.LANES, WINDOW)


def fold_rows(rows, begin, end, origin, keep, TILE: tl.constexpr):
    """Rows [begin, end) of some columns as one state a column.

    In a tile a lane takes STEPS rows, one after another; with ACROSS rows that are LANES apart, in another order than theirs.
    """
    state = IDENTITY((TILE.COLUMNS,))
    # Of a loop that begins where another one ended, Triton believes that every place is one of whole vectors, and gives
    # threads as many neighbours. Where rows allow fewer, places are counted from 0.
    base = begin if TILE.NARROW else 0
    for passed in range(begin - base, end - base, TILE.LANES * TILE.STEPS):
        at = base + passed
        lanes = IDENTITY((TILE.LANES, TILE.COLUMNS))
        for step in tl.static_range(TILE.STEPS):
            if TILE.ACROSS:
                place = (at + tl.arange(0, TILE.LANES) + step * TILE.LANES)[:, None]
            else:
                place = (at + tl.arange(0, TILE.LANES) * TILE.STEPS + step)[:, None]
            there = (place < end) & keep
            xs = load_runs(rows, place, there)
            lifted = LIFT(*xs, tl.broadcast_to(TO_INDEX(place - origin), xs[0].shape))
            lanes = COMBINE(*lanes, *OR_IDENTITY(there, *lifted))
        state = COMBINE(*state, *all_lanes(lanes, TILE.LANES))
    return state


def store_nothing(offsets_ptr, y, y_base, keep, sizes, first, last, TILE: tl.constexpr):
    """The projected identity as the result of every empty segment of [first, last)."""
    for at in range(first, last, TILE.LOOKED):
        segment = at + tl.arange(0, TILE.LOOKED)
        there = segment < last
        begin, end = ends_of(offsets_ptr, segment, there, sizes.length)
        empty = there & (end <= begin)
        if tl.reduce(empty.to(tl.int32), 0, either_bits) > 0:
            mask = empty[:, None] & keep[None, :]
            offset = y_base[None, :] + segment[:, None] * y.step
            store_results(y.pointers, offset, mask, IDENTITY((TILE.LOOKED, TILE.COLUMNS)), False)


def fold_by_columns(
    starts, offsets_ptr, y, y_base, left, sizes, block, chunk, outer, TILE: tl.constexpr, SPLIT: tl.constexpr
):
    """Fold a chunk of rows of COLUMNS neighbouring columns, from border to border, with a state a column."""
    column = block * TILE.COLUMNS + tl.arange(0, TILE.COLUMNS)
    mask = column < sizes.lines
    rows = [(x[0] + (column * x[2])[None, :], x[1]) for x in starts]
    y_base = y_base + column * y.line
    output = outer * sizes.lines + column
    start = chunk * TILE.CHUNK
    stop = tl.minimum(start + TILE.CHUNK, sizes.length)
    stores = (block == 0) & (outer == 0)
    segments = sizes.segments
    first, last = chunk_borders(offsets_ptr, left, sizes, chunk, start, stop, stores, TILE.LOOKED, SPLIT)
    place = first + count_below(offsets_ptr + first, segments + 1 - first, start + 1, TILE.LOOKED)
    state = IDENTITY((TILE.COLUMNS,))
    at = start
    while at < stop:
        segment = place - 1
        offset = offset_at(offsets_ptr, place, place <= segments, sizes.length)
        origin = offset_at(offsets_ptr, segment, segment >= 0, sizes.length)
        closes = (place <= segments) & (offset <= stop)
        # Beyond `at` in any case: offsets that do not ascend must not keep the program from its end.
        end = tl.maximum(tl.where(closes, offset, stop), at + 1)
        state = fold_rows(rows, at, end, origin, mask[None, :], TILE)
        store_results(y.pointers, y_base + segment * y.step, mask & closes & (segment >= first), state, False)
        if SPLIT:
            store_results(left.states, chunk * sizes.outputs + output, mask & closes & (segment < first), state, True)
        state = OR_IDENTITY(tl.broadcast_to(closes == 0, (TILE.COLUMNS,)), *state)
        at = end
        place = place + 1
        following = offset_at(offsets_ptr, place, place <= segments, sizes.length)
        if (place <= segments) & (following <= at):
            place = place + count_below(offsets_ptr + place, segments + 1 - place, at + 1, TILE.LOOKED)
    if SPLIT:
        store_results(left.states, (sizes.chunks + chunk) * sizes.outputs + output, mask, state, True)
    store_nothing(offsets_ptr, y, y_base, mask, sizes, first, tl.minimum(last, segments), TILE)


def fold_whole(starts, offsets_ptr, y, y_base, left, sizes, segment, TILE: tl.constexpr):
    """Fold one segment of a row from its own beginning, in tiles of LANES runs, with one state."""
    begin, end = ends_of(offsets_ptr, segment, True, sizes.length)
    state = IDENTITY(())
    for at in range(begin, end, TILE.LANES * TILE.RUN):
        places = at + (tl.arange(0, TILE.LANES) * TILE.RUN)[:, None] + tl.arange(0, TILE.RUN)[None, :]
        xs = load_runs(starts, places, places < end)
        runs = states_of(xs, places - begin, places < end, TILE.LANES, TILE.RUN, TILE.LEVELS)
        lanes = COMBINE(*IDENTITY((TILE.LANES,)), *runs)
        state = COMBINE(*state, *all_lanes(lanes, TILE.LANES))
    store_results(y.pointers, y_base + segment * y.step, True, state, False)
    store_results(left.states, tl.program_id(0), True, state, True)


def segment_elements(
    inputs, offsets_ptr, y, left, sizes, TILE: tl.constexpr, SPLIT: tl.constexpr, RELEASE: tl.constexpr
):
    """Fold the segments of rows or columns by equal shares of their elements, whatever the segments' lengths.

    A program owns elements [chunk * CHUNK, (chunk + 1) * CHUNK) of a row, or of COLUMNS neighbouring columns. It reads each
    once, those beside a border in a row once more, and holds a tile, or the states of its runs. It writes the results of
    segments that begin and end there; with SPLIT also the states of the pieces at the chunk's two ends, and the segment that
    the first of them ends.

    "whole": it owns a segment of a row, so that bits depend on the segment's elements alone. It writes its result and, where
    states are kept, its state.
    """
    if RELEASE:
        gdc_launch_dependents()
    pid = tl.program_id(0)
    block = (pid % sizes.blocks).to(tl.int64)
    chunk = (pid // sizes.blocks % sizes.chunks).to(tl.int64)
    outer = (pid // sizes.blocks // sizes.chunks).to(tl.int64)
    starts = [(x.pointer + outer_offset(outer, sizes.outer, x.outer), x.step, x.line) for x in inputs]
    y_base = outer_offset(outer, sizes.outer, y.outer)
    if TILE.FORM == "columns":
        fold_by_columns(starts, offsets_ptr, y, y_base, left, sizes, block, chunk, outer, TILE, SPLIT)
    elif TILE.FORM == "windows":
        fold_by_windows(starts, offsets_ptr, y, y_base, left, sizes, chunk, outer, TILE, SPLIT)
    elif TILE.FORM == "runs":
        fold_by_runs(starts, offsets_ptr, y, y_base, left, sizes, chunk, outer, TILE, SPLIT)
    else:
        fold_whole(starts, offsets_ptr, y, y_base, left, sizes, chunk, TILE)


def fold_tails(
    left, first, end, output, keep, sizes, OUTPUTS: tl.constexpr, LANES: tl.constexpr, TAILS: tl.constexpr,
    TAILS_DEPTH: tl.constexpr,
):  # fmt: skip
    """What chunks [first, end) leave behind their last borders, in order: [OUTPUTS]. Each lane takes TAILS neighbours."""
    state = IDENTITY((OUTPUTS,))
    number = tl.arange(0, LANES)[:, None, None] * TAILS + tl.arange(0, TAILS)[None, None, :]
    for at in range(first, end, LANES * TAILS):
        place = at + number
        there = tl.broadcast_to((place < end) & keep[None, :, None], (LANES, OUTPUTS, TAILS))
        offset = (sizes.chunks + place).to(tl.int64) * sizes.outputs + output[None, :, None]
        tails = OR_IDENTITY(there, *load_state(left.states, offset, there))
        flat = [tl.reshape(field, (LANES * OUTPUTS, TAILS)) for field in tails]
        flat = tree(flat, LANES * OUTPUTS, TAILS, TAILS_DEPTH)
        folded = [tl.reshape(field, (LANES, OUTPUTS)) for field in flat]
        lanes = COMBINE(*IDENTITY((LANES, OUTPUTS)), *folded)
        state = COMBINE(*state, *all_lanes(lanes, LANES))
    return state


def segment_pieces(
    offsets_ptr, left, y, sizes, CHUNKS: tl.constexpr, OUTPUTS: tl.constexpr, CHUNK: tl.constexpr, LANES: tl.constexpr,
    TAILS: tl.constexpr, TAILS_DEPTH: tl.constexpr, NEAR: tl.constexpr, WAIT: tl.constexpr,
):  # fmt: skip
    """Combine the pieces of segments that end in another chunk than they begin in, in their order.

    A program owns OUTPUTS folds and CHUNKS chunks: of each the segment, if any, that began before the chunk and ends in it.
    Those that began at most NEAR chunks before are combined side by side, the others one after another, LANES times TAILS
    pieces at a time. It reads the pieces' states once, holds a state a segment, and writes these segments' results.
    """
    pid = tl.program_id(0)
    lane = tl.arange(0, CHUNKS)
    chunk = (pid // sizes.blocks).to(tl.int64) * CHUNKS + lane
    output = (pid % sizes.blocks).to(tl.int64) * OUTPUTS + tl.arange(0, OUTPUTS)
    keep = output < sizes.outputs
    y_base = outer_offset(output, sizes.outer, y.outer)
    if WAIT:
        gdc_wait()
    segment = tl.load(left.closing[0] + chunk, mask=chunk < sizes.chunks, other=-1)
    begin = offset_at(offsets_ptr, segment, segment >= 0, sizes.length)
    first = tl.minimum((begin + sizes.lead) // CHUNK, chunk)
    many = tl.where(segment >= 0, chunk - first, 0).to(tl.int32)
    near = many <= NEAR
    state = IDENTITY((CHUNKS, OUTPUTS))
    for i in range(tl.reduce(tl.where(near, many, 0), 0, longer)):
        there = (near & (i < many))[:, None] & keep[None, :]
        place = (sizes.chunks + first + i)[:, None] * sizes.outputs + output[None, :]
        state = COMBINE(*state, *OR_IDENTITY(there, *load_state(left.states, place, there)))
    there = (near & (segment >= 0))[:, None] & keep[None, :]
    heads = load_state(left.states, chunk[:, None] * sizes.outputs + output[None, :], there)
    state = COMBINE(*state, *heads)
    store_results(y.pointers, y_base[None, :] + segment[:, None] * y.step, there, state, False)
    others = tl.reduce((near == 0).to(tl.int32), 0, plus)
    while others > 0:
        last = tl.reduce(tl.where(near, -1, lane), 0, longer)
        far = lane == last
        end = tl.reduce(tl.where(far, chunk, 0), 0, plus)
        one = tl.reduce(tl.where(far, segment, 0), 0, plus)
        begun = tl.reduce(tl.where(far, first, 0), 0, plus)
        tails = fold_tails(left, begun, end, output, keep, sizes, OUTPUTS, LANES, TAILS, TAILS_DEPTH)
        head = load_state(left.states, end * sizes.outputs + output, keep)
        store_results(y.pointers, y_base + one * y.step, keep, COMBINE(*tails, *head), False)
        near = near | far
        others -= 1
