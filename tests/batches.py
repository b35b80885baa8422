"""Calls with "batch_invariant" of which each row (or column) has bits of its own: for the tests with and without a GPU.

Each takes `x` [rows, columns] and gives results whose rows are those of `x`; those of COLUMNS take `y` [length, columns].
"""

from __future__ import annotations

import math
from typing import Any

import torch

import tilefold
from tilefold import functional as tf
from tilefold import monoids

Tensor = torch.Tensor
HOLDS: dict[str, Any] = {"guarantee": "batch_invariant"}


def weights(x: Tensor, count: int) -> Tensor:
    """From 0.5 to 1.5."""
    return torch.linspace(0.5, 1.5, count, device=x.device, dtype=x.dtype)


def summed(x: Tensor) -> Tensor:
    return tilefold.reduce(x, monoids.SUM, 1, **HOLDS)


def log_summed(x: Tensor) -> Tensor:
    return tilefold.reduce(x, monoids.LOGSUMEXP, 1, **HOLDS)


def softmax(x: Tensor) -> Tensor:
    return tf.softmax(x, 1, **HOLDS)


def normed(x: Tensor) -> Tensor:
    weight = weights(x, x.shape[1])
    return tf.layer_norm(x, x.shape[1:], weight, weight, **HOLDS)


def added(x: Tensor) -> Tensor:
    """A norm of what is summed of two; the weight is 2 everywhere."""
    return tf.rms_norm(x, x.shape[1:], x[0] * 0 + 2, 1e-6, residual=x, **HOLDS)[0]


def normalized(x: Tensor) -> Tensor:
    return tf.normalize(x, dim=1, **HOLDS)


def group_normed(x: Tensor) -> Tensor:
    """Up to 32 channels in up to 4 groups, as many as the columns allow."""
    channels = math.gcd(x.shape[1], 32)
    weight = weights(x, channels)
    shape = (x.shape[0], channels, x.shape[1] // channels)
    return tf.group_norm(x.view(shape), math.gcd(channels, 4), weight, weight, **HOLDS).view(x.shape)


def running_log(x: Tensor) -> Tensor:
    return tf.logcumsumexp(x, 1, **HOLDS)


def running_sum(x: Tensor) -> Tensor:
    return tf.cumsum(x, 1, **HOLDS)


def recurrence(x: Tensor) -> tuple[Tensor, ...]:
    """h[t] = x[t] / 8 h[t - 1] + x[t]: slopes below 1, so that nothing overflows."""
    return tuple(tilefold.scan((x / 8, x), monoids.AFFINE, 1, **HOLDS))


def segments(x: Tensor) -> Tensor:
    """A segment for each row, its borders up to four elements before the row's."""
    rows = torch.arange(x.shape[0] + 1, device=x.device)
    return tilefold.segment_reduce(
        x.reshape(-1), monoids.SUM, rows * x.shape[1] - rows % 5, partial=True, **HOLDS
    )


def selected(x: Tensor) -> tuple[Tensor, ...]:
    return tuple(tilefold.topk(x, 8, 1, **HOLDS))


def product(x: Tensor) -> Tensor:
    weight = torch.linspace(-1, 1, x.shape[1] * 48, device=x.device, dtype=x.dtype).view(-1, 48)
    return tilefold.matmul(x, weight, **HOLDS)


def softmax_down(y: Tensor) -> Tensor:
    return tf.softmax(y, 0, **HOLDS)


def running_sum_down(y: Tensor) -> Tensor:
    return tf.cumsum(y, 0, **HOLDS)


ROWS = (
    summed, log_summed, softmax, normed, added, normalized, group_normed, running_log, running_sum, recurrence, segments,
    selected, product,
)  # fmt: skip
COLUMNS = (softmax_down, running_sum_down)
