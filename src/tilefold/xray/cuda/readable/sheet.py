"""What is written so far: lines of every open region, names, arrays; all of it can be taken back to a mark."""

from __future__ import annotations

import functools
import re
from collections.abc import Callable, Hashable
from typing import Any

from tilefold.xray.cuda.readable.source_names import Names
from tilefold.xray.cuda.readable.text import PRIMARY, Text
from tilefold.xray.cuda.readable.tree import Region
from tilefold.xray.cuda.readable.values import Place, Value


class Sheet:
    """Lines and names. `line_of` gives the text of a place of the source; `careful` regions have no loops over values."""

    def __init__(
        self,
        root: Region,
        taken: set[str],
        names: Names,
        line_of: Callable[[Place], str],
        careful: frozenset[Region] = frozenset(),
    ) -> None:
        self.careful = careful
        self.named: dict[Value, Text] = {}
        self.where: dict[Value, Region] = {}  # that have a name, by the region that declares it
        self.arrays: dict[Value, tuple[str, int]] = {}
        self.instead: dict[Value, Value] = {}  # values that took the place of another in its variable
        self.known: dict[
            Hashable, tuple[Any, Region]
        ] = {}  # sums, pointers and functions that have a name, with their region
        self.steps: set[Value] = set()  # of which others are made at the same place
        self.helpers: dict[str, str] = {}
        self.tops: list[str] = []
        self.lines: dict[Region, list[str]] = {root: []}
        self.region = root
        self.reserved, self.taken = taken, {*taken, "i", "s"}
        self.names, self._line_of = names, line_of
        self._headed: dict[Region, tuple[str, ...]] = {}
        self._undo: list[Callable[[], object]] = []

    @property
    def one_by_one(self) -> bool:
        """Whether each value is said alone where lines go now."""
        return self.region in self.careful

    # ---------------------------------------------------------------------------------------------------- taking back
    def mark(self) -> int:
        """A point to come back to."""
        return len(self._undo)

    def back(self, mark: int) -> None:
        """As it was at a mark."""
        while len(self._undo) > mark:
            self._undo.pop()()

    def put(self, held: dict[Any, Any], key: Any, value: Any) -> None:
        """An entry of one of the dictionaries."""
        if key in held:
            old = held[key]
            self._undo.append(lambda: held.__setitem__(key, old))
        else:
            self._undo.append(lambda: held.pop(key))
        held[key] = value

    # ------------------------------------------------------------------------------------------------------ names
    def fresh(self, base: str) -> str:
        """A name that is not taken."""
        name, n = base, 1
        while name in self.taken:
            n += 1
            name = f"{base}_{n}"
        self.taken.add(name)
        self._undo.append(lambda: self.taken.discard(name))
        return name

    def name_of(self, place: Place | None, default: str, kind: str = "") -> str:
        """What the source calls what is at a place, if that is of a type's kind; "program" asks for a name of one place."""
        found = self.names.at(place, kind) if place is not None else None
        return self.fresh(found or default)

    def name_for(self, value: Value, default: str, kind: str, step: str = "part") -> str:
        """What the source calls a value of a type; a step on the way to another at its place is called a part of that."""
        step = step if value in self.steps else ""
        found = None if value.place is None else self.names.at(value.place, kind, step)
        if found and kind == "bool" and not step and self.names.is_opposite(value):
            found = f"not_{found}"
        return self.fresh(found or default)

    def function_of(self, value: Value) -> str:
        """The mathematical function whose result a value is; nothing where it is none, or a step of one."""
        return "" if value.place is None or value in self.steps else self.names.function(value.place)

    def counter_name(self, place: Place | None) -> str:
        """What the source calls the variable of a `for` at a place."""
        found = re.match(r"\s*for (\w+) in ", self._line_of(place)) if place is not None else None
        return self.fresh(found[1] if found and found[1] != "_" else "at")

    def name(self, value: Value, text: str, kind: str, region: Region | None = None) -> None:
        """From here on a value is called so, where lines go now, or in another region."""
        self.put(self.named, value, Text(text, PRIMARY, kind))
        self.put(self.where, value, region or self.region)

    def forget(self, value: Value) -> None:
        """A value has no name any more."""
        for held in (self.named, self.where):
            old: Any = held.pop(value)
            self._undo.append(functools.partial(held.__setitem__, value, old))

    def own(self, array: str, kind: str, values: tuple[Value, ...]) -> None:
        """Values are an array's elements."""
        for k, value in enumerate(values):
            self.name(value, f"{array}[{k}]", kind)
            self.put(self.arrays, value, (array, k))

    # ------------------------------------------------------------------------------------------------------ lines
    def say(self, text: str, place: Place | None = None, region: Region | None = None) -> None:
        """A line at the end of a region, under the line of the source that it comes from."""
        region = region or self.region
        lines = self.lines[region]
        if place is not None:
            heading = f"// {place[1]}: {self._line_of(place)}".rstrip().rstrip("\\")
            if heading not in self._headed.get(region, ()):
                self.put(self._headed, region, (*self._headed.get(region, ()), heading))
                self._line(lines, heading)
        self._line(lines, text)

    def _line(self, lines: list[str], text: str) -> None:
        lines.append(text)
        self._undo.append(lines.pop)

    def top(self, text: str) -> None:
        """A declaration before all lines."""
        self._line(self.tops, text)

    def enter(self, region: Region) -> Region:
        """Lines go into a region from here on; the one before comes back."""
        before, self.region = self.region, region
        self.lines.setdefault(region, [])
        return before

    def close(self, region: Region, head: str, foot: str) -> None:
        """A region's lines become a block of the one that lines go to."""
        for text in [head, *("  " + line for line in self.lines[region]), foot]:
            self._line(self.lines[self.region], text)
