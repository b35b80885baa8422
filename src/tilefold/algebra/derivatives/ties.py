"""Slopes of a combine where it compares fields of both states, and they are equal.

A combine may say apart what its values are there: `where(a.m == b.m, 0.0, -abs(a.m - b.m))`, whose number 0.0 has no slope.
`resolved` is the combine as it is where the first state's fields are a little larger than the second's: it has the slopes
of that side, which are the values' own wherever these are smooth. Infinities that are equal stay so, since their difference
is no number. `slopes_agree` tells by differences whether a combine has the slopes of a fold's values.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from tilefold.algebra.derivatives.linear import as_float
from tilefold.algebra.derivatives.pullback import pullback
from tilefold.algebra.dtypes import is_float
from tilefold.algebra.evaluate import evaluate
from tilefold.algebra.expression import Graph, apply, trace
from tilefold.algebra.operations import COMPARISONS
from tilefold.algebra.typing import TypedGraph, infer

F64 = torch.float64
FIRST, SECOND = frozenset((0,)), frozenset((1,))
STEP, NEAR = 1e-6, 1e-3  # of differences, and how near slopes are that are alike
LOST = 1e-13  # of values, by rounding
# What a comparison of (the first state's, the second's) is where the first is a little larger; and of the two turned round.
_LARGER, _TURNED = {"gt": "ge", "le": "lt"}, {"lt": "le", "ge": "gt"}


def resolved(typed: TypedGraph, n: int) -> Graph | None:
    """The combine of n fields as it is where the first state's are larger; None where it compares none with the second's."""
    combine, sides = typed.graph, list[frozenset[int]]()
    for node in combine.nodes:
        of_args = [sides[a] for a in node.args]
        sides.append(frozenset((node.value // n,)) if node.op == "input" else frozenset().union(*of_args))

    def order(at: int) -> int:
        """1 where a node is of (the first state's, the second's), -1 the other way round, 0 of anything else."""
        args = combine.nodes[at].args
        if len(args) != 2:
            return 0
        a, b = args
        if combine.nodes[b].op == "const" and combine.nodes[b].value == 0 and combine.nodes[a].op == "sub":
            return order(a)
        return ((sides[a], sides[b]) == (FIRST, SECOND)) - ((sides[a], sides[b]) == (SECOND, FIRST))

    def compares(at: int) -> bool:
        """Whether a node compares floats of both states."""
        node = combine.nodes[at]
        return node.op in COMPARISONS and is_float(typed.dtypes[node.args[0]]) and sides[at] == FIRST | SECOND

    def step(at: int, op: str, x: Sequence[Any], value: Any) -> Any:
        turn = order(at)
        if op in ("eq", "ne") and compares(at) and (turn or all(sides[a] for a in combine.nodes[at].args)):
            if op == "eq":
                return apply("and", apply("eq", *x), apply("isinf", x[0]))
            return apply("or", apply("ne", *x), apply("isfinite", x[0]))
        if op == "abs" and (turn := order(combine.nodes[at].args[0])):
            return apply("where", apply("ge" if turn > 0 else "gt", x[0], 0.0), x[0], apply("neg", x[0]))
        if not turn:
            return apply(op, *x, value=value)
        if op == ("maximum" if turn > 0 else "minimum"):  # the last one of two equal operands has the slope
            return apply(op, *x[::-1])
        return apply((_LARGER if turn > 0 else _TURNED).get(op, op), *x, value=value)

    def run(*v: Any) -> tuple[Any, ...]:
        steps = (at for at, node in enumerate(combine.nodes) if node.op not in ("input", "const"))
        return combine.replay(v, lambda op, x, value: step(next(steps), op, x, value))

    return trace(run, 2 * n) if any(map(compares, range(len(combine.nodes)))) else None


def slopes_agree(
    lift: TypedGraph, combines: Sequence[TypedGraph], project: TypedGraph, rows: Sequence[torch.Tensor]
) -> list[bool]:
    """Of each combine, whether the gradient of a fold of three elements is what differences of the first one's values are.

    `rows`: for each input (samples, 3) elements, of which some are equal. Samples where the values are not smooth are no
    witnesses, nor are those where they are no numbers.
    """
    k = len(rows)
    shown = [i for i, dtype in enumerate(project.output_dtypes) if is_float(dtype)]
    moved = [j for j, t in enumerate(rows) if is_float(t.dtype)]

    def fold(combine: Graph, x: Sequence[Any]) -> tuple[Any, ...]:
        a, b, c = (lift.graph(*x[i * k : (i + 1) * k]) for i in range(3))
        return project.graph(*combine(*combine(*a, *b), *c))

    def gradient(combine: TypedGraph, x: Sequence[Any], g: Sequence[Any]) -> list[Any]:
        parts = [x[i * k : (i + 1) * k] for i in range(3)]
        a, b, c = (lift.graph(*part) for part in parts)
        middle, n = combine.graph(*a, *b), len(a)
        every: list[Any] = [0] * len(project.graph.outputs)
        for i, one in zip(shown, g, strict=True):
            every[i] = one
        of_total = pullback(project, combine.graph(*middle, *c), every)
        of_middle = pullback(combine, [*middle, *c], of_total)
        of_pair = pullback(combine, [*a, *b], of_middle[:n])
        states = of_pair[:n], of_pair[n:], of_middle[n:]
        found = [pullback(lift, part, one) for part, one in zip(parts, states, strict=True)]
        return [found[i][j] for i in range(3) for j in moved]

    if not shown or not moved:
        return [True for _ in combines]
    given = [t[:, i] for i in range(3) for t in rows]
    cotangents = [1.0 + 0.5 * i for i in range(len(shown))]
    size = rows[0].shape[0]

    def of(graph: Graph, x: Sequence[torch.Tensor]) -> list[torch.Tensor]:
        made = evaluate(infer(graph, [t.dtype for t in x]), x)
        return [torch.as_tensor(t, dtype=F64).expand(size) for t in made]

    def valued(combine: Graph) -> Graph:
        return trace(lambda *x: tuple(fold(combine, x)[i] for i in shown), 3 * k)

    def total(x: Sequence[torch.Tensor], graph: Graph) -> torch.Tensor:
        return torch.stack([g * t for g, t in zip(cotangents, of(graph, x), strict=True)]).sum(0)

    values = valued(combines[0].graph)
    here, wanted = total(given, values), list[tuple[torch.Tensor, ...]]()
    for at in (i * k + j for i in range(3) for j in moved):
        step = STEP * (1 + given[at].abs())
        ends = [total([t + s * step if p == at else t for p, t in enumerate(given)], values) for s in (1, -1)]
        right, left = (ends[0] - here) / step, (here - ends[1]) / step
        mean = (right + left) / 2
        bound = NEAR * (1 + mean.abs()) + LOST * here.abs() / step
        wanted.append((mean, bound, (right - left).abs() <= bound))
    agree = list[bool]()
    for combine in combines:
        made = trace(lambda *x, c=combine: tuple(as_float(s) for s in gradient(c, x, cotangents)), 3 * k)
        alike = torch.allclose(total(given, valued(combine.graph)), here, rtol=1e-9, equal_nan=True)
        near = [
            bool((~smooth | ((slope - mean).abs() <= 2 * bound)).all())
            for slope, (mean, bound, smooth) in zip(of(made, given), wanted, strict=True)
        ]
        agree.append(alike and all(near))
    return agree
