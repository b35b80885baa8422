"""The kernel of folds in the elements' order. Arguments and generated functions as in `tiles`.

A lane's elements are neighbours and in the order of the lanes: tiles are [LANES, BLOCK_OUTPUTS, RUN], states [LANES,
BLOCK_OUTPUTS] (LANES_LAST: BLOCK_OUTPUTS first). Nothing here depends on how Triton shares a tile among threads: neighbours
are combined in a tree that is written out (`tree`), lanes in a scan, which keeps their order as a reduction does not. A
program of rows is one warp, so nothing goes through shared memory. Where results are contiguous a thread folds its own
columns.
"""

import triton.language as tl

from tilefold.backends.triton.kernels.tiles import (
    begin_offset,
    load_tile,
    outer_offset,
    owned_results,
    program_place,
    reduced_offset,
    store_results,
    tree,
)


def spread_lanes(lanes):
    """Numbers of lanes over a tile."""
    return lanes[None, :, None] if LANES_LAST else lanes[:, None, None]


def spread_outputs(output):
    """Something of each result over a tile."""
    return output[:, None, None] if LANES_LAST else output[None, :, None]


def lanes_begin(x, outer, outer_sizes, output, FLAT: tl.constexpr = False):
    """Where each result's elements begin in one input, over a tile."""
    if FLAT:
        begin = x[1] + spread_outputs(begin_offset(outer, outer_sizes, x[2], FLAT) + output * x[3])
    else:
        begin = x[1] + outer_offset(outer, outer_sizes, x[2]) + spread_outputs(output * x[3])
    return begin


def lane_places(k, step, lane_step, RUN: tl.constexpr, LANES: tl.constexpr):
    """Reduced positions of run `step` of every lane, where the first lane's runs start at k."""
    return k + spread_lanes(tl.arange(0, LANES) * lane_step) + (step * RUN + tl.arange(0, RUN))[None, None, :]


def counted(k, step, lane_step, lead, end, RUN: tl.constexpr, LANES: tl.constexpr, LOWER: tl.constexpr):
    """Which elements of run `step` of every lane count: those before `end` and (LOWER) none before `lead`.

    A constant is compared with a bound of the lane: one instruction an element.
    """
    run = tl.arange(0, RUN)[None, None, :]
    begin = k + spread_lanes(tl.arange(0, LANES) * lane_step) + step * RUN
    mask = run < end - begin
    if LOWER:
        mask = mask & (run >= lead - begin)
    return mask


def as_lanes(s, LANES: tl.constexpr, BLOCK_OUTPUTS: tl.constexpr):
    """A field of flat states as that of a state."""
    if LANES_LAST:
        s = tl.reshape(s, (BLOCK_OUTPUTS, LANES))
    else:
        s = tl.reshape(s, (LANES, BLOCK_OUTPUTS))
    return s


def lanes_states(
    rows, k, lane_step, keep, lead, end, first, deep_sizes, reduced_size, p_deep, p_reduced, BLOCK_OUTPUTS: tl.constexpr,
    LANES: tl.constexpr, RUN: tl.constexpr, LEVELS: tl.constexpr, STEPS: tl.constexpr, MASKED: tl.constexpr,
    LOWER: tl.constexpr, MASK_OUTPUTS: tl.constexpr, EVICT: tl.constexpr,
):  # fmt: skip
    """A tile as a state for each lane: its STEPS runs of RUN neighbours, one after another, from k + lane * lane_step on."""
    for step in tl.static_range(STEPS):
        places = lane_places(k, step, lane_step, RUN, LANES)
        bound = places // RUN * RUN < end
        xs = load_tile(
            rows, places, bound if MASKED else None, keep, deep_sizes, reduced_size, MASKED or MASK_OUTPUTS, EVICT
        )
        position = first + TO_INDEX(reduced_offset(places - lead, deep_sizes, reduced_size, p_deep, p_reduced))
        lifted = LIFT(*xs, tl.broadcast_to(position, xs[0].shape))
        if MASKED:
            mask = counted(k, step, lane_step, lead, end, RUN, LANES, LOWER)
            lifted = OR_IDENTITY(tl.broadcast_to(mask, xs[0].shape), *lifted)
        flat = tree([tl.reshape(s, (LANES * BLOCK_OUTPUTS, RUN)) for s in lifted], LANES * BLOCK_OUTPUTS, RUN, LEVELS)
        run = [as_lanes(s, LANES, BLOCK_OUTPUTS) for s in flat]
        if step == 0:
            state = run
        else:
            state = COMBINE(*state, *run)
    if STEPS == 1:
        # A scan takes a tuple, under Triton's interpreter too, and this makes one of what a comprehension gave.
        state = COMBINE(*identity_lanes(LANES, BLOCK_OUTPUTS), *state)
    return state


def identity_lanes(LANES: tl.constexpr, BLOCK_OUTPUTS: tl.constexpr):
    """The identity as a state of every lane."""
    if LANES_LAST:
        state = IDENTITY((BLOCK_OUTPUTS, LANES))
    else:
        state = IDENTITY((LANES, BLOCK_OUTPUTS))
    return state


def combine_in_order(state, LANES: tl.constexpr):
    """The lanes' states combined, in the last lane; the others hold their own and those before them."""
    if LANES > 1:
        state = tl.associative_scan(state, 1 if LANES_LAST else 0, COMBINE)
    return state


def store_last(y_ptrs, offset, mask, state, LANES: tl.constexpr, BLOCK_OUTPUTS: tl.constexpr, PARTIAL: tl.constexpr):
    """Write what the last lane holds."""
    lane = tl.arange(0, LANES)
    if LANES_LAST:
        place = tl.broadcast_to(offset[:, None], (BLOCK_OUTPUTS, LANES))
        mask = mask[:, None] & (lane[None, :] == LANES - 1)
    else:
        place = tl.broadcast_to(offset[None, :], (LANES, BLOCK_OUTPUTS))
        mask = mask[None, :] & (lane[:, None] == LANES - 1)
    store_results(y_ptrs, place, mask, state, PARTIAL)


def fold_in_order(
    inputs, y_ptrs, y_outer, y_output, p_outer, p_deep, p_reduced, outer_sizes, deep_sizes, output_size, reduced_size,
    length, chunk, splits, output_blocks, ragged, split_step,
    BLOCK_OUTPUTS: tl.constexpr, LANES: tl.constexpr, RUN: tl.constexpr, LEVELS: tl.constexpr, UNROLL: tl.constexpr,
    SPLIT: tl.constexpr, SPLITS_FIRST: tl.constexpr, MASK_OUTPUTS: tl.constexpr, ALIGN: tl.constexpr, HEAD: tl.constexpr,
    HAS_FULL: tl.constexpr, TAIL: tl.constexpr, WIDE: tl.constexpr, EVICT: tl.constexpr, PARTIAL: tl.constexpr,
    WAIT: tl.constexpr, RELEASE: tl.constexpr, LENGTH: tl.constexpr, FLAT: tl.constexpr, SHIFT: tl.constexpr,
    VECTOR: tl.constexpr, SHARES: tl.constexpr,
):  # fmt: skip
    """Fold in the elements' order: every lane its neighbours in registers, lanes in order, tile after tile.

    A program owns BLOCK_OUTPUTS neighbouring results (`owned_results`) and the reduced positions [split * chunk, (split + 1)
    * chunk), the last split all that are left. In a tile of LANES * RUN * UNROLL elements lane l takes UNROLL runs of RUN =
    2 ** LEVELS neighbours, one behind the other, and the lanes' states are combined once a tile: the last lane holds what
    came before. With SHARES all whole tiles are shared out first: lane l folds the l-th part of them, and lanes are combined
    once. Head, whole tiles, tail, ALIGN and LENGTH as in `fold_lanes`. Writes one result (or partial state, at split *
    split_step) a row.
    """
    if RELEASE:
        gdc_launch_dependents()
    STEP: tl.constexpr = RUN * LANES
    TILE: tl.constexpr = STEP * UNROLL
    if LENGTH > 0:
        length = LENGTH
    outer, block, split = program_place(
        splits, output_blocks, SPLIT, len(outer_sizes) > 0 and not FLAT, SPLITS_FIRST
    )
    outer, place, owned, output, stored = owned_results(
        outer, block, outer_sizes, output_size, BLOCK_OUTPUTS, FLAT, SHIFT, VECTOR
    )
    keep = spread_outputs(owned)
    if ALIGN > 1:
        rows = [(x[0] + lanes_begin(x, outer, outer_sizes, place, FLAT) // ALIGN * ALIGN, x[4], x[5]) for x in inputs]
        lead = (lanes_begin(inputs[0], outer, outer_sizes, place, FLAT) % ALIGN).to(tl.int32)
        limit = length + (ALIGN - 1)
    else:
        rows = [(x[0] + lanes_begin(x, outer, outer_sizes, place, FLAT), x[4], x[5]) for x in inputs]
        lead = 0
        limit = length
    end = lead + length
    start = split * chunk
    if LENGTH > 0:
        stop = start + LENGTH
    else:
        stop = tl.where(split == splits - 1, limit, start + chunk)
    if not WIDE:
        start = start.to(tl.int32)
        stop = stop.to(tl.int32)
    first = TO_INDEX(begin_offset(outer, outer_sizes, p_outer[0], FLAT))
    if FLAT:
        first = spread_outputs(first)
    if WAIT:
        gdc_wait()
    state = identity_lanes(LANES, BLOCK_OUTPUTS)
    full = start
    if HEAD > 0:
        head = lanes_states(
            rows, start, RUN * HEAD, keep, lead, end, first, deep_sizes, reduced_size, p_deep, p_reduced,
            BLOCK_OUTPUTS, LANES, RUN, LEVELS, HEAD, True, True, MASK_OUTPUTS, EVICT,
        )  # fmt: skip
        state = COMBINE(*state, *combine_in_order(head, LANES))
        full = start + STEP * HEAD
    if HAS_FULL > 0:
        at = full
        tiles = (tl.minimum(stop, length) - full) // TILE
        full = full + tiles * TILE
        if SHARES:
            own = identity_lanes(LANES, BLOCK_OUTPUTS)
            share = tiles * (RUN * UNROLL)
            for k in range(at, at + share, RUN * UNROLL):
                part = lanes_states(
                    rows, k, share, keep, lead, end, first, deep_sizes, reduced_size, p_deep, p_reduced,
                    BLOCK_OUTPUTS, LANES, RUN, LEVELS, UNROLL, False, False, MASK_OUTPUTS, EVICT,
                )  # fmt: skip
                own = COMBINE(*own, *part)
            state = COMBINE(*state, *combine_in_order(own, LANES))
        else:
            for k in range(at, full, TILE):
                tile = lanes_states(
                    rows, k, RUN * UNROLL, keep, lead, end, first, deep_sizes, reduced_size, p_deep, p_reduced,
                    BLOCK_OUTPUTS, LANES, RUN, LEVELS, UNROLL, False, False, MASK_OUTPUTS, EVICT,
                )  # fmt: skip
                state = COMBINE(*state, *combine_in_order(tile, LANES))
    if TAIL > 0:
        for k in range(full, stop, STEP * TAIL):
            tail = lanes_states(
                rows, k, RUN * TAIL, keep, lead, end, first, deep_sizes, reduced_size, p_deep, p_reduced,
                BLOCK_OUTPUTS, LANES, RUN, LEVELS, TAIL, True, ALIGN > 1 and HEAD == 0, MASK_OUTPUTS, EVICT,
            )  # fmt: skip
            state = COMBINE(*state, *combine_in_order(tail, LANES))
    offset = split * split_step + begin_offset(outer, outer_sizes, y_outer, FLAT) + output * y_output
    store_last(y_ptrs, offset, stored, state, LANES, BLOCK_OUTPUTS, PARTIAL)
