"""Products of matrices."""

from __future__ import annotations

import torch

import tilefold as tf
from refusals.making import A, B, Case, X, multiplied
from tilefold import math, monoids
from tilefold.errors import (
    ArgumentError,
    ArityError,
    DtypeError,
    EmptyError,
    KindError,
    ShapeError,
    TraceError,
)

SHORT, LONG = torch.ones((), dtype=torch.int16), (1 << 23) + 1
CASES = [
    # planner/products/
    Case("product kinds", multiplied(A, [1]), KindError, r"must be tensors, got list; use torch.as_tensor"),
    Case("product bias kind", multiplied(bias=2.0), KindError, r"`bias` must be a tensor, got float; use"),
    Case(
        "product dtypes",
        multiplied(A, B.half()),
        DtypeError,
        r"one dtype, got torch.float32 and torch.float16",
    ),
    Case(
        "product of truth values",
        multiplied(A.bool(), B.bool()),
        DtypeError,
        r"of float16, .*int8.*, got torch.bool; convert",
    ),
    Case(
        "product of ints on a GPU",
        lambda: tf.explain_plan((A.int(), B.int()), tf.matmul),
        DtypeError,
        r"on a GPU must be of int8, uint8 or int16, got torch.int32; convert",
    ),
    Case(
        "product too long to be exact",
        lambda: tf.explain_plan((SHORT.expand(2, LONG), SHORT.expand(LONG, 2)), tf.matmul),
        ShapeError,
        r"on a GPU are exact for K of at most 8388608, got 8388609; split K",
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
        r"each of `epilogue_args`, 2 in all, got relu\(x\); pass",
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
        r"must be given two operands, got one Tensor; write",
    ),
    Case(
        "explain nothing",
        lambda: tf.explain_plan(None, tf.matmul),
        KindError,
        r"operands, got one NoneType; write",
    ),
    Case(
        "explain an unknown option",
        lambda: tf.explain_plan((X, X), tf.matmul, dtype=torch.float16),
        ArgumentError,
        r"must be of bias, epilogue, .*, got dtype; leave",
    ),
    Case(
        "explain for a device of torch",
        lambda: tf.explain_plan((X, X), tf.matmul, device="cuda"),
        KindError,
        r"must be a tilefold\.planner\.device\.Device, got 'cuda'; take",
    ),
    Case(
        "explain with a fold's option",
        lambda: tf.explain_plan(X, monoids.SUM, epilogue="relu"),
        ArgumentError,
        r"without options, got epilogue; leave",
    ),
    Case(
        "explain a number",
        lambda: tf.explain_plan(X, 3),
        KindError,
        r"a monoid or a function of tilefold's, got int; take",
    ),
    Case(
        "explain what runs nothing",
        lambda: tf.explain_plan(X, len),
        KindError,
        r"must run on a GPU, got len, which ran nothing of tilefold's; take",
    ),
    Case(
        "explain a call without its dim",
        lambda: tf.explain_plan(X, tf.softmax),
        ArgumentError,
        r"those of softmax \(input, dim, .*\), got others \(missing .*\); write",
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
        r"each result of the fold, 2 in all, got .*\(x\); write",
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
        r"at most 1024 columns where they are combined in order, got 1025; leave",
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
        "layer of no number",
        lambda: tf.nn.Linear(None, 2),
        KindError,
        r"`in_features` must be an int .*, got None; say",
    ),
    Case(
        "layer of fewer than none",
        lambda: tf.nn.Linear(2, -1),
        ArgumentError,
        r"`out_features` must be an int from 0 .*, got -1; say",
    ),
    Case(
        "layer's bias",
        lambda: tf.nn.Linear(2, 2, X),
        KindError,
        r"`bias` must be True or False, got Tensor of .*; write",
    ),
    Case(
        "layer's device",
        lambda: tf.nn.Linear(2, 2, device=True),
        KindError,
        r"`device` must be a torch.device, .*, got True; pass",
    ),
    Case(
        "layer of whole numbers",
        lambda: tf.nn.Linear(2, 2, dtype=torch.int32),
        DtypeError,
        r"`dtype` must be of floats, got torch.int32; parameters",
    ),
    Case(
        "row by NORM",
        multiplied(row=(monoids.NORM, None)),
        KindError,
        r"got the function NORM, which makes one; call it",
    ),
]
