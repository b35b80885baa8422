"""Any scan on torch operations: tiles of many lanes that each hold neighbours, in a fixed association. The CPU's backend.

`scan_tapes` has the computation of a tile, bound to its buffers. Here are the tiles' places in the inputs and results, and
who takes which. `planner.cpu_scans` says how large a tile is.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch

from tilefold.algebra.evaluate import stored
from tilefold.algebra.program import Program
from tilefold.backends.cpu import elementwise, workers
from tilefold.backends.cpu.scan_tapes import Memory, Tape, in_whole_levels
from tilefold.backends.cpu.tiles import as_elements, bits
from tilefold.planner.stages.cpu import CpuTile
from tilefold.runtime.modes import is_plain

Tensor = torch.Tensor
State = list[Tensor]

# Walks that no thread uses now, of the latest kinds of scans: their buffers are the next such scan's (limits not measured).
_walks: dict[_Kind, list[_Walk]] = {}
MOST = 8  # kinds
OF_A_KIND = 2
# Elements of a scan with buffers of 2 MB or so. Of larger ones those of the latest kind are kept, up to so many bytes
# (not measured).
SMALL = 1 << 16
MOST_BYTES = 1 << 25


class Settled:
    """Scans along one dim of tensors of one shape and dtype each, on a given tile.

    `alone`: an element's bits do not depend on its place among rows.
    """

    def __init__(
        self,
        program: Program,
        shape: Sequence[int],
        dtypes: Sequence[torch.dtype],
        dim: int,
        tile: CpuTile,
        *,
        exclusive: bool,
        reverse: bool,
        alone: bool,
        state: bool,
    ) -> None:
        self.kind = kind = _Kind(program, tile, tuple(shape), dim, alone, exclusive, reverse)
        self.state = state
        # The dims before and after `dim` as one each, or none: a view wherever strides allow it.
        self.rows = (kind.outer,) if kind.inner == 1 else (kind.outer, kind.inner)
        self.whole = (kind.outer, kind.length, *self.rows[1:])
        self.blocks = list(_blocks(kind.outer, kind.inner, tile.rows))
        as_they_are = all(d == stored(e) for d, e in zip(dtypes, program.elements, strict=True)) and all(
            stored(d) == d for d in program.outputs
        )
        self.is_one_tile = (
            as_they_are
            and not state
            and tile.threads == tile.lanes == len(self.blocks) == 1
            and tile.steps >= kind.length
        )

    def __call__(self, tensors: Sequence[Tensor], init: Sequence[Tensor] = ()) -> list[Tensor]:
        """The projected prefixes, contiguous, then with `state` each row's last state.

        `init` has a state's fields in the rows' shape, or nothing.
        """
        if self.is_one_tile and not init and is_plain():
            walk = _taken(self.kind) or _Walk(self.kind)
            with torch.no_grad():
                made = walk.at_once(tensors)
            _give_back(self.kind, walk)
            return made
        return self._by_tiles(tensors, init)

    def _by_tiles(self, tensors: Sequence[Tensor], init: Sequence[Tensor]) -> list[Tensor]:
        kind, whole, rows = self.kind, self.whole, self.rows
        program = kind.program
        with torch.no_grad():
            inputs = [
                bits(t.detach(), e).reshape(whole) for t, e in zip(tensors, program.elements, strict=True)
            ]
            first = [bits(f.detach(), d).reshape(rows) for f, d in zip(init, program.state, strict=False)]
            results = [torch.empty(whole, dtype=stored(d), device="cpu") for d in program.outputs]
            fields = program.state if self.state else ()
            last = [torch.empty(rows, dtype=stored(d), device="cpu") for d in fields]
            is_kept = is_plain()

            def work(some: Sequence[Rows]) -> None:
                walk = (is_kept and _taken(kind)) or _Walk(kind)
                for at in some:
                    left = walk.rows(
                        [_at(x, at) for x in inputs], [f[at] for f in first], [_at(r, at) for r in results]
                    )
                    for field, part in zip(last, left, strict=False):
                        field[at].copy_(part)
                if is_kept:
                    _give_back(kind, walk)

            self._shared_out(work)
        after = [f.view(kind.rest) for f in last]
        return _as_declared([r.view(kind.shape) for r in results], program.outputs) + _as_declared(
            after, program.state
        )

    def _shared_out(self, work: Callable[[Sequence[Rows]], None]) -> None:
        blocks, threads = self.blocks, self.kind.tile.threads
        if threads == 1:
            work(blocks)
        else:
            count = math.ceil(len(blocks) / threads)
            shares = [blocks[i : i + count] for i in range(0, len(blocks), count)]
            workers.each(work, shares, threads, even_one=True)


class _Kind:
    """The key of a walk's buffers, with a hash computed once: the hash of a program takes longer than a scan."""

    def __init__(
        self,
        program: Program,
        tile: CpuTile,
        shape: tuple[int, ...],
        dim: int,
        alone: bool,
        exclusive: bool,
        reverse: bool,
    ) -> None:
        self.program, self.tile, self.shape, self.dim = program, tile, shape, dim
        self.alone, self.exclusive, self.reverse = alone, exclusive, reverse
        self.outer, self.length, self.inner = math.prod(shape[:dim]), shape[dim], math.prod(shape[dim + 1 :])
        self._parts = (program, tile, shape, dim, alone, exclusive, reverse)
        self._hash = hash(self._parts)
        self.rest = (*shape[:dim], *shape[dim + 1 :])
        self.is_small = math.prod(shape) <= SMALL

    def __hash__(self) -> int:
        return self._hash

    def __eq__(self, other: object) -> bool:
        return self is other or (isinstance(other, _Kind) and self._parts == other._parts)


def _taken(kind: _Kind) -> _Walk | None:
    """A walk of this kind that no other thread has, if there is one."""
    try:
        return _walks[kind].pop()
    except (KeyError, IndexError):
        return None


def _give_back(kind: _Kind, walk: _Walk) -> None:
    if not kind.is_small:
        for other in list(_walks):
            if not other.is_small and other != kind:
                _walks.pop(other, None)
        if walk.memory.bytes > MOST_BYTES:
            return
    free = _walks.setdefault(kind, [])
    if len(free) < OF_A_KIND:
        free.append(walk)
    for oldest in list(_walks)[:-MOST]:  # other threads change it meanwhile
        _walks.pop(oldest, None)


def _as_declared(tensors: Sequence[Tensor], dtypes: Sequence[torch.dtype]) -> list[Tensor]:
    pairs = zip(tensors, dtypes, strict=False)
    return [t.view(torch.uint64) if d == torch.uint64 else t for t, d in pairs]


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

    def __init__(self, kind: _Kind) -> None:
        self.kind, self.program, self.tile, self.length = kind, kind.program, kind.tile, kind.length
        self.kernels = elementwise.kernels(kind.program, kind.alone, False)
        self.tapes: dict[Any, Tape] = {}
        self.memory = Memory()
        self.views: tuple[list[Tensor], list[tuple[Tensor, Tensor]], list[Tensor]] | None = None

    def at_once(self, inputs: Sequence[Tensor]) -> list[Tensor]:
        """Scan inputs that are one lane's tile, from no state."""
        tape = self._tape(self.length, 1, self.kind.outer, self.kind.inner, False)
        if self.views is None:
            self.views = self._views(tape)
        entries, edges, exits = self.views
        for entry, x in zip(entries, inputs, strict=True):
            entry.copy_(x)
        for beyond, edge in edges:
            beyond.copy_(edge)
        tape.run()
        return [e.clone(memory_format=torch.contiguous_format) for e in exits]

    def _views(self, tape: Tape) -> tuple[list[Tensor], list[tuple[Tensor, Tensor]], list[Tensor]]:
        """Of a tile of one lane in the inputs' shape: elements; those that it has too many, with their values; results."""
        length = self.length
        self._number(tape, 0, length)

        def seen(tile: Tensor) -> Tensor:
            return tape.of_one_lane(tile, length).view(length, *self.kind.rest).movedim(0, self.kind.dim)

        beyond = tape.size - length
        edges = [tape.edge(tile, length) for tile in tape.elements] if beyond else []
        return [seen(e) for e in tape.elements], edges, [seen(r) for r in tape.results]

    def rows(self, inputs: Sequence[Tensor], init: State, targets: Sequence[Tensor]) -> State:
        """Scan [outer, length] or [outer, length, inner] inputs into targets of that shape; the last state of each row."""
        carry: State = init
        outer, inner = inputs[0].shape[0], math.prod(inputs[0].shape[2:])
        size = self.tile.steps * self.tile.lanes
        for at in range(0, self.length, size):
            count = min(size, self.length - at)
            lanes = self.tile.lanes if 2 * count > size else math.ceil(count / self.tile.steps)
            tape = self._tape(count, lanes, outer, inner, bool(carry))
            carry = self._turn(tape, at, count, inputs, carry, targets)
        return carry

    def _tape(self, count: int, lanes: int, outer: int, inner: int, carried: bool) -> Tape:
        steps = self.tile.steps
        if lanes == 1:
            steps = in_whole_levels(count) if self.tile.by_levels else count
        key = (count, steps, lanes, outer, inner, carried, self.kind.inner == 1)
        if key not in self.tapes:
            self.tapes[key] = Tape(
                self.program, self.kernels, *key, exclusive=self.kind.exclusive, reverse=self.kind.reverse,
                by_levels=self.tile.by_levels, alone=self.kind.alone, memory=self.memory,
            )  # fmt: skip
        return self.tapes[key]

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
        start = self.length - at - count if self.kind.reverse else at
        if count < self.length:
            inputs = [x[:, start : start + count] for x in inputs]
            targets = [t[:, start : start + count] for t in targets]
        for which, (x, held) in enumerate(zip(inputs, tape.elements, strict=True)):
            self._gather(which, x, held, tape)
        self._number(tape, start, count)
        for held, given in zip(tape.carry, carry, strict=True):
            held.copy_(given)
        tape.run()
        last = tape.state_after()
        for which, (target, values) in enumerate(zip(targets, tape.results, strict=True)):
            self._place(which, target, values, tape)
        return last

    def _number(self, tape: Tape, start: int, count: int) -> None:
        """Give a tile its positions, of which the first of `count` is `start`."""
        if tape.positions is not None:
            places = torch.arange(tape.size, dtype=tape.positions.dtype, device="cpu")
            places += start - tape.place(count)
            tape.positions.copy_(places.view(tape.lanes, tape.steps).t())

    def _gather(self, which: int, part: Tensor, held: Tensor, tape: Tape) -> None:
        """[outer, count] or [outer, count, inner] into a tile; where there are too few, the element at the end fills it."""
        count, element = part.shape[1], self.program.elements[which]
        as_it_is = part.dtype == held.dtype == stored(element)
        part = as_elements(part, element)
        if tape.by_rows:
            rows = part
            if not as_it_is or count < tape.size or not rows.is_contiguous():
                rows = self._fill(rows, tape.staged("in", which, held.dtype), tape)
            # Torch turns a whole matrix by blocks, into one of the same dtype.
            tape.turned(held).copy_(rows.view(-1, tape.steps).t())
            return
        if count < tape.size:
            part = self._fill(part, tape.staged("in", which, held.dtype), tape)
        laned = part.unflatten(1, (tape.lanes, tape.steps))  # type: ignore[no-untyped-call]  # torch's own
        held.copy_(laned.permute(2, 1, 0, 3))

    def _fill(self, rows: Tensor, staged: Tensor, tape: Tape) -> Tensor:
        count = rows.shape[1]
        first = tape.place(count)
        staged[:, first : first + count].copy_(rows)
        if count < tape.size:
            beyond = staged[:, :first] if self.kind.reverse else staged[:, count:]
            beyond.copy_(rows[:, :1] if self.kind.reverse else rows[:, -1:])
        return staged

    def _place(self, which: int, target: Tensor, values: Tensor, tape: Tape) -> None:
        """A tile's results into [outer, count] or [outer, count, inner]."""
        count = target.shape[1]
        here = slice(tape.place(count), tape.place(count) + count)
        if not tape.by_rows:
            made = values.permute(2, 1, 0, 3)
            if count == tape.size:
                target.unflatten(1, (tape.lanes, tape.steps)).copy_(made)  # type: ignore[no-untyped-call]  # torch's own
            else:
                target.copy_(made.reshape(tape.outer, tape.size, tape.inner)[:, here])
            return
        turned = tape.turned(values).t()
        if count == tape.size and target.is_contiguous():
            target.view(-1, tape.steps).copy_(turned)
            return
        staged = tape.staged("out", which, values.dtype)
        staged.view(-1, tape.steps).copy_(turned)
        target.copy_(staged[:, here])
