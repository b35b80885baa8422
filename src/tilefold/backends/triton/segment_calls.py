"""Launches of ragged folds as kernel calls: arguments, constants, grid."""

from __future__ import annotations

import math
from typing import Any

import torch

from tilefold.algebra.program import Program
from tilefold.backends.triton.call import Call, Pointer, launchable
from tilefold.backends.triton.emit import emit
from tilefold.planner.folds import partial_dtypes
from tilefold.planner.plan import Launch, Plan
from tilefold.planner.segments import Chunks, Pieces
from tilefold.problem import Problem

def segment_call(step: Launch, plan: Plan, problem: Problem, program: Program, interpret: bool) -> Call:
    """Arguments and constants of one launch of a ragged fold. Pointers stand as `Pointer` until launch."""
    *outer, inner = problem.dims
    y_place = (tuple(d.output for d in outer), inner.output, tuple(d.size for d in outer))
    offsets = Pointer(step.settings.offsets, step.settings.offsets.itemsize)
    if step.kernel == "segment_pieces":
        arguments, constants, grid = _of_pieces(step, program, problem, offsets, y_place)
    else:
        arguments, constants, grid = _of_rows(step, program, problem, offsets, y_place)
    index = program.lift.input_dtypes[-1] if program.algebra.index else torch.int32
    return Call(
        kernel=step.kernel,
        source=f"{emit(program, index=index, interpret=interpret)}\n\n{_flagged(len(program.state))}",
        arguments=arguments,
        constants=tuple(constants.items()),
        grid=launchable(grid, problem.outputs, "segment_reduce", "fold"),
        num_warps=step.settings.num_warps,
        num_stages=step.settings.num_stages,
        dependent=step.early,
    )


def _of_rows(
    step: Launch, program: Program, problem: Problem, offsets: Pointer, y_place: tuple[Any, ...]
) -> tuple[tuple[Any, ...], dict[str, Any], int]:
    *outer, inner = problem.dims
    stage = step.settings
    inputs = tuple(
        (Pointer(dtype, problem.aligned[i]), tuple(d.strides[i] for d in outer), inner.strides[i])
        for i, dtype in enumerate(problem.dtypes)
    )
    results = tuple(Pointer(d, 16) for d in program.outputs)
    constants = {"LANES": stage.lanes, "RUN": stage.run, "LEVELS": stage.run.bit_length() - 1}
    if not isinstance(stage, Chunks):
        arguments = (inputs, offsets, results, *y_place, inner.size, stage.segments)
        return arguments, constants, problem.outputs * stage.segments
    split = stage.chunks > 1
    partials = tuple(Pointer(d, 16) for d in partial_dtypes(program)) if split else ()
    closing = (Pointer(torch.int64, 16),) if split else ()
    counts = (inner.size, stage.segments, stage.chunks, problem.outputs)
    constants |= {
        "STEPS": stage.steps, "TILES": stage.tiles, "SPLIT": split, "RELEASE": step.releases,
    }  # fmt: skip
    return (inputs, offsets, results, partials, closing, *y_place, *counts), constants, problem.outputs * stage.chunks


def _of_pieces(
    step: Launch, program: Program, problem: Problem, offsets: Pointer, y_place: tuple[Any, ...]
) -> tuple[tuple[Any, ...], dict[str, Any], int]:
    stage: Pieces = step.settings
    partials = tuple(Pointer(d, 16) for d in partial_dtypes(program))
    results = tuple(Pointer(d, 16) for d in program.outputs)
    counts = (problem.length, stage.chunks, problem.outputs, stage.chunk)
    arguments = (offsets, partials, (Pointer(torch.int64, 16),), results, *y_place, *counts)
    return arguments, {"LANES": stage.lanes, "WAIT": step.early}, math.prod((problem.outputs, stage.chunks))


def _flagged(fields: int) -> str:
    """Functions of states with a flag ahead, which says that a segment begins in what they stand for.

    IN_TURN: two states of every lane, one behind the other. Made of fixed names and of numbers.
    """
    a, b = [f"a{i}" for i in range(fields)], [f"b{i}" for i in range(fields)]
    chosen = ", ".join(f"tl.where(fb != 0, {y}, c[{i}])" for i, y in enumerate(b))
    sides = [(x, y) for x, y in zip(["fa", *a], ["fb", *b], strict=True)]
    turns = ", ".join(f"tl.reshape(tl.join({x}, {y}), (2 * {x}.shape[0],))" for x, y in sides)
    return (
        f"def IN_TURN(fa, {', '.join(a)}, fb, {', '.join(b)}):\n    return ({turns},)\n\n\n"
        f"def UNFLAGGED(f, {', '.join(a)}):\n    return ({', '.join(a)},)\n\n\n"
        f"def COMBINE_SEGMENTS(fa, {', '.join(a)}, fb, {', '.join(b)}):\n"
        f"    c = COMBINE({', '.join([*a, *b])})\n    return (fa | fb, {chosen},)\n"
    )
