"""Monoids and functions of scalars that are written inside of a compiled function: constants of its graph."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

import pytest
import torch
from torch._dynamo.utils import counters

import tilefold
from tilefold import Monoid, math, monoids
from tilefold.errors import LawError, MonoidError, TraceError
from tilefold.runtime.overrides import listed

Tensor = torch.Tensor
INFINITY = float("inf")
SEEDED = torch.Generator().manual_seed(38)
X, W = torch.randn(4, 33, generator=SEEDED), torch.randn(33, 5, generator=SEEDED)
OFFSETS = torch.tensor([0, 1, 1, 20, 33])


class Ends(NamedTuple):
    low: Any
    high: Any


def ends() -> Monoid:
    """Extremes, with results by name."""
    return Monoid(
        lambda a, b: (math.minimum(a.low, b.low), math.maximum(a[1], b[1])),
        (INFINITY, -INFINITY),
        fields=("low", "high"),
        lift=lambda x: (x, x),
        project=Ends,
    )


def online() -> Monoid:
    """A log-sum-exp, by a function with names of its own."""

    def combine(a: Any, b: Any) -> tuple[Any, Any]:
        largest = math.maximum(a.m, b.m)
        safe = math.where(largest == -INFINITY, 0.0, largest)
        return largest, a.l * math.exp(a.m - safe) + b.l * math.exp(b.m - safe)

    return Monoid(
        combine,
        (-INFINITY, 0),
        fields=("m", "l"),
        lift=lambda x: (x, 1.0),
        project=lambda m, l: m + math.log(l),
    )


def positive() -> Monoid:
    return Monoid(lambda a, b: a + b, 0, lift=lambda x: math.where(~(x > 0), 0.0, x))


def blocks(k: float) -> Monoid:
    return Monoid(
        lambda a, b: a + b,
        0,
        lift=lambda x: x * k,
        absorb=(lambda x: math.block_sum(x * k), lambda state, x: state + math.block_sum(x * k)),
    )


def last_of_two() -> Monoid:
    """Of an element and its position, in order."""
    return Monoid(
        lambda a, b: (math.where(b.v >= a.v, b.v, a.v), math.where(b.v >= a.v, b.i, a.i)),
        None,
        fields=("v", "i"),
        lift=lambda x, i: (x, i),
        dtypes=("input", "index"),
        index=True,
        commutative=False,
    )


CALLS: dict[str, Callable[[Tensor], Any]] = {
    "one value": lambda x: tilefold.reduce(x, Monoid(lambda a, b: a + b, 0), 1),
    "named results": lambda x: tilefold.reduce(x, ends(), 1).high,
    "results": lambda x: tuple(tilefold.reduce(x, ends(), 0)),
    "names of its own": lambda x: tilefold.reduce(x, online(), 1, True),
    "a function of the library": lambda x: tilefold.reduce(x, Monoid(math.maximum, -INFINITY), 1),
    "a function of Python": lambda x: tilefold.reduce(x, Monoid(math.maximum, 0.0, lift=abs), 1),
    "not": lambda x: tilefold.reduce(x, positive(), 1),
    "blocks": lambda x: tilefold.reduce(x, blocks(2.0), 1),
    "positions": lambda x: tilefold.reduce(x, last_of_two(), 1)[1],
    "a state": lambda x: tilefold.reduce(x, online(), 1, return_state=True)[1].m,
    "from a state": lambda x: tilefold.reduce(x, online(), 1, init=(x[:, 0], x[:, 0].exp())),
    "scan": lambda x: tilefold.scan(x, online(), 1),
    "recurrence": lambda x: tilefold.scan(
        (x.sigmoid(), x), Monoid(lambda f, g: (g.a * f.a, g.a * f.b + g.b), (1, 0), fields=("a", "b")), 1
    )[1],
    "map": lambda x: tilefold.reduce_map(x, online(), lambda v, lse: math.exp(v - lse), 1),
    "map with rows": lambda x: tilefold.reduce_map(x, online(), lambda v, lse: v - lse, 1, rows=lambda lse: lse * 2),
    "segments": lambda x: tilefold.segment_reduce(x, online(), OFFSETS, dim=1),
    "a norm": lambda x: tilefold.reduce(x, monoids.NORM(3), 1),
    "moments": lambda x: tilefold.reduce(x, monoids.welford(lambda n, mean, m2: mean + m2 / n, "sum"), 1),
    "a tuple": lambda x: tilefold.reduce(x, Monoid(lambda a, b: a + b, 0, project=lambda s: (s, s * 2)), 1),
    "prefixes in a tuple": lambda x: tilefold.scan(x, Monoid(lambda a, b: a + b, 0, project=lambda s: (s,)), 1),
    "fields that are tuples' methods": lambda x: tilefold.reduce(
        x,
        Monoid(lambda a, b: (a.count + b.count, a.index + b.index), (0, 0), fields=("count", "index"), lift=lambda v: (1, v)),
        1,
    ),
    "a named tuple's methods": lambda x: tilefold.reduce(
        x,
        Monoid(lambda a, b: a._replace(p=a._asdict()["p"] + b.p), (0.0, 0.0), fields=("p", "q"), lift=lambda v: (v, 0.0)),
        1,
    ),
    "a product": lambda x: tilefold.matmul(x, W, epilogue=lambda v, e: math.tanh(v) + e, epilogue_args=(x[:, :5],)),
    "rows of a product": lambda x: tilefold.matmul(
        x, W, row=(online(), lambda v, lse: math.exp(v - lse)), bias=W[0]
    ),
    "a product's dtype": lambda x: tilefold.matmul(x, W, out_dtype=torch.float64),
}  # fmt: skip
SMOOTH = (
    "names of its own",
    "scan",
    "recurrence",
    "map",
    "segments",
    "moments",
    "a product",
    "rows of a product",
)


@pytest.fixture(autouse=True)
def forgotten() -> Iterator[None]:
    torch._dynamo.reset()
    yield
    torch._dynamo.reset()


def graphs() -> int:
    made: int = counters["stats"]["unique_graphs"]
    return made


def flat(results: Any) -> list[Tensor]:
    return [t for r in listed(results) for t in (flat(r) if isinstance(r, list | tuple) else [r])]


def assert_equal(got: Any, want: Any) -> None:
    assert len(flat(got)) == len(flat(want))
    assert all(map(torch.equal, flat(got), flat(want)))


@pytest.mark.parametrize("name", CALLS)
def test_a_graph_holds_it_as_a_constant_with_the_bits_of_an_eager_call(name: str) -> None:
    before, compiled = graphs(), torch.compile(CALLS[name], fullgraph=True, backend="aot_eager")
    for _ in range(2):  # all lambdas are made anew in the second
        assert_equal(compiled(X), CALLS[name](X))
    assert graphs() - before == 1


@pytest.mark.parametrize("backend", ["eager", "inductor"])
@pytest.mark.parametrize("name", ["names of its own", "recurrence", "map", "segments", "rows of a product"])
def test_other_backends_do_too(name: str, backend: str) -> None:
    assert_equal(torch.compile(CALLS[name], fullgraph=True, backend=backend)(X), CALLS[name](X))


@pytest.mark.parametrize("backend", ["aot_eager", "inductor"])
@pytest.mark.parametrize("name", SMOOTH)
def test_it_has_a_derivative(name: str, backend: str) -> None:
    def slope(call: Callable[[Tensor], Any]) -> Tensor:
        x = X.double().requires_grad_() if "product" not in name else X.clone().requires_grad_()
        made = sum(t.cos().sum() for t in flat(call(x)))
        return torch.autograd.grad(made, x)[0]

    compiled = slope(torch.compile(CALLS[name], fullgraph=True, backend=backend))
    torch.testing.assert_close(compiled, slope(CALLS[name]), rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("name", ["names of its own", "scan", "map", "a product"])
def test_one_graph_serves_all_lengths(name: str) -> None:
    before = graphs()
    compiled = torch.compile(CALLS[name], fullgraph=True, dynamic=True, backend="aot_eager")
    for rows in (4, 7, 12, 19):
        x = torch.randn(rows, 33, generator=SEEDED)
        assert_equal(compiled(x), CALLS[name](x))
    assert graphs() - before == 1


# ----------------------------------------------------------------------------------------- what functions read


FACTOR = 2.0


def of_partial_lift(x: Tensor, k: Any) -> Any:
    lift = functools.partial(lambda factor, v: v * factor, k)
    return tilefold.reduce(x, Monoid(lambda a, b: a + b, 0, lift=lift), 1)


def leaked(x: Tensor, t: Tensor) -> Any:
    """A value of the lift in a project."""
    box: list[Any] = []
    lift: Any = lambda v: (box.append(v), v * 2)[1]  # type: ignore[func-returns-value]  # noqa: E731
    return tilefold.reduce(x, Monoid(lambda a, b: a + b, 0, lift=lift, project=lambda s: s + box[0]), 1)


class Weighted(Monoid):
    """With an `__init__` of its own."""

    def __init__(self, weight: float) -> None:
        super().__init__(lambda a, b: a + b, 0, lift=lambda x: x * weight)


class Scaled(torch.nn.Module):
    factor = 2.0

    def forward(self, x: Tensor, factor: Any) -> Tensor:
        self.factor = factor
        scaled: Tensor = tilefold.reduce(x, Monoid(lambda a, b: a + b, 0, lift=lambda v: v * self.factor), 1)
        return scaled


def of_closure(x: Tensor, factor: Any) -> Any:
    return tilefold.reduce(x, Monoid(lambda a, b: a + b, 0, lift=lambda v: v * factor), 1)


def of_keyword(x: Tensor, factor: Any) -> Any:
    return tilefold.reduce(x, Monoid(lambda a, b: a + b, 0, lift=lambda v, *, k=factor: v * k), 1)


def of_global(x: Tensor, factor: Any) -> Any:
    return tilefold.reduce(x, Monoid(lambda a, b: a + b, 0, lift=lambda v: v * FACTOR), 1)


def of_identity(x: Tensor, factor: Any) -> Any:
    return tilefold.reduce(x, Monoid(math.maximum, factor, domain=(factor, None)), 1)


def of_map(x: Tensor, factor: Any) -> Any:
    return tilefold.reduce_map(x, monoids.SUM, lambda v, total: v * factor + total, 1)


def of_epilogue(x: Tensor, factor: Any) -> Any:
    return tilefold.matmul(x, W, epilogue=lambda v: v * factor)


def of_norm(x: Tensor, factor: Any) -> Any:
    return tilefold.reduce(x, monoids.NORM(factor), 1)


def of_partial(x: Tensor, factor: Any) -> Any:
    lift = functools.partial(lambda k, v: v * k, factor)
    return tilefold.reduce_map(x, monoids.SUM, lambda v, total: lift(v) - total, 1)


@pytest.mark.parametrize(
    "call",
    [of_closure, of_keyword, of_global, of_identity, of_map, of_epilogue, of_norm, of_partial, of_partial_lift, Scaled()],
    ids=lambda call: getattr(call, "__name__", "attribute"),
)  # fmt: skip
@pytest.mark.parametrize("factors", [(2.0, 3.0, -0.5), (2, 3, 5)], ids=["floats", "integers"])
def test_a_number_that_changes_is_never_stale(
    call: Any, factors: Sequence[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    compiled = torch.compile(call, fullgraph=True, backend="eager")
    for factor in (*factors, factors[0]):
        monkeypatch.setitem(globals(), "FACTOR", factor)
        assert_equal(compiled(X, factor), call(X, factor))


@pytest.mark.parametrize("backend", ["eager", "aot_eager"])
def test_functions_of_one_code_are_told_apart_by_what_they_close_over(backend: str) -> None:
    """A graph that was made for `scaled(2)` served `scaled(3)`, too."""

    def scaled(k: float) -> Callable[..., Any]:
        return lambda v, total: v * k - total

    compiled = torch.compile(
        lambda x, f: tilefold.reduce_map(x, monoids.SUM, f, 1), fullgraph=True, backend=backend
    )
    before = graphs()
    for k in (2.0, 3.0, 2.0):
        assert_equal(compiled(X, scaled(k)), tilefold.reduce_map(X, monoids.SUM, scaled(k), 1))
    assert graphs() - before <= 3
    before = graphs()
    compiled(X, scaled(2.0))
    assert graphs() == before


def test_a_length_is_a_constant_of_the_function_that_reads_it() -> None:
    def call(x: Tensor) -> Any:
        n = x.shape[1]
        return tilefold.reduce(x, Monoid(lambda a, b: a + b, 0, lift=lambda v: v / n), 1)

    compiled = torch.compile(call, fullgraph=True, dynamic=True, backend="eager")
    for length in (33, 20, 33):
        assert_equal(compiled(X[:, :length]), call(X[:, :length]))


@pytest.mark.parametrize(
    ("call", "error", "line"),
    [
        (lambda x, t: of_closure(x, t), TraceError, "mul takes traced values and Python numbers, got Tensor; give tensors"),
        (lambda x, t: of_map(x, t), TraceError, "mul takes traced values and Python numbers, got Tensor; give tensors"),
        (lambda x, t: of_epilogue(x, t), TraceError, "mul takes traced values and Python numbers, got Tensor"),
        (lambda x, t: Monoid(lambda a, b: a if a > b else b, 0), TraceError, "Python control flow .* needs a number"),
        (leaked, TraceError, "a value of one traced function was used in another"),
        (lambda x, t: Weighted(2.0), TraceError, "Weighted: inside of a compiled function .* one of its own; make"),
        (lambda x, t: Monoid(lambda a, b: a + b, 0, lift=3), MonoidError, "lift must be a function, got 3"),  # type: ignore[arg-type]
        (lambda x, t: Monoid(torch.maximum, 0), TraceError, "torch.maximum works on tensors"),
        (lambda x, t: Monoid(lambda a, b: a.max(), 0), TraceError, "it has no attributes, got .max"),
        (lambda x, t: Monoid(lambda a, b: (a.q, 0), (0, 0), fields=("p", "n")), TraceError, "must be one of .p, .n, got .q"),
        (lambda x, t: Monoid(lambda a, b: None, 0), MonoidError, "must return a value or a tuple of values, got NoneType"),
        (lambda x, t: Monoid(lambda a, b: a - b, 0), LawError, r"combine\(identity, s\) must be s"),
        (lambda x, t: Monoid(3, 0), MonoidError, "combine must be a function, got 3"),  # type: ignore[arg-type]
    ],
)  # fmt: skip
def test_what_is_refused_says_so_while_a_graph_is_made(call: Any, error: type[Exception], line: str) -> None:
    with pytest.raises(Exception, match=line) as raised:
        torch.compile(call, fullgraph=True, backend="eager")(X, torch.tensor(2.0))
    assert error.__name__ in str(raised.value) or isinstance(raised.value, error)
