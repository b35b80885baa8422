"""Functions of torch's whose bits on a CPU depend on where an element lies, with bits that depend on its value alone.

torch computes the elements after the last whole vector, and those of a thread's share, by another routine.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch

Tensor = torch.Tensor
SERIAL = 1 << 14  # elements that torch never shares out among threads: half of its GRAIN_SIZE
_VECTOR = 64  # elements: a multiple of every vector length torch is built for, unrolling included


def in_whole_vectors(function: Callable[..., Any]) -> Callable[..., Tensor]:
    """`function` of operands that broadcast, `out=` besides: as of whole vectors by one thread."""

    def apply(*operands: Any, out: Tensor | None = None) -> Tensor:
        shapes = [o.shape for o in operands if isinstance(o, Tensor)]
        shape = shapes[0]
        if any(s != shape for s in shapes):
            shape = torch.broadcast_shapes(*shapes)  # type: ignore[no-untyped-call]  # torch's own
        flat = [o.expand(shape).reshape(-1) if isinstance(o, Tensor) else o for o in operands]
        pieces = [_serially(function, flat, start) for start in range(0, max(shape.numel(), 1), SERIAL)]
        whole = (pieces[0] if len(pieces) == 1 else torch.cat(pieces)).view(shape)
        return whole if out is None else out.copy_(whole)

    return apply


def _serially(function: Callable[..., Any], operands: Sequence[Any], start: int) -> Tensor:
    cut = [o[start : start + SERIAL] if isinstance(o, Tensor) else o for o in operands]
    length = next(o.numel() for o in cut if isinstance(o, Tensor))
    missing = -length % _VECTOR
    if missing:
        cut = [torch.cat([o, o.new_ones(missing)]) if isinstance(o, Tensor) else o for o in cut]
    else:
        cut = [o.contiguous() if isinstance(o, Tensor) else o for o in cut]
    result: Tensor = function(*cut)
    return result[:length]
