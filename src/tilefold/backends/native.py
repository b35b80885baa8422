"""Torch's own folds, by the names that `planner.library` has for them."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any

import torch

from tilefold.algebra.evaluate import as_stored
from tilefold.algebra.program import Program

Tensor = torch.Tensor
Dims = tuple[int, ...]
_HALVES = (torch.float16, torch.bfloat16)


def fold(function: str, x: Tensor, dims: Dims, program: Program) -> list[Tensor]:
    """Torch's answer, in the program's dtypes."""
    results = FUNCTIONS[function](x, dims, program)
    return [as_stored(r, d) for r, d in zip(results, program.outputs, strict=True)]


def _sum(x: Tensor, dims: Dims, program: Program) -> list[Tensor]:
    wide = torch.float32 if x.dtype in _HALVES and program.outputs != (x.dtype,) else None
    return [torch.sum(x, dims, dtype=wide)]


def _prod(x: Tensor, dims: Dims, program: Program) -> list[Tensor]:
    return [torch.prod(x) if len(dims) == x.ndim else torch.prod(x, dims[0])]


def _logsumexp(x: Tensor, dims: Dims, program: Program) -> list[Tensor]:
    return [torch.logsumexp(x, dims)]


def _aminmax(x: Tensor, dims: Dims, program: Program) -> list[Tensor]:
    return list(torch.aminmax(x) if len(dims) == x.ndim else torch.aminmax(x, dim=dims[0]))


def _position(function: Callable[..., Tensor], x: Tensor, dims: Dims, program: Program) -> list[Tensor]:
    return [function(x) if len(dims) == x.ndim else function(x, dims[0])]


def _located(
    function: Callable[..., Sequence[Tensor]], x: Tensor, dims: Dims, program: Program
) -> list[Tensor]:
    return list(function(x, dims[0]))


def _end(x: Tensor, dims: Dims, program: Program, *, last: bool) -> list[Tensor]:
    for dim in reversed(dims):
        x = x.select(dim, x.shape[dim] - 1 if last else 0)
    return [x.clone(memory_format=torch.contiguous_format)]


FUNCTIONS: dict[str, Callable[[Tensor, Dims, Program], Sequence[Tensor]]] = {
    "torch.sum": _sum,
    "torch.prod": _prod,
    "torch.amax": lambda x, dims, program: [torch.amax(x, dims)],
    "torch.amin": lambda x, dims, program: [torch.amin(x, dims)],
    "torch.aminmax": _aminmax,
    "torch.argmax": functools.partial(_position, torch.argmax),
    "torch.argmin": functools.partial(_position, torch.argmin),
    "torch.max": functools.partial(_located, torch.max),
    "torch.min": functools.partial(_located, torch.min),
    "torch.any": lambda x, dims, program: [torch.any(x, dims)],
    "torch.all": lambda x, dims, program: [torch.all(x, dims)],
    "torch.count_nonzero": lambda x, dims, program: [torch.count_nonzero(x, dims)],
    "torch.logsumexp": _logsumexp,
    "first": functools.partial(_end, last=False),
    "last": functools.partial(_end, last=True),
}


def scan(function: str, x: Tensor, dim: int, program: Program) -> list[Tensor]:
    """Torch's prefixes, in the program's dtypes."""
    made = SCANS[function](x, dim)
    results = [made] if isinstance(made, Tensor) else list(made)
    return [as_stored(r, d).contiguous() for r, d in zip(results, program.outputs, strict=True)]


SCANS: dict[str, Callable[[Tensor, int], Tensor | Sequence[Tensor]]] = {
    "torch.cumsum": torch.cumsum,
    "torch.cumprod": torch.cumprod,
    "torch.cummax": torch.cummax,
    "torch.cummin": torch.cummin,
    "torch.logcumsumexp": torch.logcumsumexp,
}


def map_rows(function: str, tensors: Sequence[Tensor], arguments: tuple[Any, ...]) -> list[Tensor]:
    """Torch's answers for every element of tensors of one shape; extra ones may be as they were before they were expanded."""
    return [made.contiguous() for made in MAPS[function](tensors, *arguments)]


def _softmax(
    function: Callable[..., Tensor], tensors: Sequence[Tensor], dim: int, dtype: Any
) -> list[Tensor]:
    return [function(tensors[0], dim, dtype)]


def _normalized(
    function: Callable[..., Tensor],
    tensors: Sequence[Tensor],
    dims: int,
    eps: float,
    which: tuple[bool, ...],
    of_sums: bool,
) -> list[Tensor]:
    """Extra tensors come for each of `which`; their elements are those of the first row."""
    x, extras = tensors[0], tensors[1 + of_sums :]
    dtype, wide = x.dtype, torch.float32 if of_sums and x.dtype in _HALVES else x.dtype
    if of_sums:
        x = x.to(wide) + tensors[1].to(wide)
    lead = (0,) * (x.ndim - dims)
    given = iter((t if t.ndim == dims else t[lead]).to(wide) for t in extras)
    made = function(x, x.shape[x.ndim - dims :], *(next(given) if some else None for some in which), eps)
    return [made.to(dtype), x.to(dtype)] if of_sums else [made]


def _grouped(tensors: Sequence[Tensor], groups: int, eps: float, which: tuple[bool, ...]) -> list[Tensor]:
    """Of [N, G, C / G, *]; extra tensors are [.., G, C / G, 1 ...] or as much expanded."""
    x, *extras = tensors
    rest = (slice(0, 1),) * (x.ndim - 3)
    given = iter(
        (t[0] if t.ndim == x.ndim else t)[(slice(None), slice(None), *rest)].reshape(-1) for t in extras
    )
    weight, bias = (next(given) if some else None for some in which)
    return [torch.nn.functional.group_norm(x.flatten(1, 2), groups, weight, bias, eps).view(x.shape)]


MAPS: dict[str, Callable[..., list[Tensor]]] = {
    "torch.softmax": functools.partial(_softmax, torch.softmax),
    "torch.log_softmax": functools.partial(_softmax, torch.log_softmax),
    "torch.layer_norm": functools.partial(_normalized, torch.nn.functional.layer_norm),
    "torch.rms_norm": functools.partial(_normalized, torch.nn.functional.rms_norm),
    "torch.group_norm": _grouped,
}
