"""32-bit offsets that are too large for the given arguments: bounds of every integer, from the arguments and the grid."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence

import numpy as np
from numpy.typing import NDArray

from tilefold.xray.evidence import Evidence, integer_arguments
from tilefold.xray.execution import Execution
from tilefold.xray.ir.programs import ENDS, Programs
from tilefold.xray.ir.syntax import Function, Operation
from tilefold.xray.machine.types import Array
from tilefold.xray.observe import rewrites
from tilefold.xray.observe.trials import Trials, UntriedError
from tilefold.xray.ptx import parse
from tilefold.xray.reach import reached
from tilefold.xray.report.model import Observation, Report
from tilefold.xray.report.static import Lines, line_of

_FITS, _UNKNOWN = "fits", "unknown"
Interval = tuple[int, int] | None  # None: anything
_LOW, _HIGH = -(2**31), 2**31 - 1
_SAME = (
    "tt.splat", "tt.broadcast", "tt.expand_dims", "tt.reshape", "tt.trans", "arith.extsi", "arith.extui", "tt.unsplat",
)  # fmt: skip
_NUMBER = re.compile(r"^(?:dense<)?(-?\d+)>?$")


def offset_overflow(report: Report, evidence: Evidence, trials: Trials) -> Iterator[Observation]:
    """Sums and products of 32 bits that leave their type and reach a pointer; one observation a line. An error names the
    program where it happens; bounds alone, which know nothing of
    what depends on what, are a note. What comes of a loaded index is executed in 64 bits."""
    known, loaded = integer_arguments(evidence), loaded_indices(evidence)
    bounds = Bounds(evidence.ttir, {**{n: (v, v) for n, v in known.items()}, **loaded}, report.grid)
    reaching = _reaching_pointers(evidence.ttir)
    worlds: list[Programs] = []
    seen = set()
    for operation, (low, high) in bounds.overflows:
        place = line_of(operation.place)
        if place is None or place in seen or not reaching & set(operation.results):
            continue
        if evidence.execution is not None and loaded.keys() & evidence.ttir.reached_from(operation.operands):
            found = _wrapped(operation, place, evidence, trials)
            seen |= set() if found is None else {place}
            yield from [] if found is None else [found]
            continue
        worlds = worlds or [
            Programs(evidence.ttir, known, report.grid, ends=ends, spread=True) for ends in ENDS
        ]
        shown = [_shown(evidence.ttir, operation, world) for world in worlds]
        example = next((found for found in shown if isinstance(found, tuple)), None)
        if example is None and all(found == _FITS for found in shown):
            continue
        seen.add(place)
        far = example[0] if example is not None else high if high > _HIGH else low
        where = "with these arguments" if example is None else f"in program {example[1]}"
        yield Observation(
            "offset-overflow",
            "error" if example is not None else "note",
            *place,
            f"an offset of 32 bits {'would' if example is not None else 'might'} have to be {far} {where}; the type ends at "
            f"{_HIGH if far > 0 else _LOW}",
            "tl.program_id and integer arguments below 2^31 are int32, and their product wraps silently",
            "widen one factor first: tl.program_id(0).to(tl.int64), or .to(tl.int64) on the row",
            numbers=(("offset", far),),
            also=_lines_of(_accesses(evidence.ttir, operation), place),
        )


def loaded_indices(evidence: Evidence) -> dict[str, tuple[int, int]]:
    """Loads of whole numbers from arrays that were given: the least and the greatest of them."""
    ttir = evidence.ttir
    given = {
        name: a.data
        for name, a in evidence.parameters
        if a.data is not None and a.type[0] in "iu" and a.data.size
    }
    drawn = {name for name, a in evidence.parameters if a.pointer and a.data is None}
    found = {}
    for operation in ttir.walk():
        if operation.name == "tt.load":
            reached = ttir.reached_from(operation.operands[:1])
            held = [data for name, data in given.items() if name in reached]
            if held and not reached & drawn:
                ends = [int(f(d)) for d in held for f in (np.min, np.max)]
                found[operation.results[0]] = min(ends), max(ends)
    return found


def _wrapped(
    operation: Operation, place: tuple[str, int], evidence: Evidence, trials: Trials
) -> Observation | None:
    """An offset of a loaded index that wraps: with offsets of 64 bits some access reaches another element."""
    accesses = _accesses(evidence.ttir, operation)
    try:
        made = trials.compile(rewrites.widened(evidence.compiled.ttir, evidence.ttir, accesses))
        wide = trials.run(made)
    except UntriedError:
        return None
    assert evidence.execution is not None
    places = Lines(parse(made.ptx), made.ptx, made.ttir)
    for line in (line_of(access.place) for access in accesses):
        ours, theirs = (
            _elements(x, p, line) for x, p in ((evidence.execution, evidence.places), (wide, places))
        )
        for name in ours.keys() & theirs.keys():
            right, wrong = np.setdiff1d(theirs[name], ours[name]), np.setdiff1d(ours[name], theirs[name])
            if len(right) and len(wrong):
                far = int(right[np.abs(right).argmax()])
                near = next((int(w) for w in wrong if (far - int(w)) % 2**32 == 0), int(wrong[0]))
                return _of_wrapped(place, line, accesses, name, far, near)
    return None


def _elements(execution: Execution, places: Lines, line: tuple[str, int] | None) -> dict[str, Array]:
    """The elements of each argument that a line reaches, in all executed programs."""
    found: dict[str, list[Array]] = {}
    for number, accesses in execution.accesses().items():
        if places.line(execution.kernel.entry.instructions[number]) != line:
            continue
        for access in accesses:
            if access.space != "global" or not access.active.any():
                continue
            at = access.addresses[access.active].astype(np.int64)
            name, size = execution.named(int(at[0]))[0], execution.element(int(at[0]))[0]
            offsets = at - int(at[0]) + execution.within(int(at[0]))
            each = offsets[:, None] // size + np.arange(max(access.bytes // size, 1))
            found.setdefault(name, []).append(each.ravel())
    return {name: np.unique(np.concatenate(parts)) for name, parts in found.items()}


def _of_wrapped(
    place: tuple[str, int],
    line: tuple[str, int] | None,
    accesses: Sequence[Operation],
    name: str,
    far: int,
    near: int,
) -> Observation:
    return Observation(
        "offset-overflow",
        "error",
        *place,
        f"an offset of 32 bits from a loaded index wraps: executed, line {(line or place)[1]} reaches {name}[{near}]; "
        f"with offsets of 64 bits it reaches {name}[{far}]",
        "an index that is loaded as int32 is multiplied in 32 bits, and the product wraps silently",
        "widen the index first: tl.load(...).to(tl.int64) (tried: that reaches the other element)",
        numbers=(("offset", far), ("reached", near)),
        also=_lines_of(accesses, place),
    )


def _accesses(function: Function, operation: Operation) -> list[Operation]:
    """Loads, stores and atomics whose addresses an operation's result leads to."""
    return [
        o
        for o in function.walk()
        if o.name in ("tt.load", "tt.store", "tt.atomic_rmw", "tt.atomic_cas")
        and set(operation.results) & function.reached_from(o.operands[:1])
    ]


def _lines_of(accesses: Sequence[Operation], place: tuple[str, int]) -> tuple[tuple[str, int], ...]:
    """The other lines at which these accesses stand."""
    return tuple(sorted({line for o in accesses if (line := line_of(o.place)) is not None} - {place}))


def _shown(
    function: Function, operation: Operation, world: Programs
) -> tuple[int, tuple[int, int, int]] | str:
    """A value beyond its type, and the program that has it for an element which no mask excludes; or that all fit."""
    (name,) = operation.results
    values = world.numbers(name)
    if values is None:
        return _UNKNOWN
    beyond = ((values < _LOW) | (values > _HIGH)) & _used(function, name, world)
    if not beyond.any():
        return _FITS
    at = int(np.where(beyond, np.abs(values), -1).argmax())
    return int(values[at]), world.program(at)


def _used(function: Function, name: str, world: Programs) -> NDArray[np.bool_]:
    """Programs in which some access through the value is not masked off."""
    used = np.zeros(world.count, bool)
    for access in function.walk():
        at = {"tt.load": 1, "tt.store": 2}.get(access.name)
        if at is None or name not in function.reached_from(access.operands[:1]):
            continue
        mask = world.truth(access.operands[at]) if len(access.operands) > at else None
        used |= True if mask is None else mask
    return used | (not used.any() and not _accessed(function, name))


def _accessed(function: Function, name: str) -> bool:
    """Whether a load or store has its address from the value; atomics and boxes may, too."""
    return any(
        name in function.reached_from(o.operands[:1])
        for o in function.walk()
        if o.name in ("tt.load", "tt.store")
    )


def _reaching_pointers(function: Function) -> set[str]:
    """Values that end up in an offset of a pointer."""
    made = function.made_by()

    def computed(name: str) -> tuple[str, ...]:
        stops = name not in made or made[name].name in ("tt.load", "tt.reduce", "scf.for")
        return () if stops else made[name].operands

    return {*reached((o.operands[1] for o in function.walk() if o.name == "tt.addptr"), computed)}


class Bounds:
    """Lowest and highest value of every integer of a function, computed without wrapping. `known` has those of arguments, and
    of loads where that is known."""

    def __init__(
        self, function: Function, known: Mapping[str, tuple[int, int]], grid: tuple[int, int, int]
    ) -> None:
        self._grid = grid
        self._of: dict[str, Interval] = dict(known)
        self.overflows: list[tuple[Operation, tuple[int, int]]] = []
        for operation in function.body:
            self._visit(operation)

    def _visit(self, operation: Operation) -> None:
        if operation.name == "scf.for":
            self._loop(operation)
            return
        for block in operation.blocks:
            for inner in block.operations:
                self._visit(inner)
        if len(operation.results) == 1:
            found = self._value(operation)
            self._of[operation.results[0]] = found
            narrow = re.search(r"\bi32\b|xi32\b", operation.types.split("->")[-1])
            if found is not None and narrow and (found[0] < _LOW or found[1] > _HIGH):
                self.overflows.append((operation, found))

    def _loop(self, operation: Operation) -> None:
        """A loop's counter, and sums that grow by the same each time; other variables of it are anything."""
        (block,) = operation.blocks
        start, stop, step = (self._of.get(v) for v in operation.operands[:3])
        counter, *carried = block.arguments
        trips: int | None = None
        if start is not None and stop is not None and step is not None and step[0] > 0:
            trips = max(0, -(-(stop[1] - start[0]) // step[0]))
            self._of[counter] = (start[0], max(start[0], start[0] + (trips - 1) * step[0]))
        made = {r: o for o in block.operations for r in o.results}
        yielded = next((o.operands for o in block.operations if o.name == "scf.yield"), ())
        for name, first, last in zip(carried, operation.carried, yielded, strict=False):
            self._of[name] = self._growing(name, self._of.get(first), made.get(last), trips)
        for inner in block.operations:
            self._visit(inner)
        for result, last in zip(operation.results, yielded, strict=False):
            self._of[result] = self._of.get(last)

    def _growing(self, name: str, first: Interval, update: Operation | None, trips: int | None) -> Interval:
        if update is None or update.name != "arith.addi" or name not in update.operands or trips is None:
            return None
        other = next((v for v in update.operands if v != name), name)
        step = self._of.get(other)
        if first is None or step is None:
            return None
        times = max(trips - 1, 0)
        return (first[0] + min(0, times * step[0]), first[1] + max(0, times * step[1]))

    def _value(self, operation: Operation) -> Interval:
        name, operands = operation.name, [self._of.get(v) for v in operation.operands]
        if name == "tt.load":
            return self._of.get(operation.results[0])
        if name == "arith.constant":
            found = _NUMBER.match(operation.attributes.strip())
            return (int(found[1]), int(found[1])) if found else None
        if name in ("tt.get_program_id", "tt.get_num_programs"):
            axis = self._grid["xyz".index(operation.attributes.strip()[0])]
            return (0, axis - 1) if name == "tt.get_program_id" else (axis, axis)
        if name == "tt.make_range":
            found = re.search(r"end = (\d+) : i32, start = (\d+)", operation.attributes)
            return (int(found[2]), int(found[1]) - 1) if found else None
        if name in _SAME:
            return operands[0] if operands else None
        if name == "arith.select" and len(operands) == 3:
            return _union(operands[1], operands[2])
        rule = _RULES.get(name)
        if rule is None or len(operands) != 2 or operands[0] is None or operands[1] is None:
            return None
        return rule(operands[0], operands[1])


def _union(a: Interval, b: Interval) -> Interval:
    return None if a is None or b is None else (min(a[0], b[0]), max(a[1], b[1]))


def _product(a: tuple[int, int], b: tuple[int, int]) -> Interval:
    corners = [x * y for x in a for y in b]
    return (min(corners), max(corners))


def _quotient(a: tuple[int, int], b: tuple[int, int]) -> Interval:
    if b[0] <= 0:
        return None
    corners = [int(x / y) if abs(x) < 2**52 else x // y for x in a for y in b]
    return (min(corners), max(corners))


def _remainder(a: tuple[int, int], b: tuple[int, int]) -> Interval:
    if b[0] <= 0:
        return None
    return (0 if a[0] >= 0 else 1 - b[1], min(max(a[1], 0), b[1] - 1))


_RULES: dict[str, Callable[[tuple[int, int], tuple[int, int]], Interval]] = {
    "arith.addi": lambda a, b: (a[0] + b[0], a[1] + b[1]),
    "arith.subi": lambda a, b: (a[0] - b[1], a[1] - b[0]),
    "arith.muli": _product,
    "arith.divsi": _quotient,
    "arith.divui": _quotient,
    "arith.remsi": _remainder,
    "arith.remui": _remainder,
    "arith.minsi": lambda a, b: (min(a[0], b[0]), min(a[1], b[1])),
    "arith.maxsi": lambda a, b: (max(a[0], b[0]), max(a[1], b[1])),
    "arith.shli": lambda a, b: _product(a, (1 << b[0], 1 << b[1])) if 0 <= b[0] <= b[1] < 63 else None,
}
