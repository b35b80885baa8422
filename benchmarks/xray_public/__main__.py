"""Kernels of public packages under the X-ray: launched by their own wrappers, executed, compared with torch.

python benchmarks/xray_public             runs all, writes benchmarks/xray_public/results.json and docs/xray-public.md
python benchmarks/xray_public liger gelu  runs cases whose package or name holds one of the words, and only shows them
python benchmarks/xray_public --sources DIR [word ...]
                                          runs cases of the projects whose checkouts lie in DIR (see checkouts.PROJECTS)
python benchmarks/xray_public --sources DIR --plants
                                          puts faults into files of theirs (plants.py) and asks whether they are found
python benchmarks/xray_public --page      writes the page again from the JSON

Needs the packages (pip install --no-deps liger-kernel flag-gems fla-core einops pyyaml sqlalchemy greenlet) and no GPU:
`tilefold.xray.capture` stands in for one. Their code is imported: it runs with your rights.
"""

from __future__ import annotations

import json
import sys
import time
from datetime import datetime, timezone
from importlib.metadata import version
from pathlib import Path
from typing import Any

import checkouts
import torch
from compared import Case, difference
from launches import captured, records, within
from page import page

ROOT = Path(__file__).parent.parent.parent
RESULTS = Path(__file__).with_name("results.json")
LABELS = Path(__file__).with_name(
    "labels.json"
)  # each claim judged by its source, before its reason was read
PAGE = ROOT / "docs" / "xray-public.md"
PACKAGES = ("torch", "triton", "liger-kernel", "flag-gems", "fla-core")
_SECONDS = 120


def run_case(case: Case) -> dict[str, Any]:
    """One case: its launches, and how its results differ from torch's."""
    torch.manual_seed(0)
    start, failure, checked, wrong = time.perf_counter(), "", 0, list[str]()
    with captured() as found:
        try:
            with within(_SECONDS):
                for got, want in case.run():
                    checked += 1
                    wrong += [said] if (said := difference(got, want)) else []
        except Exception as error:  # a package's wrapper may raise anything: it is what the table shows
            failure = f"{type(error).__name__}: {error}".splitlines()[0][:300]
    launches = records(found)
    if not all(x["executed"] for x in launches):  # what such a launch writes is unknown, and was not compared
        failure = failure or next(x["unknown"] or x["error"] for x in launches if not x["executed"])
    return {
        "package": case.package, "case": case.name, "checked": checked, "wrong": wrong, "failure": failure,
        "seconds": round(time.perf_counter() - start, 1), "launches": launches,
    }  # fmt: skip


def main(words: list[str]) -> None:
    """Run the cases that are asked for."""
    if words == ["--page"]:
        PAGE.write_text(page(json.loads(RESULTS.read_text())))
    elif words[:1] == ["--sources"] and words[2:] == ["--plants"]:
        _of_plants(Path(words[1]))
    elif words[:1] == ["--sources"]:
        _of_checkouts(Path(words[1]), words[2:])
    else:
        _of_packages(words)


def _of_packages(words: list[str]) -> None:
    import gems
    import graphs
    import liger
    import linear_attention

    cases = [*liger.cases(), *gems.cases(), *linear_attention.cases(), *graphs.cases()]
    found = _run(cases, words)
    if not words:
        _keep(found, {"target": "sm_90", "versions": {name: version(name) for name in PACKAGES}})


def _of_checkouts(sources: Path, words: list[str]) -> None:
    """Cases of the projects whose checkouts are there; of those named, if any are. All that was run is kept."""
    import of_serving
    import of_training

    there = checkouts.enter(sources)
    cases = [c for c in (*of_training.cases(), *of_serving.cases()) if c.package in there]
    found = _run(cases, words)
    revisions = {c["package"]: list(checkouts.source(sources, c["package"])) for c in found}
    _keep(found, {"sources": {**_kept().get("sources", {}), **revisions}})


def _of_plants(sources: Path) -> None:
    """Put every fault, and keep what the X-ray said."""
    import plants

    there = checkouts.enter(sources)
    found = []
    for plant in plants.PLANTS:
        if plant.package in there:
            found.append(plants.tried(plant))
            print(
                f"{plant.name:32} {plant.code:18} {'found' if found[-1]['found'] else 'NOT FOUND'}",
                flush=True,
            )
    _keep([], {"planted": found})


def _run(cases: list[Case], words: list[str]) -> list[dict[str, Any]]:
    found = []
    for case in cases:
        if words and not any(w in case.package or w == case.name for w in words):
            continue
        found.append(run_case(case))
        kernels = ", ".join(dict.fromkeys(x["kernel"] for x in found[-1]["launches"]))
        said = found[-1]["failure"] or "; ".join(found[-1]["wrong"]) or f"agrees ({found[-1]['checked']})"
        print(
            f"{case.package:18} {case.name:28} {found[-1]['seconds']:6.1f} s  {said}  [{kernels}]", flush=True
        )
    return found


def _kept() -> dict[str, Any]:
    held: dict[str, Any] = json.loads(RESULTS.read_text()) if RESULTS.exists() else {}
    return held


def _keep(found: list[dict[str, Any]], further: dict[str, Any]) -> None:
    """Put cases in the place of those of the same name, and write the page."""
    made = {**_kept(), **further, "date": datetime.now(timezone.utc).date().isoformat()}
    by_name = {(c["package"], c["case"]): c for c in [*made.get("cases", []), *found]}
    made["cases"] = list(by_name.values())
    made["labels"] = json.loads(LABELS.read_text())
    RESULTS.write_text(json.dumps(made, indent=1) + "\n")
    PAGE.write_text(page(made))


if __name__ == "__main__":
    main(sys.argv[1:])
