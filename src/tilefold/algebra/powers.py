"""Monoids that add squares or other powers: moments, norms, descriptions. Right wherever the exact result is in range.

A state holds the unit of its largest magnitude (`units`), and its sums are in that unit: a power of two, so that they have
the bits that they would have without, wherever these are in range. Sums of other powers than squares are of x / largest.

Each has a `quick` form, the same without units, for a CPU: it says of a state whether it holds its result.
"""

from __future__ import annotations

import numbers
from collections.abc import Callable, Sequence
from dataclasses import replace
from fractions import Fraction
from typing import Any, NamedTuple

import torch
from torch.compiler import is_dynamo_compiling

from tilefold import math
from tilefold.algebra import expression
from tilefold.algebra.algebra import Quick
from tilefold.algebra.inlined import Inlined, function_of, inlined
from tilefold.algebra.monoid import Monoid
from tilefold.algebra.symbols import fixed
from tilefold.algebra.units import DOWN, LEAST_SQUARES, UP
from tilefold.errors import OrderError, shown
from tilefold.runtime.caching import kept_outside_modes
from tilefold.runtime.uncompiled import constant_in_graphs

INFINITY = float("inf")
LEAST_PRODUCT = 2.0**-110  # of an element in units and its weight: its inverse, times 2^16, is in range
Function = Callable[..., Any]


def unit(magnitude: Any) -> Any:
    """The power of two in units of which sums of squares up to a magnitude's are held."""
    return expression.apply("unit", magnitude)


def per_unit(of: Any) -> Any:
    """1 / of, a unit; something finite of 0."""
    return expression.apply("per_unit", of)


class Units(NamedTuple):
    """A power of two and its inverse: 1.0 twice where sums have no units. `of_elements`: maps take elements in it, too."""

    unit: Any
    inverse: Any
    of_elements: bool = False


NONE = Units(1.0, 1.0)


def units_of(unit: Any) -> Units:
    """A state's unit, and its inverse."""
    return Units(unit, per_unit(unit))


def times(x: Any, power: Any) -> Any:
    """A product by a unit or its inverse; the value itself where there are no units."""
    return x if isinstance(power, float) else x * power


def _rescale(x: Any, factor: Any, power: int) -> Any:
    """A sum of so many factors, in units that are `factor` times as large. Exact, as threads that exchange states need it."""
    for _ in range(power):
        x = expression.apply("rescale", x, factor)
    return x


def _ratio(before: Any, after: Any) -> Any:
    """One unit in another."""
    return expression.apply("rescale", before, per_unit(after))


class Sums(NamedTuple):
    """Functions of a monoid whose fields are products of so many elements (`powers`): states are tuples.

    `lift(x)`, `combine(a, b)`, `begin(x)` and `absorb(state, x)`; where elements are weighted, each takes the weight last.
    """

    powers: tuple[int, ...]
    identity: tuple[float, ...]
    lift: Function
    combine: Function
    begin: Function
    absorb: Function


def in_units(sums: Sums) -> Sums:
    """The same with the unit of the largest magnitude in front, which elements and sums are in; 0 of no element."""

    def moved(state: Any, to: Any) -> list[Any]:
        ratio = _ratio(state[0], to)
        return [_rescale(v, ratio, p) for v, p in zip(tuple(state)[1:], sums.powers, strict=True)]

    def lift(x: Any, *weight: Any) -> tuple[Any, ...]:
        own = unit(abs(x * 1.0))
        return own, *sums.lift(x * per_unit(own), *weight)

    def combine(a: Any, b: Any) -> tuple[Any, ...]:
        larger = math.maximum(a[0], b[0])
        return larger, *sums.combine(moved(a, larger), moved(b, larger))

    def begin(x: Any, *weight: Any) -> tuple[Any, ...]:
        own = unit(math.block_max(abs(x * 1.0)))
        return own, *sums.begin(x * per_unit(own), *weight)

    def absorb(state: Any, x: Any, *weight: Any) -> tuple[Any, ...]:
        larger = math.maximum(state[0], unit(math.block_max(abs(x * 1.0))))
        return larger, *sums.absorb(moved(state, larger), x * per_unit(larger), *weight)

    return Sums((0, *sums.powers), (0, *sums.identity), lift, combine, begin, absorb)


def _monoid(
    sums: Sums, fields: Sequence[str], project: Function, name: str, of_sums: bool = False, weighted: bool = False,
    **options: Any,
) -> Monoid:  # fmt: skip
    """The commutative monoid of some sums; with `of_sums` an element is the sum of two inputs'. The last input are weights of
    elements that are `weighted`."""
    lifts = (
        lambda x: sums.lift(x),
        lambda x, w: sums.lift(x, w),
        lambda x, y: sums.lift(x + y),
        lambda x, y, w: sums.lift(x + y, w),
    )
    lift, begin, absorb = lifts[2 * of_sums + weighted], sums.begin, sums.absorb
    if of_sums:
        begin, absorb = lambda x, y, *w: sums.begin(x + y, *w), lambda s, x, y, *w: sums.absorb(s, x + y, *w)
    return Monoid(
        sums.combine, sums.identity, fields=fields, lift=lift, absorb=(begin, absorb), project=project, commutative=True,
        check=False, name=name, **options,
    )  # fmt: skip


def _with_quick(
    made: Monoid, quick: Monoid, trusted: Function, project: Function | None = None, limits: Function | None = None,
    narrow: bool = True,
) -> Monoid:  # fmt: skip
    """A monoid with its quick form: `trusted(*state, least)`, `project(scale, *state)` and `narrow` as in `Quick`.

    `limits(*state)`: whether squares of float32 fell below its range, and whether a sum went beyond it.
    """
    many = len(quick.fields) + 1
    form = Quick(quick.algebra, expression.trace(trusted, many), narrow=narrow)
    if project is not None and limits is not None:
        scales = expression.trace(lambda scale, *state: following(scale, *limits(*state)), many)
        form = replace(form, project=expression.trace(project, many), following=scales)
    made.take(replace(made.algebra, quick=form))
    return made


def following(scale: Any, below: Any, beyond: Any) -> Any:
    """The scale to fold with where sums fell below float32's range or went beyond it; the same if none is left."""
    less = math.where(beyond & (scale > DOWN * DOWN) & (scale < UP), scale * DOWN, scale)
    return math.where(below & (scale == 1.0), UP, less)


def _in_both(
    sums: Sums, fields: Sequence[str], project: Function, trusted: Function, name: str, of_sums: bool = False,
    limits: Function | None = None, weighted: bool = False, **options: Any,
) -> Monoid:  # fmt: skip
    """Sums in units, `project(*sums, units)`, and beside them the quick form."""
    dtypes = options.pop("dtypes", ("compute",) * len(fields))
    made = _monoid(
        in_units(sums),
        ("unit", *fields),
        lambda unit, *state: project(*state, units_of(unit)),
        name,
        of_sums,
        weighted,
        dtypes=("compute", *dtypes),
        **options,
    )
    quick = _monoid(
        sums, fields, lambda *state: project(*state, NONE), name, of_sums, weighted, dtypes=dtypes, **options
    )

    def scaled(scale: Any, *state: Any) -> Any:
        return project(*state, Units(per_unit(scale), scale, of_elements=True))

    return _with_quick(made, quick, trusted, scaled, limits)


# ------------------------------------------------------------------------------------------------------ moments


class Moments(NamedTuple):
    """Result of WELFORD: how many elements, their mean, and M2, the sum of squared deviations from it.

    The variance is M2 / (count - 1), of a whole population M2 / count; the standard deviation is its root.
    """

    count: Any
    mean: Any
    M2: Any


class _Weighted(NamedTuple):
    count: Any
    pivot: Any
    sum: Any
    squares: Any


def _finite(value: Any, instead: Any) -> Any:
    return math.where(math.isfinite(value), value, instead)


def _welford_combine(one: Any, other: Any) -> tuple[Any, ...]:
    """Chan, Golub and LeVeque's update (1979), kept as sums about a pivot: both sides move to one, with no division.

    It is the pivot of the side with more elements, or the middle of both: the same whichever comes first, as is all that
    follows. What the pivot is not of the mean, rounding included, stays in `sum`, so that a far offset costs no accuracy; a
    pivot is always finite, so that infinities stay in `sum` and the mean is right.
    """
    a, b = _Weighted(*one), _Weighted(*other)
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


def _welford_absorb(before: Any, x: Any) -> tuple[Any, ...]:
    """More elements about the pivot there is: two operations an element, no division."""
    state = _Weighted(*before)
    pivot = math.where(state.count == 0, _finite(math.block_first(x), 0.0), state.pivot)
    deviation = x - pivot
    sums = state.sum + math.block_sum(deviation), state.squares + math.block_sum(deviation * deviation)
    return state.count + math.block_count(x), pivot, *sums


def _welford_lift(x: Any) -> tuple[Any, ...]:
    pivot = _finite(x * 1.0, 0.0)
    return 1.0, pivot, x - pivot, x - pivot


_WELFORD = Sums((0, 1, 1, 2), (0, 0, 0, 0), _welford_lift, _welford_combine, _welford_begin, _welford_absorb)


def _mean_and_squares(count: Any, pivot: Any, total: Any, squares: Any) -> tuple[Any, Any]:
    """The mean and the sum of squared deviations from it: NaN where elements are not finite.

    NaN is added, and not chosen: a choice would leave the derivative of what it did not choose at 0.
    """
    mean = total / math.where(count == 0, 1.0, count)
    about_mean = squares - total * mean + math.where(math.isfinite(total), 0.0, float("nan"))
    return pivot + mean, math.maximum(about_mean, 0.0)


def _moments_hold(count: Any, pivot: Any, total: Any, squares: Any, least: Any, beside: Any = 0.0) -> Any:
    """Whether no square was lost that counts, and no sum overflowed. One element has no deviation."""
    about_mean = _mean_and_squares(count, pivot, total, squares)[1]
    return (about_mean + beside >= (count - 1.0) * least) & (about_mean < INFINITY)


def welford(project: Function, name: str) -> Monoid:
    """WELFORD with another projection, `project(count, mean, M2)`, and the count as a float alone."""
    if is_dynamo_compiling():
        return _welford_of(inlined(project, [None] * 3, "`project`"), name)

    def finish(count: Any, mean: Any, squares: Any, units: Units) -> Any:
        return project(count, times(mean, units.unit), times(times(squares, units.unit), units.unit))

    return moments(finish, name)


@constant_in_graphs
def _welford_of(project: Inlined, name: str) -> Monoid:
    return welford(function_of(project), name)


def moments(project: Function, name: str, *, of_sums: bool = False, beside: float = 0.0) -> Monoid:
    """`project(count, mean, M2, units)`, of a mean and an M2 in those units.

    `of_sums`: an element is the sum of two inputs'. `beside` is added to the variance, whatever is done with it then.
    """

    def finish(count: Any, pivot: Any, total: Any, squares: Any, units: Units) -> Any:
        mean, squares = _mean_and_squares(count, pivot, total, squares)
        return project(count, mean, squares, units)

    def trusted(count: Any, pivot: Any, total: Any, squares: Any, least: Any) -> Any:
        return _moments_hold(count, pivot, total, squares, least, count * beside if beside > 0 else 0.0)

    def limits(count: Any, pivot: Any, total: Any, squares: Any) -> tuple[Any, Any]:
        about_mean = _mean_and_squares(count, pivot, total, squares)[1]
        whole = about_mean + count * beside if beside > 0 else about_mean
        # About a far pivot float32's deviations are no tiny ones but 0.
        below = (whole < (count - 1.0) * LEAST_SQUARES[torch.float32]) & (abs(pivot) < 1.0)
        return below, ~(about_mean < INFINITY)

    return _in_both(
        _WELFORD, ("count", "pivot", "sum", "squares"), finish, trusted, name, of_sums, limits=limits
    )


@constant_in_graphs
@kept_outside_modes(64)
def spread(correction: float, root: bool, with_mean: bool) -> Monoid:
    """WELFORD that ends in M2 / max(0, count - correction): its root, and the mean beside it, if asked for."""

    def project(count: Any, mean: Any, squares: Any, units: Units) -> Any:
        made = squares / math.maximum(count - correction, 0.0)
        if correction < 0:  # else 0 / 0 says it
            made = math.where(count == 0, float("nan"), made)
        made = times(math.sqrt(made) if root else times(made, units.unit), units.unit)
        if not with_mean:
            return made
        # torch's mean beside a variance is NaN too where several elements have no variance (WELFORD keeps it).
        lost = (count == 0) | (math.isnan(squares) & (count > 1))
        return made, times(mean, units.unit) + math.where(lost, float("nan"), 0.0)

    return moments(project, ("std" if root else "var") + ("_mean" if with_mean else ""))


def _counting(sums: Sums, one: float = 1) -> Sums:
    """The same with how many elements there are in front."""
    return Sums(
        (0, *sums.powers),
        (0, *sums.identity),
        lambda x: (one, *sums.lift(x)),
        lambda a, b: (a[0] + b[0], *sums.combine(a[1:], b[1:])),
        lambda x: (math.block_count(x), *sums.begin(x)),
        lambda state, x: (state[0] + math.block_count(x), *sums.absorb(state[1:], x)),
    )


def _counted() -> Monoid:
    """Welford's own count is a float, which is exact up to 2^24 elements only."""

    def finish(elements: Any, *state: Any) -> Moments:
        *held, units = state
        mean, squares = _mean_and_squares(*held)
        squares = times(times(squares, units.unit), units.unit)
        return Moments(elements, times(mean, units.unit), squares)

    return _in_both(
        _counting(_WELFORD),
        ("elements", "count", "pivot", "sum", "squares"),
        finish,
        lambda elements, *state: _moments_hold(*state),
        "welford",
        dtypes=("index", *["compute"] * 4),
    )


WELFORD = _counted()
"""Count, mean and M2 (`Moments`), of which M2 / (count - 1) is the variance."""


# ------------------------------------------------------------------------------------------------------ norms


def NORM(p: float = 2.0) -> Monoid:  # noqa: N802  # a catalogue entry among constants
    """The monoid of the p-norm (p = 0 counts non-zeros, p = inf and -inf are the largest and least magnitude)."""
    try:
        order = float(p) if isinstance(p, numbers.Real) else None
    except OverflowError:
        order = None
    if order is None:
        raise OrderError(f"NORM: the order must be a real number, got {shown(p)}; 2 is the Euclidean norm")
    return _norm(fixed(order))


def _simple(combine: Function, identity: float, lift: Function, name: str) -> Monoid:
    return Monoid(combine, identity, lift=lift, commutative=True, check=False, name=name)


def _add(a: Any, b: Any) -> Any:
    return a + b


@constant_in_graphs
@kept_outside_modes(64)
def _norm(p: float) -> Monoid:
    if p == INFINITY:
        return _simple(math.maximum, 0, abs, "norm(inf)")
    if p == -INFINITY:
        return _simple(math.minimum, INFINITY, abs, "norm(-inf)")
    if p == 0:
        # The magnitude is 0 there: so the count has a derivative, of 0 everywhere.
        return _simple(_add, 0, lambda x: math.where(x != 0, 1.0, abs(x)), "norm(0)")
    if p == 1:
        return _simple(_add, 0, abs, "norm(1)")
    if p == 2:
        return squares(lambda total, units: times(math.sqrt(total), units.unit), "norm(2)")
    return powers(p, lambda norm, root, whole: whole, f"norm({p:g})")


def _sums_of(power: Function, count: int) -> Sums:
    """One sum of powers of elements, each a product of `count` of them."""
    return Sums(
        (count,),
        (0,),
        lambda x: (power(x),),
        lambda a, b: (a[0] + b[0],),
        lambda x: (math.block_sum(power(x)),),
        lambda state, x: (state[0] + math.block_sum(power(x)),),
    )


def _powers_hold(total: Any, least: Any, beside: Any = 0.0) -> Any:
    """Whether no power was lost that counts, of up to 2^40 elements, and no sum overflowed."""
    return (total + beside >= least * 2.0**30) & (total < INFINITY)


def squares(
    project: Function, name: str, *, of_sums: bool = False, beside: float = 0.0, counts: bool = False
) -> Monoid:
    """`project(total, units)` of the sum of squares in those units; with `counts` `project(count, total, units)`.

    `of_sums`: an element is the sum of two inputs'. `beside` is added to that sum, whatever is done with it then.
    """
    sums = _sums_of(lambda x: x * x, 2)

    def limits(*state: Any) -> tuple[Any, Any]:
        below = state[-1] + beside < LEAST_SQUARES[torch.float32] * 2.0**30
        return below, ~(state[-1] < INFINITY)

    return _in_both(
        _counting(sums, 1.0) if counts else sums,
        ("count", "sum") if counts else ("sum",),
        project,
        lambda *state: _powers_hold(state[-2], state[-1], beside),
        name,
        of_sums,
        limits=limits,
    )


def squares_and_largest(
    project: Function, name: str, *, of_sums: bool, weighted: bool, beside: float
) -> Monoid:
    """`project(total, largest, units)`: as `squares`, with the largest magnitude of an element or, where they are `weighted`,
    of its product with the weight. A product is in range if that of the element in units is."""

    def size(x: Any, *weight: Any) -> Any:
        return abs(x * weight[0] if weighted else x * 1.0)

    def trusted(total: Any, largest: Any, least: Any) -> Any:
        held = ((largest >= LEAST_PRODUCT) & (largest < INFINITY)) | (largest == 0)
        return _powers_hold(total, least, beside) & held

    sums = Sums(
        (2, 1),
        (0, 0),
        lambda x, *w: (x * x, size(x, *w)),
        lambda a, b: (a[0] + b[0], math.maximum(a[1], b[1])),
        lambda x, *w: (math.block_sum(x * x), math.block_max(size(x, *w))),
        lambda state, x, *w: (
            state[0] + math.block_sum(x * x),
            math.maximum(state[1], math.block_max(size(x, *w))),
        ),
    )
    return _in_both(
        sums,
        ("sum", "largest"),
        project,
        trusted,
        name,
        of_sums,
        weighted=weighted,
    )


def squares_together(project: Function, name: str) -> Monoid:
    """`project(total, units)` of several sums of squares, each given as its unit and the sum in that."""
    of_squares = in_units(_sums_of(lambda x: x * x, 2))
    return Monoid(
        of_squares.combine,
        of_squares.identity,
        fields=("unit", "sum"),
        project=lambda unit, total: project(total, units_of(unit)),
        commutative=True,
        check=False,
        name=name,
    )


def magnitudes(project: Function, name: str) -> Monoid:
    """`project(total, units)` of the sum of magnitudes in those units."""
    return _in_both(
        _sums_of(abs, 1), ("sum",), project, lambda total, least: total < INFINITY, name,
        limits=lambda total: (total < 0.0, ~(total < INFINITY)),
    )  # fmt: skip


def _root(total: Any, p: float) -> Any:
    """total^(1 / p). What 1 / p loses as a float64 counts by the logarithm of the total: up to 700 times."""
    share = 1 / p
    lost = float(1 / Fraction(p) - Fraction(share)) if abs(share) < INFINITY else 0.0
    root = math.pow(total, share)
    if not lost:
        return root
    return root + root * math.where((total > 0) & (total < INFINITY), math.log(total) * lost, 0.0)


def powers(p: float, project: Function, name: str) -> Monoid:
    """`project(extreme, root, norm)` of a sum of powers: norm = extreme root, the extreme the largest magnitude, or of
    negative powers the least; root = (sum of (|x| / extreme)^p)^(1 / p), in whose sum no term is above 1."""
    extreme, block, nothing = (
        (math.maximum, math.block_max, 0.0) if p > 0 else (math.minimum, math.block_min, INFINITY)
    )

    def size(of: Any) -> Any:
        """What elements are divided by: the extreme, unless that is 0 or infinite."""
        return math.where((of == 0) | math.isinf(of), 1.0, of)

    def part(x: Any, of: Any) -> Any:
        """(x / of)^p of a magnitude x. A power below 1 has no slope at 0: it is 0 there, unless the cotangent is NaN."""
        power = math.pow(x / size(of), p)
        return power if p > 1 else math.where(x == 0, x * x if p > 0 else x * x + INFINITY, power)

    def magnitude(x: Any) -> Any:
        """|x|, whose slope is 1 or -1 everywhere: of 0, whose own is 0, a NaN would be lost."""
        return math.maximum(x * 1.0, -x * 1.0)

    def combine(a: Any, b: Any) -> tuple[Any, Any]:
        of = extreme(a.extreme, b.extreme)
        other = math.minimum(a.extreme, b.extreme) if p > 0 else math.maximum(a.extreme, b.extreme)
        first = a.extreme > b.extreme if p > 0 else a.extreme < b.extreme
        kept, moved = math.where(first, a.sum, b.sum), math.where(first, b.sum, a.sum)
        ratio = part(other, of)
        if p < 0:  # no element: infinity has no slope
            ratio = math.where(other == INFINITY, 0.0, ratio)
        return of, kept + moved * math.where(a.extreme == b.extreme, 1.0, ratio)

    def absorb(state: Any, x: Any) -> tuple[Any, Any]:
        of = extreme(state.extreme, block(abs(x * 1.0)))
        ratio = math.where(state.extreme == of, 1.0, part(state.extreme, of))
        return of, state.sum * ratio + math.block_sum(part(magnitude(x), of))

    def finish(of: Any, total: Any) -> Any:
        root = math.pow(total, 1.0 / p)
        root = math.where(total == 0, 0.0, root) if p > 1 else root
        return project(of, root, size(of) * root)

    made = Monoid(
        combine,
        (nothing, 0),
        fields=("extreme", "sum"),
        lift=lambda x: (abs(x * 1.0), part(magnitude(x), abs(x * 1.0))),
        absorb=absorb,
        project=finish,
        commutative=True,
        check=False,
        name=name,
    )
    sums = _sums_of(lambda x: math.pow(abs(x), p), 0)

    def finish_quick(total: Any) -> Any:
        norm = _root(total, p)
        return project(1.0, norm, norm)

    def trusted(total: Any, least: Any) -> Any:
        norm = _root(total, p)
        return _powers_hold(total, least) & (norm >= least) & (norm < INFINITY)

    quick = _monoid(sums, ("sum",), finish_quick, name)
    return _with_quick(made, quick, trusted, narrow=False)


# ------------------------------------------------------------------------------------------------------ descriptions


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


_FIELDS = ("count", "nans", "infs", "zeros", "min", "max", "finite", "pivot", "sum", "squares")


class _Described(NamedTuple):
    """What a state of DESCRIBE has after its four counts."""

    min: Any
    max: Any
    finite: Any
    pivot: Any
    sum: Any
    squares: Any

    @property
    def largest(self) -> Any:
        return _farther(self.min, self.max)


def _farther(least: Any, most: Any) -> Any:
    """The largest magnitude of some finite elements, 0 of none."""
    return math.maximum(math.maximum(-least, most), 0.0)


def _counts(x: Any, of: Function) -> tuple[Any, ...]:
    return (
        of(math.where(math.isnan(x), 1, 0)),
        of(math.where(math.isinf(x), 1, 0)),
        of(math.where(x == 0, 1, 0)),
    )


def _describe(element: Function, scaled: bool, name: str) -> Monoid:
    """DESCRIBE of `element(x)`, with sums in units of the extremes, or in none."""

    def per(largest: Any) -> Any:
        return per_unit(unit(largest)) if scaled else 1.0

    def moved(state: Any, largest: Any) -> _Described:
        held = _Described(*tuple(state)[4:])
        if not scaled:
            return held
        ratio = _ratio(unit(held.largest), unit(largest))
        sums = [_rescale(v, ratio, p) for v, p in zip(held[3:], (1, 1, 2), strict=True)]
        return _Described(*held[:3], *sums)

    def lift(given: Any) -> tuple[Any, ...]:
        x = element(given) * 1.0
        finite = math.isfinite(x)
        value = math.where(finite, x, 0.0)
        return (
            1, *_counts(x, lambda one: one), math.where(finite, x, INFINITY), math.where(finite, x, -INFINITY),
            math.where(finite, 1.0, 0.0), times(value, per(abs(value))), 0.0, 0.0,
        )  # fmt: skip

    def combine(a: Any, b: Any) -> tuple[Any, ...]:
        least, most = math.minimum(a.min, b.min), math.maximum(a.max, b.max)
        largest = _farther(least, most)
        sums = _welford_combine(moved(a, largest)[2:], moved(b, largest)[2:])
        counts = [x + y for x, y in zip(a[:4], b[:4], strict=True)]
        return (*counts, least, most, *sums)

    def extremes(x: Any, finite: Any) -> tuple[Any, Any]:
        return (
            math.block_min(math.where(finite, x, INFINITY)),
            math.block_max(math.where(finite, x, -INFINITY)),
        )

    def sums(y: Any, finite: Any, pivot: Any) -> tuple[Any, ...]:
        deviation = math.where(finite, y - pivot, 0.0)
        return (
            math.block_sum(math.where(finite, 1.0, 0.0)), pivot, math.block_sum(deviation),
            math.block_sum(deviation * deviation),
        )  # fmt: skip

    def begin(given: Any) -> tuple[Any, ...]:
        x = element(given) * 1.0
        finite = math.isfinite(x)
        least, most = extremes(x, finite)
        inverse = per(_farther(least, most))
        y, start = times(x, inverse), times(_finite(least, 0.0), inverse)
        some = math.maximum(math.block_sum(math.where(finite, 1.0, 0.0)), 1.0)
        mean = start + math.block_sum(math.where(finite, y - start, 0.0)) / some
        counts = math.block_count(x), *_counts(x, math.block_sum)
        return (*counts, least, most, *sums(y, finite, _finite(mean, start)))

    def absorb(state: Any, given: Any) -> tuple[Any, ...]:
        x = element(given) * 1.0
        finite = math.isfinite(x)
        least, most = extremes(x, finite)
        start = _finite(least, 0.0)
        least, most = math.minimum(state.min, least), math.maximum(state.max, most)
        largest = _farther(least, most)
        held, inverse = moved(state, largest), per(largest)
        pivot = math.where(held.finite == 0, times(start, inverse), held.pivot)
        added = sums(times(x, inverse), finite, pivot)
        counts = [
            a + b for a, b in zip(state[:4], (math.block_count(x), *_counts(x, math.block_sum)), strict=True)
        ]
        return (
            *counts, least, most, held.finite + added[0], pivot, held.sum + added[2], held.squares + added[3],
        )  # fmt: skip

    def project(*state: Any) -> Description:
        held = _Described(*state[4:])
        mean, squares = _mean_and_squares(*held[2:])
        size = unit(held.largest) if scaled else 1.0
        some, nan = held.finite > 0, float("nan")
        absmax = math.where(some, math.maximum(abs(held.min), abs(held.max)), 0.0)
        deviation = times(math.sqrt(squares / math.maximum(held.finite - 1.0, 1.0)), size)
        count, nans, infs, zeros, *_ = state
        return Description(
            count, nans, infs, zeros, held.min, held.max, absmax,
            math.where(some, times(mean, size), nan), math.where(some, deviation, nan),
        )  # fmt: skip

    return Monoid(
        combine,
        (0, 0, 0, 0, INFINITY, -INFINITY, 0, 0, 0, 0),
        fields=_FIELDS,
        dtypes=(*(torch.int64,) * 4, *("compute",) * 6),
        lift=lift,
        absorb=(begin, absorb),
        project=project,
        commutative=True,
        check=False,
        name=name,
    )


def describe_of(element: Function, name: str) -> Monoid:
    """DESCRIBE of `element(x)` for every element x."""

    def trusted(*state: Any) -> Any:
        *held, least = state
        of = _Described(*held[4:])
        return (of.min >= of.max) | _moments_hold(*of[2:], least)

    return _with_quick(_describe(element, True, name), _describe(element, False, name), trusted)


DESCRIBE = describe_of(lambda x: x, "describe")
