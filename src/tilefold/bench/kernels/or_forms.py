"""OR over a short last axis, in every form that a kernel's author would write: x is [M, N, K], y [M, N], row-major."""

import triton
import triton.language as tl


@triton.jit
def either(a, b):
    """The combine."""
    return a | b


@triton.jit
def or_reduce_3d(x_ptr, y_ptr, M, N, K: tl.constexpr, BLOCK: tl.constexpr):
    """`tl.reduce` over the last axis of a [BLOCK, BLOCK, K] tile; a program writes BLOCK x BLOCK results."""
    offs_m = (tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK))[:, None]
    offs_n = (tl.program_id(1).to(tl.int64) * BLOCK + tl.arange(0, BLOCK))[None, :]
    mask   = (offs_m < M) & (offs_n < N)
    offs   = (offs_m * N + offs_n)[:, :, None] * K + tl.arange(0, K)[None, None, :]
    tile   = tl.load(x_ptr + offs, mask=mask[:, :, None], other=0)
    tl.store(y_ptr + offs_m * N + offs_n, tl.reduce(tile, 2, either), mask=mask)


@triton.jit
def or_loads(x_ptr, y_ptr, M, N, K: tl.constexpr, BLOCK: tl.constexpr):
    """K loads with a stride of K, unrolled; a program writes BLOCK x BLOCK results."""
    offs_m = (tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK))[:, None]
    offs_n = (tl.program_id(1).to(tl.int64) * BLOCK + tl.arange(0, BLOCK))[None, :]
    mask   = (offs_m < M) & (offs_n < N)
    rows   = x_ptr + (offs_m * N + offs_n) * K
    state  = tl.load(rows, mask=mask, other=0)
    for k in tl.static_range(1, K):
        state |= tl.load(rows + k, mask=mask, other=0)
    tl.store(y_ptr + offs_m * N + offs_n, state, mask=mask)


@triton.jit
def or_reduce_flat(x_ptr, y_ptr, R, K: tl.constexpr, BLOCK: tl.constexpr):
    """`tl.reduce` over the last axis of a contiguous [BLOCK, K] tile of R rows; a program writes BLOCK results."""
    first = tl.program_id(0).to(tl.int64) * BLOCK
    offs  = tl.arange(0, BLOCK)
    mask  = first + offs < R
    tile  = tl.load(
        x_ptr + (first + offs)[:, None] * K + tl.arange(0, K)[None, :],
        mask=mask[:, None],
        other=0,
    )
    tl.store(y_ptr + first + offs, tl.reduce(tile, 1, either), mask=mask)


@triton.jit
def or_tree(x_ptr, y_ptr, R, K: tl.constexpr, LEVELS: tl.constexpr, BLOCK: tl.constexpr):
    """BLOCK * K contiguous elements of R rows, neighbours combined LEVELS times in registers; writes BLOCK results."""
    first = tl.program_id(0).to(tl.int64) * BLOCK
    offs  = tl.arange(0, BLOCK * K)
    state = tl.load(x_ptr + first * K + offs, mask=offs < (R - first) * K, other=0)
    for _ in tl.static_range(LEVELS):
        left, right = tl.split(tl.reshape(state, [state.shape[0] // 2, 2]))
        state = left | right
    rows = tl.arange(0, BLOCK)
    tl.store(y_ptr + first + rows, state, mask=first + rows < R)
