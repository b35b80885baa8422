"""Faults put into kernels of others: text of a checkout's file replaced, the copy run, the X-ray asked whether it says so."""

from __future__ import annotations

import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import torch
from checkouts import edited
from compared import normal
from launches import captured, claim, records

from tilefold import xray


@dataclass(frozen=True)
class Plant:
    """`changes` of the file `module` put a fault there, of which the X-ray's word is `code`; `run` launches the kernel, or
    gives a report of it. `line`: a part of the line where it must be said (by default of the first text put in)."""

    name: str
    package: str
    module: str
    changes: tuple[tuple[str, str], ...]
    code: str
    run: Callable[[ModuleType], Any]
    line: str = ""


def _add(at: ModuleType) -> None:
    at.add(normal(5000), normal(5000))


def _add_whole(at: ModuleType) -> None:
    at.add(normal(4096), normal(4096))


def _glu(at: ModuleType) -> None:
    at.swiglu_fg_kernel(normal(1, 6, 400), normal(1, 6, 400))


def _rms(at: ModuleType) -> None:
    at.rmsnorm_fp32(normal(8, 1024), normal(1024), 1e-6)


def _product(at: ModuleType) -> None:
    at.matmul(normal(128, 128).half(), normal(128, 256).half())


def _copy_index(at: ModuleType) -> None:
    at.copy_kv_index_to_req(
        torch.zeros(4, 32, dtype=torch.int32), torch.tensor([2, 0, 3]).int(), torch.tensor([5, 32, 1]).int(),
        torch.tensor([7, 8, 9]).int(),
    )  # fmt: skip


def _cross_entropy(at: ModuleType) -> None:
    at.cross_entropy_loss(-normal(8, 1000).abs(), torch.randint(0, 1000, (8,)))


def _bloom(at: ModuleType, columns: int = 600) -> None:
    x, w, b = normal(8, columns), normal(columns), normal(columns)
    y = torch.empty_like(x)
    at._layer_norm_fwd_fused[(8,)](x, y, w, b, columns, columns, 1e-5, BLOCK_SIZE=1024, num_warps=4)


def _add_in_place(at: ModuleType) -> None:
    at.add_in_place(normal(3000), normal(3000))


def _root(at: ModuleType) -> None:
    at.Fast_RMS_Layernorm.apply(normal(8, 512), normal(512), 1e-6, False)


def _large_min_p(at: ModuleType) -> xray.Report:
    args = {
        "logits_ptr": "*fp32", "logits_stride": 128256, "expanded_idx_mapping_ptr": np.zeros(20000, np.int32),
        "min_p_ptr": np.full(1, 0.1, np.float32), "vocab_size": 128256,
    }  # fmt: skip
    return xray.explain(at._min_p_kernel, args, {"BLOCK_SIZE": 8192}, grid=20000)


_ADD, _LAYER = "01-vector-add.py", "lightllm.models.bloom.triton_kernel.layernorm"
PLANTS = (
    Plant(
        "a mask one too wide", "triton", _ADD, (("mask = offsets < n_elements", "mask = offsets <= n_elements"),),
        "out-of-bounds", _add, "x = tl.load",
    ),
    Plant(
        "a store without its mask", "unsloth", "unsloth.kernels.swiglu",
        (("tl.store(h + offsets, h_row, mask = mask)", "tl.store(h + offsets, h_row)"),), "out-of-bounds", _glu,
    ),
    Plant(
        "an offset one too far", "lightllm", _LAYER, (("tl.load(W + cols, mask=mask)", "tl.load(W + cols + 1, mask=mask)"),),
        "out-of-bounds", _bloom,
    ),
    Plant(
        "a transposed load", "sglang", "sglang.kernels.ops.layernorm.rmsnorm_fp32",
        (("tl.load(X + row * D + col, col < D, 0)", "tl.load(X + col * 8 + row, col < D, 0)"),), "wasted-sectors", _rms,
    ),
    Plant(
        "a dot of float32", "triton", "03-matrix-multiplication.py",
        ((
            "accumulator = tl.dot(a, b, accumulator)",
            'accumulator = tl.dot(a.to(tl.float32), b.to(tl.float32), accumulator, input_precision="ieee")',
        ),),
        "no-tensor-core", _product,
    ),
    Plant(
        "an atomic stronger than needed", "lightllm", "lightllm.common.basemodel.triton_kernel.copy_kv_index_to_req",
        (("tl.store(dest_offset, cur_token_index)", "tl.atomic_add(dest_offset, cur_token_index)"),), "strong-atomic",
        _copy_index,
    ),
    Plant(
        "zero under a maximum", "flash-attention", "flash_attn.ops.triton.cross_entropy",
        ((
            'logits = tl.load(logits_ptr + cols, mask=cols < n_cols, other=-float("inf")).to(',
            "logits = tl.load(logits_ptr + cols, mask=cols < n_cols, other=0.0).to(",
        ),),
        "wrong-fill", _cross_entropy,
    ),
    Plant(
        "an offset of 32 bits", "vllm", "vllm.v1.worker.gpu.sample.min_p",
        (("tl.program_id(0).to(tl.int64)", "tl.program_id(0)"),), "offset-overflow", _large_min_p,
        "token_idx * logits_stride",
    ),
    Plant(
        "two threads at one place", "lightllm", "lightllm.common.basemodel.triton_kernel.add_in_place",
        (("tl.store(input_ptr + offsets, x, mask=mask)", "tl.store(input_ptr + offsets // 2, x, mask=mask)"),), "race",
        _add_in_place,
    ),
    Plant(
        "a fold in every round", "lightllm", _LAYER,
        (
            ("_mean = tl.zeros([BLOCK_SIZE], dtype=tl.float32)", "_mean = 0.0"), ("_mean += a", "_mean += tl.sum(a, axis=0)"),
            ("mean = tl.sum(_mean, axis=0) / N", "mean = _mean / N"),
        ),
        "fold-in-loop", lambda at: _bloom(at, 8192), "_mean += tl.sum(a, axis=0)",
    ),
    Plant(
        "a barrier that nothing needs", "triton", _ADD, (("output = x + y", "tl.debug_barrier(); output = x + y"),),
        "needless-barrier", _add,
    ),
    Plant(
        "narrow loads", "triton", _ADD,
        (("mask = offsets < n_elements", "mask = (offsets < n_elements) & (offsets != 7)"),), "scalar-access", _add_whole,
        "x = tl.load",
    ),
    Plant(
        "an input read again", "unsloth", "unsloth.kernels.rms_layernorm",
        ((
            "normed = X_row * inv_var\n    normed = normed.to(W_row.dtype)",
            "normed = tl.load(X + col_offsets, mask = mask, other = 0).to(tl.float32) * inv_var\n"
            "    normed = normed.to(W_row.dtype)",
        ),),
        "read-again", _root, "normed = tl.load(X + col_offsets",
    ),
)  # fmt: skip


def tried(plant: Plant) -> dict[str, Any]:
    """What the X-ray says of the file as it stands, and with the fault."""
    with tempfile.TemporaryDirectory() as folder, edited(plant.module, (), Path(folder)) as at:
        clean = [c for c in _said(plant, at) if c["severity"] != "note"]
    with tempfile.TemporaryDirectory() as folder, edited(plant.module, plant.changes, Path(folder)) as at:
        wanted = plant.line or plant.changes[0][1].strip()
        there = [c for c in _said(plant, at) if c["code"] == plant.code and wanted in _text(c, at)]
    return {
        "fault": plant.name, "package": plant.package, "file": plant.module, "code": plant.code, "found": bool(there),
        "severity": there[0]["severity"] if there else "", "evidence": there[0]["evidence"] if there else "",
        "said_of_the_clean_one": plant.code in {c["code"] for c in clean},
    }  # fmt: skip


def _text(claim: dict[str, Any], at: ModuleType) -> str:
    """The lines of the edited copy that a claim is about."""
    rows = Path(str(at.__file__)).read_text().splitlines()
    return "\n".join(rows[n - 1] for n in (claim["line"], *claim["also"]))


def _said(plant: Plant, at: ModuleType) -> list[dict[str, Any]]:
    torch.manual_seed(0)
    with captured() as found:
        report = plant.run(at)
    launches = records(found, notes=True)
    assert all(x["reported"] for x in launches), [x["error"] for x in launches]
    claims = [c for x in launches for c in x["claims"]]
    return claims + ([claim(o) for o in report.observations] if isinstance(report, xray.Report) else [])
