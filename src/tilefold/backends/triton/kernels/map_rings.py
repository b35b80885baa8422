"""The kernel that holds rows in shared memory while they are folded and mapped: one read, one write, however many registers.

A program, or each of a cluster of them, keeps a ring of turns in its shared memory: a turn is UNROLL vectors of 16 bytes a
thread. Persistent programs take one row after another. Where a row's turn was mapped, the ring's place takes a turn of a
later row at once (`cp.async`), so that loads are on their way while a row is folded, while its cluster's states are combined,
and while it is mapped. A thread fetches the very vectors that it reads, so threads wait for each other only where a row's
states are combined.

Every tensor here is [LANES], LANES the program's threads: each holds one number. Triton has no words for shared memory that
outlives a statement, so these are PTX. The ring lies in the dynamic shared memory, RESERVED bytes from its start, behind what
Triton uses itself. LANE_BEGIN and LANE_ABSORB (also _MASKED) take a turn's elements, a tensor each, into each thread's state.
"""

import triton.language as tl

from tilefold.backends.triton.kernels.clusters import begin_exchange, combine_cluster, others_have_begun
from tilefold.backends.triton.kernels.primitives import (
    beside_rows,
    fetch,
    inline_ptx,
    load_shared,
    memory,
    own_memory,
    packed,
    read,
    row_offset,
    shifted,
    some_of,
    unpacked,
    write,
)


def fetch_turn(inputs, row, turn, slot, rows, first, lane, thread, length, walk, ring, RING: tl.constexpr):
    """Begin to copy this program's share of a turn of a row, if there is such a row."""
    for i in tl.static_range(len(inputs)):
        begin = row_offset(inputs[i], row, walk, inputs[i].shift)
        lead = begin % RING.ALIGN
        source = inputs[i].pointer + (begin - lead) + first
        for u in tl.static_range(RING.UNROLL):
            at = ((turn * RING.UNROLL + u) * RING.LANES + lane) * RING.RUN
            some = thread * 0 + (row < rows).to(tl.int32)
            if RING.MASKED:
                some = some & ((first + at < lead + length) & (at < RING.SHARE)).to(tl.int32)
            place = ring + (((slot * RING.UNROLL + u) * len(inputs) + i) * (RING.LANES * RING.ROWS) + thread) * 16
            fetch(place, (source + at).to(tl.int64), some)
    inline_ptx("cp.async.commit_group; mov.u32 $0, 0;")


def fetch_item(
    inputs, block, clusters, member, item: tl.constexpr, slot, rows, first, lane, thread, length, walk, ring,
    RING: tl.constexpr, AGAIN: tl.constexpr,
):  # fmt: skip
    """Begin to copy a ring's next turns: a row's turns, then the first AGAIN of them again."""
    fetch_turn(
        inputs, (block + item // (RING.TURNS + AGAIN) * clusters) * RING.ROWS + member,
        item % (RING.TURNS + AGAIN) % RING.TURNS, slot, rows, first, lane, thread, length, walk, ring, RING,
    )  # fmt: skip


def held_turn(inputs, slot, thread, ring, THREADS: tl.constexpr, UNROLL: tl.constexpr):
    """A turn's elements, a number a thread each: of each input in turn."""
    values = ()
    for i in tl.static_range(len(inputs)):
        for u in tl.static_range(UNROLL):
            words = load_shared(ring + (((slot * UNROLL + u) * len(inputs) + i) * THREADS + thread) * 16)
            values = values + unpacked(words, inputs[i].pointer.dtype.element_ty)
    return values


def masks_of(places, lead, length, RING: tl.constexpr):
    """Which of a turn's elements are the row's. MASKED as in `map_rings`."""
    masks = ()
    for u in tl.static_range(RING.UNROLL):
        present = places + u * RING.LANES * RING.RUN < length
        for e in tl.static_range(RING.RUN):
            if RING.MASKED == 1:
                masks = masks + (present,)
            else:
                at = places + (u * RING.LANES * RING.RUN + e)
                masks = masks + ((at >= lead) & (at < lead + length),)
    return masks


def read_run(x, place, length, RUN: tl.constexpr, MASKED: tl.constexpr):
    """The words of RUN neighbours of an extra tensor, from `place` on, a multiple of RUN; those beyond `length` are any."""
    EACH: tl.constexpr = 128 // x.pointer.dtype.element_ty.primitive_bitwidth
    words = ()
    for w in tl.static_range(RUN // EACH):
        at = place + w * EACH
        if MASKED:
            at = tl.maximum(tl.minimum(at, (length - 1) // EACH * EACH), 0)
        words = words + read((x.pointer + x.shift + at).to(tl.int64))
    return words


def read_turn(extras, start, lane, lead, length, RING: tl.constexpr):
    """The words of a turn's elements of each extra tensor: of each vector, and with ALIGN of the one before it.

    Where `lead` is 0, of each vector twice.
    """
    words = ()
    for i in tl.static_range(len(extras)):
        for u in tl.static_range(RING.UNROLL):
            place = start + (u * RING.LANES + lane) * RING.RUN
            words = words + read_run(extras[i], place, length, RING.RUN, RING.MASKED)
            if RING.ALIGN > 1:
                words = words + read_run(extras[i], place - tl.where(lead != 0, RING.RUN, 0), length, RING.RUN, RING.MASKED)
    return words


def none_of(words):
    """As many words, all 0."""
    found = ()
    for w in tl.static_range(len(words)):
        found = found + (words[w] * 0,)
    return found


def beside_one(
    x, words, held_at, lead, number: tl.constexpr,
    RUN: tl.constexpr, ALIGN: tl.constexpr, HELD: tl.constexpr,
):  # fmt: skip
    """RUN elements of one extra tensor: vector `number` of `words`, or HELD: `held_at` in shared memory."""
    dtype: tl.constexpr = x.pointer.dtype.element_ty
    W: tl.constexpr = RUN * dtype.primitive_bitwidth // 32
    if HELD:
        own = load_shared(held_at)
    elif ALIGN > 1:
        own = some_of(words, number * 2 * W, W)
        own = shifted(some_of(words, (number * 2 + 1) * W, W), own, lead, dtype)
    else:
        own = some_of(words, number * W, W)
    return unpacked(own, dtype)


def beside_of(
    extras, words, held_at, lead, u: tl.constexpr,
    RUN: tl.constexpr, UNROLL: tl.constexpr, ALIGN: tl.constexpr, HELD: tl.constexpr, EACH: tl.constexpr,
):  # fmt: skip
    """RUN elements of each extra tensor, beside vector `u` of a turn; those that are HELD are EACH bytes from each other."""
    values = ()
    for i in tl.static_range(len(extras)):
        values = values + beside_one(extras[i], words, held_at + i * EACH, lead, i * UNROLL + u, RUN, ALIGN, HELD)
    return values


def map_turn(
    inputs, extras, words, y_ptrs, xs, results, y_begin, start, held_at, lane, thread, lead, length, present,
    RING: tl.constexpr, MASK_ROWS: tl.constexpr, HELD: tl.constexpr, EACH: tl.constexpr,
):  # fmt: skip
    """Map a turn's elements and store them: whole vectors, and one by one the elements that share one with another row."""
    for u in tl.static_range(RING.UNROLL):
        place = start + (u * RING.LANES + lane) * RING.RUN
        beside = beside_of(
            extras, words, held_at + (u * RING.LANES + lane) * 16, lead, u, RING.RUN, RING.UNROLL, RING.ALIGN, HELD, EACH,
        )  # fmt: skip
        made = ()
        for e in tl.static_range(RING.RUN):
            values = ()
            for i in tl.static_range(len(inputs)):
                values = values + (xs[(i * RING.UNROLL + u) * RING.RUN + e],)
            for r in tl.static_range(len(results)):
                values = values + (results[r],)
            for i in tl.static_range(len(extras)):
                values = values + (beside[i * RING.RUN + e],)
            made = made + (APPLY(*values),)
        some = thread * 0 + 1
        if MASK_ROWS:
            some = some & present
        whole = some
        if RING.MASKED == 1:
            whole = some & (place < length).to(tl.int32)
        elif RING.MASKED:
            whole = some & ((place >= lead) & (place + RING.RUN <= lead + length)).to(tl.int32)
        for r in tl.static_range(len(y_ptrs)):
            elements = ()
            for e in tl.static_range(RING.RUN):
                elements = elements + (tl.broadcast_to(made[e][r], thread.shape),)
            to = y_ptrs[r] + (y_begin - lead) + place
            write(to.to(tl.int64), packed(elements, to.dtype.element_ty), whole)
            if RING.MASKED > 1 and RING.ROWS == 1:
                if (start < lead) | (start + RING.LANES * RING.UNROLL * RING.RUN > lead + length):
                    write_edges(to, elements, place, lead, length, (some != 0) & (whole == 0), RING.RUN)
            elif RING.MASKED > 1:
                write_edges(to, elements, place, lead, length, (some != 0) & (whole == 0), RING.RUN)


def write_edges(to, elements, place, lead, length, some, RUN: tl.constexpr):
    """One by one: elements of `some` vectors that are not whole."""
    for e in tl.static_range(RUN):
        inside = (place + e >= lead) & (place + e < lead + length) & some
        tl.store(tl.broadcast_to(to + e, some.shape), elements[e].to(to.dtype.element_ty), mask=inside)


def fetch_beside(extras, first, lane, length, held_at, RING: tl.constexpr, TAKEN: tl.constexpr, EACH: tl.constexpr):
    """Begin to copy this program's share of the extra tensors, TAKEN vectors a thread, for all rows."""
    for i in tl.static_range(len(extras)):
        for v in tl.static_range(TAKEN):
            place = first + (v * RING.LANES + lane) * RING.RUN
            some = lane * 0 + 1
            if RING.MASKED:
                some = (place < length).to(tl.int32)
            source = extras[i].pointer + extras[i].shift + place
            fetch(held_at + (v * RING.LANES + lane) * 16 + i * EACH, source.to(tl.int64), some)
    inline_ptx("cp.async.commit_group; mov.u32 $0, 0;")


def map_rings(
    inputs, extras, y, walk, length, rows, of_rows, RING: tl.constexpr, MASK_ROWS: tl.constexpr, HELD: tl.constexpr,
    CLUSTER: tl.constexpr, EXCHANGE: tl.constexpr, OWN: tl.constexpr, FIRST: tl.constexpr, WAITING: tl.constexpr,
    PARTS: tl.constexpr, PERSISTENT: tl.constexpr, RESERVED: tl.constexpr, AHEAD: tl.constexpr, SCALED: tl.constexpr,
    EXTRAS: tl.constexpr,
):  # fmt: skip
    """Fold and map rows: ROWS by a program, or one by CLUSTER programs, in TURNS turns of their rings of DEPTH turns.

    A program owns ROWS rows, or SHARE elements of one; PERSISTENT: one row after another. It reads each element once, holds
    DEPTH turns in shared memory, folds them, and maps and writes them from there. MASKED: 0 where all turns are full, 1
    where whole vectors of a program's last turn may be none of its share, 2 where those of its first and last turn may be
    partly a row's, 3 of any. OWN, FIRST and WAITING are PTX: it declares a ring beside Triton's memory, if it is not empty;
    waits until all but the ring's DEPTH turns have come, and for each part of a row's turns, up to turn PARTS, until these
    have. HELD: extra tensors are held behind the ring; else words of AHEAD turns are on their way, or in registers where
    these are all. A ring of fewer turns than a row has takes the first AGAIN turns again, when it has folded all.

    SCALED: a row is folded without units of squares, and by the same code once more, or twice, times a power of two where
    NEXT_SCALE says that this state does not hold it (algebra/units). No second copy of the code: registers and instructions
    of a path that is not taken cost as much as units do (docs/experiments/answers.md#units).
    """
    row_extras = [extras[i] for i in EXTRAS.OF_ROWS]
    extras = [extras[i] for i in EXTRAS.BESIDE]
    TAKEN: tl.constexpr = RING.TURNS * RING.UNROLL
    EACH: tl.constexpr = TAKEN * RING.LANES * 16
    TURN: tl.constexpr = RING.UNROLL * RING.LANES * RING.RUN
    AGAIN: tl.constexpr = max(0, RING.TURNS - RING.DEPTH)
    split = tl.program_id(0) % CLUSTER
    cluster = tl.program_id(0) // CLUSTER
    clusters = tl.num_programs(0) // CLUSTER
    if RING.ROWS > 1:
        lane = tl.arange(0, RING.LANES)[None, :]
        member = tl.arange(0, RING.ROWS)[:, None]
        thread = member * RING.LANES + lane
    else:
        lane = tl.arange(0, RING.LANES)
        member = 0
        thread = lane
    if OWN == "":
        ring = memory() + RESERVED
    else:
        inline_ptx(OWN)
        ring = own_memory()
    held_at = ring + RING.DEPTH * RING.UNROLL * RING.LANES * RING.ROWS * 16 * len(inputs)
    if SCALED and RING.ROWS > 1:
        inline_ptx(".reg .b32 %looking; mov.u32 $0, 0;")
    first = split * RING.SHARE
    if CLUSTER > 1:
        begin_exchange(EXCHANGE)
    if HELD:
        fetch_beside(extras, first, lane, length, held_at, RING, TAKEN, EACH)
    for turn in range(RING.DEPTH):
        fetch_turn(
            inputs, (cluster + turn // RING.TURNS * clusters) * RING.ROWS + member, turn % RING.TURNS, turn, rows, first,
            lane, thread, length, walk, ring, RING,
        )  # fmt: skip
    if HELD:
        inline_ptx(FIRST)
        tl.debug_barrier()
    if CLUSTER > 1:
        others_have_begun()
    ahead = ()
    if not HELD:
        lead = (row_offset(inputs[0], cluster * RING.ROWS + member, walk, inputs[0].shift) % RING.ALIGN).to(tl.int32)
        for soon in tl.static_range(AHEAD):
            ahead = ahead + read_turn(extras, first + (soon + AGAIN) % RING.TURNS * TURN, lane, lead, length, RING)
    number = 0 * split
    oldest = 0 * split
    for block in range(cluster, (rows + RING.ROWS - 1) // RING.ROWS, clusters):
        row = block * RING.ROWS + member
        begin = row_offset(inputs[0], row, walk, inputs[0].shift)
        lead = (begin % RING.ALIGN).to(tl.int32)
        own = length  # elements from `lead` on to the end of this program's share
        if RING.MASKED:
            own = tl.minimum(first + RING.SHARE - lead, length)
        y_begin = row_offset(y, row, walk)
        taken = load_of_rows(row_extras, row, rows, walk)
        if SCALED:
            scale = tl.full([RING.ROWS, RING.LANES] if RING.ROWS > 1 else [], 1.0, tl.float32)
            whole = IDENTITY(scale.shape)
            looking = number == number
            while looking:
                whole = folded(
                    inputs, scale, block, clusters, member, oldest, number, rows, first, lane, thread, lead, own, length,
                    walk, ring, RING, CLUSTER, WAITING, PARTS,
                )  # fmt: skip
                number += 1
                if RING.ROWS > 1:
                    whole = over_threads(beside_rows(whole), thread)
                (following,) = NEXT_SCALE(scale, *whole)
                looking = any_of_rows(following != scale, RING.LANES) if RING.ROWS > 1 else any_of(following != scale)
                scale = following
                if AGAIN > 0:
                    if looking:
                        for turn in range(RING.DEPTH):
                            fetch_turn(
                                inputs, block * RING.ROWS + member, turn, (oldest + turn) % RING.DEPTH, rows, first, lane,
                                thread, length, walk, ring, RING,
                            )  # fmt: skip
            results = PROJECT_SCALED(scale, *whole)
        else:
            whole = folded(
                inputs, None, block, clusters, member, oldest, number, rows, first, lane, thread, lead, own, length, walk,
                ring, RING, CLUSTER, WAITING, PARTS,
            )  # fmt: skip
            number += 1
            results = PROJECT(*whole)
            if RING.ROWS > 1:
                results = beside_rows(results)
        if len(of_rows.pointers) > 0:
            r_begin = row_offset(of_rows, row, walk)
            store_of_rows(of_rows.pointers, r_begin, results, thread, (lane == 0) & (row < rows) & (split == 0))
        results = results + taken
        if AHEAD > 1 or AGAIN > 0:
            for place in tl.static_range(RING.TURNS):
                slot = (oldest + place + AGAIN) % RING.DEPTH
                if AGAIN > 0 and place >= RING.DEPTH:
                    inline_ptx(tl.constexpr(WAITING[RING.TURNS]))
                xs = held_turn(inputs, slot, thread, ring, RING.LANES * RING.ROWS, RING.UNROLL)
                words = some_of(ahead, 0, len(ahead) // AHEAD)
                ahead = some_of(ahead, len(ahead) // AHEAD, len(ahead) // AHEAD * (AHEAD - 1)) + words
                if (place + AHEAD < RING.TURNS or PERSISTENT) and AHEAD < RING.TURNS:
                    following = first + (place + AGAIN + AHEAD) % RING.TURNS * TURN
                    ahead = some_of(ahead, 0, len(words) * (AHEAD - 1)) + read_turn(
                        extras, following, lane, lead, length, RING,
                    )  # fmt: skip
                map_turn(
                    inputs, extras, words, y.pointers, xs, results, y_begin, first + (place + AGAIN) % RING.TURNS * TURN,
                    held_at + (place + AGAIN) % RING.TURNS * (RING.UNROLL * RING.LANES * 16), lane, thread, lead, own,
                    (row < rows).to(tl.int32), RING, MASK_ROWS, HELD, EACH,
                )  # fmt: skip
                if PERSISTENT or AGAIN > 0:
                    fetch_item(
                        inputs, block, clusters, member, place + AGAIN + RING.DEPTH, slot, rows, first, lane, thread,
                        length, walk, ring, RING, AGAIN,
                    )  # fmt: skip
            if not PERSISTENT:
                ahead = none_of(ahead)
        else:
            for turn in range(RING.TURNS):
                slot = (oldest + turn) % RING.DEPTH
                xs = held_turn(inputs, slot, thread, ring, RING.LANES * RING.ROWS, RING.UNROLL)
                words = ahead
                if (RING.TURNS > 1 or (RING.ALIGN > 1 and PERSISTENT)) and not HELD:
                    ahead_lead = lead
                    if RING.ALIGN > 1 and PERSISTENT:  # after its last turn, the next row's first
                        after = row_offset(inputs[0], (block + clusters) * RING.ROWS + member, walk, inputs[0].shift)
                        ahead_lead = tl.where(turn == RING.TURNS - 1, (after % RING.ALIGN).to(tl.int32), lead)
                    following = first + (turn + 1) % RING.TURNS * TURN
                    ahead = read_turn(extras, following, lane, ahead_lead, length, RING)
                map_turn(
                    inputs, extras, words, y.pointers, xs, results, y_begin, first + turn * TURN,
                    held_at + turn * (RING.UNROLL * RING.LANES * 16), lane, thread, lead, own, (row < rows).to(tl.int32),
                    RING, MASK_ROWS, HELD, EACH,
                )  # fmt: skip
                later = turn + RING.DEPTH
                if PERSISTENT:
                    fetch_turn(
                        inputs, (block + later // RING.TURNS * clusters) * RING.ROWS + member, later % RING.TURNS, slot,
                        rows, first, lane, thread, length, walk, ring, RING,
                    )  # fmt: skip
        oldest = (oldest + RING.TURNS + AGAIN) % RING.DEPTH


def load_of_rows(row_extras, row, rows, walk):
    """What rows have one value of each, before they are folded."""
    values = ()
    for i in tl.static_range(len(row_extras)):
        value = tl.load(row_extras[i].pointer + row_offset(row_extras[i], row, walk, row_extras[i].shift), mask=row < rows)
        if value.dtype.primitive_bitwidth == 16:
            value = value.to(tl.float32)
        values = values + (value,)
    return values


def store_of_rows(r_ptrs, begin, results, thread, mask):
    """Write what is stored of each row: OF_ROWS of what it folds to."""
    made = OF_ROWS(*results)
    for r in tl.static_range(len(r_ptrs)):
        value = tl.broadcast_to(made[r], thread.shape)
        tl.store(tl.broadcast_to(r_ptrs[r] + begin, thread.shape), value, mask=tl.broadcast_to(mask, thread.shape))


def folded(
    inputs, scale, block, clusters, member, oldest, number, rows, first, lane, thread, lead, own, length, walk, ring,
    RING: tl.constexpr, CLUSTER: tl.constexpr, WAITING: tl.constexpr, PARTS: tl.constexpr,
):  # fmt: skip
    """Fold a row's elements times `scale` as its turns come; a ring of fewer turns takes the others on the way."""
    TURN: tl.constexpr = RING.UNROLL * RING.LANES * RING.RUN
    AGAIN: tl.constexpr = max(0, RING.TURNS - RING.DEPTH)
    inline_ptx(tl.constexpr(WAITING[0]))
    xs = scaled(held_turn(inputs, oldest, thread, ring, RING.LANES * RING.ROWS, RING.UNROLL), scale)
    state = begun(xs, first, lane, thread, lead, own, RING, RING.TURNS == 1)
    if AGAIN > 0:
        fetch_item(
            inputs, block, clusters, member, RING.DEPTH, oldest, rows, first, lane, thread, length, walk, ring, RING, AGAIN,
        )  # fmt: skip
        for item in tl.static_range(1, RING.TURNS):
            inline_ptx(tl.constexpr(WAITING[item]))
            slot = (oldest + item) % RING.DEPTH
            xs = scaled(held_turn(inputs, slot, thread, ring, RING.LANES * RING.ROWS, RING.UNROLL), scale)
            state = absorbed(state, xs, first + item * TURN, lane, thread, lead, own, RING, item == RING.TURNS - 1)
            if item < AGAIN:
                fetch_item(
                    inputs, block, clusters, member, item + RING.DEPTH, slot, rows, first, lane, thread, length, walk, ring,
                    RING, AGAIN,
                )  # fmt: skip
    else:
        for part in tl.static_range(len(PARTS)):
            if part > 0:
                inline_ptx(tl.constexpr(WAITING[part]))
            for turn in range(PARTS[part - 1] if part > 0 else 1, PARTS[part]):
                xs = scaled(
                    held_turn(inputs, (oldest + turn) % RING.DEPTH, thread, ring, RING.LANES * RING.ROWS, RING.UNROLL),
                    scale,
                )  # fmt: skip
                state = absorbed(state, xs, first + turn * TURN, lane, thread, lead, own, RING, False)
        if PARTS[-1] < RING.TURNS:
            inline_ptx(tl.constexpr(WAITING[len(PARTS)]))
            xs = scaled(
                held_turn(inputs, (oldest + RING.TURNS - 1) % RING.DEPTH, thread, ring, RING.LANES * RING.ROWS, RING.UNROLL),
                scale,
            )  # fmt: skip
            state = absorbed(state, xs, first + (RING.TURNS - 1) * TURN, lane, thread, lead, own, RING, True)
    if RING.ROWS > 1:
        whole = tl.reduce(state, 1, COMBINE_SYMMETRIC)
    else:
        whole = tl.reduce(state, 0, COMBINE_SYMMETRIC)
        if CLUSTER > 1:
            whole = combine_cluster(whole, CLUSTER, 1, number)
    return whole


def scaled(xs, scale):
    """Elements times a power of two, if there is one."""
    found = ()
    for x in tl.static_range(len(xs)):
        if scale is None:
            found = found + (xs[x],)
        else:
            found = found + (xs[x] * scale,)
    return found


def any_of(flag):
    """A flag that all threads have alike, in a form from which the compiler knows that a warp's have."""
    some = tl.inline_asm_elementwise(
        "{ .reg .pred some; setp.ne.b32 some, $1, 0; vote.sync.any.pred some, some, 0xffffffff; selp.b32 $0, 1, 0, some; }",
        "=r,r", [flag.to(tl.int32)], dtype=tl.int32, is_pure=True, pack=1,
    )  # fmt: skip
    return some != 0


def any_of_rows(flags, LANES: tl.constexpr):
    """Whether any row has its flag: of the warp's rows, which warps may find otherwise, or of all where warps share rows.

    `flags` lie as threads do. What a thread has of a tensor comes to a number by a register that `map_rings` declares.
    """
    VOTE: tl.constexpr = (
        "vote.sync.any.pred some, some, 0xffffffff;" if LANES <= 32 else "barrier.cta.red.or.pred some, 0, some;"
    )
    tl.inline_asm_elementwise(
        "{ .reg .pred some; setp.ne.b32 some, $1, 0; " + VOTE + " selp.b32 %looking, 1, 0, some; mov.u32 $0, 0; }",
        "=r,r", [flags.to(tl.int32)], dtype=tl.int32, is_pure=False, pack=1,
    )  # fmt: skip
    return tl.inline_asm_elementwise("mov.u32 $0, %looking;", "=r", [], dtype=tl.int32, is_pure=False, pack=1) != 0


def over_threads(values, thread):
    """Each of some values over all threads."""
    found = ()
    for v in tl.static_range(len(values)):
        found = found + (tl.broadcast_to(values[v], thread.shape),)
    return found


def begun(xs, start, lane, thread, lead, length, RING: tl.constexpr, LAST: tl.constexpr):
    """Each thread's state of a first turn, at `start` of its row."""
    if RING.MASKED and RING.ROWS > 1:
        masks = over_threads(masks_of(start + lane * RING.RUN, lead, length, RING), thread)
        state = LANE_BEGIN_MASKED(*masks, *xs)
    elif RING.MASKED == 1:
        if LAST:
            masks = masks_of(start + lane * RING.RUN, lead, length, RING)
            state = LANE_BEGIN_MASKED(*masks, *xs)
        else:
            state = LANE_BEGIN(*xs)
    elif RING.MASKED:
        if (start >= lead) & (start + RING.LANES * RING.UNROLL * RING.RUN <= lead + length):
            state = LANE_BEGIN(*xs)
        else:
            state = LANE_BEGIN_MASKED(*masks_of(start + lane * RING.RUN, lead, length, RING), *xs)
    else:
        state = LANE_BEGIN(*xs)
    return state


def absorbed(state, xs, start, lane, thread, lead, length, RING: tl.constexpr, LAST: tl.constexpr):
    """Each thread's state with a further turn, at `start` of its row."""
    if RING.MASKED and RING.ROWS > 1:
        masks = over_threads(masks_of(start + lane * RING.RUN, lead, length, RING), thread)
        state = LANE_ABSORB_MASKED(*masks, *state, *xs)
    elif RING.MASKED == 1:
        if LAST:
            masks = masks_of(start + lane * RING.RUN, lead, length, RING)
            state = LANE_ABSORB_MASKED(*masks, *state, *xs)
        else:
            state = LANE_ABSORB(*state, *xs)
    elif RING.MASKED == 3 or (RING.MASKED == 2 and LAST):
        if (start >= lead) & (start + RING.LANES * RING.UNROLL * RING.RUN <= lead + length):
            state = LANE_ABSORB(*state, *xs)
        else:
            masks = masks_of(start + lane * RING.RUN, lead, length, RING)
            state = LANE_ABSORB_MASKED(*masks, *state, *xs)
    else:
        state = LANE_ABSORB(*state, *xs)
    return state
