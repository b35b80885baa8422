"""Random ragged folds: a monoid, inputs of any dtype and layout, lengths of any mix. Compared with the definition."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
import torch.nn.functional as F
from hypothesis import strategies as st

import tilefold
from asked import by_ptx
from fuzz import folds
from fuzz.exclusions import lacks, waits
from fuzz.folds import Fold, Input
from fuzz.monoids import KINDS, Made, monoids
from layouts import layouts
from scanned import leaves
from tilefold.algebra.typing import FLOAT8, FOLDABLE

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
    given: str

    @property
    def made(self) -> Made:
        """The monoid, which known faults are told by."""
        return self.fold.made

    def offsets(self) -> Tensor:
        """Where segments begin and the last one ends."""
        found = torch.tensor([self.lead, *self.lengths]).cumsum(0)
        return found.int() if self.narrow else found

    def keys(self) -> Tensor:
        """A key for each position: its segment's number, -1 before the first one, and their number behind the last."""
        behind = self.fold.shape[self.dim] - self.lead - sum(self.lengths)
        counts = torch.tensor([self.lead, *self.lengths, behind])
        found = torch.arange(-1, len(self.lengths) + 1).repeat_interleave(counts)
        return found.int() if self.narrow else found

    def runs(self) -> Tensor:
        """The offsets of the runs of equal keys: every position is in one."""
        return F.pad(torch.unique_consecutive(self.keys(), return_counts=True)[1].cumsum(0), (1, 0))

    @property
    def turns(self) -> bool:
        """Whether a plan's results have the segments first, and the call's do not."""
        return self.given == "jagged"

    def call(self, monoid: tilefold.Monoid, tensors: Sequence[Tensor], **options: Any) -> Any:
        """The results, segments given as the case has them; of jagged tensors the dim that is cut comes first."""
        device = tensors[0].device
        if self.given == "jagged":
            cut = [t.movedim(self.dim, 0) for t in tensors]
            offsets = self.offsets().long().to(device)
            nested = [torch.nested.nested_tensor_from_jagged(t, offsets) for t in cut]
            made = leaves(tilefold.segment_reduce(nested, monoid, **options))
            return [m.movedim(0, self.dim) for m in made]
        if self.given in ("offsets", "lengths"):
            own = self.offsets() if self.given == "offsets" else self.offsets().diff()
            behind = self.fold.shape[self.dim] - int(self.offsets()[-1])
            options |= {self.given: own.to(device), "partial": self.lead + behind > 0}
            return tilefold.segment_reduce(tensors, monoid, dim=self.dim, **options)
        keys, number = self.keys().to(device), len(self.lengths)
        if self.given == "keys":
            options |= {"partial": bool(((keys < 0) | (keys >= number)).any())}
            return tilefold.segment_reduce(
                tensors, monoid, by=keys, num_segments=number, dim=self.dim, **options
            )
        found = tilefold.segment_reduce(tensors, monoid, by=keys, dim=self.dim, **options)
        assert torch.equal(found.keys.cpu(), torch.unique_consecutive(self.keys()))
        return found.results


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
    whole = not lead and not trail and not any(any(i.layout.broadcast) for i in inputs)
    ways = ("offsets", "offsets", "keys", "runs", *(["lengths"] * (not lead)), *(["jagged"] * whole))
    given = draw(st.sampled_from(ways))
    return Ragged(fold, tuple(lengths), lead, dim, draw(st.booleans()), given)


def check(case: Ragged, backends: Sequence[str], device: str = "cpu") -> None:
    """Fold on each backend and compare with the definition."""
    tensors, offsets = case.fold.tensors(), case.runs() if case.given == "runs" else case.offsets()
    if waits(case, "any") or folds.loses_bits(replace(case.made, check=False).monoid(), tensors, None):
        return
    monoid = case.made.monoid()
    if monoid.algebra.identity is None and bool((offsets.diff() == 0).any()):
        return
    with tilefold.backend("reference"):
        want = list(tilefold.segment_reduce(tensors, monoid, offsets, dim=case.dim, partial=True))
    for backend in backends:
        dtypes = {*(i.dtype for i in case.fold.inputs), *(w.dtype for w in want)}
        if not waits(case, backend) and not lacks(dtypes, backend, device):
            got = _run(case, backend, monoid, tensors, device)
            folds.compare(case.fold, got, want, backend)


def _run(
    case: Ragged, backend: str, monoid: tilefold.Monoid, tensors: list[Tensor], device: str
) -> list[Tensor]:
    options = {"guarantee": case.fold.guarantee}
    if backend == "ptx":
        made = by_ptx(lambda: case.call(monoid, tensors, **options))
        return [m.movedim(0, case.dim) for m in made] if case.turns else made
    given = tensors if device == "cpu" else [folds.on_device(t, device) for t in tensors]
    with tilefold.backend("auto" if device != "cpu" else backend):
        return [g.cpu() for g in leaves(case.call(monoid, given, **options))]
