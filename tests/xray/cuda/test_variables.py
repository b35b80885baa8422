"""Variables of a loop take their next values in an order in which none reads what another has replaced."""

from __future__ import annotations

import random
from types import SimpleNamespace
from typing import Any, cast

import pytest

from tilefold.xray.cuda.proof import prove
from tilefold.xray.cuda.readable import readable
from tilefold.xray.cuda.readable.linear import Sums
from tilefold.xray.cuda.readable.tree import Carried, Loop, Region
from tilefold.xray.cuda.readable.values import Graph, Value
from tilefold.xray.cuda.readable.variables import Group, Variables
from tilefold.xray.cuda.translate import read_line
from xray.cuda.test_jumps import with_body
from xray.cuda.test_readable import SEED, needs_nvcc


@pytest.mark.parametrize(
    ("reads", "read"),
    [((), False), (((0, 0), (1, 1)), False), (((1, 0),), True), (((0, 1),), False), (((0, 1), (1, 0)), True)],
    ids=str,
)
def test_an_array_s_later_element_reads_no_earlier_one(
    reads: tuple[tuple[int, int], ...], read: bool
) -> None:
    """`reads`: whose next value reads whose present one."""
    graph = Graph(128)
    inside = [graph.make("variable", data=(k,)) for k in range(2)]
    nexts: list[Value] = []
    for k in range(2):
        of = [inside[j] for i, j in reads if i == k] or [graph.const(7)]
        nexts.append(graph.make("ptx", *of, graph.const(k), data=("fma.rn.f32",)))
    carried = tuple(Carried(v, v, graph.const(0), n) for v, n in zip(inside, nexts, strict=True))
    loop = Loop(Region(()), carried, graph.const(1, 1), None)
    sheet = SimpleNamespace(named=dict.fromkeys(inside, ""), instead={})
    variables = Variables(cast(Any, SimpleNamespace(sheet=sheet, sums=Sums(graph))), cast(Any, None))
    group = Group("x", "float", (0, 1))
    assert variables._is_read(group, [group], loop) == read


@pytest.mark.parametrize("sum_of_it", [False, True])
def test_a_sum_is_said_by_its_terms(sum_of_it: bool) -> None:
    """The next value itself has a name when the condition is said; a sum that it is part of reads what that is made of."""
    graph = Graph(128)
    inside = graph.make("variable", data=(0,), bits=64)
    after = graph.binary("add", inside, graph.const(32, 64))
    asked = graph.binary("add", graph.make("parameter", data=(0,), bits=64), after) if sum_of_it else after
    condition = graph.compared("lt", "s", asked, graph.const(99, 64))
    loop = Loop(Region(()), (Carried(inside, inside, graph.const(0, 64), after),), condition, None)
    sheet = SimpleNamespace(named={inside: ""}, instead={})
    variables = Variables(cast(Any, SimpleNamespace(sheet=sheet, sums=Sums(graph))), cast(Any, None))
    group = Group("at", "long long", (0,))
    assert variables._is_read(group, [group], loop) == sum_of_it


def loops(seed: int, count: int = 16) -> str:
    """A kernel's body: loops whose whole numbers take each other's values, sums of them, of both widths; all are stored."""
    draw = random.Random(seed)
    lines = [
        ".reg .pred %p<4>; .reg .b32 %r<20>; .reg .b64 %rd<20>;",
        "ld.param.b64 %rd19, [copy_param_1];",
        "mov.u32 %r19, %tid.x;",
        "mul.wide.u32 %rd18, %r19, 4;",
        "add.s64 %rd19, %rd19, %rd18;",
        *(f"mad.lo.s32 %r{k}, %r19, {draw.randrange(99)}, {draw.randrange(99)};" for k in range(8)),
        *(f"cvt.{draw.choice('su')}64.u32 %rd{k}, %r{k};" for k in range(8)),
    ]
    for n in range(count):
        wide, few = draw.random() < 0.6, draw.randint(2, 4)
        lines += ["mov.b32 %r18, 0;", f"$L__{n}:", "add.s32 %r18, %r18, 1;"]
        for _ in range(draw.randint(1, 6)):
            a, b, c = (draw.randrange(few) for _ in range(3))
            r, to = ("%rd", "64") if wide and draw.random() < 0.7 else ("%r", "32")
            lines.append(
                draw.choice(
                    (
                        f"add.s{to} {r}{a}, {r}{a}, {draw.randint(-40, 40)};",
                        f"add.s{to} {r}{a}, {r}{b}, {r}{c};",
                        f"sub.s{to} {r}{a}, {r}{b}, {r}{c};",
                        f"add.s32 %r{a}, %r{b}, %r18;",
                        f"mov.b{to} {r}{a}, {r}{b};",
                        f"shl.b{to} {r}{a}, {r}{b}, {draw.randint(1, 3)};",
                        f"and.b{to} {r}{a}, {r}{b}, {draw.choice((7, 96, 255))};",
                        f"cvt.u32.u64 %r{a}, %rd{b};",
                        f"cvt.{draw.choice(('s64.s32', 'u64.u32'))} %rd{a}, %r{b};",
                    )
                )
            )
        a, b = (draw.randrange(few) for _ in range(2))
        lines += [f"add.s64 %rd16, %rd{4 + a}, %rd{b};", "cvt.u32.u64 %r16, %rd16;"] if wide else [
            f"add.s32 %r16, %r{4 + a}, %r{b};"
        ]  # fmt: skip
        lines += [
            f"setp.{draw.choice(('lt.s32', 'ge.s32', 'lt.u32', 'ne.s32'))} %p1, %r16, {draw.randrange(200)};",
            "setp.lt.s32 %p2, %r18, 9;",
            draw.choice(("and.pred %p1, %p1, %p2;",) * 2 + ("setp.lt.s32 %p1, %r18, 9;",)),
            f"@%p1 bra $L__{n};",
            *(f"mad.lo.s32 %r17, %r17, 31, %r{k};" for k in range(few)),
            *(f"cvt.u32.u64 %r16, %rd{k}; mad.lo.s32 %r17, %r17, 31, %r16;" for k in range(few)),
            "mad.lo.s32 %r17, %r17, 31, %r18;",
        ]
    lines.insert(5, "mov.b32 %r17, 1;")
    return "\n".join([*lines, "st.global.b32 [%rd19], %r17;", "ret;"])


@needs_nvcc
@pytest.mark.parametrize("seed", range(SEED, SEED + 2))
def test_loops_of_whole_numbers_are_proven(seed: int) -> None:
    """Conditions and next values are sums that read what other variables hold, before or after these go on."""
    made = with_body(loops(seed))
    text = readable(made, read_line)
    verdict = prove(made, text, [(0, 0, 0)])
    assert verdict.proven, (verdict, text)


_STEPS = (
    "add.s32 %r{a}, %r{a}, {n};",
    "add.s64 %rd{a}, %rd{b}, %rd{c};",
    "sub.s32 %r{a}, %r{b}, %r{c};",
    "sub.s64 %rd{a}, %rd{a}, {n};",
    "mov.b32 %r{a}, %r{b};",
    "mov.b64 %rd{a}, %rd{b};",
    "and.b32 %r{a}, %r{b}, 31;",
    "xor.b64 %rd{a}, %rd{b}, 96;",
    "shr.s32 %r{a}, %r{b}, 3;",
    "mul.lo.s64 %rd{a}, %rd{b}, 3;",
    "cvt.u32.u64 %r{a}, %rd{b};",
    "cvt.s64.s32 %rd{a}, %r{b};",
    "min.s32 %r{a}, %r{b}, %r{c};",
    "add.f32 %f{a}, %f{b}, %f{c};",
    "fma.rn.f32 %f{a}, %f{b}, 0f3F000000, %f{c};",
    "mov.b32 %f{a}, %f{b};",
)
_BEGIN = """\
.reg .pred %p<40>; .reg .b32 %r<40>; .reg .b64 %rd<40>; .reg .f32 %f<9>;
ld.param.b64 %rd19, [copy_param_1]; mov.u32 %r19, %tid.x; mul.wide.u32 %rd18, %r19, 4; add.s64 %rd19, %rd19, %rd18;
mov.b32 %r17, 1;"""


class Nested:
    """A kernel's body of loops and ifs in each other, whose variables need not be read behind them; all are stored."""

    def __init__(self, seed: int) -> None:
        self._draw, self._made, self.lines = random.Random(seed), 0, [_BEGIN]
        for k in range(4):
            self.lines += [
                f"mad.lo.s32 %r{k}, %r19, {41 + 7 * k}, {seed + k};",
                f"cvt.u64.u32 %rd{k}, %r{k};",
            ]
            self.lines += [f"cvt.rn.f32.s32 %f{k}, %r{k};"]
        for _ in range(8):
            self._block(0)
            for k in range(4):
                self.lines += [f"mad.lo.s32 %r17, %r17, 31, %r{k};"]
                self.lines += [f"cvt.u32.u64 %r16, %rd{k}; mad.lo.s32 %r17, %r17, 31, %r16;"]
                self.lines += [f"mov.b32 %r16, %f{k}; mad.lo.s32 %r17, %r17, 31, %r16;"]
        self.lines += ["st.global.b32 [%rd19], %r17;", "ret;"]

    def _block(self, depth: int) -> None:
        draw = self._draw
        for _ in range(draw.randint(1, 5)):
            kind, n, k = draw.random(), self._made + 1, draw.randrange(4)
            if kind < 0.6 or depth > 2:
                a, b, c = (draw.randrange(4) for _ in range(3))
                self.lines.append(draw.choice(_STEPS).format(a=a, b=b, c=c, n=draw.randint(-40, 40)))
                continue
            self._made = n
            if kind < 0.8:
                self.lines.append(f"and.b32 %r20, %r{k}, {1 << draw.randrange(5)}; setp.eq.s32 %p1, %r20, 0;")
                self.lines.append(f"@%p1 bra $L__S{n};")
                self._block(depth + 1)
                self.lines += [f"bra.uni $L__E{n};", f"$L__S{n}:"]
                if draw.random() < 0.5:
                    self._block(depth + 1)
                self.lines.append(f"$L__E{n}:")
                continue
            count = f"%r{30 + depth}"
            self.lines += [f"mov.b32 {count}, 0;", f"$L__L{n}:", f"add.s32 {count}, {count}, 1;"]
            self._block(depth + 1)
            self.lines.append(f"setp.lt.s32 %p1, {count}, 4;")
            if draw.random() < 0.5:
                self.lines.append(f"and.b32 %r25, %r{k}, 255; setp.lt.s32 %p2, %r25, {draw.randrange(200)};")
                self.lines.append("and.pred %p1, %p1, %p2;")
            self.lines.append(f"@%p1 bra $L__L{n};")


@needs_nvcc
@pytest.mark.parametrize("seed", range(SEED, SEED + 2))
def test_loops_in_loops_are_proven(seed: int) -> None:
    """What a loop inside of another leaves is not read behind the outer one, nor by the name of the inner one's variable."""
    made = with_body("\n".join(Nested(seed).lines))
    text = readable(made, read_line)
    verdict = prove(made, text, [(0, 0, 0)])
    assert verdict.proven, (verdict, text)
