"""A function of rows, and of the element of each row that its index chooses."""

import triton.language as tl

from tilefold.backends.triton.kernels.moves import far_offset


def map_chosen(values, index, tables, y, sizes, rows, classes, ROWS: tl.constexpr, WIDE: tl.constexpr):
    """Map ROWS rows: APPLY takes a row's values, its index, and each table's element there.

    They and `y` are ClassValues; `sizes` are those of the rows' dims but the first. An index that is no class counts as 0, so
    that nothing is read or written outside of a row.
    """
    row = tl.program_id(0)
    if WIDE:
        row = row.to(tl.int64)
    row = row * ROWS + tl.arange(0, ROWS)
    keep = row < rows
    chosen = tl.load(index.pointers[0] + far_offset(row, sizes, index.rows), mask=keep, other=0)
    place = chosen.to(tl.int64)
    place = tl.where((place >= 0) & (place < classes), place, 0)
    taken = ()
    for i in tl.static_range(len(values)):
        taken = taken + (tl.load(values[i].pointers[0] + far_offset(row, sizes, values[i].rows), mask=keep),)
    taken = taken + (chosen,)
    for i in tl.static_range(len(tables)):
        at = far_offset(row, sizes, tables[i].rows) + place * tables[i].step
        taken = taken + (tl.load(tables[i].pointers[0] + at, mask=keep),)
    made = APPLY(*taken)
    offset = far_offset(row, sizes, y.rows) + place * y.step
    for r in tl.static_range(len(y.pointers)):
        tl.store(y.pointers[r] + offset, made[r], mask=keep)
