"""Folds, scans and maps as operations of torch's library: what compiled and exported graphs hold of them.

    tilefold::reduce      the results of a fold
    tilefold::scan        prefixes, and the state after them

A schema has no shapes: a monoid travels as text (`algebra.text`), so that equal ones, made anew, are one graph, and a graph
that is saved holds all that it needs. The frozen request, whose shapes are numbers, is made inside the implementation; the
fake one computes with symbols. No argument has a default: torch leaves out what equals one, and derivatives must then give
as few.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from tilefold.algebra import program as programs
from tilefold.algebra import text
from tilefold.algebra.monoid import monoid_of
from tilefold.api.reduce import fold_tensors
from tilefold.api.reduce_map import map_tensors
from tilefold.api.requests import Reduction, RowMap, Scan
from tilefold.api.scan import scan_tensors
from tilefold.planner.library import LibraryMap
from tilefold.planner.products.functions import of_text
from tilefold.planner.products.row import make_row_map
from tilefold.problem.canonical import broadcast_shape
from tilefold.problem.validate import no_derivative

LIBRARY = torch.library.Library("tilefold", "FRAGMENT")
LIBRARY.define(
    "reduce(Tensor[] inputs, str monoid, int[] dims, bool keepdim, ScalarType? dtype, ScalarType? convert, "
    "str guarantee) -> Tensor[]"
)


LIBRARY.define(
    "scan(Tensor[] inputs, Tensor[] init, str monoid, int dim, bool exclusive, bool reverse, bool return_state, "
    "ScalarType? dtype, ScalarType? convert, str guarantee) -> Tensor[]"
)
LIBRARY.define(
    "reduce_map(Tensor[] inputs, Tensor[] extras, str monoid, str apply, int[] dims, ScalarType? convert, str guarantee, "
    "str library) -> Tensor[]"
)


def _in_front(
    tensors: Sequence[Tensor], dims: Sequence[int | None], size: int, rank: int = 0
) -> list[Tensor]:
    """Tensors of one call with the mapped dim first: expanded, and with as many dims besides (`rank` at least), since they
    broadcast."""
    rank = max([rank, *(t.ndim - (d is not None) for t, d in zip(tensors, dims, strict=True))])
    made = []
    for t, d in zip(tensors, dims, strict=True):
        t = t[None] if d is None else t.movedim(d, 0)
        t = t.reshape(t.shape[0], *[1] * (rank + 1 - t.ndim), *t.shape[1:])
        made.append(t.expand(size, *[-1] * rank))
    return made


def _fresh(made: Sequence[Tensor], given: Sequence[Tensor]) -> list[Tensor]:
    """Results as the fake implementation gives them: contiguous, and no memory of an input."""
    return [
        r.clone(memory_format=torch.contiguous_format)
        if any(r is t for t in given) or not r.is_contiguous()
        else r
        for r in made
    ]


def _reduce(
    inputs: list[Tensor],
    monoid: str,
    dims: list[int],
    keepdim: bool,
    dtype: Any,
    convert: Any,
    guarantee: str,
) -> list[Tensor]:
    with torch.no_grad():  # below autograd the mode is still the caller's
        made = fold_tensors(
            inputs, monoid_of(monoid), tuple(dims), keepdim, dtype=dtype, convert=convert, guarantee=guarantee
        )
        return _fresh(made, inputs)


LIBRARY.impl("reduce", _reduce, "CompositeExplicitAutograd")


@torch.library.register_fake("tilefold::reduce", lib=LIBRARY)
def _fake_reduce(
    inputs: list[Tensor],
    monoid: str,
    dims: list[int],
    keepdim: bool,
    dtype: Any,
    convert: Any,
    guarantee: str,
) -> list[Tensor]:
    program = programs.specialize(monoid_of(monoid).total, tuple(convert or t.dtype for t in inputs), dtype)
    shape = broadcast_shape(inputs, "reduce")
    kept = tuple(1 if d in dims else n for d, n in enumerate(shape) if keepdim or d not in dims)
    request = Reduction(program, tuple(dims), guarantee, kept)
    return [inputs[0].new_empty(s, dtype=d) for s, d in request.results]


def _scan(
    inputs: list[Tensor], init: list[Tensor], monoid: str, dim: int, exclusive: bool, reverse: bool, return_state: bool,
    dtype: Any, convert: Any, guarantee: str,
) -> list[Tensor]:  # fmt: skip
    with torch.no_grad():
        made = scan_tensors(
            inputs, monoid_of(monoid), dim, init=init or None, exclusive=exclusive, reverse=reverse,
            return_state=return_state, dtype=dtype, convert=convert, guarantee=guarantee,
        )  # fmt: skip
        return _fresh(made, inputs)


LIBRARY.impl("scan", _scan, "CompositeExplicitAutograd")


@torch.library.register_fake("tilefold::scan", lib=LIBRARY)
def _fake_scan(
    inputs: list[Tensor], init: list[Tensor], monoid: str, dim: int, exclusive: bool, reverse: bool, return_state: bool,
    dtype: Any, convert: Any, guarantee: str,
) -> list[Tensor]:  # fmt: skip
    every = bool(init) or return_state
    total = monoid_of(monoid).total
    program = programs.specialize(total, tuple(convert or t.dtype for t in inputs), dtype, all_fields=every)
    shape = broadcast_shape(inputs, "scan")
    request = Scan(program, dim, exclusive, reverse, len(init), return_state, guarantee, tuple(shape) or (1,))
    made = [inputs[0].new_empty(s if shape else (), dtype=d) for s, d in request.results]
    return made[:-1] if return_state and monoid_of(monoid).algebra.identity is None else made


def _reduce_map(
    inputs: list[Tensor], extras: list[Tensor], monoid: str, apply: str, dims: list[int], convert: Any, guarantee: str,
    library: str,
) -> list[Tensor]:  # fmt: skip
    with torch.no_grad():
        made = map_tensors(
            inputs, monoid_of(monoid), of_text(apply), tuple(dims), extras=extras, convert=convert, guarantee=guarantee,
            library=LibraryMap(*text.loads(library)) if library else None,
        )  # fmt: skip
        return _fresh(made, [*inputs, *extras])


LIBRARY.impl("reduce_map", _reduce_map, "CompositeExplicitAutograd")


@torch.library.register_fake("tilefold::reduce_map", lib=LIBRARY)
def _fake_reduce_map(
    inputs: list[Tensor], extras: list[Tensor], monoid: str, apply: str, dims: list[int], convert: Any, guarantee: str,
    library: str,
) -> list[Tensor]:  # fmt: skip
    elements, beside = tuple(convert or t.dtype for t in inputs), tuple(t.dtype for t in extras)
    row = make_row_map(monoid_of(monoid).total, of_text(apply), elements, beside)
    request = RowMap(row, tuple(dims), guarantee, tuple(broadcast_shape(inputs, "reduce_map")))
    return [inputs[0].new_empty(s, dtype=d) for s, d in request.results]


@torch.library.register_vmap("tilefold::reduce", lib=LIBRARY)
def _mapped_reduce(
    info: Any, where: Any, inputs: Any, monoid: str, dims: Any, keepdim: bool, *rest: Any
) -> Any:
    given = _in_front(inputs, where[0], info.batch_size)
    made = torch.ops.tilefold.reduce(given, monoid, [d + 1 for d in dims], keepdim, *rest)
    return made, [0] * len(made)


@torch.library.register_vmap("tilefold::scan", lib=LIBRARY)
def _mapped_scan(info: Any, where: Any, inputs: Any, init: Any, monoid: str, dim: int, *rest: Any) -> Any:
    given = _in_front(inputs, where[0], info.batch_size)
    before = _in_front(init, where[1], info.batch_size, given[0].ndim - 2) if init else []
    made = torch.ops.tilefold.scan(given, before, monoid, dim + 1, *rest)
    return made, [0] * len(made)


@torch.library.register_vmap("tilefold::reduce_map", lib=LIBRARY)
def _mapped_map(
    info: Any, where: Any, inputs: Any, extras: Any, monoid: str, apply: str, dims: Any, convert: Any, guarantee: str,
    library: str,
) -> Any:  # fmt: skip
    every = _in_front([*inputs, *extras], [*where[0], *where[1]], info.batch_size)
    given, beside = every[: len(inputs)], every[len(inputs) :]
    library = library if library and LibraryMap(*text.loads(library)).any_rank else ""
    made = torch.ops.tilefold.reduce_map(
        given, beside, monoid, apply, [d + 1 for d in dims], convert, guarantee, library
    )
    return made, [0] * len(made)


def _without_gradient(operation: Any) -> Any:
    """What autograd sees of an operation: a refusal where a gradient is asked for, which would be lost in silence."""

    def kernel(keyset: Any, *arguments: Any) -> Any:
        tensors = [t for a in arguments if isinstance(a, list | tuple) for t in a if isinstance(t, Tensor)]
        if torch.is_grad_enabled() and any(t.requires_grad for t in tensors):
            raise no_derivative(operation._opname, None)
        with torch._C._AutoDispatchBelowAutograd():
            return operation.redispatch(keyset & torch._C._after_autograd_keyset, *arguments)

    return kernel


for _name in ("reduce", "scan", "reduce_map"):
    _operation = getattr(torch.ops.tilefold, _name).default
    LIBRARY.impl(_name, _without_gradient(_operation), "Autograd", with_keyset=True)
