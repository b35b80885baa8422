"""Requests on a CPU: each kind under every backend beside the definition, the plan it says, and calls that come again."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

import tilefold
from answers import floor
from tilefold import monoids
from tilefold.api import on_cpu
from tilefold.api.requests import Request
from tilefold.errors import BackendError
from tilefold.runtime.switch import ExplainedError, explaining

Tensor = torch.Tensor


def drawn(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed + len(shape)))


def asked(call: Callable[[], Any]) -> tuple[Request, list[Tensor]]:
    with pytest.raises(ExplainedError) as found, explaining():
        call()
    return found.value.request, list(found.value.tensors)


def run(call: Callable[[], Any], backend: str) -> tuple[list[Tensor], Any]:
    return on_cpu.run(*asked(call), backend)


X, A, B = drawn(6, 40, 5), drawn(7, 30), drawn(30, 9)
OFFSETS = torch.tensor([0, 2, 2, 6])
WHOLE, TILES, MAPPED = ((("cpu", name),) * 2 for name in ("whole", "tiles", "fold and map"))
MATMUL = ("torch", "torch.matmul"), ("cpu", "torch.matmul")
# The call; the plan's backend and strategy under "auto", the same under "cpu"; None where torch has no such function.
CALLS: dict[str, tuple[Callable[[], Any], tuple[str, str], tuple[str, str], bool]] = {
    "sum": (lambda: tilefold.sum(X, 1), ("torch", "torch.sum"), ("cpu", "whole"), True),
    "several dims": (lambda: tilefold.reduce(X, monoids.WELFORD, (0, 2)), *WHOLE, False),
    "batch_invariant": (
        lambda: tilefold.reduce(X, monoids.LOGSUMEXP, (0, 1), guarantee="batch_invariant"), *WHOLE, False,
    ),
    "cumsum": (lambda: tilefold.cumsum(X, 1), ("torch", "torch.cumsum"), ("cpu", "tiles"), True),
    "scan": (
        lambda: tilefold.scan(X, monoids.LOGSUMEXP, 1, exclusive=True, return_state=True), *TILES, False,
    ),
    "from a state": (
        lambda: tilefold.scan((X[:, :5], X[:, :5]), monoids.AFFINE, 1, init=(torch.ones(6, 5),) * 2, reverse=True),
        *TILES, False,
    ),
    "softmax": (lambda: tilefold.softmax(X, 1), ("torch", "torch.softmax"), ("cpu", "fold and map"), True),
    "map": (
        lambda: tilefold.reduce_map((X,), monoids.NORM(3.0), lambda x, n, w: x / n * w, dim=(0, 2), extras=(drawn(40, 1),)),
        *MAPPED, False,
    ),
    "layer_norm": (
        lambda: tilefold.layer_norm(X, (5,), drawn(5), guarantee="batch_invariant"), *MAPPED, False,
    ),
    "segments": (lambda: tilefold.segment_reduce(X, monoids.ARGMAX, OFFSETS), *(("cpu", "segments"),) * 2, False),
    "topk": (lambda: tilefold.topk(X, 3, 1, largest=False), ("torch", "torch.topk"), ("torch", "torch.topk"), False),
    "transpose": (lambda: tilefold.transpose(X, 0, 2), ("torch", "torch.clone"), ("torch", "torch.clone"), False),
    "matmul": (lambda: tilefold.matmul(A, B, epilogue="relu"), *MATMUL, True),
    "rows of a product": (
        lambda: tilefold.matmul(A, B, row=(monoids.LOGSUMEXP, lambda y, total: y - total)), *MATMUL, True,
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", CALLS)
def test_every_backend_gives_the_definitions_results(name: str) -> None:
    call, on_auto, on_loops, torchs = CALLS[name]
    want, plan = run(call, "reference")
    assert (plan.backend, plan.reason) in (("reference", "one element after another"), ("reference", ""))
    for backend, said in (("auto", on_auto), ("cpu", on_loops)):
        got, plan = run(call, backend)
        reason = plan.reason if plan.strategy == "fold and map" else ""
        assert (plan.backend, plan.strategy) == said, reason
        assert plan.guarantee == asked(call)[0].guarantee
        for one, other in zip(got, want, strict=True):
            assert one.shape == other.shape
            assert one.dtype == other.dtype
            atol = floor(other, one.dtype, 2e-6) if one.is_floating_point() else 0
            torch.testing.assert_close(one, other, rtol=2e-5, atol=atol)
    if torchs:
        assert run(call, "torch")[1].backend == "torch"
    elif on_auto[0] != "torch" and name != "segments":
        with pytest.raises(BackendError, match=r"torch's own .* must be known to give the promised answers"):
            run(call, "torch")


AGAIN = [
    "sum", "several dims", "batch_invariant", "cumsum", "scan", "from a state", "softmax", "map", "layer_norm", "topk",
    "segments",
]  # fmt: skip


def scaled(t: torch.Tensor, factor: float) -> torch.Tensor:
    """In the same layout: what is expanded stays so, and whole numbers, which are offsets, stay."""
    if not t.is_floating_point():
        return t
    once = t[tuple(slice(0, 1) if step == 0 else slice(None) for step in t.stride())]
    return (once * factor).expand(t.shape)


@pytest.mark.parametrize("name", AGAIN)
def test_calls_that_come_again_give_the_same_bits(name: str) -> None:
    request, tensors = asked(CALLS[name][0])
    again = on_cpu.repeated(request, tensors)
    assert again is not None
    for factor in (1.0, -0.5, 1.0):
        given = [scaled(t, factor) for t in tensors]
        want, plan = on_cpu.run(request, given, "auto")
        got = again.call(*given)
        assert got is not None
        assert (again.plan.backend, again.plan.strategy) == (plan.backend, plan.strategy)
        for one, other in zip(got, want, strict=True):
            assert torch.equal(one.reshape(other.shape), other)


def test_a_transpose_is_planned_each_time() -> None:
    assert on_cpu.repeated(*asked(CALLS["transpose"][0])) is None


@pytest.mark.parametrize("call", [lambda x: tilefold.var(x, 1), lambda x: tilefold.normalize(x, 2.0, 1)])
def test_elements_out_of_range_ask_for_another_plan(call: Callable[[Tensor], Any]) -> None:
    """Squares that float32 does not hold: the plan that a call left answers None, and `run` folds again."""
    x = drawn(2, 60)
    request, _ = asked(lambda: call(x))
    again = on_cpu.repeated(request, [x])
    assert again is not None
    assert again.call(x) is not None
    assert again.call(x * 1e25) is None
    (got,), _ = on_cpu.run(request, [x * 1e25], "auto")
    (want,), _ = on_cpu.run(request, [x * 1e25], "reference")
    torch.testing.assert_close(got.reshape(want.shape), want, rtol=2e-5, atol=0)


def test_nothing_to_map() -> None:
    (got,), plan = run(lambda: tilefold.softmax(drawn(3, 0, 4), 1), "auto")
    assert got.shape == (3, 0, 4)
    assert (plan.strategy, plan.reason) == ("nothing", "no elements")
    assert on_cpu.repeated(*asked(lambda: tilefold.softmax(drawn(3, 0, 4), 1))) is None


def test_copies_are_contiguous_and_their_own() -> None:
    (got,), _ = run(lambda: tilefold.transpose(X, 0, 2), "auto")
    assert got.is_contiguous()
    assert got.data_ptr() != X.data_ptr()
    (plain,), _ = run(lambda: tilefold.transpose(X, 0, 0), "auto")
    assert plain.data_ptr() != X.data_ptr()


def test_batch_invariant_rows_are_alike_beside_others() -> None:
    for call in (
        lambda x: tilefold.softmax(x, 1, guarantee="batch_invariant"),
        lambda x: tilefold.reduce(x, monoids.LOGSUMEXP, 1, guarantee="batch_invariant"),
        lambda x: tilefold.scan(x, monoids.LOGSUMEXP, 1, guarantee="batch_invariant"),
    ):
        x = drawn(9, 700)
        assert torch.equal(call(x)[2], call(x[2:3])[0])
        assert torch.equal(call(x)[8], call(x[6:])[2])


def test_threads_decide_what_is_planned_for_segments() -> None:
    request, tensors = asked(CALLS["segments"][0])
    before = torch.get_num_threads()
    want = on_cpu.run(request, tensors, "cpu")[0]
    try:
        torch.set_num_threads(2 if before == 1 else 1)
        got = on_cpu.run(request, tensors, "cpu")[0]
    finally:
        torch.set_num_threads(before)
    assert all(torch.equal(a, b) for a, b in zip(got, want, strict=True))
