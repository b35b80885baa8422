"""Bounds on a pickle that torch admits, which may make much of little. Its opcodes are followed, nothing is called.

Of the functions that `weights_only` calls, two make any amount of memory out of a few bytes: `bytearray` of a number, and
`_codecs.encode` by a codec that does not spell bytes, or of one text again and again. Python's own pickles of bytes
and bytearrays is neither. Texts are data: a key may be named like any codec or module.
"""

from __future__ import annotations

import io
import pickletools
from typing import Any

from tilefold.errors import FileError

_NAMES = (b"bytearray", b"_codecs")  # a pickle that calls neither function holds neither
_BYTEARRAY = ("builtins bytearray", "__builtin__ bytearray")
_ENCODE = ("_codecs encode",)
_CODECS = ("latin1", "latin-1")  # the codecs by which Python pickles bytes
_PUSHED = object()  # a value that does not matter


def check_pickles(content: Any, count: int = 1) -> None:
    """Refuse calls that make much of little in the first pickles of `content`, bytes or a map of a file.

    Raises:
        FileError: a pickle calls `bytearray` or `_codecs.encode` otherwise than bytes are pickled.
    """
    if not any(content.find(name) >= 0 for name in _NAMES):
        return
    file = io.BytesIO(content) if isinstance(content, bytes) else content
    for _ in range(count):
        walk = _Walk(len(content))
        for opcode, argument, _ in pickletools.genops(file):
            if opcode.name not in _KNOWN:
                return  # torch reads no further either
            walk.step(opcode.name, argument)


class _Call:
    """A function of a pickle's, by its name."""

    def __init__(self, name: str) -> None:
        self.name = name


class _Walk:
    """The stack of an unpickler, as far as calls depend on it."""

    def __init__(self, size: int) -> None:
        self._stack: list[Any] = []
        self._marks: list[list[Any]] = []
        self._memo: dict[int, Any] = {}
        self._left = size  # letters that may still be encoded: every text once

    def step(self, name: str, argument: Any) -> None:
        """Follow one opcode."""
        stack = self._stack
        if name == "GLOBAL":
            stack.append(_Call(argument))
        elif name in ("BINUNICODE", "SHORT_BINSTRING"):
            stack.append(argument)
        elif name == "MARK":
            self._marks.append(stack)
            self._stack = []
        elif name in ("TUPLE", "APPENDS", "SETITEMS"):
            self._stack = self._marks.pop()
            if name == "TUPLE":
                self._stack.append(tuple(stack))
        elif name in _TUPLES:
            stack[len(stack) - _TUPLES[name] :] = [tuple(stack[len(stack) - _TUPLES[name] :])]
        elif name in _TAKES:
            del stack[len(stack) - _TAKES[name] :]
        elif name in ("BINPUT", "LONG_BINPUT"):
            self._memo[argument] = stack[-1]
        elif name in ("BINGET", "LONG_BINGET"):
            stack.append(self._memo[argument])
        elif name in ("REDUCE", "NEWOBJ"):
            arguments, function = stack.pop(), stack.pop()
            stack.append(self._called(function, arguments))
        elif name == "BINPERSID":
            stack[-1] = _PUSHED
        elif name not in ("PROTO", "STOP"):
            stack.append(_PUSHED)

    def _called(self, function: Any, arguments: Any) -> Any:
        if not isinstance(function, _Call) or function.name not in (*_BYTEARRAY, *_ENCODE):
            return _PUSHED
        given = arguments if isinstance(arguments, tuple) else (_PUSHED,)
        text = given[0] if given else b""
        spelled = len(given) == 2 and isinstance(text, str) and given[1] in _CODECS
        as_bytes = function.name in _BYTEARRAY and len(given) < 2 and isinstance(text, bytes)
        self._left -= len(text) if spelled or as_bytes else 0
        if not (spelled or as_bytes) or self._left < 0:
            raise FileError(
                "the file must hold tensors and plain containers only, got a bytearray or a codec; save its tensors alone"
            )
        return text.encode("latin-1", "replace") if isinstance(text, str) else text


_TUPLES = {"EMPTY_TUPLE": 0, "TUPLE1": 1, "TUPLE2": 2, "TUPLE3": 3}
_TAKES = {"APPEND": 1, "BUILD": 1, "SETITEM": 2}
# What torch's own reader knows; anything else it refuses.
_KNOWN = {
    "GLOBAL", "NEWOBJ", "REDUCE", "BUILD", "APPEND", "APPENDS", "SETITEM", "SETITEMS", "MARK", "TUPLE", *_TUPLES, "NONE",
    "NEWFALSE", "NEWTRUE", "EMPTY_LIST", "EMPTY_DICT", "EMPTY_SET", "BININT", "BININT1", "BININT2", "BINFLOAT", "BINUNICODE",
    "SHORT_BINSTRING", "BINPERSID", "BINGET", "LONG_BINGET", "BINPUT", "LONG_BINPUT", "LONG1", "PROTO", "STOP",
}  # fmt: skip
