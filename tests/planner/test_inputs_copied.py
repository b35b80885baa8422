"""Inputs whose neighbours lie along another dim than those of the results: copied into their order, or read as they lie."""

from __future__ import annotations

import functools

import pytest
import torch

import tilefold
from asked import asked, executed
from scanned import MATRICES, drawn, leaves, same
from tilefold import monoids
from tilefold.algebra import program as programs
from tilefold.planner import choose_map, scans
from tilefold.planner.device import H200
from tilefold.planner.plan import Plan
from tilefold.planner.problem.canonical import canonical, in_results_order, inputs_apart, of_input

Tensor = torch.Tensor


def copies(plan: Plan) -> list[str]:
    return [name for step in plan.launched if step.kernel == "move_tiles" for name in step.writes]


def test_neighbours_of_inputs_and_of_results() -> None:
    x = torch.empty(5, 6, 7)
    apart = x.permute(2, 0, 1)
    problem = canonical([x.permute(2, 0, 1).contiguous(), apart], (1,), ordered=True, role="scan", whole=True)
    assert inputs_apart(problem) == (1,)
    assert inputs_apart(in_results_order(problem, (1,))) == ()
    assert in_results_order(problem, (1,)).dims[0].strides == (30, 30)
    alone = of_input(problem, 1)
    assert [(d.role, d.size, d.strides, d.output) for d in alone.dims] == [
        ("map", 30, (7,), 1),
        ("map", 7, (1,), 30),
    ]
    repeated = canonical([apart[:, :1].expand(7, 5, 6)], (1,), ordered=True, role="scan", whole=True)
    assert inputs_apart(repeated) == ()  # a dim of one element that is repeated has no neighbours to copy


def test_a_problem_in_the_results_order_is_that_of_a_contiguous_input() -> None:
    for shape, order, dims in (((3, 4, 5, 6), (3, 1, 0, 2), (1, 2)), ((7, 8), (1, 0), (0,))):
        x = torch.empty(shape).permute(order)
        problem = canonical([x], dims, ordered=True, whole=True)
        assert (
            in_results_order(problem, (0,)).dims
            == canonical([x.contiguous()], dims, ordered=True, whole=True).dims
        )


@pytest.mark.parametrize(
    ("shape", "order", "dim", "copied"),
    [
        ((16, 3000, 24), (2, 1, 0), 1, True),
        ((45, 48, 1200), (0, 2, 1), 0, False),  # lines enough to be stored the other way round
        ((45, 48, 600), (0, 2, 1), 0, True),
        ((15, 48, 600), (0, 2, 1), 0, False),  # columns that threads hold whole
        ((4, 272, 8, 1587), (1, 3, 2, 0), 0, True),  # stores would be less than a sector
        ((45, 48, 50), (0, 2, 1), 0, True),
        ((3, 144, 16_000), (2, 1, 0), 2, True),  # a line's results are 12 bytes
        ((8, 144, 16_000), (2, 1, 0), 2, False),
        ((3, 144, 1600), (2, 1, 0), 2, False),  # small
        ((40, 3000), (1, 0), 0, False),  # rows whose results are columns
        ((40, 3000), (1, 0), 1, False),  # columns whose results are rows
        ((40, 30, 50), (1, 0, 2), 1, False),
    ],
    ids=str,
)
def test_which_scans_copy(shape: tuple[int, ...], order: tuple[int, ...], dim: int, copied: bool) -> None:
    x = torch.empty(shape, device="meta").permute(order)
    for scan in (tilefold.cumsum, tilefold.cummax):
        call = functools.partial(scan, x, dim)
        assert copies(asked(call)[2]) == ["ordered0"] * copied
        assert not copies(asked(functools.partial(call, guarantee="batch_invariant"))[2])


@pytest.mark.parametrize("reverse", [False, True])
def test_scans_of_copies(reverse: bool) -> None:
    inputs = [t.permute(2, 1, 0) for t in drawn(MATRICES, (5, 34, 16))]
    call = functools.partial(tilefold.scan, inputs, MATRICES, 1, reverse=reverse, return_state=True)
    got, plan = executed(call)
    assert copies(plan) == [f"ordered{i}" for i in range(len(inputs))]
    with tilefold.backend("reference"):
        same(got, leaves(call()))
    mixed = [t.contiguous() if i % 2 else t for i, t in enumerate(inputs)]
    got, plan = executed(functools.partial(tilefold.scan, mixed, MATRICES, 1))
    assert copies(plan) == [f"ordered{i}" for i in range(0, len(inputs), 2)]
    with tilefold.backend("reference"):
        same(got, leaves(tilefold.scan(mixed, MATRICES, 1)))


@pytest.mark.parametrize("dtype", [torch.bool, torch.uint8, torch.float16, torch.float64], ids=str)
def test_copies_of_every_width(dtype: torch.dtype) -> None:
    x = torch.randint(0, 2, (5, 34, 16)).to(dtype).permute(2, 1, 0)
    got, plan = executed(lambda: tilefold.cumsum(x, 1))
    assert copies(plan) == ["ordered0"]
    assert torch.equal(got[0], x.cumsum(1))


@pytest.mark.parametrize(
    ("shape", "order", "dim", "dtype", "copied"),
    [
        (
            (4096, 4096),
            (1, 0),
            0,
            torch.float32,
            True,
        ),  # a program writes one result beside the next program's
        ((4096, 4096), (1, 0), 1, torch.bfloat16, True),  # 8 lanes of 2 bytes
        ((4096, 4096), (1, 0), 1, torch.float32, False),  # 16 lanes of 4 bytes write a row
        ((512, 512), (1, 0), 0, torch.float32, False),  # small: the L2 holds all
        ((19449, 294), (1, 0), 0, torch.bfloat16, False),  # 16 rows of 2 bytes
        ((1000, 128, 256), (2, 0, 1), 1, torch.float32, True),
        ((40, 3, 1000, 64), (0, 2, 3, 1), 3, torch.bfloat16, False),  # rows of 6 bytes
    ],
    ids=str,
)
def test_which_maps_copy(
    shape: tuple[int, ...], order: tuple[int, ...], dim: int, dtype: torch.dtype, copied: bool
) -> None:
    x = torch.empty(shape, dtype=dtype, device="meta").permute(order)
    assert copies(asked(lambda: tilefold.softmax(x, dim))[2]) == ["ordered0"] * copied
    assert not copies(asked(lambda: tilefold.softmax(x, dim, guarantee="batch_invariant"))[2])


def test_a_permuted_residual_is_copied_alone() -> None:
    x, residual = (
        torch.empty(64, 4096, 64, device="meta"),
        torch.empty(64, 64, 4096, device="meta").permute(0, 2, 1),
    )
    call = functools.partial(tilefold.rms_norm, normalized_shape=(64,))
    assert copies(asked(lambda: call(x, residual=residual))[2]) == ["ordered1"]
    assert copies(asked(lambda: call(residual, residual=x))[2]) == ["ordered0"]


def test_maps_of_copies(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(choose_map, "COPIED", 0)
    monkeypatch.setattr(choose_map, "COPIED_ROWS", 0)
    for shape, order, dim in (
        ((5, 34, 16), (2, 1, 0), 1),
        ((17, 1000), (1, 0), 0),
        ((6, 50, 9), (2, 0, 1), 1),
    ):
        x = torch.randn(shape).bfloat16().permute(order)
        (got,), plan = executed(functools.partial(tilefold.softmax, x, dim))
        assert copies(plan) == ["ordered0"]
        torch.testing.assert_close(got.double(), torch.softmax(x.double(), dim), rtol=2**-8, atol=0)
    x, residual = torch.randn(9, 40, 24), torch.randn(9, 24, 40).permute(0, 2, 1)
    (_, added), plan = executed(lambda: tilefold.rms_norm(x, (24,), residual=residual))
    assert copies(plan) == ["ordered1"]
    assert torch.equal(added, x + residual)


def test_what_a_plan_says_of_copies() -> None:
    x = torch.empty(16, 3000, 24, device="meta").permute(2, 1, 0)
    _, _, plan = asked(lambda: tilefold.cumsum(x, 1))
    assert "1 input copied into the results' order" in plan.reason
    assert plan.shape_of("ordered0") == (x.numel(),)
    assert plan.launched[-1].reads == ("ordered0",)
    program = programs.specialize(monoids.SUM.total, (torch.float32,))
    problem = scans.scan_problem([x], 1, "run_to_run")
    assert scans.copied_inputs(problem, "run_to_run") == (0,)
    assert not copies(scans.plan_scan(problem, program, scans.Work(), H200, "run_to_run"))


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32], ids=str)
def test_warps_of_short_permuted_rows(dtype: torch.dtype) -> None:
    """Rows of three loads a thread had three warps a program, which no launch has."""
    for length in (17, 18, 19, 23):
        x = torch.randn(length, 100).to(dtype).t().contiguous().t()
        for guarantee in ("run_to_run", "batch_invariant"):
            (got,), _ = executed(functools.partial(tilefold.softmax, x, 0, guarantee=guarantee))
            want = torch.softmax(x.double(), 0)
            unit = max(torch.finfo(dtype).eps / 2, 2.0**-20)  # of the result, or of an exponential and a sum
            torch.testing.assert_close(got.double(), want, rtol=unit * 1.01, atol=0)


@pytest.mark.parametrize("shape", [(15, 6), (40, 7), (16, 520)], ids=str)
def test_columns_of_inputs_of_three_words(shape: tuple[int, int]) -> None:
    """Threads had a third of their registers' elements, which is no power of two and no tile's side."""
    both = tilefold.Monoid(
        lambda p, q: (p.a + q.a, p.b + q.b),
        (0, 0),
        fields=("a", "b"),
        lift=lambda x, y: (x, y),
        commutative=True,
    )
    x = torch.randint(-3, 4, shape)
    call = functools.partial(tilefold.reduce_map, [x, x.int()], both, lambda x, y, a, b: (x + a, y + b), 0)
    got, _ = executed(call)
    with tilefold.backend("reference"):
        same(got, leaves(call()))
