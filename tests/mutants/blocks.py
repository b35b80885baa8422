"""The blocks of a module's functions: statements that run together, but for what leaves one early.

A block is a function's body, a branch's, a loop's or a handler's, and what follows a compound statement, since that may have
left. `f` is the first of `f`'s, `f.2` the third; `C.f` is a method. Code of a module or class itself is in no block.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from dataclasses import dataclass

Function = ast.FunctionDef | ast.AsyncFunctionDef


@dataclass(frozen=True)
class Block:
    """`statements[begin:end]` run together."""

    function: str
    number: int
    statements: list[ast.stmt]
    begin: int
    end: int

    @property
    def name(self) -> str:
        return f"{self.function}.{self.number}" if self.number else self.function

    @property
    def lines(self) -> range:
        last = self.statements[self.end - 1]
        return range(self.statements[self.begin].lineno, (last.end_lineno or last.lineno) + 1)


def blocks(tree: ast.Module) -> list[Block]:
    """Those of every function, in the order of their lines; of one line's the innermost comes last."""
    found: list[Block] = []
    _of_classes(tree, "", found)
    return found


def block_at(found: list[Block], line: int) -> Block | None:
    """The innermost block that has a line."""
    return max(
        (b for b in found if line in b.lines), key=lambda b: (b.lines.start, -b.lines.stop), default=None
    )


def _of_classes(node: ast.AST, outer: str, found: list[Block]) -> None:
    for child in ast.iter_child_nodes(node):
        if isinstance(child, Function):
            _of_function(child, outer + child.name, found)
        else:
            _of_classes(child, f"{outer}{child.name}." if isinstance(child, ast.ClassDef) else outer, found)


def _of_function(function: Function, name: str, found: list[Block]) -> None:
    begin = int(ast.get_docstring(function, clean=False) is not None)
    for number, (statements, first, end) in enumerate(_parts(function.body, begin)):
        found.append(Block(name, number, statements, first, end))
    for child in function.body:
        _of_classes(ast.Module([child], []), f"{name}.", found)


def _parts(body: list[ast.stmt], begin: int = 0) -> Iterator[tuple[list[ast.stmt], int, int]]:
    """The blocks of a body, each before those within it."""
    while begin < len(body):
        compound = (i for i in range(begin, len(body)) if any(_bodies(body[i])))
        end = next(compound, len(body) - 1) + 1
        yield body, begin, end
        for inner in _bodies(body[end - 1]):
            yield from _parts(inner)
        begin = end


def _bodies(statement: ast.stmt) -> Iterator[list[ast.stmt]]:
    if isinstance(statement, Function | ast.ClassDef):
        return
    for field in ("body", "orelse", "finalbody"):
        if getattr(statement, field, None):
            yield getattr(statement, field)
    for part in (*getattr(statement, "handlers", ()), *getattr(statement, "cases", ())):
        yield part.body
