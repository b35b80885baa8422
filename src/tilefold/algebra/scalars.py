"""A scalar as a traced function sees it: operators note steps, and all that needs a number is refused by name."""

from __future__ import annotations

import difflib
from abc import abstractmethod
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, NoReturn

import torch

from tilefold.algebra.advice import instead_of
from tilefold.errors import ArityError, MemberError, TraceError
from tilefold.runtime.uncompiled import constant_in_graphs

if TYPE_CHECKING:
    from typing_extensions import Self


FOREIGN = (
    "trace: a value of one traced function was used in another; a function may only use its own arguments and numbers, got a "
    "value kept from an earlier call; pass it as an argument"
)


# Functions that torch.compile calls as they are raise these, so that its users read the line, too.
@constant_in_graphs
def refuse(message: str) -> NoReturn:
    """Say why a function cannot be traced."""
    raise TraceError(message)


@constant_in_graphs
def _refuse_attribute(name: str, shown: str) -> NoReturn:
    raise MemberError(
        f"trace: a traced value must be used by operators and functions, it has no attributes, got .{name} of {shown}; "
        f"{instead_of(name)}"
    )


@constant_in_graphs
def _refuse_torch(name: str) -> NoReturn:
    raise TraceError(
        f"trace: torch.{name} works on tensors, but functions are traced with scalar symbols, got a traced "
        f"value; {instead_of(name)}"
    )


@constant_in_graphs
def refuse_field(name: str, fields: Sequence[str]) -> NoReturn:
    """Say that a state has no such field."""
    close = difflib.get_close_matches(name, fields, n=1)
    raise MemberError(
        f"state: a field must be one of {named(fields)}, got .{name}; "
        f"{f'use .{close[0]}' if close else 'use one of them, or name it in fields=(...)'}"
    )


@constant_in_graphs
def refuse_output(name: str, what: str, got: str) -> NoReturn:
    """Say that a function returns something else than values."""
    fix = (
        "return something: a lambda does, a def needs the word"
        if got == "NoneType"
        else "return one flat tuple with a value for each field"
        if got in ("tuple", "list", "State")
        else "return expressions of its arguments, and other numbers as float(...) or int(...)"
    )
    raise ArityError(f"{name.strip('<>')}: {what} must return a value or a tuple of values, got {got}; {fix}")


def named(fields: Sequence[str]) -> str:
    """Fields for a message, as one writes them."""
    return ", ".join([f".{field}" for field in fields]) or "[0], [1] ..."


class Scalar:
    """What stands for a number in a traced function: supports arithmetic, comparison and `tilefold.math`, but not `if`."""

    __slots__ = ()

    @abstractmethod
    def _step(self, op: str, *operands: Any) -> Self:
        """What an operation makes of its operands, of which this is one."""

    @abstractmethod
    def _shown(self) -> str:
        """The value for a message."""

    def __repr__(self) -> str:
        return self._shown()

    def _refuse(self, what: str, fix: str) -> NoReturn:
        refuse(
            f"trace: {what} needs a number, but functions are traced once, with symbols, got {self._shown()}; {fix}"
        )

    def __getattr__(self, name: str) -> NoReturn:
        _refuse_attribute(name, self._shown())

    def __bool__(self) -> bool:
        self._refuse(
            "Python control flow (if, and, or, not, while, max, min)",
            "use tilefold.math.where(condition, a, b), maximum or minimum, or & | ~",
        )

    def __iter__(self) -> NoReturn:
        self._refuse("iteration or unpacking", "a scalar state is one value; name several with fields=(...)")

    def __getitem__(self, key: object) -> NoReturn:
        self._refuse("indexing", "a traced value is a scalar; the whole tensor is not there")

    def __setitem__(self, key: object, value: object) -> NoReturn:
        self._refuse("assignment to an element", "use tilefold.math.where(condition, new, old) and return it")

    def __len__(self) -> int:
        self._refuse("len()", "a traced value is a scalar")

    def __hash__(self) -> int:
        # == builds a node, so that a value cannot be a key
        self._refuse(
            "a key of a dict, a set or a cache of calls",
            "use tilefold.math.where(x == key, value, other) for each key, and the __wrapped__ of what is cached",
        )

    def __float__(self) -> float:
        self._refuse(
            "conversion to a Python float (math.exp and the like)",
            "use the function of that name in tilefold.math",
        )

    def __int__(self) -> int:
        self._refuse("conversion to a Python int", "use tilefold.math.cast(x, torch.int64)")

    def __complex__(self) -> complex:
        self._refuse("conversion to a complex number", "carry the real and imaginary parts in two fields")

    def __divmod__(self, other: object) -> NoReturn:
        self._refuse("divmod()", "use a // b and a % b")

    __rdivmod__ = __divmod__

    def __matmul__(self, other: object) -> NoReturn:
        self._refuse("@", "use a * b of two values, and tilefold.matmul of whole tensors")

    __rmatmul__ = __matmul__

    def __round__(self, digits: int | None = None) -> NoReturn:
        self._refuse("round()", "use tilefold.math.floor(x + 0.5)")

    def __trunc__(self) -> NoReturn:
        self._refuse("trunc()", "use tilefold.math.cast(x, torch.int64)")

    def __index__(self) -> int:
        self._refuse("use as an index", "a traced value has no number yet")

    def __array__(self, *_: object, **__: object) -> NoReturn:
        self._refuse(
            "a numpy function or number",
            "use the function of that name in tilefold.math, and write numpy's numbers as float(...) or int(...)",
        )

    @classmethod
    def __torch_function__(cls, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> NoReturn:
        for operand in args:
            if isinstance(operand, torch.Tensor):
                check_operand(getattr(function, "__name__", str(function)), operand)
        _refuse_torch(getattr(function, "__name__", None) or str(function))

    def __add__(self, other: Any) -> Self:
        return self._step("add", self, other)

    def __radd__(self, other: Any) -> Self:
        return self._step("add", other, self)

    def __sub__(self, other: Any) -> Self:
        return self._step("sub", self, other)

    def __rsub__(self, other: Any) -> Self:
        return self._step("sub", other, self)

    def __mul__(self, other: Any) -> Self:
        return self._step("mul", self, other)

    def __rmul__(self, other: Any) -> Self:
        return self._step("mul", other, self)

    def __truediv__(self, other: Any) -> Self:
        return self._step("truediv", self, other)

    def __rtruediv__(self, other: Any) -> Self:
        return self._step("truediv", other, self)

    def __floordiv__(self, other: Any) -> Self:
        return self._step("floordiv", self, other)

    def __rfloordiv__(self, other: Any) -> Self:
        return self._step("floordiv", other, self)

    def __mod__(self, other: Any) -> Self:
        return self._step("mod", self, other)

    def __rmod__(self, other: Any) -> Self:
        return self._step("mod", other, self)

    def __pow__(self, other: Any) -> Self:
        return self._step("pow", self, other)

    def __rpow__(self, other: Any) -> Self:
        return self._step("pow", other, self)

    def __and__(self, other: Any) -> Self:
        return self._step("and", self, other)

    __rand__ = __and__

    def __or__(self, other: Any) -> Self:
        return self._step("or", self, other)

    __ror__ = __or__

    def __xor__(self, other: Any) -> Self:
        return self._step("xor", self, other)

    __rxor__ = __xor__

    def __lshift__(self, other: Any) -> Self:
        return self._step("lshift", self, other)

    def __rlshift__(self, other: Any) -> Self:
        return self._step("lshift", other, self)

    def __rshift__(self, other: Any) -> Self:
        return self._step("rshift", self, other)

    def __rrshift__(self, other: Any) -> Self:
        return self._step("rshift", other, self)

    def __lt__(self, other: Any) -> Self:
        return self._step("lt", self, other)

    def __le__(self, other: Any) -> Self:
        return self._step("le", self, other)

    def __gt__(self, other: Any) -> Self:
        return self._step("gt", self, other)

    def __ge__(self, other: Any) -> Self:
        return self._step("ge", self, other)

    def __eq__(self, other: object) -> Self:  # type: ignore[override]  # builds a node, as an array library does
        return self._step("eq", self, other)

    def __ne__(self, other: object) -> Self:  # type: ignore[override]  # builds a node, as an array library does
        return self._step("ne", self, other)

    def __neg__(self) -> Self:
        return self._step("neg", self)

    def __pos__(self) -> Self:
        return self

    def __abs__(self) -> Self:
        return self._step("abs", self)

    def __invert__(self) -> Self:
        return self._step("invert", self)


def check_operand(op: str, operand: Any) -> None:
    """Refuse what is neither a traced value nor a number."""
    if isinstance(operand, (Scalar, bool, int, float)):
        return
    state = getattr(operand, "__self__", operand)
    got, fix = (
        type(operand).__name__,
        "give tensors to the fold as inputs, not to functions, and other numbers as float(...) or int(...)",
    )
    if isinstance(state, tuple):  # a whole state, or a method that every tuple has (count, index)
        got = "a state" if state is operand else f"the method .{operand.__name__} of a state"
        fix = f"use its fields, {named(getattr(state, '_fields', ()))}"
    refuse(f"trace: {op} takes traced values and Python numbers, got {got}; {fix}")
