"""Random maps: a random fold's monoid and inputs, extra tensors, and functions of elements, results and extras.

What `apply` gives is a value as it stands, or exact in float32: so all backends give the same, as the definition has it.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from typing import Any
from unittest import mock

import torch
from hypothesis import strategies as st

import tilefold
from asked import by_ptx
from fuzz.exclusions import lacks, waits
from fuzz.folds import Fold, Input, folds, loses_bits, on_device, rooms, same_bytes
from fuzz.monoids import Made
from layouts import layouts
from scanned import leaves
from tilefold.algebra.typing import FLOAT8, FOLDABLE, is_float
from tilefold.planner import blocks, maps
from tilefold.planner.products.row import projected

Tensor = torch.Tensor
# Sizes so small that short rows are walked in windows, as long ones are on a GPU.
TINY = {"THREAD_WORDS": 0, "WINDOW_BYTES": 512, "PART_BYTES": 256, "LEAST_PART_BYTES": 256, "WINDOW_WARPS": 1}
TINY_BLOCKS = {"ELEMENTS": 4, "LANES": (32,), "SHARED_LANES": 1}
TINY["SHARED_TILES"] = ((1, 1),)  # clusters of up to sixteen programs, where the device has them


@dataclass(frozen=True)
class Output:
    """One value of `apply`: value `a` as it stands; or, of two floats that were read, their sum or the larger; or `a` where
    `b` is above zero, else 0. Numbers count elements, results and extras in this order, around the end."""

    kind: str
    a: int
    b: int


@dataclass(frozen=True)
class Map:
    """A call of `reduce_map`. `out`: results are new, given, or written over the first input."""

    fold: Fold
    extras: tuple[Input, ...]
    outputs: tuple[Output, ...]
    out: str

    @property
    def made(self) -> Made:
        """The monoid, which known faults are told by."""
        return self.fold.made

    @property
    def read(self) -> tuple[int, ...]:
        """The numbers of values that are read: elements and extras, no results."""
        inputs = len(self.fold.inputs)
        first = inputs + projected(self.made.monoid())
        return (*range(inputs), *range(first, first + len(self.extras)))

    @property
    def floats(self) -> tuple[int, ...]:
        """Those of them that are floats of two bytes and more."""
        dtypes = [i.dtype for i in (*self.fold.inputs, *self.extras)]
        wide = [d.is_floating_point and d not in FLOAT8 for d in dtypes]
        return tuple(n for n, fine in zip(self.read, wide, strict=True) if fine)

    def of(self, values: Sequence[Any]) -> tuple[Any, ...]:
        """What `apply` gives."""
        read, floats = self.read, self.floats
        found = []
        for output in self.outputs:
            a = values[output.a % len(values)]
            if output.kind == "value" or (output.kind != "chosen" and not floats):
                found.append(a)
            elif output.kind == "chosen":
                found.append(tilefold.math.where(values[read[output.b % len(read)]] > 0, a, 0))
            else:
                x, y = (values[floats[n % len(floats)]] for n in (output.a, output.b))
                found.append(x + y if output.kind == "sum" else tilefold.math.maximum(x, y))
        return tuple(found)

    def room(self, output: Output, values: int) -> float:
        """How far apart two answers may be."""
        result = output.a % values - len(self.fold.inputs)
        found = rooms(self.fold)
        stands = output.kind in ("value", "chosen") or not self.floats
        return found[result] if stands and 0 <= result < len(found) else 0.0


@st.composite
def maps_of_folds(draw: st.DrawFn, **sizes: Any) -> Map:
    """A map of any fold's inputs."""
    fold = draw(folds(**sizes))
    own = [d for d in FOLDABLE if d not in FLOAT8]
    extras = tuple(
        Input(draw(st.sampled_from(own)), draw(layouts(len(fold.shape))), draw(st.integers(0, 99)), False)
        for _ in range(draw(st.sampled_from((0, 0, 1, 2))))
    )
    kinds = ("value", "value", "sum", "largest", "chosen")
    outputs = tuple(
        Output(draw(st.sampled_from(kinds)), draw(st.integers(0, 9)), draw(st.integers(0, 9)))
        for _ in range(draw(st.integers(1, 3)))
    )
    return Map(fold, extras, outputs, draw(st.sampled_from(("", "given", "first", "first"))))


def check(case: Map, backends: Sequence[str], device: str = "cpu") -> None:
    """Map on each backend and compare with the definition: dtypes, shapes, values; half precision is rounded once more."""
    fold, tensors = case.fold, case.fold.tensors()
    extras = [e.make(fold.shape, fold.kind) for e in case.extras]
    made = replace(fold.made, check=False).monoid()
    if waits(case, "any") or math.prod(fold.shape) == 0 or loses_bits(made, tensors, None):
        return
    monoid = fold.made.monoid()

    def apply(*values: Any) -> Any:
        return case.of(values)

    count = len(tensors) + projected(monoid) + len(extras)
    named: dict[str, Any] = {"dim": fold.dim, "guarantee": fold.guarantee}
    with tilefold.backend("reference" if fold.length <= 1000 else "cpu"):
        want = leaves(tilefold.reduce_map(tensors, monoid, apply, extras=extras, **named))
    allowed = [case.room(output, count) for output in case.outputs]
    over = (
        case.out == "first" and len(want) == 1 and not tensors[0].is_neg() and is_alike(want[0], tensors[0])
    )
    for backend in backends:
        dtypes = {*(i.dtype for i in (*fold.inputs, *case.extras)), *(w.dtype for w in want)}
        if waits(case, backend) or lacks(dtypes, backend, device):
            continue
        given = [on_device(t, device) if device != "cpu" else t for t in (*tensors, *extras)]
        if over:
            given[0] = copied(given[0])
        before = [t.clone() for t in given]
        out = [given[0]] if over else None
        if case.out == "given":
            out = [torch.empty(w.shape, dtype=w.dtype, device=device) for w in want]
        with ExitStack() as stack:
            if fold.tiny:
                stack.enter_context(mock.patch.multiple(maps, **TINY))
                stack.enter_context(mock.patch.multiple(blocks, **TINY_BLOCKS))

            def call(given: Sequence[Tensor] = given, out: Any = out) -> Any:
                inputs, beside = given[: len(tensors)], given[len(tensors) :]
                return tilefold.reduce_map(inputs, monoid, apply, extras=beside, out=out, **named)

            if backend == "ptx":
                got = by_ptx(call, out=out)
            else:
                stack.enter_context(tilefold.backend(backend))
                got = leaves(call())
        assert out is None or all(g is o for g, o in zip(got, out, strict=True)), "the result is not `out`"
        assert all(map(same_bytes, given[over:], before[over:])), f"{backend} changed an input"
        compare([g.cpu() for g in got], want, allowed, backend)


def is_alike(result: Tensor, x: Tensor) -> bool:
    """Whether a result may be written over an input."""
    return (result.dtype, result.shape) == (x.dtype, x.shape)


def copied(t: Tensor) -> Tensor:
    """The same elements in memory of their own, as they lie."""
    held = torch.empty(0, dtype=t.dtype, device=t.device).set_(t.untyped_storage().clone())
    return held.as_strided(t.shape, t.stride(), t.storage_offset())


def compare(got: Sequence[Tensor], want: Sequence[Tensor], allowed: Sequence[float], by: str) -> None:
    """Equal, or as near as two answers of a fold that rounds may be."""
    for k, (g, w, room) in enumerate(zip(got, want, allowed, strict=True)):
        assert (g.dtype, g.shape) == (w.dtype, w.shape), f"{by}: result {k} is {g.dtype} of {list(g.shape)}"
        a, b = (t.view(torch.int64) if t.dtype == torch.uint64 else t for t in (g, w))
        if is_float(g.dtype):
            a, b = a.double(), b.double()
            fine = (a == b) | (a.isnan() & b.isnan())
            fine |= (a - b).abs() <= (room + torch.finfo(w.dtype).eps * bool(room)) * b.abs()
        else:
            fine = a == b
        assert bool(fine.all()), f"{by}: result {k} is\n{g}, not\n{w}"
