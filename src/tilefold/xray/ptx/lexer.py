"""Text to tokens, each with its line."""

from __future__ import annotations

import re
from typing import NamedTuple

from tilefold.errors import PtxError

# The order matters: a float's bits before an integer, an opcode with its modifiers before a bare name.
_TOKEN = re.compile(
    r"""
      (?P<space>[ \t\r]+)
    | (?P<newline>\n)
    | (?P<comment>//[^\n]*|/\*.*?\*/)
    | (?P<string>"(?:[^"\\\n]|\\.)*")
    | (?P<float>0[fF][0-9a-fA-F]{8}|0[dD][0-9a-fA-F]{16})
    | (?P<decimal>(?:\d+\.\d*|\.\d+)(?:[eE][+-]?\d+)?|\d+[eE][+-]?\d+)
    | (?P<number>0[xX][0-9a-fA-F]+U?|\d+U?)
    | (?P<word>%?[A-Za-z_$][\w$]*(?:(?:\.|::)[\w$]+)*|%[\w$]+)
    | (?P<directive>\.[A-Za-z_]\w*(?:::\w+)*)
    | (?P<mark>[{}()\[\],;:@!|+=<>-])
    """,
    re.VERBOSE | re.DOTALL,
)


class Token(NamedTuple):
    """A piece of text: `kind` names the group of the grammar above."""

    kind: str
    text: str
    line: int


def tokens_of(text: str) -> list[Token]:
    """All tokens of a PTX text but spaces and comments."""
    found: list[Token] = []
    line, position = 1, 0
    for match in _TOKEN.finditer(text):
        if match.start() != position:
            break
        position, kind = match.end(), match.lastgroup or ""
        if kind == "newline":
            line += 1
        elif kind == "comment":
            line += match[0].count("\n")
        elif kind != "space":
            found.append(Token(kind, match[0], line))
    if position < len(text):
        raise PtxError(f"parse: PTX must be made of known tokens, got {text[position]!r} in line {line}")
    return found
