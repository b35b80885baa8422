"""Run a plan: allocate results and partial states, compile once, launch. A repeated call skips everything but launching."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from typing import Any

import torch
from triton.compiler import make_backend

from tilefold.algebra.evaluate import convert, stored
from tilefold.algebra.program import Program
from tilefold.backends.triton import call as calls
from tilefold.backends.triton import instantiate
from tilefold.backends.triton.call import Call, Pointer
from tilefold.backends.triton.emit import STORED_DTYPES
from tilefold.errors import BackendError, DtypeError
from tilefold.planner.choose import plan_tensors
from tilefold.planner.device import H200, Device, device_of
from tilefold.planner.plan import Plan
from tilefold.problem import Problem


def prepare(
    tensors: Sequence[torch.Tensor],
    program: Program,
    dims: tuple[int, ...],
    guarantee: str,
    shape: Sequence[int],
) -> Ready:
    """Plan and compile the fold of tensors on their GPU; `shape` is the results' (with kept dims or without)."""
    if not tensors[0].is_cuda:
        raise BackendError(
            f'backend: "triton" runs on CUDA tensors, got {tensors[0].device}; move the input or use backend("lanes")'
        )
    device = tensors[0].device
    problem, plan = plan_for(tensors, program, dims, guarantee, device_of(device.index))
    return Ready(plan, problem, program, shape, device)


def interpret(
    tensors: Sequence[torch.Tensor], program: Program, dims: tuple[int, ...], guarantee: str
) -> list[torch.Tensor]:
    """Run the same kernels under Triton's interpreter, on CPU tensors, as an H200 would be planned."""
    from tilefold.fold import remember_plan

    problem, plan = plan_for(tensors, program, dims, guarantee, H200)
    remember_plan(replace(plan, backend="interpret"))
    shape = [n for d, n in enumerate(tensors[0].shape) if d not in dims]
    if not plan.stages:
        return identities(program, shape, tensors[0].device)
    return _interpret(plan, problem, program, tensors, shape)


def plan_for(
    tensors: Sequence[torch.Tensor], program: Program, dims: tuple[int, ...], guarantee: str, device: Device
) -> tuple[Problem, Plan]:
    """The canonical problem of a call and how it will be run, on a chip that can load its dtypes."""
    dtypes = [t.dtype for t in tensors]
    check_dtypes((*dtypes, *program.elements, *program.outputs), device, "reduce")
    return plan_tensors(tensors, program, dims, device, guarantee)


def identities(program: Program, shape: Sequence[int], device: torch.device) -> list[torch.Tensor]:
    """The fold of nothing: the projected identity, everywhere."""
    from tilefold.backends.reference import finish

    state = [
        torch.tensor(convert(n, d), device="cpu").to(stored(d))
        for n, d in zip(program.identity, program.state, strict=True)
    ]
    # Filled, not copied: a copy from the host waits, and a CUDA graph cannot hold it.
    return [
        torch.full(tuple(shape), r.item(), dtype=r.dtype, device=device) for r in finish(state, program, ())
    ]


def check_dtypes(dtypes: Iterable[torch.dtype], device: Device, call: str) -> None:
    """Refuse what the chip cannot load or store, before Triton does so in its own words.

    Raises:
        DtypeError: a dtype has no instruction there.
    """
    for dtype in dtypes:
        if dtype not in STORED_DTYPES or (dtype is torch.float8_e4m3fn and device.capability < 89):
            raise DtypeError(
                f"{call}: a GPU of compute capability {device.capability / 10} must be able to convert the dtype, "
                f"got {dtype}; convert the tensor to float16 first"
            )


# (shape, strides, dtype) to memory on the current CUDA device: what Inductor's code allocates with, in a third of
# `torch.empty`'s time on the host.
_empty = torch._C._dynamo.guards._empty_strided_cuda  # type: ignore[attr-defined]  # in no stub


class Ready:
    """A plan compiled for one device: called with tensors it allocates, launches and returns the results.

    Kept for repeated calls, so it does as little as it can: allocation, the current stream, one call into the driver a
    stage. Nothing here depends on the tensors but their addresses.
    """

    def __init__(
        self, plan: Plan, problem: Problem, program: Program, shape: Sequence[int], device: torch.device
    ) -> None:
        self.plan, self.device, self.index = plan, device, device.index
        self.program, self.shape = program, tuple(shape)
        self.results = [_contiguous(shape, dtype) for dtype in program.outputs]
        stages = stage_calls(plan, problem, program, False) if plan.stages else []
        self.launches = [launcher(call, device.index) for call in stages]
        self.partials = partial_states(plan, problem, program) if len(stages) > 1 else []
        simple = len(self.launches) == 1 and len(self.results) == 1 and len(problem.dtypes) == 1
        self.call: Callable[..., list[torch.Tensor]] = self._one_launch() if simple else self

    def __call__(self, *tensors: torch.Tensor) -> list[torch.Tensor]:
        """Fold tensors of the planned layout, on the current stream of their device, whichever device is current."""
        if not self.launches:
            return identities(self.program, self.shape, self.device)
        if torch._C._cuda_getDevice() != self.index:
            with torch.cuda.device(self.index):
                return self(*tensors)
        results = [_empty(*each) for each in self.results]
        self.run(tensors, results)
        return results

    def _one_launch(self) -> Callable[[torch.Tensor], list[torch.Tensor]]:
        """The commonest case without loops: one input, one result, one launch."""
        (shape, strides, dtype), launch, index = self.results[0], self.launches[0], self.index
        current_device, current_stream = torch._C._cuda_getDevice, torch._C._cuda_getCurrentRawStream
        empty = _empty

        def call(x: torch.Tensor) -> list[torch.Tensor]:
            if current_device() != index:
                return self(x)
            result = empty(shape, strides, dtype)
            launch(current_stream(index), x.data_ptr(), result.data_ptr())
            return [result]

        return call

    def run(self, tensors: Sequence[torch.Tensor], results: Sequence[torch.Tensor]) -> None:
        """Launch every stage on the current stream; the tensors' device is current."""
        stream = torch._C._cuda_getCurrentRawStream(self.index)
        if not self.partials:
            self.launches[0](stream, *[t.data_ptr() for t in tensors], *[t.data_ptr() for t in results])
            return
        partials = [_empty(*each) for each in self.partials]
        between = [t.data_ptr() for t in partials]
        self.launches[0](stream, *[t.data_ptr() for t in tensors], *between)
        self.launches[1](stream, *between, *[t.data_ptr() for t in results])


Layout = tuple[tuple[int, ...], tuple[int, ...], torch.dtype]


def _contiguous(shape: Sequence[int], dtype: torch.dtype) -> Layout:
    """Shape, strides and dtype of a contiguous tensor."""
    sizes = [max(1, n) for n in shape]
    return tuple(shape), tuple(math.prod(sizes[d + 1 :]) for d in range(len(sizes))), dtype


def partial_states(plan: Plan, problem: Problem, program: Program) -> list[Layout]:
    """What the first of two stages stores: a state for each split and result."""
    dtypes = calls.partial_dtypes(calls.narrowed(program, problem.length))
    return [_contiguous((plan.stages[0].splits, problem.outputs), dtype) for dtype in dtypes]


def stage_calls(plan: Plan, problem: Problem, program: Program, interpret: bool) -> list[Call]:
    """The kernel calls of a plan, in order."""
    program = calls.narrowed(program, problem.length)
    overlap = plan.overlap and not interpret
    problems = [problem]
    if plan.launches > 1:
        problems.append(calls.second_problem(problem, program, plan.stages[0].splits))
    last = plan.launches - 1
    return [
        calls.make_call(
            part,
            program,
            stage,
            from_partials=number > 0,
            to_partials=number < last,
            overlap=overlap,
            interpret=interpret,
        )
        for number, (part, stage) in enumerate(zip(problems, plan.stages, strict=True))
    ]


_compiled: dict[tuple[Call, int], Any] = {}
# Shapes that differ in nothing but numbers share a kernel on the device.
_loaded: dict[tuple[Any, ...], Any] = {}


def compiled(call: Call, index: int) -> Any:
    """The kernel of a call, loaded on CUDA device `index`."""
    found = _compiled.get((call, index))
    if found is None:
        options = sorted(calls.options_of(call).items())
        key = (call.source, calls.source_of(call).hash(), *options, call.shared_bytes, index)
        found = _loaded.get(key)
        if found is None:
            with torch.cuda.device(index):
                found = calls.compile_for(call, device_of(index).capability)
                _reserve(found, call.shared_bytes)
                found._init_handles()
            _loaded[key] = found
        _compiled[call, index] = found
    return found


def _reserve(kernel: Any, shared_bytes: int) -> None:
    """Have a kernel that is not loaded yet launched with so much shared memory, at least."""
    if kernel.metadata.shared < shared_bytes:
        kernel.metadata = kernel.metadata._replace(shared=shared_bytes)
        kernel.packed_metadata = make_backend(kernel.metadata.target).pack_metadata(kernel.metadata)


def launcher(call: Call, index: int) -> Callable[..., None]:
    """A function of (stream, addresses...) that launches `call` on device `index`: its arguments laid out in advance."""
    kernel = compiled(call, index)
    runner = kernel.run
    pointers = [leaf for leaf in calls.leaves(call.arguments) if isinstance(leaf, Pointer)]
    names = iter([f"p{i}" for i in range(len(pointers))])
    arguments = ", ".join(_layout(a, names) for a in call.arguments)
    constants = ", ".join(repr(value) for _, value in call.constants)
    scope = {"launch": runner, "function": kernel.function, "metadata": kernel.packed_metadata}
    head = f"launch({call.grid}, 1, 1, stream, function, "
    if hasattr(runner, "launch") and not runner.global_scratch_size and not runner.profile_scratch_size:
        scope["launch"] = runner.launch  # past the wrapper that would allocate scratch memory
        head += f"{runner.launch_cooperative_grid!r}, {runner.launch_pdl!r}, None, None, "
    parameters = ", ".join(f"p{i}" for i in range(len(pointers)))
    text = f"lambda stream, {parameters}: {head}metadata, None, None, None, {arguments}, {constants})"
    return eval(text, scope)  # type: ignore[no-any-return]  # noqa: S307  # numbers and fixed names only


def _layout(argument: Any, names: Any) -> str:
    """The nested arguments as source text, each `Pointer` a name."""
    if isinstance(argument, tuple):
        return "(" + "".join(f"{_layout(a, names)}, " for a in argument) + ")"
    if isinstance(argument, Pointer):
        return f"{next(names)} - {argument.before}" if argument.before else str(next(names))
    return repr(int(argument))


def _interpret(
    plan: Plan, problem: Problem, program: Program, tensors: Sequence[torch.Tensor], shape: Sequence[int]
) -> list[torch.Tensor]:
    """Run every stage under Triton's interpreter, on the CPU."""
    results = [torch.empty(shape, dtype=dtype, device="cpu") for dtype in program.outputs]
    first, *later = stage_calls(plan, problem, program, True)
    if not later:
        interpret_call(first, tensors, results)
        return results
    states = partial_states(plan, problem, program)
    partials = [torch.empty(shape, dtype=dtype, device="cpu") for shape, _, dtype in states]
    interpret_call(first, tensors, partials)
    interpret_call(later[0], partials, results)
    return results


def _with_tensors(argument: Any, tensors: Any) -> Any:
    """The nested arguments with each `Pointer` replaced, in order."""
    if isinstance(argument, tuple):
        return tuple(_with_tensors(a, tensors) for a in argument)
    return next(tensors) if isinstance(argument, Pointer) else argument


def interpret_call(call: Call, inputs: Sequence[torch.Tensor], outputs: Sequence[torch.Tensor]) -> None:
    """One kernel call under the interpreter; bool tensors are seen as bytes."""
    kernel = instantiate.kernel(call.kernel, call.source, True)
    tensors = [t.view(torch.uint8) if t.dtype == torch.bool else t for t in (*inputs, *outputs)]
    kernel[(call.grid, 1, 1)](*_with_tensors(call.arguments, iter(tensors)), **dict(call.constants))
