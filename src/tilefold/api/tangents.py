"""Forward derivatives of calls: the tangents of results, of the inputs' own.

A fold's result is made of its row alone, so that its derivative by each element is the backward of a cotangent of 1: the
result's tangent is the sum of these times the elements' tangents, whatever the rule of the backward is. A map's is a function
of its elements' tangents and of those of its row's results. A scan's is the recurrence that its backward goes the other way.
All of it is made of calls, which have derivatives, batching rules and graphs themselves.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from tilefold.algebra.derivatives.linear import add, as_float, is_zero, mul
from tilefold.algebra.derivatives.pullback import pullback
from tilefold.algebra.expression import trace
from tilefold.algebra.monoid import Monoid
from tilefold.algebra.typing import TypedGraph
from tilefold.api import products
from tilefold.api import reduce as folds
from tilefold.api import scan_gradients as scans
from tilefold.api import segment_reduce as segments
from tilefold.api import transpose as transposes
from tilefold.api.differentiated import Call
from tilefold.api.ends import function_of
from tilefold.api.gradients import Fold, Like, cells, converted, fold_of, unrounded
from tilefold.api.linear import Linear
from tilefold.api.losses import Loss
from tilefold.api.map_gradients import Map
from tilefold.api.move_gradients import Selection, Swap
from tilefold.api.product_gradients import Multiplied
from tilefold.api.segment_gradients import Segmented
from tilefold.errors import GradientError
from tilefold.planner.problem.canonical import broadcast_shape
from tilefold.planner.products.epilogue import accumulator_dtype
from tilefold.runtime.caching import kept_outside_modes

Tangents = list[Tensor | None]


@functools.singledispatch
def tangents_of(
    call: Call, tensors: Sequence[Tensor], made: Sequence[Tensor], given: Sequence[Tensor | None]
) -> Tangents:
    """The tangents of a call's results `made`, of those of its `tensors`; None of what does not change with them."""
    raise NotImplementedError


@kept_outside_modes(64)
def _dot(n: int) -> Monoid:
    """The sum of products of n pairs."""
    return function_of(
        trace(lambda *v: sum((a * b for a, b in zip(v[1:n], v[n + 1 :], strict=True)), v[0] * v[n]), 2 * n)
    )


@kept_outside_modes(512)
def _pushed(typed: TypedGraph, which: tuple[int, ...]) -> tuple[Monoid, tuple[int, ...]]:
    """(a graph's inputs, tangents of the inputs `which`) -> tangents of outputs; and of which outputs."""
    n, kept = typed.graph.arity, list[int]()

    def run(*v: Any) -> tuple[Any, ...]:
        kept.clear()
        found = []
        for o in range(len(typed.graph.outputs)):
            slopes = pullback(typed, v[:n], [float(i == o) for i in range(len(typed.graph.outputs))])
            total: Any = 0
            for place, t in zip(which, v[n:], strict=True):
                total = add(total, mul(slopes[place], t))
            if not is_zero(total):
                kept.append(o)
                found.append(as_float(total))
        return tuple(found) or (0.0,)

    graph = trace(run, n + len(which))
    return function_of(graph), tuple(kept)


def _push(typed: TypedGraph, values: Sequence[Tensor], given: Sequence[Tensor | None]) -> Tangents:
    """The tangents of a graph's outputs, element by element, of those of its inputs; all have one shape."""
    some = [(i, t) for i, t in enumerate(given) if t is not None]
    function, kept = _pushed(typed, tuple(i for i, _ in some))
    found: Tangents = [None] * len(typed.graph.outputs)
    if kept:
        for o, t in zip(kept, cells(function, [*values, *(t for _, t in some)]), strict=True):
            found[o] = t
    return found


def _like(found: Tangents, made: Sequence[Tensor]) -> Tangents:
    """Tangents in the results' shapes and dtypes."""
    return [
        None if t is None or not m.is_floating_point() else converted(t.reshape(m.shape), m.dtype)
        for t, m in zip(found, made, strict=True)
    ]


def _wide(t: Tensor | None, shape: Sequence[int]) -> Tensor | None:
    return None if t is None else t.expand(shape)


# --------------------------------------------------------------------------------------------------------------- folds


@tangents_of.register
def _of_fold(
    call: Fold, tensors: Sequence[Tensor], made: Sequence[Tensor], given: Sequence[Tensor | None]
) -> Tangents:
    call.check(tensors)
    shapes = [call.shape if i < call.count else made[0].shape for i in range(len(tensors))]
    wide = [t.expand(s) for t, s in zip(tensors, shapes, strict=True)]
    given = [_wide(t, s) for t, s in zip(given, shapes, strict=True)]
    like = tuple(Like(t.shape, t.dtype, t.device) for t in wide)
    whole = fold_of(
        call.monoid, call.dims, call.convert, call.guarantee, call.count, call.state, like, call.call
    )
    wrt = [i for i, t in enumerate(given) if t is not None and wide[i].is_floating_point()]
    found: Tangents = [None] * len(made)
    if not wrt:
        return found
    if 0 in call.shape and all(i < call.count for i in wrt):
        return [torch.zeros_like(m) if whole.moves(i, wide) else None for i, m in enumerate(made)]
    saved = whole.saved(wide, made, wrt)
    for r in whole.ends.places:
        parts = whole.backward(saved, _one(made, r), wrt)
        found[r] = _contracted(call, made[r], parts, given, wrt)
    return _like(found, made)


def _one(made: Sequence[Tensor], r: int) -> list[Tensor]:
    """A cotangent of 1 of one result."""
    return [torch.ones_like(m) if i == r else torch.zeros_like(m) for i, m in enumerate(made)]


def _contracted(
    call: Fold, like: Tensor, parts: Sequence[Any], given: Sequence[Any], wrt: Sequence[int]
) -> Tensor:
    inner, outer = [i for i in wrt if i < call.count], [i for i in wrt if i >= call.count]
    terms = []
    if inner:
        pairs = [*(parts[i] for i in inner), *(given[i] for i in inner)]
        (total,) = folds.fold_tensors(
            pairs,
            _dot(len(inner)),
            call.reduced,
            False,
            dtype=like.dtype,
            guarantee=call.guarantee,
            call=call.call,
        )
        terms.append(total.reshape(like.shape))
    terms += [parts[i].reshape(like.shape) * given[i].reshape(like.shape) for i in outer]
    return functools.reduce(torch.add, terms)


# ---------------------------------------------------------------------------------------------------------------- maps


@tangents_of.register
def _of_map(
    call: Map, tensors: Sequence[Tensor], made: Sequence[Tensor], given: Sequence[Tensor | None]
) -> Tangents:
    shape, n = call.shape, call.count
    if 0 in shape:
        return [torch.zeros_like(m) if m.is_floating_point() else None for m in made]
    every = [call._read(t, i) for i, t in enumerate(tensors)]
    moved = [None if t is None else call._read(t, i) for i, t in enumerate(given)]
    row = call.rules.row
    results = folds.fold_tensors(
        every[:n], call.monoid, call.dims, True, dtype=unrounded(every[:n]), guarantee=call.guarantee, call=call.call
    )  # fmt: skip
    like = tuple(Like(t.shape, t.dtype, t.device) for t in every[:n])
    fold = fold_of(call.monoid, call.dims, None, call.guarantee, n, False, like, call.call)
    of_results = _of_fold(fold, every[:n], results, moved[:n])
    values = [*every[:n], *(r.expand(shape) for r in results), *every[n:]]
    pushed = [*moved[:n], *(_wide(t, shape) for t in of_results), *moved[n:]]
    found = _push(row.apply, values, pushed)
    stored, sums = len(row.results), len(row.sums)
    of_rows = [] if row.rows is None else _push(row.rows, results, of_results)
    outer = [d for d in range(len(shape)) if d not in call.dims]
    summed = [None if t is None else t.sum(outer, keepdim=True) for t in found[stored : stored + sums]]
    return _like([*found[:stored], *of_rows, *summed], made)


# --------------------------------------------------------------------------------------------------------------- scans


@tangents_of.register
def _of_scan(
    call: scans.Scanned, tensors: Sequence[Tensor], made: Sequence[Tensor], given: Sequence[Tensor | None]
) -> Tangents:
    call.check(tensors)
    found, last = scans.pushed(call, tensors, given)
    return _like([*found, *last][: len(made)], made)


# ------------------------------------------------------------------------------------------ segments, selections, moves


@tangents_of.register
def _of_segments(
    call: Segmented, tensors: Sequence[Tensor], made: Sequence[Tensor], given: Sequence[Tensor | None]
) -> Tangents:
    *inputs, numbers = tensors
    shape = broadcast_shape(inputs, call.call)
    wide, moved = [t.expand(shape) for t in inputs], [_wide(t, shape) for t in given[:-1]]
    wrt = [i for i, t in enumerate(moved) if t is not None and wide[i].is_floating_point()]
    found: Tangents = [None] * len(made)
    for r in range(len(made)):
        if wrt and made[r].is_floating_point() and call.moves(r, tensors):
            parts = call.backward([*wide, numbers], _one(made, r), wrt)
            pairs: Any = [*(parts[i] for i in wrt), *(moved[i] for i in wrt)]
            (found[r],) = segments.fold_segments(
                pairs, _dot(len(wrt)), numbers, call.cut, call.dim, made[r].dtype, None, call.guarantee
            )
    return _like(found, made)


@tangents_of.register
def _of_selection(
    call: Selection, tensors: Sequence[Tensor], made: Sequence[Tensor], given: Sequence[Tensor | None]
) -> Tangents:
    (t,), (values, indices) = given, made
    if t is None or not values.is_floating_point():
        return [None, None]
    return [t.gather(call.dim, indices) if t.ndim else t.reshape(values.shape), None]


@tangents_of.register
def _of_swap(
    call: Swap, tensors: Sequence[Tensor], made: Sequence[Tensor], given: Sequence[Tensor | None]
) -> Tangents:
    (t,) = given
    assert t is not None
    return [transposes.transpose(t, call.dim0, call.dim1, guarantee=call.guarantee)]


# ------------------------------------------------------------------------------------------------------------ products


@tangents_of.register
def _of_product(
    call: Multiplied, tensors: Sequence[Tensor], made: Sequence[Tensor], given: Sequence[Tensor | None]
) -> Tangents:
    (a, b, *extras), (of_a, of_b, *of_extras) = tensors, given
    ending, dtype = call._ending(tensors), accumulator_dtype(a.dtype)

    def multiplied(left: Tensor, right: Tensor) -> Tensor:
        product: Tensor = products.multiply(
            left, right, None, None, (), None, dtype, call.precision, call.guarantee, None
        )
        return product

    accumulated = multiplied(a, b)
    terms = [
        *([] if of_a is None else [multiplied(of_a, b)]),
        *([] if of_b is None else [multiplied(a, of_b)]),
    ]
    of_sum = functools.reduce(torch.add, terms) if terms else None
    shape = accumulated.shape
    beside = [t.expand(shape) for t in extras]
    moved = [of_sum, *(_wide(t, shape) for t in of_extras)]
    (of_value,) = _push(ending.typed, [accumulated, *beside], moved)
    if call.row is None or of_value is None:
        return _like([of_value, *[None] * (len(made) - 1)], made)
    (monoid, apply), found = call.row, of_value
    (value,) = cells(function_of(ending.typed.graph), [accumulated, *beside])
    value, found = converted(value, ending.value), converted(found, ending.value)
    if apply is not None:
        mapped = Map(
            monoid, apply, -1, None, call.guarantee, 1, (value.shape,), (value.dtype,), call=call.call
        )
        (of_value,) = _of_map(mapped, [value], [made[0]], [found])
    rest = made[1:]
    of_rest = _of_fold(call._fold(value), [value], rest, [found]) if rest else []
    return _like([of_value, *of_rest], made)


# -------------------------------------------------------------------------------------------------------------- losses


@tangents_of.register
def _of_loss(
    call: Loss, tensors: Sequence[Tensor], made: Sequence[Tensor], given: Sequence[Tensor | None]
) -> Tangents:
    x = tensors[0]
    wrt = [i for i, t in enumerate(given[:2]) if t is not None]
    found: Tangents = [None] * len(made)
    saved = call.saved(tensors, made, wrt)
    for r, like in enumerate(made):
        if call.moves(r, tensors):
            one = [torch.ones_like(like) if i == r else None for i in range(len(made))]
            parts = call.backward(saved, one, wrt)
            pairs: Any = [*(parts[i] for i in wrt if parts[i] is not None)]
            pairs += [given[i] for i in wrt if parts[i] is not None]
            reduced = call.reduction != "none" and call.results[r] == "loss"
            over = tuple(range(call.members, x.ndim)) if reduced else (call.dim,)
            if pairs:
                (found[r],) = folds.fold_tensors(
                    pairs,
                    _dot(len(pairs) // 2),
                    over,
                    False,
                    dtype=like.dtype,
                    guarantee=call.guarantee,
                    call=call.call,
                )
    return _like(found, made)


@tangents_of.register
def _of_linear(
    call: Linear, tensors: Sequence[Tensor], made: Sequence[Tensor], given: Sequence[Tensor | None]
) -> Tangents:
    raise GradientError(
        f"{call.call}: a fold of a product has no forward derivative, got a tensor that carries one; multiply first, and "
        "fold the logits"
    )
