"""Lines of TTIR or TTGIR to operations. Reads what MLIR prints, an operation a line; what it cannot read is kept by name."""

from __future__ import annotations

import re

from tilefold.xray.ir.scopes import named_once
from tilefold.xray.ir.syntax import Block, Function, Operation, Place

_HEAD = re.compile(r'^(?:(%[\w$.-]+(?:, %[\w$.-]+)*)(?::(\d+))? = )?"?([\w.]+)"?(.*)$', re.DOTALL)
_VALUE = re.compile(r"%[\w$.-]+(?:#\d+)?")
_LOCATION = re.compile(r"^(#loc\d*) = loc\((.*)\)$")
_FILE_LINE = re.compile(r'^"([^"]*)":(\d+):\d+')
_ALIAS = re.compile(r"^(#\w+) = (.*)$")


def path_of(quoted: str) -> str:
    """A path as MLIR has it between quotes: of what is not printable, and of quotes, the bytes in two hexadecimal digits."""

    def byte(found: re.Match[bytes]) -> bytes:
        return found[1] if found[1] == b"\\" else bytes.fromhex(found[1].decode())

    return re.sub(rb"\\([0-9A-F]{2}|\\)", byte, quoted.encode()).decode(errors="surrogateescape")


def read(text: str) -> Function:
    """The module's one public function. Every name stands for one value; `spelled` gives it back as the text has it."""
    locations, aliases, rows = {}, {}, []
    for line in text.splitlines():
        if found := _LOCATION.match(line):
            locations[found[1]] = found[2]
        elif found := _ALIAS.match(line):
            aliases[found[1]] = found[2]
        rows.append("" if found else line.strip())
    reader = _Reader(rows, locations)
    module, _ = reader.block(())
    # The kernel is the one public function; others are device functions that were not inlined.
    functions = [o for m in module.operations for o in m.walk() if o.name == "tt.func"]
    kernel = next((f for f in functions if " public " in f" {f.attributes} "), functions[0])
    name = re.search(r"@\"?([\w$.<>]+)", kernel.attributes)
    parameters = kernel.blocks[0].arguments
    body = named_once(kernel.blocks[0].operations, parameters)
    return Function(name[1] if name else "", parameters, body, aliases)


class _Reader:
    """Walks the lines; a line that ends in `{` opens a block, one that begins with `}` closes it."""

    def __init__(self, lines: list[str], locations: dict[str, str]) -> None:
        self._lines, self._at, self._locations = lines, 0, locations
        self._places: dict[str, Place] = {}

    def block(self, arguments: tuple[str, ...]) -> tuple[Block, str]:
        """Operations up to the closing line, and that line; labels inside bring further arguments."""
        operations: list[Operation] = []
        while self._at < len(self._lines):
            line = self._lines[self._at]
            self._at += 1
            if not line or line.startswith(("//", "{-#")) or line == "#-}":
                continue
            if line.startswith("}"):
                return Block(arguments, tuple(operations)), line
            if line.startswith("^"):
                arguments = (*arguments, *_VALUE.findall(_without_locations(line)))
                continue
            operations.append(self._operation(line))
        return Block(arguments, tuple(operations)), ""

    def _operation(self, line: str) -> Operation:
        found, row = _HEAD.match(line), self._at - 1
        assert found is not None, line
        result, count, name, rest = found.groups()
        rest, location = _split_location(rest)
        blocks: list[Block] = []
        opened = rest.rstrip()
        arguments = _own_arguments(name, rest)
        while opened.endswith("{"):
            inner, closing = self.block(arguments)
            blocks.append(inner)
            behind = closing[1:].lstrip()
            behind, location = _split_location(behind)
            opened = behind.rstrip()
            if not opened.endswith("{"):
                rest += " " + opened.removeprefix(")")
            arguments = ()
        results = () if result is None else _results(result, count)
        attributes, types = _split_types(rest, bool(blocks))
        carried = _carried(rest)
        operands = tuple(v for v in _VALUE.findall(attributes) if v not in _bound(name, rest))
        return Operation(
            name,
            results,
            operands,
            attributes.strip(),
            types,
            self._place(location),
            row,
            tuple(blocks),
            carried,
        )

    def _place(self, text: str) -> Place:
        """(file, line) from the innermost call outwards."""
        if text not in self._places:
            self._places[text] = self._resolve(text)
        return self._places[text]

    def _resolve(self, text: str) -> Place:
        if text.startswith("#loc"):
            return self._place(self._locations.get(text, "unknown"))
        if found := _FILE_LINE.match(text):
            return ((path_of(found[1]), int(found[2])),)
        if text.startswith("callsite("):
            callee, _, caller = text[len("callsite(") : -1].partition(" at ")
            return self._place(callee) + self._place(caller)
        named = re.match(r'^"[^"]*"\((.*)\)$', text)
        return self._place(named[1]) if named else ()


def _results(name: str, count: str | None) -> tuple[str, ...]:
    return tuple(name.split(", ")) if count is None else tuple(f"{name}#{i}" for i in range(int(count)))


def _own_arguments(name: str, rest: str) -> tuple[str, ...]:
    """The names of the values that enter the block of a loop or a function."""
    if name == "scf.for":
        induction = _VALUE.search(rest)
        assert induction is not None
        return (induction[0], *_bound(name, rest)[1:])
    if name == "tt.func":
        return tuple(re.findall(r"(%[\w$.-]+):", rest))
    return ()


def _bound(name: str, rest: str) -> tuple[str, ...]:
    """Names that the operation's text brings into being: no operands."""
    if name == "scf.for":
        listed = re.search(r"iter_args\(([^)]*)\)", rest)
        first = _VALUE.search(rest)
        assert first is not None
        return (first[0], *(re.findall(r"(%[\w$.-]+) =", listed[1]) if listed else ()))
    if name == "scf.while":
        return tuple(re.findall(r"(%[\w$.-]+) =", rest))
    return _own_arguments(name, rest)


def _carried(rest: str) -> tuple[str, ...]:
    listed = re.search(r"iter_args\(([^)]*)\)", rest)
    return tuple(re.findall(r"= (%[\w$.-]+(?:#\d+)?)", listed[1])) if listed else ()


def _split_location(text: str) -> tuple[str, str]:
    """A line without its trailing `loc(...)`, and what stood there; a line may end in `{` behind it."""
    at = text.rfind(" loc(")
    if text.startswith("loc("):
        at = 0
    if at < 0 or not text.rstrip().endswith(")"):
        return text, "unknown"
    inside = text[at:].strip()
    return text[:at], inside[len("loc(") : -1]


def _without_locations(text: str) -> str:
    return re.sub(r'loc\((?:[^()"]|"[^"]*"|\((?:[^()]|\([^()]*\))*\))*\)', "", text)


def _split_types(text: str, region: bool) -> tuple[str, str]:
    """The parts before and behind the colon of the types; attributes in braces have colons of their own."""
    depth = 0
    for i in range(len(text) - 1, 0, -1):
        depth += (text[i] in ")}]") - (text[i] in "([{")
        if depth <= 0 and text.startswith(" : ", i):
            return text[:i], text[i + 3 :].strip().rstrip("{").strip()
    arrow = text.rfind(" -> ")
    return (
        (text[:arrow], text[arrow + 1 :].strip().rstrip("{").strip()) if region and arrow >= 0 else (text, "")
    )
