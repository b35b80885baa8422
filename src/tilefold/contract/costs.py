"""What a product costs on a chip: a model of a few numbers, none of them measured at call time.

tiles     a launch + waves of programs x (the way to the first data + steps of K x (loads + products))
finish    a dependent launch + rounds of loads + the partial products' way through the L2
cuBLAS    its least time + its operands' way from memory or its products in tiles of 128 x 128, whichever takes longer

A program waits for its first step, then each step's loads take what a core reads in that time, or a part of the latency. Its
products come after them, unless they are `wgmma`'s, which run beside the loads of a step after the next: a program is a chain
of steps, and few others are there to fill its gaps.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch

from tilefold.contract.plan import Asked, ContractPlan, Finish, Sizes, Tile
from tilefold.planner.device import Device


@dataclass(frozen=True)
class Costs:
    """A chip in the numbers that the choice turns on. The defaults were fitted to an H200 (benchmarks/fit_products.py).

    `launch_us` is a launch in a graph, `dependent_us` one that began early, and `chained_us` what a first launch gains that
    begins beside the end of what ran before. `latency_us` is a program's way to its first data, `load_us` that of a later
    load, `step_us` what a step costs besides. `core_gb_per_s` is what one core reads through the L2, `partial_gb_per_s` what
    of partial products all cores write and read. Of products a second: `core_tflops` of one core with `wgmma`, `mma_tflops`
    with `mma.sync`, `warp_tflops` of one warp's `mma.sync`; `vector_tflops` and `vector_warp_tflops` the same of the vector
    units, for tiles whose threads hold many results. `cublas_us` and `cublas_tflops` (a core) are cuBLAS's.
    """

    launch_us: float = 1.09
    dependent_us: float = 1.12
    chained_us: float = 0.715
    latency_us: float = 0.61
    load_us: float = 0.085
    step_us: float = 0.034
    core_gb_per_s: float = 99.0
    partial_gb_per_s: float = 1470.0
    core_tflops: float = 7.4
    mma_tflops: float = 1.18
    warp_tflops: float = 0.37
    vector_tflops: float = 0.457
    vector_warp_tflops: float = 0.114
    cublas_us: float = 5.35
    cublas_tflops: float = 11.0


LOADS = 32  # that a thread keeps in flight
CORE_WARPS = 64  # that one core holds
CORE_PROGRAMS = 32
PROGRAM_BYTES = 1024  # of shared memory that each program takes besides its own
VECTOR = 16  # times as long cuBLAS takes on the vector units as on tensor cores
FEW = 8  # results of a thread that halve the vector units' rate: each product then waits for loads of shared memory


def slowdown(dtype: torch.dtype, precision: str) -> float:
    """How many times as long a product takes as one of half precision on tensor cores, or of float32 on the vector units."""
    if dtype == torch.float64:
        return 2.0
    if dtype == torch.float32:
        return 1.0 if precision == "ieee" else 2.0
    return 0.5 if dtype.itemsize == 1 else 1.0


def plan_us(plan: ContractPlan, sizes: Sizes, asked: Asked, device: Device, costs: Costs) -> float:
    """What the model expects of a plan, in microseconds of a CUDA graph."""
    if plan.tile is None:
        return _cublas_us(sizes, asked, plan.finish is None, device, costs)
    time_us = _tiles_us(plan.tile, plan.splits, sizes, asked, device, costs)
    time_us += _finish_us(plan.finish, plan.splits, sizes, device, costs) if plan.finish else 0.0
    return time_us - (costs.chained_us if plan.chained else 0.0)


def programs_of(tile: Tile, splits: int, sizes: Sizes) -> int:
    """How many programs the first launch has."""
    return (
        math.ceil(sizes.rows / tile.block_m)
        * math.ceil(sizes.columns / tile.block_n)
        * sizes.batches
        * splits
    )


def _tiles_us(tile: Tile, splits: int, sizes: Sizes, asked: Asked, device: Device, costs: Costs) -> float:
    """A launch of our own tiles: programs in waves, each a chain of steps."""
    bytes_a_step = (tile.block_m + tile.block_n) * tile.block_k * sizes.itemsize
    ahead = max(1, tile.num_stages - 1)
    held = max(1, device.shared_bytes // (bytes_a_step * ahead + PROGRAM_BYTES))
    programs = math.ceil(programs_of(tile, splits, sizes) / device.cores)  # a core
    sharing = min(programs, held, CORE_PROGRAMS, CORE_WARPS // tile.num_warps)
    steps = math.ceil(math.ceil(sizes.depth / tile.block_k) / splits)
    reading_us = bytes_a_step * sharing / costs.core_gb_per_s / 1e3
    products = 2 * tile.block_m * tile.block_n * tile.block_k * sharing
    products_us = products / _tflops(tile, sharing, asked, device, costs) / 1e6
    loads_us = max(costs.load_us / ahead, reading_us)
    beside = ahead > 1 and _is_wgmma(tile, asked, device)
    step_us = max(loads_us, products_us) if beside else loads_us + products_us
    wave_us = costs.latency_us + reading_us + steps * (step_us + costs.step_us)
    return costs.launch_us + max(
        sizes.operand_bytes / device.gb_per_s / 1e3, math.ceil(programs / sharing) * wave_us
    )


def _tflops(tile: Tile, sharing: int, asked: Asked, device: Device, costs: Costs) -> float:
    """What a core multiplies where `sharing` programs meet."""
    warps = tile.num_warps * sharing
    slower = slowdown(asked.dtype, asked.precision)
    if _is_vector(asked):
        results = tile.block_m * tile.block_n / (32 * tile.num_warps)
        rate = min(costs.vector_tflops, costs.vector_warp_tflops * warps) * results / (results + FEW)
    elif _is_wgmma(tile, asked, device):
        rate = costs.core_tflops
    else:
        rate = min(costs.mma_tflops, costs.warp_tflops * warps)
    return rate / slower


def _is_vector(asked: Asked) -> bool:
    """Whether products are made by the vector units."""
    return asked.dtype == torch.float64 or asked.true_float32


def _is_wgmma(tile: Tile, asked: Asked, device: Device) -> bool:
    """Whether Triton takes the instruction that runs beside its warps."""
    return device.capability >= 90 and tile.block_m >= 64 and tile.num_warps >= 4 and not _is_vector(asked)


def _finish_us(finish: Finish, splits: int, sizes: Sizes, device: Device, costs: Costs) -> float:
    """The second launch of our own tiles."""
    begun_us = costs.dependent_us if device.overlaps else costs.launch_us + costs.latency_us
    programs = math.ceil(sizes.outputs / finish.block)
    at_once = finish.lanes if finish.lanes > 1 else LOADS
    rounds = math.ceil(splits / at_once) * math.ceil(programs / (8 * device.cores))
    partial_us = sizes.outputs * splits * 4 / costs.partial_gb_per_s / 1e3
    return begun_us + (rounds - 1) * costs.latency_us + partial_us


def _cublas_us(sizes: Sizes, asked: Asked, finished: bool, device: Device, costs: Costs) -> float:
    """cuBLAS, and the launch after it unless it leaves nothing to do."""
    tiles = math.ceil(sizes.rows / 128) * math.ceil(sizes.columns / 128) * sizes.batches
    idle = math.ceil(tiles / device.cores) * device.cores / tiles  # how far the last wave is from full
    slower = slowdown(asked.dtype, asked.precision)
    if _is_vector(asked):
        slower *= VECTOR
    products = 2 * tiles * 128 * 128 * sizes.depth * slower
    multiplying_us = products * min(idle, 2.0) / (costs.cublas_tflops * device.cores) / 1e6
    after_us = (
        0.0 if finished else costs.launch_us + costs.latency_us + sizes.outputs * 8 / device.gb_per_s / 1e3
    )
    memory_us = sizes.operand_bytes / device.gb_per_s / 1e3
    return costs.cublas_us + max(memory_us, multiplying_us) + after_us
