"""The choice of a product's plan: the strategies where they belong, and what "batch_invariant" may see."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
import torch
from torch.overrides import TorchFunctionMode

import tilefold
from tilefold.backends.steps import run_steps
from tilefold.backends.triton.cublas import finished_product
from tilefold.backends.triton.executable import LIBRARY
from tilefold.planner.device import H200, Device
from tilefold.planner.plan import LibraryCall, Plan
from tilefold.planner.products import cublas
from tilefold.planner.products.choose import PARTIAL_BYTES, candidates, choose_product, plan_tensors
from tilefold.planner.products.costs import PROGRAM_BYTES
from tilefold.planner.products.epilogue import make_epilogue
from tilefold.planner.products.operands import Contraction, canonical_product
from tilefold.planner.products.plan import Asked, Candidate, Finish, Sizes
from tilefold.planner.products.steps import product_plan
from tilefold.planner.products.tiles import MOST_SHARING

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
    """As the cost model has it: this chip has no table."""
    assert choose_product(problem(*sizes), replace(H200, name="another")).strategy == strategy


@pytest.mark.parametrize("dtype", [torch.float16, torch.float32, torch.float64, torch.int8])
@pytest.mark.parametrize("sizes", [(1, 1, 1), (16, 8191, 16), (63, 100_003, 33), (700, 65, 1000)], ids=str)
def test_no_split_is_without_elements(sizes: tuple[int, int, int], dtype: torch.dtype) -> None:
    plan = choose_product(problem(*sizes, dtype), H200, cublas=False)
    assert plan.tile is not None
    steps = -(-sizes[1] // plan.tile.block_k)
    chunk = -(-steps // plan.splits) * plan.tile.block_k
    assert (plan.splits - 1) * chunk < sizes[1]
    assert (plan.finish is not None) == (plan.splits > 1)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])
@pytest.mark.parametrize(("depth", "columns"), [(7168, 256), (8192, 16), (129, 4096)])
def test_a_batch_invariant_plan_sees_neither_rows_nor_cores(
    depth: int, columns: int, dtype: torch.dtype
) -> None:
    def plan(rows: int, device: Device) -> tuple[object, ...]:
        made = choose_product(problem(rows, depth, columns, dtype), device, guarantee="batch_invariant")
        return made.strategy, made.tile, made.splits, made.finish

    assert len({plan(rows, H200) for rows in (1, 2, 16, 63, 512, 10_000)}) == 1
    assert plan(1, H200) == plan(1, A100)
    assert plan(1, H200)[0] != "cublas"
    said = choose_product(problem(16, depth, columns, dtype), H200, guarantee="batch_invariant").reason
    assert said.startswith(f"whatever the rows, as for 64 x {columns} results")


def test_batches_of_a_join_its_rows_where_strides_allow() -> None:
    b = torch.empty(5, 7, device="meta")
    joined = canonical_product(torch.empty(2, 3, 4, 5, device="meta"), b, [])
    assert (joined.batch, joined.rows.size) == ((), 24)
    apart = canonical_product(torch.empty(2, 8, 5, device="meta")[:, :4], b, [])
    assert (apart.batches, apart.rows.size) == (2, 4)
    of_both = canonical_product(torch.empty(6, 1, 5, device="meta"), torch.empty(6, 5, 7, device="meta"), [])
    assert (of_both.batches, of_both.rows.size) == (6, 1)


def test_a_plan_reads_well() -> None:
    text = str(planned(16, 32768, 16, H200))
    for part in (
        "triton: split",
        "K = 32768",
        "splits",
        "launches 1 and 2 start early",
        "no SM to more than its share",
    ):
        assert part in text
    assert "launch 1 starts early (programmatic dependent launch)" in str(planned(8, 64, 8, H200))
    assert "early" not in str(planned(16, 32768, 16, A100))


def planned(rows: int, depth: int, columns: int, device: Device) -> Plan:
    sizes = problem(rows, depth, columns)
    ending = make_epilogue(None, None, (), torch.bfloat16, None)
    return product_plan(choose_product(sizes, device), sizes, ending)


def test_no_limit_on_memory_changes_a_batch_invariant_plan() -> None:
    """The partial products of a million rows are far beyond what "run_to_run" would hold."""
    plans = [
        choose_product(problem(rows, 8192, 4096), H200, guarantee="batch_invariant") for rows in (1, 1 << 20)
    ]
    assert plans[0] == plans[1]
    assert plans[0].splits * (1 << 20) * 4096 * 4 > PARTIAL_BYTES


@pytest.mark.parametrize("finished", [True, False])
def test_cublas_ends_what_it_can_itself(finished: bool) -> None:
    plan = choose_product(problem(4096, 65536, 4096), replace(H200, name="another"), finished=finished)
    assert (plan.strategy, plan.finish is None) == ("cublas", finished)


@pytest.mark.parametrize("columns", [3, 48, 256, 5000])
@pytest.mark.parametrize("rows", [1, 300])
def test_rows_that_are_folded_are_held_whole(rows: int, columns: int) -> None:
    plan = choose_product(problem(rows, 7168, columns), H200, row=True)
    held = plan.finish.row if plan.finish else plan.tile.block_n if plan.tile else 0
    assert held >= columns


@pytest.mark.parametrize("sms", [64, 132, 264])
def test_of_programs_that_begin_early_no_sm_holds_more_than_its_share(sms: int) -> None:
    """One more does not fit: they spread over all SMs, also where some are still at work."""
    chip = replace(H200, name="another", sms=sms)
    for sizes in ((16, 8192, 16), (64, 32768, 64), (48, 20480, 48), (8, 64, 8)):
        plan = choose_product(problem(*sizes), chip)
        assert plan.tile is not None
        assert plan.chained
        tiles = -(-sizes[0] // plan.tile.block_m) * -(-sizes[2] // plan.tile.block_n)
        share = -(-tiles * plan.splits // sms)
        assert share <= MOST_SHARING
        assert (share + 1) * (plan.reserved_bytes + PROGRAM_BYTES) > chip.shared_bytes
        assert share * (plan.reserved_bytes + PROGRAM_BYTES) <= chip.shared_bytes
    assert not choose_product(problem(16, 8192, 16), A100).chained


@pytest.mark.parametrize(("precision", "large"), [("ieee", False), ("tf32", True)])
def test_registers_limit_true_float32_alone(precision: str, large: bool) -> None:
    """Tensor cores take tf32's operands from shared memory, as those of half precision."""
    plans = candidates(Sizes(4096, 4096, 4096, 1, 4), Asked(torch.float32, precision), H200)
    tiles = [plan.tile for plan in plans if plan.tile is not None]
    assert any(min(tile.block_m, tile.block_n) == 128 for tile in tiles) == large


def test_what_torch_finishes() -> None:
    a, b, bias = torch.empty(8, 16), torch.empty(16, 4), torch.empty(4).expand(8, 4)

    def ends(epilogue: object, extras: list[torch.Tensor], out: torch.dtype | None = None) -> bool:
        made = make_epilogue(epilogue, None, tuple(e.dtype for e in extras), a.dtype, out)  # type: ignore[arg-type]
        return cublas.finishes(made, a, b, extras)

    assert ends(None, [])
    assert ends(lambda x, y: x + y, [bias])
    assert not ends(None, [], torch.float64)
    assert not ends("relu", [])
    assert not ends(lambda x, y: x + y, [torch.empty(8, 1).expand(8, 4)])
    assert not ends(lambda x, y: x + y, [bias.half()])
    with_bias = make_epilogue(None, torch.float32, (), torch.float32, None)
    assert cublas.finishes(with_bias, a, b, [bias])


@pytest.mark.parametrize(
    "extras",
    [[], [torch.arange(4.0).expand(3, 4)], [torch.arange(4.0)]],
    ids=["plain", "bias in the result's shape", "bias as given"],
)
def test_cublas_is_asked_for_full_sums(extras: list[torch.Tensor]) -> None:
    """And torch's own setting is what it was afterwards."""
    a, b, out = torch.ones(3, 5).bfloat16(), torch.ones(5, 4).bfloat16(), torch.empty(3, 4).bfloat16()
    settings = torch.backends.cuda.matmul
    assert settings.allow_bf16_reduced_precision_reduction
    seen = []

    class Watch(TorchFunctionMode):
        def __torch_function__(self, func, types, args=(), kwargs=None):  # type: ignore[no-untyped-def]
            seen.append(settings.allow_bf16_reduced_precision_reduction)
            return func(*args, **(kwargs or {}))

    with Watch():
        finished_product(a, b, *(e.bfloat16() for e in extras), out)
    assert seen[-1] is False
    assert settings.allow_bf16_reduced_precision_reduction
    assert torch.equal(out, (a.float() @ b.float() + sum(extras)).bfloat16())


def test_cublas_multiplies_as_torch_is_set() -> None:
    settings = torch.backends.cuda.matmul
    assert cublas.multiplies(torch.float32, "ieee")
    assert not cublas.multiplies(torch.float32, "tf32")
    assert cublas.multiplies(torch.float16, "ieee")
    assert not cublas.multiplies(torch.int8, "ieee")
    settings.allow_fp16_accumulation = True
    try:
        assert not cublas.multiplies(torch.float16, "ieee")
        assert cublas.multiplies(torch.bfloat16, "ieee")
    finally:
        settings.allow_fp16_accumulation = False


def test_explain_plan_of_a_product() -> None:
    a, b = torch.empty(16, 32768, device="meta"), torch.empty(32768, 16, device="meta")
    plan = tilefold.explain_plan((a, b), tilefold.matmul, epilogue="relu", precision="tf32")
    assert (plan.strategy, plan.stages[0].precision, plan.guarantee) == ("split", "tf32", "run_to_run")
    assert plan == tilefold.explain_plan(
        (a, b), tilefold.matmul, epilogue="silu", precision="tf32", device=H200
    )
    for other in ("whole", "us"):
        assert other in plan.reason
    assert tilefold.explain_plan((a[:0], b), tilefold.matmul).launches == 0
    row = (tilefold.monoids.SUM, None)
    folded = tilefold.explain_plan((a, b), tilefold.matmul, row=row, guarantee="batch_invariant")
    assert "row of 16" in str(folded)


@pytest.mark.parametrize("where", ["cuda.matmul", "everything"])
def test_tf32_is_seen_wherever_torch_is_told_of_it(where: str) -> None:
    owner = torch.backends.cuda.matmul if where == "cuda.matmul" else torch.backends
    before = owner.fp32_precision  # type: ignore[attr-defined]  # torch's own
    owner.fp32_precision = "tf32"  # type: ignore[attr-defined]
    try:
        assert cublas.multiplies(torch.float32, "tf32")
        assert not cublas.multiplies(torch.float32, "ieee")
    finally:
        owner.fp32_precision = before  # type: ignore[attr-defined]


@pytest.mark.parametrize(("epilogue", "rectified"), [("relu", True), (None, False), ("gelu", False)])
def test_a_relu_after_cublas_is_torchs_own_on_the_rounded_product(
    epilogue: str | None, rectified: bool
) -> None:
    sizes = problem(5, 7, 3)
    ending = make_epilogue(epilogue, None, (), torch.bfloat16, None)
    chosen = Candidate("cublas", finish=None if epilogue is None else Finish(32, 1, 1))
    plan = product_plan(chosen, sizes, ending)
    assert ("rectified" in [str(step) for step in plan.steps]) == rectified
    wide = make_epilogue(epilogue, None, (), torch.bfloat16, torch.float32)
    assert "rectified" not in [str(step) for step in product_plan(chosen, sizes, wide).steps]
    if rectified:
        a, b, out = (
            torch.randn(5, 7).bfloat16(),
            torch.randn(7, 3).bfloat16(),
            torch.full((5, 3), 9.0).bfloat16(),
        )
        a[0, 0], a[1, 1], a[2, 2] = math.nan, math.inf, -math.inf
        run_steps(plan, [a, b], [out], [], LIBRARY, lambda results: None)
        assert torch.equal(out.nan_to_num(), (a.float() @ b.float()).relu().bfloat16().nan_to_num())
        assert torch.equal(out.isnan(), (a.float() @ b.float()).isnan())


@pytest.mark.parametrize(
    ("dtype", "has"),
    [
        (torch.float32, True),
        (torch.bfloat16, True),
        (torch.float64, True),
        (torch.int8, False),
        (torch.float8_e5m2, False),
    ],
)
def test_the_library_multiplies_what_it_can_where_it_may(dtype: torch.dtype, has: bool) -> None:
    """Large squares, which cuBLAS is faster with, but of dtypes that it sums in other ways, or where it may take no part."""
    a, b = (
        torch.empty(4096, 4096, dtype=dtype, device="meta"),
        torch.empty(4096, 4096, dtype=dtype, device="meta"),
    )
    plain = make_epilogue(None, None, (), dtype, None)
    for may in (True, False):
        _, plan = plan_tensors([a, b], plain, "ieee", "run_to_run", H200, library=may)
        assert any(isinstance(step, LibraryCall) for step in plan.steps) is (has and may)
