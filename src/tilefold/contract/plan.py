"""How a product runs: three strategies, tiles and splits, from a cost model. Pure: nothing is measured or searched.

strategy   launches   when
cublas     2 (1)      M x N fills the chip: cuBLAS leaves float32 products, a second launch finishes them
whole      1          some tiles, K not split: a program finishes what it accumulated
split      2          few tiles, large K: programs share K and leave partial products, a second launch, begun early,
                      folds them in a fixed order and finishes
"""

from __future__ import annotations

import functools
import itertools
import math
from collections.abc import Iterator
from dataclasses import dataclass, replace

import torch

from tilefold.contract.operands import Contraction
from tilefold.planner.device import NOMINAL, Device
from tilefold.planner.plan import count


@dataclass(frozen=True)
class Tile:
    """What one program multiplies: [block_m, block_k] by [block_k, block_n], `num_stages` steps of K on their way."""

    block_m: int
    block_n: int
    block_k: int
    num_warps: int
    num_stages: int


@dataclass(frozen=True)
class Finish:
    """The second launch: a program folds `block` neighbouring results, `lanes` partial products of each at a time."""

    block: int
    lanes: int
    num_warps: int


@dataclass(frozen=True)
class ContractPlan:
    """How one product runs. Equal plans for equal shapes, dtypes and chips.

    `splits` programs share the K of a tile. `finish` is the launch that ends a "split" or "cublas" product; `overlap` begins
    it early (programmatic dependent launch); `chained` begins the first launch early too, beside the end of whatever ran
    before, and has it wait there before it reads. `time_us` is what the cost model expects, `reason` its words.
    """

    backend: str
    strategy: str
    tile: Tile | None = None
    splits: int = 1
    finish: Finish | None = None
    overlap: bool = False
    chained: bool = False
    precision: str = "ieee"
    guarantee: str = "run_to_run"
    time_us: float = 0.0
    reason: str = ""

    @property
    def launches(self) -> int:
        """How many kernels one call launches."""
        return {"cublas": 2, "split": 2, "whole": 1}.get(self.strategy, 0)

    def __str__(self) -> str:
        lines = [f"{self.backend}: {self.strategy}{f', {self.reason}' if self.reason else ''}"]
        if self.tile is not None:
            t = self.tile
            lines.append(
                f"  1. tiles of {t.block_m} x {t.block_n} results, {t.block_k} of K a step, "
                f"{count(self.splits, 'split')}, {count(t.num_warps, 'warp')}, {t.num_stages} steps on their way"
            )
        if self.finish is not None:
            f = self.finish
            lines.append(
                f"  2. {count(f.block, 'result')} x {count(f.lanes, 'lane')} a program, {count(f.num_warps, 'warp')}"
            )
        if self.overlap:
            lines.append("  launch 2 starts early (programmatic dependent launch)")
        return "\n".join(lines)


def plan_product(
    problem: Contraction,
    device: Device,
    *,
    precision: str = "ieee",
    guarantee: str = "run_to_run",
    cublas: bool = True,
) -> ContractPlan:
    """How to multiply on `device`; `cublas`: whether cuBLAS has this product in this precision.

    With "batch_invariant" the plan depends on K, N and the dtype alone: never cuBLAS, which chooses by M.
    """
    rows, batches, chip = problem.rows.size, problem.batches, device
    if guarantee == "batch_invariant":
        rows, batches, chip, cublas = INVARIANT_ROWS, 1, NOMINAL, False
    plan = _cheapest(
        rows, problem.columns.size, problem.depth.size, batches, problem.dtypes[0], chip, precision, cublas
    )
    return replace(
        plan, overlap=plan.strategy == "split" and device.overlaps, precision=precision, guarantee=guarantee
    )


INVARIANT_ROWS = 64  # for so many rows "batch_invariant" plans, whatever there are

# The chip in numbers that the choice turns on. Orders of magnitude of an H200's; only ratios matter to the choice.
LAUNCH_US = 0.7  # a launch in a graph
DEPENDENT_US = 0.4  # a launch that began early
LATENCY_US = 0.8  # from a load to its data, beyond the L2
CORE_GB_PER_S = 60.0  # what one core reads through the L2
CORE_TFLOPS = 4.0  # half-precision products of one core in tiles of our size
CORE_BYTES = 200 * 1024  # shared memory of a core
CORE_WARPS = 32  # that one core holds of such programs
CUBLAS_US = 6.0  # cuBLAS's least, of small products
CUBLAS_TFLOPS = 5.0  # of one core
PARTIAL_BYTES = 64 << 20  # of partial products: more than the L2 keeps pays twice

_BLOCKS = (16, 32, 64, 128)
_BLOCKS_K = (32, 64, 128, 256)
_SPLITS = (1, 2, 4, 8, 12, 16, 24, 32, 48, 64, 96, 128, 192, 256)


@functools.lru_cache(maxsize=4096)
def _cheapest(
    rows: int,
    columns: int,
    depth: int,
    batches: int,
    dtype: torch.dtype,
    device: Device,
    precision: str,
    cublas: bool,
) -> ContractPlan:
    plans = candidates((rows, columns, depth, batches), dtype, device, precision, cublas)
    best = min(plans, key=lambda p: p.time_us)
    return replace(best, reason=f"{rows} x {columns} results of K = {depth}, about {best.time_us:.1f} us")


def candidates(
    sizes: tuple[int, int, int, int], dtype: torch.dtype, device: Device, precision: str, cublas: bool
) -> list[ContractPlan]:
    """Every plan that is weighed for (M, N, K, batches), with the time the cost model expects: what a search would time.

    `overlap` and `precision` are still to be set, as `plan_product` does.
    """
    rows, columns, depth, batches = sizes
    rate = _slowdown(dtype, precision)
    plans = [
        _planned(tile, splits, sizes, dtype.itemsize, rate, device)
        for tile in _tiles(rows, columns, depth, dtype)
        for splits in _splits_of(depth, tile)
        if splits == 1 or splits * batches * rows * columns * 4 <= PARTIAL_BYTES
    ]
    return [*plans, _cublas(sizes, dtype.itemsize, rate, device)] if cublas else plans


def _slowdown(dtype: torch.dtype, precision: str) -> float:
    """How many times as long a product takes as one of half precision."""
    if dtype == torch.float64:
        return 16.0
    if dtype == torch.float32:
        return 16.0 if precision == "ieee" else 2.0
    return 0.5 if dtype.itemsize == 1 else 1.0


def _tiles(rows: int, columns: int, depth: int, dtype: torch.dtype) -> Iterator[Tile]:
    """Tiles no larger than the product needs, with as many steps on their way as shared memory holds."""
    most_k = 64 if dtype == torch.float64 else max(_BLOCKS_K)
    for block_m, block_n, block_k in itertools.product(_BLOCKS, _BLOCKS, _BLOCKS_K):
        if block_k > most_k or any(
            block > least and block >= 2 * size
            for block, least, size in ((block_m, 16, rows), (block_n, 16, columns), (block_k, 32, depth))
        ):
            continue
        bytes_a_step = (block_m + block_n) * block_k * dtype.itemsize
        stages = min(4, CORE_BYTES // 2 // bytes_a_step)
        if stages >= 2:
            yield Tile(block_m, block_n, block_k, _warps(block_m * block_n, block_k), stages)


def _warps(results: int, block_k: int) -> int:
    if results >= 128 * 128:
        return 8
    return 4 if results >= 1024 else 2 if block_k >= 128 else 1


def _splits_of(depth: int, tile: Tile) -> list[int]:
    """Splits that leave none without elements, each once."""
    steps = math.ceil(depth / tile.block_k)
    return sorted({math.ceil(steps / math.ceil(steps / s)) for s in _SPLITS if s <= steps} or {1})


def _planned(
    tile: Tile, splits: int, sizes: tuple[int, int, int, int], itemsize: int, rate: float, device: Device
) -> ContractPlan:
    """A product in our own tiles: programs in waves, each as slow as its loads' latency, its core or its memory."""
    rows, columns, depth, batches = sizes
    tiles = math.ceil(rows / tile.block_m) * math.ceil(columns / tile.block_n) * batches
    bytes_a_step = (tile.block_m + tile.block_n) * tile.block_k * itemsize
    together = max(1, min(CORE_WARPS // tile.num_warps, CORE_BYTES // (bytes_a_step * tile.num_stages)))
    programs = tiles * splits
    waves = math.ceil(programs / (device.cores * together))
    sharing = min(together, math.ceil(programs / device.cores))
    steps = math.ceil(math.ceil(depth / tile.block_k) / splits)
    loading_us = bytes_a_step * sharing / CORE_GB_PER_S / 1e3
    multiplying_us = 2 * tile.block_m * tile.block_n * tile.block_k * sharing * rate / CORE_TFLOPS / 1e6
    step_us = max(LATENCY_US / (tile.num_stages - 1), loading_us, multiplying_us)
    memory_us = (rows + columns) * depth * batches * itemsize / device.gb_per_s / 1e3
    time_us = LAUNCH_US + max(memory_us, waves * (LATENCY_US + steps * step_us))
    if splits == 1:
        return ContractPlan("triton", "whole", tile, time_us=time_us)
    outputs = rows * columns * batches
    finish = finish_of(outputs, splits)
    rounds = math.ceil(splits / finish.lanes) * math.ceil(outputs / finish.block / (8 * device.cores))
    partial_us = 2 * outputs * splits * 4 / (CORE_GB_PER_S * device.cores) / 1e3
    time_us += (DEPENDENT_US if device.overlaps else LAUNCH_US) + rounds * LATENCY_US + partial_us
    return ContractPlan("triton", "split", tile, splits, finish, time_us=time_us)


def _cublas(sizes: tuple[int, int, int, int], itemsize: int, rate: float, device: Device) -> ContractPlan:
    rows, columns, depth, batches = sizes
    memory_us = (rows + columns) * depth * batches * itemsize / device.gb_per_s / 1e3
    tiles = math.ceil(rows / 128) * math.ceil(columns / 128) * batches
    waves = math.ceil(tiles / device.cores) * device.cores / tiles  # how far the last wave is from full
    padded = 2 * tiles * 128 * 128 * depth * rate
    multiplying_us = padded * min(waves, 2.0) / (CUBLAS_TFLOPS * device.cores) / 1e6
    outputs = rows * columns * batches
    finishing_us = LAUNCH_US + outputs * 8 / device.gb_per_s / 1e3
    time_us = CUBLAS_US + max(memory_us, multiplying_us) + finishing_us
    return ContractPlan("triton", "cublas", None, 1, finish_of(outputs, 1), time_us=time_us)


def finish_of(outputs: int, splits: int) -> Finish:
    """All splits of some results in one tile where they fit: the launch is a matter of latency."""
    lanes = 1 << min(7, (splits - 1).bit_length())
    block = max(32, min(1024, 4096 // lanes))
    if outputs >= 1 << 20:
        return Finish(block, lanes, 4)
    block = min(block, 32 if lanes >= 32 else 128)
    return Finish(block, lanes, max(1, min(4, block * lanes // 256)))
