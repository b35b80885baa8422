"""Random softmaxes and norms of layers beside their definition in float64, each element with a bound of its own.

A bound is of first order in the unit of float32 (of float64 where that is computed in), for rows that are folded one element
after another, in any grouping; the result is then rounded once. Rows whose squares or powers leave the range of float32 are
not compared, but by `normalize` on a CPU, which folds them again.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Any
from unittest import mock

import torch
from hypothesis import strategies as st

import tilefold
from asked import by_ptx
from fuzz.folds import GUARANTEES, INF, NAN, on_device, same_bytes
from fuzz.maps import TINY, TINY_BLOCKS, copied
from layouts import Layout, layouts
from scanned import leaves
from tilefold.planner import blocks, maps

Tensor = torch.Tensor
FLOATS = (torch.float32, torch.bfloat16, torch.float16, torch.float64)
LAYERS, SHARES = ("layer_norm", "rms_norm", "group_norm"), ("softmax", "log_softmax", "normalize")
SHORT, LONG = (1, 2, 3, 4, 5, 8), (16, 31, 33, 64, 65, 100, 257, 300, 1003)
KINDS = ("plain", "plain", "plain", "far", "wide", "tiny", "huge", "corners", "rows", "rows")
ORDERS = (2.0, 2.0, 1.0, INF, -INF, 3.0, 0.5, 0.0, -1.0)
# Of a result of 16 bits that torch's softmax makes on a CPU (docs/guarantees.md).
TORCHS_ROUNDINGS = 3
# Of rows of huge and of tiny elements.
SIZES = {
    torch.float16: (3e4, 1e-7), torch.bfloat16: (1e30, 1e-30), torch.float32: (1e30, 1e-30), torch.float64: (1e140, 1e-140),
}  # fmt: skip


@dataclass(frozen=True)
class Given:
    """A tensor: its dtype and layout, and what its elements are drawn from."""

    dtype: torch.dtype
    layout: Layout
    seed: int
    kind: str = "plain"

    def make(self, shape: Sequence[int], dims: Sequence[int] = ()) -> Tensor:
        """The tensor; rows along `dims` may be alike as wholes."""
        return self.layout.place(shape, lambda own: self._values(own, dims).to(self.dtype)).expand(shape)

    def _values(self, shape: Sequence[int], dims: Sequence[int]) -> Tensor:
        generator = torch.Generator().manual_seed(self.seed)
        huge, tiny = SIZES[self.dtype]
        scale, middle = {
            "far": (1.0, 100.0),
            "wide": (30.0, 0.0),
            "tiny": (tiny, 0.0),
            "huge": (huge, 0.0),
        }.get(self.kind, (1.0, 0.0))
        x = torch.randn(list(shape), generator=generator, dtype=torch.float64) * scale + middle
        if self.kind == "corners":
            return _replaced(x, list(shape), (NAN, INF, -INF, 0.0), 0.05, generator)
        if self.kind == "rows":
            rows = [1 if d in dims else n for d, n in enumerate(shape)]
            return _replaced(x, rows, (NAN, INF, -INF, -INF, 0.0, 1.5), 0.5, generator)
        return x


def _replaced(
    x: Tensor, shape: list[int], values: Sequence[float], share: float, generator: torch.Generator
) -> Tensor:
    """Some elements, or rows, with other values."""
    here = torch.rand(shape, generator=generator) < share
    which = torch.randint(len(values), shape, generator=generator)
    return torch.where(here, torch.tensor(values, dtype=torch.float64)[which], x)


@dataclass(frozen=True)
class Norm:
    """A call of one of `LAYERS` or `SHARES`. `out`: results are new, given, or written over what they are made of."""

    function: str
    shape: tuple[int, ...]
    input: Given
    residual: Given | None
    weight: Given | None
    bias: Given | None
    dims: tuple[int, ...]
    groups: int
    order: float
    eps: float | None
    dtype: torch.dtype | None
    out: str
    out_layout: Layout
    guarantee: str
    tiny: bool
    alone: int

    @property
    def own(self) -> tuple[int, ...]:
        """The shape of weight and bias."""
        return self.shape[1:2] if self.function == "group_norm" else self.shape[self.dims[0] :]

    @property
    def results(self) -> tuple[torch.dtype, ...]:
        """The results' dtypes."""
        if self.residual is not None:
            return (torch.promote_types(self.input.dtype, self.residual.dtype),) * 2
        return (self.dtype or self.input.dtype,)

    @property
    def computed(self) -> torch.dtype:
        """The dtype of rows' results."""
        wide = torch.float64 in (self.results[0], self.residual and self.residual.dtype)
        return torch.float64 if wide else torch.float32

    def tensors(self) -> list[Tensor]:
        """Input and residual, then weight and bias: those that there are."""
        rows = [g.make(self.shape, self.dims) for g in (self.input, self.residual) if g is not None]
        return rows + [g.make(self.own) for g in (self.weight, self.bias) if g is not None]

    def call(self, tensors: Sequence[Tensor], out: Any = None) -> Any:
        """The call of these tensors, or of a part of their rows."""
        given = iter(tensors)
        x = next(given)
        residual = next(given) if self.residual is not None else None
        weight = next(given) if self.weight is not None else None
        bias = next(given) if self.bias is not None else None
        options: dict[str, Any] = {"out": out, "guarantee": self.guarantee}
        eps = {} if self.eps is None else {"eps": self.eps}
        if self.function in ("softmax", "log_softmax"):
            dim: Any = self.dims if len(self.dims) > 1 else self.dims[0]
            return getattr(tilefold, self.function)(x, dim, self.dtype, **options)
        if self.function == "normalize":
            return tilefold.normalize(x, self.order, self.dims, **eps, **options)
        if self.function == "group_norm":
            return tilefold.group_norm(x, self.groups, weight, bias, **eps, **options)
        if self.function == "layer_norm":
            return tilefold.layer_norm(x, self.own, weight, bias, **eps, residual=residual, **options)
        return tilefold.rms_norm(x, self.own, weight, **eps, residual=residual, **options)


@st.composite
def norms(
    draw: st.DrawFn,
    functions: Sequence[str] = (*LAYERS, *SHARES),
    long: Sequence[int] = LONG,
    most: int = 3000,
) -> Norm:
    """Any call of up to `most` elements; of long dims at most one."""
    function = draw(st.sampled_from(functions))
    grouped, layered = function == "group_norm", function in ("layer_norm", "rms_norm")
    shape = draw(st.lists(st.sampled_from(SHORT), min_size=2 if grouped else 1, max_size=4))
    if draw(st.integers(0, 2)):
        shape[draw(st.integers(0, len(shape) - 1))] = draw(st.sampled_from(long))
    while math.prod(shape) > most:
        shape[shape.index(min(n for n in shape if n > 1))] = 1
    if draw(st.integers(0, 9)) == 0 and not grouped:
        shape[draw(st.integers(0, len(shape) - 1))] = 0
    ndim, groups = len(shape), 1
    if grouped:
        groups = draw(st.sampled_from([g for g in range(1, shape[1] + 1) if shape[1] % g == 0]))
        shape[0] += shape[0] * math.prod(shape[1:]) == groups  # of one value torch makes no group
        dims: tuple[int, ...] = tuple(range(1, ndim))
    elif layered:
        dims = tuple(range(draw(st.integers(0, ndim - 1)), ndim))
    else:
        dims = tuple(sorted(draw(st.sets(st.integers(0, ndim - 1), min_size=1))))

    alike = draw(st.sampled_from((True, True, False)))

    def given(some: bool, depth: int = ndim, kind: str = "plain") -> Given | None:
        if not some or not draw(st.sampled_from((True, True, False))):
            return None
        dtype = x.dtype if alike else draw(st.sampled_from((*FLOATS, torch.float64)))
        return Given(dtype, draw(layouts(depth)), draw(st.integers(0, 99)), kind)

    kind = draw(st.sampled_from(KINDS))
    x = Given(draw(st.sampled_from(FLOATS)), draw(layouts(ndim)), draw(st.integers(0, 99)), kind)
    beside = 1 if grouped else len(shape[dims[0] :])
    return Norm(
        function, tuple(shape), x,
        given(layered, kind="plain" if kind == "far" else kind), given(grouped or layered, beside),
        given(grouped or function == "layer_norm", beside),
        dims, groups, draw(st.sampled_from(ORDERS)), draw(st.sampled_from((None, None, None, 1e-5, 1e-3, 1.0, 1.0, 0.0))),
        draw(st.sampled_from((None, None, None, *FLOATS))) if function.endswith("softmax") else None,
        draw(st.sampled_from(("", "given", "first"))), draw(layouts(ndim, may_broadcast=False)),
        draw(st.sampled_from(GUARANTEES)), draw(st.booleans()), draw(st.integers(0, 9)),
    )  # fmt: skip


# ------------------------------------------------------------------------------------------------ the definition


@dataclass(frozen=True)
class Want:
    """What is wanted in float64, how far off it may be before it is rounded, and which elements' rows go beyond a range."""

    value: Tensor
    error: Tensor
    beyond: Tensor


def definition(case: Norm, tensors: Sequence[Tensor]) -> list[Want]:
    """The results of a call, each as wanted."""
    given = iter(tensors)
    x = next(given)
    unit = torch.finfo(case.computed).eps / 2
    if case.function.endswith("softmax"):
        return [_softmax(x.to(case.results[0]).double(), case, unit)]
    wide = x.double()
    slip = 0.0  # of the sum that is normalized
    if case.residual is not None:
        wide, slip = wide + next(given).double(), unit
    if case.function == "normalize":
        return [_normalized(wide, case, unit)]
    weight = next(given).double() if case.weight is not None else None
    bias = next(given).double() if case.bias is not None else None
    if case.function == "group_norm":
        wide = wide.unflatten(1, (case.groups, -1)) if wide.numel() else wide.unsqueeze(1)
        weight, bias = (None if t is None else _of_channels(t, wide) for t in (weight, bias))
        made = _centred(wide, tuple(range(2, wide.ndim)), case, unit, slip)
    elif case.function == "layer_norm":
        made = _centred(wide, case.dims, case, unit, slip)
    else:
        made = _scaled(wide, case, unit, slip)
    made = _weighed(made, weight, bias, unit)
    flat = [t.reshape(case.shape) for t in (made.value, made.error, made.beyond.expand(wide.shape))]
    own = Want(*flat)
    if case.residual is None:
        return [own]
    return [own, Want(wide, unit * wide.abs(), torch.zeros_like(wide, dtype=torch.bool))]


def _of_channels(t: Tensor, wide: Tensor) -> Tensor:
    return t.reshape(wide.shape[1], wide.shape[2], *[1] * (wide.ndim - 3))


def _length(case: Norm, x: Tensor, dims: Sequence[int]) -> int:
    return math.prod(x.shape[d] for d in dims)


def _softmax(x: Tensor, case: Norm, unit: float) -> Want:
    """docs/guarantees.md has the bounds. Exponentials below the range are 0."""
    dims, n = case.dims, _length(case, x, case.dims)
    largest = x.amax(dims, keepdim=True) if n else x
    spread = torch.where(x.isfinite(), x.abs(), 0.0).amax(dims, keepdim=True) if n else x.abs()
    beyond = torch.zeros_like(x, dtype=torch.bool)
    total = (x - largest).exp().sum(dims, keepdim=True)
    error = (4 * (n + 2) + 8 * spread) * unit
    if case.function == "log_softmax":
        made = (x - largest) - total.log()
        return Want(made, error + 2 * unit * made.abs(), beyond)
    made = (x - largest).exp() / total
    relative = torch.where(error < 0.25, error, INF)  # of numbers so large nothing is promised
    return Want(made, (relative * made).nan_to_num(INF, INF), beyond)


def _centred(x: Tensor, dims: Sequence[int], case: Norm, unit: float, slip: float) -> Want:
    """A lane's pivot is among its elements, so that the variance errs by their range's square, and the mean by its size."""
    n, eps = _length(case, x, dims), 1e-5 if case.eps is None else case.eps
    mean = x.mean(dims, keepdim=True)
    off = x - mean
    spread = off.square().mean(dims, keepdim=True) + eps
    least = torch.finfo(case.computed).tiny
    if not x.numel():
        return Want(x, x, torch.zeros_like(x, dtype=torch.bool))
    size, reach = x.abs().amax(dims, keepdim=True), off.abs().amax(dims, keepdim=True)
    misplaced = (n + 4) * unit * reach + (
        2 * (unit + slip) + n * 2.0**-53
    ) * size  # also by the definition's own sum
    relative = ((n + 4) * 8 * unit * reach.square() + misplaced * (misplaced + reach) + least) / spread
    value = off / spread.sqrt()
    error = value.abs() * (relative + 16 * unit) + misplaced / spread.sqrt()
    beyond = _leaves(n * size.square(), case) | (relative > 0.25) | (spread < 64 * least)
    return Want(value, error, beyond)


def _scaled(x: Tensor, case: Norm, unit: float, slip: float) -> Want:
    n = max(1, _length(case, x, case.dims))
    eps = torch.finfo(case.computed).eps if case.eps is None else case.eps
    total = x.square().sum(case.dims, keepdim=True)
    spread = total / n + eps
    value = x / spread.sqrt()
    beyond = _leaves(total, case) | ((total < 1e6 * n * torch.finfo(case.computed).tiny) & (eps < 1e-20))
    return Want(value, value.abs() * ((n + 16) * unit + 2 * slip), beyond)


def _normalized(x: Tensor, case: Norm, unit: float) -> Want:
    """A power errs with its exponent; a root divides what the sum of powers errs by."""
    n, p, eps = _length(case, x, case.dims), case.order, 1e-12 if case.eps is None else case.eps
    value = torch.zeros_like(x)
    beyond = torch.zeros_like(x, dtype=torch.bool)
    if not x.numel():
        return Want(value, value, beyond)
    # In units of a row's leading element, whose powers a double holds.
    sizes = torch.where((x != 0) & x.isfinite(), x.abs(), -INF if p > 0 else INF)
    leading = (sizes.amax if p > 0 else sizes.amin)(case.dims, keepdim=True)
    scales = leading.isfinite() & (p not in (0.0, INF, -INF))
    size = torch.where(scales, leading, 1.0).log2().floor().exp2()
    norm = torch.linalg.vector_norm(x / size, p, case.dims, keepdim=True)
    value = x / size / norm.maximum(eps / size)
    relative = torch.full_like(norm, (n + 4) * unit)
    if p not in (0.0, INF, -INF):
        powers = x.abs() ** p
        counted = (x != 0) & x.isfinite()
        steps = torch.where(counted, (p * x.abs().log2()).abs(), 0.0).amax(case.dims, keepdim=True)
        total = powers.sum(case.dims, keepdim=True)
        odd = 0.0 if p in (1.0, 2.0) else 1.0
        root = torch.where((total > 0) & total.isfinite(), total.log2().abs(), 0.0) / abs(p)
        relative = relative + ((8 + 4 * steps + n) * odd / abs(p) + 4 * root * odd + 8) * unit
        inner = torch.where(counted, powers, 1.0)
        most = inner.amax(case.dims, keepdim=True) * n
        beyond = _leaves(most, case) | most.isposinf()
        beyond = beyond | (inner.amin(case.dims, keepdim=True) < 1e6 * torch.finfo(case.computed).tiny)
        beyond = beyond & ~(norm.isnan() | (total == 0))
    return Want(value, value.abs() * (relative + 8 * unit), beyond.expand(x.shape))


def _leaves(total: Tensor, case: Norm) -> Tensor:
    """Whether sums leave the range above; elements that are infinite are no such sums."""
    return total.isfinite() & (total > torch.finfo(case.computed).max / 16)


def _weighed(made: Want, weight: Tensor | None, bias: Tensor | None, unit: float) -> Want:
    value, error = made.value, made.error
    if weight is not None:
        value, error = value * weight, (error + unit * value.abs()) * weight.abs()
    if bias is not None:
        value, error = value + bias, error + unit * (value.abs() + (value + bias).abs())
    return Want(value, error, made.beyond)


# ------------------------------------------------------------------------------------------------ comparing


def check(case: Norm, backends: Sequence[str], device: str = "cpu") -> None:
    """Call on each backend and compare with the definition: dtypes, shapes, values; a row alone, where it owes its bits."""
    tensors = case.tensors()
    want = definition(case, tensors)
    rows = 1 + (case.residual is not None)
    over = (
        case.out == "first"
        and not case.input.layout.broadcast.count(True)
        and case.results[0] == case.input.dtype
    )
    for backend in backends:
        given = [on_device(t, device) if device != "cpu" else t for t in tensors]
        if over:
            given[0] = copied(given[0])
        before = [copied(t) for t in given]
        out = _outs(case, device) if case.out == "given" or (over and rows > 1) else None
        if over:
            out = [given[0], *(out or [None])[1:]]
        run = _by_ptx if backend == "ptx" else _run
        with ExitStack() as stack:
            if case.tiny:
                stack.enter_context(mock.patch.multiple(maps, **TINY))
                stack.enter_context(mock.patch.multiple(blocks, **TINY_BLOCKS))
            if backend != "ptx":
                stack.enter_context(tilefold.backend("auto" if backend == "triton" else backend))
            got = run(case, given, out)
            assert out is None or all(g is o for g, o in zip(got, out, strict=True)), "a result is not `out`"
            assert all(map(same_bytes, given[over:], before[over:])), f"{backend} changed an input"
            for k, (g, w) in enumerate(zip(got, want, strict=True)):
                _compare(case, g.cpu(), w, case.results[k], f"{backend}: result {k}")
            if case.guarantee == "batch_invariant":
                _alone(case, run, before, got, backend)


def _outs(case: Norm, device: str) -> list[Tensor]:
    """Results in a layout of their own."""
    made = [
        case.out_layout.place(case.shape, lambda own, d=d: torch.full(list(own), 9.0, dtype=d)) for d in case.results
    ]  # fmt: skip
    return [on_device(t, device) if device != "cpu" else t for t in made]


def _run(case: Norm, given: Sequence[Tensor], out: Sequence[Tensor] | None) -> list[Tensor]:
    return leaves(case.call(given, out if out is None or len(out) > 1 else out[0]))


def _by_ptx(case: Norm, given: Sequence[Tensor], out: Sequence[Tensor] | None) -> list[Tensor]:
    """From the plan for a GPU, in which groups' channels are two dims."""
    made = by_ptx(lambda: case.call(given, out if out is None or len(out) > 1 else out[0]), out=out)
    return [m.reshape(given[0].shape) for m in made] if out is None else made


def _compare(case: Norm, got: Tensor, want: Want, dtype: torch.dtype, by: str) -> None:
    assert (got.dtype, tuple(got.shape)) == (dtype, case.shape), f"{by} is {got.dtype} of {list(got.shape)}"
    stored, computed = torch.finfo(dtype), torch.finfo(case.computed)
    g, value = got.double(), want.value
    times = (
        TORCHS_ROUNDINGS
        if by.startswith("auto") and case.function == "softmax" and dtype.itemsize == 2
        else 1
    )
    room = (
        want.error
        + (value.abs() + want.error) * times * stored.eps / 2
        + stored.smallest_normal * stored.eps
        + computed.tiny
    )
    fine = (
        (g == value)
        | (g.isnan() & value.isnan())
        | ((g - value).abs() <= room)
        | (g == value.to(dtype).double())
    )
    if not (by.startswith("cpu") and case.function == "normalize"):
        fine |= want.beyond
    assert bool(fine.all()), f"{by} is\n{g[~fine]}, not\n{value[~fine]} within\n{room.expand(g.shape)[~fine]}"


def _alone(
    case: Norm, run: Callable[..., list[Tensor]], given: Sequence[Tensor], whole: Sequence[Tensor], by: str
) -> None:
    """A row, or a slice of rows, has the same bits by itself."""
    kept = (
        (0,) if case.function == "group_norm" else [d for d in range(len(case.shape)) if d not in case.dims]
    )
    rows = 1 + (case.residual is not None)
    for d in kept[:1]:
        if case.shape[d] > 1 and case.shape[0] * case.groups != math.prod(case.shape):
            at = case.alone % case.shape[d]
            sliced = [t.narrow(d, at, 1) if k < rows else t for k, t in enumerate(given)]
            for g, w in zip(run(case, sliced, None), whole, strict=True):
                assert same_bytes(g.nan_to_num(7.0), w.narrow(d, at, 1).nan_to_num(7.0)), (
                    f"{by}: other bits alone"
                )
