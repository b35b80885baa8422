"""Plant each fault of `planted` in a copy of the sources and run the tests that must catch it: python tests/mutants/run.py.

Exit status 1 if a fault survives, if one no longer fits its file, or if a test fails without any. With `--drawn 60 --seed 1`
the faults are drawn (`drawn`) and the nearest tests run: which survive is to be judged by hand, and is no failure.
"""

from __future__ import annotations

import argparse
import compileall
import json
import os
import py_compile
import re
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
    parser.add_argument("--every", type=int, default=1, help="of the planted faults one of so many")
    parser.add_argument("--first", type=int, default=0, help="from this one on, modulo `every`")
    arguments = parser.parse_args()
    faults = drawn(arguments.seed, arguments.drawn) if arguments.drawn else MUTANTS
    faults = faults[arguments.first % arguments.every :: arguments.every]
    chosen = [m for m in faults if arguments.only in m.name or arguments.only in m.file]
    with tempfile.TemporaryDirectory(prefix="tilefold-mutants-") as folder:
        copies: SimpleQueue[Copy] = SimpleQueue()
        every = [Copy(Path(folder) / str(number)) for number in range(arguments.workers)]
        for copy in every:
            copies.put(copy)

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
        sound = _shown(_sound(every[0], list(dict.fromkeys(named))))
        for copy in every:
            copy.close()
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


def _sound(copy: Copy, tests: list[str]) -> Verdict:
    """The same tests without a fault: none may fail."""
    began = time.monotonic()
    status, failed = copy.pytest(tests, timeout=10 * TIMEOUT) if tests else (0, "")
    said = "sound" if status == 0 else f"red without a fault (pytest's exit status {status})"
    return Verdict("no fault", said, time.monotonic() - began, failed)


def _tried(copy: Copy, mutant: Mutant, *, drawn: bool) -> Verdict:
    began = time.monotonic()
    path = copy.folder / "src" / "tilefold" / mutant.file
    source = path.read_text(encoding="utf-8")
    if source.count(mutant.old) != 1:
        return Verdict(mutant.name, f"not there once: {source.count(mutant.old)} times", 0.0)
    try:
        path.write_text(source.replace(mutant.old, mutant.new), encoding="utf-8")
        status, failed = copy.pytest(mutant.tests, timeout=TIMEOUT)
    finally:
        path.write_text(source, encoding="utf-8")
    said = {FAILED: "caught", 0: "survived", None: "timed out"}.get(
        status, "caught" if drawn and status in BROKEN else f"not run (pytest's exit status {status})"
    )
    return Verdict(
        mutant.name, said, time.monotonic() - began, failed or " ".join(mutant.tests) if drawn else ""
    )


class Copy:
    """A copy of the sources and tests, and a process that runs pytest in forks of itself there (`forks`)."""

    def __init__(self, folder: Path) -> None:
        self.folder = _copied(folder)
        environment = {
            "OMP_NUM_THREADS": "1",
            "PYTHONDONTWRITEBYTECODE": "1",
            "PYTHONPATH": str(folder / "src"),
        }
        self._forks = subprocess.Popen(
            [sys.executable, str(ROOT / "tests/mutants/forks.py")],
            cwd=folder,
            env=os.environ | environment,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )

    def pytest(self, tests: list[str] | tuple[str, ...], *, timeout: int) -> tuple[int | None, str]:
        """Its exit status, None where it took too long, and the first test that failed."""
        assert self._forks.stdin is not None
        assert self._forks.stdout is not None
        printed = self.folder / "printed"
        arguments = ["-q", "-x", "-p", "no:cacheprovider", *tests]
        print(json.dumps([arguments, timeout, str(printed)]), file=self._forks.stdin, flush=True)
        status = json.loads(self._forks.stdout.readline())
        failed = re.search(
            r"^(?:FAILED|ERROR) (.+?)(?: - |$)", printed.read_text(errors="replace"), re.MULTILINE
        )
        return status, failed[1] if failed else ""

    def close(self) -> None:
        """End the process."""
        self._forks.communicate()


if __name__ == "__main__":
    sys.exit(main())
