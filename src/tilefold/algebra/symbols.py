"""What stands for values while torch.compile traces a function of scalars: symbols that note each step as literals."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from tilefold.algebra.scalars import FOREIGN, Scalar, refuse, refuse_field

# An operation, its operands (a number, or the place of a value in a tuple of its own) and what else it takes.
Step = tuple[str, tuple[Any, ...], Any]


class Symbol(Scalar):
    """A value of a function that is being traced: `steps` has what makes each, and None for the function's arguments."""

    def __init__(self, steps: list[Step | None], position: int) -> None:
        self.steps = steps
        self.position = position

    def _step(self, op: str, *operands: Any) -> Symbol:
        return note(self.steps, op, operands, None)

    def _shown(self) -> str:
        return f"<traced value %{self.position}>"


class State(tuple[Any, ...]):
    """A state of such values, by their fields' names."""

    _fields: tuple[str, ...]

    def __getattr__(self, name: str) -> Any:
        if name not in self._fields:
            refuse_field(name, self._fields)
        return self._asdict()[name]

    @property
    def count(self) -> Any:  # a field, where a tuple has a method
        """The field of this name."""
        return self.__getattr__("count")

    @property
    def index(self) -> Any:
        """The field of this name."""
        return self.__getattr__("index")

    def _replace(self, **named: Any) -> State:
        for name in named:
            self.__getattr__(name)
        return state_of(self._fields, [named.get(f, v) for f, v in zip(self._fields, self, strict=True)])

    def _asdict(self) -> dict[str, Any]:
        return dict(zip(self._fields, self, strict=True))


def state_of(fields: tuple[str, ...], values: Sequence[Any]) -> State:
    """The state of these values."""
    state = State(values)
    state._fields = fields
    return state


def note(steps: list[Step | None], op: str, operands: Sequence[Any], value: Any) -> Symbol:
    """The symbol of a step, which is added."""
    steps.append((op, tuple([literal(o, steps) for o in operands]), value))
    return Symbol(steps, len(steps) - 1)


def literal(operand: Any, steps: list[Step | None]) -> Any:
    """A symbol's place among these steps, or a number."""
    if not isinstance(operand, Symbol):
        return fixed(operand)
    if operand.steps is not steps:
        refuse(FOREIGN)
    return (operand.position,)


def fixed(number: Any) -> Any:
    """A number as a constant: torch.compile, for which it may be a variable, compiles anew where it is another one."""
    (known,) = {number}
    return known


def constants(value: Any) -> Any:
    """A value whose numbers, also in tuples and lists, are constants."""
    if isinstance(value, (tuple, list)):
        return tuple([constants(each) for each in value])
    return fixed(value) if isinstance(value, (int, float)) else value
