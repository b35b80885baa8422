"""torch's protocol for classes of tensors and modes of functions, `__torch_function__`, kept by functions of ours.

A plain subclass gets results of its own class, as of torch's functions; one with a `__torch_function__` decides itself, and
is told which public function was called; a mode of functions sees the call. torch.nn.Parameter gives plain tensors.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.overrides import handle_torch_function, has_torch_function
from torch.overrides import has_torch_function_variadic as overridden

from tilefold.runtime.modes import is_recorded
from tilefold.runtime.switch import recording
from tilefold.runtime.uncompiled import uncompiled

__all__ = ["classed", "listed", "overridden", "override", "rebuildable"]


def listed(tensors: Any) -> list[Any]:
    """One or several values that may be tensors, or None, as a list."""
    if isinstance(tensors, list | tuple):
        return list(tensors)
    return [] if tensors is None else [tensors]


@uncompiled
def override(function: Callable[..., Any], relevant: Sequence[Any], *arguments: Any, **named: Any) -> Any:
    """Call `function` as the classes of the tensors among `relevant`, or the modes in force, override it.

    Raises:
        TypeError: no class takes the function, as torch says it.
    """
    if is_recorded():  # a graph holds what the function itself does
        with torch._C.DisableTorchFunction(), recording():
            return function(*arguments, **named)
    # The class of nested tensors asks for names of torch's, as rms_norm.
    if any(isinstance(t, Tensor) and t.is_nested for t in relevant):
        with torch._C.DisableTorchFunction():
            return function(*arguments, **named)
    tensors = tuple(t for t in relevant if has_torch_function((t,)))
    return _named(handle_torch_function(function, tensors, *arguments, **named))


def classed(tensors: Sequence[Any]) -> bool:
    """Whether torch builds a call's results again, one by one, since a tensor's class is put on them."""
    return any(
        isinstance(t, Tensor)
        and type(t) is not Tensor
        and type(t).__torch_function__ is not torch._C._disabled_torch_function_impl
        for t in tensors
    )


def rebuildable(results: Any) -> Any:
    """Results whose named tuples can be made of one iterable, as torch makes them again; `override` undoes it."""
    kind = type(results)
    if kind is tuple:
        return tuple(map(rebuildable, results))
    if not hasattr(kind, "_fields"):
        return results
    members = {"__slots__": (), "__new__": lambda cls, values: tuple.__new__(cls, values), "_own": kind}
    again: Any = type(kind.__name__, (kind,), members)
    return again(results)


def _named(results: Any) -> Any:
    """Results in the named tuples that they were in."""
    if type(results) is tuple:
        return tuple(map(_named, results))
    own = getattr(type(results), "_own", None) if isinstance(results, tuple) else None
    return results if own is None else own(*results)
