"""Ragged folds on torch's operations: a segment is cut into pieces of powers of two, and pieces of one length fold together.

A segment of 13 elements is pieces of 8, 4 and 1, in this order, whatever the other segments are. Nothing is padded, each
element is read once, and the loops over tiles see rows of one length.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from dataclasses import replace

import torch

from tilefold.algebra import typing
from tilefold.algebra.evaluate import Operand, evaluate_as, held
from tilefold.algebra.expression import trace
from tilefold.algebra.program import Program, is_watched, quick_form
from tilefold.backends import reference
from tilefold.backends.cpu.tiles import bits
from tilefold.runtime.caching import kept_outside_modes

# Not measured:
TOGETHER = 1 << 20  # elements that are gathered at a time
APART = 1 << 15  # elements of a piece that is folded where it lies
Tensor = torch.Tensor
State = list[Tensor]
Rows = Callable[[Sequence[Tensor], Program, int], list[Tensor]]  # folds one dim of tensors, as it was planned


def by_definition(tensors: Sequence[Tensor], offsets: Tensor, program: Program, dim: int) -> list[Tensor]:
    """One segment after another, one element after another."""
    borders = offsets.tolist()
    folded = [
        reference.fold([t.narrow(dim, begin, end - begin) for t in tensors], program, (dim,))
        for begin, end in itertools.pairwise(borders)
    ]
    shape = [n for d, n in enumerate(tensors[0].shape) if d != dim]
    shape.insert(dim, 0)
    nothing = [torch.empty(shape, dtype=d, device="cpu") for d in program.outputs]
    return [torch.stack(some, dim) for some in zip(*folded, strict=True)] if folded else nothing


def fold(
    tensors: Sequence[Tensor], offsets: Tensor, program: Program, dim: int, guarantee: str, rows: Rows
) -> list[Tensor]:
    """The results of checked offsets' segments, by the quick form wherever that holds them.

    Which lengths the pieces have is in the offsets, so `rows` plans each length, and folds pieces of it.
    """
    offsets = offsets.long()
    if not is_watched(program):
        return _folded(tensors, offsets, program, dim, guarantee, rows)
    *results, trusted = _folded(tensors, offsets, quick_form(program), dim, guarantee, rows)
    if trusted.all():
        return results
    wide = _folded(tensors, offsets, program, dim, guarantee, rows)
    return [torch.where(trusted, r, w) for r, w in zip(results, wide, strict=True)]


def _folded(
    tensors: Sequence[Tensor], offsets: Tensor, program: Program, dim: int, guarantee: str, rows: Rows
) -> list[Tensor]:
    begins, lengths = offsets[:-1], offsets.diff()
    count = len(lengths)
    if guarantee != "batch_invariant" and count and lengths[0] > 0 and bool((lengths == lengths[0]).all()):
        length, begin = int(lengths[0]), int(begins[0])
        cut = [_cut(t.narrow(dim, begin, count * length), dim, length) for t in tensors]
        return rows(cut, program, dim + 1)
    shape = list(tensors[0].shape)
    shape[dim] = count
    state: State = [
        held(n, d).expand(shape).clone() for n, d in zip(program.identity, program.state, strict=True)
    ]
    with torch.no_grad():
        for bit in reversed(range(int(lengths.max()).bit_length() if count else 0)):
            which = (lengths >> bit & 1).nonzero().view(-1)
            ahead = lengths[which] >> bit + 1 << bit + 1  # taken by longer pieces of the segment
            together = max(1, TOGETHER >> bit) if 1 << bit < APART else 1
            for at in range(0, len(which), together):
                some, first = which[at : at + together], ahead[at : at + together]
                _take(state, tensors, program, dim, some, begins[some], first, 1 << bit, rows)
    return reference.finish(state, program, shape)


def _take(
    state: State,
    tensors: Sequence[Tensor],
    program: Program,
    dim: int,
    which: Tensor,
    begins: Tensor,
    ahead: Tensor,
    length: int,
    rows: Rows,
) -> None:
    """Combine segments' states with their next pieces, of one length: `ahead` elements behind their beginnings."""
    if len(which) == 1:
        cut = [_cut(t.narrow(dim, int(begins + ahead), length), dim, length) for t in tensors]
    else:
        places = ((begins + ahead)[:, None] + torch.arange(length, device="cpu")).view(-1)
        cut = [_cut(_gathered(t, dim, places), dim, length) for t in tensors]
    if program.algebra.index:
        position = ahead[:, None] + torch.arange(length, device="cpu")
        cut.append(position.view(*position.shape, *[1] * (cut[0].ndim - dim - 2)).expand(cut[0].shape))
    piece = [bits(s) for s in rows(cut, _of_states(program), dim + 1)]
    before = [s.index_select(dim, which) for s in state]
    after: list[Operand] = evaluate_as(program.combine, [*before, *piece], program.state)
    for field, value in zip(state, after, strict=True):
        assert isinstance(value, Tensor)
        field.index_copy_(dim, which, value.to(field.dtype).expand(before[0].shape).contiguous())


@kept_outside_modes(256)
def _of_states(program: Program) -> Program:
    """The program whose results are states, and whose last input holds the positions that its monoid sees."""
    index = program.algebra.index
    algebra = replace(
        program.algebra, inputs=program.algebra.inputs + index, index=False, project=None, quick=None
    )
    project = typing.infer(trace(lambda *state: tuple(state), len(program.state)), program.state)
    elements = (*program.elements, torch.int64) if index else program.elements
    return replace(
        program,
        algebra=algebra,
        elements=elements,
        outputs=program.state,
        project=project,
        combine_later=program.combine,
    )


_CODES = {1: torch.int8, 2: torch.int16, 4: torch.int32, 8: torch.int64}


def _gathered(t: Tensor, dim: int, places: Tensor) -> Tensor:
    """Places of a dim, as codes: torch selects no wide unsigned numbers."""
    return t.view(_CODES[t.itemsize]).index_select(dim, places).view(t.dtype)


def _cut(t: Tensor, dim: int, length: int) -> Tensor:
    """One dim as two, rows of a length: a view."""
    count, step = t.shape[dim] // length, t.stride(dim)
    sizes = (*t.shape[:dim], count, length, *t.shape[dim + 1 :])
    return t.as_strided(sizes, (*t.stride()[:dim], step * length, step, *t.stride()[dim + 1 :]))
