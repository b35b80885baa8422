"""The choice of a product's plan: the strategies where they belong, and what "batch_invariant" may see."""

from __future__ import annotations

import pytest
import torch

from tilefold.contract.operands import Contraction, canonical_product
from tilefold.contract.plan import ContractPlan, plan_product
from tilefold.planner.device import H200, Device

A100 = Device("NVIDIA A100", 108, 80, 2000.0)


def problem(rows: int, depth: int, columns: int, dtype: torch.dtype = torch.bfloat16) -> Contraction:
    a, b = (torch.empty(s, dtype=dtype, device="meta") for s in ((rows, depth), (depth, columns)))
    return canonical_product(a, b, [])


@pytest.mark.parametrize(
    ("sizes", "strategy"),
    [
        ((16, 32768, 16), "split"),
        ((64, 8192, 64), "split"),
        ((1, 7168, 256), "split"),
        ((8, 64, 8), "whole"),
        ((16, 0, 16), "whole"),
        ((4096, 4096, 4096), "cublas"),
    ],
    ids=str,
)
def test_strategies(sizes: tuple[int, int, int], strategy: str) -> None:
    assert plan_product(problem(*sizes), H200).strategy == strategy


@pytest.mark.parametrize("dtype", [torch.float16, torch.float32, torch.float64, torch.int8])
@pytest.mark.parametrize("sizes", [(1, 1, 1), (16, 8191, 16), (63, 100_003, 33), (700, 65, 1000)], ids=str)
def test_no_split_is_without_elements(sizes: tuple[int, int, int], dtype: torch.dtype) -> None:
    plan = plan_product(problem(*sizes, dtype), H200, cublas=False)
    assert plan.tile is not None
    steps = -(-sizes[1] // plan.tile.block_k)
    chunk = -(-steps // plan.splits) * plan.tile.block_k
    assert (plan.splits - 1) * chunk < sizes[1]
    assert plan.launches == (2 if plan.splits > 1 else 1)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])
@pytest.mark.parametrize(("depth", "columns"), [(7168, 256), (8192, 16), (129, 4096)])
def test_a_batch_invariant_plan_sees_neither_rows_nor_cores(
    depth: int, columns: int, dtype: torch.dtype
) -> None:
    def plan(rows: int, device: Device) -> tuple[object, ...]:
        made = plan_product(problem(rows, depth, columns, dtype), device, guarantee="batch_invariant")
        return made.strategy, made.tile, made.splits, made.finish

    assert len({plan(rows, H200) for rows in (1, 2, 16, 63, 512, 10_000)}) == 1
    assert plan(1, H200) == plan(1, A100)
    assert plan(1, H200)[0] != "cublas"


def test_batches_of_a_join_its_rows_where_strides_allow() -> None:
    b = torch.empty(5, 7, device="meta")
    joined = canonical_product(torch.empty(2, 3, 4, 5, device="meta"), b, [])
    assert (joined.batch, joined.rows.size) == ((), 24)
    apart = canonical_product(torch.empty(2, 8, 5, device="meta")[:, :4], b, [])
    assert (apart.batches, apart.rows.size) == (2, 4)
    of_both = canonical_product(torch.empty(6, 1, 5, device="meta"), torch.empty(6, 5, 7, device="meta"), [])
    assert (of_both.batches, of_both.rows.size) == (6, 1)


def test_a_plan_reads_well() -> None:
    text = str(plan_product(problem(16, 32768, 16), H200))
    for part in ("triton: split", "K = 32768", "splits", "starts early"):
        assert part in text
    assert not plan_product(problem(16, 32768, 16), A100).overlap
    assert ContractPlan("torch", "torch.matmul").launches == 0
