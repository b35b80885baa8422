"""Which of four strategies a product runs by, with which tile and how many splits. Nothing is measured or searched here.

strategy   launches   when
fold       1 or 2     one row or one column, which a fold reads in less time: a fold's plan (`folded`)
cublas     1 or 2     M x N fills the chip: torch's product alone, or its float32 sums and a launch that applies the epilogue
whole      1          K is not split: each program applies the epilogue to its own sums
split      2          few tiles, large K: programs share K and store partial products; a second launch, which begins early,
                      adds them in a fixed order and applies the epilogue

The plan with the least time by the cost model (`costs`) is taken, or the fastest of a search on this chip, where there is one
(`tuned`).
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import replace

import torch

from tilefold.planner.choose import plan_fold
from tilefold.planner.device import NOMINAL, Device
from tilefold.planner.first_launch import FirstLaunch
from tilefold.planner.form_choice import needed_us
from tilefold.planner.least_time import EARLY_US
from tilefold.planner.plan import Plan, Stage
from tilefold.planner.products import cublas
from tilefold.planner.products.costs import Costs, plan_us
from tilefold.planner.products.epilogue import Epilogue
from tilefold.planner.products.folded import can_fold, fold_of, folds_columns, reads_long_rows_loosely
from tilefold.planner.products.operands import (
    EXACT_IN_FLOAT64,
    Contraction,
    canonical_product,
    loads_of_elements,
    narrow_vectors,
    neighbours_across,
)
from tilefold.planner.products.plan import Asked, Candidate, Sizes, Tile
from tilefold.planner.products.steps import nothing, product_plan
from tilefold.planner.products.tiles import finish_of, packed_tiles_of, splits_of, spreading_bytes, tiles_of
from tilefold.planner.products.tuned import costs_of, tuned_plan
from tilefold.runtime.caching import kept_outside_modes


def choose_product(
    problem: Contraction,
    device: Device,
    *,
    precision: str = "ieee",
    guarantee: str = "run_to_run",
    cublas: bool = True,
    finished: bool = False,
    row: bool = False,
) -> Candidate:
    """The plan of a product on `device`. `Asked` explains the last three arguments.

    With "batch_invariant" the plan depends on K, N and the dtype alone. So cuBLAS is not used, since it chooses by M, and the
    workspace of `splits` x M x N sums has no limit.
    """
    dtype = torch.float64 if problem.dtypes[0] in EXACT_IN_FLOAT64 else problem.dtypes[0]
    sizes = Sizes(
        problem.rows.size,
        problem.columns.size,
        problem.depth.size,
        problem.batches,
        dtype.itemsize,
        loads_of_elements(problem),
        neighbours_across(problem),
        narrow_vectors(problem),
    )
    asked, chip = Asked(dtype, precision, cublas, finished, row), device
    if guarantee == "batch_invariant":
        sizes = replace(sizes, rows=INVARIANT_ROWS, batches=1, loose=(False, False), across=(False, True))
        chip = NOMINAL
        asked = replace(asked, cublas=False, finished=False, in_order=True)
    plan = _chosen(sizes, asked, chip)
    if guarantee == "batch_invariant":
        plan = replace(plan, reason=f"whatever the rows, as for {plan.reason}")
    follows = plan.strategy == "split" or any(plan.packed)
    return replace(plan, overlap=follows and device.overlaps, precision=precision, guarantee=guarantee)


def plan_tensors(
    tensors: Sequence[torch.Tensor],
    epilogue: Epilogue,
    precision: str,
    guarantee: str,
    device: Device,
    *,
    library: bool = True,
) -> tuple[Contraction, Plan]:
    """The problem of validated operands and extra tensors, and its plan on a chip under torch's present settings.

    `library`: the plan may use cuBLAS.
    """
    a, b, *extras = tensors
    problem = canonical_product(a, b, extras)
    if problem.outputs == 0:
        return problem, nothing(epilogue, guarantee)
    chosen = choose_product(
        problem,
        device,
        precision=precision,
        guarantee=guarantee,
        cublas=library and cublas.multiplies(a.dtype, precision),
        finished=cublas.finishes(epilogue, a, b, extras),
        row=epilogue.row is not None,
    )
    plan = product_plan(chosen, problem, epilogue)
    return problem, _faster_fold(chosen, problem, epilogue, device) or plan


# The two models have different clocks. By 40 timed products of one row or column (docs/experiments/products.md#folds) tiles
# took 3.4 us and so many times what their model expects after a launch; folds took an empty kernel's 3.3 us and what their
# model expects. A fold must save a share of the product's time. A fold of columns must save more: it took up to 1.1 times
# its expected time.
EMPTY_US = 3.3
VECTOR_LAUNCH_US = 3.4
VECTOR_LONGER = {2: 1.25, 4: 2.9}  # by bytes of an element
FOLD_DOUBT, COLUMNS_DOUBT = 0.05, 0.1


def _faster_fold(product: Candidate, problem: Contraction, epilogue: Epilogue, device: Device) -> Plan | None:
    """The fold's plan, if the fold is expected to take less time than `product`."""
    if not can_fold(problem, epilogue, product.guarantee):
        return None
    fold = fold_of(problem, epilogue)
    plan = plan_fold(*fold, device, "run_to_run")
    if reads_long_rows_loosely(problem, plan):
        return None
    first: Stage = plan.stages[0]
    needed = needed_us(FirstLaunch.of(*fold, first), first, device) + EARLY_US * (plan.launches - 1)
    time_us, product_us = as_timed(needed, product, problem.dtypes[0].itemsize, device)
    doubt = COLUMNS_DOUBT if folds_columns(problem) else FOLD_DOUBT
    if time_us >= (1 - doubt) * product_us:
        return None
    reason = f"{plan.reason}, about {time_us:.1f} us ({product.strategy} {product_us:.1f})"
    return replace(plan, guarantee=product.guarantee, strategy="fold", reason=reason)


def as_timed(needed: float, product: Candidate, itemsize: int, device: Device) -> tuple[float, float]:
    """The expected times, in microseconds of one clock, of a fold and of the same product of one row or column, from the
    times that their own models give; `itemsize` is an element's."""
    product_us = product.time_us
    if product.strategy != "cublas":
        product_us = VECTOR_LAUNCH_US + VECTOR_LONGER[itemsize] * (product_us - costs_of(device).launch_us)
    return EMPTY_US + needed, product_us


# A definition, and a bound of candidates that was not measured.
INVARIANT_ROWS = 64  # "batch_invariant" plans as if there were so many rows
PARTIAL_BYTES = 64 << 20  # of partial products at most: memory would write and read what the L2 does not keep


@kept_outside_modes(4096)
def _chosen(sizes: Sizes, asked: Asked, device: Device) -> Candidate:
    plans = candidates(sizes, asked, device, costs_of(device))
    best = cheapest(plans)
    if device != NOMINAL:
        best = tuned_plan(sizes, asked, device, best) or best
    return replace(best, reason=_reason(best, plans, sizes))


def cheapest(plans: Sequence[Candidate]) -> Candidate:
    """The same choice, for the operands as the cost model describes them."""
    return min(plans, key=lambda p: p.time_us)


def _reason(best: Candidate, plans: list[Candidate], sizes: Sizes) -> str:
    """The plan's reason: the sizes, the expected time, and the expected times of other strategies."""
    text = f"{sizes.rows} x {sizes.columns} results of K = {sizes.depth}, {best.reason or 'about'} {best.time_us:.1f} us"
    least: dict[str, float] = {}
    for plan in plans:
        least[plan.strategy] = min(plan.time_us, least.get(plan.strategy, math.inf))
    others = [f"{name} {time_us:.1f}" for name, time_us in least.items() if name != best.strategy]
    return f"{text} ({', '.join(others)})" if others else text


def candidates(sizes: Sizes, asked: Asked, device: Device, costs: Costs | None = None) -> list[Candidate]:
    """Every plan that is compared, with its time by the cost model. A search times these.

    `choose_product` sets `overlap` and `precision` afterwards.
    """
    plans = [
        plan
        for tile in tiles_of(sizes, asked, device)
        for splits in splits_of(sizes.depth, tile)
        if splits == 1 or splits * sizes.outputs * 4 <= PARTIAL_BYTES
        for plan in _tiled(tile, splits, sizes, asked, device)
    ]
    plans += _packed(sizes, asked, device)
    if asked.cublas:
        finish = None if asked.finished else finish_of(sizes, 1, asked.row)
        plans.append(Candidate("cublas", finish=finish))
    used = costs or Costs()
    return [replace(plan, time_us=plan_us(plan, sizes, asked, device, used)) for plan in plans]


def _packed(sizes: Sizes, asked: Asked, device: Device) -> list[Candidate]:
    """Plans that first copy operands whose elements would be loaded one by one. Only for matrices of half precision."""
    if not any(sizes.loose) or sizes.batches > 1 or sizes.itemsize != 2:
        return []
    vectors = replace(sizes, loose=(False, False))
    return [
        replace(plan, packed=sizes.loose)
        for tile in packed_tiles_of(vectors, asked, device)
        for splits in splits_of(sizes.depth, tile)
        if splits == 1 or splits * sizes.outputs * 4 <= PARTIAL_BYTES
        for plan in _tiled(tile, splits, vectors, asked, device)
        if not plan.chained
    ]


def _tiled(tile: Tile, splits: int, sizes: Sizes, asked: Asked, device: Device) -> Iterator[Candidate]:
    if splits == 1 and (not asked.row or tile.block_n >= sizes.columns):
        plan = Candidate("whole", tile)
    else:
        finish = finish_of(sizes, splits, asked.row, asked.in_order)
        plan = Candidate("split", tile, splits, finish)
    yield plan
    if device.overlaps and (reserved := spreading_bytes(tile, splits, sizes, device)):
        yield replace(plan, chained=True, reserved_bytes=reserved)
