"""Any monoid on torch operations: the lanes algorithm in cache-sized pieces. The CPU's backend.

A fold is cut into parts, which threads share, and a part into boxes of neighbouring elements that stay in cache. What
happens to the boxes of a part depends on the monoid:

    lanes      every element of a box is a lane; the next box meets the lanes element by element; lanes meet at the end
    blocks     `absorb` takes a whole box into one state a result
    in order   the neighbours of a box meet in a tree, and so do the boxes: for monoids in which order matters

How a fold is cut does not depend on the number of threads. With "batch_invariant" only lanes and order are used, the boxes'
lengths along folded dims follow from those dims' sizes alone, and so do the parts; and no operation is used whose bits depend
on an element's place, nor one that sums in an order of torch's choice.
"""

from __future__ import annotations

import functools
import itertools
import math
from collections.abc import Sequence

import torch

from tilefold.algebra.evaluate import stored
from tilefold.algebra.program import Program, with_index_dtype
from tilefold.backends import elementwise, workers
from tilefold.backends.elementwise import Workspace
from tilefold.backends.pieces import Box, Pieces, boxes, narrow
from tilefold.planner.plan import Plan

# Threads that share an interpreter wake each other at every operation: below 2^17 elements each that costs more than it gains
# (measured: five times slower at 2^16). Above, a state and what is between no longer stay in an L2 cache of 1 MiB.
LANES = 1 << 17
BLOCK = 1 << 18  # elements of a block that is absorbed at once: fewer operations on each than on lanes
ABSORBED = 4  # elements of a result, at least, for absorbing to pay
RUN = 256  # neighbours in memory that are read together
STEPS = 16  # at least, in a long fold: meeting costs as much as a step of all lanes
ORDERED_ALONE = 1 << 16  # neighbours that meet in one box, where it must not matter what else is folded
LEVEL = 64  # results side by side that are enough for torch to run along
PARTS = 16  # at most, of one result: enough for threads to share
PART = 1 << 21  # elements, at least
SMALL = 1 << 15  # elements: torch shares out no operation this short
Tensor = torch.Tensor
State = list[Tensor]


def fold(
    tensors: Sequence[Tensor], program: Program, dims: Sequence[int], guarantee: str
) -> tuple[list[Tensor], Plan]:
    """Fold `dims` of tensors of one shape; results are contiguous, in the kept dims' shape.

    Inputs are read through any strides, as `program.elements` where their own dtype differs. Bits are the same from run
    to run; with "batch_invariant" a result's depend on its own elements (and the folded dims' sizes) alone.
    """
    shape = tensors[0].shape
    length = math.prod(shape[d] for d in dims)
    if program.algebra.index and program.algebra.index_is_label and 0 < length < 1 << 31:
        program = _short_positions(program)
    kept = [n for d, n in enumerate(shape) if d not in dims]
    results = [torch.empty(kept, dtype=stored(d), device="cpu") for d in program.outputs]
    reason = "nothing to fold"
    if length and results[0].numel():
        alone = guarantee == "batch_invariant"
        layout = _Layout(Pieces(tensors, program, dims, alone), alone)
        layout.run(results)
        reason = layout.reason
    elif results[0].numel():
        values = [r.view(1, -1) for r in results]
        elementwise.kernels(program).project.run(_identity(program, values[0].shape), values, Workspace())
    plan = Plan("lanes", (), guarantee=guarantee, reason=reason)
    pairs = zip(results, program.outputs, strict=True)
    return [r.view(torch.uint64) if d == torch.uint64 else r for r, d in pairs], plan


@functools.lru_cache(maxsize=256)
def _short_positions(program: Program) -> Program:
    """Positions of 32 bits, where they are only compared and moved."""
    return with_index_dtype(program, torch.int32)


class _Layout:
    """How one call is cut: the box, and the parts that threads share."""

    def __init__(self, pieces: Pieces, alone: bool) -> None:
        self.pieces, self.program, self.alone = pieces, pieces.program, alone
        self.sizes = [dim.size for dim in pieces.dims]
        self.length = math.prod(dim.size for dim in pieces.folded)
        self.parts = max(1, min(PARTS, self.length // PART))
        self.way, self.box = self._way()
        self.kept = list(boxes(pieces.kept, self.box[: len(pieces.kept)]))
        self.reason = f"{self.way}, boxes of {' x '.join(map(str, self.box)) or 1} elements"
        self.kernels = elementwise.kernels(self.program, alone)

    def _way(self) -> tuple[str, list[int]]:
        lanes = max(RUN, self.length // (STEPS * self.parts))
        if not self.program.algebra.commutative:
            return "in order", self._box_in_order(ORDERED_ALONE if self.alone else LANES)
        if self.alone:
            return "lanes", self._box_in_order(min(LANES, lanes))
        if self.program.absorb is not None and self.length >= ABSORBED:
            return "blocks", self._box_of_blocks()
        return "lanes", self._box_of_lanes(lanes)

    def _box_of_lanes(self, lanes: int) -> list[int]:
        """A run of neighbours in memory; then many results; then lanes of each, but few enough to take turns."""
        pieces, kept = self.pieces, len(self.pieces.kept)
        first = pieces.near(folded=True) if pieces.short else pieces.order[::-1]
        box = pieces.grow([1] * len(self.sizes), first, RUN)
        box = pieces.grow(box, pieces.near(folded=False), LANES // math.prod(box))
        more = min(LANES // math.prod(box), lanes // math.prod(box[kept:]))
        return pieces.grow(box, pieces.near(folded=True), more)

    def _box_of_blocks(self) -> list[int]:
        """A run of neighbours in memory; then as much of each result as there is room for; then results."""
        pieces = self.pieces
        box = pieces.grow([1] * len(self.sizes), pieces.order[::-1], RUN)
        box = pieces.grow(box, pieces.near(folded=True), BLOCK // math.prod(box))
        return pieces.grow(box, pieces.near(folded=False), BLOCK // math.prod(box))

    def _box_in_order(self, folded: int) -> list[int]:
        """Neighbours in the fold's order, their number given by the folded dims alone; then results."""
        pieces, kept = self.pieces, len(self.pieces.kept)
        box = pieces.grow([1] * len(self.sizes), range(len(self.sizes) - 1, kept - 1, -1), folded)
        near = RUN if pieces.order and pieces.order[-1] < kept else 1
        return pieces.grow(box, pieces.near(folded=False), max(near, LANES // math.prod(box)))

    def turns(self) -> list[tuple[Box, ...]]:
        """Where the parts of each result cut its farthest folded dim; one part takes all where results are many."""
        kept = len(self.pieces.kept)
        cuts = list(boxes(self.pieces.folded[:1], self.box[kept : kept + 1]))
        parts = self.parts if self.alone else min(PARTS // len(self.kept), math.prod(self.sizes) // PART)
        share = -(-len(cuts) // max(1, parts))
        turns = [tuple(cuts[i : i + share]) for i in range(0, len(cuts), share)]
        if (
            len(turns) > 1 and len(turns[-1]) == 1
        ):  # the last cut may be shorter than a box, and a part's first is not
            turns[-2:] = [turns[-2] + turns[-1]]
        return turns

    def run(self, results: Sequence[Tensor]) -> None:
        """Fold everything: parts side by side, and then, for each result, its parts together."""
        turns = self.turns()
        small = math.prod(self.sizes) <= SMALL
        if len(turns) == 1:
            share = -(-len(self.kept) // (2 * PARTS))
            several = [self.kept[i : i + share] for i in range(0, len(self.kept), share)]
            workers.each(lambda some: _Part(self).finish(some, turns[0], results), several, small=small)
            return
        jobs = list(itertools.product(self.kept, turns))
        states = workers.each(lambda job: _Part(self).states(*job), jobs, small=small)
        last = _Part(self)
        for i, kept in enumerate(self.kept):
            fields = zip(*states[i * len(turns) : (i + 1) * len(turns)], strict=True)
            last.store(last.meet([torch.cat(parts) for parts in fields]), kept, results)


class _Part:
    """One thread's share of the work, and the buffers it reuses from box to box."""

    def __init__(self, layout: _Layout) -> None:
        self.layout, self.pieces, self.program = layout, layout.pieces, layout.program
        self.kernels, self.workspace = layout.kernels, Workspace()

    def finish(self, several: Sequence[Box], cuts: tuple[Box, ...], results: Sequence[Tensor]) -> None:
        """Whole results, box by box of the kept dims."""
        for kept in several:
            self.store(self.states(kept, cuts), kept, results)

    def states(self, kept: Box, cuts: tuple[Box, ...]) -> State:
        """The states of a box of kept dims after these cuts of the farthest folded dim: [1, results], or [1, lanes]."""
        ways = {"lanes": self._lanes, "blocks": self._blocks, "in order": self._in_order}
        inner = list(boxes(self.pieces.folded[1:], self.layout.box[len(kept) + 1 :]))
        return ways[self.layout.way]([(*kept, *cut, *rest) for cut in cuts for rest in inner])

    def _lanes(self, turns: Sequence[Box]) -> State:
        """Each box meets the lanes, which the first box made."""
        first = self._elements(turns[0])
        state, spare = (self._buffers(use, first[0].shape) for use in ("lanes", "spare lanes"))
        self.kernels.lift.run(first, state, self.workspace)
        for box in turns[1:]:
            elements = self._elements(box)
            if elements[0].shape == state[0].shape:
                self.kernels.step.run([*state, *elements], spare, self.workspace)
                state, spare = spare, state
            else:
                self._some_lanes(state, elements)
        return [s.view(1, -1) for s in state]

    def _some_lanes(self, state: State, elements: Sequence[Tensor]) -> None:
        """The last box along some dim is shorter: fewer lanes have an element left."""
        shape = elements[0].shape
        some = [narrow(s, tuple((0, length) for length in shape)) for s in state]
        fresh = self._buffers("some lanes", shape)
        self.kernels.step.run([*some, *elements], fresh, self.workspace)
        for target, value in zip(some, fresh, strict=True):
            target.copy_(value)

    def _blocks(self, turns: Sequence[Box]) -> State:
        """Each box is absorbed whole, the first one as the state's beginning."""
        kept = len(self.pieces.kept)
        axes = tuple(i for i, d in enumerate(self.pieces.order) if d >= kept)
        begin, absorb = (
            make(self.program, axes) for make in (elementwise.begin_kernel, elementwise.absorb_kernel)
        )
        lengths = [length if d < kept else 1 for d, (_, length) in enumerate(turns[0])]
        shape = [lengths[d] for d in self.pieces.order]
        state = begin.small(self._elements(turns[0]), self.workspace)
        for box in turns[1:]:
            state = absorb.small([*state, *self._elements(box)], self.workspace)
        return [self.pieces.by_rows(s.expand(shape)) for s in state]

    def _in_order(self, turns: Sequence[Box]) -> State:
        """Each box meets in a tree of neighbours, but for the last few levels; those of all boxes follow together."""
        parts = []
        for box in turns:
            elements = [self.pieces.by_rows(e) for e in self._elements(box)]
            state = self._buffers("lanes", elements[0].shape)
            self.kernels.lift.run(elements, state, self.workspace)
            parts.append([s.clone() for s in self.meet(state, LEVEL)])
        return self.meet([torch.cat(fields) for fields in zip(*parts, strict=True)])

    def meet(self, state: State, lanes: int = 1) -> State:
        """[lanes, results] to at most `lanes` lanes: neighbours meet, an odd last one waits for the next level.

        So who meets whom does not depend on the number of results.
        """
        while (rows := state[0].shape[0]) > lanes:
            short = state[0].shape[1] < LEVEL and rows >= 2 * LEVEL
            state = self._groups(state) if short else self._pairs(state)
        return state

    def _pairs(self, state: State) -> State:
        """One level of the tree."""
        lanes, results = state[0].shape
        merged = self._buffers("meet", (lanes - lanes // 2, results))
        sides = [s[side : lanes - lanes % 2 : 2] for side in (0, 1) for s in state]
        self.kernels.combine.run(sides, [m[: lanes // 2] for m in merged], self.workspace)
        if lanes % 2:
            for target, last in zip(merged, state, strict=True):
                target[-1] = last[-1]
        return merged

    def _groups(self, state: State) -> State:
        """Several levels where results are few: all groups of neighbours at once, so that torch has long rows."""
        lanes, results = state[0].shape
        whole = lanes // LEVEL * LEVEL
        rows = [s[:whole].view(-1, LEVEL, results).transpose(0, 1).reshape(LEVEL, -1) for s in state]
        groups = [s.view(-1, results).clone() for s in self.meet(rows)]
        if whole == lanes:
            return groups
        last = self.meet([s[whole:] for s in state])
        return [torch.cat(both) for both in zip(groups, last, strict=True)]

    def store(self, state: State, kept: Box, results: Sequence[Tensor]) -> None:
        """Let lanes meet, project final states and write them where the box's results live."""
        if self.layout.way == "lanes":
            lengths = [length for _, length in kept] + self.layout.box[len(kept) :]
            laid_out = self.pieces.laid_out(lengths)
            state = self.meet([self.pieces.by_rows(s.view(laid_out)) for s in state])
        shape = state[0].shape
        values = [torch.empty(shape, dtype=stored(d), device="cpu") for d in self.program.outputs]
        self.kernels.project.run(state, values, self.workspace)
        for value, result in zip(values, results, strict=True):
            place = self.pieces.place(result, kept)
            place.copy_(value.view(place.shape))

    def _elements(self, box: Box) -> list[Tensor]:
        return self.pieces.elements(box, self.workspace)

    def _buffers(self, use: str, shape: Sequence[int]) -> State:
        key = (use, tuple(shape))
        if key not in self.workspace:
            self.workspace[key] = [
                torch.empty(tuple(shape), dtype=stored(d), device="cpu") for d in self.program.state
            ]
        return self.workspace[key]


def _identity(program: Program, shape: Sequence[int]) -> State:
    numbers = zip(program.identity, program.state, strict=True)
    return [torch.full(list(shape), _signed(n, d), dtype=stored(d), device="cpu") for n, d in numbers]


def _signed(number: float, dtype: torch.dtype) -> float:
    """An identity as its stored dtype takes it."""
    return (int(number) + 2**63) % 2**64 - 2**63 if dtype == torch.uint64 else number
