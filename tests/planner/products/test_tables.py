"""The tables that are shipped: every entry is a plan that its chip can run, and what the docs say of it."""

from __future__ import annotations

import math
import re
from pathlib import Path

import pytest
import torch

from tilefold.planner.device import H200
from tilefold.planner.products import tuned
from tilefold.planner.products.costs import PROGRAM_BYTES, programs_of
from tilefold.planner.products.plan import Sizes
from tilefold.planner.products.tiles import MOST_SHARING, even_splits
from tilefold.planner.products.tuned import Entry

ROOT = Path(__file__).parents[3]
ENTRIES = tuned.table_of(H200.name).entries


def name(entry: Entry) -> str:
    return f"{entry.dtype} {'x'.join(map(str, entry.sizes))}"


def test_every_table_is_of_a_chip_known_here() -> None:
    assert [path.stem for path in tuned.FOLDER.glob("*.json")] == [tuned.table_name(H200.name)]
    assert len({(e.dtype, e.precision, e.sizes, e.epilogue) for e in ENTRIES}) == len(ENTRIES) > 0


@pytest.mark.parametrize("entry", ENTRIES, ids=name)
def test_every_entry_is_a_plan_that_the_chip_runs(entry: Entry) -> None:
    plan, tile = entry.plan, entry.plan.tile
    if plan.strategy == tuned.MODEL:
        assert (tile, plan.finish) == (None, None)
        return
    if tile is None:
        assert plan.strategy == "cublas"
        assert (plan.finish is not None) == entry.epilogue
        return
    sizes = Sizes(*entry.sizes, getattr(torch, entry.dtype).itemsize)
    assert plan.splits == even_splits(sizes.depth, tile, plan.splits)
    assert (plan.splits == 1) == (plan.strategy == "whole") == (plan.finish is None)
    held = tile.step_bytes(sizes.itemsize) * (tile.num_stages - 1)
    assert held <= H200.shared_bytes - PROGRAM_BYTES
    if plan.reserved_bytes:
        assert plan.chained
        share = math.ceil(programs_of(tile, plan.splits, sizes) / H200.sms)
        assert (share + 1) * (plan.reserved_bytes + PROGRAM_BYTES) > H200.shared_bytes, (
            "one more fits on an SM"
        )
        assert share <= MOST_SHARING


def test_the_docs_say_how_many_entries_hold_a_plan() -> None:
    page = (ROOT / "docs" / "experiments" / "products.md").read_text(encoding="utf-8")
    plans = sum(entry.plan.strategy != tuned.MODEL for entry in ENTRIES)
    assert f"{plans} of the {len(ENTRIES)} entries hold a plan" in " ".join(page.split())


def test_the_docs_say_what_was_measured() -> None:
    page = (ROOT / "docs" / "experiments" / "products.md").read_text(encoding="utf-8")
    rows = re.findall(r"^\| (16|32|48|64) \| (8192|32768) \| ([\d.]+) \| ([\d.]+) \|$", page, re.MULTILINE)
    assert len(rows) == 8
    times = {(e.dtype, e.sizes): e.plan.time_us for e in ENTRIES}
    for side, depth, *said in rows:
        for dtype, text in zip(("bfloat16", "float32"), said, strict=True):
            found = times[dtype, (int(side), int(side), int(depth), 1)]
            assert float(text) == pytest.approx(found, abs=0.0051)
