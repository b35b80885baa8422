"""Plant each fault of `planted` in a copy of the sources and run the tests that must catch it: python tests/mutants/run.py.

Exit status 1 if a fault survives, if one no longer fits its file, or if a test fails without any. With `--drawn 60 --seed 1`
the faults are drawn (`drawn`) and the nearest tests run: which survive is to be judged by hand, and is no failure.
"""

from __future__ import annotations

import argparse
import compileall
import functools
import os
import py_compile
import re
import resource
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
from mutants.drawn import drawn  # noqa: E402  # the path comes first
from mutants.planted import MUTANTS, Mutant  # noqa: E402

TIMEOUT = 300  # seconds of one fault's tests: of a processor's, and on the clock four times as many
# pytest's exit status where tests ran and failed, and those where a module could not be imported.
FAILED, BROKEN = 1, (2, 4)
COPIED = ("src", "tests", "benchmarks", "docs", "examples", "pyproject.toml", "Makefile")


@dataclass(frozen=True)
class Verdict:
    """What became of one fault: "caught" and by which test, "survived", or why that cannot be said."""

    name: str
    said: str
    seconds: float
    by: str = ""


def main() -> int:
    """Exit status 1 unless all are caught; of drawn faults, unless every test that caught one passes without."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--only", default="", help="faults whose name or file holds this")
    parser.add_argument("--drawn", type=int, default=0, help="draw so many faults instead")
    parser.add_argument("--seed", type=int, default=1, help="of the faults that are drawn")
    arguments = parser.parse_args()
    faults = drawn(arguments.seed, arguments.drawn) if arguments.drawn else MUTANTS
    chosen = [m for m in faults if arguments.only in m.name or arguments.only in m.file]
    with tempfile.TemporaryDirectory(prefix="tilefold-mutants-") as folder:
        copies: SimpleQueue[Path] = SimpleQueue()
        for number in range(arguments.workers):
            copies.put(_copied(Path(folder) / str(number)))

        def tried(mutant: Mutant) -> Verdict:
            copy = copies.get()
            try:
                return _tried(copy, mutant, drawn=bool(arguments.drawn))
            finally:
                copies.put(copy)

        with ThreadPoolExecutor(arguments.workers) as pool:
            running = [pool.submit(tried, mutant) for mutant in chosen]
            verdicts = [_shown(done.result()) for done in as_completed(running)]
        named = (
            [v.by for v in verdicts if "::" in v.by]
            if arguments.drawn
            else [t for m in chosen for t in m.tests]
        )
        sound = _shown(_sound(copies.get(), list(dict.fromkeys(named))))
    wrong = [v for v in verdicts if v.said != "caught"]
    if wrong:
        print(f"{len(verdicts)} faults, {len(wrong)} not caught:")
        print("\n".join(f"    {v.name}: {v.said}" for v in wrong))
    else:
        print(f"all {len(verdicts)} faults caught")
    return 1 if sound.said != "sound" or (wrong and not arguments.drawn) else 0


def _shown(verdict: Verdict) -> Verdict:
    by = f"  [{verdict.by}]" if verdict.by else ""
    print(f"{verdict.said:>10}  {verdict.seconds:5.1f} s  {verdict.name}{by}", flush=True)
    return verdict


def _copied(folder: Path) -> Path:
    """Sources and tests, compiled so that the bytes of a source decide and not its time: a fault takes no second."""
    folder.mkdir()
    for name in COPIED:
        if (ROOT / name).is_dir():
            ignored = shutil.ignore_patterns("__pycache__", "*.egg-info")
            shutil.copytree(ROOT / name, folder / name, ignore=ignored)
        else:
            shutil.copy(ROOT / name, folder)
    for name in ("src", "tests"):
        hashed = py_compile.PycInvalidationMode.CHECKED_HASH
        compileall.compile_dir(folder / name, quiet=2, invalidation_mode=hashed)
    return folder


def _sound(copy: Path, tests: list[str]) -> Verdict:
    """The same tests without a fault: none may fail."""
    began = time.monotonic()
    status, failed = _pytest(copy, tests, timeout=10 * TIMEOUT) if tests else (0, "")
    said = "sound" if status == 0 else f"red without a fault (pytest's exit status {status})"
    return Verdict("no fault", said, time.monotonic() - began, failed)


def _tried(copy: Path, mutant: Mutant, *, drawn: bool) -> Verdict:
    began = time.monotonic()
    path = copy / "src" / "tilefold" / mutant.file
    source = path.read_text(encoding="utf-8")
    if source.count(mutant.old) != 1:
        return Verdict(mutant.name, f"not there once: {source.count(mutant.old)} times", 0.0)
    try:
        path.write_text(source.replace(mutant.old, mutant.new), encoding="utf-8")
        status, failed = _pytest(copy, mutant.tests, timeout=TIMEOUT)
    finally:
        path.write_text(source, encoding="utf-8")
    said = {FAILED: "caught", 0: "survived", None: "timed out"}.get(
        status, "caught" if drawn and status in BROKEN else f"not run (pytest's exit status {status})"
    )
    return Verdict(
        mutant.name, said, time.monotonic() - began, failed or " ".join(mutant.tests) if drawn else ""
    )


def _pytest(copy: Path, tests: list[str] | tuple[str, ...], *, timeout: int) -> tuple[int | None, str]:
    """Its exit status, None where it took too long, and the first test that failed."""
    command = [sys.executable, "-m", "pytest", "-q", "-x", "-p", "no:cacheprovider", *tests]
    environment = {
        **os.environ,
        "OMP_NUM_THREADS": "1",
        "PYTHONDONTWRITEBYTECODE": "1",
        "PYTHONPATH": str(copy / "src"),
    }
    try:
        done = subprocess.run(
            command,
            cwd=copy,
            env=environment,
            timeout=4 * timeout,
            preexec_fn=functools.partial(resource.setrlimit, resource.RLIMIT_CPU, (timeout, timeout)),
            capture_output=True,
            text=True,
            check=False,
        )
    except subprocess.TimeoutExpired:
        return None, ""
    if done.returncode < 0:  # the processor's limit is a signal
        return None, ""
    failed = re.search(r"^(?:FAILED|ERROR) (.+?)(?: - |$)", done.stdout, re.MULTILINE)
    return done.returncode, failed[1] if failed else ""


if __name__ == "__main__":
    sys.exit(main())
