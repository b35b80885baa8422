"""Folds, their arguments and backends."""

from __future__ import annotations

import torch
from torch._subclasses.fake_tensor import FakeTensorMode

import tilefold as tf
from refusals.making import Case, Wrapper, X, dual, made_in_inference_mode, overlapping, reduced, with_backend
from tilefold import monoids
from tilefold.errors import (
    ArgumentError,
    BackendError,
    DeviceError,
    DimError,
    DtypeError,
    EmptyError,
    GradientError,
    KindError,
    RepeatedDimError,
    ShapeError,
)
from tilefold.planner.problem.canonical import normalize_dims

ONE = torch.ones(1)
CASES = [
    # api/reduce.py
    Case("backend", with_backend("fast"), ArgumentError, r"backend: .*one of auto, torch, cpu.*got 'fast'"),
    Case(
        "backend torch",
        with_backend("torch"),
        BackendError,
        r"torch's own fold must be known to give.*, got \(.*\) of torch.float32 over dims \[0, 1\], .*; use \"cpu\"",
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
        r"sum: folds are not implemented for elements other than real.*got torch.complex64; fold",
    ),
    Case("a number", reduced(5, monoids.SUM), KindError, r"a tensor or a sequence of tensors, got int; use"),
    Case("no monoid", reduced(X, torch.sum), KindError, r"with a tilefold.Monoid, got .*; take"),
    Case(
        "into out inside functionalize",
        lambda: torch.func.functionalize(lambda r: tf.sum(r, 1, out=torch.empty(2)))(X),
        GradientError,
        r"sum: an input must be a plain tensor where .*`out`, got one inside torch.func .*; leave `out` away",
    ),
    Case(
        "explain_plan inside vmap",
        lambda: torch.vmap(lambda r: tf.explain_plan(r, monoids.SUM))(X),
        GradientError,
        r"explain_plan: an input must be a plain tensor, got one inside torch.func .*; call it outside",
    ),
    Case(
        "out inside vmap",
        lambda: torch.vmap(lambda o: tf.sum(X, 1, out=o))(torch.ones(4, 2)),
        GradientError,
        r"sum: `out` must be a plain tensor where .*`out`, got one inside torch.func .*; leave `out` away",
    ),
    Case(
        "inputs that broadcast beyond int64",
        reduced((ONE.expand(2**40, 1), ONE.expand(1, 2**40)), monoids.AFFINE),
        ShapeError,
        r"fewer than 2\*\*63 elements, got the shape \[1099511627776, 1099511627776\]; fold",
    ),
    Case(
        "results beyond any memory",
        reduced(ONE.expand(2**31, 2**31), monoids.SUM, ()),
        ShapeError,
        r"fewer than 2\*\*63 bytes, got the shape \[2147483648, 2147483648\]; call",
    ),
    Case(
        "text for dims",
        lambda: tf.sum(X, ""),
        KindError,
        r"an int, a sequence of ints or None, got ''; count",
    ),
    Case("text for out", lambda: tf.sum(X, out=""), KindError, r"`out` must be a tensor, .*, got str; pass"),
    Case(
        "dual",
        dual,
        GradientError,
        r"forward derivative where results are written into `out`, got one that does; leave `out` away",
    ),
    Case(
        "out overlaps itself in part",
        reduced(torch.ones(2, 5, 6), monoids.SUM, 2, out=torch.empty(20).as_strided((2, 5), (1, 1))),
        ShapeError,
        r"not overlap itself .*, got strides \[1, 1\]; use",
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
        reduced(X.clone().requires_grad_(), monoids.SUM, 1, out=torch.empty(2)),
        GradientError,
        r"an input must not require grad where .*`out`.*; leave `out` away, or use torch.no_grad",
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
        r"not overlap itself .*, got strides \[0\]; use",
    ),
    Case(
        "out sparse",
        reduced(X, monoids.SUM, 1, out=torch.zeros(2).to_sparse()),
        KindError,
        r"reduce: `out` must be dense \(strided\).*, got layout torch.sparse_coo; pass",
    ),
    Case(
        "out that wraps",
        reduced(X, monoids.SUM, 1, out=Wrapper(torch.zeros(2))),
        KindError,
        r"reduce: `out` must be dense .*memory of its own, got Wrapper; pass",
    ),
    Case(
        "out without data",
        reduced(X, monoids.SUM, 1, out=FakeTensorMode().from_tensor(torch.zeros(2))),
        KindError,
        r"reduce: `out` must hold data as the inputs do, got a FakeTensor; pass",
    ),
    Case(
        "65 dims",
        lambda: tf.sum(torch.ones((1,) * 65)),
        ShapeError,
        r"sum: only tensors with up to 64 dims are supported, got 65; reshape",
    ),
    Case("out kind", lambda: tf.sum(X, out=3), KindError, r"sum: `out` must be a tensor.*, got int; pass"),
    Case(
        "out of any of bytes",
        lambda: tf.any(X.byte(), out=3),
        KindError,
        r"any: `out` must be a tensor.*, got int; pass",
    ),
    Case(
        "out of inference mode",
        lambda: tf.softmax(X, 1, out=made_in_inference_mode(2, 3)),
        GradientError,
        r"softmax: `out` must not be an inference tensor outside .*, got one; use torch.inference_mode",
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
    # planner/problem/canonical.py
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
]
