"""The library's own kernels as jobs: a fold such as `logsumexp dim=1 16384x8192 bf16`, or any call, planned for a chip."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import Any

import torch
from torch import Tensor

from tilefold.api import dispatch
from tilefold.api.explain import request_of
from tilefold.api.reduce import requested
from tilefold.api.requests import Request
from tilefold.api.requests.segments import Segments
from tilefold.backends.triton import call as calls
from tilefold.backends.triton.call import Call, Pointer
from tilefold.cli.fold_text import FoldText, read_fold
from tilefold.errors import ArgumentError
from tilefold.planner.chips import Chip
from tilefold.planner.device import of_chip
from tilefold.planner.plan import Launch
from tilefold.xray.compile.arguments import Argument
from tilefold.xray.compile.job import Job


def fold_jobs(text: str, chip: Chip) -> list[Job]:
    """The launches of a fold of the library, in their order. The text is of `tilefold.cli.fold_text`'s words.

    Raises:
        ArgumentError: the text names no monoid, dim, shape or dtype, or there is nothing to fold.
        DimError, DtypeError, RepeatedDimError: the fold does not fit its tensor.
        CompileError: the monoid's file does not import.
    """
    try:
        return jobs_of_fold(read_fold(text), text, chip)
    except ArgumentError as error:
        raise ArgumentError(f"xray: {str(error).removeprefix('xray: ')}") from None


def jobs_of_fold(fold: FoldText, text: str, chip: Chip) -> list[Job]:
    """The same of a fold that is read; `text` names it.

    Raises:
        ArgumentError: there is nothing to fold, or its tensors cannot be.
        DimError, DtypeError, RepeatedDimError: the fold does not fit its tensor.
    """
    tensors = fold.tensors()
    request, tensors = requested(tensors, fold.monoid, fold.dims, fold.guarantee, "xray")
    made = jobs_of_request(request, tensors, text, chip)
    if not made:
        raise ArgumentError(f"xray: a fold must have elements, got {text!r}; take sizes from 1 on")
    return made


def jobs_of_call(
    inputs: Any, operation: Any, words: dict[str, Any], guarantee: str, text: str, chip: Chip
) -> list[Job]:
    """The launches of a call as `explain_plan` is given it; none where no kernel of the library answers."""
    others = dict(words)
    found = request_of(inputs, operation, others.pop("dim", None), guarantee, others)
    return [] if found is None else jobs_of_request(*found, text, chip)


def jobs_of_request(request: Request, tensors: Sequence[Tensor], text: str, chip: Chip) -> list[Job]:
    """The launches of any request of the library.

    What its tensors of whole numbers hold is kept, where they are not on "meta"; segments without data are of about one
    length, and memory that an earlier step clears is zero.
    """
    plan, made = dispatch.lowered(request, tensors, of_chip(chip))
    whole = (t.is_contiguous() and not (t.is_meta or t.is_floating_point()) for t in tensors)
    held = {f"input{i}": t for i, (t, own) in enumerate(zip(tensors, whole, strict=True)) if own}
    if isinstance(request, Segments):
        count = tensors[-1].numel() - 1
        length = tensors[0].shape[request.dim]
        held.setdefault(f"input{len(tensors) - 1}", torch.arange(count + 1) * length // count)
    jobs: list[Job] = []
    calls_left = iter(made)
    for step in plan.steps:
        if isinstance(step, Launch):
            name = f"{text}, launch {len(jobs) + 1} of {len(made)}" if len(made) > 1 else text
            data = [held.get(buffer) for buffer in (*step.reads, *step.writes)]
            jobs.append(job_of(next(calls_left), name, chip, data))
        if getattr(step, "kernel", "") == "clear" or getattr(step, "function", "") == "zeroed":
            held |= {
                b.name: torch.zeros(b.shape, dtype=b.dtype) for b in plan.workspaces if b.name in step.writes
            }
    return jobs


def job_of(call: Call, name: str, chip: Chip, data: Sequence[Tensor | None] = ()) -> Job:
    """One launch of the library as a job; `data` has what its pointers' tensors hold, in their order, where that is known."""
    options = calls.options_of(call)
    warps, stages = options.pop("num_warps"), options.pop("num_stages")
    arguments = []
    known = iter(data)
    source = calls.source_of(call)
    for leaf_name, leaf in _named(call.arguments, source.fn.arg_names):
        if isinstance(leaf, Pointer):
            kind = calls.signature_of(leaf).removeprefix("*")
            of_this = next(known, None)
            array = None if of_this is None else of_this.contiguous().flatten().numpy()
            arguments.append(Argument(leaf_name, kind, True, divisor=max(leaf.aligned, 1), data=array))
        else:
            kind = "i32" if leaf == 1 else calls.signature_of(leaf)
            arguments.append(
                Argument(leaf_name, kind, value=leaf, divisor=math.gcd(leaf, 16) if leaf > 1 else 1)
            )
    constants: list[tuple[str, Any]] = []
    for constant, value in call.constants:
        fields = getattr(value, "_fields", None)
        constants += (
            [(constant, value)] if fields is None else _named(value, [f"{constant}.{f}" for f in fields])
        )
    return Job(
        call.kernel, name, tuple(arguments), tuple(constants), chip, (call.grid, *call.across), warps, stages,
        tuple(options.items()), source, call.cluster, call.shared_bytes,
    )  # fmt: skip


def _named(arguments: Sequence[Any], names: Sequence[str]) -> Iterator[tuple[str, Any]]:
    """Leaves of nested arguments, named by where they stand: `inputs.0.pointer`, `sizes.deep.0`."""
    for name, value in zip(names, arguments, strict=False):
        if isinstance(value, tuple):
            fields = getattr(value, "_fields", range(len(value)))
            yield from _named(value, [f"{name}.{field}" for field in fields])
        else:
            yield name, value
