"""Variables that hold only what loads under a guard keep in their registers."""

from __future__ import annotations

from dataclasses import dataclass

import pytest

from tilefold.xray.cuda.readable.olds import without_olds
from tilefold.xray.cuda.readable.tree import Carried, If, Load, Loop, Region, Store
from tilefold.xray.cuda.readable.values import Graph, Value


@dataclass
class Kernel:
    """A loop in which a load under a guard keeps what it loaded in the round before."""

    graph: Graph
    guard: Value
    first: Value
    read: bool = False  # what is kept is stored in each round
    after: Value | None = None  # of the next round, if it is not the load's
    inner: bool = False  # the load stands in an `if`

    def tree(self) -> Region:
        """The body."""
        graph = self.graph
        inside, behind, variable = (graph.make("variable", data=(k,)) for k in range(3))
        loaded, address = graph.make("result", data=(0,)), graph.make("shared", data=("smem",))
        load = Load("shared", address, (loaded,), self.guard, (inside,), None)
        effects: list[object] = [load]
        if self.inner:
            asked = graph.make("parameter", data=(7,), bits=1)
            effects = [If(asked, Region((load,)), Region(()), ((variable, loaded, inside),), None)]
        if self.read:
            effects.append(Store("shared", address, (inside,), None, None))
        after = self.after or (variable if self.inner else loaded)
        body = Region(tuple(effects))  # type: ignore[arg-type]
        return Region((Loop(body, (Carried(inside, behind, self.first, after),), graph.const(1, 1), None),))


def kept(kernel: Kernel) -> int:
    """The variables of the loop that are left."""
    (loop,) = without_olds(kernel.tree(), kernel.graph).effects
    assert isinstance(loop, Loop)
    effect = loop.body.effects[0]
    if isinstance(effect, If):
        assert len(effect.merged) == len(loop.carried)
        effect = effect.then.effects[0]
    assert isinstance(effect, Load)
    assert (effect.old[0].op == "undefined") == (not loop.carried)
    return len(loop.carried)


def few(graph: Graph) -> Value:
    return graph.compared("lt", "u", graph.make("special", data=("%tid.x",)), graph.const(4))


@pytest.mark.parametrize("inner", [False, True])
def test_what_only_the_load_keeps_goes(inner: bool) -> None:
    graph = Graph(128)
    assert kept(Kernel(graph, few(graph), graph.make("undefined"), inner=inner)) == 0


def test_a_first_value_is_kept_where_the_guard_does_not_hold() -> None:
    graph = Graph(128)
    assert kept(Kernel(graph, few(graph), graph.const(5))) == 1


def test_a_guard_that_changes_keeps_what_another_round_loaded() -> None:
    graph = Graph(128)
    other = graph.compared("lt", "u", graph.make("variable", data=(9,)), graph.const(4))
    assert kept(Kernel(graph, other, graph.make("undefined"))) == 1


def test_what_is_read_in_another_way_stays() -> None:
    graph = Graph(128)
    assert kept(Kernel(graph, few(graph), graph.make("undefined"), read=True)) == 1


def test_another_value_of_the_next_round_stays() -> None:
    graph = Graph(128)
    assert kept(Kernel(graph, few(graph), graph.make("undefined"), after=graph.const(3))) == 1
