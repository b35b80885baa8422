"""The text of a layout attribute as nested values: `#ttg.blocked<{sizePerThread = [1, 4], order = [1, 0]}>`."""

from __future__ import annotations

import re
from dataclasses import dataclass

_TOKEN = re.compile(r"\s*(#[\w.]+|[A-Za-z_]\w*|-?\d+|[\[\]{}<>=,:+])")


@dataclass(frozen=True)
class Attribute:
    """A layout's kind and its fields."""

    kind: str
    fields: dict[str, object]


def parse(text: str, aliases: dict[str, str]) -> Attribute:
    """Read an attribute; names without fields are looked up among the aliases."""
    return _Parser(_TOKEN.findall(text), aliases).attribute()


class _Parser:
    def __init__(self, tokens: list[str], aliases: dict[str, str]) -> None:
        self._tokens, self._at, self._aliases = tokens, 0, aliases

    def attribute(self) -> Attribute:
        name = self._take()
        if self._peek() != "<":
            return parse(self._aliases[name], self._aliases) if name in self._aliases else Attribute(name, {})
        self._take()
        fields = self._fields() if self._peek() == "{" else self._positional()
        self._take()  # ">"
        return Attribute(name, fields)

    def _fields(self) -> dict[str, object]:
        """`{a = 1, b = [2, 3]}`."""
        fields: dict[str, object] = {}
        self._take()
        while self._peek() != "}":
            key = self._take()
            self._take()  # "="
            fields[key] = self._value()
            if self._peek() == ",":
                self._take()
        self._take()
        return fields

    def _positional(self) -> dict[str, object]:
        """What other attributes hold between their brackets: kept as text."""
        depth = 1
        parts: list[str] = []
        while True:
            depth += (self._peek() == "<") - (self._peek() == ">")
            if not depth:
                return {"text": " ".join(parts)}
            parts.append(self._take())

    def _value(self) -> object:
        token = self._peek()
        if token.startswith("#"):
            return self.attribute()
        if token == "[":
            return self._list()
        if token == "{":
            return self._fields()
        self._take()
        if self._peek() == ":":  # `2 : i32`
            self._take()
            self._take()
        return int(token) if token.lstrip("-").isdigit() else token

    def _list(self) -> list[object]:
        items = []
        self._take()
        while self._peek() != "]":
            items.append(self._value())
            if self._peek() == ",":
                self._take()
        self._take()
        return items

    def _peek(self) -> str:
        return self._tokens[self._at] if self._at < len(self._tokens) else ">"

    def _take(self) -> str:
        token = self._peek()
        self._at += 1
        return token
