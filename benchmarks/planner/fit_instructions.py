"""Fit what `planner/instructions` predicts to what `calibrate.py` counted, and write the coefficients.

    PYTHONPATH=src python benchmarks/planner/fit_instructions.py benchmarks/planner/counts.jsonl \
        --out src/tilefold/planner/fitted.py
    PYTHONPATH=src python benchmarks/planner/fit_instructions.py benchmarks/planner/gathered.jsonl --only gathering,gathered

Least squares of relative errors with coefficients that are not negative; every fifth problem is held back and its error
printed. `--only`: the other coefficients stay as `fitted.py` has them. No GPU is needed.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from problems import draw

from tilefold.planner import fitted as fitted_before
from tilefold.planner import instructions
from tilefold.planner.folds import partial_dtypes
from tilefold.planner.geometry import partials_geometry
from tilefold.planner.memory_requests import place_of
from tilefold.planner.plan import Stage
from tilefold.planner.traffic import all_loads, unroll_of
from tilefold.planner.walk import tiling_of, walk_of

HELD_BACK = 5  # every fifth problem
Array = NDArray[np.float64]


@dataclass(frozen=True)
class Counted:
    """One launch: its features, what was counted (None: not known), and its problem's seed."""

    seed: int
    operation: str
    work: list[float]
    space: list[float]
    instructions: float | None
    registers: int
    stage: Stage


def read_counts(path: Path) -> list[Counted]:
    """The lines of `calibrate.py` with the model's features, as they are computed now."""
    return [counted(json.loads(line)) for line in path.read_text().splitlines() if line]


def counted(line: dict[str, Any]) -> Counted:
    """One line's launch, its problem drawn again."""
    found = draw(line["seed"], line.get("size", "small"), line["operation"], apart=True)
    stages = [Stage(*values) for values in line["stages"]]
    number, stage = line["launch"], stages[line["launch"]]
    partials = number > 0
    geometry, program = found.geometry, found.program
    if partials:
        sizes = tuple(d.itemsize for d in partial_dtypes(program))
        geometry = partials_geometry(found.problem.outputs, stages[0].splits, sizes)
    walk = walk_of(geometry, stage)
    loads = all_loads(geometry, stage, walk)
    tile = instructions.tile_of(loads, stage, unroll_of(stage, walk))
    work = instructions.work_of(program, stage.absorb, partials)
    stores = len(program.state) if number < len(stages) - 1 else len(program.outputs)
    rows = [
        instructions.features(
            geometry,
            stage,
            walk,
            tiling_of(stage, walk, geometry.length, place_of(geometry, walk, n)[2]),
            tile,
            work,
            stores,
        )
        for n in line["programs"]
    ]
    space = instructions.register_features(geometry, stage, walk, tile, loads, work)
    mean = [sum(column) / len(rows) for column in zip(*rows, strict=True)]
    return Counted(
        line["seed"], line["operation"], mean, space, line["instructions"], line["registers"], stage
    )


def solved(matrix: Array, right: Array, weights: Array, turns: int = 4000) -> Array:
    """Coefficients that are not negative and make the least weighted squares (coordinate descent)."""
    a, b = matrix * weights[:, None], right * weights
    square, product = a.T @ a, a.T @ b
    found = np.zeros(a.shape[1])
    for _ in range(turns):
        before = found.copy()
        for j in np.flatnonzero(np.diag(square) > 0):
            found[j] = max(0.0, found[j] + (product[j] - square[j] @ found) / square[j, j])
        if np.abs(found - before).max() < 1e-7:
            break
    return found


def fitted(rows: Array, right: Array, seeds: Sequence[int], label: str) -> Array:
    """The coefficients of all, after the error of a fit to four fifths on the rest was printed."""
    held = np.array([seed % HELD_BACK == 0 for seed in seeds])
    part = solved(rows[~held], right[~held], 1 / right[~held])
    for name, which in (("fitted", ~held), ("held back", held)):
        ratio = rows[which] @ part / right[which]
        error = np.sort(np.abs(ratio - 1))
        print(
            f"{label}, {which.sum()} {name}: mean error {error.mean():.3f}, median {np.median(error):.3f}, "
            f"ninth tenth {error[int(0.9 * len(error))]:.3f}, mean ratio {ratio.mean():.3f}"
        )
    return solved(rows, right, 1 / right)


def only(names: Sequence[str], work: Array, right: Array, seeds: Sequence[int]) -> None:
    """Fit and print these coefficients, with the error of all."""
    kept = [0.0 if n in names else fitted_before.INSTRUCTIONS.get(n, 0.0) for n in instructions.FEATURES]
    held = np.array([seed % HELD_BACK == 0 for seed in seeds])
    new = [instructions.FEATURES.index(n) for n in names]

    def found(which: Array) -> Array:
        rest = right[which] - work[which] @ np.array(kept)
        return solved(work[which][:, new], rest, 1 / right[which])

    part = found(~held)
    for name, which in (("fitted", ~held), ("held back", held)):
        error = np.sort(
            np.abs((work[which] @ np.array(kept) + work[which][:, new] @ part) / right[which] - 1)
        )
        print(f"{which.sum()} {name}: mean error {error.mean():.3f}, median {np.median(error):.3f}")
    print(dict(zip(names, found(np.ones(len(right), bool)).round(3), strict=True)))


def written(name: str, doc: str, keys: Sequence[str], values: Array) -> str:
    """A table of coefficients as Python."""
    lines = "".join(f'    "{key}": {value:.3f},\n' for key, value in zip(keys, values, strict=True))
    return f"# {doc}\n{name} = {{\n{lines}}}\n"


def main() -> None:
    """Fit, print errors, write."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("counts", type=Path)
    parser.add_argument("--out", type=Path)
    parser.add_argument("--worst", type=int, default=0, help="show so many launches with the largest errors")
    parser.add_argument("--only", help="names of coefficients, between commas")
    given = parser.parse_args()
    launches = read_counts(given.counts)
    known = [one for one in launches if one.instructions is not None]
    work = np.array([one.work for one in known])
    right = np.array([one.instructions for one in known], float)
    if given.only:
        only(given.only.split(","), work, right, [one.seed for one in known])
        return
    per_warp = fitted(work, right, [one.seed for one in known], "instructions")
    space = np.array([one.space for one in launches])
    registers = np.array([one.registers for one in launches], float)
    per_thread = fitted(space, registers, [one.seed for one in launches], "registers")
    for i in np.argsort(-np.abs(np.log(work @ per_warp / right)))[: given.worst]:
        one = known[i]
        print(f"{one.seed} {one.operation}: {work[i] @ per_warp:.0f} for {right[i]:.0f}, {one.stage}")
        print({k: round(v, 1) for k, v in zip(instructions.FEATURES, one.work, strict=True) if v})
    text = '"""Coefficients of `instructions`. Written by benchmarks/planner/fit_instructions.py."""\n\n'
    text += written(
        "INSTRUCTIONS",
        "Instructions of a warp, by what it does (docs/experiments/planning.md#model).",
        instructions.FEATURES,
        per_warp,
    )
    text += written(
        "REGISTERS",
        "Registers of a thread, by what it holds (docs/experiments/planning.md#model).",
        instructions.REGISTERS,
        per_thread,
    )
    if given.out:
        given.out.write_text(text)
    else:
        print(text)


if __name__ == "__main__":
    main()
