"""The tiles of scans: how many lines a program owns, what a thread has of them, and which programs share a line."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

from tilefold.planner.device import Device
from tilefold.planner.geometry import SECTOR
from tilefold.planner.stages.scans import ScanTile
from tilefold.planner.view import WARP, View, power_above, power_below
from tilefold.problem.canonical import Problem

# docs/experiments/scans.md#forms; words are 32-bit ones of states that a thread has of a tile. Rows:
LANE_WORDS = 32  # of a row's tile
SHARED_WORDS = (
    64  # the same where programs share rows: the more elements a share has, the fewer wait for each other
)
LONE_ELEMENTS = 64  # that a thread has at least where few rows are shared (docs/experiments/scans.md#shares)
SUMS_CHUNK = 32  # the same where a program walks its rows and prefixes are sums
# The same of a program that walks columns; and results of a chunk that are one store to Triton's compiler
# (docs/experiments/scans.md#columns).
SUMS_WARPS, SUMS_STORED = 8, 4
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
EVEN_UNALIGNED = 0.85  # as EVEN, of columns between vectors where SMs have several tiles
MOST_STORED = 32  # results of a chunk that are one store
FEW_BLOCKS = 32  # below, shares that wait for each other run at the same time


@dataclass(frozen=True)
class Load:
    """What a thread carries: words of a state, bytes of an element of every input, results; is a combine costly.

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


def scan_tile(view: View, load: Load, device: Device, alone: bool) -> ScanTile:
    """The tile of a problem that is seen so; `alone`: of a row by itself, whatever others there are."""
    if view.by_rows and load.across and not alone:
        return _rows_across(view, load, device)
    if view.by_rows:
        return _of_rows(view, load, device, alone)
    # Which results are neighbours depends on how many columns there are: chunks of a column by itself do not.
    tile = _of_columns(view, replace(load, across=load.across and not alone), device, alone)
    if load.across:
        return replace(tile, stored=min(tile.chunk & -tile.chunk, MOST_STORED))
    return replace(tile, stored=power_below(min(tile.chunk, SUMS_STORED))) if load.sums else tile


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


def _of_rows(view: View, load: Load, device: Device, alone: bool) -> ScanTile:
    length, rows = view.length + load.align - 1, view.inner * view.outer
    slots = power_above(length)
    run = min(max(view.vector, load.align), slots)
    # What is narrower than a vector is stored by whole warps: neighbouring threads have neighbours.
    chunk = _row_chunk(load, run, slots, COSTLY_CHUNK)
    row = ScanTile(1, slots, True, run, 4, chunk=chunk, stored=chunk, align=load.align)
    if length <= SHORT:
        lanes = _walked_elements(load, chunk) * row.num_warps * WARP
        return _short_rows(replace(row, lines=max(1, lanes // slots)), view)
    if not alone and load.light and load.bytes >= NARROW_BYTES:
        shared = _shared_rows(row, view, load, rows, alone)
        if length % shared.length == 0 and _are_many(shared, rows, device) and run == view.full_vector:
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
    return _shared_rows(row, view, load, rows, alone)


def _short_rows(tile: ScanTile, view: View) -> ScanTile:
    """Rows in groups of a few are counted across the groups, where lanes of a group's last tile would be idle."""
    blocks = math.ceil(view.inner / tile.lines)
    return replace(tile, flat=view.outer > 1 and view.inner < LANES_USED * blocks * tile.lines)


def _are_many(tile: ScanTile, rows: int, device: Device) -> bool:
    """Whether shares are so many that what they take beside a walk, a launch and the last of them, is little."""
    return tile.shares >= LEAST_SHARES and tile.shares * rows >= SHARES_AN_SM * device.sms


def _shared_rows(row: ScanTile, view: View, load: Load, rows: int, alone: bool) -> ScanTile:
    length, run = view.length + load.align - 1, row.run
    slots, lone, chunk = power_above(length), alone or rows < FEW_BLOCKS, row.chunk
    if not load.costly:
        chunk = min(slots, 2 * run if run > 1 else LONE_CHUNK)
    each = _lane_elements(load.words, SHARED_WORDS, chunk)
    if load.sums and load.bytes < NARROW_BYTES:
        chunk, each = min(slots, SUMS_CHUNK), NARROW_SUMS
    if lone and (load.sums or not load.costly):
        each = max(chunk, LONE_ELEMENTS)
    tile = replace(row, length=SHARED_WARPS * WARP * each, num_warps=SHARED_WARPS, chunk=chunk, stored=chunk)
    part = load.align > 1 or view.length % tile.length != 0
    if load.light and part and run == view.full_vector:
        registers = SHARED_REGISTERS if load.align > 1 else 0
        tile = replace(tile, split=True, registers=registers)
    if load.light and load.bytes >= NARROW_BYTES and not lone:
        return replace(_shared(tile, length, LONE_TREE, 1), band=BAND)
    one = lone or load.costly
    return _shared(tile, length, LONE_TREE, 1) if one else _shared(tile, length, TREE, TREE)


def _rows_across(view: View, load: Load, device: Device) -> ScanTile:
    """Rows whose results are columns: several at once, so that a store writes whole sectors."""
    odd = view.vector == 1 and not (load.sums and load.bytes >= NARROW_BYTES)
    tile = _tile_across(view, load, *(ACROSS_ODD if odd else ACROSS))
    if load.light and view.vector > 1:
        wide = _tile_across(view, load, *ACROSS_LIGHT)
        if math.ceil(view.inner / wide.lines) * view.outer >= device.sms:
            tile = wide
    programs = math.ceil(view.inner / tile.lines) * view.outer
    if view.length <= tile.length or 2 * programs >= device.sms:
        return tile
    return _shared(tile, view.length, TREE, TREE)


def _tile_across(view: View, load: Load, result_bytes: int, most: int) -> ScanTile:
    """So many bytes of results beside each other, and warps at most."""
    slots, run = power_above(view.length), view.vector
    chunk = min(slots, max(2 * run, COSTLY_CHUNK if load.costly else 1))
    # Of short rows so many that each thread has a chunk.
    wide = max(power_below(max(1, result_bytes // load.result_bytes)), most * WARP * chunk // slots)
    lines = min(power_above(view.inner), max(1, wide))
    each = _lane_elements(load.words, LANE_WORDS, chunk)
    length = max(chunk, min(slots, most * WARP * each // lines))
    warps = min(most, max(1, lines * length // (WARP * chunk)))
    return ScanTile(lines, length, True, min(run, slots), warps, chunk=chunk, stored=min(chunk, MOST_STORED))


def _walking_warps(programs: int, device: Device, most: int, even: float, wanted: int = WARPS_AN_SM) -> int:
    """Warps of each of so many programs that walk lines; 0 where they would leave SMs idle."""
    if programs >= wanted * device.sms:
        return 1
    evenly = programs / (math.ceil(programs / device.sms) * device.sms)
    return min(most, power_above(wanted * device.sms // programs)) if evenly >= even else 0


def _of_columns(view: View, load: Load, device: Device, alone: bool) -> ScanTile:
    vector = view.vector if load.words == 1 else max(1, min(view.vector, COLUMN_WORDS // load.words))
    if load.serial:
        vector = 1
    lines = WARP * vector if alone else min(power_above(view.inner), WARP * vector)
    blocks = math.ceil(view.inner / lines) * view.outer
    one = _columns(view, load, vector, lines, 1)
    if not alone:
        grouped = _grouped_columns(one, view, load, device)
        if grouped is not None:
            return grouped
        one = _packed(one, view, load, 1)
    if view.length <= one.length:
        return one if alone else _short_columns(one, view, load, device)
    if not alone:
        if blocks >= WARPS_AN_SM * device.sms:
            return one
        if view.length <= HELD_LONGEST and view.inner * view.element >= SECTOR:
            return _held_columns(view, load, vector, device)
        found = _walked_columns(view, load, vector, device)
        if found is not None:
            return found
        wide = _wide_columns(view, load, device)
        if wide is not None:
            return wide
    lines = COLUMN_LINES if alone else min(lines, COLUMN_LINES)
    tile = replace(_columns(view, load, vector, lines, COLUMN_WARPS), ahead=False)
    if view.length <= tile.length:
        return _one_tile_of_columns(tile, view, load, device, alone)
    return _shared(tile, view.length, COLUMN_TREE, COLUMN_TREE)


def _held_columns(view: View, load: Load, vector: int, device: Device) -> ScanTile:
    """Columns that a thread walks in a few chunks: fewer a thread, so that there are warps enough, and no states pass."""
    while vector > 1 and math.ceil(view.inner / (WARP * vector)) * view.outer < HELD_WARPS_AN_SM * device.sms:
        vector //= 2
    return _columns(view, load, vector, min(power_above(view.inner), WARP * vector), 1)


def _short_columns(one: ScanTile, view: View, load: Load, device: Device) -> ScanTile:
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
            blocks = math.ceil(view.inner / lines)
            many = blocks * view.outer * warps >= WARPS_AN_SM * device.sms
            if many and view.inner >= LANES_USED * blocks * lines:
                return replace(one, lines=lines, num_warps=warps)
    return one


def _grouped_columns(one: ScanTile, view: View, load: Load, device: Device) -> ScanTile | None:
    """Groups of a few short columns are counted across the groups, where half of a warp's lanes and more would be idle.

    docs/experiments/scans.md#drawn
    """
    few = view.outer > 1 and 2 * view.inner <= WARP * one.run
    many = view.inner * view.outer >= GROUPED_WARPS * WARP * device.sms
    held = SHORT_WORDS // load.words
    lanes = math.ceil(view.inner / one.run) * math.ceil(view.length / one.chunk)
    long = not load.across and (load.serial or IDLE * lanes <= WARP)
    longest = HELD_LONGEST if long else min(GROUPED_LONGEST, held)
    if not few or not many or view.length > longest:
        return None
    lines = GROUPED_WARPS * WARP  # a column a thread, not a vector of them
    length = power_above(view.length) if load.across else _even_chunk(view.length, held)
    return replace(one, lines=lines, length=length, chunk=length, run=1, num_warps=GROUPED_WARPS, flat=True)


def _one_tile_of_columns(tile: ScanTile, view: View, load: Load, device: Device, alone: bool) -> ScanTile:
    """Whole columns, a chunk a thread, of so many that rows are whole sectors; fewer a thread where SMs lack warps."""
    number = tile.length // tile.chunk
    chunk = tile.chunk if load.across else math.ceil(view.length / number)
    run = tile.run
    while True:
        columns = max(run, SECTOR // view.element)
        warps = max(1, min(COLUMN_WARPS, number * columns // (WARP * run)))
        lines = max(run, WARP * warps * run // number)
        found = replace(tile, lines=lines, length=number * chunk, chunk=chunk, run=run, num_warps=warps)
        programs = math.ceil(view.inner / lines) * view.outer
        narrow = lines * view.element < 2 * SECTOR
        if alone or run == 1 or narrow or programs * warps >= WARPS_AN_SM * device.sms:
            return found
        run //= 2


def _wide_columns(view: View, load: Load, device: Device) -> ScanTile | None:
    """Shares of columns of two bytes whose rows are whole lines of memory, read again from the L2: half as many wait."""
    lines = power_below(WIDE_COLUMN_BYTES // load.bytes)
    run, blocks = view.full_vector, math.ceil(view.inner / lines)
    fits = load.light and not load.across and load.bytes == view.element == 2 and view.vector == run
    if not fits or view.inner < LANES_USED * blocks * lines:
        return None
    length = WARP * COLUMN_WARPS * run // lines * WIDE_COLUMN_CHUNK
    tile = ScanTile(lines, length, False, run, COLUMN_WARPS, chunk=WIDE_COLUMN_CHUNK, again=True)
    tile = _shared(tile, view.length, COLUMN_TREE, COLUMN_TREE)
    return tile if tile.shares * blocks * view.outer >= WIDE_COLUMNS_AN_SM * device.sms else None


def _columns(view: View, load: Load, vector: int, lines: int, warps: int) -> ScanTile:
    """A tile of columns of so many warps; of short columns, no longer than they are."""
    run, slots = min(vector, lines), power_above(view.length)
    each = min(COLUMN_ELEMENTS, power_below(max(run, COLUMN_BYTES // (load.bytes * load.words))))
    most = COSTLY_COLUMN_CHUNK if load.serial else COLUMN_CHUNK
    if not load.costly:
        most = max(most, power_below(max(1, CHUNK_BYTES // load.bytes)))
    chunk = min(slots, most, max(1, each // run))
    number = min(slots // chunk, max(1, WARP * warps * run // lines))
    tiles = math.ceil(view.length / (number * chunk))
    if not load.across and tiles <= (EVEN_TILES_COSTLY if load.costly else EVEN_TILES):
        chunk = _even_chunk(math.ceil(view.length / number), chunk)
    return ScanTile(lines, number * chunk, False, run, warps, chunk=chunk, ahead=True)


def _even_chunk(length: int, most: int) -> int:
    """Elements of each of the fewest chunks, of any size up to `most`, that a line has: a thread has whole ones."""
    return math.ceil(length / math.ceil(length / most))


def _walked_columns(view: View, load: Load, vector: int, device: Device) -> ScanTile | None:
    """Narrow tiles of many warps, where there are as many as SMs at least: no program depends on another."""
    if view.vector == 1 and view.element >= NARROW_BYTES and not load.costly and not load.sums:
        found = _unaligned_columns(view, load, device)
        if found is not None:
            return found
    for even in (EVEN_COLUMNS, EVEN_COSTLY if load.costly else EVEN_ALONE):
        for wide in COSTLY_BYTES if load.costly else WALKED_BYTES:
            tile = _walk(view, load, vector, wide, even, device)
            if tile is not None:
                return tile
    return None


def _walk(view: View, load: Load, vector: int, wide: int, even: float, device: Device) -> ScanTile | None:
    """The tile of a walk that reads so many bytes of a row at once; None where it is not as even, or not whole."""
    lines = max(vector, min(wide // view.element, power_above(view.inner)))
    programs = math.ceil(view.inner / lines) * view.outer
    most = SUMS_WARPS if load.sums else COSTLY_WARPS if load.costly else WALKING_WARPS
    warps = _walking_warps(programs, device, most, even)
    narrow = load.sums and load.bytes < NARROW_BYTES
    if narrow and wide > COSTLY_BYTES[-1] and programs <= device.sms:
        return None  # two programs of an SM, of fewer columns each, compute by turns
    if not warps or WARP * warps * vector < lines:
        return None
    tile = _columns(view, load, vector, lines, warps)
    if tile.length * lines != WARP * warps * vector * tile.chunk:
        return None
    # Of sums it is more code, x 1.6 of the compiler's time, and faster where SMs have one program, or two.
    ahead = not load.sums or programs <= (1 + narrow) * device.sms
    return _packed(replace(tile, ahead=ahead), view, load, PACKED_WARPS)


def _packed(tile: ScanTile, view: View, load: Load, warps: int) -> ScanTile:
    """Columns whose rows are less than a sector: neighbouring threads have the next rows, not rows a chunk apart."""
    if view.vector > 1 or load.costly or load.sums or view.inner * view.element >= SECTOR:
        return tile
    length = max(1, WARP * warps * max(1, PACKED_WORDS // load.words) // tile.lines)
    return replace(tile, length=min(power_above(view.length), length), num_warps=warps, chunk=1)


def _unaligned_columns(view: View, load: Load, device: Device) -> ScanTile | None:
    """Wide tiles of columns that begin between vectors: a narrow one's rows are sectors in part.

    Half of the SMs do, where each has one; columns that leave lanes of the last tile idle are counted across the outer dims.
    """
    for wide in UNALIGNED_BYTES:
        lines = wide // view.element
        blocks = math.ceil(view.inner / lines)
        programs = blocks * view.outer
        rounds = math.ceil(programs / device.sms) * device.sms
        even = programs <= device.sms or programs / rounds >= EVEN_UNALIGNED
        if view.inner >= LANES_USED * blocks * lines and 2 * programs >= device.sms and even:
            tile = _columns(view, load, 1, lines, MOST_WARPS)
            if tile.length * lines == WARP * MOST_WARPS * tile.chunk:
                return tile
    lines = UNALIGNED_BYTES[-1] // view.element
    idle = WARP < view.inner < LANES_USED * math.ceil(view.inner / lines) * lines
    if idle and view.outer > 1 and 2 * view.inner * view.outer >= device.sms * lines:
        tile = _columns(view, load, 1, lines, WALKING_WARPS)
        if tile.length * lines == WARP * WALKING_WARPS * tile.chunk:
            return replace(tile, flat=True)
    return None


def _shared(tile: ScanTile, length: int, group: int, groups: int) -> ScanTile:
    """A tile for each share, which stays in registers. Shares of other lines run between those of one."""
    return replace(tile, shares=math.ceil(length / tile.length), group=group, groups=groups, pause=PAUSE_NS)
