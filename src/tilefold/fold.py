"""`reduce`: validate, make the problem, plan, run. Also the switch of backends and the last plan."""

from __future__ import annotations

import contextlib
import contextvars
import os
import threading
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any

import torch
from torch.autograd import forward_ad

from tilefold.algebra import program as programs
from tilefold.algebra.monoid import Monoid
from tilefold.algebra.program import Program
from tilefold.errors import ArgumentError, BackendError, EmptyError
from tilefold.modes import as_given, check_not_recorded
from tilefold.planner.plan import Plan
from tilefold.problem import broadcast_shape, normalize_dims
from tilefold.uncompiled import uncompiled
from tilefold.validate import (
    as_dtype,
    as_inputs,
    check_inputs,
    check_keepdim,
    check_out,
    is_abstract,
    plain,
    shares,
)

if TYPE_CHECKING:
    from tilefold.contract.plan import ContractPlan

BACKENDS = ("auto", "torch", "lanes", "reference", "interpret", "triton")

_ENVIRONMENT = (
    os.environ.get("TILEFOLD_BACKEND") or "auto"
)  # read once: looking it up costs a tenth of a GPU call
_forced: contextvars.ContextVar[str | None] = contextvars.ContextVar("tilefold_backend", default=None)
_last = threading.local()


@contextlib.contextmanager
def backend(name: str) -> Iterator[None]:
    """Force a backend inside a `with` block.

    "torch" (torch's own fold, where it gives the promised answers), "lanes" (CPU), "triton" (CUDA), "interpret" (Triton's
    interpreter), "reference" (one element after another); "auto" chooses: triton for CUDA tensors, else torch or lanes.
    Blocks nest, the inner one holds, and a thread started inside begins without. The environment variable TILEFOLD_BACKEND,
    read at import, does the same for a process; a block overrides it. What each backend guarantees stands in
    docs/guarantees.md. A forced backend never falls back to another.

    Raises:
        ArgumentError: no backend has that name.
        BackendError: from a fold inside: torch has none that is known to give the promised answers, or "triton" is given
            tensors on a CPU.

    Example:
        >>> with tilefold.backend("reference"):
        ...     total = tilefold.sum(torch.tensor([1, 2, 3]))
        >>> total, tilefold.last_plan().backend
        (tensor(6), 'reference')
    """
    token = _forced.set(_known_backend(name, "backend"))
    try:
        yield
    finally:
        _forced.reset(token)


def _known_backend(name: str, where: str) -> str:
    if name not in BACKENDS:
        raise ArgumentError(
            f"{where}: the name must be one of {', '.join(BACKENDS)}, got {name!r}; take one of these"
        )
    return name


def forced_backend() -> str:
    """The backend in force here: from `backend(...)`, from TILEFOLD_BACKEND, or "auto"."""
    return _forced.get() or _known_backend(_ENVIRONMENT, "TILEFOLD_BACKEND")


def last_plan() -> Plan | ContractPlan | None:
    """The plan of this thread's most recent fold or product, or None before the first.

    Frozen, comparable, and readable when printed; `explain_plan` gives one without running. Folds of tensors without data
    (on "meta") leave the plan before them.

    Example:
        >>> with tilefold.backend("lanes"):
        ...     most = tilefold.amax(torch.tensor([1, 2, 3]))
        >>> print(tilefold.last_plan())
        lanes: lanes, boxes of 3 elements
    """
    return getattr(_last, "plan", None)


def remember_plan(plan: Plan | ContractPlan) -> None:
    """Note which plan made this thread's latest result."""
    _last.plan = plan


@uncompiled
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

        result[kept] = project(combine over all folded positions p of lift(x[kept, p], y[kept, p], ...))

    Args:
        inputs: a tensor, or tensors that broadcast against each other; any strides, read in place (torch's own folds on a
            CPU may make temporaries). Elements may be bool, integers (signed or not) of 8 to 64 bits, or floats of 8 to
            64 bits.
        monoid: what to fold with. Combined in row-major order of `dim` unless it is commutative.
        dim: one dim, several, or None for all. An empty sequence folds nothing: each element is lifted and projected.
        keepdim: keep folded dims with length 1.
        dtype: the dtype of computed results, instead of the inputs' own; Python's float is torch.float64.
        out: tensor(s) to write the results into, of the results' shape and dtype.
        guarantee: "run_to_run": the same bits for the same inputs, layout, chip, version and tuning table.
            "batch_invariant": besides, a result's bits depend neither on how many results there are nor on the chip's
            core count. "none": neither.

    Returns:
        What `project` gives (or the state): a tensor, a tuple, or a named tuple, in the kept dims' shape. Floats come
        back in the inputs' dtype, integers as int64 unless the field says otherwise. States are carried in float32 (float64
        for float64), so a sum of n floats errs by at most gamma_d * sum|x| before the last rounding, d being the
        depth of the plan's tree.

    Raises:
        DimError, ShapeError, DtypeError, DeviceError, ArgumentError: the call does not fit.
        EmptyError: nothing to fold and the monoid has no identity.
        GradientError: an input requires grad outside `torch.no_grad()`: folds have no derivative yet.

    Example:
        >>> tilefold.reduce(torch.tensor([[3, 5], [8, 1]]), tilefold.monoids.BITWISE_OR, dim=1)
        tensor([7, 9])
    """
    tensors = as_inputs(inputs, monoid, "reduce")
    results = fold_tensors(tensors, monoid, dim, keepdim, dtype=dtype, guarantee=guarantee, out=out)
    return monoid.pack(results)


@uncompiled
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
    key = None
    x = tensors[0] if len(tensors) == 1 and out is None else None
    plain_call = forward_ad._current_level < 0 and not torch._C._len_torch_dispatch_stack()
    if type(x) is torch.Tensor and x.is_cuda and plain_call and not x.is_neg():
        key, ready = _known(x, monoid, dim, keepdim, dtype, convert, guarantee)
        if ready is not None and _forced.get() is None and not (x.requires_grad and torch.is_grad_enabled()):
            _last.plan = ready.plan
            repeated: list[torch.Tensor] = ready.call(x)
            return repeated
    check_inputs(tensors, monoid, guarantee, call)
    dtype, convert = as_dtype(dtype, call), as_dtype(convert, call)
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
    check_not_recorded(call)
    if abstract is not None:
        empty = [abstract.new_empty(result_shape, dtype=d) for d in program.outputs]
        return empty if targets is None else list(targets)
    # A view that negates has no memory of its own values.
    expanded = [plain(t).resolve_neg() for t in expanded]
    if key is None and tensors[0].is_cuda:
        layouts = tuple((t.shape, t.stride(), t.dtype, t.data_ptr() & 15) for t in expanded)
        key = (monoid, layouts, tensors[0].device, dims, keepdim, dtype, convert, guarantee)
    results = _run(expanded, program, dims, guarantee, result_shape, key)
    results = [r if list(r.shape) == result_shape else r.reshape(result_shape) for r in results]
    if targets is None:
        return results
    for target, result in zip(targets, results, strict=True):
        target.copy_(result)
    return list(targets)


# Launchers of repeated GPU calls, by all that a plan and its code depend on: plain calls of one tensor by what they were
# given, others by what it means once checked.
_ready: dict[Any, Any] = {}


def _known(x: torch.Tensor, monoid: Monoid, dim: Any, *rest: Any) -> tuple[Any, Any]:
    """What a plain call is known by and its launcher; None where there is none, or arguments must be checked every time.

    Numbers of other kinds may equal a dim (True, 1.0) or change (a tensor), so only ints count.
    """
    if dim is not None and type(dim) is not int:
        if not isinstance(dim, (tuple, list)) or any(type(d) is not int for d in dim):
            return None, None
        dim = tuple(dim)
    try:
        key = (monoid, x.shape, x.stride(), x.dtype, x.data_ptr() & 15, x.device, dim, *rest)
        return key, _ready.get(key)
    except (RuntimeError, TypeError):  # nested, sparse or mapped; no dtype, no guarantee: the checks say so
        return None, None


def kept(cache: dict[Any, Any], key: Any, make: Callable[[], Any]) -> Any:
    """What a cache holds under a key, made where it is missing; a key of None is no key. A full cache begins anew."""
    found = cache.get(key) if key is not None else None
    if found is None:
        found = make()
        if key is not None:
            if len(cache) >= 4096:
                cache.clear()
            cache[key] = found
    return found


def _run(
    tensors: Sequence[torch.Tensor],
    program: Program,
    dims: tuple[int, ...],
    guarantee: str,
    shape: Sequence[int],
    key: Any = None,
) -> list[torch.Tensor]:
    """Choose the backend and run. On a GPU nothing else stands in for Triton."""
    chosen = forced_backend()
    if chosen in ("triton", "interpret") or (chosen == "auto" and tensors[0].is_cuda):
        from tilefold.backends.triton import launch

        if chosen == "interpret":
            return launch.interpret(tensors, program, dims, guarantee)
        ready = kept(_ready, key, lambda: launch.prepare(tensors, program, dims, guarantee, shape))
        remember_plan(ready.plan)
        made: list[torch.Tensor] = ready(*tensors)
        return made
    if chosen == "reference":
        from tilefold.backends import reference

        remember_plan(Plan("reference", (), guarantee=guarantee, reason="one element after another"))
        return reference.fold(tensors, program, dims)
    with as_given(tensors[0].device):
        return _run_on_torch(chosen, tensors, program, dims, guarantee)


def _run_on_torch(
    chosen: str, tensors: Sequence[torch.Tensor], program: Program, dims: tuple[int, ...], guarantee: str
) -> list[torch.Tensor]:
    """By torch's own fold, or by lanes of its operations."""
    from tilefold.backends import lanes, native

    if chosen in ("auto", "torch"):
        results = native.fold(tensors, program, dims, guarantee, forced=chosen == "torch")
        if results is not None:
            remember_plan(Plan("torch", (), guarantee=guarantee, reason="torch has this fold"))
            return results
        if chosen == "torch":
            fields, dtypes = ", ".join(program.algebra.fields), ", ".join(str(t.dtype) for t in tensors)
            raise BackendError(
                "backend: torch's own fold must be known to give the promised answers (accuracy, dtypes, guarantee), got "
                f'({fields}) of {dtypes} over dims {list(dims)}, "{guarantee}", without one; use "lanes" or "auto"'
            )
    results, plan = lanes.fold(tensors, program, dims, guarantee)
    remember_plan(plan)
    # A fold of one element may come back as the input itself: a result owns its memory.
    return [
        r.clone(memory_format=torch.contiguous_format) if any(shares(r, t) for t in tensors) else r
        for r in results
    ]


def explain_fold(
    inputs: torch.Tensor | Sequence[torch.Tensor],
    monoid: Monoid,
    dim: int | Sequence[int] | None,
    guarantee: str,
    device: Any,
) -> Plan:
    """`explain_plan` of a monoid."""
    from tilefold.planner.choose import plan_tensors
    from tilefold.planner.device import H200, device_of

    tensors = as_inputs(inputs, monoid, "explain_plan")
    check_inputs(tensors, monoid, guarantee, "explain_plan")
    shape = broadcast_shape(tensors, "explain_plan")
    dims = normalize_dims(dim, len(shape), "explain_plan")
    program = programs.specialize(monoid.total, tuple(t.dtype for t in tensors))
    chip = device or (device_of(tensors[0].device.index) if tensors[0].is_cuda else H200)
    return plan_tensors([t.expand(shape) for t in tensors], program, dims, chip, guarantee)[1]
