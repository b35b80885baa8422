"""Integer fields: an infinity is their own limit, and what goes into those of fewer bits than a register wraps."""

from __future__ import annotations

import math

import pytest
import torch

import tilefold
from tilefold import math as tm
from tilefold.algebra.expression import trace
from tilefold.algebra.narrow import wrapped

# numpy, under Triton's interpreter, warns of whole numbers that wrap and of arrays as scalars.
interpreted = pytest.mark.filterwarnings("ignore::RuntimeWarning", "ignore::DeprecationWarning")
NARROW = (torch.int8, torch.uint8, torch.int16, torch.uint16, torch.uint32)


def drawn(dtype: torch.dtype, count: int = 300) -> torch.Tensor:
    info = torch.iinfo(dtype)
    ends = torch.tensor([info.min, info.max, info.min + 1, 0, 1]).to(dtype)
    return torch.cat([ends, torch.randint(info.min, info.max, (count,)).to(dtype)])


@pytest.mark.parametrize("dtype", [*NARROW, torch.int32, torch.int64], ids=str)
def test_an_infinite_identity_is_the_fields_own_limit(dtype: torch.dtype) -> None:
    info = torch.iinfo(dtype)
    for infinity, limit, combine in (
        (math.inf, info.max, tm.minimum),
        (-math.inf, info.min, tm.maximum),
    ):
        monoid = tilefold.Monoid(combine, infinity, dtypes=dtype)
        nothing = tilefold.reduce(torch.empty(0, dtype=dtype), monoid)
        assert (nothing.item(), nothing.dtype) == (limit, dtype)


@interpreted
@pytest.mark.parametrize("backend", ["cpu", "reference", "interpret"])
@pytest.mark.parametrize("declared", [True, False], ids=["declared", "the input's"])
@pytest.mark.parametrize("dtype", NARROW, ids=str)
def test_what_is_lifted_wraps(dtype: torch.dtype, declared: bool, backend: str) -> None:
    """As torch's own elementwise operations on that dtype do."""
    least = tilefold.Monoid(
        tm.minimum, math.inf, lift=lambda x: x * 3 + 1, dtypes=dtype if declared else "input", check=False
    )
    x = drawn(dtype, 40)
    wide = (x.to(torch.int64) * 3 + 1).to(dtype).to(torch.int64).min()
    with tilefold.backend(backend):
        assert tilefold.reduce(x, least).item() == wide.item()


@interpreted
@pytest.mark.parametrize("backend", ["cpu", "reference", "interpret"])
def test_what_is_combined_wraps(backend: str) -> None:
    """A sum and the greatest of sums: the second field would see sums that the first cannot hold."""
    greatest = tilefold.Monoid(
        lambda a, b: (a.total + b.total, tm.maximum(a.most, a.total + b.most)),
        (0, -math.inf),
        fields=("total", "most"),
        lift=lambda x: (x, x),
        dtypes=(torch.int8, torch.int64),
        commutative=False,
        check=False,
    )
    x = torch.full((3,), 100, dtype=torch.int8)
    with tilefold.backend(backend):
        assert tilefold.reduce(x, greatest).total.item() == 300 - 256


@interpreted
@pytest.mark.parametrize("backend", ["cpu", "reference", "interpret"])
def test_a_narrow_field_beside_a_position_wraps(backend: str) -> None:
    """Positions are carried in 32 bits then, and the other fields as they were."""
    monoid = tilefold.Monoid(
        lambda a, b: (tm.maximum(a.most, b.most), tm.minimum(a.first, b.first)),
        (-math.inf, math.inf),
        fields=("most", "first"),
        lift=lambda x, i: (x * 2, i),
        index=True,
        dtypes=(torch.int8, "index"),
    )
    x = torch.tensor([100, 3, -70])
    with tilefold.backend(backend):
        assert tilefold.reduce(x, monoid).most.item() == (x * 2).to(torch.int8).max().item()


@interpreted
@pytest.mark.parametrize("backend", ["cpu", "reference", "interpret"])
@pytest.mark.parametrize("dtype", [*NARROW, torch.int64, torch.uint64], ids=str)
def test_an_infinity_that_a_function_chooses_is_the_fields_limit(dtype: torch.dtype, backend: str) -> None:
    info = torch.iinfo(dtype)
    least = tilefold.Monoid(
        tm.minimum, math.inf, lift=lambda x: tm.where(x > 2, tm.maximum(x, -math.inf), math.inf), dtypes=dtype
    )
    with tilefold.backend(backend):
        assert tilefold.reduce(torch.arange(7).to(dtype), least).item() == 3
        assert tilefold.reduce(torch.arange(2).to(dtype), least).item() == info.max


@interpreted
@pytest.mark.parametrize("backend", ["cpu", "reference", "interpret"])
def test_an_infinite_position_is_nowhere(backend: str) -> None:
    first = tilefold.Monoid(
        tm.minimum, math.inf, lift=lambda x, i: tm.where(x > 0, i, math.inf), index=True, dtypes="index"
    )
    x = torch.tensor([[-1.0, 2.0, 3.0], [0.0, 0.0, -5.0]])
    with tilefold.backend(backend):
        assert tilefold.reduce(x, first, 1).tolist() == [1, torch.iinfo(torch.int64).max]


def test_positions_beside_an_infinity_stay_whole_numbers() -> None:
    """In float32 they would lose their last digits beyond 2^24."""
    first = tilefold.Monoid(
        tm.minimum, math.inf, lift=lambda x, i: tm.where(x > 0, i, math.inf), index=True, dtypes="index"
    )
    x = torch.zeros(2**24 + 4, dtype=torch.int8)
    x[-1] = 1
    assert tilefold.reduce(x, first).item() == 2**24 + 3


def test_an_infinity_beside_a_fraction_is_a_floats() -> None:
    half = tilefold.Monoid(tm.minimum, math.inf, lift=lambda x: tm.where(x > 0, x / 2, math.inf))
    assert tilefold.reduce(torch.tensor([-1, 3, 4]), half).item() == 1.5
    assert tilefold.reduce(torch.tensor([-1]), half).item() == math.inf


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.int64])
@pytest.mark.parametrize(
    ("lift", "want"),
    [
        pytest.param(lambda x: tm.where(x > 0, math.nan, x), [-3.0, math.nan], id="chosen"),
        pytest.param(lambda x: tm.where(x > 0, x, math.nan), [math.nan, math.nan], id="chosen-else"),
        pytest.param(
            lambda x: tm.where(x > 0, tm.where(x > 5, math.nan, 1), x), [-3.0, -1.0], id="behind-another"
        ),
        pytest.param(
            lambda x: tm.where(x > 0, math.nan, math.inf), [math.inf, math.nan], id="beside-an-infinity"
        ),
        pytest.param(lambda x: tm.maximum(x, math.nan), [math.nan, math.nan], id="largest"),
    ],
)
def test_a_nan_beside_elements_is_a_floats(dtype: torch.dtype, lift, want: list[float]) -> None:
    monoid = tilefold.Monoid(lambda a, b: a + b, 0, lift=lift)
    folded = tilefold.reduce(torch.tensor([[-1, -2], [1, -2]]).to(dtype), monoid, 1)
    assert folded.is_floating_point()
    torch.testing.assert_close(folded.double(), torch.tensor(want, dtype=torch.float64), equal_nan=True)


@interpreted
@pytest.mark.parametrize("backend", ["cpu", "reference", "interpret"])
@pytest.mark.parametrize(
    ("function", "field", "want"),
    [
        pytest.param(lambda x: x & -8, "input", 8, id="masked"),
        pytest.param(lambda x: x ^ -2, "input", 2**64 - 13, id="flipped"),
        pytest.param(lambda x: x + -2, "input", 11, id="added"),
        pytest.param(lambda x: tm.minimum(x, -1), "input", 13, id="least"),
        pytest.param(lambda x: tm.where(x > 20, x, -1), "input", 2**64 - 1, id="chosen"),
        pytest.param(lambda x: -2, "input", 2**64 - 2, id="given"),
        pytest.param(lambda x: (1 << 40) + 5, torch.int32, 5, id="given-to-fewer-bits"),
        pytest.param(lambda x: 0.25, torch.bool, True, id="given-as-truth"),
        pytest.param(lambda x: tm.cast(x - 14, torch.uint64), torch.float64, 2.0**64, id="read-as-a-float"),
    ],
)  # fmt: skip
def test_constants_wrap_as_torchs_do(function, field, want: int, backend: str) -> None:
    """-1 is all ones in uint64, too."""
    monoid = tilefold.Monoid(
        lambda a, b: b, None, lift=function, dtypes=field, check=False, commutative=False
    )
    x = torch.tensor([13], dtype=torch.uint64)
    with tilefold.backend(backend):
        assert tilefold.reduce(x, monoid).item() == want


@interpreted
@pytest.mark.parametrize("backend", ["cpu", "reference", "interpret"])
def test_large_unsigned_numbers_become_large_floats(backend: str) -> None:
    x = torch.tensor([2**64 - 1, 2**63 + 1, 5], dtype=torch.uint64)
    with tilefold.backend(backend):
        assert tilefold.reduce(x, tilefold.monoids.MAX, dtype=torch.float64).item() == 2.0**64


def test_values_of_another_dtype_are_stored_as_torch_stores_them() -> None:
    monoid = tilefold.Monoid(tm.minimum, math.inf, dtypes=torch.int8)
    x = torch.tensor([500, 300, -200])
    assert tilefold.reduce(x, monoid).item() == x.to(torch.int8).min().item()


@pytest.mark.parametrize(
    ("function", "changed"),
    [
        pytest.param(tm.maximum, False, id="of two, one"),
        pytest.param(lambda a, b: tm.where(a < b, a, 7), False, id="or a small number"),
        pytest.param(lambda a, b: tm.where(a < b, a, 200), True, id="or a large one"),
        pytest.param(lambda a, b: a & b, False, id="bits"),
        pytest.param(lambda a, b: a + b, True, id="a sum"),
        pytest.param(lambda a, b: tm.cast(a, torch.int64), False, id="wider and back"),
        pytest.param(lambda a, b: a < b, False, id="a comparison"),
    ],
)
def test_only_what_can_leave_the_range_is_wrapped(function, changed: bool) -> None:
    graph = trace(lambda a, b: (function(a, b),), 2)
    assert (wrapped(graph, [torch.int8], [torch.int8, torch.int8]) is not graph) is changed
    assert wrapped(graph, [torch.int64], [torch.int8, torch.int8]) is graph
    assert wrapped(graph, [torch.float32], [torch.int8, torch.int8]) is graph
