"""The logic of the benchmarks, without a GPU: a wrong figure is worse than none."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest
import torch

sys.path.insert(0, str(Path(__file__).parents[1] / "benchmarks"))
import folds
import peers
import report
import timing


def test_grid_has_every_cell_once_headline_first():
    cells = peers.all_cells()
    assert len(cells) == len(set(cells)) == 9 * 19 * 2 + 12
    assert [cell.headline for cell in cells[:17]] == [True] * 16 + [False]


@pytest.mark.parametrize("cell", peers.all_cells(smoke=True), ids=str)
def test_torch_passes_the_check_and_a_spoiled_answer_fails(cell):
    x = peers.draw_input(cell.shape, cell.dtype, "cpu")
    want = peers.answer(cell, x)
    got = peers.tensors(peers.eager(cell)(x))
    assert peers.fault(cell, x, got, want) is None
    last = got[-1].clone()
    last.view(-1)[0] = (
        ~last.view(-1)[0]
        if last.dtype == torch.bool
        else last.view(-1)[0] - (-1 if cell.op in ("max", "argmax") else 4)
    )
    assert peers.fault(cell, x, (*got[:-1], last), want)


def test_efficiency_counts_launches_and_bytes(monkeypatch):
    monkeypatch.setattr(timing, "host_timer", lambda: lambda call: timing.Timing(10.0, 9.0, 11.0))
    bench = folds.Bench(folds.arguments(["--device", "cpu", "--smoke"]))
    bench.copy = 100.0
    bench.empty.times_us = {"1": 2.0, "2": 2.0, "2+overlap": 2.0}
    row = bench.row(peers.Cell("sum", 1, (8, 256), "fp32"))
    assert row["checked"] == "ok"
    assert row["bytes"] == 8 * 256 * 4 + 8 * 4
    assert row["efficiency"] == pytest.approx((2.0 + row["bytes"] / 100) / 10)


def test_a_wrong_answer_is_not_timed(monkeypatch):
    monkeypatch.setitem(peers.VARIANTS, "ours", lambda cell: lambda x: x.sum(cell.dim) + 9)
    bench = folds.Bench(folds.arguments(["--device", "cpu", "--smoke"]))
    row = bench.row(peers.Cell("sum", 1, (8, 256), "fp32"))
    assert row["time_us"] is None
    assert row["checked"].startswith("WRONG")


def test_smoke_run_writes_json_and_csv(tmp_path, capsys):
    argv = [
        "--device",
        "cpu",
        "--smoke",
        "--ops",
        "sum,bitwise_or",
        "--against",
        "torch",
        "--out",
        str(tmp_path),
    ]
    assert folds.main(argv) == 0
    rows = json.loads((tmp_path / "folds.json").read_text())["rows"]
    assert all(row["checked"] == "ok" and row["torch_us"] for row in rows)
    assert (tmp_path / "folds.csv").read_text().count("\n") == len(rows) + 1
    assert "cells timed" in capsys.readouterr().out


def test_summary_classes_and_shares():
    row = folds.blank_row(peers.Cell("sum", 1, (16384, 8192), "bf16"))
    rows = [row | {"checked": "ok", "floor_us": 60.0, "time_us": t, "efficiency": e, "torch_us": 100.0}
            for t, e in ((102.0, 0.5), (110.0, 0.98))]  # fmt: skip
    text = report.summary(rows)
    assert "bf16 >=30us: mean 0.700" in text
    assert "not slower than torch, all: 1/2" in text
    assert "below 0.86: sum dim1 16384x8192 bf16 0.500" in text
