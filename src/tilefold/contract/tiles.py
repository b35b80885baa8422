"""Which tiles, splits of K and second launches are weighed for a product."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator

import torch

from tilefold.contract.costs import programs_of
from tilefold.contract.plan import Asked, Finish, Sizes, Tile
from tilefold.planner.device import Device
from tilefold.planner.view import power_above

ROW_BLOCK = 8192  # results of all lanes that a program which folds rows holds, unless one row is longer
STAGED_BYTES = 100 * 1024  # of the steps that are on their way

SPILLING = 4096  # operands a step of float32's true products: unrolled on the vector units, more outgrow the registers

_BLOCKS = (16, 32, 64, 128)
_BLOCKS_K = (32, 64, 128, 256)
_SPLITS = (1, 2, 4, 8, 12, 16, 24, 32, 48, 64, 96, 128, 192, 256)


def tiles_of(sizes: Sizes, asked: Asked) -> Iterator[Tile]:
    """Tiles no larger than the product needs, with as many steps on their way as shared memory holds."""
    most_k = 64 if asked.dtype == torch.float64 else max(_BLOCKS_K)
    for block_m, block_n, block_k in itertools.product(_BLOCKS, _BLOCKS, _BLOCKS_K):
        if (
            block_k > most_k
            or (asked.true_float32 and (block_m + block_n) * block_k > SPILLING)
            or any(
                block > least and block >= 2 * size
                for block, least, size in (
                    (block_m, 16, sizes.rows),
                    (block_n, 16, sizes.columns),
                    (block_k, 32, sizes.depth),
                )
            )
        ):
            continue
        stages = min(4, STAGED_BYTES // ((block_m + block_n) * block_k * sizes.itemsize))
        if stages >= 3:
            for warps in _warps(block_m * block_n, asked):
                yield Tile(block_m, block_n, block_k, warps, stages)


def _warps(results: int, asked: Asked) -> tuple[int, ...]:
    if results >= 128 * 128:
        return (8,)
    if asked.true_float32:
        return (2, 4)
    return (4,) if results >= 1024 else (1, 2)


def splits_of(depth: int, tile: Tile) -> list[int]:
    """Splits that leave none without elements, each once."""
    steps = math.ceil(depth / tile.block_k)
    return sorted({even_splits(depth, tile, s) for s in _SPLITS if s <= steps} or {1})


def even_splits(depth: int, tile: Tile, splits: int) -> int:
    """How many splits there are when each of `splits`, but the last, has as many steps as it needs."""
    steps = max(1, math.ceil(depth / tile.block_k))
    return math.ceil(steps / math.ceil(steps / splits))


def spreading_bytes(tile: Tile, splits: int, sizes: Sizes, device: Device) -> int:
    """The shared memory by which a core holds one program of the first launch; 0 where there are more than cores.

    Half of a core's: with the kilobyte that the chip takes for each program, two ask for more than there is.

    Programs that begin early find some cores still at work on what came before: two of them then start on one core while
    others get none, and the launch takes twice as long (docs/measured.md). A core that has no room for two prevents it.
    """
    return device.shared_bytes // 2 if programs_of(tile, splits, sizes) <= device.cores else 0


def finish_of(sizes: Sizes, splits: int, row: bool = False, in_order: bool = False) -> Finish:
    """All splits of some results in one tile where they fit: the launch is a matter of latency."""
    lanes = 1 if in_order else min(128, power_above(splits))
    if row:
        return _row_finish(sizes, lanes)
    block = max(32, min(1024, 4096 // lanes))
    if sizes.outputs >= 1 << 20:
        return Finish(block, lanes, 4)
    block = min(block, 32 if lanes >= 32 or in_order else 128)
    return Finish(block, lanes, max(1, min(4, block * lanes // 256)))


def _row_finish(sizes: Sizes, lanes: int) -> Finish:
    """Whole rows, one a program unless they are short and many."""
    row = power_above(sizes.columns)
    lanes = max(1, min(lanes, ROW_BLOCK // row))
    rows = max(1, min(1024 // row, power_above(sizes.rows * sizes.batches) // 512))
    return Finish(row * rows, lanes, max(1, min(16, row * rows * lanes // 512)), row)
