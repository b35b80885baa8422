"""Random monoids that obey the laws by construction: products of lawful pieces, of random terms of the elements.

A piece is a monoid of one to four fields, known to be lawful for the elements that it is given: all of them, all but NaN
("infinite"), or finite ones alone ("finite"). A product of monoids is a monoid, whatever their terms are.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from hypothesis import strategies as st

from fuzz.expressions import (
    FLOAT32,
    TRUTH,
    Expression,
    Span,
    made_exact,
    makes_nan,
    number,
    numbers,
    of,
    of_arity,
    span,
    truths,
    wholes,
)
from tilefold import Monoid, math

INF = float("inf")
State = tuple[Any, ...]
KINDS = ("finite", "infinite", "nan")  # elements, each kind with those before it

NARROW = (torch.int8, torch.int16, torch.int32, torch.uint8, torch.uint16, torch.uint32)


@dataclass(frozen=True)
class Piece:
    """A lawful monoid of some fields.

    `takes` says what lift is given, a letter a term: "n" a number, "w" a whole one, "t" a truth value. `lift` makes a state
    of them (and of the position, with `index`). `block` takes a block of terms into a state, where that can be said.
    `fields` has a letter for the dtypes that each may have (see `PIECES`), `elements` the kind that it is lawful for,
    `floats` whether it folds floats alone, or whole numbers alone. With `grows` values may grow with the number of elements;
    with `rounds` its arithmetic is not exact; `alike` fields must share a dtype, since they are compared with its limits or
    wrap by it.
    """

    name: str
    takes: str
    identity: State
    combine: Callable[[State, State], State]
    lift: Callable[..., State]
    fields: tuple[str, ...]
    commutative: bool = True
    elements: str = "nan"
    index: bool = False
    floats: bool | None = None
    block: Callable[..., State] | None = None
    grows: bool = True
    rounds: bool = False
    alike: bool = False

    def __repr__(self) -> str:
        return self.name

    def _repr_pretty_(self, printer: Any, cycle: bool) -> None:
        """As hypothesis prints it."""
        printer.text(repr(self))


def _first_of_largest(a: State, b: State) -> State:
    take = (b[0] > a[0]) | ((b[0] == a[0]) & (b[1] < a[1]))
    return math.where(take, b[0], a[0]), math.where(take, b[1], a[1])


def _last_of_smallest(a: State, b: State) -> State:
    take = (b[0] < a[0]) | ((b[0] == a[0]) & (b[1] > a[1]))
    return math.where(take, b[0], a[0]), math.where(take, b[1], a[1])


def _position_combined(a: State, b: State) -> State:
    m = math.maximum(a[0], b[0])
    return m, math.minimum(math.where(a[0] == m, a[1], INF), math.where(b[0] == m, b[1], INF))


def _counted(a: State, b: State) -> State:
    m = math.maximum(a[0], b[0])
    return m, math.where(a[0] == m, a[1], 0) + math.where(b[0] == m, b[1], 0)


def _counted_below(a: State, b: State) -> State:
    m = math.minimum(b[0], a[0])
    return m, (b[0] == m) * b[1] + (a[0] == m) * a[1]


def _weighed(a: State, b: State) -> State:
    """The largest weight among the largest."""
    m = math.maximum(a[0], b[0])
    return m, math.maximum(math.where(a[0] == m, a[1], -INF), math.where(b[0] == m, b[1], -INF))


def _two_largest(a: State, b: State) -> State:
    return math.maximum(a[0], b[0]), math.maximum(math.minimum(a[0], b[0]), math.maximum(a[1], b[1]))


def _segmented(a: State, b: State) -> State:
    return a[0] | b[0], math.where(b[0], b[1], a[1] + b[1])


def _stretch(a: State, b: State) -> State:
    return (
        a[0] + b[0],
        math.maximum(a[1], a[0] + b[1]),
        math.maximum(b[2], b[0] + a[2]),
        math.maximum(math.maximum(a[3], b[3]), a[2] + b[1]),
    )


def _softmax_pair(a: State, b: State) -> State:
    m = math.maximum(a[0], b[0])
    safe = math.where(m == -INF, 0.0, m)
    return m, a[1] * math.exp(a[0] - safe) + b[1] * math.exp(b[0] - safe)


def _turn(c: Any, d: Any) -> State:
    """One of four quarter turns, as the first column of its matrix."""
    one = math.where(d, -1, 1)
    return math.where(c, one, 0), math.where(c, 0, one)


# "s": any dtype that sums may wrap in; "x": that of an extreme; "b": bool or bits; "i": a position; "f": a float.
PIECES = {
    piece.name: piece
    for piece in [
        Piece("sum", "n", (0,), lambda a, b: (a[0] + b[0],), lambda t: (t,), ("s",),
              block=lambda s, t: (s[0] + math.block_sum(t),)),
        Piece("maximum", "n", (-INF,), lambda a, b: (math.maximum(a[0], b[0]),), lambda t: (t,), ("x",),
              block=lambda s, t: (math.maximum(s[0], math.block_max(t)),), grows=False),
        Piece("minimum", "n", (INF,), lambda a, b: (math.minimum(b[0], a[0]),), lambda t: (t,), ("x",),
              block=lambda s, t: (math.minimum(math.block_min(t), s[0]),), grows=False),
        Piece("any", "t", (False,), lambda a, b: (a[0] | b[0],), lambda t: (t,), ("b",),
              block=lambda s, t: (s[0] | math.block_max(t),), grows=False),
        Piece("all", "t", (True,), lambda a, b: (a[0] & b[0],), lambda t: (t,), ("b",),
              block=lambda s, t: (s[0] & math.block_min(t),), grows=False),
        Piece("parity", "t", (False,), lambda a, b: (a[0] ^ b[0],), lambda t: (t,), ("b",), grows=False),
        Piece("bits or", "w", (0,), lambda a, b: (a[0] | b[0],), lambda t: (t,), ("w",), floats=False, grows=False),
        Piece("bits and", "w", (-1,), lambda a, b: (a[0] & b[0],), lambda t: (t,), ("w",), floats=False, grows=False),
        Piece("bits xor", "w", (0,), lambda a, b: (a[0] ^ b[0],), lambda t: (t,), ("w",), floats=False, grows=False),
        Piece("count", "t", (0,), lambda a, b: (a[0] + b[0],), lambda t: (math.where(t, 1, 0),), ("s",),
              block=lambda s, t: (s[0] + math.block_sum(math.where(t, 1, 0)),)),
        Piece("first of largest", "n", (-INF, INF), _first_of_largest, lambda t, i: (t, i), ("x", "i"),
              elements="infinite", index=True, grows=False),
        Piece("last of smallest", "n", (INF, -1), _last_of_smallest, lambda t, i: (t, i), ("x", "i"),
              elements="infinite", index=True, grows=False),
        Piece("position combined", "n", (-INF, INF), _position_combined, lambda t, i: (t, i), ("x", "i"),
              elements="infinite", index=True, grows=False),
        Piece("largest and how many", "n", (-INF, 0), _counted, lambda t: (t, 1), ("x", "s"), elements="infinite"),
        Piece("smallest and their weights", "nw", (INF, 0), _counted_below, lambda t, w: (t, w), ("x", "s"),
              elements="infinite"),
        Piece("weightiest of the largest", "nn", (-INF, -INF), _weighed, lambda t, w: (t, w), ("x", "x"),
              elements="infinite", grows=False),
        Piece("two largest", "n", (-INF, -INF), _two_largest, lambda t: (t, -INF), ("x", "x"), elements="infinite",
              grows=False, alike=True),
        Piece("last valid", "tn", (False, 0), lambda a, b: (a[0] | b[0], math.where(b[0], b[1], a[1])),
              lambda c, t: (c, math.where(c, t, 0)), ("b", "x"), commutative=False, grows=False),
        Piece("first valid", "tn", (False, 0), lambda a, b: (a[0] | b[0], math.where(a[0], a[1], b[1])),
              lambda c, t: (c, math.where(c, t, 0)), ("b", "x"), commutative=False, grows=False),
        Piece("last above ten", "n", (0,), lambda a, b: (math.where(b[0] > 10, b[0], a[0]),),
              lambda t: (math.where(t * 8 >= 11, t * 8, 0),), ("x",), commutative=False, grows=False),
        Piece("segmented sum", "tn", (False, 0), _segmented, lambda c, t: (c, t), ("b", "s"), commutative=False,
              elements="finite"),
        Piece("signed shift", "tn", (1, 0), lambda f, g: (g[0] * f[0], g[0] * f[1] + g[1]),
              lambda c, t: (math.where(c, -1, 1), t), ("s", "s"), commutative=False, elements="finite", alike=True),
        Piece("shear", "n", (1, 0, 0, 1), lambda p, q: (p[0] * q[0] + p[1] * q[2], p[0] * q[1] + p[1] * q[3],
                                                         p[2] * q[0] + p[3] * q[2], p[2] * q[1] + p[3] * q[3]),
              lambda t: (1, t, 0, 1), ("s", "s", "s", "s"), elements="finite", alike=True),
        Piece("quarter turns", "tt", (1, 0), lambda p, q: (p[0] * q[0] - p[1] * q[1], p[0] * q[1] + p[1] * q[0]),
              _turn, ("c", "c"), elements="finite", grows=False),
        Piece("polynomial", "w", (0, 1), lambda a, b: (a[0] * b[1] + b[0], a[1] * b[1]), lambda t: (t, 31),
              ("l", "l"), commutative=False, floats=False),
        Piece("stretch", "n", (0, -INF, -INF, -INF), _stretch, lambda t: (t, t, t, t), ("f", "f", "f", "f"),
              commutative=False, elements="finite", floats=True),
        Piece("softmax pair", "n", (-INF, 0), _softmax_pair, lambda t: (t, 1.0), ("f", "f"), elements="infinite",
              floats=True, rounds=True, grows=False),
    ]
}  # fmt: skip


@dataclass(frozen=True)
class Held:
    """A piece, the terms that its lift takes, and the dtypes of its fields."""

    piece: Piece
    terms: tuple[Expression, ...]
    dtypes: tuple[Any, ...]


@dataclass(frozen=True)
class Made:
    """All that a random monoid is made of: it prints as such, and `monoid` makes it."""

    held: tuple[Held, ...]
    inputs: int
    index: bool
    identity: bool
    absorb: str  # "given", "derived" or "denied"
    declared: bool  # whether `commutative=` is stated
    check: bool
    project: tuple[Expression, ...] | None

    @property
    def commutative(self) -> bool:
        """Whether its pieces are."""
        return all(h.piece.commutative for h in self.held)

    @property
    def rounds(self) -> tuple[bool, ...]:
        """Of each field, whether it is more than exact arithmetic."""
        return tuple(h.piece.rounds for h in self.held for _ in h.piece.fields)

    @property
    def cuts_blocks(self) -> bool:
        """Whether a block of its own sums what a field of whole numbers cuts one by one: no monoid of floats then."""
        fields = (dtype for h in self.held for dtype in h.dtypes if isinstance(dtype, torch.dtype))
        return self.absorb == "given" and any(not dtype.is_floating_point for dtype in fields)

    def monoid(self) -> Monoid:
        """The monoid, its laws checked if asked, on floats too."""
        fields = [f"f{k}" for k in range(sum(len(h.piece.fields) for h in self.held))]
        identity = tuple(value for h in self.held for value in h.piece.identity)
        absorb: Any = {"given": self._absorb, "denied": False, "derived": None}[self.absorb]
        check = self.check and not self.cuts_blocks
        return Monoid(
            self._combine,
            identity if self.identity else None,
            lift=of_arity(self._lift, self.inputs + self.index),
            project=None if self.project is None else of_arity(self._project, len(fields)),
            absorb=of_arity(absorb, 1 + self.inputs + self.index) if callable(absorb) else absorb,
            fields=fields,
            dtypes=tuple(d for h in self.held for d in h.dtypes),
            index=self.index,
            commutative=self.commutative if self.declared or not check else None,
            check=check,
            name="made",
        )

    def _shares(self, state: Sequence[Any]) -> list[State]:
        """A state's fields, piece by piece."""
        shares, values = [], list(state)
        for h in self.held:
            n = len(h.piece.fields)
            shares.append(tuple(values[:n]))
            values = values[n:]
        return shares

    def _combine(self, a: Any, b: Any) -> State:
        pairs = zip(self.held, self._shares(a), self._shares(b), strict=True)
        return tuple(value for h, p, q in pairs for value in h.piece.combine(p, q))

    def _lift(self, *elements: Any) -> State:
        return tuple(value for h in self.held for value in h.piece.lift(*self._terms(h, elements)))

    def _absorb(self, state: Any, *elements: Any) -> State:
        taken: list[Any] = []
        for h, share in zip(self.held, self._shares(state), strict=True):
            assert h.piece.block is not None
            taken += h.piece.block(share, *self._terms(h, elements))
        return tuple(taken)

    def _terms(self, held: Held, elements: Sequence[Any]) -> list[Any]:
        return [*(t(*elements) for t in held.terms), *([elements[-1]] if held.piece.index else [])]

    def _project(self, *state: Any) -> State:
        assert self.project is not None
        return tuple(p(*state) for p in self.project)


# ------------------------------------------------------------------------------------------------ strategies


@st.composite
def monoids(
    draw: st.DrawFn, elements: tuple[torch.dtype, ...], spans: tuple[Span, ...], length: int, kind: str
) -> Made:
    """A monoid of inputs of these dtypes and spans, that folds up to `length` elements of this kind exactly."""
    floats = any(d.is_floating_point for d in elements)
    allowed = [
        p
        for p in PIECES.values()
        if KINDS.index(p.elements) >= KINDS.index(kind) and p.floats in (None, floats)
    ]
    pieces = draw(st.lists(st.sampled_from(allowed), min_size=1, max_size=3))
    index = any(p.index for p in pieces) or draw(st.booleans())
    seen = (*spans, Span(max(length, 1), 1.0, whole=True)) if index else spans
    held = tuple(_held(draw, p, elements, seen, length, kind) for p in pieces)
    ways = ["derived", "derived", "denied"]
    commutative = all(p.commutative for p in pieces)
    if (
        commutative
        and all(p.block for p in pieces)
        and all(t.varies(len(seen)) for h in held for t in h.terms)
    ):
        ways.append("given")
    made = Made(
        held, len(elements), index, draw(st.sampled_from((True, True, False))), draw(st.sampled_from(ways)),
        draw(st.booleans()), draw(st.booleans()), None,
    )  # fmt: skip
    if kind == "finite" and draw(st.booleans()):
        return Made(**{**vars(made), "project": _projection(draw, held, seen, length)})
    return made


def _held(
    draw: st.DrawFn,
    piece: Piece,
    elements: tuple[torch.dtype, ...],
    spans: tuple[Span, ...],
    length: int,
    kind: str,
) -> Held:
    arguments = tuple(range(len(spans)))
    whole = tuple(a for a in arguments if spans[a].whole)
    some = length if piece.grows else 1
    terms = []
    for letter in piece.takes:
        if letter == "t":
            terms.append(_of_exact_parts(draw(truths(arguments, whole, 1)), spans))
        elif letter == "w":
            terms.append(made_exact(draw(wholes(whole, 2)), spans, some))
        else:
            # with infinities, nothing that turns them into a whole number or, as inf // 2 and inf - inf are, into NaN
            drawn = numbers(arguments, whole if kind == "finite" else (), 2)
            if kind != "finite":
                drawn = drawn.filter(lambda t: not {"floordiv", "mod"} & t.ops)
            if kind == "infinite":
                drawn = drawn.filter(lambda t: not makes_nan(t))
            term = made_exact(draw(drawn), spans, some)
            if piece.rounds or piece.name in ("stretch", "last above ten"):
                known = span(term, spans)
                least = 0 if known is not None and known.unsigned else -8
                term = of("maximum", of("minimum", term, number(8)), number(least))
            terms.append(term)
    dtypes = tuple(_dtype(draw, f, piece, terms, spans, len(elements), length) for f in piece.fields)
    return Held(piece, tuple(terms), dtypes[:1] * len(dtypes) if piece.alike else dtypes)


def _of_exact_parts(condition: Expression, spans: Sequence[Span]) -> Expression:
    """A condition whose sides are exact: those that are not, in part."""
    if condition.op in ("and", "or", "xor", "invert"):
        return Expression(condition.op, tuple(_of_exact_parts(a, spans) for a in condition.args))
    return Expression(condition.op, tuple(made_exact(a, spans) for a in condition.args))


def _dtype(
    draw: st.DrawFn,
    field: str,
    piece: Piece,
    terms: Sequence[Expression],
    spans: Sequence[Span],
    inputs: int,
    length: int,
) -> Any:
    """What a field may be carried in without rounding."""
    if field == "b":
        return draw(st.sampled_from((torch.bool, torch.bool, torch.int32, torch.uint8)))
    if field == "i":
        return "index"
    if field == "l":
        return torch.int64
    if field == "c":
        return draw(st.sampled_from(("compute", torch.int8, torch.float32)))
    known = [s for t in terms if (s := span(t, spans)) is not None]
    if field == "f":  # an infinity that is computed with: no place for whole numbers alone
        whole = known and all(s.whole for s in known)
        return torch.float64 if whole else draw(st.sampled_from(("compute", torch.float64)))
    most = max((s.times(length if field == "s" else 1).most for s in known), default=1.0)
    whole = all(s.whole for s in known)
    if field == "w":
        return draw(st.sampled_from((torch.int64, *NARROW)))
    fine = ["compute", torch.float64]
    if most / min((s.unit for s in known), default=1.0) <= FLOAT32:
        fine.append(torch.float32)
    else:  # whole, beyond float32
        fine = [torch.int64]
    if whole:
        fine += [torch.int64, *(NARROW if field == "s" else (torch.int32,) if most < 2**31 else ())]
    if field == "x" and len(terms) == 1 and terms[0].op == "argument" and terms[0].value < inputs:
        fine += ["input"] * 2
    return draw(st.sampled_from(fine))


def _projection(
    draw: st.DrawFn, held: Sequence[Held], spans: Sequence[Span], length: int
) -> tuple[Expression, ...]:
    """Random results of the exact fields; fields that round come as they are."""
    state: list[Span] = []
    rounded: list[int] = []
    for h in held:
        terms = [span(t, spans) or TRUTH for t in h.terms]
        largest = Span(max((t.most for t in terms), default=1.0), min((t.unit for t in terms), default=1.0))
        for dtype in h.dtypes:
            if h.piece.rounds:
                rounded.append(len(state))
            whole = (isinstance(dtype, torch.dtype) and not dtype.is_floating_point) or dtype == "index"
            bounded = largest.times(length)
            # an infinity is left by fields without elements, a limit of integers too
            state.append(Span(2.0**63, bounded.unit) if whole else bounded)
    exact = tuple(k for k in range(len(state)) if k not in rounded)
    results = [Expression("argument", value=k) for k in rounded]
    for _ in range(draw(st.integers(1, 2)) if exact else 0):
        term = draw(numbers(exact, (), 1))
        results.append(made_exact(term, state))
    return tuple(results) or (Expression("argument", value=0),)
