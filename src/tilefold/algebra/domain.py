"""The declared inputs of a monoid: a range of numbers for each.

A domain is a promise of whoever makes the monoid. The laws are tried on elements within it, and proofs may leave out cases
that it excludes. Nothing looks at elements when a fold runs: what an element outside of its range gives is not said, be it
another number for another order of the elements. It is a number all the same: no fold fails or reads elsewhere for it.
"""

from __future__ import annotations

import difflib
import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch

from tilefold.errors import MonoidError, shown

INFINITY = math.inf
_LEAST, _MOST = 5e-324, torch.finfo(torch.float64).max  # the least positive float, and the greatest
_SMALL, _FAR = (
    2.0**-100,
    2.0**20,
)  # of smaller ones products vanish; about a farther end small numbers are all one
_SHARES = (0.25, 0.5, 0.75, 0.125, 0.375, 0.625, 0.875)  # of the way from one end to the other
_FEW = (1.0, 2.0, 0.5, 3.0, 0.25, 5.0, 7.0)  # above an end, or below one
_LARGEST_INTEGER = (1 << 58) + 1  # a dozen of them sum to what int64 holds


@dataclass(frozen=True)
class Range:
    """The numbers of one input, from `low` to `high`, both among them: an infinite end is an infinity. NaN is in none."""

    low: float = -INFINITY
    high: float = INFINITY

    def __contains__(self, number: float) -> bool:
        return self.low <= number <= self.high


ANY = Range()
NAMES = {
    "any": ANY,
    "finite": Range(-_MOST, _MOST),
    "positive": Range(_LEAST, _MOST),
    "nonnegative": Range(0.0, _MOST),
    "negative": Range(-_MOST, -_LEAST),
    "nonpositive": Range(-_MOST, 0.0),
}
Domain = tuple[Range, ...]
Entry = str | Sequence[float | None] | None
Declared = Entry | Sequence[Entry]  # what `Monoid` takes


def read_domain(monoid: str, domain: Declared, inputs: int) -> Domain | None:
    """A range for each input, from what `Monoid` was given; None where anything may come.

    Raises:
        MonoidError: what was given is no range, or not one for each input.
    """
    if domain is None:
        return None
    one = not isinstance(domain, tuple | list) or _is_pair(domain)
    each: list[Any] = [domain] * inputs if one else list(domain)
    if len(each) != inputs:
        raise MonoidError(
            f"{monoid}: domain must be one for all inputs or one for each of the {inputs}, got {len(each)}; give as many, "
            "None for an input that may be anything"
        )
    ranges = tuple(_range(monoid, one) for one in each)
    return None if all(one == ANY for one in ranges) else ranges


def _is_pair(domain: Sequence[object]) -> bool:
    return len(domain) == 2 and all(end is None or _is_number(end) for end in domain)


def _is_number(end: object) -> bool:
    return isinstance(end, int | float) and not isinstance(end, bool)


def _range(monoid: str, one: Any) -> Range:
    if one is None:
        return ANY
    if isinstance(one, str) and one in NAMES:
        return NAMES[one]
    if isinstance(one, tuple | list) and _is_pair(one):
        low = -INFINITY if one[0] is None else float(one[0])
        high = INFINITY if one[1] is None else float(one[1])
        if low <= high:
            return Range(low, high)
    close = difflib.get_close_matches(one, NAMES, n=1) if isinstance(one, str) else []
    raise MonoidError(
        f"{monoid}: a domain must be (low, high) with low <= high, None for no end, or one of {', '.join(NAMES)}, "
        f"got {shown(one)}; {f'write {close[0]!r}' if close else 'write (0, None) for what is never negative'}"
    )


def domain_text(domain: Domain) -> str:
    """A domain as it is written behind `domain=`."""
    shown = [_text(one) for one in domain]
    return shown[0] if len(shown) == 1 else f"({', '.join(shown)})"


def _text(one: Range) -> str:
    name = next((name for name, known in NAMES.items() if known == one), None)
    if name is not None:
        return "None" if one == ANY else repr(name)
    low, high = (None if math.isinf(end) else end for end in (one.low, one.high))
    return f"({low}, {high})"


def within(values: Sequence[float], one: Range, dtype: torch.dtype) -> tuple[float, ...]:
    """As many samples of a dtype in the range: those in it as they are, others moved into it; none where it has none.

    What is beyond an end is reflected there, and what is not in the range then either is spread over it. NaN stays.
    """
    ends = _ends(one, dtype)
    if ends is None:
        return ()
    if dtype == torch.bool:
        return tuple(v if v in ends else bool(ends.low) for v in values)
    moved = (_moved(v, k, ends, whole=not dtype.is_floating_point) for k, v in enumerate(values))
    return tuple(moved)


def ends_of(one: Range, dtype: torch.dtype) -> tuple[float, ...]:
    """The finite ends of a range, which a law may break at, as samples of a dtype."""
    ends = _ends(one, dtype)
    if ends is None or dtype == torch.bool:
        return ()
    sizes = (_LEAST, _MOST, _LARGEST_INTEGER)
    return tuple(dict.fromkeys(e for e in (ends.low, ends.high) if math.isfinite(e) and abs(e) not in sizes))


def _ends(one: Range, dtype: torch.dtype) -> Range | None:
    """The range among the values of a dtype; None where it has none of them."""
    if dtype.is_floating_point:
        return one
    low, high = (0, 1) if dtype == torch.bool else (-_LARGEST_INTEGER, _LARGEST_INTEGER)
    low = low if one.low < low else math.ceil(one.low)
    high = high if one.high > high else math.floor(one.high)
    return Range(low, high) if low <= high else None


def _moved(value: float, place: int, ends: Range, *, whole: bool) -> float:
    if value in ends or value != value:
        return value
    end = ends.low if value < ends.low else ends.high
    mirrored = 2 * end - value
    if abs(end) < _FAR and mirrored in ends and (mirrored == 0 or abs(mirrored) > _SMALL):
        return mirrored
    spread = _spread(place, ends)
    return math.floor(spread) if whole else spread


def _spread(place: int, ends: Range) -> float:
    """One of several values of a range, of moderate size where it has such."""
    width, few = ends.high - ends.low, _FEW[place % len(_FEW)]
    if width < _LARGEST_INTEGER:
        return ends.low + _SHARES[place % len(_SHARES)] * width
    if few in ends:
        return few
    if abs(ends.low) < abs(ends.high):
        return min(ends.high, ends.low + few * max(1.0, abs(ends.low)))
    return max(ends.low, ends.high - few * max(1.0, abs(ends.high)))
