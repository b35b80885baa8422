"""Softmax and norms of layers: rows folded, and every element mapped with its row's results."""

from __future__ import annotations

import math as numbers
from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

from tilefold import math, monoids
from tilefold.algebra import powers
from tilefold.algebra.dtypes import promote, result_dtype
from tilefold.algebra.expression import Graph, trace
from tilefold.algebra.monoid import Monoid
from tilefold.api import dispatch
from tilefold.api.recorded import is_sharded
from tilefold.api.reduce_map import graph_of, kept, map_tensors
from tilefold.errors import ArgumentError, KindError, ShapeError, shown
from tilefold.functional.arguments import INFINITY, Dims, as_number, every, is_whole, need_float, redirected
from tilefold.planner.library import LibraryMap
from tilefold.planner.problem.canonical import is_listed, normalize_dims, whole_number
from tilefold.planner.problem.validate import as_dtype, check_is_tensor, check_memory, check_out
from tilefold.planner.products.functions import Traced
from tilefold.runtime.modes import has_none
from tilefold.runtime.overrides import overridden
from tilefold.runtime.switch import named_key

Result = Tensor | tuple[Tensor, Tensor]
USUAL = 2.0**-100  # from here on float32 has reciprocal roots, and their products with elements, in range
_PLAIN = (float, int, type(None))  # kinds of numbers of which equal ones mean the same


def softmax(
    input: Tensor, dim: int | Sequence[int], dtype: torch.dtype | None = None,
    *, out: Tensor | None = None, guarantee: str = "run_to_run",
) -> Tensor:  # fmt: skip
    """Exponentials as shares of their sum.

        y[k, p] = exp(x[k, p] - m[k]) / sum over q of exp(x[k, q] - m[k]),   m[k] = max over q of x[k, q]

    Shapes: [M, K] to [M, K]; `dim` may also be several dims, whose elements make one sum. A row of -inf alone is NaN, as
    one with +inf or NaN is.
    Dtypes: floats, computed in float32 or float64. `dtype` converts each element first and is the result's.
    Any strides, read in place; `out` may be the input itself. The same bits from run to run.

    Raises:
        DtypeError: elements are no floats and `dtype` is not given.

    Example:
        >>> tilefold.softmax(torch.tensor([[0.0, 0.0], [1.0, -float("inf")]]), dim=1)
        tensor([[0.5000, 0.5000],
                [1.0000, 0.0000]])

    Source: Milakov and Gimelshein, "Online normalizer calculation for softmax" (2018).
    """
    if overridden(input, out):
        return redirected(softmax, {}, input, dim, dtype, out, guarantee)
    return _softmax(input, dim, dtype, out, guarantee, logarithm=False)


def log_softmax(
    input: Tensor, dim: int | Sequence[int], dtype: torch.dtype | None = None,
    *, out: Tensor | None = None, guarantee: str = "run_to_run",
) -> Tensor:  # fmt: skip
    """Logarithm of `softmax`.

        y[k, p] = x[k, p] - m[k] - log(sum over q of exp(x[k, q] - m[k])),   m[k] = max over q of x[k, q]

    Shapes, dtypes, strides, bits and errors are those of `softmax`.

    Example:
        >>> tilefold.log_softmax(torch.tensor([0.0, 0.0]), dim=0)
        tensor([-0.6931, -0.6931])
    """
    if overridden(input, out):
        return redirected(log_softmax, {}, input, dim, dtype, out, guarantee)
    return _softmax(input, dim, dtype, out, guarantee, logarithm=True)


def _softmax(x: Any, dim: Any, dtype: Any, out: Any, guarantee: str, *, logarithm: bool) -> Tensor:
    call = "log_softmax" if logarithm else "softmax"
    key, made = dispatch.again(named_key, [x], call, dim, (dtype, guarantee)) if out is None else (None, None)
    if made is not None:
        return made[0]
    dims, dtype = checked_shares(call, x, dim, dtype)
    if not (x.is_floating_point() or dtype or out is not None or x.numel()):
        return torch.empty_like(x)  # torch checks nothing if there are no elements
    need_float(dtype or x.dtype, call)
    monoid, apply = shares(logarithm)
    single = len(dims) == 1 and (dtype or x.dtype).itemsize > 1
    library = LibraryMap(f"torch.{call}", (dims[0] - x.ndim, dtype)) if single else None
    return map_tensors(
        [x],
        monoid,
        apply,
        dim,
        convert=dtype,
        out=out,
        guarantee=guarantee,
        library=library,
        call=call,
        key=key,
    )[0]


def checked_shares(call: str, x: Any, dim: Any, dtype: Any) -> tuple[tuple[int, ...], torch.dtype | None]:
    """The dims of a softmax, and the dtype that it reads elements as.

    Raises:
        DimError, KindError, DtypeError: the call does not fit.
    """
    check_is_tensor(x, call)
    if dim is None:
        raise KindError(
            f"{call}: `dim` must be an int or a sequence of ints, got None; name the dim whose sum is 1"
        )
    dtype = as_dtype(dtype, call)
    return normalize_dims(dim, x.ndim, call), dtype


def shares(logarithm: bool) -> tuple[Monoid, Traced]:
    """The fold and the function of a softmax, or of its logarithm."""
    return kept(_shares, logarithm)


def _shares(logarithm: bool) -> tuple[Monoid, Traced]:
    """A row's maximum, and the rest of the sum of its exponentials. Infinite maxima leave NaN, as in torch."""

    def project(largest: Any, total: Any) -> Any:
        size = math.log(total) if logarithm else 1.0 / total
        return largest, math.where(abs(largest) == INFINITY, float("nan"), size)

    def shares_rule(x: Any, y: Any, gy: Any, length: Any, total: Any = 0.0) -> Any:
        """Of results alone."""
        return gy * y, y * (gy - total)

    def logarithms_rule(x: Any, y: Any, gy: Any, length: Any, total: Any = 0.0) -> Any:
        return gy, gy - math.exp(y) * total

    rule = logarithms_rule if logarithm else shares_rule
    nothing = trace(lambda largest, size: (), 2)
    rules = nothing, trace(lambda *v: rule(*v)[0], 4), trace(lambda *v: rule(*v)[1], 5)
    if logarithm:
        monoid = monoids.logsumexp(project, "log_softmax")
        return monoid, graph_of(lambda x, largest, size: (x - largest) - size, 3).but(rule=rules)

    def rebase(own: Any, _: Any, largest: Any, share: Any) -> Any:
        return own, share * monoids.rescaled(own, largest)

    monoid = monoids.logsumexp(project, "softmax")
    # As in the fold: where a row is held, its exponentials are computed once.
    apply = graph_of(lambda x, largest, share: monoids.exponential(x, largest) * share, 3)
    return monoid, apply.but(rebase=trace(rebase, 4), rule=rules)


def layer_norm(
    input: Tensor, normalized_shape: Sequence[int], weight: Tensor | None = None, bias: Tensor | None = None,
    eps: float = 1e-5,
    *, residual: Tensor | None = None, out: Any = None, guarantee: str = "run_to_run",
) -> Result:  # fmt: skip
    """Elements about their row's mean, by its standard deviation.

        y[k, p] = (x[k, p] - mean[k]) / sqrt(var[k] + eps) * weight[p] + bias[p],   var with correction 0

    With `residual` x is input + residual, and that sum is the second result; the sum is normalised as it was before it was
    rounded to its dtype. Of two dtypes both results have the one that the sum has in torch.

    Shapes: [M, K] to [M, K] with `normalized_shape` (K,), the last dims; weight and bias have that shape.
    Dtypes: floats, computed in float32 or float64; the result has the input's dtype.
    Any strides, read in place; `out` (with `residual` a pair) may be an input itself. The same bits from run to run.

    Raises:
        ShapeError: `normalized_shape` is not that of the last dims, or of `weight` and `bias`.
        DtypeError: elements are no floats.

    Example:
        >>> tilefold.layer_norm(torch.tensor([[1.0, 3.0], [5.0, 5.0]]), (2,))
        tensor([[-1.0000,  1.0000],
                [ 0.0000,  0.0000]])

    Source: Ba, Kiros and Hinton, "Layer normalization" (2016).
    """
    if overridden(input, weight, bias, residual, *_flat(out)):
        return redirected(
            layer_norm, {}, input, normalized_shape, weight, bias, eps, residual, out, guarantee
        )
    return _row_norm("layer_norm", input, normalized_shape, weight, bias, eps, residual, out, guarantee)


def rms_norm(
    input: Tensor, normalized_shape: Sequence[int], weight: Tensor | None = None, eps: float | None = None,
    *, residual: Tensor | None = None, out: Any = None, guarantee: str = "run_to_run",
) -> Result:  # fmt: skip
    """Elements by the root of their row's mean square.

        y[k, p] = x[k, p] / sqrt(mean over q of x[k, q]^2 + eps) * weight[p]

    With `residual` x is input + residual, and that sum is the second result; the sum is normalised as it was before it was
    rounded to its dtype. Of two dtypes both results have the one that the sum has in torch. `eps` is that of the dtype that
    is computed in, unless given.

    Shapes: [M, K] to [M, K] with `normalized_shape` (K,), the last dims; weight has that shape.
    Dtypes: floats, computed in float32 or float64; the result has the input's dtype.
    Any strides, read in place; `out` (with `residual` a pair) may be an input itself. The same bits from run to run.

    Raises:
        ShapeError: `normalized_shape` is not that of the last dims, or of `weight`.
        DtypeError: elements are no floats.

    Example:
        >>> tilefold.rms_norm(torch.tensor([[3.0, 4.0]]), (2,), eps=0.0) * 12.5**0.5
        tensor([[3., 4.]])

    Source: Zhang and Sennrich, "Root mean square layer normalization" (2019).
    """
    if overridden(input, weight, residual, *_flat(out)):
        return redirected(rms_norm, {}, input, normalized_shape, weight, eps, residual, out, guarantee)
    return _row_norm("rms_norm", input, normalized_shape, weight, None, eps, residual, out, guarantee)


def _flat(out: Any) -> Sequence[Any]:
    return out if isinstance(out, list | tuple) else (out,)


def _row_norm(
    call: str, x: Any, normalized_shape: Any, weight: Any, bias: Any, eps: Any, residual: Any, out: Any, guarantee: str
) -> Result:  # fmt: skip
    key = None
    if out is None and type(eps) in _PLAIN:
        every = [t for t in (x, residual, weight, bias) if t is not None]
        given = (residual is not None, weight is not None, bias is not None)
        key, made = dispatch.again(named_key, every, call, normalized_shape, (eps, given, guarantee))
        if made is not None:
            return with_sum(made, x, residual, out)
    norm = norm_of(call, x, normalized_shape, weight, bias, eps, residual)
    alike = x.itemsize > 1 and all(t.dtype == x.dtype for t in (*norm.tensors, *norm.extras))
    taken = (weight is not None, bias is not None)[: 1 + (call == "layer_norm")]
    form = (len(norm.dims), norm.eps, taken, residual is not None)
    library = LibraryMap(f"torch.{call}", form) if alike else None
    made = map_tensors(
        norm.tensors, norm.monoid, norm.apply, norm.dims, extras=norm.extras, out=out, guarantee=guarantee, library=library,
        call=call, names=norm.names, key=key,
    )  # fmt: skip
    return with_sum(made, x, residual, out)


class Norm(NamedTuple):
    """A norm of rows as a map: tensors that are folded and extra ones, with their names in messages."""

    tensors: list[Tensor]
    extras: list[Tensor]
    names: tuple[str | None, ...]
    dims: tuple[int, ...]
    eps: float
    monoid: Monoid
    apply: Traced


def norm_of(
    call: str, x: Any, normalized_shape: Any, weight: Any, bias: Any, eps: Any, residual: Any, counts: bool = False
) -> Norm:  # fmt: skip
    """The map that a call of `layer_norm` or `rms_norm` asks for. `counts`: its fold counts a row's elements, and
    `normalized_shape` says nothing of how many they are.

    Raises:
        ShapeError, DtypeError, KindError: the call does not fit.
    """
    name = call.removeprefix("distributed.")
    sizes = checked_sizes(call, x, normalized_shape, weight, bias, residual)
    k, which = len(sizes), (weight is not None, bias is not None)
    tensors = [x] if residual is None else [x, residual]
    wide = residual is not None and residual.dtype == torch.float64
    small = as_epsilon(eps, torch.float64 if wide else x.dtype, call)
    extras = [t for t in (weight, bias) if t is not None]
    names = (None, *named(residual=residual), *named(weight=weight, bias=bias))
    length = (
        0 if counts or name == "layer_norm" else int(numbers.prod(sizes))
    )  # a graph of rms_norm is of one length
    monoid, apply = kept(_norms, name, length, small, which, residual is not None, counts)
    return Norm(tensors, extras, names, tuple(range(x.ndim - k, x.ndim)), small, monoid, apply)


def with_sum(made: Sequence[Tensor], x: Tensor, residual: Tensor | None, out: Any) -> Result:
    """A norm's result, and beside it the sum that was normalized, if there is one."""
    if residual is None:
        return made[0]
    # Inside torch.autocast the norm is wider; the sum is what models carry on.
    return made[0], made[1] if out is not None else made[1].to(result_dtype(promote(x.dtype, residual.dtype)))


def checked_sizes(
    call: str, x: Any, normalized_shape: Any, weight: Any, bias: Any, residual: Any
) -> tuple[int, ...]:
    """The sizes of a norm's rows, once its tensors fit."""
    check_is_tensor(x, call)
    if not is_sharded([x]):
        check_memory(x, call)
    sizes = _sizes(normalized_shape, call)
    k = len(sizes)
    if not k or tuple(x.shape[x.ndim - k :]) != sizes or k > x.ndim:
        raise ShapeError(
            f"{call}: `normalized_shape` must be the last dims of the input's {list(x.shape)}, one at least, got "
            f"{shown(list(sizes))}; name these"
        )
    for name, t in (("weight", weight), ("bias", bias)):
        _check_beside(t, name, sizes, f"the shape `normalized_shape` {list(sizes)}", call)
    _check_beside(residual, "residual", x.shape, f"the input's shape {list(x.shape)}", call)
    need_float(x.dtype, call)
    return sizes


def _check_beside(t: Any, name: str, shape: Sequence[int], rule: str, call: str) -> None:
    """Refuse a weight, bias or residual that is not a tensor of the shape with elements in memory."""
    if t is None:
        return
    check_is_tensor(t, call, f"`{name}`")
    if not is_sharded([t]):
        check_memory(t, call, name)
    if tuple(t.shape) != tuple(shape):
        raise ShapeError(f"{call}: `{name}` must have {rule}, got {list(t.shape)}; reshape or expand it")


def named(**tensors: Tensor | None) -> list[str]:
    """The names of the tensors that are given."""
    return [name for name, t in tensors.items() if t is not None]


def _sizes(shape: Any, call: str) -> tuple[int, ...]:
    numbers = tuple(map(whole_number, shape)) if is_listed(shape) else (None,)
    sizes = tuple(n for n in numbers if n is not None)
    if len(sizes) == len(numbers):
        return sizes
    raise KindError(
        f"{call}: `normalized_shape` must be a sequence of ints, got {shown(shape)}; write (n,) for the last dim"
    )


def as_epsilon(eps: Any, dtype: torch.dtype, call: str) -> float:
    """`eps` as a number; where none is given that of the dtype that is computed in."""
    if eps is None and call.rpartition(".")[2].startswith("rms_norm"):
        return torch.finfo(torch.float64 if dtype == torch.float64 else torch.float32).eps
    number = as_number(eps)
    if number is None:
        raise KindError(f"{call}: `eps` must be a real number, got {shown(eps)}; 1e-5 is usual")
    return number


def _norms(
    call: str, length: int, eps: float, which: tuple[bool, bool], of_sums: bool, counts: bool = False
) -> tuple[Monoid, Traced]:
    """The fold of a row and the map of an element: with a weight and a bias if they are given, and the sum beside it.

    `counts`: the fold gives how many elements a row has, last, and `length` is not read.
    """
    centred = call == "layer_norm"
    weighted, biased = which

    def apply(*values: Any) -> Any:
        x = values[0] + values[1] if of_sums else values[0]
        taken = iter(values[2 if of_sums else 1 :])
        made = x * next(taken)
        made = (made - next(taken)) * next(taken) if centred else made * next(taken)
        if counts:
            next(taken)
        made = made * next(taken) if weighted else made
        made = made + next(taken) if biased else made
        return (made, x) if of_sums else made

    values = 1 + of_sums + 2 + centred + counts + weighted + biased
    monoid = _centred(eps, of_sums, counts) if centred else _scaled(length, eps, of_sums, counts)
    return monoid, graph_of(apply, values).but(rule=_rule_of_norms(centred, which, of_sums, counts))


def _rule_of_norms(centred: bool, which: tuple[bool, bool], of_sums: bool, counts: bool) -> tuple[Graph, ...]:
    """The backward of a norm: of what it read, and of each row's mean, if it has one, reciprocal root, and count, if it
    has one.

    With z = (x - mean) root and o = gy weight:  gx = root (o - (sum o + z sum o z) / length),  gw = gy z,  gb = gy.
    """
    inputs, extras, results = 1 + of_sums, sum(which), 1 + of_sums
    rows = 1 + centred + counts

    def values(v: Sequence[Any]) -> tuple[Any, ...]:
        x = v[0] + v[1] if of_sums else v[0]
        at = inputs + extras + results
        gy, of_sum = v[at], v[at + 1] if of_sums else 0.0
        row, of_row, (length, *sums) = (
            v[at + results :][:rows],
            v[at + results + rows :][:rows],
            v[at + results + 2 * rows :],
        )
        root, length = row[centred], row[-1] if counts else length
        z = (x - row[0]) * root if centred else x * root
        return gy, of_sum, z, gy * v[inputs] if which[0] else gy, root, of_row, length, sums

    def terms(*v: Any) -> Any:
        _, _, z, o, _, _, _, _ = values(v)
        return (o * z, o) if centred else o * z

    def cotangents(*v: Any) -> Any:
        gy, of_sum, z, o, root, of_row, length, sums = values(v)
        along = z * sums[0] + sums[1] if centred else z * sums[0]
        of_root = z * (of_row[centred] * root * root)
        of_rows = (of_row[0] - of_root if centred else -of_root) / length
        gx = root * (o - along / length) + of_rows + of_sum
        return (*[gx] * inputs, *[gy * z] * which[0], *[gy] * which[1])

    def row_of(factor: Any, *rest: Any) -> Any:
        mean, root, count = rest[:centred], rest[centred], rest[centred + 1 :]
        return (*(m / factor for m in mean), root * factor, *count)

    n = inputs + extras + 2 * results + 2 * rows + 1
    return trace(row_of, 1 + rows), trace(terms, n), trace(cotangents, n + 1 + centred)


def _centred(eps: float, of_sums: bool, counts: bool) -> Monoid:
    """The factor of a row, and the mean and the reciprocal standard deviation of the multiplied row."""

    def project(count: Any, mean: Any, squares: Any, units: powers.Units) -> Any:
        factor, size, root = deviation(squares / count, eps, units)
        return (factor, powers.times(mean, size), root, *[count] * counts)

    return powers.moments(project, "layer_norm", of_sums=of_sums, beside=eps)


def _scaled(length: int, eps: float, of_sums: bool, counts: bool) -> Monoid:
    """The factor of a row, and the reciprocal root mean square of the multiplied row."""

    count = max(1, length)

    def project(*state: Any) -> Any:
        *counted, total, units = state
        factor, _, root = deviation(total / (counted[0] if counts else count), eps, units)
        return (factor, root, *counted)

    return powers.squares(project, "rms_norm", of_sums=of_sums, beside=eps * count, counts=counts)


def deviation(square: Any, eps: float, units: powers.Units) -> tuple[Any, Any, Any]:
    """The factors of elements and of sums in units, and 1 / sqrt(square + eps) then, `square` being in units.

    That is 1 and the unit, so that elements stay as they are; other powers of two where the root would leave the range.
    """
    if units.of_elements:
        return units.inverse, 1.0, math.rsqrt(square + eps * units.inverse * units.inverse)
    whole = powers.times(powers.times(square, units.unit), units.unit) + eps
    if units is powers.NONE:
        return 1.0, 1.0, math.rsqrt(whole)
    apart = square + eps * units.inverse * units.inverse
    # Of huge rows, elements that do not vanish beside their root are 2^-30 times as large no subnormal ones.
    huge, tiny = whole == INFINITY, (whole < USUAL) & (apart < INFINITY)
    factor = math.where(huge, 2.0**-30, math.where(tiny, units.inverse, 1.0))
    root = math.rsqrt(math.where(huge | tiny, apart, whole)) * math.where(huge, units.inverse * 2.0**30, 1.0)
    return factor, factor * units.unit, root


def group_norm(
    input: Tensor, num_groups: int, weight: Tensor | None = None, bias: Tensor | None = None, eps: float = 1e-5,
    *, out: Tensor | None = None, guarantee: str = "run_to_run",
) -> Tensor:  # fmt: skip
    """`layer_norm` of groups of channels.

        y[n, c, p] = (x[n, c, p] - mean[n, g]) / sqrt(var[n, g] + eps) * weight[c] + bias[c],   c in group g

    Shapes: [N, C, *] to [N, C, *], weight and bias [C], C a multiple of `num_groups`.
    Dtypes: floats, computed in float32 or float64; the result has the input's dtype.
    Any strides, read in place; the result is contiguous, of channels-last inputs too; `out` may be the input itself. The same
    bits from run to run.

    Raises:
        ShapeError: there are no channels, the groups do not divide them, or the weights do not fit.
        ArgumentError: a group would have one value alone.
        DtypeError: elements are no floats.

    Example:
        >>> tilefold.group_norm(torch.tensor([[[1.0, 3.0], [5.0, 9.0]]]), 2)
        tensor([[[-1.0000,  1.0000],
                 [-1.0000,  1.0000]]])

    Source: Wu and He, "Group normalization" (2018).
    """
    if overridden(input, weight, bias, out):
        return redirected(group_norm, {}, input, num_groups, weight, bias, eps, out, guarantee)
    check_is_tensor(input, "group_norm")
    check_memory(input, "group_norm")
    num_groups = _check_groups(input, num_groups, weight, bias)
    need_float(input.dtype, "group_norm")
    small = as_epsilon(eps, input.dtype, "group_norm")
    # Rows of nothing have no groups to be split into. From torch 2.15 on `in` of symbols is one, which no constant takes.
    whole = not has_none(input.shape)
    extras = [t for t in (weight, bias) if t is not None and whole]
    which = (weight is not None and whole, bias is not None and whole)
    monoid, apply = kept(_norms, "layer_norm", 0, small, which, False)
    groups = num_groups if whole else 1
    alike = input.itemsize > 1 and all(t.dtype == input.dtype for t in extras)
    library = LibraryMap("torch.group_norm", (groups, small, which), any_rank=False) if alike else None
    lengths = (groups, input.shape[1] // groups, *[1] * (input.ndim - 2))
    targets = check_out(out, [result_dtype(input.dtype)], input.shape, [input], "group_norm", in_place=True)
    made = map_tensors(
        [_grouped(input, groups)],
        monoid,
        apply,
        tuple(range(2, input.ndim + 1)),
        extras=[t.reshape(lengths) for t in extras],
        out=None if targets is None else _grouped(targets[0], groups),
        guarantee=guarantee,
        library=library,
        call="group_norm",
        names=(None, *named(weight=weight, bias=bias)) if whole else (None,),
    )[0]
    if targets is not None:
        return targets[0]
    made = made.view(input.shape)
    for t in (weight, bias):
        if t is not None and not whole:  # of nothing, which has a derivative by them all the same: 0
            made = made + t.to(made.dtype).view(-1, *[1] * (input.ndim - 2))
    return made


def _grouped(x: Tensor, groups: int) -> Tensor:
    """[N, C, *] as [N, G, C / G, *]: the same memory."""
    return x.view_as(x) if x.ndim < 2 else torch.unflatten(x, 1, (groups, x.shape[1] // groups))


def _check_groups(x: Tensor, groups: Any, weight: Any, bias: Any) -> int:
    """The number of groups, of a call that may run."""
    if x.ndim < 2:
        raise ShapeError(
            f"group_norm: the input must have the dims [N, C, *], got {list(x.shape)}; unsqueeze it"
        )
    if not is_whole(groups):
        raise KindError(
            f"group_norm: `num_groups` must be an int, got {shown(groups)}; say how many there are"
        )
    channels, number = x.shape[1], int(as_number(groups) or 0)
    if number < 1 or channels % number:
        raise ShapeError(
            f"group_norm: `num_groups` must divide the input's {channels} channels, got {shown(number)}; take a divisor"
        )
    if x.shape[0] * channels // number * numbers.prod(x.shape[2:]) == 1:
        raise ArgumentError(
            f"group_norm: a group must have more than one value (Expected more than 1 value per channel), got input size "
            f"{list(x.shape)}; take fewer groups"
        )
    for name, t in (("weight", weight), ("bias", bias)):
        _check_beside(t, name, (channels,), f"the shape [{channels}], a value a channel", "group_norm")
    return number


def normalize(
    input: Tensor, p: float = 2.0, dim: Dims = 1, eps: float = 1e-12, out: Tensor | None = None,
    *, guarantee: str = "run_to_run",
) -> Tensor:  # fmt: skip
    """Elements by their row's norm.

        y[k, i] = x[k, i] / max(eps, (sum over j of |x[k, j]|^p)^(1 / p))

    Shapes: [M, K] to [M, K]; `dim` may be several; None or none of them is all.
    Dtypes: floats, computed in float32 or float64 (also the norm, which torch rounds to the input's dtype).
    Any strides, read in place; the result is contiguous, of channels-last inputs too; `out` may be the input itself. The same
    bits from run to run.

    Raises:
        KindError: `p` is no real number.
        DtypeError: elements are no floats.

    Example:
        >>> tilefold.normalize(torch.tensor([[3.0, 4.0]]))
        tensor([[0.6000, 0.8000]])
    """
    if overridden(input, out):
        return redirected(normalize, {}, input, p, dim, eps, out, guarantee)
    key = None
    if out is None and type(p) in _PLAIN and type(eps) in _PLAIN:
        key, made = dispatch.again(named_key, [input], "normalize", every(dim), (p, eps, guarantee))
        if made is not None:
            return made[0]
    check_is_tensor(input, "normalize")
    need_float(input.dtype, "normalize")
    order, small = as_number(p), as_epsilon(eps, input.dtype, "normalize")
    if order is None:
        raise KindError(f"normalize: `p` must be a real number, got {shown(p)}; 2 is the Euclidean norm")
    monoid, apply = kept(_by_norm, order, small)
    library = _library_norm(input, order, every(dim), small)
    return map_tensors(
        [input],
        monoid,
        apply,
        every(dim),
        out=out,
        guarantee=guarantee,
        library=library,
        call="normalize",
        key=key,
    )[0]


def _library_norm(x: Tensor, order: float, dim: Any, eps: float) -> LibraryMap | None:
    """Torch's norm for rows that lie end to end, of which it makes as accurate a one in little more than its time."""
    plain = x.dtype in (torch.float32, torch.float64) and x.ndim > 0 and x.layout == torch.strided
    if not plain or type(dim) is not int or dim % x.ndim != x.ndim - 1 or order not in (1, 2, INFINITY):
        return None
    return (
        LibraryMap("torch.linalg.vector_norm", (order, eps), asks=order != INFINITY)
        if x.is_contiguous()
        else None
    )


def _by_norm(order: float, eps: float) -> tuple[Monoid, Traced]:
    """The factor of a row, and the divisor of the multiplied row."""
    if order in (0, INFINITY, -INFINITY):
        return monoids.NORM(order), graph_of(lambda x, norm: x / math.maximum(norm, eps), 2)

    def usual(norm: Any, factor: Any, rest: Any) -> Any:
        """1 and the norm where it is in range; else its factor and the rest, or eps."""
        apart = (
            (norm == INFINITY) | ((norm < USUAL) & (norm > eps))
            if eps > 0
            else (norm == INFINITY) | (norm < USUAL)
        )
        return math.where(apart, factor, 1.0), math.where(apart, rest, math.maximum(norm, eps))

    def in_units(total: Any, units: powers.Units) -> Any:
        norm = math.sqrt(total) if order == 2 else total
        if units is powers.NONE or units.of_elements:
            return units.inverse, math.maximum(norm, eps * units.inverse)
        return usual(powers.times(norm, units.unit), units.inverse, norm)

    def in_extremes(extreme: Any, root: Any, norm: Any) -> Any:
        if isinstance(extreme, float):
            return 1.0, math.maximum(norm, eps)
        # Of negative orders the extreme is the least, and elements may be far above it.
        factor = powers.per_unit(powers.unit(extreme)) * 2.0**-34 if order > 0 else 2.0**64
        factor = (
            math.where(norm < USUAL, powers.per_unit(powers.unit(extreme)), factor) if order > 0 else factor
        )
        return usual(norm, factor, (extreme * factor) * root)

    apply = graph_of(lambda x, factor, norm: (x * factor) / norm, 3)
    if order in (1, 2):
        return (powers.squares if order == 2 else powers.magnitudes)(in_units, f"normalize({order:g})"), apply
    return powers.powers(order, in_extremes, f"normalize({order:g})"), apply
