"""Chains of elementwise operations on buffers that are used again: the same bits as the evaluator's, wherever they lie."""

from __future__ import annotations

import pytest
import torch

from answers import bits_of
from tilefold import math as tm
from tilefold import monoids
from tilefold.algebra import typing
from tilefold.algebra.evaluate import evaluate, evaluate_as
from tilefold.algebra.expression import apply, trace
from tilefold.algebra.operations import OPS
from tilefold.algebra.program import specialize
from tilefold.backends.cpu import elementwise, step_builder

INF, NAN = float("inf"), float("nan")
MONOIDS = [
    monoids.LOGSUMEXP, monoids.WELFORD, monoids.DESCRIBE, monoids.NORM(3), monoids.ARGMAX, monoids.MINMAX,
    monoids.SUM_COMPENSATED,
]  # fmt: skip
FLOAT_OPS = sorted(name for name, op in OPS.items() if op.kind in ("arithmetic", "float", "compare", "test"))


def kernel_of(op: str, dtype: torch.dtype, placeless: bool = False):
    arity = OPS[op].arity
    typed = typing.infer(trace(lambda *v: apply(op, *v), arity), [dtype] * arity)
    builder = step_builder.Builder(placeless=placeless)
    outputs = builder.inline(typed, builder.inputs([dtype] * arity))
    return elementwise.Kernel(builder, arity, outputs), typed


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.int64, torch.bool], ids=str)
@pytest.mark.parametrize("op", FLOAT_OPS)
def test_a_kernel_gives_what_the_evaluator_gives(op, dtype):
    values = torch.tensor([1.0, -2.0, 0.5, 3.0, 2.0] * 30)
    if dtype.is_floating_point:
        values = torch.cat([values, torch.tensor([INF, -INF, NAN, 0.0, -0.0])])
    operands = [values.to(dtype), values.flip(0).to(dtype)][: OPS[op].arity]
    if op in ("floordiv", "mod") and not dtype.is_floating_point:
        operands[1] = torch.where(operands[1] == 0, torch.ones_like(operands[1]), operands[1])
    kernel, typed = kernel_of(op, dtype, placeless=True)  # as the evaluator's bits are
    want = evaluate(typed, operands)[0]
    got = torch.empty_like(want)
    kernel.run(operands, [got], {})
    torch.testing.assert_close(got, want, rtol=0, atol=0, equal_nan=True)


def test_the_bits_of_uint64_seen_as_int64_stay_while_they_are_read():
    """The view that a cast makes keeps its source's buffer from being written again."""

    def function(x):
        seen = tm.cast(x ^ 5, torch.int64)
        return (x ^ 3) + (x ^ 9), seen * 2 + seen

    typed = typing.infer(trace(function, 1), [torch.uint64])
    builder = step_builder.Builder()
    kernel = elementwise.Kernel(builder, 1, builder.inline(typed, builder.inputs([torch.uint64])))
    x = torch.arange(100)
    got = [torch.empty(100, dtype=torch.int64) for _ in range(2)]
    kernel.run([x], got, {})
    assert torch.equal(got[0], (x ^ 3) + (x ^ 9))
    assert torch.equal(got[1], (x ^ 5) * 3)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.int64], ids=str)
@pytest.mark.parametrize("monoid", MONOIDS, ids=lambda m: m.name)
def test_a_step_is_lift_then_combine(monoid, dtype):
    program = specialize(monoid.total, (dtype,))
    kernels, lifted = elementwise.kernels(program), []
    for start in (0, 100):
        elements = [(torch.randn(100) * 4).to(program.lift.input_dtypes[0])]
        elements += [torch.arange(start, start + 100)] * program.algebra.index
        values = evaluate_as(program.lift, elements, program.state)
        lifted.append(
            [torch.as_tensor(v, dtype=d).expand(100) for v, d in zip(values, program.state, strict=True)]
        )
    want = evaluate_as(program.combine_later, [*lifted[0], *lifted[1]], program.state)
    got = [torch.empty(100, dtype=d) for d in program.state]
    kernels.step.run([*lifted[0], *elements], got, {})
    for mine, theirs in zip(got, want, strict=True):
        torch.testing.assert_close(
            mine, torch.as_tensor(theirs).expand(100), rtol=1e-6 * (monoid is MONOIDS[3]), atol=0
        )


@pytest.mark.parametrize("op", [name for name in FLOAT_OPS if OPS[name].kind in ("arithmetic", "float")])
def test_placeless_bits_depend_on_the_value_alone(op):
    kernel, _ = kernel_of(op, torch.float32, placeless=True)
    operands = [torch.randn(40_000) * 3, torch.randn(40_000)][: OPS[op].arity]
    operands[0][::7] = 0.0
    operands[0][3::7] = -0.0
    if len(operands) == 2:
        operands[1][::7] = -0.0
        operands[1][3::7] = 0.0
    whole = torch.empty(40_000)
    kernel.run(operands, [whole], {})
    for start, length in ((0, 1), (1, 3), (5, 15), (17, 100), (3, 17_000), (39_999, 1)):
        part = torch.empty(length)
        kernel.run([o[start : start + length] for o in operands], [part], {})
        assert torch.equal(bits_of(part), bits_of(whole[start : start + length]))
        spaced = torch.empty(length)
        kernel.run([o[start : start + length].repeat_interleave(2)[::2] for o in operands], [spaced], {})
        assert torch.equal(bits_of(spaced), bits_of(part))
