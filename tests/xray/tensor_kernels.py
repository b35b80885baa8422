"""Products of tiles: what reaches tensor cores, asynchronous copies and the tensor memory accelerator."""

import triton
import triton.language as tl


@triton.jit
def product(
    a_ptr, b_ptr, c_ptr, K, step_am, step_ak, step_bk, step_bn,
    M: tl.constexpr, N: tl.constexpr, BLOCK_K: tl.constexpr, PRECISION: tl.constexpr, STAGES: tl.constexpr,
):  # fmt: skip
    """c = a @ b for one tile; a step is 1 along the contiguous axis."""
    offs_m = tl.program_id(0) * M + tl.arange(0, M)
    offs_n = tl.program_id(1) * N + tl.arange(0, N)
    offs_k = tl.arange(0, BLOCK_K)
    at_a = a_ptr + offs_m[:, None] * step_am + offs_k[None, :] * step_ak
    at_b = b_ptr + offs_k[:, None] * step_bk + offs_n[None, :] * step_bn
    if c_ptr.dtype.element_ty == tl.int32:
        sums = tl.zeros((M, N), tl.int32)
    elif c_ptr.dtype.element_ty == tl.float64:
        sums = tl.zeros((M, N), tl.float64)
    else:
        sums = tl.zeros((M, N), tl.float32)
    for _ in tl.range(0, K, BLOCK_K, num_stages=STAGES):
        sums = tl.dot(tl.load(at_a), tl.load(at_b), sums, input_precision=PRECISION, out_dtype=sums.dtype)
        at_a += BLOCK_K * step_ak
        at_b += BLOCK_K * step_bk
    wide = N * tl.num_programs(1)
    tl.store(c_ptr + offs_m[:, None] * wide + offs_n[None, :], sums.to(c_ptr.dtype.element_ty))


@triton.jit
def product_epilogue(
    a_ptr, b_ptr, bias_ptr, c_ptr, m, n, k, M: tl.constexpr, N: tl.constexpr, K: tl.constexpr
):
    """relu(a @ b + bias), masked on all sides."""
    offs_m = tl.program_id(0) * M + tl.arange(0, M)
    offs_n = tl.program_id(1) * N + tl.arange(0, N)
    offs_k = tl.arange(0, K)
    in_m, in_n = offs_m[:, None] < m, offs_n[None, :] < n
    sums = tl.zeros((M, N), tl.float32)
    for start in range(0, k, K):
        a = tl.load(
            a_ptr + offs_m[:, None] * k + start + offs_k[None, :],
            mask=in_m & (start + offs_k[None, :] < k),
            other=0.0,
        )
        b = tl.load(
            b_ptr + (start + offs_k[:, None]) * n + offs_n[None, :],
            mask=in_n & (start + offs_k[:, None] < k),
            other=0.0,
        )
        sums = tl.dot(a, b, sums)
    bias = tl.load(bias_ptr + offs_n, mask=offs_n < n)
    sums = tl.maximum(sums + bias[None, :], 0.0)
    tl.store(c_ptr + offs_m[:, None] * n + offs_n[None, :], sums.to(c_ptr.dtype.element_ty), mask=in_m & in_n)


@triton.jit
def attention(q_ptr, k_ptr, v_ptr, o_ptr, n, D: tl.constexpr, M: tl.constexpr, N: tl.constexpr):
    """softmax(q @ k.T) @ v with the recurrence: a product whose left operand is made in registers."""
    offs_m, offs_n, offs_d = tl.arange(0, M), tl.arange(0, N), tl.arange(0, D)
    q = tl.load(q_ptr + offs_m[:, None] * D + offs_d[None, :])
    top = tl.full((M,), float("-inf"), tl.float32)
    total = tl.zeros((M,), tl.float32)
    sums = tl.zeros((M, D), tl.float32)
    for start in range(0, n, N):
        k = tl.load(k_ptr + (start + offs_n)[None, :] * D + offs_d[:, None])
        scores = tl.dot(q, k)
        higher = tl.maximum(top, tl.max(scores, 1))
        weights = tl.exp(scores - higher[:, None])
        scale = tl.exp(top - higher)
        total = total * scale + tl.sum(weights, 1)
        v = tl.load(v_ptr + (start + offs_n)[:, None] * D + offs_d[None, :])
        sums = tl.dot(weights.to(v.dtype), v, sums * scale[:, None])
        top = higher
    tl.store(o_ptr + offs_m[:, None] * D + offs_d[None, :], sums / total[:, None])


@triton.jit
def described_copy(x_ptr, y_ptr, m, n, M: tl.constexpr, N: tl.constexpr):
    """A tile through descriptors made on the device."""
    x = tl.make_tensor_descriptor(x_ptr, [m, n], [n, 1], [M, N])
    y = tl.make_tensor_descriptor(y_ptr, [m, n], [n, 1], [M, N])
    at = [tl.program_id(0) * M, tl.program_id(1) * N]
    y.store(at, x.load(at) + 1)


@triton.jit
def described_product(a, b, c, k, M: tl.constexpr, N: tl.constexpr, K: tl.constexpr, STAGES: tl.constexpr):
    """c = a @ b by descriptors made on the host."""
    at_m, at_n = tl.program_id(0) * M, tl.program_id(1) * N
    sums = tl.zeros((M, N), tl.float32)
    for start in tl.range(0, k, K, num_stages=STAGES):
        sums = tl.dot(a.load([at_m, start]), b.load([start, at_n]), sums)
    c.store([at_m, at_n], sums.to(c.dtype))


@triton.jit
def described_add(x, y, M: tl.constexpr, N: tl.constexpr):
    """y += x by the tensor memory accelerator's own reduction."""
    at = [tl.program_id(0) * M, tl.program_id(1) * N]
    y.atomic_add(at, x.load(at))


@triton.jit
def half_sums(a_ptr, b_ptr, c_ptr, M: tl.constexpr, N: tl.constexpr, K: tl.constexpr):
    """c = 2 a @ b with an accumulator of float16."""
    offs_m, offs_n, offs_k = tl.arange(0, M), tl.arange(0, N), tl.arange(0, K)
    a = tl.load(a_ptr + offs_m[:, None] * K + offs_k[None, :])
    b = tl.load(b_ptr + offs_k[:, None] * N + offs_n[None, :])
    sums = tl.dot(a, b, tl.dot(a, b, out_dtype=tl.float16), out_dtype=tl.float16)
    tl.store(c_ptr + offs_m[:, None] * N + offs_n[None, :], sums)
