"""Whether a lane's elements stay in one thread and in order, and what follows: absorbed blocks, positions, lines kept."""

from __future__ import annotations

from tilefold.algebra.program import Program
from tilefold.planner.plan import Stage
from tilefold.planner.problem.canonical import Problem
from tilefold.planner.reading import Reading
from tilefold.planner.sizes import EVICT_FIRST_BELOW, WARP

# Bytes of a line: where a warp's load takes less of it, the rest is read by later ones
# (docs/experiments/folds.md#ordered).
REREAD_BELOW = 64


def kept_in_threads(stage: Stage, reading: Reading, program: Program) -> Stage:
    """The stage with `absorb`, `in_order` and `prefetch` as its tile allows them. Ordered stages are complete as they are."""
    if stage.ordered:
        return stage
    if stage.gathered:  # a thread has whole rows
        return stage.but(absorb=program.absorb is not None, in_order=True)
    together = stage.block_outputs * stage.lanes
    # Triton gives a thread neighbours along the contiguous axis: the run, or else lanes or results.
    neighbours = 1 if reading.by_rows and (stage.run >= reading.vector or stage.align > 1) else reading.vector
    in_order = together >= stage.num_warps * WARP * neighbours
    in_order = in_order and (not reading.by_rows or stage.run * stage.lanes > 1 or stage.unroll == 1)
    prefetch = stage.prefetch and reading.length >= 3 * stage.step
    # A block must stay in one thread to be absorbed.
    absorb = program.absorb is not None and in_order
    if (absorb, in_order, prefetch) == (stage.absorb, stage.in_order, stage.prefetch):
        return stage
    return stage.but(absorb=absorb, in_order=in_order, prefetch=prefetch)


def as_first_launch(stage: Stage, problem: Problem, program: Program) -> Stage:
    """A settled stage as the first launch of this problem: positions in order only where they surely are, and its policy."""
    stage = stage if stage.gathered else in_threads(stage, problem, program)
    in_order = stage.gathered or keeps_positions(problem, stage, program)
    written = problem.outputs * sum(dtype.itemsize for dtype in program.outputs)
    evict_first = stage.evict_first and problem.bytes_read + written <= EVICT_FIRST_BELOW
    evict_first = evict_first and not (
        stage.ordered and not stage.gathered and _rereads_lines(stage, problem)
    )
    in_order = stage.in_order and in_order
    if (in_order, evict_first) == (stage.in_order, stage.evict_first):
        return stage
    return stage.but(in_order=in_order, evict_first=evict_first)


def _rereads_lines(stage: Stage, problem: Problem) -> bool:
    """Whether an ordered tile's lines must stay in an SM's cache: where a load of a warp takes little of each, the rest is
    read by later ones, and several inputs are more lines.

    Of one input in larger pieces the policy of the L2 is worth more (docs/experiments/folds.md#ordered).
    """
    dtypes = problem.dtypes
    rows = not problem.reduced_dims or max(problem.reduced_dims[-1].strides[: len(dtypes)]) <= 1
    piece = stage.run * stage.lanes if rows else stage.block_outputs
    return (rows and len(dtypes) > 1) or any(piece * dtype.itemsize < REREAD_BELOW for dtype in dtypes)


def in_threads(stage: Stage, problem: Problem, program: Program) -> Stage:
    """The stage without absorbed blocks where a block may be several threads' and its first element is asked for.

    Each thread would take its own for the first one. A block's sum and extremes are the same to all.
    """
    if not stage.absorb or not asks_for_first(program) or keeps_runs(problem, stage):
        return stage
    return stage.but(absorb=False)


def asks_for_first(program: Program) -> bool:
    """Whether a block's first element is asked for where it is absorbed."""
    return program.absorb is not None and any(n.op == "block_first" for n in program.absorb.graph.nodes)


def keeps_positions(problem: Problem, stage: Stage, program: Program) -> bool:
    """Whether a lane's elements surely stay in one thread, in the order of their positions; or nothing asks for these.

    Loads say how elements lie on threads: a fold that uses none has none.
    """
    if not program.algebra.index:
        return True
    return problem.positions_ascend and keeps_runs(problem, stage) and _reads_elements(program)


def _reads_elements(program: Program) -> bool:
    """Whether a result depends on an element, and not on positions alone."""
    fields = len(program.state)
    needed = {f for o in range(len(program.outputs)) for f in program.project.graph.reads(o)}
    while more := {r % fields for f in needed for r in program.combine.graph.reads(f)} - needed:
        needed |= more
    elements = range(program.algebra.inputs)
    return any(program.lift.graph.reads(f) & set(elements) for f in needed)


def keeps_runs(problem: Problem, stage: Stage) -> bool:
    """Whether a lane's elements surely stay in one thread.

    Triton shares elements among threads along what it knows to be contiguous: a run that crosses rows is not, and inputs
    that are contiguous in different ways are shared in different ways.
    """
    reduced, inputs = problem.reduced_dims, range(len(problem.dtypes))
    alike = {
        (problem.dtypes[i].itemsize, problem.aligned[i], *(d.strides[i] for d in problem.dims))
        for i in inputs
    }
    whole = len(reduced) < 2 or reduced[-1].size % stage.run == 0
    runs = problem.length == 1 or (whole and any(reduced[-1].strides))
    return len(alike) == 1 and runs
