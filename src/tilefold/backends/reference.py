"""The definition of a fold, slow and obvious: the oracle of every test. Combines one element after another, in order."""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence

import torch

from tilefold.algebra import typing
from tilefold.algebra.evaluate import Operand, convert, evaluate_as, held, stored
from tilefold.algebra.program import Program


def fold(tensors: Sequence[torch.Tensor], program: Program, dims: Sequence[int]) -> list[torch.Tensor]:
    """Fold `dims` of tensors of one shape, element after element in row-major order; results have the output dims.

    The state is carried in the program's dtypes: give the program float64 elements for a reference in double precision.
    """
    ndim = tensors[0].ndim
    outer = [d for d in range(ndim) if d not in dims]
    shape = [tensors[0].shape[d] for d in outer]
    length = math.prod(tensors[0].shape[d] for d in dims)
    rows = [t.permute(*outer, *dims).reshape(*shape, length) if ndim else t.reshape(-1) for t in tensors]
    state = _identity(program, shape)
    for position in range(rows[0].shape[-1]):
        state = _after(state, rows, position, program, shape)
    return finish(state, program, shape)


def _identity(program: Program, shape: Sequence[int]) -> list[Operand]:
    return [held(n, d).expand(tuple(shape)) for n, d in zip(program.identity, program.state, strict=True)]


def _after(
    state: Sequence[Operand],
    rows: Sequence[torch.Tensor],
    position: int,
    program: Program,
    shape: Sequence[int],
) -> list[Operand]:
    """The state after the elements at one position of the last dim."""
    elements: list[Operand] = [
        read(as_element(r[..., position], e)) for r, e in zip(rows, program.elements, strict=True)
    ]
    elements += [torch.full(tuple(shape), position, device="cpu")] * program.algebra.index
    lifted = evaluate_as(program.lift, elements, program.state)
    return evaluate_as(program.combine, [*state, *lifted], program.state)


def as_element(tensor: torch.Tensor, element: torch.dtype) -> torch.Tensor:
    """In the dtype that elements are read as, rounded to it where it is narrower."""
    if tensor.dtype == element:
        return tensor
    value = convert(tensor, element)
    assert isinstance(value, torch.Tensor)
    return value.view(element) if element == torch.uint64 else value


def read(tensor: torch.Tensor) -> torch.Tensor:
    """A tensor's elements as the evaluator takes them: uint64 as int64 bits, other narrow dtypes widened."""
    if tensor.dtype == torch.uint64:
        return tensor.view(torch.int64)
    if tensor.dtype in (torch.bool, torch.float32, torch.float64, torch.int64):
        return tensor
    return tensor.to(torch.float32 if tensor.dtype.is_floating_point else torch.int64)


def finish(state: Sequence[Operand], program: Program, shape: Sequence[int]) -> list[torch.Tensor]:
    """Project a final state and convert the outputs to their dtypes."""
    results = []
    values = evaluate_as(program.project, state, program.outputs)
    for value, dtype in zip(values, program.outputs, strict=True):
        if not isinstance(value, torch.Tensor):
            carried = typing.compute_dtype(dtype) if dtype.is_floating_point else stored(dtype)
            value = torch.tensor(value, dtype=carried, device="cpu")
        tensor = value.to(stored(dtype)).expand(shape)
        results.append(tensor.view(torch.uint64) if dtype == torch.uint64 else tensor)
    return results


def summed(x: torch.Tensor, dims: Sequence[int]) -> torch.Tensor:
    """A sum over some dims, one element after another; they have length 1 then."""
    kept = [1 if d in dims else n for d, n in enumerate(x.shape)]
    rows = x.movedim(tuple(dims), tuple(range(len(dims)))).flatten(0, len(dims) - 1) if dims else x[None]
    total = torch.zeros_like(rows[0])
    for one in rows.unbind(0):
        total = total + one
    return total.reshape(kept)


def copied(x: torch.Tensor) -> torch.Tensor:
    """A contiguous tensor with the elements of a view, one after another."""
    result = torch.empty(x.numel(), dtype=x.dtype, device=x.device)
    for number, place in enumerate(itertools.product(*map(range, x.shape))):
        result[number] = x[place]
    return result.view(x.shape)


def scan(
    tensors: Sequence[torch.Tensor],
    init: Sequence[torch.Tensor],
    program: Program,
    dim: int,
    *,
    exclusive: bool,
    reverse: bool,
) -> tuple[list[torch.Tensor], list[torch.Tensor]]:
    """Every prefix along `dim`, element after element, and the state after each row."""
    rows = [t.movedim(dim, -1) for t in tensors]
    shape, length = rows[0].shape[:-1], rows[0].shape[-1]
    state: list[Operand] = [read(f) for f in init] if init else _identity(program, shape)
    prefixes = []
    for position in reversed(range(length)) if reverse else range(length):
        before, state = state, _after(state, rows, position, program, shape)
        prefixes.append(finish(before if exclusive else state, program, shape))
    if reverse:
        prefixes.reverse()
    results = [torch.stack(several, dim).contiguous() for several in zip(*prefixes, strict=True)]
    return results, [_field(s, d, shape) for s, d in zip(state, program.state, strict=True)]


def _field(value: Operand, dtype: torch.dtype, shape: Sequence[int]) -> torch.Tensor:
    if not isinstance(value, torch.Tensor):  # of a monoid whose state reads no element
        value = held(value, dtype)
    field = value.to(stored(dtype)).expand(shape).contiguous()
    return field.view(torch.uint64) if dtype == torch.uint64 else field
