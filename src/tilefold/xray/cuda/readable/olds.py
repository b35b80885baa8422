"""What a load under a guard leaves in its registers over the rounds of a loop goes, where only such loads take it in."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field, replace

from tilefold.xray.cuda.readable.tree import Effect, If, Load, Loop, Region, operands, walk
from tilefold.xray.cuda.readable.values import Graph, Value, leaves


def without_olds(region: Region, graph: Graph) -> Region:
    """The same tree without variables that hold nothing but what loads under one guard loaded, for these loads to keep.

    A guard of a thread's and a program's numbers alone is the same in every round: where it holds nothing is kept, and
    where it does not, all that is kept is what the registers held at first. That must be undefined.
    """
    flow = _Flow()
    flow.enter(region)
    for guard in flow.guards:
        if gone := flow.kept_by(guard):
            region = _without(region, gone, graph)
    return region


@dataclass
class _Flow:
    """Which values variables take, and who takes theirs."""

    given: dict[Value, list[Value]] = field(default_factory=dict)  # to each variable
    pairs: dict[Value, Value] = field(default_factory=dict)  # inside of a loop and behind it
    olds: dict[Value, set[Value]] = field(default_factory=dict)  # the guards of the loads that keep a value
    loaded: dict[Value, Value] = field(default_factory=dict)  # the guard that a result was loaded under
    read: set[Value] = field(default_factory=set)  # leaves of what is used in any other way

    @property
    def guards(self) -> tuple[Value, ...]:
        """Those that are the same in every round."""
        found = dict.fromkeys(g for held in self.olds.values() for g in held)
        return tuple(
            g for g in found if all(leaf.op in ("special", "parameter", "const") for leaf in leaves(g))
        )

    def enter(self, region: Region) -> None:
        """All effects of a region and inside of it."""
        for effect in walk(region):
            used: list[Value] = [*operands(effect)]
            match effect:
                case Load(guard=guard) if guard is not None:
                    for old in effect.old:
                        self.olds.setdefault(old, set()).add(guard)
                    self.loaded |= dict.fromkeys(effect.results, guard)
                    used = [effect.address, guard]
                case Loop():
                    used = [effect.condition, *((effect.counter.bound,) if effect.counter else ())]
                    for c in effect.carried:
                        self.pairs |= {c.inside: c.behind, c.behind: c.inside}
                        self._give((c.inside, c.behind), (c.first, c.next))
                case If():
                    for variable, a, b in effect.merged:
                        self._give((variable,), (a, b))
            self._read(used)

    def _give(self, variables: Iterable[Value], values: Iterable[Value]) -> None:
        for variable in variables:
            self.given.setdefault(variable, []).extend(values)
        self._read(v for v in values if v.op not in ("variable", "result"))

    def _read(self, values: Iterable[Value]) -> None:
        for value in values:
            self.read.update(leaves(value))

    def kept_by(self, guard: Value) -> frozenset[Value]:
        """The variables that hold nothing but what loads under a guard keep."""
        kept = {v for v in self.given if v not in self.read and self.olds.get(v, {guard}) == {guard}}
        while True:
            taking = {v for v, values in self.given.items() if v not in kept for v in values}
            wrong = {v for v in kept if v in taking or self.pairs.get(v, v) not in kept}
            wrong |= {v for v in kept if not all(self._fits(x, kept, guard) for x in self.given[v])}
            if not wrong:
                return frozenset(kept)
            kept -= wrong

    def _fits(self, value: Value, kept: set[Value], guard: Value) -> bool:
        return value.op == "undefined" or value in kept or self.loaded.get(value) is guard


def _without(region: Region, gone: frozenset[Value], graph: Graph) -> Region:
    return Region(tuple(_effect(effect, gone, graph) for effect in region.effects))


def _effect(effect: Effect, gone: frozenset[Value], graph: Graph) -> Effect:
    match effect:
        case Load() if gone & {*effect.old}:
            return replace(
                effect,
                old=tuple(graph.make("undefined", bits=o.bits) if o in gone else o for o in effect.old),
            )
        case If():
            return replace(
                effect,
                then=_without(effect.then, gone, graph),
                other=_without(effect.other, gone, graph),
                merged=tuple(m for m in effect.merged if m[0] not in gone),
            )
        case Loop():
            carried = tuple(c for c in effect.carried if c.inside not in gone)
            return replace(effect, body=_without(effect.body, gone, graph), carried=carried)
    return effect
