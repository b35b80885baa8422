"""Torch's own folds, by the names that `planner.library` has for them."""

from __future__ import annotations

import functools
import math as numbers
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from tilefold.algebra.evaluate import as_stored
from tilefold.algebra.program import Program

Tensor = torch.Tensor
Dims = tuple[int, ...]
Make = Callable[..., list[Tensor] | None]
WithRows = tuple[
    list[Tensor], list[Tensor]
]  # a map's elements, and the values of rows that torch found on the way
MakeMap = Callable[..., "list[Tensor] | WithRows | None"]
_TOGETHER = (
    512  # elements of which torch adds up powers in float32, one after another in each part of a vector
)
# Norms of which a dtype holds the squares; reciprocal roots of mean squares of which either does. They are orders of
# magnitude within the dtypes' limits, so that sums of many squares are as well (not measured).
_NORMS = {torch.float32: (1e-15, 1e18), torch.float64: (1e-140, 1e150)}
_ROOTS = (0.0, 1e15)
_BOUNDS = 1e-28  # an eps of which no reciprocal root is beyond these
_HALVES = (torch.float16, torch.bfloat16)


@dataclass(frozen=True)
class Settled:
    """Torch's function for calls with tensors of one layout, which gives them results of one layout and dtype.

    `make` calls it, and `finish` makes of its results the requested ones: where a first call shows that they are these
    already, later ones need `make` alone. It gives None for elements that ask for more.
    """

    make: Make
    finish: Callable[[Sequence[Tensor]], list[Tensor]]

    def __call__(self, *tensors: Tensor) -> list[Tensor] | None:
        """The results of these tensors; None where torch does not make them."""
        made = self.make(*tensors)
        return None if made is None else self.finish(made)


def fold(function: str, x: Tensor, dims: Dims, program: Program) -> list[Tensor] | None:
    """Torch's answer, in the program's dtypes; None where it is not ours."""
    results = FUNCTIONS[function](x, dims, program)
    if results is None:
        return None
    return [as_stored(r, d) for r, d in zip(results, program.outputs, strict=True)]


def settled_fold(function: str, dims: Dims, program: Program, shape: Dims) -> Settled:
    """`fold` for calls with tensors of one layout, with results in `shape`."""
    own = FUNCTIONS[function]

    def finish(results: Sequence[Tensor]) -> list[Tensor]:
        made = [as_stored(r, d) for r, d in zip(results, program.outputs, strict=True)]
        return [r if r.shape == shape else r.reshape(shape) for r in made]

    if function in _SLOPED:
        return Settled(lambda x: _with_slopes(function, own(x, dims, program)), finish)

    def make(x: Tensor) -> list[Tensor] | None:
        made = own(x, dims, program)
        return None if made is None else [*made]

    return Settled(make, finish)


# Results that have torch's derivative: of a row of -inf it has NaN, and of products it divides by elements, so that nothing
# is left where a product is out of range.
_SLOPED: dict[str, Callable[[Tensor], bool]] = {
    "torch.logsumexp": lambda y: y.amin().item() > -float("inf"),
    "torch.prod": lambda y: _in_range(y),
    "torch.cumprod": lambda y: _in_range(y),
}


def _in_range(y: Tensor) -> bool:
    least, most = torch.aminmax(y.abs())
    return bool(least >= torch.finfo(y.dtype).tiny) and numbers.isfinite(most.item())


def _with_slopes(function: str, made: Sequence[Tensor] | None) -> list[Tensor] | None:
    """Results; None where autograd looks on and would find another derivative than ours."""
    assert made is not None  # these functions always make some
    (y,) = made
    return None if y.requires_grad and not (y.numel() and _SLOPED[function](y.detach())) else [y]


def _sum(x: Tensor, dims: Dims, program: Program) -> list[Tensor]:
    wide = torch.float32 if x.dtype in _HALVES and program.outputs != (x.dtype,) else None
    if wide is not None:
        return [torch.sum(x, dims, dtype=wide)]
    return [torch.sum(x) if len(dims) == x.ndim else torch.sum(x, dims[0] if len(dims) == 1 else dims)]


def _prod(x: Tensor, dims: Dims, program: Program) -> list[Tensor]:
    return [torch.prod(x) if len(dims) == x.ndim else torch.prod(x, dims[0])]


def _logsumexp(x: Tensor, dims: Dims, program: Program) -> list[Tensor]:
    return [torch.logsumexp(x, dims)]


def _aminmax(x: Tensor, dims: Dims, program: Program) -> list[Tensor]:
    return list(torch.aminmax(x) if len(dims) == x.ndim else torch.aminmax(x, dim=dims[0]))


def _position(function: Callable[..., Tensor], x: Tensor, dims: Dims, program: Program) -> list[Tensor]:
    return [function(x) if len(dims) == x.ndim else function(x, dims[0])]


def _located(
    function: Callable[..., Sequence[Tensor]], x: Tensor, dims: Dims, program: Program
) -> list[Tensor]:
    return list(function(x, dims[0]))


def _end(x: Tensor, dims: Dims, program: Program, *, last: bool) -> list[Tensor]:
    for dim in reversed(dims):
        x = x.select(dim, x.shape[dim] - 1 if last else 0)
    return [x.clone(memory_format=torch.contiguous_format)]


def _spread(
    function: Callable[..., Tensor], correction: int, x: Tensor, dims: Dims, program: Program
) -> list[Tensor] | None:
    """Of deviations from the means, so that its derivative is as exact far from zero. None of infinite ones."""
    if torch._C._is_tracing():
        return [function(x, dims, correction=correction)]
    made = function(x - x.detach().mean(dims, True), dims, correction=correction)
    return [made] if numbers.isfinite(made.detach().max().item()) else None


def _norm_of(order: float, x: Tensor, dims: Dims, program: Program) -> list[Tensor] | None:
    """None where the dtype does not hold squares, and where torch's derivative is not ours."""
    made = torch.linalg.vector_norm(x, order, dims)
    if order == 1 or torch._C._is_tracing():
        return [made]
    own = made.detach()
    if not made.numel():
        return None
    if order == 2:
        low, high = _NORMS[x.dtype]
        return [made] if own.min().item() >= low and own.max().item() <= high else None
    return [made] if numbers.isfinite(own.max().item()) else None


FUNCTIONS: dict[str, Callable[[Tensor, Dims, Program], Sequence[Tensor] | None]] = {
    "torch.sum": _sum,
    "torch.prod": _prod,
    "torch.amax": lambda x, dims, program: [torch.amax(x, dims)],
    "torch.amin": lambda x, dims, program: [torch.amin(x, dims)],
    "torch.aminmax": _aminmax,
    "torch.argmax": functools.partial(_position, torch.argmax),
    "torch.argmin": functools.partial(_position, torch.argmin),
    "torch.max": functools.partial(_located, torch.max),
    "torch.min": functools.partial(_located, torch.min),
    "torch.any": lambda x, dims, program: [torch.any(x, dims)],
    "torch.all": lambda x, dims, program: [torch.all(x, dims)],
    "torch.count_nonzero": lambda x, dims, program: [torch.count_nonzero(x, dims)],
    "torch.logsumexp": _logsumexp,
    "first": functools.partial(_end, last=False),
    "last": functools.partial(_end, last=True),
    **{f"var {c}": functools.partial(_spread, torch.var, c) for c in (0, 1)},
    **{f"std {c}": functools.partial(_spread, torch.std, c) for c in (0, 1)},
    "norm 1": functools.partial(_norm_of, 1),
    "norm 2": functools.partial(_norm_of, 2),
    "norm inf": functools.partial(_norm_of, numbers.inf),
}


def settled_scan(
    function: str, dim: int, program: Program, *, exclusive: bool = False, reverse: bool = False
) -> Settled:
    """Torch's prefixes, in the program's dtypes."""
    own = SCANS[function]

    def finish(results: Sequence[Tensor]) -> list[Tensor]:
        return [as_stored(r, d).contiguous() for r, d in zip(results, program.outputs, strict=True)]

    def around(x: Tensor) -> list[Tensor]:
        x = x.flip(dim) if reverse else x
        made = _before(own, x, dim, program) if exclusive else own(x, dim)
        return [made.flip(dim) if reverse else made]

    if exclusive or reverse:
        return Settled(around, finish)
    if function in _SLOPED:
        return Settled(lambda x: _with_slopes(function, [own(x, dim)]), finish)
    if len(program.outputs) == 1:
        return Settled(lambda x: [own(x, dim)], finish)
    return Settled(lambda x: list(own(x, dim)), finish)


def _before(own: Callable[..., Tensor], x: Tensor, dim: int, program: Program) -> Tensor:
    """Prefixes without their own element: the identity, then the prefixes of all elements but the last."""
    made = own(x.narrow(dim, 0, x.shape[dim] - 1), dim)
    first = made.new_full((*x.shape[:dim], 1, *x.shape[dim + 1 :]), program.identity[0])
    return torch.cat((first, made), dim)


SCANS: dict[str, Callable[[Tensor, int], Any]] = {
    "torch.cumsum": torch.cumsum,
    "torch.cumprod": torch.cumprod,
    "torch.cummax().values": lambda x, dim: torch.cummax(x, dim).values,
    "torch.cummin().values": lambda x, dim: torch.cummin(x, dim).values,
    "torch.cummax": torch.cummax,
    "torch.cummin": torch.cummin,
    "torch.logcumsumexp": torch.logcumsumexp,
}


def settled_map(function: str, arguments: tuple[Any, ...], rows: int = 0) -> Settled:
    """Torch's answers for every element of tensors of one shape; extra ones may be as they were before they were expanded.

    Of functions that give values of rows, so many of these, too.
    """
    make = MAPS[function](*arguments)

    def some(*tensors: Tensor) -> list[Tensor] | None:
        made = make(*tensors)
        return made if made is None or isinstance(made, list) else [*made[0], *made[1][:rows]]

    return Settled(some, lambda results: [made.contiguous() for made in results])


def _softmax(function: Callable[..., Tensor], dim: int, dtype: Any) -> Make:
    def make(x: Tensor) -> list[Tensor]:
        kind = dtype or x.dtype
        if kind in _HALVES and function is torch.log_softmax:  # torch rounds to halves on the way
            return [function(x.to(kind), dim, torch.float32).to(kind)]
        return [function(x, dim, dtype)]

    return make


def _normalized(
    function: Callable[..., tuple[Tensor, ...]], dims: int, eps: float, which: tuple[bool, ...], of_sums: bool
) -> MakeMap:
    """Extra tensors come for each of `which`; their elements are those of the first row."""
    absent = (None,) * len(which)
    places = [i for i, some in enumerate(which) if some]

    def beside(extras: Sequence[Tensor], ndim: int, dtype: torch.dtype) -> Sequence[Tensor | None]:
        if not places:
            return absent
        given: list[Tensor | None] = [*absent]
        lead = (0,) * (ndim - dims)
        for place, t in zip(places, extras, strict=True):
            given[place] = (t if t.ndim == dims else t[lead]).to(dtype).contiguous()
        return given

    def alone(x: Tensor, *extras: Tensor) -> WithRows | None:
        shape = x.shape
        made, *mean, roots = function(
            x, shape[len(shape) - dims :], *beside(extras, len(shape), x.dtype), eps
        )
        return ([made], [*mean, roots]) if _held(roots, eps, *mean) else None

    def of_sum(x: Tensor, residual: Tensor, *extras: Tensor) -> WithRows | None:
        wide = torch.float32 if x.dtype in _HALVES else x.dtype
        total = x.to(wide) + residual.to(wide)
        made, *mean, roots = function(total, x.shape[x.ndim - dims :], *beside(extras, x.ndim, wide), eps)
        return ([made.to(x.dtype), total.to(x.dtype)], [*mean, roots]) if _held(roots, eps, *mean) else None

    return of_sum if of_sums else alone


def _softmax_backward(function: Callable[..., Tensor], dim: int) -> MakeMap:
    """Of results and their cotangents: torch rounds halves once, at the end."""
    return lambda y, gy: [function(gy, y, dim, y.dtype)]


def _normalized_backward(
    dims: int, roles: tuple[str, ...], which: tuple[int, ...], given: tuple[bool, bool]
) -> MakeMap:
    """Of values in these roles: of an element, of all rows' parameters, of each row."""

    def make(*values: Tensor) -> list[Tensor]:
        named = dict(zip(roles, values, strict=True))
        x, gy = named["input0"], named["of_result0"]
        shape, kind = x.shape[x.ndim - dims :], x.dtype if x.dtype not in _HALVES else torch.float32
        lead: tuple[Any, ...] = (0,) * (x.ndim - dims)
        row: tuple[Any, ...] = (..., *[slice(0, 1)] * dims)
        weight = named["extra0"][lead].to(kind).contiguous() if given[0] else None
        bias = gy[lead].to(kind) if given[1] else None  # asked for its dtype alone
        mask = [0 in which, given[0] and 1 in which, given[1] and 1 + given[0] in which]
        made = torch.ops.aten.native_layer_norm_backward(
            gy.to(kind),
            x.to(kind),
            shape,
            # Torch reads these as they lie, whatever their strides are.
            named["row0"][row].to(kind).contiguous(),
            named["row1"][row].to(kind).contiguous(),
            weight,
            bias,
            mask,
        )
        dx, dw, db = made
        order = {0: dx, 1: dw if given[0] else db, 2: db}
        column = (*[1] * len(lead), *shape)
        return [order[i].to(x.dtype) if i == 0 else order[i].view(column) for i in which]

    return make


def _spread_backward(correction: int, dims: Dims) -> Make:
    """Of elements, a cotangent and a root, as torch derives `_spread`; None where means are not finite."""

    def make(x: Tensor, *of_rows: Tensor) -> list[Tensor] | None:
        deviations = x - x.mean(dims, True)
        left = deviations.mean(dims, True)
        if not numbers.isfinite(left.sum().item()):
            return None
        row = tuple([slice(0, 1) if d - x.ndim in dims else slice(None) for d in range(x.ndim)])
        g, *roots = [t[row] for t in of_rows]
        for y in roots:
            g = (g * 0.5 / y).masked_fill_(y == 0, 0)
        freedom = numbers.prod(x.shape[d] for d in dims) - correction
        return [deviations.sub_(left).mul_((2.0 / freedom) * g)]

    return make


def _grouped(groups: int, eps: float, which: tuple[bool, ...]) -> MakeMap:
    """Of [N, G, C / G, *]; extra tensors are [.., G, C / G, 1 ...] or as much expanded."""

    def make(x: Tensor, *extras: Tensor) -> WithRows | None:
        rest = (slice(0, 1),) * (x.ndim - 3)
        given = iter(
            (t[0] if t.ndim == x.ndim else t)[(slice(None), slice(None), *rest)].reshape(-1).contiguous()
            for t in extras
        )
        weight, bias = (next(given) if some else None for some in which)
        count, inner = x.shape[1] * x.shape[2], numbers.prod(x.shape[3:])
        whole = x.flatten(1, 2).contiguous()
        made, mean, roots = torch.native_group_norm(
            whole, weight, bias, x.shape[0], count, inner, groups, eps
        )
        row = (x.shape[0], groups, *[1] * (x.ndim - 2))
        return ([made.view(x.shape)], [mean.view(row), roots.view(row)]) if _held(roots, eps, mean) else None

    return make


def _held(roots: Tensor, eps: float, mean: Tensor | None = None) -> bool:
    """Whether the squares under these reciprocal roots were in range, and torch's products of roots and means.

    A trace holds no decision about its elements.
    """
    if torch._C._is_tracing():
        return True
    if roots.requires_grad:  # autograd looks on
        roots, mean = roots.detach(), None if mean is None else mean.detach()
    if eps >= _BOUNDS:  # no root is beyond the range
        if not roots.amin().item() > _ROOTS[0]:
            return False
    else:
        least, most = torch.aminmax(roots)
        if not (least.item() > _ROOTS[0] and most.item() < _ROOTS[1]):
            return False
    # A sum of products is finite where they are: one operation.
    return mean is None or numbers.isfinite(torch.dot(mean.reshape(-1), roots.reshape(-1)).item())


def _by_norm(order: float, eps: float) -> Make:
    """Rows of neighbours by their norm; None where the dtype does not hold it, or its squares."""

    def make(x: Tensor) -> list[Tensor] | None:
        norm = _norm(x, order)
        return [x / norm.clamp_min(eps)] if order == float("inf") or _holds(x, norm, order) else None

    return make


def _norm(x: Tensor, order: float) -> Tensor:
    """Torch's norm of each row, of a long row that of the norms of its parts: so few roundings follow one another."""
    length = x.shape[-1]
    parts, left = divmod(length, _TOGETHER)
    if length <= 2 * _TOGETHER or order == float("inf"):
        alone: Tensor = torch.linalg.vector_norm(x, order, -1, True)
        return alone
    whole = x.narrow(-1, 0, length - left).unflatten(-1, (parts, _TOGETHER))  # type: ignore[no-untyped-call]  # torch's own
    norms: Tensor = torch.linalg.vector_norm(whole, order, -1)
    if left:
        rest = torch.linalg.vector_norm(x.narrow(-1, length - left, left), order, -1, True)
        norms = torch.cat((norms, rest), -1)
    return _norm(norms, order)


def _holds(x: Tensor, norm: Tensor, order: float) -> bool:
    """Whether the dtype held each norm, and its squares: those of a row of zeros too."""
    x, norm = x.detach(), norm.detach()  # autograd may look on
    low, high = _NORMS[x.dtype] if order == 2 else (0.0, torch.finfo(x.dtype).max)
    least, most = torch.aminmax(norm)
    if not float(most) <= high:
        return False
    return float(least) >= low or not bool(x[norm.squeeze(-1) < low].any())


MAPS: dict[str, Callable[..., MakeMap]] = {
    "torch.softmax": functools.partial(_softmax, torch.softmax),
    "torch.log_softmax": functools.partial(_softmax, torch.log_softmax),
    "torch.layer_norm": functools.partial(_normalized, torch.native_layer_norm),
    "torch.rms_norm": functools.partial(_normalized, torch._fused_rms_norm),
    "torch.group_norm": _grouped,
    "torch.softmax backward": functools.partial(_softmax_backward, torch._softmax_backward_data),
    "torch.log_softmax backward": functools.partial(_softmax_backward, torch._log_softmax_backward_data),
    "torch.layer_norm backward": _normalized_backward,
    "torch.linalg.vector_norm": _by_norm,
    **{
        f"{name} {c} backward": functools.partial(_spread_backward, c)
        for name in ("var", "std")
        for c in (0, 1)
    },
}
