"""A fold's inputs, cut into tiles of neighbouring elements: where they lie, and in which order they are read."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Sequence

import torch

from tilefold.algebra.evaluate import convert, stored
from tilefold.algebra.program import Program
from tilefold.algebra.typing import element_dtype
from tilefold.backends.cpu.elementwise import Workspace
from tilefold.planner.problem.canonical import Dim, Problem
from tilefold.planner.stages.cpu import Geometry, cut_dim, in_parts

Tensor = torch.Tensor
Tile = tuple[tuple[int, int], ...]  # (start, length) of each dim


def tiles_of(shape: Sequence[int], most: int) -> itertools.product[Tile]:
    """Tiles of at most so many neighbours in row-major order."""
    lengths, left = [1] * len(shape), most
    for d in reversed(range(len(shape))):
        lengths[d] = max(1, min(shape[d], left))
        left //= lengths[d]
    cuts = [
        [(i, min(n, size - i)) for i in range(0, size, n)] for n, size in zip(lengths, shape, strict=True)
    ]
    return itertools.product(*cuts)


class Inputs:
    """The inputs of one problem as its dims, output dims first, and the tiles that they are read in.

    A tile is a range of positions along each dim, laid out in `order`: a tensor of its lengths permuted by that. Inputs are
    read where they lie; a tile is gathered into a buffer only where its dtype, or a nearest stride other than 1, asks for it.
    Positions of elements begin at `first`.
    """

    def __init__(self, program: Program, views: Sequence[Tensor], problem: Problem, first: int = 0) -> None:
        self.program, self.views, self.problem, self.first = program, list(views), problem, first
        self.dims, self.outputs, self.reduced = problem.dims, problem.output_dims, problem.reduced_dims
        self.steps = tuple(d.position for d in self.dims)
        self.order = Geometry(problem).order

    def in_parts(self, parts: int) -> tuple[Inputs, Inputs | None]:
        """The inputs of a problem cut by `planner.cpu.in_parts`."""
        commutative = self.program.algebra.commutative
        main, rest = in_parts(self.problem, parts, commutative)
        which = cut_dim(self.problem, commutative)
        dim, place = self.reduced[which], len(self.outputs) + which
        length = dim.size // parts
        whole = length * parts
        views = [
            v.narrow(place, 0, whole).unfold(place, length, length).movedim((place, -1), (0, place + 1))
            for v in self.views
        ]
        part = Inputs(self.program, views, main, self.first)
        if rest is None:
            return part, None
        left = [v.narrow(place, whole, dim.size - whole) for v in self.views]
        first = self.first + whole * dim.position
        return part, Inputs(self.program, left, rest, first)

    def laid_out(self, lengths: Sequence[int]) -> list[int]:
        """A tile's lengths as it is laid out."""
        return [lengths[d] for d in self.order]

    def by_rows(self, laid_out: Tensor) -> Tensor:
        """[reduced, output], each in their own order, of a tensor laid out as memory is."""
        places = {d: i for i, d in enumerate(self.order)}
        reduced = range(len(self.outputs), len(self.dims))
        moved = laid_out.permute([places[d] for d in (*reduced, *range(len(self.outputs)))])
        rows = math.prod(moved.shape[: len(self.reduced)])
        return moved.reshape(rows, moved.numel() // rows)

    def elements(self, tile: Tile, workspace: Workspace) -> list[Tensor]:
        """What lift takes, laid out as memory is: one tensor an input, and the positions."""
        elements = [self._gather(i, tile, workspace) for i in range(len(self.views))]
        if self.program.algebra.index:
            elements.append(self._positions(tile, workspace).expand(elements[0].shape))
        return elements

    def _gather(self, which: int, tile: Tile, workspace: Workspace) -> Tensor:
        element = self.program.elements[which]
        part, wide = narrow(self.views[which], tile).permute(self.order), stored(element_dtype(element))
        in_place = part.dtype == wide == stored(element) and not part.is_neg()
        if in_place and (not part.ndim or part.stride(-1) in (0, 1)):
            return part
        key = ("gather", which, part.shape)
        if key not in workspace:
            workspace[key] = [torch.empty(part.shape, dtype=wide, device="cpu")]
        return workspace[key][0].copy_(as_elements(part, element))

    def _positions(self, tile: Tile, workspace: Workspace) -> Tensor:
        """Row-major positions along the reduced dims, of length 1 along dims without a step."""
        lengths = [length if step else 1 for (_, length), step in zip(tile, self.steps, strict=True)]
        key = ("positions", tuple(lengths))
        if key not in workspace:
            from_start = self._positions_from_start(lengths)
            workspace[key] = [from_start, torch.empty_like(from_start)]
        from_start, moved = workspace[key]
        start = self.first + sum(start * step for (start, _), step in zip(tile, self.steps, strict=True))
        return torch.add(from_start, start, out=moved)

    def _positions_from_start(self, lengths: Sequence[int]) -> Tensor:
        dtype, ndim = self.program.lift.input_dtypes[-1], len(self.dims)
        positions = torch.zeros([1] * ndim, dtype=dtype, device="cpu")
        for d, (step, length) in enumerate(zip(self.steps, lengths, strict=True)):
            along = torch.arange(length, dtype=dtype, device="cpu") * step
            positions = positions + along.view([-1 if i == d else 1 for i in range(ndim)])
        return positions.permute(self.order).contiguous()

    def place(self, results: Tensor, output: Tile) -> Tensor:
        """Where the results of a tile of output dims live in a contiguous tensor of all results."""
        strided = results.as_strided([d.size for d in self.outputs], [d.output for d in self.outputs])
        return narrow(strided, output)


def inputs_of(tensors: Sequence[Tensor], program: Program, problem: Problem) -> Inputs:
    """The inputs of a fold as the dims of its problem."""
    sources = [bits(t.detach(), e) for t, e in zip(tensors, program.elements, strict=True)]
    return Inputs(program, [_view(t, problem.dims, i) for i, t in enumerate(sources)], problem)


def tiles_in(dims: Sequence[Dim], lengths: Sequence[int]) -> Iterator[Tile]:
    """Tiles that make up a space, in row-major order; the last along a dim may be shorter."""
    cuts = [
        [(start, min(length, dim.size - start)) for start in range(0, dim.size, length)]
        for dim, length in zip(dims, lengths, strict=True)
    ]
    return itertools.product(*cuts)


def narrow(tensor: Tensor, tile: Tile) -> Tensor:
    """The part of a tensor in a tile of its first dims."""
    for d, (start, length) in enumerate(tile):
        if length != tensor.shape[d]:
            tensor = tensor.narrow(d, start, length)
    return tensor


def _view(tensor: Tensor, dims: Sequence[Dim], which: int) -> Tensor:
    """One input as its canonical dims."""
    return tensor.as_strided(
        [d.size for d in dims], [d.strides[which] for d in dims], tensor.storage_offset()
    )


def bits(tensor: Tensor, element: torch.dtype = torch.uint64) -> Tensor:
    """A tensor of uint64 that is read as such, as its bits."""
    return tensor.view(torch.int64) if tensor.dtype == element == torch.uint64 else tensor


def as_elements(part: Tensor, element: torch.dtype) -> Tensor:
    """Read as `element` (rounded to it, where it is narrower), uint64 as its bits."""
    if part.dtype == stored(element):
        return part
    value = convert(part, element)
    assert isinstance(value, Tensor)
    return value
