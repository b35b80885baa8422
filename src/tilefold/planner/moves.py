"""How a copy between two layouts runs: from problem and device to a plan. Pure, as `choose` is.

The steps of the sequence decide, in this order:

    plan_move       whether torch's own copy does it, since nothing changes places
    choose_move     which form: long runs that are neighbours in both layouts, short runs, a batch of matrices whose rows
                    are short, or tiles; then which dims are a tile's rows and columns, and how large it is, by rule
    after_copies    of another operation's plan: its inputs are copied into the results' order first

A launch loads a tile [rows, columns], whose columns are neighbours in the input, and stores the same tile, whose rows are
neighbours in the result. Threads exchange elements between the load and the store, so both access whole vectors and sectors.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import replace

from tilefold.planner.device import Device
from tilefold.planner.folds import NARROW
from tilefold.planner.plan import Buffer, Fill, Launch, LibraryCall, Plan, count
from tilefold.planner.problem.canonical import Dim, Problem, of_input
from tilefold.planner.sizes import LINE_BYTES, SECTOR, power_above, power_below
from tilefold.planner.stages.moves import Move, Side, sizes_and_steps

MOST_ACROSS = (1 << 16) - 1  # programs along the second or third axis of a grid at most (hardware)

# docs/experiments/transposes.md#inductor:
# Rows, columns, warps of a tile by an element's bytes, and by whether the input's rows and the result's begin at sectors.
TILES = {
    (1, True, True): (64, 256, 16), (1, True, False): (256, 128, 16),
    (1, False, True): (32, 256, 4), (1, False, False): (32, 256, 4),
    (2, True, True): (128, 128, 8), (2, True, False): (256, 128, 8),
    (2, False, True): (64, 64, 4), (2, False, False): (128, 64, 4),
    (4, True, True): (64, 64, 8), (4, True, False): (256, 64, 4),
    (4, False, True): (64, 64, 8), (4, False, False): (128, 64, 4),
    (8, True, True): (64, 64, 8),
}  # fmt: skip
AREA = {1: 1 << 14, 2: 1 << 12, 4: 1 << 12, 8: 1 << 10}  # elements of a tile at least, if one side is short
GROUP = 32  # tiles below each other that run before those beside them, if the input's rows begin anywhere
L2_KEEPS = 1 << 30  # bytes moved up to which the L2 is asked to keep the results

# docs/experiments/transposes.md#kept:
FEW_RUNS = 16  # long runs of the input at most that alternate in the result and make a tile by themselves
COPIED = 1 << 12  # bytes of a tile whose columns are neighbours in the result as well
# Programs for each SM: tiles are halved for the first always, for the second while they stay large.
FEW, ENOUGH = 2, 8
SMALLEST = 1 << 11  # bytes of a tile that is not halved for the second
# A kernel is faster than torch's plain copy up to so many bytes moved: of elements of up to 4 bytes, and of wider ones.
PLAIN, PLAIN_BYTES, PLAIN_WIDE = 1 << 30, 4, 1 << 27
PLAIN_TILE = 1 << 11  # elements of a plain copy's tile
# Short runs that stay neighbours: bytes of a tile, and runs along each side at least.
RUNS_TILE, LEAST_SIDE = 1 << 13, 8

# Not measured:
SEGMENT = 256  # neighbouring bytes that a tile accesses, if the layout has them: two lines of the L2
SHORTEST, LONGEST = 32, 256  # lengths of a result's row that one tile writes whole
RUN = 1 << 13  # elements of such a tile
# Bytes moved between neighbouring tiles up to which the L2 still holds the lines that they share.
STRIP = 24 << 20
MOST_SIDE = 1 << 12  # elements of a tile's side at most


def plan_move(problem: Problem, device: Device, guarantee: str, *, library: bool) -> Plan:
    """The steps of a copy into a contiguous result."""
    outputs = (Buffer("output0", (problem.outputs,), problem.dtypes[0]),)
    if problem.outputs == 0:
        return Plan("triton", (), outputs, (), guarantee, "nothing", "no elements")
    most = PLAIN if problem.dtypes[0].itemsize <= PLAIN_BYTES else PLAIN_WIDE
    if library and _is_in_place(problem) and 2 * problem.bytes_read > most:
        call = LibraryCall("copy", ("input0",), ("output0",))
        return Plan("triton", (call,), outputs, (), guarantee, "copy", "nothing changes places")
    move = choose_move(problem, device)
    return Plan(
        "triton",
        (Launch("move_tiles", move, ("input0",), ("output0",)),),
        outputs,
        (),
        guarantee,
        "tiles",
        f"{move.rows.size} x {move.columns.size} places, {count(move.programs, 'program')}",
    )


def after_copies(plan: Plan, problem: Problem, numbers: Sequence[int], device: Device) -> Plan:
    """A plan that reads all inputs in the results' order (`problem.in_results_order`), after copies of the inputs `numbers`.

    The copy of `input3` is the workspace `ordered3`.
    """
    copies, made, renamed = [], [], {}
    for i in numbers:
        name = renamed[f"input{i}"] = f"ordered{i}"
        move = choose_move(of_input(problem, i), device)
        copies.append(Launch("move_tiles", move, (f"input{i}",), (name,)))
        made.append(Buffer(name, (math.prod(d.size for d in problem.dims),), move.dtype))
    steps = [
        s if isinstance(s, Fill) else replace(s, reads=tuple(renamed.get(r, r) for r in s.reads))
        for s in plan.steps
    ]
    reason = f"{count(len(copies), 'input')} copied into the results' order; {plan.reason}"
    return replace(plan, steps=(*copies, *steps), workspaces=(*made, *plan.workspaces), reason=reason)


def _is_in_place(problem: Problem) -> bool:
    return all(d.strides[0] == d.output for d in problem.dims)


def choose_move(problem: Problem, device: Device) -> Move:
    """The tile: its columns are dims of neighbours in the input, its rows dims of neighbours in the result."""
    itemsize = problem.dtypes[0].itemsize
    nearest = _nearest_in_both(problem.dims, LINE_BYTES // itemsize)
    if nearest:
        return _moved_in_long_runs(problem, *nearest)
    short = _short_runs(problem.dims, SECTOR // itemsize)
    if short:
        return _moved_runs(problem, *short)
    runs = _runs(problem.dims, SECTOR // itemsize)
    rows, columns, outer = runs or _sides(problem.dims, itemsize)
    begins = _begins(problem, columns, rows, outer)
    tile = TILES.get((itemsize, *begins), TILES[itemsize, True, True])
    if runs:
        height = _width(rows, LONGEST)
        tile = (height, RUN * 4 // max(itemsize, 4) // height, 4 if itemsize <= 2 else 8)
    area = min(AREA[itemsize], tile[0] * tile[1])
    width = _width(columns, tile[1])
    height = _width(rows, max(tile[0], area // width))
    alternate = len(rows) == 1 and _interleave(rows, columns, area)
    width = area // height if alternate else _width(columns, max(tile[1], area // height))
    shape = _filled(height, width, (_size(rows), _size(columns), _size(outer)), itemsize, device)
    strip = 2 * _size(rows) * shape[1] * itemsize
    group = GROUP if not begins[0] and strip > STRIP and _size(columns) > shape[1] else 0
    warps = tile[2] if shape == tile[:2] else _warps(shape[0] * shape[1] * itemsize)
    return _move(problem, (rows, columns, outer), shape, warps, group=group)


def _move(
    problem: Problem,
    dims: tuple[Sequence[Dim], Sequence[Dim], Sequence[Dim]],
    shape: tuple[int, int],
    warps: int,
    *,
    group: int = 0,
    run: int = 1,
) -> Move:
    """The launch of tiles of `shape` over the dims (rows, columns, others)."""
    rows, columns, outer = dims
    beside = math.ceil(_size(columns) / shape[1])
    return Move(
        rows=_side(rows),
        columns=_side(columns),
        outer=tuple(outer),
        block_rows=shape[0],
        block_columns=shape[1],
        group=group,
        num_warps=warps,
        dtype=problem.dtypes[0],
        aligned=problem.aligned[0],
        wide=_is_wide(problem),
        keep=2 * problem.bytes_read < L2_KEEPS,
        spread=not group and max(beside, _size(outer)) <= MOST_ACROSS,
        run=run,
    )


def _sides(dims: Sequence[Dim], itemsize: int) -> tuple[list[Dim], list[Dim], list[Dim]]:
    """The dims of a tile's rows, of its columns, and the others."""
    least = min(SEGMENT // itemsize, 128)
    columns, rest = _columns(dims, least, LINE_BYTES // itemsize)
    wanted = 1 if _interleave(rest, columns, AREA[itemsize]) else least * least // _width(columns, least)
    rows, outer = _rows(rest, least, wanted)
    rows, outer = _joined(rows, outer, least, lambda d: d.output)
    columns, outer = _joined(columns, outer, least, lambda d: d.strides[0])
    return rows, columns, outer


def _interleave(dims: Sequence[Dim], columns: Sequence[Dim], area: int) -> bool:
    """Whether a few long runs of the input alternate in the result. A tile of these runs alone has long runs in the result
    too.

    docs/experiments/transposes.md#kept
    """
    if not dims or len(columns) != 1:
        return False
    near, along = min(dims, key=lambda d: d.output), columns[0]
    height = power_above(near.size)
    return near.size <= FEW_RUNS and along.output == near.output * near.size and along.size * height >= area


def _nearest_in_both(dims: Sequence[Dim], line: int) -> tuple[list[Dim], Dim] | None:
    """The other dims and the dim of neighbours, if it is the same in the input and in the result and fills a `line`."""
    walked = [d for d in dims if d.strides[0] != 0]
    if not walked:
        return None
    across = min(dims, key=lambda d: d.output)
    nearest = min(walked, key=lambda d: (d.strides[0], d.output))
    if nearest is not across or (across.size < line and len(dims) > 1):
        return None
    return _without(dims, [across]), across


def _moved_in_long_runs(problem: Problem, others: list[Dim], across: Dim) -> Move:
    """A tile is one run of memory, or a few short runs that are neighbours in the result."""
    area = max(AREA[8], COPIED // problem.dtypes[0].itemsize) if others else PLAIN_TILE
    width = _width([across], area)
    height = min(area // width, power_above(_size(others)))
    rows, outer = _rows(others, 1, height)
    return _move(problem, (rows, [across], outer), (height, width), 4)


def _short_runs(dims: Sequence[Dim], sector: int) -> tuple[Dim, Dim, Dim, list[Dim]] | None:
    """The dims (runs, rows, columns, others), if runs shorter than a sector stay neighbours and the dims around them do
    not."""
    if len(dims) < 3:
        return None
    run = min(dims, key=lambda d: d.output)
    others = _without(dims, [run])
    if run.strides[0] != 1 or run.output != 1 or not 2 <= run.size < sector:
        return None
    if any(d.strides[0] < run.size for d in others):
        return None
    rows, columns = min(others, key=lambda d: d.output), min(others, key=lambda d: d.strides[0])
    if rows is columns or min(rows.size, columns.size) < LEAST_SIDE:
        return None
    return run, rows, columns, _without(others, [rows, columns])


def _moved_runs(problem: Problem, run: Dim, rows: Dim, columns: Dim, outer: list[Dim]) -> Move:
    """Tiles of runs: square ones, if both sides are long enough."""
    slots = max(1, RUNS_TILE // problem.dtypes[0].itemsize // power_above(run.size))
    side = power_below(math.isqrt(slots))
    height = min(power_above(rows.size), side)
    width = min(power_above(columns.size), slots // height)
    return _move(problem, ([rows], [columns], outer), (height, width), 4, run=run.size)


def _runs(dims: Sequence[Dim], sector: int) -> tuple[list[Dim], list[Dim], list[Dim]] | None:
    """The dims (rows, columns, others) of a batch of matrices whose results' rows are short and begin anywhere.

    A tile has whole rows. The batch joins the columns, so that a tile writes one run of memory.
    """
    if len(dims) < 3:
        return None
    across, nearest = min(dims, key=lambda d: d.output), min(dims, key=lambda d: (d.strides[0], d.output))
    if across is nearest or not SHORTEST <= across.size <= LONGEST or across.size % sector == 0:
        return None
    if nearest.strides[0] == 0 or nearest.output != across.output * across.size:
        return None
    for d in dims:
        if d.output == nearest.output * nearest.size:
            return [across], [d, nearest], _without(dims, [across, nearest, d])
    return None


def _warps(tile_bytes: int) -> int:
    """Warps of a tile: each thread loads two vectors of 16 bytes, more in a large tile, one in a small tile."""
    return max(1, min(8, max(tile_bytes // 1024, min(4, tile_bytes // 512))))


def _begins(
    problem: Problem, columns: Sequence[Dim], rows: Sequence[Dim], outer: Sequence[Dim]
) -> tuple[bool, bool]:
    """Whether contiguous runs begin at sectors in the input, and in the result."""
    sector = SECTOR // problem.dtypes[0].itemsize
    reads = all(d.strides[0] % sector == 0 for d in (*rows, *outer)) and problem.residues[0] == 0
    return reads, all(d.output % sector == 0 for d in (*columns, *outer))


def _columns(dims: Sequence[Dim], least: int, line: int) -> tuple[list[Dim], list[Dim]]:
    """The dims of the columns, nearest in the input last, and the others.

    The dim along which the result is contiguous joins the columns only if the input is contiguous along it too. The dim that
    follows it in the result joins only if the columns have no whole `line` without it.
    """
    walked = [d for d in dims if d.strides[0] != 0]
    if not walked:
        return list(dims[-1:]), list(dims[:-1])
    nearest = min(walked, key=lambda d: (d.strides[0], d.output))
    across = min(dims, key=lambda d: d.output)
    free = [d for d in dims if d is not nearest and d is not across]
    if nearest.size >= line and across.size < least:
        free = [d for d in free if d.output != across.output * across.size]
    taken = _grown([nearest], free, least, lambda d: d.strides[0])
    return taken, _without(dims, taken)


def _without(dims: Sequence[Dim], taken: Sequence[Dim]) -> list[Dim]:
    return [d for d in dims if not any(d is t for t in taken)]


def _rows(dims: Sequence[Dim], least: int, wanted: int) -> tuple[list[Dim], list[Dim]]:
    """The dims of the rows, nearest in the result last, and the others.

    If they have too few places for a tile, as in a batch of small matrices, further dims join, nearest in the result first.
    """
    if not dims:
        return [], []
    near = sorted(dims, key=lambda d: d.output)
    taken = _grown(near[:1], near[1:], least, lambda d: d.output)
    left = _without(near, taken)
    while left and _size(taken) < min(wanted, MOST_SIDE):
        taken.insert(0, left.pop(0))
    return taken, _without(dims, taken)


def _joined(
    taken: list[Dim], outer: list[Dim], least: int, step: Callable[[Dim], int]
) -> tuple[list[Dim], list[Dim]]:
    """A side, joined by the nearest outer dim if tiles of its own places would be partly empty; and the other outer dims."""
    if not outer or not taken or _size(taken) <= least or _padding(_size(taken), least) <= 1.125:
        return taken, outer
    nearest = min(outer, key=step)
    return [nearest, *taken], _without(outer, [nearest])


def _padding(size: int, side: int) -> float:
    """Places of all tiles over places of the side."""
    return math.ceil(size / side) * side / size


def _grown(taken: list[Dim], free: Sequence[Dim], least: int, step: Callable[[Dim], int]) -> list[Dim]:
    """Dims, joined by those that follow them in memory, until they have `least` neighbouring places."""
    taken = list(taken)
    while _size(taken) < least:
        end = step(taken[0]) * taken[0].size
        following = next((d for d in _without(free, taken) if step(d) == end), None)
        if following is None:
            break
        taken.insert(0, following)
    return taken


def _size(dims: Sequence[Dim]) -> int:
    return math.prod(d.size for d in dims)


def _width(dims: Sequence[Dim], most: int) -> int:
    """A tile's side for these dims, a power of two: a shorter side costs segments, a longer one places that are empty."""
    size, most = _size(dims), min(most, MOST_SIDE)
    if size <= most:
        return power_above(size)
    return min(
        (most, most // 2, most // 4), key=lambda side: _padding(size, side) * (1.3 - 0.3 * side / most)
    )


def _filled(
    height: int, width: int, sizes: tuple[int, int, int], itemsize: int, device: Device
) -> tuple[int, int]:
    """The tile, halved while there are too few programs. Both sides keep whole sectors.

    A side that one tile covers, and a small tile, are halved only if SMs would be idle.
    """
    rows, columns, outer = sizes
    while max(height, width) > 32:
        whole = rows <= height if height >= width else columns <= width
        least = FEW if whole or height * width * itemsize <= SMALLEST else ENOUGH
        if math.ceil(rows / height) * math.ceil(columns / width) * outer >= least * device.sms:
            break
        height, width = (height // 2, width) if height >= width else (height, width // 2)
    return height, width


def _side(dims: Sequence[Dim]) -> Side:
    return Side(
        _size(dims), sizes_and_steps(dims, lambda d: d.strides[0]), sizes_and_steps(dims, lambda d: d.output)
    )


def _is_wide(problem: Problem) -> bool:
    """Whether offsets need 64 bits."""
    farthest = sum((d.size - 1) * d.strides[0] for d in problem.dims)
    return max(farthest, problem.outputs) + 2 * MOST_SIDE > NARROW
