"""The library's own kernels, executed from their PTX."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from backends.triton_cases import LARGE, MONOIDS, SMALL, Case, compare
from tilefold.algebra import program as programs
from tilefold.backends import reference
from tilefold.planner import columns
from tilefold.xray.machine import Kernel
from xray.running import Through, fold, kernel_of


def folded(
    case: Case, name: str, dtype: torch.dtype, architecture: int, through: Through = kernel_of
) -> tuple[list[torch.Tensor], ...]:
    """What the machine makes of a fold, its definition, and the inputs."""
    monoid = MONOIDS[name]
    inputs = case.make(monoid, dtype, "cpu")
    program = programs.specialize(monoid.total, tuple(x.dtype for x in inputs))
    dims = tuple(range(inputs[0].ndim)) if case.dims is None else case.dims
    got, _ = fold(inputs, program, dims, architecture, ordered=not monoid.commutative, through=through)
    return got, reference.fold(inputs, program, dims), inputs


@pytest.mark.parametrize("architecture", [80, 90])
@pytest.mark.parametrize("case", SMALL, ids=lambda c: c.name)
def test_integer_sums_have_the_definition_s_bits(case: Case, architecture: int) -> None:
    (got,), (want,), _ = folded(case, "sum", torch.int32, architecture)
    assert torch.equal(got, want)


@pytest.mark.parametrize("architecture", [80, 90])
@pytest.mark.parametrize("case", SMALL, ids=lambda c: c.name)
def test_positions_have_the_definition_s_bits(case: Case, architecture: int) -> None:
    (got, *_), (want, *_), _ = folded(case, "argmax", torch.float32, architecture)
    assert torch.equal(got, want)


@pytest.mark.parametrize("name", ["sum", "logsumexp", "welford", "pair"])
@pytest.mark.parametrize("case", SMALL, ids=lambda c: c.name)
def test_floats_are_as_near_as_the_library_promises(case: Case, name: str) -> None:
    got, _, inputs = folded(case, name, torch.float32, 90)
    compare(MONOIDS[name], tuple(got), inputs, case.dims)


@pytest.mark.parametrize("architecture", [80, 90])
@pytest.mark.parametrize("name", list(MONOIDS))
def test_every_monoid_runs(name: str, architecture: int) -> None:
    case = SMALL[4]
    got, _, inputs = folded(case, name, torch.float32, architecture)
    compare(MONOIDS[name], tuple(got), inputs, case.dims)


@pytest.mark.parametrize(
    "dtype", [torch.int8, torch.uint8, torch.int16, torch.int64, torch.bool, torch.float64], ids=str
)
def test_sums_of_every_width(dtype: torch.dtype) -> None:
    (got,), (want,), _ = folded(SMALL[5], "sum", dtype, 90)
    assert torch.equal(got, want) if not dtype.is_floating_point else torch.allclose(got, want, rtol=1e-14)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16], ids=str)
def test_maxima_of_half_types(dtype: torch.dtype) -> None:
    (got,), (want,), _ = folded(SMALL[5], "max", dtype, 90)
    assert torch.equal(got, want)


def test_a_row_of_shared_memory_and_barriers() -> None:
    case = next(c for c in LARGE if c.name == "row of 1024")
    small = Case(case.name, (4, 5000), (1,))
    (got,), (want,), _ = folded(small, "sum", torch.int64, 80)
    assert torch.equal(got, want)


@pytest.mark.parametrize(("name", "architecture"), [("sum", 80), ("logsumexp", 90)])
def test_tiles_on_their_way_through_shared_memory(
    name: str, architecture: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What large columns get, at a size that can be executed: three tiles loading while a fourth is folded."""
    monkeypatch.setattr(columns, "LARGE", 1000)
    case, kernels = Case("columns", (9000, 72), (0,)), list[Kernel]()

    def through(compiled: Any) -> Kernel:
        kernels.append(kernel_of(compiled))
        return kernels[-1]

    got, _, inputs = folded(case, name, torch.float32, architecture, through)
    compare(MONOIDS[name], tuple(got), inputs, case.dims)
    assert any(i.name.startswith("cp.async.cg") for i in kernels[0].entry.instructions)
