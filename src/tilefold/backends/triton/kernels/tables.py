"""The kernel that folds blocks of many tensors, which lie at the addresses of a table.

Generated functions as in `tiles`, and AT, which makes of an address an offset from a pointer.
"""

import triton.language as tl

from tilefold.backends.triton.kernels.tiles import (
    absorb_masked,
    absorb_tile,
    begin_masked,
    last_along,
    store_results,
    tile_places,
    tree,
)


def load_vectors(row, places, end, MASKED: tl.constexpr, RUN: tl.constexpr):
    """The elements at some places, in whole vectors: one that ends behind `end` is read, too."""
    bound = places // RUN * RUN < end if MASKED else None
    return [tl.load(row + places, mask=bound, eviction_policy="evict_first")]


def fold_across(
    row, lead, end, first, LANES: tl.constexpr, RUN: tl.constexpr, UNROLL: tl.constexpr, USE_ABSORB: tl.constexpr
):
    """The state of elements [lead, end) of a row, every lane folding its own; lanes are combined once."""
    STRIDE: tl.constexpr = LANES * RUN * UNROLL
    places = tile_places(0, RUN, LANES, UNROLL)
    xs = load_vectors(row, places, end, True, RUN)
    state = begin_masked((places >= lead) & (places < end), xs, TO_INDEX(first + places), USE_ABSORB, False)
    whole = tl.maximum(end // STRIDE * STRIDE, STRIDE)
    for k in range(STRIDE, whole, STRIDE):
        xs = load_vectors(row, k + places, end, False, RUN)
        state = absorb_tile(state, xs, TO_INDEX(first + k + places), USE_ABSORB, False)
    for k in range(whole, end, STRIDE):
        at = k + places
        xs = load_vectors(row, at, end, True, RUN)
        state = absorb_masked(at < end, state, xs, TO_INDEX(first + at), USE_ABSORB, False)
    return tl.reduce(tl.reduce(state, 0, COMBINE_SYMMETRIC), 0, COMBINE_SYMMETRIC)


def fold_along(row, lead, end, first, LANES: tl.constexpr, RUN: tl.constexpr, LEVELS: tl.constexpr):
    """The same in the elements' order: lane l folds the l-th part of all whole tiles, then come the other elements."""
    lane = tl.arange(0, LANES)[:, None]
    run = tl.arange(0, RUN)[None, :]
    tiles = end // (LANES * RUN)
    state = IDENTITY((LANES,))
    for k in range(0, tiles * RUN, RUN):
        places = lane * (tiles * RUN) + k + run
        xs = load_vectors(row, places, end, False, RUN)
        lifted = OR_IDENTITY(places >= lead, *LIFT(*xs, TO_INDEX(first + places)))
        state = COMBINE(*state, *tree([s for s in lifted], LANES, RUN, LEVELS))
    scanned = tl.associative_scan(state, 0, COMBINE)
    places = (tiles * LANES + lane) * RUN + run
    xs = load_vectors(row, places, end, True, RUN)
    lifted = OR_IDENTITY((places >= lead) & (places < end), *LIFT(*xs, TO_INDEX(first + places)))
    rest = COMBINE(*IDENTITY((LANES,)), *tree([s for s in lifted], LANES, RUN, LEVELS))
    rest = tl.associative_scan(rest, 0, COMBINE)
    return COMBINE(*[last_along(s, LANES) for s in scanned], *[last_along(s, LANES) for s in rest])


def fold_table(
    table_ptr, base_ptr, partial_ptrs, blocks, LANES: tl.constexpr, RUN: tl.constexpr, UNROLL: tl.constexpr,
    LEVELS: tl.constexpr, ORDERED: tl.constexpr, USE_ABSORB: tl.constexpr,
):  # fmt: skip
    """Fold a block of one tensor to a state, which is stored at the block's number.

    A program owns a column of the table, [4, blocks]: where the block begins, how many elements it has, the first one's
    position, the block's number. It reads tiles of LANES * UNROLL runs of RUN neighbours, in whole vectors from the one on in
    which the block begins. `base_ptr` is the table as a pointer to elements, which addresses are counted from: of a pointer
    plus an offset Triton sees that vectors are whole.
    """
    block = tl.program_id(0).to(tl.int64)
    address = tl.load(table_ptr + block)
    count = tl.load(table_ptr + blocks + block).to(tl.int32)
    first = tl.load(table_ptr + 2 * blocks + block)
    number = tl.load(table_ptr + 3 * blocks + block)
    base, offset = AT(base_ptr, address)
    lead = (offset & (RUN - 1)).to(tl.int32)
    row = base + tl.multiple_of(offset - lead, RUN)
    if ORDERED:
        state = fold_along(row, lead, lead + count, first - lead, LANES, RUN, LEVELS)
    else:
        state = fold_across(row, lead, lead + count, first - lead, LANES, RUN, UNROLL, USE_ABSORB)
    store_results(partial_ptrs, number, True, state, True)
