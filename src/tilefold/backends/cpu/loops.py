"""Any monoid on torch operations: loops over tiles that stay in cache. The CPU's backend; `planner.cpu` decides.

Few threads take tiles of results each; where there are many, a tile holds as many results' shares, so that each operation
has one for each thread, and a thread finds it in its cache again. With "batch_invariant" no operation is used whose bits
depend on an element's place, nor one that sums in an order of torch's choice.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Sequence

import torch

from tilefold.algebra.evaluate import held, stored
from tilefold.algebra.program import Program
from tilefold.algebra.whole_vectors import SERIAL
from tilefold.backends.cpu import elementwise, workers
from tilefold.backends.cpu.elementwise import Workspace
from tilefold.backends.cpu.tiles import Inputs, Tile, inputs_of, narrow, tiles_in
from tilefold.planner.folds import narrowed
from tilefold.planner.plan import Plan
from tilefold.planner.problem.canonical import Problem
from tilefold.planner.stages.cpu import Tiles, in_parts

_AS_THEY_ARE = (torch.float32, torch.float64, torch.int64)  # read and folded in the dtype that they have
LEVEL = 64  # results side by side that are enough for torch to run along (not measured)
Tensor = torch.Tensor
State = list[Tensor]


class Executable:
    """A plan of `planner.cpu` with all that does not depend on tensors' memory: kernels, tiles, where results live.

    Called with tensors of the planned layout it folds them. Inputs are read through any strides, as `program.elements` where
    their own dtype differs. Bits are the same from run to run; with "batch_invariant" a result's depend on its own elements
    (and the reduced dims' sizes) alone.
    """

    def __init__(self, plan: Plan, problem: Problem, program: Program, shape: Sequence[int]) -> None:
        self.plan, self.problem, self.shape = plan, problem, tuple(shape)
        self.program = narrowed(program, problem.length)
        self.stored = [stored(d) for d in program.outputs]
        self.unsigned = torch.uint64 in program.outputs
        steps, alone = plan.launched, plan.guarantee == "batch_invariant"
        problems: list[Problem | None] = [problem] if steps else []
        self.parts = 1
        if len(steps) > 1:
            self.parts = steps[-1].settings.parts - (len(steps) > 2)
            problems = list(in_parts(problem, self.parts, program.algebra.commutative))
        self.loops: list[_Loop] = [
            _Loop(self.program, part, step.settings, alone)
            for part, step in zip([p for p in problems if p is not None], steps, strict=False)
        ]
        self.block = (
            _Block(self.loops[0], self.shape) if self.parts == 1 and _is_one_block(self.loops) else None
        )

    def repeated(self, *tensors: Tensor) -> list[Tensor]:
        """The same of tensors that are known not to negate."""
        return self(tensors) if self.block is None else self.block(tensors)

    def __call__(self, tensors: Sequence[Tensor]) -> list[Tensor]:
        """Results, contiguous, in the shape that was said."""
        if self.block is not None and not any(t.is_neg() for t in tensors):
            return self.block(tensors)
        results = [torch.empty(self.shape, dtype=d, device="cpu") for d in self.stored]
        with torch.no_grad():
            if not self.loops:
                _fill(self.program, results)
            elif results[0].numel():
                self._fold(inputs_of(tensors, self.program, self.problem), results)
        if not self.unsigned:
            return results
        pairs = zip(results, self.program.outputs, strict=True)
        return [r.view(torch.uint64) if d == torch.uint64 else r for r, d in pairs]

    def _fold(self, inputs: Inputs, results: Sequence[Tensor]) -> None:
        """One loop; or one for each part of the problem, whose states are then combined."""
        if self.parts == 1:
            loop = self.loops[0]
            loop.share_out(lambda some: _Walk(loop, inputs).project(some, results))
            return
        parts = [some for some in inputs.in_parts(self.parts) if some is not None]
        fields = zip(*map(_states, self.loops, parts), strict=True)
        last = _Walk(self.loops[0], parts[0])
        state = last.combine_lanes(
            [torch.cat([f.view(-1, results[0].numel()) for f in field]) for field in fields]
        )
        last.kernels.project.run(state, [r.view(1, -1) for r in results], last.workspace)


def _is_one_block(loops: Sequence[_Loop]) -> bool:
    """Whether a problem is one small tile of elements, absorbed at once."""
    if len(loops) != 1 or loops[0].way != "blocks":
        return False
    loop = loops[0]
    as_they_are = all(
        d == element and d in _AS_THEY_ARE
        for d, element in zip(loop.problem.dtypes, loop.program.elements, strict=True)
    )
    plain = as_they_are and not loop.program.algebra.index and torch.uint64 not in loop.program.outputs
    return plain and loop.whole and len(loop.turns) == 1 and math.prod(loop.tile) < SERIAL


class _Block:
    """A fold of one tile, for calls so small that each operation of torch's counts: a view, the block, its results."""

    def __init__(self, loop: _Loop, shape: Sequence[int]) -> None:
        dims = [loop.problem.dims[d] for d in loop.order]
        self.shape, self.sizes = tuple(shape), tuple(d.size for d in dims)
        self.count = math.prod(self.shape)
        self.strides = [tuple(d.strides[i] for d in dims) for i in range(len(loop.problem.dtypes))]
        self.begin = loop.begin.at_once(math.prod(self.sizes))
        self.project = None if loop.project_is_plain else loop.kernels.project.at_once(self.count)
        self.stored = [stored(d) for d in loop.program.outputs]

    def __call__(self, tensors: Sequence[Tensor]) -> list[Tensor]:
        """The results of the block's states."""
        states = [self._placed(s) for s in self.begin([*map(self._seen, tensors, self.strides)])]
        if self.project is None:
            return states
        made = self.project(states)
        return [
            m if m.dtype == d and m.shape == self.shape and not any(m is o for o in (*states, *made[:i]))
            else m.to(d).expand(self.shape).clone(memory_format=torch.contiguous_format)
            for i, (m, d) in enumerate(zip(made, self.stored, strict=True))
        ]  # fmt: skip

    def _placed(self, state: Tensor) -> Tensor:
        """A state in the results' shape: one of a constant has no dims."""
        if state.shape == self.shape:
            return state
        return state.view(self.shape) if state.numel() == self.count else state.expand(self.shape)

    def _seen(self, tensor: Tensor, strides: tuple[int, ...]) -> Tensor:
        if tensor.shape == self.sizes and tensor.stride() == strides:
            return tensor
        return tensor.as_strided(self.sizes, strides, tensor.storage_offset())


def _fill(program: Program, results: Sequence[Tensor]) -> None:
    """The fold of nothing: the projected identity, everywhere."""
    values = [r.view(1, -1) for r in results]
    if values[0].numel():
        elementwise.kernels(program).project.run(_identity(program, values[0].shape), values, Workspace())


def _states(loop: _Loop, inputs: Inputs) -> State:
    """Fold everything: each result's state, contiguous in the output dims' shape."""
    shape = [dim.size for dim in loop.problem.output_dims]
    states = [torch.empty(shape, dtype=stored(d), device="cpu") for d in loop.program.state]
    loop.share_out(lambda some: _Walk(loop, inputs).store(some, states))
    return states


class _Loop:
    """One loop: its problem, its tiles, and the computation of each."""

    def __init__(self, program: Program, problem: Problem, tiles: Tiles, alone: bool) -> None:
        self.program, self.problem = program, problem
        self.way, self.threads, self.tile, self.order = tiles.form, tiles.threads, tiles.tile, tiles.order
        self.kernels = elementwise.kernels(program, alone, _ascends(problem, tiles))
        outputs = len(problem.output_dims)
        self.outputs = list(tiles_in(problem.output_dims, tiles.tile[:outputs]))
        self.reduced_lengths = tiles.tile[outputs:]
        if self.way == "blocks":
            axes = tuple(i for i, d in enumerate(tiles.order) if d >= outputs)
            self.begin = elementwise.begin_kernel(program, axes)
            self.absorb = elementwise.absorb_kernel(program, axes)

    @functools.cached_property
    def turns(self) -> list[Tile]:
        """The tiles that are combined into each result."""
        return list(tiles_in(self.problem.reduced_dims, self.reduced_lengths))

    @functools.cached_property
    def whole(self) -> bool:
        """Whether one tile holds all results, in the order in which they lie in memory."""
        steps = [d.output for d in self.problem.output_dims]
        return len(self.outputs) == 1 and steps == sorted(steps, reverse=True)

    @property
    def project_is_plain(self) -> bool:
        """Whether results are the block's states themselves: each in memory of its own, in the dtype that it is stored in."""
        outputs = self.begin.outputs
        own = len(set(outputs)) == len(outputs) and all(self.begin.is_reduced(o) for o in outputs)
        graph = self.program.project.graph
        inputs = [graph.nodes[o] for o in graph.outputs]
        plain = all(n.op == "input" and n.value == i for i, n in enumerate(inputs))
        as_stored = all(stored(d) == d for d in self.program.outputs)
        return own and plain and as_stored and self.program.outputs == self.program.state

    def share_out(self, work: Callable[[Sequence[Tile]], None]) -> None:
        """Do some work for all tiles of output dims, shared among threads."""
        workers.shared_out(work, self.outputs, self.threads)


def _ascends(problem: Problem, tiles: Tiles) -> bool:
    """Whether a lane takes its elements in the order of their positions: reduced dims are read as memory lies."""
    pairs = zip(problem.dims, tiles.tile, strict=True)
    steps = [d.position for d, n in pairs if d.role == "reduce" and n < d.size]
    return steps == sorted(steps, reverse=True)


class _Walk:
    """Folds a loop's tiles, one by one, in buffers that it reuses."""

    def __init__(self, loop: _Loop, inputs: Inputs) -> None:
        self.loop, self.inputs, self.program = loop, inputs, loop.program
        self.kernels, self.workspace = loop.kernels, Workspace()

    def project(self, some: Sequence[Tile], results: Sequence[Tensor]) -> None:
        """Fold some tiles of output dims and write the projected results where they live."""
        for output in some:
            state = self._folded(output)
            if self.loop.whole:
                self.kernels.project.run(state, [r.view(1, -1) for r in results], self.workspace)
                return
            values = [torch.empty(state[0].shape, dtype=r.dtype, device="cpu") for r in results]
            self.kernels.project.run(state, values, self.workspace)
            self._place(values, output, results)

    def store(self, some: Sequence[Tile], states: State) -> None:
        """Fold some tiles of output dims: each result's state goes where it lives."""
        for output in some:
            self._place(self._folded(output), output, states)

    def _place(self, values: Sequence[Tensor], output: Tile, results: Sequence[Tensor]) -> None:
        for value, result in zip(values, results, strict=True):
            place = self.inputs.place(result, output)
            place.copy_(value.view(place.shape))

    def _folded(self, output: Tile) -> State:
        """The states of a tile of output dims: [1, results]."""
        turns = [(*output, *turn) for turn in self.loop.turns]
        if self.loop.way == "lanes":
            lengths = [length for _, length in turns[0]]
            laid_out = self.inputs.laid_out(lengths)
            return self.combine_lanes([self.inputs.by_rows(s.view(laid_out)) for s in self._lanes(turns)])
        return self._blocks(turns) if self.loop.way == "blocks" else self._in_order(turns)

    def _lanes(self, turns: Sequence[Tile]) -> State:
        """Each tile is combined with the lanes, which the first tile made."""
        first = self._elements(turns[0])
        state, spare = (self._buffers(use, first[0].shape) for use in ("lanes", "spare lanes"))
        self.kernels.lift.run(first, state, self.workspace)
        for tile in turns[1:]:
            elements = self._elements(tile)
            if elements[0].shape == state[0].shape:
                self.kernels.step.run([*state, *elements], spare, self.workspace)
                state, spare = spare, state
            else:
                self._some_lanes(state, elements)
        return state

    def _some_lanes(self, state: State, elements: Sequence[Tensor]) -> None:
        """The last tile along some dim is shorter: fewer lanes have an element left."""
        shape = elements[0].shape
        some = [narrow(s, tuple((0, length) for length in shape)) for s in state]
        fresh = self._buffers("some lanes", shape)
        self.kernels.step.run([*some, *elements], fresh, self.workspace)
        for target, value in zip(some, fresh, strict=True):
            target.copy_(value)

    def _blocks(self, turns: Sequence[Tile]) -> State:
        """Each tile is absorbed whole, the first one as the state's beginning."""
        outer, begin, absorb = len(self.inputs.outputs), self.loop.begin, self.loop.absorb
        lengths = [length if d < outer else 1 for d, (_, length) in enumerate(turns[0])]
        shape = [lengths[d] for d in self.inputs.order]
        state = begin.small(self._elements(turns[0]), self.workspace)
        for tile in turns[1:]:
            state = absorb.small([*state, *self._elements(tile)], self.workspace)
        return [self.inputs.by_rows(s.expand(shape)) for s in state]

    def _in_order(self, turns: Sequence[Tile]) -> State:
        """Each tile is combined in a tree of neighbours, but for the last few levels; those of all tiles follow together."""
        parts = []
        for tile in turns:
            elements = [self.inputs.by_rows(e) for e in self._elements(tile)]
            state = self._buffers("lanes", elements[0].shape)
            self.kernels.lift.run(elements, state, self.workspace)
            parts.append([s.clone() for s in self.combine_lanes(state, LEVEL)])
        return self.combine_lanes([torch.cat(fields) for fields in zip(*parts, strict=True)])

    def combine_lanes(self, state: State, lanes: int = 1) -> State:
        """[lanes, results] to at most `lanes` lanes: neighbours are combined, an odd last one waits for the next level.

        So the order of combination does not depend on the number of results.
        """
        while (rows := state[0].shape[0]) > lanes:
            short = state[0].shape[1] < LEVEL and rows >= 2 * LEVEL
            state = self._groups(state) if short else self._pairs(state)
        return state

    def _pairs(self, state: State) -> State:
        """One level of the tree."""
        lanes, results = state[0].shape
        merged = self._buffers("combined", (lanes - lanes // 2, results))
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
        groups = [s.view(-1, results).clone() for s in self.combine_lanes(rows)]
        if whole == lanes:
            return groups
        last = self.combine_lanes([s[whole:] for s in state])
        return [torch.cat(both) for both in zip(groups, last, strict=True)]

    def _elements(self, tile: Tile) -> list[Tensor]:
        return self.inputs.elements(tile, self.workspace)

    def _buffers(self, use: str, shape: Sequence[int]) -> State:
        key = (use, tuple(shape))
        if key not in self.workspace:
            self.workspace[key] = [
                torch.empty(tuple(shape), dtype=stored(d), device="cpu") for d in self.program.state
            ]
        return self.workspace[key]


def _identity(program: Program, shape: Sequence[int]) -> State:
    numbers = zip(program.identity, program.state, strict=True)
    return [held(n, d).expand(tuple(shape)).clone() for n, d in numbers]
