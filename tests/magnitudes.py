"""Elements of every magnitude, and how exactly a function folds them: float64 holds all their squares and cubes."""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import partial
from typing import Any

import torch

import tilefold
from tilefold import monoids

Function = Callable[..., Any]
U = 2.0**-24  # what states are carried with
WIDE = (
    "1e-45 1e-43 1e-40 1e-38 1e-37 1e-30 1e-25 1e-22 1e-20 1e-19 1e-17 1e-10 1e-5 1 1e5 1e10 "
    "1e17 1e18 1e19 1e20 1e25 1e30 1e35 1e37 3e38"
)
MAGNITUDES = {
    torch.float32: WIDE.split(),
    torch.bfloat16: WIDE.split()[2:],
    torch.float16: ["6e-8", "1e-6", "1e-3", "1", "1e2", "6e4"],
}
CASES = [(dtype, magnitude) for dtype, magnitudes in MAGNITUDES.items() for magnitude in magnitudes]
# Ours beside torch's.
FUNCTIONS: dict[str, tuple[Function, Function]] = {
    name: (getattr(tilefold, name), getattr(torch, name))
    for name in ("sum", "mean", "var", "std", "var_mean", "std_mean", "logsumexp")
} | {
    f"norm({p:g})": (partial(tilefold.vector_norm, ord=p), partial(torch.linalg.vector_norm, ord=p))
    for p in (2, 3, 0.5, 1, -2, float("inf"))
}
DIMS = {"rows": (1,), "columns": (0,), "all": (0, 1)}
# Those whose results are folded again in float64 where float32 does not hold what they sum.
WATCHED = {
    "welford": monoids.WELFORD, "describe": monoids.DESCRIBE, "norm(2)": monoids.NORM(2), "norm(3)": monoids.NORM(3),
}  # fmt: skip


def varied(*shape: int) -> torch.Tensor:
    """Rows of every magnitude, constant ones, and one with NaN."""
    x = torch.rand(*shape, generator=torch.Generator().manual_seed(3)) + 0.1
    x *= 10.0 ** torch.arange(-40.0, 38.0, 78 / shape[0])[: shape[0]].view(-1, *[1] * (len(shape) - 1))
    x[2], x[5, ..., 0], x[7] = 0.0, float("nan"), 3.0
    return x


def elements(dtype: torch.dtype, magnitude: str, device: str = "cpu") -> torch.Tensor:
    """[67, 129] numbers of random signs, from a tenth of the magnitude up to it."""
    generator = torch.Generator().manual_seed(17)
    draw = torch.rand(2, 67, 129, dtype=torch.float64, generator=generator)
    signs = torch.where(draw[0] < 0.5, -1.0, 1.0)
    return (signs * (0.1 + 0.9 * draw[1]) * float(magnitude)).to(dtype).to(device)


def check(name: str, x: torch.Tensor, dims: tuple[int, ...]) -> None:
    """Ours errs by no more than twice what torch's does on this device, or the rounding of a tree and of the result.

    The first is the worst of all results: where squares are subnormal, which result errs most is chance.
    """
    ours, theirs = FUNCTIONS[name]
    exact = x.double()
    found = [_several(f(t, dim=dims)) for f, t in ((ours, x), (theirs, x), (theirs, exact))]
    for place, (got, torch_s, want) in enumerate(zip(*found, strict=True)):
        info = torch.finfo(got.dtype)
        want = want.where(want.abs() <= info.max * (1 + info.eps / 4), want.sign() * math.inf)
        depth = math.ceil(math.log2(x.numel() if len(dims) == 2 else x.shape[dims[0]]))
        summed = name in ("sum", "mean") or place == 1  # signs may cancel
        scale = exact.abs().sum(dims) if summed else want.abs()
        bound = 2 * depth * U * scale + info.eps * want.abs() + info.smallest_normal * info.eps
        allowed = torch.maximum(2 * _error(torch_s, want).max(), bound)
        assert (_error(got, want) <= allowed).all(), (name, got, torch_s, want)


def _several(results: Any) -> tuple[torch.Tensor, ...]:
    return tuple(results) if isinstance(results, tuple) else (results,)


def _error(got: torch.Tensor, want: torch.Tensor) -> torch.Tensor:
    """Equal infinities differ by nothing, NaN from a number by everything."""
    error = (got.double() - want).abs().nan_to_num(nan=math.inf, posinf=math.inf)
    return torch.where(got.double() == want, 0.0, error)
