"""Which tiles, splits of K and second launches are weighed for a product."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator
from dataclasses import replace

import torch

from tilefold.planner.device import Device
from tilefold.planner.products.costs import is_vector, share_of
from tilefold.planner.products.plan import Asked, Finish, Sizes, Tile
from tilefold.planner.sizes import power_above

ROW_BLOCK = 8192  # results of all lanes that a program which folds rows holds, unless one row is longer
STAGED_BYTES = 100 * 1024  # of the steps that are on their way

SPILLING = 4096  # operands a step of float32's true products: unrolled on the vector units, more outgrow the registers

MOST_SHARING = 3  # programs on an SM that begin early

LINE = 128  # bytes that memory hands over at once
MANY = 4096  # results that are finished by more programs than a chip has SMs
LARGE = 64 * 64  # results of a tile whose products take longer than its loads

_BLOCKS = (16, 32, 64, 128)
_BLOCKS_K = (32, 64, 128, 256)
_SPLITS = (1, 2, 4, 8, 12, 16, 24, 32, 48, 64, 96, 128, 192, 256)


def tiles_of(sizes: Sizes, asked: Asked, device: Device) -> Iterator[Tile]:
    """Tiles no larger than the product needs, with as many steps on their way as shared memory holds.

    A step takes a line of memory of each row and column, and more only of large tiles: a search of all found none faster by
    more than 3 % (docs/measured.md).
    """
    line = min(max(_BLOCKS_K[0], LINE // sizes.itemsize), max(_BLOCKS_K[0], power_above(sizes.depth)))
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
    """The largest tiles of half precision, four steps on their way: they read the least of the L2 for a product.

    Of 26 products of 2 GFLOP and more 128 x 256 was the fastest tile of ours in 14 (docs/experiments/products.md#large).
    """
    for block_n, warps in ((128, 4), (256, 8)):
        tile = Tile(128, block_n, 64, warps, 4)
        fits = tile.step_bytes(sizes.itemsize) * 4 <= device.shared_bytes
        if device.capability >= 90 and fits and sizes.rows > 64 and sizes.columns > block_n // 2:
            yield tile


def packed_tiles_of(sizes: Sizes, asked: Asked, device: Device) -> Iterator[Tile]:
    """Tiles of operands that were copied first: the largest with four steps on their way.

    They were faster in most of 28 random products (docs/experiments/products.md#packed).
    """
    for tile in tiles_of(sizes, asked, device):
        large = replace(tile, num_stages=4)
        fits = large.step_bytes(sizes.itemsize) * 4 <= device.shared_bytes
        yield large if tile.block_m * tile.block_n >= 128 * 128 and fits else tile


def _rows_of(sizes: Sizes, asked: Asked, device: Device) -> list[int]:
    """Rows of a tile. Where tensor cores take 64 at once (`wgmma`), 32 are neither: too few for it, and slower than 16."""
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
    """Splits that leave none without elements, each once."""
    steps = math.ceil(depth / tile.block_k)
    return sorted({even_splits(depth, tile, s) for s in _SPLITS if s <= steps} or {1})


def even_splits(depth: int, tile: Tile, splits: int) -> int:
    """How many splits there are when each of `splits`, but the last, has as many steps as it needs."""
    steps = max(1, math.ceil(depth / tile.block_k))
    return math.ceil(steps / math.ceil(steps / splits))


def spreading_bytes(tile: Tile, splits: int, sizes: Sizes, device: Device) -> int:
    """The shared memory by which an SM holds its share of the first launch's programs and no more; 0 where none does that.

    A half of an SM's for one program, a third for two, and so on: with the kilobyte that the chip takes for each program,
    one more does not fit.

    Programs that begin early find some SMs still at work on what came before: more than their share then start on one SM
    while others get fewer, and the launch takes as long as the most of them (docs/measured.md). An SM without room for
    more prevents it.
    """
    share = share_of(tile, splits, sizes, device)
    reserved = device.shared_bytes // (share + 1)
    own = tile.step_bytes(sizes.itemsize) * (tile.num_stages - 1)
    return reserved if share == 1 or (share <= MOST_SHARING and own <= reserved) else 0


def finish_of(sizes: Sizes, splits: int, row: bool = False, in_order: bool = False) -> Finish:
    """The second launch of a product: its programs read a few kilobytes each, since nothing else hides the way to them.

    Those for many splits are what a search took on an H200 (docs/measured.md): few results a program, and one warp where that
    holds all of them, or where programs are more than SMs: nobody then waits for other warps.
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
    """Whole rows, one a program unless they are short and many."""
    row = power_above(sizes.columns)
    lanes = max(1, min(lanes, ROW_BLOCK // row))
    rows = max(1, min(1024 // row, power_above(sizes.rows * sizes.batches) // 512))
    return Finish(row * rows, lanes, max(1, min(16, row * rows * lanes // 512)), row)
