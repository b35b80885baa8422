"""Losses and folds of a product that is never held, beside torch's of the product in float64."""

from __future__ import annotations

import functools
import itertools
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import tilefold
from asked import executed
from defined_losses import TOLERANCES, defined, near
from tilefold.api import linear
from tilefold.api.losses import Loss
from tilefold.api.reduce import fold_tensors
from tilefold.errors import ArgumentError, DtypeError, GradientError, KindError, ShapeError, TargetError
from tilefold.math import exp, log, maximum, minimum

Tensor = torch.Tensor
F64 = torch.float64
pytestmark = pytest.mark.filterwarnings(
    "ignore:.*torch.jit.script.*:DeprecationWarning"
)  # torch's forward derivatives use it


@pytest.fixture(autouse=True)
def small_chunks(monkeypatch: pytest.MonkeyPatch) -> None:
    """Chunks of 16 columns, unless rows are longer than 32."""
    monkeypatch.setattr(linear, "LEAST_BYTES", 1)
    monkeypatch.setattr(linear, "COLUMNS", 16)


def drawn(*shape: int, seed: int = 0, dtype: torch.dtype = F64) -> Tensor:
    generator = torch.Generator().manual_seed(seed + sum(shape))
    return torch.randn(shape, generator=generator, dtype=F64).to(dtype)


def asking(*tensors: Tensor) -> list[Tensor]:
    return [t.detach().clone().requires_grad_() for t in tensors]


@st.composite
def problems(draw: Any) -> tuple[list[Tensor], Tensor, dict[str, Any]]:
    """Rows, classes' weights and perhaps a bias; targets; options."""
    rows = draw(st.sampled_from([(), (1,), (0,), (5,), (33,), (2, 3)]))
    features, classes = draw(
        st.sampled_from([(1, 1), (8, 2), (7, 16), (5, 17), (8, 50), (3, 300), (64, 100)])
    )
    dtype, seed = draw(st.sampled_from(list(TOLERANCES))), draw(st.integers(0, 1000))
    x, w = drawn(*rows, features, seed=seed, dtype=dtype), drawn(classes, features, seed=seed, dtype=dtype)
    if draw(st.booleans()):
        w = w.T.contiguous().T
    if draw(st.booleans()):
        x = torch.stack([x, x], -1)[..., 0]
    operands = [x, w, *[drawn(classes, seed=seed, dtype=dtype)] * draw(st.booleans())]
    generator = torch.Generator().manual_seed(seed)
    target = torch.randint(0, classes, rows, generator=generator)
    options: dict[str, Any] = {"reduction": draw(st.sampled_from(["mean", "sum", "none"]))}
    if draw(st.booleans()):
        options["ignore_index"] = ignored = draw(st.sampled_from([-100, 0, None]))
        ignored = -100 if ignored is None else ignored
        target = torch.where(torch.rand(rows, generator=generator) < 0.4, ignored, target)
    if draw(st.booleans()):
        options["weight"] = (drawn(classes, seed=seed).abs() + 0.1).to(dtype)
    for name, values in (("label_smoothing", [0.1, 1.0]), ("z_loss", [0.25]), ("softcap", [3.0, 50.0])):
        if draw(st.booleans()):
            options[name] = draw(st.sampled_from(values))
    return operands, target.to(draw(st.sampled_from([torch.int64, torch.int32, torch.int16]))), options


@settings(max_examples=80, deadline=None, derandomize=True, suppress_health_check=list(HealthCheck))
@given(problems())
def test_losses_and_gradients_are_those_of_the_product(problem: Any) -> None:
    operands, target, options = problem
    given, wide = asking(*operands), asking(*(t.double() for t in operands))
    x, w, *bias = given
    named = {"linear_bias": bias[0]} if bias else {}
    loss, lse = tilefold.linear_cross_entropy(x, w, target, **named, **options, return_lse=True)
    assert (loss.dtype, lse.dtype) == (x.dtype, F64 if x.dtype == F64 else torch.float32)
    options |= {"weight": options["weight"].double()} if "weight" in options else {}
    options |= {"ignore_index": -100} if options.get("ignore_index", 0) is None else {}
    logits = F.linear(wide[0], wide[1], *wide[2:]).flatten(0, -2) if x.ndim > 1 else F.linear(*wide)
    want, want_lse = defined(logits, target.long().flatten() if x.ndim > 1 else target.long(), **options)
    want = want.reshape(target.shape) if options["reduction"] == "none" else want
    g = (
        torch.linspace(0.5, 1.5, max(1, want.numel()), dtype=F64)[: want.numel()]
        .to(x.dtype)
        .reshape(want.shape)
    )
    found = torch.autograd.grad([loss, lse], given, [g, torch.full_like(lse, 0.25)])
    wanted = torch.autograd.grad([want, want_lse], wide, [g.double(), torch.full_like(want_lse, 0.25)])
    pairs = zip((loss, lse, *found), (want, want_lse.reshape(target.shape), *wanted), strict=True)
    for got, exact in pairs:
        near(got, exact, TOLERANCES[x.dtype])
    assert [t.dtype for t in found] == [x.dtype] * len(found)
    assert all(torch.equal(a, b) for a, b in zip(given, operands, strict=True)), "operands stay as they are"


OPTIONS: dict[str, Any] = {
    "label_smoothing": 0.3, "z_loss": 0.2, "softcap": 2.0, "weight": drawn(20).abs() + 0.1, "reduction": "sum",
    "linear_bias": drawn(20, seed=1),
}  # fmt: skip


@pytest.mark.parametrize("names", [*itertools.combinations(OPTIONS, 2)], ids=" ".join)
def test_derivatives_of_pairs_of_options(names: tuple[str, ...]) -> None:
    options = {name: OPTIONS[name] for name in names}
    target = torch.tensor([19, -100, 0, 16])
    x, w, bias = asking(drawn(4, 3), drawn(20, 3), drawn(20, seed=1))

    def loss(x: Tensor, w: Tensor, bias: Tensor) -> Any:
        named = options | ({"linear_bias": bias} if "linear_bias" in options else {})
        return tilefold.linear_cross_entropy(x, w, target, **named, return_lse=True)

    assert torch.autograd.gradcheck(loss, (x, w, bias) if "linear_bias" in names else (x, w, bias.detach()))


# ------------------------------------------------------------------------------------------------------ any monoid


def _softmax(a: Any, b: Any) -> Any:
    m = maximum(a.m, b.m)
    one, two = exp(a.m - m), exp(b.m - m)
    return m, a.l * one + b.l * two, a.t * one + b.t * two


ENTROPY = tilefold.Monoid(
    _softmax, (-1e30, 0, 0), fields=("m", "l", "t"), lift=lambda x: (x, 1.0, x), name="entropy",
    project=lambda m, l, t: (m + log(l), m + log(l) - t / l),
)  # fmt: skip


def test_losses_of_the_users_own() -> None:
    """Z-loss, entropy and focal loss, of one fold."""
    target = torch.tensor([3, 49, 0, 17, 31])
    operands = asking(drawn(5, 8), drawn(50, 8))

    def from_rows(lse: Tensor, entropy: Tensor, logit: Tensor) -> Tensor:
        p = (logit - lse).exp()
        return (1e-2 * lse**2 - 0.1 * entropy + (1 - p) ** 2 * (lse - logit)).mean()

    (lse, entropy), logit = tilefold.linear_reduce(*operands, ENTROPY, target=target)
    loss = from_rows(lse, entropy, logit)
    logits = F.linear(*operands)
    log_p = logits.log_softmax(1)
    want = from_rows(
        logits.logsumexp(1), -(log_p.exp() * log_p).sum(1), logits.gather(1, target[:, None])[:, 0]
    )
    torch.testing.assert_close(loss, want)
    found, wanted = torch.autograd.grad(loss, operands), torch.autograd.grad(want, operands)
    torch.testing.assert_close(found, wanted)


def test_how_often_a_target_is_among_the_largest() -> None:
    """Its logit is to the bit one of those that are folded."""

    def merged(a: Any, b: Any) -> Any:
        second = maximum(maximum(a.y, b.y), minimum(a.x, b.x))
        third = maximum(maximum(a.z, b.z), maximum(minimum(a.x, b.y), minimum(a.y, b.x)))
        return maximum(a.x, b.x), second, third

    least = -float("inf")
    largest = tilefold.Monoid(
        merged, (least,) * 3, fields=("x", "y", "z"), lift=lambda x: (x, least, least), project=lambda x, y, z: z
    )  # fmt: skip
    x, w = drawn(64, 8, dtype=torch.bfloat16), drawn(100, 8, dtype=torch.bfloat16)
    best = (x.float() @ w.float().T).topk(3, 1).indices
    for place in range(3):
        third, logit = tilefold.linear_reduce(x, w, largest, target=best[:, place].contiguous())
        assert bool((logit >= third).all())
    classes, _ = tilefold.linear_reduce(x, w, tilefold.monoids.ARGMAX, target=best[:, 0].contiguous())
    assert torch.equal(classes, best[:, 0]), "positions are classes"
    other = torch.randint(0, 100, (64,), generator=torch.Generator().manual_seed(0))
    third, logit = tilefold.linear_reduce(x, w, largest, target=other)
    assert torch.equal(logit >= third, (best == other[:, None]).any(1))


def test_values_of_classes_beside_the_logit() -> None:
    weighted = tilefold.Monoid(
        lambda a, b: (a.n + b.n, a.s + b.s), (0, 0), fields=("n", "s"), lift=lambda x, v: (v, x * v),
        project=lambda n, s: s / n, commutative=True,
    )  # fmt: skip
    x, w, bias = asking(drawn(2, 3, 5), drawn(40, 5), drawn(40))
    value = drawn(40).abs()
    made = tilefold.linear_reduce(x, w, weighted, linear_bias=bias, beside=[value])
    want = (F.linear(x, w, bias) * value).sum(-1) / value.sum()
    torch.testing.assert_close(made, want)
    found = torch.autograd.grad(made.square().sum(), (x, w, bias))
    torch.testing.assert_close(found, torch.autograd.grad(want.square().sum(), (x, w, bias)))


def test_a_monoid_without_an_identity_and_one_that_does_not_commute() -> None:
    x, w = drawn(6, 4), drawn(45, 4)
    first = tilefold.Monoid(lambda a, b: a, identity=None)
    torch.testing.assert_close(tilefold.linear_reduce(x, w, first), (x @ w.T)[:, 0])
    torch.testing.assert_close(tilefold.linear_reduce(x, w, tilefold.monoids.LAST), (x @ w.T)[:, -1])


@pytest.mark.parametrize("classes", [255, 256, 257, 16 * 33])
def test_states_of_many_chunks(classes: int) -> None:
    """More of them than are held."""
    x, w, target = drawn(3, 4), drawn(classes, 4), torch.tensor([0, classes // 2, classes - 1])
    lse, logit = tilefold.linear_reduce(x, w, tilefold.monoids.LOGSUMEXP, target=target)
    logits = x @ w.T
    torch.testing.assert_close(lse, logits.logsumexp(1))
    torch.testing.assert_close(logit, logits.gather(1, target[:, None])[:, 0])
    assert torch.equal(tilefold.linear_reduce(x, w, tilefold.monoids.ARGMAX), logits.argmax(1))


@pytest.mark.parametrize("wrt", [[0], [1], [2], [0, 2]], ids=["x", "w", "bias", "x and bias"])
def test_only_some_gradients_are_asked(wrt: list[int]) -> None:
    operands = [drawn(5, 8), drawn(50, 8), drawn(50)]
    for i in wrt:
        operands[i].requires_grad_()
    x, w, bias = operands
    target = torch.tensor([0, 1, -100, 49, 16])
    loss = tilefold.linear_cross_entropy(x, w, target, linear_bias=bias)
    want = F.cross_entropy(F.linear(x, w, bias), target)
    some = [operands[i] for i in wrt]
    torch.testing.assert_close(torch.autograd.grad(loss, some), torch.autograd.grad(want, some))


# -------------------------------------------------------------------------------------------------------- memory


def test_no_logits_are_held() -> None:
    """No operation takes as much memory as all logits, and saved are operands, targets and values of rows."""
    x, w = asking(drawn(256, 4, dtype=torch.bfloat16), drawn(4000, 4, dtype=torch.bfloat16))
    target, saved = torch.arange(256), list[int]()

    def pack(t: Tensor) -> Tensor:
        saved.append(t.numel() if t.data_ptr() not in (x.data_ptr(), w.data_ptr()) else 0)
        return t

    def run() -> None:
        loss = tilefold.linear_cross_entropy(x, w, target, label_smoothing=0.1, softcap=30.0)
        torch.autograd.grad(loss, (x, w))

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda t: t):
        run()
    assert max(saved) == 256
    with torch.profiler.profile(
        activities=[torch.profiler.ProfilerActivity.CPU], profile_memory=True
    ) as seen:
        run()
    most = max(event.self_cpu_memory_usage for event in seen.events() or ())
    assert 256 * 16 * 4 <= most <= max(256 * 16 * 4, 4000 * 8), (
        "a chunk's logits or states in float32, or positions"
    )


@pytest.mark.parametrize(
    ("rows", "features", "dtype", "megabytes"),
    [(8192, 4096, torch.bfloat16, 300), (8192, 4096, torch.float32, 300), (512, 1024, torch.float16, 150)],
    ids=str,
)  # fmt: skip
def test_chunks_keep_to_their_memory(
    monkeypatch: pytest.MonkeyPatch, rows: int, features: int, dtype: torch.dtype, megabytes: int
) -> None:
    monkeypatch.undo()
    spans = linear.chunks(torch.empty(rows, features, dtype=dtype, device="meta"), 128256)
    assert [a for a, _ in spans] == [0, *(b for _, b in spans[:-1])]
    assert spans[-1][1] == 128256
    columns = spans[0][1]
    assert all(b - a == columns for a, b in spans[:-1])
    assert columns % 256 == 0
    assert rows * columns * (4 + dtype.itemsize) + 4 * rows * features <= megabytes * 10**6


# ------------------------------------------------------------------------------------------- graphs and transforms


def smoothed(x: Tensor, w: Tensor, target: Tensor) -> Any:
    return tilefold.linear_cross_entropy(x, w, target, label_smoothing=0.1, z_loss=0.1, softcap=5.0)


@pytest.mark.parametrize("dynamic", [False, True])
def test_one_graph(dynamic: bool) -> None:
    torch._dynamo.reset()
    compiled = torch.compile(smoothed, fullgraph=True, backend="aot_eager", dynamic=dynamic)
    for rows in (5, 7):
        operands = asking(drawn(rows, 8), drawn(50, 8))
        target = torch.randint(0, 50, (rows,), generator=torch.Generator().manual_seed(0))
        made, want = compiled(*operands, target), smoothed(*operands, target)
        torch.testing.assert_close(made, want, rtol=0, atol=0)
        found, wanted = torch.autograd.grad(made, operands), torch.autograd.grad(want, operands)
        torch.testing.assert_close(found, wanted, rtol=0, atol=0)


def test_transforms() -> None:
    x, w, target = drawn(3, 5, 8), drawn(50, 8), torch.arange(15).reshape(3, 5)
    each = torch.stack([smoothed(x[i], w, target[i]) for i in range(3)])
    torch.testing.assert_close(torch.func.vmap(smoothed, (0, None, 0))(x, w, target), each)
    (want,) = torch.autograd.grad(smoothed(given := x[0].clone().requires_grad_(), w, target[0]), given)
    torch.testing.assert_close(torch.func.grad(smoothed)(x[0], w, target[0]), want)
    mapped = torch.func.vmap(torch.func.grad(smoothed), (0, None, 0))(x, w, target)
    torch.testing.assert_close(mapped[0], want)


def test_inside_autocast() -> None:
    x, w = asking(drawn(6, 8, dtype=torch.float32), drawn(50, 8, dtype=torch.float32))
    with torch.autocast("cpu", torch.bfloat16):
        loss, want = smoothed(x, w, torch.arange(6)), F.cross_entropy(F.linear(x, w), torch.arange(6))
    assert loss.dtype == want.dtype == torch.float32
    found = torch.autograd.grad(loss, (x, w))
    wide = asking(x.detach().bfloat16().double(), w.detach().bfloat16().double())
    exact = torch.autograd.grad(smoothed(*wide, torch.arange(6)), wide)
    for got, right in zip(found, exact, strict=True):
        assert got.dtype == torch.float32
        near(got, right, 1e-2)


def test_the_same_bits() -> None:
    def run() -> list[Tensor]:
        operands = asking(drawn(33, 8, dtype=torch.float32), drawn(100, 8, dtype=torch.float32))
        loss = smoothed(*operands, torch.arange(33))
        return [loss, *torch.autograd.grad(loss, operands)]

    assert all(map(torch.equal, run(), run()))


def test_a_second_and_a_forward_derivative_are_refused() -> None:
    x, w, target = drawn(5, 8).requires_grad_(), drawn(50, 8), torch.arange(5)
    (first,) = torch.autograd.grad(smoothed(x, w, target), x, create_graph=True)
    with pytest.raises(GradientError, match=r"first derivative alone.*multiply first"):
        torch.autograd.grad(first.sum(), x)
    with pytest.raises(GradientError, match=r"no forward derivative.*multiply first"):
        torch.func.jvp(lambda x: smoothed(x, w, target), (x.detach(),), (x.detach(),))


# ---------------------------------------------------------------------------------------------------------- errors


def test_where_nothing_checks_targets_such_a_row_is_nan(monkeypatch: pytest.MonkeyPatch) -> None:
    """As on a GPU; an ignored row has no part in it."""
    monkeypatch.setattr(linear, "check_targets", lambda *_: None)
    x, w = asking(drawn(3, 8), drawn(50, 8))
    target = torch.tensor([50, 1, -100])
    losses = tilefold.linear_cross_entropy(x, w, target, reduction="none")
    assert losses.isnan().tolist() == [True, False, False]
    (of_x,) = torch.autograd.grad(losses.sum(), x)
    assert of_x.isnan().all(1).tolist() == [True, False, False]
    assert not of_x[2].any()
    _, logits = tilefold.linear_reduce(x.detach(), w.detach(), tilefold.monoids.SUM, target=target)
    assert logits.isnan().tolist() == [True, False, False]
    assert logits[2] == 0


def test_the_logit_of_an_ignored_target() -> None:
    x, w = asking(drawn(3, 8), drawn(50, 8))
    _, logits = tilefold.linear_reduce(
        x, w, tilefold.monoids.SUM, target=torch.tensor([4, 7, 4]), ignore_index=4
    )
    assert torch.equal(logits == 0, torch.tensor([True, False, True]))
    (of_x,) = torch.autograd.grad(logits.sum(), x)
    torch.testing.assert_close(
        of_x, torch.stack([torch.zeros(8, dtype=F64), w[7].detach(), torch.zeros(8, dtype=F64)])
    )


def test_all_ignored() -> None:
    x, w = asking(drawn(3, 8), drawn(50, 8))
    target = torch.full((3,), -100)
    assert tilefold.linear_cross_entropy(x, w, target).isnan()
    loss = tilefold.linear_cross_entropy(x, w, target, reduction="sum", z_loss=0.1, label_smoothing=0.1)
    assert loss == 0
    assert not any(t.any() for t in torch.autograd.grad(loss, (x, w)))


X, W, T = drawn(3, 8), drawn(50, 8), torch.arange(3)


@pytest.mark.parametrize(
    ("arguments", "named", "error", "rule"),
    [
        ((X, W, torch.tensor([0, 50, 1])), {}, TargetError, r"classes in \[0, 49\].*got 50"),
        ((X, W[0], T), {}, ShapeError, r"`linear_weight` must be \[V, D\].*got \[8\]"),
        ((X, W.T, T), {}, ShapeError, r"`linear_weight` must be.*got \[8, 50\] and \[3, 8\]"),
        ((X, W[:0], T), {}, ShapeError, r"one class at least"),
        ((X, W.float(), T), {}, DtypeError, "`linear_weight` must have the input's.*got torch.float32"),
        ((X.long(), W.long(), T), {}, DtypeError, "floats of 16, 32 or 64 bits, got torch.int64"),
        ((X, W, T[:2]), {}, ShapeError, r"`target` must be classes, ints of shape \[3\], got \[2\]"),
        ((X, W, X), {}, ShapeError, r"`target` must be classes.*got \[3, 8\] of torch.float64"),
        ((X, W, None), {}, KindError, "`target` must be a tensor, got NoneType"),
        ((X, W, T), {"linear_bias": X}, ShapeError, r"`linear_bias` must have one value for each of 50 classes"),
        ((X, W, T), {"linear_bias": W[:, 0].float()}, DtypeError, "`linear_bias` must have the input's"),
        ((X, W, T), {"weight": X}, ShapeError, "`weight` must be floats, one for each of 50 classes"),
        ((X, W, T), {"reduction": "max"}, ArgumentError, "`reduction` must be one of mean, sum, none"),
        ((X, W, T), {"ignore_index": 0.5}, KindError, "`ignore_index` must be an int"),
    ],
)  # fmt: skip
def test_refusals(arguments: Any, named: Any, error: type[Exception], rule: str) -> None:
    with pytest.raises(error, match=f"^linear_cross_entropy: .*{rule}"):
        tilefold.linear_cross_entropy(*arguments, **named)


def test_refusals_of_folds() -> None:
    x, w = asking(X, W)
    with pytest.raises(
        GradientError, match=r"^linear_reduce: .*a logit and its row's state give.*fields value"
    ):
        tilefold.linear_reduce(x, w, tilefold.monoids.MAX)
    with pytest.raises(ArgumentError, match=r"^linear_reduce: .*takes 0 value.*got 1"):
        tilefold.linear_reduce(X, W, tilefold.monoids.SUM, beside=[W[:, 0]])
    two = tilefold.Monoid(lambda a, b: a + b, 0, lift=lambda x, v: x * v)
    with pytest.raises(GradientError, match=r"^linear_reduce: `beside` has no derivative"):
        tilefold.linear_reduce(X, W, two, beside=[W[:, 0].clone().requires_grad_()])
    with pytest.raises(
        ShapeError, match=r"^linear_reduce: `beside` must have one value for each of 50 classes"
    ):
        tilefold.linear_reduce(X, W, two, beside=[X])
    with pytest.raises(KindError, match=r"^linear_reduce: .*tilefold.Monoid"):
        tilefold.linear_reduce(X, W, sum)


# --------------------------------------------------------------------------------------------------------- kernels


@pytest.mark.parametrize("smoothing", [0.0, 0.1], ids=["classes", "smoothed"])
def test_a_chunks_kernels_from_their_ptx(smoothing: float) -> None:
    """The folds of a chunk and of two states, and one function of logits, rows' values and places, in one launch."""
    loss = Loss(
        1, 0, "mean", -100, smoothing, 0.0, None, False, False, False, False, torch.bfloat16, "run_to_run"
    )
    of_row, f32 = loss.of_rows(640), torch.float32
    known = linear._known(of_row.text, (f32,))
    logits, target = drawn(5, 512, dtype=f32), torch.tensor([[-1], [300], [256], [511], [2]])
    chunks = logits[:, :256].contiguous(), logits[:, 256:].contiguous()
    parts = [
        executed(functools.partial(fold_tensors, [chunk], known.partial, 1, True))[0] for chunk in chunks
    ]
    both = [torch.cat(some, 1) for some in zip(*parts, strict=True)]
    made, _ = executed(lambda: fold_tensors(both, known.finish, 1, True, return_state=True))
    shown, states = made[: len(known.results)], made[len(known.results) :]
    near(shown[0] + shown[1], logits.double().logsumexp(1, keepdim=True), 1e-5)
    g = [drawn(5, 1, seed=i, dtype=f32) for i in range(2 + loss.shares)]
    places = torch.arange(640, dtype=torch.int32)[256:512]
    rows = [t.expand(5, 256) for t in (*states, *g, target.int())]
    function = linear._of_logits(known.ends, True)
    given = [chunks[1], *rows, places.expand(5, 256)]
    (found,), plan = executed(lambda: fold_tensors(given, function, (), False, dtype=torch.bfloat16))
    assert len(plan.launched) == 1
    want = logits.double().softmax(1)[:, 256:] * g[0] + (g[1] * smoothing / 640 if loss.shares else 0)
    near(found, want + torch.where(places == target, g[-1], 0), 2**-8)


# ---------------------------------------------------------------------------------------------------------- module


def test_a_module_with_torchs_parameters() -> None:
    """Parameters, buffers and their names are those of torch.nn.LinearCrossEntropyLoss, which torch 2.11 lacks."""
    weight = drawn(20).abs()
    torch.manual_seed(0)
    ours = tilefold.nn.LinearCrossEntropyLoss(
        8, 20, bias=True, weight=weight, dtype=F64, label_smoothing=0.1, z_loss=0.1, return_lse=True
    )
    torch.manual_seed(0)
    linear_alone = torch.nn.Linear(8, 20, dtype=F64)
    held = {"weight": weight, "linear.weight": linear_alone.weight, "linear.bias": linear_alone.bias}
    assert {name: t.tolist() for name, t in ours.state_dict().items()} == {
        n: t.tolist() for n, t in held.items()
    }
    theirs = getattr(torch.nn, "LinearCrossEntropyLoss", None)
    if theirs is not None:
        other = theirs(8, 20, bias=True, weight=weight, dtype=F64)
        other.load_state_dict(ours.state_dict())
        ours.load_state_dict(other.state_dict())
    x, target = drawn(2, 3, 8), torch.randint(0, 20, (2, 3))
    loss, lse = ours(x, target)
    want, want_lse = defined(
        linear_alone(x).flatten(0, 1), target.flatten(), weight, label_smoothing=0.1, z_loss=0.1
    )
    near(loss, want, 1e-12)
    near(lse, want_lse.reshape(2, 3), 1e-12)
    loss.backward()
    assert all(p.grad is not None for p in ours.parameters())
    for options in ({"num_classes": -1}, {"num_classes": 20, "bias": "no"}):
        with pytest.raises((ArgumentError, KindError), match=r"^LinearCrossEntropyLoss: "):
            tilefold.nn.LinearCrossEntropyLoss(8, **options)
