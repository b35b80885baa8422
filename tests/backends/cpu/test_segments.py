"""The kernels of ragged folds and of folds by atomics, compiled without a GPU and executed from their PTX."""

from __future__ import annotations

import itertools
import re
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest
import torch

import tilefold
from api.test_segment_reduce import AFFINE, LENGTHS, WEIGHTED, drawn, offsets_of
from tilefold import monoids
from tilefold.algebra import program as programs
from tilefold.api.requests import Reduction, Request, Segments
from tilefold.backends.triton import call as calls
from tilefold.backends.triton import executable
from tilefold.backends.triton.lower import calls_of
from tilefold.planner.atomics import atomic_of
from tilefold.planner.device import H200, Device
from tilefold.planner.plan import Launch, Plan
from tilefold.planner.stages.segments import Chunks
from tilefold.xray.machine import Kernel
from tilefold.xray.machine.roles import Atomic
from tilefold.xray.machine.roles import atomic_of as operation_of
from xray import running
from xray.running import run_plan
from xray.tallies import tally

Tensor = torch.Tensor
SMALL = Device("of one SM", 1, 90)  # chunks of several tiles, for few elements
pytestmark = pytest.mark.filterwarnings("ignore:.*ndim > 0 to a scalar:DeprecationWarning")


def execute(request: Request, tensors: Sequence[Tensor], device: Device = H200) -> tuple[list[Tensor], Plan]:
    """The results of every launch on the machine, which refuses accesses outside of a tensor."""
    problem, plan = request.plan(tensors, device, library=False)
    results = [torch.full(shape, 77).to(dtype) for shape, dtype in request.results]
    run_plan(plan, problem, request.computation, tensors, results, 90)  # type: ignore[arg-type]
    return results, plan


def segments(
    x: Tensor, monoid: tilefold.Monoid, offsets: Tensor, dim: int = 0, guarantee: str = "run_to_run"
) -> Segments:
    program = programs.specialize(monoid.total, (x.dtype,))
    shape = list(x.shape)
    shape[dim] = len(offsets) - 1
    return Segments(program, dim, guarantee, tuple(shape))


def compare(x: Tensor, monoid: tilefold.Monoid, offsets: Tensor, dim: int = 0, device: Device = H200) -> Plan:
    with tilefold.backend("reference"):
        want = tilefold.segment_reduce(x, monoid, offsets, dim=dim, partial=True)
    got, plan = execute(segments(x, monoid, offsets, dim), [x, offsets], device)
    for a, b in zip(got, want if isinstance(want, tuple) else (want,), strict=True):
        assert torch.equal(a, b)
    return plan


@pytest.mark.parametrize(
    ("lengths", "monoid", "device"),
    [("equal", monoids.SUM, H200), ("short", AFFINE, H200), ("one long among empty ones", AFFINE, H200),
     ("lengths around a window", WEIGHTED, SMALL), ("lengths around a window", AFFINE, SMALL),
     ("more in a window than are folded with it", AFFINE, SMALL), ("that end where tiles end", AFFINE, SMALL),
     ("that end where tiles end", monoids.SUM, SMALL)],
    ids=lambda value: value if isinstance(value, str) else value.name,
)  # fmt: skip
def test_rows(lengths: str, monoid: tilefold.Monoid, device: Device) -> None:
    offsets = offsets_of(LENGTHS[lengths], 3, torch.int32)
    plan = compare(drawn(int(offsets[-1]) + 5), monoid, offsets, device=device)
    names = [step.kernel for step in plan.launched]
    assert names in (["segment_elements"], ["segment_elements", "segment_pieces"])
    assert not device.overlaps or len(names) == 1 or plan.overlap


@pytest.mark.parametrize("columns", [(), (5,)], ids=["rows", "columns"])
def test_segments_of_many_pieces(columns: tuple[int, ...]) -> None:
    """Longer than pieces are combined side by side, in more turns than one, beside others of few pieces."""
    length = 900 if columns else 15000
    x, offsets = drawn(length + 99, *columns), offsets_of([3, length // 10, length // 2, 1, length // 3])
    request = segments(x, AFFINE, offsets)
    problem, plan = request.plan([x, offsets], Device("of many SMs", 1000, 90), library=False)
    first, second = plan.steps
    assert isinstance(second, Launch)
    few = replace(second, settings=replace(second.settings, tails=2, lanes=1, together=8, near=2))
    results = [torch.full(shape, 77).to(dtype) for shape, dtype in request.results]
    run_plan(replace(plan, steps=(first, few)), problem, request.program, [x, offsets], results, 90)
    with tilefold.backend("reference"):
        want = tilefold.segment_reduce(x, AFFINE, offsets, partial=True)
    assert first.settings.chunks >= 8  # type: ignore[union-attr]
    assert all(torch.equal(a, b) for a, b in zip(results, want, strict=True))


@pytest.mark.parametrize("columns", [(), (5,)], ids=["rows", "columns"])
def test_chunks_behind_the_last_segment(columns: tuple[int, ...]) -> None:
    compare(drawn(3100, *columns), AFFINE, offsets_of([100, 0, 500, 400], 2000))
    compare(drawn(3100, *columns), AFFINE, offsets_of([100, 0, 500, 400]))


def test_bits_of_a_sum_follow_from_offsets_alone() -> None:
    """Lengths on both sides of what is folded by elements, by runs and by windows; float64 keeps a reference exact."""
    lengths = [1, 47, 48, 49, 63, 65, 127, 129, 255, 257, 511, 513, 1023, 1025, 2047, 2049, 5000]
    x = torch.randn(sum(lengths), generator=torch.Generator().manual_seed(0))
    offsets = offsets_of(lengths)
    (got,), _ = execute(segments(x, monoids.SUM, offsets), [x, offsets], SMALL)
    (again,), _ = execute(segments(x, monoids.SUM, offsets), [x, offsets], SMALL)
    pieces = [x[a:b].double() for a, b in itertools.pairwise(offsets)]
    assert torch.equal(got, again)
    for found, piece in zip(got, pieces, strict=True):
        assert abs(found.double() - piece.sum()) <= 32 * 2.0**-24 * piece.abs().sum()


@pytest.mark.parametrize("first", [1, 7, 12])
def test_rows_that_begin_between_two_vectors_are_read_in_whole_ones(first: int) -> None:
    offsets = offsets_of([0, 5, 1024 - first, 7, 0, 2000, 900], 3)
    rows = drawn(2, 4096, dtype=torch.int16)[:, first : first + 4000]
    for x, dim in ((drawn(5000)[first:], 0), (rows, 1)):
        plan = compare(x, AFFINE, offsets, dim)
        stage = plan.launched[0].settings
        assert isinstance(stage, Chunks)
        assert stage.whole_runs
        assert stage.lead == first % (16 // x.element_size())


@pytest.mark.parametrize("step", [1, 2])
def test_rows_that_begin_and_end_anywhere(step: int) -> None:
    x = drawn(301 * step, dtype=torch.int8)[1::step]
    compare(x, monoids.SUM, offsets_of([len(x)]))


def test_rows_where_nan_and_infinities_stay_in_their_segments() -> None:
    x = torch.arange(300.0)
    x[[7, 64, 65, 299]] = torch.tensor([float("nan"), float("inf"), float("-inf"), float("nan")])
    offsets = offsets_of([7, 1, 56, 1, 1, 0, 233, 1])
    got, _ = execute(segments(x, monoids.SUM, offsets), [x, offsets])
    want = torch.stack([x[a:b].sum() for a, b in itertools.pairwise(offsets)])
    assert torch.equal(got[0].isnan(), want.isnan())
    assert torch.equal(got[0].nan_to_num(), want.nan_to_num())


def test_columns() -> None:
    offsets = offsets_of([0, 0, 1, 2, 0, 250, 1, 1, 0])
    plan = compare(drawn(270, 5), AFFINE, offsets)
    assert [step.kernel for step in plan.launched] == ["segment_elements", "segment_pieces"]


def test_a_program_a_segment() -> None:
    x, offsets = drawn(206), offsets_of([0, 5, 200, 1])
    with tilefold.backend("reference"):
        want = tilefold.segment_reduce(x, AFFINE, offsets)
    got, plan = execute(segments(x, AFFINE, offsets, guarantee="batch_invariant"), [x, offsets])
    assert all(torch.equal(a, b) for a, b in zip(got, want, strict=True))
    assert [step.kernel for step in plan.launched] == ["segment_elements"]


@pytest.mark.parametrize("columns", [(), (5,)], ids=["rows", "columns"])
def test_offsets_beyond_the_dim_are_clamped(columns: tuple[int, ...]) -> None:
    x = drawn(200, *columns)
    offsets = torch.tensor([-7, 3, 90, 130, 999, 1 << 40])
    (got,), _ = execute(segments(x, monoids.SUM, offsets), [x, offsets])
    (want,) = (torch.stack([x[a:b].sum(0) for a, b in ((0, 3), (3, 90), (90, 130), (130, 200), (200, 200))]),)
    assert torch.equal(got, want)


@pytest.mark.parametrize("columns", [(), (5,)], ids=["rows", "columns"])
@pytest.mark.parametrize("guarantee", ["run_to_run", "batch_invariant"])
def test_offsets_in_disorder_lead_nowhere_else(columns: tuple[int, ...], guarantee: str) -> None:
    x = drawn(200, *columns)
    generator = torch.Generator().manual_seed(0)
    for offsets in (
        torch.randint(-300, 500, (40,), generator=generator),
        torch.tensor([200, 100, 150, 0, 0, 199]),
    ):
        execute(segments(x, AFFINE, offsets, guarantee=guarantee), [x, offsets])


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_what_large_folds_compile_to(dtype: torch.dtype) -> None:
    """Vectors of 16 bytes, no array in local memory, and room for many programs an SM."""
    x, offsets = torch.empty(1 << 26, dtype=dtype, device="meta"), torch.empty(1 << 20, dtype=torch.int64)
    request = segments(x, monoids.SUM, offsets)
    problem, plan = request.plan([x, offsets], H200, library=False)
    for call in calls_of(plan, problem, request.computation):
        kernel = calls.compile_for(call, 90)
        assert "ld.local" not in kernel.asm["ptx"]
        if call.kernel == "segment_elements":
            assert kernel.asm["ptx"].count("ld.global.v4.b32") >= 8


# ------------------------------------------------------------------------------------------------ atomics

ATOMIC = {
    "sum of float32": (monoids.SUM, torch.float32, "add"),
    "sum of int64": (monoids.SUM, torch.int64, "add"),
    "max": (monoids.MAX, torch.int32, "max"),
    "min": (monoids.MIN, torch.int64, "min"),
    "or": (monoids.BITWISE_OR, torch.int32, "or"),
    "and": (monoids.BITWISE_AND, torch.int64, "and"),
    "xor": (monoids.BITWISE_XOR, torch.int32, "xor"),
    "sum of somebody's": (tilefold.Monoid(lambda a, b: b + a, 0.0, name="mine"), torch.float32, "add"),
    "max of floats, where NaN counts": (monoids.MAX, torch.float32, None),
    "sum that is rounded at the end": (monoids.SUM, torch.bfloat16, None),
    "product": (monoids.PROD, torch.float32, None),
    "any": (monoids.ANY, torch.bool, None),
    "twice a sum": (tilefold.Monoid(lambda a, b: a + b, 0.0, project=lambda s: 2 * s), torch.float32, None),
    "two fields": (AFFINE, torch.int32, None),
}


@pytest.mark.parametrize("case", list(ATOMIC))
def test_an_atomic_operation_is_known_by_its_graph(case: str) -> None:
    monoid, dtype, operation = ATOMIC[case]
    assert atomic_of(programs.specialize(monoid.total, (dtype,))) == operation


MET = [case for case, (*_, operation) in ATOMIC.items() if operation]


def telling(operation: str, dtype: torch.dtype) -> Tensor:
    """40,000 elements whose result many programs have a part in, and none of them the whole."""
    x = drawn(1, 40000).to(dtype)
    if operation in ("or", "and"):  # bits that one element each has, or lacks
        bits = 8 * dtype.itemsize - 1
        x.zero_()
        x[0, torch.arange(bits) * (40000 // bits)] = 2 ** torch.arange(bits).to(dtype)
        return x if operation == "or" else ~x
    if operation in ("max", "min"):
        x[0, 17_777] = 1000 if operation == "max" else -1000  # neither the first program's nor the last one's
    return x


@pytest.mark.parametrize("case", MET)
def test_programs_meet_in_one_atomic_operation_each(case: str) -> None:
    """Executed from PTX: the result, and one relaxed operation of one thread a program, and no store."""
    monoid, dtype, operation = ATOMIC[case]
    assert operation is not None
    x, kernels = telling(operation, dtype), list[Kernel]()
    program = programs.specialize(monoid.total, (dtype,))
    problem, plan = Reduction(program, (1,), "none", (1,)).plan([x], H200, library=False)
    assert (plan.strategy, [step.kernel for step in plan.launched]) == ("atomics", ["fold_atomically"])
    results = [torch.full((1,), 77).to(dtype)]

    def through(made: Any) -> Kernel:
        kernels.append(running.kernel_of(made))
        return kernels[-1]

    outcomes = run_plan(plan, problem, program, [x], results, 90, through)
    with tilefold.backend("reference"):
        assert torch.equal(results[0], tilefold.reduce(x, monoid, 1))
    (kernel,) = kernels
    stores = ("atom", "red", "st", "stmatrix")
    (met,) = (t for t in tally(kernel, outcomes) if t.opcode in stores and t.global_cost.requests)
    assert operation_of(met.instruction) == Atomic("relaxed", "gpu", operation)
    assert met.lanes == len(outcomes) > 2


@pytest.mark.parametrize("architecture", [80, 90, 100])
@pytest.mark.parametrize("case", MET)
def test_the_one_atomic_instruction(case: str, architecture: int) -> None:
    monoid, dtype, operation = ATOMIC[case]
    program = programs.specialize(monoid.total, (dtype,))
    device = Device("any", 132, architecture)
    problem, plan = Reduction(program, (1,), "none", (1,)).plan(
        [torch.empty(1, 40000, dtype=dtype)], device, library=False
    )
    (call,) = calls_of(plan, problem, program)
    text = calls.compile_for(call, architecture).asm["ptx"]
    kind = {"add": "f" if dtype.is_floating_point else "u", "max": "s", "min": "s"}.get(str(operation), "b")
    bits = 8 * dtype.itemsize
    found = re.findall(r"\b(?:atom|red|st)\.(?!shared)\S+", text)
    assert found == [f"atom.global.gpu.relaxed.{operation}.{kind}{bits}"]


def test_atomics_are_asked_for_and_not_where_torch_wants_determinism(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        executable, "interpret_call", lambda *given: None
    )  # the plan is asked for, not its results
    x = torch.randn(1, 170_000)
    with tilefold.backend("interpret"):
        tilefold.reduce(x, monoids.SUM, dim=1, guarantee="none")
        plan = tilefold.last_plan()
        assert plan is not None
        assert plan.strategy == "atomics"
        torch.use_deterministic_algorithms(True)
        try:
            tilefold.reduce(x, monoids.SUM, dim=1, guarantee="none")
        finally:
            torch.use_deterministic_algorithms(False)
        plan = tilefold.last_plan()
        assert plan is not None
        assert plan.strategy == "split"


@pytest.mark.parametrize("dim", [0, 1])
def test_segments_of_other_lengths_are_folded_in_pieces_on_a_cpu(dim: int) -> None:
    """Pieces of several segments at a time, of one, and none of an empty one; positions count from each one's beginning."""
    lengths = [3, 0, 1, 70, 3, 128, 5]
    offsets = offsets_of(lengths)
    x = drawn(sum(lengths), 4) if dim == 0 else drawn(sum(lengths), 4).T
    for monoid in (AFFINE, monoids.SUM, monoids.MAX_WITH_INDEX):
        got, want = [], []
        for backend, found in (("cpu", got), ("reference", want)):
            with tilefold.backend(backend):
                made = tilefold.segment_reduce(x, monoid, offsets, dim=dim, partial=True)
            found.extend(made if isinstance(made, tuple) else (made,))
        assert all(map(torch.equal, got, want)), monoid.name
