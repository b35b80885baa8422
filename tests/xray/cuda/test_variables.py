"""Variables of a loop take their next values in an order in which none reads what another has replaced."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

import pytest

from tilefold.xray.cuda.readable.tree import Carried, Loop, Region
from tilefold.xray.cuda.readable.values import Graph, Value
from tilefold.xray.cuda.readable.variables import Group, Variables


@pytest.mark.parametrize(
    ("reads", "read"),
    [((), False), (((0, 0), (1, 1)), False), (((1, 0),), True), (((0, 1),), False), (((0, 1), (1, 0)), True)],
    ids=str,
)
def test_an_array_s_later_element_reads_no_earlier_one(
    reads: tuple[tuple[int, int], ...], read: bool
) -> None:
    """`reads`: whose next value reads whose present one."""
    graph = Graph(128)
    inside = [graph.make("variable", data=(k,)) for k in range(2)]
    nexts: list[Value] = []
    for k in range(2):
        of = [inside[j] for i, j in reads if i == k] or [graph.const(7)]
        nexts.append(graph.make("ptx", *of, graph.const(k), data=("fma.rn.f32",)))
    carried = tuple(Carried(v, v, graph.const(0), n) for v, n in zip(inside, nexts, strict=True))
    loop = Loop(Region(()), carried, graph.const(1, 1), None)
    sheet = SimpleNamespace(named=dict.fromkeys(inside, ""), instead={})
    variables = Variables(cast(Any, SimpleNamespace(sheet=sheet)), cast(Any, None))
    group = Group("x", "float", (0, 1))
    assert variables._is_read(group, [group], loop) == read
