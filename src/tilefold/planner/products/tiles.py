"""Which tiles, splits of K and second launches the planner compares for a product."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator
from dataclasses import replace

import torch

from tilefold.planner.device import Device
from tilefold.planner.products.costs import is_vector, share_of
from tilefold.planner.products.plan import Asked, Finish, Sizes, Tile
from tilefold.planner.sizes import LINE_BYTES, power_above

# Programs of an SM at most in a launch that begins early (docs/experiments/products.md#early).
MOST_SHARING = 3

# Not measured: bounds of the candidates.
ROW_BLOCK = 8192  # results that a program holds at most while it folds rows, unless one row is longer
STAGED_BYTES = 100 * 1024  # of shared memory for steps in flight
SPILLING = 4096  # operands of a step at most in products of true float32: the vector units' unrolled code spills with more
MANY = 4096  # results from which a second launch has more programs than a chip has SMs
LARGE = 64 * 64  # results of a tile from which its products take longer than its loads
_BLOCKS = (16, 32, 64, 128)
_BLOCKS_K = (32, 64, 128, 256)
_SPLITS = (1, 2, 4, 8, 12, 16, 24, 32, 48, 64, 96, 128, 192, 256)


def tiles_of(sizes: Sizes, asked: Asked, device: Device) -> Iterator[Tile]:
    """Tiles no larger than the product, with as many steps in flight as shared memory holds.

    A step takes a line of memory of each row and column, and more only of large tiles: a search of all found none faster by
    more than 3 % (docs/measured.md).
    """
    line = min(max(_BLOCKS_K[0], LINE_BYTES // sizes.itemsize), max(_BLOCKS_K[0], power_above(sizes.depth)))
    most_k = 64 if asked.dtype == torch.float64 else max(_BLOCKS_K)
    for block_m, block_n, block_k in itertools.product(_rows_of(sizes, asked, device), _BLOCKS, _BLOCKS_K):
        if (
            not line <= block_k <= (most_k if block_m * block_n >= LARGE else line)
            or (asked.true_float32 and (block_m + block_n) * block_k > SPILLING)
            or (block_n > 16 and block_n >= 2 * sizes.columns)
            or (block_k > line and block_k >= 2 * sizes.depth)
        ):
            continue
        stages = min(4, STAGED_BYTES // ((block_m + block_n) * block_k * sizes.itemsize))
        if stages >= 3:
            for warps in _warps(block_m * block_n, asked):
                yield Tile(block_m, block_n, block_k, warps, stages)
    if sizes.itemsize == 2 and not any(sizes.loose):
        yield from _large_tiles(sizes, device)


def _large_tiles(sizes: Sizes, device: Device) -> Iterator[Tile]:
    """The largest tiles of half precision with four steps in flight: they read the fewest bytes of the L2 for a product.

    Of 26 products of 2 GFLOP and more 128 x 256 was the fastest tile of ours in 14 (docs/experiments/products.md#large).
    """
    for block_n, warps in ((128, 4), (256, 8)):
        tile = Tile(128, block_n, 64, warps, 4)
        fits = tile.step_bytes(sizes.itemsize) * 4 <= device.shared_bytes
        if device.capability >= 90 and fits and sizes.rows > 64 and sizes.columns > block_n // 2:
            yield tile


def packed_tiles_of(sizes: Sizes, asked: Asked, device: Device) -> Iterator[Tile]:
    """Tiles of operands that a launch copied first: the largest with four steps in flight.

    They were faster in most of 28 random products (docs/experiments/products.md#packed).
    """
    for tile in tiles_of(sizes, asked, device):
        large = replace(tile, num_stages=4)
        fits = large.step_bytes(sizes.itemsize) * 4 <= device.shared_bytes
        yield large if tile.block_m * tile.block_n >= 128 * 128 and fits else tile


def _rows_of(sizes: Sizes, asked: Asked, device: Device) -> list[int]:
    """Rows of a tile. `wgmma` takes 64 at once. There 32 rows are left out: too few for `wgmma`, and slower than 16."""
    if device.capability < 90 or is_vector(asked):
        return [block for block in _BLOCKS if block == 16 or block < 2 * sizes.rows]
    return [block for block, more_than in ((16, 0), (64, 16), (128, 64)) if sizes.rows > more_than]


def _warps(results: int, asked: Asked) -> tuple[int, ...]:
    if results >= 128 * 128:
        return (8,)
    if asked.true_float32:
        return (2, 4)
    if results >= 1024:
        return (4,)
    return (1, 2) if results < 512 else (2,)


def splits_of(depth: int, tile: Tile) -> list[int]:
    """The different numbers of splits of which each split has elements."""
    steps = math.ceil(depth / tile.block_k)
    return sorted({even_splits(depth, tile, s) for s in _SPLITS if s <= steps} or {1})


def even_splits(depth: int, tile: Tile, splits: int) -> int:
    """The number of splits that have elements, if K is shared among `splits` in whole steps."""
    steps = max(1, math.ceil(depth / tile.block_k))
    return math.ceil(steps / math.ceil(steps / splits))


def spreading_bytes(tile: Tile, splits: int, sizes: Sizes, device: Device) -> int:
    """The shared memory that each program reserves, so that an SM runs its share of the first launch's programs and no more.
    0 if no amount does that.

    It is a half of an SM's memory for one program, a third for two, and so on. The chip adds a kilobyte for each program, so
    one more does not fit.

    Without it, programs that begin early find some SMs still busy with the work before. Then one SM starts more than its
    share, others fewer, and the launch takes as long as the SM with the most (docs/measured.md).
    """
    share = share_of(tile, splits, sizes, device)
    reserved = device.shared_bytes // (share + 1)
    own = tile.step_bytes(sizes.itemsize) * (tile.num_stages - 1)
    return reserved if share == 1 or (share <= MOST_SHARING and own <= reserved) else 0


def finish_of(sizes: Sizes, splits: int, row: bool = False, in_order: bool = False) -> Finish:
    """The second launch of a product: each of its programs reads a few kilobytes, since nothing else hides their latency.

    For many splits the sizes are those of a search on an H200 (docs/measured.md): few results a program, and one warp if it
    holds them all or if there are more programs than SMs, so that no warp waits for another.
    """
    lanes = 1 if in_order else min(128, power_above(splits))
    if row:
        return _row_finish(sizes, lanes)
    block = max(32, min(1024, 4096 // lanes))
    if sizes.outputs >= 1 << 20:
        return Finish(block, lanes, 4)
    if lanes < 32:
        block = min(block, 32 if in_order else 128)
        return Finish(block, lanes, max(1, min(4, block * lanes // 256)))
    if splits <= 48:
        return Finish(32, 32, 1)
    if sizes.outputs >= MANY:
        return Finish(16, lanes, 1)
    return Finish(32, 64, 4) if splits <= 96 else Finish(16, 128, 4)


def _row_finish(sizes: Sizes, lanes: int) -> Finish:
    """A second launch over whole rows: one row a program, or several if rows are short and many."""
    row = power_above(sizes.columns)
    lanes = max(1, min(lanes, ROW_BLOCK // row))
    rows = max(1, min(1024 // row, power_above(sizes.rows * sizes.batches) // 512))
    return Finish(row * rows, lanes, max(1, min(16, row * rows * lanes // 512)), row)
