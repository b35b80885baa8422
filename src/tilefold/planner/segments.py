"""How a fold of segments runs: from problem, program and device to a plan. Pure, as `choose` is: no offset is read.

The steps of the sequence decide, in this order:

    segmented       which dims the problem has
    _stage          which form: chunks of rows if the segments' dim is nearest in memory, else columns; and the tile, by rule
    plan_segments   how a second launch combines the segments that cross chunks, if there are several chunks

Programs own equal numbers of elements, not segments, so that work is even whatever the segments' lengths. With
"batch_invariant" a program owns a segment: then its bits depend on its own elements alone, and few long segments keep few
programs busy.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch

from tilefold.algebra.program import Program
from tilefold.planner.device import Device
from tilefold.planner.folds import partial_dtypes
from tilefold.planner.odd_columns import columns_together, loaded_run
from tilefold.planner.plan import Buffer, Fill, Launch, Plan, count, names
from tilefold.planner.problem.canonical import Dim, Problem, alignment, by_stride, contiguous_strides, merged
from tilefold.planner.registers import MANY_FIELDS, fields_of
from tilefold.planner.sizes import VECTOR_BYTES, WARP, power_above, power_below
from tilefold.planner.stages.segments import Alone, Chunks, Columns, Pieces

# docs/experiments/selections.md#segments:
STEPS = 8  # vectors of a lane in a tile: 128 bytes of neighbours
WINDOW = 64  # elements of a lane in a tile, at most: shorter segments are folded after the others
HELD = 16  # registers of a lane for the states of a tile's runs, where those are kept
CHUNK = 1 << 14  # elements of a chunk, at most, where positions count
CHUNK_BYTES = 1 << 15  # of a chunk, at most, else
SHORT_MEAN = 192  # elements of a segment on average: below, a lane's window has at most WINDOW elements

# docs/experiments/tiles.md#odd:
ODD_LOADS = 2  # of a row by a thread, where rows begin between vectors
ODD_WORDS = 2  # of a thread's results there, where it combines pieces: it has TAILS of each

PROGRAMS = 32  # an SM has room for, a limit of the hardware
ROWS = 64  # of a chunk of columns at least (not measured)
# As HELD, before compute capability 9.0, where exchanges between lanes are calls that take registers too (not measured: so
# nothing spills).
HELD_BESIDE_CALLS = 8


def segmented(tensors: Sequence[torch.Tensor], dim: int, segments: int) -> Problem:
    """The problem of folding the segments of `dim` of tensors of one shape, into contiguous results."""
    shape = tensors[0].shape
    results = contiguous_strides([segments if d == dim else n for d, n in enumerate(shape)])
    strides = [t.stride() for t in tensors]
    outer = [
        Dim("map", n, tuple(s[d] for s in strides), results[d])
        for d, n in enumerate(shape)
        if d != dim and n != 1
    ]
    inner = Dim("segment", shape[dim], tuple(s[dim] for s in strides), results[dim], 1)
    return Problem(
        dims=(*merged(by_stride(outer)), inner),
        dtypes=tuple(t.dtype for t in tensors),
        aligned=tuple(alignment(t.data_ptr()) for t in tensors),
        residues=tuple(t.data_ptr() % 16 for t in tensors),
    )


def plan_segments(
    problem: Problem, program: Program, offsets: torch.Tensor, device: Device, guarantee: str
) -> Plan:
    """The steps of a ragged fold of tensors and, behind them, their offsets."""
    segments = offsets.shape[0] - 1
    inputs, results = names("input", len(problem.dtypes) + 1), names("output", len(program.outputs))
    outputs = tuple(
        Buffer(n, (problem.outputs * segments,), d) for n, d in zip(results, program.outputs, strict=True)
    )
    if problem.outputs * segments == 0 or problem.length == 0:
        return Plan("triton", (Fill(results),), outputs, (), guarantee, "nothing", "nothing to fold")
    times = f", {problem.outputs} times" if problem.outputs > 1 else ""
    reason = f"{count(segments, 'segment')} of {count(problem.length, 'element')}{times}"
    run = VECTOR_BYTES // max(d.itemsize for d in problem.dtypes)
    if guarantee == "batch_invariant":
        alone = Launch("segment_elements", Alone(WARP, run, segments, offsets.dtype), inputs, results)
        return Plan("triton", (alone,), outputs, (), guarantee, "whole segments", reason)
    stage = _stage(problem, program, run, offsets, device)
    if stage.chunks == 1:
        step = Launch("segment_elements", stage, inputs, results)
        return Plan("triton", (step,), outputs, (), guarantee, "one chunk", reason)
    dtypes = partial_dtypes(program)
    partials = names("partial", len(dtypes))
    between = (*partials, "closing")
    together = min(power_above(problem.outputs), 4 * WARP)
    if isinstance(stage, Columns) and stage.run:
        words = sum(math.ceil(dtype.itemsize / 4) for dtype in dtypes)
        together = min(together, power_below(ODD_WORDS * WARP // words))
    lanes = max(1, WARP // together)
    lead = stage.lead if isinstance(stage, Chunks) else 0
    pieces = Pieces(stage.chunks, stage.chunk, offsets.dtype, lead, lanes, together, lanes)
    steps = (
        Launch("segment_elements", stage, inputs, (*results, *between), releases=device.overlaps),
        Launch("segment_pieces", pieces, (inputs[-1], *between), results, early=device.overlaps),
    )
    sizes = (2, stage.chunks, problem.outputs)
    workspaces = [Buffer(n, sizes, d) for n, d in zip(partials, dtypes, strict=True)]
    workspaces.append(Buffer("closing", (stage.chunks,), torch.int64))
    return Plan("triton", steps, outputs, tuple(workspaces), guarantee, "chunks", reason)


def _stage(
    problem: Problem, program: Program, run: int, offsets: torch.Tensor, device: Device
) -> Chunks | Columns:
    """The first launch: rows where the segments' dim lies nearest in memory, else columns."""
    *outer, inner = problem.dims
    near = max((abs(s) for s in inner.strides), default=0)
    if outer and max(map(abs, outer[-1].strides)) < near:
        return _columns(problem, program, run, offsets, device)
    if program.algebra.index:
        return _chunks(problem, max(1, min(STEPS, WINDOW // run)), run, CHUNK, offsets, device)
    words = sum(math.ceil(dtype.itemsize / 4) for dtype in partial_dtypes(program))
    held = HELD if device.capability >= 90 else HELD_BESIDE_CALLS
    steps = power_above(held // words + 1) // 2
    if problem.length < SHORT_MEAN * (offsets.shape[0] - 1):
        steps = min(steps, WINDOW // run)
    chunk = CHUNK_BYTES * run // VECTOR_BYTES
    return _chunks(problem, max(2, steps), run, chunk, offsets, device, _lead(problem, run))


def _columns(problem: Problem, program: Program, run: int, offsets: torch.Tensor, device: Device) -> Columns:
    """A warp's vectors of neighbours, and as many rows as give the chip's programs an equal share."""
    last = problem.dims[-2]
    columns = min(power_above(last.size), WARP * run)
    allowed = _columns_run(problem)
    narrow = allowed if allowed < run else 0
    if narrow:
        most = WARP * narrow * (ODD_LOADS if fields_of(program) < MANY_FIELDS else 1)
        columns, run = columns_together(last.size, narrow, most), narrow
    lanes = max(1, min(WARP, WARP * run // columns))
    tile = lanes * STEPS
    blocks = math.ceil(last.size / columns) * (problem.outputs // last.size)
    share = power_above(problem.length * blocks // (PROGRAMS * device.sms))
    chunk = max(tile, ROWS, share)
    chunks, segments = math.ceil(problem.length / chunk), offsets.shape[0] - 1
    across = narrow > 0 and lanes > 1 and program.algebra.commutative
    return Columns(columns, lanes, STEPS, chunk, chunks, segments, offsets.dtype, narrow, across)


def _columns_run(problem: Problem) -> int:
    """`loaded_run` of inputs whose columns are neighbours."""
    *outer, last, inner = problem.dims
    operands = [
        (dtype.itemsize, aligned, [d.strides[i] for d in (*outer, inner)])
        for i, (dtype, aligned) in enumerate(zip(problem.dtypes, problem.aligned, strict=True))
        if last.strides[i] == 1
    ]
    return loaded_run(operands, last.size)


def _chunks(
    problem: Problem, steps: int, run: int, most: int, offsets: torch.Tensor, device: Device, lead: int = 0
) -> Chunks:
    """As many chunks as the chip has room for, in tiles; of more tiles where there are more, `most` elements a chunk."""
    tile = WARP * run * steps
    tiles = math.ceil((problem.length + lead) / tile)
    together = min(max(1, most // tile), power_above(tiles * problem.outputs // (PROGRAMS * device.sms)))
    chunks, segments = math.ceil(tiles / together), offsets.shape[0] - 1
    whole = lead > 0 or _aligned(problem, run)
    return Chunks(WARP, run, steps, together, chunks, segments, offsets.dtype, whole, lead)


def _neighbours(problem: Problem, run: int) -> bool:
    """Whether elements are neighbours in memory, and every row begins where the first one does in its vector."""
    *outer, inner = problem.dims
    return all(s == 1 for s in inner.strides) and all(s % run == 0 for d in outer for s in d.strides)


def _aligned(problem: Problem, run: int) -> bool:
    """Whether runs of every input are neighbours in memory that begin at multiples of their bytes."""
    sizes = (run * dtype.itemsize for dtype in problem.dtypes)
    return _neighbours(problem, run) and all(a % n == 0 for a, n in zip(problem.aligned, sizes, strict=True))


def _lead(problem: Problem, run: int) -> int:
    """Elements behind a whole vector that rows of inputs of one width begin at; 0 where they begin at different ones."""
    (width, *others) = {dtype.itemsize for dtype in problem.dtypes}
    leads = {residue // width for residue in problem.residues}
    alike = not others and len(leads) == 1 and all(r % width == 0 for r in problem.residues)
    return leads.pop() % run if alike and _neighbours(problem, run) else 0
