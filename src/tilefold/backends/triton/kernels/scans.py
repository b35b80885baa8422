"""The kernels of scans: every prefix of every line, one tile after another, or by many programs at once.

A line is a row or a column: the elements that meet. A tile is NUMBER chunks of CHUNK neighbours of each of LINES lines; a
thread has whole chunks, in registers. A tensor is [LINES, NUMBER] (BY_ROWS: a line's elements are neighbours in memory) or
[NUMBER, LINES] (neighbours are other lines), and there is one for each place in a chunk; a state is a tuple with one tensor
[LINES] a field. A tensor is read and written with its dims the other way round (`turned`): neighbouring threads then have
neighbours in memory, whatever their vectors.

A thread combines its chunk's elements, `tl.associative_scan` scans the chunks' states, and from the state before its chunk
the thread meets the elements again and writes what it has on the way: two combines an element, whatever is exchanged between
threads is by chunks, and only elements stay in registers. A reverse scan walks tiles, chunks and places from the last:
vectors stay vectors. An exclusive scan writes what it has before it meets an element.

Arguments:
    inputs         one record an input: (pointer, outer steps, line step, step along the line), in elements
    inits          one record a field of the state before each line: (pointer, outer steps, line step)
    y_ptrs         one pointer a result; y_outer, y_line, y_step: their steps
    s_ptrs         one pointer a field of the state after each line; s_outer, s_line: their steps
    outer_sizes    dims of lines but the last: walked by whole programs
    lines, length  of the last dim of lines, and of a line

Generated beside those of folds: AS_STATE (a tuple of fields, in registers' dtypes), SELECT (of two states), WORDS (a state as
64-bit words whose upper half is 1, so that none is 0) and OF_WORDS (back), WORDS_AT (those in memory), WORDS_AGAIN (the same
after a pause), FLAGS (whether all are there); and where SUMS, the functions of `algebra.Sums`.
"""

import triton.language as tl

from tilefold.backends.triton.kernels.tiles import outer_offset


def over_tile(x, BY_ROWS: tl.constexpr):
    """Something of each line over a tile."""
    return x[:, None] if BY_ROWS else x[None, :]


def of_lines(x, BY_ROWS: tl.constexpr):
    """Something of each line over a tile as it is read and written."""
    return x[:, None] if BY_ROWS == LANES_LAST else x[None, :]


def of_chunks(x, BY_ROWS: tl.constexpr):
    """Something of each chunk over a tile as it is read and written."""
    return x[None, :] if BY_ROWS == LANES_LAST else x[:, None]


def turned(x):
    """A tile as it is read as one that is computed with, or back: nothing moves.

    Triton gives threads to the vectors of an access, and then to its dims from the left (since 3.7 from the right), though
    the next vectors in memory are a row's next chunks, or the next columns.
    """
    return x if LANES_LAST else tl.trans(x)


def of_line(at, span, BY_ROWS: tl.constexpr):
    """Whether places of a tile are of the line, which begins at span[0] of them where it need not begin at the first."""
    if len(span) == 1:
        counts = at < span[0]
    else:
        counts = (at >= over_tile(span[0], BY_ROWS)) & (at < over_tile(span[1], BY_ROWS))
    return counts


def whole_vectors(at, span, BY_ROWS: tl.constexpr):
    """Whether the vectors that places are of lie in the line: on both sides, at its begin alone, at its end alone."""
    vector = at // span[2] * span[2]
    begin, end = of_lines(span[0], BY_ROWS)[:, :, None], of_lines(span[1], BY_ROWS)[:, :, None]
    return (vector >= begin) & (vector + span[2] <= end), at >= begin, at < end


def near_lines(LINES: tl.constexpr, RUN: tl.constexpr, BY_ROWS: tl.constexpr):
    """Numbers of a program's lines; of columns a thread takes RUN neighbours, and then has all of their elements."""
    line = tl.arange(0, LINES)
    if not BY_ROWS:
        line = tl.max_contiguous(line, RUN)
    return line


def chunks_begin(base, NUMBER: tl.constexpr, CHUNK: tl.constexpr, REVERSE: tl.constexpr):
    """Where the NUMBER chunks of a tile begin along the line, in the order of the scan; the tile begins at `base`."""
    number = tl.arange(0, NUMBER)
    if REVERSE:
        number = NUMBER - 1 - number
    return base + number * CHUNK


def either_bits(a, b):
    """The bits of both."""
    return a | b


def both_bits(a, b):
    """The bits that both have."""
    return a & b


def last_slot(s, LENGTH: tl.constexpr, BY_ROWS: tl.constexpr):
    """The last slot of every line, as bits: a sum with zeros would lose the sign of a zero."""
    axis: tl.constexpr = 1 if BY_ROWS else 0
    slot = tl.arange(0, LENGTH)
    last = (slot[None, :] if BY_ROWS else slot[:, None]) == LENGTH - 1
    if s.dtype.is_floating():
        kind: tl.constexpr = tl.int64 if s.dtype.primitive_bitwidth == 64 else tl.int32
        picked = tl.reduce(tl.where(last, s.to(kind, bitcast=True), 0), axis, either_bits).to(s.dtype, bitcast=True)
    else:
        picked = tl.reduce(tl.where(last, s, s ^ s), axis, either_bits)
    return picked


def last_slots(state, LENGTH: tl.constexpr, BY_ROWS: tl.constexpr):
    """The state at the last slot of every line."""
    return AS_STATE(*[last_slot(s, LENGTH, BY_ROWS) for s in state])


def lines_begin(inputs, outer, outer_sizes, line):
    """(pointers to each line's first element, step along it), an input."""
    return [(x[0] + outer_offset(outer, outer_sizes, x[1]) + line * x[2], x[3]) for x in inputs]


def aligned_rows(inputs, outer, outer_sizes, line, y_begin, length, ALIGN: tl.constexpr):
    """Rows from the multiple of ALIGN elements before each: `lines_begin`, where results begin, and a tile's span.

    All inputs and results begin as many elements behind such a multiple.
    """
    rows = [
        (x[0] + (outer_offset(outer, outer_sizes, x[1]) + line * x[2]) // ALIGN * ALIGN, x[3]) for x in inputs
    ]
    lead = (y_begin % ALIGN).to(tl.int32)
    return rows, y_begin // ALIGN * ALIGN, (lead, lead + length, ALIGN)


def states_before(inits, outer, outer_sizes, line, keep, LINES: tl.constexpr, HAS_INIT: tl.constexpr):
    """The state before each line: the one given, or the identity."""
    if HAS_INIT:
        state = AS_STATE(
            *[tl.load(x[0] + outer_offset(outer, outer_sizes, x[1]) + line * x[2], mask=keep, other=0) for x in inits]
        )
    else:
        state = IDENTITY((LINES,))
    return state


def in_halves(x, LENGTH: tl.constexpr):
    """What a thread holds along the last dim, one tensor an element, in order."""
    parts = (x,)
    for level in tl.static_range(5):
        if LENGTH >> level > 1:
            halves = ()
            for i in tl.static_range(1 << level):
                a, b = tl.split(
                    tl.trans(tl.reshape(parts[i], (x.shape[0], x.shape[1], 2, LENGTH >> (level + 1))), (0, 1, 3, 2))
                )
                halves = halves + (a, b)
            parts = halves
    elements = ()
    for i in tl.static_range(LENGTH):
        elements = elements + (tl.reshape(parts[i], (x.shape[0], x.shape[1])),)
    return elements


def joined(elements, LENGTH: tl.constexpr):
    """The way back from `in_halves`."""
    parts = ()
    for i in tl.static_range(LENGTH):
        parts = parts + (tl.reshape(elements[i], (elements[i].shape[0], elements[i].shape[1], 1)),)
    for level in tl.static_range(5):
        if LENGTH >> level > 1:
            pairs = ()
            for i in tl.static_range(LENGTH >> (level + 1)):
                a = parts[2 * i]
                pair = tl.trans(tl.join(a, parts[2 * i + 1]), (0, 1, 3, 2))
                pairs = pairs + (tl.reshape(pair, (a.shape[0], a.shape[1], 2 << level)),)
            parts = pairs
    return parts[0]


def tile_elements(
    rows, begin, keep, span, BY_ROWS: tl.constexpr, RUN: tl.constexpr, CHUNK: tl.constexpr,
    MASKED: tl.constexpr, MASK_LINES: tl.constexpr,
):  # fmt: skip
    """A tile's elements: of each place in a chunk, in memory's order, a tensor of chunks an input.

    Those that are not of the line are undefined.
    """
    found = ()
    if BY_ROWS:
        for k in tl.static_range(CHUNK // RUN):
            at = of_chunks(begin, BY_ROWS)[:, :, None] + k * RUN + tl.arange(0, RUN)[None, None, :]
            vectors = ()
            for i in tl.static_range(len(rows)):
                pointers = of_lines(rows[i][0], BY_ROWS)[:, :, None] + at * rows[i][1]
                # A vector that is the line's in part is read whole.
                if MASKED:
                    if len(span) == 1:
                        mask = tl.broadcast_to(at < span[0], pointers.shape)
                    else:
                        mask = at // RUN * RUN < of_lines(span[1], BY_ROWS)[:, :, None]
                    if MASK_LINES:
                        mask = mask & of_lines(keep, BY_ROWS)[:, :, None]
                    x = tl.load(pointers, mask=mask)
                elif MASK_LINES:
                    x = tl.load(pointers, mask=tl.broadcast_to(of_lines(keep, BY_ROWS)[:, :, None], pointers.shape))
                else:
                    x = tl.load(pointers)
                vectors = vectors + (in_halves(x, RUN),)
            for j in tl.static_range(RUN):
                found = found + ([turned(v[j]) for v in vectors],)
    else:
        for k in tl.static_range(CHUNK):
            at = of_chunks(begin, BY_ROWS) + k
            xs = ()
            for i in tl.static_range(len(rows)):
                pointers = of_lines(rows[i][0], BY_ROWS) + at * rows[i][1]
                if MASKED and MASK_LINES:
                    x = tl.load(pointers, mask=(at < span[0]) & of_lines(keep, BY_ROWS))
                elif MASKED:
                    x = tl.load(pointers, mask=tl.broadcast_to(at < span[0], pointers.shape))
                elif MASK_LINES:
                    x = tl.load(pointers, mask=tl.broadcast_to(of_lines(keep, BY_ROWS), pointers.shape))
                else:
                    x = tl.load(pointers)
                xs = xs + (turned(x),)
            found = found + (xs,)
    return found


def lifted(
    found, begin, keep, span, TURN: tl.constexpr, CHUNK: tl.constexpr, BY_ROWS: tl.constexpr, REVERSE: tl.constexpr,
    MASKED: tl.constexpr, MASK_LINES: tl.constexpr,
):  # fmt: skip
    """The elements that are number TURN of each chunk as states: what is not of the line is the identity."""
    PLACE: tl.constexpr = CHUNK - 1 - TURN if REVERSE else TURN
    xs = found[PLACE]
    at = begin[None, :] + PLACE if BY_ROWS else begin[:, None] + PLACE
    place = at if len(span) == 1 else at - over_tile(span[0], BY_ROWS)
    state = LIFT(*xs, tl.broadcast_to(TO_INDEX(place), xs[0].shape))
    if MASKED:
        mask = tl.broadcast_to(of_line(at, span, BY_ROWS), xs[0].shape)
        if MASK_LINES:
            mask = mask & over_tile(keep, BY_ROWS)
        state = OR_IDENTITY(mask, *state)
    return AS_STATE(*[tl.broadcast_to(s, xs[0].shape) for s in state])


def folded_chunks(
    found, begin, keep, span, CHUNK: tl.constexpr, BY_ROWS: tl.constexpr, REVERSE: tl.constexpr, MASKED: tl.constexpr,
    MASK_LINES: tl.constexpr,
):  # fmt: skip
    """The state of each chunk's elements."""
    state = lifted(found, begin, keep, span, 0, CHUNK, BY_ROWS, REVERSE, MASKED, MASK_LINES)
    for u in tl.static_range(1, CHUNK):
        met = lifted(found, begin, keep, span, u, CHUNK, BY_ROWS, REVERSE, MASKED, MASK_LINES)
        state = AS_STATE(*COMBINE(*state, *met))
    return state


def chunk_base(
    found, begin, span, TURN: tl.constexpr, CHUNK: tl.constexpr, BY_ROWS: tl.constexpr, REVERSE: tl.constexpr,
    MASKED: tl.constexpr,
):  # fmt: skip
    """The base of the elements that are number TURN of each chunk, and whether they are of the line (where MASKED)."""
    PLACE: tl.constexpr = CHUNK - 1 - TURN if REVERSE else TURN
    base = BASE(*found[PLACE])[0]
    if MASKED:
        at = begin[None, :] + PLACE if BY_ROWS else begin[:, None] + PLACE
        counts = tl.broadcast_to(of_line(at, span, BY_ROWS), base.shape)
        base = tl.where(counts, base, NO_BASE(base)[0])
    else:
        counts = base == base
    return base, counts


def chunk_term(
    found, base, begin, span, TURN: tl.constexpr, CHUNK: tl.constexpr, BY_ROWS: tl.constexpr, REVERSE: tl.constexpr,
    MASKED: tl.constexpr,
):  # fmt: skip
    """The terms of the elements that are number TURN of each chunk."""
    PLACE: tl.constexpr = CHUNK - 1 - TURN if REVERSE else TURN
    term = TERM(*found[PLACE], base)[0]
    if MASKED:
        at = begin[None, :] + PLACE if BY_ROWS else begin[:, None] + PLACE
        term = tl.where(tl.broadcast_to(of_line(at, span, BY_ROWS), term.shape), term, 0.0)
    return term


def summed_chunks(
    found, begin, span, CHUNK: tl.constexpr, BY_ROWS: tl.constexpr, REVERSE: tl.constexpr, MASKED: tl.constexpr,
):  # fmt: skip
    """The state of each chunk's elements by `algebra.Sums`; of each chunk its base, that of its first element, all terms.

    And whether it has an element (where MASKED).
    """
    first, some = chunk_base(found, begin, span, 0, CHUNK, BY_ROWS, REVERSE, MASKED)
    base = first
    for u in tl.static_range(1, CHUNK):
        one, counts = chunk_base(found, begin, span, u, CHUNK, BY_ROWS, REVERSE, MASKED)
        base = JOINED(base, one)[0]
        if MASKED:
            first = tl.where(some, first, one)
            some = some | counts
    total = chunk_term(found, base, begin, span, 0, CHUNK, BY_ROWS, REVERSE, MASKED)
    terms = (total,)
    for u in tl.static_range(1, CHUNK):
        term = chunk_term(found, base, begin, span, u, CHUNK, BY_ROWS, REVERSE, MASKED)
        terms = terms + (term,)
        total = total + term
    return AS_STATE(*TOTAL(base, total)), (base, first, terms, some)


def scanned_chunks(
    found, begin, keep, span, NUMBER: tl.constexpr, CHUNK: tl.constexpr, BY_ROWS: tl.constexpr,
    REVERSE: tl.constexpr, EXCLUSIVE: tl.constexpr, MASKED: tl.constexpr, MASK_LINES: tl.constexpr, SUMS: tl.constexpr,
):  # fmt: skip
    """The state of each chunk of a tile after those before it, and that of those before it alone; its sums.

    Both by one scan: (a, what is before its last chunk) and (b, the same) make (a then b, a then what is before b's last).
    """
    sums = ()
    if SUMS:
        state, sums = summed_chunks(found, begin, span, CHUNK, BY_ROWS, REVERSE, MASKED)
    else:
        state = folded_chunks(found, begin, keep, span, CHUNK, BY_ROWS, REVERSE, MASKED, MASK_LINES)
    earlier = state
    if NUMBER > 1 and (CHUNK > 1 or EXCLUSIVE):
        both = tl.associative_scan(
            BOTH(*state, *IDENTITY(state[0].shape)), 1 if BY_ROWS else 0, COMBINE_BOTH
        )
        state = LATTER(*both)
        earlier = FORMER(*both)
    elif NUMBER > 1:
        state = tl.associative_scan(state, 1 if BY_ROWS else 0, COMBINE)
    return state, earlier, sums


def before_chunks(carry, earlier, NUMBER: tl.constexpr, BY_ROWS: tl.constexpr):
    """The state before each chunk: that before the tile, and the chunks before it."""
    given = AS_STATE(*[tl.broadcast_to(over_tile(c, BY_ROWS), earlier[0].shape) for c in carry])
    if NUMBER > 1:
        number = tl.arange(0, NUMBER)
        first = tl.broadcast_to((number[None, :] if BY_ROWS else number[:, None]) == 0, earlier[0].shape)
        given = SELECT(first, *given, *COMBINE(*given, *earlier))
    return given


def store_results(
    y_ptrs, begin, y_begin, y_step, results, keep, span, TURN: tl.constexpr, CHUNK: tl.constexpr, COUNT: tl.constexpr,
    BY_ROWS: tl.constexpr, REVERSE: tl.constexpr, MASKED: tl.constexpr, MASK_LINES: tl.constexpr,
):  # fmt: skip
    """Write COUNT results of each chunk, up to that of number TURN, in memory's order where their elements are."""
    FIRST: tl.constexpr = CHUNK - 1 - TURN if REVERSE else TURN - COUNT + 1
    if BY_ROWS:
        at = of_chunks(begin, BY_ROWS)[:, :, None] + FIRST + tl.arange(0, COUNT)[None, None, :]
        offset = of_lines(y_begin, BY_ROWS)[:, :, None] + at * y_step
        kept = of_lines(keep, BY_ROWS)[:, :, None]
    else:
        at = of_chunks(begin, BY_ROWS) + FIRST
        offset = of_lines(y_begin, BY_ROWS) + at * y_step
        kept = of_lines(keep, BY_ROWS)
    for r in tl.static_range(len(y_ptrs)):
        result = joined([turned(x[r]) for x in results], COUNT) if BY_ROWS else turned(results[0][r])
        if MASKED and len(span) > 1:
            whole, begun, unended = whole_vectors(at, span, BY_ROWS)
            if MASK_LINES:
                begun = begun & kept
                whole = whole & kept
            tl.store(y_ptrs[r] + offset, result, mask=whole)
            tl.store(y_ptrs[r] + offset, result, mask=begun & unended & (whole == 0))
        elif MASKED and MASK_LINES:
            tl.store(y_ptrs[r] + offset, result, mask=(at < span[0]) & kept)
        elif MASKED:
            tl.store(y_ptrs[r] + offset, result, mask=tl.broadcast_to(at < span[0], offset.shape))
        elif MASK_LINES:
            tl.store(y_ptrs[r] + offset, result, mask=tl.broadcast_to(kept, offset.shape))
        else:
            tl.store(y_ptrs[r] + offset, result)


def store_prefixes(
    found, begin, y_ptrs, y_begin, y_step, keep, span, state, CHUNK: tl.constexpr, COUNT: tl.constexpr,
    BY_ROWS: tl.constexpr, REVERSE: tl.constexpr, EXCLUSIVE: tl.constexpr, MASKED: tl.constexpr, MASK_LINES: tl.constexpr,
):  # fmt: skip
    """Walk the chunks from the state before each, and write projected states, COUNT neighbours at once; the state after."""
    results = ()
    for u in tl.static_range(CHUNK):
        met = lifted(found, begin, keep, span, u, CHUNK, BY_ROWS, REVERSE, MASKED, MASK_LINES)
        after = AS_STATE(*COMBINE(*state, *met))
        shown = PROJECT(*state) if EXCLUSIVE else PROJECT(*after)
        shown = [tl.broadcast_to(y, met[0].shape) for y in shown]
        results = (shown,) + results if REVERSE else results + (shown,)
        state = after
        if u % COUNT == COUNT - 1:
            store_results(
                y_ptrs, begin, y_begin, y_step, results, keep, span, u, CHUNK, COUNT, BY_ROWS, REVERSE, MASKED, MASK_LINES
            )
            results = ()
    return state


def store_scanned(
    y_ptrs, begin, y_begin, y_step, keep, span, carry, state, BY_ROWS: tl.constexpr, MASKED: tl.constexpr,
    MASK_LINES: tl.constexpr,
):  # fmt: skip
    """Write the projected states of chunks of one element: what they hold already meets the state before the tile."""
    given = [tl.broadcast_to(over_tile(c, BY_ROWS), state[0].shape) for c in carry]
    shown = [tl.broadcast_to(y, state[0].shape) for y in PROJECT(*COMBINE(*given, *state))]
    store_results(
        y_ptrs, begin, y_begin, y_step, (shown,), keep, span, 0, 1, 1, BY_ROWS, False, MASKED, MASK_LINES
    )


def store_sums(
    rows, sums, begin, y_ptrs, y_begin, y_step, keep, span, state, CHUNK: tl.constexpr, COUNT: tl.constexpr,
    RUN: tl.constexpr, BY_ROWS: tl.constexpr, REVERSE: tl.constexpr, MASKED: tl.constexpr, MASK_LINES: tl.constexpr,
):  # fmt: skip
    """`store_prefixes` of sums: chunks that these do not hold are walked as others are, in tiles that have such.

    Elements are read again for it, so that no register holds them until then.
    """
    base, first, terms, some = sums
    start, scale, top = REBASED(*state, base)
    near = NEAR(*state, first, top)[0] != 0
    if MASKED:
        near = near | (some == 0)
    if MASK_LINES:
        near = near | tl.broadcast_to(over_tile(keep, BY_ROWS) == 0, near.shape)
    results = ()
    total = start
    for u in tl.static_range(CHUNK):
        total = total + scale * terms[u]
        results = results + (SHOWN(top, total),)
    if tl.reduce(near.to(tl.int32), None, both_bits) == 0:
        found = tile_elements(rows, begin, keep, span, BY_ROWS, RUN, CHUNK, MASKED, MASK_LINES)
        walked = ()
        for u in tl.static_range(CHUNK):
            met = lifted(found, begin, keep, span, u, CHUNK, BY_ROWS, REVERSE, MASKED, MASK_LINES)
            state = AS_STATE(*COMBINE(*state, *met))
            walked = walked + (EITHER(near, *results[u], *PROJECT(*state)),)
        results = walked
    row = ()
    for u in tl.static_range(CHUNK):
        row = (results[u],) + row if REVERSE else row + (results[u],)
        if u % COUNT == COUNT - 1:
            store_results(
                y_ptrs, begin, y_begin, y_step, row, keep, span, u, CHUNK, COUNT, BY_ROWS, REVERSE, MASKED, MASK_LINES
            )
            row = ()


def store_chunks(
    rows, found, sums, state, earlier, before, begin, y_ptrs, y_begin, y_step, keep, span, NUMBER: tl.constexpr,
    CHUNK: tl.constexpr, COUNT: tl.constexpr, RUN: tl.constexpr, BY_ROWS: tl.constexpr, REVERSE: tl.constexpr,
    EXCLUSIVE: tl.constexpr, MASKED: tl.constexpr, MASK_LINES: tl.constexpr, SUMS: tl.constexpr,
):  # fmt: skip
    """Write a tile whose chunks were scanned (`scanned_chunks`), from the state of each line before it."""
    if SUMS:
        store_sums(
            rows, sums, begin, y_ptrs, y_begin, y_step, keep, span, before_chunks(before, earlier, NUMBER, BY_ROWS),
            CHUNK, COUNT, RUN, BY_ROWS, REVERSE, MASKED, MASK_LINES,
        )  # fmt: skip
    elif CHUNK == 1 and not EXCLUSIVE:
        store_scanned(y_ptrs, begin, y_begin, y_step, keep, span, before, state, BY_ROWS, MASKED, MASK_LINES)
    else:
        store_prefixes(
            found, begin, y_ptrs, y_begin, y_step, keep, span, before_chunks(before, earlier, NUMBER, BY_ROWS), CHUNK,
            COUNT, BY_ROWS, REVERSE, EXCLUSIVE, MASKED, MASK_LINES,
        )  # fmt: skip


def store_last(s_ptrs, offset, state, keep):
    """Write the state after each line."""
    for f in tl.static_range(len(s_ptrs)):
        tl.store(s_ptrs[f] + offset, state[f], mask=keep)


def walked_tile(
    rows, found, begin, y_ptrs, y_begin, y_step, keep, span, carry, NUMBER: tl.constexpr, CHUNK: tl.constexpr,
    COUNT: tl.constexpr, RUN: tl.constexpr, BY_ROWS: tl.constexpr, REVERSE: tl.constexpr, EXCLUSIVE: tl.constexpr,
    MASKED: tl.constexpr, MASK_LINES: tl.constexpr, SUMS: tl.constexpr,
):  # fmt: skip
    """Scan and write a tile of elements; the state after it."""
    if NUMBER == 1 and not SUMS:
        given = AS_STATE(*[tl.broadcast_to(over_tile(c, BY_ROWS), found[0][0].shape) for c in carry])
        after = store_prefixes(
            found, begin, y_ptrs, y_begin, y_step, keep, span, given, CHUNK, COUNT, BY_ROWS, REVERSE, EXCLUSIVE, MASKED,
            MASK_LINES,
        )  # fmt: skip
        carry = last_slots(after, NUMBER, BY_ROWS)
    else:
        state, earlier, sums = scanned_chunks(
            found, begin, keep, span, NUMBER, CHUNK, BY_ROWS, REVERSE, EXCLUSIVE, MASKED, MASK_LINES, SUMS
        )
        store_chunks(
            rows, found, sums, state, earlier, carry, begin, y_ptrs, y_begin, y_step, keep, span, NUMBER, CHUNK, COUNT,
            RUN, BY_ROWS, REVERSE, EXCLUSIVE, MASKED, MASK_LINES, SUMS,
        )  # fmt: skip
        # The tile's own state meets the carry, so that the way from tile to tile is one combine.
        carry = AS_STATE(*COMBINE(*carry, *last_slots(state, NUMBER, BY_ROWS)))
    return carry


def walked_place(
    rows, y_ptrs, y_begin, y_step, base, keep, span, carry, NUMBER: tl.constexpr, CHUNK: tl.constexpr,
    COUNT: tl.constexpr, RUN: tl.constexpr, BY_ROWS: tl.constexpr, REVERSE: tl.constexpr, EXCLUSIVE: tl.constexpr,
    MASKED: tl.constexpr, MASK_LINES: tl.constexpr, SUMS: tl.constexpr,
):  # fmt: skip
    """Read, scan and write the tile that begins at `base`; the state after it."""
    begin = chunks_begin(base, NUMBER, CHUNK, REVERSE)
    found = tile_elements(rows, begin, keep, span, BY_ROWS, RUN, CHUNK, MASKED, MASK_LINES)
    return walked_tile(
        rows, found, begin, y_ptrs, y_begin, y_step, keep, span, carry, NUMBER, CHUNK, COUNT, RUN, BY_ROWS, REVERSE,
        EXCLUSIVE, MASKED, MASK_LINES, SUMS,
    )  # fmt: skip


def scan_walked(
    inputs, inits, y_ptrs, s_ptrs, y_outer, y_line, y_step, s_outer, s_line, outer_sizes, lines, length, line_blocks,
    LINES: tl.constexpr, NUMBER: tl.constexpr, CHUNK: tl.constexpr, COUNT: tl.constexpr, BY_ROWS: tl.constexpr,
    RUN: tl.constexpr, REVERSE: tl.constexpr, EXCLUSIVE: tl.constexpr, HAS_INIT: tl.constexpr, MASK_LINES: tl.constexpr,
    WHOLE: tl.constexpr, PART: tl.constexpr, AHEAD: tl.constexpr, WIDE: tl.constexpr, SUMS: tl.constexpr,
    ALIGN: tl.constexpr, HEAD: tl.constexpr,
):  # fmt: skip
    """Scan lines from end to end.

    A program owns LINES neighbouring lines, all of their elements. It reads and writes tiles of NUMBER chunks of CHUNK
    elements of each, with the state of what came before them in registers: one in part (HEAD, where rows are aligned),
    WHOLE tiles (0: none, 1: one, 2: any number), and one in PART behind them in memory (which a reverse scan meets first).
    AHEAD: the next whole tile is read before one is scanned; the last one twice.
    """
    LENGTH: tl.constexpr = NUMBER * CHUNK
    pid = tl.program_id(0).to(tl.int64)
    outer = pid // line_blocks
    line = pid % line_blocks * LINES + near_lines(LINES, RUN, BY_ROWS)
    keep = line < lines
    rows = lines_begin(inputs, outer, outer_sizes, line)
    y_begin = outer_offset(outer, outer_sizes, y_outer) + line * y_line
    if WIDE:
        length = length.to(tl.int64)
    if ALIGN > 1:
        rows, y_begin, span = aligned_rows(inputs, outer, outer_sizes, line, y_begin, length, ALIGN)
    else:
        span = (length,)
    carry = states_before(inits, outer, outer_sizes, line, keep, LINES, HAS_INIT)
    start = 0
    whole = length // LENGTH * LENGTH
    if HEAD:  # then there is one line
        start = LENGTH
        whole = tl.maximum(tl.reduce(span[1], 0, either_bits) // LENGTH * LENGTH, LENGTH)
    if PART and REVERSE:
        carry = walked_place(
            rows, y_ptrs, y_begin, y_step, whole, keep, span, carry, NUMBER, CHUNK, COUNT, RUN, BY_ROWS, REVERSE,
            EXCLUSIVE, True, MASK_LINES, SUMS,
        )  # fmt: skip
    if HEAD and not REVERSE:
        carry = walked_place(
            rows, y_ptrs, y_begin, y_step, 0, keep, span, carry, NUMBER, CHUNK, COUNT, RUN, BY_ROWS, REVERSE, EXCLUSIVE,
            True, MASK_LINES, SUMS,
        )  # fmt: skip
    if WHOLE > 1 and AHEAD:
        begin = chunks_begin(whole - LENGTH if REVERSE else start, NUMBER, CHUNK, REVERSE)
        found = tile_elements(rows, begin, keep, span, BY_ROWS, RUN, CHUNK, False, MASK_LINES)
        for k in range(start, whole, LENGTH):
            begin = chunks_begin(start + whole - LENGTH - k if REVERSE else k, NUMBER, CHUNK, REVERSE)
            ahead = tl.minimum(k + LENGTH, whole - LENGTH)
            later = tile_elements(
                rows, chunks_begin(start + whole - LENGTH - ahead if REVERSE else ahead, NUMBER, CHUNK, REVERSE), keep, span,
                BY_ROWS, RUN, CHUNK, False, MASK_LINES,
            )  # fmt: skip
            carry = walked_tile(
                rows, found, begin, y_ptrs, y_begin, y_step, keep, span, carry, NUMBER, CHUNK, COUNT, RUN, BY_ROWS, REVERSE,
                EXCLUSIVE, False, MASK_LINES, SUMS,
            )  # fmt: skip
            found = later
    elif WHOLE > 1:
        for k in range(start, whole, LENGTH):
            carry = walked_place(
                rows, y_ptrs, y_begin, y_step, start + whole - LENGTH - k if REVERSE else k, keep, span, carry, NUMBER, CHUNK,
                COUNT, RUN, BY_ROWS, REVERSE, EXCLUSIVE, False, MASK_LINES, SUMS,
            )  # fmt: skip
    elif WHOLE:
        carry = walked_place(
            rows, y_ptrs, y_begin, y_step, 0, keep, span, carry, NUMBER, CHUNK, COUNT, RUN, BY_ROWS, REVERSE, EXCLUSIVE,
            False, MASK_LINES, SUMS,
        )  # fmt: skip
    if HEAD and REVERSE:
        carry = walked_place(
            rows, y_ptrs, y_begin, y_step, 0, keep, span, carry, NUMBER, CHUNK, COUNT, RUN, BY_ROWS, REVERSE, EXCLUSIVE,
            True, MASK_LINES, SUMS,
        )  # fmt: skip
    if PART and not REVERSE:
        carry = walked_place(
            rows, y_ptrs, y_begin, y_step, whole, keep, span, carry, NUMBER, CHUNK, COUNT, RUN, BY_ROWS, REVERSE,
            EXCLUSIVE, True, MASK_LINES, SUMS,
        )  # fmt: skip
    if len(s_ptrs) > 0:
        store_last(s_ptrs, outer_offset(outer, outer_sizes, s_outer) + line * s_line, carry, keep)


def publish(words_ptr, place, state, keep, stride):
    """Make a state known: each of its words says by itself that it is there, so no order among them is needed."""
    words = WORDS(*state)
    for w in tl.static_range(len(words)):
        tl.atomic_xchg(words_ptr + (w * stride + place), words[w], mask=keep, sem="relaxed")


def wait_for(words, words_ptr, place, wanted, stride, NUMBER: tl.constexpr, WARPS: tl.constexpr):
    """The states that others make known, `words` being a first look at them; where none is wanted, anything.

    Where several warps, but not each, hold a copy of one of the NUMBER words, they do not find it at the same time and their
    answers meet: they look once more when one of them has found it.
    """
    while tl.reduce(FLAGS(*words), None, both_bits) == 0:
        words = WORDS_AGAIN(words_ptr, place, wanted, stride)
    if NUMBER > 32 and NUMBER < 256 * WARPS and WARPS > 1:  # a thread has up to 8 neighbours
        words = WORDS_AT(words_ptr, place, wanted, stride)
    return OF_WORDS(*words)


def places_before(first, count, line, keep, NUMBER: tl.constexpr, LINES: tl.constexpr):
    """(places, which of them are wanted) of the states [first, first + count), LINES apart: [NUMBER, LINES]."""
    number = tl.arange(0, NUMBER)[:, None]
    wanted = (number < count) & keep[None, :]
    return tl.where(wanted, (first + number) * LINES + line[None, :], 0), wanted


def met_before(
    words, words_ptr, place, wanted, stride, NUMBER: tl.constexpr, LINES: tl.constexpr, WARPS: tl.constexpr
):
    """Published states combined in one tree, whichever is there first."""
    state = OR_IDENTITY(wanted, *wait_for(words, words_ptr, place, wanted, stride, NUMBER * LINES, WARPS))
    return last_slots(tl.associative_scan(state, 0, COMBINE), NUMBER, False)


def scan_tiles(
    inputs, inits, y_ptrs, s_ptrs, words_ptr, y_outer, y_line, y_step, s_outer, s_line, outer_sizes, lines, length,
    line_blocks, blocks, tiles,
    LINES: tl.constexpr, NUMBER: tl.constexpr, CHUNK: tl.constexpr, COUNT: tl.constexpr, BY_ROWS: tl.constexpr,
    RUN: tl.constexpr, REVERSE: tl.constexpr, EXCLUSIVE: tl.constexpr, HAS_INIT: tl.constexpr, MASK_LINES: tl.constexpr,
    PART: tl.constexpr, GROUP: tl.constexpr, GROUPS: tl.constexpr, WORD_COUNT: tl.constexpr, WARPS: tl.constexpr,
    WIDE: tl.constexpr, SUMS: tl.constexpr, ALIGN: tl.constexpr, AGAIN: tl.constexpr,
):  # fmt: skip
    """Scan lines by many programs at once: each element is read from memory once, one launch.

    A program owns a tile of LINES lines, which stays in registers. A counter in memory gives it the next share in order, so
    that it waits for programs only that have begun. It makes its share's state known and looks back. The state before
    share t is

        carry of its block of GROUP * GROUPS shares,  states of the block's earlier groups,  of the group's earlier shares

    where each list is combined in one tree, whatever is there first: bits depend on numbers of shares alone, not on time. The
    last share of a group makes the group's state known, the last one of a block the next block's carry. AGAIN: elements are
    not kept until then but read again, from the L2.

    `words_ptr` holds zeros: the counter, then the shares' words, the groups' and the blocks' carries, each [line blocks,
    number, LINES] and so many times as a state has words.
    """
    pid = tl.atomic_add(words_ptr, 1, sem="relaxed")
    share = pid // blocks
    block = pid % blocks
    outer = block // line_blocks
    lane = near_lines(LINES, RUN, BY_ROWS)
    line = block % line_blocks * LINES + lane
    keep = line < lines
    rows = lines_begin(inputs, outer, outer_sizes, line)
    y_begin = outer_offset(outer, outer_sizes, y_outer) + line * y_line
    if WIDE:
        length = length.to(tl.int64)
        share = share.to(tl.int64)
    else:
        share = share.to(tl.int32)
    if ALIGN > 1:
        rows, y_begin, span = aligned_rows(inputs, outer, outer_sizes, line, y_begin, length, ALIGN)
    else:
        span = (length,)
    LENGTH: tl.constexpr = NUMBER * CHUNK
    begin = chunks_begin((tiles - 1 - share if REVERSE else share) * LENGTH, NUMBER, CHUNK, REVERSE)
    found = tile_elements(rows, begin, keep, span, BY_ROWS, RUN, CHUNK, PART, MASK_LINES)
    state, earlier, sums = scanned_chunks(
        found, begin, keep, span, NUMBER, CHUNK, BY_ROWS, REVERSE, EXCLUSIVE, PART, MASK_LINES, SUMS
    )
    own = last_slots(state, NUMBER, BY_ROWS)
    groups = (tiles + GROUP - 1) // GROUP
    carries = (groups + GROUPS - 1) // GROUPS
    group = share // GROUP
    big = group // GROUPS
    of_shares = words_ptr + 1
    stride_shares = (blocks * tiles).to(tl.int64) * LINES
    of_groups = of_shares + stride_shares * WORD_COUNT
    stride_groups = (blocks * groups).to(tl.int64) * LINES
    of_carries = of_groups + stride_groups * WORD_COUNT
    stride_carries = (blocks * carries).to(tl.int64) * LINES
    first_share = block.to(tl.int64) * tiles
    first_group = block.to(tl.int64) * groups
    first_carry = block.to(tl.int64) * carries
    since = own
    if GROUP > 1:
        publish(of_shares, (first_share + share) * LINES + lane, own, keep, stride_shares)
        near_place, near_wanted = places_before(
            first_share + group * GROUP, share - group * GROUP, lane, keep, GROUP, LINES
        )
        near = WORDS_AT(of_shares, near_place, near_wanted, stride_shares)
    # A first look at all of them, so that what is there already takes one way to memory.
    if GROUPS > 1:
        far_place, far_wanted = places_before(
            first_group + big * GROUPS, group - big * GROUPS, lane, keep, GROUPS, LINES
        )
        far = WORDS_AT(of_groups, far_place, far_wanted, stride_groups)
    given_wanted = keep & (big > 0)
    given_place = tl.where(given_wanted, (first_carry + big) * LINES + lane, 0)
    given = WORDS_AT(of_carries, given_place, given_wanted, stride_carries)
    if GROUP > 1:
        near = met_before(near, of_shares, near_place, near_wanted, stride_shares, GROUP, LINES, WARPS)
        since = COMBINE(*near, *own)
    if GROUPS > 1:
        if share % GROUP == GROUP - 1:
            publish(of_groups, (first_group + group) * LINES + lane, since, keep, stride_groups)
        far = met_before(far, of_groups, far_place, far_wanted, stride_groups, GROUPS, LINES, WARPS)
    if HAS_INIT:
        start = states_before(inits, outer, outer_sizes, line, keep, LINES, True)
    else:
        start = IDENTITY((LINES,))
    given = wait_for(given, of_carries, given_place, given_wanted, stride_carries, LINES, WARPS)
    before = SELECT(big > 0, *given, *start)
    if GROUPS > 1:
        before = COMBINE(*before, *far)
    beyond = COMBINE(*before, *since)
    if (share % (GROUP * GROUPS) == GROUP * GROUPS - 1) & (share < tiles - 1):
        publish(of_carries, (first_carry + big + 1) * LINES + lane, beyond, keep, stride_carries)
    if GROUP > 1:
        before = COMBINE(*before, *near)
    if AGAIN:
        found = tile_elements(rows, begin, keep, span, BY_ROWS, RUN, CHUNK, PART, MASK_LINES)
        if SUMS:
            sums = summed_chunks(found, begin, span, CHUNK, BY_ROWS, REVERSE, PART)[1]
    store_chunks(
        rows, found, sums, state, earlier, before, begin, y_ptrs, y_begin, y_step, keep, span, NUMBER, CHUNK, COUNT,
        RUN, BY_ROWS, REVERSE, EXCLUSIVE, PART, MASK_LINES, SUMS,
    )  # fmt: skip
    if len(s_ptrs) > 0:
        if share == tiles - 1:
            store_last(s_ptrs, outer_offset(outer, outer_sizes, s_outer) + line * s_line, beyond, keep)
