"""What backends run: an algebra made concrete, with a block form where its combine allows one."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from tilefold.algebra import derive, laws
from tilefold.algebra.algebra import Algebra
from tilefold.algebra.dtypes import is_float
from tilefold.algebra.written import Program as Program  # whoever runs a program asks here
from tilefold.algebra.written import as_written as as_written
from tilefold.algebra.written import check_convertible as check_convertible
from tilefold.algebra.written import with_index_dtype as with_index_dtype
from tilefold.caching import kept_outside_modes


@kept_outside_modes(1024)
def specialize(
    algebra: Algebra, elements: tuple[torch.dtype, ...], dtype: torch.dtype | None = None
) -> Program:
    """Give every field and node its dtype. `dtype` asks for another dtype of the results that come from computing.

    Where the monoid gives no `absorb` and does not deny one, where its combine allows it and where samples agree, the block
    form is derived.
    """
    program = as_written(algebra, elements, dtype)
    if algebra.absorb is not None or not algebra.derives or not algebra.commutative:
        return program
    derived = derive.with_blocks(program)
    if derived is None or not laws.blocks_agree(algebra, _sampled_as(elements)):
        return program
    return derived


def _sampled_as(elements: Sequence[torch.dtype]) -> tuple[torch.dtype, ...]:
    """The dtypes of samples that stand for these elements."""
    return tuple(
        torch.float64 if is_float(e) else torch.bool if e == torch.bool else torch.int64 for e in elements
    )
