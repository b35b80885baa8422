"""The decisions of a launch of a scan, and their consequences: states, blocks of lines, words of workspace."""

from __future__ import annotations

import math
from dataclasses import dataclass

from tilefold.algebra.program import Program
from tilefold.planner.folds import narrowed
from tilefold.planner.plan import count
from tilefold.planner.problem.canonical import Problem


@dataclass(frozen=True)
class Work:
    """The options of a scan beside its problem: see `requests.Scan`."""

    exclusive: bool = False
    reverse: bool = False
    init: bool = False
    state: bool = False


@dataclass(frozen=True)
class ScanTile:
    """The decisions of one launch of a scan: a program owns `lines` lines and reads `length` elements of each at a time.

    `by_rows`: a line's elements are neighbours in memory; else neighbours are other lines. `run` of them are one load.
    `chunk`: neighbours of a line that a thread combines by itself, and `stored` of them are one store of a row. `shares`: so
    many programs share a line, a tile each; 0 where a program walks its lines from end to end. `group` and `groups`: how
    many shares' states are combined in one tree, and how many groups' (see the kernel). `band`: so many rows have their
    shares taken before the next rows'; 0 where all do. `split`: shares that are whole have code without masks, where not all
    are. `registers` of a thread at most, 0 where that is left to the compiler. `ahead`: a walk reads a tile before it
    scans the one before. `pause`: nanoseconds between looks at what others make known. `sums`: a chunk's prefixes are sums.
    `again`: shares are read again, not kept in registers.
    `flat`: lines are counted along all their dims as one, so that no program has few. `stored`, of columns whose results are
    neighbours along a line: those that are one store, too.
    `align`: tiles count from a multiple of so many elements before each row, so that rows of any length are read in vectors.
    `near`: lines are so many places of the dim before the last, along which results are neighbours, by those of the last,
    along which elements are; 0: of the last dim alone.
    `shift`: results that begin at a vector are of elements that begin so many behind one, an input; () where none do.
    """

    lines: int
    length: int
    by_rows: bool
    run: int
    num_warps: int
    work: Work = Work()
    chunk: int = 1
    stored: int = 1
    shares: int = 0
    group: int = 1
    groups: int = 1
    ahead: bool = False
    pause: int = 0
    sums: bool = False
    align: int = 1
    again: bool = False
    flat: bool = False
    band: int = 0
    split: bool = False
    registers: int = 0
    shift: tuple[int, ...] = ()
    near: int = 0

    @property
    def note(self) -> str:
        """In the shortest form, as a benchmark's results keep it."""
        kind = "rows" if self.by_rows else "columns"
        shared = f",s{self.shares},g{self.group}x{self.groups}" if self.shares else ""
        tile = f"{self.lines}x{self.length},c{self.chunk},r{self.run}"
        ways = f"{',a' * self.ahead}{',sums' * self.sums}{',again' * self.again}{',flat' * self.flat}"
        ways += f",near{self.near}" * (self.near > 0)
        ways += f"{f',b{self.band}' * (self.band > 0)}{',split' * self.split}{f',n{self.registers}' * (self.registers > 0)}"
        aligned = f",align{self.align}" if self.align > 1 else ""
        shifted = f",h{'-'.join(map(str, self.shift))}" if self.shift else ""
        return f"scan_{kind}:{tile}{shared},w{self.num_warps}{ways}{aligned}{shifted}"

    def __str__(self) -> str:
        kind = "row" if self.by_rows else "column"
        words = [
            f"{count(self.lines, kind)} x {count(self.length, 'element')} a step",
            count(self.num_warps, "warp"),
        ]
        if self.shares:
            words += [f"{count(self.shares, 'share')} a {kind}"]
            words += [f"trees of {self.group} shares and {self.groups} groups"]
        words += [f"{count(self.near, 'neighbour')} of the results"] * (self.near > 0)
        words += ["a tile ahead"] * self.ahead
        words += ["prefixes as sums"] * self.sums
        backwards = ["from the end"] * self.work.reverse
        return f"scan_{'tiles' if self.shares else 'lines'}: {', '.join(words + backwards)}"


def scan_program(program: Program, work: Work, length: int) -> Program:
    """The program with positions of 32 bits, where no state is seen outside, the identity's least of all."""
    seen = work.init or work.state or work.exclusive
    return program if seen else narrowed(program, length)


def state_words(program: Program) -> int:
    """32-bit words of a state."""
    return sum(max(1, d.itemsize // 4) for d in program.state)


def line_blocks(problem: Problem, tile: ScanTile) -> tuple[int, int]:
    """Blocks of neighbouring lines along the last dim of lines, and in all."""
    sizes = [d.size for d in problem.output_dims] or [1]
    if tile.flat:
        return math.prod(sizes[:-1]), math.ceil(math.prod(sizes) / tile.lines)
    if tile.near:
        along = math.ceil(sizes[-1] / (tile.lines // tile.near))
        return along, along * math.ceil(sizes[-2] / tile.near) * math.prod(sizes[:-2])
    along = math.ceil(sizes[-1] / tile.lines)
    return along, along * math.prod(sizes[:-1])


def shared_words(problem: Problem, tile: ScanTile, words: int) -> int:
    """64-bit words of the workspace: the counter, and what shares, groups and blocks of groups make known."""
    groups = math.ceil(tile.shares / tile.group)
    states = tile.shares + groups + math.ceil(groups / tile.groups)
    return 1 + states * line_blocks(problem, tile)[1] * tile.lines * words
