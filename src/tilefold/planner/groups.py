"""Which programs take a map's rows one after another: where rows have values of their own, or sums go over rows.

The kernel is `map_groups`. A program, or a cluster of them, holds rows that are contiguous; else rows are folded in a launch
before, and programs map parts of them. What a group of rows sums up is summed in a launch behind it.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import replace

from tilefold.planner.choose import plan_fold
from tilefold.planner.device import NOMINAL, PORTABLE, Device
from tilefold.planner.folds import narrowed, partial_dtypes
from tilefold.planner.plan import Buffer, Fill, Launch, Plan, count, names
from tilefold.planner.problem.canonical import Problem
from tilefold.planner.products.row import Row
from tilefold.planner.registers import MANY_FIELDS, fields_of
from tilefold.planner.sizes import MAX_WARPS, WARP, power_above, power_below
from tilefold.planner.stages.groups import Groups, problem_of_groups, summing
from tilefold.planner.stages.maps import folding

# docs/experiments/maps.md#backwards:
WORDS, HELD_WORDS = 90, 96  # registers of a thread that hold elements and sums: of short rows, of long ones
MOST = 16  # elements of a tile that a thread has, at most
TILE = 2048  # elements of a program, at least, where there are so many
WARPS_OF_AN_SM = 16
STAGES = 3  # with two turns on their way while one is mapped
RESIDENT = 0.91  # of the SMs, on which clusters of more than two programs run at a time
SHARED = 0.3  # of a row's time, that one program more costs where it has no fewer elements
# Not measured:
FEWEST = 4  # elements of a tile that a thread has, at least
SHARE = 1024  # elements of a row, at least, of each program that shares one


def needs_groups(problem: Problem, row: Row) -> bool:
    """Whether a map is for this kernel: it sums over rows, or folds inputs that have one value a row."""
    folded, along = range(row.program.algebra.inputs), problem.reduced_dims  # dims of length 1 are none
    return bool(row.sums) or (bool(along) and any(all(d.strides[i] == 0 for d in along) for i in folded))


def groups_plan(problem: Problem, row: Row, device: Device, guarantee: str, *, folds: bool = True) -> Plan:
    """The steps: rows that are held are folded and mapped in one launch, others (or all, not `folds`) are folded before."""
    invariant = guarantee == "batch_invariant"
    chip = NOMINAL if invariant else device
    most = min(device.cluster, PORTABLE) if invariant else device.cluster
    whole = problem.outputs * problem.length > 0
    held = _held(problem, row, most) if folds and whole else None
    first: Plan | None = None
    operands, workspaces = names("input", len(problem.dtypes)), list[Buffer]()
    inputs = row.program.algebra.inputs
    if held is None:
        rows = names("row", len(row.program.outputs))
        first = Plan("triton", (Fill(rows),), reason="no elements")
        if whole:
            first = plan_fold(folding(problem, row.program, guarantee), row.program, device, guarantee)
        workspaces += first.workspaces
        workspaces += [
            Buffer(n, (problem.outputs,), d) for n, d in zip(rows, row.program.outputs, strict=True)
        ]
        operands = (*operands[:inputs], *rows, *operands[inputs:])
    columns, cluster = held or (_columns(problem, row), 1)
    stage = _stage(problem, row, columns, cluster, held is not None, chip, invariant)
    outputs = names("output", len(row.results) + len(row.of_rows) + len(row.sums))
    stored, summed = outputs[: len(outputs) - len(row.sums)], outputs[len(outputs) - len(row.sums) :]
    of_groups = names("group", len(row.sums))
    workspaces += [
        Buffer(n, (stage.groups, problem.length), d) for n, d in zip(of_groups, row.sums, strict=True)
    ]
    launch = Launch("map_groups", stage, operands, (*stored, *of_groups))
    before = () if first is None else tuple(
        replace(step, writes=rows) if step.writes[0].startswith("output") else step for step in first.steps
    )  # fmt: skip
    after, between = _summing(problem, row, stage, of_groups, summed, device, guarantee)
    workspaces += between
    how = (
        f"each held whole by {count(cluster, 'program')}"
        if first is None
        else f"{first.reason}; then every element"
    )
    reason = f"{count(problem.outputs, 'row')} of {count(problem.length, 'element')}, {how}"
    reason += f", summed in {count(stage.groups, 'group')}" if row.sums else ""
    return Plan(
        "triton",
        (*before, launch, *after),
        results_of(problem, row),
        tuple(workspaces),
        guarantee,
        "groups",
        reason,
    )


def results_of(problem: Problem, row: Row) -> tuple[Buffer, ...]:
    """The results as buffers: of elements, of rows, of sums over rows."""
    size = problem.outputs * problem.length
    sizes = [(size, row.results), (problem.outputs, row.of_rows), (problem.length, row.sums)]
    made = [(n, d) for n, dtypes in sizes for d in dtypes]
    return tuple(Buffer(f"output{i}", (n,), d) for i, (n, d) in enumerate(made))


def _held(problem: Problem, row: Row, cluster: int) -> tuple[int, int] | None:
    """(columns of a program, programs that hold a row) of rows that are contiguous; None where they cannot be held."""
    program = narrowed(row.program, problem.length)
    plain = len(problem.reduced_dims) <= 1 and all(
        d.output == 1 and set(d.strides) <= {0, 1} for d in problem.reduced_dims
    )
    if (
        not plain
        or not program.algebra.commutative
        or program.algebra.index
        or fields_of(program) >= MANY_FIELDS
    ):
        return None
    most = _most(problem, row)
    meets = all(d.itemsize == 4 for d in partial_dtypes(program))
    forms = [
        (power_above(math.ceil(problem.length / parts)), parts)
        for parts in range(1, (cluster if meets else 1) + 1)
    ]
    forms = [form for form in forms if form[0] <= most and (form[1] == 1 or form[0] >= SHARE)]
    return min(forms, key=lambda form: form[0] * form[1] * (1 + SHARED * (form[1] - 1)), default=None)


def _most(problem: Problem, row: Row) -> int:
    """Elements of a row that a program holds at most: those of the rows behind it wait in shared memory."""
    return _elements(problem, row, 1, HELD_WORDS) * WARP * MAX_WARPS


def _each(problem: Problem, row: Row) -> int:
    """Elements of a tile that a thread has where rows are short: no more, so that there are more warps."""
    return _elements(problem, row, 2, WORDS)


def _elements(problem: Problem, row: Row, rows: int, registers: int) -> int:
    """For how many elements so many registers are enough, with so many rows of what each row has of its own."""
    words = sum(size * (rows if by_row else 1) for size, by_row in _operands(problem)) / 4
    words += sum(d.itemsize / 4 for d in row.sums) + len(row.results)
    return max(FEWEST, min(MOST, power_below(int(registers / max(1.0, words)))))


def _columns(problem: Problem, row: Row) -> int:
    """Columns of a program whose rows were folded before: a few vectors of each."""
    return min(power_above(problem.length), max(WARP, _each(problem, row) * WARP * MAX_WARPS // 4))


def _stage(
    problem: Problem, row: Row, columns: int, cluster: int, folds: bool, chip: Device, invariant: bool
) -> Groups:
    """The tile, and how many groups; with `invariant` the tile does not follow from the number of rows."""
    parts = max(1, math.ceil(problem.length / columns))
    rows = 1 if cluster > 1 else max(1, TILE // columns)
    rows = rows if invariant else min(rows, power_above(problem.outputs))
    warps = max(1, min(MAX_WARPS, rows * columns // (WARP * _each(problem, row))))
    warps = max(warps, min(4, rows * columns // WARP or 1))
    blocks = math.ceil(problem.outputs / rows)
    programs = max(1, WARPS_OF_AN_SM // warps)
    sms = int(chip.sms * RESIDENT) if cluster > 2 else chip.sms
    groups = max(1, min(blocks, sms * programs // parts))
    turn = rows * columns * sum(size for size, by_row in _operands(problem) if by_row)
    stages = max(1, min(STAGES, chip.shared_bytes // programs // max(1, turn)))
    return Groups(rows, columns, parts, groups, cluster, folds, warps, stages)


def _operands(problem: Problem) -> Iterator[tuple[int, bool]]:
    """Of each operand that varies along a row: the bytes of an element, and whether rows have their own."""
    for i, dtype in enumerate(problem.dtypes):
        if any(d.strides[i] for d in problem.reduced_dims):
            yield dtype.itemsize, any(d.strides[i] for d in problem.output_dims)


def _summing(
    problem: Problem,
    row: Row,
    stage: Groups,
    groups: Sequence[str],
    results: Sequence[str],
    device: Device,
    guarantee: str,
) -> tuple[tuple[Launch, ...], list[Buffer]]:
    """The launches that sum what the groups did, and what they need."""
    if not groups:
        return (), []
    plan = plan_fold(problem_of_groups(problem, row, stage.groups), summing(row.sums), device, guarantee)
    named = dict(zip(names("input", len(groups)), groups, strict=True))
    named |= dict(zip(names("output", len(results)), results, strict=True))
    named |= {buffer.name: f"{buffer.name}_of_sums" for buffer in plan.workspaces}
    steps = tuple(
        replace(
            step, kernel=f"sum_{step.kernel}", reads=tuple(named[n] for n in step.reads),
            writes=tuple(named[n] for n in step.writes), early=False, releases=False,
        )
        for step in plan.launched
    )  # fmt: skip
    return steps, [replace(buffer, name=named[buffer.name]) for buffer in plan.workspaces]
