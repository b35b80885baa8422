"""The table of operations: every row has its columns, and a new operation is one row."""

from __future__ import annotations

import functools
import itertools
import math
import re
from collections.abc import Callable, Iterator
from dataclasses import fields, replace
from typing import Any

import pytest
import torch

import tilefold
from tilefold import math as tm
from tilefold.algebra import advice, flows, formulas, operations
from tilefold.algebra.advice import instead_of
from tilefold.algebra.columns import Op, Torch, Triton, Values
from tilefold.algebra.evaluate import evaluate
from tilefold.algebra.expression import apply, trace
from tilefold.algebra.flows import widths
from tilefold.algebra.operations import OPS
from tilefold.algebra.program import specialize
from tilefold.algebra.proofs import cases, derive, exact, symmetry
from tilefold.algebra.proofs.cases import Bounds, Case, source_of
from tilefold.algebra.proofs.terms import PRIME, Terms
from tilefold.algebra.proofs.turns import Turns
from tilefold.algebra.typing import infer
from tilefold.api.on_cpu import by_tiles
from tilefold.backends.triton.emit import emit
from tilefold.errors import MemberError
from tilefold.planner.atomics import atomic_of
from tilefold.watch import scaling
from xray.running import fold


@pytest.mark.parametrize("row", OPS.values(), ids=lambda row: row.name)
def test_every_row_has_its_columns(row: Op) -> None:
    assert callable(row.python)
    assert row.arity in (1, 2, 3)
    if row.kind == "cast":  # a rule for pairs of dtypes, no function
        assert (row.torch, row.triton) == (None, None)
        return
    assert row.torch is not None
    assert callable(row.torch.function)
    assert row.triton is not None
    texts = (
        row.triton.text,
        row.triton.floats,
        row.triton.float64,
        row.triton.uint64,
        row.triton.device_float32,
    )
    for text in texts:
        if text is not None:
            shown = text.format(*(f"<{i}>" for i in range(3)), bits=64)
            taken = 2 if row.kind == "block" and row.name != "block_first" else row.arity
            assert all(f"<{i}>" in shown for i in range(taken)), text
            assert f"<{taken}>" not in shown, text


@pytest.mark.parametrize("row", OPS.values(), ids=lambda row: row.name)
def test_every_row_can_be_called(row: Op) -> None:
    """By a function of `tilefold.math`, or by an operator of Python's."""
    if row.kind != "block" and row.name in tm.__all__ and row.name != "cast":
        graph = trace(lambda *x: getattr(tm, row.name)(*x[: row.arity]), 3)
        assert [n.op for n in graph.nodes if n.op != "input"] == [row.name]
    assert callable(getattr(tm, row.name))


def test_proofs_know_every_comparison_and_extreme() -> None:
    """From their rows: of which outcomes each comparison is true, and how an operand compares with an extreme."""
    less, equal, greater = cases.LESS, cases.EQUAL, cases.GREATER
    assert {
        "lt": less, "le": less | equal, "gt": greater, "ge": greater | equal, "eq": equal, "ne": less | greater,
    } == cases._MASKS  # fmt: skip
    assert {"maximum": less | equal, "minimum": greater | equal} == cases._BESIDE
    assert symmetry._CASES["apart"] == {"eq": False, "ne": True}
    assert {op for op, holds in symmetry._CASES["tied"].items() if holds} == {"le", "ge", "eq"}
    assert {op for op, holds in symmetry._CASES["unordered"].items() if holds} == {"ne"}


def test_names_are_the_rows_own() -> None:
    assert [row.name for row in operations.ROWS] == list(OPS)
    assert len(set(OPS)) == len(operations.ROWS)


def test_a_function_that_is_in_no_table() -> None:
    with pytest.raises(AttributeError, match=r"got tilefold.math.relu; use tilefold.math.maximum\(x, 0\)"):
        _ = tm.relu


ROUNDED = Values(
    swaps=False,
    fuses=True,
    nan=False,
    takes=False,
    turns=None,
    within=(-math.inf, math.inf),
    bits=None,
    ulps=2,
    block=None,
    atomic=None,
    linear=None,
)
HYPOT = Op(
    "hypot", 2, "float", math.hypot, Torch(torch.hypot), Triton("tl.sqrt({0} * {0} + {1} * {1})"),
    ROUNDED,
)  # fmt: skip
BLOCK_PROD = Op(
    "block_prod", 1, "block", lambda x: x, Torch(lambda value, dims: value.prod(dims[0], keepdim=True)),
    Triton("{0} * {1}", absent=1), ROUNDED,
)  # fmt: skip


def unary(python: Callable[[float], float], **known: Any) -> Op:
    """A row that is a function of one number."""
    of_torch = Torch(lambda x, out=None: torch.sub(x, 0, out=out))
    return Op("fresh", 1, "float", python, of_torch, Triton("{0}"), replace(ROUNDED, **known))


def test_a_new_operation_must_say_everything() -> None:
    with pytest.raises(
        TypeError, match="missing 3 required positional arguments: 'torch', 'triton', and 'values'"
    ):
        Op("hypot", 2, "float", math.hypot)  # type: ignore[call-arg]  # on purpose
    required = [field.name for field in fields(Values)]
    with pytest.raises(TypeError, match=rf"missing {len(required)} required keyword-only arguments"):
        Values()  # type: ignore[call-arg]  # on purpose


@pytest.mark.parametrize(
    "row", [r for r in OPS.values() if r.kind in ("arithmetic", "float")], ids=lambda row: row.name
)
def test_a_row_is_one_function_of_numbers_and_of_tensors(row: Op) -> None:
    """Where it overflows too."""
    assert row.torch is not None
    for operands in itertools.product((-1e3, -2.5, -0.3, 0.0, 0.3, 2.5, 1e3), repeat=row.arity):
        tensors = [torch.tensor([operand], dtype=torch.float64) for operand in operands]
        want = row.torch.function(*tensors).item()
        assert row.python(*operands) == pytest.approx(want, rel=1e-12, nan_ok=True), operands


@pytest.mark.parametrize("row", OPS.values(), ids=lambda row: row.name)
def test_what_a_row_says_of_its_values_holds(row: Op) -> None:
    """On numbers that meet every case: whole ones, halves, ties, signs, NaN, infinities."""
    if row.kind in ("block", "cast"):
        return
    whole = row.kind == "bitwise"
    some = (
        (-7, -1, 0, 1, 2, 5, 12)
        if whole
        else (-math.inf, -2.5, -1.0, -0.0, 0.0, 0.5, 1.0, 3.0, 17.0, math.inf, math.nan)
    )
    known = row.values
    for operands in itertools.product(some, repeat=row.arity):
        try:
            value = row.python(*operands)
        except (ArithmeticError, ValueError):
            continue
        if value == value:
            assert known.within[0] <= value <= known.within[1], operands
        if known.swaps:
            assert alike(value, row.python(*operands[::-1])), operands
        if known.takes:
            assert any(alike(value, operand) for operand in operands[-2:]), operands
        if known.nan and any(operand != operand for operand in operands):
            assert value != value, operands
        taken = operands[-2:] if row.kind == "select" else operands
        if known.bits is not None and all(isinstance(operand, int) for operand in taken):
            bits = known.bits([(operand if operand >= 0 else ~operand).bit_length() for operand in taken])
            assert abs(value) <= 1 << bits, operands
    if row.kind == "compare":
        assert known.turns == "compares"


def alike(x: float, y: float) -> bool:
    """One number, or NaN both."""
    return x == y or (x != x and y != y)


def test_each_consumer_reads_what_a_new_row_says(monkeypatch: pytest.MonkeyPatch) -> None:
    """The same graph, of rows that say this or that: bounds, signs, turns, widths, choices."""

    def told(row: Op) -> dict[str, Any]:
        monkeypatch.setitem(OPS, "fresh", row)
        found = infer(trace(lambda a, b: tm.fresh(a + b), 2), [torch.int64] * 2)
        case = Case(Terms(signed=True))
        x = case.terms.symbol("x")
        value = case.run(source_of(trace(lambda x: tm.fresh(x), 1), [False]), [0, 1], [x])[1]
        minus = case.terms.apply("fresh", [PRIME - x], "", truths=False)
        program = specialize(
            tilefold.Monoid(lambda a, b: tm.fresh(a) + tm.fresh(b), None, check=False).total, (torch.float32,)
        )
        return {
            "bounds": case.within(value),
            "even": minus == value,
            "odd": minus == PRIME - value,
            "steps": Turns(program).steps,
            "bits": widths(found, [torch.int8] * 2)[-1],
            "chosen": flows.leaves(found.graph, 3),
            "symbol": next(formulas._lines(found.graph, "xy", ["r"])).text,
        }

    plain = told(unary(lambda x: x + 1))
    assert (plain["even"], plain["odd"]) == (False, False)
    for row, changed in (
        (unary(lambda x: x + 1, within=(2, 3)), {"bounds": Bounds(2, 3)}),
        (unary(lambda x: x * x), {"even": True}),
        (unary(lambda x: x * x * x), {"odd": True}),
        (unary(lambda x: x + 1, turns="steps"), {"steps": True}),
        (unary(lambda x: x + 1, takes=True), {"chosen": frozenset({2})}),
        (replace(unary(lambda x: x + 1), symbol="~"), {"symbol": "~(x + y)"}),
        (replace(unary(lambda x: x + 1, bits=max), kind="arithmetic"), {"bits": 8}),
    ):
        found = told(row)
        assert found == {**plain, **changed}, row
    assert exact.untold(OPS) == {"fresh"}


def test_laws_of_one_operation_are_columns(monkeypatch: pytest.MonkeyPatch) -> None:
    """A new row that says so is folded in blocks, by atomics, as an extreme, and as a part that is scaled."""

    def told(**known: Any) -> dict[str, Any]:
        tensors = Torch(lambda a, b, out=None: torch.add(a, b, out=out))
        name = "_".join(["fresh", *map(str, known.values())])  # forms of equal graphs are kept
        row = Op(
            name, 2, "arithmetic", lambda a, b: a + b, tensors, Triton("{0} + {1}"), replace(ROUNDED, **known)
        )
        monkeypatch.setitem(OPS, name, row)
        one = functools.partial(apply, name)
        total = tilefold.Monoid(one, 0, commutative=True, check=False).total
        scaled = trace(lambda m, s, n, t: (tm.maximum(m, n), one(s * (m - n), t)), 4)
        return {
            "block": derive.by_field(trace(one, 2)),
            "atomic": atomic_of(specialize(total, (torch.float32,))),
            "extremes": [*scaling.extremes(trace(one, 2), 1)],
            "scaled": scaling._is_sum_of_parts(scaled, 1, 2),
        }

    plain = {"block": None, "atomic": None, "extremes": [], "scaled": False}
    assert told() == plain
    for known, changed in (
        ({"block": "block_sum", "swaps": True}, {"block": ("block_sum",)}),
        ({"atomic": "add"}, {"atomic": "add"}),
        ({"takes": True, "swaps": True}, {"extremes": [0]}),
        ({"linear": "together"}, {"scaled": True}),
        ({"linear": "one"}, {"scaled": False}),
        ({"linear": "first"}, {"scaled": False}),
    ):
        assert told(**known) == {**plain, **changed}, known


@pytest.fixture
def new_rows(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    for row in (HYPOT, BLOCK_PROD):
        monkeypatch.setitem(OPS, row.name, row)
    return


def test_a_new_operation_is_one_row(new_rows: None) -> None:
    """Traced, checked, evaluated, folded by the CPU's loop, and written for a GPU and executed there."""
    graph = trace(lambda x, y: tm.hypot(x, y) + tm.hypot(3, 4), 2)
    assert [n.op for n in graph.nodes] == ["input", "input", "hypot", "const", "add"]
    x, y = torch.tensor([3.0, 5.0, -8.0]), torch.tensor([4.0, 12.0, 15.0])
    assert infer(graph, [torch.int64, torch.int64]).output_dtypes == (torch.float32,)
    (got,) = evaluate(infer(graph, [torch.float32] * 2), [x, y])
    assert isinstance(got, torch.Tensor)
    assert got.tolist() == [10.0, 18.0, 22.0]

    length = tilefold.Monoid(tm.hypot, 0, lift=abs, name="length")
    rows = torch.tensor([[3.0, 4.0, 12.0, 0.0, 84.0], [1.0, 1.0, 1.0, 1.0, 0.0]])
    program = specialize(length.total, (torch.float32,))
    assert "tl.sqrt(a0 * a0 + b0 * b0)" in emit(program, index=torch.int64)
    want = torch.tensor([85.0, 2.0])
    assert length.commutative is False  # no proof has heard of it
    torch.testing.assert_close(by_tiles([rows], program, (1,), "run_to_run")[0][0], want)
    torch.testing.assert_close(tilefold.reduce(rows, length, dim=1), want)
    torch.testing.assert_close(fold([rows], program, (1,), 90, ordered=True)[0][0], want)


@pytest.mark.parametrize("length", [5, 513])
def test_a_new_block_operation_is_one_row(new_rows: None, length: int) -> None:
    product = tilefold.Monoid(
        lambda a, b: a * b,
        1,
        absorb=lambda s, x: s * tm.block_prod(x),
        name="product",
    )
    rows = torch.ones(2, length)
    rows[0, [0, 2, -1]] = torch.tensor([2.0, 3.0, 7.0])
    want = torch.tensor([42.0, 1.0])
    program = specialize(product.total, (torch.float32,))
    assert "def BLOCK_PROD(a, b):\n    return a * b\n" in emit(program, index=torch.int64)
    assert torch.equal(tilefold.reduce(rows, product, dim=1), want)
    assert torch.equal(fold([rows], program, (1,), 90, ordered=False)[0][0], want)


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("exp", "use tilefold.math.exp(x)"),
        ("expp", "use tilefold.math.exp(x)"),
        ("maximum", "use tilefold.math.maximum(a, b)"),
        ("amax", "use tilefold.math.maximum(a, b) of two values"),
        ("shape", "use tilefold.math.block_count(x) in absorb"),
        ("shpe", "use tilefold.math.block_count(x) in absorb"),
        ("logical_and", "use the operator &"),
        ("sigmoid", "use tilefold.math.sigmoid(x)"),
        ("to", "use tilefold.math.cast(x, dtype)"),
        ("half", "use tilefold.math.cast(x, torch.float32)"),
        ("relu", "use tilefold.math.maximum(x, 0)"),
        ("quux", "use operators, Python numbers"),
    ],
)
def test_what_to_write_instead(name: str, said: str) -> None:
    assert instead_of(name).startswith(said)
    with pytest.raises(MemberError, match=re.escape(said)):
        trace(lambda x: getattr(x, name), 1)


def test_the_advice_names_what_there_is() -> None:
    """Every function that any advice names is in tilefold.math."""
    for name in (*advice._INSTEAD, *OPS):
        for function in re.findall(r"tilefold\.math\.(\w+)", instead_of(name)):
            assert callable(getattr(tm, function)), (name, function)


def test_a_value_has_no_attributes() -> None:
    """For those who ask, too."""
    seen = []
    trace(lambda x: seen.append(hasattr(x, "shape")) or x, 1)
    assert seen == [False]
