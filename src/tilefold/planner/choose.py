"""From problem, program and device to a plan. Pure: equal arguments give equal plans, nothing is measured or searched.

The tile is always [run, lanes, kept, unroll]; what differs is which axis is contiguous and how many elements each takes:

    family       contiguous axis   a program owns
    small_axis   folded            many whole rows, a thread or a few a row
    rows         folded            one or several whole rows, read at once
    long_rows    folded            one row (or a split of it), walked tile by tile
    columns      kept              neighbouring results, walked down tile by tile
    ordered      either            some results, by a tree of neighbours in the elements' order
    partials     kept              the second stage: states of several splits
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch

from tilefold.algebra.program import Program
from tilefold.planner.device import NOMINAL, Device
from tilefold.planner.plan import Plan, Stage, count
from tilefold.problem import Problem, canonical

VECTOR_BYTES = 16
LINE_BYTES = 128
WARP = 32
SMALL_AXIS = 64  # elements: up to here a thread or a few own a row
SHORT_COLUMN = 512  # elements: up to here one program walks whole columns
LOADS = 4  # vectors a thread keeps in flight
MAX_WARPS = 16
WALKED = (9, 2048)  # elements: rows between, no power of two long, are walked in small tiles
NARROW_ROW = 128  # elements: up to here such rows are read an element at a time where no vector divides them
SHORT_ROW = 64  # vectors: up to here a program reads several rows
MEDIUM_ROW = 256  # vectors: up to here a warp or two read a row at once
ONE_TILE_ROW = 2048  # vectors: up to here a row whose length is a power of two is one tile
NARROW_COLUMNS = 8  # vectors: 128 bytes of neighbouring results, an L2 line
WARPS_WANTED = 8192  # for a fold of few results: about 62 warps a core on 132 cores, one wave
ONE_LAUNCH_BYTES = 65536  # of one result: below, another launch costs more than it saves
BLOCKS = 128  # programs of one wave on the chips planned for
LARGE = 100_000_000  # bytes: below, many small programs hide latency better than a few large ones
INVARIANT_SPLITS = 64  # at most, where splits may not follow the number of results
EVICT_FIRST_BELOW = 400_000_000  # bytes: smaller inputs leave the L2 to what it holds (docs/measured.md)


@dataclass(frozen=True)
class _View:
    """A problem as the choice sees it: row-wise or column-wise, how much it reads and in what vectors."""

    by_rows: bool
    kept: int
    outer: int
    length: int
    bytes: int
    vector: int
    full_vector: int
    aligns: bool = False
    lines: bool = True

    @property
    def loads(self) -> int:
        """Loads a thread keeps in flight: more where strides or addresses make them narrow."""
        return LOADS * min(4, self.full_vector // self.vector)

    @property
    def few(self) -> bool:
        """Whether results are too few to fill the chip one program each."""
        return self.kept * self.outer < 4 * BLOCKS and self.length * self.element > ONE_LAUNCH_BYTES

    @property
    def element(self) -> int:
        """Bytes of the widest element."""
        return VECTOR_BYTES // self.full_vector


def plan_tensors(
    tensors: Sequence[torch.Tensor], program: Program, dims: tuple[int, ...], device: Device, guarantee: str
) -> tuple[Problem, Plan]:
    """The canonical problem of folding `dims` of validated tensors of one shape, and its plan (no stages for nothing)."""
    problem = canonical(tensors, dims, ordered=not program.algebra.commutative)
    if guarantee == "batch_invariant":
        problem = problem.alone()
    if problem.length == 0 or problem.outputs == 0:
        return problem, Plan("triton", (), guarantee=guarantee, reason="nothing to fold")
    return problem, plan_fold(problem, program, device, guarantee)


def plan_fold(problem: Problem, program: Program, device: Device, guarantee: str) -> Plan:
    """How to fold `problem` on `device`. With "batch_invariant" neither the count of results nor the device matter."""
    invariant = guarantee == "batch_invariant"
    view = _alone(_view(problem), problem) if invariant else _view(problem)
    chip = NOMINAL if invariant else device
    first = _stage(view, program)
    if invariant and not view.by_rows and not first.ordered:
        first = _one_lane(first, view)
    if problem.bytes_read > EVICT_FIRST_BELOW:
        first = replace(first, evict_first=False)
    splits = _splits(view, first, chip, invariant)
    sizes = f"{count(problem.outputs, 'result')} of {count(problem.length, 'element')}"
    reason = f"{sizes}, {'rows' if view.by_rows else 'columns'} contiguous"
    if splits == 1:
        return Plan("triton", (first,), guarantee=guarantee, reason=reason)
    second = _second_stage(problem.outputs, splits, program)
    if invariant and not second.ordered:
        second = Stage("partials", 128, 1, 1, 1, 1, 4, in_order=True, evict_first=False)
    stages = (replace(first, splits=splits), second)
    return Plan("triton", stages, overlap=device.overlaps, guarantee=guarantee, reason=reason)


def _view(problem: Problem) -> _View:
    main = max(range(len(problem.dtypes)), key=lambda i: _weight(problem, i))
    folded_step = problem.folded[-1].strides[main] if problem.folded else 0
    last = problem.kept[-1] if problem.kept else None
    kept_step = last.strides[main] if last else 0
    by_rows = last is None or folded_step == 1 or (kept_step != 1 and folded_step <= kept_step)
    vectors = [_vector(problem, i, by_rows) for i in range(len(problem.dtypes))]
    return _View(
        by_rows=by_rows,
        kept=last.size if last else 1,
        outer=math.prod(d.size for d in problem.kept[:-1]),
        length=problem.length,
        bytes=problem.bytes_read,
        vector=max(1, min((v for v in vectors if v), default=1)),
        full_vector=max(1, VECTOR_BYTES // max(dtype.itemsize for dtype in problem.dtypes)),
        aligns=by_rows and _starts_together(problem),
        lines=all(folded_step * dtype.itemsize % LINE_BYTES == 0 for dtype in problem.dtypes),
    )


def _starts_together(problem: Problem) -> bool:
    """Whether every input's rows begin at the same place between two multiples of a vector, and rows are one run."""
    layouts = {
        (dtype.itemsize, residue, *(d.strides[i] for d in problem.kept))
        for i, (dtype, residue) in enumerate(zip(problem.dtypes, problem.residues, strict=False))
    }
    return len(layouts) == 1 and len(problem.folded) == 1 and set(problem.folded[0].strides) == {1}


def _alone(view: _View, problem: Problem) -> _View:
    """The view of one result among unknown others: nothing in it depends on how many there are."""
    by_rows = not problem.folded or all(s in (0, 1) for s in problem.folded[-1].strides)
    vector = view.vector if by_rows else view.full_vector
    return replace(
        view, by_rows=by_rows, kept=1 << 20, outer=1, bytes=LARGE, vector=vector, aligns=False, lines=True
    )


def _one_lane(stage: Stage, view: _View) -> Stage:
    """Each column walked by one lane, so that threads' layout, which neighbours decide, cannot change the order."""
    return replace(
        stage,
        block_kept=stage.num_warps * WARP * view.vector,
        lanes=1,
        unroll=min(16, _below(view.length)),
        in_order=True,
    )


def _weight(problem: Problem, operand: int) -> int:
    """How many bytes an input is: the largest decides the layout."""
    dims = (*problem.kept, *problem.folded)
    return problem.dtypes[operand].itemsize * math.prod(d.size for d in dims if d.strides[operand])


def _vector(problem: Problem, operand: int, by_rows: bool) -> int:
    """How many neighbours of one input a thread may load at once; 0 for one that is not read along the run."""
    run_dims = problem.folded if by_rows else problem.kept
    if not run_dims or run_dims[-1].strides[operand] == 0:
        return 0
    if run_dims[-1].strides[operand] != 1:
        return 1
    size = problem.dtypes[operand].itemsize
    others = [d.strides[operand] for d in (*problem.kept, *problem.folded) if d is not run_dims[-1]]
    return max(1, math.gcd(VECTOR_BYTES, problem.aligned[operand], *(s * size for s in others)) // size)


def _power(n: int) -> int:
    """The least power of two not below n."""
    return 1 << max(0, (max(1, n) - 1).bit_length())


def _below(n: int) -> int:
    """The greatest power of two not above n."""
    return 1 << (max(1, n).bit_length() - 1)


def _stage(view: _View, program: Program) -> Stage:
    if not program.algebra.commutative:
        return _ordered(view)
    absorbs = program.absorb is not None
    fields = len(program.state)
    if view.by_rows and WALKED[0] <= view.length <= WALKED[1] and view.length & (view.length - 1):
        stage = _walked_rows(view)
    elif view.aligns and view.vector < view.full_vector <= view.length:
        reach = view.length + view.full_vector - 1
        stage = _rows(replace(view, vector=view.full_vector, length=reach), fields, absorbs, masked=True)
        stage = replace(stage, align=view.full_vector)
    else:
        stage = (_rows if view.by_rows else _columns)(view, fields, absorbs)
    together = stage.block_kept * stage.lanes
    # Triton gives a thread neighbours along the contiguous axis: the run, or else lanes or results.
    neighbours = 1 if view.by_rows and (stage.run >= view.vector or stage.align > 1) else view.vector
    in_order = together >= stage.num_warps * WARP * neighbours
    in_order = in_order and (not view.by_rows or stage.run * stage.lanes > 1 or stage.unroll == 1)
    prefetch = stage.prefetch and view.length >= 3 * stage.step
    # A block must stay in one thread to be absorbed.
    return replace(stage, absorb=absorbs and in_order, in_order=in_order, prefetch=prefetch)


def _ordered(view: _View) -> Stage:
    """A tree of neighbours: 2048 elements a program."""
    lanes = min(_power(view.length), 1024 if view.by_rows else 32)
    kept = min(max(1, 2048 // lanes), _power(view.kept))
    return Stage("ordered", kept, lanes, 1, 1, 1, 4, ordered=True)


def _rows(view: _View, fields: int, absorbs: bool, masked: bool = False) -> Stage:
    """The folded axis is contiguous: a run of neighbours is one vector load."""
    run = min(view.vector, _below(view.length))
    needed = math.ceil(view.length / run)
    vectors = _power(needed)
    narrow = view.full_vector // view.vector
    if vectors == 1:
        return Stage("small_axis", 256, 1, run, 1, 1, 2)
    if vectors == 2 and absorbs:
        return Stage("small_axis", 512, 2, run, 1, 1, 4)
    if run == 1 and vectors <= SMALL_AXIS:
        return Stage("small_axis", 1024 // vectors, vectors, 1, 1, 1, 4)
    if vectors <= SHORT_ROW * min(4, narrow):
        return _short_rows(view, run, vectors, 4 if absorbs or masked else 2)
    if vectors <= MEDIUM_ROW:
        lanes = WARP // 2 if fields > 2 and run == 8 else WARP
        return Stage("rows", 2, lanes, run, vectors // lanes, 1, 2 * lanes // WARP)
    if view.few:
        few_states = (
            2 if view.kept * view.outer >= 16 else 8
        )  # so that one program can fold all partial states at once
        warps = few_states if view.bytes < EVICT_FIRST_BELOW else MAX_WARPS
        return Stage("long_rows", 1, warps * WARP, run, view.loads, 1, warps)
    if vectors == needed and vectors <= ONE_TILE_ROW:
        loads = 2 * LOADS if absorbs and view.loads == LOADS else view.loads
        warps = min(MAX_WARPS, vectors // (WARP * loads)) or 1
        return Stage("rows", 1, warps * WARP, run, vectors // (warps * WARP), 1, warps)
    if view.kept * view.outer < 4 * BLOCKS or vectors == needed:
        return Stage("long_rows", 1, MAX_WARPS * WARP, run, view.loads, 1, MAX_WARPS)
    warps = 1 if vectors <= 1024 else 4  # walk the row: only its last tile is masked
    return Stage("long_rows", 1, warps * WARP, run, view.loads, 1, warps, prefetch=True)


def _walked_rows(view: _View) -> Stage:
    """Short rows whose length is no power of two: small tiles walked by a few threads, so that only the ends are masked."""
    family = "small_axis" if view.length <= SMALL_AXIS else "rows"
    if view.length <= NARROW_ROW:
        each = 16 if view.length > WARP else 8 if view.length >= 16 else 4
        run = min(view.vector, each)
        lanes = max(1 if run > 1 else 2, _below(view.length) // each)
        unroll = max(1, _below(view.length) // (lanes * run))
        threads = 64 if each == 16 else 128
        return Stage(family, threads // lanes, lanes, run, unroll, 1, threads // WARP)
    run, align = view.vector, 1
    if view.vector < view.full_vector // 2 and view.aligns:
        run = align = view.full_vector
    lanes = (64 if view.length < SHORT_COLUMN else 128) // view.full_vector
    tile = 128 if view.length < 256 else 256
    kept = 8 if view.kept * view.outer >= 32 * BLOCKS else max(1, WARP // lanes)
    threads = kept * lanes
    return Stage(family, kept, lanes, run, max(1, tile // (lanes * run)), 1, threads // WARP, align=align)


def _short_rows(view: _View, run: int, vectors: int, most: int) -> Stage:
    """Several rows a program, each by a few threads that take `most` vectors."""
    unroll = min(vectors, most * max(1, view.loads // LOADS))
    lanes = max(1, vectors // unroll)
    threads = 64 if most > 2 else 256 if vectors >= WARP else 128
    family = "small_axis" if view.length <= SMALL_AXIS else "rows"
    return Stage(family, max(1, threads // lanes), lanes, run, vectors // lanes, 1, threads // WARP)


def _columns(view: _View, fields: int, absorbs: bool) -> Stage:
    """Results are contiguous: a thread takes a vector of neighbouring results and walks down their columns."""
    narrow = view.vector < view.full_vector
    wide = view.outer * math.ceil(view.kept / (4 * WARP * view.vector))
    if view.length <= SHORT_COLUMN and (wide >= 8 * BLOCKS or view.length <= 8 or narrow):
        if view.length <= 8:
            return replace(_column_tile(view, 4, 4 * WARP, 8), unroll=_power(view.length))
        if narrow:
            return (
                _column_tile(view, 4, 4 * WARP, 16)
                if wide >= 8 * BLOCKS
                else _column_tile(view, 4, 2 * WARP, 8)
            )
        return _column_tile(view, 4, 4 * WARP, 4 if absorbs and view.length <= SMALL_AXIS else 16)
    if narrow:
        return _column_tile(view, 4, 2 * WARP, 8)
    blocks = view.outer * math.ceil(view.kept / (NARROW_COLUMNS * view.full_vector))
    if blocks >= 8 * BLOCKS:
        if view.length <= SHORT_COLUMN:
            return _column_tile(
                view, 4, NARROW_COLUMNS if absorbs else 2 * NARROW_COLUMNS, 16 if absorbs else 8
            )
        width = NARROW_COLUMNS if blocks >= 16 * BLOCKS else 2 * NARROW_COLUMNS
        return replace(_column_tile(view, 4, width, 8), prefetch=True)
    if blocks <= 2 and view.bytes >= LARGE and (view.full_vector <= 4 or view.kept < 4 * view.full_vector):
        return _column_tile(view, MAX_WARPS if view.full_vector > 4 else 8, NARROW_COLUMNS, 8)
    if view.full_vector <= 4:
        width = 2 * NARROW_COLUMNS if view.bytes >= LARGE // 2 else NARROW_COLUMNS
        return replace(_column_tile(view, 4, width, 16 if fields > 2 else 8), prefetch=fields <= 2)
    width = NARROW_COLUMNS if view.lines or view.bytes < LARGE // 2 else 2 * NARROW_COLUMNS
    small_exponentials = absorbs and fields == 2
    if small_exponentials and view.bytes >= LARGE:
        return _column_tile(view, 4, width, 4)
    tile = _column_tile(view, 1 if view.bytes < LARGE // 2 and blocks < 8 else 2, width, 8)
    return replace(tile, prefetch=not small_exponentials)


def _column_tile(view: _View, warps: int, width: int, most: int) -> Stage:
    """`width` loads of neighbouring results side by side, the other threads down the columns, `most` elements each."""
    threads = warps * WARP
    kept = min(_power(view.kept), width * view.vector)
    lanes = max(1, min(threads * view.vector // kept, _below(view.length)))
    unroll = max(1, min(most, _below(view.length // lanes)))
    return Stage("columns", kept, lanes, 1, unroll, 1, warps)


def _splits(view: _View, stage: Stage, chip: Device, invariant: bool) -> int:
    """How many programs share one result, so that every core has work."""
    programs = 1 if invariant else math.ceil(view.kept / stage.block_kept) * view.outer
    tiles = view.length // stage.step - (stage.align > 1)
    if view.by_rows:
        wanted = WARPS_WANTED * (2 if stage.num_warps > 8 else 1) * chip.cores // 132 // stage.num_warps
    else:
        wanted = chip.cores * _column_programs(view, stage)
    if invariant and tiles:
        splits = max(1, min(INVARIANT_SPLITS, tiles // 16))
    elif (
        tiles < 2
        or programs >= chip.cores * (12 if view.vector < view.full_vector else 4) - chip.cores // 4
        or (view.by_rows and not view.few and not stage.ordered)
    ):
        return 1
    else:
        splits = max(1, min(wanted // programs, tiles))
    return math.ceil(tiles / math.ceil(tiles / splits))  # no split without elements


def _column_programs(view: _View, stage: Stage) -> int:
    """Programs a core when columns are split: as many as keep its loads in flight, in one wave."""
    if stage.num_warps > 8:
        return 1 if stage.absorb else 2
    if view.vector < view.full_vector:
        return 16
    return 4 if stage.num_warps == 8 or (view.full_vector <= 4 and view.bytes < LARGE // 2) else 8


def _second_stage(outputs: int, splits: int, program: Program) -> Stage:
    """All splits of some results in one tile where they fit: the stage is a matter of latency."""
    if not program.algebra.commutative:
        lanes = min(_power(splits), 256)
        return Stage("partials", min(8, _power(outputs)), lanes, 1, 1, 1, 4, ordered=True, evict_first=False)
    heavy = len(program.state) > 2
    lanes = max(1, min(1024, _power(splits) // (2 if heavy else 1)))
    kept = (
        32
        if splits <= 8
        else 16
        if splits <= 64
        else 8
        if splits <= 256
        else 1
        if outputs <= SMALL_AXIS
        else 4
    )
    kept = min(kept, _power(outputs))
    warps = max(2, min(8, kept * lanes // (WARP * (1 if heavy else 8))))
    return Stage("partials", kept, lanes, 1, 1, 1, warps, evict_first=False)
