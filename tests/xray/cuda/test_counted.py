"""Which loops are a `for`, and which lose the `if` around them."""

from __future__ import annotations

import pytest

from tilefold.xray.cuda.readable.counted import counted
from tilefold.xray.cuda.readable.tree import Carried, If, Loop, Region
from tilefold.xray.cuda.readable.values import Graph, Value


class Built:
    """A loop from a first number by a step as long as it is on one side of a bound, under an `if`."""

    def __init__(self, *, relation: str = "lt", step: int = 4, first: int | None = None) -> None:
        self.graph = graph = Graph(32)
        self.inside, self.behind, self.given = (graph.make("variable", data=(k,)) for k in range(3))
        self.first = graph.make("parameter", data=(0,)) if first is None else graph.const(first)
        self.bound = graph.make("parameter", data=(1,))
        after = graph.binary("add", self.inside, graph.const(step))
        self.carried = Carried(self.inside, self.behind, self.first, after)
        self.loop = Loop(Region(()), (self.carried,), graph.compared(relation, "s", after, self.bound), None)
        self.entry = graph.compared(relation, "s", self.first, self.bound)

    def under(self, condition: Value, *merged: tuple[Value, Value, Value]) -> If | Loop:
        made = counted(Region((If(condition, Region((self.loop,)), Region(()), merged, None),)), self.graph)
        (effect,) = made.effects
        assert isinstance(effect, If | Loop)
        return effect


@pytest.mark.parametrize("relation", ["lt", "gt", "le", "ge", "ne"])
def test_the_if_goes_where_it_asks_the_same(relation: str) -> None:
    built = Built(relation=relation)
    found = built.under(built.entry, (built.given, built.behind, built.first))
    assert isinstance(found, Loop)
    assert found.counter is not None
    assert (found.counter.bound, found.counter.relation) == (built.bound, relation)
    assert found.carried[0].behind is built.given
    assert found.counter.carried is found.carried[0]


def test_from_zero_the_bound_is_compared_with_one() -> None:
    built = Built(first=0)
    asked = built.graph.compared("ge", "s", built.bound, built.graph.const(1))
    assert isinstance(built.under(asked), Loop)


def test_the_if_stays_where_it_gives_something_else() -> None:
    built = Built()
    other = built.graph.make("parameter", data=(2,))
    found = built.under(built.entry, (built.given, built.behind, other))
    assert isinstance(found, If)
    assert isinstance(loop := found.then.effects[0], Loop)
    assert loop.counter is not None


def test_the_if_stays_where_it_asks_something_else() -> None:
    """What it asks lets the loop begin, but also holds where the `for` would go on."""
    built = Built(relation="ne")
    found = built.under(built.graph.compared("lt", "s", built.first, built.bound))
    assert isinstance(found, If)
    loop = found.then.effects[0]
    assert isinstance(loop, Loop)
    assert loop.counter is not None


def test_an_if_of_something_else_stays_though_the_loop_always_runs() -> None:
    built = Built(first=0)
    graph = built.graph
    loop = Loop(
        Region(()), (built.carried,), graph.compared("lt", "s", built.carried.next, graph.const(8)), None
    )
    asked = graph.make("variable", data=(9,), bits=1)
    (found,) = counted(Region((If(asked, Region((loop,)), Region(()), (), None),)), graph).effects
    assert isinstance(found, If)
    assert isinstance(inner := found.then.effects[0], Loop)
    assert inner.counter is not None


@pytest.mark.parametrize("known", [False, True])
def test_a_loop_that_is_entered_in_any_case_does_not_count(known: bool) -> None:
    built = Built()
    (found,) = counted(
        Region((built.loop,)), built.graph, frozenset({built.entry} if known else set())
    ).effects
    assert isinstance(found, Loop)
    assert (found.counter is not None) == known


def test_a_bound_that_changes_is_none() -> None:
    built = Built()
    graph = built.graph
    moving = Carried(
        graph.make("variable", data=(5,)), graph.make("variable", data=(6,)), built.bound, built.first
    )
    condition = graph.compared("lt", "s", built.carried.next, moving.inside)
    loop = Loop(Region(()), (built.carried, moving), condition, None)
    (found,) = counted(Region((loop,)), graph, frozenset({built.entry})).effects
    assert isinstance(found, Loop)
    assert found.counter is None
