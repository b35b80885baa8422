"""Every monoid of the catalogue against torch, folded by the reference, element by element."""

from __future__ import annotations

import functools

import pytest
import torch

import tilefold as tf
from tilefold import Monoid, monoids
from tilefold.algebra.program import specialize
from tilefold.backends import reference

INF, NAN = float("inf"), float("nan")
ROWS = {
    "plain": [3.0, -1.5, 0.0, 7.25, 7.25, -8.0],
    "negative": [-3.0, -1.0, -2.0, -1.0],
    "nan": [1.0, NAN, 5.0, NAN],
    "plus-inf": [1.0, INF, 2.0],
    "minus-inf": [-INF, 1.0, -INF],
    "all-minus-inf": [-INF, -INF],
    "both-infinities": [INF, -INF, 1.0],
    "one": [2.5],
    "empty": [],
}
ROW = pytest.mark.parametrize("row", ROWS.values(), ids=ROWS.keys())


def fold(monoid, *tensors):
    program = specialize(monoid.total, tuple(t.dtype for t in tensors))
    return monoid.pack(reference.fold(tensors, program, range(tensors[0].ndim)))


def same(got, want, **tolerance):
    torch.testing.assert_close(got, want, equal_nan=True, **tolerance)


TORCH = {
    "SUM": torch.sum,
    "PROD": torch.prod,
    "ANY": torch.any,
    "ALL": torch.all,
    "COUNT_NONZERO": torch.count_nonzero,
    "LOGSUMEXP": functools.partial(torch.logsumexp, dim=0),
    "SUM_COMPENSATED": torch.sum,
}


@ROW
@pytest.mark.parametrize("name", TORCH)
def test_as_torch(name, row):
    x = torch.tensor(row)
    same(fold(getattr(monoids, name), x), TORCH[name](x))


NOT_EMPTY = pytest.mark.parametrize(
    "row", [r for r in ROWS.values() if r], ids=[name for name, r in ROWS.items() if r]
)


@NOT_EMPTY
def test_extremes(row):
    x = torch.tensor(row)
    same(fold(monoids.MAX, x), x.amax())
    same(fold(monoids.MIN, x), x.amin())
    both = fold(monoids.MINMAX, x)
    same(both.min, x.amin())
    same(both.max, x.amax())


@NOT_EMPTY
def test_located_extremes(row):
    x = torch.tensor(row)
    same(fold(monoids.ARGMAX, x), x.argmax())
    same(fold(monoids.ARGMIN, x), x.argmin())
    for monoid, position in ((monoids.MAX_WITH_INDEX, x.argmax()), (monoids.MIN_WITH_INDEX, x.argmin())):
        got = fold(monoid, x)
        same(got.indices, position)
        same(got.values, x[position])


@NOT_EMPTY
@pytest.mark.parametrize("p", [0, 1, 2, 3, -1.5, INF, -INF])
def test_norm(row, p):
    x = torch.tensor(row)
    same(fold(monoids.NORM(p), x), torch.linalg.vector_norm(x, p))


def test_norm_is_cached():
    assert monoids.NORM(3) is monoids.NORM(3)


@pytest.mark.parametrize("dtype", [torch.uint8, torch.int8, torch.int32, torch.int64], ids=str)
def test_bitwise(dtype):
    x = torch.tensor([12, 10, 120], dtype=dtype)
    for monoid, want in ((monoids.BITWISE_OR, 126), (monoids.BITWISE_AND, 8), (monoids.BITWISE_XOR, 126)):
        same(fold(monoid, x), torch.tensor(want, dtype=dtype))
    same(fold(monoids.BITWISE_AND, x[:0]), torch.tensor(~0 if dtype != torch.uint8 else 255, dtype=dtype))


def test_extremes_of_empty_integers_are_the_dtypes_limits():
    empty = torch.empty(0, dtype=torch.int8)
    same(fold(monoids.MAX, empty), torch.tensor(-128, dtype=torch.int8))
    same(fold(monoids.MIN, empty), torch.tensor(127, dtype=torch.int8))


@pytest.mark.parametrize("offset", [0.0, 1e4, -1e6])
def test_welford_keeps_its_accuracy_at_an_offset(offset):
    x = torch.randn(1000) + offset
    got = fold(monoids.WELFORD, x)
    assert got.count == 1000
    same(got.mean, x.double().mean().float(), rtol=1e-6, atol=1e-6)
    same(got.M2, (x.double().var() * 999).float(), rtol=1e-5, atol=0)


def test_compensated_sum_has_the_error_of_a_double_sum():
    x = torch.cat([torch.randn(500) * 1e6, torch.randn(500)])
    got = fold(monoids.SUM_COMPENSATED, torch.cat([x, -x, torch.tensor([0.125])]))
    same(got, torch.tensor(0.125), rtol=0, atol=1e-7)


def test_describe():
    got = fold(monoids.DESCRIBE, torch.tensor([1.0, -4.0, 0.0, NAN, INF, -INF, 3.0]))
    assert (got.count, got.nans, got.infs, got.zeros) == (7, 1, 2, 1)
    assert (got.min, got.max, got.absmax) == (-4.0, 3.0, 4.0)
    finite = torch.tensor([1.0, -4.0, 0.0, 3.0])
    same(got.mean, finite.mean())
    same(got.std, finite.std())


def test_describe_without_a_finite_element():
    got = fold(monoids.DESCRIBE, torch.tensor([NAN, INF]))
    assert (got.count, got.nans, got.infs) == (2, 1, 1)
    assert got.mean.isnan()
    assert got.std.isnan()


def test_affine_applies_the_first_map_first():
    a, b = torch.tensor([2.0, 3.0, -1.0]), torch.tensor([1.0, 5.0, 4.0])
    got = fold(monoids.AFFINE, a, b)
    y = 10.0
    for slope, shift in zip(a.tolist(), b.tolist(), strict=True):
        y = slope * y + shift
    assert float(got.a) * 10.0 + float(got.b) == y


def test_matmul2x2_multiplies_from_left_to_right():
    matrices = torch.randint(-3, 4, (5, 2, 2)).double()
    got = fold(monoids.MATMUL2X2, *matrices.reshape(5, 4).unbind(1))
    same(torch.stack(list(got)).reshape(2, 2), torch.linalg.multi_dot(list(matrices)))


def test_first_and_last():
    x = torch.tensor([3.0, 1.0, 2.0])
    assert fold(monoids.FIRST, x) == 3.0
    assert fold(monoids.LAST, x) == 2.0


# ------------------------------------------------------------------------------------------- on every CPU path

BACKENDS = ["auto", "cpu", "reference"]
EVERY_PATH = pytest.mark.parametrize(
    ("name", "guarantee"),
    [(b, g) for b in BACKENDS for g in ("run_to_run", "batch_invariant")],
    ids=lambda value: value,
)
FLOAT_FOLDS = {
    name: monoid
    for name, monoid in [
        *((n, m) for n, m in vars(monoids).items() if isinstance(m, Monoid)),
        *((f"NORM({p})", monoids.NORM(p)) for p in (0, 1, 2, 3, -1.5, INF, -INF)),
    ]
    if not name.startswith("BITWISE")
}
# NaN counts as an element that is not zero, or is counted apart, or is not looked at: not lost, but not in the result.
NAN_IS_COUNTED = {"ANY", "ALL", "COUNT_NONZERO", "NORM(0)"}
NAN_STANDS_ALONE = {"DESCRIBE", "FIRST", "LAST"}


@EVERY_PATH
@pytest.mark.parametrize("monoid", sorted(FLOAT_FOLDS))
def test_nan_is_never_lost(monoid, name, guarantee):
    """One NaN first, in the middle, last, alone, beside an infinity: torch's answer is NaN, or counts it."""
    fold_of = FLOAT_FOLDS[monoid]
    with tf.backend(name):
        for length in (1, 2, 65, 130):
            for place in {0, length // 2, length - 1}:
                x = torch.rand(3, length) + 0.5
                x[1, place] = NAN
                x[2, length - 1 - place] = INF
                x[2, place] = NAN
                got = tf.reduce([x] * fold_of.algebra.inputs, fold_of, 1, guarantee=guarantee)
                shown = expected_nan(monoid, place, length)
                for result in got if isinstance(got, tuple) else (got,):
                    if result.is_floating_point() and shown is not None:
                        assert result[1:].isnan().all() == shown, f"{monoid}: {got}"
                        assert not result[0].isnan()
                if "WITH_INDEX" in monoid or "ARG" in monoid:
                    indices = got.indices if isinstance(got, tuple) else got
                    assert indices[1:].tolist() == [place, place]
                if monoid in ("ANY", "ALL"):
                    assert got.all()
                if monoid in ("COUNT_NONZERO", "NORM(0)"):
                    assert (got == length).all()
                if monoid == "DESCRIBE":
                    assert got.nans.tolist() == [0, 1, 1]


def expected_nan(monoid: str, place: int, length: int) -> bool | None:
    """Whether the results of rows with a NaN at `place` are NaN; None where NaN is counted or set aside."""
    if monoid == "FIRST":
        return place == 0
    if monoid == "LAST":
        return place == length - 1
    return None if monoid in NAN_IS_COUNTED | NAN_STANDS_ALONE else True


@EVERY_PATH
@pytest.mark.parametrize("shape", [(1,), (2,), (63,), (65,), (1025,), (3, 65), (65, 3), (5, 7, 9)], ids=str)
def test_ordered_monoids_are_right_on_every_path(shape, name, guarantee):
    """Against torch in float64, one element after another, along each dim and all of them."""
    angle = torch.rand(shape) * 6
    rotations = [angle.cos(), -angle.sin(), angle.sin(), angle.cos()]
    slope, shift = 0.9 + 0.2 * torch.rand(shape), torch.randn(shape)
    x = torch.randn(shape)
    for dim in [*range(len(shape)), None]:
        rows = [flat(t, dim) for t in (angle, slope, shift, x)]
        with tf.backend(name):
            turned = tf.reduce(rotations, monoids.MATMUL2X2, dim, guarantee=guarantee)
            mapped = tf.reduce((slope, shift), monoids.AFFINE, dim, guarantee=guarantee)
            first, last = (tf.reduce(x, m, dim, guarantee=guarantee) for m in (monoids.FIRST, monoids.LAST))
        n, total = rows[0].shape[-1], rows[0].double().sum(-1)
        room = 4 * n * 2**-24  # each product rounds an angle or an entry by at most 4 u
        for got, want in zip(turned, (total.cos(), -total.sin(), total.sin(), total.cos()), strict=True):
            assert ((got.double() - want).abs() <= room).all()
        a, b, size = torch.ones(total.shape).double(), torch.zeros(total.shape).double(), 0.0
        for k in range(n):
            scale, move = rows[1][..., k].double(), rows[2][..., k].double()
            a, b, size = scale * a, scale * b + move, scale * size + move.abs()
        assert ((mapped.a.double() - a).abs() <= room * a).all()
        assert ((mapped.b.double() - b).abs() <= room * size).all()
        assert torch.equal(first, rows[3][..., 0])
        assert torch.equal(last, rows[3][..., -1])


def flat(x: torch.Tensor, dim: int | None) -> torch.Tensor:
    return x.flatten() if dim is None else x.movedim(dim, -1)
