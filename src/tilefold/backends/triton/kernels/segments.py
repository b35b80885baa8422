"""The kernels of ragged folds. Generated functions as in `tiles`, and IN_TURN, UNFLAGGED and COMBINE_SEGMENTS.

The elements of one dim are cut into segments by `offsets`: segment s is [offsets[s], offsets[s + 1]). Offsets are used only
after they are clamped to the dim, so that no load or store leaves its tensor whatever they hold.

Arguments:
    inputs         a RaggedRows an input, RaggedColumns of `segment_columns`
    y_ptrs         one pointer a result; `y_outer`, `y_step`: their steps along `outer_sizes`, and from segment to segment
    partial_ptrs   one pointer a state field, [2, chunks, outputs]: of every chunk what it folds before its first border,
                   and after its last one
    closing_ptrs   the segment that began before a chunk and ends in it, -1 where there is none: [chunks]
    size           elements along the segments' dim; `segments` of them; `outputs` folds that share the offsets
    lead           elements of the first chunk that lie ahead of a row
"""

import triton.language as tl

from tilefold.backends.triton.kernels.tiles import outer_offset, store_results, tree


def either(a, b):
    """The bits of both."""
    return a | b


def plus(a, b):
    """The sum of two counts."""
    return a + b


def longer(a, b):
    """The greater of two lengths."""
    return tl.where(a < b, b, a)


def clamped(offset, size):
    """An offset inside the dim."""
    return tl.minimum(tl.maximum(offset.to(tl.int64), 0), size)


def count_below(offsets_ptr, entries, bound, LANES: tl.constexpr):
    """How many of sorted offsets are below a bound: LANES of them are looked at at a time. As wide as `entries`."""
    low = entries * 0
    left = entries
    lane = tl.arange(0, LANES)
    while left > 0:
        step = left // LANES + (left % LANES != 0).to(left.dtype)
        inside = lane * step <= left - step
        place = low + lane * step + (step - 1)
        offset = tl.load(offsets_ptr + place, mask=inside, other=0).to(tl.int64)
        passed = tl.reduce((inside & (offset < bound)).to(tl.int32), 0, plus)
        left = tl.minimum(step - 1, left - passed * step)
        low = low + passed * step
    return low


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


def border(offsets_ptr, place, segments, start, size, FAR: tl.constexpr):
    """Offset number `place`, counted from a chunk's start; FAR beyond it, and where there is none."""
    there = (place >= 0) & (place <= segments)
    offset = clamped(tl.load(offsets_ptr + place, mask=there, other=0), size)
    near = tl.minimum(offset - start, FAR).to(tl.int32)
    return tl.where(there, near, FAR)


def last_of(s, LANES: tl.constexpr):
    """The last of a field's lanes, its first axis, as bits: the sum with zeros would lose the sign of a zero."""
    last = tl.arange(0, LANES) == LANES - 1
    if len(s.shape) == 2:
        last = last[:, None]
    if s.dtype.is_floating():
        kind: tl.constexpr = tl.int64 if s.dtype.primitive_bitwidth == 64 else tl.int32
        picked = tl.reduce(tl.where(last, s.to(kind, bitcast=True), 0), 0, either).to(s.dtype, bitcast=True)
    else:
        picked = tl.reduce(tl.where(last, s, s ^ s), 0, either)
    return picked


def store_state(ptrs, place, mask, state):
    """A state's fields at their places of the workspace."""
    for f in tl.static_range(len(ptrs)):
        tl.store(ptrs[f] + place, state[f], mask=mask)


def load_runs(rows, places, bound):
    """One tile of each input; elements outside `bound` are undefined and must not be used."""
    return [tl.load(row[0] + places.to(tl.int64) * row[1], mask=bound) for row in rows]


def of_runs(per_window, LANES: tl.constexpr, STEPS: tl.constexpr):
    """A value a window beside the runs of every window: [LANES] -> [LANES * STEPS, 1]."""
    if STEPS == 1:
        beside = per_window
    else:
        beside = tl.reshape(tl.broadcast_to(per_window[:, None], (LANES, STEPS)), (LANES * STEPS,))
    return beside[:, None]


def of_windows(runs, LANES: tl.constexpr, STEPS: tl.constexpr, DEPTH: tl.constexpr):
    """States of runs [LANES * STEPS] as states of windows [LANES], in order; STEPS = 2 ** DEPTH."""
    return tree([tl.reshape(s, (LANES, STEPS)) for s in runs], LANES, STEPS, DEPTH)


def fold_windows(
    xs, places, lead, LANES: tl.constexpr, RUN: tl.constexpr, LEVELS: tl.constexpr, STEPS: tl.constexpr, DEPTH: tl.constexpr
):  # fmt: skip
    """Every lane's window as one state: no border lies in it. `lead`: elements of its segment ahead of the window."""
    position = TO_INDEX(of_runs(lead, LANES, STEPS) + places)
    lifted = LIFT(*xs, tl.broadcast_to(position, xs[0].shape))
    return of_windows(tree([s for s in lifted], LANES * STEPS, RUN, LEVELS), LANES, STEPS, DEPTH)


def fold_side(
    xs, places, border_at, lead, LANES: tl.constexpr, RUN: tl.constexpr, LEVELS: tl.constexpr, STEPS: tl.constexpr,
    DEPTH: tl.constexpr, AFTER: tl.constexpr,
):  # fmt: skip
    """Fold the elements before a border in every lane's window, or (AFTER) behind it. `border_at` counts from its begin."""
    border_at = of_runs(border_at, LANES, STEPS)
    if AFTER:
        mask = places >= border_at
        position = TO_INDEX((places - border_at).to(tl.int64))
    else:
        mask = places < border_at
        position = TO_INDEX(of_runs(lead, LANES, STEPS) + places)
    lifted = LIFT(*xs, tl.broadcast_to(position, xs[0].shape))
    counted = OR_IDENTITY(tl.broadcast_to(mask, xs[0].shape), *lifted)
    return of_windows(tree([s for s in counted], LANES * STEPS, RUN, LEVELS), LANES, STEPS, DEPTH)


def fold_inner(
    rows, offsets_ptr, y_ptrs, y_base, y_step, start, size, first, last, LANES: tl.constexpr, WINDOW: tl.constexpr
):
    """Segments of [first, last) that a lane's window holds whole between two borders, and empty ones; a lane each."""
    lane = tl.arange(0, LANES)
    for at in range(first, last, LANES):
        segment = at + lane
        there = segment < last
        begin = clamped(tl.load(offsets_ptr + segment, mask=there, other=0), size)
        end = clamped(tl.load(offsets_ptr + segment + 1, mask=there, other=0), size)
        inner = (begin > start) & (end > begin) & ((begin - start - 1) // WINDOW == (end - start - 1) // WINDOW)
        length = tl.where(there & inner, end - begin, 0).to(tl.int32)
        state = IDENTITY((LANES,))
        for i in range(tl.reduce(length, 0, longer)):
            xs = [tl.load(row[0] + (begin + i) * row[1], mask=i < length) for row in rows]
            lifted = LIFT(*xs, tl.broadcast_to(TO_INDEX(begin * 0 + i), xs[0].shape))
            state = COMBINE(*state, *OR_IDENTITY(i < length, *lifted))
        store_results(y_ptrs, y_base + segment.to(tl.int64) * y_step, there & (inner | (end <= begin)), state, False)


def segment_rows(
    inputs, offsets_ptr, y_ptrs, partial_ptrs, closing_ptrs, y_outer, y_step, outer_sizes, size, segments, chunks, outputs,
    LANES: tl.constexpr, RUN: tl.constexpr, LEVELS: tl.constexpr, STEPS: tl.constexpr, DEPTH: tl.constexpr,
    TILES: tl.constexpr, WHOLE_RUNS: tl.constexpr, SPLIT: tl.constexpr, RELEASE: tl.constexpr,
):  # fmt: skip
    """Fold the segments of rows by equal shares of their elements, whatever the segments' lengths.

    A program owns one row's elements [chunk * CHUNK, (chunk + 1) * CHUNK). In every tile a lane owns a window of STEPS runs
    of RUN = 2 ** LEVELS neighbours. It folds what is before the first border inside its window, (p, p + WINDOW], and what is
    from the last one on; a scan over the lanes carries open segments from window to window. Segments that lie within
    one window between its borders, and empty ones, are folded after that, a lane each.

    WHOLE_RUNS: a run is a vector that is aligned in memory, and read whole where the row ends in it.
    Writes the results of segments that begin and end in the chunk; with SPLIT also the states of the pieces at its two ends,
    and the segment that the first of them ends.
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
    rows = [(x.pointer + outer_offset(outer, outer_sizes, x.outer) + start * x.step, x.step) for x in inputs]
    y_base = outer_offset(outer, outer_sizes, y_outer)
    first = count_below(offsets_ptr, segments + 1, start, LANES)
    first = tl.where(chunk == 0, 0, first)
    rest = count_below(offsets_ptr + first, segments + 1 - first, start + CHUNK, LANES)
    last = tl.where(chunk == chunks - 1, segments + 1, first + rest)
    runs = tl.arange(0, LANES * STEPS)
    places = (runs % STEPS)[:, None] * RUN + tl.arange(0, RUN)[None, :]
    state = IDENTITY(())
    for at in range(0, reach, TILE):
        begins = at + lane * WINDOW
        there = at + runs[:, None] * RUN + tl.arange(0, RUN)[None, :]
        bound = there // RUN * RUN < reach if WHOLE_RUNS else there < reach
        xs = load_runs(rows, there, bound)
        segment = last_until(offsets_ptr, first - 1 + lane * 0, last - first, segments, start + begins)
        border_at = border(offsets_ptr, segment + 1, segments, start, size, 2 * CHUNK) - begins
        lead = start + begins - clamped(tl.load(offsets_ptr + segment, mask=segment >= 0, other=0), size)
        closes = (border_at <= WINDOW) & (begins < reach)
        if tl.reduce(closes.to(tl.int32), 0, either) > 0:
            newest_at = border(offsets_ptr, segment + 2, segments, start, size, 2 * CHUNK) - begins
            many = closes & (newest_at <= WINDOW)
            newest_at = border_at
            if tl.reduce(many.to(tl.int32), 0, either) > 0:
                newest = last_until(offsets_ptr, segment, last - first + 1, segments, start + begins + WINDOW)
                newest_at = tl.where(many, border(offsets_ptr, newest, segments, start, size, 2 * CHUNK) - begins, border_at)
            head = fold_side(xs, places, border_at, lead, LANES, RUN, LEVELS, STEPS, DEPTH, False)
            tail = fold_side(xs, places, newest_at, lead, LANES, RUN, LEVELS, STEPS, DEPTH, True)
        else:
            head = fold_windows(xs, places, lead, LANES, RUN, LEVELS, STEPS, DEPTH)
            tail = IDENTITY((LANES,))
        carried = OR_IDENTITY(lane == 0, *[tl.broadcast_to(s, (LANES,)) for s in state])
        head = COMBINE(*carried, *head)
        flagged = IN_TURN(lane * 0, *head, closes.to(tl.int32), *tail)
        scanned = UNFLAGGED(*tl.associative_scan(flagged, 0, COMBINE_SEGMENTS))
        halves = [tl.split(tl.reshape(s, (LANES, 2))) for s in scanned]
        closed = [half[0] for half in halves]
        y_place = y_base + segment.to(tl.int64) * y_step
        store_results(y_ptrs, y_place, closes & (segment >= first), closed, False)
        if SPLIT:
            store_state(partial_ptrs, chunk * outputs + outer + lane * 0, closes & (segment < first), closed)
        state = COMBINE(*IDENTITY(()), *[last_of(half[1], LANES) for half in halves])
    if SPLIT:
        store_state(partial_ptrs, (chunks + chunk) * outputs + outer, True, state)
        if outer == 0:
            offset = clamped(tl.load(offsets_ptr + first, mask=first <= segments, other=0), size)
            crossing = (first > 0) & (first <= segments) & (offset > start) & (offset <= start + CHUNK)
            tl.store(closing_ptrs[0] + chunk, tl.where(crossing, first - 1, -1).to(tl.int64))
    fold_inner(
        rows_from(rows, start), offsets_ptr, y_ptrs, y_base, y_step, start, size, first, tl.minimum(last, segments),
        LANES, WINDOW,
    )  # fmt: skip


def rows_from(rows, start):
    """Rows by their own beginning, where they are read from a chunk's."""
    return [(row[0] - start * row[1], row[1]) for row in rows]


def fold_tails(
    partial_ptrs, first, end, output, keep, chunks, outputs,
    TAILS: tl.constexpr, TAILS_DEPTH: tl.constexpr, LANES: tl.constexpr, OUTPUTS: tl.constexpr,
):  # fmt: skip
    """What chunks [first, end) leave behind their last borders, in order: [OUTPUTS]. Each lane takes TAILS neighbours."""
    state = IDENTITY((OUTPUTS,))
    number = tl.arange(0, LANES)[:, None, None] * TAILS + tl.arange(0, TAILS)[None, None, :]
    for at in range(first, end, LANES * TAILS):
        place = at + number
        there = tl.broadcast_to((place < end) & keep[None, :, None], (LANES, OUTPUTS, TAILS))
        offset = (chunks + place).to(tl.int64) * outputs + output[None, :, None]
        tails = OR_IDENTITY(there, *[tl.load(p + offset, mask=there) for p in partial_ptrs])
        flat = [tl.reshape(field, (LANES * OUTPUTS, TAILS)) for field in tails]
        folded = [tl.reshape(field, (LANES, OUTPUTS)) for field in tree(flat, LANES * OUTPUTS, TAILS, TAILS_DEPTH)]
        # COMBINE makes a tuple of what a comprehension gave.
        scanned = tl.associative_scan(COMBINE(*IDENTITY((LANES, OUTPUTS)), *folded), 0, COMBINE)
        state = COMBINE(*state, *[last_of(field, LANES) for field in scanned])
    return state


def segment_pieces(
    offsets_ptr, partial_ptrs, closing_ptrs, y_ptrs, y_outer, y_step, outer_sizes, size, chunks, outputs, blocks, chunk_size,
    lead, CHUNKS: tl.constexpr, OUTPUTS: tl.constexpr, LANES: tl.constexpr, TAILS: tl.constexpr, TAILS_DEPTH: tl.constexpr,
    NEAR: tl.constexpr, WAIT: tl.constexpr,
):  # fmt: skip
    """Combine the pieces of segments that end in another chunk than they begin in, in their order.

    A program owns OUTPUTS folds and CHUNKS chunks: of each the segment, if any, that began before the chunk and ends in it.
    Those that began at most NEAR chunks before are combined side by side, the others one after another. It reads the pieces'
    states once, holds a state a segment, and writes these segments' results.
    """
    pid = tl.program_id(0)
    lane = tl.arange(0, CHUNKS)
    chunk = (pid // blocks).to(tl.int64) * CHUNKS + lane
    output = (pid % blocks).to(tl.int64) * OUTPUTS + tl.arange(0, OUTPUTS)
    keep = output < outputs
    y_base = outer_offset(output, outer_sizes, y_outer)
    if WAIT:
        gdc_wait()
    segment = tl.load(closing_ptrs[0] + chunk, mask=chunk < chunks, other=-1)
    begin = clamped(tl.load(offsets_ptr + segment, mask=segment >= 0, other=0), size)
    first = tl.minimum((begin + lead) // chunk_size, chunk)
    many = tl.where(segment >= 0, chunk - first, 0).to(tl.int32)
    near = many <= NEAR
    state = IDENTITY((CHUNKS, OUTPUTS))
    for i in range(tl.reduce(tl.where(near, many, 0), 0, longer)):
        there = (near & (i < many))[:, None] & keep[None, :]
        place = (chunks + first + i)[:, None] * outputs + output[None, :]
        state = COMBINE(*state, *OR_IDENTITY(there, *[tl.load(p + place, mask=there) for p in partial_ptrs]))
    there = (near & (segment >= 0))[:, None] & keep[None, :]
    heads = [tl.load(p + chunk[:, None] * outputs + output[None, :], mask=there) for p in partial_ptrs]
    state = COMBINE(*state, *heads)
    store_results(y_ptrs, y_base[None, :] + segment[:, None] * y_step, there, state, False)
    left = tl.reduce((near == 0).to(tl.int32), 0, plus)
    while left > 0:
        last = tl.reduce(tl.where(near, -1, lane), 0, longer)
        far = lane == last
        end = tl.reduce(tl.where(far, chunk, 0), 0, plus)
        one = tl.reduce(tl.where(far, segment, 0), 0, plus)
        begun = tl.reduce(tl.where(far, first, 0), 0, plus)
        tails = fold_tails(
            partial_ptrs, begun, end, output, keep, chunks, outputs, TAILS, TAILS_DEPTH, LANES, OUTPUTS
        )
        head = [tl.load(p + end * outputs + output, mask=keep) for p in partial_ptrs]
        store_results(y_ptrs, y_base + one * y_step, keep, COMBINE(*tails, *head), False)
        near = near | far
        left -= 1


def fold_rows(
    rows, begin, end, origin, keep,
    COLUMNS: tl.constexpr, LANES: tl.constexpr, STEPS: tl.constexpr, NARROW: tl.constexpr, ACROSS: tl.constexpr,
):  # fmt: skip
    """Rows [begin, end) of some columns as one state a column.

    In a tile a lane takes STEPS rows, one after another; with ACROSS rows that are LANES apart, in another order than theirs.
    """
    state = IDENTITY((COLUMNS,))
    # Of a loop that begins where another one ended, Triton believes that every place is one of whole vectors, and gives
    # threads as many neighbours. Where rows allow fewer, places are counted from 0.
    base = begin if NARROW else 0
    for passed in range(begin - base, end - base, LANES * STEPS):
        at = base + passed
        lanes = IDENTITY((LANES, COLUMNS))
        for step in tl.static_range(STEPS):
            if ACROSS:
                place = (at + tl.arange(0, LANES) + step * LANES)[:, None]
            else:
                place = (at + tl.arange(0, LANES) * STEPS + step)[:, None]
            there = (place < end) & keep
            xs = [tl.load(row[0] + place * row[1], mask=there) for row in rows]
            lifted = LIFT(*xs, tl.broadcast_to(TO_INDEX(place - origin), xs[0].shape))
            lanes = COMBINE(*lanes, *OR_IDENTITY(there, *lifted))
        scanned = tl.associative_scan(lanes, 0, COMBINE)
        state = COMBINE(*state, *[last_of(s, LANES) for s in scanned])
    return state


def store_nothing(
    offsets_ptr, y_ptrs, y_base, y_step, keep, size, first, last, COLUMNS: tl.constexpr, LOOKED: tl.constexpr
):
    """The projected identity as the result of every empty segment of [first, last)."""
    for at in range(first, last, LOOKED):
        segment = at + tl.arange(0, LOOKED)
        there = segment < last
        begin = clamped(tl.load(offsets_ptr + segment, mask=there, other=0), size)
        end = clamped(tl.load(offsets_ptr + segment + 1, mask=there, other=0), size)
        empty = there & (end <= begin)
        if tl.reduce(empty.to(tl.int32), 0, either) > 0:
            mask = empty[:, None] & keep
            offset = y_base + segment[:, None] * y_step
            store_results(y_ptrs, offset, mask, IDENTITY((LOOKED, COLUMNS)), False)


def segment_columns(
    inputs, offsets_ptr, y_ptrs, partial_ptrs, closing_ptrs, y_outer, y_step, outer_sizes, y_column, columns, size, segments,
    chunks, outputs, blocks, COLUMNS: tl.constexpr, LANES: tl.constexpr, STEPS: tl.constexpr, CHUNK: tl.constexpr,
    LOOKED: tl.constexpr, NARROW: tl.constexpr, ACROSS: tl.constexpr, SPLIT: tl.constexpr, RELEASE: tl.constexpr,
):  # fmt: skip
    """Fold the segments of COLUMNS neighbouring columns by equal shares of their rows.

    A program owns rows [chunk * CHUNK, (chunk + 1) * CHUNK) of its columns and walks them from border to border, with a state
    a column. NARROW: rows begin between vectors. ACROSS: as in `fold_rows`. Reads and writes as `segment_rows` does.
    """
    if RELEASE:
        gdc_launch_dependents()
    pid = tl.program_id(0)
    block = (pid % blocks).to(tl.int64)
    chunk = (pid // blocks % chunks).to(tl.int64)
    outer = (pid // blocks // chunks).to(tl.int64)
    column = block * COLUMNS + tl.arange(0, COLUMNS)
    mask = column < columns
    keep = mask[None, :]
    start = chunk * CHUNK
    stop = tl.minimum(start + CHUNK, size)
    rows = [(x.pointer + outer_offset(outer, outer_sizes, x.outer) + (column * x.column)[None, :], x.step) for x in inputs]
    y_base = outer_offset(outer, outer_sizes, y_outer) + column * y_column
    output = outer * columns + column
    first = count_below(offsets_ptr, segments + 1, start, LOOKED)
    first = tl.where(chunk == 0, 0, first)
    place = first + count_below(offsets_ptr + first, segments + 1 - first, start + 1, LOOKED)
    last = place + count_below(offsets_ptr + place, segments + 1 - place, stop, LOOKED)
    last = tl.where(chunk == chunks - 1, segments, tl.minimum(last, segments))
    if SPLIT:
        if pid % blocks == 0 and outer == 0:
            offset = clamped(tl.load(offsets_ptr + first, mask=first <= segments, other=0), size)
            crossing = (first > 0) & (first <= segments) & (offset > start) & (offset <= stop)
            tl.store(closing_ptrs[0] + chunk, tl.where(crossing, first - 1, -1).to(tl.int64))
    state = IDENTITY((COLUMNS,))
    at = start
    while at < stop:
        segment = place - 1
        offset = clamped(tl.load(offsets_ptr + place, mask=place <= segments, other=0), size)
        origin = clamped(tl.load(offsets_ptr + segment, mask=segment >= 0, other=0), size)
        closes = (place <= segments) & (offset <= stop)
        # Beyond `at` in any case: offsets that do not ascend must not keep the program from its end.
        end = tl.maximum(tl.where(closes, offset, stop), at + 1)
        state = fold_rows(rows, at, end, origin, keep, COLUMNS, LANES, STEPS, NARROW, ACROSS)
        store_results(y_ptrs, y_base + segment * y_step, mask & closes & (segment >= first), state, False)
        if SPLIT:
            store_state(partial_ptrs, chunk * outputs + output, mask & closes & (segment < first), state)
        state = OR_IDENTITY(tl.broadcast_to(closes == 0, (COLUMNS,)), *state)
        at = end
        place = place + 1
        following = clamped(tl.load(offsets_ptr + place, mask=place <= segments, other=0), size)
        if (place <= segments) & (following <= at):
            place = place + count_below(offsets_ptr + place, segments + 1 - place, at + 1, LOOKED)
    if SPLIT:
        store_state(partial_ptrs, (chunks + chunk) * outputs + output, mask, state)
    store_nothing(offsets_ptr, y_ptrs, y_base[None, :], y_step, keep, size, first, last, COLUMNS, LOOKED)


def segment_whole(
    inputs, offsets_ptr, y_ptrs, kept_ptrs, y_outer, y_step, outer_sizes, size, segments,
    LANES: tl.constexpr, RUN: tl.constexpr, LEVELS: tl.constexpr,
):  # fmt: skip
    """Fold one segment of one row from its own beginning: bits depend on the segment's elements alone.

    A program owns the segment and walks it in tiles of LANES runs of RUN = 2 ** LEVELS neighbours, with one state. Writes its
    result, and to `kept_ptrs`, if there are any, its state.
    """
    pid = tl.program_id(0)
    segment = (pid % segments).to(tl.int64)
    outer = (pid // segments).to(tl.int64)
    begin = clamped(tl.load(offsets_ptr + segment), size)
    end = clamped(tl.load(offsets_ptr + segment + 1), size)
    rows = [(x.pointer + outer_offset(outer, outer_sizes, x.outer), x.step) for x in inputs]
    state = IDENTITY(())
    for at in range(begin, end, LANES * RUN):
        places = at + (tl.arange(0, LANES) * RUN)[:, None] + tl.arange(0, RUN)[None, :]
        xs = load_runs(rows, places, places < end)
        lifted = LIFT(*xs, TO_INDEX(places - begin))
        runs = tree([s for s in OR_IDENTITY(places < end, *lifted)], LANES, RUN, LEVELS)
        scanned = tl.associative_scan(COMBINE(*IDENTITY((LANES,)), *runs), 0, COMBINE)
        state = COMBINE(*state, *[last_of(s, LANES) for s in scanned])
    y_place = outer_offset(outer, outer_sizes, y_outer) + segment * y_step
    store_results(y_ptrs, y_place, True, state, False)
    store_state(kept_ptrs, pid, True, state)
