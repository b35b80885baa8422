"""Statistics of live models, beside those of each tensor."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
import torch

import tilefold
from tilefold.checkpoints.describe import describe_tensor
from tilefold.errors import KindError


def model() -> torch.nn.Module:
    torch.manual_seed(4)
    made = torch.nn.Sequential(
        torch.nn.Linear(7, 5), torch.nn.LayerNorm(5), torch.nn.Linear(5, 3, dtype=torch.float64)
    )
    made[0](torch.randn(2, 7)).square().sum().backward()
    made.register_parameter("scale", torch.nn.Parameter(torch.tensor(2.0, dtype=torch.bfloat16)))
    made.register_parameter("nothing", torch.nn.Parameter(torch.empty(0, 3)))
    made.register_parameter("tiny", torch.nn.Parameter(torch.randn(40) * 1e-30))
    made.register_parameter("one", torch.nn.Parameter(torch.tensor([1.5]).expand(4, 5)))
    made[1].weight.data[2] = math.nan
    made[0].weight.grad[1, 1] = -math.inf
    return made


def test_every_parameter_and_gradient_is_described() -> None:
    made = model()
    report = tilefold.describe(made)
    tensors = {n: p.detach() for n, p in made.named_parameters()}
    tensors |= {f"{n}.grad": p.grad for n, p in made.named_parameters() if p.grad is not None}
    assert {t.name for t in report.tensors} == set(tensors)
    assert not report.refused
    for t in report.tensors:
        want = describe_tensor(t.name, tensors[t.name])
        assert replace(t, mean=None, std=None) == replace(want, mean=None, std=None)
        for got, exact in ((t.mean, want.mean), (t.std, want.std)):
            assert got == (None if exact is None else pytest.approx(exact, rel=1e-5))
    assert not report.finite


def test_gradients_stand_behind_their_parameters_and_a_report_prints_as_a_table() -> None:
    report = tilefold.describe(model())
    names = [t.name for t in report.tensors]
    assert names[names.index("0.weight") + 1] == "0.weight.grad"
    text = str(report)
    assert text.startswith("Sequential\n")
    assert "! 0.weight.grad" in text
    assert "NaN or inf in 2 of" in text


def test_tensors_without_statistics_are_refused_by_name() -> None:
    made = torch.nn.Linear(2, 2)
    made.register_parameter("phase", torch.nn.Parameter(torch.zeros(3, dtype=torch.complex64)))
    report = tilefold.describe(made)
    assert [r.name for r in report.refused] == ["phase"]
    assert report.refused[0].reason.startswith("elements must be real numbers")
    assert len(report.tensors) == 2


def test_what_is_no_model_is_refused() -> None:
    with pytest.raises(KindError, match=r"must be a torch\.nn\.Module, got dict"):
        tilefold.describe({})
