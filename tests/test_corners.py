"""The semantic corners of reductions, with torch's answers as the rule. Each runs on the forced lanes backend."""

from __future__ import annotations

import pytest
import torch

import tilefold as tf

NAN, INF = float("nan"), float("inf")


@pytest.fixture(autouse=True)
def lanes():
    with tf.backend("lanes"):
        yield


def same(got, want):
    torch.testing.assert_close(got, want, equal_nan=True, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("name", ["sum", "amax", "any", "all"])
def test_empty_dim(name):
    x = torch.tensor([[1.0, 0.0], [3.0, 4.0]])
    same(getattr(tf, name)(x, dim=()), getattr(torch, name)(x, dim=()))


def test_empty_dim_of_norm_folds_all():
    same(tf.vector_norm(torch.tensor([[3.0, 4.0]]), dim=()), torch.tensor(5.0))


@pytest.mark.parametrize("name", ["sum", "prod", "any", "all", "mean", "var"])
@pytest.mark.filterwarnings("ignore:.*degrees of freedom.*:UserWarning")  # torch warns, we document it
def test_empty_input(name):
    same(getattr(tf, name)(torch.ones(0)), getattr(torch, name)(torch.ones(0)))


def test_logsumexp_of_nothing():
    same(tf.logsumexp(torch.ones(0), 0), torch.tensor(-INF))


@pytest.mark.parametrize("dim", [None, 0])
@pytest.mark.parametrize("name", ["amax", "amin", "argmax", "argmin"])
def test_extremes_of_nothing(name, dim):
    if dim is None and name.startswith("am"):
        kind, call = RuntimeError, lambda: getattr(tf, name)(torch.ones(0))
    else:
        kind, call = IndexError, lambda: getattr(tf, name)(torch.ones(0), dim)
    with pytest.raises(kind, match="at least one element"):
        call()


@pytest.mark.parametrize("dim", [0, -1])
def test_zero_d(dim):
    same(tf.sum(torch.tensor(3.0), dim), torch.tensor(3.0))
    with pytest.raises(IndexError, match="must be in"):
        tf.sum(torch.tensor(3.0), 1)


@pytest.mark.parametrize("dims", [(0, 0), (0, -2)])
def test_repeated_dim(dims):
    with pytest.raises(RuntimeError, match="once"):
        tf.sum(torch.ones(2, 2), dims)


def test_argmax_takes_no_tuple():
    with pytest.raises(TypeError, match="one int"):
        tf.argmax(torch.ones(2, 2), (0, 1))


def test_nan():
    x = torch.tensor([1.0, NAN, 5.0, NAN])
    for fold in (tf.max, tf.min, tf.amax, tf.amin):
        assert fold(x).isnan()
    assert tf.argmax(x) == 1
    assert tf.argmin(x) == 1
    assert tf.any(torch.tensor([NAN]))


def test_ties():
    assert tf.argmax(torch.ones(2)) == 0
    assert tf.max(torch.ones(1, 3), 1).indices.item() == 0


@pytest.mark.parametrize("values", [[-INF, -INF], [1.0, INF], [-INF, INF], [NAN, INF]], ids=str)
def test_logsumexp_at_infinity(values):
    x = torch.tensor(values)
    same(tf.logsumexp(x, 0), torch.logsumexp(x, 0))


@pytest.mark.parametrize("dtype", [torch.bool, torch.int8, torch.int32, torch.uint8], ids=str)
def test_integers(dtype):
    x = torch.tensor([0, 1, 1, 3]).to(dtype)
    for name in ("sum", "prod", "any", "all", "count_nonzero"):
        torch.testing.assert_close(getattr(tf, name)(x), getattr(torch, name)(x))
    same(tf.logsumexp(x, 0), torch.logsumexp(x.float(), 0))
    with pytest.raises(RuntimeError, match="float"):
        tf.mean(x)


def test_int64_wraps():
    x = torch.tensor([2**63 - 1, 1])
    assert tf.sum(x) == -(2**63)


def test_half_types():
    ones = torch.ones(70000, dtype=torch.float16)
    assert tf.sum(ones) == INF
    assert tf.sum(ones, dtype=torch.float32) == 70000
    assert tf.mean(ones) == 1
    assert tf.sum(torch.ones(100000, dtype=torch.bfloat16)) == 99840


def test_complex_is_refused():
    with pytest.raises(RuntimeError, match="view_as_real"):
        tf.amax(torch.ones(2, dtype=torch.complex64))


def test_strides():
    x = torch.arange(24.0).reshape(4, 6)
    for view in (x[::2, 1::2], x.T, x[:1].expand(5, 6), x.flatten()[1:]):
        same(tf.sum(view, 0), view.contiguous().sum(0))


def test_a_result_is_not_a_view_of_its_input():
    x = torch.ones(3, 1)
    tf.sum(x, 1).add_(1)
    assert torch.equal(x, torch.ones(3, 1))


def test_overlapping_out():
    x = torch.ones(3, 3)
    with pytest.raises(RuntimeError, match="overlap"):
        tf.sum(x, 0, out=x[0])


def test_inference_mode():
    with torch.inference_mode():
        assert tf.sum(torch.ones(3)).is_inference()
