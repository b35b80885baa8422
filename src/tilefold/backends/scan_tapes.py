"""What a CPU's scan computes of a tile: a list of torch's operations, bound to the tile's buffers once and run for each tile.

A tile has `lanes` lanes of `steps` neighbours of each row: lane l holds the positions l * steps ... (l + 1) * steps - 1.
Lanes are scanned step by step, all at once; what they hold in the end is scanned over the lanes in log2(lanes) levels; and
each lane is combined with what comes before it. One lane alone goes on from the state before it.

With `by_rows`, where a row's elements are neighbours, a tile lies [steps, outer, lanes]: with rows end to end it is a matrix
of lanes turned around. Elsewhere it is seen as [steps, lanes, outer, inner].
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from tilefold.algebra.evaluate import stored
from tilefold.algebra.program import Program
from tilefold.algebra.typing import element_dtype
from tilefold.backends.elementwise import Call, Kernel, Kernels, Workspace

BESIDE = 128  # rows of a tile from which an operation on neighbours in memory takes rows (docs/experiments/cpu-scans.md)
Tensor = torch.Tensor
State = list[Tensor]


class Tape:
    """The operations on one tile of a scan, from its `elements` (and `positions`, and the `carry`) to its `results`.

    `carried`: a state comes before the tile. Positions behind a row's end may hold anything: nothing before them sees it.
    """

    def __init__(
        self,
        program: Program,
        kernels: Kernels,
        steps: int,
        lanes: int,
        outer: int,
        inner: int,
        carried: bool,
        by_rows: bool,
        *,
        exclusive: bool,
    ) -> None:
        self.program, self.kernels, self.carried = program, kernels, carried
        self.steps, self.lanes, self.outer, self.inner = steps, lanes, outer, inner
        self.size, self.by_rows = steps * lanes, by_rows
        self.axis = 1 if self.by_rows else 0  # of lanes, in what is held of one step
        self.calls: list[Call] = []
        self.workspace = Workspace()
        self._staged: dict[Any, Tensor] = {}
        self.elements = [self._tile(stored(element_dtype(e))) for e in program.elements]
        self.carry = [self._of_rows(d) for d in program.state] if carried else []
        self.positions: Tensor | None = None
        held = list(self.elements)
        if program.algebra.index:
            places = torch.empty((steps, lanes), dtype=program.lift.input_dtypes[-1], device="cpu")
            self.positions = places
            held.append((places[:, None] if self.by_rows else places[:, :, None, None]).expand(held[0].shape))
        self.last, values = self._scanned(self._lifted(held), exclusive)
        self.results = self._projected(values)

    def run(self) -> None:
        """Scan the tile."""
        for function, operands, out in self.calls:
            function(*operands, out=out)

    def state_at(self, position: int) -> State:
        """A copy of each row's state after a position."""
        lane, step = divmod(position, self.steps)
        return [f[step].select(self.axis, lane).clone() for f in self.last]

    def turned(self, tile: Tensor) -> Tensor:
        """A tile by rows as a matrix: [steps, lanes of all rows]."""
        return tile.view(self.steps, -1)

    def staged(self, use: str, which: int, dtype: torch.dtype) -> Tensor:
        """Memory for a tile's rows end to end: [outer, size]."""
        if (use, which) not in self._staged:
            self._staged[use, which] = torch.empty((self.outer, self.size), dtype=dtype, device="cpu")
        return self._staged[use, which]

    def _tile(self, dtype: torch.dtype) -> Tensor:
        steps, lanes, outer, inner = self.steps, self.lanes, self.outer, self.inner
        if self.by_rows:
            return torch.empty((steps, outer, lanes), dtype=dtype, device="cpu")
        if outer * inner < BESIDE:
            return torch.empty((steps, lanes, outer, inner), dtype=dtype, device="cpu")
        return torch.empty((lanes, steps, outer, inner), dtype=dtype, device="cpu").transpose(0, 1)

    def _of_lanes(self, dtype: torch.dtype) -> Tensor:
        shape = (self.outer, self.lanes) if self.by_rows else (self.lanes, self.outer, self.inner)
        return torch.empty(shape, dtype=dtype, device="cpu")

    def _of_rows(self, dtype: torch.dtype) -> Tensor:
        shape = (self.outer,) if self.by_rows else (self.outer, self.inner)
        return torch.empty(shape, dtype=dtype, device="cpu")

    def _some(self, lanes: State, start: int, count: int) -> State:
        return [t.narrow(self.axis, start, count) for t in lanes]

    def _beside_lanes(self, rows: State) -> State:
        """States of rows as those of one lane."""
        return [t.unsqueeze(self.axis) for t in rows]

    def _run(self, kernel: Kernel, arguments: Sequence[Tensor], targets: Sequence[Tensor]) -> None:
        self.calls += kernel.bound(arguments, targets, self.workspace)

    def _copy(self, source: State, targets: State) -> None:
        self.calls += [(_copied, (s,), t) for s, t in zip(source, targets, strict=True)]

    def _lifted(self, held: list[Tensor]) -> State:
        """Elements as states: where they are states already, the elements themselves."""
        if self.kernels.lift.gives_its_inputs and self.positions is None:
            return held
        lifted = [self._tile(stored(d)) for d in self.program.state]
        self._run(self.kernels.lift, held, lifted)
        return lifted

    def _scanned(self, lifted: State, exclusive: bool) -> tuple[State, State]:
        """Every position's state, and what is projected: that, or what comes before the position."""
        scanned = [self._tile(stored(d)) for d in self.program.state]
        first = [t[0] for t in lifted]
        if self.lanes == 1 and self.carried:
            before = self._beside_lanes(self.carry)
            self._run(self.kernels.combine, [*before, *first], [t[0] for t in scanned])
        else:
            self._copy(first, [t[0] for t in scanned])
        for m in range(1, self.steps):
            states = [*(t[m - 1] for t in scanned), *(x[m] for x in lifted)]
            self._run(self.kernels.combine, states, [t[m] for t in scanned])
        if self.lanes == 1:
            before = self._beside_lanes(self.carry) if self.carried else self._nothing()
            return scanned, self._shifted(scanned, before, lifted) if exclusive else scanned
        before = self._before([t[-1] for t in scanned])
        final = self._with(before, scanned, lifted)
        return final, self._shifted(final, before, scanned) if exclusive else final

    def _nothing(self) -> State:
        """The identity for each row, as what comes before a lane; of a monoid without one anything."""
        numbers = self.program.identity or (0,) * len(self.program.state)
        rows = [self._of_rows(stored(d)) for d in self.program.state]
        for row, number, dtype in zip(rows, numbers, self.program.state, strict=True):
            row.fill_(_signed(number, dtype))
        return self._beside_lanes(rows)

    def _before(self, totals: State) -> State:
        """What comes before each lane: the carry or the identity, and the lanes before it."""
        before = [self._of_lanes(stored(d)) for d in self.program.state]
        first = self._beside_lanes(self.carry) if self.carried else self._nothing()
        self._copy(first, self._some(before, 0, 1))
        earlier = self._some(self._met(totals), 0, self.lanes - 1)
        rest = self._some(before, 1, self.lanes - 1)
        if self.carried:
            self._run(self.kernels.combine, [*(c.expand(earlier[0].shape) for c in first), *earlier], rest)
        else:
            self._copy(earlier, rest)
        return before

    def _met(self, totals: State) -> State:
        """The scan over lanes: level by level each is combined with the one 1, 2, 4 ... before it."""
        state, reach = totals, 1
        spares = [[self._of_lanes(stored(d)) for d in self.program.state] for _ in range(2)]
        while reach < self.lanes:
            target = spares[0]
            self._copy(self._some(state, 0, reach), self._some(target, 0, reach))
            left = self.lanes - reach
            states = [*self._some(state, 0, left), *self._some(state, reach, left)]
            self._run(self.kernels.combine, states, self._some(target, reach, left))
            state, spares, reach = target, spares[::-1], 2 * reach
        return state

    def _with(self, before: State, scanned: State, target: State) -> State:
        """Lanes' prefixes combined with what comes before; without a carry the first lane has nothing before it."""
        skipped = 0 if self.carried else 1
        axis, count = self.axis + 1, self.lanes - skipped
        part = [t.narrow(axis, skipped, count) for t in scanned]
        if skipped:
            self._copy([t.narrow(axis, 0, 1) for t in scanned], [t.narrow(axis, 0, 1) for t in target])
        earlier = [t.expand(part[0].shape) for t in self._some(before, skipped, count)]
        self._run(self.kernels.combine, [*earlier, *part], [t.narrow(axis, skipped, count) for t in target])
        return target

    def _shifted(self, final: State, before: State, target: State) -> State:
        """Each position's prefix without its own element."""
        self._copy([f[:-1] for f in final], [t[1:] for t in target])
        self._copy(before, [t[0] for t in target])
        return target

    def _projected(self, state: State) -> list[Tensor]:
        if self.kernels.project.gives_its_inputs:
            return state
        values = [self._tile(stored(d)) for d in self.program.outputs]
        self._run(self.kernels.project, state, values)
        return values


def _copied(source: Tensor, out: Tensor) -> Tensor:
    return out.copy_(source)


def _signed(number: Any, dtype: torch.dtype) -> Any:
    """An identity as its stored dtype takes it."""
    return (int(number) + 2**63) % 2**64 - 2**63 if dtype == torch.uint64 else number
