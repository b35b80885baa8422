"""The kernel that folds whole rows as one block each, and maps their elements while it holds them: one read, one write.

Every element that a program holds is absorbed at once, by all threads together (ROW_BEGIN): what a block's elements have in
common is found once a row, and what is computed of an element for the fold is at hand when it is mapped. A program, or a
cluster of them, walks over ROWS blocks of rows; the next ones are loaded before the states of those at hand meet. REBASE gives
results for APPLY that go with the tile's own state. Everything else as in `map_rows`, and
    blocks       blocks of BLOCK_OUTPUTS neighbouring rows in all
"""

import triton.language as tl

from tilefold.backends.triton.kernels.clusters import announced, begin_meeting, met, others_have_begun
from tilefold.backends.triton.kernels.map_rows import fold_edges, load_extras, map_edges, map_tile, spread
from tilefold.backends.triton.kernels.tiles import folded_offset, outer_offset, row_begin, tile_places, whole_mask


def load_block(
    inputs, row, there, split, outer_sizes, deep_sizes, output_size, length, output_blocks, folded_size,
    BLOCK_OUTPUTS: tl.constexpr, LANES: tl.constexpr, RUN: tl.constexpr, UNROLL: tl.constexpr, TILES: tl.constexpr,
    MASKS: tl.constexpr, MASK_OUTPUTS: tl.constexpr, ALIGN: tl.constexpr, WIDE: tl.constexpr, GUARD: tl.constexpr,
    EVICT: tl.constexpr,
):  # fmt: skip
    """This program's tiles of block `row`, of each input in turn; GUARD: they are undefined where it is not `there`."""
    STEP: tl.constexpr = RUN * LANES * UNROLL
    outer = (row // output_blocks).to(tl.int64)
    output = (row % output_blocks).to(tl.int64) * BLOCK_OUTPUTS + tl.arange(0, BLOCK_OUTPUTS)
    keep = (output < output_size)[None, None, :, None] & there
    start = split.to(tl.int64) * (STEP * TILES)
    if not WIDE:
        start = start.to(tl.int32)
    xs = ()
    for i in tl.static_range(len(inputs)):
        x = inputs[i]
        begin = row_begin(x, outer, outer_sizes, output)
        end = length
        if ALIGN > 1:
            end = (begin % ALIGN).to(tl.int32) + length
            begin = begin // ALIGN * ALIGN
        for t in tl.static_range(TILES):
            places = tile_places(start + t * STEP, RUN, LANES, UNROLL)
            pointers = x[0] + begin + folded_offset(places, deep_sizes, folded_size, x[4], x[5])
            if (MASKS >> t) & 1:
                value = tl.load(pointers, mask=(places // RUN * RUN < end) & keep, eviction_policy=EVICT)
            elif MASK_OUTPUTS or GUARD:
                value = tl.load(pointers, mask=keep, eviction_policy=EVICT)
            else:
                value = tl.load(pointers, eviction_policy=EVICT)
            xs = xs + (value,)
    return xs


def map_block(
    xs, inputs, extras, y_ptrs, row, split, turn, y_outer, y_output, y_deep, y_folded, p_deep, p_folded, outer_sizes,
    deep_sizes, output_size, folded_size, length, output_blocks,
    BLOCK_OUTPUTS: tl.constexpr, LANES: tl.constexpr, RUN: tl.constexpr, UNROLL: tl.constexpr, TILES: tl.constexpr,
    MASKS: tl.constexpr, MASK_OUTPUTS: tl.constexpr, ALIGN: tl.constexpr, WIDE: tl.constexpr, VECTORS: tl.constexpr,
    OVER: tl.constexpr, CLUSTER: tl.constexpr, REBASED: tl.constexpr, ROWS: tl.constexpr, EVICT: tl.constexpr,
):  # fmt: skip
    """Fold the tiles of block `row`, let their states meet, and write what becomes of the elements."""
    STEP: tl.constexpr = RUN * LANES * UNROLL
    outer = (row // output_blocks).to(tl.int64)
    output = (row % output_blocks).to(tl.int64) * BLOCK_OUTPUTS + tl.arange(0, BLOCK_OUTPUTS)
    keep = (output < output_size)[None, None, :, None]
    if ALIGN > 1:
        rows = [(x[0] + row_begin(x, outer, outer_sizes, output) // ALIGN * ALIGN, x[4], x[5]) for x in inputs]
        lead = (row_begin(inputs[0], outer, outer_sizes, output) % ALIGN).to(tl.int32)
        begin = ((inputs[0][1] + outer_offset(outer, outer_sizes, inputs[0][2]) + output * inputs[0][3]) % ALIGN).to(tl.int32)
        some = (begin + ALIGN - 1) // ALIGN * ALIGN
        past = (begin + length) // ALIGN * ALIGN
    else:
        rows = [(x[0] + row_begin(x, outer, outer_sizes, output), x[4], x[5]) for x in inputs]
        lead = 0
        some = tl.full([BLOCK_OUTPUTS], 0, tl.int32)
        past = some + length
    start = split.to(tl.int64) * (STEP * TILES)
    if not WIDE:
        start = start.to(tl.int32)
    counted = ()
    for t in tl.static_range(TILES):
        places = tile_places(start + t * STEP, RUN, LANES, UNROLL)
        vector = places // RUN * RUN
        if ALIGN > 1:
            mask = (vector >= lead) & (vector + RUN <= lead + length)
        elif VECTORS:
            mask = vector < length
        else:
            mask = places < length
        counted = counted + (whole_mask(mask & keep, places, BLOCK_OUTPUTS),)
    number = tl.maximum(tl.minimum(past, start + STEP * TILES) - tl.maximum(some, start), 0)
    own = ROW_BEGIN(number, *counted, *xs)
    state = own
    if ALIGN > 1:
        first = TO_INDEX(0 * start)
        edges = fold_edges(
            rows, lead, first, keep, split == 0, length, deep_sizes, folded_size, p_deep, p_folded, BLOCK_OUTPUTS, RUN
        )
        # In a program where no vector counts, `own` is undefined, and so is what becomes of none.
        state = COMBINE_SYMMETRIC(*OR_IDENTITY(number > 0, *own), *edges)
    if CLUSTER > 1:
        state = met(state, turn, CLUSTER, BLOCK_OUTPUTS, ROWS)
    results = PROJECT(*state)
    if CLUSTER > 1 and BLOCK_OUTPUTS > 1:
        results = announced(results, BLOCK_OUTPUTS)
    elif CLUSTER == 1:
        results = spread(results)
    near = results
    if REBASED and BLOCK_OUTPUTS == 1 and (CLUSTER > 1 or ALIGN > 1):
        near = REBASE(*spread(PROJECT(*own)), *results)
    y_begin = (outer_offset(outer, outer_sizes, y_outer) + output * y_output)[None, None, :, None]
    for t in tl.static_range(TILES):
        places = tile_places(start + t * STEP, RUN, LANES, UNROLL)
        values = ()
        for i in tl.static_range(len(inputs)):
            values = values + (xs[i * TILES + t],)
        beside = load_extras(
            extras, outer, outer_sizes, output, places, lead, keep, length, deep_sizes, folded_size, OVER,
            (MASKS >> t) & 1, MASK_OUTPUTS,
        )  # fmt: skip
        map_tile(
            values, near, beside, y_ptrs, y_begin, y_deep, y_folded, places, lead, counted[t], keep, length, deep_sizes,
            folded_size, ((MASKS >> t) & 1) or MASK_OUTPUTS, RUN, ALIGN, EVICT,
        )  # fmt: skip
    if ALIGN > 1:
        if split == 0:
            map_edges(
                rows, results, extras, y_ptrs, y_begin, outer, outer_sizes, output, lead, keep, length, deep_sizes,
                folded_size, OVER, RUN, ALIGN, EVICT,
            )  # fmt: skip


def map_blocks(
    inputs, extras, y_ptrs, y_outer, y_output, y_deep, y_folded, p_deep, p_folded, outer_sizes, deep_sizes, output_size,
    folded_size, length, output_blocks, blocks,
    BLOCK_OUTPUTS: tl.constexpr, LANES: tl.constexpr, RUN: tl.constexpr, UNROLL: tl.constexpr, TILES: tl.constexpr,
    MASKS: tl.constexpr, MASK_OUTPUTS: tl.constexpr, ALIGN: tl.constexpr, WIDE: tl.constexpr, OVER: tl.constexpr,
    VECTORS: tl.constexpr, CLUSTER: tl.constexpr, MEETING: tl.constexpr, REBASED: tl.constexpr, ROWS: tl.constexpr,
    AHEAD: tl.constexpr, EVICT: tl.constexpr,
):  # fmt: skip
    """Fold and map ROWS blocks of BLOCK_OUTPUTS neighbouring rows, each whole in the tiles of CLUSTER programs.

    MASKS has a bit for each tile that may have elements beyond a row's ends. AHEAD: the next block's are loaded early.
    """
    split = tl.program_id(0) % CLUSTER
    row = tl.program_id(0) // CLUSTER * ROWS
    if CLUSTER > 1:
        begin_meeting(MEETING)
    xs = load_block(
        inputs, row, True, split, outer_sizes, deep_sizes, output_size, length, output_blocks, folded_size,
        BLOCK_OUTPUTS, LANES, RUN, UNROLL, TILES, MASKS, MASK_OUTPUTS, ALIGN, WIDE, False, EVICT,
    )  # fmt: skip
    if CLUSTER > 1:
        others_have_begun()
    if ROWS == 1:
        map_block(
            xs, inputs, extras, y_ptrs, row, split, 0, y_outer, y_output, y_deep, y_folded, p_deep, p_folded, outer_sizes,
            deep_sizes, output_size, folded_size, length, output_blocks,
            BLOCK_OUTPUTS, LANES, RUN, UNROLL, TILES, MASKS, MASK_OUTPUTS, ALIGN, WIDE, VECTORS, OVER, CLUSTER, REBASED, ROWS,
            EVICT,
        )  # fmt: skip
    else:
        stop = tl.minimum(row + ROWS, blocks)
        for turn in range(0, stop - row):
            if AHEAD:
                ahead = load_block(
                    inputs, row + turn + 1, row + turn + 1 < stop, split, outer_sizes, deep_sizes, output_size, length,
                    output_blocks, folded_size,
                    BLOCK_OUTPUTS, LANES, RUN, UNROLL, TILES, MASKS, MASK_OUTPUTS, ALIGN, WIDE, True, EVICT,
                )  # fmt: skip
            map_block(
                xs, inputs, extras, y_ptrs, row + turn, split, turn, y_outer, y_output, y_deep, y_folded, p_deep, p_folded,
                outer_sizes, deep_sizes, output_size, folded_size, length, output_blocks,
                BLOCK_OUTPUTS, LANES, RUN, UNROLL, TILES, MASKS, MASK_OUTPUTS, ALIGN, WIDE, VECTORS, OVER, CLUSTER, REBASED,
                ROWS, EVICT,
            )  # fmt: skip
            if AHEAD:
                xs = ahead
            else:
                xs = load_block(
                    inputs, row + turn + 1, row + turn + 1 < stop, split, outer_sizes, deep_sizes, output_size, length,
                    output_blocks, folded_size,
                    BLOCK_OUTPUTS, LANES, RUN, UNROLL, TILES, MASKS, MASK_OUTPUTS, ALIGN, WIDE, True, EVICT,
                )  # fmt: skip
