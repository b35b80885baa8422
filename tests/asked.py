"""What a call of the library asks for, and its kernels executed from their PTX, without a GPU."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import pytest
import torch

from scanned import leaves
from tilefold.api.dispatch import _is_written_at_once
from tilefold.api.requests import Request
from tilefold.backends.steps import run_steps
from tilefold.backends.triton.call import Call
from tilefold.backends.triton.executable import LIBRARY, fill
from tilefold.backends.triton.lower import calls_of
from tilefold.planner.device import H200, Device
from tilefold.planner.plan import Plan
from tilefold.runtime.switch import ExplainedError, explaining
from tilefold.xray.machine import Outcome
from xray.running import run_call

Tensor = torch.Tensor


@dataclass(frozen=True)
class Ran:
    """What came of a plan: its results, and for each launch in order its call and what each program did."""

    plan: Plan
    results: list[Tensor]
    launches: list[tuple[Call, list[Outcome]]]


def asked(call: Callable[[], Any], device: Device = H200) -> tuple[Request, list[Tensor], Plan]:
    """What a call asks for, and its plan."""
    with pytest.raises(ExplainedError) as found, explaining():
        call()
    request, tensors = found.value.request, list(found.value.tensors)
    return request, tensors, request.plan(tensors, device, library=True)[1]


def executed(call: Callable[[], Any], device: Device = H200) -> tuple[list[Tensor], Plan]:
    """The results of a call's kernels, compiled for the device and executed from their PTX."""
    request, tensors, _ = asked(call, device)
    ran = run(request, tensors, device)
    return ran.results, ran.plan


def by_ptx(
    call: Callable[[], Any], device: Device = H200, out: Sequence[Tensor] | None = None
) -> list[Tensor]:
    """A call's results, also of one that needs no kernel; as on a GPU copied into an `out` that kernels do not write to."""
    try:
        with explaining():
            made = call()
    except ExplainedError as found:
        at_once = out is not None and all(map(_is_written_at_once, out))
        results = run(found.request, list(found.tensors), device, out if at_once else None).results
        if out is None or at_once:
            return results
        return [t.copy_(result.reshape(t.shape)) for t, result in zip(out, results, strict=True)]
    return leaves(made)


def run(
    request: Request,
    tensors: Sequence[Tensor],
    device: Device = H200,
    out: Sequence[Tensor] | None = None,
    named: Sequence[Tensor] = (),
) -> Ran:
    """Plan, compile and execute; into `out` where it is given. What no program writes is 9. `named`: as in `run_call`."""
    problem, plan = request.plan(tensors, device, library=True)
    made = calls_of(plan, problem, request.computation)
    results = (
        [torch.full(shape, 9).to(dtype) for shape, dtype in request.results] if out is None else list(out)
    )
    found: list[tuple[Call, list[Outcome]]] = []

    def launch(call: Call, reads: Sequence[Tensor], writes: Sequence[Tensor]) -> None:
        found.append((call, run_call(call, reads, writes, device.capability, named=named)))

    launches = [functools.partial(launch, call) for call in made]
    run_steps(plan, tensors, results, launches, LIBRARY, functools.partial(fill, request.computation))
    return Ran(plan, results, found)
