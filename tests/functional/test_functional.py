"""The conveniences: error bounds on hostile inputs, result types, named tuples, bitwise folds, torch's parameter names."""

from __future__ import annotations

import inspect
import math
import typing

import numpy as np
import pytest
import torch

import tilefold as tf
from tilefold.errors import DtypeError

INF, NAN = float("inf"), float("nan")
U = 2.0**-24  # unit roundoff of float32, in which everything narrower than float64 is folded
SPACING = 2.0**-149  # of denormal numbers: a quotient among them is rounded to it
LENGTHS = [63, 1025, 4099, 2**17 + 1]


@pytest.fixture(autouse=True, params=["auto", "cpu"])
def cpu(request):
    with tf.backend(request.param):
        yield


def hostile(name, length):
    x = torch.rand(length, dtype=torch.float64) - 0.5
    if name == "offset":
        x += 1e4
    elif name == "cancelling":
        x = torch.cat([x, -x])
    elif name == "huge":
        x[length // 2] = 1e30
    elif name == "denormal":
        x *= 1e-39
    return x.float()


INPUTS = pytest.mark.parametrize("name", ["plain", "offset", "cancelling", "huge", "denormal"])
EVERY_LENGTH = pytest.mark.parametrize("length", LENGTHS)


def least_depth(x):
    """Levels of the shallowest tree over x: no depth makes a bound tighter.

    A tree of depth d errs by at most gamma_d sum|x|, gamma_d = d u / (1 - d u); the gates below allow 2 d u, as
    documented, and one rounding of the result.
    """
    return math.ceil(math.log2(x.numel()))


def luck(x):
    """What torch's error may be smaller by luck than another tree's.

    The last roundings are of numbers as large as the result: 2 u of it. Roundings are independent, and each level's add
    up to u / sqrt(3) of the root of the sum of squares, where partial sums wander: three standard deviations of d levels.
    """
    wide = x.double()
    return U * (2 * wide.sum().abs() + 3 * (least_depth(x) / 3) ** 0.5 * (wide**2).sum().sqrt())


@INPUTS
@EVERY_LENGTH
@pytest.mark.parametrize("guarantee", ["run_to_run", "batch_invariant"])
def test_sums_stay_within_both_gates(name, length, guarantee):
    x = hostile(name, length)
    exact = x.double().sum()
    error = (tf.reduce(x, tf.monoids.SUM, guarantee=guarantee).double() - exact).abs()
    assert error <= 2 * least_depth(x) * U * x.double().abs().sum() + U * exact.abs()
    assert error <= 2 * (x.sum().double() - exact).abs() + luck(x)


@INPUTS
@EVERY_LENGTH
def test_means_stay_within_the_gate(name, length):
    x = hostile(name, length)
    exact = x.double().mean()
    gate = 2 * (least_depth(x) + 1) * U * x.double().abs().mean() + U * exact.abs()
    assert (tf.mean(x).double() - exact).abs() <= gate + SPACING
    assert (tf.var_mean(x)[1].double() - exact).abs() <= gate + SPACING


@EVERY_LENGTH
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16], ids=str)
def test_halves_are_rounded_once(dtype, length):
    x = (torch.rand(length) / 8).to(dtype)
    unit = torch.finfo(dtype).eps / 2
    for fold, exact in ((tf.sum, x.double().sum()), (tf.mean, x.double().mean())):
        assert (fold(x).double() - exact).abs() <= (2 * (least_depth(x) + 1) * U + unit) * exact


@EVERY_LENGTH
@pytest.mark.parametrize("name", ["plain", "offset", "cancelling"])
def test_variance_does_not_grow_with_the_condition_number(name, length):
    """Squares are of deviations from a pivot near the mean, so the sum's bound holds for them, whatever the offset.

    There is no second gate: torch's CPU accumulates variances in float64, and errs by one rounding.
    """
    x = hostile(name, length)
    exact = x.double().var()
    error = (tf.var(x).double() - exact).abs()
    assert error <= (2 * (least_depth(x) + 2) + 1) * U * exact


@EVERY_LENGTH
@pytest.mark.parametrize("scale", [1.0, 30.0, 100.0])
def test_logsumexp_stays_within_the_gate(scale, length):
    """Exponents are rounded in proportion to their size (scaled to base 2, shifted); then positive sums, a logarithm."""
    x = torch.rand(length) * scale
    exact = x.double().logsumexp(0)
    gate = (2 * least_depth(x) + 4 + 3 * scale) * U + U * exact.abs()
    assert (tf.logsumexp(x, 0).double() - exact).abs() <= gate


@EVERY_LENGTH
@pytest.mark.parametrize("p", [1, 2, 3, 0.5])
def test_norms_stay_within_the_gate(p, length):
    """A power and a root err by 4 u at most each; the root divides the sum's error by p."""
    x = torch.rand(length) - 0.5
    exact = torch.linalg.vector_norm(x.double(), p)
    gate = (2 * (least_depth(x) + 4) / min(p, 1) + 8) * U * exact
    assert (tf.vector_norm(x, p).double() - exact).abs() <= gate


def test_compensated_sums_have_a_double_s_error():
    """Error-free pairs: what cancels is gone, to twice float32's digits."""
    big = torch.randn(5000) * 1e6
    x = torch.cat([big, -big, torch.rand(5000) * 1e-3])[torch.randperm(15000)]
    exact = x.double().sum()
    gate = U * exact.abs() + 2 * (least_depth(x) * U) ** 2 * x.double().abs().sum()
    assert (tf.reduce(x, tf.monoids.SUM_COMPENSATED).double() - exact).abs() <= gate
    wide = tf.reduce(x * 1000, tf.monoids.SUM_COMPENSATED, dtype=torch.float64)
    exact = (x * 1000).double().sum()
    assert (wide - exact).abs() <= 2.0**-52 * exact.abs() + 2 * (
        least_depth(x) * U
    ) ** 2 * 1000 * x.double().abs().sum()


@pytest.mark.parametrize("dtype", [None, torch.float32], ids=str)
def test_welford_counts_exactly(dtype):
    """Beyond 2^24, where a float32 would stay behind."""
    got = tf.reduce(torch.ones(1).expand(2**25 + 3), tf.monoids.WELFORD, dtype=dtype)
    assert got.count == 2**25 + 3
    assert got.count.dtype == torch.int64
    assert (got.mean, got.M2) == (1, 0)


@pytest.mark.parametrize(
    "values", [[1.0, INF, 2.0], [-INF, 1.0, 2.0, -INF], [INF, -INF, 1.0], [INF]], ids=str
)
@pytest.mark.parametrize("length", [4, 70, 1025])
def test_welford_s_mean_is_torch_s_mean_at_infinity(values, length):
    """And its variance is NaN, as torch's is."""
    x = torch.rand(length)
    x[: len(values)] = torch.tensor(values)
    for data in (x, x.flip(0)):
        got = tf.reduce(data, tf.monoids.WELFORD)
        torch.testing.assert_close(got.mean, data.mean(), equal_nan=True)
        assert got.M2.isnan()
        assert tf.var(data).isnan()
        assert data.var().isnan()


def test_variance_that_overflows_is_infinite():
    """Of finite elements: torch's answer, and not the NaN of inf - inf."""
    x = hostile("huge", 1025)
    for got, want in zip(tf.var_mean(x), torch.var_mean(x), strict=True):
        torch.testing.assert_close(got, want)
    torch.testing.assert_close(tf.std(x), torch.std(x))  # the root of what float32 does not hold
    got = tf.reduce(x, tf.monoids.WELFORD)
    assert got.M2 == INF
    torch.testing.assert_close(got.mean, x.mean())


def test_the_mean_beside_a_variance_is_torch_s():
    """torch.var_mean gives NaN where it is asked for both, unless the infinity comes last."""
    x = torch.tensor([INF, 1.0, 2.0])
    for name in ("var_mean", "std_mean"):
        for got, want in zip(getattr(tf, name)(x), getattr(torch, name)(x), strict=True):
            assert got.isnan()
            assert want.isnan()


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


@pytest.mark.parametrize("keepdim", [True, False])
@pytest.mark.parametrize("name", ["max", "min"])
def test_a_0d_tensor_given_with_keepdim_is_a_dim(name, keepdim):
    x = torch.tensor([[1.0, 4.0], [2.0, 3.0]])
    got, want = (getattr(library, name)(x, torch.tensor(1), keepdim=keepdim) for library in (tf, torch))
    for one, other in zip(got, want, strict=True):
        assert torch.equal(one, other)


@pytest.mark.parametrize("dim", [torch.tensor(1), torch.tensor(-2, dtype=torch.int8)])
@pytest.mark.parametrize("name", ["max", "min"])
def test_a_0d_tensor_given_by_name_is_a_dim(name, dim):
    x = torch.tensor([[1.0, 4.0], [2.0, 3.0]])
    for options in ({}, {"keepdim": True}):
        got, want = (getattr(library, name)(x, dim=dim, **options) for library in (tf, torch))
        assert type(got) is type(want)
        for one, other in zip(got, want, strict=True):
            assert torch.equal(one, other)
    assert torch.equal(getattr(tf, name)(x, dim), getattr(torch, name)(x, dim))


@pytest.mark.parametrize("name", ["max", "min"])
def test_a_0d_tensor_beside_a_pair_to_write_into_is_a_dim(name):
    x = torch.tensor([[1.0, 4.0], [2.0, 3.0]])
    pair = torch.empty(2), torch.empty(2, dtype=torch.int64)
    getattr(tf, name)(x, torch.tensor(1), out=pair)
    for one, other in zip(pair, getattr(torch, name)(x, 1), strict=True):
        assert torch.equal(one, other)


@pytest.mark.parametrize(("dim", "keepdim"), [(None, False), (None, True), (0, False), (1, True)])
@pytest.mark.parametrize("name", ["argmax", "argmin"])
def test_positions_are_written_into_out(name, dim, keepdim):
    x = torch.tensor([[1.0, 4.0, 0.0], [2.0, 3.0, 5.0]])
    want = getattr(torch, name)(x, dim, keepdim)
    out = torch.empty_like(want)
    assert getattr(tf, name)(x, dim, keepdim, out=out) is out
    assert torch.equal(out, want)


@pytest.mark.parametrize("dtype", [float, int, bool], ids=lambda t: t.__name__)
@pytest.mark.parametrize("name", ["sum", "prod"])
def test_pythons_types_are_dtypes_as_in_torch(name, dtype):
    x = torch.tensor([[1.5, -2.0], [0.0, 3.0]])
    got, want = (getattr(library, name)(x, 1, dtype=dtype) for library in (tf, torch))
    assert got.dtype == want.dtype
    assert torch.equal(got, want)


def test_pythons_float_is_a_dtype_of_means_norms_and_folds():
    x = torch.tensor([3.0, -4.0])
    for got in (
        tf.mean(x, dtype=float),
        tf.vector_norm(x, dtype=float),
        tf.norm(x, dtype=float),
        tf.reduce(x, tf.monoids.SUM, dtype=float),
    ):
        assert got.dtype == torch.float64
    with pytest.raises(DtypeError, match=r"a real or bool dtype, got torch.complex128; convert"):
        tf.sum(x, dtype=complex)


@pytest.mark.parametrize("name", ["sum", "prod", "mean", "max", "min", "var", "std", "var_mean", "std_mean"])
def test_the_default_of_keepdim_reads_as_torch_s(name):
    assert repr(inspect.signature(getattr(tf, name)).parameters["keepdim"].default) == "False"


@pytest.mark.filterwarnings("ignore:.*degrees of freedom:UserWarning")
@pytest.mark.parametrize("name", ["var", "std", "var_mean", "std_mean"])
@pytest.mark.parametrize("correction", [0, 1, -1, -2.5])
def test_the_variance_of_nothing_is_nan(name, correction):
    results = getattr(tf, name)(torch.ones(2, 0), 1, correction=correction)
    for result in results if isinstance(results, tuple) else [results]:
        assert result.shape == (2,)
        assert result.isnan().all()


@pytest.mark.filterwarnings("ignore:.*degrees of freedom:UserWarning")
@pytest.mark.parametrize(
    "correction",
    [NAN, INF, -INF, 4.5, True, np.True_, np.int64(2), np.float32(0.5), torch.tensor(1), torch.tensor(1.5)],
    ids=repr,
)
def test_numbers_of_every_kind_are_corrections_as_in_torch(correction):
    x = torch.tensor([[1.0, 1.0, NAN, INF], [2.0, 1.0, 2.0, 2.0], [4.0, 1.0, 5.0, 6.0]])
    for name in ("var", "std"):
        got, want = (getattr(library, name)(x, 0, correction=correction) for library in (tf, torch))
        torch.testing.assert_close(got, want, equal_nan=True)


@pytest.mark.parametrize("name", ["var", "std", "var_mean", "std_mean"])
def test_the_default_of_unbiased_reads_as_torch_s(name):
    assert repr(inspect.signature(getattr(tf, name)).parameters["unbiased"].default) == "True"


@pytest.mark.parametrize("order", [1, 3, 0.5, -2, 100, INF, -INF])
@pytest.mark.parametrize("dtype", [torch.float16, torch.float32, torch.float64], ids=str)
def test_the_norm_of_one_element_is_its_magnitude(order, dtype):
    x = torch.tensor([[-5.0], [0.1], [0.0], [-INF], [NAN]], dtype=dtype)
    for got in (tf.vector_norm(x, order, 1), tf.norm(x, order, 1), tf.vector_norm(x.T, order, 0)):
        assert torch.equal(got.nan_to_num(7.0), x.abs().view(-1).nan_to_num(7.0))
    assert torch.equal(tf.vector_norm(x[0, 0], order), torch.linalg.vector_norm(x[0, 0], order))


@pytest.mark.parametrize(
    "order",
    [*map(torch.tensor, (2.0, 2, 3, 0, True, 0.5, INF, -INF)), np.float32(3), np.int64(1), np.True_, True],
    ids=repr,
)
def test_numbers_of_every_kind_are_orders_as_in_torch(order):
    x = torch.tensor([[3.0, -4.0, 0.0], [1.0, 2.0, -2.0]])
    for dim in (None, 1):
        want = torch.linalg.vector_norm(x, order, dim)
        torch.testing.assert_close(tf.vector_norm(x, order, dim), want)
        torch.testing.assert_close(tf.norm(x, order, dim), want)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32, torch.float64], ids=str)
def test_norms_of_float8_come_in_any_wider_dtype(dtype):
    x = torch.tensor([3.0, -4.0]).to(torch.float8_e4m3fn)
    result = tf.vector_norm(x, dtype=dtype)
    assert result.dtype == dtype
    assert result.item() == 5
    for narrow in (torch.float8_e5m2, torch.float8_e4m3fn):
        with pytest.raises(DtypeError, match="without narrowing"):
            tf.vector_norm(torch.ones(2, dtype=dtype), dtype=narrow)


FOLDS = ["sum", "prod", "amax", "amin", "max", "min", "argmax", "argmin", "aminmax", "any", "all", "mean", "var", "std",
         "var_mean", "std_mean", "logsumexp", "vector_norm"]  # fmt: skip


@pytest.mark.parametrize("name", FOLDS)
def test_numpys_names_of_dim_and_keepdim_are_taken_as_in_torch(name):
    x = torch.rand(3, 4)
    ours = getattr(tf, name)
    torchs = torch.linalg.vector_norm if name == "vector_norm" else getattr(torch, name)
    for options in (
        {"axis": 0},
        {"axis": -1, "keepdims": True},
        {"dim": 0, "keepdims": True},
        {"axis": 0, "keepdim": True},
    ):
        torch.testing.assert_close(ours(x, **options), torchs(x, **options))


@pytest.mark.parametrize("name", [*FOLDS, "norm", "count_nonzero", "bitwise_or"])
def test_annotations_can_be_read_when_running(name):
    assert "return" in typing.get_type_hints(getattr(tf, name))


def test_numpys_names_beside_every_other_argument():
    """They are passed on with the rest: by name, whatever the function."""
    x = torch.tensor([[3.0, 4.0], [6.0, 8.0]])
    out = torch.empty(2, dtype=torch.float64)
    assert tf.sum(x, axis=1, dtype=torch.float64, out=out) is out
    assert tf.vector_norm(x, 1, axis=1).tolist() == [7.0, 14.0]
    assert (
        tf.var(x, axis=1, correction=0).tolist() == tf.var(x, axis=1, unbiased=False).tolist() == [0.25, 1.0]
    )
    assert tf.count_nonzero(x, axis=(0, 1)).item() == 4
    assert tf.bitwise_or(x.long(), axis=1, keepdims=True).tolist() == [[7], [14]]
    assert tf.bitwise_and(x.long(), axis=0).tolist() == [2, 0]
    assert tf.bitwise_xor(x.long(), axis=0).tolist() == [5, 12]
    assert torch.equal(tf.max(x, axis=torch.tensor(1)).values, x[:, 1])


WRITTEN = [
    torch.float16,
    torch.bfloat16,
    torch.float32,
    torch.float64,
    torch.int8,
    torch.uint8,
    torch.int32,
    torch.int64,
]


@pytest.mark.parametrize(
    "dtype", [torch.float16, torch.float32, torch.uint8, torch.int32, torch.bool], ids=str
)
@pytest.mark.parametrize("name", ["sum", "prod", "mean", "cumsum", "cumprod"])
def test_an_out_says_the_dtype_where_none_is_given(name, dtype):
    """As in torch: elements are converted first, so 300 and more wrap, and fractions are cut off."""
    x = torch.tensor([1.5, 2.5, 60.0, 3.0]).to(dtype)
    for written in WRITTEN:
        pair = []
        for module in (tf, torch):
            out = torch.empty(4 if name.startswith("cum") else (), dtype=written)
            try:
                assert getattr(module, name)(x, 0, out=out) is out
            except RuntimeError:
                out = None
            pair.append(out)
        assert (pair[0] is None) == (pair[1] is None), written
        if pair[0] is not None:
            rtol = 4 * torch.finfo(written).eps if written.is_floating_point else 0
            torch.testing.assert_close(*pair, rtol=rtol, atol=0)


def test_keepdim_needs_a_dim():
    with pytest.raises(TypeError, match="keepdim"):
        tf.sum(torch.ones(2), keepdim=True)


@pytest.mark.parametrize(
    "name", ["sum", "mean", "prod", "amax", "argmax", "any", "all", "var", "std", "logsumexp"]
)
def test_parameters_have_torch_s_names(name):
    assert list(inspect.signature(getattr(tf, name)).parameters)[:2] == ["input", "dim"]


@pytest.mark.parametrize("name", ["auto", "cpu"])
@pytest.mark.parametrize("place", [0, 1, -1])
@pytest.mark.parametrize("n", [1000, 1 << 17, 300_001])
def test_variance_of_one_huge_value_among_small_ones(n, place, name):
    """Sums about a first element would lose n times the rounding when that element is the outlier."""
    x = torch.randn(n, generator=torch.Generator().manual_seed(3))
    x[place] = 1e5
    with tf.backend(name):
        got = tf.var(x)
    torch.testing.assert_close(
        got.double(), x.double().var(), rtol=64 * torch.finfo(torch.float32).eps, atol=0
    )


@pytest.mark.parametrize("dim", [0, 1, -1])
@pytest.mark.parametrize("name", ["cumsum", "cumprod", "cummax", "cummin", "logcumsumexp"])
def test_prefixes_are_torchs(name: str, dim: int) -> None:
    """Results and positions, of numbers with ties, and into `out`."""
    x = torch.tensor([[1.0, 0.5, 2.0, 2.0, -1.0], [0.5, 0.5, 1.0, -2.0, 4.0]])
    got, want = getattr(tf, name)(x, dim), getattr(torch, name)(x, dim)
    assert type(got) is type(want)
    pairs = list(zip(got, want, strict=True)) if isinstance(want, tuple) else [(got, want)]
    for mine, theirs in pairs:
        torch.testing.assert_close(mine, theirs, rtol=1e-6, atol=1e-9)
    empty = tuple(torch.empty_like(theirs) for _, theirs in pairs)
    getattr(tf, name)(x, dim, out=empty if len(empty) > 1 else empty[0])
    for written, (_, theirs) in zip(empty, pairs, strict=True):
        torch.testing.assert_close(written, theirs, rtol=1e-6, atol=1e-9)
