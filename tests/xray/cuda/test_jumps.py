"""Any jumps become loops with one way in, out and back, and do what they did; kernels with such jumps are proven."""

from __future__ import annotations

import random
import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace

import pytest

from tilefold.xray.compile.job import Compiled
from tilefold.xray.cuda.proof import prove
from tilefold.xray.cuda.readable import readable
from tilefold.xray.cuda.readable.jumps import (
    Block,
    before_each,
    dominators,
    found_cycles,
    reachable,
    structured,
)
from tilefold.xray.cuda.translate import read_line, translate
from tilefold.xray.ptx import Immediate, Instruction, Register, parse
from xray.cuda.test_readable import CASE_BOOK, compiled, needs_nvcc

GRAPHS = 300


def drawn(seed: int) -> list[Block]:
    """Blocks whose jumps go anywhere; block k has the line k + 1, so that a walk can be told."""
    draw = random.Random(seed)
    count = draw.randint(2, 9)
    blocks = []
    for k in range(count):
        ways = draw.sample(range(1, count), min(draw.choice((0, 1, 2, 2, 2)), count - 1))
        condition = Register("%p") if len(ways) == 2 else None
        blocks.append(Block((Instruction("add", (), (), None, k + 1),), condition, tuple(ways)))
    return blocks


def walked(blocks: Sequence[Block], choose: Callable[[], bool], steps: int = 60) -> Iterator[int]:
    """The lines that are passed; a condition that the blocks do not set is chosen."""
    told: dict[str, int] = {}
    at = 0
    while steps:
        for instruction in blocks[at].instructions:
            if instruction.opcode == "mov":
                target, to = instruction.operands
                assert isinstance(target, Register)
                assert isinstance(to, Immediate)
                told[target.name] = to.value
            else:
                yield instruction.line
                steps -= 1
        if not blocks[at].follow:
            return
        condition = blocks[at].condition
        if condition is None:
            at = blocks[at].follow[0]
        else:
            taken = told[condition.name] if condition.name in told else choose()
            at = blocks[at].follow[0 if taken else 1]


@pytest.mark.parametrize("part", range(3))
def test_the_same_blocks_are_passed_in_the_same_order(part: int) -> None:
    for seed in range(part, GRAPHS, 3):
        before = drawn(seed)
        after, _ = structured(before)
        for luck in range(4):
            one, two = random.Random(luck), random.Random(luck)
            first = list(walked(before, lambda one=one: one.random() < 0.5))
            assert list(walked(after, lambda two=two: two.random() < 0.5)) == first, seed


def test_loops_have_one_way_in_out_and_back() -> None:
    for seed in range(GRAPHS):
        blocks, _ = structured(drawn(seed))
        before = before_each(blocks)
        above = dominators(before, 0)
        cycles = found_cycles(blocks, before, above)
        backwards = {(b, c.head) for c in cycles for b in c.back}
        forwards = [
            replace(x, follow=tuple(n for n in x.follow if (b, n) not in backwards))
            for b, x in enumerate(blocks)
        ]
        assert not any(b in _behind(forwards, b) for b in reachable(blocks)), "all else has an order"
        for cycle in cycles:
            out = [(b, n) for b in cycle.blocks for n in blocks[b].follow if n not in cycle.blocks]
            if out:  # else nothing ends it
                assert len(cycle.back) == len(out) == 1
                assert out[0][0] in above[cycle.back[0]], "each round passes the way out"


def test_a_way_out_that_not_each_round_passes() -> None:
    """An `if` in the loop has it in one arm."""
    follow = ((1,), (2, 3), (5, 4), (4,), (1,), ())
    step = Instruction("add", (), (), None, 1)
    before = [Block((step,), Register("%p") if len(n) == 2 else None, n) for n in follow]
    blocks, _ = structured(before)
    above = dominators(before_each(blocks), 0)
    (cycle,) = found_cycles(blocks, before_each(blocks), above)
    ((leaving, _),) = [(b, n) for b in cycle.blocks for n in blocks[b].follow if n not in cycle.blocks]
    assert leaving in above[cycle.back[0]]


def _behind(blocks: Sequence[Block], block: int) -> set[int]:
    found, waiting = set[int](), [*blocks[block].follow]
    while waiting:
        b = waiting.pop()
        if b not in found:
            found.add(b)
            waiting += blocks[b].follow
    return found


def test_what_needs_nothing_stays() -> None:
    step = Instruction("add", (), (), None, 1)
    blocks = (
        Block((step,), None, (1,)),
        Block((step,), Register("%p"), (1, 2)),
        Block((step,), None, ()),
    )
    assert structured(blocks) == (blocks, frozenset())


def body(seed: int) -> str:
    """A kernel's body whose blocks jump anywhere by bits of a thread's state, for at most 40 blocks; the state is stored."""
    draw = random.Random(seed)
    count = draw.randint(3, 7)
    lines = [
        ".reg .pred %p<4>; .reg .b32 %r<8>; .reg .b64 %rd<8>;",
        "ld.param.b64 %rd1, [copy_param_1];",
        "mov.u32 %r1, %tid.x;",
        "mul.wide.u32 %rd2, %r1, 4;",
        "add.s64 %rd3, %rd1, %rd2;",
        "mov.b32 %r2, 0;",
    ]
    for k in range(count):
        lines += [
            f"$L__B{k}:",
            f"mad.lo.s32 %r1, %r1, {draw.randrange(3, 999, 2)}, {draw.randrange(1 << 16)};",
            "add.s32 %r2, %r2, 1;",
            "setp.gt.s32 %p1, %r2, 40;",
            draw.choice(("@%p1 bra $L__END;", "@%p1 ret;") if k else ("@%p1 bra $L__END;",)),
            f"and.b32 %r3, %r1, {1 << draw.randrange(4, 12)};",
            "setp.eq.s32 %p2, %r3, 0;",
            f"@%p2 bra $L__B{draw.randrange(count)};",
            *draw.choice(([], [f"bra.uni $L__B{draw.randrange(count)};"], ["st.global.b32 [%rd3], %r1;"])),
        ]
    return "\n".join([*lines, "$L__END:", "st.global.b32 [%rd3], %r1;", "ret;"])


INSTRUCTIONS = """\
.reg .pred %p<4>; .reg .b16 %rs<4>; .reg .b32 %r<12>; .reg .b64 %rd<8>;
.shared .align 16 .b8 own[512]; .shared .align 8 .b64 other;
ld.param.b64 %rd1, [copy_param_1];
ld.param.s32 %rd4, [copy_param_2];
mov.u32 %r9, %ctaid.x;
setp.eq.s32 %p1, %r9, 0;
@%p1 bra $L__A;
mov.u32 %r9, 7;
$L__A:
mov.u32 %r1, %tid.x;
mov.u32 %r2, %laneid;
shl.b32 %r3, %r1, 2;
mov.u32 %r4, own;
add.s32 %r4, %r4, %r3;
mul.lo.s32 %r5, %r1, 40503;
st.shared.b32 [%r4], %r5;
bar.sync 0;
xor.b32 %r6, %r3, 4;
mov.u32 %r4, own;
add.s32 %r4, %r4, %r6;
ld.shared.b32 %r7, [%r4];
add.s16x2 %r7, %r7, %r5;
cvt.s32.s16 %r8, %r7;
add.s64 %rd5, %rd4, %rd4;
shl.b64 %rd5, %rd5, 30;
add.s64 %rd5, %rd5, -3;
cvt.s64.s32 %rd6, %rd5;
cvt.u32.u64 %r10, %rd6;
add.s32 %r8, %r8, %r10;
mad.lo.s32 %r8, %r2, 3, %r8;
add.s32 %r8, %r8, %r9;
mov.u32 %r11, %cluster_ctarank;
and.b32 %r11, %r11, 0;
redux.sync.add.s32 %r9, %r1, -1;
add.s32 %r8, %r8, %r9;
add.s32 %r8, %r8, %r11;
mul.wide.u32 %rd2, %r1, 4;
add.s64 %rd3, %rd1, %rd2;
setp.lt.u32 %p2, %r1, 100;
st.global.b32 [%rd3], %r8;
@%p2 ret;
st.global.b32 [%rd3+512], %r8;
ret;"""


@needs_nvcc
def test_instructions_that_triton_writes_seldom() -> None:
    """Arrays of shared memory, the chip's registers behind a jump, halves, a number in a wider register, a return."""
    made = with_body(INSTRUCTIONS)
    assert "own" in readable(made, read_line)
    for text in (readable(made, read_line), translate(parse(made.ptx))):
        verdict = prove(made, text, [(0, 0, 0), (1, 0, 0)])
        assert verdict.proven, (verdict, text)


def with_body(text: str) -> Compiled:
    """The case book's copy with another body."""
    copy = compiled(CASE_BOOK, "copy")
    ptx, count = re.subn(
        r"(?s)(\.entry copy.*?\n\{\n).*?\n\}", lambda m: f"{m[1]}{text}\n}}", copy.ptx, count=1
    )
    assert count == 1
    return replace(copy, ptx=ptx)


@needs_nvcc
@pytest.mark.parametrize("seed", range(2))
def test_kernels_that_jump_anywhere_are_proven(seed: int) -> None:
    made = with_body(body(seed))
    text = readable(made, read_line)
    verdict = prove(made, text, [(0, 0, 0)])
    assert verdict.proven, (verdict, text)
    assert "goto" not in text
