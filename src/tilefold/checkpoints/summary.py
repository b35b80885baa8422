"""The statistics of a tensor, of parts that come one after another, and of elements that stand at many places.

A view may name an element of memory more than once: `expand` gives 2^46 elements out of one, `as_strided` lets dims overlap.
Such elements are looked at once, and how often each stands in the view is counted by arithmetic.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace

import torch

from tilefold import monoids
from tilefold.algebra import powers
from tilefold.algebra.monoid import Monoid
from tilefold.api.reduce import fold_tensors
from tilefold.errors import DtypeError
from tilefold.runtime.caching import kept_outside_modes

INFINITY = float("inf")
# Squares of any scaled float64 can be summed; the lost part is too small to be seen beside squares that overflow unscaled.
SCALE = 2.0**-600
LEAST_STD = {
    torch.float32: 2.0**-55,
    torch.float64: 2.0**-500,
}  # from here on no square that counts underflows
OVERLAPPING = 1 << 25  # elements of memory whose places are counted at most: 16 bytes each
CHUNK = 1 << 20
Decode = Callable[[torch.Tensor], torch.Tensor]


@dataclass(frozen=True)
class Summary:
    """Counts over all elements; extremes, mean and std (divisor: count less one) over the `finite` ones."""

    count: int = 0
    nans: int = 0
    infs: int = 0
    zeros: int = 0
    least: float = INFINITY
    most: float = -INFINITY
    mean: float = 0.0
    std: float = 0.0

    @property
    def finite(self) -> int:
        """How many elements are neither NaN nor infinite."""
        return self.count - self.nans - self.infs

    def __add__(self, other: Summary) -> Summary:
        """Of the elements of both (Chan, Golub and LeVeque); no square is formed that may overflow."""
        n, a, b = self.finite + other.finite, self.finite, other.finite
        mean, std = (self.mean, self.std) if a else (other.mean, other.std)
        if a and b:
            apart = other.mean - self.mean
            mean = (
                self.mean + apart * (b / n)
                if math.isfinite(apart)
                else self.mean * (a / n) + other.mean * (b / n)
            )
            parts = (self.std * math.sqrt((a - 1) / (n - 1)), other.std * math.sqrt((b - 1) / (n - 1)))
            std = math.hypot(*parts, apart * math.sqrt(a / n * b / (n - 1)))
        return Summary(
            self.count + other.count, self.nans + other.nans, self.infs + other.infs, self.zeros + other.zeros,
            min(self.least, other.least), max(self.most, other.most), mean, std,
        )  # fmt: skip

    def times(self, copies: int) -> Summary:
        """Of so many copies of every element."""
        n = self.finite
        std = self.std * math.sqrt(copies * (n - 1) / (copies * n - 1)) if n > 1 else self.std
        count, nans, infs, zeros = (copies * c for c in (self.count, self.nans, self.infs, self.zeros))
        return Summary(count, nans, infs, zeros, self.least, self.most, self.mean, std)


def summarize(
    tensor: torch.Tensor, device: torch.device | str = "cpu", decode: Decode | None = None
) -> Summary:
    """The statistics of one dense tensor of any strides, folded on `device` with DESCRIBE.

    `decode` makes the elements of a part of the tensor from its memory: they are folded part by part. So are
    those of a view that negates. Memory for `OVERLAPPING` elements is needed at most, beside the tensor's own.

    Raises:
        DtypeError: dims overlap so that more than `OVERLAPPING` elements of memory stand at more places than there are.
    """
    tensor, copies = _without_copies(tensor.detach())
    if tensor.is_neg() and decode is None:
        tensor, decode = torch._neg_view(tensor), negated
    if not tensor.numel():
        return Summary()
    reached = 1 + sum((n - 1) * s for n, s in zip(tensor.shape, tensor.stride(), strict=True))
    if tensor.numel() > reached:
        found = _weighted(tensor, reached, decode or (lambda part: part))
    elif decode is None:
        found = _folded(tensor.to(device))
    else:
        found = summarize_chunks((decode(part) for part in parts_of(tensor, CHUNK)), device)
    return found.times(copies) if copies > 1 else found


def negated(part: torch.Tensor) -> torch.Tensor:
    """Torch negates no float of 8 bits."""
    return -(part.float() if part.is_floating_point() and part.itemsize == 1 else part)


def parts_of(tensor: torch.Tensor, length: int) -> Iterator[torch.Tensor]:
    """Views of at most so many elements that make up a tensor."""
    if tensor.numel() <= length:
        yield tensor
        return
    d = max(range(tensor.ndim), key=lambda d: (tensor.shape[d] > 1, tensor.stride(d)))
    for part in tensor.split(max(1, tensor.shape[d] * length // tensor.numel()), d):  # type: ignore[no-untyped-call]  # torch's own
        yield from parts_of(part, length)


def summarize_chunks(chunks: Iterable[torch.Tensor], device: torch.device | str = "cpu") -> Summary:
    """The statistics of all chunks together, one at a time in memory."""
    return functools.reduce(lambda sofar, chunk: sofar + summarize(chunk, device), chunks, Summary())


def _without_copies(tensor: torch.Tensor) -> tuple[torch.Tensor, int]:
    """A view of each element once along the dims that do not move, and how many copies of it there are."""
    copies = 1
    for d in range(tensor.ndim - 1, -1, -1):
        if tensor.stride(d) == 0 or tensor.shape[d] == 1:
            copies *= tensor.shape[d]
            tensor = tensor.select(d, 0) if tensor.shape[d] else tensor
    return tensor, copies


def _folded(tensor: torch.Tensor) -> Summary:
    """DESCRIBE in float32, or in float64 where float32 is too narrow for the elements or their squares.

    Where float64 is too narrow as well, the mean and std are computed from scaled elements.
    """
    carried = carried_dtype(tensor.dtype)
    found = _fold(tensor, carried)
    if carried == torch.float32 and is_lost(found, torch.float32):
        return _fold(tensor, torch.float64)
    if tensor.dtype == torch.float64 and is_lost(found, torch.float64):
        return _scaled(tensor, found, SCALE if not math.isfinite(found.std) else 1 / SCALE)
    return found


def carried_dtype(kind: torch.dtype) -> torch.dtype:
    """In which statistics of elements of a dtype are accumulated first."""
    wide = kind == torch.float64 or (not kind.is_floating_point and kind.itemsize >= 4)
    return torch.float64 if wide else torch.float32


def is_lost(found: Summary, carried: torch.dtype) -> bool:
    """Whether squares over- or underflowed; equal elements have none."""
    return found.finite > 0 and found.least < found.most and not LEAST_STD[carried] <= found.std < INFINITY


def _scaled(tensor: torch.Tensor, found: Summary, scale: float) -> Summary:
    scaled = _fold(tensor, torch.float64, scale)
    return replace(found, mean=scaled.mean / scale, std=scaled.std / scale)


def _fold(tensor: torch.Tensor, carried: torch.dtype, scale: float = 1.0) -> Summary:
    convert = carried if carried == torch.float64 else None
    monoid = monoids.DESCRIBE if scale == 1.0 else _describe_scaled(scale)
    folded = fold_tensors([tensor], monoid, None, False, dtype=carried, convert=convert, call="describe")
    return summary_of([f.item() for f in folded])


def summary_of(fields: Sequence[float]) -> Summary:
    """What DESCRIBE gives, as numbers."""
    count, nans, infs, zeros = (int(f) for f in fields[:4])
    least, most, _, mean, std = (float(f) for f in fields[4:])
    if count == nans + infs:
        return Summary(count, nans, infs, zeros)
    return Summary(count, nans, infs, zeros, least, most, mean, std)


@kept_outside_modes(4)
def _describe_scaled(scale: float) -> Monoid:
    """DESCRIBE of the elements times a power of two, read where they lie."""
    return powers.describe_of(lambda x: x * scale, f"describe(x * {scale:g})")


def _weighted(tensor: torch.Tensor, reached: int, decode: Decode) -> Summary:
    """Every element of memory that the view reaches, as often as it stands there; in float64, on the CPU."""
    if reached > OVERLAPPING:
        raise DtypeError(
            f"dims that overlap must reach at most {OVERLAPPING} elements of memory, got {reached}; save a copy of the view"
        )
    tensor = tensor.cpu()
    memory = tensor.as_strided([reached], [1], tensor.storage_offset())
    places = _places(tensor, reached)
    parts = zip(_chunks(memory), _chunks(places), strict=True)
    found = (_weighted_chunk(decode(elements), places) for elements, places in parts)
    return functools.reduce(Summary.__add__, found, Summary())


def _chunks(elements: torch.Tensor) -> list[torch.Tensor]:
    return [elements[start : start + CHUNK] for start in range(0, len(elements), CHUNK)]


def _places(tensor: torch.Tensor, reached: int) -> torch.Tensor:
    """At how many places of the view each element of memory stands: one running sum a dim, along its stride."""
    places = torch.zeros(reached, dtype=torch.int64)
    places[0] = 1
    for size, stride in zip(tensor.shape, tensor.stride(), strict=True):
        rows = torch.nn.functional.pad(places, (0, -reached % stride)).view(-1, stride)
        sums = rows.cumsum(0).view(-1)[:reached]
        places = sums.clone()
        places[size * stride :] -= sums[: max(0, reached - size * stride)]
    return places


def _weighted_chunk(elements: torch.Tensor, places: torch.Tensor) -> Summary:
    x = elements.to(torch.float64)

    def counted(mask: torch.Tensor) -> int:
        return int(places[mask].sum())

    counts = counted(places > 0), counted(x.isnan()), counted(x.isinf()), counted(x == 0)
    finite = x.isfinite() & (places > 0)
    if not finite.any():
        return Summary(*counts)
    x, n = x[finite], counted(finite)
    weights = places[finite].double() / n
    least, most = x.min().item(), x.max().item()
    scale = max(abs(least), abs(most)) or 1.0
    shares = x / scale  # no sum overflows
    mean = (shares * weights).sum()
    apart = (shares - mean).abs()
    furthest = apart.max().item() or 1.0
    variance = ((apart / furthest).square() * weights).sum().item() * (n / max(n - 1, 1))
    if least == most:
        return Summary(*counts, least, most, least, 0.0)
    return Summary(*counts, least, most, mean.item() * scale, math.sqrt(variance) * furthest * scale)
