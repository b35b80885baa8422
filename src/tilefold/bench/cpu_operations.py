"""Cases of the CPU's suite beside plain folds: maps, scans, top-k and segments, of large and small tensors."""

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch

import tilefold
from tilefold import math, monoids
from tilefold.bench.cases import EXACT, Case, Choice, Outputs, Tolerance

Tensor = torch.Tensor
SHAPES = {
    "full": ((8, 8), (64, 64), (33, 1001), (1024, 1024), (1024, 4096), (64, 65536), (4096, 32)),
    "small": ((8, 8), (33, 101)),
}
SEGMENTS = 64


def _close(length: int) -> Tolerance:
    return Tolerance(
        "1e-5 of the largest answer is 160 float32 roundings, more than the depth of any tree of lanes and levels",
        lambda want, dtype: torch.full_like(want, 1e-5 * max(1.0, float(want.abs().max()))),
    )


def _running(length: int) -> Tolerance:
    return Tolerance(
        "a walk along a row rounds once an element: 2^-24 of the largest answer each, and the square root of that by chance; "
        "32 roundings beside it",
        lambda want, dtype: torch.full_like(want, 2**-24 * (32 + length) * max(1.0, float(want.abs().max()))),
    )


def _pair(a: Any, b: Any) -> tuple[Any, Any]:
    largest = math.maximum(a.m, b.m)
    safe = math.where(largest == -float("inf"), 0.0, largest)
    return largest, a.l * math.exp(a.m - safe) + b.l * math.exp(b.m - safe)


def _subarray(a: Any, b: Any) -> tuple[Any, Any, Any, Any]:
    most = math.maximum(math.maximum(a.most, b.most), a.end + b.begin)
    return a.all + b.all, math.maximum(a.begin, a.all + b.begin), math.maximum(b.end, a.end + b.all), most


@functools.cache
def users() -> dict[str, tilefold.Monoid]:
    """Monoids as a user writes them who knows no catalogue."""

    def positive(x: Any) -> Any:
        return math.maximum(x, 0.0)

    return {
        "a user's affine scan": tilefold.Monoid(
            lambda f, g: (g.a * f.a, g.a * f.b + g.b), (1.0, 0.0), fields=("a", "b"),
            lift=lambda x: (math.where(x > 0, 0.5, 0.25), x), project=lambda a, b: b, name="affine",
        ),
        "a user's logsumexp scan": tilefold.Monoid(
            _pair, (-float("inf"), 0.0), fields=("m", "l"), lift=lambda x: (x, 1.0),
            project=lambda m, l: m + math.log(l), name="logsumexp",
        ),
        "a user's max-subarray scan": tilefold.Monoid(
            _subarray, (0.0, 0.0, 0.0, 0.0), fields=("all", "begin", "end", "most"),
            lift=lambda x: (x, positive(x), positive(x), positive(x)),
            project=lambda total, begin, end, most: most, name="max subarray",
        ),
    }  # fmt: skip


def _affine(x: Tensor, dim: int) -> Tensor:
    steps, h = [], torch.zeros_like(x.select(dim, 0))
    for element in x.unbind(dim):
        h = torch.where(element > 0, 0.5, 0.25) * h + element
        steps.append(h)
    return torch.stack(steps, dim)


def _max_subarray(x: Tensor, dim: int) -> Tensor:
    sums = x.cumsum(dim)
    before = torch.cat((torch.zeros_like(sums.narrow(dim, 0, 1)), sums.narrow(dim, 0, x.shape[dim] - 1)), dim)
    gains: Tensor = (sums - before.cummin(dim).values).clamp_min(0)
    return gains.cummax(dim).values


def _offsets(length: int) -> Tensor:
    return torch.linspace(0, length, min(SEGMENTS, length) + 1, dtype=torch.float64).long()


def _segment_sums(x: Tensor, dim: int) -> Tensor:
    return torch.segment_reduce(x, "sum", offsets=_offsets(x.shape[0]), axis=0)


@dataclass(frozen=True)
class Operation:
    """The library's call, torch's answer, its rounding, and a result's shape for the input's.

    `is_call`: torch has this as calls of its own. It has no user's scans: these are compared with the `cumsum` of the
    same shape.
    """

    ours: Callable[[Tensor, int], Any]
    in_torch: Callable[[Tensor, int], Any]
    tolerance: Callable[[int], Tolerance] = _close
    is_call: bool = True
    results: Callable[[tuple[int, ...]], tuple[int, ...]] = lambda shape: shape
    dim: int = 1


def _scan(name: str) -> Callable[[Tensor, int], Any]:
    return lambda x, dim: tilefold.scan(x, users()[name], dim)


def _last(function: Callable[..., Any]) -> Callable[[Tensor, int], Any]:
    return lambda x, dim: function(x, (x.shape[dim],))


OPERATIONS: dict[str, Operation] = {
    "softmax": Operation(tilefold.softmax, torch.softmax),
    "layer_norm": Operation(_last(tilefold.layer_norm), _last(torch.nn.functional.layer_norm)),
    "normalize": Operation(
        lambda x, dim: tilefold.normalize(x, dim=dim),
        lambda x, dim: torch.nn.functional.normalize(x, dim=dim),
    ),
    "cumsum": Operation(tilefold.cumsum, torch.cumsum, _running),
    "sum scan, reversed": Operation(
        lambda x, dim: tilefold.scan(x, monoids.SUM, dim, reverse=True),
        lambda x, dim: x.flip(dim).cumsum(dim).flip(dim),
        _running,
    ),
    "topk(8)": Operation(
        lambda x, dim: tuple(tilefold.topk(x, 8, dim)),
        lambda x, dim: tuple(torch.topk(x, 8, dim)),
        lambda length: EXACT,
        results=lambda shape: (shape[0], 8),
    ),
    "segment sums": Operation(
        lambda x, dim: tilefold.segment_reduce(x, monoids.SUM, _offsets(x.shape[0]), dim=dim),
        _segment_sums,
        _running,
        results=lambda shape: (min(SEGMENTS, shape[0]), shape[1]),
        dim=0,
    ),
    "a user's affine scan": Operation(_scan("a user's affine scan"), _affine, _running, is_call=False),
    "a user's logsumexp scan": Operation(
        _scan("a user's logsumexp scan"), torch.logcumsumexp, _close, is_call=False
    ),
    "a user's max-subarray scan": Operation(
        _scan("a user's max-subarray scan"), _max_subarray, _running, is_call=False
    ),
}


def operation_cases(size: str) -> tuple[Case, ...]:
    """Every operation at every size."""
    return tuple(operation_case(name, shape) for shape in SHAPES[size] for name in OPERATIONS)


def operation_case(name: str, shape: tuple[int, ...]) -> Case:
    """One operation over rows (of segments: over columns) of float32."""
    made = OPERATIONS[name]
    tolerance = made.tolerance(shape[made.dim])

    def wanted(x: Tensor) -> Outputs:
        found = made.in_torch(x if tolerance.exact else x.double(), made.dim)
        return found if isinstance(found, tuple) else (found,)

    return Case(
        operation=name,
        dim=made.dim,
        shape=shape,
        dtype="fp32",
        torch_call=(lambda x: made.in_torch(x, made.dim)) if made.is_call else None,
        reference=wanted,
        tolerance=tolerance,
        result_dtypes=(torch.float32, torch.int64) if tolerance.exact else (torch.float32,),
        group=name,
        has_index=tolerance.exact,
        altered=lambda x: x.mul_(2).add_(0.5),
        results=made.results(shape),
    )


def build_operation(case: Case) -> list[Choice]:
    """The library's call."""
    made = OPERATIONS[case.operation]
    return [Choice("run_to_run", lambda x: made.ours(x, made.dim))]
