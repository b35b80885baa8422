"""Kernels compiled offline and run by the interpreter of the X-ray, on tensors."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
import torch
import triton
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource
from triton.tools.tensor_descriptor import TensorDescriptor

from tilefold.algebra.program import Program
from tilefold.backends.steps import run_steps
from tilefold.backends.triton import call as calls
from tilefold.backends.triton.call import Call, Pointer
from tilefold.backends.triton.executable import fill
from tilefold.backends.triton.lower import calls_of
from tilefold.planner.choose import plan_fold
from tilefold.planner.device import Device
from tilefold.planner.plan import Plan
from tilefold.planner.problem.canonical import Problem, canonical
from tilefold.planner.products.epilogue import Epilogue
from tilefold.planner.products.operands import canonical_product
from tilefold.planner.products.plan import Candidate
from tilefold.planner.products.steps import product_plan
from tilefold.xray.machine import Kernel, Memory, Outcome, TensorMap, all_programs, execute, load
from tilefold.xray.ptx import parse

TYPES = {
    torch.float32: "*fp32", torch.float16: "*fp16", torch.bfloat16: "*bf16", torch.float64: "*fp64",
    torch.int32: "*i32", torch.int64: "*i64", torch.int16: "*i16", torch.int8: "*i8", torch.uint8: "*u8",
    torch.float8_e5m2: "*fp8e5", torch.float8_e4m3fn: "*fp8e4nv",
}  # fmt: skip


Through = Callable[[Any], Kernel]  # from what Triton compiled to what is executed


def kernel_of(compiled: Any) -> Kernel:
    return load(parse(compiled.asm["ptx"]), shared=compiled.metadata.shared)


def array_of(tensor: torch.Tensor) -> np.ndarray:
    return tensor.contiguous().view(torch.uint8).numpy()


def run_grid(
    kernel: Kernel,
    memory: Memory,
    values: Sequence[int | bytes],
    grid: tuple[int, int, int],
    scratch: bool = False,
    cluster: int = 1,
) -> list[Outcome]:
    """Every program of a grid."""
    found = execute(
        kernel, memory, values, grid=grid, programs=all_programs(grid), scratch=scratch, cluster=cluster
    )
    assert not memory.faults, memory.faults[:3]
    return list(found)


@dataclass(frozen=True)
class Described:
    """A tensor given by a descriptor made on the host."""

    tensor: torch.Tensor
    block: tuple[int, int]

    @property
    def type(self) -> str:
        return f"tensordesc<{TYPES[self.tensor.dtype][1:]}[{self.block[0]},{self.block[1]}]>"


def described(value: Described, address: int, meta: dict[str, Any] | None) -> list[int | bytes]:
    """What Triton's launcher passes for a descriptor: a map where the chip has them, else pointer, sizes, steps."""
    shape, steps = [*value.tensor.shape], [*value.tensor.stride()]
    if meta is None:
        flags = [0] * (
            2 if hasattr(TensorDescriptor, "round_f32_to_tf32") else 1
        )  # what is outside, how floats are read
        return [address, *shape, *steps, *flags, *shape, *steps]
    made = TensorMap(
        address,
        tuple(shape[::-1]),
        tuple(meta["block_size"][::-1]),
        tuple(s * meta["elem_size"] for s in steps[-2::-1]),
        meta["elem_type"],
        meta["swizzle"],
    )
    return [made.pack(), *shape, *steps]


@functools.cache
def compiled(
    function: Any,
    signature: tuple[tuple[str, str], ...],
    constants: tuple[tuple[str, Any], ...],
    architecture: int,
    aligned: tuple[str, ...],
    options: tuple[tuple[str, Any], ...],
) -> Any:
    attributes = {(i,): [["tt.divisibility", 16]] for i, (name, _) in enumerate(signature) if name in aligned}
    source = ASTSource(
        fn=function,
        signature=dict(signature) | dict.fromkeys(dict(constants), "constexpr"),
        constexprs=dict(constants),
        attrs=attributes,
    )
    return triton.compile(source, target=GPUTarget("cuda", architecture, 32), options=dict(options))


def launch(
    function: Any,
    arguments: dict[str, Any],
    *,
    grid: tuple[int, int, int] = (1, 1, 1),
    architecture: int = 90,
    warps: int = 4,
    stages: int = 3,
    aligned: bool = True,
    through: Through = kernel_of,
    **constants: Any,
) -> list[Outcome]:
    """Run a Triton kernel and write what it stored back into its tensors.

    An integer of 1 is a constant and one that 16 divides is said to be so, as Triton specialises. `through` makes a kernel
    of what Triton compiled.
    """
    ones = {n: v for n, v in arguments.items() if isinstance(v, int) and v == 1}
    passed = {n: v for n, v in arguments.items() if n not in ones}
    signature = tuple((n, type_of(v)) for n, v in passed.items())
    sixteen = [
        n
        for n, v in passed.items()
        if (isinstance(v, torch.Tensor) and aligned) or (isinstance(v, int) and v % 16 == 0)
    ]
    skip_eight_bits((t for _, t in signature), architecture)
    options = (("num_warps", warps), ("num_stages", stages), ("enable_fp_fusion", True))
    made = compiled(
        function, signature, (*ones.items(), *constants.items()), architecture, tuple(sixteen), options
    )
    memory, values = Memory(), list[int | bytes]()
    maps = iter(made.metadata.tensordesc_meta or [])
    for name, value in passed.items():
        if isinstance(value, Described):
            address = memory.place(name, array_of(value.tensor))
            values += described(value, address, next(maps, None))
        else:
            values.append(memory.place(name, array_of(value)) if isinstance(value, torch.Tensor) else value)
    outcomes = run_grid(through(made), memory, values, grid, scratch=made.metadata.global_scratch_size > 0)
    for name, value in passed.items():
        tensor = value.tensor if isinstance(value, Described) else value
        if isinstance(tensor, torch.Tensor):
            tensor.copy_(torch.from_numpy(memory.read(name, np.uint8)).view(tensor.dtype).view(tensor.shape))
    return outcomes


def skip_eight_bits(types: Iterable[str], architecture: int) -> None:
    """Triton 3.6 keeps for a whole process how fp8 is converted on the chip it first compiled for: one chip a process."""
    if architecture < 90 and any("fp8" in t for t in types):
        pytest.skip("Triton converts fp8 for one chip a process")


def type_of(value: Any) -> str:
    """The type that Triton gives an argument."""
    if isinstance(value, Described):
        return value.type
    return TYPES[value.dtype] if isinstance(value, torch.Tensor) else "i32"


def span(tensor: torch.Tensor) -> tuple[np.ndarray, int]:
    """The bytes from a tensor's first element to its last, and where in them the first one is.

    They begin and end with whole vectors: kernels that read those may touch up to 15 bytes on either side, which every
    allocator of a GPU grants, and nothing else.
    """
    held = torch.empty(0, dtype=torch.uint8).set_(tensor.untyped_storage()).numpy()
    first = tensor.storage_offset() * tensor.element_size()
    reach = sum((n - 1) * step for n, step in zip(tensor.shape, tensor.stride(), strict=True))
    last = first + (reach + 1) * tensor.element_size() if tensor.numel() else first
    begin = first // 16 * 16
    held = held[begin : -(-last // 16) * 16]
    return np.concatenate([held, np.zeros(-len(held) % 16, np.uint8)]), first - begin


def run_call(
    call: Call,
    inputs: Sequence[torch.Tensor],
    outputs: Sequence[torch.Tensor],
    architecture: int,
    through: Through = kernel_of,
    named: Sequence[torch.Tensor] = (),
) -> list[Outcome]:
    """One kernel call of the library, on tensors of any strides; results are written back.

    A result that begins where an input does is that input, and lies in the same memory. Addresses of elements of `named`
    tensors, in tables of int64, become those of the memory that the kernel sees.
    """
    made, memory = calls.compile_for(call, architecture), Memory()
    if call.shared_bytes > made.metadata.shared:
        made.metadata = made.metadata._replace(shared=call.shared_bytes)
    kernel = through(made)
    places = [(t, memory.place(f"named{i}", span(t)[0]) + span(t)[1]) for i, t in enumerate(named)]
    inputs = [seen(t, places) if places and t.dtype == torch.int64 else t for t in inputs]
    tensors = iter(enumerate([*inputs, *outputs]))
    values: list[int] = []
    begins = {t.data_ptr(): f"t{i}" for i, t in reversed([*enumerate(inputs)])}
    placed: dict[str, int] = {}
    for leaf in calls.leaves(call.arguments):
        if isinstance(leaf, Pointer):
            i, tensor = next(tensors)
            held, offset = span(tensor)
            name = begins.get(tensor.data_ptr(), f"t{i}") if i >= len(inputs) else f"t{i}"
            if name not in placed:
                placed[name] = memory.place(name, held)
            values.append(placed[name] + offset - leaf.before)
        elif leaf != 1:
            values.append(leaf)
    outcomes = run_grid(kernel, memory, values, (call.grid, *call.across), cluster=call.cluster)
    for i, tensor in enumerate(outputs, start=len(inputs)):
        write_back(tensor, memory.read(begins.get(tensor.data_ptr(), f"t{i}"), np.uint8))
    return outcomes


def seen(table: torch.Tensor, places: Sequence[tuple[torch.Tensor, int]]) -> torch.Tensor:
    """A table with addresses of tensors as those of their places."""
    made = table.clone()
    for t, place in places:
        begin, end = t.data_ptr(), t.data_ptr() + t.numel() * t.element_size()
        made = torch.where((table >= begin) & (table < end), table - begin + place, made)
    return made


def write_back(tensor: torch.Tensor, held: np.ndarray) -> None:
    """Bytes as `span` gives them, back to where they are from."""
    storage = torch.empty(0, dtype=torch.uint8).set_(tensor.untyped_storage()).numpy()
    begin = tensor.storage_offset() * tensor.element_size() // 16 * 16
    there = min(len(held), len(storage) - begin)
    storage[begin : begin + there] = held[:there]


def fold(
    inputs: Sequence[torch.Tensor],
    program: Program,
    dims: tuple[int, ...],
    architecture: int,
    ordered: bool,
    through: Through = kernel_of,
) -> tuple[list[torch.Tensor], list[Outcome]]:
    """A fold as a GPU would be given it: planned, compiled, every stage executed."""
    problem = canonical(inputs, dims, ordered=ordered)
    plan = plan_fold(problem, program, Device("any", 108, architecture), "run_to_run")
    shape = [n for d, n in enumerate(inputs[0].shape) if d not in dims]
    results = [torch.empty(shape, dtype=dtype) for dtype in program.outputs]
    return results, run_plan(plan, problem, program, inputs, results, architecture, through)


def run_plan(
    plan: Plan,
    problem: Problem,
    computation: Program | Epilogue,
    inputs: Sequence[torch.Tensor],
    results: Sequence[torch.Tensor],
    architecture: int,
    through: Through = kernel_of,
) -> list[Outcome]:
    """Every launch of a plan without library calls, executed; what each program did."""
    outcomes: list[Outcome] = []

    def launch(call: Call, reads: Sequence[torch.Tensor], writes: Sequence[torch.Tensor]) -> None:
        outcomes.extend(run_call(call, reads, writes, architecture, through))

    launches = [functools.partial(launch, call) for call in calls_of(plan, problem, computation)]
    run_steps(plan, inputs, results, launches, {}, functools.partial(fill, computation))
    return outcomes


def product(
    plan: Candidate,
    a: torch.Tensor,
    b: torch.Tensor,
    extras: Sequence[torch.Tensor],
    ending: Epilogue,
    architecture: int,
    through: Through = kernel_of,
) -> torch.Tensor:
    """The library's product by any plan without cuBLAS, every launch executed."""
    skip_eight_bits([TYPES[a.dtype]], architecture)
    result = torch.empty(torch.matmul(a.to("meta").float(), b.to("meta").float()).shape, dtype=ending.result)
    seen = [e.expand(result.shape) for e in extras]
    problem = canonical_product(a, b, seen)
    run_plan(
        product_plan(plan, problem, ending), problem, ending, [a, b, *seen], [result], architecture, through
    )
    return result
