"""Few rows: whether one program reads each, with more warps, or several do, in parts."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest
import torch

import tilefold
from tilefold import monoids
from tilefold.algebra.program import specialize
from tilefold.planner.device import H200
from tilefold.planner.few_programs import program_us, with_more_at_work
from tilefold.planner.first_launch import FirstLaunch
from tilefold.planner.first_tile import first_tile
from tilefold.planner.plan import Stage
from tilefold.planner.problem.canonical import canonical

Tensor = torch.Tensor
LOSSES = tilefold.Monoid(
    lambda a, b: (a.loss + b.loss, a.weight + b.weight), (0, 0), fields=("loss", "weight"),
    lift=lambda loss, weight: (loss * weight, weight), project=lambda loss, weight: loss / weight, commutative=True,
)  # fmt: skip


def launch_of(rows: int, length: int, inputs: int = 1, dtype: torch.dtype = torch.float32) -> FirstLaunch:
    given = [torch.empty(rows, length, dtype=dtype, device="meta") for _ in range(inputs)]
    monoid = LOSSES if inputs == 2 else monoids.SUM
    problem = canonical(given, (1,), ordered=False)
    return FirstLaunch.keeping(problem, specialize(monoid.total, (dtype,) * inputs), None)


@pytest.mark.parametrize(
    ("losses", "stage", "timed_us"),
    [
        (4096, Stage("rows", 1, 256, 4, 4, 1, 8), 2.17),
        (16384, Stage("long_rows", 1, 256, 4, 8, 1, 8), 5.69),
        (16384, Stage("long_rows", 1, 128, 4, 4, 8, 4), 2.7),
        (16384, Stage("rows", 1, 1024, 4, 4, 1, 32), 2.87),
        (32768, Stage("long_rows", 1, 512, 4, 4, 1, 16), 6.03),
        (32768, Stage("long_rows", 1, 256, 4, 4, 8, 8), 2.77),
        (32768, Stage("long_rows", 1, 1024, 4, 4, 1, 32), 3.8),
    ],
    ids=lambda value: str(value) if isinstance(value, int) else None,
)
def test_times_are_about_those_that_were_measured(losses: int, stage: Stage, timed_us: float) -> None:
    assert program_us(launch_of(1, losses, 2), stage, H200) == pytest.approx(timed_us, rel=0.07)


@pytest.mark.parametrize(
    ("rows", "length", "inputs", "form"),
    [
        (1, 4096, 1, "the rule's"),
        (1, 16384, 1, "one tile"),
        (1, 16384, 2, "parts"),
        (1, 32768, 1, "parts"),
        (16, 16384, 1, "one tile"),
        (1, 1 << 18, 1, "the rule's"),
        (300, 16384, 1, "the rule's"),
    ],
)
def test_rows_are_read_by_more_warps_or_in_parts(rows: int, length: int, inputs: int, form: str) -> None:
    launch = launch_of(rows, length, inputs)
    rule = first_tile(launch, launch.reading, H200, False)
    if length <= 1 << 15:  # as counts have it
        rule = rule.but(splits=1)
    stage = with_more_at_work(launch, rule, H200)
    found = "the rule's" if stage == rule else "parts" if stage.splits > 1 else "one tile"
    assert found == form
    assert stage.splits * rows <= H200.sms or form == "the rule's"
    assert form != "one tile" or stage.step >= length
    assert program_us(launch, stage, H200) <= program_us(launch, rule, H200)


def test_a_second_launch_that_waits_for_the_first_costs_as_much() -> None:
    launch, waits = launch_of(1, 32768), replace(H200, capability=80)
    parts = first_tile(launch, launch.reading, H200, False).but(splits=4)
    assert program_us(launch, parts, waits) > program_us(launch, parts, H200) + 1


CALLS: dict[str, tuple[Callable[[Tensor], Tensor], Callable[[Tensor], Tensor]]] = {
    "sum": (lambda x: tilefold.sum(x, 1), lambda x: x.sum(1)),
    "logsumexp": (lambda x: tilefold.logsumexp(x, 1), lambda x: x.logsumexp(1)),
    "argmax": (lambda x: tilefold.argmax(x, 1), lambda x: x.argmax(1)),
}


@pytest.mark.parametrize(("length", "offset"), [(24_577, 3), (32_777, 0)])
@pytest.mark.parametrize("name", CALLS)
@pytest.mark.filterwarnings("ignore:.*ndim > 0 to a scalar:DeprecationWarning")  # Triton's interpreter's own
def test_answers_under_the_interpreter(name: str, length: int, offset: int) -> None:
    ours, torchs = CALLS[name]
    x = torch.randn(length + offset, generator=torch.Generator().manual_seed(length))
    rows = x[offset:].view(1, length)
    with tilefold.backend("interpret"):
        got = ours(rows)
    want = torchs(rows if name == "argmax" else rows.double())
    if name == "argmax":
        assert torch.equal(rows.gather(1, got[:, None]), rows.gather(1, want[:, None]))
        return
    scale = rows.double().abs().sum(1) if name == "sum" else want.abs()
    assert ((got.double() - want).abs() <= 1e-6 * scale).all()
