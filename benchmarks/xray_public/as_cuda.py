"""Kernels of others as readable CUDA: written, taken by nvcc, and executed beside Triton's PTX.

python benchmarks/xray_public/as_cuda.py FOLDER... [--count 60 --seed 37] [--keep DIR] [--only NAME ...]

Each FOLDER has a `cases.py` with `xray_cases()` (`tilefold xray` says what these are), and the projects' checkouts in
`projects/`. Of all cases `count` are drawn by `seed`, or those named taken. Each is written in a process of its own, at most
ten minutes; nothing of the projects is kept but counts: benchmarks/xray_public/as_cuda.json, and the table in
docs/xray-cuda.md. A case that is run again keeps what came of it at first. Files of CUDA are left in DIR. Cases are run with
`ONLY=NAME` in their environment, so that a file of many may make that one alone.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parent.parent.parent
RESULTS = Path(__file__).with_name("as_cuda.json")
PAGE = ROOT / "docs" / "xray-cuda.md"
HEADING = "## Kernels of others"
_SECONDS = 600


def written(file: Path, name: str, keep: Path | None) -> dict[str, Any]:
    """One case's counts."""
    from tilefold.cli.python_files import load_file
    from tilefold.xray.compile.offline import compile_job
    from tilefold.xray.cuda import write_form
    from tilefold.xray.explain import make_job

    case = dict(load_file(file).xray_cases()[name])
    kernel = case.pop("kernel")
    source = kernel
    while hasattr(source, "fn"):
        source = source.fn
    project = source.__code__.co_filename.partition("/projects/")[2].partition("/")[0]
    made = compile_job(make_job(kernel, dict(case.pop("args")), case.pop("constants"), **case))
    start = time.perf_counter()
    form = write_form(made)
    if keep is not None:
        (keep / f"{name}.cu").write_text(form.text, encoding="utf-8")
    alone = next((x for x in form.text.splitlines()[:3] if x.startswith("// What loops")), "")
    return {
        "project": project, "case": name, "kernel": made.job.name, "ptx": len(made.ptx.splitlines()), "lines": form.lines,
        "form": form.form, "taken": not form.verdict.said.startswith("nvcc refuses"), "proven": form.verdict.proven,
        "said": form.verdict.said, "fell_back": form.fell_back, "alone": alone.partition(" alone: ")[2].rstrip("."),
        "seconds": round(time.perf_counter() - start, 1),
    }  # fmt: skip


def names(file: Path) -> list[str]:
    """The cases of a file; it is imported in a process of its own."""
    code = (
        "import sys; from pathlib import Path; from tilefold.cli.python_files import load_file\n"
        "print('\\n'.join(['', *load_file(Path(sys.argv[1])).xray_cases()]))"
    )
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", code, str(file)], capture_output=True, text=True, check=True
    )
    return done.stdout.partition("\n")[2].split("\n")[:-1]


def run(file: Path, name: str, keep: Path | None) -> dict[str, Any]:
    """One case's counts, from a process of its own."""
    command = [sys.executable, "-W", "ignore", __file__, "--one", name, str(file.parent)]
    command += ["--keep", str(keep)] if keep else []
    start = time.perf_counter()
    try:
        done = subprocess.run(
            command, capture_output=True, text=True, timeout=_SECONDS, env={**os.environ, "ONLY": name}
        )
        if done.returncode == 0:
            found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
            return found
        said = (done.stderr.strip().splitlines() or ["it ended"])[-1]
    except subprocess.TimeoutExpired:
        said = f"more than {_SECONDS} s"
    seconds = round(time.perf_counter() - start, 1)
    return {
        "project": "",
        "case": name,
        "failure": said[:300],
        "taken": False,
        "proven": False,
        "seconds": seconds,
    }


def main() -> None:
    """Draw, run, and keep the counts."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("folders", nargs="*", type=Path)
    parser.add_argument("--count", type=int, default=60)
    parser.add_argument("--skip", type=int, default=0)
    parser.add_argument("--seed", type=int, default=37)
    parser.add_argument("--keep", type=Path)
    parser.add_argument("--only", nargs="+")
    parser.add_argument("--one")
    options = parser.parse_args()
    if options.one:
        print("\n" + json.dumps(written(options.folders[0] / "cases.py", options.one, options.keep)))
        return
    held = [(folder / "cases.py", name) for folder in options.folders for name in names(folder / "cases.py")]
    random.Random(options.seed).shuffle(held)
    drawn = held[options.skip :][: options.count]
    if options.only:
        drawn = [x for x in held if x[1] in options.only]
    for file, name in drawn:
        made = run(file, name, options.keep)
        print(json.dumps(made), flush=True)
        keep(made)


def keep(made: dict[str, Any]) -> None:
    """Put a case's counts into the file and the page, with what came of it at first."""
    held = {x["case"]: x for x in json.loads(RESULTS.read_text())} if RESULTS.exists() else {}
    before = held.get(made["case"], made)
    made["first"] = before.get("first", [before.get("form", ""), before["taken"], before["proven"]])
    held[made["case"]] = made
    RESULTS.write_text(json.dumps([*held.values()], indent=1) + "\n", encoding="utf-8")
    text = PAGE.read_text(encoding="utf-8").partition(HEADING)[0].rstrip()
    PAGE.write_text(f"{text}\n\n{section([*held.values()])}", encoding="utf-8")


def section(rows: list[dict[str, Any]]) -> str:
    """The table, and what it comes to."""
    of = len(rows)
    taken, proven = (sum(x[key] for x in rows) for key in ("taken", "proven"))
    readable = sum(x.get("form") == "readable" and x["proven"] for x in rows)
    again = sum("again" in x for x in rows)
    first = [tuple(x["first"]) for x in rows]
    before = sum(form == "readable" and proven for form, _, proven in first)
    wrong = sum(not proven for _, _, proven in first)
    lines = [
        HEADING,
        "",
        f"{of} kernels of {len({x['project'] for x in rows})} public projects, drawn by a seed from those of [the X-ray's",
        f"sets](xray-public.md): nvcc takes {taken}, {proven} store the same bits, {readable} of them in the readable form.",
        f"When they were written first, and the first faults mended on the way, {before} were readable and right, {wrong}",
        "wrong; each kind of fault has a test now. The last column names what fell back to the plain form, or stands alone,",
        f"one value after another. Written by `benchmarks/xray_public/as_cuda.py`. {again} of them were launched anew on",
        "2026-11-28, with other arguments and from the projects' newest commits; the other rows are of earlier passes.",
        "",
        "| project | kernel | Triton's PTX, lines | CUDA, lines | taken | bits equal | fell back, alone |",
        "| --- | --- | ---: | ---: | --- | --- | --- |",
    ]
    for x in sorted(rows, key=lambda x: (x["project"].lower(), x["case"])):
        if "failure" in x:
            lines.append(f"| {x['project']} | {x['case']} | | | no | no | {x['failure']} |")
            continue
        back = f"plain: {x['fell_back'][:80]}" if x["fell_back"] else x["alone"] or "no"
        yes = ["yes" if x[key] else "no" for key in ("taken", "proven")]
        lines.append(
            f"| {x['project']} | `{x['kernel']}` | {x['ptx']} | {x['lines']} | {yes[0]} | {yes[1]} | {back} |"
        )
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    main()
