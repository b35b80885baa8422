"""A function of rows and of the element of each that its index chooses, and such elements stored: targets of losses."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor
from torch.compiler import is_dynamo_compiling

from tilefold.algebra import program as programs
from tilefold.algebra.expression import trace
from tilefold.algebra.monoid import Monoid
from tilefold.api import dispatch
from tilefold.api.ends import function_of
from tilefold.api.recorded import is_differentiated
from tilefold.api.reduce import fold_tensors
from tilefold.api.requests import Chosen
from tilefold.backends.cpu import chosen
from tilefold.planner.problem.validate import is_abstract
from tilefold.runtime.caching import kept_outside_modes
from tilefold.runtime.modes import is_recorded
from tilefold.runtime.switch import layouts

_PLAIN = frozenset((Tensor, torch.nn.Parameter))


def map_chosen(
    function: Monoid, values: Sequence[Tensor], index: Tensor, tables: Sequence[Tensor], dim: int, *, dtype: torch.dtype,
    guarantee: str, call: str,
) -> list[Tensor]:  # fmt: skip
    """A function of rows' values, of their index, and of the tables' elements at that.

        result[row] = function(value[row], ..., index[row], table[row, index[row]], ...)

    Values and index have the rows' shape, with 1 along `dim`; tables have a place for each class along it. An index that is
    no class counts as 0. One launch on a GPU; where autograd or a transform looks on, operations that it knows.
    """
    values = [t.expand(index.shape) for t in values]
    if not tables or not _is_run([*values, index, *tables]):
        found = [dispatch.noted(lambda t, i: chosen.read([t], i, dim), t, index)[0] for t in tables]
        each = [*values, index, *found]
        return fold_tensors(each, function, (), False, dtype=dtype, guarantee=guarantee, call=call)
    return _run(function, [*values, index, *tables], len(values), dim, dtype, guarantee, call)


def put_chosen(
    x: Tensor,
    function: Monoid,
    values: Sequence[Tensor],
    index: Tensor,
    dim: int,
    *,
    guarantee: str,
    call: str,
) -> Tensor:
    """x, with a function of a row's values and index as its element at that.

        x[row, index[row]] = function(value[row], ..., index[row])

    In place, but in a transform of torch.func; `map_chosen` says which shapes there are.
    """
    values = [t.expand(index.shape) for t in values]
    if _is_run([x, index, *values]):
        _run(function, [*values, index, x], len(values), dim, x.dtype, guarantee, call, stored=True)
        return x

    def put(x: Tensor, index: Tensor, value: Tensor) -> list[Tensor]:
        place = chosen.places(index, x.shape[dim])
        if torch._C._functorch.maybe_current_level() is not None:  # no in-place write into what is not mapped
            return [x.scatter(dim, place, value)]
        return [x.scatter_(dim, place, value)]

    (value,) = fold_tensors(
        [*values, index], function, (), False, dtype=x.dtype, guarantee=guarantee, call=call
    )
    return dispatch.noted(put, x, index, value)[0]


def _run(
    function: Monoid, tensors: list[Tensor], index: int, dim: int, dtype: torch.dtype, guarantee: str, call: str,
    stored: bool = False,
) -> list[Tensor]:  # fmt: skip
    seen = layouts(tensors)
    key = None if seen is None else ("chosen", function, seen, dim, dtype, guarantee, stored)
    if (made := dispatch.repeated(key, *tensors)) is not None:
        return made
    taken = tensors[:-1] if stored else tensors
    program = programs.specialize(function.total, tuple(t.dtype for t in taken), dtype)
    request = Chosen(program, index, dim, guarantee, tuple(tensors[index].shape), stored, call=call)
    return dispatch.run(request, tensors, key)


def _is_run(tensors: Sequence[Tensor]) -> bool:
    """Whether a call may be run: of plain tensors with elements, which nothing but the caller looks at."""
    return (
        not is_dynamo_compiling()
        and torch._C._functorch.maybe_current_level() is None
        and not is_recorded()
        and all(type(t) in _PLAIN and t.numel() and not t.is_neg() and not is_abstract(t) for t in tensors)
        and not is_differentiated(tensors)
    )


@kept_outside_modes(1)
def same() -> Monoid:
    """(a value, an index) -> the value."""
    return function_of(trace(lambda value, index: value, 2))
