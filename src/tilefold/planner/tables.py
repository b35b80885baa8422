"""How a fold of many tensors runs: from the numbers of their elements to tables and a plan. Pure: no address is read.

Each tensor is cut into blocks of neighbours in memory, by its own size alone. A table has a column a block: its address, how
many elements it has, the first one's position in its tensor, and the block's number among all. The first launch (one for each
dtype) leaves a state a block, the second folds each tensor's states, in order, and a third the states of all tensors, where
these are folded together. The first reads each element once; a table and states are some 40 bytes for each BLOCK_BYTES,
and at least for each tensor.

Tables are data, not part of a plan: tensors at other addresses, of as many elements, have the same plan and other tables.

    blocks_of      into how many blocks a tensor is cut, and how many elements they have
    rows_of        a table, but for its tensors' addresses
    plan_many      the launches
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from tilefold.algebra.program import Program
from tilefold.planner.folds import partial_dtypes
from tilefold.planner.plan import Buffer, Fill, Launch, Plan, count, names
from tilefold.planner.problem.canonical import Dim, Problem
from tilefold.planner.sizes import VECTOR_BYTES, WARP, power_above
from tilefold.planner.stages.segments import Alone
from tilefold.planner.stages.tables import Blocks

# 2,000 bf16 tensors of 225M elements, their norms, on an H200 (2026-11-28), of the bytes' time: blocks of 32 KB and 16
# elements a lane .857; blocks of 64 KB .830, of 128 KB .814; 32 elements a lane .674 (they take 165 registers, 16 take 47).
BLOCK_BYTES = 1 << 15  # of a block at least, but a tensor's last
LANE_ELEMENTS = 16  # that a thread has on their way, in four vectors at most
LOADS = 4
WARPS = 4  # of a program; with 8 .806
# Not measured:
MOST = 1 << 12  # blocks of a tensor
RUN = 4  # states of neighbouring blocks that a lane combines at a time


@dataclass(frozen=True)
class Group:
    """The tensors of one dtype: how many elements and blocks they have."""

    dtype: torch.dtype
    elements: int
    blocks: int


def blocks_of(elements: int, itemsize: int) -> tuple[int, int]:
    """(how many blocks, how many elements of each but the last) of a tensor."""
    size = max(BLOCK_BYTES // itemsize, power_above(math.ceil(elements / MOST)))
    return math.ceil(elements / size), size


def rows_of(counts: Sequence[int], itemsize: int, first: Sequence[int]) -> Any:
    """The table of tensors of one dtype, [4, blocks], with addresses that count from each tensor's own; `first` are the
    numbers of their first blocks."""
    cut = [blocks_of(n, itemsize) for n in counts]
    blocks = np.array([n for n, _ in cut], np.int64)
    size = np.repeat(np.array([n for _, n in cut], np.int64), blocks)
    number = np.arange(blocks.sum()) - np.repeat(blocks.cumsum() - blocks, blocks)
    position = number * size
    return np.stack(
        [
            position * itemsize,
            np.minimum(size, np.repeat(np.array(counts, np.int64), blocks) - position),
            position,
            np.repeat(np.array(first, np.int64), blocks) + number,
        ]
    )


def many(program: Program, groups: Sequence[Group]) -> Problem:
    """The problem of folding the states of all blocks."""
    dtypes = partial_dtypes(program)
    blocks = sum(group.blocks for group in groups)
    return Problem((Dim("segment", blocks, (1,) * len(dtypes), 1, 1),), dtypes, (VECTOR_BYTES,) * len(dtypes))


def plan_many(program: Program, groups: Sequence[Group], tensors: int, together: bool) -> Plan:
    """The steps. Inputs are a table for each group, the tensors' first blocks and their end, and 0 and `tensors`.

    A tensor's bits do not depend on the others.
    """
    n, dtypes = len(program.outputs), partial_dtypes(program)
    results = names("output", n * (1 + together))
    each, whole = results[:n], results[n:]
    outputs = [Buffer(name, (tensors,), d) for name, d in zip(each, program.outputs, strict=True)]
    outputs += [Buffer(name, (1,), d) for name, d in zip(whole, program.outputs, strict=False)]
    tables = names("input", len(groups) + 2)
    elements, blocks = sum(group.elements for group in groups), sum(group.blocks for group in groups)
    reason = f"{count(tensors, 'tensor')} of {count(elements, 'element')}"
    if not blocks:
        return Plan(
            "triton",
            tuple(map(Fill, filter(None, (each, whole)))),
            tuple(outputs),
            (),
            "batch_invariant",
            "nothing",
            reason,
        )
    partials = names("partial", len(dtypes))
    states = tuple(f"partial_of_tensors{i}" for i in range(len(dtypes) * together))
    lanes = WARPS * WARP
    steps = [
        Launch("fold_table", _blocks(program, group), (tables[i], tables[i]), partials)
        for i, group in enumerate(groups)
        if group.blocks
    ]
    alone = Alone(lanes, RUN, tensors, torch.int64, WARPS)
    steps.append(Launch("segment_elements", alone, (*partials, tables[len(groups)]), (*each, *states)))
    if together:
        one = Alone(lanes, RUN, 1, torch.int64, WARPS)
        steps.append(Launch("segment_elements", one, (*states, tables[len(groups) + 1]), whole))
    workspaces = [Buffer(name, (blocks,), d) for name, d in zip(partials, dtypes, strict=True)]
    workspaces += [Buffer(name, (tensors,), d) for name, d in zip(states, dtypes, strict=False)]
    return Plan(
        "triton", tuple(steps), tuple(outputs), tuple(workspaces), "batch_invariant", "tables", reason
    )


def _blocks(program: Program, group: Group) -> Blocks:
    run, ordered = VECTOR_BYTES // group.dtype.itemsize, not program.algebra.commutative
    absorb = program.absorb is not None and not ordered
    loads = 1 if ordered else max(1, min(LOADS, LANE_ELEMENTS // run))
    return Blocks(group.dtype, group.elements, group.blocks, WARPS * WARP, run, loads, ordered, absorb, WARPS)
