"""A list of tokens read from the left, with the errors that name a line."""

from __future__ import annotations

from tilefold.errors import PtxError
from tilefold.xray.ptx.lexer import Token


class Stream:
    """Tokens and a place among them."""

    def __init__(self, tokens: list[Token]) -> None:
        self._tokens = tokens
        self._next = 0

    @property
    def ended(self) -> bool:
        """Whether no token is left."""
        return self._next >= len(self._tokens)

    @property
    def line(self) -> int:
        """The line of the next token."""
        return self.peek().line

    def peek(self, ahead: int = 0) -> Token:
        """The next token, left where it is."""
        if self._next + ahead >= len(self._tokens):
            last = self._tokens[-1].line if self._tokens else 0
            raise PtxError(f"parse: PTX must be whole, got its end after line {last}")
        return self._tokens[self._next + ahead]

    def take(self) -> Token:
        """The next token, and on."""
        token = self.peek()
        self._next += 1
        return token

    def skip(self) -> Stream:
        """Past one token."""
        self.take()
        return self

    def accept(self, text: str) -> bool:
        """Past the next token if it reads so."""
        if self._next >= len(self._tokens) or self._tokens[self._next].text != text:
            return False
        self._next += 1
        return True

    def expect(self, text: str) -> None:
        """Past the next token, which must read so."""
        token = self.take()
        if token.text != text:
            raise PtxError(f"parse: {text!r} must stand here, got {token.text!r} in line {token.line}")

    def integer(self) -> int:
        """A whole number, maybe negative."""
        sign = -1 if self.accept("-") else 1
        token = self.take()
        if token.kind != "number":
            raise PtxError(f"parse: a whole number must stand here, got {token.text!r} in line {token.line}")
        return sign * int(token.text.rstrip("U"), 0)

    def pass_block(self) -> None:
        """Past `{ ... }`, whatever is inside."""
        self.expect("{")
        depth = 1
        while depth:
            text = self.take().text
            depth += (text == "{") - (text == "}")
