"""How a scan runs on a CPU: as torch's own function if that is exactly the scan, else in a loop over tiles."""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch

from tilefold import monoids
from tilefold.algebra.algebra import Algebra
from tilefold.algebra.program import Program
from tilefold.planner.plan import Launch, Plan
from tilefold.planner.stages.cpu import CpuTile
from tilefold.runtime.caching import kept_outside_modes

# An operation takes a us beside its elements (docs/experiments/cpu.md#folds). Where rows lie apart a tile's states are to
# stay in a core's cache, and their number is no power of two: lanes would share cache lines (docs/experiments/cpu.md#scans).
STEPS = 64  # of rows of neighbours; half of it where lanes would be few
FEW_LANES_EACH = 1 << 19  # elements
MANY_LANES = 16384
STEPS_APART = 16
MANY_APART = 8000
STEPS_ALONE = 16  # for any number of rows
SOME_ELEMENTS = 1 << 16  # up to here a row is one lane, scanned by levels (docs/experiments/cpu.md#folds)
SOME_ROWS = 8  # fewer are too few neighbours for an operation
FEW_ELEMENTS = 16384  # up to here no other thread is woken (not measured)
MOST_THREADS = 4  # more would wait for Python (docs/experiments/cpu.md#folds)


def cpu_scan(length: int, rows: int, guarantee: str, threads: int = 1, inner: int = 1) -> Plan:
    """A loop over tiles; with "batch_invariant" nothing but how many rows are taken at a time follows the number of rows.

    `inner` rows are neighbours in memory.
    """
    alone = guarantee == "batch_invariant"
    elements = length * rows
    by_levels = not alone and elements <= (SOME_ELEMENTS if rows >= SOME_ROWS else SOME_ELEMENTS // 8)
    if by_levels:
        steps, lanes = length, 1
    elif inner > 1 and not alone:
        beside = max(1, min(rows, MANY_APART))
        steps = max(1, min(STEPS_APART, length, length * beside // MANY_APART))
        lanes = max(1, min(math.ceil(length / steps), MANY_APART // beside))
    else:
        steps = _steps(length, STEPS_ALONE if alone else STEPS if elements > FEW_LANES_EACH else STEPS // 2)
        lanes = math.ceil(length / steps)
        lanes = math.ceil(lanes / math.ceil(lanes / MANY_LANES))
    threads = min(threads, MOST_THREADS) if elements > FEW_ELEMENTS else 1
    shares = 1 if threads == 1 else 2 * threads if inner == 1 else threads
    together = MANY_APART if inner > 1 else MANY_LANES
    most = max(1, min(together // lanes, math.ceil(rows / shares)))
    beside = math.ceil(rows / math.ceil(rows / most)) if rows else 1
    tile = CpuTile(max(1, steps), lanes, beside, threads, by_levels)
    return Plan("cpu", (Launch("scan", tile, (), ()),), (), (), guarantee, "tiles", "")


def _steps(length: int, most: int) -> int:
    """Neighbours in a lane: so many that fill each lane, if some do."""
    return min(max(1, length), next((n for n in range(most, 2 * most) if length % n == 0), most))


_HALVES = (torch.float16, torch.bfloat16)
_FLOATS = (*_HALVES, torch.float32, torch.float64)
_ROUNDED = ("torch.cumsum", "torch.cumprod")
_SIGNED = (torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64)


def library_scan(
    tensors: Sequence[torch.Tensor], program: Program, guarantee: str, *, exclusive: bool, reverse: bool
) -> str | None:
    """The name of torch's function on a CPU where it has exactly this scan, else None.

    Torch walks each row from its beginning, so that a row's bits depend on nothing else; rows are turned around before and
    after it for a scan from the end. Positions would be turned around too, so such a scan of them stays with the tiles, and
    an exclusive one of more than one field.
    """
    found = _library().get(program.algebra)
    if found is None or program.elements != (tensors[0].dtype,):
        return None
    if (reverse and program.algebra.index) or (exclusive and len(program.state) > 1):
        return None
    function, dtypes = found
    x = tensors[0]
    # Torch rounds each prefix to the elements' dtype.
    if function in _ROUNDED and x.dtype in _HALVES and program.outputs != (x.dtype,):
        return None
    return function if x.dtype in dtypes else None


@kept_outside_modes(1)
def _library() -> dict[Algebra, tuple[str, tuple[torch.dtype, ...]]]:
    table = {
        monoids.SUM: ("torch.cumsum", (*_FLOATS, *_SIGNED, torch.bool)),
        monoids.PROD: ("torch.cumprod", (*_FLOATS, *_SIGNED, torch.bool)),
        monoids.MAX: ("torch.cummax().values", (*_FLOATS, *_SIGNED, torch.bool)),
        monoids.MIN: ("torch.cummin().values", (*_FLOATS, *_SIGNED, torch.bool)),
        monoids.CUMMAX: ("torch.cummax", (*_FLOATS, *_SIGNED, torch.bool)),
        monoids.CUMMIN: ("torch.cummin", (*_FLOATS, *_SIGNED, torch.bool)),
        monoids.LOGSUMEXP: ("torch.logcumsumexp", (torch.float32, torch.float64)),
    }
    return {monoid.total: found for monoid, found in table.items()}
