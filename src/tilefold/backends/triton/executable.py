"""A plan made ready to run: allocate, launch, return. On a GPU as a function written for this plan, else step by step."""

from __future__ import annotations

import functools
import threading
from collections.abc import Callable, Collection, Sequence
from typing import Any

import numpy as np
import torch
import triton
import triton.language as tl

from tilefold.algebra.dtypes import E8M0
from tilefold.algebra.evaluate import held
from tilefold.algebra.program import Program
from tilefold.backends.reference import finish
from tilefold.backends.steps import run_steps
from tilefold.backends.triton import cublas, instantiate
from tilefold.backends.triton.call import Call, Pointer, nested
from tilefold.backends.triton.interpreted import masks_of_truth
from tilefold.backends.triton.launch import launcher
from tilefold.planner.plan import Fill, LibraryCall, Plan, names
from tilefold.planner.problem.canonical import contiguous_strides
from tilefold.planner.products.epilogue import Epilogue
from tilefold.planner.products.row import Row

Tensor = torch.Tensor

# (shape, strides, dtype) to memory on the current CUDA device: what Inductor's code allocates with, in a third of
# `torch.empty`'s time on the host.
_empty = torch._C._dynamo.guards._empty_strided_cuda  # type: ignore[attr-defined]  # in no stub


class Executable:
    """A plan compiled for one device: called with tensors of the planned layout it allocates, launches and returns.

    Kept for repeated calls, so it does as little as it can: `call` is a function written for this plan, without a loop or a
    branch but the current device's. Nothing here depends on the tensors but their addresses. Workspaces live in memory of
    the call, from torch's allocator: streams and graphs share none.
    """

    is_differentiable = False  # autograd does not see into kernels

    def __init__(
        self,
        plan: Plan,
        calls: Sequence[Call],
        computation: Program | Epilogue | Row,
        inputs: int,
        outputs: Sequence[tuple[tuple[int, ...], torch.dtype]],
        index: int,
    ) -> None:
        self.plan, self.index = plan, index
        results = names("output", len(outputs))
        self.results = dict(zip(results, outputs, strict=True))
        buffers = self.results | {buffer.name: (buffer.shape, buffer.dtype) for buffer in plan.workspaces}
        steps = _steps(plan, [launcher(call, index) for call in calls], computation, buffers)
        self.launches = _launches(plan, steps)
        scope = on_device(index) | {f"step{number}": function for number, (function, _) in enumerate(steps)}
        for name, (shape, dtype) in buffers.items():
            scope[f"{name}_layout"] = tuple(shape), contiguous_strides(shape), dtype
        body = [f"{buffer.name} = empty(*{buffer.name}_layout)" for buffer in plan.workspaces]
        body += ["stream = current_stream(index)"] * bool(plan.launched) + [line for _, line in steps]
        text = _FORM.format(
            inputs=", ".join(names("input", inputs)),
            outputs=", ".join(results),
            allocated="\n        ".join(f"{name} = empty(*{name}_layout)" for name in results) or "pass",
            body="\n    ".join(body),
        )
        exec(text, scope)  # noqa: S102  # fixed names only: of buffers and steps
        self.call: Callable[..., list[Tensor]] = scope["call"]

    def __call__(self, inputs: Sequence[Tensor], outputs: Sequence[Tensor] | None = None) -> list[Tensor]:
        """Run on the current stream of the device, whichever is current; `outputs` are contiguous, aligned to 16 bytes."""
        return self.call(*inputs) if outputs is None else self.call(*inputs, outputs=outputs)

    @staticmethod
    def join(*noted: Any) -> Callable[..., list[Tensor | None]] | None:
        """Calls of executables as one function (`joined`)."""
        from tilefold.backends.triton.joined import joined

        return joined(*noted)


_FORM = """
def call({inputs}, outputs=None):
    if current_device() != index:
        with device(index):
            return call({inputs}, outputs=outputs)
    if outputs is None:
        {allocated}
    else:
        [{outputs}] = outputs
    {body}
    return [{outputs}]
"""


def on_device(index: int) -> dict[str, Any]:
    """What a written function names of torch."""
    return {
        "empty": _empty, "current_device": torch._C._cuda_getDevice, "device": torch.cuda.device,
        "current_stream": torch._C._cuda_getCurrentRawStream, "index": index,
    }  # fmt: skip


def _launches(
    plan: Plan, steps: Sequence[tuple[Callable[..., Any], str]]
) -> list[tuple[Callable[..., Any], tuple[str, ...]]] | None:
    """Each step's launch and its operands; None where a step is none."""
    if any(isinstance(step, (Fill, LibraryCall)) for step in plan.steps):
        return None
    return [(made, (*step.reads, *step.writes)) for step, (made, _) in zip(plan.launched, steps, strict=True)]


def _steps(
    plan: Plan,
    launchers: Sequence[Callable[..., None]],
    computation: Program | Epilogue | Row,
    buffers: Collection[str],
) -> list[tuple[Callable[..., Any], str]]:
    """What each step of a plan calls, and the line that does so by the names step0, step1 ... and the buffers'.

    `buffers`: the ones that are allocated for the call.
    """
    launches = iter(launchers)
    made: list[tuple[Callable[..., Any], str]] = []
    for number, step in enumerate(plan.steps):
        name = f"step{number}"
        if isinstance(step, Fill):
            line = f"{name}([{', '.join(step.writes)}])"
            made.append((functools.partial(fill, computation), line))
        elif isinstance(step, LibraryCall):
            given = [n for n in step.writes if n in buffers]
            target = "" if given else f"{step.writes[0]} = "
            line = f"{target}{name}({', '.join((*step.reads, *given))})"
            made.append((LIBRARY[step.function], line))
        else:
            addresses = ", ".join(f"{n}.data_ptr()" for n in (*step.reads, *step.writes))
            made.append((next(launches), f"{name}(stream, {addresses})"))
    return made


def fill(computation: Program | Epilogue | Row, results: Sequence[Tensor]) -> None:
    """Store the fold of nothing, the projected identity, everywhere."""
    if isinstance(computation, Epilogue):
        assert computation.row is not None
        computation = computation.row
    if isinstance(computation, Row):
        computation = computation.program
    state = [held(n, d) for n, d in zip(computation.identity, computation.state, strict=True)]
    # Filled, not copied: a copy from the host waits, and a CUDA graph cannot hold it.
    for result, value in zip(results, finish(state, computation, ()), strict=True):
        result.fill_(value.item())


def interpret(
    plan: Plan,
    calls: Sequence[Call],
    computation: Program | Epilogue | Row,
    inputs: Sequence[Tensor],
    outputs: Sequence[Tensor],
) -> None:
    """Run a plan's calls, made for it, under Triton's interpreter, on CPU tensors."""
    launches = [functools.partial(interpret_call, call) for call in calls]
    run_steps(plan, inputs, outputs, launches, LIBRARY, functools.partial(fill, computation))


# One call at a time: the interpreter replaces functions of Triton's modules while a kernel runs.
_interpreter = threading.Lock()


def interpret_call(call: Call, inputs: Sequence[Tensor], outputs: Sequence[Tensor]) -> None:
    """One kernel call under the interpreter; bool tensors are seen as bytes, powers of two as what `words` calls them.

    As on a GPU no arithmetic warns: not inf - inf, nor arithmetic of lanes beyond a row's end on stray bytes.
    """
    kernel = instantiate.kernel(call.kernel, call.source, True)
    tensors = [_seen(t) for t in (*inputs, *outputs)]
    with _interpreter, np.errstate(all="ignore"), masks_of_truth():
        kernel[(call.grid, *call.across)](
            *_with_tensors(call.arguments, iter(tensors)), **dict(call.constants)
        )


def _seen(t: Tensor) -> Any:
    if t.dtype == E8M0:
        return triton.reinterpret(t.view(torch.uint8), tl.float8e4b15)
    return t.view(torch.uint8) if t.dtype == torch.bool else t


def _with_tensors(argument: Any, tensors: Any) -> Any:
    """The nested arguments with each `Pointer` replaced, in order."""
    if isinstance(argument, tuple):
        return nested(argument, [_with_tensors(a, tensors) for a in argument])
    return next(tensors) if isinstance(argument, Pointer) else argument


# torch's own functions, by a plan's names for them.
LIBRARY: dict[str, Callable[..., Tensor | None]] = {
    "finished_product": cublas.finished_product,
    "wide_product": cublas.wide_product,
    "rectified": torch.Tensor.relu_,
    "copy": lambda x, out: out.copy_(x),
    "zeroed": torch.Tensor.zero_,
}
