"""Passes through the banks of shared memory that conflicts cost, and why a line goes through shared memory."""

from __future__ import annotations

import re
from collections.abc import Iterator

from tilefold.xray.evidence import Evidence
from tilefold.xray.ir import Operation, tensors
from tilefold.xray.machine.counts import shared_cost
from tilefold.xray.observe.joined import TURNED
from tilefold.xray.observe.wants import wants
from tilefold.xray.report.model import Line, Observation, Report
from tilefold.xray.report.static import line_of

_NARROW = 8  # bits of the types that wgmma takes only with K contiguous
_REGIONS = {
    "tt.reduce": "a reduction",
    "tt.scan": "a scan",
    "tt.gather": "tl.gather",
    "tt.histogram": "tl.histogram",
}
WARPS = "launch with other warps"
BY_TRITON = {"a reduction", "a scan"}
PARTIAL = "what goes through shared memory here are partial results, which Triton lays out"


def bank_conflict(report: Report, evidence: Evidence) -> Iterator[Observation]:
    """Shared memory accessed in more passes than the words need."""
    for line in report.lines:
        for access in line.accesses:
            if access.passes is None or access.ideal is None or access.passes <= access.ideal:
                continue
            spare, requests = access.passes - access.ideal, access.requests or 1
            an = "an" if access.kind == "atomic" else "a"
            reason, change = _cause(line, evidence)
            yield Observation(
                "bank-conflict",
                "warning",
                line.file,
                line.line,
                f"{an} {access.kind} of shared memory makes {access.passes / requests:.1f} passes a request where "
                f"{access.ideal / requests:.1f} would do",
                reason,
                change,
                cycles_at_stake=4 * spare,
                numbers=(("passes", access.passes), ("ideal", access.ideal)),
            )


def _cause(line: Line, evidence: Evidence) -> tuple[str, str]:
    """Why the line's elements stand as they do, and what to do."""
    here = [o for o in evidence.ttgir.walk() if line_of(o.place) == (line.file, line.line)]
    if any(_turned(o, evidence) for o in here):
        return (
            f"{TURNED}, byte after byte: wgmma takes operands of {_NARROW} bits only with K contiguous, and in this one the "
            "other dim is",
            "keep this operand in global memory with K contiguous; not tried: that is another input",
        )
    reason = "lanes of one warp ask different words of the same bank, and these come one after the other"
    what = dict.fromkeys(said for o in here if (said := _passing(o, evidence)))
    if what and (what.keys() <= BY_TRITON or (what.keys() & BY_TRITON and _plain(line, evidence))):
        named = [w for w in what if w in BY_TRITON]
        return f"{reason}; {PARTIAL}: {', '.join(named)}", WARPS
    # Of several operations it is not known which one conflicts.
    return (
        f"{reason}; what goes through shared memory here: {next(iter(what))}" if len(what) == 1 else reason
    ), WARPS


def _plain(line: Line, evidence: Evidence) -> bool:
    """Whether a line's conflicts are those of plain accesses, where its change of layout moves matrices."""
    moving, spoiled = False, False
    for number in evidence.at((line.file, line.line)):
        matrix = "matrix" in evidence.entry.instructions[number].name
        moving |= matrix
        outcomes = () if evidence.execution is None else evidence.execution.outcomes
        cost = shared_cost(a for o in outcomes for a in o.accesses if a.instruction == number)
        if cost.passes > cost.ideal:
            if matrix:
                return False
            spoiled = True
    return moving and spoiled


def _turned(operation: Operation, evidence: Evidence) -> bool:
    """Whether registers are stored for the matrix unit with their other dim contiguous, of a narrow type."""
    if operation.name not in ("ttg.local_alloc", "ttg.local_store") or not tensors(operation.types):
        return False
    known = evidence.ttgir.aliases
    order = re.search(r"order = \[(\d)", evidence.ttgir.layout(tensors(operation.types)[0]))
    names = re.findall(r"#[\w.]+", operation.types.split("->")[-1])
    wanted = (known.get(name, name) for name in names)
    shared = next((x for x in wanted if f"elementBitWidth = {_NARROW}" in x), "")
    # The registers' first dim is the last one of the tile, unless they are turned themselves.
    return order is not None and bool(shared) and (order[1] == "1") == ("transposed = true" in shared)


def _passing(operation: Operation, evidence: Evidence) -> str:
    """An operation that goes through shared memory, in words; nothing for others."""
    if operation.name == "ttg.convert_layout":
        return f"a change of layout ({wants(operation, evidence)})"
    if operation.name in _REGIONS:
        return _REGIONS[operation.name]
    if operation.name in ("ttg.local_alloc", "ttg.local_load", "ttg.local_store") and tensors(
        operation.types
    ):
        return "an operand of a product"
    return ""
