"""How long Triton takes for the kernels of drawn calls and of the cases that suites list, without a GPU.

    PYTHONPATH=src python benchmarks/compiling.py --count 200 --suites scan segment --workers 2

Drawn are the first calls of `recording.py plans`. Kernels that are alike are compiled once, for one chip, from nothing: no
cache is read. Printed are the slowest 20: processor seconds of Triton and of ptxas together, and how many of them were spent
in which stage. The exit status is 1 where one takes more than LIMIT_S and a margin: processor seconds of a machine that does
other work, too, were up to 1.15 times as many. What is beyond LIMIT_S is compiled again, alone, and the least of both counts.
"""

from __future__ import annotations

import argparse
import functools
import os
import sys
import tempfile
import time
import warnings
from collections.abc import Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from multiprocessing import get_context
from types import SimpleNamespace
from typing import Any
from unittest import mock

import recording
import torch
import triton
from triton.compiler import compiler

from tilefold.backends.triton import call as calls
from tilefold.backends.triton.call import Call
from tilefold.bench.suites import load_suite
from tilefold.errors import TilefoldError
from tilefold.planner.chips import CHIPS

LIMIT_S, MARGIN = 8.0, 1.25
SHOWN = 20
SUITES = ("folds", "gradients", "losses", "normalize", "quantized", "scan", "segment", "topk", "transpose")


@dataclass(frozen=True, order=True)
class Compiled:
    """What a kernel took: processor seconds in all, and in the stages that took the most."""

    seconds: float
    kernel: str
    said: str
    stages: str

    def __str__(self) -> str:
        return f"{self.seconds:5.1f} s  {self.kernel:16} {self.said[:70]:70}  {self.stages}"


def asked(count: int, suites: Sequence[str], cases: int) -> Iterator[tuple[str, Call]]:
    """The kernel calls of `count` drawn calls and of each suite's cases, `cases` where they are drawn, for an H200."""
    for number in range(count):
        said, call, _ = recording.drawn(recording.PLANS_SEED, number)
        try:
            _, made = recording._lowered(call) or ("", [])
        except TilefoldError:
            continue  # refused: there is no kernel
        yield from ((said, each) for each in made)
    for name in suites:
        suite = load_suite(name)
        ours = next(variant for variant in suite.variants if variant.name == "ours")
        for case in suite.select("full", 0, cases):
            with mock.patch.object(torch, "Generator", recording._Generator):
                x = case.draw("meta")
                (choice,) = ours.build(case, x)
                _, made = recording._lowered(functools.partial(choice.call, x)) or ("", [])
            yield from ((f"{name}: {case.name}", each) for each in made)


def unlike(found: Iterator[tuple[str, Call]]) -> list[tuple[str, Call]]:
    """The first call of each kernel, as `launch.compiled` tells them apart."""
    first = dict[Any, tuple[str, Call]]()
    for said, call in found:
        key = (call.source, calls.source_of(call).hash(), *sorted(calls.options_of(call).items()))
        first.setdefault(key, (said, call))
    return list(first.values())


def compiled(said: str, call: Call, architecture: int) -> Compiled:
    """One kernel, compiled from nothing."""
    stages = dict[str, float]()

    def heard(*, times: Any, **_: Any) -> None:
        found = [("Python", times.ir_initialization), *times.lowering_stages]
        stages.update({name: taken / 1e6 for name, taken in found})

    with (
        tempfile.TemporaryDirectory() as folder,
        triton.knobs.cache.scope(),
        triton.knobs.compilation.scope(),
        mock.patch.object(compiler, "time", SimpleNamespace(time=time.process_time)),
    ):
        triton.knobs.cache.dir, triton.knobs.compilation.always_compile = folder, True
        triton.knobs.compilation.listener = heard
        begun = os.times()
        calls.compile_for(call, architecture)
        ended = os.times()
    most = sorted(stages, key=lambda name: -stages[name])[:3]
    told = ", ".join(f"{name} {stages[name]:.1f}" for name in most)
    return Compiled(sum(ended[:4]) - sum(begun[:4]), call.kernel, said, told)


def main(arguments: Sequence[str] | None = None) -> int:
    """Compile, print the slowest; exit status 1 where one is beyond the limit."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--count", type=int, default=200, help="how many calls are drawn")
    parser.add_argument("--suites", nargs="*", default=SUITES, help="none after --suites alone")
    parser.add_argument("--cases", type=int, default=40, help="of a suite whose cases are drawn")
    parser.add_argument("--chip", choices=CHIPS, default="sm_90")
    parser.add_argument("--limit", type=float, default=LIMIT_S, help="seconds")
    parser.add_argument("--workers", type=int, default=1)
    given = parser.parse_args(arguments)
    warnings.simplefilter("ignore")
    made = unlike(asked(given.count, given.suites, given.cases))
    one = functools.partial(compiled, architecture=CHIPS[given.chip].architecture)
    with ProcessPoolExecutor(given.workers, mp_context=get_context("fork")) as pool:
        found = list(pool.map(one, *zip(*made, strict=True)))
    found = sorted(
        (min(f, one(*call)) if f.seconds > given.limit else f for f, call in zip(found, made, strict=True)),
        reverse=True,
    )
    print(
        f"{len(found)} kernels for {given.chip}, {sum(f.seconds for f in found):.0f} s of a processor; the slowest:"
    )
    print(*found[:SHOWN], sep="\n")
    late = [f for f in found if f.seconds > given.limit * MARGIN]
    if late:
        print(
            f"compiling: a kernel must take Triton at most {given.limit:g} s (and a margin of {MARGIN:g}), got {len(late)} "
            "beyond that; have fewer loads, stores and unrolled copies (docs/experiments/scans.md#compiled)"
        )
    return 1 if late else 0


if __name__ == "__main__":
    sys.exit(main())
