"""From measured rows to a summary and a markdown table: `python benchmarks/report.py RESULT.json ...` prints both."""

from __future__ import annotations

import csv
import json
import math
import sys
from pathlib import Path
from typing import Any

Row = dict[str, Any]
NOISE = 1.03
LOW = 0.86


def geometric_mean(values: list[float]) -> float:
    """The geometric mean; NaN of nothing."""
    return math.exp(sum(map(math.log, values)) / len(values)) if values else math.nan


def size_class(floor_us: float) -> str:
    """By the time of the bytes alone."""
    return ">=30us" if floor_us >= 30 else "8-30us" if floor_us >= 8 else "<8us"


def not_slower(rows: list[Row], peer: str) -> tuple[int, int]:
    """Cells not slower than a peer beyond the noise, and cells where both were timed."""
    both = [row for row in rows if row["time_us"] and row.get(peer)]
    return sum(row["time_us"] <= NOISE * row[peer] for row in both), len(both)


def label(row: Row) -> str:
    """The cell's short name."""
    return f"{row['operation']} dim{row['dim']} {row['shape']} {row['dtype']}"


def summary(rows: list[Row]) -> str:
    """Means by size class and dtype, the worst headline cell, the shares against peers, and what is low or wrong."""
    timed = [row for row in rows if row["efficiency"]]
    lines = [f"{len(timed)} of {len(rows)} cells timed"]
    for dtype in sorted({row["dtype"] for row in timed}):
        for name in (">=30us", "8-30us", "<8us"):
            some = [
                r["efficiency"] for r in timed if r["dtype"] == dtype and size_class(r["floor_us"]) == name
            ]
            if some:
                lines.append(
                    f"{dtype} {name}: mean {geometric_mean(some):.3f} least {min(some):.3f} of {len(some)}"
                )
    headline = sorted((row for row in timed if row["headline"]), key=lambda row: row["efficiency"])
    if headline:
        lines.append(
            f"worst headline of {len(headline)}: {label(headline[0])} {headline[0]['efficiency']:.3f}"
        )
    for peer in ("torch_us", "compile_us"):
        for name, some in (("all", timed), ("headline", headline)):
            good, both = not_slower(some, peer)
            if both:
                lines.append(f"not slower than {peer[:-3]}, {name}: {good}/{both} = {good / both:.1%}")
    low = sorted((row for row in timed if row["efficiency"] < LOW), key=lambda row: row["efficiency"])
    lines += [f"below {LOW}: {label(row)} {row['efficiency']:.3f} ({row['time_us']:.1f} us)" for row in low]
    lines += [f"NOT OK: {label(row)}: {row['checked']}" for row in rows if row["checked"] != "ok"]
    return "\n".join(lines)


def markdown(rows: list[Row]) -> str:
    """One line a cell."""
    head = "| cell | bytes alone us | us (quartiles) | efficiency | torch us | compile us | launches |"
    lines = [head, "|---|---|---|---|---|---|---|"]
    for row in rows:
        if not row["time_us"]:
            lines.append(f"| {label(row)} | {row['checked']} | | | | | |")
            continue
        peers = [f"{row[key]:.1f}" if row.get(key) else "" for key in ("torch_us", "compile_us")]
        lines.append(
            f"| {label(row)} | {row['floor_us']:.1f} | {row['time_us']:.1f} ({row['q1']:.1f}-{row['q3']:.1f}) "
            f"| {row['efficiency']:.3f} | {peers[0]} | {peers[1]} | {row['launches']} |"
        )
    return "\n".join(lines)


def write(result: dict[str, Any], folder: Path) -> None:
    """folds.json and folds.csv."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "folds.json").write_text(json.dumps(result, indent=1))
    if result["rows"]:
        with (folder / "folds.csv").open("w", newline="") as file:
            writer = csv.DictWriter(file, result["rows"][0].keys())
            writer.writeheader()
            writer.writerows(result["rows"])


def main() -> None:
    """Merge results (a later file's cell replaces an earlier one's) and print them."""
    merged: dict[str, Row] = {}
    for path in sys.argv[1:]:
        result = json.loads(Path(path).read_text())
        print(f"{path}: {result['chip']}, {result['date']}, `{result['command']}`\n")
        merged |= {label(row): row for row in result["rows"]}
    print(markdown(list(merged.values())))
    print("\n" + summary(list(merged.values())))


if __name__ == "__main__":
    main()
