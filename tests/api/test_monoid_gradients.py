"""Gradients of a user's monoids, of states, of scans and of maps: beside a loop over elements, and by finite differences."""

from __future__ import annotations

import functools
import os
import random
from collections.abc import Callable, Sequence
from typing import Any

import pytest
import torch
from torch.autograd import gradcheck, gradgradcheck

import tilefold
from algebra.drawn import RIGHT, draw
from api.differentiated import (
    F64,
    PAIR,
    Tensor,
    assert_alike,
    assert_differentiated,
    by_our_rules,  # noqa: F401  # a fixture
    drawn,
)
from tilefold import Monoid, math, monoids
from tilefold.algebra.evaluate import evaluate
from tilefold.api.gradients import derived
from tilefold.errors import GradientError
from tilefold.runtime.overrides import listed

INF = float("inf")
pytestmark = pytest.mark.usefixtures("by_our_rules")

# ---------------------------------------------------------------------------------------------------- a user's monoids

PLACED = Monoid(lambda a, b: a + b, 0, lift=lambda x, i: x * x * i, index=True)
WITHOUT_IDENTITY = Monoid(lambda a, b: a + b, None)


def test_a_fold_of_two_inputs_that_broadcast() -> None:
    """Each gradient has its input's shape."""
    x, w = drawn(3, 4), drawn(4, seed=1)
    assert_alike(
        lambda x, w: tilefold.reduce((x, w), PAIR, 1),
        lambda x, w: (x * w * w).sum(1) / (w * w).expand(3, 4).sum(1),
        x,
        w,
    )
    assert_differentiated(lambda x, w: tilefold.reduce((x, w), PAIR, 1), x, w)


@pytest.mark.parametrize("dim", [0, 1, (0, 1), ()])
def test_positions_are_those_of_the_row(dim: Any) -> None:
    def like(x: Tensor) -> Tensor:
        if dim == ():
            return x * x * 0
        places = torch.arange(x.numel()).reshape(x.shape) if dim == (0, 1) else torch.arange(x.shape[dim])
        return (x * x * (places[:, None] if dim == 0 else places)).sum(dim)

    assert_alike(lambda x: tilefold.reduce(x, PLACED, dim), like, drawn(3, 4))


def test_a_monoid_without_an_identity() -> None:
    assert_alike(lambda x: tilefold.reduce(x, WITHOUT_IDENTITY, 1), lambda x: x.sum(1), drawn(3, 4))
    assert_alike(lambda x: tilefold.scan(x, WITHOUT_IDENTITY, 1), lambda x: x.cumsum(1), drawn(3, 4))


def test_elements_are_combined_in_order() -> None:
    """Matrices do not commute: what is before an element and what is after it stay on their sides."""

    def like(*m: Tensor) -> list[Tensor]:
        every = torch.stack(m, -1).unflatten(-1, (2, 2))
        made = every[:, 0]
        for t in range(1, every.shape[1]):
            made = every[:, t] @ made if later_first else made @ every[:, t]
        return list(made.flatten(-2).unbind(-1))

    given = [drawn(2, 5, seed=s) for s in range(4)]
    fold = lambda *m: list(tilefold.reduce(m, monoids.MATMUL2X2, 1))  # noqa: E731
    later_first = False
    later_first = not torch.allclose(fold(*given)[0], like(*given)[0])
    assert_alike(fold, like, *given)


def test_products_with_zeros() -> None:
    """One zero, two, and none: nothing is divided by an element."""
    x = torch.tensor([[2.0, 0.0, 3.0], [0.0, 0.0, 5.0], [1.0, 2.0, 4.0]], dtype=F64, requires_grad=True)
    assert_alike(lambda x: tilefold.prod(x, 1), lambda x: torch.prod(x, 1), x)


def test_ordered_folds_of_several_dims() -> None:
    turned = Monoid(
        lambda a, b: (a.s * b.s, a.t * b.s + b.t), (1, 0), fields=("s", "t"), lift=lambda x: (x, x)
    )

    def like(x: Tensor) -> list[Tensor]:
        s, t = torch.ones(x.shape[1], dtype=F64), torch.zeros(x.shape[1], dtype=F64)
        for i in range(x.shape[0]):
            for k in range(x.shape[2]):
                s, t = s * x[i, :, k], t * x[i, :, k] + x[i, :, k]
        return [s, t]

    assert_alike(lambda x: list(tilefold.reduce(x, turned, (0, 2))), like, drawn(2, 3, 4))


def test_a_map_of_an_ordered_fold() -> None:
    last = Monoid(
        lambda a, b: (a.s * b.s, a.t * b.s + b.t),
        (1, 0),
        fields=("s", "t"),
        lift=lambda x: (0.5, x),
        project=lambda s, t: t,
    )

    def like(x: Tensor) -> Tensor:
        total = torch.zeros_like(x[:, :1])
        for t in range(x.shape[1]):
            total = total * 0.5 + x[:, t : t + 1]
        return x * total

    assert derived(last, (F64,)).needs_total_alone() is False
    assert_alike(lambda x: tilefold.reduce_map(x, last, lambda v, total: v * total, 1), like, drawn(3, 4))


def test_a_map_with_extra_tensors_of_every_shape() -> None:
    def call(x: Tensor, whole: Tensor, column: Tensor, scalar: Tensor) -> Any:
        return tilefold.reduce_map(
            x,
            monoids.SUM,
            lambda v, t, a, b, c: (v * t * a, t + b * v * c),
            1,
            extras=(whole, column, scalar),
        )

    def like(x: Tensor, whole: Tensor, column: Tensor, scalar: Tensor) -> Any:
        total = x.sum(1, keepdim=True)
        return x * total * whole, total + column * x * scalar

    assert_alike(
        call,
        like,
        drawn(3, 4),
        drawn(3, 4, seed=1),
        drawn(3, 1),
        drawn(1).reshape(()).detach().requires_grad_(),
    )


SELECTIONS = {
    "max": monoids.MAX,
    "min": monoids.MIN,
    "no identity": Monoid(math.maximum, None),
    "a choice": Monoid(lambda a, b: math.where((b >= a) | math.isnan(b), b, a), -INF),
}


@pytest.mark.parametrize("reverse", [False, True])
@pytest.mark.parametrize("exclusive", [False, True])
@pytest.mark.parametrize("name", SELECTIONS)
def test_a_state_before_a_scan_is_selected_as_an_element_is(
    name: str, exclusive: bool, reverse: bool
) -> None:
    """Of elements that tie, and of NaN, one has the cotangent, whether it stands before the others or among them."""
    x = torch.randint(-1, 2, (20, 5), generator=torch.Generator().manual_seed(3)).double()
    x[5:15, 2], first = float("nan"), torch.zeros(20, 1, dtype=F64)
    first[10:] = float("nan")
    parts = [x, first] if reverse else [first, x]
    whole, g = torch.cat(parts, 1).requires_grad_(), torch.arange(1.0, 101, dtype=F64).view(20, 5)
    wanted = tilefold.scan(whole, SELECTIONS[name], 1, reverse=reverse).narrow(
        1, int(reverse == exclusive), 5
    )
    init, form = first[:, 0].requires_grad_(), {"reverse": reverse, "exclusive": exclusive}
    got = tilefold.scan(x.requires_grad_(), SELECTIONS[name], 1, init=init, **form)
    of_x, of_init = torch.autograd.grad(got, (x, init), g)
    made = [of_x, of_init[:, None]] if reverse else [of_init[:, None], of_x]
    torch.testing.assert_close(torch.cat(made, 1), torch.autograd.grad(wanted, whole, g)[0])


def test_scans_of_equal_elements_have_torchs_gradient() -> None:
    """The last one has it: in the other direction, the first."""
    x = drawn(20, 5).detach().round()
    for own, of_torch in ((monoids.MAX, torch.cummax), (monoids.MIN, torch.cummin)):
        like = lambda x, f=of_torch: f(x, 1).values  # noqa: E731  # one call
        assert_alike(lambda x, m=own: tilefold.scan(x, m, 1), like, x.clone().requires_grad_())
        back = lambda x, f=like: f(x.flip(1)).flip(1)  # noqa: E731  # one call
        assert_alike(lambda x, m=own: tilefold.scan(x, m, 1, reverse=True), back, x.clone().requires_grad_())


@pytest.mark.parametrize("reverse", [False, True])
@pytest.mark.parametrize("exclusive", [False, True])
@pytest.mark.parametrize("dim", [0, 1])
def test_the_affine_scan(reverse: bool, exclusive: bool, dim: int) -> None:
    """From a state, to a state, beside a loop."""

    def call(a: Tensor, b: Tensor, h: Tensor) -> list[Tensor]:
        (slope, value), state = tilefold.scan(
            (a, b),
            monoids.AFFINE,
            dim,
            init=(torch.ones_like(h), h),
            reverse=reverse,
            exclusive=exclusive,
            return_state=True,
        )
        return [slope, value, *state]

    def like(a: Tensor, b: Tensor, h: Tensor) -> list[Tensor]:
        rows = [torch.unbind(t, dim) for t in (a, b)]
        slope, value, made = torch.ones_like(h), h, []
        order = list(range(len(rows[0])))
        for t in reversed(order) if reverse else order:
            before = slope, value
            slope, value = slope * rows[0][t], value * rows[0][t] + rows[1][t]
            made.append(before if exclusive else (slope, value))
        made = made[::-1] if reverse else made
        return [*(torch.stack(m, dim) for m in zip(*made, strict=True)), slope, value]

    a, b = drawn(3, 4), drawn(3, 4, seed=1)
    h = drawn(4 if dim == 0 else 3, seed=2)
    assert_alike(call, like, a, b, h)
    if dim:
        assert_differentiated(call, a, b, h)


def as_list(state: Any) -> list[Tensor]:
    return [state] if isinstance(state, Tensor) else list(state)


PAYLOAD = Monoid(
    lambda a, b: (math.maximum(a.most, b.most), math.where(b.most > a.most, b.load, a.load)), (-INF, 0),
    fields=("most", "load"), lift=lambda x: (x, x * x), commutative=False, check=False, name="payload",
)  # fmt: skip
STEPS = Monoid(
    lambda a, b: (a.s * b.s, a.t * b.s + b.t), (1, 0), fields=("s", "t"), lift=lambda x: (x, x), name="steps"
)
CHUNKED = (
    monoids.SUM, monoids.PROD, monoids.LOGSUMEXP, monoids.NORM(3), monoids.MAX, monoids.MINMAX, monoids.MAX_WITH_INDEX,
    monoids.FIRST, monoids.LAST, WITHOUT_IDENTITY, STEPS, PAYLOAD,
)  # fmt: skip


@pytest.mark.parametrize("monoid", CHUNKED, ids=lambda m: m.name)
def test_a_fold_from_a_state_to_a_state(monoid: Monoid) -> None:
    """By finite differences: elements and the state before them, results and the state after."""
    keepdim = monoid in (monoids.LOGSUMEXP, monoids.MAX, STEPS)
    state = as_list(tilefold.reduce(drawn(2, 3, seed=4).detach(), monoid, 1, keepdim, return_state=True)[1])
    floats = [t.requires_grad_() for t in state if t.is_floating_point()]

    def call(x: Tensor, *fields: Tensor) -> list[Tensor]:
        given = iter(fields)
        init = [next(given) if t.is_floating_point() else t for t in state]
        made, after = tilefold.reduce(x, monoid, 1, keepdim, init=init, return_state=True)
        return [t for t in (*as_list(made), *as_list(after)) if t.is_floating_point()]

    given = (drawn(2, 2), *floats)
    assert gradcheck(call, given, fast_mode=True)
    assert gradgradcheck(call, given, fast_mode=True)


@pytest.mark.parametrize("monoid", [*CHUNKED, monoids.NORM(2)], ids=lambda m: m.name)
def test_chunks_have_the_gradient_of_the_whole(monoid: Monoid) -> None:
    def chunked(x: Tensor) -> list[Tensor]:
        state = tilefold.reduce(x[:, :2], monoid, 1, return_state=True)[1]
        state = tilefold.reduce(x[:, 2:3], monoid, 1, init=state, return_state=True)[1]
        made = as_list(tilefold.reduce(x[:, 3:], monoid, 1, init=state))
        return [t for t in made if t.is_floating_point()]

    def whole(x: Tensor) -> list[Tensor]:
        return [t for t in as_list(tilefold.reduce(x, monoid, 1)) if t.is_floating_point()]

    assert_alike(chunked, whole, drawn(3, 6))


ORDERS, EQUAL = (-3.0, -1.0, 0.5, 1.5, 2.0, 3.0), (2.0, -2.0, 1.0, 2.0, -1.0, 1.0)


@pytest.mark.parametrize("options", [{}, {"exclusive": True}, {"reverse": True}], ids=str)
@pytest.mark.parametrize("p", ORDERS)
def test_equal_magnitudes_share_the_slopes_of_prefixes_norms(p: float, options: dict[str, bool]) -> None:
    """A combine that is right by its values alone would give one of them all."""
    first = int("exclusive" in options)

    def norms(x: Tensor) -> list[Tensor]:
        x = x.flip(1) if options.get("reverse") else x
        made = torch.stack([torch.linalg.vector_norm(x[:, : i + 1], p, 1) for i in range(6 - first)], 1)
        return [made.flip(1) if options.get("reverse") else made]

    def scanned(x: Tensor) -> list[Tensor]:
        return [tilefold.scan(x, monoids.NORM(p), 1, **options)[:, first:]]

    assert_alike(scanned, norms, torch.tensor([EQUAL], dtype=F64, requires_grad=True))


@pytest.mark.parametrize("p", ORDERS)
def test_equal_magnitudes_of_chunks_share_the_slope_of_their_norm(p: float) -> None:
    def chunked(x: Tensor) -> list[Tensor]:
        state = tilefold.reduce(x[:3], monoids.NORM(p), 0, return_state=True)[1]
        return [tilefold.reduce(x[3:], monoids.NORM(p), 0, init=state)]

    x = torch.tensor(EQUAL, dtype=F64, requires_grad=True)
    assert_alike(chunked, lambda x: [torch.linalg.vector_norm(x, p, 0)], x)


COUNTED = Monoid(
    lambda a, b: (a.count + b.count, a.total + b.total), (0, 0), fields=("count", "total"),
    lift=lambda x: (1.0, x), project=lambda count, total: (count * count, total / count),
)  # fmt: skip


@pytest.mark.filterwarnings("ignore:.*torch.jit.script.*:DeprecationWarning")  # torch's own, at its import
@pytest.mark.parametrize("options", [{}, {"exclusive": True}, {"reverse": True}], ids=str)
def test_results_that_only_the_state_before_changes(options: dict[str, bool]) -> None:
    """By finite differences, twice, and forward."""
    x, total = drawn(2, 3), drawn(2, seed=1)
    count = torch.tensor([1.5, 2.0], dtype=F64, requires_grad=True)

    def call(x: Tensor, *state: Tensor) -> list[Tensor]:
        return as_list(tilefold.scan(x, COUNTED, 1, init=state, **options))

    assert gradcheck(call, (x, count, total), check_forward_ad=True)
    assert gradgradcheck(call, (x, count, total))


OF_WHOLE_NUMBERS = ("bits", "hashes", "products of a modulus")


@pytest.mark.parametrize("number", [n for n in range(20) if draw(RIGHT, 7, n).kind not in OF_WHOLE_NUMBERS])
def test_drawn_monoids_from_a_state(number: int) -> None:
    """By finite differences, with a state before the elements and without."""
    drawn_one = draw(RIGHT, 7, number)
    asked = {} if "commutative" in drawn_one.options else {"commutative": False}
    monoid = drawn_one.monoid(check=False, **asked)
    ranges = [(max(d.low, -2.0), min(d.high, 2.0)) for d in monoid.algebra.domain or ()] or [(-2.0, 2.0)] * 9
    generator = torch.Generator().manual_seed(number)

    def some(length: int) -> list[Tensor]:
        drawn_rows = [
            torch.rand(2, length, generator=generator, dtype=F64) for _ in range(monoid.algebra.inputs)
        ]
        return [
            low + (high - low) * (0.05 + 0.9 * t) for t, (low, high) in zip(drawn_rows, ranges, strict=False)
        ]

    state = as_list(tilefold.reduce(some(2), monoid, 1, return_state=True)[1])
    x = [t.requires_grad_() for t in some(3)]

    def call(*x: Tensor, **options: Any) -> list[Tensor]:
        return [t for t in as_list(tilefold.reduce(x, monoid, 1, **options)) if t.requires_grad]

    for options in ({}, {"init": state}):
        if call(*x, **options) and all(t.dtype == F64 for t in state if t.is_floating_point()):
            assert gradcheck(functools.partial(call, **options), x, fast_mode=True)


def one_by_one(monoid: Monoid, x: Sequence[Tensor], prefixes: bool) -> list[Tensor]:
    """The definition, as torch's autograd sees it: an element after another."""
    program, rows = derived(monoid, (F64,) * len(x)).program, x[0].shape[0]

    def typed(graph: Any, given: Sequence[Tensor]) -> list[Tensor]:
        made = zip(evaluate(graph, given), graph.output_dtypes, strict=True)
        return [torch.as_tensor(t, dtype=dtype).expand(rows) for t, dtype in made]

    found, state = list[list[Tensor]](), list[Tensor]()
    for place in range(x[0].shape[1]):
        elements = [t[:, place] for t in x]
        elements += [torch.full((rows,), place)] * monoid.algebra.index
        lifted = typed(program.lift, elements)
        state = typed(program.combine, [*state, *lifted]) if state else lifted
        found.append(typed(program.project, state))
    return [torch.stack(t, 1) for t in zip(*found, strict=True)] if prefixes else found[-1]


@pytest.mark.parametrize("number", range(200 if "TILEFOLD_RANDOM_PLANS" in os.environ else 5))
def test_drawn_monoids_beside_a_loop(number: int) -> None:
    """Folds and scans: gradients, and gradients of these."""
    one = draw(RIGHT, 13, number)
    monoid = one.monoid(check=False, **({} if "commutative" in one.options else {"commutative": False}))
    rounding = (torch.float32, torch.bfloat16, torch.float16)
    if one.kind in OF_WHOLE_NUMBERS or any(rule in rounding for rule in monoid.algebra.dtypes):
        return
    inputs = monoid.algebra.inputs
    ranges = [(max(d.low, -2.0), min(d.high, 2.0)) for d in monoid.algebra.domain or ()] or [
        (-2.0, 2.0)
    ] * inputs
    generator = torch.Generator().manual_seed(number)
    length = 1 + number % 6
    unit = torch.rand(inputs, 3, length, generator=generator, dtype=F64) * 0.9 + 0.05
    x = [
        (low + (high - low) * u).requires_grad_()
        for (low, high), u in zip(ranges[:inputs], unit, strict=True)
    ]
    for prefixes in (False, True):
        made = as_list(tilefold.scan(x, monoid, 1) if prefixes else tilefold.reduce(x, monoid, 1))
        wanted = one_by_one(monoid, x, prefixes)
        pairs = [(a, b) for a, b in zip(made, wanted, strict=True) if a.requires_grad and b.requires_grad]
        if not pairs:
            continue
        weights = [torch.randn(a.shape, generator=generator, dtype=F64) for a, _ in pairs]
        found = []
        for side in zip(*pairs, strict=True):
            first = torch.autograd.grad(side, x, weights, create_graph=True, materialize_grads=True)
            curved = [g.sin().sum() for g in first if g.requires_grad]
            second = torch.autograd.grad(curved, x, materialize_grads=True) if curved else ()
            found.append([t.detach() for t in (*first, *(second or map(torch.zeros_like, x)))])
        for got, want in zip(*found, strict=True):
            scale = max(1.0, float(want.abs().max()))
            assert float((got - want).abs().max()) <= 1e-7 * scale


def test_moments_from_a_state() -> None:
    """A state whose fields depend on how they were grouped may begin a fold, and has a gradient."""
    first, x = drawn(3, 5, seed=2).detach(), drawn(3, 4)
    state = tilefold.reduce(first, monoids.WELFORD, 1, return_state=True)[1]
    assert_alike(
        lambda x: tilefold.reduce(x, monoids.WELFORD, 1, init=state).M2,
        lambda x: torch.cat([first, x], 1).var(1) * 8,
        x,
    )
    total = state.sum.clone().requires_grad_()
    mean = tilefold.reduce(x.detach(), monoids.WELFORD, 1, init=state._replace(sum=total)).mean
    torch.testing.assert_close(torch.autograd.grad(mean.sum(), total)[0], state.unit / 9, atol=0, rtol=1e-12)


def test_states_that_depend_on_their_grouping_have_no_gradient() -> None:
    """A mean about a pivot of the larger part, without a projection that is the same for every grouping."""

    def combine(a: Any, b: Any) -> tuple[Any, ...]:
        pivot = math.where(a.count > b.count, a.pivot, b.pivot)
        total = a.total + a.count * (a.pivot - pivot) + b.total + b.count * (b.pivot - pivot)
        return a.count + b.count, pivot, total

    about = Monoid(
        combine,
        (0, 0, 0),
        fields=("count", "pivot", "total"),
        lift=lambda x: (1.0, x * x, 0.0),
        check=False,
        commutative=True,
    )
    x = drawn(3, 4)
    with pytest.raises(GradientError, match="depend on how it was grouped"):
        as_list(tilefold.reduce(x, about, 1))[1].sum().backward()


def test_a_float_that_no_element_moves_has_no_gradient() -> None:
    """A count beside a sum: as of folds, so of scans."""
    counted = Monoid(
        lambda a, b: (a.n + b.n, a.s + b.s), (0, 0), fields=("n", "s"), lift=lambda x: (1.0, x), commutative=True,
        project=lambda n, s: (n, s * s),
    )  # fmt: skip
    x = drawn(3, 4)
    for made in (tilefold.reduce(x, counted, 1), tilefold.scan(x, counted, 1)):
        assert [r.requires_grad for r in listed(made)] == [False, True]


# -------------------------------------------------------------------------------------------------- values of rows


def test_values_of_rows_have_gradients() -> None:
    """Beside elements', alone, and where elements depend on no row."""
    x, e = drawn(3, 4), drawn(3, 1, seed=1)
    shift = lambda v, total, e: v - total * e  # noqa: E731

    def call(x: Tensor, e: Tensor) -> Any:
        return tilefold.reduce_map(x, monoids.LOGSUMEXP, shift, 1, extras=e, rows=lambda t: (t, t * t))

    def like(x: Tensor, e: Tensor) -> Any:
        total = torch.logsumexp(x, 1, keepdim=True)
        return x - total * e, total, total * total

    assert_alike(call, like, x, e)
    assert_alike(lambda x, e: call(x, e)[1] * e, lambda x, e: like(x, e)[1] * e, x, e)
    alone = lambda v, total: v * v  # noqa: E731
    assert_alike(
        lambda x: tilefold.reduce_map(x, monoids.SUM, alone, 0, rows=lambda t: t),
        lambda x: (x * x, x.sum(0, keepdim=True)),
        x,
    )
    assert_differentiated(call, x, e)
    ordered = lambda x: tilefold.reduce_map(x, monoids.PROD, lambda v, p: v + p, 1, rows=lambda p: p * p)  # noqa: E731
    assert_alike(ordered, lambda x: (x + x.prod(1, keepdim=True), x.prod(1, keepdim=True) ** 2), x)
    assert_differentiated(ordered, x)


def test_elements_that_tie_share_what_a_map_makes_of_their_extreme() -> None:
    x = torch.tensor([[1.0, 3, 3, 2], [5, 0, 5, 5]], dtype=F64, requires_grad=True)

    def call(x: Tensor) -> tuple[Tensor, Tensor]:
        made: tuple[Tensor, Tensor] = tilefold.reduce_map(
            x, monoids.MAX, lambda v, m: v * m, 1, rows=lambda m: m * m
        )
        return made

    def like(x: Tensor) -> tuple[Tensor, Tensor]:
        most = torch.amax(x, 1)
        return x * most[:, None], most * most

    results = zip(call(x), like(x), strict=True)
    for got, want in results:
        assert got.numel() == want.numel()
        weights = torch.linspace(1, 2, want.numel(), dtype=F64)
        (made,) = torch.autograd.grad(got, x, weights.view(got.shape), retain_graph=True)
        (wanted,) = torch.autograd.grad(want, x, weights.view(want.shape), retain_graph=True)
        torch.testing.assert_close(made, wanted, rtol=1e-12, atol=0)


def test_a_value_of_a_row_goes_back_in() -> None:
    """What one map stored is folded by another: both have gradients."""
    x = drawn(3, 4)
    product = Monoid(lambda a, b: a + b, 0, lift=lambda v, s: v * s * s, commutative=True)

    def call(x: Tensor) -> Tensor:
        shifted, total = tilefold.reduce_map(x, monoids.LOGSUMEXP, lambda v, t: v - t, 1, rows=lambda t: t)
        made: Tensor = tilefold.reduce_map((shifted, total), product, lambda v, s, p: v * p + s, 1)
        return made

    def like(x: Tensor) -> Tensor:
        total = torch.logsumexp(x, 1, keepdim=True)
        return (x - total) * ((x - total) * total**2).sum(1, keepdim=True) + total

    assert_alike(call, like, x)
    assert_differentiated(call, x)


FOLDS: tuple[tuple[Monoid, Callable[[Tensor], tuple[Tensor, ...]]], ...] = (
    (monoids.SUM, lambda x: (x.sum(1, keepdim=True),)),
    (monoids.LOGSUMEXP, lambda x: (x.logsumexp(1, keepdim=True),)),
    (monoids.PROD, lambda x: (x.prod(1, keepdim=True),)),
    (monoids.NORM(2), lambda x: (torch.linalg.vector_norm(x, 2, 1, keepdim=True),)),
    (
        monoids.welford(lambda n, mean, squares: (mean, squares), "moments"),
        lambda x: (x.mean(1, keepdim=True), x.var(1, correction=0, keepdim=True) * x.shape[1]),
    ),
    (
        Monoid(lambda a, b: a + b, 0, lift=lambda x, i: x * (i + 1), index=True, name="by place"),
        lambda x: ((x * torch.arange(1, 1 + x.shape[1])).sum(1, keepdim=True),),
    ),
)


def drawn_function(generator: random.Random, values: int) -> Callable[..., Any]:
    """A function of so many values, of Python's operations and those that tensors and symbols both have."""
    steps = [(generator.choice("+*-s"), generator.randrange(99), generator.randrange(99)) for _ in range(4)]

    def function(*given: Any) -> Any:
        held = list(given)
        for op, a, b in steps:
            x, y = held[a % len(held)], held[b % len(held)]
            held.append({"+": x + y, "*": x * y * 0.5, "-": x - y, "s": (x * x + 1.0) ** 0.5}[op])
        return held[-1] + held[0] * held[-2], held[-1]

    assert values
    return function


@pytest.mark.parametrize("seed", range(60 if "TILEFOLD_RANDOM_PLANS" in os.environ else 6))
def test_drawn_maps(seed: int) -> None:
    """A drawn function of elements, results and extra tensors of any part of the shape, and one of rows: twice."""
    generator = random.Random(seed)
    monoid, folded = generator.choice(FOLDS)
    results = len(folded(torch.ones(1, 2)))
    sizes = [generator.choice([(4, 5), (5,), (4, 1), (1, 1), ()]) for _ in range(generator.randrange(3))]
    apply = drawn_function(generator, 1 + results + len(sizes))
    rows = drawn_function(generator, results)
    given = [drawn(4, 5, seed=seed), *(drawn(*size, seed=seed + i) for i, size in enumerate(sizes, 1))]

    def like(x: Tensor, *extras: Tensor) -> tuple[Tensor, ...]:
        made = folded(x)
        return (*(t.expand(4, 5) for t in apply(x, *made, *extras)), *rows(*made))

    def call(x: Tensor, *extras: Tensor) -> Any:
        return tilefold.reduce_map(x, monoid, apply, 1, extras=extras, rows=rows)

    def slopes(made: Sequence[Tensor]) -> list[Tensor]:
        """Those of a sum of squares: 0 of what nothing is made of."""
        whole = sum((t * t.detach().cos()).sum() for t in made)
        found = torch.autograd.grad(whole, given, create_graph=True, allow_unused=True)
        return [t * 0 if g is None else g + t * 0 for g, t in zip(found, given, strict=True)]

    got, want = list(call(*given)), list(like(*given))
    for tolerance in (1e-10, 1e-9, 1e-8):
        for a, b in zip(got, want, strict=True):
            torch.testing.assert_close(a, b, rtol=tolerance, atol=tolerance)
        got, want = slopes(got), slopes(want)


@pytest.mark.parametrize("dim", [0, 1, (0, 1), ()])
def test_maps_of_folds_that_see_positions(dim: Any) -> None:
    """An index has no derivative, what is chosen by it and what is made of it have."""
    x, w = drawn(3, 4), drawn(4, seed=1)
    length = 12 if dim == (0, 1) else 1 if dim == () else x.shape[dim]
    where = torch.arange(length).reshape({0: (3, 1), 1: (1, 4), (0, 1): (3, 4)}.get(dim, ()))

    def located(x: Tensor, w: Tensor) -> Any:
        return tilefold.reduce_map(x, monoids.MAX_WITH_INDEX, lambda v, m, i, w: v * m * w + i, dim, extras=w)

    def like(x: Tensor, w: Tensor) -> Tensor:
        most = x.amax(dim, keepdim=True) if dim != () else x
        first = torch.where(x == most, where, 0).sum(dim, keepdim=True) if dim != () else 0
        return x * most * w + first

    assert_alike(located, like, x, w)
    assert_differentiated(located, x, w)
    by_place, _ = FOLDS[-1]
    made = tilefold.reduce_map(x, by_place, lambda v, total: v * total, dim)
    (g,) = torch.autograd.grad(made.sum(), x, create_graph=True)
    total = (x * (where + 1)).sum(dim, keepdim=True) if dim != () else x
    (want,) = torch.autograd.grad((x * total).sum(), x, create_graph=True)
    torch.testing.assert_close(g, want, rtol=1e-12, atol=1e-12)
