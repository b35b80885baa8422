"""Functions named after torch's."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import torch

import tilefold as tf
from refusals.making import Case, X, reduced
from tilefold import monoids
from tilefold.errors import (
    ArgumentError,
    BackendError,
    DeviceError,
    DtypeError,
    EmptyError,
    KindError,
    MemberError,
    OrderError,
    ShapeError,
)

RARE = X.to(torch.float8_e5m2fnuz)  # no GPU that is planned for converts these
BY_NAME = {
    "softmax": lambda: tf.softmax(RARE, 1),
    "log_softmax": lambda: tf.log_softmax(RARE, 1),
    "layer_norm": lambda: tf.layer_norm(RARE, (3,)),
    "rms_norm": lambda: tf.rms_norm(RARE, (3,)),
    "group_norm": lambda: tf.group_norm(RARE, 1),
    "normalize": lambda: tf.normalize(RARE),
    "cumsum": lambda: tf.cumsum(RARE, 1),
    "cummax": lambda: tf.cummax(RARE, 1),
    "logcumsumexp": lambda: tf.logcumsumexp(RARE, 1),
    "amax": lambda: tf.amax(RARE),
    "var": lambda: tf.var(RARE),
    "topk": lambda: tf.topk(RARE, 1),
    "segment_reduce": lambda: tf.segment_reduce(RARE, monoids.SUM, torch.tensor([0, 2])),
}


def on(backend: str, call: Callable[[], object]) -> Callable[[], object]:
    def made() -> object:
        with tf.backend(backend):
            return call()

    return made


LAYERS = [
    Case("softmax of no dim", lambda: tf.nn.Softmax(None), KindError, r"^Softmax: `dim` must be .*, got None; name"),
    Case("softmax of text", lambda: tf.nn.LogSoftmax("1"), KindError, r"^LogSoftmax: `dim` must be .*, got '1'; name"),
    Case("norm of no size", lambda: tf.nn.LayerNorm(0.5), KindError, r"^LayerNorm: `normalized_shape` .*, got 0.5; say"),
    Case("norm of less", lambda: tf.nn.RMSNorm((2, -1)), ArgumentError, r"^RMSNorm: `normalized_shape` .*, got -1; say"),
    Case("norm's epsilon", lambda: tf.nn.LayerNorm(2, "a"), KindError, r"^LayerNorm: `eps` must be .*, got 'a'; 1e-5"),
    Case("norm's flag", lambda: tf.nn.RMSNorm(2, elementwise_affine="a"), KindError, r"`elementwise_affine` must be True"),
    Case("norm's dtype", lambda: tf.nn.GroupNorm(1, 2, dtype=torch.int8), DtypeError, r"`dtype` must be of floats"),
    Case("groups of no size", lambda: tf.nn.GroupNorm(4, 6), ArgumentError, r"must divide `num_channels`, 6, got 4; take"),
    Case("swap of no model", lambda: tf.nn.swap(X), KindError, r"^swap: `model` must be a torch.nn.Module, got .*; pass"),
]  # fmt: skip

CASES = [
    Case("no function", lambda: tf.functional.sum_up, MemberError, r"one of the module's, got 'sum_up'; "),
    *LAYERS,
    Case("no layer", lambda: tf.nn.Lineaar, MemberError, r"got 'Lineaar'; use tilefold.nn.Linear"),
    *(
        Case(
            f"{name} of a rare float",
            on("interpret", call),
            DtypeError,
            rf"^{name}: .*float8_e5m2fnuz; convert",
        )
        for name, call in BY_NAME.items()
    ),
    Case(
        "torch's softmax of a rare float",
        on("torch", BY_NAME["softmax"]),
        BackendError,
        r"got softmax over dims \[1\]",
    ),
    Case(
        "bits of floats",
        lambda: tf.bitwise_or(X.half()),
        DtypeError,
        r"^bitwise_or: .* bool, got torch.float16; convert",
    ),
    # functional/
    Case(
        "amax of nothing",
        lambda: tf.amax(torch.ones(2, 0), 1),
        EmptyError,
        r"at least one element, got shape \[2, 0\] .*; fold",
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
        "a running sum of an array of a half",
        lambda: tf.cumsum(X, np.array(0.5)),
        KindError,
        r"cumsum: `dim` must be one int, got .*0\.5.*; name",
    ),
    Case(
        "a running maximum of an array of truth",
        lambda: tf.cummax(X, np.array(True)),
        KindError,
        r"cummax: `dim` must be one int, got .*True.*; name",
    ),
    Case(
        "groups that are an array",
        lambda: tf.group_norm(torch.ones(2, 4, 3), np.array([2])),
        KindError,
        r"group_norm: `num_groups` must be an int, got ndarray of shape \[1\]; say",
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
        r"var: elements must be floating point, got torch.int32; convert",
    ),
    Case(
        "mean of ints",
        lambda: tf.mean(X.int()),
        DtypeError,
        r"mean: could not infer output dtype, elements must be floating point, got torch.int32; pass",
    ),
    Case(
        "mean out dtype",
        lambda: tf.mean(X, out=torch.ones(()).long()),
        DtypeError,
        r"mean: .*floating point, got torch.int64; pass",
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
        r"mean: .*not overlap itself .*, got strides \[1, 1\]; use",
    ),
    Case(
        "max of a tensor along a dim",
        lambda: tf.max(X, 1, other=X),
        KindError,
        r"max: `other` takes no `dim`, `keepdim` or second argument, got one; fold",
    ),
    Case(
        "max of a second argument and a dim",
        lambda: tf.max(X, X, dim=1),
        KindError,
        r"max: `dim` is given once, got a second argument and `dim=`; leave",
    ),
    Case(
        "min of two others",
        lambda: tf.min(X, X, other=X),
        KindError,
        r"min: `other` takes no `dim`, `keepdim` or second argument, got one; fold",
    ),
    Case(
        "max along a tensor of several",
        lambda: tf.max(X, dim=X.int()),
        KindError,
        r"max: `dim` must be one int, got Tensor of shape \[2, 3\]; fold",
    ),
    Case(
        "argmax out dtype",
        lambda: tf.argmax(X, 1, out=torch.empty(2)),
        DtypeError,
        r"argmax: `out` must have the result's dtype torch.int64, got torch.float32; pass",
    ),
    Case(
        "argmin out shape",
        lambda: tf.argmin(X, 1, out=torch.empty(3, dtype=torch.int64)),
        ShapeError,
        r"argmin: `out` must have the result's shape \[2\], got \[3\]; make",
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
    Case(
        "norm of no order",
        lambda: tf.vector_norm(X, "2"),
        OrderError,
        r"a real number, a non-complex scalar, got '2'; 2 is",
    ),
    Case(
        "norm of complex order",
        lambda: tf.norm(X, 1j),
        OrderError,
        r"a real number, a non-complex scalar, got 1j; 2 is",
    ),
    Case(
        "norm of the order of a tensor of several",
        lambda: tf.norm(X, X),
        OrderError,
        r"norm: the order must be a real number, a non-complex scalar, got Tensor of shape \[2, 3\]; 2 is",
    ),
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
        r"up to 64 dims are supported, got 65; reshape",
    ),
    Case(
        "argmax of 65 dims",
        lambda: tf.argmax(torch.ones((1,) * 65)),
        ShapeError,
        r"up to 64 dims are supported, got 65; reshape",
    ),
    Case(
        "unbiased and correction",
        lambda: tf.var(X, unbiased=True, correction=1),
        KindError,
        r"`unbiased` or `correction`, got both; unbiased=True",
    ),
    Case(
        "unbiased of a number",
        lambda: tf.var(X, dim=0, unbiased=0),
        KindError,
        r"var: `unbiased` must be True or False, got 0; pass correction=",
    ),
    Case(
        "correction of no kind",
        lambda: tf.std_mean(X, correction="a"),
        KindError,
        r"std_mean: `correction` must be a real number, got 'a'; 1 is",
    ),
    Case(
        "correction of a tensor",
        lambda: tf.var(X, correction=X),
        KindError,
        r"var: `correction` must be a real number, got Tensor of shape \[2, 3\]; 1 is",
    ),
    Case(
        "complex correction",
        lambda: tf.var(X, correction=1j),
        DtypeError,
        r"var: `correction` must be a real number, got 1j; 1 is",
    ),
    Case(
        "dim by both names",
        lambda: tf.sum(X, 0, axis=0),
        KindError,
        r"sum: `axis` is another name of `dim`, got both; leave",
    ),
    Case(
        "a keyword of no function",
        lambda: tf.amax(X, dims=0),
        KindError,
        r"amax: keywords must be among input, dim, keepdim, out .*, got 'dims'; take",
    ),
    Case(
        "logsumexp of no dim",
        lambda: tf.logsumexp(X),
        KindError,
        r"logsumexp: `dim` must be given, got none; pass",
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
]
