"""`reduce_map`: validate, make a request, dispatch."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor
from torch._C import _is_any_autocast_enabled as _any_autocast
from torch.compiler import is_dynamo_compiling

from tilefold.algebra.inlined import Inlined, function_of, inlined
from tilefold.algebra.monoid import Monoid
from tilefold.api import dispatch
from tilefold.api.recorded import (
    DIFFERENTIATED,
    SHARDED,
    between_graphs,
    is_differentiated,
    is_plainly_differentiated,
    is_sharded,
    recorded_map,
)
from tilefold.api.requests import RowMap
from tilefold.errors import ArgumentError, KindError, ShapeError, is_function
from tilefold.planner.library import LibraryMap
from tilefold.planner.problem.canonical import broadcast_shape, normalize_dims
from tilefold.planner.problem.validate import (
    as_dtype,
    as_inputs,
    as_tensors,
    check_count,
    check_inputs,
    check_out,
    check_tensors,
    is_abstract,
    plain,
)
from tilefold.planner.products.functions import Role, Traced, traced
from tilefold.planner.products.row import make_row_map, projected
from tilefold.runtime.caching import kept_outside_modes
from tilefold.runtime.modes import as_widened, check_not_recorded, is_left, is_seen
from tilefold.runtime.overrides import classed, listed, overridden, override, rebuildable
from tilefold.runtime.switch import call_key
from tilefold.runtime.uncompiled import constant_in_graphs

_ROLE = Role(
    "`apply`",
    "`apply` must take an element, each further input's, each result of the fold and each of `extras`",
    "write a function of so many values",
    call="reduce_map",
    several=True,
)
_ROWS = Role(
    "`rows`",
    "`rows` must take each result of the fold",
    "write a function of so many values",
    call="reduce_map",
    several=True,
)


def reduce_map(
    inputs: Tensor | Sequence[Tensor],
    monoid: Monoid,
    apply: Callable[..., Any],
    dim: int | Sequence[int] | None = None,
    *,
    extras: Tensor | Sequence[Tensor] = (),
    rows: Callable[..., Any] | None = None,
    out: Tensor | Sequence[Tensor] | None = None,
    guarantee: str = "run_to_run",
) -> Any:
    """Fold dims with a monoid, and make something of every element and the results of its fold.

        folded[k]    = project(combine over all q of lift(x[k, q], ...))
        result[k, p] = apply(x[k, p], ..., *folded[k], *extras[k, p])
        row[k]       = rows(*folded[k])

    Args:
        inputs: a tensor, or tensors that broadcast against each other; any strides, read in place. Dtypes as in `reduce`.
        monoid: the monoid to fold with. Where it takes an element's position, `apply` does not.
        apply: a function of one element of each input, the fold's results (as they were computed: float32 at least) and one
            element of each extra tensor. It gives one value or several, and is run once, symbolically.
        dim: one dim, several, or None for all. An empty sequence makes each element a row of its own.
        extras: further tensors that broadcast to the inputs' shape and are not folded: also one value a row, of length 1
            along `dim`.
        rows: a function of the fold's results, which gives one value or several that are stored of each row, beside the
            elements: a mean, a logarithm of a sum. Run once, symbolically. Not with `out`.
        out: tensor(s) to write the results into, of the results' shape and dtype. One may be an input, exactly: the same
            memory in the same strides.
        guarantee: as in `reduce`; with "batch_invariant" the bits of a row do not depend on how many rows there are.

    Returns:
        A tensor of the inputs' shape for each value of `apply`: one, or a tuple. Floats come back in the inputs' dtype,
        computed in float32 (float64 for float64); whole numbers in theirs, or int64 of floats; truth values as bool.
        Then one for each value of `rows`, with 1 along `dim`, in the dtype that it was computed in: floats of half precision
        in float32.

    Raises:
        ArityError, TraceError: `apply` or `rows` does not take these values, or gives none.
        DimError, ShapeError, DtypeError, DeviceError, ArgumentError, KindError: the call does not fit.
        GradientError: as in `reduce`.

    Example:
        >>> share = lambda x, total: x / total
        >>> tilefold.reduce_map(torch.tensor([[1.0, 3.0], [2.0, 2.0]]), tilefold.monoids.SUM, share, dim=1)
        tensor([[0.2500, 0.7500],
                [0.5000, 0.5000]])
        >>> shares, totals = tilefold.reduce_map(
        ...     torch.tensor([[1.0, 3.0], [2.0, 2.0]]), tilefold.monoids.SUM, share, dim=1, rows=lambda total: total
        ... )
        >>> totals
        tensor([[4.],
                [4.]])
    """
    tensors = as_inputs(inputs, monoid, "reduce_map")
    beside = as_extras(extras)
    relevant = [*tensors, *beside, *listed(out)]
    if overridden(*relevant):
        named = {"extras": extras, "rows": rows, "out": out, "guarantee": guarantee}
        return override(reduce_map, relevant, inputs, monoid, apply, dim, **named)
    applied = function_of_rows(tensors, monoid, apply, beside, rows)
    if rows is not None and out is not None:
        raise ArgumentError(
            "reduce_map: `out` must be None where `rows` is given, got both; copy the results with Tensor.copy_"
        )
    made = map_tensors(tensors, monoid, applied, dim, extras=beside, out=out, guarantee=guarantee)
    results = made[0] if len(made) == 1 else tuple(made)
    return rebuildable(results) if classed(relevant) else results


def as_extras(extras: Any) -> list[Tensor]:
    """The extra tensors as a list.

    Raises:
        KindError: they are none.
    """
    return as_tensors(extras, "`extras`", "reduce_map")


def function_of_rows(
    tensors: Sequence[Tensor], monoid: Monoid, apply: Any, extras: Sequence[Tensor], rows: Any
) -> Traced:
    """What a map makes of elements and of their row's results.

    Raises:
        ArityError, TraceError, ArgumentError, KindError: the functions, or the tensors, do not fit the fold.
    """
    if not isinstance(apply, Traced) and not is_function(apply):
        raise KindError(
            f"reduce_map: `apply` must be a function, got {type(apply).__name__}; write one of an element, the fold's "
            "results and the extra tensors' elements"
        )
    if rows is not None and not is_function(rows):
        raise KindError(
            f"reduce_map: `rows` must be a function or None, got {type(rows).__name__}; write one of the fold's results"
        )
    check_count(tensors, monoid, "reduce_map")
    folded = projected(monoid)
    values = len(tensors) + folded + len(extras)
    if is_dynamo_compiling():
        each = (apply, values), (rows, folded)
        written = [inlined(f, [None] * n, "a function of rows") if is_function(f) else f for f, n in each]
        return _applied_literals(written[0], values - 1, written[1], folded - 1)
    return _applied(apply, values - 1, rows, folded - 1)


@constant_in_graphs
def _applied_literals(apply: Inlined | Traced, others: int, rows: Inlined | None, folded: int) -> Traced:
    return _applied(function_of(apply), others, function_of(rows), folded)


def _applied(
    apply: Callable[..., Any] | Traced, others: int, rows: Callable[..., Any] | None, folded: int
) -> Traced:
    """`apply` of a value and so many others, with `rows` of one and so many others, if there is one."""
    made = apply if isinstance(apply, Traced) else traced(apply, others, _ROLE)
    if rows is None:
        return made
    return made.but(rows=traced(rows, folded, _ROWS).graph)


def graph_of(apply: Callable[..., Any], values: int) -> Traced:
    """A function of so many values in all, run."""
    return traced(apply, values - 1, _ROLE)


def map_tensors(
    tensors: Sequence[Tensor],
    monoid: Monoid,
    apply: Traced,
    dim: int | Sequence[int] | None,
    *,
    extras: Sequence[Tensor] = (),
    convert: torch.dtype | None = None,
    out: Tensor | Sequence[Tensor] | None = None,
    guarantee: str = "run_to_run",
    library: LibraryMap | None = None,
    call: str = "reduce_map",
    names: Sequence[str | None] | None = None,
    key: Any = None,
) -> list[Tensor]:
    """`reduce_map` of a function that was run: a list of results. `convert` reads every element as that dtype first.

    `names` are the tensors' and extra tensors' names in messages; `key` is the caller's key of the call, if it has one.
    """
    every = [*tensors, *extras]
    autocast = _any_autocast()
    if autocast and (wide := as_widened(call, tensors, out, convert)):
        convert, library, key = wide, None, None
    if key is None and out is None and not (autocast and is_left(every)):
        key, made = dispatch.again(call_key, every, monoid, dim, (apply, convert, guarantee, library))
        if made is not None:
            return made
    if is_sharded(every):
        return SHARDED["reduce_map"](
            tensors, monoid, apply, dim, extras, convert, guarantee, out, call, names
        )
    if is_dynamo_compiling():
        if out is None:
            return recorded_map(tensors, monoid, apply, dim, extras, convert, guarantee, library, call)
        given = {
            "extras": extras,
            "convert": convert,
            "out": out,
            "guarantee": guarantee,
            "library": library,
            "call": call,
        }
        results: list[Tensor] = between_graphs(map_tensors, tensors, monoid, apply, dim, names=names, **given)
        return results
    if out is None and is_plainly_differentiated(every):
        convert = as_dtype(convert, call)
        return DIFFERENTIATED["reduce_map"](
            tensors, monoid, apply, dim, extras, convert, guarantee, library, call, key
        )
    if out is None and is_seen(every):
        return recorded_map(tensors, monoid, apply, dim, extras, convert, guarantee, library, call)
    names = (*[None] * len(tensors), *["extras"] * len(extras)) if names is None else names
    check_inputs(tensors, monoid, guarantee, call, names[: len(tensors)], differentiable=out is None)
    check_tensors(every, call, names=names, differentiable=out is None)
    convert = as_dtype(convert, call)
    if out is None and is_differentiated(every):
        return recorded_map(tensors, monoid, apply, dim, extras, convert, guarantee, library, call)
    shape = broadcast_shape(tensors, call)
    dims = normalize_dims(dim, len(shape), call)
    expanded = [expanded_to(shape, t, call) for t in every]
    elements = tuple(convert or t.dtype for t in tensors)
    row = make_row_map(monoid.total, apply, elements, tuple(t.dtype for t in extras))
    targets = check_out(out, row.results, shape, expanded, call, in_place=True)
    request = RowMap(row, dims, guarantee, tuple(shape), library, call=call)
    abstract = next((t for t in every if is_abstract(t)), None)
    check_not_recorded(call, tensors[0].is_cuda)
    if abstract is not None:
        empty = [abstract.new_empty(size, dtype=d) for size, d in request.results]
        return empty if targets is None else list(targets)
    expanded = [plain(t).resolve_neg() if t.is_neg() else plain(t) for t in expanded]
    if key is None and tensors[0].is_cuda:
        layouts = tuple((t.shape, t.stride(), t.dtype, t.data_ptr() & 15) for t in expanded)
        key = (monoid, apply, layouts, tensors[0].device, dims, convert, guarantee)
    return dispatch.run(request, expanded, key, targets)


def expanded_to(shape: Sequence[int], t: Tensor, call: str) -> Tensor:
    """A tensor repeated to the inputs' shape.

    Raises:
        ShapeError: it does not broadcast to it.
    """
    if t.shape == shape:
        return t
    try:
        return t.expand(shape)
    except RuntimeError:
        raise ShapeError(
            f"{call}: extra tensors must broadcast to the inputs' shape {list(shape)}, got {list(t.shape)}; reshape or "
            "unsqueeze it"
        ) from None


@constant_in_graphs
@kept_outside_modes(256)
def kept(make: Callable[..., tuple[Monoid, Traced]], *arguments: Any) -> tuple[Monoid, Traced]:
    """The monoid and the function that some arguments stand for, made once."""
    return make(*arguments)
