"""How a scan runs on a CPU: as a function of torch's own where it is exactly that, else in tiles of a loop."""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch

from tilefold.algebra import catalogue
from tilefold.algebra.algebra import Algebra
from tilefold.algebra.program import Program
from tilefold.caching import kept_outside_modes
from tilefold.planner.plan import Launch, Plan
from tilefold.planner.stages.cpu import CpuTile

# An operation takes a us beside its elements, and a tile's states are to stay in a core's cache
# (docs/experiments/cpu-scans.md). Where rows lie apart their number is no power of two: lanes would share cache lines.
STEPS = 16
MANY_LANES = 8000
MANY_ROWS = 2000  # side by side, each is a lane of its own
MOST_STEPS = 64  # of a row that is one lane
FEW_ELEMENTS = 16384  # up to here no other thread is woken (not measured)
MOST_THREADS = 4  # more would wait for Python (docs/experiments/cpu-folds.md)


def cpu_scan(length: int, rows: int, guarantee: str, threads: int = 1, inner: int = 1) -> Plan:
    """A loop over tiles; with "batch_invariant" nothing but how many rows are taken at a time follows the number of rows.

    `inner` rows are neighbours in memory.
    """
    alone = guarantee == "batch_invariant"
    if inner > 1 and not alone:
        beside = max(1, min(rows, MANY_LANES))
        steps = max(1, min(STEPS, length, length * beside // MANY_LANES))
        lanes = max(1, min(math.ceil(length / steps), MANY_LANES // beside))
    elif rows >= MANY_ROWS and not alone:
        steps, lanes = min(length, MOST_STEPS), 1
    else:
        steps = _steps(length, length * rows <= FEW_ELEMENTS and not alone)
        lanes = min(math.ceil(length / steps), MANY_LANES)
    threads = min(threads, MOST_THREADS) if length * rows > FEW_ELEMENTS else 1
    shares = 1 if threads == 1 else 2 * threads if inner == 1 else threads
    tile = CpuTile(steps, lanes, max(1, min(MANY_LANES // lanes, math.ceil(rows / shares))), threads)
    return Plan("cpu", (Launch("scan", tile, (), ()),), (), (), guarantee, "tiles", "")


def _steps(length: int, few: bool) -> int:
    """Neighbours in a lane: so many that fill each lane, if some do."""
    most = 4 if few else STEPS
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
        catalogue.SUM: ("torch.cumsum", (*_FLOATS, *_SIGNED, torch.bool)),
        catalogue.PROD: ("torch.cumprod", (*_FLOATS, *_SIGNED, torch.bool)),
        catalogue.MAX: ("torch.cummax().values", (*_FLOATS, *_SIGNED, torch.bool)),
        catalogue.MIN: ("torch.cummin().values", (*_FLOATS, *_SIGNED, torch.bool)),
        catalogue.CUMMAX: ("torch.cummax", (*_FLOATS, *_SIGNED, torch.bool)),
        catalogue.CUMMIN: ("torch.cummin", (*_FLOATS, *_SIGNED, torch.bool)),
        catalogue.LOGSUMEXP: ("torch.logcumsumexp", (torch.float32, torch.float64)),
    }
    return {monoid.total: found for monoid, found in table.items()}
