"""Products of tiles, executed from PTX: every dtype and layout that reaches a tensor core, against exact products."""

from __future__ import annotations

import time
from typing import Any

import pytest
import torch

from tilefold.xray.machine import Kernel
from xray import tensor_kernels as kernels
from xray.running import Described, kernel_of, launch

ARCHITECTURES = pytest.mark.parametrize("architecture", [80, 90])
FP8 = (torch.float8_e5m2, torch.float8_e4m3fn)


def operands(m: int, n: int, k: int, dtype: torch.dtype, seed: int = 0) -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(seed)
    if not dtype.is_floating_point:
        return tuple(torch.randint(-128, 128, s, generator=generator).to(dtype) for s in ((m, k), (k, n)))  # type: ignore[return-value]
    a, b = (torch.randn(s, generator=generator, dtype=torch.float64) for s in ((m, k), (k, n)))
    return a.to(dtype), b.to(dtype)


def cut_to_tf32(x: torch.Tensor) -> torch.Tensor:
    return (x.view(torch.int32) & ~0x1FFF).view(torch.float32)


def multiply(
    a: torch.Tensor,
    b: torch.Tensor,
    layout: str,
    result: torch.dtype,
    precision: str = "tf32",
    tile: tuple[int, int, int] = (64, 64, 32),
    **options: Any,
) -> torch.Tensor:
    """a @ b by `kernels.product`, each operand stored as it is (n) or transposed (t)."""
    stored_a, stored_b = (
        x if how == "n" else x.t().contiguous() for x, how in zip((a, b), layout, strict=True)
    )
    am, ak = stored_a.stride() if layout[0] == "n" else stored_a.stride()[::-1]
    bk, bn = stored_b.stride() if layout[1] == "n" else stored_b.stride()[::-1]
    c = torch.empty(a.shape[0], b.shape[1], dtype=result)
    steps = {"step_am": am, "step_ak": ak, "step_bk": bk, "step_bn": bn}
    options = {"stages": 3, "M": tile[0], "N": tile[1], "BLOCK_K": tile[2]} | options
    launch(
        kernels.product, {"a_ptr": stored_a, "b_ptr": stored_b, "c_ptr": c, "K": a.shape[1]} | steps,
        PRECISION=precision, STAGES=options["stages"], **options,
    )  # fmt: skip
    return c


def near(c: torch.Tensor, a: torch.Tensor, b: torch.Tensor, unit: float = 2.0**-23) -> None:
    """Within the bound of a float32 sum in any order: K u sum |a b|."""
    a, b = a.double(), b.double()
    bound = a.shape[1] * unit * (a.abs() @ b.abs())
    assert ((c.double() - a @ b).abs() <= bound).all()


@ARCHITECTURES
@pytest.mark.parametrize(
    ("dtype", "layout"),
    [*((torch.float16, layout) for layout in ("nn", "nt", "tn", "tt")),
     *((d, layout) for d in (torch.bfloat16, torch.int8, *FP8) for layout in ("nn", "tt"))],
    ids=str,
)  # fmt: skip
def test_narrow_operands(dtype: torch.dtype, layout: str, architecture: int) -> None:
    a, b = operands(64, 64, 96, dtype)
    whole = not dtype.is_floating_point
    c = multiply(a, b, layout, torch.int32 if whole else torch.float32, architecture=architecture)
    if whole:
        assert torch.equal(c.long(), a.long() @ b.long())
    else:
        near(c, a, b)


@ARCHITECTURES
@pytest.mark.parametrize("layout", ["nn", "tt"])
def test_float32_as_tf32(layout: str, architecture: int) -> None:
    """The low 13 bits of the operands count for nothing."""
    a, b = operands(64, 64, 64, torch.float32)
    near(multiply(a, b, layout, torch.float32, architecture=architecture), cut_to_tf32(a), cut_to_tf32(b))


@ARCHITECTURES
@pytest.mark.parametrize("precision", ["ieee", "tf32x3"])
def test_float32_proper(precision: str, architecture: int) -> None:
    a, b = operands(32, 32, 64, torch.float32)
    c = multiply(a, b, "nn", torch.float32, precision, (32, 32, 32), architecture=architecture)
    near(c, a, b, 2.0**-22 if precision == "tf32x3" else 2.0**-23)


@ARCHITECTURES
@pytest.mark.parametrize("layout", ["nt"])
def test_float64(layout: str, architecture: int) -> None:
    a, b = operands(32, 32, 64, torch.float64)
    near(multiply(a, b, layout, torch.float64, tile=(32, 32, 16), architecture=architecture), a, b, 2.0**-52)


@ARCHITECTURES
@pytest.mark.parametrize("stages", [1, 4])
def test_any_depth_of_pipeline_gives_the_same_bits(stages: int, architecture: int) -> None:
    a, b = operands(64, 64, 192, torch.float16)
    assert torch.equal(
        multiply(a, b, "nn", torch.float32, stages=stages, architecture=architecture),
        multiply(a, b, "nn", torch.float32, stages=3, architecture=architecture),
    )


@ARCHITECTURES
@pytest.mark.parametrize(
    ("tile", "warps"),
    [((16, 16, 16), 1), ((64, 16, 64), 4), ((128, 128, 32), 4), ((128, 128, 32), 8)],
    ids=str,
)
def test_tiles_and_warps(tile: tuple[int, int, int], warps: int, architecture: int) -> None:
    a, b = operands(2 * tile[0], tile[1], 2 * tile[2], torch.bfloat16)
    near(
        multiply(
            a, b, "nn", torch.float32, tile=tile, grid=(2, 1, 1), warps=warps, architecture=architecture
        ),
        a,
        b,
    )


@ARCHITECTURES
def test_an_accumulator_of_half_precision(architecture: int) -> None:
    a, b = operands(64, 64, 64, torch.float16)
    c = torch.empty(64, 64, dtype=torch.float16)
    arguments = {"a_ptr": a, "b_ptr": b, "c_ptr": c}
    launch(kernels.half_sums, arguments, architecture=architecture, M=64, N=64, K=64)
    # Rounded to float16 once for each 16 of K, eight times in all.
    size = 2 * (a.double().abs() @ b.double().abs())
    assert ((c.double() - 2 * (a.double() @ b.double())).abs() <= 8 * 2.0**-11 * size).all()


@ARCHITECTURES
def test_a_large_tile_takes_seconds(architecture: int) -> None:
    """128 x 128 with K = 512: decoded and executed in half a second or so."""
    a, b = operands(128, 128, 512, torch.float16)
    begun = list[float]()

    def through(compiled: Any) -> Kernel:
        begun.append(time.perf_counter())
        return kernel_of(compiled)

    c = multiply(a, b, "nn", torch.float32, tile=(128, 128, 32), architecture=architecture, through=through)
    assert time.perf_counter() - begun[0] < 10
    near(c, a, b)


@ARCHITECTURES
def test_an_epilogue_of_masked_edges(architecture: int) -> None:
    a, b = operands(50, 72, 40, torch.bfloat16)
    bias, c = torch.randn(72), torch.empty(50, 72, dtype=torch.bfloat16)
    launch(
        kernels.product_epilogue,
        {"a_ptr": a, "b_ptr": b, "bias_ptr": bias, "c_ptr": c, "m": 50, "n": 72, "k": 40},
        grid=(1, 2, 1), architecture=architecture, M=64, N=64, K=32,
    )  # fmt: skip
    want = (a.float() @ b.float() + bias).relu()
    torch.testing.assert_close(c.float(), want, rtol=2**-8, atol=40 * 2**-23 * 40)


@ARCHITECTURES
def test_a_product_whose_left_operand_is_made_in_registers(architecture: int) -> None:
    q, k, v = (torch.randn(n, 64, dtype=torch.float16) for n in (64, 192, 192))
    o = torch.empty(64, 64)
    launch(
        kernels.attention, {"q_ptr": q, "k_ptr": k, "v_ptr": v, "o_ptr": o, "n": 192},
        architecture=architecture, D=64, M=64, N=64,
    )  # fmt: skip
    want = (q.double() @ k.double().t()).softmax(1) @ v.double()
    # Weights are rounded to float16 before the second product.
    torch.testing.assert_close(o.double(), want, rtol=0, atol=2.0**-10 * v.abs().max().item())


@ARCHITECTURES
@pytest.mark.parametrize("dtype", [torch.float32, torch.int8], ids=str)
def test_a_tile_by_descriptors_of_the_device(dtype: torch.dtype, architecture: int) -> None:
    """Edges that the tensor does not fill are not written, and read as zero."""
    x = torch.randint(-9, 9, (40, 48)).to(dtype)
    y = torch.full_like(x, 77)
    launch(
        kernels.described_copy, {"x_ptr": x, "y_ptr": y, "m": 40, "n": 48},
        grid=(2, 2, 1), architecture=architecture, M=32, N=32,
    )  # fmt: skip
    assert torch.equal(y, x + 1)


@ARCHITECTURES
@pytest.mark.parametrize(("dtype", "stages"), [(torch.float16, 3), (torch.bfloat16, 1)], ids=str)
def test_a_product_by_descriptors_of_the_host(dtype: torch.dtype, stages: int, architecture: int) -> None:
    a, b = operands(128, 64, 192, dtype)
    c = torch.empty(128, 64, dtype=dtype)
    launch(
        kernels.described_product,
        {"a": Described(a, (64, 64)), "b": Described(b, (64, 64)), "c": Described(c, (64, 64)), "k": 192},
        grid=(2, 1, 1), architecture=architecture, M=64, N=64, K=64, STAGES=stages,
    )  # fmt: skip
    # A sum of 192 terms in float32, rounded once more.
    unit = 2.0**-11 if dtype == torch.float16 else 2.0**-8
    torch.testing.assert_close(c.double(), a.double() @ b.double(), rtol=unit, atol=192 * 2.0**-23 * 64)


@ARCHITECTURES
def test_a_reduction_by_descriptors(architecture: int) -> None:
    x, y = torch.randint(-99, 99, (40, 40)).float(), torch.randint(-99, 99, (40, 40)).float()
    want = x + y
    launch(
        kernels.described_add, {"x": Described(x, (32, 32)), "y": Described(y, (32, 32))},
        grid=(2, 2, 1), architecture=architecture, M=32, N=32,
    )  # fmt: skip
    assert torch.equal(y, want)
