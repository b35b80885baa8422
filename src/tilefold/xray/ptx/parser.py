"""Tokens to a `Module`. Debug sections are passed over; everything else is kept or refused by its line."""

from __future__ import annotations

import re
from dataclasses import replace

from tilefold.errors import PtxError
from tilefold.xray.ptx.body import BodyParser
from tilefold.xray.ptx.calls import inline_calls
from tilefold.xray.ptx.lexer import tokens_of
from tilefold.xray.ptx.stream import Stream
from tilefold.xray.ptx.syntax import Entry, Function, Module, Parameter, Variable

_LETTERS = {b"b": b"\b", b"f": b"\f", b"n": b"\n", b"r": b"\r", b"t": b"\t"}
_LINKAGE = (".visible", ".extern", ".weak", ".common")
_SPACES = (".shared", ".global", ".const")


def parse(text: str) -> Module:
    """Read a PTX text. Functions stand where they are called, so that a kernel's body is all that it executes.

    Raises:
        PtxError: the text is not PTX as Triton writes it; the message names the line.
    """
    stream = Stream(tokens_of(text))
    module = Module("", (), 64, (), (), ())
    functions: dict[str, Function] = {}
    while not stream.ended:
        module = _top(stream, module, functions)
    return replace(module, entries=tuple(inline_calls(e, functions) for e in module.entries))


def _top(stream: Stream, module: Module, functions: dict[str, Function]) -> Module:
    """One item of the outermost level."""
    directive = stream.peek().text
    if directive == ".version":
        return replace(module, version=stream.skip().take().text)
    if directive == ".target":
        names = [stream.skip().take().text]
        while stream.accept(","):
            names.append(stream.take().text)
        return replace(module, target=tuple(names))
    if directive == ".address_size":
        return replace(module, address_size=stream.skip().integer())
    if directive == ".file":
        number, path = stream.skip().integer(), stream.take().text
        while stream.accept(","):
            stream.take()
        return replace(module, files=(*module.files, (number, path_of(path[1:-1]))))
    if directive == ".section":
        stream.skip().take()
        stream.pass_block()
        return module
    linkage = []
    while stream.peek().text in _LINKAGE:
        linkage.append(stream.take().text)
    directive = stream.peek().text
    if directive == ".entry":
        return replace(module, entries=(*module.entries, _entry(stream, tuple(linkage))))
    if directive in _SPACES:
        return replace(module, variables=(*module.variables, variable(stream, tuple(linkage))))
    if directive == ".func" and ".extern" in linkage:
        return replace(module, declarations=(*module.declarations, _declaration(stream, linkage)))
    if directive == ".func":
        function = _function(stream)
        if function is not None:
            functions[function.name] = function
        return module
    raise PtxError(
        f"parse: a module must hold directives, variables and entries, got {directive!r} in line {stream.line}"
    )


def path_of(quoted: str) -> str:
    """A path as PTX has it between quotes: of what is not printable the bytes, in three octal digits or by a letter."""

    def byte(found: re.Match[bytes]) -> bytes:
        said = found[1]
        return bytes([int(said, 8)]) if len(said) == 3 else _LETTERS.get(said, said)

    return re.sub(rb"\\([0-7]{3}|.)", byte, quoted.encode()).decode(errors="surrogateescape")


def _declaration(stream: Stream, linkage: list[str]) -> str:
    """A function that lives elsewhere, as text."""
    words = list(linkage)
    while not stream.accept(";"):
        words.append(stream.take().text)
    return " ".join(words) + ";"


def variable(stream: Stream, linkage: tuple[str, ...]) -> Variable:
    """`.shared .align 16 .b8 name[8] = {1, 2};`."""
    space, align = stream.take().text, 1
    if stream.accept(".align"):
        align = stream.integer()
    kind, name = stream.take().text, stream.take().text
    count, initial = None, []
    if stream.accept("["):
        count = 0 if stream.peek().text == "]" else stream.integer()
        stream.expect("]")
    if stream.accept("="):
        braces = stream.accept("{")
        initial.append(stream.integer())
        while braces and stream.accept(","):
            initial.append(stream.integer())
        if braces:
            stream.expect("}")
    stream.expect(";")
    return Variable(linkage, space, align, kind, name, count, tuple(initial))


def _function(stream: Stream) -> Function | None:
    """A function with its body, or None for one that is only announced here."""
    stream.expect(".func")
    results = _parameters(stream) if stream.peek().text == "(" else ()
    name, parameters = stream.take().text, _parameters(stream)
    while stream.peek().kind == "directive":  # .noreturn and its like
        stream.take()
    if stream.accept(";"):
        return None
    body = BodyParser(stream, variable)
    body.parse()
    return Function(
        name, results, parameters, tuple(body.registers), tuple(body.variables), tuple(body.items)
    )


def _parameters(stream: Stream) -> tuple[Parameter, ...]:
    """`(.param .b64 a, .param .b32 b)`."""
    found = []
    stream.expect("(")
    while not stream.accept(")"):
        found.append(_parameter(stream))
        stream.accept(",")
    return tuple(found)


def _entry(stream: Stream, linkage: tuple[str, ...]) -> Entry:
    """A kernel from `.entry` to its closing brace."""
    stream.expect(".entry")
    name, parameters = stream.take().text, _parameters(stream)
    directives = []
    while stream.peek().text != "{":
        key, numbers = stream.take().text, [stream.integer()]
        while stream.accept(","):
            numbers.append(stream.integer())
        directives.append((key, tuple(numbers)))
    body = BodyParser(stream, variable)
    body.parse()
    return Entry(
        name,
        linkage,
        parameters,
        tuple(directives),
        tuple(body.registers),
        tuple(body.variables),
        tuple(body.items),
    )


def _parameter(stream: Stream) -> Parameter:
    """`.param .u64 .ptr .global .align 1 name`."""
    stream.expect(".param")
    words = []
    while stream.peek().kind in ("directive", "number"):
        words.append(stream.take().text)
    types = [w for w in words if w[1:2] in "busf" and w[2:].isdigit()]
    name, count = stream.take().text, 0
    if stream.accept("["):
        count = stream.integer()
        stream.expect("]")
    return Parameter(types[0], name, tuple(w for w in words if w != types[0]), count)
