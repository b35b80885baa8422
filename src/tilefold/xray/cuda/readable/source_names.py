"""What the kernel's source calls its values and places, from the comments of the PTX and from Triton's GPU IR."""

from __future__ import annotations

import re
from dataclasses import dataclass, field, replace
from pathlib import Path

from tilefold.xray.cuda.readable.values import MIRRORED, OPPOSITE, Place, Point, Value
from tilefold.xray.ir import Tensor, tensors
from tilefold.xray.ptx.parser import path_of

_FILE = re.compile(r'^\s*\.file\s+(\d+) "(.+)"$', re.M)
_LOCATED = re.compile(r"\s*\.loc\s+\d")
_NUMBERS = re.compile(r"(?:\.loc|inlined_at)\s+(\d+)\s+(\d+)\s+(\d+)")
_CHAIN = re.compile(r"(?:^|@\[)\s*(.+?):(\d+):(\d+)")
_LOC = re.compile(r"^(#loc\d*) = loc\((.*)\)$", re.M)
_NAMED = re.compile(r'"([A-Za-z_]\w*)"\((#loc\d*)\)')
_CALLED = re.compile(r"callsite\((#loc\d*) at (#loc\d*)\)")
_PLACED = re.compile(r'"([^"]*)":(\d+):(\d+)')
_OPERATION = re.compile(r'%\w+(?::\d+)? = "?([\w.]+)')
_FUNCTION = re.compile(r"= math\.(\w+) |symbol = \"__nv_(\w+?)f?\"")
_RELATION = re.compile(r"= arith\.(?:cmp[if] (?:[suo])?(lt|le|gt|ge|eq|ne),|(and|or)i )")
_ENDS = re.compile(r".* : (.*?) loc\((#loc\d*)\)$")
_FLOATS = ("float", "double", "__half", "__nv_bfloat16")
# What comes of the values of a reduction, by the operation that joins two of them.
_REDUCED = {"add": "sum", "mul": "product", "max": "max", "min": "min"}


def _is_triton_s(path: str) -> bool:
    """Whether a file is of Triton's own functions."""
    return "/triton/language/" in path


def places(ptx: str) -> dict[int, Place]:
    """The place of the user's source for each line of a PTX: of calls that were inlined the outermost.

    Triton writes these calls into the comment of `.loc` alone; newer versions write the call around as `inlined_at`.
    """
    paths = {int(number): path_of(path) for number, path in _FILE.findall(ptx)}
    files = {Path(path).name: number for number, path in paths.items()}
    own_files = {Path(path).name for path in paths.values() if not _is_triton_s(path)}
    found: dict[int, Place] = {}
    calls: dict[Place, Place] = {}  # where the outermost call of a place is that was seen last
    now: Place | None = None
    for number, row in enumerate(ptx.split("\n"), start=1):
        if _LOCATED.match(row):
            written, _, comment = row.partition("//")
            (file, line, column), *around = _NUMBERS.findall(written)
            own = Place(int(file), int(line), int(column))
            chain = _CHAIN.findall(comment)
            points = [(n, int(x), int(y)) for n, x, y in chain] or [
                (Path(paths.get(own.file, "")).name, *own[1:3])
            ]
            if around:
                call = Place(int(around[-1][0]), int(around[-1][1]), int(around[-1][2]))
                points += [(Path(paths.get(int(f), "")).name, int(x), int(y)) for f, x, y in around]
                calls[own] = outer = calls.get(call, call)
                own = outer
            elif chain:
                own = Place(files.get(chain[-1][0], 1), int(chain[-1][1]), int(chain[-1][2]))
            else:
                calls.pop(own, None)
            if own.line:
                now = own._replace(points=tuple(p for p in points if p[0] in own_files) or own.points)
        if now is not None:
            found[number] = now
    return found


def waits(ptx: str) -> dict[int, tuple[str, ...]]:
    """The registers that Triton says, in a comment, are waited for by the instruction on the next line that is none."""
    found: dict[int, tuple[str, ...]] = {}
    now: tuple[str, ...] = ()
    for number, row in enumerate(ptx.split("\n"), start=1):
        words = row.strip()
        if words.startswith("// wait for regs:"):
            now = tuple(re.findall(r"%\w+", words))
        elif now and words and not words.startswith("//"):
            found[number], now = now, ()
    return found


@dataclass
class _Said:
    """What Triton's IR says of a point of the source."""

    name: str
    line: tuple[str, int]
    kinds: set[str] = field(default_factory=set)
    made: str = ""  # in a word, by the operation there
    order: int = 0  # of the last operation there
    relation: str = ""  # of a comparison, or how two truth values are joined


class Names:
    """Names by file, line and column, as the locations of Triton's GPU IR give them, and what kinds of values are there."""

    def __init__(self, ttgir: str) -> None:
        self._texts = dict(_LOC.findall(ttgir))
        self._said: dict[Point, _Said] = {}
        for body in self._texts.values():
            for point, name in self._points(body):
                if name:
                    self._said.setdefault(point, _Said(name, point[:2]))
        self._made: list[tuple[int, _Said, str]] = []  # order and type of each operation that has a name
        self._functions: dict[Point, str] = {}  # of mathematics, where nothing else is done
        self._read(ttgir)
        self._last: dict[tuple[str, int, str], int] = {}  # the last operation of a name in a line
        for said in self._said.values():
            key = (*said.line, said.name)
            if said.kinds - {"pointer"}:
                self._last[key] = max(self._last.get(key, 0), said.order)

    def _points(self, body: str) -> list[tuple[Point, str]]:
        """The points of a location from the innermost call on, each with the name that is given there."""
        if called := _CALLED.fullmatch(body):
            return [p for k in (1, 2) for p in self._points(self._texts.get(called[k], ""))]
        if named := _NAMED.fullmatch(body):
            return [(point, named[1]) for point, _ in self._points(self._texts.get(named[2], ""))]
        placed = _PLACED.fullmatch(body)
        if placed is None or _is_triton_s(placed[1]):
            return []
        return [((Path(placed[1]).name, int(placed[2]), int(placed[3])), "")]

    def _read(self, ttgir: str) -> None:
        """The kinds of values and the operations at each point; a reduction's are behind the region that joins two."""
        operation, joined = "", [""]
        for order, row in enumerate(ttgir.split("\n")):
            if found := _OPERATION.match(row.lstrip()):
                operation = found[1]
                if row.endswith("({"):
                    joined.append(operation)
                    continue
            elif row.lstrip().startswith("})") and len(joined) > 1:
                operation = f"{joined.pop()} {operation}"
            else:
                continue
            ends = _ENDS.match(row)
            points = self._points(self._texts.get(ends[2], "")) if ends else []
            for point, _ in points[:1]:
                found = _FUNCTION.search(row)
                called = (found[1] or found[2]) if found else ""
                self._functions[point] = called if point not in self._functions else ""
            said = self._of(points)
            if ends and said is not None:
                said.kinds.add(_kind(operation, ends[1].rsplit("->", 1)[-1]))
                said.made, said.order = _word(operation), order
                if joins := _RELATION.search(row):
                    said.relation = joins[1] or joins[2]
                self._made.append((order, said, f"{operation} : {ends[1]}"))

    def _of(self, points: list[tuple[Point, str]]) -> _Said | None:
        return next((self._said[p] for p, _ in points if p in self._said), None)

    def is_opposite(self, value: Value) -> bool:
        """Whether a truth value is the opposite of what Triton's IR compares or joins at its place."""
        said = self._of([(p, "") for p in value.place.points]) if value.place is not None else None
        if said is None or not said.relation:
            return False
        if value.op in ("and", "or", "not"):
            return value.op == {"and": "or", "or": "and"}.get(said.relation, "not")
        if value.op != "compare" or said.relation not in OPPOSITE:
            return False
        own = value.data[0][:2]
        if own in ("eq", "ne") or said.relation in ("eq", "ne"):
            return bool(own == OPPOSITE[said.relation])
        # A bound that is a constant may be one further; else sides that changed places have the mirrored relation.
        if value.args[1].constant is not None and value.data[1] != "f":
            return bool(own[0] != said.relation[0])
        opposite = OPPOSITE[said.relation]
        return own in (opposite, MIRRORED[opposite])

    @property
    def tiles(self) -> list[tuple[str, Tensor]]:
        """The tiles of numbers that have a name and are what their line makes, in the order in which they are made."""
        found = []
        for order, said, text in self._made:
            operation, _, types = text.partition(" : ")
            of = tensors(types.rsplit("->", 1)[-1])
            kind = _kind(operation, types.rsplit("->", 1)[-1])
            last = self._last.get((*said.line, said.name))
            if order == last and of and (kind == "float" or operation == "tt.load"):
                found.append((said.name, replace(of[0], element=of[0].pointee)))
        return found

    def function(self, place: Place) -> str:
        """The mathematical function that Triton calls at a place; nothing where it calls none."""
        return self._functions.get(place.points[0], "") if place.points else ""

    def at(self, place: Place, kind: str, step: str = "") -> str | None:
        """The name of what is at a place, where values of a C++ type may have it.

        "program" stands for the number of a program: a name that is used at one place alone; "place" for the number of an
        element. A step on the way to what is made there has that word behind the name, and one on the way to what the
        line makes has its operation.
        """
        said = self._of([(p, "") for p in place.points])
        if said is None:
            return None
        if kind == "program":
            return said.name if [s.name for s in self._said.values()].count(said.name) == 1 else None
        asked = "float" if kind in _FLOATS else "bool" if kind == "bool" else "int"
        if not said.kinds and kind != "place":
            return None  # a loop's own: what stands there may be anything that moved out of it
        if kind == "place" or (asked == "int" and asked not in said.kinds):
            return re.sub(r"_ptrs?$", "", said.name) + "_at"
        if asked not in said.kinds:
            return None
        if step:
            return f"{said.name}_{step}"
        last = self._last.get((*said.line, said.name), said.order)
        return said.name if said.order >= last or not said.made else f"{said.name}_{said.made}"


def _kind(operation: str, last: str) -> str:
    if "cmp" in operation:
        return "bool"
    if "ptr" in last and operation not in ("tt.load", "tt.atomic_rmw", "tt.atomic_cas"):
        return "pointer"
    return "float" if re.search(r"b?f\d+", last) else "bool" if re.search(r"(x|\b)i1\b", last) else "int"


def _word(operation: str) -> str:
    """What an operation of Triton's makes, as a part of a name; nothing where that says nothing."""
    kind, _, last = operation.partition(" ")
    if kind in ("tt.reduce", "tt.scan"):
        found = next((word for start, word in _REDUCED.items() if last.startswith(f"arith.{start}")), "fold")
        return found if kind == "tt.reduce" else "scan"
    words = {"tt.load": "loaded", "tt.dot": "dot", "ttng.warp_group_dot": "dot", "arith.divf": "quotient"}
    return kind.removeprefix("math.") if kind.startswith("math.") else words.get(kind, "part")
