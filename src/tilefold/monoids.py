"""The monoids everyone needs, each a few lines of algebra. Their laws are checked by the tests, not at import."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any, NamedTuple

import torch

from tilefold import math
from tilefold.algebra import expression
from tilefold.algebra.algebra import Sums
from tilefold.algebra.derivatives.folds import differentiate_as, project_as
from tilefold.algebra.monoid import Monoid
from tilefold.algebra.powers import DESCRIBE as DESCRIBE
from tilefold.algebra.powers import NORM as NORM
from tilefold.algebra.powers import WELFORD as WELFORD
from tilefold.algebra.powers import welford as welford
from tilefold.errors import hint_at_names

__all__ = [
    "AFFINE", "ALL", "ANY", "ARGMAX", "ARGMIN", "BITWISE_AND", "BITWISE_OR", "BITWISE_XOR", "COUNT_NONZERO",
    "CUMMAX", "CUMMIN", "DESCRIBE", "FIRST", "LAST", "LOGSUMEXP", "MATMUL2X2", "MAX", "MAX_WITH_INDEX", "MIN", "MINMAX",
    "MIN_WITH_INDEX", "NORM", "PROD", "SUM", "SUM_COMPENSATED", "WELFORD", "welford",
]  # fmt: skip

INFINITY = float("inf")
LOG2_E = 1.4426950408889634
LN_2 = 0.6931471805599453


def _monoid(combine: Callable[..., Any], identity: Any, **options: Any) -> Monoid:
    return Monoid(combine, identity, commutative=True, check=False, **options)


SUM = _monoid(lambda a, b: a + b, 0, name="sum")
PROD = _monoid(lambda a, b: a * b, 1, name="prod")
MAX = _monoid(math.maximum, -INFINITY, dtypes="input", name="max")
MIN = _monoid(math.minimum, INFINITY, dtypes="input", name="min")
ANY = _monoid(lambda a, b: a | b, False, lift=lambda x: x != 0, dtypes=torch.bool, name="any")
ALL = _monoid(lambda a, b: a & b, True, lift=lambda x: x != 0, dtypes=torch.bool, name="all")
BITWISE_OR = _monoid(lambda a, b: a | b, 0, dtypes="input", name="bitwise_or")
BITWISE_AND = _monoid(lambda a, b: a & b, -1, dtypes="input", name="bitwise_and")
BITWISE_XOR = _monoid(lambda a, b: a ^ b, 0, dtypes="input", name="bitwise_xor")
COUNT_NONZERO = _monoid(
    lambda a, b: a + b, 0, lift=lambda x: math.where(x != 0, 1, 0), dtypes=torch.int64, name="count_nonzero"
)
FIRST = Monoid(lambda a, b: a, None, dtypes="input", commutative=False, check=False, name="first")
LAST = Monoid(lambda a, b: b, None, dtypes="input", commutative=False, check=False, name="last")


class Extremes(NamedTuple):
    """Result of MINMAX."""

    min: Any
    max: Any


MINMAX = _monoid(
    lambda a, b: (math.minimum(a.min, b.min), math.maximum(a.max, b.max)),
    (INFINITY, -INFINITY),
    fields=("min", "max"),
    lift=lambda x: (x, x),
    project=Extremes,
    dtypes="input",
    name="minmax",
)


class Located(NamedTuple):
    """Result of MAX_WITH_INDEX and MIN_WITH_INDEX."""

    values: Any
    indices: Any


def _best_of(largest: bool) -> Callable[[Any, Any], tuple[Any, Any]]:
    """Keep the better value; NaN beats all, the first NaN and the lowest position among equals win, as in torch."""

    def combine(a: Any, b: Any) -> tuple[Any, Any]:
        not_better = b.value <= a.value if largest else b.value >= a.value
        better = ~not_better & ~math.isnan(a.value)  # also where b is NaN and a is not
        equal = (a.value == b.value) | (math.isnan(a.value) & math.isnan(b.value))
        take = better | (equal & (b.index < a.index))
        return math.where(take, b.value, a.value), math.where(take, b.index, a.index)

    return combine


def _located(largest: bool, project: Callable[..., Any], name: str) -> Monoid:
    return _monoid(
        _best_of(largest),
        (-INFINITY if largest else INFINITY, INFINITY),
        fields=("value", "index"),
        dtypes=("input", "index"),
        lift=lambda x, i: (x, i),
        index=True,
        project=project,
        name=name,
    )


ARGMAX = _located(True, lambda value, index: index, "argmax")
ARGMIN = _located(False, lambda value, index: index, "argmin")
MAX_WITH_INDEX = _located(True, Located, "max_with_index")
MIN_WITH_INDEX = _located(False, Located, "min_with_index")


def _latest_of(largest: bool) -> Callable[[Any, Any], tuple[Any, Any]]:
    """As torch's cummax and cummin: NaN beats all, the last NaN and the highest position among equals win."""

    def combine(a: Any, b: Any) -> tuple[Any, Any]:
        better = b.value > a.value if largest else b.value < a.value
        equal = (a.value == b.value) | (math.isnan(a.value) & math.isnan(b.value))
        take = (better & ~math.isnan(a.value)) | (math.isnan(b.value) & ~math.isnan(a.value))
        take = take | (equal & (b.index > a.index))
        return math.where(take, b.value, a.value), math.where(take, b.index, a.index)

    return combine


def _latest(largest: bool, name: str) -> Monoid:
    return _monoid(
        _latest_of(largest),
        (-INFINITY if largest else INFINITY, -INFINITY),
        fields=("value", "index"),
        dtypes=("input", "index"),
        lift=lambda x, i: (x, i),
        index=True,
        project=Located,
        name=name,
    )


CUMMAX = _latest(True, "cummax")
CUMMIN = _latest(False, "cummin")


def logsumexp_combine(a: Any, b: Any) -> tuple[Any, Any]:
    """One exponential: the smaller maximum is rescaled to the larger. Equal infinities differ by 0.

    The sums are chosen before one is rescaled, so that neither side's product alone can be fused: threads that exchange
    states then get the same bits.
    """
    scale = math.exp(math.where(a.max == b.max, 0.0, -abs(a.max - b.max)))
    first = a.max > b.max
    kept, rescaled = math.where(first, a.sum, b.sum), math.where(first, b.sum, a.sum)
    return math.maximum(a.max, b.max), kept + rescaled * scale


def _logsumexp_with_slopes(*fields: Any) -> tuple[Any, Any]:
    """`logsumexp_combine` for derivatives: two exponentials, each with its slope where the maxima are equal."""
    first, first_sum, second, second_sum = fields
    largest = math.maximum(first, second)

    def scale(own: Any) -> Any:
        return math.exp(math.where((own == largest) & math.isinf(own), 0.0, own - largest))

    return largest, first_sum * scale(first) + second_sum * scale(second)


def _logsumexp_joined(largest: Any, total: Any, x: Any) -> tuple[Any, Any]:
    """The sum with an element of its own, for derivatives: one difference and one exponential, 0 in a row of -inf."""
    return largest, total + math.exp(x - math.where(largest == -INFINITY, INFINITY, largest))


def logsumexp_absorb(state: Any, x: Any) -> tuple[Any, Any]:
    """One rescaling for the whole block. An infinite maximum is not subtracted: it would make inf - inf.

    The maxima's difference is taken before the product, so that a maximum that stays rescales by 1 exactly: `max * LOG2_E -
    shift`, fused, is the shift's own rounding, and a factor a little off 1 at every step would add up.
    That rounding, and an overflow of `x * LOG2_E`, would be all that is left of huge elements. Where 64 is lost beside them,
    they are equal or differ by as much: the factor is then left out, and the rest is exact.
    """
    largest = math.maximum(state.max, math.block_max(x))
    kept = state.sum * rescaled(state.max, largest)
    return largest, kept + math.block_sum(exponential(x, largest))


def exponential(x: Any, largest: Any) -> Any:
    """exp(x - largest) as `logsumexp_absorb` has it: one multiply and add, then a power of two."""
    finite = math.where(abs(largest) == INFINITY, 0.0, largest)
    scale = math.where(finite + 64.0 != finite, LOG2_E, 1.0)
    return math.exp2(x * scale - finite * scale)


def rescaled(before: Any, largest: Any) -> Any:
    """The factor of a sum of exponentials whose maximum was `before`: exactly 1 where that stays."""
    return math.exp2(math.where(before == largest, 0.0, before - largest) * LOG2_E)


def logsumexp(project: Callable[..., Any], name: str) -> Monoid:
    """LOGSUMEXP with another projection, `project(max, sum)`: of the exponentials' sum once the maximum is subtracted."""
    return _monoid(
        logsumexp_combine,
        (-INFINITY, 0),
        fields=("max", "sum"),
        lift=lambda x: (x, 1.0),
        project=project,
        absorb=logsumexp_absorb,
        name=name,
    )


def _logsumexp_rebased(largest: Any, total: Any, base: Any) -> tuple[Any, Any, Any]:
    """The sum before and the factor of the terms, about the larger maximum."""
    top = math.maximum(largest, base)
    return total * rescaled(largest, top), rescaled(base, top), top


NEAR = 16.0  # a sum of e^-16 loses 4 u 16 in the approximate logarithm, u = 2^-24


def _with_sums(made: Monoid) -> Monoid:
    """LOGSUMEXP's prefixes: exponentials about the largest element, one each, and one logarithm."""
    sums = Sums(
        nothing=-INFINITY,
        base=expression.trace(lambda x: x * 1.0, 1),
        joined=expression.trace(math.maximum, 2),
        term=expression.trace(exponential, 2),
        total=expression.trace(lambda largest, total: (largest, total), 2),
        rebased=expression.trace(_logsumexp_rebased, 3),
        near=expression.trace(
            lambda largest, total, first, top: (
                (math.maximum(largest, first) >= top - NEAR) & math.isfinite(top)
            ),
            4,
        ),
        shown=expression.trace(
            lambda top, total: top + expression.apply("log2_approximate", total) * LN_2, 2
        ),
    )
    made.take(replace(made.algebra, sums=sums))
    return made


LOGSUMEXP = _with_sums(
    logsumexp(
        lambda largest, total: math.where(abs(largest) == INFINITY, largest, largest + math.log(total)),
        "logsumexp",
    )
)
differentiate_as(
    LOGSUMEXP.algebra.combine,
    expression.trace(_logsumexp_with_slopes, 4),
    expression.trace(_logsumexp_joined, 3),
)
project_as(LOGSUMEXP.algebra.project, expression.trace(lambda largest, total: largest + math.log(total), 2))


def _two_sum(a: Any, b: Any) -> tuple[Any, Any]:
    """Rounded sum and what rounding lost (Knuth); an infinite sum has lost nothing."""
    total = a + b
    part = total - a
    lost = (a - (total - part)) + (b - part)
    return total, math.where(math.isfinite(total), lost, 0.0)


def _compensated_combine(a: Any, b: Any) -> tuple[Any, Any]:
    total, lost = _two_sum(a.sum, b.sum)
    return _two_sum(total, lost + (a.error + b.error))


SUM_COMPENSATED = _monoid(
    _compensated_combine,
    (0, 0),
    fields=("sum", "error"),
    lift=lambda x: (x * 1.0, 0.0),
    project=lambda total, error: math.cast(total, torch.float64) + math.cast(error, torch.float64),
    name="sum_compensated",
)


AFFINE = Monoid(
    lambda f, g: (g.a * f.a, g.a * f.b + g.b),
    (1, 0),
    fields=("a", "b"),
    commutative=False,
    check=False,
    name="affine",
)
"""Composition of the maps x -> a x + b, the first element applied first; folds two tensors, a and b."""

MATMUL2X2 = Monoid(
    lambda p, q: (p.a * q.a + p.b * q.c, p.a * q.b + p.b * q.d, p.c * q.a + p.d * q.c, p.c * q.b + p.d * q.d),
    (1, 0, 0, 1),
    fields=("a", "b", "c", "d"),
    commutative=False,
    check=False,
    name="matmul2x2",
)
"""The product of 2 x 2 matrices [[a, b], [c, d]] from left to right; folds four tensors."""


def member(name: str) -> Monoid:
    """A monoid of the catalogue by its name, for pickles of it."""
    found: Monoid = globals()[name]
    return found


for _name in __all__:
    if isinstance(globals()[_name], Monoid):
        globals()[_name]._by_name = (member, (_name,))

# What other libraries and people call them, in lower case and without underscores.
ALIASES = {
    "add": "SUM", "plus": "SUM", "sumreduce": "SUM", "multiply": "PROD", "mul": "PROD", "product": "PROD", "times": "PROD",
    "maximum": "MAX", "amax": "MAX", "fmax": "MAX", "minimum": "MIN", "amin": "MIN", "fmin": "MIN", "aminmax": "MINMAX",
    "or": "BITWISE_OR", "and": "BITWISE_AND", "xor": "BITWISE_XOR", "bitor": "BITWISE_OR", "bitand": "BITWISE_AND",
    "bitxor": "BITWISE_XOR", "logicalor": "ANY", "logicaland": "ALL", "count": "COUNT_NONZERO", "nnz": "COUNT_NONZERO",
    "mean": "WELFORD", "average": "WELFORD", "var": "WELFORD", "variance": "WELFORD", "std": "WELFORD", "moments": "WELFORD",
    "varmean": "WELFORD", "stdmean": "WELFORD", "lse": "LOGSUMEXP", "logaddexp": "LOGSUMEXP", "softmax": "LOGSUMEXP",
    "l1": "NORM(1)", "l2": "NORM(2)", "norm1": "NORM(1)", "norm2": "NORM(2)", "vectornorm": "NORM",
    "kahan": "SUM_COMPENSATED",
    "kahansum": "SUM_COMPENSATED", "head": "FIRST", "tail": "LAST", "linear": "AFFINE", "recurrence": "AFFINE",
    "matmul": "MATMUL2X2", "maxindex": "MAX_WITH_INDEX", "minindex": "MIN_WITH_INDEX", "cumsum": "SUM", "cumprod": "PROD",
    "logcumsumexp": "LOGSUMEXP",
}  # fmt: skip
hint_at_names(__name__, __all__, ALIASES)
