"""Types change, bits do not: a half is never printed as a number, a sign never by chance."""

from __future__ import annotations

import struct

import pytest

from tilefold.xray.cuda.readable.blocks import UnreadableError
from tilefold.xray.cuda.readable.text import PRIMARY, SUM, Text, literal


@pytest.mark.parametrize(
    ("of", "to", "written"),
    [
        ("int", "unsigned", "(unsigned)x"),
        ("unsigned", "float", "__uint_as_float(x)"),
        ("float", "int", "__float_as_int(x)"),
        ("__half", "unsigned short", "__half_as_ushort(x)"),
        ("unsigned short", "__half", "__ushort_as_half(x)"),
        ("__nv_bfloat16", "__half", "__ushort_as_half(__bfloat16_as_ushort(x))"),
        ("double", "long long", "__double_as_longlong(x)"),
        ("unsigned long long", "double", "__longlong_as_double((long long)x)"),
        ("int", "long long", "(long long)x"),
    ],
)
def test_the_same_bits(of: str, to: str, written: str) -> None:
    assert Text("x", PRIMARY, of).to(to).text == written


@pytest.mark.parametrize(
    ("of", "to"), [("bool", "int"), ("float", "long long"), ("float*", "int"), ("unsigned short", "int")]
)
def test_no_word_for_it(of: str, to: str) -> None:
    with pytest.raises(UnreadableError, match="must be seen as"):
        Text("x", PRIMARY, of).to(to)


def test_parentheses() -> None:
    assert Text("a + b", SUM, "int").to("unsigned").text == "(unsigned)(a + b)"
    assert Text("a + b", SUM, "int").at(SUM) == "a + b"


@pytest.mark.parametrize("value", [0.0, -0.0, 1.5, 0.1, 1e-40, 3.4e38, -16777216.0, 1.4426950216293335])
def test_real_literals(value: float) -> None:
    (bits,) = struct.unpack("<I", struct.pack("<f", value))
    text = literal(bits, 32, "float").text
    assert text.endswith("f")
    assert struct.pack("<f", float(text[:-1])) == struct.pack("<I", bits)


def test_literals_that_are_no_numbers() -> None:
    assert literal(0x7F800000, 32, "float").text == "INFINITY"
    assert literal(0xFF800000, 32, "float").text == "-INFINITY"
    assert literal(0x7FC00001, 32, "float").text == "__uint_as_float(0x7fc00001u)"
    assert literal(0x80000000, 32, "int").text == "(int)0x80000000u"  # which no literal of a signed type is
    assert literal(0xFFFFFFFF, 32, None).text == "-1"
    assert literal(0x3C00, 16, "__half").text == "__ushort_as_half(0x3c00)"
