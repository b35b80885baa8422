"""How a scan runs: from problem, program and device to a plan. Pure, as `choose` is.

The steps of the sequence decide, in this order:

    scan_problem    which dims a line and its neighbours have
    planned_scan    whether a tile goes across two dims, or inputs are copied into the results' order first (`moves`)
    reading         along which axis the problem is read, and in what vectors
    scan_tiles      the tile, by rule, and whether several programs share a line: a launch more, which zeroes their words
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import torch

from tilefold.algebra.dtypes import is_float
from tilefold.algebra.program import Program
from tilefold.planner.device import NOMINAL, Device
from tilefold.planner.moves import after_copies
from tilefold.planner.plan import Buffer, Launch, LibraryCall, Plan, names
from tilefold.planner.problem.canonical import Dim, Problem, canonical, in_results_order, inputs_apart
from tilefold.planner.reading import Reading, reading_of
from tilefold.planner.scan_tiles import SHORT, Load, across_tile, scan_tile
from tilefold.planner.sizes import SECTOR, power_above
from tilefold.planner.stages.scans import Work, scan_program, shared_words, state_words

ALIGN_BELOW = 8  # bytes of the vectors that rows as they are allow (docs/experiments/scans.md#offset)
# Of light states in vectors of more elements, rows that reach no further with what is read beside them have no vectors
# (docs/experiments/scans.md#offset).
NARROW_VECTOR, SHORT_REACH = 4, 16
# Bytes of inputs, from which on they are copied where a line's results are less than a sector (not measured).
COPIED_LINES = 12 << 20
COSTLY = 4  # operations of a combine, from which on threads are to exchange few states (not measured)


def scan_problem(tensors: Sequence[torch.Tensor], dim: int, guarantee: str) -> Problem:
    """The problem of a scan of `dim`; a line of one element has a dim, too."""
    batches = guarantee == "batch_invariant"
    made = canonical(tensors, (dim,), ordered=True, batches=batches, role="scan", whole=True)
    if made.reduced_dims:
        return made if batches else _results_last(made)
    return replace(made, dims=(*made.dims, Dim("scan", 1, (0,) * len(made.dtypes), 0, 1)))


def _results_last(problem: Problem) -> Problem:
    """The problem with the dim along which results are neighbours last, where rows of elements are whole sectors.

    Rows then lie anywhere without more sectors, and a program has rows whose results are neighbours.
    """
    (scanned,) = problem.reduced_dims
    near = problem.nearest
    smallest = min(d.itemsize for d in problem.dtypes)
    apart = set(scanned.strides) == {1} and scanned.size * smallest >= SECTOR
    if not apart or near in (scanned, *problem.output_dims[-1:]) or near.size * smallest < SECTOR:
        return problem
    return _with_last(problem, near)


def _with_last(problem: Problem, *last: Dim) -> Problem:
    """The problem with these output dims behind the others."""
    others = (d for d in problem.output_dims if d not in last)
    return replace(problem, dims=(*others, *last, *problem.reduced_dims))


def planned_scan(
    problem: Problem, program: Program, work: Work, device: Device, guarantee: str
) -> tuple[Problem, Plan]:
    """The problem that the steps work on, and the plan. Inputs are copied into the results' order first if that is faster."""
    copied = copied_inputs(problem, guarantee)
    if not copied:
        return problem, plan_scan(problem, program, work, device, guarantee)
    last = problem.output_dims[-1]
    if set(last.strides) == {1} and problem.nearest in problem.output_dims:
        turned = _with_last(problem, problem.nearest, last)
        plan = plan_scan(turned, program, work, device, guarantee, near=True)
        if plan.launched[0].settings.near:
            return turned, plan
    ordered = _results_last(in_results_order(problem, copied))
    return ordered, after_copies(
        plan_scan(ordered, program, work, device, guarantee), problem, copied, device
    )


def plan_scan(
    problem: Problem,
    program: Program,
    work: Work,
    device: Device,
    guarantee: str,
    *,
    near: bool = False,
) -> Plan:
    """The steps of a scan of at least one element: one launch. If programs share lines, their words are zeroed before it.

    `near`: results are neighbours along the dim before the last, and are stored so if there are lines enough.
    """
    alone = guarantee == "batch_invariant"
    reading = reading_of(problem)
    words = state_words(scan_program(program, work, problem.length))
    light = words == 1 and not _is_costly(program)
    align, shift = (1, ()) if alone else _vectors(problem, reading, light)
    if shift:
        reading = replace(reading, vector=reading.full_vector)
    sums = _has_sums(program, work)
    load = Load(
        words, sum(d.itemsize for d in problem.dtypes), len(program.outputs), _is_costly(program), align, sums,
        _is_across(problem, reading), min(d.itemsize for d in program.outputs),
    )  # fmt: skip
    across = across_tile(problem, load, device) if near else None
    tile = across or scan_tile(reading, load, NOMINAL if alone else device, alone)
    tile = replace(tile, work=work, sums=sums and tile.chunk > 1, shift=shift)
    fields = len(program.state)
    reads = names("input", len(problem.dtypes) + fields * work.init)
    writes = names("output", len(program.outputs) + fields * work.state)
    reason = "each row by itself" if alone else "by rows" if tile.by_rows else "by columns"
    if not tile.shares:
        steps: tuple[Launch | LibraryCall, ...] = (Launch("scan_lines", tile, reads, writes),)
        return Plan("triton", steps, (), (), guarantee, "lines", reason)
    workspace = Buffer("words", (shared_words(problem, tile, words),), torch.int64)
    steps = (
        LibraryCall("zeroed", (), ("words",)),
        Launch("scan_tiles", tile, reads, (*writes, "words")),
    )
    return Plan("triton", steps, (), (workspace,), guarantee, "shared", reason)


def copied_inputs(problem: Problem, guarantee: str) -> tuple[int, ...]:
    """The inputs that are copied into the results' order first: neighbours of results are neither neighbours of elements,
    nor elements of a line; nor whole sectors of such, where inputs are large (docs/experiments/scans.md#copied).
    """
    (scanned,) = problem.reduced_dims
    if guarantee == "batch_invariant" or not problem.output_dims:
        return ()
    near = problem.nearest
    large = problem.bytes_read >= COPIED_LINES
    if near is scanned and large and scanned.size * min(d.itemsize for d in problem.dtypes) < SECTOR:
        near = min(problem.output_dims, key=lambda d: d.output)
    return () if near in (scanned, problem.output_dims[-1]) else inputs_apart(problem)


def _has_sums(program: Program, work: Work) -> bool:
    """Whether prefixes are sums of terms: of float32, with the element that they end with."""
    floats = all(is_float(e) and e.itemsize <= 4 for e in program.elements)
    return program.algebra.sums is not None and floats and not work.exclusive


def _vectors(problem: Problem, reading: Reading, light: bool) -> tuple[int, tuple[int, ...]]:
    """(`align`, `shift`) of tiles that read rows which allow no vectors as they lie in whole ones; (1, ()) where none do.

    Rows of any length begin as far behind a vector in each input as the results of one do, but for the input's shift. A tile
    of short ones is none of vectors where it would have twice as many places then. `light`: see `Load`.
    docs/experiments/scans.md#offset
    """
    (scanned,) = problem.reduced_dims
    full, element = reading.full_vector, reading.element
    alike = {d.itemsize for d in problem.dtypes} == {element} and reading.by_rows
    along = set(scanned.strides) == {1} == {scanned.output}
    steps = any((d.output - s) % full for d in problem.output_dims for s in d.strides)
    odd = any(residue % element for residue in problem.residues)
    narrow = reading.vector * element < ALIGN_BELOW
    if not alike or not along or steps or odd or not narrow or full > reading.length:
        return 1, ()
    reach = reading.length + full - 1
    more = power_above(reach) > power_above(reading.length) or (
        light and full > NARROW_VECTOR and reach <= SHORT_REACH
    )
    if reading.length <= SHORT and more and not _is_whole(problem, full):
        return 1, ()
    shift = tuple(residue // element for residue in problem.residues)
    return 1 if _is_whole(problem, full) else full, shift if any(shift) else ()


def _is_whole(problem: Problem, vector: int) -> bool:
    """Whether all rows of results begin at a vector if one does."""
    return all(d.output % vector == 0 for d in problem.output_dims)


def _is_across(problem: Problem, reading: Reading) -> bool:
    """Whether results are neighbours along lines where the largest input's elements are not, or the other way round."""
    (scanned,) = problem.reduced_dims
    if not problem.output_dims:
        return False
    beside = problem.output_dims[-1].output == 1 and scanned.output != 1
    return beside if reading.by_rows else scanned.output == 1 and scanned.size > 1


def _is_costly(program: Program) -> bool:
    return sum(node.op not in ("input", "const") for node in program.combine.graph.nodes) > COSTLY
