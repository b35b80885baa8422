"""Which backend runs a call, and when a repeated call may skip its checks: one rule for folds and products."""

from __future__ import annotations

import contextlib
import contextvars
import os
from collections.abc import Callable, Iterator, Sequence
from typing import Any

# By these names alone: looking each up in torch costs as much as asking it.
from torch import Tensor, get_num_threads
from torch import is_grad_enabled as _is_grad_enabled
from torch._C import _is_any_autocast_enabled, _is_tracing, _len_torch_dispatch_stack
from torch._C._dynamo.guards import TensorGuards
from torch._C._functorch import maybe_current_level
from torch.autograd import forward_ad
from torch.compiler import is_dynamo_compiling
from torch.nn import Parameter

from tilefold.errors import ArgumentError, is_one_of, shown

BACKENDS = ("auto", "torch", "cpu", "reference", "interpret", "triton")
ALIASES = {"lanes": "cpu"}
EXPLAIN = "explain"  # in force where a call is planned and not run
_PLAIN = frozenset((Tensor, Parameter))
RECORDED = "recorded, "  # stands before what is in force where calls are recorded

# The environment is read once, for calls outside of all blocks: a repeated call asks one question.
_forced: contextvars.ContextVar[str] = contextvars.ContextVar(
    "tilefold_backend", default=os.environ.get("TILEFOLD_BACKEND") or "auto"
)


@contextlib.contextmanager
def backend(name: str) -> Iterator[None]:
    """Force a backend inside a `with` block.

    "torch" (torch's own fold, where it gives the promised answers), "cpu" (loops over tiles; once called "lanes"), "triton"
    (CUDA), "interpret" (Triton's interpreter), "reference" (one element after another); "auto" chooses: triton for CUDA
    tensors, else torch or cpu.
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


class ExplainedError(Exception):
    """Carries a validated request and its tensors out of the call that made it, before anything runs."""

    def __init__(self, request: Any, tensors: Any) -> None:
        """Keep both."""
        super().__init__("a call that is explained")
        self.request, self.tensors = request, tensors


@contextlib.contextmanager
def explaining() -> Iterator[None]:
    """Within it a call ends with an `ExplainedError` where it would be planned, also one of tensors without data."""
    token = _forced.set(EXPLAIN)
    try:
        yield
    finally:
        _forced.reset(token)


@contextlib.contextmanager
def recording() -> Iterator[None]:
    """Within it no call is taken for an earlier one: a graph is recorded, which torch's dispatch does not always show."""
    token = _forced.set(RECORDED + _forced.get())
    try:
        yield
    finally:
        _forced.reset(token)


def is_explaining() -> bool:
    """Whether calls are planned and not run."""
    return _forced.get().removeprefix(RECORDED) == EXPLAIN


def _known_backend(name: str, where: str) -> str:
    if is_one_of(name, BACKENDS):
        return name
    if is_one_of(name, ALIASES):
        return ALIASES[name]
    raise ArgumentError(
        f"{where}: the name must be one of {', '.join(BACKENDS)}, got {shown(name)}; take one of these"
    )


def forced_backend() -> str:
    """The backend in force here: from `backend(...)`, from TILEFOLD_BACKEND, or "auto"."""
    return _known_backend(
        _forced.get().removeprefix(RECORDED), "TILEFOLD_BACKEND"
    )  # blocks have checked theirs


def layout(t: Tensor, differentiated: bool = False) -> tuple[Any, ...] | None:
    """All of a plain call's tensor that plans and code depend on; None where the call must be checked every time.

    That is: where a backend is forced; in modes that record, replace or merely see operations, in torch.jit's trace, and
    where there are forward derivatives; of subclasses, views that negate, and (unless these are
    `differentiated`, outside of transforms) tensors that require grad; of nested, sparse
    and mapped ones, which have no address, of those of functionalize, whose address is 0, and, with them, of those without
    elements. Modes of functions have been asked before (`overrides`). On a CPU plans also follow the number of threads.
    """
    if type(t) not in _PLAIN:
        return None
    asked = t.requires_grad and _is_grad_enabled()
    if (
        _forced.get() != "auto"
        or _len_torch_dispatch_stack()
        or forward_ad._current_level >= 0
        or t.is_neg()
        or _is_tracing()
        or (asked and not (differentiated and maybe_current_level() is None))
    ):
        return None
    try:
        address = t.data_ptr()
        if address and t.is_cpu:
            return (t.shape, t.stride(), t.dtype, address & 15, get_num_threads(), asked)
        return (
            (t.shape, t.stride(), t.dtype, address & 15, t.device, asked) if address and t.is_cuda else None
        )
    except RuntimeError:
        return None


class Alike:
    """Whether tensors have the layouts of others, with nothing in force that sees their calls: `layout` of each at once.

    torch's guards of compiled graphs answer most of it (a private class of torch's): class, dtype, device, sizes, strides,
    keys of dispatch with those in force, and `requires_grad`, whether or not gradients are recorded.
    """

    def __init__(self, tensors: Sequence[Tensor]) -> None:
        first = dict[int, int]()
        self._firsts = [first.setdefault(id(t), i) for i, t in enumerate(tensors)]
        self._own = list(first.values())  # the guards want each tensor once
        self._repeats = len(self._own) < len(tensors)
        tensors = [tensors[i] for i in self._own]
        sizes: list[Any] = [list(t.shape) for t in tensors]  # torch's stub says that these are of one tensor
        strides: list[Any] = [list(t.stride()) for t in tensors]
        self._check: Callable[..., bool] = TensorGuards(
            *tensors, dynamic_dims_sizes=sizes, dynamic_dims_strides=strides
        ).check
        self._places, self._threads = [t.data_ptr() & 15 for t in tensors], get_num_threads()
        self._aligned = not any(self._places)
        self._may_record, self._records = any(t.requires_grad for t in tensors), _is_grad_enabled()

    def __call__(self, tensors: Sequence[Tensor], *, placed: bool = False) -> bool:
        """The answer, where torch.compile does not trace. `placed`: each is known to have an address, and is not nested."""
        if self._repeats:
            if any(t is not tensors[i] for t, i in zip(tensors, self._firsts, strict=True)):
                return False
            tensors = [tensors[i] for i in self._own]
        places = 0
        if not placed:
            try:
                # The guards end the process where a tensor has no strides: of those nested ones alone have an address.
                for t in tensors:
                    if type(t) not in _PLAIN or t.is_nested:
                        return False
                    places |= t.data_ptr()
            except RuntimeError:
                return False
        if (
            not self._check(*tensors)
            or _forced.get() != "auto"
            or _len_torch_dispatch_stack()
            or forward_ad._current_level >= 0
            or _is_tracing()
            or get_num_threads() != self._threads
            or (self._may_record and _is_grad_enabled() != self._records)
        ):
            return False
        if placed or self._aligned:
            return not places & 15
        return [t.data_ptr() & 15 for t in tensors] == self._places


def layouts(tensors: Sequence[Tensor | None]) -> tuple[Any, ...] | None:
    """Those of the tensors that are there; None where one has none, torch.compile traces, or torch.autocast is on."""
    if is_dynamo_compiling() or _is_any_autocast_enabled():
        return None
    found = tuple([t if t is None else layout(t) or False for t in tensors])
    return None if False in found else found


def layouts_once_checked(tensors: Sequence[Tensor]) -> tuple[Any, ...] | None:
    """`layouts` of a checked call's tensors, where only those on a CPU depend on more than how they lie."""
    if not tensors[0].is_cuda:
        return layouts(tensors)
    return (*((t.shape, t.stride(), t.dtype, t.data_ptr() & 15) for t in tensors), tensors[0].device)


def call_key(
    tensors: Sequence[Tensor], what: Any, dim: int | tuple[int, ...] | None, rest: tuple[Any, ...]
) -> tuple[Any, ...] | None:
    """The key of a plain call of some tensors; None where the call must be checked every time.

    `rest` are values of which equal ones mean the same.
    """
    if len(tensors) == 1:
        return None if (seen := layout(tensors[0], True)) is None else (what, seen, dim, rest)
    found = tuple([layout(t, True) for t in tensors])
    return None if None in found or not found else (what, found, dim, rest)


def named_key(
    tensors: Sequence[Tensor], name: str, dim: int | tuple[int, ...] | None, rest: tuple[Any, ...]
) -> tuple[Any, ...] | None:
    """`call_key` of a function by its name whose computation autocast may change: None inside of autocast."""
    return None if _is_any_autocast_enabled() else call_key(tensors, name, dim, rest)


def whole_dims(dims: Any) -> tuple[int, ...] | None:
    """Several dims, each an int; None for others: numbers of other kinds may equal one (True, 1.0) or change (a tensor)."""
    if not isinstance(dims, (tuple, list)):
        return None
    for dim in dims:
        if type(dim) is not int:
            return None
    return tuple(dims)
