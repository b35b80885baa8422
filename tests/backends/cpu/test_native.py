"""Torch's own folds: only where they are this library's to the last bit or within its bounds."""

from __future__ import annotations

from functools import partial

import pytest
import torch

import tilefold
from tilefold import monoids
from tilefold.algebra import powers
from tilefold.algebra.program import specialize
from tilefold.backends import reference
from tilefold.backends.cpu import native
from tilefold.planner.library import library_fold

INF, NAN = float("inf"), float("nan")
DEPTH = (
    4 * 16 + 16
)  # torch sums in four levels of 16 additions, up to 2^16 times its lanes; then the lanes are combined
EXACT = {
    "max": monoids.MAX, "min": monoids.MIN, "minmax": monoids.MINMAX, "argmax": monoids.ARGMAX,
    "argmin": monoids.ARGMIN, "max_with_index": monoids.MAX_WITH_INDEX, "min_with_index": monoids.MIN_WITH_INDEX,
    "any": monoids.ANY, "all": monoids.ALL, "count_nonzero": monoids.COUNT_NONZERO, "first": monoids.FIRST,
    "last": monoids.LAST, "sum": monoids.SUM, "prod": monoids.PROD,
}  # fmt: skip
DTYPES = (
    torch.float32, torch.float64, torch.float16, torch.bfloat16,
    torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64,
)  # fmt: skip


def torchs(tensors, program, dims, guarantee, *, forced=False):
    """Torch's own answer where it has this fold, else None."""
    function = library_fold(tensors, program, dims, guarantee, forced=forced)
    return None if function is None else native.fold(function, tensors[0], dims, program)


def run(monoid, x, dims, guarantee="run_to_run", *, forced=True, dtype=None):
    program = specialize(monoid.total, (x.dtype,), dtype)
    return torchs([x], program, dims, guarantee, forced=forced), reference.fold([x], program, dims)


def few_values(shape, dtype):
    """Small whole numbers with ties; their sums and products are exact."""
    return torch.randint(0 if dtype == torch.uint8 else -1, 2, shape).to(dtype)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("name", EXACT)
def test_the_references_own_answer(name, dtype):
    x = few_values((3, 4, 5), dtype)
    served = 0
    for view in (x, x.transpose(0, 2), x[:, 1:3]):
        for dims in ((0,), (2,), (0, 2), (0, 1, 2)):
            got, want = run(EXACT[name], view, dims)
            if got is None:
                continue
            served += 1
            for mine, theirs in zip(got, want, strict=True):
                assert mine.dtype == theirs.dtype
                assert torch.equal(mine, theirs)
    assert served or (name == "prod" and dtype in (torch.float16, torch.bfloat16))


@pytest.mark.parametrize(
    "row", [[1.0, NAN, 5.0, NAN], [INF, -INF, 1.0], [-INF, -INF], [NAN], [0.0, 2.0, 2.0]], ids=str
)
@pytest.mark.parametrize("name", EXACT)
def test_nan_infinities_and_ties(name, row):
    for dtype in (torch.float32, torch.bfloat16):
        got, want = run(EXACT[name], torch.tensor([row, row], dtype=dtype), (1,))
        for mine, theirs in zip(got or [], want, strict=got is not None):
            torch.testing.assert_close(mine, theirs, rtol=0, atol=0, equal_nan=True)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16], ids=str)
def test_halves_are_summed_wide_and_rounded_once(dtype):
    x = torch.randn(70_000).abs().to(dtype)
    exact = x.double().sum()
    for wanted in (None, torch.float32):
        got = run(monoids.SUM, x[:4000], (0,), dtype=wanted)[0][0]
        assert got.dtype == (wanted or dtype)
    got = torchs([x], specialize(monoids.SUM.total, (dtype,), torch.float32), (0,), "run_to_run")
    assert got is not None
    assert (got[0].double() - exact).abs() <= 2 * DEPTH * 2.0**-24 * exact


@pytest.mark.parametrize("length", [1, 63, 1025, 100_000])
def test_float32_sums_stay_in_the_bound(length):
    x = torch.randn(length) + 1e4
    got = torchs([x], specialize(monoids.SUM.total, (x.dtype,)), (0,), "run_to_run")
    assert got is not None
    want = x.double().sum()
    assert (got[0].double() - want).abs() <= 2 * (
        64 + 16
    ) * 2.0**-24 * x.double().abs().sum() + 2.0**-24 * want.abs()


ROUNDED = {
    "logsumexp": (monoids.LOGSUMEXP, torch.logsumexp),
    **{f"norm {p:g}": (monoids.NORM(p), partial(torch.linalg.vector_norm, ord=p)) for p in (1.0, 2.0, INF)},
    **{f"var {c}": (powers.spread(float(c), False, False), partial(torch.var, correction=c)) for c in (0, 1)},
    **{f"std {c}": (powers.spread(float(c), True, False), partial(torch.std, correction=c)) for c in (0, 1)},
}


@pytest.mark.parametrize("name", ROUNDED)
def test_what_is_rounded_is_torchs_in_double(name):
    monoid, function = ROUNDED[name]
    x = torch.randn(5, 40)
    got = torchs([x], specialize(monoid.total, (x.dtype,)), (1,), "run_to_run", forced=True)
    assert got is not None
    torch.testing.assert_close(got[0].double(), function(x.double(), dim=1), rtol=DEPTH * 2.0**-24, atol=0)


@pytest.mark.parametrize("name", ["sum", "prod", "max", "min", "minmax", "max_with_index"])
def test_batch_invariant_floats_stay_with_the_lanes(name):
    x = torch.randn(4, 100)
    assert run(EXACT[name], x, (1,), "batch_invariant")[0] is None
    assert run(EXACT[name], x.to(torch.int64), (1,), "batch_invariant")[0] is not None


@pytest.mark.parametrize(
    ("monoid", "x", "dims"),
    [
        pytest.param(monoids.WELFORD, torch.ones(3), (0,), id="not-in-torch"),
        pytest.param(monoids.SUM, torch.ones(3, 0), (1,), id="nothing-to-fold"),
        pytest.param(monoids.SUM, torch.ones(3), (), id="no-dims"),
        pytest.param(monoids.SUM, torch.ones(3, dtype=torch.uint16), (0,), id="unsigned"),
        pytest.param(monoids.ARGMAX, torch.ones(3, 4, 5), (0, 1), id="argmax-of-several-dims"),
        pytest.param(monoids.PROD, torch.ones(3, dtype=torch.float16), (0,), id="prod-of-halves"),
    ],
)
def test_what_torch_has_not_is_left(monoid, x, dims):
    assert torchs([x], specialize(monoid.total, (x.dtype,)), dims, "run_to_run", forced=True) is None


def test_converted_elements_are_left():
    program = specialize(monoids.SUM.total, (torch.float64,))
    assert torchs([torch.ones(3)], program, (0,), "run_to_run", forced=True) is None


def test_the_plan_says_who_made_it():
    x = torch.randn(1000)
    tilefold.reduce(x, monoids.SUM)
    plan = tilefold.last_plan()
    assert plan is not None
    assert plan.backend == "torch"
    with tilefold.backend("cpu"):
        tilefold.reduce(x, monoids.SUM)
        forced = tilefold.last_plan()
    assert forced is not None
    assert forced.backend == "cpu"


def test_a_users_own_sum_is_recognised_by_its_graph():
    mine = tilefold.Monoid(lambda p, q: p + q, 0, name="mine", commutative=True)
    assert run(mine, torch.ones(5), (0,))[0][0].item() == 5.0


def test_a_long_fold_goes_where_it_is_faster():
    long, short = torch.randn(1 << 16), torch.randn(100)
    program = specialize(monoids.LOGSUMEXP.total, (torch.float32,))
    assert torchs([long], program, (0,), "run_to_run") is None
    assert torchs([short], program, (0,), "run_to_run") is not None
    torch.testing.assert_close(torchs([long], program, (0,), "run_to_run", forced=True)[0], long.logsumexp(0))


ROWS = torch.linspace(0.5, 2.0, 37 * 24).view(37, 24).sin() + 2  # no row of zeros, none equal to another
SCALE = torch.linspace(0.5, 1.5, 24)


def backward(function, *others):
    """The gradient of a function's sum of weighted results."""

    def call(x):
        given = [t.detach().to(x.dtype).requires_grad_() for t in (x, *others)]
        made = function(*given)
        return torch.cat([t.flatten() for t in torch.autograd.grad(made, given, ROWS.to(x.dtype).cos())])

    return call


def pulled(function, *others):
    """The same by torch.func, which sees an operation of ours."""

    def call(x):
        given = [t.detach().to(x.dtype) for t in (x, *others)]
        found = torch.func.vjp(function, *given)[1](ROWS.to(x.dtype).cos())
        return torch.cat([t.flatten() for t in found])

    return call


# A call of each of torch's functions that answer for a map, and torch's own.
MAPPED = {
    "torch.softmax backward": (
        pulled(lambda x: tilefold.softmax(x, 1)),
        backward(lambda x: torch.softmax(x, 1)),
    ),
    "torch.log_softmax backward": (
        pulled(lambda x: tilefold.log_softmax(x, 1)),
        backward(lambda x: torch.log_softmax(x, 1)),
    ),
    "torch.layer_norm backward": (
        pulled(lambda x, w: tilefold.layer_norm(x, (24,), w), SCALE),
        backward(lambda x, w: torch.layer_norm(x, (24,), w), SCALE),
    ),
    "torch.softmax": (lambda x: tilefold.softmax(x, 1), lambda x: torch.softmax(x, 1)),
    "torch.log_softmax": (lambda x: tilefold.log_softmax(x, 1), lambda x: torch.log_softmax(x, 1)),
    "torch.layer_norm": (
        lambda x: tilefold.layer_norm(x, (24,), SCALE.to(x.dtype)),
        lambda x: torch.layer_norm(x, (24,), SCALE.to(x.dtype)),
    ),
    "torch.rms_norm": (
        lambda x: tilefold.rms_norm(x, (24,), SCALE.to(x.dtype), eps=1e-5),
        lambda x: torch.rms_norm(x, (24,), SCALE.to(x.dtype), eps=1e-5),
    ),
    "torch.group_norm": (
        lambda x: tilefold.group_norm(x, 4, SCALE.to(x.dtype)),
        lambda x: torch.group_norm(x, 4, SCALE.to(x.dtype)),
    ),
    "torch.linalg.vector_norm": (
        lambda x: tilefold.normalize(x, 2.0, 1),
        lambda x: torch.nn.functional.normalize(x, 2.0, 1),
    ),
}


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
# Those of var and std are made of torch's operations and have bits of their own (test_torchs_own_derivative_of_moments).
@pytest.mark.parametrize("name", [n for n in native.MAPS if not n.startswith(("var", "std"))])
def test_a_map_is_torchs_own(name, dtype, monkeypatch):
    """Every entry is taken by some call, which then has torch's bits; of rows whose squares float32 holds."""
    taken, own = [], native.MAPS[name]
    monkeypatch.setitem(native.MAPS, name, lambda *arguments: taken.append(name) or own(*arguments))
    ours, theirs = MAPPED[name]
    x = ROWS.to(dtype)
    assert torch.equal(ours(x), theirs(x))
    assert taken == [name]
