"""The kernel that folds whole rows and maps their elements while it holds them in registers: one read, one write.

    program 0 of a row      program 1           a cluster, which the chip starts together
    |tile 0|tile 1|tile 2|  |tile 0|tile 1|..   TILES tensors of [RUN, LANES, BLOCK_OUTPUTS] elements
     own state  <- exchange ->  own state       in shared memory (`clusters`)
    |mapped|mapped|mapped|  |mapped|mapped|..   stored where they were read

As one block: every element that a program holds is absorbed at once, by all threads together (ROW_BEGIN): common values of
all elements are computed once a program, and each element's value for the fold is at hand when it is mapped. REBASE gives
results for APPLY that go with the program's own state. A program holds any number of tiles, so that few lanes are masked.

By lanes: monoids that absorb no such block, and "batch_invariant". All tiles are one tensor; each lane folds its own elements
as in `fold_lanes`, and lanes are combined.

Besides what `tiles` has: APPLY of elements, a row's results and extras, as they are stored, gives the stored value of each
element; OF_ROWS of a row's results what is stored of it. Rows may be columns in memory. Arguments as in `tiles`, and
    extras       an Operand each, of tensors that are not folded; EXTRAS: which have one value a row, and which others, the
                 order in which APPLY takes them
    y, of_rows   the Mapped results, and the Results that have one value a row
    blocks       of rows, along the last output dim
"""

import triton.language as tl

from tilefold.backends.triton.kernels.clusters import (
    begin_exchange,
    broadcast,
    combine_cluster,
    others_have_begun,
)
from tilefold.backends.triton.kernels.map_tiles import (
    fold_edges,
    load_extras,
    load_of_rows,
    map_edges,
    map_tile,
    spread,
    store_of_rows,
)
from tilefold.backends.triton.kernels.tiles import (
    begin_masked,
    begin_tile,
    in_halves,
    load_tile,
    outer_offset,
    positions_of,
    row_begin,
    rows_of,
    tile_places,
    whole_mask,
)


def first_place(split, STEP: tl.constexpr, TILES: tl.constexpr, WIDE: tl.constexpr):
    """Where in its row this program's elements begin."""
    start = split.to(tl.int64) * (STEP * TILES)
    if not WIDE:
        start = start.to(tl.int32)
    return start


def tile_at(start, FIRST: tl.constexpr, COUNT: tl.constexpr, BLOCK: tl.constexpr):
    """Places of COUNT tiles, from number FIRST on. A thread has the same ones of each where they are of a block."""
    return tile_places(
        start + FIRST * (BLOCK.RUN * BLOCK.LANES), BLOCK.RUN, BLOCK.LANES, COUNT, COUNT > 1 and not BLOCK.BY_LANES
    )


def load_input(
    row, start, end, keep, dims, STEP: tl.constexpr, FIRST: tl.constexpr, COUNT: tl.constexpr, BLOCK: tl.constexpr,
    MASKS: tl.constexpr, MASK_OUTPUTS: tl.constexpr, EVICT: tl.constexpr,
):  # fmt: skip
    """One input's COUNT tiles from number FIRST on, by one load. STEP: a constant from element to element, or 0."""
    places = tile_at(start, FIRST, COUNT, BLOCK)
    bound = places // BLOCK.RUN * BLOCK.RUN < end
    if STEP > 0:
        # All tiles' addresses are a constant after the first's.
        places = tile_at(start, 0, 1, BLOCK)
        row = (row[0] + FIRST * (BLOCK.RUN * BLOCK.LANES * STEP), (row[1][0], STEP))
    if (MASKS >> FIRST) % (1 << COUNT) > 0:
        tile = load_tile([row], places, bound, keep, dims, True, EVICT)
    else:
        tile = load_tile([row], places, None, keep, dims, MASK_OUTPUTS, EVICT)
    return tile[0]


def load_tiles(
    rows, start, end, keep, dims, BLOCK: tl.constexpr, EACH: tl.constexpr, MASKS: tl.constexpr, MASK_OUTPUTS: tl.constexpr,
    STEPS: tl.constexpr, EVICT: tl.constexpr,
):  # fmt: skip
    """This program's tiles, of each input in turn, in EACH tensors."""
    WHOLE: tl.constexpr = BLOCK.TILES // BLOCK.TOGETHER
    xs = ()
    for i in tl.static_range(len(rows)):
        for g in tl.static_range(EACH):
            x = load_input(
                rows[i], start, end, keep, dims, STEPS[i] if len(STEPS) > 0 else 0,
                g * BLOCK.TOGETHER if g < WHOLE else BLOCK.TILES - EACH + g, BLOCK.TOGETHER if g < WHOLE else 1, BLOCK, MASKS,
                MASK_OUTPUTS, EVICT,
            )  # fmt: skip
            xs = xs + (x,)
    return xs


def apart(x, COUNT: tl.constexpr):
    """The tiles of a tensor of COUNT. By reshapes: an index of None would have Triton give elements to other threads."""
    if COUNT == 1:
        tiles = (x,)
    elif LANES_LAST:
        parts = in_halves(tl.reshape(tl.trans(x, (0, 2, 3, 1)), (x.shape[2], x.shape[3], COUNT)), COUNT)
        tiles = ()
        for t in tl.static_range(COUNT):
            tiles = tiles + (tl.reshape(parts[t], (1, 1, x.shape[2], x.shape[3])),)
    else:
        parts = in_halves(tl.reshape(x, (x.shape[1], x.shape[2], COUNT)), COUNT)
        tiles = ()
        for t in tl.static_range(COUNT):
            tiles = tiles + (tl.reshape(parts[t], (1, x.shape[1], x.shape[2], 1)),)
    return tiles


def tiles_apart(xs, BLOCK: tl.constexpr, EACH: tl.constexpr):
    """The tiles of `load_tiles` one by one."""
    tiles = ()
    for n in tl.static_range(len(xs)):
        tiles = tiles + apart(xs[n], BLOCK.TOGETHER if n % EACH < BLOCK.TILES // BLOCK.TOGETHER else 1)
    return tiles


def mask_at(
    start, lead, length, keep, FIRST: tl.constexpr, COUNT: tl.constexpr, BLOCK: tl.constexpr, ALIGN: tl.constexpr,
    VECTORS: tl.constexpr,
):  # fmt: skip
    """Which elements of COUNT tiles from number FIRST on count: with ALIGN, whole vectors alone."""
    places = tile_at(start, FIRST, COUNT, BLOCK)
    vector = places // BLOCK.RUN * BLOCK.RUN
    if ALIGN > 1:
        mask = (vector >= lead) & (vector + BLOCK.RUN <= lead + length)
    elif VECTORS:
        mask = vector < length
    else:
        mask = places < length
    return whole_mask(mask & keep, places, BLOCK.BLOCK_OUTPUTS)


def fold_as_block(
    xs, start, some, past, lead, length, keep, BLOCK: tl.constexpr, EACH: tl.constexpr, ALIGN: tl.constexpr,
    VECTORS: tl.constexpr,
):  # fmt: skip
    """(the state of all elements of a program's tiles, how many count); where none does, it is undefined."""
    counted = ()
    for t in tl.static_range(BLOCK.TILES):
        counted = counted + (mask_at(start, lead, length, keep, t, 1, BLOCK, ALIGN, VECTORS),)
    number = tl.minimum(past, start + BLOCK.RUN * BLOCK.LANES * BLOCK.TILES) - tl.maximum(some, start)
    number = tl.maximum(number, 0)
    return ROW_BEGIN(number, *counted, *tiles_apart(xs, BLOCK, EACH)), number


def fold_by_lanes(
    xs, start, lead, sizes, keep, position, BLOCK: tl.constexpr, MASKS: tl.constexpr, ALIGN: tl.constexpr,
    VECTORS: tl.constexpr, USE_ABSORB: tl.constexpr, IN_ORDER: tl.constexpr,
):  # fmt: skip
    """The state of the elements of a program's one tensor, lane by lane."""
    places = tile_at(start, 0, BLOCK.TILES, BLOCK)
    dims = (sizes.deep, sizes.reduced)
    positions = positions_of(places - lead, TO_INDEX(0 * start), dims, position, BLOCK.BLOCK_OUTPUTS)
    if MASKS > 0:
        counted = mask_at(start, lead, sizes.length, keep, 0, BLOCK.TILES, BLOCK, ALIGN, VECTORS)
        state = begin_masked(counted, xs, positions, USE_ABSORB, IN_ORDER)
    else:
        state = begin_tile(xs, positions, USE_ABSORB, IN_ORDER)
    return tl.reduce(state, 1 if LANES_LAST else 0, COMBINE_SYMMETRIC)


def map_tiles(
    values, near, extras, y, y_begin, start, lead, keep, sizes, outer, output, FIRST: tl.constexpr, COUNT: tl.constexpr,
    BLOCK: tl.constexpr, MASKS: tl.constexpr, STEP: tl.constexpr, ALIGN: tl.constexpr, VECTORS: tl.constexpr,
    OVER: tl.constexpr, MASK_OUTPUTS: tl.constexpr, EVICT: tl.constexpr,
):  # fmt: skip
    """Map COUNT tiles from number FIRST on and store them. STEP: a constant from result to result, or 0."""
    MASKED: tl.constexpr = (MASKS >> FIRST) % (1 << COUNT) > 0
    places = tile_at(start, FIRST, COUNT, BLOCK)
    counted = mask_at(start, lead, sizes.length, keep, FIRST, COUNT, BLOCK, ALIGN, VECTORS)
    # What rows share is read for each row, too, of several tiles of a block: Triton would give these to different threads.
    OWN: tl.constexpr = OVER if COUNT == 1 or BLOCK.BY_LANES else -1
    beside = load_extras(extras, outer, sizes, output, places, lead, keep, OWN, MASKED, MASK_OUTPUTS)
    y_step = y.reduced
    if STEP > 0:
        places = tile_at(start, 0, 1, BLOCK)
        y_begin = y_begin + FIRST * (BLOCK.RUN * BLOCK.LANES * STEP)
        y_step = STEP
    map_tile(
        values, near, beside, y.pointers, y_begin, (y.deep, y_step), places, lead, counted, keep, sizes,
        MASKED or MASK_OUTPUTS, BLOCK.RUN, ALIGN, EVICT,
    )  # fmt: skip


def map_blocks(
    inputs, extras, y, position, sizes, blocks, of_rows,
    BLOCK: tl.constexpr, MASKS: tl.constexpr, MASK_OUTPUTS: tl.constexpr, ALIGN: tl.constexpr, WIDE: tl.constexpr,
    OVER: tl.constexpr, VECTORS: tl.constexpr, CLUSTER: tl.constexpr, EXCHANGE: tl.constexpr, REBASED: tl.constexpr,
    NEIGHBOURS: tl.constexpr, STEPS: tl.constexpr, EVICT: tl.constexpr, EXTRAS: tl.constexpr, USE_ABSORB: tl.constexpr,
    IN_ORDER: tl.constexpr,
):  # fmt: skip
    """Fold and map BLOCK_OUTPUTS neighbouring rows, each whole in the tiles of CLUSTER programs.

    A program owns a part of each of its rows, which it reads once, holds in registers, folds and writes mapped; the first
    one of a cluster also owns what is stored of the rows, and their edges. With ALIGN (as in `fold_lanes`) elements that
    share a vector with another row's are stored one by one: a store under a mask that cuts vectors would be one for each
    element. OVER: a bit for each other extra tensor whose rows are its own.

    MASKS has a bit for each tile that may have elements beyond a row's ends. Of columns a thread has NEIGHBOURS (0: a vector
    of 16 bytes), and STEPS, where they are constants, are the inputs' and the results' from one element of a column to the
    next. USE_ABSORB, IN_ORDER: as in `fold_lanes`, where lanes fold.
    """
    RUN: tl.constexpr = BLOCK.RUN
    BLOCK_OUTPUTS: tl.constexpr = BLOCK.BLOCK_OUTPUTS
    WHOLE: tl.constexpr = BLOCK.TILES // BLOCK.TOGETHER
    EACH: tl.constexpr = WHOLE + BLOCK.TILES % BLOCK.TOGETHER
    row_extras = [extras[i] for i in EXTRAS.OF_ROWS]
    extras = [extras[i] for i in EXTRAS.BESIDE]
    split = tl.program_id(0) % CLUSTER
    pid = tl.program_id(0) // CLUSTER
    outer = (pid // blocks).to(tl.int64)
    output = (pid % blocks).to(tl.int64) * BLOCK_OUTPUTS + tl.arange(0, BLOCK_OUTPUTS)
    if NEIGHBOURS > 0:
        output = tl.max_contiguous(tl.multiple_of(output, NEIGHBOURS), NEIGHBOURS)
    keep = (output < sizes.output)[None, None, :, None]
    some = tl.full([BLOCK_OUTPUTS], 0, tl.int32)
    past = some + sizes.length
    rows = rows_of(inputs, outer, sizes.outer, output, ALIGN)
    if ALIGN > 1:
        lead = (row_begin(inputs[0], outer, sizes.outer, output) % ALIGN).to(tl.int32)
        x = inputs[0]
        begin = ((x.shift + outer_offset(outer, sizes.outer, x.outer) + output * x.output) % ALIGN).to(tl.int32)
        some = (begin + ALIGN - 1) // ALIGN * ALIGN
        past = (begin + sizes.length) // ALIGN * ALIGN
    else:
        lead = 0
    start = first_place(split, RUN * BLOCK.LANES, BLOCK.TILES, WIDE)
    if CLUSTER > 1:
        begin_exchange(EXCHANGE)
    xs = load_tiles(
        rows, start, lead + sizes.length, keep, (sizes.deep, sizes.reduced), BLOCK, EACH, MASKS, MASK_OUTPUTS, STEPS, EVICT
    )
    taken = load_of_rows(row_extras, outer, sizes.outer, output, keep)
    if CLUSTER > 1:
        others_have_begun()
    first = TO_INDEX(0 * start)
    if BLOCK.BY_LANES:
        if ALIGN > 1:
            edges = fold_edges(rows, lead, first, keep, split == 0, sizes, position, BLOCK_OUTPUTS, RUN)
        own = fold_by_lanes(
            xs, start, lead, sizes, keep, position, BLOCK, MASKS, ALIGN, VECTORS, USE_ABSORB, IN_ORDER
        )
        state = own
        if ALIGN > 1:
            state = COMBINE_SYMMETRIC(*own, *edges)
    else:
        own, number = fold_as_block(xs, start, some, past, lead, sizes.length, keep, BLOCK, EACH, ALIGN, VECTORS)
        state = own
        if ALIGN > 1:
            edges = fold_edges(rows, lead, first, keep, split == 0, sizes, position, BLOCK_OUTPUTS, RUN)
            # In a program where no vector counts, `own` is undefined, and so is what becomes of none.
            state = COMBINE_SYMMETRIC(*OR_IDENTITY(number > 0, *own), *edges)
    if CLUSTER > 1:
        state = combine_cluster(state, CLUSTER, BLOCK_OUTPUTS, None)
    results = PROJECT(*state)
    if len(of_rows.pointers) > 0:
        store_of_rows(results, of_rows, outer, sizes.outer, output, (output < sizes.output) & (split == 0))
    if CLUSTER > 1 and BLOCK_OUTPUTS > 1:
        results = broadcast(results, BLOCK_OUTPUTS)
    elif CLUSTER == 1:
        results = spread(results)
    near = results
    if REBASED:
        near = REBASE(*spread(PROJECT(*own)), *results)
    near = near + taken
    results = results + taken
    y_begin = (outer_offset(outer, sizes.outer, y.outer) + output * y.output)[None, None, :, None]
    for g in tl.static_range(EACH):
        map_tiles(
            xs[g::EACH], near, extras, y, y_begin, start, lead, keep, sizes, outer, output,
            g * BLOCK.TOGETHER if g < WHOLE else BLOCK.TILES - EACH + g, BLOCK.TOGETHER if g < WHOLE else 1, BLOCK, MASKS,
            STEPS[len(inputs)] if len(STEPS) > 0 else 0, ALIGN, VECTORS, OVER, MASK_OUTPUTS, EVICT,
        )  # fmt: skip
    if ALIGN > 1:
        if split == 0:
            map_edges(
                rows, results, extras, y.pointers, y_begin, outer, sizes, output, lead, keep, OVER, RUN, ALIGN, EVICT
            )
