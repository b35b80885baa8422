"""`tilefold.nn.Linear` beside torch.nn.Linear: state, results, gradients, autocast."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch

import tilefold

Tensor = torch.Tensor

ACTIVATIONS: dict[str | None, Callable[[Tensor], Tensor]] = {
    None: lambda x: x,
    "relu": torch.relu,
    "gelu": torch.nn.functional.gelu,
    "silu": torch.nn.functional.silu,
    "sigmoid": torch.sigmoid,
    "tanh": torch.tanh,
}


def pair(bias: bool = True, **options: object) -> tuple[tilefold.nn.Linear, torch.nn.Linear]:
    """Ours and torch's with the same parameters."""
    theirs = torch.nn.Linear(7, 5, bias, dtype=torch.float64)
    ours = tilefold.nn.Linear(7, 5, bias, dtype=torch.float64, **options)  # type: ignore[arg-type]
    ours.load_state_dict(theirs.state_dict())
    return ours, theirs


def test_the_state_is_torchs() -> None:
    ours, theirs = pair()
    assert list(ours.state_dict()) == list(theirs.state_dict())
    theirs.load_state_dict(ours.state_dict())
    torch.manual_seed(3)
    first = torch.nn.Linear(4, 2)
    torch.manual_seed(3)
    assert torch.equal(tilefold.nn.Linear(4, 2).weight, first.weight)
    assert isinstance(ours, torch.nn.Linear)


@pytest.mark.parametrize("shape", [(7,), (3, 7), (2, 3, 7), (0, 7)], ids=str)
@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("activation", list(ACTIVATIONS))
def test_results_and_gradients(activation: str | None, bias: bool, shape: tuple[int, ...]) -> None:
    ours, theirs = pair(bias, activation=activation)
    x = torch.randn(shape, dtype=torch.float64, requires_grad=True)
    want = ACTIVATIONS[activation](theirs(x))
    with torch.no_grad():
        torch.testing.assert_close(ours(x), want)
    got = ours(x)
    torch.testing.assert_close(got, want)
    weights = torch.randn_like(want)
    wanted = torch.autograd.grad((want * weights).sum(), [x, *theirs.parameters()])
    given = torch.autograd.grad((got * weights).sum(), [x, *ours.parameters()])
    for g, w in zip(given, wanted, strict=True):
        torch.testing.assert_close(g, w)


def test_gradients_that_nobody_asks_for_are_not_made() -> None:
    ours, _ = pair(activation="relu")
    ours.weight.requires_grad_(False)
    ours(torch.randn(2, 7, dtype=torch.float64)).sum().backward()
    assert ours.weight.grad is None
    assert ours.bias.grad is not None


def test_autocast() -> None:
    ours, theirs = pair()
    x = torch.randn(3, 7, dtype=torch.float64)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert ours(x).dtype == theirs(x).dtype == torch.float64
        got, want = ours.float()(x.float()), theirs.float()(x.float())
        got.sum().backward()
    assert got.dtype == want.dtype == torch.bfloat16
    torch.testing.assert_close(got, want, rtol=2**-7, atol=2**-7)
    assert ours.weight.grad is not None
    assert ours.weight.grad.dtype == torch.float32


def test_a_row_does_not_know_its_batch() -> None:
    layer = tilefold.nn.Linear(300, 40, activation="silu", guarantee="batch_invariant")
    x = torch.randn(33, 300)
    with torch.no_grad():
        assert torch.equal(layer(x[7:8]), layer(x)[7:8])


def test_it_says_what_it_is() -> None:
    layer = tilefold.nn.Linear(3, 2, activation="relu", precision="tf32", guarantee="none")
    text = "Linear(in_features=3, out_features=2, bias=True, activation=relu, precision=tf32, guarantee=none)"
    assert repr(layer) == text
    assert repr(tilefold.nn.Linear(3, 2)) == repr(torch.nn.Linear(3, 2))
