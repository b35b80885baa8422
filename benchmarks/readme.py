"""The README's table of measured results, from benchmarks/results/folds-h200.json.

python benchmarks/readme.py           rewrites the part between the markers
python benchmarks/readme.py --check   exits 1 and says so in one line if that part says anything else
"""

from __future__ import annotations

import json
import re
import sys
import textwrap
from pathlib import Path
from typing import Any

import report

ROOT = Path(__file__).parent.parent
RESULTS = ROOT / "benchmarks" / "results" / "folds-h200.json"
BEGIN = "<!-- measured: written by benchmarks/readme.py -->"
END = "<!-- /measured -->"
PEERS = {"torch_us": "torch", "compile_us": "torch.compile"}
Row = dict[str, Any]


def load(path: Path = RESULTS) -> dict[str, Any]:
    """The committed run."""
    results: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    return results


def headline(results: dict[str, Any]) -> list[Row]:
    """The headline cells that were checked and timed, in the run's order."""
    return [row for row in results["rows"] if row.get("headline") and row.get("time_us")]


def peers_of(rows: list[Row]) -> list[str]:
    """The peers that any of these rows was timed against."""
    return [key for key in PEERS if any(row.get(key) for row in rows)]


def provenance(results: dict[str, Any]) -> str:
    """Chip, versions and day."""
    chip = results["chip"].replace("NVIDIA NVIDIA", "NVIDIA")
    return f"{chip}, torch {results['torch']}, Triton {results['triton']}, {results['date'][:10]}"


def command_text(results: dict[str, Any]) -> str:
    """The command that repeats the run, without where it left its output."""
    return re.sub(r" --out \S+", "", results["command"])


def time_text(time_us: float) -> str:
    """Microseconds in two or three digits."""
    return f"{time_us:.0f} us" if time_us >= 20 else f"{time_us:.1f} us"


def shape_text(text: str) -> str:
    """A long axis that is a power of two reads better as one."""
    sizes = [int(n) for n in text.split("x")]
    return "x".join(f"2^{n.bit_length() - 1}" if n >= 1 << 20 and n & (n - 1) == 0 else str(n) for n in sizes)


def table(results: dict[str, Any]) -> list[list[str]]:
    """Head and rows: the fold, its input, microseconds, the faster peer's as a multiple of ours, the share of the limit."""
    rows = headline(results)
    peers = peers_of(rows)
    lines = [
        ["fold", "input", "tilefold", *(PEERS[p] for p in peers), *(["ratio"] * bool(peers)), "of the limit"]
    ]
    for row in rows:
        times = [time_text(row[p]) if row.get(p) else "-" for p in peers]
        known = [row[p] for p in peers if row.get(p)]
        faster = [f"{min(known) / row['time_us']:.1f}" if known else "-"] * bool(peers)
        cell = [f"{row['operation']} dim {row['dim']}", f"{shape_text(row['shape'])} {row['dtype']}"]
        lines.append([*cell, time_text(row["time_us"]), *times, *faster, f"{row['efficiency']:.2f}"])
    return lines


def sentences(results: dict[str, Any]) -> list[str]:
    """What can be said of all cells, the bad with the good."""
    timed = [row for row in results["rows"] if row.get("time_us")]
    said = [f"{len(timed)} of {len(results['rows'])} cells of the grid were checked and timed."]
    for key, name in PEERS.items():
        good, both = report.not_slower(timed, key)
        if both:
            said.append(f"Against {name}: not slower beyond 3 % in {good} of {both}.")
    large = [row["efficiency"] for row in timed if row.get("floor_us", 0) >= 30]
    small = [row["efficiency"] for row in timed if row.get("floor_us", 8) < 8]
    for values, which in ((large, "take 30 us and more"), (small, "take less than 8 us")):
        if values:
            mean = report.geometric_mean(values)
            said.append(
                f"Inputs whose bytes alone {which}: {mean:.2f} of the limit on average, {min(values):.2f} at worst."
            )
    return said


def render(results: dict[str, Any]) -> str:
    """The part of the README between the markers."""
    lines = table(results)
    head = (
        f"{provenance(results)}. The limit is the time of the compulsory bytes at the copy bandwidth of the same run "
        f"({results['copy_gb_per_s']:.0f} GB/s) plus that of as many empty launches; 1.00 would be perfect. The ratio is the "
        "faster peer's time over tilefold's. Medians, cold L2; every answer was checked before it was timed."
    )
    text = [
        textwrap.fill(head, 126),
        "",
        "| " + " | ".join(lines[0]) + " |",
        "|---|---|" + "---:|" * (len(lines[0]) - 2),
        *("| " + " | ".join(line) + " |" for line in lines[1:]),
        "",
        textwrap.fill(" ".join(sentences(results)), 126),
    ]
    return "\n".join(text)


def replaced(page: str, part: str) -> str:
    """The page with another part between the markers."""
    before, begin, rest = page.partition(BEGIN)
    _, end, after = rest.partition(END)
    if not begin or not end:
        raise SystemExit(
            f"README.md must hold the lines {BEGIN} and {END}, got a page without; put them back"
        )
    return f"{before}{BEGIN}\n{part}\n{END}{after}"


def main(argv: list[str], page: Path = ROOT / "README.md", results: Path = RESULTS) -> int:
    """Rewrite or check the README."""
    old = page.read_text(encoding="utf-8")
    new = replaced(old, render(load(results)))
    if "--check" not in argv:
        page.write_text(new, encoding="utf-8")
        return 0
    if old != new:
        print(
            "README.md must show what benchmarks/results holds, got another table; run python benchmarks/readme.py"
        )
    return int(old != new)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
