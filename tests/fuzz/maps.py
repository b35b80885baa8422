"""Random maps: a random fold's monoid and inputs, its results given back beside every element. As the definition has it."""

from __future__ import annotations

import math
from collections.abc import Sequence
from contextlib import ExitStack
from typing import Any
from unittest import mock

import torch

import tilefold
from fuzz.exclusions import lacks, waits
from fuzz.folds import Fold, loses_bits, on_device, rooms, same_bytes
from tilefold.algebra.typing import is_float
from tilefold.contract.row import make_row_map, projected
from tilefold.mapped import graph_of
from tilefold.planner import blocks, maps
from tilefold.planner.device import H200
from tilefold.requests import RowMap

Tensor = torch.Tensor
# Sizes so small that short rows are walked in windows, as long ones are on a GPU.
TINY = {"THREAD_WORDS": 0, "WINDOW_BYTES": 512, "PART_BYTES": 256, "LEAST_PART_BYTES": 256, "WINDOW_WARPS": 1}
TINY_BLOCKS = {"ELEMENTS": 4, "LANES": (32,), "SHARED_LANES": 1}
TINY["SHARED_TILES"] = ((1, 1),)  # clusters of up to sixteen programs, where the device has them


def check(fold: Fold, backends: Sequence[str], device: str = "cpu") -> None:
    """Map on each backend and compare with the definition: dtypes, shapes, values; half precision is rounded once more."""
    tensors = fold.tensors()
    if waits(fold, "any") or math.prod(fold.shape) == 0:
        return
    if loses_bits(fold.made.monoid(), tensors, None):
        return
    monoid = fold.made.monoid()
    results = projected(monoid)

    def apply(*values: Any) -> Any:
        return (*values[len(tensors) :], values[0])

    with tilefold.backend("reference" if fold.length <= 1000 else "cpu"):
        want = tilefold.reduce_map(tensors, monoid, apply, fold.dim)
    for backend in backends:
        dtypes = {*(i.dtype for i in fold.inputs), *(w.dtype for w in want)}
        if waits(fold, backend) or lacks(dtypes, backend, device):
            continue
        before = [t.clone() for t in tensors]
        with ExitStack() as sizes:
            if fold.tiny:
                sizes.enter_context(mock.patch.multiple(maps, **TINY))
                sizes.enter_context(mock.patch.multiple(blocks, **TINY_BLOCKS))
            if backend == "ptx":
                got = by_ptx(fold, monoid, graph_of(apply, len(tensors) + results), tensors)
            else:
                given = tensors if device == "cpu" else [on_device(t, device) for t in tensors]
                with tilefold.backend(backend):
                    made = tilefold.reduce_map(given, monoid, apply, fold.dim, guarantee=fold.guarantee)
                got = [t.cpu() for t in made]
        assert all(map(same_bytes, tensors, before)), f"{backend} changed an input"
        compare(fold, got, want, backend)


def by_ptx(fold: Fold, monoid: Any, apply: Any, tensors: Sequence[Tensor]) -> list[Tensor]:
    """Planned for an H200, compiled, and executed by the X-ray's machine."""
    from xray import running

    shape = torch.broadcast_shapes(*(t.shape for t in tensors))
    seen = [t.expand(shape).resolve_neg() for t in tensors]
    row = make_row_map(monoid.total, apply, tuple(t.dtype for t in tensors), ())
    request = RowMap(row, fold.dims, fold.guarantee, tuple(shape))
    problem, plan = request.plan(seen, H200, library=False)
    results = [torch.empty(s, dtype=d) for s, d in request.results]
    running.run_plan(plan, problem, row, seen, results, 90)
    return results


def compare(fold: Fold, got: Sequence[Tensor], want: Sequence[Tensor], by: str) -> None:
    """Equal, or as near as two answers of a fold that rounds may be."""
    for k, (g, w, room) in enumerate(zip(got, want, [*rooms(fold), 0.0], strict=True)):
        assert (g.dtype, g.shape) == (w.dtype, w.shape), f"{by}: result {k} is {g.dtype} of {list(g.shape)}"
        a, b = (t.view(torch.int64) if t.dtype == torch.uint64 else t for t in (g, w))
        if is_float(g.dtype):
            a, b = a.double(), b.double()
            fine = (a == b) | (a.isnan() & b.isnan())
            fine |= (a - b).abs() <= (room + torch.finfo(w.dtype).eps * bool(room)) * b.abs()
        else:
            fine = a == b
        assert bool(fine.all()), f"{by}: result {k} is\n{g}, not\n{w}"
