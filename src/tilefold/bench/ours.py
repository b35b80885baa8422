"""tilefold itself as a variant."""

from __future__ import annotations

from collections.abc import Sequence

import torch

import tilefold
from tilefold.bench.cases import Case, Choice, PlanNote, Variant
from tilefold.bench.operations import in_tilefold
from tilefold.contract.plan import ContractPlan


def build_ours(case: Case, x: torch.Tensor) -> Sequence[Choice]:
    """Tilefold's function of the operation's name."""
    return [Choice("default", in_tilefold(case))]


def last_plan_note() -> PlanNote | None:
    """The plan of this thread's latest fold or product: one word a stage, how many launches, whether they overlap."""
    plan = tilefold.last_plan()
    if plan is None:
        return None
    if isinstance(plan, ContractPlan):
        t = plan.tile
        tile = "" if t is None else f":m{t.block_m},n{t.block_n},k{t.block_k},w{t.num_warps},p{t.num_stages}"
        f = plan.finish
        finish = "" if f is None else f" + finish:x{f.block},l{f.lanes},w{f.num_warps}"
        early = f"{' chained' if plan.chained else ''}{' overlap' if plan.overlap else ''}"
        text = f"{plan.strategy}{tile},s{plan.splits}{finish}{early}"
        return PlanNote(text, max(plan.launches, 1), plan.overlap)
    stages = [
        f"{s.family}:k{s.block_kept},l{s.lanes},r{s.run}x{s.unroll},s{s.splits},w{s.num_warps}"
        for s in plan.stages
    ]
    text = " + ".join(stages or [plan.backend]) + (" overlap" if plan.overlap else "")
    return PlanNote(text, max(plan.launches, 1), plan.overlap)


OURS = Variant("ours", build_ours, warms=True, graphs=True, plan=last_plan_note)
