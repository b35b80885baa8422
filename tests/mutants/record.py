"""Write ran.txt: run all test files, and note which blocks of src each test runs (`blocks`, `ran`).

python tests/mutants/record.py --workers 2, an hour of a processor. A block sets a flag as it runs; the functions of a kernel
count as run where they are put together for a launch. Each file has a process, so that none misses what another has cached.
Of a test CASES cases run, and no more begin after SECONDS. What runs at import belongs to no test.
"""

from __future__ import annotations

import argparse
import ast
import atexit
import builtins
import collections
import importlib.machinery
import os
import random
import resource
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).parents[2]
sys.path[:0] = [str(ROOT / "src"), str(ROOT / "tests")]
from mutants.blocks import blocks  # noqa: E402  # the path comes first
from mutants.ran import PACKAGE, TABLE, TESTS, chosen  # noqa: E402

CASES, SECONDS = 2, 15
FOLDER = "TILEFOLD_RAN"  # where processes that tests start leave their flags
STARTED = f"""\
import os, sys
if {FOLDER!r} in os.environ:
    sys.path.insert(0, {str(ROOT / "tests")!r})
    from mutants import record
    record.watch()
"""


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("files", nargs="*", help="of tests, below tests/; all without")
    parser.add_argument("--workers", type=int, default=1)
    parser.add_argument(
        "--into", type=Path, help="keep what tests run in this folder, and leave out files that it has"
    )
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        Path(folder, "sitecustomize.py").write_text(STARTED, encoding="utf-8")
        os.environ |= {"PYTHONPATH": os.pathsep.join([folder, str(ROOT / "src")]), "OMP_NUM_THREADS": "1"}
        os.chdir(ROOT)
        names = watch()
        import pytest  # noqa: F401  # every process would import it

        watch_kernels(names)
        into = arguments.into or Path(folder, "ran")
        into.mkdir(exist_ok=True)
        running = 0
        for test in arguments.files or test_files():
            out = into / test.replace("/", "+")
            if out.exists():
                continue
            if running == arguments.workers:
                os.wait()
                running -= 1
            print(test, flush=True)
            if not os.fork():
                os._exit(_recorded(TESTS / test, out))
            running += 1
        while running:
            os.wait()
            running -= 1
        TABLE.write_text(written(names, into), encoding="utf-8")
    return 0


def test_files() -> list[str]:
    """Those that need no device."""
    every = (t.relative_to(TESTS).as_posix() for t in sorted(TESTS.rglob("test_*.py")))
    return [t for t in every if "gpu" not in t and not t.startswith("mutants/")]


def written(names: list[str], into: Path) -> str:
    """The table of what all have run: a file's lines are a test, seconds for all of the file, flags."""
    tests, seconds = {}, {}
    for out in sorted(into.iterdir()):
        file = out.name.replace("+", "/")
        runs = collections.defaultdict[str, set[str]](set)
        for line in out.read_text(encoding="utf-8").splitlines():
            test, whole, ran = line.split("\t")
            runs[test] |= {names[int(number)] for number in ran.split()}
            seconds[file] = float(whole)
        tests[file] = [frozenset(ran) for ran in runs.values() if ran]
    return chosen(tests, seconds)


# ----------------------------------------------------------------------------------------------------------- flags


def watch() -> list[str]:
    """From now on modules of the package are compiled with flags; their names, "module block"."""
    names: list[str] = []
    first: dict[str, int] = {}
    for path in sorted(PACKAGE.rglob("*.py")):
        file = path.relative_to(PACKAGE).as_posix()
        first[file] = len(names)
        names += [f"{file} {block.name}" for block in blocks(ast.parse(path.read_text(encoding="utf-8")))]
    flags = builtins.__tilefold_ran__ = bytearray(len(names))
    loader = importlib.machinery.SourceFileLoader
    compiled = loader.source_to_code

    def source_to_code(self, data, path, *, _optimize=-1):
        where = Path(path)
        # Triton reads the text and the names of its functions: they stay as they are.
        if where.is_relative_to(PACKAGE) and where.parent.name != "kernels":
            data = _flagged(ast.parse(data), first[where.relative_to(PACKAGE).as_posix()])
        return compiled(self, data, path, _optimize=_optimize)

    loader.source_to_code = source_to_code
    sys.dont_write_bytecode, sys.pycache_prefix = True, os.path.join(tempfile.gettempdir(), "no-bytecode")
    if folder := os.environ.get(FOLDER):
        atexit.register(lambda: Path(folder, str(os.getpid())).write_bytes(bytes(flags)))
    return names


def _flagged(tree: ast.Module, first: int) -> ast.Module:
    for number, block in reversed(list(enumerate(blocks(tree), first))):
        (flag,) = ast.parse(f"__tilefold_ran__[{number}] = 1").body
        for node in ast.walk(flag):
            ast.copy_location(node, block.statements[block.begin])
        block.statements.insert(block.begin, flag)
    return tree


def watch_kernels(names: list[str]) -> None:
    """Set the flags of a kernel's functions where they are put together."""
    from tilefold.backends.triton import instantiate, launch  # noqa: F401  # imports whatever asks for kernels

    flags, made = builtins.__tilefold_ran__, instantiate.kernel
    numbers = {name: number for number, name in enumerate(names)}

    def kernel(name, source, interpret):
        module = next(m for m in instantiate._MODULES if name in vars(m))
        for function in instantiate._reached(vars(module)[name]).values():
            file = Path(function.__code__.co_filename).relative_to(PACKAGE).as_posix()
            flags[numbers[f"{file} {function.__name__}"]] = 1
        return made(name, source, interpret)

    for module in [m for n, m in sys.modules.items() if n.startswith("tilefold")]:
        for key in [k for k, value in vars(module).items() if value is made]:
            setattr(module, key, kernel)


# ----------------------------------------------------------------------------------------------------- one file's tests


def _recorded(test: Path, out: Path) -> int:
    """In a process of its own: run a file's tests and write what they run."""
    import pytest

    quiet = os.open(os.devnull, os.O_WRONLY)
    os.dup2(quiet, 1)
    os.dup2(quiet, 2)
    resource.setrlimit(resource.RLIMIT_CPU, (8 * SECONDS, 8 * SECONDS))
    with tempfile.TemporaryDirectory() as folder, tempfile.TemporaryFile("w+") as file:
        os.environ[FOLDER] = folder
        pytest.main(["-q", "-p", "no:cacheprovider", str(test)], plugins=[_Recorder(file, Path(folder))])
        file.seek(0)
        out.write_text(file.read(), encoding="utf-8")
    return 0


class _Recorder:
    """A plugin of pytest: after each test it writes the flags that are set."""

    def __init__(self, file, folder):
        self.file, self.folder, self.flags = file, folder, builtins.__tilefold_ran__

    def pytest_collection_modifyitems(self, items):
        cases = collections.defaultdict(list)
        for item in items:
            cases[item.nodeid.partition("[")[0]].append(item)
        self.every = len(items)
        items[:] = [c[i * len(c) // CASES] for c in cases.values() for i in range(CASES)[: len(c)]]
        random.Random(1).shuffle(items)

    def pytest_sessionstart(self, session):
        self.session, self.began, self.done = session, _seconds(), 0

    def pytest_runtest_logstart(self):
        self.flags[:] = bytes(len(self.flags))

    def pytest_runtest_logfinish(self, nodeid):
        ran = {number for number, flag in enumerate(self.flags) if flag}
        for file in self.folder.iterdir():
            ran |= {number for number, flag in enumerate(file.read_bytes()) if flag}
            file.unlink()
        self.done += 1
        used = _seconds() - self.began
        whole = used * self.every / self.done
        print(
            nodeid.partition("[")[0],
            f"{whole:.1f}",
            " ".join(map(str, sorted(ran))),
            sep="\t",
            file=self.file,
        )
        self.session.shouldstop = used > SECONDS and "enough"


def _seconds() -> float:
    return sum(resource.getrusage(who).ru_utime for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN))


if __name__ == "__main__":
    sys.exit(main())
