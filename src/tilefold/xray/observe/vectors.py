"""Accesses that are narrower than they could be, and why: shown by compiling the kernel again with one thing changed."""

from __future__ import annotations

import contextlib
import re
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

from tilefold.xray.compile import offline
from tilefold.xray.compile.job import Compiled
from tilefold.xray.evidence import Evidence
from tilefold.xray.ir import element_bytes, spelled, tensors
from tilefold.xray.ir.syntax import Tensor
from tilefold.xray.layouts import holding
from tilefold.xray.observe.addresses import (
    asked,
    asked_by_all,
    in_equal_runs,
    in_whole_tiles,
    order_of,
    reachable,
    run_of,
    runs_of,
    turned,
)
from tilefold.xray.observe.joined import BACKWARDS, TURNED, UNPROVEN
from tilefold.xray.observe.promises import (
    MADE_OF,
    WHOLE,
    Place,
    divided,
    divisor_of,
    divisors_of,
    multiples,
    numbers_given,
    promising,
    promising_each,
    unpromised,
)
from tilefold.xray.observe.trials import CLOCKS, NO_GAIN, Trials, UntriedError
from tilefold.xray.ptx import parse
from tilefold.xray.report.model import Access, Line, Observation, Report
from tilefold.xray.report.static import Lines, access_of, line_of

_MASKED = "mask: "
_NEVER_WHOLE = (
    "nothing to do by itself: no tile of the executed programs is whole, so there is none that could go without a mask; "
    "where the mask is alike for neighbours in every launch, tl.max_constancy tells the compiler so"
)
_TOGETHER, _NOT_GROWN = "tried: alone ", "it does not grow)"
_OWN = 1.5  # times as often as a thread asks for a place, up to which no other one does
_OPERATIONS = {
    "load": ("tt.load",), "store": ("tt.store",), "copy": ("ttg.async_copy_global_to_local",),
}  # fmt: skip


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
    of = {place: causes.of(place) for place in found}
    for place, (line, a) in found.items():
        cause = of[place]
        if cause is None:
            # No experiment shows that it could be wider: then a thread's own addresses have to.
            if evidence.execution is None or possible_width(line, a, evidence) < 2 * a.bytes:
                continue
            cause = _unproven(line, a, evidence)
        cause = _unless_it_loses(cause, causes, [c.promise for c in of.values() if c is not None])
        gained = 0
        if cause.severity == "warning" and cause.promise:
            cause, clocks = causes.gaining(cause, told=_spoiled(line))
            # What comes of several entries' promises is told once among them.
            alike = [c for c in of.values() if c and c.promise and c.promise.keys() <= cause.promise.keys()]
            gained = clocks // max(len(alike), 1)
        width = cause.width or possible_width(line, a, evidence)
        asked_for, whole = a.requests or a.instructions, 1.0
        if cause.reason.startswith(_MASKED) and evidence.execution is not None:
            whole = in_whole_tiles(line, a, evidence)
            asked_for = round(asked_for * whole)
            cause = cause if whole else replace(cause, severity="note", change=_NEVER_WHOLE)
        spare = asked_for - asked_for * a.bytes // width
        dense = width if cause.promise or evidence.execution is None else possible_width(line, a, evidence)
        copied = a.kind == "copy"
        kinds = "stores" if a.kind == "store" else "asynchronous copies" if copied else "loads"
        yield Observation(
            "narrow-copy" if copied else "scalar-access",
            cause.severity,
            line.file,
            line.line,
            f"{a.instructions} {kinds} of {_bytes(a.bytes)} a thread, whose {a.instructions * a.bytes} bytes could go "
            f"{width} at a time" + ("; only copies of 16 bytes go past L1" if copied else ""),
            cause.reason,
            cause.change,
            cycles_at_stake=4 * max(spare, gained, 0),  # an SM has one unit for them
            numbers=(("bytes", a.bytes), ("instructions", a.instructions), ("possible", width))
            + ((("whole", round(whole, 3)),) if whole < 1 else ())
            + ((("dense", dense),) if width < dense else ()),
        )


def _spoiled(line: Line) -> bool:
    """Whether what a line moves through shared memory meets conflicts of banks, which other widths may take away."""
    return any((a.passes or 0) > (a.ideal or 0) for a in line.accesses if a.space == "shared")


def _unless_it_loses(cause: Cause, causes: Causes, promises: Sequence[Mapping[str, int]]) -> Cause:
    """A promise that gains nothing alone, and something beside those of all entries, is given with these; one that does not
    gain with these, too, is no remedy."""
    if cause.severity != "warning" or not (cause.promise or cause.reason.startswith(_MASKED)):
        return cause
    try:
        lost = causes.loses(cause.promise) if cause.promise else causes.loses_unmasked()
        if not lost:
            return cause
        rest, together = dict[str, int](), dict[str, int]()
        for promise in promises if cause.promise else ():
            together = _both(together, promise)
            rest = _both(rest, {} if promise == cause.promise else promise)
        # Atomics are computed in a layout of their own, too, as wide as what is known of their places.
        for promised in (together, _both(together, causes.of_atomics())) if cause.promise else ():
            if not causes.loses(promised, without=rest):
                return replace(
                    cause,
                    change=f"{causes.divided(promised)} ({_TOGETHER}{lost}; with all of these {_NOT_GROWN}",
                    promise=promised,
                )
        said = cause.change if cause.promise else "it"
        return replace(cause, severity="note", change=f"{NO_GAIN}{said}: tried, {lost}")
    except UntriedError as reason:
        return replace(cause, severity="note", change=f"{cause.change}; not tried: {reason}")


def _both(one: Mapping[str, int], other: Mapping[str, int]) -> dict[str, int]:
    """The promises of both: of a number the greater divisor."""
    return {n: max(one.get(n, 1), other.get(n, 1)) for n in {**one, **other}}


@dataclass(frozen=True)
class Cause:
    """Why an access is narrow, what would widen it, and to how many bytes (0: not shown)."""

    reason: str
    change: str
    width: int
    severity: str = "warning"
    promise: Mapping[str, int] = field(default_factory=dict)  # of each argument a divisor


def _unproven(line: Line, access: Access, evidence: Evidence) -> Cause:
    """No experiment widens it, and yet a thread's elements lie together: how often each is asked for, where they begin, or
    what the compiler knows."""
    times, different = asked(line, access, evidence)
    if times >= 2 * different > 0:
        own = in_equal_runs(line, access, evidence)
        # What other threads ask for, too, is a group's: there is nothing to unpack.
        own = own and asked_by_all(line, access, evidence) <= _OWN * times / different
        return _repeated(times / different, own)
    width = possible_width(line, access, evidence)
    if access.kind == "copy" and turned(line, access, evidence):
        return Cause(
            f"{TURNED}: what lies together in global memory lies apart there, and an asynchronous copy moves only what lies "
            "together in both",
            "keep this operand in global memory with its other dim contiguous (of a product's operand: K)",
            0,
        )
    order = order_of(line, access, evidence)
    if order != 1:
        return _disordered(order, line, access, evidence)
    begins = [int(run[0]) for run in runs_of(line, access, evidence) if len(run) * access.bytes >= width]
    astray = sum(at % width != 0 for at in begins)
    if astray:
        return Cause(
            f"alignment: {astray} of {len(begins)} threads' elements begin at addresses that are no multiple of {width}",
            f"let rows begin at multiples of {width} bytes (pad their stride), or begin at the multiple before and mask; "
            "nothing to do where they are shifted on purpose",
            0,
            "note",
        )
    return Cause(
        f"{UNPROVEN} what the executed addresses show: a thread's neighbouring elements lie together",
        "write offsets as a base plus tl.arange; tell what you know with tl.multiple_of and tl.max_contiguous",
        0,
        "note" if _of_memory(evidence, (line.file, line.line, access.kind)) else "warning",
    )


def _disordered(order: int, line: Line, access: Access, evidence: Evidence) -> Cause:
    """A thread's elements lie together, and not in the tile's order."""
    width = reachable(line, access, evidence, possible_width(line, access, evidence))
    if access.bytes > _element(line, access, evidence):  # pieces of several elements are not turned
        order = 0
    if width < 2 * access.bytes:
        return Cause(
            f"a thread's neighbouring elements lie together in {'the opposite' if order else 'another'} order, and begin at "
            f"addresses that are no multiple of {2 * access.bytes}",
            "nothing to do by itself: in the order of memory they would begin between two vectors as well",
            0,
            "note",
        )
    if order:
        return Cause(
            BACKWARDS, "move the tile forwards and turn it around in registers (tl.flip)", width, "warning"
        )
    return Cause(
        "a thread's neighbouring elements lie together in another order than the tile's",
        "load them in the order of memory and exchange them in registers (reshape, tl.split, tl.join); not tried: that is "
        "another tile",
        width,
        "note",
    )


def _of_memory(evidence: Evidence, place: Place, *, mask: bool = False) -> bool:
    """Whether an access's places come out of memory, which may hold others the next time; or its mask, element by element."""
    made, used = evidence.ttir.made_by(), set[str]()
    for operation in evidence.ttir.walk():
        line, kind = line_of(operation.place), operation.name.removeprefix("tt.")
        if line == place[:2] and place[2] in MADE_OF.get(kind, ()):
            used |= set(
                operation.operands[1 if kind == "load" else 2 :][:1] if mask else operation.operands[:1]
            )
    loads = [made[n] for n in evidence.ttir.reached_from(used) if n in made and made[n].name == "tt.load"]
    return any(not mask or tensors(load.types) for load in loads)


def _repeated(times: float, evenly: bool) -> Cause:
    """A thread asks for its places several times: of all as often, as k // 8 does, or not."""
    if evenly:
        return Cause(
            f"a thread asks for each place {times:.0f} times: its offsets repeat, as those of k // 8 do",
            "load each word once, as a tile of its own, and unpack it in registers (broadcast, shift, reshape)",
            0,
        )
    return Cause(
        f"a thread asks for each place {times:.0f} times, and for some more often, or with other threads, as by k // 200",
        "load each place once where the tile's rows begin with one; nothing to do for a look-up by a divisor of its own",
        0,
        "note",
    )


def possible_width(line: Line, access: Access, evidence: Evidence) -> int:
    """Bytes that a thread could move at once, by what it holds and, if programs were executed, by what lies together."""
    held = min(WHOLE, _power(bytes_a_thread(line, access, evidence)))
    return held if evidence.execution is None else min(held, _power(run_of(line, access, evidence)))


def bytes_a_thread(line: Line, access: Access, evidence: Evidence) -> int:
    """Bytes that a thread holds of the largest tile that a line loads or stores."""
    found = [0]
    for tile, size in _tiles(line, access, evidence):
        held = holding(tile, evidence.ttgir.aliases, evidence.compiled.num_warps)
        found.append(0 if held is None or size > access.bytes else held.held * size)
    return max(found)


def _element(line: Line, access: Access, evidence: Evidence) -> int:
    """Bytes of the largest element of what a line loads or stores."""
    return max((size for _, size in _tiles(line, access, evidence)), default=0)


def _tiles(line: Line, access: Access, evidence: Evidence) -> Iterator[tuple[Tensor, int]]:
    """Tiles that a line loads or stores, and bytes of their elements."""
    for operation in evidence.ttgir.walk():
        if operation.name in _OPERATIONS[access.kind] and line_of(operation.place) == (line.file, line.line):
            for tile in tensors(operation.types)[:1]:
                yield tile, element_bytes(tile.pointee)


def _bytes(n: int) -> str:
    return f"{n} byte{'s' * (n != 1)}"


def _power(n: int) -> int:
    return 1 << (n.bit_length() - 1) if n > 0 else 0


class Causes:
    """What keeps accesses narrow. Each experiment compiles the kernel's TTIR again: without masks, with promises.

    An access depends on few of the arguments, so one experiment is made of arguments of which no access depends on two.
    """

    def __init__(self, evidence: Evidence, trials: Trials, widths: Mapping[Place, int]) -> None:
        self._evidence, self._trials, self._widths = evidence, trials, widths
        self._held = numbers_given(evidence)
        self._unmasked = _unmasked(evidence, set(widths))
        self._without_masks = self._widths_of(self._unmasked)
        self._of = {place: unpromised(evidence, {place}) for place in widths}
        names = self._names = [*dict.fromkeys(n for listed in self._of.values() for n in listed)]
        self._promised = self._widths_of(self._promise(names)) if names else {}
        # Of each argument the accesses that depend on it, as they are with it promised alone, and with all but it.
        self._alone: dict[str, dict[Place, int]] = {}
        self._without: dict[str, dict[Place, int]] = {}
        open_ = {p for p in widths if self._gains(self._promised, p)}
        for together in _apart([self._of[p] for p in open_]):
            self._alone |= self._each(together, together)
        open_ -= {p for p in open_ if any(self._gains(self._alone.get(n, {}), p) for n in self._of[p])}
        for together in _apart([self._of[p] for p in open_]):
            self._without |= self._each(together, [n for n in names if n not in together])

    def _each(self, names: list[str], promised: list[str]) -> dict[str, dict[Place, int]]:
        """Widths of the accesses that depend on each name; none where the experiment was not made."""
        found = self._widths_of(self._promise(promised))
        return (
            {n: {p: w for p, w in found.items() if n in self._of.get(p, ())} for n in names} if found else {}
        )

    def of(self, place: Place) -> Cause | None:
        """The cause of a narrow access; None where no experiment helps."""
        masked = self._gains(self._without_masks, place)
        enough = [n for n in self._of[place] if self._gains(self._alone.get(n, {}), place)]
        if enough or self._gains(self._promised, place):
            tried = all(n in self._without for n in self._of[place])
            needed = [n for n in self._of[place] if not (tried and self._gains(self._without[n], place))]
            width = self._alone[enough[0]][place] if enough else self._promised[place]
            through = "the mask may end inside a vector" if masked else "the pointer may not be aligned"
            chosen, least, how = self._sufficient(enough[:1] or needed or self._of[place], place, width)
            wanted, wide, astray = chosen, width, [n for n in chosen if self._held.get(n, 0) % least]
            promise = {n: divisor_of(self._held.get(n, 0), least) for n in chosen}
            if astray:
                # What divides the numbers as they are may do for less; of other numbers the rows would be others.
                promise = {n: d for n, d in promise.items() if d > 1}
                width = (
                    self._widths_of(promising_each(self._evidence.compiled.ttir, promise)).get(place, 0)
                    if promise
                    else 0
                )
            if width > self._widths[place]:
                shown = "" if astray else how
                return Cause(
                    f"divisibility: with {multiples(promise)} it is {width} bytes (compiled so{shown}); as it is, {through}",
                    self.divided(promise),
                    width,
                    promise=promise,
                )
            if not masked:
                return Cause(
                    f"divisibility: with {' and '.join(wanted)} a multiple of {least} it is {wide} bytes (compiled so{how})"
                    f"; as it is, {through}",
                    self._padding(astray, least),
                    wide,
                    "note",
                )
        if masked:
            return Cause(
                f"{_MASKED}without it the access is {self._without_masks[place]} bytes (compiled so); the compiler must "
                "assume that the mask changes inside a vector",
                "let whole tiles go without it: split the last tile off and mask it alone",
                self._without_masks[place],
                "note" if _of_memory(self._evidence, place, mask=True) else "warning",
            )
        return None

    def _padding(self, astray: list[str], least: int) -> str:
        """Of numbers that no power of two divides far enough: with others the arrays are others, and take more bytes."""
        padded = {n: -(-self._held[n] // least) * least for n in astray}
        said = ", ".join(
            f"{n} {self._held[n]} -> {m} ({100 * (m / self._held[n] - 1):.1f} % more)"
            for n, m in padded.items()
        )
        return f"no promise holds for these values; where the caller can pad its arrays: {said}; not tried"

    def of_atomics(self) -> dict[str, int]:
        """The divisors that the values have of the arguments on which the places and masks of atomics depend."""
        places = {
            (*at, "atomic_rmw") for o in self._evidence.ttir.walk()
            if o.name == "tt.atomic_rmw" and (at := line_of(o.place)) is not None
        }  # fmt: skip
        return divisors_of(self._evidence, unpromised(self._evidence, places))

    def loses(self, promise: Mapping[str, int], without: Mapping[str, int] | None = None) -> str:
        """What a promise costs where it gains nothing: spills, or clocks of all units; nothing where it gains. `without`:
        other promises, beside which it has to gain, too.

        Raises:
            UntriedError: it was not executed.
        """
        ttir = self._evidence.compiled.ttir
        # An array that begins elsewhere is another launch, which is not executed.
        moved = any(a.pointer and a.name in promise for a in self._evidence.compiled.parameters)
        lost = self._loses(promising_each(ttir, promise), executed=not moved)
        if lost or moved or not without or without == promise:
            return lost
        with contextlib.suppress(UntriedError):
            old, new = (
                self._clocks(promising_each(ttir, without))[1],
                self._clocks(promising_each(ttir, promise))[1],
            )
            return "" if new < old else f"{CLOCKS} {old:,} -> {new:,} beside the others"
        return lost

    def loses_unmasked(self) -> str:
        """The same of the kernel without the masks."""
        return self._loses(self._unmasked)

    def _loses(self, ttir: str, *, executed: bool = True) -> str:
        """More spills; or no fewer clocks in all units together, where the kernel was executed; else more barriers."""
        kernels = (self._evidence.compiled, self._trials.compile(ttir))
        before, after = (offline.resources(k).spilled for k in kernels)
        if after > before:
            return f"bytes spilled a thread {before:,} -> {after:,}"
        if self._evidence.execution is None or not executed:
            return self._barriers(ttir)
        old, new = self._clocks(ttir)
        return "" if new < old else f"{CLOCKS} {old:,} -> {new:,}"

    def gaining(self, cause: Cause, *, told: bool) -> tuple[Cause, int]:
        """A cause with what its promise gains in all units together, and these clocks, where it does more than widen the
        access (`told`: its copies lie otherwise in shared memory): it adds barriers, or atomics go with it."""
        ttir, together = (
            promising_each(self._evidence.compiled.ttir, cause.promise),
            _TOGETHER in cause.change,
        )
        with contextlib.suppress(UntriedError):
            if told or together or self._barriers(ttir):
                old, new = self._clocks(ttir)
                said = f"{CLOCKS} {old:,} -> {new:,})"
                if new < old:
                    change = (
                        f"{cause.change.removesuffix(_NOT_GROWN)}{said}"
                        if together
                        else f"{cause.change} (tried: {said}"
                    )
                    return replace(cause, change=change), old - new
        return cause, 0

    def _barriers(self, ttir: str) -> str:
        """How another TTIR makes the barriers grow; nothing where it does not."""
        before, after = (
            k.ptx.count("bar.sync") for k in (self._evidence.compiled, self._trials.compile(ttir))
        )
        return f"barriers in the PTX {before} -> {after}" if after > before else ""

    def _clocks(self, ttir: str) -> tuple[int, int]:
        """Clocks of the executed programs, as they are and of another TTIR. What it stores is not compared: a promise that
        holds changes nothing but the order of sums."""
        return self._trials.clocks(self._trials.compile(ttir))

    def _sufficient(self, names: list[str], place: Place, width: int) -> tuple[list[str], int, str]:
        """Arguments with which an access is as wide, the least power of two that has to divide them, and a word where that
        was not compiled with them alone.

        What an access's own addresses depend on may not be enough: a pipelined loop copies all its operands alike, and what
        is stored is computed in the layout of the loads before it. Then one after the other of all arguments is left out.
        """
        least, how = self._least(self._names, place, width)
        found = self._width(names, least, place)
        if found is not None and found < width:
            if (self._width(names, WHOLE, place) or width) < width:
                names = self._fewest(names, place, width)
            least, how = self._least(names, place, width)
            found = self._width(names, least, place)
        return names, least, how or ("" if found is not None else " with what other accesses need")

    def _fewest(self, names: list[str], place: Place, width: int) -> list[str]:
        """All arguments but those without which an access stays as wide."""
        kept = list(self._names)
        for name in [n for n in self._names if n not in names]:
            fewer = [n for n in kept if n != name]
            if (self._width(fewer, WHOLE, place) or 0) >= width:
                kept = fewer
        return kept

    def _least(self, names: list[str], place: Place, width: int) -> tuple[int, str]:
        """The least power of two which suffices as a divisor of these arguments, of which 16 does, for accesses as wide; and
        a word where less was not tried. An access is as wide as the worst of what its address is made of: what suffices where
        all arguments have it mostly suffices where some do, and is tried once for all accesses of the kernel."""
        divisor = WHOLE
        while (
            divisor > 2 and (found := self._width(names, divisor // 2, place)) is not None and found >= width
        ):
            divisor //= 2
        return divisor, "; less may do: not tried" if divisor > 2 and found is None else ""

    def _width(self, names: list[str], divisor: int, place: Place) -> int | None:
        """Bytes of an access where a number divides these arguments; None if that was not tried."""
        widths = self._widths_of(self._promise(names, divisor))
        return widths.get(place, 0) if widths else None

    def divided(self, promise: Mapping[str, int]) -> str:
        """How the compiler comes to know of these divisors."""
        return divided(self._evidence, promise)

    def _promise(self, names: list[str], divisor: int = 16) -> str:
        return promising(self._evidence.compiled.ttir, names, divisor)

    def _gains(self, widths: Mapping[Place, int], place: Place) -> bool:
        return widths.get(place, 0) > self._widths[place]

    def _widths_of(self, ttir: str) -> dict[Place, int]:
        """The narrowest access of each place, had the compiler seen this."""
        try:
            return narrowest(self._trials.compile(ttir))
        except UntriedError:
            return {}


def _apart(sets: list[list[str]]) -> list[list[str]]:
    """All names in groups, no two of a group in one of the sets: as few as come of taking the first that fits."""
    groups: list[list[str]] = []
    for name in dict.fromkeys(n for names in sets for n in names):
        beside = {n for names in sets if name in names for n in names}
        fitting = next((group for group in groups if not beside & set(group)), None)
        if fitting is None:
            groups.append([name])
        else:
            fitting.append(name)
    return groups


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
        if line is None or not any((*line, k) in wanted for k in MADE_OF.get(kind, ())):
            continue
        named = [spelled(v) for v in operation.operands]
        kept = named[: 1 if kind == "load" else 2]
        listed = re.escape(", ".join(named))
        rows[operation.row] = re.sub(listed, ", ".join(kept), rows[operation.row], count=1)
    return "\n".join(rows)
