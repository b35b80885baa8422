"""Losses."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

import tilefold as tf
from refusals.making import NAN, Case, X
from tilefold.errors import ArgumentError, GradientError, KindError, ShapeError, TargetError

CLASSES = torch.tensor([0, 2])


def lost(*tensors: Any, **options: Any) -> Callable[[], Any]:
    """A cross-entropy of X, or of other tensors."""
    return lambda: tf.cross_entropy(*(tensors or (X, CLASSES)), **options)


CASES = [
    Case(
        "reduction of no name",
        lost(reduction="average"),
        ArgumentError,
        "`reduction` must be one of mean, sum, none",
    ),
    Case("guarantee of a loss", lost(guarantee="fast"), ArgumentError, "`guarantee` must be one of"),
    Case("ignored class of no kind", lost(ignore_index=1.5), KindError, "`ignore_index` must be an int, got"),
    Case(
        "ignored class of many bits",
        lost(ignore_index=2**63),
        ArgumentError,
        "`ignore_index` must be an int of 64 bits",
    ),
    Case(
        "logits of no class", lost(torch.ones(2, 0), CLASSES), ShapeError, "logits must have a dim of classes"
    ),
    Case(
        "targets of another shape",
        lost(X, torch.tensor([0])),
        ShapeError,
        r"ints of shape \[2\], or probabilities",
    ),
    Case(
        "truths as targets",
        lost(X, torch.tensor([True, False])),
        ShapeError,
        "of torch.bool; reshape or convert",
    ),
    Case(
        "an ignored class beside probabilities",
        lost(X, X, ignore_index=1),
        ArgumentError,
        "must be negative where targets",
    ),
    Case(
        "weights of other classes", lost(X, CLASSES, torch.ones(2)), ShapeError, "one for each of 3 classes"
    ),
    Case(
        "weights that are trained",
        lost(X, CLASSES, torch.ones(3, requires_grad=True)),
        GradientError,
        "`weight` has no derivative",
    ),
    Case(
        "smoothing of no kind",
        lost(label_smoothing="much"),
        KindError,
        "`label_smoothing` must be a real number",
    ),
    Case("smoothing beyond 1", lost(label_smoothing=1.5), ArgumentError, "must be from 0 to 1, got"),
    Case("a cap that is none", lost(softcap=NAN), ArgumentError, "`softcap` must be from"),
    Case(
        "a target that is no class",
        lost(X, torch.tensor([0, 3])),
        TargetError,
        r"classes in \[0, 2\] or `ignore_index`",
    ),
]
