"""Resources: spills, and how many warps an SM holds."""

from __future__ import annotations

from collections.abc import Iterator

from tilefold.xray.evidence import Evidence
from tilefold.xray.report.model import Observation, Report
from tilefold.xray.report.sass import local_by_line

_FEW = 0.25
_NEARLY = 0.9  # of the registers that a thread can have: the assembler keeps a few back
_REGISTERS = 65536  # of an SM
MOST_WARPS = 32  # of a program
_SMALLER = {
    "registers": "hold fewer elements a thread (a smaller tile, or more warps for the same), or let a loop keep less alive",
    "most warps": "hold fewer elements a thread (a smaller tile), or let a loop keep less alive",
    "shared memory": "take fewer stages of the pipeline (num_stages) or a smaller tile",
    "warps": "launch programs of fewer warps",
    "blocks": "launch programs of more warps: an SM takes no more programs than this",
}


def registers_a_thread(report: Report) -> int:
    """Registers that a thread can have: what the SM's make for all threads of one program, and 255 at most."""
    return min(255, _REGISTERS // (32 * report.num_warps))


def spill(report: Report, evidence: Evidence) -> Iterator[Observation]:
    """Registers that the assembler kept in local memory."""
    used = report.resources
    if not used.spilled:
        return
    lines = local_by_line(evidence.machine.code, evidence.entry.instructions, evidence.places)
    file, line = max(lines, key=lambda key: lines[key], default=("", 0))
    threads = 32 * report.num_warps * max(len(report.programs), 1)
    yield Observation(
        "spill",
        "warning",
        file,
        line,
        f"{used.spill_stores} bytes a thread are written to local memory and {used.spill_loads} read back, with "
        f"{used.registers} registers in use",
        *_why_spilled(report),
        bytes_at_stake=used.spilled * threads,
        numbers=(("spill_stores", used.spill_stores), ("spill_loads", used.spill_loads), ("from", "L2")),
    )


def _why_spilled(report: Report) -> tuple[str, str]:
    """Why registers are kept in memory, and what to do: there are no more, or the assembler gave fewer than it may."""
    most, used = registers_a_thread(report), report.resources.registers
    if used < _NEARLY * most:
        return (
            f"the assembler chose {used} registers a thread, where {most} are possible with {report.num_warps} warp"
            f"{'s' * (report.num_warps > 1)}",
            f"ask for more in the launch (maxnreg={most}); nothing to do where they are kept around a call or a rare branch",
        )
    smaller = _SMALLER["registers"] if report.num_warps < MOST_WARPS else _SMALLER["most warps"]
    return f"more values are alive at once than a thread has registers ({most} at most)", smaller


def few_warps(report: Report, evidence: Evidence) -> Iterator[Observation]:
    """Less than a quarter of the warps that an SM could hold."""
    held = report.occupancy
    if held.share >= _FEW or held.limiter == "nothing":
        return
    limits = dict(held.limits)
    tight = [k for k, n in limits.items() if n <= held.blocks]  # all of these have to give way
    further = min((n for k, n in limits.items() if k not in tight), default=held.blocks)
    smaller = "; and ".join(dict.fromkeys(_SMALLER[k] for k in tight))
    yield Observation(
        "occupancy",
        "note",
        "",
        0,
        f"an SM holds {held.warps} of {held.warps_at_most} warps: {held.blocks} programs by its {' and its '.join(tight)}",
        f"the next limit would allow {further} programs; few warps hide less of the time that memory takes",
        f"{smaller}; nothing to do where loads are already many ahead (pipelined products)",
        numbers=(("warps", held.warps), ("limiter", held.limiter), *held.limits),
    )
