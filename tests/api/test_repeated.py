"""Repeated folds of one tensor on a CPU: answered by what the first call planned, and never otherwise than a first call."""

from __future__ import annotations

import contextlib
import random
from collections.abc import Callable
from typing import Any

import pytest
import torch

import tilefold as tf
from answers import bits_of, floor
from tilefold import monoids
from tilefold.api import dispatch
from tilefold.runtime import switch

X = torch.linspace(-2, 3, 35).view(5, 7)
PAIR = tf.Monoid(
    lambda a, b: (a[0] + b[0], tf.math.maximum(a[1], b[1])),
    (0, -float("inf")),
    lift=lambda x: (x, x),
    commutative=True,
)
MONOIDS = {
    "sum": monoids.SUM, "max": monoids.MAX, "argmax": monoids.ARGMAX, "located": monoids.MAX_WITH_INDEX,
    "pair": PAIR, "logsumexp": monoids.LOGSUMEXP, "moments": monoids.WELFORD, "norm": monoids.NORM(2.0),
    "or": monoids.BITWISE_OR, "last": monoids.LAST,
}  # fmt: skip
DTYPES = (torch.float32, torch.bfloat16, torch.float64, torch.int64, torch.uint8)
LAYOUTS: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "plain": lambda x: x, "transposed": lambda x: x.mT, "every other": lambda x: x[:, ::2], "reversed": lambda x: x.flip(0),
    "expanded": lambda x: x[:1].expand(4, 7), "offset": lambda x: x[1:, 1:],
}  # fmt: skip


@pytest.fixture(autouse=True)
def _no_executables(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(dispatch, "_executables", {})


def kept() -> set[Any]:
    """The keys of executables: of calls of one layout."""
    return {key for key, found in dispatch._executables.items() if not isinstance(found, dispatch.Site)}


def parts(made: Any) -> list[torch.Tensor]:
    return list(made) if isinstance(made, tuple) else [made]


@pytest.mark.parametrize("layout", list(LAYOUTS))
@pytest.mark.parametrize("keepdim", [False, True])
@pytest.mark.parametrize(
    ("name", "dtype"),
    [(n, d) for n in MONOIDS for d in DTYPES if not (n == "or" and d.is_floating_point)],  # bits of integers
    ids=str,
)
def test_a_repeated_fold_has_the_bits_of_the_first(
    name: str, layout: str, keepdim: bool, dtype: torch.dtype
) -> None:
    x, y = (LAYOUTS[layout](values.to(dtype)) for values in (X * 3, X.abs() + 1))
    for dim in (0, 1, (0, 1)):
        tf.reduce(x, MONOIDS[name], dim, keepdim)
        before = kept()
        again = [parts(tf.reduce(y, MONOIDS[name], dim, keepdim)) for _ in range(4)]
        assert kept() == before
        dispatch._executables.clear()
        first = parts(tf.reduce(y, MONOIDS[name], dim, keepdim))
        for mine, want in ((m, w) for made in again for m, w in zip(made, first, strict=True)):
            assert (mine.shape, mine.stride(), mine.dtype) == (want.shape, want.stride(), want.dtype)
            assert torch.equal(bits_of(mine), bits_of(want))
            assert mine.untyped_storage().data_ptr() != y.untyped_storage().data_ptr()


def test_elements_whose_squares_float32_does_not_hold_are_folded_again_in_a_repeated_call() -> None:
    want, _ = tf.std_mean(X, 1)
    tiny, _ = tf.std_mean(X * 1e-30, 1)
    torch.testing.assert_close(tiny, (X.double() * 1e-30).std(1).float(), rtol=1e-5, atol=0)
    assert "in units" in str(tf.last_plan())
    assert torch.equal(tf.std_mean(X, 1)[0], want)
    assert "in units" not in str(tf.last_plan())


def test_autocast_and_threads_are_seen() -> None:
    want, softmax, prefixes = tf.logsumexp(X, 1), tf.softmax(X, 1), tf.scan(X, monoids.SUM, 1)
    keys = kept()
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert torch.equal(tf.logsumexp(X, 1), want)
        assert torch.equal(tf.softmax(X, 1), softmax)
        assert torch.equal(tf.scan(X, monoids.SUM, 1), prefixes)
    assert keys == kept(), "a call inside autocast is known by no key"
    before = switch.call_key([X], monoids.SUM, 1, ())
    threads = torch.get_num_threads()
    torch.set_num_threads(threads + 1)
    try:
        assert switch.call_key([X], monoids.SUM, 1, ()) != before
    finally:
        torch.set_num_threads(threads)


def test_a_result_is_new_memory_in_every_call() -> None:
    first, second = tf.reduce(X, PAIR, 1), tf.reduce(X, PAIR, 1)
    held = {t.untyped_storage().data_ptr() for t in (*parts(first), *parts(second))}
    assert len(held) == 4


@pytest.mark.filterwarnings(
    "ignore:.torch.jit.script. is deprecated:DeprecationWarning"
)  # torch's own, in jvp
def test_a_closed_over_tensor_is_folded_inside_a_forward_derivative() -> None:
    """What has no derivative there stays plain: torch wraps whatever an operation touches."""
    w = torch.arange(12.0).view(3, 4)
    value, tangent = torch.func.jvp(lambda y: y * tf.var(w), (torch.ones(2),), (torch.ones(2),))
    assert value.tolist() == tangent.tolist() == [13.0, 13.0]


def test_a_plan_of_results_folded_again_reads_well() -> None:
    tf.var_mean(torch.arange(12.0).view(3, 4) * 1e-30, 1)
    assert str(tf.last_plan()).startswith("cpu: whole, in units 3 of 3 results")


MAPS: dict[str, Callable[[torch.Tensor], Any]] = {
    "of a user": lambda x: tf.reduce_map(x, tf.monoids.LOGSUMEXP, lambda x, whole: (x - whole, x > whole), 1),
    "with an extra": lambda x: tf.reduce_map(x, tf.monoids.SUM, lambda x, s, e: x / s + e, 1, extras=x[0]),
    "watched": lambda x: tf.normalize(x),
    "watched in tiles": lambda x: tf.normalize(x, dim=0),
    "watched beside an extra": lambda x: tf.reduce_map(
        x, monoids.NORM(2), lambda x, n, e: x / (n + e * 0), 0, extras=x[:1]
    ),
    "of several dims": lambda x: tf.softmax(x, (0, 1)),
    "in whole": lambda x: tf.softmax(x, 1, guarantee="batch_invariant"),
}


@pytest.mark.parametrize("scale", [1.0, 1e-25, 1e25])
@pytest.mark.parametrize("name", MAPS)
def test_a_repeated_map_has_the_bits_of_the_first(name: str, scale: float) -> None:
    x, y = X.float() + 0.25, (X.float() * 0.5 - 1.125) * scale
    MAPS[name](x)
    before = kept()
    again = [parts(MAPS[name](y)) for _ in range(4)]
    assert before == kept()
    assert len(before) == 1
    dispatch._executables.clear()
    first = parts(MAPS[name](y))
    assert all(all(map(torch.equal, made, first)) for made in again)
    with tf.backend("reference"):
        want = parts(MAPS[name](y))
    for mine, definition in zip(again[0], want, strict=True):
        atol = floor(definition, mine.dtype, 1e-6) if mine.is_floating_point() else 0
        torch.testing.assert_close(mine, definition, rtol=1e-5, atol=atol, equal_nan=True)


WEIGHT = torch.linspace(0.5, 1.5, 7)
ASKED: dict[str, Callable[[torch.Tensor, torch.Tensor], torch.Tensor]] = {
    "fold": lambda x, w: tf.logsumexp(x, 1),
    "map": lambda x, w: tf.softmax(x, 1),
    "norm": lambda x, w: tf.layer_norm(x, (7,), w),
    "scan": lambda x, w: tf.cumsum(x, 1),
    "user's": lambda x, w: tf.reduce(x, PAIR, 1)[0],
    "user's scan": lambda x, w: tf.scan(x, PAIR, 1)[0],
}  # fmt: skip


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("name", ASKED)
def test_calls_in_any_order_record_what_each_asks_for(name: str, seed: int) -> None:
    """Of one site: with and without a gradient, recorded or not, parameters and tensors, views of other layouts, modes."""
    rng, x = random.Random(seed), X.float()
    given = [
        x,
        x.clone().requires_grad_(),
        torch.nn.Parameter(x.clone()),
        x.double(),
        torch._neg_view(-x),
        x[:, :7],
    ]
    weights = [WEIGHT, WEIGHT.clone().requires_grad_(), torch.nn.Parameter(WEIGHT.clone())]
    modes = [
        contextlib.nullcontext,
        torch.no_grad,
        torch.inference_mode,
        lambda: torch.autocast("cpu", torch.bfloat16),
    ]
    want = ASKED[name](x[:, :7], WEIGHT) if name != "norm" else torch.layer_norm(x[:, :7], (7,), WEIGHT)
    call = ASKED[name]
    for _ in range(120):
        one, w = rng.choice(given), rng.choice(weights)
        if name == "norm" and one.dtype == torch.float64:
            w = w.detach().double()
        mode = rng.choice(modes)
        for _ in range(rng.choice((1, 2, 4))):
            with mode():
                made = call(one, w)
            records = mode not in (torch.no_grad, torch.inference_mode)
            asks = one.requires_grad or (name == "norm" and w.requires_grad)
            assert made.requires_grad == (records and asks)
            torch.testing.assert_close(made.detach().float(), want, rtol=2e-2, atol=1e-2)


STRANGE: dict[str, Callable[[], Any]] = {
    "nested": lambda: torch.nested.nested_tensor([torch.randn(2), torch.randn(4)]),
    "jagged": lambda: torch.nested.nested_tensor([torch.randn(2), torch.randn(4)], layout=torch.jagged),
    "sparse": lambda: X.float().to_sparse(),
    "sparse rows": lambda: X.float().to_sparse_csr(),
    "mkldnn": lambda: X.float().to_mkldnn(),
    "quantized": lambda: torch.quantize_per_tensor(X.float(), 0.1, 0, torch.qint8),
    "no data": lambda: torch.empty(5, 7, device="meta"),
    "no elements": lambda: torch.empty(0, 7),
    "complex": lambda: torch.zeros(5, 7, dtype=torch.complex64).conj(),
    "a scalar": lambda: torch.tensor(1.0),
    "not initialized": torch.nn.parameter.UninitializedParameter,
    "no tensor": lambda: None,
}


@pytest.mark.filterwarnings("ignore::UserWarning")  # torch's, that such tensors are new or old
@pytest.mark.parametrize("name", STRANGE)
def test_what_no_repeated_call_takes_ends_as_in_a_first_call(name: str) -> None:
    """A question of a tensor's layout must be one that such a tensor answers."""

    def tried(call: Callable[[Any], Any]) -> str:
        try:
            made = call(STRANGE[name]())
        except Exception as error:
            return f"{type(error).__name__}: {error}"
        return f"{tuple(made.shape)} {made.dtype} {made.device}"

    calls: list[Callable[[Any], Any]] = [
        lambda x: tf.sum(x, 1), lambda x: tf.softmax(x, 1), lambda x: tf.cumsum(x, 1),
        lambda x: tf.layer_norm(x, (7,), WEIGHT),
    ]  # fmt: skip
    first = [tried(call) for call in calls]
    for call in calls:
        for _ in range(4):
            call(X.float())
    assert [tried(call) for call in calls] == first
