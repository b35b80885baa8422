"""Any monoid on torch operations: the lanes algorithm in cache-sized pieces. The CPU's backend.

A tensor is cut into pieces small enough for the cache, along the dim with the longest stride, so that memory is walked in
order. Inside a piece every element is a lane: lanes meet in a tree of halves (of neighbours where order matters), all at
once with `absorb`. No input is copied as a whole; a piece is converted when its dtype asks for it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch

from tilefold.algebra.evaluate import Operand, evaluate
from tilefold.algebra.program import Program
from tilefold.backends.reference import finish, read, to_state
from tilefold.planner.plan import Plan

PIECE = 1 << 18  # elements: 1 MiB of float32, and enough for torch to share out among threads
Tensor = torch.Tensor
State = list[Tensor]


@dataclass(frozen=True)
class _Piece:
    """Part of a fold: the inputs cut to [kept..., folded...], and where each folded dim starts."""

    tensors: tuple[Tensor, ...]
    kept: int
    starts: tuple[int, ...]
    steps: tuple[int, ...]

    @property
    def shape(self) -> torch.Size:
        return self.tensors[0].shape

    def narrow(self, dim: int, start: int, size: int) -> _Piece:
        cut = tuple(t.narrow(dim, start, size) for t in self.tensors)
        starts = list(self.starts)
        if dim >= self.kept:
            starts[dim - self.kept] += start
        return replace(self, tensors=cut, starts=tuple(starts))


def fold(
    tensors: Sequence[Tensor], program: Program, dims: Sequence[int], guarantee: str
) -> tuple[list[Tensor], Plan]:
    """Fold `dims` of tensors of one shape. With "batch_invariant" a result's tree depends on its own elements alone."""
    plan = Plan("lanes", (), guarantee=guarantee, reason=f"torch operations on pieces of {PIECE} elements")
    shape = tensors[0].shape
    kept = [d for d in range(len(shape)) if d not in dims]
    results = [shape[d] for d in kept]
    if tensors[0].numel() == 0:
        state: Sequence[Operand] = [
            _full(results, n, d) for n, d in zip(program.identity, program.state, strict=True)
        ]
        return finish(state, program, results), plan
    steps, step = [], 1
    for d in reversed(dims):
        steps.append(step)
        step *= shape[d]
    piece = _Piece(
        tuple(t.permute(*kept, *dims) if t.ndim else t for t in tensors),
        len(kept),
        (0,) * len(dims),
        tuple(steps[::-1]),
    )
    alone = guarantee == "batch_invariant"
    return finish(_fold_piece(piece, program, alone), program, results), plan


def _full(shape: Sequence[int], number: bool | int | float, dtype: torch.dtype) -> Tensor:
    stored = torch.int64 if dtype == torch.uint64 else dtype
    if dtype == torch.uint64:
        number = int(number) - (1 << 64) if int(number) >= 1 << 63 else number
    return torch.full(list(shape), number, dtype=stored)


def _fold_piece(piece: _Piece, program: Program, alone: bool) -> State:
    """States of the piece's kept shape."""
    cut = (
        _longest_cut(piece, program.algebra.commutative, alone) if piece.tensors[0].numel() > PIECE else None
    )
    if cut is None:
        return _fold_whole(piece, program, alone)
    size = piece.shape[cut]
    if cut < piece.kept:
        rest = max(1, piece.tensors[0].numel() // size)
        width = max(1, PIECE // rest)
        parts = [
            _fold_piece(piece.narrow(cut, start, min(width, size - start)), program, alone)
            for start in range(0, size, width)
        ]
        return [torch.cat(fields, cut) for fields in zip(*parts, strict=True)]
    half = _below(size)
    left = _fold_piece(piece.narrow(cut, 0, half), program, alone)
    right = _fold_piece(piece.narrow(cut, half, size - half), program, alone)
    return _combine(left, right, program)


def _below(size: int) -> int:
    """The greatest power of two below `size`."""
    return 1 << ((size - 1).bit_length() - 1)


def _longest_cut(piece: _Piece, commutative: bool, alone: bool) -> int | None:
    """The dim to cut: the longest stride among those that may be cut; None where nothing can."""
    kept = [d for d in range(piece.kept) if piece.shape[d] > 1]
    folded = [d for d in range(piece.kept, len(piece.shape)) if piece.shape[d] > 1]
    if not commutative:
        folded = folded[:1]  # only the first keeps the order
    if alone and kept:
        folded = []
    return max(kept + folded, key=lambda d: (max(t.stride(d) for t in piece.tensors), -d), default=None)


def _elements(piece: _Piece, program: Program) -> list[Operand]:
    """What lift takes: the inputs as they are read, and positions."""
    elements: list[Operand] = []
    for tensor, dtype in zip(piece.tensors, program.elements, strict=True):
        elements.append(read(tensor if tensor.dtype == dtype else tensor.to(dtype)))
    if program.algebra.index:
        ndim, position = len(piece.shape), torch.zeros((1,) * len(piece.shape), dtype=torch.int64)
        for d, (start, step) in enumerate(zip(piece.starts, piece.steps, strict=True)):
            along = torch.arange(start, start + piece.shape[piece.kept + d]) * step
            position = position + along.view([-1 if i == piece.kept + d else 1 for i in range(ndim)])
        elements.append(position)
    return elements


def _fold_whole(piece: _Piece, program: Program, alone: bool) -> State:
    """One piece at once: absorbed as a block where the monoid can, else lifted and combined in a tree."""
    elements, folded = _elements(piece, program), tuple(range(piece.kept, len(piece.shape)))
    kept_shape = piece.shape[: piece.kept]
    if program.absorb is not None and folded and not alone:
        empty = [
            _full((1,) * len(piece.shape), n, d) for n, d in zip(program.identity, program.state, strict=True)
        ]
        absorbed = to_state(evaluate(program.absorb, [*empty, *elements], folded), program)
        shape = [*kept_shape, *(1,) * len(folded)]
        return [
            _spread(s, shape, d).reshape(kept_shape) for s, d in zip(absorbed, program.state, strict=True)
        ]
    lifted = to_state(evaluate(program.lift, elements), program)
    state = [
        _spread(s, piece.shape, d).reshape([*kept_shape, -1])
        for s, d in zip(lifted, program.state, strict=True)
    ]
    return _tree(state, program)


def _spread(value: Operand, shape: Sequence[int], dtype: torch.dtype) -> Tensor:
    """A state field in full: constants and values that depend on less than all dims are expanded."""
    return (
        value.expand(tuple(shape))
        if isinstance(value, Tensor)
        else _full((), value, dtype).expand(tuple(shape))
    )


def _tree(state: State, program: Program) -> State:
    """Combine along the last dim until one state is left: halves, or neighbours in order."""
    late: list[State] = []
    while state[0].shape[-1] > 1:
        length = state[0].shape[-1]
        half = length // 2
        if length % 2:
            late.append([s[..., -1:] for s in state])
        if program.algebra.commutative:
            pair = [s[..., :half] for s in state], [s[..., half : 2 * half] for s in state]
        else:
            pair = [s[..., 0 : 2 * half : 2] for s in state], [s[..., 1 : 2 * half : 2] for s in state]
        state = _combine(*pair, program)
    for odd in reversed(late):
        state = _combine(state, odd, program)
    return [s[..., 0] for s in state]


def _combine(left: State, right: State, program: Program) -> State:
    combined = to_state(evaluate(program.combine, [*left, *right]), program)
    return [_spread(s, left[0].shape, d) for s, d in zip(combined, program.state, strict=True)]
