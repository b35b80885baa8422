"""What a plan takes on a chip, predicted: traffic, instructions, occupancy and latency of its launches. Nothing is measured.

A launch runs in waves of as many programs as the chip holds at once. A wave takes as long as the slowest of what it needs:

    memory       unique sectors of its inputs and sectors stored, at the memory's bandwidth
    L2           sectors asked for, at the L2's
    loads        lines that requests touch, one a clock and SM, and turns of shared memory's banks
    issue        instructions of all warps, at the SMs' rate
    programs     the time in which an SM begins one
    latency      one program from its begin to its end: its instructions, and for each tile the way to memory that no other
                 tile of it covers (Little's law: where programs hold too few bytes on their way, this is the longest)

The shorter ones count a little too (a norm of all), since they do not overlap perfectly. The last wave takes as long as one
program though it holds fewer: the tail. A second launch begins early where the chip allows it; its inputs are in the L2.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from operator import mul

from tilefold.algebra.program import Program
from tilefold.planner import fitted
from tilefold.planner.device import Device
from tilefold.planner.geometry import LINE, SECTOR, Geometry, Steps, partials_geometry, unique_sectors
from tilefold.planner.instructions import (
    LOAD,
    REGISTERS,
    Tile,
    Work,
    instructions_of,
    least_of_element,
    register_features,
    tile_of,
    work_of,
)
from tilefold.planner.plan import Stage
from tilefold.planner.threads import Loads
from tilefold.planner.traffic import Asked, Seen, Traffic, all_loads, asked_of, traffic_of, unroll_of
from tilefold.planner.view import VECTOR_BYTES, WARP
from tilefold.planner.walk import Walk, tiling_of, walk_of


@dataclass(frozen=True)
class Constants:
    """A chip in the numbers that the choice turns on; the defaults are an H200's, but for `pieces_per_us`.

    All but `clock_mhz`, `issue_per_clock` and the doubts are fitted (benchmarks/planner/fit.py) to H200 times of 3,056 plans
    of 185 drawn problems (benchmarks/planner/sample.py) and of the committed `folds` suite's 354 plans;
    docs/experiments/planning.md#model has the error. `pieces_per_us` was fitted to six problems timed on an H100 and to
    these plans. In brackets stands what a constant began with, and from where. A fit makes some of them stand for what the
    model leaves out: `memory_gb_per_s` is more than the chip has, and other constants make up for it.
    """

    # Launches as `do_bench` sees them, docs/measured.md: empty ones take 4.0 us, two 5.5, two of which one begins early 4.3.
    launch_us: float = 5.917
    second_us: float = 1.566
    overlapped_us: float = 0.4031  # (0.3)
    # NVIDIA's data sheet of the H200 SXM: boost clock 1,980 MHz. Each quarter of an SM issues one instruction a clock.
    clock_mhz: float = 1980.0
    issue_per_clock: float = 4.0
    # A copy moves 4,268 GB/s of 4,800 (docs/measured.md).
    memory_gb_per_s: float = 4863.0
    # (6,000: 5,500 to 7,000 in "Dissecting the NVIDIA Hopper Architecture through Microbenchmarking", arXiv 2402.13499).
    l2_gb_per_s: float = 8830.0
    # One SM alone reads so much from the L2 (116, as in the fit of products, planner/products/costs).
    sm_gb_per_s: float = 85.3
    # The way to memory and back, under load (0.75; 0.56 to 0.69 unloaded on an H100, the same paper).
    latency_us: float = 0.2648
    l2_latency_us: float = 0.3461  # (0.3; 0.13 to 0.2 unloaded, the same paper)
    # A program from its begin to its first load, and from its last one to its end, besides its instructions (0.6).
    start_us: float = 0.3244
    second_start_us: float = 1.444  # of a second launch, whose programs wait for the first to end (0.6)
    # Clocks between instructions of one warp that depend on each other (5: four to six).
    dependent_clocks: float = 3.193
    # An SM begins one program after another (0.02, a guess).
    program_us: float = 0.05449
    # What of sectors asked for again comes from the L2 again, not from an SM's own cache (0.1).
    refetched: float = 0.1314
    # Pieces of lines that the L2 is asked for, beyond the least, where rows begin between two vectors: so many a microsecond,
    # after all bytes; by an H100's times of such rows (docs/experiments/tiles.md#straddling).
    pieces_per_us: float = 70e3
    # How sharply the longest of a wave's needs covers the others: the norm's power (4).
    overlap: float = 2.348
    # Bytes in a row that cost as much as one more activation of a memory's row (16).
    row_bytes: float = 25.05
    # How long the last wave takes, in programs' own times (0.6).
    tail: float = 0.686
    # What a launch takes, over what is expected, that reads ahead into registers or copies through shared memory (1):
    # copies of rows are slower, of columns as fast as expected (docs/experiments/planning.md#model).
    reading_ahead: float = 1.059
    copying_rows: float = 1.881
    copying_columns: float = 0.9602
    # The same of columns for each doubling of a program's warps, which wait for each other, and of programs that are the only
    # one of their results: their last tile is masked, and copied by nobody.
    copying_warps: float = 1.144
    copying_whole: float = 1.043
    # The share of the rules' time that another plan must be expected to save, to be taken in its place. The choice's, not a
    # chip's: of 185 problems' choices one was then slower than the rules' by more than 5 %, and the mean time 3.7 % shorter.
    doubt: float = 0.2
    # The same of one program for a whole row, where the rules share a row among several: seven of seven such plans of which
    # this much was expected were faster, by 5 to 14 % (docs/experiments/folds.md#launches).
    whole_rows_doubt: float = 0.15
    # The same of a plan whose first launch keeps reduced dims apart, over the chosen one (docs/experiments/folds.md#apart).
    apart_doubt: float = 0.1


FITTED = Constants()


@dataclass(frozen=True)
class Cost:
    """What the model expects of a plan. `time_us` as `do_bench` measures it, with a cold L2.

    `bytes` move from and to memory at least; `sectors` (of 32 bytes) and `lines` (of 128) are what loads ask for and
    `instructions` are warps', sums over all launches. `registers`, `occupancy` (warps of an SM, of those it can hold) and
    `waves` are the first launch's; `limiter` is the longest of its needs.
    """

    time_us: float
    bytes: float
    sectors: float
    lines: float
    instructions: float
    registers: int
    occupancy: float
    waves: float
    limiter: str


# Limits of the hardware, an SM's, the same for compute capability 8.0, 9.0 and 10.0 (CUDA C++ Programming Guide).
SM_WARPS, SM_PROGRAMS, SM_REGISTERS, SYSTEM_BYTES = 64, 32, 65536, 1024
MOST_REGISTERS = 255.0  # of a thread
SECTORS_A_CLOCK = LINE // SECTOR  # that an SM's cache delivers

# Times the registers expected of a row absorbed as one block that begins between two vectors: 153 for 100, 149 for 99, 79 for
# 59 and 80 for 62 as compiled for sm_90 (var, logsumexp; docs/experiments/planning.md#model).
MASKED_BLOCK = 1.4
_SPACE = tuple(fitted.REGISTERS.get(name, 0.0) for name in REGISTERS)


def programs_held(registers: int, shared_bytes: int, warps: int, device: Device) -> int:
    """Programs that one SM holds at once, by the rules of NVIDIA's occupancy calculator."""
    per_warp = -(-registers * WARP // 256) * 256
    shared = -(-(shared_bytes + SYSTEM_BYTES) // 128) * 128
    by_registers = SM_REGISTERS // 4 // max(per_warp, 1) * 4 // warps
    return max(1, min(by_registers, device.shared_bytes // shared, SM_WARPS // warps, SM_PROGRAMS))


@dataclass(frozen=True)
class Counts:
    """One launch without any constant of the chip but its occupancy: what its time is made of.

    `instructions` are a warp's; `held` programs of an SM at once; `tiles` of a program, one after another; `row_bytes` lie in
    one piece; `reads` from memory, or else from the L2.
    """

    stage: Stage
    traffic: Traffic
    instructions: float
    registers: int
    programs: int
    held: int
    tiles: int
    row_bytes: int
    reads: bool


@dataclass
class Known:
    """What is the same for several plans of one problem, kept while they are compared."""

    geometry: Geometry
    program: Program
    unique: int
    seen: Seen = field(default_factory=dict)
    works: dict[tuple[bool, bool], Work] = field(default_factory=dict)
    tiles: dict[tuple[int, ...], tuple[tuple[Loads, ...], Tile, Asked]] = field(default_factory=dict)
    seconds: dict[tuple[Stage, int], Counts] = field(default_factory=dict)
    states: Callable[[int], Geometry] | None = None

    @classmethod
    def of(
        cls, geometry: Geometry, program: Program, states: Callable[[int], Geometry] | None = None
    ) -> Known:
        """Nothing but the problem's unique sectors. `states`: what a second launch folds, of so many splits."""
        return cls(geometry, program, unique_sectors(geometry), states=states)

    def later(self, splits: int, state: Steps) -> Geometry:
        """What the second launch folds."""
        if self.states is not None:
            return self.states(splits)
        return partials_geometry(self.geometry.outputs, splits, state)

    def work(self, absorb: bool, partials: bool) -> Work:
        """The program's work in a launch of this kind."""
        key = (absorb, partials)
        if key not in self.works:
            self.works[key] = work_of(self.program, absorb, partials)
        return self.works[key]

    @cached_property
    def least_instructions(self) -> float:
        """Of a warp for each element of a thread, at least: what is folded in the cheaper way, and whole vectors loaded."""
        works = [self.work(absorb, False) for absorb in (False, True)]
        loaded = sum(operand.itemsize for operand in self.geometry.operands) / VECTOR_BYTES
        return min(map(least_of_element, works)) + loaded * LOAD

    def tile(self, stage: Stage, walk: Walk) -> tuple[tuple[Loads, ...], Tile, Asked]:
        """A first launch's loads, and what they ask for: the same whatever its splits, but for what divides them."""
        runs = (
            stage.unroll if walk.has_full else 0,
            walk.tail,
            walk.head,
            walk.chunk % 16 if walk.splits > 1 else 0,
        )
        tile = (stage.block_outputs, stage.lanes, stage.run, stage.unroll, stage.num_warps, stage.align)
        key = (*tile, stage.gathered, stage.splits if stage.shares else 0, *runs)
        found = self.tiles.get(key)
        if found is None:
            loads = all_loads(self.geometry, stage, walk)
            asked = asked_of(self.geometry, stage, loads, self.seen)
            found = self.tiles[key] = loads, tile_of(loads, stage, unroll_of(stage, walk)), asked
        return found


def cost(known: Known, stages: Sequence[Stage], device: Device, constants: Constants = FITTED) -> Cost:
    """What a plan of these launches takes for a problem."""
    return cost_of(counts_of(known, stages, device), device, constants)


def least_us(known: Known, device: Device, constants: Constants = FITTED) -> float:
    """What no plan of the problem is expected to be faster than: one launch, and its inputs at the memory's bandwidth."""
    return constants.launch_us + SECTOR * known.unique / _memory_bytes_a_us(device, constants)


def bound_us(
    known: Known, device: Device, constants: Constants, fastest: float, apart: bool, tile: Stage | None = None
) -> float:
    """What no plan of this form, or with this tile, is faster than by the model: its least bytes, instructions and waits.

    `fastest` is the least factor that a way of reading has. A sum of norms, such as the waves' times, is no less than the
    norm of the sums, so that what all waves need at least may be put together.
    """
    c, geometry, sectors = constants, known.geometry, known.unique
    results, programs, at_once, rows = geometry.outputs, 0, 1, 1.0
    length = geometry.length * 2 / 3  # in whole tiles, where there are two and more
    if tile is not None:
        blocks = -(-geometry.width // tile.block_outputs) * geometry.rows
        results = blocks * tile.block_outputs
        tiles = (geometry.length - (geometry.ragged > 0)) // tile.step - (tile.align > 1)
        # Of several programs a mean one has whole tiles.
        length = tiles * tile.step if tiles > 1 else geometry.length
        programs, at_once = blocks, min(SM_WARPS // tile.num_warps, SM_PROGRAMS) * device.sms
        rows += c.row_bytes / max(SECTOR, _row_bytes(geometry, tile))
    instructions = results * length / WARP * known.least_instructions
    needs = (
        SECTOR * sectors * rows / _memory_bytes_a_us(device, c),
        SECTOR * sectors / c.l2_gb_per_s / 1e3,
        SECTOR * sectors / (c.sm_gb_per_s * device.sms) / 1e3,
        instructions / (c.issue_per_clock * c.clock_mhz * device.sms),
        programs / device.sms * c.program_us,
        max(1, programs // at_once) * (c.start_us + c.latency_us),
    )
    first: float = sum([us**c.overlap for us in needs]) ** (1 / c.overlap)
    second = c.second_start_us + c.l2_latency_us + min(c.overlapped_us, c.second_us) if apart else 0.0
    return c.launch_us + fastest * first + second


def fastest_reading(columns: bool, constants: Constants) -> float:
    """The least of the factors by which ways of reading are faster or slower than expected."""
    copied = constants.copying_columns if columns else constants.copying_rows
    return min(1.0, copied, constants.reading_ahead)


def _memory_bytes_a_us(device: Device, constants: Constants) -> float:
    return constants.memory_gb_per_s * device.gb_per_s / 4800.0 * 1e3


def counts_of(known: Known, stages: Sequence[Stage], device: Device) -> tuple[Counts, ...]:
    """What the time of a plan's launches is made of."""
    first, *later = stages
    state, results = _sizes(known.program)
    made = [
        count_launch(known, known.geometry, first, state if later else results, bool(later), False, device)
    ]
    for stage in later:
        found = known.seconds.get((stage, first.splits))
        if found is None:
            geometry = known.later(first.splits, state)
            found = count_launch(known, geometry, stage, results, False, True, device)
            known.seconds[stage, first.splits] = found
        made.append(found)
    return tuple(made)


def cost_of(launches: Sequence[Counts], device: Device, constants: Constants) -> Cost:
    """The time of counted launches, with what they move."""
    first = launches[0]
    return Cost(
        time_us=time_of(launches, device, constants),
        bytes=first.traffic.bytes,
        sectors=sum(one.traffic.sectors for one in launches),
        lines=sum(one.traffic.lines for one in launches),
        instructions=sum(one.instructions * one.stage.num_warps * one.programs for one in launches),
        registers=first.registers,
        occupancy=first.held * first.stage.num_warps / SM_WARPS,
        waves=first.programs / (first.held * device.sms),
        limiter=_limiter(first, device, constants),
    )


def time_of(launches: Sequence[Counts], device: Device, constants: Constants) -> float:
    """The time of counted launches."""
    time_us = constants.launch_us + _launch_us(launches[0], device, constants)
    for other in launches[1:]:
        time_us += _launch_us(other, device, constants)
        time_us += constants.overlapped_us if device.overlaps else constants.second_us
    return time_us


def _sizes(program: Program) -> tuple[Steps, Steps]:
    """Bytes of each field of a state as it is stored between launches (a bool is a word), and of each result."""
    state = tuple(max(4, d.itemsize) if d.itemsize == 1 else d.itemsize for d in program.state)
    return state, tuple(d.itemsize for d in program.outputs)


def count_launch(
    known: Known,
    geometry: Geometry,
    stage: Stage,
    itemsizes: Steps,
    to_partials: bool,
    from_partials: bool,
    device: Device,
) -> Counts:
    """One launch's counts."""
    walk = walk_of(geometry, stage)
    work = known.work(stage.absorb, from_partials)
    if from_partials:
        loads = all_loads(geometry, stage, walk)
        tile = tile_of(loads, stage, unroll_of(stage, walk))
        asked = asked_of(geometry, stage, loads, known.seen)
        unique = geometry.length * geometry.outputs * sum(o.itemsize for o in geometry.operands) // SECTOR
    else:
        loads, tile, asked = known.tile(stage, walk)
        unique = known.unique
    traffic = traffic_of(geometry, stage, walk, loads, itemsizes, to_partials, unique, asked, work.words)
    tiling = tiling_of(stage, walk, geometry.length, 1 if walk.splits > 2 else 0, geometry.ragged > 0)
    space = register_features(geometry, stage, walk, tile, loads, work)
    masked = stage.absorb and stage.align > 1 and tiling.full == 0
    words = sum(map(mul, _SPACE, space)) * (MASKED_BLOCK if masked else 1.0)
    registers = int(min(MOST_REGISTERS, max(16.0, words)))
    return Counts(
        stage=stage,
        traffic=traffic,
        instructions=instructions_of(geometry, stage, walk, tiling, tile, work, len(itemsizes)),
        registers=registers,
        programs=walk.programs(geometry),
        held=programs_held(registers, traffic.shared_bytes, stage.num_warps, device),
        tiles=tiling.full + tiling.tail + (1 if tiling.head else 0),
        row_bytes=_row_bytes(geometry, stage),
        reads=not from_partials,
    )


def _row_bytes(geometry: Geometry, stage: Stage) -> int:
    """Bytes in one piece that a tile of one program reads."""
    operand = geometry.operands[0]
    elements, results = min(stage.step, geometry.length), min(stage.block_outputs, geometry.width)
    if geometry.close_groups and not (stage.gathered or stage.ordered):
        row = elements * operand.inner  # all sectors of a group's elements are read
    elif operand.inner == 1:
        row = elements * results if operand.along == elements else elements
    elif operand.along == 1:
        row = elements * results if operand.inner == results else results
    else:
        row = 1
    return row * operand.itemsize


def _launch_us(one: Counts, device: Device, constants: Constants) -> float:
    """A launch's time without the launch itself."""
    time_us = _waves_us(_needs_us(one, device, constants), _alone_us(one, constants), one, device, constants)
    if one.traffic.copied:
        return time_us * _copying(one, constants)
    return time_us * constants.reading_ahead if one.stage.prefetch else time_us


def _copying(one: Counts, constants: Constants) -> float:
    """What a launch takes that copies through shared memory, over what is expected."""
    if one.stage.family != "columns":
        return constants.copying_rows
    whole = 1 + constants.copying_whole / max(1, one.tiles) if one.stage.splits == 1 else 1.0
    warps: float = constants.copying_warps ** max(0.0, math.log2(one.stage.num_warps) - 1)
    return constants.copying_columns * warps * whole


def _alone_us(one: Counts, constants: Constants) -> float:
    """One program by itself, from its begin to its end."""
    latency = constants.latency_us if one.reads else constants.l2_latency_us
    clocks = max(constants.dependent_clocks, one.stage.num_warps / constants.issue_per_clock)
    issued_us = one.instructions * clocks / constants.clock_mhz
    begun_us = constants.start_us if one.reads else constants.second_start_us
    if one.tiles < 2:
        return begun_us + issued_us + latency
    each = issued_us / one.tiles
    if one.traffic.copied:
        waited = max(0.0, latency / (one.stage.num_stages - 1) - each)
    elif one.stage.prefetch:
        waited = max(0.0, latency - each)
    else:
        waited = latency
    return begun_us + issued_us + latency + (one.tiles - 1) * waited


NEEDS = ("memory", "L2", "L2", "loads", "issue", "programs")
OF_CHIP = 2  # of these needs are the chip's by definition, the others each SM's own


def _needs_us(one: Counts, device: Device, constants: Constants) -> tuple[float, ...]:
    """What all programs of a launch need, each of `NEEDS` by itself, all SMs at work."""
    traffic, clocks = one.traffic, constants.clock_mhz * device.sms
    bandwidth = _memory_bytes_a_us(device, constants)
    memory = traffic.bytes * (1 + constants.row_bytes / max(SECTOR, one.row_bytes)) if one.reads else 0.0
    again = max(0.0, traffic.sectors - traffic.unique)
    sectors = traffic.unique + constants.refetched * again
    fetched = SECTOR * sectors
    pieces_us = _pieces(traffic, sectors) / constants.pieces_per_us if _straddles(one) else 0.0
    instructions = one.instructions * one.stage.num_warps * one.programs
    return (
        memory / bandwidth,
        fetched / constants.l2_gb_per_s / 1e3 + pieces_us,
        fetched / (constants.sm_gb_per_s * device.sms) / 1e3,
        (max(traffic.lines, traffic.sectors / SECTORS_A_CLOCK) + traffic.passes) / clocks,
        instructions / (constants.issue_per_clock * clocks),
        one.programs / device.sms * constants.program_us,
    )


def _straddles(one: Counts) -> bool:
    """Whether rows are read from memory in vectors that begin before them; of ordered folds none was timed."""
    return one.reads and one.stage.align > 1 and not one.stage.ordered


def _pieces(traffic: Traffic, sectors: float) -> float:
    """Pieces of lines that the L2 is asked for beyond the least, where so many sectors come from there."""
    return max(0.0, min(traffic.lines, sectors) - traffic.unique * SECTOR / LINE)


def _waves_us(
    needs: tuple[float, ...], alone_us: float, one: Counts, device: Device, constants: Constants
) -> float:
    """All waves: whole ones, and a last one that may hold few programs, of which one SM may hold more than the others."""
    power, sms = constants.overlap, device.sms
    whole, rest = divmod(one.programs, one.held * sms)
    raised = [us**power for us in needs]
    chip, own, alone = sum(raised[:OF_CHIP]), sum(raised[OF_CHIP:]), alone_us**power
    time_us = 0.0
    if whole:
        time_us = whole * ((chip + own) * (one.held * sms / one.programs) ** power + alone) ** (1 / power)
        alone *= constants.tail**power
    if rest:
        most = math.ceil(rest / sms) * sms / rest
        time_us += ((chip + own * most**power) * (rest / one.programs) ** power + alone) ** (1 / power)
    return time_us


def _limiter(one: Counts, device: Device, constants: Constants) -> str:
    """The longest need of a launch's whole waves, or of its only one."""
    at_once, sms = one.held * device.sms, device.sms
    programs = min(one.programs, at_once)
    most = math.ceil(programs / sms) * sms / programs
    needs = _needs_us(one, device, constants)
    parts = [
        (us * programs / one.programs * (most if n >= OF_CHIP else 1.0), NEEDS[n])
        for n, us in enumerate(needs)
    ]
    return max(*parts, (_alone_us(one, constants), "latency"))[1]
