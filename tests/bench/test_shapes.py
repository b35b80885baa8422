"""Random problems: the same for a seed, within their bounds, right in any layout, and summed up by class."""

from __future__ import annotations

import hashlib
import math
import random
from collections import Counter
from dataclasses import replace

import pytest
import torch

from bench.made import case_result, measurement, suite_result
from tilefold.bench import gate, plots, summary
from tilefold.bench.cases import DTYPES
from tilefold.bench.layout import SECTOR_BYTES, Layout, unique_bytes
from tilefold.bench.operations import OPERATIONS, fold_case, in_tilefold
from tilefold.bench.run import Options, selected
from tilefold.bench.segment_cases import SegmentCase
from tilefold.bench.selection import Selection
from tilefold.bench.suites import load_suite, real, shapes

CASES = tuple(
    case_result(measurement(ours), measurement(theirs, "torch"), shape=(1, n))
    for n, ours, theirs in ((1 << 28, 140.0, 150.0), (1 << 27, 90.0, 80.0), (1 << 26, 50.0, 49.0))
)


def test_a_seed_gives_the_same_problems_and_a_larger_count_begins_with_them() -> None:
    few, many = shapes.cases("full", 5, 10), shapes.cases("full", 5, 30)
    assert few == many[:10]
    assert few != shapes.cases("full", 6, 10)


@pytest.mark.parametrize(
    ("size", "first", "all_names"),
    [
        ("full", "sum dim2 8x1123x784 bf16 (offset 5)", "ce2d4dc8ee59fca7"),
        ("small", "sum dim1 280x35 int32", "d13f5f642091b78a"),
    ],
)
def test_a_seed_names_the_problems_of_stored_results(size: str, first: str, all_names: str) -> None:
    """Runs of two versions are compared case by case, by name: a seed whose problems change makes old results useless."""
    names = [case.name for case in shapes.cases(size, 1, 120)]
    assert names[0] == first
    assert hashlib.sha256("\n".join(names).encode()).hexdigest()[:16] == all_names


def test_problems_keep_their_bounds_and_take_every_kind() -> None:
    drawn = shapes.cases("full", 1, 800)
    cases, others = drawn[::2], drawn[1::2]
    for case in others:
        assert 4 << 20 <= case.compulsory_bytes <= 2 << 30
        assert case.operation not in OPERATIONS
    kinds = {case.operation.partition("(")[0].partition(" ")[0] for case in others}
    assert kinds == set(shapes.OTHERS)
    assert {case.layout is None for case in others} == {True, False}
    for case in cases:
        assert 4 << 20 <= case.elements * DTYPES[case.dtype].itemsize <= 1 << 30
        assert 1 <= len(case.shape) <= 4
        assert 3 <= math.prod(case.shape[d] for d in case.dims) <= 1 << 27
        assert case.dtype != "int32" or OPERATIONS[case.operation].whole_numbers
    extents = [n for case in cases for n in case.shape]
    odd, eighths = (sum(n % m == r for n in extents) / len(extents) for m, r in ((2, 1), (8, 0)))
    assert 0.4 < odd < 0.6
    assert odd + eighths == 1
    assert set(Counter(case.operation for case in cases)) == set(shapes.FOLDS)
    assert {case.dtype for case in cases} == {"bf16", "fp32", "fp16", "int32"}
    texts = {case.layout.text(case.shape).split(" ")[0] for case in cases if case.layout}
    assert texts == {"permuted", "of", "offset"}
    places = {
        "all" if len(c.dims) == len(c.shape)
        else "several" if len(c.dims) > 1
        else "last" if c.dims[0] == len(c.shape) - 1
        else "first" if c.dims[0] == 0
        else "middle"
        for c in cases
    }  # fmt: skip
    assert places == {"all", "several", "last", "first", "middle"}


@pytest.mark.parametrize("seed", range(3))
def test_ours_and_torchs_answers_agree_in_every_layout(seed: int) -> None:
    problems = shapes.cases("small", seed, 32)
    # Torch rounds each sum of a segment's 16-bit elements, and the sums of scans of them.
    rounded = {c.operation for c in problems if isinstance(c, SegmentCase) and c.dtype != "fp32"}
    for case in problems:
        probes = gate.probes_of(case, "cpu")
        x = case.like(probes[0].x)
        x.copy_(probes[0].x)
        if case.layout:
            assert x.stride() == case.layout.strides
            assert x.storage_offset() == case.layout.begin
        (ours,) = shapes.build_ours(case, x)
        assert gate.check(case, ours.call, x, probes) is None, case.name
        if case.torch_call and case.operation not in rounded:
            assert gate.check(case, case.torch_call, x, probes) is None, case.name


def test_any_operation_of_the_suite_takes_shapes_of_ones_own() -> None:
    asked = Selection("small", shapes=("33x70",), dims=("1",), dtypes=("fp32",), count=40)
    made = {case.operation for case in selected(load_suite("shapes"), asked)}
    assert {"sum", "softmax", "rms_norm", "cumsum", "cummax", "transpose"} <= made


@pytest.mark.parametrize("case", real.cases("small"), ids=lambda case: case.name)
def test_folds_of_models_are_right(case) -> None:
    probes = gate.probes_of(case, "cpu")
    x = probes[0].x.clone()
    for call in (in_tilefold(case), case.torch_call):
        assert gate.check(case, call, x, probes) is None


def test_the_largest_sum_of_neighbours_is_that_of_all_pairs() -> None:
    x = torch.tensor([[3.0, -5.0, 4.0, -1.0, 2.0, -7.0], [-3.0, -1.0, -2.0, -4.0, -5.0, -6.0]])
    pairs = [[float(r[i:j].sum()) for i in range(6) for j in range(i + 1, 7)] for r in x]
    want = torch.tensor([max(p) for p in pairs])
    case = fold_case("max_subarray", 1, (2, 6), "fp32", "g")
    assert torch.equal(case.torch_call(x), want)
    assert torch.equal(in_tilefold(case)(x), want)


# ------------------------------------------------------------------------------------------------------- layouts


def counted(layout: Layout, shape: tuple[int, ...], itemsize: int) -> int:
    """Sectors by looking at each element."""
    view = torch.arange(layout.offset + math.prod(layout.sizes)).as_strided(
        shape, layout.strides, layout.begin
    )
    bytes_of = (view.reshape(-1, 1) * itemsize + torch.arange(itemsize)).reshape(-1)
    return len(torch.unique(bytes_of // SECTOR_BYTES)) * SECTOR_BYTES


@pytest.mark.parametrize("itemsize", [1, 2, 4, 8])
@pytest.mark.parametrize("seed", range(12))
def test_unique_bytes_are_those_of_the_elements(seed: int, itemsize: int) -> None:
    rng = random.Random(seed)
    shape = tuple(rng.randint(1, 9) for _ in range(rng.randint(1, 4)))
    sizes = tuple(n + rng.choice([0, 0, 1, 5]) for n in shape)
    first = tuple(rng.randint(0, size - n) for n, size in zip(shape, sizes, strict=True))
    order = tuple(rng.sample(range(len(shape)), len(shape)))
    layout = Layout(order, sizes, first, rng.randint(0, 9))
    assert unique_bytes(shape, layout.strides, layout.begin, itemsize) == counted(layout, shape, itemsize)


def test_unique_bytes_of_many_rows_are_counted_a_part_at_a_time(monkeypatch: pytest.MonkeyPatch) -> None:
    shape, strides = (7, 1000, 3), (9000, 9, 1)
    whole = unique_bytes(shape, strides, 5, 2)
    monkeypatch.setattr("tilefold.bench.layout.AT_ONCE", 300)
    assert unique_bytes(shape, strides, 5, 2) == whole
    assert unique_bytes((7000, 3), (9, 1), 5, 2) == unique_bytes((7, 1000, 3), (9000, 9, 1), 5, 2)


def test_a_layout_says_what_is_not_contiguous_about_it() -> None:
    layout = Layout((1, 0), (4, 8), (0, 2), 3)
    assert layout.text((4, 6)) == "permuted 1-0, of 4x8 from 0-2, offset 3"
    assert Layout((0, 1), (4, 6), (0, 0)).text((4, 6)) == ""
    assert layout.view((4, 6), torch.int8, "cpu").stride() == (1, 4)


# ------------------------------------------------------------------------------------------ selection and summary


def test_options_choose_seed_count_and_dims() -> None:
    suite = load_suite("shapes")
    options = Options(size="small", seed=4, count=40)
    assert selected(suite, options) == list(shapes.cases("small", 4, 40))
    several = next(c for c in shapes.cases("small", 4, 40) if isinstance(c.dim, tuple) and len(c.dim) > 1)
    text = ",".join(map(str, several.dims))
    assert several in selected(suite, replace(options, dims=(text,)))


def test_summary_says_mean_tenth_percentile_worst_and_how_many_are_slower() -> None:
    lines = summary.summary(suite_result(*CASES, suite="shapes"))
    said = next(line for line in lines if line.startswith("all folds: "))
    assert "mean" in said
    assert "tenth percentile" in said
    assert "slower than the best peer beyond 3 %" in said


def test_a_planner_beside_another_in_one_run() -> None:
    cases = [
        case_result(measurement(ours), measurement(theirs, "ours, rules", fraction=0.9), shape=(1, n))
        for n, ours, theirs in ((1 << 28, 140.0, 150.0), (1 << 27, 90.0, 80.0), (1 << 26, 50.0, 49.0))
    ]
    lines = summary.summary(suite_result(*cases, suite="shapes"))
    assert "bf16, bytes alone >= 30 us: 0.980 of the limit, ours, rules 0.900 (+0.080), of 3" in lines
    assert "slower than ours, rules beyond 5 % in 1 of 3: sum dim1 1x134217728 bf16 1.12" in lines
    assert not [line for line in lines if "best peer" in line], "another planner is no peer"


def test_unrelated_problems_are_points_not_lines(tmp_path) -> None:
    pytest.importorskip("matplotlib")
    result = suite_result(*CASES, suite="shapes")
    assert [path.name for path in plots.draw_plots(result, tmp_path)] == [
        "shapes-problems.png",
        "shapes-limit.png",
    ]
