"""The frozen tree of a kernel's effects, in the order in which its PTX has them, over the graph of pure values."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TypeAlias

from tilefold.xray.cuda.readable.values import Place, Value


@dataclass(frozen=True, eq=False)
class Load:
    """Neighbours read at once; under a guard that does not hold, `old` is what the results are."""

    space: str
    address: Value
    results: tuple[Value, ...]
    guard: Value | None
    old: tuple[Value, ...]
    place: Place | None


@dataclass(frozen=True, eq=False)
class Store:
    """Neighbours written at once."""

    space: str
    address: Value
    values: tuple[Value, ...]
    guard: Value | None
    place: Place | None


@dataclass(frozen=True, eq=False)
class Barrier:
    """All threads of the block, or the lanes of a warp, wait for each other."""

    warp: bool
    place: Place | None


@dataclass(frozen=True, eq=False)
class Shuffle:
    """What another lane of the warp has: `mode` is bfly, idx, up or down. All 32 lanes take part."""

    mode: str
    value: Value
    by: Value
    result: Value
    place: Place | None


@dataclass(frozen=True, eq=False)
class Atomic:
    """An atomic operation, by the name of its instruction; `result` is what was there before, None where nobody asks."""

    name: str
    space: str
    address: Value
    values: tuple[Value, ...]
    result: Value | None
    guard: Value | None
    place: Place | None


@dataclass(frozen=True, eq=False)
class Assembly:
    """Any other instruction with an effect or several results: its template has %0, %1, ... for results, then inputs.

    `held` is what the registers of the results have before, where the instruction reads them too; else it is empty. `groups`
    says how many inputs each operand has, `roles` of each input whether it is a "value", a "predicate", or an address of
    "global", "shared" or "wide" shared memory (by a register of 64 bits).
    """

    name: str
    template: str
    results: tuple[Value, ...]
    held: tuple[Value, ...]
    inputs: tuple[Value, ...]
    groups: tuple[int, ...]
    roles: tuple[str, ...]
    guard: Value | None
    place: Place | None


@dataclass(frozen=True, eq=False)
class If:
    """Two regions, and variables that each gives a value: (variable, value of the first, value of the second)."""

    condition: Value
    then: Region
    other: Region
    merged: tuple[tuple[Value, Value, Value], ...]
    place: Place | None


@dataclass(frozen=True, eq=False)
class Carried:
    """A variable of a loop: what reads it inside and behind, its first value, and the value that each round ends with."""

    inside: Value
    behind: Value
    first: Value
    next: Value


@dataclass(frozen=True, eq=False)
class Counter:
    """A loop's variable that grows by a constant each round, and the number that it is compared with before each round."""

    carried: Carried
    bound: Value
    relation: str  # of the variable to the bound, as long as the loop goes on

    def before(self, condition: Value) -> tuple[str, str, Value, Value]:
        """The comparison before the first round: relation, sign, and both numbers."""
        return self.relation, condition.data[1], self.carried.first, self.bound


@dataclass(frozen=True, eq=False)
class Loop:
    """A region that is done again as long as the condition holds at its end; with a counter also before the first time."""

    body: Region
    carried: tuple[Carried, ...]
    condition: Value
    place: Place | None
    counter: Counter | None = None


Effect: TypeAlias = Load | Store | Barrier | Shuffle | Atomic | Assembly | If | Loop


@dataclass(frozen=True, eq=False)
class Region:
    """Effects in order."""

    effects: tuple[Effect, ...]


def operands(effect: Effect) -> tuple[Value, ...]:
    """The values that an effect itself reads, without what stands in its regions; a loop's ends are its body's."""
    match effect:
        case Load():
            old = tuple(o for o in effect.old if o.op != "undefined")
            return (effect.address, *_guard(effect.guard), *(old if effect.guard is not None else ()))
        case Store() | Atomic():
            return (effect.address, *effect.values, *_guard(effect.guard))
        case Shuffle():
            return (effect.value, effect.by)
        case Assembly():
            return (*effect.held, *effect.inputs, *_guard(effect.guard))
        case If():
            return (effect.condition,)
        case Loop():
            return (*(c.first for c in effect.carried), *((effect.counter.bound,) if effect.counter else ()))
    return ()


def results(effect: Effect) -> tuple[Value, ...]:
    """The leaves that an effect makes."""
    match effect:
        case Load() | Assembly():
            return effect.results
        case Shuffle():
            return (effect.result,)
        case Atomic():
            return () if effect.result is None else (effect.result,)
        case If():
            return tuple(v for v, _, _ in effect.merged)
        case Loop():
            return tuple(c.behind for c in effect.carried)
    return ()


def inner(effect: Effect) -> tuple[tuple[Region, tuple[Value, ...]], ...]:
    """The regions of an effect, each with the values that are read at its end."""
    match effect:
        case If():
            return (
                (effect.then, tuple(a for _, a, _ in effect.merged)),
                (effect.other, tuple(b for _, _, b in effect.merged)),
            )
        case Loop():
            return ((effect.body, (*(c.next for c in effect.carried), effect.condition)),)
    return ()


def walk(region: Region) -> Iterator[Effect]:
    """All effects, those of regions after the effect that holds them."""
    for effect in region.effects:
        yield effect
        for held, _ in inner(effect):
            yield from walk(held)


def regions(region: Region) -> Iterator[Region]:
    """A region and all inside of it."""
    yield region
    for effect in region.effects:
        for held, _ in inner(effect):
            yield from regions(held)


def _guard(guard: Value | None) -> tuple[Value, ...]:
    return () if guard is None else (guard,)
