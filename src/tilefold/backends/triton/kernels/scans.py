"""The kernels of scans: every prefix of every line, one tile after another, or by many programs at once.

A line is a row or a column: the elements that meet. A tile is [LINES, LENGTH] (BY_ROWS: a line's elements are neighbours in
memory) or [LENGTH, LINES] (neighbours are other lines); a state is a tuple with one tensor [LINES] a field. Tiles are scanned
by `tl.associative_scan` over the slots of a line: what a thread holds in registers one after another, then threads in order.

A reverse scan walks the tiles from the last, and its slots from the far end: addresses are mirrored, nothing is copied.
Triton makes vectors of rising addresses only, so a row's elements are then read one by one. An exclusive scan reads the
element before each slot, so that its first slot is the identity.

Arguments:
    inputs         one record an input: (pointer, outer steps, line step, step along the line), in elements
    inits          one record a field of the state before each line: (pointer, outer steps, line step)
    y_ptrs         one pointer a result; y_outer, y_line, y_step: their steps
    s_ptrs         one pointer a field of the state after each line; s_outer, s_line: their steps
    outer_sizes    dims of lines but the last: walked by whole programs
    lines, length  of the last dim of lines, and of a line

Generated beside those of folds: AS_STATE (a tuple of fields, in registers' dtypes), SELECT (of two states), WORDS (a state as
64-bit words whose upper half is 1, so that none is 0) and OF_WORDS (back), WORDS_AT (those in memory), WORDS_AGAIN (the same
after a pause), FLAGS (whether all are there).
"""

import triton.language as tl

from tilefold.backends.triton.kernels.tiles import outer_offset


def over_tile(x, BY_ROWS: tl.constexpr):
    """Something of each line over a tile."""
    return x[:, None] if BY_ROWS else x[None, :]


def near_lines(LINES: tl.constexpr, RUN: tl.constexpr, BY_ROWS: tl.constexpr):
    """Numbers of a program's lines; of columns a thread takes RUN neighbours, and then has all of their elements."""
    line = tl.arange(0, LINES)
    if not BY_ROWS:
        line = tl.max_contiguous(line, RUN)
    return line


def tile_slots(base, LENGTH: tl.constexpr, REVERSE: tl.constexpr):
    """Where a tile's slots lie along the line; the tile begins at `base` in memory."""
    slot = tl.arange(0, LENGTH)
    if REVERSE:
        slot = LENGTH - 1 - slot
    return base + slot


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


def lines_begin(inputs, outer, outer_sizes, line, BY_ROWS: tl.constexpr):
    """(pointers to each line's first element, step along it), an input."""
    return [(x[0] + over_tile(outer_offset(outer, outer_sizes, x[1]) + line * x[2], BY_ROWS), x[3]) for x in inputs]


def states_before(inits, outer, outer_sizes, line, keep, LINES: tl.constexpr, HAS_INIT: tl.constexpr):
    """The state before each line: the one given, or the identity."""
    if HAS_INIT:
        state = AS_STATE(
            *[tl.load(x[0] + outer_offset(outer, outer_sizes, x[1]) + line * x[2], mask=keep, other=0) for x in inits]
        )
    else:
        state = IDENTITY((LINES,))
    return state


def tile_elements(
    rows, places, keep, length, BY_ROWS: tl.constexpr, REVERSE: tl.constexpr, EXCLUSIVE: tl.constexpr,
    MASKED: tl.constexpr, MASK_LINES: tl.constexpr,
):  # fmt: skip
    """A tile's elements of each input; those that are not of the line are undefined."""
    at = places[None, :] if BY_ROWS else places[:, None]
    element = at
    if EXCLUSIVE:
        element = at + 1 if REVERSE else at - 1
    if MASKED or EXCLUSIVE:
        mask = (at < length) & (element >= 0) & (element < length)
        if MASK_LINES:
            mask = mask & over_tile(keep, BY_ROWS)
        xs = [tl.load(row[0] + element * row[1], mask=mask) for row in rows]
    elif MASK_LINES:
        xs = [tl.load(row[0] + element * row[1], mask=over_tile(keep, BY_ROWS)) for row in rows]
    else:
        xs = [tl.load(row[0] + element * row[1]) for row in rows]
    return xs


def scanned_tile(
    xs, places, keep, length, LENGTH: tl.constexpr, BY_ROWS: tl.constexpr,
    REVERSE: tl.constexpr, EXCLUSIVE: tl.constexpr, MASKED: tl.constexpr, MASK_LINES: tl.constexpr, carry,
    CARRY_FIRST: tl.constexpr,
):  # fmt: skip
    """A tile's elements as states, scanned within it: what is not of the line is the identity.

    CARRY_FIRST: the state before the tile meets its first element, else it is not looked at.
    """
    at = places[None, :] if BY_ROWS else places[:, None]
    element = at
    if EXCLUSIVE:
        element = at + 1 if REVERSE else at - 1
    state = LIFT(*xs, tl.broadcast_to(TO_INDEX(element), xs[0].shape))
    if MASKED or EXCLUSIVE:
        mask = (at < length) & (element >= 0) & (element < length)
        if MASK_LINES:
            mask = mask & over_tile(keep, BY_ROWS)
        state = OR_IDENTITY(tl.broadcast_to(mask, xs[0].shape), *state)
    state = AS_STATE(*[tl.broadcast_to(s, xs[0].shape) for s in state])
    if CARRY_FIRST:
        slot = tl.arange(0, LENGTH)
        first = tl.broadcast_to((slot[None, :] if BY_ROWS else slot[:, None]) == 0, xs[0].shape)
        met = COMBINE(*[tl.broadcast_to(over_tile(c, BY_ROWS), xs[0].shape) for c in carry], *state)
        state = SELECT(first, *met, *state)
    if LENGTH > 1:
        state = tl.associative_scan(state, 1 if BY_ROWS else 0, COMBINE)
    return state


def after(carry, state, BY_ROWS: tl.constexpr):
    """The states of a tile after a state of each line."""
    return COMBINE(*[tl.broadcast_to(over_tile(c, BY_ROWS), state[0].shape) for c in carry], *state)


def store_prefixes(
    y_ptrs, begin, places, step, keep, length, state, BY_ROWS: tl.constexpr, MASKED: tl.constexpr,
    MASK_LINES: tl.constexpr,
):  # fmt: skip
    """Write a tile's projected states where their elements are."""
    results = PROJECT(*state)
    at = places[None, :] if BY_ROWS else places[:, None]
    offset = over_tile(begin, BY_ROWS) + at * step
    for r in tl.static_range(len(y_ptrs)):
        result = tl.broadcast_to(results[r], state[0].shape)
        if MASKED and MASK_LINES:
            tl.store(y_ptrs[r] + offset, result, mask=(at < length) & over_tile(keep, BY_ROWS))
        elif MASKED:
            tl.store(y_ptrs[r] + offset, result, mask=tl.broadcast_to(at < length, state[0].shape))
        elif MASK_LINES:
            tl.store(y_ptrs[r] + offset, result, mask=tl.broadcast_to(over_tile(keep, BY_ROWS), state[0].shape))
        else:
            tl.store(y_ptrs[r] + offset, result)


def store_last(
    s_ptrs, inputs, carry, offset, outer, outer_sizes, line, keep, length, REVERSE: tl.constexpr, EXCLUSIVE: tl.constexpr
):  # fmt: skip
    """Write the state after each line. An exclusive scan has not met the last element yet."""
    if EXCLUSIVE:
        end = 0 if REVERSE else length - 1
        xs = [
            tl.load(x[0] + outer_offset(outer, outer_sizes, x[1]) + line * x[2] + end * x[3], mask=keep) for x in inputs
        ]
        carry = COMBINE(*carry, *LIFT(*xs, tl.broadcast_to(TO_INDEX(end + line * 0), xs[0].shape)))
    for f in tl.static_range(len(s_ptrs)):
        tl.store(s_ptrs[f] + offset, carry[f], mask=keep)


def walked_tile(
    xs, places, y_ptrs, y_begin, y_step, keep, length, carry, LENGTH: tl.constexpr,
    BY_ROWS: tl.constexpr, REVERSE: tl.constexpr, EXCLUSIVE: tl.constexpr,
    MASKED: tl.constexpr, MASK_LINES: tl.constexpr, CARRY_FIRST: tl.constexpr,
):  # fmt: skip
    """Scan and write a tile of elements; the state after it."""
    state = scanned_tile(
        xs, places, keep, length, LENGTH, BY_ROWS, REVERSE, EXCLUSIVE, MASKED, MASK_LINES, carry, CARRY_FIRST
    )
    if CARRY_FIRST:
        prefixes = state
        carry = last_slots(state, LENGTH, BY_ROWS)
    else:
        # The tile's own last state meets the carry, so that the way from tile to tile is one combine.
        prefixes = after(carry, state, BY_ROWS)
        carry = COMBINE(*carry, *last_slots(state, LENGTH, BY_ROWS))
    store_prefixes(y_ptrs, y_begin, places, y_step, keep, length, prefixes, BY_ROWS, MASKED, MASK_LINES)
    return carry


def walked_place(
    rows, y_ptrs, y_begin, y_step, base, keep, length, carry, LENGTH: tl.constexpr,
    BY_ROWS: tl.constexpr, REVERSE: tl.constexpr, EXCLUSIVE: tl.constexpr,
    MASKED: tl.constexpr, MASK_LINES: tl.constexpr, CARRY_FIRST: tl.constexpr,
):  # fmt: skip
    """Read, scan and write the tile that begins at `base`; the state after it."""
    places = tile_slots(base, LENGTH, REVERSE)
    xs = tile_elements(rows, places, keep, length, BY_ROWS, REVERSE, EXCLUSIVE, MASKED, MASK_LINES)
    return walked_tile(
        xs, places, y_ptrs, y_begin, y_step, keep, length, carry, LENGTH, BY_ROWS, REVERSE, EXCLUSIVE, MASKED,
        MASK_LINES, CARRY_FIRST,
    )  # fmt: skip


def scan_walked(
    inputs, inits, y_ptrs, s_ptrs, y_outer, y_line, y_step, s_outer, s_line, outer_sizes, lines, length, line_blocks,
    LINES: tl.constexpr, LENGTH: tl.constexpr, BY_ROWS: tl.constexpr, RUN: tl.constexpr,
    REVERSE: tl.constexpr, EXCLUSIVE: tl.constexpr, HAS_INIT: tl.constexpr, MASK_LINES: tl.constexpr, WHOLE: tl.constexpr,
    PART: tl.constexpr, CARRY_FIRST: tl.constexpr, AHEAD: tl.constexpr, WIDE: tl.constexpr,
):  # fmt: skip
    """Scan lines from end to end.

    A program owns LINES neighbouring lines, all of their elements. It reads and writes tiles of LENGTH elements of each, with
    the state of what came before them in registers: WHOLE tiles (whether there are any), and one in PART behind them in
    memory (which a reverse scan meets first). CARRY_FIRST: see `scanned_tile`. AHEAD: the next whole tile is read before
    one is scanned; the last one twice.
    """
    pid = tl.program_id(0).to(tl.int64)
    outer = pid // line_blocks
    line = pid % line_blocks * LINES + near_lines(LINES, RUN, BY_ROWS)
    keep = line < lines
    rows = lines_begin(inputs, outer, outer_sizes, line, BY_ROWS)
    y_begin = outer_offset(outer, outer_sizes, y_outer) + line * y_line
    if WIDE:
        length = length.to(tl.int64)
    carry = states_before(inits, outer, outer_sizes, line, keep, LINES, HAS_INIT)
    whole = length // LENGTH * LENGTH
    if PART and REVERSE:
        carry = walked_place(
            rows, y_ptrs, y_begin, y_step, whole, keep, length, carry, LENGTH, BY_ROWS, REVERSE,
            EXCLUSIVE, True, MASK_LINES, CARRY_FIRST,
        )  # fmt: skip
    if WHOLE and AHEAD:
        places = tile_slots(whole - LENGTH if REVERSE else 0, LENGTH, REVERSE)
        xs = tile_elements(rows, places, keep, length, BY_ROWS, REVERSE, EXCLUSIVE, False, MASK_LINES)
        for k in range(0, whole, LENGTH):
            places = tile_slots(whole - LENGTH - k if REVERSE else k, LENGTH, REVERSE)
            ahead = tl.minimum(k + LENGTH, whole - LENGTH)
            later = tile_elements(
                rows, tile_slots(whole - LENGTH - ahead if REVERSE else ahead, LENGTH, REVERSE), keep, length, BY_ROWS,
                REVERSE, EXCLUSIVE, False, MASK_LINES,
            )  # fmt: skip
            carry = walked_tile(
                xs, places, y_ptrs, y_begin, y_step, keep, length, carry, LENGTH, BY_ROWS, REVERSE, EXCLUSIVE, False,
                MASK_LINES, CARRY_FIRST,
            )  # fmt: skip
            xs = later
    elif WHOLE:
        for k in range(0, whole, LENGTH):
            carry = walked_place(
                rows, y_ptrs, y_begin, y_step, whole - LENGTH - k if REVERSE else k, keep, length, carry, LENGTH,
                BY_ROWS, REVERSE, EXCLUSIVE, False, MASK_LINES, CARRY_FIRST,
            )  # fmt: skip
    if PART and not REVERSE:
        carry = walked_place(
            rows, y_ptrs, y_begin, y_step, whole, keep, length, carry, LENGTH, BY_ROWS, REVERSE,
            EXCLUSIVE, True, MASK_LINES, CARRY_FIRST,
        )  # fmt: skip
    if len(s_ptrs) > 0:
        offset = outer_offset(outer, outer_sizes, s_outer) + line * s_line
        store_last(s_ptrs, inputs, carry, offset, outer, outer_sizes, line, keep, length, REVERSE, EXCLUSIVE)


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
    LINES: tl.constexpr, LENGTH: tl.constexpr, BY_ROWS: tl.constexpr, RUN: tl.constexpr,
    REVERSE: tl.constexpr, EXCLUSIVE: tl.constexpr, HAS_INIT: tl.constexpr, MASK_LINES: tl.constexpr, PART: tl.constexpr,
    TURNS: tl.constexpr, GROUP: tl.constexpr, GROUPS: tl.constexpr, WORD_COUNT: tl.constexpr, WARPS: tl.constexpr,
    WIDE: tl.constexpr,
):  # fmt: skip
    """Scan lines by many programs at once: each element is read from memory once, one launch.

    A program owns TURNS neighbouring tiles of LINES lines. A counter in memory gives it the next share in order, so that it
    waits for programs only that have begun. It makes its share's state known and looks back. The state before share t is

        carry of its block of GROUP * GROUPS shares,  states of the block's earlier groups,  of the group's earlier shares

    where each list is combined in one tree, whatever is there first: bits depend on numbers of shares alone, not on time. The
    last share of a group makes the group's state known, the last one of a block the next block's carry. With TURNS > 1 the
    share is read again, from the caches, once the state before it is known; else it stays in registers.

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
    rows = lines_begin(inputs, outer, outer_sizes, line, BY_ROWS)
    y_begin = outer_offset(outer, outer_sizes, y_outer) + line * y_line
    if WIDE:
        length = length.to(tl.int64)
        share = share.to(tl.int64)
    else:
        share = share.to(tl.int32)
    turns = share * TURNS
    all_turns = tiles * TURNS
    none = IDENTITY((LINES,))
    if TURNS == 1:
        places = tile_slots((tiles - 1 - share if REVERSE else share) * LENGTH, LENGTH, REVERSE)
        xs = tile_elements(rows, places, keep, length, BY_ROWS, REVERSE, EXCLUSIVE, PART, MASK_LINES)
        state = scanned_tile(
            xs, places, keep, length, LENGTH, BY_ROWS, REVERSE, EXCLUSIVE, PART, MASK_LINES, none, False
        )
        own = last_slots(state, LENGTH, BY_ROWS)
    else:
        own = none
        for turn in range(TURNS):
            at = all_turns - 1 - (turns + turn) if REVERSE else turns + turn
            places = tile_slots(at * LENGTH, LENGTH, REVERSE)
            xs = tile_elements(rows, places, keep, length, BY_ROWS, REVERSE, EXCLUSIVE, PART, MASK_LINES)
            state = scanned_tile(
                xs, places, keep, length, LENGTH, BY_ROWS, REVERSE, EXCLUSIVE, PART, MASK_LINES, own, True
            )
            own = last_slots(state, LENGTH, BY_ROWS)
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
        start = none
    given = wait_for(given, of_carries, given_place, given_wanted, stride_carries, LINES, WARPS)
    before = SELECT(big > 0, *given, *start)
    if GROUPS > 1:
        before = COMBINE(*before, *far)
    beyond = COMBINE(*before, *since)
    if (share % (GROUP * GROUPS) == GROUP * GROUPS - 1) & (share < tiles - 1):
        publish(of_carries, (first_carry + big + 1) * LINES + lane, beyond, keep, stride_carries)
    if GROUP > 1:
        before = COMBINE(*before, *near)
    if TURNS == 1:
        store_prefixes(
            y_ptrs, y_begin, places, y_step, keep, length, after(before, state, BY_ROWS), BY_ROWS, PART,
            MASK_LINES,
        )  # fmt: skip
    else:
        carry = before
        for turn in range(TURNS):
            at = all_turns - 1 - (turns + turn) if REVERSE else turns + turn
            carry = walked_place(
                rows, y_ptrs, y_begin, y_step, at * LENGTH, keep, length, carry, LENGTH, BY_ROWS, REVERSE,
                EXCLUSIVE, PART, MASK_LINES, False,
            )  # fmt: skip
    if len(s_ptrs) > 0:
        if share == tiles - 1:
            offset = outer_offset(outer, outer_sizes, s_outer) + line * s_line
            store_last(s_ptrs, inputs, beyond, offset, outer, outer_sizes, line, keep, length, REVERSE, EXCLUSIVE)
