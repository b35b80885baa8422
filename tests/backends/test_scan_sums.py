"""Scans of sums of exponentials: under the interpreter and from their PTX, beside float64, within their bound."""

from __future__ import annotations

import functools
import math
from dataclasses import replace

import pytest
import torch

from scan_plans import planned
from scanned import from_behind_a_vector
from tilefold import monoids
from tilefold.algebra import program as programs
from tilefold.backends.steps import run_steps
from tilefold.backends.triton.executable import LIBRARY, interpret
from tilefold.backends.triton.lower import calls_of
from tilefold.planner.stages.scans import ScanTile, Work
from xray.running import run_call

# numpy, under Triton's interpreter
pytestmark = [
    pytest.mark.filterwarnings("ignore::DeprecationWarning"),
]
Tensor = torch.Tensor
INF = float("inf")
N = 130
STEEP = {
    "normal": torch.randn(N, generator=torch.Generator().manual_seed(0)),
    "wide": torch.randn(N, generator=torch.Generator().manual_seed(1)) * 300,
    "rising": torch.arange(N) * 5.0,
    "falling": torch.arange(N) * -5.0,
    "rises by 1000, then falls": torch.cat([torch.arange(65) * 16.0, 1024 - torch.arange(65) * 16.0]),
    "one huge value": torch.cat([torch.zeros(70), torch.tensor([1e30]), torch.zeros(59)]),
    "a step": torch.cat([torch.zeros(50), torch.full((80,), 17.0)]),
    "-inf before": torch.cat([torch.full((75,), -INF), torch.zeros(55)]),
    "-inf alone": torch.full((N,), -INF),
    "NaN inside": torch.cat([torch.zeros(77), torch.tensor([float("nan")]), torch.zeros(52)]),
    "+inf inside": torch.cat([torch.zeros(77), torch.tensor([INF]), torch.zeros(52)]),
    "the least": torch.full((N,), -3e38),
    "holes": torch.where(torch.arange(N) % 3 == 0, torch.arange(N) / 9.0, torch.tensor(-INF)),
}
SUMS = {
    "rows": ScanTile(16, 64, True, 4, 1, chunk=8, stored=8, sums=True),
    "rows aligned": ScanTile(16, 256, True, 4, 1, chunk=8, stored=8, align=4, sums=True),
    "rows shared": ScanTile(16, 64, True, 4, 1, chunk=8, stored=4, shares=1, group=2, groups=1, sums=True),
    "columns": ScanTile(16, 64, False, 1, 1, chunk=8, ahead=True, sums=True),
    "chunks of eleven": ScanTile(16, 22, False, 1, 1, chunk=11, ahead=True, sums=True),
    "a thread's columns of 13": ScanTile(32, 13, False, 1, 1, chunk=13, ahead=True, sums=True),
    "a thread's columns": ScanTile(16, 32, False, 1, 1, chunk=32, ahead=True, sums=True),
    "columns shared": ScanTile(16, 64, False, 1, 1, chunk=8, shares=1, group=2, groups=2, sums=True),
}


def check_sums(
    tile: ScanTile, rows: dict[str, Tensor], dtype: torch.dtype, reverse: bool, machine: bool = False
) -> None:
    """logcumsumexp by a plan beside float64, within the bound of docs/guarantees.md."""
    whole = torch.stack(list(rows.values())).to(dtype)
    x = whole if tile.by_rows else whole.t().contiguous()
    if tile.shift:
        x = from_behind_a_vector((len(rows), N), tile.shift[0], dtype).copy_(whole)
    dim = 1 if tile.by_rows else 0
    program = programs.specialize(monoids.LOGSUMEXP.total, (dtype,))
    problem, plan = planned([x], program, dim, tile, Work(reverse=reverse))
    result = torch.full(x.shape, 9).to(dtype)
    made = calls_of(plan, problem, program, interpret=not machine)
    if machine:
        launches = [functools.partial(run_call, call, architecture=90) for call in made]
        run_steps(plan, [x], [result], launches, LIBRARY, lambda writes: None)  # type: ignore[arg-type]
    else:
        interpret(plan, made, program, [x], [result])
    got, exact = result if dim else result.t(), whole.double()
    got, exact = (got.flip(1), exact.flip(1)) if reverse else (got, exact)
    want, largest = exact.logcumsumexp(1), exact.nan_to_num(0, 0, 0).abs().cummax(1).values
    u, steps = 2.0**-24, tile.chunk + 20
    bound = (4 * steps + 2 * largest + 4 * (16 + math.log(N))) * u + 2 * torch.finfo(
        dtype
    ).eps * want.abs().nan_to_num(0)
    equal = (got == want) | (got.isnan() & want.isnan())
    bad = ~(equal | ((got.double() - want).abs() <= bound))
    assert not bad.any(), [
        (name, row.nonzero()[:3].tolist()) for name, row in zip(rows, bad, strict=True) if row.any()
    ]


@pytest.mark.parametrize("name", list(SUMS))
def test_sums_of_exponentials(name: str) -> None:
    for dtype, reverse in ((torch.float32, False), (torch.bfloat16, True)):
        check_sums(SUMS[name], STEEP, dtype, reverse)


@pytest.mark.parametrize("name", ["rows", "rows shared", "columns", "a thread's columns"])
def test_sums_of_rows_that_are_all_held(name: str) -> None:
    """No row of the tile falls far: none of it is read again, and all of it is stored by its sums."""
    flat = {f"{k}": STEEP["normal"].roll(k) / (k + 1) for k in range(3)}
    check_sums(SUMS[name], flat, torch.float32, reverse=name == "columns")


@pytest.mark.parametrize("name", ["rows", "rows aligned"])
def test_sums_of_rows_that_begin_behind_vectors(name: str) -> None:
    """Chunks that sums do not hold are read again, as far behind their vectors."""
    check_sums(replace(SUMS[name], align=4, shift=(1,)), STEEP, torch.float32, False)


@pytest.mark.parametrize("name", ["rows", "rows aligned", "rows shared"])
def test_ptx_of_sums(name: str) -> None:
    some = {row: STEEP[row] for row in ("wide", "-inf before", "NaN inside")}
    check_sums(
        replace(SUMS[name], lines=1, length=32 * SUMS[name].chunk), some, torch.float32, False, machine=True
    )
