"""Typed graphs as lines of Triton: text made of a fixed vocabulary, never of a user's names.

Booleans are kept as 32-bit words (0 or 1) in states and through & | ^, and as masks after comparisons.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch

from tilefold.algebra.columns import Op
from tilefold.algebra.dtypes import is_float
from tilefold.algebra.expression import Node
from tilefold.algebra.numbers import Number
from tilefold.algebra.operations import OPS
from tilefold.algebra.typing import TypedGraph
from tilefold.backends.triton import axes, words
from tilefold.backends.triton.prelude import block_function
from tilefold.backends.triton.words import STORED_DTYPES, TL_DTYPES, converted, literal

TILE = "@"  # in the name of a value that each tile has of its own


class Writer:
    """Writes one device function's body, a line a node.

    With `tiles` a block is so many whole tiles, elements of all threads, of which those that `masks` names count only under
    their masks: a line that names `TILE` is written for each. With `lanes` the block is each thread's own: an element a tile;
    `across`: it is those of all threads of a row, [rows, threads], and what it folds to is [rows].
    """

    def __init__(
        self,
        typed: TypedGraph,
        inputs: Sequence[str],
        block_inputs: Sequence[bool],
        interpret: bool,
        masked: bool = False,
        tiles: int = 0,
        masks: Sequence[int] = (),
        lanes: bool = False,
        across: bool = False,
    ) -> None:
        self.typed, self.interpret, self.tiles, self.masks_of = typed, interpret, tiles, masks
        self.lanes, self.across = lanes, across
        self.masked = masked or bool(masks)
        self.lines: list[str] = []
        self.names: list[str] = []
        self.masks: list[bool] = []
        self.blocks: list[bool] = []
        # Constants and counts known at compile time, and what is computed of those alone.
        self.numbers: list[bool] = []
        for position, node in enumerate(typed.graph.nodes):
            if node.op == "input":
                self._keep(inputs[node.value], mask=False, block=block_inputs[node.value], number=False)
            elif node.op == "const":
                self._keep("", mask=False, block=False, number=True)
            else:
                self._write(position, node)

    def _keep(self, name: str, *, mask: bool, block: bool, number: bool) -> None:
        self.names.append(name)
        self.masks.append(mask)
        self.blocks.append(block)
        self.numbers.append(number)

    def _is_literal(self, position: int) -> bool:
        """Whether a node's text is a number and not a value of Triton's."""
        op = self.typed.graph.nodes[position].op
        return op == "const" or (op == "block_count" and not self.masked)

    def _spread(self, position: int, block: bool) -> str:
        """A node's name; with the block's two axes more if it is combined with a block and is none."""
        spread = block and not self.blocks[position] and not self.numbers[position]
        return f"{self.names[position]}{self._beside}" if spread else self.names[position]

    @property
    def _beside(self) -> str:
        """How what a block folds to stands beside it."""
        if self.lanes:
            return "[:, None]" if self.across else ""
        return axes.SPREAD_WHOLE if self.tiles else axes.SPREAD

    def _operand(self, position: int, dtype: torch.dtype, block: bool = False) -> str:
        """The text of a node's value converted to `dtype` (bool: a word), spread over the block if asked."""
        node = self.typed.graph.nodes[position]
        if node.op == "const":
            return literal(node.value, dtype)
        text = self.names[position]
        if self._is_literal(position):
            return text
        text = self._spread(position, block)
        source = self.typed.dtypes[position]
        if source == dtype and not self.masks[position]:
            return text
        return converted(text, source, dtype, stored=False, interpret=self.interpret)

    def _mask(self, position: int, block: bool = False) -> str:
        """The text of a node's truth."""
        node = self.typed.graph.nodes[position]
        if node.op == "const":
            return repr(bool(node.value))
        text = self._spread(position, block)
        return text if self.masks[position] else f"({text} != 0)"

    def _write(self, position: int, node: Node) -> None:
        dtype, operand = self.typed.dtypes[position], self.typed.operand_dtypes[position]
        over_block = any(self.blocks[a] for a in node.args) and not node.op.startswith("block_")
        text, mask = self._expression(node, dtype, operand, over_block)
        name = f"v{position}{TILE if self.tiles and over_block else ''}"
        self.lines += for_tiles(f"{name} = {text}", self.tiles)
        number = self._is_literal(position) or all(self.numbers[a] for a in node.args)
        self._keep(name, mask=mask, block=over_block, number=number)

    def _expression(
        self, node: Node, dtype: torch.dtype, operand: torch.dtype, block: bool
    ) -> tuple[str, bool]:
        """(source text, whether it is a mask)."""
        row = OPS[node.op]
        if row.kind == "select":
            return self._select(row, node, operand, block), False
        if row.kind == "cast":
            return self._cast(node.args[0], operand, dtype)
        if row.kind == "bitwise" and operand == torch.bool:
            masks = self._of_masks(row, node, block)
            if masks is not None:
                return masks, True
        values = [self._operand(p, operand, block) for p in node.args]
        if row.kind == "block":
            return self._block(row, self._with_a_value(node, values, operand)[0], operand), False
        return self._computed(row, node, values, operand), row.kind in ("compare", "test")

    def _select(self, row: Op, node: Node, operand: torch.dtype, block: bool) -> str:
        condition = self._mask(node.args[0], block)
        a, b = (self._operand(p, operand, block) for p in node.args[1:])
        if all(self._is_literal(p) for p in node.args[1:]):
            a = f"tl.full([], {a}, {TL_DTYPES[operand]})"
        return self._text(row, [condition, a, b], operand)

    def _of_masks(self, row: Op, node: Node, block: bool) -> str | None:
        """Logic of masks; None where an operand is a word."""
        if row.name == "invert":
            return f"({self._mask(node.args[0], block)} == 0)"
        if all(self.masks[p] or self.typed.graph.nodes[p].op == "const" for p in node.args):
            return self._text(row, [self._mask(p, block) for p in node.args], torch.bool)
        return None

    def _cast(self, position: int, source: torch.dtype, dtype: torch.dtype) -> tuple[str, bool]:
        text = self._operand(position, source if dtype == torch.bool else dtype)
        if self._is_literal(position):
            text = f"tl.full([], {text}, {TL_DTYPES[source if dtype == torch.bool else dtype]})"
        return (f"({text} != 0)", True) if dtype == torch.bool else (text, False)

    def _block(self, row: Op, x: str, operand: torch.dtype) -> str:
        if self.tiles:
            return self._of_tiles(row, x, operand)
        if row.name == "block_count":
            return "BLOCK_COUNT(mask)" if self.masked else f"({x}.shape[0] * {x}.shape[{axes.UNROLL}])"
        if row.name == "block_first" and self.masked:
            return f"BLOCK_FIRST_OF(mask, {x})"
        if self.masked:
            x = f"tl.where(mask, {x}, {words.absent(row, operand)})"
        combine = block_function(row, operand)
        return f"tl.reduce(tl.reduce({x}, 0, {combine}), {axes.UNROLL_OF_RUNS}, {combine})"

    def _of_lanes(self, row: Op, x: str, operand: torch.dtype) -> str:
        """A block operation over each thread's own elements."""
        if row.name == "block_count":
            return "counted" if self.masked else str(self.tiles)
        texts = [x.replace(TILE, f"_{t}") for t in range(self.tiles)]
        if row.name == "block_first":
            first = texts.pop()
            for t in range(self.tiles - 2, -1, -1):
                first = f"tl.where(mask_{t}, {texts[t]}, {first})" if t in self.masks_of else texts[t]
            return f"FIRST_OF_ROW({first})" if self.across else first
        combine = block_function(row, operand)
        for t in self.masks_of:
            texts[t] = f"tl.where(mask_{t}, {texts[t]}, {words.absent(row, operand)})"
        while len(texts) > 1:
            pairs = zip(texts[::2], texts[1::2], strict=False)
            texts = [f"{combine}({a}, {b})" for a, b in pairs] + texts[len(texts) & ~1 :]
        return f"tl.reduce({texts[0]}, 1, {combine})" if self.across else texts[0]

    def _of_tiles(self, row: Op, x: str, operand: torch.dtype) -> str:
        """A block operation over all elements of the tiles."""
        if self.lanes:
            return self._of_lanes(row, x, operand)
        if row.name == "block_count":
            shape = f"{x.replace(TILE, '_0')}.shape"
            every = " * ".join([str(self.tiles), f"{shape}[0]", f"{shape}[1]", f"{shape}[3]"])
            return "counted" if self.masked else f"({every})"
        if row.name == "block_first":
            first = x.replace(TILE, "_0")
            return f"WHOLE_FIRST_OF(mask_0, {first})" if 0 in self.masks_of else f"WHOLE_FIRST({first})"
        combine = block_function(row, operand)
        nothing = words.absent(row, operand)
        texts = [x.replace(TILE, f"_{t}") for t in range(self.tiles)]
        for t in self.masks_of:
            texts[t] = f"tl.where(mask_{t}, {texts[t]}, {nothing})"
        whole, *others = texts
        for other in others:
            whole = f"{combine}({whole}, {other})"
        return f"WHOLE_{combine}({whole})"

    def _computed(self, row: Op, node: Node, values: list[str], operand: torch.dtype) -> str:
        """An operation of every element."""
        assert row.triton is not None
        fills, numbers = row.triton.fills, [self._number(p) for p in node.args]
        if fills == "float64" and operand == torch.float64:
            values = self._filled(node, values, operand)
        else:
            values = self._with_a_value(node, values, operand)
        if row.name == "truediv" and operand == torch.float32 and values[0] == "1.0" and not self.interpret:
            return f"RECIPROCAL({values[1]})"
        if row.name == "pow" and numbers[1] in (0.5, -0.5):
            return self._text(OPS["sqrt" if numbers[1] == 0.5 else "rsqrt"], values[:1], operand)
        short = words.shortened(row.name, values, numbers, operand)
        if short is not None:
            return short
        if fills == "all":
            values = self._filled(node, values, operand)
        elif fills == "shape":
            values = self._spread_alike(values, numbers, operand)
        return self._text(row, values, operand)

    def _text(self, row: Op, values: Sequence[str], operand: torch.dtype) -> str:
        return words.text_of(row, values, operand, interpret=self.interpret)

    def _number(self, position: int) -> Number | None:
        node = self.typed.graph.nodes[position]
        return node.value if node.op == "const" else None

    def _with_a_value(self, node: Node, values: list[str], dtype: torch.dtype) -> list[str]:
        """The operands, the first of them a value of Triton's where all are numbers."""
        if not all(self._is_literal(p) for p in node.args):
            return values
        return [f"tl.full([], {values[0]}, {TL_DTYPES[dtype]})", *values[1:]]

    def _filled(self, node: Node, values: Sequence[str], dtype: torch.dtype) -> list[str]:
        """The operands as values of Triton's, numbers too."""
        places = zip(values, node.args, strict=True)
        return [f"tl.full([], {v}, {TL_DTYPES[dtype]})" if self._is_literal(p) else v for v, p in places]

    def _spread_alike(
        self, values: Sequence[str], numbers: Sequence[Number | None], dtype: torch.dtype
    ) -> list[str]:
        """Two operands, a number among them over the shape of the other."""
        a, b = values
        if numbers[1] is not None:
            return [a, f"tl.full({a}.shape, {b}, {TL_DTYPES[dtype]})"]
        return [f"tl.full({b}.shape, {a}, {TL_DTYPES[dtype]})" if numbers[0] is not None else a, b]

    def results(self, dtypes: Sequence[torch.dtype], stored: bool, like: str) -> list[str]:
        """The outputs converted to `dtypes`; constants are spread over the shape of `like`."""
        texts = []
        for position, dtype in zip(self.typed.graph.outputs, dtypes, strict=True):
            target = (STORED_DTYPES if stored else TL_DTYPES)[dtype]
            node = self.typed.graph.nodes[position]
            if self._is_literal(position):
                texts.append(self._spread_number(node, position, dtype, target, like))
            elif self.numbers[position]:
                value = self._mask(position) if dtype == torch.bool else self.names[position]
                texts.append(f"tl.full({like}.shape, {value}.to({target}), {target})")
            elif dtype == torch.bool:
                texts.append(f"{self._mask(position)}.to({target})")
            elif self.typed.dtypes[position] == dtype and not self.masks[position]:
                texts.append(self.names[position])
            else:
                source = self.typed.dtypes[position]
                texts.append(
                    converted(self.names[position], source, dtype, stored=stored, interpret=self.interpret)
                )
        return texts

    def _spread_number(self, node: Node, position: int, dtype: torch.dtype, target: str, like: str) -> str:
        """A number over the shape of `like`; Triton has none of 8 bits, and its interpreter none of bfloat16."""
        narrow = is_float(dtype) and dtype.itemsize < 4
        value = (
            literal(node.value, torch.float32 if narrow else dtype)
            if node.op == "const"
            else self.names[position]
        )
        if narrow:
            return f"convert(tl.full({like}.shape, {value}, tl.float32), {target})"
        return f"tl.full({like}.shape, {value}, {target})"


def for_tiles(line: str, tiles: int) -> list[str]:
    """A line for each tile, if it names a value that each tile has of its own."""
    return [line.replace(TILE, f"_{t}") for t in range(tiles)] if TILE in line else [line]
