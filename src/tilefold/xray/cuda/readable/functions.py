"""Mathematical functions that the compiler wrote out, as functions of one number above the kernel."""

from __future__ import annotations

from tilefold.xray.cuda.readable.tree import Region, Store
from tilefold.xray.cuda.readable.values import LEAVES, Value

_LEAST = 4  # operations of a function; fewer are said where they stand


class Written:
    """What is computed of one value at the value's own place: the argument, and the operations as a shape to compare."""

    def __init__(self, value: Value) -> None:
        self.argument: Value | None = None
        self.single = True
        self.operations: dict[Value, int] = {}
        self.shape: list[object] = []
        self._enter(value, value)

    def _enter(self, value: Value, root: Value) -> object:
        """A value by its number among the operations; all that is computed elsewhere is the argument."""
        if value.op == "const":
            return value.op, value.bits, value.data
        if value.op in LEAVES or value.place != root.place:
            self.single &= self.argument in (None, value)
            self.argument = value
            return "argument"
        if value not in self.operations:
            made = (value.op, value.bits, value.data, *(self._enter(a, root) for a in value.args))
            self.operations[value] = len(self.shape)
            self.shape.append(made)
        return self.operations[value]

    @property
    def is_function(self) -> bool:
        """Whether it is long, and of one argument."""
        return self.single and self.argument is not None and len(self.operations) >= _LEAST


def alone(*values: Value) -> Region:
    """A body in which nothing but some values are made."""
    return Region((Store("global", values[-1], values[:-1], None, None),))
