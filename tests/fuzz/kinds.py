"""The kinds of cases, and what each is compared on: `make test` tries some of each, `make fuzz` many."""

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from hypothesis import strategies as st

from fuzz import calls, folds, maps, moves, norms, products, ranges, scalars, scans, segments, slopes


@dataclass(frozen=True)
class Kind:
    """Random cases and their comparison. `batch` of them take some seconds; `few` are tried by `make test`."""

    name: str
    cases: st.SearchStrategy[Any]
    check: Callable[[Any], None]
    batch: int
    few: int

    def __repr__(self) -> str:
        return self.name


def _folds(backend: str, batch: int, few: int, **sizes: Any) -> Kind:
    check = functools.partial(folds.check, backends=backend.split(" and "))
    return Kind(f"folds by {backend}", folds.folds(**sizes), check, batch, few)


def _maps(backend: str, batch: int, few: int, **sizes: Any) -> Kind:
    check = functools.partial(maps.check, backends=backend.split(" and "))
    return Kind(f"maps by {backend}", maps.maps_of_folds(**sizes), check, batch, few)


def _scalars(backend: str, batch: int, few: int) -> Kind:
    check = functools.partial(scalars.check, backends=[backend])
    return Kind(f"scalars by {backend}", scalars.scalars(), check, batch, few)


def _products(backend: str, batch: int, few: int, **sizes: Any) -> Kind:
    check = functools.partial(products.check, backends=[backend])
    return Kind(f"products by {backend}", products.products(**sizes), check, batch, few)


def _scans(backend: str, batch: int, few: int, **sizes: Any) -> Kind:
    check = functools.partial(scans.check, backends=backend.split(" and "))
    return Kind(f"scans by {backend}", scans.scans(**sizes), check, batch, few)


def _segments(backend: str, batch: int, few: int, **sizes: Any) -> Kind:
    check = functools.partial(segments.check, backends=[backend])
    return Kind(f"segments by {backend}", segments.ragged(**sizes), check, batch, few)


def _moves(backend: str, batch: int, few: int, **sizes: Any) -> Kind:
    check = functools.partial(moves.check, backends=backend.split(" and "))
    return Kind(f"moves by {backend}", moves.moves(**sizes), check, batch, few)


def _norms(name: str, backend: str, batch: int, few: int, **sizes: Any) -> Kind:
    check = functools.partial(norms.check, backends=backend.split(" and "))
    return Kind(f"{name} by {backend}", norms.norms(**sizes), check, batch, few)


def _ranges(backend: str, batch: int, few: int, **sizes: Any) -> Kind:
    check = functools.partial(ranges.check, backends=backend.split(" and "))
    return Kind(f"ranges by {backend}", ranges.ranged(**sizes), check, batch, few)


CPU = {
    kind.name: kind
    for kind in [
        _folds("cpu and auto", 200, 130),
        _folds("interpret", 25, 16, long=(31, 64, 65, 100), most=150),
        _maps("cpu and auto", 100, 60),
        _maps("interpret", 20, 6, long=(31, 64, 65, 100), most=150),
        _maps("ptx", 8, 4, long=(31, 64, 65, 127, 257, 300), most=600),
        _scalars("cpu", 200, 150),
        _scalars("interpret", 50, 40),
        _scalars("ptx", 8, 12),
        _products("torch", 100, 150),
        _products("reference", 100, 10, most=20, depth=100),
        _products("interpret", 20, 14, most=20, depth=100),
        _products("ptx", 6, 10, most=33, depth=100),
        _scans("cpu and auto", 200, 100),
        _scans("interpret", 10, 8, long=(31, 33), most=60),
        _scans("ptx", 6, 4, long=(31, 65, 130, 300, 700), most=800),
        _moves("cpu and auto and reference", 200, 60),
        _moves("interpret", 20, 4, most=300, longest=200),
        _moves("ptx", 6, 4, most=1000, longest=700),
        _norms("norms of layers", "cpu and auto", 200, 150, functions=norms.LAYERS),
        _norms("shares of rows", "cpu and auto", 200, 100, functions=norms.SHARES),
        _norms("norms", "reference", 50, 16, long=(16, 31), most=120),
        _norms("norms", "interpret", 20, 8, long=(31, 33, 64, 65, 100), most=200),
        _norms("norms", "ptx", 8, 6, long=(31, 64, 65, 127, 257, 300), most=600),
        _ranges("cpu and auto", 100, 40),
        _ranges("reference", 20, 4, lengths=(1, 3, 33)),
        _ranges("interpret", 10, 2, lengths=(1, 3, 33, 100)),
        _ranges("ptx", 4, 1, operations=ranges.BY_PTX, lengths=(1, 3, 33, 100)),
        _segments("cpu", 100, 60),
        _segments("interpret", 20, 8, most=200),
        _segments("ptx", 6, 4, most=400),
        Kind("gradients beside torch's", slopes.slopes(), slopes.check, 300, 100),
        Kind("calls with wrong arguments", calls.calls(), calls.check, 2000, 200),
        _folds("ptx", 8, 14, long=(31, 64, 65, 127, 257, 300), most=600),
    ]
}
CUDA = {
    kind.name: kind
    for kind in [
        Kind(
            "segments by triton", segments.ragged(most=4000),
            functools.partial(segments.check, backends=["triton"], device="cuda"), 25, 0,
        ),
        Kind(
            "products by triton", products.products(),
            functools.partial(products.check, backends=["triton"], device="cuda"), 25, 0,
        ),
        Kind(
            "scalars by triton", scalars.scalars(),
            functools.partial(scalars.check, backends=["triton"], device="cuda"), 25, 0,
        ),
        Kind("moves by triton", moves.moves(), functools.partial(moves.check, backends=["triton"], device="cuda"), 50, 0),
        Kind("norms by triton", norms.norms(), functools.partial(norms.check, backends=["triton"], device="cuda"), 50, 0),
        Kind(
            "ranges by triton", ranges.ranged(lengths=(1, 3, 33, 1000, 16000)),
            functools.partial(ranges.check, backends=["triton"], device="cuda"), 25, 0,
        ),
        Kind("scans by triton", scans.scans(), functools.partial(scans.check, backends=["triton"], device="cuda"), 25, 0),
        Kind(
            "maps by triton", maps.maps_of_folds(),
            functools.partial(maps.check, backends=["triton"], device="cuda"), 25, 0,
        ),
        Kind("folds by triton", folds.folds(), functools.partial(folds.check, backends=["triton"], device="cuda"), 25, 0),
        Kind(
            "longer folds by triton", folds.folds(long=folds.MIDDLE, most=40000),
            functools.partial(folds.check, backends=["triton"], device="cuda"), 25, 0,
        ),
    ]
}  # fmt: skip
