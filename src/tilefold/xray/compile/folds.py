"""The library's own folds as jobs: `logsumexp dim=1 16384x8192 bf16` planned for a chip, each launch a kernel."""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Sequence
from typing import Any

import torch

from tilefold import monoids
from tilefold.algebra import program as programs
from tilefold.algebra.monoid import Monoid
from tilefold.backends.triton import call as calls
from tilefold.backends.triton.call import Call, Pointer
from tilefold.backends.triton.launch import stage_calls
from tilefold.errors import ArgumentError
from tilefold.planner.choose import plan_fold
from tilefold.planner.device import Device
from tilefold.problem import canonical
from tilefold.xray.chips import Chip
from tilefold.xray.compile.arguments import Argument
from tilefold.xray.compile.job import Job

_DTYPES = {"bf16": "bfloat16", "fp16": "float16", "fp32": "float32", "fp64": "float64", "i32": "int32", "i64": "int64",
           "i8": "int8", "u8": "uint8", "i16": "int16"}  # fmt: skip
_FORM = 'write it like "logsumexp dim=1 16384x8192 bf16"'


def fold_jobs(text: str, chip: Chip) -> list[Job]:
    """The launches of a fold of the library, in their order.

    Raises:
        ArgumentError: the text names no monoid, dim, shape or dtype.
    """
    monoid, dim, shape, dtype = _read(text)
    program = programs.specialize(monoid.total, (dtype,) * monoid.total.inputs)
    tensors = [torch.empty(shape, dtype=dtype, device="meta") for _ in range(monoid.total.inputs)]
    problem = canonical(tensors, (dim,), ordered=not monoid.commutative)
    device = Device(chip.name, chip.cores, chip.architecture, chip.gb_per_s)
    plan = plan_fold(problem, program, device, "run_to_run")
    made = stage_calls(plan, problem, program, interpret=False)
    return [
        job_of(call, f"{text}" + (f", launch {i + 1} of {len(made)}" if len(made) > 1 else ""), chip)
        for i, call in enumerate(made)
    ]


def _read(text: str) -> tuple[Monoid, int, list[int], torch.dtype]:
    found = re.fullmatch(r"\s*(\w+)\s+dim=(-?\d+)\s+(\d+(?:x\d+)*)\s+(\w+)\s*", text)
    if found is None:
        raise ArgumentError(
            f"xray: --fold must be a monoid, a dim, a shape and a dtype, got {text!r}; {_FORM}"
        )
    monoid: Any = getattr(monoids, found[1].upper(), None)
    if not isinstance(monoid, Monoid):
        raise ArgumentError(
            f"xray: --fold must begin with a monoid of tilefold.monoids, got {found[1]!r}; {_FORM}"
        )
    dtype: Any = getattr(torch, _DTYPES.get(found[4], found[4]), None)
    if not isinstance(dtype, torch.dtype):
        raise ArgumentError(f"xray: --fold must end in a dtype, got {found[4]!r}; {_FORM}")
    shape, dim = [int(n) for n in found[3].split("x")], int(found[2])
    if not -len(shape) <= dim < len(shape):
        raise ArgumentError(
            f"xray: --fold must fold a dim in [{-len(shape)}, {len(shape) - 1}], got {dim}; {_FORM}"
        )
    return monoid, dim % len(shape), shape, dtype


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
        call.kernel, name, tuple(arguments), call.constants, chip, (call.grid, 1, 1), warps, stages,
        tuple(options.items()), source,
    )  # fmt: skip


def _named(arguments: Sequence[Any], names: Sequence[str]) -> Iterator[tuple[str, Any]]:
    """Leaves of nested arguments, named by where they stand: `inputs.0.1`."""
    for name, value in zip(names, arguments, strict=False):
        if isinstance(value, tuple):
            yield from _named(value, [f"{name}.{i}" for i in range(len(value))])
        else:
            yield name, value
