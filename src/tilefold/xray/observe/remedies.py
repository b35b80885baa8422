"""Changes that can be made here - another launch, another word in the TTIR, other operations (`rewrites`) - made, compiled,
executed and compared.

A change is given as one that was tried only if all memory that the executed programs touched then holds the same (or, of a
change of precision, with what changes) and something is gained. Otherwise the entry says what was tried and what came of it.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from tilefold.xray.compile import offline
from tilefold.xray.compile.job import Compiled
from tilefold.xray.evidence import Evidence
from tilefold.xray.ir import Operation, tensors
from tilefold.xray.machine import Outcome
from tilefold.xray.machine.counts import global_cost, shared_cost
from tilefold.xray.observe import rewrites
from tilefold.xray.observe.conflicts import PARTIAL, WARPS
from tilefold.xray.observe.joined import ASTRAY, BACKWARDS, NARROWED, TURNED, UNPROVEN
from tilefold.xray.observe.memory import LONE, SHARED, transposing
from tilefold.xray.observe.promises import dividing
from tilefold.xray.observe.threads import SHORT
from tilefold.xray.observe.trials import (
    BARRIER,
    CLOCKS,
    NO_GAIN,
    Difference,
    Trials,
    UntriedError,
    difference,
)
from tilefold.xray.ptx import parse
from tilefold.xray.report.model import Observation, Report
from tilefold.xray.report.occupancy import occupancy
from tilefold.xray.report.static import Lines, line_of

_MUCH = 0.5  # of the bytes of all requests, which a change leaves at most that makes a note a warning
_GAIN = 0.98  # of what there was: what leaves more is no gain
_FEWER = 0.8  # of all passes through shared memory: other warps change everything else, too
_SPILLED = "bytes spilled a thread"
_ORDERED = 3  # loads whose dims are tried in the other order
_SECTOR = 32  # bytes; of elements as many suffice, too
# Codes that say that one change gains something: where it gains nothing, or stores something else, they are notes.
_ONE_REMEDY = (
    "older-tensor-core", "redundant-threads", "idle-warps", "repeated-dot", "strong-atomic", "fold-in-loop", "bank-conflict",
    "wasted-sectors", "small-axis-shuffles",
)  # fmt: skip
_ISSUED = ("redundant-threads", "idle-warps", "repeated-dot")  # that leave schedulers to other programs
# Not atomics, which wait for each other at one place: no unit here counts that.
_WEIGHED = (
    *_ISSUED, "spill", "older-tensor-core", "fold-in-loop", "bank-conflict", "wasted-sectors", "small-axis-shuffles",
    "read-again", "scalar-access",
)  # fmt: skip
_MOVING = ("tt.load", "tt.store", "tt.atomic_rmw")
Count = Callable[[Sequence[Outcome]], int]
_STRONG = ("acq_rel", "acquire", "release")


@dataclass(frozen=True)
class Remedy:
    """A change in words, the changed kernel, and its measure, less being better."""

    what: str
    compiled: Compiled
    measure: str
    before: float
    after: float
    precision: bool = False
    advice: str = ""  # in the place of what the observation advises, which then is a warning
    rounded: bool = False  # whether the same is stored but for rounding
    gain: float = _GAIN  # of the measure, what it leaves at most
    saved: float = 1.0  # of what is at stake, the part that the change saves


def tried(found: Observation, report: Report, evidence: Evidence, trials: Trials) -> Observation:
    """The observation with what its change gained, or with why it is not advised; as it was where nothing can be tried."""
    make = _REMEDIES.get(found.code)
    if evidence.execution is None or found.change.startswith("nothing to do"):
        return found
    if found.code == "wasted-sectors" and found.reason.startswith(ASTRAY):
        return _padded(found, evidence, trials)
    try:
        remedy = None if make is None else make(found, report, evidence, trials)
        if remedy is None:
            return _as_it_is(found)
        ours, theirs = trials.memory(evidence.compiled), trials.memory(remedy.compiled)
        changed = difference(evidence.compiled, ours, theirs, exact=remedy.precision)
        if not remedy.precision and changed is None:
            rounded = difference(evidence.compiled, ours, theirs, exact=True) is not None
            remedy = _unless_it_spills(replace(remedy, rounded=rounded), report)
            remedy = _unless_it_slows(found, remedy, trials)
    except UntriedError as reason:
        unshown = _by_trial(found) or (found.code == "bank-conflict" and trials.wanted)
        severity = "note" if unshown and found.severity == "warning" else found.severity
        return replace(found, severity=severity, change=f"{found.change}; not tried: {reason}")
    if remedy.advice and changed is None:
        found = replace(found, severity="warning", change=remedy.advice)
    said = _said(found.change, remedy, changed)
    if "and the same is stored" in said:
        at_stake = round(remedy.saved * found.bytes_at_stake), round(remedy.saved * found.cycles_at_stake)
        found = replace(found, bytes_at_stake=at_stake[0], cycles_at_stake=at_stake[1])
    if PARTIAL in found.reason and "and the same is stored" not in said:
        # No other launch helps, and the kernel does not say where its partial results lie.
        return replace(found, severity="note", change=said)
    useless = said.startswith(NO_GAIN) and (found.code in _ONE_REMEDY or _by_trial(found))
    refuted = changed is not None and not remedy.precision and (found.code in _ONE_REMEDY or _by_trial(found))
    same = remedy.precision and changed is None and found.code == "tf32-dot"
    if found.severity == "warning" and (useless or refuted or same):
        return replace(found, severity="note", change=said)
    return replace(found, change=said)


def _unless_it_spills(remedy: Remedy, report: Report) -> Remedy:
    """The remedy; where its kernel keeps more registers in memory than the kernel does, with that as its measure: no gain."""
    if remedy.measure == _SPILLED or remedy.after >= remedy.before:
        return remedy
    threads = 32 * report.num_warps
    before = report.resources.spilled * threads
    after = offline.resources(remedy.compiled).spilled * 32 * remedy.compiled.num_warps
    if after <= before:
        return remedy
    return replace(remedy, measure="bytes spilled a program", before=before, after=after)


def _unless_it_slows(found: Observation, remedy: Remedy, trials: Trials) -> Remedy:
    """The remedy; where its kernel takes more clocks of all units than the kernel, with these as its measure: no gain."""
    if found.code not in _WEIGHED or remedy.after > remedy.gain * remedy.before:
        return remedy
    before, after = trials.clocks(remedy.compiled)
    if after >= before and not (found.code in _ISSUED and after == before):
        return replace(remedy, measure=CLOCKS, before=before, after=after)
    if found.code != "bank-conflict":
        return remedy
    # Of other warps, which change everything else, too: at stake is no more than what all of it saves.
    if after > _GAIN * before:
        return replace(remedy, measure=CLOCKS, before=before, after=after, gain=_GAIN)
    return replace(remedy, saved=min(remedy.saved, (before - after) / max(remedy.before, 1)))


def _by_trial(found: Observation) -> bool:
    """Whether only a trial shows that a change gains something."""
    return found.code in (
        "older-tensor-core",
        "fold-in-loop",
        "small-axis-shuffles",
        "layout-in-loop",
    ) or found.reason.startswith((UNPROVEN, BACKWARDS))


def _padded(found: Observation, evidence: Evidence, trials: Trials) -> Observation:
    """Requests that begin between two sectors: a warning where they do not if the numbers that their addresses depend on are
    multiples of a sector. Where they still do, the kernel shifts them: a window, a tap, an offset that is loaded."""
    if found.severity != "warning":
        return found
    names = _strides(found, evidence)
    here = {*evidence.at(*found.places)}

    def moved(outcomes: Sequence[Outcome]) -> tuple[int, int]:
        costs = [global_cost(a for a in o.accesses if a.instruction in here) for o in outcomes]
        return sum(c.sectors - c.ideal for c in costs), sum(c.ideal for c in costs)

    try:
        if not names:
            raise UntriedError("no number that the launch gives moves them")
        made = trials.padded(names, _SECTOR)
        assert evidence.execution is not None
        (before, least), (after, still) = moved(evidence.execution.outcomes), moved(trials.run(made).outcomes)
        if 2 * still < least:
            raise UntriedError("with such strides the kernel does something else")
    except UntriedError as reason:
        return replace(found, severity="note", change=f"{found.change}; not tried: {reason}")
    said = f"tried with multiples of {_SECTOR} for {' and '.join(names)}: sectors beyond the bytes {before:,} -> {after:,}"
    if after <= _MUCH * before:
        return replace(found, change=f"{found.change} ({said})")
    return replace(
        found, severity="note", change=f"nothing to do: they are shifted by what the kernel computes ({said})"
    )


def _strides(found: Observation, evidence: Evidence) -> list[str]:
    """Whole numbers that the addresses of an observation's lines are computed from, and that nothing is divided by: those are
    lengths that places are counted in."""
    moved = {v for kind in _MOVING for o in _at(evidence, found, kind) for v in o.operands[:1]}
    reached, lengths = evidence.ttir.reached_from(moved), dividing(evidence)
    return [
        a.name for name, a in evidence.parameters
        if name in reached and a.name not in lengths and isinstance(a.value, int) and not a.pointer and a.value % _SECTOR
    ]  # fmt: skip


def _as_it_is(found: Observation) -> Observation:
    """The observation; of a change that nothing here tried, with a word of that."""
    if found.severity == "note" or any(
        word in found.change + found.reason for word in ("tried", "compiled so")
    ):
        return found
    return replace(found, change=f"{found.change} (not tried)")


def _said(change: str, remedy: Remedy, changed: Difference | None) -> str:
    came = f"{remedy.measure} {remedy.before:,.0f} -> {remedy.after:,.0f}"
    if remedy.precision:
        return f"{change} (tried {remedy.what}: {came}; {changed or 'nothing that is stored changes'})"
    if changed is not None:
        return f"not {remedy.what}: tried, and then other values are stored ({changed})"
    if remedy.after >= remedy.before or remedy.after > remedy.gain * remedy.before:
        return f"{NO_GAIN}{remedy.what}: tried, {came}" + ("" if change == WARPS else f"; {change}")
    rounding = " but for rounding" if remedy.rounded else ""
    if (
        remedy.what.startswith("num_warps=") and remedy.measure != "bytes moved"
    ):  # no word of what nobody tried
        change = f"launch with {remedy.what}"
        return f"{change} (tried: {came}, and the same is stored{rounding})"
    return f"{change} (tried {remedy.what}: {came}, and the same is stored{rounding})"


def _issued(outcomes: Sequence[Outcome]) -> int:
    return sum(o.instructions for o in outcomes)


def _launched(warps: int, evidence: Evidence, trials: Trials) -> Remedy | None:
    """Other warps, measured by the instructions that are issued."""
    if warps == evidence.compiled.job.num_warps:
        return None
    return _measured(
        trials.launch(warps=warps), f"num_warps={warps}", "instructions issued", _issued, evidence, trials
    )


def _fewer_warps(found: Observation, report: Report, evidence: Evidence, trials: Trials) -> Remedy | None:
    copies = int(dict(found.numbers)["copies"])
    return _launched(max(1, report.num_warps // copies), evidence, trials)


def _once(found: Observation, report: Report, evidence: Evidence, trials: Trials) -> Remedy | None:
    """A dot that as many warps issue as have results of their own, measured by what is issued of it."""
    remedy = _fewer_warps(found, report, evidence, trials)
    if remedy is None or remedy.after >= remedy.before:
        return remedy
    assert evidence.execution is not None
    before = _tensor(evidence.compiled, evidence.execution.outcomes)
    after = _tensor(remedy.compiled, trials.run(remedy.compiled).outcomes)
    return replace(remedy, measure="mma issued", before=before, after=after) if before else remedy


def _tensor(compiled: Compiled, outcomes: Sequence[Outcome]) -> int:
    """Instructions of the matrix unit that are issued."""
    instructions = parse(compiled.ptx).entries[0].instructions
    dots = [n for n, i in enumerate(instructions) if i.name.startswith(("mma.", "wgmma.mma_async"))]
    return int(sum(o.issued[dots].sum() for o in outcomes))


def _warp_group(found: Observation, report: Report, evidence: Evidence, trials: Trials) -> Remedy | None:
    return _launched(4, evidence, trials)


def _other_warps(found: Observation, report: Report, evidence: Evidence, trials: Trials) -> Remedy | None:
    """Half and twice the warps against conflicts of shared memory, measured by passes at its lines; of those that have fewer
    the ones whose units take the fewest clocks together."""
    assert evidence.execution is not None
    if found.severity == "note" or found.reason.startswith(TURNED):
        return None
    outcomes = evidence.execution.outcomes
    before, issued, all_ = _spare(evidence.compiled, outcomes, found), _issued(outcomes), _passes(outcomes)
    half = report.num_warps // 2
    made = [(w, trials.launch(warps=w)) for w in (half, half // 2, 2 * report.num_warps) if 1 <= w <= 16]
    ran = [(w, kernel, trials.run(kernel).outcomes, trials.clocks(kernel)[1]) for w, kernel in made]
    # Fewer passes here by more elsewhere, or by many more instructions, are no gain.
    left = [
        _spare(kernel, o, found) if _issued(o) <= 1.1 * issued and _passes(o) <= all_ else before
        for _, kernel, o, _ in ran
    ]
    best = min(range(len(ran)), key=lambda n: (left[n] > _FEWER * before, ran[n][3]))
    after, (warps, kernel, *_) = left[best], ran[best]
    tried = f"num_warps={warps}" if after < before else " or ".join(f"num_warps={w}" for w, _ in made)
    saved = (before - after) / max(before, 1)
    return Remedy(
        tried, kernel, "passes beyond the least at its lines", before, after, gain=_FEWER, saved=saved
    )


def _spare(compiled: Compiled, outcomes: Sequence[Outcome], found: Observation, space: str = "shared") -> int:
    """Passes through shared memory, or sectors, beyond the least, of accesses at an observation's lines."""
    module = parse(compiled.ptx)
    lines = Lines(module, compiled.ptx, compiled.ttir)
    here = {n for n, i in enumerate(module.entries[0].instructions) if lines.line(i) in found.places}
    asked = [[a for a in o.accesses if a.instruction in here] for o in outcomes]
    if space == "global":
        return sum(c.sectors - c.ideal for c in map(global_cost, asked))
    return sum(c.passes - c.ideal for c in map(shared_cost, asked))


def _passes(outcomes: tuple[Outcome, ...]) -> int:
    return sum(shared_cost(o.accesses).passes for o in outcomes)


def _more_warps(found: Observation, report: Report, evidence: Evidence, trials: Trials) -> Remedy | None:
    """Twice the warps for a kernel that spills."""
    if report.num_warps >= 16:
        return None
    made = trials.launch(warps=2 * report.num_warps)
    before, after = report.resources.spilled, offline.resources(made).spilled
    return Remedy(
        f"num_warps={2 * report.num_warps}", made, _SPILLED, before, after, gain=0.5
    )  # for twice the threads


def _fewer_stages(found: Observation, report: Report, evidence: Evidence, trials: Trials) -> Remedy | None:
    """One stage less where shared memory limits how many programs an SM holds."""
    if report.occupancy.limiter != "shared memory" or report.num_stages < 2:
        return None
    made = trials.launch(stages=report.num_stages - 1)
    chip, used = made.job.chip, offline.assemble(made).resources
    after = occupancy(chip, used, made.num_warps).warps
    limit = report.occupancy.warps_at_most
    return Remedy(
        f"num_stages={report.num_stages - 1}",
        made,
        "warps that an SM has no room for",
        limit - report.occupancy.warps,
        limit - after,
    )


def _at(evidence: Evidence, found: Observation, name: str) -> list[Operation]:
    """Operations of a name at the observation's lines."""
    return [o for o in evidence.ttir.walk() if o.name == name and line_of(o.place) in found.places]


def _rewritten(
    evidence: Evidence, operations: list[Operation], change: Callable[[str], str], trials: Trials
) -> Compiled:
    """The kernel with the rows of some operations changed.

    Raises:
        UntriedError: there is nothing to change, or the text does not compile.
    """
    rows = evidence.compiled.ttir.splitlines()
    before = list(rows)
    for operation in operations:
        rows[operation.row] = change(rows[operation.row])
    if rows == before:
        raise UntriedError("its words are not in the TTIR")
    return trials.compile("\n".join(rows))


def _weaker(found: Observation, report: Report, evidence: Evidence, trials: Trials) -> Remedy | None:
    """An atomic that says relaxed (or release, where it may publish), measured by orders and fences in the PTX."""
    word = "release" if found.severity == "note" else "relaxed"
    strong = _at(evidence, found, "tt.atomic_rmw")

    def weakened(row: str) -> str:
        for order in _STRONG:
            row = row.replace(f" {order},", f" {word},")
        return row

    made = _rewritten(evidence, strong, weakened, trials)
    return Remedy(
        f'sem="{word}"',
        made,
        "orders and fences in the PTX",
        _orders(evidence.compiled.ptx),
        _orders(made.ptx),
    )


def _orders(ptx: str) -> int:
    return sum(ptx.count(f".{word}") for word in _STRONG) + ptx.count("fence.") + ptx.count("membar.")


def _exact(found: Observation, report: Report, evidence: Evidence, trials: Trials) -> Remedy | None:
    return _precision(found, evidence, trials, "ieee")


def _rounded(found: Observation, report: Report, evidence: Evidence, trials: Trials) -> Remedy | None:
    dots = _at(evidence, found, "tt.dot")
    if not any("xf32>" in dot.types for dot in dots):
        return None
    return _precision(found, evidence, trials, "tf32")


def _precision(found: Observation, evidence: Evidence, trials: Trials, word: str) -> Remedy:
    """Dots of another precision: instructions issued, and what is stored then."""

    def said(row: str) -> str:
        for other in ("tf32x3", "tf32", "ieee"):
            if f"inputPrecision = {other}" in row:
                return row.replace(f"inputPrecision = {other}", f"inputPrecision = {word}")
        return row.replace(" : ", f", inputPrecision = {word} : ", 1)

    made = _rewritten(evidence, _at(evidence, found, "tt.dot"), said, trials)
    remedy = _measured(made, f'input_precision="{word}"', "instructions issued", _issued, evidence, trials)
    return replace(remedy, precision=True)


def _measured(
    made: Compiled, what: str, measure: str, count: Count, evidence: Evidence, trials: Trials
) -> Remedy:
    """Another kernel, measured in what both execute."""
    return Remedy(what, made, measure, *_counted(count, made, evidence, trials))


def _counted(count: Count, made: Compiled, evidence: Evidence, trials: Trials) -> tuple[int, int]:
    """What the kernel and another one execute."""
    assert evidence.execution is not None
    return count(evidence.execution.outcomes), count(trials.run(made).outcomes)


def _text(text: str, what: str, measure: str, count: Count, evidence: Evidence, trials: Trials) -> Remedy:
    """Another TTIR, measured so."""
    return _measured(trials.compile(text), what, measure, count, evidence, trials)


def _moved(outcomes: Sequence[Outcome]) -> int:
    return sum(global_cost(o.accesses).moved for o in outcomes)


def _requests(outcomes: Sequence[Outcome]) -> int:
    return sum(global_cost(o.accesses).requests for o in outcomes)


def _atomics(outcomes: Sequence[Outcome]) -> int:
    return sum(int(a.active.sum()) for o in outcomes for a in o.accesses if a.kind == "atomic")


def _barriers(outcomes: Sequence[Outcome]) -> int:
    return sum(o.barriers for o in outcomes)


def _kept(found: Observation, report: Report, evidence: Evidence, trials: Trials) -> Remedy | None:
    """The earlier load's tile in the place of the later one."""
    if found.severity == "note":
        return None
    text = rewrites.loaded_once(evidence.compiled.ttir, evidence.ttir, _at(evidence, found, "tt.load"))
    return _text(text, "keeping the tile", "bytes moved", _moved, evidence, trials)


def _turned(found: Observation, report: Report, evidence: Evidence, trials: Trials) -> Remedy | None:
    """The tile with its dims in the other order, transposed in registers. Where a cache gives the rest of the sectors, it is
    said only if it saves many."""
    if launch := re.search(r"num_warps=(\d+)", found.change):
        made = trials.launch(warps=int(launch[1]))
        return _measured(made, launch[0], "bytes moved", _moved, evidence, trials)
    if LONE in found.reason and SHARED in found.reason:
        return None  # a longer tile, which other programs' work would be part of
    moves = [o for kind in _MOVING for o in _at(evidence, found, kind)]
    try:
        text = rewrites.turned(evidence.compiled.ttir, moves)
    except UntriedError:
        return None
    remedy = _text(text, "transposing the tile", "bytes moved", _moved, evidence, trials)
    assert evidence.execution is not None
    before, after = (
        _spare(kernel, outcomes, found, "global")
        for kernel, outcomes in (
            (evidence.compiled, evidence.execution.outcomes),
            (remedy.compiled, trials.run(remedy.compiled).outcomes),
        )
    )
    writes = not any(o.name == "tt.load" for o in moves)
    advice = transposing((found.file, found.line), evidence, writes=writes)
    remedy = replace(remedy, saved=max(before - after, 0) / max(before, 1), advice=advice)
    return remedy if found.severity != "note" or remedy.after <= _MUCH * remedy.before else None


def _folded(found: Observation, report: Report, evidence: Evidence, trials: Trials) -> Remedy | None:
    """One atomic for a tile whose elements all go to one place."""
    text = rewrites.folded_first(evidence.compiled.ttir, evidence.ttir, _at(evidence, found, "tt.atomic_rmw"))
    return _text(text, "folding the tile first", "atomics", _atomics, evidence, trials)


def _behind(found: Observation, report: Report, evidence: Evidence, trials: Trials) -> Remedy | None:
    """A loop that combines tiles, with one fold behind it, measured by barriers; where its tile costs more than they do, by
    what it costs: instructions, or registers that are spilled."""
    text = rewrites.folded_behind(evidence.compiled.ttir, evidence.ttir, _at(evidence, found, "tt.reduce"))
    remedy = _text(text, "one fold behind the loop", "barriers", _barriers, evidence, trials)
    before, after = _counted(_issued, remedy.compiled, evidence, trials)
    if after - before > BARRIER * report.num_warps * (remedy.before - remedy.after):
        return replace(remedy, measure="instructions issued", before=before, after=after)
    before, after = report.resources.spilled, offline.resources(remedy.compiled).spilled
    if after > before:
        return replace(remedy, measure=_SPILLED, before=before, after=after)
    return remedy


def _split(found: Observation, report: Report, evidence: Evidence, trials: Trials) -> Remedy | None:
    """Halves of a short axis combined in registers, measured by what is issued; where the tile then changes its layout
    through shared memory for more than that, by the barriers."""
    folds = [
        o for o in _at(evidence, found, "tt.reduce") if tensors(o.types)[0].shape[o.axis] <= SHORT
    ]  # fmt: skip
    remedy = _text(
        rewrites.split_apart(evidence.compiled.ttir, folds), "folding halves behind the load", "instructions issued", _issued,
        evidence, trials,
    )  # fmt: skip
    before, after = _counted(_barriers, remedy.compiled, evidence, trials)
    if BARRIER * report.num_warps * (after - before) > remedy.before - remedy.after > 0:
        return replace(remedy, measure="barriers", before=before, after=after)
    return remedy


def _placed(found: Observation, report: Report, evidence: Evidence, trials: Trials) -> Remedy | None:
    """Promises that the executed addresses keep; a tile moved forwards and turned around."""
    width = int(dict(found.numbers)["possible"])
    loads = _at(evidence, found, "tt.load")
    if found.reason.startswith(BACKWARDS):
        text = rewrites.flipped(evidence.compiled.ttir, loads, width)
        return _whole(text, "it", evidence, trials)
    if not found.reason.startswith(UNPROVEN):
        return None
    moves = [*loads, *_at(evidence, found, "tt.store")]
    text = rewrites.promised(evidence.compiled.ttir, evidence.ttir, moves, width)
    return _text(text, "both promises", "requests to global memory", _requests, evidence, trials)


def _whole(text: str, what: str, evidence: Evidence, trials: Trials) -> Remedy:
    """Another TTIR, measured in the clocks of all units: what it costs in one it may gain in another."""

    made = trials.compile(text)
    return Remedy(what, made, CLOCKS, *trials.clocks(made))


def _other_order(found: Observation, report: Report, evidence: Evidence, trials: Trials) -> Remedy | None:
    """A tile that comes to a change of layout, loaded with its dims in the other order; the one of those that gains most."""
    if found.reason.startswith(NARROWED):
        return None
    moved = (o for o in evidence.ttir.walk() if line_of(o.place) in found.places)
    here = {v for o in moved for v in (*o.operands, *o.results)}
    reached = evidence.ttir.reached_from(here)
    loads = [
        o for o in evidence.ttir.walk()
        if o.name == "tt.load" and reached & set(o.results) and sum(n > 1 for t in tensors(o.types)[:1] for n in t.shape) > 1
    ]  # fmt: skip
    if not loads:
        raise UntriedError("that is another loop")
    made = []
    for load in loads[:_ORDERED]:
        text = rewrites.turned(evidence.compiled.ttir, [load])
        place = line_of(load.place)
        made.append(
            _whole(text, f"the tile of line {place[1] if place else 0} in the other order", evidence, trials)
        )
    return min(made, key=lambda remedy: remedy.after)


_REMEDIES: dict[str, Callable[[Observation, Report, Evidence, Trials], Remedy | None]] = {
    "repeated-dot": _once,
    "redundant-threads": _fewer_warps, "idle-warps": _fewer_warps, "older-tensor-core": _warp_group, "spill": _more_warps,
    "occupancy": _fewer_stages, "strong-atomic": _weaker, "tf32-dot": _exact, "no-tensor-core": _rounded,
    "bank-conflict": _other_warps, "read-again": _kept, "wasted-sectors": _turned, "per-element-atomic": _folded,
    "fold-in-loop": _behind, "small-axis-shuffles": _split, "scalar-access": _placed,
    "layout-in-loop": _other_order,
}  # fmt: skip
