"""What torch switches on around a call: autocast, torch.compile, recorded graphs."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch.fx.experimental.proxy_tensor import make_fx

import tilefold
from tilefold.errors import BackendError
from tilefold.monoids import MAX_WITH_INDEX

A, B = torch.randn(5, 300), torch.randn(300, 7)
# What is no operation of a graph: its arguments are more than tensors, names and numbers.
UNNAMED: dict[str, Callable[[torch.Tensor, torch.Tensor], Any]] = {
    "function": lambda a, b: tilefold.matmul(a, b, epilogue=lambda x: 2 * x + 1),
    "extra": lambda a, b: tilefold.matmul(a, b, epilogue=lambda x, r: x + r, epilogue_args=(torch.ones(7),)),
    "row": lambda a, b: tilefold.matmul(a, b, row=(MAX_WITH_INDEX, None))[1].indices,
    "dtype": lambda a, b: tilefold.matmul(a, b, guarantee="batch_invariant", out_dtype=torch.float64),
}
NAMED: dict[str, Callable[[torch.Tensor, torch.Tensor], Any]] = {
    "plain": tilefold.matmul,
    "relu": lambda a, b: tilefold.matmul(a, b, bias=b[0], epilogue="relu"),
    "batch invariant": lambda a, b: tilefold.matmul(a, b, guarantee="batch_invariant"),
}


@pytest.mark.parametrize("backend", ["eager", "aot_eager"])
@pytest.mark.parametrize("name", [*UNNAMED, *NAMED])
def test_compiled_products(name: str, backend: str) -> None:
    torch._dynamo.reset()
    function = {**UNNAMED, **NAMED}[name]
    assert torch.equal(torch.compile(function, backend=backend)(A, B), function(A, B))


@pytest.mark.parametrize("mode", ["real", "fake", "symbolic"])
@pytest.mark.parametrize("name", list(NAMED))
def test_a_recorded_product_is_one_operation(name: str, mode: str) -> None:
    function = NAMED[name]
    graph = make_fx(lambda a, b: function(a, b), tracing_mode=mode)(A, B)
    called = [node.target for node in graph.graph.nodes if node.op == "call_function"]
    assert called.count(torch.ops.tilefold.own_matmul.default) == 1
    assert torch.equal(graph(A + 1, B), function(A + 1, B))


@pytest.mark.filterwarnings("ignore:.*should not be instantiated")  # torch's export does so
@pytest.mark.parametrize("strict", [True, False])
def test_an_exported_layer(strict: bool) -> None:
    layer = tilefold.nn.Linear(300, 7, activation="gelu")
    exported = torch.export.export(layer, (A,), strict=strict)
    with torch.no_grad():
        assert torch.equal(exported.module()(A + 1), layer(A + 1))


@pytest.mark.parametrize("mode", ["real", "fake", "symbolic"])
@pytest.mark.parametrize(
    "function",
    [*UNNAMED.values(), lambda a, b: tilefold.sum(a, dim=1), lambda a, b: tilefold.var(a)],
    ids=[*UNNAMED, "sum", "var"],
)
def test_what_cannot_be_recorded_says_so(function: Callable[..., Any], mode: str) -> None:
    """The graph would hold memory that nothing was written to."""
    with pytest.raises(BackendError, match="must be called, not recorded"):
        make_fx(lambda a, b: function(a, b), tracing_mode=mode)(A, B)


@pytest.mark.parametrize("guarantee", ["run_to_run", "batch_invariant"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.float8_e4m3fn], ids=str)
def test_autocast_changes_no_product(dtype: torch.dtype, guarantee: str) -> None:
    a, b = A.to(dtype), B.to(dtype)
    want = tilefold.matmul(a, b, guarantee=guarantee, out_dtype=torch.float32)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        got = tilefold.matmul(a, b, guarantee=guarantee, out_dtype=torch.float32)
        layer, theirs = tilefold.nn.Linear(300, 7), torch.nn.Linear(300, 7)
        theirs.load_state_dict(layer.state_dict())
        assert torch.equal(layer(A), theirs(A)), "rounded once"
    assert torch.equal(got, want)
