"""The CPU lanes against the reference and float64: any layout, any cut, order, guarantees, error bounds."""

from __future__ import annotations

import itertools
import math
import threading
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from unittest import mock

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import tilefold
from answers import bits_of
from in_modes import threads
from layouts import dims_of, layouts, shapes
from tilefold import math as tm
from tilefold import monoids
from tilefold.algebra.program import specialize
from tilefold.api.on_cpu import by_tiles
from tilefold.backends import reference
from tilefold.backends.cpu import loops, tiles, workers
from tilefold.backends.cpu.elementwise import Workspace
from tilefold.planner import cpu
from tilefold.planner.folds import narrowed
from tilefold.planner.stages import cpu as stages

INF, NAN = float("inf"), float("nan")
U32 = 2.0**-24

# Constants so small that a short test is cut as a long fold is: several parts, tiles, groups, and odd ends everywhere.
TINY = {"LANES": 8, "BLOCK": 16, "RUN": 2, "STEPS": 2, "ORDERED_ALONE": 4, "PARTS": 4, "PART": 6}


@contextmanager
def cut(tiny: bool) -> Iterator[None]:
    with ExitStack() as patches:
        if tiny:
            patches.enter_context(mock.patch.multiple(cpu, **TINY))
            patches.enter_context(mock.patch.object(stages, "SHORT", 3))
            patches.enter_context(mock.patch.object(loops, "LEVEL", 2))
        yield


def pieces_in_one(tensors, program):
    return tiles.inputs_of(tensors, program, cpu.cpu_problem(tensors, program, (0,), "run_to_run"))


def fold(tensors, monoid, dims, guarantee="run_to_run"):
    return by_tiles(tensors, specialize(monoid.total, tuple(t.dtype for t in tensors)), dims, guarantee)[0]


def _compose(f, g):
    """First f, then g, of maps of {0, 1, 2} into itself."""
    return tuple(tm.where(x == 0, g.a, tm.where(x == 1, g.b, g.c)) for x in f)


# Monoids that a user might bring: non-commutative on three inputs, commutative with an awkward operation, lexicographic.
MAPS = tilefold.Monoid(
    _compose, (0, 1, 2), fields=("a", "b", "c"), check=False, commutative=False, name="maps"
)
MODULO = tilefold.Monoid(
    lambda a, b: (a + b) % 7,
    0,
    lift=lambda x: x % 7,
    dtypes=torch.int64,
    check=False,
    commutative=True,
    name="mod 7",
)
LONGEST = tilefold.Monoid(
    lambda a, b: (tm.maximum(a.best, tm.maximum(b.best, a.tail + b.head)), tm.where(a.whole == 1, a.head + b.head, a.head),
                  tm.where(b.whole == 1, a.tail + b.tail, b.tail), a.whole & b.whole),
    (0, 0, 0, 1),
    fields=("best", "head", "tail", "whole"),
    lift=lambda x: (*(tm.where(x > 0, 1, 0),) * 3, tm.where(x > 0, 1, 0)),
    project=lambda best, head, tail, whole: best,
    dtypes=torch.int64,
    check=False,
    commutative=False,
    name="longest run of positives",
)  # fmt: skip

# Answers without rounding on small whole numbers, so that every cut must give the reference's very values.
EXACT = {
    "sum": monoids.SUM, "max": monoids.MAX, "min": monoids.MIN, "argmax": monoids.ARGMAX, "argmin": monoids.ARGMIN,
    "max_with_index": monoids.MAX_WITH_INDEX, "minmax": monoids.MINMAX, "any": monoids.ANY, "all": monoids.ALL,
    "count_nonzero": monoids.COUNT_NONZERO, "norm(1)": monoids.NORM(1.0), "norm(inf)": monoids.NORM(INF),
    "compensated": monoids.SUM_COMPENSATED, "first": monoids.FIRST, "last": monoids.LAST, "modulo": MODULO,
    "longest": LONGEST, "or": monoids.BITWISE_OR, "and": monoids.BITWISE_AND, "xor": monoids.BITWISE_XOR,
}  # fmt: skip
WHOLE = ("or", "and", "xor", "modulo")
FLOATS = (torch.float32, torch.float64, torch.float16, torch.bfloat16)
WHOLES = (torch.int64, torch.int32, torch.int8, torch.uint8, torch.uint16, torch.uint64, torch.bool)
GUARANTEES = st.sampled_from(["run_to_run", "batch_invariant"])


def whole_numbers(dtype):
    """Few values, so that ties are frequent; all within every dtype."""

    def fill(shape):
        low = -3 if dtype in FLOATS or dtype in (torch.int64, torch.int32, torch.int8) else 0
        numbers = torch.randint(low, 4, tuple(shape))
        return (numbers > 0) if dtype == torch.bool else numbers.to(dtype)

    return fill


@st.composite
def cases(draw, inputs: int = 1):
    shape = draw(shapes(sizes=(0, 1, 2, 3, 7, 17)))
    return shape, draw(dims_of(len(shape))), [draw(layouts(len(shape))) for _ in range(inputs)]


@settings(max_examples=100)
@given(
    case=cases(),
    name=st.sampled_from(sorted(EXACT)),
    data=st.data(),
    tiny=st.booleans(),
    guarantee=GUARANTEES,
)
def test_any_monoid_in_any_layout(case, name, data, tiny, guarantee):
    shape, dims, (layout,) = case
    dtype = data.draw(st.sampled_from(WHOLES if name in WHOLE else FLOATS + WHOLES))
    x = layout.place(shape, whole_numbers(dtype)).expand(shape)
    if EXACT[name].algebra.identity is None and any(shape[d] == 0 for d in dims):
        return  # a fold of nothing without an identity is refused before it comes here
    program = specialize(EXACT[name].total, (dtype,))
    with cut(tiny):
        got, plan = by_tiles([x], program, dims, guarantee)
    assert (plan.backend, plan.guarantee) == ("cpu", guarantee)
    outputs = [n for d, n in enumerate(shape) if d not in dims]
    if math.prod(outputs) == 0:
        assert [list(g.shape) for g in got] == [outputs] * len(got)
        return
    for mine, want in zip(got, reference.fold([x], program, dims), strict=True):
        assert (mine.dtype, mine.shape) == (want.dtype, want.shape)
        assert torch.equal(bits_of(mine), bits_of(want) if want.dtype != torch.uint64 else want)


def signs(shape):
    return torch.randint(0, 2, tuple(shape)) * 2.0 - 1.0


def quarter_turns(inputs):
    """Matrices of 0, 1 and -1 whose products are again such matrices."""
    swap = torch.randint(0, 2, inputs) == 1
    a, b = (torch.randint(0, 2, inputs) * 2.0 - 1.0 for _ in range(2))
    zero = torch.zeros(inputs)
    return [
        torch.where(swap, zero, a),
        torch.where(swap, b, zero),
        torch.where(swap, a, zero),
        torch.where(swap, zero, b),
    ]


@settings(max_examples=50)
@given(shape=shapes(3, (1, 2, 3, 5, 30)), data=st.data(), tiny=st.booleans(), guarantee=GUARANTEES)
@pytest.mark.parametrize("name", ["affine", "matmul2x2", "maps"])
def test_order_is_kept(name, shape, data, tiny, guarantee):
    dims = data.draw(dims_of(len(shape)))
    monoid = {"affine": monoids.AFFINE, "matmul2x2": monoids.MATMUL2X2, "maps": MAPS}[name]
    places = [data.draw(layouts(len(shape))) for _ in range(monoid.algebra.inputs)]
    if name == "matmul2x2":
        tensors = [p.place(shape, lambda _, v=v: v) for p, v in zip(
            [data.draw(layouts(len(shape), may_broadcast=False)) for _ in range(4)], quarter_turns(shape), strict=True
        )]  # fmt: skip
    else:
        fill = signs if name == "affine" else lambda own: torch.randint(0, 3, tuple(own))
        tensors = [p.place(shape, fill).expand(shape) for p in places]
    program = specialize(monoid.total, tuple(t.dtype for t in tensors))
    with cut(tiny):
        got = by_tiles(tensors, program, dims, guarantee)[0]
    for mine, want in zip(got, reference.fold(tensors, program, dims), strict=True):
        assert torch.equal(mine, want)


@pytest.mark.parametrize("name", ["sum", "argmax", "longest", "last"])
@pytest.mark.parametrize("guarantee", ["run_to_run", "batch_invariant"])
def test_every_length_is_cut_right(name, guarantee):
    program = specialize(EXACT[name].total, (torch.float32,))
    for length in (*range(1, 36), 63, 64, 65):
        x = whole_numbers(torch.float32)((3, length))
        want = reference.fold([x], program, (1,))[0]
        for tensor, dim in ((x, 1), (x[:1], 1), (x.t().contiguous(), 0)):
            with cut(tiny=True):
                got = by_tiles([tensor], program, (dim,), guarantee)[0]
            assert torch.equal(got[0], want[: tensor.shape[1 - dim]]), f"{length} elements along dim {dim}"


@pytest.mark.parametrize("dims", [(0, 2), (1, 3), (0, 1, 3), (0, 3)], ids=str)
@pytest.mark.parametrize("guarantee", ["run_to_run", "batch_invariant"])
def test_positions_along_dims_apart(dims, guarantee):
    x = torch.randperm(4 * 5 * 6 * 7).view(4, 5, 6, 7).float()
    program = specialize(monoids.MAX_WITH_INDEX.total, (x.dtype,))
    for tensor in (x, x.permute(3, 1, 0, 2).contiguous().permute(2, 1, 3, 0), x[:, 1:4, ::2, 1:]):
        with cut(tiny=True):
            got = by_tiles([tensor], program, dims, guarantee)[0]
        for mine, want in zip(got, reference.fold([tensor], program, dims), strict=True):
            assert torch.equal(mine, want)


@pytest.mark.parametrize("order", list(itertools.permutations(range(4))), ids=str)
@pytest.mark.parametrize("tiny", [True, False])
def test_the_first_of_equals_wins_however_dims_lie_in_memory(order, tiny):
    """Reduced dims are read as memory lies: a lane's next element may have an earlier position."""
    x = torch.randint(-2, 3, (8, 37, 4, 3), dtype=torch.int16)
    tensor = x.permute(order).contiguous().permute([order.index(d) for d in range(4)])
    for dims in ((0, 1, 2, 3), (0, 2, 3), (0, 1, 3)):
        with cut(tiny):
            got = fold([tensor], monoids.ARGMAX, dims)[0]
        rows = x.permute(*(d for d in range(4) if d not in dims), *dims).flatten(-len(dims))
        assert torch.equal(got, rows.argmax(-1))


def test_the_identitys_infinity_is_a_limit_for_a_first_block_too():
    """A first block combined with the identity in floats would lose the last digits of whole numbers."""
    least = tilefold.Monoid(
        tm.minimum, INF, dtypes="input", absorb=lambda s, x: tm.minimum(s, tm.block_min(x)), name="least"
    )
    assert fold([torch.full((100,), (1 << 62) + 1)], least, (0,))[0].item() == (1 << 62) + 1


# ------------------------------------------------------------------------------------------------ error bounds

LENGTHS = (1, 63, 64, 65, 1023, 4097, (1 << 18) + 1)


def depth(length: int) -> int:
    """Additions that one element goes through: of its lane, or its block; where lanes are combined; where parts are."""
    alone = max(2 * cpu.STEPS, -(-length // cpu.LANES))
    return alone + math.ceil(math.log2(length + 1)) + cpu.PARTS


@pytest.mark.parametrize("guarantee", ["run_to_run", "batch_invariant"])
@pytest.mark.parametrize("kind", ["normal", "offset", "cancelling", "huge", "denormal"])
@pytest.mark.parametrize("length", LENGTHS)
def test_sums_stay_in_the_bound(length, kind, guarantee):
    x = torch.randn(length)
    x = {
        "normal": x,
        "offset": x + 1e4,
        "cancelling": torch.cat([x, -x])[torch.randperm(2 * length)],
        "huge": x.index_fill(0, torch.tensor([length // 2]), 1e30),
        "denormal": x * 1e-39,
    }[kind]
    got = fold([x], monoids.SUM, (0,), guarantee)[0].double()
    want, size = x.double().sum(), x.double().abs().sum()
    assert (got - want).abs() <= 2 * depth(x.numel()) * U32 * size + U32 * want.abs()


@pytest.mark.parametrize("guarantee", ["run_to_run", "batch_invariant"])
@pytest.mark.parametrize("scale", [1.0, 80.0])
@pytest.mark.parametrize("length", LENGTHS)
def test_logsumexp_stays_in_the_bound(length, scale, guarantee):
    """exp's argument is off by u times what was subtracted, the sum by depth u; log makes a relative error absolute."""
    x = torch.randn(length) * scale
    got = fold([x], monoids.LOGSUMEXP, (0,), guarantee)[0].double()
    want = x.double().logsumexp(0)
    reach = 4.0 * float(x.abs().max())  # sizes of what is subtracted and scaled before the exponential
    assert (got - want).abs() <= 2 * (depth(length) * 4 + reach) * U32 + U32 * want.abs()


@pytest.mark.parametrize("guarantee", ["run_to_run", "batch_invariant"])
@pytest.mark.parametrize("length", LENGTHS)
def test_norms_stay_in_the_bound(length, guarantee):
    x = torch.randn(length)
    for p in (2.0, 3.0):
        got = fold([x], monoids.NORM(p), (0,), guarantee)[0].double()
        want = x.double().abs().pow(p).sum().pow(1 / p)
        assert (got - want).abs() <= 2 * (
            depth(length) + 8
        ) * U32 * want  # all terms positive; a power costs a few u


# --------------------------------------------------------------------------------------------------- guarantees

# Everything whose bits torch makes depend on a place (powers, exp2, the sign of zeros) or on an order (sums).
SENSITIVE = {
    "sum": monoids.SUM, "logsumexp": monoids.LOGSUMEXP, "welford": monoids.WELFORD, "norm(3)": monoids.NORM(3.0),
    "norm(2.5)": monoids.NORM(2.5), "max": monoids.MAX, "min": monoids.MIN, "describe": monoids.DESCRIBE,
    "argmax": monoids.ARGMAX, "affine": monoids.AFFINE,
    "exp2": tilefold.Monoid(lambda a, b: a + b, 0, lift=lambda x: tm.exp2(x), check=False, commutative=True),
}  # fmt: skip


def sensitive(monoid, shape):
    x = torch.randn(shape)
    x[torch.rand(shape) < 0.1] = 0.0
    x[torch.rand(shape) < 0.1] = -0.0
    return [x, torch.randn(shape) * 0.1][: monoid.algebra.inputs]


@pytest.mark.parametrize("tiny", [False, True], ids=["whole", "cut"])
@pytest.mark.parametrize("shape", [(37, 5), (21, 130), (3, 5000)], ids=str)
@pytest.mark.parametrize("name", SENSITIVE)
def test_a_row_does_not_see_its_neighbours(name, shape, tiny):
    monoid = SENSITIVE[name]
    tensors = sensitive(monoid, shape)
    with cut(tiny and shape[1] < 1000):
        together = fold(tensors, monoid, (1,), "batch_invariant")
        as_columns = fold([t.t().contiguous() for t in tensors], monoid, (0,), "batch_invariant")
        for rows in ([0], [1, 2], list(range(1, shape[0]))):
            some = [t[rows] for t in tensors]
            alone = fold(some, monoid, (1,), "batch_invariant")
            for field, column, few in zip(together, as_columns, alone, strict=True):
                assert torch.equal(bits_of(field[rows]), bits_of(few))
                assert torch.equal(bits_of(field), bits_of(column))


@pytest.mark.parametrize("tiny", [False, True], ids=["whole", "cut"])
def test_a_row_of_several_dims_does_not_see_its_neighbours(tiny):
    """With one batch element the reduced dims would coalesce, with more they would not."""
    x = torch.randn(9, 4, 11)
    with cut(tiny):
        together = fold([x], monoids.SUM, (0, 2), "batch_invariant")[0]
        for i in range(4):
            alone = fold([x[:, i : i + 1].contiguous()], monoids.SUM, (0, 2), "batch_invariant")[0]
            assert torch.equal(bits_of(together[i : i + 1]), bits_of(alone))


@pytest.mark.parametrize("guarantee", ["run_to_run", "batch_invariant"])
@pytest.mark.parametrize("name", SENSITIVE)
def test_bits_do_not_depend_on_threads_or_runs(name, guarantee):
    monoid = SENSITIVE[name]
    tensors = sensitive(monoid, (19, 90))
    placed = (
        name in ("exp2", "norm(2.5)") and guarantee == "run_to_run"
    )  # torch computes their ends of vectors otherwise
    with cut(tiny=True):
        runs = []
        for number in (2, 2, 2 if placed else 3):
            with threads(number):
                runs.append(fold(tensors, monoid, (1,), guarantee))
    for run in runs[1:]:
        for mine, first in zip(run, runs[0], strict=True):
            assert torch.equal(bits_of(mine), bits_of(first))


SHARED = {  # shape, reduced dims: each large enough for torch to share out its operations
    "one long row": (((1 << 20) + 77,), (0,)),
    "a shorter row": (((1 << 16) + 3,), (0,)),
    "three long rows": ((3, (1 << 19) + 5), (1,)),
    "many rows": ((65, 5000), (1,)),
    "columns": ((3000, 100), (0,)),
    "wide columns": ((300, 1300), (0,)),
    "two dims, cut": ((33, 7, 3001), (0, 2)),
    "two dims of many results": ((40, 300, 500), (0, 2)),
    "three dims": ((9, 5, 11, 3, 700), (0, 2, 4)),
}


@pytest.mark.parametrize("guarantee", ["run_to_run", "batch_invariant"])
@pytest.mark.parametrize("shape", SHARED)
@pytest.mark.parametrize("name", ["sum", "logsumexp", "welford", "affine", "argmax"])
def test_large_folds_have_the_same_bits_on_any_number_of_threads(name, shape, guarantee):
    sizes, dims = SHARED[shape]
    monoid = {"sum": monoids.SUM, "logsumexp": monoids.LOGSUMEXP, "welford": monoids.WELFORD,
              "affine": monoids.AFFINE, "argmax": monoids.ARGMAX}[name]  # fmt: skip
    tensors = [torch.randn(sizes) * 0.99 for _ in range(monoid.algebra.inputs)]
    runs = []
    for number in (1, 2, 3, 5):
        with threads(number):
            runs.append(fold(tensors, monoid, dims, guarantee))
    for run in runs[1:]:
        assert all(torch.equal(bits_of(a), bits_of(b)) for a, b in zip(run, runs[0], strict=True))


@pytest.mark.parametrize("callers", [4, 8])
def test_the_callers_number_of_threads_stays(callers: int):
    """Also where a few of them are given parts, as of scans."""
    with threads(callers), mock.patch.dict(workers._pools, clear=True):
        workers.each(lambda part: part, [1, 2, 3], 4)
        assert torch.get_num_threads() == callers
        seen: list[int] = []
        later = threading.Thread(target=lambda: seen.append(torch.get_num_threads()))
        later.start()
        later.join()
        assert seen == [callers]


def test_a_scan_leaves_the_callers_number_of_threads():
    with threads(8), mock.patch.dict(workers._pools, clear=True):
        x = torch.ones(300, 400)
        tilefold.scan((x, x), monoids.AFFINE, 1)
        assert workers._pools
        assert torch.get_num_threads() == 8


def test_each_part_runs_on_one_thread_and_in_order():
    with threads(2):
        assert workers.each(lambda part: (part, torch.get_num_threads()), [5, 6, 7], 2) == [
            (5, 1),
            (6, 1),
            (7, 1),
        ]


def test_a_failing_part_is_heard():
    def fail(part: int) -> int:
        raise ValueError(f"part {part}")

    with threads(2), pytest.raises(ValueError, match="part 1"):
        workers.each(fail, [1, 2], 2)


def test_parameters_and_inference_tensors_fold_on_several_threads():
    x = torch.randn(8, 50, requires_grad=True)
    with cut(tiny=True), threads(2), torch.no_grad():
        torch.testing.assert_close(tilefold.reduce(x, monoids.NORM(2.0), 1), x.norm(dim=1))
    with cut(tiny=True), threads(2), torch.inference_mode():
        assert fold([torch.ones(8, 50)], monoids.SUM, (1,))[0].tolist() == [50.0] * 8


@pytest.mark.parametrize("length", [1, 5, 300])
def test_an_infinite_maximum_is_not_subtracted_from_itself(length):
    """Blocks of nothing but -inf, of +inf among numbers, and of numbers after blocks of -inf."""
    nothing, most, late = torch.full((length,), -INF), torch.zeros(length), torch.full((length,), -INF)
    most[length // 2] = INF
    late[-1] = 2.0
    with cut(tiny=True):
        (got,) = fold([torch.stack([nothing, most, late])], monoids.LOGSUMEXP, (1,))
    assert got.tolist() == [-INF, INF, 2.0]


# ------------------------------------------------------------------------------------------- beyond 2^31 elements


@pytest.mark.parametrize(
    ("length", "dtype"),
    [((1 << 31) - 1, torch.int32), (1 << 31, torch.int64), (1 << 32, torch.int64)],
    ids=["just below", "at", "beyond"],
)
def test_positions_are_as_wide_as_the_last_one_needs(length, dtype):
    program = narrowed(specialize(monoids.ARGMAX.total, (torch.int8,)), length)
    assert program.lift.input_dtypes[-1] == dtype
    assert program.state[1] == dtype


@pytest.mark.parametrize("start", [(1 << 31) - 2, 1 << 31, (1 << 32) + 5])
def test_positions_beyond_32_bits_are_those_of_the_elements(start):
    """One element in memory, seen as 2^33 of them: a tile of four, wherever it lies."""
    length = 1 << 33
    whole = specialize(monoids.ARGMAX.total, (torch.int8,))
    x = torch.zeros(1, dtype=torch.int8).expand(length)
    cut = pieces_in_one([x], narrowed(whole, length))
    _, positions = cut.elements(((start, 4),), Workspace())
    assert positions.tolist() == [start, start + 1, start + 2, start + 3]


def test_positions_of_parts_beyond_32_bits_go_on_where_the_part_before_ends():
    length = (1 << 33) + 6
    program = narrowed(specialize(monoids.ARGMAX.total, (torch.int8,)), length)
    x = torch.zeros(1, dtype=torch.int8).expand(length)
    parts, left = pieces_in_one([x], program).in_parts(4)
    _, positions = parts.elements(((3, 1), (7, 2)), Workspace())
    assert positions.flatten().tolist() == [3 * (1 << 31) + 10, 3 * (1 << 31) + 11]
    assert left is not None
    _, positions = left.elements(((0, 2),), Workspace())
    assert positions.tolist() == [(1 << 33) + 4, (1 << 33) + 5]
