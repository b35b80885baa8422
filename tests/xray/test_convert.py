"""Conversions of the machine by their own arithmetic."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

from tilefold.errors import UnknownInstructionError
from tilefold.xray.machine import convert
from xray.snippets import apply


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


@pytest.mark.parametrize(("name", "dtype"), [("e4m3x2", torch.float8_e4m3fn), ("e5m2x2", torch.float8_e5m2)])
def test_pairs_of_eight_bits(name: str, dtype: torch.dtype) -> None:
    """Of two floats the first is the upper; of a pair of halves and back each keeps its place."""
    rng = np.random.default_rng(3)
    low, high = (rng.standard_normal(32).astype(np.float32) * 4 for _ in range(2))

    def encoded(values: np.ndarray) -> np.ndarray:
        return torch.from_numpy(values.copy()).to(dtype).view(torch.uint8).numpy().astype("u2")

    got = apply(f"cvt.rn.satfinite.{name}.f32 {{d}}, {{a}}, {{b}};", high, low, result="u2")
    assert np.array_equal(got, encoded(low) | encoded(high) << 8)
    halves = np.stack([low, high], 1).astype(np.float16)
    pairs = apply(f"cvt.rn.satfinite.{name}.f16x2 {{d}}, {{a}};", halves.view("u4")[:, 0], result="u2")
    assert np.array_equal(pairs, encoded(halves[:, 0]) | encoded(halves[:, 1]) << 8)
    back = apply(f"cvt.rn.f16x2.{name} {{d}}, {{a}};", pairs, result="u4").view("f2").reshape(-1, 2)
    want = torch.from_numpy(pairs.view("u1").copy()).view(dtype).to(torch.float16).numpy().reshape(-1, 2)
    assert np.array_equal(back, want)


@pytest.mark.parametrize(
    "instruction",
    [
        "cvt.rn.satfinite.relu.e4m3x2.f32 {d}, {a}, {b};", "add.relu.f32 {d}, {a}, {b};", "mul.oob.f32 {d}, {a}, {b};",
        "cvt.rn.satfinite.e4m3x2.bf16x2 {d}, {a};", "cvt.rn.f16x2.f32x2 {d}, {a};",
    ],
)  # fmt: skip
def test_what_the_machine_does_not_know_is_refused(instruction: str) -> None:
    """Rather than executed as something near it."""
    values = np.ones(32, "f4")
    with pytest.raises(UnknownInstructionError):
        apply(instruction, values, values, result="u4")


@pytest.mark.parametrize(
    "instruction",
    [
        "fma.rz.f64 {d}, {a}, {b}, {c};", "fma.rp.f64 {d}, {a}, {b}, {c};", "max.abs.f64 {d}, {a}, {b};",
        "max.xorsign.f64 {d}, {a}, {b};",
    ],
)  # fmt: skip
def test_float64_in_a_way_that_the_machine_does_not_know_is_refused(instruction: str) -> None:
    values = np.ones(32, "f8")
    with pytest.raises(UnknownInstructionError):
        apply(instruction, values, values, values, result="f8")
