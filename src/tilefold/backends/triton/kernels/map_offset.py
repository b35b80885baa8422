"""The kernel that holds a row in shared memory wherever it begins, reads it there an element at a time, and writes vectors.

A program, or each of a cluster of them, copies its share of one row to shared memory in vectors of 16 bytes (`cp.async`),
with the whole vectors at its ends. Shared memory is read from any offset: each thread takes RUN neighbours of the row, and
extra tensors' words are read beside them, which begin where rows do. The mapped element takes its place there, and
is stored in vectors; elements that share a vector with another share are stored one by one.

Every tensor here is [LANES], LANES the program's threads: each holds one number. LANE_BEGIN and LANE_ABSORB (also _MASKED)
take a turn's elements, a tensor each, into each thread's state.
"""

import triton.language as tl

from tilefold.backends.triton.kernels.clusters import begin_exchange, combine_cluster, others_have_begun
from tilefold.backends.triton.kernels.primitives import (
    fetch_span,
    inline_ptx,
    lead_of,
    memory,
    put,
    read_elements,
    row_offset,
    store_span,
    taken,
)


def placed(x, area, lead):
    """Where a share's first element lies in shared memory."""
    size: tl.constexpr = x.dtype.element_ty.primitive_bitwidth // 8
    return area + lead * size


def run_elements(x, base, at, number, AFTER: tl.constexpr, RUN: tl.constexpr, MASKED: tl.constexpr):
    """RUN neighbours of a row, AFTER elements behind a thread's first: those of the `number` that there are."""
    size: tl.constexpr = x.dtype.element_ty.primitive_bitwidth // 8
    values = ()
    for e in tl.static_range(RUN):
        some = (at + (AFTER + e) < number).to(tl.int32)
        values = values + (taken(base + at * size + (AFTER + e) * size, some, x.dtype.element_ty, MASKED),)
    return values


def turn_elements(
    inputs, bases, at, number, LANES: tl.constexpr, RUN: tl.constexpr, UNROLL: tl.constexpr, MASKED: tl.constexpr
):
    """A turn's elements of each input in turn: those from `at` on, which are `number` at most."""
    values = ()
    for i in tl.static_range(len(inputs)):
        for u in tl.static_range(UNROLL):
            values = values + run_elements(inputs[i].pointer, bases[i], at, number, u * LANES * RUN, RUN, MASKED)
    return values


def turn_masks(at, number, LANES: tl.constexpr, RUN: tl.constexpr, UNROLL: tl.constexpr):
    """Which of a turn's elements are there."""
    masks = ()
    for u in tl.static_range(UNROLL):
        for e in tl.static_range(RUN):
            masks = masks + (at + (u * LANES * RUN + e) < number,)
    return masks


def put_at(y, base, element, at, number, AFTER: tl.constexpr, MASKED: tl.constexpr):
    """Store a mapped element, AFTER elements behind a thread's first, at its place in shared memory."""
    size: tl.constexpr = y.dtype.element_ty.primitive_bitwidth // 8
    some = (at + AFTER < number).to(tl.int32)
    put(base + at * size + AFTER * size, element, some, y.dtype.element_ty, MASKED)


def turn_beside(
    extras, first, at, number, LANES: tl.constexpr, RUN: tl.constexpr, UNROLL: tl.constexpr, MASKED: tl.constexpr
):
    """A turn's elements of each extra tensor in turn; MASKED: those beyond the `number` that there are may be any."""
    beside = ()
    for i in tl.static_range(len(extras)):
        for u in tl.static_range(UNROLL):
            place = at + u * LANES * RUN
            if MASKED:
                place = tl.minimum(place, (number - 1) // RUN * RUN)
            x = extras[i].pointer + extras[i].shift + (first + place)
            beside = beside + read_elements(x.to(tl.int64), extras[i].pointer.dtype.element_ty, RUN)
    return beside


def map_offset_turn(
    xs, results, beside, y_ptrs, y_bases, at, number,
    LANES: tl.constexpr, RUN: tl.constexpr, UNROLL: tl.constexpr, MASKED: tl.constexpr, INPUTS: tl.constexpr,
    EXTRAS: tl.constexpr,
):  # fmt: skip
    """Map a turn's elements and put the results at their places in shared memory."""
    for u in tl.static_range(UNROLL):
        for e in tl.static_range(RUN):
            values = ()
            for i in tl.static_range(INPUTS):
                values = values + (xs[i * UNROLL * RUN + u * RUN + e],)
            for r in tl.static_range(len(results)):
                values = values + (results[r],)
            for i in tl.static_range(EXTRAS):
                values = values + (beside[i * UNROLL * RUN + u * RUN + e],)
            made = APPLY(*values)
            for r in tl.static_range(len(y_ptrs)):
                element = tl.broadcast_to(made[r], at.shape)
                put_at(y_ptrs[r], y_bases[r], element, at, number, u * LANES * RUN + e, MASKED)


def map_offset(
    inputs, extras, y, walk, length,
    LANES: tl.constexpr, RUN: tl.constexpr, UNROLL: tl.constexpr, TURNS: tl.constexpr,
    VECTORS: tl.constexpr, Y_VECTORS: tl.constexpr, AREAS: tl.constexpr, Y_AREAS: tl.constexpr, CLUSTER: tl.constexpr,
    EXCHANGE: tl.constexpr, SHARE: tl.constexpr, WAITING: tl.constexpr, RESERVED: tl.constexpr,
):  # fmt: skip
    """Fold and map a row by CLUSTER programs, SHARE elements each, in TURNS turns of UNROLL times RUN elements a thread.

    A program owns one share of a row. It reads each of its elements once, holds them in shared memory until they are mapped,
    and writes the results from there.

    VECTORS, Y_VECTORS: how many a thread copies of each tensor. AREAS, Y_AREAS: where each lies, RESERVED bytes behind the
    shared memory's start. WAITING is PTX that waits for the copies.
    """
    TURN: tl.constexpr = LANES * RUN * UNROLL
    split = tl.program_id(0) % CLUSTER
    row = tl.program_id(0) // CLUSTER
    thread = tl.arange(0, LANES)
    first = split * SHARE
    number = tl.minimum(length - first, SHARE)
    area = memory() + RESERVED
    if CLUSTER > 1:
        begin_exchange(EXCHANGE)
    bases = ()
    for i in tl.static_range(len(inputs)):
        begin = row_offset(inputs[i], row, walk, inputs[i].shift) + first
        lead = lead_of(inputs[i].pointer, begin, False)
        fetch_span(inputs[i].pointer, begin, lead, number, thread, area + AREAS[i], LANES, VECTORS[i])
        bases = bases + (placed(inputs[i].pointer, area + AREAS[i], lead),)
    y_begin = row_offset(y, row, walk) + first
    y_bases = ()
    for r in tl.static_range(len(y.pointers)):
        lead = lead_of(y.pointers[r], y_begin, False)
        y_bases = y_bases + (placed(y.pointers[r], area + Y_AREAS[r], lead),)
    if CLUSTER > 1:
        others_have_begun()
    at = thread * RUN
    ONE: tl.constexpr = TURNS == 1
    inline_ptx(WAITING)
    tl.debug_barrier()
    xs = turn_elements(inputs, bases, at, number, LANES, RUN, UNROLL, ONE)
    if ONE:
        state = LANE_BEGIN_MASKED(*turn_masks(at, number, LANES, RUN, UNROLL), *xs)
    else:
        state = LANE_BEGIN(*xs)
        for turn in range(1, TURNS - 1):
            xs = turn_elements(inputs, bases, at + turn * TURN, number, LANES, RUN, UNROLL, False)
            state = LANE_ABSORB(*state, *xs)
        last = at + (TURNS - 1) * TURN
        xs = turn_elements(inputs, bases, last, number, LANES, RUN, UNROLL, True)
        state = LANE_ABSORB_MASKED(*turn_masks(last, number, LANES, RUN, UNROLL), *state, *xs)
    whole = tl.reduce(state, 0, COMBINE_SYMMETRIC)
    if CLUSTER > 1:
        whole = combine_cluster(whole, CLUSTER, 1, None)
    results = PROJECT(*whole)
    INPUTS: tl.constexpr = len(inputs)
    EXTRAS: tl.constexpr = len(extras)
    for turn in range(TURNS - 1):
        here = at + turn * TURN
        xs = turn_elements(inputs, bases, here, number, LANES, RUN, UNROLL, False)
        beside = turn_beside(extras, first, here, number, LANES, RUN, UNROLL, False)
        map_offset_turn(xs, results, beside, y.pointers, y_bases, here, number, LANES, RUN, UNROLL, False, INPUTS, EXTRAS)
    end = at + (TURNS - 1) * TURN
    xs = turn_elements(inputs, bases, end, number, LANES, RUN, UNROLL, True)
    beside = turn_beside(extras, first, end, number, LANES, RUN, UNROLL, True)
    map_offset_turn(xs, results, beside, y.pointers, y_bases, end, number, LANES, RUN, UNROLL, True, INPUTS, EXTRAS)
    tl.debug_barrier()
    for r in tl.static_range(len(y.pointers)):
        lead = lead_of(y.pointers[r], y_begin, False)
        store_span(y.pointers[r], y_begin, lead, number, thread, area + Y_AREAS[r], LANES, Y_VECTORS[r], True)
