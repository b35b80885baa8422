"""The kernels of scans: every prefix of every line, one tile after another, or by many programs at once.

A line is a row or a column: the elements that are combined. A tile is NUMBER chunks of CHUNK neighbours of each of LINES
lines; a thread has whole chunks, in registers. A tensor is [LINES, NUMBER] (BY_ROWS: a line's elements are neighbours in
memory) or [NUMBER, LINES] (neighbours are other lines), and there is one for each place in a chunk; a state is a tuple with
one tensor [LINES] a field. A tensor is read and written with its dims the other way round (`turned`): neighbouring threads
then have neighbours in memory, whatever their vectors.

A thread combines its chunk's elements, `tl.associative_scan` scans the chunks' states, and from the state before its chunk
the thread combines the elements again and writes each prefix: two combines an element, whatever is exchanged between
threads is by chunks, and only elements stay in registers. A reverse scan walks tiles, chunks and places from the last:
vectors stay vectors. An exclusive scan writes the prefix before each element.

Arguments:
    inputs         Lines, one an input
    inits          LineStates, one a field of the state before each line
    y_ptrs, s_ptrs    one pointer a result, and a field of the state after each line; y_steps, s_steps: their LineSteps
    y_step         the results' step along a line
    outer_sizes    dims of lines but the last: walked by whole programs
    lines, length  of the last dim of lines, and of a line

SHIFT: where a result begins at a vector, its element is so many behind one, in each input. Vectors are read from that on,
and a thread's chunk lies so many elements behind its first. Inputs' pointers are to such a vector, or (BACK) to the
element.

Generated beside those of folds: AS_STATE (a tuple of fields, in registers' dtypes), SELECT (of two states), WORDS (a state as
64-bit words whose upper half is 1, so that none is 0) and OF_WORDS (back), WORDS_AT (those in memory), WORDS_AGAIN (the same
after a pause), FLAGS (whether all are there); and where SUMS, the functions of `algebra.Sums`.

`scan_elements` reads a tile, `scan_prefixes` scans and writes it.
"""

import triton.language as tl

from tilefold.backends.triton.kernels.scan_elements import (
    aligned_rows,
    both_bits,
    chunks_begin,
    last_slots,
    line_offset,
    lines_begin,
    lines_of,
    near_lines,
    read_tile,
    results_begin,
    states_before,
)
from tilefold.backends.triton.kernels.scan_prefixes import (
    scanned_chunks,
    scanned_place,
    scanned_tile,
    store_chunks,
    store_last,
)
from tilefold.backends.triton.kernels.tiles import either_bits


def scanned_tiles(
    rows, y_ptrs, where, y_step, length, keep, span, carry, SCAN: tl.constexpr, PART: tl.constexpr, HEAD: tl.constexpr,
):  # fmt: skip
    """Read, scan and write all tiles of some lines in one loop; the state after them.

    There is code of two tiles at most, one in part and a whole one: Triton's compiler takes the time of a square of it.
    """
    LENGTH: tl.constexpr = SCAN.NUMBER * SCAN.CHUNK
    end = length
    if HEAD:  # then there is one line
        end = tl.reduce(span[1], 0, either_bits)
    count = (end + LENGTH - 1) // LENGTH
    for k in range(count):
        tile = count - 1 - k if SCAN.REVERSE else k
        if HEAD or PART:
            edge = tile * LENGTH + LENGTH > end
            if HEAD:
                edge = edge | (tile == 0)
            if edge:
                carry = scanned_place(rows, y_ptrs, where, y_step, tile * LENGTH, keep, span, carry, SCAN, True)
            else:
                carry = scanned_place(rows, y_ptrs, where, y_step, tile * LENGTH, keep, span, carry, SCAN, False)
        else:
            carry = scanned_place(rows, y_ptrs, where, y_step, tile * LENGTH, keep, span, carry, SCAN, False)
    return carry


def scan_lines(
    inputs, inits, y_ptrs, s_ptrs, y_steps, y_step, s_steps, outer_sizes, lines, length, line_blocks,
    SCAN: tl.constexpr, WHOLE: tl.constexpr, PART: tl.constexpr, AHEAD: tl.constexpr, WIDE: tl.constexpr,
    ALIGN: tl.constexpr, HEAD: tl.constexpr, FLAT: tl.constexpr, BACK: tl.constexpr, NEAR: tl.constexpr,
):  # fmt: skip
    """Scan lines from end to end.

    A program owns LINES neighbouring lines, all of their elements. It reads and writes tiles of NUMBER chunks of CHUNK
    elements of each, with the state of what came before them in registers: one in part (HEAD, where rows are aligned),
    WHOLE tiles (0: none, 1: one, 2: any number), and one in PART behind them in memory (which a reverse scan reads first).
    AHEAD: the next whole tile is read before one is scanned; the last one twice. Else all tiles are of one loop. FLAT: lines
    are counted along all their dims as one, `line_blocks` being the size of the outer ones.
    """
    LENGTH: tl.constexpr = SCAN.NUMBER * SCAN.CHUNK
    pid = tl.program_id(0).to(tl.int64)
    outer, line, keep = lines_of(
        pid, line_blocks, outer_sizes, near_lines(SCAN.LINES, SCAN.RUN, SCAN.BY_ROWS), lines, SCAN.LINES, FLAT, NEAR
    )  # fmt: skip
    rows = lines_begin(inputs, outer, outer_sizes, line, BACK)
    where = results_begin(
        pid, line_blocks, outer, outer_sizes, line, lines, keep, y_steps.outer, y_steps.line, SCAN.LINES, NEAR
    )  # fmt: skip
    if WIDE:
        length = length.to(tl.int64)
    if ALIGN > 1:
        rows, where, span = aligned_rows(inputs, outer, outer_sizes, line, where, length, ALIGN, BACK)
    else:
        span = (length,)
    carry = states_before(inits, outer, outer_sizes, line, keep, SCAN.LINES, SCAN.HAS_INIT)
    if WHOLE > 1 and not AHEAD:
        carry = scanned_tiles(rows, y_ptrs, where, y_step, length, keep, span, carry, SCAN, PART, HEAD)
    else:
        start = 0
        whole = length // LENGTH * LENGTH
        if HEAD:  # then there is one line
            start = LENGTH
            whole = tl.maximum(tl.reduce(span[1], 0, either_bits) // LENGTH * LENGTH, LENGTH)
        if PART and SCAN.REVERSE:
            carry = scanned_place(rows, y_ptrs, where, y_step, whole, keep, span, carry, SCAN, True)
        if HEAD and not SCAN.REVERSE:
            carry = scanned_place(rows, y_ptrs, where, y_step, 0, keep, span, carry, SCAN, True)
        if WHOLE > 1 and AHEAD:
            begin = chunks_begin(whole - LENGTH if SCAN.REVERSE else start, SCAN)
            found = read_tile(rows, len(y_ptrs), begin, keep, span, SCAN, False)
            for k in range(start, whole, LENGTH):
                begin = chunks_begin(start + whole - LENGTH - k if SCAN.REVERSE else k, SCAN)
                ahead = tl.minimum(k + LENGTH, whole - LENGTH)
                next_begin = chunks_begin(start + whole - LENGTH - ahead if SCAN.REVERSE else ahead, SCAN)
                later = read_tile(rows, len(y_ptrs), next_begin, keep, span, SCAN, False)
                carry = scanned_tile(rows, found, begin, y_ptrs, where, y_step, keep, span, carry, SCAN, False)
                found = later
        elif WHOLE:
            carry = scanned_place(rows, y_ptrs, where, y_step, 0, keep, span, carry, SCAN, False)
        if HEAD and SCAN.REVERSE:
            carry = scanned_place(rows, y_ptrs, where, y_step, 0, keep, span, carry, SCAN, True)
        if PART and not SCAN.REVERSE:
            carry = scanned_place(rows, y_ptrs, where, y_step, whole, keep, span, carry, SCAN, True)
    if len(s_ptrs) > 0:
        store_last(s_ptrs, line_offset(outer, outer_sizes, s_steps.outer) + line * s_steps.line, carry, keep)


def publish(words_ptr, place, state, keep, stride):
    """Make a state known: each of its words says by itself that it is there, so no order among them is needed."""
    words = WORDS(*state)
    for w in tl.static_range(len(words)):
        tl.atomic_xchg(words_ptr + (w * stride + place), words[w], mask=keep, sem="relaxed")


def wait_for(words, words_ptr, place, wanted, stride, NUMBER: tl.constexpr, WARPS: tl.constexpr, OWN: tl.constexpr):
    """The states that others make known, `words` being a first look at them; where none is wanted, anything.

    Where several warps, but not each, hold a copy of one of the NUMBER words, they do not find it at the same time and would
    combine unequal answers: they look once more when one of them has found it. OWN: each thread has one word, and no other
    has it.
    """
    while tl.reduce(FLAGS(*words), None, both_bits) == 0:
        words = WORDS_AGAIN(words_ptr, place, wanted, stride)
    if NUMBER > 32 and NUMBER < 256 * WARPS and WARPS > 1 and not OWN:  # a thread has up to 8 neighbours
        words = WORDS_AT(words_ptr, place, wanted, stride)
    return OF_WORDS(*words)


def places_before(first, count, line, keep, NUMBER: tl.constexpr, LINES: tl.constexpr):
    """(places, which of them are wanted) of the states [first, first + count), LINES apart: [NUMBER, LINES]."""
    number = tl.arange(0, NUMBER)[:, None]
    wanted = (number < count) & keep[None, :]
    return tl.where(wanted, (first + number) * LINES + line[None, :], 0), wanted


def places_with_carry(
    carry, carries, some, first, count, stride, line, keep, NUMBER: tl.constexpr, LINES: tl.constexpr
):
    """The same behind the carry at `carry`, which is wanted if `some`; and the steps between the words of each.

    A group's last share is wanted by none of it, so there is room for the carry.
    """
    number = tl.arange(0, NUMBER)[:, None]
    wanted = tl.where(number == 0, some, number <= count) & keep[None, :]
    place = tl.where(number == 0, carry, (first + number - 1) * LINES) + line[None, :]
    return tl.where(wanted, place, 0), wanted, tl.where(number == 0, carries, stride)


def combine_before(
    words, words_ptr, place, wanted, stride, NUMBER: tl.constexpr, LINES: tl.constexpr, WARPS: tl.constexpr,
    OWN: tl.constexpr,
):  # fmt: skip
    """Published states combined in one tree, whichever is there first."""
    state = OR_IDENTITY(wanted, *wait_for(words, words_ptr, place, wanted, stride, NUMBER * LINES, WARPS, OWN))
    return last_slots(tl.associative_scan(state, 0, COMBINE), NUMBER, False)


def look_back(own, start, words_ptr, block, blocks, share, tiles, lane, keep, LOOK: tl.constexpr, SCAN: tl.constexpr):
    """(the state before a share, the state after it): the carry and the group's shares before are one tree and one look."""
    groups = (tiles + LOOK.GROUP - 1) // LOOK.GROUP
    group = share // LOOK.GROUP
    first_share = block.to(tl.int64) * tiles
    first_group = block.to(tl.int64) * groups
    stride = tl.cast(blocks * tiles, tl.int64) * SCAN.LINES
    carries = tl.cast(blocks * groups, tl.int64) * SCAN.LINES
    of_shares = words_ptr + 1
    carries_at = (stride + carries) * LOOK.WORD_COUNT
    publish(of_shares, (first_share + share) * SCAN.LINES + lane, own, keep, stride)
    place, wanted, steps = places_with_carry(
        carries_at + (first_group + group) * SCAN.LINES, carries, group > 0, first_share + group * LOOK.GROUP,
        share - group * LOOK.GROUP, stride, lane, keep, LOOK.GROUP, SCAN.LINES,
    )  # fmt: skip
    words = WORDS_AT(of_shares, place, wanted, steps)
    OWN: tl.constexpr = SCAN.LINES == 1 and LOOK.GROUP == 32 * LOOK.WARPS
    before = combine_before(words, of_shares, place, wanted, steps, LOOK.GROUP, SCAN.LINES, LOOK.WARPS, OWN)
    if SCAN.HAS_INIT:
        before = SELECT(group > 0, *before, *COMBINE(*start, *before))
    beyond = COMBINE(*before, *own)
    if (share % LOOK.GROUP == LOOK.GROUP - 1) & (share < tiles - 1):
        publish(of_shares + carries_at, (first_group + group + 1) * SCAN.LINES + lane, beyond, keep, carries)
    return before, beyond


def look_back_in_trees(
    own, start, words_ptr, block, blocks, share, tiles, lane, keep, LOOK: tl.constexpr, SCAN: tl.constexpr,
):  # fmt: skip
    """(the state before a share, the state after it): the carry, a tree of groups and one of the group's shares before."""
    groups = (tiles + LOOK.GROUP - 1) // LOOK.GROUP
    carries = (groups + LOOK.GROUPS - 1) // LOOK.GROUPS
    group = share // LOOK.GROUP
    big = group // LOOK.GROUPS
    of_shares = words_ptr + 1
    stride_shares = tl.cast(blocks * tiles, tl.int64) * SCAN.LINES
    of_groups = of_shares + stride_shares * LOOK.WORD_COUNT
    stride_groups = tl.cast(blocks * groups, tl.int64) * SCAN.LINES
    of_carries = of_groups + stride_groups * LOOK.WORD_COUNT
    stride_carries = tl.cast(blocks * carries, tl.int64) * SCAN.LINES
    first_share = block.to(tl.int64) * tiles
    first_group = block.to(tl.int64) * groups
    first_carry = block.to(tl.int64) * carries
    publish(of_shares, (first_share + share) * SCAN.LINES + lane, own, keep, stride_shares)
    # A first look at all of them, so that what is there already takes one way to memory.
    near_place, near_wanted = places_before(
        first_share + group * LOOK.GROUP, share - group * LOOK.GROUP, lane, keep, LOOK.GROUP, SCAN.LINES
    )
    near = WORDS_AT(of_shares, near_place, near_wanted, stride_shares)
    far_place, far_wanted = places_before(
        first_group + big * LOOK.GROUPS, group - big * LOOK.GROUPS, lane, keep, LOOK.GROUPS, SCAN.LINES,
    )  # fmt: skip
    far = WORDS_AT(of_groups, far_place, far_wanted, stride_groups)
    given_wanted = keep & (big > 0)
    given_place = tl.where(given_wanted, (first_carry + big) * SCAN.LINES + lane, 0)
    given = WORDS_AT(of_carries, given_place, given_wanted, stride_carries)
    near = combine_before(near, of_shares, near_place, near_wanted, stride_shares, LOOK.GROUP, SCAN.LINES, LOOK.WARPS, False)
    since = COMBINE(*near, *own)
    if share % LOOK.GROUP == LOOK.GROUP - 1:
        publish(of_groups, (first_group + group) * SCAN.LINES + lane, since, keep, stride_groups)
    far = combine_before(far, of_groups, far_place, far_wanted, stride_groups, LOOK.GROUPS, SCAN.LINES, LOOK.WARPS, False)
    given = wait_for(given, of_carries, given_place, given_wanted, stride_carries, SCAN.LINES, LOOK.WARPS, False)
    before = COMBINE(*SELECT(big > 0, *given, *start), *far)
    beyond = COMBINE(*before, *since)
    if (share % (LOOK.GROUP * LOOK.GROUPS) == LOOK.GROUP * LOOK.GROUPS - 1) & (share < tiles - 1):
        publish(of_carries, (first_carry + big + 1) * SCAN.LINES + lane, beyond, keep, stride_carries)
    return COMBINE(*before, *near), beyond


def scan_share(
    rows, inits, y_ptrs, s_ptrs, words_ptr, where, y_step, s_steps, outer, outer_sizes, line, lane, keep, span,
    share, block, blocks, tiles, SCAN: tl.constexpr, PART: tl.constexpr, LOOK: tl.constexpr, AGAIN: tl.constexpr,
):  # fmt: skip
    """Read a share, combine it with the state before it, and write it. PART: not all of its elements need be of the line."""
    begin = chunks_begin((tiles - 1 - share if SCAN.REVERSE else share) * SCAN.NUMBER * SCAN.CHUNK, SCAN)
    found = read_tile(rows, len(y_ptrs), begin, keep, span, SCAN, PART)
    state, earlier, sums = scanned_chunks(found, begin, keep, span, SCAN, PART)
    own = last_slots(state, SCAN.NUMBER, SCAN.BY_ROWS)
    if SCAN.HAS_INIT:
        start = states_before(inits, outer, outer_sizes, line, keep, SCAN.LINES, True)
    else:
        start = IDENTITY((SCAN.LINES,))
    if LOOK.GROUPS == 1:
        before, beyond = look_back(own, start, words_ptr, block, blocks, share, tiles, lane, keep, LOOK, SCAN)
    else:
        before, beyond = look_back_in_trees(own, start, words_ptr, block, blocks, share, tiles, lane, keep, LOOK, SCAN)
    if AGAIN:
        found = read_tile(rows, len(y_ptrs), begin, keep, span, SCAN, PART)
    store_chunks(rows, found, sums, state, earlier, before, begin, y_ptrs, where, y_step, keep, span, SCAN, PART)
    if len(s_ptrs) > 0:
        if share == tiles - 1:
            store_last(s_ptrs, line_offset(outer, outer_sizes, s_steps.outer) + line * s_steps.line, beyond, keep)


def scan_tiles(
    inputs, inits, y_ptrs, s_ptrs, words_ptr, y_steps, y_step, s_steps, outer_sizes, lines, length,
    line_blocks, blocks, tiles, SCAN: tl.constexpr, PART: tl.constexpr, LOOK: tl.constexpr, WIDE: tl.constexpr,
    ALIGN: tl.constexpr, AGAIN: tl.constexpr, FLAT: tl.constexpr, BAND: tl.constexpr, SPLIT: tl.constexpr,
    BACK: tl.constexpr,
):  # fmt: skip
    """Scan lines by many programs at once: each element is read from memory once, one launch.

    A program owns a tile of LINES lines, which stays in registers. A counter in memory gives it the next share in order, so
    that it waits for programs only that have begun: of BAND blocks of lines share after share, then of the next BAND; 0: of
    all. It makes its share's state known and looks back. The state before share t is

        carry of its block of GROUP * GROUPS shares,  states of the block's earlier groups,  of the group's earlier shares

    where each list is combined in one tree, whatever is there first: bits depend on numbers of shares alone, not on time. The
    last share of a group makes the group's state known, the last one of a block the next block's carry. Where GROUPS is 1 the
    carry is the first of one tree. AGAIN: elements are not kept until then but read again, from the L2. SPLIT: shares whose
    elements are all of the line have code of their own, without masks.

    `words_ptr` holds zeros: the counter, then the shares' words, the groups' and the blocks' carries, each [line blocks,
    number, LINES] and so many times as a state has words.
    """
    ticket = tl.atomic_add(words_ptr, 1, sem="relaxed")
    if BAND:
        band = ticket // (tiles * BAND)
        beside = tl.minimum(blocks - band * BAND, BAND)
        ticket -= band * (tiles * BAND)
        share = ticket // beside
        block = band * BAND + ticket % beside
    else:
        share = ticket // blocks
        block = ticket % blocks
    lane = near_lines(SCAN.LINES, SCAN.RUN, SCAN.BY_ROWS)
    outer, line, keep = lines_of(block, line_blocks, outer_sizes, lane, lines, SCAN.LINES, FLAT, 0)
    rows = lines_begin(inputs, outer, outer_sizes, line, BACK)
    where = results_begin(
        block, line_blocks, outer, outer_sizes, line, lines, keep, y_steps.outer, y_steps.line, SCAN.LINES, 0,
    )  # fmt: skip
    if WIDE:
        length = length.to(tl.int64)
        share = share.to(tl.int64)
    else:
        share = share.to(tl.int32)
    if ALIGN > 1:
        rows, where, span = aligned_rows(inputs, outer, outer_sizes, line, where, length, ALIGN, BACK)
    else:
        span = (length,)
    place = tiles - 1 - share if SCAN.REVERSE else share
    whole = ((place + 1) * SCAN.NUMBER * SCAN.CHUNK <= length) & ((place > 0) | (ALIGN == 1))
    if SPLIT:
        if whole:
            scan_share(
                rows, inits, y_ptrs, s_ptrs, words_ptr, where, y_step, s_steps, outer, outer_sizes, line, lane,
                keep, span, share, block, blocks, tiles, SCAN, False, LOOK, AGAIN,
            )  # fmt: skip
        else:
            scan_share(
                rows, inits, y_ptrs, s_ptrs, words_ptr, where, y_step, s_steps, outer, outer_sizes, line, lane,
                keep, span, share, block, blocks, tiles, SCAN, True, LOOK, AGAIN,
            )  # fmt: skip
    else:
        scan_share(
            rows, inits, y_ptrs, s_ptrs, words_ptr, where, y_step, s_steps, outer, outer_sizes, line, lane, keep,
            span, share, block, blocks, tiles, SCAN, PART, LOOK, AGAIN,
        )  # fmt: skip
