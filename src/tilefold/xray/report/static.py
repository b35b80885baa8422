"""Static facts of PTX: the kind of each instruction, and the line it came from."""

from __future__ import annotations

import re
from bisect import bisect_right
from functools import cache
from importlib.util import find_spec
from pathlib import Path

from tilefold.xray.ir.reader import path_of
from tilefold.xray.ir.syntax import Place
from tilefold.xray.ptx.syntax import Immediate, Instruction, Location, Module, items_of

_MATRIX = re.compile(r"m(\d+)n(\d+)k(\d+)")
_BITS = re.compile(r"(\d+)(x2)?$")
_SPACES = ("global", "shared", "local")
_FLOATING = {"add": 1, "sub": 1, "mul": 1, "fma": 2, "mad": 2, "div": 1, "min": 1, "max": 1, "sqrt": 1, "rsqrt": 1, "rcp": 1,
             "ex2": 1, "lg2": 1, "sin": 1, "cos": 1, "tanh": 1, "neg": 1, "abs": 1}  # fmt: skip


Key = tuple[str, int]  # a file, or the last part of its name, and a line


def access_of(instruction: Instruction) -> tuple[str, str, int] | None:
    """(kind, space, bytes a thread asks for) of a memory instruction; None of others."""
    opcode = instruction.opcode
    if opcode in ("ld", "st"):
        space = _space(instruction)
        if space is None:
            return None
        data = instruction.operands[0 if opcode == "ld" else 1]
        count = len(items_of(data))
        space = "cluster" if instruction.has("shared::cluster") else space
        return ("load" if opcode == "ld" else "store", space, count * _bits(instruction) // 8)
    if opcode in ("atom", "red"):
        return ("atomic", _space(instruction) or "global", _bits(instruction) // 8)
    if opcode in ("ldmatrix", "stmatrix"):
        return ("load" if opcode == "ldmatrix" else "store", "shared", 16)
    if instruction.name.startswith(("cp.async.ca", "cp.async.cg")):
        size = instruction.operands[2]
        return ("copy", "global", size.value if isinstance(size, Immediate) else 0)
    if instruction.name.startswith("cp.async.bulk.tensor"):
        return ("tensor copy", "global", 0)
    return None


def _space(instruction: Instruction) -> str | None:
    named = [m.split("::")[0] for m in instruction.modifiers]
    if "param" in named or "const" in named:
        return None
    return next((m for m in named if m in _SPACES), "global")


def _bits(instruction: Instruction) -> int:
    found = _BITS.search(instruction.modifiers[-1])
    return int(found[1]) * (2 if found[2] else 1) if found else 0


def kind_of(instruction: Instruction) -> str:
    """shuffle, barrier, tensor, atomic, or "" for all others."""
    opcode = instruction.opcode
    if opcode in ("shfl", "redux"):
        return "shuffles"
    if opcode in ("bar", "barrier") and not instruction.has("warp") and not instruction.has("arrive"):
        return "barriers"
    if opcode == "mma" or (opcode in ("wgmma", "tcgen05") and instruction.modifiers[0].startswith("mma")):
        return "tensor"
    return "atomics" if opcode in ("atom", "red") else ""


def flops_of(instruction: Instruction) -> tuple[int, int]:
    """Floating-point operations: (of each active lane, of each warp that issues it)."""
    if kind_of(instruction) == "tensor":
        found = _MATRIX.search(instruction.name)
        product = 2 * int(found[1]) * int(found[2]) * int(found[3]) if found else 0
        return (
            0,
            product // 4 if instruction.opcode == "wgmma" else product,
        )  # four warps issue a wgmma together
    last = instruction.modifiers[-1] if instruction.modifiers else ""
    if not re.fullmatch(r"b?f\d+(x2)?", last):
        return 0, 0
    return _FLOATING.get(instruction.opcode, 0) * (2 if last.endswith("x2") else 1), 0


def is_tritons(file: str) -> bool:
    """Whether a file belongs to Triton itself: what a kernel calls there is shown at the call."""
    return "/site-packages/triton/" in file or "/dist-packages/triton/" in file or file.startswith(_home())


@cache
def _home() -> str:
    """The folder of this Triton, wherever it is installed; it is not imported for that."""
    found = find_spec("triton")
    return str(Path(found.origin).parent) + "/" if found and found.origin else "/triton/"


def line_of(place: Place) -> tuple[str, int] | None:
    """The line that a place is shown at: the innermost that is not Triton's own."""
    return next(((f, n) for f, n in place if not is_tritons(f) and n > 0), None)


class Lines:
    """Lines of source of a module's instructions.

    Triton's PTX names only the innermost line in `.loc`; the calls it was inlined at stand in a comment behind it, with
    the files' last names: `// standard.py:191:40 @[ k.py:7:29 ]`. Where two files share theirs, the TTIR's locations
    tell which of them has something in that line.
    """

    def __init__(self, module: Module, text: str, ttir: str = "") -> None:
        self._files = dict(module.files)
        self._by_name: dict[str, str] = {}
        for path in self._files.values():
            name = Path(path).name
            if name not in self._by_name or is_tritons(self._by_name[name]):
                self._by_name[name] = path
        self._in_ttir: dict[Key, set[str]] = {}
        for path, line in re.findall(r'"([^"\n]+)":(\d+):\d+', ttir):
            path = path_of(path)
            self._in_ttir.setdefault((Path(path).name, int(line)), set()).add(path)
        self._starts: list[int] = []
        self._callers: list[Place] = []
        for number, row in enumerate(text.splitlines(), start=1):
            if row.lstrip().startswith(".loc"):
                self._starts.append(number)
                self._callers.append(self._chain(row.partition("//")[2]))
        self._resolve = cache(self._place)

    def place(self, instruction: Instruction) -> Place:
        """(file, line) of an instruction, then of its callers."""
        if instruction.location is None:
            return ()
        place = self._resolve(instruction.location)
        if len(place) == 1 and (at := bisect_right(self._starts, instruction.line)):
            return place + self._callers[at - 1]
        return place

    def line(self, instruction: Instruction) -> tuple[str, int] | None:
        """The line that an instruction is shown at."""
        return line_of(self.place(instruction))

    def _chain(self, comment: str) -> Place:
        calls = re.findall(r"@\[ (.*?):(\d+):\d+", comment)
        return tuple((self._named(name, int(line)), int(line)) for name, line in calls)

    def _named(self, name: str, line: int) -> str:
        """The file of a last name."""
        paths = self._in_ttir.get((name, line), set())
        return next(iter(paths)) if len(paths) == 1 else self._by_name.get(name, name)

    def _place(self, location: Location) -> Place:
        outer = () if location.inlined_at is None else self._place(location.inlined_at)
        return ((self._files.get(location.file, "?"), location.line), *outer)
