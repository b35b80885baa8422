"""What docs/measured.md and docs/experiments say of products is what was committed."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tilefold.bench.results import read_results
from tilefold.bench.statistics import geometric_mean
from tilefold.bench.summary import over_ours

ROOT = Path(__file__).parents[2]
RESULT = read_results(ROOT / "benchmarks" / "results" / "h200" / "decompose-k.json")
NAMES = {
    "two launches, vector reducer, searched": "vector reducer",
    "two launches, serial reducer, searched": "serial reducer",
    "cuBLAS, and ReLU": "torch",
    "torch.compile": "compile",
    "custom op, Inductor's choice of splits": "custom op",
    "the same with ours as a candidate": "custom op with ours",
    "bmm and sum by torch": "bmm",
    "the same compiled": "bmm compiled",
    "vector reducer, ReLU apart": "vector reducer, ReLU apart",
    "serial reducer, ReLU apart": "serial reducer, ReLU apart",
}
COLUMNS = (("matmul+relu", "bf16"), ("matmul", "bf16"), ("matmul", "fp16"), ("matmul", "fp32"))


def ratios(variant: str, operation: str, dtype: str) -> str:
    """Its time over ours as the tables show it: cold / in a CUDA graph."""
    large = [c for c in RESULT.cases if c.shape[2] > 256 and (c.operation, c.dtype) == (operation, dtype)]
    return " / ".join(f"{geometric_mean(found):.3f}" for found in over_ours(large, variant).values())


@pytest.mark.parametrize(("page", "rows"), [("docs/measured.md", 4), ("docs/experiments/products.md", 10)])
def test_the_tables_hold_the_committed_ratios(page: str, rows: int) -> None:
    text = (ROOT / page).read_text(encoding="utf-8")
    table = re.search(r"^\| \| relu\(a @ b\), bf16 \|.*\n\|[-:|]+\n((?:\|.*\n)+)", text, re.MULTILINE)
    assert table is not None
    lines = [line.strip("| ").split(" | ") for line in table[1].splitlines()]
    assert len(lines) == rows
    for name, *cells in lines:
        for cell, column in zip(cells, COLUMNS, strict=False):
            assert cell.strip(" |") in ("", ratios(NAMES[name], *column)), (name, column)
