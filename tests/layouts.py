"""Tensors of random shape and layout for property tests: sliced, transposed, expanded, misaligned, several that broadcast."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from hypothesis import strategies as st

Tensor = torch.Tensor
Fill = Callable[[Sequence[int]], Tensor]


@dataclass(frozen=True)
class Layout:
    """How one tensor lies in memory: the order of its dims, how far apart elements are, which dims only broadcast."""

    order: tuple[int, ...]
    steps: tuple[int, ...]
    broadcast: tuple[bool, ...]
    offset: int

    def place(self, shape: Sequence[int], fill: Fill) -> Tensor:
        """A tensor of `shape` (1 where it broadcasts) so laid out, with the values that `fill` makes."""
        own = [1 if alone else n for n, alone in zip(shape, self.broadcast, strict=True)]
        values = fill(own)
        spread = [own[d] * self.steps[d] for d in self.order]
        storage = torch.empty(self.offset + max(1, _product(spread)), dtype=values.dtype)
        view = storage[self.offset : self.offset + _product(spread)].view(spread)
        view = view.permute([self.order.index(d) for d in range(len(own))])
        view = view[tuple(slice(None, None, step) for step in self.steps)]
        return view.copy_(values)


def _product(numbers: Sequence[int]) -> int:
    result = 1
    for n in numbers:
        result *= n
    return result


def shapes(most_dims: int = 4, sizes: Sequence[int] = (0, 1, 2, 3, 5)) -> st.SearchStrategy[tuple[int, ...]]:
    """Shapes of 0 to `most_dims` dims; short lengths, so that many layouts fit into a short test."""
    return st.lists(st.sampled_from(sizes), max_size=most_dims).map(tuple)


@st.composite
def layouts(draw: st.DrawFn, ndim: int, *, may_broadcast: bool = True) -> Layout:
    """Any layout of `ndim` dims."""
    flags = st.booleans() if may_broadcast else st.just(False)
    return Layout(
        order=tuple(draw(st.permutations(range(ndim)))),
        steps=tuple(draw(st.sampled_from([1, 1, 2, 3])) for _ in range(ndim)),
        broadcast=tuple(draw(flags) for _ in range(ndim)),
        offset=draw(st.sampled_from([0, 1, 7])),
    )


@st.composite
def dims_of(draw: st.DrawFn, ndim: int) -> tuple[int, ...]:
    """Some dims, sorted; none and all among them."""
    return tuple(d for d in range(ndim) if draw(st.booleans()))
