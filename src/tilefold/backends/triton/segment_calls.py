"""Launches of ragged folds as kernel calls: arguments, constants, grid."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import torch

from tilefold.algebra.program import Program
from tilefold.backends.triton.call import Call, Pointer, launchable
from tilefold.backends.triton.emit import emit
from tilefold.backends.triton.records import RaggedColumns, RaggedRows
from tilefold.planner.folds import partial_dtypes
from tilefold.planner.plan import Launch, Plan
from tilefold.planner.sizes import VECTOR_BYTES, WARP
from tilefold.planner.stages.segments import Alone, Chunks, Columns, Pieces
from tilefold.problem.canonical import Problem


def segment_call(step: Launch, plan: Plan, problem: Problem, program: Program, interpret: bool) -> Call:
    """Arguments and constants of one launch of a ragged fold. Pointers stand as `Pointer` until launch."""
    offsets = Pointer(step.settings.offsets, step.settings.offsets.itemsize)
    of = {"segment_pieces": _of_pieces, "segment_columns": _of_columns, "segment_whole": _of_segments}
    if interpret and isinstance(step.settings, Chunks | Pieces) and step.settings.lead:
        # The interpreter is given tensors themselves, which begin at their first element.
        step = replace(
            step, settings=replace(step.settings, lead=0, **_UNALIGNED.get(type(step.settings), {}))
        )
    if _are_states(step):
        (inner,) = problem.dims
        problem = replace(problem, dims=(replace(inner, size=plan.shape_of(step.reads[0])[0]),))
    arguments, constants, grid = of.get(step.kernel, _of_chunks)(step, program, problem, offsets)
    index = program.lift.input_dtypes[-1] if program.algebra.index else torch.int32
    functions = emit(program, index=index, from_partials=_are_states(step), interpret=interpret)
    return Call(
        kernel=step.kernel,
        source=f"{functions}\n\n{_flagged(len(program.state))}",
        arguments=arguments,
        constants=tuple(constants.items()),
        grid=launchable(grid, problem.outputs, "segment_reduce", "fold"),
        num_warps=step.settings.num_warps,
        num_stages=step.settings.num_stages,
        dependent=step.early,
    )


_UNALIGNED: dict[type, dict[str, Any]] = {Chunks: {"whole_runs": False}}
Laid = tuple[tuple[Any, ...], dict[str, Any], int]  # arguments, constants, grid


def _of_chunks(step: Launch, program: Program, problem: Problem, offsets: Pointer) -> Laid:
    stage: Chunks = step.settings
    between, constants = _between(step, program, stage.chunks > 1)
    counts = (problem.length, stage.segments, stage.chunks, problem.outputs)
    lead = (stage.lead,) if step.kernel == "segment_runs" else ()
    inputs = _inputs(problem, stage.lead)
    arguments = (inputs, offsets, _results(program), *between, *_results_place(problem), *counts, *lead)
    constants |= _of_runs(stage) | {
        "STEPS": stage.steps,
        "DEPTH": stage.steps.bit_length() - 1,
        "TILES": stage.tiles,
        "WHOLE_RUNS": stage.whole_runs,
    }
    if step.kernel == "segment_runs":
        constants |= {
            "LANES_DEPTH": stage.lanes.bit_length() - 1,
            "LOOKED": stage.looked,
            "SHORT_RUNS": stage.short // stage.run,
        }
    return arguments, constants, problem.outputs * stage.chunks


def _of_columns(step: Launch, program: Program, problem: Problem, offsets: Pointer) -> Laid:
    stage: Columns = step.settings
    *outer, last, inner = problem.dims
    between, constants = _between(step, program, stage.chunks > 1)
    rows = replace(problem, dims=(*outer, inner))
    inputs = tuple(RaggedColumns(*x, last.strides[i]) for i, x in enumerate(_inputs(rows)))
    blocks = math.ceil(last.size / stage.columns)
    counts = (last.output, last.size, problem.length, stage.segments, stage.chunks, problem.outputs, blocks)
    arguments = (inputs, offsets, _results(program), *between, *_results_place(rows), *counts)
    constants |= {
        "COLUMNS": stage.columns, "LANES": stage.lanes, "STEPS": stage.steps, "CHUNK": stage.chunk, "LOOKED": WARP,
        "NARROW": stage.run > 0, "ACROSS": stage.across,
    }  # fmt: skip
    return arguments, constants, problem.outputs // last.size * blocks * stage.chunks


def _of_segments(step: Launch, program: Program, problem: Problem, offsets: Pointer) -> Laid:
    stage: Alone = step.settings
    counts = (problem.length, stage.segments)
    kept = (
        tuple(Pointer(d, 16) for d in partial_dtypes(program))
        if step.writes[-1].startswith("partial")
        else ()
    )
    arguments = (_inputs(problem), offsets, _results(program), kept, *_results_place(problem), *counts)
    return arguments, _of_runs(stage), problem.outputs * stage.segments


def _of_pieces(step: Launch, program: Program, problem: Problem, offsets: Pointer) -> Laid:
    stage: Pieces = step.settings
    partials = tuple(Pointer(d, 16) for d in partial_dtypes(program))
    blocks = math.ceil(problem.outputs / stage.outputs)
    counts = (problem.length, stage.chunks, problem.outputs, blocks, stage.chunk, stage.lead)
    closing = (Pointer(torch.int64, 16),)
    arguments = (offsets, partials, closing, _results(program), *_results_place(problem), *counts)
    constants = {
        "CHUNKS": stage.together, "OUTPUTS": stage.outputs, "LANES": stage.lanes, "TAILS": stage.tails,
        "TAILS_DEPTH": stage.tails.bit_length() - 1, "NEAR": stage.near, "WAIT": step.early,
    }  # fmt: skip
    return arguments, constants, blocks * math.ceil(stage.chunks / stage.together)


def _inputs(problem: Problem, lead: int = 0) -> tuple[RaggedRows, ...]:
    """A record an input: its pointer is `lead` elements ahead."""
    *outer, inner = problem.dims

    def pointer(dtype: torch.dtype, aligned: int) -> Pointer:
        return Pointer(dtype, VECTOR_BYTES, lead * dtype.itemsize) if lead else Pointer(dtype, aligned)

    return tuple(
        RaggedRows(pointer(dtype, problem.aligned[i]), tuple(d.strides[i] for d in outer), inner.strides[i])
        for i, dtype in enumerate(problem.dtypes)
    )


def _results(program: Program) -> tuple[Pointer, ...]:
    return tuple(Pointer(d, 16) for d in program.outputs)


def _results_place(problem: Problem) -> tuple[Any, ...]:
    """The results' steps along the outer dims and from segment to segment, and the outer dims' sizes."""
    *outer, inner = problem.dims
    return tuple(d.output for d in outer), inner.output, tuple(d.size for d in outer)


def _between(step: Launch, program: Program, split: bool) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """The buffers that a first launch leaves for a second one."""
    partials = tuple(Pointer(d, 16) for d in partial_dtypes(program)) if split else ()
    closing = (Pointer(torch.int64, 16),) if split else ()
    return (partials, closing), {"SPLIT": split, "RELEASE": step.releases}


def _of_runs(stage: Chunks | Alone) -> dict[str, Any]:
    return {"LANES": stage.lanes, "RUN": stage.run, "LEVELS": stage.run.bit_length() - 1}


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
        f"def UNFLAGGED(f, {', '.join(a)}):\n    return ({', '.join(a)},)\n\n\n"
        f"def COMBINE_SEGMENTS(fa, {', '.join(a)}, fb, {', '.join(b)}):\n"
        f"    c = COMBINE({', '.join([*a, *b])})\n    return (fa | fb, {chosen},)\n"
    )
