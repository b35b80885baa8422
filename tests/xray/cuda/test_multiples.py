"""Variables of loops that stay multiples: found where they are, and never believed where they are not."""

from __future__ import annotations

import pytest

from tilefold.xray.cuda.readable.multiples import holds, multiples
from tilefold.xray.cuda.readable.tree import Carried, Loop, Region
from tilefold.xray.cuda.readable.values import Graph, Value


def loop(graph: Graph, first: Value | int, step: Value | int) -> Region:
    """A loop whose variable 1 begins with `first` and grows by `step`; 2 is what it leaves."""
    inside, behind = (graph.make("variable", data=(k,)) for k in (1, 2))
    begin = graph.const(first) if isinstance(first, int) else first
    after = graph.binary("add", inside, graph.const(step) if isinstance(step, int) else step)
    return Region((Loop(Region(()), (Carried(inside, behind, begin, after),), graph.const(1, 1), None),))


@pytest.mark.parametrize(
    ("first", "step", "bits"), [(0, 32768, 15), (64, 256, 6), (0, -128, 7), (1, 2, 0), (8, 3, 0)]
)
def test_what_is_found(first: int, step: int, bits: int) -> None:
    graph = Graph(128)
    region = loop(graph, first, step)
    assert multiples(region, graph) == ({1: bits, 2: bits} if bits else {})
    again = Graph(128, multiples(region, graph))
    assert holds(loop(again, first, step), again)


def test_a_first_number_of_the_program_counts_by_its_clear_bits() -> None:
    graph = Graph(128)
    pid = graph.shl(graph.make("special", data=("%ctaid.x",)), 10)
    assert multiples(loop(graph, pid, 4096), graph) == {1: 10, 2: 10}


@pytest.mark.parametrize(("first", "step"), [(4, 32), (0, 4), (0, 31)])
def test_what_does_not_hold_is_seen(first: int, step: int) -> None:
    graph = Graph(128, {1: 5, 2: 5})
    assert not holds(loop(graph, first, step), graph)


def test_a_variable_of_no_loop_does_not_hold() -> None:
    graph = Graph(128, {1: 5, 2: 5, 3: 5})
    assert not holds(loop(graph, 0, 32), graph)


def test_joined_bits_are_a_sum() -> None:
    """And what was added to a multiple is told from its lowest bits."""
    graph = Graph(128, {1: 9})
    inside, tid = graph.make("variable", data=(1,)), graph.make("special", data=("%tid.x",))
    assert graph.binary("or", inside, tid).op == "add"
    assert graph.binary("or", graph.make("variable", data=(4,)), tid).op == "or"
