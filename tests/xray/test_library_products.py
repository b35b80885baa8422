"""The library's products, executed from their PTX: whole and split, on tensor cores and off them."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from tilefold.contract.epilogue import Epilogue, accumulator_dtype, make_epilogue
from tilefold.contract.plan import ContractPlan, Finish, Tile
from xray.running import product

ARCHITECTURES = pytest.mark.parametrize("architecture", [80, 90])
PLANS = {
    "whole": ContractPlan("triton", "whole", Tile(16, 16, 32, 1, 2)),
    "split": ContractPlan("triton", "split", Tile(16, 32, 32, 1, 2), 3, Finish(32, 2, 1)),
    "four warps": ContractPlan("triton", "whole", Tile(64, 64, 32, 4, 3)),
    "overlapping": ContractPlan(
        "triton", "split", Tile(64, 32, 64, 4, 3), 2, Finish(128, 1, 1), overlap=True
    ),
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
     *(("split", d) for d in (torch.float16, torch.float32, torch.float64, torch.int8)),
     ("four warps", torch.float8_e5m2), ("four warps", torch.float32)],
    ids=str,
)  # fmt: skip
def test_dtypes(plan: str, dtype: torch.dtype, architecture: int) -> None:
    a, b = filled(19, 150, dtype=dtype), filled(150, 40, dtype=dtype, seed=1)
    chosen = replace(PLANS[plan], overlap=PLANS[plan].overlap and architecture >= 90)
    got = product(chosen, a, b, [], plain(dtype), architecture)
    exact, size = a.double() @ b.double(), a.double().abs() @ b.double().abs()
    unit = {torch.float64: 2.0**-52, torch.int8: 0.0}.get(dtype, 2.0**-23)
    stored = torch.finfo(got.dtype).eps if got.dtype.is_floating_point else 0.0
    assert ((got.double() - exact).abs() <= 150 * unit * size + stored * exact.abs()).all()


@ARCHITECTURES
@pytest.mark.parametrize("precision", ["tf32", "ieee"])
def test_precisions_of_float32(precision: str, architecture: int) -> None:
    a, b = filled(30, 100), filled(100, 20, seed=1)
    plan = ContractPlan("triton", "whole", Tile(32, 32, 32, 4, 2), precision=precision)
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
