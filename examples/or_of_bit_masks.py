"""OR of packed bit masks, a fold that torch does not have.

Which kinds of Python syntax does each package of the standard library use? Every source file becomes a mask with a bit for
each kind; the OR of a package's masks is the answer.
"""

from __future__ import annotations

import ast
import sysconfig
from pathlib import Path

import torch

import tilefold

# --8<-- the monoid
either = tilefold.Monoid(lambda a, b: a | b, identity=0, dtypes="input")
# -->8--

# One bit a kind of syntax node: a file becomes 64-bit words in which a bit says "this file uses it".
KINDS = sorted(
    name for name, kind in vars(ast).items() if isinstance(kind, type) and issubclass(kind, ast.AST)
)
WORDS = -(-len(KINDS) // 64)
PACKAGES = ("json", "logging", "email", "asyncio")


def mask_of(path: Path) -> int:
    """The mask of one source file, as a Python integer of any size."""
    used = {type(node).__name__ for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))}
    return sum(1 << i for i, kind in enumerate(KINDS) if kind in used)


def words_of(mask: int) -> list[int]:
    """The mask in signed 64-bit words."""
    words = [(mask >> (64 * w)) & (2**64 - 1) for w in range(WORDS)]
    return [w - 2**64 if w >= 2**63 else w for w in words]


def masks_of(package: str) -> list[int]:
    """The masks of a package's files."""
    folder = Path(sysconfig.get_paths()["stdlib"]) / package
    return [mask_of(path) for path in sorted(folder.glob("*.py"))]


def call() -> tuple[torch.Tensor, tilefold.Monoid, int]:
    """What `tilefold.reduce` is given for the largest package."""
    return torch.tensor([words_of(mask) for mask in masks_of("asyncio")]), either, 0


def main() -> dict[str, int]:
    """Fold the masks of each package's files; returns how many kinds of syntax each uses."""
    counts = {}
    for package in PACKAGES:
        masks = masks_of(package)
        folded = tilefold.reduce(torch.tensor([words_of(mask) for mask in masks]), either, dim=0)
        expected = 0
        for mask in masks:  # the independent answer: Python's own integers
            expected |= mask
        assert folded.tolist() == words_of(expected)
        counts[package] = bin(expected).count("1")
        print(f"{package:8} {len(masks):3} files use {counts[package]:3} of {len(KINDS)} kinds of syntax")
    print("Python's own integers give the same bits.")
    return counts


if __name__ == "__main__":
    main()
