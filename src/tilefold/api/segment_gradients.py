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
from tilefold.api.differentiated import Call
from tilefold.api.ends import Ends, ends_of, function_of, monoid_of_algebra
from tilefold.api.gradients import Wide, as_inputs, cells, check_grouping, gradient_of_call, states_of
from tilefold.planner.problem.canonical import broadcast_shape
from tilefold.runtime.caching import kept_outside_modes
from tilefold.runtime.modes import has_none


@dataclass(frozen=True)
class Segmented(Call):
    """A fold of segments as its backward needs it: of some inputs, then the tensor that says where segments are."""

    monoid: Monoid
    cut: segments.Cut
    dim: int
    guarantee: str
    call: str = segments.CALL

    def moves(self, result: int, tensors: Sequence[Tensor]) -> bool:
        """Whether a result changes with an element."""
        return result in gradient_of_call(self.monoid, tensors[:-1], None).results

    def backward(self, saved: Sequence[Tensor], grads: Sequence[Tensor], wrt: Sequence[int]) -> list[Any]:
        """The inputs' cotangents."""
        places = ends_of(gradient_of_call(self.monoid, saved[:-1], None)).places
        offsets = segments.unchecked_offsets(saved[-1], self.cut)
        return [*self.of_places(saved[:-1], offsets, [grads[i] for i in places], wrt), None]

    def of_places(
        self, inputs: Sequence[Tensor], offsets: Tensor, g: Sequence[Tensor], wrt: Sequence[int]
    ) -> list[Any]:
        """The same of segments between offsets, which may begin before the first element and end behind the last one."""
        shape = broadcast_shape(inputs, self.call)
        dim = segments.dim_of(self.dim, len(shape))
        places = Places.of(offsets, shape[dim], dim, len(shape))
        if has_none(shape) or not places.count:
            return [torch.zeros_like(t) if i in wrt else None for i, t in enumerate(inputs)]
        ends = ends_of(gradient_of_call(self.monoid, inputs, None))
        wide = Wide(inputs, shape, (dim,), None, self.guarantee)
        made = self._of_elements(ends, wide, places, g, tuple(wrt))
        return as_inputs([torch.where(places.inside, t, 0) for t in made], inputs, wrt)

    def _of_elements(
        self, ends: Ends, wide: Wide, places: Places, g: Sequence[Tensor], wrt: tuple[int, ...]
    ) -> list[Tensor]:
        """Cotangents of elements, of those of segments' results."""
        gradient = ends.gradient
        x = wide.elements
        if gradient.algebra.index:
            x = [*x, places.positions.expand(wide.shape)]
        if gradient.shares_ties:
            made = self._of_ties(ends, x, places, g, wrt)
            if len(gradient.floats) == len(gradient.extremes):
                return made
            more = self._around(ends, x, places, g, wrt, others=True)
            return [a + b for a, b in zip(made, more, strict=True)]
        if ends.total_is_enough:
            totals = self._totals(x, gradient, places)
            return cells(function_of(ends.by_total(wrt)), [*x, *places.spread(*totals, *g)])
        check_grouping(gradient, self.call)
        return self._around(ends, x, places, g, wrt)

    def _folded(self, tensors: Sequence[Tensor], monoid: Monoid, places: Places) -> list[Tensor]:
        cut = segments.Cut("offsets", partial=True)
        return segments.fold_segments(
            tensors, monoid, places.offsets, cut, places.dim, None, None, self.guarantee
        )

    def _totals(self, x: Sequence[Tensor], gradient: Gradient, places: Places) -> list[Tensor]:
        """Each segment's state."""
        return self._folded(x, states_of(gradient), places)

    def _counts(self, seen: Sequence[Tensor], ends: Ends, places: Places) -> list[Tensor]:
        """How many elements of each segment are its extreme."""
        return self._folded(seen, ends.ties, places)

    def _beside(self, gradient: Gradient, reverse: bool) -> list[Tensor]:
        """The state before the first element or, in reverse, behind the last one, where there is one."""
        return []

    def _of_ties(
        self, ends: Ends, x: Sequence[Tensor], places: Places, g: Sequence[Tensor], wrt: tuple[int, ...]
    ) -> list[Tensor]:
        """Elements that tie for their segment's extreme share its cotangent evenly."""
        gradient = ends.gradient
        totals = self._totals(x, gradient, places)
        shares = cells(ends.of_whole, [*totals, *g])
        some = [totals[f].to(gradient.program.state[f]) for f in gradient.extremes]
        seen = [*x, *places.spread(*some)]
        counts = self._counts(seen, ends, places)
        beside = [shares[gradient.floats.index(f)] for f in gradient.extremes]
        return cells(function_of(ends.shared(wrt)), [*seen, *places.spread(*counts, *beside)])

    def _around(
        self, ends: Ends, x: Sequence[Tensor], places: Places, g: Sequence[Tensor], wrt: tuple[int, ...],
        others: bool = False,
    ) -> list[Tensor]:  # fmt: skip
        """From the prefix and the suffix of each element of a segment; `others`: of fields that are no extremes."""
        first, last = (t.expand(x[0].shape) for t in (places.first, places.last))
        sides = []
        for reverse, begins in ((False, first), (True, last)):
            init = self._beside(ends.gradient, reverse) or None
            form: dict[str, Any] = {"exclusive": True, "reverse": reverse, "guarantee": self.guarantee}
            states = _restarted(ends.gradient, reverse)
            _, *side = scans.scan_tensors([*x, begins], states, places.dim, init=init, **form)
            sides.append(side)
        before, after = sides
        function = _of_neighbours(ends, wrt, others)
        return cells(function, [first, last, *before, *x, *after, *places.spread(*g)])


@dataclass(frozen=True)
class Places:
    """Of each position along `dim`: its segment, where it is in it, whether it is its first or last one, or inside of any.

    All but `segment`, a vector, broadcast along the other dims.
    """

    dim: int
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
    def of(cls, offsets: Tensor, length: int, dim: int, ndim: int) -> Places:
        """The places of segments between ascending offsets."""
        at = torch.arange(length, device=offsets.device)
        offsets = offsets.to(torch.int64)
        segment = (torch.searchsorted(offsets, at, right=True) - 1).clamp(0, max(offsets.shape[0] - 2, 0))
        begin = offsets[segment]
        inside = (at >= offsets[0]) & (at < offsets[-1])
        last = at + 1 == offsets[(segment + 1).clamp_max(offsets.shape[0] - 1)]
        along = [-1 if d == dim else 1 for d in range(ndim)]
        every = (at - begin, at == begin, last, inside)
        return cls(dim, offsets, segment, *(t.view(along) for t in every))

    def spread(self, *tensors: Tensor) -> list[Tensor]:
        """Tensors of a value a segment as those of a value a position."""
        return [t.index_select(self.dim, self.segment) for t in tensors]


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
def _of_neighbours(ends: Ends, wrt: tuple[int, ...], others: bool) -> Monoid:
    """(first, last, prefix, elements, suffix, cotangents of the results) -> cotangents of elements."""
    gradient = ends.gradient
    n, k = gradient.n, gradient.program.lift.graph.arity
    identity = gradient.program.identity

    def run(first: Any, last: Any, *v: Any) -> tuple[Any, ...]:
        before = [math.where(first, i, s) for i, s in zip(identity, v[:n], strict=True)]
        x, g = v[n : n + k], v[2 * n + k :]
        after = [math.where(last, i, s) for i, s in zip(identity, v[n + k : 2 * n + k], strict=True)]
        found = gradient.around(before, x, after, lambda whole: ends.of_state(whole, g, others))
        return tuple(as_float(found[i]) for i in wrt)

    return function_of(trace(run, 2 + 2 * n + k + len(ends.places)))
