"""Calls noted on a tape and made again: of views and constants, not of what other operations made."""

from __future__ import annotations

import gc
import threading
import weakref
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor

import tilefold
from tilefold import monoids
from tilefold.api import differentiated, dispatch, on_cpu, operations, replays
from tilefold.api.replays import Tape

DOUBLED: Any = SimpleNamespace(call=lambda x: [x * 2, x + 1], is_differentiable=False, plan="doubled")
NOTHING: Any = SimpleNamespace(call=lambda x: None, is_differentiable=False)


def noted(x: Tensor, y: Tensor, view: Callable[[Tensor], Tensor]) -> Tape:
    tape = Tape((x, None, y))
    first, _ = tape.call(DOUBLED, [view(x)]) or []
    tape.call(DOUBLED, [first])
    return tape


@pytest.mark.parametrize(
    "view",
    [
        lambda t: t,
        lambda t: t.T,
        lambda t: t[1:, ::2],
        lambda t: t[1].expand(3, 4),
        lambda t: t.reshape(4, 3),
    ],
    ids=["itself", "transposed", "a part", "expanded", "reshaped"],
)
def test_calls_are_made_again_of_other_tensors(view: Callable[[Tensor], Tensor]) -> None:
    x, y = torch.randn(3, 4), torch.randn(2)
    tape = noted(x, y, view)
    again = tape.replay([tape.calls[1][2][0].T, None, y, tape.calls[0][2][1]])
    assert again is not None
    memory = torch.randn(20)
    other = memory[8:].view(3, 4)  # not at the beginning of its memory
    made, none, same, second = again((other, None, y)) or []
    torch.testing.assert_close(made, (view(other) * 4).T, atol=0, rtol=0)
    torch.testing.assert_close(second, view(other) + 1, atol=0, rtol=0)
    assert none is None
    assert same is y


def test_what_nobody_reads_is_not_held() -> None:
    x, y = torch.randn(3, 4), torch.randn(2)
    tape = noted(x, y, lambda t: t)
    again = tape.replay([tape.calls[1][2][0]])
    assert again is not None
    assert [dead for _, _, dead in again.calls] == [(4,), (3, 6)]
    assert again.plan == "doubled"


def test_other_operations_are_not_known() -> None:
    x, y = torch.randn(3, 4), torch.randn(2)
    tape = noted(x, y, lambda t: t)
    assert tape.replay([x + 1]) is None
    assert tape.replay([x.view(torch.int32)]) is None
    tape.call(DOUBLED, [x.sin()])
    assert tape.replay([x]) is None


def test_tensors_that_share_memory_need_not_in_another_call() -> None:
    """A view comes from the tensor that holds it; of one that may come from two, nothing is known."""
    memory = torch.randn(40)
    x, y = memory[:12].view(3, 4), memory[16:18]
    tape = noted(y, x, lambda t: t.expand(3, 2))
    again = tape.replay([tape.calls[1][2][0]])
    assert again is not None
    other = torch.randn(2)
    (made,) = again((other, None, torch.randn(3, 4))) or []
    torch.testing.assert_close(made, other.expand(3, 2) * 4, atol=0, rtol=0)
    assert noted(x, x, lambda t: t).replay([]) is None
    assert noted(x, memory[4:8], lambda t: t[1]).replay([]) is None


@pytest.mark.usefixtures("_by_our_rules")
@pytest.mark.parametrize("asks", [False, True], ids=["no gradient", "gradient"])
def test_losses_whose_tensors_shared_memory(asks: bool) -> None:
    """Weights behind the logits, probabilities that are the logits; then, in the same layouts, tensors of their own."""
    memory, target = torch.rand(100), torch.arange(4)
    logits, weight = memory[:32].view(4, 8), memory[64:72]
    calls = [(logits, target, weight), (logits, logits, None)]
    calls += [
        (torch.rand(200)[:32].view(4, 8), target, torch.rand(8)),
        (torch.rand(4, 8), torch.rand(4, 8), None),
    ]
    for x, t, w in calls:
        own = x.requires_grad_(asks)
        got = tilefold.cross_entropy(own, t.detach(), w)
        want = torch.nn.functional.cross_entropy(own, t.detach(), w)
        torch.testing.assert_close(got, want)
        if asks:
            torch.testing.assert_close(torch.autograd.grad(got, own), torch.autograd.grad(want, own))


@pytest.mark.usefixtures("_by_our_rules")
@pytest.mark.parametrize("asks", [False, True], ids=["no gradient", "gradient"])
def test_what_is_kept_of_a_loss_holds_no_logits(asks: bool) -> None:
    logits = torch.rand(4, 8, requires_grad=asks)
    loss = tilefold.cross_entropy(logits, torch.arange(4), torch.rand(8))
    if asks:
        loss.backward()
    left = weakref.ref(logits)
    del logits, loss
    gc.collect()
    assert left() is None


@pytest.mark.usefixtures("_by_our_rules")
def test_what_was_given_twice_may_be_two() -> None:
    """One tensor as a row's values twice, one cotangent of two results; then two of each."""
    x = torch.rand(6, 8)
    one, other, g, h = torch.rand(8), torch.rand(8), torch.rand(6), torch.rand(6)

    def call(a: Tensor, b: Tensor, x: Tensor) -> Tensor:
        return tilefold.reduce_map(x, monoids.SUM, lambda x, s, a, b: x * s * a + x * b * b, 1, extras=[a, b])  # type: ignore[no-any-return]  # one

    def by_torch(a: Tensor, b: Tensor, x: Tensor) -> Tensor:
        return x * x.sum(1, keepdim=True) * a + x * b * b

    for u, v in ((one, one), (one, other)):
        own = [t.clone().requires_grad_() for t in (u, v)]
        own[1] = own[0] if u is v else own[1]
        got, want = call(*own, x), by_torch(*own, x)
        for made, wanted in zip(
            torch.autograd.grad(got.sum(), own), torch.autograd.grad(want.sum(), own), strict=True
        ):
            torch.testing.assert_close(made, wanted)
    for cotangents in ((g, g), (g, h)):
        own = [x.clone().requires_grad_()]
        found, wished = (
            torch.autograd.grad(f(own[0], 1), own, cotangents) for f in (tilefold.var_mean, torch.var_mean)
        )
        torch.testing.assert_close(found, wished)


def test_elements_that_ask_for_more_are_left() -> None:
    x = torch.randn(3)
    tape = Tape((x,))
    tape.note(NOTHING, [x], [x])
    again = tape.replay([x])
    assert again is not None
    assert again((x,)) is None


def test_constants_and_operations_of_torchs() -> None:
    x = torch.randn(3)
    tape = Tape((x,))
    with dispatch.noting(tape):
        length = dispatch.constant(x.new_full((), 3))
        (made,) = dispatch.noted(lambda x, n: [x / n], x, length)
    again = tape.replay([made])
    assert again is not None
    torch.testing.assert_close((again((x * 2,)) or [])[0], x * 2 / 3, atol=0, rtol=0)
    assert dispatch.constant(length) is length
    assert torch.equal(dispatch.noted(lambda x: [x + 1], x)[0], x + 1)


def test_a_tape_is_one_threads() -> None:
    x, tape = torch.randn(2, 3), Tape(())
    with dispatch.noting(tape):
        thread = threading.Thread(target=lambda: tilefold.sum(x, 1))
        thread.start()
        thread.join()
    assert not tape.calls


# ------------------------------------------------------------------------------------------- of calls that ask for a gradient


@pytest.fixture
def _by_our_rules(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(dispatch, "_executables", {})
    for module in (on_cpu, operations):
        monkeypatch.setattr(module, "has_own_derivative", lambda function, dtype: False)


W = torch.linspace(0.5, 1.5, 8)
CALLS: dict[str, Callable[[Tensor], Any]] = {
    "sum": lambda x: tilefold.sum(x, 1),
    "logsumexp": lambda x: tilefold.logsumexp(x, 1),
    "norm": lambda x: tilefold.vector_norm(x, 2, 1),
    "var": lambda x: tilefold.var(x, 1),
    "amax": lambda x: tilefold.amax(x, 1),
    "softmax": lambda x: tilefold.softmax(x, 1),
    "layer_norm": lambda x: tilefold.layer_norm(x, (8,), W, W),
    "rms_norm": lambda x: tilefold.rms_norm(x, (8,), W),
    "a map": lambda x: tilefold.reduce_map(x, monoids.SUM, lambda x, s, w: x * s * w, 1, extras=[W]),
    "cumsum": lambda x: tilefold.cumsum(x, 1),
    "in halves": lambda x: tilefold.sum(x, 1, dtype=torch.bfloat16),
}  # fmt: skip


def gradient(call: Callable[[Tensor], Tensor], x: Tensor, g: Tensor) -> tuple[Tensor, Tensor]:
    x = x.clone().requires_grad_()
    made = call(x)
    return made, torch.autograd.grad(made, x, g)[0]


@pytest.mark.usefixtures("_by_our_rules")
@pytest.mark.parametrize("name", CALLS)
def test_backwards_come_again(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """For other elements, cotangents of other layouts, and of double backwards, the bits are those of a call made anew."""
    call, asked = CALLS[name], list[str]()
    x = torch.randn(4, 8)
    g = torch.randn(call(x).shape).to(call(x).dtype)
    gradient(call, x, g)
    for rule in (operations.gradients.Fold, operations.Map, operations.Scanned):
        own = rule.backward
        monkeypatch.setattr(rule, "backward", lambda *a, own=own: asked.append(name) or own(*a))
    cotangents = [g * 2, g[:1].expand(g.shape), torch.stack([g, g], -1)[..., 0]]
    found = [gradient(call, x * factor, c) for c in cotangents for factor in (1.0, 0.5)]
    assert len(asked) == 2, "of each layout once"
    if name not in ("sum", "in halves"):
        tilefold.any(x)
        gradient(call, x, g * 2)
        assert "any" not in str(tilefold.last_plan())
    again = x.clone().requires_grad_()
    (first,) = torch.autograd.grad(call(again), again, g * 2, create_graph=True)
    assert first.requires_grad or name in ("sum", "cumsum", "in halves", "amax")
    monkeypatch.setattr(dispatch, "repeated", lambda *_: None)
    anew = [gradient(call, x * factor, c) for c in cotangents for factor in (1.0, 0.5)]
    for one, other in zip(found, anew, strict=True):
        assert torch.equal(one[0], other[0])
        assert torch.equal(one[1], other[1])
    torch.testing.assert_close(first.detach(), anew[0][1])


@pytest.mark.usefixtures("_by_our_rules")
def test_a_kept_call_is_for_one_layout_and_what_asks() -> None:
    """Other inputs that ask for a gradient, other strides: a call of their own; without a gradient the plain one."""
    x, w = torch.randn(4, 8), torch.randn(8)

    def call(x: Tensor, w: Tensor) -> Tensor:
        return tilefold.reduce_map(x, monoids.SUM, lambda x, s, w: x * s * w, 1, extras=[w])  # type: ignore[no-any-return]  # one

    for asks in ((True, False), (False, True), (True, True)):
        for seen in (x, x.T.contiguous().T):
            given = [
                t.clone(memory_format=torch.preserve_format).requires_grad_(a)
                for t, a in zip((seen, w), asks, strict=True)
            ]
            found = torch.autograd.grad(call(*given).sum(), [t for t in given if t.requires_grad])
            want = (
                w * x.sum(1, keepdim=True) + (x * w).sum(1, keepdim=True),
                (x * x.sum(1, keepdim=True)).sum(0),
            )
            for got, one in zip(found, [t for t, a in zip(want, asks, strict=True) if a], strict=True):
                torch.testing.assert_close(got, one, rtol=1e-5, atol=1e-5)
    with torch.no_grad():
        assert not call(x.clone().requires_grad_(), w).requires_grad


@pytest.mark.usefixtures("_by_our_rules")
def test_few_backwards_are_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(differentiated, "MOST", 2)
    x = torch.randn(4, 8, requires_grad=True)
    made = tilefold.softmax(x, 1)
    for step in range(1, 6):
        torch.autograd.grad(made, x, torch.randn(4, 8 * step)[:, ::step], retain_graph=True)
    assert 0 < len(made.grad_fn.call._backwards) <= 2
    assert all(isinstance(b.replay, replays.Replay) for b in made.grad_fn.call._backwards.values())


@pytest.mark.usefixtures("_by_our_rules")
def test_layouts_that_alternate_are_known_once(monkeypatch: pytest.MonkeyPatch) -> None:
    known, own = list[Any](), differentiated.Alike
    monkeypatch.setattr(differentiated, "Alike", lambda some: known.append(1) or own(some))
    x = torch.randn(4, 8, requires_grad=True)
    made = tilefold.softmax(x, 1)
    cotangents = [torch.randn(4, 8), torch.randn(8, 4).T]
    want = [torch.autograd.grad(made, x, g, retain_graph=True)[0] for g in cotangents]
    for _ in range(3):
        found = [torch.autograd.grad(made, x, g, retain_graph=True)[0] for g in cotangents]
        assert all(map(torch.equal, found, want))
    assert len(known) == 2


TARGET = torch.tensor([1, 4, 0])
SAVING: dict[str, tuple[Callable[[Tensor], Tensor], Callable[[Tensor], Tensor]]] = {
    "map": (
        lambda x: tilefold.reduce_map(x, monoids.LOGSUMEXP, lambda e, n: (e - n) * e, 1),
        lambda x: (x - x.logsumexp(1, keepdim=True)) * x,
    ),
    "loss": (
        lambda x: tilefold.cross_entropy(x, TARGET),
        lambda x: torch.nn.functional.cross_entropy(x, TARGET),
    ),
}


@pytest.mark.parametrize("name", SAVING)
@pytest.mark.parametrize("batched", [False, True], ids=["one", "batched"])
def test_a_recorded_backward_of_a_repeated_call_has_derivatives(name: str, batched: bool) -> None:
    """Values of rows that are only saved are functions of the input all the same."""
    x = torch.randn(3, 5, dtype=torch.float64, requires_grad=True)
    found = []
    for function in SAVING[name]:
        for _ in range(3):
            y = function(x)
            g = torch.linspace(0.5, 1.5, y.numel(), dtype=y.dtype).view(y.shape).requires_grad_()
            given = torch.stack([g, 2 * g]) if batched else g
            (made,) = torch.autograd.grad(y, x, given, create_graph=True, is_grads_batched=batched)
        found.append([made, *torch.autograd.grad(made.sin().sum(), [x, g])])
    for ours, torchs in zip(*found, strict=True):
        torch.testing.assert_close(ours, torchs)
