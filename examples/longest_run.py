"""The longest run of ones, a monoid in which order matters.

The longest word (run of characters without a space) in the source of a package. A run may cross the border of two pieces, so
a state also holds how many ones it begins and ends with. The check finds that combine(a, b) != combine(b, a), and every
path then keeps the elements' order.
"""

from __future__ import annotations

import sysconfig
from pathlib import Path

import torch

import tilefold

# --8<-- the monoid
from tilefold.math import maximum, where


def combine(a, b):  # type: ignore[no-untyped-def]  # traced values
    """A run may cross the border: left suffix and right prefix become one."""
    best = maximum(maximum(a.best, b.best), a.suffix + b.prefix)
    prefix = where(a.prefix == a.length, a.length + b.prefix, a.prefix)
    suffix = where(b.suffix == b.length, a.suffix + b.length, b.suffix)
    return best, prefix, suffix, a.length + b.length


longest_run = tilefold.Monoid(
    combine,
    identity=(0, 0, 0, 0),
    fields=("best", "prefix", "suffix", "length"),
    lift=lambda x: (where(x, 1, 0), where(x, 1, 0), where(x, 1, 0), 1),
    project=lambda best, prefix, suffix, length: best,
    dtypes=torch.int64,
    name="longest_run",
)
# -->8--


def text() -> str:
    """The source of the standard library's json package."""
    folder = Path(sysconfig.get_paths()["stdlib"]) / "json"
    return "\n".join(path.read_text(encoding="utf-8") for path in sorted(folder.glob("*.py")))


def call() -> tuple[torch.Tensor, tilefold.Monoid, int]:
    """What `tilefold.reduce` is given: for each character, whether it is no space."""
    return torch.tensor([not c.isspace() for c in text()]), longest_run, 0


def main() -> int:
    """The longest word's length, against Python's own splitting."""
    solid, monoid, dim = call()
    got = int(tilefold.reduce(solid, monoid, dim=dim))
    longest = max(text().split(), key=len)
    assert got == len(longest)
    print(f"{len(solid)} characters, found to be {'commutative' if monoid.commutative else 'ordered'}")
    print(f"longest word: {got} characters; Python's split finds the same: {longest[:14]!r} ...")
    return got


if __name__ == "__main__":
    main()
