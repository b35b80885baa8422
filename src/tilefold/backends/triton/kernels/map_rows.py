"""The kernel that folds whole rows in one tile and maps their elements while it holds them: one read, one write.

Besides what `tiles` has: APPLY of elements, a row's results and extras, as they are stored, gives what is stored of each
element. Rows may be columns in memory: neighbours are then along the output dim. Arguments as in `tiles`, and
    extras       records as of `inputs`, of tensors that are not folded
    y_deep, y_folded   the results' steps along the folded dims
"""

import triton.language as tl

from tilefold.backends.triton.kernels.tiles import (
    begin_masked,
    begin_tile,
    folded_offset,
    load_tile,
    outer_offset,
    positions_of,
    row_begin,
    tile_places,
    whole_mask,
)


def spread(results):
    """What each row folds to, beside its elements: [BLOCK_OUTPUTS] -> [1, 1, BLOCK_OUTPUTS, 1]."""
    values = ()
    for r in tl.static_range(len(results)):
        values = values + (results[r][None, None, :, None],)
    return values


def load_extra(
    x, outer, outer_sizes, output, places, inside, keep, deep_sizes, folded_size, OVER: tl.constexpr, MASKED: tl.constexpr
):  # fmt: skip
    """An extra tensor's elements at these places; OVER: those of each row are its own, else all rows share them."""
    if OVER:
        begin = row_begin(x, outer, outer_sizes, output)
        mask = inside & keep
    else:
        begin = x[1] + outer_offset(outer, outer_sizes, x[2])
        mask = inside
    pointers = x[0] + (begin + folded_offset(places, deep_sizes, folded_size, x[4], x[5]))
    if MASKED:
        value = tl.load(pointers, mask=mask)
    else:
        value = tl.load(pointers)
    return value


def store_mapped(y_ptrs, offset, made, mask, MASKED: tl.constexpr, EVICT: tl.constexpr):
    """Write what was made of a tile's elements."""
    for r in tl.static_range(len(y_ptrs)):
        value = tl.broadcast_to(made[r], offset.shape)
        if MASKED:
            tl.store(y_ptrs[r] + offset, value, mask=mask, eviction_policy=EVICT)
        else:
            tl.store(y_ptrs[r] + offset, value, eviction_policy=EVICT)


def map_tile(
    xs, results, extras, y_ptrs, y_begin, y_deep, y_folded, outer, outer_sizes, output, places, lead, counted, keep,
    length, deep_sizes, folded_size,
    OVER: tl.constexpr, MASKED: tl.constexpr, MASK_OUTPUTS: tl.constexpr, RUN: tl.constexpr, ALIGN: tl.constexpr,
    EVICT: tl.constexpr,
):  # fmt: skip
    """Map a tile of elements and store what they become: with ALIGN, whole vectors alone."""
    at = places - lead
    inside = (at >= 0) & (at < length)
    values = xs
    for r in tl.static_range(len(results)):
        values = values + (results[r],)
    for i in tl.static_range(len(extras)):
        values = values + (
            load_extra(
                extras[i], outer, outer_sizes, output, at, inside, keep, deep_sizes, folded_size, (OVER >> i) & 1,
                MASKED or (MASK_OUTPUTS and (OVER >> i) & 1),
            ),
        )
    made = APPLY(*values)
    if ALIGN > 1:
        vector = places // RUN * RUN - lead
        whole = (vector >= 0) & (vector + RUN <= length) & keep
        offset = y_begin // ALIGN * ALIGN + places
        store_mapped(y_ptrs, offset, made, tl.broadcast_to(whole, offset.shape), True, EVICT)
    else:
        offset = y_begin + folded_offset(at, deep_sizes, folded_size, y_deep, y_folded)
        store_mapped(y_ptrs, offset, made, counted, MASKED or MASK_OUTPUTS, EVICT)


def map_edges(
    rows, results, extras, y_ptrs, y_begin, outer, outer_sizes, output, lead, keep, length, deep_sizes, folded_size,
    OVER: tl.constexpr, RUN: tl.constexpr, ALIGN: tl.constexpr, EVICT: tl.constexpr,
):  # fmt: skip
    """Map the elements of a row's first and last vector where these are not whole: they are read once more."""
    edge = tl.arange(0, 2 * RUN)[:, None, None, None]
    last = (lead + length - 1) // RUN * RUN
    places = tl.where(edge < RUN, edge, last + edge - RUN)
    vector = places // RUN * RUN - lead
    whole = (vector >= 0) & (vector + RUN <= length)
    at = places - lead
    inside = (at >= 0) & (at < length) & (whole == 0) & ((edge < RUN) | (last > 0))
    values = ()
    for i in tl.static_range(len(rows)):
        values = values + (tl.load(rows[i][0] + places, mask=inside & keep),)
    for r in tl.static_range(len(results)):
        values = values + (results[r],)
    for i in tl.static_range(len(extras)):
        values = values + (
            load_extra(
                extras[i], outer, outer_sizes, output, at, inside, keep, deep_sizes, folded_size, (OVER >> i) & 1, True
            ),
        )
    offset = y_begin // ALIGN * ALIGN + places
    store_mapped(y_ptrs, offset, APPLY(*values), inside & keep, True, EVICT)


def map_rows(
    inputs, extras, y_ptrs, y_outer, y_output, y_deep, y_folded, p_deep, p_folded, outer_sizes, deep_sizes, output_size,
    folded_size, length, output_blocks,
    BLOCK_OUTPUTS: tl.constexpr, LANES: tl.constexpr, RUN: tl.constexpr, UNROLL: tl.constexpr, MASK_OUTPUTS: tl.constexpr,
    MASK_LENGTH: tl.constexpr, ALIGN: tl.constexpr, USE_ABSORB: tl.constexpr, IN_ORDER: tl.constexpr, WIDE: tl.constexpr,
    OVER: tl.constexpr, EVICT: tl.constexpr,
):  # fmt: skip
    """Fold BLOCK_OUTPUTS neighbouring rows, each whole in one tile, and write what becomes of their elements.

    Tile, lanes and ALIGN as in `fold_lanes`. Elements that share a vector with another row's are stored one by one: a store
    under a mask that cuts vectors would be one for each element. OVER: a bit for each extra tensor whose rows are its own.
    """
    pid = tl.program_id(0)
    block = (pid % output_blocks).to(tl.int64)
    outer = (pid // output_blocks).to(tl.int64)
    output = block * BLOCK_OUTPUTS + tl.arange(0, BLOCK_OUTPUTS)
    keep = (output < output_size)[None, None, :, None]
    if ALIGN > 1:
        rows = [(x[0] + row_begin(x, outer, outer_sizes, output) // ALIGN * ALIGN, x[4], x[5]) for x in inputs]
        lead = (row_begin(inputs[0], outer, outer_sizes, output) % ALIGN).to(tl.int32)
    else:
        rows = [(x[0] + row_begin(x, outer, outer_sizes, output), x[4], x[5]) for x in inputs]
        lead = 0
    start = 0 * block
    if not WIDE:
        start = start.to(tl.int32)
    places = tile_places(start, RUN, LANES, UNROLL)
    end = lead + length
    counted = whole_mask((places >= lead) & (places < end) & keep, places, BLOCK_OUTPUTS)
    first = TO_INDEX(start)
    position = positions_of(places - lead, first, deep_sizes, folded_size, p_deep, p_folded, BLOCK_OUTPUTS)
    if MASK_LENGTH:
        xs = load_tile(rows, places, places // RUN * RUN < end, keep, deep_sizes, folded_size, True, EVICT)
        state = begin_masked(counted, xs, position, USE_ABSORB, IN_ORDER)
    else:
        xs = load_tile(rows, places, None, keep, deep_sizes, folded_size, MASK_OUTPUTS, EVICT)
        state = begin_tile(xs, position, USE_ABSORB, IN_ORDER)
    results = spread(PROJECT(*tl.reduce(state, 1 if LANES_LAST else 0, COMBINE_SYMMETRIC)))
    y_begin = (outer_offset(outer, outer_sizes, y_outer) + output * y_output)[None, None, :, None]
    values = ()
    for i in tl.static_range(len(xs)):
        values = values + (xs[i],)
    map_tile(
        values, results, extras, y_ptrs, y_begin, y_deep, y_folded, outer, outer_sizes, output, places, lead, counted, keep,
        length, deep_sizes, folded_size, OVER, MASK_LENGTH, MASK_OUTPUTS, RUN, ALIGN, EVICT,
    )  # fmt: skip
    if ALIGN > 1:
        map_edges(
            rows, results, extras, y_ptrs, y_begin, outer, outer_sizes, output, lead, keep, length, deep_sizes, folded_size,
            OVER, RUN, ALIGN, EVICT,
        )  # fmt: skip
