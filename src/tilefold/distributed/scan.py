"""`tilefold.distributed.scan`: the state before a shard is that of all shards before it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from torch.compiler import is_dynamo_compiling

from tilefold.algebra import text
from tilefold.algebra.monoid import Monoid, monoid_of
from tilefold.api.parts import Dtypes, algebra_of, finish_text, partial_text, turned, with_base
from tilefold.api.recorded import OPERATIONS, asks_gradient
from tilefold.api.scan import scan_tensors
from tilefold.distributed.exchange import first_positions, gathered_states, positions_of
from tilefold.distributed.gradient import check_tangents
from tilefold.distributed.reduce import agreed, fold_of_text
from tilefold.errors import EmptyError, GradientError
from tilefold.problem.canonical import broadcast_shape, one_dim
from tilefold.problem.validate import as_dtype, as_inputs, check_flags, check_inputs
from tilefold.runtime.uncompiled import constant_in_graphs

CALL = "distributed.scan"


def scan(
    inputs: Tensor | Sequence[Tensor],
    monoid: Monoid,
    dim: int,
    *,
    sharded_dim: int | None,
    group: Any = None,
    mesh: Any = None,
    exclusive: bool = False,
    reverse: bool = False,
    dtype: torch.dtype | None = None,
    guarantee: str = "run_to_run",
) -> Any:
    """Every prefix along one dim of a tensor of which each rank of a group holds a part: `tilefold.scan` of the parts.

    Where `dim` is the sharded dim each rank folds its part, the states are gathered by one exchange, and each rank scans its
    part from the state of all parts before it (after it, with `reverse`). Its elements are read twice.

    Args:
        inputs, sharded_dim, group, mesh: as in `tilefold.distributed.reduce`.
        monoid, dim, exclusive, reverse, dtype, guarantee: as in `tilefold.scan`. Positions are those of the whole tensor.

    Returns:
        This rank's part of the prefixes, in its inputs' shape.

    Raises:
        As `tilefold.distributed.reduce`; and
        EmptyError: `exclusive` of a monoid without an identity.
        GradientError: a gradient is asked for along the sharded dim.

    Example:
        >>> tilefold.distributed.scan(shard, tilefold.monoids.SUM, 0, sharded_dim=0)  # doctest: +SKIP
    """
    tensors = as_inputs(inputs, monoid, CALL)
    check_flags(CALL, exclusive=exclusive, reverse=reverse)
    check_inputs(tensors, monoid, guarantee, CALL, differentiable=True)
    shape, dtype = broadcast_shape(tensors, CALL), as_dtype(dtype, CALL)
    along = one_dim(dim, len(shape), CALL)
    facts = {
        "monoid": monoid,
        "dim": along,
        "exclusive": exclusive,
        "reverse": reverse,
        "result dtype": dtype,
    }
    axis, ranks = agreed(tensors, shape, sharded_dim, group, mesh, guarantee, facts, CALL)
    form: dict[str, Any] = {"exclusive": exclusive, "reverse": reverse, "guarantee": guarantee}
    if axis != along:
        return monoid.pack(scan_tensors(tensors, monoid, along, dtype=dtype, call=CALL, **form))
    check_tangents(tensors, CALL)
    if asks_gradient(tensors):
        raise GradientError(
            f"{CALL}: a scan along the sharded dim has no derivative, got an input that requires grad; call it under "
            "torch.no_grad(), or scan another dim"
        )
    if exclusive and monoid.algebra.identity is None:
        raise EmptyError(
            f"{CALL}: nothing is before the first element, and {monoid.name} has no identity, got exclusive=True; give "
            "the monoid an identity"
        )
    given, elements = list(tensors), tuple([t.dtype for t in tensors])
    if monoid.algebra.index:
        where = positions_of(shape[axis], tensors[0].device, ranks)
        given.append(first_positions(shape, (), (), axis, where, False))
    whole, part, finish = _texts(monoid.text, elements, reverse)
    states = fold_of_text(given, part, (axis,), True, None, None, guarantee)
    every = gathered_states(states, axis, ranks)
    beside = _scan(every, finish, axis, [], exclusive=True, reverse=reverse, dtype=None, guarantee=guarantee)
    init = [t.select(axis, ranks.rank) for t in beside]
    return monoid.pack(_scan(given, whole, axis, init, dtype=dtype, **form))


@constant_in_graphs
def _texts(monoid: str, elements: Dtypes, reverse: bool) -> tuple[str, str, str]:
    """The monoid of a shard's scan, that of its state, and that of all ranks' states."""
    part = partial_text(monoid, elements, False)
    return (
        text.dumps(with_base(algebra_of(monoid, elements, False))),
        turned(part) if reverse else part,
        finish_text(monoid, elements, False, False),
    )


def _scan(
    tensors: Sequence[Tensor], monoid: str, dim: int, init: Sequence[Tensor], *, exclusive: bool, reverse: bool, dtype: Any,
    guarantee: str,
) -> list[Tensor]:  # fmt: skip
    """A scan with the monoid of a text."""
    if is_dynamo_compiling():
        made: list[Tensor] = OPERATIONS.scan(
            tensors, init, monoid, dim, exclusive, reverse, False, dtype, None, guarantee
        )
        return made
    return scan_tensors(
        tensors, monoid_of(monoid), dim, init=init or None, exclusive=exclusive, reverse=reverse, dtype=dtype,
        guarantee=guarantee, call=CALL,
    )  # fmt: skip
