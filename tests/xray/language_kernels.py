"""Much of Triton's language, an operation a constant: each reaches instructions of its own."""

import triton
import triton.language as tl
from triton.language.extra import libdevice


@triton.jit
def larger(a, b):
    return tl.maximum(a, b)


@triton.jit
def unary(x_ptr, y_ptr, OP: tl.constexpr, BLOCK: tl.constexpr):
    offs = tl.arange(0, BLOCK)
    x = tl.load(x_ptr + offs)
    if OP == "exp":
        y = tl.exp(x)
    elif OP == "log2":
        y = tl.log2(x)
    elif OP == "rsqrt":
        y = tl.rsqrt(x)
    elif OP == "cos":
        y = tl.cos(x)
    elif OP == "sigmoid":
        y = tl.sigmoid(x)
    elif OP == "tanh":
        y = libdevice.tanh(x)
    elif OP == "pow":
        y = libdevice.pow(x, x)
    elif OP == "lgamma":
        y = libdevice.lgamma(x)
    elif OP == "expm1":
        y = libdevice.expm1(x)
    elif OP == "sqrt":
        y = tl.sqrt_rn(x)
    elif OP == "div":
        y = tl.div_rn(x, x + 2)
    elif OP == "floor":
        y = tl.floor(x)
    elif OP == "round":
        y = libdevice.round(x)
    elif OP == "clamp":
        y = tl.clamp(x, -1.0, 1.0)
    elif OP == "maximum":
        y = tl.maximum(x, -x, propagate_nan=tl.PropagateNan.ALL)
    elif OP == "positive":
        y = (x > 0).to(x.dtype)
    elif OP == "flip":
        y = tl.flip(x, 0)
    elif OP == "descending":
        y = tl.sort(x, descending=True)
    elif OP == "reversed":
        y = tl.cumsum(x, reverse=True)
    elif OP == "int64":
        y = x.to(tl.int64).to(x.dtype)
    elif OP == "uint32":
        y = x.to(tl.uint32).to(x.dtype)
    elif OP == "fp8":
        y = x.to(tl.float8e4nv).to(x.dtype)
    tl.store(y_ptr + offs, y)


@triton.jit
def binary(x_ptr, y_ptr, z_ptr, OP: tl.constexpr, BLOCK: tl.constexpr):
    offs = tl.arange(0, BLOCK)
    x, y = tl.load(x_ptr + offs), tl.load(y_ptr + offs)
    if OP == "div":
        z = x // y
    elif OP == "mod":
        z = x % y
    elif OP == "shl":
        z = x << (y & 7)
    elif OP == "shr":
        z = x >> (y & 7)
    elif OP == "mul":
        z = x * y
    elif OP == "max":
        z = tl.maximum(x, y)
    elif OP == "xor":
        z = x + tl.xor_sum(y, 0)
    elif OP == "cummax":
        z = tl.associative_scan(x, 0, larger)
    elif OP == "gather":
        z = tl.gather(x, (y & (BLOCK - 1)).to(tl.int32), 0)
    elif OP == "split":
        first, second = tl.split(tl.join(x, y))
        z = first - second
    elif OP == "half":
        z = x.to(tl.float16).to(x.dtype)
    tl.store(z_ptr + offs, z)


@triton.jit
def atomic(x_ptr, h_ptr, OP: tl.constexpr, SEM: tl.constexpr, BLOCK: tl.constexpr):
    offs = tl.arange(0, BLOCK)
    x = tl.load(x_ptr + offs)
    at = h_ptr + offs % 16
    if OP == "add":
        tl.atomic_add(at, x, sem=SEM)
    elif OP == "max":
        tl.atomic_max(at, x, sem=SEM)
    elif OP == "min":
        tl.atomic_min(at, x, sem=SEM)
    elif OP == "xor":
        tl.atomic_xor(at, x, sem=SEM)


@triton.jit
def layer_norm(x_ptr, w_ptr, b_ptr, y_ptr, n, BLOCK: tl.constexpr):
    row, offs = tl.program_id(0), tl.arange(0, BLOCK)
    mask = offs < n
    x = tl.load(x_ptr + row * n + offs, mask=mask, other=0.0).to(tl.float32)
    mean = tl.sum(x, 0) / n
    apart = tl.where(mask, x - mean, 0.0)
    scale = 1 / tl.sqrt(tl.sum(apart * apart, 0) / n + 1e-5)
    y = apart * scale * tl.load(w_ptr + offs, mask=mask) + tl.load(b_ptr + offs, mask=mask)
    tl.store(y_ptr + row * n + offs, y.to(y_ptr.dtype.element_ty), mask=mask)


@triton.jit
def counts(x_ptr, h_ptr, BLOCK: tl.constexpr):
    tl.store(h_ptr + tl.arange(0, 16), tl.histogram(tl.load(x_ptr + tl.arange(0, BLOCK)), 16))


@triton.jit
def branches(x_ptr, y_ptr, n, BLOCK: tl.constexpr):
    """Programs that go different ways, and a loop whose length is data."""
    pid = tl.program_id(0)
    if pid % 2 == 0:
        total, i = 0.0, 0
        while i < n:
            total += tl.load(x_ptr + i)
            i += 1
        tl.store(y_ptr + pid, total)
    else:
        x = tl.load(x_ptr + tl.arange(0, BLOCK))
        if tl.sum(x, 0) > 0:
            tl.store(y_ptr + pid, tl.max(x, 0))
        else:
            tl.store(y_ptr + pid, tl.min(x, 0))


@triton.jit
def locked(lock_ptr, x_ptr, y_ptr, BLOCK: tl.constexpr):
    while tl.atomic_cas(lock_ptr, 0, 1) == 1:
        pass
    offs = tl.arange(0, BLOCK)
    tl.store(y_ptr + offs, tl.load(y_ptr + offs) + tl.load(x_ptr + offs))
    tl.debug_barrier()
    tl.atomic_xchg(lock_ptr, 0)


@triton.jit
def randoms(y_ptr, seed, BLOCK: tl.constexpr):
    offs = tl.arange(0, BLOCK)
    tl.store(y_ptr + offs, tl.rand(seed, offs))


@triton.jit
def batched_product(a_ptr, b_ptr, c_ptr, B: tl.constexpr, M: tl.constexpr, N: tl.constexpr, K: tl.constexpr):
    batch = tl.arange(0, B)[:, None, None]
    a = tl.load(a_ptr + batch * M * K + tl.arange(0, M)[None, :, None] * K + tl.arange(0, K)[None, None, :])
    b = tl.load(b_ptr + batch * K * N + tl.arange(0, K)[None, :, None] * N + tl.arange(0, N)[None, None, :])
    at_c = batch * M * N + tl.arange(0, M)[None, :, None] * N + tl.arange(0, N)[None, None, :]
    tl.store(c_ptr + at_c, tl.dot(a, b))


@triton.jit
def scaled_product(a_ptr, sa_ptr, b_ptr, sb_ptr, c_ptr, M: tl.constexpr, N: tl.constexpr, K: tl.constexpr):
    offs_m, offs_n, offs_k, offs_s = tl.arange(0, M), tl.arange(0, N), tl.arange(0, K), tl.arange(0, K // 32)
    a = tl.load(a_ptr + offs_m[:, None] * K + offs_k[None, :])
    b = tl.load(b_ptr + offs_k[:, None] * N + offs_n[None, :])
    scale_a = tl.load(sa_ptr + offs_m[:, None] * (K // 32) + offs_s[None, :])
    scale_b = tl.load(sb_ptr + offs_n[:, None] * (K // 32) + offs_s[None, :])
    c = tl.dot_scaled(a, scale_a, "e5m2", b, scale_b, "e5m2")
    tl.store(c_ptr + offs_m[:, None] * N + offs_n[None, :], c)
