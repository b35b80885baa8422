"""The kernel whose programs map rows one after another: with one value a row, of rows and into them, and sums over rows.

A group, of CLUSTER programs that hold a row together, takes every `groups`th block of ROWS rows, `turns` of them. STAGES - 1
turns are on their way through shared memory (the compiler pipelines the loop). What all rows share (a weight) is read once,
what a row has one value of a turn ahead. Sums over its rows stay in registers, [ROWS, COLUMNS] for each, until the end: then
they are stored, and a second launch sums the groups' in one order. With FOLDS a row is folded as it is held, else its results
are in memory, as operands are.

Besides what `map_blocks` has: OF_ROWS of a row's results gives what is stored of it. Arguments:
    inputs       an Operand each, of the tensors that are folded, of rows' results without FOLDS, of extra tensors
    y, of_rows   the Mapped results of elements, the Results of rows
    sizes        Sizes of the rows' dims
    s_ptrs       each group's sums: [groups, columns]
"""

import triton.language as tl

from tilefold.backends.triton.kernels.clusters import begin_exchange, combine_cluster, others_have_begun
from tilefold.backends.triton.kernels.primitives import some_of
from tilefold.backends.triton.kernels.tiles import outer_offset, reduced_offset


def rows_begin(m, sizes, x, shift=0):
    """Where rows begin, in one operand: [ROWS]."""
    if len(sizes.outer) == 0:
        begin = shift + m * x.output
    else:
        begin = shift + outer_offset(m // sizes.output, sizes.outer, x.outer) + (m % sizes.output) * x.output
    return begin


def load_operand(
    x, m, n, rows, some, keep_columns, sizes, ROW: tl.constexpr, COLUMN: tl.constexpr, MASK_COLUMNS: tl.constexpr
):
    """A tile of one operand: [1, COLUMNS] of one that all rows share, [ROWS, 1] of one with a value a row, or a number.

    `some`: whether it has any element; what has none may have no memory.
    """
    begin = x.shift
    if ROW:
        begin = rows_begin(m, sizes, x, x.shift)
    if not COLUMN:
        if ROW:  # loaded once a thread, not once for each element that it has beside it
            value = tl.load(x.pointer + begin, mask=(m < rows) & some)[:, None]
        else:
            value = tl.load(x.pointer + begin, mask=(rows > 0) & some)
    else:
        column = reduced_offset(n, (sizes.deep, sizes.reduced), (x.deep, x.reduced))
        if ROW:
            keep = (m < rows)[:, None]
            if MASK_COLUMNS:
                keep = keep & keep_columns
            value = tl.load(x.pointer + (begin[:, None] + column), mask=keep)
        elif MASK_COLUMNS:
            value = tl.load(x.pointer + (begin + column), mask=keep_columns & (rows > 0))
        else:
            value = tl.load(x.pointer + (begin + column), mask=rows > 0)
    return value


def load_operands(
    inputs, before, m, n, rows, keep_columns, sizes, BY_ROW: tl.constexpr, BY_COLUMN: tl.constexpr,
    MASK_COLUMNS: tl.constexpr, FIRST: tl.constexpr, RESULTS: tl.constexpr, KIND: tl.constexpr,
):  # fmt: skip
    """Operands of one KIND, the others as they were `before`: 0 those all rows share, 1 with one value a row, 2 tiles.

    From FIRST on RESULTS of them are rows' results, which rows without elements have, too.
    """
    values = ()
    for i in tl.static_range(len(inputs)):
        if ((BY_ROW >> i) & 1) * (1 + ((BY_COLUMN >> i) & 1)) == KIND:
            values = values + (
                load_operand(
                    inputs[i], m, n, rows, (sizes.length > 0) | ((FIRST <= i) & (i < FIRST + RESULTS)), keep_columns, sizes,
                    (BY_ROW >> i) & 1, (BY_COLUMN >> i) & 1, MASK_COLUMNS,
                ),
            )  # fmt: skip
        elif len(before) > 0:
            values = values + (before[i],)
        else:
            values = values + (0,)
    return values


def columns_of(results, ROWS: tl.constexpr):
    """What rows fold to, beside their elements: [ROWS, 1]."""
    values = ()
    for r in tl.static_range(len(results)):
        if len(results[r].shape) > 0:
            values = values + (results[r][:, None],)
        else:
            values = values + (tl.broadcast_to(results[r], (ROWS, 1)),)
    return values


def over_tile(values, ROWS: tl.constexpr, COLUMNS: tl.constexpr):
    """Values of every element of a tile."""
    every = ()
    for i in tl.static_range(len(values)):
        every = every + (tl.broadcast_to(values[i], (ROWS, COLUMNS)),)
    return every


def map_groups(
    inputs, y, of_rows, s_ptrs, sizes, rows, turns, groups, parts,
    ROWS: tl.constexpr, COLUMNS: tl.constexpr, FOLDED: tl.constexpr, FOLDS: tl.constexpr, RESULTS: tl.constexpr,
    BY_ROW: tl.constexpr, BY_COLUMN: tl.constexpr, MASK_COLUMNS: tl.constexpr, WIDE: tl.constexpr, CLUSTER: tl.constexpr,
    EXCHANGE: tl.constexpr, STAGES: tl.constexpr,
):  # fmt: skip
    """Map the rows of a group, COLUMNS of them: the part of a row that a program holds.

    A program owns that part of its group's rows. It reads what rows share once and holds it in registers, reads each row's
    operands once, `turns` blocks of ROWS one after another, writes the mapped elements, the first of a cluster also what is
    stored of each row, and at the end the sums of its columns over the rows.

    FOLDED: how many operands are folded. RESULTS: how many behind them are rows' results. BY_ROW, BY_COLUMN: a bit for each
    operand that varies along that axis.
    """
    part = tl.program_id(0) % parts
    group = (tl.program_id(0) // parts).to(tl.int64)
    first = part.to(tl.int64) * COLUMNS
    if not WIDE:
        first = first.to(tl.int32)
    n = first + tl.arange(0, COLUMNS)[None, :]
    keep_columns = n < sizes.length
    m = group * ROWS + tl.arange(0, ROWS)
    if CLUSTER > 1:
        begin_exchange(EXCHANGE)
    shared = load_operands(
        inputs, (), m, n, rows, keep_columns, sizes, BY_ROW, BY_COLUMN, MASK_COLUMNS, FOLDED, RESULTS, 0
    )
    ahead = load_operands(
        inputs, shared, m, n, rows, keep_columns, sizes, BY_ROW, BY_COLUMN, MASK_COLUMNS, FOLDED, RESULTS, 1
    )
    sums = ()
    for s in tl.static_range(len(s_ptrs)):
        sums = sums + (tl.full([ROWS, COLUMNS], 0, s_ptrs[s].dtype.element_ty),)
    if CLUSTER > 1:
        others_have_begun()
    y_column = reduced_offset(n, (sizes.deep, sizes.reduced), (y.deep, y.reduced))
    for turn in tl.range(turns, num_stages=STAGES):
        m = (group + turn * groups) * ROWS + tl.arange(0, ROWS)
        later = (group + (turn + 1) * groups) * ROWS + tl.arange(0, ROWS)
        values = load_operands(
            inputs, ahead, m, n, rows, keep_columns, sizes, BY_ROW, BY_COLUMN, MASK_COLUMNS, FOLDED, RESULTS, 2
        )
        ahead = load_operands(
            inputs, ahead, later, n, rows, keep_columns, sizes, BY_ROW, BY_COLUMN, MASK_COLUMNS, FOLDED, RESULTS, 1
        )
        keep = (m < rows)[:, None]
        if MASK_COLUMNS:
            keep = keep & keep_columns
        keep = tl.broadcast_to(keep, (ROWS, COLUMNS))
        elements = some_of(values, 0, FOLDED)
        extras = some_of(values, FOLDED + RESULTS, len(inputs) - FOLDED - RESULTS)
        if FOLDS:
            lifted = over_tile(LIFT(*elements, TO_INDEX(n)), ROWS, COLUMNS)
            if MASK_COLUMNS:
                lifted = OR_IDENTITY(keep, *lifted)
            state = tl.reduce(lifted, 1, COMBINE_SYMMETRIC)
            if CLUSTER > 1:
                state = combine_cluster(state, CLUSTER, 1, turn)
            results = columns_of(PROJECT(*state), ROWS)
        else:
            results = some_of(values, FOLDED, RESULTS)
        if len(of_rows.pointers) > 0:
            at = rows_begin(m, sizes, of_rows)
            stored = OF_ROWS(*results)
            for r in tl.static_range(len(of_rows.pointers)):
                value = tl.broadcast_to(stored[r], (ROWS, 1))
                tl.store(of_rows.pointers[r] + at[:, None], value, mask=((m < rows) & (part == 0))[:, None])
        made = APPLY(*elements, *results, *extras)
        offset = rows_begin(m, sizes, y)[:, None] + y_column
        for r in tl.static_range(len(y.pointers)):
            tl.store(y.pointers[r] + offset, tl.broadcast_to(made[r], (ROWS, COLUMNS)), mask=keep)
        more = ()
        for s in tl.static_range(len(s_ptrs)):
            more = more + (sums[s] + tl.where(keep, made[len(y.pointers) + s], 0),)
        sums = more
    for s in tl.static_range(len(s_ptrs)):
        place = first + tl.arange(0, COLUMNS)
        tl.store(s_ptrs[s] + group * sizes.length + place, tl.reduce(sums[s], 0, BLOCK_SUM), mask=place < sizes.length)
