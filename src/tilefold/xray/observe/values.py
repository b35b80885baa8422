"""The value of one element of a tile, computed from TTIR: what a masked lane would hold, and what others might."""

from __future__ import annotations

import re
import struct
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from tilefold.xray.ir.programs import COMPARED
from tilefold.xray.ir.syntax import Block, Function, Operation

# Operations that move elements about: an element of the result is an element of the operand.
MOVES = (
    "tt.splat", "tt.broadcast", "tt.expand_dims", "tt.reshape", "tt.trans", "ttg.convert_layout", "tt.bitcast",
    "arith.bitcast",
)  # fmt: skip
_RECASTS = ("tt.bitcast", "arith.bitcast")
_FLOAT = {"f64": np.float64, "f32": np.float32, "f16": np.float16, "bf16": np.float32}
_RANGE = re.compile(r"end = (\d+) : i32, start = 0\b")
_LITERAL = re.compile(r"^(?:dense<)?([^>\s]+)>?")

_BINARY: dict[str, Callable[[Any, Any], Any]] = {
    "arith.addf": np.add, "arith.subf": np.subtract, "arith.mulf": np.multiply, "arith.divf": np.divide,
    "arith.maxnumf": np.fmax, "arith.minnumf": np.fmin, "arith.maximumf": np.maximum, "arith.minimumf": np.minimum,
    "arith.addi": np.add, "arith.subi": np.subtract, "arith.muli": np.multiply,
    "arith.maxsi": np.maximum, "arith.minsi": np.minimum, "arith.maxui": np.maximum, "arith.minui": np.minimum,
    "arith.divsi": lambda a, b: int(a / b) if b else 0, "arith.remsi": lambda a, b: int(np.fmod(a, b)) if b else 0,
    "arith.divui": lambda a, b: a // b if b else 0, "arith.remui": lambda a, b: a % b if b else 0,
    "arith.shli": lambda a, b: a << min(b, 63), "arith.shrsi": lambda a, b: a >> min(b, 63),
    "arith.andi": np.bitwise_and, "arith.ori": np.bitwise_or, "arith.xori": np.bitwise_xor,
}  # fmt: skip
_UNARY: dict[str, Callable[[Any], Any]] = {
    "arith.negf": np.negative, "math.exp": np.exp, "math.exp2": np.exp2, "math.log": np.log, "math.log2": np.log2,
    "math.sqrt": np.sqrt, "math.absf": np.abs, "math.absi": np.abs, "math.sin": np.sin, "math.cos": np.cos,
    "math.floor": np.floor, "math.ceil": np.ceil, "arith.extf": np.float64, "arith.truncf": np.float64,
    "arith.sitofp": np.float64, "arith.uitofp": np.float64, "tt.fp_to_fp": np.float64,
    "arith.extsi": np.int64, "arith.extui": np.int64, "arith.trunci": np.int64, "arith.fptosi": np.int64,
}  # fmt: skip


class UnknownError(Exception):
    """An operation that has no meaning here: nothing can be said of the value."""


class StoppedError(Exception):
    """More steps than are taken: nothing can be said."""


class World:
    """Choices of a draw for all elements alike: arguments, the program, how far its loops are, and all unknown values.

    `known` gives numbers by name, `grid` the programs. Positions and programs are drawn at their ends more often
    than between: that is where masks are false. After `steps` values computed it stops.
    """

    def __init__(
        self,
        function: Function,
        known: Mapping[str, int | float],
        grid: tuple[int, int, int],
        steps: int = 2_000_000,
    ) -> None:
        self.made, self.known, self.grid = function.made_by(), known, grid
        self.loops = {o.blocks[0].arguments[0]: o for o in function.walk() if o.name == "scf.for"}
        self._steps = steps
        self.through: frozenset[str] = (
            frozenset()
        )  # folds of one dim whose rows are taken to have one element

    def step(self) -> None:
        """Count one value.

        Raises:
            StoppedError: there were too many.
        """
        self._steps -= 1
        if self._steps < 0:
            raise StoppedError("elements of tiles were followed for too many steps")


class Element:
    """One element of every tensor of a world, at a place of its own.

    Loads, results of reductions, unknown arguments and the like are drawn from `seed`; the element's place in ranges from
    `place`: elements of one seed belong to the same program and iteration. `fixed` gives values that are assumed.
    """

    def __init__(self, world: World, seed: int, place: int, fixed: Mapping[str, Any] | None = None) -> None:
        self._world, self._seed, self._place = world, seed, place
        self._values: dict[str, Any] = {**world.known, **(fixed or {})}

    def value(self, name: str) -> Any:
        """The element's value.

        Raises:
            UnknownError: an operation on the way is not known.
            StoppedError: the world's steps are used up.
        """
        pending = [name]
        while pending:
            wanted = pending[-1]
            missing = () if wanted in self._values else self._missing(wanted)
            if missing:
                pending += missing
                continue
            pending.pop()
            if wanted not in self._values:
                self._world.step()
                operation = self._world.made.get(wanted)
                self._values[wanted] = (
                    self._leaf(wanted) if operation is None else self._compute(wanted, operation)
                )
        return self._values[name]

    def _missing(self, name: str) -> list[str]:
        """The values that must be known before a value can be computed."""
        operation, loop = self._world.made.get(name), self._world.loops.get(name)
        wanted: tuple[str, ...] = ()
        if operation is None:
            wanted = () if loop is None else loop.operands[:3]
        elif operation.name == "tt.load" and len(operation.operands) > 1:
            mask = operation.operands[1]
            masked = mask in self._values and not self._values[mask]
            wanted = operation.operands[2:3] if masked else (mask,)
        elif is_elementwise(operation) or name in self._world.through:
            wanted = operation.operands
        return [v for v in wanted if v not in self._values]

    def like(self, name: str) -> Any:
        """A number of the type of a value, whatever that is."""
        operation = self._world.made.get(name)
        return self._draw(f"{name}'", "i32" if operation is None else operation.types)

    def _leaf(self, name: str) -> Any:
        """A loop's counter, an argument, or a variable that a loop carries."""
        loop = self._world.loops.get(name)
        if loop is None:
            return self._draw(name, "i32")
        start, stop, step = (self._values[v] for v in loop.operands[:3])
        trips = max(1, -(-(stop - start) // max(step, 1)))
        return start + step * self._end(trips, name, self._seed)

    def _compute(self, name: str, operation: Operation) -> Any:
        kind, operands = operation.name, operation.operands
        if kind == "arith.constant":
            return literal(operation)
        if kind in _RECASTS:
            return recast(self._values[operands[0]], operation.types)
        if kind in MOVES or name in self._world.through:
            return self._values[operands[0]]
        if kind == "tt.make_range":
            found = _RANGE.search(operation.attributes)
            return self._end(int(found[1]), name, self._place) if found else self._draw(name, "i32")
        if kind in ("tt.get_program_id", "tt.get_num_programs"):
            size = self._world.grid["xyz".index(operation.attributes.strip()[0])]
            return size if kind == "tt.get_num_programs" else self._end(size, name, self._seed)
        if kind == "tt.load" and len(operands) > 1 and not self._values[operands[1]]:
            # Without a value to fill in, what a masked lane holds is undefined: anything.
            return self._values[operands[2]] if len(operands) > 2 else self._draw(f"{name}?", operation.types)
        if kind == "tt.dot" and any(self._is_zero(v) for v in operands[:2]):
            return self.value(operands[2])
        if not is_elementwise(operation):
            return self._draw(name, operation.types)
        return apply(operation, [self._values[v] for v in operands])

    def _is_zero(self, name: str) -> bool:
        """Whether a product's operand is 0 here, as a column is that is masked and filled so."""
        try:
            return bool(self.value(name) == 0)
        except UnknownError:
            return False

    def _end(self, size: int, name: str, seed: int) -> int:
        """One of `size` places: the first, the last or any."""
        random = np.random.default_rng([seed, *name.encode()])
        return (0, size - 1, int(random.integers(size)))[int(random.integers(3))]

    def _draw(self, name: str, types: str) -> Any:
        """A number of the value's type that nothing else has; of every three seeds one draws numbers of both signs, one
        negative and one positive ones, so that each extreme has draws in which it is 0 or beyond."""
        random = np.random.default_rng([self._seed, *name.encode()])
        types = types.split("->")[-1]
        if re.search(r"\bi1\b|xi1\b", types):
            return bool(random.integers(2))
        floating = re.search(r"\bf\d+|xf\d+|bf16", types)
        drawn = float(random.normal()) if floating else int(random.integers(-1000, 1000))
        return (drawn, -abs(drawn), abs(drawn))[self._seed % 3]


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
            return bool(COMPARED[how[-2:]](values[0], values[1]))
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


def _element(types: str) -> str:
    """The type of a tensor's elements."""
    found = re.search(r"(bf16|f\d+|i\d+|f8\w+)(?:, #\w+)?>?\s*$", types)
    return found[1] if found else ""


def recast(value: Any, types: str) -> Any:
    """The bits of a value as one of another type: of a float an integer, or the other way round.

    Raises:
        UnknownError: the bits of one of the types are not known.
    """
    source, _, target = types.partition("->")
    given, wanted = _element(source), _element(target)
    if given.startswith("i") == wanted.startswith("i"):
        return value
    if wanted in _FLOAT:
        return _float_of_bits(int(value) & ((1 << int(given[1:])) - 1), wanted)
    if given == "bf16":
        return struct.unpack("<i", struct.pack("<f", value))[0] >> 16
    if given in _FLOAT:
        return int(np.array(value, _FLOAT[given]).view(f"i{int(wanted[1:]) // 8}"))
    raise UnknownError(types)


def _float_of_bits(bits: int, element: str) -> float:
    if element == "bf16":
        return float(struct.unpack("<f", struct.pack("<I", bits << 16))[0])
    size = {"f64": 8, "f32": 4, "f16": 2}[element]
    return float(np.frombuffer(bits.to_bytes(size, "little"), _FLOAT[element])[0])


def combine(world: World, seed: int, region: Block, left: list[Any], right: list[Any]) -> list[Any]:
    """Two states combined by a reduction's own function.

    Raises:
        UnknownError: it holds an operation that is not known.
        StoppedError: the world's steps are used up.
    """
    inside = Element(world, seed, 0, dict(zip(region.arguments, [*left, *right], strict=True)))
    for operation in region.operations[:-1]:
        if not is_elementwise(operation) and operation.name != "arith.constant":
            raise UnknownError(operation.name)
    return [inside.value(v) for v in region.operations[-1].operands]
