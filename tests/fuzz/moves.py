"""Random top-k and transposes: any dtype, layout and dims, beside the order and the places that are promised."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from hypothesis import strategies as st

import tilefold
from asked import by_ptx
from fuzz.exclusions import lacks
from fuzz.folds import GUARANTEES, Input, on_device, same_bytes
from fuzz.monoids import KINDS
from layouts import layouts
from tilefold.algebra.typing import FLOAT8, FOLDABLE
from tilefold.planner.device import H200

Tensor = torch.Tensor
SIZES = (0, 1, 2, 3, 7, 16, 31, 33, 64, 65, 129)
MOST_K = 32


@dataclass(frozen=True)
class Move:
    """A tensor, and numbers of which either call takes what it needs."""

    input: Input
    shape: tuple[int, ...]
    kind: str
    first: int
    second: int
    largest: bool
    guarantee: str
    few_sms: bool

    @property
    def dims(self) -> tuple[int, int]:
        """The dims that change places; along the first one elements are chosen."""
        return self.first % len(self.shape), (self.first + self.second) % len(self.shape)

    @property
    def k(self) -> int:
        """How many are chosen."""
        return min(self.second, self.shape[self.dims[0]], MOST_K)


@st.composite
def moves(draw: st.DrawFn, most: int = 4000, longest: int = 1000) -> Move:
    """Any tensor of up to `most` elements, one dim of which may be long."""
    sizes = [draw(st.sampled_from(SIZES)) for _ in range(draw(st.integers(1, 3)))]
    if draw(st.booleans()):
        sizes[draw(st.integers(0, len(sizes) - 1))] = draw(st.integers(65, longest))
    while math.prod(sizes) > most:
        sizes[sizes.index(max(sizes))] //= 2
    dtype = draw(st.sampled_from([d for d in FOLDABLE if d not in FLOAT8]))
    given = Input(dtype, draw(layouts(len(sizes), may_broadcast=False)), draw(st.integers(0, 99)), False)
    return Move(
        given, tuple(sizes), draw(st.sampled_from(("finite", *KINDS))), draw(st.integers(0, 5)), draw(st.integers(0, 40)),
        draw(st.booleans()), draw(st.sampled_from(GUARANTEES)), draw(st.booleans()),
    )  # fmt: skip


def check(move: Move, backends: Sequence[str], device: str = "cpu") -> None:
    """Both calls on each backend: every bit of a transpose; of top-k values and places, in their order."""
    x = move.input.make(move.shape, move.kind)
    before, (dim, _) = x.clone(), move.dims
    places = places_of(x, move)
    for backend in backends:
        if lacks({move.input.dtype, torch.int64}, backend, device):
            continue
        there = x if device == "cpu" else on_device(x, device)

        def transpose(there: Tensor = there) -> Tensor:
            return tilefold.transpose(there, *move.dims, guarantee=move.guarantee)

        def topk(there: Tensor = there) -> Any:
            return tilefold.topk(there, move.k, dim, move.largest, guarantee=move.guarantee)

        if backend == "ptx":
            chip = replace(H200, sms=1) if move.few_sms else H200
            (moved,), (values, indices) = by_ptx(transpose, chip), by_ptx(topk, chip)
        else:
            with tilefold.backend("auto" if backend == "triton" else backend):
                moved, (values, indices) = transpose().cpu(), (t.cpu() for t in topk())
        assert moved.is_contiguous()
        assert same_bytes(moved, x.transpose(*move.dims)), f"{backend}: transpose"
        assert torch.equal(indices, places), f"{backend}: {indices}, not {places}"
        assert same_bytes(values, taken(x, dim, places)), f"{backend}: {values}"
        assert same_bytes(x, before), f"{backend} changed the input"


def taken(x: Tensor, dim: int, places: Tensor) -> Tensor:
    """The elements at those places, as bits: torch gathers no unsigned ones."""
    bits = {1: torch.int8, 2: torch.int16, 4: torch.int32, 8: torch.int64}[x.itemsize]
    return x.contiguous().view(bits).gather(dim, places).view(x.dtype)


def places_of(x: Tensor, move: Move) -> Tensor:
    """Places of the k best: NaN is the greatest of all, both zeros are equal, and of equals the lower index comes first."""
    dim = move.dims[0]
    rows = x.movedim(dim, -1)

    def key(value: Any) -> tuple[bool, Any]:
        beyond = value != value
        return beyond != move.largest, 0 if beyond else -value if move.largest else value

    def best(row: list[Any]) -> list[int]:
        return sorted(range(len(row)), key=lambda place: key(row[place]))[: move.k]

    flat = rows.reshape(math.prod(rows.shape[:-1]), rows.shape[-1]).tolist()
    found = torch.tensor([best(row) for row in flat], dtype=torch.int64)
    return found.reshape(*rows.shape[:-1], move.k).movedim(-1, dim)
