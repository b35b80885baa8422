"""What torch sees of folds, scans and maps: one operation each, in compiled, exported, recorded and mapped calls."""

from __future__ import annotations

import functools
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch._dynamo.testing import CompileCounterWithBackend
from torch._dynamo.utils import counters
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.fx.experimental.proxy_tensor import make_fx
from torch.utils._python_dispatch import TorchDispatchMode

import tilefold
from tilefold import Monoid, monoids
from tilefold.api import recorded
from tilefold.runtime.overrides import listed

Tensor = torch.Tensor
SEEDED = torch.Generator().manual_seed(5)
X, WEIGHT = torch.randn(4, 33, generator=SEEDED), torch.randn(33, generator=SEEDED)
DOT = Monoid(lambda a, b: a + b, 0, lift=lambda x, y: x * y, name="dot")
DOUBLED = Monoid(lambda a, b: a + b, 0, lift=lambda x: 2 * x, name="doubled")


def beside(x: Tensor) -> Tensor:
    return WEIGHT.to(x.device)


CALLS: dict[str, Callable[[Tensor], Any]] = {
    "reduce": lambda x: tilefold.reduce(x, monoids.LOGSUMEXP, 1, True),
    "reduce of a user": lambda x: tilefold.reduce(x, DOUBLED, -1),
    "reduce of two": lambda x: tilefold.reduce((x, x[0]), DOT, 1),
    "reduce from a state": lambda x: tilefold.reduce(
        x, monoids.LOGSUMEXP, 1, init=(x[:, 0], x[:, 0] * x[:, 0]), return_state=True
    ),
    "reduce from numbers": lambda x: tilefold.reduce(x, monoids.LOGSUMEXP, 0, True, init=(0.1, 2)),
    "reduce to a state": lambda x: tilefold.reduce(x, monoids.LAST, 1, return_state=True),
    "named state": lambda x: tilefold.reduce(x, monoids.WELFORD).mean,
    "named results": lambda x: tilefold.reduce(x, monoids.MINMAX, 0).max,
    "no dims": lambda x: tilefold.reduce(x, monoids.SUM, ()),
    "dtype": lambda x: tilefold.reduce(x, monoids.SUM, 1, dtype=torch.float64),
    "batch invariant": lambda x: tilefold.reduce(x, monoids.SUM, 1, guarantee="batch_invariant"),
    "scan": lambda x: tilefold.scan((torch.sigmoid(x), x), monoids.AFFINE, 1)[1],
    "scan from a state": lambda x: tilefold.scan(x, monoids.SUM, 1, init=x[:, 0], return_state=True),
    "scan from a number": lambda x: tilefold.scan(x, monoids.SUM, 0, init=0.1, exclusive=True, reverse=True),
    "reduce_map": lambda x: tilefold.reduce_map(x, monoids.SUM, lambda v, total, e: v / total + e, 1, extras=beside(x)),
    "layer_norm": lambda x: tilefold.layer_norm(x, (33,), beside(x), beside(x)),
    "layer_norm of a sum": lambda x: tilefold.layer_norm(x, (33,), residual=x),
    "group_norm": lambda x: tilefold.group_norm(x[:, :32], 4),
    "vector_norm": lambda x: tilefold.vector_norm(x, 3, 1),
    "amax": lambda x: tilefold.amax(x, (0, 1)),
    "max": lambda x: tilefold.max(x, 1).indices,
    **{
        name: functools.partial(lambda name, x: getattr(tilefold, name)(x, dim=1), name)
        for name in (
            "sum", "mean", "prod", "logsumexp", "softmax", "log_softmax", "normalize", "var", "std_mean", "argmin", "all",
            "count_nonzero", "cumsum", "cummax", "logcumsumexp",
        )
    },
    "rms_norm": lambda x: tilefold.rms_norm(x, (33,), beside(x)),
}  # fmt: skip
FEW = ("reduce of a user", "scan", "softmax", "var", "layer_norm")


def assert_equal(got: Any, want: Any) -> None:
    """The same results, to the bit."""
    assert len(listed(got)) == len(listed(want))
    assert all(map(torch.equal, *map(flat, (got, want))))


def flat(results: Any) -> list[Tensor]:
    return [t for r in listed(results) for t in (flat(r) if isinstance(r, list | tuple) else [r])]


@pytest.mark.parametrize("name", CALLS)
def test_a_compiled_call_is_whole_and_has_the_bits_of_an_eager_one(name: str) -> None:
    torch._dynamo.reset()
    function = CALLS[name]
    compiled = torch.compile(lambda x: function(x + 1), fullgraph=True, backend="eager")
    assert_equal(compiled(X), function(X + 1))


@pytest.mark.parametrize("call", [tilefold.cumsum, lambda x, dim: tilefold.scan(x, monoids.LOGSUMEXP, dim)])
def test_a_scan_of_one_number_is_whole(call: Any) -> None:
    torch._dynamo.reset()
    x = torch.tensor(2.5)
    assert_equal(
        torch.compile(lambda x: call(x + 1, 0), fullgraph=True, backend="aot_eager")(x), call(x + 1, 0)
    )


@pytest.mark.parametrize("name", CALLS)
def test_a_plain_call_is_no_operation_of_torchs(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(recorded, "OPERATIONS", None)
    CALLS[name](X)
    CALLS[name](X)  # as a known call
    with torch.no_grad(), torch.inference_mode():
        CALLS[name](X)
    x = X.clone().requires_grad_()  # and where a gradient is asked, forwards and backwards
    torch.autograd.backward([r.sum() for r in flat(CALLS[name](x)) if r.requires_grad])


@pytest.mark.parametrize("name", FEW)
def test_one_graph_serves_many_shapes(name: str) -> None:
    torch._dynamo.reset()
    before = counters["stats"]["unique_graphs"]
    compiled = torch.compile(CALLS[name], fullgraph=True, dynamic=True, backend="aot_eager")
    for rows in (4, 7, 9):
        x = torch.randn(rows, 33, generator=SEEDED)
        assert_equal(compiled(x), CALLS[name](x))
    assert counters["stats"]["unique_graphs"] - before == 1


@pytest.mark.parametrize("name", ["sum", "scan", "softmax", "var"])
def test_one_graph_serves_many_lengths(name: str) -> None:
    torch._dynamo.reset()
    before = counters["stats"]["unique_graphs"]
    compiled = torch.compile(CALLS[name], fullgraph=True, dynamic=True, backend="eager")
    for length in (33, 5, 700):
        x = torch.randn(3, length, generator=SEEDED)
        assert_equal(compiled(x), CALLS[name](x))
    assert counters["stats"]["unique_graphs"] - before == 1


def test_equal_monoids_made_anew_are_one_graph_and_others_are_not() -> None:
    torch._dynamo.reset()
    before = counters["stats"]["unique_graphs"]
    compiled = torch.compile(lambda x, m: tilefold.reduce(x, m, 1), fullgraph=True, backend="eager")
    for _ in range(3):
        assert_equal(compiled(X, Monoid(lambda a, b: a + b, 0.0, name="mine")), tilefold.sum(X, 1))
    assert counters["stats"]["unique_graphs"] - before == 1
    most = Monoid(tilefold.math.maximum, -float("inf"), name="most")
    assert_equal(compiled(X, most), tilefold.amax(X, 1))
    assert_equal(compiled(X, Monoid(lambda a, b: a + b, 0.0, name="mine")), tilefold.sum(X, 1))


changed = monoids.SUM


def test_a_monoid_that_is_replaced_is_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    torch._dynamo.reset()
    compiled = torch.compile(lambda x: tilefold.reduce(x, changed, 1), fullgraph=True, backend="eager")
    for monoid in (monoids.SUM, monoids.MAX, monoids.SUM):
        monkeypatch.setitem(globals(), "changed", monoid)
        assert_equal(compiled(X), tilefold.reduce(X, monoid, 1))


def test_eps_is_guarded() -> None:
    torch._dynamo.reset()
    compiled = torch.compile(
        lambda x, eps: tilefold.layer_norm(x, (33,), eps=eps), fullgraph=True, dynamic=True, backend="eager"
    )
    for eps in (1e-5, 0.5, 0.25):
        assert_equal(compiled(X, eps), tilefold.layer_norm(X, (33,), eps=eps))


@pytest.mark.parametrize("mode", ["real", "fake", "symbolic"])
@pytest.mark.parametrize("name", FEW)
def test_a_recorded_call_is_one_operation(name: str, mode: str) -> None:
    function = (lambda x: tilefold.layer_norm(x, (33,), x[0])) if name == "layer_norm" else CALLS[name]
    graph = make_fx(function, tracing_mode=mode)(X)
    ours = [n for n in graph.graph.nodes if n.op == "call_function" and "tilefold" in str(n.target)]
    assert len(ours) == 1
    assert_equal(graph(X - 1), function(X - 1))


def test_one_graph_of_a_product_and_its_gradient_serves_all_lengths() -> None:
    graphs = CompileCounterWithBackend("aot_eager")
    w = torch.randn(6, 5, requires_grad=True)
    compiled = torch.compile(lambda x: tilefold.matmul(x, w), fullgraph=True, dynamic=True, backend=graphs)
    for shape in ((3, 4, 6), (7, 8, 6), (9, 5, 6)):
        x, g = torch.randn(shape, requires_grad=True), torch.randn(*shape[:2], 5)
        got, want = (torch.autograd.grad(y, (x, w), g) for y in (compiled(x), x @ w))
        torch.testing.assert_close(got, want)
    assert graphs.frame_count == 1


class Model(torch.nn.Module):
    """One of each kind, and a monoid of a user."""

    def forward(self, x: Tensor) -> Tensor:
        h = tilefold.scan((torch.sigmoid(x), x), monoids.AFFINE, 1)[1]
        odd = tilefold.reduce(x, DOUBLED, 1, True)
        return tilefold.softmax(x, 1) * h + odd + tilefold.rms_norm(x, (33,))


@pytest.mark.parametrize("strict", [True, False])
def test_an_exported_program_needs_no_more_than_the_import(strict: bool, tmp_path: Path) -> None:
    rows = torch.export.Dim("rows", min=2, max=64)
    program = torch.export.export(Model(), (X,), dynamic_shapes=({0: rows},), strict=strict)
    torch.export.save(program, tmp_path / "model.pt2")
    torch.save(X[:3], tmp_path / "x.pt")
    code = f"""
import tilefold
import torch
x = torch.load({str(tmp_path / "x.pt")!r})
torch.save(torch.export.load({str(tmp_path / "model.pt2")!r}).module()(x), {str(tmp_path / "y.pt")!r})
"""
    subprocess.run([sys.executable, "-W", "ignore", "-c", code], check=True, capture_output=True)
    assert_equal(torch.load(tmp_path / "y.pt"), Model()(X[:3]))


@pytest.mark.parametrize("dim", [0, 1])
def test_a_variance_of_any_lengths_is_exported(dim: int) -> None:
    class Spread(torch.nn.Module):
        def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
            return tilefold.var_mean(x, 1, correction=5)

    x = torch.randn(9, 9, generator=SEEDED)
    lengths = {dim: torch.export.Dim("length", min=2, max=4096)}
    program = torch.export.export(Spread(), (x,), dynamic_shapes=(lengths,))
    assert_equal(
        program.module()(x.narrow(dim, 0, 7)), tilefold.var_mean(x.narrow(dim, 0, 7), 1, correction=5)
    )


class Lost(torch.nn.Module):
    """The last layer of a language model and its loss."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = torch.nn.Parameter(X[:5].clone())

    def forward(self, x: Tensor) -> Tensor:
        target = torch.arange(len(x)) % 5
        return tilefold.linear_cross_entropy(x, self.weight, target, label_smoothing=0.1)


def test_an_exported_loss_is_differentiated_in_a_process_that_made_none(tmp_path: Path) -> None:
    model, saved, made = Lost(), tmp_path / "model.pt2", tmp_path / "grad.pt"
    torch.export.save(torch.export.export(model, (X,)), saved)
    torch.save(X, tmp_path / "x.pt")
    code = f"""
import tilefold
import torch
model = torch.export.load({str(saved)!r}).module()
model(torch.load({str(tmp_path / "x.pt")!r})).backward()
torch.save(model.weight.grad, {str(made)!r})
"""
    subprocess.run([sys.executable, "-W", "ignore", "-c", code], check=True, capture_output=True)
    model(X).backward()
    torch.testing.assert_close(torch.load(made), model.weight.grad)


@pytest.mark.parametrize("dim", [0, 2])
@pytest.mark.parametrize(
    "name",
    [
        *FEW,
        "group_norm",
        "reduce from a state",
        "reduce from numbers",
        "scan from a state",
        "reduce_map",
        "argmin",
        "std_mean",
    ],
)
def test_a_mapped_call_is_that_of_each(name: str, dim: int) -> None:
    """A norm of groups is torch's own in an eager call, and counts dims from the first."""
    each = torch.stack([X, 2 * X, X - 3])
    got = torch.vmap(CALLS[name], in_dims=dim)(each.movedim(0, dim))
    want = [flat(CALLS[name](x)) for x in each]
    for mine, others in zip(flat(got), zip(*want, strict=True), strict=True):
        torch.testing.assert_close(mine, torch.stack(others), rtol=1e-5, atol=1e-6)


def test_tensors_that_are_not_mapped_stand_beside_those_that_are() -> None:
    def affine(a: Tensor, b: Tensor) -> Tensor:
        h: Tensor = tilefold.scan([a, b], monoids.AFFINE, 1, init=(1.0, b[:, 0]))[1]
        return h

    got = torch.vmap(affine, in_dims=(2, None))(torch.stack([X, 0.5 * X], 2), X)
    assert_equal(got, torch.stack([affine(X, X), affine(0.5 * X, X)]))


DIFFERENTIATED = (
    "reduce", "reduce of a user", "reduce from a state", "scan", "scan from a state", "softmax", "var", "layer_norm", "amax",
)  # fmt: skip


def gradient_of(function: Callable[[Tensor], Any], x: Tensor) -> Tensor:
    x = x.detach().requires_grad_()
    (gradient,) = torch.autograd.grad([r.sin().sum() for r in flat(function(x)) if r.requires_grad], x)
    return gradient


@pytest.mark.parametrize("name", DIFFERENTIATED)
@pytest.mark.parametrize("backend", ["eager", "aot_eager"])
@pytest.mark.parametrize("dynamic", [False, True])
def test_a_compiled_gradient_has_the_bits_of_an_eager_one(name: str, backend: str, dynamic: bool) -> None:
    torch._dynamo.reset()
    compiled = torch.compile(CALLS[name], fullgraph=True, backend=backend, dynamic=dynamic)
    assert torch.equal(gradient_of(compiled, X), gradient_of(CALLS[name], X))


@pytest.mark.parametrize("name", DIFFERENTIATED)
@pytest.mark.filterwarnings(
    "ignore:.*torch.jit.script.*:DeprecationWarning"
)  # torch's own, at its import of functorch
def test_transforms_give_the_gradient(name: str) -> None:
    """Of nested transforms, too, and of each row of a batch."""

    def loss(x: Tensor) -> Tensor:
        return torch.stack([r.sin().sum() for r in flat(CALLS[name](x)) if r.is_floating_point()]).sum()

    want = gradient_of(CALLS[name], X)
    torch.testing.assert_close(torch.func.grad(loss)(X), want, rtol=1e-5, atol=1e-6)
    each = torch.vmap(torch.func.grad(loss))(torch.stack([X, 2 * X]))
    torch.testing.assert_close(each[0], want, rtol=1e-5, atol=1e-5)
    square = X[:, :33].double()
    by_hand = square.clone().requires_grad_()
    (first,) = torch.autograd.grad(loss(by_hand), by_hand, create_graph=True)
    (second,) = torch.autograd.grad(first[0, 0], by_hand)
    nested = torch.func.grad(lambda x: torch.func.grad(loss)(x)[0, 0])(square)
    torch.testing.assert_close(nested, second, rtol=1e-9, atol=1e-12)


def test_recorded_gradients() -> None:
    """Forward and backward in one graph."""
    graph = make_fx(lambda x: gradient_of(CALLS["layer_norm"], x))(X)
    assert torch.equal(graph(X), gradient_of(CALLS["layer_norm"], X))


@pytest.mark.parametrize("overload", ["reduce", "reduce of nothing before", "scan", "reduce_map"])
def test_operations_keep_torchs_rules(overload: str) -> None:
    soft = tilefold.functional.normalized._shares(False)
    arguments: dict[str, tuple[Any, ...]] = {
        "reduce": (
            [X],
            [X[0], X[0].exp()],
            monoids.LOGSUMEXP.text,
            [0],
            False,
            True,
            None,
            None,
            "run_to_run",
        ),
        "scan": ([X.sign(), X], [], monoids.AFFINE.text, 1, False, False, True, None, None, "run_to_run"),
        "reduce_map": ([X], [], soft[0].text, soft[1].text, [1], None, "run_to_run", ""),
    }
    arguments["reduce of nothing before"] = (
        [X],
        [],
        monoids.WELFORD.text,
        [0],
        True,
        False,
        None,
        None,
        "run_to_run",
    )
    name = overload.split()[0]
    checked = torch.library.opcheck(getattr(torch.ops.tilefold, name).default, arguments[overload])
    assert set(checked.values()) == {"SUCCESS"}


def test_a_call_with_out_is_made_between_graphs() -> None:
    torch._dynamo.reset()
    out = torch.empty(4)
    made = torch.compile(lambda x, out: tilefold.sum(x + 1, 1, out=out) + 1, backend="eager")(X, out)
    assert_equal((out, made), (tilefold.sum(X + 1, 1), tilefold.sum(X + 1, 1) + 1))


def test_inside_autocast_a_compiled_call_has_the_dtype_of_an_eager_one() -> None:
    torch._dynamo.reset()
    half = X.bfloat16()
    with torch.autocast("cpu", dtype=torch.bfloat16):
        for call in (tilefold.sum, tilefold.prod, tilefold.softmax):
            compiled = torch.compile(call, fullgraph=True, backend="eager")
            assert_equal(compiled(half, 1), call(half, 1))


@pytest.mark.parametrize("name", ["cpu", "reference"])
def test_a_graph_runs_on_the_backend_that_is_in_force_when_it_runs(name: str) -> None:
    torch._dynamo.reset()
    compiled = torch.compile(CALLS["reduce of a user"], fullgraph=True, backend="eager")
    compiled(X)
    with tilefold.backend(name):
        compiled(X)
    plan = tilefold.last_plan()
    assert plan is not None
    assert plan.backend == name


@pytest.mark.gpu
@pytest.mark.parametrize("backend", ["eager", "inductor"])
@pytest.mark.parametrize("name", CALLS)
def test_on_a_gpu_a_compiled_call_has_the_results_of_an_eager_one(name: str, backend: str) -> None:
    torch._dynamo.reset()
    function, x = CALLS[name], X.cuda()
    compiled = torch.compile(lambda x: function(x), fullgraph=True, dynamic=True, backend=backend)
    for given in (x, x[:3]):
        got, want = compiled(given), function(given)
        if backend == "eager":
            assert_equal(got, want)
        for mine, other in zip(
            flat(got), flat(want), strict=True
        ):  # Inductor has a sigmoid and a division of its own
            least = 1e-6 * float(other.double().abs().amax())
            torch.testing.assert_close(mine, other, rtol=2e-6, atol=least)


@pytest.mark.gpu
@pytest.mark.parametrize("name", [*FEW, "scan from a state", "argmin", "std_mean"])
def test_on_a_gpu_a_mapped_call_is_that_of_each_and_a_graph_replays_it(name: str) -> None:
    function = (
        functools.partial(tilefold.layer_norm, normalized_shape=(33,))
        if name == "layer_norm"
        else CALLS[name]
    )
    each = torch.stack([X, 2 * X, X - 3]).cuda()
    mapped = torch.vmap(function)
    mapped(each)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        got = mapped(each)
    each.add_(1)
    graph.replay()
    want = [flat(function(x)) for x in each]
    for mine, others in zip(flat(got), zip(*want, strict=True), strict=True):
        torch.testing.assert_close(mine, torch.stack(others), rtol=1e-5, atol=1e-6)


NORMS: dict[str, tuple[Callable[..., Tensor], Callable[..., Tensor], int]] = {
    "layer_norm": (
        lambda x, w, b: tilefold.layer_norm(x, (6,), w, b),
        lambda x, w, b: torch.nn.functional.layer_norm(x, (6,), w, b),
        2,
    ),
    "rms_norm": (
        lambda x, w: tilefold.rms_norm(x, (6,), w, 1e-5),
        lambda x, w: torch.nn.functional.rms_norm(x, (6,), w, 1e-5),
        1,
    ),
    "a map": (
        lambda x, w: tilefold.reduce_map(
            x, monoids.LOGSUMEXP, lambda v, total, w: (v - total) * w, 1, extras=w
        ),
        lambda x, w: x.log_softmax(1) * w,
        1,
    ),
}


@pytest.mark.parametrize("name", NORMS)
def test_parameters_are_mapped_each_for_its_own_call(name: str) -> None:
    """An ensemble's: torch's own functions have one weight for all rows."""
    ours, theirs, parameters = NORMS[name]
    x = torch.linspace(-1, 2, 24, dtype=torch.float64).view(4, 6).sin()
    given = torch.rand(parameters, 3, 6, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    for where in ((0, *[None] * (parameters - 1)), (0,) * parameters):
        some = [p if d == 0 else p[0] for p, d in zip(given, where, strict=True)]
        got, want = (torch.vmap(f, in_dims=(None, *where))(x, *some) for f in (ours, theirs))
        torch.testing.assert_close(got, want)


@pytest.mark.parametrize("order", [1, 2])
@pytest.mark.parametrize("name", NORMS)
def test_gradients_of_parameters_are_those_of_each_member(name: str, order: int) -> None:
    """Sums over rows are over each member's own: per-sample gradients, and Jacobians, which map a backward."""
    ours, theirs, parameters = NORMS[name]
    x = torch.linspace(-3, 2, 72, dtype=torch.float64).view(3, 4, 6).sin()
    given = torch.rand(parameters, 6, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    found = []
    for function in (ours, theirs):

        def loss(x: Tensor, *given: Tensor, function: Callable[..., Tensor] = function) -> Tensor:
            return function(x, *given).pow(3).sum()

        wrt = tuple(range(1 + parameters))
        by = torch.func.grad(loss, wrt)
        if order == 2:
            by = torch.func.grad(lambda *v, by=by: sum(g.pow(2).sum() for g in by(*v)), wrt)
        each = torch.vmap(by, in_dims=(0, *[None] * parameters))(x, *given)
        found.append([*each, *torch.func.jacrev(function, wrt)(x[0], *given)])
    for got, want in zip(*found, strict=True):
        torch.testing.assert_close(got, want)


def summed(x: Tensor) -> Tensor:
    """The call of a sum as a graph's code makes it."""
    operation = torch.ops.tilefold.reduce.default
    made: Tensor = operation([x], [], monoids.SUM.text, [1], False, False, None, None, "run_to_run")[0]
    return made


@pytest.fixture
def repeated() -> Iterator[None]:
    """No gradients, after a few calls of the sum of X."""
    with torch.no_grad():
        for _ in range(4):
            summed(X)
        yield


def dispatched(call: Callable[..., Any], *arguments: Any) -> bool:
    """Whether torch's dispatcher sees an operation of ours in a call."""
    with torch.profiler.profile() as seen:
        call(*arguments)
    return any(event.name.startswith("tilefold::") for event in seen.events())


@pytest.mark.usefixtures("repeated")
def test_a_repeated_operation_goes_past_torchs_dispatcher() -> None:
    assert not dispatched(summed, X + 1)
    assert_equal(summed(X + 1), tilefold.sum(X + 1, 1))
    assert_equal(summed(X.t()), tilefold.sum(X.t(), 1))
    assert_equal(summed(X.double()), tilefold.sum(X.double(), 1))


class Seen(TorchDispatchMode):
    """A mode that notes operations."""

    def __init__(self) -> None:
        super().__init__()
        self.names = list[str]()

    def __torch_dispatch__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.names.append(str(function))
        return function(*args, **(kwargs or {}))


@pytest.mark.filterwarnings(
    "ignore:`torch.jit.script` is deprecated:DeprecationWarning"
)  # torch.func.jvp's own
@pytest.mark.usefixtures("repeated")
def test_a_repeated_operation_is_seen_by_modes_and_transforms() -> None:
    with Seen() as mode:
        summed(X)
    assert mode.names[0] == "tilefold.reduce.default"
    with FakeTensorMode(allow_non_fake_inputs=True):
        assert type(summed(X)) is not Tensor
    for early in (True, False):
        graph = make_fx(lambda x: summed(x) + summed(x), pre_dispatch=early)(X).graph
        assert sum("tilefold" in str(n.target) for n in graph.nodes) == 2
    assert_equal(torch.func.vmap(summed)(X[:, None]), X[:, None].sum(2))
    assert_equal(torch.func.jvp(summed, (X,), (X,))[1], tilefold.sum(X, 1))
    with torch.enable_grad():
        asked = X.clone().requires_grad_()
        assert all(summed(asked).requires_grad for _ in range(3))


@pytest.mark.usefixtures("repeated")
def test_a_repeated_operation_runs_on_the_backend_that_is_in_force() -> None:
    with tilefold.backend("reference"):
        summed(X)
        assert tilefold.last_plan().backend == "reference"  # type: ignore[union-attr]  # a call was made
    summed(X)
    assert tilefold.last_plan().backend != "reference"  # type: ignore[union-attr]


@pytest.mark.usefixtures("repeated")
@pytest.mark.parametrize("name", ["product", "own_matmul"])
def test_a_repeated_product_follows_torchs_settings(name: str) -> None:
    x, w = torch.randn(5, 16), torch.randn(16, 3)
    options = [[x, w], [], False, "", "", "", None, None, "run_to_run"]
    arguments, operation = options if name == "product" else (x, w), getattr(torch.ops.tilefold, name).default
    calls = [dispatched(operation, *arguments) for _ in range(3)]
    before = torch.backends.cuda.matmul.fp32_precision
    torch.backends.cuda.matmul.fp32_precision = "tf32"
    try:
        calls += [dispatched(operation, *arguments) for _ in range(2)]
    finally:
        torch.backends.cuda.matmul.fp32_precision = before
    assert calls == [True, False, False, True, False]
    made = operation(*arguments)
    assert_equal(made[0] if name == "product" else made, tilefold.matmul(x, w))
