"""The kernel that reads short rows as one flat span of memory, folds and maps them from shared memory, and writes them flat.

Rows that lie one after the other are a span, and so are groups of short columns. A program copies its rows' span into its shared
memory in vectors of 16 bytes (`cp.async`), wherever rows begin between them. Each row is folded and mapped from there by LANES
threads, an element at a time, and what becomes of it is put into shared memory at the same places, from where it is stored in
vectors.

INNER rows lie beside each other: an element of a row is INNER behind the one before it. With more than one they are the columns of a
group. A program has TAKEN rows, whole groups; of its ROWS tensors' rows those beyond are the last one's again.

Tensors are [ROWS, LANES], a number each, or [THREADS]. Triton has no words for shared memory that outlives a statement, so
these are PTX. LANE_BEGIN (also _MASKED) takes a thread's elements of a row, a tensor each, into its state.
"""

import triton.language as tl

from tilefold.backends.triton.kernels.map_rings import beside_rows, fetch, own_memory, row_offset, said


def lead_of(x, start, ALIGNED: tl.constexpr):
    """How many elements before `start` its vector of 16 bytes begins."""
    if ALIGNED:
        lead = 0
    else:
        size: tl.constexpr = x.dtype.element_ty.primitive_bitwidth // 8
        lead = (((x + start).to(tl.int64) & 15) // size).to(tl.int32)
    return lead


def fetch_span(x, start, lead, number, thread, area, THREADS: tl.constexpr, TURNS: tl.constexpr):
    """Begin to copy `number` elements of a tensor, from `start` on, to `area`, with the whole vectors at their ends."""
    RUN: tl.constexpr = 128 // x.dtype.element_ty.primitive_bitwidth
    source = x + (start - lead)
    for turn in tl.static_range(TURNS):
        vector = thread + turn * THREADS
        place = vector * RUN
        fetch(area + vector * 16, (source + place).to(tl.int64), (place < lead + number).to(tl.int32))


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


def place_of(row, at, length, INNER: tl.constexpr):
    """How many elements of a span lie before element `at` of a row."""
    if INNER == 1:
        place = row * length + at
    else:
        place = (row // INNER) * (INNER * length) + row % INNER + at * INNER
    return place


def fetched(
    x, area, lead, row, at, some, length,
    EACH: tl.constexpr, LANES: tl.constexpr, MASKED: tl.constexpr, INNER: tl.constexpr,
):  # fmt: skip
    """A thread's elements of a row: EACH of them, LANES apart; MASKED: the last one where there is `some`."""
    size: tl.constexpr = x.dtype.element_ty.primitive_bitwidth // 8
    base = area + (lead + place_of(row, at, length, INNER)) * size
    values = ()
    for e in tl.static_range(EACH):
        place = base + e * (LANES * INNER * size)
        values = values + (taken(place, some, x.dtype.element_ty, MASKED and e == EACH - 1),)
    return values


def put_one(
    y, area, lead, row, at, some, length, element, AFTER: tl.constexpr, MASKED: tl.constexpr, INNER: tl.constexpr
):  # fmt: skip
    """What becomes of a thread's element, AFTER elements of its row behind its first, to its place in the result's span."""
    size: tl.constexpr = y.dtype.element_ty.primitive_bitwidth // 8
    base = area + (lead + place_of(row, at, length, INNER)) * size
    put(base + AFTER * (INNER * size), element, some, y.dtype.element_ty, MASKED)


def read_one(x, offset, dtype: tl.constexpr):
    """An element of a tensor that nobody writes: floats of 16 bits as float32."""
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


def store_span(y, start, lead, number, thread, area, THREADS: tl.constexpr, TURNS: tl.constexpr, EDGES: tl.constexpr):
    """Store `number` elements, from `start` on: whole vectors, and one by one what is less than one at both ends."""
    RUN: tl.constexpr = 128 // y.dtype.element_ty.primitive_bitwidth
    to = y + (start - lead)
    for turn in tl.static_range(TURNS):
        vector = thread + turn * THREADS
        place = vector * RUN
        whole = ((place >= lead) & (place + RUN <= lead + number)).to(tl.int32)
        store_vector((to + place).to(tl.int64), area + vector * 16, whole)
    if EDGES:
        last = (lead + number) // RUN * RUN
        place = tl.where(thread < RUN, thread, last + thread - RUN)
        head = (lead > 0) & (thread < RUN) & (place >= lead) & (place < lead + number)
        tail = (thread >= RUN) & (thread < 2 * RUN) & (place >= lead) & (place < lead + number) & ((last > 0) | (lead == 0))
        size: tl.constexpr = y.dtype.element_ty.primitive_bitwidth // 8
        store_one((to + place).to(tl.int64), area + place * size, (head | tail).to(tl.int32), size)


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
    AREAS: tl.constexpr, INNER: tl.constexpr,
):  # fmt: skip
    """The extra tensors' elements beside a thread's own."""
    INPUTS: tl.constexpr = len(AREAS) - len(extras)
    beside = ()
    for i in tl.static_range(len(extras)):
        if (DENSE >> i) & 1:
            beside = beside + fetched(
                extras[i][0], memory + AREAS[INPUTS + i], leads[INPUTS + i], row, at, some, length, EACH, LANES, MASKED, INNER
            )  # fmt: skip
        else:
            own = tl.minimum(first + row, rows - 1)
            beside = beside + read_beside(
                extras[i], own, at, length, outer_sizes, output_size, EACH, LANES, MASKED, (OVER >> i) & 1
            )
    return beside


def fetch_spans(
    inputs, extras, start, number, thread, memory,
    THREADS: tl.constexpr, ALIGNED: tl.constexpr, DENSE: tl.constexpr, TURNS: tl.constexpr, AREAS: tl.constexpr,
):  # fmt: skip
    """Begin to copy every span that is copied; how far before it each one's first vector begins."""
    INPUTS: tl.constexpr = len(inputs)
    leads = ()
    for i in tl.static_range(len(inputs)):
        leads = leads + (lead_of(inputs[i], start, ALIGNED),)
        fetch_span(inputs[i], start, leads[i], number, thread, memory + AREAS[i], THREADS, TURNS[i])
    for i in tl.static_range(len(extras)):
        lead = 0
        if (DENSE >> i) & 1:
            lead = lead_of(extras[i][0], start, ALIGNED)
            fetch_span(
                extras[i][0], start, lead, number, thread, memory + AREAS[INPUTS + i], THREADS, TURNS[INPUTS + i]
            )
        leads = leads + (lead,)
    return leads


def map_spans(
    inputs, extras, y_ptrs, outer_sizes, output_size, length, rows,
    ROWS: tl.constexpr, TAKEN: tl.constexpr, INNER: tl.constexpr, LANES: tl.constexpr, EACH: tl.constexpr,
    MASKED: tl.constexpr, THREADS: tl.constexpr, ACROSS: tl.constexpr, ALIGNED: tl.constexpr, EDGES: tl.constexpr, DENSE: tl.constexpr, OVER: tl.constexpr,
    TURNS: tl.constexpr, Y_TURNS: tl.constexpr, AREAS: tl.constexpr, Y_AREAS: tl.constexpr, OWN: tl.constexpr,
    COME: tl.constexpr,
):  # fmt: skip
    """Fold and map TAKEN neighbouring rows, each by LANES threads that take EACH of its elements, LANES apart.

    `inputs` are pointers, `extras` records as in `tiles`; those whose bit is in DENSE are laid out as inputs are, and come
    through shared memory too. OVER: a bit for each of the others that is not the same for all rows. AREAS, Y_AREAS: where in
    shared memory each tensor's span lies and each result's, which may be where its elements came from; TURNS, Y_TURNS: how
    many vectors a thread copies of each. MASKED: rows end before EACH * LANES elements. ACROSS: a row is absorbed as one
    block, by all its threads together. ALIGNED: spans begin at multiples of 16 bytes; EDGES: not all begin and end there.
    OWN and COME are PTX: it declares shared memory, and waits for what is being copied.
    """
    first = tl.program_id(0).to(tl.int64) * TAKEN
    start = first * length
    present = tl.minimum(rows - first, TAKEN).to(tl.int32)
    number = present * length
    thread = tl.arange(0, THREADS)
    row = tl.arange(0, ROWS)[:, None]
    at = tl.arange(0, LANES)[None, :]
    some = (at + (EACH - 1) * LANES < length).to(tl.int32)
    some = tl.broadcast_to(some, (ROWS, LANES))
    PART: tl.constexpr = ROWS > TAKEN  # some rows of the tensors are the last one's again: they put nothing
    present_row = tl.broadcast_to((row < TAKEN).to(tl.int32), (ROWS, LANES))
    if PART:
        row = tl.minimum(row, TAKEN - 1)
    said(OWN)
    memory = own_memory()
    leads = fetch_spans(inputs, extras, start, number, thread, memory, THREADS, ALIGNED, DENSE, TURNS, AREAS)
    said(COME)
    tl.debug_barrier()
    xs = ()
    for i in tl.static_range(len(inputs)):
        xs = xs + fetched(inputs[i], memory + AREAS[i], leads[i], row, at, some, length, EACH, LANES, MASKED, INNER)
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
        AREAS, INNER,
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
                some & present_row if MASKED and e == EACH - 1 else present_row, length, element, e * LANES,
                PART or (MASKED and e == EACH - 1), INNER,
            )  # fmt: skip
    tl.debug_barrier()
    for r in tl.static_range(len(y_ptrs)):
        lead = lead_of(y_ptrs[r], start, ALIGNED)
        store_span(y_ptrs[r], start, lead, number, thread, memory + Y_AREAS[r], THREADS, Y_TURNS[r], EDGES)
