"""The kernels of scans: under the interpreter, from their PTX on the X-ray's machine, and compiled without a GPU."""

from __future__ import annotations

import functools
import os
import re
import subprocess
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest
import torch
import triton

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
from tilefold.xray.machine import all_programs
from xray import running
from xray.running import run_call

# numpy, under Triton's interpreter
pytestmark = [
    pytest.mark.filterwarnings("ignore::RuntimeWarning"),
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
}
COLUMNS = {
    "walked": ScanTile(4, 4, False, 1, 1),
    "walked ahead": ScanTile(4, 4, False, 1, 1, chunk=2, ahead=True),
    "walked by each thread": ScanTile(4, 2, False, 1, 1, chunk=2, ahead=True),
    "shared": ScanTile(4, 2, False, 1, 1, shares=1, chunk=2, group=2, groups=2),
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
    tile = replace(tile, shares=-(-problem.length // tile.length))
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
    length = {"walked": 65, "several rows": 63, "walked chunks": 64}.get(name, 150)
    check(MATRICES, drawn(MATRICES, (2, length)), 1, ROWS[name], work)


@pytest.mark.parametrize("work", SOME.values(), ids=list(SOME))
@pytest.mark.parametrize("name", list(COLUMNS))
def test_columns(name: str, work: Work) -> None:
    check(MATRICES, drawn(MATRICES, (1, 21, 5)), 1, COLUMNS[name], work)


@pytest.mark.parametrize("length", [1, 32, 33, 127, 129])
def test_around_tiles_and_blocks_of_groups(length: int) -> None:
    for name in ("walked", "shared"):
        check(POSITIONS, drawn(POSITIONS, (1, length)), 1, ROWS[name], Work(reverse=length % 2 == 0))


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
