"""Steps in which lanes combine their states: taken as a loop as far as they are alike, and nobody reads what is between."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import pytest

from tilefold.xray.cuda.readable.combines import Climbed, Combine, Combines, Halved
from tilefold.xray.cuda.readable.scopes import Scopes
from tilefold.xray.cuda.readable.tree import Effect, Region, Shuffle, Store
from tilefold.xray.cuda.readable.values import Graph, Value

State = tuple[Value, ...]
Step = Callable[[Graph, State, State], State]


def number(graph: Graph, op: str, *args: Value) -> Value:
    return graph.make("ptx", *args, data=(f"{op}.f32",))


def moments(graph: Graph, own: State, other: State) -> State:
    """A sum, and a sum of products that reads both sums; the order of a difference counts."""
    apart = number(graph, "sub", other[0], own[0])
    square = number(graph, "mul", apart, apart)
    return (
        number(graph, "add", own[0], other[0]),
        number(graph, "add", number(graph, "add", own[1], other[1]), square),
    )


def turned(graph: Graph, own: State, other: State) -> State:
    """The same with turned sums."""
    square = number(graph, "mul", *[number(graph, "sub", other[0], own[0])] * 2)
    return (
        number(graph, "add", other[0], own[0]),
        number(graph, "add", number(graph, "add", other[1], own[1]), square),
    )


def backwards(graph: Graph, own: State, other: State) -> State:
    """Almost the same: the difference goes the other way."""
    return moments(graph, other, own)


def larger(graph: Graph, own: State, other: State) -> State:
    test = graph.compared("gt", "f", own[0], other[0])
    return tuple(graph.selected(test, a, b) for a, b in zip(own, other, strict=True))


def mirrored(graph: Graph, own: State, other: State) -> State:
    test = graph.compared("lt", "f", other[0], own[0])
    return tuple(graph.selected(test, a, b) for a, b in zip(own, other, strict=True))


def smaller(graph: Graph, own: State, other: State) -> State:
    test = graph.compared("lt", "f", own[0], other[0])
    return tuple(graph.selected(test, a, b) for a, b in zip(own, other, strict=True))


def smaller_mirrored(graph: Graph, own: State, other: State) -> State:
    test = graph.compared("gt", "f", other[0], own[0])
    return tuple(graph.selected(test, a, b) for a, b in zip(own, other, strict=True))


def scaled(by: int) -> Step:
    def step(graph: Graph, own: State, other: State) -> State:
        return tuple(
            number(graph, "fma", b, graph.const(by), a) for a, b in zip(own, other[::-1], strict=True)
        )

    return step


def side_by_side(graph: Graph, own: State, other: State) -> State:
    """Two that have nothing to do with each other."""
    return number(graph, "add", own[0], other[0]), number(graph, "max", own[1], other[1])


class Lanes:
    """Effects of lanes that combine states of two values, step by step."""

    def __init__(self, mode: str = "bfly") -> None:
        self.graph, self.mode, self.made = Graph(128), mode, 0
        self.effects: list[Effect] = []
        self.states = [(self.result(), self.result())]
        self.others: list[State] = []
        self.lane = self.graph.binary(
            "and", self.graph.make("special", data=("%tid.x",)), self.graph.const(31)
        )

    def result(self) -> Value:
        self.made += 1
        return self.graph.make("result", data=(self.made,))

    def step(
        self, distance: int, combine: Step, guard: Callable[[Value, Value], Value] | None = None
    ) -> Lanes:
        own, other = self.states[-1], (self.result(), self.result())
        for value, result in zip(own, other, strict=True):
            self.effects.append(Shuffle(self.mode, value, self.graph.const(distance), result, None))
        made = combine(self.graph, own, other)
        if guard is not None:
            made = tuple(guard(c, o) for c, o in zip(made, own, strict=True))
        self.states.append(made)
        self.others.append(other)
        return self

    def found(self, *read: Value) -> Combines:
        """With what finds; the last state is read, and other values too."""
        stores = [
            Store("global", self.graph.const(0, 64), (v,), None, None) for v in (*self.states[-1], *read)
        ]
        return Combines(self.graph, Scopes(Region((*self.effects, *stores))))

    def halved(self, *read: Value) -> list[Halved]:
        found = self.found(*read).halved(self.effects)
        return [] if found is None else [*found[0]]

    def climbed(self, *read: Value) -> Climbed | None:
        found = self.found(*read).climbed(self.effects)
        return None if found is None else found[0]

    def from_lane(self, least: int, by: int = 1) -> Callable[[Value, Value], Value]:
        """Combined in lanes of so high a number, by as many as one counts."""
        place = self.graph.shr(self.lane, by.bit_length() - 1)

        def guard(combined: Value, own: Value) -> Value:
            if least == 1:
                first = self.graph.compared("eq", "u", place, self.graph.const(0))
                return self.graph.selected(first, own, combined)
            there = self.graph.compared("gt", "u", place, self.graph.const(least - 1))
            return self.graph.selected(there, combined, own)

        return guard


def halving(*combines: Step) -> Lanes:
    lanes = Lanes()
    for k, combine in enumerate(combines):
        lanes.step(16 >> k, combine)
    return lanes


def only(found: Sequence[Halved]) -> Halved:
    assert len(found) == 1
    return found[0]


@pytest.mark.parametrize(
    ("first", "second"), [(moments, moments), (moments, turned), (larger, larger), (larger, mirrored)]
)
def test_steps_that_are_alike_are_one_loop(first: Step, second: Step) -> None:
    lanes = halving(first, first, second, first, second)
    fold = only(lanes.halved())
    assert (fold.first, fold.last) == (16, 1)
    assert fold.results == lanes.states[-1]


@pytest.mark.parametrize(
    ("first", "other"),
    [
        (moments, backwards),
        (larger, smaller),
        (larger, smaller_mirrored),
        (scaled(2), scaled(3)),
        (moments, larger),
    ],
    ids=["backwards", "smaller", "smaller, mirrored", "another constant", "another operation"],
)
def test_a_step_of_another_kind_ends_the_loop(first: Step, other: Step) -> None:
    lanes = halving(first, first, first, other, first)
    fold = only(lanes.halved())
    assert (fold.first, fold.last) == (16, 4)
    assert fold.results == lanes.states[3]


def test_a_value_that_others_read_ends_the_loop() -> None:
    lanes = halving(moments, moments, moments, moments, moments)
    fold = only(lanes.halved(lanes.states[3][1]))
    assert (fold.last, fold.results) == (4, lanes.states[3])
    fold = only(lanes.halved(lanes.others[3][0]))  # what another lane had
    assert fold.last == 4
    inner = lanes.graph.find("ptx", (lanes.others[3][0], lanes.states[3][0]), ("sub.f32",), 32)
    assert inner is not None
    assert only(lanes.halved(inner)).last == 4  # and what is made within a step
    assert lanes.halved(lanes.states[1][0]) == []  # one step is no loop
    assert only(lanes.halved(lanes.states[0][0])).last == 1  # what it begins with may be read


def test_distances_are_halved() -> None:
    lanes = Lanes().step(16, moments).step(8, moments).step(2, moments).step(1, moments)
    assert only(lanes.halved()).last == 8
    assert Lanes().step(16, moments).step(4, moments).halved() == []
    assert Lanes("up").step(16, moments).step(8, moments).halved() == []


def test_folds_side_by_side_are_apart() -> None:
    lanes = halving(*[side_by_side] * 5)
    found = lanes.halved()
    assert [f.results for f in found] == [(lanes.states[-1][0],), (lanes.states[-1][1],)]
    assert [len(f.combine.own) for f in found] == [1, 1]
    assert len(only(halving(*[moments] * 5).halved()).combine.own) == 2


def test_one_step_alone_must_be_of_a_combine_that_is_known() -> None:
    lanes = halving(moments, moments)
    known = only(lanes.halved()).combine
    own, other = (lanes.result(), lanes.result()), (lanes.result(), lanes.result())
    effects = [Shuffle("bfly", v, lanes.graph.const(1), r, None) for v, r in zip(own, other, strict=True)]
    lanes.effects += effects
    lanes.states.append(moments(lanes.graph, own, other))
    finds = lanes.found()
    assert finds.halved(effects) is None
    found = finds.halved(effects, known)
    assert found is not None
    assert (found[1], found[0][0].results) == (2, lanes.states[-1])


# ------------------------------------------------------------------------------------------------------- scans
def climbing(combine: Step, *leasts: int, apart: int = 1) -> Lanes:
    lanes = Lanes("up")
    for k, least in enumerate(leasts):
        lanes.step(apart << k, combine, lanes.from_lane(least, apart))
    return lanes


@pytest.mark.parametrize("combine", [moments, larger, side_by_side])
def test_steps_of_a_scan_are_one_call(combine: Step) -> None:
    lanes = climbing(combine, 1, 2, 4, 8, 16)
    scan = lanes.climbed()
    assert scan is not None
    assert (scan.first, scan.last, scan.apart, scan.place) == (1, 16, 1, lanes.lane)
    assert scan.results == lanes.states[-1]


def test_a_scan_may_go_over_lanes_that_are_apart() -> None:
    """The place is a field of the thread's number, or, without other bits above, the number itself."""
    lanes = climbing(moments, 1, 2, 4, apart=4)
    scan = lanes.climbed()
    assert scan is not None
    assert (scan.first, scan.last) == (4, 16)
    assert (scan.place, scan.apart) == (lanes.graph.shr(lanes.lane, 2), 4)
    lanes = Lanes("up")
    lanes.lane = lanes.graph.make("special", data=("%tid.x",))
    for k in range(3):
        lanes.step(4 << k, moments, lanes.from_lane(1 << k, 4))
    scan = lanes.climbed()
    assert scan is not None
    assert (scan.first, scan.last) == (4, 16)
    assert (scan.place, scan.apart) == (lanes.lane, 1)


@pytest.mark.parametrize("leasts", [(1, 2, 3), (1, 2, 8), (1, 2, 2)])
def test_a_step_of_a_scan_takes_in_lanes_from_its_distance_on(leasts: tuple[int, ...]) -> None:
    lanes = climbing(moments, *leasts)
    scan = lanes.climbed()
    assert scan is not None
    assert (scan.last, scan.results) == (2, lanes.states[2])


def test_the_lanes_below_keep_their_own() -> None:
    lanes = Lanes("up")
    for distance in (1, 2, 4):
        guard = lanes.from_lane(distance)
        lanes.step(distance, moments, lambda combined, own, guard=guard: guard(own, combined))  # type: ignore[misc]
    assert lanes.climbed() is None


def test_what_others_read_ends_a_scan() -> None:
    lanes = climbing(moments, 1, 2, 4, 8, 16)
    scan = lanes.climbed(lanes.states[3][0])
    assert scan is not None
    assert (scan.last, scan.results) == (4, lanes.states[3])
    scan = lanes.climbed(lanes.others[3][1])
    assert scan is not None
    assert scan.last == 4
    combined = lanes.states[4][0].args[1]
    scan = lanes.climbed(combined)
    assert scan is not None
    assert scan.last == 4
    assert lanes.climbed(lanes.states[1][0]) is None


# ------------------------------------------------------------------------------------------------ within a thread
def taking(*combines: Step) -> tuple[Lanes, list[State], list[State]]:
    """Lanes that begin with what they took in one after the other; what they took in, and what they had before each."""
    lanes = Lanes()
    taken, before = [], []
    for combine in combines:
        taken.append((lanes.result(), lanes.result()))
        before.append(lanes.states[0])
        lanes.states[0] = combine(lanes.graph, lanes.states[0], taken[-1])
    return lanes.step(16, moments).step(8, moments), taken, before


def unfolded(lanes: Lanes, *read: Value) -> tuple[Combine, State, tuple[State, ...]]:
    combine = only(lanes.halved()).combine
    return lanes.found(*read).unfolded(combine, lanes.states[0])


def empty(graph: Graph, own: State, other: State) -> State:
    """The moments, where the second of the other is zero and its sum is left out."""
    square = number(graph, "mul", *[number(graph, "sub", other[0], own[0])] * 2)
    return number(graph, "add", own[0], other[0]), number(graph, "add", square, own[1])


def test_a_thread_takes_in_states_as_lanes_do() -> None:
    lanes, taken, before = taking(moments, turned, moments, turned)
    combine, start, steps = unfolded(lanes)
    assert (start, steps) == (before[0], tuple(taken))
    assert all(combine.reads(v) for v in combine.other)
    assert unfolded(lanes, lanes.states[0][1])[2] == steps  # what it ends with may be read
    assert unfolded(lanes, start[0], taken[2][1])[2] == steps  # and what goes in


@pytest.mark.parametrize("other", [larger, scaled(2), side_by_side], ids=["larger", "scaled", "side by side"])
def test_a_step_of_another_kind_ends_what_a_thread_takes_in(other: Step) -> None:
    lanes, taken, before = taking(moments, other, moments, moments)
    assert unfolded(lanes)[1:] == (before[2], tuple(taken[2:]))


def test_what_others_read_ends_what_a_thread_takes_in() -> None:
    lanes, taken, before = taking(moments, moments, moments, moments)
    for at in (1, 2, 3):
        for read in before[at]:
            assert unfolded(lanes, read)[1:] == (before[at], tuple(taken[at:]))
    inner = lanes.graph.find("ptx", (taken[2][0], before[2][0]), ("sub.f32",), 32)
    assert inner is not None
    assert unfolded(lanes, inner)[1:] == (before[3], (taken[3],))


def test_a_thread_takes_in_states_that_are_partly_zero() -> None:
    lanes, taken, before = taking(empty, empty, empty)
    combine, start, steps = unfolded(lanes)
    assert (start, steps) == (before[0], tuple((first,) for first, _ in taken))
    assert [combine.reads(v) for v in combine.other] == [True, False]
    mixed, taken, before = taking(empty, moments, moments)
    combine, start, steps = unfolded(mixed)
    assert (start, steps) == (before[1], tuple(taken[1:]))
    assert all(combine.reads(v) for v in combine.other)
