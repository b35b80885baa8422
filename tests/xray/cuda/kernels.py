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


def xray_cases():
    return {
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
            "args": {"a_ptr": "*fp32", "b_ptr": "*fp32", "y_ptr": "*fp32"},
            "constants": {"BLOCK": 512},
        },
        "matmul": {
            "kernel": matmul,
            "args": {"a_ptr": "*fp16", "b_ptr": "*fp16", "c_ptr": "*fp32", "M": 64, "N": 64, "K": 96},
            "constants": {"BM": 64, "BN": 64, "BK": 32},
            "target": "sm_80",
        },
    }
