"""The conveniences: error bounds on hostile inputs, result types, named tuples, bitwise folds, torch's parameter names."""

from __future__ import annotations

import inspect

import numpy as np
import pytest
import torch

import tilefold as tf

U = 2.0**-24
N = 4099


@pytest.fixture(autouse=True)
def lanes():
    with tf.backend("lanes"):
        yield


def hostile(name):
    x = torch.rand(N, dtype=torch.float64) - 0.5
    if name == "offset":
        x += 1e4
    elif name == "cancelling":
        x = torch.cat([x, -x])
    elif name == "huge":
        x[N // 2] = 1e30
    elif name == "denormal":
        x *= 1e-39
    return x.float()


INPUTS = ["offset", "cancelling", "huge", "denormal"]


@pytest.mark.parametrize("name", INPUTS)
def test_sum_stays_within_both_gates(name):
    x = hostile(name)
    exact = x.double().sum()
    error = (tf.sum(x).double() - exact).abs()
    total = x.double().abs().sum()
    depth = 64  # items a lane takes one after another, and the levels of its tree
    assert error <= 2 * depth * U * total + U * exact.abs()
    # The second gate's floor is torch's tree of log2(n) roundings, half a unit each.
    assert error <= 2 * (x.sum().double() - exact).abs() + 12 * U * total


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16], ids=str)
def test_halves_are_rounded_once(dtype):
    x = torch.rand(N).to(dtype)
    unit = torch.finfo(dtype).eps / 2
    exact = x.double().sum()
    assert (tf.sum(x).double() - exact).abs() <= (unit + 128 * U) * exact
    exact = x.double().mean()
    assert (tf.mean(x).double() - exact).abs() <= (unit + 128 * U) * exact


@pytest.mark.parametrize("name", ["offset", "cancelling"])
def test_variance_of_far_data(name):
    x = hostile(name)
    exact = x.double().var()
    assert (tf.var(x).double() - exact).abs() <= 2 * (x.var().double() - exact).abs() + 1e-5 * exact


def test_named_tuples_are_torch_s():
    x = torch.rand(3, 4)
    for got, want in (
        (tf.max(x, 1), torch.max(x, 1)),
        (tf.min(x, 1), torch.min(x, 1)),
        (tf.aminmax(x, dim=1), torch.aminmax(x, dim=1)),
    ):
        assert type(got) is type(want)
        for a, b in zip(got, want, strict=True):
            assert torch.equal(a, b)


@pytest.mark.parametrize("name", ["bitwise_or", "bitwise_and", "bitwise_xor"])
@pytest.mark.parametrize("dtype", [torch.bool, torch.uint8, torch.int16, torch.int32, torch.int64], ids=str)
def test_bitwise(name, dtype):
    x = torch.randint(0, 120, (5, 7)).to(dtype)
    want = torch.from_numpy(getattr(np, name).reduce(x.numpy(), axis=1))
    got = getattr(tf, name)(x, 1)
    assert got.dtype == dtype
    assert torch.equal(got, want)


def test_bitwise_refuses_floats():
    with pytest.raises(TypeError, match="integers or bool"):
        tf.bitwise_or(torch.ones(2))


def test_max_of_two_tensors():
    a, b = torch.tensor([1.0, 4.0]), torch.tensor([2.0, 3.0])
    assert torch.equal(tf.max(a, b), torch.maximum(a, b))
    assert torch.equal(tf.min(a, other=b), torch.minimum(a, b))


def test_keepdim_needs_a_dim():
    with pytest.raises(TypeError, match="keepdim"):
        tf.sum(torch.ones(2), keepdim=True)


@pytest.mark.parametrize(
    "name", ["sum", "mean", "prod", "amax", "argmax", "any", "all", "var", "std", "logsumexp"]
)
def test_parameters_have_torch_s_names(name):
    assert list(inspect.signature(getattr(tf, name)).parameters)[:2] == ["input", "dim"]
