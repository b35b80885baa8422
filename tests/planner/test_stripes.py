"""Columns held in shared memory, executed from PTX: clusters, turns, stripes that are not whole."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch

import tilefold
from planner.held_rows import check
from tilefold import monoids
from tilefold.algebra.program import specialize
from tilefold.api.reduce_map import graph_of, kept
from tilefold.api.requests import RowMap
from tilefold.backends.triton import call as calls
from tilefold.backends.triton.lower import calls_of
from tilefold.functional.normalized import _norms, _shares
from tilefold.planner.device import H200
from tilefold.planner.plan import Launch, Plan, names
from tilefold.planner.problem.canonical import Problem, canonical
from tilefold.planner.products.row import Row, make_row_map
from tilefold.planner.stages.rows import Stripes
from tilefold.planner.stripes import fits
from tilefold.xray.machine.races import races
from xray.running import run_plan

pytestmark = pytest.mark.filterwarnings("ignore::RuntimeWarning:triton", "ignore::DeprecationWarning")
BF16, FP16, FP32 = torch.bfloat16, torch.float16, torch.float32
NAN, INF = float("nan"), float("inf")


def planned(
    monoid: Any, apply: Any, x: torch.Tensor, dim: int, form: dict[str, Any]
) -> tuple[Plan, Problem, Row, RowMap]:
    """A map of columns in stripes of this form."""
    row = make_row_map(monoid.total, apply, (x.dtype,), ())
    request = RowMap(row, (dim,), "run_to_run", tuple(x.shape))
    problem, plan = request.plan([x], H200, library=False)
    stage = Stripes(run=16 // x.dtype.itemsize, **form)
    step = Launch("map_stripes", stage, names("input", 1), names("output", len(row.results)))
    return replace(plan, steps=(step,), workspaces=()), problem, row, request


def executed(monoid: Any, apply: Any, x: torch.Tensor, dim: int, form: dict[str, Any]) -> list[torch.Tensor]:
    """Its results, every program executed."""
    plan, problem, row, request = planned(monoid, apply, x, dim, form)
    results = [torch.empty(s, dtype=d) for s, d in request.results]
    outcomes = run_plan(plan, problem, row, [x], results, 90)
    assert not any(race.differing for o in outcomes for race in races(o))
    return results


def stripes(
    lanes: int, vectors: int, unroll: int, turns: int, depth: int, splits: int = 1, clusters: int = 0
) -> dict[str, Any]:
    return {
        "lanes": lanes, "vectors": vectors, "unroll": unroll, "turns": turns, "depth": depth, "splits": splits,
        "clusters": clusters,
    }  # fmt: skip


FORMS = {  # shape, dim, dtype, form
    "one program a stripe": ((256, 128), 0, BF16, stripes(16, 8, 4, 4, 4)),
    "persistent programs": ((128, 160), 0, FP32, stripes(16, 8, 4, 2, 3, clusters=2)),
    "persistent clusters": ((700, 320), 0, BF16, stripes(32, 8, 4, 2, 3, 3, 1)),
    "columns of several blocks": ((3, 100, 104), 1, BF16, stripes(16, 8, 4, 2, 3, clusters=2)),
    "half lines": ((300, 72), 0, FP16, stripes(32, 4, 2, 3, 4, 2, 1)),
    "two lines": ((2, 300, 64), 1, FP32, stripes(16, 16, 2, 4, 4, 3)),
    "half lines of four bytes": ((500, 48), 0, FP32, stripes(64, 4, 2, 2, 2, 2)),
    "a program has no rows": ((100, 64), 0, BF16, stripes(16, 8, 2, 1, 2, 5, 1)),
}


@pytest.mark.parametrize("name", FORMS)
def test_softmax(name: str) -> None:
    shape, dim, dtype, form = FORMS[name]
    logarithm = dtype == BF16
    x = (torch.randn(shape) + torch.arange(shape[-1])).to(dtype)  # no column's results are another's
    (got,) = executed(*kept(_shares, logarithm), x, dim, form)
    check(got, (torch.log_softmax if logarithm else torch.softmax)(x.double(), dim))


@pytest.mark.parametrize("call", ["layer_norm", "rms_norm"])
@pytest.mark.parametrize(
    "name", ["persistent clusters", "columns of several blocks", "half lines of four bytes"]
)
def test_norms(name: str, call: str) -> None:
    shape, dim, dtype, form = FORMS[name]
    x = (torch.randn(shape) + torch.arange(shape[-1]) % 5).to(dtype)
    (got,) = executed(*kept(_norms, call, shape[dim], 1e-5, (False, False), False), x, dim, form)
    want = getattr(torch.nn.functional, call)(x.double().movedim(dim, -1), (shape[dim],), eps=1e-5)
    check(got, want.movedim(-1, dim))


def test_what_columns_fold_to_where_numbers_are_none() -> None:
    x = torch.randn(300, 64)
    x[:, 0], x[128:256, 1], x[200, 2], x[299, 3], x[:128, 4] = -INF, -INF, INF, NAN, NAN
    (got,) = executed(*kept(_shares, False), x, 0, stripes(16, 8, 4, 2, 3, 3, 1))
    check(got, torch.softmax(x.double(), 0))


def test_a_monoid_without_blocks_and_two_results() -> None:
    x = torch.randn(333, 96).to(BF16)
    apply = graph_of(lambda x, least, most: ((x - least) / (most - least), most - x), 3)
    got, other = executed(monoids.MINMAX, apply, x, 0, stripes(16, 8, 4, 3, 3, 2))
    low, high = x.double().amin(0), x.double().amax(0)
    check(got, (x.double() - low) / (high - low))
    check(other, high - x.double())


def test_equal_columns_have_equal_bits() -> None:
    """Wherever a column is in its stripe: its states are combined in one order."""
    x = torch.randn(300, 1).expand(300, 128).contiguous()
    (got,) = executed(*kept(_shares, False), x, 0, stripes(32, 8, 2, 3, 3, 2))
    assert torch.equal(got, got[:, :1].expand_as(got))


def test_in_place() -> None:
    x = torch.randn(300, 96)
    want = torch.softmax(x.double(), 0)
    plan, problem, row, _ = planned(*kept(_shares, False), x, 0, stripes(16, 8, 4, 3, 4, 2, 1))
    run_plan(plan, problem, row, [x], [x], 90)
    check(x, want)


@pytest.mark.parametrize("call", ["softmax", "layer_norm"])
@pytest.mark.parametrize(
    "form", [stripes(32, 8, 8, 2, 2, 4), stripes(16, 16, 4, 2, 3, 1, 1), stripes(16, 8, 4, 1, 1, 16)], ids=str
)
def test_what_triton_itself_keeps_lies_ahead_of_the_ring(call: str, form: dict[str, Any]) -> None:
    x = torch.empty(1024, 4096, dtype=BF16)
    monoid = (
        kept(_shares, False) if call == "softmax" else kept(_norms, call, 1024, 1e-5, (False, False), False)
    )
    (made,) = calls_of(*planned(*monoid, x, 0, form)[:3])
    assert calls.compile_for(made, 90).metadata.shared <= dict(made.constants)["RESERVED"]


def chosen(
    shape: tuple[int, ...], dim: int, dtype: torch.dtype, call: str, guarantee: str = "run_to_run"
) -> Any:
    """What an H200's plan holds columns in."""
    monoid, apply = (
        kept(_shares, False)
        if call == "softmax"
        else kept(_norms, call, shape[dim], 1e-5, (False, False), False)
    )
    request = RowMap(make_row_map(monoid.total, apply, (dtype,), ()), (dim,), guarantee, shape)
    return request.plan([torch.empty(shape, dtype=dtype, device="meta")], H200, library=False)[1].stages[0]


@pytest.mark.parametrize("call", ["softmax", "rms_norm", "layer_norm"])
@pytest.mark.parametrize("dtype", [BF16, FP16, FP32], ids=str)
@pytest.mark.parametrize(
    "length", [256, 300, 500, 1000, 2000, 3001, 4096, 5000, 7000, 9000, 12000, 16384, 20000]
)
def test_planned_stripes_fit_an_sm(length: int, dtype: torch.dtype, call: str) -> None:
    stage = chosen((length, 65536), 0, dtype, call)
    if not isinstance(stage, Stripes):
        return
    assert (stage.splits - 1) * stage.step < length <= stage.splits * stage.step
    assert stage.turns <= stage.depth
    assert stage.shared_bytes < H200.shared_bytes
    assert stage.num_warps * 32 == stage.lanes * stage.vectors
    assert str(stage).startswith("stripe_columns")


@pytest.mark.parametrize(
    ("shape", "dim", "dtype", "call", "held"),
    [
        ((4096, 65536), 0, BF16, "softmax", True),
        ((4096, 65536), 0, FP32, "softmax", False),
        ((4096, 65536), 0, BF16, "rms_norm", False),
        ((16384, 8192), 0, FP32, "softmax", True),
        ((16384, 200), 0, BF16, "softmax", False),  # too few stripes
        ((1000, 4096), 0, BF16, "softmax", False),
        ((1000, 50001), 0, BF16, "softmax", False),  # no whole vectors
        ((200, 500000), 0, BF16, "softmax", False),
        ((64, 2000, 512), 1, FP16, "softmax", True),
    ],
    ids=str,
)
def test_where_columns_are_held_in_stripes(
    shape: tuple[int, ...], dim: int, dtype: torch.dtype, call: str, held: bool
) -> None:
    assert isinstance(chosen(shape, dim, dtype, call), Stripes) == held
    assert not isinstance(chosen(shape, dim, dtype, call, "batch_invariant"), Stripes)


TWO = tilefold.Monoid(lambda a, b: a + b, 0, lift=lambda x, y: x * y, name="products")
MANY = tilefold.Monoid(lambda a, b: [p + q for p, q in zip(a, b, strict=True)], (0,) * 9,
    fields=tuple("abcdefghi"), lift=lambda x: (x,) * 9, project=lambda *s: s[0], name="nine sums")  # fmt: skip
PLAIN: dict[str, Any] = {"shape": (4096, 65536), "dims": (0,), "dtype": FP32, "monoid": monoids.SUM}


@pytest.mark.parametrize(
    ("other", "held"),
    [
        ({}, True),
        ({"dtype": BF16}, False),  # results of the fold that are stored in two bytes
        ({"dtype": torch.float64}, False),
        ({"dtype": torch.int8}, False),
        ({"dims": (1,)}, False),  # rows
        ({"shape": (64, 3, 64, 4096), "dims": (0, 2)}, False),  # two dims apart
        ({"shape": (4096, 65533)}, False),  # no whole vectors
        ({"shape": (3, 4096, 65536), "dims": (1,)}, True),
        ({"monoid": monoids.ARGMAX}, False),  # positions
        ({"monoid": monoids.LAST}, False),  # in order
        ({"monoid": MANY}, False),
        ({"monoid": monoids.LOGSUMEXP}, True),
        ({"monoid": TWO}, False),  # two inputs
        ({"results": (BF16,)}, False),  # of another size than the elements
        ({"results": (FP32, FP32)}, True),
    ],
    ids=str,
)
def test_which_columns_fit(other: dict[str, Any], held: bool) -> None:
    given = {**PLAIN, **other}
    x = torch.empty(given["shape"], dtype=given["dtype"], device="meta")
    inputs = [x] * given["monoid"].algebra.inputs
    program = specialize(given["monoid"].total, tuple(t.dtype for t in inputs))
    problem = canonical(inputs, given["dims"], ordered=not given["monoid"].commutative, whole=True)
    assert fits(problem, program, given.get("results", (x.dtype,))) == held
