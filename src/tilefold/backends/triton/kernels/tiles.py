"""The fold's kernel for any order of elements, written once for every monoid, and the parts that `in_order` shares with it.

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

Arguments are records (`records`): `inputs` an Operand each, `y` the Results, `position`, `sizes`, `shares`; and constants,
TILE, WAY (`fold_part`) and OWNS (`owned_results`).
"""

import triton.language as tl


def outer_offset(number, sizes, steps):
    """Where outer position `number` starts, given one operand's steps."""
    offset = number * 0
    for d in tl.static_range(len(sizes)):
        offset += (number % sizes[len(sizes) - 1 - d]) * steps[len(sizes) - 1 - d]
        number = number // sizes[len(sizes) - 1 - d]
    return offset


def reduced_offset(places, dims, steps):
    """Where reduced positions (row-major over the reduced dims) lie.

    `dims`: (sizes of the deep dims, of the last one), `steps`: one operand's along these.
    """
    if len(dims[0]) == 0:
        offset = places * steps[1]
    else:
        offset = (places % dims[1]) * steps[1] + outer_offset(places // dims[1], dims[0], steps[0])
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
    return (x.shift + begin_offset(outer, outer_sizes, x.outer, FLAT) + output * x.output)[None, None, :, None]


def rows_of(inputs, outer, outer_sizes, output, ALIGN: tl.constexpr, FLAT: tl.constexpr = False):
    """Of each input: (where each result's elements begin, or the multiple of ALIGN before, steps along the reduced dims)."""
    rows = ()
    for i in tl.static_range(len(inputs)):
        begin = row_begin(inputs[i], outer, outer_sizes, output, FLAT)
        if ALIGN > 1:
            begin = begin // ALIGN * ALIGN
        rows = rows + ((inputs[i].pointer + begin, (inputs[i].deep, inputs[i].reduced)),)
    return rows


def input_row(x, outer, outer_sizes, output, FLAT: tl.constexpr, OWN: tl.constexpr):
    """(where each result's elements begin, steps along the reduced dims) of one input; not OWN: where all results' do."""
    if OWN:
        begin = row_begin(x, outer, outer_sizes, output, FLAT)
    else:
        begin = x.shift + begin_offset(outer, outer_sizes, x.outer, FLAT)
    return x.pointer + begin, (x.deep, x.reduced)


def load_tile(rows, places, bound, keep, dims, MASKED: tl.constexpr, EVICT: tl.constexpr):
    """One element tile of each input; elements outside `bound` or `keep` are undefined and must not be used.

    Of an input that all results share, as `input_row` says it, no element is loaded once a result.
    """
    tile = ()
    for i in tl.static_range(len(rows)):
        row = rows[i]
        pointers = row[0] + reduced_offset(places, dims, row[1])
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
    """Write the projected results, or the bare state where another launch follows."""
    if PARTIAL:
        results = state
    else:
        results = PROJECT(*state)
    for r in tl.static_range(len(y_ptrs)):
        tl.store(y_ptrs[r] + offset, results[r], mask=mask)


def program_place(shares, sizes, OWNS: tl.constexpr):
    """(outer position, block of results, split) of this program."""
    OUTER: tl.constexpr = len(sizes.outer) > 0 and not OWNS.FLAT
    pid = tl.program_id(0)
    split = 0 * pid
    if OWNS.SPLIT and OWNS.SPLITS_FIRST:
        split = pid % shares.splits
        pid = pid // shares.splits
    outer = 0 * pid
    if OUTER:
        block = pid % shares.blocks
        outer = pid // shares.blocks
        if OWNS.SPLIT and not OWNS.SPLITS_FIRST:
            split = outer % shares.splits
            outer = outer // shares.splits
    elif OWNS.SPLIT and not OWNS.SPLITS_FIRST:
        block = pid % shares.blocks
        split = pid // shares.blocks
    else:
        block = pid
    return outer.to(tl.int64), block.to(tl.int64), split.to(tl.int64)


def owned_results(outer, block, sizes, BLOCK_OUTPUTS: tl.constexpr, OWNS: tl.constexpr):
    """(outer position, place along the last output dim, whether it is read, result there, whether it is stored).

    FLAT: results of all output dims are counted as one, so each has an outer position, taken apart. SHIFT: places begin so
    many elements before the first result, at a whole vector, and whole vectors are read.
    """
    place = block * BLOCK_OUTPUTS + tl.arange(0, BLOCK_OUTPUTS)
    result = place
    if OWNS.FLAT:
        number = place.to(tl.int32)
        place = (number % sizes.output).to(tl.int64)
        result = place
        if len(sizes.outer) == 1:
            outer = [(number // size[1]).to(tl.int64) for size in sizes.outer]
        else:
            outer = [(number // size[1] % size[0]).to(tl.int64) for size in sizes.outer]
        read = number < sizes.outer[0][0] * sizes.outer[0][1]
        stored = read
    elif OWNS.SHIFT > 0:
        result = place - OWNS.SHIFT
        read = place < (sizes.output + (OWNS.SHIFT + OWNS.VECTOR - 1)) // OWNS.VECTOR * OWNS.VECTOR
        stored = (result >= 0) & (result < sizes.output)
    else:
        read = place < sizes.output
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


def tile_places(k, RUN: tl.constexpr, LANES: tl.constexpr, UNROLL: tl.constexpr, ALONE: tl.constexpr = False):
    """Reduced positions of a tile that starts at k: [RUN, LANES, 1, UNROLL].

    ALONE: no two lanes are of one thread, whatever vectors their pointers allow.
    """
    run = tl.arange(0, RUN)[:, None, None, None]
    if LANES_LAST:
        lane = tl.arange(0, LANES)[None, None, None, :] * RUN
        step = tl.arange(0, UNROLL)[None, :, None, None] * (LANES * RUN)
    else:
        lane = tl.arange(0, LANES)[None, :, None, None] * RUN
        step = tl.arange(0, UNROLL)[None, None, None, :] * (LANES * RUN)
    places = run + lane + step
    if ALONE:
        places = tl.max_contiguous(places, (1, 1, 1, 1))
    return k + places


def whole_mask(mask, places, BLOCK_OUTPUTS: tl.constexpr):
    """A mask over the whole tile of some places."""
    return tl.broadcast_to(mask, (places.shape[0], places.shape[1], BLOCK_OUTPUTS, places.shape[3]))


def positions_of(places, first, dims, position, BLOCK_OUTPUTS: tl.constexpr):
    """The elements' positions as the monoid sees them, over the whole tile."""
    at = first + TO_INDEX(reduced_offset(places, dims, (position.deep, position.reduced)))
    return tl.broadcast_to(at, (places.shape[0], places.shape[1], BLOCK_OUTPUTS, places.shape[3]))


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


def absorb_tail(state, k, rows, keep, lead, end, read_end, first, dims, position, TILE: tl.constexpr, WAY: tl.constexpr):
    """A masked tile of TAIL runs from k on, taken into lane states."""
    places = tile_places(k, TILE.RUN, TILE.LANES, WAY.TAIL)
    mask = whole_mask((places < end) & keep, places, TILE.BLOCK_OUTPUTS)
    xs = load_tile(rows, places, places // TILE.RUN * TILE.RUN < read_end, keep, dims, True, WAY.EVICT)
    at = positions_of(places - lead, first, dims, position, TILE.BLOCK_OUTPUTS)
    return absorb_masked(mask, state, xs, at, WAY.USE_ABSORB, WAY.IN_ORDER)


def fold_part(
    inputs, outer, output, owned, split, position, sizes, chunk, splits, ragged,
    TILE: tl.constexpr, WAY: tl.constexpr, WAIT: tl.constexpr, FLAT: tl.constexpr = False,
):  # fmt: skip
    """The state of one split of each of a program's results: [BLOCK_OUTPUTS]; those that are not `owned` are not read.

    The way: a masked head of HEAD runs (0: none), whole tiles (HAS_FULL 0: none, 1: one, 2: any number), a masked tail of
    TAIL runs at a time (0: none; TAIL_ONCE: in one turn, which then is no loop); the first of these makes the lane states.
    PREFETCH loads a tile while the one before it is folded. With ALIGN > 1, rows need not start at a multiple of ALIGN
    elements: positions count from the multiple before (`lead` elements earlier), every load is aligned, and the head masks
    what is not the row's. LENGTH > 0 is the length, of a program that is the only one of its results: masks along the folded
    elements are then known to the compiler. REDUCED > 0: so are the sizes of two reduced dims, DEEP and REDUCED; where an
    element lies is then no division. RAGGED > 0: only the first `ragged` results have a last element; what is read
    of it begins at multiples of RAGGED results, as vectors do. OVER: a bit for each input that has elements of its own for
    each result; others are loaded once for all of them.
    """
    BLOCK_OUTPUTS: tl.constexpr = TILE.BLOCK_OUTPUTS
    LANES: tl.constexpr = TILE.LANES
    RUN: tl.constexpr = TILE.RUN
    ALIGN: tl.constexpr = WAY.ALIGN
    STEP: tl.constexpr = RUN * LANES
    STRIDE: tl.constexpr = STEP * TILE.UNROLL
    length = sizes.length
    if WAY.LENGTH > 0:
        length = WAY.LENGTH
    dims = (sizes.deep, sizes.reduced)
    if WAY.REDUCED > 0:
        dims = ((WAY.DEEP,), WAY.REDUCED)
    keep = owned[None, None, :, None]
    if ALIGN > 1:
        rows = rows_of(inputs, outer, sizes.outer, output, ALIGN, FLAT)
        lead = (row_begin(inputs[0], outer, sizes.outer, output, FLAT) % ALIGN).to(tl.int32)
        limit = length + (ALIGN - 1)
    else:
        rows = ()
        for i in tl.static_range(len(inputs)):
            rows = rows + (input_row(inputs[i], outer, sizes.outer, output, FLAT, (WAY.OVER >> i) & 1),)
        lead = 0
        limit = length
    end = lead + length
    read_end = end
    whole_length = length
    if WAY.RAGGED > 0:
        columns = output[None, None, :, None]
        end = end - (columns >= ragged).to(tl.int32)
        read_end = read_end - (columns // WAY.RAGGED * WAY.RAGGED >= ragged).to(tl.int32)
        whole_length = length - 1
    start = split * chunk
    if WAY.LENGTH > 0:
        stop = start + WAY.LENGTH
    else:
        stop = tl.where(split == splits - 1, limit, start + chunk)
    if not WAY.WIDE:
        start = start.to(tl.int32)
        stop = stop.to(tl.int32)
    first = TO_INDEX(begin_offset(outer, sizes.outer, position.outer[0], FLAT))
    if FLAT:
        first = first[None, None, :, None]
    if len(position.outer[1]) > 0:
        first = first + TO_INDEX(outer_offset(output, position.outer[1], position.outer[2]))[None, None, :, None]
    if WAIT:
        gdc_wait()
    full = start
    if WAY.HEAD > 0:
        head_places = tile_places(start, RUN, LANES, WAY.HEAD)
        head_mask = whole_mask((head_places >= lead) & (head_places < end) & keep, head_places, BLOCK_OUTPUTS)
        head_xs = load_tile(rows, head_places, head_places // RUN * RUN < end, keep, dims, True, WAY.EVICT)
        head_position = positions_of(head_places - lead, first, dims, position, BLOCK_OUTPUTS)
        state = begin_masked(head_mask, head_xs, head_position, WAY.USE_ABSORB, WAY.IN_ORDER)
        full = start + STEP * WAY.HEAD
    if WAY.HAS_FULL > 0:
        at = full
        full = full + (tl.minimum(stop, whole_length) - full) // STRIDE * STRIDE
        places = tile_places(at, RUN, LANES, TILE.UNROLL)
        if WAY.HEAD == 0:
            xs = load_tile(rows, places, None, keep, dims, WAY.MASK_OUTPUTS, WAY.EVICT)
            if WAY.PREFETCH and WAY.HAS_FULL > 1:
                ahead = load_tile(rows, places + STRIDE, at + STRIDE < full, keep, dims, True, WAY.EVICT)
            positions = positions_of(places - lead, first, dims, position, BLOCK_OUTPUTS)
            state = begin_tile(xs, positions, WAY.USE_ABSORB, WAY.IN_ORDER)
            at = at + STRIDE
        elif WAY.PREFETCH:
            ahead = load_tile(rows, places, at < full, keep, dims, True, WAY.EVICT)
        if WAY.HAS_FULL > 1:
            for k in tl.range(at, full, STRIDE, num_stages=WAY.STAGES):
                places = tile_places(k, RUN, LANES, TILE.UNROLL)
                if WAY.PREFETCH:
                    xs = ahead
                    ahead = load_tile(rows, places + STRIDE, k + STRIDE < full, keep, dims, True, WAY.EVICT)
                else:
                    xs = load_tile(rows, places, None, keep, dims, WAY.MASK_OUTPUTS, WAY.EVICT)
                positions = positions_of(places - lead, first, dims, position, BLOCK_OUTPUTS)
                state = absorb_tile(state, xs, positions, WAY.USE_ABSORB, WAY.IN_ORDER)
    if WAY.TAIL > 0:
        if WAY.HEAD == 0 and WAY.HAS_FULL == 0:
            tail_places = tile_places(full, RUN, LANES, WAY.TAIL)
            tail_mask = whole_mask((tail_places >= lead) & (tail_places < end) & keep, tail_places, BLOCK_OUTPUTS)
            bound = tail_places // RUN * RUN < read_end
            tail_xs = load_tile(rows, tail_places, bound, keep, dims, True, WAY.EVICT)
            tail_position = positions_of(tail_places - lead, first, dims, position, BLOCK_OUTPUTS)
            state = begin_masked(tail_mask, tail_xs, tail_position, WAY.USE_ABSORB, WAY.IN_ORDER)
        elif WAY.TAIL_ONCE:
            state = absorb_tail(state, full, rows, keep, lead, end, read_end, first, dims, position, TILE, WAY)
        else:
            for k in range(full, stop, STEP * WAY.TAIL):
                state = absorb_tail(state, k, rows, keep, lead, end, read_end, first, dims, position, TILE, WAY)
    return tl.reduce(state, 1 if LANES_LAST else 0, COMBINE_SYMMETRIC)


def fold_lanes(
    inputs, y, position, sizes, shares,
    TILE: tl.constexpr, WAY: tl.constexpr, OWNS: tl.constexpr, PARTIAL: tl.constexpr, ATOMIC: tl.constexpr,
    WAIT: tl.constexpr, RELEASE: tl.constexpr,
):  # fmt: skip
    """Fold with lanes first: every lane folds its own elements, lanes are combined once at the end.

    A program owns BLOCK_OUTPUTS neighbouring results (`owned_results`) and the reduced positions [split * chunk, (split + 1)
    * chunk), the last split all that are left. It reads tiles of [RUN, LANES, BLOCK_OUTPUTS, UNROLL] elements: in a tile,
    lane l takes UNROLL runs of RUN neighbours, LANES * RUN apart. The state is [LANES, BLOCK_OUTPUTS]. Triton gives threads
    to the contiguous axis first (RUN or BLOCK_OUTPUTS), then to LANES (`axes` sees to it): so UNROLL stays inside a thread.

    Lanes are combined with COMBINE_SYMMETRIC: threads that exchange states then hold the same bits of one result, whichever
    of them writes it.

    `fold_part` says the way through its elements. Writes each result, or with PARTIAL its state, `shares.step` behind that of
    the split before; with ATOMIC the results are combined in memory with those of other splits, in whichever order they come.
    """
    if RELEASE:
        gdc_launch_dependents()
    outer, block, split = program_place(shares, sizes, OWNS)
    outer, place, owned, output, stored = owned_results(outer, block, sizes, TILE.BLOCK_OUTPUTS, OWNS)
    folded = fold_part(
        inputs, outer, place, owned, split, position, sizes, shares.chunk, shares.splits, shares.ragged, TILE, WAY, WAIT,
        OWNS.FLAT,
    )  # fmt: skip
    if ATOMIC:
        results = PROJECT(*folded)
        offset = begin_offset(outer, sizes.outer, y.outer, OWNS.FLAT) + output * y.output
        COMBINE_IN_MEMORY(y.pointers[0] + offset, results[0], stored)
    else:
        offset = split * shares.step + begin_offset(outer, sizes.outer, y.outer, OWNS.FLAT) + output * y.output
        store_results(y.pointers, offset, stored, folded, PARTIAL)


def tree(state, ROWS: tl.constexpr, LENGTH: tl.constexpr, LEVELS: tl.constexpr):
    """Combine neighbours until one state a row is left: [ROWS, LENGTH] -> [ROWS], in order, inside registers."""
    for level in tl.static_range(LEVELS):
        pairs = [tl.split(tl.reshape(s, (ROWS, LENGTH >> (level + 1), 2))) for s in state]
        state = COMBINE(*[p[0] for p in pairs], *[p[1] for p in pairs])
    return [tl.reshape(s, (ROWS,)) for s in state]


def in_halves(x, LENGTH: tl.constexpr):
    """A thread's elements along the last dim, one tensor an element, in order."""
    if LENGTH == 1:
        elements = (tl.reshape(x, (x.shape[0], x.shape[1])),)
    elif LENGTH == 2:
        elements = tl.split(x)
    else:
        even, odd = tl.split(tl.reshape(x, (x.shape[0], x.shape[1], LENGTH // 2, 2)))
        evens, odds = in_halves(even, LENGTH // 2), in_halves(odd, LENGTH // 2)
        elements = ()
        for i in tl.static_range(LENGTH // 2):
            elements = elements + (evens[i], odds[i])
    return elements


def either_bits(a, b):
    """The bits of both."""
    return a | b


def last_along(s, LENGTH: tl.constexpr, AXIS: tl.constexpr = 0):
    """The last of LENGTH places along an axis, as bits: a sum with zeros would lose the sign of a zero."""
    place = tl.arange(0, LENGTH)
    if len(s.shape) == 2:
        place = place[None, :] if AXIS == 1 else place[:, None]
    last = place == LENGTH - 1
    if s.dtype.is_floating():
        kind: tl.constexpr = tl.int64 if s.dtype.primitive_bitwidth == 64 else tl.int32
        picked = tl.reduce(tl.where(last, s.to(kind, bitcast=True), 0), AXIS, either_bits).to(s.dtype, bitcast=True)
    else:
        picked = tl.reduce(tl.where(last, s, s ^ s), AXIS, either_bits)
    return picked
