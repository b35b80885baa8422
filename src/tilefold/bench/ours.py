"""tilefold itself as a variant."""

from __future__ import annotations

from collections.abc import Sequence

import torch

import tilefold
from tilefold.bench.cases import Case, Choice, PlanNote, Variant
from tilefold.bench.operations import in_tilefold


def build_ours(case: Case, x: torch.Tensor) -> Sequence[Choice]:
    """Tilefold's function of the operation's name."""
    return [Choice("default", in_tilefold(case))]


def last_plan_note() -> PlanNote | None:
    """The plan of this thread's latest fold or product: one word a stage, how many launches, whether they overlap."""
    plan = tilefold.last_plan()
    if plan is None:
        return None
    return PlanNote(plan.note, max(plan.launches, 1), plan.overlap)


OURS = Variant("ours", build_ours, warms=True, graphs=True, plan=last_plan_note)
