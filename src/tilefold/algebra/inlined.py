"""Functions of scalars that torch.compile meets while it traces: what they do, as literals.

torch.compile runs such a function itself, with symbols, as it runs all that it traces. So it guards all that the function
reads (its closure, globals, attributes), and compiles anew where a number is another one. Functions that torch.compile calls
as they are get the literals, and make of them a function that does the same.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Sequence
from types import CellType, CodeType, FunctionType, MethodType
from typing import Any

from tilefold.algebra import expression
from tilefold.algebra.arguments import positional_count
from tilefold.algebra.scalars import refuse_output
from tilefold.algebra.symbols import State, Step, Symbol, literal, state_of
from tilefold.runtime.uncompiled import constant_in_graphs, operators_in_graphs

# A function's name, how many arguments it has, its steps, its results, whether these are a tuple, and the class of that.
Inlined = tuple[str, int, tuple[Any, ...], tuple[Any, ...], bool, Any]


def inlined(function: Callable[..., Any], arguments: Sequence[tuple[str, ...] | None], what: str) -> Inlined:
    """What a function does with values, or with states of such fields. torch.compile traces this."""
    operators_in_graphs()
    count = sum([1 if fields is None else len(fields) for fields in arguments])
    steps: list[Step | None] = [None] * count
    symbols, given = [Symbol(steps, place) for place in range(count)], []
    for fields in arguments:
        taken = 1 if fields is None else len(fields)
        given.append(symbols[0] if fields is None else state_of(fields, symbols[:taken]))
        symbols = symbols[taken:]
    made = function(*given)
    several = isinstance(made, (tuple, list))
    name, results = getattr(function, "__name__", "function"), list(made) if several else [made]
    for each in results:
        if not isinstance(each, (Symbol, bool, int, float)):
            refuse_output(name, what, type(each).__name__)
    kind = type(made) if several and hasattr(made, "_fields") and not isinstance(made, State) else None
    return (
        name,
        len(arguments),
        tuple(steps[count:]),
        tuple([literal(r, steps) for r in results]),
        several,
        kind,
    )


def function_of(written: Any) -> Any:
    """A function that does what was noted. What is not `Inlined`, a name or None say, stays as it is."""
    if not isinstance(written, tuple):
        return written
    name, arity, steps, results, several, kind = written

    def replayed(*given: Any) -> Any:
        values = [v for each in given for v in (each if isinstance(each, tuple) else (each,))]

        def value_of(operand: Any) -> Any:
            return values[operand[0]] if isinstance(operand, tuple) else operand

        for op, operands, value in steps:
            values.append(expression.apply(op, *map(value_of, operands), value=value))
        made = tuple(map(value_of, results))
        if not several:
            return made[0]
        return made if kind is None else kind(*made)

    positional = inspect.Parameter.POSITIONAL_ONLY
    parameters = [inspect.Parameter(f"x{i}", positional) for i in range(arity)]
    replayed.__name__ = name
    replayed.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
    return replayed


def count_arguments(monoid: str, role: str, function: Callable[..., Any]) -> int:
    """`positional_count` of what torch.compile traces, which knows signatures of code alone."""
    if isinstance(function, functools.partial):
        return count_arguments(monoid, role, function.func) - len(function.args)
    code = getattr(function, "__code__", None)
    if code is None:
        return _counted(monoid, role, function)
    bound = isinstance(function, MethodType)
    return _counted_of(monoid, role, code, _defaults(function) if code.co_argcount > 1 + bound else 0) - bound


_counted = constant_in_graphs(positional_count)


def _defaults(function: Any) -> int:
    """How many of a function's arguments have a default."""
    given = function.__defaults__
    return 0 if given is None else len(given)


@constant_in_graphs
def _counted_of(monoid: str, role: str, code: CodeType, defaults: int) -> int:
    cells = tuple(CellType() for _ in code.co_freevars)
    return positional_count(monoid, role, FunctionType(code, {}, None, (None,) * defaults, cells))
