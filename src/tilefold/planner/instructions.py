"""Instructions a warp issues in one program of a launch, and registers a thread needs: predicted, linear in counted work.

What is counted follows from the graphs (operations by class, for each element and each state), from how loads are made
(`threads`) and from how lanes are combined. How many machine instructions each of these takes was fitted to machine code that
Triton and its assembler made offline, executed by the X-ray (benchmarks/planner/calibrate.py and fit_instructions.py, which
print the error on plans held back).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from operator import mul

import torch

from tilefold.algebra.expression import Graph
from tilefold.algebra.operations import OPS
from tilefold.algebra.program import Program
from tilefold.algebra.typing import TypedGraph
from tilefold.planner import fitted
from tilefold.planner.geometry import Geometry
from tilefold.planner.plan import Stage
from tilefold.planner.threads import Loads, widest
from tilefold.planner.view import WARP, power_above
from tilefold.planner.walk import Tiling, Walk, constant_length

# Classes of operations; each is fitted a number of instructions.
PLAIN, CHOICE, WIDE, SPECIAL, DIVIDE, SLOW, DOUBLE, ALONE = CLASSES = (
    "plain", "choice", "wide", "special", "divide", "slow", "double", "alone",
)  # fmt: skip

Counts = tuple[float, ...]  # one for each class


@dataclass(frozen=True)
class Work:
    """A program's operations by class: for each element and each state of a tile, each combination of two states, each
    result.

    A first tile makes states of its elements, by operations of its own. `selects` is how often a masked element is replaced.
    `words` are 32-bit words of a state, `fields` its fields, `converts` whether elements are converted when they are read.
    """

    element: Counts
    state: Counts
    first_element: Counts
    first_state: Counts
    combine: Counts
    result: Counts
    words: int
    fields: int
    selects: int
    converts: int
    sees_positions: bool
    absorbs: bool

    @cached_property
    def parts(self) -> tuple[Counts, ...]:
        """The operations of each part that `_done` says how often is done."""
        return (
            self.element,
            self.first_element,
            self.state,
            self.first_state,
            self.combine,
            self.result,
        )

    @cached_property
    def instructions(self) -> tuple[float, ...]:
        """Instructions of each part."""
        return tuple(sum(map(mul, _INSTRUCTIONS, counts)) for counts in self.parts)

    @cached_property
    def operations(self) -> float:
        """Operations of an element, of all classes."""
        return sum(self.element)


def work_of(program: Program, absorb: bool, partials: bool) -> Work:
    """The work of a fold's first launch, or (`partials`) of one whose elements are states."""
    nothing = (0.0,) * len(CLASSES)
    combine = _counts(program.combine)
    later = _counts(program.combine_later)
    element, state = _added(nothing if partials else _counts(program.lift), later), nothing
    first, first_state, selects = element, state, len(program.state)
    if absorb and program.absorb is not None and program.begin is not None and not partials:
        element, state = _block_counts(program.absorb, len(program.state))
        first, first_state = _block_counts(program.begin, 0)
        selects = sum(n.op.startswith("block_") for n in program.absorb.graph.nodes)
    words = sum(2 if d.itemsize == 8 else 1 for d in program.state)
    narrow = [d.itemsize != 4 or not d.is_floating_point for d in program.elements]
    return Work(
        element, state, first, first_state, combine, _counts(program.project), words, len(program.state), selects,
        0 if partials else sum(narrow), program.algebra.index and not partials, absorb and not partials,
    )  # fmt: skip


def _added(a: Counts, b: Counts, times: float = 1.0) -> Counts:
    return tuple(x + times * y for x, y in zip(a, b, strict=True))


def class_of(op: str, dtype: torch.dtype) -> str:
    """What an operation on operands of this dtype costs like."""
    row = OPS[op]
    if row.speed != SLOW and dtype == torch.float64:
        return DOUBLE
    if row.speed != PLAIN:
        return row.speed
    if dtype.itemsize == 8:
        return WIDE
    if row.kind == "float" and not row.values.fuses:
        return ALONE
    return CHOICE if row.kind in ("compare", "test", "select") else PLAIN


def _counts(typed: TypedGraph) -> Counts:
    """Operations of a graph by class; one that only passes values on has none."""
    found = dict.fromkeys(CLASSES, 0.0)
    for node, dtype in zip(typed.graph.nodes, typed.operand_dtypes, strict=True):
        if node.op not in ("input", "const", "block_count"):
            found[class_of(node.op, dtype)] += 1
    return tuple(found.values())


def _block_counts(typed: TypedGraph, states: int) -> tuple[Counts, Counts]:
    """Operations of a block form by class: for each element, and for each state; its first inputs are a state's."""
    over = over_block(typed.graph, states)
    element, state = dict.fromkeys(CLASSES, 0.0), dict.fromkeys(CLASSES, 0.0)
    for position, (node, dtype) in enumerate(zip(typed.graph.nodes, typed.operand_dtypes, strict=True)):
        if node.op in ("input", "const", "block_count", "block_first"):
            continue
        each = over[position] or (node.op.startswith("block_") and over[node.args[0]])
        (element if each else state)[class_of(node.op, dtype)] += 1
    return tuple(element.values()), tuple(state.values())


def over_block(graph: Graph, states: int) -> list[bool]:
    """Which nodes have a value for each element of a block, in a graph whose first inputs are a state's fields."""
    over: list[bool] = []
    for node in graph.nodes:
        if node.op == "input":
            over.append(node.value >= states)
        else:
            over.append(not node.op.startswith("block_") and any(over[a] for a in node.args))
    return over


FEATURES = (
    *CLASSES, "program", "operands", "outer", "split", "aligned", "tile", "masked tile", "load", "masked load",
    "offset", "converted", "position", "masked element", "division", "exchanged", "stored shared", "scanned", "stored",
    "fetched ahead", "copied", "gathering", "gathered",
)  # fmt: skip
# Fitted to counts in machine code (docs/experiments/planning.md#model).
_INSTRUCTIONS = tuple(fitted.INSTRUCTIONS.get(name, 0.0) for name in FEATURES)
LOAD = min(fitted.INSTRUCTIONS["load"], fitted.INSTRUCTIONS["masked load"])
_OTHERS = _INSTRUCTIONS[len(CLASSES) :]


@dataclass(frozen=True)
class Tile:
    """A tile of `unroll` runs as a thread sees it: loads, elements, states, results; and what two states of it exchange.

    `moved` are elements that change threads before a tree of neighbours can fold them.
    """

    unroll: int
    loads: float
    masked_loads: float
    elements: float
    states: float
    results: float
    rounds: float  # of shuffles among a result's lanes
    warps: float  # that share a result
    tile_rounds: float  # of shuffles in every tile, where a lane's elements are not one thread's
    moved: float


def tile_of(loads: Sequence[Loads], stage: Stage, unroll: int) -> Tile:
    """What each thread has of a tile of `unroll` runs loaded like that."""
    if stage.gathered:
        return _gathered(loads[0], stage)
    spread = widest(loads)
    lane_axis, result_axis = (0, 1) if stage.ordered else (1, 2)
    results = spread.held_along(result_axis)
    times, elements, moved = 1, spread.held, 0
    own = (2,) if stage.ordered else (0, 3)
    if stage.ordered:
        # A thread folds whole runs: where it loaded parts of them, they pass through shared memory first.
        times, rows = unroll, stage.lanes * stage.block_outputs
        elements = stage.run * max(1, rows // (WARP * stage.num_warps))
        moved = elements if spread.held_along(2) < stage.run else 0
    return Tile(
        unroll=unroll,
        loads=times * sum([one.count for one in loads]),
        masked_loads=times * sum([one.masked_count for one in loads]),
        elements=times * elements,
        moved=times * moved,
        states=results * spread.held_along(lane_axis),
        results=results,
        rounds=math.log2(spread.lanes_along(lane_axis)),
        warps=spread.warps_along(lane_axis),
        tile_rounds=sum([math.log2(spread.lanes_along(a) * spread.warps_along(a)) for a in own]),
    )


def _gathered(one: Loads, stage: Stage) -> Tile:
    """A thread's whole rows."""
    rows = max(1, power_above(stage.block_outputs) // (WARP * stage.num_warps))
    return Tile(1, one.count, one.count, rows * stage.run, rows, rows, 0.0, 1.0, 0.0, 0.0)


def features(
    geometry: Geometry, stage: Stage, walk: Walk, tiling: Tiling, tile: Tile, work: Work, stores: int
) -> list[float]:
    """What a warp does in a program with these parts, one number for each of `FEATURES`."""
    done, others = _done(geometry, stage, walk, tiling, tile, work, stores)
    ops = [0.0] * len(CLASSES)
    for times, counts in zip(done, work.parts, strict=True):
        ops = [n + times * count for n, count in zip(ops, counts, strict=True)]
    return [*ops, *others]


def instructions_of(
    geometry: Geometry, stage: Stage, walk: Walk, tiling: Tiling, tile: Tile, work: Work, stores: int
) -> float:
    """Instructions that a warp issues in a program with these parts."""
    done, others = _done(geometry, stage, walk, tiling, tile, work, stores)
    total: float = sum(map(mul, done, work.instructions)) + sum(map(mul, others, _OTHERS))
    return total


def least_of_element(work: Work) -> float:
    """Instructions of a warp for each element of a thread, at least, but for loads."""
    element, first = work.instructions[:2]
    seen = fitted.INSTRUCTIONS["position"] * work.sees_positions
    return min(element, first) + fitted.INSTRUCTIONS["converted"] * min(1, work.converts) + seen


def _done(
    geometry: Geometry, stage: Stage, walk: Walk, tiling: Tiling, tile: Tile, work: Work, stores: int
) -> tuple[tuple[float, ...], tuple[float, ...]]:
    """How often a warp does each part of the work, and the features beside operations."""
    whole, masked, masked_tiles = _walked(geometry, stage, tiling, tile)
    tiles = whole + masked
    loads = tile.masked_loads if walk.masks else tile.loads
    own, runs, combines, ordered = _combines(stage, tile, tiling.full, tiles, masked_tiles)
    first = min(1.0, tiles) if work.absorbs else 0.0
    done = (
        (tiles - first) * tile.elements,
        first * tile.elements,
        max(0, max(1, tiling.full + masked_tiles) - (first > 0)) * tile.states,
        (first > 0) * tile.states,
        runs + own * tile.results,
        tile.results,
    )
    ahead = tile.masked_loads if stage.prefetch and walk.has_full > 1 else 0.0
    return done, (
        1.0,
        len(geometry.operands),
        len(geometry.outer),
        walk.splits > 1,
        (stage.align > 1) * tile.results,
        tiling.full,
        masked_tiles,
        whole * loads,
        masked * tile.masked_loads + ahead,
        0.0 if geometry.is_run else tiles * loads,
        tiles * tile.elements * min(1, work.converts),
        tiles * tile.elements * work.sees_positions,
        masked * tile.elements * work.selects,
        tiles * tile.loads * len(geometry.deep) + tile.results * max(0, len(geometry.flat) - 1),
        own * tile.results * work.words,
        (tile.warps > 1) * tile.results * work.words * (combines if stage.ordered else 1.0),
        ordered * tile.results * work.words * (tile.rounds + 1),
        stores,
        tiling.full * tile.loads * stage.prefetch,
        tiling.full * tile.loads * (stage.num_stages > 1),
        stage.gathered,
        stage.gathered * whole * tile.elements,
    )


def _walked(geometry: Geometry, stage: Stage, tiling: Tiling, tile: Tile) -> tuple[float, float, int]:
    """Tiles without a mask; elements under masks, in whole tiles; tiles with a mask."""
    if stage.gathered:  # nothing is masked
        return geometry.length / stage.run, 0.0, 0
    if stage.lanes == 1 and constant_length(stage, geometry.length, geometry.ragged > 0):  # nothing either
        return math.ceil(geometry.length / stage.run) / tile.unroll, 0.0, 0
    masked = (tiling.head + tiling.tail * tiling.tail_runs) / tile.unroll
    return float(tiling.full), masked, (1 if tiling.head else 0) + tiling.tail


def _combines(
    stage: Stage, tile: Tile, full: int, tiles: float, masked_tiles: int
) -> tuple[float, float, float, float]:
    """Combines of a result's states, of a lane's own runs, of lanes, and of lanes in the elements' order."""
    passes = max(1, full + masked_tiles)
    combines, runs, ordered = float(passes), 0.0, tiles if stage.ordered else 0.0
    if stage.ordered and stage.shares:  # in tiles only a lane's own runs are combined
        combines = ordered = float(min(1, full) + masked_tiles)
        runs = full * tile.states
    own = tile.states / tile.results - 1 + tile.rounds + math.log2(tile.warps)
    if stage.ordered:
        own = (tile.rounds + math.log2(tile.warps)) * combines + 1
    return own + tile.tile_rounds * passes * tile.states / tile.results, runs, combines, ordered


REGISTERS = (
    "thread", "loaded words", "converted", "absorbed", "masked element", "masked absorbed", "element words", "state words",
    "operations", "pointers", "positions", "deep", "masks", "looped", "looped words", "copied", "looped states",
)  # fmt: skip
# Not measured: seen in machine code, and the numbers of registers are fitted with them.
UNROLLED = 16  # words of a small tile: the assembler loads those of several turns of a loop at a time
# Elements of a thread that are held at a time: the assembler orders more of them one after another.
MOST_LIVE = 64


def register_features(
    geometry: Geometry, stage: Stage, walk: Walk, tile: Tile, loads: Sequence[Loads], work: Work
) -> list[float]:
    """What lives in a thread's registers, one number for each of `REGISTERS`."""
    words = sum(one.spread.held * one.itemsize / 4 for one in loads)
    live = min(tile.elements, MOST_LIVE)
    each = tile.elements / tile.unroll
    masked = min(each * max(walk.head, walk.tail), MOST_LIVE)
    looped = walk.has_full > 1
    return [
        1.0,
        min(words, MOST_LIVE) * (2 if stage.prefetch else 1) * (0 if stage.num_stages > 1 else 1),
        live * min(1, work.converts),
        live * work.absorbs,
        masked,
        masked * work.absorbs,
        live * (0 if work.absorbs else work.words - 1),
        tile.states * work.words,
        work.operations,
        2.0 * len(geometry.operands) * min(tile.loads, 16),
        live * work.sees_positions,
        float(len(geometry.deep)) * min(tile.loads, 16),
        float(walk.masks) * tile.results,
        float(looped),
        looped * min(words, UNROLLED) * (0 if stage.prefetch else 1),
        float(stage.num_stages > 1),
        looped * tile.states * work.words,
    ]


def threads_of(stage: Stage) -> int:
    """Threads of one program."""
    return WARP * stage.num_warps
