"""The value of one element of a tile, computed from TTIR: what a masked lane would hold, and what others might."""

from __future__ import annotations

import re
import struct
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from tilefold.xray.ir.syntax import Block, Operation

# Operations that move elements about: an element of the result is an element of the operand.
MOVES = (
    "tt.splat",
    "tt.broadcast",
    "tt.expand_dims",
    "tt.reshape",
    "tt.trans",
    "ttg.convert_layout",
    "tt.bitcast",
)
_FLOAT = {"f64": np.float64, "f32": np.float32, "f16": np.float16, "bf16": np.float32}
_LITERAL = re.compile(r"^(?:dense<)?([^>\s]+)>?")

_BINARY: dict[str, Callable[[Any, Any], Any]] = {
    "arith.addf": np.add, "arith.subf": np.subtract, "arith.mulf": np.multiply, "arith.divf": np.divide,
    "arith.maxnumf": np.fmax, "arith.minnumf": np.fmin, "arith.maximumf": np.maximum, "arith.minimumf": np.minimum,
    "arith.addi": np.add, "arith.subi": np.subtract, "arith.muli": np.multiply,
    "arith.maxsi": np.maximum, "arith.minsi": np.minimum, "arith.maxui": np.maximum, "arith.minui": np.minimum,
    "arith.andi": np.bitwise_and, "arith.ori": np.bitwise_or, "arith.xori": np.bitwise_xor,
}  # fmt: skip
_UNARY: dict[str, Callable[[Any], Any]] = {
    "arith.negf": np.negative, "math.exp": np.exp, "math.exp2": np.exp2, "math.log": np.log, "math.log2": np.log2,
    "math.sqrt": np.sqrt, "math.absf": np.abs, "math.absi": np.abs, "math.sin": np.sin, "math.cos": np.cos,
    "math.floor": np.floor, "math.ceil": np.ceil, "arith.extf": np.float64, "arith.truncf": np.float64,
    "arith.sitofp": np.float64, "arith.uitofp": np.float64, "tt.fp_to_fp": np.float64,
    "arith.extsi": np.int64, "arith.extui": np.int64, "arith.trunci": np.int64, "arith.fptosi": np.int64,
}  # fmt: skip
_COMPARE: dict[str, Callable[[Any, Any], Any]] = {
    "eq": np.equal, "ne": np.not_equal, "lt": np.less, "le": np.less_equal, "gt": np.greater, "ge": np.greater_equal,
}  # fmt: skip


class UnknownError(Exception):
    """An operation that has no meaning here: nothing can be said of the value."""


class Element:
    """One element of every tensor, consistent with one draw of what cannot be known.

    `fixed` gives values that are assumed: a mask false, a loop's variable. Loads, arguments, results of reductions and
    the like are drawn at random, the same for the same `seed`, whatever is assumed.
    """

    def __init__(
        self, made: Mapping[str, Operation], fixed: Mapping[str, Any], seed: int, masked_by: str | None = None
    ) -> None:
        self._made, self._seed, self._masked_by = made, seed, masked_by
        self._known: dict[str, Any] = dict(fixed)

    def value(self, name: str) -> Any:
        """The element's value.

        Raises:
            UnknownError: an operation on the way is not known.
        """
        if name not in self._known:
            operation = self._made.get(name)
            self._known[name] = self._draw(name, "i32") if operation is None else self._compute(name, operation)
        return self._known[name]

    def drawn_like(self, name: str) -> Any:
        """A number of the type of a value, whatever that is."""
        operation = self._made.get(name)
        return self._draw(name, "i32" if operation is None else operation.types)

    def _compute(self, name: str, operation: Operation) -> Any:
        kind, operands = operation.name, operation.operands
        if kind == "arith.constant":
            return literal(operation)
        if kind in MOVES:
            return self.value(operands[0])
        if kind == "tt.load":
            if self._masked_by is not None and len(operands) > 1 and operands[1] == self._masked_by:
                # Without a value to fill in, what a masked lane holds is undefined: anything.
                return (
                    self.value(operands[2]) if len(operands) > 2 else self._draw(name + "?", operation.types)
                )
            return self._draw(name, operation.types)
        if not is_elementwise(operation):
            return self._draw(name, operation.types)
        return apply(operation, [self.value(v) for v in operands])

    def _draw(self, name: str, types: str) -> Any:
        """A number of the value's type that nothing else has."""
        random = np.random.default_rng([self._seed, *name.encode()])
        types = types.split("->")[-1]
        if re.search(r"\bi1\b|xi1\b", types):
            return bool(random.integers(2))
        if re.search(r"\bf\d+|xf\d+|bf16", types):
            return float(random.normal())
        return int(random.integers(-1000, 1000))


def is_elementwise(operation: Operation) -> bool:
    """Whether the operation computes an element from elements at the same place."""
    return operation.name in _BINARY or operation.name in _UNARY or operation.name in (
        "arith.cmpf", "arith.cmpi", "arith.select", *MOVES
    )  # fmt: skip


def apply(operation: Operation, values: list[Any]) -> Any:
    """The result of an elementwise operation.

    Raises:
        UnknownError: it is not known.
    """
    kind = operation.name
    with np.errstate(all="ignore"):
        if kind in _BINARY:
            return _BINARY[kind](values[0], values[1])
        if kind in _UNARY:
            return _UNARY[kind](values[0])
        if kind == "arith.select":
            return values[1] if values[0] else values[2]
        if kind in ("arith.cmpf", "arith.cmpi"):
            how = operation.attributes.split(",")[0].strip()
            if how in ("uno", "ord"):
                return bool(np.isnan(values[0]) or np.isnan(values[1])) == (how == "uno")
            return bool(_COMPARE[how[-2:]](values[0], values[1]))
    raise UnknownError(kind)


def literal(operation: Operation) -> Any:
    """A constant's value; floats may be given by their bits.

    Raises:
        UnknownError: it is no number.
    """
    found = _LITERAL.match(operation.attributes)
    text = found[1] if found else ""
    if text in ("true", "false"):
        return text == "true"
    element = re.search(r"(bf16|f\d+|i\d+)", operation.types)
    if text.startswith("0x") and element is not None and element[1] in _FLOAT:
        return _float_of_bits(int(text, 16), element[1])
    try:
        return float(text) if any(c in text for c in ".eE") else int(text, 0)
    except ValueError:
        raise UnknownError(text) from None


def _float_of_bits(bits: int, element: str) -> float:
    if element == "bf16":
        return float(struct.unpack("<f", struct.pack("<I", bits << 16))[0])
    size = {"f64": 8, "f32": 4, "f16": 2}[element]
    return float(np.frombuffer(bits.to_bytes(size, "little"), _FLOAT[element])[0])


def combine(region: Block, left: list[Any], right: list[Any]) -> list[Any]:
    """What a reduction's own function makes of two states.

    Raises:
        UnknownError: it holds an operation that is not known.
    """
    known = dict(zip(region.arguments, [*left, *right], strict=True))
    made = {r: o for o in region.operations for r in o.results}
    inside = Element(made, known, 0)
    last = region.operations[-1]
    for operation in region.operations[:-1]:
        if not is_elementwise(operation) and operation.name != "arith.constant":
            raise UnknownError(operation.name)
    return [inside.value(v) for v in last.operands]
