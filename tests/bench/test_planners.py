"""Other planners as variants: the same request, problem and kernels, another plan; only where it is asked for."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

pytest.importorskip("triton")

from tilefold.backends.triton.executable import interpret
from tilefold.backends.triton.lower import calls_of
from tilefold.bench import gate
from tilefold.bench.operations import fold_case
from tilefold.bench.planners import PLANNED, PLANNERS, planned, requested
from tilefold.bench.suites import load_suite
from tilefold.bench.variants import variants_of
from tilefold.planner.choose import plan_fold
from tilefold.planner.device import H200, Device
from tilefold.planner.plan import Plan
from tilefold.problem.canonical import Problem


def fewer_splits(problem: Problem, program: object, device: Device, guarantee: str) -> Plan:
    """As the library's, for a chip of few SMs."""
    return plan_fold(problem, program, replace(device, sms=8), guarantee)  # type: ignore[arg-type]  # a Program


@pytest.mark.parametrize("name", ["sum", "argmax", "var", "logsumexp", "top2", "aminmax", "softmax_pair"])
@pytest.mark.parametrize("planner", [*PLANNERS.values(), fewer_splits], ids=[*PLANNERS, "fewer splits"])
def test_a_planner_runs_what_the_library_asks_for(name: str, planner) -> None:
    case = fold_case(name, 1, (3, 3000), "fp32", "g")
    x = case.draw("cpu")
    request, tensors = requested(case, x)
    problem, plan = planned(request, tensors, H200, planner)
    results = [torch.empty(shape, dtype=dtype) for shape, dtype in request.results]
    calls = calls_of(plan, problem, request.computation, interpret=True)
    interpret(plan, calls, request.computation, tensors, results)
    assert gate.fault(case, x, tuple(results), case.reference(x)) is None


def test_two_planners_differ() -> None:
    case = fold_case("sum", 1, (3, 300_000), "bf16", "g")
    request, tensors = requested(case, case.draw("cpu"))
    plans = [planned(request, tensors, H200, planner)[1] for planner in (plan_fold, fewer_splits)]
    assert plans[0] != plans[1]


@pytest.mark.parametrize("suite", ["folds", "shapes", "real", "host"])
def test_they_run_only_where_they_are_asked_for(suite: str) -> None:
    names = [variant.name for variant in PLANNED]
    assert names
    assert all(name.startswith("ours, ") for name in names)
    made = load_suite(suite)
    assert [v.name for v in variants_of(made, ())] == ["ours"]
    assert [v.name for v in variants_of(made, (), ["ours", *names])] == ["ours", *names]
