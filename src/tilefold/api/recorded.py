"""Calls as graphs hold them: one operation each, `tilefold::reduce` and the like, with the monoid as text.

torch.compile comes here while it traces, and so do calls inside of modes and transforms that see operations. The operations
are registered by `operations`, `other_operations` and `registered`; their schemas have no shapes, so that one graph serves
many.
"""

from __future__ import annotations

import numbers
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.autograd import forward_ad

from tilefold.algebra import text
from tilefold.algebra.monoid import Monoid
from tilefold.algebra.numbers import fits_a_float, short_text
from tilefold.errors import ArgumentError, KindError, shown
from tilefold.planner.library import LibraryMap
from tilefold.planner.problem.canonical import normalize_dims, one_dim
from tilefold.planner.products.functions import Traced
from tilefold.runtime.caching import kept_outside_modes
from tilefold.runtime.modes import is_dual, is_recorded
from tilefold.runtime.uncompiled import constant_in_graphs, uncompiled

OPERATIONS: Any = torch.ops.tilefold
# What plain calls that ask for a gradient are, by the operation that they would be; the modules that register these fill it.
DIFFERENTIATED: dict[str, Callable[..., list[Tensor]]] = {}
# What calls of DTensors are, by the operation that they would be; `tilefold.distributed.dtensors` fills it.
SHARDED: dict[str, Callable[..., list[Tensor]]] = {}
_text = constant_in_graphs(text.dumps)


def recorded_fold(
    tensors: Sequence[Tensor],
    monoid: Monoid,
    dim: Any,
    keepdim: bool,
    init: Any,
    return_state: bool,
    dtype: torch.dtype | None,
    convert: torch.dtype | None,
    guarantee: str,
    call: str,
) -> list[Tensor]:
    """`fold_tensors` as one operation."""
    dims, before = (
        normalize_dims(dim, max(t.ndim for t in tensors), call),
        fields_as_tensors(init, tensors[0].device),
    )
    made: list[Tensor] = OPERATIONS.reduce(
        tensors, before, monoid.text, dims, keepdim, return_state, dtype, convert, guarantee
    )
    return made


def recorded_scan(
    tensors: Sequence[Tensor],
    monoid: Monoid,
    dim: Any,
    init: Any,
    exclusive: bool,
    reverse: bool,
    return_state: bool,
    dtype: torch.dtype | None,
    convert: torch.dtype | None,
    guarantee: str,
    call: str,
) -> list[Tensor]:
    """`scan_tensors` as one operation."""
    axis, before = (
        one_dim(dim, max(t.ndim for t in tensors), call),
        fields_as_tensors(init, tensors[0].device),
    )
    made: list[Tensor] = OPERATIONS.scan(
        tensors, before, monoid.text, axis, exclusive, reverse, return_state, dtype, convert, guarantee
    )
    return made


def recorded_map(
    tensors: Sequence[Tensor],
    monoid: Monoid,
    apply: Traced,
    dim: Any,
    extras: Sequence[Tensor],
    convert: torch.dtype | None,
    guarantee: str,
    library: LibraryMap | None,
    call: str,
) -> list[Tensor]:
    """`map_tensors` as one operation."""
    dims = normalize_dims(dim, max(t.ndim for t in tensors), call)
    made: list[Tensor] = OPERATIONS.reduce_map(
        tensors, extras, monoid.text, apply.text, dims, convert, guarantee, library_text(library)
    )
    return made


def recorded_segments(
    tensors: Sequence[Tensor],
    monoid: Monoid,
    numbers: Tensor,
    cut: Any,
    dim: Any,
    dtype: torch.dtype | None,
    guarantee: str,
) -> list[Tensor]:
    """`fold_segments` as one operation."""
    axis = one_dim(dim, max(t.ndim for t in tensors), "segment_reduce")
    made: list[Tensor] = OPERATIONS.segment_reduce(
        tensors,
        [numbers],
        monoid.text,
        cut.kind,
        cut.number,
        axis,
        dtype,
        cut.partial,
        cut.validate,
        guarantee,
    )
    return made


def recorded_many(
    tensors: Sequence[Tensor],
    monoid: Monoid,
    dtype: torch.dtype | None,
    together: bool,
    convert: torch.dtype | None,
) -> list[Tensor]:
    """`fold_many` as one operation."""
    made: list[Tensor] = OPERATIONS.reduce_many(tensors, monoid.text, dtype, together, convert)
    return made


def recorded_selection(x: Tensor, k: int, dim: Any, largest: bool, guarantee: str) -> list[Tensor]:
    """`topk` as one operation."""
    made: list[Tensor] = OPERATIONS.topk([x], k, one_dim(dim, x.ndim, "topk"), largest, guarantee)
    return made


def recorded_transpose(x: Tensor, dim0: Any, dim1: Any, guarantee: str) -> Tensor:
    """`transpose` as one operation."""
    dims = [one_dim(dim, x.ndim, "transpose", name) for dim, name in ((dim0, "dim0"), (dim1, "dim1"))]
    made: list[Tensor] = OPERATIONS.transpose([x], *dims, guarantee)
    return made[0]


def recorded_product(
    operands: Sequence[Tensor],
    extras: Sequence[Tensor],
    has_bias: bool,
    epilogue: Traced | None,
    row: tuple[Monoid, Traced | None] | None,
    out_dtype: torch.dtype | None,
    precision: str | None,
    guarantee: str,
) -> list[Tensor]:
    """`multiply` as one operation: the bias is the first of `extras`."""
    monoid, apply = ("", "") if row is None else (row[0].text, "" if row[1] is None else row[1].text)
    ending = "" if epilogue is None else epilogue.text
    made: list[Tensor] = OPERATIONS.product(
        operands, extras, has_bias, ending, monoid, apply, out_dtype, precision, guarantee
    )
    return made


def is_sharded(tensors: Sequence[Any]) -> bool:
    """Whether a call is one of DTensors, and `tilefold.distributed` is there to answer it."""
    return bool(SHARDED) and any(type(t).__name__ == "DTensor" for t in tensors)


def library_text(library: LibraryMap | None) -> str:
    """A function of torch's as an operation has it."""
    if library is None:
        return ""
    return _text((library.function, library.arguments, library.asks, library.any_rank, library.rows))


@kept_outside_modes(256)
def library_map(written: str) -> LibraryMap | None:
    """What `library_text` was written of."""
    return LibraryMap(*text.loads(written)) if written else None


def fields_as_tensors(init: Any, device: torch.device) -> list[Tensor]:
    """The fields of a state as tensors, which hold numbers exactly; none where no state is given."""
    return [] if init is None else [_as_tensor(field, device) for field in init]


def _as_tensor(field: Any, device: torch.device) -> Tensor:
    if isinstance(field, Tensor):
        return field
    if not isinstance(field, numbers.Real):
        raise KindError(f"init: a field must be a tensor or a number, got {shown(field)}; give one of these")
    number: Any = field
    if isinstance(number, int) and number.bit_length() > 63:  # more than int64 holds
        if not fits_a_float(number):
            raise ArgumentError(
                f"init: a number must fit float64, got {short_text(number)}; give a smaller one"
            )
        number = float(number)
    kind = (
        torch.bool if isinstance(number, bool) else torch.int64 if isinstance(number, int) else torch.float64
    )
    return torch.full((), number, dtype=kind, device=device)


def is_plainly_differentiated(tensors: Sequence[Any]) -> bool:
    """Whether a gradient is asked of a call that nothing but autograd is to see: plain tensors, no mode, no transform."""
    return (
        torch.is_grad_enabled()
        and _PLAIN.issuperset(map(type, tensors))
        and any(t.requires_grad for t in tensors)
        and torch._C._functorch.maybe_current_level() is None
        and not torch._C._len_torch_dispatch_stack()
        and not torch._C._is_tracing()
        and forward_ad._current_level < 0
        and not is_recorded()
    )


_PLAIN = frozenset((Tensor, torch.nn.Parameter))


def is_differentiated(tensors: Sequence[Any]) -> bool:
    """Whether autograd must see a call of these tensors as one operation: a gradient is asked of one, one carries a forward
    derivative, or a transform of torch.func holds one."""
    if asks_gradient(tensors) or any(map(is_dual, tensors)):
        return True
    return torch._C._functorch.maybe_current_level() is not None and any(
        torch._C._functorch.is_functorch_wrapped_tensor(t) for t in tensors
    )


def asks_gradient(tensors: Sequence[Tensor]) -> bool:
    """Whether autograd would record a call of these tensors."""
    return torch.is_grad_enabled() and any(t.requires_grad for t in tensors)


@uncompiled
def between_graphs(function: Callable[..., Any], *arguments: Any, **named: Any) -> Any:
    """A call as torch.compile makes it where no graph can hold it: as it is, with what it refuses."""
    return function(*arguments, **named)
