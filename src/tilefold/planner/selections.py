"""How top-k runs: from problem and device to a plan. Pure, as `choose` is.

The steps of the sequence decide, in this order:

    selection_problem   which dim rows have
    choose_selection    which form: columns that a thread holds whole, rows read at once, or groups of a row; then the
                        parts of a row, the rows of a program and the groups of a lane, by rule
    plan_selection      how a second launch selects from the parts' entries, if programs share a row

A selection takes out one entry at a time, so its cost is k times the number of entries. With groups it is
k (groups + k length / groups), which is least for groups = sqrt(k length). It does not depend on the elements' values.
"""

from __future__ import annotations

import math

import torch

from tilefold.planner.device import Device
from tilefold.planner.plan import Buffer, Launch, Plan, count
from tilefold.planner.problem.canonical import Dim, Problem, alignment, by_stride, contiguous_strides, merged
from tilefold.planner.sizes import VECTOR_BYTES, WARP, power_above
from tilefold.planner.stages.selections import Gathering, Selection

# Definitions:
MOST = 32  # entries that are selected
SHORT_PLACES = (1 << 16) - 64  # places that 16 bits hold, with some beyond a row's end
LONGEST_PART = 1 << 30  # places of a part, counted in 32 bits

# docs/experiments/selections.md#top-k:
PROGRAMS = 8  # an SM is given where rows are shared
WARP_BYTES = 1 << 15  # of a row that one warp walks; a longer one has four
HELD = {"short": 64, "long": 32, "pair": 32}  # entries of a lane where no groups are made
COLUMN_UNROLL = 16  # groups of a lane where results are neighbours; half as many of 8 bytes, or that begin between vectors

# docs/experiments/selections.md#columns:
COLUMNS_EACH = (4, 2, 1)  # columns that a thread holds whole
EACH_HELD = 32  # entries that it holds at most where several

# Not measured:
LEAST_PART = 1 << 13  # a part shorter than that is read sooner than another program begins
COLUMN_PART = 1 << 12  # places of a part where results are neighbours: a program has many rows
ENTRIES = 1 << 12  # entries of all parts that one program of the second launch holds
# Below so many bytes read, reads leave the L2 first: of folds that was measured (docs/experiments/memory.md#evict-first).
CACHED = 320 << 20


def selection_problem(x: torch.Tensor, dim: int, k: int) -> Problem:
    """Rows along `dim` as the reduced dim, with the steps of contiguous results that have k places along it."""
    shape = [k if d == dim else n for d, n in enumerate(x.shape)]
    steps = contiguous_strides(shape)
    rows = [Dim("map", n, (x.stride(d),), steps[d]) for d, n in enumerate(x.shape) if d != dim and n != 1]
    along = Dim("reduce", x.shape[dim], (x.stride(dim),), steps[dim], 1)
    address = x.data_ptr()
    return Problem((*merged(by_stride(rows)), along), (x.dtype,), (alignment(address),), (address % 16,))


def plan_selection(problem: Problem, k: int, largest: bool, device: Device, guarantee: str) -> Plan:
    """The steps: one launch, or one over parts of rows and one over what those have left."""
    settings = choose_selection(problem, k, largest, device)
    results = problem.outputs * k
    outputs = (
        Buffer("output0", (results,), problem.dtypes[0]),
        Buffer("output1", (results,), torch.int64),
    )
    written = ("output0", "output1")
    if settings.splits == 1:
        step = Launch("select_rows", settings, ("input0",), written)
        reason = f"{count(problem.outputs, 'row')} of {problem.length}"
        return Plan("triton", (step,), outputs, (), guarantee, "whole", reason)
    entries = settings.splits * k
    gathering = Gathering(k, entries, 8 if entries > 1024 else 4)
    overlaps = device.overlaps
    steps = (
        Launch("select_rows", settings, ("input0",), ("key0", "place0"), releases=overlaps),
        Launch("select_partials", gathering, ("input0", "key0", "place0"), written, early=overlaps),
    )
    between = tuple(
        Buffer(name, (problem.outputs, settings.splits, k), torch.int64) for name in ("key0", "place0")
    )
    reason = f"{count(problem.outputs, 'row')} of {problem.length}, {count(settings.splits, 'part')} each"
    return Plan("triton", steps, outputs, between, guarantee, "split", reason)


def choose_selection(problem: Problem, k: int, largest: bool, device: Device) -> Selection:
    """The tile by the length of a row; parts where there are too few rows for the chip."""
    dtype, (along,), rows = problem.dtypes[0], problem.reduced_dims, problem.outputs
    itemsize, step = dtype.itemsize, along.strides[0]
    columns = _by_columns(problem, k)
    whole = _whole_columns(problem, k, largest, device) if columns else None
    if whole is not None:
        return whole
    run = min(VECTOR_BYTES // itemsize, 16) if step == 1 else 2
    align = step == 1 and not _is_aligned(problem, run)
    span = along.size + (run - 1) * align
    direct = math.ceil(span / run) <= 2 * k
    splits, part = (1, span) if direct else _parts(rows, span, run, k, device, columns)
    vectors = math.ceil(part / run)
    odd = columns and not direct and not _begin_at_vectors(problem)
    rows_each, lanes, warps = _lanes(problem, k, part, vectors, device, columns, direct)
    if direct:
        unroll = power_above(math.ceil(vectors / lanes))
    elif columns:
        unroll = _column_unroll(vectors, lanes, itemsize == 8 or odd)
    else:
        unroll = _unroll(k, vectors, run, lanes, part)
    return Selection(
        k=k,
        largest=largest,
        rows=rows_each,
        lanes=lanes,
        unroll=unroll,
        run=run,
        turns=1 if direct else math.ceil(vectors / (lanes * unroll)),
        splits=splits,
        part=part,
        num_warps=warps,
        pack=_pack(dtype, part),
        pack_groups=_pack(dtype, vectors),
        direct=direct,
        align=align,
        evict_first=problem.bytes_read < CACHED,
        looped=odd,
    )


def _by_columns(problem: Problem, k: int) -> bool:
    """Whether neighbours in memory are of neighbouring rows, and their parts' best elements are few enough to be gathered."""
    (along,) = problem.reduced_dims
    neighbours = any(d.strides[0] == 1 for d in problem.output_dims[-1:])
    few = k * math.ceil(along.size / COLUMN_PART) <= ENTRIES
    return along.strides[0] != 1 and neighbours and few


def _whole_columns(problem: Problem, k: int, largest: bool, device: Device) -> Selection | None:
    """A thread holds a column, or a few, so that nothing passes between threads; None of longer columns, and of so few that
    each SM would not have a warp (docs/experiments/selections.md#columns)."""
    dtype, (along,) = problem.dtypes[0], problem.reduced_dims
    pack, places = _pack(dtype, along.size), power_above(along.size)
    if places > HELD[pack] or problem.outputs < device.sms * WARP:
        return None
    held = [each for each in COLUMNS_EACH if each == 1 or each * places <= EACH_HELD]
    sizes = ((each, warps) for each in held for warps in (4, 2, 1))
    most = problem.outputs // (2 * device.sms * WARP)
    each, warps = next((size for size in sizes if math.prod(size) <= most), (1, 1))
    return Selection(
        k=k,
        largest=largest,
        rows=WARP * warps * each,
        lanes=1,
        unroll=places,
        run=1,
        turns=1,
        splits=1,
        part=along.size,
        num_warps=warps,
        pack=pack,
        pack_groups=pack,
        direct=True,
        align=False,
        evict_first=problem.bytes_read < CACHED,
    )


def _begin_at_vectors(problem: Problem) -> bool:
    """Whether each place of neighbouring rows begins at a vector of memory if the first one does, and it does."""
    (along,) = problem.reduced_dims
    whole = along.strides[0] * problem.dtypes[0].itemsize % VECTOR_BYTES == 0
    return whole and problem.aligned[0] >= VECTOR_BYTES


def _is_aligned(problem: Problem, run: int) -> bool:
    """Whether every row begins at a whole vector."""
    starts = (d.strides[0] % run for d in problem.output_dims)
    return problem.aligned[0] >= min(run * problem.dtypes[0].itemsize, 16) and not any(starts)


def _pack(dtype: torch.dtype, places: int) -> str:
    if dtype.itemsize == 8:
        return "pair"
    return "short" if dtype.itemsize <= 2 and dtype != torch.uint16 and places <= SHORT_PLACES else "long"


def _parts(rows: int, span: int, run: int, k: int, device: Device, columns: bool) -> tuple[int, int]:
    """How many programs share a row, and places of each; each has k places and more."""
    programs = math.ceil(rows / 32) if columns else rows
    wanted = 1 if programs >= 2 * device.sms else math.ceil(PROGRAMS * device.sms / programs)
    splits = max(1, min(wanted, span // LEAST_PART, ENTRIES // k))
    splits = max(splits, math.ceil(span / (COLUMN_PART if columns else LONGEST_PART)))
    part = math.ceil(span / splits / run) * run if splits > 1 else span
    return math.ceil(span / part), part


def _lanes(
    problem: Problem, k: int, part: int, vectors: int, device: Device, columns: bool, direct: bool
) -> tuple[int, int, int]:
    """Rows a program, lanes a row, warps."""
    dtype, rows = problem.dtypes[0], problem.outputs
    if columns:  # results are neighbours in memory
        each = min(16 if k <= 16 and dtype.itemsize < 8 else 8, power_above(rows))
        return each, min(power_above(vectors), WARP), 4
    if direct:
        lanes = max(1, power_above(part) // HELD[_pack(dtype, part)])
        return max(1, WARP // lanes), min(lanes, power_above(vectors)), 1
    return _shares(rows, part * dtype.itemsize, device)


def _shares(rows: int, part_bytes: int, device: Device) -> tuple[int, int, int]:
    """Rows a program, lanes a row, warps: a warp for several short rows or for a middling one, four for a long one."""
    for most, rows_each in ((1 << 10, 4), (1 << 12, 2)):
        if part_bytes <= most and rows >= rows_each * device.sms:
            return rows_each, WARP // rows_each, 1
    return (1, WARP, 1) if part_bytes <= WARP_BYTES else (1, 4 * WARP, 4)


def _unroll(k: int, vectors: int, run: int, lanes: int, part: int) -> int:
    """Groups of a lane. A row of one warp has those that make groups and elements of the best groups fewest together."""
    if lanes > WARP:
        groups = min(max(_nearest(k * part), lanes), 2048, power_above(vectors))
        return max(1, min(groups // lanes, 16))

    def entries(unroll: int) -> tuple[bool, bool, int, int]:
        turns = power_above(math.ceil(vectors / (lanes * unroll)))
        few, idle = lanes * unroll < k, power_above(k) * turns < lanes  # idle: a lane without a candidate
        return few, idle, lanes * unroll + power_above(k) * turns * run, -unroll

    return min((u for u in (1, 2, 4, 8, 16) if u == 1 or lanes * u <= power_above(vectors)), key=entries)


def _column_unroll(vectors: int, lanes: int, few: bool) -> int:
    """Groups of a lane where results are neighbours."""
    return max(1, min(COLUMN_UNROLL // (2 if few else 1), power_above(vectors) // lanes))


def _nearest(square: int) -> int:
    """The power of two nearest to a square's root."""
    return 1 << round(math.log2(max(square, 1)) / 2)
