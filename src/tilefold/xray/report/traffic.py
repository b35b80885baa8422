"""The traffic of a whole grid, from the executed programs: each byte once, and the bytes asked of L2.

An argument's bytes of one program count for every program that begins at another place of it (those that begin at one place
touch what the longest of them does); where programs begin is computed for all of them (`ir.programs`). Programs count as
often as there are programs like them: the first and the last once, those at one edge of several as the mean of a middle one
and the last, all others as the middle one.
"""

from __future__ import annotations

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


def weights(programs: Sequence[Grid], grid: Grid) -> Array:
    """How many programs of the grid each executed one stands for; all alike where others than the usual ones were chosen."""
    total = grid[0] * grid[1] * grid[2]
    usual = chosen_programs(grid)
    if tuple(programs) != usual or len(usual) < 3:
        return np.full(len(programs), total / max(len(programs), 1))
    inner = 1
    for size in grid:
        inner *= max(size - 1, 1)
    edges = total - inner - 1
    return np.array([1.0, inner - 1 + edges / 2, 1 + edges / 2])


def traffic(
    execution: Execution, entry: Entry, ttir: Function, known: Mapping[str, int], sizes: Sequence[int], grid: Grid
) -> Traffic:  # fmt: skip
    """Scale executed programs to their grid. `known` are integer arguments by their names in the TTIR, `sizes` bytes of an
    element of each parameter that reaches the PTX, in its order (0 of numbers)."""
    many = weights(execution.programs, grid)
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
