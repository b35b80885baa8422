"""`tilefold.scan` and the functions made of it: order, states, layouts, torch's answers."""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np
import pytest
import torch
from torch._subclasses.fake_tensor import FakeTensorMode

import tilefold
from scanned import FLAGS, MATRICES, ORDERED, POSITIONS, drawn, leaves, same, scanned
from tilefold import monoids
from tilefold.errors import EmptyError

AROUND = (1, 2, 15, 16, 17, 63, 64, 65)
LONG = (1999, 2000, 2001, 31999, 32000, 32001)
SPLIT = {"two": 2, "middle": 40, "end": 99, "nothing": 0}


@pytest.mark.parametrize("length", AROUND)
@pytest.mark.parametrize("name", list(ORDERED))
def test_every_prefix_is_combined_in_order(name: str, length: int) -> None:
    monoid = ORDERED[name]
    for (shape, dim), flags in itertools.product(
        [((3, length), 1), ((length, 5), 0), ((2, length, 3), 1)], FLAGS
    ):
        if flags["exclusive"] and monoid.algebra.identity is None:
            continue
        inputs = drawn(monoid, shape)
        same(scanned("cpu", inputs, monoid, dim, **flags), scanned("reference", inputs, monoid, dim, **flags))


@pytest.mark.parametrize("length", LONG)
@pytest.mark.parametrize("reverse", [False, True])
def test_long_rows(length: int, reverse: bool) -> None:
    (x,) = drawn(monoids.SUM, (2, length))
    order = x.flip(1) if reverse else x
    got = tilefold.scan(x, POSITIONS, 1, reverse=reverse)
    places = torch.where(order > 0, torch.arange(length).flip(0) if reverse else torch.arange(length), -1)
    last, there = torch.full((2,), -1), (order > 0).cumsum(1)
    want = []
    for p in range(length):
        last = torch.where(places[:, p] >= 0, places[:, p], last)
        want.append(last)
    where = torch.stack(want, 1)
    if reverse:
        where, there = where.flip(1), there.flip(1)
    same(leaves(got), [where, there])


@pytest.mark.parametrize("split", SPLIT.values(), ids=list(SPLIT))
@pytest.mark.parametrize("backend", ["reference", "cpu"])
@pytest.mark.parametrize("reverse", [False, True])
def test_pieces_make_the_whole(split: int, backend: str, reverse: bool) -> None:
    inputs = drawn(MATRICES, (4, 99, 2))
    whole = scanned(backend, inputs, MATRICES, 1, reverse=reverse)
    pieces = [[x[:, :split] for x in inputs], [x[:, split:] for x in inputs]]
    first, second = reversed(pieces) if reverse else pieces
    with tilefold.backend(backend):
        early, state = tilefold.scan(first, MATRICES, 1, reverse=reverse, return_state=True)
        late = tilefold.scan(second, MATRICES, 1, init=state, reverse=reverse)
    parts = (late, early) if reverse else (early, late)
    same([torch.cat(both, 1) for both in zip(*parts, strict=True)], whole)
    assert type(state)._fields == MATRICES.fields


@pytest.mark.parametrize("backend", ["reference", "cpu"])
@pytest.mark.parametrize("length", [150, 4100])
def test_moments_of_a_state_are_the_rows(backend: str, length: int) -> None:
    """The pivot, and the sums about it, follow the order of combination: only what they say of the row is the same."""
    x = torch.randn(5, length, generator=torch.Generator().manual_seed(0))
    with tilefold.backend(backend):
        state = tilefold.scan(x, monoids.WELFORD, 1, return_state=True)[1]
        unit, elements, count, pivot, total, squares = (f.double() for f in state)
        rest = tilefold.scan(x, monoids.WELFORD, 1, init=tuple(state))
    row = x.double()
    mean, squared = row.mean(1), (row - row.mean(1, keepdim=True)).square().sum(1)
    assert torch.equal(elements, torch.full((5,), float(length), dtype=torch.float64))
    assert torch.equal(count, elements)
    torch.testing.assert_close((pivot + total / count) * unit, mean, rtol=0, atol=1e-5)
    torch.testing.assert_close((squares - total * total / count) * unit * unit, squared, rtol=1e-5, atol=0)
    torch.testing.assert_close(rest[1][:, -1].double(), mean, rtol=0, atol=1e-5)
    torch.testing.assert_close(rest[2][:, -1].double(), 2 * squared, rtol=1e-5, atol=0)


def test_a_linear_recurrence() -> None:
    a, b, start = torch.rand(3, 500), torch.randn(3, 500), torch.randn(3)
    (_, h), state = tilefold.scan((a, b), monoids.AFFINE, 1, init=(1, start), return_state=True)
    want = start.double()
    for t in range(500):
        want = a[:, t].double() * want + b[:, t].double()
        torch.testing.assert_close(h[:, t].double(), want, rtol=1e-5, atol=1e-5)
    torch.testing.assert_close(state.b, h[:, -1])


def test_an_init_is_a_number_of_numpys() -> None:
    x = torch.arange(4)
    assert tilefold.scan(x, monoids.SUM, 0, init=np.int16(3)).tolist() == [3, 4, 6, 9]
    assert tilefold.scan(x, monoids.SUM, 0, init=np.bool_(True)).tolist() == [1, 2, 4, 7]
    assert tilefold.scan(x.float(), monoids.SUM, 0, init=np.float32(0.5)).tolist() == [0.5, 1.5, 3.5, 6.5]
    greatest = tilefold.scan(x.to(torch.uint64), monoids.MAX, 0, init=2**64 - 1)
    assert greatest.tolist() == [2**64 - 1] * 4


def test_an_init_of_floats_may_be_beyond_integers() -> None:
    assert tilefold.scan(torch.zeros(1), monoids.SUM, 0, init=2**100).tolist() == [2.0**100]
    assert tilefold.scan(torch.zeros(1), monoids.SUM, 0, init=float("inf")).tolist() == [float("inf")]


def test_a_state_of_narrow_integers_is_an_init() -> None:
    x = torch.tensor([[3, 255, 4, 0], [128, 2, 200, 9]], dtype=torch.uint8)
    _, state = tilefold.scan(x[:, :2], monoids.MAX, 1, return_state=True)
    rest = tilefold.scan(x[:, 2:], monoids.MAX, 1, init=state)
    same([rest], [x.cummax(1).values[:, 2:]])


def test_an_init_is_a_number_or_broadcasts() -> None:
    x = torch.arange(6.0).view(2, 3)
    want = x.cumsum(1)
    for init in (1, 1.0, torch.tensor(1.0), torch.ones(2), torch.ones(1), [torch.ones(2).double()]):
        for backend in ("cpu", "reference", "auto"):
            same(scanned(backend, x, monoids.SUM, 1, init=init), [want + 1])


@pytest.mark.parametrize(
    "dtype", [torch.float32, torch.bfloat16, torch.float16, torch.int8, torch.bool, torch.int64]
)
def test_sums_are_torchs(dtype: torch.dtype) -> None:
    x = torch.randint(-3, 4, (5, 300)).to(dtype)
    for backend in ("cpu", "auto", "torch"):
        with tilefold.backend(backend):
            torch.testing.assert_close(tilefold.cumsum(x, 1), torch.cumsum(x, 1), rtol=1e-2, atol=1e-5)
            assert tilefold.cumsum(x, 1).dtype == torch.cumsum(x, 1).dtype
    assert torch.equal(tilefold.cumsum(x, 0, dtype=torch.float64), torch.cumsum(x, 0, dtype=torch.float64))


def test_integers_wrap() -> None:
    x = torch.full((3,), 2**62)
    for backend in ("cpu", "reference"):
        same(scanned(backend, x, monoids.SUM, 0), [torch.cumsum(x, 0)])


@pytest.mark.parametrize("name", ["cummax", "cummin"])
@pytest.mark.parametrize("backend", ["cpu", "auto", "reference"])
def test_ties_and_nan_are_torchs(name: str, backend: str) -> None:
    inf, nan = float("inf"), float("nan")
    x = torch.tensor([
        [1, 3, 3, 2, 3], [nan, 1, nan, 2, 3], [1, nan, 5, nan, nan], [-inf, -inf, inf, inf, 0], [2, 1, 1, 2, 0.0],
    ])  # fmt: skip
    for value in (x, x[3:].nan_to_num(0, 100, -100).int(), torch.rand(4, 300).half(), x > 1):
        want = getattr(torch, name)(value, 1)
        with tilefold.backend(backend):
            got = getattr(tilefold, name)(value, 1)
        torch.testing.assert_close(got.values, want.values, rtol=0, atol=0, equal_nan=True)
        assert torch.equal(got.indices, want.indices)
        assert type(got) is type(want)


@pytest.mark.parametrize("backend", ["cpu", "auto"])
def test_logarithms_of_sums(backend: str) -> None:
    x = torch.randn(3, 400) * 30
    x[1, :5] = -float("inf")
    x[2, 100] = float("inf")
    x[2, 200] = float("nan")
    with tilefold.backend(backend):
        got = tilefold.logcumsumexp(x, 1)
    want = torch.logcumsumexp(x.double(), 1)
    torch.testing.assert_close(got.double(), want, rtol=1e-5, atol=1e-4, equal_nan=True)


@pytest.mark.parametrize("backend", ["cpu", "reference"])
def test_any_layout(backend: str) -> None:
    x = torch.randint(-5, 6, (6, 41, 10))
    storage = torch.randint(-5, 6, (500,), dtype=torch.int32)
    for value, dim in [
        (x[::2, :, 1::3], 1), (x.transpose(0, 2), 1), (x[:1].expand(4, 41, 10), 0), (x[:, :1].expand(6, 30, 10), 1),
        (storage[1:481].view(6, 80), 1), (x.permute(2, 1, 0), 2),
    ]:  # fmt: skip
        same(scanned(backend, value, monoids.SUM, dim), [torch.cumsum(value, dim)])
        back = torch.cumsum(value.flip(dim), dim).flip(dim)
        same(scanned(backend, value, monoids.SUM, dim, reverse=True), [back])


def test_inputs_broadcast() -> None:
    a, b = torch.randint(-2, 3, (7, 1)), torch.randint(-2, 3, (4, 7, 5))
    got = tilefold.scan((a, b), monoids.AFFINE, 1)
    same(leaves(got), scanned("reference", (a.expand(4, 7, 5).contiguous(), b), monoids.AFFINE, 1))


def test_empty_dims_and_no_dims() -> None:
    assert tilefold.scan(torch.empty(3, 0), monoids.SUM, 1).shape == (3, 0)
    assert tilefold.cummax(torch.empty(0, 3), 0).indices.shape == (0, 3)
    _, state = tilefold.scan(torch.empty(3, 0), monoids.MAX, 1, return_state=True)
    assert state.tolist() == [-float("inf")] * 3
    _, state = tilefold.scan(torch.empty(3, 0), monoids.MAX, 1, init=2.0, return_state=True)
    assert state.tolist() == [2.0] * 3
    number = torch.tensor(3)
    for dim in (0, -1):
        result, state = tilefold.scan(number, monoids.SUM, dim, init=1, return_state=True)
        assert (result.shape, state.shape, result.item(), state.item()) == ((), (), 4, 4)
    out = torch.tensor(0)
    assert tilefold.cumsum(number, 0, out=out) is out
    assert out == 3


def test_a_monoid_without_identity() -> None:
    x = torch.tensor([[3, 1, 2]])
    result, state = tilefold.scan(x, monoids.FIRST, 1, return_state=True)
    assert (result.tolist(), state.tolist()) == ([[3, 3, 3]], [3])
    assert tilefold.scan(x, monoids.LAST, 1, exclusive=True, init=7).tolist() == [[7, 3, 1]]
    with pytest.raises(EmptyError, match=r"a state of nothing needs an identity.*first.*; give"):
        tilefold.scan(x, monoids.FIRST, 1, exclusive=True)


def test_tensors_without_data_and_classes() -> None:
    meta = tilefold.scan(torch.empty(3, 5, device="meta"), monoids.AFFINE.__class__(lambda a, b: a + b, 0), 1)
    assert (meta.device.type, meta.shape) == ("meta", (3, 5))
    with FakeTensorMode():
        assert tilefold.cummax(torch.empty(3, 5), 1).indices.dtype == torch.int64

    class Own(torch.Tensor):
        pass

    assert type(tilefold.cumsum(torch.ones(3).as_subclass(Own), 0)) is Own
    assert tilefold.cumsum(torch._neg_view(torch.ones(3)), 0).tolist() == [-1, -2, -3]


def test_a_compiled_function_calls_it() -> None:
    def f(x: torch.Tensor) -> Any:
        return tilefold.scan(x * 2, monoids.SUM, 0) + 1

    assert torch.compile(f, backend="eager")(torch.ones(3)).tolist() == [3, 5, 7]


@pytest.mark.parametrize("name", ["sum", "logsumexp", "affine"])
def test_a_rows_bits_are_its_own(name: str) -> None:
    monoid = {"sum": monoids.SUM, "logsumexp": monoids.LOGSUMEXP, "affine": monoids.AFFINE}[name]
    inputs = [torch.randn(300, 777) for _ in range(monoid.algebra.inputs)]
    whole = scanned("cpu", inputs, monoid, 1, guarantee="batch_invariant")
    for rows in (slice(0, 1), slice(7, 8), slice(100, 163)):
        part = scanned("cpu", [x[rows] for x in inputs], monoid, 1, guarantee="batch_invariant")
        same(part, [w[rows] for w in whole])


def test_uint64_and_narrow_states() -> None:
    x = torch.tensor([2**64 - 1, 5, 7], dtype=torch.uint64)
    for backend in ("cpu", "reference"):
        result, state = scanned(backend, x, monoids.MAX, 0, return_state=True)
        assert result.tolist() == [2**64 - 1] * 3
        assert state.dtype == torch.uint64
        flags = scanned(backend, torch.tensor([0, 2, 0]), monoids.ANY, 0, return_state=True)
        assert (flags[0].tolist(), flags[1].item(), flags[1].dtype) == ([False, True, True], True, torch.bool)


@pytest.mark.parametrize("reverse", [False, True])
@pytest.mark.parametrize(("shape", "dim"), [((3, 70), 1), ((40, 3), 0)], ids=str)
@pytest.mark.parametrize("monoid", [monoids.SUM, MATRICES], ids=lambda m: m.name)
def test_a_kernel_stores_the_state_of_every_line(
    monoid: tilefold.Monoid, shape: tuple[int, ...], dim: int, reverse: bool
) -> None:
    """Of one field and of several."""
    inputs = [torch.randint(0, 9, shape, dtype=torch.int32) for _ in range(monoid.algebra.inputs)]
    options = {"reverse": reverse, "return_state": True}
    want, got = (scanned(b, inputs, monoid, dim, **options) for b in ("reference", "interpret"))
    assert len(want) == len(got) == 2 * len(monoid.algebra.fields)
    assert all(torch.equal(g, w) for g, w in zip(got, want, strict=True))


def test_a_state_that_reads_no_element() -> None:
    ones = tilefold.Monoid(lambda a, b: a | b, 0, lift=lambda x: 1, dtypes=torch.int32)
    x = torch.zeros(2, 3)
    with tilefold.backend("reference"):
        prefixes, state = tilefold.scan(x, ones, 1, return_state=True)
    assert prefixes.tolist() == [[1, 1, 1]] * 2
    assert state.tolist() == [1, 1]
