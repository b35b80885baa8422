"""Calls as graphs hold them: one operation each, `tilefold::reduce` and the like, with the monoid as text.

torch.compile comes here while it traces, and so do calls inside of modes and transforms that see operations. The operations
are registered by `tilefold.api.operations`; their schemas have no shapes, so that one graph serves many.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from tilefold.algebra import text
from tilefold.algebra.monoid import Monoid
from tilefold.errors import ArgumentError
from tilefold.planner.library import LibraryMap
from tilefold.planner.products.functions import Traced
from tilefold.problem.canonical import normalize_dims, one_dim
from tilefold.problem.validate import no_derivative
from tilefold.runtime.uncompiled import constant_in_graphs

OPERATIONS: Any = torch.ops.tilefold
_text = constant_in_graphs(text.dumps)


def recorded_fold(
    tensors: Sequence[Tensor],
    monoid: Monoid,
    dim: Any,
    keepdim: bool,
    dtype: torch.dtype | None,
    convert: torch.dtype | None,
    guarantee: str,
    out: Any,
    call: str,
) -> list[Tensor]:
    """`fold_tensors` as one operation."""
    _check(tensors, monoid, out, call)
    dims = normalize_dims(dim, max(t.ndim for t in tensors), call)
    made: list[Tensor] = OPERATIONS.reduce(tensors, monoid.text, dims, keepdim, dtype, convert, guarantee)
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
    out: Any,
    call: str,
) -> list[Tensor]:
    """`scan_tensors` as one operation."""
    _check([*tensors, *[t for t in init or () if isinstance(t, Tensor)]], monoid, out, call)
    axis = one_dim(dim, max(t.ndim for t in tensors), call)
    before = (
        [] if init is None else [t if isinstance(t, Tensor) else tensors[0].new_full((), t) for t in init]
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
    out: Any,
    guarantee: str,
    library: LibraryMap | None,
    call: str,
) -> list[Tensor]:
    """`map_tensors` as one operation."""
    _check([*tensors, *extras], monoid, out, call)
    dims = normalize_dims(dim, max(t.ndim for t in tensors), call)
    own = (
        ""
        if library is None
        else _text((library.function, library.arguments, library.asks, library.any_rank))
    )
    made: list[Tensor] = OPERATIONS.reduce_map(
        tensors, extras, monoid.text, apply.text, dims, convert, guarantee, own
    )
    return made


def _check(tensors: Sequence[Tensor], monoid: Monoid, out: Any, call: str) -> None:
    """Refuse what an operation of a graph does not do: give gradients, and write into a tensor of the caller's.

    Raises:
        ArgumentError, GradientError: it is asked to.
    """
    if torch.is_grad_enabled() and any([t.requires_grad for t in tensors]):
        raise no_derivative(call, monoid)
    if out is not None:
        raise ArgumentError(f"{call}: a call in a graph must make its results, got `out`; copy them after it")
