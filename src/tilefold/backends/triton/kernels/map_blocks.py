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


def load_tiles(
    rows, start, end, keep, dims,
    LANES: tl.constexpr, RUN: tl.constexpr, TILES: tl.constexpr, MASKS: tl.constexpr, MASK_OUTPUTS: tl.constexpr,
    STEPS: tl.constexpr, EVICT: tl.constexpr,
):  # fmt: skip
    """This program's tiles, of each input in turn."""
    xs = ()
    for i in tl.static_range(len(rows)):
        for t in tl.static_range(TILES):
            places = tile_places(start + t * (RUN * LANES), RUN, LANES, 1)
            bound = places // RUN * RUN < end
            row = rows[i]
            if len(STEPS) > 0:
                # All tiles' addresses are a constant after the first's.
                places = tile_places(start, RUN, LANES, 1)
                row = (rows[i][0] + t * (RUN * LANES * STEPS[i]), (rows[i][1][0], STEPS[i]))
            if (MASKS >> t) & 1:
                tile = load_tile([row], places, bound, keep, dims, True, EVICT)
            else:
                tile = load_tile([row], places, None, keep, dims, MASK_OUTPUTS, EVICT)
            xs = xs + (tile[0],)
    return xs


def masks_of(
    start, lead, length, keep,
    BLOCK_OUTPUTS: tl.constexpr, LANES: tl.constexpr, RUN: tl.constexpr, TILES: tl.constexpr, ALIGN: tl.constexpr,
    VECTORS: tl.constexpr,
):  # fmt: skip
    """Which elements count, a mask a tile: with ALIGN, whole vectors alone."""
    masks = ()
    for t in tl.static_range(TILES):
        places = tile_places(start + t * (RUN * LANES), RUN, LANES, 1)
        vector = places // RUN * RUN
        if ALIGN > 1:
            mask = (vector >= lead) & (vector + RUN <= lead + length)
        elif VECTORS:
            mask = vector < length
        else:
            mask = places < length
        masks = masks + (whole_mask(mask & keep, places, BLOCK_OUTPUTS),)
    return masks


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
    next.
    """
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
        rows, start, lead + sizes.length, keep, (sizes.deep, sizes.reduced), LANES, RUN, TILES, MASKS,
        MASK_OUTPUTS, STEPS, EVICT,
    )  # fmt: skip
    taken = load_of_rows(row_extras, outer, sizes.outer, output, keep)
    if CLUSTER > 1:
        others_have_begun()
    counted = masks_of(start, lead, sizes.length, keep, BLOCK_OUTPUTS, LANES, RUN, TILES, ALIGN, VECTORS)
    number = tl.maximum(tl.minimum(past, start + RUN * LANES * TILES) - tl.maximum(some, start), 0)
    own = ROW_BEGIN(number, *counted, *xs)
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
    for t in tl.static_range(TILES):
        places = tile_places(start + t * (RUN * LANES), RUN, LANES, 1)
        values = ()
        for i in tl.static_range(len(inputs)):
            values = values + (xs[i * TILES + t],)
        beside = load_extras(
            extras, outer, sizes, output, places, lead, keep, OVER, (MASKS >> t) & 1, MASK_OUTPUTS,
        )  # fmt: skip
        y_tile = y_begin
        y_step = y.reduced
        if len(STEPS) > 0:
            places = tile_places(start, RUN, LANES, 1)
            y_tile = y_begin + t * (RUN * LANES * STEPS[len(inputs)])
            y_step = STEPS[len(inputs)]
        map_tile(
            values, near, beside, y.pointers, y_tile, (y.deep, y_step), places, lead, counted[t], keep, sizes,
            ((MASKS >> t) & 1) or MASK_OUTPUTS, RUN, ALIGN, EVICT,
        )  # fmt: skip
    if ALIGN > 1:
        if split == 0:
            map_edges(
                rows, results, extras, y.pointers, y_begin, outer, sizes, output, lead, keep, OVER, RUN, ALIGN, EVICT
            )
