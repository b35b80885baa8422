"""Lists of steps that write their results over their inputs, and what is left out of them."""

from __future__ import annotations

from typing import Any

import pytest
import torch

import tilefold
from tilefold import math as tm
from tilefold import monoids
from tilefold.algebra import typing
from tilefold.algebra.expression import trace
from tilefold.algebra.program import specialize
from tilefold.backends.cpu import elementwise, step_builder

INF = float("inf")
CROSSED = tilefold.Monoid(
    lambda a, b: (b.y + 0 * a.x, b.x + 0 * a.y),
    (0, 0),
    fields=("x", "y"),
    lift=lambda x: (x, -x),
    check=False,
    commutative=False,
)
SWAPPED = tilefold.Monoid(
    lambda a, b: (b.y, b.x), (0, 0), fields=("x", "y"), lift=lambda x: (x, -x), check=False, commutative=False
)
IN_PLACE = {
    "logsumexp": monoids.LOGSUMEXP, "welford": monoids.WELFORD, "describe": monoids.DESCRIBE, "affine": monoids.AFFINE,
    "last": monoids.LAST, "first": monoids.FIRST, "matrices": monoids.MATMUL2X2, "argmax": monoids.ARGMAX,
    "crossed": CROSSED, "swapped": SWAPPED,
}  # fmt: skip


@pytest.mark.parametrize("name", list(IN_PLACE))
@pytest.mark.parametrize("dtype", [torch.float32, torch.int64], ids=str)
def test_a_state_is_combined_into_the_second_ones_memory(name: str, dtype: torch.dtype) -> None:
    algebra = IN_PLACE[name].total
    program = specialize(algebra, (dtype,) * algebra.inputs)
    kernel, generator = elementwise.kernels(program).combine, torch.Generator().manual_seed(0)
    first, second = (
        [torch.randint(1, 9, (50,), generator=generator).to(step_builder.stored(d)) for d in program.state]
        for _ in range(2)
    )
    want = [torch.empty_like(t) for t in second]
    kernel.run([*first, *second], want, {})
    for function, operands, out in kernel.bound([*first, *second], second, {}):
        function(*operands, out=out)
    for got, expected in zip(second, want, strict=True):
        assert torch.equal(got, expected)


def run(function: Any, *values: torch.Tensor) -> tuple[list[torch.Tensor], list[Any]]:
    typed = typing.infer(trace(function, len(values)), [v.dtype for v in values])
    builder = step_builder.Builder()
    outputs = builder.inline(typed, builder.inputs([v.dtype for v in values]))
    kernel = elementwise.Kernel(builder, len(values), outputs)
    targets = [torch.empty_like(values[0]) for _ in outputs]
    kernel.run(list(values), targets, {})
    return targets, kernel._steps


@pytest.mark.parametrize("limit", [INF, -INF, 2.0])
@pytest.mark.parametrize("put", [0.0, INF, float("nan")])
def test_a_number_in_the_place_of_an_infinity(limit: float, put: float) -> None:
    x = torch.tensor([INF, -INF, float("nan"), -0.0, 2.0, 3.0])
    (got,), steps = run(lambda x: tm.where(x == limit, put, x), x)
    torch.testing.assert_close(got, torch.where(x == limit, put, x), rtol=0, atol=0, equal_nan=True)
    assert torch.equal(got.signbit()[3:], torch.where(x == limit, put, x).signbit()[3:])
    assert len(steps) == (1 if abs(limit) == INF else 2)


def test_other_choices_stay() -> None:
    x, y = torch.tensor([INF, 1.0]), torch.tensor([5.0, 6.0])
    assert run(lambda x, y: tm.where(x == INF, 0.0, y), x, y)[0][0].tolist() == [0, 6]
    assert run(lambda x, y: tm.where(x == INF, y, x), x, y)[0][0].tolist() == [5, 1]
    assert run(lambda x, y: tm.where(y == INF, 0.0, x), x, y)[0][0].tolist() == [INF, 1]


@pytest.mark.parametrize("dtype", [torch.float32, torch.int32], ids=str)
def test_a_choice_of_zero_keeps_the_bits_of_the_other(dtype: torch.dtype) -> None:
    """On either side; of such a choice the bits are masked, in one step that reads no zeros."""
    x = torch.tensor([-3, 0, 7, -1]).to(dtype)
    for function, want in (
        (lambda x: tm.where(x > 0, x, 0), [0, 0, 7, 0]),
        (lambda x: tm.where(x > 0, 0, x), [-3, 0, 0, -1]),
    ):
        (got,), steps = run(function, x)
        assert got.tolist() == want
        assert len(steps[-1].arguments) == 2


def test_a_factor_of_one_is_no_step() -> None:
    x = torch.tensor([INF, -0.0, 1.5])
    (got,), steps = run(lambda x: x * 1.0 + 0.5, x)
    assert got.tolist() == [INF, 0.5, 2.0]
    assert len(steps) == 1
