"""The values TTIR and TTGIR are read into. Frozen; types and attributes stay text until somebody asks."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from tilefold.xray.reach import reached

Place = tuple[
    tuple[str, int], ...
]  # (file, line) of an operation, then of the call it was inlined at, and so on


MASKS = {"tt.load": 1, "tt.store": 2, "tt.atomic_rmw": 2}  # which operand of an access is its mask


@dataclass(frozen=True)
class Tensor:
    """`tensor<64x16xf32, #blocked>`: `element` is text, `encoding` an alias or the layout itself ("" in TTIR)."""

    shape: tuple[int, ...]
    element: str
    encoding: str = ""

    @property
    def elements(self) -> int:
        """How many elements the tile has."""
        return math.prod(self.shape)

    @property
    def pointee(self) -> str:
        """The element type, through a pointer where it is one."""
        return self.element.removeprefix("!tt.ptr<").split(",")[0].rstrip(">")


@dataclass(frozen=True, eq=False)
class Block:
    """Operations one after the other, and the names that stand for what enters them."""

    arguments: tuple[str, ...]
    operations: tuple[Operation, ...]


@dataclass(frozen=True, eq=False)
class Operation:
    """One operation. `attributes` is the text between name and types; `types` the text behind the colon; `row` counts
    the lines of the text from 0.

    A result of several is named `%x#0`, `%x#1`; a single one `%x`. `carried` are the first values of a loop's own
    variables: the operands behind its bounds.
    """

    name: str
    results: tuple[str, ...]
    operands: tuple[str, ...]
    attributes: str
    types: str
    place: Place
    row: int
    blocks: tuple[Block, ...] = ()
    carried: tuple[str, ...] = ()

    @property
    def axis(self) -> int:
        """The dim that a reduction or a scan folds, or that `tt.expand_dims` puts in."""
        return int(self.attributes.split("axis = ")[1].split()[0].strip(",:"))

    def walk(self) -> Iterator[Operation]:
        """This operation, then those inside it."""
        yield self
        for block in self.blocks:
            for operation in block.operations:
                yield from operation.walk()


@dataclass(frozen=True, eq=False)
class Function:
    """A kernel: its operations, and the attributes (layouts) that its text abbreviates."""

    name: str
    parameters: tuple[str, ...]
    body: tuple[Operation, ...]
    aliases: dict[str, str]

    def layout(self, tile: Tensor) -> str:
        """The text of a tile's layout, an abbreviation of it written out."""
        return self.aliases.get(tile.encoding, tile.encoding)

    def walk(self) -> Iterator[Operation]:
        """All operations, in the order of the text."""
        for operation in self.body:
            yield from operation.walk()

    def made_by(self) -> dict[str, Operation]:
        """The operation that made each value."""
        return {result: o for o in self.walk() for result in o.results}

    def reached_from(self, names: Iterable[str]) -> set[str]:
        """Everything that these values are computed from, loops' variables through all of their rounds."""
        sources: dict[str, tuple[str, ...]] = {}
        for operation in self.walk():
            sources.update(dict.fromkeys(operation.results, operation.operands))
            sources.update(_handed(operation))
        return {*reached(names, lambda name: sources.get(name, ()))}


def _handed(operation: Operation) -> dict[str, tuple[str, ...]]:
    """The sources of the results and of the own variables of an operation with regions."""
    yielded = [
        inner.operands
        for block in operation.blocks
        for inner in block.operations
        if inner.name in ("scf.yield", "scf.condition")
    ]
    if operation.name != "scf.for" or not yielded:
        every = (*operation.operands, *operation.carried, *(v for values in yielded for v in values))
        own = [a for block in operation.blocks for a in block.arguments]
        return dict.fromkeys([*operation.results, *own], every) if operation.blocks else {}
    counter, *carried = operation.blocks[0].arguments
    pairs = list(zip(operation.carried, yielded[0], strict=False))
    return {
        counter: operation.operands[:3],
        **dict(zip(carried, pairs, strict=False)),
        **dict(zip(operation.results, pairs, strict=False)),
    }
