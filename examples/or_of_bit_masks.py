"""OR of packed bit masks: which syntax does each package of the standard library use? torch has no OR-reduce."""

from __future__ import annotations

import ast
import sysconfig
from pathlib import Path

import torch

import tilefold

# One bit a kind of syntax node: a file becomes 64-bit words in which a bit says "this file uses it".
KINDS = sorted(
    name for name, kind in vars(ast).items() if isinstance(kind, type) and issubclass(kind, ast.AST)
)
WORDS = -(-len(KINDS) // 64)

either = tilefold.Monoid(lambda a, b: a | b, 0, dtypes="input", name="either")


def mask_of(path: Path) -> list[int]:
    """The packed mask of one source file."""
    used = {type(node).__name__ for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))}
    bits = sum(1 << i for i, kind in enumerate(KINDS) if kind in used)
    words = [(bits >> (64 * w)) & (2**64 - 1) for w in range(WORDS)]
    return [w - 2**64 if w >= 2**63 else w for w in words]


def main() -> dict[str, int]:
    """Fold the masks of each package's files; returns how many kinds of syntax each uses."""
    library = Path(sysconfig.get_paths()["stdlib"])
    counts = {}
    for package in ("json", "logging", "email", "asyncio"):
        masks = torch.tensor([mask_of(p) for p in sorted((library / package).glob("*.py"))])
        folded = tilefold.reduce(masks, either, dim=0)
        assert torch.equal(folded, tilefold.bitwise_or(masks, dim=0))
        counts[package] = sum(bin(w & (2**64 - 1)).count("1") for w in folded.tolist())
        print(f"{package:8} {len(masks):3} files use {counts[package]:3} of {len(KINDS)} kinds of syntax")
    print(tilefold.last_plan())
    return counts


if __name__ == "__main__":
    main()
