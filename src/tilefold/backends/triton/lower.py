"""From a plan to kernel calls: each family of kernels lays out its own launches."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any, cast

from tilefold.backends.triton.atomic_calls import atomic_call
from tilefold.backends.triton.call import Call
from tilefold.backends.triton.chosen_calls import chosen_call
from tilefold.backends.triton.group_calls import groups_call, summing_call
from tilefold.backends.triton.map_calls import (
    blocks_call,
    clear_call,
    elements_call,
    folding_call,
    windows_call,
)
from tilefold.backends.triton.move_calls import move_call
from tilefold.backends.triton.product_calls import product_call
from tilefold.backends.triton.scan_calls import scan_call
from tilefold.backends.triton.segment_calls import segment_call
from tilefold.backends.triton.selection_calls import selection_call
from tilefold.backends.triton.shared_calls import offset_call, rings_call, spans_call, stripes_call
from tilefold.backends.triton.table_calls import table_call
from tilefold.planner.folds import without_overlap
from tilefold.planner.plan import Plan
from tilefold.planner.problem.canonical import Problem
from tilefold.planner.products.epilogue import Epilogue
from tilefold.planner.products.folded import fold_of
from tilefold.planner.products.operands import Contraction

FAMILIES: dict[str, Callable[..., Call]] = {
    "fold_atomically": atomic_call,
    "segment_elements": segment_call,
    "segment_pieces": segment_call,
    "fold_table": table_call,
    "scan_lines": scan_call,
    "scan_tiles": scan_call,
    "fold_lanes": folding_call,
    "fold_in_order": folding_call,
    "fold_gathered": folding_call,
    "map_elements": elements_call,
    "map_groups": groups_call,
    "sum_fold_lanes": summing_call,
    "sum_fold_in_order": summing_call,
    "sum_fold_gathered": summing_call,
    "map_blocks": blocks_call,
    "map_rings": rings_call,
    "map_spans": spans_call,
    "map_offset": offset_call,
    "map_stripes": stripes_call,
    "clear": clear_call,
    "map_windows": windows_call,
    "product_whole": product_call,
    "product_rows": product_call,
    "product_partials": product_call,
    "pack_operands": product_call,
    "finish_products": product_call,
    "finish_rows": product_call,
    "map_chosen": chosen_call,
    "move_tiles": move_call,
    "select_rows": selection_call,
    "select_partials": selection_call,
}


def calls_of(plan: Plan, problem: Problem, computation: Any, *, interpret: bool = False) -> list[Call]:
    """The kernel calls of a plan, in order: a Program's, an Epilogue's or a Row's, as `computation` is.

    Raises:
        BackendError: a launch would have more programs than the driver takes.
    """
    if interpret:
        plan = without_overlap(plan)
    if isinstance(computation, Epilogue) and plan.strategy == "fold":
        problem, computation = fold_of(cast(Contraction, problem), computation)
    made = [FAMILIES[step.kernel](step, plan, problem, computation, interpret) for step in plan.launched]
    if plan.guarantee != "batch_invariant" or isinstance(problem, Contraction):
        return made
    # Which of two products a sum is fused with is the compiler's choice, and may change with the number of rows.
    return [replace(call, fused=False) for call in made]
