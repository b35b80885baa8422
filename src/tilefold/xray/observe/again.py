"""`read-again`: bytes of an argument that a program asks for a second time, at another line or in another loop."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import numpy as np

from tilefold.xray.evidence import Evidence, integer_arguments
from tilefold.xray.execution import Program
from tilefold.xray.ir import Operation, element_bytes, tensors
from tilefold.xray.ir.programs import Programs
from tilefold.xray.machine.types import Array
from tilefold.xray.observe.resources import registers_a_thread
from tilefold.xray.report.model import Observation, Report
from tilefold.xray.report.static import access_of, line_of

_LEAST = 1024  # bytes from which a second reading is worth a word
_MOST = 0.9  # of a line's bytes that another line has read
_WHOLLY = 0.999  # from which a line reads the tile of another, and no window beside it
_ALIKE = 0.5  # of the threads, that begin so many bytes apart at two lines
_ATOMIC = ("an atomic", 0)
_NOWHERE = np.iinfo(np.int64).max
_HELD = 64  # registers of a thread that a tile may take, of 255, to be kept instead
_ONE_PASS = "make one pass of it (a running fold, as online softmax or Welford's)"
_SHIFTED = "nothing to do: the two windows overlap and are not the same; L1 may have what both hold"


def read_again(report: Report, evidence: Evidence) -> Iterator[Observation]:
    """One observation a line that reads what a line before it, or the line itself, has read in the same program."""
    execution = evidence.execution
    if execution is None:
        return
    program = int(np.argmax([o.instructions for o in execution.outcomes]))
    grain = _grain(evidence, program)
    read = _read(evidence, program, grain)
    most, loads = _bytes_loaded(evidence, [program]), _bytes_loaded(evidence, range(len(execution.programs)))
    for at, (place, (once, times, _)) in enumerate(read.items()):
        if len(once) * grain < _LEAST:
            continue
        earlier = [*read.items()][:at]
        before, found = max(
            ((p, float(np.isin(once, other).mean())) for p, (other, *_) in earlier),
            key=lambda x: x[1],
            default=(None, 0.0),
        )
        before = before if found >= _MOST else None
        if before is None and times < 2:
            continue
        stored = _stored_between(place, once, grain, evidence, program)
        if stored == _ATOMIC:
            continue
        name, _ = execution.named(int(once[0]) * grain)
        part = 1.0 if before is None else found
        size = round(len(once) * part) * grain
        held = _tile(before or place, evidence)
        # A kernel has registers for all rounds that some program makes, also where that one's masks are off.
        made = _rounds(place, evidence, report.grid)
        if before is None:
            made //= times
        else:  # those of its rounds that bring what is read again
            wanted = -(-made * _tile(place, evidence) // held)
            made = min(_rounds(before, evidence, report.grid) // read[before][1], wanted)
        rounds = max(made, -(-len(once) * grain // held))
        # One tile can be that of all rounds where these follow each other, and do not overlap.
        one = before is not None and read[before][2]
        tiles = _power(rounds) if one else rounds
        registers = tiles * -(-held // (4 * 32 * report.num_warps))
        room = registers_a_thread(report) - report.resources.registers
        open_ = rounds > 1 and _bounds_loaded(place, evidence)
        kept = registers <= min(_HELD, room) and not open_
        # A window beside another: a tile that is kept cannot be shifted from thread to thread.
        shifted = before is not None and (found < _WHOLLY or _shifted(place, before, evidence, program))
        yield Observation(
            "read-again",
            "warning" if kept and not shifted else "note",
            *place,
            f"{size} bytes of {name} are read that {_before(before, stored, times)}, in program "
            f"{execution.programs[program]}",
            "a load that stands in the source twice is done twice: the compiler does not keep tiles, and L1 may not either",
            _SHIFTED
            if shifted
            else f"{_ONE_PASS}; memory says how many rounds there are, so no number of tiles is enough to keep it"
            if open_
            else _change(registers, rounds, kept, stored=stored is not None, one=one),
            bytes_at_stake=(1 if before is not None else times - 1)
            * size
            * loads[place]
            // max(most[place], 1),
            numbers=(("bytes", size), ("registers", registers), ("from", "L2")),  # it had them a moment ago
        )


def _before(before: tuple[str, int] | None, stored: tuple[str, int] | None, times: int) -> str:
    """Who had the bytes: the line that stored them, the line that read them, or the line itself."""
    if stored is not None:
        return f"line {stored[1]} has stored before"
    if before is not None:
        return f"line {before[1]} has read before"
    return f"it has read {'once' if times == 2 else f'{times - 1} times'} before"


def _rounds(place: tuple[str, int], evidence: Evidence, grid: Program) -> int:
    """How often a program of the grid comes to a load of a line at most, with lanes on or not; where memory decides that, an
    executed one."""
    programs, most = Programs(evidence.ttir, integer_arguments(evidence), grid), 1
    for loop in _around(place, evidence):
        start, stop, step = (programs.numbers(v) for v in loop.operands[:3])
        if start is None or stop is None or step is None:
            assert evidence.execution is not None
            here = [number for number, line in _loads(evidence).items() if line == place]
            return max(int(o.issued[here].max()) for o in evidence.execution.outcomes) if here else 0
        most *= max(int((-(-(stop - start) // np.maximum(step, 1))).max()), 0)
    return most


def _around(place: tuple[str, int], evidence: Evidence) -> list[Operation]:
    """The loops around a load of a line."""
    loops = [o for o in evidence.ttir.walk() if o.name == "scf.for"]
    loads = [o for o in evidence.ttir.walk() if o.name == "tt.load" and line_of(o.place) == place]
    return [o for o in loops if any(i is load for load in loads[:1] for i in o.walk())]


def _bounds_loaded(place: tuple[str, int], evidence: Evidence) -> bool:
    """Whether memory says how many rounds the loop of a line's load has: then no number of tiles is enough."""
    made = evidence.ttir.made_by()
    reached = evidence.ttir.reached_from(v for o in _around(place, evidence) for v in o.operands[:3])
    return any(name in made and made[name].name == "tt.load" for name in reached)


def _bytes_loaded(evidence: Evidence, programs: Iterable[int]) -> dict[tuple[str, int], int]:
    """Bytes that each line's loads ask for, lane by lane, in some of the executed programs."""
    assert evidence.execution is not None
    lines, found = _loads(evidence), dict[tuple[str, int], int]()
    for n in programs:
        for a in evidence.execution.outcomes[n].accesses:
            if a.space == "global" and (place := lines.get(a.instruction)) is not None:
                found[place] = found.get(place, 0) + int(a.active.sum()) * a.bytes
    return found


def _stored_between(
    place: tuple[str, int], once: Array, grain: int, evidence: Evidence, program: int
) -> tuple[str, int] | None:
    """The line that stored most of what a line reads, ahead of its last reading; `_ATOMIC` where atomics reached it: what is
    there now another program may have left."""
    assert evidence.execution is not None
    accesses, lines = evidence.execution.outcomes[program].accesses, _loads(evidence)
    last = max(n for n, a in enumerate(accesses) if lines.get(a.instruction) == place)
    written: dict[tuple[str, int], list[Array]] = {}
    for a in accesses[:last]:
        if a.space == "global" and a.kind in ("store", "atomic") and a.active.any():
            line = evidence.line(a.instruction)
            at = a.addresses[a.active].astype(np.int64)[:, None] // grain + np.arange(
                max(a.bytes // grain, 1)
            )
            written.setdefault(_ATOMIC if a.kind == "atomic" else line, []).append(at.ravel())
    found = {line: np.isin(once, np.concatenate(parts)).mean() for line, parts in written.items()}
    if found.get(_ATOMIC, 0) > 0:
        return _ATOMIC
    return next((line for line, share in found.items() if share >= _MOST), None)


def _power(n: int) -> int:
    return 1 << (n - 1).bit_length()


def _tile(place: tuple[str, int], evidence: Evidence) -> int:
    """Bytes of the tiles of a line's loads: what is masked off takes registers, too."""
    loads = [o for o in evidence.ttir.walk() if o.name == "tt.load" and line_of(o.place) == place]
    tiles = [t for o in loads for t in tensors(o.types)[:1]]
    return sum(t.elements * element_bytes(t.pointee) for t in tiles) or 1


def _change(registers: int, rounds: int, kept: bool, *, stored: bool, one: bool) -> str:
    """What to do about bytes that were read before, in so many rounds of a loop; `one`: of which one can be made."""
    fits = f"they are {registers} registers a thread"
    if stored and kept:
        return f"keep what is stored, rounded as it is stored: {fits}"
    if not one and kept and rounds > 1:
        return f"keep the tiles of {rounds} rounds: {fits}"
    whole = f" of the rounds that bring it (one round instead of {rounds})" if one and rounds > 1 else ""
    if kept:
        return f"keep the tile{whole}: {fits}"
    return f"{_ONE_PASS}, or keep the tile in more threads: {fits} now"


def _shifted(place: tuple[str, int], before: tuple[str, int], evidence: Evidence, program: int) -> bool:
    """Whether two lines' threads begin one and the same number of bytes apart, and not at the same place."""
    assert evidence.execution is not None
    loads, first = _loads(evidence), dict[tuple[str, int], Array]()
    for access in evidence.execution.outcomes[program].accesses:
        at = loads.get(access.instruction)
        if at in (place, before) and access.space == "global":
            lowest = np.where(access.active, access.addresses.astype(np.int64), _NOWHERE)
            first[at] = np.minimum(first.get(at, lowest), lowest)
    ours, theirs = first[place], first[before]
    apart = (ours - theirs)[(ours < _NOWHERE) & (theirs < _NOWHERE)]
    values, counts = np.unique(apart, return_counts=True)
    return bool(len(values)) and bool(values[counts.argmax()]) and counts.max() >= _ALIKE * len(apart)


def _loads(evidence: Evidence) -> dict[int, tuple[str, int]]:
    """The lines of instructions that load from global memory."""
    found: dict[int, tuple[str, int]] = {}
    for number, instruction in enumerate(evidence.entry.instructions):
        accessed, place = access_of(instruction), evidence.places.line(instruction)
        if accessed is not None and accessed[0] in ("load", "copy") and accessed[1] == "global" and place:
            found[number] = place
    return found


def _grain(evidence: Evidence, program: int) -> int:
    """Bytes that are told apart: those of the narrowest load, of a word at most. Two halves of a word that two rounds load
    are not read twice."""
    assert evidence.execution is not None
    loads = _loads(evidence)
    accesses = evidence.execution.outcomes[program].accesses
    return min([4, *(a.bytes for a in accesses if a.space == "global" and a.instruction in loads)])


def _read(evidence: Evidence, program: int, grain: int) -> dict[tuple[str, int], tuple[Array, int, bool]]:
    """For each line that loads: the different pieces of `grain` bytes, how often each is asked for (1 where not all are
    alike), and whether all lanes together ask for all alike."""
    assert evidence.execution is not None
    loads = _loads(evidence)
    # By line and round: a tile's load is many instructions, and pieces of a word, or rows that wrap around, are one reading.
    asked: dict[tuple[str, int], dict[int, list[Array]]] = {}
    first: dict[tuple[str, int], int] = {}
    rounds: dict[int, int] = {}
    for order, access in enumerate(evidence.execution.outcomes[program].accesses):
        place = loads.get(access.instruction)
        if place is None or access.space != "global" or not access.active.any():
            continue
        pieces = access.addresses[access.active].astype(np.int64)[:, None] // grain + np.arange(
            max(access.bytes // grain, 1)
        )
        turn = rounds[access.instruction] = rounds.get(access.instruction, -1) + 1
        asked.setdefault(place, {}).setdefault(turn, []).append(pieces.ravel())
        first.setdefault(place, order)
    found = {}
    for place in sorted(asked, key=lambda p: first[p]):
        each = [np.unique(np.concatenate(parts)) for parts in asked[place].values()]
        once, times = np.unique(np.concatenate(each), return_counts=True)
        # Of a loop that was unrolled, the rounds are one here.
        asks = np.unique(
            np.concatenate([p for parts in asked[place].values() for p in parts]), return_counts=True
        )[1]
        alike = bool((times == times[0]).all())
        found[place] = (once, int(times[0]) if alike else 1, bool((asks == asks[0]).all()))
    return found
