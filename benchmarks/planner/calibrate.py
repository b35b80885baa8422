"""Count the machine's instructions and registers of drawn folds' kernels, compiled and executed without a GPU.

    PYTHONPATH=src python benchmarks/planner/calibrate.py --first 0 --count 400 --out benchmarks/planner/counts.jsonl

Each problem of `tilefold bench shapes` is given one of its candidate plans at random; of every launch of a small problem the
first, a middle and the last program run in the X-ray's machine. A line a launch is kept: what `fit_instructions.py` needs
to repeat the model's features, and what was counted (no instructions where warps' path through the code is not known).
`--gathered`: only problems whose rows may be gathered from one run of memory, by such plans. `--again var,vector_norm`: what
the file has of these operations is counted once more, of the same plans.
"""

from __future__ import annotations

import argparse
import json
import random
import sys
from collections.abc import Iterator, Sequence
from dataclasses import astuple, replace
from pathlib import Path
from typing import Any

from problems import Drawn, draw

from tilefold.backends.triton.lower import calls_of
from tilefold.planner.candidates import Wanted, candidates
from tilefold.planner.chips import chip_of
from tilefold.planner.choose import plan_fold, plan_of
from tilefold.planner.device import H200
from tilefold.planner.gathered import gathers
from tilefold.planner.plan import Plan, Stage
from tilefold.planner.settled import state_words
from tilefold.planner.view import view_of
from tilefold.xray.compile.folds import job_of
from tilefold.xray.compile.job import Compiled
from tilefold.xray.compile.offline import assemble, compile_job
from tilefold.xray.execution import chosen_programs, execute
from tilefold.xray.ptx import parse
from tilefold.xray.report.issued import issued
from tilefold.xray.report.static import Lines

OPERATIONS = (
    "sum", "amax", "argmax", "logsumexp", "var", "softmax_pair", "top2", "max_subarray", "max", "aminmax", "vector_norm",
)  # fmt: skip
FLOATS_ONLY = ("logsumexp", "var", "softmax_pair", "max_subarray", "vector_norm")


def drawn_plan(seed: int, size: str = "small", gathered: bool = False) -> tuple[Drawn, str, Plan] | None:
    """A problem, what folds it, and one of its plans; `gathered`: one that gathers rows, or None where there is none."""
    rng = random.Random(f"calibrate {seed}")
    while True:
        operation = rng.choice(OPERATIONS)
        found = draw(seed, size)
        if operation in FLOATS_ONLY and not found.problem.dtypes[0].is_floating_point:
            continue
        found = draw(seed, size, operation, apart=True)
        break
    if gathered and not gathers(found.problem, view_of(found.problem), state_words(found.program)):
        return None
    rule = plan_fold(found.problem, found.program, H200, "run_to_run", "rules").stages[0]
    view = view_of(found.problem)
    if rng.random() < 0.3:  # as the rules plan large inputs
        view = replace(view, bytes=1 << 28)
    stages = candidates(Wanted(rule, view, found.problem, found.geometry, found.program, H200))
    if gathered:
        stages = tuple(stage for stage in stages if stage.gathered)
    stage = rng.choice(stages)
    return found, operation, plan_of(stage, found.problem, found.program, H200)


def committed_plan(line: dict[str, Any]) -> tuple[Drawn, str, Plan]:
    """The problem and the plan of a counted launch."""
    found = draw(line["seed"], line.get("size", "small"), line["operation"], apart=True)
    plan = plan_of(Stage(*line["stages"][0]), found.problem, found.program, H200)
    return found, line["operation"], plan


def count_launches(seed: int, size: str, drawn: tuple[Drawn, str, Plan] | None) -> Iterator[dict[str, Any]]:
    """What the machine issues and occupies, for each launch of a plan; programs of large problems are not executed."""
    if drawn is None:
        return
    found, operation, plan = drawn
    made = calls_of(plan, found.problem, found.program)
    for number, call in enumerate(made):
        compiled = compile_job(job_of(call, "drawn", chip_of("sm_90")))
        machine = assemble(compiled)
        programs = chosen_programs((call.grid, 1, 1), None)
        yield {
            "seed": seed,
            "size": size,
            "operation": operation,
            "launch": number,
            "stages": [list(astuple(stage)) for stage in plan.stages],
            "programs": [p[0] for p in programs],
            "registers": machine.resources.registers,
            "spilled": machine.resources.spill_stores + machine.resources.stack,
            "shared": machine.resources.shared,
            "instructions": _instructions(compiled, machine.code, programs) if size == "small" else None,
        }


def _instructions(compiled: Compiled, code: str, programs: Any) -> float | None:
    """Instructions of one warp, on average over the programs; None where the way through the code is not known."""
    module = parse(compiled.ptx)
    execution = execute(compiled, module, programs)
    (entry,) = module.entries
    found, _ = issued(code, entry.instructions, Lines(module, compiled.ptx), execution)
    if found is None:
        return None
    total = sum(n for opcode, n in found.opcodes.items() if opcode != "NOP")
    return total / len(programs) / compiled.num_warps


def recount(lines: list[str], operations: Sequence[str]) -> Iterator[str]:
    """The lines, those of some operations counted anew of the plans that they have."""
    for line in lines:
        old = json.loads(line)
        if old["operation"] not in operations:
            yield line
        elif old["launch"] == 0:
            drawn = committed_plan(old)
            yield from map(written, count_launches(old["seed"], old.get("size", "small"), drawn))


def written(one: dict[str, Any]) -> str:
    """A launch as a line."""
    return json.dumps(one, separators=(",", ":"))


def main() -> None:
    """Count, and add to the file."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--first", type=int, default=0)
    parser.add_argument("--count", type=int, default=100)
    parser.add_argument("--size", default="small", choices=("small", "full"))
    parser.add_argument("--gathered", action="store_true")
    parser.add_argument("--again", default="", help="operations, between commas")
    parser.add_argument("--out", type=Path, required=True)
    given = parser.parse_args()
    lines = given.out.read_text().splitlines() if given.out.exists() else []
    if given.again:
        given.out.write_text("\n".join(recount(lines, given.again.split(","))) + "\n")
        return
    for seed in range(given.first, given.first + given.count):
        try:
            drawn = drawn_plan(seed, given.size, given.gathered)
            lines += map(written, count_launches(seed, given.size, drawn))
        except Exception as error:  # one kernel that does not compile or run is a line less, and is said
            print(f"{seed}: {type(error).__name__}: {str(error)[:150]}", file=sys.stderr)
        if seed % 20 == 19:
            given.out.write_text("\n".join(lines) + "\n")
            print(seed, len(lines), flush=True)
    given.out.write_text("\n".join(lines) + "\n")


if __name__ == "__main__":
    main()
