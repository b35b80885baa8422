"""Plans of scans with a tile of one's own, whatever the planner would choose."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import torch

from tilefold.algebra import program as programs
from tilefold.planner import scans
from tilefold.planner.device import H200
from tilefold.planner.plan import Buffer, Launch, LibraryCall, Plan
from tilefold.planner.problem.canonical import Problem
from tilefold.planner.stages.scans import ScanTile, Work

Tensor = torch.Tensor


def planned(
    tensors: Sequence[Tensor], program: programs.Program, dim: int, tile: ScanTile, work: Work
) -> tuple[Problem, Plan]:
    """A plan of one tile's making; of shared lines, in as many shares as they need."""
    problem = scans.scan_problem(tensors, dim, "run_to_run")
    plan = scans.plan_scan(problem, program, work, H200, "run_to_run")
    reads, writes = plan.launched[0].reads, tuple(w for w in plan.launched[0].writes if w != "words")
    tile = replace(tile, work=work)
    if not tile.shares:
        return problem, replace(plan, steps=(Launch("scan_lines", tile, reads, writes),), workspaces=())
    tile = replace(tile, shares=-(-(problem.length + tile.align - 1) // tile.length))
    words = scans.state_words(scans.scan_program(program, work, problem.length))
    buffer = Buffer("words", (scans.shared_words(problem, tile, words),), torch.int64)
    steps = (LibraryCall("zeroed", (), ("words",)), Launch("scan_tiles", tile, reads, (*writes, "words")))
    return problem, replace(plan, steps=steps, workspaces=(buffer,))
