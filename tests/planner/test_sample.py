"""How plans are sampled and how constants are fitted to what came of it, without a GPU."""

from __future__ import annotations

import json
import math
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import fit
import problems
import pytest
import sample

import tilefold
from tilefold.planner.cost import Constants, cost_of
from tilefold.planner.device import H200
from tilefold.planner.plan import Plan

ROOT = Path(__file__).parents[2]


class Clock:
    """A clock that tells a plan's time by its number of calls."""

    def sample_us(self, call: Any, host_us: float = 0.0) -> Any:
        call()
        return lambda: 10.0

    def finish(self) -> None:
        pass


@pytest.fixture
def on_the_cpu(monkeypatch: pytest.MonkeyPatch) -> None:
    """Plans run as the library runs folds here, except the third, whose answer is wrong."""
    made: list[Plan] = []

    def executable(plan: Plan, drawn: problems.Drawn, x: Any) -> tuple[Any, list[Any]]:
        made.append(plan)
        result = tilefold.reduce(x, problems.monoid_of(drawn.case.operation), drawn.case.dim)
        results = result if isinstance(result, tuple) else (result,)
        wrong = len(made) == 3
        return lambda: tuple(r + wrong for r in results), [SimpleNamespace(n_regs=32, n_spills=0)]

    monkeypatch.setattr(sample, "executable_of", executable)


@pytest.mark.usefixtures("on_the_cpu")
def test_plans_are_checked_before_they_are_timed() -> None:
    drawn = problems.draw(0, "small")
    plans = sample.plans_of(drawn, 0, 5, H200)
    entries = sample.timed(drawn, plans, Clock(), "cpu")
    assert [e["time_us"] for e in entries] == [10.0, 10.0, None, 10.0, 10.0][: len(entries)]
    assert entries[2]["wrong"]
    assert all(e["registers"] == 32 for e in entries)


def test_the_rules_come_first_and_plans_are_distinct() -> None:
    drawn = problems.draw(1, "full")
    plans = [plan for plan, _ in sample.plans_of(drawn, 1, 12, H200)]
    assert len({plan.stages for plan in plans}) == len(plans) <= 12
    assert plans[0].stages == sample.plan_fold(drawn.problem, drawn.program, H200, "run_to_run").stages


def test_constants_that_made_the_times_are_found_again(tmp_path: Path) -> None:
    """Times made by the model with a slower memory: the fit finds that memory."""
    slow = replace(Constants(), memory_gb_per_s=Constants().memory_gb_per_s / 2)
    lines = []
    for seed in range(6):
        drawn = problems.draw(seed, "full")
        plans = [plan for plan, _ in sample.plans_of(drawn, seed, 4, H200)]
        known = fit.Known.of(drawn.geometry, drawn.program)
        times = [cost_of(fit.counts_of(known, p.stages, H200), H200, slow).time_us for p in plans]
        entries = [
            {**sample._entry(plan, 0.0), "time_us": time} for plan, time in zip(plans, times, strict=True)
        ]
        lines.append(json.dumps({"seed": seed, "size": "full", "plans": entries}))
    path = tmp_path / "sample.jsonl"
    path.write_text("\n".join(lines) + "\n")
    measured = fit.from_sample(path, H200)
    found = fit.fitted(measured, H200, Constants())
    assert fit.loss(measured, H200, found) < 0.2 * fit.loss(measured, H200, Constants())
    assert found.memory_gb_per_s < 0.8 * Constants().memory_gb_per_s


def test_the_committed_results_are_within_a_tenth_of_the_model() -> None:
    """The suite's 354 cells on an H200, as the rules plan them: the mean error of their predicted times."""
    cases = fit.from_folds(ROOT / "benchmarks/results/h200/folds.json", H200)
    errors = [abs(math.log(cost_of(c.plans[0], H200, Constants()).time_us / c.times_us[0])) for c in cases]
    assert sum(errors) / len(errors) < 0.1
