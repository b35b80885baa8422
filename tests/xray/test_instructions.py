"""Groups of instructions against numpy, torch and exact fractions."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from fractions import Fraction

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from tilefold.errors import ExecutionError, UnknownInstructionError
from tilefold.xray.machine import Memory, load, run
from tilefold.xray.ptx import parse
from xray.snippets import apply, execute, module

few = settings(max_examples=25, deadline=None)


def words(dtype: str) -> st.SearchStrategy[np.ndarray]:
    """32 values of any bits."""
    size = np.dtype(dtype).itemsize
    return arrays(f"u{size}", 32).map(lambda a: a.view(dtype))


def same(got: np.ndarray, want: np.ndarray) -> None:
    """Equal bits, any NaN for any NaN."""
    want = np.asarray(want, got.dtype)
    if got.dtype.kind == "f":
        assert np.array_equal(np.isnan(got), np.isnan(want))
        got, want = got[~np.isnan(got)], want[~np.isnan(want)]
    size = got.dtype.itemsize
    np.testing.assert_array_equal(got.view(f"u{size}"), want.view(f"u{size}"))


@pytest.mark.parametrize("dtype", ["i2", "i4", "i8", "u4", "u8"])
@few
@given(data=st.data())
def test_integer_arithmetic(dtype: str, data: st.DataObject) -> None:
    a, b = data.draw(words(dtype)), data.draw(words(dtype))
    kind = ("s" if dtype[0] == "i" else "u") + str(8 * int(dtype[1]))
    for name, function in {"add": np.add, "sub": np.subtract, "min": np.minimum, "max": np.maximum}.items():
        same(apply(f"{name}.{kind} {{d}}, {{a}}, {{b}};", a, b, result=dtype), function(a, b))
    same(apply(f"mul.lo.{kind} {{d}}, {{a}}, {{b}};", a, b, result=dtype), a * b)
    exact = [int(x) * int(y) >> 8 * int(dtype[1]) for x, y in zip(a, b, strict=True)]
    same(
        apply(f"mul.hi.{kind} {{d}}, {{a}}, {{b}};", a, b, result=dtype),
        np.array(exact, object).astype(dtype),
    )


@few
@given(a=words("u8"), b=words("u8"))
def test_carries_join_words(a: np.ndarray, b: np.ndarray) -> None:
    """64-bit sums, differences and products made of 32-bit words, as libdevice makes them."""
    apart = "mov.b64 {{%r0, %r1}}, {a}; mov.b64 {{%r2, %r3}}, {b};"
    together = "mov.b64 {d}, {{%r4, %r6}};"
    up = "add.cc.u32 %r4, %r0, %r2; addc.u32 %r6, %r1, %r3;"
    same(apply(apart + up + together, a, b, result="u8"), a + b)
    down = "sub.cc.u32 %r4, %r0, %r2; subc.u32 %r6, %r1, %r3;"
    same(apply(apart + down + together, a, b, result="u8"), a - b)
    product = "mad.lo.cc.u32 %r4, %r0, %r2, %r3; madc.hi.u32 %r6, %r0, %r2, %r1;"
    low, high = (b & np.uint64(0xFFFFFFFF)), b >> np.uint64(32)
    want = (a & np.uint64(0xFFFFFFFF)) * low + high + (a >> np.uint64(32) << np.uint64(32))
    same(apply(apart + product + together, a, b, result="u8"), want)


@few
@given(a=words("i4"), b=words("i4"))
def test_extremes_that_are_not_negative(a: np.ndarray, b: np.ndarray) -> None:
    for name, function in (("min", np.minimum), ("max", np.maximum)):
        same(apply(f"{name}.relu.s32 {{d}}, {{a}}, {{b}};", a, b, result="i4"), np.maximum(function(a, b), 0))


@few
@given(a=words("i4"), b=words("i4"))
def test_division_goes_toward_zero(a: np.ndarray, b: np.ndarray) -> None:
    b = np.where((b == 0) | (b == -1), 7, b).astype("i4")
    want = [abs(int(x)) // abs(int(y)) * (1 if (x < 0) == (y < 0) else -1) for x, y in zip(a, b, strict=True)]
    got = apply("div.s32 {d}, {a}, {b};", a, b, result="i4")
    same(got, np.array(want))
    same(apply("rem.s32 {d}, {a}, {b};", a, b, result="i4"), a - got * b)


@pytest.mark.parametrize("bits", [16, 32, 64])
@pytest.mark.parametrize("sign", ["b", "u", "s"])
@few
@given(data=st.data())
def test_shifts_beyond_the_width(sign: str, bits: int, data: st.DataObject) -> None:
    """By every number up to the width's double, and by the width and its neighbours each time."""
    a, by = data.draw(words(f"u{bits // 8}")), data.draw(arrays("u4", 32, elements=st.integers(0, 2 * bits)))
    by[:6] = bits - 1, bits, bits + 1, 0, 2**31, 2**32 - 1
    left = [int(x) << int(n) & (1 << bits) - 1 if n < bits else 0 for x, n in zip(a, by, strict=True)]
    same(apply(f"shl.b{bits} {{d}}, {{a}}, {{b}};", a, by, result=a.dtype.str), np.array(left, a.dtype))
    values = a.view(f"i{bits // 8}") if sign == "s" else a
    right = [int(x) >> int(n) for x, n in zip(values, by, strict=True)]
    got = apply(f"shr.{sign}{bits} {{d}}, {{a}}, {{b}};", a, by, result=values.dtype.str)
    same(got, np.array(right, values.dtype))


@pytest.mark.parametrize("way", ["l", "r"])
@pytest.mark.parametrize("mode", ["wrap", "clamp"])
@few
@given(low=words("u4"), high=words("u4"), by=arrays("u4", 32, elements=st.integers(0, 70)))
def test_shifts_of_two_words(mode: str, way: str, low: np.ndarray, high: np.ndarray, by: np.ndarray) -> None:
    by[:4] = 31, 32, 33, 2**32 - 1
    want = []
    for x, y, n in zip(low.tolist(), high.tolist(), by.tolist(), strict=True):
        count = min(n, 32) if mode == "clamp" else n % 32
        both = x | y << 32
        want.append((both << count >> 32 if way == "l" else both >> count) & 0xFFFFFFFF)
    got = apply(f"shf.{way}.{mode}.b32 {{d}}, {{a}}, {{b}}, {{c}};", low, high, by, result="u4")
    same(got, np.array(want, "u4"))


@pytest.mark.parametrize("bits", [32, 64])
@few
@given(data=st.data())
def test_a_field_of_bits_is_put_into_others(bits: int, data: st.DataObject) -> None:
    """Of no length, of all, over the top, and behind it; start and length are bytes."""
    dtype = f"u{bits // 8}"
    a, b = data.draw(words(dtype)), data.draw(words(dtype))
    edges = [0, 1, 31, 32, 33, 63, 64, 65, 255, 256, 257]
    length = data.draw(st.sampled_from(edges))
    for start in edges:
        mask = ((1 << length % 256) - 1 << start % 256) & (1 << bits) - 1
        want = [int(y) & ~mask | int(x) << start % 256 & mask for x, y in zip(a, b, strict=True)]
        got = apply(f"bfi.b{bits} {{d}}, {{a}}, {{b}}, {start}, {length};", a, b, result=dtype)
        same(got, np.array(want, dtype))


@few
@given(
    a=words("u4"),
    start=arrays("u4", 32, elements=st.integers(0, 40)),
    length=arrays("u4", 32, elements=st.integers(0, 40)),
)
def test_bit_fields(a: np.ndarray, start: np.ndarray, length: np.ndarray) -> None:
    plain = [(int(x) >> int(s)) & ((1 << int(n)) - 1) for x, s, n in zip(a, start, length, strict=True)]
    same(apply("bfe.u32 {d}, {a}, {b}, {c};", a, start, length, result="u4"), np.array(plain))
    signed = []
    for x, s, n in zip(a.view("i4"), start, length, strict=True):
        field = (int(x) >> int(s)) & (
            (1 << int(n)) - 1
        )  # beyond the top Python repeats the sign, as PTX does
        top = field >> (int(n) - 1) & 1 if n else 0
        signed.append(field - (top << int(n)))
    same(apply("bfe.s32 {d}, {a}, {b}, {c};", a, start, length, result="i4"), np.array(signed).astype("i4"))


@few
@given(a=words("u4"), b=words("u4"))
def test_bytes_and_bits(a: np.ndarray, b: np.ndarray) -> None:
    def select(x: int, y: int, code: int) -> int:
        pool = (x | y << 32).to_bytes(8, "little")
        return int.from_bytes(bytes(pool[code >> 4 * i & 7] for i in range(4)), "little")

    want = [select(int(x), int(y), 0x5140) for x, y in zip(a, b, strict=True)]
    same(apply("prmt.b32 {d}, {a}, {b}, 0x5140;", a, b, result="u4"), np.array(want))
    same(apply("popc.b32 {d}, {a};", a, result="u4"), np.array([int(x).bit_count() for x in a]))
    same(apply("clz.b32 {d}, {a};", a, result="u4"), np.array([32 - int(x).bit_length() for x in a]))
    same(apply("brev.b32 {d}, {a};", a, result="u4"), np.array([int(f"{int(x):032b}"[::-1], 2) for x in a]))
    same(apply("lop3.b32 {d}, {a}, {b}, {a}, 0x96;", a, b, result="u4"), a ^ b ^ a)


@pytest.mark.parametrize(("kind", "dtype"), [("f32", "f4"), ("f64", "f8"), ("f16", "f2")])
@few
@given(data=st.data())
def test_float_arithmetic(kind: str, dtype: str, data: st.DataObject) -> None:
    a, b = data.draw(words(dtype)), data.draw(words(dtype))
    with np.errstate(all="ignore"):
        for name, function in {"add": np.add, "sub": np.subtract, "mul": np.multiply}.items():
            same(apply(f"{name}.{kind} {{d}}, {{a}}, {{b}};", a, b, result=dtype), function(a, b))
        if dtype != "f2":
            same(apply(f"div.rn.{kind} {{d}}, {{a}}, {{b}};", a, b, result=dtype), a / b)
            same(apply(f"sqrt.rn.{kind} {{d}}, {{a}};", a, result=dtype), np.sqrt(a))


def rounded(exact: Fraction) -> np.float32:
    """A fraction to the nearest float32, ties to even, by trying the neighbours."""
    near = np.float32(float(exact))
    below, above = np.nextafter(near, np.float32(-np.inf)), np.nextafter(near, np.float32(np.inf))
    finite = [x for x in (below, near, above) if np.isfinite(x)]
    return min(finite, key=lambda x: (abs(Fraction(float(x)) - exact), int(x.view("u4")) & 1))


ordinary = st.floats(-(2.0**60), 2.0**60, width=32)


@few
@given(data=st.data())
def test_fma_rounds_once(data: st.DataObject) -> None:
    a, b, c = (data.draw(arrays("f4", 32, elements=ordinary)) for _ in range(3))
    got = apply("fma.rn.f32 {d}, {a}, {b}, {c};", a, b, c, result="f4")
    for x, y, z, g in zip(a, b, c, got, strict=True):
        exact = Fraction(float(x)) * Fraction(float(y)) + Fraction(float(z))
        assert g == rounded(exact)


def test_fma_near_a_tie() -> None:
    """The product's last bit decides a tie that float64 alone would have rounded away."""
    a = np.full(32, np.float32(1 + 2.0**-12))
    b = np.full(32, np.float32(1 + 2.0**-12))
    c = np.full(32, np.float32(2.0**-60))
    got = apply("fma.rn.f32 {d}, {a}, {b}, {c};", a, b, c, result="f4")
    assert (
        got[0]
        == rounded(Fraction(float(a[0])) ** 2 + Fraction(2) ** -60)
        == np.float32(1 + 2.0**-11 + 2.0**-23)
    )


@pytest.mark.parametrize("name", ["add", "sub", "mul", "fma", "add.rz", "mul.rn.ftz", "fma.rn.ftz"])
@few
@given(data=st.data())
def test_a_pair_of_floats_is_two(name: str, data: st.DataObject) -> None:
    """`f32x2` in a 64-bit register, whose lower half is the first: each half as the instruction of one float has it."""
    opcode, *modifiers = name.split(".")
    name = ".".join([opcode, *(modifiers or ["rn"])])
    terms = "{a}, {b}, {c}" if opcode == "fma" else "{a}, {b}"
    pairs = [data.draw(arrays("u4", 64)).view("f4") for _ in range(terms.count("{"))]
    got = apply(f"{name}.f32x2 {{d}}, {terms};", *[p.view("u8") for p in pairs], result="u8").view("f4")
    for half in (0, 1):
        one = [np.ascontiguousarray(p[half::2]) for p in pairs]
        same(got[half::2], apply(f"{name}.f32 {{d}}, {terms};", *one, result="f4"))


def test_a_pair_of_floats_in_its_order() -> None:
    pair = np.tile(np.array([1.5, -3.0], "f4"), 32)
    other = np.tile(np.array([2.0, 10.0], "f4"), 32)
    got = apply("mul.f32x2 {d}, {a}, {b};", pair.view("u8"), other.view("u8"), result="u8")
    same(got.view("f4"), np.tile(np.array([3.0, -30.0], "f4"), 32))
    with pytest.raises(UnknownInstructionError, match="max"):
        apply("max.f32x2 {d}, {a}, {b};", pair.view("u8"), other.view("u8"), result="u8")


@pytest.mark.parametrize("name", ["add.f32", "sub.rn.f32", "sub.rz.f32", "fma.rn.f32"])
@pytest.mark.parametrize("half", ["bf16", "f16"])
@few
@given(data=st.data())
def test_operands_of_sixteen_bits_are_taken_as_floats(name: str, half: str, data: st.DataObject) -> None:
    """`sub.f32.bf16`, which code for sm_100 has: all operands but the last one are of 16 bits, the result is none."""
    halves = [data.draw(words("u2")) for _ in range(2 if name.startswith("fma") else 1)]
    last = data.draw(words("f4"))
    terms = "{a}, {b}, {c}" if len(halves) == 2 else "{a}, {b}"
    got = apply(f"{name}.{half} {{d}}, {terms};", *halves, last, result="f4")
    dtype = torch.bfloat16 if half == "bf16" else torch.float16
    wide = [torch.from_numpy(h.view("i2").copy()).view(dtype).float().numpy() for h in halves]
    same(got, apply(f"{name} {{d}}, {terms};", *wide, last, result="f4"))


@few
@given(data=st.data())
def test_fma_of_doubles_rounds_once(data: st.DataObject) -> None:
    number = st.floats(-(2.0**200), 2.0**200).filter(lambda x: x == 0 or abs(x) > 2.0**-200)
    a, b, c = (data.draw(arrays("f8", 32, elements=number)) for _ in range(3))
    got = apply("fma.rn.f64 {d}, {a}, {b}, {c};", a, b, c, result="f8")
    for x, y, z, g in zip(a, b, c, got, strict=True):
        assert g == float(Fraction(x) * Fraction(y) + Fraction(z))


@few
@given(data=st.data())
def test_fma_of_doubles_near_a_tie(data: st.DataObject) -> None:
    """A product of nearly half a unit of the last place of what it is added to: its own last bits say which way."""
    sign, near = st.sampled_from([-1.0, 1.0]), st.integers(20, 52)
    lines = [
        [data.draw(s) for s in (sign, sign, sign, near, near, st.integers(0, 2**52 - 1))] for _ in range(32)
    ]
    a = np.array([s * (1 + 2.0**-i) for s, _, _, i, _, _ in lines])
    b = np.array([2.0**-53 * (1 + t * 2.0**-j) for _, t, _, _, j, _ in lines])
    b[::2] = [2.0**-53 * (1 - 2.0**-i) for _, _, _, i, _, _ in lines[::2]]  # half a unit but for 2^-2i of it
    c = np.array([u * (1 + m * 2.0**-52) for _, _, u, _, _, m in lines])
    got = apply("fma.rn.f64 {d}, {a}, {b}, {c};", a, b, c, result="f8")
    for x, y, z, g in zip(a, b, c, got, strict=True):
        assert g == float(Fraction(x) * Fraction(y) + Fraction(z))


@pytest.mark.parametrize("mode", ["rz", "rm", "rp"])
@few
@given(data=st.data())
def test_directed_rounding(mode: str, data: st.DataObject) -> None:
    a, b = (data.draw(arrays("f4", 32, elements=ordinary)) for _ in range(2))
    got = apply(f"add.{mode}.f32 {{d}}, {{a}}, {{b}};", a, b, result="f4")
    for x, y, g in zip(a, b, got, strict=True):
        exact, found = Fraction(float(x)) + Fraction(float(y)), Fraction(float(g))
        step = abs(Fraction(float(np.nextafter(g, np.float32(np.inf)))) - found) * 2
        assert abs(found - exact) < step
        assert {"rz": abs(found) <= abs(exact), "rm": found <= exact, "rp": found >= exact}[mode]


@few
@given(a=words("f4"), b=words("f4"))
def test_minimum_and_maximum(a: np.ndarray, b: np.ndarray) -> None:
    x, y = torch.from_numpy(a), torch.from_numpy(b)
    got = apply("max.f32 {d}, {a}, {b};", a, b, result="f4")
    want = torch.fmax(x, y).numpy()
    assert np.array_equal(got, want, equal_nan=True)
    got = apply("min.NaN.f32 {d}, {a}, {b};", a, b, result="f4")
    assert np.array_equal(got, torch.minimum(x, y).numpy(), equal_nan=True)


@few
@given(a=words("f4"), b=words("f4"), c=words("f4"))
def test_extremes_of_three(a: np.ndarray, b: np.ndarray, c: np.ndarray) -> None:
    """Which code for sm_100 has. torch.fmax keeps a signalling NaN, so NaNs are quiet here."""
    a, b, c = (np.where(np.isnan(v), np.float32("nan"), v) for v in (a, b, c))
    x, y, z = map(torch.from_numpy, (a, b, c))
    got = apply("max.f32 {d}, {a}, {b}, {c};", a, b, c, result="f4")
    assert np.array_equal(got, torch.fmax(torch.fmax(x, y), z).numpy(), equal_nan=True)
    got = apply("min.NaN.f32 {d}, {a}, {b}, {c};", a, b, c, result="f4")
    assert np.array_equal(got, torch.minimum(torch.minimum(x, y), z).numpy(), equal_nan=True)
    with pytest.raises(UnknownInstructionError, match="max"):
        apply("max.xorsign.abs.f32 {d}, {a}, {b}, {c};", a, b, c, result="f4")
    with pytest.raises(UnknownInstructionError, match="max"):
        apply("max.f64 {d}, {a}, {b}, {c};", *(v.astype("f8") for v in (a, b, c)), result="f8")


def test_signed_zeros_have_an_order() -> None:
    plus, minus = np.zeros(32, "f4"), -np.zeros(32, "f4")
    for a, b in ((plus, minus), (minus, plus)):
        assert not np.signbit(apply("max.f32 {d}, {a}, {b};", a, b, result="f4")).any()
        assert np.signbit(apply("min.f32 {d}, {a}, {b};", a, b, result="f4")).all()


@few
@given(a=words("f4"))
def test_conversions_between_floats(a: np.ndarray) -> None:
    x = torch.from_numpy(a)
    same(apply("cvt.rn.f16.f32 {d}, {a};", a, result="f2"), x.half().numpy())
    same(apply("cvt.f64.f32 {d}, {a};", a, result="f8"), x.double().numpy())
    got = apply("cvt.rn.bf16.f32 {d}, {a};", a, result="u2")
    want = x.bfloat16()
    nan = want.isnan().numpy()
    np.testing.assert_array_equal(got[~nan], want.view(torch.uint16).numpy()[~nan])
    assert (got[nan] == 0x7FFF).all()


@few
@given(a=words("f4"))
def test_floats_to_integers_saturate(a: np.ndarray) -> None:
    def clamp(value: float, low: int, high: int) -> int:
        if np.isnan(value):
            return 0
        return low if value <= low else high if value >= high else int(value)

    want = [clamp(float(x), -(2**31), 2**31 - 1) for x in a]
    same(apply("cvt.rzi.s32.f32 {d}, {a};", a, result="i4"), np.array(want))
    same(
        apply("cvt.rzi.u32.f32 {d}, {a};", a, result="u4"),
        np.array([clamp(float(x), 0, 2**32 - 1) for x in a]),
    )


@pytest.mark.parametrize(("name", "dtype"), [("e4m3x2", torch.float8_e4m3fn), ("e5m2x2", torch.float8_e5m2)])
def test_eight_bit_floats(name: str, dtype: torch.dtype) -> None:
    codes = torch.arange(256, dtype=torch.uint8)
    codes = codes[codes.view(dtype).float().isfinite()][:224].reshape(-1, 32)
    for row in codes:
        values = row.view(dtype).float().numpy()
        middle = values * np.float32(1.01)
        limit = torch.finfo(dtype).max
        want = torch.from_numpy(middle).clamp(-limit, limit).to(dtype).view(torch.uint8).numpy()
        got = apply(f"cvt.rn.satfinite.{name}.f32 {{d}}, {{a}}, {{b}};", values, middle, result="u2")
        np.testing.assert_array_equal(got >> 8, row.numpy())
        np.testing.assert_array_equal(got & 255, want)
        back = apply(f"cvt.rn.f16x2.{name} {{d}}, {{a}};", got, result="u4")
        same((back >> 16).astype("u2").view("f2"), values.astype("f2"))


@few
@given(a=words("f4"), b=words("f4"))
def test_comparisons_with_nan(a: np.ndarray, b: np.ndarray) -> None:
    b = np.where(np.arange(32) % 3 == 0, a, b)
    nan = np.isnan(a) | np.isnan(b)
    for name, want in {
        "lt": (a < b), "geu": (a >= b) | nan, "eq": (a == b), "ne": (a != b) & ~nan, "neu": (a != b) | nan, "num": ~nan,
    }.items():  # fmt: skip
        got = apply(f"setp.{name}.f32 %t0, {{a}}, {{b}}; selp.b32 {{d}}, 1, 0, %t0;", a, b, result="u4")
        np.testing.assert_array_equal(got != 0, want)


@few
@given(a=words("f4"))
def test_kinds_of_floats(a: np.ndarray) -> None:
    finite = np.isfinite(a)
    for name, want in {
        "finite": finite, "infinite": np.isinf(a), "number": ~np.isnan(a), "notanumber": np.isnan(a),
    }.items():  # fmt: skip
        got = apply(f"testp.{name}.f32 %t0, {{a}}; selp.b32 {{d}}, 1, 0, %t0;", a, result="u4")
        np.testing.assert_array_equal(got != 0, want)


@few
@given(a=words("u4"), b=words("u4"))
def test_halves_of_registers(a: np.ndarray, b: np.ndarray) -> None:
    whole = apply("mov.b64 {d}, {{{a}, {b}}};", a, b, result="u8")
    same(whole, a.astype("u8") | b.astype("u8") << 32)
    same(apply("mov.b64 {{{d}, %r7}}, {a};", whole, result="u4"), a)


@few
@given(a=words("u4"), by=st.integers(0, 31))
def test_shuffles(a: np.ndarray, by: int) -> None:
    lane = np.arange(32)
    same(apply(f"shfl.sync.bfly.b32 {{d}}, {{a}}, {by}, 31, -1;", a, result="u4"), a[lane ^ by])
    same(apply(f"shfl.sync.idx.b32 {{d}}, {{a}}, {by}, 31, -1;", a, result="u4"), a[np.full(32, by)])
    same(
        apply(f"shfl.sync.up.b32 {{d}}, {{a}}, {by}, 0, -1;", a, result="u4"),
        a[np.where(lane < by, lane, lane - by)],
    )
    down = np.where(lane + by > 31, lane, lane + by)
    same(apply(f"shfl.sync.down.b32 {{d}}, {{a}}, {by}, 31, -1;", a, result="u4"), a[down])


@few
@given(a=words("i4"))
def test_votes_and_reductions(a: np.ndarray) -> None:
    ballot = sum(1 << i for i in range(32) if a[i] > 0)
    text = "setp.gt.s32 %t0, {a}, 0; vote.sync.ballot.b32 {d}, %t0, -1;"
    same(apply(text, a, result="u4"), np.full(32, ballot))
    same(apply("redux.sync.add.s32 {d}, {a}, -1;", a, result="i4"), np.full(32, a.sum(dtype="i4")))
    same(apply("redux.sync.min.s32 {d}, {a}, -1;", a, result="i4"), np.full(32, a.min()))


def test_threads_part_and_meet_again() -> None:
    text = """setp.lt.s32 %t0, {a}, 16; @%t0 bra FEW; add.s32 {d}, {a}, 100; bra.uni MET;
FEW: add.s32 {d}, {a}, 1000; MET: shfl.sync.bfly.b32 {d}, {d}, 16, 31, -1;"""
    lane = np.arange(32, dtype="i4")
    same(apply(text, lane, result="i4"), np.where(lane < 16, lane + 116, lane + 984))


def test_loops_of_different_length() -> None:
    text = """mov.b32 {d}, 0; mov.b32 %r6, 0; MORE: add.s32 {d}, {d}, %r6; add.s32 %r6, %r6, 1;
setp.le.s32 %t0, %r6, {a}; @%t0 bra MORE;"""
    lane = np.arange(32, dtype="i4")
    same(apply(text, lane, result="i4"), lane * (lane + 1) // 2)


def test_a_shuffle_among_absent_lanes_is_an_error() -> None:
    text = "setp.lt.s32 %t0, {a}, 16; @%t0 shfl.sync.bfly.b32 {d}, {a}, 16, 31, -1;"
    with pytest.raises(ExecutionError, match=r"every lane that a shuffle reads must execute it.*line \d+"):
        apply(text, np.arange(32, dtype="i4"), result="i4")


def test_a_misaligned_access_is_an_error() -> None:
    memory = Memory()
    address = memory.place("x", np.zeros(64, "u4"))
    with pytest.raises(ExecutionError, match="multiples of the 8 bytes accessed"):
        execute(module("ld.param.b64 %d0, [k_0]; ld.global.b64 %d1, [%d0+4];", 1), memory, [address])


def test_an_unknown_instruction_names_its_line() -> None:
    text = module("\ntcgen05.alloc.cta_group::1.sync.aligned.shared::cta.b32 [room], 32;", 0)
    line = 1 + text[: text.index("tcgen05")].count("\n")
    with pytest.raises(UnknownInstructionError, match=rf"tcgen05\.alloc.*PTX line {line}"):
        execute(text, Memory(), [])


UNKNOWN = "tcgen05.alloc.cta_group::1.sync.aligned.shared::cta.b32 [room], 32;"


@pytest.mark.parametrize(
    "body",
    [
        f"bra PAST; {UNKNOWN} PAST:",
        f"setp.lt.s32 %t0, %tid_, 0; @%t0 {UNKNOWN}",
        "setp.lt.s32 %t0, %tid_, 0; @%t0 bar.sync 0;",
        "bra PAST; bar.arrive 1, 64; PAST:",
    ],
    ids=["behind a jump", "with a false predicate", "a predicated barrier", "a barrier of another kind"],
)
def test_an_unknown_instruction_that_no_thread_reaches_is_no_error(body: str) -> None:
    kernel = load(parse(module(body, 0)))
    outcome = run(kernel, Memory(), {})
    (number,) = kernel.unknown
    assert outcome.lanes[number] == 0


@pytest.mark.parametrize("body", [f"@%t0 {UNKNOWN}", "@%t0 bar.sync 0;", "bar.arrive 1, 64;"])
def test_an_unknown_instruction_that_one_thread_reaches_is_an_error(body: str) -> None:
    text = module(f"setp.eq.s32 %t0, %tid_, 31;\n{body}", 0)
    line = 1 + text[: text.index(body)].count("\n")
    with pytest.raises(UnknownInstructionError, match=f"PTX line {line}"):
        execute(text, Memory(), [])


def test_reads_behind_the_end_are_reported() -> None:
    memory = Memory()
    address = memory.place("x", np.zeros(20, "u4"))
    body = "ld.param.b64 %d0, [k_0]; mad.lo.s64 %d1, %at, 4, %d0; ld.global.b32 %r0, [%d1];"
    execute(module(body, 1), memory, [address])
    (fault,) = memory.faults
    assert (fault.threads, fault.nearest, fault.lowest) == (12, "x", address + 80)


def _atomic_at(instruction: str, held: np.ndarray) -> np.ndarray:
    """Memory after 32 threads did an atomic operation at its start with 1 + their number (a float) and its half."""
    memory = Memory()
    address = memory.place("x", held)
    body = f"""ld.param.b64 %d0, [k_0]; cvt.rn.f32.u32 %r0, %tid_; add.f32 %r0, %r0, 0f3F800000;
mul.f32 %r1, %r0, 0f3F000000; cvt.rn.f16x2.f32 %r2, %r1, %r0; cvt.rn.bf16x2.f32 %r3, %r1, %r0; {instruction}"""
    execute(module(body, 1), memory, [address])
    return memory.read("x", held.dtype)


@pytest.mark.parametrize(
    ("instruction", "dtype"),
    [
        ("atom.global.gpu.relaxed.add.v2.f32 {%r4, %r5}, [%d0], {%r0, %r1};", "f4"),
        ("red.global.gpu.relaxed.add.v2.f32 [%d0], {%r0, %r1};", "f4"),
        ("atom.global.gpu.relaxed.add.noftz.f16x2 %r4, [%d0], %r2;", "f2"),
        ("atom.global.gpu.relaxed.add.noftz.v2.f16x2 {%r4, %r5}, [%d0], {%r2, %r2};", "f2"),
    ],
    ids=["two floats", "without the old values", "a pair of halves", "two pairs"],
)
def test_atomic_operations_on_neighbours(instruction: str, dtype: str) -> None:
    held = np.zeros(4, dtype)
    held[:2] = 1, 2
    got = _atomic_at(instruction, held)
    again = [528, 264] if ".v2.f16x2" in instruction else [0, 0]
    np.testing.assert_array_equal(got, [529, 266, *again])


ATOMICS: dict[str, Callable[[int, int], int]] = {
    "add.u32": lambda old, b: (old + b) % 2**32,
    "inc.u32": lambda old, b: 0 if old >= b else old + 1,
    "dec.u32": lambda old, b: b if old == 0 or old > b else old - 1,
    "exch.b32": lambda old, b: b,
    "and.b32": lambda old, b: old & b, "or.b32": lambda old, b: old | b, "xor.b32": lambda old, b: old ^ b,
    "min.u32": min, "max.u32": max,
    "min.s32": lambda old, b: min(old, b, key=lambda v: v - (v >> 31 << 32)),
    "max.s32": lambda old, b: max(old, b, key=lambda v: v - (v >> 31 << 32)),
    "cas.b32": lambda old, b: b ^ 1 if old == b else old,
}  # fmt: skip


@pytest.mark.parametrize("name", ATOMICS)
def test_an_atomic_operation_of_integers(name: str) -> None:
    """As the PTX manual defines it, each thread on a word of its own; what was there before is what it returns."""
    pairs = list(itertools.product((0, 1, 2, 7, 2**31, 2**32 - 1), repeat=2))
    for some in (pairs[:32], pairs[-32:]):
        old, b = (np.array(side, "u4") for side in zip(*some, strict=True))
        memory = Memory()
        addresses = [memory.place("held", old.copy()), memory.place("b", b), memory.place("d", b.copy())]
        at = "ld.param.b64 %d{i}, [k_{i}]; mad.lo.s64 %d{i}, %at, 4, %d{i};"
        new = "xor.b32 %r1, %r0, 1;" if name.startswith("cas") else ""
        terms = "%r0, %r1" if name.startswith("cas") else "%r0"
        body = f"""{"".join(at.format(i=i) for i in range(3))} ld.global.b32 %r0, [%d1]; {new}
atom.global.gpu.relaxed.{name} %r2, [%d0], {terms}; st.global.b32 [%d2], %r2;"""
        execute(module(body, 3), memory, addresses)
        same(memory.read("d", "u4"), old)
        same(memory.read("held", "u4"), np.array([ATOMICS[name](int(x), int(y)) for x, y in some], "u4"))


def test_an_atomic_pair_of_bfloat16() -> None:
    got = _atomic_at("atom.global.gpu.relaxed.add.noftz.bf16x2 %r4, [%d0], %r3;", np.zeros(2, "u2"))
    # Every partial sum below 256 is exact; beyond, each addition rounds to 8 bits.
    total = torch.zeros(2, dtype=torch.bfloat16)
    for i in range(1, 33):
        total += torch.tensor([i, i / 2], dtype=torch.bfloat16)
    np.testing.assert_array_equal(got, total.view(torch.int16).numpy().view("u2"))


def test_memory_without_bounds_keeps_what_is_written() -> None:
    memory = Memory()
    address = memory.place_open("x")
    body = """ld.param.b64 %d0, [k_0]; mad.lo.s64 %d1, %at, 1000000, %d0; st.global.b32 [%d1], %tid_;
ld.global.b32 %r0, [%d1]; sub.s32 %r0, %r0, %tid_; setp.ne.s32 %t0, %r0, 0; @%t0 st.global.b8 [%d1+3], %h0;"""
    outcome = execute(module(body, 1), memory, [address])
    assert not memory.faults
    assert not outcome.accesses[-1].active.any() or outcome.accesses[-1].kind == "load"


def test_copies_arrive_when_they_are_waited_for() -> None:
    memory = Memory()
    source, target = memory.place("x", np.arange(128, dtype="u4")), memory.place("y", np.zeros(64, "u4"))
    body = """ld.param.b64 %d0, [k_0]; ld.param.b64 %d1, [k_1];
mad.lo.s64 %d2, %at, 16, %d0; mad.lo.s64 %d3, %at, 4, %d1; mov.b32 %r0, room; mad.lo.s32 %r1, %tid_, 16, %r0;
cp.async.cg.shared.global [%r1+0], [%d2+0], 0x10; cp.async.commit_group;
ld.shared.b32 %r2, [%r1]; cp.async.wait_group 0x0; bar.sync 0; ld.shared.b32 %r3, [%r1+4];
st.global.b32 [%d3], %r2; st.global.b32 [%d3+128], %r3;"""
    execute(module(body, 2), memory, [source, target])
    got = memory.read("y", "u4")
    assert (got[:32] == 0xA5A5A5A5).all(), "before the wait shared memory holds what it held"
    np.testing.assert_array_equal(got[32:], np.arange(32) * 4 + 1)


def test_parts_of_an_argument_are_read_side_by_side() -> None:
    """A vector of words of one argument of 32 bytes, from its offset on."""
    body = "ld.param.v4.b32 {%r0, %r1, %r2, %r3}, [k_0+8]; ld.param.b64 %d8, [k_1]; "
    body += "st.global.v4.b32 [%d8], {%r0, %r1, %r2, %r3};"
    text = module(body, 2).replace(".param .u64 k_0", ".param .align 16 .b8 k_0[32]")
    memory, given = Memory(), np.arange(8, dtype="u4") + 7
    at = memory.place("y", np.zeros(4, "u4"))
    run(load(parse(text)), memory, {"k_0": given.tobytes(), "k_1": at})
    np.testing.assert_array_equal(memory.read("y", "u4"), given[2:6])
