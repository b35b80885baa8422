"""The kernel of short results that no vector divides. Arguments and generated functions as in `tiles`.

Rows side by side, or groups of short columns, are one run of memory: a program reads that of its results in whole vectors,
and each thread then takes its own from shared memory (`tl.gather`).
"""

import triton.language as tl

from tilefold.backends.triton.kernels.tiles import begin_masked, begin_tile, store_results


def span_of(x, begin, end, SPAN: tl.constexpr, VECTOR: tl.constexpr, EVICT: tl.constexpr):
    """SPAN elements from `begin`, counted from the vector that the first result's lies in: whole vectors up to `end`."""
    at = tl.arange(0, SPAN)
    return tl.load(x.pointer + begin + at, mask=at // VECTOR * VECTOR < end, eviction_policy=EVICT)


def results_of_span(
    span, lead, BETWEEN: tl.constexpr, INNER: tl.constexpr, LENGTH: tl.constexpr, RUN: tl.constexpr, OWNED: tl.constexpr,
    BLOCK_OUTPUTS: tl.constexpr,
):  # fmt: skip
    """[RUN, BLOCK_OUTPUTS]: each result's elements; those beyond LENGTH, or of none owned, are the last one's again."""
    place = tl.minimum(tl.arange(0, RUN), LENGTH - 1)[:, None] * INNER
    result = tl.minimum(tl.arange(0, BLOCK_OUTPUTS), OWNED - 1)
    if INNER > 1:
        first = result // INNER * BETWEEN + result % INNER
    else:
        first = result * BETWEEN
    index = lead + place + first[None, :]
    return tl.reshape(tl.gather(span, tl.reshape(index, (RUN * BLOCK_OUTPUTS,)), 0), (RUN, BLOCK_OUTPUTS))


def tree_down(state, LENGTH: tl.constexpr, ROWS: tl.constexpr, LEVELS: tl.constexpr):
    """Combine neighbours until one state a row is left: [LENGTH, ROWS] -> [ROWS], in order, inside registers."""
    for level in tl.static_range(LEVELS):
        halved = [tl.reshape(s, (LENGTH >> (level + 1), 2, ROWS)) for s in state]
        pairs = [tl.split(tl.permute(s, (0, 2, 1))) for s in halved]
        state = COMBINE(*[p[0] for p in pairs], *[p[1] for p in pairs])
    return [tl.reshape(s, (ROWS,)) for s in state]


def store_turned(y_ptrs, y_step, block, groups, state, GROUPS: tl.constexpr, INNER: tl.constexpr, PARTIAL: tl.constexpr):
    """Write the results of GROUPS whole groups, `groups` of them there: one result of all groups side by side."""
    number, inner = tl.arange(0, GROUPS)[None, :], tl.arange(0, INNER)[:, None]
    turned = [tl.trans(tl.reshape(s, (GROUPS, INNER))) for s in state]
    store_results(y_ptrs, block * GROUPS + number + inner * y_step, number + inner * 0 < groups, turned, PARTIAL)


def fold_gathered(
    inputs, y, position, sizes, shares,
    BLOCK_OUTPUTS: tl.constexpr, OWNED: tl.constexpr, RUN: tl.constexpr, LEVELS: tl.constexpr, LENGTH: tl.constexpr,
    BETWEEN: tl.constexpr, INNER: tl.constexpr, EXTENT: tl.constexpr, SPAN: tl.constexpr, VECTOR: tl.constexpr,
    TURNED: tl.constexpr, ORDERED: tl.constexpr, USE_ABSORB: tl.constexpr, EVICT: tl.constexpr, PARTIAL: tl.constexpr,
    WAIT: tl.constexpr, RELEASE: tl.constexpr,
):  # fmt: skip
    """Fold results of LENGTH elements, INNER apart: groups of INNER results, EXTENT elements, begin BETWEEN apart.

    A program owns OWNED results, whole groups; BLOCK_OUTPUTS is the power of two above. It reads their elements once, as one
    run of memory, holds them in registers, and writes each result, or with PARTIAL its state. RUN is LENGTH, or the power of
    two above it: 2 ** LEVELS. A thread folds all elements of a result, in order; ORDERED as a tree of neighbours, as
    `in_order` does. SPAN elements, a power of two, hold them from any place in a VECTOR on. TURNED: results of one group lie
    `y.output` apart, and those of neighbouring groups side by side; otherwise all lie end to end.
    """
    if RELEASE:
        gdc_launch_dependents()
    block = tl.program_id(0).to(tl.int64)
    number = tl.arange(0, BLOCK_OUTPUTS)
    result = block * OWNED + number
    results = sizes.output
    if INNER > 1:
        results = sizes.outer[0][0] * INNER
    if WAIT:
        gdc_wait()
    x = inputs[0]
    GROUPS: tl.constexpr = OWNED // INNER
    groups = tl.minimum(results // INNER - block * GROUPS, GROUPS)
    end = x.shift + (groups - 1) * BETWEEN + EXTENT
    span = span_of(x, block * (GROUPS * BETWEEN), end, SPAN, VECTOR, EVICT)
    elements = results_of_span(span, x.shift, BETWEEN, INNER, LENGTH, RUN, OWNED, BLOCK_OUTPUTS)
    if ORDERED:
        place = tl.arange(0, RUN)[:, None]
        lifted = LIFT(elements, tl.broadcast_to(TO_INDEX(place * position.reduced), elements.shape))
        if LENGTH < RUN:
            lifted = OR_IDENTITY(tl.broadcast_to(place < LENGTH, elements.shape), *lifted)
        state = tree_down(lifted, RUN, BLOCK_OUTPUTS, LEVELS)
    else:
        elements = tl.reshape(elements, (RUN, 1, BLOCK_OUTPUTS, 1))
        place = tl.arange(0, RUN)[:, None, None, None]
        positions = tl.broadcast_to(TO_INDEX(place * position.reduced), elements.shape)
        if LENGTH < RUN:
            mask = tl.broadcast_to(place < LENGTH, elements.shape)
            state = begin_masked(mask, [elements], positions, USE_ABSORB, True)
        else:
            state = begin_tile([elements], positions, USE_ABSORB, True)
        state = tl.reduce(state, 1 if LANES_LAST else 0, COMBINE_SYMMETRIC)
    if TURNED and OWNED == BLOCK_OUTPUTS:
        store_turned(y.pointers, y.output, block, groups, state, GROUPS, INNER, PARTIAL)
    else:
        if TURNED:
            offset = result // INNER + result % INNER * y.output
        else:
            offset = result * y.output
        store_results(y.pointers, offset, (result < results) & (number < OWNED), state, PARTIAL)
