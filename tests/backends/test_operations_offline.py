"""Kernels of the operations beside folds, as planned for three chips: nothing spills, and sectors are those that a plan says.

Of map_blocks, map_offset, map_rings, map_stripes, scans and top-k the tests of spills stand beside those of their answers.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np
import pytest
import torch

import tilefold
from asked import asked, executed, run
from tilefold import monoids
from tilefold.algebra.expression import trace
from tilefold.api.chosen import map_chosen, put_chosen, same
from tilefold.api.ends import function_of
from tilefold.backends.triton.lower import calls_of
from tilefold.planner.chips import CHIPS
from tilefold.planner.device import Device
from tilefold.planner.least_time import with_least_time
from tilefold.planner.sizes import SECTOR
from tilefold.xray.compile.folds import job_of
from tilefold.xray.compile.offline import compile_job, resources
from tilefold.xray.machine import Outcome
from tilefold.xray.machine.counts import global_cost

BF16, FP32 = torch.bfloat16, torch.float32
Call = Callable[[], Any]
HOLDS: dict[str, Any] = {"guarantee": "batch_invariant"}


def empty(*shape: int, dtype: torch.dtype = FP32) -> torch.Tensor:
    return torch.empty(shape, dtype=dtype, device="meta")


def offsets(segments: int) -> torch.Tensor:
    return torch.empty(segments + 1, dtype=torch.int64, device="meta")


def between(x: Any, low: Any, high: Any) -> Any:
    return (x - low) / (high - low)


def normed(x: torch.Tensor) -> torch.Tensor:
    return tilefold.layer_norm(x, x.shape[1:], x[0])


def shares(x: torch.Tensor, **options: Any) -> Any:
    return tilefold.reduce_map(x, monoids.NORM(1), lambda x, norm: x / norm, 1, **options)


def picked(x: torch.Tensor, index: torch.Tensor) -> list[torch.Tensor]:
    """Twice each row's chosen element, and that less a value of the row."""
    value = torch.ones(index.shape, device=x.device)
    function = function_of(trace(lambda value, index, x: (x * 2.0, x - value), 3))
    return map_chosen(function, [value], index, [x], 1, dtype=FP32, guarantee="run_to_run", call="picked")


def put(x: torch.Tensor, index: torch.Tensor) -> torch.Tensor:
    value = torch.ones(index.shape, device=x.device)
    return put_chosen(x, same(), [value], index, 1, guarantee="run_to_run", call="put")


def segments(x: torch.Tensor, monoid: Any, count: int, **options: Any) -> Any:
    return tilefold.segment_reduce(x, monoid, offsets(count), **options)


# A kernel that the plan has on an H200 and later; inputs that vectors fit, and others.
FAMILIES: dict[str, tuple[str, Call]] = {
    "spans": ("map_spans", lambda: tilefold.softmax(empty(40_000, 96, dtype=BF16), 1, **HOLDS)),
    "spans, odd": ("map_spans", lambda: normed(empty(9000, 501, dtype=BF16))),
    "spans, odd floats": ("map_spans", lambda: tilefold.softmax(empty(40_000, 33), 1)),
    "rows": ("map_blocks", lambda: shares(empty(4096, 1000))),
    "rows, odd": ("map_blocks", lambda: shares(empty(512, 4099, dtype=BF16))),
    "windows": ("map_windows", lambda: tilefold.softmax(empty(4, 1 << 23), 1)),
    "windows, odd": ("map_windows", lambda: tilefold.softmax(empty(64, (1 << 20) + 1, dtype=BF16), 1)),
    "window of one odd row": ("map_windows", lambda: tilefold.softmax(empty(1, (1 << 23) + 1, dtype=BF16), 1)),
    "elements": ("map_elements", lambda: tilefold.softmax(empty(1 << 20, 8), 0)),
    "elements, odd": ("map_elements", lambda: tilefold.softmax(empty(4099, 333, dtype=BF16), 0, **HOLDS)),
    "elements, many odd columns": ("map_elements", lambda: tilefold.softmax(empty(9000, 4099), 0, **HOLDS)),
    "chosen": ("map_chosen", lambda: picked(empty(16384, 8192, dtype=BF16), empty(16384, 1, dtype=torch.int64))),
    "chosen, odd": ("map_chosen", lambda: picked(empty(9, 33, 777).transpose(0, 2), empty(777, 1, 9, dtype=torch.int32))),
    "stored": ("map_chosen", lambda: put(empty(16384, 8192, dtype=BF16), empty(16384, 1, dtype=torch.int64))),
    "moves": ("move_tiles", lambda: tilefold.transpose(empty(16384, 8192, dtype=BF16), 0, 1)),
    "moves, odd": ("move_tiles", lambda: tilefold.transpose(empty(4099, 777), 0, 1)),
    "moves of runs": ("move_tiles", lambda: tilefold.transpose(empty(8, 1296, 859, 8, dtype=BF16), 1, 2)),
    "moves of odd runs": ("move_tiles", lambda: tilefold.transpose(empty(8, 1296, 859, 3, dtype=BF16), 1, 2)),
    "runs": ("segment_elements", lambda: segments(empty(1 << 26), monoids.SUM, 1 << 20)),
    "runs, odd": ("segment_elements", lambda: segments(empty((1 << 24) + 3, dtype=BF16), monoids.LOGSUMEXP, 70_001)),
    "positions": ("segment_elements", lambda: segments(empty(1 << 24), monoids.ARGMAX, 1 << 16)),
    "columns": ("segment_elements", lambda: segments(empty(1 << 20, 64), monoids.SUM, 1 << 16)),
    "columns, odd": ("segment_elements", lambda: segments(empty(1 << 20, 65, dtype=BF16), monoids.LOGSUMEXP, 999)),
    "columns, few odd": ("segment_elements", lambda: segments(empty(1 << 20, 7), monoids.LOGSUMEXP, 999)),
    "columns, many odd": ("segment_elements", lambda: segments(empty(1 << 18, 1001, dtype=BF16), monoids.SUM, 999)),
    "columns, odd, of moments": ("segment_elements", lambda: segments(empty(1 << 18, 1001), monoids.WELFORD, 999)),
    "whole segments": ("segment_elements", lambda: segments(empty(1 << 24), monoids.SUM, 1 << 16, **HOLDS)),
    "tables": (
        "fold_table",
        lambda: tilefold.reduce_many([empty(1 << 24, dtype=BF16), empty(4099, dtype=BF16)], monoids.NORM(2)),
    ),
    "tables, of moments": ("fold_table", lambda: tilefold.reduce_many([empty(1 << 24)], monoids.WELFORD)),
    "atomics": ("fold_atomically", lambda: tilefold.reduce(empty(1, 1 << 28), monoids.SUM, 1, guarantee="none")),
    "atomics, odd": (
        "fold_atomically",
        lambda: tilefold.reduce(empty(3, (1 << 24) + 5, dtype=torch.int64), monoids.MAX, 1, guarantee="none"),
    ),
}  # fmt: skip


def device_of(target: str) -> Device:
    chip = CHIPS[target]
    cluster = 16 if chip.architecture >= 90 else 1
    return Device(chip.name, chip.sms, chip.architecture, chip.gb_per_s, chip.shared_bytes, cluster)


# What is known to spill.
SPILLS = {
    (
        "window of one odd row",
        "sm_100",
    ): "ptxas takes 80 registers, so that an SM holds three programs, and stores 8 bytes",
}


@pytest.mark.parametrize("target", list(CHIPS))
@pytest.mark.parametrize("name", list(FAMILIES))
def test_nothing_spills(name: str, target: str, request: pytest.FixtureRequest) -> None:
    if (name, target) in SPILLS:
        request.applymarker(pytest.mark.xfail(strict=True, reason=SPILLS[name, target]))
    kernel, call = FAMILIES[name]
    wanted, tensors, plan = asked(call, device_of(target))
    kernels = [step.kernel for step in plan.launched]
    assert kernel in kernels or target == "sm_80", "an A100 has no spans, and holds their rows in other ways"
    problem, plan = wanted.plan(tensors, device_of(target), library=True)
    for made in calls_of(plan, problem, wanted.computation):
        used = resources(compile_job(job_of(made, name, CHIPS[target])))
        assert (used.spill_stores, used.spill_loads, used.stack) == (0, 0, 0), (made.kernel, str(plan))


class Small(NamedTuple):
    """A call that the X-ray's machine executes in a second or two.

    `kernels` are those of its plan, on a chip of so many SMs, without clusters where it has `alone`. `beside`: so many
    sectors less and more may be moved than the plan says. `again`: requests touch at most so many times the sectors that are
    moved; `why` they touch some again.
    """

    kernels: str
    call: Call
    sms: int = 132
    alone: bool = False
    beside: tuple[int, int] = (0, 0)
    again: float = 1.0
    why: str = ""


def drawn(*shape: int, dtype: torch.dtype = FP32) -> torch.Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(0)).to(dtype)


def cut(x: torch.Tensor, monoid: Any, count: int, **options: Any) -> Any:
    """Segments of any lengths, empty ones among them."""
    generator = torch.Generator().manual_seed(1)
    inner = torch.randint(0, x.shape[0] + 1, (count - 1,), generator=generator).sort().values
    borders = torch.cat([torch.tensor([0]), inner, torch.tensor([x.shape[0]])])
    return tilefold.segment_reduce(x, monoid, borders, **options)


def weighed(x: torch.Tensor) -> torch.Tensor:
    return tilefold.layer_norm(x, x.shape[1:], drawn(x.shape[1], dtype=x.dtype))


# Why requests touch sectors again, by the kind of call. The caches have them: none is moved a second time.
EDGES = "a warp's vectors, or its elements, begin and end amid sectors"
SHARED = "rows share a weight, elements their row's results"
SINGLY = "threads have neighbours, which are loaded or stored one by one"
TWICE = "programs read what they fold a second time, from the L2"
SOUGHT = "programs seek their first segment, and lanes those of their elements"

SMALL: dict[str, Small] = {
    "spans": Small("map_spans", lambda: tilefold.softmax(drawn(70, 96, dtype=BF16), 1, **HOLDS)),
    "spans, odd": Small("map_spans", lambda: tilefold.softmax(drawn(70, 33), 1), again=1.01, why=EDGES),
    "rows": Small("map_blocks", lambda: shares(drawn(9, 1000))),
    "rows, odd": Small("map_blocks", lambda: shares(drawn(5, 4099, dtype=BF16)), again=1.18, why=EDGES),
    "one odd row": Small("map_blocks", lambda: shares(drawn(1, 4099, dtype=BF16), **HOLDS)),
    "blocks": Small("map_blocks", lambda: tilefold.softmax(drawn(9, 1000), 1)),
    "blocks, odd": Small("map_blocks", lambda: tilefold.softmax(drawn(5, 4099), 1), again=1.04, why=EDGES),
    "blocks of columns": Small("map_blocks", lambda: tilefold.softmax(drawn(512, 8), 0)),
    "blocks of odd columns": Small("map_blocks", lambda: tilefold.softmax(drawn(301, 33), 0), again=1.43, why=EDGES),
    "stripes": Small("map_stripes", lambda: tilefold.softmax(drawn(1024, 128, dtype=BF16), 0), 1),
    "rings": Small("map_rings", lambda: tilefold.softmax(drawn(4, 2048, dtype=BF16), 1)),
    "rings, odd": Small("map_rings", lambda: weighed(drawn(1, 4099, dtype=BF16)), again=1.18, why=SINGLY),
    "rings and a weight": Small("map_rings", lambda: weighed(drawn(9, 1000)), again=1.67, why=SHARED),
    "offset": Small("map_offset", lambda: weighed(drawn(5, 4099, dtype=BF16)), again=1.51, why=SHARED),
    # Beside what it says a window's map reads states that its folds left, and counters.
    "windows": Small(
        "clear + map_windows", lambda: tilefold.softmax(drawn(1, 70_000), 1), 1, True, (0, 4), 1.52, TWICE
    ),
    "windows, odd": Small(
        "clear + map_windows", lambda: tilefold.softmax(drawn(1, 70_001, dtype=BF16), 1), 1, True, (0, 4), 1.52, TWICE
    ),
    "elements": Small(
        "fold_lanes + map_elements", lambda: tilefold.softmax(drawn(64, 512), 0, **HOLDS), again=1.32, why=SHARED
    ),
    "elements, odd": Small(
        "fold_lanes + map_elements", lambda: tilefold.softmax(drawn(65, 133), 0, **HOLDS), again=1.4, why=EDGES
    ),
    "elements, many odd columns": Small(
        "fold_lanes + map_elements", lambda: tilefold.softmax(drawn(16, 4099, dtype=BF16), 0, **HOLDS),
        again=1.7, why=EDGES,
    ),
    "chosen": Small("map_chosen", lambda: picked(drawn(200, 64), torch.arange(200)[:, None] % 70)),
    "stored": Small("map_chosen", lambda: put(drawn(200, 64, dtype=BF16), torch.arange(200)[:, None] % 64)),
    "moves": Small("move_tiles", lambda: tilefold.transpose(drawn(128, 64, dtype=BF16), 0, 1)),
    "moves, odd": Small("move_tiles", lambda: tilefold.transpose(drawn(129, 65), 0, 1), again=1.41, why=EDGES),
    "moves of runs": Small("move_tiles", lambda: tilefold.transpose(drawn(2, 50, 30, 8, dtype=BF16), 1, 2)),
    "moves of odd runs": Small(
        "move_tiles", lambda: tilefold.transpose(drawn(2, 50, 31, 3, dtype=BF16), 1, 2), again=1.65, why=EDGES
    ),
    "runs": Small("segment_elements + segment_pieces", lambda: cut(drawn(8192), monoids.SUM, 64), again=1.25, why=SOUGHT),
    "runs, odd": Small(
        "segment_elements + segment_pieces", lambda: cut(drawn(8195, dtype=BF16), monoids.LOGSUMEXP, 71),
        again=1.6, why=SOUGHT,
    ),
    "positions": Small(
        "segment_elements + segment_pieces", lambda: cut(drawn(8192), monoids.ARGMAX, 64), again=1.45, why=SOUGHT
    ),
    # States are stored, and read, only of chunks in which a segment ends that began before.
    "columns": Small(
        "segment_elements + segment_pieces", lambda: cut(drawn(512, 64), monoids.SUM, 32),
        beside=(100, 0), again=1.07, why=SOUGHT,
    ),
    "columns, odd": Small(
        "segment_elements + segment_pieces", lambda: cut(drawn(515, 65), monoids.SUM, 33),
        beside=(100, 0), again=1.53, why=EDGES,
    ),
    "columns, few odd": Small(
        "segment_elements + segment_pieces", lambda: cut(drawn(2000, 7, dtype=BF16), monoids.LOGSUMEXP, 32),
        beside=(100, 0), again=2.3, why=EDGES,
    ),
    "whole segments": Small(
        "segment_elements", lambda: cut(drawn(8192), monoids.SUM, 64, **HOLDS), again=1.4, why=SOUGHT
    ),
    "whole segments, odd": Small(
        "segment_elements", lambda: cut(drawn(8195, dtype=BF16), monoids.LOGSUMEXP, 71, **HOLDS), again=1.83, why=SOUGHT
    ),
    # Every program changes the one result, in the L2.
    "atomics": Small(
        "fold_lanes", lambda: tilefold.reduce(drawn(1, 65_536), monoids.SUM, 1, guarantee="none"),
        again=1.001, why=SHARED,
    ),
    "atomics, odd": Small(
        "fold_lanes", lambda: tilefold.reduce(drawn(1, 65_539).long(), monoids.MAX, 1, guarantee="none"),
        again=1.001, why=SHARED,
    ),
    "scans": Small("scan_lines", lambda: tilefold.cumsum(drawn(8, 1024), 1)),
    "scans, odd": Small("scan_lines", lambda: tilefold.cumsum(drawn(9, 1003, dtype=BF16), 1), again=1.09, why=EDGES),
    "scans of short rows": Small("scan_lines", lambda: tilefold.cumsum(drawn(300, 16, dtype=BF16), 1)),
    "scans of short odd rows": Small(
        "scan_lines", lambda: tilefold.cumsum(drawn(301, 17), 1), again=1.77, why=SINGLY
    ),
    "scans of columns": Small("scan_lines", lambda: tilefold.cumsum(drawn(512, 64), 0)),
    "scans of odd columns": Small(
        "scan_lines", lambda: tilefold.cumsum(drawn(515, 65), 0), 2, again=1.41, why=EDGES
    ),
    # A thread has as many elements as its widest results are a vector: half a vector of them.
    "scans of two results": Small("scan_lines", lambda: tilefold.cummax(drawn(8, 1024), 1), again=1.25, why=SINGLY),
    "shared scans": Small("scan_tiles", lambda: tilefold.cumsum(drawn(1, 32_768), 1), again=1.51, why=TWICE),
    # Words that programs leave are read by those behind them, in the same launch.
    "shared scans, odd": Small(
        "scan_tiles", lambda: tilefold.cumsum(drawn(1, 32_771, dtype=BF16), 1), beside=(0, 1), again=1.51, why=TWICE
    ),
    "shared scans of columns": Small(
        "scan_tiles", lambda: tilefold.cumsum(drawn(515, 65), 0), beside=(0, 16), again=1.58, why=EDGES
    ),
    "selections": Small("select_rows", lambda: tilefold.topk(drawn(16, 1000), 5, 1), again=1.21, why=TWICE),
    "selections, odd": Small(
        "select_rows", lambda: tilefold.topk(drawn(17, 1003, dtype=BF16), 5, 1), again=1.42, why=TWICE
    ),
    "selections of short rows": Small("select_rows", lambda: tilefold.topk(drawn(64, 8), 5, 1), again=1.74, why=TWICE),
    "selections of columns": Small("select_rows", lambda: tilefold.topk(drawn(64, 256), 3, 0), again=2.27, why=SINGLY),
    "selections of odd columns": Small(
        "select_rows", lambda: tilefold.topk(drawn(65, 257), 3, 0), again=2.68, why=SINGLY
    ),
    "columns of a thread": Small(
        "select_rows", lambda: tilefold.topk(drawn(30, 512, dtype=BF16), 3, 0), 1, again=1.78, why=TWICE
    ),
    "split selections": Small(
        "select_rows + select_partials", lambda: tilefold.topk(drawn(1, 16_384), 8, 1), again=1.09, why=TWICE
    ),
    "split selections, odd": Small(
        "select_rows + select_partials", lambda: tilefold.topk(drawn(1, 16_387, dtype=BF16), 8, 1), again=1.11, why=TWICE
    ),
}  # fmt: skip


def touched(outcomes: Sequence[Outcome], stores: bool) -> int:
    """Sectors of global memory that a launch's programs load or, each by itself, store or change; each once."""
    found = [
        access.addresses[access.active] // SECTOR
        for outcome in outcomes
        for access in outcome.accesses
        if access.space == "global" and (access.kind != "load") == stores
    ]
    return len(np.unique(np.concatenate(found))) if found else 0


@pytest.mark.parametrize("name", list(SMALL))
def test_as_many_sectors_are_moved_as_the_plan_says(name: str) -> None:
    """Every buffer that a kernel reads or writes may end amid a sector, beside what a plan says of it."""
    small = SMALL[name]
    chip = replace(device_of("sm_90"), sms=small.sms, **({"cluster": 1} if small.alone else {}))
    request, tensors, _ = asked(small.call, chip)
    ran = run(request, tensors, chip)
    assert " + ".join(made.kernel for made, _ in ran.launches) == small.kernels
    launched = replace(ran.plan, steps=ran.plan.launched)
    said = with_least_time(launched, tensors, request.results, chip).moved_bytes / SECTOR
    moved = sum(touched(outcomes, stores) for _, outcomes in ran.launches for stores in (False, True))
    ends = sum(len(step.reads) + len(step.writes) for step in launched.steps)
    requested = sum(
        global_cost(a for o in outcomes for a in o.accesses).sectors for _, outcomes in ran.launches
    )
    less, more = small.beside
    assert said - less <= moved <= said + more + ends
    assert requested <= small.again * moved, small.why


@pytest.mark.parametrize(("length", "dtype"), [(4097, FP32), (8192, FP32), (8192, BF16)], ids=str)
def test_a_row_of_one_share_is_scanned(length: int, dtype: torch.dtype) -> None:
    """One row of more than a tile's elements and at most a share's: both counts of the kernel are 1 then."""
    x = torch.ones(1, length).to(dtype)
    (got,), plan = executed(lambda: tilefold.cumsum(x, 1, dtype=FP32))
    assert plan.stages[-1].shares == 1
    assert torch.equal(got, torch.arange(1.0, length + 1)[None])
