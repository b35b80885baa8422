"""Which stripes of shared memory hold columns while programs fold and map them, as `rings` hold rows.

Measured (docs/experiments/rings.md#stripes): stripes of a line of each row with three programs an SM are faster than wider or
narrower stripes, fewer programs, and programs that walk; of fp32 only for the shortest and the longest columns.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, replace

from tilefold.algebra.program import Program
from tilefold.planner.device import Device
from tilefold.planner.folds import narrowed, partial_dtypes
from tilefold.planner.maps import rows_of
from tilefold.planner.problem.canonical import Problem
from tilefold.planner.reading import reading_of
from tilefold.planner.registers import MANY_FIELDS, fields_of
from tilefold.planner.ring_forms import BUSY
from tilefold.planner.rings import ELEMENTS, WALKED_PROGRAMS
from tilefold.planner.sizes import SM_REGISTERS, VECTOR_BYTES, WARP
from tilefold.planner.stages.maps import Dtypes, row_blocks
from tilefold.planner.stages.rows import Stripes

# Definitions and limits of the hardware:
SM_BYTES = 228 << 10  # of shared memory that an SM's programs have, with 1 KB each for the driver
DRIVER_BYTES = 1 << 10
BARRIER_BYTES = 32  # of an exchange, with what aligns its words
LINE, HALF_LINE = 8, 4  # vectors of a row

# docs/experiments/rings.md#stripes:
# Up to which registers hold columns whose states are one field as fast, and fp32 columns faster.
BLOCKS_LENGTH = 4096
UNROLLS = (4, 5, 6)  # rows of a thread and turn
ALONE = ((128, 6), (128, 5))  # threads, and programs of an SM, where one program holds a stripe
# Programs of an SM, and how many share a stripe at most: the first that fits.
SHARED = ((3, 8), (2, 8), (3, 16))
SHARED_THREADS = 256
SPLITS = (1, 2, 4, 8, 16)  # programs that share a stripe
# Of programs that walk, each with a stripe's 1024 rows of a line: what is left of an SM's memory takes later stripes' rows.
WALKING_UNROLL, WALKING_LENGTH = 8, 1024

LEAST_LENGTH = 256  # of a column: shorter ones were not measured


@dataclass(frozen=True)
class Form:
    """The parts of a stripe: `vectors` of each row, `splits` programs of `threads`, `programs` of them an SM."""

    vectors: int
    splits: int
    threads: int
    unroll: int
    programs: int
    persistent: bool

    def of(self, length: int, run: int, words: int) -> Stripes | None:
        """The stage for columns so long, of `run` elements a vector, with states of `words`; None where it does not fit."""
        lanes = self.threads // self.vectors
        step = lanes * self.unroll
        turns = math.ceil(length / (self.splits * step))
        if self.splits > 1 and (self.splits - 1) * turns * step >= length:
            return None
        turn = step * self.vectors * VECTOR_BYTES
        room = SM_BYTES // self.programs - DRIVER_BYTES - self._beside(run, words)
        depth = min(room // turn, 3 * turns) if self.persistent else turns
        if room < turn * max(depth, turns) or (self.persistent and depth <= turns):
            return None
        registers = min(248, SM_REGISTERS // (self.threads * self.programs) // 8 * 8)
        clusters = WALKED_PROGRAMS if self.persistent else 0
        return Stripes(lanes, self.vectors, run, self.unroll, turns, depth, self.splits, clusters, registers)

    def _beside(self, run: int, words: int) -> int:
        """Bytes of shared memory beside a ring: states of a program's warps, and those that a cluster exchanges."""
        state = 4 * words * self.vectors * run
        exchanged = self.splits * (1 + self.persistent) if self.splits > 1 else 0
        return state * (self.threads // WARP + 1 + exchanged) + BARRIER_BYTES


def fits(problem: Problem, program: Program, results: Dtypes) -> bool:
    """Whether columns can be held and stored as whole vectors: one input and nothing beside it, of 2 or 4 bytes.

    States and results of a fold are few, of 32 bits each.
    """
    rows = rows_of(problem, program.algebra.inputs)
    reading = reading_of(rows)
    if (
        reading.by_rows
        or len(problem.dtypes) != 1
        or not program.algebra.commutative
        or program.algebra.index
    ):
        return False
    if len(rows.reduced_dims) != 1 or not {*rows.dtypes, *results} <= set(ELEMENTS):
        return False
    states = partial_dtypes(narrowed(program, problem.length))
    if fields_of(program) >= MANY_FIELDS or len(program.outputs) > len(states):
        return False
    if any(d.itemsize != 4 for d in (*states, *program.outputs)) or {d.itemsize for d in results} != {
        rows.dtypes[0].itemsize
    }:
        return False
    *outer, last = problem.output_dims
    steps = [d.output for d in (*outer, *problem.reduced_dims)]
    return (
        reading.vector == reading.full_vector
        and last.output == 1
        and not any(s % reading.vector for s in steps)
    )


def stripes_stage(problem: Problem, program: Program, results: Dtypes, device: Device) -> Stripes | None:
    """Columns in shared memory; None where registers hold them as well, or where there is no such form.

    Which form it is depends on how many columns there are, so plans of "batch_invariant" have none.
    """
    if device.cluster <= 1 or device.shared_bytes < SM_BYTES or problem.length < LEAST_LENGTH:
        return None
    if not fits(problem, program, results):
        return None
    size, words = problem.dtypes[0].itemsize, len(partial_dtypes(narrowed(program, problem.length)))
    for form in _forms(problem.length, size, fields_of(program), device.cluster):
        stage = form.of(problem.length, VECTOR_BYTES // size, words)
        if stage is not None:
            return stage if _fills(form, stage, problem, device) else None
    return None


def _forms(length: int, size: int, fields: int, cluster: int) -> Iterator[Form]:
    """Which forms columns of elements of `size` bytes may take, the best first."""
    if fields == 1 and length <= BLOCKS_LENGTH:
        return
    for threads, programs in ALONE:
        yield _best(Form(LINE, 1, threads, 4, programs, False), length)
    if size == 2:
        for vectors in (LINE, HALF_LINE):
            for programs, most in SHARED:
                for splits in SPLITS:
                    if splits <= min(most, cluster):
                        yield _best(Form(vectors, splits, SHARED_THREADS, 4, programs, False), length)
    elif length > BLOCKS_LENGTH:
        for splits in SPLITS:
            if splits <= cluster and length <= splits * WALKING_LENGTH:
                yield Form(LINE, splits, SHARED_THREADS, WALKING_UNROLL, 1, True)


def _best(form: Form, length: int) -> Form:
    """A form with the unrolling of which the fewest rows are masked, in few turns."""
    share = math.ceil(length / form.splits)
    lanes = form.threads // form.vectors
    unroll = min(UNROLLS, key=lambda u: (math.ceil(share / (lanes * u)) * u, -u))
    return replace(form, unroll=unroll)


def _fills(form: Form, stage: Stripes, problem: Problem, device: Device) -> bool:
    """Whether all SMs have programs; of those that walk, whether nearly all walk over as many stripes as any does."""
    stripes = row_blocks(problem, stage.block_outputs)
    if not form.persistent:
        return stripes * form.splits >= form.programs * device.sms
    clusters = max(1, device.sms // form.splits)
    return stripes >= BUSY * clusters * math.ceil(stripes / clusters)
