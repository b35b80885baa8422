"""Every error tilefold raises, in one tree.

    TilefoldError
    |-- MonoidError            the algebra is wrong
    |   |-- TraceError         a function cannot be traced: Python control flow, foreign operation (also TypeError)
    |   |   `-- MemberError    a traced value or a state lacks the attribute (also AttributeError)
    |   |-- ArityError         a function takes or returns the wrong number of values (also TypeError)
    |   |-- LawError           identity, associativity or a declared property does not hold (also ValueError)
    |   `-- TextError          a text is of no monoid, or of another version (also ValueError)
    |-- ArgumentError          a call is wrong (also ValueError)
    |   |-- KindError          an argument is of the wrong kind (also TypeError)
    |   |   `-- OrderError     no fold is the norm of this order (also RuntimeError)
    |   |-- DimError           a dimension is out of range (also IndexError)
    |   |-- RepeatedDimError   a dimension is named twice (also RuntimeError)
    |   |-- DtypeError         an operation lacks this dtype (also RuntimeError and TypeError)
    |   |-- ShapeError         shapes do not fit each other (also RuntimeError)
    |   |-- DeviceError        inputs on different devices (also RuntimeError)
    |   |-- NotFiniteError     a norm that must be finite is not (also RuntimeError)
    |   |-- EmptyError         nothing to fold and no identity (also RuntimeError and IndexError)
    |   `-- TargetError        a target is no class (also IndexError)
    |-- GradientError          an input requires grad (also RuntimeError)
    |-- BackendError           the chosen backend cannot run this (also RuntimeError)
    |-- FileError              a file cannot be read as tensors (also OSError)
    `-- XrayError              the X-ray cannot show a kernel
        |-- CompileError       Triton or the assembler refuses it; the message is theirs (also RuntimeError)
        |-- PtxError           the text is not PTX as Triton writes it (also ValueError)
        |-- UnknownInstructionError  the X-ray's machine lacks the instruction (also NotImplementedError)
        |-- ExecutionError     a program did what no chip defines (also RuntimeError)
        `-- CaptureError       a script asks for what no stand-in of a GPU has (also RuntimeError)

A message has four parts: what failed, the rule, the value found, the fix. The second bases are torch's kinds, so code
written against torch catches the same errors here.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Collection, Mapping
from typing import Any


def printable(text: str) -> str:
    """Text from a file or of a path made safe for a terminal: control characters are shown, not obeyed."""
    return "".join(c if c.isprintable() else repr(c)[1:-1] for c in text)


def shown(value: Any) -> str:
    """A value as messages name it, on one line of at most 80 characters: of an array its shape."""
    try:
        shape = () if isinstance(value, type) else getattr(value, "shape", ())
        if isinstance(shape, tuple) and shape:
            return f"{type(value).__name__} of shape {list(shape)}"
        text = without_address(" ".join(repr(value).split()))
    except Exception:  # a class of the caller's, or a nested tensor, may raise here
        return f"a value of type {type(value).__name__}"
    return text if len(text) <= 80 else f"{text[:77]}..."


def without_address(text: str) -> str:
    """Without the places in memory that Python names where a class says nothing of itself: they differ from run to run."""
    return re.sub(r" at 0x[0-9a-fA-F]+", "", text)


def is_one_of(value: Any, names: Collection[str]) -> bool:
    """Whether a value is one of some names; only a text is compared with them."""
    return isinstance(value, str) and value in names


def is_function(value: Any) -> bool:
    """Whether a value may be run on traced values: no class, unless it makes tuples of them, as a named tuple's does."""
    return callable(value) and (not isinstance(value, type) or issubclass(value, tuple))


def nearest(name: str, names: Collection[str], aliases: Mapping[str, str] | None = None) -> str | None:
    """The known name that an unknown one may stand for: in another case, by an alias, or spelt much like it.

    `aliases` are in lower case without underscores, or exact.
    """
    also, plain = aliases or {}, name.replace("_", "").lower()
    folded = {known.replace("_", "").lower(): known for known in names}
    known = also.get(name) or folded.get(plain) or also.get(plain)
    if known is not None:
        return known
    import difflib  # a tenth of this package's own import

    close = difflib.get_close_matches(plain, [*folded, *also], n=1, cutoff=0.7)
    return (folded.get(close[0]) or also[close[0]]) if close else None


def unknown_name(
    module: str, name: str, names: Collection[str] | None = None, aliases: Mapping[str, str] | None = None
) -> MemberError:
    """The error for a name that a module does not have. `names` are the names it has; without them, all its public ones."""
    if name.startswith("__"):  # Python asks for these
        return MemberError(f"module {module!r} has no attribute {name!r}")
    if names is None:
        names = [n for n in vars(sys.modules[module]) if not n.startswith("_")]
    meant = nearest(name, names, aliases)
    fix = (
        "dir() lists its names" if meant is None else f"use {meant if '.' in meant else f'{module}.{meant}'}"
    )
    where = module.rpartition(".")[2]
    return MemberError(f"{where}: a name must be one of the module's, got {name!r}; {fix}")


def hint_at_names(
    module: str, names: Collection[str] | None = None, aliases: Mapping[str, str] | None = None
) -> None:
    """Have a module raise `unknown_name` for names that it lacks; type checkers see no `__getattr__` then."""

    def refuse(name: str) -> Any:
        raise unknown_name(module, name, names, aliases)

    vars(sys.modules[module])["__getattr__"] = refuse


class TilefoldError(Exception):
    """Base of everything raised on purpose by tilefold."""


class MonoidError(TilefoldError):
    """A monoid is not one."""


class TraceError(MonoidError, TypeError):
    """A monoid's function does something that cannot be traced."""


class MemberError(TraceError, AttributeError):
    """A traced value, a state or a module of tilefold's has no attribute of that name."""


class ArityError(MonoidError, TypeError):
    """A monoid's function takes or returns the wrong number of values."""


class LawError(MonoidError, ValueError):
    """A monoid breaks a law of its algebra."""


class TextError(MonoidError, ValueError):
    """A text does not describe a monoid, or is one of another version."""


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
    """An operation does not have this dtype."""


class ShapeError(ArgumentError, RuntimeError):
    """Shapes do not fit each other."""


class DeviceError(ArgumentError, RuntimeError):
    """Inputs live on different devices."""


class NotFiniteError(ArgumentError, RuntimeError):
    """A norm that must be finite is NaN or infinite."""


class EmptyError(ArgumentError, RuntimeError, IndexError):
    """Nothing to fold, and the fold has no identity."""


class TargetError(ArgumentError, IndexError):
    """A target of a loss is no class."""


class GradientError(TilefoldError, RuntimeError):
    """A derivative is asked that this call has not yet."""


class BackendError(TilefoldError, RuntimeError):
    """The chosen backend cannot run this fold."""


class FileError(TilefoldError, OSError):
    """A file cannot be read as tensors. Its message holds names that files and paths have, made `printable`."""

    def __init__(self, message: str) -> None:
        """One line, whatever is in a name."""
        super().__init__(printable(message))


class XrayError(TilefoldError):
    """The X-ray cannot show a kernel."""


class CompileError(XrayError, RuntimeError):
    """Triton, or the assembler behind it, refuses a kernel; the message is theirs."""


class PtxError(XrayError, ValueError):
    """The text is not PTX as Triton writes it; the message names the line."""


class UnknownInstructionError(XrayError, NotImplementedError):
    """An instruction that the X-ray's machine does not know; the message names its line."""


class ExecutionError(XrayError, RuntimeError):
    """A program did something that no chip defines: divergent shuffles, deadlocks, misaligned accesses."""


class CaptureError(XrayError, RuntimeError):
    """A script asks for something that the stand-in of a GPU does not have."""


hint_at_names(__name__)
