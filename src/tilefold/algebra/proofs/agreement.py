"""Whether two states agree: up to rounding, in all their results, or in arithmetic itself.

A grouping may round differently: floats agree when they differ by less than the rounding of two combines, relative to the
largest number in the states involved. Where they differ by more, the same elements are combined once more without rounding
(`exact`): what then agrees, or is not decided, breaks no law. So a loss of all digits is no break, and one of 1e-9 is.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator, Sequence
from typing import TypeVar

import torch

from tilefold.algebra.algebra import Algebra
from tilefold.algebra.dtypes import is_float
from tilefold.algebra.proofs.exact import Exact, UndecidedError, apart, size
from tilefold.algebra.proofs.exact import State as ExactState
from tilefold.algebra.proofs.reach import MANY
from tilefold.algebra.proofs.samples import ROWS, Pool, State

_INFINITIES = (float("inf"), -float("inf"))
S = TypeVar("S")  # a state, of tensors or of exact numbers
_TRIED = 5  # rows that are looked at without rounding, of each kind


def disagreement(
    pool: Pool,
    got: State,
    want: State,
    involved: Sequence[State],
    *,
    lost: torch.Tensor | None = None,
    states: bool = True,
) -> torch.Tensor:
    """The rows in which two states (or results) differ by more than rounding may usually do and which prove something.

    `lost` rows prove nothing; by default those with NaN: in what was combined, and where elements are infinite anywhere.
    """
    everything = [*involved, got, want]
    largest = magnitude(everything)
    tolerance = pool.rounding * (largest if lost is None else largest.maximum(pool.reach))
    differs = any_of(~close(g, w, tolerance) for g, w in zip(got, want, strict=True))
    if lost is None:
        lost = has(torch.isnan, *(everything if pool.kind == "infinite" else involved[:3]))
    differs &= ~lost
    if pool.lenient:
        differs &= ~has(not_finite, *everything)
    if pool.kind == "infinite" and states and bool(differs.any()):
        differs &= ~_alike_in_effect(pool, got, want)
    return differs


def _alike_in_effect(pool: Pool, got: State, want: State) -> torch.Tensor:
    """Where an infinite field agrees and a finite element makes the rest forgotten, as l when m is -inf in (m, l)."""
    finite = tuple(field[2].expand(ROWS) for field in pool.lifted[0][0])
    infinite = [w.isinf() if w.is_floating_point() else torch.zeros_like(w, dtype=torch.bool) for w in want]
    agree = [(g == w) | ~inf & g.is_floating_point() for g, w, inf in zip(got, want, infinite, strict=True)]
    tolerance = pool.rounding * magnitude([got, want])
    after = zip(pool.combine(finite, got), pool.combine(finite, want), strict=True)
    forgotten = [close(g, w, tolerance) for g, w in after]
    return any_of(iter(infinite)) & functools.reduce(torch.logical_and, [*agree, *forgotten])


def apart_in_effect(pool: Pool, one: State, other: State, states: Sequence[State]) -> torch.Tensor:
    """The rows in which two states differ, and something that comes of them.

    Sums about a pivot, say, may have any pivot: such states are forms of one, if their projections agree, alone and
    combined with others. Where whole numbers wrap at an infinity's limit, that they agree in samples says nothing.
    """
    rows = disagreement(pool, one, other, states)
    if not bool(rows.any()) or pool.program.algebra.project is None or limited(pool):
        return rows
    pairs = _with_others(pool.combine, one, other, pool.states)
    return rows & any_of(results_apart(pool, x, y, [*states, x, y]) for x, y in pairs)


def _with_others(
    combine: Callable[[S, S], S], one: S, other: S, states: Sequence[S]
) -> Iterator[tuple[S, S]]:
    """Two states, alone and combined with each of the given states on either side."""
    yield one, other
    for s in states:
        yield combine(s, one), combine(s, other)
        yield combine(one, s), combine(other, s)


def results_apart(
    pool: Pool, one: State, other: State, involved: Sequence[State], lost: torch.Tensor | None = None
) -> torch.Tensor:
    """The rows in which the projections of two states differ."""
    return disagreement(pool, pool.project(one), pool.project(other), involved, lost=lost, states=False)


def limited(pool: Pool) -> list[int]:
    """The fields of whole numbers in which an infinity is their dtype's limit, with which arithmetic wraps."""
    program = pool.program
    lifted = _lifts_infinity(program.algebra)
    fields = enumerate(zip(program.state, program.algebra.identity_numbers or (), strict=True))
    return [f for f, (dtype, n) in fields if not is_float(dtype) and (lifted or n in _INFINITIES)]


def begins_infinite(algebra: Algebra) -> bool:
    """Whether a field of the identity, or a constant in lift, is an infinity."""
    return _lifts_infinity(algebra) or any(n in _INFINITIES for n in algebra.identity_numbers or ())


def _lifts_infinity(algebra: Algebra) -> bool:
    return any(node.op == "const" and node.value in _INFINITIES for node in algebra.lift.nodes)


def close(a: torch.Tensor, b: torch.Tensor, tolerance: torch.Tensor) -> torch.Tensor:
    """The rows in which two fields are within a tolerance, or both NaN; whole numbers must be equal."""
    if not a.is_floating_point():
        return a == b
    return (a == b) | (a.isnan() & b.isnan()) | ((a.double() - b.double()).abs() <= tolerance)


def _floats(states: Sequence[State]) -> torch.Tensor:
    """All floats of some states [fields, rows]; a 0 a row where there are none."""
    fields = [field.double() for state in states for field in state if field.is_floating_point()]
    return torch.stack(fields or [torch.zeros(len(states[0][0]), dtype=torch.float64, device="cpu")])


def magnitude(states: Sequence[State]) -> torch.Tensor:
    """The largest finite float of each row."""
    return _floats(states).abs().nan_to_num_(0.0, 0.0, 0.0).amax(0)


def has(test: Callable[[torch.Tensor], torch.Tensor], *states: State) -> torch.Tensor:
    """The rows in which a float of these states passes a test."""
    return test(_floats(states)).any(0)


def not_finite(field: torch.Tensor) -> torch.Tensor:
    """Where a float is NaN or infinite."""
    return ~field.isfinite()


def any_of(rows: Iterator[torch.Tensor]) -> torch.Tensor:
    """The rows that are in one of these."""
    return functools.reduce(torch.logical_or, rows, torch.zeros((), dtype=torch.bool))


def first_sure(
    pool: Pool, rows: torch.Tensor, one: State, other: State, ways: Callable[..., list[ExactState]]
) -> int | None:
    """The first of these rows in which `one` and `other` differ without rounding too, None where it may be rounding.

    `ways` makes the two of the row's three states, and what else came up. Whole numbers are what they are, but for those of
    many lifts, which wrap. So are those at a limit in an infinity's place, which has no exact arithmetic.
    """
    if not bool(rows.any()):
        return None
    if pool.kind != MANY:
        sure = rows & any_of(one[f] != other[f] for f in limited(pool)) if pool.rounding else rows
        if bool(sure.any()):
            return int(sure.nonzero()[0])
    exact = Exact(pool.program.algebra, pool.program.state)
    return next((row for row in _in_turn(pool, rows) if _surely_apart(pool, exact, row, ways)), None)


def _in_turn(pool: Pool, rows: torch.Tensor) -> list[int]:
    """Some of the rows: the first, and those of the smallest numbers."""
    some = rows.nonzero()[:, 0]
    sizes = magnitude([tuple(field[some].double() for field in state) for state in pool.states])
    small = some[sizes.argsort(stable=True)[:_TRIED]].tolist()
    spread = some[:: max(1, len(some) // _TRIED)].tolist()[:_TRIED]
    return list(dict.fromkeys([*some[:_TRIED].tolist(), *small, *spread]))


def _surely_apart(pool: Pool, exact: Exact, row: int, ways: Callable[..., list[ExactState]]) -> bool:
    try:
        states = pool.exactly(exact, row)
        one, other, *others = ways(exact, *states)
        if not _differ(pool, one, other, [*states, *others]):
            return False
        if exact.algebra.project is None:
            return True
        return any(
            _differ(pool, exact.project(x), exact.project(y), [*states, *others, x, y])
            for x, y in _with_others(exact.combine, one, other, states)
        )
    except (UndecidedError, ArithmeticError, TypeError, ValueError):
        return False


def _differ(pool: Pool, one: ExactState, other: ExactState, involved: Sequence[ExactState]) -> bool:
    largest = max(size(number) for state in (*involved, one, other) for number in state)
    return any(apart(x, y, pool.rounding * largest) for x, y in zip(one, other, strict=True))
