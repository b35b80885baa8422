"""How a CPU's scan cuts its tiles: python benchmarks/cpu_scans.py (docs/experiments/cpu.md#scans)."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from typing import Any

import torch

import tilefold
from tilefold import math, monoids
from tilefold.planner import cpu_scans

SHAPES = (
    (64, 64),
    (33, 1001),
    (1024, 1024),
    (1024, 4096),
    (64, 65536),
    (1, 1 << 20),
    (4096, 32),
    (1 << 18, 16),
)
WAYS: dict[str, dict[str, int]] = {
    "as planned": {},
    "no levels": {"SOME_ELEMENTS": 0},
    "32 steps": {"STEPS": 32},
    "128 steps": {"STEPS": 128},
    "8000 lanes": {"MANY_LANES": 8000},
    "32000 lanes": {"MANY_LANES": 32000},
}


def _logsumexp(a: Any, b: Any) -> Any:
    largest = math.maximum(a.m, b.m)
    safe = math.where(largest == -float("inf"), 0.0, largest)
    return largest, a.l * math.exp(a.m - safe) + b.l * math.exp(b.m - safe)


def _subarray(a: Any, b: Any) -> Any:
    best = math.maximum(math.maximum(a.most, b.most), a.end + b.begin)
    return a.all + b.all, math.maximum(a.begin, a.all + b.begin), math.maximum(b.end, a.end + b.all), best


def _positive(x: Any) -> Any:
    return math.maximum(x, 0.0)


def users() -> dict[str, tilefold.Monoid]:
    """Monoids as a user writes them."""
    pair = tilefold.Monoid(
        _logsumexp,
        (-float("inf"), 0),
        fields=("m", "l"),
        lift=lambda x: (x, 1.0),
        project=lambda m, l: m + math.log(l),
    )
    subarray = tilefold.Monoid(
        _subarray,
        (0.0, 0.0, 0.0, 0.0),
        fields=("all", "begin", "end", "most"),
        lift=lambda x: (x, _positive(x), _positive(x), _positive(x)),
        project=lambda total, begin, end, most: most,
    )
    return {"affine": monoids.AFFINE, "logsumexp": pair, "max subarray": subarray}


def best_ms(call: Callable[[], object]) -> float:
    """The least processor time of the rounds of half a second: other processes may use the cores."""
    call()
    times, end = [], time.monotonic() + 0.5
    while time.monotonic() < end or len(times) < 5:
        begin = time.process_time()
        call()
        times.append(time.process_time() - begin)
    return 1e3 * min(times)


def main() -> None:
    """Print torch's cumsum and a row of times for each shape and way; a first argument is the number of threads."""
    torch.set_num_threads(int(sys.argv[1]) if len(sys.argv) > 1 else 1)
    kept = {name: getattr(cpu_scans, name) for ways in WAYS.values() for name in ways}
    for rows, length in SHAPES:
        x, y = torch.rand(rows, length), torch.randn(rows, length)
        cumsum = best_ms(lambda y=y: torch.cumsum(y, 1))  # type: ignore[misc]  # defaults hold what is now
        for way, numbers in WAYS.items():
            for name, number in {**kept, **numbers}.items():
                setattr(cpu_scans, name, number)
            tilefold.api.dispatch._executables.clear()
            times = {
                name: best_ms(lambda m=m, v=(x, y) if name == "affine" else y: tilefold.scan(v, m, 1))  # type: ignore[misc]
                for name, m in users().items()
            }
            shown = "  ".join(f"{name} {ms:.3f} ({ms / cumsum:.1f})" for name, ms in times.items())
            print(f"{rows}x{length:<8d} cumsum {cumsum:.3f}  {way:<16s} {shown}", flush=True)


if __name__ == "__main__":
    main()
