"""The kernel that reads short rows as one flat span of memory, folds and maps them from shared memory, and writes them flat.

Rows that lie one after the other are a span, and so are groups of short columns. A program copies its rows' span into its
shared memory in vectors of 16 bytes (`cp.async`), wherever rows begin between them. Each row is folded and mapped from there
by LANES threads, an element at a time, and what becomes of it is put into shared memory at the same places, from where it is
stored in vectors.

INNER rows lie beside each other: an element of a row is INNER behind the one before it. With more than one they are the
columns of a group. A program has TAKEN rows, whole groups; of its tensors' ROWS those beyond are the last one's again. Of
groups that are larger than a program's shared memory it has some neighbouring columns: a piece of memory for each of their
elements, PIECE vectors long (0: all is one piece), each wherever it begins.

Tensors are [ROWS, LANES], a number each, or [THREADS]. Triton has no words for shared memory that outlives a statement, so
these are PTX. LANE_BEGIN (also _MASKED) takes a thread's elements of a row, a tensor each, into its state.
"""

import triton.language as tl

from tilefold.backends.triton.kernels.map_rings import beside_rows, fetch, inline_ptx, own_memory, row_offset


def lead_of(x, start, ALIGNED: tl.constexpr):
    """How many elements before `start` its vector of 16 bytes begins."""
    if ALIGNED:
        lead = 0
    else:
        size: tl.constexpr = x.dtype.element_ty.primitive_bitwidth // 8
        lead = (((x + start).to(tl.int64) & 15) // size).to(tl.int32)
    return lead


def lead_of_piece(lead, number, inner, RUN: tl.constexpr, ALIGNED: tl.constexpr):
    """How many elements before the piece of this number its vector begins, where that of the first has `lead`."""
    if ALIGNED:
        own = number * 0
    else:
        own = (lead + number * (inner % RUN)) & (RUN - 1)
    return own


def fetch_span(
    x, start, lead, number, thread, area,
    THREADS: tl.constexpr, TURNS: tl.constexpr, length=0, inner=0, PIECE: tl.constexpr = 0, ALIGNED: tl.constexpr = True,
):  # fmt: skip
    """Begin to copy `number` elements of a tensor, from `start` on, to `area`, with the whole vectors at their ends.

    With PIECE as many of each of `length` pieces, `inner` elements apart.
    """
    RUN: tl.constexpr = 128 // x.dtype.element_ty.primitive_bitwidth
    for turn in tl.static_range(TURNS):
        vector = thread + turn * THREADS
        if PIECE == 0:
            place = vector * RUN
            fetch(area + vector * 16, (x + (start - lead) + place).to(tl.int64), (place < lead + number).to(tl.int32))
        else:
            piece = vector // PIECE
            place = vector % PIECE * RUN
            before = lead_of_piece(lead, piece, inner, RUN, ALIGNED)
            source = x + (start + piece.to(tl.int64) * inner) + (place - before)
            some = (piece < length) & (place < before + number)
            fetch(area + vector * 16, source.to(tl.int64), some.to(tl.int32))


def taken(place, some, dtype: tl.constexpr, MASKED: tl.constexpr):
    """An element in shared memory, where there is `some`: floats of 16 bits as float32."""
    if dtype.primitive_bitwidth == 32:
        if MASKED:
            word = tl.inline_asm_elementwise(
                "{ .reg .pred some; setp.ne.b32 some, $2, 0; mov.b32 $0, 0; @some ld.shared.b32 $0, [$1]; }",
                "=&r,r,r", [place, some], dtype=tl.uint32, is_pure=False, pack=1,
            )  # fmt: skip
        else:
            word = tl.inline_asm_elementwise(
                "ld.shared.b32 $0, [$1];", "=r,r", [place], dtype=tl.uint32, is_pure=False, pack=1
            )
        element = tl.cast(word, dtype, bitcast=True)
    else:
        if MASKED:
            word = tl.inline_asm_elementwise(
                "{ .reg .pred some; setp.ne.b32 some, $2, 0; mov.b32 $0, 0; @some ld.shared.u16 $0, [$1]; }",
                "=&r,r,r", [place, some], dtype=tl.uint32, is_pure=False, pack=1,
            )  # fmt: skip
        else:
            word = tl.inline_asm_elementwise(
                "ld.shared.u16 $0, [$1];", "=r,r", [place], dtype=tl.uint32, is_pure=False, pack=1
            )
        element = widened(word, dtype)
    return element


def widened(word, dtype: tl.constexpr):
    """The float of 16 bits in the lower half of a word, as float32."""
    if dtype == tl.bfloat16:
        element = tl.cast(word << 16, tl.float32, bitcast=True)
    else:
        element = tl.cast(word.to(tl.uint16), tl.float16, bitcast=True).to(tl.float32)
    return element


def put(place, element, some, dtype: tl.constexpr, MASKED: tl.constexpr):
    """An element to shared memory, where there is `some`: floats of 16 bits are given as float32."""
    if dtype.primitive_bitwidth == 32:
        word = tl.cast(element, tl.uint32, bitcast=True)
    else:
        word = tl.cast(element.to(dtype), tl.uint16, bitcast=True).to(tl.uint32)
    if MASKED and dtype.primitive_bitwidth == 32:
        tl.inline_asm_elementwise(
            "{ .reg .pred some; setp.ne.b32 some, $3, 0; @some st.shared.b32 [$1], $2; mov.u32 $0, 0; }",
            "=r,r,r,r", [place, word, some], dtype=tl.uint32, is_pure=False, pack=1,
        )  # fmt: skip
    elif MASKED:
        tl.inline_asm_elementwise(
            "{ .reg .pred some; setp.ne.b32 some, $3, 0; @some st.shared.u16 [$1], $2; mov.u32 $0, 0; }",
            "=r,r,r,r", [place, word, some], dtype=tl.uint32, is_pure=False, pack=1,
        )  # fmt: skip
    elif dtype.primitive_bitwidth == 32:
        tl.inline_asm_elementwise(
            "st.shared.b32 [$1], $2; mov.u32 $0, 0;", "=r,r,r", [place, word], dtype=tl.uint32, is_pure=False, pack=1
        )
    else:
        tl.inline_asm_elementwise(
            "st.shared.u16 [$1], $2; mov.u32 $0, 0;", "=r,r,r", [place, word], dtype=tl.uint32, is_pure=False, pack=1
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


def read_one(x, offset, dtype: tl.constexpr):
    """An element of a tensor that is only read: floats of 16 bits as float32."""
    address = (x + offset).to(tl.int64)
    if dtype.primitive_bitwidth == 32:
        word = tl.inline_asm_elementwise(
            "ld.global.nc.b32 $0, [$1];", "=r,l", [address], dtype=tl.uint32, is_pure=True, pack=1
        )
        element = tl.cast(word, dtype, bitcast=True)
    else:
        word = tl.inline_asm_elementwise(
            "ld.global.nc.u16 $0, [$1];", "=r,l", [address], dtype=tl.uint32, is_pure=True, pack=1
        )
        element = widened(word, dtype)
    return element


def store_span(
    y, start, lead, number, thread, area,
    THREADS: tl.constexpr, TURNS: tl.constexpr, EDGES: tl.constexpr, length=0, inner=0, PIECE: tl.constexpr = 0,
    ALIGNED: tl.constexpr = True, LONGEST: tl.constexpr = 0,
):  # fmt: skip
    """Store `number` elements, from `start` on: whole vectors, and one by one what is less than one at both ends.

    With PIECE as many of each of `length` pieces, LONGEST at most, `inner` elements apart.
    """
    RUN: tl.constexpr = 128 // y.dtype.element_ty.primitive_bitwidth
    for turn in tl.static_range(TURNS):
        vector = thread + turn * THREADS
        if PIECE == 0:
            place = vector * RUN
            whole = ((place >= lead) & (place + RUN <= lead + number)).to(tl.int32)
            store_vector((y + (start - lead) + place).to(tl.int64), area + vector * 16, whole)
        else:
            piece = vector // PIECE
            place = vector % PIECE * RUN
            before = lead_of_piece(lead, piece, inner, RUN, ALIGNED)
            to = y + (start + piece.to(tl.int64) * inner) + (place - before)
            whole = (piece < length) & (place >= before) & (place + RUN <= before + number)
            store_vector(to.to(tl.int64), area + vector * 16, whole.to(tl.int32))
    if EDGES:
        size: tl.constexpr = 16 // RUN
        if PIECE == 0:
            place, some = edge(thread, lead, number, RUN)
            store_one((y + (start - lead) + place).to(tl.int64), area + place * size, some.to(tl.int32), size)
        else:
            for turn in tl.static_range((LONGEST * 2 * RUN + THREADS - 1) // THREADS):
                slot = thread + turn * THREADS
                piece = slot // (2 * RUN)
                before = lead_of_piece(lead, piece, inner, RUN, ALIGNED)
                place, some = edge(slot % (2 * RUN), before, number, RUN)
                to = y + (start + piece.to(tl.int64) * inner) + (place - before)
                held = area + (piece * (PIECE * RUN) + place) * size
                store_one(to.to(tl.int64), held, (some & (piece < length)).to(tl.int32), size)


def edge(slot, lead, number, RUN: tl.constexpr):
    """Of 2 * RUN elements about a piece's ends, the place of the one of this number, and whether it is stored alone."""
    last = (lead + number) // RUN * RUN
    place = tl.where(slot < RUN, slot, last + slot - RUN)
    inside = (place >= lead) & (place < lead + number)
    head = (lead > 0) & (slot < RUN)
    tail = (slot >= RUN) & (slot < 2 * RUN) & ((last > 0) | (lead == 0))
    return place, inside & (head | tail)


def store_vector(address, place, some):
    """16 bytes from shared memory to a tensor, where there are `some`."""
    tl.inline_asm_elementwise(
        """{
        .reg .pred some;
        .reg .b32 a, b, c, d;
        setp.ne.b32 some, $3, 0;
        @some ld.shared.v4.b32 {a, b, c, d}, [$2];
        @some st.global.v4.b32 [$1], {a, b, c, d};
        mov.u32 $0, 0;
        }""",
        "=r,l,r,r", [address, place, some], dtype=tl.uint32, is_pure=False, pack=1,
    )  # fmt: skip


def store_one(address, place, some, SIZE: tl.constexpr):
    """One element from shared memory to a tensor, where there is `some`."""
    if SIZE == 4:
        tl.inline_asm_elementwise(
            "{ .reg .pred some; .reg .b32 word; setp.ne.b32 some, $3, 0; @some ld.shared.b32 word, [$2]; "
            "@some st.global.b32 [$1], word; mov.u32 $0, 0; }",
            "=r,l,r,r", [address, place, some], dtype=tl.uint32, is_pure=False, pack=1,
        )  # fmt: skip
    else:
        tl.inline_asm_elementwise(
            "{ .reg .pred some; .reg .b16 word; setp.ne.b32 some, $3, 0; @some ld.shared.b16 word, [$2]; "
            "@some st.global.b16 [$1], word; mov.u32 $0, 0; }",
            "=r,l,r,r", [address, place, some], dtype=tl.uint32, is_pure=False, pack=1,
        )  # fmt: skip


def read_beside(
    x, row, at, length, outer_sizes, output_size,
    EACH: tl.constexpr, LANES: tl.constexpr, MASKED: tl.constexpr, OVER: tl.constexpr,
):  # fmt: skip
    """Elements of an extra tensor that lies in another way: those beyond a row's end are any.

    OVER: they are not the same for all rows.
    """
    begin = 0
    if OVER:
        begin = row_offset(x, row, outer_sizes, output_size)
    place = at.to(tl.int64)
    values = ()
    for e in tl.static_range(EACH):
        if MASKED and e == EACH - 1:
            offset = begin + tl.minimum(place + e * LANES, length - 1) * x[5]
        else:
            offset = begin + (place + e * LANES) * x[5]
        values = values + (read_one(x[0], offset, x[0].dtype.element_ty),)
    return values


def elements_beside(
    extras, leads, first, row, at, some, memory, outer_sizes, output_size, length, rows,
    EACH: tl.constexpr, LANES: tl.constexpr, MASKED: tl.constexpr, DENSE: tl.constexpr, OVER: tl.constexpr,
    AREAS: tl.constexpr, INNER: tl.constexpr, PIECES: tl.constexpr, ALIGNED: tl.constexpr,
):  # fmt: skip
    """The extra tensors' elements beside a thread's own."""
    INPUTS: tl.constexpr = len(AREAS) - len(extras)
    beside = ()
    for i in tl.static_range(len(extras)):
        if (DENSE >> i) & 1:
            beside = beside + fetched(
                extras[i][0], memory + AREAS[INPUTS + i], leads[INPUTS + i], row, at, some, length, output_size,
                EACH, LANES, MASKED, INNER, PIECES[INPUTS + i], ALIGNED,
            )  # fmt: skip
        else:
            own = tl.minimum(first + row, rows - 1)
            beside = beside + read_beside(
                extras[i], own, at, length, outer_sizes, output_size, EACH, LANES, MASKED, (OVER >> i) & 1
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
            lead = lead_of(extras[i][0], start, ALIGNED)
            fetch_span(
                extras[i][0], start, lead, number, thread, memory + AREAS[INPUTS + i], THREADS, TURNS[INPUTS + i],
                length, inner, PIECES[INPUTS + i], ALIGNED,
            )  # fmt: skip
        leads = leads + (lead,)
    return leads


def map_spans(
    inputs, extras, y_ptrs, outer_sizes, output_size, length, rows,
    ROWS: tl.constexpr, TAKEN: tl.constexpr, INNER: tl.constexpr, LANES: tl.constexpr, EACH: tl.constexpr,
    MASKED: tl.constexpr, THREADS: tl.constexpr, ACROSS: tl.constexpr, ALIGNED: tl.constexpr, EDGES: tl.constexpr,
    DENSE: tl.constexpr, OVER: tl.constexpr, TURNS: tl.constexpr, Y_TURNS: tl.constexpr, AREAS: tl.constexpr,
    Y_AREAS: tl.constexpr, OWN: tl.constexpr, WAITING: tl.constexpr, PIECES: tl.constexpr, Y_PIECES: tl.constexpr,
):  # fmt: skip
    """Fold and map TAKEN neighbouring rows, each by LANES threads that take EACH of its elements, LANES apart.

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
        first = tl.program_id(0).to(tl.int64) * TAKEN
        start = first * length
        present = tl.minimum(rows - first, TAKEN).to(tl.int32)
        number = present * length
    else:
        blocks = tl.cdiv(output_size, TAKEN)
        group = (tl.program_id(0) // blocks).to(tl.int64)
        column = tl.program_id(0) % blocks * TAKEN
        first = group * output_size + column
        start = group * output_size * length + column
        present = tl.minimum(output_size - column, TAKEN).to(tl.int32)
        number = present
    thread = tl.arange(0, THREADS)
    row = tl.arange(0, ROWS)[:, None]
    at = tl.arange(0, LANES)[None, :]
    some = (at + (EACH - 1) * LANES < length).to(tl.int32)
    some = tl.broadcast_to(some, (ROWS, LANES))
    PART: tl.constexpr = ROWS > TAKEN  # some rows of the tensors are the last one's again: they put nothing
    present_row = tl.broadcast_to((row < TAKEN).to(tl.int32), (ROWS, LANES))
    if PART:
        row = tl.minimum(row, TAKEN - 1)
    inline_ptx(OWN)
    memory = own_memory()
    leads = fetch_spans(
        inputs, extras, start, number, thread, memory, length, output_size, THREADS, ALIGNED, DENSE, TURNS, AREAS, PIECES
    )  # fmt: skip
    inline_ptx(WAITING)
    tl.debug_barrier()
    xs = ()
    for i in tl.static_range(len(inputs)):
        xs = xs + fetched(
            inputs[i], memory + AREAS[i], leads[i], row, at, some, length, output_size, EACH, LANES, MASKED, INNER, PIECES[i],
            ALIGNED,
        )  # fmt: skip
    if ACROSS:
        state = ROW_ACROSS(tl.full([ROWS], 0, tl.int32) + length, some != 0, *xs)
    elif MASKED:
        state = LANE_BEGIN_MASKED(some != 0, *xs)
    else:
        state = LANE_BEGIN(*xs)
    if ACROSS:
        results = beside_rows(PROJECT(*state))
    elif LANES > 1:
        results = beside_rows(PROJECT(*tl.reduce(state, 1, COMBINE_SYMMETRIC)))
    else:
        results = PROJECT(*state)
    beside = elements_beside(
        extras, leads, first, row, at, some, memory, outer_sizes, output_size, length, rows, EACH, LANES, MASKED, DENSE, OVER,
        AREAS, INNER, PIECES, ALIGNED,
    )  # fmt: skip
    for e in tl.static_range(EACH):
        values = ()
        for i in tl.static_range(len(inputs)):
            values = values + (xs[i * EACH + e],)
        for r in tl.static_range(len(results)):
            values = values + (results[r],)
        for i in tl.static_range(len(extras)):
            values = values + (beside[i * EACH + e],)
        made = APPLY(*values)
        for r in tl.static_range(len(y_ptrs)):
            element = tl.broadcast_to(made[r], (ROWS, LANES))
            put_one(
                y_ptrs[r], memory + Y_AREAS[r], lead_of(y_ptrs[r], start, ALIGNED), row, at,
                some & present_row if MASKED and e == EACH - 1 else present_row, length, output_size, element, e * LANES,
                PART or (MASKED and e == EACH - 1), INNER, Y_PIECES[r], ALIGNED,
            )  # fmt: skip
    tl.debug_barrier()
    for r in tl.static_range(len(y_ptrs)):
        lead = lead_of(y_ptrs[r], start, ALIGNED)
        store_span(
            y_ptrs[r], start, lead, number, thread, memory + Y_AREAS[r], THREADS, Y_TURNS[r], EDGES, length, output_size,
            Y_PIECES[r], ALIGNED, EACH * LANES,
        )  # fmt: skip
