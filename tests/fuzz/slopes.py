"""Random gradients beside torch's: every function that has one there, of rows with NaN, infinities, zeros and ties.

Both are computed in float64, so that they differ by roundings alone. A NaN must be seen: a row with one has NaN wherever
torch has. Where torch has NaN because of an infinity alone, a number is allowed (docs/integration.md). Products are compared
with a loop, since torch divides by elements; and norms of order inf of rows with NaN have NaN, where torch has 0.
"""

from __future__ import annotations

import functools
import itertools
import math
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from hypothesis import strategies as st
from torch.nn import functional

import tilefold

Tensor = torch.Tensor
F64 = torch.float64
INF = float("inf")
SPECIAL = (float("nan"), INF, -INF, 0.0, -0.0, 1.0, -1.0, 2.0, 1e-3, 1e3)
ORDERS = (0.0, 0.5, 1.0, 1.5, 2.0, 2.5, 3.0, 4.0, -1.0, -2.5, INF, -INF)
Function = Callable[[Any, Tensor, int], Any]


def _named(name: str, **options: Any) -> Function:
    return lambda m, x, dim: getattr(m, name)(x, dim=dim, **options)


def _norm(m: Any, x: Tensor, dim: int, order: float) -> Any:
    return (torch.linalg if m is torch else tilefold).vector_norm(x, order, dim)


def _of_layers(m: Any, x: Tensor, dim: int, name: str) -> Any:
    rows = x.movedim(dim, -1)
    module = functional if m is torch else tilefold
    if name == "group_norm":
        return module.group_norm(rows.reshape(1, -1, rows.shape[-1]), math.prod(rows.shape[:-1]))
    return getattr(module, name)(rows, rows.shape[-1:])


FUNCTIONS: dict[str, Function] = {
    **{
        name: _named(name)
        for name in (
            "sum", "mean", "prod", "logsumexp", "amax", "amin", "max", "min", "aminmax", "var", "std", "var_mean", "std_mean",
            "softmax", "log_softmax", "cumsum", "cumprod", "cummax", "cummin", "logcumsumexp",
        )
    },
    **{f"var {c:g}": _named("var", correction=c) for c in (0.0, 0.5)},
    **{f"norm {p:g}": functools.partial(_norm, order=p) for p in ORDERS},
    **{
        f"normalize {p:g}": lambda m, x, dim, p=p: (functional if m is torch else tilefold).normalize(x, p, dim)
        for p in (0.5, 1.0, 2.0, 3.0, INF)
    },
    **{name: functools.partial(_of_layers, name=name) for name in ("layer_norm", "rms_norm", "group_norm")},
}  # fmt: skip


def _products(x: Tensor, dim: int) -> list[Tensor]:
    """Of the first elements along a dim, one after another."""
    return list(itertools.accumulate(x.unbind(dim), torch.mul))


LOOPS: dict[str, Function] = {
    "prod": lambda m, x, dim: _products(x, dim)[-1],
    "cumprod": lambda m, x, dim: torch.stack(_products(x, dim), dim),
}


@dataclass(frozen=True)
class Slope:
    """A call of a function, and what its results are weighted with."""

    name: str
    rows: tuple[tuple[float, ...], ...]
    dim: int
    weights: int


@st.composite
def slopes(draw: st.DrawFn) -> Slope:
    """One to three rows, most of few values, so that they tie."""
    length, count = draw(st.integers(1, 5)), draw(st.integers(1, 3))
    value = st.one_of(st.sampled_from(SPECIAL), st.floats(-3, 3, width=16))
    row = st.tuples(
        *[draw(st.sampled_from((value, st.floats(-3, 3, width=16), st.sampled_from((0.0, 1.0)))))] * length
    )
    rows = tuple(draw(row) for _ in range(count))
    return Slope(draw(st.sampled_from([*FUNCTIONS])), rows, draw(st.integers(0, 1)), draw(st.integers(0, 5)))


def gradient(
    function: Function, module: Any, case: Slope, dtype: torch.dtype = F64
) -> tuple[list[Tensor], Tensor]:
    """The results, and the elements' gradients."""
    x = torch.tensor(case.rows, dtype=dtype)
    x = (x if case.dim else x.mT.contiguous()).requires_grad_()
    made = function(module, x, case.dim)
    results = [t for t in (made if isinstance(made, tuple) else (made,)) if t.is_floating_point()]
    generator = torch.Generator().manual_seed(case.weights)
    weights = [torch.rand(r.shape, generator=generator, dtype=F64).to(dtype) + 0.5 for r in results]
    if case.weights == 5:
        weights = [torch.zeros_like(w) for w in weights]
    (g,) = torch.autograd.grad(results, x, weights, allow_unused=True)
    return results, torch.zeros_like(x) if g is None else g


def check(case: Slope) -> None:
    """Results and gradients: by torch's own functions where these serve a call, and by the rules that are derived."""
    with warnings.catch_warnings():  # once a process torch says so of a variance of one element
        warnings.filterwarnings("ignore", message=".*degrees of freedom")
        _check(case)


def _check(case: Slope) -> None:
    function, values = FUNCTIONS[case.name], torch.tensor(case.rows, dtype=F64)
    try:
        results, want = gradient(LOOPS.get(case.name, function), torch, case)
        own = gradient(function, torch, case)[1]
    except (RuntimeError, ValueError):  # a group of one, which we refuse too
        return
    values = values if case.dim else values.mT
    if case.name in ("norm inf", "norm -inf"):
        want = want.masked_fill(values.isnan().any(case.dim, True), math.nan)
    # Terms of both infinities add up to NaN in one order, to an infinity in another: torch's function and its loop differ.
    free = (want.isnan() | own.isnan()) & values.isinf().any(case.dim, True)
    for backend in ("auto", "cpu"):
        with tilefold.backend(backend):
            made, got = gradient(function, tilefold, case)
        for place, (ours, theirs) in enumerate(zip(made, results, strict=True)):
            # Beside a variance that is none torch's mean of an infinity is NaN or that, by its place.
            if not (place and case.name in ("var_mean", "std_mean") and values.isinf().any()):
                torch.testing.assert_close(ours, theirs, rtol=1e-10, atol=1e-12, equal_nan=True)
        torch.testing.assert_close(
            got.masked_fill(free, 0.0), want.masked_fill(free, 0.0), rtol=1e-9, atol=1e-11, equal_nan=True
        )
