"""Folds on a CPU whose float32 states lost what was asked for: those results are folded again in float64.

Squares of floats below 1e-19 or above 1e19 leave the range of float32's exponents. To carry every sum of squares in float64
would cost twice the time for the sake of few results, so a state says itself whether it holds its result (`Algebra.trusted`).
A result depends on its own elements alone, whichever way it was found. On a GPU float32 is what torch carries, too.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import torch

from tilefold.algebra import program as programs
from tilefold.algebra import typing
from tilefold.algebra.expression import trace
from tilefold.algebra.program import Program
from tilefold.caching import kept_outside_modes
from tilefold.planner.plan import Plan

TOGETHER = 1 << 20  # elements that are copied at most, so that results that lie apart are folded at once
Tensors = Sequence[torch.Tensor]
Run = Callable[[Tensors, Program, tuple[int, ...], str], tuple[list[torch.Tensor], Plan]]


def fold(
    run: Run, tensors: Tensors, program: Program, dims: tuple[int, ...], guarantee: str
) -> tuple[list[torch.Tensor], Plan]:
    """`run(tensors, program, dims, guarantee)`, in which results that float32 does not hold were carried in float64."""
    if not is_watched(program):
        return run(tensors, program, dims, guarantee)
    if torch._C._is_tracing():  # torch.jit.trace would keep what was decided for the elements at hand
        return run(tensors, in_float64(program), dims, guarantee)
    (*results, trusted), plan = run(tensors, with_trust(program), dims, guarantee)
    if trusted.all():
        return results, plan
    doubtful = trusted.numel() - int(trusted.sum())
    plan = replace(
        plan,
        reason="; ".join(filter(None, (plan.reason, f"in float64 {doubtful} of {trusted.numel()} results"))),
    )
    wide = in_float64(program)
    if doubtful == trusted.numel():
        return run(tensors, wide, dims, guarantee)[0], plan
    outer = [d for d in range(tensors[0].ndim) if d not in dims]
    length = math.prod(tensors[0].shape[d] for d in dims)
    views = [t.permute(*outer, *dims) for t in tensors]
    places, together = (~trusted).nonzero(), max(1, TOGETHER // max(1, length))
    for start in range(0, doubtful, together):
        _fold_some(run, views, wide, places[start : start + together], guarantee, results)
    return results, plan


def _fold_some(
    run: Run, views: Tensors, wide: Program, places: torch.Tensor, guarantee: str, results: Tensors
) -> None:
    """Fold some results again; one alone is read where it lies."""
    outer = places.shape[1]
    where: tuple[Any, ...] = tuple(places.unbind(1)) if len(places) > 1 else tuple(places[0].tolist())
    some = [v[where] for v in views]
    rest = some[0].ndim - (views[0].ndim - outer)
    found, _ = run(some, wide, tuple(range(rest, some[0].ndim)), guarantee)
    for result, values in zip(results, found, strict=True):
        result[where] = values


def is_watched(program: Program) -> bool:
    """Whether the algebra says which states float32 does not hold, and float32 carries them."""
    floats = all(map(typing.is_float, program.elements))
    return program.algebra.trusted is not None and floats and torch.float32 in program.state


@kept_outside_modes(256)
def with_trust(program: Program) -> Program:
    """The program with one result more: whether its state is to be trusted."""
    trusted, outputs = program.algebra.trusted, program.project.graph
    assert trusted is not None
    both = trace(lambda *state: (*outputs(*state), *trusted(*state)), len(program.state))
    project = typing.infer(both, program.state)
    return replace(program, project=project, outputs=(*program.outputs, torch.bool))


@kept_outside_modes(256)
def in_float64(program: Program) -> Program:
    """The program that reads its elements as float64, for results of the same dtypes."""
    wide = programs.specialize(program.algebra, (torch.float64,) * len(program.elements))
    return replace(wide, outputs=program.outputs)
