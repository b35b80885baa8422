"""The traffic of a whole grid, from the executed programs: each byte once, and the bytes asked of L2.

An argument's bytes of one program count for every program that begins at another place of it (those that begin at one place
touch what the longest of them does); where programs begin is computed for all of them (`ir.programs`). Programs count as
often as there are programs like them: along each dim the last of the grid is like the last, and all others are like those
that are executed in front of it; of a program that is the last along some dims, each dim counts alike.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from tilefold.xray.execution import Execution
from tilefold.xray.ir import Function
from tilefold.xray.ir.programs import Programs
from tilefold.xray.machine import Outcome, chosen_programs
from tilefold.xray.machine.counts import SECTOR, global_cost
from tilefold.xray.machine.types import Array
from tilefold.xray.ptx.syntax import Entry
from tilefold.xray.report.static import flops_of

Grid = tuple[int, int, int]
_ACCESSES = (
    "tt.load", "tt.store", "tt.atomic_rmw", "tt.atomic_cas", "tt.descriptor_load", "tt.descriptor_store",
    "tt.descriptor_reduce",
)  # fmt: skip


@dataclass(frozen=True)
class Traffic:
    """Of a whole grid: bytes asked of L2 if no L1 keeps any, bytes counted once, floating-point operations."""

    asked: int
    once: int
    flops: int


def weights(programs: Sequence[Grid], grid: Grid, alike: Sequence[object] = ()) -> Array:
    """How many programs of the grid each executed one stands for; all the same where others than the usual ones were chosen.

    Programs are told apart by the dims along which they are the last. With `alike`, something that is equal for programs
    that do the same, a dim along which two executed ones differ alone and do the same is left out.
    """
    total = grid[0] * grid[1] * grid[2]
    if tuple(programs) != chosen_programs(grid) or len(programs) < 3:
        return np.full(len(programs), total / max(len(programs), 1))
    dims = [d for d, size in enumerate(grid) if size > 1]
    ends = np.array([[program[d] == grid[d] - 1 for d in dims] for program in programs])
    alone = [
        np.flatnonzero(ends[i] != ends[j]) for i, j in ((0, 1), (1, 2)) if alike and alike[i] == alike[j]
    ]
    ends[:, [int(d[0]) for d in alone if len(d) == 1]] = False
    found = np.ones(
        3
    )  # each for itself; for the others of its kind the middle one, where that is of this kind
    kinds = [n for n in (0, 1, 2) if n == 1 or (ends[n] != ends[1]).any()]
    counts: dict[tuple[bool, ...], int] = {}
    for last in itertools.product((False, True), repeat=len(dims)):
        kind = tuple(end and bool(ends[2][n]) for n, end in enumerate(last))
        size = math.prod(1 if end else grid[d] - 1 for d, end in zip(dims, last, strict=True))
        counts[kind] = counts.get(kind, 0) + size
    for kind, count in counts.items():
        apart = [int((ends[n] != kind).sum()) for n in kinds]
        nearest = [n for n, far in zip(kinds, apart, strict=True) if far == min(apart)]
        own = sum(tuple(row) == kind for row in ends.tolist())
        found[nearest] += (count - own) / len(nearest)
    return found


def done(execution: Execution) -> list[object]:
    """Of each executed program the instructions issued, and the lanes on of each access."""
    return [(o.instructions, [int(a.active.sum()) for a in o.accesses]) for o in execution.outcomes]


def traffic(
    execution: Execution, entry: Entry, ttir: Function, known: Mapping[str, int], sizes: Sequence[int], grid: Grid
) -> Traffic:  # fmt: skip
    """Scale executed programs to their grid. `known` are integer arguments by their names in the TTIR, `sizes` bytes of an
    element of each parameter that reaches the PTX, in its order (0 of numbers)."""
    many = weights(execution.programs, grid, done(execution))
    touched = [_touched(o, execution) for o in execution.outcomes]
    asked = [_sectors(o) * SECTOR for o in execution.outcomes]
    flops = [_flops(o, entry) for o in execution.outcomes]
    count = grid[0] * grid[1] * grid[2]
    starts = _starts(ttir, known, sizes, grid)
    once = 0.0
    for argument in {a for each in touched for a in each}:
        held = np.array([len(each.get(argument, ())) * SECTOR for each in touched], float)
        mean = float(held @ many) / count
        reached = [each[argument] for each in touched if argument in each]
        once += _once(mean, float(held.max()), starts.get(argument), reached, count)
    return Traffic(int(many @ asked), min(int(once), int(many @ asked)), int(many @ flops))


def _once(
    mean: float, most: float, starts: _Starts | None, sectors: Sequence[Array], count: int
) -> float:  # fmt: skip
    """Bytes of an argument that a grid touches, of which a program touches `mean` on average and `most` at most: those that
    begin at one place share what the longest of them touches."""
    if starts is None:
        return mean * count
    different = len(np.unique(starts.columns, axis=0)) * count / len(starts.columns)
    mean = mean if different >= count else most
    if not starts.bytes:
        return mean * different
    reach = max(int(s.max() - s.min() + 1) for s in sectors) * SECTOR
    first = starts.columns.min(1)
    return min(mean * different, int(first.max() - first.min()) + reach)


@dataclass(frozen=True, eq=False)
class _Starts:
    """Where tiles begin, [programs, accesses]: `bytes` from an argument's address, or coordinates of boxes."""

    columns: Array
    bytes: bool


def _starts(
    ttir: Function, known: Mapping[str, int], sizes: Sequence[int], grid: Grid
) -> dict[int, _Starts]:  # fmt: skip
    """Where the tiles of each argument (by its number) begin in every program; none where that is not known."""
    programs = Programs(ttir, known, grid)
    numbers = {name: i for i, name in enumerate(ttir.parameters[: len(sizes)])}
    found: dict[int, list[Array]] = {}
    unknown: set[int] = set()
    boxed: set[int] = set()
    for operation in ttir.walk():
        if operation.name not in _ACCESSES:
            continue
        place = programs.places.get(operation.operands[0])
        if place is None or place.argument not in numbers:
            return {}  # it may lie in any of them
        argument = numbers[place.argument]
        columns: list[Array | None] = [np.broadcast_to(place.offset, (programs.count,)) * sizes[argument]]
        if operation.name.startswith("tt.descriptor"):
            boxed.add(argument)
            columns = [programs.numbers(v) for v in operation.operands[1:] if v not in programs.tiles]
        known_columns = [c for c in columns if c is not None]
        found.setdefault(argument, []).extend(known_columns)
        unknown |= {argument} if len(known_columns) < len(columns) else set()
    return {a: _Starts(np.stack(c, 1), a not in boxed) for a, c in found.items() if a not in unknown and c}


def _touched(outcome: Outcome, execution: Execution) -> dict[int, Array]:
    """Different sectors of a program by the number of their argument; what lies in none by -1."""
    at = [a.addresses[a.active].astype(np.int64) // SECTOR for a in outcome.accesses if a.space == "global"]
    at += [box.touched for box in outcome.transfers]
    sectors = np.unique(np.concatenate(at)) if at else np.zeros(0, np.int64)
    owners = execution.owners(sectors * SECTOR)
    return {owner: sectors[owners == owner] for owner in np.unique(owners).tolist()}


def _sectors(outcome: Outcome) -> int:
    """Sectors of all requests of a program."""
    return global_cost(outcome.accesses).sectors + sum(box.sectors for box in outcome.transfers)


def _flops(outcome: Outcome, entry: Entry) -> int:
    each = [flops_of(i) for i in entry.instructions]
    of_lane, of_warp = (np.array(column, np.int64) for column in zip(*each, strict=True))
    return int(of_lane @ outcome.lanes + of_warp @ outcome.warps)
