"""Folds of many tensors, the clip of gradients, a model's description."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

import tilefold as tf
from refusals.making import Case, X
from tilefold import monoids
from tilefold.errors import ArgumentError, EmptyError, GradientError, KindError, NotFiniteError, OrderError

GREATEST = tf.Monoid(lambda a, b: tf.math.maximum(a, b), None, name="greatest")


def folded(tensors: Any, monoid: Any = monoids.SUM, **options: Any) -> Callable[[], Any]:
    return lambda: tf.reduce_many(tensors, monoid, **options)


def clipped(*arguments: Any, bad: float | None = None, **options: Any) -> Callable[[], Any]:
    def call() -> Any:
        p = torch.nn.Parameter(torch.zeros(2))
        p.grad = torch.ones(2) if bad is None else torch.full((2,), bad)
        return tf.clip_grad_norm_(p, *(arguments or (1.0,)), **options)

    return call


CASES = [
    Case("one tensor as many", folded(X), KindError, "must be several tensors, got Tensor"),
    Case("no tensors", folded([]), ArgumentError, "must have one at least, got none"),
    Case("many with two inputs", folded([X], monoids.AFFINE), ArgumentError, "must take one input, got"),
    Case("a flag of no kind", folded([X], together=1), KindError, "`together` must be True or False"),
    Case(
        "positions of all together",
        folded([X], monoids.ARGMAX, together=True),
        ArgumentError,
        "must be False with a monoid that sees positions",
    ),
    Case(
        "a gradient of many",
        folded([X, torch.ones(2, requires_grad=True)]),
        GradientError,
        "must ask for no gradient",
    ),
    Case("nothing among many", folded([X, X[:0]], GREATEST), EmptyError, "folding nothing needs an identity"),
    Case(
        "parameters of no kind",
        lambda: tf.clip_grad_norm_(3, 1.0),
        KindError,
        "`parameters` must be tensors, got int",
    ),
    Case("a greatest norm of no kind", clipped("much"), OrderError, "`max_norm` must be a real number"),
    Case("an order of no kind", clipped(1.0, "nuc"), OrderError, "`norm_type` must be a real number"),
    Case(
        "a norm that is not finite",
        clipped(1.0, bad=float("inf"), error_if_nonfinite=True),
        NotFiniteError,
        "must be finite with error_if_nonfinite=True",
    ),
    Case("no model", lambda: tf.describe({}), KindError, r"must be a torch\.nn\.Module, got dict"),
]
