"""The product's kernels where whole rows of results are folded in the store that makes them final.

As in `products`; besides, LIFT, COMBINE, COMBINE_SYMMETRIC, OR_IDENTITY, PROJECT and TO_INDEX of the row's monoid, and
APPLY, which takes a value and the row's results and gives the stored value. y_ptrs are one pointer a result of the fold, of
one element a row.
"""

import triton.language as tl

from tilefold.backends.triton.kernels.products import (
    first_splits,
    first_tiles,
    fold_splits,
    load_extras,
    multiply_tiles,
    program_tile,
)
from tilefold.backends.triton.kernels.tiles import tree


def fold_values(values, n, keep, ROWS: tl.constexpr, COLUMNS: tl.constexpr, LEVELS: tl.constexpr, ORDERED: tl.constexpr):
    """[ROWS, COLUMNS] values of columns n -> the fold's results, each [ROWS]. ORDERED: neighbours are combined in a tree."""
    position = tl.broadcast_to(TO_INDEX(n), (ROWS, COLUMNS))
    state = OR_IDENTITY(tl.broadcast_to(keep, (ROWS, COLUMNS)), *LIFT(values, position))
    if ORDERED:
        folded = tree(state, ROWS, COLUMNS, LEVELS)
    else:
        folded = tl.reduce(state, 1, COMBINE_SYMMETRIC)
    return PROJECT(*folded)


def store_rows(
    c_ptr, y_ptrs, values, begin, begin_y, m, n, rows, columns,
    ROWS: tl.constexpr, COLUMNS: tl.constexpr, LEVELS: tl.constexpr, ORDERED: tl.constexpr,
):  # fmt: skip
    """Fold rows of values, and write the mapped values and the fold's results."""
    folded = fold_values(values, n[None, :], (n < columns)[None, :], ROWS, COLUMNS, LEVELS, ORDERED)
    spread = [tl.broadcast_to(f[:, None], (ROWS, COLUMNS)) for f in folded]
    mask = (m < rows)[:, None] & (n < columns)[None, :]
    tl.store(c_ptr + begin + (m[:, None] * columns + n[None, :]), APPLY(values, *spread)[0], mask=mask)
    for r in tl.static_range(len(y_ptrs)):
        tl.store(y_ptrs[r] + begin_y + m, folded[r], mask=m < rows)


def product_rows(
    a, b, extras, c_ptr, y_ptrs, rows, columns, depth, batch_sizes, TILE: tl.constexpr, CHAINED: tl.constexpr,
    RELEASE: tl.constexpr, LEVELS: tl.constexpr, ORDERED: tl.constexpr,
):  # fmt: skip
    """BLOCK_M whole rows of results from all of K, finished and folded: BLOCK_N is not below the columns.

    A program owns these rows of one matrix. It reads a's rows once and all of b, holds the sums in registers, and writes what
    is stored of elements and of rows.

    CHAINED: as in `product_whole`.
    """
    batch, tile_m, tile_n, _ = program_tile(rows, 1, TILE)
    split = 0 * tile_n  # the only one
    at_a, at_b = first_tiles(a, b, batch, tile_m, tile_n, split, batch_sizes, depth, TILE)
    if CHAINED:
        gdc_wait()
    if RELEASE:
        gdc_launch_dependents()
    sums = multiply_tiles(at_a, at_b, a.column, tile_m, tile_n, split, rows, columns, depth, depth, TILE)
    m = tile_m * TILE.BLOCK_M + tl.arange(0, TILE.BLOCK_M)
    n = tl.arange(0, TILE.BLOCK_N)
    if TILE.WIDE:
        m = m.to(tl.int64)
    mask = (m < rows)[:, None] & (n < columns)[None, :]
    values = EPILOGUE(sums, *load_extras(extras, batch, m[:, None], n[None, :], batch_sizes, mask))[0]
    begin = batch * rows
    store_rows(
        c_ptr, y_ptrs, values, begin * columns, begin, m, n, rows, columns, TILE.BLOCK_M, TILE.BLOCK_N, LEVELS, ORDERED,
    )  # fmt: skip


def finish_rows(
    p_ptr, extras, c_ptr, y_ptrs, rows, columns, batch_sizes,
    ROWS: tl.constexpr, COLUMNS: tl.constexpr, LANES: tl.constexpr, SPLITS: tl.constexpr, PITCH: tl.constexpr,
    WIDE: tl.constexpr, WAIT: tl.constexpr, RELEASE: tl.constexpr, LEVELS: tl.constexpr, ORDERED: tl.constexpr,
):  # fmt: skip
    """Fold the partial products of whole rows over the splits, in a fixed order, finish the values and fold the rows.

    A program owns ROWS neighbouring rows of one matrix; COLUMNS is not below their columns.
    """
    if RELEASE:  # before the wait: the launch to come is a product's first, which waits for all of this one
        gdc_launch_dependents()
    blocks = (rows + (ROWS - 1)) // ROWS
    batch = (tl.program_id(0) // blocks).to(tl.int64)
    m = tl.program_id(0) % blocks * ROWS + tl.arange(0, ROWS)
    n = tl.arange(0, COLUMNS)
    if WIDE:
        m = m.to(tl.int64)
    mask = (m < rows)[:, None] & (n < columns)[None, :]
    taken = load_extras(extras, batch, m[:, None], n[None, :], batch_sizes, mask)
    places = batch * rows * columns + (m[:, None] * columns + n[None, :])
    begin, lanes, keep = first_splits(p_ptr, places, mask, PITCH, LANES)
    if WAIT:
        gdc_wait()
    values = EPILOGUE(fold_splits(begin, lanes, keep, SPLITS, PITCH, LANES), *taken)[0]
    begin_y = batch * rows
    store_rows(c_ptr, y_ptrs, values, begin_y * columns, begin_y, m, n, rows, columns, ROWS, COLUMNS, LEVELS, ORDERED)
