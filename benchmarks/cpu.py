"""Folds on a CPU against torch, over 2^26 float32: `python benchmarks/cpu.py --repeats 7 --backend lanes`.

Answers are compared before anything is timed. The two sides take turns, so that what else the machine does falls on both.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch

import tilefold
from tilefold import math, monoids

INFINITY = float("inf")


def _user_combine(a: Any, b: Any) -> tuple[Any, Any]:
    largest = math.maximum(a.max, b.max)
    shift = math.where(abs(largest) == INFINITY, 0.0, largest)
    return largest, a.sum * math.exp(a.max - shift) + b.sum * math.exp(b.max - shift)


def _user_absorb(state: Any, x: Any) -> tuple[Any, Any]:
    largest = math.maximum(state.max, math.block_max(x))
    shift = math.where(abs(largest) == INFINITY, 0.0, largest)
    return largest, state.sum * math.exp(state.max - shift) + math.block_sum(math.exp(x - shift))


def _user_logsumexp(absorb: Callable[..., Any] | None) -> tilefold.Monoid:
    """Log-sum-exp as somebody would write it who knows no catalogue."""
    return tilefold.Monoid(
        _user_combine,
        (-INFINITY, 0.0),
        fields=("max", "sum"),
        lift=lambda x: (x, 1.0),
        absorb=absorb,
        project=lambda largest, total: math.where(
            abs(largest) == INFINITY, largest, largest + math.log(total)
        ),
        name="user's logsumexp",
    )


@dataclass(frozen=True)
class Case:
    """One fold and torch's nearest counterpart, both of the same tensor."""

    name: str
    shape: tuple[int, ...]
    dim: int | None
    monoid: tilefold.Monoid
    peer: Callable[[torch.Tensor], Any]
    tolerance: float = 1e-5  # of a sum: the mean error an element
    guarantee: str = "run_to_run"


def _along(function: Callable[..., Any], dim: int | None, **keywords: Any) -> Callable[[torch.Tensor], Any]:
    if dim is None:
        return lambda x: function(x, **keywords)
    return lambda x: function(x, dim, **keywords)


def _logsumexp(dim: int | None) -> Callable[[torch.Tensor], torch.Tensor]:
    return lambda x: torch.logsumexp(x, 0 if dim is None else dim)


def _variance(dim: int | None) -> Callable[[torch.Tensor], torch.Tensor]:
    return lambda x: torch.var(x, dim=dim, correction=0)


def cases(elements: int) -> list[Case]:
    """Layouts: one long row, rows, columns, short rows."""
    side = 1 << (elements.bit_length() - 1) // 2
    layouts: list[tuple[tuple[int, ...], int | None]] = [
        ((elements,), None),
        ((side, elements // side), 1),
        ((side, elements // side), 0),
        ((elements // 64, 64), 1),
    ]
    spread = monoids.welford(lambda count, mean, squares: squares / count, "variance")
    table = []
    for shape, dim in layouts:
        table += [
            Case("logsumexp", shape, dim, monoids.LOGSUMEXP, _logsumexp(dim)),
            Case(
                "logsumexp, batch invariant",
                shape,
                dim,
                monoids.LOGSUMEXP,
                _logsumexp(dim),
                guarantee="batch_invariant",
            ),
            Case("logsumexp, a user's absorb", shape, dim, _user_logsumexp(_user_absorb), _logsumexp(dim)),
            Case("logsumexp, a user's combine", shape, dim, _user_logsumexp(None), _logsumexp(dim)),
            Case("sum", shape, dim, monoids.SUM, _along(torch.sum, dim)),
            Case(
                "sum, batch invariant",
                shape,
                dim,
                monoids.SUM,
                _along(torch.sum, dim),
                1e-4,
                "batch_invariant",
            ),
            Case("variance", shape, dim, spread, _variance(dim)),
            Case("argmax", shape, dim, monoids.ARGMAX, _along(torch.argmax, dim)),
            Case(
                "norm", shape, dim, monoids.NORM(2.0), lambda x, dim=dim: torch.linalg.vector_norm(x, dim=dim)
            ),
        ]
    return table


def compare(case: Case, x: torch.Tensor) -> None:
    """Raise unless the fold gives what torch gives for float64 (its float32 norm of a long row is off by half a percent)."""
    got = tilefold.reduce(x, case.monoid, case.dim, guarantee=case.guarantee)
    want = case.peer(x.double())
    if not got.is_floating_point():
        assert torch.equal(got, want), f"{case.name}: another answer than torch's"
        return
    magnitude = x.numel() / want.numel() if case.name.startswith("sum") else float(want.abs().max())
    error = float((got.double() - want).abs().max())
    assert error <= case.tolerance * magnitude, f"{case.name}: error {error} of {magnitude}"


def seconds(call: Callable[[], Any]) -> float:
    """One call's wall time."""
    start = time.perf_counter()
    call()
    return time.perf_counter() - start


def measure(case: Case, x: torch.Tensor, repeats: int) -> tuple[list[float], list[float]]:
    """Times of both sides in milliseconds, turn by turn."""
    ours, theirs = [], []
    for _ in range(repeats):
        ours.append(
            1e3 * seconds(lambda: tilefold.reduce(x, case.monoid, case.dim, guarantee=case.guarantee))
        )
        theirs.append(1e3 * seconds(lambda: case.peer(x)))
    return ours, theirs


def spread_of(times: list[float]) -> str:
    """Median, and the quartiles around it."""
    low, middle, high = statistics.quantiles(times, n=4)
    return f"{middle:8.1f} ({low:.1f} - {high:.1f})"


def main() -> None:
    """Compare, measure, print one line a case."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--elements", type=int, default=26, help="power of two")
    parser.add_argument("--repeats", type=int, default=7)
    parser.add_argument("--backend", default="auto")
    options = parser.parse_args()
    torch.manual_seed(0)
    data = torch.randn(1 << options.elements)
    print(
        f"torch {torch.__version__}, {torch.get_num_threads()} threads, 2^{options.elements} float32; ms, median (quartiles)"
    )
    print(f"{'fold':28} {'shape':16} {'dim':>4} {'tilefold':>26} {'torch':>26} {'ratio':>6}  made by")
    for case in cases(data.numel()):
        x = data.view(case.shape)
        with tilefold.backend(options.backend):
            compare(case, x)
            ours, theirs = measure(case, x, options.repeats)
            plan = tilefold.last_plan()
        ratio = statistics.median(ours) / statistics.median(theirs)
        shape = "x".join(map(str, case.shape))
        print(
            f"{case.name:28} {shape:16} {case.dim!s:>4} {spread_of(ours):>26} {spread_of(theirs):>26} {ratio:6.2f}  "
            f"{plan.backend if plan else ''}",
            flush=True,
        )


if __name__ == "__main__":
    main()
