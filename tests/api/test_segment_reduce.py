"""`segment_reduce`: its answers beside the definition on the CPU and under the interpreter, and what it refuses."""

from __future__ import annotations

import importlib
import itertools
import math
import warnings
from collections.abc import Sequence
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import tilefold
from magnitudes import WATCHED, varied
from tilefold import math as tm
from tilefold import monoids
from tilefold.errors import (
    ArgumentError,
    BackendError,
    DeviceError,
    DtypeError,
    EmptyError,
    KindError,
    ShapeError,
)

Tensor = torch.Tensor
# Triton's interpreter takes an array of one element for a number.
pytestmark = pytest.mark.filterwarnings("ignore:.*ndim > 0 to a scalar:DeprecationWarning")
# Order matters, whole numbers are exact, two fields: x -> k x + v, and no element hides those before it: k is odd.
AFFINE = tilefold.Monoid(
    lambda a, b: (a.k * b.k, a.v * b.k + b.v),
    (1, 0),
    lift=lambda x: (x % 2 * 2 + 1, x),
    fields=("k", "v"),
    name="affine",
)
DOT = tilefold.Monoid(lambda a, b: a + b, 0, lift=lambda x, y: x * y, name="dot")
WEIGHTED = tilefold.Monoid(lambda a, b: a + b, 0, lift=lambda x, i: x * (i + 1), index=True, name="weighted")
LENGTHS = {
    "none": [],
    "empty ones": [0, 0, 0],
    "empty at the ends and between": [0, 0, 3, 0, 5, 0, 0],
    "equal": [64] * 20,
    "short": [1, 2, 3, 1, 7, 1, 1, 2, 31, 33, 32, 1] * 3,
    "one long among empty ones": [0] * 40 + [2100] + [0] * 40,
    "more in a window than are folded with it": [1] * 40 + [0, 0, 2, 0] * 10 + [50, 7, 7, 7, 7],
    "that end where tiles end": [32] * 64 + [0, 0, 1024, 0] + [1] * 32 + [992, 2048],
    "two longer than a lane combines": [3, 0, 6000, 1, 5000, 2],
    "lengths around a window": [31, 32, 33, 63, 64, 65, 1, 0, 127, 128, 129, 1023, 1024, 1025],
}


def offsets_of(lengths: Sequence[int], lead: int = 0, dtype: torch.dtype = torch.int64) -> Tensor:
    return torch.tensor([lead, *lengths]).cumsum(0).to(dtype)


def drawn(length: int, *rest: int, dtype: torch.dtype = torch.int32, seed: int = 0) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.randint(-9, 10, (length, *rest), generator=generator).to(dtype)


def equal(got: Any, want: Any) -> None:
    for a, b in zip(*(r if isinstance(r, tuple) else (r,) for r in (got, want)), strict=True):
        assert a.dtype == b.dtype
        assert torch.equal(a, b)


def compare(backend: str, x: Tensor, monoid: tilefold.Monoid, offsets: Tensor, **options: Any) -> None:
    """Of some of the elements too."""
    with tilefold.backend("reference"):
        want = tilefold.segment_reduce(x, monoid, offsets, dim=options.get("dim", 0), partial=True)
    with tilefold.backend(backend):
        equal(tilefold.segment_reduce(x, monoid, offsets, partial=True, **options), want)


@pytest.mark.parametrize("lengths", list(LENGTHS))
@pytest.mark.parametrize("monoid", [monoids.SUM, AFFINE, WEIGHTED], ids=lambda m: m.name)
@pytest.mark.parametrize("guarantee", ["run_to_run", "batch_invariant"])
def test_on_a_cpu(lengths: str, monoid: tilefold.Monoid, guarantee: str) -> None:
    for lead, trail, dtype in ((0, 0, torch.int64), (3, 40, torch.int32)):
        offsets = offsets_of(LENGTHS[lengths], lead, dtype)
        compare("cpu", drawn(int(offsets[-1]) + trail), monoid, offsets, guarantee=guarantee)


@pytest.mark.parametrize(
    ("lengths", "monoid"),
    [("equal", monoids.SUM), ("short", AFFINE), ("one long among empty ones", AFFINE), ("short", WEIGHTED),
     ("lengths around a window", WEIGHTED), ("empty ones", AFFINE),
     ("more in a window than are folded with it", AFFINE), ("lengths around a window", AFFINE),
     ("that end where tiles end", AFFINE), ("two longer than a lane combines", AFFINE),
     ("two longer than a lane combines", monoids.SUM)],
    ids=lambda value: value if isinstance(value, str) else value.name,
)  # fmt: skip
def test_under_the_interpreter(lengths: str, monoid: tilefold.Monoid) -> None:
    offsets = offsets_of(LENGTHS[lengths], 3, torch.int32)
    compare("interpret", drawn(int(offsets[-1]) + 5), monoid, offsets)


def test_a_program_a_segment() -> None:
    offsets = offsets_of([0, 5, 200, 1])
    compare("interpret", drawn(206), AFFINE, offsets, guarantee="batch_invariant")
    x, offsets = torch.randn(1000), offsets_of([300, 400, 300])
    with tilefold.backend("interpret"):
        among = tilefold.segment_reduce(x, monoids.SUM, offsets, guarantee="batch_invariant")
        alone = tilefold.segment_reduce(
            x[300:700].clone(), monoids.SUM, offsets_of([400]), guarantee="batch_invariant"
        )
    assert torch.equal(among[1], alone[0])


@pytest.mark.parametrize("backend", ["cpu", "reference"])
def test_bits_of_a_segment_do_not_depend_on_how_many_there_are(backend: str) -> None:
    """Functions of which torch computes what lies behind whole vectors another way, in a combine and in a projection."""

    def combine(a: Any, b: Any) -> Any:
        m = tm.maximum(a[0], b[0])
        top = tm.where(m == -math.inf, 0, m)
        return m, a[1] * tm.exp2(a[0] - top) + b[1] * tm.exp2(b[0] - top)

    weighed = tilefold.Monoid(
        combine,
        identity=(-math.inf, 0.0),
        lift=lambda x: (x, 1.0),
        project=lambda m, total: tm.exp2(m * 0.7) * total,
    )
    x, offsets = torch.randn(99, dtype=torch.float64), torch.arange(0, 100, 3)
    with tilefold.backend(backend):
        among = tilefold.segment_reduce(x, weighed, offsets, guarantee="batch_invariant")
        for which, row in enumerate(x.view(33, 3)):
            alone = tilefold.segment_reduce(row, weighed, offsets_of([3]), guarantee="batch_invariant")
            assert torch.equal(alone[0], among[which])


@pytest.mark.parametrize("name", ["sum", "norm(2)", "welford"])
@pytest.mark.parametrize("length", [3, 300, 4097])
def test_bits_of_a_segment_do_not_depend_on_the_others_lengths(length: int, name: str) -> None:
    """Among equal ones, among others and alone: sums of floats show the order of combination."""
    monoid = monoids.SUM if name == "sum" else WATCHED[name]
    x = torch.randn(5 * length + 7)

    def folded(lengths: Sequence[int], which: int) -> tuple[Tensor, ...]:
        begin = 2 * length - sum(lengths[:which])
        given = x[begin : begin + sum(lengths)].clone()
        made = tilefold.segment_reduce(given, monoid, offsets_of(lengths), guarantee="batch_invariant")
        return tuple(r[which] for r in (made if isinstance(made, tuple) else (made,)))

    alone = folded([length], 0)
    for lengths in ([length] * 5, [length + 1, length - 1, length, 7], [0, 2 * length, length, 1, 0]):
        equal(folded(lengths, 2), alone)


@pytest.mark.parametrize(
    ("shape", "dim"), [((80, 5), 0), ((2, 80, 3), 1), ((80, 1), 0), ((3, 80), 1)], ids=str
)
def test_other_dims_stay(shape: tuple[int, ...], dim: int) -> None:
    offsets = offsets_of([0, 7, 0, 0, 70, 1])
    x = drawn(80, *(n for d, n in enumerate(shape) if d != dim)).movedim(0, dim)
    for backend in ("cpu", "interpret"):
        compare(backend, x, AFFINE, offsets, dim=dim)


@given(st.lists(st.sampled_from((0, 0, 1, 2, 5, 17, 100)), max_size=12), st.integers(0, 3), st.integers(0, 9))
@settings(max_examples=30, deadline=None)
def test_any_lengths(lengths: list[int], lead: int, trail: int) -> None:
    x = drawn(lead + sum(lengths) + trail)
    for monoid in (AFFINE, WEIGHTED):
        compare("cpu", x, monoid, offsets_of(lengths, lead))


def test_sums_of_floats_are_as_near_as_promised() -> None:
    x, offsets = torch.randn(5000), offsets_of([64] * 50 + [1800])
    for backend in ("cpu", "interpret"):
        with tilefold.backend(backend):
            got = tilefold.segment_reduce(x, monoids.SUM, offsets)
        for s, (a, b) in enumerate(itertools.pairwise(offsets)):
            part = x[a:b].double()
            depth = 64 + math.log2(len(part))  # a lane's window, and the tree of lanes and tiles
            assert abs(got[s] - part.sum()) <= depth * 2**-24 * part.abs().sum() + 2**-24 * abs(part.sum())


def test_values_that_float32_does_not_hold_are_folded_in_float64() -> None:
    x = torch.tensor([1e-30, 2e-30, 3.0, 4.0])
    got = tilefold.segment_reduce(x, monoids.NORM(), offsets_of([2, 2]))
    torch.testing.assert_close(got, torch.tensor([math.sqrt(5) * 1e-30, 5.0]), rtol=1e-6, atol=0)


@pytest.mark.parametrize("guarantee", ["run_to_run", "batch_invariant"])
@pytest.mark.parametrize("name", WATCHED)
@pytest.mark.parametrize("lengths", [[40] * 26, [40, 0, 39, 1] * 13], ids=["equal", "ragged"])
def test_segments_of_every_magnitude_beside_each_other(lengths: list[int], name: str, guarantee: str) -> None:
    """Each segment has a magnitude of its own: what is folded again is what does not fit, and lies where it belongs."""
    rows = varied(26, 40)
    x, offsets = rows.view(-1), offsets_of(lengths)
    got, exact = (
        tilefold.segment_reduce(t, WATCHED[name], offsets, guarantee=guarantee) for t in (x, x.double())
    )
    for one, want in zip(*((r if isinstance(r, tuple) else (r,)) for r in (got, exact)), strict=True):
        torch.testing.assert_close(one, want.to(one.dtype), rtol=2e-6, atol=1e-44, equal_nan=True)


def test_nan_and_infinities() -> None:
    inf, nan = float("inf"), float("nan")
    x = torch.tensor([1.0, nan, -inf, -inf, inf, 2.0])
    largest = tilefold.Monoid(tilefold.math.maximum, -inf, name="largest")
    for backend in ("cpu", "reference"):
        with tilefold.backend(backend):
            got = tilefold.segment_reduce(x, largest, offsets_of([2, 2, 0, 2]))
        torch.testing.assert_close(got, torch.tensor([nan, -inf, -inf, inf]), equal_nan=True)


@pytest.mark.parametrize(
    "dtype", [torch.bool, torch.uint8, torch.int16, torch.uint64, torch.bfloat16, torch.float64], ids=str
)
def test_dtypes(dtype: torch.dtype) -> None:
    x = drawn(300).abs().to(dtype)
    compare("cpu", x, monoids.SUM, offsets_of([0, 100, 3, 197]))
    compare("interpret", x, monoids.SUM, offsets_of([0, 100, 3, 197]))


def test_layouts() -> None:
    offsets = offsets_of([30, 0, 69])
    wide = drawn(100, 4)
    for x in (wide[:, 1], drawn(101)[1:], drawn(1).expand(100), drawn(200)[::2], wide.t()[2]):
        for backend in ("cpu", "interpret"):
            compare(backend, x, AFFINE, offsets)
    compare("cpu", wide[:, 0], AFFINE, torch.stack([offsets, offsets], 1)[:, 0])


# ------------------------------------------------------------------------------------------------ lengths, parts


@pytest.mark.parametrize("dtype", [torch.int32, torch.int64], ids=str)
@pytest.mark.parametrize("dim", [0, -1])
def test_lengths_are_segments_end_to_end(dim: int, dtype: torch.dtype) -> None:
    for name, lengths in LENGTHS.items():
        x = drawn(sum(lengths), 2).movedim(0, dim)
        given = torch.tensor(lengths, dtype=dtype)
        want = tilefold.segment_reduce(x, AFFINE, offsets_of(lengths), dim=dim)
        equal(tilefold.segment_reduce(x, AFFINE, lengths=given, dim=dim), want)
        longer = torch.cat([x, x], dim)
        equal(tilefold.segment_reduce(longer, AFFINE, lengths=given, dim=dim, partial=True), want)
        if sum(lengths):
            with pytest.raises(ArgumentError, match=r"must sum to the dim's length"):
                tilefold.segment_reduce(longer, AFFINE, lengths=given, dim=dim)
            assert name != "none"


def test_lengths_given_as_offsets_are_refused() -> None:
    """They would lose most elements: of any lengths that sum to the dim's length, but those that are offsets as well."""
    for lengths in itertools.product(range(4), repeat=3):
        x, given = torch.ones(sum(lengths)), torch.tensor(lengths)
        if lengths in ((0, 0, 0),):
            continue
        if sorted(lengths) == list(lengths) and lengths[0] == 0 and lengths[-1] == sum(lengths):
            assert tilefold.segment_reduce(x, monoids.SUM, given).sum() == sum(lengths)
            continue
        with pytest.raises(ArgumentError, match=r"these look like lengths: pass lengths="):
            tilefold.segment_reduce(x, monoids.SUM, given)
        assert tilefold.segment_reduce(x, monoids.SUM, lengths=given).tolist() == list(lengths)


def test_keys_and_jagged_rows_may_leave_elements_out() -> None:
    x = drawn(6)
    by = torch.tensor([-1, 0, 0, 1, 5, 5])
    partly = tilefold.segment_reduce(x, monoids.SUM, by=by, num_segments=2, partial=True)
    assert partly.tolist() == [int(x[1:3].sum()), int(x[3])]
    for keys, got in ((by, -1), (by[1:], 5), (by[1:].clamp(max=2), 2), (by[1:].to(torch.uint64), 5)):
        with pytest.raises(ArgumentError, match=rf"in \[0, 2\), got {got}; pass partial=True"):
            tilefold.segment_reduce(x[-len(keys) :], monoids.SUM, by=keys, num_segments=2)
    jagged = torch.nested.nested_tensor_from_jagged(x, torch.tensor([1, 3, 5]))
    assert tilefold.segment_reduce(jagged, monoids.SUM).tolist() == [int(x[1:3].sum()), int(x[3:5].sum())]
    with pytest.raises(ArgumentError, match=r"must come without .* got lengths"):
        tilefold.segment_reduce(jagged, monoids.SUM, lengths=torch.tensor([2, 2]))


def test_lengths_without_data_classes_and_plans() -> None:
    x, lengths = drawn(10), torch.tensor([4, 6])
    meta = tilefold.segment_reduce(x.to("meta"), monoids.SUM, lengths=lengths.to("meta"))
    assert (meta.shape, meta.device.type) == ((2,), "meta")
    plan = tilefold.explain_plan(
        x.to("meta"), tilefold.segment_reduce, monoid=monoids.SUM, lengths=lengths.to("meta")
    )
    assert plan.backend == "triton"
    assert torch.equal(
        tilefold.segment_reduce(x, monoids.SUM, lengths=torch.nn.Buffer(lengths)),
        tilefold.segment_reduce(x, monoids.SUM, lengths=lengths),
    )


# ------------------------------------------------------------------------------------------------ keys, jagged tensors


def test_keys() -> None:
    x, keys = drawn(7), torch.tensor([1, 1, 4, 4, 4, 2, 2])
    found, results = tilefold.segment_reduce(x, monoids.SUM, by=keys)
    assert found.tolist() == [1, 4, 2]
    assert results.tolist() == [int(x[:2].sum()), int(x[2:5].sum()), int(x[5:].sum())]
    ordered = torch.tensor([0, 0, 2, 2, 2, 5, 5], dtype=torch.int32)
    got = tilefold.segment_reduce(x, monoids.SUM, by=ordered, num_segments=4, partial=True)
    assert got.tolist() == [int(x[:2].sum()), 0, int(x[2:5].sum()), 0]
    assert tilefold.segment_reduce(x[:0], monoids.SUM, by=keys[:0], num_segments=2).tolist() == [0, 0]


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float8_e5m2, torch.float8_e4m3fn], ids=str)
def test_keys_of_narrow_floats(dtype: torch.dtype) -> None:
    found, results = tilefold.segment_reduce(
        torch.arange(5), monoids.SUM, by=torch.tensor([0.0, -0.0, 2.0, 2.0, -1.5]).to(dtype)
    )
    assert found.dtype == dtype
    assert found.float().tolist() == [0.0, 2.0, -1.5]
    assert results.tolist() == [1, 5, 4]


@pytest.mark.parametrize(
    "dtype", [torch.uint8, torch.int16, torch.uint16, torch.uint32, torch.uint64], ids=str
)
def test_keys_of_any_whole_dtype(dtype: torch.dtype) -> None:
    x, greatest = drawn(7), torch.iinfo(dtype).max
    keys = torch.tensor([0, 0, 2, 2, 3, greatest - 1, greatest], dtype=dtype)
    got = tilefold.segment_reduce(x, monoids.SUM, by=keys, num_segments=4, partial=True)
    assert got.tolist() == [int(x[:2].sum()), 0, int(x[2:4].sum()), int(x[4])]
    wrong = torch.tensor([0, greatest, 0, 1, 1, 1, 1], dtype=dtype)
    with pytest.raises(
        ArgumentError, match=rf"must be sorted, got {greatest} before 0 at position 1; .*index_select"
    ) as caught:
        tilefold.segment_reduce(x, monoids.SUM, by=wrong, num_segments=4)
    scope = {"torch": torch, "by": wrong, "x": x, "dim": 0}
    scope["order"] = eval(str(caught.value).partition("order = ")[2], scope)
    by, inputs = (eval(text, scope) for text in ("by[order]", "x.index_select(dim, order)"))
    sums = tilefold.segment_reduce(inputs, monoids.SUM, by=by, num_segments=2, partial=True)
    assert sums.tolist() == [int(x[0] + x[2]), int(x[3:].sum())]


def test_jagged_tensors() -> None:
    rows = [drawn(n, 3, seed=n) for n in (4, 0, 2)]
    x = torch.nested.nested_tensor(rows, layout=torch.jagged)
    want = torch.stack([r.sum(0) for r in rows])
    assert torch.equal(tilefold.segment_reduce(x, monoids.SUM), want)
    last = x.transpose(1, 2)
    assert torch.equal(tilefold.segment_reduce(last, monoids.SUM), want)
    for ragged in (x, last):
        out = torch.empty(3, 3, dtype=torch.int64)
        assert tilefold.segment_reduce(ragged, monoids.SUM, out=out) is out
        assert torch.equal(out, want)
        assert torch.equal(tilefold.segment_reduce(ragged, monoids.SUM, dim=ragged._ragged_idx - 3), want)
    with pytest.raises(ShapeError, match=r"result's shape \[3, 3\], got \[3, 4\]"):
        tilefold.segment_reduce(last, monoids.SUM, out=torch.empty(3, 4))
    with pytest.raises(KindError, match=r"`out` must be a tensor, .*got str"):
        tilefold.segment_reduce(last, monoids.SUM, out="out")
    with pytest.raises(KindError, match="`dim` must be one int, got True"):
        tilefold.segment_reduce(x, monoids.SUM, dim=True)
    with pytest.raises(ArgumentError, match="must come without `offsets`"):
        tilefold.segment_reduce(x, monoids.SUM, torch.tensor([0, 1]))
    with pytest.raises(KindError, match=r"must all be of layout torch\.jagged"):
        tilefold.segment_reduce([x, want], DOT)
    with pytest.raises(ShapeError, match="must share their offsets"):
        tilefold.segment_reduce([x, torch.nested.nested_tensor(rows, layout=torch.jagged)], DOT)
    with pytest.raises(ArgumentError, match="along their ragged dim"):
        tilefold.segment_reduce(x, monoids.SUM, dim=2)
    gaps = torch.nested.narrow(
        drawn(3, 4), 1, torch.tensor([0, 1, 0]), torch.tensor([1, 2, 3]), layout=torch.jagged
    )
    with pytest.raises(ArgumentError, match="must have no gaps"):
        tilefold.segment_reduce(gaps, monoids.SUM)


# ------------------------------------------------------------------------------------------------ what torch has switched on


def test_out_classes_and_tensors_without_data() -> None:
    x, offsets = drawn(10), offsets_of([4, 6])
    want = tilefold.segment_reduce(x, monoids.SUM, offsets)
    out = torch.empty(4, dtype=torch.int64)[::2]
    assert tilefold.segment_reduce(x, monoids.SUM, offsets, out=out) is out
    assert torch.equal(out, want)

    class Measured(torch.Tensor):
        pass

    assert type(tilefold.segment_reduce(x.as_subclass(Measured), monoids.SUM, offsets)) is Measured
    meta = tilefold.segment_reduce(x.to("meta"), monoids.SUM, offsets.to("meta"))
    assert (meta.shape, meta.dtype, meta.device.type) == ((2,), torch.int64, "meta")
    assert torch.equal(tilefold.segment_reduce(torch._neg_view(-x), monoids.SUM, offsets), want)


def test_several_inputs_broadcast() -> None:
    x, y = drawn(6, 2), drawn(6, 1, seed=1)
    got = tilefold.segment_reduce([x, y], DOT, offsets_of([2, 4]))
    assert torch.equal(got, torch.stack([(x * y)[:2].sum(0), (x * y)[2:].sum(0)]))


# ------------------------------------------------------------------------------------------------ refused


@pytest.mark.parametrize(
    ("offsets", "error", "match"),
    [
        (torch.tensor([0, 5, 3, 10]), ArgumentError, "`offsets` must ascend, .*; sort them"),
        (torch.tensor([0, 6, 1, 3]), ArgumentError, "must ascend, got 6 before 1 .*; these look like lengths: pass lengths="),
        (torch.tensor([1, 2, 3, 4]), ArgumentError, r"begin at 0 and end at .* 10, got 1 and 4; these look like lengths"),
        (torch.tensor([1, 4, 10]), ArgumentError, "must begin at 0 .*, got 1 and 10; add these ends, or pass partial=True"),
        (torch.tensor([0, 4, 9], dtype=torch.int32), ArgumentError, "must begin at 0 and end at .*, got 0 and 9; add"),
        (torch.tensor([0]), ArgumentError, "must begin at 0 and end at the dim's length 10, got 0 and 0"),
        (torch.tensor([0, 11]), ArgumentError, r"must be in \[0, 10\], got 11"),
        (torch.tensor([-1, 4]), ArgumentError, r"must be in \[0, 10\], got -1"),
        (torch.tensor([0.0, 4.0]), DtypeError, "must be int32 or int64"),
        (torch.tensor([[0, 4]]), ShapeError, r"must have the shape \[S \+ 1\]"),
        (torch.tensor([], dtype=torch.int64), ShapeError, r"must have the shape \[S \+ 1\]"),
        (torch.tensor([0, 4], device="meta"), DeviceError, "`offsets` must be on the input's device"),
        ([0, 4], KindError, "must be a tensor"),
        (None, ArgumentError, "got neither"),
    ],
    ids=str,
)  # fmt: skip
def test_offsets_that_do_not_fit(offsets: Any, error: type[Exception], match: str) -> None:
    with pytest.raises(error, match=match):
        tilefold.segment_reduce(drawn(10), monoids.SUM, offsets)


@pytest.mark.parametrize(
    ("options", "error", "match"),
    [
        ({"offsets": torch.tensor([0, 4]), "by": torch.zeros(10)}, ArgumentError, "got both"),
        ({"offsets": torch.tensor([0, 4]), "num_segments": 1}, ArgumentError, "must come with `by`"),
        ({"by": torch.zeros(9)}, ShapeError, "one key for each of 10 positions"),
        ({"by": torch.zeros(10), "num_segments": 1}, DtypeError, "whole numbers"),
        ({"by": torch.arange(10).flip(0), "num_segments": 1}, ArgumentError, "must be sorted"),
        ({"by": torch.arange(10), "num_segments": -1}, ArgumentError, "must not be negative"),
        ({"by": torch.arange(10), "num_segments": 1.5}, KindError, "must be an int"),
        (
            {"by": torch.arange(10), "num_segments": torch.ones(2).long()},
            KindError,
            r"an int, got Tensor of shape \[2\]",
        ),
        (
            {"by": torch.arange(10), "num_segments": torch.tensor(True)},
            KindError,
            r"an int, got tensor\(True\)",
        ),
        ({"by": torch.arange(10), "num_segments": 2**63 - 1}, ArgumentError, "or beyond int64"),
        (
            {"by": torch.arange(10), "num_segments": 2**62},
            ArgumentError,
            "fit in memory, got 4611686018427387904",
        ),
        (
            {"by": torch.arange(10), "num_segments": 2**50},
            ArgumentError,
            "fit in memory, got 1125899906842624",
        ),
        ({"by": torch.arange(10), "num_segments": 2**70}, ArgumentError, "or beyond int64"),
        (
            {"offsets": torch.tensor([0, 4]), "validate": 1},
            KindError,
            "`validate` must be True or False, got one of type int",
        ),
        (
            {"offsets": torch.tensor([0, 4]), "partial": 1},
            KindError,
            "`partial` must be True or False, got one of type int",
        ),
        ({"offsets": torch.tensor([0, 10]), "lengths": torch.tensor([10])}, ArgumentError, "got both"),
        ({"lengths": torch.tensor([10]), "by": torch.zeros(10)}, ArgumentError, "got both"),
        (
            {"lengths": torch.tensor([10]), "num_segments": 1},
            ArgumentError,
            "`by`, got lengths, which have 1",
        ),
        ({"lengths": torch.tensor([4.0])}, DtypeError, "`lengths` must be int32 or int64, got torch.float32"),
        (
            {"lengths": torch.tensor([[4, 6]])},
            ShapeError,
            r"`lengths` must have the shape \[S\] .*, got \[1, 2\]",
        ),
        ({"lengths": torch.tensor(4)}, ShapeError, r"`lengths` must have the shape \[S\] .*, got \[\]"),
        (
            {"lengths": torch.tensor([4, -1, 7])},
            ArgumentError,
            r"each of `lengths` must be in \[0, 10\], got -1",
        ),
        (
            {"lengths": torch.tensor([2**62] * 4)},
            ArgumentError,
            r"each of `lengths` must be in \[0, 10\], got 46",
        ),
        (
            {"lengths": torch.tensor([4, 7])},
            ArgumentError,
            "must sum to the dim's length 10, got 11; give every segment's$",
        ),
        (
            {"lengths": torch.tensor([4, 5])},
            ArgumentError,
            "`lengths` must sum to the dim's length 10, got 9",
        ),
        (
            {"lengths": torch.tensor([], dtype=torch.int32)},
            ArgumentError,
            "must sum to the dim's length 10, got 0",
        ),
        (
            {"lengths": torch.tensor([4, 6], device="meta")},
            DeviceError,
            "`lengths` must be on the input's device",
        ),
        ({"offsets": torch.tensor([0, 4]), "dim": (0,)}, KindError, "must be one int"),
        ({"offsets": torch.tensor([0, 4]), "dim": 1}, IndexError, "must be in"),
        ({"offsets": torch.tensor([0, 4]), "guarantee": "fast"}, ArgumentError, "must be one of"),
    ],
    ids=lambda o: "-".join(o) if isinstance(o, dict) else "",
)
def test_arguments_that_do_not_fit(options: dict[str, Any], error: type[Exception], match: str) -> None:
    with pytest.raises(error, match=match):
        tilefold.segment_reduce(drawn(10), monoids.SUM, **options)


def test_other_refusals() -> None:
    offsets = torch.tensor([0, 4, 4])
    with pytest.raises(EmptyError, match="got the empty segment 1"):
        tilefold.segment_reduce(drawn(4), monoids.FIRST, offsets)
    with pytest.raises(ShapeError, match="must have a dim"):
        tilefold.segment_reduce(torch.tensor(1), monoids.SUM, offsets)
    with pytest.raises(BackendError, match="segment_reduce: the backend in force"), tilefold.backend("torch"):
        tilefold.segment_reduce(drawn(4), monoids.SUM, offsets)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # torch calls them a prototype
        nested = torch.nested.nested_tensor([offsets], layout=torch.strided)
    with pytest.raises(DtypeError, match=r"`offsets` must be dense .*nested"):
        tilefold.segment_reduce(drawn(4), monoids.SUM, nested)
    with pytest.raises(ArgumentError, match="sum folds 1 input"):
        tilefold.segment_reduce([], monoids.SUM, by=offsets)
    meta = drawn(4).to("meta")
    with pytest.raises(ArgumentError, match="the number of keys must be known"):
        tilefold.segment_reduce(meta, monoids.SUM, by=meta)


@pytest.mark.parametrize("name", ["offsets", "lengths", "by"])
def test_what_gives_the_segments_is_named_where_it_is_no_tensor(name: str) -> None:
    with pytest.raises(KindError, match=f"`{name}` must be a tensor, got list"):
        tilefold.segment_reduce(torch.randn(4), monoids.SUM, **{name: [0, 4]})


def test_nothing_waits_for_a_gpu_unless_it_is_asked_to(monkeypatch: pytest.MonkeyPatch) -> None:
    """Offsets that lie there are looked at where `validate` says so."""
    module = importlib.import_module("tilefold.api.segment_reduce")
    looked, own = [], module.are_looked_at
    monkeypatch.setattr(
        module, "are_looked_at", lambda n, validate: looked.append(validate) or own(n, validate)
    )
    x = torch.ones(4)
    tilefold.segment_reduce(x, monoids.SUM, torch.tensor([0, 4]))
    tilefold.segment_reduce(x, monoids.SUM, lengths=torch.tensor([1, 3]))
    assert set(looked) == {False}
    looked.clear()
    tilefold.segment_reduce(x, monoids.SUM, torch.tensor([0, 4]), validate=True)
    assert set(looked) == {True}
