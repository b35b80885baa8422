"""Which values a function reads besides its arguments. If all are known, the function need not be traced again.

All are known if the code reads numbers, strings, dtypes, tuples of them, functions of tilefold.math, pure builtins and other
such functions. It may read them as defaults, from its closure, from its module, or by name from a module. Anything else may
change without notice: an object's attribute, a list, the environment.
"""

from __future__ import annotations

import dis
import itertools
import math as python_math
import weakref
from collections.abc import Iterator, Sequence
from types import BuiltinFunctionType, CodeType, FunctionType, ModuleType
from typing import Any, cast

import torch

from tilefold import math

# A name that code reads, whether it is from the closure, and the attributes that the code takes of its value.
Read = tuple[str, bool, tuple[str, ...]]

_CONSTANTS = (bool, int, float, str, bytes, type(None), type(Ellipsis), torch.dtype)
_PURE = frozenset(
    (abs, bool, divmod, enumerate, float, int, len, max, min, pow, range, reversed, round, sum, tuple, zip)
) | frozenset(function for function in vars(python_math).values() if type(function) is BuiltinFunctionType)
# Parts of the names of instructions that read or write more than the function's own values.
_OUTSIDE = ("ATTR", "METHOD", "GLOBAL", "NAME", "DEREF", "IMPORT", "LOCALS", "CLASS", "SUPER")
_HARMLESS = ("EXTENDED_ARG", "KW_NAMES")
_ATTRIBUTES = ("LOAD_ATTR", "LOAD_METHOD")
_MISSING, _TUPLE, _CALLER = object(), object(), object()


def contents(function: Any) -> list[Any] | None:
    """All values that a function's result depends on besides its arguments, in an order that its code fixes; None if some are
    not known.

    The same objects mean the same function. None of them can change. None is a user's object, except code and its constants.
    """
    found: list[Any] = []
    return found if type(function) is FunctionType and _collect(function, found, []) else None


def _collect(function: FunctionType, found: list[Any], callers: list[FunctionType]) -> bool:
    """Add a function's code and the values that it reads, if all are known."""
    for depth, caller in enumerate(callers):
        if function is caller:
            found += (_CALLER, depth)
            return True
    code = function.__code__
    found.append(code)
    if function.__globals__ is math.__dict__:
        found.append(function)
        return True
    reads = _reads(code)
    if reads is None or len(callers) > 16:
        return False
    callers.append(function)
    known = _note(function.__defaults__, found, callers)
    known = known and _note(tuple((function.__kwdefaults__ or {}).items()), found, callers)
    for name, enclosed, attributes in reads:
        value = _cell(function, name) if enclosed else _named(function, name)
        known = known and _note(_attribute(value, attributes), found, callers)
    callers.pop()
    return known


def _note(value: Any, found: list[Any], callers: list[FunctionType]) -> bool:
    """Add a value that cannot change, or a function's code and values."""
    kind = type(value)
    if kind is tuple:
        found += (_TUPLE, len(value))
        return all(_note(each, found, callers) for each in value)
    if kind is FunctionType:
        return _collect(value, found, callers)
    found.append(value)
    return kind in _CONSTANTS or (kind in (BuiltinFunctionType, type) and value in _PURE)


def _cell(function: FunctionType, name: str) -> Any:
    cells = function.__closure__ or ()
    try:
        return cells[function.__code__.co_freevars.index(name)].cell_contents
    except ValueError:  # not set yet
        return _MISSING


def _named(function: FunctionType, name: str) -> Any:
    builtins: dict[str, Any] = cast(Any, function).__builtins__
    return function.__globals__.get(name, builtins.get(name, _MISSING))


def _attribute(value: Any, attributes: Sequence[str]) -> Any:
    """An attribute of a module (of a module), or of a value that cannot change."""
    for name in attributes:
        if type(value) is not ModuleType:
            return value if type(value) in _CONSTANTS else _MISSING
        value = vars(value).get(name, _MISSING)
    return value


_known_reads: weakref.WeakKeyDictionary[CodeType, tuple[Read, ...] | None] = weakref.WeakKeyDictionary()


def _reads(code: CodeType) -> tuple[Read, ...] | None:
    """The names that code reads, each once; None if the code does more than that."""
    found: Any = _known_reads.get(code, _MISSING)
    if found is _MISSING:
        each = list(_read_by(code, frozenset(code.co_freevars)))
        known = dict.fromkeys(read for read in each if read is not None)
        found = _known_reads[code] = None if None in each else tuple(known)
    reads: tuple[Read, ...] | None = found
    return reads


def _read_by(code: CodeType, enclosed: frozenset[str]) -> Iterator[Read | None]:
    """The names that code and the code inside it read, with None for any other access; `enclosed` is the outermost function's
    closure."""
    steps = [step for step in dis.get_instructions(code) if step.opname not in _HARMLESS]
    for place, step in enumerate(steps):
        if not any(part in step.opname for part in _OUTSIDE):
            continue
        if step.opname in _ATTRIBUTES:
            before = next(each for each in reversed(steps[:place]) if each.opname not in _ATTRIBUTES)
            if not _reads_outside(before, enclosed):
                yield None
        elif _reads_outside(step, enclosed):
            attributes = itertools.takewhile(lambda each: each.opname in _ATTRIBUTES, steps[place + 1 :])
            yield step.argval, step.opname == "LOAD_DEREF", tuple(each.argval for each in attributes)
        elif "DEREF" not in step.opname or step.argval in enclosed:
            yield None
    for inner in code.co_consts:
        if type(inner) is CodeType:
            yield from _read_by(inner, enclosed.intersection(inner.co_freevars).difference(code.co_cellvars))


def _reads_outside(step: dis.Instruction, enclosed: frozenset[str]) -> bool:
    return step.opname == "LOAD_GLOBAL" or (step.opname == "LOAD_DEREF" and step.argval in enclosed)
