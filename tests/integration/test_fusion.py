"""Inductor's graphs in which folds and maps take in their pointwise neighbours: the same answers, and fewer reads."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch._functorch import config as functorch
from torch._inductor import config
from torch.nn import functional as F

import tilefold
from tilefold import monoids
from tilefold.integration import fusion

Tensor = torch.Tensor
SEEDED = torch.Generator().manual_seed(3)
X, Y, Z = torch.randn(3, 70, 24, generator=SEEDED).unbind()
W, KEPT = torch.randn(24, generator=SEEDED), torch.rand(70, 24, generator=SEEDED) < 0.7
ROWS = torch.randn(70, 1, generator=SEEDED)


class Seen:
    """What the pass made of a function's graph."""

    def __init__(self) -> None:
        self.graphs: list[list[str]] = []

    def __call__(self, graph: torch.fx.Graph) -> None:
        called = [n for n in graph.nodes if isinstance(n.target, torch._ops.OpOverload)]
        self.graphs.append([str(n.target).split(".")[-2] for n in called if "squeeze" not in str(n.target)])


@pytest.fixture
def seen() -> Iterator[Seen]:
    """The pass on tensors of a CPU, and what it leaves."""
    torch._dynamo.reset()
    found = Seen()
    uncached = functorch.patch(enable_autograd_cache=False)
    with uncached, config.patch(fx_graph_cache=False, post_grad_custom_post_pass=found):
        fusion.switch(True, ("cpu",))
        yield found
        fusion.switch(False)
    torch._dynamo.reset()


def layer(x: Tensor, w: Tensor) -> Tensor:
    return tilefold.layer_norm(x, x.shape[1:], w, w)


def kept_sum(x: Tensor, y: Tensor, w: Tensor) -> tuple[Tensor, Tensor]:
    h = x + y
    return h, tilefold.rms_norm(h, h.shape[1:], w, 1e-5)


def scaled_first(x: Tensor, w: Tensor) -> tuple[Tensor, Tensor]:
    h = x * w
    return h * 2 + 1, tilefold.logsumexp(h, 1)


# A function, its tensors, and which operations are left of its graph.
FUSED: dict[str, tuple[Callable[..., Any], tuple[Tensor, ...], list[str]]] = {
    "a fold of a product": (lambda x, w: tilefold.logsumexp((x * w).sigmoid(), 1), (X, W), ["reduce"]),
    "a written NaN": (lambda x: tilefold.sum(torch.where(x > 2, float("nan"), x), 1), (X,), ["reduce"]),
    "a masked sum": (lambda x, m: tilefold.sum(torch.where(m, x, 0.0), 1), (X, KEPT), ["reduce"]),
    "a fold over rows": (lambda x, y: tilefold.sum((x - y).abs(), 0), (X, Y), ["reduce"]),
    "a fold of all": (lambda x, r: tilefold.amax((x + r).exp(), (0, 1), keepdim=True), (X, ROWS), ["reduce"]),
    "of clamped elements": (lambda x: tilefold.sum(x.clamp(-0.5, 0.5), 1, keepdim=True), (X,), ["reduce"]),
    "positions": (lambda x, w: tilefold.argmax(x * w, 1), (X, W), ["reduce"]),
    "truth values": (lambda x: tilefold.any(x > 2.5, 1), (X,), ["reduce"]),
    "a user's monoid": (
        lambda x, w: tilefold.reduce((x.exp(), x * w), DOT, 1), (X, W), ["reduce"],
    ),
    "three folds of two": (
        lambda x, y: (tilefold.sum(x * y, 1), tilefold.sum(x * x, 1, keepdim=True), tilefold.amax(y, 1)), (X, Y),
        ["reduce"],
    ),
    "a cosine of rows": (
        lambda x, y: tilefold.sum(x * y, 1) / (tilefold.sum(x * x, 1).sqrt() * tilefold.sum(y * y, 1).sqrt()), (X, Y),
        ["reduce"],
    ),
    "a mean of what is masked, where there is such": (
        lambda x, m: torch.where(tilefold.any(m, 1), tilefold.sum(torch.where(m, x, 0.0), 1), 0.0), (X, KEPT), ["reduce"],
    ),
    "a loss of all": (lambda x, y: (tilefold.sum((x - y).abs(), (0, 1)) / x.numel()).sqrt() * 3, (X, Y), ["reduce"]),
    "a result and what is made of it": (
        lambda x: (tilefold.sum(x * x, 1, keepdim=True), tilefold.amax(x * x, 1).sqrt() * 2), (X,), ["reduce"],
    ),
    "a fold that two steps take": (lambda x: ((s := tilefold.var(x, 1)).sqrt(), s * 2), (X,), ["reduce", "sqrt", "mul"]),
    "a column of rows' results": (
        lambda x, r: tilefold.logsumexp(x * 2, 1, keepdim=True) * 2 + r, (X, ROWS), ["reduce", "add"],
    ),
    "a norm, scaled": (lambda x: tilefold.vector_norm(x, 2, 1) * 0.5, (X,), ["reduce"]),
    "a softmax of what is masked": (
        lambda x, m: tilefold.softmax(torch.where(m, x * 0.125, -1e4), 1), (X, KEPT), ["reduce_map"],
    ),
    "a softmax, then a gate": (lambda x, y: F.silu(tilefold.softmax(x, 1)) * y, (X, Y), ["reduce_map"]),
    "a gate of its own": (lambda x, y: F.silu(y) * tilefold.softmax(x, 1), (X, Y), ["reduce_map"]),
    "a softcap": (lambda x: tilefold.log_softmax(30 * torch.tanh(x / 30), 1), (X,), ["reduce_map"]),
    "a norm of a GELU": (lambda x, w: layer(F.gelu(x), w), (X, W), ["reduce_map"]),
    "a sum that is kept": (kept_sum, (X, Y, W), ["reduce_map"]),
    "a fold whose elements others need": (scaled_first, (X, W), ["reduce_map"]),
    "a map and a fold": (
        lambda x: (tilefold.softmax(x * 2, 1), tilefold.logsumexp(x * 2, 1), tilefold.argmax(x * 2, 1)), (X,), ["reduce_map"],
    ),
    "a residual behind a norm": (lambda x, y, w: layer(x + y, w) * 0.5 + x, (X, Y, W), ["reduce_map"]),
    "a map of two results": (
        lambda x, y: [
            r * y
            for r in tilefold.reduce_map(
                x, monoids.LOGSUMEXP, lambda v, s: (v - s, v * s), 1, rows=lambda s: s
            )[:2]
        ],
        (X, Y), ["reduce_map"],
    ),
}  # fmt: skip
DOT = tilefold.Monoid(lambda a, b: a + b, 0, lift=lambda x, w: x * w, name="dot")


def listed(made: Any) -> list[Tensor]:
    return list(made) if isinstance(made, list | tuple) else [made]


def near(got: Any, want: Any) -> None:
    for a, b in zip(listed(got), listed(want), strict=True):
        assert a.shape == b.shape
        if not b.dtype.is_floating_point:
            assert torch.equal(a, b)
        else:
            largest = b.double().nan_to_num().abs().max().item()
            torch.testing.assert_close(a.double(), b.double(), rtol=1e-5, atol=2e-6 * largest, equal_nan=True)


def odd_functions(x: Tensor, m: Tensor, w: Tensor) -> list[Tensor]:
    """Powers and logic that take tensors where others take numbers, and floats where others take truth values."""
    twos, ones = torch.full((1,), 2.7, dtype=torch.int64), torch.full((1,), 2, dtype=torch.bool)
    made = [
        x.abs() ** x,
        2.0**x,
        x**m,
        x.logical_not(),
        torch.logical_or(x, m),
        torch.logical_and(x.relu(), m),
        (m + (x > 0)) * x,
        x * twos,
        x * ones,
        torch.ones(70, 1) * w,
        torch.full((70, 24), 2.0) * w,
    ]
    return [*(tilefold.sum(t, 1) for t in made), tilefold.softmax(made[-1], 1)]


def wide(t: Tensor) -> Tensor:
    return t.double() if t.is_floating_point() else t


@pytest.mark.parametrize("name", FUSED)
def test_a_graph_is_one_operation_with_the_same_results(name: str, seen: Seen) -> None:
    function, given, left = FUSED[name]
    made = torch.compile(function, fullgraph=True)(*given)
    assert seen.graphs == [left]
    plain = function(*given)
    assert [r.dtype for r in listed(made)] == [r.dtype for r in listed(plain)]
    near(made, function(*map(wide, given)))


@pytest.mark.parametrize(
    "name", ["a fold of a product", "a softmax, then a gate", "a sum that is kept", "a map and a fold"]
)
def test_so_are_gradients_and_any_number_of_rows(name: str, seen: Seen) -> None:
    function, given, _ = FUSED[name]
    compiled = torch.compile(function, fullgraph=True, dynamic=True)
    for rows in (70, 33, 50):
        some = [t[:rows] if t.ndim == 2 else t for t in given]

        def slopes(call: Callable[..., Any], tensors: list[Tensor]) -> list[Tensor]:
            asked = [t.clone().requires_grad_() for t in tensors]
            made = [r for r in listed(call(*asked)) if r.requires_grad]
            return [*made, *torch.autograd.grad([r.square().sum() for r in made], asked)]

        near(slopes(compiled, some), slopes(function, [wide(t) for t in some]))


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_folds_with_results_of_several_dtypes_are_one(dtype: torch.dtype, seen: Seen) -> None:
    def call(x: Tensor, m: Tensor) -> tuple[Tensor, ...]:
        total, most, count = (
            tilefold.sum(x * m, 1),
            tilefold.amax(x.float() * m, 1),
            tilefold.sum(m.float(), 1),
        )
        return total, most, total / count

    x = torch.randn(70, 24, generator=SEEDED).to(dtype)
    made, exact = torch.compile(call, fullgraph=True)(x, KEPT), call(wide(x), KEPT)
    assert seen.graphs[0] == ["reduce", "convert_element_type"]
    assert [r.dtype for r in made] == [dtype, torch.float32, torch.float32]
    for got, want in zip(made, exact, strict=True):
        eps = torch.finfo(got.dtype).eps
        torch.testing.assert_close(got.double(), want.double(), rtol=eps, atol=eps * 1e-3, equal_nan=True)


def test_halves_are_not_rounded_in_between(seen: Seen) -> None:
    x = (torch.randn(64, 512, generator=SEEDED) * 3).bfloat16()
    w = torch.randn(512, generator=SEEDED).bfloat16()

    def call(x: Tensor, w: Tensor) -> Tensor:
        return tilefold.sum((x * w).sigmoid(), 1)

    made, exact = torch.compile(call, fullgraph=True)(x, w), call(x.double(), w.double())
    assert made.dtype == torch.bfloat16
    assert (made - exact).abs().max() <= (call(x, w) - exact).abs().max()
    torch.testing.assert_close(made.double(), exact, rtol=2**-8, atol=0)


@pytest.mark.parametrize("fused", [False, True], ids=["left", "fused"])
def test_extremes_of_elements_that_are_rounded_elsewhere(fused: bool, seen: Seen) -> None:
    """A graph stores halves that it did not round where it folded them: what a backward compares may be others."""
    fusion.switch(fused, ("cpu",))
    x, w = (torch.randn(*shape, generator=SEEDED).bfloat16() for shape in ((70, 24), (24,)))

    def call(x: Tensor, w: Tensor) -> tuple[Tensor, ...]:
        y = x.tanh()
        least, _ = tilefold.aminmax(y + w, dim=0)
        return y, tilefold.amax(y + w, 0), least

    asked = [t.requires_grad_() for t in (x, w)]
    made = torch.compile(call, fullgraph=True)(*asked)
    of_x, of_w = torch.autograd.grad([t.sum() for t in made[1:]], asked)
    assert of_x.isfinite().all()
    # Shares of each extreme add up to 1.
    torch.testing.assert_close(of_w, torch.full_like(w, 2.0), rtol=2**-6, atol=0)


def test_lengths_that_elements_decide(seen: Seen) -> None:
    def call(x: Tensor, kept: Tensor) -> tuple[Tensor, Tensor]:
        rows = x[kept]
        return tilefold.sum((rows * 2).sigmoid(), 0), tilefold.softmax(rows * 3, 1) * 2

    kept = X[:, 0] > 0
    with torch._dynamo.config.patch(capture_dynamic_output_shape_ops=True):
        made = torch.compile(call, fullgraph=True)(X, kept)
    assert "reduce_map" in seen.graphs[0]
    near(made, call(wide(X), kept))


def mixed(x: Tensor, n: Tensor) -> Tensor:
    return tilefold.sum(x * n, 1)


def late(x: Tensor, y: Tensor) -> Tensor:
    """A map whose gate comes of its own results."""
    p = tilefold.softmax(x, 1)
    return p * tilefold.sum(p * y, 1, keepdim=True)


def long(x: Tensor) -> tuple[Tensor, Tensor]:
    h = x + x.abs()
    return h, tilefold.sum(h, 0)


UNTOUCHED: dict[str, tuple[Callable[..., Any], tuple[Tensor, ...]]] = {
    "whole numbers": (mixed, (X, torch.arange(24))),
    "what comes of itself": (late, (X, Y)),
    "columns": (long, (X,)),
    "odd functions": (odd_functions, (X, KEPT, W)),
    "another dtype": (lambda x: tilefold.sum(x.exp(), 1, dtype=torch.float64), (X,)),
    "truth values as float64": (lambda m: tilefold.sum(m.double() * 2**24 + 1 - 2**24, 1), (KEPT,)),
    "a state before": (lambda x: tilefold.reduce(x * 2, monoids.SUM, 1, init=1.5), (X,)),
    "float64 beside float32": (lambda x, y: tilefold.sum(x * y, 1), (X, Y.double())),
}


@pytest.mark.parametrize("name", UNTOUCHED)
def test_what_cannot_be_fused_has_the_same_results(name: str, seen: Seen) -> None:
    function, given = UNTOUCHED[name]
    near(torch.compile(function, fullgraph=True)(*given), function(*given))


@pytest.mark.parametrize("seed", range(12))
def test_drawn_graphs(seed: int, seen: Seen) -> None:
    """Chains of drawn functions around drawn folds and maps."""
    drawn = torch.Generator().manual_seed(seed)

    def pick(*choices: Any) -> Any:
        return choices[int(torch.randint(len(choices), (), generator=drawn))]

    steps = [
        pick(
            "tanh",
            "mul",
            "add",
            "sigmoid",
            "where",
            "clamp",
            "sub",
            "keep",
            "softmax",
            "norm",
            "both",
            "ratio",
        )
        for _ in range(7)
    ]
    last = [pick("sum", "amax", "logsumexp", "softmax", "var") for _ in range(2)]

    def call(x: Tensor, y: Tensor, w: Tensor) -> list[Tensor]:
        kept, other = [], y
        for step in steps:
            match step:
                case "tanh" | "sigmoid":
                    x = getattr(torch, step)(x)
                case "mul":
                    x = x * w
                case "add" | "sub":
                    x = getattr(torch, step)(x, other)
                case "where":
                    x = torch.where(other > 0.2, x, 0.5)
                case "clamp":
                    x = x.clamp(max=1.5)
                case "keep":
                    kept.append(x * 0.5)
                case "softmax":
                    x, other = tilefold.softmax(x, 1), x
                case "norm":
                    x = layer(x, w)
                case "ratio":
                    kept.append(
                        (tilefold.sum(x * other, 1) + 0.5)
                        / (tilefold.amax(x, 1, keepdim=True).exp().squeeze(1) + 1)
                    )
                case _:
                    kept.append(tilefold.logsumexp(x, 1))
                    x = tilefold.log_softmax(x, 1) + other
        return [
            *kept,
            *(getattr(tilefold, name)(t, dim=1) for name, t in zip(last, (x, x + other), strict=True)),
        ]

    made = torch.compile(call, fullgraph=True)(X, Y, W)
    near(made, call(*map(wide, (X, Y, W))))


def test_a_map_of_which_values_of_rows_alone_are_needed(seen: Seen) -> None:
    def call(x: Tensor, y: Tensor) -> Tensor:
        return tilefold.reduce_map(x * y, monoids.LOGSUMEXP, lambda v, s: v - s, 1, rows=lambda s: s)[
            1
        ] + tilefold.sum(x * y, 1, keepdim=True)

    near(torch.compile(call, fullgraph=True)(X, Y), call(X.double(), Y.double()))
