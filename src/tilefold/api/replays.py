"""A call's launches, noted the first time and made again for tensors of the same layouts: no graph is asked anything again.

A backward is made of views of what it gets and of a few calls of executables. While a `Tape` is in force, `dispatch` tells
it of each: which executable, of which tensors, with which results. Every tensor that a call gets, and every one that is
asked for in the end, must be known: one that was given or made by a call, a view of one, or a constant. Then all of it is a
`Replay`. Of a tensor that another operation of torch's made nothing is known, and there is none; nor of one that may come
from two that are given, as one weight that is given twice, since in a later call these may be two.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, NamedTuple

import torch
from torch import Tensor


class Source(NamedTuple):
    """The value at a place, or a view of it: (size, stride, the distance of its first element from the value's)."""

    place: int
    view: tuple[tuple[int, ...], tuple[int, ...], int] | None


Noted = tuple[
    Any, tuple[Source, ...], tuple[int, ...]
]  # an executable, what it reads, and what nothing reads after it


class UnknownError(Exception):
    """A tensor that no call of ours made, or that may come from two that are given."""


class Made(NamedTuple):
    """Operations of torch's as an executable."""

    call: Callable[..., list[Tensor]]
    is_differentiable: bool = False


@dataclass(frozen=True)
class Replay:
    """Calls of executables, in order: values are constants, what is given, then what each call makes.

    `joined` makes them all at once, where the executables can be.
    """

    constants: tuple[Tensor, ...]
    calls: tuple[Noted, ...]
    outputs: tuple[Source | None, ...]
    joined: Callable[..., list[Tensor | None]] | None = None
    is_differentiable: ClassVar[bool] = False

    @functools.cached_property
    def plan(self) -> Any:
        """The plan of the last executable, None where there is none."""
        return next((e.plan for e, _, _ in reversed(self.calls) if not isinstance(e, Made)), None)

    def call(self, *given: Tensor) -> list[Tensor] | None:
        """The results of a call that asks for all of them, as an executable gives them."""
        return self(given)  # type: ignore[return-value]  # no result is None

    def __call__(self, given: Sequence[Tensor | None]) -> list[Tensor | None] | None:
        """The results; None where the elements ask for more than was planned."""
        if self.joined is not None:
            return self.joined(*given)
        values: list[Any] = [*self.constants, *given]
        for executable, sources, dead in self.calls:
            made = executable.call(*[values[p] if v is None else _seen(values[p], v) for p, v in sources])
            if made is None:
                return None
            values += made
            for place in dead:
                values[place] = None
        return [
            None if o is None else values[o.place] if o.view is None else _seen(values[o.place], o.view)
            for o in self.outputs
        ]


def _seen(t: Tensor, view: tuple[tuple[int, ...], tuple[int, ...], int]) -> Tensor:
    size, stride, distance = view
    return t.as_strided(size, stride, t.storage_offset() + distance)


class Tape:
    """What is noted of a call: of the tensors that it gets, calls of executables, and constants.

    With `whole` an executable that autograd sees through, of what is given itself, is called with it where autograd looks
    on; then it is the `own` one of such calls.
    """

    def __init__(self, given: Sequence[Tensor | None], whole: bool = False) -> None:
        self.given, self.whole, self.own = list(given), whole, None
        self.constants: list[Tensor] = []
        self.calls: list[
            tuple[Any, list[Tensor], list[Tensor]]
        ] = []  # which keep all memory, so that none is used twice

    def call(self, executable: Any, tensors: Sequence[Tensor]) -> list[Tensor] | None:
        """The executable's results, noted; None of one that does not take these elements."""
        own = self.whole and executable.is_differentiable and len(tensors) == len(self.given)
        if own and all(_is_of(t, g) for t, g in zip(tensors, self.given, strict=True)):
            with torch.enable_grad():
                made: list[Tensor] | None = executable.call(*self.given)
            self.own = None if made is None else executable
        else:
            made = executable.call(*tensors)
        if made is not None:
            self.note(executable, tensors, made)
        return made

    def note(self, executable: Any, tensors: Sequence[Tensor], results: Sequence[Tensor]) -> None:
        """A call of an executable."""
        self.calls.append((executable, list(tensors), list(results)))

    def replay(self, outputs: Sequence[Tensor | None]) -> Replay | None:
        """All of it, or None where a tensor is not known."""
        values: list[Tensor | None] = [*self.constants, *self.given]
        given = len(values)
        calls = list[tuple[Any, tuple[Source, ...], range]]()
        try:
            for executable, tensors, results in self.calls:
                sources = tuple(_source(t, values, given) for t in tensors)
                calls.append((executable, sources, range(len(values), len(values) + len(results))))
                values += results
            shown = tuple(None if t is None else _source(t, values, given) for t in outputs)
        except UnknownError:
            return None
        read = {o.place for o in shown if o is not None}
        ended = list[Noted]()
        for executable, sources, made in reversed(calls):
            last = {*made, *(s.place for s in sources)} - read
            read |= last
            # What is given lives as long as its owner has it.
            dead = tuple(sorted(p for p in last if p >= given))
            ended.append((executable, sources, dead))
        made_again = tuple(reversed(ended))
        join = getattr(made_again[0][0], "join", None) if made_again else None
        at_once = None if join is None else join(self.constants, self.given, made_again, shown)
        return Replay(tuple(self.constants), made_again, shown, at_once)


def _is_of(t: Tensor, given: Tensor | None) -> bool:
    """Whether a tensor is one that was given, or a view of its first element and others."""
    return t is given or (given is not None and t.data_ptr() == given.data_ptr() and t.dtype == given.dtype)


def _source(t: Tensor, values: Sequence[Tensor | None], given: int) -> Source:
    """Where a tensor comes from: the first `given` values are a call's own, and need not share memory in another.

    Raises:
        UnknownError: from nowhere that is known, or perhaps from two of those.
    """
    places = [i for i, value in enumerate(values) if value is t]
    is_whole = bool(places)
    if not is_whole and type(t) is Tensor and not t.is_neg():
        places = [i for i, value in enumerate(values) if value is not None and _is_in(t, value)]
    if not places or sum(i < given for i in places) > 1:
        raise UnknownError
    value = values[places[0]]
    assert value is not None
    distance = int(t.storage_offset() - value.storage_offset())
    return Source(places[0], None if is_whole else (tuple(t.shape), t.stride(), distance))


def _is_in(t: Tensor, value: Tensor) -> bool:
    """Whether a tensor lies within another's memory, from that one's first element to its last."""
    if t.dtype != value.dtype or t.untyped_storage()._cdata != value.untyped_storage()._cdata:
        return False
    (first, last), (least, most) = _span(t), _span(value)
    return least <= first and last <= most


def _span(t: Tensor) -> tuple[int, int]:
    """The places of a tensor's first and last element in its storage."""
    first = int(t.storage_offset())
    return first, first + sum((n - 1) * step for n, step in zip(t.shape, t.stride(), strict=True))
