"""Instructions and registers that the model counts, beside the committed ones."""

from __future__ import annotations

from pathlib import Path

import fit_instructions
import numpy as np
import pytest
import torch

from tilefold import monoids
from tilefold.algebra.program import specialize
from tilefold.planner.instructions import CLASSES, work_of

ROOT = Path(__file__).parents[2]


@pytest.mark.parametrize(
    ("monoid", "dtype", "absorb", "element"),
    [
        (monoids.SUM, torch.float32, False, {"plain": 1}),
        (monoids.SUM, torch.int32, False, {"wide": 1}),
        (monoids.SUM, torch.float64, False, {"double": 1}),
        (monoids.LOGSUMEXP, torch.float32, True, {"plain": 4, "special": 1}),
    ],
)
def test_operations_of_an_element(
    monoid: object, dtype: torch.dtype, absorb: bool, element: dict[str, int]
) -> None:
    """Log-sum-exp absorbs an element by a maximum, a product, a difference, an exponential and a sum."""
    program = specialize(monoid.total, (dtype,))  # type: ignore[attr-defined]  # a Monoid
    work = work_of(program, absorb, False)
    assert {k: n for k, n in zip(CLASSES, work.element, strict=True) if n} == element


def test_the_committed_counts_are_predicted() -> None:
    """Instructions of a warp and registers of a thread, over every launch that was compiled: mean errors."""
    launches = fit_instructions.read_counts(ROOT / "benchmarks/planner/counts.jsonl")
    from tilefold.planner.fitted import INSTRUCTIONS, REGISTERS

    known = [one for one in launches if one.instructions is not None]
    assert len(known) > 300
    work = np.array([one.work for one in known]) @ np.array(list(INSTRUCTIONS.values()))
    space = np.array([one.space for one in launches]) @ np.array(list(REGISTERS.values()))
    assert np.abs(work / np.array([one.instructions for one in known]) - 1).mean() < 0.13
    assert np.abs(space / np.array([one.registers for one in launches]) - 1).mean() < 0.2
