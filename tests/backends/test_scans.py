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
from typing import Any

import pytest
import torch
import triton

import tilefold
from scanned import MATRICES, POSITIONS, drawn, same, scanned
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
from tilefold.planner.plan import Buffer, Launch, LibraryCall, Plan
from tilefold.planner.scans import ScanTile, Work
from tilefold.problem import Problem
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
    "shared": replace(COLUMNS["shared"], lines=32),
}
WORKS = {
    "forward": Work(),
    "backward": Work(reverse=True, state=True, init=True),
    "exclusive": Work(exclusive=True, state=True),
    "exclusive backward": Work(exclusive=True, reverse=True, init=True),
}
SOME = WORKS if MUCH else {name: WORKS[name] for name in ("backward", "exclusive")}


def planned(
    tensors: Sequence[Tensor], program: programs.Program, dim: int, tile: ScanTile, work: Work
) -> tuple[Problem, Plan]:
    """A plan of one tile's making; of shared lines, in as many shares as they need."""
    problem = scans.scan_problem(tensors, dim, "run_to_run")
    plan = scans.plan_scan(problem, program, work, H200, "run_to_run")
    reads, writes = plan.launched[0].reads, tuple(w for w in plan.launched[0].writes if w != "words")
    tile = replace(tile, work=work)
    if not tile.shares:
        return problem, replace(plan, steps=(Launch("scan_walked", tile, reads, writes),), workspaces=())
    tile = replace(tile, shares=-(-(problem.length + tile.align - 1) // tile.length))
    words = scans.state_words(scans.scan_program(program, work, problem.length))
    buffer = Buffer("words", (scans.shared_words(problem, tile, words),), torch.int64)
    steps = (LibraryCall("zeroed", (), ("words",)), Launch("scan_tiles", tile, reads, (*writes, "words")))
    return problem, replace(plan, steps=steps, workspaces=(buffer,))


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


def from_behind_a_vector(shape: tuple[int, int], shift: int, dtype: torch.dtype, beside: int = 0) -> Tensor:
    """Rows whose first element is `shift` behind a vector, `beside` elements of others after each; NaN all around."""
    n = shape[0] * (shape[1] + beside)
    storage = torch.full((n + 32,), float("nan") if dtype.is_floating_point else 99, dtype=dtype)
    x = storage[shift : shift + n].view(shape[0], -1)[:, : shape[1]]
    assert x.data_ptr() % 16 == shift * x.element_size()
    return x.copy_(torch.randint(-2, 3, shape, generator=torch.Generator().manual_seed(0)))


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
    halves = torch.randn(2, 3, 5, 333).bfloat16()
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
        torch.testing.assert_close(result, expected)
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


def tile_of(
    shape: tuple[int, ...], dim: int, dims: tuple[int, ...] | None = None, guarantee: str = "run_to_run"
) -> ScanTile:
    """The planner's tile of a sum over `dim` of float32 elements, permuted to `dims`."""
    x = torch.empty(shape, device="meta").permute(dims or tuple(range(len(shape))))
    program = programs.specialize(monoids.SUM.total, (torch.float32,))
    plan = scans.plan_scan(scans.scan_problem([x], dim, guarantee), program, Work(), H200, guarantee)
    tile = plan.launched[0].settings
    assert isinstance(tile, ScanTile)
    return tile


def test_what_columns_that_begin_between_vectors_and_permuted_inputs_take() -> None:
    assert tile_of((600, 20000, 3), 1).chunk == 1  # a row is less than a sector
    assert tile_of((600, 20000, 11), 1).chunk > 1
    assert tile_of((600, 20000, 4), 1).chunk > 1  # vectors
    assert tile_of((600, 20000, 3), 1, guarantee="batch_invariant").chunk > 1
    assert tile_of((3333, 9001), 0).lines == 128
    assert not tile_of((100, 2000, 333), 1).flat
    assert tile_of((64, 3001, 129), 1).flat  # a third of the lanes would be idle
    assert not tile_of((64, 3001, 128), 1).flat
    assert tile_of((5000, 70, 120), 2, (1, 2, 0)).stored == 16
    assert tile_of((5000, 70, 120), 0).stored == 1
    beside = tile_of((60, 128, 5000), 1, (0, 2, 1))
    assert (beside.by_rows, beside.lines, beside.num_warps, beside.shares) == (True, 32, 8, 0)
    odd = tile_of((60, 128, 5001), 1, (0, 2, 1))
    assert (odd.by_rows, odd.lines, odd.length, odd.num_warps) == (True, 8, 512, 4)
    few = tile_of((60, 60, 5000), 1, (0, 2, 1))  # too few for a wide one on each SM
    assert (few.by_rows, few.lines, few.num_warps, few.shares) == (True, 16, 4, 0)
    assert tile_of((2, 20, 1 << 20), 1, (0, 2, 1)).shares > 0
    assert tile_of((60, 128, 5000), 1, (0, 2, 1), "batch_invariant").lines == 1


def test_what_short_columns_take() -> None:
    """Four warps of columns that threads hold whole, several where states are small; one where columns are few."""
    wide = tile_of((14, 5, 345_179), 1)
    assert (wide.lines, wide.length, wide.num_warps, wide.run) == (512, 8, 4, 1)
    assert tile_of((14, 16, 345_179), 1).lines == 256
    assert (tile_of((14, 8, 345_176), 1).lines, tile_of((14, 8, 345_176), 1).run) == (512, 4)
    assert tile_of((14, 5, 345_179), 1, guarantee="batch_invariant").num_warps == 1
    assert tile_of((2, 5, 3001), 1).num_warps == 1
    assert tile_of((29_031, 8, 47), 1).lines == 32  # lanes would idle


def test_rows_whose_results_are_neighbours_along_a_far_dim() -> None:
    """A program then has rows that lie apart and whose results do not."""
    x = torch.empty((6, 40, 9000, 8), device="meta").permute(2, 3, 0, 1)
    assert [d.output for d in scans.scan_problem([x], 1, "run_to_run").output_dims] == [1920, 1]
    assert [d.output for d in scans.scan_problem([x], 1, "batch_invariant").output_dims] == [1, 1920]
    assert tile_of((6, 40, 9000, 8), 1, (2, 3, 0, 1)).lines == 256  # a chunk a thread
    short = torch.empty((6, 40, 9000, 7), device="meta").permute(2, 3, 0, 1)  # less than a sector
    few = torch.empty((7, 9000, 8), device="meta").permute(1, 2, 0)  # neighbours are less than a sector
    for x in (short, few):
        assert scans.scan_problem([x], 1, "run_to_run").output_dims[0].output == 1


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


def test_short_rows_in_groups_of_a_few_are_counted_along_the_longest_dim() -> None:
    few = torch.empty((9000, 24, 16), device="meta")[:, 5:13]
    assert [d.size for d in scans.scan_problem([few], 2, "run_to_run").output_dims] == [8, 9000]
    assert [d.size for d in scans.scan_problem([few], 2, "batch_invariant").output_dims] == [9000, 8]
    many = torch.empty((9000, 90, 16), device="meta")[:, 5:85]
    long = torch.empty((9000, 24, 2000), device="meta")[:, 5:13]
    for x in (many, long):
        assert scans.scan_problem([x], 2, "run_to_run").output_dims[0].size == 9000


@pytest.mark.parametrize("guarantee", ["run_to_run", "batch_invariant"])
def test_ptx_of_short_rows_in_groups_of_a_few(guarantee: str) -> None:
    x = torch.randint(-5, 6, (150, 9, 16)).float()[:, 2:5]
    program = programs.specialize(monoids.SUM.total, (torch.float32,))
    problem = scans.scan_problem([x], 2, guarantee)
    (call,) = calls_of(scans.plan_scan(problem, program, Work(), H200, guarantee), problem, program)
    result = torch.full(tuple(x.shape), float("nan"))
    run_call(call, [x], [result], architecture=90)
    assert torch.equal(result, x.cumsum(2))


def test_what_shared_rows_and_columns_take() -> None:
    def tile(
        rows: int, length: int, dtype: torch.dtype = torch.float32, monoid: Monoid = monoids.SUM, dim: int = 1
    ) -> ScanTile:
        x = torch.empty((rows, length), dtype=dtype, device="meta")
        program = programs.specialize(monoid.total, (dtype,))
        problem = scans.scan_problem([x], dim, "run_to_run")
        found = scans.plan_scan(problem, program, Work(), H200, "run_to_run").stages[0]
        assert isinstance(found, ScanTile)
        return found

    many = tile(2048, 1 << 17)
    assert (many.shares, many.band, many.group, many.groups, many.split) == (16, 4, 128, 1, False)
    assert tile(2048, (1 << 17) + 4).shares == 0  # not whole
    assert tile(2048, 1 << 17, torch.bfloat16).shares == 0
    assert tile(3000, 4096, torch.bfloat16).num_warps == 1
    assert tile(1500, 4096, torch.bfloat16).num_warps == 2  # fewer warps an SM leave memory idle
    assert tile(1500, 4096, torch.bfloat16, monoid=monoids.CUMMAX).num_warps == 1
    assert tile(200, 1 << 15).band == 4
    assert tile(132 * 16, 1 << 14).shares == 0  # few of a row
    assert tile(132, 1 << 17).shares == 0  # few in all
    ragged = tile(100, 500_001)
    assert (ragged.align, ragged.band, ragged.split, ragged.registers) == (4, 4, True, 128)
    lone = tile(5, 4_000_004)
    assert (lone.align, lone.band, lone.split, lone.registers) == (1, 0, True, 0)
    assert not tile(5, 4_000_004, monoid=monoids.CUMMAX).split
    assert (tile(64, 1 << 18, monoid=monoids.CUMMAX).group, tile(64, 1 << 18).band) == (128, 4)
    assert tile(1 << 20, 56, torch.bfloat16, dim=0).lines == 64
    assert tile(1 << 20, 40, torch.bfloat16, dim=0).lines == 16  # lanes would idle
    assert tile(20_000, 64, torch.bfloat16, dim=0).lines == 16  # few shares
    assert not tile(4096, 4096, monoid=monoids.LOGSUMEXP, dim=0).ahead


@pytest.mark.parametrize("monoid", [monoids.SUM, monoids.CUMMAX], ids=["one word", "two words"])
def test_of_one_look_each_thread_has_a_word_of_its_own(monoid: Monoid) -> None:
    """So that no two warps wait for the same word and meet what only one of them has found."""
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


INF = float("inf")
N = 130
STEEP = {
    "normal": torch.randn(N, generator=torch.Generator().manual_seed(0)),
    "wide": torch.randn(N, generator=torch.Generator().manual_seed(1)) * 300,
    "rising": torch.arange(N) * 5.0,
    "falling": torch.arange(N) * -5.0,
    "rises by 1000, then falls": torch.cat([torch.arange(65) * 16.0, 1024 - torch.arange(65) * 16.0]),
    "one huge value": torch.cat([torch.zeros(70), torch.tensor([1e30]), torch.zeros(59)]),
    "a step": torch.cat([torch.zeros(50), torch.full((80,), 17.0)]),
    "-inf before": torch.cat([torch.full((75,), -INF), torch.zeros(55)]),
    "-inf alone": torch.full((N,), -INF),
    "NaN inside": torch.cat([torch.zeros(77), torch.tensor([float("nan")]), torch.zeros(52)]),
    "+inf inside": torch.cat([torch.zeros(77), torch.tensor([INF]), torch.zeros(52)]),
    "the least": torch.full((N,), -3e38),
    "holes": torch.where(torch.arange(N) % 3 == 0, torch.arange(N) / 9.0, torch.tensor(-INF)),
}
SUMS = {
    "rows": ScanTile(16, 64, True, 4, 1, chunk=8, stored=8, sums=True),
    "rows aligned": ScanTile(16, 256, True, 4, 1, chunk=8, stored=8, align=4, sums=True),
    "rows shared": ScanTile(
        16, 64, True, 4, 1, chunk=8, stored=4, shares=1, group=2, groups=1, sums=True, again=True
    ),
    "columns": ScanTile(16, 64, False, 1, 1, chunk=8, ahead=True, sums=True),
    "a thread's columns": ScanTile(16, 32, False, 1, 1, chunk=32, ahead=True, sums=True),
    "columns shared": ScanTile(16, 64, False, 1, 1, chunk=8, shares=1, group=2, groups=2, sums=True),
}


def check_sums(
    tile: ScanTile, rows: dict[str, Tensor], dtype: torch.dtype, reverse: bool, machine: bool = False
) -> None:
    """logcumsumexp by a plan beside float64, within the bound of docs/guarantees.md."""
    whole = torch.stack(list(rows.values())).to(dtype)
    x = whole if tile.by_rows else whole.t().contiguous()
    if tile.shift:
        x = from_behind_a_vector((len(rows), N), tile.shift[0], dtype).copy_(whole)
    dim = 1 if tile.by_rows else 0
    program = programs.specialize(monoids.LOGSUMEXP.total, (dtype,))
    problem, plan = planned([x], program, dim, tile, Work(reverse=reverse))
    result = torch.full(x.shape, 9).to(dtype)
    made = calls_of(plan, problem, program, interpret=not machine)
    if machine:
        launches = [functools.partial(run_call, call, architecture=90) for call in made]
        run_steps(plan, [x], [result], launches, LIBRARY, lambda writes: None)  # type: ignore[arg-type]
    else:
        interpret(plan, made, program, [x], [result])
    got, exact = result if dim else result.t(), whole.double()
    got, exact = (got.flip(1), exact.flip(1)) if reverse else (got, exact)
    want, largest = exact.logcumsumexp(1), exact.nan_to_num(0, 0, 0).abs().cummax(1).values
    u, steps = 2.0**-24, tile.chunk + 20
    bound = (4 * steps + 2 * largest + 4 * (16 + math.log(N))) * u + 2 * torch.finfo(
        dtype
    ).eps * want.abs().nan_to_num(0)
    equal = (got == want) | (got.isnan() & want.isnan())
    bad = ~(equal | ((got.double() - want).abs() <= bound))
    assert not bad.any(), [
        (name, row.nonzero()[:3].tolist()) for name, row in zip(rows, bad, strict=True) if row.any()
    ]


@pytest.mark.parametrize("name", list(SUMS))
def test_sums_of_exponentials(name: str) -> None:
    for dtype, reverse in ((torch.float32, False), (torch.bfloat16, True)):
        check_sums(SUMS[name], STEEP, dtype, reverse)


@pytest.mark.parametrize("name", ["rows", "rows aligned"])
def test_sums_of_rows_that_begin_behind_vectors(name: str) -> None:
    """Chunks that sums do not hold are read again, as far behind their vectors."""
    check_sums(replace(SUMS[name], align=4, shift=(1,)), STEEP, torch.float32, False)


@pytest.mark.parametrize("name", ["rows", "rows aligned", "rows shared"])
def test_ptx_of_sums(name: str) -> None:
    some = {row: STEEP[row] for row in ("wide", "-inf before", "NaN inside")}
    check_sums(
        replace(SUMS[name], lines=1, length=32 * SUMS[name].chunk), some, torch.float32, False, machine=True
    )


def test_what_is_planned_as_sums_and_what_is_aligned() -> None:
    def tile(
        shape: tuple[int, ...], dtype: torch.dtype = torch.float32, dim: int = 1, **options: Any
    ) -> ScanTile:
        x = torch.empty(shape, dtype=dtype)[:, : options.pop("columns", None)]
        guarantee = options.pop("guarantee", "run_to_run")
        work = options.pop("work", Work())
        program = programs.specialize(monoids.LOGSUMEXP.total, (dtype,))
        problem = scans.scan_problem([x], dim, guarantee)
        found = scans.plan_scan(problem, program, work, H200, guarantee, **options).stages[0]
        assert isinstance(found, ScanTile)
        return found

    assert tile((8, 1024)).sums
    assert not tile((8, 1024), sums=False).sums
    assert not tile((8, 1024), torch.float64).sums
    assert not tile((8, 1024), work=Work(exclusive=True)).sums
    assert tile((8, 1027)).align == 4
    assert tile((8, 1027), torch.bfloat16).align == 8
    assert tile((8, 1024)).align == 1
    assert tile((8, 1026)).align == 1  # two elements at once
    assert tile((8, 1027), guarantee="batch_invariant").align == 1
    assert tile((8, 1029), columns=1027).align == 1  # results begin elsewhere
    assert tile((1027, 9), dim=0).align == 1


def test_which_rows_are_read_from_behind_vectors() -> None:
    def found(
        shape: tuple[int, int], shift: int, dtype: torch.dtype = torch.bfloat16, **options: Any
    ) -> tuple[int, ...]:
        guarantee = options.pop("guarantee", "run_to_run")
        x = from_behind_a_vector(shape, shift, dtype, **options)
        program = programs.specialize(monoids.SUM.total, (dtype,))
        tile = scans.plan_scan(
            scans.scan_problem([x], 1, guarantee), program, Work(), H200, guarantee
        ).stages[0]
        assert isinstance(tile, ScanTile)
        return tile.align, *(tile.shift or (0,))

    assert found((8, 336), 7) == (1, 7)
    assert found((8, 336), 2) == (1, 2)
    assert found((8, 333), 7) == (8, 7)
    assert found((8, 336), 3, torch.float32) == (1, 3)
    assert found((8, 333), 0) == (8, 0)
    assert found((8, 336), 4) == (1, 0)  # four elements at once
    assert found((8, 336), 7, beside=3) == (1, 0)  # results begin elsewhere
    assert found((8, 336), 7, beside=8) == (1, 7)
    assert found((8, 336), 7, guarantee="batch_invariant") == (1, 0)


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
            plan, steps=(replace(plan.launched[0], settings=tile, kernel="scan_walked"),), workspaces=()
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
                (tmp_path / "cubin").write_bytes(compiled.asm["cubin"])
                tool = [triton.knobs.nvidia.cuobjdump.path, "-res-usage", str(tmp_path / "cubin")]
                usage = subprocess.run(tool, capture_output=True, text=True, check=True).stdout
                found = re.search(r"STACK:(\d+)", usage)
                assert found is not None
                assert int(found[1]) == 0, (shape, work, str(plan))
                if plan.launched[
                    0
                ].settings.by_rows:  # in both directions; and warps read whole rows of columns
                    loads = re.findall(r"ld\.global\S*", compiled.asm["ptx"])
                    assert all(".v4" in load or ".v2" in load or "volatile" in load for load in loads), loads


@pytest.mark.parametrize("length", [101, 9001])
def test_a_row_by_itself_is_laid_out_as_among_others(length: int) -> None:
    """Which threads hold which elements says who meets whom: the same for one row and for many."""
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
