"""Operands that are copied into rows of whole vectors first: the answers, the steps, and where nothing is copied."""

from dataclasses import replace

import pytest
import torch

from tilefold.backends.triton.call import compile_for
from tilefold.backends.triton.executable import interpret, interpret_call
from tilefold.backends.triton.lower import calls_of
from tilefold.planner.device import H200
from tilefold.planner.plan import Plan
from tilefold.planner.products.choose import candidates, choose_product
from tilefold.planner.products.epilogue import make_epilogue
from tilefold.planner.products.operands import canonical_product, loads_of_elements
from tilefold.planner.products.plan import Asked, Candidate, Sizes, Tile
from tilefold.planner.products.steps import product_plan
from tilefold.planner.products.tiles import even_splits, finish_of

interpreted = pytest.mark.filterwarnings("ignore::DeprecationWarning")

TILE = Tile(16, 16, 32, 2, 3)


def matrices(rows, columns, depth, transposed=(False, False), dtype=torch.float16):
    """Operands, either of them with its columns side by side in memory."""
    torch.manual_seed(rows + columns + depth)
    shapes = ((rows, depth), (depth, columns))
    return [
        (torch.randn(shape[::-1]).t() if across else torch.randn(shape)).to(dtype)
        for shape, across in zip(shapes, transposed, strict=True)
    ]


def planned(a, b, packed, splits, epilogue=None, tile=TILE) -> tuple[Plan, object, object]:
    """A plan of so many splits with these operands packed, the problem and the ending."""
    problem = canonical_product(a, b, [])
    rows, columns, depth = problem.rows.size, problem.columns.size, problem.depth.size
    splits = even_splits(depth, tile, splits)
    finish = finish_of(Sizes(rows, columns, depth, 1, 2), splits) if splits > 1 else None
    strategy = "split" if splits > 1 else "whole"
    ending = make_epilogue(epilogue, None, (), a.dtype, None)
    candidate = Candidate(strategy, tile, splits, finish, overlap=splits > 1, packed=packed)
    return product_plan(candidate, problem, ending), problem, ending


@interpreted
@pytest.mark.parametrize("packed", [(True, True), (True, False), (False, True)])
@pytest.mark.parametrize("transposed", [(False, False), (True, False), (False, True), (True, True)])
@pytest.mark.parametrize(
    ("sizes", "splits"), [((37, 51, 131), 1), ((37, 51, 131), 3), ((3, 5, 7), 1), ((33, 1, 65), 2)]
)
def test_packed_operands_give_the_product(packed, transposed, sizes, splits):
    a, b = matrices(*sizes, transposed)
    plan, problem, ending = planned(a, b, packed, splits, "relu")
    out = torch.full((sizes[0] * sizes[1],), torch.nan, dtype=a.dtype)
    interpret(plan, calls_of(plan, problem, ending, interpret=True), ending, [a, b], [out])
    want = torch.relu(a.double() @ b.double())
    spread = a.double().abs() @ b.double().abs()
    bound = 2.0**-22 * sizes[2] * spread + 2.0**-10 * want.abs() + 1e-7
    assert bool(((out.view(sizes[:2]).double() - want).abs() <= bound).all())


@interpreted
def test_what_lies_behind_a_row_never_reaches_a_result():
    a, b = matrices(17, 19, 33)
    a[3, 5], b[7, 2] = torch.inf, torch.nan
    plan, problem, ending = planned(a, b, (True, True), 1)
    out = torch.empty(17 * 19, dtype=a.dtype)
    interpret(plan, calls_of(plan, problem, ending, interpret=True), ending, [a, b], [out])
    want = a.float() @ b.float()
    got = out.view(17, 19)
    assert torch.equal(got.isnan(), want.isnan())
    assert torch.equal(got.isinf(), want.isinf())


@interpreted
def test_elements_that_lie_apart_are_packed():
    a, b = (torch.zeros(2 * m, 3 * n, dtype=torch.float16)[::2, ::3] for m, n in ((17, 33), (33, 19)))
    a.copy_(torch.randn(17, 33))
    b.copy_(torch.randn(33, 19))
    plan, problem, ending = planned(a, b, (True, True), 1)
    out = torch.empty(17 * 19, dtype=a.dtype)
    interpret(plan, calls_of(plan, problem, ending, interpret=True), ending, [a, b], [out])
    torch.testing.assert_close(out.view(17, 19).float(), a.float() @ b.float(), rtol=2e-3, atol=2e-3)


def test_packed_operands_are_copied_asynchronously():
    a, b = matrices(200, 201, 333)
    for packed, copies in (((False, False), False), ((True, True), True)):
        plan, problem, ending = planned(a, b, packed, 1, tile=Tile(64, 64, 64, 4, 3))
        problem = replace(problem, aligned=(16, 16))
        call = calls_of(plan, problem, ending)[-1]
        assert ("cp.async.cg" in compile_for(call, 90).asm["ptx"]) == copies


@pytest.mark.parametrize("overlap", [True, False])
@pytest.mark.parametrize("splits", [1, 3])
def test_nothing_begins_early_where_a_chip_cannot(splits, overlap):
    a, b = matrices(37, 51, 131)
    finish = finish_of(Sizes(37, 51, 131, 1, 2), splits) if splits > 1 else None
    strategy = "split" if splits > 1 else "whole"
    candidate = Candidate(strategy, TILE, splits, finish, overlap=overlap, packed=(True, True))
    ending = make_epilogue(None, None, (), a.dtype, None)
    first, second, *_ = product_plan(candidate, canonical_product(a, b, []), ending).launched
    assert first.kernel == "pack_operands"
    assert (first.releases, second.early) == (overlap, overlap)


@interpreted
def test_copied_rows_end_in_zeros():
    """Rows of 301 and 19 elements, 2 and 32 of them a program."""
    a, b = matrices(9, 19, 301)
    plan, problem, ending = planned(a, b, (True, True), 1)
    call = calls_of(plan, problem, ending, interpret=True)[0]
    packing = plan.launched[0].settings
    assert (packing.lines(0), packing.lines(1)) == (2, 32)
    made = [torch.full(plan.shape_of(name), torch.nan, dtype=a.dtype) for name in ("packed0", "packed1")]
    interpret_call(call, [a, b], made)
    for operand, copy in zip((a, b), made, strict=True):
        assert torch.equal(copy[:, : operand.shape[1]], operand)
        assert not copy[:, operand.shape[1] :].any()


def weighed(rows, columns, depth, batches=1):
    """Which operands the plans that are weighed copy."""
    loose = (depth % 2 == 1, columns % 2 == 1)
    sizes = Sizes(rows, columns, depth, batches, 2, loose)
    return {plan.packed for plan in candidates(sizes, Asked(torch.bfloat16), H200)}


def test_what_vectors_can_read_is_not_packed():
    assert weighed(64, 64, 4096) == {(False, False)}
    assert weighed(64, 64, 4096, batches=3) == {(False, False)}
    assert weighed(64, 63, 4095, batches=3) == {(False, False)}
    assert weighed(64, 63, 4096) == {(False, False), (False, True)}
    assert weighed(64, 63, 4095) == {(False, False), (True, True)}


def test_large_products_of_odd_rows_are_packed_unless_bits_must_not_depend_on_rows():
    a, b = (
        torch.empty(3000, 8000, dtype=torch.bfloat16, device="meta"),
        torch.empty(8000, 2001, dtype=torch.bfloat16, device="meta"),
    )
    problem = replace(canonical_product(a, b, []), aligned=(16, 16))
    assert loads_of_elements(problem) == (False, True)
    assert choose_product(problem, H200, finished=True).packed == (False, True)
    assert choose_product(problem, H200, guarantee="batch_invariant").packed == (False, False)
