"""What inputs are declared to be: samples stay within it, laws need to hold there only, and proofs may use it."""

from __future__ import annotations

import copy
import math
import pickle
from typing import Any

import pytest
import torch

import tilefold
from tilefold import Monoid, monoids
from tilefold import math as tm
from tilefold.algebra.domain import ANY, NAMES, Range, domain_text, read_domain, within
from tilefold.algebra.proofs.samples import MORE_SAMPLES, SAMPLES, kinds_of, pool_of
from tilefold.errors import LawError

INF, NAN = math.inf, math.nan
RANGES: list[Any] = [
    "finite", "positive", "nonnegative", "negative", "nonpositive", (0, None), (None, -3.5), (5, 6), (0.1, 0.2), (-1e9, -1e8),
    (7, 7), (-1, 1), (1e20, None), (1e-30, 2e-30), (1e20, 1e300),
    (None, 0.3), (-1e300, -1e20),
]  # fmt: skip


def merge(a: Any, b: Any) -> tuple[Any, ...]:
    """Chan's update with weights, which moves the first side's mean."""
    weight = a.weight + b.weight
    share = b.weight / tm.where(weight == 0, 1, weight)
    apart = b.mean - a.mean
    return weight, a.mean + apart * share, a.squares + b.squares + apart * apart * a.weight * share


def weighted(**options: Any) -> Monoid:
    return Monoid(
        merge,
        (0, 0, 0),
        fields=("weight", "mean", "squares"),
        lift=lambda x, weight: (weight, x, 0),
        project=lambda weight, mean, squares: squares / weight,
        name="weighted",
        **options,
    )


@pytest.mark.parametrize("one", RANGES, ids=str)
@pytest.mark.parametrize("dtype", [torch.float64, torch.int64, torch.bool], ids=str)
def test_samples_stay_within_the_domain(one: Any, dtype: torch.dtype) -> None:
    """And are several, where the domain has several."""
    algebra = Monoid(lambda a, b: a + b * 1.5, 0, check=False, commutative=False, domain=one).algebra
    assert algebra.domain is not None
    (bounds,) = algebra.domain
    for kind in kinds_of(algebra, dtype, (*SAMPLES[dtype], *MORE_SAMPLES[dtype])):
        pool = pool_of(algebra, (dtype,), kind)
        if pool is None:  # no whole number, or no truth, is in the range
            assert not dtype.is_floating_point
            assert not any(v in bounds for v in (range(-9, 9) if dtype == torch.int64 else (0, 1)))
            continue
        drawn = torch.stack([element[0] for block in pool.blocks for element in block]).flatten()
        values = {v for v in drawn.tolist() if v == v}
        assert all(v in bounds for v in values)
        assert len(values) >= 3 or bounds.low == bounds.high or not dtype.is_floating_point


def test_samples_without_a_domain_are_what_they_were() -> None:
    values = SAMPLES[torch.float64]["infinite"]
    assert within(values, ANY, torch.float64) == values
    assert math.isnan(within((NAN,), NAMES["positive"], torch.float64)[0])


@pytest.mark.parametrize(
    ("given", "inputs", "want"),
    [
        pytest.param(None, 2, None, id="none"),
        pytest.param("any", 2, None, id="any"),
        pytest.param((None, None), 2, None, id="two open ends"),
        pytest.param((None, None, None), 3, None, id="three of anything"),
        pytest.param((0, None), 1, (Range(0.0),), id="range"),
        pytest.param((0, None), 2, (Range(0.0), Range(0.0)), id="range for all"),
        pytest.param((None, 5), 2, (Range(high=5.0),) * 2, id="low end open"),
        pytest.param((None, "positive"), 2, (ANY, NAMES["positive"]), id="one each"),
        pytest.param([(0, 1), None], 2, (Range(0.0, 1.0), ANY), id="list"),
        pytest.param([(0, 1)], 1, (Range(0.0, 1.0),), id="list of one"),
    ],
)
def test_what_a_domain_is_read_as(given: Any, inputs: int, want: Any) -> None:
    assert read_domain("m", given, inputs) == want
    if want is not None:
        written = eval(domain_text(want))  # what a message says can be written
        assert read_domain("m", written, inputs) == want


def test_a_weighted_variance_is_made_of_weights_that_are_never_negative() -> None:
    with pytest.raises(LawError, match=r"declare domain=\(None, 'nonnegative'\) if no input is ever outside"):
        weighted()
    assert not weighted(domain=(None, "nonnegative")).commutative
    variance = weighted(domain=(None, "nonnegative"), commutative=True)
    x, w = torch.randn(3, 700, dtype=torch.float64), torch.rand(3, 700, dtype=torch.float64)
    w[:, ::3] = 0
    mean = (x * w).sum(1, keepdim=True) / w.sum(1, keepdim=True)
    want = (w * (x - mean) ** 2).sum(1) / w.sum(1)
    torch.testing.assert_close(tilefold.reduce((x, w), variance, dim=1), want)


def test_elements_outside_of_a_domain_give_something() -> None:
    """Undefined, and no crash."""
    variance = weighted(domain=(None, "positive"))
    bad = torch.tensor([1.0, -1.0, 0.0, -INF, NAN])
    for backend in ("reference", "lanes"):
        with tilefold.backend(backend):
            assert tilefold.reduce((bad, bad), variance).shape == ()


def test_a_proof_uses_the_domain() -> None:
    """A guard that positive weights never meet; of weights that may be 0 the means differ, and so they do in samples."""
    assert weighted(domain=(None, "positive")).commutative
    assert weighted(domain=(None, "positive"), check=False).commutative
    assert not weighted(domain=(None, "nonnegative")).commutative


@pytest.mark.parametrize("domain", ["nonnegative", (0, None), (0, 5), (3, 4.5), "positive"], ids=str)
def test_a_law_needs_to_hold_in_the_domain_only(domain: Any) -> None:
    most = Monoid(tm.maximum, 0, domain=domain)
    assert most.commutative
    assert tilefold.reduce(torch.tensor([3.0, 4.0]), most).item() == 4.0


@pytest.mark.parametrize("domain", ["finite", (-1, None), "nonpositive", (None, 0.5)], ids=str)
def test_a_law_that_fails_within_the_domain_is_refused(domain: Any) -> None:
    with pytest.raises(
        LawError, match=r"elements in the domain .*\); give the state that changes nothing"
    ) as caught:
        Monoid(tm.maximum, 0, domain=domain)
    assert "declare domain" not in str(caught.value)


def test_a_law_that_breaks_at_the_end_of_a_range() -> None:
    """0.3 is no sample that suits all monoids."""
    combine = lambda a, b: tm.where(a == 0.3, b - 1, tm.maximum(a, b))  # noqa: E731  # one of two
    Monoid(combine, None, domain=(0.5, 2), commutative=False)
    with pytest.raises(LawError, match="must be associative"):
        Monoid(
            lambda a, b: tm.where(a < 0.3000001, b - 1, tm.maximum(a, b)),
            None,
            domain=(0.3, 2),
            commutative=False,
        )


def test_an_identity_may_give_another_form_of_a_state() -> None:
    """A mean of no weight may be any; but a wrong mean is seen."""
    assert weighted(domain=(None, "nonnegative"))
    with pytest.raises(LawError, match="must be s, got"):
        Monoid(
            lambda a, b: (a.n + b.n, a.total + b.total),
            (0, 1),
            fields=("n", "total"),
            lift=lambda x: (1, x),
            project=lambda n, total: total / n,
        )


def test_a_form_that_only_identities_make_nan_is_no_form() -> None:
    """combine(identity, s) is NaN where s is none."""
    with pytest.raises(LawError, match="must be"):
        Monoid(
            lambda a, b: (a.n + b.n, (a.n * a.mean + b.n * b.mean) / (a.n * b.n)),
            (0, 0),
            fields=("n", "mean"),
            lift=lambda x: (1, x),
            project=lambda n, mean: tm.where(tm.isnan(mean), 0, 0),
        )


def test_a_declared_order_may_give_another_form() -> None:
    assert weighted(domain=(None, "nonnegative"), commutative=True).commutative
    with pytest.raises(LawError, match="commutative=True must hold"):
        Monoid(lambda a, b: a, None, project=lambda x: x * 2, commutative=True)


def test_a_domain_is_kept() -> None:
    """In a pickle, and where there is no identity."""
    variance = weighted(domain=(None, "positive"))
    kept = pickle.loads(pickle.dumps(variance))
    assert kept.algebra == variance.algebra
    assert kept.algebra.domain == (ANY, NAMES["positive"])
    assert copy.deepcopy(variance) is variance
    assert Monoid(tm.maximum, None, domain=(0, 1)).total.domain == (Range(0.0, 1.0),)
    assert monoids.SUM.algebra.domain is None
