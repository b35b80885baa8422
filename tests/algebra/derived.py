"""Monoids as users write them, without `absorb`: those that have a block form in their combine, and those that have none."""

from __future__ import annotations

import math as python
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch

from answers import guarded, textbook
from tilefold import Monoid, math

INF = float("inf")


def _log(m: Any, l: Any) -> Any:
    return m + math.log(l)


def pair(**options: Any) -> Monoid:
    """The online softmax pair with its subtraction guarded, as a textbook's reader writes it."""
    given = {"fields": ("m", "l"), "lift": lambda x: (x, 1), "project": _log, "name": "pair", **options}
    return Monoid(guarded, (-INF, 0), **given)


def _guarded_min(a: Any, b: Any) -> tuple[Any, Any]:
    """exp(-x) summed about the least x, the other side first."""
    m = math.minimum(b.m, a.m)
    shift = math.where(m == INF, 0.0, m)
    return m, b.l * math.exp(shift - b.m) + a.l * math.exp(shift - a.m)


def _attention(a: Any, b: Any) -> tuple[Any, ...]:
    m = math.maximum(a.m, b.m)
    shift = math.where(m == -INF, 0.0, m)
    left, right = math.exp(a.m - shift), math.exp(b.m - shift)
    return m, left * a.l + right * b.l, left * a.acc + right * b.acc


def _scaled(a: Any, b: Any) -> tuple[Any, Any]:
    m = math.maximum(a.m, b.m)
    unit = math.where(m == 0, 1.0, m)
    left, right = a.m / unit, b.m / unit
    return m, a.s * (left * left) + b.s * (right * right)


def _moments(a: Any, b: Any) -> tuple[Any, ...]:
    """Both sides' squares moved to the mean of all: a term of either side, unlike Chan's."""
    n = a.n + b.n
    some = math.where(n == 0, 1.0, n)
    mean = a.n * a.mean / some + b.n * b.mean / some
    left, right = a.mean - mean, b.mean - mean
    return n, mean, (a.M2 + a.n * left * left) + (b.M2 + b.n * right * right)


@dataclass(frozen=True)
class Derived:
    """A monoid with a block form, and what it must give: `answer` of float64 elements [rows, length], an input each.

    `room` is how many units u a result of depth d may be off, for what `size` says.
    """

    monoid: Monoid
    answer: Callable[..., torch.Tensor]
    size: Callable[..., torch.Tensor]


def _reach(x: torch.Tensor, *others: torch.Tensor) -> torch.Tensor:
    """exp's argument is off by u times what was subtracted; a logarithm makes a relative error absolute."""
    return 1 + x.abs().amax(-1)


def _softmax_mean(s: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
    return (s.softmax(-1) * v).sum(-1)


UNCHECKED = {"check": False, "commutative": True}
DERIVED = {
    "pair": Derived(pair(), lambda x: x.logsumexp(-1), _reach),
    "weighted": Derived(
        pair(lift=lambda x, w: (x, w), project=lambda m, l: (m, l)[1] * math.exp(m), name="weighted"),
        lambda x, w: (x.exp() * w).sum(-1),
        lambda x, w: (1 + x.abs().amax(-1)) * (x.exp() * w.abs()).sum(-1),
    ),
    "least": Derived(
        Monoid(
            _guarded_min, (INF, 0), fields=("m", "l"), lift=lambda x: (x, 1.0), project=lambda m, l: m - math.log(l)
        ),
        lambda x: -(-x).logsumexp(-1),
        _reach,
    ),
    "attention": Derived(
        Monoid(
            _attention, (-INF, 0, 0), fields=("m", "l", "acc"), lift=lambda s, v: (s, 1, v),
            project=lambda m, l, acc: acc / l,
        ),
        _softmax_mean,
        lambda s, v: _reach(s) * (s.softmax(-1) * v.abs()).sum(-1),
    ),
    "counted": Derived(
        Monoid(
            lambda a, b: (*guarded(a, b), a.n + b.n), (-INF, 0, 0), fields=("m", "l", "n"), lift=lambda x: (x, 1, 2),
            project=lambda m, l, n: m + math.log(l) + math.log(n),
        ),
        lambda x: x.logsumexp(-1) + python.log(2 * x.shape[-1]),
        _reach,
    ),
    "scaled norm": Derived(
        Monoid(
            _scaled, (0, 0), fields=("m", "s"), lift=lambda x: (abs(x), math.where(x == 0, 0, 1)),
            project=lambda m, s: m * math.sqrt(s),
        ),
        lambda x: x.norm(dim=-1),
        lambda x: x.norm(dim=-1),
    ),
    "moments": Derived(
        Monoid(
            _moments, (0, 0, 0), fields=("n", "mean", "M2"), lift=lambda x: (1, x, 0),
            project=lambda n, mean, M2: M2, **UNCHECKED,
        ),
        lambda x: (x - x.mean(-1, keepdim=True)).square().sum(-1),
        lambda x: x.square().sum(-1),
    ),
}  # fmt: skip


def _chan(a: Any, b: Any) -> tuple[Any, ...]:
    n, apart = a.n + b.n, b.mean - a.mean
    share = b.n / math.where(n == 0, 1.0, n)
    return n, a.mean + apart * share, a.M2 + b.M2 + apart * apart * a.n * share


def _later(a: Any, b: Any) -> tuple[Any, Any]:
    take = (b.v > a.v) | ((b.v == a.v) & (b.i < a.i))
    return math.where(take, b.v, a.v), math.where(take, b.i, a.i)


def _off_by_one(a: Any, b: Any) -> tuple[Any, Any]:
    """a + b - 1 with identity 1 obeys the laws, and is a sum of terms of either side."""
    m = math.maximum(a.m, b.m)
    half = 0.5 + (m != m)
    return m, (a.l - half) + (b.l - half)


def _two(combine: Callable[[Any, Any], Any], identity: tuple[float, float] = (0, 0)) -> Monoid:
    return Monoid(combine, identity, fields=("m", "l"), lift=lambda x: (x, 1), **UNCHECKED)


REFUSED = {
    "sum": Monoid(lambda a, b: a + b, 0),
    "one term a side, one field": Monoid(lambda a, b: a * 1.0 + b * 1.0, 0),
    "maximum": Monoid(math.maximum, -INF),
    "extremes": Monoid(
        lambda a, b: (math.minimum(a.m, b.m), math.maximum(a.l, b.l)), (INF, -INF), fields=("m", "l"),
        lift=lambda x: (x, x),
    ),
    "sum and count": Monoid(lambda a, b: (a.m + b.m, a.l + b.l), (0, 0), fields=("m", "l"), lift=lambda x: (x, 1)),
    "Chan": Monoid(_chan, (0, 0, 0), fields=("n", "mean", "M2"), lift=lambda x: (1.0, x, 0.0), **UNCHECKED),
    "argmax": Monoid(
        _later, (-INF, INF), fields=("v", "i"), lift=lambda x, i: (x, i), dtypes=("input", "index"), index=True,
        **UNCHECKED,
    ),
    "affine": Monoid(
        lambda f, g: (g.a * f.a, g.a * f.b + g.b), (1, 0), fields=("a", "b"), check=False, commutative=False
    ),
    "product": _two(lambda a, b: (a.m * b.m, a.l + b.l), (1, 0)),
    "subtraction": _two(lambda a, b: (math.maximum(a.m, b.m), a.l - b.l)),
    "another sign": _two(lambda a, b: ((m := math.maximum(a.m, b.m)), a.l * m - b.l * m)),
    "both sides": _two(lambda a, b: (math.maximum(a.m, b.m), a.l * b.m + b.l * a.m)),
    "the other side's field": _two(lambda a, b: (math.maximum(a.m, b.m), math.exp(a.m - b.m) * a.l + b.l)),
    "the difference of sides": _two(
        lambda a, b: (math.maximum(a.m, b.m), a.l * math.exp(a.m - b.m) + b.l * math.exp(b.m - a.m))
    ),
    "no term of its own": _two(lambda a, b: ((m := math.maximum(a.m, b.m)), m * a.m + m * b.m)),
    "unlike terms": _two(lambda a, b: ((m := math.maximum(a.m, b.m)), a.l * m + b.l * (m + 1))),
    "kept": _two(lambda a, b: (a.m, a.l + b.l)),
    "selected": _two(lambda a, b: ((m := math.where(a.m > b.m, a.m, b.m)), a.l * m + b.l * m)),
    "a circle": _two(lambda a, b: (a.m * (a.l + b.l) + b.m * (a.l + b.l), a.l * b.m + b.l * a.m)),
    # Of the form, but not what combining gives: the samples say so.
    "a sum off by one": Monoid(
        _off_by_one, (-INF, 1), fields=("m", "l"), lift=lambda x: (x, x)
    ),
    "unguarded": Monoid(textbook, None, fields=("m", "l"), lift=lambda x: (x, 1), project=_log),
    "unguarded, unchecked": _two(textbook, (-INF, 0)),
    "NaN kept out": Monoid(
        lambda a, b: (
            (m := math.maximum(a.m, b.m)),
            math.where(math.isnan(a.l), 0.0, a.l) * (m == m) + math.where(math.isnan(b.l), 0.0, b.l) * (m == m),
        ),
        (-INF, 0), fields=("m", "l"), lift=lambda x: (0, x),
    ),
    "denied": pair(absorb=False),
}  # fmt: skip
