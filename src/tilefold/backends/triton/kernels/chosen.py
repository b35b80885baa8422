"""A function of rows, and of the element of each row that its index chooses."""

import triton.language as tl

from tilefold.backends.triton.kernels.moves import far_offset


def map_chosen(
    values, index, tables, y_ptrs, y_steps, y_along, sizes, rows, classes, ROWS: tl.constexpr, WIDE: tl.constexpr,
):  # fmt: skip
    """Map ROWS rows: APPLY takes a row's values, its index, and each table's element there.

    `values` and `index` are (pointer, steps along the rows' dims), `tables` (pointer, steps, step along the classes), `sizes`
    those of the rows' dims but the first. Results lie `y_along` apart for each class: 0 where a row has one place. An index
    that is no class counts as 0, so that nothing is read or written outside of a row.
    """
    row = tl.program_id(0)
    if WIDE:
        row = row.to(tl.int64)
    row = row * ROWS + tl.arange(0, ROWS)
    keep = row < rows
    chosen = tl.load(index[0] + far_offset(row, sizes, index[1]), mask=keep, other=0)
    place = chosen.to(tl.int64)
    place = tl.where((place >= 0) & (place < classes), place, 0)
    taken = ()
    for i in tl.static_range(len(values)):
        taken = taken + (tl.load(values[i][0] + far_offset(row, sizes, values[i][1]), mask=keep),)
    taken = taken + (chosen,)
    for i in tl.static_range(len(tables)):
        at = far_offset(row, sizes, tables[i][1]) + place * tables[i][2]
        taken = taken + (tl.load(tables[i][0] + at, mask=keep),)
    made = APPLY(*taken)
    offset = far_offset(row, sizes, y_steps) + place * y_along
    for r in tl.static_range(len(y_ptrs)):
        tl.store(y_ptrs[r] + offset, made[r], mask=keep)
