"""A reduction over all warps of a block, by way of shared memory: a function of its own above the kernel."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import takewhile

from tilefold.xray.cuda.readable import operations
from tilefold.xray.cuda.readable.combines import Combine
from tilefold.xray.cuda.readable.folds import Folds
from tilefold.xray.cuda.readable.linear import Sums
from tilefold.xray.cuda.readable.tree import Barrier, Effect, Load, Shuffle, Store
from tilefold.xray.cuda.readable.values import Graph, Value

_NAMES = {"add": "block_sum", "max": "block_max", "min": "block_min", "mul": "block_product"}


@dataclass(frozen=True, eq=False)
class Found:
    """A reduction: how many effects it takes, what goes in and comes out, and where in memory each value of a warp lies."""

    effects: int
    combine: Combine
    begin: tuple[Shuffle, ...]
    results: tuple[Value | None, ...]
    places: tuple[int, ...]


def block_reduction(effects: Sequence[Effect], folds: Folds, graph: Graph, sums: Sums) -> Found | None:
    """The reduction that effects begin with, in exactly the form in which Triton makes it; None if they do not."""
    warps = graph.threads // 32
    first = folds.combines.halved(effects)
    if first is None or len(first[0]) > 1 or warps < 2 or warps & (warps - 1) or graph.threads % 32:
        return None
    ((inside,), at) = first
    count = len(inside.results)
    second = folds.combines.halved(effects[at + 2 * count + 1 :], inside.combine)
    if second is None or len(second[0]) > 1:
        return None
    ((outside,), more) = second
    put, wait, get = _parts(effects[at:], count)
    put_again, wait_again, all_get = _parts(effects[at + 2 * count + 1 + more :], count)
    alone = [
        v is not None and folds.uses(v) == fold.uses[v] + 1
        for fold in (inside, outside)
        for v in fold.results
    ]
    if len(put) < count or len(get) < count or len(put_again) < count or not all_get:
        return None
    if not (wait and wait_again and all(alone)):
        return None
    guards = _guards(graph, warps)
    tid = graph.make("special", data=("%tid.x",))
    stored = {e.values: (e.guard, _place(sums, e.address)) for e in (*put, *put_again)}
    loaded = {e.results: (e.guard, _place(sums, e.address)) for e in get}
    given = {_place(sums, e.address): e.results for e in all_get if e.guard is None}
    places, ends = [], []
    for inner, outer, shuffle in zip(inside.results, outside.results, outside.shuffles, strict=True):
        assert inner is not None, "each is stored"
        assert outer is not None, "each is stored"
        size = inner.bits // 8
        _, found = stored.get((inner,), (None, None))
        if found is None or found[1] % size:
            return None
        places.append(found[1])
        by_warp, by_thread = (((v, size),) for v in (graph.shr(tid, 5), tid))
        if (
            stored.get((inner,)) != (guards[0], (by_warp, found[1]))
            or loaded.get((shuffle.value,)) != (guards[1], (by_thread, found[1]))
            or stored.get((outer,)) != (guards[2], (by_thread, found[1]))
        ):
            return None
        ends.append(given.pop(((), found[1]), None))
    distances = (inside.first, inside.last, outside.first, outside.last)
    whole = distances == (16, 1, warps // 2, 1) and not given and min(places) == 0
    if not whole or any(len(e) != 1 for e in ends if e is not None):
        return None
    taken = at + more + 3 * count + 2 + len(all_get)
    result = tuple(e[0] if e else None for e in ends)
    return Found(taken, inside.combine, inside.shuffles, result, tuple(places))


def _parts(effects: Sequence[Effect], count: int) -> tuple[list[Store], bool, list[Load]]:
    """Stores, whether all threads wait after them, and loads of shared memory behind that; so many at most."""
    put = [e for e in effects[:count] if isinstance(e, Store) and e.space == "shared"]
    wait = effects[count] if len(effects) > count else None
    loads = takewhile(
        lambda e: isinstance(e, Load) and e.space == "shared", effects[count + 1 : 2 * count + 1]
    )
    get = [e for e in loads if isinstance(e, Load) and all(o.op == "undefined" for o in e.old)]
    return put, isinstance(wait, Barrier) and not wait.warp, get


def _guards(graph: Graph, warps: int) -> tuple[Value, Value, Value]:
    """The first lane of a warp, a thread for each warp, and of these the first."""
    tid = graph.make("special", data=("%tid.x",))
    lane = graph.binary("and", tid, graph.const(31))
    few = graph.compared("lt", "u", tid, graph.const(warps))
    first = graph.compared("eq", "u", graph.binary("and", tid, graph.const(warps - 1)), graph.const(0))
    return graph.compared("eq", "u", lane, graph.const(0)), few, graph.binary("and", few, first)


def _place(sums: Sums, address: Value) -> tuple[tuple[tuple[Value, int], ...], int] | None:
    """What is added to the begin of shared memory."""
    form = sums.of(address)
    own = [(v, c) for v, c in form.terms if v.op == "shared" and v.data == ("smem",) and c == 1]
    return (tuple(t for t in form.terms if t not in own), form.constant) if len(own) == 1 else None


def function_of(found: Found, folds: Folds, warps: int, helpers: dict[str, str]) -> str:
    """The name of a reduction's function: of one value that returns it, or of several that are changed."""
    kinds = folds.kinds(found.combine)
    count = len(kinds)
    x, y, held = (([f"{n}{k}" for k in range(count)] if count > 1 else [n]) for n in ("x", "y", "held"))
    few, word = f"tid < {warps}", found.combine.results[0]
    begin = [
        f"{kind}* {h} = ({kind}*){f'(memory + {place})' if place else 'memory'};"
        for kind, h, place in zip(kinds, held, found.places, strict=True)
    ]
    lines = [
        "const unsigned tid = threadIdx.x;",
        *(begin if count > 1 else []),
        f"for (int s = 16; s > 0; s /= 2) {folds.halving(found.combine, x)}",
        *(f"if (tid % 32 == 0) {h}[tid / 32] = {v};" for h, v in zip(held, x, strict=True)),
        "__syncthreads();",
        *(
            f"{kind} {v} = {few} ? {h}[tid] : {'0.0f' if kind == 'float' else 0};"
            for kind, h, v in zip(kinds, held, y, strict=True)
        ),
        f"for (int s = {warps // 2}; s > 0; s /= 2) {folds.halving(found.combine, y)}",
        *(f"if ({few} && tid % {warps} == 0) {h}[tid] = {v};" for h, v in zip(held, y, strict=True)),
        "__syncthreads();",
        *(["return held[0];"] if count == 1 else [f"{v} = {h}[0];" for h, v in zip(held, x, strict=True)]),
    ]
    given = ", ".join(f"{kind}& {v}" for kind, v in zip(kinds, x, strict=True))
    head = f"static __device__ void @({given}, char* memory) {{"
    if count == 1:
        head = f"static __device__ {kinds[0]} @({kinds[0]} x, {kinds[0]}* held) {{"
    operation = word.data[0].partition(".")[0] if word.op == "ptx" else word.op
    single = len(found.combine.inner) == 1 and count == 1
    says = "Over all threads, by way of one value a warp; each thread gets it. The memory may be used again after a barrier."
    text = "\n".join([f"// {says}", head, *(f"  {line}" for line in lines), "}"])
    return operations.added(helpers, _NAMES.get(operation, "block_fold") if single else "block_fold", text)
