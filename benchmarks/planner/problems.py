"""Drawn problems as the planner's model sees them: what `tilefold bench shapes` times, without any tensor."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch

from tilefold import monoids
from tilefold.algebra import powers
from tilefold.algebra import program as programs
from tilefold.algebra.monoid import Monoid
from tilefold.algebra.program import Program
from tilefold.bench.cases import DTYPES, Case
from tilefold.bench.operations import OPERATIONS
from tilefold.bench.suites.shapes import draw_case
from tilefold.planner.folds import narrowed
from tilefold.planner.geometry import Geometry, geometry_of, without_positions
from tilefold.planner.problem.canonical import Problem, canonical

MONOIDS = {
    "sum": monoids.SUM, "amax": monoids.MAX, "argmax": monoids.ARGMAX, "max": monoids.MAX_WITH_INDEX,
    "logsumexp": monoids.LOGSUMEXP, "var": powers.spread(1.0, False, False), "all": monoids.ALL,
    "aminmax": monoids.MINMAX, "vector_norm": monoids.NORM(2), "bitwise_or": monoids.BITWISE_OR,
}  # fmt: skip


@dataclass(frozen=True)
class Drawn:
    """A case of the bench as a problem with its program, and its geometry with addresses modulo 32."""

    name: str
    case: Case
    problem: Problem
    program: Program
    geometry: Geometry


def monoid_of(operation: str) -> Monoid:
    """The monoid of one of the bench's operations."""
    made = OPERATIONS[operation].monoid
    return MONOIDS[operation] if made is None else made()


def draw(seed: int, size: str = "full", operation: str | None = None, apart: bool = False) -> Drawn:
    """Problem `seed` of a size of `tilefold bench shapes`; `operation` folds its elements in another way."""
    case = draw_case(random.Random(f"planner {seed}"), size, seed)
    return problem_of(case, operation, apart)


def dims_of(case: Case) -> tuple[int, ...]:
    """The dims that a case reduces, from the first on."""
    dims = (case.dim,) if isinstance(case.dim, int) else case.dim
    return tuple(d % len(case.shape) for d in dims)


def problem_of(
    case: Case, operation: str | None = None, apart: bool = False, monoid: Monoid | None = None
) -> Drawn:
    """A case of the bench as the library's problem; `apart`: dims that only positions keep apart are not merged.

    `operation` or a `monoid` folds its elements in another way.
    """
    monoid, dtype = monoid or monoid_of(operation or case.operation), DTYPES[case.dtype]
    x, begin = torch.empty(case.shape, dtype=dtype, device="meta"), 0
    if case.layout is not None:
        x, begin = case.layout.view(case.shape, dtype, "meta"), case.layout.begin * dtype.itemsize
    found = canonical([x], dims_of(case), ordered=not monoid.commutative)
    if monoid.commutative and not monoid.total.index and not apart:
        found = without_positions(found)
    # A tensor without memory has the address 0, and allocators give multiples of 256.
    found = replace(found, aligned=(begin & -begin if begin % 16 else 16,), residues=(begin % 16,))
    program = programs.specialize(monoid.total, (dtype,))
    return Drawn(
        case.name, case, found, narrowed(program, found.length), at(geometry_of(found), [begin % 32])
    )


def at(geometry: Geometry, residues: Sequence[int]) -> Geometry:
    """A geometry at other addresses: each input's modulo 32."""
    pairs = zip(geometry.operands, residues, strict=True)
    return replace(geometry, operands=tuple(replace(operand, residue=r) for operand, r in pairs))
