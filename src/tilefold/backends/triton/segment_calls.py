"""Launches of ragged folds as kernel calls: arguments, constants, grid."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import torch

from tilefold.algebra.program import Program
from tilefold.backends.triton.call import Call, Pointer, launchable
from tilefold.backends.triton.emit import emit
from tilefold.backends.triton.records import (
    Left,
    Lines,
    SegmentResults,
    SegmentSizes,
    SegmentTile,
)
from tilefold.planner.folds import partial_dtypes
from tilefold.planner.plan import Launch, Plan
from tilefold.planner.problem.canonical import Dim, Problem
from tilefold.planner.sizes import VECTOR_BYTES, WARP
from tilefold.planner.stages.segments import Alone, Chunks, Columns, Pieces

Stage = Chunks | Columns | Alone | Pieces


def segment_call(step: Launch, plan: Plan, problem: Problem, program: Program, interpret: bool) -> Call:
    """Arguments and constants of one launch of a ragged fold. Pointers stand as `Pointer` until launch."""
    stage = step.settings
    # The interpreter is given tensors themselves, which begin at their first element.
    if interpret and isinstance(stage, Chunks):
        stage = replace(stage, lead=0, whole_runs=stage.whole_runs and not stage.lead)
    elif interpret and isinstance(stage, Pieces):
        stage = replace(stage, lead=0)
    if _are_states(step):
        (inner,) = problem.dims
        problem = replace(problem, dims=(replace(inner, size=plan.shape_of(step.reads[0])[0]),))
    arguments, constants, programs = _laid(step, stage, problem, program)
    index = program.lift.input_dtypes[-1] if program.algebra.index else torch.int32
    functions = emit(program, index=index, from_partials=_are_states(step), interpret=interpret)
    return Call(
        kernel=step.kernel,
        source=f"{functions}\n\n{_flagged(len(program.state))}",
        arguments=arguments,
        constants=tuple(constants.items()),
        grid=launchable(programs, problem.outputs, "segment_reduce", "fold"),
        num_warps=stage.num_warps,
        num_stages=stage.num_stages,
        dependent=step.early,
    )


def _laid(
    step: Launch, stage: Stage, problem: Problem, program: Program
) -> tuple[tuple[Any, ...], dict[str, Any], int]:
    """Arguments, constants, and how many programs there are."""
    *outer, inner = problem.dims
    last = outer.pop() if isinstance(stage, Columns) else Dim("map", 1, (0,) * len(problem.dtypes))
    lead = stage.lead if isinstance(stage, Chunks | Pieces) else 0
    sizes = SegmentSizes(
        outer=tuple(d.size for d in outer),
        lines=last.size,
        length=problem.length,
        segments=0 if isinstance(stage, Pieces) else stage.segments,
        chunks=stage.segments if isinstance(stage, Alone) else stage.chunks,
        outputs=problem.outputs,
        blocks=math.ceil(last.size / stage.columns) if isinstance(stage, Columns) else 1,
        lead=lead,
    )
    offsets = Pointer(stage.offsets, stage.offsets.itemsize)
    states = tuple(Pointer(d, 16) for d in partial_dtypes(program))
    y = SegmentResults(
        tuple(Pointer(d, 16) for d in program.outputs),
        tuple(d.output for d in outer),
        last.output,
        inner.output,
    )
    if isinstance(stage, Pieces):
        sizes = sizes._replace(blocks=math.ceil(problem.outputs / stage.outputs))
        arguments = (offsets, Left(states, (Pointer(torch.int64, 16),)), y, sizes)
        constants: dict[str, Any] = {
            "CHUNKS": stage.together, "OUTPUTS": stage.outputs, "CHUNK": stage.chunk, "LANES": stage.lanes,
            "TAILS": stage.tails, "TAILS_DEPTH": stage.tails.bit_length() - 1, "NEAR": stage.near, "WAIT": step.early,
        }  # fmt: skip
        return arguments, constants, sizes.blocks * math.ceil(stage.chunks / stage.together)
    aligned = [VECTOR_BYTES if lead else a for a in problem.aligned]
    inputs = tuple(
        Lines(
            Pointer(dtype, aligned[i], lead * dtype.itemsize),
            tuple(d.strides[i] for d in outer),
            last.strides[i],
            inner.strides[i],
        )
        for i, dtype in enumerate(problem.dtypes)
    )
    split = not isinstance(stage, Alone) and stage.chunks > 1
    kept = split or step.writes[-1].startswith("partial")
    left = Left(states * kept, (Pointer(torch.int64, 16),) * split)
    constants = {"TILE": _tile(stage, program), "SPLIT": split, "RELEASE": step.releases}
    programs = problem.outputs // last.size * sizes.blocks * sizes.chunks
    return (inputs, offsets, y, left, sizes), constants, programs


def _tile(stage: Chunks | Columns | Alone, program: Program) -> SegmentTile:
    depth = stage.lanes.bit_length() - 1
    if isinstance(stage, Columns):
        return SegmentTile(
            "columns", stage.lanes, depth, CHUNK=stage.chunk, STEPS=stage.steps, LOOKED=WARP, COLUMNS=stage.columns,
            NARROW=stage.run > 0, ACROSS=stage.across,
        )  # fmt: skip
    levels = stage.run.bit_length() - 1
    if isinstance(stage, Alone):
        return SegmentTile("whole", stage.lanes, depth, RUN=stage.run, LEVELS=levels)
    # Positions are counted from a segment's begin, which is not known yet where runs are folded when they are loaded.
    form = "windows" if program.algebra.index else "runs"
    return SegmentTile(
        form, stage.lanes, depth, stage.chunk, stage.run, levels, stage.steps, stage.steps.bit_length() - 1, stage.whole_runs,
        stage.looked, stage.short // stage.run,
    )  # fmt: skip


def _are_states(step: Launch) -> bool:
    """Whether a launch folds what an earlier one left."""
    return step.reads[0].startswith("partial")


def _flagged(fields: int) -> str:
    """Functions of states with a flag ahead, which says that a segment begins in what they stand for.

    IN_TURN: two states of every lane, one behind the other. Made of fixed names and of numbers.
    """
    a, b = [f"a{i}" for i in range(fields)], [f"b{i}" for i in range(fields)]
    chosen = ", ".join(f"tl.where(fb != 0, {y}, c[{i}])" for i, y in enumerate(b))
    sides = [(x, y) for x, y in zip(["fa", *a], ["fb", *b], strict=True)]
    turns = ", ".join(f"tl.reshape(tl.join({x}, {y}), (2 * {x}.shape[0],))" for x, y in sides)
    return (
        f"def JOINED({', '.join([*a, *b])}):\n"
        f"    return ({', '.join(f'tl.join({x}, {y})' for x, y in zip(a, b, strict=True))},)\n\n\n"
        f"def IN_TURN(fa, {', '.join(a)}, fb, {', '.join(b)}):\n    return ({turns},)\n\n\n"
        f"def COMBINE_SEGMENTS(fa, {', '.join(a)}, fb, {', '.join(b)}):\n"
        f"    c = COMBINE({', '.join([*a, *b])})\n    return (fa | fb, {chosen},)\n"
    )
