"""The fold's kernel for any order of elements, written once for every monoid, and what `in_order` shares with it.

A program of `fold_lanes` owns BLOCK_OUTPUTS neighbouring results. It reads tiles of [RUN, LANES, BLOCK_OUTPUTS, UNROLL]
elements; its state is [LANES, BLOCK_OUTPUTS]. Triton gives threads to the contiguous axis first and then to axes from the
left (since 3.7 from the right: `axes`). So one kernel folds rows (a run is one 16-byte load), columns (RUN is 1,
neighbouring results are contiguous), short axes (a thread has a row) and partial states (elements are states).

    run  run  run  run ...  (lanes)      lanes are combined once, after the loop:
    |##| |##| |##| |##|     unroll 0     in registers, by shuffles, and by one exchange through shared memory
    |##| |##| |##| |##|     unroll 1

- No data crosses threads inside the loop.
- A lane absorbs its elements of a tile as one block (ABSORB): a log-sum-exp rescales once a block, a variance sums
  deviations from the mean of the lane's first block (BEGIN).
- A lane meets its elements in order, so COMBINE_LATER needs no comparison of positions. The first tile makes the state.
- A row that starts between two vectors is read from the vector before it, and its first and last runs are masked (ALIGN).
  So up to 15 bytes on either side of a tensor are read and not used.
- When threads exchange states, one computes combine(a, b) and the other combine(b, a). Both may store the result, so it
  must be the same to the bit: COMBINE_SYMMETRIC orders the fields first where the graph of `combine` does not prove it
  (`algebra.proofs.symmetry`).

LIFT, COMBINE, COMBINE_LATER, COMBINE_SYMMETRIC, BEGIN, ABSORB (both also _MASKED), PROJECT, IDENTITY, OR_IDENTITY and
TO_INDEX are generated from the monoid's graphs and put into these functions' globals by `instantiate`, with Triton's
`gdc_wait` and `gdc_launch_dependents`, and LANES_LAST, which is said of Triton (`axes`): tiles are then [RUN, UNROLL,
BLOCK_OUTPUTS, LANES] and states [BLOCK_OUTPUTS, LANES]. A state is a tuple with one tensor a field. `output` counts
results, `reduced` counts the elements that are combined into one.

Arguments:
    inputs         one record an input: (pointer, shift, outer steps, output step, deep steps, reduced step), in elements; the
                   first element is `shift` after the pointer
    y_ptrs         one pointer a result, or a state field where partial states are written
    y_outer, y_output              the results' steps
    p_outer, p_deep, p_reduced     the steps of an element's position, for monoids that see it; `p_outer` are those of the
                   outer dims, then sizes and steps of the dims that results along the last output dim are counted by
    outer_sizes    output dims but the last: walked by whole programs; FLAT: each with the number of results inside it
    deep_sizes     reduced dims but the last: taken apart with div and mod (general strides)
    length         elements folded into one result; program `split` of `splits` takes `chunk` of them
    ragged         results that have a last element, where not all have one
"""

import triton.language as tl


def outer_offset(number, sizes, steps):
    """Where outer position `number` starts, given one operand's steps."""
    offset = number * 0
    for d in tl.static_range(len(sizes)):
        offset += (number % sizes[len(sizes) - 1 - d]) * steps[len(sizes) - 1 - d]
        number = number // sizes[len(sizes) - 1 - d]
    return offset


def reduced_offset(places, deep_sizes, reduced_size, deep_steps, reduced_step):
    """Where reduced positions (row-major over the reduced dims) lie, given one operand's steps."""
    if len(deep_sizes) == 0:
        offset = places * reduced_step
    else:
        offset = (places % reduced_size) * reduced_step + outer_offset(places // reduced_size, deep_sizes, deep_steps)
    return offset


def begin_offset(outer, outer_sizes, steps, FLAT: tl.constexpr):
    """Where a program's outer position starts; FLAT: where each result's starts, whose places are taken apart already."""
    if FLAT:
        offset = outer[0] * steps[0]
        for d in tl.static_range(1, len(outer_sizes)):
            offset += outer[d] * steps[d]
    else:
        offset = outer_offset(outer, outer_sizes, steps)
    return offset


def row_begin(x, outer, outer_sizes, output, FLAT: tl.constexpr = False):
    """Where each result's elements begin in one input: [1, 1, BLOCK_OUTPUTS, 1]."""
    return (x[1] + begin_offset(outer, outer_sizes, x[2], FLAT) + output * x[3])[None, None, :, None]


def input_row(x, outer, outer_sizes, output, FLAT: tl.constexpr, OWN: tl.constexpr):
    """(where each result's elements begin, deep steps, reduced step) of one input; not OWN: where all results' do."""
    if OWN:
        begin = row_begin(x, outer, outer_sizes, output, FLAT)
    else:
        begin = x[1] + begin_offset(outer, outer_sizes, x[2], FLAT)
    return x[0] + begin, x[4], x[5]


def load_tile(rows, places, bound, keep, deep_sizes, reduced_size, MASKED: tl.constexpr, EVICT: tl.constexpr):
    """One element tile of each input; elements outside `bound` or `keep` are undefined and must not be used.

    Of an input that all results share, as `input_row` says it, no element is loaded once a result.
    """
    tile = ()
    for i in tl.static_range(len(rows)):
        row = rows[i]
        pointers = row[0] + reduced_offset(places, deep_sizes, reduced_size, row[1], row[2])
        if len(row[0].shape) == 0:
            if MASKED and bound is not None:
                shared = tl.load(pointers, mask=bound)
            else:
                shared = tl.load(pointers)
            tile = tile + (tl.broadcast_to(shared, (places.shape[0], places.shape[1], keep.shape[2], places.shape[3])),)
        elif MASKED:
            mask = keep if bound is None else keep & bound
            tile = tile + (tl.load(pointers, mask=mask, eviction_policy=EVICT),)
        else:
            tile = tile + (tl.load(pointers, eviction_policy=EVICT),)
    return tile


def store_results(y_ptrs, offset, mask, state, PARTIAL: tl.constexpr):
    """Write the projected results, or the bare state where another stage follows."""
    if PARTIAL:
        results = state
    else:
        results = PROJECT(*state)
    for r in tl.static_range(len(y_ptrs)):
        tl.store(y_ptrs[r] + offset, results[r], mask=mask)


def program_place(splits, output_blocks, SPLIT: tl.constexpr, OUTER: tl.constexpr, SPLITS_FIRST: tl.constexpr):
    """(outer position, block of results, split) of this program. SPLITS_FIRST: neighbours in launch order share a result."""
    pid = tl.program_id(0)
    split = 0 * pid
    if SPLIT and SPLITS_FIRST:
        split = pid % splits
        pid = pid // splits
    outer = 0 * pid
    if OUTER:
        block = pid % output_blocks
        outer = pid // output_blocks
        if SPLIT and not SPLITS_FIRST:
            split = outer % splits
            outer = outer // splits
    elif SPLIT and not SPLITS_FIRST:
        block = pid % output_blocks
        split = pid // output_blocks
    else:
        block = pid
    return outer.to(tl.int64), block.to(tl.int64), split.to(tl.int64)


def owned_results(
    outer, block, outer_sizes, output_size, BLOCK_OUTPUTS: tl.constexpr, FLAT: tl.constexpr, SHIFT: tl.constexpr,
    VECTOR: tl.constexpr,
):  # fmt: skip
    """(outer position, place along the last output dim, whether it is read, result there, whether it is stored).

    FLAT: results of all output dims are counted as one, so each has an outer position, taken apart. SHIFT: places begin so
    many elements before the first result, at a whole vector, and whole vectors are read.
    """
    place = block * BLOCK_OUTPUTS + tl.arange(0, BLOCK_OUTPUTS)
    result = place
    if FLAT:
        number = place.to(tl.int32)
        place = (number % output_size).to(tl.int64)
        result = place
        if len(outer_sizes) == 1:
            outer = [(number // size[1]).to(tl.int64) for size in outer_sizes]
        else:
            outer = [(number // size[1] % size[0]).to(tl.int64) for size in outer_sizes]
        read = number < outer_sizes[0][0] * outer_sizes[0][1]
        stored = read
    elif SHIFT > 0:
        result = place - SHIFT
        read = place < (output_size + (SHIFT + VECTOR - 1)) // VECTOR * VECTOR
        stored = (result >= 0) & (result < output_size)
    else:
        read = place < output_size
        stored = read
    return outer, place, read, result, stored


def fold_block(lifted, IN_ORDER: tl.constexpr, LATER: tl.constexpr):
    """[RUN, LANES, BLOCK_OUTPUTS, UNROLL] states -> [LANES, BLOCK_OUTPUTS].

    IN_ORDER: a lane's own elements are in a thread's registers, with LATER each after those before it. Else threads may
    exchange them.
    """
    UNROLL: tl.constexpr = 0 if LANES_LAST else 2
    if IN_ORDER and LATER:
        block = tl.reduce(tl.reduce(lifted, 0, COMBINE_LATER), UNROLL, COMBINE_LATER)
    elif IN_ORDER:
        block = tl.reduce(tl.reduce(lifted, 0, COMBINE), UNROLL, COMBINE)
    else:
        block = tl.reduce(tl.reduce(lifted, 0, COMBINE_SYMMETRIC), UNROLL, COMBINE_SYMMETRIC)
    return block


def tile_places(k, RUN: tl.constexpr, LANES: tl.constexpr, UNROLL: tl.constexpr):
    """Reduced positions of a tile that starts at k: [RUN, LANES, 1, UNROLL]."""
    run = tl.arange(0, RUN)[:, None, None, None]
    if LANES_LAST:
        lane = tl.arange(0, LANES)[None, None, None, :] * RUN
        step = tl.arange(0, UNROLL)[None, :, None, None] * (LANES * RUN)
    else:
        lane = tl.arange(0, LANES)[None, :, None, None] * RUN
        step = tl.arange(0, UNROLL)[None, None, None, :] * (LANES * RUN)
    return k + (run + lane + step)


def whole_mask(mask, places, BLOCK_OUTPUTS: tl.constexpr):
    """A mask over the whole tile of some places."""
    return tl.broadcast_to(mask, (places.shape[0], places.shape[1], BLOCK_OUTPUTS, places.shape[3]))


def positions_of(places, first, deep_sizes, reduced_size, p_deep, p_reduced, BLOCK_OUTPUTS: tl.constexpr):
    """The elements' positions as the monoid sees them, over the whole tile."""
    position = first + TO_INDEX(reduced_offset(places, deep_sizes, reduced_size, p_deep, p_reduced))
    return tl.broadcast_to(position, (places.shape[0], places.shape[1], BLOCK_OUTPUTS, places.shape[3]))


def begin_tile(xs, position, USE_ABSORB: tl.constexpr, IN_ORDER: tl.constexpr):
    """A first whole tile as lane states."""
    if USE_ABSORB:
        state = BEGIN(*xs, position)
    else:
        state = fold_block(LIFT(*xs, position), IN_ORDER, True)
    return state


def begin_masked(mask, xs, position, USE_ABSORB: tl.constexpr, IN_ORDER: tl.constexpr):
    """A first tile of which only elements under the mask count; a lane without any is the identity.

    Not with COMBINE_LATER: masked elements come first too, and an identity is after none.
    """
    if USE_ABSORB:
        state = BEGIN_MASKED(mask, *xs, position)
    else:
        state = fold_block(OR_IDENTITY(mask, *LIFT(*xs, position)), IN_ORDER, False)
    return state


def absorb_tile(state, xs, position, USE_ABSORB: tl.constexpr, IN_ORDER: tl.constexpr):
    """A further whole tile taken into lane states."""
    if USE_ABSORB:
        state = ABSORB(*state, *xs, position)
    elif IN_ORDER:
        state = COMBINE_LATER(*state, *fold_block(LIFT(*xs, position), True, True))
    else:
        state = COMBINE(*state, *fold_block(LIFT(*xs, position), False, False))
    return state


def absorb_masked(mask, state, xs, position, USE_ABSORB: tl.constexpr, IN_ORDER: tl.constexpr):
    """A last tile: masked elements come last in a lane, where an identity may stand."""
    if USE_ABSORB:
        state = ABSORB_MASKED(mask, *state, *xs, position)
    elif IN_ORDER:
        state = COMBINE_LATER(*state, *fold_block(OR_IDENTITY(mask, *LIFT(*xs, position)), True, True))
    else:
        state = COMBINE(*state, *fold_block(OR_IDENTITY(mask, *LIFT(*xs, position)), False, False))
    return state


def absorb_tail(
    state, k, rows, keep, lead, end, read_end, first, deep_sizes, reduced_size, p_deep, p_reduced,
    BLOCK_OUTPUTS: tl.constexpr, LANES: tl.constexpr, RUN: tl.constexpr, TAIL: tl.constexpr, EVICT: tl.constexpr,
    USE_ABSORB: tl.constexpr, IN_ORDER: tl.constexpr,
):  # fmt: skip
    """A masked tile of TAIL runs from k on, taken into lane states."""
    places = tile_places(k, RUN, LANES, TAIL)
    mask = whole_mask((places < end) & keep, places, BLOCK_OUTPUTS)
    xs = load_tile(rows, places, places // RUN * RUN < read_end, keep, deep_sizes, reduced_size, True, EVICT)
    position = positions_of(places - lead, first, deep_sizes, reduced_size, p_deep, p_reduced, BLOCK_OUTPUTS)
    return absorb_masked(mask, state, xs, position, USE_ABSORB, IN_ORDER)


def fold_part(
    inputs, outer, output, owned, split, p_outer, p_deep, p_reduced, outer_sizes, deep_sizes, reduced_size, length, chunk,
    splits, ragged,
    BLOCK_OUTPUTS: tl.constexpr, LANES: tl.constexpr, RUN: tl.constexpr, UNROLL: tl.constexpr, MASK_OUTPUTS: tl.constexpr,
    ALIGN: tl.constexpr, HEAD: tl.constexpr, HAS_FULL: tl.constexpr, TAIL: tl.constexpr, PREFETCH: tl.constexpr,
    USE_ABSORB: tl.constexpr, IN_ORDER: tl.constexpr, WIDE: tl.constexpr, STAGES: tl.constexpr, EVICT: tl.constexpr,
    WAIT: tl.constexpr, LENGTH: tl.constexpr, TAIL_ONCE: tl.constexpr, RAGGED: tl.constexpr, FLAT: tl.constexpr = False,
    DEEP: tl.constexpr = 0, REDUCED: tl.constexpr = 0, OVER: tl.constexpr = -1,
):  # fmt: skip
    """The state of one split of each of a program's results: [BLOCK_OUTPUTS]; those that are not `owned` are not read.

    The way: a masked head of HEAD runs (0: none), whole tiles (HAS_FULL 0: none, 1: one, 2: any number), a masked tail of
    TAIL runs at a time (0: none; TAIL_ONCE: in one turn, which then is no loop); the first of these makes the lane states.
    PREFETCH loads a tile while the one before it is folded. With ALIGN > 1, rows need not start at a multiple of ALIGN
    elements: positions count from the multiple before (`lead` elements earlier), every load is aligned, and the head masks
    what is not the row's. LENGTH > 0 is `length`, of a program that is the only one of its results: masks along the folded
    elements are then known to the compiler. REDUCED > 0: so are the sizes of two reduced dims, DEEP and REDUCED; where an
    element lies is then no division. RAGGED > 0: only the first `ragged` results have a last element; what is read
    of it begins at multiples of RAGGED results, as vectors do. OVER: a bit for each input that has elements of its own for
    each result; others are loaded once for all of them.
    """
    STEP: tl.constexpr = RUN * LANES
    TILE: tl.constexpr = STEP * UNROLL
    if LENGTH > 0:
        length = LENGTH
    if REDUCED > 0:
        deep_sizes = (DEEP,)
        reduced_size = REDUCED
    keep = owned[None, None, :, None]
    if ALIGN > 1:
        rows = [(x[0] + row_begin(x, outer, outer_sizes, output, FLAT) // ALIGN * ALIGN, x[4], x[5]) for x in inputs]
        lead = (row_begin(inputs[0], outer, outer_sizes, output, FLAT) % ALIGN).to(tl.int32)
        limit = length + (ALIGN - 1)
    else:
        rows = ()
        for i in tl.static_range(len(inputs)):
            rows = rows + (input_row(inputs[i], outer, outer_sizes, output, FLAT, (OVER >> i) & 1),)
        lead = 0
        limit = length
    end = lead + length
    read_end = end
    whole_length = length
    if RAGGED > 0:
        columns = output[None, None, :, None]
        end = end - (columns >= ragged).to(tl.int32)
        read_end = read_end - (columns // RAGGED * RAGGED >= ragged).to(tl.int32)
        whole_length = length - 1
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
        first = first[None, None, :, None]
    if len(p_outer[1]) > 0:
        first = first + TO_INDEX(outer_offset(output, p_outer[1], p_outer[2]))[None, None, :, None]
    if WAIT:
        gdc_wait()
    full = start
    if HEAD > 0:
        head_places = tile_places(start, RUN, LANES, HEAD)
        head_mask = whole_mask((head_places >= lead) & (head_places < end) & keep, head_places, BLOCK_OUTPUTS)
        head_xs = load_tile(rows, head_places, head_places // RUN * RUN < end, keep, deep_sizes, reduced_size, True, EVICT)
        head_position = positions_of(head_places - lead, first, deep_sizes, reduced_size, p_deep, p_reduced, BLOCK_OUTPUTS)
        state = begin_masked(head_mask, head_xs, head_position, USE_ABSORB, IN_ORDER)
        full = start + STEP * HEAD
    if HAS_FULL > 0:
        at = full
        full = full + (tl.minimum(stop, whole_length) - full) // TILE * TILE
        places = tile_places(at, RUN, LANES, UNROLL)
        if HEAD == 0:
            xs = load_tile(rows, places, None, keep, deep_sizes, reduced_size, MASK_OUTPUTS, EVICT)
            if PREFETCH and HAS_FULL > 1:
                ahead = load_tile(rows, places + TILE, at + TILE < full, keep, deep_sizes, reduced_size, True, EVICT)
            position = positions_of(places - lead, first, deep_sizes, reduced_size, p_deep, p_reduced, BLOCK_OUTPUTS)
            state = begin_tile(xs, position, USE_ABSORB, IN_ORDER)
            at = at + TILE
        elif PREFETCH:
            ahead = load_tile(rows, places, at < full, keep, deep_sizes, reduced_size, True, EVICT)
        if HAS_FULL > 1:
            for k in tl.range(at, full, TILE, num_stages=STAGES):
                places = tile_places(k, RUN, LANES, UNROLL)
                if PREFETCH:
                    xs = ahead
                    ahead = load_tile(rows, places + TILE, k + TILE < full, keep, deep_sizes, reduced_size, True, EVICT)
                else:
                    xs = load_tile(rows, places, None, keep, deep_sizes, reduced_size, MASK_OUTPUTS, EVICT)
                position = positions_of(places - lead, first, deep_sizes, reduced_size, p_deep, p_reduced, BLOCK_OUTPUTS)
                state = absorb_tile(state, xs, position, USE_ABSORB, IN_ORDER)
    if TAIL > 0:
        if HEAD == 0 and HAS_FULL == 0:
            tail_places = tile_places(full, RUN, LANES, TAIL)
            tail_mask = whole_mask((tail_places >= lead) & (tail_places < end) & keep, tail_places, BLOCK_OUTPUTS)
            bound = tail_places // RUN * RUN < read_end
            tail_xs = load_tile(rows, tail_places, bound, keep, deep_sizes, reduced_size, True, EVICT)
            tail_position = positions_of(
                tail_places - lead, first, deep_sizes, reduced_size, p_deep, p_reduced, BLOCK_OUTPUTS
            )
            state = begin_masked(tail_mask, tail_xs, tail_position, USE_ABSORB, IN_ORDER)
        elif TAIL_ONCE:
            state = absorb_tail(
                state, full, rows, keep, lead, end, read_end, first, deep_sizes, reduced_size, p_deep, p_reduced,
                BLOCK_OUTPUTS, LANES, RUN, TAIL, EVICT, USE_ABSORB, IN_ORDER,
            )  # fmt: skip
        else:
            for k in range(full, stop, STEP * TAIL):
                state = absorb_tail(
                    state, k, rows, keep, lead, end, read_end, first, deep_sizes, reduced_size, p_deep, p_reduced,
                    BLOCK_OUTPUTS, LANES, RUN, TAIL, EVICT, USE_ABSORB, IN_ORDER,
                )  # fmt: skip
    return tl.reduce(state, 1 if LANES_LAST else 0, COMBINE_SYMMETRIC)


def fold_lanes(
    inputs, y_ptrs, y_outer, y_output, p_outer, p_deep, p_reduced, outer_sizes, deep_sizes, output_size, reduced_size,
    length, chunk, splits, output_blocks, ragged, split_step,
    BLOCK_OUTPUTS: tl.constexpr, LANES: tl.constexpr, RUN: tl.constexpr, UNROLL: tl.constexpr, SPLIT: tl.constexpr,
    SPLITS_FIRST: tl.constexpr, MASK_OUTPUTS: tl.constexpr, ALIGN: tl.constexpr, HEAD: tl.constexpr, HAS_FULL: tl.constexpr,
    TAIL: tl.constexpr, PREFETCH: tl.constexpr, USE_ABSORB: tl.constexpr, IN_ORDER: tl.constexpr, WIDE: tl.constexpr,
    STAGES: tl.constexpr, EVICT: tl.constexpr, PARTIAL: tl.constexpr, WAIT: tl.constexpr, RELEASE: tl.constexpr,
    LENGTH: tl.constexpr, TAIL_ONCE: tl.constexpr, RAGGED: tl.constexpr, FLAT: tl.constexpr, SHIFT: tl.constexpr,
    VECTOR: tl.constexpr, DEEP: tl.constexpr, REDUCED: tl.constexpr, OVER: tl.constexpr,
):  # fmt: skip
    """Fold with lanes first: every lane folds its own elements, lanes are combined once at the end.

    A program owns BLOCK_OUTPUTS neighbouring results (`owned_results`) and the reduced positions [split * chunk, (split + 1)
    * chunk), the last split all that are left. It reads tiles of [RUN, LANES, BLOCK_OUTPUTS, UNROLL] elements: in a tile,
    lane l takes UNROLL runs of RUN neighbours, LANES * RUN apart. The state is [LANES, BLOCK_OUTPUTS]. Triton gives threads
    to the contiguous axis first (RUN or BLOCK_OUTPUTS), then to LANES (`axes` sees to it): so UNROLL stays inside a thread.

    Lanes are combined with COMBINE_SYMMETRIC: threads that exchange states then hold the same bits of one result, whichever
    of them writes it.

    `fold_part` says the way through its elements. Writes one result (or partial state, at split * split_step) a row.
    """
    if RELEASE:
        gdc_launch_dependents()
    outer, block, split = program_place(
        splits, output_blocks, SPLIT, len(outer_sizes) > 0 and not FLAT, SPLITS_FIRST
    )
    outer, place, owned, output, stored = owned_results(
        outer, block, outer_sizes, output_size, BLOCK_OUTPUTS, FLAT, SHIFT, VECTOR
    )
    folded = fold_part(
        inputs, outer, place, owned, split, p_outer, p_deep, p_reduced, outer_sizes, deep_sizes, reduced_size, length,
        chunk, splits, ragged, BLOCK_OUTPUTS, LANES, RUN, UNROLL, MASK_OUTPUTS, ALIGN, HEAD, HAS_FULL, TAIL, PREFETCH,
        USE_ABSORB, IN_ORDER, WIDE, STAGES, EVICT, WAIT, LENGTH, TAIL_ONCE, RAGGED, FLAT, DEEP, REDUCED, OVER,
    )  # fmt: skip
    offset = split * split_step + begin_offset(outer, outer_sizes, y_outer, FLAT) + output * y_output
    store_results(y_ptrs, offset, stored, folded, PARTIAL)


def tree(state, ROWS: tl.constexpr, LENGTH: tl.constexpr, LEVELS: tl.constexpr):
    """Combine neighbours until one state a row is left: [ROWS, LENGTH] -> [ROWS], in order, inside registers."""
    for level in tl.static_range(LEVELS):
        pairs = [tl.split(tl.reshape(s, (ROWS, LENGTH >> (level + 1), 2))) for s in state]
        state = COMBINE(*[p[0] for p in pairs], *[p[1] for p in pairs])
    return [tl.reshape(s, (ROWS,)) for s in state]
