"""How one state is made of two, a state being one value or several: found in a step of a warp's fold, and again in others."""

from __future__ import annotations

import itertools
from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

from tilefold.xray.cuda.readable.scopes import Scopes
from tilefold.xray.cuda.readable.tree import Effect, Shuffle
from tilefold.xray.cuda.readable.values import LEAVES, MIRRORED, Graph, Value

State = tuple[Value, ...]
_MOST = 4  # values of a state
_LONGEST = 64  # values of a combine
_ADDED = ("add.f32", "add.rn.f32", "add.f64")
_TRIES = 4  # ways in which a state may be made of two
# What gives the same bits with its first two arguments exchanged.
_TURNS = {"add", "mul", "and", "or", "xor"}
_TURNED = ("add.", "mul.", "max.", "min.", "fma.", "and.", "or.", "xor.")


@dataclass(frozen=True, eq=False)
class Combine:
    """Both states as leaves, the values made of them, in order, and what they end with."""

    own: State
    other: State
    inner: tuple[Value, ...]
    results: State

    def reads(self, value: Value) -> bool:
        """Whether something is made of a value of a state."""
        return any(value in v.args for v in self.inner)


@dataclass(frozen=True, eq=False)
class Halved:
    """A fold of lanes in halves: its first shuffles, what comes out (None where nobody reads it), and distances."""

    combine: Combine
    shuffles: tuple[Shuffle, ...]  # of the first step, in the order of the state
    results: tuple[Value | None, ...]
    uses: Counter[Value]  # of the results in the last step itself
    first: int
    last: int


@dataclass(frozen=True, eq=False)
class Climbed:
    """A scan of lanes: each lane whose place is a distance or more takes in what the lane so far below has.

    Distances double from the first to the last; a lane's place is counted in lanes that are `apart` from each other.
    """

    combine: Combine
    shuffles: tuple[Shuffle, ...]  # of the first step, in the order of the state
    results: tuple[Value | None, ...]
    place: Value
    apart: int
    first: int
    last: int


class Combines:
    """Finds how the lanes of a warp combine what they have."""

    def __init__(self, graph: Graph, scopes: Scopes) -> None:
        self._graph, self._scopes = graph, scopes
        self._choices: dict[Value, list[Value]] = defaultdict(list)  # by what they choose
        for value in scopes.homes:
            if value.op == "select":
                for arm in value.args[1:]:
                    self._choices[arm].append(value)

    def halved(
        self, effects: Sequence[Effect], known: Combine | None = None
    ) -> tuple[tuple[Halved, ...], int] | None:
        """Folds of a warp with which effects begin, and how many shuffles these are; None where they begin with none.

        Of one step alone the combine must be `known`.
        """
        steps = list(_steps(effects, "bfly"))
        if not steps or (known is None and len(steps) < 2):
            return None
        for order in itertools.permutations(steps[known is None]) if len(steps[0]) <= _MOST else ():
            combine, begin = known, order
            if known is None:
                begin = steps[0]
                combine = self._combine(begin, tuple(e.value for e in order))
            if combine is None or len(combine.own) != len(begin):
                continue
            found = self._chain(combine, [begin, *steps[1:]], 2 if known is None else 1)
            if found is not None:
                made, uses, count = found
                far = begin[0].by.constant or 1
                one = Halved(combine, begin, made, uses, far, far >> (count - 1))
                return tuple(_apart(one)), count * len(begin)
        return None

    def climbed(self, effects: Sequence[Effect]) -> tuple[Climbed, int] | None:
        """The scan of a warp's lanes with which effects begin, and how many shuffles it has; None where there is none."""
        steps = list(_steps(effects, "up"))
        for order in itertools.permutations(steps[1]) if len(steps) > 1 and len(steps[0]) <= _MOST else ():
            step, distance = steps[0], steps[0][0].by.constant or 1
            guards = [self._guarded(e.value, own.value) for e, own in zip(order, step, strict=True)]
            known = [g for g in guards if g is not None]
            if len(known) < len(step) or len({g[:2] for g in known}) > 1:
                continue
            place, least, _ = known[0]
            combine = self._combine(step, tuple(combined for _, _, combined in known))
            found = None
            if combine is not None and distance % least == 0:
                found = self._climb(combine, steps, place, least)
            if combine is not None and found is not None:
                results, count = found
                far, apart = distance << (count - 1), distance // least
                return Climbed(combine, step, results, place, apart, distance, far), count * len(step)
        return None

    def _climb(
        self, combine: Combine, steps: Sequence[tuple[Shuffle, ...]], place: Value, least: int
    ) -> tuple[tuple[Value | None, ...], int] | None:
        """What so many steps of a scan end with, two or more, where nobody else reads what is between them."""
        step = steps[0]
        found: tuple[tuple[Value | None, ...], int] | None = None
        for count in range(1, len(steps) + 1):
            own, other = tuple(e.value for e in step), tuple(e.result for e in step)
            made = self.again(combine, own, other)
            if made is None:
                break
            held, combined = made
            chosen = tuple(
                None if c is None else self._chosen(c, o, place, least)
                for c, o in zip(combined, own, strict=True)
            )
            used = Counter(a for v in held for a in v.args)
            used += Counter(a for v in chosen if v is not None for a in v.args)
            inside = {v for v in held if v not in chosen}
            if any((c is None) != (d is None) for c, d in zip(combined, chosen, strict=True)):
                break
            if any(self._scopes.uses[v] != used[v] for v in (*other, *inside)):
                break
            if count > 1 and any(self._scopes.uses[v] != 1 + used[v] for v in own):
                break
            found = (chosen, count) if count > 1 else None
            after = {e.value: e for e in steps[count]} if count < len(steps) else {}
            if {v for v in chosen if v is not None} != {*after} or len(after) < len(chosen):
                break
            step, least = tuple(after[v] for v in chosen if v is not None), 2 * least
        return found

    def _guarded(self, value: Value, own: Value) -> tuple[Value, int, Value] | None:
        """(place, least, other value) of a choice of that where a place is the least or more, and else of one's own."""
        if value.op != "select" or value.args[0].op != "compare":
            return None
        condition, yes, no = value.args
        (relation, kind), (place, bound) = condition.data, condition.args
        number = bound.constant
        if number is None or number > 31 or kind == "f" or not self._graph.small(place):
            return None
        if relation in ("eq", "ne") and number:
            return None
        least = {"gt": number + 1, "le": number + 1, "ge": number, "lt": number}.get(relation, 1)
        other, kept = (yes, no) if relation in ("gt", "ge", "ne") else (no, yes)
        by = place.args[1].constant or 0 if place.op in ("shl", "shr") else 0
        if place.op == "shl" and number == 0 and not self._graph.possible(place.args[0]) >> (32 - by):
            place = place.args[0]
        elif place.op == "shr":
            place, least = place.args[0], least << by
        return (place, least, other) if kept is own and least else None

    def _chosen(self, combined: Value, own: Value, place: Value, least: int) -> Value | None:
        """What a lane goes on with: the combined value where its place is the least or more."""
        given = (place, least, combined)
        return next((v for v in self._choices[combined] if self._guarded(v, own) == given), None)

    def _combine(self, step: tuple[Shuffle, ...], results: State) -> Combine | None:
        own, other = tuple(e.value for e in step), tuple(e.result for e in step)
        inner = _between({*own, *other}, results)
        whole = inner is not None and all(r in inner for r in results)
        return Combine(own, other, inner, results) if inner is not None and whole else None

    def _chain(
        self, combine: Combine, steps: Sequence[tuple[Shuffle, ...]], least: int
    ) -> tuple[tuple[Value | None, ...], Counter[Value], int] | None:
        """What so many steps end with, where each goes on with what the one before made, and nobody else reads that."""
        step, needed = steps[0], Counter[Value]()
        found: tuple[tuple[Value | None, ...], Counter[Value], int] | None = None
        for count in range(1, len(steps) + 1):
            own, other = tuple(e.value for e in step), tuple(e.result for e in step)
            made = self.again(combine, own, other)
            if made is None:
                break
            held, results = made
            uses = Counter(a for v in held for a in v.args)
            ends = {r for r in results if r is not None}
            if any(self._scopes.uses[v] != uses[v] for v in (*other, *(held - ends))):
                break
            if count > 1 and any(self._scopes.uses[v] != 1 + needed[v] + uses[v] for v in own):
                break
            found = results, uses, count
            after = {e.value: e for e in steps[count]} if count < len(steps) else {}
            if ends != {*after} or len(ends) < len(results):
                break
            step, needed = tuple(after[r] for r in results if r is not None), uses
        return found if found is not None and found[2] >= least else None

    def again(
        self, combine: Combine, own: State, other: State
    ) -> tuple[set[Value], tuple[Value | None, ...]] | None:
        """The values made of two other states in the same way, and what they end with; None where nothing is."""
        at: dict[Value, Value | None] = dict(zip((*combine.own, *combine.other), (*own, *other), strict=True))
        for value in combine.inner:
            args = tuple(a if a.op == "const" else at[a] for a in value.args)
            at[value] = self._found(value, args)
        results = tuple(at[r] for r in combine.results)
        held = {v for k in combine.inner if (v := at[k]) is not None}
        live = _between({*own, *other}, tuple(r for r in results if r is not None))
        return None if live is None or not live else (held & {*live}, results)

    def unfolded(self, combine: Combine, state: State) -> tuple[Combine, State, tuple[State, ...]]:
        """What a thread began with, and the states that it took in one after the other, to make one of its own.

        The combine is that by which it did: some of what it took in may be zero. Nobody else reads what is between.
        """
        found = [(c, *self._unfolded(c, state)) for c in (combine, *_without(combine))]
        return max(found, key=lambda one: len(one[2]))

    def _unfolded(self, combine: Combine, state: State) -> tuple[State, tuple[State, ...]]:
        steps: list[State] = []
        needed: Counter[Value] | None = None  # how often what comes after reads a state
        while True:
            for own, other, made in itertools.islice(_unmade(combine, state), _TRIES):
                used = Counter(a for v in made for a in v.args)
                if all(self._scopes.uses[v] == n for v, n in _expected(made, used, state, needed)):
                    state, needed = own, used
                    steps.append(other)
                    break
            else:
                return state, tuple(steps[::-1])

    def _found(self, value: Value, args: tuple[Value | None, ...]) -> Value | None:
        """A value of the same operation and other arguments, in either order where that is the same."""
        given = tuple(a for a in args if a is not None)
        if len(given) < len(args):
            return None
        tries = [(given, value.data)]
        if len(given) > 1 and (turned := _turned(value)) is not None:
            tries.append(((given[1], given[0], *given[2:]), turned))
        for arguments, data in tries:
            found = self._graph.find(value.op, arguments, data, value.bits)
            if found is not None and found in self._scopes.homes:
                return found
        return None


def _expected(
    made: set[Value], used: Counter[Value], state: State, after: Counter[Value] | None
) -> Iterator[tuple[Value, int]]:
    """How often values are read by a step, and of its state by the step after it; the last state anybody may read."""
    for value in made:
        if value not in state:
            yield value, used[value]
        elif after is not None:
            yield value, used[value] + after[value]


def _without(combine: Combine) -> Iterator[Combine]:
    """What a combine is where one value of the other state is zero, and only added."""
    for gone in combine.other:
        at: dict[Value, Value] = {}
        for value in combine.inner:
            args = tuple(at.get(a, a) for a in value.args)
            rest = [a for a in args if a is not gone]
            if value.op == "ptx" and value.data[0] in _ADDED and len(rest) == 1:
                at[value] = rest[0]
            else:
                at[value] = replace(value, args=args)
        inner, results = (
            tuple(v for v in at.values() if v not in combine.own),
            tuple(at[r] for r in combine.results),
        )
        if all(gone not in v.args for v in inner) and all(r in inner for r in results):
            yield Combine(combine.own, combine.other, inner, results)


def _unmade(combine: Combine, state: State) -> Iterator[tuple[State, State, set[Value]]]:
    """Two states of which a combine makes one, and all that it makes; those first of which the first was made so, too."""
    found = []
    for at in _alike(combine, [*zip(combine.results, state, strict=True)], {}):
        own, other = (tuple(at[v] for v in part if v in at) for part in (combine.own, combine.other))
        one = own, other, {at[v] for v in combine.inner}
        if next(_alike(combine, [*zip(combine.results, own, strict=True)], {}), None) is not None:
            yield one
        else:
            found.append(one)
    yield from found


def _alike(
    combine: Combine, pairs: list[tuple[Value, Value]], at: dict[Value, Value]
) -> Iterator[dict[Value, Value]]:
    """What stands for a combine's values where others are made as they are; its states' stand for any."""
    if not pairs:
        yield at
        return
    (form, value), *rest = pairs
    if form in at or form.op == "const":
        if at.get(form, form) is value:
            yield from _alike(combine, rest, at)
    elif form in combine.own or form in combine.other:
        yield from _alike(combine, rest, {**at, form: value})
    else:
        for args in _orders(form, value):
            made = [*zip(form.args, args, strict=True), *rest]
            yield from _alike(combine, made, {**at, form: value})


def _orders(form: Value, value: Value) -> Iterator[tuple[Value, ...]]:
    """The arguments of a value that is made by another one's operation, in each order in which that gives it."""
    if (form.op, form.bits, len(form.args)) != (value.op, value.bits, len(value.args)):
        return
    if form.data == value.data:
        yield value.args
    if _turned(form) == value.data and value.args[0] is not value.args[1]:
        yield (value.args[1], value.args[0], *value.args[2:])


def _turned(value: Value) -> tuple[Any, ...] | None:
    """What an operation is with its first two arguments exchanged; None where it is no one."""
    if value.op == "compare":
        return (MIRRORED.get(value.data[0], value.data[0]), *value.data[1:])
    name = value.data[0] if value.op == "ptx" else ""
    return value.data if value.op in _TURNS or (name and name.startswith(_TURNED)) else None


def _steps(effects: Sequence[Effect], mode: str) -> Iterator[tuple[Shuffle, ...]]:
    """Shuffles of one distance, then of half of it, or of twice where lanes look up; equally many each time."""
    at, distance, count = 0, 0, 0
    while at < len(effects):
        step: list[Shuffle] = []
        for effect in effects[at : at + count] if count else effects:
            by = effect.by.constant if isinstance(effect, Shuffle) and effect.mode == mode else None
            if not isinstance(effect, Shuffle) or not by or by != (distance or by):
                break
            distance = by
            step.append(effect)
        count = count or len(step)
        if not step or len(step) < count or len({e.value for e in step}) < count:
            return
        yield tuple(step)
        at, distance = at + count, distance // 2 if mode == "bfly" else 2 * distance
        if distance not in range(1, 32):
            return


def _between(begin: set[Value], ends: Sequence[Value]) -> tuple[Value, ...] | None:
    """The values that some are made of down to others, in order; None where they are made of anything else."""
    found, waiting = set[Value](), [*ends]
    while waiting:
        at = waiting.pop()
        if at in begin or at in found or at.op == "const":
            continue
        if at.op in LEAVES or len(found) > _LONGEST:
            return None
        found.add(at)
        waiting += at.args
    return tuple(sorted(found, key=lambda v: v.number))


def _apart(found: Halved) -> Iterator[Halved]:
    """Folds that have nothing to do with each other, which run side by side."""
    combine, left = found.combine, [*range(len(found.results))]
    needs = []
    for k in left:
        made = {*(_between({*combine.own, *combine.other}, combine.results[k : k + 1]) or ())}
        used = {a for v in made for a in v.args}
        needs.append({n for n in left if used & {combine.own[n], combine.other[n]}} | {k})
    while left:
        part = needs[left[0]]
        while (more := set[int]().union(*(n for n in needs if n & part))) != part:
            part = more
        left = [k for k in left if k not in part]
        chosen = sorted(part)
        own, other, results = (
            tuple(s[k] for k in chosen) for s in (combine.own, combine.other, combine.results)
        )
        inner = _between({*own, *other}, results) or ()
        yield Halved(
            Combine(own, other, inner, results),
            tuple(found.shuffles[k] for k in chosen),
            tuple(found.results[k] for k in chosen),
            found.uses,
            found.first,
            found.last,
        )
