"""The kernel that folds whole rows as one block each, and maps their elements while it holds them: one read, one write.

Every element that a program holds is absorbed at once, by all threads together (ROW_BEGIN): common values of all elements are
computed once a program, and each element's value for the fold is at hand when it is mapped. REBASE gives results for APPLY
that go with the program's own state. A program holds any number of tiles, so that few lanes are masked. Everything else as in
`map_rows`.
"""

import triton.language as tl

from tilefold.backends.triton.kernels.clusters import (
    begin_exchange,
    broadcast,
    combine_cluster,
    others_have_begun,
)
from tilefold.backends.triton.kernels.map_rows import (
    fold_edges,
    load_extras,
    load_of_rows,
    map_edges,
    map_tile,
    spread,
    store_of_rows,
)
from tilefold.backends.triton.kernels.tiles import (
    load_tile,
    outer_offset,
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


def tile_at(start, FIRST: tl.constexpr, LANES: tl.constexpr, RUN: tl.constexpr, TOGETHER: tl.constexpr):
    """Places of TOGETHER tiles, from number FIRST on, of which a thread has the same ones."""
    return tile_places(start + FIRST * (RUN * LANES), RUN, LANES, TOGETHER, TOGETHER > 1)


def load_input(
    row, start, end, keep, dims, STEP: tl.constexpr, FIRST: tl.constexpr, LANES: tl.constexpr, RUN: tl.constexpr,
    TOGETHER: tl.constexpr, MASKS: tl.constexpr, MASK_OUTPUTS: tl.constexpr, EVICT: tl.constexpr,
):  # fmt: skip
    """One input's TOGETHER tiles from number FIRST on, by one load. STEP: a constant from element to element, or 0."""
    places = tile_at(start, FIRST, LANES, RUN, TOGETHER)
    bound = places // RUN * RUN < end
    if STEP > 0:
        # All tiles' addresses are a constant after the first's.
        places = tile_places(start, RUN, LANES, 1)
        row = (row[0] + FIRST * (RUN * LANES * STEP), (row[1][0], STEP))
    if (MASKS >> FIRST) % (1 << TOGETHER) > 0:
        tile = load_tile([row], places, bound, keep, dims, True, EVICT)
    else:
        tile = load_tile([row], places, None, keep, dims, MASK_OUTPUTS, EVICT)
    return tile[0]


def load_tiles(
    rows, start, end, keep, dims,
    LANES: tl.constexpr, RUN: tl.constexpr, TILES: tl.constexpr, TOGETHER: tl.constexpr, MASKS: tl.constexpr,
    MASK_OUTPUTS: tl.constexpr, STEPS: tl.constexpr, EVICT: tl.constexpr,
):  # fmt: skip
    """This program's tiles, of each input in turn: TOGETHER in a tensor, and those left one by one."""
    EACH: tl.constexpr = TILES // TOGETHER + TILES % TOGETHER
    xs = ()
    for i in tl.static_range(len(rows)):
        for g in tl.static_range(EACH):
            x = load_input(
                rows[i], start, end, keep, dims, STEPS[i] if len(STEPS) > 0 else 0,
                g * TOGETHER if g < TILES // TOGETHER else TILES - EACH + g, LANES, RUN,
                TOGETHER if g < TILES // TOGETHER else 1, MASKS, MASK_OUTPUTS, EVICT,
            )  # fmt: skip
            xs = xs + (x,)
    return xs


def apart(x, TOGETHER: tl.constexpr):
    """The tiles of a tensor of four, or of one."""
    tl.static_assert(TOGETHER == 1 or TOGETHER == 4)
    if TOGETHER == 1:
        tiles = (x,)
    else:
        last = tl.trans(x, (0, 2, 3, 1)) if LANES_LAST else x
        even, odd = tl.split(tl.reshape(last, (last.shape[0], last.shape[1], last.shape[2], 2, 2)))
        first, third = tl.split(even)
        second, fourth = tl.split(odd)
        four = (first, second, third, fourth)
        tiles = ()
        for t in tl.static_range(4):
            one = four[t]
            if LANES_LAST:
                one = tl.reshape(one, (one.shape[0], 1, one.shape[1], one.shape[2]))
            else:
                one = tl.reshape(one, (one.shape[0], one.shape[1], one.shape[2], 1))
            tiles = tiles + (one,)
    return tiles


def tiles_apart(xs, INPUTS: tl.constexpr, TILES: tl.constexpr, TOGETHER: tl.constexpr):
    """The tiles of `load_tiles` one by one."""
    EACH: tl.constexpr = TILES // TOGETHER + TILES % TOGETHER
    tiles = ()
    for n in tl.static_range(INPUTS * EACH):
        tiles = tiles + apart(xs[n], TOGETHER if n % EACH < TILES // TOGETHER else 1)
    return tiles


def mask_at(
    start, lead, length, keep, FIRST: tl.constexpr, BLOCK_OUTPUTS: tl.constexpr, LANES: tl.constexpr, RUN: tl.constexpr,
    TOGETHER: tl.constexpr, ALIGN: tl.constexpr, VECTORS: tl.constexpr,
):  # fmt: skip
    """Which elements of TOGETHER tiles count: with ALIGN, whole vectors alone."""
    places = tile_at(start, FIRST, LANES, RUN, TOGETHER)
    vector = places // RUN * RUN
    if ALIGN > 1:
        mask = (vector >= lead) & (vector + RUN <= lead + length)
    elif VECTORS:
        mask = vector < length
    else:
        mask = places < length
    return whole_mask(mask & keep, places, BLOCK_OUTPUTS)


def masks_of(
    start, lead, length, keep,
    BLOCK_OUTPUTS: tl.constexpr, LANES: tl.constexpr, RUN: tl.constexpr, TILES: tl.constexpr, ALIGN: tl.constexpr,
    VECTORS: tl.constexpr,
):  # fmt: skip
    """Which elements count, a mask a tile."""
    masks = ()
    for t in tl.static_range(TILES):
        masks = masks + (mask_at(start, lead, length, keep, t, BLOCK_OUTPUTS, LANES, RUN, 1, ALIGN, VECTORS),)
    return masks


def map_tiles(
    values, near, extras, y, y_begin, start, lead, keep, sizes, outer, output, FIRST: tl.constexpr, TOGETHER: tl.constexpr,
    MASKS: tl.constexpr, STEP: tl.constexpr, BLOCK_OUTPUTS: tl.constexpr, LANES: tl.constexpr, RUN: tl.constexpr,
    ALIGN: tl.constexpr, VECTORS: tl.constexpr, OVER: tl.constexpr, MASK_OUTPUTS: tl.constexpr, EVICT: tl.constexpr,
):  # fmt: skip
    """Map TOGETHER tiles from number FIRST on and store them. STEP: a constant from result to result, or 0."""
    MASKED: tl.constexpr = (MASKS >> FIRST) % (1 << TOGETHER) > 0
    places = tile_at(start, FIRST, LANES, RUN, TOGETHER)
    counted = mask_at(start, lead, sizes.length, keep, FIRST, BLOCK_OUTPUTS, LANES, RUN, TOGETHER, ALIGN, VECTORS)
    # Of several tiles also what rows share is read for each row: Triton would give its few lanes' tiles to different threads.
    OWN: tl.constexpr = OVER if TOGETHER == 1 else -1
    beside = load_extras(extras, outer, sizes, output, places, lead, keep, OWN, MASKED, MASK_OUTPUTS)
    y_step = y.reduced
    if STEP > 0:
        places = tile_places(start, RUN, LANES, 1)
        y_begin = y_begin + FIRST * (RUN * LANES * STEP)
        y_step = STEP
    map_tile(
        values, near, beside, y.pointers, y_begin, (y.deep, y_step), places, lead, counted, keep, sizes,
        MASKED or MASK_OUTPUTS, RUN, ALIGN, EVICT,
    )  # fmt: skip


def map_blocks(
    inputs, extras, y, position, sizes, blocks, of_rows,
    BLOCK_OUTPUTS: tl.constexpr, LANES: tl.constexpr, RUN: tl.constexpr, TILES: tl.constexpr, MASKS: tl.constexpr,
    MASK_OUTPUTS: tl.constexpr, ALIGN: tl.constexpr, WIDE: tl.constexpr, OVER: tl.constexpr, VECTORS: tl.constexpr,
    CLUSTER: tl.constexpr, EXCHANGE: tl.constexpr, REBASED: tl.constexpr, NEIGHBOURS: tl.constexpr, STEPS: tl.constexpr,
    EVICT: tl.constexpr, EXTRAS: tl.constexpr,
):  # fmt: skip
    """Fold and map BLOCK_OUTPUTS neighbouring rows, each whole in the TILES tiles of CLUSTER programs.

    MASKS has a bit for each tile that may have elements beyond a row's ends. Of columns a thread has NEIGHBOURS (0: a vector
    of 16 bytes), and STEPS, where they are constants, are the inputs' and the results' from one element of a column to the
    next. Many small tiles are read and written four at a time, for the compiler's sake (docs/experiments/scans.md#compiled).
    """
    TOGETHER: tl.constexpr = 4 if RUN == 1 and TILES > 16 and len(STEPS) == 0 else 1
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
    start = first_place(split, RUN * LANES, TILES, WIDE)
    if CLUSTER > 1:
        begin_exchange(EXCHANGE)
    xs = load_tiles(
        rows, start, lead + sizes.length, keep, (sizes.deep, sizes.reduced), LANES, RUN, TILES, TOGETHER, MASKS,
        MASK_OUTPUTS, STEPS, EVICT,
    )  # fmt: skip
    taken = load_of_rows(row_extras, outer, sizes.outer, output, keep)
    if CLUSTER > 1:
        others_have_begun()
    counted = masks_of(start, lead, sizes.length, keep, BLOCK_OUTPUTS, LANES, RUN, TILES, ALIGN, VECTORS)
    number = tl.maximum(tl.minimum(past, start + RUN * LANES * TILES) - tl.maximum(some, start), 0)
    own = ROW_BEGIN(number, *counted, *tiles_apart(xs, len(inputs), TILES, TOGETHER))
    state = own
    if ALIGN > 1:
        edges = fold_edges(rows, lead, TO_INDEX(0 * start), keep, split == 0, sizes, position, BLOCK_OUTPUTS, RUN)
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
    EACH: tl.constexpr = TILES // TOGETHER + TILES % TOGETHER
    for g in tl.static_range(EACH):
        map_tiles(
            xs[g::EACH], near, extras, y, y_begin, start, lead, keep, sizes, outer, output,
            g * TOGETHER if g < TILES // TOGETHER else TILES - EACH + g, TOGETHER if g < TILES // TOGETHER else 1, MASKS,
            STEPS[len(inputs)] if len(STEPS) > 0 else 0, BLOCK_OUTPUTS, LANES, RUN, ALIGN, VECTORS, OVER, MASK_OUTPUTS, EVICT,
        )  # fmt: skip
    if ALIGN > 1:
        if split == 0:
            map_edges(
                rows, results, extras, y.pointers, y_begin, outer, sizes, output, lead, keep, OVER, RUN, ALIGN, EVICT
            )
