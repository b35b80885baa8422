"""How a CPU's scan lays out its tiles: python benchmarks/cpu_scans.py (docs/experiments/cpu-scans.md)."""

from __future__ import annotations

import time
from collections.abc import Callable

import torch

import tilefold
from tilefold import monoids
from tilefold.backends import scans

ELEMENTS = 1 << 20
ROUNDS = 9
ROWS = (1, 8, 32, 64, 128, 256, 1024, 4096)
LAYOUTS = {"steps first": 1 << 30, "positions first": 0}


def best_ms(call: Callable[[], object]) -> float:
    """The least processor time of some rounds: other processes may use the cores."""
    call()
    times = []
    for _ in range(ROUNDS):
        begin = time.process_time()
        call()
        times.append(time.process_time() - begin)
    return 1e3 * min(times)


def main() -> None:
    """Print a row of times for each number of rows and each layout."""
    torch.set_num_threads(1)
    print("rows      layout           affine  logsumexp  max  (ms)")
    for rows in ROWS:
        x, y = (torch.rand(rows, ELEMENTS // rows) for _ in range(2))
        calls: list[Callable[[], object]] = [
            lambda x=x, y=y: tilefold.scan((x, y), monoids.AFFINE, 1),  # type: ignore[misc]  # defaults hold what is now
            lambda x=x: tilefold.scan(x, monoids.LOGSUMEXP, 1, reverse=True),  # type: ignore[misc]
            lambda x=x: tilefold.scan(x, monoids.MAX, 1),  # type: ignore[misc]
        ]
        for layout, beside in LAYOUTS.items():
            scans.BESIDE = beside
            print(
                f"{rows:<9d} {layout:<16s} " + "  ".join(f"{best_ms(call):.1f}" for call in calls), flush=True
            )


if __name__ == "__main__":
    main()
