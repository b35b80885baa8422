"""The interpreter beside the chip it stands for: the same arguments, the same kernel, byte by byte."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from xray import language_kernels, tensor_kernels
from xray.running import launch
from xray.test_cuda import F32, F64, I8, I32, I64, SMALL, random, through

pytestmark = pytest.mark.gpu

# The chip approximates here and documents a bound only; ulps of float32 that the whole kernel may differ by.
APPROXIMATE = {"softmax": 16, "logarithm": 4}
MORE: dict[str, tuple[Any, Any, dict[str, Any]]] = {
    **{f"{n} of float32": (language_kernels.unary, through(F32, 256), {"OP": n, "BLOCK": 256})
       for n in ("floor", "round", "clamp", "maximum", "positive", "descending", "reversed", "int64", "fp8", "div")},
    **{f"{n} of {d}": (language_kernels.unary, through(d, 256), {"OP": n, "BLOCK": 256})
       for n in ("clamp", "maximum", "positive", "descending") for d in (torch.float16, torch.bfloat16)},
    **{f"{n} of float64": (language_kernels.unary, through(F64, 256), {"OP": n, "BLOCK": 256})
       for n in ("cos", "tanh", "expm1")},
    **{f"{n} of {d}": (language_kernels.binary,
                       lambda d=d: {"x_ptr": random(256, dtype=d), "y_ptr": random(256, dtype=d) | 1,
                                    "z_ptr": torch.zeros(256, dtype=d)}, {"OP": n, "BLOCK": 256})
       for n in ("div", "mod", "shl", "shr", "mul", "max", "xor", "cummax", "split", "half") for d in (I8, I32, I64)},
    "random numbers": (language_kernels.randoms, lambda: {"y_ptr": torch.zeros(1024), "seed": 7}, {"BLOCK": 1024}),
    "tile histogram": (language_kernels.counts, lambda: {"x_ptr": random(512, dtype=I32) & 15,
                                                         "h_ptr": torch.zeros(16, dtype=I32)}, {"BLOCK": 512}),
}  # fmt: skip
ALL = SMALL | MORE


def beside(function: Any, make: Any, options: dict[str, Any]) -> list[tuple[str, torch.Tensor, torch.Tensor]]:
    """Every tensor as the interpreter leaves it, and as the GPU does."""
    major, minor = torch.cuda.get_device_capability()
    if 10 * major + minor not in (80, 90):
        pytest.skip("the interpreter stands for sm_80 and sm_90")
    here, there = make(), {n: v.cuda() if isinstance(v, torch.Tensor) else v for n, v in make().items()}
    launch(function, here, architecture=10 * major + minor, **options)
    constants = {n: v for n, v in options.items() if n not in ("grid", "warps", "stages")}
    function[options.get("grid", (1, 1, 1))](
        **there, **constants, num_warps=options.get("warps", 4), num_stages=options.get("stages", 3)
    )
    return [(n, v, there[n].cpu()) for n, v in here.items() if isinstance(v, torch.Tensor)]


@pytest.mark.parametrize("name", list(ALL))
def test_the_same_bits(name: str) -> None:
    for which, ours, chips in beside(*ALL[name]):
        if name in APPROXIMATE:
            torch.testing.assert_close(ours, chips, rtol=APPROXIMATE[name] * 2.0**-23, atol=0, equal_nan=True)
        else:
            assert torch.equal(ours.view(torch.uint8), chips.view(torch.uint8)), which


@pytest.mark.parametrize("layout", ["nn", "nt"])
@pytest.mark.parametrize(
    "dtype", [torch.float16, torch.bfloat16, F32, I8, torch.float8_e5m2, torch.float8_e4m3fn, F64], ids=str
)
def test_products_within_the_bound_of_their_sum(dtype: torch.dtype, layout: str) -> None:
    result = {I8: I32, F64: F64}.get(dtype, F32)
    size, k = (32 if dtype == F64 else 64), 96

    def make() -> dict[str, Any]:
        a, b = random(size, k, dtype=dtype), random(k, size, dtype=dtype)
        steps = {"step_am": k, "step_ak": 1}
        steps |= {"step_bk": size, "step_bn": 1} if layout == "nn" else {"step_bk": 1, "step_bn": k}
        return {"a_ptr": a, "b_ptr": b, "c_ptr": torch.zeros(size, size, dtype=result), "K": k} | steps

    constants = {"M": size, "N": size, "BLOCK_K": 32, "PRECISION": "tf32", "STAGES": 3}
    found = {n: (ours, chips) for n, ours, chips in beside(tensor_kernels.product, make, constants)}
    ours, chips = found["c_ptr"]
    a, b = (found[n][0].double() for n in ("a_ptr", "b_ptr"))
    b = b if layout == "nn" else b.reshape(size, k).t()
    # fp8 on sm_90 keeps about 14 bits of a sum; elsewhere float32, or exactly as many as there are.
    unit = {I8: 0.0, F64: 2.0**-52}.get(dtype, 2.0**-13 if dtype.itemsize == 1 else 2.0**-23)
    assert ((ours.double() - chips.double()).abs() <= 2 * k * unit * (a.abs() @ b.abs())).all()
