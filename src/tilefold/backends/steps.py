"""A plan's steps, run one after the other on named tensors: whatever a launch is there."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import torch

from tilefold.planner.plan import Fill, LibraryCall, Plan

Tensor = torch.Tensor


def run_steps(
    plan: Plan,
    inputs: Sequence[Tensor],
    outputs: Sequence[Tensor],
    launches: Sequence[Callable[[Sequence[Tensor], Sequence[Tensor]], None]],
    library: Mapping[str, Callable[..., Tensor | None]],
    fill: Callable[[Sequence[Tensor]], None],
) -> None:
    """Run a plan whose launches, functions of (tensors read, tensors written), are at hand; results go to `outputs`.

    `library` has torch's functions by the plan's names for them; `fill` stores results of folding nothing.
    """
    named = {f"input{i}": t for i, t in enumerate(inputs)} | {f"output{i}": t for i, t in enumerate(outputs)}
    named |= {b.name: torch.empty(b.shape, dtype=b.dtype, device=inputs[0].device) for b in plan.workspaces}
    made = iter(launches)
    for step in plan.steps:
        writes = [named[name] for name in step.writes if name in named]
        if isinstance(step, Fill):
            fill(writes)
            continue
        reads = [named[name] for name in step.reads]
        if isinstance(step, LibraryCall):
            result = library[step.function](*reads, *writes)
            if result is not None:
                named[step.writes[0]] = result
        else:
            next(made)(reads, writes)
