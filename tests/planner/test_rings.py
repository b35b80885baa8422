"""Rows held in rings of shared memory, executed from PTX: clusters, turns, odd rows, several rows a program."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from planner.held_rows import BOUNDS, check
from tilefold import monoids
from tilefold.api.reduce_map import graph_of, kept
from tilefold.api.requests import RowMap
from tilefold.backends.triton import call as calls
from tilefold.backends.triton import launch
from tilefold.backends.triton.lower import calls_of
from tilefold.backends.triton.shared_calls import _share as shares
from tilefold.functional.normalized import _norms, _shares
from tilefold.planner.device import H200
from tilefold.planner.maps import rows_of
from tilefold.planner.plan import Launch, Plan, names
from tilefold.planner.problem.canonical import Problem
from tilefold.planner.products.row import Row, make_row_map
from tilefold.planner.reading import reading_of
from tilefold.planner.ring_forms import PROGRAM_BYTES, REGISTER_WORDS
from tilefold.planner.rings import vectors_of
from tilefold.planner.sizes import SM_REGISTERS
from tilefold.planner.stages.rows import Rings
from tilefold.xray.machine.races import races
from xray.running import run_plan

pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning")
F = torch.nn.functional
BF16, FP16, FP32 = torch.bfloat16, torch.float16, torch.float32
NAN, INF = float("nan"), float("inf")


def planned(
    monoid: Any, apply: Any, tensors: list[torch.Tensor], **ring: int
) -> tuple[Plan, Problem, Row, RowMap]:
    """A map of rows in a ring of this form."""
    n, shape = monoid.algebra.inputs, tensors[0].shape
    dtypes = tuple(t.dtype for t in tensors)
    row = make_row_map(monoid.total, apply, dtypes[:n], dtypes[n:])
    request = RowMap(row, (1,), "run_to_run", tuple(shape))
    problem, plan = request.plan([t.expand(shape) for t in tensors], H200, library=False)
    rows = rows_of(problem, n)
    vectors = vectors_of(problem, row.program, row.results, reading_of(rows), rows)
    assert vectors is not None
    run, align = vectors
    stage = Rings("ring_rows", run=run, align=align, inputs=n, extras=len(tensors) - n, **ring)
    step = Launch("map_rings", stage, names("input", len(tensors)), names("output", len(row.results)))
    return replace(plan, steps=(step,), workspaces=()), problem, row, request


def executed(monoid: Any, apply: Any, tensors: list[torch.Tensor], **ring: int) -> list[torch.Tensor]:
    """Its results, every program executed."""
    plan, problem, row, request = planned(monoid, apply, tensors, **ring)
    results = [torch.empty(s, dtype=d) for s, d in request.results]
    outcomes = run_plan(plan, problem, row, [t.expand(tensors[0].shape) for t in tensors], results, 90)
    assert not any(race.differing for o in outcomes for race in races(o))
    return results


def ring(
    lanes: int,
    unroll: int,
    turns: int,
    depth: int,
    splits: int = 1,
    clusters: int = 0,
    rows: int = 1,
    parted: bool = False,
) -> dict[str, int]:
    return {
        "lanes": lanes, "unroll": unroll, "turns": turns, "depth": depth, "splits": splits, "clusters": clusters,
        "block_outputs": rows, "parted": parted,
    }  # fmt: skip


SOFTMAX = {  # shape, dtype, ring
    "one program a row": ((3, 1024), BF16, ring(64, 2, 1, 1)),
    "persistent programs": ((5, 1024), FP32, ring(64, 1, 4, 7, clusters=2)),
    "a ring of a turn more": ((7, 1024), BF16, ring(64, 1, 2, 3, clusters=1)),
    "persistent clusters": ((11, 3000), BF16, ring(64, 2, 1, 3, 3, 1)),
    "odd rows": ((5, 1403), BF16, ring(64, 1, 3, 4, clusters=2)),
    "odd rows, a turn at a time": ((5, 1403), BF16, ring(64, 1, 3, 4, clusters=2, parted=True)),
    "odd rows' shares": ((5, 1403), FP32, ring(64, 1, 3, 3, 2, parted=True)),
    "odd rows of clusters": ((5, 1001), FP32, ring(64, 1, 2, 3, 2, 2)),
    "rows of four bytes more": ((5, 1002), BF16, ring(64, 1, 2, 2)),
    "rows shorter than a cluster's": ((3, 300), FP16, ring(64, 1, 1, 2, 3)),
    "vectors beyond a share": ((5, 3000), BF16, ring(64, 2, 2, 3, 2, 2, parted=True)),
    "vectors beyond a share, a turn at a time": ((5, 3800), FP32, ring(64, 1, 8, 9, 2, 2, parted=True)),
    "ends before the last turn": ((5, 1300), FP32, ring(64, 1, 3, 4, 2, 2, parted=True)),
    "longer than a ring": ((5, 3800), FP32, ring(64, 1, 8, 6, 2, 2, parted=True)),
    "several rows a program": ((7, 256), FP32, ring(16, 4, 1, 2, clusters=1, rows=4)),
    "several odd rows a program": ((6, 251), BF16, ring(16, 1, 3, 4, clusters=1, rows=4)),
}


@pytest.mark.parametrize("name", SOFTMAX)
def test_softmax(name: str) -> None:
    shape, dtype, form = SOFTMAX[name]
    logarithm = dtype == BF16
    x = (torch.randn(shape) + torch.arange(shape[0])[:, None]).to(dtype)  # no row's results are another's
    (got,) = executed(*kept(_shares, logarithm), [x], **form)
    check(got, (torch.log_softmax if logarithm else torch.softmax)(x.double(), 1))


NORMS = {  # shape, dtype of rows, of weights, ring, whether the weights are held
    "rows": ((5, 1024), BF16, BF16, ring(64, 1, 2, 3, clusters=2), False),
    "weights held": ((7, 1024), FP32, FP32, ring(64, 1, 2, 3, 2, 2), True),
    "weights held beyond a row's end": ((4, 1000), BF16, BF16, ring(64, 1, 2, 2), True),
    "wide weights": ((4, 1000), BF16, FP32, ring(64, 1, 2, 2), False),
    "odd rows": ((9, 1403), BF16, BF16, ring(64, 1, 3, 4, clusters=1), False),
    "odd rows' shares": ((9, 1403), BF16, BF16, ring(64, 1, 2, 2, 2, parted=True), False),
    "odd rows' shares, walking": ((9, 1403), FP32, FP32, ring(64, 1, 3, 4, 2, 2, parted=True), False),
    "odd rows of clusters": ((9, 1403), FP32, FP32, ring(64, 2, 1, 2, 3, 3), False),
    "odd rows, wide weights": ((9, 1403), FP16, FP32, ring(64, 3, 1, 1), False),
    "vectors beyond a share": ((5, 3000), FP32, FP32, ring(64, 2, 3, 4, 2, 2, parted=True), False),
    "vectors beyond a share, walking no rows": (
        (5, 3000),
        BF16,
        FP32,
        ring(64, 1, 3, 3, 2, parted=True),
        False,
    ),
    "several odd rows a program": ((9, 251), BF16, BF16, ring(32, 2, 1, 2, clusters=1, rows=4), False),
    "a program a row, whose last turn is short": (
        (5, 1400),
        BF16,
        FP32,
        ring(64, 2, 2, 2, parted=True),
        False,
    ),
}


@pytest.mark.parametrize(("call", "residual"), [("layer_norm", False), ("rms_norm", True)])
@pytest.mark.parametrize("name", NORMS)
def test_norms(name: str, call: str, residual: bool) -> None:
    (m, n), dtype, wide, form, held = NORMS[name]
    x, r = torch.randn(m, n).to(dtype), torch.randn(m, n).to(dtype)
    weight = torch.randn(n).to(wide)
    norm = kept(_norms, call, n, 1e-5, (True, False), residual)
    got, *added = executed(*norm, [x, *[r] * residual, weight], held=held, **form)
    total = x.double() + (r.double() if residual else 0)
    check(got, getattr(F, call)(total, (n,), weight.double(), eps=1e-5))
    for t in added:
        check(t, total)


@pytest.mark.parametrize("held", [False, True])
def test_a_weight_and_a_bias(held: bool) -> None:
    n = 1024 if held else 1403
    x, weight, bias = torch.randn(5, n).to(BF16), torch.randn(n).to(BF16), torch.randn(n).to(BF16)
    norm = kept(_norms, "layer_norm", n, 1e-5, (True, True), False)
    (got,) = executed(*norm, [x, weight, bias], held=held, **ring(64, 1, 3 - held, 4, clusters=2))
    check(got, F.layer_norm(x.double(), (n,), weight.double(), bias.double()))


AHEAD = {  # shape, dtype of rows, of weights, turns ahead, ring
    "all kept for all rows": ((5, 1024), BF16, BF16, 2, ring(64, 1, 2, 3, clusters=2, parted=True)),
    "all kept, beyond a share": ((5, 3000), FP32, FP32, 3, ring(64, 2, 3, 4, 2, 2, parted=True)),
    "all kept, wide": ((5, 3000), BF16, FP32, 3, ring(64, 1, 3, 4, 2, 1, parted=True)),
    "some on their way": ((5, 3800), FP32, FP32, 3, ring(64, 1, 8, 9, 2, 2, parted=True)),
    "some on their way, walking no rows": ((5, 3800), FP32, FP32, 4, ring(64, 1, 8, 8, 2, parted=True)),
    "all at once, walking no rows": ((5, 3000), BF16, BF16, 3, ring(64, 1, 3, 3, 2, parted=True)),
    "longer than a ring": ((5, 3800), FP32, FP32, 2, ring(64, 1, 8, 7, 2, 2, parted=True)),
    "longer than two rings": ((5, 3900), FP32, FP32, 2, ring(64, 1, 8, 3, 2, 1, parted=True)),
}


@pytest.mark.parametrize(("call", "residual"), [("layer_norm", False), ("rms_norm", True)])
@pytest.mark.parametrize("name", AHEAD)
def test_words_of_weights_read_ahead(name: str, call: str, residual: bool) -> None:
    (m, n), dtype, wide, ahead, form = AHEAD[name]
    x, r = torch.randn(m, n).to(dtype), torch.randn(m, n).to(dtype)
    weight, bias = torch.randn(n).to(wide), torch.randn(n).to(wide)
    biased = call == "layer_norm"
    norm = kept(_norms, call, n, 1e-5, (True, biased), residual)
    got, *added = executed(*norm, [x, *[r] * residual, weight, *[bias] * biased], ahead=ahead, **form)
    total = x.double() + (r.double() if residual else 0)
    beside = [weight.double(), bias.double()] if biased else [weight.double()]
    check(got, getattr(F, call)(total, (n,), *beside, eps=1e-5))
    for t in added:
        check(t, total)


_ONE_AHEAD = {name: (shape, dtype, wide, 1, form) for name, (shape, dtype, wide, form, _) in NORMS.items()}
IN_SCALES = {name: (_ONE_AHEAD | AHEAD)[name] for name in (
    "rows", "odd rows of clusters", "vectors beyond a share", "several odd rows a program", "all kept for all rows",
    "some on their way", "longer than a ring", "longer than two rings",
)} | {"rows of two warps": ((9, 1024), BF16, BF16, 1, ring(64, 2, 1, 1, rows=2))}  # fmt: skip
SCALES = [1.0, 2.0**-126, 2.0**124, 2.0**-90, 2.0**60, 0.0, 2.0**97, 2.0**-40, 1.0]


@pytest.mark.parametrize(("call", "residual", "eps"), [("layer_norm", False, 0.0), ("rms_norm", True, 1e-30)])
@pytest.mark.parametrize("name", IN_SCALES)
def test_rows_beyond_the_range_of_squares(name: str, call: str, residual: bool, eps: float) -> None:
    (m, n), dtype, wide, ahead, form = IN_SCALES[name]
    sizes = torch.tensor(SCALES[:m])[:, None]
    x, r = (torch.randn(m, n).clamp(-4, 4) * sizes).to(dtype), (torch.randn(m, n) * sizes / 8).to(dtype)
    x[0, 7] = NAN if call == "layer_norm" else 2.0**100
    weight = torch.randn(n).to(wide)
    norm = kept(_norms, call, n, eps, (True, False), residual)
    got, *added = executed(*norm, [x, *[r] * residual, weight], ahead=ahead, **form)
    total = (x.float() + r.float()).double() if residual else x.double()
    want = getattr(F, call)(total, (n,), weight.double(), eps=eps)
    # Deviations from a mean have its error, magnitudes that of their last bit.
    atol = BOUNDS[got.dtype] / 4 if call == "layer_norm" else 2.0**-149
    torch.testing.assert_close(got.double(), want, rtol=BOUNDS[got.dtype], atol=atol, equal_nan=True)
    for t in added:
        assert torch.equal(t, total.to(t.dtype))


def test_what_rows_fold_to_where_numbers_are_none() -> None:
    x = torch.randn(6, 600)
    x[0], x[1, 256:512], x[2, 300], x[3, 599], x[4, :256] = -INF, -INF, INF, NAN, NAN
    (got,) = executed(*kept(_shares, False), [x], **ring(64, 1, 1, 2, 3, 2))
    check(got, torch.softmax(x.double(), 1))


@pytest.mark.parametrize("form", [ring(64, 1, 2, 3, clusters=2), ring(16, 2, 4, 4, rows=4)], ids=str)
def test_a_monoid_without_blocks(form: dict[str, int]) -> None:
    x = torch.randn(6, 333)
    apply = graph_of(lambda x, least, most: (x - least) / (most - least), 3)
    (got,) = executed(monoids.MINMAX, apply, [x], **form)
    low, high = x.double().amin(1, keepdim=True), x.double().amax(1, keepdim=True)
    check(got, (x.double() - low) / (high - low))


def test_in_place() -> None:
    """A row is read before it is written, and its neighbours' elements in its vectors are not written."""
    x = torch.randn(9, 333)
    want = torch.softmax(x.double(), 1)
    plan, problem, row, _ = planned(*kept(_shares, False), [x], **ring(64, 1, 2, 3, clusters=1))
    run_plan(plan, problem, row, [x], [x], 90)
    check(x, want)


def test_each_thread_reads_what_it_fetched() -> None:
    """Nothing is exchanged between threads but states: numbers stay in the threads that have them."""
    for length, form in (
        (8192, ring(256, 2, 2, 3)),
        (4096, ring(128, 1, 1, 3, 4, 8)),
        (1024, ring(32, 4, 1, 1, rows=4)),
    ):
        tensors = [torch.empty(64, length, dtype=BF16), torch.empty(length, dtype=BF16)]
        norm = kept(_norms, "layer_norm", length, 1e-5, (True, False), False)
        plan, problem, row, _ = planned(*norm, tensors, **form)
        (call,) = calls_of(plan, problem, row)
        text = calls.compile_for(call, 90).asm["ttgir"]
        assert text.count("convert_layout") == 0


ODD = torch.empty(9, 1001, dtype=BF16)
REFUSED = {
    "columns": (torch.empty(1001, 9, dtype=BF16).t(), []),
    "elements of 8 bytes": (torch.empty(9, 1000, dtype=torch.float64), []),
    "rows apart": (torch.empty(9, 2000, dtype=BF16)[:, ::2], []),
    "a weight for each row": (ODD, [torch.empty(9, 1001, dtype=BF16)]),
    "a weight of every other element": (ODD, [torch.empty(2002, dtype=BF16)[::2]]),
    "narrow weights": (torch.empty(9, 1001), [torch.empty(1001, dtype=BF16)]),
    "a misaligned weight": (ODD, [torch.empty(1002, dtype=BF16)[1:]]),
    "a misaligned odd row": (torch.empty(9 * 1001 + 1, dtype=BF16)[1:].view(9, 1001), []),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_rings_do_not_hold(name: str) -> None:
    x, extras = REFUSED[name]
    which = graph_of(lambda x, total, *rest: x / total + sum(rest), 2 + len(extras))
    row = make_row_map(monoids.SUM.total, which, (x.dtype,), tuple(t.dtype for t in extras))
    request = RowMap(row, (1,), "run_to_run", tuple(x.shape))
    problem = request.problem([x, *(t.expand(x.shape) for t in extras)])
    rows = rows_of(problem, 1)
    assert vectors_of(problem, row.program, row.results, reading_of(rows), rows) is None


def test_halves_that_are_read_as_other_halves_are_not_held() -> None:
    """Elements come as float32: those that a conversion would round first, to an infinity say, would not be rounded."""
    x = torch.empty(9, 1024, dtype=BF16)
    for read, held in ((FP16, False), (BF16, True)):
        monoid, apply = kept(_shares, False)
        row = make_row_map(monoid.total, apply, (read,), ())
        problem = RowMap(row, (1,), "run_to_run", (9, 1024)).problem([x])
        rows = rows_of(problem, 1)
        assert (vectors_of(problem, row.program, row.results, reading_of(rows), rows) is not None) == held


def planned_for(call: str, shape: tuple[int, int], dtype: torch.dtype, guarantee: str = "run_to_run") -> Plan:
    """The plan of an H200."""
    name, _, beside = call.partition("+")
    residual, bias = beside == "residual", beside == "bias"
    x = torch.empty(shape, dtype=dtype, device="meta")
    if name == "softmax":
        (monoid, apply), extras = kept(_shares, False), []
    else:
        (monoid, apply), extras = (
            kept(_norms, name, shape[1], 1e-5, (True, bias), residual),
            [x[0]] * (1 + bias),
        )
    inputs = [x] * (1 + residual)
    row = make_row_map(monoid.total, apply, (dtype,) * len(inputs), (dtype,) * len(extras))
    request = RowMap(row, (1,), guarantee, shape)
    return request.plan([*inputs, *(t.expand(shape) for t in extras)], H200, library=False)[1]


@pytest.mark.parametrize("dtype", [BF16, FP32], ids=str)
@pytest.mark.parametrize(
    "call", ["softmax", "rms_norm", "layer_norm", "rms_norm+residual", "layer_norm+residual"]
)
@pytest.mark.parametrize(
    "length",
    [
        256,
        512,
        2048,
        5120,
        16384,
        33001,
        40004,
        50257,
        65536,
        100003,
        128256,
        151936,
        201984,
        262144,
        700000,
        1 << 20,
    ],
)
@pytest.mark.parametrize("rows", [3, 4096])
def test_planned_rings_hold_a_row_in_an_sms_memory(
    rows: int, length: int, call: str, dtype: torch.dtype
) -> None:
    plan = planned_for(call, (rows, length), dtype)
    stage = plan.stages[0]
    if not isinstance(stage, Rings):
        return
    assert length + stage.align - 1 <= stage.step * stage.splits
    masked, share = shares(stage, length)
    assert masked < 3, "vectors are masked in a program's first and last turn alone"
    assert (stage.splits - 1) * share < length <= stage.splits * share
    assert stage.parted or not masked
    assert stage.turns <= stage.depth or stage.parted
    assert stage.shared_bytes + PROGRAM_BYTES <= H200.shared_bytes
    assert stage.block_outputs == 1 or stage.shared_bytes <= 48 << 10, "declared beside what Triton uses"
    assert stage.block_outputs > 1 or stage.num_warps > 1, (
        "else Triton uses no shared memory to put the ring behind"
    )
    assert stage.lanes * stage.block_outputs == 32 * stage.num_warps <= 1024
    assert str(stage) in str(plan)


PARTED = {  # call, rows, length, dtype: threads and turns
    "any number of vectors": ("rms_norm", 2000, 12776, FP32, (256, 7)),
    "fewer of them": ("layer_norm", 2000, 3752, BF16, (128, 2)),
    "few of them": ("rms_norm", 2000, 2624, BF16, (64, 3)),
    "few rows": ("layer_norm", 40, 8192, BF16, (256, 2)),
    "few short rows": ("rms_norm", 94, 1680, BF16, (64, 2)),
    "a weight and a bias": ("layer_norm+bias", 900, 8232, BF16, (256, 3)),
    "a residual": ("rms_norm+residual", 16384, 8192, FP32, (256, 4)),
}


@pytest.mark.parametrize("name", PARTED)
def test_a_row_beside_a_weight_is_one_programs(name: str) -> None:
    call, rows, length, dtype, form = PARTED[name]
    stage = planned_for(call, (rows, length), dtype).stages[0]
    assert isinstance(stage, Rings)
    assert (stage.lanes, stage.turns, stage.unroll, stage.splits, stage.clusters) == (*form, 2, 1, 0)
    assert stage.parted


def test_rows_that_other_forms_hold_are_not_parted() -> None:
    for call, rows, length in (
        ("rms_norm+residual", 2000, 20000),  # an SM would have one such row
        ("softmax", 2000, 12776),
        ("rms_norm", 2000, 1680),  # several of many short rows a program
        ("rms_norm", 2000, 12288),  # as many vectors as threads times turns
    ):
        stage = planned_for(call, (rows, length), BF16).stages[0]
        assert not (isinstance(stage, Rings) and stage.parted and stage.splits == stage.block_outputs == 1), (
            call
        )
    for shape in ((40, 8192), (2000, 12776)):
        assert not isinstance(planned_for("rms_norm", shape, BF16, "batch_invariant").stages[0], Rings)


@pytest.mark.parametrize("dtype", [BF16, FP32], ids=str)
@pytest.mark.parametrize("call", ["rms_norm", "layer_norm", "rms_norm+residual"])
@pytest.mark.parametrize("length", [149504, 151936, 180224])
def test_programs_that_walk_keep_their_weights(length: int, call: str, dtype: torch.dtype) -> None:
    """Where registers hold them: a whole row's words, and those of the turns that come meanwhile in shared memory."""
    stage = planned_for(call, (2000, length), dtype).stages[0]
    assert isinstance(stage, Rings)
    assert stage.clusters > 0
    assert stage.ahead == stage.turns < stage.depth
    assert stage.ahead * stage.unroll * 4 <= REGISTER_WORDS[stage.run]
    assert stage.registers * stage.lanes <= SM_REGISTERS


@pytest.mark.parametrize(
    ("call", "length", "dtype"),
    [
        ("layer_norm", 70000, FP32),
        ("layer_norm", 200704, BF16),
        ("rms_norm", 40960, FP32),
        ("rms_norm", 65536, BF16),
    ],
    ids=str,
)
def test_programs_keep_no_weights_where_turns_are_not_full_or_rows_are_short(
    call: str, length: int, dtype: torch.dtype
) -> None:
    stage = planned_for(call, (3000, length), dtype).stages[0]
    assert not isinstance(stage, Rings) or stage.ahead == 1


@pytest.mark.parametrize(
    ("call", "dtype"),
    [("softmax", FP32), ("rms_norm", FP32), ("layer_norm", FP32), ("layer_norm+residual", BF16)],
    ids=str,
)
def test_a_part_of_rows_longer_than_rings_is_read_twice(call: str, dtype: torch.dtype) -> None:
    stage = planned_for(call, (256, 1 << 20), dtype).stages[0]
    assert isinstance(stage, Rings)
    assert stage.depth < stage.turns
    assert not isinstance(planned_for(call, (256, 1 << 22), dtype).stages[0], Rings)


@pytest.mark.parametrize("length", [314141, 314144, 500000])
@pytest.mark.parametrize("rows", [1, 9, 24])
def test_a_cluster_shares_each_of_few_long_rows(rows: int, length: int) -> None:
    stage = planned_for("rms_norm+residual", (rows, length), BF16).stages[0]
    assert isinstance(stage, Rings)
    assert 8 < stage.splits <= H200.cluster
    assert stage.registers * stage.lanes <= SM_REGISTERS
    # Longer ones are read twice.
    assert not isinstance(planned_for("rms_norm+residual", (rows, 1 << 22), BF16).stages[0], Rings)


def test_few_rows_executed() -> None:
    x, r, weight = torch.randn(2, 24007).to(BF16), torch.randn(2, 24007).to(BF16), torch.randn(24007).to(BF16)
    monoid, apply = kept(_norms, "rms_norm", 24007, 1e-5, (True, False), True)
    row = make_row_map(monoid.total, apply, (BF16, BF16), (BF16,))
    request = RowMap(row, (1,), "run_to_run", (2, 24007))
    tensors = [x, r, weight.expand(2, 24007)]
    problem, plan = request.plan(tensors, H200, library=False)
    assert plan.stages[0].splits > 8
    results = [torch.empty(s, dtype=d) for s, d in request.results]
    outcomes = run_plan(plan, problem, row, tensors, results, 90)
    assert not any(race.differing for o in outcomes for race in races(o))
    total = x.double() + r.double()
    check(results[0], F.rms_norm(total, (24007,), weight.double(), 1e-5))
    check(results[1], total)


def test_a_row_longer_than_a_ring_in_place() -> None:
    x = torch.randn(5, 3800)
    want = torch.softmax(x.double(), 1)
    plan, problem, row, _ = planned(*kept(_shares, False), [x], **ring(64, 1, 8, 3, 2, 2, parted=True))
    run_plan(plan, problem, row, [x], [x], 90)
    check(x, want)


@pytest.mark.parametrize(
    ("length", "tile"),
    [(424, (4, 32, 2)), (344, (8, 16, 3)), (680, (4, 32, 3)), (952, (4, 32, 4)), (512, (8, 16, 4))],
)
def test_short_rows_beside_a_weight_fill_three_places_of_four(
    length: int, tile: tuple[int, int, int]
) -> None:
    stage = planned_for("rms_norm", (5000, length), BF16).stages[0]
    assert isinstance(stage, Rings)
    assert (stage.block_outputs, stage.lanes, stage.unroll) == tile


@pytest.mark.parametrize(
    ("call", "length"),
    [("rms_norm", 520), ("softmax", 424), ("rms_norm+residual", 424), ("layer_norm+bias", 616)],
)
def test_other_short_rows_are_not_masked(call: str, length: int) -> None:
    assert not isinstance(planned_for(call, (5000, length), BF16).stages[0], Rings)


@pytest.mark.parametrize("rows", [1, 4096])
def test_batch_invariant_plans_have_no_rings(rows: int) -> None:
    """One row's weight is shared by all rows, whatever it is of more."""
    assert not isinstance(planned_for("rms_norm", (rows, 65536), BF16, "batch_invariant").stages[0], Rings)


@pytest.mark.parametrize(("rows", "whole"), [(4096, True), (264, True), (40, False), (140, False)])
def test_programs_walk_where_all_have_rows(rows: int, whole: bool) -> None:
    assert isinstance(planned_for("rms_norm", (rows, 65536), BF16).stages[0], Rings) == whole


def test_no_more_clusters_are_launched_than_run_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    utils = SimpleNamespace(cuOccupancyMaxActiveClusters=lambda function, shared, cluster: 90 // cluster)
    monkeypatch.setattr(launch, "driver", SimpleNamespace(active=SimpleNamespace(utils=utils)))
    launched: list[int] = []
    kernel = SimpleNamespace(
        metadata=SimpleNamespace(shared=1),
        packed_metadata=(),
        function=0,
        run=lambda *a: launched.append(a[0]),
    )
    monkeypatch.setattr(launch, "compiled", lambda call, index: kernel)
    call = calls.Call("map_rings", "", (5,), (), 120, 4, 1, False, cluster=4, persistent=True)
    for one in (call, replace(call, grid=40), replace(call, persistent=False)):
        launch.launcher(one, 0)(7)
    assert launched == [22, 10, 30]
