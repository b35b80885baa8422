"""`clip_grad_norm_` beside torch's."""

from __future__ import annotations

import copy
import math
from typing import Any

import pytest
import torch
from torch._dynamo.testing import CompileCounter

import tilefold
from tilefold.errors import DtypeError, KindError, NotFiniteError, OrderError

theirs = torch.nn.utils.clip_grad_norm_


def model(*dtypes: torch.dtype) -> torch.nn.ParameterList:
    drawn = torch.Generator().manual_seed(3)
    shapes = [(4, 5), (), (70, 9), (0,), (3, 2, 2)]
    made = torch.nn.ParameterList()
    for i, shape in enumerate(shapes):
        p = torch.nn.Parameter(torch.randn(shape, generator=drawn).to(dtypes[i % len(dtypes)]))
        p.grad = torch.randn(shape, generator=drawn).to(p.dtype)
        made.append(p)
    made.append(torch.nn.Parameter(torch.ones(2)))  # without a gradient
    return made


@pytest.mark.parametrize("order", [2, 2.0, 1, 0, 3.5, math.inf, "inf"])
@pytest.mark.parametrize(
    "dtypes", [(torch.float32,), (torch.float64,), (torch.bfloat16, torch.float32)], ids=str
)
@pytest.mark.parametrize("most", [0.5, 1000])
def test_as_torch(order: Any, dtypes: tuple[torch.dtype, ...], most: float) -> None:
    ours, other = model(*dtypes), model(*dtypes)
    if order in (math.inf, "inf"):  # torch has none of nothing
        ours[3].grad = other[3].grad = None
    got, want = (
        tilefold.clip_grad_norm_(ours.parameters(), most, order),
        theirs(other.parameters(), most, order),
    )
    near = 2.0**-7 if torch.bfloat16 in dtypes else 1e-6  # torch rounds the norm of each bfloat16 gradient
    torch.testing.assert_close(got, want, rtol=near, atol=0)
    for p, q in zip(ours, other, strict=True):
        assert (p.grad is None) == (q.grad is None)
        if p.grad is not None:
            torch.testing.assert_close(p.grad, q.grad, rtol=2 * near, atol=0)


def test_a_norm_of_narrow_gradients_is_rounded_once() -> None:
    ours = model(torch.bfloat16)
    exact = torch.cat([p.grad.double().flatten() for p in ours if p.grad is not None]).norm()
    assert tilefold.clip_grad_norm_(ours, 1.0) == exact.bfloat16()


def test_one_tensor_and_none() -> None:
    p = torch.nn.Parameter(torch.zeros(2))
    assert tilefold.clip_grad_norm_(p, 1.0) == 0
    assert tilefold.clip_grad_norm_([], 1.0) == 0
    p.grad = torch.tensor([3.0, 4.0])
    assert tilefold.clip_grad_norm_(p, 1.0, foreach=False) == 5
    torch.testing.assert_close(p.grad, torch.tensor([0.6, 0.8]), rtol=1e-6, atol=0)


@pytest.mark.parametrize("bad", [math.nan, math.inf])
def test_norms_that_are_not_finite(bad: float) -> None:
    ours, other = model(torch.float32), model(torch.float32)
    for each in (ours, other):
        each[2].grad[5, 5] = bad
    before = copy.deepcopy(ours[2].grad)
    with pytest.raises(NotFiniteError, match=r"must be finite with error_if_nonfinite=True, got (nan|inf)"):
        tilefold.clip_grad_norm_(ours, 1.0, error_if_nonfinite=True)
    torch.testing.assert_close(ours[2].grad, before, equal_nan=True)
    got, want = tilefold.clip_grad_norm_(ours, 1.0), theirs(other, 1.0)
    torch.testing.assert_close(got, want, equal_nan=True)
    torch.testing.assert_close(ours[2].grad, other[2].grad, equal_nan=True)


def test_inside_a_compiled_step() -> None:
    layer = torch.nn.Linear(6, 4)
    x = torch.randn(3, 6)

    def step() -> torch.Tensor:
        layer.zero_grad()
        layer(x).square().sum().backward()
        return layer.weight.grad

    step()
    same = copy.deepcopy(layer)
    for p, q in zip(layer.parameters(), same.parameters(), strict=True):
        q.grad = p.grad.clone()
    clip = torch.compile(
        lambda: tilefold.clip_grad_norm_(layer.parameters(), 0.1), fullgraph=True, backend="aot_eager"
    )
    torch.testing.assert_close(clip(), theirs(same.parameters(), 0.1))
    for p, q in zip(layer.parameters(), same.parameters(), strict=True):
        torch.testing.assert_close(p.grad, q.grad)


def test_code_for_torch_catches_a_norm_that_is_not_finite() -> None:
    for clip in (theirs, tilefold.clip_grad_norm_):
        p = torch.nn.Parameter(torch.zeros(2))
        p.grad = torch.tensor([math.nan, 1.0])
        with pytest.raises(RuntimeError, match="non-finite"):
            clip(p, 1.0, error_if_nonfinite=True)


def test_a_compiled_step_serves_all_greatest_norms() -> None:
    ours, other = model(torch.float32), model(torch.float32)
    graphs = CompileCounter()
    clip = torch.compile(
        lambda most: tilefold.clip_grad_norm_(ours, most), fullgraph=True, dynamic=True, backend=graphs
    )
    for most in (0.5, 0.25, 0.125):
        torch.testing.assert_close(clip(most), theirs(other, most))
        torch.testing.assert_close(ours[2].grad, other[2].grad, rtol=1e-5, atol=0)
    assert graphs.frame_count == 1


def test_refusals() -> None:
    p = torch.nn.Parameter(torch.zeros(2))
    p.grad = torch.ones(2)
    with pytest.raises(OrderError, match="`max_norm` must be a real number, got"):
        tilefold.clip_grad_norm_(p, "much")
    with pytest.raises(OrderError, match="`norm_type` must be a real number, got"):
        tilefold.clip_grad_norm_(p, 1.0, "nuc")
    with pytest.raises(KindError, match="a parameter must be a tensor, got int"):
        tilefold.clip_grad_norm_([p, 3], 1.0)
    with pytest.raises(KindError, match="`error_if_nonfinite` must be True or False"):
        tilefold.clip_grad_norm_(p, 1.0, error_if_nonfinite=1)
    p.grad = None
    q = torch.nn.Parameter(torch.zeros(2))
    q.grad = torch.ones(2).to_sparse()
    with pytest.raises(DtypeError, match="must be dense"):
        tilefold.clip_grad_norm_(q, 1.0)
