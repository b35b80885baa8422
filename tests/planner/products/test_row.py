"""Rows folded in the store that makes their results final: on the CPU, in Triton's interpreter, and compiled."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

import tilefold
from backends.test_products import filled, interpreted
from plans import product_calls, run_interpreted
from tilefold import Monoid, monoids
from tilefold.algebra.program import quick_form
from tilefold.backends.cpu.row_tiles import map_by_definition
from tilefold.backends.triton import call as calls
from tilefold.errors import EmptyError
from tilefold.functional import normalized
from tilefold.math import exp
from tilefold.planner.device import Device
from tilefold.planner.products.choose import choose_product
from tilefold.planner.products.epilogue import make_epilogue
from tilefold.planner.products.operands import canonical_product
from tilefold.planner.products.plan import Candidate, Finish, Tile
from tilefold.planner.products.row import make_row_map, without_constants

Tensor = torch.Tensor
Row = tuple[Monoid, Callable[..., Any] | None]

SOFTMAX: Row = (monoids.LOGSUMEXP, lambda x, total: exp(x - total))
TOP: Row = (monoids.MAX_WITH_INDEX, None)
PLANS = {
    "whole": Candidate("whole", Tile(16, 32, 32, 1, 2)),
    "split": Candidate("split", Tile(16, 16, 32, 1, 2), 3, Finish(64, 2, 1, 32)),
    "one split": Candidate("split", Tile(16, 16, 64, 1, 2), 1, Finish(32, 1, 1, 32)),
    "cublas": Candidate("cublas", finish=Finish(128, 1, 1, 32)),
}


def backends() -> list[Any]:
    return ["torch", "cpu", "reference", pytest.param("interpret", marks=interpreted)]


@pytest.mark.parametrize("backend", backends())
def test_softmax_of_rows(backend: str) -> None:
    a, b, bias = filled((5, 300)) / 17, filled((300, 20), seed=1), filled((20,), seed=2)
    with tilefold.backend(backend):
        got, total = tilefold.matmul(a, b, bias=bias, row=SOFTMAX)
    want = a.double() @ b.double() + bias
    torch.testing.assert_close(got, want.softmax(1).float(), rtol=1e-5, atol=0)
    torch.testing.assert_close(total, want.logsumexp(1).float(), rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("backend", backends())
def test_a_routers_choice(backend: str) -> None:
    """The logits as they are without `row`, and each row's greatest with its place."""
    a, b = filled((7, 200), torch.float16), filled((200, 30), torch.float16, 1)
    with tilefold.backend(backend):
        logits, top = tilefold.matmul(a, b, row=TOP)
    want = a.double() @ b.double()
    assert logits.dtype == torch.float16
    torch.testing.assert_close(logits.double(), want, rtol=2**-10, atol=1e-4)
    torch.testing.assert_close(top.values, want.amax(1).float(), rtol=1e-5, atol=1e-4)
    assert torch.equal(top.indices, want.argmax(1))


@interpreted
@pytest.mark.parametrize("row", [SOFTMAX, TOP, (monoids.WELFORD, None)], ids=["softmax", "top", "moments"])
@pytest.mark.parametrize("plan", list(PLANS))
@pytest.mark.parametrize(
    ("left", "right"),
    [((1, 96), (96, 1)), ((5, 130), (130, 32)), ((18, 70), (70, 20)), ((2, 3, 70), (2, 70, 17))],
    ids=str,
)
def test_every_plan(left: tuple[int, ...], right: tuple[int, ...], plan: str, row: Row) -> None:
    a, b = filled(left) / 8, filled(right, seed=1)
    residual = filled((left[-2], 1), seed=2)
    ending = make_epilogue(lambda x, r: x + r, None, (torch.float32,), torch.float32, None, row)
    assert ending.row is not None
    value = a @ b + residual
    results = [torch.empty(value.shape)]
    results += [torch.empty(value.shape[:-1], dtype=d) for d in ending.row.program.outputs]
    seen = [residual.expand(value.shape)]
    run_interpreted(PLANS[plan], [a, b, *seen], ending, results)
    monoid, apply = row
    folded = tilefold.reduce(value, monoid, -1)
    parts = folded if isinstance(folded, tuple) else (folded,)
    for got, want in zip(results[1:], parts, strict=True):
        torch.testing.assert_close(got, want, rtol=1e-4, atol=1e-5)
    want = value.softmax(-1) if apply else value
    torch.testing.assert_close(results[0], want, rtol=1e-4, atol=1e-5)


@interpreted
def test_neighbours_meet_in_order() -> None:
    """A monoid in which order matters: the last value that is above zero."""
    last = Monoid(
        lambda a, b: (tilefold.math.where(b.seen, b.value, a.value), a.seen | b.seen),
        (0.0, False),
        fields=("value", "seen"),
        dtypes=("compute", torch.bool),
        lift=lambda x: (tilefold.math.where(x > 0, x, 0.0), x > 0),
        project=lambda value, seen: value,
    )
    assert not last.commutative
    a, b = filled((9, 40)), filled((40, 21), seed=1)
    want = [next(float(v) for v in reversed(line) if v > 0) for line in a @ b]
    for backend in ("torch", "reference", "interpret"):
        with tilefold.backend(backend):
            _, got = tilefold.matmul(a, b, row=(last, None))
        torch.testing.assert_close(got, torch.tensor(want), rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("backend", backends())
def test_nan_goes_on_and_integers_are_exact(backend: str) -> None:
    a, b = filled((3, 40)), filled((40, 6), seed=1)
    a[1, 2] = float("nan")
    whole, part = filled((3, 40), torch.int8), filled((40, 6), torch.int8, 1)
    with tilefold.backend(backend):
        got, total = tilefold.matmul(a, b, row=SOFTMAX)
        _, most = tilefold.matmul(whole, part, row=(monoids.MAX, None))
    assert bool(got[1].isnan().all())
    assert bool(total[1].isnan())
    assert bool(got[0].isfinite().all())
    assert torch.equal(most, (whole.double() @ part.double()).amax(1).int())


@pytest.mark.parametrize("backend", backends())
def test_nothing_to_fold(backend: str) -> None:
    with tilefold.backend(backend):
        zeros, total = tilefold.matmul(torch.ones(3, 0), torch.ones(0, 4), row=SOFTMAX)
        empty, sums = tilefold.matmul(torch.ones(3, 5), torch.ones(5, 0), row=(monoids.SUM, None))
        vector = tilefold.matmul(torch.ones(5), torch.ones(5, 2), row=(monoids.SUM, None))[1]
        with pytest.raises(EmptyError, match="rows of no columns and first without one"):
            tilefold.matmul(torch.ones(3, 5), torch.ones(5, 0), row=(monoids.FIRST, None))
    torch.testing.assert_close(zeros, torch.full((3, 4), 0.25))
    torch.testing.assert_close(total, torch.full((3,), 4.0).log())
    assert empty.shape == (3, 0)
    assert torch.equal(sums, torch.zeros(3))
    assert vector.item() == 10


def test_a_row_does_not_know_its_batch() -> None:
    a, b = filled((33, 515)), filled((515, 20), seed=1)
    whole, total = tilefold.matmul(a, b, row=SOFTMAX, guarantee="batch_invariant")
    for rows in (1, 2, 17):
        part, few = tilefold.matmul(a[:rows], b, row=SOFTMAX, guarantee="batch_invariant")
        assert torch.equal(part, whole[:rows])
        assert torch.equal(few, total[:rows])


def test_results_without_data() -> None:
    a, b = torch.empty(4, 6, device="meta"), torch.empty(6, 3, device="meta")
    got, top = tilefold.matmul(a, b, row=TOP, out_dtype=torch.float16)
    assert (got.shape, got.dtype, top.indices.shape) == ((4, 3), torch.float16, (4,))
    assert top.indices.dtype == torch.int64


@pytest.mark.parametrize("architecture", [80, 90, 100])
@pytest.mark.parametrize("row", [SOFTMAX, TOP], ids=["softmax", "top"])
@pytest.mark.parametrize("columns", [48, 256])
def test_compiles(columns: int, row: Row, architecture: int) -> None:
    a, b = (torch.empty(s, dtype=torch.bfloat16, device="meta") for s in ((16, 7168), (7168, columns)))
    problem, chip = canonical_product(a, b, []), Device("any", 132, architecture, 4000.0)
    ending = make_epilogue(None, None, (), torch.bfloat16, None, row)
    whole = Candidate("whole", Tile(16, 64, 64, 4, 3))
    for plan in (choose_product(problem, chip, cublas=False, row=True), *([whole] if columns == 48 else [])):
        for call in product_calls(plan, problem, ending):
            assert "ld.local" not in calls.compile_for(call, architecture).asm["ptx"]


def test_results_that_a_form_leaves_constant_are_no_operands() -> None:
    """Rows whose squares are in range are divided by their norm alone: the factor beside it is 1."""
    monoid, apply = normalized._by_norm(2, 1e-12)
    row = make_row_map(monoid.total, apply, (torch.float32,), ())
    quick, places = without_constants(row, quick_form(row.program))
    assert places == (1,)
    assert len(quick.taken) == len(row.taken) - 1
    x, norm = torch.tensor([3.0, -7.5]), torch.tensor([2.0, 0.3])
    (got,) = map_by_definition(quick, [x, norm])
    assert got.equal(map_by_definition(row, [x, torch.ones(2), norm])[0])
    assert without_constants(row, row.program) == (row, (0, 1))
