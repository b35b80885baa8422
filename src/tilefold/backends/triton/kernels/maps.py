"""The kernel that maps every element with its row's results, where these are in memory.

APPLY takes an element of each operand and gives the stored value. Arguments:
    inputs         one record an operand: (pointer, outer steps, row step, column step), in elements
    y_ptrs         one pointer a result
    y_outer, y_row, y_column   the results' steps
    outer_sizes    dims but the last two: walked by whole programs
"""

import triton.language as tl

from tilefold.backends.triton.kernels.tiles import outer_offset


def load_operand(
    x, begin, m, n, rows, columns, ROW: tl.constexpr, COLUMN: tl.constexpr, MASK: tl.constexpr, EVICT: tl.constexpr,
):  # fmt: skip
    """A tile of one operand, of length 1 along an axis that it does not vary along."""
    offset = tl.full([1, 1], 0, tl.int64) + begin
    keep = tl.full([1, 1], 1, tl.int1)
    if ROW:
        offset = offset + m * x.row
        keep = keep & (m < rows)
    if COLUMN:
        offset = offset + n * x.column
        keep = keep & (n < columns)
    if MASK:
        value = tl.load(x.pointer + offset, mask=keep, eviction_policy=EVICT)
    else:
        value = tl.load(x.pointer + offset, eviction_policy=EVICT)
    return value


def map_elements(
    inputs, y_ptrs, y_outer, y_row, y_column, outer_sizes, rows, columns, row_blocks, column_blocks,
    ROWS: tl.constexpr, COLUMNS: tl.constexpr, MASK: tl.constexpr, BY_ROW: tl.constexpr, BY_COLUMN: tl.constexpr,
    WIDE: tl.constexpr, EVICT: tl.constexpr,
):  # fmt: skip
    """Map elements: a program owns a tile of [ROWS, COLUMNS] of them, reads each operand's once, and writes them mapped.

    BY_ROW, BY_COLUMN: a bit for each operand that varies along that axis.
    """
    pid = tl.program_id(0)
    column = (pid % column_blocks).to(tl.int64) * COLUMNS
    row = (pid // column_blocks % row_blocks).to(tl.int64) * ROWS
    outer = (pid // column_blocks // row_blocks).to(tl.int64)
    if not WIDE:
        row = row.to(tl.int32)
        column = column.to(tl.int32)
    m = row + tl.arange(0, ROWS)[:, None]
    n = column + tl.arange(0, COLUMNS)[None, :]
    values = ()
    for i in tl.static_range(len(inputs)):
        begin = outer_offset(outer, outer_sizes, inputs[i].outer)
        values = values + (
            load_operand(
                inputs[i], begin, m, n, rows, columns, (BY_ROW >> i) & 1, (BY_COLUMN >> i) & 1, MASK, EVICT
            ),
        )
    made = APPLY(*values)
    offset = outer_offset(outer, outer_sizes, y_outer) + m * y_row + n * y_column
    for r in tl.static_range(len(y_ptrs)):
        value = tl.broadcast_to(made[r], (ROWS, COLUMNS))
        if MASK:
            tl.store(y_ptrs[r] + offset, value, mask=(m < rows) & (n < columns), eviction_policy=EVICT)
        else:
            tl.store(y_ptrs[r] + offset, value, eviction_policy=EVICT)
