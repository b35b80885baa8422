"""The graphs of a fold's gradient: by the total alone and by what is around an element, each beside torch's own
derivatives."""

from __future__ import annotations

import functools
import itertools
import math
from typing import Any

import pytest
import torch

from tilefold import Monoid, monoids
from tilefold import math as m
from tilefold.algebra.algebra import elementwise
from tilefold.algebra.derivatives.folds import Gradient, SingularError, of_elements, opposite, solved
from tilefold.algebra.derivatives.linear import add, as_float, chosen, div, is_zero, mul, neg, number
from tilefold.algebra.derivatives.pullback import pullback
from tilefold.algebra.evaluate import evaluate
from tilefold.algebra.expression import apply, trace
from tilefold.algebra.operations import OPS
from tilefold.algebra.typing import TypedGraph, infer
from tilefold.api.gradients import derived

Tensor = torch.Tensor
F64, LENGTH = torch.float64, 5
INF = math.inf


def made(typed: TypedGraph, given: Any) -> list[Tensor]:
    found = evaluate(typed, list(given))
    return [torch.as_tensor(t, dtype=d) for t, d in zip(found, typed.output_dtypes, strict=True)]


def rows(gradient: Gradient, seed: int = 0) -> list[Tensor]:
    generator = torch.Generator().manual_seed(seed)
    every = []
    for number_, dtype in enumerate(gradient.elements_read):
        drawn = torch.rand(LENGTH, 3, generator=generator, dtype=F64) + 0.5 + 0.1 * number_
        every.append(
            drawn.requires_grad_()
            if dtype.is_floating_point
            else torch.arange(LENGTH)[:, None].expand(LENGTH, 3)
        )
    return every


def states(gradient: Gradient, x: list[Tensor]) -> list[list[Tensor]]:
    return [made(gradient.program.lift, [t[k] for t in x]) for k in range(LENGTH)]


def folded(gradient: Gradient, some: list[list[Tensor]]) -> list[Tensor]:
    return functools.reduce(lambda a, b: made(gradient.program.combine, [*a, *b]), some)


def by_graph(run: Any, given: list[Tensor]) -> list[Tensor]:
    """A traced function of these values, evaluated."""
    graph = trace(lambda *v: tuple(as_float(c) for c in run(*v)), len(given))
    found = evaluate(infer(graph, [t.dtype for t in given]), [t.detach() for t in given])
    return [torch.as_tensor(t, dtype=F64).expand(3) for t in found]


PAIR = Monoid(
    lambda a, b: (a.w + b.w, a.t + b.t), (0, 0), fields=("w", "t"), lift=lambda x, w: (w * w, w * w * x),
    project=lambda w, t: t / w, commutative=True,
)  # fmt: skip
MATRICES = Monoid(lambda a, b: (a.s * b.s, a.t * b.s + b.t), (1, 0), fields=("s", "t"), lift=lambda x: (x, x))
PLACED = Monoid(lambda a, b: a + b, 0, lift=lambda x, i: x * x * i, index=True)
ALL = {
    "sum": (monoids.SUM, True), "product": (monoids.PROD, False), "logsumexp": (monoids.LOGSUMEXP, True),
    "moments": (monoids.WELFORD, True), "pair": (PAIR, True), "norm": (monoids.NORM(3.0), True),
    "matrices": (MATRICES, False), "positions": (PLACED, False),
}  # fmt: skip


@pytest.mark.parametrize("name", ALL)
def test_both_forms_are_torchs_derivative(name: str) -> None:
    monoid, alone = ALL[name]
    gradient = derived(monoid, (F64,) * monoid.algebra.inputs)
    assert gradient.needs_total_alone() is alone
    x, results = rows(gradient), gradient.results
    every = states(gradient, x)
    total = folded(gradient, every)
    projected = made(gradient.program.project, total)
    g = [torch.linspace(-1, 2, 3, dtype=F64) * (i + 1) for i in results]
    floats = [t for t in x if t.dtype == F64]
    want = torch.autograd.grad([projected[i] for i in results], floats, g)
    n, k = gradient.n, len(x)
    for at in range(LENGTH):
        before, after = (
            folded(gradient, some) if some else [torch.full((3,), float(v), dtype=F64).to(d) for v, d in
            zip(gradient.program.identity, gradient.program.state, strict=True)] for some in (every[:at], every[at + 1 :])
        )  # fmt: skip
        own = [t[at] for t in x]
        got = by_graph(
            lambda *v: gradient.around(
                v[:n],
                v[n : n + k],
                v[n + k : 2 * n + k],
                lambda whole: pullback(
                    gradient.program.project, whole, gradient.of_results(v[2 * n + k :], False)
                ),
            ),
            [*before, *own, *after, *g],
        )
        for one, other in zip(got, want, strict=False):
            torch.testing.assert_close(one, other[at], rtol=1e-9, atol=1e-12)
        if alone:
            gs = by_graph(
                lambda *v: pullback(gradient.program.project, v[:n], gradient.of_results(v[n:], False)),
                [*total, *g],
            )
            got = by_graph(
                lambda *v: gradient.by_total(v[:k], v[k : k + n], v[k + n :])[0], [*own, *total, *gs]
            )
            for one, other in zip(got, want, strict=False):
                torch.testing.assert_close(one, other[at], rtol=1e-9, atol=1e-12)


def test_what_has_a_derivative() -> None:
    """Floats that are made of float elements."""
    argmax = derived(monoids.MAX_WITH_INDEX, (F64,))
    assert argmax.floats == argmax.results == [0]
    whole = derived(monoids.SUM, (torch.int64,))
    assert whole.floats == whole.results == []
    moments = derived(monoids.WELFORD, (F64,))
    assert moments.moved < set(range(moments.n))  # the count is the same for all elements
    assert not derived(Monoid(lambda a, b: a + b, 0, lift=lambda x: m.floor(x)), (F64,)).results


def test_extremes_share_ties() -> None:
    assert derived(monoids.MAX, (F64,)).shares_ties
    assert not derived(monoids.SUM, (F64,)).shares_ties
    assert not derived(monoids.LOGSUMEXP, (F64,)).shares_ties
    clipped = Monoid(lambda a, b: m.maximum(a, b) + 0.0, -INF, check=False)
    assert not derived(clipped, (F64,)).shares_ties


def test_fields_that_depend_on_their_grouping() -> None:
    assert derived(monoids.SUM, (F64,)).keeps_fields
    assert derived(monoids.LOGSUMEXP, (F64,)).keeps_fields
    assert derived(MATRICES, (F64,)).keeps_fields
    assert not derived(monoids.WELFORD, (F64,)).keeps_fields


def test_the_derivative_by_the_state_before() -> None:
    """(s, t), x -> (s x, t x + x): by s and t it is x, and nothing else."""
    graph, entries = derived(MATRICES, (F64,)).jacobian
    assert set(entries) == {(0, 0), (1, 1)}
    given = [torch.tensor(v, dtype=F64) for v in (2.0, 3.0, 5.0, 7.0)]
    values = made(infer(graph, [F64] * 4), given)
    assert [float(values[int(at)]) for at in entries.values()] == [5.0, 5.0]
    _, constant = derived(monoids.SUM, (F64,)).jacobian
    assert constant == {(0, 0): 1.0}
    assert isinstance(constant[0, 0], float)


@pytest.mark.parametrize("n", [1, 2, 3])
@pytest.mark.parametrize("zeros", range(4))
def test_a_system_is_solved_in_the_graph(n: int, zeros: int) -> None:
    generator = torch.Generator().manual_seed(10 * n + zeros)
    matrix = torch.rand(n, n, generator=generator, dtype=F64) + 0.5 + 2 * torch.eye(n, dtype=F64)
    for i, j in list(itertools.permutations(range(n), 2))[:zeros]:
        matrix[i, j] = 0.0
    right = torch.rand(n, generator=generator, dtype=F64)
    shown = list[Any]()

    def run(*v: Any) -> Any:
        held = iter(v)
        system = [[0 if matrix[i, j] == 0 else next(held) for j in range(n)] for i in range(n)]
        u, divisors = solved(system, list(held))
        shown.append(len(divisors))
        return tuple(u)

    given = [t for t in matrix.ravel() if t != 0] + list(right)
    graph = trace(run, len(given))
    got = torch.stack(made(infer(graph, [F64] * len(given)), given))
    torch.testing.assert_close(got, torch.linalg.solve(matrix, right))
    assert shown == [n]


def test_divisors_that_are_numbers_are_no_risk() -> None:
    def run(x: Any, g: Any) -> Any:
        u, divisors = solved([[1.0, x], [0, 2.0]], [g, g])
        assert not divisors
        return tuple(u)

    values = made(
        infer(trace(run, 2), [F64] * 2), [torch.tensor(3.0, dtype=F64), torch.tensor(4.0, dtype=F64)]
    )
    assert [float(v) for v in values] == [-2.0, 2.0]

    def singular(x: Any, g: Any) -> Any:
        return tuple(solved([[x, x * 1.0], [0, 0]], [g, g])[0])

    with pytest.raises(SingularError):
        trace(singular, 2)


def test_other_algebras() -> None:
    turned = opposite(MATRICES.algebra)
    given = [torch.tensor(v, dtype=F64) for v in (2.0, 3.0, 5.0, 7.0)]
    one = made(infer(MATRICES.algebra.combine, [F64] * 4), given)
    assert made(infer(turned.combine, [F64] * 4), given[2:] + given[:2]) == one
    assert turned.commutative is False
    each = elementwise(trace(lambda x, y: (x * y, x + y), 2))
    assert (each.inputs, each.fields, each.project) == (2, ("y0", "y1"), None)
    placed = of_elements(PLACED.algebra)
    assert (placed.inputs, placed.index, placed.project) == (2, False, None)
    assert of_elements(monoids.WELFORD.algebra).inputs == 1


# --------------------------------------------------------------------------------------------------- pullbacks of graphs


@pytest.mark.parametrize("seed", range(16))
def test_pullbacks_of_drawn_graphs_are_torchs_derivatives(seed: int) -> None:
    generator = torch.Generator().manual_seed(seed)

    def pick(most: int) -> int:
        return int(torch.randint(most, (), generator=generator))

    smooth = [
        "add",
        "sub",
        "mul",
        "truediv",
        "exp",
        "log",
        "sqrt",
        "sin",
        "tanh",
        "neg",
        "maximum",
        "minimum",
        "where",
        "abs",
    ]

    def function(*x: Any) -> Any:
        values = list(x)
        for _ in range(8):
            op = smooth[pick(len(smooth))]
            a, b = (values[pick(len(values))] for _ in range(2))
            if op == "where":
                values.append(m.where(a < b, a, b * 1.0))
            elif OPS[op].arity == 1:
                values.append(
                    apply(op, m.abs(a) + 1.5 if op in ("log", "sqrt") else m.tanh(a) if op == "exp" else a)
                )
            else:
                values.append(apply(op, a, b * b + 1.0 if op == "truediv" else b))
        return values[-1] + 0.0 * x[0], values[-2] * values[-3]

    graph = trace(function, 3)
    x = [(torch.rand(4, generator=generator, dtype=F64) + 0.25).requires_grad_() for _ in range(3)]
    g = [torch.rand(4, generator=generator, dtype=F64) for _ in range(2)]
    typed = infer(graph, [F64] * 3)
    want = torch.autograd.grad([t.expand(4) for t in made(typed, x)], x, g, allow_unused=True)
    back = trace(lambda *v: tuple(as_float(c) for c in pullback(typed, v[:3], v[3:])), 5)
    got = made(infer(back, [F64] * 5), [*(t.detach() for t in x), *g])
    for one, other in zip(got, want, strict=True):
        torch.testing.assert_close(
            one.expand(4), torch.zeros(4, dtype=F64) if other is None else other, rtol=1e-9, atol=1e-12
        )


def test_what_is_0_is_never_multiplied() -> None:
    """An element that a choice leaves out has the derivative 0, and not 0 * inf."""

    def value(x: Any) -> Any:
        return m.where(x > 0, m.log(x), 0.0) * m.where(x > 0, 1 / x, 0.0)

    typed = infer(trace(value, 1), [F64])
    back = trace(lambda x: pullback(typed, [x], [1.0])[0], 1)
    x = torch.tensor([0.0, -1.0, 2.0], dtype=F64)
    (got,) = made(infer(back, [F64]), [x])
    torch.testing.assert_close(got, torch.tensor([0.0, 0.0, (1 - math.log(2)) / 4], dtype=F64))


@pytest.mark.parametrize("side", [True, False])
@pytest.mark.parametrize("other", [True, False])
def test_arithmetic_of_choices(side: bool, other: bool) -> None:
    """Each is what plain arithmetic gives, for both answers of the condition."""

    def run(c: Any, x: Any, y: Any) -> Any:
        one, two = chosen(c > 0, x, side), chosen(c > 0, y, other)
        return add(one, two), mul(one, y), mul(y, one), neg(one), div(one, y), add(one, y), neg(neg(y)), mul(-1, y), mul(y,
        1), mul(0, y) + x  # fmt: skip

    x, y = torch.tensor([3.0, 3.0], dtype=F64), torch.tensor([5.0, 5.0], dtype=F64)
    c = torch.tensor([1.0, -1.0], dtype=F64)
    got = made(infer(trace(run, 3), [F64] * 3), [c, x, y])
    one, two = (torch.where((c > 0) == s, t, 0.0) for s, t in ((side, x), (other, y)))
    want = [one + two, one * y, one * y, -one, one / y, one + y, y, -y, y, x]
    for a, b in zip(got, want, strict=True):
        torch.testing.assert_close(a, b)


def test_numbers_are_known() -> None:
    def run(x: Any) -> Any:
        assert number(x) is None
        assert number(2.5) == 2.5
        assert not is_zero(x)
        assert is_zero(0.0)
        assert is_zero(chosen(x > 0, 0))
        assert is_zero(div(0, x))
        assert div(x, 1) is x
        assert add(0, x) is x is add(x, 0) is mul(1, x)
        assert isinstance(as_float(2), float)
        return x * 1.0

    trace(run, 1)
