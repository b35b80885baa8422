"""Launches that select, as kernel calls: arguments, constants, grid."""

from __future__ import annotations

import math
from typing import Any

import torch

from tilefold.backends.triton.call import Call, Pointer, launchable, output_dims
from tilefold.backends.triton.records import SelectionTile, Strided
from tilefold.planner.plan import Launch, Plan
from tilefold.planner.problem.canonical import Problem
from tilefold.planner.sizes import power_above
from tilefold.planner.stages.moves import sizes_and_steps
from tilefold.planner.stages.selections import AT_ONCE, Gathering, Selection, reaches_far


def selection_call(step: Launch, plan: Plan, problem: Problem, computation: Any, interpret: bool) -> Call:
    """Arguments and constants of one launch of a selection. Pointers stand as `Pointer` until launch."""
    if step.kernel == "select_partials":
        return _partials_call(step, problem)
    settings: Selection = step.settings
    (along,) = problem.reduced_dims
    before = problem.residues[0] if settings.align and not interpret else 0
    dtype = problem.dtypes[0]
    aligned = dtype.itemsize if settings.scattered else problem.aligned[0]
    x = Pointer(dtype, 16 if settings.align else aligned, before)
    rows = problem.outputs
    arguments = (
        x,
        tuple(Pointer(d, 16) for d in ((torch.int64 if _to_partials(step) else dtype), torch.int64)),
        before // dtype.itemsize,
        *_walks(problem),
        along.strides[0],
        along.output,
        rows,
        along.size,
        settings.part,
        settings.splits,
    )
    constants = _constants(step, problem, interpret)
    grid = launchable(math.ceil(rows / settings.rows) * settings.splits, rows, "topk", "take")
    return Call(step.kernel, "", arguments, tuple(constants.items()), grid, settings.num_warps, 1, step.early)


def _to_partials(step: Launch) -> bool:
    """Whether parts' best elements are stored, not results."""
    return "output0" not in step.writes


def _constants(step: Launch, problem: Problem, interpret: bool) -> dict[str, Any]:
    settings: Selection = step.settings
    (along,) = problem.reduced_dims
    return {
        "K": settings.k,
        "SLOTS": power_above(settings.k),
        "TILE": SelectionTile(
            ROWS=settings.rows,
            LANES=settings.lanes,
            UNROLL=settings.unroll,
            RUN=settings.run,
            TURNS=settings.turns,
            TURNS_PADDED=power_above(settings.turns),
            CANDIDATES=max(1, power_above(settings.k) * power_above(settings.turns) // settings.lanes),
            ALIGN=settings.align,
            VECTORS=along.strides[0] == 1,
            EDGES=along.strides[0] == 1 and (settings.align or along.size % settings.run != 0),
        ),
        "DIRECT": settings.direct,
        "LARGEST": settings.largest,
        "PACK": settings.pack,
        "PACK_GROUPS": settings.pack_groups,
        "DROPS_NAN": not interpret,
        "WIDE": reaches_far(problem, settings),
        "PARTIAL": _to_partials(step),
        "AT_ONCE": not settings.looped and settings.turns * settings.unroll * settings.run <= AT_ONCE,
        "EVICT": "evict_first" if settings.evict_first and settings.direct else "",
        "RELEASE": step.releases,
    }


def _partials_call(step: Launch, problem: Problem) -> Call:
    settings: Gathering = step.settings
    (along,) = problem.reduced_dims
    dtype = problem.dtypes[0]
    arguments = (
        Pointer(dtype, problem.aligned[0]),
        Pointer(torch.int64, 16),
        Pointer(torch.int64, 16),
        (Pointer(dtype, 16), Pointer(torch.int64, 16)),
        0,
        *_walks(problem),
        along.strides[0],
        along.output,
        settings.entries,
    )
    constants = {
        "K": settings.k,
        "SLOTS": power_above(settings.k),
        "BLOCK": power_above(settings.entries),
        "WAIT": step.early,
    }
    grid = launchable(problem.outputs, problem.outputs, "topk", "take")
    return Call(step.kernel, "", arguments, tuple(constants.items()), grid, settings.num_warps, 1, step.early)


def _walks(problem: Problem) -> tuple[Strided, Strided]:
    """How a row's number gives its place in the input and in the results."""
    dims = output_dims(problem)
    return Strided(*sizes_and_steps(dims, lambda d: d.strides[0])), Strided(
        *sizes_and_steps(dims, lambda d: d.output)
    )
