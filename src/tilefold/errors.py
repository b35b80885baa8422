"""Every error tilefold raises, in one tree.

    TilefoldError
    |-- MonoidError            the algebra is wrong
    |   |-- TraceError         a function cannot be traced: Python control flow, foreign operation (also TypeError)
    |   |   `-- MemberError    a traced value or a state has no such attribute (also AttributeError)
    |   |-- ArityError         a function takes or returns the wrong number of values (also TypeError)
    |   `-- LawError           identity, associativity or a declared property does not hold (also ValueError)
    |-- ArgumentError          a call is wrong (also ValueError)
    |   |-- KindError          an argument is of the wrong kind (also TypeError)
    |   |   `-- OrderError     no fold is the norm of this order (also RuntimeError)
    |   |-- DimError           a dimension is out of range (also IndexError)
    |   |-- RepeatedDimError   a dimension is named twice (also RuntimeError)
    |   |-- DtypeError         no such fold for this dtype (also RuntimeError and TypeError)
    |   |-- ShapeError         shapes do not fit each other (also RuntimeError)
    |   |-- DeviceError        inputs on different devices (also RuntimeError)
    |   `-- EmptyError         nothing to fold and no identity (also RuntimeError and IndexError)
    |-- GradientError          an input requires grad (also RuntimeError)
    |-- BackendError           the chosen backend cannot run this (also RuntimeError)
    |-- FileError              a file cannot be read as tensors (also OSError)
    `-- XrayError              what the compiler made of a kernel cannot be shown
        |-- CompileError       Triton or the assembler refuses it; the message is theirs (also RuntimeError)
        |-- PtxError           the text is not PTX as Triton writes it (also ValueError)
        |-- UnknownInstructionError  the X-ray's machine has no such instruction (also NotImplementedError)
        `-- ExecutionError     a program did what no chip defines (also RuntimeError)

A message has four parts: what failed, the rule, what was got, the fix. The second bases are torch's kinds, so code
written against torch catches the same errors here.
"""

from __future__ import annotations

from typing import Any


def printable(text: str) -> str:
    """Text from a file or of a path made safe for a terminal: control characters are shown, not obeyed."""
    return "".join(c if c.isprintable() else repr(c)[1:-1] for c in text)


def shown(value: Any) -> str:
    """A value as messages name it, on one line: of an array its shape."""
    shape = getattr(value, "shape", ())
    return f"{type(value).__name__} of shape {list(shape)}" if shape else repr(value)


class TilefoldError(Exception):
    """Base of everything raised on purpose by tilefold."""


class MonoidError(TilefoldError):
    """A monoid is not one."""


class TraceError(MonoidError, TypeError):
    """A monoid's function does something that cannot be traced."""


class MemberError(TraceError, AttributeError):
    """A traced value, a state or `tilefold.math` has no attribute of that name."""


class ArityError(MonoidError, TypeError):
    """A monoid's function takes or returns the wrong number of values."""


class LawError(MonoidError, ValueError):
    """A monoid breaks a law of its algebra."""


class ArgumentError(TilefoldError, ValueError):
    """A call's arguments do not fit."""


class KindError(ArgumentError, TypeError):
    """An argument is of the wrong kind."""


class OrderError(KindError, RuntimeError):
    """No fold over elements is the norm of this order."""


class DimError(ArgumentError, IndexError):
    """A dimension is out of range."""


class RepeatedDimError(ArgumentError, RuntimeError):
    """A dimension is named twice."""


class DtypeError(ArgumentError, RuntimeError, TypeError):
    """A dtype has no such fold."""


class ShapeError(ArgumentError, RuntimeError):
    """Shapes do not fit each other."""


class DeviceError(ArgumentError, RuntimeError):
    """Inputs live on different devices."""


class EmptyError(ArgumentError, RuntimeError, IndexError):
    """Nothing to fold, and the fold has no identity."""


class GradientError(TilefoldError, RuntimeError):
    """An input requires grad and this fold has no derivative yet."""


class BackendError(TilefoldError, RuntimeError):
    """The chosen backend cannot run this fold."""


class FileError(TilefoldError, OSError):
    """A file cannot be read as tensors. Its message holds names that files and paths have, made `printable`."""

    def __init__(self, message: str) -> None:
        """One line, whatever is in a name."""
        super().__init__(printable(message))


class XrayError(TilefoldError):
    """What the compiler made of a kernel cannot be shown."""


class CompileError(XrayError, RuntimeError):
    """Triton, or the assembler behind it, refuses a kernel; the message is theirs."""


class PtxError(XrayError, ValueError):
    """The text is not PTX as Triton writes it; the message names the line."""


class UnknownInstructionError(XrayError, NotImplementedError):
    """An instruction that the X-ray's machine does not know; the message names its line."""


class ExecutionError(XrayError, RuntimeError):
    """A program did something that no chip defines: divergent shuffles, deadlocks, misaligned accesses."""
