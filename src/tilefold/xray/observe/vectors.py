"""Accesses that are narrower than they could be, and why: shown by compiling the kernel again with one thing changed."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING

import numpy as np

from tilefold.errors import CompileError
from tilefold.xray.compile import offline
from tilefold.xray.compile.job import Compiled
from tilefold.xray.ir import element_bytes, tensors
from tilefold.xray.layouts import holding
from tilefold.xray.machine.log import Access as Logged
from tilefold.xray.ptx import parse
from tilefold.xray.report.model import Access, Line, Observation, Report
from tilefold.xray.report.static import Lines, access_of, line_of

if TYPE_CHECKING:
    from tilefold.xray.report.build import Evidence

WHOLE = 16  # bytes that one thread can move at once
Place = tuple[str, int, str]  # file, line, load or store


def scalar_access(report: Report, evidence: Evidence) -> Iterator[Observation]:
    """Loads and stores of global memory in pieces, where what a program touches lies together."""
    found = {
        (line.file, line.line, a.kind): (line, a)
        for line in report.lines
        for a in line.accesses
        if a.space == "global"
        and a.kind in ("load", "store")
        and possible_width(line, a, evidence) >= 2 * a.bytes > 0
    }
    if not found:
        return
    causes = Causes(evidence, {place: a.bytes for place, (_, a) in found.items()})
    for place, (line, a) in found.items():
        reason, change, wider = causes.of(place)
        if reason is None and evidence.execution is None:
            continue  # nothing was executed, and no experiment shows that it could be wider
        width = wider or possible_width(line, a, evidence)
        spare = (a.requests or a.instructions) - (a.requests or a.instructions) * a.bytes // width
        yield Observation(
            "scalar-access",
            "warning",
            line.file,
            line.line,
            f"{a.instructions} {a.kind}s of {a.bytes} bytes a thread, whose {a.instructions * a.bytes} bytes could go "
            f"{width} at a time",
            reason
            or "the compiler cannot prove from the pointer's arithmetic that neighbouring elements lie together",
            change
            or "write offsets as a base plus tl.arange; tell what you know with tl.multiple_of and tl.max_contiguous",
            cycles_at_stake=max(spare, 0),
            numbers=(("bytes", a.bytes), ("instructions", a.instructions), ("possible", width)),
        )


def possible_width(line: Line, access: Access, evidence: Evidence) -> int:
    """Bytes that a thread could move at once, by what it holds and, if programs were executed, by what lies together."""
    held = min(WHOLE, _power(bytes_a_thread(line, access, evidence)))
    return held if evidence.execution is None else min(held, _power(_run(line, access, evidence)))


def bytes_a_thread(line: Line, access: Access, evidence: Evidence) -> int:
    """Bytes that a thread holds of the largest tile that a line loads or stores."""
    found = [0]
    for operation in evidence.ttgir.walk():
        if operation.name == f"tt.{access.kind}" and line_of(operation.place) == (line.file, line.line):
            for tile in tensors(operation.types)[:1]:
                held, size = (
                    holding(tile, evidence.ttgir.aliases, evidence.compiled.num_warps),
                    element_bytes(tile.pointee),
                )
                found.append(0 if held is None or size > access.bytes else held.held * size)
    return max(found)


def _power(n: int) -> int:
    return 1 << (n.bit_length() - 1) if n > 0 else 0


def _run(line: Line, access: Access, evidence: Evidence) -> int:
    """Bytes of the shortest run, but the last, that all these instructions touch together when executed once."""
    assert evidence.execution is not None
    numbers = {
        n
        for n, i in enumerate(evidence.entry.instructions)
        if evidence.places.line(i) == (line.file, line.line)
        and access_of(i) == (access.kind, access.space, access.bytes)
    }
    longest = 0
    for outcome in evidence.execution.outcomes:
        first: dict[int, Logged] = {}
        for logged in outcome.accesses:
            if logged.instruction in numbers:
                first.setdefault(logged.instruction, logged)
        if first:
            at = np.unique(np.concatenate([a.addresses[a.active].astype(np.int64) for a in first.values()]))
            longest = max(longest, _typical_run(at, access.bytes))
    return longest


def _typical_run(addresses: np.ndarray[tuple[int], np.dtype[np.int64]], size: int) -> int:
    """Bytes of the middle one of the runs that sorted addresses make."""
    if not len(addresses):
        return 0
    ends = np.flatnonzero(np.diff(addresses) != size)
    edges = np.concatenate([[-1], ends, [len(addresses) - 1]])
    return int(np.median(np.diff(edges))) * size


class Causes:
    """What keeps accesses narrow. Each experiment compiles the kernel's TTIR again: without masks, with promises."""

    def __init__(self, evidence: Evidence, widths: Mapping[Place, int]) -> None:
        self._evidence, self._widths = evidence, widths
        self._without_masks = self._widths_of(_unmasked(evidence, set(widths)))
        names = _unpromised(evidence)
        self._promised = self._widths_of(_promising(evidence.compiled.ttir, names)) if names else {}
        self._single: dict[str, dict[Place, int]] = {}
        if any(self._gains(self._promised, p) for p in widths):
            self._single = {
                n: self._promised
                if len(names) == 1
                else self._widths_of(_promising(evidence.compiled.ttir, [n]))
                for n in names
            }

    def of(self, place: Place) -> tuple[str | None, str | None, int]:
        """(reason, change, width that it would have) of an access; None where no experiment helps."""
        names = [n for n, widths in self._single.items() if self._gains(widths, place)]
        masked = self._gains(self._without_masks, place)
        together = not names and self._gains(self._promised, place)
        if names or together:
            shown = " and ".join(self._single) if together else " or ".join(names)
            through = "the mask may end inside a vector" if masked else "the pointer may not be aligned"
            return (
                f"divisibility: with {shown} a multiple of 16 it is {self._promised[place]} bytes; as it is, {through}",
                f"pad so that {shown} is a multiple of 16 and pass it so, or split the last tile off and mask it alone",
                self._promised[place],
            )
        if masked:
            return (
                f"mask: without it the access is {self._without_masks[place]} bytes; the compiler must assume that the mask "
                "changes inside a vector",
                "split the last tile off and mask it alone, or compare whole vectors: mask with offs // 4 * 4 < n where n "
                "is padded",
                self._without_masks[place],
            )
        return None, None, 0

    def _gains(self, widths: Mapping[Place, int], place: Place) -> bool:
        return widths.get(place, 0) > self._widths[place]

    def _widths_of(self, ttir: str) -> dict[Place, int]:
        """The narrowest access of each place, had the compiler seen this."""
        try:
            return narrowest(offline.recompile(self._evidence.compiled, ttir))
        except CompileError:
            return {}


def narrowest(compiled: Compiled) -> dict[Place, int]:
    """Bytes of the narrowest access of every line and kind."""
    module = parse(compiled.ptx)
    places, found = Lines(module, compiled.ptx), defaultdict[Place, list[int]](list)
    for instruction in module.entries[0].instructions:
        accessed, line = access_of(instruction), places.line(instruction)
        if accessed is not None and accessed[1] == "global" and line is not None:
            found[(*line, "load" if accessed[0] == "copy" else accessed[0])].append(accessed[2])
    return {place: min(sizes) for place, sizes in found.items()}


def _unmasked(evidence: Evidence, wanted: set[Place]) -> str:
    """The TTIR whose loads and stores at these places have no mask."""
    rows = evidence.compiled.ttir.splitlines()
    for operation in evidence.ttir.walk():
        line = line_of(operation.place)
        kind = operation.name.removeprefix("tt.")
        if kind not in ("load", "store") or line is None or (*line, kind) not in wanted:
            continue
        kept = operation.operands[: 1 if kind == "load" else 2]
        listed = re.escape(", ".join(operation.operands))
        rows[operation.row] = re.sub(listed, ", ".join(kept), rows[operation.row], count=1)
    return "\n".join(rows)


def _unpromised(evidence: Evidence) -> list[str]:
    """Arguments of the TTIR that nothing is promised to divide: integers and pointers."""
    head = next(row for row in evidence.compiled.ttir.splitlines() if "tt.func public" in row)
    return [
        found[1]
        for found in re.finditer(r"%([\w.$-]+): (?:!tt\.ptr<[^>]*>|i32|i64)( \{[^}]*\})?", head)
        if "divisibility = 16" not in (found[2] or "")
    ]


def _promising(ttir: str, names: list[str]) -> str:
    """The TTIR in which 16 divides these arguments."""
    for name in names:
        pattern = rf"(%{re.escape(name)}: (?:!tt\.ptr<[^>]*>|i32|i64))(?: \{{[^}}]*\}})?"
        ttir = re.sub(pattern, r"\1 {tt.divisibility = 16 : i32}", ttir, count=1)
    return ttir
