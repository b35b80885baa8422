"""Kernels of others as readable CUDA: written, taken by nvcc, and executed beside Triton's PTX.

python benchmarks/xray_public/as_cuda.py FOLDER... [--count 60 --seed 37] [--keep DIR] [--only NAME ...]

Each FOLDER has a `cases.py` with `xray_cases()` (`tilefold xray` says what these are), and the projects' checkouts in
`projects/`. Of all cases `count` are drawn by `seed`. Each is written in a process of its own, at most ten minutes; nothing
of the projects is kept but counts: benchmarks/xray_public/as_cuda.json, and the table in docs/xray-cuda.md. Files of CUDA are
left in DIR. Cases are run with `ONLY=NAME` in their environment, so that a file of many may make that one alone.
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
    found = []
    for file, name in drawn:
        found.append(run(file, name, options.keep))
        print(json.dumps(found[-1]), flush=True)


if __name__ == "__main__":
    main()
