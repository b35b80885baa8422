"""What TTIR's integers and pointers are in every program of a grid at once, at the first element of each tile.

Enough to know which programs begin at the same place: ranges stand for their first (or last) element, loops for their first
(or last) round. Numbers do not wrap. What depends on memory is not known.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tilefold.xray.ir.syntax import Function, Operation
from tilefold.xray.ir.types import tensors

Numbers = NDArray[np.int64]
ENDS = ((0, False), (1, False), (0, True), (1, True))  # of ranges and of loops: first or last
_MOST = 1 << 20  # programs that are looked at
_SAME = (
    "tt.splat", "tt.broadcast", "tt.expand_dims", "tt.reshape", "tt.trans", "tt.unsplat", "arith.extsi", "arith.extui",
    "arith.trunci", "arith.index_cast",
)  # fmt: skip
_BINARY: dict[str, Callable[[Numbers, Numbers], Numbers]] = {
    "arith.addi": np.add, "arith.subi": np.subtract, "arith.muli": np.multiply, "arith.minsi": np.minimum,
    "arith.maxsi": np.maximum, "arith.minui": np.minimum, "arith.maxui": np.maximum, "arith.andi": np.bitwise_and,
    "arith.ori": np.bitwise_or, "arith.xori": np.bitwise_xor,
    "arith.shli": lambda a, b: a * (np.int64(1) << np.clip(b, 0, 62)),
    "arith.divsi": lambda a, b: np.where(b == 0, 0, np.sign(a) * np.sign(b) * (abs(a) // np.maximum(abs(b), 1))),
    "arith.remsi": lambda a, b: np.where(b == 0, 0, np.sign(a) * (abs(a) % np.maximum(abs(b), 1))),
}  # fmt: skip
_UNSIGNED = {"arith.divui": "arith.divsi", "arith.remui": "arith.remsi"}
COMPARED: dict[str, Callable[..., Any]] = {
    "eq": np.equal, "ne": np.not_equal, "lt": np.less, "le": np.less_equal, "gt": np.greater, "ge": np.greater_equal,
}  # fmt: skip
_JOINED: dict[str, Callable[..., NDArray[np.bool_]]] = {
    "arith.andi": np.logical_and, "arith.ori": np.logical_or, "arith.xori": np.logical_xor,
}  # fmt: skip
_POINTERS = ("tt.splat", "tt.broadcast", "tt.expand_dims", "tt.bitcast")


@dataclass(frozen=True, eq=False)
class Place:
    """Where a tile begins: an argument's name, and elements from its address (one number a program)."""

    argument: str
    offset: Numbers


class Programs:
    """Values of a function in the programs of a grid; of a very large grid in its first ones (`most`), or (`spread`) in so
    many from the first to the last.

    `known` gives integer arguments by name; every other argument may be a pointer. `tiles` are the values that are tensors.
    `ends` says where in a range the element is that stands for it, from 0 (the first) to 1 (the last), and whether loops
    stand for their last round.
    """

    def __init__(
        self,
        function: Function,
        known: Mapping[str, int],
        grid: tuple[int, int, int],
        *,
        ends: tuple[float, bool] = (0, False),
        spread: bool = False,
        most: int = _MOST,
    ) -> None:
        total = grid[0] * grid[1] * grid[2]
        self.count, self._ends = min(total, most), ends
        numbers = np.arange(self.count, dtype=np.int64)
        numbers = numbers * (total - 1) // max(self.count - 1, 1) if spread else numbers
        self._ids = (numbers % grid[0], numbers // grid[0] % grid[1], numbers // (grid[0] * grid[1]))
        self._grid = grid
        self._of: dict[str, Numbers] = {n: np.array(v, np.int64) for n, v in known.items()}
        self.places = {
            name: Place(name, np.array(0, np.int64)) for name in function.parameters if name not in known
        }
        self.tiles = {r for o in function.walk() for r in o.results if tensors(o.types.rpartition("->")[2])}
        self._truth: dict[str, NDArray[np.bool_]] = {}
        with np.errstate(all="ignore"):  # hashes and the like wrap
            for operation in function.walk():
                self._visit(operation)

    def numbers(self, name: str) -> Numbers | None:
        """A value, one number a program; None where it is not known."""
        found = self._of.get(name)
        return None if found is None else np.broadcast_to(found, (self.count,))

    def program(self, index: int) -> tuple[int, int, int]:
        """The place in the grid of one of the programs that are looked at."""
        x, y, z = (int(ids[index]) for ids in self._ids)
        return (x, y, z)

    def truth(self, name: str) -> NDArray[np.bool_] | None:
        """A condition, one value a program; None where it is not known."""
        found = self._truth.get(name)
        return None if found is None else np.broadcast_to(found, (self.count,))

    def _visit(self, operation: Operation) -> None:
        if operation.name == "scf.for":
            self._enter(operation)
            return
        if len(operation.results) != 1:
            return
        name, operands = operation.results[0], operation.operands
        if operation.name in _POINTERS and operands[0] in self.places:
            self.places[name] = self.places[operands[0]]
        elif operation.name in ("tt.addptr", "tt.make_tensor_descriptor", "tt.make_tensor_ptr"):
            self._point(name, operation)
        elif operation.name == "arith.cmpi":
            a, b = (self._of.get(v) for v in operands[:2])
            how = operation.attributes.split(",")[0].strip()[-2:]
            if a is not None and b is not None and how in COMPARED:
                self._truth[name] = COMPARED[how](a, b)
        elif operands and operands[0] in self._truth and operation.name in (*_SAME, *_JOINED):
            first, second = self._truth[operands[0]], self._truth.get(operands[-1])
            if operation.name in _SAME:
                self._truth[name] = first
            elif second is not None:
                self._truth[name] = _JOINED[operation.name](first, second)
        else:
            found = self._value(operation)
            if found is not None:
                self._of[name] = found

    def _enter(self, loop: Operation) -> None:
        """A loop's variables in its first or its last round."""
        (block,) = loop.blocks
        counter, *carried = block.arguments
        start, stop, step = (self._of.get(v) for v in loop.operands[:3])
        rounds: Numbers = np.array(0, np.int64)  # before the one that is looked at
        if not self._ends[1]:
            self._alias(counter, loop.operands[0])
        elif start is None or stop is None or step is None:
            return
        else:
            rounds = np.maximum(-(-(stop - start) // np.maximum(step, 1)) - 1, 0)
            self._of[counter] = start + rounds * step
        made = {r: o for o in block.operations for r in o.results}
        yielded = next((o.operands for o in block.operations if o.name == "scf.yield"), ())
        for name, first, last in zip(carried, loop.carried, yielded, strict=False):
            if not self._ends[1]:
                self._alias(name, first)
                continue
            update, before = made.get(last), self._of.get(first)
            if (
                update is not None
                and update.name == "arith.addi"
                and name in update.operands
                and before is not None
            ):
                more = self._of.get(next((v for v in update.operands if v != name), name))
                if more is not None:
                    self._of[name] = before + rounds * more

    def _alias(self, name: str, other: str) -> None:
        if other in self.places:
            self.places[name] = self.places[other]
        elif other in self._of:
            self._of[name] = self._of[other]

    def _point(self, name: str, operation: Operation) -> None:
        base = self.places.get(operation.operands[0])
        if base is None:
            return
        if operation.name != "tt.addptr":
            self.places[name] = base
            return
        offset = self._of.get(operation.operands[1])
        if offset is not None:
            self.places[name] = Place(base.argument, base.offset + offset)

    def _value(self, operation: Operation) -> Numbers | None:
        kind, operands = operation.name, operation.operands
        if kind == "arith.constant":
            found = re.match(r"^(?:dense<)?(-?\d+)>?$", operation.attributes.strip())
            return np.array(int(found[1]), np.int64) if found else None
        if kind in ("tt.get_program_id", "tt.get_num_programs"):
            axis = "xyz".index(operation.attributes.strip()[0])
            return self._ids[axis] if kind == "tt.get_program_id" else np.array(self._grid[axis], np.int64)
        if kind == "tt.make_range":
            found = re.search(r"end = (-?\d+) : i32, start = (-?\d+)", operation.attributes)
            first, end = (int(found[2]), int(found[1])) if found else (0, 1)
            return np.array(first + int((end - 1 - first) * self._ends[0]), np.int64)
        if kind in _SAME:
            return self._of.get(operands[0])
        if kind == "arith.select" and len(operands) == 3 and operands[0] in self._truth:
            a, b = (self._of.get(v) for v in operands[1:])
            return None if a is None or b is None else np.where(self._truth[operands[0]], a, b)
        rule = _BINARY.get(_UNSIGNED.get(kind, kind))
        values = [self._of.get(v) for v in operands[:2]]
        if rule is None or len(values) != 2 or values[0] is None or values[1] is None:
            return None
        return rule(values[0], values[1])
