"""Variables of loops whose lowest bits are always clear: what they begin with, and what each round leaves, are multiples."""

from __future__ import annotations

from tilefold.xray.cuda.readable.tree import Carried, Loop, Region, walk
from tilefold.xray.cuda.readable.values import Graph


def multiples(region: Region, graph: Graph) -> dict[int, int]:
    """How many of the lowest bits are clear of each variable that begins with a multiple and grows by one, by its number."""
    found: dict[int, int] = {}
    for carried in _all(region):
        after, inside = carried.next, carried.inside
        if after.op != "add" or after.args[0] is not inside or after.args[1].constant is None:
            continue
        count = min(_clear(graph.possible(v), v.bits) for v in (carried.first, after.args[1]))
        if count:
            found |= {inside.data[0]: count, carried.behind.data[0]: count}
    return found


def holds(region: Region, graph: Graph) -> bool:
    """Whether all that the graph takes for multiples are variables of loops, begin as such and stay such in every round."""
    known = dict(graph.zeros)
    for carried in _all(region):
        count = known.pop(carried.inside.data[0], 0)
        if known.pop(carried.behind.data[0], 0) > count:
            return False
        if any(_clear(graph.possible(v), v.bits) < count for v in (carried.first, carried.next)):
            return False
    return not known


def _all(region: Region) -> list[Carried]:
    return [c for effect in walk(region) if isinstance(effect, Loop) for c in effect.carried]


def _clear(possible: int, bits: int) -> int:
    """The lowest bits that are clear."""
    return (possible & -possible).bit_length() - 1 if possible else bits - 1
