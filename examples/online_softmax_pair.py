"""The online softmax pair (m, l), written by hand: the running maximum and the sum of exponentials below it."""

from __future__ import annotations

import torch

import tilefold
from tilefold.math import exp, log, maximum, where


def combine(a, b):  # type: ignore[no-untyped-def]  # traced values
    """Bring both sums under the common maximum. Two empty states must not give exp(-inf - -inf)."""
    m = maximum(a.m, b.m)
    safe = where(m == -float("inf"), 0.0, m)
    return m, a.l * exp(a.m - safe) + b.l * exp(b.m - safe)


softmax_pair = tilefold.Monoid(
    combine,
    identity=(-float("inf"), 0),
    fields=("m", "l"),
    lift=lambda x: (x, 1.0),
    project=lambda m, l: m + log(l),
    name="softmax_pair",
)


def main() -> float:
    """Log-sum-exp of rows by the pair, against torch; returns the largest difference."""
    x = torch.randn(64, 5000, generator=torch.Generator().manual_seed(0)) * 10
    got = tilefold.reduce(x, softmax_pair, dim=1)
    worst = (got - torch.logsumexp(x, 1)).abs().max().item()
    print(f"{softmax_pair}: largest difference from torch.logsumexp {worst:.1e}")
    print("on this machine:", tilefold.last_plan())
    print("on an H200 it would be", tilefold.explain_plan(x, softmax_pair, 1))
    return worst


if __name__ == "__main__":
    main()
