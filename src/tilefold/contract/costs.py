"""What a product costs on a chip: a model of a few numbers, none of them measured at call time.

tiles     launch + waves of programs x steps of K x the slowest of latency, the core's loads, its products
finish    a dependent launch + rounds of loads + the partial products' way through the L2
cuBLAS    its least time, or its products in tiles of 128 x 128
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch

from tilefold.contract.plan import Asked, ContractPlan, Finish, Sizes, Tile
from tilefold.planner.device import Device


@dataclass(frozen=True)
class Costs:
    """A chip in the numbers that the choice turns on. The defaults are orders of magnitude of an H200's.

    `launch_us` is a launch in a graph, `dependent_us` one that began early, `latency_us` the way from a load to its data
    beyond the L2; `core_gb_per_s` what one core reads through the L2, `core_tflops` its half-precision products in tiles of
    our size; `cublas_us` and `cublas_tflops` the same of cuBLAS.
    """

    launch_us: float = 0.7
    dependent_us: float = 0.4
    latency_us: float = 0.8
    core_gb_per_s: float = 60.0
    core_tflops: float = 4.0
    cublas_us: float = 6.0
    cublas_tflops: float = 5.0


LOADS = 32  # that a thread keeps in flight
CORE_BYTES = 200 * 1024  # shared memory of a core
CORE_WARPS = 32  # that one core holds of such programs


def slowdown(dtype: torch.dtype, precision: str) -> float:
    """How many times as long a product takes as one of half precision."""
    if dtype == torch.float64:
        return 16.0
    if dtype == torch.float32:
        return 16.0 if precision == "ieee" else 2.0
    return 0.5 if dtype.itemsize == 1 else 1.0


def plan_us(plan: ContractPlan, sizes: Sizes, asked: Asked, device: Device, costs: Costs) -> float:
    """What the model expects of a plan, in microseconds of a CUDA graph."""
    rate = slowdown(asked.dtype, asked.precision)
    if plan.tile is None:
        return _cublas_us(sizes, rate, plan.finish is None, device, costs)
    time_us = _tiles_us(plan.tile, plan.splits, sizes, rate, device, costs)
    return time_us + (_finish_us(plan.finish, plan.splits, sizes, device, costs) if plan.finish else 0.0)


def _tiles_us(tile: Tile, splits: int, sizes: Sizes, rate: float, device: Device, costs: Costs) -> float:
    """A launch of our own tiles: programs in waves, each as slow as its loads' latency, its core or its memory."""
    tiles = math.ceil(sizes.rows / tile.block_m) * math.ceil(sizes.columns / tile.block_n) * sizes.batches
    bytes_a_step = (tile.block_m + tile.block_n) * tile.block_k * sizes.itemsize
    together = max(1, min(CORE_WARPS // tile.num_warps, CORE_BYTES // (bytes_a_step * tile.num_stages)))
    programs = tiles * splits
    waves = math.ceil(programs / (device.cores * together))
    sharing = min(together, math.ceil(programs / device.cores))
    steps = math.ceil(math.ceil(sizes.depth / tile.block_k) / splits)
    loading_us = bytes_a_step * sharing / costs.core_gb_per_s / 1e3
    products = 2 * tile.block_m * tile.block_n * tile.block_k * sharing
    step_us = max(
        costs.latency_us / max(1, tile.num_stages - 1), loading_us, products * rate / costs.core_tflops / 1e6
    )
    memory_us = sizes.operand_bytes / device.gb_per_s / 1e3
    return costs.launch_us + max(memory_us, waves * (costs.latency_us + steps * step_us))


def _finish_us(finish: Finish, splits: int, sizes: Sizes, device: Device, costs: Costs) -> float:
    """The second launch of our own tiles."""
    begun_us = costs.dependent_us if device.overlaps else costs.launch_us
    programs = math.ceil(sizes.outputs / finish.block)
    at_once = finish.lanes if finish.lanes > 1 else LOADS
    rounds = math.ceil(splits / at_once) * math.ceil(programs / (8 * device.cores))
    partial_us = 2 * sizes.outputs * splits * 4 / (costs.core_gb_per_s * device.cores) / 1e3
    return begun_us + rounds * costs.latency_us + partial_us


def _cublas_us(sizes: Sizes, rate: float, finished: bool, device: Device, costs: Costs) -> float:
    """cuBLAS, and the launch after it unless it leaves nothing to do."""
    tiles = math.ceil(sizes.rows / 128) * math.ceil(sizes.columns / 128) * sizes.batches
    idle = math.ceil(tiles / device.cores) * device.cores / tiles  # how far the last wave is from full
    products = 2 * tiles * 128 * 128 * sizes.depth * rate
    multiplying_us = products * min(idle, 2.0) / (costs.cublas_tflops * device.cores) / 1e6
    after_us = 0.0 if finished else costs.launch_us + sizes.outputs * 8 / device.gb_per_s / 1e3
    memory_us = sizes.operand_bytes / device.gb_per_s / 1e3
    return costs.cublas_us + max(memory_us, multiplying_us) + after_us
