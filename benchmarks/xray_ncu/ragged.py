"""Kernels whose loops and jumps depend on data, and others that a profiler counts differently from a text."""

import triton
import triton.language as tl


@triton.jit
def _linear(a, b, c, d):
    return a * c, b * c + d


@triton.jit
def recurrence(a_ptr, b_ptr, y_ptr, N: tl.constexpr):
    """y[i] = a[i] * y[i - 1] + b[i], a scan of pairs."""
    at = tl.program_id(0) * N + tl.arange(0, N)
    _, y = tl.associative_scan((tl.load(a_ptr + at), tl.load(b_ptr + at)), 0, _linear)
    tl.store(y_ptr + at, y)


@triton.jit
def ragged_sums(x_ptr, begins_ptr, y_ptr, BLOCK: tl.constexpr):
    """A row of its own length a program, walked by a `while`."""
    row, offs = tl.program_id(0), tl.arange(0, BLOCK)
    at, end = tl.load(begins_ptr + row), tl.load(begins_ptr + row + 1)
    sums = tl.zeros((BLOCK,), tl.float32)
    while at < end:
        sums += tl.load(x_ptr + at + offs, mask=at + offs < end, other=0.0)
        at += BLOCK
    tl.store(y_ptr + row, tl.sum(sums, 0))


@triton.jit
def buckets(x_ptr, counts_ptr, n, BLOCK: tl.constexpr, K: tl.constexpr):
    """Elements counted by their remainders."""
    offs = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    mask = offs < n
    x = tl.load(x_ptr + offs, mask=mask, other=0)
    tl.atomic_add(counts_ptr + x % K, 1, mask=mask, sem="relaxed")


@triton.jit
def rows_of_lengths(x_ptr, lengths_ptr, y_ptr, stride, BLOCK: tl.constexpr):
    """Maxima of the first elements of each row, by a `for` up to a length that is data."""
    row, offs = tl.program_id(0), tl.arange(0, BLOCK)
    length = tl.load(lengths_ptr + row)
    best = tl.full((BLOCK,), -float("inf"), tl.float32)
    for start in range(0, length, BLOCK):
        at = start + offs
        best = tl.maximum(best, tl.load(x_ptr + row * stride + at, mask=at < length, other=-float("inf")))
    tl.store(y_ptr + row, tl.max(best, 0))


@triton.jit
def bisected(x_ptr, sorted_ptr, y_ptr, n, BLOCK: tl.constexpr, STEPS: tl.constexpr):
    """Where each element stands in a sorted array: a loop of gathers."""
    offs = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    x = tl.load(x_ptr + offs)
    low, high = tl.zeros((BLOCK,), tl.int32), tl.zeros((BLOCK,), tl.int32) + n
    for _ in range(STEPS):
        middle = (low + high) // 2
        right = tl.load(sorted_ptr + middle, mask=middle < n, other=float("inf")) < x
        low, high = tl.where(right & (low < high), middle + 1, low), tl.where(right, high, middle)
    tl.store(y_ptr + offs, low)


@triton.jit
def persistent(x_ptr, y_ptr, n, BLOCK: tl.constexpr):
    """Blocks taken by turns, as many programs as there are."""
    for block in range(tl.program_id(0), tl.cdiv(n, BLOCK), tl.num_programs(0)):
        offs = block * BLOCK + tl.arange(0, BLOCK)
        mask = offs < n
        x = tl.load(x_ptr + offs, mask=mask)
        tl.store(y_ptr + offs, x / (1 + tl.exp(-x)), mask=mask)


@triton.jit
def collatz(x_ptr, y_ptr, BLOCK: tl.constexpr):
    """Steps until every element of the block has come to 1: a loop whose end no access tells."""
    offs = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    x, steps = tl.load(x_ptr + offs) + 1, tl.zeros((BLOCK,), tl.int32)
    while tl.max(x, 0) > 1:
        odd, done = x % 2 == 1, x == 1
        steps += tl.where(done, 0, 1)
        x = tl.where(done, 1, tl.where(odd, 3 * x + 1, x // 2))
    tl.store(y_ptr + offs, steps)


@triton.jit
def newton(x_ptr, y_ptr, n, steps, BLOCK: tl.constexpr):
    """A loop of arithmetic alone, as many turns as an argument says."""
    offs = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    mask = offs < n
    x = tl.abs(tl.load(x_ptr + offs, mask=mask, other=1.0)) + 1.0
    root = x
    for _ in range(steps):
        root = 0.5 * (root + x / root)
    tl.store(y_ptr + offs, root, mask=mask)


@triton.jit
def chosen(x_ptr, flags_ptr, y_ptr, N: tl.constexpr):
    """One of two computations a program, by a flag that is data."""
    row, offs = tl.program_id(0), tl.arange(0, N)
    x = tl.load(x_ptr + row * N + offs)
    if tl.load(flags_ptr + row) > 7:
        y = tl.cumsum(x, 0)
    else:
        y = x - tl.max(x, 0)
    tl.store(y_ptr + row * N + offs, y)


@triton.jit
def nearest(x_ptr, centres_ptr, at_ptr, sums_ptr, n, K: tl.constexpr, BLOCK: tl.constexpr):
    """Each element joins its nearest centre, and is added to that centre's sum."""
    offs = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    mask = offs < n
    x = tl.load(x_ptr + offs, mask=mask, other=0.0)
    centres = tl.load(centres_ptr + tl.arange(0, K))
    at = tl.argmin(tl.abs(x[:, None] - centres[None, :]), 1)
    tl.store(at_ptr + offs, at, mask=mask)
    tl.atomic_add(sums_ptr + at, x, mask=mask, sem="relaxed")


@triton.jit
def segment_adds(x_ptr, ids_ptr, y_ptr, n, columns, ROWS: tl.constexpr, COLUMNS: tl.constexpr):
    """Rows of a matrix added to rows of another by sorted ids."""
    rows, offs = tl.program_id(0) * ROWS + tl.arange(0, ROWS), tl.arange(0, COLUMNS)
    mask = (rows[:, None] < n) & (offs[None, :] < columns)
    x = tl.load(x_ptr + rows[:, None] * columns + offs[None, :], mask=mask, other=0.0)
    ids = tl.load(ids_ptr + rows, mask=rows < n, other=0)
    tl.atomic_add(y_ptr + ids[:, None] * columns + offs[None, :], x, mask=mask, sem="relaxed")


@triton.jit
def jagged_softmax(x_ptr, begins_ptr, y_ptr, BLOCK: tl.constexpr):
    """The softmax of rows of their own lengths, in two walks."""
    row, offs = tl.program_id(0), tl.arange(0, BLOCK)
    begin, end = tl.load(begins_ptr + row), tl.load(begins_ptr + row + 1)
    top, total = tl.full((BLOCK,), -float("inf"), tl.float32), tl.zeros((BLOCK,), tl.float32)
    at = begin
    while at < end:
        x = tl.load(x_ptr + at + offs, mask=at + offs < end, other=-float("inf"))
        higher = tl.maximum(tl.maximum(top, x), -1e30)
        total = total * tl.exp(top - higher) + tl.exp(x - higher)
        top = higher
        at += BLOCK
    highest = tl.max(top, 0)
    whole = tl.sum(total * tl.exp(top - highest), 0)
    for start in range(begin, end, BLOCK):
        mask = start + offs < end
        x = tl.load(x_ptr + start + offs, mask=mask)
        tl.store(y_ptr + start + offs, tl.exp(x - highest) / whole, mask=mask)


@triton.jit
def _since(a, fa, b, fb):
    return tl.where(fb > 0, b, a + b), tl.maximum(fa, fb)


@triton.jit
def sums_since(x_ptr, flags_ptr, y_ptr, M: tl.constexpr, N: tl.constexpr):
    """Sums of each row since its last flag: a scan of pairs of a tile."""
    at = (tl.program_id(0) * M + tl.arange(0, M))[:, None] * N + tl.arange(0, N)[None, :]
    y, _ = tl.associative_scan((tl.load(x_ptr + at), tl.load(flags_ptr + at) // 15), 1, _since)
    tl.store(y_ptr + at, y)


@triton.jit
def sparse_rows(values_ptr, columns_ptr, begins_ptr, v_ptr, y_ptr, BLOCK: tl.constexpr):
    """A sparse matrix times a vector, a row a program."""
    row, offs = tl.program_id(0), tl.arange(0, BLOCK)
    end = tl.load(begins_ptr + row + 1)
    sums = tl.zeros((BLOCK,), tl.float32)
    for start in range(tl.load(begins_ptr + row), end, BLOCK):
        mask = start + offs < end
        at = tl.load(columns_ptr + start + offs, mask=mask, other=0)
        sums += tl.load(values_ptr + start + offs, mask=mask, other=0.0) * tl.load(v_ptr + at)
    tl.store(y_ptr + row, tl.sum(sums, 0))


@triton.jit
def until_enough(x_ptr, y_ptr, n, limit, BLOCK: tl.constexpr):
    """How many blocks of a row it takes for the sum to pass a limit."""
    row, offs = tl.program_id(0), tl.arange(0, BLOCK)
    total, at = 0.0, 0
    while (at < n) & (total < limit):
        total += tl.sum(tl.abs(tl.load(x_ptr + row * n + at + offs, mask=at + offs < n, other=0.0)), 0)
        at += BLOCK
    tl.store(y_ptr + row, at)


@triton.jit
def by_turns(x_ptr, y_ptr, n, BLOCK: tl.constexpr):
    """Even programs sum their block, odd ones scan it."""
    offs = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    x = tl.load(x_ptr + offs, mask=offs < n, other=0.0)
    if tl.program_id(0) % 2 == 0:
        x = x / tl.sum(x, 0)
    else:
        x = tl.cumsum(x, 0)
    tl.store(y_ptr + offs, x, mask=offs < n)


@triton.jit
def tickets(keys_ptr, counts_ptr, old_ptr, n, BLOCK: tl.constexpr, K: tl.constexpr):
    """Each element takes a place among those of its key."""
    offs = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    mask = offs < n
    key = tl.load(keys_ptr + offs, mask=mask, other=0) // K
    tl.store(old_ptr + offs, tl.atomic_add(counts_ptr + key, 1, mask=mask), mask=mask)


@triton.jit
def halves_added(x_ptr, at_ptr, y_ptr, n, BLOCK: tl.constexpr):
    """Elements of 16 bits added where an index says: a loop of the machine."""
    offs = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    mask = offs < n
    at = tl.load(at_ptr + offs, mask=mask, other=0)
    tl.atomic_add(y_ptr + at, tl.load(x_ptr + offs, mask=mask, other=0.0), mask=mask, sem="relaxed")
