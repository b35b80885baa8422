"""Gradients on a device: beside torch in float64, with the same bits every time, compiled, and in a CUDA graph."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Sequence
from typing import Any

import pytest
import torch

import tilefold as tf

pytestmark = pytest.mark.gpu
DEVICE = "cuda"
Tensor = torch.Tensor
Function = Callable[..., Tensor]
F = torch.nn.functional
SHAPES = [(64, 1000), (777, 501), (16, 50257), (4096, 96), (5, 300_000), (300, 4104), (1, 7)]


def affine(a: Tensor, b: Tensor) -> Tensor:
    """h_t = a_t h_t-1 + b_t, one step after the other."""
    h, made = torch.zeros_like(b[:, 0]), []
    for t in range(a.shape[1]):
        h = a[:, t] * h + b[:, t]
        made.append(h)
    return torch.stack(made, 1)


def segments(n: int) -> Tensor:
    return torch.tensor([0, n // 3, n // 3, n // 2, n], device=DEVICE)


def of_segments(x: Tensor) -> Tensor:
    parts = torch.tensor_split(x, segments(x.shape[0]).cpu()[1:-1])
    return torch.stack([p.logsumexp(0) for p in parts if p.shape[0]])


def folded_segments(x: Tensor) -> Tensor:
    made = tf.segment_reduce(x, tf.monoids.LOGSUMEXP, segments(x.shape[0]))
    return made[torch.isfinite(made[:, 0])]


# ours, torch's, and how many tensors of the whole shape and of one row they take
CALLS: dict[str, tuple[Function, Function, int, int]] = {
    "sum": (lambda x: tf.sum(x, 1), lambda x: x.sum(1), 1, 0),
    "logsumexp": (lambda x: tf.logsumexp(x, 1), lambda x: x.logsumexp(1), 1, 0),
    "logsumexp, columns": (lambda x: tf.logsumexp(x, 0), lambda x: x.logsumexp(0), 1, 0),
    "logsumexp of all": (lambda x: tf.logsumexp(x, (0, 1)), lambda x: x.logsumexp((0, 1)), 1, 0),
    "var": (lambda x: tf.var(x, 1, correction=0), lambda x: x.var(1, correction=0), 1, 0),
    "norm": (lambda x: tf.vector_norm(x, 2, 1), lambda x: torch.linalg.vector_norm(x, 2, 1), 1, 0),
    "softmax": (lambda x: tf.softmax(x, 1), lambda x: x.softmax(1), 1, 0),
    "softmax, columns": (lambda x: tf.softmax(x, 0), lambda x: x.softmax(0), 1, 0),
    "log_softmax": (lambda x: tf.log_softmax(x, 1), lambda x: x.log_softmax(1), 1, 0),
    "layer_norm": (
        lambda x, w, b: tf.layer_norm(x, x.shape[1:], w, b), lambda x, w, b: F.layer_norm(x, x.shape[1:], w, b), 1, 2
    ),
    "rms_norm": (
        lambda x, w: tf.rms_norm(x, x.shape[1:], w, 1e-5), lambda x, w: F.rms_norm(x, x.shape[1:], w, 1e-5), 1, 1
    ),
    "cumsum": (lambda x: tf.cumsum(x, 1), lambda x: x.cumsum(1), 1, 0),
    "segments": (folded_segments, of_segments, 1, 0),
    "topk": (lambda x: tf.topk(x, 5, 1).values, lambda x: x.topk(5, 1).values, 1, 0),
    "transpose": (lambda x: tf.transpose(x, 0, 1) ** 2, lambda x: x.T**2, 1, 0),
    "product": (
        lambda x, b: tf.matmul(x, x[:32].T, bias=b[: len(x[:32])], epilogue="gelu"),
        lambda x, b: F.gelu(x @ x[:32].T + b[: len(x[:32])]), 1, 1,
    ),
}  # fmt: skip


def drawn(shape: tuple[int, int], whole: int, rows: int, dtype: torch.dtype) -> list[Tensor]:
    generator = torch.Generator().manual_seed(sum(shape))
    shapes = [shape] * whole + [shape[1:]] * rows
    return [torch.randn(s, generator=generator).to(dtype).to(DEVICE).requires_grad_() for s in shapes]


@functools.cache
def cotangent(shape: torch.Size, given: torch.dtype, dtype: torch.dtype) -> Tensor:
    """Drawn once: a graph that is captured copies nothing from the host."""
    generator = torch.Generator().manual_seed(math.prod(shape))
    return torch.randn(shape, generator=generator).to(given).to(DEVICE, dtype)


def gradients(function: Function, given: Sequence[Tensor]) -> list[Tensor]:
    y = function(*given)
    return list(torch.autograd.grad(y, given, cotangent(y.shape, given[0].dtype, y.dtype)))


def assert_near(got: Sequence[Tensor], want: Sequence[Tensor], dtype: torch.dtype) -> None:
    bound = 1e-5 if dtype == torch.float32 else 1.6e-2
    for x, y in zip(got, want, strict=True):
        assert (x.shape, x.dtype) == (y.shape, dtype)
        assert torch.isfinite(x).all()
        assert (x.double() - y).norm() <= bound * y.norm() + 1e-30


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("shape", SHAPES, ids=str)
@pytest.mark.parametrize("name", CALLS)
def test_beside_torch(name: str, shape: tuple[int, int], dtype: torch.dtype) -> None:
    ours, torchs, whole, rows = CALLS[name]
    if name == "topk" and dtype != torch.float32:
        pytest.skip("torch takes ties in another order")
    given = drawn(shape, whole, rows, dtype)
    got = gradients(ours, given)
    exact = [t.detach().double().requires_grad_() for t in given]
    assert_near(got, gradients(torchs, exact), dtype)
    assert all(map(torch.equal, gradients(ours, given), got)), "other bits the second time"


@pytest.mark.parametrize("reverse", [False, True])
def test_the_affine_scan(reverse: bool) -> None:
    a, b = (t.detach().requires_grad_() for t in drawn((33, 700), 2, 0, torch.float32))
    flipped = (lambda t: t.flip(1)) if reverse else (lambda t: t)

    def ours(a: Tensor, b: Tensor) -> Tensor:
        return tf.scan([a.sigmoid(), b], tf.monoids.AFFINE, 1, reverse=reverse)[1]  # type: ignore[no-any-return]

    def steps(a: Tensor, b: Tensor) -> Tensor:
        return flipped(affine(flipped(a.sigmoid()), flipped(b)))

    exact = [t.detach().double().requires_grad_() for t in (a, b)]
    assert_near(gradients(ours, [a, b]), gradients(steps, exact), torch.float32)


@pytest.mark.parametrize(
    "name", ["logsumexp", "softmax", "layer_norm", "rms_norm", "cumsum", "topk", "product"]
)
def test_a_graph_replays_forward_and_backward(name: str) -> None:
    ours, _, whole, rows = CALLS[name]
    given = drawn((128, 1000), whole, rows, torch.float32)
    stream = torch.cuda.Stream()
    with torch.cuda.stream(stream):
        gradients(ours, given)
    torch.cuda.current_stream().wait_stream(stream)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        got = gradients(ours, given)
    with torch.no_grad():
        for t in given:
            t.mul_(0.5)
    graph.replay()
    assert all(map(torch.equal, got, gradients(ours, given)))


@pytest.mark.parametrize("dynamic", [False, True])
@pytest.mark.parametrize("backend", ["aot_eager", "inductor"])
@pytest.mark.parametrize("name", ["logsumexp", "softmax", "layer_norm", "segments", "topk", "product"])
def test_compiled(name: str, backend: str, dynamic: bool) -> None:
    torch._dynamo.reset()
    ours, _, whole, rows = CALLS[name]
    given = drawn((64, 1000), whole, rows, torch.float32)
    compiled = torch.compile(ours, fullgraph=name != "segments", backend=backend, dynamic=dynamic)
    got, want = gradients(compiled, given), gradients(ours, given)
    if backend == "aot_eager":
        assert all(map(torch.equal, got, want))
    assert_near(got, [t.double() for t in want], torch.float32)


# ------------------------------------------------------------------------------------------------- second derivatives


def of_squares(f: Any, x: Tensor, weight: Tensor | None = None) -> Tensor:
    return f.rms_norm(x, x.shape[1:], weight, 1e-5)  # type: ignore[no-any-return]  # one result


def lost(reduction: str, f: Any, x: Tensor, target: Tensor, weight: Tensor | None = None) -> Tensor:
    return f.cross_entropy(x, target, weight, reduction=reduction)  # type: ignore[no-any-return]  # one result


# Functions of ours or of torch's, and how many parameters of one row they take; a loss also takes classes.
TWICE: dict[str, tuple[Function, int]] = {
    "logsumexp": (lambda f, x: f.logsumexp(x, 1), 0),
    "logsumexp, columns": (lambda f, x: f.logsumexp(x, 0), 0),
    "var": (lambda f, x: f.var(x, 1, correction=0), 0),
    "softmax": (lambda f, x: f.softmax(x, 1), 0),
    "softmax, columns": (lambda f, x: f.softmax(x, 0), 0),
    "rms_norm": (of_squares, 0),
    "rms_norm, weight": (of_squares, 1),
    "layer_norm": (lambda f, x: f.layer_norm(x, x.shape[1:]), 0),
    "layer_norm, weight": (lambda f, x, w: f.layer_norm(x, x.shape[1:], w), 1),
    "layer_norm, weight and bias": (lambda f, x, w, b: f.layer_norm(x, x.shape[1:], w, b), 2),
    "cross_entropy": (functools.partial(lost, "mean"), 0),
    "cross_entropy, none": (functools.partial(lost, "none"), 0),
    "cross_entropy, weight": (functools.partial(lost, "mean"), 1),
}


class Torchs:
    """torch's functions by the names that ours have."""

    logsumexp, var = torch.logsumexp, torch.var
    softmax, rms_norm, layer_norm, cross_entropy = F.softmax, F.rms_norm, F.layer_norm, F.cross_entropy


def given_to(name: str, shape: tuple[int, int]) -> list[Tensor]:
    """A call's tensors: elements, classes of which the first is not counted, what is given for a row."""
    x, *of_a_row = drawn(shape, 1, TWICE[name][1], torch.float32)
    if not name.startswith("cross_entropy"):
        return [x, *of_a_row]
    classes = torch.randint(shape[1], shape[:1], generator=torch.Generator().manual_seed(shape[0]))
    classes[0] = -100
    return [x, classes.to(DEVICE), *(w.detach().sigmoid() for w in of_a_row)]


def exactly(given: Sequence[Tensor]) -> list[Tensor]:
    """On the CPU, in float64."""
    made = [t.detach().cpu() for t in given]
    return [
        m.double().requires_grad_(t.requires_grad) if m.is_floating_point() else m
        for m, t in zip(made, given, strict=True)
    ]


def twice(function: Function, given: Sequence[Tensor]) -> list[Tensor]:
    """Gradients, and those of a weighted sum of them: of the tensors and of the cotangent."""
    y, moved = function(*given), [t for t in given if t.requires_grad]
    g = cotangent(y.shape, torch.float32, torch.float32).to(y, copy=True).requires_grad_()
    first = torch.autograd.grad(y, moved, g, create_graph=True)
    along = [cotangent(t.shape, torch.float32, torch.float32).to(t) for t in first]
    second = torch.autograd.grad(first, [*moved, g], along, materialize_grads=True)
    return [t.detach() for t in (*first, *second)]


def assert_twice(got: Sequence[Tensor], want: Sequence[Tensor]) -> None:
    """Within float32's rounding of a gradient, or, where terms cancel, of the largest of them."""
    largest = max(t.norm() for t in want)
    for x, y in zip(got, want, strict=True):
        assert (x.shape, x.dtype) == (y.shape, torch.float32)
        assert (x.cpu().double() - y).norm() <= 1e-5 * y.norm() + 1e-7 * largest


@functools.cache
def known(name: str, shape: tuple[int, int]) -> list[Tensor]:
    return twice(functools.partial(TWICE[name][0], Torchs), exactly(given_to(name, shape)))


@pytest.mark.parametrize(
    "shape", [(64, 1000), (777, 501), (4096, 97), (5, 100_003), (300, 4104), (3, 7)], ids=str
)
@pytest.mark.parametrize("name", TWICE)
def test_second_derivatives(name: str, shape: tuple[int, int]) -> None:
    """Of a first call, and of repeated ones, whose layouts had a backward that nobody recorded before."""
    ours, want, given = functools.partial(TWICE[name][0], tf), known(name, shape), given_to(name, shape)
    assert_twice(twice(ours, given), want)
    y, moved = ours(*given), [t for t in given if t.requires_grad]
    plain = torch.autograd.grad(y, moved, cotangent(y.shape, torch.float32, torch.float32))
    assert_twice(plain, want[: len(moved)])
    repeated = twice(ours, given_to(name, shape))
    assert_twice(repeated, want)
    assert all(map(torch.equal, twice(ours, given), repeated)), "other bits the second time"


@pytest.mark.parametrize("name", TWICE)
def test_second_derivatives_of_other_elements(name: str) -> None:
    """A repeated call reads what it is given, and nothing that the first one had."""
    function = TWICE[name][0]
    for factor in (1.0, 0.25, -2.0):
        x, *others = given_to(name, (65, 513))
        given = [(x.detach() * factor).requires_grad_(), *others]
        want = twice(functools.partial(function, Torchs), exactly(given))
        assert_twice(twice(functools.partial(function, tf), given), want)


@pytest.mark.parametrize("dynamic", [False, True])
@pytest.mark.parametrize("name", TWICE)
def test_second_derivatives_of_a_compiled_forward(name: str, dynamic: bool) -> None:
    """Of a graph that runs as it was recorded: torch differentiates none twice that AOTAutograd made."""
    torch._dynamo.reset()
    function = TWICE[name][0]
    compiled = torch.compile(
        lambda *given: function(tf, *given), fullgraph=True, backend="eager", dynamic=dynamic
    )
    for _ in range(3):
        assert_twice(twice(compiled, given_to(name, (64, 1000))), known(name, (64, 1000)))


@pytest.mark.parametrize("name", ["logsumexp", "softmax", "layer_norm", "rms_norm"])
def test_a_row_s_gradient_follows_from_its_row(name: str) -> None:
    """With "batch_invariant" the rows beside it change no bit of an element's gradient."""
    own: dict[str, Any] = {
        "logsumexp": lambda x: tf.reduce(x, tf.monoids.LOGSUMEXP, 1, guarantee="batch_invariant"),
        "softmax": lambda x: tf.softmax(x, 1, guarantee="batch_invariant"),
        "layer_norm": lambda x: tf.layer_norm(x, x.shape[1:], guarantee="batch_invariant"),
        "rms_norm": lambda x: tf.rms_norm(x, x.shape[1:], guarantee="batch_invariant"),
    }
    (x,) = drawn((300, 5000), 1, 0, torch.bfloat16)
    y = own[name](x)
    g = torch.linspace(-1, 1, y.numel(), device=DEVICE).view(y.shape).to(y.dtype)
    (whole,) = torch.autograd.grad(y, x, g)
    part = x.detach()[7:9].clone().requires_grad_()
    (few,) = torch.autograd.grad(own[name](part), part, g[7:9])
    assert torch.equal(few, whole[7:9])
