"""`reduce_map`, softmax and the norms of layers."""

from __future__ import annotations

import functools
import warnings
from collections.abc import Iterator

import torch

import tilefold as tf
from refusals.making import Case, X
from tilefold import monoids
from tilefold.errors import (
    ArgumentError,
    ArityError,
    DeviceError,
    DtypeError,
    GradientError,
    KindError,
    ShapeError,
    TraceError,
)

BUFFER = torch.ones(7)


def share(x: object, total: object) -> object:
    return x / total  # type: ignore[operator]  # traced values


def rows_of_lengths() -> torch.Tensor:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # torch calls them a prototype
        return torch.nested.nested_tensor([torch.ones(2, 3), torch.ones(4, 3)], layout=torch.strided)


def beside(good: torch.Tensor) -> Iterator[tuple[str, object, type[Exception], str]]:
    """What is refused in place of a good tensor beside the input, with words of its rule."""
    yield (
        "of too many dims",
        good[None, None, None],
        ShapeError,
        r"must have the .* shape|must have the shape",
    )
    yield "of no tensor", good.tolist(), KindError, "must be a tensor, got list"
    yield (
        "of complex numbers",
        good.to(torch.complex64),
        DtypeError,
        "must hold real numbers or bool, got .*complex64",
    )
    yield "on another device", good.to("meta"), DeviceError, "must be on the input's device cpu, got meta"
    yield "that is sparse", good.to_sparse(), DtypeError, r"must be dense \(strided\), got layout .*sparse"


CASES = [
    Case(
        "apply of too many",
        lambda: tf.reduce_map(X, monoids.SUM, lambda x: x, 1),
        ArityError,
        r"`apply` must take an element, .*, 2 in all, got lambda\(x\); write",
    ),
    Case(
        "apply of extras that are not there",
        lambda: tf.reduce_map(X, monoids.SUM, lambda x, total, weight: x, 1),
        ArityError,
        r"`apply` must take .*, 2 in all, got lambda\(x, total, weight\)",
    ),
    Case(
        "apply of nothing",
        lambda: tf.reduce_map(X, monoids.SUM, lambda x, total: (), 1),
        ArityError,
        r"`apply` must return one value or more, got 0 from .*; return",
    ),
    Case(
        "apply without a result",
        lambda: tf.reduce_map(X, monoids.SUM, lambda x, total: None, 1),
        ArityError,
        r"lambda: `apply` must return a value or a tuple of values, got NoneType; return",
    ),
    Case(
        "apply into too few tensors",
        lambda: tf.reduce_map(X, monoids.SUM, lambda x, total: (x, total), 1, out=torch.empty(2, 3)),
        ArgumentError,
        r"`out` must have one tensor for each of 2 results, got 1",
    ),
    Case(
        "apply of a block",
        lambda: tf.reduce_map(X, monoids.SUM, lambda x, total: tf.math.block_sum(x), 1),
        TraceError,
        r"`apply` sees one element, got block_sum.*; fold each row with the monoid",
    ),
    Case(
        "apply of no function",
        lambda: tf.reduce_map(X, monoids.SUM, 3, 1),
        KindError,
        r"`apply` must be a function, got int",
    ),
    Case(
        "rows of no function",
        lambda: tf.reduce_map(X, monoids.SUM, share, 1, rows=3),
        KindError,
        r"`rows` must be a function or None, got int; write one",
    ),
    Case(
        "rows into out",
        lambda: tf.reduce_map(X, monoids.SUM, share, 1, rows=lambda total: total, out=torch.empty(2, 3)),
        ArgumentError,
        r"`out` must be None where `rows` is given, got both; copy",
    ),
    Case(
        "extras of no tensors",
        lambda: tf.reduce_map(X, monoids.SUM, share, 1, extras=5),
        KindError,
        r"`extras` must be a tensor or a sequence of tensors, got int",
    ),
    Case(
        "extras of another shape",
        lambda: tf.reduce_map(X, monoids.SUM, lambda x, s, e: x, 1, extras=torch.ones(4, 2, 3)),
        ShapeError,
        r"extra tensors must broadcast to the inputs' shape \[2, 3\], got \[4, 2, 3\]",
    ),
    Case(
        "out beside its input",
        lambda: tf.reduce_map(BUFFER[:6].view(2, 3), monoids.SUM, share, 1, out=BUFFER[1:].view(2, 3)),
        ShapeError,
        r"`out` must not overlap an input other than exactly",
    ),
    Case(
        "a quantized norm of float64",
        lambda: tf.rms_norm_quantized(X.double(), (3,)),
        DtypeError,
        r"tensors must be float16, bfloat16 or float32, got torch.float64; convert",
    ),
    Case(
        "a quantized norm in float16",
        lambda: tf.rms_norm_quantized(X, (3,), dtype=torch.float16),
        DtypeError,
        r"`dtype` must be torch.float8_e4m3fn, .* got torch.float16; take",
    ),
    Case(
        "a quantized norm in no dtype",
        lambda: tf.rms_norm_quantized(X, (3,), dtype="fp8"),  # type: ignore[arg-type]  # on purpose
        DtypeError,
        r"`dtype` must be .*, got 'fp8'",
    ),
    Case(
        "a quantized norm of groups that leave a rest",
        lambda: tf.rms_norm_quantized(X, (3,), group=2),
        ShapeError,
        r"`group` must divide the last dim's length 3, got 2; pad",
    ),
    Case(
        "a quantized norm of groups of none",
        lambda: tf.rms_norm_quantized(X, (3,), group=0),
        ShapeError,
        r"`group` must divide .*, got 0",
    ),
    Case(
        "a quantized norm of a parameter",
        lambda: tf.rms_norm_quantized(X, (3,), torch.nn.Parameter(torch.ones(3))),
        GradientError,
        r"quantized results have no gradient, got .*; use torch.no_grad",
    ),
    Case(
        "softmax of no dim",
        lambda: tf.softmax(X, None),
        KindError,
        r"softmax: `dim` must be an int .*, got None",
    ),
    Case(
        "softmax of integers", lambda: tf.softmax(X.long(), 1), DtypeError, r"elements must be floating point"
    ),
    Case(
        "layer_norm of other dims",
        lambda: tf.layer_norm(X, (2,)),
        ShapeError,
        r"`normalized_shape` must be the last dims of the input's \[2, 3\], .* got \[2\]",
    ),
    Case(
        "layer_norm of an int",
        lambda: tf.layer_norm(X, 3),
        KindError,
        r"`normalized_shape` must be a sequence of ints, got 3",
    ),
    Case(
        "layer_norm of a fraction",
        lambda: tf.layer_norm(X, (torch.tensor(3.0),)),
        KindError,
        r"`normalized_shape` must be a sequence of ints, got \(tensor\(3\.\),\)",
    ),
    Case(
        "layer_norm of a short weight",
        lambda: tf.layer_norm(X, (3,), torch.ones(2)),
        ShapeError,
        r"layer_norm: `weight` must have the shape `normalized_shape` \[3\], got \[2\]",
    ),
    Case(
        "rms_norm of another residual",
        lambda: tf.rms_norm(X, (3,), residual=torch.ones(3)),
        ShapeError,
        r"`residual` must have the input's shape \[2, 3\], got \[3\]",
    ),
    Case(
        "rms_norm of no eps",
        lambda: tf.rms_norm(X, (3,), eps="x"),
        KindError,
        r"`eps` must be a real number, got 'x'",
    ),
    Case(
        "group_norm of a vector",
        lambda: tf.group_norm(X[0], 1),
        ShapeError,
        r"must have the dims \[N, C, \*\], got \[3\]",
    ),
    Case(
        "group_norm of 2 groups",
        lambda: tf.group_norm(X, 2),
        ShapeError,
        r"`num_groups` must divide .* 3 channels, got 2",
    ),
    Case(
        "group_norm of one value",
        lambda: tf.group_norm(X[:1, :1], 1),
        ArgumentError,
        r"a group must have more than one value .*, got input size \[1, 1\]",
    ),
    Case(
        "group_norm of a short weight",
        lambda: tf.group_norm(X, 3, torch.ones(2)),
        ShapeError,
        r"group_norm: `weight` must have the shape \[3\], .*, got \[2\]",
    ),
    Case(
        "group_norm of half a group",
        lambda: tf.group_norm(X, 1.5),
        KindError,
        r"`num_groups` must be an int, got 1.5",
    ),
    Case(
        "group_norm into another shape",
        lambda: tf.group_norm(X, 3, out=torch.empty(2, 4)),
        ShapeError,
        r"`out` must have the result's shape \[2, 3\], got \[2, 4\]",
    ),
    Case(
        "group_norm into no tensor",
        lambda: tf.group_norm(X, 3, out="x"),
        KindError,
        r"`out` must be a tensor, .*, got str",
    ),
    *(
        Case(
            f"{call.__name__} of {name} {what}",
            functools.partial(call, X, *first, **{name: t}),
            error,
            rf"`{name}` {rule}",
        )
        for call, first, names in (
            (tf.layer_norm, [(3,)], ("weight", "bias", "residual")),
            (tf.rms_norm, [(3,)], ("weight", "residual")),
            (tf.group_norm, [1], ("weight", "bias")),
        )
        for name in names
        for what, t, error, rule in beside(X if name == "residual" else X[0])
    ),
    Case(
        "extras elsewhere",
        lambda: tf.reduce_map(X, monoids.SUM, lambda x, s, e: x, 1, extras=X.to("meta")),
        DeviceError,
        r"reduce_map: `extras` must be on the input's device cpu, got meta",
    ),
    Case(
        "rms_norm of rows of several lengths",
        lambda: tf.rms_norm(rows_of_lengths(), (3,)),
        DtypeError,
        r"inputs must be dense \(strided\), got a nested tensor",
    ),
    Case(
        "reduce_map of nothing",
        lambda: tf.reduce_map([], monoids.SUM, share, 1),
        ArgumentError,
        r"reduce_map: sum folds 1 input tensor\(s\), got 0",
    ),
    Case(
        "normalize of no order",
        lambda: tf.normalize(X, "x"),
        KindError,
        r"`p` must be a real number, got 'x'",
    ),
]
