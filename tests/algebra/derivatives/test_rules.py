"""Each operation's derivative, beside differences; and what never meets an infinity."""

from __future__ import annotations

import math

import pytest
import torch

from tilefold import math as m
from tilefold.algebra.derivatives.linear import add, as_float, mul
from tilefold.algebra.derivatives.pullback import pullback
from tilefold.algebra.derivatives.rules import FLAT, RULES
from tilefold.algebra.evaluate import evaluate
from tilefold.algebra.expression import Graph, apply, trace
from tilefold.algebra.operations import OPS
from tilefold.algebra.typing import infer

F64 = torch.float64
# What gives no float has no rule; sums of blocks are no operations of scalars.
FLOATS = [
    name
    for name, row in OPS.items()
    if row.gives is None and row.kind in ("arithmetic", "float", "select") and name not in FLAT
]


def gradient(graph: Graph, *x: torch.Tensor) -> list[torch.Tensor]:
    """Of the sum of the graph's one output."""
    dtypes = [t.dtype for t in x]
    typed = infer(graph, dtypes)
    back = trace(lambda *v: tuple(as_float(c) for c in pullback(typed, v, [1.0])), len(x))
    made = evaluate(infer(back, dtypes), x)
    return [torch.as_tensor(m, dtype=F64).expand(t.shape) for m, t in zip(made, x, strict=True)]


def test_every_operation_of_floats_has_a_rule() -> None:
    """A new row of the table says its derivative, or that it is flat."""
    assert set(FLOATS) | {"cast"} == set(RULES)
    assert not FLAT & set(RULES)


@pytest.mark.parametrize("name", [n for n in FLOATS if n != "where"])
def test_derivatives_are_what_differences_say(name: str) -> None:
    generator = torch.Generator().manual_seed(len(name))
    operands = OPS[name].arity
    x = [torch.rand(50, generator=generator, dtype=F64) + 0.3 + 0.1 * i for i in range(operands)]
    graph = trace(lambda *v: apply(name, *v), operands)

    def value(*v: torch.Tensor) -> torch.Tensor:
        (made,) = evaluate(infer(graph, [F64] * operands), v)
        return torch.as_tensor(made)

    step = 1e-6
    for i, got in enumerate(gradient(graph, *x)):
        up, down = ([t + s * (k == i) for k, t in enumerate(x)] for s in (step, -step))
        want = (value(*up) - value(*down)) / (2 * step)
        smooth = (want - got).abs() < 1  # but for a floor between both
        assert int(smooth.sum()) > 40
        torch.testing.assert_close(got[smooth], want[smooth], rtol=1e-6, atol=1e-7)


def test_what_a_choice_leaves_out_has_no_cotangent() -> None:
    """The logarithm of 0 and the power beyond the range that a mask hides make no NaN."""
    x = torch.tensor([0.0, 2.0, -1.0], dtype=F64)
    graph = trace(lambda v: apply("where", v > 0.0, apply("log", v), 0.0), 1)
    (got,) = gradient(graph, x)
    assert got.tolist() == [0.0, 0.5, 0.0]
    (got,) = gradient(trace(lambda v: apply("where", v < 9.0, apply("exp", v), 0.0), 1), 1000 * x)
    assert got.tolist() == [1.0, 0.0, 0.0]


@pytest.mark.parametrize("name", ["maximum", "minimum"])
def test_the_last_of_equal_operands_has_it_all(name: str) -> None:
    """And of NaN; a constant that is equal has none."""
    nan = math.nan
    pairs = torch.tensor([[1.0, nan, nan, 1.0], [1.0, nan, 1.0, nan]], dtype=F64)
    both = gradient(trace(lambda *v: apply(name, *v), 2), *pairs)
    assert [t.tolist() for t in both] == [[0.0, 0.0, 1.0, 0.0], [1.0, 1.0, 0.0, 1.0]]
    (got,) = gradient(trace(lambda v: apply(name, v, 2.0), 1), torch.tensor([2.0, nan], dtype=F64))
    assert got.tolist() == [1.0, 1.0]


def test_a_root_at_zero_has_the_slope_of_torchs_norm() -> None:
    (got,) = gradient(trace(lambda v: apply("sqrt", v), 1), torch.tensor([0.0, 4.0], dtype=F64))
    assert got.tolist() == [0.0, 0.25]


def test_a_choice_less_itself_loses_nothing_beside_it() -> None:
    """A cotangent of 1e40 that goes both ways leaves the small one that comes by another way."""

    def split(v: object) -> object:
        whole = apply("where", apply("isfinite", v), v, 0.0)
        rest = apply("sub", v, whole)
        return add(mul(rest, 1e40), whole)

    (got,) = gradient(trace(split, 1), torch.tensor([3.0], dtype=F64))
    assert got.item() == 1.0


@pytest.mark.parametrize(("base", "power"), [(0.0, 2.0), (0.0, 3.0), (2.0, 0.0), (-2.0, 3.0)])
def test_powers_at_their_corners(base: float, power: float) -> None:
    (got,) = gradient(trace(lambda v: apply("pow", v, power), 1), torch.tensor([base], dtype=F64))
    assert got.item() == pytest.approx(
        power * math.copysign(abs(base) ** max(power - 1, 0), base ** max(power - 1, 0))
    )


FAR = torch.tensor(
    [s * x for x in (0.0, 1e-30, 1.0, 20.0, 87.0, 89.0, 104.0, 1e4, 1e18, 1e30, math.inf) for s in (1, -1)]
)
OF_ONE = {
    name: (lambda x, n=name: apply(n, x), getattr(torch, name))
    for name in FLOATS
    if OPS[name].arity == 1 and hasattr(torch, name)
}
COMPOSED = {
    "silu": (lambda x: x * m.sigmoid(x), torch.nn.functional.silu),
    "a logistic of a difference": (lambda x: m.sigmoid(3.0 - x), lambda x: torch.sigmoid(3 - x)),
    "a gate by tanh": (lambda x: 1.0 + m.tanh(x), lambda x: 2 * torch.sigmoid(2 * x)),
    "the same, turned": (lambda x: m.tanh(x * 0.5) + 1, lambda x: 2 * torch.sigmoid(x)),
}  # fmt: skip


@pytest.mark.parametrize("name", [*OF_ONE, *COMPOSED])
def test_values_and_derivatives_far_away(name: str) -> None:
    """Where an exponential overflows or vanishes, too; where torch's is a number, ours is the same."""
    ours, theirs = (OF_ONE | COMPOSED)[name]
    x = FAR[1:] if name in ("sqrt", "rsqrt") else FAR  # its own rule at 0
    x = x.double().float().requires_grad_()
    graph = trace(ours, 1)
    (value,), want = evaluate(infer(graph, [torch.float32]), [x.detach()]), theirs(x)
    torch.testing.assert_close(value, want.detach(), rtol=2e-5, atol=0, equal_nan=True)
    (slope,) = torch.autograd.grad(want.sum(), x)
    (got,) = gradient(graph, x.detach())
    known = slope.isfinite()
    torch.testing.assert_close(got[known], slope[known].double(), rtol=2e-5, atol=1e-40)
