"""With "batch_invariant" who folds what, and in which order, follows from a row alone: its plans, and bits from PTX.

On a GPU `tests/backends/test_batch_gpu.py` compares the bits beside 1 to 512 rows.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict, replace
from typing import Any

import pytest
import torch

import batches
import tilefold
from asked import asked, executed
from tilefold import monoids
from tilefold.planner.device import H200
from tilefold.planner.plan import Plan

Operation = Callable[[torch.Tensor], Any]
COUNTS = (1, 2, 3, 7, 64, 100, 511, 512)
# What of a launch's settings no state depends on: hints to the caches, where tiles lie in shared memory, how many segments a
# call has, how wide a store is.
OF_THE_CALL = {"evict_first", "areas", "result_areas", "shared_bytes", "segments", "stored"}
# A map's last launch computes element by element; of a row it needs what was folded before.
BY_ELEMENTS = ("map_elements",)
PLANNED = [
    f for f in batches.ROWS if f not in (batches.selected, batches.product)
]  # top-k moves bits; products: test_plan
DEVICES = (H200, replace(H200, sms=66))


def order_of(plan: Plan) -> str:
    """All of a plan that says which elements meet in which order."""
    return str(
        [
            (step.kernel, {k: v for k, v in asdict(step.settings).items() if k not in OF_THE_CALL})  # type: ignore[call-overload]
            for step in plan.launched
            if step.kernel not in BY_ELEMENTS
        ]
    )


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32], ids=str)
@pytest.mark.parametrize("columns", [11, 96, 1000, 4099, 8192, 65536, 151936, 1 << 20])
@pytest.mark.parametrize("operation", PLANNED, ids=lambda f: f.__name__)
def test_a_row_is_planned_alike_among_any_number(
    operation: Operation, columns: int, dtype: torch.dtype
) -> None:
    x = torch.empty(512, columns, dtype=dtype, device="meta")
    plans = [
        asked(lambda n=n: operation(x[:n]), device)[2]  # type: ignore[misc]
        for n in COUNTS
        for device in DEVICES
    ]
    assert all(plan.launched for plan in plans)
    assert len({order_of(plan) for plan in plans}) == 1


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32], ids=str)
@pytest.mark.parametrize("length", [11, 96, 1000, 4099, 65536])
@pytest.mark.parametrize("operation", batches.COLUMNS, ids=lambda f: f.__name__)
def test_a_column_is_planned_alike_among_any_number(
    operation: Operation, length: int, dtype: torch.dtype
) -> None:
    y = torch.empty(length, 512, dtype=dtype, device="meta")
    plans = [
        asked(lambda n=n: operation(y[:, :n]), device)[2]  # type: ignore[misc]
        for n in COUNTS
        for device in DEVICES
    ]
    assert all(plan.launched for plan in plans)
    assert len({order_of(plan) for plan in plans}) == 1


@pytest.mark.parametrize("operation", [*PLANNED, batches.selected], ids=lambda f: f.__name__)
def test_bits_of_a_row_beside_others(operation: Operation) -> None:
    x = torch.randn(12, 36 if operation is batches.group_normed else 37)  # groups of channels, or odd rows
    every, _ = executed(lambda: operation(x))
    for rows in (1, 5):
        part, _ = executed(lambda: operation(x[:rows]))  # noqa: B023  # called at once
        for got, want in zip(part, every, strict=True):
            share = len(want) // 12 * rows
            assert torch.equal(got, want[:share]), rows


@pytest.mark.parametrize("operation", batches.COLUMNS, ids=lambda f: f.__name__)
def test_bits_of_a_column_beside_others(operation: Operation) -> None:
    y = torch.randn(37, 12)
    every, _ = executed(lambda: operation(y))
    for columns in (1, 5):
        part, _ = executed(lambda: operation(y[:, :columns]))  # noqa: B023  # called at once
        assert torch.equal(part[0], every[0][:, :columns]), columns


def share(x: torch.Tensor) -> torch.Tensor:
    return tilefold.reduce_map(x, monoids.SUM, lambda x, total: x * 0 + total, dim=1, **batches.HOLDS)


@pytest.mark.parametrize(
    ("kernel", "columns"), [("map_blocks", 4099), ("map_windows", 140_003)], ids=["held", "in windows"]
)
def test_bits_of_a_single_odd_row(kernel: str, columns: int) -> None:
    """Its results begin with a whole vector, those of a next row would not: threads have the same elements all the same."""
    x = torch.randn(8, columns, generator=torch.Generator().manual_seed(0)).exp()
    (every,), plan = executed(lambda: share(x))
    assert plan.launched[-1].kernel == kernel
    for row, want in zip(x, every, strict=True):
        (one,), alone = executed(lambda: share(row[None].clone()))  # noqa: B023  # called at once
        assert alone.launched[-1].kernel == kernel
        assert torch.equal(one[0], want)
