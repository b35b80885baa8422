"""The online softmax pair, a state of two numbers: log-sum-exp in one read.

The logits are the products of 64 word vectors of a real checkpoint with those of the whole vocabulary. A state (m, l) is the
largest logit so far and the sum of exp(logit - m): nothing overflows, and two states combine into one.
"""

from __future__ import annotations

import real_data
import torch

import tilefold

# --8<-- the monoid
from tilefold.math import exp, log, maximum, where


def combine(a, b):  # type: ignore[no-untyped-def]  # traced values
    """Bring both sums under one maximum; no exp(-inf - -inf) for two empty states."""
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
# -->8--


def call() -> tuple[torch.Tensor, tilefold.Monoid, int]:
    """What `tilefold.reduce` is given: logits [64, vocabulary], scaled so that exp alone would overflow."""
    vectors = real_data.embeddings()
    return vectors[2000:2064] @ vectors.T * 100, softmax_pair, 1


def main() -> float:
    """Log-sum-exp of each row by the pair; returns the largest difference from the definition in float64."""
    logits, monoid, dim = call()
    got = tilefold.reduce(logits, monoid, dim=dim)
    exact = logits.double().logsumexp(dim)
    worst = (got.double() - exact).abs().max().item()
    naive = logits.exp().sum(dim).log()
    print(f"{len(got)} rows of {logits.shape[1]} logits, the largest {logits.max().item():.0f}")
    print(f"log(sum(exp(x))) as it is written: {int(naive.isinf().sum())} of {len(got)} rows overflow")
    print(f"by the pair: largest difference from float64 {worst:.1e}, of results up to {exact.max():.0f}")
    return worst / exact.abs().max().item()


if __name__ == "__main__":
    main()
