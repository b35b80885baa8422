"""The kernel of short rows that no vector divides. Arguments and generated functions as in `tiles`.

Rows side by side are one run of memory: a program reads that of its rows in whole vectors, whoever's elements these are, and
each thread then takes its own rows' elements from shared memory (`tl.gather`).
"""

import triton.language as tl

from tilefold.backends.triton.kernels.tiles import begin_masked, begin_tile, store_results


def span_of(x, begin, end, SPAN: tl.constexpr, VECTOR: tl.constexpr, EVICT: tl.constexpr):
    """SPAN elements from `begin`, counted from the vector that the first result's lies in: whole vectors up to `end`."""
    at = tl.arange(0, SPAN)
    return tl.load(x[0] + begin + at, mask=at // VECTOR * VECTOR < end, eviction_policy=EVICT)


def rows_of_span(span, lead, BETWEEN: tl.constexpr, LENGTH: tl.constexpr, RUN: tl.constexpr, BLOCK_OUTPUTS: tl.constexpr):
    """[RUN, BLOCK_OUTPUTS]: elements of rows that begin BETWEEN apart; those beyond LENGTH are the last one again."""
    place = tl.minimum(tl.arange(0, RUN), LENGTH - 1)[:, None]
    index = lead + place + (tl.arange(0, BLOCK_OUTPUTS) * BETWEEN)[None, :]
    return tl.reshape(tl.gather(span, tl.reshape(index, (RUN * BLOCK_OUTPUTS,)), 0), (RUN, BLOCK_OUTPUTS))


def tree_down(state, LENGTH: tl.constexpr, ROWS: tl.constexpr, LEVELS: tl.constexpr):
    """Combine neighbours until one state a row is left: [LENGTH, ROWS] -> [ROWS], in order, inside registers."""
    for level in tl.static_range(LEVELS):
        halved = [tl.reshape(s, (LENGTH >> (level + 1), 2, ROWS)) for s in state]
        pairs = [tl.split(tl.permute(s, (0, 2, 1))) for s in halved]
        state = COMBINE(*[p[0] for p in pairs], *[p[1] for p in pairs])
    return [tl.reshape(s, (ROWS,)) for s in state]


def fold_gathered(
    inputs, y_ptrs, y_outer, y_output, p_outer, p_deep, p_folded, outer_sizes, deep_sizes, output_size, folded_size,
    length, chunk, splits, output_blocks, ragged, split_step,
    BLOCK_OUTPUTS: tl.constexpr, RUN: tl.constexpr, LEVELS: tl.constexpr, LENGTH: tl.constexpr, BETWEEN: tl.constexpr,
    SPAN: tl.constexpr, VECTOR: tl.constexpr, ORDERED: tl.constexpr, USE_ABSORB: tl.constexpr, EVICT: tl.constexpr,
    PARTIAL: tl.constexpr, WAIT: tl.constexpr, RELEASE: tl.constexpr,
):  # fmt: skip
    """Fold rows of LENGTH elements, of which neighbours begin BETWEEN apart: a program owns BLOCK_OUTPUTS of them.

    RUN is LENGTH, or the power of two above it: 2 ** LEVELS. A thread folds all elements of a row, in order; ORDERED as a
    tree of neighbours, as `in_order` does. SPAN elements, a power of two, hold the rows from any place in a VECTOR on.
    """
    if RELEASE:
        gdc_launch_dependents()
    block = tl.program_id(0).to(tl.int64)
    row = block * BLOCK_OUTPUTS + tl.arange(0, BLOCK_OUTPUTS)
    begin = block * (BLOCK_OUTPUTS * BETWEEN)
    if WAIT:
        gdc_wait()
    x = inputs[0]
    rows = tl.minimum(output_size - block * BLOCK_OUTPUTS, BLOCK_OUTPUTS)
    span = span_of(x, begin, x[1] + (rows - 1) * BETWEEN + LENGTH, SPAN, VECTOR, EVICT)
    elements = rows_of_span(span, x[1], BETWEEN, LENGTH, RUN, BLOCK_OUTPUTS)
    if ORDERED:
        place = tl.arange(0, RUN)[:, None]
        lifted = LIFT(elements, tl.broadcast_to(TO_INDEX(place * p_folded), elements.shape))
        if LENGTH < RUN:
            lifted = OR_IDENTITY(tl.broadcast_to(place < LENGTH, elements.shape), *lifted)
        state = tree_down(lifted, RUN, BLOCK_OUTPUTS, LEVELS)
    else:
        elements = tl.reshape(elements, (RUN, 1, BLOCK_OUTPUTS, 1))
        place = tl.arange(0, RUN)[:, None, None, None]
        position = tl.broadcast_to(TO_INDEX(place * p_folded), elements.shape)
        if LENGTH < RUN:
            mask = tl.broadcast_to(place < LENGTH, elements.shape)
            state = begin_masked(mask, [elements], position, USE_ABSORB, True)
        else:
            state = begin_tile([elements], position, USE_ABSORB, True)
        state = tl.reduce(state, 1 if LANES_LAST else 0, COMBINE_SYMMETRIC)
    store_results(y_ptrs, row * y_output, row < output_size, state, PARTIAL)
