"""What operations of TTIR give for one element, and what constants are."""

from __future__ import annotations

import math
from typing import Any

import pytest

from tilefold.xray.ir.reader import read
from tilefold.xray.observe.values import UnknownError, apply, literal

NAN = math.nan


def operation(text: str) -> Any:
    """The operation of a row."""
    function = read(
        f"module {{\n  tt.func public @k(%a: f32, %b: f32, %c: i1) {{\n    {text}\n    tt.return\n  }}\n}}\n"
    )
    return function.body[0]


@pytest.mark.parametrize(
    ("text", "values", "want"),
    [
        ("%x = arith.subf %a, %b : f32", [5.0, 3.0], 2.0),
        ("%x = arith.negf %a : f32", [5.0], -5.0),
        ("%x = arith.divsi %a, %b : i32", [-7, 2], -3),
        ("%x = arith.remsi %a, %b : i32", [-7, 2], -1),
        ("%x = arith.shli %a, %b : i32", [3, 2], 12),
        ("%x = arith.select %c, %a, %b : f32", [True, 5.0, 3.0], 5.0),
        ("%x = arith.select %c, %a, %b : f32", [False, 5.0, 3.0], 3.0),
        ("%x = arith.cmpf olt, %a, %b : f32", [5.0, 3.0], False),
        ("%x = arith.cmpf ogt, %a, %b : f32", [5.0, 3.0], True),
        ("%x = arith.cmpi sle, %a, %b : i32", [3, 3], True),
        ("%x = arith.cmpi ne, %a, %b : i32", [3, 3], False),
        ("%x = arith.cmpf uno, %a, %b : f32", [NAN, 3.0], True),
        ("%x = arith.cmpf uno, %a, %b : f32", [5.0, NAN], True),
        ("%x = arith.cmpf uno, %a, %b : f32", [5.0, 3.0], False),
        ("%x = arith.cmpf ord, %a, %b : f32", [5.0, NAN], False),
        ("%x = arith.cmpf ord, %a, %b : f32", [5.0, 3.0], True),
    ],
    ids=lambda value: value.split(" : ")[0][5:] if isinstance(value, str) else None,
)  # fmt: skip
def test_an_elementwise_operation(text: str, values: list[Any], want: Any) -> None:
    assert apply(operation(text), values) == want


def test_an_operation_that_is_not_known() -> None:
    with pytest.raises(UnknownError):
        apply(operation("%x = arith.unheard %a, %b : f32"), [1.0, 2.0])


@pytest.mark.parametrize(
    ("text", "want"),
    [
        ("-7 : i32", -7), ("1.500000e+00 : f32", 1.5), ("true", True), ("false", False), ("0x7F800000 : f32", math.inf),
        ("0xFC00 : f16", -math.inf), ("0xFF80 : bf16", -math.inf), ("dense<3> : tensor<4xi32>", 3),
    ],
)  # fmt: skip
def test_constants(text: str, want: Any) -> None:
    assert literal(operation(f"%x = arith.constant {text}")) == want
