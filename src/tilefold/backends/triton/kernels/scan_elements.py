"""What kernels of scans share: where a tile's chunks lie, and their elements as they are read and as states.

Tiles, chunks and their tensors are as the module `scans` says.
"""

import triton.language as tl

from tilefold.backends.triton.kernels.tiles import in_halves, last_along


def over_tile(x, BY_ROWS: tl.constexpr):
    """Something of each line over a tile."""
    return x[:, None] if BY_ROWS else x[None, :]


def of_lines(x, BY_ROWS: tl.constexpr):
    """Something of each line over a tile as it is read and written."""
    return x[:, None] if BY_ROWS == LANES_LAST else x[None, :]


def of_chunks(x, BY_ROWS: tl.constexpr):
    """Something of each chunk over a tile as it is read and written."""
    return x[None, :] if BY_ROWS == LANES_LAST else x[:, None]


def turned(x):
    """A tile as it is read as one that is computed with, or back: nothing moves.

    Triton gives threads to the vectors of an access, and then to its dims from the left (since 3.7 from the right), though
    the next vectors in memory are a row's next chunks, or the next columns.
    """
    if LANES_LAST:
        other = x
    elif len(x.shape) == 3:
        other = tl.trans(x, (1, 0, 2))
    else:
        other = tl.trans(x)
    return other


def over_places(x, BY_ROWS: tl.constexpr):
    """A tile as it is read and written, over neighbours of each chunk that are one access: a thread has all of them."""
    return x[None, :, :] if LANES_LAST and not BY_ROWS else x[:, :, None]


def places(COUNT: tl.constexpr, BY_ROWS: tl.constexpr):
    """The numbers of these neighbours."""
    number = tl.arange(0, COUNT)
    return number[:, None, None] if LANES_LAST and not BY_ROWS else number[None, None, :]


def of_line(at, span, BY_ROWS: tl.constexpr):
    """Whether places of a tile are of the line, which begins at span[0] of them where it need not begin at the first."""
    if len(span) == 1:
        counts = at < span[0]
    else:
        counts = (at >= over_tile(span[0], BY_ROWS)) & (at < over_tile(span[1], BY_ROWS))
    return counts


def whole_vectors(at, span, BY_ROWS: tl.constexpr):
    """Whether the vectors that places are of lie in the line: on both sides, at its begin alone, at its end alone."""
    vector = at // span[2] * span[2]
    begin, end = of_lines(span[0], BY_ROWS)[:, :, None], of_lines(span[1], BY_ROWS)[:, :, None]
    return (vector >= begin) & (vector + span[2] <= end), at >= begin, at < end


def mask_of(at, end, lines, offsets, MASKED: tl.constexpr, MASK_LINES: tl.constexpr):
    """The mask of an access: places before `end` (where MASKED) of the lines that there are (where MASK_LINES), or none."""
    mask = None
    if MASKED and MASK_LINES:
        mask = (at < end) & lines
    elif MASKED:
        mask = tl.broadcast_to(at < end, offsets.shape)
    elif MASK_LINES:
        mask = tl.broadcast_to(lines, offsets.shape)
    return mask


def near_lines(LINES: tl.constexpr, RUN: tl.constexpr, BY_ROWS: tl.constexpr):
    """Numbers of a program's lines; of columns a thread takes RUN neighbours, and then has all of their elements."""
    line = tl.arange(0, LINES)
    if not BY_ROWS:
        line = tl.max_contiguous(tl.multiple_of(line, RUN), RUN)  # of one alone, that each is a multiple is not so
    return line


def lines_of(
    block, line_blocks, outer_sizes, lane, lines, LINES: tl.constexpr, FLAT: tl.constexpr, NEAR: tl.constexpr
):  # fmt: skip
    """(number along the outer dims, along the last one, is it a line) of a block's lines; FLAT: of all dims as one.

    FLAT is 32 where numbers of lines fit 32 bits: a division of 64 takes hundreds of instructions. NEAR: so many places of
    the last outer dim, each with LINES // NEAR of the last one.
    """
    if FLAT:
        number = block * LINES + lane
        if FLAT == 32:
            number = number.to(tl.int32)
        outer, line = number // lines, (number % lines).to(tl.int64)
        keep = outer < line_blocks
    elif NEAR:
        place, first, before = near_place(block, line_blocks, outer_sizes, LINES, NEAR)
        number = place + lane // (LINES // NEAR)
        line = first + lane % (LINES // NEAR)
        outer = before * outer_sizes[len(outer_sizes) - 1] + number
        keep = (number < outer_sizes[len(outer_sizes) - 1]) & (line < lines)
    else:
        outer = block // line_blocks
        line = block % line_blocks * LINES + lane
        keep = line < lines
    return outer, line, keep


def near_place(block, line_blocks, outer_sizes, LINES: tl.constexpr, NEAR: tl.constexpr):
    """(first place of the last outer dim, first of the last one, number along the other outer dims) of a block's lines."""
    size = outer_sizes[len(outer_sizes) - 1]
    rest = block // line_blocks
    blocks = (size + NEAR - 1) // NEAR
    return rest % blocks * NEAR, block % line_blocks * (LINES // NEAR), rest // blocks


def results_begin(
    block, line_blocks, outer, outer_sizes, line, lines, keep, y_outer, y_line, LINES: tl.constexpr, NEAR: tl.constexpr
):  # fmt: skip
    """(where each line's results begin, which lines there are): of [LINES], or where results are neighbours along the last
    outer dim of [LINES // NEAR, NEAR], so that they are stored as they lie."""
    if NEAR:
        size = outer_sizes[len(outer_sizes) - 1]
        place, first, before = near_place(block, line_blocks, outer_sizes, LINES, NEAR)
        number = place + tl.arange(0, NEAR)[None, :]
        along = first + tl.arange(0, LINES // NEAR)[:, None]
        keep = (number < size) & (along < lines)
        begin = line_offset(before * size, outer_sizes, y_outer) + number + along * y_line
    else:
        begin = line_offset(outer, outer_sizes, y_outer) + line * y_line
    return begin, keep


def line_offset(outer, outer_sizes, steps):
    """Where lines of outer places begin, one or a number each: what is divided stays as wide as it is."""
    offset = (outer * 0).to(tl.int64)
    for d in tl.static_range(1, len(outer_sizes)):
        offset += (outer % outer_sizes[len(outer_sizes) - d]).to(tl.int64) * steps[len(outer_sizes) - d]
        outer = outer // outer_sizes[len(outer_sizes) - d]
    if len(outer_sizes) > 0:
        offset += outer.to(tl.int64) * steps[0]
    return offset


def chunks_begin(base, SCAN: tl.constexpr):
    """Where the NUMBER chunks of a tile begin along the line, in the order of the scan; the tile begins at `base`."""
    number = tl.arange(0, SCAN.NUMBER)
    if SCAN.REVERSE:
        number = SCAN.NUMBER - 1 - number
    return base + number * SCAN.CHUNK


def both_bits(a, b):
    """The bits that both have."""
    return a & b


def last_slots(state, LENGTH: tl.constexpr, BY_ROWS: tl.constexpr):
    """The state at the last slot of every line."""
    return AS_STATE(*[last_along(s, LENGTH, 1 if BY_ROWS else 0) for s in state])


def lines_begin(inputs, outer, outer_sizes, line, BACK: tl.constexpr):
    """(pointers to so many elements before each line's first one as BACK says of the input, step along it), an input."""
    rows = ()
    for i in tl.static_range(len(inputs)):
        x = inputs[i]
        rows = rows + ((x.pointer - BACK[i] + line_offset(outer, outer_sizes, x.outer) + line * x.line, x.step),)
    return rows


def aligned_rows(
    inputs, outer, outer_sizes, line, results, length, ALIGN: tl.constexpr, BACK: tl.constexpr
):  # fmt: skip
    """Rows from the multiple of ALIGN elements before each: `lines_begin`, `results_begin`, and a tile's span.

    All inputs and results begin as many elements behind such a multiple, beside what BACK says.
    """
    rows = ()
    for i in tl.static_range(len(inputs)):
        x = inputs[i]
        begin = (line_offset(outer, outer_sizes, x.outer) + line * x.line) // ALIGN * ALIGN
        rows = rows + ((x.pointer - BACK[i] + begin, x.step),)
    lead = (results[0] % ALIGN).to(tl.int32)
    return rows, (results[0] // ALIGN * ALIGN, results[1]), (lead, lead + length, ALIGN)


def states_before(inits, outer, outer_sizes, line, keep, LINES: tl.constexpr, HAS_INIT: tl.constexpr):
    """The state before each line: the one given, or the identity."""
    if HAS_INIT:
        pointers = [x.pointer + line_offset(outer, outer_sizes, x.outer) + line * x.line for x in inits]
        state = AS_STATE(*[tl.load(p, mask=keep, other=0) for p in pointers])
    else:
        state = IDENTITY((LINES,))
    return state


def joined(elements, LENGTH: tl.constexpr):
    """The way back from `in_halves`.

    Nothing is transposed on the way: threads would hold elements in another order, and Triton 3.6 swaps the second and third
    of four bytes where it makes this layout the store's.
    """
    if LENGTH == 1:
        x = tl.reshape(elements[0], (elements[0].shape[0], elements[0].shape[1], 1))
    elif LENGTH == 2:
        x = tl.join(elements[0], elements[1])
    else:
        halves = tl.join(joined(elements[0::2], LENGTH // 2), joined(elements[1::2], LENGTH // 2))
        x = tl.reshape(halves, (halves.shape[0], halves.shape[1], LENGTH))
    return x


def row_vectors(
    row, at, keep, span, BY_ROWS: tl.constexpr, RUN: tl.constexpr, SHIFT: tl.constexpr, MASKED: tl.constexpr,
    MASK_LINES: tl.constexpr,
):  # fmt: skip
    """The vectors at places `at` of an input's rows. One that is the line's in part is read whole."""
    pointers = of_lines(row[0], BY_ROWS)[:, :, None] + at * row[1]
    end = of_lines(span[1], BY_ROWS)[:, :, None] if len(span) > 1 else span[0]
    first = at // RUN * RUN if len(span) > 1 or SHIFT else at
    lines = of_lines(keep, BY_ROWS)[:, :, None]
    return tl.load(pointers, mask=mask_of(first, end + SHIFT, lines, pointers, MASKED, MASK_LINES))


def column_places(
    row, begin, keep, span, FIRST: tl.constexpr, COUNT: tl.constexpr, BY_ROWS: tl.constexpr, MASKED: tl.constexpr,
    MASK_LINES: tl.constexpr,
):  # fmt: skip
    """An input's elements at COUNT places of each chunk of columns from FIRST on, by one load."""
    at = of_chunks(begin, BY_ROWS) + FIRST
    pointers = of_lines(row[0], BY_ROWS) + at * row[1]
    lines = of_lines(keep, BY_ROWS)
    if COUNT == 1:
        found = (turned(tl.load(pointers, mask=mask_of(at, span[0], lines, pointers, MASKED, MASK_LINES))),)
    else:
        at = over_places(at, BY_ROWS) + places(COUNT, BY_ROWS)
        pointers = over_places(pointers, BY_ROWS) + places(COUNT, BY_ROWS) * row[1]
        lines = over_places(lines, BY_ROWS)
        x = tl.load(pointers, mask=mask_of(at, span[0], lines, pointers, MASKED, MASK_LINES))
        found = in_halves(tl.trans(x, (1, 2, 0)) if LANES_LAST else turned(x), COUNT)
    return found


def column_elements(
    row, begin, keep, span, BY_ROWS: tl.constexpr, CHUNK: tl.constexpr, MASKED: tl.constexpr, MASK_LINES: tl.constexpr,
    TOGETHER: tl.constexpr,
):  # fmt: skip
    """An input's elements of a tile of columns: of each place in a chunk a tensor.

    TOGETHER places are one load, and those left over as many as a power of two has. Pointers of one load are computed first,
    so others have registers for less (docs/experiments/scans.md#columns).
    """
    found = ()
    for k in tl.static_range(CHUNK // TOGETHER):
        found = found + column_places(row, begin, keep, span, TOGETHER * k, TOGETHER, BY_ROWS, MASKED, MASK_LINES)
    for level in tl.static_range(3):
        if CHUNK % TOGETHER & (4 >> level):
            found = found + column_places(
                row, begin, keep, span, CHUNK - CHUNK % (8 >> level), 4 >> level, BY_ROWS, MASKED, MASK_LINES
            )
    return found


def tile_elements(
    rows, begin, keep, span, BY_ROWS: tl.constexpr, RUN: tl.constexpr, SHIFT: tl.constexpr, CHUNK: tl.constexpr,
    MASKED: tl.constexpr, MASK_LINES: tl.constexpr, TOGETHER: tl.constexpr,
):  # fmt: skip
    """A tile's elements: of each place in a chunk, in memory's order, a tensor of chunks an input.

    Those that are not of the line are undefined. SHIFT: places of each input begin so many elements behind a vector; those
    of a chunk are of one vector more then, which the next chunk reads, too.
    """
    found = ()
    if BY_ROWS:
        loaded = ()
        for k in tl.static_range((CHUNK + 2 * RUN - 2) // RUN):
            at = of_chunks(begin, BY_ROWS)[:, :, None] + k * RUN + tl.arange(0, RUN)[None, None, :]
            vectors = ()
            for i in tl.static_range(len(rows)):
                if k * RUN < CHUNK + SHIFT[i]:
                    x = row_vectors(rows[i], at, keep, span, BY_ROWS, RUN, SHIFT[i], MASKED, MASK_LINES)
                    vectors = vectors + (in_halves(turned(x), RUN),)
                else:
                    vectors = vectors + (loaded[k - 1][i],)  # nothing is taken from it
            loaded = loaded + (vectors,)
        for j in tl.static_range(CHUNK):
            xs = ()
            for i in tl.static_range(len(rows)):
                xs = xs + (loaded[(j + SHIFT[i]) // RUN][i][(j + SHIFT[i]) % RUN],)
            found = found + (xs,)
    else:
        loaded = ()
        for i in tl.static_range(len(rows)):
            loaded = loaded + (column_elements(rows[i], begin, keep, span, BY_ROWS, CHUNK, MASKED, MASK_LINES, TOGETHER),)
        for j in tl.static_range(CHUNK):
            xs = ()
            for i in tl.static_range(len(rows)):
                xs = xs + (loaded[i][j],)
            found = found + (xs,)
    return found


def read_tile(rows, RESULTS: tl.constexpr, begin, keep, span, SCAN: tl.constexpr, MASKED: tl.constexpr):
    """`tile_elements` of a scan that writes so many results; many places are one load (experiments/scans.md#compiled)."""
    return tile_elements(
        rows, begin, keep, span, SCAN.BY_ROWS, SCAN.RUN, SCAN.SHIFT, SCAN.CHUNK, MASKED, SCAN.MASK_LINES,
        8 if SCAN.SUMS and SCAN.CHUNK > 16 else 4 if SCAN.SUMS or SCAN.CHUNK * (1 + RESULTS) > 64 else 1,
    )  # fmt: skip


def lifted(
    found, begin, keep, span, TURN: tl.constexpr, CHUNK: tl.constexpr, BY_ROWS: tl.constexpr, REVERSE: tl.constexpr,
    MASKED: tl.constexpr, MASK_LINES: tl.constexpr,
):  # fmt: skip
    """The elements that are number TURN of each chunk as states: elements beyond the line are the identity."""
    PLACE: tl.constexpr = CHUNK - 1 - TURN if REVERSE else TURN
    xs = found[PLACE]
    at = begin[None, :] + PLACE if BY_ROWS else begin[:, None] + PLACE
    place = at if len(span) == 1 else at - over_tile(span[0], BY_ROWS)
    state = LIFT(*xs, tl.broadcast_to(TO_INDEX(place), xs[0].shape))
    if MASKED:
        mask = tl.broadcast_to(of_line(at, span, BY_ROWS), xs[0].shape)
        if MASK_LINES:
            mask = mask & over_tile(keep, BY_ROWS)
        state = OR_IDENTITY(mask, *state)
    return AS_STATE(*[tl.broadcast_to(s, xs[0].shape) for s in state])
