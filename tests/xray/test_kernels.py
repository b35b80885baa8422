"""Small kernels executed from their PTX give what torch gives."""

from __future__ import annotations

import pytest
import torch

from xray import kernels
from xray.running import launch

ARCHITECTURES = pytest.mark.parametrize("architecture", [80, 90])


@ARCHITECTURES
@pytest.mark.parametrize("warps", [1, 4, 8])
@pytest.mark.parametrize("n", [1, 255, 256, 1000])
def test_masked_add(n: int, warps: int, architecture: int) -> None:
    x, y, z = torch.randn(n), torch.randn(n), torch.empty(n)
    launch(
        kernels.add, {"x_ptr": x, "y_ptr": y, "z_ptr": z, "n": n},
        grid=(-(-n // 256), 1, 1), architecture=architecture, warps=warps, BLOCK=256,
    )  # fmt: skip
    assert torch.equal(z, x + y)


@ARCHITECTURES
def test_softmax(architecture: int) -> None:
    x, y = torch.randn(3, 777), torch.empty(3, 777)
    launch(
        kernels.softmax,
        {"x_ptr": x, "y_ptr": y, "n": 777},
        grid=(3, 1, 1),
        architecture=architecture,
        BLOCK=1024,
    )
    # A sum of 777 terms in a tree, an exponential of 2 ulp, a division of 2: well within 16 ulp.
    torch.testing.assert_close(y, x.softmax(1), rtol=16 * 2**-23, atol=0)


@ARCHITECTURES
@pytest.mark.parametrize("warps", [1, 4])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.int8], ids=str)
def test_transpose_through_shared_memory(dtype: torch.dtype, warps: int, architecture: int) -> None:
    x = torch.randint(-100, 100, (40, 50)).to(dtype)
    y = torch.empty(50, 40, dtype=dtype)
    outcomes = launch(
        kernels.transpose, {"x_ptr": x, "y_ptr": y, "m": 40, "n": 50},
        grid=(2, 2, 1), architecture=architecture, warps=warps, BLOCK=32,
    )  # fmt: skip
    assert torch.equal(y, x.t())
    assert warps == 1 or all(o.barriers for o in outcomes)


@ARCHITECTURES
@pytest.mark.parametrize("dtype", [torch.int32, torch.float32, torch.int64], ids=str)
def test_histogram_by_atomics(dtype: torch.dtype, architecture: int) -> None:
    x, h = torch.randint(0, 10, (300,), dtype=torch.int32), torch.zeros(10, dtype=dtype)
    outcomes = launch(
        kernels.histogram, {"x_ptr": x, "h_ptr": h, "n": 300},
        grid=(3, 1, 1), architecture=architecture, BLOCK=128,
    )  # fmt: skip
    assert torch.equal(h, torch.bincount(x, minlength=10).to(dtype))
    assert sum(int(a.active.sum()) for o in outcomes for a in o.accesses if a.kind == "atomic") == 300


NUMBERS = [
    0.0,
    -0.0,
    1.0,
    -2.5,
    1e-40,
    3e38,
    float("inf"),
    float("-inf"),
    65504.0,
    65520.0,
    447.0,
    464.5,
    2.0**-25,
]


@ARCHITECTURES
@pytest.mark.parametrize(
    ("source", "target"),
    [
        (torch.float32, torch.bfloat16), (torch.bfloat16, torch.float32), (torch.float32, torch.float16),
        (torch.float16, torch.float32), (torch.float16, torch.bfloat16), (torch.float64, torch.float32),
        (torch.float64, torch.bfloat16), (torch.int32, torch.float32), (torch.int64, torch.float32),
        (torch.int8, torch.bfloat16), (torch.int32, torch.float16), (torch.float8_e5m2, torch.float32),
    ],
    ids=str,
)  # fmt: skip
def test_conversions(source: torch.dtype, target: torch.dtype, architecture: int) -> None:
    x = torch.cat([torch.tensor(NUMBERS, dtype=torch.float64), torch.randn(243, dtype=torch.float64) * 1000])
    x = x.to(source) if source.is_floating_point else (x.nan_to_num(0).clamp(-9e8, 9e8)).to(source)
    y = torch.empty(256, dtype=target)
    launch(kernels.convert, {"x_ptr": x, "y_ptr": y, "n": 256}, architecture=architecture, BLOCK=256)
    want = x.to(target)
    if source == torch.float64 and target == torch.bfloat16:  # Triton goes through float32
        want = x.float().to(target)
    assert torch.equal(y, want)


@ARCHITECTURES
def test_running_sum(architecture: int) -> None:
    x, y = torch.randint(-(2**40), 2**40, (512,)), torch.empty(512, dtype=torch.int64)
    launch(kernels.running_sum, {"x_ptr": x, "y_ptr": y}, architecture=architecture, BLOCK=512)
    assert torch.equal(y, x.cumsum(0))


@ARCHITECTURES
@pytest.mark.parametrize("n", [0, 1, 3000])
def test_a_loop_of_unknown_length(n: int, architecture: int) -> None:
    x, y = torch.randint(-9, 9, (max(n, 1),)).float(), torch.empty(1)
    launch(kernels.loop, {"x_ptr": x, "y_ptr": y, "n": n}, architecture=architecture, BLOCK=512)
    assert y.item() == x[:n].sum().item()


@ARCHITECTURES
@pytest.mark.parametrize(
    ("kernel", "function"),
    [(kernels.sine, torch.sin), (kernels.logarithm, torch.log), (kernels.error_function, torch.erf)],
    ids=["sin", "log", "erf"],
)
def test_code_of_libdevice(kernel: object, function: object, architecture: int) -> None:
    """Branches, 64-bit products, local memory: a sine of large numbers looks digits of 2/pi up."""
    x, y = torch.rand(256) * 20 + 0.1, torch.empty(256)
    x[::16] *= 1e6
    launch(kernel, {"x_ptr": x, "y_ptr": y}, architecture=architecture, BLOCK=256)
    torch.testing.assert_close(y.double(), function(x.double()), rtol=3 * 2**-23, atol=2**-24)


@ARCHITECTURES
def test_sort(architecture: int) -> None:
    x, y = torch.randn(512), torch.empty(512)
    launch(kernels.sort, {"x_ptr": x, "y_ptr": y}, architecture=architecture, BLOCK=512)
    assert torch.equal(y, x.sort()[0])
