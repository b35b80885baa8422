"""`reduce_map` and what torch has of its kind: on every backend beside the definition in float64."""

from __future__ import annotations

import itertools
import warnings
from collections.abc import Callable
from typing import Any

import pytest
import torch

import tilefold as tf
from mapped_rows import check, cut
from tilefold import monoids
from tilefold.errors import ArgumentError, ArityError, GradientError, KindError, ShapeError

pytestmark = [
    pytest.mark.usefixtures("in_registers"),
    # Elements under no mask are computed with and thrown away.
    pytest.mark.filterwarnings("ignore::DeprecationWarning"),
]
F = torch.nn.functional
BACKENDS = ["auto", "cpu", "reference", "interpret"]
NAN, INF = float("nan"), float("inf")


@pytest.fixture(params=BACKENDS)
def backend(request: Any) -> Any:
    with tf.backend(request.param):
        yield request.param


LAYOUTS: dict[str, Callable[[torch.dtype], torch.Tensor]] = {
    "rows": lambda dtype: cut(5, 64, dtype=dtype),
    "odd rows": lambda dtype: cut(3, 67, dtype=dtype),
    "misaligned": lambda dtype: cut(3, 32, dtype=dtype, offset=1),
    "transposed": lambda dtype: cut(33, 6, dtype=dtype).t(),
    "expanded": lambda dtype: cut(1, 17, dtype=dtype).expand(4, 17),
    "every other": lambda dtype: cut(6, 34, dtype=dtype)[::2, ::2],
    "one element": lambda dtype: cut(3, 1, dtype=dtype),
    "one row": lambda dtype: cut(1, 31, dtype=dtype),
}


@pytest.mark.parametrize("dim", [0, 1])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("name", LAYOUTS)
def test_softmax(backend: str, name: str, dtype: torch.dtype, dim: int) -> None:
    x = LAYOUTS[name](dtype)
    check(tf.softmax(x, dim), torch.softmax(x.double(), dim), dtype)
    check(tf.log_softmax(x, dim), torch.log_softmax(x.double(), dim), dtype)


@pytest.mark.parametrize("dtype", [torch.float64, torch.float16], ids=str)
@pytest.mark.parametrize("name", ["odd rows", "transposed", "expanded"])
def test_norms(backend: str, name: str, dtype: torch.dtype) -> None:
    x = LAYOUTS[name](dtype)
    wide, n = x.double(), x.shape[1]
    w, b = cut(n, dtype=dtype), cut(n, dtype=dtype)
    check(tf.layer_norm(x, (n,), w, b), F.layer_norm(wide, (n,), w.double(), b.double()), dtype)
    check(tf.layer_norm(x, (n,), bias=b), F.layer_norm(wide, (n,), None, b.double()), dtype)
    check(tf.rms_norm(x, [n], w, 1e-6), F.rms_norm(wide, (n,), w.double(), 1e-6), dtype)
    check(tf.normalize(x), F.normalize(wide), dtype)
    check(tf.normalize(x, 3.0, (0, 1)), wide / wide.norm(3), dtype)


def test_a_residual_is_added_and_given_back(backend: str) -> None:
    x, r, w = (cut(4, 40, dtype=torch.bfloat16) for _ in range(3))
    total = x.double() + r.double()
    got, added = tf.rms_norm(x, (40,), w[0], 1e-6, residual=r)
    check(added, total, torch.bfloat16)
    check(got, F.rms_norm(total, (40,), w[0].double(), 1e-6), torch.bfloat16)
    got, added = tf.layer_norm(x, (40,), w[0], residual=r)
    check(added, total, torch.bfloat16)
    check(got, F.layer_norm(total, (40,), w[0].double()), torch.bfloat16)


@pytest.mark.parametrize("name", ["rms_norm", "layer_norm"])
def test_a_residual_of_more_bits_keeps_them(name: str, backend: str) -> None:
    """The dtype of the sum in torch: residual streams of models are float32 beside activations of 16 bits."""
    x, r = cut(4, 40, dtype=torch.bfloat16), cut(4, 40, dtype=torch.float32)
    for a, b in ((x, r), (r, x), (x, r.double())):
        dtype = (a + b).dtype
        got, added = getattr(tf, name)(a, (40,), residual=b)
        check(added, a.double() + b.double(), dtype)
        check(got, getattr(F, name)((a + b).double(), (40,)), dtype)
        into = torch.empty_like(a + b), torch.empty_like(a + b)
        getattr(tf, name)(a, (40,), residual=b, out=into)
        assert torch.equal(into[0], got)
        assert torch.equal(into[1], added)


@pytest.mark.parametrize("shape", [(2, 6), (2, 6, 5), (3, 4, 2, 7), (0, 4, 2), (2, 4, 0)], ids=str)
def test_group_norm(backend: str, shape: tuple[int, ...]) -> None:
    x, w, b = cut(*shape), cut(shape[1]), cut(shape[1])
    check(tf.group_norm(x, 2, w, b), F.group_norm(x.double(), 2, w.double(), b.double()), torch.float32)
    y = cut(*shape).transpose(0, -1).contiguous().transpose(0, -1)
    check(tf.group_norm(y, 2), F.group_norm(y.double(), 2), torch.float32)


def test_rows_of_infinities_and_nan(backend: str) -> None:
    values = [-INF, 0.0, 1.0, INF, NAN]
    x = torch.tensor(list(itertools.product(values, repeat=3)), dtype=torch.float32)
    for ours, theirs in ((tf.softmax, torch.softmax), (tf.log_softmax, torch.log_softmax)):
        torch.testing.assert_close(ours(x, 1), theirs(x, 1), equal_nan=True)
    torch.testing.assert_close(tf.layer_norm(x, (3,)), F.layer_norm(x, (3,)), equal_nan=True)


@pytest.mark.parametrize("shape", [(0,), (0, 3), (3, 0), ()], ids=str)
def test_nothing_and_one(backend: str, shape: tuple[int, ...]) -> None:
    x = torch.ones(shape)
    got = tf.softmax(x, -1)
    assert got.shape == x.shape
    assert (got == 1).all() or not x.numel()


def test_dtype_converts_first(backend: str) -> None:
    x = torch.tensor([[1, 2, 3], [5, 5, 5]], dtype=torch.int16)
    check(tf.softmax(x, 1, torch.float32), torch.softmax(x, 1, torch.float64), torch.float32)
    y = cut(2, 9)
    check(tf.softmax(y, 1, dtype=torch.float64), torch.softmax(y.double(), 1), torch.float64)
    check(tf.softmax(y, 1, torch.bfloat16), torch.softmax(y.bfloat16().double(), 1), torch.bfloat16)


@pytest.mark.parametrize("shape", [(1, 5), (1, 1, 5)], ids=str)
def test_an_extra_tensor_of_one_row_of_all_dims_has_its_gradient(shape: tuple[int, ...]) -> None:
    x, weight = (
        torch.randn(shape, dtype=torch.float64),
        torch.randn(5, dtype=torch.float64, requires_grad=True),
    )
    made = tf.reduce_map(x, monoids.SUM, lambda x, total, w: x * total * w, extras=weight)
    (got,) = torch.autograd.grad(made.sum(), weight)
    torch.testing.assert_close(got, (x * x.sum()).reshape(5))


def test_several_inputs_extras_and_outputs(backend: str) -> None:
    x, y, e = cut(4, 1, 9), cut(5, 1), cut(9)
    dot = tf.Monoid(lambda a, b: a + b, 0, lift=lambda x, y: x * y, commutative=True, check=False)
    got = tf.reduce_map((x, y), dot, lambda x, y, s, e: (x - s * e, x > y), (0, 2), extras=e)
    a, b = torch.broadcast_tensors(x.double(), y.double())
    check(got[0], a - (a * b).sum((0, 2), keepdim=True) * e, torch.float32)
    assert torch.equal(got[1], a > b)


def test_whole_numbers_stay_whole(backend: str) -> None:
    x = torch.randint(-100, 100, (5, 13), dtype=torch.int32)
    got = tf.reduce_map(x, monoids.MAX, lambda x, most: (x - most, x == most, x * 0.5), 1)
    most = x.amax(1, keepdim=True)
    assert torch.equal(got[0], x - most)
    assert torch.equal(got[1], x == most)
    assert torch.equal(got[2], x * 0.5)


def test_positions_and_order(backend: str) -> None:
    x = cut(3, 37)
    best, place = x.max(1, keepdim=True)
    got = tf.reduce_map(x, monoids.MAX_WITH_INDEX, lambda x, value, index: (x - value, index), 1)
    assert torch.equal(got[0], x - best)
    assert torch.equal(got[1], place.expand(3, 37))
    got = tf.reduce_map(x, monoids.LAST, lambda x, last: x - last, 1)
    assert torch.equal(got, x - x[:, -1:])


def test_in_place(backend: str) -> None:
    x = cut(6, 40)
    want = torch.softmax(x.double(), 1)
    tf.softmax(x, 1, out=x)
    check(x, want, torch.float32)
    y, r = cut(6, 40), cut(6, 40)
    total = y.double() + r.double()
    tf.rms_norm(y, (40,), eps=0.0, residual=r, out=(y, r))
    check(r, total, torch.float32)
    check(y, F.rms_norm(total, (40,), eps=0.0), torch.float32)
    z = cut(40, 6).t()
    want = torch.softmax(z.double(), 1)
    tf.softmax(z, 1, out=z)
    check(z, want, torch.float32)


def test_a_refused_call_leaves_its_input() -> None:
    x = cut(8)
    before = x.clone()
    with pytest.raises(ShapeError, match="overlap"):
        tf.softmax(x[:7], 0, out=x[1:])
    assert torch.equal(x, before)


@pytest.mark.parametrize("backend", ["cpu", "interpret"])
def test_bits_of_a_row_do_not_depend_on_how_many_there_are(backend: str) -> None:
    x = cut(9, 70, dtype=torch.bfloat16)
    with tf.backend(backend):
        every = tf.softmax(x, 1, guarantee="batch_invariant")
        for rows in (1, 5):
            assert torch.equal(tf.softmax(x[:rows], 1, guarantee="batch_invariant"), every[:rows])


def test_bits_of_a_column_do_not_depend_on_its_neighbours() -> None:
    x = cut(70, 33, dtype=torch.bfloat16)
    with tf.backend("cpu"):
        every = tf.softmax(x, 0, guarantee="batch_invariant")
        some = tf.softmax(x[:, :5].contiguous(), 0, guarantee="batch_invariant")
    assert torch.equal(every[:, :5], some)


def test_meta_fake_subclasses_and_gradients() -> None:
    meta = tf.softmax(torch.empty(3, 4, device="meta", dtype=torch.bfloat16), 1)
    assert meta.shape == (3, 4)
    assert meta.dtype == torch.bfloat16
    with torch._subclasses.FakeTensorMode():
        assert tf.rms_norm(torch.empty(3, 4), (4,)).shape == (3, 4)

    class Own(torch.Tensor):
        pass

    x = cut(2, 5)
    assert type(tf.softmax(x.as_subclass(Own), 1)) is Own
    assert type(tf.layer_norm(x, (5,), x[0].as_subclass(Own))) is Own
    assert type(tf.reduce_map(x.as_subclass(Own), monoids.SUM, lambda x, s: x / s, 1)) is Own
    with pytest.raises(GradientError, match="require grad"):
        tf.softmax(x.clone().requires_grad_(), 1, out=torch.empty_like(x))
    check(tf.softmax(torch._neg_view(x), 1), torch.softmax(-x.double(), 1), torch.float32)


@pytest.mark.parametrize("dim", [(), None, (0, 1)])
def test_normalize_takes_no_dims_for_all(dim: Any) -> None:
    x = cut(3, 4)
    check(tf.normalize(x, dim=dim), F.normalize(x, dim=dim), torch.float32)


def test_numbers_that_no_float_holds_are_infinite() -> None:
    x = cut(3, 4)
    assert torch.equal(tf.normalize(x, 10**400), tf.normalize(x, INF))
    assert (tf.rms_norm(x, (4,), eps=10**400) == 0).all()


def test_group_norm_into_out(backend: str) -> None:
    x = cut(2, 6, 5)
    want = F.group_norm(x.double(), 3)
    for out in (torch.empty(2, 6, 5), torch.empty(5, 6, 2).transpose(0, 2), (torch.empty(2, 6, 5),), x):
        got = tf.group_norm(x, 3, out=out)
        assert got is (out[0] if isinstance(out, tuple) else out)
        check(got, want, torch.float32)


COMPILED: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "softmax": lambda x: tf.softmax(x, 1),
    "log_softmax": lambda x: tf.log_softmax(x, 1),
    "layer_norm": lambda x: tf.layer_norm(x, (8,), x[0], x[1]),
    "rms_norm": lambda x: tf.rms_norm(x, (8,), residual=x)[1],
    "group_norm": lambda x: tf.group_norm(x, 2),
    "normalize": lambda x: tf.normalize(x),
    "reduce_map": lambda x: tf.reduce_map(x, monoids.SUM, lambda x, s: x / s, 1),
}


@pytest.mark.parametrize("name", COMPILED)
def test_a_compiled_function_calls_it_without_warnings(name: str) -> None:
    function, x = COMPILED[name], cut(4, 8)
    torch._dynamo.reset()
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        got = torch.compile(lambda x: function(x * 2) + 1, backend="eager")(x)
    assert not [w.message for w in said if not issubclass(w.category, DeprecationWarning)]
    assert torch.equal(got, function(x * 2) + 1)


@pytest.mark.parametrize("order", [1, 2, INF], ids=str)
@pytest.mark.parametrize("shape", [(3, 5), (2, 3, 64), (2, 1024), (2, 1025), (3, 2500), (7,)], ids=str)
def test_rows_are_normalized_by_torchs_norm(shape: tuple[int, ...], order: float) -> None:
    x = torch.randn(shape, generator=torch.Generator().manual_seed(3))
    for _ in range(2):  # the second is answered by what the first planned
        made = tf.normalize(x, order, -1)
        assert str(tf.last_plan()).startswith("torch: torch.linalg.vector_norm")
        wide = x.double()
        want = wide / torch.linalg.vector_norm(wide, order, -1, True)
        torch.testing.assert_close(made.double(), want, rtol=1e-6, atol=0)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=str)
@pytest.mark.parametrize("asked", [False, True], ids=["of the dtype", "converted"])
def test_log_softmax_of_halves_is_rounded_once(dtype: torch.dtype, asked: bool) -> None:
    x = torch.tensor([[3.0, 1.0]]).to(dtype)
    got = tf.log_softmax(x.float(), 1, dtype) if asked else tf.log_softmax(x, 1)
    assert torch.equal(got, torch.log_softmax(x.double(), 1).to(dtype))


def test_norms_that_float32_does_not_hold_are_not_torchs() -> None:
    x = torch.tensor([[3.0, 4.0], [0.0, 0.0]])
    for scale in (1.0, 1e-25, 1e25):
        torch.testing.assert_close(tf.normalize(x * scale, eps=0.0)[0], torch.tensor([0.6, 0.8]))
    assert not str(tf.last_plan()).startswith("torch")
    assert tf.normalize(x)[1].tolist() == [0.0, 0.0]
    assert str(tf.last_plan()).startswith("torch")


# ------------------------------------------------------------------------------------------------ one value a row


@pytest.mark.parametrize("dim", [0, 1])
@pytest.mark.parametrize("name", ["odd rows", "transposed", "every other", "one element"])
def test_rows_are_given_beside_elements(backend: str, name: str, dim: int) -> None:
    """With 1 along the reduced dim, as they were computed."""
    x = LAYOUTS[name](torch.bfloat16)
    shifted, largest, whole = tf.reduce_map(
        x, monoids.LOGSUMEXP, lambda v, total: v - total, dim, rows=lambda total: (total, total > 0)
    )
    want = torch.logsumexp(x.double(), dim, keepdim=True)
    check(shifted, x.double() - want, torch.bfloat16)
    check(largest, want, torch.float32)
    assert torch.equal(whole, largest > 0)


@pytest.mark.parametrize("dim", [(0, 2), (1, 2), (0, 1, 2), ()], ids=str)
def test_rows_of_several_dims(backend: str, dim: tuple[int, ...]) -> None:
    x = cut(4, 5, 6).permute(2, 0, 1)
    _, count, mean, squares = tf.reduce_map(
        x, monoids.WELFORD, lambda v, n, m, s: v - m, dim, rows=lambda n, m, s: (n, m, s)
    )
    kept = [1 if d in dim else size for d, size in enumerate(x.shape)]
    assert count.dtype == torch.int64
    assert torch.equal(count, torch.full(kept, x.numel() // torch.Size(kept).numel()))
    wide = x.double()
    check(mean, wide.mean(dim, keepdim=True) if dim else wide, torch.float32)
    deviations = wide.var(dim, correction=0, keepdim=True) if dim else torch.zeros_like(wide)
    check(squares, deviations * count, torch.float32)


@pytest.mark.parametrize("shape", [(3, 0), (0, 4), (0, 0)], ids=str)
def test_rows_of_nothing(backend: str, shape: tuple[int, ...]) -> None:
    """Are of the identity."""
    made, total = tf.reduce_map(torch.ones(shape), monoids.SUM, lambda v, t: v / t, 1, rows=lambda t: t + 1)
    assert made.shape == shape
    assert torch.equal(total, torch.ones(shape[0], 1))


def test_one_value_a_row_goes_in(backend: str) -> None:
    """As an input that is folded, and beside them: a state that was stored, a cotangent."""
    x, state, beside = cut(5, 40), cut(5, 1), cut(5, 1)
    wide = [t.double() for t in (x, state, beside)]
    scaled = tf.Monoid(lambda a, b: a + b, 0, lift=lambda v, s: v * s, commutative=True)
    made = tf.reduce_map((x, state), scaled, lambda v, s, total, b: v * total + s * b, 1, extras=beside)
    check(made, wide[0] * (wide[0] * wide[1]).sum(1, True) + wide[1] * wide[2], torch.float32)


def test_rows_that_no_program_holds() -> None:
    """Are folded in one launch and mapped in another."""
    ordered = tf.Monoid(
        lambda a, b: (a[0] * b[0], a[1] * b[0] + b[1]), (1, 0), lift=lambda v: (v, v), fields=("p", "s")
    )
    x = torch.rand(3, 50)
    with tf.backend("interpret"):
        made, last = tf.reduce_map(x, ordered, lambda v, p, s: v + s, 1, rows=lambda p, s: s)
        assert tf.last_plan().strategy == "groups"
    with tf.backend("reference"):
        want, total = tf.reduce_map(x, ordered, lambda v, p, s: v + s, 1, rows=lambda p, s: s)
    check(made, want, torch.float32)
    check(last, total, torch.float32)


def test_what_rows_must_be() -> None:
    x = torch.ones(2, 3)
    with pytest.raises(KindError, match=r"`rows` must be a function or None, got int"):
        tf.reduce_map(x, monoids.SUM, lambda v, t: v, 1, rows=1)  # type: ignore[arg-type]
    with pytest.raises(ArityError, match=r"`rows` must take each result of the fold, 1 in all, got .*a, b"):
        tf.reduce_map(x, monoids.SUM, lambda v, t: v, 1, rows=lambda a, b: a)
    with pytest.raises(ArgumentError, match=r"`out` must be None where `rows` is given"):
        tf.reduce_map(x, monoids.SUM, lambda v, t: v, 1, rows=lambda t: t, out=torch.empty(2, 3))
