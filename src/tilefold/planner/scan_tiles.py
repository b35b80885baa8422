"""Which tile a scan has: how many lines a program owns, how much of them a thread has, and which programs share a line."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

from tilefold.planner.device import Device
from tilefold.planner.problem.canonical import Problem
from tilefold.planner.reading import Reading
from tilefold.planner.sizes import SECTOR, WARP, power_above, power_below
from tilefold.planner.stages.scans import ScanTile

# docs/experiments/scans.md#forms; words are 32-bit ones of states that a thread has of a tile. Rows:
LANE_WORDS = 32  # of a row's tile
SHARED_WORDS = (
    64  # the same where programs share rows: the more elements a share has, the fewer wait for each other
)
LONE_ELEMENTS = 64  # that a thread has at least where few rows are shared (docs/experiments/scans.md#shares)
SUMS_CHUNK = 32  # the same where a program walks its rows and prefixes are sums
# The same of a program that walks columns; and results of a chunk that are one store to Triton's compiler, of sums and where
# a chunk has more loads and stores than the last number (docs/experiments/scans.md#columns and #compiled).
SUMS_WARPS, STORED_TOGETHER, MANY_PLACES = 8, 4, 32
# Of a row that a thread has at least where a program walks it and a combine is not costly.
WALKED_ROW_BYTES = 64
# Words of their states at most: of more, registers spill (docs/experiments/planning.md#spills).
WALKED_STATES = 96
WALKED_WORDS = 16  # the same where a program walks its rows, so that more programs fit an SM
COSTLY_CHUNK = 16  # elements of a row that a thread then combines by itself
MOST_WARPS = 16  # of one program that walks
SHARED_WARPS = 4  # of a program that shares rows
# Bytes of the narrowest wide elements; words of a thread of narrower ones where programs share rows and prefixes are sums.
NARROW_BYTES, NARROW_SUMS = 4, 64
TREE = 8  # shares of a group, and groups of a block, where many lines run beside each other
LONE_TREE = 128  # shares of a block where few do: many shares of a line run at the same time, and one look is all they take
PAUSE_NS = 0  # before words that are not there are looked at again
# Columns:
COLUMN_BYTES = 256  # of elements that a thread has of a tile of columns, over the words of a state
COLUMN_ELEMENTS = 128  # at most
COLUMN_WORDS = 4  # of the states of a thread's columns, where they have several
COLUMN_CHUNK = 16  # elements of a column that a thread combines by itself, at most
COSTLY_COLUMN_CHUNK = 32
CHUNK_BYTES = 64  # of a column's chunk at least, where a combine is not costly
WALKING_WARPS = 8  # of a program that walks columns
COSTLY_WARPS = 4  # the same where a combine is costly: more threads would have too few registers each
WALKED_BYTES = (256, 128, 64)  # of a row that a walk reads at once: the widest that keeps the SMs busy
COSTLY_BYTES = (128, 64)
UNALIGNED_BYTES = (512, 256)  # the same of columns between vectors, if one of them does
LANES_USED = 0.75  # of such tiles at least
PACKED_WORDS, PACKED_WARPS = 16, 4  # of columns whose rows are less than a sector: of a thread, of a program
COLUMN_WARPS = 4  # of one that shares columns
COLUMN_LINES = 16  # of a tile of shared columns
COLUMN_TREE = 16  # as TREE, of columns: a state of each column is read for each share

# docs/experiments/scans.md#offset:
LONE_CHUNK = 8  # as COSTLY_CHUNK where a thread loads elements one by one and a combine is not costly

# docs/experiments/scans.md#drawn:
WARPS_AN_SM = 16  # of programs that walk whole lines: fewer leave memory idle
NARROW_WARPS_AN_SM = 32  # the same of rows of 16 bits whose states are light
MOST_SHORT, SHORT_WORDS = 4, 32  # columns that a thread holds whole, and words of their states
# Elements of a column in groups of a few, at most, and warps of a program.
GROUPED_LONGEST, GROUPED_WARPS = 16, 4
# Elements of a column that no programs share, however few columns there are, and warps of an SM that they then have at
# least; of columns in groups of a few that may be so long: a combine is costly, or this many times as many lanes as have work
# would be a warp at most. Tiles of a column, up to which they are all as long; the second where a combine is costly.
HELD_LONGEST, HELD_WARPS_AN_SM, IDLE = 64, 8, 16
EVEN_TILES, EVEN_TILES_COSTLY = 1, 3
# Of rows whose results are columns: bytes of results beside each other that a program writes at once, and its warps. Of rows
# that begin between two vectors, so that it reads long runs (not of sums of 32 bits); of states that are light, where each SM
# has a program; of others.
ACROSS_ODD, ACROSS_LIGHT, ACROSS = (32, 4), (128, 8), (64, 4)

# docs/experiments/scans.md#copied. Results beside each other that a program writes at once, of so many neighbours of the
# elements at most; columns a thread, warps of an SM at least where a chunk is a whole column, and elements of all chunks of a
# thread, where states are one word or sums and where not.
NEAR_BYTES, NEAR_LAST = 128, 16
NEAR_EACH, NEAR_WARPS_AN_SM, NEAR_HELD, NEAR_HELD_COSTLY = (4, 2, 1), 8, 48, 32

# docs/experiments/scans.md#columns. Of the SMs' time that walks of columns may use at least where no tile of them is as even
# as EVEN_COLUMNS; the second of costly combines.
EVEN_ALONE, EVEN_COSTLY = 0.6, 0.5

# docs/experiments/scans.md#shares:
BAND = 4  # rows that are shared before the next ones are, where elements are wide and combines one operation or few
SHARED_REGISTERS = 128  # of a thread then at most, of aligned rows: four programs fit an SM
# Whole ones of a row, and of an SM, from which on rows are shared that could be walked.
LEAST_SHARES, SHARES_AN_SM = 4, 120
WIDE_COLUMN_BYTES, WIDE_COLUMN_CHUNK = 128, 32  # of a tile of shared columns of two bytes, where many run
WIDE_COLUMNS_AN_SM = 5  # such tiles

# Not measured:
SHORT = 512  # elements of a line, up to which a program takes several lines at once
ONE_TILE = 4096  # elements of a line, up to which it is one tile where lines are few
EVEN = 0.9  # of the SMs' time that walks may use at least where each SM has few of them
EVEN_COLUMNS = 0.75  # as EVEN, of columns: shares of them wait for each other
STORED = 32  # results of a column at most that are one store: the kernel joins five times
FEW_BLOCKS = 32  # below, shares that wait for each other run at the same time


@dataclass(frozen=True)
class Load:
    """The load of a thread: words of a state, bytes of an element of every input, results, and whether a combine is costly.

    `align`: as of the tile. `sums`: prefixes may be sums. `across`: neighbouring results lie along the other axis than
    neighbouring elements of the largest input. `result_bytes`: of the narrowest result.
    """

    words: int
    bytes: int
    results: int
    costly: bool
    align: int = 1
    sums: bool = False
    across: bool = False
    result_bytes: int = 4

    @property
    def serial(self) -> bool:
        """Whether a thread has one column, and of it as much as registers hold: several results would need those, too."""
        return self.costly and self.results == 1

    @property
    def light(self) -> bool:
        """Whether a state is one word and a combine is not costly, so that memory and masks are what a share takes."""
        return not self.costly and self.words == 1


def scan_tile(reading: Reading, load: Load, device: Device, alone: bool) -> ScanTile:
    """The tile of a problem that is seen so; `alone`: of a row by itself, whatever others there are."""
    if reading.by_rows and load.across and not alone:
        return _rows_across(reading, load, device)
    if reading.by_rows:
        return _of_rows(reading, load, device, alone)
    # Which results are neighbours depends on how many columns there are: chunks of a column by itself do not.
    tile = _of_columns(reading, replace(load, across=load.across and not alone), device, alone)
    if load.across:
        return replace(tile, stored=min(tile.chunk & -tile.chunk, STORED))
    many = load.sums or tile.chunk * (1 + load.results) > MANY_PLACES
    together = 8 if load.sums and tile.chunk > 16 else STORED_TOGETHER
    return replace(tile, stored=power_below(min(tile.chunk, together))) if many else tile


def across_tile(problem: Problem, load: Load, device: Device) -> ScanTile | None:
    """Columns of two dims, neighbours of the results by neighbours of the elements, which a thread walks; None of too few.

    docs/experiments/scans.md#copied
    """
    near, last = problem.output_dims[-2:]
    together = near.size * (last.size if last.output == near.size else 1)
    if together * load.result_bytes < SECTOR:
        return None
    beside = min(power_above(near.size), max(1, NEAR_BYTES // load.result_bytes))
    lines = beside * min(power_above(last.size), NEAR_LAST)
    blocks = math.ceil(near.size / beside) * math.ceil(last.size * beside / lines)
    programs = blocks * math.prod(d.size for d in problem.output_dims[:-2])
    held = NEAR_HELD if load.words == 1 or load.sums else NEAR_HELD_COSTLY
    for each in NEAR_EACH:
        warps = max(1, lines // (WARP * each))
        chunk = _even_chunk(problem.length, min(held // each, COLUMN_CHUNK))
        wanted = NEAR_WARPS_AN_SM if chunk == problem.length else WARPS_AN_SM
        if programs * warps >= wanted * device.sms and lines >= WARP * warps:
            return ScanTile(lines, chunk, False, 1, warps, chunk=chunk, near=beside)
    return None


def _lane_elements(words: int, held: int, least: int) -> int:
    """Elements of a tile that a thread has: whole chunks, at least one."""
    return max(least, power_below(max(1, held // words)))


def _row_chunk(load: Load, run: int, slots: int, costly: int) -> int:
    if run == 1:
        return min(slots, COSTLY_CHUNK if load.costly else LONE_CHUNK)
    return min(slots, max(run, costly)) if load.costly else run


def _walked_elements(load: Load, chunk: int) -> int:
    """Elements of a row that a thread has where a program walks it: enough bytes of narrow ones are on their way."""
    most = min(WALKED_ROW_BYTES // load.bytes, WALKED_STATES // load.words)
    least = chunk if load.costly else max(chunk, power_below(max(1, most)))
    return _lane_elements(load.words, WALKED_WORDS, least)


def _of_rows(reading: Reading, load: Load, device: Device, alone: bool) -> ScanTile:
    length, rows = reading.length + load.align - 1, reading.inner * reading.outer
    slots = power_above(length)
    run = min(max(reading.vector, load.align), slots)
    # What is narrower than a vector is stored by whole warps: neighbouring threads have neighbours.
    chunk = _row_chunk(load, run, slots, COSTLY_CHUNK)
    row = ScanTile(1, slots, True, run, 4, chunk=chunk, stored=chunk, align=load.align)
    if length <= SHORT:
        lanes = _walked_elements(load, chunk) * row.num_warps * WARP
        return _short_rows(replace(row, lines=max(1, lanes // slots)), reading)
    if not alone and load.light and load.bytes >= NARROW_BYTES:
        shared = _shared_rows(row, reading, load, rows, alone)
        if length % shared.length == 0 and _are_many(shared, rows, device) and run == reading.full_vector:
            return shared
    wide = _row_chunk(load, run, slots, SUMS_CHUNK if load.sums else COSTLY_CHUNK)
    lanes = _walked_elements(load, wide)
    wanted = NARROW_WARPS_AN_SM if load.light and load.bytes < NARROW_BYTES else WARPS_AN_SM
    warps = 1 if alone else _walking_warps(rows, device, MOST_WARPS, EVEN, wanted)
    if warps and WARP * warps * lanes <= slots:
        tile = replace(row, chunk=wide, stored=wide, length=WARP * warps * lanes, num_warps=warps)
        return replace(tile, ahead=warps > 1)
    each = _lane_elements(load.words, LANE_WORDS, chunk)
    if length <= ONE_TILE:
        return replace(row, num_warps=max(1, min(16, slots // (WARP * each))))
    return _shared_rows(row, reading, load, rows, alone)


def _short_rows(tile: ScanTile, reading: Reading) -> ScanTile:
    """Rows in groups of a few are counted across the groups, where lanes of a group's last tile would be idle."""
    blocks = math.ceil(reading.inner / tile.lines)
    return replace(tile, flat=reading.outer > 1 and reading.inner < LANES_USED * blocks * tile.lines)


def _are_many(tile: ScanTile, rows: int, device: Device) -> bool:
    """Whether shares are so many that what they take beside a walk, a launch and the last of them, is little."""
    return tile.shares >= LEAST_SHARES and tile.shares * rows >= SHARES_AN_SM * device.sms


def _shared_rows(row: ScanTile, reading: Reading, load: Load, rows: int, alone: bool) -> ScanTile:
    length, run = reading.length + load.align - 1, row.run
    slots, lone, chunk = power_above(length), alone or rows < FEW_BLOCKS, row.chunk
    if not load.costly:
        chunk = min(slots, 2 * run if run > 1 else LONE_CHUNK)
    each = _lane_elements(load.words, SHARED_WORDS, chunk)
    if load.sums and load.bytes < NARROW_BYTES:
        chunk, each = min(slots, SUMS_CHUNK), NARROW_SUMS
    if lone and (load.sums or not load.costly):
        each = max(chunk, LONE_ELEMENTS)
    tile = replace(row, length=SHARED_WARPS * WARP * each, num_warps=SHARED_WARPS, chunk=chunk, stored=chunk)
    part = load.align > 1 or reading.length % tile.length != 0
    if load.light and part and run == reading.full_vector:
        registers = SHARED_REGISTERS if load.align > 1 else 0
        tile = replace(tile, split=True, registers=registers)
    if load.light and load.bytes >= NARROW_BYTES and not lone:
        return replace(_shared(tile, length, LONE_TREE, 1), band=BAND)
    one = lone or load.costly
    return _shared(tile, length, LONE_TREE, 1) if one else _shared(tile, length, TREE, TREE)


def _rows_across(reading: Reading, load: Load, device: Device) -> ScanTile:
    """Rows whose results are columns: several at once, so that a store writes whole sectors."""
    odd = reading.vector == 1 and not (load.sums and load.bytes >= NARROW_BYTES)
    tile = _tile_across(reading, load, *(ACROSS_ODD if odd else ACROSS))
    if load.light and reading.vector > 1:
        wide = _tile_across(reading, load, *ACROSS_LIGHT)
        if math.ceil(reading.inner / wide.lines) * reading.outer >= device.sms:
            tile = wide
    programs = math.ceil(reading.inner / tile.lines) * reading.outer
    if reading.length <= tile.length or 2 * programs >= device.sms:
        return tile
    return _shared(tile, reading.length, TREE, TREE)


def _tile_across(reading: Reading, load: Load, result_bytes: int, most: int) -> ScanTile:
    """So many bytes of results beside each other, and warps at most."""
    slots, run = power_above(reading.length), reading.vector
    chunk = min(slots, max(2 * run, COSTLY_CHUNK if load.costly else 1))
    # Of short rows so many that each thread has a chunk.
    wide = max(power_below(max(1, result_bytes // load.result_bytes)), most * WARP * chunk // slots)
    lines = min(power_above(reading.inner), max(1, wide))
    each = _lane_elements(load.words, LANE_WORDS, chunk)
    length = max(chunk, min(slots, most * WARP * each // lines))
    warps = min(most, max(1, lines * length // (WARP * chunk)))
    return ScanTile(lines, length, True, min(run, slots), warps, chunk=chunk, stored=chunk)


def _walking_warps(programs: int, device: Device, most: int, even: float, wanted: int = WARPS_AN_SM) -> int:
    """Warps of each of so many programs that walk lines; 0 where they would leave SMs idle."""
    if programs >= wanted * device.sms:
        return 1
    evenly = programs / (math.ceil(programs / device.sms) * device.sms)
    return min(most, power_above(wanted * device.sms // programs)) if evenly >= even else 0


def _of_columns(reading: Reading, load: Load, device: Device, alone: bool) -> ScanTile:
    vector = reading.vector if load.words == 1 else max(1, min(reading.vector, COLUMN_WORDS // load.words))
    if load.serial:
        vector = 1
    lines = WARP * vector if alone else min(power_above(reading.inner), WARP * vector)
    blocks = math.ceil(reading.inner / lines) * reading.outer
    one = _columns(reading, load, vector, lines, 1)
    if not alone:
        grouped = _grouped_columns(one, reading, load, device)
        if grouped is not None:
            return grouped
        one = _packed(one, reading, load, 1)
    if reading.length <= one.length:
        return one if alone else _short_columns(one, reading, load, device)
    if not alone:
        if blocks >= WARPS_AN_SM * device.sms:
            return one
        if reading.length <= HELD_LONGEST and reading.inner * reading.element >= SECTOR:
            return _held_columns(reading, load, vector, device)
        found = _walked_columns(reading, load, vector, device)
        if found is not None:
            return found
        wide = _wide_columns(reading, load, device)
        if wide is not None:
            return wide
    lines = COLUMN_LINES if alone else min(lines, COLUMN_LINES)
    tile = replace(_columns(reading, load, vector, lines, COLUMN_WARPS), ahead=False)
    if reading.length <= tile.length:
        return _one_tile_of_columns(tile, reading, load, device, alone)
    return _shared(tile, reading.length, COLUMN_TREE, COLUMN_TREE)


def _held_columns(reading: Reading, load: Load, vector: int, device: Device) -> ScanTile:
    """Columns that a thread walks in a few chunks: fewer a thread, so that there are warps enough, and no states pass."""
    while (
        vector > 1
        and math.ceil(reading.inner / (WARP * vector)) * reading.outer < HELD_WARPS_AN_SM * device.sms
    ):
        vector //= 2
    return _columns(reading, load, vector, min(power_above(reading.inner), WARP * vector), 1)


def _short_columns(one: ScanTile, reading: Reading, load: Load, device: Device) -> ScanTile:
    """Several warps a program, of columns that a thread holds whole: it has few loads on their way, an SM few programs.

    docs/experiments/scans.md#drawn
    """
    if one.chunk < one.length:
        return one
    most = MOST_SHORT if load.results == 1 else 1
    each = max(one.run, min(most, power_below(max(1, SHORT_WORDS // (one.chunk * load.words)))))
    for width in (each, one.run):
        for warps in (4, 2):
            lines = WARP * warps * width
            blocks = math.ceil(reading.inner / lines)
            many = blocks * reading.outer * warps >= WARPS_AN_SM * device.sms
            if many and reading.inner >= LANES_USED * blocks * lines:
                return replace(one, lines=lines, num_warps=warps)
    return one


def _grouped_columns(one: ScanTile, reading: Reading, load: Load, device: Device) -> ScanTile | None:
    """Groups of a few short columns are counted across the groups, where half of a warp's lanes and more would be idle.

    docs/experiments/scans.md#drawn
    """
    few = reading.outer > 1 and 2 * reading.inner <= WARP * one.run
    many = reading.inner * reading.outer >= GROUPED_WARPS * WARP * device.sms
    held = SHORT_WORDS // load.words
    lanes = math.ceil(reading.inner / one.run) * math.ceil(reading.length / one.chunk)
    long = not load.across and (load.serial or IDLE * lanes <= WARP)
    longest = HELD_LONGEST if long else min(GROUPED_LONGEST, held)
    if not few or not many or reading.length > longest:
        return None
    lines = GROUPED_WARPS * WARP  # a column a thread, not a vector of them
    length = power_above(reading.length) if load.across else _even_chunk(reading.length, held)
    return replace(one, lines=lines, length=length, chunk=length, run=1, num_warps=GROUPED_WARPS, flat=True)


def _one_tile_of_columns(
    tile: ScanTile, reading: Reading, load: Load, device: Device, alone: bool
) -> ScanTile:
    """Whole columns, a chunk a thread, of so many that rows are whole sectors; fewer a thread where SMs lack warps."""
    number = tile.length // tile.chunk
    chunk = tile.chunk if load.across else math.ceil(reading.length / number)
    run = tile.run
    while True:
        columns = max(run, SECTOR // reading.element)
        warps = max(1, min(COLUMN_WARPS, number * columns // (WARP * run)))
        lines = max(run, WARP * warps * run // number)
        found = replace(tile, lines=lines, length=number * chunk, chunk=chunk, run=run, num_warps=warps)
        programs = math.ceil(reading.inner / lines) * reading.outer
        narrow = lines * reading.element < 2 * SECTOR
        if alone or run == 1 or narrow or programs * warps >= WARPS_AN_SM * device.sms:
            return found
        run //= 2


def _wide_columns(reading: Reading, load: Load, device: Device) -> ScanTile | None:
    """Shares of columns of two bytes whose rows are whole lines of memory, read again from the L2: half as many wait."""
    lines = power_below(WIDE_COLUMN_BYTES // load.bytes)
    run, blocks = reading.full_vector, math.ceil(reading.inner / lines)
    fits = load.light and not load.across and load.bytes == reading.element == 2 and reading.vector == run
    if not fits or reading.inner < LANES_USED * blocks * lines:
        return None
    length = WARP * COLUMN_WARPS * run // lines * WIDE_COLUMN_CHUNK
    tile = ScanTile(lines, length, False, run, COLUMN_WARPS, chunk=WIDE_COLUMN_CHUNK, again=True)
    tile = _shared(tile, reading.length, COLUMN_TREE, COLUMN_TREE)
    return tile if tile.shares * blocks * reading.outer >= WIDE_COLUMNS_AN_SM * device.sms else None


def _columns(reading: Reading, load: Load, vector: int, lines: int, warps: int) -> ScanTile:
    """A tile of columns of so many warps; of short columns, no longer than they are."""
    run, slots = min(vector, lines), power_above(reading.length)
    each = min(COLUMN_ELEMENTS, power_below(max(run, COLUMN_BYTES // (load.bytes * load.words))))
    most = COSTLY_COLUMN_CHUNK if load.serial else COLUMN_CHUNK
    if not load.costly:
        most = max(most, power_below(max(1, CHUNK_BYTES // load.bytes)))
    chunk = min(slots, most, max(1, each // run))
    number = min(slots // chunk, max(1, WARP * warps * run // lines))
    tiles = math.ceil(reading.length / (number * chunk))
    if not load.across and tiles <= (EVEN_TILES_COSTLY if load.costly else EVEN_TILES):
        chunk = _even_chunk(math.ceil(reading.length / number), chunk)
    return ScanTile(lines, number * chunk, False, run, warps, chunk=chunk, ahead=True)


def _even_chunk(length: int, most: int) -> int:
    """Elements of each of the fewest chunks, of any size up to `most`, that a line has: a thread has whole ones."""
    return math.ceil(length / math.ceil(length / most))


def _walked_columns(reading: Reading, load: Load, vector: int, device: Device) -> ScanTile | None:
    """Narrow tiles of many warps, where there are as many as SMs at least: no program depends on another."""
    if reading.vector == 1 and reading.element >= NARROW_BYTES and not load.costly and not load.sums:
        found = _unaligned_columns(reading, load, device)
        if found is not None:
            return found
    for even in (EVEN_COLUMNS, EVEN_COSTLY if load.costly else EVEN_ALONE):
        for wide in COSTLY_BYTES if load.costly else WALKED_BYTES:
            tile = _walk(reading, load, vector, wide, even, device)
            if tile is not None:
                return tile
    return None


def _walk(
    reading: Reading, load: Load, vector: int, wide: int, even: float, device: Device
) -> ScanTile | None:
    """The tile of a walk that reads so many bytes of a row at once; None where it is not as even, or not whole."""
    lines = max(vector, min(wide // reading.element, power_above(reading.inner)))
    programs = math.ceil(reading.inner / lines) * reading.outer
    most = SUMS_WARPS if load.sums else COSTLY_WARPS if load.costly else WALKING_WARPS
    warps = _walking_warps(programs, device, most, even)
    narrow = load.sums and load.bytes < NARROW_BYTES
    if narrow and wide > COSTLY_BYTES[-1] and programs <= device.sms:
        return None  # two programs of an SM, of fewer columns each, compute by turns
    if not warps or WARP * warps * vector < lines:
        return None
    tile = _columns(reading, load, vector, lines, warps)
    if tile.length * lines != WARP * warps * vector * tile.chunk:
        return None
    # Of sums it is more code, x 1.6 of the compiler's time, and faster where SMs have one program, or two.
    ahead = not load.sums or programs <= (1 + narrow) * device.sms
    return _packed(replace(tile, ahead=ahead), reading, load, PACKED_WARPS)


def _packed(tile: ScanTile, reading: Reading, load: Load, warps: int) -> ScanTile:
    """Columns whose rows are less than a sector: neighbouring threads have the next rows, not rows a chunk apart."""
    if reading.vector > 1 or load.costly or load.sums or reading.inner * reading.element >= SECTOR:
        return tile
    length = max(1, WARP * warps * max(1, PACKED_WORDS // load.words) // tile.lines)
    return replace(tile, length=min(power_above(reading.length), length), num_warps=warps, chunk=1)


def _unaligned_columns(reading: Reading, load: Load, device: Device) -> ScanTile | None:
    """Wide tiles of columns that begin between vectors: a narrow one's rows are sectors in part.

    They serve half of the SMs at least; columns that leave lanes of the last tile idle are counted across the outer dims.
    """
    for wide in UNALIGNED_BYTES:
        lines = wide // reading.element
        blocks = math.ceil(reading.inner / lines)
        programs = blocks * reading.outer
        if reading.inner >= LANES_USED * blocks * lines and 2 * programs >= device.sms:
            tile = _columns(reading, load, 1, lines, MOST_WARPS)
            if tile.length * lines == WARP * MOST_WARPS * tile.chunk:
                return tile
    lines = UNALIGNED_BYTES[-1] // reading.element
    idle = WARP < reading.inner < LANES_USED * math.ceil(reading.inner / lines) * lines
    if idle and reading.outer > 1 and 2 * reading.inner * reading.outer >= device.sms * lines:
        tile = _columns(reading, load, 1, lines, WALKING_WARPS)
        if tile.length * lines == WARP * WALKING_WARPS * tile.chunk:
            return replace(tile, flat=True)
    return None


def _shared(tile: ScanTile, length: int, group: int, groups: int) -> ScanTile:
    """A tile for each share, which stays in registers. Shares of other lines run between those of one."""
    return replace(tile, shares=math.ceil(length / tile.length), group=group, groups=groups, pause=PAUSE_NS)
