"""Functions that torch.compile calls as they are, instead of tracing them: between its graphs, or while it makes one."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any, TypeVar

# torch.compiler.disable does the same, and imports the whole of Dynamo.
from torch._C._dynamo import eval_frame

Function = TypeVar("Function", bound=Callable[..., Any])


def uncompiled(function: Function) -> Function:
    """A fold as one call that a graph breaks at, at no cost outside torch.compile.

    Traced, it would be specialised by guards that take one monoid for another: torch 2.13 gave a second monoid's fold the
    first one's answer.
    """
    skip = eval_frame._FrameAction.SKIP
    eval_frame.set_code_exec_strategy(function.__code__, eval_frame._FrameExecStrategy(skip, skip))
    for name, value in (("", True), ("_msg", "folds are called, not traced"), ("_recursive", True)):
        setattr(function, f"_torchdynamo_disable{name}", value)
    return function


def constant_in_graphs(function: Function) -> Function:
    """A function of constants that torch.compile calls while it traces; what it gives is a constant of the graph.

    torch.compiler.assume_constant_result does the same, and imports the whole of Dynamo. A cache around `function` would be
    traced through, with a warning.
    """

    @functools.wraps(function)
    def called(*arguments: Any, **named: Any) -> Any:
        return function(*arguments, **named)

    called._dynamo_marked_constant = True  # type: ignore[attr-defined]  # torch's own
    return called  # type: ignore[return-value]  # of the same signature


@constant_in_graphs
def operators_in_graphs() -> None:
    """Have torch.compile trace `~` of a class's own as it traces its other operators: Dynamo up to torch 2.13 has no rule."""
    from torch._dynamo.variables.builtin import BuiltinVariable
    from torch._dynamo.variables.user_defined import UserDefinedObjectVariable

    def call_invert(_: Any, tx: Any, x: Any) -> Any:
        return x.call_method(tx, "__invert__", [], {}) if isinstance(x, UserDefinedObjectVariable) else None

    if not hasattr(BuiltinVariable, "call_invert"):
        BuiltinVariable.call_invert = call_invert  # type: ignore[attr-defined]
