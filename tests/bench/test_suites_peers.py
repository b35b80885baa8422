"""Peers of the suites on modules of their shape, which compute by torch: each is given operands as it takes them, its answers
pass the gate, and it is offered for the cases that it has and for no others."""

from __future__ import annotations

import sys
import types
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from torch.nn import functional

from tilefold.bench import gate
from tilefold.bench.suites import load_suite
from tilefold.bench.suites.topk import topk_case

Tensor = torch.Tensor


def rmsnorm(
    x: Tensor, weight: Tensor, *, residual: Tensor | None = None, eps: float, prenorm: bool = False
) -> Any:
    """As quack.rmsnorm.rmsnorm: with a residual the sum is given back too, where `prenorm`."""
    assert weight.ndim == 1
    whole = x if residual is None else x + residual
    made = functional.rms_norm(whole.float(), weight.shape, weight.float(), eps).to(x.dtype)
    return (made, whole) if prenorm else made


def layernorm_fwd(x: Tensor, weight: Tensor, *, eps: float) -> Tensor:
    assert weight.dtype == torch.float32
    return functional.layer_norm(x.float(), weight.shape, weight, eps=eps).to(x.dtype)


def topk(x: Tensor, k: int) -> tuple[Tensor, Tensor]:
    assert x.shape[1] & (x.shape[1] - 1) == 0 == k & (k - 1)
    values, places = x.topk(k, dim=1)
    return values, places.int()


def liger_layer_norm(x: Tensor, weight: Tensor, bias: Tensor, eps: float) -> Tensor:
    return functional.layer_norm(x, weight.shape, weight, bias, eps)


def liger_rms_norm(x: Tensor, weight: Tensor, eps: float, *, in_place: bool) -> Tensor:
    assert not in_place
    return functional.rms_norm(x, weight.shape, weight, eps)


def of_cub(run: Callable[..., None], counted: str) -> Callable[..., Any]:
    """What cuda.compute makes: first asked for the size of its scratch memory, then called with it."""

    def make(**given: Any) -> Callable[..., int]:
        def reducer(*, temp_storage: Any, stream: Any, **arguments: Any) -> int:
            assert stream.__cuda_stream__() == (0, 77)
            assert arguments.keys() == {*given, counted}
            assert arguments["op"] == "plus"
            if temp_storage is not None:
                assert temp_storage.nbytes >= 1000
                run(**arguments)
            return 1000

        return reducer

    return make


def scanned(d_in: Any, d_out: Any, op: str, init_value: Any, num_items: int) -> None:
    d_out.copy_(d_in[:num_items].cumsum(0) + init_value[0])


def segmented(
    d_in: Any, d_out: Any, op: str, h_init: Any, start_offsets_in: Any, end_offsets_in: Any, num_segments: int
) -> None:
    for i in range(num_segments):
        d_out[i] = d_in[start_offsets_in[i] : end_offsets_in[i]].sum() + float(h_init[0])


class _Overwriting(torch.autograd.Function):
    """Its forward writes the gradient over the logits, as Liger's does."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
        leaf = x.detach().clone().requires_grad_()
        with torch.enable_grad():
            loss = torch.nn.functional.cross_entropy(leaf, target)
        x.copy_(torch.autograd.grad(loss, leaf)[0])
        ctx.save_for_backward(x.detach())
        return loss.detach()

    @staticmethod
    def backward(ctx: Any, g: torch.Tensor) -> Any:
        return ctx.saved_tensors[0] * g, None


def liger_cross_entropy(x: torch.Tensor, target: torch.Tensor) -> Any:
    return _Overwriting.apply(x, target)


MODULES: dict[str, dict[str, Any]] = {
    "quack": {},
    "quack.softmax": {"softmax": lambda x: torch.softmax(x, 1)},
    "quack.rmsnorm": {"rmsnorm": rmsnorm, "layernorm_fwd": layernorm_fwd},
    "quack.topk": {"topk": topk},
    "quack.cross_entropy": {"cross_entropy": torch.nn.functional.cross_entropy},
    "liger_kernel": {},
    "liger_kernel.transformers": {},
    "liger_kernel.transformers.functional": {
        "liger_softmax": lambda x: torch.softmax(x, 1),
        "liger_layer_norm": liger_layer_norm,
        "liger_rms_norm": liger_rms_norm,
        "liger_cross_entropy": liger_cross_entropy,
        "liger_fused_linear_cross_entropy": lambda x, w, t: torch.nn.functional.cross_entropy(x @ w.T, t),
    },
    "cuda": {},
    "cuda.compute": {
        "OpKind": types.SimpleNamespace(PLUS="plus"),
        "make_inclusive_scan": of_cub(scanned, "num_items"),
        "make_segmented_reduce": of_cub(segmented, "num_segments"),
    },
}


@pytest.fixture(autouse=True)
def installed(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, functions in MODULES.items():
        module = types.ModuleType(name)
        vars(module).update(functions)
        monkeypatch.setitem(sys.modules, name, module)
    monkeypatch.setattr(torch.cuda, "current_stream", lambda: types.SimpleNamespace(cuda_stream=77))
    if not hasattr(np, "row_stack"):  # `imported` gives it to numba
        monkeypatch.setattr(np, "row_stack", np.vstack, raising=False)


@pytest.mark.parametrize(
    ("suite", "peer", "offered"),
    [
        ("normalize", "quack", {"layer_norm", "rms_norm", "rms_norm+residual", "softmax"}),
        ("gradients", "quack", {"rms_norm", "softmax"}),
        ("gradients", "liger", {"layer_norm", "rms_norm", "softmax"}),
        ("losses", "quack", {"cross_entropy", "cross_entropy with backward"}),
        ("losses", "liger", {"cross_entropy", "cross_entropy with backward"}),
        ("linear-losses", "liger", {"linear_cross_entropy", "linear_cross_entropy with backward"}),
        (
            "linear-losses",
            "torch",
            {"four products", "linear_cross_entropy", "linear_cross_entropy with backward"},
        ),
        ("scan", "cuda.compute", {"cumsum"}),
        ("segment", "cuda.compute", {"segment sum"}),
    ],
)
def test_answers_of_peers_pass_the_gate(suite: str, peer: str, offered: set[str]) -> None:
    found = load_suite(suite)
    (variant,) = (v for v in found.variants if v.name == peer)
    seen = set()
    for case in found.cases("small"):
        x = case.draw("cpu")
        for choice in variant.build(case, x):
            seen.add(case.operation.partition(" of ")[0])
            assert gate.fault(case, x, choice.call(x), case.reference(x)) is None, case.name
    assert seen == offered


@pytest.mark.parametrize(
    ("shape", "dim", "k", "offered"),
    [
        ((8, 4096), 1, 8, True), ((3, 1), 1, 1, True), ((8, 64), 1, 16, True), ((8, 8192), 1, 8, False),
        ((8, 4095), 1, 8, False), ((8, 64), 1, 6, False), ((64, 8), 0, 8, False), ((2, 8, 64), 2, 8, False),
        ((8, 96), 1, 8, False), ((8, 64), 1, 3, False),
    ],
)  # fmt: skip
def test_quacks_topk_is_of_rows_of_powers_of_two(
    shape: tuple[int, ...], dim: int, k: int, offered: bool
) -> None:
    case = topk_case(shape, dim, k, "fp32")
    (variant,) = (v for v in load_suite("topk").variants if v.name == "quack")
    x = case.draw("cpu")
    made = [choice.call(x) for choice in variant.build(case, x)]
    assert bool(made) == offered
    assert all(gate.fault(case, x, found, case.reference(x)) is None for found in made)
