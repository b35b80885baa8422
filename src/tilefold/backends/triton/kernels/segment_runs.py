"""Ragged rows of monoids that know no positions. Generated functions as in `segments`.

A run of neighbours is folded as soon as it is loaded, before it is known where segments begin; a tile is kept as one
state a run. Then each lane takes a segment, whatever its length, and folds it from parts that are folded already: the whole
runs of the windows that it begins and ends in, which are exchanged between lanes, the whole windows between them by
powers of two, and the elements of the runs that it begins and ends in, which are read once more, from the L1.
"""

import triton.language as tl

from tilefold.backends.triton.kernels.segment_borders import (
    clamped,
    count_below,
    load_runs,
    longer,
    plus,
    states_of,
)
from tilefold.backends.triton.kernels.tiles import either_bits, store_results, tree


def fold_half(rows, reach, FIRST: tl.constexpr, LENGTH: tl.constexpr, TILE: tl.constexpr):
    """LENGTH runs of a tile as states, from FIRST on; runs beyond the row are undefined."""
    places = tl.arange(0, LENGTH)[:, None] * TILE.RUN + tl.arange(0, TILE.RUN)[None, :] + FIRST * TILE.RUN
    bound = places // TILE.RUN * TILE.RUN < reach if TILE.WHOLE_RUNS else places < reach
    xs = load_runs(rows, places, bound)
    return states_of(xs, places.to(tl.int64), None, LENGTH, TILE.RUN, TILE.LEVELS)


def fold_tile(rows, reach, TILE: tl.constexpr):
    """A tile's runs as states, [LANES, STEPS].

    In two halves: where there is one widening of elements, Triton exchanges elements between threads ahead of it,
    several times as much as states.
    """
    HALF: tl.constexpr = TILE.LANES * TILE.STEPS // 2
    halves = JOINED(*fold_half(rows, reach, 0, HALF, TILE), *fold_half(rows, reach, HALF, HALF, TILE))
    return [tl.reshape(tl.permute(half, (1, 0)), (TILE.LANES, TILE.STEPS)) for half in halves]


def among(low, high, LANES: tl.constexpr, LENGTH: tl.constexpr):
    """Which of LENGTH places a lane's range has: [LANES, LENGTH]. A bit each, so that one instruction asks for one."""
    high = tl.minimum(high, LENGTH)
    low = tl.minimum(tl.maximum(low, 0), LENGTH)
    bits = tl.where(low < high, (1 << high) - (1 << low), 0)
    asked = tl.broadcast_to((1 << tl.arange(0, LENGTH))[None, :], (LANES, LENGTH))
    return (bits[:, None] & asked) != 0


def fold_elements(rows, run, low, high, reach, TILE: tl.constexpr):
    """The elements [low, high) of one run of each lane; nothing is read where there are none."""
    places = run[:, None] * TILE.RUN + tl.arange(0, TILE.RUN)[None, :]
    bound = tl.broadcast_to((tl.maximum(low, 0) < high)[:, None], (TILE.LANES, TILE.RUN))
    if not TILE.WHOLE_RUNS:
        bound = bound & (places < reach)
    xs = load_runs(rows, places, bound)
    return states_of(xs, places.to(tl.int64), among(low, high, TILE.LANES, TILE.RUN), TILE.LANES, TILE.RUN, TILE.LEVELS)


def fold_runs(wholes, window, low, high, TILE: tl.constexpr):
    """The runs [low, high) of the window that each lane asks for."""
    source = tl.broadcast_to(tl.minimum(window, TILE.LANES - 1)[:, None], (TILE.LANES, TILE.STEPS))
    runs = [tl.gather(field, source, 0) for field in wholes]
    chosen = OR_IDENTITY(among(low, high, TILE.LANES, TILE.STEPS), *runs)
    return tree([field for field in chosen], TILE.LANES, TILE.STEPS, TILE.DEPTH)


def fold_windows(state, windows, first, many, TILE: tl.constexpr):
    """A state and `many` windows behind it, from `first` on: those of each bit of `many` at once."""
    lane = tl.arange(0, TILE.LANES)
    powers = windows
    for level in tl.static_range(TILE.LANES_DEPTH):
        taken = (many & (1 << level)) != 0
        source = tl.minimum(tl.maximum(first, 0), TILE.LANES - 1)
        state = COMBINE(*state, *OR_IDENTITY(taken, *[tl.gather(field, source, 0) for field in powers]))
        first += tl.where(taken, 1 << level, 0)
        if level + 1 < TILE.LANES_DEPTH:
            # The last lanes have no such windows, and no lane asks for them.
            beside = [tl.gather(field, tl.minimum(lane + (1 << level), TILE.LANES - 1), 0) for field in powers]
            powers = COMBINE(*powers, *beside)
    return state


def fold_between(rows, wholes, windows, begin, end, reach, TILE: tl.constexpr):
    """The places [begin, end) of a tile that each lane asks for, as a state each."""
    run, last_run = begin // TILE.RUN, end // TILE.RUN
    # The run that holds `begin` if it does not begin there; that of `end` if it is another one.
    cut = begin > run * TILE.RUN
    first, last = run * TILE.RUN, last_run * TILE.RUN
    ahead = fold_elements(rows, run, begin - first, tl.where(cut, end - first, 0), reach, TILE)
    rest = tl.where(cut & (run == last_run), 0, end - last)
    behind = fold_elements(rows, last_run, begin - last, rest, reach, TILE)
    run += cut.to(tl.int32)
    window, last_window = run // TILE.STEPS, last_run // TILE.STEPS
    first, last = window * TILE.STEPS, last_window * TILE.STEPS
    state = COMBINE(*ahead, *fold_runs(wholes, window, run - first, last_run - first, TILE))
    state = fold_windows(state, windows, window + 1, tl.maximum(last_window - window - 1, 0), TILE)
    other = tl.where(last_window > window, last_run - last, 0)
    state = COMBINE(*state, *fold_runs(wholes, last_window, other * 0, other, TILE))
    return COMBINE(*state, *behind)


def fold_short(rows, begin, end, most, reach, TILE: tl.constexpr):
    """The places [begin, end) of a tile that each lane asks for, of `most` runs, as a state each."""
    state = IDENTITY((TILE.LANES,))
    run = begin // TILE.RUN
    for _ in range(most):
        first = run * TILE.RUN
        state = COMBINE(*state, *fold_elements(rows, run, begin - first, end - first, reach, TILE))
        run += 1
    return state


def fold_all(windows, TILE: tl.constexpr):
    """All windows in order, in every lane."""
    lane = tl.arange(0, TILE.LANES)
    for level in tl.static_range(TILE.LANES_DEPTH):
        # What lanes near the last one combine is not used.
        beside = [tl.gather(field, tl.minimum(lane + (1 << level), TILE.LANES - 1), 0) for field in windows]
        windows = COMBINE(*windows, *beside)
    return [tl.gather(field, lane * 0, 0) for field in windows]


def borders(offsets_ptr, place, sizes, lane):
    """Where segments begin and end in the chunks, one a lane: that which ends at a place's offset, and those behind it.

    Behind the last one is one without an end.
    """
    number = place + lane
    begin = tl.load(offsets_ptr + number - 1, mask=number <= sizes.segments + 1, other=0)
    end = tl.load(offsets_ptr + number, mask=number <= sizes.segments, other=0)
    begin = clamped(begin, sizes.length) + sizes.lead
    return begin, tl.where(number <= sizes.segments, clamped(end, sizes.length), sizes.length + 1) + sizes.lead


def fold_by_runs(starts, offsets_ptr, y, y_base, left, sizes, chunk, outer, TILE: tl.constexpr, SPLIT: tl.constexpr):
    """Fold the segments that end in (chunk * CHUNK, (chunk + 1) * CHUNK] of a row, and what is left behind the last border.

    In every tile a lane owns a window of STEPS runs; LANES segments are folded at a time. The segment that no border ends
    yet is carried to the next tile. The first `lead` elements of the first chunk lie ahead of the row, so that runs are whole
    vectors in memory.
    """
    LENGTH: tl.constexpr = TILE.RUN * TILE.STEPS * TILE.LANES
    lane = tl.arange(0, TILE.LANES)
    start = chunk * TILE.CHUNK
    reach = tl.minimum(sizes.length + sizes.lead - start, TILE.CHUNK).to(tl.int32)
    rows = [(x[0] + start * x[1], x[1]) for x in starts]
    place = count_below(offsets_ptr, sizes.segments + 1, start + 1 - sizes.lead, TILE.LOOKED)
    place = tl.where(chunk == 0, 1, tl.maximum(place, 1))
    begin, end = borders(offsets_ptr, place, sizes, lane)
    if SPLIT:
        if outer == 0:
            crossing = (lane == 0) & (begin < start) & (end <= start + reach)
            closed = tl.where(crossing, place - 1, -1)
            tl.store(left.closing[0] + chunk + lane, closed, mask=lane == 0)
    state = IDENTITY((TILE.LANES,))
    for at in range(0, reach, LENGTH):
        tiles = [(row[0] + (start * 0 + at) * row[1], row[1]) for row in rows]
        inside = tl.minimum(reach - at, LENGTH)
        wholes = fold_tile(tiles, inside, TILE)
        windows = COMBINE(*IDENTITY((TILE.LANES,)), *tree(wholes, TILE.LANES, TILE.STEPS, TILE.DEPTH))
        many = TILE.LANES
        while many == TILE.LANES:
            closes = end <= start + at + inside
            low = tl.minimum(tl.maximum(begin - start - at, 0), inside).to(tl.int32)
            high = tl.minimum(tl.maximum(end - start - at, low), inside).to(tl.int32)
            inner = closes | ((lane == 0) & (low > 0)) | (inside < LENGTH)
            if tl.reduce(inner.to(tl.int32), 0, either_bits) == 0:
                state = COMBINE(*state, *fold_all(windows, TILE))
                many = 0
            else:
                many = tl.reduce(closes.to(tl.int32), 0, plus)
                high = tl.where(lane <= many, high, low)
                touched = tl.reduce((high + (TILE.RUN - 1)) // TILE.RUN - low // TILE.RUN, 0, longer)
                if touched <= TILE.SHORT_RUNS:
                    value = fold_short(tiles, low, high, touched, inside, TILE)
                else:
                    value = fold_between(tiles, wholes, windows, low, high, inside, TILE)
                value = COMBINE(*OR_IDENTITY(lane == 0, *state), *value)
                if SPLIT:
                    crosses = begin < start
                    store_results(left.states, chunk * sizes.outputs + outer + lane * 0, closes & crosses, value, True)
                    closes = closes & (begin >= start)
                store_results(y.pointers, y_base + (place - 1 + lane).to(tl.int64) * y.step, closes, value, False)
                carried = [tl.gather(one, tl.minimum(lane * 0 + many, TILE.LANES - 1), 0) for one in value]
                state = OR_IDENTITY(lane * 0 + many < TILE.LANES, *carried)
                place += many
                # Segments that end where a tile ends and begin there too are the next tile's, if the chunk has one.
                ended = (tl.reduce(high, 0, longer) == LENGTH) & (at + LENGTH < reach)
                many = tl.where(ended, 0, many)
            begin, end = borders(offsets_ptr, place, sizes, lane)
    if SPLIT:
        store_results(left.states, (sizes.chunks + chunk) * sizes.outputs + outer + lane, lane == 0, state, True)
