"""Faults planted in norms in eight bits."""

from __future__ import annotations

from mutants.mutant import Mutant

FILE = "tests/functional/test_quantized.py"
DRAWN = f"{FILE}::test_calls_are_their_definition"
CORNERS = f"{FILE}::test_zeros_any_magnitude_nan_and_infinity"

QUANTIZED = (
    Mutant(
        "the largest magnitude is taken without the weight",
        "algebra/powers.py",
        "return abs(x * weight[0] if weighted else x * 1.0)",
        "return abs(x * 1.0)",
        (DRAWN,),
    ),
    Mutant(
        "whole numbers are cut, not rounded",
        "functional/quantized.py",
        "made = (made + _WHOLE) - _WHOLE",
        "made = made * 1.0",
        (DRAWN,),
    ),
    Mutant(
        "scales of groups are in units of their own row's elements",
        "functional/quantized.py",
        "return _scale(largest, (unit * factor) * root, most)",
        "return _scale(largest, factor * root, most)",
        (DRAWN, f"{CORNERS}[2-cpu]"),
    ),
    Mutant(
        "elements of products out of range are not folded in units",
        "algebra/powers.py",
        "held = ((largest >= LEAST_PRODUCT) & (largest < INFINITY)) | (largest == 0)",
        "held = largest >= 0",
        (f"{CORNERS}[None-cpu]",),
    ),
    Mutant(
        "zeros have the scale 0",
        "functional/quantized.py",
        "math.where(largest == 0.0, 1.0, largest * root / most)",
        "largest * root / most",
        (f"{CORNERS}[None-cpu]", f"{FILE}::test_a_row_of_zero_weights_is_zero"),
    ),
)
