"""How many neighbouring columns a thread has, and how many a program, if rows begin between vectors.

Elements are then loaded and stored one by one, or a few at a time. Neighbours belong to neighbouring threads, so that a load
of a warp touches the fewest sectors, or one or two more. A thread with a vector's neighbours would touch all sectors of its
warp again with each of them.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from tilefold.planner.sizes import VECTOR_BYTES, WARP, power_above, run_of

# Times as many columns as there are, at most, where a program may have fewer (docs/experiments/tiles.md#odd).
PADDED = 1.25


# Bytes of an element, the power of two of which the first address is a multiple, and the steps of the dims but the columns',
# that of rows last. Along columns elements are neighbours.
Operand = tuple[int, int, Sequence[int]]


def columns_together(columns: int, run: int, most: int) -> int:
    """Columns of a program: up to `most`, fewer where too many of them would be none; a warp's `run` a thread at least."""
    widths = [most]
    while widths[-1] > WARP * run:
        widths.append(widths[-1] // 2)
    padded = [math.ceil(columns / width) * width for width in widths]
    least = next((i for i, n in enumerate(padded) if n <= PADDED * columns), padded.index(min(padded)))
    return min(power_above(columns), widths[least])


def narrow_run(operands: Sequence[Operand], columns: int) -> int:
    """Neighbours that a thread can have of every operand with a step along rows, where some allow no whole vectors; else 0.

    0 also where no operand is loaded once for many rows, and none allows more.
    """
    allowed = [run_of(*operand) for operand in operands]
    own = [
        (math.gcd(n, columns), VECTOR_BYTES // size)
        for n, (size, _, steps) in zip(allowed, operands, strict=True)
        if steps[-1]
    ]
    run = min((n for n, _ in own), default=0)
    whole = all(n >= vector for n, vector in own)
    return run if not whole and (len(own) < len(operands) or max(allowed) > run) else 0


def loaded_run(operands: Sequence[Operand], columns: int) -> int:
    """Neighbours that a thread can load at once of every operand."""
    return min((math.gcd(columns, run_of(*operand)) for operand in operands), default=VECTOR_BYTES)
