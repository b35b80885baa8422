"""How plans of drawn problems are sampled and compared, without a GPU."""

from __future__ import annotations

import functools
import time
from concurrent.futures import Future
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import judge
import problems
import pytest
import sample
import torch

import tilefold
from tilefold.api.dispatch import plan_for
from tilefold.backends.triton import executable, launch
from tilefold.backends.triton.call import Call, Pointer, leaves
from tilefold.backends.triton.lower import calls_of
from tilefold.bench.gate import fault
from tilefold.bench.layout import Layout
from tilefold.bench.operations import fold_case, in_tilefold
from tilefold.bench.results import read_results
from tilefold.planner.choose import plan_fold
from tilefold.planner.device import H200
from tilefold.planner.plan import Plan
from tilefold.runtime.switch import ExplainedError, explaining

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


def test_the_choice_comes_first_and_plans_are_distinct() -> None:
    drawn = problems.draw(1, "full")
    plans = sample.plans_of(drawn, 1, 12, H200)
    assert len({plan.stages for plan in plans}) == len(plans) <= 12
    assert plans[0].stages == plan_fold(drawn.problem, drawn.program, H200, "run_to_run").stages


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_a_sampled_plan_is_called_as_the_library_would(monkeypatch: pytest.MonkeyPatch) -> None:
    """On a machine of addresses that runs each launch under the interpreter."""
    held: dict[int, torch.Tensor] = {}

    def hold(tensor: torch.Tensor) -> torch.Tensor:
        return held.setdefault(tensor.data_ptr(), tensor)

    def launcher(call: Call, index: int) -> Any:
        inputs = sum(isinstance(leaf, Pointer) for leaf in leaves(call.arguments[0]))

        def launch(stream: int, *addresses: int) -> None:
            tensors = [held[address] for address in addresses]
            executable.interpret_call(call, tensors[:inputs], tensors[inputs:])

        return launch

    monkeypatch.setattr(torch._C, "_cuda_getDevice", lambda: None, raising=False)
    monkeypatch.setattr(torch._C, "_cuda_getCurrentRawStream", lambda index: 7, raising=False)
    monkeypatch.setattr(executable, "launcher", launcher)
    monkeypatch.setattr(
        executable, "_empty", lambda shape, strides, dtype: hold(torch.empty(shape, dtype=dtype))
    )
    monkeypatch.setattr(launch, "compiled", lambda call, index: SimpleNamespace(n_regs=40, n_spills=0))
    monkeypatch.setattr(sample, "calls_of", functools.partial(calls_of, interpret=True))
    for name, shape, layout in (
        ("argmax", (6, 300), None),
        ("sum", (1, 9000), Layout((0, 1), (1, 9000), (0, 0), 3)),
    ):
        drawn = problems.problem_of(fold_case(name, 1, shape, "fp32", "g", layout=layout))
        x = hold(drawn.case.draw("cpu"))
        for plan in sample.plans_of(drawn, 0, 2, H200):
            call, kernels = sample.executable_of(plan, drawn, x)
            assert len(kernels) == plan.launches
            assert fault(drawn.case, x, tuple(call()), drawn.case.reference(x)) is None


@pytest.mark.parametrize("seed", range(89, 96))
def test_problems_are_those_of_the_library(seed: int) -> None:
    drawn = problems.draw(seed, "small")
    x = drawn.case.draw("cpu")
    with explaining(), pytest.raises(ExplainedError) as asked:
        in_tilefold(drawn.case)(x)
    plan = plan_for(asked.value.request, asked.value.tensors, H200)
    assert plan.steps == plan_fold(drawn.problem, drawn.program, H200, "run_to_run").steps


def test_a_sample_goes_on_where_it_ended(tmp_path: Path) -> None:
    path = tmp_path / "sample.jsonl"
    assert sample.known_seeds(path) == set()
    path.write_text('{"seed":3,"size":"small","plans":[]}\n{"seed":17,"failed":"x"}\n{"seed":19,"si')
    assert sample.known_seeds(path) == {3, 17, 19}


def test_plans_that_were_not_compiled_are_told_of() -> None:
    futures: list[Any] = [Future() for _ in range(4)]
    for future, outcome in zip(futures, ("", "PTXASError"), strict=False):
        future.set_result(outcome)
    futures[2].set_exception(ValueError("lost"))
    ahead = sample.Ahead.__new__(sample.Ahead)  # no processes
    ahead.waiting = {5: futures}
    begun = time.monotonic()
    found = ahead.compiled(5, begun + 0.05)
    assert found == ["", "PTXASError", "ValueError: lost", "not compiled in time"]


@pytest.mark.usefixtures("on_the_cpu")
def test_plans_that_were_not_compiled_are_not_timed() -> None:
    drawn = problems.draw(0, "small")
    entries = sample.timed(drawn, sample.plans_of(drawn, 0, 3, H200), Clock(), "cpu", ["", "too late", ""])
    assert [e["time_us"] for e in entries] == [10.0, None, 10.0]
    assert entries[1]["wrong"] == "too late"


def test_planners_are_judged_by_class() -> None:
    cases = read_results(ROOT / "benchmarks/results/h200/folds.json").cases
    lines = list(judge.judged(cases, "ours", "ours"))
    assert lines[1].startswith("all cases: 354 cases, mean 0.9")
    assert "time x 1.000; slower beyond 3 % | 5 %: 0 | 0, faster: 0 | 0" in lines[1]
