"""Any scan on torch operations: tiles of many lanes that each hold neighbours, in a fixed association. The CPU's backend.

A tile is [steps, lanes, outer, inner]: lane l holds the positions l * steps ... (l + 1) * steps - 1 of each row. Lanes are
scanned step by step, all at once; what they hold in the end is scanned over the lanes in log2(lanes) levels; and each lane
is combined with what comes before it. `planner.cpu_scans` says how large a tile is.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from tilefold.algebra.dtypes import is_float
from tilefold.algebra.evaluate import convert, stored
from tilefold.algebra.program import Program
from tilefold.algebra.typing import element_dtype
from tilefold.backends import elementwise, workers
from tilefold.backends.elementwise import Workspace
from tilefold.planner.stages.cpu import CpuTile

BESIDE = 128  # rows of a tile from which an operation on neighbours in memory takes rows (docs/experiments/cpu-scans.md)
Tensor = torch.Tensor
State = list[Tensor]
Slices = list[tuple[State, State]]
Levels = list[tuple[list[tuple[Tensor, Tensor]], State, State]]


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
) -> tuple[list[Tensor], State]:
    """The projected prefixes along `dim` of tensors of one shape, contiguous, and each row's last state.

    `init` has a state's fields in the rows' shape, or nothing. `alone`: an element's bits do not depend on its place among
    rows.
    """
    shape = tensors[0].shape
    outer, length, inner = math.prod(shape[:dim]), shape[dim], math.prod(shape[dim + 1 :])
    with torch.no_grad():
        inputs = [
            _folded(_as_bits(t.detach(), e), dim) for t, e in zip(tensors, program.elements, strict=True)
        ]
        first = [
            _as_bits(f.detach(), d).reshape(outer, inner) for f, d in zip(init, program.state, strict=False)
        ]
        results = [torch.empty(shape, dtype=stored(d), device="cpu") for d in program.outputs]
        state = [torch.empty((outer, inner), dtype=stored(d), device="cpu") for d in program.state]
        targets = [r.view(outer, length, inner) for r in results]

        def work(some: Sequence[Rows]) -> None:
            walk = _Walk(program, tile, alone, exclusive, reverse, length)
            for rows in some:
                last = walk.rows(
                    [_at(x, rows) for x in inputs], [f[rows] for f in first], [_at(t, rows) for t in targets]
                )
                for whole, part in zip(state, last, strict=True):
                    whole[rows].copy_(part)

        blocks = list(_blocks(outer, inner, tile.rows))
        count = math.ceil(len(blocks) / tile.threads)
        workers.each(
            work, [blocks[i : i + count] for i in range(0, len(blocks), count)], tile.threads, even_one=True
        )
    kept = [s.view((*shape[:dim], *shape[dim + 1 :])) for s in state]
    return _as_declared(results, program.outputs), _as_declared(kept, program.state)


def _folded(tensor: Tensor, dim: int) -> Tensor:
    """[outer, length, inner]: the dims before and after `dim` as one each; a view wherever strides allow it."""
    shape = tensor.shape
    return tensor.reshape(math.prod(shape[:dim]), shape[dim], math.prod(shape[dim + 1 :]))


def _as_bits(tensor: Tensor, dtype: torch.dtype) -> Tensor:
    return tensor.view(torch.int64) if tensor.dtype == dtype == torch.uint64 else tensor


def _as_declared(tensors: Sequence[Tensor], dtypes: Sequence[torch.dtype]) -> list[Tensor]:
    pairs = zip(tensors, dtypes, strict=True)
    return [t.view(torch.uint64) if d == torch.uint64 else t for t, d in pairs]


_BITS = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}


def _backwards(tile: Tensor) -> Tensor:
    """A tile from its end to its beginning, as bits: torch turns around few dtypes."""
    return tile.view(_BITS[tile.itemsize]).flip(1).view(tile.dtype)


Rows = tuple[slice, slice]


def _blocks(outer: int, inner: int, rows: int) -> Iterator[Rows]:
    """Some rows at a time: neighbours along the inner dim, several of the outer one where that is short."""
    along = min(inner, rows)
    across = max(1, rows // max(1, inner))
    for o in range(0, outer, across):
        for i in range(0, inner, along):
            yield slice(o, min(outer, o + across)), slice(i, min(inner, i + along))


def _at(tensor: Tensor, rows: Rows) -> Tensor:
    return tensor[rows[0], :, rows[1]]


@dataclass
class _Walk:
    """Scans rows tile by tile, in buffers that it reuses."""

    program: Program
    tile: CpuTile
    alone: bool
    exclusive: bool
    reverse: bool
    length: int

    def __post_init__(self) -> None:
        self.kernels = elementwise.kernels(self.program, self.alone, False)
        self.workspace = Workspace()
        self.slices: dict[Any, Slices] = {}
        self.levels: dict[Any, Levels] = {}

    def rows(self, inputs: Sequence[Tensor], init: State, targets: Sequence[Tensor]) -> State:
        """Scan [outer, length, inner] inputs into targets of that shape; the last state of each row."""
        carry = [f.clone() for f in init] or None
        at = 0
        for steps, lanes in self._turns():
            carry = self._turn(at, steps, lanes, inputs, carry, targets)
            at += steps * lanes
        assert carry is not None
        return carry

    def _turns(self) -> Iterator[tuple[int, int]]:
        """(steps, lanes) of each tile: whole ones, what is left in whole lanes, and the rest in one lane."""
        steps, lanes = self.tile.steps, self.tile.lanes
        whole, left = divmod(self.length, steps * lanes)
        yield from [(steps, lanes)] * whole
        if left // steps:
            yield steps, left // steps
        if left % steps:
            yield left % steps, 1

    def _turn(
        self,
        at: int,
        steps: int,
        lanes: int,
        inputs: Sequence[Tensor],
        carry: State | None,
        targets: Sequence[Tensor],
    ) -> State:
        count = steps * lanes
        start = self.length - at - count if self.reverse else at
        held = [self._gather(i, x[:, start : start + count], steps) for i, x in enumerate(inputs)]
        shape = held[0].shape
        if self.program.algebra.index:
            held.append(self._positions(start, count, steps).expand(shape))
        scanned = self._buffers("scanned", shape)
        lifted = self._lifted(held)
        self._steps(lifted, scanned)
        before = self._before([s[-1] for s in scanned], carry)
        final = self._with(before, scanned, lifted, skipped=0 if carry is not None else 1)
        last = [f[-1, -1].clone() for f in final]
        if self.exclusive:
            other = scanned if final is lifted else lifted
            final = self._shifted(final, before, carry, other)
        self._project(final, [t[:, start : start + count] for t in targets], steps)
        return last

    def _lifted(self, held: list[Tensor]) -> State:
        """Elements as states, in memory of the walk's own: where they are states already, the elements themselves."""
        if self.kernels.lift.gives_its_inputs and not self.program.algebra.index:
            return held
        lifted = self._buffers("lifted", held[0].shape)
        self.kernels.lift.run(held, lifted, self.workspace)
        return lifted

    def _steps(self, lifted: State, scanned: State) -> None:
        """Every lane's own prefixes."""
        for s, x in zip(scanned, lifted, strict=True):
            s[0].copy_(x[0])
        combine, workspace = self.kernels.combine, self.workspace
        for states, target in self._slices("steps", lifted, scanned):
            combine.run(states, target, workspace)

    def _slices(self, use: str, source: State, target: State) -> Slices:
        """(two states, where their combination goes) for each step, made once for buffers that stay."""
        key = (use, source[0].shape)
        if key not in self.slices:
            steps = range(1, len(source[0]))
            self.slices[key] = [
                ([t[m - 1] for t in target] + [x[m] for x in source], [t[m] for t in target]) for m in steps
            ]
        return self.slices[key]

    def _before(self, totals: State, carry: State | None) -> State:
        """What comes before each lane, [lanes, outer, inner]; of the first lane without a carry nothing is said."""
        prefixes = self._scan_lanes(totals)
        before = self._buffers("before", totals[0].shape)
        for b, c in zip(before, carry or [t[0] for t in totals], strict=True):
            b[0].copy_(c)
        earlier = [m[:-1] for m in prefixes]
        if not len(earlier[0]):
            return before
        if carry is None:
            for b, m in zip(before, earlier, strict=True):
                b[1:].copy_(m)
        else:
            self._combine([c.expand(earlier[0].shape) for c in carry], earlier, [b[1:] for b in before])
        return before

    def _scan_lanes(self, totals: State) -> State:
        """The scan over lanes: level by level each is combined with the one 1, 2, 4 ... before it."""
        shape = totals[0].shape
        state, spare = self._buffers("prefixes", shape), self._buffers("spare", shape)
        for target, total in zip(state, totals, strict=True):
            target.copy_(total)
        for kept, states, targets in self._levels(state, spare):
            for new, old in kept:
                new.copy_(old)
            self.kernels.combine.run(states, targets, self.workspace)
        return spare if (len(state[0]) - 1).bit_length() % 2 else state

    def _levels(self, state: State, spare: State) -> Levels:
        key = state[0].shape
        if key not in self.levels:
            made, reach = [], 1
            while reach < len(state[0]):
                kept = [(new[:reach], old[:reach]) for new, old in zip(spare, state, strict=True)]
                pairs = [s[:-reach] for s in state] + [s[reach:] for s in state]
                made.append((kept, pairs, [s[reach:] for s in spare]))
                state, spare, reach = spare, state, 2 * reach
            self.levels[key] = made
        return self.levels[key]

    def _with(self, before: State, scanned: State, target: State, skipped: int) -> State:
        """Lanes' prefixes combined with what comes before; the first `skipped` lanes have nothing before them."""
        if skipped == len(before[0]):
            return scanned
        for t, s in zip(target, scanned, strict=True):
            t[:, :skipped].copy_(s[:, :skipped])
        part = [s[:, skipped:] for s in scanned]
        self._combine(
            [b[skipped:].expand(part[0].shape) for b in before], part, [t[:, skipped:] for t in target]
        )
        return target

    def _shifted(self, final: State, before: State, carry: State | None, target: State) -> State:
        """Each position's prefix without its own element."""
        for number, (t, f, b) in enumerate(zip(target, final, before, strict=True)):
            t[1:].copy_(f[:-1])
            t[0].copy_(b)
            if carry is None:
                dtype = self.program.state[number]
                t[0, 0].fill_(_signed(self.program.identity[number], dtype))
        return target

    def _combine(self, a: State, b: State, targets: State) -> None:
        self.kernels.combine.run([*a, *b], targets, self.workspace)

    def _project(self, state: State, targets: Sequence[Tensor], steps: int) -> None:
        """Results of [steps, lanes, outer, inner] states into [outer, count, inner] targets."""
        shape = state[0].shape
        values = state
        if not self.kernels.project.gives_its_inputs:
            key = ("results", shape)
            if key not in self.workspace:
                self.workspace[key] = [_tile(shape, t.dtype) for t in targets]
            values = self.workspace[key]
            self.kernels.project.run(state, values, self.workspace)
        for number, (target, value) in enumerate(zip(targets, values, strict=True)):
            rows = self._rows(number, value)
            target.copy_(_backwards(rows) if self.reverse else rows)

    def _rows(self, which: int, value: Tensor) -> Tensor:
        """[steps, lanes, outer, inner] as [outer, count, inner]."""
        steps, lanes, outer, inner = value.shape
        if inner > 1 or outer < BESIDE:
            return value.permute(2, 1, 0, 3).reshape(outer, steps * lanes, inner)
        key = ("turned", which, value.shape)
        if key not in self.workspace:
            self.workspace[key] = [torch.empty((outer, steps * lanes), dtype=value.dtype, device="cpu")]
        # Torch turns a whole matrix by blocks, into one of the same dtype.
        return self.workspace[key][0].copy_(value.transpose(0, 1).view(-1, outer).t())[:, :, None]

    def _gather(self, which: int, part: Tensor, steps: int) -> Tensor:
        """[outer, count, inner] as [steps, lanes, outer, inner], in the order of the scan."""
        element = self.program.elements[which]
        if self.reverse:
            part = _backwards(part)
        elif part.shape[0] > 1 and part.shape[2] == 1 and part.stride(1) == 1:
            part = self._staged(which, part)
        laned = part.unflatten(1, (-1, steps)).permute(2, 1, 0, 3)  # type: ignore[no-untyped-call]  # torch's own
        key = ("gather", which, laned.shape)
        if key not in self.workspace:
            wide = stored(element_dtype(element))
            self.workspace[key] = [_tile(laned.shape, wide)]
        if part.dtype != stored(element):
            value = convert(laned, element)
            assert isinstance(value, Tensor)
            laned = value
        return self.workspace[key][0].copy_(laned)

    def _staged(self, which: int, part: Tensor) -> Tensor:
        """The same, contiguous: rows that lie apart share the caches' sets, and turned at once are read again each step."""
        key = ("staged", which, part.shape)
        if key not in self.workspace:
            self.workspace[key] = [torch.empty(part.shape, dtype=part.dtype, device="cpu")]
        return self.workspace[key][0].copy_(part)

    def _positions(self, start: int, count: int, steps: int) -> Tensor:
        dtype = self.program.lift.input_dtypes[-1]
        places = torch.arange(start, start + count, dtype=dtype, device="cpu")
        if self.reverse:
            places = places.flip(0)
        return places.view(-1, steps).t()[:, :, None, None]

    def _buffers(self, use: str, shape: torch.Size) -> State:
        key = (use, shape)
        if key not in self.workspace:
            whole = use in ("lifted", "scanned")
            self.workspace[key] = [
                _tile(shape, stored(d)) if whole else torch.empty(shape, dtype=stored(d), device="cpu")
                for d in self.program.state
            ]
        return self.workspace[key]


def _tile(shape: torch.Size, dtype: torch.dtype) -> Tensor:
    """Memory of a tile [steps, lanes, outer, inner]: with enough rows beside each other, in the order of positions."""
    steps, lanes, outer, inner = shape
    if outer * inner < BESIDE:
        return torch.empty(shape, dtype=dtype, device="cpu")
    return torch.empty((lanes, steps, outer, inner), dtype=dtype, device="cpu").transpose(0, 1)


def _signed(number: float, dtype: torch.dtype) -> float:
    """An identity as its stored dtype takes it."""
    if is_float(dtype) or dtype != torch.uint64:
        return number
    return (int(number) + 2**63) % 2**64 - 2**63
