"""Requests on a CPU: planned, then run on torch's operations. Each gives its results and the plan that they were made by."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch

from tilefold import refold
from tilefold.algebra.program import Program
from tilefold.backends import loops, native, reference, segments, torch_product
from tilefold.errors import BackendError
from tilefold.modes import as_given
from tilefold.planner.cpu import cpu_plan, cpu_problem
from tilefold.planner.library import library_fold, library_plan
from tilefold.planner.plan import LibraryCall, Plan, names
from tilefold.requests import Product, Reduction, Request, Segments

Tensor = torch.Tensor
Made = tuple[list[Tensor], Plan]


def run(request: Request, tensors: Sequence[Tensor], backend: str) -> Made:
    """The results of a request, under "auto", "torch", "cpu" or "reference".

    Raises:
        BackendError: "torch" is forced and has no fold that is known to give the promised answers.
    """
    with as_given(tensors[0].device):
        return RUN[type(request)](request, tensors, backend)


def _multiplied(request: Product, tensors: Sequence[Tensor], backend: str) -> Made:
    a, b, *extras = tensors
    guarantee, inputs = request.guarantee, names("input", len(tensors))
    reason = "each row by itself" if guarantee == "batch_invariant" else "then the epilogue"
    step = LibraryCall("torch.matmul", inputs, names("output", len(request.results)))
    plan = Plan("torch", (step,), guarantee=guarantee, strategy="torch.matmul", reason=reason)

    def fold_rows(value: Tensor, program: Program) -> list[Tensor]:
        return by_tiles([value], program, (value.ndim - 1,), guarantee)[0]

    return torch_product.multiply(a, b, extras, request.ending, guarantee, request.shape, fold_rows), plan


def _reduced(request: Reduction, tensors: Sequence[Tensor], backend: str) -> Made:
    results, plan = _folded(request, tensors, backend)
    return [r if r.shape == request.shape else r.reshape(request.shape) for r in results], plan


def _folded(request: Reduction, tensors: Sequence[Tensor], backend: str) -> Made:
    program, dims, guarantee = request.program, request.dims, request.guarantee
    if backend == "reference":
        return refold.fold(_by_definition, tensors, program, dims, guarantee)
    if backend in ("auto", "torch"):
        function = library_fold(tensors, program, dims, guarantee, forced=backend == "torch")
        if function is not None:
            results = native.fold(function, tensors[0], dims, program)
            return results, library_plan(function, program, guarantee)
        if backend == "torch":
            _refuse(request, tensors)
    return refold.fold(by_tiles, tensors, program, dims, guarantee)


def by_tiles(tensors: Sequence[Tensor], program: Program, dims: tuple[int, ...], guarantee: str) -> Made:
    """A fold of tensors of one shape in a loop over tiles; results in the output dims' shape."""
    shape = [n for d, n in enumerate(tensors[0].shape) if d not in dims]
    executable = tiled(tensors, program, dims, guarantee, shape)
    return executable(tensors), executable.plan


def tiled(
    tensors: Sequence[Tensor], program: Program, dims: tuple[int, ...], guarantee: str, shape: Sequence[int]
) -> loops.Executable:
    """The loop over tiles that folds tensors like these, with results in `shape`."""
    problem = cpu_problem(tensors, program, dims, guarantee)
    plan = cpu_plan(problem, program, guarantee, torch.get_num_threads())
    return loops.Executable(plan, problem, program, shape)


class Repeated:
    """A fold of one tensor on a CPU that was planned once, for calls with tensors of the same layout.

    `call` gives None where the elements of this call ask for more than was planned: float32 does not hold their squares.
    """

    def __init__(self, plan: Plan, call: Callable[..., list[Tensor] | None]) -> None:
        self.plan, self.call = plan, call


def repeated(request: Request, tensors: Sequence[Tensor]) -> Repeated | None:
    """What answers calls like this one by the rule of `run` under "auto": torch's own fold, else a loop over tiles."""
    if not isinstance(request, Reduction) or len(tensors) > 1:
        return None
    program, dims, guarantee, shape = request.program, request.dims, request.guarantee, request.shape
    function = library_fold(tensors, program, dims, guarantee)
    if function is not None:
        return _repeated_library(function, tensors[0], request)
    if not refold.is_watched(program):
        executable = tiled(tensors, program, dims, guarantee, shape)
        return Repeated(executable.plan, lambda x: executable((x,)))
    watching = tiled(tensors, refold.with_trust(program), dims, guarantee, shape)

    def call(x: Tensor) -> list[Tensor] | None:
        *results, trusted = watching((x,))
        return results if trusted.all() else None

    return Repeated(watching.plan, call)


def _repeated_library(function: str, x: Tensor, request: Reduction) -> Repeated:
    program, dims, shape = request.program, request.dims, request.shape
    reshaped = shape != tuple(n for d, n in enumerate(x.shape) if d not in dims)

    def call(x: Tensor) -> list[Tensor]:
        results = native.fold(function, x, dims, program)
        return [r.reshape(shape) for r in results] if reshaped else results

    return Repeated(library_plan(function, program, request.guarantee), call)


def _by_definition(
    tensors: Sequence[Tensor], program: Program, dims: tuple[int, ...], guarantee: str
) -> Made:
    plan = Plan("reference", guarantee=guarantee, reason="one element after another")
    return reference.fold(tensors, program, dims), plan


def _refuse(request: Reduction, tensors: Sequence[Tensor]) -> None:
    fields, dtypes = ", ".join(request.program.algebra.fields), ", ".join(str(t.dtype) for t in tensors)
    raise BackendError(
        "backend: torch's own fold must be known to give the promised answers (accuracy, dtypes, guarantee), got "
        f'({fields}) of {dtypes} over dims {list(request.dims)}, "{request.guarantee}", without one; use "cpu" or "auto"'
    )


def _segmented(request: Segments, tensors: Sequence[Tensor], backend: str) -> Made:
    *inputs, offsets = tensors
    fold = segments.by_definition if backend == "reference" else segments.fold
    results = fold(inputs, offsets, request.program, request.dim, request.guarantee)
    plan = Plan(
        "reference" if backend == "reference" else "cpu", guarantee=request.guarantee, strategy="segments"
    )
    return results, plan


# How each kind of request runs: functions of (request, tensors, backend).
RUN: dict[type[Request], Callable[..., Made]] = {
    Reduction: _reduced,
    Product: _multiplied,
    Segments: _segmented,
}
