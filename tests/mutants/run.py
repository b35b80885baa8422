"""Plant each fault of `planted` in a copy of the sources and run the tests that must catch it: python tests/mutants/run.py.

Exit status 1 if a fault survives, if one no longer fits its file, or if a test fails without any.
"""

from __future__ import annotations

import argparse
import compileall
import os
import py_compile
import shutil
import subprocess
import sys
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor, as_completed
from dataclasses import dataclass
from pathlib import Path
from queue import SimpleQueue

ROOT = Path(__file__).parents[2]
sys.path.insert(0, str(ROOT / "tests"))
from mutants.planted import MUTANTS, Mutant  # noqa: E402  # the path comes first

TIMEOUT = 300  # seconds of one fault's tests
FAILED = 1  # pytest's exit status where tests ran and failed; any other is a fault of this run


@dataclass(frozen=True)
class Verdict:
    """What became of one fault: "caught", "survived", or why that cannot be said."""

    name: str
    said: str
    seconds: float


def main() -> int:
    """Exit status 1 unless all are caught."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--only", default="", help="faults whose name or file holds this")
    arguments = parser.parse_args()
    chosen = [m for m in MUTANTS if arguments.only in m.name or arguments.only in m.file]
    with tempfile.TemporaryDirectory(prefix="tilefold-mutants-") as folder:
        copies: SimpleQueue[Path] = SimpleQueue()
        for number in range(arguments.workers):
            copies.put(_copied(Path(folder) / str(number)))

        def tried(mutant: Mutant | None) -> Verdict:
            copy = copies.get()
            try:
                return _sound(copy, chosen) if mutant is None else _tried(copy, mutant)
            finally:
                copies.put(copy)

        verdicts = []
        with ThreadPoolExecutor(arguments.workers) as pool:
            for done in as_completed([pool.submit(tried, mutant) for mutant in (None, *chosen)]):
                verdict = done.result()
                verdicts.append(verdict)
                print(f"{verdict.said:>10}  {verdict.seconds:5.1f} s  {verdict.name}", flush=True)
    wrong = [v for v in verdicts if v.said not in ("caught", "sound")]
    print(
        f"{len(verdicts) - 1} faults, {len(wrong)} not caught"
        if wrong
        else f"all {len(verdicts) - 1} faults caught"
    )
    return 1 if wrong else 0


def _copied(folder: Path) -> Path:
    """Sources and tests, compiled so that the bytes of a source decide and not its time: a fault takes no second."""
    for name in ("src", "tests", "benchmarks/planner", "examples"):
        shutil.copytree(
            ROOT / name, folder / name, ignore=shutil.ignore_patterns("__pycache__", "*.egg-info")
        )
    shutil.copy(ROOT / "pyproject.toml", folder)
    hashed = py_compile.PycInvalidationMode.CHECKED_HASH
    compileall.compile_dir(folder, quiet=2, invalidation_mode=hashed)
    return folder


def _sound(copy: Path, mutants: list[Mutant]) -> Verdict:
    """The same tests without a fault: none may fail."""
    began = time.monotonic()
    tests = dict.fromkeys(test for mutant in mutants for test in mutant.tests)
    status = _pytest(copy, [*tests], stop=True, timeout=10 * TIMEOUT)
    said = "sound" if status == 0 else f"red without a fault (pytest's exit status {status})"
    return Verdict("no fault", said, time.monotonic() - began)


def _tried(copy: Path, mutant: Mutant) -> Verdict:
    began = time.monotonic()
    path = copy / "src" / "tilefold" / mutant.file
    source = path.read_text(encoding="utf-8")
    if source.count(mutant.old) != 1:
        return Verdict(mutant.name, f"not there once: {source.count(mutant.old)} times", 0.0)
    try:
        path.write_text(source.replace(mutant.old, mutant.new), encoding="utf-8")
        status = _pytest(copy, mutant.tests, stop=True, timeout=TIMEOUT)
    finally:
        path.write_text(source, encoding="utf-8")
    said = {FAILED: "caught", 0: "survived", None: "timed out"}.get(
        status, f"not run (pytest's exit status {status})"
    )
    return Verdict(mutant.name, said, time.monotonic() - began)


def _pytest(copy: Path, tests: list[str] | tuple[str, ...], *, stop: bool, timeout: float) -> int | None:
    """Its exit status, or None where it took too long."""
    command = [
        sys.executable,
        "-m",
        "pytest",
        "-q",
        "-p",
        "no:cacheprovider",
        *(["-x"] if stop else []),
        *tests,
    ]
    environment = {
        **os.environ,
        "OMP_NUM_THREADS": "1",
        "PYTHONDONTWRITEBYTECODE": "1",
        "PYTHONPATH": str(copy / "src"),
    }
    try:
        return subprocess.run(
            command,
            cwd=copy,
            env=environment,
            timeout=timeout,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        ).returncode
    except subprocess.TimeoutExpired:
        return None


if __name__ == "__main__":
    sys.exit(main())
