"""The X-ray beside Nsight Compute: sectors, conflicts, barriers and instructions of the same launches.

python benchmarks/xray_ncu profile FOLDER   on a machine with a GPU and ncu: profiles the launches
python benchmarks/xray_ncu compare FOLDER   anywhere: runs the X-ray and writes results.json and docs/xray-ncu.md
python benchmarks/xray_ncu page             writes the page again from results.json
python benchmarks/xray_ncu run [--first]    launches the kernels and nothing else: what ncu profiles
python benchmarks/xray_ncu costs FILE       on a machine with a GPU: times atomics by the places of their lanes
"""

from __future__ import annotations

import json
import sys
from datetime import datetime, timezone
from pathlib import Path

ROOT = Path(__file__).parent.parent.parent
RESULTS = Path(__file__).with_name("results.json")
PAGE = ROOT / "docs" / "xray-ncu.md"


def main(words: list[str]) -> None:
    """Do what is asked for."""
    match words:
        case ["run", *options]:
            from running import run

            run(first="--first" in options)
        case ["profile", folder]:
            from profiling import profile

            profile(Path(folder))
        case ["compare", folder]:
            _compare(Path(folder))
        case ["page"]:
            _write()
        case ["costs", file]:
            from costs import costs

            Path(file).write_text(json.dumps(costs(), indent=1) + "\n")
        case _:
            raise SystemExit(__doc__)


def _compare(folder: Path) -> None:
    from comparing import compare
    from counters import read

    files = [p for p in (folder / "hardware.csv", folder / "patched.csv") if p.is_file()]
    made = {
        "date": datetime.now(timezone.utc).date().isoformat(),
        "versions": json.loads((folder / "versions.json").read_text()),
        "launches": compare(read(*files)),
    }
    if (folder / "costs.json").is_file():
        made["costs"] = json.loads((folder / "costs.json").read_text())
    RESULTS.write_text(json.dumps(made, indent=1) + "\n")
    _write()


def _write() -> None:
    from page import page

    PAGE.write_text(page(json.loads(RESULTS.read_text())))


if __name__ == "__main__":
    main(sys.argv[1:])
