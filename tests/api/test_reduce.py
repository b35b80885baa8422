"""`reduce` against answers computed in plain Python: any layout, dims, dtype, monoid and inputs, on every CPU path."""

from __future__ import annotations

import itertools
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode

import tilefold as tf
from answers import (
    ALL,
    BACKENDS,
    DIGEST,
    FOLDS,
    GUARANTEES,
    INF,
    NAME,
    NOBODY_S,
    ORDERED,
    Fold,
    check,
    fill,
    guarded,
    textbook,
)
from layouts import dims_of, layouts, shapes
from tilefold import Monoid, math, monoids
from tilefold.errors import DtypeError

EVERY_BACKEND = pytest.mark.parametrize("name", BACKENDS)


# --------------------------------------------------------------------------------------- any fold of any layout


@st.composite
def folds(draw: st.DrawFn, names: tuple[str, ...]) -> tuple[Fold, list[torch.Tensor], tuple[int, ...]]:
    """A fold, inputs that broadcast (some with fewer dims), and the dims to fold."""
    fold = FOLDS[draw(st.sampled_from(names))]
    dtype = draw(st.sampled_from(fold.dtypes))
    shape = draw(shapes() if fold.empty else shapes(sizes=(1, 2, 3, 5, 9)))
    seed = draw(st.integers(0, 99))
    tensors = []
    for number in range(fold.monoid.algebra.inputs):
        layout = draw(layouts(len(shape), may_broadcast=number > 0))
        x = layout.place(shape, lambda own, n=number: fill(fold, dtype, own, seed + n))
        while number and x.ndim and x.shape[0] == 1 and draw(st.booleans()):
            x = x[0]
        tensors.append(x)
    dims = draw(dims_of(len(shape)))
    if not fold.empty and not all(shape[d] for d in dims):
        dims = ()
    return fold, tensors, dims


def able(name: str, tensors: list[torch.Tensor], dims: tuple[int, ...]) -> str:
    """The reference cannot shape no results yet: `test_no_results_are_no_results` says so."""
    shape = torch.broadcast_shapes(*(t.shape for t in tensors))
    empty = 0 in [n for d, n in enumerate(shape) if d not in dims]
    return "cpu" if name == "reference" and empty else name


def asked(draw: st.DrawFn, dims: tuple[int, ...], ndim: int) -> object:
    """The dims as a caller may write them: None for all, one number, any order, counted from either end."""
    if len(dims) == ndim and draw(st.booleans()):
        return None
    written = [d - ndim if draw(st.booleans()) else d for d in draw(st.permutations(dims))]
    if len(written) == 1 and draw(st.booleans()):
        return written[0]
    return draw(st.sampled_from([tuple, list]))(written)


@given(case=folds(tuple(FOLDS)), data=st.data(), name=st.sampled_from(BACKENDS))
def test_any_fold_of_any_layout(case, data, name):
    fold, tensors, dims = case
    ndim = max(t.ndim for t in tensors)
    keepdim = data.draw(st.booleans())
    before = [t.clone() for t in tensors]
    with tf.backend(able(name, tensors, dims)):
        got = tf.reduce(
            tensors[0] if len(tensors) == 1 else tensors,
            fold.monoid,
            asked(data.draw, dims, ndim),
            keepdim,
            guarantee=data.draw(st.sampled_from(GUARANTEES)),
        )
    check(fold, got, tensors, dims, keepdim)
    assert all(map(torch.equal, tensors, before)), "an input was written to"


@given(case=folds(ORDERED), name=st.sampled_from(BACKENDS), guarantee=st.sampled_from(GUARANTEES))
def test_order_is_kept(case, name, guarantee):
    fold, tensors, dims = case
    with tf.backend(able(name, tensors, dims)):
        check(fold, tf.reduce(tensors, fold.monoid, dims, guarantee=guarantee), tensors, dims)


@pytest.mark.parametrize("name", ["auto", "cpu"])
@pytest.mark.parametrize("length", [1, 63, 64, 65, 127, 1023, 1025])
@pytest.mark.parametrize("fold", FOLDS.values(), ids=str)
def test_lengths_around_powers_of_two(fold, length, name):
    dtype = fold.dtypes[-1]
    for shape, dim in (((3, length), 1), ((length, 3), 0)):
        tensors = [fill(fold, dtype, shape, seed) for seed in range(fold.monoid.algebra.inputs)]
        with tf.backend(name):
            check(fold, tf.reduce(tensors, fold.monoid, dim), tensors, (dim,))


# Where the CPU's lanes start to cut: pieces, blocks and parts are powers of two between 2^14 and 2^19 elements.
LONG = [2**14 + 1, 2**16 - 1, 2**17 + 1, 2**18 + 1, 2**19 + 3, 2**20 + 1]


@pytest.mark.parametrize("length", LONG)
@pytest.mark.parametrize("guarantee", ["run_to_run", "batch_invariant"])
def test_long_folds_see_every_element_once_and_in_order(length, guarantee, cpu):
    """The digest of ones and positions: a missing, doubled or swapped element changes it."""
    x = torch.ones(length, dtype=torch.int8)
    position = torch.arange(length)
    powers = torch.full((length,), 31).cumprod(0).flip(0)  # wraps, as the fold does
    want = ((position + 7) * torch.cat([powers[1:], torch.ones(1, dtype=torch.int64)])).sum()
    got = tf.reduce(x, DIGEST, guarantee=guarantee)
    assert got.h == want
    assert got.p == powers[0]


@pytest.mark.parametrize(
    "shape", [(2**10 + 1, 2**9), (3, 2**18 + 1), (2**18 + 1, 3), (5, 2**9 + 1, 2**8)], ids=str
)
def test_large_tensors_fold_exactly(shape, cpu):
    x = torch.randint(-100, 100, shape, dtype=torch.int8)
    for dims in [(0,), (len(shape) - 1,), (0, len(shape) - 1), tuple(range(len(shape)))]:
        assert torch.equal(tf.reduce(x, monoids.SUM, dims), x.sum(dims))
        assert torch.equal(tf.reduce(x, monoids.MAX, dims), x.amax(dims))
    for dim in (0, 1):
        got = tf.reduce(x, monoids.MAX_WITH_INDEX, dim)
        assert torch.equal(got.values, x.amax(dim))
        assert torch.equal(got.indices, x.argmax(dim))
        assert torch.equal(tf.reduce(x, monoids.LAST, dim), x.select(dim, -1))


@pytest.mark.parametrize("dtype", ALL, ids=str)
def test_every_dtype_keeps_its_limits(dtype, cpu):
    info = (
        None if dtype == torch.bool else torch.finfo(dtype) if dtype.is_floating_point else torch.iinfo(dtype)
    )
    low, high = (False, True) if info is None else (info.min, info.max)
    x = torch.tensor([[low, high, low], [high, low, high]], dtype=dtype)
    assert torch.equal(tf.reduce(x, monoids.MAX, 1), torch.tensor([high, high], dtype=dtype))
    assert torch.equal(tf.reduce(x, monoids.MIN, 1), torch.tensor([low, low], dtype=dtype))
    assert tf.reduce(x, monoids.ARGMAX, 1).tolist() == [1, 0]
    assert torch.equal(tf.reduce(x, monoids.LAST, 1), x[:, -1])


@pytest.mark.parametrize("dtype", [torch.float8_e4m3fn, torch.float8_e5m2], ids=str)
def test_float8_is_folded_in_float32(dtype, cpu):
    x = torch.tensor([[0.5, -3.0, 2.0], [16.0, 16.0, 0.25]]).to(dtype)
    assert torch.equal(tf.reduce(x, monoids.SUM, 1).float(), x.float().sum(1).to(dtype).float())
    assert torch.equal(tf.reduce(x, monoids.SUM, 1, dtype=torch.float32), x.float().sum(1))
    assert torch.equal(tf.reduce(x, monoids.MAX, 1).float(), x.float().amax(1))
    assert tf.reduce(x, monoids.ARGMAX, 1).tolist() == [2, 0]


def test_dtypes_of_several_inputs_promote(cpu):
    x, keep = torch.tensor([1.5, 2.0, 4.0]), torch.tensor([True, False, True])
    weighted = Monoid(lambda a, b: a + b, 0, lift=lambda x, w: x * w)
    assert torch.equal(tf.reduce((x, keep), weighted), torch.tensor(5.5))
    assert tf.reduce((x.half(), x.bfloat16()), weighted).dtype == torch.float32
    assert tf.reduce((x.double(), keep), weighted).dtype == torch.float64
    assert tf.reduce((keep, torch.ones(3, dtype=torch.int8)), weighted).dtype == torch.int64


# ------------------------------------------------------------------------------- both forms of the textbook pair


@EVERY_BACKEND
@pytest.mark.parametrize("guarantee", GUARANTEES)
@pytest.mark.parametrize(
    ("combine", "identity"), [(textbook, None), (guarded, (-INF, 0))], ids=["no-identity", "guarded"]
)
def test_the_textbook_pair_folds_to_the_log_sum_exp(combine, identity, guarantee, name):
    pair = Monoid(
        combine, identity, fields=("m", "l"), lift=lambda x: (x, 1.0), project=lambda m, l: m + math.log(l)
    )
    x = torch.randn(5, 130) * 20
    with tf.backend(name):
        for dim in (0, 1, None):
            got = tf.reduce(x, pair, dim, guarantee=guarantee).double()
            want = x.double().logsumexp((0, 1) if dim is None else dim)
            # 10 levels of two exponentials, products and a sum, and the logarithm; the maximum is added last
            assert ((got - want).abs() <= 2**-24 * (8 * 14 + want.abs())).all()


@EVERY_BACKEND
def test_the_textbook_pair_without_identity_sees_minus_infinity_as_an_element(name):
    """Rows with finite elements are right even where some are -inf; an all -inf row is (-inf) - (-inf) of the user's own."""
    pair = Monoid(textbook, None, fields=("m", "l"), lift=lambda x: (x, 1.0))
    x = torch.tensor([[-INF, 1.0, 2.0, -INF], [3.0, -INF, -INF, 0.5]])
    with tf.backend(name):
        got = tf.reduce(x, pair, 1)
    assert got.m.tolist() == [2.0, 3.0]


# ------------------------------------------------------------------------------------------------- empty and 0-d


@EVERY_BACKEND
def test_folding_nothing_gives_the_projected_identity(name):
    average = Monoid(
        lambda a, b: (a.s + b.s, a.n + b.n),
        (0, 0),
        fields=("s", "n"),
        lift=lambda x: (x, 1.0),
        project=lambda s, n: (s / n, n + 5),
    )
    with tf.backend(name):
        ratio, count = tf.reduce(torch.empty(2, 0), average, 1)
        assert ratio.isnan().all()
        assert count.tolist() == [5.0, 5.0]
        assert tf.reduce(torch.empty(2, 0), monoids.SUM, 1, keepdim=True).tolist() == [[0.0], [0.0]]
        assert tf.reduce(torch.empty(0, dtype=torch.int8), monoids.MAX) == -128
        assert tf.reduce(torch.empty(0), monoids.MAX) == -INF
        assert tf.reduce(torch.empty(3, 0, 2), monoids.SUM, (0, 1)).tolist() == [0.0, 0.0]


@pytest.mark.parametrize("name", ["auto", "cpu", "reference"])
@pytest.mark.parametrize("monoid", [monoids.SUM, monoids.MAX_WITH_INDEX, monoids.LOGSUMEXP], ids=NAME)
def test_no_results_are_no_results(monoid, name):
    with tf.backend(name):
        got = tf.reduce(torch.empty(0, 3), monoid, 1)
    for result in got if isinstance(got, tuple) else [got]:
        assert result.shape == (0,)


@EVERY_BACKEND
@pytest.mark.parametrize("dim", [None, 0, -1, (), (0,)], ids=str)
def test_a_0d_tensor_is_one_element(dim, name):
    x = torch.tensor(3.0)
    with tf.backend(name):
        assert torch.equal(tf.reduce(x, monoids.SUM, dim), x)
        assert tf.reduce(x, monoids.SUM, dim, keepdim=True).shape == ()
        assert torch.equal(tf.reduce(x, monoids.ARGMAX, dim), torch.tensor(0))


def test_no_dims_lift_and_project_each_element(cpu):
    x = torch.tensor([[1.0, -2.0], [3.0, 0.5]])
    assert torch.equal(tf.reduce(x, monoids.NORM(1), ()), x.abs())
    assert tf.reduce(x, monoids.ARGMAX, ()).tolist() == [[0, 0], [0, 0]]


# --------------------------------------------------------------------------------------------- out, dtype, packing


def test_out_is_written_and_returned(cpu):
    x = torch.randn(4, 7)
    out = torch.empty(4)
    assert tf.reduce(x, monoids.SUM, 1, out=out) is out
    assert torch.equal(out, tf.reduce(x, monoids.SUM, 1))
    pair = torch.empty(2, 4)[0], torch.empty(8, dtype=torch.int64)[::2]
    got = tf.reduce(x, monoids.MAX_WITH_INDEX, 1, out=pair)
    assert got.values is pair[0]
    assert got.indices is pair[1]
    assert torch.equal(pair[1], x.argmax(1))


def test_out_of_any_layout(cpu):
    x = torch.randn(3, 4, 5)
    out = torch.empty(4, 3).t()
    assert tf.reduce(x, monoids.SUM, 2, out=out) is out
    torch.testing.assert_close(out, x.sum(2))
    kept = torch.empty(3, 1, 5)
    tf.reduce(x, monoids.MAX, 1, keepdim=True, out=kept)
    assert torch.equal(kept, x.amax(1, keepdim=True))


def test_out_beside_the_input_in_one_buffer(cpu):
    buffer = torch.arange(12.0)
    x, out = buffer[:9].view(3, 3), buffer[9:]
    assert tf.reduce(x, NOBODY_S, 1, out=out) is out
    assert torch.equal(out, (x**3 - 2).sum(1))
    assert torch.equal(x, torch.arange(9.0).view(3, 3))


@pytest.mark.parametrize(
    "out", [lambda x: x.view(-1)[6:], lambda x: x.view(-1)[1:4], lambda x: torch.from_numpy(x.numpy()[1])],
    ids=["end", "middle", "through numpy"],
)  # fmt: skip
def test_out_within_the_input(out, cpu):
    x = torch.ones(3, 3)
    with pytest.raises(RuntimeError, match="overlap an input"):
        tf.reduce(x, NOBODY_S, 1, out=out(x))


def test_out_on_meta():
    out = torch.empty(2, device="meta")
    assert tf.reduce(torch.empty(2, 3, device="meta"), NOBODY_S, 1, out=out) is out


def test_a_tensor_without_data_gives_results_without_data(cpu):
    """Outside its mode, too: fresh memory would hold anything."""
    fake = FakeTensorMode().from_tensor(torch.ones(2, 3))
    for results in (
        [tf.reduce(fake, NOBODY_S, 1)],
        [tf.mean(fake, 1)],
        tf.max(fake, 1),
        tf.var_mean(fake, 1),
        [tf.any(fake.byte(), 1)],
    ):
        for result in results:
            assert isinstance(result, FakeTensor)
            assert result.shape == (2,)


@pytest.mark.parametrize("name", ["auto", "cpu", "reference"])
def test_a_default_device_does_not_move_a_fold(name):
    x, fresh = (
        torch.arange(12).view(3, 4),
        float(len(name)),
    )  # a constant of its own, so that nothing is cached
    monoid = Monoid(
        lambda a, b: a + b, 0, lift=lambda x, i: x * fresh + i, index=True, check=False, commutative=True
    )
    with tf.backend(name), torch.device("meta"):
        result = tf.reduce(x, monoid, 1)
    again = tf.reduce(x, monoid, 1)
    assert result.device == x.device
    assert result.tolist() == again.tolist() == [fresh * s + 6 for s in (6, 22, 38)]


def test_nested_tensors_are_refused_by_name():
    nested = torch.nested.as_nested_tensor([torch.ones(2), torch.ones(3)], layout=torch.jagged)
    with pytest.raises(DtypeError, match=r"got a nested tensor; fold what unbind\(\) gives"):
        tf.sum(nested)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.float16, torch.int64], ids=str)
def test_dtype_asks_for_another_dtype_of_computed_results(dtype, cpu):
    x = torch.tensor([3.0, 4.0, 5.0], dtype=torch.bfloat16)
    got = tf.reduce(x, monoids.SUM, dtype=dtype)
    assert got.dtype == dtype
    assert got == 12
    both = tf.reduce(x, monoids.MAX_WITH_INDEX, dtype=torch.float32)
    assert both.indices.dtype == torch.int64


def test_a_result_in_float32_keeps_what_bfloat16_would_round(cpu):
    x = torch.ones(257, dtype=torch.bfloat16)
    assert tf.reduce(x, monoids.SUM) == 256
    assert tf.reduce(x, monoids.SUM, dtype=torch.float32) == 257


def test_results_come_as_the_user_wrote_them(cpu):
    x = torch.tensor([2.0, 6.0])
    state = Monoid(lambda a, b: (a.s + b.s, a.n + b.n), (0, 0), fields=("s", "n"), lift=lambda x: (x, 1.0))
    assert tf.reduce(x, state)._fields == ("s", "n")
    one = Monoid(lambda a, b: a + b, 0, project=lambda s: (s,))
    assert type(tf.reduce(x, one)) is tuple
    assert isinstance(tf.reduce(x, monoids.SUM), torch.Tensor)
    assert type(tf.reduce(x, monoids.MINMAX)).__name__ == "Extremes"


def test_results_own_their_memory(cpu):
    x = torch.ones(3, 1)
    for monoid in (monoids.SUM, monoids.MAX, monoids.FIRST, monoids.MINMAX):
        got = tf.reduce(x, monoid, 1)
        for result in got if isinstance(got, tuple) else [got]:
            result.add_(5)
    both = tf.reduce(x, monoids.MINMAX, 1)
    both.min.add_(1)
    assert torch.equal(x, torch.ones(3, 1))
    assert torch.equal(both.max, torch.ones(3))


def test_numbers_may_stand_anywhere(cpu):
    constant = Monoid(lambda a, b: (a.n + b.n, 7), (0, 7), fields=("n", "c"), lift=lambda x: (1, 7))
    got = tf.reduce(torch.zeros(2, 5), constant, 1)
    assert got.n.tolist() == [5, 5]
    assert got.c.tolist() == [7, 7]
    seven = Monoid(lambda a, b: a + b, 0, project=lambda s: 7)
    assert tf.reduce(torch.zeros(2, 5), seven, 1).tolist() == [7, 7]


POWERS = {
    "sum": lambda x: tf.sum(x, 1),
    "mean": tf.mean,
    "amax": lambda x: tf.amax(x, 0),
    "argmax": lambda x: tf.argmax(x, 1),
    "any": lambda x: tf.any(x, 1),
    "cumsum": lambda x: tf.cumsum(x, 1),
    "softmax": lambda x: tf.softmax(x, 1),
    "layer_norm": lambda x: tf.layer_norm(x, (20,)),
    "group_norm": lambda x: tf.group_norm(x, 2),
    "segment_reduce": lambda x: tf.segment_reduce(x, monoids.SUM, torch.tensor([0, 1, 4])),
    "topk": lambda x: tuple(tf.topk(x, 3)),
    "topk-smallest": lambda x: tuple(tf.topk(x, 3, 0, largest=False)),
}


@pytest.mark.parametrize("backend", ["auto", "cpu", "reference"])
@pytest.mark.parametrize("name", list(POWERS))
def test_powers_of_two_are_read_as_the_floats_that_they_are(name: str, backend: str) -> None:
    codes = torch.randint(118, 136, (4, 20), dtype=torch.uint8, generator=torch.Generator().manual_seed(2))
    codes[1, 7] = 255
    x = codes.view(torch.float8_e8m0fnu)
    with tf.backend(backend):
        got, want = (POWERS[name](t) for t in (x, x.float()))
    for g, w in zip(got, want, strict=True) if isinstance(got, tuple) else [(got, want)]:
        assert g.dtype == (w.dtype if g.dtype != x.dtype else torch.float8_e8m0fnu)
        torch.testing.assert_close(g.to(w.dtype), w, rtol=1e-5, atol=1e-5, equal_nan=True)


def test_no_fold_gives_powers_of_two() -> None:
    x = torch.ones(3).to(torch.float8_e8m0fnu)
    with pytest.raises(DtypeError, match=r"`dtype` must be a real or bool dtype, got torch.float8_e8m0fnu"):
        tf.sum(x, dtype=x.dtype)
    with pytest.raises(DtypeError, match=r"`out` must have the result's dtype torch.float32"):
        tf.sum(x, out=torch.empty((), dtype=x.dtype))
    with pytest.raises(DtypeError, match=r"a field dtype must be of real numbers or bool"):
        tf.Monoid(lambda a, b: a + b, 0, dtypes=x.dtype)


# ------------------------------------------------------------------------------------------------------------- states

CHUNKED = (
    monoids.SUM, monoids.PROD, monoids.MAX, monoids.MINMAX, monoids.FIRST, monoids.LAST, monoids.ALL, monoids.BITWISE_XOR,
    monoids.COUNT_NONZERO, monoids.LOGSUMEXP, monoids.WELFORD, monoids.NORM(2), monoids.NORM(3), monoids.DESCRIBE,
)  # fmt: skip


def as_list(values: Any) -> list[torch.Tensor]:
    return [values] if isinstance(values, torch.Tensor) else list(values)


DTYPES = (torch.int8, torch.uint64, torch.bool, torch.bfloat16, torch.float32, torch.float64)


@pytest.mark.parametrize("backend", ["auto", "cpu", "reference"])
@pytest.mark.parametrize("monoid", CHUNKED, ids=lambda m: m.name)
def test_chunks_fold_to_what_the_whole_does(monoid: Monoid, backend: str) -> None:
    """From each chunk's state to the next one's, over one dim or several; the last chunk is empty."""
    dtypes = DTYPES[:3] if monoid is monoids.BITWISE_XOR else DTYPES
    for dtype, (dim, keepdim) in itertools.product(dtypes, ((1, False), ((1, 2), True))):
        x = (torch.arange(42).reshape(3, 7, 2) * 5 % 4).to(dtype)
        with tf.backend(backend):
            want = as_list(tf.reduce(x, monoid, dim, keepdim))
            first, state = tf.reduce(x[:, :3], monoid, dim, keepdim, return_state=True)
            assert all(map(same, as_list(first), as_list(tf.reduce(x[:, :3], monoid, dim, keepdim))))
            if monoid._state_type is not None:
                assert state._fields == monoid.fields
            state = tf.reduce(x[:, 3:], monoid, dim, keepdim, init=state, return_state=True)[1]
            got = as_list(tf.reduce(x[:, 7:], monoid, dim, keepdim, init=state))
        assert all(map(same, got, want))


def same(a: torch.Tensor, b: torch.Tensor) -> bool:
    """Of one dtype and shape, and equal but for rounding."""
    near = torch.allclose(
        a.double(), b.double(), rtol=1e-2 if a.dtype == torch.bfloat16 else 1e-5, equal_nan=True
    )
    return a.dtype == b.dtype and a.shape == b.shape and near


@pytest.mark.filterwarnings("ignore:.*ndim > 0 to a scalar:DeprecationWarning")  # of Triton's interpreter
@pytest.mark.parametrize("monoid", [monoids.LOGSUMEXP, monoids.LAST], ids=lambda m: m.name)
def test_chunks_under_the_interpreter(monoid: Monoid) -> None:
    pytest.importorskip("triton")
    x = torch.arange(12.0).reshape(2, 6)
    with tf.backend("interpret"):
        state = tf.reduce(x[:, :2], monoid, 1, return_state=True)[1]
        assert same(tf.reduce(x[:, 2:], monoid, 1, init=state), tf.reduce(x, monoid, 1))


def test_a_state_of_a_norm_is_in_units() -> None:
    """Of squares beyond float32's range, too: a power of two, and the sum of squares in units of it."""
    x = torch.tensor([[3e30, 4e30], [3e-30, 4e-30], [3.0, 4.0]])
    norm, (unit, total) = tf.reduce(x, monoids.NORM(2), 1, return_state=True)
    torch.testing.assert_close(norm, torch.tensor([5e30, 5e-30, 5.0]), atol=0, rtol=1e-6)
    assert bool((torch.frexp(unit).mantissa == 0.5).all())
    torch.testing.assert_close(unit.double() * total.double().sqrt(), norm.double(), atol=0, rtol=1e-6)


def test_a_state_stands_before_the_elements() -> None:
    """Also where order matters, of nothing, and of no dims; an input that is its own state is not changed."""
    steps = Monoid(
        lambda a, b: (a.s * b.s, a.t * b.s + b.t), (1, 0), fields=("s", "t"), lift=lambda x: (x, x)
    )
    x = torch.tensor([2, 3, 5])
    assert tuple(tf.reduce(x[1:], steps, 0, init=(2, 2))) == tuple(tf.reduce(x, steps, 0))
    before = torch.tensor([1.0, -0.0])
    made, state = tf.reduce(torch.ones(2, 0), monoids.FIRST, 1, init=before, return_state=True)
    assert torch.equal(made, before)
    assert torch.signbit(state[1])
    assert made.data_ptr() != before.data_ptr()
    assert torch.equal(tf.reduce(torch.ones(2, 2), monoids.SUM, (), init=before), 1 + before.expand(2, 2))
    out = torch.empty(2)
    made, state = tf.reduce(torch.ones(2, 3), monoids.SUM, 1, init=2, return_state=True, out=out)
    assert made is out
    assert (out.tolist(), state.tolist()) == ([5, 5], [5, 5])
    plan = tf.last_plan()
    assert plan is not None
    assert plan.strategy != "each element"
