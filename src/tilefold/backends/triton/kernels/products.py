"""The product's kernels: tiles walk their share of K, partial products are folded, results are finished.

A product is a fold over K in two launches. In the first, programs share K and leave float32 partial products; the second
folds [splits, results] along the splits in a fixed order, and stores. No kernel knows of a bias: it is the first extra
tensor. With "batch_invariant" tile, splits and every order of summation follow from K, N and the dtype; only masks, grids
and addresses follow from M. How Triton gives a tile to threads follows from strides and so from M: therefore one thread
sums over the splits.

EPILOGUE, ZEROS, OPERAND and BLOCK_SUM are generated and put into these functions' globals by `instantiate`, with Triton's
`gdc_wait` and `gdc_launch_dependents`. EPILOGUE takes the accumulator and an element of each extra tensor, and gives the
stored value; ZEROS gives an empty accumulator; OPERAND makes the factor of a loaded element (the interpreter widens
it).

Arguments shared by the kernels, steps in elements:
    a, b, extras  a Plane each, [M, K], [K, N] and [M, N], whose outer dims are a batch
    rows, columns, depth         M, N and K
    batch_sizes   dims that a and b both walk
    chunk         the share of K of each split but the last: a multiple of BLOCK_K
    pitch         from one split's partial products to the next one's

Constants say how programs are counted: ACROSS tiles of results side by side, DOWN below each other (0 where they are many),
BATCHED where there is more than one matrix. So that a thread's loads differ by constants, STEP_B is b's step along K, and
PITCH is `pitch` where partial products are read. Addresses stand before the wait for the launch before: only data has to be
waited for.
"""

import triton.language as tl

from tilefold.backends.triton.kernels.tiles import outer_offset


def program_tile(rows, splits, TILE: tl.constexpr):
    """(batch, tile's row, tile's column, split) of this program: neighbours in launch order share a split's b.

    Divided by constants: by a number that only the launch knows, a division takes some thirty instructions in a row.
    """
    rest = tl.program_id(0)
    tile_n = rest % TILE.ACROSS
    rest = rest // TILE.ACROSS
    down = TILE.DOWN if TILE.DOWN else (rows + (TILE.BLOCK_M - 1)) // TILE.BLOCK_M
    tile_m = rest % down
    rest = rest // down
    batch = 0 * rest
    split = rest
    if TILE.BATCHED:
        batch = rest // splits
        split = rest % splits
    return batch.to(tl.int64), tile_m, tile_n, split


def load_part(pointers, keep, bound, MASK_KEEP: tl.constexpr, MASK_K: tl.constexpr):
    """One operand's tile; elements outside are 0 and add nothing."""
    if MASK_KEEP and MASK_K:
        part = tl.load(pointers, mask=keep & bound, other=0.0)
    elif MASK_KEEP:
        part = tl.load(pointers, mask=keep, other=0.0)
    elif MASK_K:
        part = tl.load(pointers, mask=bound, other=0.0)
    else:
        part = tl.load(pointers)
    return part


def first_tiles(a, b, batch, tile_m, tile_n, split, batch_sizes, chunk, TILE: tl.constexpr):
    """Pointers to a's [BLOCK_M, BLOCK_K] and b's [BLOCK_K, BLOCK_N] where the split's share of K begins."""
    offs_m = tl.arange(0, TILE.BLOCK_M)
    offs_n = tl.arange(0, TILE.BLOCK_N)
    offs_k = tl.arange(0, TILE.BLOCK_K)
    if TILE.WIDE:
        split = split.to(tl.int64)
        offs_m = offs_m.to(tl.int64)
        offs_n = offs_n.to(tl.int64)
        offs_k = offs_k.to(tl.int64)
    start = (split * chunk).to(tl.int64)
    column = (tile_n * TILE.BLOCK_N).to(tl.int64)
    begin_a = outer_offset(batch, batch_sizes, a.outer) + (tile_m * TILE.BLOCK_M).to(tl.int64) * a.row + start * a.column
    begin_b = outer_offset(batch, batch_sizes, b.outer) + column * b.column + start * TILE.STEP_B
    at_a = a.pointer + begin_a + (offs_m[:, None] * a.row + offs_k[None, :] * a.column)
    at_b = b.pointer + begin_b + (offs_k[:, None] * TILE.STEP_B + offs_n[None, :] * b.column)
    return at_a, at_b


def multiply_tiles(at_a, at_b, a_step, tile_m, tile_n, split, rows, columns, depth, chunk, TILE: tl.constexpr):
    """[BLOCK_M, BLOCK_N] products summed over the split's share of K, from its first tiles on; `a_step` is a's along K.

    PACKED_A, PACKED_B: 0, or the dim along which its rows hold zeros up to a multiple of 16: 1 along K, 2 along its own.
    """
    rows_a = rows
    columns_b = columns
    if TILE.PACKED_A == 2:
        rows_a = (rows + 15) // 16 * 16
    if TILE.PACKED_B == 2:
        columns_b = (columns + 15) // 16 * 16
    keep_m = (tl.arange(0, TILE.BLOCK_M) < rows_a - tile_m * TILE.BLOCK_M)[:, None]
    keep_n = (tl.arange(0, TILE.BLOCK_N) < columns_b - tile_n * TILE.BLOCK_N)[None, :]
    offs_k = tl.arange(0, TILE.BLOCK_K)
    step_a = TILE.BLOCK_K * a_step
    step_b = TILE.BLOCK_K * TILE.STEP_B
    if TILE.WIDE:
        split = split.to(tl.int64)
        step_a = TILE.BLOCK_K * tl.cast(a_step, tl.int64)
        offs_k = offs_k.to(tl.int64)
    start = split * chunk
    stop = tl.minimum(start + chunk, depth)
    stop_a = stop
    stop_b = stop
    if TILE.PACKED_A == 1:
        stop_a = (stop + 15) // 16 * 16
    if TILE.PACKED_B == 1:
        stop_b = (stop + 15) // 16 * 16
    sums = ZEROS((TILE.BLOCK_M, TILE.BLOCK_N))[0]
    for k in range(start, stop, TILE.BLOCK_K):
        part_a = load_part(at_a, keep_m, (offs_k < stop_a - k)[None, :], TILE.MASK_M, TILE.MASK_K)
        part_b = load_part(at_b, keep_n, (offs_k < stop_b - k)[:, None], TILE.MASK_N, TILE.MASK_K)
        # 0 imprecise steps: float8 products are summed in float32 proper on chips that could do less
        sums = tl.dot(
            OPERAND(part_a)[0], OPERAND(part_b)[0], sums,
            input_precision=TILE.PRECISION, max_num_imprecise_acc=0, out_dtype=sums.dtype,
        )
        at_a += step_a
        at_b += step_b
    return sums


def load_extras(extras, batch, m, n, batch_sizes, mask):
    """An element of each extra tensor for each result; outside the mask they are undefined."""
    return [
        tl.load(x.pointer + outer_offset(batch, batch_sizes, x.outer) + m * x.row + n * x.column, mask=mask) for x in extras
    ]


def product_partials(
    a, b, p_ptr, rows, columns, depth, batch_sizes, chunk, splits, pitch, TILE: tl.constexpr, WAIT: tl.constexpr,
    RELEASE: tl.constexpr,
):  # fmt: skip
    """Partial products of one tile of results over one split of K.

    A program owns BLOCK_M rows and BLOCK_N columns of one matrix and the elements [split * chunk, (split + 1) * chunk) of
    K. It reads [BLOCK_M, BLOCK_K] of a and [BLOCK_K, BLOCK_N] of b a step and writes its sums to p[split], where the results
    lie as they will lie in the end. With WAIT it began beside the launch before, which may still write a and b.
    """
    batch, tile_m, tile_n, split = program_tile(rows, splits, TILE)
    at_a, at_b = first_tiles(a, b, batch, tile_m, tile_n, split, batch_sizes, chunk, TILE)
    if WAIT:
        gdc_wait()
    if RELEASE:  # after the wait: the launch to come reads extra tensors that the one before may still write
        gdc_launch_dependents()
    sums = multiply_tiles(at_a, at_b, a.column, tile_m, tile_n, split, rows, columns, depth, chunk, TILE)
    m = (tile_m * TILE.BLOCK_M + tl.arange(0, TILE.BLOCK_M))[:, None]
    n = (tile_n * TILE.BLOCK_N + tl.arange(0, TILE.BLOCK_N))[None, :]
    begin = split.to(tl.int64) * pitch + batch * rows * columns
    place = m.to(tl.int64) * columns + n if TILE.WIDE else m * columns + n
    tl.store(p_ptr + begin + place, sums, mask=(m < rows) & (n < columns))


def product_whole(
    a, b, extras, c_ptr, rows, columns, depth, batch_sizes, TILE: tl.constexpr, CHAINED: tl.constexpr,
    RELEASE: tl.constexpr,
):  # fmt: skip
    """One tile of results from all of K, finished: a program owns BLOCK_M rows and BLOCK_N columns of one matrix.

    CHAINED: it began beside the launch before, and lets the next one do so.
    """
    batch, tile_m, tile_n, _ = program_tile(rows, 1, TILE)
    split = 0 * tile_n  # the only one
    at_a, at_b = first_tiles(a, b, batch, tile_m, tile_n, split, batch_sizes, depth, TILE)
    if CHAINED:  # released after the wait: what comes next may read at once what the launch before wrote
        gdc_wait()
    if RELEASE:
        gdc_launch_dependents()
    sums = multiply_tiles(at_a, at_b, a.column, tile_m, tile_n, split, rows, columns, depth, depth, TILE)
    m = (tile_m * TILE.BLOCK_M + tl.arange(0, TILE.BLOCK_M))[:, None]
    n = (tile_n * TILE.BLOCK_N + tl.arange(0, TILE.BLOCK_N))[None, :]
    mask = (m < rows) & (n < columns)
    if TILE.WIDE:
        m = m.to(tl.int64)
        n = n.to(tl.int64)
    results = EPILOGUE(sums, *load_extras(extras, batch, m, n, batch_sizes, mask))
    tl.store(c_ptr + batch * rows * columns + (m * columns + n), results[0], mask=mask)


def first_splits(p_ptr, places, mask, PITCH: tl.constexpr, LANES: tl.constexpr):
    """Pointers to the partial products that each of LANES lanes begins with, the lanes' numbers and the mask."""
    if LANES == 1:
        begin, lanes, keep = p_ptr + places, 0, mask
    else:
        lanes = tl.arange(0, LANES)
        for axis in tl.static_range(len(places.shape)):
            lanes = tl.expand_dims(lanes, axis + 1)
        begin = p_ptr + (lanes.to(tl.int64) * PITCH + tl.expand_dims(places, 0))
        keep = tl.expand_dims(mask, 0)
    return begin, lanes, keep


def fold_splits(begin, lanes, keep, SPLITS: tl.constexpr, PITCH: tl.constexpr, LANES: tl.constexpr):
    """The partial products of each split, from those of the first on, summed.

    Each of LANES lanes sums the splits LANES apart, one after another; lanes are combined once, in a tree that follows how
    registers are shared out, and so from strides. For a single lane all are loaded at once and summed one after another, in
    an order that nothing else can change.
    """
    if LANES == 1:
        sums = tl.load(begin, mask=keep, other=0.0)
        for s in tl.static_range(1, SPLITS):
            sums += tl.load(begin + s * PITCH, mask=keep, other=0.0)
    else:
        parts = load_splits(begin, lanes, keep, SPLITS, LANES)
        for s in tl.static_range(LANES, SPLITS, LANES):
            parts += load_splits(begin + s * PITCH, lanes, keep, SPLITS - s, LANES)
        sums = tl.reduce(parts, 0, BLOCK_SUM)
    return sums


def load_splits(at, lanes, keep, LEFT: tl.constexpr, LANES: tl.constexpr):
    """A lane's next partial products; a lane that has none left adds nothing."""
    if LEFT < LANES:
        parts = tl.load(at, mask=keep & (lanes < LEFT), other=0.0)
    else:
        parts = tl.load(at, mask=keep, other=0.0)
    return parts


def finish_products(
    p_ptr, extras, c_ptr, rows, columns, batch_sizes, outputs,
    BLOCK: tl.constexpr, LANES: tl.constexpr, SPLITS: tl.constexpr, PITCH: tl.constexpr, WIDE: tl.constexpr,
    WAIT: tl.constexpr, RELEASE: tl.constexpr,
):  # fmt: skip
    """Fold the partial products of neighbouring results over the splits, in a fixed order, and finish them.

    A program owns BLOCK results, whichever rows they are of. Extra tensors do not depend on the launch before and are read
    while it still runs.
    """
    if RELEASE:  # before the wait: the launch to come is a product's first, which waits for all of this one
        gdc_launch_dependents()
    x = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    if WIDE:
        x = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    mask = x < outputs
    row = x // columns
    taken = load_extras(extras, row // rows, row % rows, x % columns, batch_sizes, mask)
    begin, lanes, keep = first_splits(p_ptr, x, mask, PITCH, LANES)
    if WAIT:
        gdc_wait()
    results = EPILOGUE(fold_splits(begin, lanes, keep, SPLITS, PITCH, LANES), *taken)
    tl.store(c_ptr + x, results[0], mask=mask)


def pack_lines(x, y_ptr, pid, LINES: tl.constexpr, BLOCK: tl.constexpr, WIDE: tl.constexpr):
    """Copy LINES rows of BLOCK neighbours of one operand."""
    pitch = (x.length + 15) // 16 * 16
    line = (pid // x.blocks) * LINES + tl.arange(0, LINES)
    place = (pid % x.blocks) * BLOCK + tl.arange(0, BLOCK)
    if WIDE:
        line = line.to(tl.int64)
        place = place.to(tl.int64)
    inside = (line < x.lines)[:, None]
    values = tl.load(
        x.pointer + (line[:, None] * x.line + place[None, :] * x.step), mask=inside & (place < x.length)[None, :], other=0.0
    )
    if WIDE:
        pitch = tl.cast(pitch, tl.int64)
    tl.store(y_ptr + line[:, None] * pitch + place[None, :], values, mask=inside & (place < pitch)[None, :])


def pack_operands(
    operands, y_ptrs, programs, ELEMENTS: tl.constexpr, BLOCKS: tl.constexpr, WIDE: tl.constexpr, RELEASE: tl.constexpr
):
    """Copy one or two operands, a PackedLines each, into rows of a multiple of 16 elements, with zeros behind them.

    A program copies ELEMENTS, in BLOCKS neighbours of a row: `programs` of them of the first operand, the rest of the second.
    """
    if RELEASE:
        gdc_launch_dependents()
    pid = tl.program_id(0)
    if len(operands) > 1:
        if pid < programs:
            pack_lines(operands[0], y_ptrs[0], pid, ELEMENTS // BLOCKS[0], BLOCKS[0], WIDE)
        else:
            pack_lines(operands[1], y_ptrs[1], pid - programs, ELEMENTS // BLOCKS[1], BLOCKS[1], WIDE)
    else:
        pack_lines(operands[0], y_ptrs[0], pid, ELEMENTS // BLOCKS[0], BLOCKS[0], WIDE)
