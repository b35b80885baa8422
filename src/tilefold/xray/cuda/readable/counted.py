"""Loops that count: one that is entered only where its counter may go on is a `for`, without the `if` around it."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from tilefold.xray.cuda.readable.tree import Carried, Counter, Effect, If, Loop, Region, results, walk
from tilefold.xray.cuda.readable.values import MIRRORED, Graph, Value, leaves

_HOLDS = {
    "lt": lambda a, b: a < b,
    "gt": lambda a, b: a > b,
    "le": lambda a, b: a <= b,
    "ge": lambda a, b: a >= b,
    "ne": lambda a, b: a != b,
}


def counted(region: Region, graph: Graph, known: frozenset[Value] = frozenset()) -> Region:
    """The same tree with the counters of its loops. `known` are the conditions that hold where it begins."""
    return Region(tuple(_effect(effect, graph, known) for effect in region.effects))


def _effect(effect: Effect, graph: Graph, known: frozenset[Value]) -> Effect:
    if isinstance(effect, Loop):
        return replace(
            effect, body=counted(effect.body, graph, known), counter=_counter(effect, graph, known)
        )
    if not isinstance(effect, If):
        return effect
    then = counted(effect.then, graph, known | {*_parts(effect.condition)})
    other = counted(effect.other, graph, known | {graph.negated(effect.condition)})
    loop = then.effects[0] if len(then.effects) == 1 else None
    if isinstance(loop, Loop) and loop.counter is not None and not other.effects:
        before = loop.counter.before(loop.condition)
        if effect.condition in _same(graph, *before) and (without := _instead(effect, loop)) is not None:
            return without
    return replace(effect, then=then, other=other)


def _instead(effect: If, loop: Loop) -> Loop | None:
    """The loop alone, where the `if` gives what the loop gives without a round; else None."""
    behind = {}
    for variable, a, b in effect.merged:
        found = next((c for c in loop.carried if c.behind is a and c.first is b), None)
        if found is None or found in behind:
            return None
        behind[found] = variable
    carried = {c: replace(c, behind=behind.get(c, c.behind)) for c in loop.carried}
    assert loop.counter is not None, "only loops that count stand alone"
    counter = replace(loop.counter, carried=carried[loop.counter.carried])
    return replace(loop, carried=tuple(carried.values()), counter=counter)


def _counter(loop: Loop, graph: Graph, known: frozenset[Value]) -> Counter | None:
    """What a loop counts, if it goes on as long as that has not reached a bound that stays, and is not entered else."""
    condition = loop.condition
    if condition.op != "compare" or condition.data[1] == "f" or condition.data[0] not in MIRRORED:
        return None
    changing = {c.inside for c in loop.carried} | {v for e in walk(loop.body) for v in _made(e)}
    written, kind = condition.data
    for relation, (at, bound) in ((written, condition.args), (MIRRORED[written], condition.args[::-1])):
        carried = next((c for c in loop.carried if c.next is at and _is_step(c)), None)
        if carried is None or any(leaf in changing for leaf in leaves(bound)):
            continue
        if _is_entered(graph, relation, kind, carried.first, bound, known):
            return Counter(carried, bound, relation)
    return None


def _made(effect: Effect) -> Iterator[Value]:
    yield from results(effect)
    if isinstance(effect, Loop):
        yield from (c.inside for c in effect.carried)


def _is_step(carried: Carried) -> bool:
    after = carried.next
    return (
        after.op == "add"
        and carried.inside.bits in (32, 64)
        and after.args[0] is carried.inside
        and after.args[1].constant is not None
    )


def _is_entered(
    graph: Graph, relation: str, kind: str, first: Value, bound: Value, known: frozenset[Value]
) -> bool:
    """Whether it is known that the first number is on this side of the bound."""
    if first.constant is not None and bound.constant is not None:
        return bool(_HOLDS[relation](_signed(first, kind), _signed(bound, kind)))
    wanted = _same(graph, relation, kind, first, bound)
    if relation == "ne":
        pairs = ((first, bound), (bound, first))
        wanted |= {graph.compared("lt", sign, a, b) for sign in "su" for a, b in pairs}
        wanted |= {graph.compared("gt", sign, a, b) for sign in "su" for a, b in pairs}
    return bool(wanted & known)


def _same(graph: Graph, relation: str, kind: str, first: Value, bound: Value) -> set[Value]:
    """The forms that a comparison may have."""
    wanted = {graph.compared(relation, kind, first, bound)}
    wanted.add(graph.compared(MIRRORED[relation], kind, bound, first))
    if relation == "lt" and kind == "s" and first.constant is not None and _signed(first, "s") < (1 << 30):
        wanted.add(graph.compared("ge", kind, bound, graph.const(first.constant + 1, first.bits)))
    return wanted


def _signed(value: Value, kind: str) -> int:
    number = value.constant or 0
    return number - (1 << value.bits) if kind == "s" and number >> (value.bits - 1) else number


def _parts(condition: Value) -> Iterator[Value]:
    """The conditions that hold where one holds."""
    yield condition
    if condition.op == "and":
        for part in condition.args:
            yield from _parts(part)
