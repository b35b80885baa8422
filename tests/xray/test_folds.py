"""The library's own kernels, executed from their PTX."""

from __future__ import annotations

import re
from typing import Any

import pytest
import torch

from algebra.proofs.test_derive import PLACED
from backends.triton_cases import LARGE, MONOIDS, SMALL, Case, compare
from magnitudes import elements
from tilefold import Monoid, math, monoids
from tilefold.algebra import powers
from tilefold.algebra import program as programs
from tilefold.backends import reference
from tilefold.backends.triton.call import compile_for
from tilefold.backends.triton.lower import calls_of
from tilefold.planner import columns
from tilefold.planner.choose import plan_fold
from tilefold.planner.device import H200
from tilefold.planner.problem.canonical import canonical
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
    torch.testing.assert_close(got, want, rtol=1e-14 if dtype.is_floating_point else 0, atol=0)


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


@pytest.mark.parametrize("name", PLACED)
def test_fields_that_wrap_or_hold_limits_fold_as_they_combine(name: str) -> None:
    """Block forms of them, executed: more than one tile a result."""
    length = 100 if name == "weighted-torch.int8" else 700  # weights of more would wrap to another mean
    x = torch.randint(0, 9, (2, length)).float()
    monoid = PLACED[name]
    program = programs.specialize(monoid.total, (x.dtype,))
    got, _ = fold([x], program, (1,), 90, ordered=not monoid.commutative)
    for one, want in zip(got, reference.fold([x], program, (1,)), strict=True):
        torch.testing.assert_close(one.double(), want.double(), rtol=1e-5, atol=1e-5)


def test_the_last_value_above_a_bound_is_kept() -> None:
    """A monoid that no sample but its own constant tells from a commutative one."""
    monoid = Monoid(
        lambda a, b: math.where(b > 10, b, a),
        0,
        lift=lambda x: math.where(x > 10, x, 0),
        name="last above 10",
    )
    x = torch.randperm(1400).reshape(2, 700).float()
    program = programs.specialize(monoid.total, (x.dtype,))
    (got,), _ = fold([x], program, (1,), 90, ordered=not monoid.commutative)
    assert got.tolist() == [[v for v in row if v > 10][-1] for row in x.tolist()]


@pytest.mark.parametrize("name", ["std", "norm"])
@pytest.mark.parametrize("magnitude", [1e-18, 1e-19, 1e-20, 1e-21])
def test_roots_of_subnormal_numbers(magnitude: float, name: str) -> None:
    """A square is rounded by half the spacing of subnormal numbers at most, and so is what follows."""
    x = elements(torch.float32, str(magnitude))
    monoid = monoids.NORM(2) if name == "norm" else powers.spread(1.0, True, False)
    (got,), _ = fold([x], programs.specialize(monoid.total, (torch.float32,)), (1,), 90, ordered=False)
    want = torch.linalg.vector_norm(x.double(), dim=1) if name == "norm" else x.double().std(1)
    square = x.shape[1] * 2.0**-149 / (1 if name == "norm" else x.shape[1] - 1)
    assert ((got.double() - want).abs() <= square / want + 20 * 2.0**-24 * want).all()


@pytest.mark.parametrize("magnitude", [1e6, 1e9, 2e9, 1e10, 1e20, 3.4e38])
def test_logarithms_of_sums_of_huge_elements(magnitude: float) -> None:
    x = elements(torch.float32, str(magnitude))
    x[0, :5], x[1, 3], x[2] = magnitude, float("inf"), -magnitude
    program = programs.specialize(MONOIDS["logsumexp"].total, (torch.float32,))
    (got,), _ = fold([x], program, (1,), 90, ordered=False)
    want = x.double().logsumexp(1)
    assert ((got - want).abs()[want.isfinite()] <= 4 * 2.0**-24 * magnitude).all()
    assert torch.equal(got.isinf(), want.isinf())


@pytest.mark.parametrize("name", ["max", "argmax"])
def test_a_nan_is_the_largest_of_its_row(name: str) -> None:
    """tl.maximum drops NaN unless it is told not to; a chip shows it and the interpreter does not."""
    x = torch.arange(400.0).view(2, 200)
    x[1, 77] = float("nan")
    program = programs.specialize(MONOIDS[name].total, (x.dtype,))
    (got, *_), _ = fold([x], program, (1,), 90, ordered=False)
    want = x.amax(1) if name == "max" else x.argmax(1)
    assert torch.equal(got.nan_to_num(-1.0), want.nan_to_num(-1.0))


@pytest.mark.parametrize(("p", "magnitude"), [(-2, "1e19"), (-2, "1e20"), (3, "2e-13"), (-0.5, "1e38")])
def test_powers_below_the_least_normal_number(p: float, magnitude: str) -> None:
    """libdevice's power is 0 there; each is rounded by half the spacing of subnormal numbers at most."""
    x = elements(torch.float32, magnitude)
    (got,), _ = fold(
        [x], programs.specialize(monoids.NORM(p).total, (torch.float32,)), (1,), 90, ordered=False
    )
    want = torch.linalg.vector_norm(x.double(), p, dim=1)
    powers = x.double().abs() ** p
    lost = x.shape[1] * 2.0**-149 / powers.sum(1) / abs(p)
    assert ((got.double() - want).abs() <= (lost + 50 * 2.0**-24) * want).all()


@pytest.mark.parametrize("name", ["maximum", "minimum", "where", "sum"])
def test_constants_beside_float64_keep_all_their_bits(name: str) -> None:
    """Triton reads a number that tl.maximum is given as a float32."""
    lift = {
        "maximum": lambda x: math.maximum(x, 0.1),
        "minimum": lambda x: math.minimum(0.1, x),
        "where": lambda x: math.where(x > 0, 0.1, x),
        "sum": lambda x: x + 0.1,
    }[name]
    x = torch.tensor([[-1.0], [1.0]], dtype=torch.float64)
    program = programs.specialize(Monoid(lambda a, b: a + b, 0, lift=lift).total, (x.dtype,))
    (got,), _ = fold([x], program, (1,), 90, ordered=False)
    assert torch.equal(got, reference.fold([x], program, (1,))[0])


@pytest.mark.parametrize("name", ["sum", "argmax", "logsumexp"])
@pytest.mark.parametrize(
    ("shape", "dims"),
    [((11, 70, 3), (0, 2)), ((5, 3, 90), (0, 1)), ((40, 6, 5), (1, 2)), ((2, 33, 7), (0, 2))],
    ids=str,
)
@pytest.mark.parametrize("permuted", [False, True], ids=["", "permuted"])
def test_short_folds_of_two_dims(
    name: str, shape: tuple[int, ...], dims: tuple[int, ...], permuted: bool
) -> None:
    """Their sizes are constants of the kernel."""
    x = torch.randint(-8, 9, shape, generator=torch.Generator().manual_seed(len(name))).float()
    x = x.permute(2, 1, 0).contiguous().permute(2, 1, 0) if permuted else x
    program = programs.specialize(MONOIDS[name].total, (x.dtype,))
    got, _ = fold([x], program, dims, 90, ordered=not MONOIDS[name].commutative)
    for one, want in zip(got, reference.fold([x], program, dims), strict=True):
        torch.testing.assert_close(one, want, rtol=1e-5, atol=1e-5)


def test_short_folds_of_two_dims_divide_by_constants() -> None:
    x = torch.empty(11, 3001, 3, device="meta")
    program = programs.specialize(MONOIDS["sum"].total, (x.dtype,))
    problem = canonical([x], (0, 2), ordered=False)
    plan = plan_fold(problem, program, H200, "run_to_run")
    assert len(plan.stages) == 1
    (call,) = calls_of(plan, problem, program)
    ptx: str = compile_for(call, 90).asm["ptx"]
    assert not re.search(r"\b(div|rem)\.", ptx)
