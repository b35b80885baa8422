"""Much of Triton's language, executed from PTX, gives what torch gives."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch

from tilefold.xray.machine.roles import atomic_of
from xray import language_kernels as kernels
from xray.running import kernel_of, launch
from xray.tallies import tally

Tensor = torch.Tensor
ARCHITECTURES = pytest.mark.parametrize("architecture", [80, 90])


def spread(seed: int = 0) -> Tensor:
    """256 numbers of both signs, from a thousandth to tens."""
    generator = torch.Generator().manual_seed(seed)
    signs = torch.randint(0, 2, (256,), generator=generator) * 2 - 1
    return signs * 10 ** (torch.rand(256, generator=generator, dtype=torch.float64) * 4.5 - 3)


# Within so many ulp of float32: approximations of 2 ulp, a few of them after each other.
ROUNDED: dict[str, tuple[Callable[[Tensor], Tensor], int]] = {
    "exp": (torch.exp, 4),
    "log2": (lambda x: x.log2(), 4),
    "rsqrt": (torch.rsqrt, 2),
    "cos": (torch.cos, 2),
    "sigmoid": (torch.sigmoid, 8),
    "tanh": (torch.tanh, 4),
    "pow": (lambda x: x**x, 4),
    "lgamma": (torch.lgamma, 16),
    "expm1": (torch.expm1, 2),
}
EXACT: dict[str, Callable[[Tensor], Tensor]] = {
    "sqrt": lambda x: x.double().sqrt().to(x.dtype),  # torch's own on a CPU is not always the nearest
    "div": lambda x: x / (x + 2),
    "floor": torch.floor,
    "round": lambda x: x.sign() * (x.abs() + 0.5).floor(),
    "clamp": lambda x: x.clamp(-1, 1),
    "maximum": torch.abs,
    "positive": lambda x: (x > 0).to(x.dtype),
    "flip": lambda x: x.flip(0),
    "descending": lambda x: x.sort(descending=True)[0],
    "int64": lambda x: x.long().to(x.dtype),
}


@pytest.mark.parametrize(("name", "architecture"), [*((n, 90) for n in ROUNDED), ("exp", 80), ("tanh", 80)])
def test_approximations(name: str, architecture: int) -> None:
    function, ulps = ROUNDED[name]
    x = spread().abs().float() if name in ("log2", "rsqrt", "pow", "lgamma") else spread().float()
    x = x.clamp(max=16) if name == "pow" else x
    y = torch.empty(256)
    launch(kernels.unary, {"x_ptr": x, "y_ptr": y}, architecture=architecture, OP=name, BLOCK=256)
    want = function(x.double())
    scale = (1 + x.abs().double()) if name in ("exp", "sigmoid", "pow") else 1  # the argument's own rounding
    assert ((y - want).abs() <= ulps * 2.0**-23 * scale * want.abs() + 2.0**-23).all()


@pytest.mark.parametrize("name", ["cos", "pow", "lgamma", "tanh"])
def test_functions_of_doubles(name: str) -> None:
    """Code with calls, which float32 has not."""
    x, y = spread().abs() * 1000 if name == "cos" else spread().abs(), torch.empty(256, dtype=torch.float64)
    launch(kernels.unary, {"x_ptr": x, "y_ptr": y}, OP=name, BLOCK=256)
    torch.testing.assert_close(y, ROUNDED[name][0](x), rtol=2.0**-45, atol=2.0**-50)


WIDE = ("sqrt", "div", "floor", "round")  # Triton and libdevice have these for float32 alone
CASES = [
    *((n, torch.float32, 90) for n in EXACT),
    *((n, d, 90) for n in EXACT if n not in WIDE for d in (torch.float16, torch.bfloat16)),
    *((n, torch.bfloat16, 80) for n in ("clamp", "maximum", "positive", "descending")),
]


@pytest.mark.parametrize(("name", "dtype", "architecture"), CASES, ids=str)
def test_exact_operations(name: str, dtype: torch.dtype, architecture: int) -> None:
    x = (spread().abs() if name == "sqrt" else spread()).to(dtype)
    x = x.clamp(-1e4, 1e4)
    y = torch.empty(256, dtype=dtype)
    launch(kernels.unary, {"x_ptr": x, "y_ptr": y}, architecture=architecture, OP=name, BLOCK=256)
    assert torch.equal(y, EXACT[name](x))


INTEGERS: dict[str, Callable[[Tensor, Tensor], Tensor]] = {
    "div": lambda x, y: torch.div(x, y, rounding_mode="trunc"),
    "mod": torch.fmod,
    "shl": lambda x, y: x << (y & 7),
    "shr": lambda x, y: x >> (y & 7),
    "mul": lambda x, y: x * y,
    "max": torch.maximum,
    "xor": lambda x, y: x + y.sum() * 0 + torch.tensor(xor_of(y)).to(x.dtype),
    "cummax": lambda x, y: x.cummax(0)[0],
    "gather": lambda x, y: x[(y & 255).long()],
    "split": lambda x, y: x - y,
    "half": lambda x, y: x.half().to(x.dtype),
}


def xor_of(values: Tensor) -> int:
    total = 0
    for value in values.tolist():
        total ^= value
    return total


@pytest.mark.parametrize(
    ("name", "dtype"),
    [
        (name, dtype)
        for name in INTEGERS
        for dtype in (torch.int8, torch.int32, torch.int64)
        if not (name == "gather" and dtype == torch.int8)  # 256 places are more than its numbers
    ],
    ids=str,
)
def test_integers(name: str, dtype: torch.dtype) -> None:
    bits = torch.iinfo(dtype).bits
    generator = torch.Generator().manual_seed(0)
    high = min(2 ** (bits - 1) - 1, 2048 if name == "half" else 2**62)
    x, y = (torch.randint(-high, high, (256,), generator=generator).to(dtype) for _ in range(2))
    y[y == 0], z = 3, torch.empty(256, dtype=dtype)
    launch(kernels.binary, {"x_ptr": x, "y_ptr": y, "z_ptr": z}, OP=name, BLOCK=256)
    assert torch.equal(z, INTEGERS[name](x, y))


@pytest.mark.parametrize(
    ("name", "dtype", "order", "architecture"),
    [
        *(
            ("add", d, "relaxed", 90)
            for d in (torch.float32, torch.float16, torch.bfloat16, torch.float64, torch.int64)
        ),
        *(("add", d, "acq_rel", 80) for d in (torch.float32, torch.float16, torch.bfloat16)),
        ("max", torch.int32, "relaxed", 90),
        ("max", torch.float32, "acq_rel", 90),
        ("min", torch.float32, "relaxed", 80),
        ("xor", torch.int32, "acq_rel", 90),
    ],
    ids=str,
)
def test_atomics(name: str, dtype: torch.dtype, order: str, architecture: int) -> None:
    x = torch.randint(-9, 9, (128,)).to(dtype)
    h = torch.zeros(16, dtype=dtype)
    made = []
    outcomes = launch(
        kernels.atomic, {"x_ptr": x, "h_ptr": h}, architecture=architecture,
        through=lambda c: made.append(kernel_of(c)) or made[0], OP=name, SEM=order, BLOCK=128,
    )  # fmt: skip
    columns = x.view(8, 16)
    want = {
        "add": lambda: columns.sum(0, dtype=dtype),
        "max": lambda: columns.amax(0).clamp(min=0),
        "min": lambda: columns.amin(0).clamp(max=0),
        "xor": lambda: torch.tensor([xor_of(columns[:, i]) for i in range(16)], dtype=dtype),
    }
    assert torch.equal(h, want[name]())
    atomics = [t for t in tally(made[0], outcomes) if t.opcode in ("atom", "red")]
    assert atomics
    orders = {atomic_of(t.instruction).order for t in atomics}
    # Where a type has no such atomic, newer Tritons put fences around a loop of comparisons.
    fences = [i for i in made[0].entry.instructions if i.opcode == "fence" and i.has(order)]
    assert orders == {order} or (orders == {"relaxed"} and fences)
    assert {atomic_of(t.instruction).scope for t in atomics} == {"gpu"}


@ARCHITECTURES
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_layer_norm(dtype: torch.dtype, architecture: int) -> None:
    x, w, b = (torch.randn(s).to(dtype) for s in ((3, 1000), (1000,), (1000,)))
    y = torch.empty_like(x)
    launch(
        kernels.layer_norm, {"x_ptr": x, "w_ptr": w, "b_ptr": b, "y_ptr": y, "n": 1000},
        grid=(3, 1, 1), architecture=architecture, BLOCK=1024,
    )  # fmt: skip
    want = torch.nn.functional.layer_norm(x.double(), (1000,), w.double(), b.double())
    unit = 2.0**-20 if dtype == torch.float32 else 2.0**-8
    torch.testing.assert_close(y.double(), want, rtol=unit, atol=16 * 2.0**-23)


@ARCHITECTURES
def test_a_histogram_of_a_tile(architecture: int) -> None:
    x, h = torch.randint(0, 16, (512,), dtype=torch.int32), torch.empty(16, dtype=torch.int32)
    launch(kernels.counts, {"x_ptr": x, "h_ptr": h}, architecture=architecture, BLOCK=512)
    assert torch.equal(h, torch.bincount(x, minlength=16).int())


@ARCHITECTURES
def test_branches_that_data_decides(architecture: int) -> None:
    x, y = torch.randint(-9, 9, (128,)).float(), torch.empty(4)
    launch(
        kernels.branches,
        {"x_ptr": x, "y_ptr": y, "n": 7},
        grid=(4, 1, 1),
        architecture=architecture,
        BLOCK=128,
    )
    other = x.max() if x.sum() > 0 else x.min()
    assert torch.equal(y, torch.stack([x[:7].sum(), other, x[:7].sum(), other]))


@ARCHITECTURES
def test_a_lock(architecture: int) -> None:
    lock, x, y = torch.zeros(1, dtype=torch.int32), torch.randn(128), torch.zeros(128)
    arguments = {"lock_ptr": lock, "x_ptr": x, "y_ptr": y}
    launch(kernels.locked, arguments, grid=(3, 1, 1), architecture=architecture, BLOCK=128)
    assert torch.equal(y, x + x + x)
    assert lock.item() == 0


def test_random_numbers_are_the_same_on_both_chips() -> None:
    a, b = torch.empty(1024), torch.empty(1024)
    launch(kernels.randoms, {"y_ptr": a, "seed": 7}, architecture=80, BLOCK=1024)
    launch(kernels.randoms, {"y_ptr": b, "seed": 7}, architecture=90, BLOCK=1024)
    assert torch.equal(a, b)
    assert abs(a.mean().item() - 0.5) < 0.05
    assert ((a >= 0) & (a < 1)).all()


@ARCHITECTURES
@pytest.mark.parametrize("dtype", [torch.float16, torch.float32], ids=str)
def test_products_of_batches(dtype: torch.dtype, architecture: int) -> None:
    a, b, c = torch.randn(4, 16, 32).to(dtype), torch.randn(4, 32, 16).to(dtype), torch.empty(4, 16, 16)
    launch(
        kernels.batched_product,
        {"a_ptr": a, "b_ptr": b, "c_ptr": c},
        architecture=architecture,
        B=4,
        M=16,
        N=16,
        K=32,
    )
    unit = 32 * 2.0**-23 if dtype == torch.float16 else 2.0**-9  # tf32 keeps 10 bits
    assert (
        (c.double() - a.double() @ b.double()).abs() <= unit * (a.double().abs() @ b.double().abs())
    ).all()


@ARCHITECTURES
def test_a_product_with_scales(architecture: int) -> None:
    a, b = torch.randn(32, 64).to(torch.float8_e5m2), torch.randn(64, 32).to(torch.float8_e5m2)
    scale_a, scale_b = (torch.randint(120, 134, (32, 2), dtype=torch.uint8) for _ in range(2))
    c = torch.empty(32, 32)
    arguments = {"a_ptr": a, "sa_ptr": scale_a, "b_ptr": b, "sb_ptr": scale_b, "c_ptr": c}
    launch(kernels.scaled_product, arguments, architecture=architecture, M=32, N=32, K=64)
    left = a.double() * (2.0 ** (scale_a.double() - 127)).repeat_interleave(32, 1)
    right = b.double() * (2.0 ** (scale_b.double() - 127)).repeat_interleave(32, 1).t()
    assert ((c.double() - left @ right).abs() <= 64 * 2.0**-23 * (left.abs() @ right.abs())).all()
