"""Products on a GPU: a plan's launches as kernel calls, run there or under the interpreter."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import torch

from tilefold.backends.triton.call import Call, Pointer
from tilefold.backends.triton.emit import STORED_DTYPES, emit_epilogue, emit_products
from tilefold.backends.triton.launch import interpret_call, launcher
from tilefold.contract.epilogue import Epilogue, accumulator_dtype
from tilefold.contract.operands import Contraction, canonical_product, cublas_precision
from tilefold.contract.plan import ContractPlan, Tile, plan_product
from tilefold.errors import BackendError, DtypeError
from tilefold.planner.device import H200, Device, device_of

Tensor = torch.Tensor
_NARROW = 2**31 - 1
_CUBLAS = (torch.float16, torch.bfloat16, torch.float32, torch.float64)


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
    _check_dtypes(epilogue, a.dtype, device)
    if 0 in shape:
        plan = ContractPlan("triton", "nothing", guarantee=guarantee, reason="no results")
        return Ready(plan, [], 0, epilogue, shape, a)
    problem = canonical_product(a, b, extras)
    if plan is None:
        cublas = _cublas_has(a.dtype, precision)
        plan = plan_product(problem, device, precision=precision, guarantee=guarantee, cublas=cublas)
    calls = product_calls(plan, problem, epilogue, interpret=False)
    return Ready(plan, [launcher(c, a.device.index) for c in calls], problem.outputs, epilogue, shape, a)


class Ready:
    """A product compiled for one device: called with tensors of the planned layout it allocates, launches and returns.

    Kept for repeated calls, so it does as little as it can. Partial products live in memory of the call, from torch's
    allocator: streams and graphs share none.
    """

    def __init__(
        self,
        plan: ContractPlan,
        launches: Sequence[Callable[..., None]],
        outputs: int,
        epilogue: Epilogue,
        shape: Sequence[int],
        like: Tensor,
    ) -> None:
        self.plan, self.launches = plan, tuple(launches)
        self.device, self.index = like.device, like.device.index
        self.shape, self.dtype = tuple(shape), epilogue.result
        self.partials, self.accumulator = (plan.splits, outputs), accumulator_dtype(like.dtype)

    def __call__(self, a: Tensor, b: Tensor, *extras: Tensor) -> Tensor:
        """Multiply, on the current stream of the tensors' device, whichever device is current."""
        if torch._C._cuda_getDevice() != self.index:
            with torch.cuda.device(self.index):
                return self(a, b, *extras)
        result = torch.empty(self.shape, dtype=self.dtype, device=self.device)
        if not self.launches:
            return result
        stream = torch._C._cuda_getCurrentRawStream(self.index)
        ends = [*(e.data_ptr() for e in extras), result.data_ptr()]
        if self.plan.strategy == "whole":
            self.launches[0](stream, a.data_ptr(), b.data_ptr(), *ends)
        elif self.plan.strategy == "cublas":
            sums = _wide_product(a, b, self.accumulator)
            self.launches[0](stream, sums.data_ptr(), *ends)
        else:
            partials = torch.empty(self.partials, dtype=self.accumulator, device=self.device)
            self.launches[0](stream, a.data_ptr(), b.data_ptr(), partials.data_ptr())
            self.launches[1](stream, partials.data_ptr(), *ends)
        return result


def interpret(
    a: Tensor,
    b: Tensor,
    extras: Sequence[Tensor],
    epilogue: Epilogue,
    precision: str,
    guarantee: str,
    shape: Sequence[int],
) -> tuple[Tensor, ContractPlan]:
    """The same kernels under Triton's interpreter, on CPU tensors, as an H200 would be planned without cuBLAS."""
    result = torch.empty(shape, dtype=epilogue.result, device="cpu")
    _check_dtypes(epilogue, a.dtype, H200)
    if result.numel() == 0:
        return result, ContractPlan("triton", "nothing", guarantee=guarantee, reason="no results")
    problem = canonical_product(a, b, extras)
    plan = plan_product(problem, H200, precision=precision, guarantee=guarantee, cublas=False)
    run_interpreted(plan, problem, epilogue, a, b, extras, result)
    return result, plan


def run_interpreted(
    plan: ContractPlan,
    problem: Contraction,
    epilogue: Epilogue,
    a: Tensor,
    b: Tensor,
    extras: Sequence[Tensor],
    result: Tensor,
) -> None:
    """Every launch of any plan under the interpreter, one after the other."""
    first, *later = product_calls(plan, problem, epilogue, interpret=True)
    if plan.strategy == "whole":
        interpret_call(first, [a, b, *extras], [result])
        return
    accumulator = accumulator_dtype(a.dtype)
    if plan.strategy == "cublas":
        interpret_call(first, [_wide_product(a, b, accumulator), *extras], [result])
        return
    partials = torch.empty((plan.splits, problem.outputs), dtype=accumulator, device="cpu")
    interpret_call(first, [a, b], [partials])
    interpret_call(later[0], [partials, *extras], [result])


def _check_dtypes(epilogue: Epilogue, operand: torch.dtype, device: Device) -> None:
    """Refuse what the chip cannot load or multiply, before Triton does so in its own words."""
    for dtype in (operand, *epilogue.elements, epilogue.result):
        if dtype not in STORED_DTYPES or (dtype is torch.float8_e4m3fn and device.capability < 89):
            raise DtypeError(
                f"matmul: a GPU of compute capability {device.capability / 10} must be able to convert the dtype, "
                f"got {dtype}; convert the tensor to float16 first"
            )


def _cublas_has(dtype: torch.dtype, precision: str) -> bool:
    """Whether torch.matmul multiplies this dtype, in this precision as torch is set now."""
    if dtype == torch.float32:
        return cublas_precision() == precision
    return dtype in _CUBLAS


def _wide_product(a: Tensor, b: Tensor, dtype: torch.dtype) -> Tensor:
    """The product by cuBLAS with its float32 sums as they are, contiguous."""
    a, b = a if a.ndim > 1 else a[None], b if b.ndim > 1 else b[:, None]
    if a.dtype == dtype:
        return torch.matmul(a, b).contiguous()
    if b.ndim == 2:
        return torch.mm(a.reshape(-1, a.shape[-1]), b, out_dtype=dtype)
    batch = torch.broadcast_shapes(a.shape[:-2], b.shape[:-2])  # type: ignore[no-untyped-call]  # torch's own
    left, right = (t.expand(*batch, *t.shape[-2:]).reshape(-1, *t.shape[-2:]) for t in (a, b))
    return torch.bmm(left, right, out_dtype=dtype)


def product_calls(
    plan: ContractPlan, problem: Contraction, epilogue: Epilogue, *, interpret: bool
) -> list[Call]:
    """The kernel calls of a plan, in order."""
    source = emit_epilogue(epilogue.typed, epilogue.elements, epilogue.result, interpret)
    operand = problem.dtypes[0]
    factors = emit_products(operand, accumulator_dtype(operand), interpret)
    if plan.strategy == "whole":
        return [_whole_call(plan, problem, epilogue, f"{factors}\n\n{source}")]
    overlap, chained = plan.overlap and not interpret, plan.chained and not interpret
    finish = _finish_call(plan, problem, epilogue, source, overlap, chained)
    if plan.strategy == "cublas":
        return [finish]
    return [_partials_call(plan, problem, factors, overlap, chained), finish]


def _whole_call(plan: ContractPlan, problem: Contraction, epilogue: Epilogue, source: str) -> Call:
    assert plan.tile is not None
    arguments = (
        *_factors(problem),
        _extras(problem),
        Pointer(epilogue.result, 16),
        *_sizes(problem),
        tuple(d.size for d in problem.batch),
    )
    return _call(
        "product_whole",
        source,
        arguments,
        _tile_constants(plan, problem),
        _programs(plan, problem),
        plan.tile,
    )


def _partials_call(
    plan: ContractPlan, problem: Contraction, source: str, overlap: bool, chained: bool
) -> Call:
    assert plan.tile is not None
    steps = math.ceil(problem.depth.size / plan.tile.block_k)
    arguments = (
        *_factors(problem),
        Pointer(accumulator_dtype(problem.dtypes[0]), 16),
        *_sizes(problem),
        tuple(d.size for d in problem.batch),
        math.ceil(steps / plan.splits) * plan.tile.block_k,
        plan.splits,
        problem.outputs,
    )
    constants = _tile_constants(plan, problem) | {"WAIT": chained, "RELEASE": overlap}
    return _call(
        "product_partials", source, arguments, constants, _programs(plan, problem), plan.tile, chained
    )


def _finish_call(
    plan: ContractPlan, problem: Contraction, epilogue: Epilogue, source: str, overlap: bool, chained: bool
) -> Call:
    assert plan.finish is not None
    accumulator = accumulator_dtype(problem.dtypes[0])
    rows, columns, _ = _sizes(problem)
    arguments = (
        Pointer(accumulator, 16),
        _extras(problem),
        Pointer(epilogue.result, 16),
        rows,
        columns,
        tuple(d.size for d in problem.batch),
        plan.splits,
        problem.outputs,
    )
    constants = {
        "BLOCK": plan.finish.block,
        "LANES": plan.finish.lanes,
        "WIDE": max(problem.outputs, *_reaches(problem)) + plan.finish.block > _NARROW,
        "WAIT": overlap,
        "RELEASE": chained,
    }
    grid = _launchable(math.ceil(problem.outputs / plan.finish.block), problem)
    return Call(
        "finish_products",
        source,
        arguments,
        tuple(constants.items()),
        grid,
        plan.finish.num_warps,
        1,
        overlap,
    )


def _call(
    name: str,
    source: str,
    arguments: Any,
    constants: dict[str, Any],
    grid: int,
    tile: Tile,
    dependent: bool = False,
) -> Call:
    return Call(
        name, source, arguments, tuple(constants.items()), grid, tile.num_warps, tile.num_stages, dependent
    )


def _factors(problem: Contraction) -> tuple[Any, Any]:
    """The records of a and b."""
    along = (problem.rows, problem.columns)
    a, b = (
        (
            Pointer(problem.dtypes[i], problem.aligned[i]),
            tuple(d.strides[i] for d in problem.batch),
            along[i].strides[i],
            problem.depth.strides[i],
        )
        for i in (0, 1)
    )
    return a, b


def _extras(problem: Contraction) -> tuple[Any, ...]:
    return tuple(
        (
            Pointer(problem.dtypes[i], problem.aligned[i]),
            tuple(d.strides[i] for d in problem.batch),
            problem.rows.strides[i],
            problem.columns.strides[i],
        )
        for i in range(2, len(problem.dtypes))
    )


def _sizes(problem: Contraction) -> tuple[int, int, int]:
    return problem.rows.size, problem.columns.size, problem.depth.size


def _tile_constants(plan: ContractPlan, problem: Contraction) -> dict[str, Any]:
    tile = plan.tile
    assert tile is not None
    rows, columns, depth = _sizes(problem)
    return {
        "BLOCK_M": tile.block_m,
        "BLOCK_N": tile.block_n,
        "BLOCK_K": tile.block_k,
        "MASK_M": rows % tile.block_m != 0,
        "MASK_N": columns % tile.block_n != 0,
        "MASK_K": depth % tile.block_k != 0,
        "WIDE": max(*_reaches(problem), depth + tile.block_k * plan.splits, rows * columns) > _NARROW,
        "PRECISION": plan.precision,
    }


def _reaches(problem: Contraction) -> list[int]:
    """The farthest offset, in elements, inside one matrix of each tensor."""
    dims = (problem.rows, problem.columns, problem.depth)
    return [sum((d.size - 1) * d.strides[i] for d in dims if d.size) for i in range(len(problem.dtypes))]


def _programs(plan: ContractPlan, problem: Contraction) -> int:
    assert plan.tile is not None
    rows, columns, _ = _sizes(problem)
    tiles = math.ceil(rows / plan.tile.block_m) * math.ceil(columns / plan.tile.block_n)
    return _launchable(tiles * problem.batches * plan.splits, problem)


def _launchable(programs: int, problem: Contraction) -> int:
    if programs > _NARROW:
        raise BackendError(
            f"matmul: one launch must have at most {_NARROW} programs, got {programs} for {problem.outputs} results; "
            "multiply a part of them at a time"
        )
    return programs
