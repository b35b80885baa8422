"""`tilefold.nn.Linear` beside torch.nn.Linear: state, results, gradients, autocast."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any

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


Parameters = dict[str, Tensor]
ORDERS = {"in order": (0, 0), "inner dim first": (1, 0)}
# Where the batches of x are, for the outer vmap and the inner one: None where each layer sees all of x.
PLACES = [(None, None), (None, 0), (0, None), (None, 1), (1, None), (0, 0), (1, 0), (0, 1)]


def nested(
    function: Callable[..., Any], order: str, places: tuple[int | None, int | None]
) -> Callable[..., Any]:
    """A function of a layer's parameters and x over a grid of layers."""
    (outer, inner), (of_x, then) = ORDERS[order], places
    return torch.vmap(torch.vmap(function, in_dims=(inner, then)), in_dims=(outer, of_x))


def grid(places: tuple[int | None, int | None], order: str, shape: tuple[int, ...]) -> Tensor:
    """An x with dims of the grid where `places` want them."""
    x, (outer, inner) = torch.randn(shape, dtype=torch.float64), (3, 2) if order == "in order" else (2, 3)
    for place, size in ((places[1], inner), (places[0], outer)):
        x = x if place is None else torch.stack([x * (i + 1) for i in range(size)], dim=min(place, x.ndim))
    return x


@pytest.mark.filterwarnings(
    "ignore:`torch.jit.script` is deprecated"
)  # torch's own forward derivatives use it
@pytest.mark.parametrize("shape", [(7,), (4, 7), (2, 4, 7)], ids=str)
@pytest.mark.parametrize("order", list(ORDERS))
@pytest.mark.parametrize(
    ("stacked", "places"),
    [
        *itertools.product(("both", "weight", "bias"), PLACES),
        *(("neither", p) for p in PLACES if None not in p),
    ],
    ids=str,
)
def test_nested_vmap_over_parameters(
    stacked: str, order: str, places: tuple[int | None, int | None], shape: tuple[int, ...]
) -> None:
    """Layers in a grid: results, gradients inside, between and around the two, and forward derivatives."""
    ours, theirs = pair(activation="silu")
    one = {name: p.detach() for name, p in ours.named_parameters()}
    many = {name: torch.randn(3, 2, *p.shape, dtype=p.dtype) for name, p in one.items()}
    taken = {"both": ["weight", "bias"], "weight": ["weight"], "bias": ["bias"], "neither": []}[stacked]
    stack, rest = {name: many[name] for name in taken}, {n: p for n, p in one.items() if n not in taken}
    x = grid(places, order, shape)

    def made(module: torch.nn.Module, parameters: Parameters, x: Tensor) -> Tensor:
        result: Tensor = torch.func.functional_call(module, {**rest, **parameters}, (x,))
        return result if module is ours else torch.nn.functional.silu(result)

    def answers(module: torch.nn.Module) -> list[Any]:
        layer = lambda p, x: made(module, p, x)  # noqa: E731
        loss = lambda p, x: layer(p, x).square().sum()  # noqa: E731
        over = (lambda f: nested(f, order, places)) if stack else (
            lambda f: torch.vmap(torch.vmap(f, in_dims=(None, places[1])), in_dims=(None, places[0]))
        )  # fmt: skip
        tangents = {name: p.cos() for name, p in stack.items()}
        both = torch.func.grad(lambda p, x: over(loss)(p, x).sum(), argnums=(0, 1))
        return [
            over(layer)(stack, x),
            over(torch.func.grad(loss, argnums=1))(stack, x),
            over(torch.func.grad(loss))(stack, x),
            both(stack, x),
            torch.func.jvp(lambda p, x: over(layer)(p, x), (stack, x), (tangents, x.sin()))[1],
            over(lambda p, x: torch.func.jvp(lambda y: layer(p, y), (x,), (x.sin(),))[1])(stack, x),
            over(torch.func.jacrev(layer, argnums=1))(stack, x),
            over(torch.func.hessian(loss, argnums=1))(stack, x) if shape == (7,) else x,
        ]

    torch.testing.assert_close(answers(ours), answers(theirs), rtol=1e-7, atol=1e-12)


def test_an_ensemble_of_ensembles() -> None:
    """torch.func.stack_module_state twice, as torch's own ensembles are made, under any randomness."""
    made = [[tilefold.nn.Linear(7, 5, activation="relu") for _ in range(2)] for _ in range(3)]
    inner = [torch.func.stack_module_state(row)[0] for row in made]
    stacked = {name: torch.stack([state[name] for state in inner]).detach() for name in inner[0]}
    x = torch.randn(3, 2, 4, 7)
    run = torch.vmap(
        torch.vmap(lambda p, x: torch.func.functional_call(made[0][0], p, (x,)), randomness="different"),
        randomness="same",
    )
    with torch.no_grad():
        want = torch.stack([torch.stack([made[i][j](x[i, j]) for j in range(2)]) for i in range(3)])
    torch.testing.assert_close(run(stacked, x), want)


@pytest.mark.parametrize("depth", [3, 4])
def test_vmap_nested_deeper(depth: int) -> None:
    ours, theirs = pair()
    sizes = (2, 3, 2, 3)[:depth]
    stacked = {n: torch.randn(*sizes, *p.shape, dtype=p.dtype) for n, p in ours.named_parameters()}
    x = torch.randn(*sizes[1:], 4, 7, dtype=torch.float64)
    found = []
    for module in (ours, theirs):
        run = lambda p, x, m=module: torch.func.functional_call(m, p, (x,))  # noqa: E731
        for level in range(depth):
            run = torch.vmap(run, in_dims=(0, None if level == depth - 1 else 0))
        found.append(run(stacked, x))
    torch.testing.assert_close(*found)


def test_vmap_without_rows_or_features() -> None:
    with pytest.warns(UserWarning, match="zero-element"):
        empty = tilefold.nn.Linear(0, 5)
    layer = tilefold.nn.Linear(7, 5)
    for module, x in ((empty, torch.randn(3, 2, 0)), (layer, torch.randn(3, 0, 7))):
        stacked = {n: p.detach().expand(3, 4, *p.shape) for n, p in module.named_parameters()}
        run = torch.vmap(
            torch.vmap(lambda p, x, m=module: torch.func.functional_call(m, p, (x,)), in_dims=(0, None))
        )
        assert run(stacked, x).shape == (3, 4, x.shape[1], 5)


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
