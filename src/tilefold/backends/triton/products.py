"""Products on a GPU: a plan's launches compiled and called, there or under the interpreter."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import torch

from tilefold.backends.triton import cublas
from tilefold.backends.triton.launch import check_dtypes, identities, interpret_call, launcher
from tilefold.backends.triton.product_calls import pitch_of, product_calls
from tilefold.contract.choose import plan_product, plan_tensors
from tilefold.contract.epilogue import Epilogue, accumulator_dtype
from tilefold.contract.operands import Contraction, canonical_product
from tilefold.contract.plan import ContractPlan, nothing
from tilefold.errors import BackendError
from tilefold.planner.device import H200, Device, device_of

Tensor = torch.Tensor


def prepare(
    a: Tensor,
    b: Tensor,
    extras: Sequence[Tensor],
    epilogue: Epilogue,
    precision: str,
    guarantee: str,
    shape: Sequence[int],
    plan: ContractPlan | None = None,
) -> Ready:
    """Plan (unless a plan is given) and compile the product of tensors on their GPU; `shape` is the result's."""
    if not a.is_cuda:
        raise BackendError(
            f'backend: "triton" runs on CUDA tensors, got {a.device}; move the operands or use backend("torch")'
        )
    device = device_of(a.device.index)
    _check_dtypes(a, epilogue, device)
    if 0 in shape:
        return Ready(nothing(guarantee), [], 0, epilogue, shape, a)
    problem = canonical_product(a, b, extras)
    plan = plan or plan_tensors(a, b, extras, epilogue, precision, guarantee, device)
    made = product_calls(plan, problem, epilogue, interpret=False)
    return Ready(plan, [launcher(c, a.device.index) for c in made], pitch_of(problem), epilogue, shape, a)


class Ready:
    """A product compiled for one device: called with tensors of the planned layout it allocates, launches and returns.

    Kept for repeated calls, so it does as little as it can. Partial products live in memory of the call, from torch's
    allocator: streams and graphs share none.
    """

    def __init__(
        self,
        plan: ContractPlan,
        launches: Sequence[Callable[..., None]],
        pitch: int,
        epilogue: Epilogue,
        shape: Sequence[int],
        like: Tensor,
    ) -> None:
        self.plan, self.launches = plan, tuple(launches)
        self.device, self.index = like.device, like.device.index
        self.shape, self.dtype, self.row = tuple(shape), epilogue.result, epilogue.row
        self.partials, self.accumulator = (plan.splits, pitch), accumulator_dtype(like.dtype)

    def __call__(self, a: Tensor, b: Tensor, *extras: Tensor, out: Tensor | None = None) -> Any:
        """Multiply, on the current stream of the tensors' device, whichever device is current.

        `out` is contiguous and aligned to 16 bytes. With a row's fold: the result, and what the fold gives.
        """
        if torch._C._cuda_getDevice() != self.index:
            with torch.cuda.device(self.index):
                return self(a, b, *extras, out=out)
        result = torch.empty(self.shape, dtype=self.dtype, device=self.device) if out is None else out
        folded = self._folded()
        if result.numel():
            self._launch(a, b, extras, result, folded)
        return result if self.row is None else (result, self.row.monoid.pack(folded))

    def _folded(self) -> list[Tensor]:
        """Memory for what rows fold to; the identity's results where there is nothing to fold."""
        if self.row is None:
            return []
        shape, program = self.shape[:-1], self.row.program
        if 0 in self.shape:
            return identities(program, shape, self.device)
        return [torch.empty(shape, dtype=dtype, device=self.device) for dtype in program.outputs]

    def _launch(
        self, a: Tensor, b: Tensor, extras: Sequence[Tensor], result: Tensor, folded: Sequence[Tensor]
    ) -> None:
        if self.plan.strategy == "cublas" and not self.launches:
            cublas.finished_product(a, b, extras, result)
            return
        stream = torch._C._cuda_getCurrentRawStream(self.index)
        ends = [*(e.data_ptr() for e in extras), result.data_ptr(), *(f.data_ptr() for f in folded)]
        if self.plan.strategy == "whole":
            self.launches[0](stream, a.data_ptr(), b.data_ptr(), *ends)
        elif self.plan.strategy == "cublas":
            sums = cublas.wide_product(a, b, self.accumulator)
            self.launches[0](stream, sums.data_ptr(), *ends)
        else:
            partials = torch.empty(self.partials, dtype=self.accumulator, device=self.device)
            self.launches[0](stream, a.data_ptr(), b.data_ptr(), partials.data_ptr())
            self.launches[1](stream, partials.data_ptr(), *ends)


def interpret(
    a: Tensor,
    b: Tensor,
    extras: Sequence[Tensor],
    epilogue: Epilogue,
    precision: str,
    guarantee: str,
    shape: Sequence[int],
) -> tuple[Tensor, list[Tensor], ContractPlan]:
    """The same kernels under Triton's interpreter, on CPU tensors, as an H200 would be planned without cuBLAS."""
    _check_dtypes(a, epilogue, H200)
    result = torch.empty(shape, dtype=epilogue.result, device="cpu")
    outputs = () if epilogue.row is None else epilogue.row.program.outputs
    if result.numel() == 0:
        program = epilogue.row and epilogue.row.program
        return result, identities(program, shape[:-1], a.device) if program else [], nothing(guarantee)
    folded = [torch.empty(shape[:-1], dtype=dtype, device="cpu") for dtype in outputs]
    problem, row = canonical_product(a, b, extras), epilogue.row is not None
    plan = plan_product(problem, H200, precision=precision, guarantee=guarantee, cublas=False, row=row)
    run_interpreted(plan, problem, epilogue, a, b, extras, [result, *folded])
    return result, folded, replace(plan, backend="interpret")


def run_interpreted(
    plan: ContractPlan,
    problem: Contraction,
    epilogue: Epilogue,
    a: Tensor,
    b: Tensor,
    extras: Sequence[Tensor],
    results: Sequence[Tensor],
) -> None:
    """Every launch of any plan under the interpreter, one after the other."""
    first, *later = product_calls(plan, problem, epilogue, interpret=True)
    if plan.strategy == "whole":
        interpret_call(first, [a, b, *extras], results)
        return
    accumulator = accumulator_dtype(a.dtype)
    if plan.strategy == "cublas":
        interpret_call(first, [cublas.wide_product(a, b, accumulator), *extras], results)
        return
    partials = torch.empty((plan.splits, pitch_of(problem)), dtype=accumulator, device="cpu")
    interpret_call(first, [a, b], [partials])
    interpret_call(later[0], [partials, *extras], results)


def _check_dtypes(a: Tensor, epilogue: Epilogue, device: Device) -> None:
    folded = () if epilogue.row is None else epilogue.row.program.outputs
    check_dtypes((a.dtype, *epilogue.elements, epilogue.result, *folded), device, "matmul")
