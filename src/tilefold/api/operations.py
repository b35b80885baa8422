"""Folds, scans and maps as operations of torch's library: compiled, exported and mapped calls hold these.

    tilefold::reduce        the results of a fold
    tilefold::scan          prefixes, and the state after them
    tilefold::reduce_map    a function of every element and of its row's results

A schema has no shapes: a monoid travels as text (`algebra.text`), so that equal ones, made anew, are one graph, and a saved
graph holds all that it needs. The frozen request, whose shapes are numbers, is made inside the implementation; the fake one
computes with symbols. No argument has a default: torch leaves out arguments that equal one, and derivatives must then give as
few (docs/integration.md).
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Sequence
from operator import itemgetter
from typing import Any

import torch
from torch import Tensor
from torch.autograd import forward_ad

from tilefold.algebra import program as programs
from tilefold.algebra.monoid import Monoid, monoid_of
from tilefold.api import gradients, recorded
from tilefold.api.differentiated import Dual, applied, one_level
from tilefold.api.map_gradients import Map
from tilefold.api.overloads import repeat
from tilefold.api.recorded import asks_gradient, fields_as_tensors, library_map, library_text
from tilefold.api.reduce import fold_tensors
from tilefold.api.reduce_map import map_tensors
from tilefold.api.requests import Reduction, RowMap, Scan
from tilefold.api.scan import scan_tensors
from tilefold.api.scan_gradients import Scanned
from tilefold.api.tangents import tangents_of
from tilefold.planner.library import LibraryMap, has_own_derivative
from tilefold.planner.problem.canonical import broadcast_shape, normalize_dims
from tilefold.planner.products.functions import Traced, of_text
from tilefold.planner.products.row import make_row_map
from tilefold.runtime.modes import is_batched, is_dual, of_batches

Tensors = list[Tensor]
Where = list[int | None]  # the mapped dim of each tensor, None of one that is not mapped
SCHEMAS = {
    "reduce": (
        "(Tensor[] inputs, Tensor[] init, str monoid, int[] dims, bool keepdim, bool return_state, ScalarType? dtype, "
        "ScalarType? convert, str guarantee)"
    ),
    "scan": (
        "(Tensor[] inputs, Tensor[] init, str monoid, int dim, bool exclusive, bool reverse, bool return_state, "
        "ScalarType? dtype, ScalarType? convert, str guarantee)"
    ),
    "reduce_map": (
        "(Tensor[] inputs, Tensor[] extras, str monoid, str apply, int[] dims, ScalarType? convert, str guarantee, "
        "str library)"
    ),
}


# ------------------------------------------------------------------------------------------------- implementations


def _reduce(
    inputs: Tensors, init: Tensors, monoid: str, dims: list[int], keepdim: bool, return_state: bool, dtype: Any,
    convert: Any, guarantee: str,
) -> Tensors:  # fmt: skip
    with torch.no_grad():  # below autograd the mode is still the caller's
        made = fold_tensors(
            inputs, monoid_of(monoid), tuple(dims), keepdim, init=init or None, return_state=return_state, dtype=dtype,
            convert=convert, guarantee=guarantee,
        )  # fmt: skip
        return fresh(made, [*inputs, *init])


def _scan(
    inputs: Tensors, init: Tensors, monoid: str, dim: int, exclusive: bool, reverse: bool, return_state: bool, dtype: Any,
    convert: Any, guarantee: str,
) -> Tensors:  # fmt: skip
    with torch.no_grad():
        made = scan_tensors(
            inputs, monoid_of(monoid), dim, init=init or None, exclusive=exclusive, reverse=reverse,
            return_state=return_state, dtype=dtype, convert=convert, guarantee=guarantee,
        )  # fmt: skip
        return fresh(made, [*inputs, *init])


def _reduce_map(
    inputs: Tensors,
    extras: Tensors,
    monoid: str,
    apply: str,
    dims: list[int],
    convert: Any,
    guarantee: str,
    library: str,
) -> Tensors:
    with torch.no_grad():
        made = map_tensors(
            inputs, monoid_of(monoid), of_text(apply), tuple(dims), extras=extras, convert=convert, guarantee=guarantee,
            library=library_map(library),
        )  # fmt: skip
        return fresh(made, [*inputs, *extras])


_memory: Any = torch._C._storage_id  # type: ignore[attr-defined]  # torch's stubs lack it


def fresh(made: Sequence[Tensor], given: Sequence[Tensor]) -> Tensors:
    """Results as the fake implementation gives them: contiguous, and no memory of an input or of another result."""
    found, taken = list[Tensor](), set(map(_memory, given))
    for r in made:
        own = r.is_contiguous() and _memory(r) not in taken
        found.append(r if own else r.clone(memory_format=torch.contiguous_format))
        taken.add(_memory(found[-1]))
    return found


# ------------------------------------------------------------------------------------------- shapes without elements


def _shape_of_reduce(
    inputs: Tensors, init: Tensors, monoid: str, dims: list[int], keepdim: bool, return_state: bool, dtype: Any,
    convert: Any, guarantee: str,
) -> Tensors:  # fmt: skip
    own, elements = monoid_of(monoid), tuple(convert or t.dtype for t in inputs)
    program = programs.specialize(own.total, elements, dtype, bool(init) or return_state)
    if return_state:
        program = programs.with_state(own.total, elements, dtype)
    shape = broadcast_shape(inputs, "reduce")
    kept = tuple(1 if d in dims else n for d, n in enumerate(shape) if keepdim or d not in dims)
    made = _empty(inputs[0], Reduction(program, tuple(dims), guarantee, kept))
    return made[:-1] if return_state and own.algebra.identity is None else made


def _shape_of_scan(
    inputs: Tensors, init: Tensors, monoid: str, dim: int, exclusive: bool, reverse: bool, return_state: bool, dtype: Any,
    convert: Any, guarantee: str,
) -> Tensors:  # fmt: skip
    own, every = monoid_of(monoid), bool(init) or return_state
    program = programs.specialize(
        own.total, tuple(convert or t.dtype for t in inputs), dtype, all_fields=every
    )
    shape = broadcast_shape(inputs, "scan")
    whole = tuple(shape) or (1,)
    made = _empty(
        inputs[0], Scan(program, dim, exclusive, reverse, len(init), return_state, guarantee, whole)
    )
    made = made if shape else [t.view(()) for t in made]
    return made[:-1] if return_state and own.algebra.identity is None else made


def _shape_of_map(
    inputs: Tensors,
    extras: Tensors,
    monoid: str,
    apply: str,
    dims: list[int],
    convert: Any,
    guarantee: str,
    library: str,
) -> Tensors:
    elements, beside = tuple(convert or t.dtype for t in inputs), tuple(t.dtype for t in extras)
    row = make_row_map(monoid_of(monoid).total, of_text(apply), elements, beside)
    return _empty(
        inputs[0], RowMap(row, tuple(dims), guarantee, tuple(broadcast_shape(inputs, "reduce_map")))
    )


def _empty(like: Tensor, request: Reduction | Scan | RowMap) -> Tensors:
    return [like.new_empty(shape, dtype=dtype) for shape, dtype in request.results]


# ------------------------------------------------------------------------------------------------------------- vmap


def _mapped_reduce(
    info: Any, where: tuple[Where, Where], inputs: Tensors, init: Tensors, monoid: str, dims: list[int], keepdim: bool,
    *rest: Any,
) -> Any:  # fmt: skip
    given = in_front(inputs, where[0], info.batch_size)
    rank = given[0].ndim - 1 - (0 if keepdim else len(dims))
    before = in_front(init, where[1], info.batch_size, rank) if init else []
    return all_mapped(torch.ops.tilefold.reduce(given, before, monoid, [d + 1 for d in dims], keepdim, *rest))


def _mapped_scan(
    info: Any, where: tuple[Where, Where], inputs: Tensors, init: Tensors, monoid: str, dim: int, *rest: Any
) -> Any:
    given = in_front(inputs, where[0], info.batch_size)
    before = in_front(init, where[1], info.batch_size, given[0].ndim - 2) if init else []
    return all_mapped(torch.ops.tilefold.scan(given, before, monoid, dim + 1, *rest))


def _mapped_map(
    info: Any, where: tuple[Where, Where], inputs: Tensors, extras: Tensors, monoid: str, apply: str, dims: list[int],
    convert: Any, guarantee: str, library: str,
) -> Any:  # fmt: skip
    every = in_front([*inputs, *extras], [*where[0], *where[1]], info.batch_size)
    given, beside = every[: len(inputs)], every[len(inputs) :]
    if of_text(apply).sums:  # over the rows of each member alone
        members = [
            torch.ops.tilefold.reduce_map(
                [t[i] for t in given],
                [t[i] for t in beside],
                monoid,
                apply,
                dims,
                convert,
                guarantee,
                library,
            )
            for i in range(info.batch_size)
        ]
        return all_mapped([torch.stack(made) for made in zip(*members, strict=True)])
    known = library_map(library)
    alike = all(d is None for d in where[1])  # torch's functions have one weight for all rows
    library = library if known is not None and known.any_rank and alike else ""
    made = torch.ops.tilefold.reduce_map(
        given, beside, monoid, apply, [d + 1 for d in dims], convert, guarantee, library
    )
    return all_mapped(made)


def in_front(tensors: Tensors, dims: Where, size: int, rank: int = 0) -> Tensors:
    """Tensors of one call with the mapped dim first: expanded, and with as many dims besides (`rank` at least), since they
    broadcast."""
    rank = max([rank, *(t.ndim - (d is not None) for t, d in zip(tensors, dims, strict=True))])
    made = []
    for t, d in zip(tensors, dims, strict=True):
        moved = t[None] if d is None else t.movedim(d, 0)
        moved = moved.reshape(moved.shape[0], *[1] * (rank + 1 - moved.ndim), *moved.shape[1:])
        made.append(moved.expand(size, *[-1] * rank))
    return made


def all_mapped(made: Tensors) -> tuple[Tensors, list[int]]:
    """Results whose mapped dim is the first."""
    return made, [0] * len(made)


# -------------------------------------------------------------------------------------------------------- registered


# What torch finds first below autograd where nothing but a device's implementation is left.
_DEVICES = frozenset((torch._C.DispatchKey.CPU, torch._C.DispatchKey.CUDA))


def _differentiated(
    operation: Any, implementation: Callable[..., Any], call_of: Callable[..., Any]
) -> Callable[..., Any]:
    """The operation as autograd sees it: a kernel of our own, since torch.library's has no torch.func (grad, jacrev) and
    gives zeros for forward derivatives. A compiled graph's call comes here too, and goes on to the implementation at once."""
    lists = sum(str(a.type) == "List[Tensor]" for a in operation._schema.arguments)
    with_lists = _with_lists(operation)

    def kernel(keyset: Any, *arguments: Any, tangents: Sequence[Tensor | None] = ()) -> Any:
        arguments = with_lists(arguments)
        tensors = [t for a in arguments[:lists] for t in a]
        if any(map(is_dual, tensors)):
            return _with_tangents(kernel, keyset, call_of, arguments, lists)
        below = keyset & torch._C._after_autograd_keyset
        asked = asks_gradient(tensors)
        if not asked and below.highestPriorityTypeId() in _DEVICES:
            return implementation(*arguments)
        is_nested = asked and torch._C._functorch.maybe_current_level() is not None

        def again(given: Sequence[Tensor]) -> list[Tensor]:
            made: list[Tensor] = operation(*parts_of(given), *arguments[lists:])
            return made

        def parts_of(given: Sequence[Tensor]) -> list[list[Tensor]]:
            parts, rest = [], list(given)
            for a in arguments[:lists]:
                parts.append(rest[: len(a)])
                rest = rest[len(a) :]
            return parts

        def run(given: Sequence[Tensor]) -> list[Tensor]:
            # Of nested transforms the outer ones differentiate, too, while a Function of the inner one has switched that off.
            with (
                torch.set_grad_enabled(is_nested or torch.is_grad_enabled()),
                forward_ad._set_fwd_grad_enabled(is_nested or torch._C._is_fwd_grad_enabled()),
                torch._C._AutoDispatchBelowAutograd(),
            ):
                made: list[Tensor] = operation.redispatch(below, *parts_of(given), *arguments[lists:])
            return made

        if not asked:
            return run(tensors)
        call = call_of(*arguments)
        if isinstance(call, Map):
            monoid, function, library = call.saving()
            arguments = (*arguments[:2], monoid.text, function.text, *arguments[4:-1], library_text(library))
        dual = Dual(tensors, tangents, again) if any(t is not None for t in tangents) else None
        with one_level() if is_nested else contextlib.nullcontext():
            return applied(call, run, tensors, dual=dual)

    return kernel


# Operations whose calls depend on nothing but their arguments and what a call's key holds. (Segments' numbers are checked.)
_REPEATED = frozenset(("reduce", "scan", "reduce_map", "topk", "transpose", "cross_entropy", "product"))


def _with_lists(operation: Any) -> Callable[[tuple[Any, ...]], tuple[Any, ...]]:
    """What gives an operation's arguments an empty list where a graph of AOTInductor's hands None for one."""
    places = [i for i, a in enumerate(operation._schema.arguments) if str(a.type).startswith("List[")]
    lists = itemgetter(0, *places)

    def with_lists(arguments: tuple[Any, ...]) -> tuple[Any, ...]:
        if None not in lists(arguments):
            return arguments
        return tuple([[] if a is None and i in places else a for i, a in enumerate(arguments)])

    return with_lists


def _with_tangents(
    kernel: Callable[..., Any], keyset: Any, call_of: Callable[..., Any], arguments: Sequence[Any], lists: int
) -> Tensors:
    """The results of dual tensors."""
    parts = [[forward_ad.unpack_dual(t, level=0) for t in a] for a in arguments[:lists]]  # type: ignore[no-untyped-call]  # torch's own
    plain = [[p.primal for p in a] for a in parts]
    tensors, given = [t for a in plain for t in a], [p.tangent for a in parts for p in a]
    made = kernel(keyset, *plain, *arguments[lists:], tangents=given)
    call = call_of(*plain, *arguments[lists:])
    if any(t is not None and is_batched(t) for t in given):
        found = of_batches(lambda each: tangents_of(call, tensors, made, each), given)
    else:
        found = tangents_of(call, tensors, made, given)
    pairs = zip(made, found, strict=True)
    return [m if t is None else forward_ad.make_dual(m, t, level=0) for m, t in pairs]  # type: ignore[no-untyped-call]  # torch's own


def _fold_of(
    inputs: Tensors, init: Tensors, monoid: str, dims: Any, keepdim: bool, return_state: bool, dtype: Any, convert: Any,
    guarantee: str,
) -> gradients.Fold:  # fmt: skip
    like = tuple(gradients.Like(t.shape, t.dtype, t.device) for t in (*inputs, *init))
    return gradients.Fold(monoid_of(monoid), tuple(dims), convert, guarantee, len(inputs), return_state, like)


def _scan_of(
    inputs: Tensors, init: Tensors, monoid: str, dim: int, exclusive: bool, reverse: bool, return_state: bool, dtype: Any,
    convert: Any, guarantee: str,
) -> Scanned:  # fmt: skip
    like = [gradients.Like(t.shape, t.dtype, t.device) for t in (*inputs, *init)]
    return Scanned(
        monoid_of(monoid), dim, exclusive, reverse, convert, guarantee, len(inputs), return_state, like
    )


def _map_of(
    inputs: Tensors,
    extras: Tensors,
    monoid: str,
    apply: str,
    dims: Any,
    convert: Any,
    guarantee: str,
    library: str,
) -> Map:
    every = [*inputs, *extras]
    return Map(
        monoid_of(monoid), of_text(apply), tuple(dims), convert, guarantee, len(inputs), tuple(t.shape for t in every),
        tuple(t.dtype for t in every), library_map(library), every[0].device.type == "cpu",
    )  # fmt: skip


# ------------------------------------------------------------------------------------ plain calls that ask for a gradient


def _differentiated_fold(
    tensors: Sequence[Tensor], monoid: Monoid, dim: Any, keepdim: bool, init: Any, return_state: bool, dtype: Any,
    convert: Any, guarantee: str, call: str, key: Any,
) -> Tensors:  # fmt: skip
    n = len(tensors)
    given = tensors if init is None else [*tensors, *fields_as_tensors(init, tensors[0].device)]
    named = {
        "return_state": return_state,
        "dtype": dtype,
        "convert": convert,
        "guarantee": guarantee,
        "call": call,
    }

    def run(given: Sequence[Tensor]) -> Tensors:
        before = None if init is None else given[n:]
        return fresh(fold_tensors(given[:n], monoid, dim, keepdim, init=before, **named), given)

    like = tuple([gradients.Like(t.shape, t.dtype, t.device) for t in given])
    dims = dim if dim is None or type(dim) is int else normalize_dims(dim, max(t.ndim for t in tensors), call)
    fold = gradients.fold_of(monoid, dims, convert, guarantee, n, return_state, like, call)
    return applied(fold, run, given, key)


def _differentiated_scan(
    tensors: Sequence[Tensor], monoid: Monoid, dim: Any, init: Any, exclusive: bool, reverse: bool, return_state: bool,
    dtype: Any, convert: Any, guarantee: str, call: str, key: Any,
) -> Tensors:  # fmt: skip
    n = len(tensors)
    given = [*tensors, *([] if init is None else fields_as_tensors(init, tensors[0].device))]
    flags = {"exclusive": exclusive, "reverse": reverse, "return_state": return_state}
    named = {**flags, "dtype": dtype, "convert": convert, "guarantee": guarantee, "call": call}

    def run(given: Sequence[Tensor]) -> Tensors:
        before = None if init is None else given[n:]
        return fresh(scan_tensors(given[:n], monoid, dim, init=before, **named), given)

    like = [gradients.Like(t.shape, t.dtype, t.device) for t in given]
    scanned = Scanned(monoid, dim, exclusive, reverse, convert, guarantee, n, return_state, like, call)
    return applied(scanned, run, given, key)


def _differentiated_map(
    tensors: Sequence[Tensor], monoid: Monoid, apply: Traced, dim: Any, extras: Sequence[Tensor], convert: Any,
    guarantee: str, library: LibraryMap | None, call: str, key: Any,
) -> Tensors:  # fmt: skip
    n, every = len(tensors), [*tensors, *extras]
    sizes, dtypes = tuple([t.shape for t in every]), tuple([t.dtype for t in every])
    on_cpu = every[0].device.type == "cpu"
    differentiated = Map(monoid, apply, dim, convert, guarantee, n, sizes, dtypes, library, on_cpu, call)
    own, function, served = differentiated.saving()

    named = {"convert": convert, "guarantee": guarantee, "call": call}

    def run(given: Sequence[Tensor]) -> Tensors:
        return fresh(
            map_tensors(given[:n], own, function, dim, extras=given[n:], library=served, **named), given
        )

    def plain(given: Sequence[Tensor]) -> Tensors:
        return map_tensors(given[:n], monoid, apply, dim, extras=given[n:], library=library, **named)

    is_torchs = on_cpu and library is not None and has_own_derivative(library.function, every[0].dtype)
    return applied(differentiated, run, every, key, plain if is_torchs else None)


recorded.DIFFERENTIATED.update(
    reduce=_differentiated_fold, scan=_differentiated_scan, reduce_map=_differentiated_map
)

LIBRARY: Any = torch.library.Library("tilefold", "FRAGMENT")  # type: ignore[no-untyped-call]  # torch's own


def register(name: str, schema: str, *rules: Callable[..., Any]) -> None:
    """An operation of tensors that gives tensors: its implementation, its fake one, its batching rule, and what makes of its
    arguments the call whose backward autograd asks for."""
    run, shape, mapped, call_of = rules
    LIBRARY.define(f"{name}{schema} -> Tensor[]")
    operation = getattr(torch.ops.tilefold, name).default
    if name in _REPEATED:
        repeat(operation, follows_cublas=name == "product")
    with_lists = _with_lists(operation)
    LIBRARY.impl(name, lambda *arguments: run(*with_lists(arguments)), "CompositeExplicitAutograd")
    torch.library.register_fake(f"tilefold::{name}", shape, lib=LIBRARY)
    torch.library.register_vmap(f"tilefold::{name}", mapped, lib=LIBRARY)
    kernel = _differentiated(operation, run, call_of)
    LIBRARY.impl(name, kernel, "Autograd", with_keyset=True)


RULES: dict[str, tuple[Callable[..., Any], ...]] = {
    "reduce": (_reduce, _shape_of_reduce, _mapped_reduce, _fold_of),
    "scan": (_scan, _shape_of_scan, _mapped_scan, _scan_of),
    "reduce_map": (_reduce_map, _shape_of_map, _mapped_map, _map_of),
}
for _name, _rules in RULES.items():
    register(_name, SCHEMAS[_name], *_rules)
