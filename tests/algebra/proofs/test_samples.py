"""Samples that laws are checked on: of what kinds, around which constants, of which elements; and when two states agree."""

from __future__ import annotations

import itertools
import math
from typing import Any

import pytest
import torch

from tilefold import Monoid, monoids
from tilefold import math as m
from tilefold.algebra.algebra import Algebra, completed
from tilefold.algebra.program import as_written
from tilefold.algebra.proofs.agreement import (
    any_of,
    apart_in_effect,
    close,
    disagreement,
    has,
    limited,
    magnitude,
    not_finite,
    results_apart,
)
from tilefold.algebra.proofs.samples import (
    ROWS,
    Pool,
    choices,
    constants,
    element_of,
    folded,
    kinds_of,
    near,
    pool_of,
    pools_of,
)
from tilefold.algebra.proofs.turns import Turns

INF = math.inf
F64, I64 = torch.float64, torch.int64


def algebra(combine: Any, identity: Any = None, **options: Any) -> Algebra:
    return completed(Monoid(combine, identity, check=False, commutative=False, **options).algebra)


SUM, MAX = algebra(lambda a, b: a + b, 0), algebra(lambda a, b: m.maximum(a, b), -INF)


def pool(of: Algebra, dtype: torch.dtype = F64, kind: str = "moderate") -> Pool:
    found = pool_of(of, (dtype,) * of.inputs, kind)
    assert found is not None
    return found


def tensors(*values: Any) -> tuple[torch.Tensor, ...]:
    return tuple(torch.tensor(v, dtype=F64) for v in values)


def full(*values: float) -> tuple[torch.Tensor, ...]:
    return tuple(torch.full((ROWS,), float(v), dtype=F64) for v in values)


def test_every_dtype_has_a_pool_of_each_kind() -> None:
    found = [(p.program.elements[0], p.kind) for p in pools_of(SUM)]
    assert {(F64, k) for k in ("moderate", "infinite", "huge")} <= set(found)
    assert {(I64, "moderate"), (I64, "huge")} <= set(found)
    for p in pools_of(SUM):
        assert p.rows == ROWS == len(p.states[0][0])
        assert all(field.shape == (ROWS,) for state in p.states for field in state)
        assert len(p.states) == 3
        assert {len(block) for block in p.blocks} == {4}
        assert p.lenient == (p.kind not in ("moderate", "infinite"))
        assert p.cancels == (p.kind == "huge" and p.program.elements == (F64,))
        assert (p.rounding > 0) == (p.program.elements == (F64,))


@pytest.mark.parametrize(("kind", "holds"), [("moderate", False), ("infinite", True)])
def test_states_are_the_elements_lifted_and_combined(kind: str, holds: bool) -> None:
    p = pool(SUM, kind=kind)
    for state, block in zip(p.states, p.blocks, strict=True):
        want = sum(element[0] for element in block[: len(block)])
        lifts = [element[0] for element in block]
        prefixes = torch.stack(list(itertools.accumulate(lifts)))
        got = state[0]
        same = (prefixes == got) | (prefixes.isnan() & got.isnan())
        assert bool(same.any(0).all()), want
    assert bool(has(torch.isinf, *p.states).any()) is holds
    values = {v for block in p.blocks for element in block for v in element[0].tolist()}
    assert {0.0, 1.0, -1.0} <= values
    assert any(math.copysign(1, v) < 0 for block in p.blocks for e in block for v in e[0].tolist() if v == 0)


def test_elements_are_within_the_domain() -> None:
    within = algebra(lambda a, b: a + b, 0, domain=(3, 3.5))
    for p in pools_of(within):
        if p.program.elements == (F64,):
            values = [v for block in p.blocks for element in block for v in element[0].tolist()]
            assert 3 <= min(values) <= max(values) <= 3.5


def test_positions_follow_each_other() -> None:
    placed = algebra(
        lambda a, b: (a.v + b.v, m.maximum(a.i, b.i)), (0, -1), fields=("v", "i"), lift=lambda x, i: (x, i), index=True,
    )  # fmt: skip
    p = pool(placed)
    places = [[int(e[-1][0]) for e in block] for block in p.blocks]
    flat = [place for block in places for place in block]
    assert flat == sorted(set(flat))
    (x, at) = element_of(p.program, [torch.arange(5.0, dtype=F64)], 7)
    assert at.unique().tolist() == [7]
    assert set(x.tolist()) == {0.0, 1.0, 2.0, 3.0, 4.0}
    assert x[:5].tolist() == [0.0, 1.0, 2.0, 3.0, 4.0]
    other = element_of(p.program, [torch.arange(5.0, dtype=F64)], 8)[0]
    assert not torch.equal(x, other)


def test_picks_are_the_same_each_time_and_leave_torchs_generator() -> None:
    state = torch.get_rng_state()
    assert torch.equal(choices(40, 5, 3), choices(40, 5, 3))
    assert not torch.equal(choices(40, 5, 3), choices(40, 5, 4))
    assert set(choices(400, 5, 3).tolist()) == set(range(5))
    assert torch.equal(torch.get_rng_state(), state)


def test_constants_are_those_that_values_may_turn_at() -> None:
    turning = algebra(
        lambda a, b: m.where(a + b > 77, 5.5, a + b * 3), 9, lift=lambda x: m.where(x > 0.25, x, 1.0)
    )
    assert constants(turning)[:2] == [77, 0.25]  # what is compared with comes first
    assert set(constants(turning)) == {77, 0.25, 5.5, 3, 9}
    assert constants(SUM) == constants(MAX) == []  # 0, 1, -1 and infinities are everywhere
    many = algebra(lambda a, b: m.where(a > 40, sum(m.where(b > k, 1.5, 2.5) for k in range(50, 90)), a))
    assert len(constants(many)) == 32


def test_samples_near_a_constant_stand_on_both_sides() -> None:
    turning = algebra(lambda a, b: m.where(a + b > 77.5, 5.5, a + b), 0)
    groups = near(turning, F64)
    first = groups[0]
    assert {77.5, 76.5, 78.5, -77.5, 0.0, 1.0} <= set(first)
    assert sum(77.4 < v < 77.5 for v in first) == sum(77.5 < v < 77.6 for v in first) == 1
    assert len(groups) == 4  # two constants, and as many that mix them
    assert all(len(g) == len(first) for g in groups)
    assert set(groups[2]) | set(groups[3]) <= {v for g in groups[:2] for v in g}
    whole = near(turning, I64)[0]
    assert {76, 77, 78, 79, 80, -77, 0, 1} == set(whole)
    assert near(SUM, F64) == ()
    assert near(turning, torch.bool) == ()
    assert near(algebra(lambda a, b: m.where(a > 2**60, b, a)), I64) == ()


def test_kinds_are_given_in_order() -> None:
    assert kinds_of(SUM, F64, ("moderate", "infinite", "huge"))[:3] == ("moderate", "infinite", "huge")


def test_a_block_is_folded_up_to_its_last() -> None:
    p = pool(SUM)
    block = [full(k + 1) for k in range(4)]
    last = torch.arange(ROWS) % 4
    got = folded(p, block, last)
    assert torch.equal(got[0], torch.tensor([1.0, 3.0, 6.0, 10.0], dtype=F64)[last])


# ------------------------------------------------------------------------------------------------------- agreement


def test_rounding_is_no_disagreement() -> None:
    p = pool(SUM)
    one = full(1000.0)
    for apart, differs in ((0.0, False), (p.rounding * 500, False), (p.rounding * 2000, True), (1e-3, True)):
        other = full(1000.0 + apart)
        assert bool(disagreement(p, one, other, [one]).all()) is differs
        assert bool(disagreement(p, one, other, [one]).any()) is differs
    assert not bool(disagreement(p, full(1.0), full(1.0 + p.rounding * 500), [full(1000.0)]).any())
    assert bool(disagreement(p, full(1.0), full(1.0 + p.rounding * 500), [full(1.0)]).all())


def test_rows_with_nan_prove_nothing_unless_they_are_made() -> None:
    p, nan = pool(SUM), full(math.nan)
    assert not bool(disagreement(p, full(1.0), full(2.0), [nan]).any())
    assert bool(disagreement(p, full(1.0), nan, [full(1.0)]).all())
    assert not bool(
        disagreement(p, full(1.0), full(2.0), [full(1.0)], lost=torch.ones(ROWS, dtype=torch.bool)).any()
    )
    infinite = pool(SUM, kind="infinite")
    assert not bool(disagreement(infinite, full(1.0), nan, [full(1.0)]).any())
    huge = pool(SUM, kind="huge")
    assert not bool(disagreement(huge, full(1.0), full(INF), [full(1.0)]).any())
    assert bool(disagreement(huge, full(1.0), full(2.0), [full(1.0)]).all())


def test_what_an_infinity_makes_forgotten_may_differ() -> None:
    """Of (m, l) with m = -inf any l is the same state; with another m it is not."""
    pair = completed(monoids.LOGSUMEXP.total)
    p = pool(pair, kind="infinite")
    assert not bool(disagreement(p, full(-INF, 0.0), full(-INF, 5.0), [full(-INF, 0.0)]).any())
    assert bool(disagreement(p, full(2.0, 1.0), full(2.0, 5.0), [full(2.0, 1.0)]).all())
    assert bool(disagreement(p, full(INF, 0.0), full(-INF, 0.0), [full(1.0, 0.0)]).all())


def test_forms_of_one_state_are_apart_in_no_effect() -> None:
    """Sums about a pivot may have any: one result comes of both."""
    mean = algebra(
        lambda a, b: (a.p, a.n + b.n, a.s + b.s + (b.p - a.p) * b.n), (0, 0, 0), fields=("p", "n", "s"),
        lift=lambda x: (x, 1.0, 0.0), project=lambda p, n, s: p + s / n,
    )  # fmt: skip
    p = pool(mean)
    one, other = full(1.0, 4.0, 8.0), full(3.0, 4.0, 0.0)
    assert bool(disagreement(p, one, other, [one]).all())
    assert not bool(apart_in_effect(p, one, other, [one, other]).any())
    assert not bool(results_apart(p, one, other, [one, other]).any())
    assert bool(apart_in_effect(p, one, full(3.0, 4.0, 1.0), [one]).all())
    beside_others = apart_in_effect(p, one, full(3.0, 8.0, 0.0), [one])  # alone they are alike
    assert int(beside_others.sum()) > ROWS // 2


def test_infinities_of_whole_numbers_are_limits() -> None:
    assert limited(pool(MAX)) == []
    assert limited(pool(MAX, I64)) == [0]
    assert limited(pool(SUM, I64)) == []
    lifted = algebra(lambda a, b: a + b, 0, lift=lambda x: m.where(x > 0, x, -INF))
    assert limited(pool(lifted, I64)) == [0]


def test_rows_of_states() -> None:
    a, b = tensors([1.0, math.nan, INF, -5.0], [2.0, 1.0, 1.0, 3.0])
    whole = torch.tensor([9, 9, 9, 9])
    assert magnitude([(a, b), (whole,)]).tolist() == [2.0, 1.0, 1.0, 5.0]
    assert has(torch.isnan, (a, b)).tolist() == [False, True, False, False]
    assert has(not_finite, (b,), (a,)).tolist() == [False, True, True, False]
    tolerance = torch.tensor([1.0, 1.0, 1.0, 8.0], dtype=F64)
    assert close(a, b, tolerance).tolist() == [True, False, False, True]
    assert close(a, a, tolerance * 0).tolist() == [True, True, True, True]
    assert close(whole, whole + 1, tolerance * 9).tolist() == [False] * 4
    assert any_of(iter([torch.tensor([True, False]), torch.tensor([False, False])])).tolist() == [True, False]


# ----------------------------------------------------------------------------------------------------------- turns


def test_what_a_combine_turns_at() -> None:
    def turns(combine: Any) -> Turns:
        return Turns(as_written(algebra(combine, 0), (F64,)))

    plain = turns(lambda a, b: a + b)
    assert len(plain) == 0
    assert not plain.steps
    stepping = turns(lambda a, b: m.floor(a + b))
    assert len(stepping) == 0
    assert stepping.steps
    compared = turns(lambda a, b: m.where(a < b, abs(a - b), a))
    assert len(compared) == 2
    assert compared.steps
    a, b = tensors([1.0, 2.0, 3.0], [2.0, 2.0, 1.0])
    told = compared.told((a,), (b,)).tolist()
    assert [True, False, False] in told  # a < b
    assert [True, False, False] in told[::-1]  # a - b < 0
    squares = turns(lambda a, b: (a + b) * (a + b))
    assert len(squares) == 1
    assert len(turns(lambda a, b: a * a + b)) == 0  # of an input alone
    assert len(turns(lambda a, b: (a + b) ** 2.0)) == 1
    assert len(turns(lambda a, b: m.where(a <= a, a, b))) == 0
    many = turns(lambda a, b: sum((m.where(a > k, 1.0, 2.0) for k in range(30)), a + b))
    assert len(many) == 16
