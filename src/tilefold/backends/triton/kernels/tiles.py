"""The fold's two kernels, written once for every monoid.

LIFT, COMBINE, COMBINE_LATER, ABSORB, ABSORB_MASKED, PROJECT, IDENTITY, OR_IDENTITY and TO_INDEX are generated from the
monoid's graphs and put into these functions' globals by `instantiate`, with Triton's `gdc_wait` and
`gdc_launch_dependents`. A state is a tuple with one tensor a field. `kept` counts results, `folded` counts the elements
that meet in one.

Arguments shared by both kernels:
    inputs         one record an input: (pointer, outer steps, kept step, deep steps, folded step), steps in elements
    y_ptrs         one pointer a result, or a state field where partial states are written
    y_outer, y_kept              the results' steps
    p_outer, p_deep, p_folded    the steps of an element's position, for monoids that see it
    outer_sizes    kept dims but the last: walked by whole programs
    deep_sizes     folded dims but the last: taken apart with div and mod (general strides)
    length         elements folded into one result; program `split` of `splits` takes `chunk` of them
"""

import triton.language as tl


def outer_offset(number, sizes, steps):
    """Where outer position `number` starts, given one operand's steps."""
    offset = number * 0
    for d in tl.static_range(len(sizes)):
        offset += (number % sizes[len(sizes) - 1 - d]) * steps[len(sizes) - 1 - d]
        number = number // sizes[len(sizes) - 1 - d]
    return offset


def folded_offset(places, deep_sizes, folded_size, deep_steps, folded_step):
    """Where folded positions (row-major over the folded dims) lie, given one operand's steps."""
    if len(deep_sizes) == 0:
        offset = places * folded_step
    else:
        offset = (places % folded_size) * folded_step + outer_offset(places // folded_size, deep_sizes, deep_steps)
    return offset


def load_tile(rows, places, mask, deep_sizes, folded_size, MASKED: tl.constexpr, EVICT: tl.constexpr):
    """One element tile of each input; masked elements are undefined and must not be used."""
    if MASKED:
        tile = [
            tl.load(
                row[0] + folded_offset(places, deep_sizes, folded_size, row[1], row[2]),
                mask=mask, eviction_policy=EVICT,
            )
            for row in rows
        ]
    else:
        tile = [
            tl.load(row[0] + folded_offset(places, deep_sizes, folded_size, row[1], row[2]), eviction_policy=EVICT)
            for row in rows
        ]
    return tile


def store_results(y_ptrs, offset, mask, state, PARTIAL: tl.constexpr):
    """Write the projected results, or the bare state where another stage follows."""
    if PARTIAL:
        results = state
    else:
        results = PROJECT(*state)
    for r in tl.static_range(len(y_ptrs)):
        tl.store(y_ptrs[r] + offset, results[r], mask=mask)


def program_place(splits, kept_blocks, SPLITS_FIRST: tl.constexpr):
    """(outer position, kept block, split) of this program. SPLITS_FIRST: neighbours in launch order share a result."""
    pid = tl.program_id(0)
    if SPLITS_FIRST:
        split = pid % splits
        block = (pid // splits) % kept_blocks
        outer = pid // splits // kept_blocks
    else:
        block = pid % kept_blocks
        outer = (pid // kept_blocks) // splits
        split = (pid // kept_blocks) % splits
    return outer.to(tl.int64), block.to(tl.int64), split.to(tl.int64)


def fold_block(lifted, IN_ORDER: tl.constexpr):
    """[RUN, LANES, BLOCK_KEPT, UNROLL] states -> [LANES, BLOCK_KEPT]: each lane's own elements, in a thread's registers."""
    if IN_ORDER:
        block = tl.reduce(tl.reduce(lifted, 0, COMBINE_LATER), 2, COMBINE_LATER)
    else:
        block = tl.reduce(tl.reduce(lifted, 0, COMBINE), 2, COMBINE)
    return block


def fold_lanes(
    inputs, y_ptrs, y_outer, y_kept, p_outer, p_deep, p_folded, outer_sizes, deep_sizes, kept_size, folded_size,
    length, chunk, splits, kept_blocks, split_step,
    BLOCK_KEPT: tl.constexpr, LANES: tl.constexpr, RUN: tl.constexpr, UNROLL: tl.constexpr, SPLITS_FIRST: tl.constexpr,
    MASK_KEPT: tl.constexpr, ONE_TILE: tl.constexpr, HAS_FULL: tl.constexpr, HAS_TAIL: tl.constexpr,
    USE_ABSORB: tl.constexpr, IN_ORDER: tl.constexpr, WIDE: tl.constexpr, EVICT: tl.constexpr,
    PARTIAL: tl.constexpr, WAIT: tl.constexpr, RELEASE: tl.constexpr,
):  # fmt: skip
    """Fold with lanes first: every lane folds its own elements, lanes meet once at the end.

    A program owns BLOCK_KEPT neighbouring results and the folded positions [split * chunk, (split + 1) * chunk). It reads
    tiles of [RUN, LANES, BLOCK_KEPT, UNROLL] elements: in a tile, lane l takes UNROLL runs of RUN neighbours, LANES * RUN
    apart. The state is [LANES, BLOCK_KEPT]. Triton gives threads to the contiguous axis first (RUN or BLOCK_KEPT), then
    to axes from the left: so UNROLL stays inside a thread. Writes one result (or partial state, at split * split_step) a
    row.
    """
    if RELEASE:
        gdc_launch_dependents()
    TILE: tl.constexpr = RUN * LANES * UNROLL
    outer, block, split = program_place(splits, kept_blocks, SPLITS_FIRST)
    kept = block * BLOCK_KEPT + tl.arange(0, BLOCK_KEPT)
    mask_kept = kept < kept_size
    start = split * chunk
    stop = tl.minimum(start + chunk, length)
    if not WIDE:
        start = start.to(tl.int32)
        stop = stop.to(tl.int32)
    offs = (
        tl.arange(0, RUN)[:, None, None, None]
        + tl.arange(0, LANES)[None, :, None, None] * RUN
        + tl.arange(0, UNROLL)[None, None, None, :] * (LANES * RUN)
    )
    rows = [
        (x[0] + outer_offset(outer, outer_sizes, x[1]) + (kept * x[2])[None, None, :, None], x[3], x[4])
        for x in inputs
    ]
    first = TO_INDEX(outer_offset(outer, outer_sizes, p_outer))
    if WAIT:
        gdc_wait()
    if ONE_TILE:
        xs = load_tile(rows, start + offs, mask_kept[None, None, :, None], deep_sizes, folded_size, MASK_KEPT, EVICT)
        position = first + TO_INDEX(folded_offset(start + offs, deep_sizes, folded_size, p_deep, p_folded))
        position = tl.broadcast_to(position, (RUN, LANES, BLOCK_KEPT, UNROLL))
        if USE_ABSORB:
            state = ABSORB(*IDENTITY((LANES, BLOCK_KEPT)), *xs, position)
        else:
            state = fold_block(LIFT(*xs, position), IN_ORDER)
    else:
        state = IDENTITY((LANES, BLOCK_KEPT))
        full = start
        if HAS_FULL:
            full = start + (stop - start) // TILE * TILE
            for k in range(start, full, TILE):
                xs = load_tile(rows, k + offs, mask_kept[None, None, :, None], deep_sizes, folded_size, MASK_KEPT, EVICT)
                position = first + TO_INDEX(folded_offset(k + offs, deep_sizes, folded_size, p_deep, p_folded))
                position = tl.broadcast_to(position, (RUN, LANES, BLOCK_KEPT, UNROLL))
                if USE_ABSORB:
                    state = ABSORB(*state, *xs, position)
                else:
                    state = COMBINE(*state, *fold_block(LIFT(*xs, position), IN_ORDER))
        if HAS_TAIL:
            for k in range(full, stop, TILE):
                mask = (k + offs < stop) & mask_kept[None, None, :, None]
                mask = tl.broadcast_to(mask, (RUN, LANES, BLOCK_KEPT, UNROLL))
                xs = load_tile(rows, k + offs, mask, deep_sizes, folded_size, True, EVICT)
                position = first + TO_INDEX(folded_offset(k + offs, deep_sizes, folded_size, p_deep, p_folded))
                position = tl.broadcast_to(position, (RUN, LANES, BLOCK_KEPT, UNROLL))
                if USE_ABSORB:
                    state = ABSORB_MASKED(mask, *state, *xs, position)
                else:  # masked elements come last in a lane: an identity is after everything
                    state = COMBINE(*state, *fold_block(OR_IDENTITY(mask, *LIFT(*xs, position)), IN_ORDER))
    folded = tl.reduce(state, 0, COMBINE)
    offset = split * split_step + outer_offset(outer, outer_sizes, y_outer) + kept * y_kept
    store_results(y_ptrs, offset, mask_kept, folded, PARTIAL)


def tree(state, ROWS: tl.constexpr, LENGTH: tl.constexpr, LEVELS: tl.constexpr):
    """Combine neighbours until one state a row is left: [ROWS, LENGTH] -> [ROWS], in order, inside registers."""
    for level in tl.static_range(LEVELS):
        pairs = [tl.split(tl.reshape(s, (ROWS, LENGTH >> (level + 1), 2))) for s in state]
        state = COMBINE(*[p[0] for p in pairs], *[p[1] for p in pairs])
    return [tl.reshape(s, (ROWS,)) for s in state]


def fold_in_order(
    inputs, y_ptrs, y_outer, y_kept, p_outer, p_deep, p_folded, outer_sizes, deep_sizes, kept_size, folded_size,
    length, chunk, splits, kept_blocks, split_step,
    BLOCK_KEPT: tl.constexpr, LANES: tl.constexpr, LEVELS: tl.constexpr, DENSE: tl.constexpr, SPLITS_FIRST: tl.constexpr,
    WIDE: tl.constexpr, EVICT: tl.constexpr, PARTIAL: tl.constexpr, WAIT: tl.constexpr, RELEASE: tl.constexpr,
):  # fmt: skip
    """Fold in the elements' order, or a short axis: a tree of neighbours inside registers, tile after tile.

    A program owns BLOCK_KEPT neighbouring results and the folded positions [split * chunk, (split + 1) * chunk), LANES
    (2 ** LEVELS) at a time. With DENSE the rows are exactly LANES long and stand one behind the other: the tile is read
    as one contiguous run, whatever the axis' length.
    """
    if RELEASE:
        gdc_launch_dependents()
    outer, block, split = program_place(splits, kept_blocks, SPLITS_FIRST)
    kept = block * BLOCK_KEPT + tl.arange(0, BLOCK_KEPT)
    mask_kept = kept < kept_size
    first = TO_INDEX(outer_offset(outer, outer_sizes, p_outer))
    if WAIT:
        gdc_wait()
    if DENSE:
        offs = tl.arange(0, BLOCK_KEPT * LANES)
        mask = offs < (kept_size - block * BLOCK_KEPT) * LANES
        xs = [
            tl.load(
                x[0] + outer_offset(outer, outer_sizes, x[1]) + block * (BLOCK_KEPT * LANES) + offs,
                mask=mask, eviction_policy=EVICT,
            )
            for x in inputs
        ]
        position = first + TO_INDEX(offs % LANES) * p_folded
        state = tree([tl.reshape(s, (BLOCK_KEPT, LANES)) for s in LIFT(*xs, position)], BLOCK_KEPT, LANES, LEVELS)
    else:
        start = split * chunk
        stop = tl.minimum(start + chunk, length)
        if not WIDE:
            start = start.to(tl.int32)
            stop = stop.to(tl.int32)
        rows = [
            (x[0] + outer_offset(outer, outer_sizes, x[1]) + (kept * x[2])[:, None], x[3], x[4])
            for x in inputs
        ]
        state = IDENTITY((BLOCK_KEPT,))
        for k in range(start, stop, LANES):
            places = (k + tl.arange(0, LANES))[None, :]
            mask = (places < stop) & mask_kept[:, None]
            xs = load_tile(rows, places, mask, deep_sizes, folded_size, True, EVICT)
            position = first + TO_INDEX(folded_offset(places, deep_sizes, folded_size, p_deep, p_folded))
            lifted = OR_IDENTITY(mask, *LIFT(*xs, tl.broadcast_to(position, (BLOCK_KEPT, LANES))))
            state = COMBINE(*state, *tree(lifted, BLOCK_KEPT, LANES, LEVELS))
    offset = split * split_step + outer_offset(outer, outer_sizes, y_outer) + kept * y_kept
    store_results(y_ptrs, offset, mask_kept, state, PARTIAL)
