"""From a plan to kernel calls: each family of kernels lays out its own launches."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from tilefold.backends.triton.atomic_calls import atomic_call
from tilefold.backends.triton.call import Call, fold_call
from tilefold.backends.triton.product_calls import product_call
from tilefold.backends.triton.segment_calls import segment_call
from tilefold.planner.folds import without_overlap
from tilefold.planner.plan import Plan
from tilefold.problem import Problem

FAMILIES: dict[str, Callable[..., Call]] = {
    "fold_lanes": fold_call,
    "fold_in_order": fold_call,
    "fold_atomically": atomic_call,
    "product_whole": product_call,
    "product_rows": product_call,
    "product_partials": product_call,
    "finish_products": product_call,
    "finish_rows": product_call,
    "segment_rows": segment_call,
    "segment_columns": segment_call,
    "segment_pieces": segment_call,
    "segment_whole": segment_call,
}


def calls_of(plan: Plan, problem: Problem, computation: Any, *, interpret: bool = False) -> list[Call]:
    """The kernel calls of a plan, in order: a Program's or an Epilogue's, as `computation` is.

    Raises:
        BackendError: a launch would have more programs than the driver takes.
    """
    if interpret:
        plan = without_overlap(plan)
    return [FAMILIES[step.kernel](step, plan, problem, computation, interpret) for step in plan.launched]
