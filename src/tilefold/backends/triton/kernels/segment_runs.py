"""Ragged rows of monoids that know no positions. Arguments and generated functions as in `segments`.

A run of neighbours is folded as soon as it is loaded, before it is known where segments begin; a tile is kept as one
state a run. Then each lane takes a segment, whatever its length, and folds it from parts that are folded already: the whole
runs of the windows that it begins and ends in, which are exchanged between lanes, the whole windows between them by
powers of two, and the elements of the runs that it begins and ends in, which are read once more, from the L1.
"""

import triton.language as tl

from tilefold.backends.triton.kernels.segments import (
    clamped,
    count_below,
    either,
    load_runs,
    longer,
    plus,
    store_state,
)
from tilefold.backends.triton.kernels.tiles import outer_offset, store_results, tree


def fold_loaded(rows, places, reach, LENGTH: tl.constexpr, RUN: tl.constexpr, LEVELS: tl.constexpr, WHOLE_RUNS: tl.constexpr):
    """Runs of a tile as states, [LENGTH]; runs beyond the row are undefined."""
    bound = places // RUN * RUN < reach if WHOLE_RUNS else places < reach
    xs = load_runs(rows, places, bound)
    lifted = LIFT(*xs, tl.broadcast_to(TO_INDEX(places.to(tl.int64)), xs[0].shape))
    return tree([field for field in lifted], LENGTH, RUN, LEVELS)


def fold_tile(rows, reach, LENGTH: tl.constexpr, RUN: tl.constexpr, LEVELS: tl.constexpr, WHOLE_RUNS: tl.constexpr):
    """A tile's runs as states, [LENGTH].

    In two halves: where there is one widening of elements, Triton exchanges elements between threads ahead of it,
    several times as much as states.
    """
    places = tl.arange(0, LENGTH // 2)[:, None] * RUN + tl.arange(0, RUN)[None, :]
    lower = fold_loaded(rows, places, reach, LENGTH // 2, RUN, LEVELS, WHOLE_RUNS)
    upper = fold_loaded(rows, places + LENGTH // 2 * RUN, reach, LENGTH // 2, RUN, LEVELS, WHOLE_RUNS)
    return [tl.reshape(tl.permute(half, (1, 0)), (LENGTH,)) for half in JOINED(*lower, *upper)]


def among(low, high, LANES: tl.constexpr, LENGTH: tl.constexpr):
    """Which of LENGTH places a lane's range has: [LANES, LENGTH]. A bit each, so that one instruction asks for one."""
    high = tl.minimum(high, LENGTH)
    low = tl.minimum(tl.maximum(low, 0), LENGTH)
    bits = tl.where(low < high, (1 << high) - (1 << low), 0)
    asked = tl.broadcast_to((1 << tl.arange(0, LENGTH))[None, :], (LANES, LENGTH))
    return (bits[:, None] & asked) != 0


def fold_elements(
    rows, run, low, high, reach, LANES: tl.constexpr, RUN: tl.constexpr, LEVELS: tl.constexpr, WHOLE_RUNS: tl.constexpr
):
    """The elements [low, high) of one run of each lane; nothing is read where there are none."""
    places = run[:, None] * RUN + tl.arange(0, RUN)[None, :]
    bound = tl.broadcast_to((tl.maximum(low, 0) < high)[:, None], (LANES, RUN))
    if not WHOLE_RUNS:
        bound = bound & (places < reach)
    xs = load_runs(rows, places, bound)
    lifted = LIFT(*xs, tl.broadcast_to(TO_INDEX(places.to(tl.int64)), xs[0].shape))
    chosen = OR_IDENTITY(among(low, high, LANES, RUN), *lifted)
    return tree([field for field in chosen], LANES, RUN, LEVELS)


def fold_runs(wholes, window, low, high, LANES: tl.constexpr, STEPS: tl.constexpr, DEPTH: tl.constexpr):
    """The runs [low, high) of the window that each lane asks for."""
    source = tl.broadcast_to(tl.minimum(window, LANES - 1)[:, None], (LANES, STEPS))
    runs = [tl.gather(field, source, 0) for field in wholes]
    chosen = OR_IDENTITY(among(low, high, LANES, STEPS), *runs)
    return tree([field for field in chosen], LANES, STEPS, DEPTH)


def fold_windows(state, windows, first, many, LANES: tl.constexpr, LANES_DEPTH: tl.constexpr):
    """A state and `many` windows behind it, from `first` on: those of each bit of `many` at once."""
    lane = tl.arange(0, LANES)
    powers = windows
    for level in tl.static_range(LANES_DEPTH):
        taken = (many & (1 << level)) != 0
        source = tl.minimum(tl.maximum(first, 0), LANES - 1)
        state = COMBINE(*state, *OR_IDENTITY(taken, *[tl.gather(field, source, 0) for field in powers]))
        first += tl.where(taken, 1 << level, 0)
        if level + 1 < LANES_DEPTH:
            # The last lanes have no such windows, and no lane asks for them.
            beside = [tl.gather(field, tl.minimum(lane + (1 << level), LANES - 1), 0) for field in powers]
            powers = COMBINE(*powers, *beside)
    return state


def fold_between(
    rows, wholes, windows, begin, end, reach, LANES: tl.constexpr, LANES_DEPTH: tl.constexpr, RUN: tl.constexpr,
    LEVELS: tl.constexpr, STEPS: tl.constexpr, DEPTH: tl.constexpr, WHOLE_RUNS: tl.constexpr,
):  # fmt: skip
    """The places [begin, end) of a tile that each lane asks for, as a state each."""
    run, last_run = begin // RUN, end // RUN
    # The run that holds `begin` if it does not begin there; that of `end` if it is another one.
    cut = begin > run * RUN
    ahead = fold_elements(
        rows, run, begin - run * RUN, tl.where(cut, end - run * RUN, 0), reach, LANES, RUN, LEVELS, WHOLE_RUNS
    )
    behind = fold_elements(
        rows, last_run, begin - last_run * RUN, tl.where(cut & (run == last_run), 0, end - last_run * RUN), reach,
        LANES, RUN, LEVELS, WHOLE_RUNS,
    )  # fmt: skip
    run += cut.to(tl.int32)
    window, last_window = run // STEPS, last_run // STEPS
    state = COMBINE(
        *ahead,
        *fold_runs(wholes, window, run - window * STEPS, last_run - window * STEPS, LANES, STEPS, DEPTH)
    )
    state = fold_windows(state, windows, window + 1, tl.maximum(last_window - window - 1, 0), LANES, LANES_DEPTH)
    other = tl.where(last_window > window, last_run - last_window * STEPS, 0)
    state = COMBINE(*state, *fold_runs(wholes, last_window, other * 0, other, LANES, STEPS, DEPTH))
    return COMBINE(*state, *behind)


def fold_short(
    rows, begin, end, most, reach, LANES: tl.constexpr, RUN: tl.constexpr, LEVELS: tl.constexpr, WHOLE_RUNS: tl.constexpr
):
    """The places [begin, end) of a tile that each lane asks for, of `most` runs, as a state each."""
    state = IDENTITY((LANES,))
    run = begin // RUN
    for _ in range(most):
        elements = fold_elements(rows, run, begin - run * RUN, end - run * RUN, reach, LANES, RUN, LEVELS, WHOLE_RUNS)
        state = COMBINE(*state, *elements)
        run += 1
    return state


def fold_all(windows, LANES: tl.constexpr, LANES_DEPTH: tl.constexpr):
    """All windows in order, in every lane."""
    lane = tl.arange(0, LANES)
    for level in tl.static_range(LANES_DEPTH):
        # What lanes near the last one combine is not used.
        beside = [tl.gather(field, tl.minimum(lane + (1 << level), LANES - 1), 0) for field in windows]
        windows = COMBINE(*windows, *beside)
    return [tl.gather(field, lane * 0, 0) for field in windows]


def borders(offsets_ptr, place, segments, size, lead, lane):
    """Where segments begin and end in the chunks, one a lane: that which ends at a place's offset, and those behind it.

    Behind the last one is one without an end.
    """
    number = place + lane
    begin = tl.load(offsets_ptr + number - 1, mask=number <= segments + 1, other=0)
    end = tl.load(offsets_ptr + number, mask=number <= segments, other=0)
    return clamped(begin, size) + lead, tl.where(number <= segments, clamped(end, size), size + 1) + lead


def segment_runs(
    inputs, offsets_ptr, y_ptrs, partial_ptrs, closing_ptrs, y_outer, y_step, outer_sizes, size, segments, chunks, outputs,
    lead, LANES: tl.constexpr, LANES_DEPTH: tl.constexpr, RUN: tl.constexpr, LEVELS: tl.constexpr, STEPS: tl.constexpr,
    DEPTH: tl.constexpr, TILES: tl.constexpr, LOOKED: tl.constexpr, SHORT_RUNS: tl.constexpr, WHOLE_RUNS: tl.constexpr,
    SPLIT: tl.constexpr, RELEASE: tl.constexpr,
):  # fmt: skip
    """Fold the segments of rows by equal shares of their elements, whatever the segments' lengths.

    A program owns one row's elements [chunk * CHUNK, (chunk + 1) * CHUNK), and the segments that end in (chunk * CHUNK,
    (chunk + 1) * CHUNK]. In every tile a lane owns a window of STEPS runs; LANES segments are folded at a time. The
    segment that no border ends yet is carried to the next tile. The first `lead` elements of the first chunk lie ahead
    of the row, so that runs are whole vectors in memory.

    Writes as `segment_rows` does.
    """
    if RELEASE:
        gdc_launch_dependents()
    TILE: tl.constexpr = RUN * STEPS * LANES
    CHUNK: tl.constexpr = TILE * TILES
    pid = tl.program_id(0)
    chunk = (pid % chunks).to(tl.int64)
    outer = (pid // chunks).to(tl.int64)
    lane = tl.arange(0, LANES)
    start = chunk * CHUNK
    reach = tl.minimum(size + lead - start, CHUNK).to(tl.int32)
    rows = [(x.pointer + outer_offset(outer, outer_sizes, x.outer) + start * x.step, x.step) for x in inputs]
    y_base = outer_offset(outer, outer_sizes, y_outer)
    place = count_below(offsets_ptr, segments + 1, start + 1 - lead, LOOKED)
    place = tl.where(chunk == 0, 1, tl.maximum(place, 1))
    begin, end = borders(offsets_ptr, place, segments, size, lead, lane)
    if SPLIT:
        if outer == 0:
            crossing = (lane == 0) & (begin < start) & (end <= start + reach)
            closed = tl.where(crossing, place - 1, -1)
            tl.store(closing_ptrs[0] + chunk + lane, closed, mask=lane == 0)
    state = IDENTITY((LANES,))
    for at in range(0, reach, TILE):
        tiles = [(row[0] + (start * 0 + at) * row[1], row[1]) for row in rows]
        left = tl.minimum(reach - at, TILE)
        folded = fold_tile(tiles, left, LANES * STEPS, RUN, LEVELS, WHOLE_RUNS)
        wholes = [tl.reshape(run, (LANES, STEPS)) for run in folded]
        windows = COMBINE(*IDENTITY((LANES,)), *tree(wholes, LANES, STEPS, DEPTH))
        many = LANES
        while many == LANES:
            closes = end <= start + at + left
            low = tl.minimum(tl.maximum(begin - start - at, 0), left).to(tl.int32)
            high = tl.minimum(tl.maximum(end - start - at, low), left).to(tl.int32)
            inner = closes | ((lane == 0) & (low > 0)) | (left < TILE)
            if tl.reduce(inner.to(tl.int32), 0, either) == 0:
                state = COMBINE(*state, *fold_all(windows, LANES, LANES_DEPTH))
                many = 0
            else:
                many = tl.reduce(closes.to(tl.int32), 0, plus)
                high = tl.where(lane <= many, high, low)
                touched = tl.reduce((high + (RUN - 1)) // RUN - low // RUN, 0, longer)
                if touched <= SHORT_RUNS:
                    value = fold_short(tiles, low, high, touched, left, LANES, RUN, LEVELS, WHOLE_RUNS)
                else:
                    value = fold_between(
                        tiles, wholes, windows, low, high, left, LANES, LANES_DEPTH, RUN, LEVELS, STEPS, DEPTH, WHOLE_RUNS
                    )
                value = COMBINE(*OR_IDENTITY(lane == 0, *state), *value)
                if SPLIT:
                    crosses = begin < start
                    store_state(partial_ptrs, chunk * outputs + outer + lane * 0, closes & crosses, value)
                    closes = closes & (begin >= start)
                store_results(y_ptrs, y_base + (place - 1 + lane).to(tl.int64) * y_step, closes, value, False)
                carried = [tl.gather(one, tl.minimum(lane * 0 + many, LANES - 1), 0) for one in value]
                state = OR_IDENTITY(lane * 0 + many < LANES, *carried)
                place += many
                # Segments that end where a tile ends and begin there too are the next tile's, if the chunk has one.
                ended = (tl.reduce(high, 0, longer) == TILE) & (at + TILE < reach)
                many = tl.where(ended, 0, many)
            begin, end = borders(offsets_ptr, place, segments, size, lead, lane)
    if SPLIT:
        store_state(partial_ptrs, (chunks + chunk) * outputs + outer + lane, lane == 0, state)
