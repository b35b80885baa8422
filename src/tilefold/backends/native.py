"""Folds that torch itself has: on a CPU they run there. An algebra is recognised by its graphs, not by its name.

Only where the answer is the same (dtypes, NaN, ties, one rounding at the end) and torch is the faster one: it is for short
folds, where the lanes' calls cost more than torch's extra passes, and for those in the table at any length. Norms and
moments stay with the lanes: torch's float32 running sums of them are less accurate. A "batch_invariant" fold goes to torch
only if no bit depends on an order of evaluation.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch

from tilefold.algebra import catalogue
from tilefold.algebra.algebra import Algebra
from tilefold.algebra.program import Program

Tensor = torch.Tensor
Dims = tuple[int, ...]
Dtypes = tuple[torch.dtype, ...]

_HALVES = (torch.float16, torch.bfloat16)
_FLOATS = (torch.float32, torch.float64)
_INTEGERS = (torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64)
_EVERY = (*_HALVES, *_FLOATS, *_INTEGERS)
_SHORT = 1 << 15


def fold(
    tensors: Sequence[Tensor], program: Program, dims: Dims, guarantee: str, *, forced: bool = False
) -> list[Tensor] | None:
    """Torch's own answer where it has exactly this fold and is not the slower one (unless `forced`), else None."""
    native, x = _table().get(program.algebra), tensors[0]
    if native is None or program.elements != (x.dtype,) or not dims or any(x.shape[d] == 0 for d in dims):
        return None
    if not native.has(x, dims, guarantee) or not (forced or native.is_fast(x, dims)):
        return None
    results = native.function(x, dims, program)
    return [r.to(d) for r, d in zip(results, program.outputs, strict=True)]


def _always(x: Tensor, dims: Dims) -> bool:
    return True


def _whole(x: Tensor, dims: Dims) -> bool:
    return len(dims) == x.ndim


def _whole_or_rows(x: Tensor, dims: Dims) -> bool:
    return len(dims) == x.ndim or x.stride(dims[-1]) == 1


def _never(x: Tensor, dims: Dims) -> bool:
    return False


@dataclass(frozen=True)
class Native:
    """Torch's function for one algebra, and where its answer is this library's.

    `exact` are the dtypes for which no bit depends on an order of evaluation. `takes` "several" dims,
    "one or all", or "one". `fast` tells where it is the faster one, `fast_dtypes` for which dtypes; short folds always are.
    """

    function: Callable[[Tensor, Dims, Program], Sequence[Tensor]]
    dtypes: Dtypes = _EVERY
    exact: Dtypes = _EVERY
    takes: str = "several"
    fast: Callable[[Tensor, Dims], bool] = _always
    fast_dtypes: Dtypes = _EVERY

    def has(self, x: Tensor, dims: Dims, guarantee: str) -> bool:
        """Whether torch has this very fold, with this guarantee."""
        dtypes = self.exact if guarantee == "batch_invariant" else self.dtypes
        whole = len(dims) == x.ndim and self.takes != "one"
        return x.dtype in dtypes and (self.takes == "several" or len(dims) == 1 or whole)

    def is_fast(self, x: Tensor, dims: Dims) -> bool:
        """Whether torch is not slower than the lanes."""
        return x.numel() <= _SHORT or (x.dtype in self.fast_dtypes and self.fast(x, dims))


@functools.lru_cache(maxsize=1)
def _table() -> dict[Algebra, Native]:
    sums = (*_HALVES, *_FLOATS, torch.int64)
    whole = (*_FLOATS, *_INTEGERS)  # torch multiplies halves in halves
    table = {
        catalogue.SUM: Native(_sum, exact=_INTEGERS, fast_dtypes=sums),
        catalogue.PROD: Native(_prod, whole, _INTEGERS, takes="one or all", fast_dtypes=sums),
        # The sign of a zero that is the largest of zeros depends on the order.
        catalogue.MAX: Native(lambda x, dims, program: [torch.amax(x, dims)], exact=_INTEGERS),
        catalogue.MIN: Native(lambda x, dims, program: [torch.amin(x, dims)], exact=_INTEGERS),
        catalogue.MINMAX: Native(_aminmax, exact=_INTEGERS, takes="one or all", fast=_whole_or_rows),
        catalogue.ARGMAX: Native(functools.partial(_position, torch.argmax), takes="one or all"),
        catalogue.ARGMIN: Native(functools.partial(_position, torch.argmin), takes="one or all"),
        catalogue.MAX_WITH_INDEX: Native(
            functools.partial(_located, torch.max), exact=_INTEGERS, takes="one"
        ),
        catalogue.MIN_WITH_INDEX: Native(
            functools.partial(_located, torch.min), exact=_INTEGERS, takes="one"
        ),
        catalogue.ANY: Native(lambda x, dims, program: [torch.any(x, dims)]),
        catalogue.ALL: Native(lambda x, dims, program: [torch.all(x, dims)]),
        catalogue.COUNT_NONZERO: Native(lambda x, dims, program: [torch.count_nonzero(x, dims)], fast=_whole),
        catalogue.LOGSUMEXP: Native(_logsumexp, _FLOATS, exact=(), fast=_never),
        catalogue.FIRST: Native(functools.partial(_end, last=False)),
        catalogue.LAST: Native(functools.partial(_end, last=True)),
    }
    return {monoid.total: native for monoid, native in table.items()}


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
