"""Conversions of the machine by their own arithmetic."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from tilefold.xray.machine import convert


@pytest.mark.parametrize("mode", ["rn", "rna"])
def test_tf32_has_ten_bits_behind_the_point(mode: str) -> None:
    """Ties to even, or away from zero; infinities stay, every NaN is one."""
    binder: Any = SimpleNamespace(pure=lambda instruction, function, *types: function)
    function = convert._to_tf32(binder, SimpleNamespace(modifiers=(mode, "tf32", "f32")))  # type: ignore[arg-type]  # enough of one
    ties = np.arange(0x3F800000, 0x3F800000 + (9 << 12), 1 << 12, dtype=np.uint32).view(np.float32)
    x = np.concatenate(
        [ties, ties * np.float32(3.7e20), np.random.default_rng(1).standard_normal(500).astype(np.float32)]
    )
    x = np.concatenate([x, -x, np.array([0.0, np.inf, -np.inf], np.float32)])
    got = function(x.view(np.uint32)).view(np.float32)
    part, power = np.frexp(x.astype(np.float64))
    scaled = part * 2**11
    with np.errstate(invalid="ignore"):
        near = np.rint(scaled) if mode == "rn" else np.sign(scaled) * np.floor(np.abs(scaled) + 0.5)
        want = np.where(np.isfinite(x), np.ldexp(near, power - 11), x)
    assert np.array_equal(got, want.astype(np.float32))
    assert function(np.array([0x7F800001, 0xFFC00000], np.uint32)).tolist() == [0x7FFFFFFF] * 2
