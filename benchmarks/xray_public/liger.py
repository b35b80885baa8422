"""Liger-Kernel's autograd functions, forward and backward, beside the same in torch."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Iterator
from typing import Any

import torch
import torch.nn.functional as F
from compared import Case, gradients, normal

PACKAGE = "liger-kernel"
Checked = Iterator[tuple[Any, Any]]


def _function(module: str, name: str) -> Any:
    return getattr(importlib.import_module(f"liger_kernel.ops.{module}"), f"Liger{name}Function")


def _rms_norm() -> Checked:
    apply = _function("rms_norm", "RMSNorm").apply
    return gradients(lambda x, w: apply(x, w, 1e-6), _rms, normal(8, 512), normal(512))


def _rms_norm_blocks() -> Checked:
    apply = _function("rms_norm", "RMSNorm").apply
    call = lambda x, w: apply(x, w, 1e-6, 0.0, "gemma", True, False)
    return gradients(call, _rms, normal(256, 128), normal(128))


def _rms(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
    return x * torch.rsqrt(x.square().mean(-1, keepdim=True) + 1e-6) * w


def _rms_norm_bf16() -> Checked:
    apply = _function("rms_norm", "RMSNorm").apply
    x, w = normal(4, 512, dtype=torch.bfloat16), normal(512, dtype=torch.bfloat16)
    return gradients(lambda x, w: apply(x, w, 1e-6), _rms, x, w)


def _fused_add_rms_norm() -> Checked:
    apply = _function("fused_add_rms_norm", "FusedAddRMSNorm").apply
    inputs = normal(8, 512), normal(8, 512), normal(512)
    return gradients(lambda x, r, w: apply(x, r, w, 1e-6)[0], lambda x, r, w: _rms(x + r, w), *inputs)


def _modulated_rms_norm() -> Checked:
    apply = _function("modulated_rms_norm", "ModulatedRMSNorm").apply
    right = lambda x, w, a, b: _rms(x, w) * (1 + a[:, None]) + b[:, None]
    return gradients(
        lambda x, w, a, b: apply(x, w, a, b, 1e-6), right,
        normal(2, 8, 256), normal(256), normal(2, 256), normal(2, 256),
    )  # fmt: skip


def _layer_norm() -> Checked:
    apply = _function("layer_norm", "LayerNorm").apply
    right = lambda x, w, b: F.layer_norm(x, (384,), w, b, 1e-5)
    return gradients(lambda x, w, b: apply(x, w, b, 1e-5), right, normal(16, 384), normal(384), normal(384))


def _group_norm() -> Checked:
    apply = _function("group_norm", "GroupNorm").apply
    return gradients(
        lambda x, w, b: apply(x, w, b, 8, 2, 1e-5), lambda x, w, b: F.group_norm(x, 2, w, b, 1e-5),
        normal(3, 8, 64), normal(8), normal(8),
    )  # fmt: skip


def _poly_norm() -> Checked:
    apply = _function("poly_norm", "PolyNorm").apply

    def right(x: torch.Tensor, w: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
        parts = [p * torch.rsqrt(p.square().mean(-1, keepdim=True) + 1e-6) for p in (x**3, x**2, x)]
        return w[0] * parts[0] + w[1] * parts[1] + w[2] * parts[2] + b

    return gradients(lambda x, w, b: apply(x, w, b, 1e-6), right, normal(8, 256), normal(3), normal())


def _dyt() -> Checked:
    apply = _function("dyt", "DyT").apply
    right = lambda x, a, g, b: torch.tanh(a * x) * g + b
    return gradients(apply, right, normal(16, 256), normal(1), normal(256), normal(256))


def _softmax() -> Checked:
    return gradients(_function("softmax", "Softmax").apply, lambda x: x.softmax(-1), normal(8, 700))


def _long_softmax() -> Checked:
    return gradients(_function("softmax", "Softmax").apply, lambda x: x.softmax(-1), normal(2, 20000))


def _sparsemax() -> Checked:
    def right(x: torch.Tensor) -> torch.Tensor:
        down = x.sort(-1, descending=True).values
        total = down.cumsum(-1) - 1
        size = torch.arange(1, x.shape[-1] + 1)
        kept = (down * size > total).sum(-1, keepdim=True)
        return (x - total.gather(-1, kept - 1) / kept).clamp(min=0)

    apply = _function("sparsemax", "Sparsemax").apply
    return gradients(lambda x: apply(x, -1), right, normal(8, 200))


def _swiglu() -> Checked:
    apply = _function("swiglu", "SiLUMul").apply
    return gradients(apply, lambda a, b: F.silu(a) * b, normal(8, 500), normal(8, 500))


def _fused_gate_up_swiglu() -> Checked:
    apply = _function("swiglu", "FusedGateUpSiLUMul").apply
    right = lambda y: F.silu(y[..., :256]) * y[..., 256:]
    return gradients(apply, right, normal(8, 512))


def _geglu() -> Checked:
    apply = _function("geglu", "GELUMul").apply
    return gradients(apply, lambda a, b: F.gelu(a, approximate="tanh") * b, normal(8, 500), normal(8, 500))


def _relu_squared() -> Checked:
    return gradients(_function("relu_squared", "ReLUSquared").apply, lambda x: x.relu() ** 2, normal(8, 500))


def _cross_entropy() -> Checked:
    target = torch.randint(0, 1000, (8,))
    apply = _function("cross_entropy", "CrossEntropy").apply
    call = lambda x: apply(x, target, None)[0]
    return gradients(call, lambda x: F.cross_entropy(x, target), normal(8, 1000))


def _cross_entropy_of_everything() -> Checked:
    target, weight = torch.randint(0, 300, (16,)), torch.rand(300) + 0.5
    target[3] = -100
    apply = _function("cross_entropy", "CrossEntropy").apply
    call = lambda x: apply(x, target, weight, -100, 0.0, 0.1, "mean", 20.0)[0]
    right = lambda x: F.cross_entropy(20 * torch.tanh(x / 20), target, weight.double(), label_smoothing=0.1)
    return gradients(call, right, normal(16, 300))


def _fused_linear_cross_entropy() -> Checked:
    target = torch.randint(0, 100, (16,))
    apply = _function("fused_linear_cross_entropy", "FusedLinearCrossEntropy").apply
    call = lambda x, w: apply(x, w, target)[0]
    return gradients(call, lambda x, w: F.cross_entropy(x @ w.T, target), normal(16, 64), normal(100, 64))


def _kl_div() -> Checked:
    y = normal(8, 300).softmax(-1)
    apply = _function("kl_div", "KLDivLoss").apply
    right = lambda x: F.kl_div(x, y.double(), reduction="batchmean")
    return gradients(lambda x: apply(x, y), right, normal(8, 300).log_softmax(-1))


def _jsd() -> Checked:
    q = normal(8, 300).log_softmax(-1)
    apply = _function("jsd", "JSD").apply

    def right(x: torch.Tensor) -> torch.Tensor:
        other = q.double()
        middle = torch.log((x.exp() + other.exp()) / 2)
        each = F.kl_div(middle, x, log_target=True, reduction="sum")
        return (each + F.kl_div(middle, other, log_target=True, reduction="sum")) / 2 / len(x)

    return gradients(lambda x: apply(x, q), right, normal(8, 300).log_softmax(-1))


def _tvd() -> Checked:
    q = normal(8, 300).softmax(-1)
    apply = _function("tvd", "TVDLoss").apply
    right = lambda p: (p - q.double()).abs().sum() / 2 / len(p)
    return gradients(lambda p: apply(p, q), right, normal(8, 300).softmax(-1))


def _rope() -> Checked:
    angles = torch.rand(1, 16, 32).repeat(1, 1, 2)
    cos, sin = angles.cos(), angles.sin()

    def right(x: torch.Tensor) -> torch.Tensor:
        half = torch.cat([-x[..., 32:], x[..., :32]], -1)
        return x * cos.double()[:, None] + half * sin.double()[:, None]

    apply = _function("rope", "Rope").apply
    return gradients(
        lambda q, k: torch.cat(apply(q, k, cos, sin), 1), lambda q, k: torch.cat([right(q), right(k)], 1),
        normal(2, 4, 16, 64), normal(2, 2, 16, 64),
    )  # fmt: skip


def _llama4_rope() -> Checked:
    turn = torch.polar(torch.ones(16, 32), torch.rand(16, 32))

    def right(x: torch.Tensor) -> torch.Tensor:
        held = torch.view_as_complex(x.reshape(*x.shape[:-1], 32, 2)) * turn[None, :, None].to(
            torch.complex128
        )
        return torch.view_as_real(held).reshape(x.shape)

    apply = _function("llama4_rope", "Llama4Rope").apply
    return gradients(
        lambda q, k: torch.cat(apply(q, k, turn), 2), lambda q, k: torch.cat([right(q), right(k)], 2),
        normal(2, 16, 4, 64), normal(2, 16, 2, 64),
    )  # fmt: skip


def _attention_residual() -> Checked:
    apply = _function("attn_res", "AttnRes").apply

    def right(v: torch.Tensor, q: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
        score = (_rms(v, w) * q).sum(-1).softmax(0)
        return (score[..., None] * v).sum(0)

    call = lambda v, q, w: apply(v, q, w, 1e-6)
    return gradients(call, right, normal(4, 2, 8, 128), normal(128), normal(128))


def _multi_token_attention() -> Checked:
    apply = _function("multi_token_attention", "MultiTokenAttention").apply

    def right(s: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
        above = torch.ones(16, 16).triu(1).bool()
        held = F.conv2d(s.masked_fill(above, -1e9).softmax(-1), w, padding=1)
        return held.masked_fill(above, 0)

    return gradients(lambda s, w: apply(s, w, None, 1, 1), right, normal(2, 2, 16, 16), normal(2, 2, 3, 3))


WRAPPERS: list[Callable[[], Checked]] = [
    _rms_norm, _rms_norm_blocks, _rms_norm_bf16, _fused_add_rms_norm, _modulated_rms_norm, _layer_norm,
    _group_norm, _poly_norm, _dyt, _softmax, _long_softmax, _sparsemax, _swiglu, _fused_gate_up_swiglu,
    _geglu, _relu_squared, _cross_entropy, _cross_entropy_of_everything, _fused_linear_cross_entropy, _kl_div,
    _jsd, _tvd, _rope, _llama4_rope, _attention_residual, _multi_token_attention,
]  # fmt: skip


def cases() -> list[Case]:
    """A case for each wrapper."""
    return [Case(PACKAGE, each.__name__[1:], each) for each in WRAPPERS]
