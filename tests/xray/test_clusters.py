"""Programs that run together, by hand-written PTX: what each instruction between them does, and what no chip defines."""

from __future__ import annotations

import numpy as np
import pytest

from tilefold.errors import ExecutionError
from tilefold.xray.machine import Memory, Outcome, all_programs, execute, load
from tilefold.xray.machine.crossings import crossings
from tilefold.xray.machine.races import races
from tilefold.xray.ptx import parse
from xray.snippets import module

CLUSTER_BARRIER = "barrier.cluster.arrive.aligned; barrier.cluster.wait.aligned;"
RANK = "mov.u32 %r0, %cluster_ctarank; mov.u32 %r7, %cluster_nctarank;"
# %r5 is stored for the thread %d8 of all threads of the grid.
STORE = (
    "mov.u32 %r6, %ctaid.x; mad.lo.u32 %r6, %r6, 32, %tid_; cvt.u64.u32 %d8, %r6; ld.param.b64 %d9, [k_0];"
    "mad.lo.s64 %d9, %d8, 4, %d9; st.global.b32 [%d9], %r5;"
)
# The rank of the next program: %r3.
NEXT = RANK + "add.u32 %r3, %r0, 1; rem.u32 %r3, %r3, %r7;"


def ran(
    body: str, cluster: int = 3, programs: int = 6, chosen: list[tuple[int, int, int]] | None = None
) -> tuple[np.ndarray, tuple[Outcome, ...]]:
    """What each program's threads stored, [programs, 32], and what they did."""
    memory, grid = Memory(), (programs, 1, 1)
    values = [memory.place("x", np.full(32 * programs, 77, "u4"))]
    wanted = all_programs(grid) if chosen is None else chosen
    kernel = load(parse(module(body, 1)))
    outcomes = execute(kernel, memory, values, grid=grid, programs=wanted, cluster=cluster)
    assert not memory.faults
    return memory.read("x", "u4").reshape(programs, 32), outcomes


def alike(found: np.ndarray, values: list[int]) -> None:
    np.testing.assert_array_equal(found, np.repeat(np.array(values)[:, None], 32, axis=1))


@pytest.mark.parametrize(
    ("register", "values"),
    [
        ("cluster_ctarank", [0, 1, 2, 0, 1, 2]),
        ("cluster_nctarank", [3] * 6),
        ("cluster_ctaid.x", [0, 1, 2, 0, 1, 2]),
        ("cluster_ctaid.y", [0] * 6),
        ("cluster_nctaid.x", [3] * 6),
        ("clusterid.x", [0, 0, 0, 1, 1, 1]),
        ("nclusterid.x", [2] * 6),
        ("nctaid.x", [6] * 6),
    ],
)
def test_registers(register: str, values: list[int]) -> None:
    alike(ran(f"mov.u32 %r5, %{register};" + STORE)[0], values)


def test_shared_memory_declared_amid_the_code() -> None:
    """It lies beside what the module declares, and its bytes count."""
    body = (
        "mov.u32 %r1, room; st.shared.b32 [room], 5;"
        ".shared .align 16 .b8 mine[24]; .shared .align 8 .b64 last;"
        "mov.u32 %r2, mine; st.shared.b32 [%r2+20], 6; st.shared.b32 [last+4], 7;"
        "ld.shared.b32 %r3, [room]; ld.shared.b32 %r4, [mine+20]; ld.shared.b32 %r5, [last+4];"
        "mad.lo.u32 %r5, %r3, 100, %r5; mad.lo.u32 %r5, %r4, 10, %r5;"
    )
    assert load(parse(module(body, 1))).shared == 1024 + 24 + 8
    alike(ran(body + STORE, 1, 1)[0], [567])


@pytest.mark.parametrize("generic", [False, True])
def test_a_program_reads_its_neighbours_memory(generic: bool) -> None:
    read = (
        "cvt.u64.u32 %d1, %r1; mapa.u64 %d2, %d1, %r3; ld.b32 %r5, [%d2+4];"
        if generic
        else "mapa.shared::cluster.u32 %r4, %r1, %r3; ld.shared::cluster.b32 %r5, [%r4+4];"
    )
    body = (
        NEXT
        + "mov.u32 %r1, room; mad.lo.u32 %r2, %r0, 10, 3; st.shared.b32 [%r1+4], %r2;"
        + CLUSTER_BARRIER
        + read
        + CLUSTER_BARRIER
    )
    alike(ran(body + STORE)[0], [13, 23, 3, 13, 23, 3])


def test_a_program_writes_its_neighbours_memory() -> None:
    write = "mapa.shared::cluster.u32 %r4, %r1, %r3; st.shared::cluster.b32 [%r4], %r0;"
    body = (
        NEXT + "mov.u32 %r1, room;" + CLUSTER_BARRIER + write + CLUSTER_BARRIER + "ld.shared.b32 %r5, [%r1];"
    )
    alike(ran(body + STORE)[0], [2, 0, 1, 2, 0, 1])


def test_all_add_to_the_first_programs_memory() -> None:
    add = (
        "mov.u32 %r3, 0; mapa.shared::cluster.u32 %r4, %r1, %r3; red.shared::cluster.add.u32 [%r4], %r0;"
        + CLUSTER_BARRIER
        + "ld.shared::cluster.b32 %r5, [%r4]; getctarank.shared::cluster.u32 %r2, %r4; add.u32 %r5, %r5, %r2;"
        + "getctarank.shared::cluster.u32 %r2, %r1; mad.lo.u32 %r5, %r2, 1000, %r5;"
    )
    body = RANK + "mov.u32 %r1, room; st.shared.b32 [%r1], 0;" + CLUSTER_BARRIER + add + CLUSTER_BARRIER
    alike(ran(body + STORE)[0], [96, 1096, 2096] * 2)


BARRIER = "setp.eq.u32 %t0, %tid_, 0; mov.u32 %r1, room; @%t0 mbarrier.init.shared::cta.b64 [%r1], 1;"
EXPECT = "@%t0 mbarrier.arrive.expect_tx.release.cta.shared::cta.b64 _, [%r1], {bytes};"
FENCE = "@%t0 fence.mbarrier_init.release.cluster;"
RELAXED = "barrier.cluster.arrive.relaxed.aligned; barrier.cluster.wait.acquire.aligned;"
# Thread 0 to 2 send the program's rank to the program of the thread's number.
SEND = (
    "setp.lt.u32 %t1, %tid_, 3; mad.lo.u32 %r2, %r0, 4, 16; add.u32 %r2, %r1, %r2;"
    "@%t1 mapa.shared::cluster.u32 %r3, %r2, %tid_; @%t1 mapa.shared::cluster.u32 %r4, %r1, %tid_;"
    "add.u32 %r5, %r0, 4;"
    "@%t1 st.async.shared::cluster.mbarrier::complete_tx::bytes.b32 [%r3], %r5, [%r4];"
)
WAIT = (
    "{ .reg .pred over; again: mbarrier.try_wait.parity.acquire.cluster.shared::cta.b64 over, [%r1], 0;"
    "@!over bra again; }"
)
SUM = (
    "ld.shared.b32 %r5, [%r1+16]; ld.shared.b32 %r2, [%r1+20]; mad.lo.u32 %r5, %r5, 10, %r2;"
    "ld.shared.b32 %r2, [%r1+24]; mad.lo.u32 %r5, %r5, 10, %r2;"
)


def exchange(expected: int = 12, fence: str = FENCE, send: str = SEND) -> str:
    return RANK + BARRIER + EXPECT.format(bytes=expected) + fence + RELAXED + send + WAIT + SUM + STORE


def test_stores_that_barriers_count() -> None:
    """Each program waits for its own barrier alone, and then has what all have sent."""
    found, outcomes = ran(exchange())
    alike(found, [456] * 6)
    assert all(outcome.barriers == 1 for outcome in outcomes)
    assert not any(race for outcome in outcomes for race in races(outcome))


def test_stores_of_several_words() -> None:
    send = SEND.replace("complete_tx::bytes.b32 [%r3], %r5,", "complete_tx::bytes.v2.b32 [%r3], {%r5, %r0},")
    send = send.replace("mad.lo.u32 %r2, %r0, 4, 16", "mad.lo.u32 %r2, %r0, 8, 16")
    read = "ld.shared.b32 %r5, [%r1+16]; ld.shared.b32 %r2, [%r1+36]; mad.lo.u32 %r5, %r5, 10, %r2;"
    found, _ = ran(exchange(24, send=send).replace(SUM, read))
    alike(found, [42] * 6)


def test_a_release_shows_others_the_barrier() -> None:
    body = exchange(fence="").replace("arrive.relaxed", "arrive.release")
    alike(ran(body)[0], [456] * 6)


def test_a_meeting_is_no_barrier_of_the_program() -> None:
    """What is written after a thread has arrived is known to others by the program's own barrier alone."""
    body = "barrier.cluster.arrive.aligned; mov.u32 %r1, room; st.shared.b32 [%r1], 5; bar.sync 0;"
    body += "barrier.cluster.wait.aligned; setp.lt.u32 %t0, %tid_, 32; @%t0 ld.shared.b32 %r2, [%r1];"
    kernel = load(parse(module(body, 0, 64)))
    (outcome,) = execute(kernel, Memory(), [], programs=[(0, 0, 0)])
    (found,) = crossings(kernel, outcome)
    assert (found.needed, found.bytes) == ("warps", 4)


@pytest.mark.parametrize(
    ("body", "rule"),
    [
        (exchange(expected=16), "transaction barrier must complete, got 32 threads waiting"),
        (exchange(fence=""), "must be made visible to them"),
        (exchange().replace(RELAXED, ""), "got one that has not begun: the program of rank 1"),
        (exchange(expected=0), "got one that has ended: the program of rank"),
        (RANK + "setp.eq.u32 %t0, %r0, 1; @%t0 bra PAST; barrier.cluster.arrive; barrier.cluster.wait; PAST: bar.sync 0, 64;",
         "all programs of a cluster must come to its barrier, got some that wait forever: threads 0-31 at"),
        ("barrier.cluster.wait;", "must arrive at its cluster's barrier before it waits there, got none in PTX line"),
        ("barrier.cluster.arrive; barrier.cluster.arrive;", "before it arrives again, got two arrivals in PTX line"),
        ("setp.eq.u32 %t0, %tid_, 0; @%t0 barrier.cluster.arrive.aligned;", "32 threads together"),
        ("mov.u32 %r1, room; mov.u32 %r2, 3; mapa.shared::cluster.u32 %r3, %r1, %r2;", "a rank below 3, got 3"),
        ("mov.u32 %r1, room; mov.u32 %r2, 2; mapa.shared::cluster.u32 %r1, %r1, %r2; mapa.shared::cluster.u32 %r3, %r1, %r2;",
         "places of a program's own shared memory"),
        (exchange().replace("[%r3], %r5, [%r4]", "[%r3], %r5, [%r1]"), "must go where the barrier is"),
        ("mov.u32 %r1, room; mov.u32 %r2, 2; mapa.shared::cluster.u32 %r1, %r1, %r2; ld.shared.b32 %r3, [%r1];",
         "shared addresses must be below"),
    ],
    ids=["too few bytes", "no fence", "too early", "too late", "one stays away", "no arrival", "two arrivals", "some lanes",
         "no such rank", "two ranks", "two programs", "not its own memory"],
)  # fmt: skip
def test_what_no_chip_defines_is_said(body: str, rule: str) -> None:
    with pytest.raises(ExecutionError, match=rule):
        ran(body)


def test_a_program_that_has_ended_is_waited_for_no_longer() -> None:
    body = RANK + "setp.eq.u32 %t0, %r0, 1; @%t0 ret;" + CLUSTER_BARRIER + "mov.u32 %r5, %r0;" + STORE
    alike(ran(body)[0], [0, 77, 2, 0, 77, 2])


def test_whole_clusters_run_once_for_the_programs_asked_for() -> None:
    body = NEXT + "ld.param.b64 %d1, [k_0]; atom.global.add.u32 %r2, [%d1], 1;" + CLUSTER_BARRIER
    found, outcomes = ran(body, 2, 6, [(2, 0, 0), (3, 0, 0), (0, 0, 0)])
    assert [outcome.program[0] for outcome in outcomes] == [2, 3, 0]
    assert found[0, 0] == 77 + 4 * 32
    with pytest.raises(ExecutionError, match="whole clusters of 4 programs"):
        ran(body, 4, 6)
