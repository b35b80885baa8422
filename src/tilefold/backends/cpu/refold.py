"""Folds on a CPU in their quick form, and once more in units for results that it does not hold.

Squares of float32 below 1e-19 or above 1e19 leave its range of exponents. Units of squares (`algebra.units`) hold them; one
operation after another they would cost up to twice the time for the sake of few results, so a state of the quick form says
itself whether it holds its result (`Quick.trusted`). A result depends on its own elements alone, whichever way it was found.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import torch

from tilefold.algebra.program import Program, is_watched, quick_form
from tilefold.planner.plan import Plan

# Elements that are copied at most, so that results that lie apart are folded at once (not measured).
TOGETHER = 1 << 20
Tensors = Sequence[torch.Tensor]
Run = Callable[[Tensors, Program, tuple[int, ...], str], tuple[list[torch.Tensor], Plan]]


def fold(
    run: Run, tensors: Tensors, program: Program, dims: tuple[int, ...], guarantee: str
) -> tuple[list[torch.Tensor], Plan]:
    """`run(tensors, program, dims, guarantee)`, by the quick form wherever that holds the results."""
    # torch.jit.trace would keep the decision for these elements
    if not is_watched(program) or torch._C._is_tracing():
        return run(tensors, program, dims, guarantee)
    (*results, trusted), plan = run(tensors, quick_form(program), dims, guarantee)
    if trusted.all():
        return results, plan
    doubtful = trusted.numel() - int(trusted.sum())
    plan = replace(
        plan,
        reason="; ".join(filter(None, (plan.reason, f"in units {doubtful} of {trusted.numel()} results"))),
    )
    if doubtful == trusted.numel():
        return run(tensors, program, dims, guarantee)[0], plan
    outer = [d for d in range(tensors[0].ndim) if d not in dims]
    length = math.prod(tensors[0].shape[d] for d in dims)
    views = [t.permute(*outer, *dims) for t in tensors]
    places, together = (~trusted).nonzero(), max(1, TOGETHER // max(1, length))
    for start in range(0, doubtful, together):
        _fold_some(run, views, program, places[start : start + together], guarantee, results)
    return results, plan


def _fold_some(
    run: Run, views: Tensors, program: Program, places: torch.Tensor, guarantee: str, results: Tensors
) -> None:
    """Fold some results again; one alone is read where it lies."""
    outer = places.shape[1]
    where: tuple[Any, ...] = tuple(places.unbind(1)) if len(places) > 1 else tuple(places[0].tolist())
    some = [v[where] for v in views]
    rest = some[0].ndim - (views[0].ndim - outer)
    found, _ = run(some, program, tuple(range(rest, some[0].ndim)), guarantee)
    for result, values in zip(results, found, strict=True):
        result[where] = values
