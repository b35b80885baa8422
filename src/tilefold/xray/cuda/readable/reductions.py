"""A reduction over all warps of a block, by way of shared memory: a function of its own above the kernel."""

from __future__ import annotations

from collections.abc import Sequence

from tilefold.xray.cuda.readable.folds import Folds
from tilefold.xray.cuda.readable.linear import Sums
from tilefold.xray.cuda.readable.tree import Barrier, Effect, Load, Shuffle, Store
from tilefold.xray.cuda.readable.values import Graph, Value

_NAMES = {"add.f32": "block_sum", "max.f32": "block_max", "min.f32": "block_min", "mul.f32": "block_product"}
_STEPS = {
    "add.f32": "{0} += {1}",
    "max.f32": "{0} = fmaxf({0}, {1})",
    "min.f32": "{0} = fminf({0}, {1})",
    "mul.f32": "{0} *= {1}",
}


class Found:
    """A reduction: how many effects it takes, what goes in and comes out, and its function."""

    def __init__(self, effects: int, given: Value, result: Value, name: str, text: str) -> None:
        self.effects, self.given, self.result, self.name, self.text = effects, given, result, name, text


def block_reduction(effects: Sequence[Effect], folds: Folds, graph: Graph, sums: Sums) -> Found | None:
    """The reduction that effects begin with, in exactly the form in which Triton makes it; None if they do not."""
    warps = graph.threads // 32
    first = folds.butterfly(effects)
    if first is None or warps < 2 or warps & (warps - 1) or graph.threads % 32:
        return None
    inside, count = first
    rest = effects[count:]
    second = folds.butterfly(rest[3:], least=1) if len(rest) > 3 else None
    if second is None or len(rest) < second[1] + 6:
        return None
    outside, more = second
    begin, end = effects[0], rest[3]
    put, wait, get, put_again, wait_again, all_get = (*rest[:3], *rest[3 + more : 6 + more])
    if not (
        isinstance(put, Store)
        and isinstance(get, Load)
        and isinstance(put_again, Store)
        and isinstance(all_get, Load)
    ):
        return None
    if not (
        isinstance(wait, Barrier)
        and isinstance(wait_again, Barrier)
        and isinstance(begin, Shuffle)
        and isinstance(end, Shuffle)
    ):
        return None
    places = _places(graph, warps)
    values = (
        put.values == (inside,),
        put_again.values == (outside,),
        get.results == (end.value,),
        len(all_get.results) == 1,
        count == 5,
        more == warps.bit_length() - 1,
        all_get.guard is None,
        inside.data == outside.data,
        not wait.warp,
        not wait_again.warp,
        _in_order(effects[:count], inside),
        _in_order(rest[3 : 3 + more], outside),
        {e.space for e in (put, get, put_again, all_get)} == {"shared"},
        (put.guard, get.guard, put_again.guard) == places[:3],
        [_offset(sums, e.address) for e in (put, get, put_again, all_get)] == list(places[3:]),
    )
    name = inside.data[0]
    if (
        not all(values)
        or name not in _NAMES
        or get.old[0].op != "undefined"
        or folds.uses(inside) != 1
        or folds.uses(outside) != 1
    ):
        return None
    return Found(count + 6 + more, begin.value, all_get.results[0], _NAMES[name], _text(name, warps))


def _places(graph: Graph, warps: int) -> tuple[object, ...]:
    """The three guards, and the four places in shared memory without its begin."""
    tid = graph.make("special", data=("%tid.x",))
    lane, warp = graph.binary("and", tid, graph.const(31)), graph.shr(tid, 5)
    few = graph.compared("lt", "u", tid, graph.const(warps))
    first = graph.compared("eq", "u", graph.binary("and", tid, graph.const(warps - 1)), graph.const(0))
    guards = (graph.compared("eq", "u", lane, graph.const(0)), few, graph.binary("and", few, first))
    return (*guards, ((warp, 4),), ((tid, 4),), ((tid, 4),), ())


def _offset(sums: Sums, address: Value) -> object:
    form = sums.of(address)
    own = [(v, c) for v, c in form.terms if v.op == "shared" and v.data == ("smem",) and c == 1]
    return tuple(t for t in form.terms if t not in own) if len(own) == 1 and form.constant == 0 else None


def _in_order(shuffles: Sequence[Effect], result: Value) -> bool:
    """Whether each step has its own value first and the other lane's second."""
    last = shuffles[-1]
    values = [e.value for e in shuffles[1:] if isinstance(e, Shuffle)] + [result]
    own = [(e.value, e.result) for e in shuffles if isinstance(e, Shuffle)]
    return isinstance(last, Shuffle) and all(v.args == pair for v, pair in zip(values, own, strict=True))


def _text(operation: str, warps: int) -> str:
    step = _STEPS[operation]
    x, y = (step.format(v, f"__shfl_xor_sync(~0u, {v}, s)") for v in "xy")
    return f"""\
// Over all threads, by way of one value a warp; each thread gets it. The memory may be used again after a barrier.
static __device__ float {_NAMES[operation]}(float x, float* held) {{
  const unsigned tid = threadIdx.x;
  for (int s = 16; s > 0; s /= 2) {x};
  if (tid % 32 == 0) held[tid / 32] = x;
  __syncthreads();
  float y = tid < {warps} ? held[tid] : 0.0f;
  for (int s = {warps // 2}; s > 0; s /= 2) {y};
  if (tid < {warps} && tid % {warps} == 0) held[tid] = y;
  __syncthreads();
  return held[0];
}}"""
