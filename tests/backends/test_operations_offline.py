"""Kernels of the operations beside folds, as planned for three chips: nothing spills, and no more sectors than the plan says.

map_blocks, map_offset, map_rings, map_stripes, scans and top-k have such tests beside those of their answers.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

import tilefold
from asked import asked, executed, run
from tilefold import monoids
from tilefold.backends.triton.lower import calls_of
from tilefold.planner.device import Device
from tilefold.planner.expected import expected
from tilefold.planner.geometry import SECTOR
from tilefold.xray.chips import CHIPS
from tilefold.xray.compile.folds import job_of
from tilefold.xray.compile.offline import compile_job, resources
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


def segments(x: torch.Tensor, monoid: Any, count: int, **options: Any) -> Any:
    return tilefold.segment_reduce(x, monoid, offsets(count), **options)


# A kernel that the plan has on an H200 and later; inputs that vectors fit, and others.
FAMILIES: dict[str, tuple[str, Call]] = {
    "spans": ("map_spans", lambda: tilefold.softmax(empty(40_000, 96, dtype=BF16), 1, **HOLDS)),
    "spans, odd": ("map_spans", lambda: normed(empty(9000, 501, dtype=BF16))),
    "spans, odd floats": ("map_spans", lambda: tilefold.softmax(empty(40_000, 33), 1)),
    "rows": ("map_rows", lambda: tilefold.normalize(empty(4096, 1000), dim=1)),
    "rows, odd": ("map_rows", lambda: tilefold.normalize(empty(512, 4099, dtype=BF16), dim=1)),
    "windows": ("map_windows", lambda: tilefold.softmax(empty(4, 1 << 23), 1)),
    "windows, odd": ("map_windows", lambda: tilefold.softmax(empty(64, (1 << 20) + 1, dtype=BF16), 1)),
    "elements": ("map_elements", lambda: tilefold.softmax(empty(1 << 20, 8), 0)),
    "elements, odd": ("map_elements", lambda: tilefold.softmax(empty(4099, 333, dtype=BF16), 0, **HOLDS)),
    "moves": ("move_tiles", lambda: tilefold.transpose(empty(16384, 8192, dtype=BF16), 0, 1)),
    "moves, odd": ("move_tiles", lambda: tilefold.transpose(empty(4099, 777), 0, 1)),
    "moves of runs": ("move_tiles", lambda: tilefold.transpose(empty(8, 1296, 859, 8, dtype=BF16), 1, 2)),
    "moves of odd runs": ("move_tiles", lambda: tilefold.transpose(empty(8, 1296, 859, 3, dtype=BF16), 1, 2)),
    "runs": ("segment_runs", lambda: segments(empty(1 << 26), monoids.SUM, 1 << 20)),
    "runs, odd": ("segment_runs", lambda: segments(empty((1 << 24) + 3, dtype=BF16), monoids.LOGSUMEXP, 70_001)),
    "positions": ("segment_rows", lambda: segments(empty(1 << 24), monoids.ARGMAX, 1 << 16)),
    "columns": ("segment_columns", lambda: segments(empty(1 << 20, 64), monoids.SUM, 1 << 16)),
    "columns, odd": ("segment_columns", lambda: segments(empty(1 << 20, 65, dtype=BF16), monoids.LOGSUMEXP, 999)),
    "whole segments": ("segment_whole", lambda: segments(empty(1 << 24), monoids.SUM, 1 << 16, **HOLDS)),
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


@pytest.mark.parametrize("target", list(CHIPS))
@pytest.mark.parametrize("name", list(FAMILIES))
def test_nothing_spills(name: str, target: str) -> None:
    kernel, call = FAMILIES[name]
    wanted, tensors, plan = asked(call, device_of(target))
    kernels = [step.kernel for step in plan.launched]
    assert kernel in kernels or target == "sm_80", "an A100 has no spans, and holds their rows in other ways"
    problem, plan = wanted.plan(tensors, device_of(target), library=True)
    for made in calls_of(plan, problem, wanted.computation):
        used = resources(compile_job(job_of(made, name, CHIPS[target])))
        assert (used.spill_stores, used.spill_loads, used.stack) == (0, 0, 0), (made.kernel, str(plan))


def counted(call: Call) -> tuple[list[str], int, int]:
    """Kernels, sectors executed, and sectors that the plan says: every buffer once a step."""
    device = device_of("sm_90")
    request, tensors, _ = asked(call, device)
    ran = run(request, tensors, device)
    found = sum(global_cost(a for o in outcomes for a in o.accesses).sectors for _, outcomes in ran.launches)
    said = expected(ran.plan, tensors, request.results, device).moved_bytes
    return [made.kernel for made, _ in ran.launches], found, -(-said // SECTOR)


# With how many sectors more than the plan says: the last vector of odd spans is stored element by element.
SMALL: dict[str, tuple[str, Call, int]] = {
    "spans": ("map_spans", lambda: tilefold.softmax(torch.randn(70, 96).to(BF16), 1, **HOLDS), 0),
    "spans, odd": ("map_spans", lambda: tilefold.softmax(torch.randn(70, 33), 1), 1),
    "rows": ("map_rows", lambda: tilefold.normalize(torch.randn(9, 1000), dim=1), 0),
    "moves": ("move_tiles", lambda: tilefold.transpose(torch.randn(128, 64).to(BF16), 0, 1), 0),
}


@pytest.mark.parametrize("name", list(SMALL))
def test_no_more_sectors_than_the_plan_says(name: str) -> None:
    kernel, call, more = SMALL[name]
    kernels, found, said = counted(call)
    assert kernels == [kernel]
    assert found <= said + more


@pytest.mark.parametrize(("length", "dtype"), [(4097, FP32), (8192, FP32), (8192, BF16)], ids=str)
def test_a_row_of_one_share_is_scanned(length: int, dtype: torch.dtype) -> None:
    """One row of more than a tile's elements and at most a share's: both counts of the kernel are 1 then."""
    x = torch.ones(1, length).to(dtype)
    (got,), plan = executed(lambda: tilefold.cumsum(x, 1, dtype=FP32))
    assert plan.stages[-1].shares == 1
    assert torch.equal(got, torch.arange(1.0, length + 1)[None])
