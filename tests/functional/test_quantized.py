"""Norms in eight bits: scales beside float64, stored numbers bit by bit beside float32, kernels from their PTX."""

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import replace
from typing import Any
from unittest import mock

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.autograd import forward_ad

import tilefold
from asked import asked, run
from eight_bits import E4M3, E5M2, INT8, LARGEST, check, parted
from layouts import layouts
from tilefold.errors import GradientError
from tilefold.planner.device import H200, Device

pytestmark = pytest.mark.filterwarnings(
    "ignore:.*torch.jit.script.*:DeprecationWarning"
)  # torch's forward derivatives use it
Tensor = torch.Tensor
INFINITY, NAN = float("inf"), float("nan")
READ = (torch.bfloat16, torch.float16, torch.float32)
quantized = tilefold.rms_norm_quantized


@st.composite
def problems(draw: Any) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """Arguments of a call."""
    shape = draw(
        st.sampled_from([(1,), (7,), (5, 1), (3, 63), (2, 64), (2, 3, 65), (3, 256), (2, 5, 24), (1, 1003)])
    )
    rank = draw(st.integers(1, max(1, len(shape) - 1)))
    generator = torch.Generator().manual_seed(draw(st.integers(0, 1000)))

    def drawn(shape: tuple[int, ...]) -> Tensor:
        fill = functools.partial(torch.randn, generator=generator)
        return draw(layouts(len(shape))).place(shape, fill).expand(shape).to(draw(st.sampled_from(READ)))

    divisors = [n for n in range(1, shape[-1] + 1) if shape[-1] % n == 0]
    options = {
        "weight": drawn(shape[len(shape) - rank :]) if draw(st.booleans()) else None,
        "eps": draw(st.sampled_from([1e-6, 0.25])),
        "residual": drawn(shape) if draw(st.booleans()) else None,
        "dtype": draw(st.sampled_from(list(LARGEST))),
        "group": draw(st.sampled_from([None, *divisors])),
    }
    return (drawn(shape), rank), options


@settings(max_examples=50, deadline=None, derandomize=True, suppress_health_check=list(HealthCheck))
@given(problems())
def test_calls_are_their_definition(problem: tuple[tuple[Any, ...], dict[str, Any]]) -> None:
    (x, rank), options = problem
    check(quantized(x, x.shape[x.ndim - rank :], **options), x, rank, **options)


@pytest.mark.parametrize("dtype", list(LARGEST), ids=str)
def test_the_largest_becomes_the_dtypes_largest_and_none_is_beyond(dtype: torch.dtype) -> None:
    """Of quotients that are rounded up, too: beyond the largest number torch's own conversion makes NaN."""
    x = torch.randn(3000, 16, generator=torch.Generator().manual_seed(3))
    assert ((448.0 / x.abs().amax(1)) * x.abs().amax(1) > 448.0).any()
    q, _ = quantized(x, (16,), dtype=dtype)
    assert (q.float().abs().amax(1) == LARGEST[dtype]).all()


def kernels(call: Callable[[], Any], device: Device = H200) -> tuple[Any, list[list[str]]]:
    """What a call gives whose launches are executed from their PTX, and their kernels' names."""
    launched = list[list[str]]()

    def by_ptx(request: Any, tensors: Any, *rest: Any) -> list[Tensor]:
        ran = run(request, list(tensors), device)
        launched.append([step.kernel for step in ran.plan.launched])
        return [t.reshape(shape) for t, (shape, _) in zip(ran.results, request.results, strict=True)]

    with (
        mock.patch("tilefold.api.dispatch.run", by_ptx),
        mock.patch("tilefold.api.dispatch.again", return_value=(None, None)),
    ):
        return call(), launched


CASES = [
    ((3, 520), torch.bfloat16, E4M3, None, True, True),
    ((2, 256), torch.bfloat16, E4M3, 128, True, True),
    ((5, 77), torch.float16, E5M2, None, False, True),
    ((1, 1536), torch.float32, E4M3, None, True, False),
    ((4, 96), torch.float32, INT8, 32, False, False),
]


@pytest.mark.parametrize("how", ["interpret", "reference", "PTX"])
@pytest.mark.parametrize(("shape", "dtype", "into", "group", "weighted", "added"), CASES, ids=str)
def test_other_backends_are_the_definition(
    shape: tuple[int, ...], dtype: torch.dtype, into: torch.dtype, group: int | None, weighted: bool, added: bool, how: str
) -> None:  # fmt: skip
    generator = torch.Generator().manual_seed(5)
    x, r = (torch.randn(shape, generator=generator).to(dtype) for _ in range(2))
    weight = torch.randn(shape[-1:], generator=generator).to(dtype) if weighted else None
    options: dict[str, Any] = {
        "weight": weight, "eps": 1e-5, "residual": r if added else None, "dtype": into, "group": group,
    }  # fmt: skip
    if how == "PTX":
        made, launched = kernels(lambda: quantized(x, shape[-1:], **options))
        assert [len(each) for each in launched] == [1] * (1 + (group is not None))
    else:
        with tilefold.backend(how):
            made = quantized(x, shape[-1:], **options)
    check(made, x, 1, **options, exact=how != "PTX")


@pytest.mark.parametrize("how", ["cpu", "interpret", "PTX"])
@pytest.mark.parametrize("group", [None, 2], ids=str)
def test_zeros_any_magnitude_nan_and_infinity(group: int | None, how: str) -> None:
    """Squares leave the range of float32; so do products with a weight, of elements that are not divided first."""
    x = torch.tensor(
        [[0, 0, 0, 0], [1e38, -3e38, 1e37, 2e38], [1e-38, -3e-38, 1e-38, 2e-38], [1e-30, 2e-30, 3e-30, 1e-30],
         [1, 2, NAN, 4], [1, 2, INFINITY, 4]]
    )  # fmt: skip
    weight = torch.tensor([1.0, 100.0, -0.5, 2.0])

    def call() -> Any:
        return quantized(x, (4,), weight, 1e-20, group=group)

    if how == "PTX":
        (q, scale), _ = kernels(call)
    else:
        with tilefold.backend(how):
            q, scale = call()
    assert (q[0].float() == 0).all()
    assert (scale[0] == 1).all()
    y = tilefold.rms_norm(x.double(), (4,), weight.double(), 1e-20)
    parts = parted(y, group, 1)
    got = parted(q, group, 1).double() * scale[..., None].double()
    largest = parts.abs().amax(-1, keepdim=True)
    # Half a unit in the last of four bits, and half of the least number: 2^-10 where the largest is 448.
    bound = parts.abs() * 2.0**-4 + largest * 2.0**-10 / 448 + largest * 2.0**-20
    assert ((got - parts).abs() <= bound)[:4].all()
    torch.testing.assert_close(scale[1:4].double(), largest[1:4, :, 0] / 448, rtol=1e-6, atol=0)
    assert scale[4].isnan().all()
    assert scale[5, -1].isnan()
    assert q[4:, 2].float().isnan().all()
    assert group is None or scale[5, 0] == 0  # as y is, beside an infinity


def test_rows_that_no_program_holds_are_folded_first() -> None:
    generator = torch.Generator().manual_seed(7)
    x, weight = (torch.randn(n, 30000, generator=generator).bfloat16() for n in (1, 1))
    made, launched = kernels(lambda: quantized(x, (30000,), weight[0], residual=x), replace(H200, cluster=1))
    assert launched == [["fold_lanes", "fold_lanes", "map_groups"]]  # one row, in parts
    eps = torch.finfo(torch.float32).eps
    check(made, x, 1, weight[0], eps, x, E4M3, None, exact=False)


def test_a_row_of_zero_weights_is_zero() -> None:
    q, scale = quantized(torch.tensor([[1e30, 2.0]]), (2,), torch.zeros(2))
    assert (q.float() == 0).all()
    assert (scale == 1).all()


@pytest.mark.parametrize(
    ("shape", "group"), [((0, 4), None), ((0, 4), 2), ((3, 0), None), ((3, 0), 4)], ids=str
)
def test_no_elements(shape: tuple[int, int], group: int | None) -> None:
    x = torch.empty(shape, dtype=torch.bfloat16)
    q, scale, total = quantized(x, shape[1:], residual=x, group=group)
    assert q.shape == total.shape == shape
    assert scale.shape == (shape[0], 1 if group is None else shape[1] // group)


@pytest.mark.parametrize("group", [None, 128], ids=str)
@pytest.mark.parametrize("shape", [(2048, 8192), (4096, 1024), (64, 65536), (16, 7168)], ids=str)
def test_inputs_are_read_once(shape: tuple[int, int], group: int | None) -> None:
    """By programs that hold what they fold and map, on an H200."""
    x = torch.empty(shape, dtype=torch.bfloat16)
    _, _, plan = asked(lambda: quantized(x, shape[1:], x[0], residual=x, group=group))
    assert [step.kernel for step in plan.launched] == ["map_blocks"]


# ----------------------------------------------------------------------------------------------------------------- torch


X, WEIGHT = torch.linspace(-1, 1, 6 * 256).view(6, 256).bfloat16(), torch.linspace(0.5, 1.5, 256)


@pytest.mark.parametrize(("group", "dynamic"), [(None, False), (128, True)], ids=["rows", "groups, dynamic"])
def test_one_graph(group: int | None, dynamic: bool) -> None:
    torch._dynamo.reset()

    def call(x: Tensor, weight: Tensor) -> Any:
        return quantized(x, (256,), weight, residual=x, group=group)

    compiled = torch.compile(call, backend="aot_eager", fullgraph=True, dynamic=dynamic)
    for x in (X, X[:3]):
        for got, want in zip(compiled(x, WEIGHT), call(x, WEIGHT), strict=True):
            assert torch.equal(got.float(), want.float())
            assert got.stride() == want.stride()


@pytest.mark.parametrize("group", [None, 128], ids=str)
def test_tensors_without_data_and_mapped_ones(group: int | None) -> None:
    want = quantized(X, (256,), WEIGHT, residual=X, group=group)
    with FakeTensorMode():
        x = torch.empty(6, 256, dtype=torch.bfloat16)
        made = quantized(x, (256,), torch.empty(256), residual=x, group=group)
    assert [(t.shape, t.dtype) for t in made] == [(t.shape, t.dtype) for t in want]
    mapped = torch.vmap(lambda x: quantized(x, (256,), WEIGHT, residual=x, group=group))(X)
    for got, each in zip(mapped, want, strict=True):
        assert torch.equal(got.float(), each.float())


def dual() -> Any:
    with forward_ad.dual_level():
        return quantized(forward_ad.make_dual(X, X), (256,))


@pytest.mark.parametrize(
    "call",
    [
        lambda: quantized(X, (256,), WEIGHT.clone().requires_grad_()),
        lambda: torch.func.grad(lambda x: quantized(x, (256,))[1].sum())(X),
        lambda: torch.func.grad(
            lambda x: torch.vmap(lambda row: quantized(row, (256,), group=128)[1])(x).sum()
        )(X),
        dual,
    ],
    ids=["grad", "func.grad", "grad of vmap", "dual"],
)
def test_a_gradient_is_refused(call: Callable[[], Any]) -> None:
    with pytest.raises(GradientError, match=r"have no gradient, got .*; use torch.no_grad"):
        call()


def test_a_parameter_is_no_hindrance_where_no_gradient_is_asked() -> None:
    with torch.no_grad():
        made = quantized(X, (256,), torch.nn.Parameter(WEIGHT), group=128)
    assert not any(t.requires_grad for t in made)
