"""The sum of a whole array by one atomic operation a program, with each memory semantics."""

import triton
import triton.language as tl


@triton.jit
def sum_atomically(x_ptr, y_ptr, N, TILES: tl.constexpr, BLOCK: tl.constexpr, SEMANTICS: tl.constexpr):
    """A program sums TILES blocks of neighbours and adds its sum to y, which is zero before the launch."""
    start = tl.program_id(0).to(tl.int64) * (BLOCK * TILES)
    sums  = tl.zeros((BLOCK,), tl.float32)
    for tile in range(TILES):
        offs  = start + tile * BLOCK + tl.arange(0, BLOCK)
        sums += tl.load(x_ptr + offs, mask=offs < N, other=0.0).to(tl.float32)
    tl.atomic_add(y_ptr, tl.sum(sums), sem=SEMANTICS)
