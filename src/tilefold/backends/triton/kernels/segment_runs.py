"""Ragged rows of monoids that know no positions. Arguments and generated functions as in `segments`.

A run of neighbours is folded as soon as it is loaded, before it is known where segments begin; what is kept of a tile is a
state a run. A window is cut at its borders later: whole runs are chosen among its states, and the run that a border
lies in is read once more, from the L1.
"""

import triton.language as tl

from tilefold.backends.triton.kernels.segments import (
    border,
    clamped,
    count_below,
    either,
    fold_inner,
    last_of,
    last_until,
    load_runs,
    longer,
    rows_from,
    store_state,
)
from tilefold.backends.triton.kernels.tiles import outer_offset, store_results, tree


def fold_loaded(rows, places, reach, LENGTH: tl.constexpr, RUN: tl.constexpr, LEVELS: tl.constexpr, WHOLE_RUNS: tl.constexpr):
    """Runs of a tile as states, [LENGTH]; what is beyond the row is undefined."""
    bound = places // RUN * RUN < reach if WHOLE_RUNS else places < reach
    xs = load_runs(rows, places, bound)
    lifted = LIFT(*xs, tl.broadcast_to(TO_INDEX(places.to(tl.int64)), xs[0].shape))
    return tree([field for field in lifted], LENGTH, RUN, LEVELS)


def load_cut(rows, begins, border_at, reach, RUN: tl.constexpr, WINDOW: tl.constexpr, WHOLE_RUNS: tl.constexpr):
    """The elements of the run that a border of every window lies in, [LANES, RUN], lifted."""
    cut = tl.minimum(border_at // RUN, WINDOW // RUN - 1)
    places = (begins // RUN + cut)[:, None] * RUN + tl.arange(0, RUN)[None, :]
    inside = (border_at < WINDOW)[:, None]
    bound = inside & (places // RUN * RUN < reach) if WHOLE_RUNS else inside & (places < reach)
    xs = load_runs(rows, places, bound)
    return LIFT(*xs, tl.broadcast_to(TO_INDEX(places.to(tl.int64)), xs[0].shape))


def fold_under(mask, fields, LANES: tl.constexpr, LENGTH: tl.constexpr, LEVELS: tl.constexpr):
    """States in order, those under a mask: [LANES, LENGTH] -> [LANES]."""
    return tree([field for field in OR_IDENTITY(mask, *fields)], LANES, LENGTH, LEVELS)


def fold_all(fields, LANES: tl.constexpr, LENGTH: tl.constexpr, LEVELS: tl.constexpr):
    """States in order: [LANES, LENGTH] -> [LANES]."""
    return COMBINE(*IDENTITY((LANES,)), *tree([field for field in fields], LANES, LENGTH, LEVELS))


def segment_runs(
    inputs, offsets_ptr, y_ptrs, partial_ptrs, closing_ptrs, y_outer, y_step, outer_sizes, size, segments, chunks, outputs,
    LANES: tl.constexpr, RUN: tl.constexpr, LEVELS: tl.constexpr, STEPS: tl.constexpr, DEPTH: tl.constexpr,
    TILES: tl.constexpr, INNER: tl.constexpr, NEAR: tl.constexpr, WHOLE_RUNS: tl.constexpr, SPLIT: tl.constexpr,
    RELEASE: tl.constexpr,
):  # fmt: skip
    """Fold the segments of rows by equal shares of their elements, whatever the segments' lengths.

    A program owns one row's elements [chunk * CHUNK, (chunk + 1) * CHUNK). In every tile a lane owns a window of STEPS runs.
    What is before the first border inside its window, (p, p + WINDOW], and what is behind the last one take part in
    a scan over the lanes, which carries open segments from window to window. Up to INNER segments between them are folded at
    once; the chunk is looked through again if a window has more, or if it begins with empty segments.

    Writes as `segment_rows` does.
    """
    if RELEASE:
        gdc_launch_dependents()
    WINDOW: tl.constexpr = RUN * STEPS
    TILE: tl.constexpr = WINDOW * LANES
    CHUNK: tl.constexpr = TILE * TILES
    pid = tl.program_id(0)
    chunk = (pid % chunks).to(tl.int64)
    outer = (pid // chunks).to(tl.int64)
    lane = tl.arange(0, LANES)
    start = chunk * CHUNK
    reach = tl.minimum(size - start, CHUNK).to(tl.int32)
    rows = [(x[0] + outer_offset(outer, outer_sizes, x[1]) + start * x[2], x[2]) for x in inputs]
    y_base = outer_offset(outer, outer_sizes, y_outer)
    first = count_below(offsets_ptr, segments + 1, start, LANES)
    first = tl.where(chunk == 0, 0, first)
    rest = count_below(offsets_ptr + first, segments + 1 - first, start + CHUNK, LANES)
    last = tl.where(chunk == chunks - 1, segments + 1, first + rest)
    runs = tl.arange(0, LANES * STEPS)
    places = runs[:, None] * RUN + tl.arange(0, RUN)[None, :]
    step = tl.broadcast_to(tl.arange(0, STEPS)[None, :], (LANES, STEPS))
    in_run = tl.broadcast_to(tl.arange(0, RUN)[None, :], (LANES, RUN))
    state = IDENTITY(())
    crowded = 0
    done = first - 1
    for at in range(0, reach, TILE):
        begins = at + lane * WINDOW
        tiles = [(row[0] + (start * 0 + at) * row[1], row[1]) for row in rows]
        folded = fold_loaded(tiles, places, reach - at, LANES * STEPS, RUN, LEVELS, WHOLE_RUNS)
        wholes = [tl.reshape(field, (LANES, STEPS)) for field in folded]
        # Where a tile has few borders, they are looked for among the NEAR next ones.
        probe = tl.load(offsets_ptr + done + NEAR, mask=done + NEAR < last, other=0).to(tl.int64)
        ahead = tl.where(probe > start + at + TILE, NEAR, last - 1 - done)
        segment = last_until(offsets_ptr, done + lane * 0, ahead, segments, start + begins)
        done += tl.reduce(tl.minimum(segment - done, LANES * WINDOW).to(tl.int32), 0, longer)
        crowded += tl.reduce(((segment > first) & (begins == 0)).to(tl.int32), 0, either)
        border_at = border(offsets_ptr, segment + 1, segments, start, size, 2 * CHUNK) - begins
        closes = (border_at <= WINDOW) & (begins < reach)
        if tl.reduce(closes.to(tl.int32), 0, either) > 0:
            cut = border_at // RUN
            among = in_run + (cut * RUN)[:, None]
            lifted = load_cut(rows, begins, border_at, reach, RUN, WINDOW, WHOLE_RUNS)
            head = COMBINE(
                *fold_under(step < cut[:, None], wholes, LANES, STEPS, DEPTH),
                *fold_under(among < border_at[:, None], lifted, LANES, RUN, LEVELS),
            )
            behind = fold_under((among >= border_at[:, None]) & (among < WINDOW), lifted, LANES, RUN, LEVELS)
            following = border(offsets_ptr, segment + 2, segments, start, size, 2 * CHUNK) - begins
            number = 1
            more = tl.reduce((closes & (following <= WINDOW)).to(tl.int32), 0, either)
            while (more > 0) & (number <= INNER):
                another = closes & (following <= WINDOW)
                next_cut = following // RUN
                next_among = in_run + (next_cut * RUN)[:, None]
                lifted = load_cut(rows, begins, following, reach, RUN, WINDOW, WHOLE_RUNS)
                between = (step > cut[:, None]) & (step < next_cut[:, None])
                left = OR_IDENTITY(next_cut > cut, *behind)
                right = (next_among >= border_at[:, None]) & (next_among < following[:, None])
                inner = COMBINE(*left, *fold_under(between, wholes, LANES, STEPS, DEPTH))
                inner = COMBINE(*inner, *fold_under(right, lifted, LANES, RUN, LEVELS))
                y_place = y_base + (segment + number) * y_step
                store_results(y_ptrs, y_place, another, inner, False)
                onwards = (next_among >= following[:, None]) & (next_among < WINDOW)
                rest_of = fold_under(onwards, lifted, LANES, RUN, LEVELS)
                behind = CHOOSE(another, *rest_of, *behind)
                cut = tl.where(another, next_cut, cut)
                border_at = tl.where(another, following, border_at)
                number += 1
                following = border(offsets_ptr, segment + 1 + number, segments, start, size, 2 * CHUNK) - begins
                more = tl.reduce((closes & (following <= WINDOW)).to(tl.int32), 0, either)
            if more > 0:
                crowded += 1
                newest = last_until(offsets_ptr, segment, last - first + 1, segments, start + begins + WINDOW)
                newest_at = border(offsets_ptr, newest, segments, start, size, 2 * CHUNK) - begins
                border_at = tl.where(closes, newest_at, border_at)
                cut = border_at // RUN
                lifted = load_cut(rows, begins, border_at, reach, RUN, WINDOW, WHOLE_RUNS)
                among = in_run + (cut * RUN)[:, None]
                behind = fold_under((among >= border_at[:, None]) & (among < WINDOW), lifted, LANES, RUN, LEVELS)
            tail = COMBINE(*behind, *fold_under(step > cut[:, None], wholes, LANES, STEPS, DEPTH))
        else:
            head = fold_all(wholes, LANES, STEPS, DEPTH)
            tail = IDENTITY((LANES,))
        carried = OR_IDENTITY(lane == 0, *[tl.broadcast_to(field, (LANES,)) for field in state])
        head = COMBINE(*carried, *head)
        flagged = IN_TURN(lane * 0, *head, closes.to(tl.int32), *tail)
        scanned = UNFLAGGED(*tl.associative_scan(flagged, 0, COMBINE_SEGMENTS))
        halves = [tl.split(tl.reshape(field, (LANES, 2))) for field in scanned]
        closed = [half[0] for half in halves]
        store_results(y_ptrs, y_base + segment * y_step, closes & (segment >= first), closed, False)
        if SPLIT:
            store_state(partial_ptrs, chunk * outputs + outer + lane * 0, closes & (segment < first), closed)
        state = COMBINE(*IDENTITY(()), *[last_of(half[1], LANES) for half in halves])
    if SPLIT:
        store_state(partial_ptrs, (chunks + chunk) * outputs + outer, True, state)
        if outer == 0:
            offset = clamped(tl.load(offsets_ptr + first, mask=first <= segments, other=0), size)
            crossing = (first > 0) & (first <= segments) & (offset > start) & (offset <= start + CHUNK)
            tl.store(closing_ptrs[0] + chunk, tl.where(crossing, first - 1, -1).to(tl.int64))
    if crowded > 0:
        tl.debug_barrier()  # what was stored above may be stored again
        fold_inner(
            rows_from(rows, start), offsets_ptr, y_ptrs, y_base, y_step, start, size, first, tl.minimum(last, segments),
            LANES, WINDOW,
        )  # fmt: skip
