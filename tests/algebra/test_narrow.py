"""Fields of fewer bits than a register: an infinity is their own limit, and what goes into them wraps."""

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
@pytest.mark.parametrize("backend", ["lanes", "reference", "interpret"])
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
@pytest.mark.parametrize("backend", ["lanes", "reference", "interpret"])
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
