"""A skinny product in five ways beside tilefold's: eager, compiled, a split that Inductor chooses, and two pairs of kernels.

C = A @ B with few results and a huge K leaves a GPU idle, since parallelism comes from the results. Splitting K gives it
work; the sum of the splits is where ReLU joins the store.
"""

from __future__ import annotations

import torch
from shown import committed, label, measured_on, say, show_table

import tilefold
from tilefold.bench.results import CaseResult, SuiteResult
from tilefold.bench.statistics import geometric_mean
from tilefold.bench.summary import median_us

WAYS = {
    "eager: relu(mm)": "torch",
    "torch.compile, max-autotune": "compile",
    "custom op, S chosen by Inductor": "custom op",
    "two kernels, a serial reducer": "serial reducer",
    "two kernels, a vector reducer": "vector reducer",
}
RANGES = {"tilefold": "ours", "eager": "torch", "compile": "compile", "custom op": "custom op, ranges"}

LARGE = 8192  # K of the grid from which on a product is one of many splits


def ratios(cases: list[CaseResult], variant: str) -> list[float]:
    """How many times tilefold's time a way takes."""
    pairs = [(median_us(case, variant), median_us(case, "ours")) for case in cases]
    return [a / b for a, b in pairs if a and b]


def fused() -> None:
    """A product with ReLU in its store, and the operation that torch.compile sees."""
    draw = torch.Generator().manual_seed(0)
    a, b = torch.randn(16, 32768, generator=draw), torch.randn(32768, 16, generator=draw)
    want = torch.relu(a.double() @ b.double())
    errors = [
        float((got.double() - want).abs().max())
        for got in (tilefold.matmul(a, b, epilogue="relu"), torch.relu(tilefold.inductor.matmul(a, b)))
    ]
    assert max(errors) < 1e-2
    label("[16, 32768] @ [32768, 16] with ReLU in its store")
    say(
        f"tilefold.matmul(a, b, epilogue='relu') is within {errors[0]:.0e} of float64's, and so is tilefold.inductor.matmul, "
        f"within {errors[1]:.0e}: the operation that compiled graphs keep, among whose forms Inductor chooses. "
        "tilefold.inductor.register() switches the choice on for exact shapes and for ranges of rows, and with mm=True for "
        "torch.mm itself."
    )


def grid(results: SuiteResult) -> None:
    """The five ways over the grid of 28 shapes."""
    cases = [c for c in results.cases if c.operation == "matmul+relu" and c.shape[-1] >= LARGE]
    rows = []
    for title, variant in WAYS.items():
        found = ratios(cases, variant)
        rows.append([title, f"{geometric_mean(found):.2f}", f"{min(found):.2f}", f"{max(found):.2f}"])
    label(f"M = N = 16 to 64, K = 8192 to 32768: {len(cases)} products of bf16 with ReLU")
    say(f"{measured_on(results).removesuffix(', microseconds')}; a way's time over tilefold's.")
    show_table(["", "mean", "least", "most"], rows)


def router() -> None:
    """Rows that are known when the product is called: ranges of them, one graph."""
    results = committed("router")
    cases = results.cases[: len(results.cases) // 2]
    rows = [
        [str(case.shape[0]), *(f"{median_us(case, variant) or 0:.1f}" for variant in RANGES.values())]
        for case in cases
    ]
    label(
        f"{measured_on(results)}: a router, [T, 7168] @ [7168, 256]; custom op: one graph, a form a range of T"
    )
    show_table(["T", *RANGES], rows)
    say(
        "`tilefold bench decompose-k` and `router` leave these as CSV and plots. Each shape is compiled by itself: beyond "
        "Dynamo's limit of recompiles a function would run eagerly unnoticed, which is an error here."
    )


def main() -> None:
    """All of it."""
    fused()
    grid(committed("decompose-k"))
    router()


if __name__ == "__main__":
    main()
