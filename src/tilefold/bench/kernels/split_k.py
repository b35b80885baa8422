"""Split-K written as others write it: partial products [S, M, N], then a reducer. a is [M, K], b [K, N], row-major."""

import triton
import triton.language as tl


@triton.jit
def tile_sums(
    a_ptr, b_ptr, M, N, K, chunk, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr, PRECISION: tl.constexpr
):  # fmt: skip
    """One tile of one split's products, and its rows and columns; `chunk` divides K, and BLOCK_K the chunk."""
    across = tl.cdiv(N, BLOCK_N)
    tile   = tl.program_id(0)
    split  = tl.program_id(1)
    offs_m = tile // across * BLOCK_M + tl.arange(0, BLOCK_M)
    offs_n = tile % across * BLOCK_N + tl.arange(0, BLOCK_N)
    offs_k = split * chunk + tl.arange(0, BLOCK_K)
    mask_m = (offs_m < M)[:, None]
    mask_n = (offs_n < N)[None, :]
    at_a   = a_ptr + offs_m[:, None] * K + offs_k[None, :]
    at_b   = b_ptr + offs_k[:, None] * N + offs_n[None, :]
    sums   = tl.zeros((BLOCK_M, BLOCK_N), tl.float32)
    for _ in range(0, chunk, BLOCK_K):
        a = tl.load(at_a, mask=mask_m, other=0.0)
        b = tl.load(at_b, mask=mask_n, other=0.0)
        sums = tl.dot(a, b, sums, input_precision=PRECISION)
        at_a += BLOCK_K
        at_b += BLOCK_K * N
    return sums, offs_m[:, None], offs_n[None, :]


@triton.jit
def partial_products(
    a_ptr, b_ptr, p_ptr, M, N, K, chunk,
    BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """A program writes one tile of one split's products."""
    sums, m, n = tile_sums(a_ptr, b_ptr, M, N, K, chunk, BLOCK_M, BLOCK_N, BLOCK_K, PRECISION)
    tl.store(p_ptr + tl.program_id(1) * M * N + m * N + n, sums, mask=(m < M) & (n < N))


@triton.jit
def reduce_serial(
    p_ptr, c_ptr, M, N, splits, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, RELU: tl.constexpr
):  # fmt: skip
    """A program owns a tile of results and walks the splits one after another."""
    across = tl.cdiv(N, BLOCK_N)
    offs_m = tl.program_id(0) // across * BLOCK_M + tl.arange(0, BLOCK_M)
    offs_n = tl.program_id(0) % across * BLOCK_N + tl.arange(0, BLOCK_N)
    mask   = (offs_m < M)[:, None] & (offs_n < N)[None, :]
    offs   = offs_m[:, None] * N + offs_n[None, :]
    sums   = tl.zeros((BLOCK_M, BLOCK_N), tl.float32)
    for split in range(splits):
        sums += tl.load(p_ptr + split * M * N + offs, mask=mask, other=0.0)
    if RELU:
        sums = tl.maximum(sums, 0.0)
    tl.store(c_ptr + offs, sums, mask=mask)


@triton.jit
def reduce_vector(p_ptr, c_ptr, outputs, SPLITS: tl.constexpr, BLOCK: tl.constexpr, RELU: tl.constexpr):
    """A program owns BLOCK neighbouring results and sums all splits of them at once: [BLOCK, SPLITS]."""
    offs = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    mask = offs < outputs
    part = tl.load(p_ptr + tl.arange(0, SPLITS)[None, :] * outputs + offs[:, None], mask=mask[:, None], other=0.0)
    sums = tl.sum(part, 1)
    if RELU:
        sums = tl.maximum(sums, 0.0)
    tl.store(c_ptr + offs, sums, mask=mask)
