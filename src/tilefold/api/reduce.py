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
from tilefold.api.initial import State, fields_of, initial_state, packed, tensors_of
from tilefold.api.recorded import (
    DIFFERENTIATED,
    SHARDED,
    between_graphs,
    is_differentiated,
    is_plainly_differentiated,
    is_sharded,
    recorded_fold,
)
from tilefold.api.requests import Reduction
from tilefold.errors import EmptyError
from tilefold.planner.problem.canonical import broadcast_shape, normalize_dims
from tilefold.planner.problem.validate import (
    as_dtype,
    as_inputs,
    check_apart,
    check_flags,
    check_inputs,
    check_out,
    check_unmapped,
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
    init: State | Sequence[State] | None = None,
    return_state: bool = False,
    dtype: torch.dtype | None = None,
    out: torch.Tensor | Sequence[torch.Tensor] | None = None,
    guarantee: str = "run_to_run",
) -> Any:
    """Fold the dims of one or several tensors with a monoid.

        result[k] = project(combine over all p of lift(x[k, p], y[k, p], ...)),  k in the output dims, p in the reduced dims

    With `init` its state stands before all elements: project(combine(init[k], combine over all p of ...)).

    Args:
        inputs: a tensor, or tensors that broadcast against each other; any strides, read in place (torch's own folds on a
            CPU may make temporaries). Elements may be bool, integers (signed or not) of 8 to 64 bits, or floats of 8 to
            64 bits.
        monoid: the monoid to fold with. Elements are combined in row-major order of `dim` unless it is commutative.
        dim: one dim, several, or None for all. An empty sequence folds nothing: each element is lifted and projected.
        keepdim: keep reduced dims with length 1.
        init: the state before each result's elements, as in `scan`: one number or tensor a field, tensors in the result's
            shape or one that broadcasts to it. Positions count from 0 in each call. Default: the identity.
        return_state: also give the state of each result, unprojected, so that what comes in chunks (a stream, micro-batches)
            can be folded chunk by chunk: `init` takes it. Its fields are the monoid's own (`Monoid.fields`; NORM(2) has
            `unit`, a power of two, and `sum`, the sum of squares in units of it), in the dtypes that states have; where one
            value has states of several forms, as `scan` says.
        dtype: the dtype of computed results, instead of the inputs' own; Python's float is torch.float64.
        out: tensor(s) to write the results into, of the results' shape and dtype. Where nothing is folded (`dim` is ()),
            one may be an input, exactly: the same memory in the same strides.
        guarantee: "run_to_run": the same bits for the same inputs, layout, chip, version and tuning table.
            "batch_invariant": besides, a result's bits depend neither on how many results there are nor on the chip's
            number of SMs. "none": neither; programs that share a result may combine it by atomic operations, unless
            torch.use_deterministic_algorithms is on.

    Returns:
        What `project` gives (or the state): a tensor, a tuple, or a named tuple, of the output dims' shape; with
        `return_state` a pair of that and the state (a tensor, or a named tuple of one a field). Floats come
        back in the inputs' dtype, integers as int64 unless the field says otherwise. States are float32 (float64
        for float64), so a sum of n floats errs by at most gamma_d * sum|x| before the last rounding, d being the
        depth of the plan's tree.

    Raises:
        DimError, ShapeError, DtypeError, DeviceError, ArgumentError: the call does not fit.
        EmptyError: nothing to fold, no `init`, and the monoid has no identity.
        GradientError: `out` is given while a gradient or a forward derivative is asked; or a state is asked
            for whose fields depend on how they were grouped.

    Example:
        >>> tilefold.reduce(torch.tensor([[3, 5], [8, 1]]), tilefold.monoids.BITWISE_OR, dim=1)
        tensor([7, 9])
        >>> first, state = tilefold.reduce(torch.tensor([1.0, 2.0]), tilefold.monoids.LOGSUMEXP, return_state=True)
        >>> tilefold.reduce(torch.tensor([3.0, 4.0]), tilefold.monoids.LOGSUMEXP, init=state)
        tensor(4.4402)
    """
    if (
        type(inputs) is Tensor
        and out is None
        and init is None
        and isinstance(monoid, Monoid)
        and not overridden(inputs)
    ):
        made = fold_tensors(
            [inputs], monoid, dim, keepdim, return_state=return_state, dtype=dtype, guarantee=guarantee
        )
        return packed(made, monoid, return_state)
    return _reduce(
        inputs, monoid, dim, keepdim, init=init, return_state=return_state, dtype=dtype, out=out, guarantee=guarantee
    )  # fmt: skip


def _reduce(inputs: Any, monoid: Monoid, *arguments: Any, init: Any, **options: Any) -> Any:
    """`reduce` from a state, of several tensors, or of tensors or an `out` of other classes."""
    tensors, before = as_inputs(inputs, monoid, "reduce"), fields_of(init)
    given = [f for f in before or () if isinstance(f, Tensor) or overridden(f)]
    relevant = [*tensors, *given, *listed(options["out"])]
    if overridden(*relevant):
        return override(reduce, relevant, inputs, monoid, *arguments, init=init, **options)
    results = packed(
        fold_tensors(tensors, monoid, *arguments, init=before, **options), monoid, options["return_state"]
    )
    return rebuildable(results) if classed(relevant) else results


def fold_tensors(
    tensors: Sequence[torch.Tensor],
    monoid: Monoid,
    dim: int | Sequence[int] | None,
    keepdim: bool,
    *,
    init: Sequence[State] | None = None,
    return_state: bool = False,
    dtype: torch.dtype | None = None,
    convert: torch.dtype | None = None,
    guarantee: str = "run_to_run",
    out: torch.Tensor | Sequence[torch.Tensor] | None = None,
    call: str = "reduce",
) -> list[torch.Tensor]:
    """`reduce` without packing: the results, then the state's fields if asked for. `convert` reads elements as that dtype."""
    if (keepdim is not True and keepdim is not False) or return_state is not False:
        check_flags(call, keepdim=keepdim, return_state=return_state)  # before calls are compared: 1 == True
    if type(guarantee) is str and guarantee == "none" and torch.are_deterministic_algorithms_enabled():
        guarantee = "run_to_run"
    autocast = _any_autocast()
    if autocast and (wide := as_widened(call, tensors, out, dtype)):
        dtype = convert = wide
    key = None
    alike = len(tensors) == 1 or (
        all(isinstance(t, Tensor) for t in tensors) and all(t.shape == tensors[0].shape for t in tensors)
    )
    if alike and out is None and init is None and not (autocast and is_left(tensors)):
        rest = (keepdim, return_state, dtype, convert, guarantee)
        key, made = dispatch.again(call_key, tensors, monoid, dim, rest)
        if made is not None:
            return made
        if (
            key is not None
            and return_state
            and isinstance(monoid, Monoid)
            and monoid.algebra.identity is None
        ):
            key = None  # these results are finished after each call
    every = [*tensors, *tensors_of(init)]
    if is_sharded(every):
        return SHARDED["reduce"](
            tensors, monoid, dim, keepdim, init, return_state, dtype, convert, guarantee, out, call
        )
    if is_dynamo_compiling():
        if out is None:
            return recorded_fold(
                tensors, monoid, dim, keepdim, init, return_state, dtype, convert, guarantee, call
            )
        state = {"init": init, "return_state": return_state}
        given = {
            **state,
            "dtype": dtype,
            "convert": convert,
            "guarantee": guarantee,
            "out": out,
            "call": call,
        }
        results: list[torch.Tensor] = between_graphs(fold_tensors, tensors, monoid, dim, keepdim, **given)
        return results
    if out is None and is_plainly_differentiated(every):
        dtype, convert = as_dtype(dtype, call), as_dtype(convert, call)
        return DIFFERENTIATED["reduce"](
            tensors, monoid, dim, keepdim, init, return_state, dtype, convert, guarantee, call, key
        )
    if out is None and is_seen(every):
        return recorded_fold(
            tensors, monoid, dim, keepdim, init, return_state, dtype, convert, guarantee, call
        )
    check_inputs(tensors, monoid, guarantee, call, differentiable=out is None)
    dtype, convert = as_dtype(dtype, call), as_dtype(convert, call)
    if out is None and is_differentiated(every):
        return recorded_fold(
            tensors, monoid, dim, keepdim, init, return_state, dtype, convert, guarantee, call
        )
    shape = broadcast_shape(tensors, call)
    dims = normalize_dims(dim, len(shape), call)
    expanded = [t if t.shape == shape else t.expand(shape) for t in tensors]
    elements, stateful = tuple(convert or t.dtype for t in tensors), init is not None or return_state
    program = programs.specialize(monoid.total, elements, dtype, stateful)
    if init is None and monoid.algebra.identity is None and any(shape[d] == 0 for d in dims):
        raise EmptyError(
            f"{call}: folding nothing needs an identity, got shape {list(shape)} and {monoid.name} without one; "
            "give the monoid an identity, the tensor elements, or the fold an init"
        )
    result_shape = [1 if d in dims else n for d, n in enumerate(shape) if keepdim or d not in dims]
    targets = check_out(out, program.outputs, result_shape, tensors, call, in_place=not dims)
    before = [] if init is None else initial_state(init, monoid, program, result_shape, tensors[0], call)
    check_apart(targets, init or (), "init", call)
    finish = programs.after_state(program, return_state) if before else None
    if stateful:
        program = programs.with_state(monoid.total, elements, dtype, results=not before)
    abstract = next((t for t in tensors if is_abstract(t)), None)
    check_not_recorded(call, tensors[0].is_cuda)
    if abstract is not None:
        empty = [abstract.new_empty(result_shape, dtype=d) for d in (finish or program).outputs]
        return _as_asked(empty, targets, monoid, return_state)
    # A view that negates has no memory of its own values.
    # Other tensors stay as they are: inside torch.func.jvp an operation would wrap even one that has no derivative.
    expanded = [plain(t).resolve_neg() if t.is_neg() else plain(t) for t in expanded]
    if key is None and tensors[0].is_cuda:
        layouts = tuple((t.shape, t.stride(), t.dtype, t.data_ptr() & 15) for t in expanded)
        key = (monoid, layouts, tensors[0].device, dims, keepdim, dtype, convert, guarantee, stateful, finish)
    request = Reduction(program, dims, guarantee, tuple(result_shape), call=call)
    if not stateful:
        return dispatch.run(request, expanded, key, targets)
    made = dispatch.run(request, expanded, key)
    if finish is not None:
        again = key and ("after", key, *(t.data_ptr() & 15 for t in before))
        after = Reduction(finish, (), guarantee, tuple(result_shape), call=call)
        made = dispatch.then(after, [*map(plain, before), *made], again)
    return _as_asked(made, targets, monoid, return_state)


def _as_asked(
    made: list[Tensor], targets: Sequence[Tensor] | None, monoid: Monoid, return_state: bool
) -> list[Tensor]:
    """The results, in the tensors that were asked for, and the state without the flag of a missing identity."""
    if return_state and monoid.algebra.identity is None:
        made = made[:-1]
    if targets is None:
        return made
    return [
        *(t if is_abstract(t) else t.copy_(r) for t, r in zip(targets, made, strict=False)),
        *made[len(targets) :],
    ]


def requested(
    inputs: torch.Tensor | Sequence[torch.Tensor],
    monoid: Monoid,
    dim: int | Sequence[int] | None,
    guarantee: str,
    call: str,
) -> tuple[Reduction, list[torch.Tensor]]:
    """The request of a fold that is not run, and its tensors: validated, of one shape."""
    tensors = as_inputs(inputs, monoid, call)
    check_inputs(tensors, monoid, guarantee, call, differentiable=True)
    for t in tensors:
        check_unmapped(t, "an input must be a plain tensor", "call it outside of them", call)
    shape = broadcast_shape(tensors, call)
    dims = normalize_dims(dim, len(shape), call)
    program = programs.specialize(monoid.total, tuple(t.dtype for t in tensors))
    request = Reduction(program, dims, guarantee, (), call=call)
    return request, [t.expand(shape) for t in tensors]
