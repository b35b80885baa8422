"""Random scans beside their definition: the same monoids, dtypes and layouts as folds, in both directions, with states.

A fold's monoid is drawn so that arithmetic is exact over its dims: so is every prefix along one of them.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from typing import Any
from unittest import mock

import torch
from hypothesis import strategies as st

import tilefold
from asked import by_ptx
from fuzz.exclusions import lacks, waits
from fuzz.folds import Fold, compare, folds, loses_bits
from fuzz.monoids import Made
from scanned import leaves
from tilefold.planner import choose_map, scan_tiles
from tilefold.planner.device import H200
from tilefold.planner.products.row import projected

Tensor = torch.Tensor
LONG = (31, 64, 65, 127, 513)
# Sizes so small that lines of some hundred elements are shared by programs in groups of groups, as long ones are on a GPU.
TINY = {
    "SHORT": 4, "ONE_TILE": 8, "WALKED_WORDS": 1, "LANE_WORDS": 1, "SHARED_WORDS": 1, "SHARED_WARPS": 1, "LONE_ELEMENTS": 1,
    "NARROW_SUMS": 1, "LONE_TREE": 4, "TREE": 2, "COLUMN_TREE": 2, "COLUMN_WARPS": 1,
    "BAND": 2, "LEAST_SHARES": 2, "SHARES_AN_SM": 0, "FEW_BLOCKS": 2,
}  # fmt: skip


@dataclass(frozen=True)
class Scan:
    """A call of `scan` along one of a fold's dims."""

    fold: Fold
    which: int
    exclusive: bool
    reverse: bool
    pieces: int
    few_sms: bool
    state: bool = False

    @property
    def made(self) -> Made:
        """The monoid, which known faults are told by."""
        return self.fold.made

    @property
    def dim(self) -> int | None:
        return self.fold.dims[self.which % len(self.fold.dims)] if self.fold.dims else None


@st.composite
def scans(draw: st.DrawFn, long: Sequence[int] = LONG, most: int = 4000) -> Scan:
    """Any scan; of pieces, where one is cut off before its end."""
    fold = draw(folds(long=long, most=most))
    return Scan(
        fold,
        draw(st.integers(0, 3)),
        draw(st.booleans()),
        draw(st.booleans()),
        draw(st.integers(0, 3)),
        draw(st.booleans()),
        draw(st.booleans()),
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
    shape = torch.broadcast_shapes(*(t.shape for t in tensors))
    length, cut = shape[dim], shape[dim] * scan.pieces // 4
    options = {"dtype": fold.dtype, "exclusive": scan.exclusive and known, "reverse": scan.reverse}
    in_pieces = not monoid.algebra.index and 0 < cut < length
    if scan.state and not in_pieces:
        options["return_state"] = True
    if math.prod(shape) == 0 and not known:
        return
    with tilefold.backend("reference"):
        want = leaves(tilefold.scan(tensors, monoid, dim, guarantee=fold.guarantee, **options))
    for backend in backends:
        dtypes = {fold.dtype, *(i.dtype for i in fold.inputs), *(w.dtype for w in want)}
        if waits(scan, backend) or lacks(dtypes, backend, device):
            continue
        here = [t.to(device) for t in tensors]
        with ExitStack() as stack:
            if backend == "ptx":
                scans = stack.enter_context(_from_ptx(fold.tiny, scan.few_sms))
            else:
                scans = tilefold.scan
                stack.enter_context(tilefold.backend("auto" if backend == "triton" else backend))
            if in_pieces:
                options_here = {**options, "guarantee": fold.guarantee}
                got = _in_pieces(scans, here, monoid, dim, cut, shape, options_here)
            else:
                got = leaves(scans(here, monoid, dim, guarantee=fold.guarantee, **options))
        results = [g.cpu() for g in got]
        own = len(want) - len(monoid.algebra.fields) if "return_state" in options else len(want)
        compare(replace(fold, keepdim=False), results[:own], want[:own], backend)
        if own < len(want):  # a state is what results are where nothing is projected
            bare = replace(fold, keepdim=False, made=replace(fold.made, project=None))
            compare(bare, results[own:], want[own:], f"{backend}, state")


@contextmanager
def _from_ptx(tiny: bool, few_sms: bool) -> Iterator[Any]:
    """A `scan` that is planned for a chip, compiled, and executed by the X-ray's machine.

    `tiny`: with constants so small that programs share short lines, and that inputs in another order are copied.
    """
    device = replace(H200, sms=1) if few_sms else H200

    def scan(tensors: Sequence[Tensor], monoid: Any, dim: int, **options: Any) -> Any:
        found = by_ptx(lambda: tilefold.scan(tensors, monoid, dim, **options), device)
        if not options.get("return_state"):
            return found
        results = projected(monoid)
        return found[:results], found[results : results + len(monoid.algebra.fields)]

    with ExitStack() as sizes:
        if tiny:
            sizes.enter_context(mock.patch.multiple(scan_tiles, **TINY))
            sizes.enter_context(mock.patch.multiple(choose_map, COPIED=0, COPIED_ROWS=0))
        yield scan


def _in_pieces(
    scans: Any,
    tensors: Sequence[Tensor],
    monoid: Any,
    dim: int,
    cut: int,
    shape: Sequence[int],
    options: dict[str, Any],
) -> list[Tensor]:
    """The part that comes first, then the other from its state."""
    whole = [t.expand(shape) for t in tensors]
    parts = [[t.narrow(dim, 0, cut) for t in whole], [t.narrow(dim, cut, shape[dim] - cut) for t in whole]]
    first, second = reversed(parts) if options["reverse"] else parts
    early, state = scans(first, monoid, dim, return_state=True, **options)
    late = scans(second, monoid, dim, init=state, **options)
    sides = (late, early) if options["reverse"] else (early, late)
    return [torch.cat(both, dim) for both in zip(*map(leaves, sides), strict=True)]
