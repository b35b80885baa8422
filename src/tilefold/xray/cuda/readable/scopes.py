"""Where each value is used: how often, and the innermost region that holds all of its uses."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from types import MappingProxyType

from tilefold.xray.cuda.readable.tree import If, Loop, Region, inner, operands, results
from tilefold.xray.cuda.readable.values import Value
from tilefold.xray.reach import reached


class Scopes:
    """Uses of values, regions of values, and how regions lie in each other."""

    def __init__(self, body: Region) -> None:
        self.root = body
        self.uses: Counter[Value] = Counter()
        self.homes: dict[Value, Region] = {}  # of all uses
        self.defined: dict[Value, Region] = {}  # of leaves that effects make
        self._above: dict[Region, Region | None] = {body: None}
        self._depths = {body: 0}
        self._enter(body, ())
        self._spread()

    def within(self, region: Region, other: Region) -> bool:
        """Whether a region is another one or lies in it."""
        at: Region | None = region
        while at is not None and at is not other:
            at = self._above[at]
        return at is not None

    def common(self, a: Region, b: Region) -> Region:
        """The innermost region that holds both."""
        while a is not b:
            if self._depths[a] >= self._depths[b]:
                above = self._above[a]
                assert above is not None, "all regions lie in the kernel's body"
                a = above
            else:
                a, b = b, a
        return a

    def deepest(
        self, values: Iterable[Value], named: Mapping[Value, Region] = MappingProxyType({})
    ) -> Region:
        """The outermost region in which all is there that values are made of, down to those that a region has named."""
        found = [self.root]
        for at in reached(values, lambda v: () if v in named else v.args):
            found += [r for held in (named, self.defined) if (r := held.get(at)) is not None]
        return max(found, key=lambda r: self._depths[r])

    def _enter(self, region: Region, ends: tuple[Value, ...]) -> None:
        for effect in region.effects:
            for value in operands(effect):
                self._use(value, region)
            for value in results(effect):
                self.defined[value] = region
            for held, last in inner(effect):
                self._above[held], self._depths[held] = region, self._depths[region] + 1
                if isinstance(effect, Loop):
                    self.defined |= {c.inside: held for c in effect.carried}
                self._enter(held, last if held.effects or isinstance(effect, Loop) else ())
                if not held.effects and isinstance(effect, If):  # variables begin with what it gives
                    for value in last:
                        self._use(value, region)
        for value in ends:
            self._use(value, region)

    def _use(self, value: Value, region: Region) -> None:
        self.uses[value] += 1
        known = self.homes.get(value)
        self.homes[value] = region if known is None else self.common(known, region)

    def _spread(self) -> None:
        """From values to what they are made of: a value is made after its arguments, so has a higher number."""
        import heapq

        waiting = [(-v.number, v.number, v) for v in self.homes]
        heapq.heapify(waiting)
        seen = set(self.homes)
        while waiting:
            _, _, value = heapq.heappop(waiting)
            for a in value.args:
                self._use(a, self.homes[value])
                if a not in seen:
                    seen.add(a)
                    heapq.heappush(waiting, (-a.number, a.number, a))
