"""Accesses that are narrower than they could be, and why: shown by compiling the kernel again with one thing changed."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass

import numpy as np

from tilefold.xray.compile.job import Compiled
from tilefold.xray.evidence import Evidence
from tilefold.xray.ir import element_bytes, spelled, tensors
from tilefold.xray.layouts import holding
from tilefold.xray.machine.log import Access as Logged
from tilefold.xray.machine.types import Array
from tilefold.xray.observe.trials import Trials, UntriedError
from tilefold.xray.ptx import parse
from tilefold.xray.report.model import Access, Line, Observation, Report
from tilefold.xray.report.static import Lines, access_of, line_of

WHOLE = 16  # bytes that one thread can move at once
_SOME = 64  # threads of a program that are asked for their runs
_OPERATIONS = {
    "load": ("tt.load",), "store": ("tt.store",), "copy": ("ttg.async_copy_global_to_local",),
}  # fmt: skip
_MADE_OF = {"load": ("load", "copy"), "store": ("store",)}  # what a load or store of the TTIR may become
Place = tuple[str, int, str]  # file, line, load or store


def scalar_access(report: Report, evidence: Evidence, trials: Trials) -> Iterator[Observation]:
    """Loads and stores of global memory in pieces, though a thread holds more: with one thing else the compiler makes them
    wider, or the thread's own addresses lie together. (A layout may be narrow for the same reason as the access: then a
    thread's elements lie apart.)"""
    found = {
        (line.file, line.line, a.kind): (line, a)
        for line in report.lines
        for a in line.accesses
        if a.space == "global"
        and a.kind in ("load", "store", "copy")
        and min(WHOLE, _power(bytes_a_thread(line, a, evidence))) >= 2 * a.bytes > 0
    }
    if not found:
        return
    causes = Causes(evidence, trials, {place: a.bytes for place, (_, a) in found.items()})
    for place, (line, a) in found.items():
        cause = causes.of(place)
        if cause is None:
            # No experiment shows that it could be wider: then a thread's own addresses have to.
            if evidence.execution is None or possible_width(line, a, evidence) < 2 * a.bytes:
                continue
            cause = _unproven(line, a, evidence)
        width = cause.width or possible_width(line, a, evidence)
        spare = (a.requests or a.instructions) - (a.requests or a.instructions) * a.bytes // width
        copied = a.kind == "copy"
        kinds = "stores" if a.kind == "store" else "asynchronous copies" if copied else "loads"
        yield Observation(
            "narrow-copy" if copied else "scalar-access",
            "warning",
            line.file,
            line.line,
            f"{a.instructions} {kinds} of {a.bytes} bytes a thread, whose {a.instructions * a.bytes} bytes could go "
            f"{width} at a time" + ("; only copies of 16 bytes go past L1" if copied else ""),
            cause.reason,
            cause.change,
            cycles_at_stake=max(spare, 0),
            numbers=(("bytes", a.bytes), ("instructions", a.instructions), ("possible", width)),
        )


@dataclass(frozen=True)
class Cause:
    """Why an access is narrow, what would widen it, and to how many bytes (0: not shown)."""

    reason: str
    change: str
    width: int


def _unproven(line: Line, access: Access, evidence: Evidence) -> Cause:
    """No experiment widens it, and yet a thread's elements lie together: how often each is asked for, where they begin, or
    what the compiler knows."""
    asked, different = _asked(line, access, evidence)
    if asked >= 2 * different > 0:
        return Cause(
            f"a thread asks for each place {asked / different:.0f} times: its offsets repeat, as those of k // 8 do",
            "load each word once, as a tile of its own, and unpack it in registers (broadcast, shift, reshape)",
            0,
        )
    width = possible_width(line, access, evidence)
    begins = [int(run[0]) for run in runs_of(line, access, evidence) if len(run) * access.bytes >= width]
    astray = sum(at % width != 0 for at in begins)
    if astray:
        return Cause(
            f"alignment: {astray} of {len(begins)} threads' elements begin at addresses that are no multiple of {width}",
            f"let rows begin at multiples of {width} bytes (pad their stride), or begin at the multiple before and mask; "
            "nothing to do where they are shifted on purpose",
            0,
        )
    return Cause(
        "the compiler cannot prove from the pointer's arithmetic what the executed addresses show: a thread's neighbouring "
        "elements lie together",
        "write offsets as a base plus tl.arange; tell what you know with tl.multiple_of and tl.max_contiguous",
        0,
    )


def possible_width(line: Line, access: Access, evidence: Evidence) -> int:
    """Bytes that a thread could move at once, by what it holds and, if programs were executed, by what lies together."""
    held = min(WHOLE, _power(bytes_a_thread(line, access, evidence)))
    return held if evidence.execution is None else min(held, _power(run_of(line, access, evidence)))


def bytes_a_thread(line: Line, access: Access, evidence: Evidence) -> int:
    """Bytes that a thread holds of the largest tile that a line loads or stores."""
    found = [0]
    for operation in evidence.ttgir.walk():
        if operation.name in _OPERATIONS[access.kind] and line_of(operation.place) == (line.file, line.line):
            for tile in tensors(operation.types)[:1]:
                held, size = (
                    holding(tile, evidence.ttgir.aliases, evidence.compiled.num_warps),
                    element_bytes(tile.pointee),
                )
                found.append(0 if held is None or size > access.bytes else held.held * size)
    return max(found)


def _power(n: int) -> int:
    return 1 << (n.bit_length() - 1) if n > 0 else 0


def run_of(line: Line, access: Access, evidence: Evidence) -> int:
    """Bytes of the usual run that one thread's elements make, where all these instructions are executed once."""
    sizes = [len(run) for run in runs_of(line, access, evidence)]
    return int(np.median(sizes)) * access.bytes if sizes else 0


def runs_of(line: Line, access: Access, evidence: Evidence) -> list[Array]:
    """Runs of neighbouring addresses that one thread touches, for some threads of each program: what may go together."""
    each = _by_thread(line, access, evidence)
    return [run for at in each for run in _split_runs(np.unique(at), access.bytes)]


def _asked(line: Line, access: Access, evidence: Evidence) -> tuple[int, int]:
    """Places that threads ask for, and different ones of each thread."""
    each = _by_thread(line, access, evidence)
    return sum(map(len, each)), sum(len(np.unique(at)) for at in each)


def _by_thread(line: Line, access: Access, evidence: Evidence) -> list[Array]:
    """The addresses of some threads of each program, where all instructions of the line are executed once."""
    assert evidence.execution is not None
    numbers = {
        n
        for n, i in enumerate(evidence.entry.instructions)
        if evidence.places.line(i) == (line.file, line.line)
        and access_of(i) == (access.kind, access.space, access.bytes)
    }
    found: list[Array] = []
    for outcome in evidence.execution.outcomes:
        first: dict[int, Logged] = {}
        for logged in outcome.accesses:
            if logged.instruction in numbers:
                first.setdefault(logged.instruction, logged)
        if not first:
            continue
        threads = len(next(iter(first.values())).active)
        for thread in range(0, threads, max(1, threads // _SOME)):
            at = [int(a.addresses[thread]) for a in first.values() if a.active[thread]]
            found.append(np.array(at, np.int64))
    return found


def _split_runs(addresses: Array, size: int) -> list[Array]:
    """Sorted addresses, cut where the next one is not the neighbour."""
    return np.split(addresses, np.flatnonzero(np.diff(addresses) != size) + 1) if len(addresses) else []


class Causes:
    """What keeps accesses narrow. Each experiment compiles the kernel's TTIR again: without masks, with promises."""

    def __init__(self, evidence: Evidence, trials: Trials, widths: Mapping[Place, int]) -> None:
        self._evidence, self._trials, self._widths = evidence, trials, widths
        self._without_masks = self._widths_of(_unmasked(evidence, set(widths)))
        self._names = _unpromised(evidence, set(widths))
        self._promised = self._widths_of(self._promise(self._names)) if self._names else {}
        self._alone: dict[str, dict[Place, int]] = {}
        self._without: dict[str, dict[Place, int]] = {}
        if any(self._gains(self._promised, p) for p in widths):
            self._alone = self._each(lambda name: [name])
            if not all(any(self._gains(w, p) for w in self._alone.values()) for p in widths):
                self._without = self._each(lambda name: [n for n in self._names if n != name])

    def _each(self, promised: Callable[[str], list[str]]) -> dict[str, dict[Place, int]]:
        if len(self._names) == 1:
            return {self._names[0]: self._promised}
        return {name: self._widths_of(self._promise(promised(name))) for name in self._names}

    def of(self, place: Place) -> Cause | None:
        """The cause of a narrow access; None where no experiment helps."""
        masked = self._gains(self._without_masks, place)
        enough = [n for n, widths in self._alone.items() if self._gains(widths, place)]
        if enough or self._gains(self._promised, place):
            needed = [n for n, widths in self._without.items() if not self._gains(widths, place)]
            shown = enough[0] if enough else " and ".join(needed) or " or ".join(self._names)
            width = self._alone[enough[0]][place] if enough else self._promised[place]
            through = "the mask may end inside a vector" if masked else "the pointer may not be aligned"
            return Cause(
                f"divisibility: with {shown} a multiple of 16 it is {width} bytes (compiled so); as it is, {through}",
                f"pad so that {shown} is a multiple of 16 and pass it so, or split the last tile off and mask it alone",
                width,
            )
        if masked:
            return Cause(
                f"mask: without it the access is {self._without_masks[place]} bytes (compiled so); the compiler must assume "
                "that the mask changes inside a vector",
                "split the last tile off and mask it alone, or compare whole vectors: mask with offs // 4 * 4 < n where n "
                "is padded",
                self._without_masks[place],
            )
        return None

    def _promise(self, names: list[str]) -> str:
        return _promising(self._evidence.compiled.ttir, names)

    def _gains(self, widths: Mapping[Place, int], place: Place) -> bool:
        return widths.get(place, 0) > self._widths[place]

    def _widths_of(self, ttir: str) -> dict[Place, int]:
        """The narrowest access of each place, had the compiler seen this."""
        try:
            return narrowest(self._trials.compile(ttir))
        except UntriedError:
            return {}


def narrowest(compiled: Compiled) -> dict[Place, int]:
    """Bytes of the narrowest access of every line and kind."""
    module = parse(compiled.ptx)
    places, found = Lines(module, compiled.ptx, compiled.ttir), defaultdict[Place, list[int]](list)
    for instruction in module.entries[0].instructions:
        accessed, line = access_of(instruction), places.line(instruction)
        if accessed is not None and accessed[1] == "global" and line is not None:
            found[(*line, accessed[0])].append(accessed[2])
            if accessed[0] in (
                "load",
                "copy",
            ):  # with other widths a copy may become a load, and a load a copy
                found[(*line, {"load": "copy", "copy": "load"}[accessed[0]])].append(accessed[2])
    return {place: min(sizes) for place, sizes in found.items()}


def _unmasked(evidence: Evidence, wanted: set[Place]) -> str:
    """The TTIR whose loads and stores at these places have no mask."""
    rows = evidence.compiled.ttir.splitlines()
    for operation in evidence.ttir.walk():
        line = line_of(operation.place)
        kind = operation.name.removeprefix("tt.")
        if line is None or not any((*line, k) in wanted for k in _MADE_OF.get(kind, ())):
            continue
        named = [spelled(v) for v in operation.operands]
        kept = named[: 1 if kind == "load" else 2]
        listed = re.escape(", ".join(named))
        rows[operation.row] = re.sub(listed, ", ".join(kept), rows[operation.row], count=1)
    return "\n".join(rows)


def _unpromised(evidence: Evidence, places: set[Place]) -> list[str]:
    """Arguments of the TTIR that nothing is promised to divide, integers and pointers, on which these accesses' addresses or
    masks depend."""
    head = next(row for row in evidence.compiled.ttir.splitlines() if "tt.func public" in row)
    used: set[str] = set()
    for operation in evidence.ttir.walk():
        line, kind = line_of(operation.place), operation.name.removeprefix("tt.")
        if line is not None and any((*line, k) in places for k in _MADE_OF.get(kind, ())):
            used |= set(operation.operands[:1] + operation.operands[1 if kind == "load" else 2 :][:1])
    reached = evidence.ttir.reached_from(used)
    return [
        found[1]
        for found in re.finditer(r"%([\w.$-]+): (?:!tt\.ptr<[^>]*>|i32|i64)( \{[^}]*\})?", head)
        if "divisibility = 16" not in (found[2] or "") and f"%{found[1]}" in reached
    ]


def _promising(ttir: str, names: list[str]) -> str:
    """The TTIR in which 16 divides these arguments."""
    for name in names:
        pattern = rf"(%{re.escape(name)}: (?:!tt\.ptr<[^>]*>|i32|i64))(?: \{{[^}}]*\}})?"
        ttir = re.sub(pattern, r"\1 {tt.divisibility = 16 : i32}", ttir, count=1)
    return ttir
