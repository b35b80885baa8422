"""Kernels of checkouts for serving: lightllm, vLLM, sglang, bitsandbytes; each beside the same in torch."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import torch
import torch.nn.functional as F
from checkouts import module
from compared import Case, normal

Checked = Iterator[tuple[Any, Any]]
Check = Callable[[], Checked]
_BASE = "lightllm.common.basemodel.triton_kernel"


def _rms(x: torch.Tensor, w: torch.Tensor, eps: float) -> torch.Tensor:
    x = x.double()
    return x * torch.rsqrt(x.square().mean(-1, keepdim=True) + eps) * w.double()


# lightllm


def _add_in_place() -> Checked:
    x, y = normal(3, 1000), normal(3, 1000)
    want = x + y * 0.5
    yield module(f"{_BASE}.add_in_place").add_in_place(x, y, alpha=0.5), want


def _copy_kv_index() -> Checked:
    table, requests = torch.zeros(4, 32, dtype=torch.int32), torch.tensor([2, 0, 3], dtype=torch.int32)
    lengths, places = torch.tensor([5, 32, 1], dtype=torch.int32), torch.tensor([7, 8, 9], dtype=torch.int32)
    want = table.clone()
    want[requests.long(), lengths.long() - 1] = places
    module(f"{_BASE}.copy_kv_index_to_req").copy_kv_index_to_req(table, requests, lengths, places)
    yield table, want


def _destindex_copy() -> Checked:
    k, out, places = normal(6, 6, 64).half(), torch.zeros(20, 6, 64).half(), torch.randperm(20)[:6].int()
    want = out.clone()
    want[places.long()] = k
    module(f"{_BASE}.destindex_copy_kv").destindex_copy_kv(k, places, out)
    yield out, want


def _destindex_quantize() -> Checked:
    k, places = normal(6, 6, 64).half(), torch.randperm(20)[:6].int()
    out, scale = torch.zeros(20, 6, 64, dtype=torch.int8), torch.zeros(20, 6, 1).half()
    module(f"{_BASE}.destindex_copy_kv").destindex_copy_quantize_kv(k, places, out, scale)
    want = k.double().abs().amax(-1, keepdim=True) / 127
    yield scale[places.long()], want


def _prefill_params() -> Checked:
    ready, lengths = torch.tensor([0, 3, 10], dtype=torch.int32), torch.tensor([5, 9, 30], dtype=torch.int32)
    got = module(f"{_BASE}.gen_prefill_params").gen_prefill_params(31, ready, lengths)
    places = torch.cat([torch.arange(int(a), int(b)) for a, b in zip(ready, lengths, strict=True)])
    yield got[1], F.pad((lengths - ready).cumsum(0), (1, 0))
    yield got[3], F.pad(lengths.cumsum(0), (1, 0))
    yield got[4], places


def _token_counter() -> Checked:
    ids, counter = torch.randint(0, 50, (700,)), torch.zeros(50, dtype=torch.int32)
    module(f"{_BASE}.gen_sampling_params").token_id_counter(ids, counter)
    yield counter, torch.bincount(ids, minlength=50)


def _token_counter_update() -> Checked:
    requests, ids = torch.tensor([0, 2, 1]).int(), torch.tensor([5, 5, 40])
    counter = torch.zeros(3, 50, dtype=torch.int32)
    want = counter.clone()
    want[requests.long(), ids] += 1
    module(f"{_BASE}.gen_sampling_params").update_req_to_token_id_counter(requests, ids, counter)
    yield counter, want


def _expert_counter() -> Checked:
    ids, counter = torch.randint(0, 16, (100, 8)), torch.zeros(16, dtype=torch.int64)
    module(f"{_BASE}.redundancy_topk_ids_repair").expert_id_counter(ids, counter)
    yield counter, torch.bincount(ids.flatten(), minlength=16)


def _quantized_product() -> Checked:
    at, x, w = module(f"{_BASE}.quantize_gemm_int8"), normal(64, 256).half(), normal(256, 64).half()
    a, a_scale = at.quantize_int8_perrow(x)
    want = x.double().abs().amax(-1) / 127
    yield a_scale, want
    b, b_scale = at.quantize_int8(w, axis=0)
    got = at.matmul_int8(a, a_scale, b, b_scale)
    right = (a.double() @ b.double()) * a_scale.double()[:, None] * b_scale.double()
    yield got, right


def _softmax_topk() -> Checked:
    x = normal(6, 60)
    want = x.double().softmax(-1).topk(4)
    got = module("lightllm.common.fused_moe.softmax_topk").softmax_topk(x, 4)
    yield got[0], want.values
    yield got[1], want.indices


def _embedding() -> Checked:
    weight, ids = normal(50, 100).half(), torch.randint(0, 50, (40,))
    out = torch.zeros(40, 100).half()
    module("lightllm.models.llama.triton_kernel.embedding").embedding(ids, weight, 0, 50, out)
    yield out, weight[ids]


def _llama_rms_norm() -> Checked:
    x, w = normal(8, 1000).half(), normal(1000).half()
    yield module("lightllm.models.llama.triton_kernel.rmsnorm").rmsnorm_forward(x, w, 1e-6), _rms(x, w, 1e-6)


def _silu_and_mul() -> Checked:
    x, out = normal(40, 400).half(), torch.zeros(40, 200).half()
    module("lightllm.models.llama.triton_kernel.silu_and_mul").silu_and_mul_fwd(x, out)
    a, b = x.double().chunk(2, -1)
    yield out, F.silu(a) * b


def _gelu_and_mul() -> Checked:
    x, out = normal(40, 400).half(), torch.zeros(40, 200).half()
    module("lightllm.models.gemma_2b.triton_kernel.gelu_and_mul").gelu_and_mul_fwd(x, out)
    a, b = x.double().chunk(2, -1)
    yield out, F.gelu(a, approximate="tanh") * b


def _rotary() -> Checked:
    q, k, angle = normal(20, 6, 64), normal(20, 2, 64), torch.rand(20, 32)
    cos, sin = angle.double().cos()[:, None], angle.double().sin()[:, None]

    def turned(x: torch.Tensor) -> torch.Tensor:
        a, b = x.double().chunk(2, -1)
        return torch.cat([a * cos - b * sin, a * sin + b * cos], -1)

    want = turned(q), turned(k)
    module("lightllm.models.llama.triton_kernel.rotary_emb").rotary_emb_fwd(q, k, angle.cos(), angle.sin())
    yield from zip((q, k), want, strict=True)


def _token_attention() -> Checked:
    """Scores, their softmax, and the sum of values: three kernels, for two requests of 50 and 33 tokens."""
    lengths, table = torch.tensor([50, 33]).int(), torch.randperm(100).view(2, 50).int()
    q, k, v = normal(2, 4, 64).half(), normal(100, 4, 64).half(), normal(100, 4, 64).half()
    starts, requests = torch.tensor([0, 50]).int(), torch.tensor([0, 1]).int()
    score, weight, out = torch.zeros(4, 83).half(), torch.zeros(4, 83).half(), torch.zeros(2, 4, 64).half()
    at = "lightllm.models.llama.triton_kernel.token_attention_nopad"
    module(f"{at}_att1").token_att_fwd(q, k, score, table, requests, starts, lengths, 50)
    right = [
        torch.einsum("hd,nhd->hn", q[r].double(), k[table[r, :n].long()].double()) / 8
        for r, n in enumerate(lengths.tolist())
    ]
    yield score, torch.cat(right, 1)
    module(f"{at}_softmax").token_softmax_fwd(score, starts, lengths, weight, 50)
    weights = [s.double().softmax(-1) for s in (score[:, :50], score[:, 50:])]
    yield weight, torch.cat(weights, 1)
    module(f"{at}_reduceV").token_att_fwd2(weight, v, out, table, requests, starts, lengths)
    values = [v[table[r, :n].long()].double() for r, n in enumerate(lengths.tolist())]
    got = [weight[:, :50].double(), weight[:, 50:].double()]
    yield out, torch.stack([torch.einsum("hn,nhd->hd", w, x) for w, x in zip(got, values, strict=True)])


def _flash_decoding() -> Checked:
    parts, scale = normal(2, 4, 3, 64), normal(2, 4, 3)
    lengths, out = torch.tensor([700, 300]).int(), torch.zeros(2, 4, 64)
    at = module("lightllm.models.llama.triton_kernel.flash_decoding_stage2")
    at.flash_decode_stage2(parts, scale, lengths, out, 256)
    scale[1, :, 2] = -torch.inf
    yield out, (scale.double().softmax(-1)[..., None] * parts.double()).sum(2)


def _bloom_layer_norm() -> Checked:
    x, w, b = normal(8, 600).half(), normal(600).half(), normal(600).half()
    at = module("lightllm.models.bloom.triton_kernel.layernorm")
    y = torch.empty_like(x)
    at._layer_norm_fwd_fused[(8,)](x, y, w, b, 600, 600, 1e-5, BLOCK_SIZE=1024, num_warps=4)
    yield y, F.layer_norm(x.double(), (600,), w.double(), b.double(), 1e-5)


def _weight_dequant() -> Checked:
    x, s = normal(200, 256).to(torch.float8_e4m3fn), torch.rand(2, 2)
    wide = s.double().repeat_interleave(128, 0)[:200].repeat_interleave(128, 1)
    got = module("lightllm.models.deepseek2.triton_kernel.weight_dequant").weight_dequant(x, s)
    yield got, x.double() * wide


def _vit_gelu() -> Checked:
    x = normal(3, 1000).half()
    at, y = module("lightllm.models.vit.triton_kernel.gelu_vit"), torch.empty(3, 1000).half()
    at.gelu_kernel[(3,)](y, x, 3000, BLOCK_SIZE=1024)
    yield y, F.gelu(x.double())


def _vit_rms_norm() -> Checked:
    x, w = normal(8, 500).half(), normal(500).half()
    at = module("lightllm.models.vit.triton_kernel.rms_norm_vit")
    yield at.rms_norm(x, w, 1e-6, use_custom_tensor_mananger=False), _rms(x, w, 1e-6)


# vLLM

_LAYERS = "vllm.model_executor.layers"


def _vllm_int8_rows() -> Checked:
    x = normal(6, 1000)
    q, scale = module(f"{_LAYERS}.quantization.utils.int8_utils").per_token_quant_int8(x)
    want = x.double().abs().amax(-1, keepdim=True) / 127
    yield scale, want
    yield q, (x.double() / want).round()


def _vllm_int8_groups() -> Checked:
    x = normal(6, 512)
    _, scale = module(f"{_LAYERS}.quantization.utils.int8_utils").per_token_group_quant_int8(x, 128)
    yield scale, x.double().view(6, 4, 128).abs().amax(-1) / 127


def _vllm_merged_attention() -> Checked:
    one, two, out = normal(6, 4, 80), normal(6, 4, 80), torch.empty(6, 4, 80)
    a, b, lse = normal(4, 6), normal(4, 6), torch.empty(4, 6)
    module("vllm.v1.attention.ops.triton_merge_attn_states").merge_attn_states(out, one, a, two, b, lse)
    weight = torch.stack([a, b]).double().softmax(0).transpose(1, 2)[..., None]
    yield out, weight[0] * one.double() + weight[1] * two.double()
    yield lse, torch.logaddexp(a.double(), b.double())


def _vllm_gated_norm() -> Checked:
    x, w, z = normal(8, 256), normal(256), normal(8, 256)
    got = module(f"{_LAYERS}.mamba.ops.layernorm_gated").rms_norm_gated(
        x, w, None, z=z, norm_before_gate=False
    )
    yield got, _rms(x.double() * F.silu(z.double()), w, 1e-6)


def _vllm_min_p() -> Checked:
    x, least = normal(4, 3000), torch.tensor([0.1, 0.0, 0.3, 0.02])
    order = torch.tensor([2, 0, 1, 3]).int()
    bound = x.amax(-1) + least[order.long()].log()
    want = torch.where(x < bound[:, None], -torch.inf, x)
    module("vllm.v1.worker.gpu.sample.min_p").apply_min_p(x, order, least)
    yield x, want


def _vllm_awq() -> Checked:
    at = module(f"{_LAYERS}.quantization.awq_triton")
    packed = torch.randint(-(2**31), 2**31 - 1, (64, 16), dtype=torch.int64).int()
    zeros = torch.randint(-(2**31), 2**31 - 1, (2, 16), dtype=torch.int64).int()
    scales = torch.rand(2, 128).half()
    order = torch.tensor([0, 4, 1, 5, 2, 6, 3, 7]) * 4

    def nibbles(x: torch.Tensor) -> torch.Tensor:
        return ((x[..., None] >> order) & 15).reshape(x.shape[0], -1).double()

    want = (nibbles(packed) - nibbles(zeros).repeat_interleave(32, 0)) * scales.double().repeat_interleave(
        32, 0
    )
    yield at.awq_dequantize_triton(packed, scales, zeros), want


def _vllm_scaled_product() -> Checked:
    at = module(f"{_LAYERS}.quantization.compressed_tensors.triton_scaled_mm")
    a, b = (
        torch.randint(-127, 127, (70, 256)).to(torch.int8),
        torch.randint(-127, 127, (256, 96)).to(torch.int8),
    )
    one, two = torch.rand(70, 1), torch.rand(96, 1)
    got = at.triton_scaled_mm(a, b, one, two, torch.float32, use_td=False)
    yield got, (a.double() @ b.double()) * one.double() * two.double().T


def _vllm_expert_sum() -> Checked:
    x, weight = normal(6, 4, 700), torch.rand(6, 4)
    got = module(f"{_LAYERS}.fused_moe.moe_fused_mul_sum").moe_fused_mul_sum(x, weight)
    yield got, (x.double() * weight.double()[..., None]).sum(1)


def _vllm_initial_states() -> Checked:
    state, rows = normal(9, 20, 30), torch.tensor([3, 0, 8, 5])
    held = torch.tensor([True, False, True, True])
    got = module(f"{_LAYERS}.mamba.ops.gather_initial_states").gather_initial_states(state, rows, held)
    yield got, state[rows] * held[:, None, None]


def _vllm_lora_shrink() -> Checked:
    """Tokens of two adapters, their inner dim split over four programs that add to one result."""
    at = module("vllm.lora.ops.triton_ops.lora_shrink_op")
    x, weight, out = normal(24, 256).half(), normal(2, 16, 256).half(), torch.zeros(1, 24, 16)
    adapter = torch.randint(0, 2, (24,))
    order, counts = adapter.argsort(stable=True).int(), torch.bincount(adapter, minlength=2).int()
    starts, ids = torch.nn.functional.pad(counts.cumsum(0), (1, 0)).int(), torch.tensor([0, 1]).int()
    at._lora_shrink_kernel[(4 * 2, 1, 2)](
        x, weight, out, 24, 16, 256, order, counts, starts, ids, 0.5, *x.stride(), *weight.stride(), *out.stride(),
        BLOCK_M=16, BLOCK_N=16, BLOCK_K=32, EVEN_K=True, SPLIT_K=4, GROUP_SIZE_M=8, SLICE_NUM=1, USE_GDC=False,
        launch_pdl=False, num_warps=4, num_stages=2,
    )  # fmt: skip
    yield out[0], torch.einsum("mk,mnk->mn", x.double(), weight[adapter].double()) * 0.5


# sglang


_OPS = "sglang.kernels.ops"


def _sglang_rms_norm() -> Checked:
    x, w = normal(8, 1000), normal(1000)
    yield module(f"{_OPS}.layernorm.rmsnorm_fp32").rmsnorm_fp32(x, w, 1e-6), _rms(x, w, 1e-6)


def _sglang_softcap() -> Checked:
    x = normal(4, 3000) * 20
    want = 30 * torch.tanh(x.double() / 30)
    yield module(f"{_OPS}.activation.softcap").softcap_inplace_logits(x, 30.0), want


def _sglang_gelu() -> Checked:
    x = normal(8, 1400)
    a, b = x.double().chunk(2, -1)
    yield module(f"{_OPS}.activation.gelu_and_mul_triton").gelu_and_mul_triton(x)[0], F.gelu(a) * b


def _sglang_merged() -> Checked:
    one, two, a, b = normal(6, 4, 80), normal(6, 4, 80), normal(6, 4), normal(6, 4)
    out, lse = module(f"{_OPS}.attention.merge_state").merge_state_triton(one, a, two, b)
    weight = torch.stack([a, b]).double().softmax(0)[..., None]
    yield out, weight[0] * one.double() + weight[1] * two.double()
    yield lse, torch.logaddexp(a.double(), b.double())


def _sglang_argmax() -> Checked:
    x = normal(4, 9000)
    got = module(f"{_OPS}.sampling.softcap_row_argmax").softcap_row_argmax(x, 30.0, 8990, 7)
    best = x[:, :8990].max(-1)
    yield got[:, 0], 30 * torch.tanh(best.values.double() / 30)
    yield got[:, 1], best.indices + 7


def _sglang_positions() -> Checked:
    before, lengths = torch.tensor([0, 3, 10]).int(), torch.tensor([5, 700, 30]).int()
    places, starts = module(f"{_OPS}.attention.position").compute_position_triton(before, lengths, 735)
    rows = zip(before.tolist(), lengths.tolist(), strict=True)
    yield places, torch.cat([torch.arange(a, a + n) for a, n in rows])
    yield starts, torch.tensor([0, 5, 705])


def _sglang_row_scale() -> Checked:
    x, scale = normal(6, 900), torch.rand(6, 1)
    got = module(f"{_OPS}.elementwise.row_scale").apply_log_scaling_tau(x, scale)
    yield got, x.double() * scale.double()


# bitsandbytes


def _bnb(name: str) -> Any:
    return module(f"bitsandbytes.backends.triton.{name}")


_NF4 = [
    -1.0, -0.6961928009986877, -0.5250730514526367, -0.39491748809814453, -0.28444138169288635, -0.18477343022823334,
    -0.09105003625154495, 0.0, 0.07958029955625534, 0.16093020141124725, 0.24611230194568634, 0.33791524171829224,
    0.44070982933044434, 0.5626170039176941, 0.7229568362236023, 1.0,
]  # fmt: skip


def _nf4() -> Checked:
    at, x = _bnb("kernels_4bit"), normal(40 * 64)
    size, out = torch.empty(40), torch.empty(40 * 32, 1, dtype=torch.uint8)
    at.quantize_4bit_blockwise_triton(x, 64, "nf4", 40, size, x.numel(), out)
    yield size, x.view(40, 64).abs().amax(-1)
    back = torch.empty(40 * 64)
    at.dequantize_4bit_impl(out, size, 64, "nf4", torch.float32, back)
    code = torch.tensor(_NF4, dtype=torch.float64)
    halves = torch.stack([out.flatten() >> 4, out.flatten() & 15], 1).flatten().long()
    yield back, code[halves] * size.double().repeat_interleave(64)
    near = (x.double().view(40, 64) / size.double()[:, None]).flatten()
    best = (near[:, None] - code).abs().amin(1)
    yield (near - code[halves]).abs(), best


def _eight_bits() -> Checked:
    at, x = _bnb("kernels_8bit_quant"), normal(30 * 256)
    code = torch.linspace(-1, 1, 256)
    size, out = torch.empty(30), torch.empty(30 * 256, dtype=torch.uint8)
    at.quantize_blockwise_triton(x, code, 256, size, out)
    yield size, x.view(30, 256).abs().amax(-1)
    back = at.dequant_8bit_blockwise(out, size, code, 256, dtype=torch.float32)
    yield back, code.double()[out.long()] * size.double().repeat_interleave(256)


def _optimizer(name: str, two: bool) -> Check:
    def run() -> Checked:
        p, g, one = normal(3000), normal(3000), normal(3000)
        other = torch.rand(3000) if two else None
        wide = [t.double() for t in (p, g, one)]
        if two:
            assert other is not None
            m = wide[2] * 0.9 + 0.1 * wide[1]
            r = other.double() * 0.99 + 0.01 * wide[1].square()
            step = 0.01 * (1 - 0.99**5) ** 0.5 / (1 - 0.9**5)
            want = wide[0] - step * m / (r.sqrt() + (1 - 0.99**5) ** 0.5 * 1e-8)
        else:
            m = wide[2] * 0.9 + wide[1]
            want = wide[0] - 0.01 * m
        _bnb("kernels_optim").optimizer_update_32bit_impl(
            name, g, p, one, other, None, 0.0, 0.0, 0.9, 0.99, 0.0, 0.0, 1e-8, 0.0, 5, 0.01, 1.0, False
        )
        yield one, m
        yield p, want

    return run


CASES: dict[str, list[tuple[str, Check]]] = {
    "lightllm": [
        ("add_in_place", _add_in_place), ("copy_kv_index_to_req", _copy_kv_index), ("destindex_copy_kv", _destindex_copy),
        ("destindex_copy_quantize_kv", _destindex_quantize), ("gen_prefill_params", _prefill_params),
        ("token_id_counter", _token_counter), ("token_id_counter_update", _token_counter_update),
        ("expert_id_counter", _expert_counter), ("quantize_gemm_int8", _quantized_product),
        ("softmax_topk", _softmax_topk), ("embedding", _embedding), ("llama_rmsnorm", _llama_rms_norm),
        ("silu_and_mul", _silu_and_mul), ("gelu_and_mul", _gelu_and_mul), ("rotary_emb", _rotary),
        ("token_attention", _token_attention), ("flash_decoding_stage2", _flash_decoding),
        ("bloom_layernorm", _bloom_layer_norm), ("weight_dequant", _weight_dequant), ("vit_gelu", _vit_gelu),
        ("vit_rms_norm", _vit_rms_norm),
    ],
    "vllm": [
        ("per_token_quant_int8", _vllm_int8_rows), ("per_token_group_quant_int8", _vllm_int8_groups),
        ("merge_attn_states", _vllm_merged_attention), ("rms_norm_gated", _vllm_gated_norm), ("min_p", _vllm_min_p),
        ("awq_dequantize", _vllm_awq),
        ("scaled_mm", _vllm_scaled_product), ("moe_fused_mul_sum", _vllm_expert_sum),
        ("gather_initial_states", _vllm_initial_states), ("lora_shrink", _vllm_lora_shrink),
    ],
    "sglang": [
        ("rmsnorm_fp32", _sglang_rms_norm), ("softcap", _sglang_softcap), ("gelu_and_mul", _sglang_gelu),
        ("merge_state", _sglang_merged), ("softcap_row_argmax", _sglang_argmax), ("compute_position", _sglang_positions),
        ("row_scale", _sglang_row_scale),
    ],
    "bitsandbytes": [
        ("nf4", _nf4), ("blockwise_8bit", _eight_bits), ("adam", _optimizer("adam", True)),
        ("momentum", _optimizer("momentum", False)),
    ],
}  # fmt: skip


def cases() -> list[Case]:
    """A case for each check."""
    return [Case(project, name, run) for project, checks in CASES.items() for name, run in checks]
