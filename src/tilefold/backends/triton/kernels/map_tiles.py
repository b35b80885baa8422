"""What kernels share that hold rows in registers and map their elements: extra tensors, values a row, edges, stores.

Rows may be columns in memory: neighbours are then along the output dim. Tensors are [RUN, LANES, BLOCK_OUTPUTS, UNROLL], as
in `tiles`; arguments as `map_blocks` says.
"""

import triton.language as tl

from tilefold.backends.triton.kernels.tiles import (
    begin_masked,
    outer_offset,
    positions_of,
    reduced_offset,
    row_begin,
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
