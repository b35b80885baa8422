"""Sums of few results by atomics, with each memory semantics, beside the fold whose bits do not depend on timing."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import Any

import torch

import tilefold
from tilefold import monoids
from tilefold.bench.cases import Case, Choice, Suite, Variant
from tilefold.bench.operations import fold_case
from tilefold.bench.ours import OURS, last_plan_note

SEMANTICS = ("relaxed", "acquire", "release", "acq_rel")
LENGTHS = {"full": (1 << 16, 1 << 20, 1 << 24, 1 << 28), "small": (1 << 12, 1 << 16)}


def cases(size: str = "full") -> tuple[Case, ...]:
    """One row of float32 of several lengths."""
    return tuple(fold_case("sum", 1, (1, length), "fp32", "one result, fp32") for length in LENGTHS[size])


def build_unordered(case: Case, x: torch.Tensor) -> Sequence[Choice]:
    """`reduce` that promises nothing of bits."""
    return [
        Choice(
            "default", functools.partial(tilefold.reduce, monoid=monoids.SUM, dim=case.dim, guarantee="none")
        )
    ]


def build_atomic(semantics: str) -> Any:
    """A kernel that adds one sum a program, in some sizes of programs."""

    def build(case: Case, x: torch.Tensor) -> Sequence[Choice]:
        from tilefold.bench.kernels.atomic_sum import sum_atomically

        def choice(tiles: int, warps: int) -> Choice:
            block = 128 * warps

            def call(x: torch.Tensor) -> torch.Tensor:
                y = torch.zeros(case.result_shape, dtype=torch.float32, device=x.device)
                grid = (-(-x.numel() // (block * tiles)),)
                sum_atomically[grid](x, y, x.numel(), tiles, block, semantics, num_warps=warps)
                return y

            return Choice(f"{tiles} tiles, {warps} warps", call)

        return [choice(tiles, warps) for tiles in (1, 4, 16) for warps in (4, 8)]

    return build


NONE = Variant("ours, no guarantee", build_unordered, warms=True, graphs=True, plan=last_plan_note)
ATOMIC = tuple(
    Variant(f"atomic, {semantics}", build_atomic(semantics), gpu_only=True, warms=True, graphs=True)
    for semantics in SEMANTICS
)

SUITE = Suite("atomic-sum", str(__doc__).strip(), cases, (OURS, NONE, *ATOMIC))
