"""A transpose as it is first written: x is [M, N] and y [N, M], both row-major."""

import triton
import triton.language as tl


@triton.jit
def transpose_elements(x_ptr, y_ptr, M, N):
    """One element a program: each access moves a sector for it."""
    pid = tl.program_id(0).to(tl.int64)
    m, n = pid // N, pid % N
    tl.store(y_ptr + n * M + m, tl.load(x_ptr + pid))


@triton.jit
def transpose_strided(x_ptr, y_ptr, M, N, BLOCK: tl.constexpr):
    """A part of a row a program: neighbours are read, and each is written to a row of its own."""
    blocks = tl.cdiv(N, BLOCK)
    m      = (tl.program_id(0) // blocks).to(tl.int64)
    offs_n = (tl.program_id(0) % blocks).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    mask_n = offs_n < N
    x      = tl.load(x_ptr + m * N + offs_n, mask=mask_n)
    tl.store(y_ptr + offs_n * M + m, x, mask=mask_n)
