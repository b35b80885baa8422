"""Every error raised on purpose: its rule, its form, its second kinds, and that no `raise` is left without a case.

A message reads "what: the rule, got X; the fix". `test_every_raise_has_a_case` finds the raise statements in the source and
compares them with those the cases end in.
"""

from __future__ import annotations

import ast
import inspect
import pickle
import re
import traceback
from collections import namedtuple
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch.autograd import forward_ad

import tilefold as tf
from tilefold import Monoid, errors, math, monoids
from tilefold.algebra import typing
from tilefold.algebra.expression import trace
from tilefold.algebra.program import specialize
from tilefold.errors import (
    ArgumentError,
    ArityError,
    BackendError,
    DeviceError,
    DimError,
    DtypeError,
    EmptyError,
    GradientError,
    KindError,
    LawError,
    MonoidError,
    OrderError,
    RepeatedDimError,
    ShapeError,
    TraceError,
)
from tilefold.problem import normalize_dims

X = torch.ones(2, 3)
NAN, INF = float("nan"), float("inf")

SOURCE = Path(tf.__file__).parent
# Files, commands and the GPU's launcher have tests of their own (test_describe, test_cli, backends).
pytestmark = pytest.mark.filterwarnings(
    "ignore:.torch.jit.script. is deprecated:DeprecationWarning"
)  # torch's forward_ad
ROOMS = (
    "fold.py",
    "validate.py",
    "problem.py",
    "functional/*.py",
    "math.py",
    "algebra/*.py",
    "contract/*.py",
    "explain.py",
    "nn.py",
)

# Statements that no caller can reach, and why.
UNREACHABLE = {
    ("algebra/expression.py", "_no_number"): "an invariant: block operations on numbers are refused before",
    ("algebra/evaluate.py", "_block"): "an invariant: block operations on numbers are refused when traced",
}


@dataclass(frozen=True)
class Case:
    """A call that must fail: with which error, and words of its rule."""

    name: str
    call: Callable[[], Any]
    error: type[Exception]
    rule: str


def dual() -> object:
    with forward_ad.dual_level():
        return tf.reduce(forward_ad.make_dual(X, X), monoids.SUM)


def made(combine: Any = lambda a, b: a + b, identity: Any = 0, **options: Any) -> Callable[[], Monoid]:
    return lambda: Monoid(combine, identity, **{"check": False, "commutative": True, **options})


def local_result() -> Any:
    return namedtuple("Result", "value")


def traced(function: Callable[..., Any]) -> Callable[[], object]:
    return lambda: trace(function, 1)


def kept_value() -> object:
    kept: list[Any] = []
    trace(lambda x: kept.append(x) or x, 1)
    return trace(lambda x: x + kept[0], 1)


def with_backend(name: str) -> Callable[[], object]:
    def call() -> object:
        with tf.backend(name):
            return tf.reduce(X, Monoid(lambda a, b: a + b, 0, lift=lambda x: x * x * x - 2))

    return call


def reduced(*arguments: Any, **options: Any) -> Callable[[], object]:
    return lambda: tf.reduce(*arguments, **options)


class Wrapper(torch.Tensor):
    """A tensor without memory, whose operations another tensor would do."""

    @staticmethod
    def __new__(cls, inner: torch.Tensor) -> Wrapper:
        return torch.Tensor._make_wrapper_subclass(cls, inner.shape, dtype=inner.dtype)

    @classmethod
    def __torch_dispatch__(cls, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> object:
        raise AssertionError(f"{function} was asked of a tensor that only wraps")


A, B = torch.ones(2, 3), torch.ones(3, 4)


def multiplied(*operands: Any, **options: Any) -> Callable[[], object]:
    return lambda: tf.matmul(*(operands or (A, B)), **options)


def overlapping() -> object:
    x = torch.ones(3, 3)
    return tf.reduce(x, monoids.SUM, 1, out=x[0])


CASES = [
    # fold.py
    Case("backend", with_backend("fast"), ArgumentError, r"backend: .*one of auto, torch, lanes.*got 'fast'"),
    Case(
        "backend torch",
        with_backend("torch"),
        BackendError,
        r"torch itself must have the fold, got .*; use \"lanes\"",
    ),
    Case(
        "guarantee",
        reduced(X, monoids.SUM, guarantee="all"),
        ArgumentError,
        r"`guarantee`.*run_to_run.*got 'all'",
    ),
    Case("number of inputs", reduced((X, X), monoids.SUM), ArgumentError, r"sum folds 1 input.*got 2; give"),
    Case("no inputs", reduced((), monoids.SUM), ArgumentError, r"sum folds 1 input.*got 0; give"),
    Case("no tensor", reduced([1.0], monoids.SUM), KindError, r"inputs must be tensors, got float; use"),
    Case(
        "a list to amax",
        lambda: tf.amax([1.0]),
        KindError,
        r"amax: the input must be a tensor, got list; use",
    ),
    Case(
        "complex",
        lambda: tf.sum(X + 0j),
        DtypeError,
        r"sum: elements must be real.*got torch.complex64; fold",
    ),
    Case("a number", reduced(5, monoids.SUM), KindError, r"a tensor or a sequence of tensors, got int; use"),
    Case("no monoid", reduced(X, torch.sum), KindError, r"with a tilefold.Monoid, got .*; take"),
    Case(
        "inside vmap",
        lambda: torch.vmap(lambda r: tf.reduce(r, monoids.DESCRIBE))(X),
        GradientError,
        r"torch.func .*; fold",
    ),
    Case("dual", dual, GradientError, r"forward derivative, got a dual tensor.*; use"),
    Case(
        "out overlaps itself in part",
        reduced(torch.ones(2, 5, 6), monoids.SUM, 2, out=torch.empty(20).as_strided((2, 5), (1, 1))),
        ShapeError,
        r"not overlap itself, got strides \[1, 1\]; use",
    ),
    Case(
        "two devices",
        reduced((X, X.to("meta")), monoids.AFFINE),
        DeviceError,
        r"one device, got cpu and meta; move",
    ),
    Case(
        "sparse", reduced(X.to_sparse(), monoids.SUM), DtypeError, r"dense.*got layout torch.sparse_coo; call"
    ),
    Case(
        "requires grad",
        reduced(X.clone().requires_grad_(), monoids.SUM),
        GradientError,
        r"must not require grad.*; use torch.no_grad",
    ),
    Case(
        "nothing without identity",
        reduced(torch.ones(2, 0), monoids.FIRST, 1),
        EmptyError,
        r"needs an identity, got shape \[2, 0\] and first.*; give",
    ),
    Case(
        "out count",
        reduced(X, monoids.MINMAX, 1, out=X[:, 0]),
        ArgumentError,
        r"one tensor for each of 2 results, got 1",
    ),
    Case(
        "out dtype",
        reduced(X, monoids.SUM, 1, out=torch.ones(2).double()),
        DtypeError,
        r"dtype torch.float32, got torch.float64; pass",
    ),
    Case("out shape", reduced(X, monoids.SUM, 1, out=torch.ones(3)), ShapeError, r"shape \[2\], got \[3\]"),
    Case(
        "out device",
        reduced(X, monoids.SUM, 1, out=torch.ones(2, device="meta")),
        DeviceError,
        r"device cpu, got meta",
    ),
    Case(
        "out expanded",
        reduced(X, monoids.SUM, 1, out=torch.ones(1).expand(2)),
        ShapeError,
        r"not overlap itself, got strides \[0\]; use",
    ),
    Case("out kind", lambda: tf.sum(X, out=3), KindError, r"sum: `out` must be a tensor.*, got int; pass"),
    Case(
        "out of any of bytes",
        lambda: tf.any(X.byte(), out=3),
        KindError,
        r"any: `out` must be a tensor.*, got int; pass",
    ),
    Case(
        "out requires grad",
        lambda: tf.mean(X, 1, out=torch.ones(2, requires_grad=True)),
        GradientError,
        r"mean: `out` must not require grad, got .*; use torch.no_grad",
    ),
    Case(
        "one out twice",
        lambda: (lambda out: tf.aminmax(X, dim=1, out=(out, out)))(torch.ones(2)),
        ShapeError,
        r"tensors of `out` must not overlap, got .*; use",
    ),
    Case(
        "dtype kind",
        lambda: tf.sum(X, dtype="float32"),
        KindError,
        r"a torch.dtype, .* or None, got 'float32'; pass",
    ),
    Case(
        "dtype of no real number",
        lambda: tf.sum(X, dtype=torch.complex64),
        DtypeError,
        r"sum: `dtype` must be a real or bool dtype, got torch.complex64; convert",
    ),
    Case(
        "a tensor that wraps",
        lambda: tf.sum(Wrapper(X)),
        KindError,
        r"memory of their own, got Wrapper, which wraps.*; fold",
    ),
    Case("out is input", overlapping, ShapeError, r"must not overlap an input, got .*; use"),
    # problem.py
    Case(
        "dim",
        reduced(X, monoids.SUM, 2),
        DimError,
        r"`dim` must be in \[-2, 1\] for a 2-D tensor, got 2 .*; count",
    ),
    Case(
        "dim twice",
        reduced(X, monoids.SUM, (0, -2)),
        RepeatedDimError,
        r"named once, got \(0, -2\); dim 0 appears",
    ),
    Case(
        "dim kind",
        lambda: normalize_dims(1.5, 2),
        KindError,
        r"int, a sequence of ints or None, got 1.5; count",
    ),
    Case(
        "shapes",
        reduced((X, torch.ones(4)), monoids.AFFINE),
        ShapeError,
        r"broadcast, got shapes \[2, 3\] and \[4\]; reshape",
    ),
    # functional/
    Case(
        "amax of nothing",
        lambda: tf.amax(torch.ones(2, 0), 1),
        EmptyError,
        r"at least one element, got shape \[2, 0\]; fold",
    ),
    Case(
        "keepdim alone",
        lambda: tf.sum(X, keepdim=True),
        KindError,
        r"`keepdim` needs a `dim`, got keepdim=True alone; pass",
    ),
    Case(
        "argmax of dims",
        lambda: tf.argmax(X, (0, 1)),
        KindError,
        r"argmax: `dim` must be one int, got \(0, 1\); fold",
    ),
    Case(
        "argmax of true",
        lambda: tf.argmax(X, True),
        KindError,
        r"argmax: `dim` must be one int, got True; fold",
    ),
    Case(
        "prod of dims",
        lambda: tf.prod(X, (0, 1)),
        KindError,
        r"prod: `dim` must be one int, got \(0, 1\); leave",
    ),
    Case(
        "var of ints",
        lambda: tf.var(X.int()),
        DtypeError,
        r"var: elements must be floats, got torch.int32; convert",
    ),
    Case(
        "mean of ints",
        lambda: tf.mean(X.int()),
        DtypeError,
        r"mean: elements must be floats, got torch.int32; pass",
    ),
    Case(
        "mean out dtype",
        lambda: tf.mean(X, out=torch.ones(()).double()),
        DtypeError,
        r"mean: .*float32, got torch.float64; pass",
    ),
    Case(
        "mean out shape",
        lambda: tf.mean(X, 0, out=torch.ones(2)),
        ShapeError,
        r"mean: .*shape \[3\], got \[2\]; make",
    ),
    Case(
        "mean out device",
        lambda: tf.mean(X, 0, out=torch.ones(3, device="meta")),
        DeviceError,
        r"mean: .*device cpu, got meta; make",
    ),
    Case(
        "mean out is input",
        lambda: (lambda x: tf.mean(x, 0, out=x[0]))(torch.ones(3, 3)),
        ShapeError,
        r"mean: .*not overlap an input, got memory of one; use",
    ),
    Case(
        "mean out overlaps itself in part",
        lambda: tf.mean(torch.ones(2, 5, 6), 2, out=torch.empty(20).as_strided((2, 5), (1, 1))),
        ShapeError,
        r"mean: .*not overlap itself, got strides \[1, 1\]; use",
    ),
    Case(
        "max of a tensor along a dim",
        lambda: tf.max(X, 1, other=X),
        KindError,
        r"max: `other` takes neither `dim` nor `keepdim`, got one; fold",
    ),
    Case(
        "max keepdim alone", lambda: tf.max(X, keepdim=True), KindError, r"max: `keepdim` needs a `dim`, got"
    ),
    Case(
        "unbiased in place of dim",
        lambda: tf.var(X, True, False),
        KindError,
        r"`var\(x, True\)` takes no other arguments, got more; pass dim=None, unbiased=True",
    ),
    Case("norm of no order", lambda: tf.vector_norm(X, "2"), OrderError, r"a real number, got '2'; 2 is"),
    Case("norm of complex order", lambda: tf.norm(X, 1j), OrderError, r"a real number, got 1j; 2 is"),
    Case(
        "mean dtype kind",
        lambda: tf.mean(X, dtype=str),
        KindError,
        r"mean: `dtype` must be a torch.dtype.* or None, got <class 'str'>; pass",
    ),
    Case(
        "amax of 65 dims",
        lambda: tf.amax(torch.ones((1,) * 65)),
        ShapeError,
        r"up to 64 dims, got 65; reshape",
    ),
    Case(
        "argmax of 65 dims",
        lambda: tf.argmax(torch.ones((1,) * 65)),
        ShapeError,
        r"up to 64 dims, got 65; reshape",
    ),
    Case(
        "unbiased and correction",
        lambda: tf.var(X, unbiased=True, correction=1),
        KindError,
        r"`unbiased` or `correction`, got both; unbiased=True",
    ),
    Case(
        "nuclear norm",
        lambda: tf.norm(X, "nuc"),
        OrderError,
        r'a real number or "fro", got \'nuc\'; use torch.linalg.matrix_norm',
    ),
    Case(
        "norm of a number in quotes",
        lambda: tf.norm(X, "2"),
        OrderError,
        r'a real number or "fro", got \'2\'; 2 is',
    ),
    Case(
        "keepdim of no kind",
        lambda: tf.amax(X, 1, keepdim=None),
        KindError,
        r"amax: `keepdim` must be True or False, got .*NoneType; write",
    ),
    Case(
        "keepdim of a number",
        reduced(X, monoids.SUM, 1, 1),
        KindError,
        r"reduce: `keepdim` must be True or False, got .*int; write",
    ),
    Case(
        "keepdim false alone",
        lambda: tf.mean(X, keepdim=False),
        KindError,
        r"mean: `keepdim` needs a `dim`, got keepdim=False alone; pass",
    ),
    Case(
        "narrowing norm",
        lambda: tf.vector_norm(X, dtype=torch.float16),
        DtypeError,
        r"torch.float32 without narrowing, got torch.float16; convert",
    ),
    # math.py and algebra/expression.py
    Case(
        "cast",
        traced(lambda x: math.cast(x, torch.int8)),
        TraceError,
        r"register holds \(bool, int32, .*\), got torch.int8; results",
    ),
    Case(
        "value of another trace",
        kept_value,
        TraceError,
        r"only use its own arguments.*, got a value kept.*; pass",
    ),
    Case(
        "huge constant",
        traced(lambda x: x + (1 << 64)),
        TraceError,
        r"fit into 64 bits, got 1.84e\+19; write",
    ),
    Case(
        "if",
        traced(lambda x: 1 if x else 0),
        TraceError,
        r"control flow.*got <traced input %0>; use tilefold.math.where",
    ),
    Case(
        "torch function",
        traced(torch.exp),
        TraceError,
        r"torch.exp works on tensors.*got a traced value; use",
    ),
    Case(
        "tensor operand",
        traced(lambda x: x + X),
        TraceError,
        r"Python numbers, got Tensor; give tensors to the fold",
    ),
    Case(
        "constant by zero",
        traced(lambda x: x + apply_floor(7, 0)),
        TraceError,
        r"floordiv of constants.*, got floordiv\(7, 0\).*; mend",
    ),
    Case(
        "block of a number",
        traced(lambda x: math.block_sum(1)),
        TraceError,
        r"block_sum needs a value.*, got the number 1; use block_count",
    ),
    Case(
        "returns none",
        traced(lambda x: None),
        ArityError,
        r"return a value or a tuple of values, got NoneType; return",
    ),
    # algebra/monoid.py
    Case(
        "project of none",
        made(project=lambda x: ()),
        ArityError,
        r"one value or more, got none; leave project out",
    ),
    Case("lift of none", made(lift=lambda: 0), ArityError, r"at least one element, got 0; add"),
    Case(
        "combine gives two",
        made(lambda a, b: (a, b)),
        ArityError,
        r"combine must return one value, got 2; return",
    ),
    Case(
        "block in combine",
        made(lambda a, b: math.block_sum(a)),
        MonoidError,
        r"only in absorb, got one in combine; combine",
    ),
    Case(
        "constant beyond all floats",
        traced(lambda x: x + 10**400),
        TraceError,
        r"fit into 64 bits, got a whole number of 1329 bits; write",
    ),
    Case(
        "constant of an operation beyond all floats",
        traced(lambda x: x + math.sqrt(10**400)),
        TraceError,
        r"must have a value, got sqrt\(a whole number of 1329 bits\).*; mend",
    ),
    Case(
        "identity beyond all floats",
        made(identity=-(10**400)),
        MonoidError,
        r"identity must be a number that a float or 64 bits can hold, got a whole number of 1329 bits; write",
    ),
    Case("combine is no function", made(None), MonoidError, r"combine must be a function, got None; give"),
    Case("lift is no function", made(lift=3), MonoidError, r"lift must be a function, got 3; give"),
    Case(
        "project is no function", made(project="x"), MonoidError, r"project must be a function, got 'x'; give"
    ),
    Case(
        "absorb of three",
        made(absorb=(3, 4, 5)),
        MonoidError,
        r"absorb must be a function, a pair of them.*, got \(3, 4, 5\); leave",
    ),
    Case(
        "absorb without a second",
        made(absorb=(lambda x: x, None)),
        MonoidError,
        r"absorb must be a function, a pair of them.*, got .*None\); leave",
    ),
    Case(
        "index is no truth", made(index="yes"), MonoidError, r"index must be True or False, got 'yes'; True"
    ),
    Case(
        "fields of no kind", made(fields=3), MonoidError, r"fields must be a sequence of names, got 3; name"
    ),
    Case(
        "lift without a signature",
        made(lift=torch.abs),
        ArityError,
        r"lift must tell its arguments.*, got <built-in .*abs.*> without a signature; write",
    ),
    Case(
        "lift of a keyword",
        made(lift=lambda x, *, y: x),
        ArityError,
        r"lift must take 1 argument, got a signature with: missing .*'y'; mend",
    ),
    Case(
        "absorb is True",
        made(absorb=True),
        MonoidError,
        r"absorb must be a function, .*None or False, got True; leave it out",
    ),
    Case(
        "field name",
        made(identity=(0, 0), fields=("a", "if")),
        MonoidError,
        r"field name must match.*no keyword, got 'if'; rename",
    ),
    Case(
        "fields twice",
        made(identity=(0, 0), fields=("a", "a")),
        MonoidError,
        r"distinct.*got \('a', 'a'\); name",
    ),
    Case("no fields", made(identity=(), fields=()), MonoidError, r"at least one, got \(\); name"),
    Case("identity kind", made(identity="0"), MonoidError, r"a Python number for each field, got str; write"),
    Case(
        "identity count",
        made(identity=(0, 0), fields=("s",)),
        ArityError,
        r"one number for each of the fields \('s',\), got 2; give",
    ),
    Case(
        "dtypes count",
        made(dtypes=("input", "input")),
        ArityError,
        r"one for each of the fields \('value',\), got 2; give",
    ),
    Case(
        "dtypes none",
        made(dtypes=None),
        MonoidError,
        r'"compute", "input", "index" or a torch dtype, got None; choose',
    ),
    Case(
        "dtypes of python",
        made(identity=(0, 0), fields=("a", "b"), dtypes=float),
        MonoidError,
        r'"compute", "input", "index" or a torch dtype, got <class \'float\'>; choose',
    ),
    Case(
        "dtypes complex",
        made(dtypes=torch.complex64),
        DtypeError,
        r"field dtype must be of real numbers or bool, got torch.complex64; carry real and imaginary parts",
    ),
    Case(
        "dtypes quantized",
        made(identity=(0, 0), fields=("a", "b"), dtypes=("input", torch.qint8)),
        DtypeError,
        r"field dtype must be of real numbers or bool, got torch.qint8; choose",
    ),
    Case(
        "identity of another dtype",
        made(identity=0.5, dtypes=torch.int64),
        DtypeError,
        r"value: an integer field needs a whole identity, got 0.5 for torch.int64; declare",
    ),
    Case(
        "identity of no position",
        made(lambda a, b: b, (0, 0.5), fields=("a", "b"), dtypes=("input", "index")),
        DtypeError,
        r"b: an integer field needs a whole identity, got 0.5 for torch.int64; declare",
    ),
    Case(
        "identity beyond its dtype",
        made(identity=2**70, dtypes=torch.int64),
        DtypeError,
        r"value: an identity must fit its field, got 1180591620717411303424 for torch.int64; an infinity",
    ),
    Case(
        "dtypes",
        made(dtypes="float"),
        MonoidError,
        r'"compute", "input", "index" or a torch dtype, got \'float\'; choose',
    ),
    Case(
        "lift of many", made(lift=lambda *x: x[0]), ArityError, r"name its arguments.*got \*arguments; write"
    ),
    Case(
        "combine of one",
        made(lambda a: a),
        ArityError,
        r"combine must take 2 arguments, got a signature with: too many.*; mend",
    ),
    Case(
        "pickled with a class that has no place",
        lambda: pickle.dumps(made(project=local_result())()),
        MonoidError,
        r"found by its name to be pickled, got Result; define",
    ),
    # algebra/laws.py
    Case(
        "no dtype",
        made(lambda a, b: (a / 2) & 1, check=True),
        DtypeError,
        r"must fold floats, integers or bool, got functions.*; see",
    ),
    Case(
        "no dtype for an identity",
        made(lambda a, b: a & b, 0.5, check=True),
        DtypeError,
        r"must fold .*float64: and: bitwise operations need .*; int64: value: .* needs a whole identity, got 0.5 .*; see",
    ),
    Case(
        "NaN of identities",
        made(lambda a, b: a + b - INF + INF, INF, check=True),
        LawError,
        r"combine\(identity, identity\) must be the identity.*got.*; guard",
    ),
    Case(
        "identity law",
        made(lambda a, b: a + b, 1, check=True),
        LawError,
        r"combine\(identity, s\) must be s, got .*; give",
    ),
    Case(
        "associativity",
        made(lambda a, b: a - b, None, check=True),
        LawError,
        r"must be associative, got .*; carry",
    ),
    Case(
        "commutativity",
        made(lambda a, b: b, None, check=True),
        LawError,
        r"commutative=True must hold, got .*; leave",
    ),
    Case(
        "absorb",
        made(absorb=lambda s, x: s + math.block_max(x), check=True),
        LawError,
        r"absorb must equal.*, got .*; mend",
    ),
    # algebra/typing.py and program.py
    Case(
        "complex",
        reduced(X.to(torch.complex64), monoids.SUM),
        DtypeError,
        r"real numbers or bool, got torch.complex64; fold torch.view_as_real",
    ),
    Case(
        "result dtype",
        lambda: specialize(monoids.SUM.total, (torch.float32,), torch.complex64),
        DtypeError,
        r"`dtype` must be a real or bool dtype, got torch.complex64; convert",
    ),
    Case(
        "bitwise of floats",
        reduced(X, monoids.BITWISE_OR),
        DtypeError,
        r"integers or bool, got torch.float32; fold",
    ),
    Case(
        "integers by zero",
        reduced(X.long(), made(lift=lambda x: x % 0)()),
        DtypeError,
        r"cannot be divided by 0, got mod\(torch.int64, 0\); divide",
    ),
    Case(
        "integers of a monoid of floats",
        reduced(
            X.int(),
            Monoid(
                lambda f, g: (f.a + g.a, math.maximum(f.b + g.a, g.b)),
                (0, -INF),
                fields=("a", "b"),
                lift=lambda x: (x, x),
            ),
        ),
        DtypeError,
        r"laws hold for floats alone.* must fold floats, got torch.int32; give .*dtypes=torch.float32, or convert",
    ),
    Case(
        "identity NaN",
        lambda: typing.concrete(NAN, torch.int32, "f"),
        DtypeError,
        r"cannot start at NaN, got a torch.int32 field; declare",
    ),
    Case(
        "identity fraction",
        lambda: typing.concrete(0.5, torch.int32, "f"),
        DtypeError,
        r"whole identity, got 0.5 for torch.int32; declare",
    ),
    Case(
        "identity too large",
        lambda: typing.concrete(-(2**63), torch.int8, "f"),
        DtypeError,
        r"must fit its field, got -9223372036854775808 for torch.int8; an infinity",
    ),
    # contract/
    Case("product kinds", multiplied(A, [1]), KindError, r"must be tensors, got list; use torch.as_tensor"),
    Case(
        "product dtypes",
        multiplied(A, B.half()),
        DtypeError,
        r"one dtype, got torch.float32 and torch.float16",
    ),
    Case(
        "product of ints",
        multiplied(A.int(), B.int()),
        DtypeError,
        r"of float16, .*int8.*, got torch.int32; convert",
    ),
    Case(
        "product of a number",
        multiplied(A, torch.tensor(2.0)),
        ShapeError,
        r"a dim to fold, got .*\[\]; multiply",
    ),
    Case(
        "product K",
        multiplied(A, B.T),
        ShapeError,
        r"the same K, got 3 and 4 of shapes \[2, 3\] and \[4, 3\]; transp",
    ),
    Case(
        "product batches",
        multiplied(torch.ones(2, 2, 3), torch.ones(3, 3, 4)),
        ShapeError,
        r"before the last two must broadcast, got shapes \[2, 2, 3\] and \[3, 3, 4\]; reshape",
    ),
    Case(
        "product precision",
        multiplied(precision="fast"),
        ArgumentError,
        r"one of ieee, tf32 or None, got 'fast'",
    ),
    Case(
        "product tf32 of halves",
        multiplied(A.half(), B.half(), precision="tf32"),
        ArgumentError,
        r"asked of float32 operands, got torch.float16; leave",
    ),
    Case(
        "product guarantee",
        multiplied(guarantee="all"),
        ArgumentError,
        r"run_to_run, batch_invariant, none, got 'all'",
    ),
    Case(
        "product out_dtype",
        multiplied(out_dtype="half"),
        KindError,
        r"`out_dtype` must be .*, got 'half'; pass",
    ),
    Case(
        "product out",
        multiplied(out=torch.ones(2, 3)),
        ShapeError,
        r"`out` must have the result's shape \[2, 4\]",
    ),
    Case(
        "product bias",
        multiplied(bias=torch.ones(3)),
        ShapeError,
        r"`bias` must broadcast to .* \[2, 4\], got .*\[3\]",
    ),
    Case(
        "product extra",
        multiplied(epilogue=lambda x, y: x + y, epilogue_args=(torch.ones(5, 2, 4),)),
        ShapeError,
        r"`epilogue_args\[0\]` must broadcast to the result's shape \[2, 4\], got shape \[5, 2, 4\]; reshape",
    ),
    Case(
        "product extra alone",
        multiplied(epilogue=lambda x, y: x + y, epilogue_args=torch.ones(4)),
        KindError,
        r"must be a tuple of tensors, got Tensor; write \(x,\)",
    ),
    Case(
        "product extras without an epilogue",
        multiplied(epilogue_args=(torch.ones(4),)),
        ArgumentError,
        r"must come with an epilogue that takes them, got 1 and none; give",
    ),
    Case(
        "epilogue name", multiplied(epilogue="elu"), ArgumentError, r"one of relu, gelu, .*, got 'elu'; take"
    ),
    Case("epilogue kind", multiplied(epilogue=3), KindError, r"a name, a function or None, got int; write"),
    Case(
        "epilogue arity",
        multiplied(epilogue="relu", epilogue_args=(torch.ones(4),)),
        ArityError,
        r"each of `epilogue_args`, got 1 of these for relu\(x\); pass",
    ),
    Case(
        "epilogue of two",
        multiplied(epilogue=lambda x: (x, x)),
        ArityError,
        r"return one value, got 2 from .*; return",
    ),
    Case(
        "explain one operand",
        lambda: tf.explain_plan(X, tf.matmul),
        KindError,
        r"must be given two operands, got one tensor; write",
    ),
    Case(
        "explain with a fold's option",
        lambda: tf.explain_plan(X, monoids.SUM, epilogue="relu"),
        ArgumentError,
        r"without options of matmul, got epilogue; leave",
    ),
    Case("activation", lambda: tf.nn.Linear(2, 2, activation="elu"), ArgumentError, r"got 'elu'; take"),
    Case("row alone", multiplied(row=monoids.SUM), KindError, r"a monoid and a function, got Monoid; write"),
    Case("row of one", multiplied(row=(monoids.SUM,)), KindError, r"and a function, got 1 values; write"),
    Case(
        "row without a monoid",
        multiplied(row=(3, None)),
        KindError,
        r"folded with a tilefold\.Monoid, got int; take",
    ),
    Case(
        "row of two inputs",
        multiplied(row=(monoids.AFFINE, None)),
        ArgumentError,
        r"one value an element, got affine of 2; give",
    ),
    Case("row kind", multiplied(row=(monoids.SUM, 2)), KindError, r"a function or None, got int; write"),
    Case(
        "row arity",
        multiplied(row=(monoids.SUM, lambda x: x)),
        ArityError,
        r"each result of the fold, got 1 of these for .*\(x\); take",
    ),
    Case(
        "row of two",
        multiplied(row=(monoids.SUM, lambda x, s: (x, s))),
        ArityError,
        r"a row's function must return one value, got 2 from lambda; return",
    ),
    Case(
        "row of a vector",
        multiplied(torch.ones(2, 3), torch.ones(3), row=(monoids.SUM, None)),
        ShapeError,
        r"b must have columns, got shape \[3\]; fold",
    ),
    Case(
        "row too long",
        multiplied(torch.ones(2, 3), torch.ones(3, 1).expand(3, 16385), row=(monoids.SUM, None)),
        ShapeError,
        r"at most 16384 columns, got 16385; leave",
    ),
    Case(
        "row too long to be in order",
        multiplied(
            torch.ones(2, 3),
            torch.ones(3, 1).expand(3, 1025),
            row=(monoids.SUM, None),
            guarantee="batch_invariant",
        ),
        ShapeError,
        r"at most 1024 columns where they meet in order, got 1025; leave",
    ),
    Case(
        "row of nothing",
        multiplied(torch.ones(2, 3), torch.ones(3, 0), row=(monoids.FIRST, None)),
        EmptyError,
        r"needs an identity, got rows of no columns and first without one; give",
    ),
    Case(
        "row and out",
        multiplied(row=(monoids.SUM, None), out=torch.empty(2, 4)),
        ArgumentError,
        r"`out` must be left out with `row`.*, got both; copy",
    ),
    Case(
        "epilogue of a block",
        multiplied(epilogue=lambda x: x - math.block_max(x)),
        TraceError,
        r"sees one element, got block_max, .*; fold each row with `row`",
    ),
    Case(
        "product backend",
        multiplied(),
        BackendError,
        r"\"auto\", \"torch\", .*, got 'lanes'; products have no other",
    ),
]


def apply_floor(a: object, b: object) -> object:
    from tilefold.algebra.expression import apply

    return apply("floordiv", a, b)


def raised(case: Case) -> tuple[Exception, tuple[str, str, int]]:
    """What the case ends in, and where: file, function, line."""
    with tf.backend("lanes"), pytest.raises(case.error, match=case.rule) as caught:
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
                    if isinstance(node, ast.Raise):
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
        pytest.param(lambda f: f.sum(X, "a"), TypeError, id="dim-kind"),
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
        pytest.param(lambda f: f.amax(X[:0], 0), IndexError, id="amax-of-nothing-along-a-dim"),
        pytest.param(lambda f: f.amax(X[:0]), RuntimeError, id="amax-of-nothing"),
        pytest.param(lambda f: f.argmax(X[:0]), IndexError, id="argmax-of-nothing"),
        pytest.param(lambda f: f.amax(X, 0, out=torch.ones(3).double()), RuntimeError, id="out-dtype"),
        pytest.param(
            lambda f: f.var(X, unbiased=True, correction=1), TypeError, id="unbiased-and-correction"
        ),
        pytest.param(lambda f: f.norm(X, "2"), RuntimeError, id="norm-of-a-string"),
        pytest.param(lambda f: f.norm(X[0], "nuc"), RuntimeError, id="nuclear-norm-of-a-vector"),
        pytest.param(lambda f: f.norm(X, 1j), RuntimeError, id="norm-of-complex-order"),
        pytest.param(lambda f: vector_norm_of(f)(X, 1j), RuntimeError, id="vector-norm-of-complex-order"),
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
        pytest.param(lambda f: f.sum(X, dtype=str), TypeError, id="dtype-of-another-type"),
    ],
)
def test_torch_raises_the_same_kind(call, kind):
    with pytest.raises(kind):
        call(torch)
    with pytest.raises(kind) as caught:
        call(tf)
    assert isinstance(caught.value, errors.TilefoldError)
