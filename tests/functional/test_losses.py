"""Cross-entropy beside torch's in float64: options and pairs of them, gradients of all orders, kernels from their PTX."""

from __future__ import annotations

import functools
import itertools
import math
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import tilefold
from asked import run
from defined_losses import TOLERANCES, defined, near
from tilefold.algebra import program as programs
from tilefold.api.losses import Loss
from tilefold.api.requests import Reduction
from tilefold.errors import ArgumentError, DtypeError, GradientError, KindError, ShapeError, TargetError

pytestmark = pytest.mark.filterwarnings(
    "ignore:.*torch.jit.script.*:DeprecationWarning"
)  # torch's forward derivatives use it
Tensor = torch.Tensor
INFINITY, NAN = float("inf"), float("nan")


def laid_out(t: Tensor, layout: str) -> Tensor:
    """The same elements in other memory."""
    if layout == "transposed":
        return t.transpose(0, -1).contiguous().transpose(0, -1)
    if layout == "sliced":
        wide = t.new_full([2 * n + 1 for n in t.shape], NAN if t.is_floating_point() else 7)
        inside = wide[tuple(slice(1, None, 2) for _ in t.shape)]
        inside.copy_(t)
        return inside
    return t


@st.composite
def problems(draw: Any) -> tuple[Tensor, Tensor, dict[str, Any]]:
    """Logits, targets and options."""
    shape = draw(st.sampled_from([(7,), (1, 1), (4, 1), (1, 9), (5, 6), (6, 5, 3), (2, 3, 2, 2), (3, 300)]))
    dtype = draw(st.sampled_from(list(TOLERANCES)))
    generator = torch.Generator().manual_seed(draw(st.integers(0, 1000)))
    dim = min(1, len(shape) - 1)
    rows, classes = [n for d, n in enumerate(shape) if d != dim], shape[dim]
    drawn = functools.partial(torch.randn, generator=generator, dtype=torch.float64)
    x = (drawn(shape) * draw(st.sampled_from([1.0, 8.0]))).to(dtype)
    soft = draw(st.booleans())
    options: dict[str, Any] = {"reduction": draw(st.sampled_from(["mean", "sum", "none"]))}
    if soft:
        target = drawn(shape).softmax(dim).to(dtype)
    else:
        target = torch.randint(0, classes, rows, generator=generator)
        if draw(st.booleans()):
            ignored = options["ignore_index"] = draw(st.sampled_from([-100, -1, 0]))
            target = torch.where(torch.rand(rows, generator=generator) < 0.4, ignored, target)
    if draw(st.booleans()):
        options["weight"] = (drawn(classes).abs() + 0.1).to(dtype)
    for name, values in (("label_smoothing", [0.1, 1.0]), ("z_loss", [0.25]), ("softcap", [3.0, 50.0])):
        if draw(st.booleans()):
            options[name] = draw(st.sampled_from(values))
    layouts = st.sampled_from(["contiguous", "transposed", "sliced"])
    return laid_out(x, draw(layouts)), laid_out(target, draw(layouts)), options


@settings(max_examples=60, deadline=None, derandomize=True, suppress_health_check=list(HealthCheck))
@given(problems())
def test_losses_and_gradients_are_torchs(problem: tuple[Tensor, Tensor, dict[str, Any]]) -> None:
    x, target, options = problem
    soft, kept = target.is_floating_point(), x.clone()
    given, wide = [x.detach().requires_grad_()], [x.double().requires_grad_()]
    if soft:
        given, wide = [*given, target.detach().requires_grad_()], [*wide, target.double().requires_grad_()]
    loss, lse = tilefold.cross_entropy(*given, *[target] * (not soft), **options, return_lse=True)
    options |= {"weight": options["weight"].double()} if "weight" in options else {}
    want, want_lse = defined(*wide, *[target] * (not soft), **options)
    assert (loss.dtype, loss.shape, lse.shape) == (x.dtype, want.shape, want_lse.shape)
    assert lse.dtype == (torch.float64 if x.dtype == torch.float64 else torch.float32)
    g = torch.linspace(0.5, 1.5, max(1, want.numel()), dtype=torch.float64).to(x.dtype).reshape(want.shape)
    found = torch.autograd.grad([loss, lse], given, [g, torch.full_like(lse, 0.25)])
    wanted = torch.autograd.grad([want, want_lse], wide, [g.double(), torch.full_like(want_lse, 0.25)])
    bound = TOLERANCES[x.dtype]
    for got, exact in zip((loss, lse, *found), (want, want_lse, *wanted), strict=True):
        near(got, exact, bound)
    assert all(a.dtype == x.dtype for a in found)
    assert torch.equal(x, kept), "logits stay as they are"


OPTIONS: dict[str, dict[str, Any]] = {
    "plain": {},
    "weighted": {"weight": torch.tensor([0.5, 2.0, 1.0, 0.25], dtype=torch.float64)},
    "smoothed": {"label_smoothing": 0.3, "reduction": "sum"},
    "all": {
        "weight": torch.tensor([0.5, 2.0, 1.0, 0.25], dtype=torch.float64),
        "label_smoothing": 0.3, "z_loss": 0.2, "softcap": 2.0, "return_lse": True, "reduction": "none",
    },
}  # fmt: skip


@pytest.mark.parametrize("soft", [False, True], ids=["indices", "probabilities"])
@pytest.mark.parametrize("name", OPTIONS)
def test_derivatives_of_both_orders(name: str, soft: bool) -> None:
    x = torch.linspace(-1, 1, 24, dtype=torch.float64).reshape(3, 4, 2).cos().requires_grad_()
    if soft:
        given = (x, (x.detach() * 3).softmax(1).requires_grad_())
        call = functools.partial(tilefold.cross_entropy, **OPTIONS[name])
    else:
        target = torch.tensor([[1, 2], [-100, 0], [3, 3]])
        given = (x,)
        call = functools.partial(tilefold.cross_entropy, target=target, **OPTIONS[name])
    assert torch.autograd.gradcheck(call, given, check_forward_ad=True)
    assert torch.autograd.gradgradcheck(call, given)


PAIRED: dict[str, dict[str, Any]] = {
    "weight": {"weight": torch.tensor([0.5, 2.0, 1.0, 0.25], dtype=torch.float64)},
    "label_smoothing": {"label_smoothing": 0.3}, "z_loss": {"z_loss": 0.2}, "softcap": {"softcap": 2.0},
    "sum": {"reduction": "sum"}, "none": {"reduction": "none"}, "return_lse": {"return_lse": True},
    "ignore_index": {"ignore_index": 0},
}  # fmt: skip
PAIRS = [pair for pair in itertools.combinations(PAIRED, 2) if pair != ("sum", "none")]
SHAPES = [(3, 4), (2, 4, 3), (4,), (2, 4, 2, 1), (3, 1), (1, 1, 2)]  # of four classes, or of one


def of_pair(
    names: tuple[str, ...], shape: tuple[int, ...], soft: bool
) -> tuple[Tensor, Tensor, dict[str, Any]]:
    """Logits of a shape, their targets, and options of such a pair."""
    dim, options = min(1, len(shape) - 1), {}
    for name in names:
        options |= PAIRED[name]
    classes = shape[dim]
    if "weight" in options:
        options["weight"] = options["weight"][:classes]
    x = torch.linspace(-2, 2, math.prod(shape), dtype=torch.float64).reshape(shape).sin()
    rows = [n for d, n in enumerate(shape) if d != dim]
    target = (torch.arange(math.prod(rows)).reshape(rows) * 3 + 1) % classes
    if "ignore_index" in options:
        options["ignore_index"] = -1 if soft else options["ignore_index"]
    return x, (x * 3).cos().softmax(dim) if soft else target, options


@pytest.mark.parametrize("soft", [False, True], ids=["indices", "probabilities"])
@pytest.mark.parametrize("names", PAIRS, ids=" ".join)
def test_derivatives_of_pairs_of_options(names: tuple[str, ...], soft: bool) -> None:
    """Of each pair by two shapes of logits, one of them of one class where it is the pair's turn."""
    at = PAIRS.index(names)
    for shape in {SHAPES[at % 4], SHAPES[(at + 3) % len(SHAPES)]}:
        x, target, options = of_pair(names, shape, soft)
        call = functools.partial(tilefold.cross_entropy, **options)
        if soft:
            given = (x.requires_grad_(), target.requires_grad_())
        else:
            given, call = (x.requires_grad_(),), functools.partial(call, target=target)
        every = options.get("reduction") == "none" or "ignore_index" not in options or soft
        if every or bool((target != options["ignore_index"]).any()):  # a mean of ignored rows alone is NaN
            assert torch.autograd.gradcheck(call, given)


@pytest.mark.parametrize("soft", [False, True], ids=["indices", "probabilities"])
@pytest.mark.parametrize("name", PAIRED)
def test_a_backward_in_place_is_the_same(name: str, soft: bool) -> None:
    for shape in SHAPES[:4]:
        x, target, options = of_pair((name,), shape, soft)
        found = []
        for in_place in (False, True):
            logits = x.clone().requires_grad_() * 1
            made = tilefold.cross_entropy(logits, target, inplace_backward=in_place, **options)
            made = sum(t.sum() for t in made) if isinstance(made, tuple) else made.sum()
            found += torch.autograd.grad(made, logits)
        assert found[1].data_ptr() == logits.data_ptr()
        assert torch.equal(*found)


# ---------------------------------------------------------------------------------------------------------------- corners


def with_gradient(call: Any, x: Tensor, *others: Any, **options: Any) -> tuple[Tensor, Tensor]:
    x = x.detach().requires_grad_()
    loss = call(x, *others, **options)
    return loss.detach(), torch.autograd.grad(loss.sum(), x)[0]


@pytest.mark.parametrize("reduction", ["mean", "sum", "none"])
@pytest.mark.parametrize(
    "rows",
    [
        [[NAN, 1.0, 2.0]],
        [[-INFINITY, 1.0, 2.0]],
        [[1.0, -INFINITY, 2.0]],
        [[-INFINITY] * 3],
        [[INFINITY, 1.0, 2.0]],
        [[1e30, 1.0, 2.0], [0.0, 0.0, 0.0]],
        [[3e38, -3e38, 0.0]],
    ],
    ids=["NaN", "no target", "another", "nothing", "infinite", "huge", "far apart"],
)
def test_rows_that_are_not_ordinary_are_torchs(rows: list[list[float]], reduction: str) -> None:
    x, target = torch.tensor(rows), torch.zeros(len(rows), dtype=torch.int64)
    shares = F.one_hot(target, 3).float()
    far = 3e38 in rows[0]  # torch takes 0 times an infinite difference, of numbers in range, as NaN
    for each in (target, torch.full_like(target, -100), *([] if far else [shares])):
        got, want = (
            with_gradient(call, x, each, reduction=reduction)
            for call in (tilefold.cross_entropy, F.cross_entropy)
        )
        for a, b in zip(got, want, strict=True):
            near(a, b, 1e-6)


@pytest.mark.parametrize("reduction", ["mean", "sum", "none"])
def test_all_ignored_and_no_rows(reduction: str) -> None:
    for x, target in (
        (torch.randn(3, 4), torch.full((3,), -100)),
        (torch.randn(0, 4), torch.zeros(0, dtype=torch.int64)),
    ):
        got, want = (
            with_gradient(call, x, target, reduction=reduction)
            for call in (tilefold.cross_entropy, F.cross_entropy)
        )
        for a, b in zip(got, want, strict=True):
            torch.testing.assert_close(a, b, rtol=0, atol=0, equal_nan=True)


@pytest.mark.parametrize("value", [0.0, 29.0, 1e4, 3e38, INFINITY, -INFINITY])
def test_a_cap_bounds_what_would_overflow(value: float) -> None:
    x, target = torch.tensor([[value, 1.0, -value]]), torch.tensor([0])
    got, g = with_gradient(tilefold.cross_entropy, x, target, softcap=30.0)
    wide = x.double().requires_grad_()
    want, _ = defined(wide, target, softcap=30.0)
    assert abs(got - want) <= 1e-6 * (1 + abs(want))
    (wanted,) = torch.autograd.grad(want, wide)
    assert (g - wanted.nan_to_num()).abs().max() <= 1e-6  # torch has NaN for an infinite logit


@pytest.mark.parametrize("cap", [2.0**-100, 1e-30, 1e30, 2.0**100])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_caps_near_the_ends_of_the_range(cap: float, dtype: torch.dtype) -> None:
    x = torch.tensor([[3e38, 1.0, -3e38], [cap, -cap, 0.0], [cap / 3, 1e-38, -cap]]).to(dtype)
    target = torch.tensor([0, 1, 2])
    got, g = with_gradient(tilefold.cross_entropy, x, target, softcap=cap, reduction="none")
    wide = x.double().requires_grad_()
    want, _ = defined(wide, target, softcap=cap, reduction="none")
    (wanted,) = torch.autograd.grad(want.sum(), wide)
    for a, b in ((got, want), (g, wanted)):
        near(a, b.detach(), TOLERANCES[dtype])


@pytest.mark.parametrize("name", PAIRED)
def test_a_row_of_nan_is_nan_and_no_other(name: str) -> None:
    x, target, options = of_pair((name,), (3, 4), False)
    options |= {"reduction": "none", "ignore_index": -100}
    x[1, 2] = NAN
    loss = tilefold.cross_entropy(x.requires_grad_(), target, **options)
    loss = loss[0] if isinstance(loss, tuple) else loss
    (g,) = torch.autograd.grad(loss.sum(), x)
    assert loss.isnan().tolist() == [False, True, False]
    assert g.isnan().any(1).tolist() == [False, True, False]


@pytest.mark.parametrize(
    "options", [{"label_smoothing": 0.1}, {"weight": torch.tensor([1.0, 2.0, 0.5])}], ids=str
)
@pytest.mark.parametrize("row", [[-INFINITY, 1.0, 2.0], [1.0, -INFINITY, 2.0], [-INFINITY] * 3], ids=str)
def test_infinite_logits_with_options_are_torchs(row: list[float], options: dict[str, Any]) -> None:
    x, target = torch.tensor([row, [0.0, 1.0, 2.0]]), torch.tensor([0, 1])
    got, want = (
        with_gradient(call, x, target, reduction="none", **options)
        for call in (tilefold.cross_entropy, F.cross_entropy)
    )
    for a, b in zip(got, want, strict=True):
        near(a, b, 1e-6)


def test_logits_far_from_zero_lose_as_much_as_logsumexp() -> None:
    """2 max|x| u at most; backwards no more than what the sum of exponentials lost."""
    x = torch.randn(4, 100) + 1e4
    target = torch.arange(4)
    want, of_x = with_gradient(F.cross_entropy, x.double(), target)
    got, g = with_gradient(tilefold.cross_entropy, x, target)
    assert abs(got - want) <= 2e4 * 2**-24
    near(g, of_x, 1e-4)


@pytest.mark.parametrize("target", [4, -1, -101, 1 << 40])
def test_a_target_that_is_no_class_is_refused(target: int) -> None:
    x = torch.randn(3, 4, requires_grad=True)
    tilefold.cross_entropy(x, torch.tensor([0, 1, -100])).backward()
    for _ in range(2):  # also where a call like it was made before
        with pytest.raises(TargetError, match=rf"classes in \[0, 3\] or `ignore_index` -100, got {target} "):
            tilefold.cross_entropy(x, torch.tensor([0, target, -100]))
    with pytest.raises(IndexError):
        tilefold.cross_entropy(x.detach(), torch.tensor([0, target, -100]))


def test_where_nothing_checks_targets_such_a_row_is_nan() -> None:
    """As on a GPU: the rows' functions, of targets that no check saw."""
    loss = Loss(1, 0, "none", -100, 0.0, 0.0, None, False, False, False, False, torch.float32, "run_to_run")
    one, target = torch.ones(4, 1), torch.tensor([[0], [7], [-100], [-1]])
    function = loss.of_each(("largest", "logarithm", "target", "logit"), 7, torch.float32, ("counts",))
    found, counts = tilefold.api.reduce.fold_tensors([one, one, target, one], function, (), False)
    assert found.flatten().isnan().tolist() == [False, True, False, True]
    names, given = ("largest", "logarithm", "counts", "of_loss"), [one, one, counts, one]
    (other,) = tilefold.api.reduce.fold_tensors([one, *given], loss.of_logits(names, 7), (), False)
    function = loss.of_own((*names, "logit"), 7)
    (own,) = tilefold.api.reduce.fold_tensors([*given, one, target], function, (), False)
    assert other.flatten().isnan().tolist() == own.flatten().isnan().tolist() == [False, True, False, True]
    assert other[2] == own[2] == 0


def test_a_log_sum_exp_has_no_derivative_of_probabilities() -> None:
    """Not NaN either, where a class has none of the probability and no logit."""
    x, target = torch.tensor([[0.0, -INFINITY]]), torch.tensor([[1.0, 0.0]], requires_grad=True)
    _, lse = tilefold.cross_entropy(x, target, return_lse=True)
    assert torch.equal(torch.autograd.grad(lse.sum(), target)[0], torch.zeros(1, 2))


# ------------------------------------------------------------------------------------------------- memory, modes, bits


def test_backward_saves_the_logits_and_values_of_rows() -> None:
    x, target = torch.randn(8, 500, requires_grad=True), torch.randint(0, 500, (8,))
    saved = list[Tensor]()

    def pack(t: Tensor) -> Tensor:
        saved.append(t)
        return t

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda t: t):
        tilefold.cross_entropy(x, target)
    own = [t for t in saved if t.data_ptr() != x.data_ptr()]
    assert len(own) < len(saved)
    assert max(t.numel() for t in own) <= 8


def test_backward_may_write_over_the_logits() -> None:
    leaf, target = torch.randn(8, 50, requires_grad=True), torch.randint(0, 50, (8,))
    want = with_gradient(F.cross_entropy, leaf, target)[1]
    for _ in range(3):
        logits = leaf * 1
        loss = tilefold.cross_entropy(logits, target, inplace_backward=True)
        (g,) = torch.autograd.grad(loss, logits, retain_graph=True)
        assert g.data_ptr() == logits.data_ptr()
        near(g, want, 1e-5)
        with pytest.raises(RuntimeError, match="modified by an inplace operation"):
            torch.autograd.grad(loss, logits)


def test_compiled_mapped_and_transformed() -> None:
    x, target = torch.randn(3, 5, 7), torch.randint(0, 7, (3, 5))

    def call(x: Tensor, target: Tensor) -> Tensor:
        loss, lse = tilefold.cross_entropy(x, target, label_smoothing=0.1, softcap=4.0, return_lse=True)
        return loss + lse.sum()

    slope = torch.func.grad(call)
    each = [call(a, b) for a, b in zip(x, target, strict=True)]
    torch.testing.assert_close(torch.func.vmap(call)(x, target), torch.stack(each), rtol=1e-6, atol=0)
    slopes = [slope(a, b) for a, b in zip(x, target, strict=True)]
    near(torch.func.vmap(slope)(x, target), torch.stack(slopes), 1e-5)
    torch._dynamo.reset()
    compiled = torch.compile(call, fullgraph=True, backend="aot_eager", dynamic=True)
    for n in (5, 4, 3):
        got, want = (with_gradient(f, x[0, :n], target[0, :n]) for f in (compiled, call))
        for a, b in zip(got, want, strict=True):
            near(a, b, 1e-6)
    _, tangent = torch.func.jvp(lambda x: call(x, target[0]), (x[0],), (x[1],))
    near(tangent, (slopes[0] * x[1]).sum(), 1e-5)


def test_a_rows_bits_depend_on_no_other_row() -> None:
    x, target = torch.randn(9, 3000), torch.randint(0, 3000, (9,))
    call = functools.partial(tilefold.cross_entropy, reduction="none", guarantee="batch_invariant")
    loss, g = with_gradient(call, x, target)
    alone, g_alone = with_gradient(call, x[4:5], target[4:5])
    assert torch.equal(loss[4:5], alone)
    assert torch.equal(g[4:5], g_alone)


def test_the_module_has_torchs_parameters() -> None:
    weight = torch.rand(7) + 0.5
    ours, torchs = (
        kind(weight, ignore_index=3, reduction="sum", label_smoothing=0.2)
        for kind in (tilefold.nn.CrossEntropyLoss, torch.nn.CrossEntropyLoss)
    )
    x, target = torch.randn(5, 7), torch.randint(0, 7, (5,))
    torch.testing.assert_close(ours(x, target), torchs(x, target), rtol=1e-5, atol=0)
    assert list(ours.state_dict()) == list(torchs.state_dict()) == ["weight"]
    ours.load_state_dict(torchs.state_dict())
    loss, lse = tilefold.nn.CrossEntropyLoss(softcap=2.0, z_loss=0.1, return_lse=True)(x, target)
    want, want_lse = defined(x, target, softcap=2.0, z_loss=0.1)
    torch.testing.assert_close((loss, lse), (want, want_lse), rtol=1e-5, atol=0)


@pytest.mark.parametrize(
    ("options", "error", "rule"),
    [
        ({"reduction": "average"}, ArgumentError, "`reduction` must be one of mean, sum, none, got 'average'"),
        ({"guarantee": "same"}, ArgumentError, "`guarantee` must be one of"),
        ({"ignore_index": 0.5}, KindError, "`ignore_index` must be an int, got 0.5"),
        ({"label_smoothing": 1.5}, ArgumentError, "`label_smoothing` must be from 0 to 1, got 1.5"),
        ({"z_loss": -1}, ArgumentError, "`z_loss` must be from 0 to .*, got -1"),
        ({"softcap": 0}, ArgumentError, "`softcap` must be from .*, got 0"),
        ({"softcap": "30"}, KindError, "`softcap` must be a real number, got '30'"),
        ({"return_lse": 1}, KindError, "`return_lse` must be True or False, got one of type int"),
        ({"target": torch.zeros(4, dtype=torch.int64)}, ShapeError, r"`target` must be classes, ints of shape \[3\]"),
        ({"target": torch.zeros(3, 5)}, ShapeError, "`target` must be .* floats of the logits'"),
        ({"target": torch.zeros(3, dtype=torch.bool)}, ShapeError, "`target` must be classes"),
        ({"target": torch.zeros(3, 4), "ignore_index": 1}, ArgumentError, "`ignore_index` must be negative"),
        ({"input": torch.zeros(3, 0)}, ShapeError, "logits must have a dim of classes"),
        ({"input": torch.tensor(1.0)}, ShapeError, "logits must have a dim of classes"),
        ({"input": torch.zeros(3, 4, dtype=torch.int64)}, DtypeError, "elements must be floating point"),
        ({"weight": torch.ones(3)}, ShapeError, "`weight` must be floats, one for each of 4 classes"),
        ({"weight": torch.ones(4, requires_grad=True)}, GradientError, "`weight` has no derivative"),
        ({"weight": [1, 1, 1, 1]}, KindError, "`weight` must be a tensor"),
    ],
    ids=lambda value: next(iter(value)) if isinstance(value, dict) else "",
)  # fmt: skip
def test_refused(options: dict[str, Any], error: type[Exception], rule: str) -> None:
    plain = {"input": torch.zeros(3, 4), "target": torch.zeros(3, dtype=torch.int64)}
    with pytest.raises(error, match=rule):
        tilefold.cross_entropy(**(plain | options))


# --------------------------------------------------------------------------------------------------------------- kernels


def launched(
    function: Any, tensors: list[Tensor], dims: tuple[int, ...], dtype: torch.dtype, shape: tuple[int, ...]
) -> Any:
    """A fold's plan and results, from the kernels' PTX."""
    program = programs.specialize(function.total, tuple(t.dtype for t in tensors), dtype)
    return run(Reduction(program, dims, "run_to_run", shape), tensors)


@pytest.mark.parametrize(
    ("shape", "dtype", "options"),
    [
        ((4, 1000), torch.bfloat16, {}),
        ((3, 4099), torch.bfloat16, {"label_smoothing": 0.1}),
        ((2, 20000), torch.float16, {"softcap": 5.0}),
        ((33, 70), torch.float32, {"weighted": True, "label_smoothing": 0.1, "softcap": 5.0}),
        ((2, 130, 3), torch.float32, {}),
    ],
    ids=lambda value: "x".join(map(str, value)) if isinstance(value, tuple) else "",
)  # fmt: skip
def test_kernels_from_their_ptx(shape: tuple[int, ...], dtype: torch.dtype, options: dict[str, Any]) -> None:
    """The fold of rows, and the map backwards in one launch, which loads a row's values once."""
    named = {"label_smoothing": 0.0, "softcap": None, "weighted": False} | options
    loss = Loss(
        1, 0, "mean", -100, named["label_smoothing"], 0.0, named["softcap"], False, named["weighted"], True, False, dtype,
        "run_to_run",
    )  # fmt: skip
    classes, rows = shape[1], (shape[0], 1, *shape[2:])
    x = (torch.randn(shape) * 2).to(dtype)
    weight = (torch.rand(classes) + 0.5).reshape(1, classes, *[1] * (len(shape) - 2)).expand(shape)
    beside = [weight] if loss.varies else []
    wide = x.double()
    c = wide if loss.softcap is None else loss.softcap * torch.tanh(wide / loss.softcap)
    share = (weight.double() if loss.varies else 1.0) * loss.label_smoothing / classes
    folded = launched(loss.of_rows(classes), [x, *beside], (1,), torch.float32, rows)
    largest, logarithm, *sums, lse = folded.results
    near(lse, c.logsumexp(1, keepdim=True), 1e-5)
    assert torch.equal(largest.double(), c.float().amax(1, keepdim=True).double()) or loss.softcap
    if loss.shares:
        want = (share * c).sum(1, keepdim=True)
        near(sums[-1], want, 1e-4)
    g = torch.rand(rows) + 0.5
    of_rows = {"largest": largest, "logarithm": logarithm, "counts": torch.ones(rows), "of_loss": g * 1.5}
    of_rows |= {"share": sums[0]} if loss.varies else {}
    of_rows |= {"weight": torch.full(rows, 0.75)} if loss.weighted else {}
    of_rows |= {"total": torch.full([1] * len(rows), 1.5), "of_lse": g}
    each = [t.expand(shape) for t in of_rows.values()]
    backward = launched(loss.of_logits((*of_rows,), classes), [x, *beside, *each], (), dtype, shape)
    assert [step.kernel for step in backward.plan.launched] == ["map_elements"]
    own = (0.75 if loss.weighted else 1.0) * (1.0 - loss.label_smoothing)
    every = sums[0].double() if loss.varies else loss.label_smoothing
    factor = g.double() * (own + every) + g.double()
    want = torch.exp(c - c.logsumexp(1, keepdim=True)) * factor - (g * share if loss.shares else 0.0)
    want = want * (1 - (c / loss.softcap) ** 2) if loss.softcap else want
    near(backward.results[0], want, torch.finfo(dtype).eps + 1e-5)
