"""The program that backends run: an algebra made concrete, with a block form where its combine allows one."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch

from tilefold.algebra import typing
from tilefold.algebra.algebra import Algebra, elementwise
from tilefold.algebra.dtypes import is_float
from tilefold.algebra.expression import apply, trace
from tilefold.algebra.proofs import derive, laws
from tilefold.algebra.typing import TypedGraph
from tilefold.algebra.units import IN_RANGE, LEAST_SQUARES
from tilefold.algebra.written import Program as Program  # whoever runs a program asks here
from tilefold.algebra.written import as_written as as_written
from tilefold.algebra.written import check_convertible as check_convertible
from tilefold.algebra.written import with_index_dtype as with_index_dtype
from tilefold.runtime.caching import kept_outside_modes


@kept_outside_modes(1024)
def specialize(
    algebra: Algebra,
    elements: tuple[torch.dtype, ...],
    dtype: torch.dtype | None = None,
    all_fields: bool = False,
) -> Program:
    """Give every field and node its dtype. `dtype` asks for another dtype of the results that come from computing.

    Squares of narrow dtypes need no units, and get none but with `all_fields`. Where the monoid gives no `absorb` and does
    not deny one, where its combine allows it and where samples agree, the block form is derived.
    """
    quick = algebra.quick
    if quick is not None and quick.narrow and not all_fields and IN_RANGE.issuperset(elements):
        algebra = quick.algebra
    program = as_written(algebra, elements, dtype)
    if algebra.absorb is not None or not algebra.derives or not algebra.commutative:
        return program
    derived = derive.with_blocks(program)
    if derived is None or not laws.blocks_agree(algebra, _sampled_as(elements)):
        return program
    return derived


def is_watched(program: Program) -> bool:
    """Whether the program has a quick form for its elements: floats, whose sums do not wrap."""
    return program.algebra.quick is not None and all(map(is_float, program.elements))


@kept_outside_modes(256)
def quick_form(program: Program) -> Program:
    """The quick form of a program that has one; its last result is whether its state holds the others."""
    quick = program.algebra.quick
    assert quick is not None
    made = specialize(quick.algebra, program.elements)
    trusted, outputs = quick.trusted, made.project.graph
    least = LEAST_SQUARES[next(d for d in reversed(made.state) if d.is_floating_point)]
    both = trace(lambda *state: (*outputs(*state), *trusted(*state, least)), len(made.state))
    project = typing.infer(both, made.state)
    return replace(made, project=project, outputs=(*program.outputs, torch.bool))


@dataclass(frozen=True)
class Scaled:
    """The quick form of elements times a power of two: `project` and `following` of it and a state (`algebra.Quick`)."""

    program: Program
    project: TypedGraph
    following: TypedGraph


@kept_outside_modes(256)
def scaled_form(program: Program) -> Scaled | None:
    """How elements times a scale are folded and projected; None where sums have no units, or are no float32."""
    quick = program.algebra.quick
    if quick is None or quick.project is None or quick.following is None:
        return None
    made = specialize(quick.algebra, program.elements)
    if {*made.state} != {torch.float32}:
        return None
    taken = (torch.float32, *made.state)
    return Scaled(made, typing.infer(quick.project, taken), typing.infer(quick.following, taken))


@kept_outside_modes(512)
def with_state(
    algebra: Algebra, elements: tuple[torch.dtype, ...], dtype: torch.dtype | None, results: bool = True
) -> Program:
    """The program in all of a monoid's fields, whose last results are the fields of the state, in the dtypes that they have.

    Without `results` they are its only ones.
    """
    program = specialize(algebra, elements, dtype, all_fields=True)
    shown = program.project.graph
    graph = trace(lambda *state: (*(shown(*state) if results else ()), *state), len(program.state))
    return replace(
        program,
        algebra=replace(program.algebra, project=graph, quick=None, sums=None),
        project=typing.infer(graph, program.state),
        outputs=(*(program.outputs if results else ()), *program.state),
    )


@kept_outside_modes(512)
def after_state(program: Program, return_state: bool) -> Program:
    """The function of two states, whose fields are its inputs, that gives the results of both combined, and their state."""
    n, dtypes = len(program.state), (*program.outputs, *program.state * return_state)

    def run(*states: Any) -> tuple[Any, ...]:
        made = zip(program.combine.graph(*states), program.state, strict=True)
        both = [apply("cast", field, value=carried) for field, carried in made]
        return (*program.project.graph(*both), *both * return_state)

    made = as_written(replace(elementwise(trace(run, 2 * n)), dtypes=dtypes), program.state * 2)
    return replace(made, outputs=dtypes)


@kept_outside_modes(256)
def of_states(program: Program) -> Program:
    """The program that folds states of another, whose fields are its inputs, to the same results."""
    n = len(program.state)
    graph = trace(lambda *v: v[:n], n)
    algebra = replace(
        program.algebra, inputs=n, index=False, lift=graph, absorb=None, begin=None, derives=False, quick=None, sums=None,
        domain=None,
    )  # fmt: skip
    lift = typing.infer(graph, program.state)
    return replace(program, algebra=algebra, elements=program.state, lift=lift, absorb=None, begin=None)


def _sampled_as(elements: Sequence[torch.dtype]) -> tuple[torch.dtype, ...]:
    """The dtypes of samples that stand for these elements."""
    return tuple(
        torch.float64 if is_float(e) else torch.bool if e == torch.bool else torch.int64 for e in elements
    )
