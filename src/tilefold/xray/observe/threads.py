"""Threads that do nothing of their own, and folds that cross threads without need."""

from __future__ import annotations

import math
from collections.abc import Iterator

from tilefold.xray.evidence import Evidence
from tilefold.xray.ir import tensors
from tilefold.xray.ir.syntax import Operation, Tensor
from tilefold.xray.layouts import Holding, holding
from tilefold.xray.report.model import Line, Observation, Report
from tilefold.xray.report.static import line_of

_SHARE = 0.1  # of the instructions, from which repeated work is worth a word
SHORT = 16
_FRAMES = 2  # calls inside of Triton's library around a reduction: tl.sum has one, tl.argmax two
_TILES = (
    "tt.load", "tt.store", "tt.atomic_rmw", "ttg.async_copy_global_to_local", "tt.descriptor_load", "tt.dot",
    "ttng.warp_group_dot",
)  # fmt: skip
_DOTS = ("tt.dot", "ttng.warp_group_dot")
_FEW = 0.05  # shuffles among all instructions, up to which nothing is said


def repeated_work(report: Report, evidence: Evidence) -> Iterator[Observation]:
    """Tiles smaller than the program: `idle-warps` inside a loop that could be spread, else `redundant-threads`.

    One observation each, at the first of its lines.
    """
    lines = {(x.file, x.line): x for x in report.lines}
    found: dict[str, list[tuple[int, Line, Tensor, Holding]]] = {}
    moves = [(o, looped, t) for o, looped in _moves(evidence) for t in tensors(o.types)[:1]]
    largest = max(
        (t.elements for o in evidence.ttgir.walk() if o.name in _TILES for t in tensors(o.types)), default=0
    )
    for operation, looped, tile in moves:
        place = line_of(operation.place)
        # Few results of many elements are held by many threads, and that is well.
        if place is None or place not in lines or not 1 < tile.elements == largest:
            continue
        held = holding(tile, evidence.ttgir.aliases, report.num_warps)
        if held is None or held.copies < 2:
            continue
        spread_over = 1
        for n in held.warps:
            spread_over *= n
        code = "idle-warps" if looped and spread_over < report.num_warps else "redundant-threads"
        found.setdefault(code, []).append((_issued(lines[place]), lines[place], tile, held))
    everything = sum(_issued(x) for x in report.lines)
    own = {code: {(x.file, x.line): n for n, x, _, _ in places} for code, places in found.items()}
    told = [code for code in found if sum(own[code].values()) >= _SHARE * everything]
    if found and not told:  # what is computed of such a tile is repeated, too
        alike = {(x.file, x.line): _issued(x) for x in report.lines if _is_repeated(x, largest)}
        code = max(found)  # redundant-threads, if there are some
        own[code] = {**alike, **own[code]}
        told = [code] if sum(own[code].values()) >= _SHARE * everything else []
    for code in told:
        first = min(found[code], key=lambda p: p[1].line)
        yield _repeated(code, *first[1:], sum(own[code].values()), report)


def _moves(evidence: Evidence) -> Iterator[tuple[Operation, bool]]:
    """Loads, stores and atomics of tiles, and whether a loop repeats them."""
    looped = {
        id(inner)
        for o in evidence.ttgir.walk()
        if o.name in ("scf.for", "scf.while")
        for block in o.blocks
        for part in block.operations
        for inner in part.walk()
    }
    for operation in evidence.ttgir.walk():
        if operation.name in ("tt.load", "tt.store", "tt.atomic_rmw"):
            yield operation, id(operation) in looped


def _is_repeated(line: Line, elements: int) -> bool:
    """Whether all of a line's tiles have so many elements, each held by several threads."""
    return bool(line.layouts) and all(
        math.prod(x.shape) == elements and (x.copies or 1) > 1 for x in line.layouts
    )


def _issued(line: Line) -> int:
    return line.work.issued if line.work is not None else line.sass


def _repeated(code: str, line: Line, tile: Tensor, held: Holding, spent: int, report: Report) -> Observation:
    threads = 32 * report.num_warps
    evidence = f"a tile of {tile.elements} elements for {threads} threads: each element is held by {held.copies} of them"
    fewer = max(1, report.num_warps // held.copies)
    launch = f"launch with num_warps={fewer}" if fewer < report.num_warps else ""
    if code == "idle-warps":
        reason = "the loop's iterations follow one another in all warps; Triton spreads a tile over warps, never a loop"
        change = f"let one iteration take a tile of {tile.elements * held.copies} elements (or a dim more)"
        change += f", or {launch}" if launch else ""
    else:
        reason = "the tile has fewer elements than the program threads, so the layout repeats it"
        larger = f"let a program own a tile of {tile.elements * held.copies} elements (or a dim more)"
        change = f"{launch}, or {larger}" if launch else f"{larger}: it has no fewer threads than a warp"
    return Observation(
        code,
        "warning",
        line.file,
        line.line,
        evidence,
        reason,
        change,
        cycles_at_stake=spent - spent // held.copies,
        numbers=(("elements", tile.elements), ("threads", threads), ("copies", held.copies)),
    )


def repeated_dot(report: Report, evidence: Evidence) -> Iterator[Observation]:
    """Dots whose result has fewer tiles of the matrix unit than the program has warps, so that several compute the same one;
    one observation a line."""
    lines = {(x.file, x.line): x for x in report.lines}
    found: dict[tuple[str, int], tuple[Tensor, int]] = {}
    for operation in evidence.ttgir.walk():
        place, tiles = line_of(operation.place), tensors(operation.types)
        if operation.name not in _DOTS or place is None or not tiles:
            continue
        held = holding(tiles[-1], evidence.ttgir.aliases, report.num_warps)
        # Lanes that hold the same are those of one instruction; only warps issue it again.
        copies = 1 if held is None else report.num_warps // math.prod(held.warps)
        if copies > max(1, found.get(place, (None, 1))[1]):
            found[place] = (tiles[-1], copies)
    for place, (tile, copies) in found.items():
        spent = _issued(lines[place]) if place in lines else 0
        shape, fewer = "x".join(map(str, tile.shape)), max(1, report.num_warps // copies)
        said = f"a dot with a result of {shape} is computed {copies} times over by {report.num_warps} warps"
        yield Observation(
            "repeated-dot",
            "warning",
            *place,
            said + (f": {spent} instructions at its line in the executed programs" if spent else ""),
            "warps share the result of a dot and never its K: one that has too few tiles for them is computed by several",
            f"launch with num_warps={fewer}",
            cycles_at_stake=spent - spent // copies,
            numbers=(("copies", copies), ("warps", report.num_warps), ("instructions", spent)),
        )


def small_axis_shuffles(report: Report, evidence: Evidence) -> Iterator[Observation]:
    """A reduction of at most 16 elements whose layout spreads them over lanes or warps, though there are rows enough.

    One observation a line. Reductions deep inside of Triton's library (in a sort) are not the kernel's to change; and of a
    tile that is folded along several short axes (a sort of one's own, a transform of butterflies) no layout holds all.
    """
    lines = {(x.file, x.line): x for x in report.lines}
    found: dict[tuple[str, int], tuple[Tensor, int, Holding]] = {}
    axes: dict[tuple[int, ...], set[int]] = {}  # of each shape, those that are short and folded
    for operation in evidence.ttgir.walk():
        place = line_of(operation.place)
        if operation.name != "tt.reduce" or place is None or operation.place.index(place) > _FRAMES:
            continue
        for tile in tensors(operation.types)[:1]:
            short = tile.shape[operation.axis] <= SHORT
            axes.setdefault(tile.shape, set()).update({operation.axis} if short else ())
        spread = _spreadaxis_of(operation, evidence, report.num_warps)
        if spread is not None:
            found.setdefault(place, spread)
    for place, (tile, axis, held) in found.items():
        if len(axes[tile.shape]) > 1:
            continue
        line = lines.get(place)
        shuffles = line.work.shuffles if line is not None and line.work is not None else 0
        if report.totals.work is None or shuffles >= _FEW * report.totals.work.issued:
            yield _smallaxis_of(place, tile, axis, held, shuffles)


def _spreadaxis_of(
    operation: Operation, evidence: Evidence, warps: int
) -> tuple[Tensor, int, Holding] | None:
    """The tile, the axis and its layout, if the axis is short and crosses threads without need."""
    tile = next(iter(tensors(operation.types)), None)
    if tile is None:
        return None
    axis = operation.axis
    held, length = holding(tile, evidence.ttgir.aliases, warps), tile.shape[axis]
    if held is None or length > SHORT or held.lanes[axis] * held.warps[axis] < 2:
        return None
    return (tile, axis, held) if tile.elements // length >= 32 * warps else None


def _smallaxis_of(
    place: tuple[str, int], tile: Tensor, axis: int, held: Holding, shuffles: int
) -> Observation:
    length, threads = tile.shape[axis], held.lanes[axis] * held.warps[axis]
    return Observation(
        "small-axis-shuffles",
        "warning",
        *place,
        f"an axis of {length} is spread over {threads} threads: {shuffles} shuffles",
        "the layout was chosen for the loads, and the reduction takes it as it is",
        f"combine halves of the axis in registers, {length.bit_length() - 1} times: reshape to [..., 2], tl.split, combine",
        cycles_at_stake=2 * shuffles,
        numbers=(("length", length), ("threads", threads), ("shuffles", shuffles)),
    )
