"""What torch switches on around a call: autocast, torch.compile, recorded graphs."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch.fx.experimental.proxy_tensor import make_fx
from torch.nn import functional

import tilefold
from tilefold.errors import BackendError
from tilefold.monoids import LAST, MAX_WITH_INDEX, SUM, WELFORD
from tilefold.runtime import modes
from tilefold.runtime.modes import widened
from tilefold.runtime.overrides import listed

SEEDED = torch.Generator().manual_seed(0)
A, B = torch.randn(5, 300, generator=SEEDED), torch.randn(300, 7, generator=SEEDED)
# What torch.compile calls between its graphs: arguments are more than tensors, names and numbers.
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
    [*UNNAMED.values(), lambda a, b: tilefold.topk(a, 3), lambda a, b: tilefold.transpose(a, 0, 1)],
    ids=[*UNNAMED, "topk", "transpose"],
)
def test_every_call_is_recorded(function: Callable[..., Any], mode: str) -> None:
    graph = make_fx(lambda a, b: function(a, b), tracing_mode=mode)(A, B)
    for got, want in zip(listed(graph(A + 1, B)), listed(function(A + 1, B)), strict=True):
        assert torch.equal(got, want)


def test_what_cannot_be_recorded_says_so() -> None:
    """The graph would hold memory that nothing was written to."""
    out = torch.empty(A.shape[::-1])
    with pytest.raises(BackendError, match="must be called, not recorded"):
        make_fx(lambda a: tilefold.transpose(a, 0, 1, out=out))(A)


FLOATS = [torch.float16, torch.bfloat16, torch.float32, torch.float64, torch.float8_e4m3fn, torch.float8_e5m2]
HALVES = pytest.mark.parametrize("half", [torch.bfloat16, torch.float16], ids=str)


def outcome(function: Callable[[], torch.Tensor]) -> torch.Tensor | type:
    """A result, or that there is none."""
    try:
        return function()
    except (RuntimeError, TypeError):
        return RuntimeError


def assert_alike(got: Any, want: Any, case: object) -> None:
    """The same dtype, and values that differ by a rounding; or no result at all."""
    assert type(got) is type(want), (case, got, want)
    if isinstance(got, torch.Tensor):
        assert (got.dtype, got.shape) == (want.dtype, want.shape), case
        torch.testing.assert_close(got, want, rtol=2**-7, atol=2**-4, msg=str(case))


def in_dtype(x: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    return x.to(dtype) if dtype.is_floating_point else (9 * x).to(torch.int64).to(dtype)


@HALVES
def test_autocast_of_all_dtypes_is_torchs(half: torch.dtype) -> None:
    dtypes = [*FLOATS, torch.uint8, torch.int16, torch.bool]
    for left, right in itertools.product(dtypes, dtypes):
        a, b = in_dtype(A, left), in_dtype(B, right)
        with torch.autocast("cpu", dtype=half):
            got = outcome(lambda a=a, b=b: tilefold.matmul(a, b))
            want = outcome(lambda a=a, b=b: torch.matmul(a, b))
            assert_alike(got, want, (left, right))
            if not (left.is_floating_point and right.is_floating_point):
                continue
            for third in FLOATS:
                bias = b[0].to(third)
                got = outcome(lambda a=a, b=b, c=bias: tilefold.matmul(a, b, bias=c))
                want = outcome(lambda a=a, b=b, c=bias: torch.nn.functional.linear(a, b.mT, c))
                if third != torch.float64 and torch.float64 not in (
                    left,
                    right,
                ):  # of others torch wants one dtype
                    assert_alike(got, want, (left, right, third))


@HALVES
@pytest.mark.parametrize("guarantee", ["run_to_run", "batch_invariant"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.float8_e4m3fn], ids=str)
def test_autocast_converts_and_changes_nothing_else(
    dtype: torch.dtype, guarantee: str, half: torch.dtype
) -> None:
    a, b, bias, residual = A.to(dtype), B.to(dtype), B[0], torch.randn(5, 7, dtype=torch.float64)
    options: dict[str, Any] = {
        "epilogue": lambda x, r: x * r,
        "epilogue_args": (residual,),
        "guarantee": guarantee,
    }
    rows = (MAX_WITH_INDEX, None)
    want = tilefold.matmul(a.to(half), b.to(half), bias=bias.to(half), **options)
    wide = tilefold.matmul(a.to(half), b.to(half), guarantee=guarantee, out_dtype=torch.float32)
    whole, top = tilefold.matmul(a.to(half), b.to(half), row=rows, guarantee=guarantee)
    with torch.autocast("cpu", dtype=half):
        assert torch.equal(tilefold.matmul(a, b, bias=bias, **options), want)
        assert torch.equal(tilefold.matmul(a, b, guarantee=guarantee, out_dtype=torch.float32), wide)
        values, best = tilefold.matmul(a, b, row=rows, guarantee=guarantee)
        assert torch.equal(values, whole)
        assert torch.equal(best.values, top.values)
        assert best.values.dtype == torch.float32
        with torch.autocast("cpu", enabled=False):
            assert tilefold.matmul(a, b).dtype == dtype


@HALVES
def test_autocast_leaves_a_product_into_out_alone(half: torch.dtype) -> None:
    """As torch's operations: those that are given `out` convert nothing."""
    want, plan = tilefold.matmul(A, B), tilefold.explain_plan((A, B), tilefold.matmul)
    narrow = tilefold.explain_plan((A.to(half), B.to(half)), tilefold.matmul)
    with torch.autocast("cpu", dtype=half):
        out = torch.empty(5, 7)
        assert torch.equal(tilefold.matmul(A, B, out=out), want)
        assert torch.equal(torch.matmul(A, B, out=torch.empty(5, 7)).dtype == out.dtype and out, want)
        assert tilefold.explain_plan((A, B), tilefold.matmul, out=out) == plan
        assert tilefold.explain_plan((A, B), tilefold.matmul) == narrow
        with pytest.raises(RuntimeError, match="one dtype"):
            tilefold.matmul(A, B.to(half), out=out)


@HALVES
def test_autocast_of_tf32_and_layers(half: torch.dtype) -> None:
    # Sums in two orders: of other weights, or operands, one result in thousands lies between two numbers of 16 bits.
    torch.manual_seed(0)
    layer, theirs = tilefold.nn.Linear(300, 7, precision="tf32"), torch.nn.Linear(300, 7)
    theirs.load_state_dict(layer.state_dict())
    with torch.autocast("cpu", dtype=half):
        assert torch.equal(layer(A), theirs(A)), "rounded once"
        assert tilefold.matmul(A, B, precision="tf32").dtype == half
        for given in (A.half(), A.double()):
            with pytest.raises(ValueError, match="must be asked of float32 operands"):
                tilefold.matmul(given, B.to(given.dtype), precision="tf32")
        with pytest.raises(ValueError, match="one of ieee, tf32 or None, got 'fast'"):
            tilefold.matmul(A, B, precision="fast")


@HALVES
@pytest.mark.parametrize("name", list(UNNAMED))
def test_autocast_of_products_between_graphs(name: str, half: torch.dtype) -> None:
    torch._dynamo.reset()
    with torch.autocast("cpu", dtype=half):
        want = UNNAMED[name](A, B)
        got = torch.compile(UNNAMED[name], backend="aot_eager")(A, B)
    assert got.dtype == want.dtype
    assert torch.equal(got, want)


@HALVES
@pytest.mark.parametrize("name", list(NAMED))
def test_autocast_of_compiled_and_recorded_products(name: str, half: torch.dtype) -> None:
    torch._dynamo.reset()
    function = NAMED[name]
    plain = function(A, B)
    with torch.autocast("cpu", dtype=half):
        want = function(A, B)
        graph = make_fx(lambda a, b: function(a, b))(A, B)
        for made in (torch.compile(function, backend="aot_eager"), graph):
            assert_alike(made(A, B), want, name)
        assert torch.equal(torch.ops.tilefold.own_matmul(A, B), tilefold.inductor.own_matmul(A, B))
        assert (
            torch.ops.tilefold.own_matmul(A, B).dtype
            == torch.ops.tilefold.matmul(A, B).dtype
            == torch.float32
        )
    assert want.dtype == half
    assert_alike(graph(A, B), want, "the graph holds its conversions")
    assert torch.equal(torch.compile(function, backend="aot_eager")(A, B), plain)


# ------------------------------------------------------------------------------------ autocast of torch's functions

FUNCTIONS: dict[str, Callable[[Any, torch.Tensor], Any]] = {
    "softmax": lambda of, x: of.softmax(x, 1),
    "log_softmax": lambda of, x: of.log_softmax(x, 1),
    "layer_norm": lambda of, x: of.layer_norm(x, (6,)),
    "rms_norm": lambda of, x: of.rms_norm(x, (6,)),
    "group_norm": lambda of, x: of.group_norm(x, 2),
    "normalize": lambda of, x: getattr(of, "normalize", functional.normalize)(x),
    "cumsum": lambda of, x: of.cumsum(x, 1),
    "cumprod": lambda of, x: of.cumprod(x, 1),
    "cummax": lambda of, x: of.cummax(x, 1)[0],
    "cummin": lambda of, x: of.cummin(x, 1)[0],
    "logcumsumexp": lambda of, x: of.logcumsumexp(x, 1),
    "topk": lambda of, x: of.topk(x, 2)[0],
    "transpose": lambda of, x: of.transpose(x, 0, 1),
    "sum": lambda of, x: of.sum(x, 1),
    "prod": lambda of, x: of.prod(x, 1),
    "mean": lambda of, x: of.mean(x, 1),
    "amax": lambda of, x: of.amax(x, 1),
    "amin": lambda of, x: of.amin(x, 1),
    "var": lambda of, x: of.var(x, 1),
    "std": lambda of, x: of.std(x, 1),
    "logsumexp": lambda of, x: of.logsumexp(x, 1),
    "norm": lambda of, x: of.norm(x, dim=1),
    "vector_norm": lambda of, x: getattr(of, "vector_norm", torch.linalg.vector_norm)(x, dim=1),
    "cross_entropy": lambda of, x: (tilefold if of is tilefold else functional).cross_entropy(
        x, torch.tensor([0, 2, 5, 1])
    ),
}


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32, torch.float64])
@pytest.mark.parametrize("name", FUNCTIONS)
def test_autocast_gives_torchs_result_dtype_on_a_cpu(name: str, dtype: torch.dtype) -> None:
    x = torch.rand(4, 6).to(dtype) + 0.5
    with torch.autocast("cpu", dtype=torch.bfloat16):
        want, got = (FUNCTIONS[name](of, x) for of in (torch, tilefold))
    assert got.dtype == want.dtype
    torch.testing.assert_close(got.double(), want.double(), rtol=2e-2, atol=0)


@pytest.mark.parametrize("name", FUNCTIONS)
def test_autocast_widens_on_a_gpu_what_torchs_own_list_says(name: str) -> None:
    """The rule, where no GPU is needed: torch's list for its tests of CUDA, and what is made of its functions."""
    from torch.testing._internal.autocast_test_lists import AutocastTestLists

    listed = {entry[0] for entry in AutocastTestLists(torch.device("cpu")).torch_fp32}
    made_of = {"vector_norm": "norm", "normalize": "norm", "cross_entropy": "log_softmax"}
    for dtype in (torch.bfloat16, torch.float16):
        wide = widened(name, dtype, "cuda")
        assert (wide == torch.float32) == (made_of.get(name, name) in listed)
    assert widened(name, torch.float32, "cuda") is None
    assert widened(name, torch.float64, "cuda") is None
    assert widened(name, torch.int32, "cuda") is None


@pytest.mark.parametrize("kind", ["cpu", "cuda"])
def test_what_autocast_widens_is_computed_and_returned_in_float32(
    kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A CPU's tensors by a GPU's list: results, `out=` as it was given, and the sum beside a norm as it came."""
    monkeypatch.setitem(modes.WIDENED, "cpu", modes.WIDENED[kind])
    x = torch.rand(4, 6).half() + 0.5
    with torch.autocast("cpu", dtype=torch.bfloat16):
        for name in modes.WIDENED[kind]:
            got = FUNCTIONS[name](tilefold, x)
            with torch.autocast("cpu", enabled=False):
                want = FUNCTIONS[name](torch, x.float())
            assert got.dtype == torch.float32, name
            torch.testing.assert_close(got, want, rtol=1e-5, atol=0, msg=name)
            assert FUNCTIONS[name](tilefold, x.double()).dtype == torch.float64
        out = torch.empty(4, dtype=torch.float16)
        assert tilefold.prod(x, 1, out=out) is out
        if kind == "cuda":
            y, total = tilefold.rms_norm(x, (6,), residual=x)
            assert (y.dtype, total.dtype) == (torch.float32, torch.float16)
        assert tilefold.reduce(x, tilefold.monoids.PROD, 1).dtype == torch.float16


TRACED: dict[str, Callable[[torch.Tensor], Any]] = {
    "softmax": lambda x: tilefold.softmax(x, 1),
    "layer_norm": lambda x: tilefold.layer_norm(x, (600,)),
    "cumsum": lambda x: tilefold.cumsum(x, 1),
    "cummax": lambda x: tilefold.cummax(x, 1).values,
    "scan": lambda x: tilefold.scan(x, SUM, 1, reverse=True),
    "sum": lambda x: tilefold.sum(x, 1),
    "transpose": lambda x: tilefold.transpose(x, 0, 1),
}
UNTRACED: dict[str, Callable[[torch.Tensor], Any]] = {
    "topk": lambda x: tilefold.topk(x, 3).values,
    "segment_reduce": lambda x: tilefold.segment_reduce(x, SUM, torch.tensor([0, 1, 4])),
    "scan": lambda x: tilefold.scan(x, LAST, 1),
    "reduce_map": lambda x: tilefold.reduce_map(x, SUM, lambda x, s: x / s, 1),
    "reduce": lambda x: tilefold.reduce(x, WELFORD, 1).mean,
    "transpose": lambda x: tilefold.transpose(x > 0, 0, 1),
    "matmul": lambda x: tilefold.matmul(x, x.mT, row=(SUM, None))[0],
}


@pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::torch.jit.TracerWarning")
@pytest.mark.parametrize("name", TRACED)
def test_a_trace_holds_functions_of_torchs_own(name: str) -> None:
    x, y = torch.randn(4, 600), torch.randn(4, 600)
    assert torch.equal(torch.jit.trace(TRACED[name], (x,))(y), TRACED[name](y))


@pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::torch.jit.TracerWarning")
@pytest.mark.parametrize("name", UNTRACED)
def test_a_trace_of_anything_else_is_refused(name: str) -> None:
    with pytest.raises(BackendError, match=rf"{name}: torch.jit.trace must be given .*; use torch.compile"):
        torch.jit.trace(UNTRACED[name], (torch.randn(4, 600),))
