"""Threads that diverge and converge: at the end of branches, at shuffles of other branches, and those that never do."""

from __future__ import annotations

import time

import numpy as np
import pytest

from tilefold.errors import ExecutionError
from tilefold.xray.machine import Memory, load, run
from tilefold.xray.machine.crossings import needless_barriers
from tilefold.xray.machine.order import ranks
from tilefold.xray.ptx import parse
from xray.snippets import apply, execute, module

LANE = np.arange(32, dtype="i4")


def test_a_shuffle_waits_for_lanes_in_a_branch_that_the_text_has_later() -> None:
    """What a rotated loop with a branch looks like: lanes that skip the branch are at the shuffle first."""
    text = """add.s32 {d}, {a}, 100; bra.uni LOOP;
MET: shfl.sync.bfly.b32 {d}, {d}, 16, 31, -1; bra.uni OUT;
LOOP: setp.lt.s32 %t0, {a}, 16; @%t0 bra MET; bra.uni FAR;
FAR: add.s32 {d}, {d}, 1000; bra.uni MET; OUT: mov.b32 {d}, {d};"""
    np.testing.assert_array_equal(
        apply(text, LANE, result="i4"), np.where(LANE < 16, LANE + 16 + 1100, LANE - 16 + 100)
    )


def test_lanes_wait_for_the_members_that_an_instruction_names_and_no_others() -> None:
    """The upper half is in another branch, from which it comes to another shuffle of its own."""
    text = """mov.b32 {d}, {a}; setp.lt.s32 %t0, {a}, 16; @%t0 bra LOW;
shfl.sync.bfly.b32 {d}, {a}, 1, 31, 0xffff0000; bra.uni MET;
LOW: shfl.sync.bfly.b32 {d}, {a}, 2, 31, 0x0000ffff; MET: mov.b32 {d}, {d};"""
    np.testing.assert_array_equal(apply(text, LANE, result="i4"), np.where(LANE < 16, LANE ^ 2, LANE ^ 1))


def test_votes_and_reductions_count_the_members_of_each_mask() -> None:
    halves = "setp.lt.s32 %t0, {a}, 16; selp.b32 %r6, 0xffff, 0xffff0000, %t0;"
    vote = halves + "setp.lt.s32 %t1, {a}, 20; vote.sync.ballot.b32 {d}, %t1, %r6;"
    np.testing.assert_array_equal(apply(vote, LANE, result="u4"), np.where(LANE < 16, 0xFFFF, 0xF0000))
    total = halves + "redux.sync.add.s32 {d}, {a}, %r6;"
    np.testing.assert_array_equal(
        apply(total, LANE, result="i4"), np.where(LANE < 16, LANE[:16].sum(), LANE[16:].sum())
    )


def test_who_has_exited_is_not_waited_for() -> None:
    text = """setp.ge.s32 %t0, {a}, 16; ld.param.b64 %d8, [k_1]; mad.lo.s64 %d9, %at, 4, %d8; mov.b32 %r6, 7;
@%t0 bra LATE; shfl.sync.bfly.b32 {d}, {a}, 8, 31, -1; bra.uni END;
LATE: st.global.b32 [%d9], %r6; ret; END: mov.b32 {d}, {d};"""
    np.testing.assert_array_equal(apply(text, LANE, result="i4"), np.where(LANE < 16, LANE ^ 8, 7))


def test_lanes_that_wait_for_each_other_at_two_shuffles_are_named_with_their_lines() -> None:
    text = """setp.lt.s32 %t0, {a}, 16; @%t0 bra LOW;
shfl.sync.bfly.b32 {d}, {a}, 1, 31, -1; bra.uni MET;
LOW: shfl.sync.bfly.b32 {d}, {a}, 2, 31, -1; MET: mov.b32 {d}, {d};"""
    rule = r"all lanes that an instruction names must come.*threads 16-31 at PTX line \d+; threads 0-15 at PTX line \d+"
    with pytest.raises(ExecutionError, match=rule):
        apply(text, LANE, result="i4")


def test_lanes_at_a_shuffle_and_lanes_at_a_barrier_wait_forever() -> None:
    text = """setp.lt.s32 %t0, {a}, 16; @%t0 bra LOW;
shfl.sync.bfly.b32 {d}, {a}, 1, 31, -1; bra.uni MET; LOW: bar.sync 0; MET: mov.b32 {d}, {d};"""
    with pytest.raises(
        ExecutionError, match=r"got lanes that wait forever: .*at the barrier before PTX line"
    ):
        apply(text, LANE, result="i4")


@pytest.mark.parametrize(
    ("how", "target", "stored", "found"),
    [
        ("or.pred", "%t1", "selp.b32 %r5, 1, 0, %t1;", (0, 1, 1)),
        ("and.pred", "%t1", "selp.b32 %r5, 1, 0, %t1;", (0, 0, 1)),
        ("popc.u32", "%r5", "", (0, 3, 64)),
    ],
)
def test_a_barrier_at_which_threads_vote(how: str, target: str, stored: str, found: tuple[int, ...]) -> None:
    """All threads of the program learn the same, also where they come one warp after the other; it is never needless."""
    for most, want in zip((0, 3, 64), found, strict=True):
        body = f"setp.lt.u32 %t0, %tid_, {most}; barrier.cta.red.{how} {target}, 0, %t0; {stored}"
        body += "ld.param.b64 %d8, [k_0]; mad.lo.s64 %d9, %at, 4, %d8; st.global.b32 [%d9], %r5;"
        memory, out = Memory(), np.full(64, -1, "i4")
        kernel = load(parse(module(body, 1, threads=64)))
        outcome = run(kernel, memory, {"k_0": memory.place("out", out)})
        assert memory.read("out", "i4").tolist() == [want] * 64
        assert outcome.barriers == 1
        assert needless_barriers(kernel, [outcome]) == {}


SPIN = "ld.param.b64 %d8, [k_0]; AGAIN: atom.global.cas.b32 %r0, [%d8], 0, 1; setp.ne.s32 %t0, %r0, 0; @%t0 bra AGAIN;"


def test_a_lock_that_nobody_opens_is_found_in_a_moment() -> None:
    memory = Memory()
    held = memory.place("lock", np.ones(1, "i4"))
    start = time.perf_counter()
    with pytest.raises(
        ExecutionError, match=r"got a loop that changes nothing any more: threads 0-31 at PTX line"
    ):
        execute(module(SPIN, 1), memory, [held])
    assert time.perf_counter() - start < 10


@pytest.mark.parametrize("body", [
    "mov.b32 %r0, 0; AGAIN: add.s32 %r0, %r0, 1; setp.lt.s32 %t0, %r0, 9000; @%t0 bra AGAIN;",
    "AGAIN: atom.shared.inc.u32 %r0, [room], 9000; setp.lt.u32 %t0, %r0, 8900; @%t0 bra AGAIN;",
], ids=["a counter in a register", "a counter in memory"])  # fmt: skip
def test_a_long_loop_that_changes_something_ends(body: str) -> None:
    body = "mov.b32 %r0, 0; st.shared.b32 [room], %r0; bar.sync 0; " + body
    execute(module(body, 0), Memory(), [])


def test_a_loop_is_executed_before_what_is_behind_it_wherever_the_text_has_it() -> None:
    """0 enters a loop 2 -> 3 -> 2 whose exit 1 stands before it in the text."""
    assert ranks([[2], [], [3], [2, 1]]) == [0, 3, 1, 2]
    assert ranks([[1, 2], [3], [3], []]) == [0, 1, 2, 3]


def test_warps_that_part_in_a_rotated_loop_issue_what_follows_once() -> None:
    """Every lane leaves the loop after a round of its own; the block behind it, first in the text, is issued once."""
    text = module(
        """mov.b32 %r0, 0; bra.uni LOOP; OUT: mov.b32 %r1, 5; bra.uni END;
LOOP: add.s32 %r0, %r0, 1; setp.lt.s32 %t0, %r0, %tid_; @%t0 bra LOOP; bra.uni OUT; END: mov.b32 %r2, 5;""",
        0,
    )
    kernel = load(parse(text))
    outcome = execute(text, Memory(), [])
    (number,) = (
        n for n, i in enumerate(kernel.entry.instructions) if i.line == 18 and "5" in str(i.operands)
    )
    assert outcome.warps[number] == 1
