"""The one-launch kernels of Triton (`tilefold.bench.kernels.one_launch`) as choices for a shape."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import torch

from tilefold.bench.kernels import one_launch

Tensor = torch.Tensor
FOLDED = 8192  # elements that the last program of `counted` holds at once


@dataclass(frozen=True)
class Config:
    """A tile, its splits of K and how a program runs."""

    m: int
    n: int
    k: int
    splits: int
    warps: int
    chained: bool

    @property
    def lanes(self) -> int:
        """Splits that the last program loads at once."""
        return max(1, min(self.splits, FOLDED // (self.m * self.n)))


def configurations(rows: int, columns: int, depth: int, sms: int) -> Iterator[Config]:
    """Tiles no larger than the product, splits that fill the chip up to four times."""
    tiles = [(m, n) for m, n in ((16, 16), (32, 32), (64, 32), (64, 64)) if m < 2 * rows and n < 2 * columns]
    for (m, n), k, splits in itertools.product(tiles, (128, 256), (16, 32, 64, 128)):
        programs = -(-rows // m) * -(-columns // n) * splits
        if depth % (splits * k) or not 16 <= programs <= 4 * sms:
            continue
        for warps, chained in itertools.product((2, 4) if m * n == 256 else (4, 8), (False, True)):
            yield Config(m, n, k, splits, warps, chained)


def arguments(
    kernel: Any, config: Config, sizes: tuple[int, int, int]
) -> tuple[tuple[int, ...], dict[str, Any]]:
    """The numbers and the constants of a launch."""
    rows, columns, depth = sizes
    lanes = {"LANES": config.lanes} if kernel is one_launch.counted else {}
    tile = {"BLOCK_M": config.m, "BLOCK_N": config.n, "BLOCK_K": config.k}
    ways = {"num_warps": config.warps, "launch_pdl": config.chained}
    constants = {"SPLITS": config.splits, "CHAINED": config.chained, **lanes, **tile, **ways}
    return (rows, columns, depth, depth // config.splits), constants


def launcher(kernel: Any, config: Config, a: Tensor, b: Tensor) -> tuple[Callable[[], Tensor], Tensor]:
    """A call without arguments, and the counters that each call must leave at 0."""
    (rows, depth), columns = a.shape, b.shape[1]
    tiles = -(-rows // config.m) * -(-columns // config.n)
    counters = torch.zeros(tiles, dtype=torch.int32, device=a.device)
    if kernel is one_launch.counted:
        between = torch.empty(tiles * config.splits * config.m * config.n, device=a.device)
    else:
        between = torch.zeros(rows, columns, device=a.device)
    numbers, constants = arguments(kernel, config, (rows, columns, depth))

    def call() -> Tensor:
        c = torch.empty(rows, columns, device=a.device, dtype=a.dtype)
        kernel[(tiles, config.splits)](a, b, c, between, counters, *numbers, **constants)
        return c

    return call, counters


def compile_one(name: str, config: Config, sizes: tuple[int, int, int]) -> str:
    """In a worker on the GPU's machine: the kernel lands in Triton's cache on disk. What went wrong, or nothing."""
    kernel = getattr(one_launch, name)
    numbers, constants = arguments(kernel, config, sizes)
    try:
        types = (torch.bfloat16,) * 3 + (torch.float32, torch.int32)
        kernel.warmup(*types, *numbers, grid=(1, 1, 1), **constants)
    except Exception as error:  # met again, and said, where it is timed
        return f"{name} {config}: {type(error).__name__}"
    return ""
