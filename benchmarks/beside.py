"""Two sources of tilefold beside each other: the cells of suites, timed in turns on one device, with their answers compared.

    python benchmarks/beside.py OLD/src src shapes:811:67 normalize scan --budget-s 500 --jobs 7 --out beside.jsonl
    python benchmarks/beside.py OLD/src src folds --size small --device cpu

`shapes:811:67` are 67 cases drawn by seed 811. OLD is a folder such as `git archive COMMIT src | tar x -C OLD` writes; both
must have `tilefold.bench`. First processes compile each source's kernels, into a cache of its own. Then one process of each
source makes a cell, and both time it twice: old, new, old, new, each by the bench's clock with a cold L2. A cell that one
source lacks or refuses is named. A line is written for each cell as soon as it is timed: {suite, case, old_us, new_us,
ratios, differ}. Prints of each suite the geometric mean of new over old (each the lesser of two times), cells that are
slower by 5 % in both repeats, and those whose answers differ.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import math
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

REPEATS, SLOWER = 2, 1.05
SHARE = 2e-3  # of sums of magnitudes, by which other orders of the same sum may differ
SIDES = ("old", "new")


# ------------------------------------------------------------------------------------------- in a process of one source


def cases_of(suite: str, size: str) -> tuple[dict[str, Any], Any]:
    """The suite's cases by name, and its own variant's `build`."""
    from tilefold.bench.suites import load_suite

    name, *drawn = suite.split(":")
    found = load_suite(name)
    seed, count = map(int, drawn) if drawn else (0, 60)
    ours = next(v for v in found.variants if v.name == "ours")
    return {case.name: case for case in found.select(size, seed, count)}, ours.build


def made(case: Any, build: Any, device: str) -> tuple[Any, Any, list[float]]:
    """The case's call, its input, and a sum of magnitudes of each result."""
    import torch

    x = case.draw(device)
    call = build(case, x)[0].call
    results = call(x)
    tensors = [
        t for t in (results if isinstance(results, list | tuple) else (results,)) if hasattr(t, "dtype")
    ]
    sums = [float(torch.nan_to_num(t.detach().double(), 0, 0, 0).abs().sum()) for t in tensors]
    return call, x, sums


def compile_part(suites: Sequence[str], size: str, device: str, part: int, parts: int, until: float) -> None:
    """Make every so many-th cell once."""
    import torch

    for suite in suites:
        cases, build = cases_of(suite, size)
        for case in list(cases.values())[part::parts]:
            if time.time() > until:
                return
            with contextlib.suppress(Exception):  # the process that times says so
                made(case, build, device)
            if device != "cpu":
                torch.cuda.empty_cache()


def serve(size: str, device: str) -> None:
    """Answer one question a line: the names of a suite's cases, a cell made, its time."""
    from tilefold.bench.timing import DeviceClock, HostClock, Pace, Stopwatch

    answers, known, held = os.fdopen(os.dup(1), "w"), dict[str, Any](), dict[str, Any]()
    os.dup2(2, 1)  # what others print is no answer
    watch = Stopwatch(HostClock() if device == "cpu" else DeviceClock(device), Pace(4.0, 16.0))
    for line in sys.stdin:
        do, suite, case = json.loads(line)
        answer: Any
        try:
            if suite not in known:
                known[suite] = cases_of(suite, size)
            cases, build = known[suite]
            if do == "names":
                answer = list(cases)
            elif do == "make":
                held.clear()
                call, x, answer = made(cases[case], build, device)
                held["it"] = lambda call=call, x=x: call(x)
            else:
                answer = watch.time(held)["it"].median_us
        except Exception as error:
            answer = {"error": f"{type(error).__name__}: {' '.join(str(error).split())}"[:300]}
        answers.write(json.dumps(answer) + "\n")
        answers.flush()


# ------------------------------------------------------------------------------------------------------- the one that asks


def environment(source: str, side: str, caches: str) -> dict[str, str]:
    """A process's environment: its source, and caches of its own."""
    folder = Path(caches) / side
    return os.environ | {
        "PYTHONPATH": str(Path(source).resolve()),
        "TRITON_CACHE_DIR": str(folder / "triton"),
        "XDG_CACHE_HOME": str(folder),
        "OMP_NUM_THREADS": "1",
    }


class Side:
    """A process that makes and times cells of one source."""

    def __init__(self, words: list[str], env: dict[str, str]) -> None:
        self._process = subprocess.Popen(
            words,
            env=env,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
        )

    def ask(self, do: str, suite: str, case: str = "") -> Any:
        """The answer to a question.

        Raises:
            RuntimeError: the process has ended.
        """
        assert self._process.stdin
        assert self._process.stdout
        with contextlib.suppress(BrokenPipeError):
            self._process.stdin.write(json.dumps([do, suite, case]) + "\n")
            self._process.stdin.flush()
        line = self._process.stdout.readline()
        if not line:
            raise RuntimeError(f"a process ended with exit code {self.end()} at {do} {suite} {case}")
        return json.loads(line)

    def end(self) -> int:
        """Let the process end: its exit code."""
        self._process.communicate()
        return self._process.returncode


def cell(sides: dict[str, Side], suite: str, case: str) -> dict[str, Any]:
    """What is found of one cell."""
    row: dict[str, Any] = {"suite": suite, "case": case}
    sums = {name: side.ask("make", suite, case) for name, side in sides.items()}
    if errors := {name: s["error"] for name, s in sums.items() if isinstance(s, dict)}:
        return row | {"errors": errors}
    times: dict[str, list[float]] = {name: [] for name in SIDES}
    for _ in range(REPEATS):
        for name, side in sides.items():
            times[name].append(side.ask("time", suite, case))
    near = [math.isclose(a, b, rel_tol=SHARE, abs_tol=1e-30) for a, b in zip(*sums.values(), strict=False)]
    differ = len(sums["old"]) != len(sums["new"]) or not all(near)
    ratios = [new / old for old, new in zip(times["old"], times["new"], strict=True)]
    return row | {"old_us": times["old"], "new_us": times["new"], "ratios": ratios, "differ": differ}


def rows_of(
    sides: dict[str, Side], suites: Sequence[str], only: str, until: float
) -> Iterator[dict[str, Any]]:
    """All cells that both sources have, as long as there is time."""
    for suite in suites:
        names = {name: side.ask("names", suite) for name, side in sides.items()}
        for case in [c for c in names["new"] if only in c]:
            if time.time() > until:
                return
            yield cell(sides, suite, case) if case in names["old"] else {
                "suite": suite, "case": case, "errors": {"old": "no such case"},
            }  # fmt: skip


def told(rows: Sequence[dict[str, Any]]) -> Iterator[str]:
    """The lines that are printed."""
    for suite in dict.fromkeys(row["suite"] for row in rows):
        some = [row for row in rows if row["suite"] == suite]
        timed = [row for row in some if "ratios" in row]
        if timed:
            logs = [math.log(min(row["new_us"]) / min(row["old_us"])) for row in timed]
            slower = sum(min(row["ratios"]) > SLOWER for row in timed)
            mean = math.exp(sum(logs) / len(logs))
            yield f"{suite}: {len(timed)} of {len(some)} cells, new / old {mean:.4f}, {slower} slower by 5 % in both repeats"
        for row in some:
            if "errors" in row:
                yield f"  {row['case']}: {row['errors']}"
            elif row["differ"]:
                yield f"  {row['case']}: answers differ"
            elif min(row["ratios"]) > SLOWER:
                old, new = (", ".join(f"{t:.1f}" for t in row[f"{name}_us"]) for name in SIDES)
                yield f"  {row['case']}: {old} -> {new} us"


def main(arguments: Sequence[str] | None = None) -> int:
    """Compile, time, print; 1 where answers differ."""
    parser = argparse.ArgumentParser(description=str(__doc__).splitlines()[0])
    parser.add_argument("old", metavar="OLD", help="a folder that holds tilefold")
    parser.add_argument("new", metavar="NEW", help="another one")
    parser.add_argument("suites", nargs="+", metavar="SUITE", help="of `tilefold bench`, or SUITE:SEED:COUNT")
    parser.add_argument("--only", default="", help="cells whose name holds this")
    parser.add_argument("--size", default="full", choices=("full", "small"))
    parser.add_argument("--device", default="cuda")
    parser.add_argument(
        "--jobs", type=int, default=4, help="processes of each source that compile; 0 for none"
    )
    parser.add_argument("--compile-s", type=float, default=180.0, help="that they have")
    parser.add_argument(
        "--budget-s", type=float, default=540.0, help="cells that are not begun by then are left out"
    )
    parser.add_argument("--out", type=Path, help="a file of lines")
    given = parser.parse_args(arguments)
    begun, rows = time.time(), list[dict[str, Any]]()
    with tempfile.TemporaryDirectory() as caches, contextlib.ExitStack() as stack:
        envs = {
            s: environment(source, s, caches) for s, source in zip(SIDES, (given.old, given.new), strict=True)
        }

        def words(call: str) -> list[str]:
            here = f"import sys; sys.path.append({str(Path(__file__).parent)!r}); import beside"
            return [sys.executable, "-c", f"{here}; beside.{call}"]

        until, asked = begun + given.compile_s, (given.suites, given.size, given.device)
        compiling = [
            subprocess.Popen(words(f"compile_part(*{asked!r}, {part}, {given.jobs}, {until})"), env=env)
            for env in envs.values()
            for part in range(given.jobs)
        ]
        for process in compiling:
            process.wait()
        sides = {
            name: Side(words(f"serve({given.size!r}, {given.device!r})"), env) for name, env in envs.items()
        }
        out = stack.enter_context(given.out.open("w")) if given.out else None
        for row in rows_of(sides, given.suites, given.only, begun + given.budget_s):
            rows.append(row)
            if out:
                print(json.dumps(row), file=out, flush=True)
        for side in sides.values():
            side.end()
    print(*told(rows), sep="\n")
    return int(any(row.get("differ") for row in rows))


if __name__ == "__main__":
    sys.exit(main())
