"""The kernel of folds whose programs combine their results in memory. Arguments as in `tiles`; ATOMIC is generated."""

import triton.language as tl

from tilefold.backends.triton.kernels.tiles import begin_offset, fold_part, owned_results, program_place


def fold_atomically(
    inputs, y_ptrs, y_outer, y_output, p_outer, p_deep, p_reduced, outer_sizes, deep_sizes, output_size, reduced_size,
    length, chunk, splits, output_blocks, ragged, split_step,
    BLOCK_OUTPUTS: tl.constexpr, LANES: tl.constexpr, RUN: tl.constexpr, UNROLL: tl.constexpr, SPLIT: tl.constexpr,
    SPLITS_FIRST: tl.constexpr, MASK_OUTPUTS: tl.constexpr, ALIGN: tl.constexpr, HEAD: tl.constexpr, HAS_FULL: tl.constexpr,
    TAIL: tl.constexpr, PREFETCH: tl.constexpr, USE_ABSORB: tl.constexpr, IN_ORDER: tl.constexpr, WIDE: tl.constexpr,
    STAGES: tl.constexpr, EVICT: tl.constexpr, PARTIAL: tl.constexpr, WAIT: tl.constexpr, RELEASE: tl.constexpr,
    LENGTH: tl.constexpr, TAIL_ONCE: tl.constexpr, RAGGED: tl.constexpr, FLAT: tl.constexpr, SHIFT: tl.constexpr,
    VECTOR: tl.constexpr, DEEP: tl.constexpr, REDUCED: tl.constexpr, OVER: tl.constexpr,
):  # fmt: skip
    """Fold as `fold_lanes` does, and combine a program's results with the results of other programs, in whichever order
    they come: by one atomic operation each."""
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
    results = PROJECT(*folded)
    offset = begin_offset(outer, outer_sizes, y_outer, FLAT) + output * y_output
    ATOMIC(y_ptrs[0] + offset, results[0], stored)
