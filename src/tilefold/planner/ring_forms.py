"""Which form of ring holds rows in shared memory, and how many programs share a long row.

Measured (docs/experiments/rings.md#rows, rings.md#walking): several programs of an SM with one row each are faster than one
program that walks over rows, unless a row is too long for them or a program keeps a weight.
"""

from __future__ import annotations

import math
from dataclasses import replace

from tilefold.planner.device import Device
from tilefold.planner.sizes import SM_REGISTERS, VECTOR_BYTES
from tilefold.planner.stages.rows import LINE_VECTORS, RESERVED_BYTES, Rings

# Definitions and limits of the hardware:
# Of an SM's shared memory beside a ring: the driver's, and states that are exchanged.
PROGRAM_BYTES = RESERVED_BYTES + 1024 + 512

# Where rows are long and programs walk over none: programs of an SM and their threads, and what of the time these lose; and
# what each program beyond so many that share a row does, and turns of a vector (docs/experiments/rings.md#long-rows).
SEVERAL, MANY_SPLITS, LATE, SHORT_TURNS = {(4, 256): 0.0, (3, 256): 0.02, (2, 512): 0.05}, 8, 0.012, 0.03
GROUP_SMS = 16  # that a cluster's programs are on, a GPC of a Hopper chip: what is left of one is empty
BUSY = 0.85  # of the clusters' time, at least (not measured)
# docs/experiments/rings.md#rows:
WALKING_LANES = 1024  # its threads
SLICE_BYTES = 128 << 10  # that a walking program holds of a row, at most

# Where programs walk over rows and keep an extra tensor's words in registers: threads of a program, vectors of a turn, words
# of a thread at most by elements of a vector, and how many share a row where a ring holds so many rows at least: the first
# that does, where states have one field and where they have several. These seldom exchange states, and their turns are nearly
# full (docs/experiments/rings.md#walking).
KEEPING_LANES, KEEPING_UNROLL, REGISTER_WORDS = 512, 2, {8: 48, 4: 56}
KEEPING_ONE = ((8, 1.5), (8, 1.25), (16, 1.0))
KEEPING_MORE = ((4, 1.5), (8, 1.5), (4, 1.25), (8, 1.25))
FULL = 0.875
AGAIN_TURNS = 16  # of a row that is longer than a ring

# Of few rows: programs of an SM at most, threads of one, and its turns (not measured: counted in
# docs/experiments/maps.md#few-rows).
FEW_PROGRAMS, FEW_LANES, FEW_TURNS = 3, (256, 512), 16


def several(base: Rings, vectors: int, rows: int, device: Device) -> Rings | None:
    """Programs that share a row, several an SM: while one waits, others work."""
    found: list[tuple[float, int, Rings]] = []
    for (programs, lanes), loss in SEVERAL.items():
        room = device.shared_bytes // programs - PROGRAM_BYTES
        registers = SM_REGISTERS // (programs * lanes) // 8 * 8
        for unroll in (2, 1) if base.inputs == 1 and base.align == 1 else (1,):
            most = room // (lanes * unroll * VECTOR_BYTES * base.inputs)
            part = replace(base, lanes=lanes, unroll=unroll, registers=registers)
            for splits in range(1, device.cluster + 1):
                stage = shared_by(part, vectors, most, splits)
                if stage is not None and rows * splits >= device.sms * programs:
                    late = LATE * max(0, splits - MANY_SPLITS) + SHORT_TURNS * (unroll == 1)
                    empty = 0 if base.extras else programs * GROUP_SMS % splits / (programs * GROUP_SMS)
                    found.append((loss + late + empty, len(found), stage))
                if stage is not None and base.extras:
                    break  # extra tensors' words come from the L2, for each program again: the fewest
    return min(found)[2] if found else None


def one(base: Rings, vectors: int, rows: int, device: Device) -> Rings | None:
    """As many programs as a cluster has, one an SM, that walk over the rows; best where a ring holds more than a row."""
    splits = device.cluster
    found: list[tuple[bool, int, Rings]] = []
    for unroll in (2, 1):
        turn = WALKING_LANES * unroll
        _, turns, are_full = cut(base, vectors, splits, turn)
        depth = (device.shared_bytes - PROGRAM_BYTES) // (turn * VECTOR_BYTES * base.inputs)
        if turns <= depth and are_full:
            stage = replace(
                base, lanes=WALKING_LANES, unroll=unroll, turns=turns, depth=depth, splits=splits, parted=True
            )
            found.append((turns == depth, unroll == 1, replace(stage, clusters=max(1, device.sms // splits))))
    stages = [stage for *_, stage in sorted(found, key=lambda each: each[:2]) if is_busy(stage, rows)]
    return stages[0] if stages else None


def keeping(base: Rings, vectors: int, words: int, fields: int, rows: int, device: Device) -> Rings | None:
    """Programs, one an SM, that walk over the rows and keep an extra tensor's words for all of them: `words` a vector."""
    size = vectors * base.inputs * VECTOR_BYTES
    if words * 4 != VECTOR_BYTES or size < (1 + base.inputs) * SLICE_BYTES:
        return None
    turn = KEEPING_LANES * KEEPING_UNROLL
    depth = (device.shared_bytes - PROGRAM_BYTES) // (turn * VECTOR_BYTES * base.inputs)
    for splits, ring_rows in KEEPING_ONE if fields == 1 else KEEPING_MORE:
        share, turns, are_full = cut(base, vectors, splits, turn)
        fits = turns * ring_rows <= depth and turns * KEEPING_UNROLL * words <= REGISTER_WORDS[base.run]
        if splits <= device.cluster and fits and are_full:
            stage = replace(
                base, lanes=KEEPING_LANES, unroll=KEEPING_UNROLL, turns=turns, depth=depth, splits=splits,
                clusters=max(1, device.sms // splits), parted=True, registers=SM_REGISTERS // KEEPING_LANES, ahead=turns,
            )  # fmt: skip
            full = fields == 1 or share >= FULL * turns * turn
            return stage if full and is_busy(stage, rows) else None
    return None


def again(base: Rings, vectors: int, rows: int, device: Device) -> Rings | None:
    """As many programs as a cluster has, one an SM, that walk over rows longer than their rings and read a part twice."""
    splits = device.cluster
    share, turns, are_full = cut(base, vectors, splits, WALKING_LANES)
    depth = (device.shared_bytes - PROGRAM_BYTES) // (WALKING_LANES * VECTOR_BYTES * base.inputs)
    if not (depth < turns <= AGAIN_TURNS and are_full) or share < FULL * turns * WALKING_LANES:
        return None
    stage = replace(
        base, lanes=WALKING_LANES, turns=turns, depth=depth, splits=splits, clusters=max(1, device.sms // splits),
        parted=True, registers=SM_REGISTERS // WALKING_LANES, ahead=2 if base.extras else 1,
    )  # fmt: skip
    return stage if is_busy(stage, rows) else None


def few(base: Rings, vectors: int, rows: int, device: Device) -> Rings | None:
    """Rows too few for all SMs: as many programs share each as a cluster has, or nearly so."""
    room = device.shared_bytes - PROGRAM_BYTES
    if rows * device.cluster >= FEW_PROGRAMS * device.sms:
        return None
    for splits in range(device.cluster, device.cluster // 2, -1):
        for lanes in FEW_LANES:
            _, turns, are_full = cut(base, vectors, splits, lanes)
            held = turns * lanes * VECTOR_BYTES * base.inputs
            if held <= room and turns <= FEW_TURNS and are_full:
                registers = SM_REGISTERS // (lanes * (2 if 2 * held <= room else 1))
                return replace(
                    base,
                    lanes=lanes,
                    turns=turns,
                    depth=turns,
                    splits=splits,
                    parted=True,
                    registers=registers,
                )
    return None


def fewest(base: Rings, vectors: int, most: int, cluster: int) -> Rings | None:
    """The fewest programs that hold a row in so many turns each."""
    stages = (shared_by(base, vectors, most, splits) for splits in range(1, cluster + 1))
    return next((stage for stage in stages if stage is not None), None)


def shared_by(base: Rings, vectors: int, most: int, splits: int) -> Rings | None:
    """A row held by so many programs in so many turns each, none of them ending before its last turn; None otherwise."""
    _, turns, are_full = cut(base, vectors, splits, base.lanes * base.unroll)
    fits = turns <= most and are_full
    return replace(base, turns=turns, depth=turns, splits=splits, parted=True) if fits else None


def cut(base: Rings, vectors: int, splits: int, turn: int) -> tuple[int, int, bool]:
    """(a program's share of a row, its turns of `turn` vectors, whether all programs have elements in their last one) of a
    row that `splits` programs share in whole lines, or in vectors where rows begin between two."""
    line = LINE_VECTORS if base.align == 1 else 1
    share = math.ceil(vectors / splits / line) * line
    turns = math.ceil(share / turn)
    last = vectors - (base.align > 1) - (splits - 1) * share
    return share, turns, (turns - 1) * turn < last


def is_busy(stage: Rings, rows: int) -> bool:
    """Whether nearly all clusters walk over as many rows as any does."""
    return rows >= BUSY * stage.clusters * math.ceil(rows / stage.clusters)
