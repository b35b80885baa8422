"""The kernel that folds whole rows in one tile and maps their elements while it holds them: one read, one write.

Besides what `tiles` has: APPLY of elements, a row's results and extras, as they are stored, gives the stored value of each
element. Rows may be columns in memory: neighbours are then along the output dim. Rows too long for one program are held by
a cluster of them, which the chip starts together and whose states are combined in shared memory (`clusters`). Arguments as in
`tiles`, and
    extras       an Operand each, of tensors that are not folded; EXTRAS: which have one value a row, and which others, the
                 order in which APPLY takes them
    y, of_rows   the Mapped results, and the Results that have one value a row: OF_ROWS of what it folds to
    blocks       of rows, along the last output dim
"""

import triton.language as tl

from tilefold.backends.triton.kernels.clusters import begin_exchange, combine_cluster, others_have_begun
from tilefold.backends.triton.kernels.tiles import (
    begin_masked,
    begin_tile,
    load_tile,
    outer_offset,
    positions_of,
    reduced_offset,
    row_begin,
    rows_of,
    tile_places,
    whole_mask,
)


def spread(results):
    """What each row folds to, beside its elements: [BLOCK_OUTPUTS] -> [1, 1, BLOCK_OUTPUTS, 1]."""
    values = ()
    for r in tl.static_range(len(results)):
        values = values + (results[r][None, None, :, None],)
    return values


def load_extra(x, outer, sizes, output, places, inside, keep, OVER: tl.constexpr, MASKED: tl.constexpr):
    """An extra tensor's elements at these places; OVER: those of each row are its own, else all rows share them."""
    if OVER:
        begin = row_begin(x, outer, sizes.outer, output)
        mask = inside & keep
    else:
        begin = x.shift + outer_offset(outer, sizes.outer, x.outer)
        mask = inside
    pointers = x.pointer + (begin + reduced_offset(places, (sizes.deep, sizes.reduced), (x.deep, x.reduced)))
    if MASKED:
        value = tl.load(pointers, mask=mask)
    else:
        value = tl.load(pointers)
    return value


def load_of_rows(row_extras, outer, outer_sizes, output, keep):
    """What the rows have one value of each: [1, 1, BLOCK_OUTPUTS, 1]. Best loaded before the rows are folded."""
    values = ()
    for i in tl.static_range(len(row_extras)):
        begin = row_begin(row_extras[i], outer, outer_sizes, output)
        values = values + (tl.load(row_extras[i].pointer + begin, mask=keep),)
    return values


def store_of_rows(results, of_rows, outer, outer_sizes, output, mask):
    """Write what is stored of each row: OF_ROWS of what it folds to."""
    made = OF_ROWS(*results)
    offset = outer_offset(outer, outer_sizes, of_rows.outer) + output * of_rows.output
    for r in tl.static_range(len(of_rows.pointers)):
        tl.store(of_rows.pointers[r] + offset, tl.broadcast_to(made[r], offset.shape), mask=mask)


def store_mapped(y_ptrs, offset, made, mask, MASKED: tl.constexpr, EVICT: tl.constexpr):
    """Write a tile's mapped elements."""
    for r in tl.static_range(len(y_ptrs)):
        value = tl.broadcast_to(made[r], offset.shape)
        if MASKED:
            tl.store(y_ptrs[r] + offset, value, mask=mask, eviction_policy=EVICT)
        else:
            tl.store(y_ptrs[r] + offset, value, eviction_policy=EVICT)


def load_extras(
    extras, outer, sizes, output, places, lead, keep,
    OVER: tl.constexpr, MASKED: tl.constexpr, MASK_OUTPUTS: tl.constexpr,
):  # fmt: skip
    """The extra tensors' elements beside a tile's."""
    at = places - lead
    inside = (at >= 0) & (at < sizes.length)
    beside = ()
    for i in tl.static_range(len(extras)):
        beside = beside + (
            load_extra(
                extras[i], outer, sizes, output, at, inside, keep, (OVER >> i) & 1,
                MASKED or (MASK_OUTPUTS and (OVER >> i) & 1),
            ),
        )
    return beside


def map_tile(
    xs, results, beside, y_ptrs, y_begin, y_steps, places, lead, counted, keep, sizes,
    MASKED: tl.constexpr, RUN: tl.constexpr, ALIGN: tl.constexpr, EVICT: tl.constexpr,
):  # fmt: skip
    """Map a tile of elements and store the results: with ALIGN, whole vectors alone. `beside`: of the extra tensors."""
    at = places - lead
    values = xs
    for r in tl.static_range(len(results)):
        values = values + (results[r],)
    for i in tl.static_range(len(beside)):
        values = values + (beside[i],)
    made = APPLY(*values)
    if ALIGN > 1:
        vector = places // RUN * RUN - lead
        whole = (vector >= 0) & (vector + RUN <= sizes.length) & keep
        offset = y_begin // ALIGN * ALIGN + places
        store_mapped(y_ptrs, offset, made, tl.broadcast_to(whole, offset.shape), MASKED, EVICT)
    else:
        offset = y_begin + reduced_offset(at, (sizes.deep, sizes.reduced), y_steps)
        store_mapped(y_ptrs, offset, made, counted, MASKED, EVICT)


def edge_places(edge, lead, length, RUN: tl.constexpr):
    """(places of a row's first vector and of its last, another one; which are its elements in a vector that is not whole)."""
    last = (lead + length - 1) // RUN * RUN
    places = tl.where(edge < RUN, edge, last + edge - RUN)
    vector = places // RUN * RUN - lead
    whole = (vector >= 0) & (vector + RUN <= length)
    at = places - lead
    return places, (at >= 0) & (at < length) & (whole == 0)


def map_edges(
    rows, results, extras, y_ptrs, y_begin, outer, sizes, output, lead, keep,
    OVER: tl.constexpr, RUN: tl.constexpr, ALIGN: tl.constexpr, EVICT: tl.constexpr,
):  # fmt: skip
    """Map the elements of a row's first and last vector where these are not whole: they are read once more."""
    edge = tl.arange(0, 2 * RUN)[:, None, None, None]
    places, inside = edge_places(edge, lead, sizes.length, RUN)
    at = places - lead
    values = ()
    for i in tl.static_range(len(rows)):
        values = values + (tl.load(rows[i][0] + places, mask=inside & keep),)
    for r in tl.static_range(len(results)):
        values = values + (results[r],)
    for i in tl.static_range(len(extras)):
        values = values + (
            load_extra(extras[i], outer, sizes, output, at, inside, keep, (OVER >> i) & 1, True),
        )
    offset = y_begin // ALIGN * ALIGN + places
    store_mapped(y_ptrs, offset, APPLY(*values), inside & keep, True, EVICT)


def fold_edges(
    rows, lead, first, keep, counts, sizes, position,
    BLOCK_OUTPUTS: tl.constexpr, RUN: tl.constexpr,
):  # fmt: skip
    """The state of those elements of a row that share a vector with another's, where `counts`: [BLOCK_OUTPUTS]."""
    edge = tl.arange(0, 2 * RUN)[:, None, None, None]
    places, inside = edge_places(edge, lead, sizes.length, RUN)
    mask = whole_mask(inside & keep & counts, edge, BLOCK_OUTPUTS)
    xs = [tl.load(row[0] + places, mask=mask) for row in rows]
    positions = positions_of(places - lead, first, (sizes.deep, sizes.reduced), position, BLOCK_OUTPUTS)
    state = begin_masked(mask, xs, positions, False, False)
    return tl.reduce(state, 1 if LANES_LAST else 0, COMBINE_SYMMETRIC)


def map_rows(
    inputs, extras, y, position, sizes, blocks, of_rows,
    BLOCK_OUTPUTS: tl.constexpr, LANES: tl.constexpr, RUN: tl.constexpr, UNROLL: tl.constexpr, MASK_OUTPUTS: tl.constexpr,
    MASK_LENGTH: tl.constexpr, ALIGN: tl.constexpr, USE_ABSORB: tl.constexpr, IN_ORDER: tl.constexpr, WIDE: tl.constexpr,
    OVER: tl.constexpr, VECTORS: tl.constexpr, CLUSTER: tl.constexpr, EXCHANGE: tl.constexpr, EVICT: tl.constexpr,
    EXTRAS: tl.constexpr,
):  # fmt: skip
    """Fold BLOCK_OUTPUTS neighbouring rows, each whole in the tiles of CLUSTER programs, and write their mapped elements.

    Tile, lanes and ALIGN as in `fold_lanes`. Elements that share a vector with another row's are stored one by one: a store
    under a mask that cuts vectors would be one for each element. OVER: a bit for each other extra tensor whose rows are its
    own.
    """
    row_extras = [extras[i] for i in EXTRAS.OF_ROWS]
    extras = [extras[i] for i in EXTRAS.BESIDE]
    split = tl.program_id(0) % CLUSTER
    pid = tl.program_id(0) // CLUSTER
    block = (pid % blocks).to(tl.int64)
    outer = (pid // blocks).to(tl.int64)
    output = block * BLOCK_OUTPUTS + tl.arange(0, BLOCK_OUTPUTS)
    keep = (output < sizes.output)[None, None, :, None]
    rows = rows_of(inputs, outer, sizes.outer, output, ALIGN)
    if ALIGN > 1:
        lead = (row_begin(inputs[0], outer, sizes.outer, output) % ALIGN).to(tl.int32)
    else:
        lead = 0
    start = split.to(tl.int64) * (RUN * LANES * UNROLL)
    if not WIDE:
        start = start.to(tl.int32)
    places = tile_places(start, RUN, LANES, UNROLL)
    vector = places // RUN * RUN
    if ALIGN > 1:
        counted = (vector >= lead) & (vector + RUN <= lead + sizes.length)
    elif VECTORS:
        counted = vector < sizes.length
    else:
        counted = places < sizes.length
    counted = whole_mask(counted & keep, places, BLOCK_OUTPUTS)
    first = TO_INDEX(0 * start)
    dims = (sizes.deep, sizes.reduced)
    positions = positions_of(places - lead, first, dims, position, BLOCK_OUTPUTS)
    if CLUSTER > 1:
        begin_exchange(EXCHANGE)
    if MASK_LENGTH:
        xs = load_tile(rows, places, vector < lead + sizes.length, keep, dims, True, EVICT)
    else:
        xs = load_tile(rows, places, None, keep, dims, MASK_OUTPUTS, EVICT)
    taken = load_of_rows(row_extras, outer, sizes.outer, output, keep)
    values = ()
    for i in tl.static_range(len(xs)):
        values = values + (xs[i],)
    if ALIGN > 1:
        edges = fold_edges(rows, lead, first, keep, split == 0, sizes, position, BLOCK_OUTPUTS, RUN)
    if MASK_LENGTH:
        state = begin_masked(counted, values, positions, USE_ABSORB, IN_ORDER)
    else:
        state = begin_tile(values, positions, USE_ABSORB, IN_ORDER)
    whole = tl.reduce(state, 1 if LANES_LAST else 0, COMBINE_SYMMETRIC)
    if ALIGN > 1:
        whole = COMBINE_SYMMETRIC(*whole, *edges)
    if CLUSTER > 1:
        others_have_begun()
        whole = combine_cluster(whole, CLUSTER, 1, None)
    results = PROJECT(*whole)
    if len(of_rows.pointers) > 0:
        store_of_rows(results, of_rows, outer, sizes.outer, output, (output < sizes.output) & (split == 0))
    if CLUSTER == 1:
        results = spread(results)
    results = results + taken
    y_begin = (outer_offset(outer, sizes.outer, y.outer) + output * y.output)[None, None, :, None]
    beside = load_extras(extras, outer, sizes, output, places, lead, keep, OVER, MASK_LENGTH, MASK_OUTPUTS)
    map_tile(
        values, results, beside, y.pointers, y_begin, (y.deep, y.reduced), places, lead, counted, keep, sizes,
        MASK_LENGTH or MASK_OUTPUTS, RUN, ALIGN, EVICT,
    )  # fmt: skip
    if ALIGN > 1:
        if split == 0:
            map_edges(
                rows, results, extras, y.pointers, y_begin, outer, sizes, output, lead, keep, OVER, RUN, ALIGN, EVICT
            )
