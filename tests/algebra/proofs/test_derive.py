"""The block form found in a combine: which have one, what it is, and that it gives what combining gives."""

from __future__ import annotations

import math as python

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import tilefold
from algebra.derived import DERIVED, INF, REFUSED, pair
from answers import guarded
from tilefold import Monoid, math, monoids
from tilefold.algebra.expression import trace
from tilefold.algebra.program import Program, as_written, specialize, with_index_dtype
from tilefold.algebra.proofs import derive, laws
from tilefold.errors import MonoidError
from tilefold.planner import cpu

NAN = float("nan")
U32 = 2.0**-24
# numpy, under Triton's interpreter, warns of whole numbers that wrap and of arrays as scalars.
interpreted = pytest.mark.filterwarnings("ignore::RuntimeWarning", "ignore::DeprecationWarning")
REPRESENTED = [
    torch.float16,
    torch.bfloat16,
    torch.float32,
    torch.float64,
    torch.int64,
    torch.int8,
    torch.uint8,
]


def program_of(monoid: Monoid, dtype: torch.dtype = torch.float32) -> Program:
    return specialize(monoid.total, (dtype,) * monoid.algebra.inputs)


# ---------------------------------------------------------------------------------------------------- structure


@pytest.mark.parametrize("name", DERIVED)
@pytest.mark.parametrize("dtype", REPRESENTED, ids=str)
def test_a_term_of_either_side_has_a_block_form(name, dtype):
    program = program_of(DERIVED[name].monoid, dtype)
    assert program.absorb is not None
    assert program.begin is not None
    assert program.absorb.output_dtypes == program.state


@pytest.mark.parametrize("name", REFUSED)
def test_what_has_none_stays_as_written(name):
    algebra = REFUSED[name].total
    elements = (torch.float32,) * algebra.inputs
    assert specialize(algebra, elements) == as_written(algebra, elements)


@pytest.mark.parametrize("name", ["a sum off by one", "unguarded, unchecked", "NaN kept out"])
def test_the_form_alone_does_not_decide(name):
    """The structure suggests a block form; the samples refuse it."""
    algebra = REFUSED[name].algebra
    assert derive.with_blocks(as_written(algebra, (torch.float32,))) is not None
    assert not laws.blocks_agree(algebra, (torch.float64,))


def test_the_pairs_block_form_is_the_one_a_person_writes():
    """One exponential an element and one for the state; the factor that lift makes 1 is gone."""

    def begin(x):
        m = math.block_max(x)
        return m, math.block_sum(math.exp(x - math.where(m == -INF, 0, m)))

    def absorb(m, l, x):
        new = math.maximum(m, math.block_max(x))
        shift = math.where(new == -INF, 0, new)
        block = math.block_sum(math.exp(x - shift))
        return new, math.exp(m - shift) * l + block

    program = program_of(pair())
    assert program.begin.graph == trace(begin, 1)
    assert program.absorb.graph == trace(absorb, 3)


def test_what_no_element_decides_is_counted():
    graph = program_of(DERIVED["moments"].monoid).begin.graph
    assert graph.nodes[graph.outputs[0]].op == "block_count"


def test_the_parts_of_the_attention_triple():
    form = derive.form_of(DERIVED["attention"].monoid.algebra.combine)
    assert [(p.field, p.op, sorted(p.own), p.rescales) for p in form.parts] == [
        (0, "maximum", [0], False),
        (1, "add", [0, 1], True),
        (2, "add", [0, 2], True),
    ]


def test_the_catalogue_stays_as_it_is():
    for monoid in [m for m in vars(monoids).values() if isinstance(m, Monoid)]:
        elements = (torch.float32 if "bitwise" not in monoid.name else torch.int32,) * monoid.algebra.inputs
        assert specialize(monoid.total, elements) == as_written(monoid.total, elements), monoid.name


def test_lift_is_rounded_to_the_state_as_it_is_for_a_combine():
    """A whole-numbered field takes the whole part of each lifted element, not that of their sum."""
    monoid = Monoid(
        lambda a, b: ((m := a.m + b.m), a.l * (m == m) + b.l * (m == m)),
        (0, 0),
        fields=("m", "l"),
        lift=lambda x: (x, x * 0.75),
        dtypes=(torch.float32, torch.int64),
        check=False,
        commutative=True,
    )
    assert program_of(monoid).absorb is not None
    x = torch.tensor([1.0, 1.0, 1.0, 2.0, 7.0] * 20)
    with tilefold.backend("cpu"):
        assert tilefold.reduce(x, monoid).l.item() == 20 * 6


def test_positions_take_part():
    """The position of a largest element's block mates, weighted: positions are computed with, so they stay 64 bits wide."""
    monoid = pair(lift=lambda x, i: (x, i * 1.0), index=True, project=lambda m, l: l, name="positions")
    assert program_of(monoid).absorb is not None
    x = torch.zeros(5000)
    with tilefold.backend("cpu"):
        got = tilefold.reduce(x, monoid)
    assert got.item() == sum(range(5000))


def test_positions_that_are_only_compared_may_be_narrowed():
    monoid = pair(
        lift=lambda x, i: (x, math.where(i > 1, 1.0, 2.0)), index=True, project=lambda m, l: l, name="later"
    )
    narrow = with_index_dtype(program_of(monoid), torch.int32)
    assert narrow.absorb.input_dtypes[-1] == torch.int32
    with tilefold.backend("cpu"):
        assert tilefold.reduce(torch.zeros(100), monoid).item() == 102


def weighted_mean(a, b):
    """Of either side's term, with a weight that may wrap: its sum is read as it is before it does."""
    w = a.w + b.w
    some = math.where(w == 0, 1, w)
    return w, a.w * a.mean / some + b.w * b.mean / some


def first_place(a, b):
    m = math.maximum(a.v, b.v)
    return m, math.minimum(math.where(a.v == m, a.i, INF), math.where(b.v == m, b.i, INF))


def counted_pair(a, b):
    return *guarded(a, b), a.n + b.n


PLACED = {
    "first-place": Monoid(
        first_place, (-INF, INF), fields=("v", "i"), lift=lambda x, i: (x, i), dtypes=("input", "index"), index=True,
        project=lambda v, i: i,
    ),
    **{
        f"weighted-{dtype}": Monoid(
            weighted_mean, (0, 0), fields=("w", "mean"), lift=lambda x: (1, x * 1.0), dtypes=(dtype, "compute"),
            project=lambda w, mean: mean,
        )
        for dtype in (torch.int8, torch.int16, torch.uint32, torch.int32)
    },
    **{
        f"count-{dtype}": Monoid(
            counted_pair, (-INF, 0, 0), fields=("m", "l", "n"), lift=lambda x: (x, 1, 3),
            dtypes=("compute", "compute", dtype), project=lambda m, l, n: (m + math.log(l), n),
        )
        for dtype in (torch.int8, torch.uint8, torch.int16, torch.uint32)
    },
}  # fmt: skip


def placed_answer(name, x):
    """What each of these gives of rows: counts modulo what their dtype holds."""
    if name == "first-place":
        return (x.argmax(1),)
    if name.startswith("weighted"):
        return (x.mean(1),)
    bits = 8 if "int8" in name else 16 if "16" in name else 32
    count, limit = 3 * x.shape[1] % (1 << bits), 1 << bits - 1
    return x.logsumexp(1), torch.full(
        x.shape[:1], count - (count >= limit and "uint" not in name) * (1 << bits)
    )


@interpreted
@pytest.mark.parametrize("name", PLACED)
@pytest.mark.parametrize("backend", ["reference", "cpu", "interpret"])
def test_fields_that_wrap_or_hold_limits_fold_as_they_combine(name, backend):
    """Their graphs have nodes more than the author's: a form's nodes are those of the graph that is run."""
    x = torch.randint(0, 9, (3, 100)).float()
    with tilefold.backend(backend):
        got = tilefold.reduce(x, PLACED[name], 1)
    for one, want in zip(got if isinstance(got, tuple) else (got,), placed_answer(name, x), strict=True):
        torch.testing.assert_close(one.double(), want.double(), rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize(("name", "derived"), [
    ("first-place", True), ("weighted-torch.int32", True), ("count-torch.int8", True), ("count-torch.uint32", True),
    ("weighted-torch.int8", False),  # a term reads what wraps: one by one it would be another value than over a block
])  # fmt: skip
def test_a_sum_that_wraps_has_a_block_form_where_no_term_reads_it(name, derived):
    assert (program_of(PLACED[name]).absorb is not None) is derived


def test_a_sum_of_floats_cut_to_whole_numbers_has_no_block_form():
    """Each step keeps the whole part alone, so a block's sum would keep more."""
    monoid = Monoid(
        lambda a, b: (*guarded(a, b), math.cast(a.n * 0.5 + b.n * 0.5, torch.int32) & 255), (-INF, 0, 0),
        fields=("m", "l", "n"), lift=lambda x: (x, 1, 3), dtypes=("compute", "compute", torch.uint8),
        check=False, commutative=True,
    )  # fmt: skip
    assert program_of(monoid).absorb is None


@interpreted
@pytest.mark.parametrize("dtype", [torch.int8, torch.uint8, torch.int16], ids=str)
def test_a_constant_of_lift_is_a_value_of_its_field(dtype):
    """300 is 44 in 8 bits, also where no graph computes it."""
    monoid = Monoid(
        lambda a, b: (a.m + b.m, math.maximum(a.n, b.n)), (0, -INF), fields=("m", "n"), lift=lambda x: (x, 33000 + 300),
        dtypes=("compute", dtype), check=False, commutative=True,
    )  # fmt: skip
    want = torch.tensor(33300).to(dtype)
    for backend in ("reference", "cpu", "interpret"):
        with tilefold.backend(backend):
            assert tilefold.reduce(torch.ones(2, 40), monoid, 1).n.tolist() == [want.item()] * 2


def test_a_derived_form_is_denied_by_false_alone():
    assert program_of(pair(absorb=False)).absorb is None
    assert pair(absorb=False).algebra != pair().algebra
    with pytest.raises(MonoidError, match=r"absorb must be .*False.*got True; "):
        pair(absorb=True)


def test_an_authors_own_form_stays():
    def absorb(s, x):
        m = math.maximum(s.m, math.block_max(x))
        shift = math.where(m == -INF, 0, m)
        return m, s.l * math.exp(s.m - shift) + math.block_sum(math.exp2((x - shift) / python.log(2)))

    monoid = pair(absorb=absorb)
    assert program_of(monoid).absorb.graph == monoid.algebra.absorb


def test_plans_say_that_blocks_are_absorbed():
    x = torch.empty(64, 4096, device="meta")
    assert "absorbing blocks" in str(tilefold.explain_plan(x, pair(), 1))
    assert "absorbing blocks" not in str(tilefold.explain_plan(x, pair(absorb=False), 1))
    with tilefold.backend("cpu"):
        tilefold.reduce(torch.zeros(4096), pair())
    assert "blocks" in str(tilefold.last_plan())


# ------------------------------------------------------------------------------------------------------- values


@settings(max_examples=60)
@given(
    name=st.sampled_from(sorted(DERIVED)),
    rows=st.integers(1, 5),
    length=st.sampled_from([1, 2, 3, 4, 5, 63, 64, 65, 1000, 4097]),
    scale=st.sampled_from([1e-3, 1.0, 20.0]),
    guarantee=st.sampled_from(["run_to_run", "batch_invariant"]),
    columns=st.booleans(),
)
def test_results_stay_in_the_bound(name, rows, length, scale, guarantee, columns):
    derived = DERIVED[name]
    inputs = [torch.randn(rows, length) * scale] + [torch.randn(rows, length)] * (
        derived.monoid.algebra.inputs - 1
    )
    wide = [x.double() for x in inputs]
    given_ = [x.t().contiguous() for x in inputs] if columns else inputs
    with tilefold.backend("cpu"):
        got = tilefold.reduce(given_, derived.monoid, 0 if columns else 1, guarantee=guarantee).double()
    want, size = derived.answer(*wide), derived.size(*wide)
    steps = 2 * cpu.STEPS + python.ceil(python.log2(length + 1)) + cpu.PARTS
    assert ((got - want).abs() <= 8 * steps * U32 * size + U32 * want.abs()).all()


@settings(max_examples=25)
@given(
    name=st.sampled_from(sorted(DERIVED)),
    shape=st.sampled_from([(2, 9), (1, 40), (3, 4)]),
    tiny=st.booleans(),
)
def test_lanes_and_the_definition_agree(name, shape, tiny):
    """In float64, where both are nearly exact; tiny blocks, so that states absorb many."""
    monoid = DERIVED[name].monoid
    inputs = [torch.randn(shape, dtype=torch.float64) * 5 for _ in range(monoid.algebra.inputs)]
    results = []
    for backend in ("reference", "cpu"):
        with tilefold.backend(backend), pytest.MonkeyPatch.context() as patch:
            for constant, value in {"BLOCK": 4, "RUN": 2}.items() if tiny else ():
                patch.setattr(cpu, constant, value)
            results.append(tilefold.reduce(inputs, monoid, 1))
    torch.testing.assert_close(results[1], results[0], rtol=1e-12, atol=1e-12)


CORNERS = {
    "all -inf": [-INF] * 9,
    "one -inf": [-INF, 1.0, 2.0, 3.0, 0.5],
    "a block of -inf": [*[-INF] * 8, 1.0, 2.0, 3.0],
    "-inf after": [1.0, 2.0, 3.0, *[-INF] * 8],
    "NaN": [1.0, 2.0, NAN, 3.0, -INF],
    "one": [3.5],
    "one -inf alone": [-INF],
    "far apart": [1e30, -1e30, 0.0, 5.0, 1e30],
    "huge": [3e38, 3e38, 1.0, 3e38],
    "empty": [],
}


@pytest.mark.parametrize("tiny", [False, True], ids=["whole", "cut"])
@pytest.mark.parametrize("corner", CORNERS)
@pytest.mark.parametrize("backend", ["cpu", "reference"])
def test_corners_of_the_pair_are_those_of_log_sum_exp(backend, corner, tiny, monkeypatch):
    if tiny:
        monkeypatch.setattr(cpu, "BLOCK", 4)
        monkeypatch.setattr(cpu, "RUN", 2)
    x = torch.tensor(CORNERS[corner])
    with tilefold.backend(backend):
        got = tilefold.reduce(x, pair())
    torch.testing.assert_close(got, x.logsumexp(0), equal_nan=True)


@pytest.mark.parametrize("values", [[INF, 1.0, 2.0, 0.0, 1.0], [INF] * 6, [INF, -INF, 0.0, 1.0]], ids=str)
def test_what_the_guard_leaves_open_is_as_without_blocks(values):
    """inf - inf is NaN in this combine: a block form neither mends nor worsens it."""
    x = torch.tensor(values)
    results = []
    for absorb in (None, False):
        with tilefold.backend("cpu"):
            results.append(tilefold.reduce(x, pair(absorb=absorb)))
    torch.testing.assert_close(*results, equal_nan=True)
    assert results[0].isnan()


@pytest.mark.parametrize("dtype", [torch.int32, torch.int64])
def test_whole_numbers_wrap_as_they_do_without_blocks(dtype):
    """The sum that a term rescales by keeps its dtype, and wraps."""

    def counted(a, b):
        m = math.maximum(a.m, b.m)
        return m, a.l * (m == m) + b.l * (m == m), a.k + b.k

    options = {
        "fields": ("m", "l", "k"),
        "lift": lambda x: (x, x, x),
        "dtypes": dtype,
        "check": False,
        "commutative": True,
    }
    x = torch.full((999,), torch.iinfo(dtype).max // 3, dtype=dtype)
    results = []
    for absorb in (None, False):
        monoid = Monoid(counted, (-INF, 0, 0), absorb=absorb, **options)
        assert (program_of(monoid, dtype).absorb is None) == (absorb is False)
        with tilefold.backend("cpu"):
            results.append(tilefold.reduce(x, monoid))
    assert all(torch.equal(one, other) for one, other in zip(*results, strict=True))


def test_the_guarantees_hold():
    """Batch-invariant folds stay with lanes; run to run, the bits repeat."""
    x = torch.randn(33, 5000)
    monoid = pair()
    with tilefold.backend("cpu"):
        once, again = (tilefold.reduce(x, monoid, 1) for _ in range(2))
        among = tilefold.reduce(x, monoid, 1, guarantee="batch_invariant")
        assert "blocks" not in str(tilefold.last_plan())
        alone = tilefold.reduce(x[7:8], monoid, 1, guarantee="batch_invariant")
    assert torch.equal(once, again)
    assert torch.equal(alone[0], among[7])


def test_a_mended_pair_with_infinities_of_its_own_is_checked_once_for_all_floats():
    laws.blocks_agree.cache_clear()
    monoid = Monoid(guarded, (-INF, 0), fields=("m", "l"), lift=lambda x: (x, 3))
    for dtype in (torch.float32, torch.bfloat16, torch.float64):
        program_of(monoid, dtype)
    assert laws.blocks_agree.cache_info().misses == 1
