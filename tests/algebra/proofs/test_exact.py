"""Functions without rounding: known digits, errors that hold what they bound, and what is left undecided."""

from __future__ import annotations

import decimal
import itertools
import math as python
from decimal import Decimal
from fractions import Fraction
from typing import Any

import pytest
import torch

from tilefold import Monoid, math, monoids
from tilefold.algebra.expression import apply, trace
from tilefold.algebra.operations import OPS
from tilefold.algebra.proofs import exact
from tilefold.algebra.proofs.exact import Ball, Exact, UndecidedError, apart, run, size

INF = float("inf")
DIGITS = {
    "exp": (1.0, "2.7182818284590452353602874713526624977572470937"),
    "log": (2.0, "0.69314718055994530941723212145817656807550013436"),
    "sqrt": (2.0, "1.4142135623730950488016887242096980785696718754"),
    "sin": (1.0, "0.84147098480789650665250232163029899962256306080"),
    "cos": (1.0, "0.54030230586813971740093660744297660373231042062"),
    "tanh": (1.0, "0.76159415595576488811945828260479359041276859726"),
    "sigmoid": (1.0, "0.73105857863000487925115924182183627436514464016505"),
    "erf": (1.0, "0.84270079294971486934122063508260925929606699797"),
}
FUNCTIONS = [
    name for name, row in OPS.items() if row.kind == "float" and row.arity == 1 and hasattr(torch, name)
]
MORE = decimal.Context(prec=100, Emin=decimal.MIN_EMIN, Emax=decimal.MAX_EMAX, traps=[])
POINTS = (1e-30, 0.001, 0.3, 1.0, 2.5, 7.0, 25.0, 300.0)


def value(function: Any, *arguments: Any) -> Any:
    return run(
        trace(function, len(arguments)), [Fraction(a) if isinstance(a, float) else a for a in arguments]
    )[0]


@pytest.mark.parametrize("name", DIGITS)
def test_known_digits(name: str) -> None:
    x, want = DIGITS[name]
    got = value(getattr(math, name), x)
    assert abs(got.value - Decimal(want)) < Decimal("1e-45")
    assert got.error < Decimal("1e-40")


@pytest.mark.parametrize("name", FUNCTIONS)
@pytest.mark.parametrize("sign", [1, -1])
def test_functions_are_those_of_floats(name: str, sign: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """And of twice as many digits, within the error."""
    for x in POINTS:
        want = getattr(torch, name)(torch.tensor(sign * x, dtype=torch.float64)).item()
        if want != want:
            continue
        got = value(getattr(math, name), sign * x)
        assert float(got.value) == pytest.approx(want, rel=1e-14)
        with monkeypatch.context() as patched:
            patched.setattr(exact, "_DIGITS", 100)
            patched.setattr(exact, "_CONTEXT", MORE)
            better = value(getattr(math, name), sign * x)
        with decimal.localcontext(MORE):
            assert got.value == better.value or abs(got.value - better.value) <= got.error


def test_arithmetic_is_exact() -> None:
    assert value(lambda a, b: (a + b) - a, 1e30, 1e-30) == Fraction(1e-30)
    assert value(lambda a, b: a / b * b, 1.0, 3.0) == 1
    assert value(lambda a, b: a % b, -1.0, 0.1) == Fraction(-1) % Fraction(0.1)
    assert value(lambda a, b: a // b, -7, 2) == -4
    assert value(lambda a: a * a * a, 1 << 40) == 1 << 120, "whole numbers do not wrap"
    assert value(lambda a: math.cast(a, torch.int64), (1 << 64) + 5) == 5, "unless they are cast"
    assert value(lambda a: a**2.0, 0.1) == Fraction(0.1) ** 2
    assert value(lambda a, b: math.where(a > b, a, b), 2, 2.5) == 2.5
    assert [value(lambda a, n: a << n, 3, n) for n in (2, 64, -1)] == [12, 0, 0]
    assert [value(lambda a, n: a >> n, a, n) for a in (9, -9) for n in (1, 64, -1)] == [4, 0, 0, -5, -1, -1]


def test_infinities_are_ieees() -> None:
    infinite = Ball(Decimal("Infinity"))
    assert value(lambda a: math.maximum(a, 1.0), infinite) == infinite
    assert value(lambda a: math.exp(-a), infinite).value == 0
    assert value(lambda a: a - a, infinite).value.is_nan()
    assert value(lambda a: math.where(a > 5, 1, 2), infinite) == 1
    assert value(lambda a: 1 / a, 0.0).value == Decimal("Infinity")
    assert value(math.isfinite, infinite) is False
    assert value(lambda a: a == a, value(lambda a: a - a, infinite)) is False


def test_an_error_holds_what_it_bounds() -> None:
    """The true result is 0, whatever was lost on the way."""
    for x in POINTS[:5]:
        got = value(lambda a: math.log(math.exp(a)) - a, x)
        assert abs(got.value) <= got.error
        got = value(lambda a: math.sqrt(a) * math.sqrt(a) - a, x)
        assert abs(got.value) <= got.error
    assert not apart(value(lambda a: math.sin(a) ** 2 + math.cos(a) ** 2, 3.0), Fraction(1), 0.0)
    assert apart(Fraction(1), Fraction(1) + Fraction(1, 10**9), 1e-10)
    assert not apart(Fraction(1), Fraction(1) + Fraction(1, 10**9), 1e-8)


@pytest.mark.parametrize(
    "function",
    [
        lambda a: math.where(math.exp(math.log(a)) > 3.0, 1, 2),
        lambda a: 1 / (math.exp(math.log(a)) - 3),
        lambda a: math.floor(math.exp(math.log(a))),
        lambda a: math.sin(a * 1e30),
    ],
    ids=["comparison", "quotient", "step", "angle"],
)
def test_what_digits_do_not_say_is_undecided(function: Any) -> None:
    with pytest.raises(UndecidedError):
        value(function, 3.0)


def test_a_monoids_functions() -> None:
    pair = Monoid(
        lambda a, b: (a.n + b.n, math.maximum(a.m, b.m)), (0, -INF), fields=("n", "m"), lift=lambda x: (x * 1.5, x),
        dtypes=(torch.int64, "compute"), check=False, commutative=True, project=lambda n, m: n,
    )  # fmt: skip
    exact = Exact(pair.algebra, (torch.int64, torch.float64))
    assert exact.lift([3]) == (4, 3), "a field of whole numbers cuts a fraction"
    assert exact.lift([-3]) == (-4, -3)
    assert not any(
        map(apart, exact.combine(exact.identity, exact.lift([3.0])), exact.lift([3.0]), (0.0, 0.0))
    )
    assert exact.project(exact.lift([3.0])) == (4,)
    assert size(exact.identity[1]) == 0.0
    assert size(Fraction(-5, 2)) == 2.5
    assert size(-3) == size(True) == 0.0


def test_log_sum_exp_of_all_floats() -> None:
    """Where a float's exp is 0 or infinite, 50 digits have a value."""
    algebra = monoids.LOGSUMEXP.total
    exact = Exact(algebra, (torch.float64,) * len(algebra.fields))
    got = exact.combine(exact.lift([-2000.0]), exact.lift([0.0]))
    assert all(python.isfinite(size(v)) for v in got)


@pytest.mark.parametrize("op", [op for op in OPS if OPS[op].arity < 3 and op != "cast"])
def test_operations_are_those_of_floats(op: str) -> None:
    """Of infinities, NaN and numbers, as fractions and as balls without an error: as floats have it, or undecided."""
    decided = 0
    for values in itertools.product((-INF, -1.5, 0.0, 2.0, INF, python.nan), repeat=OPS[op].arity):
        for given in itertools.product(*map(forms, values)):
            try:
                (got,) = run(trace(lambda *a: apply(op, *a), len(given)), list(given))
            except UndecidedError:
                continue
            decided += 1
            shown, want = float(got.value) if isinstance(got, Ball) else float(got), OPS[op].python(*values)
            assert shown == pytest.approx(float(want), rel=1e-15, nan_ok=True), values
    assert decided or op in UNKNOWN, "no pair is decided"


# Operations of whole numbers, of bits of floats, and of blocks: exact numbers have none of them.
UNKNOWN = (
    "unit", "per_unit", "rescale", "and", "or", "xor", "lshift", "rshift", "invert",
    "block_sum", "block_first", "block_count", "block_max", "block_min",
)  # fmt: skip


def forms(x: float) -> list[Any]:
    """A number as all that it may be."""
    ball = Ball(Decimal(x))
    return [ball, Fraction(x)] if python.isfinite(x) else [ball]
