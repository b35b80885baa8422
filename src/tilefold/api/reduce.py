"""`reduce`: validate, make a request, dispatch."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

# By these names alone: looking each up in torch costs as much as asking it.
from torch import Tensor
from torch._C import _is_any_autocast_enabled as _any_autocast
from torch.compiler import is_dynamo_compiling

from tilefold.algebra import program as programs
from tilefold.algebra.monoid import Monoid
from tilefold.api import dispatch
from tilefold.api.recorded import between_graphs, is_differentiated, recorded_fold
from tilefold.api.requests import Reduction
from tilefold.errors import EmptyError
from tilefold.problem.canonical import broadcast_shape, normalize_dims
from tilefold.problem.validate import (
    as_dtype,
    as_inputs,
    check_inputs,
    check_keepdim,
    check_out,
    is_abstract,
    plain,
)
from tilefold.runtime.modes import as_widened, check_not_recorded, is_left, is_seen
from tilefold.runtime.overrides import classed, listed, overridden, override, rebuildable
from tilefold.runtime.switch import call_key


def reduce(
    inputs: torch.Tensor | Sequence[torch.Tensor],
    monoid: Monoid,
    dim: int | Sequence[int] | None = None,
    keepdim: bool = False,
    *,
    dtype: torch.dtype | None = None,
    out: torch.Tensor | Sequence[torch.Tensor] | None = None,
    guarantee: str = "run_to_run",
) -> Any:
    """Fold the dims of one or several tensors with a monoid.

        result[k] = project(combine over all p of lift(x[k, p], y[k, p], ...)),  k in the output dims, p in the reduced dims

    Args:
        inputs: a tensor, or tensors that broadcast against each other; any strides, read in place (torch's own folds on a
            CPU may make temporaries). Elements may be bool, integers (signed or not) of 8 to 64 bits, or floats of 8 to
            64 bits.
        monoid: the monoid to fold with. Elements are combined in row-major order of `dim` unless it is commutative.
        dim: one dim, several, or None for all. An empty sequence folds nothing: each element is lifted and projected.
        keepdim: keep reduced dims with length 1.
        dtype: the dtype of computed results, instead of the inputs' own; Python's float is torch.float64.
        out: tensor(s) to write the results into, of the results' shape and dtype.
        guarantee: "run_to_run": the same bits for the same inputs, layout, chip, version and tuning table.
            "batch_invariant": besides, a result's bits depend neither on how many results there are nor on the chip's
            number of SMs. "none": neither; programs that share a result may combine it by atomic operations, unless
            torch.use_deterministic_algorithms is on.

    Returns:
        What `project` gives (or the state): a tensor, a tuple, or a named tuple, of the output dims' shape. Floats come
        back in the inputs' dtype, integers as int64 unless the field says otherwise. States are float32 (float64
        for float64), so a sum of n floats errs by at most gamma_d * sum|x| before the last rounding, d being the
        depth of the plan's tree.

    Raises:
        DimError, ShapeError, DtypeError, DeviceError, ArgumentError: the call does not fit.
        EmptyError: nothing to fold and the monoid has no identity.
        GradientError: `out` is given while a gradient is asked, or an input carries a forward derivative; or the fold is to
            extremes, whose ties have no rule yet.

    Example:
        >>> tilefold.reduce(torch.tensor([[3, 5], [8, 1]]), tilefold.monoids.BITWISE_OR, dim=1)
        tensor([7, 9])
    """
    if type(inputs) is Tensor and out is None and type(monoid) is Monoid and not overridden(inputs):
        return monoid.pack(fold_tensors([inputs], monoid, dim, keepdim, dtype=dtype, guarantee=guarantee))
    return _reduce(inputs, monoid, dim, keepdim, dtype=dtype, out=out, guarantee=guarantee)


def _reduce(inputs: Any, monoid: Monoid, *arguments: Any, **options: Any) -> Any:
    """`reduce` of several tensors, or of tensors or an `out` of other classes."""
    tensors = as_inputs(inputs, monoid, "reduce")
    relevant = [*tensors, *listed(options["out"])]
    if overridden(*relevant):
        return override(reduce, relevant, inputs, monoid, *arguments, **options)
    results = monoid.pack(fold_tensors(tensors, monoid, *arguments, **options))
    return rebuildable(results) if classed(relevant) else results


def fold_tensors(
    tensors: Sequence[torch.Tensor],
    monoid: Monoid,
    dim: int | Sequence[int] | None,
    keepdim: bool,
    *,
    dtype: torch.dtype | None = None,
    convert: torch.dtype | None = None,
    guarantee: str = "run_to_run",
    out: torch.Tensor | Sequence[torch.Tensor] | None = None,
    call: str = "reduce",
) -> list[torch.Tensor]:
    """`reduce` without packing: a list of result tensors. `convert` reads every element as that dtype first."""
    if keepdim is not True and keepdim is not False:
        check_keepdim(keepdim, call)  # before calls are compared: 1 == True
    if type(guarantee) is str and guarantee == "none" and torch.are_deterministic_algorithms_enabled():
        guarantee = "run_to_run"
    autocast = _any_autocast()
    if autocast and (wide := as_widened(call, tensors, out, dtype)):
        dtype = convert = wide
    if is_dynamo_compiling():
        if out is None:
            return recorded_fold(tensors, monoid, dim, keepdim, dtype, convert, guarantee, call)
        given = {"dtype": dtype, "convert": convert, "guarantee": guarantee, "out": out, "call": call}
        results: list[torch.Tensor] = between_graphs(fold_tensors, tensors, monoid, dim, keepdim, **given)
        return results
    key = None
    if len(tensors) == 1 and out is None and not (autocast and is_left(tensors)):
        key = call_key(tensors, monoid, dim, (keepdim, dtype, convert, guarantee))
        if (made := dispatch.repeated(key, *tensors)) is not None:
            return made
    if out is None and is_seen(tensors):
        return recorded_fold(tensors, monoid, dim, keepdim, dtype, convert, guarantee, call)
    check_inputs(tensors, monoid, guarantee, call, differentiable=out is None)
    dtype, convert = as_dtype(dtype, call), as_dtype(convert, call)
    if out is None and is_differentiated(tensors):
        return recorded_fold(tensors, monoid, dim, keepdim, dtype, convert, guarantee, call)
    shape = broadcast_shape(tensors, call)
    dims = normalize_dims(dim, len(shape), call)
    expanded = [t if t.shape == shape else t.expand(shape) for t in tensors]
    program = programs.specialize(monoid.total, tuple(convert or t.dtype for t in tensors), dtype)
    if monoid.algebra.identity is None and any(shape[d] == 0 for d in dims):
        raise EmptyError(
            f"{call}: folding nothing needs an identity, got shape {list(shape)} and {monoid.name} without one; "
            "give the monoid an identity or the tensor elements"
        )
    result_shape = [1 if d in dims else n for d, n in enumerate(shape) if keepdim or d not in dims]
    targets = check_out(out, program.outputs, result_shape, tensors, call)
    abstract = next((t for t in tensors if is_abstract(t)), None)
    check_not_recorded(call, tensors[0].is_cuda)
    if abstract is not None:
        empty = [abstract.new_empty(result_shape, dtype=d) for d in program.outputs]
        return empty if targets is None else list(targets)
    # A view that negates has no memory of its own values.
    # Other tensors stay as they are: inside torch.func.jvp an operation would wrap even one that has no derivative.
    expanded = [plain(t).resolve_neg() if t.is_neg() else plain(t) for t in expanded]
    if key is None and tensors[0].is_cuda:
        layouts = tuple((t.shape, t.stride(), t.dtype, t.data_ptr() & 15) for t in expanded)
        key = (monoid, layouts, tensors[0].device, dims, keepdim, dtype, convert, guarantee)
    request = Reduction(program, dims, guarantee, tuple(result_shape), call=call)
    return dispatch.run(request, expanded, key, targets)


def requested(
    inputs: torch.Tensor | Sequence[torch.Tensor],
    monoid: Monoid,
    dim: int | Sequence[int] | None,
    guarantee: str,
    call: str,
) -> tuple[Reduction, list[torch.Tensor]]:
    """The request of a fold that is not run, and its tensors: validated, of one shape."""
    tensors = as_inputs(inputs, monoid, call)
    check_inputs(tensors, monoid, guarantee, call)
    shape = broadcast_shape(tensors, call)
    dims = normalize_dims(dim, len(shape), call)
    program = programs.specialize(monoid.total, tuple(t.dtype for t in tensors))
    request = Reduction(program, dims, guarantee, (), call=call)
    return request, [t.expand(shape) for t in tensors]
