"""The element of each row that an index chooses, on torch's operations."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor


def places(index: Tensor, classes: int) -> Tensor:
    """An index as torch's operations take it: 0 where it is no class."""
    number = index.to(torch.int64)
    return torch.where((number >= 0) & (number < classes), number, 0)


def read(tables: Sequence[Tensor], index: Tensor, dim: int) -> list[Tensor]:
    """Each table's element at a row's index, of tables that are expanded to all rows."""
    if not tables:
        return []
    place = places(index, tables[0].shape[dim])
    return [t.gather(dim, place) for t in tables]
