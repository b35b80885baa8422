"""`not-associative`: functions of tl.reduce and tl.associative_scan whose result depends on how elements are grouped.

The compiler groups elements by threads, lanes and warps. So the function is asked for single elements and runs of them, in
both groupings, as they come to the fold when the kernel is executed; then the library's check of a monoid's laws is asked for
others. Functions of Triton's own library are not looked at.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np

import tilefold
from tilefold.errors import LawError, TilefoldError
from tilefold.xray.evidence import Evidence, given_arguments
from tilefold.xray.execution import Execution
from tilefold.xray.ir import Operation, element_bytes, spelled, tensors
from tilefold.xray.machine.types import Array
from tilefold.xray.observe.masked import tile_type
from tilefold.xray.observe.racing import drawn_values
from tilefold.xray.observe.rewrites import Rows, changed_text, counted_at
from tilefold.xray.observe.trials import Trials, UntriedError, difference, numbers
from tilefold.xray.observe.values import UnknownError, World, combine, literal
from tilefold.xray.report.model import Observation, Report
from tilefold.xray.report.static import is_tritons, line_of

_FOLDS = {"tt.reduce": "tl.reduce", "tt.scan": "tl.associative_scan"}
# Operations that depend on how they are grouped, alone.
_ORDERED = tuple(
    f"arith.{name}" for name in ("subf", "subi", "divf", "divsi", "divui", "remf", "remsi", "remui", "shli")
)
_PROBES = 1 << 20  # numbers of `counted_at` from here on are of operands
_ROOM = 1 << 18  # of such numbers, which are 64 bytes apart, that an operand has
# Lines of a tile that are looked at; elements of each; of these neighbours, and others, in groups of three.
_LINES, _RUN, _NEXT, _DRAWN = 2, 64, 24, 150
_CLOSE = 1e-6  # by which two groupings of float64 agree
_KINDS = {"f64": "fp64", "f32": "fp32", "f16": "fp16", "bf16": "bf16"}
State = list[Any]


def not_associative(report: Report, evidence: Evidence, trials: Trials) -> Iterator[Observation]:
    """One observation a line: an error where elements that were given show it, a warning where random ones do, a note where
    only the library's check does."""
    if evidence.compiled.job.source is not None:
        return  # a kernel of the library: its monoid's laws were checked, and states that are stored have several forms
    world = World(evidence.ttir, given_arguments(evidence), report.grid)
    folds = [o for o in evidence.ttir.walk() if o.name in _FOLDS and _is_own(o, world)]
    if not folds:
        return
    try:
        text = probed(evidence.compiled.ttir, folds)
        ran = None if evidence.execution is None else trials.run(trials.compile(text))
    except UntriedError:
        ran = None
    drawn, seen = drawn_values(evidence), set[tuple[str, int]]()
    for number, fold in enumerate(folds):
        place = line_of(fold.place)
        if place is None or place in seen:
            continue
        found = None if ran is None else _shown(world, fold, _held(ran, fold, number))
        severity = "warning" if drawn & evidence.ttir.reached_from(fold.operands) else "error"
        if found is not None and len(fold.results) > 1:
            found = _stored(found, report, trials)
        if found is None and len(fold.results) == 1:
            found, severity = _refused(world, fold), "note"
        if found is not None:
            seen.add(place)
            yield Observation(
                "not-associative",
                severity,
                *place,
                f"the function of {_FOLDS[fold.name]} is not associative: {found}",
                "the compiler groups elements by threads and warps, so what is stored depends on the launch and on Triton",
                "let the state carry what a later combination needs (a mean needs its count), and finish behind the fold",
            )


def _is_own(fold: Operation, world: World) -> bool:
    """Whether the function is the kernel's own, more than one operation that is known to be associative, and closed."""
    inner = fold.blocks[0].operations[:-1]
    written = [o.place[0][0] for o in inner if o.place]
    plain = len(inner) == 1 and inner[0].name not in _ORDERED
    closed = all(v in world.made and world.made[v].name == "arith.constant" for v in _outside(fold))
    return (
        closed
        and not plain
        and line_of(fold.place) is not None
        and any(not is_tritons(file) for file in written)
    )


def _outside(fold: Operation) -> set[str]:
    """Values of a fold's function that are made outside of it."""
    block = fold.blocks[0]
    inside = {*block.arguments, *(v for o in block.operations for v in o.results)}
    return {v for o in block.operations for v in o.operands} - inside


def probed(ttir: str, folds: Sequence[Operation]) -> str:
    """The TTIR that stores what comes to folds at addresses of no argument.

    Raises:
        UntriedError: there is none.
    """
    rows = ttir.splitlines()
    for number, fold in enumerate(folds):
        made = Rows(f"%xray_probe_{number}")
        for which, (name, tile) in enumerate(zip(fold.operands, tensors(fold.types), strict=False)):
            if not _kind(tile.element):
                raise UntriedError(f"elements of {tile.element} are not read here")
            size, kind = tile.elements, tile_type(tile.shape, tile.element)
            flat = made.row(f"tt.reshape {spelled(name)} : {kind} -> {tile_type((size,), tile.element)}")
            pointer = made.place(_address(number, which), tile.element)
            pointers = tile_type((size,), f"!tt.ptr<{tile.element}>")
            all_of = made.row(f"tt.splat {pointer} : !tt.ptr<{tile.element}> -> {pointers}")
            offsets = tile_type((size,), "i32")
            numbered = made.row(f"tt.make_range {{end = {size} : i32, start = 0 : i32}} : {offsets}")
            places = made.row(f"tt.addptr {all_of}, {numbered} : {pointers}, {offsets}")
            made.rows.append(f"tt.store {places}, {flat} : {pointers}")
        rows[fold.row] = "\n".join([*made.rows, rows[fold.row]])
    return changed_text(ttir, rows, "there is no such fold")


def _address(fold: int, operand: int) -> int:
    return counted_at(_PROBES + (8 * fold + operand) * _ROOM)


def _kind(element: str) -> str:
    """The name of a type of elements as `numbers` reads it; "" where it does not."""
    return _KINDS.get(element, element if element in ("i64", "i32", "i16", "i8") else "")


def _held(ran: Execution, fold: Operation, number: int) -> list[list[State]]:
    """Lines of a tile along the fold's axis, as it came to the fold first: states in order."""
    columns = []
    for which, tile in enumerate(tensors(fold.types)[: len(fold.operands)]):
        first, size = _address(number, which), element_bytes(tile.element)
        held, known = np.zeros(tile.elements * size, np.uint8), np.zeros(tile.elements * size, bool)
        for access in (a for a in ran.outcomes[0].accesses if a.kind == "store" and a.written is not None):
            at = access.addresses[access.active].astype(np.int64) - first
            inside = (at >= 0) & (at < len(held))
            places = (at[inside][:, None] + np.arange(access.bytes)).ravel()
            assert access.written is not None
            new = ~known[places]
            held[places[new]] = access.written[inside].ravel()[new]
            known[places] = True
        if not known.all():
            return []
        values = np.moveaxis(numbers(held, _kind(tile.element)).reshape(tile.shape), fold.axis, -1)
        columns.append(_typed(values.reshape(-1, tile.shape[fold.axis]), tile.element))
    return [
        [list(state) for state in zip(*line, strict=True)]
        for line in zip(*(c[:_LINES] for c in columns), strict=True)
    ]


def _typed(lines: Array, element: str) -> list[list[Any]]:
    whole = element.startswith("i")
    return [[int(x) if whole else float(x) for x in line[:_RUN]] for line in lines]


def _shown(world: World, fold: Operation, lines: list[list[State]]) -> str | None:
    """Two groupings of a line's elements that differ, in words."""
    both = functools.partial(combine, world, 0, fold.blocks[0])
    try:
        for line in lines:
            for a, b, c in _triples(line, both):
                left, right = both(both(a, b), c), both(a, both(b, c))
                if _differ(left, right, (a, b, c)):
                    said = f"combine(combine(a, b), c) is {_text(left)}, and combine(a, combine(b, c)) {_text(right)}"
                    return f"{said}, for a = {_text(a)}, b = {_text(b)}, c = {_text(c)}, which come to it"
    except UnknownError:
        return None
    return None


def _stored(found: str, report: Report, trials: Trials) -> str | None:
    """What is said of a state of several values, with what other warps store; None where they store the same: states may be
    two forms of one, as sums about another pivot."""
    for warps in (1, 2, 8):
        if warps == report.num_warps:
            continue
        try:
            other = trials.memory(trials.launch(warps=warps))
            apart = difference(trials.compiled, trials.memory(trials.compiled), other)
        except UntriedError:
            continue
        if apart is not None:
            shown = f"{apart.name}[{apart.element}] is {apart.ours:.6g}, and {apart.theirs:.6g} with num_warps={warps}"
            return f"{found}; executed, {shown}"
    return None


def _triples(
    line: list[State], both: Callable[[State, State], State]
) -> Iterator[tuple[State, State, State]]:
    """Neighbours; of states of one value, which know no place, others in their order, too; then runs."""
    yield from zip(line[:_NEXT], line[1:], line[2:], strict=False)
    n = len(line)
    if len(line[0]) == 1 and n > 2:
        random = np.random.default_rng(0)
        for _ in range(_DRAWN):
            i, j, k = np.sort(random.choice(n, 3, replace=False)).tolist()
            yield line[i], line[j], line[k]
    for p, q in ((n // 4, n // 2), (n // 2, 3 * n // 4), (1, n // 2), (n // 2, n - 1)):
        if 0 < p < q < n:
            a, b, c = (functools.reduce(both, part) for part in (line[:p], line[p:q], line[q:]))
            yield a, b, c


def _differ(left: State, right: State, states: Sequence[State]) -> bool:
    """Whether two states differ beyond rounding; what is not finite shows nothing."""
    everything = [float(x) for state in (left, right, *states) for x in state]
    if not np.isfinite(everything).all():
        return False
    scale = max(map(abs, everything))
    return any(
        abs(float(x) - float(y)) > (0 if isinstance(x, (int, np.integer)) else _CLOSE * scale)
        for x, y in zip(left, right, strict=True)
    )


def _text(state: State) -> str:
    shown = ", ".join(str(x) if isinstance(x, (int, np.integer)) else f"{float(x):.6g}" for x in state)
    return shown if len(state) == 1 else f"({shown})"


def _refused(world: World, fold: Operation) -> str | None:
    """The library's objection to a function of one value; None where its laws hold, or it cannot be read."""
    try:
        tilefold.Monoid(functools.partial(_traced, world, fold), None, name="combine")
    except LawError as error:
        said, _, _ = str(error).partition("; carry in")
        _, refused, example = said.partition("must be associative, got ")
        return (
            f"elements of the executed programs do not show it, and others do: {example}" if refused else None
        )
    except (TilefoldError, UnknownError):
        return None
    return None


_TRACED: dict[str, Callable[..., Any]] = {
    "addf": lambda a, b: a + b, "subf": lambda a, b: a - b, "mulf": lambda a, b: a * b, "divf": lambda a, b: a / b,
    "addi": lambda a, b: a + b, "subi": lambda a, b: a - b, "muli": lambda a, b: a * b, "negf": lambda a: -a,
    "maxnumf": tilefold.math.maximum, "maximumf": tilefold.math.maximum, "maxsi": tilefold.math.maximum,
    "minnumf": tilefold.math.minimum, "minimumf": tilefold.math.minimum, "minsi": tilefold.math.minimum,
    "select": tilefold.math.where, "absf": tilefold.math.abs, "absi": tilefold.math.abs, "exp": tilefold.math.exp,
    "exp2": tilefold.math.exp2, "log": tilefold.math.log, "log2": tilefold.math.log2, "sqrt": tilefold.math.sqrt,
    "andi": lambda a, b: a & b, "ori": lambda a, b: a | b, "xori": lambda a, b: a ^ b,
}  # fmt: skip
_COMPARED: dict[str, Callable[[Any, Any], Any]] = {
    "eq": lambda a, b: a == b, "ne": lambda a, b: a != b, "lt": lambda a, b: a < b, "le": lambda a, b: a <= b,
    "gt": lambda a, b: a > b, "ge": lambda a, b: a >= b,
}  # fmt: skip


def _traced(world: World, fold: Operation, a: Any, b: Any) -> Any:
    """The function of a fold of one value, on the library's expressions."""
    block = fold.blocks[0]
    held: dict[str, Any] = {v: literal(world.made[v]) for v in _outside(fold)}
    held.update(zip(block.arguments, (a, b), strict=True))
    for operation in block.operations[:-1]:
        kind = operation.name.partition(".")[2]
        if kind == "constant":
            held[operation.results[0]] = literal(operation)
        elif kind in ("cmpf", "cmpi"):
            how = operation.attributes.split(",")[0].strip()[-2:]
            held[operation.results[0]] = _COMPARED[how](*(held[v] for v in operation.operands))
        elif kind in _TRACED:
            held[operation.results[0]] = _TRACED[kind](*(held[v] for v in operation.operands))
        else:
            raise UnknownError(operation.name)
    return held[block.operations[-1].operands[0]]
