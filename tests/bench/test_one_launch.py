"""The experiment with one launch: its kernels are right where no GPU is, alone and with several programs a tile."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch

from tilefold.planner.device import H200
from tilefold.planner.products.tuned import table_of
from tilefold.xray.cuda import find_nvcc
from tilefold.xray.machine import Memory, all_programs, execute, load
from tilefold.xray.ptx import parse

ROOT = Path(__file__).parents[2]
FOLDER = ROOT / "benchmarks" / "one_launch"
needs_nvcc = pytest.mark.skipif(find_nvcc() is None, reason="no nvcc")


def test_the_last_program_finishes_in_the_interpreter() -> None:
    """Counters are zero again after each call, and so are the sums that atomics go to."""
    code = """
import torch
import triton_forms
from tilefold.bench.kernels import one_launch
a, b = torch.randn(24, 512), torch.randn(512, 40)
a[3, 5] = float("nan")
for kernel in (one_launch.counted, one_launch.added):
    for m, n, splits in ((16, 16, 4), (32, 32, 2), (16, 64, 8)):
        call, counters = triton_forms.launcher(kernel, triton_forms.Config(m, n, 64, splits, 1, False), a, b)
        for _ in range(2):
            torch.testing.assert_close(call(), torch.relu(a @ b), rtol=1e-4, atol=1e-3, equal_nan=True)
            assert not counters.any()
"""
    path = os.pathsep.join(map(str, (ROOT / "src", FOLDER)))
    environment = {**os.environ, "PYTHONPATH": path, "TRITON_INTERPRET": "1"}
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, env=environment, check=False
    )
    assert done.returncode == 0, done.stderr


def ptx(folder: Path, **defined: int) -> str:
    made = folder / "cluster.ptx"
    options = [f"-D{name}={value}" for name, value in defined.items()]
    source = str(FOLDER / "cluster.cu")
    subprocess.run(["nvcc", "-arch=sm_90a", "-ptx", *options, source, "-o", str(made)], check=True)
    return made.read_text(encoding="utf-8")


@needs_nvcc
@pytest.mark.parametrize(
    ("sizes", "tile", "warps", "stages", "first", "clusters"),
    [
        ((16, 16, 512), (16, 16), 2, 2, 0, 1),
        ((24, 40, 256), (16, 32), 2, 1, 1, 2),
        ((32, 64, 192), (32, 64), 1, 2, 1, 1),
        ((48, 16, 320), (48, 16), 2, 2, 0, 3),
    ],
    ids=str,
)
def test_a_cluster_of_one_is_right_in_the_interpreter_of_the_x_ray(
    sizes: tuple[int, int, int],
    tile: tuple[int, int],
    warps: int,
    stages: int,
    first: int,
    clusters: int,
    tmp_path: Path,
) -> None:
    """Copies, fragments, swizzles, warps folded first or not, clusters that share a tile: all but a cluster of several."""
    (rows, columns, depth), (m, n) = sizes, tile
    defined = {"BM": m, "BN": n, "WARPS": warps, "STAGES": stages, "CLUSTER": 1, "FOLD_FIRST": first}
    kernel = load(parse(ptx(tmp_path, **defined, CHAINED=0)), shared=1 << 17)
    tiles = -(-rows // m) * -(-columns // n)
    a, b = torch.randn(rows, depth).bfloat16(), torch.randn(depth, columns).bfloat16()
    a[1, 70] = float("nan")
    tensors = {
        "a": a,
        "b": b,
        "c": torch.empty(rows, columns, dtype=torch.bfloat16),
        "partials": torch.empty(clusters * tiles * m * n),
        "counters": torch.zeros(tiles, dtype=torch.int32),
    }
    memory = Memory()
    places = [memory.place(name, t.view(torch.uint8).numpy()) for name, t in tensors.items()]
    grid = (tiles * clusters, 1, 1)
    execute(kernel, memory, [*places, *sizes, clusters], grid=grid, programs=all_programs(grid))
    assert not memory.faults, memory.faults[:3]
    got = torch.from_numpy(memory.read("c", np.uint8)).view(torch.bfloat16).view(rows, columns)
    torch.testing.assert_close(
        got.double(), torch.relu(a.double() @ b.double()), rtol=2**-8, atol=1e-3, equal_nan=True
    )
    assert not memory.read("counters", np.uint8).any()


@needs_nvcc
@pytest.mark.parametrize("first", [0, 1])
def test_a_cluster_of_sixteen_compiles(first: int, tmp_path: Path) -> None:
    text = ptx(tmp_path, BM=32, BN=16, WARPS=4, STAGES=2, CLUSTER=16, FOLD_FIRST=first, CHAINED=1)
    assert ".reqnctapercluster 16" in text
    assert "mapa.shared::cluster" in text
    assert "griddepcontrol.wait" in text


def test_the_docs_show_the_committed_experiment() -> None:
    """Every form's time in a graph; what the two launches take now is the shipped table's."""
    path = ROOT / "benchmarks" / "results" / "h200" / "experiments" / "one-launch.json"
    cases = json.loads(path.read_text(encoding="utf-8"))["cases"]
    now = {
        entry.sizes[:3]: entry.plan.time_us
        for entry in table_of(H200.name).entries
        if entry.dtype == "bfloat16"
    }
    shown = (ROOT / "docs" / "experiments" / "products.md").read_text(encoding="utf-8")
    for case in cases:
        us = {row["variant"]: row["graph_us"] for row in case["measurements"]}
        times = [
            us["counted"],
            us["added"],
            us["cluster"],
            us["ours"],
            now[tuple(case["shape"])],
            us["torch"],
        ]
        (row,) = re.findall(rf"^\| {'x'.join(map(str, case['shape']))} \| (.*) \|$", shown, re.MULTILINE)
        assert [float(cell) for cell in row.split(" | ")] == pytest.approx(times, abs=0.0051)
    assert len(cases) == 6
