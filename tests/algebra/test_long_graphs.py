"""Graphs of any length and any number of fields: each node is looked at a bounded number of times, and nothing recurses.

Work is counted, not timed, where it can be: the nodes that each walk looks at, for a graph and for one ten times as long.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any

import pytest
import torch

from tilefold import Monoid, math
from tilefold.algebra import expression, narrow
from tilefold.algebra.expression import Graph, trace
from tilefold.algebra.program import specialize
from tilefold.algebra.proofs import agreement, commute, derive, laws, samples, symmetry
from tilefold.algebra.typing import infer
from tilefold.api.on_cpu import by_tiles
from tilefold.backends.triton.emit import emit

INF = float("inf")
LONG = 20_000
UNCHECKED: dict[str, Any] = {"check": False, "commutative": True}


def root(x: Any, steps: int) -> Any:
    """Newton's square root: each step reads the one before twice, so that it has 2^steps ways to its start."""
    y = x * 0.5 + 1.0
    for _ in range(steps):
        y = (y + x / y) * 0.5
    return y


def newton(steps: int, **options: Any) -> Monoid:
    """A rescaled sum whose term of either side holds such steps."""

    def combine(a: Any, b: Any) -> tuple[Any, Any]:
        m = math.maximum(a.m, b.m)
        left, right = (root(side.m * side.m + 1.0, steps) - root(m * m + 1.0, steps) for side in (a, b))
        return m, a.l * math.exp(left) + b.l * math.exp(right)

    return Monoid(combine, (0, 0), fields=("m", "l"), lift=lambda x: (abs(x), 1.0), **options)


def chain(
    step: Callable[[Any, Any, Any], Any], length: int, start: Any = lambda a, b: a + b
) -> Callable[..., Any]:
    """A combine of `length` steps, one after another."""

    def combine(a: Any, b: Any) -> Any:
        value = start(a, b)
        for _ in range(length):
            value = step(value, a, b)
        return value

    return combine


CHAINS: dict[str, dict[str, Any]] = {
    "arithmetic": {"step": lambda v, a, b: (v + 1.0) * 0.5, "identity": 0},
    "truths": {
        "step": lambda v, a, b: ((v | a) & True) ^ b, "start": lambda a, b: a | b, "identity": False,
        "options": {"dtypes": torch.bool, "lift": lambda x: x > 0},
    },
    "choices": {
        "step": lambda v, a, b: math.where(a > b, math.maximum(v, a), math.minimum(v, b)), "identity": None,
        "start": math.maximum, "options": {"dtypes": "input"},
    },
    "limits": {
        "step": lambda v, a, b: math.where(a > b, math.maximum(v, -INF), math.minimum(v, INF)), "identity": None,
        "start": math.maximum, "options": {"dtypes": torch.int64},
    },
    "ties": {
        "step": lambda v, a, b: math.where(a == b, v, math.where(a > b, a, v)), "identity": None,
        "start": lambda a, b: math.where(a > b, a, b), "options": {"dtypes": "input"},
    },
}  # fmt: skip


def chained(name: str, length: int, **options: Any) -> Monoid:
    given = CHAINS[name]
    combine = chain(given["step"], length, given.get("start", lambda a, b: a + b))
    return Monoid(combine, given["identity"], **{**given.get("options", {}), **options})


@pytest.fixture
def shallow() -> Any:
    """Room for a few hundred calls beyond those of the test itself."""
    before = sys.getrecursionlimit()
    frame, depth = sys._getframe(), 0
    while frame is not None:
        frame, depth = frame.f_back, depth + 1  # type: ignore[assignment]  # None at the end
    sys.setrecursionlimit(depth + 300)
    yield
    sys.setrecursionlimit(before)


@pytest.mark.parametrize("name", CHAINS)
def test_a_long_chain_is_traced_shown_derived_and_emitted(name: str, shallow: None) -> None:
    monoid = chained(name, LONG // (3 if name in ("choices", "limits") else 2), **UNCHECKED)
    assert len(monoid.algebra.combine.nodes) >= 0.9 * LONG
    commute.shown_commutative(monoid.algebra)
    program = specialize(monoid.total, (torch.float32,))
    symmetry.ordered_fields(program)
    assert derive.with_blocks(program) is None
    assert emit(program, index=torch.int32).count("\n") >= 0.9 * LONG


def test_a_chain_is_checked_and_folded(shallow: None) -> None:
    monoid = chained("choices", 200)
    x = torch.randn(4, 300)
    program = specialize(monoid.total, (x.dtype,))
    assert by_tiles([x], program, (1,), "run_to_run")[0][0].shape == (4,)


@pytest.mark.parametrize("steps", [14, 200])
def test_newton_steps_in_a_term_of_either_side(steps: int, shallow: None) -> None:
    """Of 14 steps there are 16,000 ways from end to start; of 200, no machine walks them all."""
    monoid = newton(steps, **UNCHECKED)
    assert commute.shown_commutative(monoid.algebra)
    program = specialize(monoid.total, (torch.float32,))
    assert program.absorb is not None
    assert symmetry.ordered_fields(program) == (0, 1)
    assert len(program.absorb.graph.nodes) <= 3 * len(monoid.algebra.combine.nodes)
    x = torch.rand(3, 40)
    want = torch.exp((x * x + 1).sqrt() - (x.amax(1, keepdim=True) ** 2 + 1).sqrt()).sum(1)
    got = by_tiles([x], program, (1,), "run_to_run")[0][1]
    torch.testing.assert_close(got, want)


class Counted(tuple):  # type: ignore[type-arg]  # of nodes
    """Nodes that count how often they are looked at."""

    looks = 0

    def __getitem__(self, place: Any) -> Any:
        Counted.looks += 1
        return tuple.__getitem__(self, place)


def looks_of(walk: Callable[[Graph], object], graph: Graph) -> int:
    counted = Graph(graph.arity, Counted(graph.nodes), graph.outputs)
    Counted.looks = 0
    walk(counted)
    return Counted.looks


def _mirrored(graph: Graph) -> object:
    return symmetry._Mirror(infer(graph, [torch.float32] * graph.arity))


def _chosen(graph: Graph) -> object:
    return symmetry._choosing(infer(graph, [torch.float32] * graph.arity))


def _by_cases(graph: Graph) -> object:
    typed = infer(graph, [torch.float32] * graph.arity)
    return symmetry._not_by_cases(typed, range(len(graph.outputs)))


WALKS: dict[str, Callable[[Graph], object]] = {
    "mirror": _mirrored,
    "choices": _chosen,
    "cases": _by_cases,
    "form": lambda graph: derive.form_of.__wrapped__(graph),
    "needed": lambda graph: expression.needed(graph.nodes, graph.outputs),
    "limits": lambda graph: narrow.without_infinities(graph, [torch.int64] * len(graph.outputs), "test"),
    "truths": lambda graph: commute.source_of(graph, [False] * graph.arity),
}


@pytest.mark.parametrize("walk", WALKS)
def test_ten_times_the_steps_are_ten_times_the_work(walk: str) -> None:
    graphs = [newton(steps, **UNCHECKED).algebra.combine for steps in (20, 200)]
    few, many = (looks_of(WALKS[walk], graph) for graph in graphs)
    sizes = [len(graph.nodes) for graph in graphs]
    assert many <= 2 * few * sizes[1] / sizes[0]
    assert many <= 40 * sizes[1]


# --------------------------------------------------------------------------------------------------------- many fields


def wide(fields: int, **options: Any) -> Monoid:
    """A rescaled sum of many fields."""

    def combine(a: Any, b: Any) -> tuple[Any, ...]:
        m = math.maximum(a[0], b[0])
        safe = math.where(m == -INF, 0.0, m)
        left, right = math.exp(a[0] - safe), math.exp(b[0] - safe)
        return (m, *(x * left + y * right for x, y in zip(a[1:], b[1:], strict=True)))

    names = [f"f{i}" for i in range(fields)]
    return Monoid(
        combine,
        (-INF, *[0] * (fields - 1)),
        fields=names,
        lift=lambda x: (x, *[1.0] * (fields - 1)),
        **options,
    )


def test_laws_of_many_fields_take_as_many_comparisons(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each field is compared as often as that of a small state, and a state's largest number is found once a comparison."""
    calls = {"close": 0, "magnitude": 0}

    def counting(name: str) -> Callable[..., Any]:
        function = getattr(agreement, name)

        def count(*arguments: Any) -> Any:
            calls[name] += 1
            return function(*arguments)

        return count

    for name in calls:
        counted = counting(name)
        for module in (agreement, laws):
            monkeypatch.setattr(module, name, counted)
    seen = []
    for fields in (4, 64):
        calls.update(dict.fromkeys(calls, 0))
        assert wide(fields).commutative
        seen.append(dict(calls))
    assert seen[1]["close"] <= 1.1 * 16 * seen[0]["close"]
    assert seen[1]["magnitude"] <= 1.1 * seen[0]["magnitude"]


def test_many_fields_have_a_block_form_and_an_order() -> None:
    program = specialize(wide(64).total, (torch.float32,))
    assert program.absorb is not None
    assert symmetry.ordered_fields(program) == tuple(range(64))


def test_a_samples_pool_looks_at_every_node_once_a_combine() -> None:
    """Where the largest number on the way is asked for, one evaluation gives all nodes."""
    graph = trace(lambda a, b: a * 1000.0 + b, 2)
    pool = samples.pool_of(
        Monoid(lambda a, b: a * 1000.0 + b, None, check=False, commutative=False).total,
        (torch.float64,),
        samples.NEAR,
    )
    assert pool is not None
    assert len(pool.program.every_node.outputs) >= len(graph.nodes)
    assert (pool.reach >= pool.states[0][0].abs()).all()
