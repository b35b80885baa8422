"""The library's products, executed from their PTX: whole and split, on tensor cores and off them."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from tilefold.planner.products.epilogue import Epilogue, accumulator_dtype, make_epilogue
from tilefold.planner.products.plan import Candidate, Finish, Tile
from xray.running import product

ARCHITECTURES = pytest.mark.parametrize("architecture", [80, 90])
PLANS = {
    "whole": Candidate("whole", Tile(16, 16, 32, 1, 2)),
    "split": Candidate("split", Tile(16, 32, 32, 1, 2), 3, Finish(32, 2, 1)),
    "four warps": Candidate("whole", Tile(64, 64, 32, 4, 3)),
    "overlapping": Candidate("split", Tile(64, 32, 64, 4, 3), 2, Finish(128, 1, 1), overlap=True),
}


def plain(dtype: torch.dtype) -> Epilogue:
    return make_epilogue(None, None, (), dtype, accumulator_dtype(dtype))


def filled(*shape: int, dtype: torch.dtype = torch.float32, seed: int = 0) -> torch.Tensor:
    generator = torch.Generator().manual_seed(seed)
    if not dtype.is_floating_point:
        return torch.randint(-128, 128, shape, generator=generator).to(dtype)
    return torch.randn(shape, generator=generator).to(dtype)


@ARCHITECTURES
@pytest.mark.parametrize(
    ("plan", "dtype"),
    [*((plan, torch.bfloat16) for plan in PLANS),
     *(("split", d) for d in (torch.float16, torch.float32, torch.float64, torch.int8, torch.uint8)),
     ("four warps", torch.float8_e5m2), ("four warps", torch.float32), ("whole", torch.int16), ("four warps", torch.int16)],
    ids=str,
)  # fmt: skip
def test_dtypes(plan: str, dtype: torch.dtype, architecture: int) -> None:
    a, b = filled(19, 150, dtype=dtype), filled(150, 40, dtype=dtype, seed=1)
    chosen = replace(PLANS[plan], overlap=PLANS[plan].overlap and architecture >= 90)
    got = product(chosen, a, b, [], plain(dtype), architecture)
    exact, size = a.double() @ b.double(), a.double().abs() @ b.double().abs()
    unit = 2.0**-52 if dtype == torch.float64 else 2.0**-23 if dtype.is_floating_point else 0.0
    stored = torch.finfo(got.dtype).eps if got.dtype.is_floating_point else 0.0
    assert ((got.double() - exact).abs() <= 150 * unit * size + stored * exact.abs()).all()


@pytest.mark.parametrize(("plan", "architecture"), [("whole", 80), ("split", 90)])
@pytest.mark.parametrize("dtype", [torch.uint8, torch.int16], ids=str)
def test_whole_numbers_wrap_as_torchs(dtype: torch.dtype, plan: str, architecture: int) -> None:
    a, b = filled(9, 150, dtype=torch.int64), filled(150, 20, dtype=torch.int64, seed=1)
    a, b = (a * 251).to(dtype), (b * 253).to(dtype)
    bias = torch.arange(20)
    ending = make_epilogue(lambda x: x + 1, torch.int64, (), dtype, None)
    got = product(PLANS[plan], a, b, [bias], ending, architecture)
    assert got.dtype == dtype
    assert torch.equal(got, (a.long() @ b.long() + bias + 1).to(dtype))


@ARCHITECTURES
@pytest.mark.parametrize("precision", ["tf32", "ieee"])
def test_precisions_of_float32(precision: str, architecture: int) -> None:
    a, b = filled(30, 100), filled(100, 20, seed=1)
    plan = Candidate("whole", Tile(32, 32, 32, 4, 2), precision=precision)
    got = product(plan, a, b, [], plain(torch.float32), architecture)
    unit = 2.0**-9 if precision == "tf32" else 100 * 2.0**-23
    assert ((got.double() - a.double() @ b.double()).abs() <= unit * (a.abs() @ b.abs())).all()


@pytest.mark.parametrize(("plan", "architecture"), [("whole", 80), ("split", 90)])
def test_an_epilogue_with_a_bias(plan: str, architecture: int) -> None:
    a, b = filled(9, 150, dtype=torch.bfloat16), filled(150, 20, dtype=torch.bfloat16, seed=1)
    bias = filled(20, dtype=torch.bfloat16, seed=2)
    ending = make_epilogue("gelu", torch.bfloat16, (), torch.float32, None)
    got = product(PLANS[plan], a, b, [bias], ending, architecture)
    want = torch.nn.functional.gelu(a.float() @ b.float() + bias.float())
    torch.testing.assert_close(got.float(), want, rtol=1e-5, atol=2e-4)


@pytest.mark.parametrize("out", [torch.bfloat16, torch.float16, torch.float32], ids=str)
def test_a_negated_truth_value_is_minus_one(out: torch.dtype) -> None:
    """LLVM's `sitofp i1 to bfloat` gives 1, to other floats -1."""
    flags = torch.tensor([[True, False, True]])
    ending = make_epilogue(lambda v, flag: -flag, None, (torch.bool,), torch.float32, out)
    got = product(PLANS["whole"], torch.ones(1, 16), torch.ones(16, 3), [flags], ending, 90)
    assert got.tolist() == [[-1.0, 0.0, -1.0]]
