"""The suites' cases, and the kernels that they bring."""

from __future__ import annotations

import importlib
import itertools
import math
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import declared
import pytest
import torch

from tilefold.bench import gate, segment_cases, suites
from tilefold.bench.cases import outputs_of
from tilefold.bench.operations import fold_case
from tilefold.bench.suites import cpu, folds, load_suite, or_small_axis, scan

ROOT = Path(__file__).parents[2]


def test_grid_has_every_case_once_headline_first() -> None:
    cases = folds.cases()
    assert len(cases) == len({case.name for case in cases}) == 9 * 19 * 2 + 12
    assert [case.headline for case in cases[:17]] == [True] * 16 + [False]


def test_a_file_with_a_suite_is_a_suite(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "two_words.py").write_text("from tilefold.bench.suites.host import SUITE\n")
    monkeypatch.setattr(suites, "__path__", [*suites.__path__, str(tmp_path)])
    assert suites.suite_names() == [
        "atomic-sum",
        "cpu",
        "decompose-k",
        "folds",
        "gradients",
        "host",
        "linear-losses",
        "losses",
        "many",
        "normalize",
        "or-small-axis",
        "products",
        "quantized",
        "real",
        "router",
        "scan",
        "segment",
        "shapes",
        "topk",
        "transpose",
        "two-words",
    ]
    assert load_suite("two-words").name == "host"


@pytest.mark.parametrize("name", suites.suite_names())
@pytest.mark.parametrize("size", ["full", "small"])
def test_every_case_declares_what_it_costs_and_why_its_tolerance(name: str, size: str) -> None:
    suite = load_suite(name)
    cases = suite.cases(size)
    assert suite.name == name
    assert len({case.name for case in cases}) == len(cases)
    for case in cases:
        assert case.compulsory_bytes > case.input_bytes > 0
        assert case.operations >= case.elements
        assert len(case.tolerance.why) > 40
        assert case.group


@pytest.mark.parametrize("name", suites.suite_names())
def test_small_cases_are_for_a_look_on_a_cpu(name: str) -> None:
    """They have at most a million elements, and those of a GPU are not smaller."""
    suite = load_suite(name)
    small, full = ([case.elements for case in suite.select(size, 0, 24)] for size in ("small", "full"))
    assert max(small) <= 1 << 20
    assert max(full) >= max(small)


def test_suites_are_those_written_down() -> None:
    """Sizes, bytes, tolerances and variants: one that means to change some writes them anew (declared.py)."""
    written = declared.WRITTEN.read_text(encoding="utf-8").splitlines()
    assert list(declared.lines()) == written


def test_or_has_the_six_shapes_in_both_dtypes() -> None:
    cases = or_small_axis.cases()
    assert [case.shape_text for case in cases if case.dtype == "int64"] == [
        "64x128x4", "128x256x8", "256x512x16", "512x1024x4", "1024x2048x8", "2048x4096x16",
    ]  # fmt: skip
    assert len(cases) == 12
    forms = [variant.name for variant in or_small_axis.SUITE.variants]
    assert forms == ["ours", "reduce 3-D", "unrolled loads", "reduce flat", "register tree"]
    assert or_small_axis.SUITE.against == ("compile",)


def test_a_scan_is_as_long_as_its_input() -> None:
    for case in scan.cases("small"):
        x = case.draw("cpu")
        results = case.reference(x)
        assert {r.shape for r in results} == {case.result_shape}
        (ours,) = scan.build_ours(case, x)
        assert gate.fault(case, x, ours.call(x), results) is None, case.name
        wrong = [r.clone() for r in outputs_of(ours.call(x))]
        wrong[0].view(-1)[-1] += 40
        assert gate.fault(case, x, wrong, results) is not None


def test_torchs_scan_of_any_function_is_given_each_operation(monkeypatch: pytest.MonkeyPatch) -> None:
    """It runs on a GPU alone: here its combine is taken one element after another."""

    def scanned(combine: Any, xs: Any, dim: int) -> Any:
        leaves = xs if isinstance(xs, tuple) else (xs,)
        parts = [tuple(x.select(dim, i) for x in leaves) for i in range(leaves[0].shape[dim])]
        together = combine if isinstance(xs, tuple) else lambda a, b: (combine(a[0], b[0]),)
        made = [torch.stack(found, dim) for found in zip(*itertools.accumulate(parts, together), strict=True)]
        return tuple(made) if isinstance(xs, tuple) else made[0]

    module = importlib.import_module("torch._higher_order_ops.associative_scan")
    monkeypatch.setattr(module, "associative_scan", scanned)
    monkeypatch.setattr(scan.traps, "fresh_compile", lambda function: function)
    tried = set()
    for case in scan.cases("small"):
        if case.dtype == "fp32" and case.shape[case.dims[-1]] <= 4096:  # the order of addition shows in bf16
            x = case.draw("cpu")
            for choice in scan.build_associative_scan(case, x):
                tried.add(case.operation)
                assert gate.fault(case, x, choice.call(x), case.reference(x)) is None, case.name
    assert tried == {"cumsum", "logcumsumexp", "affine"}


def test_drawn_words_keep_an_or_of_sixteen_telling() -> None:
    """Each bit of an answer should often be missing, the high ones of 64 too."""
    case = next(
        case for case in or_small_axis.cases("small") if case.dtype == "int64" and case.shape[-1] == 16
    )
    (want,) = case.reference(case.draw("cpu"))
    for bit in (0, 31, 40, 62):
        assert 0.5 < (want >> bit & 1).double().mean() < 0.99


@pytest.mark.parametrize("size", list(cpu.ELEMENTS))
def test_folds_on_a_cpu_are_of_as_many_elements_in_each_layout(size: str) -> None:
    """One row, a square by rows and by columns, and short rows: all of a power of two."""
    layouts = {(case.shape, case.dims) for case in cpu.cases(size) if case.name.startswith("sum ")}
    elements = cpu.ELEMENTS[size]
    side = math.isqrt(elements)
    assert layouts >= {
        ((1, elements), (1,)), ((side, side), (1,)), ((side, side), (0,)), ((elements // 64, 64), (1,)),
    }  # fmt: skip


@pytest.mark.parametrize("seed", [0, 1])
def test_inputs_repeat_and_hold_no_zero(seed: int) -> None:
    case = cpu.cases("small")[0]
    assert torch.equal(case.draw("cpu", seed), case.draw("cpu", seed))
    assert bool((case.draw("cpu") != 0).all())


def test_the_forms_are_right_in_the_interpreter() -> None:
    """Every form and block on shapes that no block divides; the interpreter is chosen before Triton is imported."""
    code = """
import torch
from tilefold.bench import gate
from tilefold.bench.operations import fold_case
from tilefold.bench.suites.or_small_axis import FORMS
for shape in ((3, 7, 4), (17, 33, 8)):
    case = fold_case("bitwise_or", 2, shape, "int64", "x")
    probes = gate.probes_of(case, "cpu")
    x = torch.empty_like(probes[0].x)
    for form in FORMS:
        for choice in form.build(case, x):
            assert gate.check(case, choice.call, x, probes) is None, (form.name, choice.label, shape)
            print(form.name, choice.label)
"""
    environment = {**os.environ, "PYTHONPATH": str(ROOT / "src"), "TRITON_INTERPRET": "1"}
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, env=environment, check=False
    )
    assert done.returncode == 0, done.stderr
    assert len(done.stdout.splitlines()) == 2 * (2 + 2 + 8 + 8)


@pytest.mark.parametrize("architecture", [80, 90, 100])
@pytest.mark.parametrize("name", ["or_reduce_3d", "or_loads", "or_reduce_flat", "or_tree", "empty"])
def test_kernels_compile_without_a_gpu(name: str, architecture: int) -> None:
    triton = pytest.importorskip("triton")
    from triton.backends.compiler import GPUTarget
    from triton.compiler import ASTSource

    from tilefold.bench.kernels import empty, or_forms

    kernel = empty.empty if name == "empty" else getattr(or_forms, name)
    constants = {
        key: value for key, value in {"K": 8, "LEVELS": 3, "BLOCK": 32}.items() if key in kernel.arg_names
    }
    types = {key: "*i64" if key.endswith("_ptr") else "i32" for key in kernel.arg_names} | dict.fromkeys(
        constants, "constexpr"
    )
    source = ASTSource(kernel, types, constants)
    assert "cubin" in triton.compile(source, target=GPUTarget("cuda", architecture, 32)).asm


def test_naive_transposes_are_measured_on_headlines_and_small_cases_alone() -> None:
    from tilefold.bench.suites.transpose import NAIVE, cases

    x = torch.empty(0)
    built = {c.name: [bool(v.build(c, x)) for v in NAIVE] for c in cases()}
    headlines = {c.name for c in cases() if c.headline}
    assert {name for name, some in built.items() if any(some)} == headlines
    assert all(v.build(c, x) for c in cases("small") if len(c.shape) == 2 for v in NAIVE)


def test_naive_transposes_are_right_in_the_interpreter() -> None:
    code = """
import torch
from tilefold.bench import gate
from tilefold.bench.suites.transpose import NAIVE, transpose_case
case = transpose_case((0, 1), (5, 9), "fp32")
probes = gate.probes_of(case, "cpu")
for form in NAIVE:
    for choice in form.build(case, torch.empty_like(probes[0].x)):
        assert gate.check(case, choice.call, torch.empty_like(probes[0].x), probes) is None, choice.label
        print(choice.label)
"""
    environment = {**os.environ, "PYTHONPATH": str(ROOT / "src"), "TRITON_INTERPRET": "1"}
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, env=environment, check=False
    )
    assert done.returncode == 0, done.stderr
    assert len(done.stdout.splitlines()) == 3


def test_atomic_sums_are_right_in_the_interpreter() -> None:
    """Every memory semantics on a length that no program divides."""
    code = """
import torch
from tilefold.bench import gate
from tilefold.bench.operations import fold_case
from tilefold.bench.suites.atomic_sum import ATOMIC
case = fold_case("sum", 1, (1, 3000), "fp32", "x")
probes = gate.probes_of(case, "cpu")
x = torch.empty_like(probes[0].x)
for form in ATOMIC:
    choice = form.build(case, x)[0]
    assert gate.check(case, choice.call, x, probes) is None, form.name
    print(form.name)
"""
    environment = {**os.environ, "PYTHONPATH": str(ROOT / "src"), "TRITON_INTERPRET": "1"}
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, env=environment, check=False
    )
    assert done.returncode == 0, done.stderr
    names = ["relaxed", "acquire", "release", "acq_rel"]
    assert done.stdout.splitlines() == [f"atomic, {name}" for name in names]


def test_segments_by_a_power_law_hold_all_elements() -> None:
    offsets = segment_cases.offsets_of(1 << 16, 0)
    lengths = offsets.diff()
    assert (int(offsets[0]), int(offsets[-1])) == (0, 1 << 16)
    assert int(lengths.min()) > 0
    assert int(lengths.max()) > 8 * float(lengths.double().mean())


def test_results_below_the_least_normal_number_may_be_rounded() -> None:
    """Of variances of three near float16 numbers some are subnormal: right to half of their spacing, not to eps of them."""
    case = fold_case("var", 1, (1, 3, 1), "fp16", "")
    want = torch.tensor([3.4e-6], dtype=torch.float64)
    assert case.tolerance.bound is not None
    assert (want.half().double() - want).abs() <= case.tolerance.bound(want, torch.float16)
