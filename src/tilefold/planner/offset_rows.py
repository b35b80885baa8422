"""Rows that begin anywhere, held in shared memory and read there at any offset: how many threads and programs hold one."""

from __future__ import annotations

import math
from dataclasses import dataclass

from tilefold.algebra.program import Program
from tilefold.planner.device import Device
from tilefold.planner.maps import Dtypes, rows_of
from tilefold.planner.plan import count
from tilefold.planner.ring_forms import PROGRAM_BYTES
from tilefold.planner.rings import vectors_of
from tilefold.planner.view import VECTOR_BYTES, WARP, view_of
from tilefold.problem import Problem


@dataclass(frozen=True)
class OffsetRows:
    """What a launch of `map_offset` decides: each of `splits` programs holds `share` elements of a row, in `turns` turns.

    A turn is `unroll` times `run` neighbours a thread. `areas` and `result_areas` are where in shared memory each input and
    each result lies. With `hold` elements stay in registers. A thread has `registers` at most (0: as the compiler has it).
    """

    lanes: int
    run: int
    unroll: int
    turns: int
    splits: int
    share: int
    areas: tuple[int, ...]
    result_areas: tuple[int, ...]
    shared_bytes: int
    hold: bool = False
    registers: int = 0
    block_outputs: int = 1

    @property
    def num_warps(self) -> int:
        """Warps of a program."""
        return self.lanes // WARP

    @property
    def step(self) -> int:
        """Elements of one row that a program holds."""
        return self.run * self.lanes * self.unroll * self.turns

    def vectors(self, itemsize: int) -> int:
        """Vectors that a thread copies of a tensor."""
        return math.ceil(span(self.share, itemsize) / (VECTOR_BYTES * self.lanes))

    @property
    def note(self) -> str:
        """In the shortest form, as a benchmark's results keep it."""
        return f"offset:l{self.lanes},r{self.run}x{self.unroll},t{self.turns},s{self.splits}" + ",hold" * self.hold

    def __str__(self) -> str:
        words = [f"{count(self.lanes, 'lane')} x {count(self.run * self.unroll, 'element')}", count(self.turns, "turn")]
        words += [count(self.splits, "split"), count(self.num_warps, "warp")]
        words += ["elements held"] * self.hold
        return f"offset rows: {', '.join(words)}"


def span(elements: int, itemsize: int) -> int:
    """Bytes of the whole vectors that hold so many elements, wherever they begin."""
    return (math.ceil(elements * itemsize / VECTOR_BYTES) + 1) * VECTOR_BYTES


def offset_rows(
    problem: Problem, program: Program, results: Dtypes, lanes: int, unroll: int, splits: int, run: int = 0, hold: bool = False,
    programs: int = 0,
) -> OffsetRows | None:  # fmt: skip
    """The stage of so many threads and programs a row; None where it does not fit."""
    rows = rows_of(problem, program.algebra.inputs)
    found = vectors_of(problem, program, results, view_of(rows), rows)
    if found is None:
        return None
    full = found[0]
    sizes = [d.itemsize for d in rows.dtypes]
    run = run or (2 if sizes[0] == 2 else 1)
    share = math.ceil(problem.length / splits / full) * full
    turn = lanes * run * unroll
    turns = math.ceil(share / turn)
    last = problem.length - (splits - 1) * share
    if last <= (turns - 1) * turn:
        return None
    each = [span(share, s) for s in sizes]
    areas = tuple(sum(each[:i]) for i in range(len(each)))
    taken, total = list[int](), sum(each)
    for i, d in enumerate(results):
        alike = i < len(sizes) and problem.aligned[i] % VECTOR_BYTES == 0
        taken.append(areas[i] if alike else total)
        total += 0 if alike else span(share, d.itemsize)
    registers = 65536 // (programs * lanes) // 8 * 8 if programs else 0
    return OffsetRows(lanes, run, unroll, turns, splits, share, areas, tuple(taken), total, hold, min(registers, 248))


def room(device: Device, programs: int) -> int:
    """Bytes of shared memory that each of so many programs of an SM has."""
    return device.shared_bytes // programs - PROGRAM_BYTES
