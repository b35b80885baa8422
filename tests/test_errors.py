"""Every error raised on purpose: its rule, its form, its second kinds, and that no `raise` is left without a case.

A message reads "what: the rule, got X; the fix". `test_every_raise_has_a_case` finds the raise statements in the source and
compares them with those the cases end in.
"""

from __future__ import annotations

import ast
import inspect
import re
import traceback
from collections.abc import Callable
from decimal import Decimal
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import tilefold as tf
from refusals import algebra, folds, functions, losses, many, maps, products, scans
from refusals.making import INF, Case, X
from tilefold import errors
from tilefold.algebra.expression import trace
from tilefold.errors import (
    TraceError,
)

SOURCE = Path(tf.__file__).parent
# Files, commands and the GPU's launcher have tests of their own (test_describe, test_cli, backends).
pytestmark = pytest.mark.filterwarnings(
    "ignore:.torch.jit.script. is deprecated:DeprecationWarning"
)  # torch's forward_ad
ROOMS = (
    "api/reduce.py",
    "api/scan.py",
    "api/reduce_map.py",
    "planner/problem/validate.py",
    "planner/problem/canonical.py",
    "functional/*.py",
    "math.py",
    "algebra/*.py",
    "contract/*.py",
    "api/explain.py",
    "nn/*.py",
)

# Statements that no caller can reach, and why.
UNREACHABLE = {
    ("algebra/operations.py", "_no_number"): "an invariant: block operations on numbers are refused before",
    **{
        ("algebra/proofs/exact.py", function): "no caller meets it: the laws take it for undecided"
        for function in (
            "_step",
            "_exact_step",
            "_made",
            "_divide",
            "_order",
            "_rounded",
            "_floor_divide",
            "_monotone",
            "_series",
            "_sin",
            "_pow",
            "of",
        )
    },
    **{
        (
            "algebra/proofs/laws.py",
            function,
        ): "`verify` raises it again, of the verdict that is kept: the cases show it there"
        for function in (
            "_verified",
            "_check_identity",
            "_check_associativity",
            "_check_commutativity",
            "_check_absorbed",
        )
    },
}


CASES = [
    *algebra.CASES,
    *folds.CASES,
    *functions.CASES,
    *losses.CASES,
    *many.CASES,
    *maps.CASES,
    *products.CASES,
    *scans.CASES,
]


def raised(case: Case) -> tuple[Exception, tuple[str, str, int]]:
    """What the case ends in, and where: file, function, line."""
    with tf.backend("cpu"), pytest.raises(case.error, match=case.rule) as caught:
        case.call()
    last = traceback.extract_tb(caught.value.__traceback__)[-1]
    return caught.value, (Path(last.filename).relative_to(SOURCE).as_posix(), last.name, last.lineno or 0)


@pytest.mark.parametrize("case", CASES, ids=lambda c: c.name)
def test_rule_and_form(case):
    error, _ = raised(case)
    message = str(error)
    assert isinstance(error, errors.TilefoldError)
    assert "\n" not in message
    assert re.match(r"[\w<>' ]+: ", message), "a message begins with what failed"
    assert re.search(r"[:,] .*got .*; \w", message, re.DOTALL), "the rule, what was got, the fix"


def statements() -> dict[tuple[str, str], list[tuple[int, int]]]:
    """Every raise statement: (file, function) -> first and last lines."""
    found: dict[tuple[str, str], list[tuple[int, int]]] = {}
    for path in sorted(p for room in ROOMS for p in SOURCE.glob(room)):
        for function in ast.walk(ast.parse(path.read_text())):
            if isinstance(function, ast.FunctionDef):
                for node in ast.walk(function):
                    if isinstance(node, ast.Raise) and node.exc is not None:  # without, an error is passed on
                        place = path.relative_to(SOURCE).as_posix(), function.name
                        found.setdefault(place, []).append((node.lineno, node.end_lineno or node.lineno))
    return found


def test_every_raise_has_a_case():
    reached = {raised(case)[1] for case in CASES}
    missing = [
        f"{file}:{first} in {function}"
        for (file, function), spans in statements().items()
        for first, last in spans
        if (file, function) not in UNREACHABLE
        and not any(f == file and first <= line <= last for f, _, line in reached)
    ]
    assert not missing


def test_the_tree_in_the_docstring_is_the_tree():
    """Each error, its parent and its second kinds, as `errors` draws them."""
    classes = {
        n: c for n, c in vars(errors).items() if inspect.isclass(c) and c.__module__ == errors.__name__
    }
    drawn = {}
    parents = ["TilefoldError"]
    for line in (errors.__doc__ or "").splitlines():
        entry = re.match(r" {4}((?:[|` ]   ?)*)[|`]-- (\w+) +(.*)", line)
        if entry:
            level = len(line.split("-- ")[0]) // 4
            parents = [*parents[:level], entry[2]]
            kinds = re.findall(r"\(also (.*)\)", entry[3])
            drawn[entry[2]] = (parents[level - 1], set(kinds[0].split(" and ")) if kinds else set())
    assert set(drawn) == set(classes) - {"TilefoldError"}
    for name, (parent, kinds) in drawn.items():
        bases = [b.__name__ for b in classes[name].__bases__]
        assert bases[0] == parent
        assert set(bases[1:]) == kinds


def test_what_python_refuses_inside_a_trace_names_the_fix():
    """Protocols of Python that a symbol cannot follow: each says what to write instead."""
    for function, fix in [
        (lambda x: float(x), "function of that name in tilefold.math"),
        (lambda x: int(x), r"cast\(x, torch.int64\)"),
        (lambda x: complex(x), "two fields|tilefold.math"),
        (lambda x: round(x), r"floor\(x \+ 0.5\)"),
        (lambda x: x[0], "the whole tensor is not there"),
        (lambda x: len(x), "scalar"),
        (lambda x: list(x), "fields="),
        (lambda x: [0][x], "no number yet"),
        (lambda x: 0 < x < 1, "where"),
        (lambda x: x in (1, 2), "where"),
        (lambda x: np.exp(x), "tilefold.math"),
        (lambda x: np.float32(2) * x, "tilefold.math"),
    ]:
        with pytest.raises(TraceError, match=fix):
            trace(function, 1)


def vector_norm_of(library: Any) -> Callable[..., Any]:
    return library.linalg.vector_norm if library is torch else library.vector_norm


@pytest.mark.parametrize(
    ("call", "kind"),
    [
        pytest.param(lambda f: f.sum(X, 2), IndexError, id="dim-out-of-range"),
        pytest.param(lambda f: f.sum(X, (0, 0)), RuntimeError, id="dim-twice"),
        pytest.param(lambda f: f.sum(X, 1.5), TypeError, id="dim-kind"),
        pytest.param(lambda f: f.sum(X, True), TypeError, id="dim-true"),
        pytest.param(lambda f: f.sum(X, torch.tensor([0, 1])), TypeError, id="dim-tensor-of-two"),
        pytest.param(lambda f: f.max(X, keepdim=True), TypeError, id="max-keepdim-alone"),
        pytest.param(lambda f: f.max(X, 1, other=X), TypeError, id="max-dim-and-other"),
        pytest.param(lambda f: f.var(X, True, keepdim=True), TypeError, id="unbiased-in-place-of-dim"),
        pytest.param(lambda f: f.sum(X, dtype="float32"), TypeError, id="dtype-kind"),
        pytest.param(lambda f: f.sum(X, out=3), TypeError, id="out-kind"),
        pytest.param(lambda f: f.argmax(X, (0, 1)), TypeError, id="argmax-of-dims"),
        pytest.param(lambda f: f.prod(X, (0, 1)), TypeError, id="prod-of-dims"),
        pytest.param(lambda f: f.mean(X.int()), RuntimeError, id="mean-of-ints"),
        pytest.param(lambda f: f.amax(X.to(torch.complex64)), RuntimeError, id="complex"),
        *(
            pytest.param(
                lambda f, name=name, dim=dim: getattr(f, name)(X, dim=dim),
                TypeError,
                id=f"{name}-dim-{dim!r}",
            )
            for name in ("max", "min", "argmax", "argmin", "aminmax", "prod")
            for dim in map(torch.tensor, (1.0, True, [1], [[0, 1]]))
        ),
        pytest.param(lambda f: f.max(X, 1, dim=1), TypeError, id="max-two-dims"),
        pytest.param(lambda f: f.min(X, X, other=X), TypeError, id="min-two-others"),
        pytest.param(lambda f: f.max(X, dim=torch.tensor(2)), IndexError, id="max-dim-tensor-out-of-range"),
        pytest.param(lambda f: f.argmax(X, 1, out=torch.empty(2)), RuntimeError, id="argmax-out-dtype"),
        pytest.param(lambda f: f.argmin(X, 1, out=3), TypeError, id="argmin-out-kind"),
        pytest.param(lambda f: f.amax(X[:0], 0), IndexError, id="amax-of-nothing-along-a-dim"),
        pytest.param(lambda f: f.amax(X[:0]), RuntimeError, id="amax-of-nothing"),
        pytest.param(lambda f: f.argmax(X[:0]), IndexError, id="argmax-of-nothing"),
        pytest.param(lambda f: f.amax(X, 0, out=torch.ones(3).double()), RuntimeError, id="out-dtype"),
        pytest.param(
            lambda f: f.var(X, unbiased=True, correction=1), TypeError, id="unbiased-and-correction"
        ),
        *(
            pytest.param(
                lambda f, name=name, value=value: getattr(f, name)(X, 0, value),
                TypeError,
                id=f"{name}-unbiased-{value!r}",
            )
            for name in ("var", "std", "var_mean", "std_mean")
            for value in (0, 1, 0.0, None, "a", np.False_, torch.tensor(False))
        ),
        pytest.param(lambda f: f.var(X, unbiased=0), TypeError, id="var-unbiased-alone-of-a-number"),
        pytest.param(
            lambda f: f.var(X, unbiased=None, correction=1), TypeError, id="unbiased-none-and-correction"
        ),
        *(
            pytest.param(
                lambda f, value=value: f.std(X, 0, correction=value), TypeError, id=f"correction-{value!r}"
            )
            for value in ("a", [1], (1,), np.array(1), torch.tensor([1]), Decimal(1))
        ),
        pytest.param(lambda f: f.var(X, correction=1j), RuntimeError, id="correction-complex"),
        pytest.param(
            lambda f: f.var(X, correction=torch.tensor(1j)), RuntimeError, id="correction-tensor-of-a-complex"
        ),
        pytest.param(lambda f: f.norm(X, "2"), RuntimeError, id="norm-of-a-string"),
        pytest.param(lambda f: f.norm(X[0], "nuc"), RuntimeError, id="nuclear-norm-of-a-vector"),
        pytest.param(lambda f: f.norm(X, 1j), RuntimeError, id="norm-of-complex-order"),
        pytest.param(lambda f: vector_norm_of(f)(X, 1j), RuntimeError, id="vector-norm-of-complex-order"),
        pytest.param(
            lambda f: f.norm(X, torch.tensor(1j)), RuntimeError, id="norm-of-a-complex-tensor-s-order"
        ),
        pytest.param(lambda f: f.norm(X, torch.tensor([2.0])), TypeError, id="norm-of-a-1d-tensor-s-order"),
        pytest.param(
            lambda f: f.norm(X, torch.tensor(2.0, requires_grad=True)),
            TypeError,
            id="norm-of-an-order-that-requires-grad",
        ),
        pytest.param(lambda f: vector_norm_of(f)(X, "2"), TypeError, id="vector-norm-of-a-string"),
        pytest.param(lambda f: f.sum(X, 1, keepdim=None), TypeError, id="sum-keepdim-none"),
        pytest.param(lambda f: f.sum(X, 1, keepdim=1), TypeError, id="sum-keepdim-1"),
        pytest.param(lambda f: f.any(X, 1, None), TypeError, id="any-keepdim-none"),
        pytest.param(lambda f: f.any(X, 1, 1), TypeError, id="any-keepdim-1"),
        pytest.param(lambda f: f.max(X, 1, None), TypeError, id="max-keepdim-none"),
        pytest.param(lambda f: f.max(X, 1, 1), TypeError, id="max-keepdim-1"),
        pytest.param(lambda f: f.argmax(X, 1, keepdim=None), TypeError, id="argmax-keepdim-none"),
        pytest.param(lambda f: f.argmax(X, 1, keepdim=1), TypeError, id="argmax-keepdim-1"),
        pytest.param(lambda f: f.var(X, 1, keepdim=None), TypeError, id="var-keepdim-none"),
        pytest.param(lambda f: f.var(X, 1, keepdim=1), TypeError, id="var-keepdim-1"),
        pytest.param(lambda f: f.norm(X, 2, 1, keepdim=None), TypeError, id="norm-keepdim-none"),
        pytest.param(lambda f: f.norm(X, 2, 1, keepdim=1), TypeError, id="norm-keepdim-1"),
        pytest.param(lambda f: f.aminmax(X, dim=0, keepdim=None), TypeError, id="aminmax-keepdim-none"),
        pytest.param(lambda f: f.aminmax(X, dim=0, keepdim=1), TypeError, id="aminmax-keepdim-1"),
        pytest.param(lambda f: f.sum(X, keepdim=False), TypeError, id="sum-keepdim-false-alone"),
        pytest.param(lambda f: f.max(X, keepdim=False), TypeError, id="max-keepdim-false-alone"),
        pytest.param(lambda f: f.max(X, other=X, keepdim=False), TypeError, id="max-other-and-keepdim-false"),
        pytest.param(
            lambda f: f.max(X, torch.tensor(0.0), keepdim=False), TypeError, id="max-dim-tensor-of-a-float"
        ),
        pytest.param(
            lambda f: f.min(X, torch.tensor([0, 1]), keepdim=False), TypeError, id="min-dim-tensor-of-two"
        ),
        pytest.param(lambda f: f.var(X, True, keepdim=False), TypeError, id="var-unbiased-and-keepdim-false"),
        pytest.param(lambda f: f.std(X, True, keepdim=False), TypeError, id="std-unbiased-and-keepdim-false"),
        pytest.param(
            lambda f: f.var_mean(X, True, keepdim=False), TypeError, id="var_mean-unbiased-and-keepdim-false"
        ),
        pytest.param(
            lambda f: f.std_mean(X, True, keepdim=False), TypeError, id="std_mean-unbiased-and-keepdim-false"
        ),
        pytest.param(
            lambda f: f.var(X, True, out=torch.empty(())), TypeError, id="unbiased-in-place-of-dim-and-out"
        ),
        pytest.param(
            lambda f: f.amax(X[:0], (0, 0)), IndexError, id="amax-of-nothing-along-a-dim-named-twice"
        ),
        pytest.param(
            lambda f: f.amax(X[:0], (1, 1)), RuntimeError, id="amax-of-something-along-a-dim-named-twice"
        ),
        pytest.param(
            lambda f: vector_norm_of(f)(X[:0], INF, (0, 0)),
            RuntimeError,
            id="norm-of-nothing-along-a-dim-named-twice",
        ),
        *(
            pytest.param(
                lambda f, name=name, options=options: getattr(f, name)(X, **options),
                TypeError,
                id=f"{name}-{'-'.join(options)}",
            )
            for name in ("sum", "prod", "amax", "max", "argmax", "aminmax", "any", "mean", "var", "logsumexp")
            for options in ({"dim": 0, "axis": 0}, {"dim": 0, "keepdim": True, "keepdims": True}, {"dims": 0})
        ),
        pytest.param(lambda f: f.max(X, 0, axis=0), TypeError, id="max-axis-twice"),
        pytest.param(lambda f: f.sum(X, keepdims=True), TypeError, id="sum-keepdims-alone"),
        pytest.param(
            lambda f: f.count_nonzero(X, axis=0, keepdims=True), TypeError, id="count_nonzero-keepdims"
        ),
        pytest.param(lambda f: f.logsumexp(X), TypeError, id="logsumexp-of-no-dim"),
        pytest.param(lambda f: f.sum(X, dtype=str), TypeError, id="dtype-of-another-type"),
    ],
)
def test_torch_raises_the_same_kind(call, kind):
    with pytest.raises(kind):
        call(torch)
    with pytest.raises(kind) as caught:
        call(tf)
    assert isinstance(caught.value, errors.TilefoldError)


def test_messages_name_no_place_in_memory():
    """It differs from run to run."""
    for value in (object(), lambda: 0):
        with pytest.raises(errors.KindError) as caught:
            tf.topk(X, value)
        assert " at 0x" not in str(caught.value)
        assert type(value).__name__ in str(caught.value)
