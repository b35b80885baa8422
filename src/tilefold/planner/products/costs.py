"""The time that a product takes on a chip, by a model with a few numbers. A call measures none of them.

tiles     a launch + waves of programs x (the first loads' latency + steps of K x (loads + products))
finish    a dependent launch + one program's reads + the partial products' transfer through the L2
cuBLAS    its least time + the longer of its reads from memory and its products in tiles of 128 x 128

A program waits for its first loads. Then each step takes the time in which an SM reads the step's bytes, or a part of the
latency. The step's products follow its loads; `wgmma` products run beside the loads of the step after the next. Products
on one accumulator wait for each other, so a program is a chain of steps. Where programs share an SM, the model counts the
longer of this chain and of the SM's work for all of them, and a part of the shorter.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

import torch

from tilefold.planner.device import Device
from tilefold.planner.products.plan import Asked, Candidate, Finish, Sizes, Tile
from tilefold.planner.sizes import VECTOR_BYTES


@dataclass(frozen=True)
class Costs:
    """The model's numbers of a chip. The defaults are an H200's. They were fitted in four turns: to the times of 20,000
    plans of two searches, with most weight on plans near the fastest; launches, loads in flight, partial products, copies
    and cuBLAS to cold times of 600 plans of random products and of the suites (docs/experiments/products.md#drawn); the
    rates of the L2 and of SMs, and partial products, also to 400 plans of large products on an H100
    (docs/experiments/products.md#large); results to 660 plans of products of short and middle K
    (docs/experiments/products.md#short). benchmarks/fit_products.py fits a chip.

    Launches: `launch_us` is the time of a first launch with a cold L2, `next_us` of a later one, `dependent_us` of one that
    begins early. A first launch that begins before earlier work ends gains `chained_us`, or `crowded_us` if its programs
    share SMs. A launch loses `full_us` if it leaves nearly no SM free, `share_us` for each further program of an SM,
    `warp_us` for each warp.

    Loads: `latency_us` is the time to a program's first data, `waited` the part of the steps in flight that the program waits
    for, `load_us` the latency of a later load, `step_us` a step's other cost, `core_gb_per_s` an SM's reads through the L2.
    `flight_us` is the latency when all SMs read: the bytes in flight limit their rate, up to `l2_gb_per_s`. Each piece of
    memory costs `piece_bytes` more than it has, unless the program reads its neighbours too. Elements that are loaded one by
    one take a thread `element_us` each and an SM `issue_us` a warp. Then no later step is in flight, and a thread waits once
    for `loads_at_once` elements.

    Products of an SM a second: `core_tflops` with `wgmma`, `mma_tflops` with `mma.sync` (a warp has a quarter of it), and on
    the vector units `vector_tflops`, of one warp `vector_warp_tflops`, for threads that hold many results; `few` results of a
    thread halve it. `wgmma_us` and `mma_us` are the latencies of a product of 16 of K. `unhidden` is the part that counts of
    the shorter of the chain and the SM's work.

    Finish: all SMs write and read partial products at `partial_gb_per_s`, one program reads them at `finish_gb_per_s`, and
    its warps exchange sums in `exchange_us`. `cublas_us` and `cublas_tflops` (an SM) are cuBLAS's own. Its splits take
    `cublas_deep_us` times a power of K. It reads in `cublas_memory` times the least time, and multiplies in `cublas_loose`
    times its own where elements are loaded one by one, in `cublas_narrow` times where rows are no multiples of 16 bytes.
    All SMs copy operands into rows of whole vectors at `pack_gb_per_s`, with `pack_us` of latency
    (docs/experiments/products.md#packed). A launch writes results at `results_gb_per_s`, and takes `results_odd` times as
    long if some rows of results do not begin at vectors.
    """

    launch_us: float = 4.77
    next_us: float = 2.6
    dependent_us: float = 1.22
    chained_us: float = 0.45
    crowded_us: float = 0.485
    full_us: float = 0.105
    share_us: float = 0.036
    warp_us: float = 0.019
    latency_us: float = 0.593
    waited: float = 0.0291
    load_us: float = 0.073
    step_us: float = 0.024
    flight_us: float = 0.75
    piece_bytes: float = 40.0
    element_us: float = 0.006
    issue_us: float = 0.0035
    core_gb_per_s: float = 71.1
    core_tflops: float = 5.45
    mma_tflops: float = 2.4
    vector_tflops: float = 0.337
    vector_warp_tflops: float = 0.099
    few: float = 4.13
    wgmma_us: float = 0.008
    mma_us: float = 0.022
    unhidden: float = 0.4815
    l2_gb_per_s: float = 6808.0
    partial_gb_per_s: float = 742.8
    finish_gb_per_s: float = 58.5
    exchange_us: float = 0.106
    cublas_us: float = 6.955
    cublas_tflops: float = 6.729
    cublas_loose: float = 4.4
    cublas_narrow: float = 3.7
    cublas_deep_us: float = 0.1792
    cublas_memory: float = 1.528
    pack_us: float = 1.37
    pack_gb_per_s: float = 2245.0
    results_gb_per_s: float = 3700.0
    results_odd: float = 2.2
    loads_at_once: float = 40.0


# Limits of the hardware.
CORE_WARPS = 64  # warps that one SM holds
CORE_PROGRAMS = 32
PROGRAM_BYTES = 1024  # of shared memory that CUDA reserves for each program
MMA_DEPTH = 16  # length along K of one product of the tensor cores

# No record of each: set beside the numbers of `Costs` (docs/experiments/products.md#model), not fitted with them.
VECTOR = 16  # cuBLAS's time on the vector units over its time on tensor cores
LOOSE = 3.0  # factor of cuBLAS's reads and splits where elements are loaded one by one
IDLE = 1.25  # factor of cuBLAS's products at most where tiles leave SMs idle: it splits K there
CUBLAS_DEEP = 0.3  # the power of K in the time of cuBLAS's splits


def slowdown(dtype: torch.dtype, precision: str) -> float:
    """A product's time over that of half precision on tensor cores, or of float32 on the vector units."""
    if dtype == torch.float64:
        return 2.0
    if dtype == torch.float32:
        return 1.0 if precision == "ieee" else 2.0
    return 0.5 if dtype.itemsize == 1 else 1.0


def plan_us(plan: Candidate, sizes: Sizes, asked: Asked, device: Device, costs: Costs) -> float:
    """A plan's time by the model, in microseconds, as a CUDA graph would take."""
    if plan.tile is None:
        return _cublas_us(sizes, asked, plan.finish is None, device, costs)
    packing_us = 0.0
    if any(plan.packed):
        packing_us = _packing_us(plan.packed, sizes, device, costs)
        left = tuple(loose and not packed for loose, packed in zip(sizes.loose, plan.packed, strict=True))
        sizes = replace(sizes, loose=(left[0], left[1]))
    time_us = packing_us + _tiles_us(plan.tile, plan.splits, sizes, asked, device, costs)
    time_us += _finish_us(plan.finish, plan.splits, sizes, device, costs) if plan.finish else 0.0
    crowded = share_of(plan.tile, plan.splits, sizes, device) > 1
    return time_us - ((costs.crowded_us if crowded else costs.chained_us) if plan.chained else 0.0)


def _packing_us(packed: tuple[bool, bool], sizes: Sizes, device: Device, costs: Costs) -> float:
    """The time of the launch that copies operands into rows of whole vectors before the tiles."""
    extents = [
        extent for extent, is_packed in zip((sizes.rows, sizes.columns), packed, strict=True) if is_packed
    ]
    copied = 2 * sum(extents) * sizes.depth * sizes.itemsize
    begun_us = costs.dependent_us if device.overlaps else costs.next_us
    return begun_us + costs.pack_us + copied / costs.pack_gb_per_s / 1e3


def programs_of(tile: Tile, splits: int, sizes: Sizes) -> int:
    """How many programs the first launch has."""
    return (
        math.ceil(sizes.rows / tile.block_m)
        * math.ceil(sizes.columns / tile.block_n)
        * sizes.batches
        * splits
    )


def share_of(tile: Tile, splits: int, sizes: Sizes, device: Device) -> int:
    """The number of its programs that an SM runs."""
    return math.ceil(programs_of(tile, splits, sizes) / device.sms)


def _tiles_us(tile: Tile, splits: int, sizes: Sizes, asked: Asked, device: Device, costs: Costs) -> float:
    """The time of a launch of our own tiles: programs in waves, each a chain of steps."""
    bytes_a_step = tile.step_bytes(sizes.itemsize)
    loose = tile.loose_elements(sizes)
    ahead = 1 if loose else max(1, tile.num_stages - 1)
    held = max(1, device.shared_bytes // (bytes_a_step * ahead + PROGRAM_BYTES))
    share = share_of(tile, splits, sizes, device)
    sharing = min(share, held, CORE_PROGRAMS, CORE_WARPS // tile.num_warps)
    steps = math.ceil(math.ceil(sizes.depth / tile.block_k) / splits)
    reading_us = bytes_a_step / costs.core_gb_per_s / 1e3
    loads_us = max(costs.load_us / ahead, reading_us)
    alone_us, together_us = _products_us(tile, sharing, asked, device, costs)
    beside = ahead > 1 and _is_wgmma(tile, asked, device)
    step_us = (max(loads_us, alone_us) if beside else loads_us + alone_us) + costs.step_us
    if loose:
        each = loose / (32 * tile.num_warps)
        step_us += costs.latency_us * max(1.0, each / costs.loads_at_once) + each * costs.element_us
    if sharing > 1:
        needed_us = max(sharing * reading_us, together_us, sharing * loose / 32 * costs.issue_us)
        step_us = max(step_us, needed_us) + costs.unhidden * min(step_us, needed_us)
    wave_us = costs.latency_us + costs.waited * min(ahead, steps) * sharing * reading_us + steps * step_us
    wave_us += costs.share_us * (sharing - 1) + costs.warp_us * tile.num_warps
    full_us = costs.full_us * (programs_of(tile, splits, sizes) / (share * device.sms)) ** 4
    flying = (
        min(programs_of(tile, splits, sizes), sharing * device.sms)
        * min(ahead, steps)
        * _clipped_bytes(tile, sizes)
    )
    through = programs_of(tile, splits, sizes) * steps * _clipped_bytes(tile, sizes)
    memory_us = max(
        _read_bytes(tile, sizes, costs) / device.gb_per_s / 1e3,
        through * max(1 / costs.l2_gb_per_s / 1e3, costs.flight_us / max(1, flying)),
    )
    results_us = _results_us(sizes, costs) if splits == 1 else 0.0
    return costs.launch_us + max(memory_us, math.ceil(share / sharing) * wave_us) + full_us + results_us


def _results_us(sizes: Sizes, costs: Costs) -> float:
    """The time in which results are written: longer if some rows do not begin at vectors."""
    row_bytes = sizes.columns * sizes.itemsize
    slower = costs.results_odd if row_bytes % VECTOR_BYTES else 1.0
    return slower * sizes.outputs * sizes.itemsize / costs.results_gb_per_s / 1e3


def _read_bytes(tile: Tile, sizes: Sizes, costs: Costs) -> float:
    """The bytes that memory must deliver. A short piece counts as more, unless the program reads a neighbouring piece."""
    sides = ((sizes.rows, tile.block_m), (sizes.columns, tile.block_n))
    pieces = [
        block if across else tile.block_k for (_, block), across in zip(sides, sizes.across, strict=True)
    ]
    elements = sum(
        extent * (sizes.itemsize + costs.piece_bytes / piece * (block < extent))
        for (extent, block), piece in zip(sides, pieces, strict=True)
    )
    return elements * sizes.depth * sizes.batches


def _clipped_bytes(tile: Tile, sizes: Sizes) -> int:
    """The bytes that a program reads in a step, of rows and columns that exist."""
    return (min(tile.block_m, sizes.rows) + min(tile.block_n, sizes.columns)) * tile.block_k * sizes.itemsize


def _products_us(tile: Tile, sharing: int, asked: Asked, device: Device, costs: Costs) -> tuple[float, float]:
    """The time of a step's products: of one program alone, and of `sharing` programs that only the SM limits."""
    products = 2 * tile.block_m * tile.block_n * tile.block_k
    warps = tile.num_warps
    slower = slowdown(asked.dtype, asked.precision)
    if is_vector(asked):
        results = tile.block_m * tile.block_n / (32 * warps)  # of a thread
        core, warp, way_us = costs.vector_tflops, costs.vector_warp_tflops, 0.0
        slower *= (results + costs.few) / results
    elif _is_wgmma(tile, asked, device):
        core, warp, way_us = costs.core_tflops, costs.core_tflops, costs.wgmma_us
    else:
        core, warp, way_us = costs.mma_tflops, costs.mma_tflops / 4, costs.mma_us
    one_us, all_us = (
        number * products * slower / min(core, warp * warps * number) / 1e6 for number in (1, sharing)
    )
    return max(one_us, tile.block_k / MMA_DEPTH * way_us), all_us


def is_vector(asked: Asked) -> bool:
    """Whether the vector units make the products."""
    return asked.dtype == torch.float64 or asked.true_float32


def _is_wgmma(tile: Tile, asked: Asked, device: Device) -> bool:
    """Whether Triton uses `wgmma`, which runs beside its warps."""
    return device.capability >= 90 and tile.block_m >= 64 and tile.num_warps >= 4 and not is_vector(asked)


def _finish_us(finish: Finish, splits: int, sizes: Sizes, device: Device, costs: Costs) -> float:
    """The time of the second launch of our own tiles."""
    begun_us = costs.dependent_us if device.overlaps else costs.next_us + costs.latency_us
    rounds = math.ceil(math.ceil(sizes.outputs / finish.block) / (8 * device.sms))
    reading_us = rounds * finish.block * splits * 4 / costs.finish_gb_per_s / 1e3
    partial_us = sizes.outputs * splits * 4 / costs.partial_gb_per_s / 1e3
    return begun_us + reading_us + partial_us + (costs.exchange_us if finish.num_warps > 1 else 0.0)


def _cublas_us(sizes: Sizes, asked: Asked, finished: bool, device: Device, costs: Costs) -> float:
    """The time of cuBLAS, and of the launch that applies the epilogue after it, if there is one."""
    tiles = math.ceil(sizes.rows / 128) * math.ceil(sizes.columns / 128) * sizes.batches
    idle = math.ceil(tiles / device.sms) * device.sms / tiles  # the places of all waves over tiles
    slower = slowdown(asked.dtype, asked.precision)
    if is_vector(asked):
        slower *= VECTOR
    products = 2 * tiles * 128 * 128 * sizes.depth * slower
    multiplying_us = products * min(idle, IDLE) / (costs.cublas_tflops * device.sms) / 1e6
    after_us = 0.0 if finished else costs.next_us + sizes.outputs * 8 / device.gb_per_s / 1e3
    memory_us = costs.cublas_memory * sizes.operand_bytes / device.gb_per_s / 1e3
    deep_us = costs.cublas_deep_us
    if any(sizes.loose):
        memory_us, multiplying_us = LOOSE * memory_us, costs.cublas_loose * multiplying_us
        deep_us *= LOOSE
    elif any(sizes.narrow) and sizes.itemsize == 2:
        multiplying_us *= costs.cublas_narrow
    deep_us *= math.pow(sizes.depth, CUBLAS_DEEP)
    return costs.cublas_us + deep_us + max(memory_us, multiplying_us) + _results_us(sizes, costs) + after_us
