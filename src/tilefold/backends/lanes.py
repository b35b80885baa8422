"""Any monoid on torch operations: the lanes algorithm in cache-sized pieces. The CPU's backend.

A fold is cut into boxes of neighbouring elements that stay in cache. Few threads take boxes of results each; where there are
many, a box holds as many results' shares, so that each operation has one for each thread, and a thread finds it in its cache
again. Where results are few, a long fold is cut into parts first, each a result of its own; their states meet at the end.
What happens to the boxes of a result depends on the monoid:

    lanes      every element of a box is a lane; the next box meets the lanes element by element; lanes meet at the end
    blocks     a whole box becomes one state a result: by `absorb`, or by torch's reductions where fields meet one by one
    in order   the neighbours of a box meet in a tree, and so do the boxes: for monoids in which order matters

Which elements meet in what order does not depend on the number of threads. With "batch_invariant" only lanes and order are
used, the boxes' lengths along folded dims follow from those dims' sizes alone, and so do the parts; and no operation is used
whose bits depend
on an element's place, nor one that sums in an order of torch's choice.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Sequence

import torch

from tilefold.algebra.evaluate import stored
from tilefold.algebra.program import Program, with_index_dtype
from tilefold.backends import elementwise, workers
from tilefold.backends.elementwise import Workspace
from tilefold.backends.pieces import Box, Pieces, boxes, narrow, pieces_of
from tilefold.planner.plan import Plan
from tilefold.planner.view import power_above, power_below

# Elements of a share. Few threads take several of them at once: boxes that the L3 holds, and fewer operations.
LANES = 1 << 15
BLOCK = 1 << 16  # of a block that is absorbed at once: fewer operations on each than on lanes
ABSORBED = 4  # elements of a result, at least, for absorbing to pay
RUN = 256  # neighbours in memory that are read together
STEPS = 16  # at least, in a long fold: meeting costs as much as a step of all lanes
ORDERED_ALONE = 1 << 16  # neighbours that meet in one box, where it must not matter what else is folded
LEVEL = 64  # results side by side that are enough for torch to run along
PARTS = 16  # at most, of one result: enough for threads to share
PART = 1 << 18  # elements, at least
LEFT = 4  # a dim is cut into parts if what is left at its end is at most the fourth of it
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
    with torch.no_grad():
        if length and results[0].numel():
            alone = guarantee == "batch_invariant"
            reason = _run(pieces_of(tensors, program, dims, alone), alone, results)
        elif results[0].numel():
            values = [r.view(1, -1) for r in results]
            elementwise.kernels(program).project.run(_identity(program, values[0].shape), values, Workspace())
    plan = Plan("lanes", (), guarantee=guarantee, reason=reason)
    pairs = zip(results, program.outputs, strict=True)
    return [r.view(torch.uint64) if d == torch.uint64 else r for r, d in pairs], plan


def _run(pieces: Pieces, alone: bool, results: Sequence[Tensor]) -> str:
    """Fold all of `pieces` into `results`; gives a word on how."""
    layout = _Layout(pieces, alone)
    if layout.parts == 1:
        layout.share_out(lambda some: _Walk(layout).project(some, results))
        return layout.reason
    layouts = [_Layout(some, alone) for some in pieces.in_parts(layout.parts) if some]
    fields = zip(*map(_states, layouts), strict=True)
    last = _Walk(layout)
    state = last.meet([torch.cat([f.view(-1, results[0].numel()) for f in field]) for field in fields])
    last.kernels.project.run(state, [r.view(1, -1) for r in results], last.workspace)
    return f"{layouts[0].reason}, {layout.parts} parts"


def _states(layout: _Layout) -> State:
    """Fold everything: each result's state, contiguous in the kept dims' shape."""
    shape = [dim.size for dim in layout.pieces.kept]
    states = [torch.empty(shape, dtype=stored(d), device="cpu") for d in layout.program.state]
    layout.share_out(lambda some: _Walk(layout).store(some, states))
    return states


@functools.lru_cache(maxsize=256)
def _short_positions(program: Program) -> Program:
    """Positions of 32 bits, where they are only compared and moved."""
    return with_index_dtype(program, torch.int32)


class _Layout:
    """How one call is cut: its boxes, and into how many parts each result should be."""

    def __init__(self, pieces: Pieces, alone: bool) -> None:
        self.pieces, self.program, self.alone = pieces, pieces.program, alone
        self.sizes = [dim.size for dim in pieces.dims]
        self.length = math.prod(dim.size for dim in pieces.folded)
        self.way, share = self._way()
        self.parts = self._parts(share)
        threads = torch.get_num_threads()
        self.threads = threads if 1 < threads <= workers.FEW else 1
        together = PARTS // self.threads if threads <= workers.FEW else max(PARTS, power_above(threads))
        self.box = pieces.grow(share, pieces.near(folded=False), together)
        self.reason = f"{self.way}, boxes of {' x '.join(map(str, self.box)) or 1} elements"
        self.kernels = elementwise.kernels(self.program, alone, self._ascends())

    @functools.cached_property
    def kept(self) -> list[Box]:
        """The boxes of results."""
        return list(boxes(self.pieces.kept, self.box[: len(self.pieces.kept)]))

    @functools.cached_property
    def turns(self) -> list[Box]:
        """The boxes that meet in each result."""
        return list(boxes(self.pieces.folded, self.box[len(self.pieces.kept) :]))

    def _ascends(self) -> bool:
        """Whether a lane meets its elements in the order of their positions: folded dims are walked as memory lies."""
        kept = len(self.pieces.kept)
        places = range(kept, len(self.box))
        steps = [self.pieces.steps[d] for d in places if self.box[d] < self.sizes[d]]
        return steps == sorted(steps, reverse=True)

    def share_out(self, work: Callable[[Sequence[Box]], None]) -> None:
        """Do some work for all boxes of kept dims: on a thread each share of them, where threads are few."""
        count = -(-len(self.kept) // (2 * self.threads)) if self.threads > 1 else len(self.kept)
        workers.each(work, [self.kept[i : i + count] for i in range(0, len(self.kept), count)], self.threads)

    def _parts(self, share: Sequence[int]) -> int:
        """A power of two, which threads can share evenly. With `alone` it follows from the folded dims alone."""
        folded = [dim.size for dim in self.pieces.folded]
        cut = max(folded, default=1) if self.program.algebra.commutative else (folded or [1])[0]
        kept = math.prod(math.ceil(dim.size / n) for dim, n in zip(self.pieces.kept, share, strict=False))
        most = PARTS if self.alone else PARTS // kept
        return power_below(max(1, min(most, self.length // PART, cut // LEFT)))

    def _way(self) -> tuple[str, list[int]]:
        """What happens to the boxes of a result, and a thread's share of a box."""
        lanes = max(RUN, self.length // STEPS)
        if not self.program.algebra.commutative:
            return "in order", self._box_in_order(ORDERED_ALONE if self.alone else LANES)
        if self.alone:
            return "lanes", self._box_in_order(min(LANES, lanes))
        if self.length >= ABSORBED and elementwise.absorbs(self.program):
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


class _Walk:
    """Folds what a layout cuts, box by box, in buffers that it reuses."""

    def __init__(self, layout: _Layout) -> None:
        self.layout, self.pieces, self.program = layout, layout.pieces, layout.program
        self.kernels, self.workspace = layout.kernels, Workspace()

    def project(self, some: Sequence[Box], results: Sequence[Tensor]) -> None:
        """Fold some boxes of kept dims and write the projected results where they live."""
        for kept in some:
            state = self._folded(kept)
            values = [torch.empty(state[0].shape, dtype=r.dtype, device="cpu") for r in results]
            self.kernels.project.run(state, values, self.workspace)
            self._place(values, kept, results)

    def store(self, some: Sequence[Box], states: State) -> None:
        """Fold some boxes of kept dims: each result's state goes where it lives."""
        for kept in some:
            self._place(self._folded(kept), kept, states)

    def _place(self, values: Sequence[Tensor], kept: Box, results: Sequence[Tensor]) -> None:
        for value, result in zip(values, results, strict=True):
            place = self.pieces.place(result, kept)
            place.copy_(value.view(place.shape))

    def _folded(self, kept: Box) -> State:
        """The states of a box of kept dims: [1, results]."""
        turns = [(*kept, *turn) for turn in self.layout.turns]
        if self.layout.way == "lanes":
            lengths = [length for _, length in turns[0]]
            laid_out = self.pieces.laid_out(lengths)
            return self.meet([self.pieces.by_rows(s.view(laid_out)) for s in self._lanes(turns)])
        return self._blocks(turns) if self.layout.way == "blocks" else self._in_order(turns)

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
        return state

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
