"""How a fold runs on a CPU: tiles of neighbouring elements that stay in cache, in a loop of torch's operations.

If results are few, a long fold is cut into parts first. Each part is a result of its own; their states are combined at the
end. The monoid decides how the tiles of a result are combined:

    lanes      every element of a tile is a lane; the next tile is combined with it; the lanes are combined at the end
    blocks     a whole tile becomes one state a result: by `absorb`, or by torch's reductions where fields are independent
    in order   the neighbours of a tile are combined in a tree, and so are the tiles: for monoids in which order matters

The order in which elements are combined does not depend on the number of threads. With "batch_invariant" only lanes and order
are used. The tiles' lengths along reduced dims and the number of parts then follow from the reduced dims' sizes alone.
"""

from __future__ import annotations

import itertools
import math
import operator
from collections.abc import Sequence
from dataclasses import replace

import torch

from tilefold.algebra.evaluate import stored
from tilefold.algebra.program import Program
from tilefold.algebra.proofs.derive import by_field
from tilefold.planner.folds import narrowed
from tilefold.planner.plan import Buffer, Fill, Launch, Plan, names
from tilefold.planner.problem.canonical import Dim, Problem, canonical
from tilefold.planner.sizes import power_above, power_below
from tilefold.planner.stages.cpu import FEW, CombineParts, Geometry, Tiles, in_parts

# No record of other sizes: docs/experiments/cpu.md#folds has the times with these.
# Elements of a thread's share. Few threads take several of them at once: tiles that the L3 holds, and fewer operations.
LANES = 1 << 15
BLOCK = 1 << 16  # of a block that is absorbed at once: fewer operations on each than on lanes
ABSORBED = 4  # elements of a result, at least, for absorbing to pay
RUN = 256  # neighbours in memory that are read together
STEPS = 16  # at least, in a long fold: combining lanes costs as much as a step of all lanes
ORDERED_ALONE = 1 << 16  # neighbours combined in one tile, where it must not matter what else is folded
PARTS = 16  # at most, of one result: enough for threads to share
PART = 1 << 18  # elements, at least
LEFT = 4  # a dim is cut into parts if what is left at its end is at most the fourth of it


def cpu_problem(
    tensors: Sequence[torch.Tensor], program: Program, dims: Sequence[int], guarantee: str
) -> Problem:
    """The problem of folding `dims` of tensors of one shape.

    With "batch_invariant" the reduced dims stay as the caller has them, because which of them one stride can walk depends on
    what else there is.
    """
    alone = guarantee == "batch_invariant"
    problem = canonical(tensors, tuple(dims), ordered=alone or not program.algebra.commutative)
    return replace(problem, dims=problem.output_dims + _apart(tensors, dims)) if alone else problem


def _apart(tensors: Sequence[torch.Tensor], dims: Sequence[int]) -> tuple[Dim, ...]:
    shape = tensors[0].shape
    steps = itertools.accumulate([shape[d] for d in dims[:0:-1]], operator.mul, initial=1)
    apart = [
        Dim("reduce", shape[d], tuple(t.stride(d) for t in tensors), position=step)
        for d, step in zip(reversed(dims), steps, strict=bool(dims))
        if shape[d] != 1
    ]
    return tuple(reversed(apart))


def cpu_plan(problem: Problem, program: Program, guarantee: str, threads: int) -> Plan:
    """The steps of a fold by torch's operations on so many threads."""
    inputs, results = names("input", len(problem.dtypes)), names("output", len(program.outputs))
    outputs = tuple(Buffer(n, (problem.outputs,), d) for n, d in zip(results, program.outputs, strict=True))
    if problem.length == 0 or problem.outputs == 0:
        return Plan("cpu", (Fill(results),), outputs, (), guarantee, "nothing", "nothing to fold")
    alone = guarantee == "batch_invariant"
    share = _form(problem, program, alone)[1]
    parts = _parts(problem, program, share, alone)
    if parts == 1:
        steps = (Launch("fold_tiles", tiles_of(problem, program, alone, threads), inputs, results),)
        return Plan("cpu", steps, outputs, (), guarantee, "whole")
    program = narrowed(program, problem.length)
    launches, workspaces = [], list[Buffer]()
    for kind, part in zip(
        ("partial", "rest"), in_parts(problem, parts, program.algebra.commutative), strict=True
    ):
        if part is not None:
            states = names(kind, len(program.state))
            sizes = (parts if kind == "partial" else 1, problem.outputs)
            workspaces += [Buffer(n, sizes, stored(d)) for n, d in zip(states, program.state, strict=True)]
            tiles = tiles_of(part, program, alone, threads)
            launches.append(Launch(f"fold_tiles_of_{kind}s", tiles, inputs, states))
    between = tuple(buffer.name for buffer in workspaces)
    launches.append(Launch("combine_parts", CombineParts(parts + (len(launches) > 1)), between, results))
    return Plan("cpu", tuple(launches), outputs, tuple(workspaces), guarantee, "split")


def absorbs(program: Program) -> bool:
    """Whether a whole block becomes a state by torch's own reductions: by `absorb`, or since fields are independent."""
    return program.absorb is not None or by_field(program.combine.graph) is not None


def tiles_of(problem: Problem, program: Program, alone: bool, threads: int) -> Tiles:
    """The loop over one problem, in one part."""
    form, share = _form(problem, program, alone)
    few = threads if 1 < threads <= FEW else 1
    together = PARTS // few if threads <= FEW else max(PARTS, power_above(threads))
    geometry = Geometry(problem)
    tile = geometry.grown(share, geometry.near(reduced=False), together)
    return Tiles(form, tuple(tile), geometry.order, few)


def _parts(problem: Problem, program: Program, share: Sequence[int], alone: bool) -> int:
    """A power of two, which threads can share evenly. With `alone` it follows from the reduced dims alone."""
    reduced = [dim.size for dim in problem.reduced_dims]
    cut = max(reduced, default=1) if program.algebra.commutative else (reduced or [1])[0]
    outer = math.prod(math.ceil(d.size / n) for d, n in zip(problem.output_dims, share, strict=False))
    most = PARTS if alone else PARTS // outer
    return power_below(max(1, min(most, problem.length // PART, cut // LEFT)))


def _form(problem: Problem, program: Program, alone: bool) -> tuple[str, list[int]]:
    """The operation on the tiles of a result, and a thread's share of a tile."""
    geometry, length = Geometry(problem), problem.length
    lanes = max(RUN, length // STEPS)
    if not program.algebra.commutative:
        return "in order", _tile_in_order(geometry, ORDERED_ALONE if alone else LANES)
    if alone:
        return "lanes", _tile_in_order(geometry, min(LANES, lanes))
    if length >= ABSORBED and absorbs(program):
        return "blocks", _tile_of_blocks(geometry)
    return "lanes", _tile_of_lanes(geometry, lanes)


def _tile_of_lanes(geometry: Geometry, lanes: int) -> list[int]:
    """A run of neighbours in memory; then many results; then lanes of each, but few enough to take turns."""
    first = geometry.near(reduced=True) if geometry.short else geometry.order[::-1]
    tile = geometry.grown(geometry.ones, first, RUN)
    tile = geometry.grown(tile, geometry.near(reduced=False), LANES // math.prod(tile))
    more = min(LANES // math.prod(tile), lanes // math.prod(tile[geometry.outputs :]))
    return geometry.grown(tile, geometry.near(reduced=True), more)


def _tile_of_blocks(geometry: Geometry) -> list[int]:
    """A run of neighbours in memory; then as much of each result as there is room for; then results."""
    tile = geometry.grown(geometry.ones, geometry.order[::-1], RUN)
    tile = geometry.grown(tile, geometry.near(reduced=True), BLOCK // math.prod(tile))
    return geometry.grown(tile, geometry.near(reduced=False), BLOCK // math.prod(tile))


def _tile_in_order(geometry: Geometry, reduced: int) -> list[int]:
    """Neighbours in the fold's order, their number given by the reduced dims alone; then results."""
    inner = range(len(geometry.dims) - 1, geometry.outputs - 1, -1)
    tile = geometry.grown(geometry.ones, inner, reduced)
    near = RUN if geometry.order and geometry.order[-1] < geometry.outputs else 1
    return geometry.grown(tile, geometry.near(reduced=False), max(near, LANES // math.prod(tile)))
