"""Every kernel family under Triton's interpreter: the same source as on the GPU, small sizes, on the CPU."""

from __future__ import annotations

import math
import operator
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
import torch

import tilefold
from backends.triton_cases import MONOIDS, SMALL, Case, compare

pytestmark = [
    pytest.mark.filterwarnings("ignore::DeprecationWarning"),
]


@pytest.mark.parametrize(
    "name", ["sum", "argmax", "logsumexp", "welford", "pair", "affine", "sum without identity"]
)
@pytest.mark.parametrize("case", SMALL, ids=lambda c: c.name)
def test_cases(case: Case, name: str) -> None:
    monoid = MONOIDS[name]
    inputs = case.make(monoid, torch.float32, "cpu")
    with tilefold.backend("interpret"):
        got = tilefold.reduce(inputs, monoid, case.dims)
        plan = tilefold.last_plan()
    compare(monoid, got, inputs, case.dims)
    assert plan is not None
    assert plan.backend == "interpret"


@pytest.mark.parametrize("name", [n for n in MONOIDS if n not in ("affine",)])
def test_monoids(name: str) -> None:
    case, monoid = SMALL[4], MONOIDS[name]
    inputs = case.make(monoid, torch.float32, "cpu")
    with tilefold.backend("interpret"):
        got = tilefold.reduce(inputs, monoid, case.dims)
    compare(monoid, got, inputs, case.dims)


@pytest.mark.parametrize(
    "dtype", [torch.float16, torch.float64, torch.int8, torch.uint8, torch.int32, torch.int64, torch.bool]
)
def test_dtypes(dtype: torch.dtype) -> None:
    case = SMALL[4]
    inputs = case.make(MONOIDS["sum"], dtype, "cpu")
    with tilefold.backend("interpret"):
        got = tilefold.reduce(inputs, MONOIDS["sum"], case.dims)
    compare(MONOIDS["sum"], got, inputs, case.dims)


def test_two_stages() -> None:
    x = torch.randn(1, 70000, generator=torch.Generator().manual_seed(0))
    with tilefold.backend("interpret"):
        got = tilefold.reduce(x, MONOIDS["sum without identity"], 1)
        plan = tilefold.last_plan()
    assert plan is not None
    assert plan.launches == 2
    torch.testing.assert_close(got, x.double().sum(1).float(), rtol=1e-4, atol=1e-3)


@pytest.mark.parametrize("guarantee", ["run_to_run", "batch_invariant"])
@pytest.mark.parametrize(
    ("shape", "order", "dims"),
    [((5, 7, 3), (2, 0, 1), (0, 1)), ((4, 5, 6), (2, 1, 0), (0, 2)), ((33, 20), (1, 0), None)],
    ids=str,
)  # fmt: skip
def test_ties_go_to_the_first_whatever_the_strides(
    shape: tuple[int, ...], order: tuple[int, ...], dims: tuple[int, ...] | None, guarantee: str
) -> None:
    x = torch.randint(0, 3, shape, generator=torch.Generator().manual_seed(0)).permute(order)
    with tilefold.backend("interpret"):
        got = tilefold.reduce(x, MONOIDS["argmax"], dims, guarantee=guarantee)
    with tilefold.backend("reference"):
        want = tilefold.reduce(x, MONOIDS["argmax"], dims)
    assert torch.equal(got, want)


@pytest.mark.parametrize("shape", [(2, 300), (300, 2), (3, 2048)], ids=str)
def test_ties_within_a_lane_go_to_the_first(shape: tuple[int, int]) -> None:
    """A lane's own elements come in order, which settles comparisons of positions where code is generated."""
    dim = 1 if shape[1] > 2 else 0
    with tilefold.backend("interpret"):
        got = tilefold.reduce(torch.zeros(shape), MONOIDS["argmax"], dim)
    assert not got.any()


@pytest.mark.parametrize(
    ("shape", "launches"),
    [((3, 65), 1), ((1, 70000), 2), ((2, 0), 0)],
    ids=["one-stage", "two-stages", "nothing"],
)
def test_a_device_of_the_caller_changes_no_fold(shape: tuple[int, int], launches: int) -> None:
    x = torch.randint(-9, 9, shape, dtype=torch.int32)
    with tilefold.backend("interpret"), torch.device("meta"):
        got = tilefold.reduce(x, tilefold.monoids.SUM, 1)
        plan = tilefold.last_plan()
    assert plan is not None
    assert plan.launches == launches
    assert got.device.type == "cpu"
    assert torch.equal(got, x.sum(1))


WHOLE = [
    torch.int8,
    torch.int16,
    torch.int32,
    torch.int64,
    torch.uint8,
    torch.uint16,
    torch.uint32,
    torch.bool,
]


def test_threads_interpret_one_after_another() -> None:
    """The interpreter changes modules of Triton's while a kernel runs."""
    x = torch.arange(12.0).view(3, 4)

    def sums(_: int) -> list[float]:
        with tilefold.backend("interpret"):
            return [tilefold.cumsum(x, 1)[:, -1].tolist() for _ in range(3)]

    with ThreadPoolExecutor(4) as pool:
        assert list(pool.map(sums, range(4))) == [[[6, 22, 38]] * 3] * 4


@pytest.mark.parametrize("divide", [operator.floordiv, operator.mod], ids=lambda f: f.__name__)
@pytest.mark.parametrize("dtype", WHOLE, ids=str)
def test_whole_numbers_divide_as_pythons(dtype: torch.dtype, divide: Callable[[Any, Any], Any]) -> None:
    """Rounded down, with a constant on either side."""
    least = 0 if dtype == torch.bool else max(torch.iinfo(dtype).min, -9)
    numbers = [n for n in range(least, 2 if dtype == torch.bool else 10) if n]
    x, constants = torch.tensor(numbers, dtype=dtype), (1, 5, -3, 1 << 40)

    def lift(v: Any) -> Any:
        return tuple(d for c in constants for d in (divide(c, v), divide(v, c)))

    monoid = tilefold.Monoid(
        lambda a, b: tuple(p | q for p, q in zip(a, b, strict=True)),
        (0,) * 2 * len(constants),
        lift=lift,
        dtypes=(torch.int64,) * 2 * len(constants),
    )
    with tilefold.backend("interpret"):
        got = tilefold.reduce(x[:, None], monoid, 1)
    assert [list(row) for row in zip(*(g.tolist() for g in got), strict=True)] == [
        list(lift(n)) for n in numbers
    ]


@pytest.mark.parametrize("dtype", [torch.int64, torch.int32, torch.bool, torch.uint8], ids=str)
def test_whole_numbers_are_stored_as_bfloat16_rounded_once(dtype: torch.dtype) -> None:
    """Ties to even, beyond 2^24 as torch rounds; the interpreter itself stores the low bits of the number."""
    numbers = [0, 1, -1, 3, 255, 256, 257, 258, 259, -771, 1 << 20, (1 << 40) + 3, -(1 << 40)]
    least, greatest = (0, 1) if dtype == torch.bool else (torch.iinfo(dtype).min, torch.iinfo(dtype).max)
    x = torch.tensor([n for n in numbers if least <= n <= greatest], dtype=dtype)
    total = tilefold.Monoid(lambda a, b: a + b, 0)
    with tilefold.backend("interpret"):
        got = tilefold.reduce(x[:, None], total, 1, dtype=torch.bfloat16)
    assert torch.equal(got, x.to(torch.int64).to(torch.bfloat16))


@pytest.mark.parametrize("sign", [1, -1], ids=["above 0", "below 0"])
@pytest.mark.parametrize("shape", [(1, 100), (3, 5)], ids=str)
def test_what_is_absent_is_no_extreme(shape: tuple[int, int], sign: int) -> None:
    """A block's last elements are absent: neither 0 nor anything else stands for them among numbers of one sign."""
    x = sign * torch.arange(1.0, 1 + shape[0] * shape[1]).view(shape)
    with tilefold.backend("interpret"):
        got = tilefold.reduce(x, MONOIDS["describe"], 1)
    assert torch.equal(got.min, x.amin(1))
    assert torch.equal(got.max, x.amax(1))


@pytest.mark.parametrize("length", [192, 1887])
def test_a_block_of_many_tiles_of_single_elements(length: int) -> None:
    """Four tiles are one load there, and come apart."""
    x = torch.randn(length + 1, generator=torch.Generator().manual_seed(3))[1:]
    with tilefold.backend("interpret"):
        got = tilefold.log_softmax(x, 0)
    assert "block_rows" in str(tilefold.last_plan())
    wanted = x.double().log_softmax(0)
    torch.testing.assert_close(got.double(), wanted, rtol=2**-21, atol=0)


def test_masks_of_a_tensor_and_a_number() -> None:
    """They are truth values, which Triton's interpreter does not make of them itself."""
    x = torch.randn(80, 5, generator=torch.Generator().manual_seed(4))
    with tilefold.backend("interpret"):
        sums = tilefold.segment_reduce(x, tilefold.monoids.SUM, torch.tensor([0, 3, 80]))
        shares = tilefold.softmax(x.flatten()[1:334].view(3, 111).bfloat16(), 1)
    torch.testing.assert_close(sums, torch.stack([x[:3].sum(0), x[3:].sum(0)]))
    torch.testing.assert_close(shares.float().sum(1), torch.ones(3), rtol=1e-2, atol=0)


def test_no_arithmetic_warns() -> None:
    """As on a GPU: inf - inf is NaN, and no warning."""
    x = torch.tensor([[math.inf, -math.inf, 1.0], [1.0, 2.0, 3.0]])
    with tilefold.backend("interpret"):
        torch.testing.assert_close(tilefold.sum(x, 1), torch.tensor([math.nan, 6.0]), equal_nan=True)
