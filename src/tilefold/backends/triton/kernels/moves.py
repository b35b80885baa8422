"""Copies between layouts: a tile is loaded along neighbours of the input and stored along neighbours of the result.

Between the two, elements change threads; Triton exchanges them through shared memory, swizzled so that banks do not
conflict.
"""

import triton.language as tl


def strided_offset(place, walk, near: tl.constexpr = 0):
    """Where a place of several dims lies.

    With `near`, Triton is told that so many places lie side by side, though they do only until a dim ends. It sees no
    neighbours behind a remainder by a size that no power of two divides, and threads would then go along the tile's other
    side. Vectors become no wider by it than what divides each size and step, so that none reaches beyond a dim's end.
    """
    offset = place * 0
    for d in tl.static_range(len(walk.sizes)):
        offset += (place % walk.sizes[len(walk.sizes) - 1 - d]) * walk.steps[len(walk.sizes) - d]
        place = place // walk.sizes[len(walk.sizes) - 1 - d]
    offset += place * walk.steps[0]
    if near:
        offset = tl.max_contiguous(offset, near)
    return offset


def far_offset(place, sizes, steps):
    """The same beyond 32 bits, of `sizes` but the first, and steps; what is divided has no more."""
    offset = (place * 0).to(tl.int64)
    for d in tl.static_range(len(sizes)):
        offset += (place % sizes[len(sizes) - 1 - d]).to(tl.int64) * steps[len(sizes) - d]
        place = place // sizes[len(sizes) - 1 - d]
    return offset + place.to(tl.int64) * steps[0]


def move_runs(
    x_ptr, y_ptr, x_row, x_column, y_row, y_column, is_row, is_column, RUN: tl.constexpr, SLOTS: tl.constexpr,
    MASKED: tl.constexpr, KEEP: tl.constexpr,
):  # fmt: skip
    """Copy a tile whose elements are runs of RUN neighbours (of SLOTS, a power of two), in the input and in the result.

    Threads go along a run, then along the next runs in memory: of the columns' when they load, of the rows' when they store.
    """
    run = tl.arange(0, SLOTS)[None, None, :]
    if LANES_LAST:  # see `scan_elements.turned`
        x = x_ptr + x_row[:, None, None] + x_column[None, :, None] + run
        y = y_ptr + y_column[:, None, None] + y_row[None, :, None] + run
        loaded, stored = is_row[:, None, None] & is_column[None, :, None], is_column[:, None, None] & is_row[None, :, None]
    else:
        x = x_ptr + x_column[:, None, None] + x_row[None, :, None] + run
        y = y_ptr + y_row[:, None, None] + y_column[None, :, None] + run
        loaded, stored = is_column[:, None, None] & is_row[None, :, None], is_row[:, None, None] & is_column[None, :, None]
    if MASKED or SLOTS != RUN:
        loaded = tl.broadcast_to(loaded & (run < RUN), x.shape)
        stored = tl.broadcast_to(stored & (run < RUN), y.shape)
        moved = tl.load(x, mask=loaded, eviction_policy="evict_last")
        tl.store(y, tl.permute(moved, (1, 0, 2)), mask=stored, eviction_policy=KEEP)
    else:
        moved = tl.load(x, eviction_policy="evict_last")
        tl.store(y, tl.permute(moved, (1, 0, 2)), eviction_policy=KEEP)


def move_tiles(
    x_ptr, y_ptr, outer_sizes, x_outer, y_outer, x_rows, y_rows, x_columns, y_columns, rows, columns, row_blocks,
    column_blocks, TILE: tl.constexpr, SPREAD: tl.constexpr, GROUP: tl.constexpr, OUTER: tl.constexpr, WIDE: tl.constexpr,
    KEEP: tl.constexpr, LOADS: tl.constexpr, STORES: tl.constexpr, SPLIT: tl.constexpr,
):  # fmt: skip
    """Copy elements from a layout with strides into a contiguous result.

    A program owns a tile of BLOCK_M rows and BLOCK_N columns at one place of the outer dims. It reads and writes each of
    its elements once. `x_rows` ... are Strided. Programs go down a column of tiles,
    along what is contiguous in the result: all of it, or GROUP tiles, then on to the next column. With SPREAD the grid has
    the tiles of a column, the columns and the outer places on an axis each, and nothing is divided. The L2 gives up last what
    is read, and with KEEP "evict_last" what is written. LOADS and STORES are the sides, "rows" or "columns", along which
    neighbours lie side by side in the input and in the result, or "". With SPLIT only the last tile of a row has a mask: one
    that does not end at a vector's end would leave none of them vectors. With RUN > 1 an element is a run of so many
    neighbours, in SLOTS places.
    """
    row_block = tl.program_id(0)
    column_block = tl.program_id(1)
    outer = tl.program_id(2)
    if not SPREAD:
        pid = row_block
        if OUTER:
            outer = pid // (row_blocks * column_blocks)
            pid = pid % (row_blocks * column_blocks)
        first = 0
        height = row_blocks
        if GROUP:
            group = tl.minimum(row_blocks, GROUP)
            first = pid // (group * column_blocks) * group
            height = tl.minimum(row_blocks - first, group)
            pid = pid % (group * column_blocks)
        row_block = first + pid % height
        column_block = pid // height
    if OUTER:
        x_ptr += far_offset(outer, outer_sizes, x_outer)
        y_ptr += far_offset(outer, outer_sizes, y_outer)
    row = row_block * TILE.BLOCK_M + tl.arange(0, TILE.BLOCK_M)
    column = column_block * TILE.BLOCK_N + tl.arange(0, TILE.BLOCK_N)
    if WIDE:
        row = row.to(tl.int64)
        column = column.to(tl.int64)
    x_row = strided_offset(row, x_rows)
    x_column = strided_offset(column, x_columns, TILE.BLOCK_N if LOADS == "columns" else 0)
    y_row = strided_offset(row, y_rows, TILE.BLOCK_M if STORES == "rows" else 0)
    y_column = strided_offset(column, y_columns, TILE.BLOCK_N if STORES == "columns" else 0)
    x = x_ptr + x_row[:, None] + x_column[None, :]
    y = y_ptr + y_row[:, None] + y_column[None, :]
    if TILE.RUN > 1:
        move_runs(
            x_ptr, y_ptr, x_row, x_column, y_row, y_column, row < rows, column < columns, TILE.RUN, TILE.SLOTS,
            TILE.MASK_M or TILE.MASK_N, KEEP,
        )  # fmt: skip
    elif SPLIT:
        if column_block < column_blocks - 1:
            tl.store(y, tl.load(x, eviction_policy="evict_last"), eviction_policy=KEEP)
        else:
            mask = tl.broadcast_to((column < columns)[None, :], (TILE.BLOCK_M, TILE.BLOCK_N))
            tl.store(y, tl.load(x, mask=mask, eviction_policy="evict_last"), mask=mask, eviction_policy=KEEP)
    elif TILE.MASK_M and TILE.MASK_N:
        mask = (row < rows)[:, None] & (column < columns)[None, :]
        tl.store(y, tl.load(x, mask=mask, eviction_policy="evict_last"), mask=mask, eviction_policy=KEEP)
    elif TILE.MASK_M:
        mask = tl.broadcast_to((row < rows)[:, None], (TILE.BLOCK_M, TILE.BLOCK_N))
        tl.store(y, tl.load(x, mask=mask, eviction_policy="evict_last"), mask=mask, eviction_policy=KEEP)
    elif TILE.MASK_N:
        mask = tl.broadcast_to((column < columns)[None, :], (TILE.BLOCK_M, TILE.BLOCK_N))
        tl.store(y, tl.load(x, mask=mask, eviction_policy="evict_last"), mask=mask, eviction_policy=KEEP)
    else:
        tl.store(y, tl.load(x, eviction_policy="evict_last"), eviction_policy=KEEP)
