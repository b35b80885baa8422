"""Random scans beside their definition: the same monoids, dtypes and layouts as folds, in both directions, with states.

A fold's monoid is drawn so that arithmetic is exact over its dims: so is every prefix along one of them.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from hypothesis import strategies as st

import tilefold
from fuzz.exclusions import lacks, waits
from fuzz.folds import Fold, compare, folds, loses_bits

Tensor = torch.Tensor
LONG = (31, 64, 65, 127, 513)


@dataclass(frozen=True)
class Scan:
    """A call of `scan` along one of a fold's dims."""

    fold: Fold
    which: int
    exclusive: bool
    reverse: bool
    pieces: int

    @property
    def dim(self) -> int | None:
        return self.fold.dims[self.which % len(self.fold.dims)] if self.fold.dims else None


@st.composite
def scans(draw: st.DrawFn, long: Sequence[int] = LONG, most: int = 4000) -> Scan:
    """Any scan; of pieces, where one is cut off before its end."""
    fold = draw(folds(long=long, most=most))
    return Scan(
        fold, draw(st.integers(0, 3)), draw(st.booleans()), draw(st.booleans()), draw(st.integers(0, 3))
    )


def check(scan: Scan, backends: Sequence[str], device: str = "cpu") -> None:
    """Scan on each backend, whole or in two pieces, and compare with the definition of the whole."""
    fold, dim = scan.fold, scan.dim
    tensors = fold.tensors()
    if (
        waits(fold, "any")
        or dim is None
        or loses_bits(replace(fold.made, check=False).monoid(), tensors, fold.dtype)
    ):
        return
    monoid = fold.made.monoid()
    known = fold.made.identity
    options = {"dtype": fold.dtype, "exclusive": scan.exclusive and known, "reverse": scan.reverse}
    shape = torch.broadcast_shapes(*(t.shape for t in tensors))
    length = shape[dim]
    if math.prod(shape) == 0 and not known:
        return
    with tilefold.backend("reference"):
        want = _leaves(tilefold.scan(tensors, monoid, dim, guarantee=fold.guarantee, **options))
    for backend in backends:
        dtypes = {fold.dtype, *(i.dtype for i in fold.inputs), *(w.dtype for w in want)}
        if waits(fold, backend) or lacks(dtypes, backend, device):
            continue
        here = [t.to(device) for t in tensors]
        cut = length * scan.pieces // 4
        with tilefold.backend("auto" if backend == "triton" else backend):
            if monoid.algebra.index or not 0 < cut < length or scan.pieces == 0:
                made = tilefold.scan(here, monoid, dim, guarantee=fold.guarantee, **options)
                got = _leaves(made)
            else:
                got = _in_pieces(here, monoid, dim, cut, shape, {**options, "guarantee": fold.guarantee})
        compare(replace(fold, keepdim=False), [g.cpu() for g in got], want, backend)


def _in_pieces(
    tensors: Sequence[Tensor], monoid: Any, dim: int, cut: int, shape: Sequence[int], options: dict[str, Any]
) -> list[Tensor]:
    """The part that comes first, then the other from its state."""
    whole = [t.expand(shape) for t in tensors]
    parts = [[t.narrow(dim, 0, cut) for t in whole], [t.narrow(dim, cut, shape[dim] - cut) for t in whole]]
    first, second = reversed(parts) if options["reverse"] else parts
    early, state = tilefold.scan(first, monoid, dim, return_state=True, **options)
    late = tilefold.scan(second, monoid, dim, init=state, **options)
    sides = (late, early) if options["reverse"] else (early, late)
    return [torch.cat(both, dim) for both in zip(*map(_leaves, sides), strict=True)]


def _leaves(results: Any) -> list[Tensor]:
    return [results] if isinstance(results, Tensor) else list(results)
