"""The kernel that holds columns in shared memory while they are folded and mapped: one read, one write.

A stripe is some neighbouring columns: C vectors of 16 bytes of each row. A program, or each of a cluster of them, keeps a
ring of turns in its shared memory, UNROLL vectors a thread each, and has one stripe, or takes one after another as
`map_rings` does rows: where a turn was mapped, its place takes one of a later stripe. A thread has RUN columns, a vector, of
UNROLL neighbouring rows of a turn, and reads only vectors that it fetched itself.

Every tensor here is [R * C], a number a thread, and states are a tuple for each of a thread's columns.
"""

import triton.language as tl

from tilefold.backends.triton.kernels.clusters import (
    begin_exchange,
    combine_cluster,
    others_have_begun,
    read_own,
    write_own,
)
from tilefold.backends.triton.kernels.primitives import (
    exchanged_word,
    fetch,
    inline_ptx,
    load_shared,
    load_word,
    memory,
    packed,
    store_word,
    thread_of,
    unpacked,
    write,
)
from tilefold.backends.triton.kernels.tiles import outer_offset


def first_column(stripe, blocks, outer_sizes, COLUMNS: tl.constexpr):
    """A stripe's first column among its neighbours."""
    if len(outer_sizes) > 0:
        stripe = stripe % blocks
    return stripe * COLUMNS


def stripe_offset(stripe, blocks, outer_sizes, outer_steps, COLUMNS: tl.constexpr):
    """Where a stripe begins in one operand, in elements."""
    offset = first_column(stripe, blocks, outer_sizes, COLUMNS).to(tl.int64)
    if len(outer_sizes) > 0:
        offset += outer_offset((stripe // blocks).to(tl.int64), outer_sizes, outer_steps)
    return offset


def fetch_stripe(
    x, stripe, turn, slot, stripes, blocks, inner, first, line, column, thread, length, outer_sizes, ring,
    X_STEP: tl.constexpr, R: tl.constexpr, C: tl.constexpr, RUN: tl.constexpr, UNROLL: tl.constexpr, MASKED: tl.constexpr,
    MASK_COLUMNS: tl.constexpr, NEAR: tl.constexpr,
):  # fmt: skip
    """Begin to copy this program's share of a turn of a stripe, if there is such a stripe."""
    start = first + turn * (UNROLL * R)
    begin = x.pointer + stripe_offset(stripe, blocks, outer_sizes, x.outer, C * RUN) + start.to(tl.int64) * X_STEP
    source = begin + (line.to(tl.int64) * (UNROLL * X_STEP) + column)
    some = thread * 0 + (stripe < stripes).to(tl.int32)
    if MASK_COLUMNS:
        some = some & (first_column(stripe, blocks, outer_sizes, C * RUN) + column < inner).to(tl.int32)
    for u in tl.static_range(UNROLL):
        inside = some
        if MASKED:
            inside = some & (start + line * UNROLL + u < length).to(tl.int32)
        place = ring + ((slot * UNROLL + u) * (R * C) + thread) * 16
        fetch(place, (source + u * X_STEP).to(tl.int64), inside, NEAR)
    inline_ptx("cp.async.commit_group; mov.u32 $0, 0;")


def held_stripe(dtype: tl.constexpr, slot, thread, ring, THREADS: tl.constexpr, UNROLL: tl.constexpr):
    """A turn's elements, RUN of each vector."""
    values = ()
    for u in tl.static_range(UNROLL):
        values = values + unpacked(load_shared(ring + ((slot * UNROLL + u) * THREADS + thread) * 16), dtype)
    return values


def of_column(xs, e: tl.constexpr, RUN: tl.constexpr, UNROLL: tl.constexpr):
    """A turn's elements of one of a thread's columns."""
    found = ()
    for u in tl.static_range(UNROLL):
        found = found + (xs[u * RUN + e],)
    return found


def line_masks(start, line, length, UNROLL: tl.constexpr):
    """Which of a turn's rows are there."""
    masks = ()
    for u in tl.static_range(UNROLL):
        masks = masks + (start + line * UNROLL + u < length,)
    return masks


def stripe_begun(
    xs, start, line, thread, length,
    R: tl.constexpr, RUN: tl.constexpr, UNROLL: tl.constexpr, MASKED: tl.constexpr,
):  # fmt: skip
    """Each column's state of a first turn."""
    states = ()
    if MASKED:
        masks = line_masks(start, line, length, UNROLL)
        for e in tl.static_range(RUN):
            states = states + LANE_BEGIN_MASKED(*masks, *of_column(xs, e, RUN, UNROLL))
    else:
        for e in tl.static_range(RUN):
            states = states + LANE_BEGIN(*of_column(xs, e, RUN, UNROLL))
    return states


def fields_of(states, e: tl.constexpr, FIELDS: tl.constexpr):
    """The state of one column."""
    found = ()
    for f in tl.static_range(FIELDS):
        found = found + (states[e * FIELDS + f],)
    return found


def absorbed_all(states, xs, RUN: tl.constexpr, UNROLL: tl.constexpr):
    """Each column's state with a further turn, of which every row is there."""
    FIELDS: tl.constexpr = len(states) // RUN
    made = ()
    for e in tl.static_range(RUN):
        made = made + LANE_ABSORB(*fields_of(states, e, FIELDS), *of_column(xs, e, RUN, UNROLL))
    return made


def absorbed_some(states, xs, masks, RUN: tl.constexpr, UNROLL: tl.constexpr):
    """Each column's state with those rows of a further turn that are there."""
    FIELDS: tl.constexpr = len(states) // RUN
    made = ()
    for e in tl.static_range(RUN):
        column = of_column(xs, e, RUN, UNROLL)
        made = made + LANE_ABSORB_MASKED(*masks, *fields_of(states, e, FIELDS), *column)
    return made


def stripe_absorbed(
    states, xs, start, line, thread, length,
    R: tl.constexpr, RUN: tl.constexpr, UNROLL: tl.constexpr, MASKED: tl.constexpr,
):  # fmt: skip
    """Each column's state with a further turn."""
    if MASKED:
        if start + UNROLL * R <= length:
            states = absorbed_all(states, xs, RUN, UNROLL)
        else:
            states = absorbed_some(states, xs, line_masks(start, line, length, UNROLL), RUN, UNROLL)
    else:
        states = absorbed_all(states, xs, RUN, UNROLL)
    return states


def of_neighbour(state, distance):
    """The state that the thread `distance` apart has."""
    found = ()
    for f in tl.static_range(len(state)):
        word = exchanged_word(tl.cast(state[f], tl.uint32, bitcast=True), distance)
        found = found + (tl.cast(word, state[f].dtype, bitcast=True),)
    return found


def either(upper, one, other):
    """The second of two states where `upper`."""
    found = ()
    for f in tl.static_range(len(one)):
        found = found + (tl.where(upper, other[f], one[f]),)
    return found


def shared_out(states, upper, distance, FIELDS: tl.constexpr):
    """Two threads' states of the same columns: each has half of these columns afterwards, `upper` ones the second half."""
    HALF: tl.constexpr = len(states) // FIELDS // 2
    made = ()
    for e in tl.static_range(HALF):
        one = fields_of(states, e, FIELDS)
        other = fields_of(states, e + HALF, FIELDS)
        made = made + COMBINE_SYMMETRIC(*either(upper, one, other), *of_neighbour(either(upper, other, one), distance))
    return made


def of_warps(states, thread, scratch, C: tl.constexpr, RUN: tl.constexpr, WARPS: tl.constexpr):
    """Combine the threads' states, RUN columns each, to one state of each of the program's columns: [C * RUN]."""
    FIELDS: tl.constexpr = len(states) // RUN
    COLUMNS: tl.constexpr = C * RUN
    column = thread % C * RUN
    for level in tl.static_range(5):
        if (C << level) < 32:
            distance = thread * 0 + (C << level)
            if len(states) > FIELDS:
                upper = thread & distance != 0
                column += tl.where(upper, len(states) // FIELDS // 2, 0)
                states = shared_out(states, upper, distance, FIELDS)
            else:
                states = COMBINE_SYMMETRIC(*states, *of_neighbour(states, distance))
    for f in tl.static_range(FIELDS):
        for e in tl.static_range(len(states) // FIELDS):
            at = (f * WARPS + thread // 32) * COLUMNS + column + e
            store_word(scratch + at * 4, tl.cast(states[e * FIELDS + f], tl.uint32, bitcast=True))
    tl.debug_barrier()
    found = ()
    for f in tl.static_range(FIELDS):
        at = (f * WARPS + tl.arange(0, WARPS)[:, None]) * COLUMNS + tl.arange(0, COLUMNS)[None, :]
        found = found + (tl.cast(load_word(scratch + at * 4), states[f].dtype, bitcast=True),)
    tl.debug_barrier()  # the reduction's own words take the same place
    return tl.reduce(found, 0, COMBINE_SYMMETRIC)


def taken_by(results, column, RUN: tl.constexpr, COLUMNS: tl.constexpr):
    """The results of each of a thread's columns: RUN tuples in one."""
    for r in tl.static_range(len(results)):
        write_own(r * COLUMNS + tl.arange(0, COLUMNS), tl.cast(results[r], tl.uint32, bitcast=True))
    tl.debug_barrier()
    taken = ()
    for e in tl.static_range(RUN):
        for r in tl.static_range(len(results)):
            taken = taken + (tl.cast(read_own(r * COLUMNS + column + e), results[r].dtype, bitcast=True),)
    return taken


def map_stripe(
    y_ptrs, y_begin, xs, taken, start, line, column, length, present,
    Y_STEP: tl.constexpr, RUN: tl.constexpr, UNROLL: tl.constexpr, MASKED: tl.constexpr,
):  # fmt: skip
    """Map a turn's elements and store the results."""
    RESULTS: tl.constexpr = len(taken) // RUN
    for u in tl.static_range(UNROLL):
        made = ()
        for e in tl.static_range(RUN):
            made = made + (APPLY(xs[u * RUN + e], *fields_of(taken, e, RESULTS)),)
        some = present
        if MASKED:
            some = some & (start + line * UNROLL + u < length).to(tl.int32)
        for r in tl.static_range(len(y_ptrs)):
            elements = ()
            for e in tl.static_range(RUN):
                elements = elements + (tl.broadcast_to(made[e][r], present.shape),)
            to = y_ptrs[r] + (y_begin + start.to(tl.int64) * Y_STEP) + (line.to(tl.int64) * (UNROLL * Y_STEP) + column)
            to = to + u * Y_STEP
            write(to.to(tl.int64), packed(elements, to.dtype.element_ty), some)


def map_stripes(
    x, y_ptrs, y_outer, outer_sizes, blocks, inner, length, stripes,
    X_STEP: tl.constexpr, Y_STEP: tl.constexpr, R: tl.constexpr, C: tl.constexpr, RUN: tl.constexpr, UNROLL: tl.constexpr,
    TURNS: tl.constexpr, DEPTH: tl.constexpr, MASKED: tl.constexpr, MASK_COLUMNS: tl.constexpr, CLUSTER: tl.constexpr,
    EXCHANGE: tl.constexpr, WAITING: tl.constexpr, RESERVED: tl.constexpr, PERSISTENT: tl.constexpr,
):  # fmt: skip
    """Fold and map stripes of C * RUN columns, each by CLUSTER programs, in TURNS turns of their rings of DEPTH turns.

    A program owns its part of the rows of one stripe, or with PERSISTENT of any number, one after another. It reads each
    element once, holds DEPTH turns in shared memory and a state a column in registers, and writes mapped elements in vectors.
    WAITING is PTX: it waits until all turns have come, or each.
    """
    COLUMNS: tl.constexpr = C * RUN
    split = tl.program_id(0) % CLUSTER
    cluster = tl.program_id(0) // CLUSTER
    clusters = tl.num_programs(0) // CLUSTER
    thread = thread_of(tl.arange(0, R * C))
    line = thread // C
    column = thread % C * RUN
    ring = memory() + RESERVED
    dtype: tl.constexpr = x.pointer.dtype.element_ty
    first = split * (TURNS * UNROLL * R)
    if CLUSTER > 1:
        begin_exchange(EXCHANGE)
    else:
        inline_ptx(EXCHANGE)
    for turn in range(DEPTH):
        fetch_stripe(
            x, cluster + turn // TURNS * clusters, turn % TURNS, turn, stripes, blocks, inner, first, line, column, thread,
            length, outer_sizes, ring, X_STEP, R, C, RUN, UNROLL, MASKED, MASK_COLUMNS, not PERSISTENT,
        )  # fmt: skip
    if CLUSTER > 1:
        others_have_begun()
    number = 0 * split
    oldest = 0 * split
    for stripe in range(cluster, stripes, clusters):
        y_begin = stripe_offset(stripe, blocks, outer_sizes, y_outer, COLUMNS)
        inline_ptx(tl.constexpr(WAITING[0]))
        xs = held_stripe(dtype, oldest, thread, ring, R * C, UNROLL)
        states = stripe_begun(xs, first, line, thread, length, R, RUN, UNROLL, MASKED)
        if len(WAITING) > 1:
            for turn in tl.static_range(1, TURNS):
                inline_ptx(tl.constexpr(WAITING[turn]))
                xs = held_stripe(dtype, (oldest + turn) % DEPTH, thread, ring, R * C, UNROLL)
                states = stripe_absorbed(
                    states, xs, first + turn * (UNROLL * R), line, thread, length, R, RUN, UNROLL, MASKED
                )
        else:
            for turn in range(1, TURNS):
                xs = held_stripe(dtype, (oldest + turn) % DEPTH, thread, ring, R * C, UNROLL)
                states = stripe_absorbed(
                    states, xs, first + turn * (UNROLL * R), line, thread, length, R, RUN, UNROLL, MASKED
                )
        whole = of_warps(states, thread, memory(), C, RUN, R * C // 32)
        if CLUSTER > 1:
            if PERSISTENT:
                whole = combine_cluster(whole, CLUSTER, COLUMNS, number)
            else:
                whole = combine_cluster(whole, CLUSTER, COLUMNS, None)
        taken = taken_by(PROJECT(*whole), column, RUN, COLUMNS)
        present = thread * 0 + 1
        if MASK_COLUMNS:
            present = present & (first_column(stripe, blocks, outer_sizes, COLUMNS) + column < inner).to(tl.int32)
        for turn in range(TURNS):
            slot = (oldest + turn) % DEPTH
            xs = held_stripe(dtype, slot, thread, ring, R * C, UNROLL)
            map_stripe(
                y_ptrs, y_begin, xs, taken, first + turn * (UNROLL * R), line, column, length, present, Y_STEP, RUN,
                UNROLL, MASKED,
            )  # fmt: skip
            if PERSISTENT:
                later = turn + DEPTH
                fetch_stripe(
                    x, stripe + later // TURNS * clusters, later % TURNS, slot, stripes, blocks, inner, first, line, column,
                    thread, length, outer_sizes, ring, X_STEP, R, C, RUN, UNROLL, MASKED, MASK_COLUMNS, not PERSISTENT,
                )  # fmt: skip
        number += 1
        oldest = (oldest + TURNS) % DEPTH
