"""Rows read chunk by chunk: each chunk's own state, the state after it, and the boundary tile with a wrong fill.

All is computed with the monoid's definition (`backends.reference` and `algebra.evaluate`), for all rows at once: a state is a
list of tensors [rows, places], one a field.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
import torch.nn.functional as F

from tilefold.algebra.dtypes import is_float
from tilefold.algebra.evaluate import Operand, convert, evaluate_as, stored
from tilefold.algebra.program import Program, as_written
from tilefold.backends import reference

State = list[torch.Tensor]
MOST_CHUNKS = 256  # as many as one can step through; smaller chunks are not offered


@dataclass(frozen=True)
class Streamed:
    """Rows streamed in chunks of one size.

    own: the state of each chunk alone, [rows, chunks]; after: the running state, [rows, chunks + 1], from the identity on;
    results: the projection of `after`, in the results' dtypes; own_results: of `own`.
    """

    own: State
    after: State
    results: State
    own_results: State


@dataclass(frozen=True)
class Boundary:
    """The last chunk where absent elements were read as 0: its state, and what follows, each [rows, 1]."""

    own: State
    after: State
    results: State
    own_results: State


def chunk_sizes(length: int) -> list[int]:
    """The powers of two that cut a row into 1 to `MOST_CHUNKS` chunks.

    >>> chunk_sizes(57)
    [1, 2, 4, 8, 16, 32, 64]
    """
    largest = (length - 1).bit_length()
    return [1 << k for k in range(largest + 1) if -(-length // (1 << k)) <= MOST_CHUNKS]


def streamed(program: Program, tensors: Sequence[torch.Tensor], size: int) -> Streamed:
    """Rows [rows, length], one tensor an input, in chunks of `size`. Absent elements of the last one are identities."""
    own = fold_chunks(program, lifted(program, tensors), size)
    after = prefixes(program, own)
    return Streamed(own, after, projected(program, after), projected(program, own))


def boundary(
    program: Program, tensors: Sequence[torch.Tensor], size: int, right: Streamed
) -> Boundary | None:
    """The last chunk filled with zeros, which are lifted like elements; None where the last chunk is full."""
    length = tensors[0].shape[-1]
    absent = -length % size
    if not absent:
        return None
    begin = length - (size - absent)
    filled = [F.pad(bits(t[:, begin:]), (0, absent)).view(t.dtype) for t in tensors]
    own = fold_chunks(program, lifted(program, filled, begin), size)
    after = combined(program, [field[:, -2:-1] for field in right.after], own)
    return Boundary(own, after, projected(program, after), projected(program, own))


def prefixes(program: Program, states: State) -> State:
    """Every prefix of states [rows, n], one after another: [rows, n + 1], the identity first."""
    rows, count = states[0].shape
    found = [identity(program, (rows, 1))]
    for place in range(count):
        found.append(combined(program, found[-1], [field[:, place : place + 1] for field in states]))
    return [torch.cat(parts, dim=1) for parts in zip(*found, strict=True)]


def fold_chunks(program: Program, states: State, size: int) -> State:
    """The states of every `size` (a power of two) neighbours as one, by a tree: [rows, ceil(n / size)]."""
    rows, count = states[0].shape
    none = identity(program, (rows, -count % size))
    parts = [torch.cat(pair, dim=1) for pair in zip(states, none, strict=True)]
    while size > 1:
        parts = combined(program, [field[:, ::2] for field in parts], [field[:, 1::2] for field in parts])
        size //= 2
    return parts


def identity(program: Program, shape: Sequence[int]) -> State:
    """The state of nothing."""
    numbers: list[Operand] = [
        convert(number, dtype) for number, dtype in zip(program.identity, program.state, strict=True)
    ]
    return _tensors(numbers, program.state, shape)


def lifted(program: Program, tensors: Sequence[torch.Tensor], begin: int = 0) -> State:
    """The state of each element, whose positions count from `begin`."""
    shape = tensors[0].shape
    elements: list[Operand] = [reference.read(t) for t in tensors]
    elements += [torch.arange(begin, begin + shape[-1]).expand(shape)] * program.algebra.index
    return _tensors(evaluate_as(program.lift, elements, program.state), program.state, shape)


def combined(program: Program, left: State, right: State) -> State:
    """The states of two neighbours each, as one."""
    made = evaluate_as(program.combine, [*left, *right], program.state)
    return _tensors(made, program.state, left[0].shape)


def projected(program: Program, states: State) -> State:
    """What `project` says of every state."""
    return reference.finish(states, program, states[0].shape)


def _tensors(values: Sequence[Operand], dtypes: Sequence[torch.dtype], shape: Sequence[int]) -> State:
    """Operands as tensors of one shape; numbers among them are the same everywhere."""
    return [
        torch.as_tensor(value, dtype=stored(dtype), device="cpu").expand(tuple(shape))
        for value, dtype in zip(values, dtypes, strict=True)
    ]


def true_fold(program: Program, tensors: Sequence[torch.Tensor]) -> tuple[Program, State, State]:
    """The program in double precision, the state of whole rows in it, [rows, 1], and its projection.

    Whole numbers and bools are folded as they are.
    """
    wide = tuple(torch.float64 if is_float(e) else e for e in program.elements)
    exact = as_written(program.algebra, wide)
    elements = [t.to(w) for t, w in zip(tensors, wide, strict=True)]
    running = identity(exact, (elements[0].shape[0], 1))
    states = lifted(exact, elements)
    for place in range(elements[0].shape[1]):
        running = combined(exact, running, [field[:, place : place + 1] for field in states])
    return exact, running, projected(exact, running)


def bits(tensor: torch.Tensor) -> torch.Tensor:
    """In a dtype that torch pads and indexes, which it does not in all. Zero is the same bits in each."""
    whole = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}
    return tensor.contiguous().view(whole[tensor.dtype.itemsize])
