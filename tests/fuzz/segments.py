"""Random ragged folds: a monoid, inputs of any dtype and layout, lengths of any mix. Compared with the definition."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch
from hypothesis import strategies as st

import tilefold
from fuzz import folds
from fuzz.exclusions import lacks, waits
from fuzz.folds import Fold, Input
from fuzz.monoids import KINDS, Made, monoids
from layouts import layouts
from tilefold.algebra import program as programs
from tilefold.algebra.typing import FLOAT8, FOLDABLE
from tilefold.planner.device import H200
from tilefold.requests import Segments

Tensor = torch.Tensor
LENGTHS = (0, 0, 1, 2, 3, 7, 16, 31, 33, 65, 130, 300)


@dataclass(frozen=True)
class Ragged:
    """A call of `segment_reduce`: as a fold of all, with the lengths that the dim is cut into after `lead` elements."""

    fold: Fold
    lengths: tuple[int, ...]
    lead: int
    dim: int
    narrow: bool

    @property
    def made(self) -> Made:
        """The monoid, which known faults are told by."""
        return self.fold.made

    def offsets(self) -> Tensor:
        """Where segments begin and the last one ends."""
        found = torch.tensor([self.lead, *self.lengths]).cumsum(0)
        return found.int() if self.narrow else found


@st.composite
def ragged(draw: st.DrawFn, most: int = 600) -> Ragged:
    """Any ragged fold of up to `most` elements."""
    lengths = draw(st.lists(st.sampled_from(LENGTHS), max_size=10))
    lead, trail = draw(st.sampled_from((0, 0, 1, 40))), draw(st.sampled_from((0, 0, 3, 70)))
    while lengths and sum(lengths) + lead + trail > most:
        lengths.remove(max(lengths))
    others = (
        draw(st.lists(st.sampled_from((1, 2, 3)), max_size=2)) if lead + trail + sum(lengths) < 200 else []
    )
    dim = draw(st.integers(0, len(others)))
    shape = (*others[:dim], lead + sum(lengths) + trail, *others[dim:])
    own = [d for d in FOLDABLE if d not in FLOAT8]
    kind = draw(st.sampled_from(("finite", *KINDS)))
    inputs = tuple(
        Input(draw(st.sampled_from(own)), draw(layouts(len(shape), may_broadcast=n > 0)), draw(st.integers(0, 99)), False)
        for n in range(draw(st.integers(1, 2)))
    )  # fmt: skip
    dtypes, spans = tuple(i.dtype for i in inputs), tuple(i.span for i in inputs)
    made = draw(monoids(dtypes, spans, max(lengths, default=0), kind))
    guarantee = draw(st.sampled_from(folds.GUARANTEES))
    fold = Fold(made, shape, inputs, kind, dim, False, None, False, guarantee, False)
    return Ragged(fold, tuple(lengths), lead, dim, draw(st.booleans()))


def check(case: Ragged, backends: Sequence[str], device: str = "cpu") -> None:
    """Fold on each backend and compare with the definition."""
    tensors, offsets = case.fold.tensors(), case.offsets()
    if waits(case, "any") or folds.loses_bits(replace(case.made, check=False).monoid(), tensors, None):
        return
    monoid = case.made.monoid()
    if monoid.algebra.identity is None and 0 in case.lengths:
        return
    with tilefold.backend("reference"):
        want = list(tilefold.segment_reduce(tensors, monoid, offsets, dim=case.dim))
    for backend in backends:
        dtypes = {*(i.dtype for i in case.fold.inputs), *(w.dtype for w in want)}
        if not waits(case, backend) and not lacks(dtypes, backend, device):
            got = _run(case, backend, monoid, tensors, offsets, device)
            folds.compare(case.fold, got, want, backend)


def _run(
    case: Ragged, backend: str, monoid: tilefold.Monoid, tensors: list[Tensor], offsets: Tensor, device: str
) -> list[Tensor]:
    if backend == "ptx":
        return _by_ptx(case, monoid, tensors, offsets)
    given = tensors if device == "cpu" else [folds.on_device(t, device) for t in tensors]
    with tilefold.backend("auto" if device != "cpu" else backend):
        got = tilefold.segment_reduce(
            given, monoid, offsets.to(device), dim=case.dim, guarantee=case.fold.guarantee
        )
    return [g.cpu() for g in got]


def _by_ptx(case: Ragged, monoid: tilefold.Monoid, tensors: list[Tensor], offsets: Tensor) -> list[Tensor]:
    """Compiled for sm_90 and executed by the X-ray's machine."""
    from xray import running

    shape = case.fold.shape
    seen = [*(t.expand(shape).resolve_neg() for t in tensors), offsets]
    program = programs.specialize(monoid.total, tuple(t.dtype for t in tensors))
    sizes = (*shape[: case.dim], len(case.lengths), *shape[case.dim + 1 :])
    request = Segments(program, case.dim, case.fold.guarantee, sizes)
    problem, plan = request.plan(seen, H200, library=False)
    results = [torch.empty(sizes, dtype=d) for d in program.outputs]
    if math.prod(sizes):
        running.run_plan(plan, problem, program, seen, results, 90)
    return results
