"""Folds that reach every family of kernels and every corner of addressing, for the interpreter, the compiler and the GPU."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch

import tilefold
from algebra.derived import DERIVED
from tilefold import monoids
from tilefold.algebra.monoid import Monoid

Tensor = torch.Tensor
Layout = Callable[[Tensor], Tensor]


@dataclass(frozen=True)
class Case:
    """One fold: what shape of data, seen how, folded over which dims."""

    name: str
    shape: tuple[int, ...]
    dims: tuple[int, ...] | None
    layout: Layout = lambda x: x

    def make(self, monoid: Monoid, dtype: torch.dtype, device: str, seed: int = 0) -> list[Tensor]:
        """The inputs, filled with small values so that no dtype overflows early, in the midst of poison."""
        generator = torch.Generator().manual_seed(seed)
        tensors = []
        for _ in range(monoid.algebra.inputs):
            if dtype.is_floating_point:
                x = torch.randn(self.shape, generator=generator, dtype=torch.float32).to(dtype)
            else:
                low, high = (0, 2) if dtype == torch.bool else (0 if dtype in UNSIGNED else -100, 100)
                x = torch.randint(low, high, self.shape, generator=generator).to(dtype)
            tensors.append(framed(self.layout(x.to(device))))
        return tensors


UNSIGNED = (torch.uint8, torch.uint16, torch.uint32, torch.uint64)


FRAME = 64  # elements before and behind a tensor's own: whole vectors of any dtype, so that alignment stays


def poisoned(shape: Sequence[int], like: Tensor) -> Tensor:
    """Memory that is written everywhere, with what no fold may see: NaN, or the dtype's greatest number."""
    dtype = like.dtype
    if dtype.is_floating_point:
        return torch.full(shape, float("nan"), dtype=torch.float32, device=like.device).to(dtype)
    return torch.full(
        shape, True if dtype == torch.bool else torch.iinfo(dtype).max, dtype=dtype, device=like.device
    )


def framed(x: Tensor) -> Tensor:
    """The same tensor, of the same alignment, with poison before and behind its storage.

    Kernels that read whole vectors read a few bytes on either side: a tool that reports reads of unwritten memory is to
    report no others, and a fold that lets them count is to be wrong.
    """
    held = torch.empty(0, dtype=x.dtype, device=x.device).set_(x.untyped_storage())
    room = poisoned([held.numel() + 2 * FRAME], x)
    room[FRAME : FRAME + held.numel()] = held
    return room.as_strided(x.shape, x.stride(), x.storage_offset() + FRAME)


def misaligned(x: Tensor) -> Tensor:
    """The same values one element behind an aligned address."""
    flat = poisoned([x.numel() + 1], x)
    return flat[1:].view(x.shape).copy_(x)


def cut(x: Tensor) -> Tensor:
    """All but the first column of something wider: every row starts somewhere else."""
    wide = poisoned([x.shape[0], x.shape[1] + 1], x)
    return wide[:, 1:].copy_(x)


def strided(x: Tensor) -> Tensor:
    """Every second element of something larger, in every dim."""
    big = poisoned([2 * n for n in x.shape], x)
    return big[tuple(slice(None, None, 2) for _ in x.shape)].copy_(x)


SMALL = [
    Case("one element", (1,), (0,)),
    Case("tiny axis", (37, 3), (1,)),
    Case("small axis 8", (130, 8), (1,)),
    Case("small axis 16", (67, 16), (1,)),
    Case("row of 100", (5, 100), (1,)),
    Case("row of 256", (9, 256), (1,)),
    Case("columns", (33, 24), (0,)),
    Case("one column", (50, 1), (0,)),
    Case("middle", (3, 20, 5), (1,)),
    Case("outer and inner", (4, 5, 6), (0, 2)),
    Case("all", (7, 6), None),
    Case("all of rows apart", (9, 63), None, cut),
    Case("transposed", (6, 40), (0,), lambda x: x.t().contiguous().t()),
    Case("strided", (4, 30), (1,), strided),
    Case("strided short columns", (3, 4, 5), (0,), strided),
    Case("misaligned", (3, 64), (1,), misaligned),
    Case("expanded", (4, 1), (1,), lambda x: x.expand(4, 33)),
    Case("rows of 17 from odd places", (5, 17), (1,), cut),
    Case("rows of 300 from odd places", (3, 300), (1,), cut),
    Case("rows of 2100 from odd places", (2, 2100), (1,), cut),
    Case("odd columns", (40, 7), (0,), cut),
    Case(
        "three reduced dims apart",
        (3, 2, 5),
        None,
        lambda x: x.permute(2, 1, 0).contiguous().permute(2, 1, 0)[:, :, ::2],
    ),
    Case(
        "three output dims apart",
        (3, 2, 5, 4),
        (3,),
        lambda x: x.permute(3, 2, 1, 0).contiguous().permute(3, 2, 1, 0),
    ),
    Case(
        "two reduced dims apart",
        (4, 3, 5),
        (0, 2),
        lambda x: x.permute(0, 2, 1).contiguous().permute(0, 2, 1),
    ),
]
LARGE = [
    Case("row of 1000", (300, 1000), (1,)),
    Case("row of 1024", (300, 1024), (1,)),
    Case("rows of 8192", (40, 8192), (1,)),
    Case("odd long rows", (7, 50257), (1,)),
    Case("row of 3333", (129, 3333), (1,)),
    Case("small axis many", (70001, 8), (1,)),
    Case("axis of 64", (5000, 64), (1,)),
    Case("axis of 5", (5001, 5), (1,)),
    Case("long columns", (30011, 24), (0,)),
    Case("columns 257", (3000, 257), (0,)),
    Case("wide columns", (64, 5000), (0,)),
    Case("one long row", (1000003,), (0,)),
    Case("eight long rows", (8, 200000), (1,)),
    Case("channels", (8, 3, 50, 50), (0, 2, 3)),
    Case("batch of columns", (5, 2000, 48), (1,)),
    Case("misaligned long", (3, 70000), (1,), misaligned),
    *(
        Case(f"rows of {n} from odd places", (rows, n), (1,), cut)
        for rows, n in (
            (301, 9),
            (301, 17),
            (70, 67),
            (40, 129),
            (33, 1000),
            (33, 3333),
            (9, 9001),
            (3, 300007),
            (1, 32769),
            (1, 1000001),
        )
    ),
    Case("odd columns", (3001, 333), (0,), cut),
    Case("odd short columns", (63, 5001), (0,), cut),
    Case("strided long", (3, 40000), (1,), strided),
    Case("transposed long", (200, 3000), (1,), lambda x: x.t().contiguous().t()),
    Case("many outputs", (70000, 3, 4), (2,)),
    Case("all of many rows apart", (700, 255), None, cut),
    Case("permuted inner", (40, 33, 70), (0, 1), lambda x: x.permute(1, 0, 2).contiguous().permute(1, 0, 2)),
    Case("permuted outer", (9, 11, 500), (2,), lambda x: x.permute(1, 0, 2).contiguous().permute(1, 0, 2)),
]
# Columns that are planned with tiles on their way through shared memory when `columns.LARGE` is small.
PIPED = [
    Case("few columns", (20000, 72), (0,)),
    Case("columns split", (1500, 8192), (0,)),
    Case("columns that end inside a line", (1500, 8200), (0,)),
    Case("columns not split", (600, 66000), (0,)),
    Case("batch of wide columns", (3, 900, 4104), (1,)),
]


def _tied(a: Any, b: Any) -> tuple[Any, ...]:
    """Log-sum-exp's state, whose sum rounds by the order of its sides, and the squares' sum of what attains the maximum."""
    m = tilefold.math.maximum(a.m, b.m)
    sides = [(side, side.m == m) for side in (a, b)]
    x, y = (tilefold.math.where(most, side.s, side.s * tilefold.math.exp(side.m - m)) for side, most in sides)
    v, w = (tilefold.math.where(most, side.w, 0.0) for side, most in sides)
    return m, x + y, v + w


MONOIDS: dict[str, Monoid] = {
    "sum": monoids.SUM,
    "max": monoids.MAX,
    "argmax": monoids.ARGMAX,
    "max_with_index": monoids.MAX_WITH_INDEX,
    "logsumexp": monoids.LOGSUMEXP,
    "welford": monoids.WELFORD,
    "any": monoids.ANY,
    "minmax": monoids.MINMAX,
    "describe": monoids.DESCRIBE,
    "first": monoids.FIRST,
    "last": monoids.LAST,
    "affine": tilefold.Monoid(
        lambda f, g: (g.a * f.a, g.a * f.b + g.b), (1, 0), fields=("a", "b"), commutative=False, check=False,
        # Slopes of 1 and -1: those of a half would hide all elements but the last few, and vanish themselves.
        lift=lambda x, y: (tilefold.math.where(x < 0, -1.0, 1.0), y), name="affine",
    ),
    "dot": tilefold.Monoid(lambda a, b: a + b, 0, lift=lambda x, y: x * y, commutative=True, check=False, name="dot"),
    "pair": DERIVED["pair"].monoid,
    **{name: DERIVED[name].monoid for name in ("attention", "moments", "counted", "scaled norm")},
    "tied": tilefold.Monoid(
        _tied, (-float("inf"), 0, 0), fields=("m", "s", "w"), commutative=True, check=False,
        lift=lambda x: (x, 1, x * x), project=lambda m, s, w: (m + tilefold.math.log(s), w), name="tied",
    ),
    "sum without identity": tilefold.Monoid(lambda a, b: a + b, None, commutative=True, check=False, name="sum"),
}  # fmt: skip


AVERAGES = {("welford", 1), ("describe", 7), ("_attention", 0)}


def compare(monoid: Monoid, got: object, inputs: list[Tensor], dims: tuple[int, ...] | None) -> None:
    """Against the definition in float64 (or exact integers): results as near as their dtype and the sum's bound allow."""
    wide = [x.cpu().double() if x.dtype.is_floating_point else x.cpu() for x in inputs]
    length = wide[0].numel() // max(1, _kept(wide[0], dims))
    with tilefold.backend("reference" if length <= 300 else "cpu"):
        want = tilefold.reduce(wide, monoid, dims)
    got_list = list(got) if isinstance(got, tuple) else [got]
    want_list = list(want) if isinstance(want, tuple) else [want]
    for field, (g, w) in enumerate(zip(got_list, want_list, strict=True)):
        assert isinstance(g, Tensor)
        if not g.dtype.is_floating_point:
            torch.testing.assert_close(g.cpu(), w.to(g.dtype), rtol=0, atol=0)
            continue
        unit = {torch.float32: 2e-6, torch.float64: 1e-12, torch.float16: 2e-3, torch.bfloat16: 1.6e-2}.get(
            g.dtype, 0.13
        )
        scale = 8.0 * length**0.5  # cancelling terms of size about 1
        made, wanted = g.cpu().double(), w.double()
        if monoid.name == "welford" and field == 2:
            near = wanted + (made - wanted) / _condition(wide[0], dims)
            made = torch.where(made.isfinite() & near.isfinite(), near, made)
        floor = max(2e-7, unit / 100) * scale
        if (monoid.name, field) in AVERAGES:
            # An average has the error of the largest element, however many there are.
            floor = 16 * min(1.2e-7, unit) * float(wide[-1].double().abs().nan_to_num(0.0, 0.0, 0.0).amax())
        torch.testing.assert_close(made, wanted, rtol=unit, atol=floor, equal_nan=True)


def _condition(x: Tensor, dims: tuple[int, ...] | None) -> Tensor:
    """By how much M2's rounding may grow: its squares are summed about an early element or the mean of a few.

    That may lie z standard deviations off: they then sum to 1 + z^2 times M2.
    """
    along = tuple(range(x.ndim)) if dims is None else dims
    var, mean = torch.var_mean(x.double(), along, correction=0, keepdim=True)
    return 1 + ((x - mean).square() / var).amax(along)


def _kept(x: Tensor, dims: tuple[int, ...] | None) -> int:
    result = 1
    for d, n in enumerate(x.shape):
        if dims is not None and d not in [k % x.ndim for k in dims]:
            result *= n
    return result
