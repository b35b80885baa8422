"""Device functions that kernels share which hold rows in shared memory: PTX, and what is written with it.

Triton has no words for shared memory that outlives a statement. Each thread holds one number of a tensor here, an address, a
word or an element; floats of 16 bits are float32 in registers. `some`, not 0, says where something is read or written at all.
"""

import triton.language as tl

from tilefold.backends.triton.kernels.tiles import outer_offset


def inline_ptx(TEXT: tl.constexpr):
    """PTX that every thread executes. $0 becomes 0."""
    tl.inline_asm_elementwise(TEXT, "=r", [], dtype=tl.uint32, is_pure=False, pack=1)


def thread_of(like):
    """The number of the thread that holds each element."""
    return tl.inline_asm_elementwise(
        "mov.u32 $0, %tid.x;", "=r,r", [like], dtype=tl.int32, is_pure=True, pack=1,
    )  # fmt: skip


def exchanged_word(word, distance):
    """The word of the thread whose number in its warp differs by one bit."""
    return tl.inline_asm_elementwise(
        "shfl.sync.bfly.b32 $0, $1, $2, 31, 0xffffffff;", "=r,r,r", [word, distance], dtype=tl.uint32, is_pure=False, pack=1,
    )  # fmt: skip


def memory():
    """Where the ring's shared memory begins."""
    return tl.inline_asm_elementwise("mov.u32 $0, global_smem;", "=r", [], dtype=tl.int32, is_pure=True, pack=1)


def own_memory():
    """Where the ring's shared memory begins that `ring_of` declared."""
    return tl.inline_asm_elementwise("mov.u32 $0, ring_own;", "=r", [], dtype=tl.int32, is_pure=True, pack=1)


def ring_of(words: int) -> str:
    """PTX that declares the ring beside what Triton uses: up to 48 KB. $0 becomes 0."""
    return f".shared .align 16 .b8 ring_own[{words}]; mov.u32 $0, 0;"


def fetch(place, address, some, NEXT: tl.constexpr = False):
    """Begin to copy 16 bytes to a place in shared memory, where there are `some`.

    NEXT: the L2 takes the two lines that they lie in, of which another program reads the second now.
    """
    COPY: tl.constexpr = "cp.async.cg.shared.global.L2::256B" if NEXT else "cp.async.cg.shared.global"
    tl.inline_asm_elementwise(
        """{
        .reg .pred some;
        setp.ne.b32 some, $3, 0;
        @some """ + COPY + """ [$1], [$2], 16;
        mov.u32 $0, 0;
        }""",
        "=r,r,l,r", [place, address, some], dtype=tl.uint32, is_pure=False, pack=1,
    )  # fmt: skip


def load_word(place):
    """A word at a place in shared memory."""
    return tl.inline_asm_elementwise(
        "ld.shared.b32 $0, [$1];", "=r,r", [place], dtype=tl.uint32, is_pure=False, pack=1,
    )  # fmt: skip


def store_word(place, word):
    """A word to a place in shared memory."""
    tl.inline_asm_elementwise(
        "st.shared.b32 [$1], $2; mov.u32 $0, 0;", "=r,r,r", [place, word], dtype=tl.uint32, is_pure=False, pack=1,
    )  # fmt: skip


def load_shared(place):
    """Four words at a place in shared memory."""
    return tl.inline_asm_elementwise(
        "ld.shared.v4.b32 {$0, $1, $2, $3}, [$4];",
        "=r,=r,=r,=r,r", [place], dtype=(tl.uint32, tl.uint32, tl.uint32, tl.uint32), is_pure=False, pack=1,
    )  # fmt: skip


def taken(place, some, dtype: tl.constexpr, MASKED: tl.constexpr):
    """An element in shared memory; MASKED: where there is `some`."""
    LOAD: tl.constexpr = "ld.shared.b32" if dtype.primitive_bitwidth == 32 else "ld.shared.u16"
    if MASKED:
        word = tl.inline_asm_elementwise(
            "{ .reg .pred some; setp.ne.b32 some, $2, 0; mov.b32 $0, 0; @some " + LOAD + " $0, [$1]; }",
            "=&r,r,r", [place, some], dtype=tl.uint32, is_pure=False, pack=1,
        )  # fmt: skip
    else:
        word = tl.inline_asm_elementwise(
            LOAD + " $0, [$1];", "=r,r", [place], dtype=tl.uint32, is_pure=False, pack=1,
        )  # fmt: skip
    if dtype.primitive_bitwidth == 32:
        element = tl.cast(word, dtype, bitcast=True)
    else:
        element = widened(word, dtype)
    return element


def put(place, element, some, dtype: tl.constexpr, MASKED: tl.constexpr):
    """An element to shared memory; MASKED: where there is `some`."""
    STORE: tl.constexpr = "st.shared.b32" if dtype.primitive_bitwidth == 32 else "st.shared.u16"
    if dtype.primitive_bitwidth == 32:
        word = tl.cast(element, tl.uint32, bitcast=True)
    else:
        word = tl.cast(element.to(dtype), tl.uint16, bitcast=True).to(tl.uint32)
    if MASKED:
        tl.inline_asm_elementwise(
            "{ .reg .pred some; setp.ne.b32 some, $3, 0; @some " + STORE + " [$1], $2; mov.u32 $0, 0; }",
            "=r,r,r,r", [place, word, some], dtype=tl.uint32, is_pure=False, pack=1,
        )  # fmt: skip
    else:
        tl.inline_asm_elementwise(
            STORE + " [$1], $2; mov.u32 $0, 0;", "=r,r,r", [place, word], dtype=tl.uint32, is_pure=False, pack=1,
        )  # fmt: skip


def read(address):
    """Four words of a tensor that is only read."""
    return tl.inline_asm_elementwise(
        "ld.global.nc.v4.b32 {$0, $1, $2, $3}, [$4];",
        "=r,=r,=r,=r,l", [address], dtype=(tl.uint32, tl.uint32, tl.uint32, tl.uint32), is_pure=False, pack=1,
    )  # fmt: skip


def read_words(address, WORDS: tl.constexpr):
    """A half word (WORDS 0), a word, or two of a tensor that is only read."""
    if WORDS == 2:
        words = tl.inline_asm_elementwise(
            "ld.global.nc.v2.b32 {$0, $1}, [$2];", "=r,=r,l", [address], dtype=(tl.uint32, tl.uint32), is_pure=True, pack=1
        )
    else:
        LOAD: tl.constexpr = "ld.global.nc.b32" if WORDS == 1 else "ld.global.nc.u16"
        words = (
            tl.inline_asm_elementwise(
                LOAD + " $0, [$1];", "=r,l", [address], dtype=tl.uint32, is_pure=True, pack=1,
            ),
        )  # fmt: skip
    return words


def read_elements(address, dtype: tl.constexpr, RUN: tl.constexpr):
    """RUN neighbours of a tensor that is only read, 8 bytes at most."""
    words = read_words(address, RUN * dtype.primitive_bitwidth // 32)
    if RUN * dtype.primitive_bitwidth == 16:
        elements = (widened(words[0], dtype),)
    else:
        elements = unpacked(words, dtype)
    return elements


def write(address, words, some):
    """Four words to a tensor, where there are `some`."""
    tl.inline_asm_elementwise(
        """{
        .reg .pred some;
        setp.ne.b32 some, $6, 0;
        @some st.global.v4.b32 [$1], {$2, $3, $4, $5};
        mov.u32 $0, 0;
        }""",
        "=r,l,r,r,r,r,r", [address, words[0], words[1], words[2], words[3], some], dtype=tl.uint32, is_pure=False, pack=1,
    )  # fmt: skip


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
    TYPE: tl.constexpr = ".b32" if SIZE == 4 else ".b16"
    tl.inline_asm_elementwise(
        "{ .reg .pred some; .reg " + TYPE + " word; setp.ne.b32 some, $3, 0; @some ld.shared" + TYPE + " word, [$2]; "
        "@some st.global" + TYPE + " [$1], word; mov.u32 $0, 0; }",
        "=r,l,r,r", [address, place, some], dtype=tl.uint32, is_pure=False, pack=1,
    )  # fmt: skip


def unpacked(words, dtype: tl.constexpr):
    """The elements in some words, of 16 or 32 bits: floats of 16 bits as float32."""
    elements = ()
    for w in tl.static_range(len(words)):
        if dtype == tl.bfloat16:
            elements = elements + tl.inline_asm_elementwise(
                "shl.b32 $0, $2, 16; and.b32 $1, $2, 0xffff0000;", "=r,=r,r", [words[w]],
                dtype=(tl.float32, tl.float32), is_pure=True, pack=1,
            )  # fmt: skip
        elif dtype == tl.float16:
            elements = elements + tl.inline_asm_elementwise(
                "{ .reg .b16 low, high; mov.b32 {low, high}, $2; cvt.f32.f16 $0, low; cvt.f32.f16 $1, high; }",
                "=r,=r,r", [words[w]], dtype=(tl.float32, tl.float32), is_pure=True, pack=1,
            )  # fmt: skip
        else:
            elements = elements + (tl.cast(words[w], dtype, bitcast=True),)
    return elements


def packed(elements, dtype: tl.constexpr):
    """The words that some elements make: floats of 16 bits are given as float32."""
    words = ()
    if dtype.primitive_bitwidth == 16:
        for w in tl.static_range(len(elements) // 2):
            words = words + (
                tl.inline_asm_elementwise(
                    "cvt.rn.bf16x2.f32 $0, $2, $1;" if dtype == tl.bfloat16 else "cvt.rn.f16x2.f32 $0, $2, $1;",
                    "=r,r,r", [elements[2 * w], elements[2 * w + 1]], dtype=tl.uint32, is_pure=True, pack=1,
                ),
            )  # fmt: skip
    else:
        for w in tl.static_range(len(elements)):
            words = words + (tl.cast(elements[w], tl.uint32, bitcast=True),)
    return words


def widened(word, dtype: tl.constexpr):
    """The float of 16 bits in the lower half of a word, as float32."""
    if dtype == tl.bfloat16:
        element = tl.cast(word << 16, tl.float32, bitcast=True)
    else:
        element = tl.cast(word.to(tl.uint16), tl.float16, bitcast=True).to(tl.float32)
    return element


def moved(words, STEP: tl.constexpr, moves):
    """Each word, or where it `moves` the one STEP after it."""
    found = ()
    for w in tl.static_range(len(words)):
        if w + STEP < len(words):
            found = found + (tl.where(moves, words[w + STEP], words[w]),)
        else:
            found = found + (words[w],)
    return found


def shifted(before, words, lead, dtype: tl.constexpr):
    """The words of as many elements, `lead` elements before `words`, of which `before` are those ahead.

    Where `lead` is 0, they are `before`.
    """
    W: tl.constexpr = len(words)
    EACH: tl.constexpr = 32 // dtype.primitive_bitwidth  # elements a word
    every = before + words
    ahead = (W * EACH - lead) % (W * EACH)
    for level in tl.static_range(1, 5):
        if (W >> level) > 0:
            every = moved(every, W >> level, ((ahead // EACH) & (W >> level)) != 0)
    made = ()
    for w in tl.static_range(W):
        if EACH == 2:
            made = made + (joined(every[w], every[w + 1], ahead % 2 * 16),)
        else:
            made = made + (every[w],)
    return made


def joined(low, high, bits):
    """The word that begins `bits` bits behind `low`."""
    return tl.inline_asm_elementwise(
        "shf.r.wrap.b32 $0, $1, $2, $3;", "=r,r,r,r", [low, high, bits], dtype=tl.uint32, is_pure=True, pack=1
    )


def some_of(words, FIRST: tl.constexpr, NUMBER: tl.constexpr):
    """NUMBER words, from FIRST on."""
    found = ()
    for w in tl.static_range(NUMBER):
        found = found + (words[FIRST + w],)
    return found


def beside_rows(results):
    """What each row folds to, beside its elements: [ROWS] -> [ROWS, 1]."""
    values = ()
    for r in tl.static_range(len(results)):
        values = values + (results[r][:, None],)
    return values


def row_offset(x, row, walk, shift=0):
    """Where a row begins in a tensor, in elements: `x` has its steps."""
    row = row.to(tl.int64)
    offset = shift + row * x.output
    if len(walk.outer) > 0:
        offset = shift + outer_offset(row // walk.output, walk.outer, x.outer) + (row % walk.output) * x.output
    return offset


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


def store_span(
    y, start, lead, number, thread, area,
    THREADS: tl.constexpr, TURNS: tl.constexpr, EDGES: tl.constexpr, length=0, inner=0, PIECE: tl.constexpr = 0,
    ALIGNED: tl.constexpr = True, LONGEST: tl.constexpr = 0,
):  # fmt: skip
    """Store `number` elements, from `start` on: whole vectors, and the elements beside them at both ends one by one.

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
