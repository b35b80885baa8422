"""A call that must fail, and what such calls are made of."""

from __future__ import annotations

from collections import namedtuple
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch.autograd import forward_ad

import tilefold as tf
from tilefold import Monoid, monoids
from tilefold.algebra.expression import trace

X = torch.ones(2, 3)
NAN, INF = float("nan"), float("inf")


@dataclass(frozen=True)
class Case:
    """A call that must fail: with which error, and words of its rule."""

    name: str
    call: Callable[[], Any]
    error: type[Exception]
    rule: str


def dual() -> object:
    with forward_ad.dual_level():
        return tf.reduce(forward_ad.make_dual(X, X), monoids.SUM, out=torch.empty(()))


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


def made_in_inference_mode(*shape: int) -> torch.Tensor:
    with torch.inference_mode():
        return torch.empty(shape)


def overlapping() -> object:
    x = torch.ones(3, 3)
    return tf.reduce(x, monoids.SUM, 1, out=x[0])


def apply_floor(a: object, b: object) -> object:
    from tilefold.algebra.expression import apply

    return apply("floordiv", a, b)
