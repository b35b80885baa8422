"""Every family compiles without a GPU, for the architectures we promise."""

from __future__ import annotations

import re
import subprocess
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
import triton

import tilefold
from asked import asked
from backends.triton_cases import LARGE, MONOIDS, PIPED, Case
from tilefold import math, monoids
from tilefold.algebra import program as programs
from tilefold.backends.triton import call as calls
from tilefold.backends.triton.emit import emit
from tilefold.backends.triton.lower import calls_of
from tilefold.errors import BackendError
from tilefold.planner import columns
from tilefold.planner.chips import CHIPS
from tilefold.planner.choose import plan_fold
from tilefold.planner.device import H200, Device
from tilefold.planner.problem.canonical import canonical
from tilefold.xray.compile.folds import job_of
from tilefold.xray.compile.offline import assemble, compile_job
from xray import running

INF = float("inf")

CHOSEN = [c for c in LARGE if c.name in {
    "row of 1024", "odd long rows", "small axis many", "long columns", "one long row", "channels", "strided long",
    "permuted outer",
}]  # fmt: skip


@pytest.mark.parametrize("architecture", [80, 90, 100])
@pytest.mark.parametrize("name", ["sum", "argmax", "logsumexp", "welford", "pair", "last"])
@pytest.mark.parametrize("case", CHOSEN, ids=lambda c: c.name)
def test_compiles(case: Case, name: str, architecture: int) -> None:
    monoid = MONOIDS[name]
    inputs = case.make(monoid, torch.bfloat16, "cpu")
    program = programs.specialize(monoid.total, tuple(x.dtype for x in inputs))
    dims = tuple(range(inputs[0].ndim)) if case.dims is None else case.dims
    problem = canonical(inputs, dims, ordered=not monoid.commutative)
    plan = plan_fold(problem, program, Device("any", 108, architecture), "run_to_run")
    for call in calls_of(plan, problem, program):
        kernel = calls.compile_for(call, architecture)
        assert "cubin" in kernel.asm
        assert "ld.local" not in kernel.asm["ptx"], "no array may live in local memory"


@pytest.mark.parametrize("architecture", [80, 90, 100])
@pytest.mark.parametrize("name", ["sum", "logsumexp", "welford"])
@pytest.mark.parametrize("case", PIPED[:2], ids=lambda c: c.name)
def test_tiles_on_their_way(
    case: Case, name: str, architecture: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(columns, "LARGE", 1000)
    program = programs.specialize(MONOIDS[name].total, (torch.float32,))
    x = torch.empty(case.shape, device="meta")
    problem = canonical([x], (0,), ordered=False)
    plan = plan_fold(problem, program, Device("any", 108, architecture), "run_to_run")
    assert plan.stages[0].num_stages == 3
    first = calls.compile_for(calls_of(plan, problem, program)[0], architecture)
    assert "cp.async" in first.asm["ptx"]
    assert first.metadata.shared <= 99 * 1024, "two programs and more an SM, on every chip"


def test_a_cache_that_cannot_be_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "file").touch()
    monkeypatch.setenv("TRITON_CACHE_DIR", str(tmp_path / "file" / "below"))
    program = programs.specialize(monoids.SUM.total, (torch.float32,))
    problem = canonical([torch.empty(3, 8, device="meta")], (1,), ordered=False)
    plan = plan_fold(problem, program, H200, "run_to_run")
    with pytest.raises(BackendError, match=r"must go into a folder .*, got .*file.*; set TRITON_CACHE_DIR"):
        calls.compile_for(calls_of(plan, problem, program)[0], 90)


@pytest.mark.parametrize("name", list(MONOIDS))
def test_monoids_compile(name: str) -> None:
    test_compiles(LARGE[0], name, 90)


@pytest.mark.parametrize(
    "dtype",
    [torch.float64, torch.float32, torch.float16, torch.float8_e5m2, torch.float8_e4m3fn, torch.int8, torch.uint8,
     torch.uint16, torch.uint32, torch.uint64, torch.int64, torch.bool],
)  # fmt: skip
@pytest.mark.parametrize("name", ["sum", "argmax", "logsumexp", "pair"])
def test_dtypes_compile(name: str, dtype: torch.dtype) -> None:
    monoid = MONOIDS[name]
    x = torch.empty(64, 1000, dtype=dtype)
    program = programs.specialize(monoid.total, (dtype,))
    problem = canonical([x], (1,), ordered=False)
    for call in calls_of(plan_fold(problem, program, H200, "run_to_run"), problem, program):
        calls.compile_for(call, 90)


@pytest.mark.parametrize("architecture", [80, 90, 100])
@pytest.mark.parametrize("name", ["pair", "attention"])
def test_a_derived_block_form_halves_the_exponentials(name: str, architecture: int) -> None:
    """The same tiles absorbed and combined: one exponential an element, instead of one for either side."""
    algebra = MONOIDS[name].total
    inputs = [torch.empty(64, 16384, dtype=torch.bfloat16) for _ in range(algebra.inputs)]
    program = programs.specialize(algebra, tuple(x.dtype for x in inputs))
    problem = canonical(inputs, (1,), ordered=False)
    absorbed = plan_fold(problem, program, Device("any", 108, architecture), "run_to_run")
    assert absorbed.stages[0].absorb
    (step,) = absorbed.launched
    combined = replace(absorbed, steps=(replace(step, settings=replace(step.settings, absorb=False)),))
    exponentials = [
        calls.compile_for(call, architecture).asm["ptx"].count("ex2.approx")
        for plan in (absorbed, combined)
        for call in calls_of(plan, problem, program)
    ]
    assert exponentials[0] <= 0.6 * exponentials[1]


@pytest.mark.parametrize("architecture", [80, 90])
@pytest.mark.parametrize(
    ("shape", "dtype"),
    [
        ((16384, 8192), torch.int8),
        ((1 << 24, 8), torch.bfloat16),
        ((256, 1 << 20), torch.bfloat16),
        ((300_007, 333), torch.float64),
    ],
    ids=str,
)
def test_states_of_many_fields_stay_in_registers(
    shape: tuple[int, int], dtype: torch.dtype, architecture: int, tmp_path: Path
) -> None:
    x = torch.empty(shape, dtype=dtype, device="meta")
    program = programs.specialize(monoids.DESCRIBE.total, (dtype,))
    problem = canonical([x], (0,), ordered=False)
    plan = plan_fold(problem, program, Device("any", 132, architecture), "run_to_run")
    for call in calls_of(plan, problem, program):
        (tmp_path / "cubin").write_bytes(calls.compile_for(call, architecture).asm["cubin"])
        tool = [triton.knobs.nvidia.cuobjdump.path, "-res-usage", str(tmp_path / "cubin")]
        usage = subprocess.run(tool, capture_output=True, text=True, check=True).stdout
        found = re.search(r"STACK:(\d+)", usage)
        assert found is not None, usage
        assert int(found[1]) <= 64, "bytes a thread: a few words may be saved around a division"


@pytest.mark.parametrize("name", ["sum", "max", "argmax", "max_with_index", "any", "minmax", "dot"])
def test_what_needs_no_order_pays_for_none(name: str) -> None:
    """Where lanes are combined, a combine whose order no bit tells is that combine and nothing more."""
    monoid = MONOIDS[name]
    program = programs.specialize(monoid.total, (torch.float32,) * monoid.total.inputs)
    body = emit(program, index=torch.int32).partition("def COMBINE_SYMMETRIC(")[2].partition("\n\n")[0]
    assert [line.split()[0] for line in body.splitlines()[1:]] == ["return"]


@pytest.mark.parametrize(
    "dtype",
    [torch.int8, torch.int16, torch.int32, torch.int64, torch.uint8, torch.uint16, torch.uint32, torch.uint64,
     torch.bool],
    ids=str,
)  # fmt: skip
def test_constants_on_either_side_of_a_division_compile(dtype: torch.dtype) -> None:
    monoid = tilefold.Monoid(
        lambda a, b: a + b,
        0,
        lift=lambda x: 5 // x + -3 // x + x // 5 + x // -3 + 5 % x + -3 % x + x % 5 + x % -3,
        dtypes=torch.uint64 if dtype == torch.uint64 else torch.int64,
    )
    program = programs.specialize(monoid.total, (dtype,))
    problem = canonical([torch.empty(64, 1000, dtype=dtype)], (1,), ordered=False)
    plan = plan_fold(problem, program, H200, "run_to_run")
    for call in calls_of(plan, problem, program):
        assert "cubin" in calls.compile_for(call, 90).asm


@pytest.mark.parametrize(
    ("shape", "dim", "loads"),
    [((3, 4096), 0, 3), ((65536, 24), 1, 6), ((4096, 6), 1, 2)],
    ids=["columns", "three vectors a row", "rows as one run of memory, two vectors a thread"],
)
def test_short_folds_load_nothing_that_is_masked(shape: tuple[int, int], dim: int, loads: int) -> None:
    """Their length is a constant of the kernel: 24 elements are three vectors, not four of which one is masked."""
    program = programs.specialize(monoids.SUM.total, (torch.bfloat16,))
    problem = canonical([torch.empty(shape, dtype=torch.bfloat16)], (dim,), ordered=False)
    plan = plan_fold(problem, program, H200, "run_to_run")
    machine = assemble(compile_job(job_of(calls_of(plan, problem, program)[0], "short", CHIPS["sm_90"])))
    assert len(re.findall(r"\bLDG\.", machine.code)) == loads


@pytest.mark.parametrize("beside", [False, True], ids=["alone", "beside a sum that is dropped"])
@pytest.mark.parametrize("length", [17, 31, 100])
def test_positions_that_no_element_is_read_for(length: int, beside: bool) -> None:
    """Loads say how elements lie on threads; without one, a thread's need not be in order."""

    def first(a: Any, b: Any) -> tuple[Any, ...]:
        take = (b.value > a.value) | ((b.value == a.value) & (b.place < a.place))
        return math.where(take, b.value, a.value), math.where(take, b.place, a.place), a.total + b.total

    same = tilefold.Monoid(
        first, (-INF, INF, 0), lift=lambda x, i: (0, i, x * beside), index=True, fields=("value", "place", "total"),
        dtypes=("compute", "index", "compute"), project=lambda value, place, total: place, commutative=True, check=False,
    )  # fmt: skip
    x = torch.zeros(length + 1, dtype=torch.bool)[1:]
    program = programs.specialize(same.total, (x.dtype,))
    (found,), _ = running.fold([x], program, (0,), 90, ordered=False)
    assert found.item() == 0


F16, F32 = torch.float16, torch.float32
OVERLAPPED: dict[str, Callable[[Callable[..., Any]], Any]] = {
    "columns": lambda t: tilefold.sum(t(524288, 2), dim=0),
    "in order": lambda t: tilefold.reduce(t(1 << 22), monoids.LAST, dim=0),
    "packed product": lambda t: tilefold.matmul(t(321, 7485, dtype=F16), t(7485, 256, dtype=F16)),
    "split product": lambda t: tilefold.matmul(t(1, 32768, dtype=torch.bfloat16), t(32768, 16, dtype=torch.bfloat16)),
    "segments of columns": lambda t: tilefold.segment_reduce(t(2048, 32), monoids.ARGMAX, OFFSETS * 256),
    "segments of runs": lambda t: tilefold.segment_reduce(t(131072, dtype=F16), monoids.SUM, OFFSETS * 16384),
    "segments of rows": lambda t: tilefold.segment_reduce(t(2, 7336, dtype=torch.int8), monoids.ARGMAX, OFFSETS * 917, dim=1),
    "selection": lambda t: tilefold.topk(t(8192, 65, dtype=torch.int64), 6, 0),
}  # fmt: skip
OFFSETS = torch.arange(9, device="meta")


@pytest.mark.parametrize("name", OVERLAPPED)
def test_launches_begin_early_and_let_others_begin(name: str) -> None:
    """A launch that begins early waits before it reads, one ahead lets the next begin; none does either unasked."""

    def tensor(*shape: int, dtype: torch.dtype = F32) -> torch.Tensor:
        return torch.empty(shape, dtype=dtype, device="meta")

    request, tensors, plan = asked(lambda: OVERLAPPED[name](tensor))
    problem, _ = request.plan(tensors, H200, library=False)
    made = dict(zip(plan.launched, calls_of(plan, problem, request.computation), strict=True))
    assert any(step.releases for step in made)
    assert any(step.early for step in made)
    for step, call in made.items():
        text = calls.compile_for(call, 90).asm["ptx"]
        assert ("griddepcontrol.launch_dependents" in text) == step.releases, step.kernel
        assert ("griddepcontrol.wait" in text) == step.early, step.kernel
        if step.early and "ld.global" in text:
            assert text.index("griddepcontrol.wait") < text.index("ld.global"), step.kernel


# Dims in memory from the last to the first, so that results or positions have steps of 1 in a tuple beside other steps.
BACKWARDS: dict[str, Callable[[], Any]] = {
    "positions of three dims": lambda: tilefold.reduce(
        torch.empty(4000, 700, 300, device="meta").permute(2, 1, 0),
        monoids.ARGMAX, (0, 1, 2), guarantee="batch_invariant",
    ),
    "results, in order": lambda: tilefold.reduce(
        torch.empty(3, 5, 700, 30, 9, device="meta").permute(4, 3, 2, 1, 0), monoids.FIRST, (0, 3)
    ),
    "elements, in windows": lambda: tilefold.layer_norm(
        torch.empty(44690, 2, 32, dtype=torch.float64, device="meta").permute(0, 2, 1),
        (44690, 32, 2), guarantee="batch_invariant",
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", BACKWARDS)
def test_steps_of_1_are_constants_behind_loops_and_in_branches_too(name: str) -> None:
    request, tensors, plan = asked(BACKWARDS[name])
    problem, _ = request.plan(tensors, H200, library=False)
    for call in calls_of(plan, problem, request.computation):
        assert "cubin" in calls.compile_for(call, 90).asm
