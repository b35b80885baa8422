"""Values named once: a region's names are its own, and MLIR gives the same ones again to the next region."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import replace

from tilefold.xray.ir.syntax import Block, Operation

_MARK = "'"  # stands in no name that MLIR prints


def spelled(name: str) -> str:
    """A value's name as the text has it."""
    return name.partition(_MARK)[0]


def named_once(operations: tuple[Operation, ...], arguments: tuple[str, ...]) -> tuple[Operation, ...]:
    """The same operations, in which every name stands for one value: of a name's second value on, with a mark and a number.

    `arguments` are the names that enter from outside.
    """
    return _Scopes(arguments).block(operations, dict.fromkeys(arguments, ""))


class _Scopes:
    """Walks the text; `seen` counts the values that a name stood for so far."""

    def __init__(self, arguments: tuple[str, ...]) -> None:
        self._seen = Counter(arguments)

    def block(self, operations: tuple[Operation, ...], visible: Mapping[str, str]) -> tuple[Operation, ...]:
        """Operations of one region, under names that are visible there: each with its mark."""
        known = dict(visible)
        return tuple([self._operation(operation, known) for operation in operations])

    def _operation(self, operation: Operation, known: dict[str, str]) -> Operation:
        blocks = tuple(self._inner(block, known) for block in operation.blocks)
        operands = tuple(name + known.get(name, "") for name in operation.operands)
        carried = tuple(name + known.get(name, "") for name in operation.carried)
        for name in operation.results:
            known[name] = self._mark(name)
        results = tuple(name + known[name] for name in operation.results)
        return replace(operation, operands=operands, carried=carried, results=results, blocks=blocks)

    def _inner(self, block: Block, known: Mapping[str, str]) -> Block:
        within = {**known, **{name: self._mark(name) for name in block.arguments}}
        arguments = tuple(name + within[name] for name in block.arguments)
        return Block(arguments, self.block(block.operations, within))

    def _mark(self, name: str) -> str:
        """What makes a new value's name its own."""
        self._seen[name] += 1
        return "" if self._seen[name] == 1 else f"{_MARK}{self._seen[name]}"
