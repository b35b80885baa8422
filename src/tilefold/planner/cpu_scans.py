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

# Operations take a few us each beside their elements, and a tile's states are to stay in a core's L2: between 2,000 and
# 16,000 lanes a scan took least time with these. They are no power of two: lanes side by side would share cache lines.
MOST_STEPS = 16  # no record of others
MANY_LANES = 8000  # docs/experiments/cpu-folds.md
FEW_ELEMENTS = 16384  # up to here no other thread is woken (not measured)
MOST_THREADS = 4  # more would wait for Python (docs/experiments/cpu-folds.md)


def cpu_scan(length: int, rows: int, guarantee: str, threads: int = 1) -> Plan:
    """A loop over tiles; with "batch_invariant" nothing but how many rows are taken at a time follows the number of rows."""
    alone = guarantee == "batch_invariant"
    beside = 1 if alone else max(1, min(rows, MANY_LANES))
    steps = max(1, min(MOST_STEPS, length, length * beside // MANY_LANES))
    lanes = max(1, min(math.ceil(length / steps), MANY_LANES // beside))
    threads = min(threads, MOST_THREADS) if length * rows > FEW_ELEMENTS else 1
    tile = CpuTile(steps, lanes, max(1, MANY_LANES // lanes), threads)
    return Plan("cpu", (Launch("scan", tile, (), ()),), (), (), guarantee, "tiles", "")


_FLOATS = (torch.float16, torch.bfloat16, torch.float32, torch.float64)
_SIGNED = (torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64)


def library_scan(tensors: Sequence[torch.Tensor], program: Program, guarantee: str) -> str | None:
    """The name of torch's function on a CPU where it has exactly this scan, else None.

    Torch walks each row from its beginning, so that a row's bits depend on nothing else.
    """
    found = _library().get(program.algebra)
    if found is None or program.elements != (tensors[0].dtype,):
        return None
    function, dtypes = found
    return function if tensors[0].dtype in dtypes else None


@kept_outside_modes(1)
def _library() -> dict[Algebra, tuple[str, tuple[torch.dtype, ...]]]:
    table = {
        catalogue.SUM: ("torch.cumsum", (*_FLOATS, *_SIGNED, torch.bool)),
        catalogue.PROD: ("torch.cumprod", (*_FLOATS, *_SIGNED, torch.bool)),
        catalogue.CUMMAX: ("torch.cummax", (*_FLOATS, *_SIGNED, torch.bool)),
        catalogue.CUMMIN: ("torch.cummin", (*_FLOATS, *_SIGNED, torch.bool)),
        catalogue.LOGSUMEXP: ("torch.logcumsumexp", (torch.float32, torch.float64)),
    }
    return {monoid.total: found for monoid, found in table.items()}
