"""`matmul` on the CPU: against float64, over shapes, strides, dtypes and epilogues."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import tilefold
from test_running import run
from tilefold import math, monoids
from tilefold.api.requests import Product
from tilefold.runtime import switch

Tensor = torch.Tensor

ROUNDING = {
    torch.float16: 2.0**-11,
    torch.bfloat16: 2.0**-8,
    torch.float32: 2.0**-24,
    torch.float64: 2.0**-53,
}
DTYPES = list(ROUNDING)
SIZES = [0, 1, 2, 7, 16, 33, 65]
NAMED: dict[str, Callable[[Tensor], Tensor]] = {
    "relu": torch.relu,
    "gelu": torch.nn.functional.gelu,
    "silu": torch.nn.functional.silu,
    "sigmoid": torch.sigmoid,
    "tanh": torch.tanh,
}


def filled(shape: tuple[int, ...], dtype: torch.dtype, seed: int = 0) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    if dtype == torch.int8:
        return torch.randint(-128, 128, shape, generator=generator, dtype=dtype)
    return torch.randn(shape, generator=generator, dtype=torch.float64).to(dtype)


def transposed(x: Tensor) -> Tensor:
    return x.mT.contiguous().mT


def sliced(x: Tensor) -> Tensor:
    wide = torch.zeros([*x.shape[:-2], x.shape[-2] + 1, 2 * x.shape[-1] + 3], dtype=x.dtype)
    return wide[..., 1:, 3::2].copy_(x)


def expanded(x: Tensor) -> Tensor:
    return x[..., :1].expand(x.shape)


LAYOUTS = {"contiguous": lambda x: x, "transposed": transposed, "sliced": sliced, "expanded": expanded}


def assert_near(got: Tensor, a: Tensor, b: Tensor, dtype: torch.dtype) -> None:
    """Within the stated bound: K roundings of the accumulator, one of the result."""
    unit = 2.0**-53 if dtype == torch.float64 else 2.0**-23
    want = a.double() @ b.double()
    bound = 2 * a.shape[-1] * unit * (a.double().abs() @ b.double().abs()) + ROUNDING[dtype] * want.abs()
    assert got.dtype == dtype
    assert got.shape == want.shape
    assert bool(((got.double() - want).abs() <= bound + 1e-7).all())


@given(
    rows=st.sampled_from(SIZES),
    depth=st.sampled_from([*SIZES, 1000]),
    columns=st.sampled_from(SIZES),
    dtype=st.sampled_from(DTYPES),
    layouts=st.tuples(st.sampled_from(list(LAYOUTS)), st.sampled_from(list(LAYOUTS))),
    guarantee=st.sampled_from(["run_to_run", "batch_invariant"]),
)
def test_products_are_near_those_of_float64(
    rows: int, depth: int, columns: int, dtype: torch.dtype, layouts: tuple[str, str], guarantee: str
) -> None:
    a = LAYOUTS[layouts[0]](filled((rows, depth), dtype))
    b = LAYOUTS[layouts[1]](filled((depth, columns), dtype, 1))
    assert_near(tilefold.matmul(a, b, guarantee=guarantee), a, b, dtype)


@pytest.mark.parametrize("guarantee", ["run_to_run", "batch_invariant"])
@pytest.mark.parametrize(
    ("left", "right"),
    [((5,), (5,)), ((5,), (5, 3)), ((4, 5), (5,)), ((2, 4, 5), (5,)), ((5,), (2, 5, 3)), ((2, 1, 4, 5), (3, 5, 2)),
     ((2, 4, 5), (5, 3)), ((1, 5), (7, 5, 1)), ((0, 4, 5), (5, 3)), ((2, 4, 0), (0, 3))],
    ids=str,
)  # fmt: skip
def test_shapes_are_those_of_torch(left: tuple[int, ...], right: tuple[int, ...], guarantee: str) -> None:
    a, b = filled(left, torch.float64), filled(right, torch.float64, 1)
    got = tilefold.matmul(a, b, guarantee=guarantee)
    torch.testing.assert_close(got, torch.matmul(a, b))
    assert got.is_contiguous()


@pytest.mark.parametrize("depth", [0, 1, 300])
def test_int8_is_exact(depth: int) -> None:
    a, b = filled((9, depth), torch.int8), filled((depth, 5), torch.int8, 1)
    got = tilefold.matmul(a, b)
    assert got.dtype == torch.int32
    assert torch.equal(got, (a.double() @ b.double()).int())
    assert tilefold.matmul(a, b, epilogue="tanh").dtype == torch.float32


WHOLE = [torch.uint8, torch.int16, torch.int32, torch.int64]
# On a GPU and so under the interpreter.
DEVICE = [torch.uint8, torch.int16]
RAN = [*((d, b) for d in WHOLE for b in ("auto", "reference")), *((d, "interpret") for d in DEVICE)]
interpreted = pytest.mark.filterwarnings("ignore::DeprecationWarning")  # Triton's own


def whole(shape: tuple[int, ...], dtype: torch.dtype, seed: int = 0) -> Tensor:
    """Integers of the whole range, the least and the greatest among them."""
    limits, generator = torch.iinfo(dtype), torch.Generator().manual_seed(seed)
    made = torch.randint(limits.min, limits.max, shape, generator=generator, dtype=dtype)
    made.view(-1)[::3] = limits.max
    made.view(-1)[1::5] = limits.min
    return made


@interpreted
@pytest.mark.parametrize("guarantee", ["run_to_run", "batch_invariant"])
@pytest.mark.parametrize(
    ("left", "right"),
    [((5,), (5,)), ((5,), (5, 3)), ((4, 5), (5,)), ((9, 300), (300, 7)), ((2, 1, 4, 5), (3, 5, 2)), ((2, 4, 5), (5, 3)),
     ((0, 4, 5), (5, 3)), ((2, 4, 0), (0, 3)), ((3, 5), (5, 0))],
    ids=str,
)  # fmt: skip
@pytest.mark.parametrize(("dtype", "backend"), RAN, ids=str)
def test_whole_numbers_are_torchs(
    dtype: torch.dtype, backend: str, left: tuple[int, ...], right: tuple[int, ...], guarantee: str
) -> None:
    """They wrap alike."""
    a, b = whole(left, dtype), whole(right, dtype, 1)
    with tilefold.backend(backend):
        got = tilefold.matmul(a, b, guarantee=guarantee)
    want = torch.matmul(a, b)
    assert (got.dtype, got.shape) == (want.dtype, want.shape)
    assert torch.equal(got, want)


@interpreted
@pytest.mark.parametrize("layout", list(LAYOUTS))
@pytest.mark.parametrize(("dtype", "backend"), RAN, ids=str)
def test_layouts_of_whole_numbers(dtype: torch.dtype, backend: str, layout: str) -> None:
    a, b = LAYOUTS[layout](whole((6, 40), dtype)), LAYOUTS[layout](whole((40, 9), dtype, 1))
    with tilefold.backend(backend):
        assert torch.equal(tilefold.matmul(a, b), a @ b)


@interpreted
@pytest.mark.parametrize(("dtype", "backend"), RAN, ids=str)
def test_what_follows_a_product_of_whole_numbers(dtype: torch.dtype, backend: str) -> None:
    """An epilogue sees the sum as int64, before it wraps to the result's dtype."""
    a, b, bias = whole((4, 20), dtype), whole((20, 6), dtype, 1), torch.arange(-2, 4)
    exact = a.long() @ b.long()
    with tilefold.backend(backend):
        assert torch.equal(tilefold.matmul(a, b, bias=bias), (exact + bias).to(dtype))
        assert torch.equal(tilefold.matmul(a, b, out_dtype=torch.int64), exact)
        clipped = tilefold.matmul(a, b, epilogue=lambda x: math.minimum(math.maximum(x, 0), 100))
        assert torch.equal(clipped, exact.clamp(0, 100).to(dtype))
        assert torch.equal(tilefold.matmul(a, b, epilogue=lambda x: x > 7), exact > 7)
        scaled = tilefold.matmul(a, b, epilogue=lambda x: x * 0.5)
        assert torch.equal(scaled, exact * 0.5)
        values, top = tilefold.matmul(a, b, row=(tilefold.monoids.MAX_WITH_INDEX, None))
        assert torch.equal(values, exact.to(dtype))
        assert torch.equal(top.values, exact.amax(1))
        assert torch.equal(top.indices, exact.argmax(1))
        out = torch.empty(6, 4, dtype=dtype).T
        assert torch.equal(tilefold.matmul(a, b, out=out), exact.to(dtype))
    meta = tilefold.matmul(a.to("meta"), b.to("meta"))
    assert (meta.dtype, meta.shape) == (dtype, (4, 6))


@pytest.mark.parametrize("dtype", [torch.int16, torch.uint8], ids=str)
def test_sums_that_float64_does_not_hold(dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch) -> None:
    from tilefold.backends.cpu import torch_product
    from tilefold.planner.products import operands

    monkeypatch.setitem(torch_product.EXACT_IN_FLOAT64, dtype, 19)
    a, b = whole((4, 20), dtype), whole((20, 6), dtype, 1)
    assert torch.equal(tilefold.matmul(a, b), a @ b)
    for call in (tilefold.matmul, lambda a, b: tilefold.explain_plan((a, b), tilefold.matmul)):
        with (
            tilefold.backend("interpret"),
            pytest.raises(RuntimeError, match=r"K of at most 19, got 20; split K"),
        ):
            call(a, b)
    assert operands.EXACT_IN_FLOAT64 is torch_product.EXACT_IN_FLOAT64


@pytest.mark.parametrize("dtype", [torch.int32, torch.int64], ids=str)
def test_whole_numbers_that_no_kernel_multiplies(dtype: torch.dtype) -> None:
    a, b = whole((4, 20), dtype), whole((20, 6), dtype, 1)
    with (
        tilefold.backend("interpret"),
        pytest.raises(TypeError, match=r"must be of int8, uint8 or int16, got .*; convert"),
    ):
        tilefold.matmul(a, b)
    with pytest.raises(RuntimeError, match="or multiply on a CPU"):
        tilefold.explain_plan((a, b), tilefold.matmul)


@pytest.mark.parametrize("dtype", [torch.bool, torch.uint16, torch.uint32, torch.uint64], ids=str)
def test_whole_numbers_that_torch_does_not_multiply(dtype: torch.dtype) -> None:
    a, b = torch.ones(2, 3).to(dtype), torch.ones(3, 4).to(dtype)
    with pytest.raises(RuntimeError):
        torch.matmul(a, b)
    with pytest.raises(
        RuntimeError, match=r"operands must be of .*uint8, int16, int32, int64.*; convert both"
    ):
        tilefold.matmul(a, b)


@pytest.mark.parametrize("dtype", [torch.float8_e4m3fn, torch.float8_e5m2])
def test_float8_with_scales(dtype: torch.dtype) -> None:
    a, b = filled((6, 40), dtype), filled((40, 8), dtype, 1)
    of_rows, of_columns = torch.rand(6, 1), torch.rand(8)
    got = tilefold.matmul(
        a, b, epilogue=lambda x, s, t: x * s * t, epilogue_args=(of_rows, of_columns), out_dtype=torch.float32
    )
    torch.testing.assert_close(got, (a.double() @ b.double() * of_rows * of_columns).float())


@pytest.mark.parametrize("dtype", [torch.float16, torch.float32])
@pytest.mark.parametrize("name", list(NAMED))
def test_named_epilogues(name: str, dtype: torch.dtype) -> None:
    # Products of about 1: of those that are far larger the functions are 0, 1 or their argument.
    a, b, bias = filled((5, 70), dtype) / 16, filled((70, 9), dtype, 1), filled((9,), torch.float32, 2)
    got = tilefold.matmul(a, b, bias=bias, epilogue=name)
    want = NAMED[name](a.double() @ b.double() + bias)
    torch.testing.assert_close(got.double(), want, rtol=4 * ROUNDING[dtype], atol=1e-4)


@pytest.mark.parametrize("backend", ["cpu", "reference"])
@pytest.mark.parametrize("name", list(NAMED))
def test_slopes_of_named_epilogues_at_0_and_far_away(name: str, backend: str) -> None:
    far = torch.tensor([[0.0, 1e-30, 1.0, 20.0, 87.0, 89.0, 104.0, 1e4]])
    a, unit = torch.cat([far, -far]).requires_grad_(), torch.eye(8)
    with tilefold.backend(backend):
        made = tilefold.matmul(a, unit, epilogue=name)
        (got,) = torch.autograd.grad(made.sum(), a)
    exact = a.detach().double().requires_grad_()
    (want,) = torch.autograd.grad(NAMED[name](exact).sum(), exact)
    assert (got - want).abs().max() < 1e-6


def test_an_epilogue_of_extra_tensors() -> None:
    a, b = filled((2, 3, 8), torch.float32), filled((8, 5), torch.float32, 1)
    residual, scale = filled((3, 5), torch.bfloat16, 2), filled((2, 1, 5), torch.float64, 3)

    def scaled(x: object, r: object, s: object) -> object:
        return math.maximum(x * s, 0) + r

    got = tilefold.matmul(a, b, epilogue=scaled, epilogue_args=(residual, scale), out_dtype=torch.float64)
    want = (a.double() @ b.double() * scale).clamp(min=0) + residual
    torch.testing.assert_close(got, want, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("epilogue", [lambda x, y: y, lambda x, y: 3.0], ids=["an extra", "a constant"])
def test_results_own_their_memory(epilogue: Callable[..., object]) -> None:
    a, b, extra = torch.ones(2, 3), torch.ones(3, 2), torch.full((2, 2), 3.0)
    got = tilefold.matmul(a, b, epilogue=epilogue, epilogue_args=(extra,))
    got.zero_()
    assert bool((extra == 3).all())


@dataclass
class Scaled:
    """A function that compares by value, so that it has no hash."""

    by: float

    def __call__(self, x: Any, *others: Any) -> Any:
        return x * self.by


def test_a_function_without_a_hash() -> None:
    a, b = torch.randn(3, 4), torch.randn(4, 5)
    for by in (2.0, 4.0):
        scaled = Scaled(by)
        assert torch.equal(tilefold.matmul(a, b, epilogue=scaled), (a @ b) * by)
        row = (tilefold.monoids.SUM, scaled)
        assert torch.equal(tilefold.matmul(a, b, row=row)[0], (a @ b) * by)


def test_nothing_to_fold_leaves_the_epilogue_its_bias() -> None:
    a, b = torch.ones(3, 0), torch.ones(0, 2)
    got = tilefold.matmul(a, b, bias=torch.tensor([-1.0, 2.0]), epilogue="relu")
    assert torch.equal(got, torch.tensor([0.0, 2.0]).expand(3, 2))


def test_nan_and_infinities_go_on() -> None:
    a, b = torch.ones(3, 4), torch.ones(4, 2)
    a[0, 1], a[1, 2] = float("nan"), float("inf")
    got = tilefold.matmul(a, b, epilogue="relu")
    assert bool(got[0].isnan().all())
    assert bool(got[1].isinf().all())
    assert torch.equal(got[2], torch.full((2,), 4.0))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_a_row_does_not_know_its_batch(dtype: torch.dtype) -> None:
    a, b = filled((65, 515), dtype), filled((515, 33), dtype, 1)
    whole = tilefold.matmul(a, b, guarantee="batch_invariant")
    for rows in (1, 2, 17, 64):
        assert torch.equal(tilefold.matmul(a[:rows], b, guarantee="batch_invariant"), whole[:rows])
    assert torch.equal(tilefold.matmul(a[64], b, guarantee="batch_invariant"), whole[64])
    assert torch.equal(
        tilefold.matmul(a.view(5, 13, 515), b, guarantee="batch_invariant"), whole.view(5, 13, 33)
    )


def test_out_and_tensors_without_data() -> None:
    a, b, out = filled((4, 6), torch.float32), filled((6, 3), torch.float32, 1), torch.zeros(3, 4).T
    assert tilefold.matmul(a, b, out=out) is out
    torch.testing.assert_close(out, a @ b)
    got = tilefold.matmul(a.to("meta"), b.to("meta"), out_dtype=torch.float64)
    assert (got.shape, got.dtype, got.device.type) == ((4, 3), torch.float64, "meta")
    assert tilefold.last_plan().backend == "torch"


@pytest.mark.parametrize("name", ["torch", "cpu", "reference", pytest.param("interpret", marks=interpreted)])
def test_products_run_on_every_backend_of_a_cpu(name: str) -> None:
    """Also a layer's, those of a graph, with an epilogue, a row's fold and vectors; none falls back to another backend."""
    f = torch.float32
    a, b, bias = filled((2, 3, 40), f), filled((40, 5), f, 1), filled((5,), f, 2)
    layer = tilefold.nn.Linear(40, 5, activation="relu")
    want = a.double() @ b.double() + bias
    with tilefold.backend(name):
        close = torch.testing.assert_close
        close(tilefold.matmul(a, b, bias=bias).double(), want, rtol=1e-5, atol=1e-5)
        assert tilefold.last_plan().backend == name
        for guarantee in ("run_to_run", "batch_invariant"):
            made, top = tilefold.matmul(
                a, b, bias=bias, row=(monoids.MAX_WITH_INDEX, None), guarantee=guarantee
            )
            assert torch.equal(top.indices, want.argmax(-1))
        doubled = tilefold.matmul(a, b, epilogue=lambda x, r: 2 * x + r, epilogue_args=(bias,))
        close(doubled.double(), 2 * want - bias, rtol=1e-5, atol=1e-5)
        close(tilefold.matmul(a[0, 0], b).double(), want[0, 0] - bias, rtol=1e-5, atol=1e-5)
        close(tilefold.matmul(a, b[:, 0]).double(), (want - bias)[..., 0], rtol=1e-5, atol=1e-5)
        close(tilefold.matmul(a[0, 0], b[:, 0]).double(), (want - bias)[0, 0, 0], rtol=1e-5, atol=1e-5)
        x = filled((4, 40), f, 3).requires_grad_()
        plain = torch.nn.functional.linear(x, layer.weight, layer.bias).relu()
        close(layer(x), plain, rtol=1e-5, atol=1e-5)
        (got,), (given,) = (torch.autograd.grad(y.sum(), x) for y in (layer(x), plain))
        close(got, given, rtol=1e-5, atol=1e-5)
        close(tilefold.inductor.own_matmul(a[0], b), made[0] - bias, rtol=1e-5, atol=1e-5)
    assert set(Product.backends) == set(switch.BACKENDS)


def test_the_reference_adds_one_product_after_another() -> None:
    """2^24 + 1 is 2^24 in float32: of 1, 2^24, -2^24 in this order nothing is left, of 2^24, -2^24, 1 there is; and of ones
    after 2^24 none counts, which they would together."""
    big = 2.0**24
    ahead = torch.cat([torch.tensor([big]), torch.ones(255)])
    rows, ones = torch.tensor([[1.0, big, -big], [big, -big, 1.0]]), torch.ones(3, 1)
    with tilefold.backend("reference"):
        assert tilefold.matmul(rows, ones).view(-1).tolist() == [0.0, 1.0]
        assert tilefold.matmul(ahead, torch.ones(256)) == big  # torch adds up lanes
        assert tilefold.matmul(rows[:, :0], ones[:0]).view(-1).tolist() == [0.0, 0.0]
        whole = tilefold.matmul(
            torch.full((1, 3), 100, dtype=torch.int8), torch.full((3, 1), 100, dtype=torch.int8)
        )
    assert whole.tolist() == [[30000]]


def test_a_process_whose_environment_names_the_cpu_multiplies() -> None:
    program = """
import torch, tilefold
a, b = torch.randn(3, 4), torch.randn(4, 5)
torch.testing.assert_close(tilefold.matmul(a, b), a @ b)
assert tilefold.last_plan().backend == "cpu"
tilefold.nn.Linear(4, 2)(a).sum().backward()
"""
    done = run(program, TILEFOLD_BACKEND="cpu")
    assert done.returncode == 0, done.stderr
