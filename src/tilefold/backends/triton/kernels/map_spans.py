"""The kernel that reads short rows as one flat span of memory, folds and maps them from shared memory, and writes them flat.

Rows that lie one after the other are a span, and so are groups of short columns. A program copies its rows' span into its
shared memory in vectors of 16 bytes (`cp.async`), wherever rows begin between them. Each row is folded and mapped from there
by LANES threads, an element at a time, and the results are put into shared memory at the same places, from where they are
stored in vectors.

INNER rows lie beside each other: an element of a row is INNER behind the one before it. With more than one they are the
columns of a group. A program has TAKEN rows, whole groups; rows of its tensors beyond these repeat the last one. Of
groups that are larger than a program's shared memory it has some neighbouring columns: a piece of memory for each of their
elements, PIECE vectors long (0: all is one piece), each wherever it begins.

Tensors are [ROWS, LANES], a number each, or [THREADS]. Triton has no words for shared memory that outlives a statement, so
these are PTX. LANE_BEGIN (also _MASKED) takes a thread's elements of a row, a tensor each, into its state.
"""

import triton.language as tl

from tilefold.backends.triton.kernels.primitives import (
    beside_rows,
    fetch_span,
    inline_ptx,
    lead_of,
    lead_of_piece,
    own_memory,
    put,
    read_elements,
    row_offset,
    store_span,
    taken,
)


def place_of(
    row, at, lead, length, inner, AFTER: tl.constexpr,
    INNER: tl.constexpr, PIECE: tl.constexpr, RUN: tl.constexpr, ALIGNED: tl.constexpr,
):  # fmt: skip
    """How many elements of a tensor's shared memory lie before the one AFTER elements behind element `at` of a row."""
    if PIECE > 0:
        number = at + AFTER
        place = number * (PIECE * RUN) + lead_of_piece(lead, number, inner, RUN, ALIGNED) + row
    elif INNER == 1:
        place = lead + row * length + at + AFTER
    else:
        place = lead + (row // INNER) * (INNER * length) + row % INNER + at * INNER + AFTER * INNER
    return place


def fetched(
    x, area, lead, row, at, some, length, inner,
    EACH: tl.constexpr, LANES: tl.constexpr, MASKED: tl.constexpr, INNER: tl.constexpr, PIECE: tl.constexpr,
    ALIGNED: tl.constexpr,
):  # fmt: skip
    """A thread's elements of a row: EACH of them, LANES apart; MASKED: the last one where there is `some`."""
    RUN: tl.constexpr = 128 // x.dtype.element_ty.primitive_bitwidth
    values = ()
    for e in tl.static_range(EACH):
        place = area + place_of(row, at, lead, length, inner, e * LANES, INNER, PIECE, RUN, ALIGNED) * (16 // RUN)
        values = values + (taken(place, some, x.dtype.element_ty, MASKED and e == EACH - 1),)
    return values


def put_one(
    y, area, lead, row, at, some, length, inner, element, AFTER: tl.constexpr, MASKED: tl.constexpr,
    INNER: tl.constexpr, PIECE: tl.constexpr, ALIGNED: tl.constexpr,
):  # fmt: skip
    """Store a thread's mapped element, AFTER elements of its row behind its first, at its place in the result's span."""
    RUN: tl.constexpr = 128 // y.dtype.element_ty.primitive_bitwidth
    place = area + place_of(row, at, lead, length, inner, AFTER, INNER, PIECE, RUN, ALIGNED) * (16 // RUN)
    put(place, element, some, y.dtype.element_ty, MASKED)


def read_beside(
    x, row, at, length, walk,
    EACH: tl.constexpr, LANES: tl.constexpr, MASKED: tl.constexpr, OVER: tl.constexpr,
):  # fmt: skip
    """Elements of an extra tensor that lies in another way: those beyond a row's end are any.

    OVER: they are not the same for all rows.
    """
    begin = 0
    if OVER:
        begin = row_offset(x, row, walk, x.shift)
    place = at.to(tl.int64)
    values = ()
    for e in tl.static_range(EACH):
        if MASKED and e == EACH - 1:
            offset = begin + tl.minimum(place + e * LANES, length - 1) * x.reduced
        else:
            offset = begin + (place + e * LANES) * x.reduced
        values = values + read_elements((x.pointer + offset).to(tl.int64), x.pointer.dtype.element_ty, 1)
    return values


def elements_beside(
    extras, leads, first, row, at, some, memory, walk, length, rows,
    EACH: tl.constexpr, LANES: tl.constexpr, MASKED: tl.constexpr, DENSE: tl.constexpr, OVER: tl.constexpr,
    AREAS: tl.constexpr, INNER: tl.constexpr, PIECES: tl.constexpr, ALIGNED: tl.constexpr,
):  # fmt: skip
    """The extra tensors' elements beside a thread's own."""
    INPUTS: tl.constexpr = len(AREAS) - len(extras)
    beside = ()
    for i in tl.static_range(len(extras)):
        if (DENSE >> i) & 1:
            beside = beside + fetched(
                extras[i].pointer, memory + AREAS[INPUTS + i], leads[INPUTS + i], row, at, some, length, walk.output,
                EACH, LANES, MASKED, INNER, PIECES[INPUTS + i], ALIGNED,
            )  # fmt: skip
        else:
            own = tl.minimum(first + row, rows - 1)
            beside = beside + read_beside(
                extras[i], own, at, length, walk, EACH, LANES, MASKED, (OVER >> i) & 1
            )
    return beside


def fetch_spans(
    inputs, extras, start, number, thread, memory, length, inner,
    THREADS: tl.constexpr, ALIGNED: tl.constexpr, DENSE: tl.constexpr, TURNS: tl.constexpr, AREAS: tl.constexpr,
    PIECES: tl.constexpr,
):  # fmt: skip
    """Begin to copy every span that is copied; how far before it each one's first vector begins."""
    INPUTS: tl.constexpr = len(inputs)
    leads = ()
    for i in tl.static_range(len(inputs)):
        leads = leads + (lead_of(inputs[i], start, ALIGNED),)
        fetch_span(
            inputs[i], start, leads[i], number, thread, memory + AREAS[i], THREADS, TURNS[i], length, inner, PIECES[i],
            ALIGNED,
        )  # fmt: skip
    for i in tl.static_range(len(extras)):
        lead = 0
        if (DENSE >> i) & 1:
            lead = lead_of(extras[i].pointer, start, ALIGNED)
            fetch_span(
                extras[i].pointer, start, lead, number, thread, memory + AREAS[INPUTS + i], THREADS, TURNS[INPUTS + i],
                length, inner, PIECES[INPUTS + i], ALIGNED,
            )  # fmt: skip
        leads = leads + (lead,)
    return leads


def map_spans(
    inputs, extras, y_ptrs, walk, length, rows, SPAN: tl.constexpr, MASKED: tl.constexpr, ACROSS: tl.constexpr,
    ALIGNED: tl.constexpr, EDGES: tl.constexpr, DENSE: tl.constexpr, OVER: tl.constexpr, TURNS: tl.constexpr,
    Y_TURNS: tl.constexpr, AREAS: tl.constexpr, Y_AREAS: tl.constexpr, OWN: tl.constexpr, WAITING: tl.constexpr,
    PIECES: tl.constexpr, Y_PIECES: tl.constexpr,
):  # fmt: skip
    """Fold and map TAKEN neighbouring rows, each by LANES threads that take EACH of its elements, LANES apart.

    A program owns these rows. It reads their span once into shared memory, holds their elements in registers while it folds
    and maps them, and writes the results' span from shared memory.

    `inputs` are pointers, `extras` records as in `tiles`; those whose bit is in DENSE are laid out as inputs are, and come
    through shared memory too. OVER: a bit for each of the others that is not the same for all rows. AREAS, Y_AREAS: where in
    shared memory each tensor's span lies and each result's, which may be where its elements came from; TURNS, Y_TURNS: how
    many vectors a thread copies of each. MASKED: rows end before EACH * LANES elements. ACROSS: a row is absorbed as one
    block, by all its threads together. ALIGNED: spans begin at multiples of 16 bytes; EDGES: not all begin and end there.
    OWN and WAITING are PTX: it declares shared memory, and waits for what is being copied. PIECES, Y_PIECES: vectors of each
    tensor's pieces, and of each result's.
    """
    PIECE: tl.constexpr = PIECES[0]
    if PIECE == 0:
        first = tl.program_id(0).to(tl.int64) * SPAN.TAKEN
        start = first * length
        present = tl.minimum(rows - first, SPAN.TAKEN).to(tl.int32)
        number = present * length
    else:
        blocks = tl.cdiv(walk.output, SPAN.TAKEN)
        group = (tl.program_id(0) // blocks).to(tl.int64)
        column = tl.program_id(0) % blocks * SPAN.TAKEN
        first = group * walk.output + column
        start = group * walk.output * length + column
        present = tl.minimum(walk.output - column, SPAN.TAKEN).to(tl.int32)
        number = present
    thread = tl.arange(0, SPAN.THREADS)
    row = tl.arange(0, SPAN.ROWS)[:, None]
    at = tl.arange(0, SPAN.LANES)[None, :]
    some = (at + (SPAN.EACH - 1) * SPAN.LANES < length).to(tl.int32)
    some = tl.broadcast_to(some, (SPAN.ROWS, SPAN.LANES))
    PART: tl.constexpr = SPAN.ROWS > SPAN.TAKEN  # some rows of the tensors are the last one's again: they put nothing
    present_row = tl.broadcast_to((row < SPAN.TAKEN).to(tl.int32), (SPAN.ROWS, SPAN.LANES))
    if PART:
        row = tl.minimum(row, SPAN.TAKEN - 1)
    inline_ptx(OWN)
    memory = own_memory()
    leads = fetch_spans(
        inputs, extras, start, number, thread, memory, length, walk.output, SPAN.THREADS, ALIGNED, DENSE, TURNS, AREAS, PIECES
    )  # fmt: skip
    inline_ptx(WAITING)
    tl.debug_barrier()
    xs = ()
    for i in tl.static_range(len(inputs)):
        xs = xs + fetched(
            inputs[i], memory + AREAS[i], leads[i], row, at, some, length, walk.output, SPAN.EACH,
            SPAN.LANES, MASKED, SPAN.INNER, PIECES[i], ALIGNED,
        )  # fmt: skip
    if ACROSS:
        state = ROW_ACROSS(tl.full([SPAN.ROWS], 0, tl.int32) + length, some != 0, *xs)
    elif MASKED:
        state = LANE_BEGIN_MASKED(some != 0, *xs)
    else:
        state = LANE_BEGIN(*xs)
    if ACROSS:
        results = beside_rows(PROJECT(*state))
    elif SPAN.LANES > 1:
        results = beside_rows(PROJECT(*tl.reduce(state, 1, COMBINE_SYMMETRIC)))
    else:
        results = PROJECT(*state)
    beside = elements_beside(
        extras, leads, first, row, at, some, memory, walk, length, rows, SPAN.EACH, SPAN.LANES, MASKED, DENSE, OVER,
        AREAS, SPAN.INNER, PIECES, ALIGNED,
    )  # fmt: skip
    for e in tl.static_range(SPAN.EACH):
        values = ()
        for i in tl.static_range(len(inputs)):
            values = values + (xs[i * SPAN.EACH + e],)
        for r in tl.static_range(len(results)):
            values = values + (results[r],)
        for i in tl.static_range(len(extras)):
            values = values + (beside[i * SPAN.EACH + e],)
        made = APPLY(*values)
        for r in tl.static_range(len(y_ptrs)):
            element = tl.broadcast_to(made[r], (SPAN.ROWS, SPAN.LANES))
            put_one(
                y_ptrs[r], memory + Y_AREAS[r], lead_of(y_ptrs[r], start, ALIGNED), row, at,
                some & present_row if MASKED and e == SPAN.EACH - 1 else present_row, length, walk.output, element,
                e * SPAN.LANES, PART or (MASKED and e == SPAN.EACH - 1), SPAN.INNER, Y_PIECES[r], ALIGNED,
            )  # fmt: skip
    tl.debug_barrier()
    for r in tl.static_range(len(y_ptrs)):
        lead = lead_of(y_ptrs[r], start, ALIGNED)
        store_span(
            y_ptrs[r], start, lead, number, thread, memory + Y_AREAS[r], SPAN.THREADS, Y_TURNS[r], EDGES, length, walk.output,
            Y_PIECES[r], ALIGNED, SPAN.EACH * SPAN.LANES,
        )  # fmt: skip
