"""No two threads of the library's kernels write different values to one byte of shared memory between barriers."""

from __future__ import annotations

import pytest
import torch

from backends.triton_cases import MONOIDS, SMALL, Case
from tilefold import monoids
from tilefold.algebra import program as programs
from tilefold.planner.products.epilogue import make_epilogue
from tilefold.planner.products.operands import canonical_product
from tilefold.planner.products.plan import Candidate, Finish, Tile
from tilefold.planner.products.steps import product_plan
from tilefold.xray.machine import Memory, load, run
from tilefold.xray.machine.races import Race, races
from tilefold.xray.ptx import parse
from xray.running import fold, run_plan
from xray.snippets import module

UNORDERED = [name for name, monoid in MONOIDS.items() if monoid.commutative]
# Few results for many threads: each is held by several.
HELD_OFTEN = [
    c for c in SMALL if c.name in {"tiny axis", "small axis 8", "row of 256", "columns", "misaligned"}
]


def raced(body: str, threads: int = 64) -> tuple[Race, ...]:
    return races(run(load(parse(module(body, 0, threads))), Memory(), {}))


def test_threads_that_write_what_all_write() -> None:
    store = "mov.u32 %r1, room; mov.u32 %r2, 7; st.shared.b32 [%r1], %r2;"
    (found,) = raced(store)
    assert (found.step, found.shared, found.differing) == (0, 4, 0)


def test_threads_that_write_something_else() -> None:
    """64 numbers into one word: they differ in its lowest byte alone."""
    (found,) = raced("mov.u32 %r1, room; bar.sync 0; st.shared.b32 [%r1], %tid_;")
    assert (found.step, found.shared, found.differing) == (1, 4, 1)
    assert len(found.instructions) == 1


def test_two_stores_meet_unless_a_barrier_parts_them() -> None:
    own = "shl.b32 %r0, %tid_, 2; mov.u32 %r1, room; add.u32 %r2, %r0, %r1; st.shared.b32 [%r2], %tid_;"
    place = "add.u32 %r3, %tid_, 1; and.b32 %r3, %r3, 63; shl.b32 %r3, %r3, 2; add.u32 %r4, %r3, %r1;"
    next_one = place + "st.shared.b32 [%r4], %tid_;"
    assert raced(own) == ()
    assert raced(own + own) == (), "a thread's own stores are in order"
    assert raced(own + "bar.sync 0;" + next_one) == ()
    (found,) = raced(own + next_one)
    assert len(found.instructions) == 2
    assert found.shared == 256
    assert found.differing == 64


def test_a_barrier_of_a_warp_orders_its_lanes_and_no_other_warp_s() -> None:
    place = "shl.b32 %r0, {lane}, 2; mov.u32 %r1, room; add.u32 %r2, %r0, %r1; st.shared.b32 [%r2], %tid_;"
    own, other = place.format(lane="%tid_"), "xor.b32 %r3, %tid_, 1;" + place.format(lane="%r3")
    assert raced(own + "bar.warp.sync -1;" + other) == ()
    (found,) = raced(own + other)
    assert found.differing == 64
    far = "xor.b32 %r3, %tid_, 32;" + place.format(lane="%r3")
    (found,) = raced(own + "bar.warp.sync -1;" + far)
    assert (found.differing, found.threads) == (64, (0, 32))


def test_what_a_warp_overwrites_later_was_a_race_all_the_same() -> None:
    """Its lanes might have read between the two stores: the second, of one thread, does not order the first."""
    every = "mov.u32 %r1, room; st.shared.b32 [%r1], %tid_;"
    one = "setp.eq.u32 %t0, %tid_, 0; @%t0 st.shared.b32 [%r1], %r1;"
    (found,) = raced(every + "bar.warp.sync -1;" + one, threads=32)
    assert (found.shared, found.differing, found.threads, len(found.instructions)) == (4, 1, (0, 31), 1)
    assert raced("mov.u32 %r1, room;" + one + "bar.warp.sync -1;" + one, threads=32) == ()


def found_in(case: Case, name: str, dtype: torch.dtype, architecture: int) -> list[Race]:
    """Every race of a fold, whatever was written."""
    monoid = MONOIDS[name]
    inputs = case.make(monoid, dtype, "cpu")
    program = programs.specialize(monoid.total, tuple(x.dtype for x in inputs))
    dims = tuple(range(inputs[0].ndim)) if case.dims is None else case.dims
    _, outcomes = fold(inputs, program, dims, architecture, ordered=not monoid.commutative)
    return [race for outcome in outcomes for race in races(outcome)]


@pytest.mark.parametrize("name", UNORDERED)
@pytest.mark.parametrize("case", HELD_OFTEN, ids=lambda c: c.name)
def test_threads_that_hold_one_result_hold_the_same_bits(case: Case, name: str) -> None:
    assert not any(race.differing for race in found_in(case, name, torch.float32, 90))


@pytest.mark.parametrize("case", SMALL, ids=lambda c: c.name)
def test_welford_s_in_every_family(case: Case) -> None:
    """Both sides move to the mean of their pivots: with c(b, a) another rounding of it than with c(a, b)."""
    assert not any(race.differing for race in found_in(case, "welford", torch.float32, 80))


@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16, torch.int32], ids=str)
def test_states_of_other_widths(dtype: torch.dtype) -> None:
    for case in HELD_OFTEN:
        assert not any(race.differing for race in found_in(case, "describe", dtype, 90))


def test_such_threads_are_there() -> None:
    """Else the tests above say nothing: a result that several threads hold is written to shared memory by all of them."""
    for case in HELD_OFTEN:
        if case.name in (
            "row of 256",
            "columns",
            "misaligned",
        ):  # of the others a thread may hold all of a result
            assert sum(race.shared for race in found_in(case, "welford", torch.float32, 90))


def test_partial_states_in_one_place() -> None:
    """Two launches: threads share the states that the first left of a column."""
    found = found_in(Case("columns split", (2000, 24), (0,)), "welford", torch.float32, 90)
    assert sum(race.shared for race in found)
    assert not any(race.differing for race in found)


@pytest.mark.parametrize("plan", [
    Candidate("whole", Tile(16, 32, 32, 4, 2)),
    Candidate("split", Tile(16, 32, 32, 4, 2), 2, Finish(64, 4, 1, 32)),
], ids=lambda p: p.strategy)  # fmt: skip
def test_rows_of_a_product(plan: Candidate) -> None:
    """Each row's moments, held by the threads that share the row."""
    generator = torch.Generator().manual_seed(0)
    a, b = (torch.randn(shape, generator=generator) for shape in ((20, 64), (64, 30)))
    ending = make_epilogue(None, None, (), torch.float32, None, (monoids.WELFORD, None))
    problem = canonical_product(a, b, [])
    assert ending.row is not None
    results = [torch.empty(20, 30), *(torch.empty(20, dtype=d) for d in ending.row.program.outputs)]
    outcomes = run_plan(product_plan(plan, problem, ending), problem, ending, [a, b], results, 90)
    torch.testing.assert_close(results[2], (a @ b).mean(1), rtol=1e-2, atol=1e-1)
    assert not any(race.differing for outcome in outcomes for race in races(outcome))
