"""Folds, maps, scans, top-k and segments on a CPU beside torch's, also as a user writes them who knows no catalogue."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch

import tilefold
from tilefold import math, monoids
from tilefold.bench.cases import EXACT, Case, Choice, Suite, Tolerance, Variant
from tilefold.bench.cpu_operations import OPERATIONS, build_operation, operation_case, operation_cases
from tilefold.bench.layout import Layout
from tilefold.bench.operations import in_reference, sum_tolerance, wider
from tilefold.bench.ours import last_plan_note

INFINITY = float("inf")
ELEMENTS = {"full": 1 << 26, "small": 1 << 18}


def _user_combine(a: Any, b: Any) -> tuple[Any, Any]:
    largest = math.maximum(a.max, b.max)
    shift = math.where(abs(largest) == INFINITY, 0.0, largest)
    return largest, a.sum * math.exp(a.max - shift) + b.sum * math.exp(b.max - shift)


def _user_absorb(state: Any, x: Any) -> tuple[Any, Any]:
    largest = math.maximum(state.max, math.block_max(x))
    shift = math.where(abs(largest) == INFINITY, 0.0, largest)
    return largest, state.sum * math.exp(state.max - shift) + math.block_sum(math.exp(x - shift))


def _user_logsumexp(absorb: Callable[..., Any] | None) -> tilefold.Monoid:
    """Log-sum-exp as somebody would write it who knows no catalogue."""
    return tilefold.Monoid(
        _user_combine,
        (-INFINITY, 0.0),
        fields=("max", "sum"),
        lift=lambda x: (x, 1.0),
        absorb=absorb,
        project=lambda largest, total: math.where(
            abs(largest) == INFINITY, largest, largest + math.log(total)
        ),
        name="user's logsumexp",
    )


def _relative(length: int) -> Tolerance:
    """1e-5 of the largest answer."""
    return Tolerance(
        "1e-5 of the largest answer is 160 float32 roundings, more than the depth of any tree of lanes, blocks and pieces",
        lambda want, dtype: torch.full_like(want, 1e-5 * float(want.abs().max())),
    )


@dataclass(frozen=True)
class Fold:
    """One row of the suite: a monoid, torch's nearest counterpart, and the guarantee."""

    name: str
    monoid: Callable[[], tilefold.Monoid]
    in_torch: Callable[..., Any]
    tolerance: Callable[[int], Tolerance]
    guarantee: str = "run_to_run"
    operations_each: int = 1


@functools.cache
def _folds() -> dict[str, Fold]:
    spread = functools.cache(
        lambda: monoids.welford(lambda count, mean, squares: squares / count, "variance")
    )
    close = _relative
    variance = functools.partial(torch.var, correction=0)
    rows = (
        Fold("logsumexp", lambda: monoids.LOGSUMEXP, torch.logsumexp, close, operations_each=4),
        Fold(
            "logsumexp, batch invariant",
            lambda: monoids.LOGSUMEXP,
            torch.logsumexp,
            close,
            "batch_invariant",
            4,
        ),
        Fold(
            "logsumexp, a user's absorb",
            lambda: _user_logsumexp(_user_absorb),
            torch.logsumexp,
            close,
            operations_each=4,
        ),
        Fold(
            "logsumexp, a user's combine",
            lambda: _user_logsumexp(None),
            torch.logsumexp,
            close,
            operations_each=4,
        ),
        Fold("sum", lambda: monoids.SUM, torch.sum, sum_tolerance),
        Fold("sum, batch invariant", lambda: monoids.SUM, torch.sum, sum_tolerance, "batch_invariant"),
        Fold("variance", spread, variance, close, operations_each=3),
        Fold("argmax", lambda: monoids.ARGMAX, torch.argmax, lambda length: EXACT),
        Fold("norm", lambda: monoids.NORM(2.0), torch.linalg.vector_norm, close, operations_each=2),
    )
    return {row.name: row for row in rows}


def cases(size: str = "full") -> tuple[Case, ...]:
    """Folds of one long row, rows, columns and short rows of 2^26 float32 (2^18 where small), and other operations."""
    elements = ELEMENTS[size]
    side = 1 << (elements.bit_length() - 1) // 2
    layouts = (
        ((1, elements), 1),
        ((side, elements // side), 1),
        ((side, elements // side), 0),
        ((elements // 64, 64), 1),
    )
    folds = tuple(_case(fold, shape, dim) for shape, dim in layouts for fold in _folds().values())
    return folds + operation_cases(size)


def _case(fold: Fold, shape: tuple[int, ...], dim: int) -> Case:
    tolerance = fold.tolerance(shape[dim])
    in_torch = functools.partial(fold.in_torch, dim=dim)
    return Case(
        operation=fold.name,
        dim=dim,
        shape=shape,
        dtype="fp32",
        torch_call=in_torch,
        reference=in_reference(in_torch, wide=not tolerance.exact),
        tolerance=tolerance,
        result_dtypes=(torch.int64 if fold.name == "argmax" else torch.float32,),
        operations_each=fold.operations_each,
        group=fold.name,
        has_index=fold.name == "argmax",
        altered=wider,
    )


def make_case(
    name: str, dim: int | tuple[int, ...] | None, shape: tuple[int, ...], dtype: str, layout: Layout | None
) -> Case | None:
    """A case of another shape, of one dim in float32."""
    if dtype != "fp32" or not isinstance(dim, int):
        return None
    if name in OPERATIONS:
        return operation_case(name, shape) if len(shape) == 2 and dim == OPERATIONS[name].dim else None
    return _case(_folds()[name], shape, dim)


def build_ours(case: Case, x: torch.Tensor) -> Sequence[Choice]:
    """`tilefold.reduce` with the row's monoid and guarantee, or the operation's call."""
    if case.operation in OPERATIONS:
        return build_operation(case)
    fold = _folds()[case.operation]
    monoid = fold.monoid()
    call = functools.partial(tilefold.reduce, monoid=monoid, dim=case.dim, guarantee=fold.guarantee)
    return [Choice(fold.guarantee, call)]


SUITE = Suite(
    "cpu",
    str(__doc__).strip(),
    cases,
    (Variant("ours", build_ours, plan=last_plan_note),),
    against=("torch",),
    cpu_only=True,
    make=make_case,
)
