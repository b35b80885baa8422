"""`scan`: validate, make a request, dispatch."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
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
    recorded_scan,
)
from tilefold.api.requests import Scan
from tilefold.errors import EmptyError
from tilefold.planner.problem.canonical import broadcast_shape, one_dim
from tilefold.planner.problem.validate import (
    as_dtype,
    as_inputs,
    check_apart,
    check_flags,
    check_inputs,
    check_out,
    is_abstract,
    overlap,
    plain,
)
from tilefold.runtime.modes import as_widened, check_not_recorded, is_left, is_seen
from tilefold.runtime.overrides import classed, listed, overridden, override, rebuildable
from tilefold.runtime.switch import call_key, layouts_once_checked


def scan(
    inputs: Tensor | Sequence[Tensor],
    monoid: Monoid,
    dim: int,
    *,
    init: State | Sequence[State] | None = None,
    exclusive: bool = False,
    reverse: bool = False,
    return_state: bool = False,
    dtype: torch.dtype | None = None,
    out: Tensor | Sequence[Tensor] | None = None,
    guarantee: str = "run_to_run",
) -> Any:
    """Every prefix along one dim of one or several tensors, combined with a monoid.

        result[r, p] = project(init combined with lift(x[r, 0], ...), then lift(x[r, 1], ...), ... lift(x[r, p], ...))

    `exclusive` leaves out the element p itself; `reverse` goes from the last element to p, so that the later of two is
    `combine`'s first argument.

    Args:
        inputs: a tensor, or tensors that broadcast against each other; any strides, read in place (a CPU gathers tiles of
            them). Elements as in `reduce`.
        monoid: the monoid to combine with, in the elements' order. Its positions count along `dim`.
        dim: the dim to scan.
        init: the state before each row: one number or tensor a field, tensors in the shape of the inputs without `dim`, or
            one that broadcasts to it. Numbers, and elements on a CPU, must fit the field's dtype; elements on a GPU, which
            are not looked at, wrap. Default: the identity.
        return_state: also give the state after each row, so that a long sequence can be scanned in chunks: `init` takes it.
            A state is combined in the plan's order. Where one value has states of several forms, as sums about
            a pivot have (WELFORD, DESCRIBE), fields may differ between backends, but their projection does not.
        dtype: the dtype of computed results, instead of the inputs' own.
        out: tensor(s) to write the prefixes into, of the inputs' shape and the results' dtypes. Each may be an input,
            exactly: the same memory in the same strides. The prefixes are then made in memory of their own and copied, since
            a thread of a GPU may read an element later than another thread would write its place.
        guarantee: as in `reduce`. "run_to_run": the order of combination is fixed by shapes and layout, however many programs
            share a row. "batch_invariant": besides, a row's bits do not depend on how many rows there are.

    Returns:
        What `project` gives, in the inputs' shape; with `return_state` a pair of that and the state after each row (a tensor,
        or a named tuple of one a field, in the dtypes that states have). An empty dim gives empty results.

    Raises:
        DimError, KindError, ShapeError, DtypeError, DeviceError, ArgumentError: the call does not fit.
        EmptyError: nothing comes before the first result (`exclusive`), or of an empty dim a state is asked for, and the
            monoid has no identity.
        GradientError: `out` is given while a gradient or a forward derivative is asked; or fields of states depend on how
            they were grouped, and slopes are no polynomials of elements (DESCRIBE), or a state is to have a gradient.

    Example:
        >>> a, b = torch.tensor([2.0, 3.0, 4.0]), torch.tensor([1.0, 1.0, 1.0])
        >>> slope, h = tilefold.scan((a, b), tilefold.monoids.AFFINE, dim=0)  # h[t] = a[t] * h[t - 1] + b[t]
        >>> h
        tensor([ 1.,  4., 17.])

    Blelloch, "Prefix sums and their applications", 1990; Merrill and Garland, "Single-pass parallel prefix scan with
    decoupled look-back", 2016, from which shared rows differ in that the order of combination is fixed.
    """
    if type(inputs) is Tensor and out is None and init is None and not overridden(inputs):
        made = scan_tensors(
            [inputs], monoid, dim, exclusive=exclusive, reverse=reverse, return_state=return_state, dtype=dtype,
            guarantee=guarantee,
        )  # fmt: skip
        return packed(made, monoid, return_state)
    return _scan(
        inputs, monoid, dim, init=init, exclusive=exclusive, reverse=reverse, return_state=return_state, dtype=dtype,
        out=out, guarantee=guarantee,
    )  # fmt: skip


def _scan(inputs: Any, monoid: Monoid, dim: Any, *, init: Any, out: Any, **options: Any) -> Any:
    """`scan` from a state, of several tensors, or of tensors or an `out` of other classes."""
    tensors = as_inputs(inputs, monoid, "scan")
    before = fields_of(init)
    relevant = [*tensors, *(f for f in before or () if isinstance(f, Tensor) or overridden(f)), *listed(out)]
    if overridden(*relevant):
        return override(scan, relevant, inputs, monoid, dim, init=init, out=out, **options)
    made = scan_tensors(tensors, monoid, dim, init=before, out=out, **options)
    results = packed(made, monoid, options["return_state"])
    return rebuildable(results) if classed(relevant) else results


def scan_tensors(
    tensors: Sequence[Tensor],
    monoid: Monoid,
    dim: int,
    *,
    init: Sequence[State] | None = None,
    exclusive: bool = False,
    reverse: bool = False,
    return_state: bool = False,
    dtype: torch.dtype | None = None,
    convert: torch.dtype | None = None,
    out: Tensor | Sequence[Tensor] | None = None,
    guarantee: str = "run_to_run",
    call: str = "scan",
    key: Any = None,
) -> list[Tensor]:
    """`scan` without packing: the results, then the state's fields if asked for. `convert` reads elements as that dtype.

    `key` is the caller's key of the call, if it has one.
    """
    if exclusive is not False or reverse is not False or return_state is not False:
        check_flags(call, exclusive=exclusive, reverse=reverse, return_state=return_state)
    autocast = _any_autocast()
    if autocast and (wide := as_widened(call, tensors, out, dtype)):
        dtype, convert, key = wide, wide, None
    if key is None and out is None and init is None and not (autocast and is_left(tensors)):
        rest = ("scan", exclusive, reverse, return_state, dtype, convert, guarantee)
        key, made = dispatch.again(call_key, tensors, monoid, dim, rest)
        if made is not None:
            return made
    every = [*tensors, *tensors_of(init)]
    if is_sharded(every):
        return SHARDED["scan"](
            tensors, monoid, dim, init, exclusive, reverse, return_state, dtype, convert, guarantee, out, call
        )
    if is_dynamo_compiling():
        if out is None:
            return recorded_scan(
                tensors, monoid, dim, init, exclusive, reverse, return_state, dtype, convert, guarantee, call
            )
        flags = {"exclusive": exclusive, "reverse": reverse, "return_state": return_state}
        given = {"dtype": dtype, "convert": convert, "guarantee": guarantee, "out": out, "call": call}
        results: list[Tensor] = between_graphs(
            scan_tensors, tensors, monoid, dim, init=init, **flags, **given
        )
        return results
    if out is None and is_plainly_differentiated(every):
        dtype, convert = as_dtype(dtype, call), as_dtype(convert, call)
        return DIFFERENTIATED["scan"](
            tensors, monoid, dim, init, exclusive, reverse, return_state, dtype, convert, guarantee, call, key
        )
    if out is None and is_seen(every):
        return recorded_scan(
            tensors, monoid, dim, init, exclusive, reverse, return_state, dtype, convert, guarantee, call
        )
    check_inputs(tensors, monoid, guarantee, call, differentiable=out is None)
    dtype, convert = as_dtype(dtype, call), as_dtype(convert, call)
    if out is None and is_differentiated(every):
        return recorded_scan(
            tensors, monoid, dim, init, exclusive, reverse, return_state, dtype, convert, guarantee, call
        )
    shape = broadcast_shape(tensors, call)
    if not shape or monoid.algebra.identity is None or any(t.shape != shape for t in tensors):
        key = None  # these results are finished after each call, or these tensors made ready before it
    # Prefixes along several dims would need an order among them, which a reshape says.
    axis = one_dim(dim, len(shape), call, fix="flatten several dims first, in the order of the scan")
    elements = tuple(convert or t.dtype for t in tensors)
    program = programs.specialize(monoid.total, elements, dtype, all_fields=init is not None or return_state)
    whole = shape or (1,)  # a 0-d tensor has one dim
    rows = () if not shape else (*whole[:axis], *whole[axis + 1 :])
    before = [] if init is None else initial_state(init, monoid, program, rows, tensors[0], call)
    if monoid.algebra.identity is None and not before:
        _need_identity(monoid, shape, whole[axis], exclusive, return_state, call)
    targets = check_out(out, program.outputs, shape, tensors, call, in_place=True)
    check_apart(targets, init or (), "init", call)
    check_not_recorded(call, tensors[0].is_cuda)
    request = Scan(program, axis, exclusive, reverse, len(before), return_state, guarantee, whole, call=call)
    made = _made(request, tensors, before, targets, shape, monoid, key)
    return _as_asked(made, targets, shape, monoid, len(program.outputs))


def _made(
    request: Scan,
    tensors: Sequence[Tensor],
    before: Sequence[Tensor],
    targets: Sequence[Tensor] | None,
    shape: Sequence[int],
    monoid: Monoid,
    key: Any,
) -> list[Tensor]:
    """The request's results: written into the targets where no state is asked for, without data where inputs have none."""
    abstract = next((t for t in tensors if is_abstract(t)), None)
    if abstract is not None:
        return [abstract.new_empty(s, dtype=d) for s, d in request.results]
    if 0 in request.shape:
        return _of_nothing(request, before, tensors[0].device)
    given = [t.expand(shape) for t in tensors]
    if not shape:  # a request has one dim at least
        given = [t.reshape(request.shape) for t in given]
    into = None if request.state else _written_at_once(targets, tensors, request.shape)
    return _run(request, given, before, into, monoid, key)


def _written_at_once(
    targets: Sequence[Tensor] | None, tensors: Sequence[Tensor], whole: Sequence[int]
) -> list[Tensor] | None:
    """The targets of at least one dim, where no input has their memory; others are copied to from the finished results."""
    if targets is None or any(overlap(target, t) for target in targets for t in tensors):
        return None
    return [t.view(whole) if not t.ndim else t for t in targets]


def _run(
    request: Scan,
    tensors: Sequence[Tensor],
    before: Sequence[Tensor],
    targets: Sequence[Tensor] | None,
    monoid: Monoid,
    key: Any,
) -> list[Tensor]:
    given = [plain(t).resolve_neg() if t.is_neg() else plain(t) for t in (*tensors, *before)]
    if key is None and (seen := layouts_once_checked(given)) is not None:
        work = (request.exclusive, request.reverse, request.inits, request.state, request.program.outputs)
        key = ("scan", monoid, seen, request.dim, work, request.program.elements, request.guarantee)
        if targets is None and given[0].is_cpu and (made := dispatch.repeated(key, *given)) is not None:
            return made
    return dispatch.run(request, given, key, targets)


def _as_asked(
    made: list[Tensor], targets: Sequence[Tensor] | None, shape: Sequence[int], monoid: Monoid, outputs: int
) -> list[Tensor]:
    """The results in the shape and the tensors that were asked for; a state without the flag of a missing identity."""
    if not shape:
        made = [r.view(()) for r in made]
    if targets is not None:
        made[:outputs] = [
            t if t is r or t.data_ptr() == r.data_ptr() else t.copy_(r)
            for t, r in zip(targets, made, strict=False)
        ]
    if monoid.algebra.identity is None and len(made) > outputs:
        made.pop()
    return made


def _need_identity(
    monoid: Monoid, shape: Sequence[int], length: int, exclusive: bool, return_state: bool, call: str
) -> None:
    if exclusive or (length == 0 and return_state):
        raise EmptyError(
            f"{call}: a state of nothing needs an identity, got shape {list(shape)} and {monoid.name} without one; give the "
            "monoid an identity or the scan an init"
        )


def _of_nothing(request: Scan, before: Sequence[Tensor], device: torch.device) -> list[Tensor]:
    """Empty results, and states that nothing was combined with."""
    made = [torch.empty(shape, dtype=dtype, device=device) for shape, dtype in request.results]
    for target, field in zip(made[len(request.program.outputs) :], before, strict=False):
        target.copy_(field)
    if request.state and not before:
        for target, number in zip(
            made[len(request.program.outputs) :], request.program.identity, strict=True
        ):
            target.fill_(number)
    return made
