"""Kernels beside the case book's, each a form that a person would write in few lines of CUDA."""

import triton
import triton.language as tl


@triton.jit
def softmax(out_ptr, out_stride, x_ptr, x_stride, n, BLOCK: tl.constexpr):
    row = tl.program_id(0)
    offs = tl.arange(0, BLOCK)
    x = tl.load(x_ptr + row * x_stride + offs, mask=offs < n, other=float("-inf"))
    row_max = tl.max(x, 0)
    numerator = tl.exp(x - row_max)
    denominator = tl.sum(numerator, 0)
    tl.store(out_ptr + row * out_stride + offs, numerator / denominator, mask=offs < n)


@triton.jit
def layer_norm(x_ptr, y_ptr, w_ptr, b_ptr, stride, n, eps, BLOCK: tl.constexpr):
    row = tl.program_id(0)
    offs = tl.arange(0, BLOCK)
    mask = offs < n
    x = tl.load(x_ptr + row * stride + offs, mask=mask, other=0.0)
    mean = tl.sum(x, 0) / n
    centred = tl.where(mask, x - mean, 0.0)
    variance = tl.sum(centred * centred, 0) / n
    scale = 1 / tl.sqrt(variance + eps)
    w = tl.load(w_ptr + offs, mask=mask)
    b = tl.load(b_ptr + offs, mask=mask)
    tl.store(y_ptr + row * stride + offs, centred * scale * w + b, mask=mask)


@triton.jit
def transpose(x_ptr, y_ptr, m, n, BLOCK: tl.constexpr):
    offs_m = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    offs_n = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    inside = (offs_m[:, None] < m) & (offs_n[None, :] < n)
    tile = tl.load(x_ptr + offs_m[:, None] * n + offs_n[None, :], mask=inside)
    turned = (offs_n[:, None] < n) & (offs_m[None, :] < m)
    tl.store(y_ptr + offs_n[:, None] * m + offs_m[None, :], tl.trans(tile), mask=turned)


@triton.jit
def ragged(x_ptr, starts_ptr, y_ptr, BLOCK: tl.constexpr):
    row = tl.program_id(0)
    at = tl.load(starts_ptr + row)
    end = tl.load(starts_ptr + row + 1)
    total = tl.zeros([BLOCK], tl.float32)
    while at < end:
        offs = at + tl.arange(0, BLOCK)
        total += tl.load(x_ptr + offs, mask=offs < end, other=0.0)
        at += BLOCK
    tl.store(y_ptr + row, tl.sum(total, 0))


@triton.jit
def fold_of_a_fold(x_ptr, y_ptr, z_ptr, m, USE: tl.constexpr):
    rows = tl.arange(0, 32)
    x = tl.load(x_ptr + rows[:, None] * 4 + tl.arange(0, 4)[None, :])
    s = tl.sum(x, 1)
    total = 0.0
    if USE == "rounds":
        for k in range(m):
            total += tl.sum(s, 0) * k
    elif USE == "a branch":
        if m > 1:
            total = tl.sum(s, 0)
            tl.store(y_ptr + rows, s + total)
    else:
        total = tl.sum(s, 0)
        if USE == "a store":
            tl.store(y_ptr + rows, s)
        elif USE == "a maximum":
            total += tl.max(s, 0)
    tl.store(z_ptr, total)


@triton.jit
def compose(a0, b0, a1, b1):
    return a0 * a1, a1 * b0 + b1


@triton.jit
def recurrence(a_ptr, b_ptr, y_ptr, BLOCK: tl.constexpr):
    offs = tl.arange(0, BLOCK)
    _, b = tl.associative_scan((tl.load(a_ptr + offs), tl.load(b_ptr + offs)), 0, compose)
    tl.store(y_ptr + offs, b)


@triton.jit
def matmul(a_ptr, b_ptr, c_ptr, M, N, K, BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr):
    offs_m = tl.program_id(0) * BM + tl.arange(0, BM)
    offs_n = tl.program_id(1) * BN + tl.arange(0, BN)
    offs_k = tl.arange(0, BK)
    acc = tl.zeros([BM, BN], tl.float32)
    for k in range(0, K, BK):
        a = tl.load(a_ptr + offs_m[:, None] * K + (k + offs_k)[None, :])
        b = tl.load(b_ptr + (k + offs_k)[:, None] * N + offs_n[None, :])
        acc = tl.dot(a, b, acc)
    tl.store(c_ptr + offs_m[:, None] * N + offs_n[None, :], acc)


@triton.jit
def attention(q_ptr, k_ptr, v_ptr, o_ptr, n, scale, D: tl.constexpr, M: tl.constexpr, N: tl.constexpr):
    """softmax(scale q @ k.T) @ v by the recurrence over blocks of keys, fp16 in and fp32 out."""
    offs_m, offs_n, offs_d = tl.program_id(0) * M + tl.arange(0, M), tl.arange(0, N), tl.arange(0, D)
    q = tl.load(q_ptr + offs_m[:, None] * D + offs_d[None, :])
    top = tl.full((M,), float("-inf"), tl.float32)
    total = tl.zeros((M,), tl.float32)
    acc = tl.zeros((M, D), tl.float32)
    for start in range(0, n, N):
        inside = start + offs_n < n
        k = tl.load(k_ptr + (start + offs_n)[None, :] * D + offs_d[:, None], mask=inside[None, :], other=0.0)
        scores = tl.where(inside[None, :], tl.dot(q, k) * scale, float("-inf"))
        higher = tl.maximum(top, tl.max(scores, 1))
        weights = tl.exp(scores - higher[:, None])
        old = tl.exp(top - higher)
        total = total * old + tl.sum(weights, 1)
        v = tl.load(v_ptr + (start + offs_n)[:, None] * D + offs_d[None, :], mask=inside[:, None], other=0.0)
        acc = tl.dot(weights.to(v.dtype), v, acc * old[:, None])
        top = higher
    tl.store(o_ptr + offs_m[:, None] * D + offs_d[None, :], acc / total[:, None])


@triton.jit
def merge(mean0, sums0, count0, mean1, sums1, count1):
    """Two states of Welford's as one."""
    count = count0 + count1
    part = tl.where(count == 0.0, 0.0, count1 / count)
    step = mean1 - mean0
    return mean0 + step * part, sums0 + sums1 + step * step * count0 * part, count


@triton.jit
def welford_norm(x_ptr, y_ptr, stride, n, eps, BLOCK: tl.constexpr):
    """A LayerNorm whose mean and variance come from one fold of Welford's states."""
    row, offs = tl.program_id(0), tl.arange(0, BLOCK)
    mask = offs < n
    x = tl.load(x_ptr + row * stride + offs, mask=mask, other=0.0)
    mean, sums, count = tl.reduce((x, tl.zeros((BLOCK,), tl.float32), tl.where(mask, 1.0, 0.0)), 0, merge)
    y = (x - mean) * tl.rsqrt(sums / count + eps)
    tl.store(y_ptr + row * stride + offs, y, mask=mask)


@triton.jit
def dequant(q_ptr, scale_ptr, y_ptr, n, GROUP: tl.constexpr, BLOCK: tl.constexpr):
    """Numbers of four bits, two a byte, each group with a scale, as fp16."""
    offs = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    mask = offs < n
    packed = tl.load(q_ptr + offs // 2, mask=mask, other=0)
    number = ((packed >> (4 * (offs % 2)).to(tl.uint8)) & 15).to(tl.float32) - 8.0
    scale = tl.load(scale_ptr + offs // GROUP, mask=mask, other=0.0)
    tl.store(y_ptr + offs, (number * scale).to(tl.float16), mask=mask)


@triton.jit
def described(x_ptr, y_ptr, m, n, M: tl.constexpr, N: tl.constexpr):
    """A tile through tensor maps that are made on the device, plus one."""
    x = tl.make_tensor_descriptor(x_ptr, [m, n], [n, 1], [M, N])
    y = tl.make_tensor_descriptor(y_ptr, [m, n], [n, 1], [M, N])
    at = [tl.program_id(0) * M, tl.program_id(1) * N]
    y.store(at, x.load(at) + 1)


@triton.jit
def sines(x_ptr, y_ptr, n, BLOCK: tl.constexpr):
    """A function whose reduction of large angles has an array of each thread's own and a table."""
    offs = tl.arange(0, BLOCK)
    tl.store(y_ptr + offs, tl.sin(tl.load(x_ptr + offs, mask=offs < n) * 1e5), mask=offs < n)


@triton.jit
def numbers(x_ptr, y_ptr, a, b, c, d, e, f, BLOCK: tl.constexpr):
    """Whole numbers of every width as parameters."""
    offs = tl.arange(0, BLOCK)
    x = tl.load(x_ptr + offs)
    tl.store(y_ptr + offs, (x + a + b).to(tl.int64) * c + d - tl.where(f, e, 1))


@triton.jit
def others(x_ptr, y_ptr, n, BLOCK: tl.constexpr):
    offs = tl.arange(0, BLOCK)
    m = offs < n
    total = tl.zeros((BLOCK,), tl.float32)
    for k in tl.static_range(6):
        total += tl.load(x_ptr + k * BLOCK + offs, mask=m, other=1.5 + (k % 2))
    tl.store(y_ptr + offs, total)


def xray_cases():
    return {
        "numbers": {
            "kernel": numbers,
            "args": {
                "x_ptr": "*i32[128]",
                "y_ptr": "*i64[128]",
                "a": "i8:-3",
                "b": "i16:-300",
                "c": "i64:-5",
                "d": "i32:-7",
                "e": "u8:200",
                "f": "i1:1",
            },
            "constants": {"BLOCK": 128},
        },
        "softmax": {
            "kernel": softmax,
            "args": {
                "out_ptr": "*fp32[4000]",
                "out_stride": 781,
                "x_ptr": "*fp32[4000]",
                "x_stride": 781,
                "n": 781,
            },
            "constants": {"BLOCK": 1024},
            "grid": 3,
        },
        "layer norm": {
            "kernel": layer_norm,
            "args": {
                "x_ptr": "*fp32[4000]",
                "y_ptr": "*fp32[4000]",
                "w_ptr": "*fp32[781]",
                "b_ptr": "*fp32[781]",
                "stride": 781,
                "n": 781,
                "eps": "fp32:1e-5",
            },
            "constants": {"BLOCK": 1024},
            "grid": 3,
        },
        "tiled transpose": {
            "kernel": transpose,
            "args": {"x_ptr": "*fp32[6000]", "y_ptr": "*fp32[6000]", "m": 75, "n": 61},
            "constants": {"BLOCK": 32},
            "grid": (3, 2),
        },
        "ragged": {
            "kernel": ragged,
            "args": {"x_ptr": "*fp32[8192]", "starts_ptr": "*i32", "y_ptr": "*fp32"},
            "constants": {"BLOCK": 256},
            "grid": 4,
        },
        "scan of pairs": {
            "kernel": recurrence,
            "args": {"a_ptr": "*fp32[512]", "b_ptr": "*fp32[512]", "y_ptr": "*fp32[512]"},
            "constants": {"BLOCK": 512},
        },
        "matmul": {
            "kernel": matmul,
            "args": {"a_ptr": "*fp16", "b_ptr": "*fp16", "c_ptr": "*fp32", "M": 64, "N": 64, "K": 96},
            "constants": {"BM": 64, "BN": 64, "BK": 32},
            "target": "sm_80",
        },
        "matmul of four warps": {
            "kernel": matmul,
            "args": {
                "a_ptr": "*fp16[12288]",
                "b_ptr": "*fp16[12288]",
                "c_ptr": "*fp32[4096]",
                "M": 64,
                "N": 64,
                "K": 192,
            },
            "constants": {"BM": 64, "BN": 64, "BK": 64},
            "target": "sm_90",
        },
        "attention": {
            "kernel": attention,
            "args": {
                "q_ptr": "*fp16[8192]",
                "k_ptr": "*fp16[8192]",
                "v_ptr": "*fp16[8192]",
                "o_ptr": "*fp32[8192]",
                "n": 100,
                "scale": "fp32:0.125",
            },
            "constants": {"D": 64, "M": 64, "N": 32},
            "target": "sm_80",
        },
        "attention of four warps": {
            "kernel": attention,
            "args": {
                "q_ptr": "*fp16[8192]",
                "k_ptr": "*fp16[8192]",
                "v_ptr": "*fp16[8192]",
                "o_ptr": "*fp32[8192]",
                "n": 100,
                "scale": "fp32:0.125",
            },
            "constants": {"D": 64, "M": 64, "N": 64},
            "target": "sm_90",
        },
        "welford norm": {
            "kernel": welford_norm,
            "args": {
                "x_ptr": "*fp32[4000]",
                "y_ptr": "*fp32[4000]",
                "stride": 781,
                "n": 781,
                "eps": "fp32:1e-5",
            },
            "constants": {"BLOCK": 1024},
            "grid": 3,
        },
        "dequant": {
            "kernel": dequant,
            "args": {"q_ptr": "*u8[500]", "scale_ptr": "*fp32[40]", "y_ptr": "*fp16[1000]", "n": 1000},
            "constants": {"GROUP": 32, "BLOCK": 512},
            "grid": 2,
        },
        "described": {
            "kernel": described,
            "args": {"x_ptr": "*fp32[4096]", "y_ptr": "*fp32[4096]", "m": 64, "n": 64},
            "constants": {"M": 32, "N": 32},
            "grid": (2, 2),
        },
        "others": {
            "kernel": others,
            "args": {"x_ptr": "*fp32[768]", "y_ptr": "*fp32[128]", "n": 100},
            "constants": {"BLOCK": 128},
        },
        "sines": {
            "kernel": sines,
            "args": {"x_ptr": "*fp32[128]", "y_ptr": "*fp32[128]", "n": 100},
            "constants": {"BLOCK": 128},
        },
        **{
            f"fold of a fold with {use}": {
                "kernel": fold_of_a_fold,
                "args": {"x_ptr": "*fp32[128]", "y_ptr": "*fp32[32]", "z_ptr": "*fp32[1]", "m": 3},
                "constants": {"USE": use},
                "num_warps": 1,
            }
            for use in ("nothing", "a store", "a maximum", "a branch", "rounds")
        },
    }
