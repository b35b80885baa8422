"""One stage of a plan as a kernel call: arguments, constants, grid. And the same compiled, offline or on the device."""

from __future__ import annotations

import functools
import math
from dataclasses import dataclass
from typing import Any

import torch
import triton
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource

from tilefold.algebra.program import Program
from tilefold.backends.triton import instantiate
from tilefold.backends.triton.emit import STORED_DTYPES, emit
from tilefold.errors import BackendError
from tilefold.planner.plan import Stage
from tilefold.problem import Dim, Problem

NARROW = 2**31 - 1  # the greatest offset, size or number of programs that 32 bits hold
_POINTERS = {
    "tl.uint8": "*u8", "tl.int8": "*i8", "tl.uint16": "*u16", "tl.int16": "*i16", "tl.uint32": "*u32", "tl.int32": "*i32",
    "tl.uint64": "*u64", "tl.int64": "*i64", "tl.float16": "*fp16", "tl.bfloat16": "*bf16", "tl.float32": "*fp32",
    "tl.float64": "*fp64", "tl.float8e4nv": "*fp8e4nv", "tl.float8e5": "*fp8e5",
}  # fmt: skip


@dataclass(frozen=True)
class Pointer:
    """The place of one tensor among a call's arguments: its dtype and alignment, known before its address.

    `before`: bytes from the address passed to the tensor's own.
    """

    dtype: torch.dtype
    aligned: int
    before: int = 0


@dataclass(frozen=True)
class Call:
    """Everything one launch needs but the addresses. Hashable: equal calls share a compiled kernel and its arguments.

    `shared_bytes` is the least shared memory that a program is launched with, whatever it uses.
    """

    kernel: str
    source: str
    arguments: tuple[Any, ...]
    constants: tuple[tuple[str, Any], ...]
    grid: int
    num_warps: int
    num_stages: int
    dependent: bool
    shared_bytes: int = 0


def launchable(programs: int, outputs: int, call: str, verb: str) -> int:
    """The number of programs of one launch, refused where the driver would refuse it.

    Raises:
        BackendError: it is beyond 32 bits.
    """
    if programs > NARROW:
        raise BackendError(
            f"{call}: one launch must have at most {NARROW} programs, got {programs} for {outputs} results; "
            f"{verb} a part of them at a time"
        )
    return programs


def partial_dtypes(program: Program) -> tuple[torch.dtype, ...]:
    """How state fields are stored between stages: as carried, bool as 32-bit words."""
    return tuple(torch.int32 if d == torch.bool else d for d in program.state)


def second_problem(problem: Problem, program: Program, splits: int) -> Problem:
    """The fold of `splits` partial states a result: each field is a [splits, results] array."""
    fields = len(program.state)
    n = problem.outputs
    kept = (Dim(n, (1,) * fields, 1),) if n > 1 else ()
    dtypes = partial_dtypes(program)
    return Problem(kept, (Dim(splits, (n,) * fields, 1),), dtypes, (16,) * fields)


def make_call(
    problem: Problem,
    program: Program,
    stage: Stage,
    *,
    from_partials: bool,
    to_partials: bool,
    overlap: bool,
    interpret: bool,
) -> Call:
    """Arguments and constants of one stage. Pointers stand as `Pointer` until launch."""
    *outer, last = problem.kept or (Dim(1, (0,) * len(problem.dtypes), 0),)
    *deep, inner = problem.folded or (Dim(1, (0,) * len(problem.dtypes), 0),)
    length = problem.length
    chunk = chunk_of(stage, length)
    before = [r if stage.align > 1 and not interpret else 0 for r in problem.residues] or [0] * len(
        problem.dtypes
    )
    kept_blocks = math.ceil(last.size / stage.block_kept)
    results = partial_dtypes(program) if to_partials else program.outputs
    arguments = (
        tuple(
            (Pointer(dtype, 16 if stage.align > 1 else problem.aligned[i], before[i]), before[i] // dtype.itemsize,
             tuple(d.strides[i] for d in outer), last.strides[i], tuple(d.strides[i] for d in deep), inner.strides[i])
            for i, dtype in enumerate(problem.dtypes)
        ),
        tuple(Pointer(dtype, 16) for dtype in results),
        tuple(d.other for d in outer),
        last.other,
        (0,) * len(outer),
        tuple(d.other for d in deep),
        inner.other,
        tuple(d.size for d in outer),
        tuple(d.size for d in deep),
        last.size,
        inner.size,
        length,
        chunk,
        stage.splits,
        kept_blocks,
        problem.outputs,
    )  # fmt: skip
    programs = math.prod(d.size for d in outer) * kept_blocks * stage.splits
    grid = launchable(programs, problem.outputs, "reduce", "fold")
    constants = _constants(problem, stage, length, last.size, from_partials, to_partials, overlap)
    index = program.lift.input_dtypes[-1] if program.algebra.index else torch.int32
    return Call(
        kernel="fold_in_order" if stage.ordered else "fold_lanes",
        source=emit(program, index=index, from_partials=from_partials, interpret=interpret),
        arguments=arguments,
        constants=tuple(constants.items()),
        grid=grid,
        num_warps=stage.num_warps,
        num_stages=stage.num_stages,
        dependent=overlap and from_partials,
    )


def _constants(
    problem: Problem,
    stage: Stage,
    length: int,
    kept: int,
    from_partials: bool,
    to_partials: bool,
    overlap: bool,
) -> dict[str, Any]:
    inner_steps = problem.folded[-1].strides if problem.folded else (0,)
    shared = {
        "BLOCK_KEPT": stage.block_kept,
        "LANES": stage.lanes,
        "SPLIT": stage.splits > 1,
        "SPLITS_FIRST": max(inner_steps) == 1 or stage.block_kept == 1,
        "WIDE": _reach(problem) + 2 * stage.step + stage.align
        > NARROW,  # loops look a tile or two beyond the end
        "PARTIAL": to_partials,
        "WAIT": overlap and from_partials,
        "RELEASE": overlap and to_partials,
        "EVICT": "evict_first" if stage.evict_first else "",
    }
    if stage.ordered:
        dense = (
            len(problem.folded) == 1
            and stage.lanes == length
            and all(s == 1 for s in inner_steps)
            and bool(problem.kept)
            and all(s == length for s in problem.kept[-1].strides)
        )
        return shared | {"LEVELS": stage.lanes.bit_length() - 1, "DENSE": dense}
    return shared | {
        "RUN": stage.run,
        "UNROLL": stage.unroll,
        "MASK_KEPT": kept % stage.block_kept != 0,
        "ALIGN": stage.align,
        **_edges(stage, length),
        "PREFETCH": stage.prefetch,
        "STAGES": stage.num_stages,
        "USE_ABSORB": stage.absorb,
        "IN_ORDER": stage.in_order,
    }


def chunk_of(stage: Stage, length: int) -> int:
    """Elements that each split but the last folds: whole tiles, one of them the head where rows are read aligned."""
    if stage.splits == 1:
        return length
    tiles = length // stage.step - (stage.align > 1)
    return math.ceil(tiles / stage.splits) * stage.step


def _edges(stage: Stage, length: int) -> dict[str, int]:
    """Which parts a program's way has: a masked head, whole tiles, a masked tail. In runs of all lanes."""
    runs = stage.run * stage.lanes
    head = 0 if stage.align == 1 else stage.unroll if stage.splits > 1 else 1
    full = (length - head * runs) // stage.step
    if head and full < 1 and stage.splits == 1:
        head, full = 0, 0  # one tile is masked on both ends
    rest = length - head * runs - full * stage.step + stage.align - 1
    tail = 1 << max(0, (math.ceil(rest / runs) - 1).bit_length()) if rest else 0
    return {
        "HEAD": head,
        "HAS_FULL": 0 if full < 1 else 1 if full == stage.splits and not head else 2,
        "TAIL": min(tail, stage.unroll) if full else tail,
    }


def _reach(problem: Problem) -> int:
    """The farthest offset, in elements, inside one result's elements."""
    spans = (sum((d.size - 1) * d.strides[i] for d in problem.folded) for i in range(len(problem.dtypes)))
    return max((*spans, problem.length))


@functools.lru_cache(maxsize=1024)
def narrowed(program: Program, length: int) -> Program:
    """The program with positions in 32 bits, where the length allows it and positions are only compared and moved."""
    if not program.algebra.index or length >= NARROW or not program.algebra.index_is_label:
        return program
    from tilefold.algebra.program import with_index_dtype

    return with_index_dtype(program, torch.int32)


def leaves(arguments: Any) -> list[Any]:
    """Nested tuples flattened, in order."""
    return [leaf for a in arguments for leaf in leaves(a)] if isinstance(arguments, tuple) else [arguments]


def signature_of(argument: Any) -> Any:
    """The Triton type of an argument: nested like it, 1 as a constant."""
    if isinstance(argument, tuple):
        return tuple(signature_of(a) for a in argument)
    if isinstance(argument, Pointer):
        return _POINTERS[STORED_DTYPES[argument.dtype]]
    return "constexpr" if argument == 1 else "i64" if argument > NARROW else "i32"


def _paths(argument: Any, path: tuple[int, ...]) -> list[tuple[tuple[int, ...], Any]]:
    if isinstance(argument, tuple):
        return [found for i, a in enumerate(argument) for found in _paths(a, (*path, i))]
    return [(path, argument)]


def source_of(call: Call) -> ASTSource:
    """The call as something `triton.compile` takes: types, the constants 1, and the powers of two that divide."""
    kernel = instantiate.kernel(call.kernel, call.source, False)
    names = kernel.arg_names
    signature = {name: signature_of(a) for name, a in zip(names, call.arguments, strict=False)}
    signature |= {name: "constexpr" for name, _ in call.constants}
    constexprs: dict[Any, Any] = dict(call.constants)
    attributes = {}
    for path, leaf in _paths(call.arguments, ()):
        if isinstance(leaf, Pointer):
            attributes[path] = [["tt.divisibility", leaf.aligned]]
        elif leaf == 1:
            constexprs[path] = 1
        elif leaf % 2 == 0:
            attributes[path] = [["tt.divisibility", math.gcd(leaf, 16)]]
    return ASTSource(fn=kernel, signature=signature, constexprs=constexprs, attrs=attributes)


def options_of(call: Call) -> dict[str, Any]:
    """Compiler options; fusing a*b+c is part of the result's definition, so it is said and not left to a default."""
    options = {"num_warps": call.num_warps, "num_stages": call.num_stages, "enable_fp_fusion": True}
    return options | {"launch_pdl": True} if call.dependent else options


def compile_for(call: Call, architecture: int) -> Any:
    """Compile for a CUDA architecture (80, 90, 100 ...), with or without such a device."""
    return triton.compile(
        source_of(call), target=GPUTarget("cuda", architecture, 32), options=options_of(call)
    )
