"""Text to tokens, each with its line."""

from __future__ import annotations

import re
from dataclasses import dataclass

from tilefold.errors import PtxError

# The order matters: a float's bits before an integer, an opcode with its modifiers before a bare name.
_TOKEN = re.compile(
    r"""
      (?P<space>[ \t\r]+)
    | (?P<newline>\n)
    | (?P<inline>//[ ]*(?:begin|end)[ ]inline[ ]asm[^\n]*)
    | (?P<comment>//[^\n]*|/\*.*?\*/)
    | (?P<string>"[^"\n]*")
    | (?P<float>0[fF][0-9a-fA-F]{8}|0[dD][0-9a-fA-F]{16})
    | (?P<number>0[xX][0-9a-fA-F]+U?|\d+\.\d+|\d+U?)
    | (?P<word>%?[A-Za-z_$][\w$]*(?:(?:\.|::)[\w$]+)*|%[\w$]+)
    | (?P<directive>\.[A-Za-z_]\w*(?:::\w+)*)
    | (?P<mark>[{}()\[\],;:@!|+=<>-])
    """,
    re.VERBOSE | re.DOTALL,
)


@dataclass(frozen=True)
class Token:
    """A piece of text: `kind` names the group of the grammar above."""

    kind: str
    text: str
    line: int


def tokens_of(text: str) -> list[Token]:
    """All tokens of a PTX text but spaces and comments; the comments around inline assembly stay."""
    found: list[Token] = []
    line, position = 1, 0
    while position < len(text):
        match = _TOKEN.match(text, position)
        if match is None:
            raise PtxError(f"parse: PTX must be made of known tokens, got {text[position]!r} in line {line}")
        kind = match.lastgroup or ""
        if kind not in ("space", "newline", "comment"):
            found.append(Token(kind, match[0], line))
        line += match[0].count("\n")
        position = match.end()
    return found
