"""The prefixes of one tile of a scan: the scanned states of its chunks, and the values written from them.

Tiles, chunks and their tensors are as the module `scans` says.
"""

import triton.language as tl

from tilefold.backends.triton.kernels.scan_elements import (
    both_bits,
    chunks_begin,
    joined,
    last_slots,
    lifted,
    mask_of,
    of_chunks,
    of_line,
    of_lines,
    over_places,
    over_tile,
    places,
    read_tile,
    tile_elements,
    turned,
    whole_vectors,
)


def folded_chunks(
    found, begin, keep, span, CHUNK: tl.constexpr, BY_ROWS: tl.constexpr, REVERSE: tl.constexpr, MASKED: tl.constexpr,
    MASK_LINES: tl.constexpr,
):  # fmt: skip
    """The state of each chunk's elements."""
    state = lifted(found, begin, keep, span, 0, CHUNK, BY_ROWS, REVERSE, MASKED, MASK_LINES)
    for u in tl.static_range(1, CHUNK):
        element = lifted(found, begin, keep, span, u, CHUNK, BY_ROWS, REVERSE, MASKED, MASK_LINES)
        state = AS_STATE(*COMBINE(*state, *element))
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


def scanned_chunks(found, begin, keep, span, SCAN: tl.constexpr, MASKED: tl.constexpr):
    """The state of each chunk of a tile after those before it, and that of those before it alone; its sums.

    Both by one scan: (a, what is before its last chunk) and (b, the same) make (a then b, a then what is before b's last).
    """
    sums = ()
    if SCAN.SUMS:
        state, sums = summed_chunks(found, begin, span, SCAN.CHUNK, SCAN.BY_ROWS, SCAN.REVERSE, MASKED)
    else:
        state = folded_chunks(found, begin, keep, span, SCAN.CHUNK, SCAN.BY_ROWS, SCAN.REVERSE, MASKED, SCAN.MASK_LINES)
    earlier = state
    if SCAN.NUMBER > 1 and (SCAN.CHUNK > 1 or SCAN.EXCLUSIVE):
        both = tl.associative_scan(
            BOTH(*state, *IDENTITY(state[0].shape)), 1 if SCAN.BY_ROWS else 0, COMBINE_BOTH
        )
        state = LATTER(*both)
        earlier = FORMER(*both)
    elif SCAN.NUMBER > 1:
        state = tl.associative_scan(state, 1 if SCAN.BY_ROWS else 0, COMBINE)
    return state, earlier, sums


def before_chunks(carry, earlier, NUMBER: tl.constexpr, BY_ROWS: tl.constexpr):
    """The state before each chunk: that before the tile, and the chunks before it."""
    given = AS_STATE(*[tl.broadcast_to(over_tile(c, BY_ROWS), earlier[0].shape) for c in carry])
    if NUMBER > 1:
        number = tl.arange(0, NUMBER)
        first = tl.broadcast_to((number[None, :] if BY_ROWS else number[:, None]) == 0, earlier[0].shape)
        given = SELECT(first, *given, *COMBINE(*given, *earlier))
    return given


def store_in_order(
    y_ptrs, begin, where, y_step, results, span, FIRST: tl.constexpr, COUNT: tl.constexpr, BY_ROWS: tl.constexpr,
    MASKED: tl.constexpr, MASK_LINES: tl.constexpr,
):  # fmt: skip
    """Write COUNT results of each chunk, of its places from FIRST on, in memory's order where their elements are."""
    at = of_chunks(begin, BY_ROWS) + FIRST
    offset = of_lines(where[0], BY_ROWS)
    keep_lines = of_lines(where[1], BY_ROWS)
    if BY_ROWS:
        at = over_places(at, BY_ROWS) + places(COUNT, BY_ROWS)
        offset = over_places(offset, BY_ROWS) + at * y_step
        keep_lines = over_places(keep_lines, BY_ROWS)
    elif COUNT > 1:  # what all places have in common is computed once
        offset = over_places(offset + at * y_step, BY_ROWS) + places(COUNT, BY_ROWS) * y_step
        at = over_places(at, BY_ROWS) + places(COUNT, BY_ROWS)
        keep_lines = over_places(keep_lines, BY_ROWS)
    else:
        offset = offset + at * y_step
    for r in tl.static_range(len(y_ptrs)):
        result = turned(joined([x[r] for x in results], COUNT) if BY_ROWS or COUNT > 1 else results[0][r])
        if LANES_LAST and COUNT > 1 and not BY_ROWS:
            result = tl.trans(result, (2, 0, 1))
        if MASKED and len(span) > 1:
            whole, begun, unended = whole_vectors(at, span, BY_ROWS)
            if MASK_LINES:
                begun = begun & keep_lines
                whole = whole & keep_lines
            tl.store(y_ptrs[r] + offset, result, mask=whole)
            tl.store(y_ptrs[r] + offset, result, mask=begun & unended & (whole == 0))
        else:
            mask = mask_of(at, span[0], keep_lines, offset, MASKED, MASK_LINES)
            tl.store(y_ptrs[r] + offset, result, mask=mask)


def store_turned(
    y_ptrs, begin, where, y_step, results, span, PLACE: tl.constexpr, MASKED: tl.constexpr, MASK_LINES: tl.constexpr,
):  # fmt: skip
    """Write one result of each line where results are neighbours along the other of the lines' two dims."""
    at = begin[:, None] + PLACE
    offset = where[0] + at * y_step
    mask = mask_of(at, span[0], where[1], offset, MASKED, MASK_LINES)
    for r in tl.static_range(len(y_ptrs)):
        result = tl.trans(tl.reshape(results[0][r], (offset.shape[1], offset.shape[0])))
        tl.store(y_ptrs[r] + offset, result, mask=mask)


def store_results(
    y_ptrs, begin, where, y_step, results, span, TURN: tl.constexpr, CHUNK: tl.constexpr, COUNT: tl.constexpr,
    BY_ROWS: tl.constexpr, REVERSE: tl.constexpr, MASKED: tl.constexpr, MASK_LINES: tl.constexpr,
):  # fmt: skip
    """Write COUNT results of each chunk, up to that of number TURN, where `results_begin` says: by lines or the other way."""
    FIRST: tl.constexpr = CHUNK - 1 - TURN if REVERSE else TURN - COUNT + 1
    if len(where[0].shape) == 2:
        store_turned(y_ptrs, begin, where, y_step, results, span, FIRST, MASKED, MASK_LINES)
    else:
        tl.static_assert(COUNT < 64)
        for level in tl.static_range(6):  # as many as a power of two has at once
            if (COUNT >> level) % 2:
                store_in_order(
                    y_ptrs, begin, where, y_step, results[COUNT % (1 << level) : COUNT % (2 << level)], span,
                    FIRST + COUNT % (1 << level), 1 << level, BY_ROWS, MASKED, MASK_LINES,
                )  # fmt: skip


def store_prefixes(found, begin, y_ptrs, where, y_step, keep, span, state, SCAN: tl.constexpr, MASKED: tl.constexpr):
    """Walk the chunks from the state before each, and write projected states, COUNT neighbours at once; the state after."""
    results = ()
    for u in tl.static_range(SCAN.CHUNK):
        element = lifted(found, begin, keep, span, u, SCAN.CHUNK, SCAN.BY_ROWS, SCAN.REVERSE, MASKED, SCAN.MASK_LINES)
        after = AS_STATE(*COMBINE(*state, *element))
        shown = PROJECT(*state) if SCAN.EXCLUSIVE else PROJECT(*after)
        shown = [tl.broadcast_to(y, element[0].shape) for y in shown]
        results = (shown,) + results if SCAN.REVERSE else results + (shown,)
        state = after
        if u % SCAN.COUNT == SCAN.COUNT - 1 or u == SCAN.CHUNK - 1:
            store_results(
                y_ptrs, begin, where, y_step, results, span, u, SCAN.CHUNK, u % SCAN.COUNT + 1, SCAN.BY_ROWS, SCAN.REVERSE,
                MASKED, SCAN.MASK_LINES,
            )  # fmt: skip
            results = ()
    return state


def store_scanned(
    y_ptrs, begin, where, y_step, span, carry, state, BY_ROWS: tl.constexpr, MASKED: tl.constexpr,
    MASK_LINES: tl.constexpr,
):  # fmt: skip
    """Write the projected states of chunks of one element: the state before the tile is combined with each."""
    given = [tl.broadcast_to(over_tile(c, BY_ROWS), state[0].shape) for c in carry]
    shown = [tl.broadcast_to(y, state[0].shape) for y in PROJECT(*COMBINE(*given, *state))]
    store_results(
        y_ptrs, begin, where, y_step, (shown,), span, 0, 1, 1, BY_ROWS, False, MASKED, MASK_LINES
    )


def store_sums(rows, sums, begin, y_ptrs, where, y_step, keep, span, state, SCAN: tl.constexpr, MASKED: tl.constexpr):
    """`store_prefixes` of sums: chunks that these do not hold are walked as others are, in tiles that have such.

    Elements are read again for it, so that no register holds them until then.
    """
    base, first, terms, some = sums
    start, scale, top = REBASED(*state, base)
    near = NEAR(*state, first, top)[0] != 0
    if MASKED:
        near = near | (some == 0)
    if SCAN.MASK_LINES:
        near = near | tl.broadcast_to(over_tile(keep, SCAN.BY_ROWS) == 0, near.shape)
    if tl.reduce(near.to(tl.int32), None, both_bits) == 0:
        store_mixed_sums(rows, base, near, begin, y_ptrs, where, y_step, keep, span, state, start, scale, top, SCAN, MASKED)
    else:
        total = start
        row = ()
        for u in tl.static_range(SCAN.CHUNK):
            total = total + scale * terms[u]
            shown = (SHOWN(top, total),)
            row = shown + row if SCAN.REVERSE else row + shown
            if u % SCAN.COUNT == SCAN.COUNT - 1 or u == SCAN.CHUNK - 1:
                store_results(
                    y_ptrs, begin, where, y_step, row, span, u, SCAN.CHUNK, u % SCAN.COUNT + 1, SCAN.BY_ROWS, SCAN.REVERSE,
                    MASKED, SCAN.MASK_LINES,
                )  # fmt: skip
                row = ()


def store_mixed_sums(
    rows, base, near, begin, y_ptrs, where, y_step, keep, span, state, start, scale, top, SCAN: tl.constexpr,
    MASKED: tl.constexpr,
):  # fmt: skip
    """Write a tile some of whose chunks sums do not hold: these are walked as others are, a few neighbours at a time.

    Elements are read again, in a loop: it is rare, and is to need few registers and little code.
    """
    STEP: tl.constexpr = min(SCAN.CHUNK, 2 * SCAN.RUN) if SCAN.BY_ROWS else 1
    total = start
    for k in range(0, SCAN.CHUNK, STEP):
        part = begin + (SCAN.CHUNK - STEP - k if SCAN.REVERSE else k)
        found = tile_elements(rows, part, keep, span, SCAN.BY_ROWS, SCAN.RUN, SCAN.SHIFT, STEP, MASKED, SCAN.MASK_LINES, 1)
        results = ()
        for u in tl.static_range(STEP):
            total = total + scale * chunk_term(found, base, part, span, u, STEP, SCAN.BY_ROWS, SCAN.REVERSE, MASKED)
            element = lifted(found, part, keep, span, u, STEP, SCAN.BY_ROWS, SCAN.REVERSE, MASKED, SCAN.MASK_LINES)
            state = AS_STATE(*COMBINE(*state, *element))
            shown = (EITHER(near, *SHOWN(top, total), *PROJECT(*state)),)
            results = shown + results if SCAN.REVERSE else results + shown
        store_results(
            y_ptrs, part, where, y_step, results, span, STEP - 1, STEP, STEP, SCAN.BY_ROWS, SCAN.REVERSE, MASKED,
            SCAN.MASK_LINES,
        )  # fmt: skip


def store_chunks(
    rows, found, sums, state, earlier, before, begin, y_ptrs, where, y_step, keep, span, SCAN: tl.constexpr,
    MASKED: tl.constexpr,
):  # fmt: skip
    """Write a tile whose chunks were scanned (`scanned_chunks`), from the state of each line before it."""
    if SCAN.SUMS:
        store_sums(
            rows, sums, begin, y_ptrs, where, y_step, keep, span, before_chunks(before, earlier, SCAN.NUMBER, SCAN.BY_ROWS),
            SCAN, MASKED,
        )  # fmt: skip
    elif SCAN.CHUNK == 1 and not SCAN.EXCLUSIVE:
        store_scanned(y_ptrs, begin, where, y_step, span, before, state, SCAN.BY_ROWS, MASKED, SCAN.MASK_LINES)
    else:
        store_prefixes(
            found, begin, y_ptrs, where, y_step, keep, span, before_chunks(before, earlier, SCAN.NUMBER, SCAN.BY_ROWS),
            SCAN, MASKED,
        )  # fmt: skip


def store_last(s_ptrs, offset, state, keep):
    """Write the state after each line."""
    for f in tl.static_range(len(s_ptrs)):
        tl.store(s_ptrs[f] + offset, state[f], mask=keep)


def scanned_tile(rows, found, begin, y_ptrs, where, y_step, keep, span, carry, SCAN: tl.constexpr, MASKED: tl.constexpr):
    """Scan and write a tile of elements; the state after it."""
    if SCAN.NUMBER == 1 and not SCAN.SUMS:
        given = AS_STATE(*[tl.broadcast_to(over_tile(c, SCAN.BY_ROWS), found[0][0].shape) for c in carry])
        after = store_prefixes(found, begin, y_ptrs, where, y_step, keep, span, given, SCAN, MASKED)
        carry = last_slots(after, SCAN.NUMBER, SCAN.BY_ROWS)
    else:
        state, earlier, sums = scanned_chunks(found, begin, keep, span, SCAN, MASKED)
        store_chunks(rows, found, sums, state, earlier, carry, begin, y_ptrs, where, y_step, keep, span, SCAN, MASKED)
        # The tile's own state is combined with the carry: from tile to tile the chain of dependences is one combine long.
        carry = AS_STATE(*COMBINE(*carry, *last_slots(state, SCAN.NUMBER, SCAN.BY_ROWS)))
    return carry


def scanned_place(rows, y_ptrs, where, y_step, base, keep, span, carry, SCAN: tl.constexpr, MASKED: tl.constexpr):
    """Read, scan and write the tile that begins at `base`; the state after it."""
    begin = chunks_begin(base, SCAN)
    found = read_tile(rows, len(y_ptrs), begin, keep, span, SCAN, MASKED)
    return scanned_tile(rows, found, begin, y_ptrs, where, y_step, keep, span, carry, SCAN, MASKED)
