"""A fold in two parts: the monoid whose results are a shard's states, and the one that folds states to results.

Both travel as text (`Monoid.text`), so that operations of torch's graphs hold them.
"""

from __future__ import annotations

from dataclasses import replace

import torch

from tilefold.algebra import program as programs
from tilefold.algebra import text
from tilefold.algebra.algebra import Algebra
from tilefold.algebra.derivatives.folds import opposite
from tilefold.algebra.domain import ANY
from tilefold.algebra.dtypes import is_float
from tilefold.algebra.expression import Graph, trace
from tilefold.algebra.fields import declared_dtypes
from tilefold.algebra.monoid import monoid_of
from tilefold.api import gradients
from tilefold.api.ends import with_ties
from tilefold.runtime.caching import kept_outside_modes
from tilefold.runtime.uncompiled import constant_in_graphs

Dtypes = tuple[torch.dtype, ...]


def algebra_of(written: str, elements: Dtypes, ties: bool) -> Algebra:
    """The total algebra of a monoid's text; with `ties` its state also counts the elements that are each extreme."""
    monoid = monoid_of(written)
    gradient = gradients.derived(monoid, elements)
    return with_ties(monoid.total, gradient.extremes) if ties and gradient.shares_ties else monoid.total


def with_base(algebra: Algebra) -> Algebra:
    """The algebra whose positions count from the number in a further input."""
    if not algebra.index:
        return algebra
    k, n = algebra.inputs, len(algebra.fields)

    def placed(graph: Graph | None, states: int) -> Graph | None:
        if graph is None:
            return None
        first = states + k
        return trace(lambda *v: graph(*v[:first], v[first] + v[first + 1]), first + 2)

    lift = placed(algebra.lift, 0)
    assert lift is not None
    return replace(
        algebra,
        inputs=k + 1,
        lift=lift,
        absorb=placed(algebra.absorb, n),
        begin=placed(algebra.begin, 0),
        domain=algebra.domain and (*algebra.domain, ANY),
        quick=None,
        sums=None,
    )


@constant_in_graphs
def takes_positions(written: str) -> bool:
    """Whether a monoid of that text lifts an element's position."""
    return monoid_of(written).algebra.index


@constant_in_graphs
def own_dims(written: str, dims: tuple[int, ...], axis: int) -> tuple[int, ...]:
    """Those of the reduced dims that a shard's own fold has: none before the sharded one where the order counts."""
    return dims if monoid_of(written).commutative else tuple(d for d in dims if d >= axis)


@constant_in_graphs
@kept_outside_modes(512)
def partial_text(written: str, elements: Dtypes, ties: bool) -> str:
    """The monoid of a shard's fold: states are its results. One that takes positions takes the shard's first, too."""
    algebra = algebra_of(written, elements, ties)
    placed = replace(with_base(algebra), project=None, quick=None, sums=None)
    rules = zip(placed.dtypes, state_dtypes(algebra, elements), strict=True)
    return text.dumps(replace(placed, dtypes=tuple(r if r == "index" else d for r, d in rules)))


@constant_in_graphs
@kept_outside_modes(512)
def finish_text(written: str, elements: Dtypes, ties: bool, results: bool) -> str:
    """The monoid that folds states, to results or to a state."""
    algebra = algebra_of(written, elements, ties)
    n, held = len(algebra.fields), state_dtypes(algebra, elements)
    # Results of floats that nobody gave a dtype have the one that a call asks for.
    asked = (
        is_float(d) and not isinstance(r, torch.dtype) for r, d in zip(algebra.dtypes, held, strict=True)
    )
    dtypes = tuple("compute" if a else d for a, d in zip(asked, held, strict=True)) if results else held
    return text.dumps(
        replace(
            algebra,
            inputs=n,
            index=False,
            dtypes=dtypes,
            lift=trace(lambda *v: v, n),
            project=algebra.project if results else None,
            absorb=None,
            begin=None,
            derives=False,
            folds_integers=True,
            quick=None,
            sums=None,
            domain=None,
        )
    )


@kept_outside_modes(512)
def turned(written: str) -> str:
    """The same monoid, combined the other way round."""
    algebra = monoid_of(written).algebra
    return written if algebra.commutative else text.dumps(opposite(algebra))


@constant_in_graphs
@kept_outside_modes(512)
def result_dtypes(written: str, elements: Dtypes, dtype: torch.dtype | None) -> Dtypes:
    """The dtypes of the whole fold's results."""
    made: Dtypes = programs.specialize(monoid_of(written).total, elements, dtype, all_fields=True).outputs
    return made


def state_dtypes(algebra: Algebra, elements: Dtypes) -> Dtypes:
    """The dtypes that states travel in: floats as they are carried, integers as they are declared."""
    carried = programs.as_written(replace(algebra, project=None), elements).state
    declared = declared_dtypes(algebra, elements)
    return tuple(c if is_float(c) else d for c, d in zip(carried, declared, strict=True))
