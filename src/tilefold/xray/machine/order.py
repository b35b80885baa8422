"""The order in which blocks of code are executed, so that threads which diverge converge as early as their paths do.

A block comes before those that only follow it, and a loop as a whole before what is behind it, wherever the text has
them: compilers rotate loops and move blocks about. Where the text has them in such an order it is kept.
"""

from __future__ import annotations

import heapq
from collections.abc import Collection, Iterable, Mapping, Sequence


def ranks(follow: Sequence[Sequence[int]]) -> list[int]:
    """The place of each block in the order; `follow` has the blocks that each may be followed by, the first is the entry."""
    found = [0] * len(follow)
    for rank, block in enumerate(_ordered(range(len(follow)), dict(enumerate(follow)))):
        found[block] = rank
    return found


def _ordered(blocks: Collection[int], follow: Mapping[int, Sequence[int]]) -> Iterable[int]:
    """Loops (strongly connected blocks) as one, in topological order; inside one the same without jumps to its head."""
    loops = components(blocks, follow)
    owner = {block: i for i, loop in enumerate(loops) for block in loop}
    waits = dict.fromkeys(range(len(loops)), 0)
    edges = {(owner[a], owner[b]) for a in blocks for b in follow[a] if owner[a] != owner[b]}
    for _, b in edges:
        waits[b] += 1
    after: dict[int, list[int]] = {i: [] for i in waits}
    for a, b in edges:
        after[a].append(b)
    ready = [(min(loops[i]), i) for i, n in waits.items() if not n]
    heapq.heapify(ready)
    while ready:
        _, now = heapq.heappop(ready)
        yield from _inside(loops[now], blocks, follow)
        for later in after[now]:
            waits[later] -= 1
            if not waits[later]:
                heapq.heappush(ready, (min(loops[later]), later))


def _inside(loop: list[int], blocks: Collection[int], follow: Mapping[int, Sequence[int]]) -> Iterable[int]:
    """The blocks of one loop. Its head is the first of the text that is entered from outside."""
    if len(loop) == 1:
        return loop
    within = set(loop)
    entered = {b for a in blocks if a not in within for b in follow[a] if b in within}
    head = min(entered or within)
    return _ordered(sorted(loop), {a: [b for b in follow[a] if b in within and b != head] for a in loop})


def components(blocks: Iterable[int], follow: Mapping[int, Sequence[int]]) -> list[list[int]]:
    """Strongly connected components, by Tarjan's algorithm without recursion."""
    number: dict[int, int] = {}
    low: dict[int, int] = {}
    stack: list[int] = []
    held: set[int] = set()
    found: list[list[int]] = []
    for root in blocks:
        if root in number:
            continue
        number[root] = low[root] = len(number)
        stack.append(root)
        held.add(root)
        path = [(root, iter(follow[root]))]
        while path:
            block, rest = path[-1]
            following = next(rest, None)
            if following is None:
                path.pop()
                if path:
                    low[path[-1][0]] = min(low[path[-1][0]], low[block])
                if low[block] == number[block]:
                    at = stack.index(block)
                    found.append(stack[at:])
                    held.difference_update(stack[at:])
                    del stack[at:]
            elif following not in number:
                number[following] = low[following] = len(number)
                stack.append(following)
                held.add(following)
                path.append((following, iter(follow[following])))
            elif following in held:
                low[block] = min(low[block], number[following])
    return found
