"""Kernels in the manner of Triton's tutorials, each with something of its own for a profiler to count."""

import triton
import triton.language as tl


@triton.jit
def vector_add(x_ptr, y_ptr, z_ptr, n, BLOCK: tl.constexpr):
    """The sum of two vectors, masked at the end."""
    offs = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    mask = offs < n
    tl.store(z_ptr + offs, tl.load(x_ptr + offs, mask=mask) + tl.load(y_ptr + offs, mask=mask), mask=mask)


@triton.jit
def strided_copy(x_ptr, y_ptr, step, BLOCK: tl.constexpr):
    """Every element from a sector of its own."""
    offs = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(y_ptr + offs, tl.load(x_ptr + offs * step))


@triton.jit
def fused_softmax(x_ptr, y_ptr, columns, BLOCK: tl.constexpr):
    """The softmax of one row a program."""
    row, offs = tl.program_id(0), tl.arange(0, BLOCK)
    x = tl.load(x_ptr + row * columns + offs, mask=offs < columns, other=-float("inf"))
    weights = tl.exp(x - tl.max(x, 0))
    tl.store(y_ptr + row * columns + offs, weights / tl.sum(weights, 0), mask=offs < columns)


@triton.jit
def layer_norm(x_ptr, w_ptr, b_ptr, y_ptr, mean_ptr, scale_ptr, columns, BLOCK: tl.constexpr):
    """The layer norm of one row a program, in three walks along it."""
    row, offs = tl.program_id(0), tl.arange(0, BLOCK)
    x_ptr += row * columns
    y_ptr += row * columns
    sums = tl.zeros((BLOCK,), tl.float32)
    for start in range(0, columns, BLOCK):
        at = start + offs
        sums += tl.load(x_ptr + at, mask=at < columns, other=0.0).to(tl.float32)
    mean = tl.sum(sums, 0) / columns
    squares = tl.zeros((BLOCK,), tl.float32)
    for start in range(0, columns, BLOCK):
        at = start + offs
        x = tl.load(x_ptr + at, mask=at < columns, other=0.0).to(tl.float32)
        apart = tl.where(at < columns, x - mean, 0.0)
        squares += apart * apart
    scale = 1 / tl.sqrt(tl.sum(squares, 0) / columns + 1e-5)
    tl.store(mean_ptr + row, mean)
    tl.store(scale_ptr + row, scale)
    for start in range(0, columns, BLOCK):
        at = start + offs
        mask = at < columns
        w, b = tl.load(w_ptr + at, mask=mask), tl.load(b_ptr + at, mask=mask)
        x = tl.load(x_ptr + at, mask=mask, other=0.0).to(tl.float32)
        tl.store(y_ptr + at, (x - mean) * scale * w + b, mask=mask)


@triton.jit
def rms_norm(x_ptr, w_ptr, y_ptr, N: tl.constexpr):
    """One row a program, divided by its root mean square; the row is a tile."""
    row, offs = tl.program_id(0), tl.arange(0, N)
    x = tl.load(x_ptr + row * N + offs).to(tl.float32)
    y = x * tl.rsqrt(tl.sum(x * x, 0) / N + 1e-6) * tl.load(w_ptr + offs)
    tl.store(y_ptr + row * N + offs, y.to(y_ptr.dtype.element_ty))


@triton.jit
def dropout(x_ptr, y_ptr, n, p, seed, BLOCK: tl.constexpr):
    """Elements kept with probability 1 - p, by random numbers made here."""
    offs = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    mask = offs < n
    kept = tl.rand(seed, offs) > p
    x = tl.load(x_ptr + offs, mask=mask)
    tl.store(y_ptr + offs, tl.where(kept, x / (1 - p), 0.0), mask=mask)


@triton.jit
def swiglu(gate_ptr, up_ptr, y_ptr, BLOCK: tl.constexpr):
    """silu(gate) * up."""
    offs = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    gate = tl.load(gate_ptr + offs).to(tl.float32)
    up = tl.load(up_ptr + offs).to(tl.float32)
    tl.store(y_ptr + offs, (gate * tl.sigmoid(gate) * up).to(y_ptr.dtype.element_ty))


@triton.jit
def transposed(x_ptr, y_ptr, rows, columns, M: tl.constexpr, N: tl.constexpr):
    """A tile read along rows and written along columns."""
    offs_m = tl.program_id(0) * M + tl.arange(0, M)
    offs_n = tl.program_id(1) * N + tl.arange(0, N)
    x = tl.load(x_ptr + offs_m[:, None] * columns + offs_n[None, :])
    tl.store(y_ptr + offs_n[:, None] * rows + offs_m[None, :], tl.trans(x))


@triton.jit
def column_sums(x_ptr, y_ptr, rows, columns, M: tl.constexpr, N: tl.constexpr):
    """Sums of N columns a program, walking down the rows."""
    offs_n = tl.program_id(0) * N + tl.arange(0, N)
    sums = tl.zeros((M, N), tl.float32)
    for start in range(0, rows, M):
        offs_m = start + tl.arange(0, M)
        mask = (offs_m[:, None] < rows) & (offs_n[None, :] < columns)
        sums += tl.load(x_ptr + offs_m[:, None] * columns + offs_n[None, :], mask=mask, other=0.0)
    tl.store(y_ptr + offs_n, tl.sum(sums, 0), mask=offs_n < columns)


@triton.jit
def row_extremes(x_ptr, y_ptr, at_ptr, M: tl.constexpr, N: tl.constexpr):
    """The largest element of each of M rows, and where it is."""
    offs_m, offs_n = tl.program_id(0) * M + tl.arange(0, M), tl.arange(0, N)
    x = tl.load(x_ptr + offs_m[:, None] * N + offs_n[None, :])
    largest, at = tl.max(x, 1, return_indices=True)
    tl.store(y_ptr + offs_m, largest)
    tl.store(at_ptr + offs_m, at)


@triton.jit
def running_sums(x_ptr, y_ptr, N: tl.constexpr):
    """Sums of all elements so far, of one row a program."""
    at = tl.program_id(0) * N + tl.arange(0, N)
    tl.store(y_ptr + at, tl.cumsum(tl.load(x_ptr + at), 0))


@triton.jit
def sorted_rows(x_ptr, y_ptr, N: tl.constexpr):
    """One row a program, sorted."""
    at = tl.program_id(0) * N + tl.arange(0, N)
    tl.store(y_ptr + at, tl.sort(tl.load(x_ptr + at)))


@triton.jit
def counted(x_ptr, counts_ptr, n, BLOCK: tl.constexpr):
    """A histogram by an atomic an element, to addresses that are data."""
    offs = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    mask = offs < n
    tl.atomic_add(counts_ptr + tl.load(x_ptr + offs, mask=mask, other=0), 1, mask=mask, sem="relaxed")


@triton.jit
def embedding(indices_ptr, table_ptr, y_ptr, N: tl.constexpr, ROWS: tl.constexpr):
    """Rows of a table, gathered by indices."""
    at = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    offs = tl.arange(0, N)
    rows = tl.load(indices_ptr + at)
    found = tl.load(table_ptr + rows[:, None] * N + offs[None, :])
    tl.store(y_ptr + at[:, None] * N + offs[None, :], found)


@triton.jit
def quantized(x_ptr, y_ptr, scale_ptr, N: tl.constexpr):
    """A row as bytes and a scale."""
    row, offs = tl.program_id(0), tl.arange(0, N)
    x = tl.load(x_ptr + row * N + offs).to(tl.float32)
    scale = tl.max(tl.abs(x), 0) / 127
    tl.store(y_ptr + row * N + offs, (x / scale).to(tl.int8))
    tl.store(scale_ptr + row, scale)


@triton.jit
def matmul(
    a_ptr, b_ptr, c_ptr, k, n,
    M: tl.constexpr, N: tl.constexpr, K: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """The product of a and b, a tile a program, without masks."""
    offs_m = tl.program_id(0) * M + tl.arange(0, M)
    offs_n = tl.program_id(1) * N + tl.arange(0, N)
    offs_k = tl.arange(0, K)
    at_a = a_ptr + offs_m[:, None] * k + offs_k[None, :]
    at_b = b_ptr + offs_k[:, None] * n + offs_n[None, :]
    sums = tl.zeros((M, N), tl.float32)
    for _ in range(0, k, K):
        sums = tl.dot(tl.load(at_a), tl.load(at_b), sums, input_precision=PRECISION)
        at_a += K
        at_b += K * n
    tl.store(c_ptr + offs_m[:, None] * n + offs_n[None, :], sums.to(c_ptr.dtype.element_ty))


@triton.jit
def attention(q_ptr, k_ptr, v_ptr, o_ptr, n, D: tl.constexpr, M: tl.constexpr, N: tl.constexpr):
    """softmax(q @ k.T) @ v, M queries a program, N keys a step."""
    offs_m, offs_n, offs_d = tl.program_id(0) * M + tl.arange(0, M), tl.arange(0, N), tl.arange(0, D)
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
