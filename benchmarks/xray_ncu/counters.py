"""What is compared: of each quantity the X-ray's count, and which of Nsight Compute's counters it should equal."""

from __future__ import annotations

import csv
import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tilefold.xray import Report
from tilefold.xray.report.model import Access

# Opcodes of the machine, counted by patching it: `@BAR` is their sum over warps.
_OPCODES = "sass__inst_executed_per_opcode"
Counters = dict[str, float]


@dataclass(frozen=True)
class Quantity:
    """`ours` counts in a report; `theirs` are sums of counters, the first of which that is there is taken."""

    name: str
    ours: Callable[[Report], int | None]
    theirs: tuple[tuple[str, ...], ...]


def accesses(report: Report, space: str, *kinds: str) -> list[Access]:
    """The accesses of a report to a space, of some kinds."""
    return [a for line in report.lines for a in line.accesses if a.space == space and a.kind in kinds]


def _of(space: str, number: str, *kinds: str) -> Callable[[Report], int]:
    return lambda report: sum(getattr(a, number) or 0 for a in accesses(report, space, *kinds))


def _conflicts(*kinds: str) -> Callable[[Report], int]:
    passes, ideal = _of("shared", "passes", *kinds), _of("shared", "ideal", *kinds)
    return lambda report: passes(report) - ideal(report)


def _issued(work: str, *opcodes: str) -> Callable[[Report], int]:
    """What the machine issues of some opcodes; where that is open, what the PTX does."""

    def count(report: Report) -> int:
        if report.totals.machine is None:
            return int(getattr(report.totals.work, work))
        return sum(times for opcode, times in report.totals.machine if opcode in opcodes)

    return count


def _all_issued(report: Report) -> int | None:
    machine = report.totals.machine
    return None if machine is None else sum(times for _, times in machine)


def _global(what: str, *operations: str) -> tuple[str, ...]:
    return tuple(f"l1tex__t_{what}_pipe_lsu_mem_global_op_{o}.sum" for o in operations)


def _shared(what: str, operation: str) -> tuple[str, ...]:
    return (f"l1tex__data_{what}_mem_shared_op_{operation}.sum",)


_TENSOR = ("HMMA", "IMMA", "DMMA", "QMMA", "HGMMA", "IGMMA", "QGMMA")
_PASSES, _CONFLICTS = "pipe_lsu_wavefronts", "bank_conflicts_pipe_lsu"
QUANTITIES = (
    Quantity("sectors loaded", _of("global", "sectors", "load", "copy"), (_global("sectors", "ld"),)),
    Quantity("sectors stored", _of("global", "sectors", "store"), (_global("sectors", "st"),)),
    Quantity("sectors of atomics", _of("global", "sectors", "atomic"), (_global("sectors", "atom", "red"),)),
    Quantity("requests to load", _of("global", "requests", "load", "copy"), (_global("requests", "ld"),)),
    Quantity("requests to store", _of("global", "requests", "store"), (_global("requests", "st"),)),
    Quantity("requests of atomics", _of("global", "requests", "atomic"), (_global("requests", "atom", "red"),)),
    Quantity("passes of loads", _of("shared", "passes", "load"), (_shared(_PASSES, "ld"),)),
    Quantity("passes of stores", _of("shared", "passes", "store"), (_shared(_PASSES, "st"),)),
    Quantity("passes of copies", _of("shared", "passes", "copy"),
             (("smsp__sass_l1tex_data_pipe_lsu_wavefronts_mem_shared_op_ldgsts.sum",),)),
    Quantity("conflicts of loads", _conflicts("load"), (_shared(_CONFLICTS, "ld"),)),
    Quantity("conflicts of stores", _conflicts("store"), (_shared(_CONFLICTS, "st"),)),
    Quantity("barriers", _issued("barriers", "BAR"), (("@BAR",),)),
    Quantity("shuffles", _issued("shuffles", "SHFL", "REDUX"), (("@SHFL", "@REDUX"),)),
    Quantity("tensor instructions", _issued("tensor", *_TENSOR), (tuple(f"@{o}" for o in _TENSOR),)),
    Quantity("all instructions", _all_issued, (("smsp__inst_executed.sum",),)),
)  # fmt: skip


def read(*files: Path) -> list[dict[str, Any]]:
    """Launches in their order, with the counters of all files (`--csv --page raw`)."""
    tables = [_rows(path.read_text(encoding="utf-8")) for path in files]
    if len({len(rows) for rows in tables}) > 1:
        raise SystemExit(f"xray_ncu: files must hold the same launches, got {[len(rows) for rows in tables]}")
    return [{k: v for row in rows for k, v in row.items()} for rows in zip(*tables, strict=True)]


def _rows(text: str) -> list[dict[str, str]]:
    """A row a launch; what ncu says before its table, and the row of units, left out."""
    rows = list(csv.reader(text.splitlines()))
    start = next((i for i, row in enumerate(rows) if "Kernel Name" in row), None)
    if start is None:
        raise SystemExit("xray_ncu: a table must name its kernels, got no column 'Kernel Name'")
    header = rows[start]
    found = [dict(zip(header, row, strict=True)) for row in rows[start + 1 :] if len(row) == len(header)]
    return [row for row in found if row["Kernel Name"]]


def counters(row: dict[str, str]) -> Counters:
    """The numbers of one launch; opcodes as `@BAR`."""
    found: Counters = {}
    for name, value in row.items():
        number = re.match(r"-?[\d,]+(\.\d+)?", value)
        if number:
            found[name] = float(number[0].replace(",", ""))
        if name == _OPCODES:
            for opcode, count in re.findall(r"([A-Z]\w*)\s*:\s*([\d,]+)", value):
                found[f"@{opcode}"] = float(count.replace(",", ""))
    return found


def theirs(quantity: Quantity, found: Counters) -> tuple[str, float] | None:
    """The counter's name and value; None where Nsight Compute was not asked or did not say."""
    for names in quantity.theirs:
        if names[0].startswith("@"):
            if any(n.startswith("@") for n in found):
                used = [n for n in names if n in found]
                return " + ".join(n[1:] for n in used or names[:1]), sum(found[n] for n in used)
        elif all(n in found for n in names):
            return " + ".join(names), sum(found[n] for n in names)
    return None


def agree(ours: float, other: float) -> bool:
    """Within one percent."""
    return abs(ours - other) <= 0.01 * max(abs(other), abs(ours))


def launched(rows: Iterable[dict[str, str]], expected: list[tuple[str, str]]) -> list[dict[str, str]]:
    """The rows of what was launched, in order. Kernels of other names, torch's own, are left out."""
    names = {kernel for _, kernel in expected}
    kept = [row for row in rows if row["Kernel Name"] in names]
    if [row["Kernel Name"] for row in kept] != [kernel for _, kernel in expected]:
        raise SystemExit(
            f"xray_ncu: the profile must hold {[k for _, k in expected]}, got {[r['Kernel Name'] for r in kept]}"
        )
    return kept
