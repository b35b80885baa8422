"""Dtype rules and the evaluation of typed graphs on tensors."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from tilefold import Monoid, math, monoids
from tilefold.algebra import typing
from tilefold.algebra.columns import Op
from tilefold.algebra.evaluate import evaluate, evaluate_as, stored
from tilefold.algebra.expression import apply, trace
from tilefold.algebra.operations import OPS
from tilefold.algebra.program import specialize
from tilefold.algebra.written import as_written
from tilefold.backends import reference
from tilefold.errors import DtypeError

INF, NAN = float("inf"), float("nan")


def run(function, *tensors, dtypes=None):
    typed = typing.infer(trace(function, len(tensors)), dtypes or [t.dtype for t in tensors])
    return evaluate(typed, tensors)[0]


def fold(monoid, x):
    return monoid.pack(reference.fold([x], specialize(monoid.total, (x.dtype,)), range(x.ndim)))


@pytest.mark.parametrize(
    ("function", "inputs", "want"),
    [
        pytest.param(lambda a: a + 1, [torch.int32], torch.int32, id="weak-int"),
        pytest.param(lambda a: a + 1.5, [torch.int64], torch.float32, id="weak-float-on-int"),
        pytest.param(lambda a: a + 1.5, [torch.float64], torch.float64, id="weak-float"),
        pytest.param(lambda a: a + a, [torch.bool], torch.int64, id="bool-sum"),
        pytest.param(lambda a: a & a, [torch.bool], torch.bool, id="bool-and"),
        pytest.param(lambda a: a / a, [torch.int64], torch.float32, id="division"),
        pytest.param(lambda a, b: a + b, [torch.int64, torch.float32], torch.float32, id="int-with-float"),
        pytest.param(lambda a, b: a < b, [torch.int64, torch.float32], torch.bool, id="comparison"),
        pytest.param(lambda a: math.where(a > 0, 1, a), [torch.float32], torch.float32, id="where"),
        pytest.param(
            lambda a, b: math.where(a, b, 2), [torch.float32, torch.int64], torch.int64, id="where-float"
        ),
        pytest.param(
            lambda a, b: math.where(a, b, b), [torch.int64, torch.bool], torch.bool, id="where-bool"
        ),
        pytest.param(lambda a: math.cast(a, torch.int32), [torch.float32], torch.int32, id="cast"),
        pytest.param(lambda a: math.isnan(a), [torch.float32], torch.bool, id="test"),
        pytest.param(math.exp, [torch.bool], torch.float32, id="exp-of-bool"),
    ],
)
def test_result_dtypes(function, inputs, want):
    assert typing.infer(trace(function, len(inputs)), inputs).output_dtypes == (want,)


@pytest.mark.parametrize(
    ("number", "dtype", "want"),
    [
        (INF, torch.int8, 127),
        (-INF, torch.int8, -128),
        (-INF, torch.uint8, 0),
        (INF, torch.uint64, 2**64 - 1),
        (-1, torch.uint64, 2**64 - 1),
        (INF, torch.int64, 2**63 - 1),
        (-INF, torch.bool, False),
        (-1, torch.bool, True),
        (-INF, torch.float32, -INF),
    ],
    ids=str,
)
def test_identities_become_values_of_the_dtype(number, dtype, want):
    assert typing.concrete(number, dtype, "field") == want


@pytest.mark.parametrize(("number", "rule"), [(NAN, "cannot start at NaN"), (0.5, "needs a whole identity")])
def test_identities_no_integer_can_hold(number, rule):
    with pytest.raises(DtypeError, match=rule):
        typing.concrete(number, torch.int32, "field")


def test_complex_elements_are_refused():
    with pytest.raises(DtypeError, match=r"real numbers or bool.*view_as_real"):
        specialize(monoids.SUM.total, (torch.complex64,))


def test_uint64_is_ordered_as_unsigned():
    x = torch.tensor([1, 2**63 + 5, 2**63 - 1], dtype=torch.uint64)
    assert fold(monoids.MAX, x).item() == 2**63 + 5
    assert fold(monoids.MIN, x).item() == 1
    assert fold(monoids.ARGMAX, x).item() == 1


def test_uint64_becomes_a_positive_float():
    bits = torch.tensor([-1], dtype=torch.int64)  # 2**64 - 1
    assert run(lambda a: math.cast(a, torch.float64), bits, dtypes=[torch.uint64]).item() == 2.0**64


@pytest.mark.parametrize("dtype", [torch.uint32, torch.int8, torch.uint8, torch.int32], ids=str)
def test_extremes_at_a_dtypes_limits(dtype):
    info = torch.iinfo(dtype)
    x = torch.tensor([info.max, info.min, 1], dtype=dtype)
    for monoid, want in (
        (monoids.MAX, info.max),
        (monoids.MIN, info.min),
        (monoids.BITWISE_OR, info.max | info.min),
    ):
        got = fold(monoid, x)
        assert got.dtype == dtype
        assert got.item() == want


@pytest.mark.parametrize("dtype", [torch.int8, torch.int32, torch.int64, torch.bool], ids=str)
def test_integers_sum_in_int64(dtype):
    x = torch.ones(300, dtype=dtype)
    assert torch.equal(fold(monoids.SUM, x), x.sum())


def test_int64_sum_wraps():
    x = torch.tensor([2**63 - 1, 1])
    assert fold(monoids.SUM, x).item() == -(2**63)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16], ids=str)
def test_half_types_round_once(dtype):
    x = torch.ones(4000, dtype=dtype)
    assert torch.equal(fold(monoids.SUM, x), x.float().sum().to(dtype))


def test_minimum_and_maximum_propagate_nan():
    a, b = torch.tensor([NAN, 1.0]), torch.tensor([1.0, NAN])
    assert run(math.maximum, a, b).isnan().all()
    assert run(math.minimum, a, b).isnan().all()


def test_block_operations_fold_the_named_dims():
    x = torch.arange(6.0).reshape(2, 3)
    typed = typing.infer(
        trace(lambda v: (math.block_sum(v), math.block_max(v), math.block_min(v), math.block_count(v)), 1),
        [x.dtype],
    )
    total, largest, least, count = evaluate(typed, [x], block_dims=(1,))
    assert total.tolist() == [[3.0], [12.0]]
    assert largest.tolist() == [[2.0], [5.0]]
    assert least.tolist() == [[0.0], [3.0]]
    assert count == 3


@pytest.mark.parametrize(
    ("function", "numbers", "want"),
    [
        pytest.param(math.exp, (0,), 1.0, id="exp"),
        pytest.param(math.exp, (1e9,), INF, id="exp-overflow"),
        pytest.param(math.exp2, (2000,), INF, id="exp2-overflow"),
        pytest.param(math.log, (0,), -INF, id="log-of-0"),
        pytest.param(math.pow, (0, -1), INF, id="pow-of-0"),
        pytest.param(math.pow, (-1e200, 3), -INF, id="pow-overflow"),
        pytest.param(math.floor, (-2.5,), -3.0, id="floor"),
        pytest.param(math.floor, (INF,), INF, id="floor-of-inf"),
        pytest.param(math.where, (True, 2, 3), 2, id="where"),
    ],
)
def test_numbers_alone_give_numbers(function, numbers, want):
    got = function(*numbers)
    assert got == want
    assert type(got) is type(want)


@pytest.mark.parametrize(("function", "x"), [(math.sqrt, -1), (math.sin, INF), (math.log, -1)])
def test_numbers_outside_a_domain_give_nan(function, x):
    assert function(x) != function(x)


@pytest.mark.parametrize(
    ("choices", "dtype"),
    [((0.1, 0.7), torch.float64), ((1 << 60, -1), torch.int64), ((True, False), torch.bool), ((1, 2), torch.int32)],
    ids=str,
)  # fmt: skip
def test_a_choice_of_two_numbers_has_all_their_bits(choices, dtype) -> None:
    """torch.where of two numbers is of its default dtype: 0.1 would be float32's."""
    x = torch.tensor([1, 0]).to(dtype)
    got = run(lambda a: math.where(a > 0, *choices), x)
    assert got.tolist() == list(choices)


def test_a_divisor_that_wraps_to_0_is_refused() -> None:
    """As 0 itself is: torch would raise a ZeroDivisionError of its own, a GPU give any number."""
    with pytest.raises(
        DtypeError, match=r"cannot be divided by 0, got mod\(torch.int32, 8589934592\), which is 0 in"
    ):
        typing.infer(trace(lambda a: a % (1 << 33), 1), [torch.int32])
    assert typing.infer(trace(lambda a: a % (1 << 33), 1), [torch.int64]).output_dtypes == (torch.int64,)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
def test_a_number_divided_by_a_value_is_rounded_once(dtype: torch.dtype) -> None:
    """torch's own `3 / x` is the reciprocal times 3."""
    x = torch.linspace(-7, 9, 10_000, dtype=dtype)
    (got,) = evaluate(typing.infer(trace(lambda v: 3.0 / v, 1), [dtype]), [x])
    assert torch.equal(got, torch.full_like(x, 3.0) / x)


MADE_READY = {name: m for name, m in vars(monoids).items() if isinstance(m, Monoid)}
MADE_READY["operations"] = Monoid(
    lambda a, b: (
        a.f**2.0 + b.f % 3 - 7 // b.f,
        math.where(a.n, a.n << 3, b.n >> 1) ^ 5,
        math.cast(a.f, torch.int64) + b.t,
        a.t | (b.f > 0.1) | math.isnan(a.f),
    ),
    None, fields=("f", "n", "m", "t"), lift=lambda x: (x * 0.1, math.cast(x, torch.int64), 1, x > 0),
    dtypes=("compute", torch.int64, torch.int32, torch.bool), check=False, commutative=False,
)  # fmt: skip
MADE_READY["constants"] = Monoid(
    lambda a, b: a + b, 0, lift=lambda x: math.cast(math.where(x > 0, 2.5, 2.5), torch.int64), check=False
)


@pytest.mark.parametrize("made", [as_written, specialize])
@pytest.mark.parametrize("name", MADE_READY)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.int64, torch.uint64], ids=str)
def test_graphs_made_ready_give_the_same_bits(made, name, dtype):
    total = MADE_READY[name].total
    try:
        program = made(total, (dtype,) * total.inputs)
    except DtypeError:
        return  # not a fold of this dtype
    generator = torch.Generator().manual_seed(1)
    kind = torch.int64 if dtype == torch.uint64 else dtype
    given = [torch.randint(-9, 9, (50,), generator=generator).to(kind) for _ in range(2 * total.inputs)]
    places = [torch.arange(50)] * total.index
    sides = []
    for half in (given[: total.inputs], given[total.inputs :]):
        want = evaluate_as(program.lift, [*half, *places], program.state)
        got = program.lifted([*half, *places])
        assert all(isinstance(v, torch.Tensor) for v in got)  # constants too
        assert_same(got, want)
        sides += [
            torch.as_tensor(v, dtype=stored(d)).expand(50) for v, d in zip(want, program.state, strict=True)
        ]
    assert_same(program.combined(sides), evaluate_as(program.combine, sides, program.state))
    graph = program.combine.graph
    every = replace(program.combine, graph=replace(graph, outputs=tuple(range(len(graph.nodes)))))
    assert_same(program.every_node(sides), evaluate(every, sides))


def assert_same(got, want):
    for one, other in zip(got, want, strict=True):
        one, other = (torch.as_tensor(v).expand(50) for v in (one, other))
        assert torch.equal(one.double().nan_to_num(0.125), other.double().nan_to_num(0.125))


@pytest.mark.parametrize(
    "row", [r for r in OPS.values() if r.kind in ("arithmetic", "float")], ids=lambda r: r.name
)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_an_element_has_the_same_bits_wherever_it_lies(row: Op, dtype: torch.dtype) -> None:
    """Whole vectors and what lies behind them, by itself and between others: a segment's, a row's, a stored value's bits."""
    x = torch.randn((row.arity, 131), dtype=dtype, generator=torch.Generator().manual_seed(3)).abs()
    typed = typing.infer(trace(lambda *a: apply(row.name, *a), row.arity), [dtype] * row.arity)
    (whole,) = evaluate(typed, list(x))
    apart = [evaluate(typed, [a[i : i + 1] for a in x])[0] for i in range(131)]
    (strided,) = evaluate(typed, list(x[:, :, None].expand(-1, -1, 2)[:, :, 1]))
    bits = torch.int32 if dtype == torch.float32 else torch.int64
    assert torch.equal(torch.cat(apart).view(bits), whole.view(bits))
    assert torch.equal(strided.contiguous().view(bits), whole.view(bits))
