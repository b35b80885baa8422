"""Values that a thread computes in one way from each of several loaded ones: they become an array again."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from tilefold.xray.cuda.readable.linear import Sums
from tilefold.xray.cuda.readable.values import LEAVES, Value

Pack = tuple[Value, ...]


def found_packs(loaded: Sequence[Pack], values: Iterable[Value], sums: Sums) -> dict[Value, Pack]:
    """The pack of each value that has one, in the order of what was loaded together.

    Values are alike when the same operations make them of the same other values, but for constants, and for one element of
    an array where each has another.
    """
    signs = _Signs(loaded, sums)
    alike: dict[int, dict[int, Value | None]] = {}
    for value in sorted(values, key=lambda v: v.number):
        sign, array, place = signs.of(value)
        if place is not None and array is not None and value.op not in LEAVES:
            held = alike.setdefault(sign, {})
            held[place] = None if place in held else value
    found: dict[Value, Pack] = {}
    for held in alike.values():
        pack = tuple(v for _, v in sorted(held.items()) if v is not None)
        whole = len(loaded[signs.of(pack[0])[1] or 0]) if pack else 0
        if len(pack) == len(held) == whole > 1:
            found |= dict.fromkeys(pack, pack)
    return found


class _Signs:
    """How a value is made, as a number, and of which element of which array."""

    def __init__(self, loaded: Sequence[Pack], sums: Sums) -> None:
        self._loaded, self._sums = loaded, sums
        self._numbers: dict[Any, int] = {}
        self._held: dict[Value, tuple[int, int | None, int | None]] = {}
        for array, pack in enumerate(loaded):
            for place, value in enumerate(pack):
                self._held[value] = (self._number(("array", array)), array, place)

    def of(self, value: Value) -> tuple[int, int | None, int | None]:
        """(sign, array, element); no element where several are mixed. The first of several arrays stands for all."""
        found = self._held.get(value)
        if found is None:
            found = self._held[value] = self._made(value)
        return found

    def _made(self, value: Value) -> tuple[int, int | None, int | None]:
        if value.op == "const":
            return self._number(("const", value.bits)), None, None
        if value.op in LEAVES:
            return self._number(("leaf", value)), None, None
        if self._sums.is_sum(value):
            form = self._sums.of(value)
            parts, made = [v for v, _ in form.terms], ("sum", value.bits, tuple(c for _, c in form.terms))
        else:
            parts, made = list(value.args), (value.op, value.bits, value.data)
        signs = [self.of(v) for v in parts]
        arrays = {a for _, a, _ in signs if a is not None}
        places = {p for _, a, p in signs if a is not None}
        one = len(places) == 1 and len({len(self._loaded[a]) for a in arrays}) == 1
        own = (min(arrays), places.pop()) if one else (None, None)
        return (self._number((*made, tuple(s for s, _, _ in signs))), *own)

    def _number(self, key: Any) -> int:
        return self._numbers.setdefault(key, len(self._numbers))
