"""Kernels compiled offline and run by the interpreter of the X-ray, on tensors."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
import triton
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource

from tilefold.algebra.program import Program
from tilefold.backends.triton import call as calls
from tilefold.backends.triton.call import Call, Pointer
from tilefold.backends.triton.launch import stage_calls
from tilefold.planner.choose import plan_fold
from tilefold.planner.device import Device
from tilefold.problem import canonical
from tilefold.xray.machine import Kernel, Memory, Outcome, load, run
from tilefold.xray.ptx import parse

TYPES = {
    torch.float32: "*fp32", torch.float16: "*fp16", torch.bfloat16: "*bf16", torch.float64: "*fp64",
    torch.int32: "*i32", torch.int64: "*i64", torch.int16: "*i16", torch.int8: "*i8", torch.uint8: "*u8",
    torch.float8_e5m2: "*fp8e5", torch.float8_e4m3fn: "*fp8e4nv",
}  # fmt: skip


def kernel_of(compiled: Any) -> Kernel:
    return load(parse(compiled.asm["ptx"]), shared=compiled.metadata.shared)


def array_of(tensor: torch.Tensor) -> np.ndarray:
    return tensor.contiguous().view(torch.uint8).numpy()


def run_grid(
    kernel: Kernel, memory: Memory, values: Sequence[int], grid: tuple[int, int, int]
) -> list[Outcome]:
    """Every program of a grid; the kernel's last two parameters are scratch memory that nothing uses."""
    names = [p.name for p in kernel.entry.parameters]
    assert len(names) == len(values) + 2
    arguments = dict(zip(names, [*(v & (2**64 - 1) for v in values), 0, 0], strict=True))
    where = [(x, y, z) for z in range(grid[2]) for y in range(grid[1]) for x in range(grid[0])]
    found = [run(kernel, memory, arguments, program=p, grid=grid) for p in where]
    assert not memory.faults, memory.faults[:3]
    return found


@functools.cache
def compiled(
    function: Any, signature: tuple[tuple[str, Any], ...], architecture: int, warps: int, aligned: bool
) -> Kernel:
    types = {name: t for name, t in signature if isinstance(t, str)}
    constants = {name: t for name, t in signature if not isinstance(t, str)}
    attributes = {
        (i,): [["tt.divisibility", 16]]
        for i, (_, t) in enumerate(signature)
        if aligned and str(t).startswith("*")
    }
    source = ASTSource(
        fn=function,
        signature=types | dict.fromkeys(constants, "constexpr"),
        constexprs=constants,
        attrs=attributes,
    )
    return kernel_of(
        triton.compile(source, target=GPUTarget("cuda", architecture, 32), options={"num_warps": warps})
    )


def launch(
    function: Any,
    arguments: dict[str, Any],
    *,
    grid: tuple[int, int, int] = (1, 1, 1),
    architecture: int = 90,
    warps: int = 4,
    aligned: bool = True,
    **constants: Any,
) -> list[Outcome]:
    """Run a Triton kernel and write what it stored back into its tensors."""
    memory, values, signature = Memory(), [], []
    for name, value in arguments.items():
        tensor = isinstance(value, torch.Tensor)
        signature.append((name, TYPES[value.dtype] if tensor else "i32"))
        values.append(memory.place(name, array_of(value)) if tensor else value)
    kernel = compiled(function, (*signature, *constants.items()), architecture, warps, aligned)
    outcomes = run_grid(kernel, memory, values, grid)
    for name, value in arguments.items():
        if isinstance(value, torch.Tensor):
            value.copy_(torch.from_numpy(memory.read(name, np.uint8)).view(value.dtype).view(value.shape))
    return outcomes


def span(tensor: torch.Tensor) -> np.ndarray:
    """The bytes of a tensor's storage, whatever its strides, and the rest of its last vector: kernels that read whole
    vectors may touch up to 15 bytes behind the end, which every allocator of a GPU grants.
    """
    held = np.array(tensor.untyped_storage().tolist(), np.uint8)
    return np.concatenate([held, np.zeros(-len(held) % 16, np.uint8)])


def run_call(
    call: Call, inputs: Sequence[torch.Tensor], outputs: Sequence[torch.Tensor], architecture: int
) -> list[Outcome]:
    """One kernel call of the library, on tensors of any strides; results are written back."""
    kernel, memory = kernel_of(calls.compile_for(call, architecture)), Memory()
    tensors = iter(enumerate([*inputs, *outputs]))
    values: list[int] = []
    for leaf in calls.leaves(call.arguments):
        if isinstance(leaf, Pointer):
            i, tensor = next(tensors)
            offset = tensor.storage_offset() * tensor.element_size()
            base = memory.place(f"t{i}", span(tensor))
            values.append(base + offset - leaf.before)
        elif leaf != 1:
            values.append(leaf)
    outcomes = run_grid(kernel, memory, values, (call.grid, 1, 1))
    for i, tensor in enumerate(outputs, start=len(inputs)):
        stored = torch.from_numpy(memory.read(f"t{i}", np.uint8)[: tensor.nbytes])
        tensor.copy_(stored.view(tensor.dtype).view(tensor.shape))
    return outcomes


def fold(
    inputs: Sequence[torch.Tensor], program: Program, dims: tuple[int, ...], architecture: int, ordered: bool
) -> tuple[list[torch.Tensor], list[Outcome]]:
    """A fold as a GPU would be given it: planned, compiled, every stage executed."""
    problem = canonical(inputs, dims, ordered=ordered)
    plan = plan_fold(problem, program, Device("any", 108, architecture), "run_to_run")
    shape = [n for d, n in enumerate(inputs[0].shape) if d not in dims]
    results = [torch.empty(shape, dtype=dtype) for dtype in program.outputs]
    first, *later = stage_calls(plan, problem, program, interpret=False)
    if not later:
        return results, run_call(first, inputs, results, architecture)
    stored = calls.partial_dtypes(calls.narrowed(program, problem.length))
    partials = [torch.empty((plan.stages[0].splits, problem.outputs), dtype=dtype) for dtype in stored]
    outcomes = run_call(first, inputs, partials, architecture)
    return results, outcomes + run_call(later[0], partials, results, architecture)
