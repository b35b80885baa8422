"""A launch of a fold as a kernel call: arguments, constants, grid. And any call compiled, offline or on the device."""

from __future__ import annotations

import math
from collections import namedtuple
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
import triton
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource

from tilefold.algebra.program import Program
from tilefold.backends.triton import instantiate
from tilefold.backends.triton.emit import emit
from tilefold.backends.triton.records import Operand, Owned, Position, Results, Shares, Sizes, Tile, Way
from tilefold.backends.triton.words import STORED_DTYPES
from tilefold.errors import BackendError, DtypeError
from tilefold.planner.device import Device
from tilefold.planner.folds import NARROW, narrowed, partial_dtypes, problem_of_states
from tilefold.planner.kept_dims import first_problem
from tilefold.planner.plan import Launch, Plan, Stage
from tilefold.planner.problem.canonical import Dim, Problem
from tilefold.planner.programs import chunk_of, constant_length, edges, has_one_tail, shared_inputs
from tilefold.planner.sizes import VECTOR_BYTES, power_above
from tilefold.planner.stages.gathered import are_one_run, groups_of

_POINTERS = {
    "tl.uint8": "*u8", "tl.int8": "*i8", "tl.uint16": "*u16", "tl.int16": "*i16", "tl.uint32": "*u32", "tl.int32": "*i32",
    "tl.uint64": "*u64", "tl.int64": "*i64", "tl.float16": "*fp16", "tl.bfloat16": "*bf16", "tl.float32": "*fp32",
    "tl.float64": "*fp64", "tl.float8e4nv": "*fp8e4nv", "tl.float8e5": "*fp8e5", "tl.float8e4b15": "*fp8e4b15",
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

    `shared_bytes` is the least shared memory that a program is launched with, whatever it uses. `grid` counts programs along
    the grid's first axis, `across` those along the two others; `cluster` neighbours of them are started together, on SMs near
    each other. `persistent` programs take rows in turns, however many programs there are: no more are launched than run at
    once. A thread has `registers` at most, where that is not left to the compiler (0). `fused`: the compiler may make one
    operation of a * b + c, with which product it likes.
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
    cluster: int = 1
    persistent: bool = False
    registers: int = 0
    across: tuple[int, int] = (1, 1)
    fused: bool = True

    @property
    def programs(self) -> int:
        """All of the grid."""
        return self.grid * self.across[0] * self.across[1]


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


def fold_call(step: Launch, plan: Plan, problem: Problem, program: Program, interpret: bool) -> Call:
    """Arguments and constants of one launch of a fold. Pointers stand as `Pointer` until launch."""
    program = narrowed(program, problem.length)
    from_partials, to_partials = (n[0].startswith("partial") for n in (step.reads, step.writes))
    stage: Stage = step.settings
    if from_partials:
        first = next(s.settings for s in plan.launched if s.writes == step.reads)
        problem = problem_of_states(problem, program, first)
    elif stage.kept_dims:
        problem = first_problem(problem, stage.kept_dims, program.algebra.index)
    *outer, last = output_dims(problem)
    places = problem.outputs if stage.flat else last.size + stage.shift
    output_blocks = math.ceil(places / stage.block_outputs)
    programs = (1 if stage.flat else math.prod(d.size for d in outer)) * output_blocks * stage.splits
    grid = launchable(programs, problem.outputs, "reduce", "fold")
    results = partial_dtypes(program) if to_partials else program.outputs
    index = program.lift.input_dtypes[-1] if program.algebra.index else torch.int32
    return Call(
        kernel=step.kernel,
        source=emit(program, index=index, from_partials=from_partials, interpret=interpret),
        arguments=_arguments(problem, step, results, output_blocks, interpret),
        constants=tuple(_constants(problem, step, places).items()),
        grid=grid,
        num_warps=stage.num_warps,
        num_stages=stage.num_stages,
        dependent=step.early,
    )


def output_dims(problem: Problem) -> Sequence[Dim]:
    """The output dims; of one result a dim of size 1."""
    return problem.output_dims or (Dim("map", 1, (0,) * len(problem.dtypes)),)


def dims_of(problem: Problem) -> tuple[list[Dim], Dim, list[Dim], Dim]:
    """The output dims and the reduced dims, the last of each by itself."""
    *outer, last = output_dims(problem)
    *deep, inner = problem.reduced_dims or (Dim("reduce", 1, (0,) * len(problem.dtypes)),)
    return outer, last, deep, inner


def _arguments(
    problem: Problem, step: Launch, results: Sequence[torch.dtype], output_blocks: int, interpret: bool
) -> tuple[Any, ...]:
    """The arguments in the order of the kernels' parameters."""
    stage: Stage = step.settings
    outer, last, deep, inner = dims_of(problem)
    length = problem.length
    # Vectors are read from the one in which the first element lies.
    whole = stage.align > 1 or stage.shift > 0 or stage.gathered
    before = [r if whole and not interpret else 0 for r in problem.residues] or [0] * len(problem.dtypes)
    return (
        tuple(
            Operand(Pointer(dtype, 16 if whole else problem.aligned[i], before[i]), before[i] // dtype.itemsize - stage.shift,
                    tuple(d.strides[i] for d in outer), last.strides[i], tuple(d.strides[i] for d in deep), inner.strides[i])
            for i, dtype in enumerate(problem.dtypes)
        ),
        Results(tuple(Pointer(dtype, 16) for dtype in results), tuple(d.output for d in outer), last.output),
        Position((tuple(d.position for d in outer), *problem.places), tuple(d.position for d in deep), inner.position),
        Sizes(_outer_sizes(outer, last, stage), tuple(d.size for d in deep), last.size, inner.size, length),
        Shares(
            chunk_of(stage, length, problem.ragged > 0), stage.splits, output_blocks, problem.ragged,
            0 if step.kernel == "fold_atomically" else problem.outputs,
        ),
    )  # fmt: skip


def _outer_sizes(outer: Sequence[Dim], last: Dim, stage: Stage) -> tuple[Any, ...]:
    """The outer dims' sizes; where results are walked as one, each with how many results are inside it."""
    if not stage.flat:
        return tuple(d.size for d in outer)
    sizes = [d.size for d in (*outer, last)]
    return tuple((n, math.prod(sizes[i + 1 :])) for i, n in enumerate(sizes[:-1]))


def _constants(problem: Problem, step: Launch, places: int) -> dict[str, Any]:
    """`places` is how many results are walked, those before the first one too."""
    stage: Stage = step.settings
    length, ragged = problem.length, problem.ragged > 0
    if stage.gathered:
        return _gathered_constants(problem, step, length)
    vector = VECTOR_BYTES // max(d.itemsize for d in problem.dtypes)
    if stage.shift:
        places = math.ceil(places / vector) * vector
    head, has_full, tail = edges(stage, length, ragged)
    inner_steps = problem.reduced_dims[-1].strides if problem.reduced_dims else (0,)
    way = Way(
        MASK_OUTPUTS=places % stage.block_outputs != 0,
        ALIGN=stage.align,
        HEAD=head,
        HAS_FULL=has_full,
        TAIL=tail,
        # Loops look a tile or two beyond the end.
        WIDE=_reach(problem) + 2 * stage.step + stage.align > NARROW,
        EVICT="evict_first" if stage.evict_first else "",
        LENGTH=constant_length(stage, length, ragged),
    )
    shared = {
        "TILE": Tile(stage.block_outputs, stage.lanes, stage.run, stage.unroll),
        "WAY": way,
        "OWNS": Owned(
            SPLIT=stage.splits > 1,
            SPLITS_FIRST=max(inner_steps) == 1 or stage.block_outputs == 1,
            FLAT=stage.flat,
            SHIFT=stage.shift,
            VECTOR=vector,
        ),
        "PARTIAL": step.writes[0].startswith("partial"),
        "WAIT": step.early,
        "RELEASE": step.releases,
    }
    if stage.ordered:
        return shared | {
            "LEVELS": stage.run.bit_length() - 1,
            "SHARES": stage.shares and has_full > 0,
        }
    known = way.LENGTH and len(problem.reduced_dims) == 2
    deep, inner = (d.size for d in problem.reduced_dims) if known else (0, 0)
    way = way._replace(
        PREFETCH=stage.prefetch,
        STAGES=stage.num_stages,
        USE_ABSORB=stage.absorb,
        IN_ORDER=stage.in_order,
        TAIL_ONCE=has_one_tail(stage, length, ragged),
        RAGGED=vector if ragged else 0,
        DEEP=deep,
        REDUCED=inner,
        OVER=_own(problem, stage),
    )
    return shared | {"WAY": way, "ATOMIC": step.kernel == "fold_atomically"}


def _own(problem: Problem, stage: Stage) -> int:
    """The inputs that have elements of their own for each result, a bit each; all, where no input is loaded once for all."""
    steps = problem.output_dims[-1].strides if problem.output_dims else ()
    shared = shared_inputs(stage, steps, problem.ragged)
    return sum(1 << i for i in range(len(problem.dtypes)) if i not in shared)


def _gathered_constants(problem: Problem, step: Launch, length: int) -> dict[str, Any]:
    """The constants of `fold_gathered`."""
    stage: Stage = step.settings
    groups, size = groups_of(problem), problem.dtypes[0].itemsize
    residue = problem.residues[0] if problem.residues else 0
    return {
        "BLOCK_OUTPUTS": power_above(stage.block_outputs),
        "OWNED": stage.block_outputs,
        "RUN": stage.run,
        "LEVELS": stage.run.bit_length() - 1,
        "LENGTH": length,
        "BETWEEN": groups.between,
        "INNER": groups.inner,
        "EXTENT": groups.extent(1),
        "SPAN": groups.span(residue, size, stage.block_outputs // groups.inner),
        "VECTOR": VECTOR_BYTES // problem.dtypes[0].itemsize,
        "TURNED": groups.inner > 1 and not are_one_run(problem.output_dims),
        "ORDERED": stage.ordered,
        "USE_ABSORB": stage.absorb,
        "EVICT": "evict_first" if stage.evict_first else "",
        "PARTIAL": step.writes[0].startswith("partial"),
        "WAIT": step.early,
        "RELEASE": step.releases,
    }


def _reach(problem: Problem) -> int:
    """The farthest offset, in elements, inside one result's elements."""
    spans = (
        sum((d.size - 1) * d.strides[i] for d in problem.reduced_dims) for i in range(len(problem.dtypes))
    )
    return max((*spans, problem.length))


def leaves(arguments: Any) -> list[Any]:
    """Nested tuples flattened, in order."""
    return [leaf for a in arguments for leaf in leaves(a)] if isinstance(arguments, tuple) else [arguments]


def nested(argument: tuple[Any, ...], made: Iterable[Any]) -> tuple[Any, ...]:
    """What was made of each part of an argument, as a tuple of its kind: a record of a record."""
    return type(argument)(*made) if hasattr(argument, "_fields") else tuple(made)


def _ended(argument: Any) -> Any:
    """The argument, where each record with a 1 in one of its tuples has one more field at its end, `end`, which is 1.

    Triton 3.6 notes a record's type anew with each of its own fields, constants last, and makes it again by that type behind
    a loop or in a branch. Without a constant field behind them the constants of its tuples would be none there.
    """
    if not isinstance(argument, tuple):
        return argument
    fields, names = tuple(map(_ended, argument)), getattr(argument, "_fields", ())
    if names and any(1 in leaves(field) for field in fields if isinstance(field, tuple)):
        return namedtuple(type(argument).__name__, (*names, "end"))(*fields, 1)  # type: ignore[call-arg]  # names as it runs
    return nested(argument, fields)


def signature_of(argument: Any) -> Any:
    """The Triton type of an argument: nested like it, 1 as a constant."""
    if isinstance(argument, tuple):
        return nested(argument, map(signature_of, argument))
    if isinstance(argument, Pointer):
        return _POINTERS[STORED_DTYPES[argument.dtype]]
    return "constexpr" if argument == 1 else "i64" if argument > NARROW else "i32"


def _constants_in(record: Any) -> Any:
    """The Triton types of a record's fields, where these are constants."""
    return nested(record, map(_constants_in, record)) if isinstance(record, tuple) else "constexpr"


def _paths(argument: Any, path: tuple[int, ...]) -> list[tuple[tuple[int, ...], Any]]:
    if isinstance(argument, tuple):
        return [found for i, a in enumerate(argument) for found in _paths(a, (*path, i))]
    return [(path, argument)]


def source_of(call: Call) -> ASTSource:
    """The call as something `triton.compile` takes: types, the constants 1, and the powers of two that divide."""
    kernel = instantiate.kernel(call.kernel, call.source, False)
    names = kernel.arg_names
    arguments = _ended(call.arguments)
    signature = {name: signature_of(a) for name, a in zip(names, arguments, strict=False)}
    constexprs: dict[Any, Any] = {}
    for name, value in call.constants:
        if hasattr(value, "_fields"):  # a record, of constants each
            signature[name] = _constants_in(value)
            constexprs |= dict(_paths(value, (names.index(name),)))
        else:
            signature[name], constexprs[name] = "constexpr", value
    attributes = {}
    for path, leaf in _paths(arguments, ()):
        if isinstance(leaf, Pointer):
            attributes[path] = [["tt.divisibility", leaf.aligned]]
        elif leaf == 1:
            constexprs[path] = 1
        elif leaf % 2 == 0:
            attributes[path] = [["tt.divisibility", math.gcd(leaf, 16)]]
    return ASTSource(fn=kernel, signature=signature, constexprs=constexprs, attrs=attributes)


def options_of(call: Call) -> dict[str, Any]:
    """Compiler options. Whether a*b+c is fused is part of the result's definition, and not left to a default."""
    options = {"num_warps": call.num_warps, "num_stages": call.num_stages, "enable_fp_fusion": call.fused}
    options |= {"maxnreg": call.registers} if call.registers else {}
    return options | {"launch_pdl": True} if call.dependent else options


def check_dtypes(dtypes: Iterable[torch.dtype], device: Device, call: str) -> None:
    """Refuse dtypes that the chip cannot load or store, before Triton does so in its own words.

    Raises:
        DtypeError: a dtype has no instruction there.
    """
    for dtype in dtypes:
        if dtype not in STORED_DTYPES or (dtype is torch.float8_e4m3fn and device.capability < 89):
            raise DtypeError(
                f"{call}: a GPU of compute capability {device.capability / 10} must be able to convert the dtype, "
                f"got {dtype}; convert the tensor to float16 first"
            )


def compile_for(call: Call, architecture: int) -> Any:
    """Compile for a CUDA architecture (80, 90, 100 ...), with or without such a device.

    Raises:
        BackendError: Triton cannot write compiled kernels.
    """
    target = GPUTarget("cuda", architecture, 32)
    try:
        return triton.compile(source_of(call), target=target, options=options_of(call))
    except OSError as error:
        raise BackendError(
            f"triton: compiled kernels must go into a folder that can be written, got {error}; set TRITON_CACHE_DIR to one"
        ) from error
