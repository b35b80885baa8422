"""What a graph shows of the order of its sides: nothing that does not commute, and all that people write that does."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

import tilefold
from tilefold import Monoid, math
from tilefold.algebra.algebra import completed
from tilefold.algebra.evaluate import evaluate_as
from tilefold.algebra.program import as_written
from tilefold.algebra.proofs import laws, terms
from tilefold.algebra.proofs.commute import shown_commutative
from tilefold.errors import LawError

INF = float("inf")
# numpy, under Triton's interpreter, warns of whole numbers that wrap and of arrays as scalars.
interpreted = pytest.mark.filterwarnings("ignore::RuntimeWarning", "ignore::DeprecationWarning")
where, maximum, minimum, exp = math.where, math.maximum, math.minimum, math.exp
BEST = {"fields": ("v", "i"), "lift": lambda x, i: (x, i), "dtypes": ("input", "index"), "index": True}
PAIR = {"fields": ("m", "l"), "lift": lambda x: (x, 1.0)}
MOMENTS = {"fields": ("n", "mean", "M2"), "lift": lambda x: (1.0, x * 1.0, 0.0)}


def chan(a: Any, b: Any, some: Callable[[Any], Any] = lambda n: where(n == 0, 1.0, n)) -> tuple[Any, ...]:
    """The update that moves the first side's mean: of other form when sides change places."""
    n, apart = a.n + b.n, b.mean - a.mean
    share = b.n / some(n)
    return n, a.mean + apart * share, a.M2 + b.M2 + apart * apart * a.n * share


def third_moment(a: Any, b: Any) -> tuple[Any, ...]:
    n, d = a.n + b.n, b.m - a.m
    skew = d * d * d * a.n * b.n * (a.n - b.n) / (n * n) + 3.0 * d * (a.n * b.s - b.n * a.s) / n
    return n, a.m + d * b.n / n, a.s + b.s + d * d * a.n * b.n / n, a.t + b.t + skew


def co_moments(a: Any, b: Any) -> tuple[Any, ...]:
    n, dx, dy = a.n + b.n, b.x - a.x, b.y - a.y
    return n, a.x + dx * b.n / n, a.y + dy * b.n / n, a.c + b.c + dx * dy * a.n * b.n / n


def where_either(a: Any, b: Any, take: Any) -> tuple[Any, ...]:
    return tuple(where(take, y, x) for x, y in zip(a, b, strict=True))


def by_case(a: Any, b: Any) -> tuple[Any, Any]:
    """The larger maximum's sum is kept and the other's rescaled."""
    return maximum(a.m, b.m), where(a.m > b.m, a.l + b.l * exp(b.m - a.m), b.l + a.l * exp(a.m - b.m))


def first_place(a: Any, b: Any) -> tuple[Any, Any]:
    m = maximum(a.v, b.v)
    return m, minimum(where(a.v == m, a.i, INF), where(b.v == m, b.i, INF))


def nan_wins(a: Any, b: Any) -> tuple[Any, ...]:
    better = ~(b.v <= a.v) & ~math.isnan(a.v)
    equal = (a.v == b.v) | (math.isnan(a.v) & math.isnan(b.v))
    return where_either(a, b, better | (equal & (b.i < a.i)))


def three_largest(a: Any, b: Any) -> tuple[Any, ...]:
    low, high = minimum(a.f, b.f), maximum(a.s, b.s)
    third = maximum(maximum(minimum(low, high), minimum(a.s, b.s)), maximum(a.t, b.t))
    return maximum(a.f, b.f), maximum(low, high), third


def lexicographic(a: Any, b: Any) -> tuple[Any, ...]:
    tail = (a.y < b.y) | ((a.y == b.y) & (a.z < b.z))
    return where_either(a, b, ~((a.x < b.x) | ((a.x == b.x) & tail)))


def counted_maximum(a: Any, b: Any) -> tuple[Any, Any]:
    return maximum(a.m, b.m), where(a.m > b.m, a.l, where(b.m > a.m, b.l, a.l + b.l))


SHOWN: dict[str, Callable[[], Monoid]] = {
    "larger by a comparison": lambda: Monoid(lambda a, b: where(b > a, b, a), None),
    "larger by a difference": lambda: Monoid(lambda a, b: where(a - b > 0, a, b), None),
    "a sum in disguise": lambda: Monoid(lambda a, b: a * 31 + b - a * 30, 0),
    "modulus": lambda: Monoid(lambda a, b: (a + b) % 97, 0, lift=lambda x: x % 97, dtypes=torch.int64),
    "log-add-exp": lambda: Monoid(
        lambda a, b: where(a == b, a + 0.6931471805599453, maximum(a, b) + math.log1p(exp(-abs(a - b)))), None
    ),
    "either truth": lambda: Monoid(
        lambda a, b: where(a, True, b), False, lift=lambda x: x > 2, dtypes=torch.bool
    ),
    "exclusive or": lambda: Monoid(
        lambda a, b: (a & ~b) | (~a & b), False, lift=lambda x: x > 0, dtypes=torch.bool
    ),
    "nearest to zero": lambda: Monoid(
        lambda a, b: where((abs(a) < abs(b)) | ((abs(a) == abs(b)) & (a < b)), a, b), None
    ),
    "sign and size": lambda: Monoid(lambda a, b: where((a < 0) != (b < 0), -1, 1) * abs(a) * abs(b), 1),
    "complex product": lambda: Monoid(lambda p, q: (p.re * q.re - p.im * q.im, p.re * q.im + p.im * q.re), (1, 0),
                                       fields=("re", "im")),
    "Chan": lambda: Monoid(chan, (0, 0, 0), **MOMENTS),
    "Chan, at least one": lambda: Monoid(lambda a, b: chan(a, b, lambda n: maximum(n, 1)), (0, 0, 0), **MOMENTS),
    "Chan, whole counts": lambda: Monoid(
        chan, (0, 0, 0), fields=MOMENTS["fields"], lift=lambda x: (1, x, 0), dtypes=(torch.int64, "compute", "compute")
    ),
    "third moment": lambda: Monoid(
        third_moment, None, fields=("n", "m", "s", "t"), lift=lambda x: (1.0, x * 1.0, 0.0, 0.0)
    ),
    "co-moments": lambda: Monoid(
        co_moments, None, fields=("n", "x", "y", "c"), lift=lambda x, y: (1.0, x * 1.0, y * 1.0, 0.0)
    ),
    "pair by cases": lambda: Monoid(by_case, None, **PAIR),
    "count of the largest": lambda: Monoid(counted_maximum, (-INF, 0), **PAIR),
    "first place of the largest": lambda: Monoid(first_place, (-INF, INF), **BEST),
    "best, NaN first": lambda: Monoid(nan_wins, (-INF, INF), **BEST),
    "value of the first position": lambda: Monoid(lambda a, b: where_either(a, b, b.i < a.i), (0, INF), **BEST),
    "three largest": lambda: Monoid(
        three_largest, (-INF,) * 3, fields=("f", "s", "t"), lift=lambda x: (x, -INF, -INF), dtypes="input"
    ),
    "least of triples": lambda: Monoid(lexicographic, None, fields=("x", "y", "z")),
    "counts cast to what they are": lambda: Monoid(
        lambda a, b: a + math.cast(b, torch.int64), 0, lift=lambda x: 1, dtypes=torch.int64
    ),
    "a count that is cast to a truth": lambda: Monoid(
        lambda a, b: (where(math.cast(b.n, torch.bool), a.n + b.n, a.n), a.s + b.s), (0, 0), fields=("n", "s"),
        lift=lambda x: (1, x), dtypes=(torch.int64, "compute"),
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", SHOWN)
def test_what_people_write_is_shown_to_commute(name: str) -> None:
    monoid = SHOWN[name]()
    assert monoid.commutative
    assert shown_commutative(monoid.algebra)


def first_of_equals(a: Any, b: Any) -> tuple[Any, ...]:
    return where_either(a, b, b.v > a.v)


NOT_SHOWN: dict[str, Callable[[], Monoid]] = {
    "last above 10": lambda: Monoid(lambda a, b: where(b > 10, b, a), 0, lift=lambda x: where(x > 10, x, 0)),
    "last above 10, by a maximum": lambda: Monoid(
        lambda a, b: where(maximum(b, 10) == b, b, a), 0, lift=lambda x: where(x >= 10, x, 0)
    ),
    "last not 0.3": lambda: Monoid(
        lambda a, b: where(b != 0.3, b, a), None, lift=lambda x: where(abs(x) < 1e6, 0.3, x)
    ),
    "first of equals": lambda: Monoid(first_of_equals, None, **BEST),
    "either's sign": lambda: Monoid(lambda a, b: a - b, None, check=False, commutative=False),
    "first": lambda: Monoid(lambda a, b: a + 0 * b, None),
    "uint64 has no sign": lambda: Monoid(
        lambda a, b: where(a - b > 0, a, b), None, dtypes="input", check=False, commutative=False
    ),
    "weights that may be 0": lambda: Monoid(
        lambda a, b: chan(a, b),
        None,
        fields=MOMENTS["fields"],
        lift=lambda x, w: (w, x, 0 * x),
        check=False,
        commutative=False,
    ),
}


@pytest.mark.parametrize("name", NOT_SHOWN)
def test_what_may_depend_on_the_order_is_ordered(name: str) -> None:
    monoid = NOT_SHOWN[name]()
    assert not monoid.commutative
    assert not laws.is_commutative(monoid.algebra)


@interpreted
def test_the_last_value_above_a_bound_is_kept_by_every_backend() -> None:
    """No sample that suits all monoids is above 10, and two that are tell."""
    x = torch.arange(600.0).reshape(2, 300).flip(1)
    x[:, 7] = 4.0
    monoid = NOT_SHOWN["last above 10"]()
    want = [[v for v in row if v > 10][-1] for row in x.tolist()]
    for backend in ("reference", "cpu", "interpret"):
        with tilefold.backend(backend):
            assert tilefold.reduce(x, monoid, 1).tolist() == want


@pytest.mark.parametrize("bound", [10, 10.5, -12, 1000, 1e6, 1e-3, 12345678])
@pytest.mark.parametrize("test", ["gt", "ge", "ne"])
def test_a_declared_order_is_refused_at_the_constants(bound: float, test: str) -> None:
    """Samples alone stand between a wrong declaration and wrong results: those around the monoid's constants tell."""
    above = {"gt": lambda x: x > bound, "ge": lambda x: x >= bound, "ne": lambda x: x != bound}[test]
    lift = lambda x: where(above(x), x, bound)  # noqa: E731  # one of a table
    assert not Monoid(lambda a, b: where(above(b), b, a), None, lift=lift).commutative
    with pytest.raises(LawError, match="commutative=True must hold"):
        Monoid(lambda a, b: where(above(b), b, a), None, lift=lift, commutative=True)


def test_samples_do_not_show() -> None:
    """Where only one value of millions tells, no sample meets it: what is not shown stays in order, unless declared."""

    def combine(a: Any, b: Any) -> Any:
        return where(b * b - 2024.0 * b == 33.0, b, maximum(a, b))

    ordered = Monoid(combine, None, check=False, commutative=False)
    assert not laws.is_commutative(ordered.algebra)
    assert all(laws._first_exchanged(pool) is None for pool in laws._pools(completed(ordered.algebra)))
    assert Monoid(combine, None, check=False, commutative=True).commutative


@pytest.mark.parametrize("name", SHOWN)
@pytest.mark.parametrize("dtype", [torch.float64, torch.int64], ids=str)
def test_what_is_shown_holds_on_random_states(name: str, dtype: torch.dtype) -> None:
    """Of lifted elements and combinations of them, ties among them; equal but for rounding, where nothing overflows."""
    total = SHOWN[name]().total
    try:
        program = as_written(total, (dtype,) * total.inputs)
    except RuntimeError:
        return  # a monoid of other dtypes
    generator, rows = torch.Generator().manual_seed(0), 2000

    def state(position: int) -> list[torch.Tensor]:
        some = torch.randint(-9, 10, (total.inputs, rows), generator=generator).to(dtype)
        lifted = evaluate_as(
            program.lift, [*some, *[torch.full((rows,), position)] * total.index], program.state
        )
        return [torch.as_tensor(v, dtype=d).expand(rows) for v, d in zip(lifted, program.state, strict=True)]

    def combined(one: list[torch.Tensor], other: list[torch.Tensor]) -> list[torch.Tensor]:
        made = evaluate_as(program.combine, [*one, *other], program.state)
        return [torch.as_tensor(v, dtype=d).expand(rows) for v, d in zip(made, program.state, strict=True)]

    singles = [state(position) for position in range(4)]
    for a, b in (
        (singles[0], singles[1]),
        (combined(*singles[:2]), combined(*singles[2:])),
        (singles[1], singles[0]),
    ):
        for one, other in zip(combined(a, b), combined(b, a), strict=True):
            torch.testing.assert_close(one, other, rtol=1e-9, atol=1e-9, equal_nan=True)


# ------------------------------------------------------------------------------------------------------- how it is found


def test_equal_fractions_have_one_number() -> None:
    known = terms.Terms(signed=True)
    a, b = known.symbol("a"), known.symbol("b")

    def of(op: str, *operands: int) -> int:
        return known.apply(op, list(operands), "", truths=False)

    total = of("add", a, b)
    assert of("mul", total, total) == of("add", of("mul", a, total), of("mul", total, b))
    assert of("truediv", of("mul", total, b), total) == b
    assert of("truediv", a, 0) != of("truediv", b, 0), "a quotient by 0 is no fraction"
    assert of("abs", of("sub", a, b)) == of("abs", of("sub", b, a))
    assert of("tanh", of("neg", a)) == of("neg", of("tanh", a))
    assert of("floordiv", a, b) != of("floordiv", b, a)
    assert known.constant(0.5) == of("truediv", 1, known.constant(2))
    assert known.constant(INF) == of("neg", known.constant(-INF))


def test_repeated_squares_do_not_come_around() -> None:
    """Modulo 2^k - 1, k squarings lead back: a chain of Newton's steps may hold as many."""
    known = terms.Terms(signed=True)
    x, met = known.symbol("x"), set[int]()
    for _ in range(2000):
        x = known.apply("mul", [x, x], "", truths=False)
        assert x not in met
        met.add(x)


def test_cases_that_do_not_end_are_given_up() -> None:
    """A hundred comparisons of a hundred fields that one result reads: ordered, and soon."""

    def combine(a: Any, b: Any) -> tuple[Any, ...]:
        score = sum(
            where(x < y, x, where(x == y, y * 2.0, y + i)) * (x + i)
            for i, (x, y) in enumerate(zip(a, b, strict=True))
        )
        return (score, *(x + y for x, y in zip(a[1:], b[1:], strict=True)))

    monoid = Monoid(
        combine,
        None,
        fields=[f"f{i}" for i in range(60)],
        lift=lambda x: (x,) * 60,
        check=False,
        commutative=False,
    )
    assert not shown_commutative(monoid.algebra)


def test_is_commutative_asks_the_graph_and_the_samples(monkeypatch: pytest.MonkeyPatch) -> None:
    """Either alone may say no."""
    algebra = Monoid(lambda a, b: a + b, 0, lift=lambda x: x * 5).algebra
    assert laws.is_commutative(algebra)
    monkeypatch.setattr(laws, "shown_commutative", lambda algebra: False)
    laws.is_commutative.cache_clear()
    assert not laws.is_commutative(algebra)
    monkeypatch.setattr(laws, "shown_commutative", lambda algebra: True)
    laws.is_commutative.cache_clear()
    assert not laws.is_commutative(Monoid(lambda a, b: a, None, check=False, commutative=False).algebra)
    laws.is_commutative.cache_clear()


def _nan_first(a, b, *, ask, ties):
    """The position of the largest, or of a NaN: of several NaN the first, or the one with the least position."""
    n, k = ask(a.v), ask(b.v)
    best = math.where(a.v > b.v, a.i, b.i)
    i = math.where(n, a.i, math.where(k, b.i, math.where(a.v == b.v, math.minimum(a.i, b.i), best)))
    value = math.where(n, a.v, math.where(k, b.v, math.maximum(a.v, b.v)))
    return value, math.where(n & k, math.minimum(a.i, b.i), i) if ties else i


@pytest.mark.parametrize(
    "ask", [math.isnan, lambda v: v != v, lambda v: ~(v == v)], ids=["isnan", "ne", "eq"]
)
@pytest.mark.parametrize("ties", [False, True], ids=["first", "least position"])
def test_where_combine_asks_for_nan_it_is_a_case(ask, ties: bool) -> None:
    monoid = Monoid(
        lambda a, b: _nan_first(a, b, ask=ask, ties=ties), None, fields=("v", "i"), lift=lambda x, i: (x, i),
        index=True, dtypes=("input", "index"),
    )  # fmt: skip
    x = torch.zeros(2, 5000)
    x[:, 7::7] = float("nan")
    assert monoid.commutative == ties
    for guarantee in ("run_to_run", "batch_invariant"):
        assert tilefold.reduce(x, monoid, 1, guarantee=guarantee).i.tolist() == [7, 7]
