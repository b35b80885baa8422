"""Units are powers of two whose squares, and those of what is held in them, are in range; on every backend the same."""

from __future__ import annotations

import math

import pytest
import torch

import tilefold
from tilefold.algebra import units
from tilefold.algebra.expression import apply

FLOATS = [torch.float32, torch.float64]


@pytest.mark.parametrize("dtype", FLOATS, ids=str)
def test_what_is_held_in_units_has_a_square(dtype: torch.dtype) -> None:
    info = torch.finfo(dtype)
    least, most = math.frexp(info.tiny * info.eps)[1], math.frexp(info.max)[1]
    x = torch.tensor([math.ldexp(0.75, e) for e in range(least + 1, most + 1)], dtype=dtype)
    unit, inverse = units.of(x), units.per(units.of(x))
    assert torch.equal(unit * inverse, torch.ones_like(x))
    assert torch.equal(torch.frexp(unit)[0], torch.full_like(x, 0.5))
    held = x * inverse
    assert (held * held * 2.0**58).isfinite().all()
    bit = torch.where(x >= info.tiny, held * info.eps / 2, held)
    assert (bit * bit >= info.tiny).all()


def test_what_is_not_finite_has_the_last_unit() -> None:
    x = torch.tensor([math.nan, math.inf, -math.inf, 3e38, 0.0])
    assert units.of(x).tolist() == [2.0**95] * 4 + [2.0**-97]
    assert units.per(torch.tensor([0.0])).isfinite()


@pytest.mark.parametrize("dtype", FLOATS, ids=str)
def test_few_elements_have_the_units_of_many(dtype: torch.dtype) -> None:
    """Those that are looked up, and those that are chosen: also of the numbers at which quarters begin."""
    apart, begin, _ = units._QUARTERS[dtype]
    ends = torch.tensor([2.0 ** (begin + q * apart) for q in range(3)], dtype=dtype)
    x = torch.cat(
        [
            ends,
            -ends,
            torch.nextafter(ends, ends * 0),
            torch.tensor([0.0, -0.0, math.inf, math.nan], dtype=dtype),
        ]
    )
    many = x.repeat(units.FEW)
    assert torch.equal(units.of(x), units.of(many)[: x.numel()])
    assert torch.equal(units.of(x[::2]), units.of(x)[::2])


def test_numbers_have_those_of_float64() -> None:
    for x in (0.0, 1e-300, 0.7, -3.0, 1e200, math.inf, math.nan):
        unit = units.of_number(x)
        assert unit == units.of(torch.tensor(x, dtype=torch.float64)).item()
        assert units.per_number(unit) * unit == 1.0
    assert math.isfinite(units.per_number(0.0))


@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # numpy's, under Triton's interpreter
@pytest.mark.parametrize("dtype", FLOATS, ids=str)
def test_kernels_have_the_same(dtype: torch.dtype) -> None:
    info = torch.finfo(dtype)
    x = torch.tensor(
        [0.0, info.tiny * info.eps, 2.0**-62, 0.7, 1.9, 2.0, 2.0**66, info.max, math.inf], dtype=dtype
    )

    def both(x: object) -> tuple[object, object]:
        own = apply("unit", x)
        return own, apply("rescale", apply("per_unit", own), 2.0)

    pick = tilefold.Monoid(
        lambda a, b: b, None, commutative=False, check=False, project=both, name="units of the last"
    )
    with tilefold.backend("interpret"):
        got = tilefold.reduce(x[:, None], pick, 1)
    assert torch.equal(got[0], units.of(x))
    assert torch.equal(got[1], units.per(units.of(x)) * 2)
