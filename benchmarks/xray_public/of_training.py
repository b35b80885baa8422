"""Kernels of checkouts for training: flash-attention, Triton's tutorials, mamba, unsloth; each beside the same in torch."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import torch
import torch.nn.functional as F
from checkouts import module, tutorial
from compared import Case, gradients, normal

Checked = Iterator[tuple[Any, Any]]
Check = Callable[[], Checked]


def _norm(x: torch.Tensor, w: torch.Tensor, b: torch.Tensor | None = None, eps: float = 1e-6) -> torch.Tensor:
    """Layer norm, or without a bias the norm by the root of the mean square."""
    if b is not None:
        return F.layer_norm(x, (x.shape[-1],), w, b, eps)
    return x * torch.rsqrt(x.square().mean(-1, keepdim=True) + eps) * w


def _attention(
    q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, *, causal: bool, scale: float
) -> torch.Tensor:
    """[..., length, width] in float64."""
    q, k, v = q.double(), k.double(), v.double()
    score = q @ k.transpose(-1, -2) * scale
    if causal:
        score = score.masked_fill(torch.ones(score.shape[-2:]).triu(1).bool(), -torch.inf)
    return score.softmax(-1) @ v


def _rotated(x: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> torch.Tensor:
    """Halves of the last dim turned by an angle; cos and sin broadcast to half of it."""
    a, b = x.chunk(2, -1)
    return torch.cat([a * cos - b * sin, b * cos + a * sin], -1)


# flash-attention


def _flash_cross_entropy() -> Checked:
    target = torch.randint(0, 1000, (8,))
    call = module("flash_attn.ops.triton.cross_entropy").cross_entropy_loss
    return gradients(
        lambda x: call(x, target, logit_scale=0.125)[0],
        lambda x: F.cross_entropy(x * 0.125, target, reduction="none"), normal(8, 1000),
    )  # fmt: skip


def _flash_cross_entropy_smoothed() -> Checked:
    target = torch.randint(0, 700, (8,))
    target[2] = -100
    call = module("flash_attn.ops.triton.cross_entropy").cross_entropy_loss
    return gradients(
        lambda x: call(x, target, label_smoothing=0.1)[0],
        lambda x: F.cross_entropy(x, target, label_smoothing=0.1, reduction="none"), normal(8, 700),
    )  # fmt: skip


def _flash_layer_norm() -> Checked:
    call = module("flash_attn.ops.triton.layer_norm").layer_norm_fn
    return gradients(
        lambda x, w, b: call(x, w, b),
        lambda x, w, b: _norm(x, w, b),
        normal(16, 384),
        normal(384),
        normal(384),
    )


def _flash_rms_norm_residual() -> Checked:
    call = module("flash_attn.ops.triton.layer_norm").rms_norm_fn
    return gradients(
        lambda x, w, r: call(x, w, None, residual=r), lambda x, w, r: _norm(x + r, w),
        normal(16, 500), normal(500), normal(16, 500),
    )  # fmt: skip


def _flash_rotary() -> Checked:
    call = module("flash_attn.ops.triton.rotary").apply_rotary
    x, angle = normal(2, 20, 3, 64), torch.rand(20, 32)
    want = _rotated(x.double(), angle.double().cos()[:, None], angle.double().sin()[:, None])
    yield call(x, angle.cos(), angle.sin()), want


def _flash_rotary_interleaved() -> Checked:
    call = module("flash_attn.ops.triton.rotary").apply_rotary
    x, angle = normal(2, 20, 3, 64), torch.rand(20, 32)
    turned = torch.view_as_complex(x.double().reshape(2, 20, 3, 32, 2)) * torch.polar(
        torch.ones(20, 1, 32, dtype=torch.float64), angle.double()[:, None]
    )
    yield call(x, angle.cos(), angle.sin(), interleaved=True), torch.view_as_real(turned).reshape(x.shape)


def _flash_linear() -> Checked:
    call = module("flash_attn.ops.triton.linear").triton_linear_act
    x, w, b = normal(64, 64).half(), normal(96, 64).half(), normal(96).half()
    want = F.linear(x.double(), w.double(), b.double()).relu().square()
    yield call(x, w, b, activation="squared_relu", save_act_input=True)[0], want


def _flash_linear_gradient() -> Checked:
    call = module("flash_attn.ops.triton.linear").triton_dgrad_act
    up, w, kept = normal(64, 96).half(), normal(96, 64).half(), normal(64, 64).half()
    want = up.double() @ w.double() * 2 * kept.double().relu()
    yield call(up, w, activation="squared_relu", act_input=kept), want


def _flash_attention() -> Checked:
    at = module("flash_attn.flash_attn_triton")
    q, k, v = (normal(1, 128, 2, 64).half() for _ in range(3))
    out = at._flash_attn_forward(q, k, v, causal=True)[0]
    turned = [x.transpose(1, 2) for x in (q, k, v)]
    yield out, _attention(*turned, causal=True, scale=0.125).transpose(1, 2)


# Triton's tutorials


def _vector_add() -> Checked:
    x, y = normal(5000), normal(5000)
    yield tutorial("01-vector-add.py").add(x, y), x + y


def _softmax() -> Checked:
    at, x = tutorial("02-fused-softmax.py"), normal(12, 781)
    y = torch.empty_like(x)
    at.softmax_kernel[(4,)](y, x, 781, 781, 12, 781, BLOCK_SIZE=1024, num_stages=4, num_warps=8)
    yield y, x.double().softmax(-1)


def _matmul() -> Checked:
    a, b = normal(128, 128).half(), normal(128, 256).half()
    yield tutorial("03-matrix-multiplication.py").matmul(a, b), a.double() @ b.double()


def _matmul_leaky_relu() -> Checked:
    a, b = normal(70, 100).half(), normal(100, 90).half()
    got = tutorial("03-matrix-multiplication.py").matmul(a, b, activation="leaky_relu")
    yield got, F.leaky_relu(a.double() @ b.double())


def _dropout() -> Checked:
    x, kept = normal(3000), (torch.rand(3000) > 0.5).to(torch.int32)
    yield tutorial("04-low-memory-dropout.py").dropout(x, kept, 0.5), x.double() * kept * 2


def _seeded_dropout() -> Checked:
    x = normal(3000)
    got = tutorial("04-low-memory-dropout.py").seeded_dropout(x, p=0.5, seed=123)
    yield got, x.double() * 2 * (got != 0)


def _layer_norm() -> Checked:
    apply = tutorial("05-layer-norm.py").LayerNorm.apply
    right = lambda x, w, b: F.layer_norm(x, (600,), w, b, 1e-5)
    return gradients(
        lambda x, w, b: apply(x, (600,), w, b, 1e-5),
        right,
        normal(16, 600).half(),
        normal(600).half(),
        normal(600).half(),
    )


def _fused_attention() -> Checked:
    at = tutorial("06-fused-attention.py")
    at.supports_host_descriptor = lambda: (
        False
    )  # the X-ray takes tensors; descriptors are then made by the kernel
    apply = at._attention.apply
    right = lambda q, k, v: _attention(q, k, v, causal=True, scale=0.5)
    heads = [normal(1, 1, 256, 64).half() for _ in range(3)]
    return gradients(lambda q, k, v: apply(q, k, v, True, 0.5, False), right, *heads)


def _asin() -> Checked:
    at, x = tutorial("07-extern-functions.py"), torch.rand(3000)
    y = torch.empty_like(x)
    at.asin_kernel[(3,)](x, y, 3000, BLOCK_SIZE=1024)
    yield y, x.double().asin()


def _grouped_products() -> Checked:
    at = tutorial("08-grouped-gemm.py")
    a = [normal(64, 64).half(), normal(100, 64).half()]
    b = [normal(64, 80).half(), normal(64, 64).half()]
    for got, x, y in zip(at.group_gemm_fn(a, b), a, b, strict=True):
        yield got, x.double() @ y.double()


# mamba


def _mamba_layer_norm() -> Checked:
    call = module("mamba_ssm.ops.triton.layer_norm").layer_norm_fn
    return gradients(
        lambda x, w, b: call(x, w, b),
        lambda x, w, b: _norm(x, w, b),
        normal(16, 320),
        normal(320),
        normal(320),
    )


def _mamba_gated_norm() -> Checked:
    call = module("mamba_ssm.ops.triton.layernorm_gated").rmsnorm_fn
    return gradients(
        lambda x, w, z: call(x, w, None, z=z), lambda x, w, z: _norm(x, w) * F.silu(z),
        normal(16, 256), normal(256), normal(16, 256),
    )  # fmt: skip


def _mamba_swiglu() -> Checked:
    apply = module("mamba_ssm.ops.triton.k_activations").swiglu

    def right(xy: torch.Tensor) -> torch.Tensor:
        x, y = xy.chunk(2, -1)
        return F.silu(x) * y

    return gradients(apply, right, normal(8, 600))


def _mamba_state_update() -> Checked:
    at = module("mamba_ssm.ops.triton.selective_state_update")
    state, x, dt = normal(2, 64, 16), normal(2, 64), normal(2, 64)
    a, b, c, d, z = -torch.rand(64, 16), normal(2, 16), normal(2, 16), normal(64), normal(2, 64)
    wide = [t.double() for t in (state, x, dt, a, b, c, d, z)]
    want = at.selective_state_update_ref(*wide, dt_softplus=True)
    yield at.selective_state_update(state, x, dt, a, b, c, d, z, dt_softplus=True), want
    yield state, wide[0]


def _chunks() -> dict[str, torch.Tensor]:
    """Inputs of the state space model: a batch, 2 heads of 32, a group, states of 32, two chunks of 64."""
    return {
        "x": normal(1, 128, 2, 32).half(), "dt": torch.rand(1, 128, 2), "a": -torch.rand(2),
        "b": normal(1, 128, 1, 32).half(), "c": normal(1, 128, 1, 32).half(),
    }  # fmt: skip


def _by_chunks(x: torch.Tensor) -> torch.Tensor:
    return x.reshape(x.shape[0], 2, 64, *x.shape[2:])


def _mamba_chunk_cumsum() -> Checked:
    at, given = module("mamba_ssm.ops.triton.ssd_chunk_state"), _chunks()
    sums, dt = at._chunk_cumsum_fwd(given["dt"], given["a"], 64, dt_softplus=True)
    want = _by_chunks(F.softplus(given["dt"].double())).permute(0, 3, 1, 2)
    yield dt, want
    yield sums, (want * given["a"].double()[:, None, None]).cumsum(-1)


def _mamba_chunk_state() -> Checked:
    at, given = module("mamba_ssm.ops.triton.ssd_chunk_state"), _chunks()
    dt = _by_chunks(given["dt"]).permute(0, 3, 1, 2).contiguous()
    sums = (dt * given["a"][:, None, None]).cumsum(-1)
    got = at._chunk_state_fwd(given["b"], given["x"], dt, sums)
    weight = (sums[..., -1:] - sums).double().exp() * dt.double()
    b, x = _by_chunks(given["b"].double())[:, :, :, 0], _by_chunks(given["x"].double())
    yield got, torch.einsum("bcln,bhcl,bclhp->bchpn", b, weight, x)


def _mamba_products_of_chunks() -> Checked:
    at, given = module("mamba_ssm.ops.triton.ssd_bmm"), _chunks()
    got = at._bmm_chunk_fwd(given["c"], given["b"], 64)
    c, b = _by_chunks(given["c"].double()), _by_chunks(given["b"].double())
    yield got, torch.einsum("bclgn,bcsgn->bcgls", c, b)


def _mamba_state_passing() -> Checked:
    at = module("mamba_ssm.ops.triton.ssd_state_passing")
    states, decay = normal(1, 3, 2, 256), -torch.rand(1, 2, 3)
    out, last = at._state_passing_fwd(states, decay)[:2]
    held, kept = torch.zeros(1, 2, 256, dtype=torch.float64), []
    for n in range(3):
        kept.append(held)
        held = held * decay[:, :, n, None].double().exp() + states[:, n].double()
    yield out, torch.stack(kept, 1)
    yield last, held


def _mamba_chunk_scan() -> Checked:
    at, given = module("mamba_ssm.ops.triton.ssd_chunk_scan"), _chunks()
    dt = _by_chunks(given["dt"]).permute(0, 3, 1, 2).contiguous()
    sums = (dt * given["a"][:, None, None]).cumsum(-1)
    c, b = _by_chunks(given["c"]), _by_chunks(given["b"])
    products = torch.einsum("bclgn,bcsgn->bcgls", c, b).contiguous()
    before = normal(1, 2, 2, 32, 32)
    out = at._chunk_scan_fwd(products, given["x"], dt, sums, given["c"], before)[0]
    decay = (sums[..., :, None] - sums[..., None, :]).double().exp().tril()
    x = _by_chunks(given["x"].double())
    inside = torch.einsum("bcls,bhcls,bhcs,bcshp->bclhp", products[:, :, 0].double(), decay, dt.double(), x)
    carried = torch.einsum(
        "bcln,bchpn,bhcl->bclhp", c[:, :, :, 0].double(), before.double(), sums.double().exp()
    )
    yield out, (inside + carried).reshape(1, 128, 2, 32)


# unsloth


def _unsloth_cross_entropy() -> Checked:
    at, target = module("unsloth.kernels.cross_entropy_loss"), torch.randint(0, 900, (8,))
    call = lambda x: at.Fast_CrossEntropyLoss.apply(x, target, 0, 0)
    return gradients(call, lambda x: F.cross_entropy(x, target, reduction="none"), normal(8, 900))


def _unsloth_cross_entropy_softcap() -> Checked:
    at, target = module("unsloth.kernels.cross_entropy_loss"), torch.randint(0, 900, (4,))
    call = lambda x: at.Fast_CrossEntropyLoss.apply(x, target, 30.0, 0)
    right = lambda x: F.cross_entropy(30 * torch.tanh(x / 30), target, reduction="none")
    return gradients(call, right, normal(4, 900))


def _unsloth_cross_entropy_chunked() -> Checked:
    at, target = module("unsloth.kernels.cross_entropy_loss"), torch.randint(0, 70000, (2,))
    call = lambda x: at.Fast_CrossEntropyLoss.apply(x, target, 0, 0)
    x = normal(2, 70000)
    yield call(x), F.cross_entropy(x.double(), target, reduction="none")


def _unsloth_glu(
    file: str, forward: str, backward: str, right: Callable[[torch.Tensor], torch.Tensor]
) -> Check:
    def run() -> Checked:
        at = module(f"unsloth.kernels.{file}")
        e, g, up = (normal(1, 6, 400) for _ in range(3))
        wide = [t.double().requires_grad_() for t in (e, g)]
        want = right(wide[0]) * wide[1]
        yield getattr(at, forward)(e, g), want
        want.backward(up.double())
        flat = [t.clone().view(-1, 400) for t in (up, e, g)]
        h, _, de = getattr(at, backward)(*flat)
        assert wide[0].grad is not None
        yield h.view(1, 6, 400), want
        yield de.view(1, 6, 400), wide[0].grad

    return run


def _unsloth_layer_norm() -> Checked:
    apply = module("unsloth.kernels.layernorm").Fast_Layernorm.apply
    w, b = normal(500), normal(500)
    right = lambda x: _norm(x, w.double(), b.double(), 1e-5)
    return gradients(lambda x: apply(x, w, b, 1e-5), right, normal(8, 500))


def _unsloth_rms_norm() -> Checked:
    apply, w = module("unsloth.kernels.rms_layernorm").Fast_RMS_Layernorm.apply, normal(500)
    return gradients(lambda x: apply(x, w, 1e-6, False), lambda x: _norm(x, w.double()), normal(8, 500))


def _unsloth_gemma_norm() -> Checked:
    apply, w = module("unsloth.kernels.rms_layernorm").Fast_RMS_Layernorm.apply, normal(500)
    return gradients(lambda x: apply(x, w, 1e-6, True), lambda x: _norm(x, w.double() + 1), normal(8, 500))


def _unsloth_rope() -> Checked:
    at, angle = module("unsloth.kernels.rope_embedding"), torch.rand(16, 32).repeat(1, 2)
    right = lambda q: _rotated(
        q.transpose(1, 2), angle[:, :32].double().cos(), angle[:, :32].double().sin()
    ).transpose(1, 2)
    return gradients(
        lambda q: at.Fast_RoPE_Embedding.apply(q, angle.cos(), angle.sin()), right, normal(1, 16, 4, 64)
    )


def _unsloth_weight_dequant() -> Checked:
    at = module("unsloth.kernels.fp8")
    x, s = normal(200, 256).to(torch.float8_e4m3fn), torch.rand(2, 2)
    wide = s.double().repeat_interleave(128, 0)[:200].repeat_interleave(128, 1)
    yield at.weight_dequant_block(x, s, 128, torch.float32), x.double() * wide


def _unsloth_act_quant() -> Checked:
    at, x = module("unsloth.kernels.fp8"), normal(4, 256)
    _, s = at.act_quant(x)
    yield s, x.double().view(4, 2, 128).abs().amax(-1) / 448


CASES: dict[str, list[tuple[str, Check]]] = {
    "flash-attention": [
        ("cross_entropy", _flash_cross_entropy), ("cross_entropy_smoothed", _flash_cross_entropy_smoothed),
        ("layer_norm", _flash_layer_norm), ("rms_norm_residual", _flash_rms_norm_residual), ("rotary", _flash_rotary),
        ("rotary_interleaved", _flash_rotary_interleaved), ("linear", _flash_linear),
        ("linear_gradient", _flash_linear_gradient), ("attention", _flash_attention),
    ],
    "triton": [
        ("01_vector_add", _vector_add), ("02_softmax", _softmax), ("03_matmul", _matmul),
        ("03_matmul_leaky_relu", _matmul_leaky_relu), ("04_dropout", _dropout), ("04_seeded_dropout", _seeded_dropout),
        ("05_layer_norm", _layer_norm), ("06_fused_attention", _fused_attention), ("07_asin", _asin),
        ("08_grouped_products", _grouped_products),
    ],
    "mamba": [
        ("layer_norm", _mamba_layer_norm), ("gated_norm", _mamba_gated_norm), ("swiglu", _mamba_swiglu),
        ("state_update", _mamba_state_update), ("chunk_cumsum", _mamba_chunk_cumsum), ("chunk_state", _mamba_chunk_state),
        ("products_of_chunks", _mamba_products_of_chunks), ("state_passing", _mamba_state_passing),
        ("chunk_scan", _mamba_chunk_scan),
    ],
    "unsloth": [
        ("cross_entropy", _unsloth_cross_entropy), ("cross_entropy_softcap", _unsloth_cross_entropy_softcap),
        ("cross_entropy_chunked", _unsloth_cross_entropy_chunked),
        ("swiglu", _unsloth_glu("swiglu", "swiglu_fg_kernel", "swiglu_DWf_DW_dfg_kernel", F.silu)),
        ("geglu_exact", _unsloth_glu("geglu", "geglu_exact_forward_kernel", "geglu_exact_backward_kernel", F.gelu)),
        ("geglu_approx", _unsloth_glu(
            "geglu", "geglu_approx_forward_kernel", "geglu_approx_backward_kernel", lambda x: F.gelu(x, approximate="tanh")
        )),
        ("layer_norm", _unsloth_layer_norm), ("rms_norm", _unsloth_rms_norm), ("gemma_norm", _unsloth_gemma_norm),
        ("rope", _unsloth_rope), ("weight_dequant", _unsloth_weight_dequant), ("act_quant", _unsloth_act_quant),
    ],
}  # fmt: skip


def cases() -> list[Case]:
    """A case for each check."""
    return [Case(project, name, run) for project, checks in CASES.items() for name, run in checks]
