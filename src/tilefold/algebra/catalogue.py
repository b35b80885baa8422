"""The monoids everyone needs, each a few lines of algebra. Their laws are checked by the tests, not at import."""

from __future__ import annotations

import numbers
from collections.abc import Callable
from dataclasses import replace
from typing import Any, NamedTuple

import torch

from tilefold import math
from tilefold.algebra import expression
from tilefold.algebra.algebra import Sums
from tilefold.algebra.monoid import Monoid
from tilefold.caching import kept_outside_modes
from tilefold.errors import OrderError, shown

__all__ = [
    "AFFINE", "ALL", "ANY", "ARGMAX", "ARGMIN", "BITWISE_AND", "BITWISE_OR", "BITWISE_XOR", "COUNT_NONZERO",
    "CUMMAX", "CUMMIN", "DESCRIBE", "FIRST", "LAST", "LOGSUMEXP", "MATMUL2X2", "MAX", "MAX_WITH_INDEX", "MIN", "MINMAX",
    "MIN_WITH_INDEX", "NORM", "PROD", "SUM", "SUM_COMPENSATED", "WELFORD", "welford",
]  # fmt: skip

INFINITY = float("inf")
LOG2_E = 1.4426950408889634
LN_2 = 0.6931471805599453

# Sums of squares are trusted in float32 where what underflows, at most 2^-150 a square, is far below a rounding error.
LEAST_SQUARE = 2.0**-110  # on average
LEAST_POWERS = 2.0**-80  # in all, for up to 2^40 elements


def _monoid(
    combine: Callable[..., Any], identity: Any, *, trusted: Callable[..., Any] | None = None, **options: Any
) -> Monoid:
    """A commutative monoid; `trusted` as in `Algebra`."""
    made = Monoid(combine, identity, commutative=True, check=False, **options)
    if trusted is not None:
        graph = expression.trace(trusted, len(made.fields))
        made.algebra = made.total = replace(made.algebra, trusted=graph)
    return made


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


def _logsumexp_combine(a: Any, b: Any) -> tuple[Any, Any]:
    """One exponential: the smaller maximum is rescaled to the larger. Equal infinities differ by 0.

    The sums are chosen before one is rescaled, so that neither side's product alone can be fused: threads that exchange
    states then get the same bits.
    """
    scale = math.exp(math.where(a.max == b.max, 0.0, -abs(a.max - b.max)))
    first = a.max > b.max
    kept, rescaled = math.where(first, a.sum, b.sum), math.where(first, b.sum, a.sum)
    return math.maximum(a.max, b.max), kept + rescaled * scale


def _logsumexp_absorb(state: Any, x: Any) -> tuple[Any, Any]:
    """One rescaling for the whole block. An infinite maximum is not subtracted: it would make inf - inf.

    The maxima's difference is taken before the product, so that a maximum that stays rescales by 1 exactly: `max * LOG2_E -
    shift`, fused, is the shift's own rounding, and a factor a little off 1 at every step would add up.
    That rounding, and an overflow of `x * LOG2_E`, would be all that is left of huge elements. Where 64 is lost beside them,
    they are equal or differ by as much: the factor is then left out, and what remains is exact.
    """
    largest = math.maximum(state.max, math.block_max(x))
    kept = state.sum * rescaled(state.max, largest)
    return largest, kept + math.block_sum(exponential(x, largest))


def exponential(x: Any, largest: Any) -> Any:
    """exp(x - largest) as `_logsumexp_absorb` has it: one multiply and add, then a power of two."""
    finite = math.where(abs(largest) == INFINITY, 0.0, largest)
    scale = math.where(finite + 64.0 != finite, LOG2_E, 1.0)
    return math.exp2(x * scale - finite * scale)


def rescaled(before: Any, largest: Any) -> Any:
    """The factor of a sum of exponentials whose maximum was `before`: exactly 1 where that stays."""
    return math.exp2(math.where(before == largest, 0.0, before - largest) * LOG2_E)


def logsumexp(project: Callable[..., Any], name: str) -> Monoid:
    """LOGSUMEXP with another projection, `project(max, sum)`: of the exponentials' sum once the maximum is subtracted."""
    return _monoid(
        _logsumexp_combine,
        (-INFINITY, 0),
        fields=("max", "sum"),
        lift=lambda x: (x, 1.0),
        project=project,
        absorb=_logsumexp_absorb,
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
    made.algebra = made.total = replace(made.algebra, sums=sums)
    return made


LOGSUMEXP = _with_sums(
    logsumexp(
        lambda largest, total: math.where(abs(largest) == INFINITY, largest, largest + math.log(total)),
        "logsumexp",
    )
)


class Moments(NamedTuple):
    """Result of WELFORD: how many elements, their mean, and the sum of squared deviations from it."""

    count: Any
    mean: Any
    M2: Any


def _finite(value: Any, instead: Any) -> Any:
    return math.where(math.isfinite(value), value, instead)


def _welford_combine(a: Any, b: Any) -> tuple[Any, ...]:
    """Chan, Golub and LeVeque's update (1979), kept as sums about a pivot: both sides move to one, with no division.

    It is the pivot of the side with more elements, or the middle of both: the same whichever comes first, as is all that
    follows. What the pivot is not of the mean, rounding included, stays in `sum`, so that a far offset costs no accuracy; a
    pivot is always finite, so that infinities stay in `sum` and the mean is right.
    """
    larger = math.where(a.count > b.count, a.pivot, b.pivot)
    unlike = (a.count > b.count) | (b.count > a.count)
    pivot = math.where(unlike, larger, _finite((a.pivot + b.pivot) * 0.5, 0.0))
    left, right = a.pivot - pivot, b.pivot - pivot
    sum_a, sum_b = a.sum + a.count * left, b.sum + b.count * right
    squares = (a.squares + left * (a.sum + sum_a)) + (b.squares + right * (b.sum + sum_b))
    return a.count + b.count, pivot, sum_a + sum_b, squares


def _welford_begin(x: Any) -> tuple[Any, ...]:
    """A first block, about its own mean (found from its first element, so that equal elements leave nothing)."""
    count, start = math.block_count(x), _finite(math.block_first(x), 0.0)
    pivot = _finite(start + math.block_sum(x - start) / count, start)
    deviation = x - pivot
    return count, pivot, math.block_sum(deviation), math.block_sum(deviation * deviation)


def _welford_absorb(state: Any, x: Any) -> tuple[Any, ...]:
    """More elements about the pivot there is: two operations an element, no division."""
    pivot = math.where(state.count == 0, _finite(math.block_first(x), 0.0), state.pivot)
    deviation = x - pivot
    sums = state.sum + math.block_sum(deviation), state.squares + math.block_sum(deviation * deviation)
    return state.count + math.block_count(x), pivot, *sums


def _welford_lift(x: Any) -> tuple[Any, ...]:
    pivot = _finite(x * 1.0, 0.0)
    return 1.0, pivot, x - pivot, x - pivot


def _mean_and_squares(count: Any, pivot: Any, total: Any, squares: Any) -> tuple[Any, Any]:
    """The mean and the sum of squared deviations from it, which infinite elements do not have."""
    mean = total / math.where(count == 0, 1.0, count)
    about_mean = math.maximum(squares - total * mean, 0.0)
    about_mean = math.where(
        squares == INFINITY, squares, about_mean
    )  # finite elements may overflow: not inf - inf
    return pivot + mean, math.where(math.isfinite(total), about_mean, float("nan"))


def _moments_hold(count: Any, pivot: Any, total: Any, squares: Any) -> Any:
    """Whether no square was lost that counts, and no sum overflowed. One element has no deviation."""
    about_mean = _mean_and_squares(count, pivot, total, squares)[1]
    return (about_mean >= (count - 1.0) * LEAST_SQUARE) & (about_mean < INFINITY)


_welford_blocks_of_sums = (
    lambda x, y: _welford_begin(x + y),
    lambda state, x, y: _welford_absorb(state, x + y),
)


def welford(project: Callable[..., Any], name: str, *, of_sums: bool = False) -> Monoid:
    """WELFORD with another projection, `project(count, mean, M2)`, and the count as a float alone.

    `of_sums`: an element is the sum of two inputs'.
    """
    return _monoid(
        _welford_combine,
        (0, 0, 0, 0),
        fields=("count", "pivot", "sum", "squares"),
        lift=(lambda x, y: _welford_lift(x + y)) if of_sums else _welford_lift,
        project=lambda count, pivot, total, squares: project(
            count, *_mean_and_squares(count, pivot, total, squares)
        ),
        absorb=_welford_blocks_of_sums if of_sums else (_welford_begin, _welford_absorb),
        trusted=_moments_hold,
        name=name,
    )


def _counted_combine(a: Any, b: Any) -> tuple[Any, ...]:
    return a.elements + b.elements, *_welford_combine(a, b)


# Welford's own count is a float, which is exact up to 2^24 elements only.
WELFORD = _monoid(
    _counted_combine,
    (0, 0, 0, 0, 0),
    fields=("elements", "count", "pivot", "sum", "squares"),
    dtypes=("index", *["compute"] * 4),
    lift=lambda x: (1, *_welford_lift(x)),
    project=lambda elements, *sums: Moments(elements, *_mean_and_squares(*sums)),
    absorb=(
        lambda x: (math.block_count(x), *_welford_begin(x)),
        lambda state, x: (state.elements + math.block_count(x), *_welford_absorb(state, x)),
    ),
    trusted=lambda elements, *sums: _moments_hold(*sums),
    name="welford",
)


def NORM(p: float = 2.0) -> Monoid:  # noqa: N802  # a catalogue entry among constants
    """The monoid of the p-norm (p = 0 counts non-zeros, p = inf and -inf are the largest and least magnitude)."""
    try:
        order = float(p) if isinstance(p, numbers.Real) else None
    except OverflowError:
        order = None
    if order is None:
        raise OrderError(f"NORM: the order must be a real number, got {shown(p)}; 2 is the Euclidean norm")
    return _norm(order)


def _powers_hold(total: Any) -> Any:
    return (total >= LEAST_POWERS) & (total < INFINITY)


@kept_outside_modes(64)
def _norm(p: float) -> Monoid:
    if p == INFINITY:
        return _monoid(math.maximum, 0, lift=abs, name="norm(inf)")
    if p == -INFINITY:
        return _monoid(math.minimum, INFINITY, lift=abs, name="norm(-inf)")
    if p == 0:
        return _monoid(lambda a, b: a + b, 0, lift=lambda x: math.where(x != 0, 1.0, 0.0), name="norm(0)")
    if p == 1:
        return _monoid(lambda a, b: a + b, 0, lift=abs, name="norm(1)")
    if p == 2:
        return _monoid(
            lambda a, b: a + b,
            0,
            lift=lambda x: x * x,
            project=math.sqrt,
            trusted=_powers_hold,
            name="norm(2)",
        )
    return _monoid(
        lambda a, b: a + b,
        0,
        lift=lambda x: math.pow(abs(x), p),
        project=lambda s: math.pow(s, 1.0 / p),
        trusted=_powers_hold,
        name=f"norm({p:g})",
    )


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


class Description(NamedTuple):
    """Result of DESCRIBE. Statistics are of the finite elements; without any, min is inf, mean and std are NaN."""

    count: Any
    nans: Any
    infs: Any
    zeros: Any
    min: Any
    max: Any
    absmax: Any
    mean: Any
    std: Any


def _describe_lift(x: Any) -> tuple[Any, ...]:
    finite = math.isfinite(x)
    value = math.where(finite, x * 1.0, 0.0)
    return (
        1,
        math.where(math.isnan(x), 1, 0),
        math.where(math.isinf(x), 1, 0),
        math.where(x == 0, 1, 0),
        math.where(finite, x * 1.0, INFINITY),
        math.where(finite, x * 1.0, -INFINITY),
        math.where(finite, 1.0, 0.0),
        value,
        0.0,
        0.0,
    )


class _Weighted(NamedTuple):
    count: Any
    pivot: Any
    sum: Any
    squares: Any


def _describe_combine(a: Any, b: Any) -> tuple[Any, ...]:
    moments = _welford_combine(_Weighted(*a[6:]), _Weighted(*b[6:]))
    counts = tuple(x + y for x, y in zip(a[:4], b[:4], strict=True))
    return (*counts, math.minimum(a.min, b.min), math.maximum(a.max, b.max), *moments)


def _describe_block(x: Any, finite: Any, pivot: Any) -> tuple[Any, ...]:
    """What one block adds: counts, extremes, and sums about the pivot."""
    deviation = math.where(finite, x - pivot, 0.0)
    return (
        math.block_count(x),
        math.block_sum(math.where(math.isnan(x), 1, 0)),
        math.block_sum(math.where(math.isinf(x), 1, 0)),
        math.block_sum(math.where(x == 0, 1, 0)),
        math.block_min(math.where(finite, x * 1.0, INFINITY)),
        math.block_max(math.where(finite, x * 1.0, -INFINITY)),
        math.block_sum(math.where(finite, 1.0, 0.0)),
        pivot,
        math.block_sum(deviation),
        math.block_sum(deviation * deviation),
    )


def _describe_begin(x: Any) -> tuple[Any, ...]:
    finite = math.isfinite(x)
    start = _finite(math.block_min(math.where(finite, x * 1.0, INFINITY)), 0.0)
    some = math.maximum(math.block_sum(math.where(finite, 1.0, 0.0)), 1.0)
    mean = start + math.block_sum(math.where(finite, x - start, 0.0)) / some
    return _describe_block(x, finite, _finite(mean, start))


def _describe_absorb(state: Any, x: Any) -> tuple[Any, ...]:
    finite = math.isfinite(x)
    start = _finite(math.block_min(math.where(finite, x * 1.0, INFINITY)), 0.0)
    pivot = math.where(state.finite == 0, start, state.pivot)
    block = _describe_block(x, finite, pivot)
    sums = [a + b for a, b in zip((*state[:4], *state[6:]), (*block[:4], *block[6:]), strict=True)]
    return (
        *sums[:4], math.minimum(state.min, block[4]), math.maximum(state.max, block[5]), sums[4], pivot, *sums[6:],
    )  # fmt: skip


def _describe_project(
    count: Any,
    nans: Any,
    infs: Any,
    zeros: Any,
    least: Any,
    most: Any,
    finite: Any,
    pivot: Any,
    total: Any,
    squares: Any,
) -> Description:
    mean, squares = _mean_and_squares(finite, pivot, total, squares)
    absmax = math.where(finite > 0, math.maximum(abs(least), abs(most)), 0.0)
    return Description(
        count, nans, infs, zeros, least, most, absmax,
        math.where(finite > 0, mean, float("nan")),
        math.where(finite > 0, math.sqrt(squares / math.maximum(finite - 1.0, 1.0)), float("nan")),
    )  # fmt: skip


_COUNTS = (torch.int64,) * 4


def describe_of(element: Callable[[Any], Any], name: str) -> Monoid:
    """DESCRIBE of `element(x)` for every element x."""
    return _monoid(
        _describe_combine,
        (0, 0, 0, 0, INFINITY, -INFINITY, 0, 0, 0, 0),
        fields=("count", "nans", "infs", "zeros", "min", "max", "finite", "pivot", "sum", "squares"),
        dtypes=(*_COUNTS, *("compute",) * 6),
        lift=lambda x: _describe_lift(element(x)),
        absorb=(lambda x: _describe_begin(element(x)), lambda state, x: _describe_absorb(state, element(x))),
        project=_describe_project,
        trusted=lambda count, nans, infs, zeros, least, most, *sums: (least >= most) | _moments_hold(*sums),
        name=name,
    )


DESCRIBE = describe_of(lambda x: x, "describe")

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
    """A monoid of the catalogue by its name: what pickles of it say."""
    found: Monoid = globals()[name]
    return found


for _name in __all__:
    if isinstance(globals()[_name], Monoid):
        globals()[_name]._by_name = (member, (_name,))
