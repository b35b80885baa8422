"""Making a monoid: what is traced, what is refused and how the message names the fix."""

from __future__ import annotations

import copy
import functools
import inspect
import math as python_math
import os
import pickle
import subprocess
import sys
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest
import torch

import tilefold
from tilefold import Monoid, math, monoids
from tilefold.algebra.expression import trace
from tilefold.algebra.typing import infer
from tilefold.errors import ArityError, DtypeError, MonoidError, TraceError

INF = float("inf")
unchecked = {"check": False, "commutative": True}


@pytest.mark.parametrize(
    ("combine", "rule"),
    [
        pytest.param(lambda a, b: a if a > b else b, "control flow.*tilefold.math.where", id="if"),
        pytest.param(lambda a, b: a and b, "control flow.*& | ~", id="and"),
        pytest.param(lambda a, b: max(a, b), "control flow", id="builtin-max"),
        pytest.param(max, "control flow", id="builtin-max-itself"),
        pytest.param(lambda a, b: python_math.exp(a), "Python float.*tilefold.math", id="math.exp"),
        pytest.param(lambda a, b: int(a), "Python int.*cast", id="int"),
        pytest.param(lambda a, b: [1, 2][a], "index", id="index"),
        pytest.param(lambda a, b: len(a), "scalar", id="len"),
        pytest.param(lambda a, b: functools.cache(lambda v: v)(a), "__wrapped__", id="cached function"),
        pytest.param(lambda a, b: sum(a), "unpacking.*fields", id="iteration"),
        pytest.param(
            lambda a, b: torch.maximum(a, b), "torch.maximum works on tensors.*tilefold.math", id="torch"
        ),
        pytest.param(lambda a, b: a + torch.ones(2), "tensors", id="tensor-operand"),
        pytest.param(lambda a, b: a + "1", "got str", id="string-operand"),
    ],
)
def test_what_cannot_be_traced_names_the_fix(combine, rule):
    with pytest.raises(TraceError, match=rule):
        Monoid(combine, 0, **unchecked)


def test_numpy_function_is_refused():
    with pytest.raises(TraceError, match=r"numpy function.*tilefold.math"):
        Monoid(lambda a, b: np.asarray(a), 0, **unchecked)


def test_value_kept_from_another_trace_is_refused():
    kept = []
    trace(lambda x: kept.append(x) or x, 1)
    with pytest.raises(TraceError, match="only use its own arguments"):
        trace(lambda x: x + kept[0], 1)


@pytest.mark.parametrize(
    ("options", "rule"),
    [
        pytest.param({"combine": lambda a: a}, "combine must take 2 arguments", id="combine-of-one"),
        pytest.param(
            {"combine": lambda a, b: (a, b)}, "combine must return one value.*got 2", id="combine-gives-two"
        ),
        pytest.param(
            {"combine": lambda a, b: None},
            "must return a value or a tuple.*NoneType",
            id="combine-gives-none",
        ),
        pytest.param(
            {"identity": (0, 0), "fields": ("s",)}, "one number for each of the fields", id="long-identity"
        ),
        pytest.param({"lift": lambda: 0}, "at least one element, got 0", id="lift-of-none"),
        pytest.param(
            {"lift": lambda i: 0, "index": True}, "at least one element before the index", id="lift-of-index"
        ),
        pytest.param({"lift": lambda *x: x[0]}, "name its arguments", id="lift-of-many"),
        pytest.param({"lift": lambda x: (x, x)}, "lift must return one value", id="lift-gives-two"),
        pytest.param({"project": lambda a, b: a}, "project must take 1 argument", id="project-of-two"),
        pytest.param({"absorb": lambda s: s}, "absorb must take 2 arguments", id="absorb-of-one"),
        pytest.param({"dtypes": ("input", "input")}, "dtypes must be one for all", id="two-dtypes"),
    ],
)
def test_wrong_arity_is_one_clear_line(options, rule):
    with pytest.raises(ArityError, match=rule) as caught:
        Monoid(**{"combine": lambda a, b: a + b, "identity": 0, **unchecked, **options})
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    "field",
    [
        "x; import os",
        "x)\nimport os",
        "class",
        "None",
        "_hidden",
        "1st",
        "",
        "é",
        "a" * 65,
        "x\n",
        "__import__('os')",
    ],
)
def test_field_names_cannot_carry_code(field):
    with pytest.raises(MonoidError, match="field name must match"):
        Monoid(lambda a, b: a, (0, 0), fields=(field, "other"), **unchecked)


@pytest.mark.parametrize(
    ("options", "rule"),
    [
        pytest.param({"identity": "0"}, "identity must be a Python number.*str", id="identity"),
        pytest.param(
            {"fields": ("a", "a"), "identity": (0, 0)}, "fields must be distinct", id="repeated-field"
        ),
        pytest.param({"dtypes": "float"}, "field dtype must be.*'float'", id="dtype"),
        pytest.param(
            {"combine": lambda a, b: math.block_sum(a)}, "block functions stand only in absorb", id="block"
        ),
    ],
)
def test_other_faults(options, rule):
    with pytest.raises(MonoidError, match=rule):
        Monoid(**{"combine": lambda a, b: a + b, "identity": 0, **unchecked, **options})


def test_the_same_function_twice_gives_equal_algebras():
    def make():
        return Monoid(lambda a, b: math.where(a > b, a, b) * 1.0, 0, **unchecked)

    assert make().algebra == make().algebra
    assert hash(make().algebra) == hash(make().algebra)


@pytest.mark.parametrize(
    ("one", "other"),
    [
        pytest.param(lambda x: x + 1, lambda x: x + 1.0, id="int-or-float"),
        pytest.param(lambda x: math.where(x, True, 0), lambda x: math.where(x, 1, 0), id="bool-or-int"),
        pytest.param(lambda x: math.cast(x, torch.int32), lambda x: math.cast(x, torch.int64), id="cast"),
        pytest.param(lambda x: x - 1, lambda x: 1 - x, id="order"),
    ],
)
def test_different_functions_give_different_graphs(one, other):
    assert trace(one, 1) != trace(other, 1)


def test_unused_and_repeated_steps_leave_no_trace():
    def wasteful(x):
        math.exp(x)
        return x * 2 + x * 2

    assert trace(wasteful, 1) == trace(lambda x: (lambda d: d + d)(x * 2), 1)


def test_nan_constants_are_equal():
    assert trace(lambda x: x + float("nan"), 1) == trace(lambda x: x + float("nan"), 1)


def test_bitwise_on_floats_names_the_fix():
    graph = trace(lambda a, b: a & b, 2)
    with pytest.raises(DtypeError, match=r"bitwise operations need integers or bool.*cast"):
        infer(graph, [torch.float32, torch.float32])


def test_repr_says_name_fields_and_order():
    assert repr(Monoid(lambda a, b: a + b, 0, name="total")) == "Monoid(total: value; commutative)"


# ---------------------------------------------------------------------------------- constants inside a function


def outputs(function, arity=1):
    """What a function of constants alone comes to: the traced graph's constants."""
    graph = trace(function, arity)
    return [graph.nodes[o].value for o in graph.outputs if graph.nodes[o].op == "const"]


@pytest.mark.parametrize(
    ("operation", "want"),
    [
        pytest.param(lambda seven: seven // 2, 3, id="floor-division"),
        pytest.param(lambda seven: seven // 0.0, INF, id="floor-division-by-0.0"),
        pytest.param(lambda seven: -seven // 0.0, -INF, id="negative-floor-division-by-0.0"),
        pytest.param(lambda seven: seven % 4, 3, id="remainder"),
        pytest.param(lambda seven: seven / 0, INF, id="division-by-0"),
        pytest.param(lambda seven: 1 << seven, 128, id="shift-of-a-number"),
        pytest.param(lambda seven: 1024 >> seven, 8, id="shift-back-of-a-number"),
        pytest.param(lambda seven: seven + np.float64(0.5), 7.5, id="numpy-number"),
        pytest.param(lambda seven: math.log1p(seven * 1e-20), 7e-20, id="log1p-keeps-digits"),
        pytest.param(lambda seven: math.log1p(-seven / 7), -INF, id="log1p-of-minus-1"),
        pytest.param(lambda seven: math.pow(seven * -0.0, -1), -INF, id="odd-power-of-minus-0"),
        pytest.param(lambda seven: math.cast(2.75, torch.int64), 2, id="cast-of-a-number"),
    ],
)
def test_constants_are_computed_as_ieee_has_it(operation, want):
    (got,) = outputs(lambda x: (operation(math.where(True, 7, x)), x))
    assert got == want
    assert type(got) is type(want)


@pytest.mark.parametrize(
    "operation",
    [
        pytest.param(lambda seven: seven // 0, id="floor-division-by-0"),
        pytest.param(lambda seven: seven % 0, id="remainder-by-0"),
        pytest.param(lambda seven: seven & 1.5, id="bits-of-a-float"),
    ],
)
def test_constants_without_a_value_are_one_clear_error(operation):
    with pytest.raises(TraceError, match=r"of constants must have a value, got \w+\(.*; mend the constants"):
        outputs(lambda x: (operation(math.where(True, 7, x)), x))


def test_a_shift_of_constants_does_not_fill_the_memory():
    with pytest.raises(TraceError, match="a whole number must fit into 64 bits"):
        outputs(lambda x: (math.where(True, 7, x) << (1 << 40), x))
    (got,) = outputs(lambda x: (math.where(True, 0, x) << (1 << 40), x))
    assert got == 0


def test_remainder_by_0_0_is_nan():
    (got,) = outputs(lambda x: (math.where(True, 7, x) % 0.0, x))
    assert got != got


def test_numpy_numbers_are_plain_constants():
    """Their repr would otherwise reach keys and generated code."""
    assert trace(lambda x: x * np.float64(2), 1) == trace(lambda x: x * 2.0, 1)
    one, other = (Monoid(math.maximum, least, name="m") for least in (np.float64(-INF), -INF))
    assert one.algebra == other.algebra


@pytest.mark.filterwarnings(
    "ignore:.*ndim > 0 to a scalar:DeprecationWarning"
)  # Triton's interpreter, of loops
@pytest.mark.parametrize(
    "dtype", [torch.float32, torch.float16, torch.int8, torch.uint8, torch.int64], ids=str
)
def test_a_lift_may_give_infinities(dtype: torch.dtype) -> None:
    def two_largest(a, b):
        return math.maximum(a.first, b.first), math.maximum(
            math.minimum(a.first, b.first), math.maximum(a.second, b.second)
        )

    top2 = Monoid(
        two_largest, (-INF, -INF), lift=lambda x: (x, -INF), fields=("first", "second"), dtypes="input"
    )
    x = torch.tensor([[3, 1, 4, 1, 5], [9, 2, 6, 5, 9]]).to(dtype)
    for backend in ("cpu", "reference", "interpret"):
        with tilefold.backend(backend):
            first, second = tilefold.reduce(x, top2, 1)
        assert first.tolist() == [5, 9]
        assert second.tolist() == [4, 9]


# ------------------------------------------------------------------------------------------ pickled and copied


class Spread(NamedTuple):
    low: Any
    high: Any


def spread(**options: Any) -> Monoid:
    return Monoid(
        lambda a, b: (math.minimum(a.low, b.low), math.maximum(a.high, b.high)),
        (INF, -INF),
        fields=("low", "high"),
        lift=lambda x: (x, x),
        dtypes="input",
        name="spread",
        **options,
    )


def there_and_back(what: Any) -> Any:
    return pickle.loads(pickle.dumps(what))


CATALOGUE = {name: m for name, m in vars(monoids).items() if isinstance(m, Monoid)}


@pytest.mark.parametrize("name", CATALOGUE)
def test_members_of_the_catalogue_are_pickled_by_name(name: str) -> None:
    assert there_and_back(CATALOGUE[name]) is CATALOGUE[name]
    assert len(pickle.dumps(CATALOGUE[name])) < 100


@pytest.mark.parametrize(
    "monoid",
    [
        pytest.param(Monoid(lambda a, b: a + b, 0, lift=lambda x: x * 3, name="triple"), id="one-field"),
        pytest.param(Monoid(lambda a, b: a.total + b.total, (0,), fields=("total",)), id="one-named-field"),
        pytest.param(Monoid(lambda a, b: b, None, name="newest"), id="without-identity"),
        pytest.param(spread(), id="state"),
        pytest.param(spread(project=lambda low, high: (high, low)), id="tuple"),
        pytest.param(spread(project=Spread), id="named-tuple"),
        pytest.param(monoids.NORM(3.0), id="norm"),
    ],
)
def test_a_monoid_of_lambdas_is_pickled_as_its_graphs(monoid: Monoid) -> None:
    again = there_and_back(monoid)
    assert (again.algebra, again.total, repr(again)) == (monoid.algebra, monoid.total, repr(monoid))
    x = torch.tensor([[3.0, 1.0, 4.0], [1.0, 5.0, 9.0]])
    want, got = (tilefold.reduce(x, m, 1) for m in (monoid, again))
    assert type(got) is type(want)
    for one, other in zip(got, want, strict=True):
        assert torch.equal(one, other)


@pytest.mark.parametrize("fields", [None, ("x",)], ids=["scalar", "tuple"])
def test_a_pickled_monoid_is_equal(fields: tuple[str, ...] | None) -> None:
    def made(k: float, name: str = "largest", form: object = fields) -> Monoid:
        scalar = lambda a, b: math.maximum(a, b * k)  # noqa: E731  # one of two
        combine = scalar if form is None else lambda a, b: (scalar(a.x, b.x),)
        return Monoid(combine, None, fields=form, name=name, check=False, commutative=False)

    one = made(1.5)
    assert there_and_back(one) == one == made(1.5)
    assert hash(there_and_back(one)) == hash(one)
    assert len({one, there_and_back(one), made(2.5), made(1.5, "other")}) == 3
    assert one not in (made(2.5), made(1.5, "other"), made(1.5, form=("x",) if fields is None else None), 1.5)


def test_a_pickled_monoid_that_folds_floats_alone_still_does() -> None:
    longest = Monoid(lambda f, g: (f.a + g.a, math.maximum(f.b + g.a, g.b)), (0, -INF), fields=("a", "b"))
    x = torch.ones(3, dtype=torch.int32)
    with pytest.raises(DtypeError, match="must fold floats"):
        tilefold.reduce((x, x), there_and_back(longest))


def test_a_copy_of_a_monoid_is_itself() -> None:
    monoid = spread()
    assert copy.copy(monoid) is copy.deepcopy(monoid) is monoid


@pytest.mark.parametrize("protocol", range(pickle.HIGHEST_PROTOCOL + 1))
def test_results_are_pickled_and_copied(protocol: int) -> None:
    state = tilefold.reduce(torch.tensor([3.0, 1.0]), spread())
    for again in (pickle.loads(pickle.dumps(state, protocol)), copy.copy(state), copy.deepcopy(state)):
        assert (again.low.item(), again.high.item()) == (1.0, 3.0)
        assert type(again) is type(state)
        assert again._fields == ("low", "high")


def test_another_process_unpickles_what_it_has_never_seen(tmp_path: Path) -> None:
    x = torch.tensor([3.0, 1.0])
    (tmp_path / "sent").write_bytes(pickle.dumps((spread(), x, tilefold.reduce(x, spread()))))
    code = (
        "import pickle, sys, tilefold; monoid, x, state = pickle.load(open(sys.argv[1], 'rb')); "
        "again = tilefold.reduce(x, monoid); print(state._fields, again.low == state.low, again.high == state.high)"
    )
    source = str(Path(tilefold.__file__).parent.parent)
    shown = subprocess.run(
        [sys.executable, "-c", code, str(tmp_path / "sent")],
        capture_output=True, text=True, check=True, env={**os.environ, "PYTHONPATH": source},
    )  # fmt: skip
    assert shown.stdout.strip() == "('low', 'high') tensor(True) tensor(True)"


@pytest.mark.parametrize("name", sorted(monoids.__all__))
def test_a_notebook_shows_the_formulas(name: str) -> None:
    monoid = getattr(monoids, name)
    if not isinstance(monoid, Monoid):
        return
    shown = monoid._repr_html_()
    assert repr(monoid) in shown
    assert all(f"new.{field}" in shown for field in monoid.fields)


def test_a_notebook_shows_markup_as_text() -> None:
    shown = Monoid(lambda a, b: a + b, 0, name="<script>")._repr_html_()
    assert "<script>" not in shown
    assert "&lt;script&gt;" in shown
    assert "old.value + chunk.value" in shown


class Weighted(Monoid):
    """A monoid with an `__init__` of its own."""

    def __init__(self, weight: float) -> None:
        super().__init__(lambda a, b: a + b, 0, lift=lambda x: x * weight)


def test_a_class_of_monoids_may_take_arguments_of_its_own() -> None:
    x = torch.tensor([1.0, 2.0])
    assert tilefold.reduce(x, Weighted(3.0), 0) == 9
    assert next(iter(inspect.signature(Monoid).parameters)) == "combine"
