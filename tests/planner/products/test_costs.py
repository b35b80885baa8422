"""The cost model in numbers that can be worked out by hand: a chip of round figures, one term at a time."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from tilefold.planner.device import H200, Device
from tilefold.planner.products.choose import PARTIAL_BYTES, candidates
from tilefold.planner.products.costs import Costs, plan_us
from tilefold.planner.products.operands import (
    canonical_product,
    loads_of_elements,
    narrow_vectors,
    neighbours_across,
)
from tilefold.planner.products.plan import Asked, Candidate, Finish, Sizes, Tile

# One SM a program and nothing for free but what a test is about: all else is 0, or too fast to be seen.
CHIP = replace(H200, name="round", sms=100, gb_per_s=1e12)
FAST = 1e12
NOTHING = Costs(
    launch_us=0, next_us=0, dependent_us=0, chained_us=0, crowded_us=0, full_us=0, share_us=0, warp_us=0, latency_us=0,
    waited=0, load_us=0, step_us=0, flight_us=0, piece_bytes=0, element_us=0, issue_us=0,
    core_gb_per_s=FAST, l2_gb_per_s=FAST, core_tflops=FAST, mma_tflops=FAST, vector_tflops=FAST,
    vector_warp_tflops=FAST, few=0, wgmma_us=0, mma_us=0, unhidden=0, partial_gb_per_s=FAST, finish_gb_per_s=FAST,
    exchange_us=0, cublas_us=0, cublas_tflops=FAST, cublas_loose=1, cublas_narrow=1, cublas_deep_us=0, cublas_memory=1,
    results_gb_per_s=FAST, results_odd=1, loads_at_once=FAST,
)  # fmt: skip
BF16 = Asked(torch.bfloat16)
TILE = Tile(16, 16, 64, 1, 4)


def split(splits: int) -> Candidate:
    return Candidate("split", TILE, splits, Finish(32, 8, 1))


def cost(plan: Candidate, sizes: Sizes, **numbers: float) -> float:
    return plan_us(plan, sizes, BF16, CHIP, replace(NOTHING, **numbers))


def test_partial_products_cost_their_bytes_over_the_bandwidth() -> None:
    """1000 x 1000 sums of four bytes from each of 10 splits are 40 MB: at 1000 GB/s 40 us."""
    got = cost(split(10), Sizes(1000, 1000, 6400, 1, 2), partial_gb_per_s=1000.0)
    assert got == pytest.approx(40.0, rel=1e-6)


def test_a_finishing_program_reads_its_share_of_the_partial_products() -> None:
    """8 x 100 programs of 32 results are a round; 16 x 16 results are one, which reads 32 x 5 x 4 bytes at 1 GB/s."""
    got = cost(split(5), Sizes(16, 16, 6400, 1, 2), finish_gb_per_s=1.0)
    assert got == pytest.approx(0.64, rel=1e-6)


@pytest.mark.parametrize(
    ("depth", "splits", "steps"),
    [(640, 1, 10), (641, 1, 11), (640, 4, 3), (640, 10, 1), (64, 1, 1), (1, 1, 1)],
)
def test_steps_of_k_that_are_not_whole_count_as_whole(depth: int, splits: int, steps: int) -> None:
    plan = split(splits) if splits > 1 else Candidate("whole", TILE)
    got = cost(plan, Sizes(16, 16, depth, 1, 2), step_us=1.0)
    assert got == pytest.approx(steps, rel=1e-6)


def test_programs_beyond_a_cores_share_wait_for_another_wave() -> None:
    """An SM holds 32 programs: 101 x 32 x 100 tiles of 100 SMs are in waves of 32 an SM."""
    sizes = Sizes(16, 16 * 100 * 33, 64, 1, 2)
    got = cost(Candidate("whole", TILE), sizes, step_us=1.0)
    assert got == pytest.approx(2.0, rel=1e-6)


def test_a_launch_that_begins_early_costs_less_by_what_it_gains() -> None:
    sizes, plan = Sizes(16, 16, 640, 1, 2), split(2)
    early = replace(plan, chained=True)
    gained = cost(plan, sizes, launch_us=1.0) - cost(early, sizes, launch_us=1.0, chained_us=0.25)
    assert gained == pytest.approx(0.25, rel=1e-6)


def test_true_float32_is_slower_than_tensor_cores() -> None:
    sizes, plan = Sizes(16, 16, 6400, 1, 4), Candidate("whole", TILE)
    asked = [Asked(torch.float32), Asked(torch.float32, "tf32")]
    slow, fast = (plan_us(plan, sizes, a, H200, Costs(flight_us=0)) for a in asked)
    assert slow > 2 * fast


def test_no_plan_holds_more_partial_products_than_their_bound() -> None:
    """64 MB: the most that the L2 of the chips planned for keeps. Plans beyond it were there to be had."""
    sizes = Sizes(1024, 1024, 65536, 1, 2)
    held = [plan.splits * sizes.outputs * 4 for plan in candidates(sizes, BF16, H200) if plan.splits > 1]
    assert PARTIAL_BYTES == 64 << 20
    assert max(held) == PARTIAL_BYTES


def test_what_is_on_its_way_at_once_limits_the_bandwidth() -> None:
    """One program has three steps of 16 + 16 rows of 64 bf16 on their way, 12288 bytes: of 10 steps a third of 10 ways."""
    got = cost(Candidate("whole", TILE), Sizes(16, 16, 640, 1, 2), flight_us=3.0)
    assert got == pytest.approx(10.0, rel=1e-6)
    assert cost(split(10), Sizes(16, 16, 640, 1, 2), flight_us=3.0) == pytest.approx(3.0, rel=1e-6)


def test_elements_that_are_loaded_one_by_one_take_their_time_in_every_step() -> None:
    """16 x 64 elements of b by 32 threads are 32 each; with a's, 64: nothing of it beside the products."""
    plan = Candidate("whole", TILE)
    for loose, times in (((False, False), 0), ((False, True), 32), ((True, True), 64)):
        got = cost(plan, Sizes(16, 16, 640, 1, 2, loose), element_us=1.0)
        assert got == pytest.approx(10 * times, abs=1e-6)


def test_a_thread_waits_once_for_so_many_elements_that_it_loads_one_by_one() -> None:
    """32 elements of b and 32 of a by each of 32 threads, in ten steps; the first step's way is counted besides."""
    plan, sizes = Candidate("whole", TILE), Sizes(16, 16, 640, 1, 2, (True, True))
    waits = {
        at_once: cost(plan, sizes, latency_us=1.0, loads_at_once=at_once) for at_once in (16.0, 64.0, 128.0)
    }
    assert waits == {16.0: pytest.approx(41.0), 64.0: pytest.approx(11.0), 128.0: pytest.approx(11.0)}


def test_results_of_one_launch_take_their_bytes_over_the_bandwidth() -> None:
    """1000 x 1000 of two bytes, at 100 GB/s 20 us; rows of 1001 elements begin between vectors; cuBLAS writes them, too."""
    whole, numbers = Candidate("whole", TILE), {"results_gb_per_s": 100.0, "results_odd": 3.0}
    assert cost(whole, Sizes(1000, 1000, 64, 1, 2), **numbers) == pytest.approx(20.0, rel=1e-5)
    assert cost(whole, Sizes(1000, 1001, 64, 1, 2), **numbers) == pytest.approx(3 * 20.02, rel=1e-5)
    assert cost(Candidate("cublas"), Sizes(1000, 1000, 64, 1, 2), **numbers) == pytest.approx(20.0, rel=1e-4)
    assert cost(split(2), Sizes(1000, 1001, 128, 1, 2), **numbers) == pytest.approx(0.0, abs=1e-3)


@pytest.mark.parametrize(
    ("a", "b", "loose"),
    [
        ((8, 64), (64, 16), (False, False)),
        ((8, 63), (63, 16), (True, False)),
        ((1, 63), (63, 16), (True, False)),
        ((8, 64), (64, 15), (False, True)),
        ((8, 64), (64, 1), (False, True)),
        ((8, 66), (66, 18), (False, False)),
    ],
)
def test_which_operands_are_loaded_one_by_one(
    a: tuple[int, int], b: tuple[int, int], loose: tuple[bool, bool]
) -> None:
    def of(dtype: torch.dtype) -> tuple[bool, bool]:
        left, right = (torch.empty(shape, dtype=dtype, device="meta") for shape in (a, b))
        return loads_of_elements(canonical_product(left, right, []))

    assert of(torch.bfloat16) == loose
    assert of(torch.float32) == (False, False)


def test_a_transposed_operand_is_read_along_its_memory() -> None:
    left, right = (torch.empty(shape, dtype=torch.bfloat16, device="meta") for shape in ((64, 15), (16, 64)))
    assert loads_of_elements(canonical_product(left.T, right.T, [])) == (True, False)
    assert loads_of_elements(canonical_product(left.T[:14], right.T, [])) == (True, False)


def test_short_pieces_of_memory_cost_more_than_they_have() -> None:
    """16 columns of a row of 1600 are a piece, 64 of K are one; a row that a program reads whole has no piece beside it."""
    chip = replace(CHIP, gb_per_s=1.0)
    wide, narrow = Sizes(16, 1600, 640, 1, 2), Sizes(16, 16, 640, 1, 2)
    plan = Candidate("whole", TILE)
    more = plan_us(plan, wide, BF16, chip, replace(NOTHING, piece_bytes=32.0)) - plan_us(
        plan, wide, BF16, chip, NOTHING
    )
    assert more == pytest.approx(1600 * 640 * 32 / 16 / 1e3, rel=1e-6)
    columns = replace(wide, across=(False, False))  # b is given as columns: pieces of 64 elements of K
    less = plan_us(plan, columns, BF16, chip, replace(NOTHING, piece_bytes=32.0)) - plan_us(
        plan, wide, BF16, chip, NOTHING
    )
    assert less == pytest.approx(1600 * 640 * 32 / 64 / 1e3, rel=1e-6)
    alone = (plan_us(plan, narrow, BF16, chip, replace(NOTHING, piece_bytes=n)) for n in (0.0, 32.0))
    assert len(set(alone)) == 1


def test_what_programs_read_through_the_l2_takes_its_time() -> None:
    """Four tiles of 16 x 16 read 2 x 16 x 6400 elements each, 1.6 MB in all: at 100 GB/s 16 us, or 2 us of way each step."""
    sizes, plan = Sizes(32, 32, 6400, 1, 2), Candidate("whole", TILE)
    assert cost(plan, sizes, l2_gb_per_s=100.0) == pytest.approx(16.384, rel=1e-6)
    # Of 100 steps three are on their way at a time.
    assert cost(plan, sizes, flight_us=3.0) == pytest.approx(100.0, rel=1e-6)


def test_cublas_takes_longer_where_elements_are_loaded_one_by_one() -> None:
    """A tile of 128 x 128 x 10,000 on 100 SMs of a teraflop, a quarter longer where waves are not full: 4.096 us.

    Splits of K = 10,000 take 0.01 times its power of 0.3, and three times as long.
    """
    sizes = Sizes(100, 100, 10_000, 1, 2)
    costs = replace(NOTHING, cublas_tflops=1.0, cublas_loose=7, cublas_deep_us=0.01)
    times = [
        plan_us(Candidate("cublas"), replace(sizes, loose=(loose, False)), BF16, CHIP, costs)
        for loose in (False, True)
    ]
    deep = 0.01 * 10_000**0.3
    assert times == pytest.approx([deep + 4.096, 3 * deep + 7 * 4.096], rel=1e-6)


def test_cublas_multiplies_slower_where_rows_are_no_multiples_of_16_bytes() -> None:
    """The tile of above; elements that are loaded one by one count as such alone, and float32's rows do not matter."""
    sizes = Sizes(100, 100, 10_000, 1, 2)
    costs = replace(NOTHING, cublas_tflops=1.0, cublas_loose=7, cublas_narrow=5)
    both = replace(sizes, narrow=(False, True))
    loose = replace(both, loose=(False, True))
    times = [plan_us(Candidate("cublas"), each, BF16, CHIP, costs) for each in (sizes, both, loose)]
    assert times == pytest.approx([4.096, 5 * 4.096, 7 * 4.096], rel=1e-6)
    float32 = Asked(torch.float32, "tf32")
    wide = [
        plan_us(Candidate("cublas"), replace(sizes, itemsize=4, narrow=narrow), float32, CHIP, costs)
        for narrow in ((False, False), (True, True))
    ]
    assert wide[0] == wide[1]


@pytest.mark.parametrize(
    ("dtype", "columns", "narrow"),
    [
        (torch.bfloat16, 16, False),
        (torch.bfloat16, 20, True),
        (torch.bfloat16, 15, True),
        (torch.float32, 12, False),
        (torch.float32, 14, True),
        (torch.bfloat16, 1, True),
    ],
)
def test_which_operands_have_vectors_of_less_than_16_bytes(
    dtype: torch.dtype, columns: int, narrow: bool
) -> None:
    a, b = torch.empty(8, 64, dtype=dtype), torch.empty(64, columns, dtype=dtype)
    assert narrow_vectors(canonical_product(a, b, [])) == (False, narrow)
    if columns > 1:
        assert narrow_vectors(canonical_product(b.T, a.T, [])) == (narrow, False)
    later = torch.empty(8 * 64 + 2, dtype=dtype)[2:].view(8, 64)
    assert narrow_vectors(canonical_product(later, b, [])) == (True, narrow)


@pytest.mark.parametrize(
    ("sizes", "asked", "chip", "tiles"),
    [
        (Sizes(2000, 1000, 8192, 1, 2), BF16, H200, {128, 256}),
        (Sizes(2000, 100, 8192, 1, 2), BF16, H200, {128}),
        (Sizes(64, 1000, 8192, 1, 2), BF16, H200, set()),
        (Sizes(2000, 1000, 8192, 1, 2, loose=(False, True)), BF16, H200, {128, 256}),  # packed first
        (Sizes(2000, 1000, 8192, 1, 4), Asked(torch.float32, "tf32"), H200, set()),
        (Sizes(2000, 1000, 8192, 1, 2), BF16, replace(H200, capability=80), set()),
    ],
    ids=str,
)
def test_large_products_of_half_precision_have_large_tiles(
    sizes: Sizes, asked: Asked, chip: Device, tiles: set[int]
) -> None:
    large = {Tile(128, 128, 64, 4, 4): 128, Tile(128, 256, 64, 8, 4): 256}
    plans = [plan for plan in candidates(sizes, asked, chip) if plan.tile in large]
    assert {large[plan.tile] for plan in plans if plan.tile} == tiles
    assert all(any(plan.packed) == any(sizes.loose) for plan in plans)


def test_neighbours_in_memory_lie_along_rows_or_along_k() -> None:
    a, b = torch.empty(30, 40), torch.empty(40, 50)
    assert neighbours_across(canonical_product(a, b, [])) == (False, True)
    assert neighbours_across(canonical_product(a.T.contiguous().T, b.T.contiguous().T, [])) == (True, False)
    assert neighbours_across(canonical_product(a, b[:, 0], [])) == (False, False)
