"""The k best elements of rows, in two steps: the best element of each group, then the elements of the k best groups.

The order is total: by value, then by lower place. So the k best elements of a row are in those k groups whose own best
elements are best, whatever the order of the row. A row is read once, at a few instructions an element; k of its groups are
read again, mostly from the L2.

Arguments:
    x_ptr, shift    the first element is `shift` after the pointer
    x_rows, y_rows  Strided, of the rows' dims
    x_step, y_step  one step along a row, and along its k results

A vector is RUN neighbouring places. In a tile, [LANES, ROWS, UNROLL, RUN], lane l has the vectors l, LANES + l ...: Triton
gives threads to the contiguous axis and then from the left, so the last two axes stay inside a thread. A group is the vectors
at the same lane and unroll of TURNS tiles.
"""

import triton.language as tl

from tilefold.backends.triton.kernels.moves import strided_offset


def greater(a, b):
    """The greater of two values; NaN is greatest."""
    return tl.maximum(a, b, propagate_nan=tl.PropagateNan.ALL)


def lesser(a, b):
    """The lesser of two values; NaN is greatest, as a device's minimum has it."""
    return tl.minimum(a, b)


def lesser_by_comparison(a, b):
    """The same where minimum propagates NaN, as the interpreter's does."""
    return tl.where((a <= b) | (b != b), a, b)


def higher(a, b):
    """The higher of two keys."""
    return tl.maximum(a, b)


def best_of_vectors(x, LARGEST: tl.constexpr, DROPS_NAN: tl.constexpr):
    """[LANES, ROWS, UNROLL, RUN] values -> [LANES, ROWS, UNROLL]."""
    if x.dtype.is_floating() and x.dtype.primitive_bitwidth < 32:
        x = x.to(tl.float32)
    if LARGEST:
        best = tl.reduce(x, 3, greater)
    elif DROPS_NAN:
        best = tl.reduce(x, 3, lesser)
    else:
        best = tl.reduce(x, 3, lesser_by_comparison)
    return best


def order_key(x, LARGEST: tl.constexpr, SHORT: tl.constexpr, HALF: tl.constexpr):
    """Integers in the order of values, best highest: NaN is greatest, both zeros are equal. SHORT: of at most 16 bits.

    `x` may be a narrow float widened to float32: HALF says that it was float16, whose bits are not float32's upper ones.
    """
    if x.dtype == tl.float64:
        bits = (x + 0.0).to(tl.int64, bitcast=True)
        key = tl.where(x != x, 0x7FFFFFFFFFFFFFFF, bits ^ ((bits >> 63) & 0x7FFFFFFFFFFFFFFF))
    elif x.dtype.is_floating() and SHORT and HALF:
        bits = (x + 0.0).to(tl.float16).to(tl.int16, bitcast=True).to(tl.int32)
        key = tl.where(x != x, 0x7FFF, bits ^ ((bits >> 31) & 0x7FFF))
    elif x.dtype.is_floating():
        wide = x.to(tl.float32)
        bits = (wide + 0.0).to(tl.int32, bitcast=True)
        key = tl.where(wide != wide, 0x7FFFFFFF, bits ^ ((bits >> 31) & 0x7FFFFFFF))
        if SHORT:
            key = key >> 16
    elif x.dtype == tl.uint64:
        key = (x ^ 0x8000000000000000).to(tl.int64, bitcast=True)
    elif x.dtype == tl.int64:
        key = x
    elif x.dtype == tl.uint32:
        key = (x ^ 0x80000000).to(tl.int32, bitcast=True)
    else:
        key = x.to(tl.int32)
    if not LARGEST:
        key = ~key
    return key


def entries(key, place, ok, PACK: tl.constexpr):
    """(key, place) as what is ordered by one comparison, or by two where values have 64 bits; not `ok`: below all others."""
    if PACK == "short":
        made = (tl.where(ok, (key << 16) | (0xFFFF - place), -0x80000000),)
    elif PACK == "long":
        made = (tl.where(ok, (key.to(tl.int64) << 32) | (0xFFFFFFFF - place.to(tl.int64)), -0x8000000000000000),)
    else:
        key, place = tl.broadcast(key, place)
        made = (tl.where(ok, key, -0x8000000000000000), tl.where(ok, place, 0x7FFFFFFF))
    return made


def key_and_place(found, PACK: tl.constexpr):
    """What `entries` was given, the place in 32 bits."""
    if PACK == "short":
        made = found[0] >> 16, 0xFFFF - (found[0] & 0xFFFF)
    elif PACK == "long":
        made = found[0] >> 32, (0xFFFFFFFF - (found[0] & 0xFFFFFFFF)).to(tl.int32)
    else:
        made = found[0], found[1]
    return made


def better_entry(key_a, place_a, key_b, place_b):
    """The better of two entries."""
    second = (key_b > key_a) | ((key_b == key_a) & (place_b < place_a))
    return tl.where(second, key_b, key_a), tl.where(second, place_b, place_a)


def spread(row, AXES: tl.constexpr):
    """A value a row, beside entries in three or four axes."""
    beside = row[None, :, None]
    if AXES == 4:
        beside = beside[:, :, :, None]
    return beside


def parts_of(keys, COUNT: tl.constexpr):
    """The COUNT entries of each lane as COUNT tensors: [LANES, ROWS] each, in any order."""
    LANES: tl.constexpr = keys.shape[0]
    ROWS: tl.constexpr = keys.shape[1]
    parts = (tl.reshape(keys, (LANES, ROWS, COUNT)),)
    for level in tl.static_range(8):
        if COUNT >> (level + 1) > 0:
            pairs = [tl.split(tl.reshape(part, (LANES, ROWS, COUNT >> (level + 1), 2))) for part in parts]
            parts = [pair[0] for pair in pairs] + [pair[1] for pair in pairs]
    return [tl.reshape(part, (LANES, ROWS)) for part in parts]


def exchanged(parts, STRIDE: tl.constexpr, SIZE: tl.constexpr):
    """One step of a bitonic network: the higher of two parts that are STRIDE apart first, last in each second SIZE parts."""
    made = ()
    for i in tl.static_range(len(parts)):
        if ((i & STRIDE) == 0) == ((i & SIZE) == 0):
            made = made + (tl.maximum(parts[i], parts[i ^ STRIDE]),)
        else:
            made = made + (tl.minimum(parts[i], parts[i ^ STRIDE]),)
    return made


def best_lists(keys, COUNT: tl.constexpr, MOST: tl.constexpr):
    """The best entries of each lane in order, best first, at least MOST of them or all: a tensor [LANES, ROWS] a place."""
    parts = parts_of(keys, COUNT)
    SIZE: tl.constexpr = COUNT if COUNT < MOST else MOST
    for level in tl.static_range(8):
        if 2 << level <= SIZE:
            for step in tl.static_range(level + 1):
                parts = exchanged(parts, 1 << (level - step), 2 << level)
    # Every second list of SIZE rises: the better of what is side by side in two lists are the best of both.
    for _ in tl.static_range(8):
        if len(parts) > SIZE:
            better = ()
            for i in tl.static_range(len(parts) // 2):
                better = better + (tl.maximum(parts[i + i // SIZE * SIZE], parts[i + i // SIZE * SIZE + SIZE]),)
            parts = better
            for step in tl.static_range(8):
                if SIZE >> (step + 1) > 0:
                    parts = exchanged(parts, SIZE >> (step + 1), SIZE)
    return parts


def at_slot(found, here, best, SLOT_AXES: tl.constexpr):
    """`found` with the best entry of each row put at its place."""
    if SLOT_AXES == 2:
        found = tl.where(here, best[None, :], found)
    else:
        found = tl.where(here, best[None, :, None], found)
    return found


def without_first(lists, taken, LOWEST: tl.constexpr):
    """Lists without their first entry where it was taken."""
    left = ()
    for i in tl.static_range(len(lists) - 1):
        left = left + (tl.where(taken, lists[i + 1], lists[i]),)
    return left + (tl.where(taken, LOWEST, lists[len(lists) - 1]),)


def take_best(made, K: tl.constexpr, SLOTS: tl.constexpr, slot, AXES: tl.constexpr, SLOT_AXES: tl.constexpr):
    """The K best entries of each row (axis 1 of AXES), best first: in each round one is taken out.

    The j-th is returned wherever `slot` is j: in two axes, [slots, rows], or beside entries of three.
    """
    keys = made[0]
    LOWEST: tl.constexpr = -0x80000000 if keys.dtype == tl.int32 else -0x8000000000000000
    shape: tl.constexpr = (slot.shape[0], keys.shape[1]) if SLOT_AXES == 2 else (slot.shape[0], keys.shape[1], slot.shape[2])
    found = tl.full(shape, LOWEST, keys.dtype)
    if len(made) == 1:
        COUNT: tl.constexpr = keys.shape[2] * (keys.shape[3] if AXES == 4 else 1)
        # Entries of 32 bits are sorted with two instructions a comparison; of 64 bits that gains nothing.
        if keys.dtype == tl.int32:
            lists = best_lists(keys, COUNT, SLOTS)
            if keys.shape[0] == 1:
                for j in tl.static_range(K):
                    if j < len(lists):
                        found = at_slot(found, slot == j, tl.reshape(lists[j], (keys.shape[1],)), SLOT_AXES)
            else:
                for j in range(K):
                    best = tl.reduce(lists[0], 0, higher)
                    found = at_slot(found, slot == j, best, SLOT_AXES)
                    lists = without_first(lists, lists[0] == best[None, :], LOWEST)
        else:
            for j in range(K):
                best = keys
                if AXES == 4:
                    best = tl.reduce(best, 3, higher)
                best = tl.reduce(tl.reduce(best, 2, higher), 0, higher)
                found = at_slot(found, slot == j, best, SLOT_AXES)
                keys = tl.where(keys == spread(best, AXES), LOWEST, keys)
        result = (found,)
    else:
        places = made[1]
        found_places = tl.full(shape, 0x7FFFFFFF, places.dtype)
        for j in range(K):
            best, place = keys, places
            if AXES == 4:
                best, place = tl.reduce((best, place), 3, better_entry)
            best, place = tl.reduce((best, place), 2, better_entry)
            best, place = tl.reduce((best, place), 0, better_entry)
            if SLOT_AXES == 2:
                found = tl.where(slot == j, best[None, :], found)
                found_places = tl.where(slot == j, place[None, :], found_places)
            else:
                found = tl.where(slot == j, best[None, :, None], found)
                found_places = tl.where(slot == j, place[None, :, None], found_places)
            taken = places == spread(place, AXES)
            keys = tl.where(taken, LOWEST, keys)
            places = tl.where(taken, 0x7FFFFFFF, places)
        result = (found, found_places)
    return result


def load_vectors(
    base, q, end, rows_ok, x_step, RUN: tl.constexpr, LARGEST: tl.constexpr, VECTORS: tl.constexpr, EVICT: tl.constexpr,
):  # fmt: skip
    """Elements at places q of rows that end before `end`; those beyond are worse than any other or equal to the worst.

    VECTORS: whole vectors are loaded if their first place is inside.
    """
    element = base.dtype.element_ty
    if element.is_floating():
        pad = tl.full([], float("-inf") if LARGEST else float("nan"), tl.float32).to(element)
    else:
        WIDTH: tl.constexpr = element.primitive_bitwidth
        if element.is_int_unsigned():
            pad = tl.full([], 0 if LARGEST else (1 << WIDTH) - 1, element)
        else:
            pad = tl.full([], -(1 << (WIDTH - 1)) if LARGEST else (1 << (WIDTH - 1)) - 1, element)
    if VECTORS:
        x = tl.load(base + q, mask=(q // RUN * RUN < end) & rows_ok, other=pad, eviction_policy=EVICT)
    else:
        x = tl.load(base + q * x_step, mask=(q < end) & rows_ok, other=pad, eviction_policy=EVICT)
    return x, pad


def select_rows(
    x_ptr, y_ptrs, shift, x_rows, y_rows, x_step, y_step, rows, length, part, splits, K: tl.constexpr, SLOTS: tl.constexpr,
    TILE: tl.constexpr, DIRECT: tl.constexpr, LARGEST: tl.constexpr, PACK: tl.constexpr, PACK_GROUPS: tl.constexpr,
    DROPS_NAN: tl.constexpr, WIDE: tl.constexpr, PARTIAL: tl.constexpr, AT_ONCE: tl.constexpr, EVICT: tl.constexpr,
    RELEASE: tl.constexpr,
):  # fmt: skip
    """The K best of each row, or of a part of it.

    A program owns ROWS rows, and of these the places [split * part, (split + 1) * part). It reads each of its elements once,
    and the elements of K groups a second time. It writes values and places, or with PARTIAL keys and places, [rows, splits,
    K], for a second launch. DIRECT: rows are so short that no groups are made. AT_ONCE: tiles are read without a loop.
    With ALIGN, places count from the multiple of RUN elements before a row.
    """
    if RELEASE:
        gdc_launch_dependents()
    GROUPS: tl.constexpr = TILE.LANES * TILE.UNROLL
    SHORT: tl.constexpr = PACK == "short"
    SHORT_GROUPS: tl.constexpr = PACK_GROUPS == "short"
    HALF: tl.constexpr = x_ptr.dtype.element_ty == tl.float16
    split = tl.program_id(0) % splits
    row = (tl.program_id(0) // splits).to(tl.int64) * TILE.ROWS + tl.arange(0, TILE.ROWS)
    row_ok = row < rows
    begin = shift + strided_offset(row, x_rows)
    lead = row.to(tl.int32) * 0
    if TILE.ALIGN:
        lead = (begin % TILE.RUN).to(tl.int32)
        begin = begin // TILE.RUN * TILE.RUN
    start = split.to(tl.int64) * part
    end = tl.minimum(length + lead - start, part).to(tl.int32)
    # No row ends before: tiles up to there need no mask for each element.
    least_end = tl.minimum(length - start, part).to(tl.int32)
    first = tl.where(split == 0, lead, 0)
    base4 = (x_ptr + begin + start * x_step)[None, :, None, None]
    end4, first4, ok4 = end[None, :, None, None], first[None, :, None, None], row_ok[None, :, None, None]
    vector = tl.arange(0, TILE.UNROLL)[None, None, :] * TILE.LANES + tl.arange(0, TILE.LANES)[:, None, None]
    run = tl.arange(0, TILE.RUN)[None, None, None, :]
    if WIDE:
        run = run.to(tl.int64)
    if DIRECT:
        q = vector[:, :, :, None] * TILE.RUN + run
        x, pad = load_vectors(base4, q, end4, ok4, x_step, TILE.RUN, LARGEST, TILE.VECTORS, EVICT)
        inside = (q >= first4) & (q < end4)
    else:
        q = vector[:, :, :, None] * TILE.RUN + run
        x, pad = load_vectors(base4, q, end4, ok4, x_step, TILE.RUN, LARGEST, TILE.VECTORS, EVICT)
        if TILE.EDGES:
            x = tl.where((q >= first4) & (q < end4), x, pad)
        best = order_key(best_of_vectors(x, LARGEST, DROPS_NAN), LARGEST, SHORT_GROUPS, HALF)
        number = tl.broadcast_to(vector, best.shape)
        if AT_ONCE:
            for turn in tl.static_range(1, TILE.TURNS):
                q = (vector[:, :, :, None] + turn * GROUPS) * TILE.RUN + run
                x, pad = load_vectors(base4, q, end4, ok4, x_step, TILE.RUN, LARGEST, TILE.VECTORS, EVICT)
                if TILE.EDGES:
                    if (turn + 1) * (GROUPS * TILE.RUN) > least_end:
                        x = tl.where(q < end4, x, pad)
                key = order_key(best_of_vectors(x, LARGEST, DROPS_NAN), LARGEST, SHORT_GROUPS, HALF)
                number = tl.where(key > best, vector + turn * GROUPS, number)
                best = tl.maximum(best, key)
        else:
            q = (vector[:, :, :, None] + GROUPS) * TILE.RUN + run
            ahead, pad = load_vectors(base4, q, end4, ok4, x_step, TILE.RUN, LARGEST, TILE.VECTORS, EVICT)
            for turn in range(1, TILE.TURNS):
                x = ahead
                now = q
                q = (vector[:, :, :, None] + (turn + 1) * GROUPS) * TILE.RUN + run
                ahead, pad = load_vectors(base4, q, end4, ok4, x_step, TILE.RUN, LARGEST, TILE.VECTORS, EVICT)
                if TILE.EDGES:
                    if (turn + 1) * (GROUPS * TILE.RUN) > least_end:
                        x = tl.where(now < end4, x, pad)
                key = order_key(best_of_vectors(x, LARGEST, DROPS_NAN), LARGEST, SHORT_GROUPS, HALF)
                number = tl.where(key > best, vector + turn * GROUPS, number)
                best = tl.maximum(best, key)
        # Each lane takes vectors of the best groups: the one of turn c % TURNS_PADDED of group c // TURNS_PADDED.
        candidate = tl.arange(0, TILE.CANDIDATES)[None, None, :] * TILE.LANES + tl.arange(0, TILE.LANES)[:, None, None]
        order = candidate // TILE.TURNS_PADDED
        chosen = take_best(entries(best, number, True, PACK_GROUPS), K, SLOTS, order, 3, 3)
        group = key_and_place(chosen, PACK_GROUPS)[1] % GROUPS
        q = (candidate % TILE.TURNS_PADDED * GROUPS + group)[:, :, :, None] * TILE.RUN + run
        some = (order < K)[:, :, :, None] & ok4
        x, pad = load_vectors(base4, q, end4, some, x_step, TILE.RUN, LARGEST, TILE.VECTORS, "")
        inside = (q >= first4) & (q < end4) & some
    key = order_key(x, LARGEST, SHORT, HALF)
    slot = tl.arange(0, SLOTS)[:, None]
    final = take_best(entries(key, q.to(tl.int32), inside, PACK), K, SLOTS, slot, 4, 2)
    key, place = key_and_place(final, PACK)
    ok = (slot < K) & row_ok[None, :]
    index = start + place - lead[None, :]
    if PARTIAL:
        there = (place >= first[None, :]) & (place < end[None, :])
        at = (row[None, :] * splits + split) * K + slot
        tl.store(y_ptrs[0] + at, tl.where(there, key.to(tl.int64), -0x8000000000000000), mask=ok)
        tl.store(y_ptrs[1] + at, tl.where(there, index, 0x7FFFFFFFFFFFFFFF), mask=ok)
    else:
        value = tl.load(x_ptr + begin[None, :] + (index + lead[None, :]) * x_step, mask=ok)
        at = strided_offset(row, y_rows)[None, :] + slot.to(tl.int64) * y_step
        tl.store(y_ptrs[0] + at, value, mask=ok)
        tl.store(y_ptrs[1] + at, index, mask=ok)


def select_partials(
    x_ptr, key_ptr, place_ptr, y_ptrs, shift, x_rows, y_rows, x_step, y_step, entries_of_row,
    K: tl.constexpr, SLOTS: tl.constexpr, BLOCK: tl.constexpr, WAIT: tl.constexpr,
):  # fmt: skip
    """The K best of the entries that a row's parts have left: a program owns a row, and reads what it stores from the row."""
    row = tl.program_id(0).to(tl.int64)
    number = tl.arange(0, BLOCK)
    slot = tl.arange(0, SLOTS)
    index = tl.full((SLOTS,), 0, tl.int64)
    if WAIT:
        gdc_wait()
    there = number < entries_of_row
    keys = tl.load(key_ptr + row * entries_of_row + number, mask=there, other=-0x8000000000000000)
    places = tl.load(place_ptr + row * entries_of_row + number, mask=there, other=0x7FFFFFFFFFFFFFFF)
    for j in range(K):
        place = tl.reduce((keys, places), 0, better_entry)[1]
        index = tl.where(slot == j, place, index)
        keys = tl.where(places == place, -0x8000000000000000, keys)
        places = tl.where(places == place, 0x7FFFFFFFFFFFFFFF, places)
    ok = slot < K
    value = tl.load(x_ptr + shift + strided_offset(row, x_rows) + index * x_step, mask=ok)
    at = strided_offset(row, y_rows) + slot.to(tl.int64) * y_step
    tl.store(y_ptrs[0] + at, value, mask=ok)
    tl.store(y_ptrs[1] + at, index, mask=ok)
