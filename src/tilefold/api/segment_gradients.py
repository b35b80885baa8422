"""The backward of `segment_reduce`: from its segment's state, or from what is before and after an element."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from tilefold import math
from tilefold.algebra.algebra import Algebra
from tilefold.algebra.derivatives.folds import Gradient, opposite
from tilefold.algebra.derivatives.linear import as_float
from tilefold.algebra.domain import ANY
from tilefold.algebra.expression import trace
from tilefold.algebra.monoid import Monoid
from tilefold.api import scan as scans
from tilefold.api import segment_reduce as segments
from tilefold.api.gradients import (
    Call,
    Wide,
    as_inputs,
    cells,
    check_grouping,
    check_ties,
    function_of,
    gradient_of_call,
    monoid_of_algebra,
    needs_total_alone,
    of_total,
    states_of,
)
from tilefold.problem.canonical import broadcast_shape
from tilefold.runtime.caching import kept_outside_modes


@dataclass(frozen=True)
class Segmented(Call):
    """A fold of segments as its backward needs it: of some inputs, then the tensor that says where segments are."""

    monoid: Monoid
    cut: segments.Cut
    dim: int
    guarantee: str
    call: str = segments.CALL

    def check(self, tensors: Sequence[Tensor]) -> None:
        """Refuse a fold that has no derivative.

        Raises:
            GradientError: as `gradients.check_grouping`; or it is to extremes, whose ties no rule here shares.
        """
        gradient = gradient_of_call(self.monoid, tensors[:-1], None)
        check_ties(gradient, self.call)

    def moves(self, result: int, tensors: Sequence[Tensor]) -> bool:
        """Whether a result changes with an element."""
        return result in gradient_of_call(self.monoid, tensors[:-1], None).results

    def backward(self, tensors: Sequence[Tensor], grads: Sequence[Tensor], wrt: Sequence[int]) -> list[Any]:
        """The inputs' cotangents."""
        inputs, numbers = tensors[:-1], tensors[-1]
        gradient = gradient_of_call(self.monoid, inputs, None)
        shape = broadcast_shape(inputs, self.call)
        dim = segments.dim_of(self.dim, len(shape))
        places = _Places.of(segments.unchecked_offsets(numbers, self.cut), shape[dim])
        if 0 in shape or not places.count:
            return [torch.zeros_like(t) if i in wrt else None for i, t in enumerate(tensors)]
        wide = Wide(inputs, shape, (dim,), None, self.guarantee)
        cotangents = [places.spread(grads[i], dim) for i in gradient.results]
        if needs_total_alone(gradient, None):
            states = segments.fold_segments(
                inputs, states_of(gradient), places.offsets, segments.Cut("offsets", partial=True), dim, None, None,
                self.guarantee,
            )  # fmt: skip
            totals = [places.spread(t, dim) for t in states]
            function = function_of(of_total(gradient, tuple(wrt)).graph)
            made = cells(function, [*wide.elements, *totals, *cotangents])
        else:
            check_grouping(gradient, self.call)
            made = self._around(gradient, wide, places, cotangents, tuple(wrt))
        inside = places.along(places.inside, dim, len(shape))
        return as_inputs([torch.where(inside, t, 0) for t in made], tensors, wrt)

    def _around(
        self,
        gradient: Gradient,
        wide: Wide,
        places: _Places,
        cotangents: Sequence[Tensor],
        wrt: tuple[int, ...],
    ) -> list[Tensor]:
        """From the prefix and the suffix of each element of a segment."""
        (dim,), shape = wide.dims, wide.shape
        x, ndim = wide.elements, len(shape)
        if gradient.algebra.index:
            x = [*x, places.along(places.positions, dim, ndim).expand(shape)]
        first, last = (places.along(t, dim, ndim).expand(shape) for t in (places.first, places.last))
        _, *before = scans.scan_tensors(
            [*x, first], _restarted(gradient, False), dim, exclusive=True, guarantee=self.guarantee
        )
        _, *after = scans.scan_tensors(
            [*x, last],
            _restarted(gradient, True),
            dim,
            exclusive=True,
            reverse=True,
            guarantee=self.guarantee,
        )
        return cells(_of_neighbours(gradient, wrt), [first, last, *before, *x, *after, *cotangents])


@dataclass(frozen=True)
class _Places:
    """Of each of N positions: its segment, where it is in it, whether it is its first or last one, or inside of any."""

    offsets: Tensor
    segment: Tensor
    positions: Tensor
    first: Tensor
    last: Tensor
    inside: Tensor

    @property
    def count(self) -> int:
        """How many segments there are."""
        return self.offsets.shape[0] - 1

    @classmethod
    def of(cls, offsets: Tensor, length: int) -> _Places:
        """The places of segments between ascending offsets."""
        at = torch.arange(length, device=offsets.device)
        offsets = offsets.to(torch.int64)
        segment = (torch.searchsorted(offsets, at, right=True) - 1).clamp(0, max(offsets.shape[0] - 2, 0))
        begin = offsets[segment]
        inside = (at >= offsets[0]) & (at < offsets[-1])
        last = at + 1 == offsets[(segment + 1).clamp_max(offsets.shape[0] - 1)]
        return cls(offsets, segment, at - begin, at == begin, last, inside)

    def spread(self, t: Tensor, dim: int) -> Tensor:
        """A tensor of a value a segment as one of a value a position."""
        return t.index_select(dim, self.segment)

    @staticmethod
    def along(t: Tensor, dim: int, ndim: int) -> Tensor:
        """A vector of positions as a tensor that broadcasts along `dim`."""
        return t.view([-1 if d == dim else 1 for d in range(ndim)])


@kept_outside_modes(512)
def _restarted(gradient: Gradient, turned: bool) -> Monoid:
    """The monoid whose states begin anew where a further input is True; `turned`, combined the other way round."""
    states = opposite(gradient.states) if turned else gradient.states
    n, k = len(states.fields), states.inputs

    def combine(*v: Any) -> tuple[Any, ...]:
        a, b = v[: n + 1], v[n + 1 :]
        both = states.combine(*a[1:], *b[1:])
        return (a[0] | b[0], *(math.where(b[0], new, c) for new, c in zip(b[1:], both, strict=True)))

    algebra = Algebra(
        fields=("begins", *states.fields), identity=("bool False", *(states.identity or ())),
        dtypes=(torch.bool, *states.dtypes),
        inputs=k + 1, index=False, commutative=False, lift=trace(lambda *x: (x[k], *states.lift(*x[:k])), k + 1),
        combine=trace(combine, 2 * (n + 1)), project=None, absorb=None, derives=False,
        domain=states.domain and (*states.domain, ANY),
    )  # fmt: skip
    return monoid_of_algebra(algebra)


@kept_outside_modes(512)
def _of_neighbours(gradient: Gradient, wrt: tuple[int, ...]) -> Monoid:
    """(first, last, prefix, elements, suffix, cotangents of the results) -> cotangents of elements."""
    n, k = gradient.n, gradient.program.lift.graph.arity
    identity = gradient.program.identity

    def run(first: Any, last: Any, *v: Any) -> tuple[Any, ...]:
        before = [math.where(first, i, s) for i, s in zip(identity, v[:n], strict=True)]
        x = v[n : n + k]
        after = [math.where(last, i, s) for i, s in zip(identity, v[n + k : 2 * n + k], strict=True)]
        found = gradient.around(before, x, after, v[2 * n + k :])
        return tuple(as_float(found[i]) for i in wrt)

    return function_of(trace(run, 2 + 2 * n + k + len(gradient.results)))
