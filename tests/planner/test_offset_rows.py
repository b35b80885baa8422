"""Odd rows in shared memory, executed from PTX: any alignment, turns, clusters, extra tensors and several inputs."""

from __future__ import annotations

import itertools
from dataclasses import replace
from typing import Any

import pytest
import torch

from planner.held_rows import check
from tilefold import monoids
from tilefold.api.reduce_map import graph_of, kept
from tilefold.api.requests import RowMap
from tilefold.functional.normalized import _norms, _shares
from tilefold.planner.device import H200
from tilefold.planner.offset_rows import offset_rows
from tilefold.planner.plan import Launch, names
from tilefold.planner.products.row import make_row_map
from tilefold.planner.stages.rows import OffsetRows
from tilefold.xray.machine.races import races
from xray.running import run_plan

pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning")
F = torch.nn.functional
BF16, FP16, FP32 = torch.bfloat16, torch.float16, torch.float32
NAN, INF = float("nan"), float("inf")
Form = tuple[int, int, int]  # threads, unroll, programs a row


def executed(
    monoid: Any,
    apply: Any,
    tensors: list[torch.Tensor],
    form: Form | None,
    out: list[torch.Tensor] | None = None,
) -> list[torch.Tensor]:
    """The results of a map of rows in this form, or as an H200 has it, every program executed."""
    n, shape = monoid.algebra.inputs, tensors[0].shape
    dtypes = tuple(t.dtype for t in tensors)
    row = make_row_map(monoid.total, apply, dtypes[:n], dtypes[n:])
    request = RowMap(row, (1,), "run_to_run", tuple(shape))
    expanded = [t.expand(shape) for t in tensors]
    problem, plan = request.plan(expanded, H200, library=False)
    if form is not None:
        stage = offset_rows(problem, row.program, row.results, *form)
        assert stage is not None
        step = Launch("map_offset", stage, names("input", len(tensors)), names("output", len(row.results)))
        plan = replace(plan, steps=(step,), workspaces=())
    # Poisoned: what is not written shows.
    results = [torch.full(s, NAN).to(d) for s, d in request.results] if out is None else out
    outcomes = run_plan(plan, problem, row, expanded, results, 90)
    assert not any(race.differing for o in outcomes for race in races(o))
    return results


def unalike(m: int, n: int, dtype: torch.dtype, how: str) -> torch.Tensor:
    """Rows that begin at other places between two vectors than their results: by their address, or by their distance."""
    if how == "address":
        return torch.randn(m * n + 3).to(dtype)[3:].view(m, n)
    return torch.randn(m, n + 7).to(dtype)[:, 2 : n + 2]


def rows_of_numbers(m: int, n: int, dtype: torch.dtype) -> torch.Tensor:
    """No row's results are another's."""
    return (torch.randn(m, n) + torch.arange(m)[:, None] % 5).to(dtype)


FORMS: dict[str, tuple[tuple[int, int], torch.dtype, Form]] = {
    "one turn": ((5, 301), BF16, (64, 4, 1)),
    "two turns": ((3, 1001), BF16, (64, 8, 1)),
    "many turns": ((3, 1501), FP16, (64, 4, 1)),
    "of 4 bytes": ((3, 1501), FP32, (64, 4, 1)),
    "of 4 bytes, two programs": ((5, 1501), FP32, (128, 4, 2)),
    "three programs": ((3, 1503), BF16, (64, 2, 3)),
    "rows of even numbers": ((4, 1002), BF16, (64, 4, 1)),
    "rows of half a vector": ((3, 1004), FP16, (64, 4, 2)),
}


@pytest.mark.parametrize("name", FORMS)
def test_softmax(name: str) -> None:
    (m, n), dtype, form = FORMS[name]
    logarithm = dtype == FP16
    x = rows_of_numbers(m, n, dtype)
    (got,) = executed(*kept(_shares, logarithm), [x], form)
    check(got, (torch.log_softmax if logarithm else torch.softmax)(x.double(), 1))


@pytest.mark.parametrize(("call", "residual"), [("layer_norm", False), ("rms_norm", True)])
@pytest.mark.parametrize("name", ["one turn", "many turns", "of 4 bytes, two programs", "three programs"])
def test_norms(name: str, call: str, residual: bool) -> None:
    (m, n), dtype, form = FORMS[name]
    x, r = rows_of_numbers(m, n, dtype), torch.randn(m, n).to(dtype)
    bias = call == "layer_norm"
    beside = [torch.randn(n).to(dtype) for _ in range(1 + bias)]
    norm = kept(_norms, call, n, 1e-5, (True, bias), residual)
    got, *added = executed(*norm, [x, *[r] * residual, *beside], form)
    total = x.double() + (r.double() if residual else 0)
    check(got, getattr(F, call)(total, (n,), *(b.double() for b in beside), eps=1e-5))
    for t in added:
        check(t, total)


def test_wide_weights() -> None:
    x, weight = rows_of_numbers(3, 1501, BF16), torch.randn(1501)
    (got,) = executed(*kept(_norms, "rms_norm", 1501, 1e-5, (True, False), False), [x, weight], (64, 4, 1))
    check(got, F.rms_norm(x.double(), (1501,), weight.double(), 1e-5))


def test_a_monoid_without_blocks_and_two_results() -> None:
    x = rows_of_numbers(3, 1501, BF16)
    apply = graph_of(lambda x, least, most: ((x - least) / (most - least), most - x), 3)
    got, other = executed(monoids.MINMAX, apply, [x], (64, 4, 2))
    low, high = x.double().amin(1, True), x.double().amax(1, True)
    check(got, (x.double() - low) / (high - low))
    check(other, high - x.double())


def test_what_rows_fold_to_where_numbers_are_none() -> None:
    x = torch.randn(5, 1501)
    x[0], x[1, 700:], x[2, 1500], x[3, 0], x[4, 1:] = -INF, -INF, INF, NAN, -INF
    (got,) = executed(*kept(_shares, False), [x], (64, 4, 2))
    check(got, torch.softmax(x.double(), 1))


@pytest.mark.parametrize("how", ["address", "distance"])
@pytest.mark.parametrize(
    "name", ["one turn", "two turns", "of 4 bytes, two programs", "three programs", "rows of half a vector"]
)
def test_rows_and_results_that_begin_at_different_places(name: str, how: str) -> None:
    (m, n), dtype, form = FORMS[name]
    x, r, weight = unalike(m, n, dtype, how), rows_of_numbers(m, n, dtype), torch.randn(n).to(dtype)
    got, added = executed(*kept(_norms, "rms_norm", n, 1e-5, (True, False), True), [x, r, weight], form)
    total = x.double() + r.double()
    check(got, F.rms_norm(total, (n,), weight.double(), 1e-5))
    check(added, total)
    (shares,) = executed(*kept(_shares, False), [x], form)
    check(shares, torch.softmax(x.double(), 1))


def test_in_place() -> None:
    x = rows_of_numbers(4, 1001, BF16)
    want = torch.softmax(x.double(), 1)
    executed(*kept(_shares, False), [x], (64, 4, 2), out=[x])
    check(x, want)


def planned(
    shape: tuple[int, int],
    dtype: torch.dtype,
    call: str,
    guarantee: str = "run_to_run",
    residual: bool = False,
) -> Any:
    """What an H200's plan holds rows in."""
    n = shape[1]
    extras = {"softmax": 0, "rms_norm": 1, "layer_norm": 2}[call]
    monoid, apply = (
        kept(_shares, False)
        if call == "softmax"
        else kept(_norms, call, n, 1e-5, (True, extras > 1), residual)
    )
    row = make_row_map(monoid.total, apply, (dtype,) * (1 + residual), (dtype,) * extras)
    x = torch.empty(shape, dtype=dtype, device="meta")
    beside = [torch.empty(n, dtype=dtype, device="meta").expand(shape)] * extras
    return (
        RowMap(row, (1,), guarantee, shape)
        .plan([x, *[x] * residual, *beside], H200, library=False)[1]
        .stages[0]
    )


@pytest.mark.parametrize("call", ["softmax", "rms_norm", "layer_norm"])
def test_one_program_holds_a_row_that_is_not_long(call: str) -> None:
    stage = planned((4000, 12345), BF16, call)
    assert isinstance(stage, OffsetRows)
    assert (stage.splits, stage.lanes) == (1, 256)


@pytest.mark.parametrize("call", ["softmax", "layer_norm"])
def test_small_programs_share_a_longer_row(call: str) -> None:
    stage = planned((4000, 45677), FP16, call)
    assert isinstance(stage, OffsetRows)
    assert (stage.splits, stage.lanes) == (4, 128)


def test_more_programs_share_rows_where_these_are_few() -> None:
    stage = planned((200, 12345), BF16, "layer_norm")
    assert isinstance(stage, OffsetRows)
    assert stage.splits * 200 >= 4 * H200.sms / 2
    assert stage.splits > 1


@pytest.mark.parametrize("length", [2501, 3777])
def test_small_rows_beside_two_tensors_are_no_spans(length: int) -> None:
    stage = planned((4000, length), BF16, "layer_norm")
    assert isinstance(stage, OffsetRows)
    assert (stage.splits, stage.lanes, stage.unroll) == (1, 64, 4)


def test_more_programs_than_are_portable_share_a_row() -> None:
    stage = planned((300, 204077), BF16, "layer_norm")
    assert isinstance(stage, OffsetRows)
    assert (stage.splits, stage.lanes) == (16, 128)


def test_odd_rows_that_neither_rings_nor_blocks_hold() -> None:
    stage = planned((2500, 25001), FP32, "rms_norm")
    assert isinstance(stage, OffsetRows)
    assert stage.lanes == 128


def apart(x: torch.Tensor, beside: int, inputs: int = 1) -> Any:
    """What is planned of rows of memory of their own, as they lie, beside so many weights."""
    n, both = x.shape[1], [x, torch.empty(x.shape, dtype=x.dtype)][:inputs]
    which = (beside > 0, beside > 1)
    monoid, apply = kept(_norms, "layer_norm", n, 1e-5, which, inputs > 1) if beside else kept(_shares, False)
    extras = [torch.empty(n, dtype=x.dtype).expand(x.shape)] * beside
    row = make_row_map(monoid.total, apply, (x.dtype,) * inputs, (x.dtype,) * beside)
    return RowMap(row, (1,), "run_to_run", tuple(x.shape)).plan([*both, *extras], H200, library=False)[1]


def test_norms_of_rows_that_begin_at_other_places_than_their_results() -> None:
    for how, dtype in itertools.product(("address", "distance"), (BF16, FP32)):
        stage = apart(unalike(500, 6001, dtype, how), 1, inputs=2).stages[0]
        assert isinstance(stage, OffsetRows)
        assert stage.shared_bytes <= 227 << 10
    assert isinstance(apart(unalike(500, 6001, BF16, "address"), 0).stages[0], OffsetRows)
    # Short rows are spans or blocks.
    assert not isinstance(apart(unalike(500, 701, BF16, "distance"), 1).stages[0], OffsetRows)


@pytest.mark.parametrize(("n", "dtype", "inputs"), [(700_001, BF16, 1), (200_001, FP32, 2)], ids=str)
def test_a_cluster_holds_what_would_be_read_twice_by_single_elements(
    n: int, dtype: torch.dtype, inputs: int
) -> None:
    stage = apart(unalike(9, n, dtype, "address"), inputs - 1, inputs).stages[0]
    assert isinstance(stage, OffsetRows)
    assert stage.splits == 16
    assert stage.shared_bytes <= 227 << 10
    assert stage.step >= stage.share


@pytest.mark.parametrize(
    "other",
    [
        planned((4000, 12344), BF16, "layer_norm"),
        planned((4000, 12345), BF16, "layer_norm", guarantee="batch_invariant"),
        planned((4000, 12345), BF16, "rms_norm", residual=True),
        planned((4000, 45677), BF16, "rms_norm"),
        planned((4000, 12345), FP32, "softmax"),
        planned((8000, 6001), FP32, "layer_norm"),
        planned((420, 25471), BF16, "softmax"),
        planned((4000, 1501), BF16, "softmax"),
        planned((4000, 1501), BF16, "layer_norm"),
        planned((4000, 3001), BF16, "rms_norm"),
        planned((4000, 3000001), BF16, "softmax"),
    ],
    ids=[
        *("whole vectors", "batch invariant", "two inputs", "long, one extra", "4 bytes", "4 bytes, small"),
        *("few rows", "short", "short, two extras", "one extra", "too long"),
    ],
)
def test_other_plans(other: Any) -> None:
    assert not isinstance(other, OffsetRows)


@pytest.mark.parametrize("dtype", [BF16, FP16, FP32], ids=str)
@pytest.mark.parametrize("n", [520, 1024])
def test_a_lanes_elements_are_one_threads_where_results_have_wider_vectors(
    n: int, dtype: torch.dtype
) -> None:
    """Of one row that begins between two vectors threads have single elements, but as many neighbours as a store writes."""
    x = torch.randn(n + 1).to(dtype)[1:].view(1, n)
    for weights in ([], [torch.randn(n).to(dtype)]):
        norm = kept(_norms, "layer_norm", n, 1e-5, (bool(weights), False), False)
        (got,) = executed(*norm, [x, *weights], None)
        check(got, F.layer_norm(x.double(), (n,), *(w.double() for w in weights), eps=1e-5))
    whole = (x * 4).round()  # the first of several largest ones
    ties = torch.empty_like(torch.cat((whole, whole), 1))[:, 1 : n + 1].copy_(whole)
    first = graph_of(lambda x, place: 0 * x + place, 2)
    (got,) = executed(monoids.ARGMAX, first, [ties], None)
    place = (ties == ties.max()).int().argmax()
    assert bool((got == place.to(dtype)).all())
