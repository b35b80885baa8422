"""How many bytes the plan of an operation moves, and how long these and its launches take at least."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace

import torch

from tilefold.planner.device import Device
from tilefold.planner.plan import Buffer, Fill, Plan, Step
from tilefold.planner.sizes import SECTOR
from tilefold.planner.stages.chosen import Choosing
from tilefold.planner.stages.segments import Pieces
from tilefold.planner.stages.selections import Gathering
from tilefold.planner.stages.tables import Blocks

# An H200's memory copies at this share of its data sheet: 4,268 of 4,800 GB/s (docs/experiments/folds.md#suite).
COPIED = 0.89
# An empty launch on an H200 (docs/experiments/folds.md#suite), one more behind it, and one more that begins early
# (docs/measured.md).
LAUNCH_US, SECOND_US, EARLY_US = 3.7, 2.1, 0.8


def with_least_time(
    plan: Plan,
    tensors: Sequence[torch.Tensor],
    results: Sequence[tuple[tuple[int, ...], torch.dtype]],
    device: Device,
) -> Plan:
    """The plan with what its steps read and write, each buffer once a step, and the least time of that and the launches.

    What a step reads again, from the L2 as it is planned, does not count. A second launch of a top-k reads of its rows the
    elements that it stores, and one of segments has those alone that cross chunks, one a chunk at most; of elements that an
    index chooses each is a sector.
    """
    sizes = {f"input{number}": read_bytes(t) for number, t in enumerate(tensors)}
    made = [Buffer(f"output{number}", shape, dtype) for number, (shape, dtype) in enumerate(results)]
    sizes |= {b.name: math.prod(b.shape) * b.dtype.itemsize for b in (*made, *plan.outputs, *plan.workspaces)}
    moved = sum(_moved(step, sizes, tensors, results) for step in plan.steps)
    later_us = EARLY_US if device.overlaps else SECOND_US
    launches_us = LAUNCH_US + later_us * (plan.launches - 1) if plan.launches else 0.0
    least_us = launches_us + moved / (COPIED * device.gb_per_s) * 1e-3
    return replace(plan, moved_bytes=moved, least_us=least_us, chip=device.name)


def _moved(
    step: Step,
    sizes: Mapping[str, int],
    tensors: Sequence[torch.Tensor],
    results: Sequence[tuple[tuple[int, ...], torch.dtype]],
) -> int:
    """Bytes that a step reads and writes."""
    if isinstance(step, Fill):
        return sum(sizes.get(name, 0) for name in step.writes)
    here, settings = dict(sizes), step.settings
    if isinstance(settings, Gathering):
        here["input0"] = min(sizes["input0"], math.prod(results[0][0]) * SECTOR)
    elif isinstance(settings, Choosing):
        rows = math.prod(tensors[settings.index].shape)
        here |= {
            f"input{i}": min(here[f"input{i}"], rows * SECTOR)
            for i in range(settings.index + 1, len(tensors))
        }
    elif isinstance(settings, Pieces):
        offsets, segments = step.reads[0], tensors[-1].shape[0] - 1
        here[offsets] = min(sizes[offsets], settings.chunks * SECTOR)
        here |= {name: sizes[name] * min(settings.chunks, segments) // segments for name in step.writes}
    elif isinstance(settings, Blocks):
        return settings.elements * settings.dtype.itemsize + sum(
            here[n] for n in (step.reads[0], *step.writes)
        )
    return sum(here.get(name, 0) for name in (*step.reads, *step.writes))


def read_bytes(t: torch.Tensor) -> int:
    """About the bytes of the sectors that hold an element, each once."""
    steps = sorted(
        (abs(step), size) for step, size in zip(t.stride(), t.shape, strict=True) if size > 1 and step
    )
    if 0 in t.shape:
        return 0
    itemsize, nearest = t.element_size(), steps[0][0] if steps else 1
    elements = math.prod(size for _, size in steps)
    reach = (1 + sum(step * (size - 1) for step, size in steps)) * itemsize
    return min(elements * min(SECTOR, nearest * itemsize), reach)
