"""Ragged folds, selections, transposes and products as torch sees them: gradients, transforms and graphs."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch.autograd import gradcheck, gradgradcheck
from torch.autograd.graph import saved_tensors_hooks
from torch.func import grad, vmap
from torch.fx.experimental.proxy_tensor import make_fx

import tilefold
from tilefold import Monoid, math, monoids
from tilefold.api.segment_reduce import Keyed
from tilefold.errors import GradientError

Tensor = torch.Tensor
F64 = torch.float64


def drawn(*shape: int, seed: int = 0, dtype: torch.dtype = F64) -> Tensor:
    generator = torch.Generator().manual_seed(seed + sum(shape))
    return torch.randn(shape, generator=generator, dtype=F64).to(dtype).requires_grad_()


def offsets(*numbers: int) -> Tensor:
    return torch.tensor(numbers)


def segmented(monoid: Monoid, **cut: Any) -> Callable[..., Any]:
    """A fold of segments that gives the results that have a gradient."""

    def call(*given: Tensor) -> Any:
        numbers = {name: offsets(*n) if isinstance(n, tuple) else n for name, n in cut.items()}
        made = tilefold.segment_reduce(given, monoid, **numbers)
        results = made.results if isinstance(made, Keyed) else made
        every = list(results) if isinstance(results, tuple) else [results]
        moved = [t for t in every if t.requires_grad]
        return (moved or every)[0]

    return call


X = (drawn(9, 3),)
PAIR = (drawn(9, 3), drawn(9, 3, seed=1))
BORDERS = (0, 0, 3, 7, 9)
SEGMENTS: dict[str, tuple[Callable[..., Any], tuple[Tensor, ...]]] = {
    "the total alone": (segmented(monoids.LOGSUMEXP, offsets=(0, 1, 3, 7, 9)), X),
    "sums": (segmented(monoids.SUM, offsets=BORDERS), X),
    "about a pivot": (segmented(monoids.WELFORD, offsets=(0, 2, 5, 9)), X),
    "prefix and suffix": (segmented(monoids.PROD, offsets=BORDERS), X),
    "in order": (segmented(monoids.AFFINE, offsets=BORDERS), PAIR),
    "lengths of some": (segmented(monoids.PROD, lengths=(2, 0, 3), partial=True), X),
    "keys": (segmented(monoids.SUM, by=(0, 0, 1, 1, 1, 3, 3, 5, 5), num_segments=4, partial=True), X),
    "runs of keys": (segmented(monoids.PROD, by=(0, 0, 1, 1, 1, 3, 3, 5, 5)), X),
    "along another dim": (segmented(monoids.PROD, offsets=(0, 1, 3), dim=1), X),
    "inputs that broadcast": (segmented(monoids.AFFINE, offsets=BORDERS), (drawn(9, 3), drawn(9, 1))),
    "no segments": (segmented(monoids.SUM, offsets=(0,), partial=True), X),
    "no elements": (segmented(monoids.PROD, offsets=(0, 0, 0)), (drawn(0, 3),)),
}
MOVES: dict[str, tuple[Callable[..., Any], tuple[Tensor, ...]]] = {
    "transpose": (lambda x: tilefold.transpose(x, 0, -1), (drawn(3, 4, 2),)),
    "topk": (lambda x: tilefold.topk(x, 2, 1)[0], (drawn(3, 4, 2),)),
    "smallest": (lambda x: tilefold.topk(x, 2, largest=False).values, (drawn(3, 4, 2),)),
    "topk of a number": (lambda x: tilefold.topk(x, 1).values, (drawn(),)),
}
MATRICES = (drawn(3, 4), drawn(4, 5), drawn(5))


def ended(epilogue: Any) -> Callable[..., Tensor]:
    return lambda a, b, bias: tilefold.matmul(a, b, bias=bias, epilogue=epilogue)  # type: ignore[no-any-return]


PRODUCTS: dict[str, tuple[Callable[..., Any], tuple[Tensor, ...]]] = {
    **{
        f"{list(a)} @ {list(b)}": (tilefold.matmul, (drawn(*a), drawn(*b, seed=1)))
        for a, b in (
            ((3, 4), (4, 5)), ((4,), (4, 5)), ((3, 4), (4,)), ((4,), (4,)), ((2, 3, 4), (4, 5)), ((1, 3, 4), (2, 4, 5)),
            ((3, 4), (2, 4, 5)), ((2, 3, 4), (4,)), ((4,), (2, 4, 5)), ((3, 0), (0, 5)), ((0, 4), (4, 5)),
        )
    },
    **{name: (ended(name), MATRICES) for name in ("relu", "gelu", "silu", "sigmoid", "tanh")},
    "a bias alone": (ended(None), MATRICES),
    "a function": (
        lambda a, b, bias, r: tilefold.matmul(
            a, b, bias=bias, epilogue=lambda x, r: x * x * r + math.exp(r), epilogue_args=(r,)
        ),
        (*MATRICES, drawn(3, 1)),
    ),
    "a row's fold": (lambda a, b: tilefold.matmul(a, b, row=(monoids.LOGSUMEXP, None)), MATRICES[:2]),
    "a row's map": (
        lambda a, b: tilefold.matmul(a, b, row=(monoids.LOGSUMEXP, lambda x, total: math.exp(x - total))), MATRICES[:2]
    ),
    "a scale of whole numbers": (
        lambda s: tilefold.matmul(
            torch.ones(3, 4, dtype=torch.int8), torch.ones(4, 5, dtype=torch.int8), epilogue=lambda x, s: x * s * s,
            epilogue_args=(s,), out_dtype=F64,
        ),
        (drawn(5),),
    ),
}  # fmt: skip
EVERY = {**SEGMENTS, **MOVES, **PRODUCTS}


@pytest.mark.parametrize("name", EVERY)
def test_gradients_by_finite_differences(name: str) -> None:
    assert gradcheck(*EVERY[name], fast_mode=True)


@pytest.mark.parametrize(
    "name", ["the total alone", "prefix and suffix", "transpose", "topk", "gelu", "a row's map"]
)
def test_gradients_have_gradients(name: str) -> None:
    assert gradgradcheck(*EVERY[name], fast_mode=True)


@pytest.mark.parametrize("monoid", [monoids.LOGSUMEXP, monoids.PROD, monoids.WELFORD])
def test_a_segment_s_gradient_is_that_of_its_fold(monoid: Monoid) -> None:
    x, borders = drawn(40, 2, seed=7), offsets(0, 3, 4, 17, 40)
    whole = tilefold.segment_reduce(x, monoid, borders)
    parts = [tilefold.reduce(x[a:b], monoid, 0) for a, b in itertools.pairwise(borders)]
    for i, result in enumerate(whole if isinstance(whole, tuple) else [whole]):
        if result.requires_grad:
            weights = torch.linspace(-1, 2, result.numel(), dtype=F64).view(result.shape)
            (got,) = torch.autograd.grad(result, x, weights, retain_graph=True)
            alone = torch.stack([p[i] if isinstance(p, tuple) else p for p in parts])
            (want,) = torch.autograd.grad(alone, x, weights, retain_graph=True)
            torch.testing.assert_close(got, want, rtol=1e-10, atol=1e-12)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32])
def test_products_beside_torch(dtype: torch.dtype) -> None:
    a, b, bias = (t.detach().to(dtype).requires_grad_() for t in (drawn(33, 40), drawn(40, 17), drawn(17)))
    got = tilefold.matmul(a, b, bias=bias, epilogue="silu")
    want = torch.nn.functional.silu(torch.nn.functional.linear(a.double(), b.double().T, bias.double()))
    weights = torch.linspace(-1, 1, got.numel()).view(got.shape)
    given = (a, b, bias)
    bound = {torch.bfloat16: 8e-3, torch.float16: 1e-3, torch.float32: 1e-6}[dtype]
    for x, y in zip(
        torch.autograd.grad(got, given, weights.to(dtype)),
        torch.autograd.grad(want, given, weights.to(dtype).double()),
        strict=True,
    ):
        assert x.dtype == dtype
        assert (x.double() - y.double()).norm() <= bound * y.double().norm()


def test_what_is_saved() -> None:
    """Of a selection where elements came from, of a transpose nothing, of a product what it read."""
    kept: list[Tensor] = []
    with saved_tensors_hooks(lambda t: kept.append(t) or t, lambda t: t):
        tilefold.topk(drawn(8, 16), 2)
        assert [t.dtype for t in kept] == [torch.int64]
        kept.clear()
        tilefold.transpose(drawn(8, 16), 0, 1)
        assert not kept
        a, b, bias = MATRICES
        tilefold.matmul(a, b, bias=bias, epilogue="gelu")
        assert sorted(t.data_ptr() for t in kept) == sorted(t.data_ptr() for t in (a, b, bias))


def test_a_selection_s_input_may_change() -> None:
    x = drawn(4, 8)
    values = tilefold.topk(x * 1, 2).values
    y = x * 1
    values = tilefold.topk(y, 2).values
    y.zero_()
    (got,) = torch.autograd.grad(values.sum(), x)
    assert got.sum() == values.numel()


@pytest.mark.parametrize("monoid", [monoids.MAX, monoids.MINMAX, monoids.MAX_WITH_INDEX])
def test_extremes_of_segments_share_as_folds_do(monoid: Monoid) -> None:
    x = torch.tensor([1.0, 3, 3, 2, 2, 2, 5, 5, 0], dtype=F64, requires_grad=True)
    borders = offsets(0, 3, 3, 6, 9)
    got = first_of(tilefold.segment_reduce(x, monoid, borders))
    parts = [first_of(tilefold.reduce(x[a:b], monoid, 0)) for a, b in ((0, 3), (3, 6), (6, 9))]
    (want,) = torch.autograd.grad(sum(i * p for i, p in enumerate(parts, 1)), x)
    (made,) = torch.autograd.grad(got[0] + 2 * got[2] + 3 * got[3], x)
    assert torch.equal(made, want)


def first_of(results: Any) -> Tensor:
    """The first result, of one or several."""
    return results[0] if isinstance(results, tuple) else results


def test_out_is_refused() -> None:
    x = drawn(3, 4)
    for call in (
        lambda: tilefold.transpose(x, 0, 1, out=torch.empty(4, 3, dtype=F64)),
        lambda: tilefold.topk(x, 1, out=(torch.empty(3, 1, dtype=F64), torch.empty(3, 1, dtype=torch.int64))),
        lambda: tilefold.segment_reduce(x, monoids.SUM, offsets(0, 3), out=torch.empty(1, 4, dtype=F64)),
        lambda: tilefold.matmul(x, x.T, out=torch.empty(3, 3, dtype=F64)),
    ):
        with pytest.raises(GradientError):
            call()


# ------------------------------------------------------------------------------------------- graphs and transforms

GRAPHED = [
    "the total alone", "in order", "lengths of some", "keys", "transpose", "topk", "[3, 4] @ [4, 5]", "gelu",
]  # fmt: skip


def results(function: Callable[..., Any], given: tuple[Tensor, ...]) -> list[Tensor]:
    given = tuple(t.detach().requires_grad_() for t in given)
    made = function(*given)
    return [made.detach(), *torch.autograd.grad(made.square().sum(), given)]


@pytest.mark.parametrize(("name", "dynamic"), [*((name, True) for name in GRAPHED), ("in order", False)])
def test_compiled_calls_have_the_same_bits(name: str, dynamic: bool) -> None:
    torch._dynamo.reset()
    function, given = EVERY[name]
    compiled = torch.compile(function, fullgraph=True, backend="aot_eager", dynamic=dynamic)
    for got, want in zip(results(compiled, given), results(function, given), strict=True):
        assert torch.equal(got, want)
    plain = [t.detach() for t in given]
    assert torch.equal(compiled(*plain), function(*plain))


@pytest.mark.parametrize("name", GRAPHED)
def test_recorded_and_exported_calls(name: str) -> None:
    function, given = EVERY[name]
    plain = tuple(t.detach() for t in given)
    recorded = make_fx(lambda *t: results(function, t))(*plain)
    for got, want in zip(recorded(*plain), results(function, given), strict=True):
        assert torch.equal(got, want)

    class Module(torch.nn.Module):
        def forward(self, *t: Tensor) -> Any:
            return function(*t)

    exported = torch.export.export(Module(), plain, strict=False)
    assert torch.equal(exported.module()(*plain), function(*plain))


@pytest.mark.parametrize(
    "name", [*GRAPHED, "topk of a number", "[4] @ [4, 5]", "[2, 3, 4] @ [4, 5]", "a function"]
)
def test_mapped_calls_and_their_gradients(name: str) -> None:
    function, given = EVERY[name]
    every = [t.detach() for t in given]

    def loss(*t: Tensor) -> Tensor:
        return function(*t).square().sum()  # type: ignore[no-any-return]

    for mapped in range(1, 2 ** len(every)):
        dims = tuple(0 if mapped >> i & 1 else None for i in range(len(every)))
        batch = [torch.stack([t, 2 * t, -t]) if d == 0 else t for t, d in zip(every, dims, strict=True)]
        for call in (function, grad(loss)):
            want = [
                call(*(t[i] if d == 0 else t for t, d in zip(batch, dims, strict=True))) for i in range(3)
            ]
            torch.testing.assert_close(vmap(call, dims)(*batch), torch.stack(want), rtol=1e-12, atol=1e-12)


def test_a_row_s_fold_is_mapped() -> None:
    a, b = (t.detach() for t in MATRICES[:2])
    values, sums = vmap(lambda a: tilefold.matmul(a, b, row=(monoids.LOGSUMEXP, None)))(
        torch.stack([a, 2 * a])
    )
    want = tilefold.matmul(2 * a, b, row=(monoids.LOGSUMEXP, None))
    torch.testing.assert_close((values[1], sums[1]), want, rtol=1e-12, atol=1e-12)


def test_borders_are_mapped_one_by_one() -> None:
    x, borders = drawn(9).detach(), torch.tensor([[0, 2, 9], [0, 5, 9]])
    got = vmap(lambda b: tilefold.segment_reduce(x, monoids.PROD, b))(borders)
    want = torch.stack([tilefold.segment_reduce(x, monoids.PROD, b) for b in borders])
    assert torch.equal(got, want)


@pytest.mark.parametrize(
    "call",
    [
        lambda x: tilefold.segment_reduce(x, monoids.SUM, offsets(0, 1, 3)),
        lambda x: tilefold.topk(x, 2, 1).values,
        lambda x: tilefold.matmul(x, x.mT, epilogue="silu"),
    ],
    ids=["segment_reduce", "topk", "matmul"],
)
def test_a_result_that_has_a_gradient_may_be_changed_in_place(call: Callable[..., Tensor]) -> None:
    x = drawn(3, 4)
    (want,) = torch.autograd.grad(call(x).sum() * 2, x)
    for _ in range(2):  # the second call is a known one
        (got,) = torch.autograd.grad(call(x).mul_(2).sum(), x)
        torch.testing.assert_close(got, want)
