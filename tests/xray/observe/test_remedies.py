"""What an entry advises was compiled, executed and compared; what was not says why."""

from __future__ import annotations

import re
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import triton
import triton.language as tl

from tilefold import xray
from tilefold.xray.compile.job import Compiled, Resources
from tilefold.xray.compile.offline import compile_job
from tilefold.xray.explain import make_job
from tilefold.xray.machine import Memory, Outcome
from tilefold.xray.machine.log import Release
from tilefold.xray.observe import remedies, resources
from tilefold.xray.observe.trials import BARRIER, Difference, UntriedError, clocks_of, difference
from tilefold.xray.report.model import Observation
from xray.observe.planted import ABC, PLANTED, XY, double, multiply_in_rounds
from xray.versions import TRITON


def change(code: str, **given: Any) -> str:
    plant = PLANTED[code][0]
    report = xray.explain(plant.kernel, plant.args, plant.constants, **{**plant.options, **given})
    return next(o.change for o in report.observations if o.code == code)


@pytest.mark.parametrize(
    ("code", "tried"),
    [
        ("idle-warps", "launch with num_warps=4 (tried: instructions issued"),
        ("redundant-threads", "launch with num_warps=4 (tried: instructions issued"),
        ("older-tensor-core", "launch with num_warps=4 (tried: instructions issued"),
        ("strong-atomic", 'tried sem="relaxed": orders and fences in the PTX'),
        (
            "fold-in-loop",
            f"tried one fold behind the loop: barriers {'16 -> 1' if TRITON >= (3, 9) else '24 -> 2'}",
        ),
    ],
)
def test_what_was_tried_gained_and_stores_the_same(code: str, tried: str) -> None:
    said = change(code)
    assert tried in said
    # Triton 3.9 folds in another order, so that a sum behind the loop rounds otherwise.
    rounded = code == "fold-in-loop" and TRITON >= (3, 9)
    assert said.endswith(f"and the same is stored{' but for rounding' if rounded else ''})")


@pytest.mark.parametrize("stages", [4, 5])
def test_a_stage_less_leaves_room_for_more_programs(stages: int) -> None:
    args = {**ABC, "stride": 256, "K": 256}
    report = xray.explain(multiply_in_rounds, args, {"B": 64}, num_stages=stages)
    (found,) = [o for o in report.observations if o.code == "occupancy"]
    assert report.occupancy.limiter == "shared memory"
    assert re.search(
        rf"tried num_stages={stages - 1}: warps .* (\d+) -> (?!\1)\d+, and the same", found.change
    )


def test_twice_the_threads_that_spill_more_than_half_each_gain_nothing() -> None:
    assert change("spill").startswith("nothing was gained by num_warps=2: tried, bytes spilled a thread")


def test_a_change_that_spills_more_is_no_gain(monkeypatch: pytest.MonkeyPatch) -> None:
    """What it gains otherwise is not said: its measure is what it spills."""

    def used(spilled: int) -> Resources:
        return Resources(255, spilled, spilled, 0, 0)

    monkeypatch.setattr(remedies.offline, "resources", lambda compiled: compiled.used)
    report: Any = SimpleNamespace(num_warps=4, resources=used(100))
    for warps, each, measure in (
        (4, 100, "passes"),
        (2, 200, "passes"),
        (2, 201, "bytes spilled a program"),
        (8, 51, "bytes spilled a program"),
    ):
        compiled: Any = SimpleNamespace(num_warps=warps, used=used(each))
        made = remedies.Remedy("other warps", compiled, "passes", 100, 50)
        assert remedies._unless_it_spills(made, report).measure == measure


@pytest.mark.parametrize("code", ["tf32-dot", "no-tensor-core"])
def test_another_precision_shows_what_it_changes(code: str) -> None:
    assert "; c_ptr[" in change(code)


def test_words_that_are_not_there_are_not_tried() -> None:
    """What a change finds nothing to change in is the kernel itself, which would seem to store the same for free."""
    compiled: list[str] = []
    evidence: Any = SimpleNamespace(compiled=SimpleNamespace(ttir="first\nsecond\nthird"))
    trials: Any = SimpleNamespace(compile=compiled.append)
    second: list[Any] = [SimpleNamespace(row=1)]
    with pytest.raises(UntriedError, match="not in the TTIR"):
        remedies._rewritten(evidence, second, lambda row: row.replace("first", "last"), trials)
    assert compiled == []
    remedies._rewritten(evidence, second, str.upper, trials)
    assert compiled == ["first\nSECOND\nthird"]


def test_nothing_is_tried_without_an_execution() -> None:
    assert "tried" not in change("redundant-threads", run=False)


@triton.jit
def by_warps(x_ptr, y_ptr, BLOCK: tl.constexpr):
    offs = tl.arange(0, BLOCK)
    warp = tl.inline_asm_elementwise("mov.u32 $0, %ntid.x;", "=r,r", [offs], tl.int32, True, 1)
    tl.store(y_ptr + offs, tl.load(x_ptr + offs) + warp)


def test_a_remedy_after_which_other_values_are_stored_is_not_given() -> None:
    """A kernel that stores how many threads it has."""
    report = xray.explain(by_warps, XY, {"BLOCK": 64}, num_warps=8)
    (found,) = [o for o in report.observations if o.code == "redundant-threads"]
    assert found.change.startswith("not num_warps=2: tried, and then other values are stored (y_ptr[")


@triton.jit
def sent(x_ptr, y_ptr, BLOCK: tl.constexpr, PLACES: tl.constexpr, SEM: tl.constexpr):
    offs = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.atomic_add(y_ptr + offs % PLACES, tl.load(x_ptr + offs), sem=SEM)


INTS = {"x_ptr": "*i32", "y_ptr": "*i32"}


def entry(
    code: str, kernel: Any, args: dict[str, Any], constants: dict[str, Any], **given: Any
) -> Observation:
    report = xray.explain(kernel, args, constants, **given)
    (found,) = [o for o in report.observations if o.code == code]
    return found


@pytest.mark.skipif(TRITON >= (3, 9), reason="this Triton gives atomics one element a lane")
def test_atomics_of_integers_side_by_side_go_one_element_a_lane() -> None:
    """The compiler gives a thread 4 neighbours, and each of its 4 atomics touches 16 sectors."""
    constants = {"BLOCK": 512, "PLACES": 4096, "SEM": "relaxed"}
    found = entry("wasted-sectors", sent, INTS, constants)
    assert "num_warps=16, or a tile of 128 elements" in found.change
    assert "tried num_warps=16: bytes moved" in found.change
    report = xray.explain(sent, INTS, {**constants, "BLOCK": 128})
    assert "wasted-sectors" not in report.codes()


def test_orders_of_atomics_are_counted_by_warp() -> None:
    found = entry("strong-atomic", sent, INTS, {"BLOCK": 128, "PLACES": 4096, "SEM": "acq_rel"}, grid=1)
    assert dict(found.numbers)["issued"] == 4
    assert "issued 4 times by warps" in found.evidence


@triton.jit
def counted_in_rounds(x_ptr, y_ptr, n, BLOCK: tl.constexpr, SWAP: tl.constexpr):
    for start in range(0, n, BLOCK):
        x = tl.load(x_ptr + start + tl.arange(0, BLOCK))
        tl.atomic_add(y_ptr + x % 61, x, sem="relaxed")
        if SWAP:
            tl.atomic_cas(y_ptr + x % 61, x, x, sem="relaxed")


@pytest.mark.parametrize("swap", [False, True])
def test_a_layout_that_lets_neighbours_send_atomics_is_well_spent(swap: bool) -> None:
    report = xray.explain(counted_in_rounds, {**INTS, "n": 4096}, {"BLOCK": 1024, "SWAP": swap})
    assert any(line.work.barriers for line in report.lines if line.work is not None)
    assert "layout-in-loop" not in report.codes()


def test_a_tile_for_a_few_places_is_not_to_be_folded_into_one() -> None:
    found = entry("per-element-atomic", sent, INTS, {"BLOCK": 512, "PLACES": 8, "SEM": "relaxed"}, grid=3)
    assert found.change.startswith("count or add up what goes to one place")
    # A request has one of a thread's 4 neighbours: its lanes go to two places, 16 to each; with one element a lane 4 to each.
    meet = 16 if TRITON < (3, 9) else 4
    assert found.bytes_at_stake == 3 * 16 * 32 * (meet - 1)


@triton.jit
def dot_of_widened(a_ptr, b_ptr, c_ptr, N: tl.constexpr, SCALE: tl.constexpr):
    at = tl.arange(0, N)[:, None] * N + tl.arange(0, N)[None, :]
    a, b = tl.load(a_ptr + at).to(tl.float32) * SCALE, tl.trans(tl.load(b_ptr + at).to(tl.float32))
    tl.store(c_ptr + at, tl.dot(a, b))


@pytest.mark.parametrize(
    ("a", "b", "scale", "rounds"),
    [("bf16", "bf16", 1, False), ("fp16", "i8", 1, False), ("fp8e5", "bf16", 1, False), ("bf16", "bf16", 3, True),
     ("bf16", "fp32", 1, True), ("i32", "bf16", 1, True)],
)  # fmt: skip
def test_operands_that_tf32_holds_are_not_rounded(a: str, b: str, scale: int, rounds: bool) -> None:
    args = {"a_ptr": f"*{a}", "b_ptr": f"*{b}", "c_ptr": "*fp32"}
    report = xray.explain(dot_of_widened, args, {"N": 32, "SCALE": scale}, run=False)
    assert ("tf32-dot" in report.codes()) == rounds


def test_registers_that_the_assembler_did_not_give_are_told_from_those_that_there_are_not() -> None:
    plant = PLANTED["spill"][0]
    report = xray.explain(plant.kernel, plant.args, plant.constants, **{**plant.options, "run": False})
    full = replace(report, resources=replace(report.resources, registers=255))
    assert (
        resources._why_spilled(full)[0]
        == "more values are alive at once than a thread has registers (255 at most)"
    )
    why, change = resources._why_spilled(replace(report, resources=replace(report.resources, registers=32)))
    assert why == "the assembler chose 32 registers a thread, where 255 are possible with 1 warp"
    assert change.startswith("ask for more in the launch (maxnreg=255)")


def said(before: float, after: float, changed: Difference | None = None) -> str:
    remedy = remedies.Remedy("num_warps=1", None, "instructions", before, after)  # type: ignore[arg-type]
    return remedies._said("launch fewer", remedy, changed)


def test_a_change_without_a_gain_says_so() -> None:
    assert said(10, 10) == "nothing was gained by num_warps=1: tried, instructions 10 -> 10; launch fewer"
    assert said(1000, 995).startswith("nothing was gained by num_warps=1")  # half a percent
    assert said(0, 0).startswith("nothing was gained by num_warps=1")
    assert said(10, 5) == "launch with num_warps=1 (tried: instructions 10 -> 5, and the same is stored)"


def issuing(*each: int, barriers: int = 0) -> Outcome:
    """A program of so many warps, each of which issues one instruction so often."""
    nothing = np.zeros(0, np.int64)
    releases = (Release(0, 32 * len(each)),) * barriers
    return Outcome((0, 0, 0), (), (), (), releases, np.array([each]), *[nothing] * 3)


@pytest.mark.parametrize(
    ("each", "resident", "clocks"),
    [
        ((400,), 1, 400),
        ((200, 200), 1, 200),
        ((100,) * 4, 1, 100),
        ((50,) * 8, 1, 100),
        ((400, 0, 0, 0), 1, 400),
        ((100, 0, 0, 0, 100, 0, 0, 0), 1, 200),  # both on one scheduler
        ((400,), 2, 200),
        ((400,), 4, 100),
        ((400,), 32, 100),
    ],
)
def test_a_program_keeps_as_many_schedulers_busy_as_it_has_warps(
    each: tuple[int, ...], resident: int, clocks: int
) -> None:
    assert clocks_of([issuing(*each)], resident) == clocks


@pytest.mark.parametrize("warps", [1, 4, 16])
def test_all_warps_wait_at_a_barrier_while_other_programs_go_on(warps: int) -> None:
    program = issuing(*[0] * warps, barriers=2)
    assert clocks_of([program]) == 2 * BARRIER
    assert clocks_of([program], 4) == BARRIER / 2


@pytest.mark.parametrize(
    ("code", "clocks", "measure", "saved"),
    [
        ("bank-conflict", (1000, 700), "passes", 0.6),
        ("bank-conflict", (1000, 400), "passes", 1.0),
        ("bank-conflict", (1000, 990), "clocks of all units", 1.0),
        ("bank-conflict", (1000, 1100), "clocks of all units", 1.0),
        ("fold-in-loop", (1000, 990), "passes", 1.0),
        ("fold-in-loop", (1000, 1000), "clocks of all units", 1.0),
        ("idle-warps", (1000, 1000), "passes", 1.0),
        ("idle-warps", (1000, 1001), "clocks of all units", 1.0),
        ("strong-atomic", (1000, 1100), "passes", 1.0),  # its orders are in no unit
    ],
)
def test_what_gains_by_its_measure_and_costs_more_elsewhere_is_no_gain(
    code: str, clocks: tuple[int, int], measure: str, saved: float
) -> None:
    """And at stake is no more than all units save, where everything else changes, too."""
    remedy = remedies.Remedy("another launch", None, "passes", 500, 0)  # type: ignore[arg-type]
    found = Observation(code, "warning", "kernels.py", 1, "", "", "")
    trials: Any = SimpleNamespace(clocks=lambda _: clocks)
    weighed = remedies._unless_it_slows(found, remedy, trials)
    assert (weighed.measure, weighed.saved) == (measure, saved)
    assert remedies._said("launch so", weighed, None).startswith("nothing was gained") == (
        measure != "passes"
    )


@pytest.fixture(scope="module")
def doubled() -> Compiled:
    return compile_job(make_job(double, XY, {"BLOCK": 128}))


def memories(ours: np.ndarray, theirs: np.ndarray) -> tuple[Memory, Memory]:
    found = Memory(), Memory()
    for memory, held in zip(found, (ours, theirs), strict=True):
        memory.place("0:x_ptr", held)
    return found


def test_sums_in_another_order_are_no_difference(doubled: Compiled) -> None:
    x = np.arange(100, dtype="f4")
    y = x.copy()
    y[50] = np.nextafter(y[50], 100)
    assert difference(doubled, *memories(x, y)) is None
    assert difference(doubled, *memories(x, y), exact=True) == Difference("x_ptr", 1, 50, 50.0, float(y[50]))


def test_the_element_that_differs_most_is_named(doubled: Compiled) -> None:
    x = np.arange(100, dtype="f4")
    y = x.copy()
    y[7], y[9] = 8, np.inf
    found = difference(doubled, *memories(x, y))
    assert str(found) == "x_ptr[9] is 9 and not inf"
    assert found is not None
    assert found.count == 2


def test_nan_is_like_nan(doubled: Compiled) -> None:
    x = np.full(10, np.nan, "f4")
    assert difference(doubled, *memories(x, -x)) is None


@triton.jit
def sums_of_two(x_ptr, y_ptr, ROWS: tl.constexpr, COLUMNS: tl.constexpr):
    rows, columns = tl.arange(0, ROWS), tl.arange(0, COLUMNS)
    x = tl.load(x_ptr + rows[:, None] * COLUMNS + columns[None, :])
    z = tl.load(x_ptr + rows[:, None] + columns[None, :] * 4096)
    tl.store(y_ptr + rows, tl.sum(x * z, 1))


@pytest.mark.skipif(TRITON >= (3, 9), reason="this Triton's layouts make no conflict here")
def test_conflicts_are_tried_with_other_warps() -> None:
    """One warp, which issues all that four did, has to leave its SM's other schedulers to other programs."""
    for grid, severity, said in (
        (4096, "warning", "launch with num_warps=1 (tried: passes beyond the least at its lines 288 -> 0"),
        (1, "note", "nothing was gained by num_warps="),
    ):
        report = xray.explain(sums_of_two, XY, {"ROWS": 32, "COLUMNS": 128}, grid=grid)
        (found,) = [o for o in report.observations if o.code == "bank-conflict"]
        assert found.severity == severity
        assert said in found.change


@triton.jit
def told_of(x_ptr, y_ptr, count_ptr, HOW: tl.constexpr):
    x = tl.load(x_ptr + tl.program_id(0))
    if HOW == "sums":
        tl.atomic_add(y_ptr, x, sem="relaxed")
        tl.atomic_add(count_ptr, 1)
    elif HOW == "rounds":
        for n in range(4):
            tl.atomic_add(count_ptr, 1)
            tl.store(y_ptr + tl.program_id(0) * 4 + n, x)
    else:
        tl.atomic_add(count_ptr, 1)
        tl.store(y_ptr + tl.program_id(0), x)


@pytest.mark.parametrize(("how", "severity"), [("sums", "note"), ("rounds", "note"), ("behind", "warning")])
def test_an_atomic_may_publish_sums_and_the_stores_of_earlier_rounds(how: str, severity: str) -> None:
    args = {"x_ptr": "*fp32", "y_ptr": "*fp32", "count_ptr": "*i32"}
    found = entry("strong-atomic", told_of, args, {"HOW": how}, grid=4)
    assert found.severity == severity
