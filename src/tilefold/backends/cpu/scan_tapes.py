"""The tape of a CPU's scan: a list of torch's operations, bound to a tile's buffers once and run for each tile.

A tile has `lanes` lanes of `steps` neighbours of each row: lane l holds the positions l * steps ... (l + 1) * steps - 1.
Lanes are scanned all at once, step by step or by levels; their last states are scanned over the lanes in log2(lanes)
levels; and each lane is combined with the state before it. One lane alone goes on from the state before it.

With `by_rows`, where a row's elements are neighbours, a tile lies [steps, outer, lanes]: with rows end to end it is a matrix
of lanes turned around. Elsewhere it is seen as [steps, lanes, outer, inner]. It has positions as they lie in memory: a scan
from the end counts steps and lanes from the end, and where a tile has more positions than elements, the first ones hold none.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch

from tilefold.algebra.evaluate import held, stored
from tilefold.algebra.program import Program
from tilefold.algebra.proofs.derive import by_field
from tilefold.algebra.typing import element_dtype
from tilefold.backends.cpu.elementwise import Call, Kernel, Kernels, Workspace, begin_kernel
from tilefold.backends.cpu.step_lists import copy

BESIDE = 128  # rows of a tile from which an operation on neighbours in memory takes rows (docs/experiments/cpu.md#scans)
# Elements of an operation on many steps, whose buffers are to stay in a core's cache (not measured).
TOGETHER = 1 << 16
Tensor = torch.Tensor
State = list[Tensor]


class Memory:
    """The tiles of tapes that run one after another, which may share memory: no tape needs the values of another."""

    def __init__(self) -> None:
        """No tile yet."""
        self.workspace = Workspace()
        self._tensors: dict[Any, Tensor] = {}

    def empty(self, use: Any, shape: tuple[int, ...], dtype: torch.dtype) -> Tensor:
        """A tensor for some use, the same one for every tape with such a shape."""
        key = (use, shape, dtype)
        if key not in self._tensors:
            self._tensors[key] = torch.empty(shape, dtype=dtype, device="cpu")
        return self._tensors[key]

    @property
    def bytes(self) -> int:
        """The bytes held."""
        return sum(t.nbytes for ts in (self._tensors.values(), *self.workspace.values()) for t in ts)


class Tape:
    """The operations on one tile of a scan, from its `elements` (and `positions`, and the `carry`) to its `results`.

    `count`: positions of a row that it has elements for. `carried`: a state comes before the tile. Positions behind a row's
    end may hold anything: nothing before them sees it.
    """

    def __init__(
        self,
        program: Program,
        kernels: Kernels,
        count: int,
        steps: int,
        lanes: int,
        outer: int,
        inner: int,
        carried: bool,
        by_rows: bool,
        *,
        exclusive: bool,
        reverse: bool,
        by_levels: bool,
        alone: bool,
        memory: Memory,
    ) -> None:
        self.program, self.kernels, self.carried = program, kernels, carried
        self.reverse, self.alone = reverse, alone
        self.steps, self.lanes, self.outer, self.inner = steps, lanes, outer, inner
        self.size, self.by_rows = steps * lanes, by_rows
        self.axis = 1 if self.by_rows else 0  # of lanes, in the state of one step
        self.calls: list[Call] = []
        self.workspace, self._memory, self._tiles = memory.workspace, memory, 0
        self.elements = [self._tile(stored(element_dtype(e))) for e in program.elements]
        self.carry = [self._of_rows(stored(d)) for d in program.state] if carried else []
        self.positions: Tensor | None = None
        held = list(self.elements)
        if program.algebra.index:
            places = torch.empty((steps, lanes), dtype=program.lift.input_dtypes[-1], device="cpu")
            self.positions = places
            held.append((places[:, None] if self.by_rows else places[:, :, None, None]).expand(held[0].shape))
        lane, step = divmod(count - 1, steps)
        if self._folds_first(by_levels):
            self.results, self._after = self._folded_first(held, exclusive, lane, step)
        else:
            state, before = self._scanned(self._lifted(held), exclusive, by_levels)
            self.results = self._projected(state, before if exclusive else None)
            self._after = self._of_lane(self._steps(state)[step], lane)

    def run(self) -> None:
        """Scan the tile."""
        for function, operands, out in self.calls:
            function(*operands, out=out)

    def state_after(self) -> State:
        """A copy of each row's state after its last position."""
        return [f.clone() for f in self._after]

    def _of_lane(self, lanes: State, lane: int) -> State:
        return [t.squeeze(self.axis) for t in self._some(lanes, lane, 1)]

    def place(self, positions: int) -> int:
        """Where in memory the first of so many positions lies: the others of a scan from the end are before them."""
        return self.size - positions if self.reverse else 0

    def of_one_lane(self, tile: Tensor, positions: int) -> Tensor:
        """A tile of one lane as so many positions of its rows: [positions, rows]."""
        return tile.narrow(0, self.place(positions), positions).view(positions, -1)

    def edge(self, tile: Tensor, positions: int) -> tuple[Tensor, Tensor]:
        """Of a tile of one lane the places behind its last position, and this position."""
        first = self.place(positions)
        if self.reverse:
            return tile[:first], tile[first : first + 1]
        return tile[positions:], tile[positions - 1 : positions]

    def turned(self, tile: Tensor) -> Tensor:
        """A tile by rows as a matrix: [steps, lanes of all rows]."""
        return tile.view(self.steps, -1)

    def staged(self, use: str, which: int, dtype: torch.dtype) -> Tensor:
        """Memory for a tile's rows end to end: [outer, size], or [outer, size, inner]."""
        shape = (self.outer, self.size) if self.by_rows else (self.outer, self.size, self.inner)
        return self._memory.empty((use, which), shape, dtype)

    def _tile(self, dtype: torch.dtype) -> Tensor:
        steps, lanes, outer, inner = self.steps, self.lanes, self.outer, self.inner
        self._tiles += 1
        if self.by_rows:
            return self._memory.empty(self._tiles, (steps, outer, lanes), dtype)
        if outer * inner < BESIDE:
            return self._memory.empty(self._tiles, (steps, lanes, outer, inner), dtype)
        return self._memory.empty(self._tiles, (lanes, steps, outer, inner), dtype).transpose(0, 1)

    def _of_lanes(self, dtype: torch.dtype) -> Tensor:
        shape = (self.outer, self.lanes) if self.by_rows else (self.lanes, self.outer, self.inner)
        return torch.empty(shape, dtype=dtype, device="cpu")

    def _of_rows(self, dtype: torch.dtype) -> Tensor:
        shape = (self.outer,) if self.by_rows else (self.outer, self.inner)
        return torch.empty(shape, dtype=dtype, device="cpu")

    def _cut(self, state: State, axis: int, start: int, count: int) -> State:
        """`count` neighbours along an axis, from the `start`-th in the scan's order."""
        size = state[0].shape[axis]
        first = size - start - count if self.reverse else start
        return [t.narrow(axis, first, count) for t in state]

    def _steps(self, state: State) -> list[State]:
        """All lanes' states at each of their steps."""
        steps = [list(fields) for fields in zip(*(t.unbind(0) for t in state), strict=True)]
        return steps[::-1] if self.reverse else steps

    def _some(self, lanes: State, start: int, count: int) -> State:
        return self._cut(lanes, self.axis, start, count)

    def _beside_lanes(self, rows: State) -> State:
        """States of rows as states of one lane."""
        return [t.unsqueeze(self.axis) for t in rows]

    def _run(self, kernel: Kernel, arguments: Sequence[Tensor], targets: Sequence[Tensor]) -> None:
        self.calls += kernel.bound(arguments, targets, self.workspace)

    def _combine(self, before: State, states: State) -> None:
        """Combine states with the states before them, in place."""
        shape = states[0].shape
        given = before if before[0].shape == shape else [t.expand(shape) for t in before]
        self._run(self.kernels.combine, [*given, *states], states)

    def _copy(self, source: State, targets: State) -> None:
        self.calls += [(copy, (s,), t) for s, t in zip(source, targets, strict=True)]

    def _lifted(self, held: list[Tensor]) -> State:
        """Elements as states: a field that is an element as it is lies where that does."""
        kernel, inputs = self.kernels.lift, len(self.elements)
        places = [
            o if o < inputs and kernel.outputs.index(o) == i else None for i, o in enumerate(kernel.outputs)
        ]
        lifted = [
            self._tile(stored(d)) if place is None else held[place]
            for place, d in zip(places, self.program.state, strict=True)
        ]
        for at, count in self._together(self.steps):
            elements, targets = self._cut(held, 0, at, count), self._cut(lifted, 0, at, count)
            same = [t if p is None else elements[p] for p, t in zip(places, targets, strict=True)]
            self._run(kernel, elements, same)
        return lifted

    def _scanned(self, state: State, exclusive: bool, by_levels: bool) -> tuple[State, State]:
        """Every position's state, and, for an exclusive scan, the state before each lane."""
        steps = self._steps(state)
        if self.lanes == 1 and self.carried:
            self._combine(self._beside_lanes(self.carry), steps[0])
        if by_levels:
            self._by_levels(state)
        else:
            for before, after in itertools.pairwise(steps):
                self._combine(before, after)
        if self.lanes > 1:
            before = self._before(steps[-1])
            self._combine_lanes(before, state)
            return state, before
        return state, self._beside_lanes(self.carry) if self.carried else self._nothing() if exclusive else []

    def _folds_first(self, by_levels: bool) -> bool:
        """Whether lanes are folded first, then scanned from the states before them: a block form takes fewer operations."""
        program = self.program
        has_block = program.begin is not None or by_field(program.combine.graph) is not None
        return (
            has_block and self.lanes > 1 and not by_levels and self.by_rows and self.positions is None and not self.alone
            and program.algebra.commutative and program.identity is not None
        )  # fmt: skip

    def _folded_first(
        self, held: list[Tensor], exclusive: bool, lane: int, step: int
    ) -> tuple[list[Tensor], State]:
        """The results, and each row's state after a step of a lane: folds of lanes give what comes before each, from which it
        goes on step after step. Only states of so few steps are held that they stay in cache."""
        before = self._before(self._totals(held))
        size, shift = self._at_a_time(), 1 if exclusive else 0
        ring = [
            self._memory.empty(("ring", i), (size, *held[0].shape[1:]), stored(d))
            for i, d in enumerate(self.program.state)
        ]
        states, elements = self._steps(ring), self._steps(held)
        values = [self._tile(stored(d)) for d in self.program.outputs]
        after = [self._of_rows(stored(d)) for d in self.program.state]
        if exclusive:
            self._run(self.kernels.project, before, self._steps(values)[0])
        for at in range(0, self.steps, size):
            count = min(size, self.steps - at)
            for m in range(at, at + count):
                given = states[(m - 1) % size] if m else before
                self._stepped(given, elements[m], states[m % size], first=m == 0)
                if m == step:
                    self._copy(self._of_lane(states[m % size], lane), after)
            count = min(count, self.steps - at - shift)
            if count:
                self._run(
                    self.kernels.project,
                    self._cut(ring, 0, 0, count),
                    self._cut(values, 0, at + shift, count),
                )
        return values, after

    def _stepped(self, before: State, elements: State, after: State, *, first: bool) -> None:
        """States with an element more; without a carry the first lane has nothing before its first element."""
        skipped = 1 if first and not self.carried else 0
        if skipped:
            self._run(self.kernels.lift, self._some(elements, 0, 1), self._some(after, 0, 1))
        count = self.lanes - skipped
        given = [*self._some(before, skipped, count), *self._some(elements, skipped, count)]
        self._run(self.kernels.step, given, self._some(after, skipped, count))

    def _totals(self, held: list[Tensor]) -> State:
        """Each lane's fold."""
        totals = [self._of_lanes(stored(d)) for d in self.program.state]
        rows = [self.turned(t) for t in held]
        width, fold = max(1, TOGETHER // self.steps), self._fold(begin_kernel(self.program, (0,)))
        for at in range(0, self.outer * self.lanes, width):
            some = slice(at, at + width)
            self.calls.append((fold, tuple(t[:, some] for t in rows), [t.view(-1)[some] for t in totals]))
        return totals

    def _fold(self, kernel: Kernel) -> Callable[..., None]:
        """A function of lanes of a few steps each, [steps, lanes], that writes their states, [lanes]."""

        def fold(*elements: Tensor, out: State) -> None:
            for value, target in zip(kernel.small(elements, self.workspace), out, strict=True):
                target.copy_(value.expand(1, *target.shape)[0])

        return fold

    def _by_levels(self, state: State) -> None:
        """Scan along the steps in place: of 2, 4, 8 ... neighbours the second half is combined with the first half's last.

        Sklansky, "Conditional-sum addition logic", 1960.
        """
        reach = 1
        while reach < self.steps:
            blocks, left = divmod(self.steps, 2 * reach)
            if blocks:
                whole = self._cut(state, 0, 0, blocks * 2 * reach)
                pairs = [t.unflatten(0, (blocks, 2 * reach)) for t in whole]  # type: ignore[no-untyped-call]  # torch's own
                self._combine(self._cut(pairs, 1, reach - 1, 1), self._cut(pairs, 1, reach, reach))
            if left > reach:
                last = self._cut(state, 0, self.steps - left, left)
                self._combine(self._cut(last, 0, reach - 1, 1), self._cut(last, 0, reach, left - reach))
            reach *= 2

    def _nothing(self) -> State:
        """The identity of each row as the state before a lane; any state for a monoid without one."""
        numbers = self.program.identity or (0,) * len(self.program.state)
        rows = [self._of_rows(stored(d)) for d in self.program.state]
        for row, number, dtype in zip(rows, numbers, self.program.state, strict=True):
            row.fill_(held(number, dtype))
        return self._beside_lanes(rows)

    def _before(self, totals: State) -> State:
        """The state before each lane: the carry or the identity, combined with the lanes before it."""
        before = [self._of_lanes(stored(d)) for d in self.program.state]
        first = self._beside_lanes(self.carry) if self.carried else self._nothing()
        self._copy(first, self._some(before, 0, 1))
        earlier = self._some(self._over_lanes(totals), 0, self.lanes - 1)
        rest = self._some(before, 1, self.lanes - 1)
        if self.carried:
            self._run(self.kernels.combine, [*(c.expand(earlier[0].shape) for c in first), *earlier], rest)
        else:
            self._copy(earlier, rest)
        return before

    def _over_lanes(self, totals: State) -> State:
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

    def _combine_lanes(self, before: State, state: State) -> None:
        """Lanes' prefixes combined with the states before; without a carry the first lane has none."""
        skipped = 0 if self.carried else 1
        count = self.lanes - skipped
        earlier = self._some(before, skipped, count)
        for at, some in self._together(self.steps):
            self._combine(earlier, self._cut(self._cut(state, 0, at, some), self.axis + 1, skipped, count))

    def _at_a_time(self) -> int:
        """Steps of all lanes whose buffers stay in a core's cache."""
        return min(self.steps, max(2, TOGETHER * self.steps // self.elements[0].numel()))

    def _together(self, steps: int) -> Iterator[tuple[int, int]]:
        """Where some steps at a time begin, and how many these are."""
        size = self._at_a_time()
        return ((at, min(size, steps - at)) for at in range(0, steps, size))

    def _projected(self, state: State, before: State | None) -> list[Tensor]:
        """The results, of an exclusive scan from what comes `before` each lane; one that is a field as it is lies where that
        does."""
        kernel, shift = self.kernels.project, 0 if before is None else 1
        fields = [o if o < len(state) and before is None else None for o in kernel.outputs]
        values = [
            self._tile(stored(d)) if field is None else state[field]
            for field, d in zip(fields, self.program.outputs, strict=True)
        ]
        if before is not None:
            self._run(kernel, before, self._steps(values)[0])
        for at, count in self._together(self.steps - shift):
            parts, targets = self._cut(state, 0, at, count), self._cut(values, 0, at + shift, count)
            same = [t if f is None else parts[f] for f, t in zip(fields, targets, strict=True)]
            self._run(kernel, parts, same)
        return values


def in_whole_levels(steps: int) -> int:
    """So many steps or a few more, that each level is one operation: 4, 5 or 6 times a power of two, or fewer than 4."""
    unit = 1 << max(0, (steps - 1).bit_length() - 3)
    made = -(-steps // unit) * unit
    return made + unit if made == 7 * unit else made
