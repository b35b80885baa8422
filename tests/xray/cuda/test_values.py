"""The graph's rules change no number; what it says of bits and sums holds for random values."""

from __future__ import annotations

import random

import pytest

from tilefold.xray.cuda.readable.linear import Sums
from tilefold.xray.cuda.readable.values import Graph, Value, apart

THREADS = 128
WORD = (1 << 32) - 1


def evaluated(value: Value, leaves: dict[Value, int]) -> int:
    """The number of a value, by the definition of its operation."""
    full = (1 << value.bits) - 1
    if value in leaves:
        return leaves[value]
    if value.constant is not None:
        return value.constant
    a = [evaluated(x, leaves) for x in value.args]
    match value.op:
        case "add":
            return (a[0] + a[1]) & full
        case "sub":
            return (a[0] - a[1]) & full
        case "mul":
            return (a[0] * a[1]) & full
        case "and":
            return a[0] & a[1]
        case "or":
            return a[0] | a[1]
        case "xor":
            return a[0] ^ a[1]
        case "neg":
            return -a[0] & full
        case "not":
            return ~a[0] & full
        case "shl":
            return (a[0] << a[1]) & full
        case "shr":
            return a[0] >> a[1]
        case "select":
            return a[1] if a[0] else a[2]
        case "zext":
            return a[0]
        case "sext":
            return a[0] | (((1 << 32) - 1) << 32 if a[0] >> 31 else 0)
        case "compare":
            left, right = ((x - (1 << 32) if value.data[1] == "s" and x >> 31 else x) for x in a)
            return int(
                {
                    "lt": left < right,
                    "ge": left >= right,
                    "gt": left > right,
                    "le": left <= right,
                    "eq": left == right,
                    "ne": left != right,
                }[value.data[0]]
            )
    raise AssertionError(value.op)


def grown(
    draw: random.Random, graph: Graph, known: list[tuple[Value, int]], leaves: dict[Value, int]
) -> tuple[Value, int]:
    """One more value by a rule of the graph, and the number that it must have."""
    (a, x), (b, y) = draw.choice(known), draw.choice(known)
    n = draw.randint(0, 12)
    match draw.randint(0, 11):
        case 0:
            return graph.binary("add", a, b), (x + y) & WORD
        case 1:
            return graph.binary("sub", a, b), (x - y) & WORD
        case 2:
            return graph.binary("mul", a, b), (x * y) & WORD
        case 3:
            return graph.binary("or", a, b), x | y
        case 4:
            return graph.binary("xor", a, b), x ^ y
        case 5 | 6:
            mask = draw.choice([1, 3, 12, 31, 96, 124, 0xFFFFFF80, 127, draw.getrandbits(32)])
            return graph.binary("and", a, graph.const(mask)), x & mask
        case 7:
            return graph.shl(a, n), (x << n) & WORD
        case 8:
            return graph.shr(a, n), x >> n
        case 9:
            return graph.make("neg", a), -x & WORD
        case 10:
            return graph.binary(draw.choice(["add", "or", "xor"]), a, graph.const(0)), x
    test = graph.compared(draw.choice(["lt", "ge", "eq", "ne"]), draw.choice("su"), a, b)
    held = evaluated(test, leaves)
    if draw.random() < 0.5:
        test, held = graph.negated(test), 1 - held
    if draw.random() < 0.5:  # with a condition of the thread alone, on either side
        tid = graph.make("special", data=("%tid.x",))
        lane = graph.compared("gt", "u", tid, graph.const(n))
        op, pair = draw.choice(["and", "or"]), draw.sample([test, lane], 2)
        below = int(leaves[tid] > n)
        test, held = graph.binary(op, *pair), held & below if op == "and" else held | below
    return graph.selected(test, a, b), x if held else y


@pytest.mark.parametrize("seed", range(60))
def test_rules_keep_the_number(seed: int) -> None:
    draw = random.Random(seed)
    graph = Graph(THREADS)
    sums = Sums(graph)
    leaves = {
        graph.make("special", data=("%tid.x",)): draw.randrange(THREADS),
        graph.make("special", data=("%ctaid.x",)): draw.choice([0, 1, 5, 70_000]),
        graph.make("result", data=(1,)): draw.getrandbits(32),
        graph.make("parameter", data=(2,)): draw.choice([0, 1, 1000, WORD]),
    }
    known = [*leaves.items(), (graph.const(4), 4), (graph.const(128), 128)]
    for _ in range(40):
        value, number = grown(draw, graph, known, leaves)
        assert evaluated(value, leaves) == number, value
        assert not number & ~graph.possible(value), value
        form = sums.of(value)
        assert (sum(c * evaluated(v, leaves) for v, c in form.terms) + form.constant) % (1 << 32) == number
        wide = graph.extended(value, signed := draw.random() < 0.5)
        expected = number - (1 << 32) if signed and number >> 31 else number
        assert evaluated(wide, leaves) == expected % (1 << 64)
        form = sums.of(wide)
        assert (sum(c * evaluated(v, leaves) for v, c in form.terms) + form.constant) % (
            1 << 64
        ) == expected % (1 << 64)
        if sums.bounded(form):
            assert 0 <= expected < 1 << 31
        known.append((value, number))


def test_equal_values_are_one() -> None:
    graph = Graph(THREADS)
    tid = graph.make("special", data=("%tid.x",))
    assert graph.binary("add", tid, graph.const(1)) is graph.binary("add", graph.const(1), tid)
    assert graph.binary("and", tid, graph.const(127)) is tid  # no thread has a higher number
    assert graph.binary("or", graph.shl(tid, 2), graph.const(3)).op == "add"  # the bits are disjoint
    assert graph.part(graph.packed(tid, tid), 1, 32) is tid


def test_pieces_together_are_their_whole_or_stay_pieces() -> None:
    """Only all pieces of one word, in their order: beside constants and others, from either end, they stay apart."""
    graph = Graph(THREADS)
    word, other = (graph.make("load", data=(name,), bits=64) for name in "ab")
    low, high, far = graph.part(word, 0, 32), graph.part(word, 1, 32), graph.part(other, 1, 32)
    zero = graph.const(0)
    assert graph.packed(low, high) is word
    for pieces in ((high, low), (low, low), (low, far), (zero, high), (low, zero), (zero, zero), (low,)):
        whole = graph.packed(*pieces)
        assert whole.op == "pack"
        assert whole.bits == 32 * len(pieces)
        assert [graph.part(whole, k, 32) for k in range(len(pieces))] == [*pieces]


@pytest.mark.parametrize("relation", ["lt", "ge", "gt", "le", "eq", "ne"])
@pytest.mark.parametrize("kind", ["s", "u"])
def test_the_opposite_of_a_comparison(relation: str, kind: str) -> None:
    graph = Graph(THREADS)
    a, b = (graph.make("result", data=(n,)) for n in (1, 2))
    test = graph.compared(relation, kind, a, b)
    for x, y in ((1, 2), (2, 2), (3, 2), (WORD, 0)):
        leaves = {a: x, b: y}
        assert evaluated(graph.negated(test), leaves) == 1 - evaluated(test, leaves)


def test_values_of_an_array_are_not_made_of_each_other() -> None:
    graph = Graph(THREADS)
    x, y, z = (graph.make("variable", data=(k,)) for k in range(3))
    one = graph.binary("mul", x, y)
    other = graph.binary("mul", graph.binary("add", one, z), y)
    assert apart((one, graph.binary("mul", z, y)))
    assert not apart((one, other))
    assert not apart((other, one))


@pytest.mark.parametrize("op", ["and", "or"])
def test_a_choice_by_the_thread_s_number_is_the_outer_one(op: str) -> None:
    graph = Graph(THREADS)
    tid, x, yes, no = (
        graph.make("special", data=("%tid.x",)),
        *(graph.make("result", data=(k,)) for k in range(3)),
    )
    lane = graph.compared("gt", "u", tid, graph.const(3))
    other = graph.compared("eq", "u", x, graph.const(0))
    made = graph.selected(graph.binary(op, other, lane), yes, no)
    assert made.args[0] is lane
    for thread in (3, 4):
        for number in (0, 1):
            leaves = {tid: thread, x: number, yes: 7, no: 9}
            held = [thread > 3, number == 0]
            assert evaluated(made, leaves) == (7 if (all(held) if op == "and" else any(held)) else 9)
