"""Head, whole tiles and tail of all programs visit each element once: the arithmetic of the tile kernel, replayed."""

from __future__ import annotations

import contextlib
import math
from dataclasses import replace
from typing import NamedTuple

import pytest
import torch
from hypothesis import example, given
from hypothesis import strategies as st
from triton.backends.compiler import GPUTarget

import tilefold
from tilefold import monoids
from tilefold.algebra import program as programs
from tilefold.backends.triton import call as calls
from tilefold.backends.triton import launch
from tilefold.backends.triton.lower import calls_of
from tilefold.errors import BackendError
from tilefold.planner.choose import plan_fold, plan_tensors
from tilefold.planner.device import H200
from tilefold.planner.geometry import without_positions
from tilefold.planner.plan import Stage
from tilefold.planner.problem.canonical import canonical
from tilefold.planner.programs import chunk_of
from tilefold.planner.programs import edges as edges_of
from xray.running import run_plan

EDGES = ("HEAD", "HAS_FULL", "TAIL")

DTYPES = [torch.int8, torch.bfloat16, torch.float32, torch.float64]
MONOIDS = [monoids.SUM, monoids.ARGMAX, monoids.LOGSUMEXP, monoids.WELFORD, monoids.LAST]


def visited(stage: Stage, length: int, chunk: int, edges: dict[str, int], lead: int) -> list[int]:
    """Row positions in the order in which the kernel's programs fold them, masked ones left out."""
    runs, end = stage.run * stage.lanes, lead + length
    limit = length + stage.align - 1
    seen: list[int] = []
    for split in range(stage.splits):
        start = split * chunk
        stop = limit if split == stage.splits - 1 else start + chunk
        parts, full, begun = [], start, False
        if edges["HEAD"]:
            parts, full, begun = [(start, runs * edges["HEAD"])], start + runs * edges["HEAD"], True
        if edges["HAS_FULL"]:
            first = full
            full += (min(stop, length) - full) // stage.step * stage.step
            whole = [(k, stage.step) for k in range(first, full, stage.step)]
            assert begun or whole, "some part must make the state"
            assert full >= first
            assert edges["HAS_FULL"] == 2 or len(whole) == 1
            assert all(lead <= k and k + n <= end for k, n in whole) or lead, "whole tiles are not masked"
            assert all(k >= lead and k + n <= length + lead for k, n in whole)
            parts, begun = parts + whole, True
        if edges["TAIL"]:
            step = runs * edges["TAIL"]
            tail = [(k, step) for k in range(full, stop, step)]
            assert begun or len(tail) == 1, "a first tail is one tile"
            parts, begun = parts + tail, True
        assert begun
        assert split == stage.splits - 1 or all(k + n <= stop for k, n in parts), "a split keeps to its own"
        seen += [p - lead for k, n in parts for p in range(k, k + n) if lead <= p < end]
    return seen


def check(rows: int, length: int, dtype: torch.dtype, monoid: tilefold.Monoid, cut: bool) -> None:
    x = torch.empty((rows, length + cut), dtype=dtype, device="meta")[:, cut:]
    problem = canonical([x], (1,), ordered=not monoid.commutative)
    program = programs.specialize(monoid.total, (dtype,))
    plan = plan_fold(problem, program, H200, "run_to_run")
    assert all(stage.ordered != monoid.commutative for stage in plan.stages)
    for number, stage in enumerate(plan.stages):
        n = problem.length if number == 0 else plan.stages[0].splits
        chunk, edges = chunk_of(stage, n), dict(zip(EDGES, edges_of(stage, n), strict=True))
        for lead in {0, stage.align - 1, stage.align // 2}:
            seen = visited(stage, n, chunk, edges, lead)
            # Tiles come one after another; within one, lanes of an ordered fold do too, by how they are addressed.
            assert sorted(seen) == list(range(n)), (stage, edges, lead)
            assert not stage.ordered or seen == list(range(n)), (stage, edges, lead)


@given(
    rows=st.sampled_from([1, 2, 7, 100, 5000, 100_000]),
    length=st.one_of(st.integers(2, 300), st.integers(2, 70_000)),
    dtype=st.sampled_from(DTYPES),
    monoid=st.sampled_from(MONOIDS),
    cut=st.booleans(),
)
@example(rows=1, length=3333, dtype=torch.float32, monoid=monoids.ARGMAX, cut=True)
@example(rows=1, length=32768 + 1, dtype=torch.bfloat16, monoid=monoids.SUM, cut=True)
def test_each_element_once(
    rows: int, length: int, dtype: torch.dtype, monoid: tilefold.Monoid, cut: bool
) -> None:
    check(rows, length, dtype, monoid, cut)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize(
    "length", [n + d for n in (64, 128, 512, 2048, 4096) for d in (-1, 0, 1)] + [17, 67, 300, 50257, 131_071]
)
def test_lengths_around_the_planner_s_borders(length: int, dtype: torch.dtype) -> None:
    for rows in (1, 600, 100_000):
        for cut in (False, True):
            check(rows, length, dtype, monoids.ARGMAX, cut)


@given(
    length=st.integers(1, 5000),
    run=st.sampled_from([1, 4, 8, 16]),
    lanes=st.sampled_from([1, 2, 32]),
    unroll=st.sampled_from([1, 2, 4]),
    splits=st.integers(1, 9),
    aligned=st.booleans(),
)
def test_any_stage(length: int, run: int, lanes: int, unroll: int, splits: int, aligned: bool) -> None:
    """Also stages that the planner would not choose, as far as splits have a tile each."""
    stage = Stage("rows", 1, lanes, run, unroll, 1, 4, align=run if aligned else 1)
    tiles = length // stage.step - (stage.align > 1)
    if tiles >= 2:
        stage = replace(stage, splits=math.ceil(tiles / math.ceil(tiles / min(splits, tiles))))
    chunk, edges = chunk_of(stage, length), dict(zip(EDGES, edges_of(stage, length), strict=True))
    for lead in range(stage.align):
        assert sorted(visited(stage, length, chunk, edges, lead)) == list(range(length)), (stage, edges, lead)


@pytest.mark.parametrize("missing", [0, 5, 1 << 12])
@pytest.mark.parametrize("cut", [0, 1])
def test_a_loop_that_ends_near_32_bits_counts_in_64(missing: int, cut: int) -> None:
    """A step beyond the end, or the multiple of a vector behind it, would wrap."""
    x = torch.empty(2**31 - 1 - missing + cut, dtype=torch.int8, device="meta")[cut:]
    program = programs.specialize(monoids.SUM.total, (torch.int8,))
    problem, plan = plan_tensors([x], program, (0,), H200, "run_to_run")
    assert dict(calls_of(plan, problem, program)[0].constants)["WAY"].WIDE


def test_a_launch_has_no_more_programs_than_a_grid() -> None:
    x = torch.empty(1, dtype=torch.int8, device="meta").as_strided((2**32, 3, 5000), (4, 1, 0))
    program = programs.specialize(monoids.SUM.total, (torch.int8,))
    problem, plan = plan_tensors([x], program, (2,), H200, "run_to_run")
    with pytest.raises(BackendError, match=f"at most {2**31 - 1} programs"):
        calls_of(plan, problem, program)


SM_90 = GPUTarget("cuda", 90, 32)


class Metadata(NamedTuple):
    """Of Triton's: what decides how much shared memory a program is launched with."""

    num_warps: int
    num_ctas: int
    shared: int
    target: GPUTarget


class Kernel:
    """A compiled kernel that uses 4 KB."""

    def __init__(self) -> None:
        self.metadata, self.packed_metadata = Metadata(4, 1, 4096, SM_90), (4, 1, 4096)
        self.loaded_with = 0

    def _init_handles(self) -> None:
        self.loaded_with = self.metadata.shared


def nothing_is_compiled(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(calls, "compile_for", lambda call, architecture: Kernel())
    monkeypatch.setattr(launch, "device_of", lambda index: H200)
    monkeypatch.setattr(launch, "_compiled", {})
    monkeypatch.setattr(launch, "_loaded", {})
    monkeypatch.setattr(torch.cuda, "device", lambda index: contextlib.nullcontext())


def test_a_launch_that_reserves_shared_memory_has_a_kernel_of_its_own(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The driver is told when the kernel is loaded, and again at each launch; what a kernel uses is never cut."""
    nothing_is_compiled(monkeypatch)
    x = torch.empty(30_000, 4096, device="meta")
    program = programs.specialize(monoids.SUM.total, (x.dtype,))
    problem, plan = plan_tensors([x], program, (1,), H200, "run_to_run")
    (call,) = calls_of(plan, problem, program)
    kernels = [launch.compiled(replace(call, shared_bytes=n), 0) for n in (0, 2048, 116_736)]
    assert [k.loaded_with for k in kernels] == [4096, 4096, 116_736]
    assert [k.packed_metadata for k in kernels] == [(4, 1, 4096), (4, 1, 4096), (4, 1, 116_736)]


def test_shapes_that_differ_only_in_numbers_share_a_kernel(monkeypatch: pytest.MonkeyPatch) -> None:
    nothing_is_compiled(monkeypatch)

    def kernel(rows: int, length: int, index: int = 0) -> object:
        x = torch.empty(rows, length, device="meta")
        program = programs.specialize(monoids.SUM.total, (x.dtype,))
        problem, plan = plan_tensors([x], program, (1,), H200, "run_to_run")
        return launch.compiled(calls_of(plan, problem, program)[0], index)

    assert kernel(30_000, 4096) is kernel(30_016, 4096)
    assert kernel(30_000, 4096) is not kernel(30_000, 4096, 1)
    assert kernel(30_000, 4096) is not kernel(30_000, 4100)


def test_a_block_of_several_threads_has_one_first_element() -> None:
    """A lane's run crosses rows here, so Triton shares it among threads: each would take its own element as the pivot."""
    x = torch.randn(64 + 48, generator=torch.Generator().manual_seed(0)) + 3
    x = x[64:].as_strided((3, 2, 3), (1, 3, 12))
    program = programs.specialize(monoids.WELFORD.total, (torch.float32,))
    problem = without_positions(canonical([x], (0, 1, 2), ordered=False))
    plan = plan_fold(problem, program, H200, "run_to_run")
    results = [torch.empty((), dtype=dtype) for dtype in program.outputs]
    run_plan(plan, problem, program, [x], results, 90)
    count, mean, m2 = results
    wide = x.double()
    assert count == 18
    assert mean.item() == pytest.approx(wide.mean().item(), rel=1e-5)
    assert m2.item() == pytest.approx(((wide - wide.mean()) ** 2).sum().item(), rel=1e-5)
