"""Losses and folds of a product on a device: beside float64, in little memory, without waiting, with the same bits."""

from __future__ import annotations

import warnings
from typing import Any

import pytest
import torch
import torch.nn.functional as F

import tilefold
from defined_losses import TOLERANCES, defined, near
from tilefold.api import linear

pytestmark = pytest.mark.gpu
Tensor = torch.Tensor
HALVES = (torch.bfloat16, torch.float16)


def drawn(
    rows: int, features: int, classes: int, dtype: torch.dtype
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Rows, classes' weights and bias, targets."""
    generator = torch.Generator("cuda").manual_seed(rows + classes)

    def normal(*shape: int) -> Tensor:
        return torch.randn(shape, device="cuda", generator=generator, dtype=torch.float32)

    w = (normal(classes, features) * features**-0.5).to(dtype).requires_grad_()
    x, bias = normal(rows, features).to(dtype).requires_grad_(), normal(classes).to(dtype).requires_grad_()
    return x, w, bias, torch.randint(0, classes, (rows,), device="cuda", generator=generator)


def peak_mb(call: Any) -> float:
    """The most memory that a call takes beside what was there before and what it returns; prepared once before."""
    call()
    torch.cuda.synchronize()
    torch.cuda.reset_peak_memory_stats()
    before = torch.cuda.memory_allocated()
    made = sum(t.nbytes for t in call())
    return (torch.cuda.max_memory_allocated() - before - made) / 1e6


@pytest.mark.parametrize("dtype", TOLERANCES, ids=str)
@pytest.mark.parametrize(
    "options", [{}, {"label_smoothing": 0.1, "z_loss": 1e-2, "softcap": 8.0}], ids=["plain", "all"]
)
@pytest.mark.parametrize("shape", [(300, 128, 5003), (1, 64, 1000), (2048, 100, 777)], ids=str)
def test_losses_and_gradients(
    monkeypatch: pytest.MonkeyPatch, shape: tuple[int, int, int], options: dict[str, Any], dtype: torch.dtype
) -> None:
    monkeypatch.setattr(linear, "LEAST_BYTES", 1)
    x, w, bias, target = drawn(*shape, dtype)
    target[::7] = -100 if shape[0] > 1 else 0
    loss, lse = tilefold.linear_cross_entropy(x, w, target, linear_bias=bias, return_lse=True, **options)
    found = torch.autograd.grad([loss, lse], (x, w, bias), [torch.ones_like(loss), torch.full_like(lse, 0.1)])
    wide = [t.detach().double().requires_grad_() for t in (x, w, bias)]
    want, want_lse = defined(F.linear(*wide), target, **options)
    wanted = torch.autograd.grad(
        [want, want_lse], wide, [torch.ones_like(want), torch.full_like(want_lse, 0.1)]
    )
    for got, exact in zip((loss, lse, *found), (want, want_lse, *wanted), strict=True):
        near(got, exact, TOLERANCES[dtype])


@pytest.mark.parametrize("dtype", HALVES, ids=str)
def test_gradients_are_no_worse_than_torchs(dtype: torch.dtype) -> None:
    x, w, _, target = drawn(1024, 512, 32000, dtype)
    found = torch.autograd.grad(tilefold.linear_cross_entropy(x, w, target), (x, w))
    torchs = torch.autograd.grad(F.cross_entropy(F.linear(x, w), target), (x, w))
    wide = [t.detach().double().requires_grad_() for t in (x, w)]
    exact = torch.autograd.grad(F.cross_entropy(F.linear(*wide), target), wide)
    for own, other, right in zip(found, torchs, exact, strict=True):
        assert (own - right).norm() <= 1.02 * (other - right).norm()


def test_memory_of_a_language_models_last_layer() -> None:
    """8192x4096x128256 in bfloat16: at most 300 MB beside the gradients (needs 8 GB)."""
    x, w, _, target = drawn(8192, 4096, 128256, torch.bfloat16)

    def run() -> list[Tensor]:
        loss = tilefold.linear_cross_entropy(x, w, target)
        return [loss.detach(), *torch.autograd.grad(loss, (x, w))]

    assert peak_mb(run) <= 300
    torch.cuda.empty_cache()


def test_nothing_waits_for_the_device() -> None:
    x, w, bias, target = drawn(512, 256, 32000, torch.bfloat16)

    def run() -> None:
        loss = tilefold.linear_cross_entropy(x, w, target, linear_bias=bias, label_smoothing=0.1)
        torch.autograd.grad(loss, (x, w, bias))

    run()
    try:
        with warnings.catch_warnings(action="ignore"):  # of a prototype
            torch.cuda.set_sync_debug_mode("error")
        run()
    finally:
        torch.cuda.set_sync_debug_mode("default")


def test_the_same_bits_also_compiled_and_in_a_graph() -> None:
    x, w, _, target = drawn(512, 256, 32000, torch.bfloat16)

    def run(loss: Any = tilefold.linear_cross_entropy) -> list[Tensor]:
        made = loss(x, w, target)
        return [made.detach(), *torch.autograd.grad(made, (x, w))]

    first = run()
    assert all(map(torch.equal, first, run()))
    compiled = torch.compile(tilefold.linear_cross_entropy, fullgraph=True)
    assert all(map(torch.equal, first, run(compiled)))
    with torch.cuda.stream(stream := torch.cuda.Stream()):  # type: ignore[no-untyped-call]  # torch's own
        run()
    torch.cuda.current_stream().wait_stream(stream)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        held = run()
    graph.replay()
    assert all(map(torch.equal, first, held))


def test_targets_that_are_no_classes() -> None:
    x, w, _, target = drawn(64, 128, 5003, torch.bfloat16)
    target[3], target[5] = 5003, -100
    losses = tilefold.linear_cross_entropy(x, w, target, reduction="none")
    (of_x,) = torch.autograd.grad(losses.sum(), x)
    nan = torch.arange(64, device="cuda") == 3
    assert torch.equal(losses.isnan(), nan)
    assert torch.equal(of_x.isnan().all(1), nan)
    assert not of_x[5].any()
    with pytest.raises(IndexError, match="got 5003"):
        tilefold.linear_cross_entropy(x, w, target, validate=True)


def test_any_monoid() -> None:
    x, w, bias, target = drawn(300, 128, 5003, torch.bfloat16)
    (_, mean, squares), logit = tilefold.linear_reduce(
        x, w, tilefold.monoids.WELFORD, target=target, linear_bias=bias
    )
    found = torch.autograd.grad((mean + squares * 1e-3 + logit).sum(), (x, w, bias))
    wide = [t.detach().double().requires_grad_() for t in (x, w, bias)]
    logits = F.linear(*wide)
    parts = logits.mean(1) + logits.var(1, correction=0) * 5.003 + logits.gather(1, target[:, None])[:, 0]
    wanted = torch.autograd.grad(parts.sum(), wide)
    for got, exact in zip(found, wanted, strict=True):
        near(got, exact, TOLERANCES[torch.bfloat16])
    classes = tilefold.linear_reduce(x.detach(), w.detach(), tilefold.monoids.ARGMAX)
    best = x.detach().double() @ w.detach().double().T
    near(best.gather(1, classes[:, None])[:, 0], best.amax(1), 1e-5)
