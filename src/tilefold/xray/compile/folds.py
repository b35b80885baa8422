"""The library's own folds as jobs: `logsumexp dim=1 16384x8192 bf16` planned for a chip, each launch a kernel."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import Any

from tilefold.api import dispatch
from tilefold.api.reduce import requested
from tilefold.backends.triton import call as calls
from tilefold.backends.triton.call import Call, Pointer
from tilefold.cli.fold_text import FoldText, read_fold
from tilefold.errors import ArgumentError
from tilefold.planner.chips import Chip
from tilefold.planner.device import of_chip
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
    made = dispatch.lowered(request, tensors, of_chip(chip))[1]
    if not made:
        raise ArgumentError(f"xray: a fold must have elements, got {text!r}; take sizes from 1 on")
    return [
        job_of(call, f"{text}" + (f", launch {i + 1} of {len(made)}" if len(made) > 1 else ""), chip)
        for i, call in enumerate(made)
    ]


def job_of(call: Call, name: str, chip: Chip) -> Job:
    """One launch of the library as a job: a fold's, or a product's."""
    options = calls.options_of(call)
    warps, stages = options.pop("num_warps"), options.pop("num_stages")
    arguments = []
    source = calls.source_of(call)
    for leaf_name, leaf in _named(call.arguments, source.fn.arg_names):
        if isinstance(leaf, Pointer):
            kind = calls.signature_of(leaf).removeprefix("*")
            arguments.append(Argument(leaf_name, kind, True, divisor=max(leaf.aligned, 1)))
        else:
            kind = "i32" if leaf == 1 else calls.signature_of(leaf)
            arguments.append(
                Argument(leaf_name, kind, value=leaf, divisor=math.gcd(leaf, 16) if leaf > 1 else 1)
            )
    return Job(
        call.kernel, name, tuple(arguments), call.constants, chip, (call.grid, *call.across), warps, stages,
        tuple(options.items()), source, call.cluster,
    )  # fmt: skip


def _named(arguments: Sequence[Any], names: Sequence[str]) -> Iterator[tuple[str, Any]]:
    """Leaves of nested arguments, named by where they stand: `inputs.0.1`."""
    for name, value in zip(names, arguments, strict=False):
        if isinstance(value, tuple):
            yield from _named(value, [f"{name}.{i}" for i in range(len(value))])
        else:
            yield name, value
