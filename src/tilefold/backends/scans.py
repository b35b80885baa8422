"""Any scan on torch operations: tiles of many lanes that each hold neighbours, in a fixed association. The CPU's backend.

`scan_tapes` has what is computed of a tile, bound to its buffers. Here are the tiles' places in the inputs and results, and
who takes which. `planner.cpu_scans` says how large a tile is.
"""

from __future__ import annotations

import collections
import math
from collections.abc import Iterator, Sequence
from typing import Any

import torch

from tilefold.algebra.evaluate import convert, stored
from tilefold.algebra.program import Program
from tilefold.backends import elementwise, workers
from tilefold.backends.scan_tapes import Tape
from tilefold.modes import is_plain
from tilefold.planner.stages.cpu import CpuTile

Tensor = torch.Tensor
State = list[Tensor]

# Walks that no thread uses now, of the latest kinds of scans: their buffers are the next such scan's.
_walks: collections.OrderedDict[Any, list[_Walk]] = collections.OrderedDict()
MOST = 8  # kinds
OF_A_KIND = 2
KEPT = 1 << 16  # elements of such a scan, at most: 2 MB of buffers or so


def scan(
    tensors: Sequence[Tensor],
    init: Sequence[Tensor],
    program: Program,
    dim: int,
    tile: CpuTile,
    *,
    exclusive: bool,
    reverse: bool,
    alone: bool,
    state: bool,
) -> list[Tensor]:
    """The projected prefixes along `dim` of tensors of one shape, contiguous, then with `state` each row's last state.

    `init` has a state's fields in the rows' shape, or nothing. `alone`: an element's bits do not depend on its place among
    rows.
    """
    shape = tensors[0].shape
    outer, length, inner = math.prod(shape[:dim]), shape[dim], math.prod(shape[dim + 1 :])
    rows = (outer,) if inner == 1 else (outer, inner)
    whole = (outer, length) if inner == 1 else (outer, length, inner)
    with torch.no_grad():
        # The dims before and after `dim` as one each, or none: a view wherever strides allow it.
        inputs = [
            _as_bits(t.detach(), e).reshape(whole) for t, e in zip(tensors, program.elements, strict=True)
        ]
        first = [_as_bits(f.detach(), d).reshape(rows) for f, d in zip(init, program.state, strict=False)]
        results = [torch.empty(whole, dtype=stored(d), device="cpu") for d in program.outputs]
        last = [torch.empty(rows, dtype=stored(d), device="cpu") for d in program.state] if state else []
        kind = (program, tile, alone, exclusive, reverse, length)
        of_rows = (kind, outer, inner)

        def work(some: Sequence[Rows]) -> None:
            is_kept = outer * length * inner <= KEPT and is_plain()
            walk = (is_kept and _taken(of_rows)) or _Walk(*kind)
            for at in some:
                left = walk.rows(
                    [_at(x, at) for x in inputs], [f[at] for f in first], [_at(r, at) for r in results]
                )
                for field, part in zip(last, left, strict=False):
                    field[at].copy_(part)
            if is_kept:
                _give_back(of_rows, walk)

        blocks = list(_blocks(outer, inner, tile.rows))
        if tile.threads == 1:
            work(blocks)
        else:
            count = math.ceil(len(blocks) / tile.threads)
            shares = [blocks[i : i + count] for i in range(0, len(blocks), count)]
            workers.each(work, shares, tile.threads, even_one=True)
    kept = [f.view((*shape[:dim], *shape[dim + 1 :])) for f in last]
    return _as_declared([r.view(shape) for r in results], program.outputs) + _as_declared(kept, program.state)


def _taken(kind: Any) -> _Walk | None:
    """A walk of this kind that no other thread has, if there is one."""
    try:
        return _walks[kind].pop()
    except (KeyError, IndexError):
        return None


def _give_back(kind: Any, walk: _Walk) -> None:
    free = _walks.setdefault(kind, [])
    if len(free) < OF_A_KIND:
        free.append(walk)
    while len(_walks) > MOST:
        _walks.popitem(last=False)


def _as_bits(tensor: Tensor, dtype: torch.dtype) -> Tensor:
    return tensor.view(torch.int64) if tensor.dtype == dtype == torch.uint64 else tensor


def _as_declared(tensors: Sequence[Tensor], dtypes: Sequence[torch.dtype]) -> list[Tensor]:
    pairs = zip(tensors, dtypes, strict=False)
    return [t.view(torch.uint64) if d == torch.uint64 else t for t, d in pairs]


_BITS = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}


def _backwards(tile: Tensor) -> Tensor:
    """A tile from its end to its beginning, as bits: torch turns around few dtypes."""
    return tile.view(_BITS[tile.itemsize]).flip(1).view(tile.dtype)


Rows = tuple[slice, ...]


def _blocks(outer: int, inner: int, rows: int) -> Iterator[Rows]:
    """Some rows at a time: neighbours along the inner dim, several of the outer one where that is short."""
    along = min(inner, rows)
    across = max(1, rows // max(1, inner))
    for o in range(0, outer, across):
        these = slice(o, min(outer, o + across))
        if inner == 1:
            yield (these,)
        else:
            yield from ((these, slice(i, min(inner, i + along))) for i in range(0, inner, along))


def _at(tensor: Tensor, rows: Rows) -> Tensor:
    return tensor[rows[0]] if len(rows) == 1 else tensor[rows[0], :, rows[1]]


class _Walk:
    """Scans rows tile by tile, in buffers that it keeps."""

    def __init__(
        self, program: Program, tile: CpuTile, alone: bool, exclusive: bool, reverse: bool, length: int
    ) -> None:
        self.program, self.tile, self.length = program, tile, length
        self.exclusive, self.reverse = exclusive, reverse
        self.kernels = elementwise.kernels(program, alone, False)
        self.tapes: dict[Any, Tape] = {}

    def rows(self, inputs: Sequence[Tensor], init: State, targets: Sequence[Tensor]) -> State:
        """Scan [outer, length] or [outer, length, inner] inputs into targets of that shape; the last state of each row."""
        carry: State = init
        outer, inner = inputs[0].shape[0], math.prod(inputs[0].shape[2:])
        by_rows = inputs[0].ndim == 2
        size = self.tile.steps * self.tile.lanes
        for at in range(0, self.length, size):
            count = min(size, self.length - at)
            lanes = math.ceil(count / self.tile.steps)
            steps = count if lanes == 1 else self.tile.steps
            key = (steps, lanes, outer, inner, bool(carry), by_rows)
            if key not in self.tapes:
                self.tapes[key] = Tape(self.program, self.kernels, *key, exclusive=self.exclusive)
            carry = self._turn(self.tapes[key], at, count, inputs, carry, targets)
        return carry

    def _turn(
        self,
        tape: Tape,
        at: int,
        count: int,
        inputs: Sequence[Tensor],
        carry: State,
        targets: Sequence[Tensor],
    ) -> State:
        """Scan one tile, `count` positions of each row from `at`; the state after it."""
        start = self.length - at - count if self.reverse else at
        if count < self.length:
            inputs = [x[:, start : start + count] for x in inputs]
            targets = [t[:, start : start + count] for t in targets]
        for which, (x, held) in enumerate(zip(inputs, tape.elements, strict=True)):
            self._gather(which, x, held, tape)
        if tape.positions is not None:
            places = torch.arange(tape.size, dtype=tape.positions.dtype, device="cpu")
            places = start + count - 1 - places if self.reverse else start + places
            tape.positions.copy_(places.view(tape.lanes, tape.steps).t())
        for held, given in zip(tape.carry, carry, strict=True):
            held.copy_(given)
        tape.run()
        last = tape.state_at(count - 1)
        for which, (target, values) in enumerate(zip(targets, tape.results, strict=True)):
            self._place(which, target, values, tape)
        return last

    def _gather(self, which: int, part: Tensor, held: Tensor, tape: Tape) -> None:
        """[outer, count] or [outer, count, inner] into a tile, in the scan's order; the last element fills the last lane."""
        count, element = part.shape[1], self.program.elements[which]
        as_it_is = not self.reverse and part.dtype == held.dtype == stored(element)
        if tape.by_rows:
            rows = part
            if not as_it_is or count < tape.size or not rows.is_contiguous():
                rows = self._fill(_read(rows, element), tape.staged("in", which, held.dtype))
            # Torch turns a whole matrix by blocks, into one of the same dtype.
            tape.turned(held).copy_(rows.view(-1, tape.steps).t())
            return
        part = _read(part, element)
        part = _backwards(part) if self.reverse else part
        if count < tape.size:
            part = torch.cat((part, part[:, -1:].expand(-1, tape.size - count, -1)), 1)
        laned = part.unflatten(1, (tape.lanes, tape.steps))  # type: ignore[no-untyped-call]  # torch's own
        held.copy_(laned.permute(2, 1, 0, 3))

    def _fill(self, rows: Tensor, staged: Tensor) -> Tensor:
        count = rows.shape[1]
        staged[:, :count].copy_(_backwards(rows) if self.reverse else rows)
        if count < staged.shape[1]:
            staged[:, count:].copy_(staged[:, count - 1 : count])
        return staged

    def _place(self, which: int, target: Tensor, values: Tensor, tape: Tape) -> None:
        """A tile's results into [outer, count] or [outer, count, inner]."""
        count = target.shape[1]
        if not tape.by_rows:
            made = values.permute(2, 1, 0, 3).reshape(tape.outer, tape.size, tape.inner)[:, :count]
            target.copy_(_backwards(made) if self.reverse else made)
            return
        rows, turned = target, tape.turned(values).t()
        if not self.reverse and rows.dtype == values.dtype and count == tape.size and rows.is_contiguous():
            rows.view(-1, tape.steps).copy_(turned)
            return
        staged = tape.staged("out", which, values.dtype)
        staged.view(-1, tape.steps).copy_(turned)
        rows.copy_(_backwards(staged[:, :count]) if self.reverse else staged[:, :count])


def _read(part: Tensor, element: torch.dtype) -> Tensor:
    """Elements in the dtype that they are read as."""
    if part.dtype == stored(element):
        return part
    value = convert(part, element)
    assert isinstance(value, Tensor)
    return value
