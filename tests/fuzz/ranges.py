"""Sums of squares and of powers at every magnitude that a dtype has, beside their definition in numpy's longer floats.

Elements are drawn over the whole range of exponents, subnormal ones too: rows of one magnitude, of all magnitudes at once, of
one huge element beside tiny ones, about a far offset, and constant ones. A result must be right wherever it is in range, to
first order in the unit of what is computed with, of elements that are folded one after another in any grouping.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from hypothesis import strategies as st

import tilefold
from asked import by_ptx
from fuzz.folds import GUARANTEES
from scanned import leaves
from tilefold import monoids

Tensor = torch.Tensor
Long = Any  # an array of longer floats
FLOATS = (torch.float32, torch.float32, torch.bfloat16, torch.float64, torch.float16)
PATTERNS = ("level", "level", "offset", "mixture", "one huge", "constant", "least")
SPREADS = ("var", "std", "var_mean", "std_mean", "WELFORD", "DESCRIBE")
MAPS = ("layer_norm", "rms_norm", "group_norm", "normalize", "reduce_map")
BY_PTX = ("var", "std", "var_mean", "vector_norm", "layer_norm", "rms_norm")  # whose results are a plan's
WAYS = ("reduce", "scan", "segment_reduce", "matmul")  # of NORM and WELFORD
ORDERS = (2.0, 2.0, 2.0, 3.0, 0.5, 1.5, -1.0, -2.0, 100.0)
OPERATIONS = (
    *SPREADS,
    "vector_norm",
    *MAPS,
    *(f"{way} {name}" for way in WAYS for name in ("NORM", "WELFORD")),
)


@dataclass(frozen=True)
class Ranged:
    """A call: one of `OPERATIONS` over rows, each of a pattern."""

    operation: str
    dtype: torch.dtype
    length: int
    patterns: tuple[str, ...]
    columns: bool
    order: float
    eps: float
    extra: bool  # a weight, or for `reduce_map` nothing
    guarantee: str
    seed: int

    @property
    def computed(self) -> torch.dtype:
        """The dtype of states."""
        return torch.float64 if self.dtype == torch.float64 else torch.float32

    @property
    def unit(self) -> float:
        """Of one rounding."""
        return torch.finfo(self.computed).eps / 2

    def rows(self) -> Tensor:
        """[rows, length] elements, all finite."""
        info, generator = torch.finfo(self.dtype), np.random.default_rng(self.seed)
        most = math.frexp(info.max)[1]
        least = math.frexp(info.smallest_normal * info.eps)[1]
        made = np.zeros((len(self.patterns), self.length), np.longdouble)
        for row, pattern in zip(made, self.patterns, strict=True):
            signs = generator.choice([-1.0, 1.0], self.length)
            size = signs * generator.uniform(0.5, 1.0, self.length)
            top = int(generator.integers(least, most + 1))
            if pattern == "mixture":
                row[:] = np.ldexp(np.longdouble(size), generator.integers(least, top + 1, self.length))
            elif pattern == "one huge":
                row[:] = np.ldexp(np.longdouble(size), int(generator.integers(least, top + 1)))
                row[int(generator.integers(self.length))] = np.ldexp(np.longdouble(0.75), top)
            elif pattern == "offset":
                noise = size * 2.0 ** -generator.integers(1, 20)
                row[:] = np.ldexp(np.longdouble(0.5) * (1 + np.longdouble(noise)), top)
            elif pattern == "constant":
                row[:] = np.ldexp(np.longdouble(0.7), top)
            else:
                row[:] = np.ldexp(np.longdouble(size), least + 4 if pattern == "least" else top)
        bound = np.longdouble(info.max)
        exact = np.clip(made, -bound, bound)
        return _rounded(exact, self.dtype)


def _rounded(x: Long, dtype: torch.dtype) -> Tensor:
    """Longer floats as a dtype's; their products with a power of two are exact, so that float64 is enough on the way."""
    with np.errstate(over="ignore"):
        return torch.from_numpy(x.astype(np.float64)).to(dtype)


@st.composite
def ranged(
    draw: st.DrawFn, operations: Sequence[str] = OPERATIONS, lengths: Sequence[int] = (1, 2, 3, 8, 33, 64, 100, 257, 1000)
) -> Ranged:  # fmt: skip
    """Any call."""
    return Ranged(
        draw(st.sampled_from(operations)), draw(st.sampled_from(FLOATS)), draw(st.sampled_from(lengths)),
        tuple(draw(st.lists(st.sampled_from(PATTERNS), min_size=1, max_size=5))), draw(st.booleans()),
        draw(st.sampled_from(ORDERS)), draw(st.sampled_from((0.0, 0.0, 1e-30, 1e-12, 1e-5))), draw(st.booleans()),
        draw(st.sampled_from(GUARANTEES[:2])), draw(st.integers(0, 1 << 30)),
    )  # fmt: skip


# ------------------------------------------------------------------------------------------------ the calls


def call(case: Ranged, x: Tensor, weight: Tensor) -> list[Tensor]:
    """The results of `x`, [rows, length], of which columns are a view of its transpose."""
    dim, way = (0 if case.columns else 1), case.operation.split()
    given = x.T if case.columns else x
    guarantee = case.guarantee
    if case.operation in SPREADS[:4]:
        return leaves(getattr(tilefold, case.operation)(given, dim, correction=0))
    if case.operation in ("WELFORD", "DESCRIBE"):
        made = tilefold.reduce(given, getattr(monoids, case.operation), dim, guarantee=guarantee)
        if case.operation == "WELFORD":
            return [made.M2, made.mean] if case.computed == case.dtype else [made.mean]
        return [made.std, made.mean]
    if case.operation == "vector_norm":
        return [tilefold.vector_norm(given, case.order, dim)]
    if case.operation == "normalize":
        made = tilefold.normalize(given, case.order, dim, case.eps, guarantee=guarantee)
        return [made.T if case.columns else made]
    if case.operation in ("layer_norm", "rms_norm"):
        own = weight if case.extra else None
        return [getattr(tilefold, case.operation)(x, (case.length,), own, eps=case.eps, guarantee=guarantee)]
    if case.operation == "group_norm":
        made = tilefold.group_norm(torch.stack((x, x), 1), 1, eps=case.eps, guarantee=guarantee)
        return [made[:, 0]]
    if case.operation == "reduce_map":
        made = tilefold.reduce_map(
            given, monoids.NORM(2), lambda x, norm: norm + 0 * x, dim, guarantee=guarantee
        )
        return [(made.T if case.columns else made)[:, :1].squeeze(1)]
    return _by_way(case, way[0], monoids.NORM(2.0) if way[1] == "NORM" else monoids.WELFORD, given, dim)


def _by_way(case: Ranged, way: str, monoid: Any, x: Tensor, dim: int) -> list[Tensor]:
    if way == "reduce":
        made = tilefold.reduce(x, monoid, dim, guarantee=case.guarantee)
    elif way == "scan":
        made = tilefold.scan(x, monoid, dim, guarantee=case.guarantee)
        last = [t.select(dim, case.length - 1) for t in leaves(made)]
        made = last[0] if len(last) == 1 else type(made)(*last)
    elif way == "segment_reduce":
        offsets = torch.arange(2, device=x.device) * case.length
        made = tilefold.segment_reduce(x, monoid, offsets, dim=dim, guarantee=case.guarantee)
        last = [t.squeeze(dim) for t in leaves(made)]
        made = last[0] if len(last) == 1 else type(made)(*last)
    else:
        rows = x.T if dim == 0 else x
        eye = torch.eye(len(rows), dtype=x.dtype, device=x.device)
        # The first result is the product, then come the folds'.
        made = tilefold.matmul(eye, rows, row=(monoid, None))[1:]
        made = made[0] if len(made) == 1 else monoids.WELFORD.pack(made)
    return [made] if isinstance(made, Tensor) else [made.mean]


# ------------------------------------------------------------------------------------------------ the definition


def definition(case: Ranged, x: Tensor, weight: Tensor) -> list[tuple[Long, Long]]:
    """Each result, and how far off it may be before it is rounded."""
    wide = x.double().numpy().astype(np.longdouble)
    name, n, u = case.operation, case.length, np.longdouble(case.unit)
    mean = wide.mean(1)
    reach, size = np.ptp(wide, axis=1), np.abs(wide).max(1)
    off = wide - mean[:, None]
    spread = (off * off).mean(1)
    # A pivot is among the elements, so that squares about it are up to the range's; docs/guarantees.md has the bound.
    slip = np.where(spread > 0, 8 * (n + 8) * u * reach * reach / np.where(spread > 0, spread, 1), 0)
    means = (mean, (n + 8) * u * np.abs(wide).max(1))
    if name in SPREADS or name.endswith("WELFORD"):
        if name in ("var", "var_mean", "WELFORD"):
            own = spread, spread * slip
            own = (own[0] * n, own[1] * n) if name == "WELFORD" else own
        else:
            spread = spread * n / max(n - 1, 1) if name == "DESCRIBE" else spread
            own = np.sqrt(spread), np.sqrt(spread) * slip
        if " " in name or (name == "WELFORD" and case.computed != case.dtype):
            return [means]
        return [own] if name in ("var", "std") else [own, means]
    if name == "layer_norm" or name == "group_norm":
        root = np.sqrt(spread + np.longdouble(case.eps))[:, None]
        with np.errstate(all="ignore"):
            value = off / root
            # Beside an eps that counts the mean is a float, which torch rounds at every step: by its last bit.
            least = np.longdouble(torch.finfo(case.computed).smallest_normal) * 32 * u if case.eps else 0
            misplaced = ((n + 8) * u * reach + 4 * u * size + least)[:, None] / root
        error = np.abs(value) * (slip[:, None] + 16 * u) + misplaced
    elif name == "rms_norm":
        with np.errstate(all="ignore"):
            value = wide / np.sqrt((wide * wide).mean(1) + np.longdouble(case.eps))[:, None]
        error = np.abs(value) * (n + 16) * u
    else:
        order = 2.0 if name != "vector_norm" and name != "normalize" else case.order
        norm, relative = _norm(wide, order), (n + 64) * u * max(1.0, 1 / abs(order))
        if name != "normalize":
            return [(norm, norm * relative)]
        with np.errstate(all="ignore"):
            value = wide / np.maximum(norm, np.longdouble(case.eps))[:, None]
        return [(value, np.abs(value) * (relative + 8 * u))]
    if case.extra and name != "group_norm":
        own = weight.double().numpy().astype(np.longdouble)
        least = np.longdouble(torch.finfo(case.computed).smallest_normal) * 2 * u
        value, error = value * own, (error + u * np.abs(value) + least) * np.abs(own)
    return [(value, error)]


def _norm(x: Long, order: float) -> Long:
    """By shares of the element that counts most: these powers are in any range."""
    extreme = np.abs(x).max(1) if order > 0 else np.abs(x).min(1)
    safe = np.where(extreme > 0, extreme, 1)[:, None]
    with np.errstate(all="ignore"):
        total = (np.abs(x) / safe).astype(np.longdouble) ** np.longdouble(order)
        return np.where(extreme > 0, extreme * total.sum(1) ** (1 / np.longdouble(order)), 0)


# ------------------------------------------------------------------------------------------------ comparing


def check(
    case: Ranged, backends: Sequence[str], device: str = "cpu", again: Callable[..., Any] | None = None
) -> None:
    """Call on each backend and compare. `again` calls once more, as from a captured graph."""
    x = case.rows()
    weight = torch.linspace(-1.5, 1.5, case.length, dtype=torch.float64).to(case.dtype)
    want = definition(case, x, weight)
    for backend in backends:
        own, beside = x.to(device), weight.to(device)
        if backend == "ptx":
            got = by_ptx(lambda own=own, beside=beside: call(case, own, beside))
        else:
            with tilefold.backend("auto" if backend == "triton" else backend):
                got = call(case, own, beside) if again is None else again(case, own, beside)
        assert all(torch.equal(o.cpu(), t) for o, t in ((own, x), (beside, weight))), (
            f"{backend} changed an input"
        )
        for g, (value, error) in zip(got, want, strict=False):
            _compare(case, g.cpu(), value, error, backend)


def _compare(case: Ranged, got: Tensor, value: Long, error: Long, by: str) -> None:
    info = torch.finfo(got.dtype)
    g = got.double().numpy().astype(np.longdouble)
    assert g.shape == value.shape, f"{by} is of {g.shape}, not {value.shape}"
    room = (
        error + np.abs(value) * np.longdouble(info.eps) / 2 + np.longdouble(info.smallest_normal * info.eps)
    )
    bound = np.longdouble(info.max)
    with np.errstate(all="ignore"):
        fine = (np.abs(g - value) <= room) | (np.isnan(g) & ~np.isfinite(value))
        fine |= np.isinf(g) & (np.sign(g) == np.sign(value)) & (np.abs(value) + room >= bound)
    assert fine.all(), (
        f"{by} is\n{g[~fine]}, not\n{value[~fine]} within\n{np.broadcast_to(room, g.shape)[~fine]}"
    )
