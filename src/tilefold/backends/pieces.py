"""A fold's inputs, cut into boxes of neighbouring elements: where they lie, and in which order they are walked."""

from __future__ import annotations

import itertools
import math
import operator
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace

import torch

from tilefold.algebra.evaluate import stored
from tilefold.algebra.program import Program
from tilefold.algebra.typing import element_dtype
from tilefold.backends.elementwise import Workspace
from tilefold.problem import Dim, canonical

Tensor = torch.Tensor
SHORT = 64
Box = tuple[tuple[int, int], ...]  # (start, length) of each dim


class Pieces:
    """The inputs of one fold as canonical dims, the kept ones first; `order` walks them as memory does, far strides first
    (but short folded rows are turned into columns).

    A box is laid out in that order: a tensor of the box's lengths permuted by `order`. Inputs are read where they lie;
    a box is gathered into a buffer only where its dtype, or a nearest stride other than 1, asks for it. `kept` are the
    dims of the results, `folded` those that are folded; elements have positions along the dims with a step in `steps`.
    """

    def __init__(
        self,
        program: Program,
        views: Sequence[Tensor],
        kept: Sequence[Dim],
        folded: Sequence[Dim],
        steps: Sequence[int],
        first: int = 0,
    ) -> None:
        self.program, self.views, self.steps, self.first = program, list(views), tuple(steps), first
        self.kept, self.folded = tuple(kept), tuple(folded)
        self.dims = (*self.kept, *self.folded)
        self.order = sorted(range(len(self.dims)), key=lambda d: -max(map(abs, self.dims[d].strides)))
        self.short = self._has_short_rows()
        if self.short:
            self.order.sort(key=lambda d: d < len(self.kept))

    def in_parts(self, parts: int) -> tuple[Pieces, Pieces | None]:
        """The longest folded dim (the farthest, where order matters) cut into equal parts, and what is left at its end.

        The first has a kept dim more, the parts, ahead of the others: its results are states to meet in that order.
        """
        which = 0
        if self.program.algebra.commutative:
            which = max(range(len(self.folded)), key=lambda f: self.folded[f].size)
        dim, place = self.folded[which], len(self.kept) + which
        length = dim.size // parts
        whole = length * parts
        results = math.prod(d.size for d in self.kept)
        ahead = Dim(parts, tuple(s * length for s in dim.strides), results)
        main = [
            v.narrow(place, 0, whole).unfold(place, length, length).movedim((place, -1), (0, place + 1))
            for v in self.views
        ]
        part = Pieces(
            self.program,
            main,
            (ahead, *self.kept),
            self._with(which, length),
            (dim.other * length, *self.steps),
            self.first,
        )
        if whole == dim.size:
            return part, None
        left = dim.size - whole
        rest = [v.narrow(place, whole, left) for v in self.views]
        first = self.first + whole * dim.other
        return part, Pieces(self.program, rest, self.kept, self._with(which, left), self.steps, first)

    def _with(self, which: int, size: int) -> list[Dim]:
        return [replace(d, size=size) if f == which else d for f, d in enumerate(self.folded)]

    def _has_short_rows(self) -> bool:
        """Whether folded neighbours are too few for torch to run along: results then go next to each other instead."""
        length = math.prod(dim.size for dim in self.folded)
        return bool(self.kept) and 1 < length <= SHORT and self.order[-1] >= len(self.kept)

    def near(self, folded: bool) -> list[int]:
        """The folded or the kept dims, near strides first."""
        return [d for d in self.order[::-1] if (d >= len(self.kept)) == folded]

    def grow(self, box: Sequence[int], dims: Iterable[int], factor: int) -> list[int]:
        """The lengths of a box made up to `factor` times larger, along the first of `dims` before the next."""
        box = list(box)
        for d in dims:
            length = min(self.dims[d].size, box[d] * max(1, factor))
            factor //= -(-length // box[d])
            box[d] = length
        return box

    def laid_out(self, lengths: Sequence[int]) -> list[int]:
        """A box's lengths as it is laid out."""
        return [lengths[d] for d in self.order]

    def by_rows(self, laid_out: Tensor) -> Tensor:
        """[folded, kept], each in their own order, of a tensor laid out as memory is."""
        places = {d: i for i, d in enumerate(self.order)}
        folded = range(len(self.kept), len(self.dims))
        moved = laid_out.permute([places[d] for d in (*folded, *range(len(self.kept)))])
        rows = math.prod(moved.shape[: len(self.folded)])
        return moved.reshape(rows, moved.numel() // rows)

    def elements(self, box: Box, workspace: Workspace) -> list[Tensor]:
        """What lift takes, laid out as memory is: one tensor an input, and the positions."""
        elements = [self._gather(i, box, workspace) for i in range(len(self.views))]
        if self.program.algebra.index:
            elements.append(self._positions(box, workspace).expand(elements[0].shape))
        return elements

    def _gather(self, which: int, box: Box, workspace: Workspace) -> Tensor:
        element = self.program.elements[which]
        part, wide = narrow(self.views[which], box).permute(self.order), stored(element_dtype(element))
        in_place = part.dtype == wide == stored(element) and not part.is_neg()
        if in_place and (not part.ndim or part.stride(-1) == 1):
            return part
        key = ("gather", which, part.shape)
        if key not in workspace:
            workspace[key] = [torch.empty(part.shape, dtype=wide, device="cpu")]
        return workspace[key][0].copy_(_as_elements(part, element))

    def _positions(self, box: Box, workspace: Workspace) -> Tensor:
        """Row-major positions along the folded dims, of length 1 along dims without a step."""
        lengths = [length if step else 1 for (_, length), step in zip(box, self.steps, strict=True)]
        key = ("positions", tuple(lengths))
        if key not in workspace:
            from_start = self._positions_from_start(lengths)
            workspace[key] = [from_start, torch.empty_like(from_start)]
        from_start, moved = workspace[key]
        start = self.first + sum(start * step for (start, _), step in zip(box, self.steps, strict=True))
        return torch.add(from_start, start, out=moved)

    def _positions_from_start(self, lengths: Sequence[int]) -> Tensor:
        dtype, ndim = self.program.lift.input_dtypes[-1], len(self.dims)
        positions = torch.zeros([1] * ndim, dtype=dtype, device="cpu")
        for d, (step, length) in enumerate(zip(self.steps, lengths, strict=True)):
            along = torch.arange(length, dtype=dtype, device="cpu") * step
            positions = positions + along.view([-1 if i == d else 1 for i in range(ndim)])
        return positions.permute(self.order).contiguous()

    def place(self, results: Tensor, kept: Box) -> Tensor:
        """Where the results of a box of kept dims live in a contiguous tensor of all results."""
        walked = results.as_strided([d.size for d in self.kept], [d.other for d in self.kept])
        return narrow(walked, kept)


def pieces_of(tensors: Sequence[Tensor], program: Program, dims: Sequence[int], alone: bool) -> Pieces:
    """The pieces of a fold of `dims`. With `alone` the folded dims stay as the caller has them, because which of them one
    stride can walk depends on what else is kept."""
    sources = [_as_bits(t.detach(), e) for t, e in zip(tensors, program.elements, strict=True)]
    problem = canonical(sources, tuple(dims), ordered=alone or not program.algebra.commutative)
    folded = _apart(sources, dims) if alone else problem.folded
    walked = (*problem.kept, *folded)
    views = [_view(t, walked, i) for i, t in enumerate(sources)]
    steps = [0] * len(problem.kept) + [dim.other for dim in folded]
    return Pieces(program, views, problem.kept, folded, steps)


def boxes(dims: Sequence[Dim], lengths: Sequence[int]) -> Iterator[Box]:
    """Boxes that make up a space, in row-major order; the last along a dim may be shorter."""
    cuts = [
        [(start, min(length, dim.size - start)) for start in range(0, dim.size, length)]
        for dim, length in zip(dims, lengths, strict=True)
    ]
    return itertools.product(*cuts)


def narrow(tensor: Tensor, box: Box) -> Tensor:
    """The part of a tensor in a box of its first dims."""
    for d, (start, length) in enumerate(box):
        if length != tensor.shape[d]:
            tensor = tensor.narrow(d, start, length)
    return tensor


def _apart(tensors: Sequence[Tensor], dims: Sequence[int]) -> tuple[Dim, ...]:
    shape = tensors[0].shape
    steps = itertools.accumulate([shape[d] for d in dims[:0:-1]], operator.mul, initial=1)
    apart = [
        Dim(shape[d], tuple(t.stride(d) for t in tensors), step)
        for d, step in zip(reversed(dims), steps, strict=bool(dims))
        if shape[d] != 1
    ]
    return tuple(reversed(apart))


def _view(tensor: Tensor, dims: Sequence[Dim], which: int) -> Tensor:
    """One input as its canonical dims."""
    return tensor.as_strided(
        [d.size for d in dims], [d.strides[which] for d in dims], tensor.storage_offset()
    )


def _as_bits(tensor: Tensor, element: torch.dtype) -> Tensor:
    return tensor.view(torch.int64) if tensor.dtype == element == torch.uint64 else tensor


def _as_elements(part: Tensor, element: torch.dtype) -> Tensor:
    """Read as `element` (rounded to it, where it is narrower), uint64 as its bits."""
    if element == torch.uint64:
        return part if part.dtype == torch.int64 else part.to(element).view(torch.int64)
    return part if part.dtype == element else part.to(element)
