"""Cases of a monoid of the reader's own: the answer is its definition in float64 on the CPU."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable
from typing import Any

import torch

import tilefold
from tilefold.algebra import program as programs
from tilefold.algebra.monoid import Monoid
from tilefold.bench.cases import DTYPES, Case, Make, Outputs, Tolerance, outputs_of
from tilefold.bench.layout import Layout
from tilefold.bench.operations import along, wider
from tilefold.cli.fold_text import monoid_named
from tilefold.cli.python_files import load_file, split_target
from tilefold.errors import ArgumentError, TilefoldError

Dim = int | tuple[int, ...] | None
SHARE = 5e-5  # of an answer


def of_monoid(text: str, share: float | None = None) -> Make:
    """What makes cases of the monoid that a text names; None where it does not fold the dtype or no such dims.

    Raises:
        ArgumentError: the text names no monoid, or one that folds several tensors.
        CompileError: its file does not import.
    """
    try:
        monoid = monoid_named(text)
    except ArgumentError as error:
        raise ArgumentError(f"bench: --monoid: {error}") from None
    if monoid.total.inputs != 1:
        raise ArgumentError(
            f"bench: --monoid must fold one tensor, got {monoid.name} of {monoid.total.inputs}; lift one element"
        )
    in_torch = _in_torch(text)

    def make(
        operation: str, dim: Dim, shape: tuple[int, ...], dtype: str, layout: Layout | None = None
    ) -> Case | None:
        try:
            results = programs.specialize(monoid.total, (DTYPES[dtype],)).outputs
        except TilefoldError:
            return None
        dims = range(len(shape)) if dim is None else (dim,) if isinstance(dim, int) else dim
        return Case(
            operation=monoid.name,
            dim=dim,
            shape=shape,
            dtype=dtype,
            torch_call=None if in_torch is None else functools.partial(along, in_torch, dim),
            reference=functools.partial(definition, monoid, dim),
            tolerance=tolerance(math.prod(shape[d] for d in dims), share),
            result_dtypes=tuple(results),
            group=f"{monoid.name}, {dtype}",
            altered=wider if DTYPES[dtype].is_floating_point else None,
            layout=layout,
            monoid=monoid,
        )

    return make


def _in_torch(text: str) -> Callable[..., Any] | None:
    """Torch's form of a monoid: the function NAME_in_torch(x, dim) of its file, if it has one."""
    if "::" not in text:
        return None
    path, name = split_target(text)
    found: Any = getattr(load_file(path, "bench", "monoid"), f"{name}_in_torch", None)
    return found if callable(found) else None


def definition(monoid: Monoid, dim: Dim, x: torch.Tensor) -> Outputs:
    """The monoid folded on the CPU, its elements float64 where they are floats."""
    wide = x.detach().cpu()
    wide = wide.double() if wide.is_floating_point() else wide
    with tilefold.backend("lanes"):
        results = outputs_of(tilefold.reduce(wide, monoid, dim))
    return tuple(result.to(x.device) for result in results)


def tolerance(length: int, share: float | None = None) -> Tolerance:
    """How far an answer may lie from the definition's in float64, where the monoid's rounding is not known."""
    allowed = SHARE if share is None else share

    def bound(want: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
        if not dtype.is_floating_point:
            return torch.full_like(want, 0.5, dtype=torch.float64)  # whole numbers and truth values: equal
        rounding = (torch.finfo(dtype).eps + allowed) * want.abs().double()
        return rounding + 2**-24 * 256 * math.sqrt(length)

    return Tolerance(
        f"a monoid whose rounding is not known: eps |want| for the last rounding, {allowed:g} |want| for products and "
        "exponentials, and what a float32 sum of n normal variates may err by; whole numbers and truth values are equal",
        bound,
    )
