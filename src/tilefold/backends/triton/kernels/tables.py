"""The kernel that folds blocks of many tensors, which lie at the addresses of a table.

Generated functions as in `tiles`, and AT, which makes a pointer of an address.
"""

import triton.language as tl

from tilefold.backends.triton.kernels.segments import last_of, store_state
from tilefold.backends.triton.kernels.tiles import (
    absorb_masked,
    absorb_tile,
    begin_masked,
    begin_tile,
    tile_places,
    tree,
)


def load_places(row, places, count, WHOLE: tl.constexpr, MASKED: tl.constexpr, RUN: tl.constexpr):
    """The elements at some places; WHOLE: runs begin at whole vectors, and one that ends behind `count` is read whole."""
    if MASKED:
        bound = places // RUN * RUN < count if WHOLE else places < count
        x = tl.load(row + places, mask=bound, eviction_policy="evict_first")
    else:
        x = tl.load(row + places, eviction_policy="evict_first")
    return [x]


def fold_across(
    row, count, first, WHOLE: tl.constexpr, LANES: tl.constexpr, RUN: tl.constexpr, UNROLL: tl.constexpr,
    USE_ABSORB: tl.constexpr,
):  # fmt: skip
    """The state of `count` elements, every lane folding its own; lanes are combined once."""
    STRIDE: tl.constexpr = LANES * RUN * UNROLL
    places = tile_places(0, RUN, LANES, UNROLL)
    whole = count // STRIDE * STRIDE
    if whole > 0:
        xs = load_places(row, places, count, WHOLE, False, RUN)
        state = begin_tile(xs, TO_INDEX(first + places), USE_ABSORB, False)
        for k in range(STRIDE, whole, STRIDE):
            xs = load_places(row, k + places, count, WHOLE, False, RUN)
            state = absorb_tile(state, xs, TO_INDEX(first + k + places), USE_ABSORB, False)
        if whole < count:
            at = whole + places
            xs = load_places(row, at, count, WHOLE, True, RUN)
            state = absorb_masked(at < count, state, xs, TO_INDEX(first + at), USE_ABSORB, False)
    else:
        xs = load_places(row, places, count, WHOLE, True, RUN)
        state = begin_masked(places < count, xs, TO_INDEX(first + places), USE_ABSORB, False)
    lanes = tl.reduce(state, 1 if LANES_LAST else 0, COMBINE_SYMMETRIC)
    return [tl.reshape(s, (1,)) for s in lanes]


def fold_along(row, count, first, WHOLE: tl.constexpr, LANES: tl.constexpr, RUN: tl.constexpr, LEVELS: tl.constexpr):
    """The state of `count` elements in their order: lane l folds the l-th part of all whole tiles, then come the others."""
    lane = tl.arange(0, LANES)[:, None]
    run = tl.arange(0, RUN)[None, :]
    tiles = count // (LANES * RUN)
    state = IDENTITY((LANES,))
    for k in range(0, tiles * RUN, RUN):
        places = lane * (tiles * RUN) + k + run
        xs = load_places(row, places, count, WHOLE, False, RUN)
        state = COMBINE(*state, *tree([s for s in LIFT(*xs, TO_INDEX(first + places))], LANES, RUN, LEVELS))
    scanned = tl.associative_scan(state, 0, COMBINE)
    places = (tiles * LANES + lane) * RUN + run
    xs = load_places(row, places, count, WHOLE, True, RUN)
    lifted = OR_IDENTITY(places < count, *LIFT(*xs, TO_INDEX(first + places)))
    rest = COMBINE(*IDENTITY((LANES,)), *tree([s for s in lifted], LANES, RUN, LEVELS))
    rest = tl.associative_scan(rest, 0, COMBINE)
    made = COMBINE(*[last_of(s, LANES) for s in scanned], *[last_of(s, LANES) for s in rest])
    return [tl.reshape(s, (1,)) for s in made]


def fold_table(
    table_ptr, partial_ptrs, blocks, LANES: tl.constexpr, RUN: tl.constexpr, UNROLL: tl.constexpr, LEVELS: tl.constexpr,
    ORDERED: tl.constexpr, USE_ABSORB: tl.constexpr,
):  # fmt: skip
    """Fold a block of one tensor to a state, which is stored at the block's number.

    A program owns a column of the table, [4, blocks]: where the block begins, how many elements it has, the first one's
    position, the block's number. It reads tiles of LANES * UNROLL runs of RUN neighbours, in vectors where the block begins
    at a whole one. Lanes have the same elements wherever it begins.
    """
    block = tl.program_id(0).to(tl.int64)
    address = tl.load(table_ptr + block)
    count = tl.load(table_ptr + blocks + block).to(tl.int32)
    first = tl.load(table_ptr + 2 * blocks.to(tl.int64) + block)
    number = tl.load(table_ptr + 3 * blocks.to(tl.int64) + block)
    if address % 16 == 0:
        row = tl.multiple_of(AT(address), 16)
        if ORDERED:
            state = fold_along(row, count, first, True, LANES, RUN, LEVELS)
        else:
            state = fold_across(row, count, first, True, LANES, RUN, UNROLL, USE_ABSORB)
        store_state(partial_ptrs, number + tl.arange(0, 1), None, state)
    else:
        if ORDERED:
            state = fold_along(AT(address), count, first, False, LANES, RUN, LEVELS)
        else:
            state = fold_across(AT(address), count, first, False, LANES, RUN, UNROLL, USE_ABSORB)
        store_state(partial_ptrs, number + tl.arange(0, 1), None, state)
