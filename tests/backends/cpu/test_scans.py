"""The kernels of scans: under the interpreter, from their PTX on the X-ray's machine, and compiled without a GPU."""

from __future__ import annotations

import functools
import math
import os
import re
import subprocess
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest
import torch
import triton

import tilefold
from scan_plans import planned
from scanned import MATRICES, POSITIONS, drawn, from_behind_a_vector, same, scanned
from tilefold import monoids
from tilefold.algebra import program as programs
from tilefold.algebra.monoid import Monoid
from tilefold.backends import reference
from tilefold.backends.steps import run_steps
from tilefold.backends.triton import call as calls
from tilefold.backends.triton.executable import LIBRARY, interpret
from tilefold.backends.triton.lower import calls_of
from tilefold.planner import scans
from tilefold.planner.device import H200, Device
from tilefold.planner.plan import Plan
from tilefold.planner.problem.canonical import Problem
from tilefold.planner.stages.scans import ScanTile, Work
from tilefold.xray.machine import Outcome, all_programs
from tilefold.xray.machine.counts import global_cost
from xray import running
from xray.running import run_call

# numpy, under Triton's interpreter
pytestmark = [
    pytest.mark.filterwarnings("ignore::DeprecationWarning"),
]
MUCH = bool(os.environ.get("TILEFOLD_RANDOM_PLANS"))
Tensor = torch.Tensor
ROWS = {
    "walked": ScanTile(1, 32, True, 1, 1),
    "walked ahead": ScanTile(1, 32, True, 2, 1, chunk=4, stored=2, ahead=True),
    "walked chunks": ScanTile(1, 64, True, 4, 1, chunk=8, stored=8),
    "several rows": ScanTile(4, 64, True, 2, 2, chunk=2, stored=2),
    "shared": ScanTile(1, 32, True, 1, 1, shares=1, group=2, groups=2),
    "shared by a chain": ScanTile(1, 32, True, 4, 1, chunk=4, stored=4, shares=1),
    "shared chunks": ScanTile(2, 16, True, 2, 1, chunk=4, stored=2, shares=1, group=4, groups=1),
    "shared, read again": ScanTile(
        1, 32, True, 4, 1, chunk=4, stored=4, shares=1, group=4, groups=1, again=True
    ),
    "aligned": ScanTile(1, 32, True, 4, 1, chunk=4, stored=4, align=4),
    "aligned, ahead": ScanTile(1, 32, True, 2, 1, chunk=4, stored=2, align=2, ahead=True),
    "aligned, several rows": ScanTile(4, 64, True, 2, 2, chunk=2, stored=2, align=2),
    "aligned, shared": ScanTile(1, 32, True, 4, 1, chunk=4, stored=4, shares=1, group=2, groups=2, align=4),
    "shared, one look": ScanTile(
        1, 32, True, 4, 1, chunk=4, stored=4, shares=1, group=2, groups=1, split=True
    ),
    "aligned, shared in bands": ScanTile(
        1, 32, True, 4, 1, chunk=4, stored=4, shares=1, group=2, groups=1, align=4, split=True, band=2
    ),
}
COLUMNS = {
    "walked": ScanTile(4, 4, False, 1, 1),
    "walked ahead": ScanTile(4, 4, False, 1, 1, chunk=2, ahead=True),
    "walked by each thread": ScanTile(4, 2, False, 1, 1, chunk=2, ahead=True),
    "chunks of three": ScanTile(4, 3, False, 1, 1, chunk=3, ahead=True),
    "two chunks of five": ScanTile(4, 10, False, 1, 1, chunk=5, ahead=True),
    "chunks of three, of all outer dims": ScanTile(4, 6, False, 1, 1, chunk=3, flat=True),
    "walked, of all outer dims": ScanTile(4, 4, False, 1, 1, chunk=2, ahead=True, flat=True),
    "walked, stored along lines": ScanTile(4, 8, False, 1, 1, chunk=4, stored=4, ahead=True),
    "shared": ScanTile(4, 2, False, 1, 1, shares=1, chunk=2, group=2, groups=2),
    "shared, of all outer dims": ScanTile(
        4, 4, False, 1, 1, chunk=2, stored=2, shares=1, group=2, groups=2, flat=True
    ),
    "shared chunks": ScanTile(4, 4, False, 1, 1, shares=1, chunk=2, group=4, groups=2),
}
# On the machine, which takes a warp at a time.
WIDE = {
    "walked": replace(COLUMNS["walked"], lines=32, ahead=True),
    "chunks of three": replace(COLUMNS["chunks of three"], lines=32),
    "two chunks of five": replace(COLUMNS["two chunks of five"], lines=32, num_warps=2),
    "shared": replace(COLUMNS["shared"], lines=32),
}
WORKS = {
    "forward": Work(),
    "backward": Work(reverse=True, state=True, init=True),
    "exclusive": Work(exclusive=True, state=True),
    "exclusive backward": Work(exclusive=True, reverse=True, init=True),
}
SOME = WORKS if MUCH else {name: WORKS[name] for name in ("backward", "exclusive")}


def check(
    monoid: Monoid, tensors: list[Tensor], dim: int, tile: ScanTile, work: Work, machine: bool = False
) -> None:
    """A plan's launches beside the definition, on elements that every order combines exactly."""
    program = programs.specialize(monoid.total, tuple(t.dtype for t in tensors))
    problem, plan = planned(tensors, program, dim, tile, work)
    rows = [n for d, n in enumerate(tensors[0].shape) if d != dim]
    init = [torch.randint(0, 5, rows).to(d) for d in program.state] if work.init else []
    results = [torch.full(tensors[0].shape, 9).to(d) for d in program.outputs]
    results += [torch.full(rows, 9).to(d) for d in program.state] * work.state
    made = calls_of(plan, problem, program, interpret=not machine)
    if machine:
        launches = [functools.partial(run_call, call, architecture=90) for call in made]
        run_steps(plan, [*tensors, *init], results, launches, LIBRARY, lambda writes: None)  # type: ignore[arg-type]
    else:
        interpret(plan, made, program, [*tensors, *init], results)
    prefixes, state = reference.scan(
        tensors, init, program, dim, exclusive=work.exclusive, reverse=work.reverse
    )
    same(results, prefixes + state * work.state)


@pytest.mark.parametrize("work", SOME.values(), ids=list(SOME))
@pytest.mark.parametrize("name", list(ROWS))
def test_rows(name: str, work: Work) -> None:
    length = {"walked": 65, "several rows": 63, "walked chunks": 64, "aligned, several rows": 63}.get(
        name, 150
    )
    rows = 3 if ROWS[name].band else 2  # the last band has one row
    check(MATRICES, drawn(MATRICES, (rows, length)), 1, ROWS[name], work)


@pytest.mark.parametrize("length", [31, 33, 62, 64, 97])
def test_rows_that_begin_anywhere_between_vectors(length: int) -> None:
    """A row's first and last vectors are its own in part; positions count from its first element."""
    for name, reverse in (("aligned", False), ("aligned, ahead", True), ("aligned, shared", length % 2 == 0)):
        check(POSITIONS, drawn(POSITIONS, (3, length)), 1, ROWS[name], Work(reverse=reverse))


SHIFTED = {
    "several rows": ("aligned, several rows", 1, 2),
    "walked": ("walked chunks", 4, 1),
    "walked ahead": ("aligned, ahead", 2, 1),
    "aligned": ("aligned", 4, 1),
    "shared": ("shared, one look", 4, 1),
    "shared in bands": ("aligned, shared in bands", 4, 1),
}


@pytest.mark.parametrize("name", list(SHIFTED))
def test_rows_that_begin_behind_vectors_where_results_begin_at_them(name: str) -> None:
    """Elements are `shift` places behind their vectors; whole rows, rows in part, and rows with others between."""
    like, align, warps = SHIFTED[name]
    for length, beside, reverse in ((48, 0, False), (60, 4, True), (37 if align > 1 else 36, 0, True)):
        x = from_behind_a_vector((3, length), 3, torch.int32, beside)
        tile = replace(ROWS[like], align=align, run=4, chunk=4, stored=4, shift=(3,), num_warps=warps)
        check(POSITIONS, [x], 1, tile, Work(reverse=reverse, exclusive=reverse))


@pytest.mark.parametrize("name", list(SHIFTED))
def test_inputs_whose_rows_begin_at_other_places_between_vectors(name: str) -> None:
    """Each input's own number of places behind vectors, none and all but one among them."""
    like, align, warps = SHIFTED[name]
    for length, reverse in ((48, False), (37 if align > 1 else 36, True)):
        xs = [x.int() for x in drawn(MATRICES, (3, length))]
        shift = tuple(range(len(xs)))
        behind = [
            from_behind_a_vector((3, length), n, x.dtype).copy_(x) for n, x in zip(shift, xs, strict=True)
        ]
        tile = replace(ROWS[like], align=align, run=4, chunk=4, stored=4, shift=shift, num_warps=warps)
        check(MATRICES, behind, 1, tile, Work(reverse=reverse))


def test_ptx_of_two_inputs_in_one_tensor() -> None:
    """Of an odd number of elements: the second begins between two vectors, and both are read in whole ones."""
    halves = torch.randint(-3, 4, (2, 3, 5, 333)).bfloat16()
    halves[0] = torch.where(halves[0] < 0, -1.0, 1.0)  # slopes that vanish with no number of elements
    program = programs.specialize(monoids.AFFINE.total, (torch.bfloat16,) * 2)
    problem = scans.scan_problem(list(halves), 2, "run_to_run")
    plan = scans.plan_scan(problem, program, Work(), H200, "run_to_run")
    tile = plan.launched[0].settings
    assert (tile.align, tile.run, tile.shift) == (8, 8, (0, 3 * 5 * 333 % 8))
    results = [torch.full(halves.shape[1:], 9, dtype=torch.bfloat16) for _ in program.outputs]
    (call,) = calls_of(plan, problem, program)
    outcomes = run_call(call, list(halves), results, architecture=90)
    with tilefold.backend("reference"):
        want = tilefold.scan(tuple(halves), monoids.AFFINE, 2)
    for result, expected in zip(results, [want] if isinstance(want, Tensor) else want, strict=True):
        assert torch.equal(result, expected)
    loads = [a for o in outcomes for a in o.accesses if (a.kind, a.space) == ("load", "global")]
    assert {a.bytes for a in loads} == {16}


def ran(plan: Plan, problem: Problem, program: programs.Program, x: Tensor, result: Tensor) -> list[Outcome]:
    """What each program of a plan does that is executed from its PTX."""
    outcomes: list[Outcome] = []

    def launch(call: calls.Call, reads: Sequence[Tensor], writes: Sequence[Tensor]) -> None:
        outcomes.extend(run_call(call, reads, writes, architecture=90))

    launches = [functools.partial(launch, call) for call in calls_of(plan, problem, program)]
    run_steps(plan, [x], [result], launches, LIBRARY, lambda writes: None)  # type: ignore[arg-type]
    return outcomes


def test_ptx_of_rows_that_begin_behind_vectors() -> None:
    """By the planner's choice: requests have whole vectors, a sector of elements is in two at most, of results in one."""
    program = programs.specialize(monoids.SUM.total, (torch.bfloat16,))
    for shape, shift, beside in (
        ((9, 336), 7, 0),
        ((9, 333), 3, 0),
        ((1, 1000), 1, 0),
        ((3, 680), 5, 8),
        ((2, 8136), 7, 0),
    ):
        x = from_behind_a_vector(shape, shift, torch.bfloat16, beside)
        problem = scans.scan_problem([x], 1, "run_to_run")
        plan = scans.plan_scan(problem, program, Work(), H200, "run_to_run")
        assert (plan.launched[0].settings.shift, plan.launched[0].settings.run) == ((shift,), 8)
        result = torch.full(shape, 9, dtype=torch.bfloat16)
        outcomes = ran(plan, problem, program, x, result)
        assert torch.equal(result, x.float().cumsum(1).bfloat16())
        if shape[1] % 8 == 0 and not plan.workspaces:
            sectors = math.ceil(result.nbytes / 32)
            for stores, most in ((False, 2.3), (True, 1.1)):
                moved = global_cost(a for o in outcomes for a in o.accesses if (a.kind == "store") == stores)
                assert moved.sectors <= most * sectors


@pytest.mark.parametrize("work", SOME.values(), ids=list(SOME))
@pytest.mark.parametrize("name", list(COLUMNS))
def test_columns(name: str, work: Work) -> None:
    check(MATRICES, drawn(MATRICES, (3 if COLUMNS[name].flat else 1, 21, 5)), 1, COLUMNS[name], work)


@pytest.mark.parametrize("work", SOME.values(), ids=list(SOME))
def test_results_are_neighbours_where_elements_are_not(work: Work) -> None:
    """Columns whose results are rows, and rows whose results are columns."""
    columns = [x.permute(1, 2, 0) for x in drawn(MATRICES, (21, 1, 5))]
    check(MATRICES, columns, 2, COLUMNS["walked, stored along lines"], work)
    rows = [x.permute(0, 2, 1) for x in drawn(MATRICES, (2, 5, 40))]
    check(MATRICES, rows, 1, ScanTile(8, 16, True, 2, 1, chunk=4, stored=4), work)


@pytest.mark.parametrize("work", SOME.values(), ids=list(SOME))
def test_results_along_a_far_dim(work: Work) -> None:
    xs = [x.permute(2, 3, 0, 1) for x in drawn(MATRICES, (3, 5, 7, 9))]
    check(MATRICES, xs, 1, ScanTile(16, 8, True, 1, 1, chunk=4, stored=4), work)
    sums = drawn(monoids.SUM, (3, 5, 7, 9))[0].permute(2, 3, 0, 1)
    same(scanned("interpret", sums, monoids.SUM, 1), [torch.cumsum(sums, 1)])


@pytest.mark.parametrize(("lines", "length"), [(1051, 37), (1033, 35), (2058, 33)])
def test_ptx_of_odd_columns_whose_results_are_rows(lines: int, length: int) -> None:
    """Results of a row are stored in vectors only where each row of them begins at one."""
    x = torch.randint(-5, 6, (length, lines)).float().T
    program = programs.specialize(monoids.SUM.total, (torch.float32,))
    problem = scans.scan_problem([x], 1, "run_to_run")
    plan = scans.plan_scan(problem, program, Work(), replace(H200, sms=2), "run_to_run")
    tile = plan.launched[0].settings
    assert (tile.by_rows, tile.stored) == (False, 16)
    assert length >= 2 * tile.length
    result = torch.full(tuple(x.shape), float("nan"))
    ran(plan, problem, program, x, result)
    assert torch.equal(result, x.cumsum(1))


@pytest.mark.parametrize("shape", [(4, 8, 33, 8), (1, 16, 12, 40)], ids=str)
def test_ptx_stores_whole_sectors_along_a_far_dim(shape: tuple[int, ...]) -> None:
    x = torch.randint(-5, 6, shape).float().permute(2, 3, 0, 1)
    program = programs.specialize(monoids.SUM.total, (torch.float32,))
    problem = scans.scan_problem([x], 1, "run_to_run")
    (call,) = calls_of(scans.plan_scan(problem, program, Work(), H200, "run_to_run"), problem, program)
    result = torch.empty(tuple(x.shape))
    outcomes = run_call(call, [x], [result], architecture=90)
    assert torch.equal(result, x.cumsum(1))
    moved = global_cost(a for o in outcomes for a in o.accesses if a.kind == "store")
    assert moved.sectors <= 1.3 * math.ceil(x.nbytes / 32)


@pytest.mark.parametrize("shape", [(600, 8, 4), (301, 5, 7), (150, 16, 16)], ids=str)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_ptx_of_short_columns_in_groups_of_a_few(shape: tuple[int, ...], dtype: torch.dtype) -> None:
    x = torch.randint(-3, 4, shape).to(dtype)
    program = programs.specialize(monoids.MAX_WITH_INDEX.total, (dtype,))
    problem = scans.scan_problem([x], 1, "run_to_run")
    plan = scans.plan_scan(problem, program, Work(), replace(H200, sms=2), "run_to_run")
    assert plan.stages[0].flat
    results = [torch.full(shape, 9).to(d) for d in program.outputs]
    (call,) = calls_of(plan, problem, program)
    run_call(call, [x], results, architecture=90)
    with tilefold.backend("reference"):
        same(results, list(tilefold.scan(x, monoids.MAX_WITH_INDEX, 1)))


@pytest.mark.parametrize("guarantee", ["run_to_run", "batch_invariant"])
def test_ptx_of_short_rows_in_groups_of_a_few(guarantee: str) -> None:
    x = torch.randint(-5, 6, (150, 9, 16)).float()[:, 2:5]
    program = programs.specialize(monoids.SUM.total, (torch.float32,))
    problem = scans.scan_problem([x], 2, guarantee)
    (call,) = calls_of(scans.plan_scan(problem, program, Work(), H200, guarantee), problem, program)
    result = torch.full(tuple(x.shape), float("nan"))
    run_call(call, [x], [result], architecture=90)
    assert torch.equal(result, x.cumsum(2))


@pytest.mark.parametrize("monoid", [monoids.SUM, monoids.CUMMAX], ids=["one word", "two words"])
def test_of_one_look_each_thread_has_a_word_of_its_own(monoid: Monoid) -> None:
    """So that no two warps wait for the same word and combine what only one of them has found."""
    program = programs.specialize(monoid.total, (torch.float32,))
    x = torch.empty((1, 1 << 22), device="meta")
    problem = scans.scan_problem([x], 1, "run_to_run")
    plan = scans.plan_scan(problem, program, Work(), H200, "run_to_run")
    tile = plan.launched[0].settings
    assert (tile.group, tile.groups, tile.num_warps) == (128, 1, 4)
    (call,) = calls_of(plan, problem, program)
    text = calls.compile_for(call, 90).asm["ttgir"]
    layouts = dict(re.findall(r"^(#\w+) = (.*)$", text, re.MULTILINE))
    seen = re.findall(r"elementwise_inline_asm.*ld\.relaxed.*-> tensor<128x1xi64, (#\w+)>", text)
    assert len(seen) == 2 * scans.state_words(scans.scan_program(program, Work(), 1 << 22))
    for name in seen:
        for part in ("sizePerThread = [1, 1]", "threadsPerWarp = [32, 1]", "warpsPerCTA = [4, 1]"):
            assert part in layouts[name]


@pytest.mark.parametrize("length", [1, 32, 33, 127, 129])
def test_around_tiles_and_blocks_of_groups(length: int) -> None:
    for name in ("walked", "shared"):
        check(POSITIONS, drawn(POSITIONS, (1, length)), 1, ROWS[name], Work(reverse=length % 2 == 0))


@pytest.mark.parametrize(("shape", "dim"), [((64, 64), 1), ((40, 100), 1), ((64, 95), 0)], ids=str)
def test_neighbouring_threads_have_neighbours(shape: tuple[int, int], dim: int) -> None:
    """Sectors that requests touch, over the sectors there are: rows shorter than a warp reads, columns of odd width."""
    x = torch.randint(-5, 6, shape).float()
    program = programs.specialize(monoids.SUM.total, (torch.float32,))
    problem = scans.scan_problem([x], dim, "run_to_run")
    plan = scans.plan_scan(problem, program, Work(), H200, "run_to_run")
    if dim == 0:
        tile = ScanTile(32, 64, False, 1, 4, chunk=16)
        plan = replace(
            plan, steps=(replace(plan.launched[0], settings=tile, kernel="scan_lines"),), workspaces=()
        )
    (call,) = calls_of(plan, problem, program)
    result = torch.empty(shape)
    outcomes = run_call(call, [x], [result], architecture=90)
    assert torch.equal(result, x.cumsum(dim))
    for stores in (False, True):
        moved = global_cost(a for o in outcomes for a in o.accesses if (a.kind == "store") == stores)
        assert moved.sectors <= 1.3 * math.ceil(x.nbytes / 32)


def test_states_of_64_bits_and_of_bools() -> None:
    for dtype, monoid in [
        (torch.float64, monoids.SUM), (torch.uint64, monoids.MAX), (torch.int64, monoids.LAST), (torch.bool, monoids.ANY),
        (torch.int8, monoids.CUMMAX), (torch.float16, monoids.CUMMIN),
    ]:  # fmt: skip
        x = torch.randint(0, 3, (1, 100)).to(dtype)
        check(monoid, [x], 1, ROWS["shared"], Work(state=True))


def test_the_planners_own_choice() -> None:
    for shape, dim, guarantee in [
        ((3, 70), 1, "batch_invariant"), ((1, 4100), 1, "run_to_run"), ((70, 2), 0, "run_to_run"),
        ((4, 1), 1, "batch_invariant"),
    ]:  # fmt: skip
        (x,) = drawn(monoids.SUM, shape)
        same(scanned("interpret", x, monoids.SUM, dim, guarantee=guarantee), [torch.cumsum(x, dim)])


def test_strides_and_storage_anywhere() -> None:
    storage = torch.randint(-5, 6, (3000,), dtype=torch.int32)
    x = storage[1:2101].view(3, 7, 100)
    for value, dim in [
        (x[:, ::2, ::3], 2),
        (x.transpose(0, 2), 0),
        (x[:, :1].expand(3, 9, 100), 1),
        (x.permute(1, 2, 0), 1),
        (x.permute(1, 2, 0), 2),
        (x.permute(0, 2, 1), 1),
    ]:
        same(scanned("interpret", value, monoids.SUM, dim), [torch.cumsum(value, dim)])


@pytest.mark.parametrize(
    ("name", "work"), [("walked", "forward"), ("shared", "forward"), ("shared chunks", "backward")]
)
def test_ptx_of_rows(name: str, work: str) -> None:
    monoid = MATRICES if name == "shared" else monoids.CUMMAX
    tensors = drawn(monoid, (2, 200))
    if monoid is monoids.CUMMAX:
        tensors = [t.float() for t in tensors]
    check(monoid, tensors, 1, ROWS[name], replace(WORKS[work], init=False), machine=True)


def test_tickets_give_the_order_whichever_program_begins_first(monkeypatch: pytest.MonkeyPatch) -> None:
    """Programs one at a time, the last one first: each waits for such only as have begun before it, so none waits."""
    monkeypatch.setattr(running, "all_programs", lambda grid: list(all_programs(grid))[::-1])
    tile = replace(ROWS["shared by a chain"], group=4, groups=2)
    for work in (Work(), Work(reverse=True, exclusive=True)):
        check(POSITIONS, drawn(POSITIONS, (2, 32 * 17 + 5)), 1, tile, work, machine=True)
    check(
        POSITIONS,
        drawn(POSITIONS, (3, 32 * 5 + 5)),
        1,
        ROWS["aligned, shared in bands"],
        Work(),
        machine=True,
    )


def test_ptx_of_columns() -> None:
    for name, work in (("walked", "exclusive"), ("shared", "forward")):
        check(monoids.AFFINE, drawn(monoids.AFFINE, (41, 35)), 0, WIDE[name], WORKS[work], machine=True)


SHAPES = [
    ((16384, 8192), 1),
    ((1, 1 << 28), 1),
    ((64, 1 << 20), 1),
    ((16384, 8192), 0),
    ((1 << 20, 64), 1),
    ((300, 4000), 1),
]
SCANS = {
    "cumsum": monoids.SUM,
    "cummax": monoids.CUMMAX,
    "logcumsumexp": monoids.LOGSUMEXP,
    "affine": monoids.AFFINE,
}


def stack_bytes(cubin: bytes, folder: Path) -> int:
    """Of a thread: what spills lies there."""
    (folder / "cubin").write_bytes(cubin)
    tool = [triton.knobs.nvidia.cuobjdump.path, "-res-usage", str(folder / "cubin")]
    usage = subprocess.run(tool, capture_output=True, text=True, check=True).stdout
    found = re.search(r"STACK:(\d+)", usage)
    assert found is not None
    return int(found[1])


@pytest.mark.parametrize("architecture", [80, 90, 100] if MUCH else [90])
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32], ids=str)
@pytest.mark.parametrize("name", list(SCANS))
def test_nothing_spills(name: str, dtype: torch.dtype, architecture: int, tmp_path: Path) -> None:
    algebra = SCANS[name].total
    for shape, dim in SHAPES if MUCH else SHAPES[:4:3]:
        for work in [Work(), Work(reverse=True), Work(exclusive=True)] if MUCH else [Work()]:
            tensors = [torch.empty(shape, dtype=dtype, device="meta") for _ in range(algebra.inputs)]
            program = programs.specialize(algebra, (dtype,) * algebra.inputs)
            problem = scans.scan_problem(tensors, dim, "run_to_run")
            plan = scans.plan_scan(problem, program, work, Device("any", 132, architecture), "run_to_run")
            for call in calls_of(plan, problem, program):
                compiled = calls.compile_for(call, architecture)
                assert stack_bytes(compiled.asm["cubin"], tmp_path) == 0, (shape, work, str(plan))
                if plan.launched[
                    0
                ].settings.by_rows:  # in both directions; and warps read whole rows of columns
                    loads = re.findall(r"ld\.global\S*", compiled.asm["ptx"])
                    assert all(".v4" in load or ".v2" in load or "volatile" in load for load in loads), loads


@pytest.mark.parametrize("shape", [(200_000, 7), (30_000, 172), (3000, 11168)], ids=str)
@pytest.mark.parametrize("monoid", [monoids.SUM, POSITIONS], ids=["sum", "positions"])
def test_no_states_of_narrow_elements_spill(monoid: Monoid, shape: tuple[int, int], tmp_path: Path) -> None:
    """Elements of one byte are many of a thread: their states of two words, or four, are not to be."""
    program = programs.specialize(monoid.total, (torch.int8,))
    problem = scans.scan_problem([torch.empty(shape, dtype=torch.int8, device="meta")], 1, "run_to_run")
    work = Work(exclusive=True, reverse=True, state=True)
    plan = scans.plan_scan(problem, program, work, H200, "run_to_run")
    (call,) = calls_of(plan, problem, program)
    assert stack_bytes(calls.compile_for(call, 90).asm["cubin"], tmp_path) == 0, str(plan)


@pytest.mark.parametrize("length", [101, 9001])
def test_a_row_by_itself_is_laid_out_as_among_others(length: int) -> None:
    """Which threads hold which elements says what is combined with what: the same for one row and for many."""
    found = []
    for rows in (1, 512):
        program = programs.specialize(monoids.SUM.total, (torch.float32,))
        problem = scans.scan_problem([torch.empty(rows, length)], 1, "batch_invariant")
        plan = scans.plan_scan(problem, program, Work(), H200, "batch_invariant")
        (call,) = calls_of(plan, problem, program)
        text = calls.compile_for(call, 90).asm["ttgir"]
        layouts = dict(re.findall(r"^(#\w+) = (.*)$", text, re.MULTILINE))
        used = re.findall(r'"tt.scan"\(%\S+\).*?\) : \(tensor<[^>]*?, (#\w+)>', text, re.DOTALL)
        found.append((plan.stages, [layouts[name] for name in used]))
    assert found[0] == found[1]
