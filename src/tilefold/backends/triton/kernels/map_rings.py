"""The kernel that holds rows in shared memory while they are folded and mapped: one read, one write, however many registers.

A program, or each of a cluster of them, keeps a ring of turns in its shared memory: a turn is UNROLL vectors of 16 bytes a
thread. It walks over rows. Where a row's turn was mapped, the ring's place takes a turn of a later row at once
(`cp.async`), so that loads are on their way while a row is folded, while its cluster's states meet, and while it is mapped.
A thread fetches the very vectors that it reads, so nobody waits for anybody but where a row's states meet.

Every tensor here is [LANES], LANES the program's threads: each holds one number. Triton has no words for shared memory that
outlives a statement, so these are PTX. The ring lies in the dynamic shared memory, RESERVED bytes from its start, behind what
Triton uses itself. LANE_BEGIN and LANE_ABSORB (also _MASKED) take a turn's elements, a tensor each, into each thread's state.
"""

import triton.language as tl

from tilefold.backends.triton.kernels.clusters import begin_meeting, met_in_turn, others_have_begun
from tilefold.backends.triton.kernels.tiles import outer_offset


def said(TEXT: tl.constexpr):
    """PTX that every thread executes. $0 becomes 0."""
    tl.inline_asm_elementwise(TEXT, "=r", [], dtype=tl.uint32, is_pure=False, pack=1)


def fetch(place, address, some):
    """Begin to copy 16 bytes to a place in shared memory, where there are `some`."""
    tl.inline_asm_elementwise(
        """{
        .reg .pred some;
        .reg .b32 at;
        setp.ne.b32 some, $3, 0;
        mov.u32 at, global_smem;
        add.u32 at, at, $1;
        @some cp.async.cg.shared.global [at], [$2], 16;
        mov.u32 $0, 0;
        }""",
        "=r,r,l,r", [place, address, some], dtype=tl.uint32, is_pure=False, pack=1,
    )  # fmt: skip


def held(place):
    """Four words at a place in shared memory."""
    return tl.inline_asm_elementwise(
        "{ .reg .b32 at; mov.u32 at, global_smem; add.u32 at, at, $4; ld.shared.v4.b32 {$0, $1, $2, $3}, [at]; }",
        "=r,=r,=r,=r,r", [place], dtype=(tl.uint32, tl.uint32, tl.uint32, tl.uint32), is_pure=False, pack=1,
    )  # fmt: skip


def read(address):
    """Four words of a tensor that nobody writes."""
    return tl.inline_asm_elementwise(
        "ld.global.nc.v4.b32 {$0, $1, $2, $3}, [$4];",
        "=r,=r,=r,=r,l", [address], dtype=(tl.uint32, tl.uint32, tl.uint32, tl.uint32), is_pure=True, pack=1,
    )  # fmt: skip


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
    """The words of as many elements, `lead` elements before `words`, of which `before` are those ahead."""
    W: tl.constexpr = len(words)
    EACH: tl.constexpr = 32 // dtype.primitive_bitwidth  # elements a word
    every = before + words
    ahead = W * EACH - lead
    for level in tl.static_range(5):
        if (W >> level) > 0:
            every = moved(every, W >> level, ((ahead // EACH) & (W >> level)) != 0)
    made = ()
    for w in tl.static_range(W):
        if EACH == 2:
            made = made + (tl.where(ahead % 2 != 0, (every[w] >> 16) | (every[w + 1] << 16), every[w]),)
        else:
            made = made + (every[w],)
    return made


def row_offset(x, row, outer_sizes, output_size):
    """Where a row begins in one operand, in elements."""
    return x[1] + outer_offset(row // output_size, outer_sizes, x[2]) + (row % output_size) * x[3]


def fetch_turn(
    inputs, row, turn, slot, rows, first, lane, length, outer_sizes, output_size,
    LANES: tl.constexpr, RUN: tl.constexpr, UNROLL: tl.constexpr, ALIGN: tl.constexpr, MASKED: tl.constexpr,
    RESERVED: tl.constexpr,
):  # fmt: skip
    """Begin to copy this program's share of a turn of a row, if there is such a row."""
    for i in tl.static_range(len(inputs)):
        begin = row_offset(inputs[i], row.to(tl.int64), outer_sizes, output_size)
        lead = begin % ALIGN
        source = inputs[i][0] + (begin - lead) + first
        for u in tl.static_range(UNROLL):
            at = ((turn * UNROLL + u) * LANES + lane) * RUN
            some = lane * 0 + (row < rows).to(tl.int32)
            if MASKED:
                some = some & (first + at < lead + length).to(tl.int32)
            place = RESERVED + (((slot * UNROLL + u) * len(inputs) + i) * LANES + lane) * 16
            fetch(place, (source + at).to(tl.int64), some)
    said("cp.async.commit_group; mov.u32 $0, 0;")


def held_turn(inputs, slot, lane, LANES: tl.constexpr, UNROLL: tl.constexpr, RESERVED: tl.constexpr):
    """A turn's elements, [LANES] each: of each input in turn."""
    values = ()
    for i in tl.static_range(len(inputs)):
        for u in tl.static_range(UNROLL):
            words = held(RESERVED + (((slot * UNROLL + u) * len(inputs) + i) * LANES + lane) * 16)
            values = values + unpacked(words, inputs[i][0].dtype.element_ty)
    return values


def masks_of(places, lead, length, RUN: tl.constexpr, UNROLL: tl.constexpr, LANES: tl.constexpr):
    """Which of a turn's elements are the row's."""
    masks = ()
    for u in tl.static_range(UNROLL):
        for e in tl.static_range(RUN):
            at = places + (u * LANES * RUN + e)
            masks = masks + ((at >= lead) & (at < lead + length),)
    return masks


def words_beside(
    x, place, kept, lead, RUN: tl.constexpr, HELD: tl.constexpr, TAKEN: tl.constexpr,
):  # fmt: skip
    """RUN elements' words of an extra tensor, whose first is at `place`: from memory, or `kept` where HELD."""
    words = ()
    for w in tl.static_range(TAKEN):
        if HELD:
            words = words + held(kept + w * 16)
        else:
            words = words + read((x[0] + x[1] + place + w * (RUN // TAKEN)).to(tl.int64))
    return words


def beside_of(
    extras, place, number, lead, length,
    RUN: tl.constexpr, ALIGN: tl.constexpr, MASKED: tl.constexpr, HELD: tl.constexpr, KEPT: tl.constexpr,
    VECTORS: tl.constexpr,
):  # fmt: skip
    """RUN elements of each extra tensor, beside those at `place` of a row: vector `number` of this program."""
    values = ()
    for i in tl.static_range(len(extras)):
        dtype: tl.constexpr = extras[i][0].dtype.element_ty
        TAKEN: tl.constexpr = RUN * dtype.primitive_bitwidth // 128
        kept = KEPT + (i * VECTORS + number) * TAKEN * 16
        at = place
        if MASKED:
            at = tl.minimum(place, (length - 1) // RUN * RUN)
        words = words_beside(extras[i], at, kept, lead, RUN, HELD, TAKEN)
        if ALIGN > 1:
            before = words_beside(
                extras[i], tl.maximum(tl.minimum(place - RUN, at), 0), kept, lead, RUN, HELD, TAKEN
            )
            words = shifted(before, words, lead, dtype)
        values = values + unpacked(words, dtype)
    return values


def map_turn(
    inputs, extras, y_ptrs, xs, results, y_begin, start, number, lane, lead, length,
    LANES: tl.constexpr, RUN: tl.constexpr, UNROLL: tl.constexpr, ALIGN: tl.constexpr, MASKED: tl.constexpr,
    HELD: tl.constexpr, KEPT: tl.constexpr, VECTORS: tl.constexpr,
):  # fmt: skip
    """Map a turn's elements and store what they become: whole vectors, and one by one what shares a vector with another row."""
    for u in tl.static_range(UNROLL):
        place = start + (u * LANES + lane) * RUN
        beside = beside_of(
            extras, place, number + u * LANES + lane, lead, length, RUN, ALIGN, MASKED, HELD, KEPT, VECTORS
        )
        made = ()
        for e in tl.static_range(RUN):
            values = ()
            for i in tl.static_range(len(inputs)):
                values = values + (xs[(i * UNROLL + u) * RUN + e],)
            for r in tl.static_range(len(results)):
                values = values + (results[r],)
            for i in tl.static_range(len(extras)):
                values = values + (beside[i * RUN + e],)
            made = made + (APPLY(*values),)
        some = lane * 0 + 1
        if MASKED:
            some = ((place >= lead) & (place + RUN <= lead + length)).to(tl.int32)
        for r in tl.static_range(len(y_ptrs)):
            elements = ()
            for e in tl.static_range(RUN):
                elements = elements + (tl.broadcast_to(made[e][r], (LANES,)),)
            to = y_ptrs[r] + (y_begin - lead) + place
            write(to.to(tl.int64), packed(elements, to.dtype.element_ty), some)
            if MASKED:
                if (start < lead) | (start + LANES * UNROLL * RUN > lead + length):
                    for e in tl.static_range(RUN):
                        inside = (place + e >= lead) & (place + e < lead + length) & (some == 0)
                        tl.store(to + e, elements[e].to(to.dtype.element_ty), mask=inside)


def fetch_beside(
    extras, first, lane, length,
    LANES: tl.constexpr, RUN: tl.constexpr, MASKED: tl.constexpr, KEPT: tl.constexpr, VECTORS: tl.constexpr,
):  # fmt: skip
    """Begin to copy this program's share of the extra tensors, for all rows."""
    for i in tl.static_range(len(extras)):
        TAKEN: tl.constexpr = RUN * extras[i][0].dtype.element_ty.primitive_bitwidth // 128
        for v in tl.static_range(VECTORS // LANES):
            place = first + (v * LANES + lane) * RUN
            some = lane * 0 + 1
            if MASKED:
                some = (place < length).to(tl.int32)
            for w in tl.static_range(TAKEN):
                at = KEPT + ((i * VECTORS + v * LANES + lane) * TAKEN + w) * 16
                fetch(at, (extras[i][0] + extras[i][1] + place + w * (RUN // TAKEN)).to(tl.int64), some)
    said("cp.async.commit_group; mov.u32 $0, 0;")


def map_rings(
    inputs, extras, y_ptrs, y_outer, y_output, outer_sizes, output_size, length, rows,
    LANES: tl.constexpr, RUN: tl.constexpr, UNROLL: tl.constexpr, TURNS: tl.constexpr, DEPTH: tl.constexpr,
    ALIGN: tl.constexpr, MASKED: tl.constexpr, HELD: tl.constexpr, CLUSTER: tl.constexpr, MEETING: tl.constexpr,
    FIRST: tl.constexpr, WAITING: tl.constexpr, RESERVED: tl.constexpr,
):  # fmt: skip
    """Fold and map rows, each held by CLUSTER programs in TURNS turns of their rings of DEPTH turns.

    The programs of cluster c take the rows c, c + clusters, and so on. FIRST and WAITING are PTX: they wait until all but the
    ring's DEPTH turns have come, and until the next TURNS turns have. HELD: extra tensors are kept behind the ring. Results
    are [LANES] elements a store, whole vectors.
    """
    VECTORS: tl.constexpr = TURNS * UNROLL * LANES
    KEPT: tl.constexpr = RESERVED + DEPTH * UNROLL * LANES * 16 * len(inputs)
    split = tl.program_id(0) % CLUSTER
    cluster = tl.program_id(0) // CLUSTER
    clusters = tl.num_programs(0) // CLUSTER
    lane = tl.arange(0, LANES)
    first = split * (VECTORS * RUN)
    if CLUSTER > 1:
        begin_meeting(MEETING)
    if HELD:
        fetch_beside(extras, first, lane, length, LANES, RUN, MASKED, KEPT, VECTORS)
    for turn in range(DEPTH):
        fetch_turn(
            inputs, cluster + turn // TURNS * clusters, turn % TURNS, turn, rows, first, lane, length, outer_sizes,
            output_size, LANES, RUN, UNROLL, ALIGN, MASKED, RESERVED,
        )  # fmt: skip
    if HELD:
        said(FIRST)
        tl.debug_barrier()
    if CLUSTER > 1:
        others_have_begun()
    number = 0 * split
    oldest = 0 * split
    for row in range(cluster, rows, clusters):
        begin = row_offset(inputs[0], row.to(tl.int64), outer_sizes, output_size)
        lead = (begin % ALIGN).to(tl.int32)
        y = (0, 0, y_outer, y_output)
        y_begin = row_offset(y, row.to(tl.int64), outer_sizes, output_size)
        said(WAITING)
        xs = held_turn(inputs, oldest, lane, LANES, UNROLL, RESERVED)
        state = begun(xs, first, lane, lead, length, LANES, RUN, UNROLL, MASKED)
        for turn in range(1, TURNS):
            xs = held_turn(inputs, (oldest + turn) % DEPTH, lane, LANES, UNROLL, RESERVED)
            state = absorbed(
                state, xs, first + turn * (UNROLL * LANES * RUN), lane, lead, length, LANES, RUN, UNROLL, MASKED
            )
        whole = tl.reduce(state, 0, COMBINE_SYMMETRIC)
        if CLUSTER > 1:
            whole = met_in_turn(whole, CLUSTER, number)
        results = PROJECT(*whole)
        for turn in range(TURNS):
            slot = (oldest + turn) % DEPTH
            xs = held_turn(inputs, slot, lane, LANES, UNROLL, RESERVED)
            map_turn(
                inputs, extras, y_ptrs, xs, results, y_begin, first + turn * (UNROLL * LANES * RUN),
                turn * (UNROLL * LANES), lane, lead, length, LANES, RUN, UNROLL, ALIGN, MASKED, HELD, KEPT, VECTORS,
            )  # fmt: skip
            ahead = turn + DEPTH
            fetch_turn(
                inputs, row + ahead // TURNS * clusters, ahead % TURNS, slot, rows, first, lane, length, outer_sizes,
                output_size, LANES, RUN, UNROLL, ALIGN, MASKED, RESERVED,
            )  # fmt: skip
        number += 1
        oldest = (oldest + TURNS) % DEPTH


def begun(
    xs, start, lane, lead, length,
    LANES: tl.constexpr, RUN: tl.constexpr, UNROLL: tl.constexpr, MASKED: tl.constexpr,
):  # fmt: skip
    """Each thread's state of a first turn, at `start` of its row."""
    if MASKED:
        if (start >= lead) & (start + LANES * UNROLL * RUN <= lead + length):
            state = LANE_BEGIN(*xs)
        else:
            state = LANE_BEGIN_MASKED(*masks_of(start + lane * RUN, lead, length, RUN, UNROLL, LANES), *xs)
    else:
        state = LANE_BEGIN(*xs)
    return state


def absorbed(
    state, xs, start, lane, lead, length,
    LANES: tl.constexpr, RUN: tl.constexpr, UNROLL: tl.constexpr, MASKED: tl.constexpr,
):  # fmt: skip
    """Each thread's state with a further turn, at `start` of its row."""
    if MASKED:
        if (start >= lead) & (start + LANES * UNROLL * RUN <= lead + length):
            state = LANE_ABSORB(*state, *xs)
        else:
            masks = masks_of(start + lane * RUN, lead, length, RUN, UNROLL, LANES)
            state = LANE_ABSORB_MASKED(*masks, *state, *xs)
    else:
        state = LANE_ABSORB(*state, *xs)
    return state
