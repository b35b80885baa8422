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
        begin = x.shift + spread_outputs(begin_offset(outer, outer_sizes, x.outer, FLAT) + output * x.output)
    else:
        begin = x.shift + outer_offset(outer, outer_sizes, x.outer) + spread_outputs(output * x.output)
    return begin


def lanes_rows(inputs, outer, outer_sizes, output, ALIGN: tl.constexpr, FLAT: tl.constexpr):
    """Of each input: (where each result's elements begin, or the multiple of ALIGN before, steps along the reduced dims)."""
    rows = ()
    for i in tl.static_range(len(inputs)):
        begin = lanes_begin(inputs[i], outer, outer_sizes, output, FLAT)
        if ALIGN > 1:
            begin = begin // ALIGN * ALIGN
        rows = rows + ((inputs[i].pointer + begin, (inputs[i].deep, inputs[i].reduced)),)
    return rows


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
    rows, k, lane_step, keep, lead, end, first, dims, position,
    TILE: tl.constexpr, WAY: tl.constexpr, LEVELS: tl.constexpr, STEPS: tl.constexpr, MASKED: tl.constexpr,
    LOWER: tl.constexpr,
):  # fmt: skip
    """A tile as a state for each lane: its STEPS runs of RUN neighbours, one after another, from k + lane * lane_step on."""
    BLOCK_OUTPUTS: tl.constexpr = TILE.BLOCK_OUTPUTS
    LANES: tl.constexpr = TILE.LANES
    RUN: tl.constexpr = TILE.RUN
    for step in tl.static_range(STEPS):
        places = lane_places(k, step, lane_step, RUN, LANES)
        bound = places // RUN * RUN < end
        xs = load_tile(
            rows, places, bound if MASKED else None, keep, dims, MASKED or WAY.MASK_OUTPUTS, WAY.EVICT
        )
        positions = first + TO_INDEX(reduced_offset(places - lead, dims, (position.deep, position.reduced)))
        lifted = LIFT(*xs, tl.broadcast_to(positions, xs[0].shape))
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
    """Write the last lane's state."""
    lane = tl.arange(0, LANES)
    if LANES_LAST:
        place = tl.broadcast_to(offset[:, None], (BLOCK_OUTPUTS, LANES))
        mask = mask[:, None] & (lane[None, :] == LANES - 1)
    else:
        place = tl.broadcast_to(offset[None, :], (LANES, BLOCK_OUTPUTS))
        mask = mask[None, :] & (lane[:, None] == LANES - 1)
    store_results(y_ptrs, place, mask, state, PARTIAL)


def fold_in_order(
    inputs, y, position, sizes, shares,
    TILE: tl.constexpr, WAY: tl.constexpr, OWNS: tl.constexpr, LEVELS: tl.constexpr, SHARES: tl.constexpr,
    PARTIAL: tl.constexpr, WAIT: tl.constexpr, RELEASE: tl.constexpr,
):  # fmt: skip
    """Fold in the elements' order: every lane its neighbours in registers, lanes in order, tile after tile.

    A program owns BLOCK_OUTPUTS neighbouring results (`owned_results`) and the reduced positions [split * chunk, (split + 1)
    * chunk), the last split all that are left. In a tile of LANES * RUN * UNROLL elements lane l takes UNROLL runs of RUN =
    2 ** LEVELS neighbours, one behind the other, and the lanes' states are combined once a tile: the last lane holds what
    came before. With SHARES all whole tiles are shared out first: lane l folds the l-th part of them, and lanes are combined
    once. Head, whole tiles, tail, ALIGN and LENGTH as in `fold_lanes`. Writes each result, or with PARTIAL
    its state, `shares.step` behind that of the split before.
    """
    if RELEASE:
        gdc_launch_dependents()
    BLOCK_OUTPUTS: tl.constexpr = TILE.BLOCK_OUTPUTS
    LANES: tl.constexpr = TILE.LANES
    RUN: tl.constexpr = TILE.RUN
    UNROLL: tl.constexpr = TILE.UNROLL
    ALIGN: tl.constexpr = WAY.ALIGN
    FLAT: tl.constexpr = OWNS.FLAT
    STEP: tl.constexpr = RUN * LANES
    STRIDE: tl.constexpr = STEP * UNROLL
    length = sizes.length
    if WAY.LENGTH > 0:
        length = WAY.LENGTH
    dims = (sizes.deep, sizes.reduced)
    outer, block, split = program_place(shares, sizes, OWNS)
    outer, place, owned, output, stored = owned_results(outer, block, sizes, BLOCK_OUTPUTS, OWNS)
    keep = spread_outputs(owned)
    rows = lanes_rows(inputs, outer, sizes.outer, place, ALIGN, FLAT)
    if ALIGN > 1:
        lead = (lanes_begin(inputs[0], outer, sizes.outer, place, FLAT) % ALIGN).to(tl.int32)
        limit = length + (ALIGN - 1)
    else:
        lead = 0
        limit = length
    end = lead + length
    start = split * shares.chunk
    if WAY.LENGTH > 0:
        stop = start + WAY.LENGTH
    else:
        stop = tl.where(split == shares.splits - 1, limit, start + shares.chunk)
    if not WAY.WIDE:
        start = start.to(tl.int32)
        stop = stop.to(tl.int32)
    first = TO_INDEX(begin_offset(outer, sizes.outer, position.outer[0], FLAT))
    if FLAT:
        first = spread_outputs(first)
    if WAIT:
        gdc_wait()
    state = identity_lanes(LANES, BLOCK_OUTPUTS)
    full = start
    if WAY.HEAD > 0:
        head = lanes_states(
            rows, start, RUN * WAY.HEAD, keep, lead, end, first, dims, position, TILE, WAY, LEVELS, WAY.HEAD, True, True
        )
        state = COMBINE(*state, *combine_in_order(head, LANES))
        full = start + STEP * WAY.HEAD
    if WAY.HAS_FULL > 0:
        at = full
        tiles = (tl.minimum(stop, length) - full) // STRIDE
        full = full + tiles * STRIDE
        if SHARES:
            own = identity_lanes(LANES, BLOCK_OUTPUTS)
            share = tiles * (RUN * UNROLL)
            for k in range(at, at + share, RUN * UNROLL):
                part = lanes_states(
                    rows, k, share, keep, lead, end, first, dims, position, TILE, WAY, LEVELS, UNROLL, False, False
                )
                own = COMBINE(*own, *part)
            state = COMBINE(*state, *combine_in_order(own, LANES))
        else:
            for k in range(at, full, STRIDE):
                tile = lanes_states(
                    rows, k, RUN * UNROLL, keep, lead, end, first, dims, position, TILE, WAY, LEVELS, UNROLL, False, False
                )
                state = COMBINE(*state, *combine_in_order(tile, LANES))
    if WAY.TAIL > 0:
        for k in range(full, stop, STEP * WAY.TAIL):
            tail = lanes_states(
                rows, k, RUN * WAY.TAIL, keep, lead, end, first, dims, position, TILE, WAY, LEVELS, WAY.TAIL, True,
                ALIGN > 1 and WAY.HEAD == 0,
            )  # fmt: skip
            state = COMBINE(*state, *combine_in_order(tail, LANES))
    offset = split * shares.step + begin_offset(outer, sizes.outer, y.outer, FLAT) + output * y.output
    store_last(y.pointers, offset, stored, state, LANES, BLOCK_OUTPUTS, PARTIAL)
