"""FlagGems' operators beside torch's."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Iterator
from typing import Any

import torch
import torch.nn.functional as F
from compared import Case, normal

PACKAGE = "flag-gems"
Inputs = Callable[[], tuple[Any, ...]]


def _pair() -> tuple[Any, ...]:
    return normal(24, 100), normal(24, 100)


def _positive() -> tuple[Any, ...]:
    return (normal(24, 100).abs() + 0.1,)


def _one() -> tuple[Any, ...]:
    return (normal(24, 100),)


def _halves() -> tuple[Any, ...]:
    return normal(64, 96, dtype=torch.float16), normal(96, 80, dtype=torch.float16)


def _floats() -> tuple[Any, ...]:
    return normal(3, 24, 40), normal(3, 40, 32)


def _integers() -> tuple[Any, ...]:
    return torch.randint(-50, 50, (2000,), dtype=torch.int32), torch.randint(
        1, 50, (2000,), dtype=torch.int32
    )


def _heads() -> tuple[Any, ...]:
    return tuple(normal(1, 2, 128, 64, dtype=torch.float16) for _ in range(3))


# Name: module, function, inputs, further arguments, and torch's function of the inputs (floats in float64).
OPERATORS: dict[str, tuple[str, str, Inputs, dict[str, Any], Callable[..., Any]]] = {
    "add": ("add", "add", _pair, {}, torch.add),
    "add_bf16": ("add", "add", lambda: tuple(x.bfloat16() for x in _pair()), {"alpha": 2}, lambda a, b: a + 2 * b),
    "div_trunc": ("div", "trunc_divide", _integers, {}, lambda a, b: torch.div(a, b, rounding_mode="trunc")),
    "floor_divide": ("div", "floor_divide", _integers, {}, torch.floor_divide),
    "remainder": ("div", "remainder", _integers, {}, torch.remainder),
    "exp": ("exp", "exp", _one, {}, torch.exp),
    "log": ("log", "log", _positive, {}, torch.log),
    "erf": ("erf", "erf", _one, {}, torch.erf),
    "tanh": ("tanh", "tanh", _one, {}, torch.tanh),
    "sin": ("sin", "sin", _one, {}, torch.sin),
    "pow": ("pow", "pow_tensor_tensor", lambda: (*_positive(), normal(24, 100)), {}, torch.pow),
    "rsqrt": ("rsqrt", "rsqrt", _positive, {}, torch.rsqrt),
    "gelu": ("gelu", "gelu", _one, {}, F.gelu),
    "abs": ("abs", "abs", _one, {}, torch.abs),
    "bitwise_and": ("bitwise_and", "bitwise_and_tensor", _integers, {}, torch.bitwise_and),
    "isnan": ("isnan", "isnan", lambda: (torch.tensor([1.0, float("nan"), float("inf")] * 50),), {}, torch.isnan),
    "softmax": ("softmax", "softmax", lambda: (normal(8, 300), -1, False), {}, lambda x, d, h: x.softmax(d)),
    "softmax_columns": ("softmax", "softmax", lambda: (normal(2, 40, 64), 1, False), {}, lambda x, d, h: x.softmax(d)),
    "log_softmax": ("log_softmax", "log_softmax", lambda: (normal(8, 300), -1), {}, lambda x, d: x.log_softmax(d)),
    "layer_norm": (
        "layernorm", "layer_norm", lambda: (normal(8, 300), (300,), normal(300), normal(300)), {},
        lambda x, s, w, b: F.layer_norm(x, s, w, b),
    ),
    "rms_norm": (
        "rms_norm", "rms_norm", lambda: (normal(8, 300), (300,), normal(300)), {},
        lambda x, s, w: F.rms_norm(x, s, w, 1e-5),
    ),
    "group_norm": (
        "groupnorm", "group_norm", lambda: (normal(2, 8, 36), normal(8), normal(8), 2, 8, 36, 4), {},
        lambda x, w, b, n, c, hw, g: F.group_norm(x, g, w, b),
    ),
    "batch_norm": (
        "batch_norm", "batch_norm",
        lambda: (normal(4, 8, 36), normal(8), normal(8), torch.zeros(8), torch.ones(8), True), {},
        lambda x, w, b, m, v, t: F.batch_norm(x, m.clone(), v.clone(), w, b, t),
    ),
    "sum": ("sum", "sum", lambda: (normal(50, 300),), {}, torch.sum),
    "sum_rows": ("sum", "sum_dim", lambda: (normal(16, 300), [1]), {}, lambda x, d: x.sum(d)),
    "sum_columns": ("sum", "sum_dim", lambda: (normal(300, 64), [0]), {}, lambda x, d: x.sum(d)),
    "mean": ("mean", "mean_dim", lambda: (normal(16, 300), [1]), {}, lambda x, d: x.mean(d)),
    "prod": ("prod", "prod_dim", lambda: (normal(16, 20), 1), {}, lambda x, d: x.prod(d)),
    "amax": ("amax", "amax", lambda: (normal(16, 300), [1]), {}, lambda x, d: x.amax(d)),
    "max_dim": ("max", "max_dim", lambda: (normal(16, 300), 1), {}, lambda x, d: x.max(d)),
    "argmax": ("argmax", "argmax", lambda: (normal(16, 300), 1), {}, lambda x, d: x.argmax(d)),
    "argmin": ("argmin", "argmin", lambda: (normal(16, 300), 1), {}, lambda x, d: x.argmin(d)),
    "argmin_of_256": ("argmin", "argmin", lambda: (normal(16, 256), 1), {}, lambda x, d: x.argmin(d)),
    "var_mean": ("var_mean", "var_mean", lambda: (normal(16, 300), [1]), {}, lambda x, d: torch.var_mean(x, d)),
    "vector_norm": ("vector_norm", "vector_norm", lambda: (normal(16, 300), 2, [1]), {}, torch.linalg.vector_norm),
    "any": ("any", "any_dim", lambda: (normal(16, 300) > 2.5, 1), {}, lambda x, d: x.any(d)),
    "all": ("all", "all", lambda: (normal(16, 300) > -9,), {}, torch.all),
    "count_nonzero": ("count_nonzero", "count_nonzero", lambda: (torch.randint(0, 2, (900,)),), {}, torch.count_nonzero),
    "cumsum": ("cumsum", "cumsum", lambda: (normal(16, 300), 1), {}, lambda x, d: x.cumsum(d)),
    "cummax": ("cummax", "cummax", lambda: (normal(8, 300), 1), {}, lambda x, d: x.cummax(d)),
    "topk": ("topk", "topk", lambda: (normal(4, 200), 8), {}, torch.topk),
    "sort": ("sort", "sort", lambda: (torch.randperm(200, dtype=torch.int32)[None],), {}, torch.sort),
    "mm_fp16": ("mm", "mm", _halves, {}, torch.mm),
    "bmm_fp32": ("bmm", "bmm", _floats, {}, torch.bmm),
    "addmm": ("addmm", "addmm", lambda: (normal(80).half(), *_halves()), {}, torch.addmm),
    "mv": ("mv", "mv", lambda: (normal(48, 200), normal(200)), {}, torch.mv),
    "dot": ("dot", "dot", lambda: (normal(3000), normal(3000)), {}, torch.dot),
    "attention": (
        "attention", "scaled_dot_product_attention", _heads, {"is_causal": True},
        lambda q, k, v: F.scaled_dot_product_attention(q, k, v, is_causal=True),
    ),
    "conv2d": (
        "conv2d", "conv2d", lambda: (normal(1, 4, 10, 10), normal(8, 4, 3, 3), normal(8)), {"padding": 1},
        lambda x, w, b: F.conv2d(x, w, b, padding=1),
    ),
    "max_pool2d": (
        "max_pool2d_with_indices", "max_pool2d_with_indices", lambda: (normal(2, 3, 16, 16), 3, 2, 1), {},
        lambda x, k, s, p: F.max_pool2d(x, k, s, p, return_indices=True),
    ),
    "avg_pool2d": (
        "avg_pool2d", "avg_pool2d", lambda: (normal(2, 3, 16, 16), 2, 2), {}, lambda x, k, s: F.avg_pool2d(x, k, s)
    ),
    "embedding": (
        "embedding", "embedding", lambda: (normal(50, 128), torch.randint(0, 50, (3, 7))), {}, lambda w, i: w[i]
    ),
    "gather": (
        "gather", "gather", lambda: (normal(16, 100), 1, torch.randint(0, 100, (16, 30))), {}, torch.gather
    ),
    "index_select": (
        "index_select", "index_select", lambda: (normal(40, 64), 0, torch.randint(0, 40, (20,))), {}, torch.index_select
    ),
    "masked_fill": (
        "masked_fill", "masked_fill", lambda: (normal(24, 100), normal(24, 100) > 0, -3.0), {}, torch.masked_fill
    ),
    "masked_select": (
        "masked_select", "masked_select", lambda: (normal(24, 100), normal(24, 100) > 0), {}, torch.masked_select
    ),
    "nonzero": ("nonzero", "nonzero", lambda: (torch.randint(0, 2, (30, 20)),), {}, torch.nonzero),
    "isin": (
        "isin", "isin", lambda: (torch.randint(0, 99, (60,)), torch.randint(0, 99, (30,))), {}, torch.isin
    ),
    "isin_of_300": (
        "isin", "isin", lambda: (torch.randint(0, 999, (60,)), torch.randint(0, 999, (300,))), {}, torch.isin
    ),
    "flip": ("flip", "flip", lambda: (normal(24, 100), [1]), {}, torch.flip),
    "cat": ("cat", "cat", lambda: ([normal(8, 20), normal(8, 30)], 1), {}, lambda parts, d: torch.cat(parts, d)),
    "tril": ("tril", "tril", lambda: (normal(40, 50),), {}, torch.tril),
    "kron": ("kron", "kron", lambda: (normal(6, 8), normal(5, 7)), {}, torch.kron),
    "weight_norm": (
        "weightnorm", "weight_norm_interface", lambda: (normal(16, 60), normal(16, 1)), {},
        lambda v, g: (v * g / v.norm(dim=1, keepdim=True), v.norm(dim=1, keepdim=True)),
    ),
    "mse_loss": ("mse_loss", "mse_loss", _pair, {}, F.mse_loss),
    "nll_loss": (
        "nllloss", "nll_loss_forward", lambda: (normal(16, 30), torch.randint(0, 30, (16,))), {},
        lambda x, t: (F.nll_loss(x, t),),
    ),
    "glu": ("glu", "glu", lambda: (normal(8, 200),), {}, F.glu),
    "index_add": (
        "index_add", "index_add", lambda: (normal(40, 64), 0, torch.randperm(40)[:20], normal(20, 64)), {}, torch.index_add
    ),
    "scatter": (
        "scatter", "scatter",
        lambda: (normal(16, 40), 1, torch.stack([torch.randperm(40)[:20] for _ in range(16)]), normal(16, 20)), {},
        torch.scatter,
    ),
    "quantile": (
        "quantile", "quantile", lambda: (normal(8, 100), torch.tensor([0.1, 0.5]), 1), {}, torch.quantile
    ),
}  # fmt: skip


def cases() -> list[Case]:
    """A case for each operator."""
    return [Case(PACKAGE, name, lambda name=name: _run(name)) for name in OPERATORS]


def _run(name: str) -> Iterator[tuple[Any, Any]]:
    module, function, make, further, right = OPERATORS[name]
    given = make()
    want = right(*[_wide(x) for x in given])
    got = getattr(importlib.import_module(f"flag_gems.ops.{module}"), function)(*given, **further)
    # A wrapper may return more than torch's function: what it keeps for the backward pass.
    yield from zip(_several(got), _several(want), strict=False)


def _wide(value: Any) -> Any:
    if isinstance(value, list) and value and isinstance(value[0], torch.Tensor):
        return [_wide(x) for x in value]
    return value.double() if isinstance(value, torch.Tensor) and value.is_floating_point() else value


def _several(value: Any) -> tuple[Any, ...]:
    return tuple(value) if isinstance(value, (tuple, list)) else (value,)
