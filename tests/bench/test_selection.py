"""Which cases are measured: any shape, any dims, any monoid; and answers of a monoid compared with its definition."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
import torch

import tilefold
from commands import run
from tilefold.bench import gate, warm
from tilefold.bench.layout import SECTOR_BYTES, Layout
from tilefold.bench.monoid_cases import definition, of_monoid, tolerance
from tilefold.bench.operations import make_fold
from tilefold.bench.results import read_results
from tilefold.bench.segment_cases import SegmentCase
from tilefold.bench.selection import Selection, asked_suite, selected
from tilefold.bench.suites import load_suite, suite_names
from tilefold.bench.variants import variants_of
from tilefold.errors import ArgumentError, DimError

QUICK = ["--device", "cpu", "--warmup-ms", "0.1", "--repeat-ms", "0.5"]
MINE = """
import math
import tilefold
from tilefold.math import exp, maximum, minimum


def _top(a, b):
    return maximum(a.first, b.first), maximum(minimum(a.first, b.first), maximum(a.second, b.second))


top2 = tilefold.Monoid(
    _top, identity=(-math.inf, -math.inf), fields=("first", "second"), lift=lambda x: (x, -math.inf),
    dtypes=("input", "input"), name="top2",
)


def top2_in_torch(x, dim):
    values = x.topk(2, dim=dim).values
    return values.select(dim, 0), values.select(dim, 1)


absent = tilefold.Monoid(lambda a, b: a + b, 0, lift=lambda x: exp(x * 100), name="overflows")
pair = tilefold.Monoid(lambda a, b: a + b, 0, lift=lambda x, y: x * y, name="pair")
"""


@pytest.fixture
def mine(tmp_path: Path) -> str:
    (tmp_path / "mine.py").write_text(MINE)
    return str(tmp_path / "mine.py")


def names(suite: str, **asked: object) -> list[str]:
    return [case.name for case in selected(load_suite(suite), Selection(**asked))]  # type: ignore[arg-type]  # names are checked when made


# ------------------------------------------------------------------------------------------------ shapes and dims


def test_a_shape_of_the_suite_selects_its_cases() -> None:
    assert names(
        "folds", shapes=("16384x8192",), dims=("1",), dtypes=("bf16",), operations=("var", "sum")
    ) == [
        "sum dim1 16384x8192 bf16",
        "var dim1 16384x8192 bf16",
    ]


def test_any_other_shape_becomes_cases_of_the_suites_operations() -> None:
    found = names("folds", shapes=("4096x4099",), dtypes=("bf16",))
    assert len(found) == 2 * 9
    assert {"sum dim0 4096x4099 bf16", "argmax dim1 4096x4099 bf16"} <= set(found)
    assert not [name for name in found if "bitwise_or" in name], "no OR of floats"
    of_integers = names("folds", shapes=("100x7",), dtypes=("int32",), dims=("0",))
    assert "bitwise_or dim0 100x7 int32" in of_integers
    assert not [name for name in of_integers if "logsumexp" in name or "var" in name], (
        "no such fold of integers"
    )


@pytest.mark.parametrize(
    ("dims", "wanted"), [("0,2,3", "0,2,3"), ("-1", "3"), ("all", "0,1,2,3"), ("2", "2"), ("3,0", "0,3")]
)
def test_any_dims(dims: str, wanted: str) -> None:
    shape = "64x256x56x56"
    found = names("real", shapes=(shape,), dims=(dims,), dtypes=("fp32",), operations=("sum",))
    assert found == [f"sum dim{wanted} {shape} fp32"]


def test_dims_and_dtypes_that_the_suite_has_not_for_a_shape_that_it_has() -> None:
    asked = {"shapes": ("16384x8192",), "operations": ("sum",)}
    assert names("folds", dims=("0,1",), dtypes=("bf16",), **asked) == ["sum dim0,1 16384x8192 bf16"]
    assert names("folds", dims=("0",), dtypes=("fp16", "bf16"), **asked) == [
        "sum dim0 16384x8192 bf16",
        "sum dim0 16384x8192 fp16",
    ]


def test_products_of_any_size() -> None:
    assert names("router", shapes=("3x5x7000",), dtypes=("fp16",)) == [
        "matmul 3x5x7000 fp16",
        "matmul+relu 3x5x7000 fp16",
    ]


OF_ROWS = ("gradients", "losses", "many", "quantized")
OF_LENGTHS = ("atomic-sum", "segment")  # one row each: a shape of several dims means nothing to them


@pytest.mark.parametrize("suite", [name for name in suite_names() if name not in OF_LENGTHS])
def test_every_suite_takes_a_shape_of_the_readers_own(suite: str) -> None:
    shape = (24, 40, 16) if suite not in OF_ROWS else (24, 640)
    made = selected(load_suite(suite), Selection(shapes=("x".join(map(str, shape)),)))
    assert made
    assert {case.shape[-len(shape) :] for case in made} == {shape}  # pairs of a scan have a dim more
    for case in made[:3]:
        x = case.draw("cpu")
        assert [tuple(w.shape) for w in case.reference(x)] == list(case.result_shapes)


@pytest.mark.parametrize(
    ("asked", "error", "rule"),
    [
        ({"shapes": ("8x8",), "dims": ("2",)}, DimError, r"`dim` must be in \[-2, 1\] .* got 2"),
        ({"shapes": ("8x8",), "dtypes": ("fp8",)}, ArgumentError, "--dtype must be of bf16, .* got 'fp8'"),
        ({"shapes": ("8x8",), "operations": ("median",)}, ArgumentError, "--operations must be of .* got 'median'"),
        ({"shapes": ("8x8",), "dims": ("0,1",), "operations": ("argmax",)}, ArgumentError, "--shapes must fit an operation"),
        ({"shapes": ("8x0",)}, ArgumentError, "--shapes must be sizes from 1 on, got '8x0'"),
        ({"dims": ("0,1",)}, ArgumentError, "--dims must be of 1, 0, 2 here, got '0,1'; .* --shapes of your own"),
    ],
)  # fmt: skip
def test_what_does_not_fit(asked: dict[str, tuple[str, ...]], error: type[Exception], rule: str) -> None:
    with pytest.raises(error, match=rule):
        names("folds", **asked)


def test_dtypes_are_spelt_as_one_likes() -> None:
    shape = {"shapes": ("8x64",), "operations": ("sum",), "dims": ("1",)}
    for word in ("fp32", "float32", "f32", "torch.float"):
        assert names("folds", dtypes=(word,), **shape) == ["sum dim1 8x64 fp32"]


def test_a_shape_of_ones_keeps_a_dim() -> None:
    assert names("host", shapes=("1x1",), operations=("sum",)) == ["sum dim1 1x1 fp32"]


def test_shapes_of_ones_own_run(tmp_path: Path) -> None:
    argv = ["--shapes", "33x77,5x6x7", "--dims", "0,1", "--dtype", "float16", "--operations", "sum,amax"]
    assert run(["bench", "folds", *QUICK, *argv, "--out", str(tmp_path)]).exit_code == 0
    cases = read_results(tmp_path / "folds.json").cases
    assert [case.name for case in cases] == [
        "sum dim0,1 33x77 fp16", "amax dim0,1 33x77 fp16", "sum dim0,1 5x6x7 fp16", "amax dim0,1 5x6x7 fp16",
    ]  # fmt: skip
    assert {m.status for case in cases for m in case.measurements} == {"ok"}


def test_workers_find_cases_of_shapes_that_no_suite_lists(mine: str) -> None:
    """Compiling ahead goes by names and by what was asked for."""
    asked = Selection("small", shapes=("5x6x7",), dims=("1",), dtypes=("fp32",), monoid=f"{mine}::top2")
    (case,) = selected(load_suite("folds"), asked)
    heard: list[tuple[int, str]] = []
    warm.warm_caches(
        [warm.Job("folds", case.name, "ours", "cpu", 4e9, asked)], 1, lambda *told: heard.append(told)
    )
    assert heard == [(1, "")]


# ---------------------------------------------------------------------------------------------------- monoids


def test_a_monoid_takes_the_place_of_a_suites_operations(mine: str) -> None:
    asked = Selection(monoid=f"{mine}::top2")
    found = selected(load_suite("folds"), asked)
    assert {case.operation for case in found} == {"top2"}
    assert {case.dtype for case in found} == {"bf16", "fp32"}
    assert len({case.name for case in found}) == len(found)
    made = asked_suite(load_suite("or-small-axis"), asked)
    assert [v.name for v in variants_of(made, ())] == ["ours"], "its forms are of OR"


def test_a_monoid_meets_random_problems_as_they_lie(mine: str) -> None:
    suite = load_suite("shapes")
    plain = {(case.shape, case.layout) for case in suite.select("small", 3, 60)}
    found = selected(suite, Selection("small", seed=3, count=30, monoid=f"{mine}::top2"))
    assert {(case.shape, case.layout) for case in found} <= plain
    assert any(case.layout for case in found)


def test_a_monoid_is_measured_beside_torch_where_its_file_says_how(mine: str, tmp_path: Path) -> None:
    argv = ["--monoid", f"{mine}::top2", "--shapes", "33x77", "--dims", "1", "--dtype", "bf16,fp32"]
    shown = run(["bench", "folds", *QUICK, *argv, "--out", str(tmp_path)])
    assert shown.exit_code == 0, shown.output
    for case in read_results(tmp_path / "folds.json").cases:
        assert {m.variant: m.status for m in case.measurements} == {"ours": "ok", "torch": "ok"}


def test_without_torchs_form_torch_has_no_such_fold(mine: str, tmp_path: Path) -> None:
    argv = ["--monoid", "sum_compensated", "--shapes", "33x77", "--dtype", "fp32", "--dims", "all"]
    assert run(["bench", "folds", *QUICK, *argv, "--out", str(tmp_path)]).exit_code == 0
    (case,) = read_results(tmp_path / "folds.json").cases
    assert {m.variant: m.status for m in case.measurements} == {"ours": "ok", "torch": "no such fold"}


@pytest.mark.parametrize(
    "monoid", ["SUM", "LOGSUMEXP", "ARGMAX", "WELFORD", "MINMAX", "DESCRIBE", "COUNT_NONZERO", "FIRST"]
)
@pytest.mark.parametrize("dtype", ["bf16", "fp32", "int32"])
def test_answers_of_the_catalogue_pass_the_gate(monoid: str, dtype: str) -> None:
    case = of_monoid(monoid)("", 1, (6, 129), dtype, None)
    if case is None:
        assert (monoid, dtype) == ("LOGSUMEXP", "int32")
        return
    x = case.draw("cpu")
    made = getattr(tilefold.monoids, monoid)
    assert gate.fault(case, x, tilefold.reduce(x, made, 1), case.reference(x)) is None


def test_a_wrong_answer_of_a_monoid_is_refused(mine: str) -> None:
    case = of_monoid(f"{mine}::top2")("", 1, (6, 129), "fp32", None)
    assert case is not None
    x = case.draw("cpu")
    want = case.reference(x)
    assert gate.fault(case, x, tuple(w.float() for w in want), want) is None
    assert "times the bound" in (gate.fault(case, x, (want[0].float(), want[0].float()), want) or "")
    count = of_monoid("count_nonzero")("", 1, (6, 129), "fp32", None)
    assert count is not None
    (right,) = count.reference(x)
    assert gate.fault(count, x, right, (right,)) is None
    assert "times the bound" in (gate.fault(count, x, right + 1, (right,)) or "")


def test_equal_infinities_are_no_error(mine: str) -> None:
    case = of_monoid(f"{mine}::absent")("", 1, (6, 129), "fp32", None)
    assert case is not None
    want = torch.full((6,), float("inf"), dtype=torch.float64)
    x = case.draw("cpu")
    assert gate.fault(case, x, want.float(), (want,)) is None
    assert gate.fault(case, x, -want.float(), (want,)) is not None
    assert gate.fault(case, x, torch.full((6,), float("nan")), (want,)) is not None


def test_the_definition_is_in_float64() -> None:
    x = torch.full((1, 1 << 16), 0.1, dtype=torch.bfloat16)
    (total,) = definition(tilefold.monoids.SUM, 1, x)
    assert total.dtype == torch.float64
    assert float(total) == pytest.approx(float(x[0, 0]) * (1 << 16), rel=1e-15)


def test_a_tolerance_of_ones_own() -> None:
    want = torch.tensor([1000.0])
    assert float(tolerance(1, 0.01).bound(want, torch.float32)) == pytest.approx(10, rel=1e-3)  # type: ignore[misc]  # it has one
    assert "0.01 |want|" in tolerance(1, 0.01).why


@pytest.mark.parametrize(
    ("suite", "monoid", "rule"),
    [
        ("router", "sum", "--monoid must be given a suite of folds, got router"),
        ("cpu", "sum", "--monoid must be given a suite of folds, got cpu"),
        ("folds", "nothing", "--monoid: a monoid must be one of"),
        ("folds", "MINE::pair", "--monoid must fold one tensor, got pair of 2"),
    ],
)
def test_monoids_that_cannot_be_measured(suite: str, monoid: str, rule: str, mine: str) -> None:
    with pytest.raises(ArgumentError, match=rule):
        names(suite, monoid=monoid.replace("MINE", mine))


# ------------------------------------------------------------------------------------------------------ sectors


def sectors_counted(begin: int, strides: tuple[int, ...], shape: tuple[int, ...], itemsize: int) -> int:
    """One element after another."""
    places = torch.zeros(shape, dtype=torch.int64)
    for d, (n, stride) in enumerate(zip(shape, strides, strict=True)):
        places += (torch.arange(n) * stride).reshape([-1 if i == d else 1 for i in range(len(shape))])
    first = (places.flatten() + begin) * itemsize
    return int(torch.cat([first // SECTOR_BYTES, (first + itemsize - 1) // SECTOR_BYTES]).unique().numel())


def test_the_limit_of_gradients_counts_what_both_calls_move() -> None:
    """X and y, then x (or y) again, y's cotangent and the gradients."""
    (softmax,) = selected(
        load_suite("gradients"), Selection(shapes=("32x256",), dtypes=("bf16",), operations=("softmax",))
    )
    (norm,) = selected(
        load_suite("gradients"), Selection(shapes=("32x256",), dtypes=("bf16",), operations=("layer_norm",))
    )
    assert softmax.compulsory_bytes == 5 * 32 * 256 * 2
    assert norm.compulsory_bytes == 5 * 32 * 256 * 2 + 2 * 256 * 2  # and the parameters' gradients


def test_the_limit_of_losses_counts_what_must_be_moved() -> None:
    """X and the classes, then x again and its gradient; and the loss."""
    forward, both = (
        case
        for name in ("cross_entropy", "cross_entropy with backward")
        for case in selected(
            load_suite("losses"), Selection(shapes=("32x256",), dtypes=("bf16",), operations=(name,))
        )
    )
    assert forward.compulsory_bytes == 32 * 256 * 2 + 32 * 8 + 32
    assert both.compulsory_bytes == 3 * 32 * 256 * 2 + 32 * 8 + 32


@pytest.mark.parametrize("suite", [n for n in suite_names() if not (load_suite(n).products or n in OF_ROWS)])
def test_the_limit_counts_unique_sectors(suite: str) -> None:
    """Of each suite's cases: those of the inputs that hold an element, and those of the outputs, each once."""
    for case in load_suite(suite).select("small", 1, 25):
        strides = case.layout.strides if case.layout else torch.empty(case.shape, device="meta").stride()
        begin = case.layout.begin if case.layout else 0
        itemsize = case.draw("cpu").element_size()
        read = sectors_counted(begin, strides, case.shape, itemsize)
        if "residual" in case.name:  # behind the input, in one tensor
            whole = torch.Size(case.shape).numel()
            read = sectors_counted(0, (whole, *strides), (2, *case.shape), itemsize)
        elif isinstance(case, SegmentCase):
            read += -(-8 * (case.result_shape[0] + 1) // SECTOR_BYTES)
        results = torch.Size(case.result_shape).numel()
        written = sum(-(-results * dtype.itemsize // SECTOR_BYTES) for dtype in case.result_dtypes)
        assert case.compulsory_bytes == SECTOR_BYTES * (read + written), case.name


def test_the_limit_of_a_product_counts_its_operands_and_its_result() -> None:
    for case in load_suite("router").select("small", 0, 0):
        rows, columns, depth = case.shape
        assert case.compulsory_bytes >= 2 * ((rows + columns) * depth + rows * columns)
        assert case.compulsory_bytes - 2 * ((rows + columns) * depth + rows * columns) < 2 * SECTOR_BYTES


def test_a_case_of_a_view() -> None:
    case = make_fold("sum", 1, (4, 6), "fp32", Layout((0, 1), (4, 9), (0, 2), 3))
    assert case is not None
    assert case.name == "sum dim1 4x6 fp32 (of 4x9 from 0-2, offset 3)"
    assert replace(case, layout=None).name == "sum dim1 4x6 fp32"
