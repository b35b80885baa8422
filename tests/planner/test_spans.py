"""Short rows read and written as one flat span, executed from PTX: any length, alignment, lanes and extra tensors."""

from __future__ import annotations

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
from tilefold.planner.plan import Launch, Plan, names
from tilefold.planner.products.row import make_row_map
from tilefold.planner.spans import SHARED_BYTES, conflicts_of, is_flat, spans_of, spans_stage
from tilefold.planner.stages.rows import Spans
from tilefold.xray.machine.races import races
from xray.running import run_plan

pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning")
F = torch.nn.functional
BF16, FP16, FP32 = torch.bfloat16, torch.float16, torch.float32
NAN, INF = float("nan"), float("inf")
Form = tuple[int, ...]  # rows a program, lanes a row, warps; and whether columns come in pieces


def executed(
    monoid: Any,
    apply: Any,
    tensors: list[torch.Tensor],
    form: Form | None,
    out: list[torch.Tensor] | None = None,
    dim: int = 1,
    guarantee: str = "run_to_run",
) -> list[torch.Tensor]:
    """The results of a map of rows in this form (None: the planned one), every program executed."""
    n, shape = monoid.algebra.inputs, tensors[0].shape
    dtypes = tuple(t.dtype for t in tensors)
    row = make_row_map(monoid.total, apply, dtypes[:n], dtypes[n:])
    request = RowMap(row, (dim,), guarantee, tuple(shape))
    expanded = [t.expand(shape) for t in tensors]
    problem, plan = request.plan(expanded, H200, library=False)
    if form is not None:
        stage = spans_of(problem, row.program, row.results, *form)
        assert stage is not None
        step = Launch("map_spans", stage, names("input", len(tensors)), names("output", len(row.results)))
        plan = replace(plan, steps=(step,), workspaces=())
    assert isinstance(plan.stages[0], Spans)
    # Poisoned: what is not written shows.
    results = [torch.full(s, NAN).to(d) for s, d in request.results] if out is None else out
    outcomes = run_plan(plan, problem, row, expanded, results, 90)
    assert not any(race.differing for o in outcomes for race in races(o))
    return results


def beginning(t: torch.Tensor, after: int) -> torch.Tensor:
    """The same tensor, so many elements behind a multiple of 16 bytes."""
    held = torch.full((t.numel() + after + 16,), NAN).to(t.dtype)
    made = held[after : after + t.numel()].view(t.shape)
    return made.copy_(t)


SOFTMAX: dict[str, tuple[tuple[int, int], torch.dtype, Form | None, int]] = {
    "a thread a row": ((200, 11), BF16, (128, 1, 4), 0),
    "several rows a thread": ((300, 3), FP32, (256, 1, 2), 0),
    "two threads a row": ((67, 7), FP16, (64, 2, 4), 0),
    "eight threads a row": ((37, 101), BF16, (16, 8, 4), 0),
    "a warp a row": ((9, 255), FP32, (4, 32, 4), 0),
    "several warps a row": ((5, 513), BF16, (2, 64, 4), 0),
    "spans that begin anywhere": ((7, 129), BF16, (1, 64, 2), 0),
    "rows of an even number": ((70, 6), BF16, (64, 1, 2), 0),
    "no element masked": ((40, 44), BF16, (32, 4, 4), 0),
    "misaligned": ((200, 11), BF16, (128, 1, 4), 3),
    "misaligned, of 4 bytes": ((133, 5), FP32, (64, 2, 4), 1),
    "less than a vector": ((1, 3), BF16, (128, 1, 4), 0),
    "less than a vector, misaligned": ((1, 3), BF16, (128, 1, 4), 6),
    "two elements": ((1000, 2), BF16, None, 0),
    "as planned": ((300, 37), BF16, None, 0),
    "as planned, a program's rows and one more": ((257, 9), FP32, None, 0),
}


@pytest.mark.parametrize("name", SOFTMAX)
def test_softmax(name: str) -> None:
    shape, dtype, form, after = SOFTMAX[name]
    logarithm = dtype == FP32
    x = (torch.randn(shape) + torch.arange(shape[0])[:, None] % 50).to(
        dtype
    )  # no row's results are another's
    (got,) = executed(*kept(_shares, logarithm), [beginning(x, after)], form)
    check(got, (torch.log_softmax if logarithm else torch.softmax)(x.double(), 1))


GROUPS: dict[str, tuple[tuple[int, int, int], torch.dtype, Form | None, int]] = {
    "a thread a column": ((50, 3, 8), BF16, (128, 1, 4), 0),
    "threads without a column": ((40, 5, 7), FP32, (126, 1, 4), 0),
    "several columns a thread": ((40, 3, 13), FP32, (247, 1, 2), 0),
    "two threads a column": ((9, 17, 14), FP16, (56, 2, 4), 0),
    "eight threads a column": ((9, 29, 3), BF16, (15, 8, 4), 0),
    "groups that begin anywhere": ((9, 7, 5), BF16, (20, 4, 4), 0),
    "misaligned": ((50, 5, 7), BF16, (63, 1, 2), 3),
    "misaligned, of 4 bytes": ((20, 9, 5), FP32, (60, 2, 4), 1),
    "one group": ((1, 13, 9), BF16, None, 0),
    "as planned, a thread a column": ((500, 3, 8), BF16, None, 0),
    "as planned, several threads": ((7, 50, 11), FP32, None, 0),
    "as planned, misaligned": ((70, 6, 5), FP16, None, 2),
}


PIECES: dict[str, tuple[tuple[int, int, int], torch.dtype, Form | None, int]] = {
    "one block": ((3, 5, 32), FP32, (32, 1, 1, 1), 0),
    "blocks, the last one in part": ((2, 7, 136), BF16, (64, 2, 4, 1), 0),
    "of odd width": ((3, 9, 101), BF16, (64, 1, 2, 1), 0),
    "of odd width, of 4 bytes": ((2, 6, 99), FP32, (32, 2, 2, 1), 0),
    "misaligned": ((2, 5, 104), FP16, (64, 1, 2, 1), 3),
    "less than a vector left": ((2, 5, 67), BF16, (64, 1, 2, 1), 1),
    "fewer columns than a block": ((2, 40, 37), BF16, (64, 2, 4, 1), 0),
    "as planned": ((1, 30, 2000), FP32, None, 0),
    "as planned, odd": ((1, 60, 1001), FP32, None, 1),
}


@pytest.mark.parametrize("name", PIECES)
def test_columns_in_pieces(name: str) -> None:
    shape, dtype, form, after = PIECES[name]
    x = (torch.randn(shape) + torch.arange(shape[2]) % 50).to(dtype)
    (got,) = executed(*kept(_shares, False), [beginning(x, after)], form, dim=1)
    check(got, torch.softmax(x.double(), 1))


@pytest.mark.parametrize("name", GROUPS)
def test_groups_of_columns(name: str) -> None:
    shape, dtype, form, after = GROUPS[name]
    x = (torch.randn(shape) + torch.arange(shape[0])[:, None, None] % 50).to(dtype)
    (got,) = executed(*kept(_shares, False), [beginning(x, after)], form, dim=1)
    check(got, torch.softmax(x.double(), 1))


@pytest.mark.parametrize("form", [(60, 1, 2), (30, 4, 4), (4, 8, 1, 1), None], ids=str)
@pytest.mark.parametrize(
    "name", ["groups of their own", "misaligned", "a number a column", "a weight", "a row"]
)
def test_extra_tensors_beside_groups(name: str, form: Form | None) -> None:
    g, m, n = 13, 7, 6
    x = torch.randn(g, m, n).to(BF16)
    extra = {
        "groups of their own": torch.randn(g, m, n).to(BF16),
        "misaligned": beginning(torch.randn(g, m, n), 1),
        "a number a column": torch.randn(g, 1, n),
        "a weight": torch.randn(1, m, 1),
        "a row": torch.randn(1, 1, n),
    }[name]
    apply = graph_of(lambda x, total, y: x / (1.0 + total * total) + y, 3)
    (got,) = executed(monoids.SUM, apply, [x, extra], form, dim=1)
    total = x.double().sum(1, keepdim=True)
    check(got, x.double() / (1 + total * total) + extra.double())


def test_groups_in_place() -> None:
    x = torch.randn(31, 9, 7)
    want = torch.softmax(x.double(), 1)
    executed(*kept(_shares, False), [x], None, out=[x], dim=1)
    check(x, want)


def test_columns_where_numbers_are_none() -> None:
    x = torch.randn(9, 7, 6)
    x[0], x[1, :3], x[2, 3], x[3, 6], x[4, :6], x[5, 0] = -INF, -INF, INF, NAN, -INF, NAN
    (got,) = executed(*kept(_shares, False), [x], None, dim=1)
    check(got, torch.softmax(x.double(), 1))


NORMS: dict[str, tuple[tuple[int, int], torch.dtype, torch.dtype, Form | None]] = {
    "a thread a row": ((200, 9), BF16, BF16, (128, 1, 4)),
    "wide weights": ((200, 9), FP16, FP32, (128, 1, 4)),
    "narrow weights": ((70, 35), FP32, BF16, (32, 4, 4)),
    "a warp a row": ((9, 255), BF16, BF16, (4, 32, 4)),
    "several warps a row": ((5, 1001), BF16, BF16, (2, 64, 4)),
    "as planned": ((77, 101), BF16, BF16, None),
}


@pytest.mark.parametrize(
    ("call", "residual"), [("layer_norm", False), ("rms_norm", True), ("layer_norm", True)]
)
@pytest.mark.parametrize("name", NORMS)
def test_norms(name: str, call: str, residual: bool) -> None:
    (m, n), dtype, wide, form = NORMS[name]
    x, r = torch.randn(m, n).to(dtype), torch.randn(m, n).to(dtype)
    weight = torch.randn(n).to(wide)
    norm = kept(_norms, call, n, 1e-5, (True, False), residual)
    got, *added = executed(*norm, [x, *[beginning(r, 1)] * residual, weight], form)
    total = x.double() + (r.double() if residual else 0)
    check(got, getattr(F, call)(total, (n,), weight.double(), eps=1e-5))
    for t in added:
        check(t, total)


@pytest.mark.parametrize("form", [(64, 1, 2), (32, 4, 4), None], ids=str)
def test_a_weight_and_a_bias(form: Form | None) -> None:
    x, weight, bias = (torch.randn(*s).to(BF16) for s in ((70, 13), (13,), (13,)))
    (got,) = executed(*kept(_norms, "layer_norm", 13, 1e-5, (True, True), False), [x, weight, bias], form)
    check(got, F.layer_norm(x.double(), (13,), weight.double(), bias.double()))


@pytest.mark.parametrize("form", [(64, 1, 2), (32, 4, 4)], ids=str)
@pytest.mark.parametrize("name", ["rows of their own", "misaligned", "a number a row", "apart", "one number"])
def test_extra_tensors(name: str, form: Form) -> None:
    m, n = 70, 13
    x = torch.randn(m, n).to(BF16)
    extra = {
        "rows of their own": torch.randn(m, n).to(BF16),
        "misaligned": beginning(torch.randn(m, n), 1),
        "a number a row": torch.randn(m, 1),
        "apart": torch.randn(m, 2 * n)[:, ::2],
        "one number": torch.randn(1, 1),
    }[name]
    apply = graph_of(lambda x, total, y: x / (1.0 + total * total) + y, 3)
    (got,) = executed(monoids.SUM, apply, [x, extra], form)
    total = x.double().sum(1, keepdim=True)
    check(got, x.double() / (1 + total * total) + extra.double())


@pytest.mark.parametrize("form", [(64, 1, 2), (32, 4, 4)], ids=str)
def test_extra_tensors_of_several_dims(form: Form) -> None:
    """Rows that are one piece of memory, beside tensors that are not: a scale for each batch, a shift for each place."""
    x, scale, shift = torch.randn(5, 17, 13).to(BF16), torch.randn(5, 1, 13), torch.randn(17, 1)
    apply = graph_of(lambda x, total, y, z: x / (1.0 + total * total) * y + z, 4)
    (got,) = executed(monoids.SUM, apply, [x, scale, shift], form, dim=2)
    total = x.double().sum(2, keepdim=True)
    check(got, x.double() / (1 + total * total) * scale.double() + shift.double())


@pytest.mark.parametrize("form", [(16, 1, 1), (8, 4, 1), (2, 32, 2)], ids=str)
def test_what_rows_fold_to_where_numbers_are_none(form: Form) -> None:
    x = torch.randn(9, 37)
    x[0], x[1, :19], x[2, 3], x[3, 36], x[4, :36], x[5, 0] = -INF, -INF, INF, NAN, -INF, NAN
    (got,) = executed(*kept(_shares, False), [x], form)
    check(got, torch.softmax(x.double(), 1))


@pytest.mark.parametrize("form", [(32, 1, 1), (16, 4, 2)], ids=str)
def test_a_monoid_without_blocks(form: Form) -> None:
    x = torch.randn(35, 33)
    apply = graph_of(lambda x, least, most: (x - least) / (most - least), 3)
    (got,) = executed(monoids.MINMAX, apply, [x], form)
    low, high = x.double().amin(1, keepdim=True), x.double().amax(1, keepdim=True)
    check(got, (x.double() - low) / (high - low))


@pytest.mark.parametrize("form", [(64, 1, 2), (1, 32, 1), (8, 8, 2)], ids=str)
def test_in_place(form: Form) -> None:
    """A span is read before it is written, and its neighbours' elements in its vectors are not written."""
    x = torch.randn(99, 33)
    want = torch.softmax(x.double(), 1)
    executed(*kept(_shares, False), [x], form, out=[x])
    check(x, want)


def planned(
    call: str, shape: tuple[int, ...], dtype: torch.dtype, guarantee: str = "run_to_run", step: int = 1
) -> Plan:
    """The plan of an H200, of rows that are `step` rows apart."""
    name, _, residual = call.partition("+")
    x = torch.empty(shape[0] * step, *shape[1:], dtype=dtype, device="meta")[::step]
    length = shape[-1]
    if name == "softmax":
        (monoid, apply), extras = kept(_shares, False), []
    else:
        weight = torch.empty(length, dtype=dtype, device="meta")
        monoid, apply = kept(_norms, name, length, 1e-5, (True, False), bool(residual))
        extras = [weight.expand(shape)]
    inputs = [x] * (1 + bool(residual))
    row = make_row_map(monoid.total, apply, (dtype,) * len(inputs), (dtype,) * len(extras))
    request = RowMap(row, (len(shape) - 1,), guarantee, shape)
    return request.plan([*inputs, *extras], H200, library=False)[1]


LENGTHS = (
    2,
    3,
    5,
    7,
    11,
    20,
    30,
    33,
    63,
    65,
    101,
    127,
    129,
    250,
    255,
    257,
    333,
    501,
    511,
    513,
    1001,
    2049,
    4095,
)


@pytest.mark.parametrize("dtype", [BF16, FP32], ids=str)
@pytest.mark.parametrize("call", ["softmax", "layer_norm", "rms_norm+residual"])
@pytest.mark.parametrize("length", LENGTHS)
def test_planned_spans(length: int, call: str, dtype: torch.dtype) -> None:
    plan = planned(call, (4096, length), dtype)
    stage = plan.stages[0]
    if not isinstance(stage, Spans):
        assert length * dtype.itemsize > 8192, "a long row"
        return
    assert stage.lanes * (stage.each - 1) < length <= stage.lanes * stage.each, (
        "a masked element is a lane's last one"
    )
    assert stage.lanes <= length
    assert stage.block_outputs * stage.lanes >= 32 * stage.num_warps, "no two threads have one element"
    assert conflicts_of(length, stage.lanes, dtype.itemsize) <= 4
    assert stage.each * (1 + ("+" in call)) <= 32
    size = stage.vectors(length, dtype.itemsize) * 16
    areas = sorted({a for a in (*stage.areas, *stage.result_areas) if a >= 0})
    assert all(b - a >= size for a, b in zip(areas, [*areas[1:], stage.shared_bytes], strict=True))
    assert stage.shared_bytes <= SHARED_BYTES
    assert str(stage) in str(plan)


def test_results_take_the_places_of_elements_that_begin_alike() -> None:
    """Elsewhere they would be put where another thread has not read yet."""
    monoid, apply = kept(_norms, "rms_norm", 11, 1e-5, (False, False), True)
    row = make_row_map(monoid.total, apply, (BF16, BF16), ())
    x, y = torch.empty(70, 11, dtype=BF16), beginning(torch.empty(70, 11, dtype=BF16), 1)
    for tensors, shared in (((x, x), 2), ((x, y), 1), ((y, y), 0)):
        problem = RowMap(row, (1,), "run_to_run", (70, 11)).problem(tensors)
        stage = spans_of(problem, row.program, row.results, 64, 1, 2)
        assert stage is not None
        alike = {a for a, t in zip(stage.areas, tensors, strict=True) if t is x}
        assert len(alike & set(stage.result_areas)) == shared
        assert len({*stage.areas, *stage.result_areas}) == 4 - shared


REFUSED = {
    "a whole vector": (torch.empty(9, 8, dtype=BF16), []),
    "a power of two of them": (torch.empty(9, 64), []),
    "many whole vectors": (torch.empty(9, 1000), []),
    "long rows": (torch.empty(9, 5001), []),
    "columns": (torch.empty(11, 9).t(), []),
    "elements of 8 bytes": (torch.empty(9, 11, dtype=torch.float64), []),
    "elements apart": (torch.empty(9, 22)[:, ::2], []),
    "rows apart": (torch.empty(9, 13)[:, :11], []),
    "rows in another order": (torch.empty(9, 8, 11).transpose(0, 1), []),
    "whole numbers beside": (torch.empty(9, 11), [torch.empty(11, dtype=torch.int32)]),
    "one element": (torch.empty(9, 1), []),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_is_no_span(name: str) -> None:
    x, extras = REFUSED[name]
    which = graph_of(lambda x, total, *rest: x / total + sum(rest), 2 + len(extras))
    row = make_row_map(monoids.SUM.total, which, (x.dtype,), tuple(t.dtype for t in extras))
    request = RowMap(row, (x.ndim - 1,), "run_to_run", tuple(x.shape))
    problem = request.problem([x, *(t.expand(x.shape) for t in extras)])
    assert spans_stage(problem, row.program, row.results, H200, False) is None


def test_halves_that_are_read_as_other_halves_are_no_spans() -> None:
    """Elements come as float32: those that a conversion would round first would not be."""
    x = torch.empty(9, 11, dtype=BF16)
    monoid, apply = kept(_shares, False)
    for read, flat in ((FP16, False), (BF16, True), (FP32, True)):
        row = make_row_map(monoid.total, apply, (read,), ())
        problem = RowMap(row, (1,), "run_to_run", (9, 11)).problem([x])
        assert is_flat(problem, row.program, row.results) == flat


@pytest.mark.parametrize("call", ["softmax", "rms_norm+residual"])
@pytest.mark.parametrize("length", [11, 101, 501, 2049])
def test_batch_invariant_rows_have_the_same_threads_among_any_others(length: int, call: str) -> None:
    stages = [
        planned(call, shape, BF16, "batch_invariant").stages[0]
        for shape in (
            (1, length),
            (2, length),
            (4096, length),
            (1, 1, length),
            (7, 1, length),
            (3, 5, length),
        )
    ]
    assert all(isinstance(stage, Spans) for stage in stages)
    assert len({(stage.lanes, stage.each, stage.across) for stage in stages}) == 1
    # A row of padded rows is planned as they are.
    apart = [planned(call, (rows, length), BF16, "batch_invariant", step=2).stages[0] for rows in (1, 9)]
    assert not any(isinstance(stage, Spans) for stage in apart)


def test_results_wider_than_elements() -> None:
    x = torch.randn(70, 11).to(BF16)
    monoid, apply = kept(_shares, False)
    row = make_row_map(monoid.total, apply, (FP32,), ())
    problem, plan = RowMap(row, (1,), "run_to_run", (70, 11)).plan([x], H200, library=False)
    got = torch.full((70, 11), NAN)
    run_plan(plan, problem, row, [x], [got], 90)
    assert isinstance(plan.stages[0], Spans)
    check(got, torch.softmax(x.double(), 1))


@pytest.mark.parametrize("wide", [(BF16, FP32), (FP32, FP16)], ids=str)
def test_a_residual_of_other_bits(wide: tuple[torch.dtype, torch.dtype]) -> None:
    x, r = torch.randn(70, 13).to(wide[0]), beginning(torch.randn(70, 13).to(wide[1]), 1)
    got, added = executed(*kept(_norms, "rms_norm", 13, 1e-5, (False, False), True), [x, r], None)
    assert torch.equal(added, x + r)
    check(got, F.rms_norm((x + r).double(), (13,), eps=1e-5))


def test_bits_of_a_row_beside_others() -> None:
    x, r, weight = torch.randn(70, 13).to(BF16), torch.randn(70, 13).to(BF16), torch.randn(13).to(BF16)
    norm = kept(_norms, "layer_norm", 13, 1e-5, (True, False), True)
    every = executed(*norm, [x, r, weight], None, guarantee="batch_invariant")
    for first, last in ((0, 1), (5, 6), (5, 40)):
        part = executed(*norm, [x[first:last], r[first:last], weight], None, guarantee="batch_invariant")
        assert all(torch.equal(a, b[first:last]) for a, b in zip(part, every, strict=True))


def test_words_of_a_bank() -> None:
    assert conflicts_of(11, 1, 4) == 1, "odd steps touch every bank"
    assert conflicts_of(8, 1, 4) == 8
    assert conflicts_of(32, 1, 4) == 32
    assert conflicts_of(11, 1, 2) == 2, "32 halves of 64 lie in 16 to 32 banks"
    assert conflicts_of(4000, 32, 2) == 1, "neighbours"
