"""The test files nearest to a line of src: those that `record` saw run it, the most specific first, as ran.txt holds them.

A test that runs a block counts one over the number of blocks that it runs: many tests that run little else are near, one that
runs half of the library is far. A block gets at most NEAR files, whose tests take at most SECONDS of a processor together.
"""

from __future__ import annotations

import ast
import collections
import functools
import re
from collections.abc import Iterable, Mapping
from pathlib import Path

from mutants.blocks import Block, block_at, blocks

ROOT = Path(__file__).parents[2]
PACKAGE, TESTS = ROOT / "src" / "tilefold", ROOT / "tests"
TABLE = Path(__file__).with_name("ran.txt")
NEAR, SECONDS = 3, 120
# One of the files, wherever it runs a line of these: it holds all that they decide or say, as text, of many calls or kernels.
HELD = {
    "planner/": "planner/test_plans.py",
    "backends/triton/": "planner/test_plans.py",
    "xray/cuda/": "xray/cuda/test_texts.py",
    "xray/observe/": "xray/observe/test_found.py",
}
ENOUGH = 2  # of a function's files run a block, or of a module's a function: it has none of its own
ANY = "*"  # what a module says outside of functions, and functions that no test was seen to run


def files_that_ran(path: Path, line: int = 0) -> tuple[str, ...]:
    """The test files of a line's block; where it has none its function's, or its module's; none of a module since."""
    of_module = table().get(path.relative_to(PACKAGE).as_posix(), {})
    block = block_at(_blocks(path), line)
    names = [block.name, block.function, ANY] if block else [ANY]
    found = next((of_module[name] for name in names if name in of_module), ())
    return tuple(f"tests/{file}" for file in found if (TESTS / file).is_file())


@functools.cache
def _blocks(path: Path) -> list[Block]:
    return blocks(ast.parse(path.read_text(encoding="utf-8")))


@functools.cache
def table() -> dict[str, dict[str, tuple[str, ...]]]:
    """By module and block: its test files. A line names a module, or files and, behind a colon, the blocks of the module."""
    found: dict[str, dict[str, tuple[str, ...]]] = {}
    for line in TABLE.read_text(encoding="utf-8").splitlines():
        if not line.startswith(" "):
            module = found.setdefault(line, {})
            continue
        files, _, names = line.partition(": ")
        module |= dict.fromkeys(names.split(), tuple(f"{file}.py" for file in files.split()))
    return found


def chosen(tests: Mapping[str, Iterable[frozenset[str]]], seconds: Mapping[str, float]) -> str:
    """The table, of the blocks ("module block") that each test of each file runs, and what a file takes."""
    scores: dict[str, dict[str, dict[str, float]]] = collections.defaultdict(
        lambda: collections.defaultdict(lambda: collections.defaultdict(float))
    )
    for file, runs in tests.items():
        for ran in runs:
            for module, block in (name.split(" ") for name in ran):
                scores[module][block][file] += 1 / len(ran)
                scores[module][ANY][file] += 1 / len(ran)
    text = []
    for module in sorted(scores):
        groups = collections.defaultdict(list)
        found: dict[str, tuple[str, ...]] = {}
        for block in sorted(
            scores[module]
        ):  # a module's before its functions', and these before their blocks'
            files = _best(module, scores[module][block], seconds)
            outer = found.get(re.sub(r"\.\d+$", "", block), found.get(ANY, ()))
            if sum(file in scores[module][block] for file in outer) < min(len(files), ENOUGH):
                found[block] = files
                groups[files].append(block)
        text.append(module)
        text += [
            f" {' '.join(file.removesuffix('.py') for file in files)}: {' '.join(sorted(named))}"
            for files, named in sorted(groups.items())
        ]
    return "\n".join(text) + "\n"


def _best(module: str, scores: Mapping[str, float], seconds: Mapping[str, float]) -> tuple[str, ...]:
    """The one that holds all goes first: what stands last may find no place among NEAR."""
    held = [file for start, file in HELD.items() if module.startswith(start) and file in scores]
    best = held[:1]
    for file in sorted(scores, key=lambda f: (-scores[f], f)):
        if (
            file not in best
            and len(best) < NEAR
            and (not best or sum(seconds[f] for f in (*best, file)) <= SECONDS)
        ):
            best.append(file)
    return tuple(best)
