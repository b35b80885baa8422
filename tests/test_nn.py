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


@pytest.mark.filterwarnings(
    "ignore:`torch.jit.script` is deprecated"
)  # torch's own forward derivatives use it
@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("activation", list(ACTIVATIONS))
def test_derivatives_of_every_order_and_direction(activation: str | None, bias: bool) -> None:
    ours, _ = pair(bias, activation=activation)
    inputs = [torch.randn(3, 7, dtype=torch.float64, requires_grad=True), *ours.parameters()]

    def layer(x: Tensor, *parameters: Tensor) -> Tensor:
        named = dict(zip(("weight", "bias"), parameters, strict=False))
        return torch.func.functional_call(ours, named, (x,))

    assert torch.autograd.gradcheck(layer, inputs, check_forward_ad=True, check_batched_grad=True)
    assert torch.autograd.gradgradcheck(layer, inputs)


@pytest.mark.filterwarnings(
    "ignore:`torch.jit.script` is deprecated"
)  # torch's own forward derivatives use it
@pytest.mark.parametrize("bias", [True, False])
def test_functions_of_torch_func(bias: bool) -> None:
    """Gradients of each sample, rows under vmap, and an ensemble of layers with stacked parameters."""
    ours, theirs = pair(bias, activation="silu")
    x = torch.randn(4, 3, 7, dtype=torch.float64)

    def loss(module: torch.nn.Module, parameters: dict[str, Tensor], x: Tensor) -> Tensor:
        made = torch.func.functional_call(module, parameters, (x,))
        return (made if module is ours else torch.nn.functional.silu(made)).square().sum()

    for dims in ((None, 0), (0, 0), (0, None)):
        found = []
        for module in (ours, theirs):
            one = {name: p.detach() for name, p in module.named_parameters()}
            many = {name: torch.stack([p, 2 * p, -p, p + 1]) for name, p in one.items()}
            each = torch.vmap(torch.func.grad(lambda p, x, m=module: loss(m, p, x)), in_dims=dims)
            found.append(each(one if dims[0] is None else many, x if dims[1] == 0 else x[0]))
        for name, got in found[0].items():
            torch.testing.assert_close(got, found[1][name])
    jacobian = torch.func.jacrev(ours)(x[0])
    torch.testing.assert_close(jacobian, torch.func.jacfwd(ours)(x[0]))
    torch.testing.assert_close(torch.vmap(ours)(x), torch.nn.functional.silu(theirs(x)))
    with torch.no_grad():
        torch.testing.assert_close(torch.vmap(ours)(x), torch.nn.functional.silu(theirs(x)))


def test_no_data_and_no_features() -> None:
    assert tilefold.nn.Linear(7, 5, device="meta")(torch.empty(3, 7, device="meta")).shape == (3, 5)
    with pytest.warns(UserWarning, match="zero-element"):
        empty, none = tilefold.nn.Linear(0, 5), tilefold.nn.Linear(7, 0)
    assert none(torch.randn(3, 7)).shape == (3, 0)
    assert torch.equal(empty(torch.randn(3, 0)), empty.bias.expand(3, 5))


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
