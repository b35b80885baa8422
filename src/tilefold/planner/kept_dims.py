"""How a fold keeps some reduced dims apart in its first launch, as if they were results; the second launch folds them.

A launch walks one dim, or several with divisions, and its vectors follow one dim's neighbours. So reduced dims that do not
merge, widths that no vector divides and results in another order than memory are read slowly in one launch. A first launch
that leaves states may fold any other problem of the same elements:

    x[8, 11, 516976], dims 0, 2     rows of 516976, 88 of them; then 8 states a result
    x[5040, 64, 199], dims 0, 2     columns, 12736 side by side; then 199 states a result
    x[40000, 4099], dim 0           `together` 8: rows r, r + 1 ... r + 7 are one row of 32792 columns, which vectors divide;
                                    then 8 states a result

Where `together` does not divide the rows, the last row has fewer columns (`Problem.ragged`). `planner.dims_to_keep`
says which are tried.
"""

from __future__ import annotations

import math
from dataclasses import replace

import torch

from tilefold.planner.plan import KeptDims
from tilefold.planner.problem.canonical import Dim, Problem, by_stride, merged, residue_classes

Places = tuple[tuple[int, ...], tuple[int, ...]]
NO_PLACES: Places = ((), ())


def parts_of(problem: Problem, kept_dims: KeptDims) -> tuple[list[Dim], list[Dim]]:
    """The dims of the first launch: the dims of its states, and the dims that it folds."""
    reduced = list(enumerate(problem.reduced_dims))
    kept = [d for n, d in reduced if n in kept_dims.dims]
    folded = [d for n, d in reduced if n not in kept_dims.dims]
    if kept_dims.together > 1:
        folded[-1], classes = residue_classes(folded[-1], kept_dims.together)
        kept.append(classes)
    return [*problem.output_dims, *kept], folded


def states_count(problem: Problem, kept_dims: KeptDims | None) -> int:
    """How many states each split of the first launch leaves."""
    if kept_dims is None:
        return problem.outputs
    return math.prod(d.size for d in parts_of(problem, kept_dims)[0])


def _laid_out(dims: list[Dim]) -> list[tuple[Dim, int]]:
    """Dims in the order of memory, each with its step among states."""
    found, step = [], 1
    for dim in sorted(dims, key=lambda d: max(map(abs, d.strides))):
        found.append((dim, step))
        step *= dim.size
    return found[::-1]


def first_problem(problem: Problem, kept_dims: KeptDims, index: bool) -> Problem:
    """The problem of the first launch, whose results are states in the order of memory. `index`: positions are seen."""
    outputs, reduced = parts_of(problem, kept_dims)
    outer = [replace(d, role="map", output=step, position=0) for d, step in _laid_out(outputs)]
    dims, places = merged(outer), NO_PLACES
    if index:
        dims, places = _with_places([d for d, _ in _laid_out(outputs)], outer, dims)
    ragged = 0
    if kept_dims.together > 1:
        dim = [d for n, d in enumerate(problem.reduced_dims) if n not in kept_dims.dims][-1]
        ragged = dim.size % kept_dims.together * dim.strides[0]
    return replace(problem, dims=(*dims, *merged(reduced)), ragged=ragged, places=places)


def _with_places(
    outputs: list[Dim], outer: list[Dim], whole: tuple[Dim, ...]
) -> tuple[tuple[Dim, ...], Places]:
    """Dims of which all but the last have one step among positions, and the sizes and steps of what is merged in that."""
    if not whole:
        return whole, NO_PLACES
    last, n = whole[-1].size, len(outer)
    while math.prod(d.size for d in outer[n:]) < last:
        n -= 1
    placed = [replace(d, position=k.position) for d, k in zip(outer[:n], outputs[:n], strict=True)]
    places = tuple(d.size for d in outputs[n:]), tuple(d.position for d in outputs[n:])
    return (*merged(placed), whole[-1]), places if any(places[1]) else NO_PLACES


def states_problem(
    problem: Problem, dtypes: tuple[torch.dtype, ...], kept_dims: KeptDims, splits: int, ordered: bool
) -> Problem:
    """The problem of the second launch: `splits` states, with fields of these dtypes, for each result of the first."""
    outputs, _ = parts_of(problem, kept_dims)
    fields, laid_out = len(dtypes), _laid_out(outputs)
    results = merged(
        by_stride([Dim("map", d.size, (s,) * fields, d.output) for d, s in laid_out if d.role == "map"])
    )
    states = [(d, s) for d, s in laid_out if d.role != "map"]
    if ordered:
        states.sort(key=lambda one: one[0].position, reverse=True)
    reduced = [Dim("reduce", d.size, (s,) * fields) for d, s in states]
    parts = Dim("reduce", splits, (math.prod(d.size for d in outputs),) * fields)
    walked, step = [], 1
    for dim in reversed([*reduced, parts] if ordered else [parts, *reduced]):
        if dim.size > 1:
            walked.append(replace(dim, position=step))
            step *= dim.size
    return Problem((*results, *merged(walked[::-1])), dtypes, (16,) * fields)
