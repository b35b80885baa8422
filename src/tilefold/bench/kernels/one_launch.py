"""relu(a @ b) by split-K in one launch: the last program of a tile, known by a counter, finishes it. Row-major operands.

Counters, and the sums of `added`, are zero before a launch and after it. Two launches at once must not share them.
With CHAINED a launch begins beside the end of the one before, and waits for it there.
"""

import triton
import triton.language as tl
from triton.language.extra.cuda import gdc_launch_dependents, gdc_wait

from tilefold.bench.kernels.split_k import tile_sums


@triton.jit
def begin(CHAINED: tl.constexpr):
    """Wait for the launch before, and let the next one begin."""
    if CHAINED:
        gdc_wait()
        gdc_launch_dependents()


@triton.jit
def is_last(counters, splits):
    """Whether all other programs of the tile have written their parts: all of it is visible then."""
    tl.debug_barrier()  # one thread counts for all: their stores come before
    return tl.atomic_add(counters + tl.program_id(0), 1, sem="acq_rel") == splits - 1


@triton.jit
def counted(
    a_ptr, b_ptr, c_ptr, p_ptr, counters, M, N, K, chunk, SPLITS: tl.constexpr, LANES: tl.constexpr,
    BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr, CHAINED: tl.constexpr,
):  # fmt: skip
    """Partial products to memory, [tile, split, BLOCK_M, BLOCK_N]; the last program sums them, LANES splits at a time."""
    begin(CHAINED)
    sums, _, _ = tile_sums(a_ptr, b_ptr, M, N, K, chunk, BLOCK_M, BLOCK_N, BLOCK_K, "ieee")
    SIZE: tl.constexpr = BLOCK_M * BLOCK_N
    parts = p_ptr + tl.program_id(0) * (SPLITS * SIZE)
    place = tl.arange(0, BLOCK_M)[:, None] * BLOCK_N + tl.arange(0, BLOCK_N)[None, :]
    tl.store(parts + tl.program_id(1) * SIZE + place, sums)
    if is_last(counters, SPLITS):
        x = tl.arange(0, SIZE)  # flat: whole vectors of the tile as it lies in memory
        lanes = parts + tl.arange(0, LANES)[:, None] * SIZE + x[None, :]
        taken = tl.load(lanes, cache_modifier=".cg")
        for s in range(LANES, SPLITS, LANES):
            taken += tl.load(lanes + s * SIZE, cache_modifier=".cg")
        total = tl.sum(taken, 0)
        across = tl.cdiv(N, BLOCK_N)
        row = tl.program_id(0) // across * BLOCK_M + x // BLOCK_N
        column = tl.program_id(0) % across * BLOCK_N + x % BLOCK_N
        keep = (row < M) & (column < N)
        tl.store(c_ptr + row * N + column, tl.where(total < 0.0, 0.0, total), mask=keep)
        tl.store(counters + tl.program_id(0), 0)


@triton.jit
def added(
    a_ptr, b_ptr, c_ptr, sums_ptr, counters, M, N, K, chunk, SPLITS: tl.constexpr,
    BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr, CHAINED: tl.constexpr,
):  # fmt: skip
    """Partial products added to float32 sums [M, N] in no fixed order; the last program finishes and clears them."""
    begin(CHAINED)
    sums, m, n = tile_sums(a_ptr, b_ptr, M, N, K, chunk, BLOCK_M, BLOCK_N, BLOCK_K, "ieee")
    mask = (m < M) & (n < N)
    tl.atomic_add(sums_ptr + m * N + n, sums, mask=mask, sem="relaxed")
    if is_last(counters, SPLITS):
        total = tl.load(sums_ptr + m * N + n, mask=mask, other=0.0, cache_modifier=".cg")
        tl.store(c_ptr + m * N + n, tl.where(total < 0.0, 0.0, total), mask=mask)
        tl.store(sums_ptr + m * N + n, tl.zeros((BLOCK_M, BLOCK_N), tl.float32), mask=mask)
        tl.store(counters + tl.program_id(0), 0)
