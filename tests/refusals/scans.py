"""Scans, their states and dims."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

import tilefold as tf
from refusals.making import NAN, Case, X
from refusals.maps import rows_of_lengths
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
    ShapeError,
)

BUFFER, LONGER = torch.ones(2, 3), torch.ones(4, 3)


def scan(*arguments: Any, **options: Any) -> Callable[[], object]:
    return lambda: tf.scan(*(arguments or (X, monoids.SUM, 1)), **options)


def by_torch() -> object:
    with tf.backend("torch"):
        return tf.scan(X, monoids.LAST, 1)


CASES = [
    Case("scan of a flag", scan(reverse=1), KindError, r"scan: `reverse` must be True or False, got .* int; write"),
    Case("scan of two dims", scan(X, monoids.SUM, (0, 1)), KindError, r"`dim` must be one int, got \(0, 1\); flatten"),
    Case("scan of all dims", scan(X, monoids.SUM, None), KindError, r"`dim` must be one int, got None; flatten"),
    Case("scan of a far dim", scan(X, monoids.SUM, 2), DimError, r"scan: `dim` must be in \[-2, 1\].*got 2"),
    Case(
        "scan with grad", scan(X.clone().requires_grad_(), monoids.SUM, 0, out=torch.empty_like(X)), GradientError,
        r"must not require grad",
    ),
    Case(
        "scan into a part of an input", lambda: tf.scan(LONGER[:2], monoids.SUM, 0, out=LONGER[1:3]), ShapeError,
        r"scan: `out` must not overlap an input other than exactly, got memory of one; use",
    ),
    Case(
        "scan into an input with its dims turned", lambda: tf.cumsum(LONGER[:3], 0, out=LONGER[:3].t()), ShapeError,
        r"cumsum: `out` must not overlap an input other than exactly",
    ),
    Case(
        "scan into two inputs, of one in part", lambda: tf.scan(
            (X.clone(), LONGER[:2]), monoids.AFFINE, 0, out=(torch.empty(2, 3), LONGER[1:3])
        ), ShapeError, r"not overlap an input other than exactly",
    ),
    Case("scan by torch", by_torch, BackendError, r'torch\'s own scan must be known.*got \(.*\) over dim 1.*; use "cpu"'),
    Case(
        "scan of nothing known", scan(X, monoids.FIRST, 1, exclusive=True), EmptyError,
        r"a state of nothing needs an identity, got shape \[2, 3\] and first without one; give",
    ),
    Case(
        "init of too few fields", scan((X, X), monoids.AFFINE, 1, init=1), ArgumentError,
        r"`init` must have one number or tensor for each field of affine \(a, b\), got 1; give",
    ),
    Case("init on another device", scan(init=torch.ones(2, device="meta")), DeviceError, r"`init`.*device cpu, got meta"),
    Case("init of a kind", scan(init="a"), KindError, r"`init` must be a number or a tensor.*got str for .*; use"),
    Case("init of halves", scan(X.int(), monoids.SUM, 1, init=0.5), DtypeError, r"`init` must be whole.*int64, got 0.5"),
    Case(
        "init beyond a narrow integer", scan(X.byte(), monoids.MAX, 1, init=300), ArgumentError,
        r"scan: `init` must fit the field value, which is torch.uint8, got 300; give a number in \[0, 255\]",
    ),
    Case("init below 0", scan(X.byte(), monoids.MAX, 1, init=-1), ArgumentError, r"`init` must fit .*uint8, got -1; give"),
    Case(
        "init of elements beyond", scan(X.byte(), monoids.MAX, 1, init=torch.tensor([7, 300])), ArgumentError,
        r"`init` must fit the field value, which is torch.uint8, got 300; give",
    ),
    Case(
        "init of negative elements", scan(X.to(torch.uint64), monoids.MAX, 1, init=torch.tensor(-1)), ArgumentError,
        r"`init` must fit .*uint64, got -1; give",
    ),
    Case(
        "init of unsigned elements beyond", scan(X.long(), monoids.MAX, 1, init=torch.tensor([0, 2**63], dtype=torch.uint64)),
        ArgumentError, r"`init` must fit .*int64, got 9223372036854775808; give",
    ),
    Case(
        "init of doubles beyond", scan(init=torch.tensor([1e300, NAN], dtype=torch.float64)), ArgumentError,
        r"`init` must fit .*float32, got 1e\+300; give",
    ),
    Case("init of 2 for bool", scan(X.bool(), monoids.ANY, 1, init=2), ArgumentError, r"`init` must fit .*bool, got 2; give"),
    Case("init of NaN", scan(X.int(), monoids.MAX, 1, init=NAN), DtypeError, r"`init` must be whole .*int32, got nan"),
    Case("init beyond int64", scan(X.int(), monoids.SUM, 1, init=2**63), ArgumentError, r"`init` must fit .* got 92\d+"),
    Case("init beyond any dtype", scan(init=10**400), ArgumentError, r"`init` must fit.*got a whole number of 1329 bits"),
    Case(
        "init of nothing, with a gradient",
        scan(X.clone().requires_grad_(), monoids.SUM, 1, init=[None]), KindError,
        r"init: a field must be a tensor or a number, got None; give",
    ),
    Case(
        "init beyond any dtype, with a gradient",
        scan(X.clone().requires_grad_(), monoids.SUM, 1, init=10**400), ArgumentError,
        r"init: a number must fit float64, got a whole number of 1329 bits; give a smaller",
    ),
    Case("init beyond float32", scan(init=1e39), ArgumentError, r"`init` must fit .*float32, got 1e\+39; give"),
    Case(
        "init with grad", scan(init=torch.ones(2, requires_grad=True), out=torch.empty_like(X)), GradientError,
        r"`init` must not require grad",
    ),
    Case("init of complex", scan(init=torch.tensor(1j)), DtypeError, r"`init` must hold real numbers.*complex64"),
    Case(
        "scan into its init", scan(X.clone(), monoids.SUM, 1, init=BUFFER[:, 0], out=BUFFER), ShapeError,
        r"`out` must not overlap `init`, got memory of both; use",
    ),
    Case("scan of nothing at all", scan([], monoids.SUM, 0), ArgumentError, r"scan: sum folds 1 input tensor.*got 0; give"),
    Case("scan of no tensors", scan(["a"], monoids.SUM, 0), KindError, r"scan: inputs must be tensors, got str; use"),
    Case(
        "scan of rows of several lengths", lambda: tf.cumsum(rows_of_lengths(), 1), DtypeError,
        r"cumsum: inputs must be dense \(strided\), got a nested tensor",
    ),
    Case("init of another shape", scan(init=torch.ones(3)), ShapeError, r"rows' shape \[2\], got \[3\] for .*; reshape"),
    Case("cumsum without dim", lambda: tf.cumsum(X), KindError, r"cumsum: `dim` must be one int, got none; name"),
    Case("cummax of dims", lambda: tf.cummax(X, (0, 1)), KindError, r"cummax: `dim` must be one int, got \(0, 1\); name"),
    Case("logcumsumexp of ints", lambda: tf.logcumsumexp(X.int(), 0), DtypeError, r"must be floating.*got torch.int32"),
]  # fmt: skip
