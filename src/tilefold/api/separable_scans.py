"""The backward and the forward derivative of a scan whose states depend on how they were grouped: sums of coefficients.

Where cotangents are polynomials of elements (`algebra.derivatives.separable`), those of a scan of rows [rows, places] are

    dx_t = sum over powers p of x_t^p (sum over s from t on of coefficient[p](S_s) g_s),

a scan that makes the coefficients, and one sum the other way for each power. Elements far from zero make terms that cancel:
so all is computed in float64. Made of scans and functions, it has derivatives itself.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from tilefold.algebra.derivatives.folds import Gradient
from tilefold.algebra.derivatives.linear import add, as_float, mul
from tilefold.algebra.derivatives.separable import Separated, product, separated
from tilefold.algebra.expression import trace
from tilefold.algebra.monoid import Monoid
from tilefold.api import scan as scans
from tilefold.api.ends import function_of, monoid_of_algebra
from tilefold.api.gradients import cells, derived
from tilefold.monoids import SUM
from tilefold.runtime.caching import kept_outside_modes

WIDE = torch.float64


def widened(dtype: torch.dtype) -> torch.dtype:
    """The dtype in which such derivatives are computed."""
    return WIDE if dtype.is_floating_point else dtype


@kept_outside_modes(512)
def separated_of(monoid: Monoid, elements: tuple[torch.dtype, ...]) -> tuple[Gradient, Separated] | None:
    """The gradient of elements of these dtypes as they are computed, and its coefficients, if it has such."""
    gradient = derived(monoid, tuple(map(widened, elements)))
    found = separated(gradient)
    return None if found is None else (gradient, found)


def backward(
    form: tuple[Gradient, Separated], x: Sequence[Tensor], init: Sequence[Tensor] | None, g: Sequence[Tensor], guarantee: str
) -> list[Tensor]:  # fmt: skip
    """The float elements' cotangents of those of the inclusive prefixes' results, [rows, places] in float64."""
    _, found = form
    made = cells(_weighted(*form), [*_coefficients(found, x, init, guarantee), *g])
    sums = [scans.scan_tensors([t], SUM, 1, reverse=True, guarantee=guarantee)[0] for t in made]
    return cells(_polynomials(found, len(x)), [*x, *sums])


def pushed(
    form: tuple[Gradient, Separated], x: Sequence[Tensor], init: Sequence[Tensor] | None, moved: Sequence[Tensor],
    guarantee: str,
) -> list[Tensor]:  # fmt: skip
    """The tangents of the inclusive prefixes' results of those of the elements, [rows, places] in float64."""
    _, found = form
    made = cells(_moments(found, len(x)), [*x, *moved])
    sums = [scans.scan_tensors([t], SUM, 1, guarantee=guarantee)[0] for t in made]
    return cells(_joined(*form), [*_coefficients(found, x, init, guarantee), *sums])


def _coefficients(
    found: Separated, x: Sequence[Tensor], init: Sequence[Tensor] | None, guarantee: str
) -> list[Tensor]:
    return scans.scan_tensors(x, _monoid(found), 1, init=init, guarantee=guarantee)


@kept_outside_modes(512)
def _monoid(found: Separated) -> Monoid:
    return monoid_of_algebra(found.states)


@kept_outside_modes(512)
def _weighted(gradient: Gradient, found: Separated) -> Monoid:
    """(coefficients, cotangents of the results) -> for each input and power the coefficients times the cotangents."""
    n, sums = len(found.terms), found.sums()

    def run(*v: Any) -> tuple[Any, ...]:
        made: list[Any] = [0] * len(sums)
        for term, c in zip(found.terms, v[:n], strict=True):
            at = sums.index((term.input, term.powers))
            made[at] = add(made[at], mul(c, v[n + gradient.results.index(term.result)]))
        return tuple(map(as_float, made))

    return function_of(trace(run, n + len(gradient.results)))


@kept_outside_modes(512)
def _polynomials(found: Separated, k: int) -> Monoid:
    """(elements, sums for each input and power) -> cotangents of inputs that have coefficients."""
    inputs = sorted({i for i, _ in found.sums()})

    def run(*v: Any) -> tuple[Any, ...]:
        made = dict.fromkeys(inputs, 0)
        for (i, powers), s in zip(found.sums(), v[k:], strict=True):
            made[i] = add(made[i], mul(s, product(v[:k], powers)))
        return tuple(map(as_float, made.values()))

    return function_of(trace(run, k + len(found.sums())))


@kept_outside_modes(512)
def _moments(found: Separated, k: int) -> Monoid:
    """(elements, their tangents) -> the tangents times each power."""

    def run(*v: Any) -> tuple[Any, ...]:
        return tuple(mul(v[k + i], product(v[:k], powers)) for i, powers in found.sums())

    return function_of(trace(run, 2 * k))


@kept_outside_modes(512)
def _joined(gradient: Gradient, found: Separated) -> Monoid:
    """(coefficients, sums for each input and power) -> the results' tangents."""
    n, sums = len(found.terms), found.sums()

    def run(*v: Any) -> tuple[Any, ...]:
        made: list[Any] = [0] * len(gradient.results)
        for term, c in zip(found.terms, v[:n], strict=True):
            at = gradient.results.index(term.result)
            made[at] = add(made[at], mul(c, v[n + sums.index((term.input, term.powers))]))
        return tuple(map(as_float, made))

    return function_of(trace(run, n + len(sums)))
