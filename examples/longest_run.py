"""The longest run of ones: a monoid in which order matters, on real text (a module's documentation)."""

from __future__ import annotations

import json

import torch

import tilefold
from tilefold.math import maximum, where


def combine(a, b):  # type: ignore[no-untyped-def]  # traced values
    """A run may cross the border: the suffix of the left piece meets the prefix of the right one."""
    best = maximum(maximum(a.best, b.best), a.suffix + b.prefix)
    prefix = where(a.prefix == a.length, a.length + b.prefix, a.prefix)
    suffix = where(b.suffix == b.length, a.suffix + b.length, b.suffix)
    return best, prefix, suffix, a.length + b.length


longest_run = tilefold.Monoid(
    combine,
    identity=(0, 0, 0, 0),
    fields=("best", "prefix", "suffix", "length"),
    lift=lambda x: (where(x != 0, 1, 0), where(x != 0, 1, 0), where(x != 0, 1, 0), 1),
    project=lambda best, prefix, suffix, length: best,
    dtypes=torch.int64,
    name="longest_run",
)


def main() -> int:
    """The longest run of characters without a space in the documentation of the json module."""
    text = json.__doc__
    solid = torch.tensor([not c.isspace() for c in text])
    got = int(tilefold.reduce(solid, longest_run))
    assert got == max(len(word) for word in text.split())
    print(f"{longest_run}: the longest run without a space is {got} characters")
    return got


if __name__ == "__main__":
    main()
