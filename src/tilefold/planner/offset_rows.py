"""How many threads and programs hold a row that begins between two vectors, in shared memory, where any offset can be read.

Measured (docs/experiments/maps.md#odd-rows): a thread reads words of extra tensors beside their elements, so threads exchange
nothing, and no warp waits for another.
"""

from __future__ import annotations

import math

from tilefold.algebra.program import Program
from tilefold.planner.device import PORTABLE, Device
from tilefold.planner.maps import rows_of
from tilefold.planner.problem.canonical import Problem
from tilefold.planner.reading import reading_of
from tilefold.planner.ring_forms import PROGRAM_BYTES
from tilefold.planner.rings import are_copied, vectors_of
from tilefold.planner.sizes import VECTOR_BYTES, WARP
from tilefold.planner.stages.maps import Dtypes, extras_of_rows
from tilefold.planner.stages.rows import OffsetRows, span

WORD_BYTES = 4  # of extra tensors' elements of 16 bits that a thread reads together, by definition two

# docs/experiments/maps.md#odd-rows:
WIDE_BYTES = 28 << 10  # of a row of elements of more than 16 bits, at least: blocks are faster of fewer
ALONE_BYTES, ALONE_LANES = 44 << 10, 256  # of a row that one program holds, at most; its threads
SHARE_BYTES, SHARED_LANES = 26 << 10, 128  # of a longer row, each program's at most: small ones wait less
PROGRAMS_AN_SM = 4  # at least: where rows are few, more programs share each
SPAN_BYTES = range(5000, 8 << 10)  # of rows of 16 bits beside two extra tensors that are no spans
SPAN_LANES, SPAN_UNROLL = 64, 4
MOST_LANES = 512
UNROLLS = (8, 4)  # the first that leaves no program without a last turn
REGISTERS = 64  # of a thread: so an SM holds 1024

LEAST_BYTES = 8 << 10  # of a row, each program's at least (not measured)

# Of rows that begin at other places between two vectors than their results, or other inputs
# (docs/experiments/maps.md#few-rows): bytes of a row at least, and of what a thread would load at once at most; and threads
# of a program by the bytes it has.
UNALIKE_BYTES, UNALIKE_LOAD = 4 << 10, 4
UNALIKE_LANES = {8 << 10: 64, 26 << 10: 128, 64 << 10: 256}


def small_offset_stage(
    problem: Problem, program: Program, results: Dtypes, device: Device
) -> OffsetRows | None:
    """Odd rows of one input that spans would hold, beside several extra tensors; None where spans are as fast."""
    size, extras = problem.dtypes[0].itemsize, len(problem.dtypes) - 1
    if device.cluster == 1 or program.algebra.inputs > 1 or extras < 2 or size * 2 > WORD_BYTES:
        return None
    if problem.length * size not in SPAN_BYTES or not _is_odd(problem, program, results):
        return None
    return offset_rows(problem, program, results, SPAN_LANES, SPAN_UNROLL, 1)


def offset_stage(
    problem: Problem, program: Program, results: Dtypes, device: Device, last: bool = False
) -> OffsetRows | None:
    """Odd rows of one input; None where other plans are as fast, or there is no such form.

    Last: neither rings nor blocks hold a row, only registers. Whether there is a form may depend on the number of rows, as
    with rings. So plans of "batch_invariant" have none.
    """
    inputs = program.algebra.inputs
    size, extras = problem.dtypes[0].itemsize, len(problem.dtypes) - inputs
    if device.cluster == 1 or inputs > 1 or not _is_odd(problem, program, results):
        return None
    held, wave = problem.length * size, math.ceil(PROGRAMS_AN_SM * device.sms / problem.outputs)
    base = 1 if held <= ALONE_BYTES else math.ceil(held / SHARE_BYTES)
    if not (last and extras and base > 1) and _others_as_fast(size, held, extras, base, wave):
        return None
    lanes = ALONE_LANES if base == 1 else SHARED_LANES
    splits = max(base, min(wave, held // LEAST_BYTES, PORTABLE))
    if splits > device.cluster:
        return None
    for unroll in UNROLLS:
        stage = offset_rows(problem, program, results, lanes, unroll, splits)
        if stage is not None:
            return stage if stage.shared_bytes <= device.shared_bytes - PROGRAM_BYTES else None
    return None


def _is_odd(problem: Problem, program: Program, results: Dtypes) -> bool:
    """Whether rows begin between two vectors, and their results at the same places."""
    rows = rows_of(problem, program.algebra.inputs)
    found = vectors_of(problem, program, results, reading_of(rows), rows)
    return found is not None and found[1] > 1


def _others_as_fast(size: int, held: int, extras: int, base: int, wave: int) -> bool:
    """Whether rings or blocks are as fast: rows of `held` bytes need `base` programs each, `wave` to fill the SMs."""
    if size * 2 > WORD_BYTES:
        return extras < 2 or held < WIDE_BYTES
    return (extras == 0 and wave > 1) or (extras == 1 and base > 1)


def unalike_stage(
    problem: Problem, program: Program, results: Dtypes, device: Device, last: bool = False
) -> OffsetRows | None:
    """Rows that begin at other places between two vectors than their results do, or than other inputs' rows.

    Other plans would load or store them one element at a time: None where that is as fast, but for the last of all plans,
    or where a cluster's shared memory is too small.
    """
    rows = rows_of(problem, program.algebra.inputs)
    reading, size = reading_of(rows), rows.dtypes[0].itemsize
    if device.cluster == 1 or not are_copied(problem, program, results, reading, rows):
        return None
    if vectors_of(problem, program, results, reading, rows) is not None:
        return None
    inputs = len(rows.dtypes)
    held = problem.length * size * inputs
    full = all(d.output * size % VECTOR_BYTES == 0 for d in problem.output_dims)
    vectors = full and reading.vector * size > UNALIKE_LOAD
    if not last and (size > WORD_BYTES or held < UNALIKE_BYTES or vectors):
        return None
    whole = offset_rows(problem, program, results, WARP, 1, 1)
    if whole is None:
        return None
    room, wave = device.shared_bytes - PROGRAM_BYTES, math.ceil(PROGRAMS_AN_SM * device.sms / problem.outputs)
    base = 1 if whole.shared_bytes <= ALONE_BYTES else math.ceil(whole.shared_bytes / SHARE_BYTES)
    splits = min(device.cluster, max(base, min(wave, held // LEAST_BYTES, PORTABLE)))
    share = whole.shared_bytes / splits
    lanes = next((n for most, n in UNALIKE_LANES.items() if share <= most), MOST_LANES)
    forms = ((unroll, n) for n in range(splits, device.cluster + 1) for unroll in UNROLLS)
    stages = (offset_rows(problem, program, results, lanes, *form) for form in forms)
    stage = next((s for s in stages if s is not None), None)
    return stage if stage is not None and stage.shared_bytes <= room else None


def offset_rows(
    problem: Problem, program: Program, results: Dtypes, lanes: int, unroll: int, splits: int
) -> OffsetRows | None:
    """The stage of so many threads and programs a row; None where there is no such form."""
    rows = rows_of(problem, program.algebra.inputs)
    if not are_copied(problem, program, results, reading_of(rows), rows):
        return None
    if extras_of_rows(problem, len(rows.dtypes)):
        return None
    sizes = [d.itemsize for d in rows.dtypes]
    full, run = VECTOR_BYTES // sizes[0], max(1, WORD_BYTES // sizes[0])
    share = math.ceil(problem.length / splits / full) * full
    turn = lanes * run * unroll
    turns = math.ceil(share / turn)
    if problem.length - (splits - 1) * share <= (turns - 1) * turn:
        return None  # the last program would end before its last turn
    each = span(share, sizes[0])
    areas, taken = tuple(each * i for i in range(len(sizes))), list[int]()
    total = each * len(sizes)
    for i in range(len(results)):
        alike = i < len(sizes) and _begins_alike(problem, i, full)
        taken.append(areas[i] if alike else total)
        total += 0 if alike else each
    return OffsetRows(lanes, run, unroll, turns, splits, share, areas, tuple(taken), total, REGISTERS)


def _begins_alike(problem: Problem, i: int, full: int) -> bool:
    """Whether an input's rows begin at the same places between two vectors, of so many elements, as results do."""
    steps = all((d.strides[i] - d.output) % full == 0 for d in problem.output_dims)
    return steps and problem.aligned[i] % VECTOR_BYTES == 0
