"""Readable CUDA of whole kernels: as short as a person's, and proven."""

from __future__ import annotations

import functools
import importlib.util
import os
from pathlib import Path
from typing import Any

import pytest

from tilefold.xray.compile.job import Compiled
from tilefold.xray.compile.offline import compile_job
from tilefold.xray.compile.source import load_file
from tilefold.xray.cuda import find_nvcc, write_form
from tilefold.xray.cuda.proof import Verdict, prove
from tilefold.xray.cuda.readable import UnreadableError, readable
from tilefold.xray.cuda.translate import read_line
from tilefold.xray.explain import make_job
from xray.cuda.generated import source
from xray.versions import TRITON

pytestmark = pytest.mark.skipif(
    TRITON != (3, 6), reason="the passes read what Triton 3.6 writes; others' may be plain"
)
needs_nvcc = pytest.mark.skipif(find_nvcc() is None, reason="no nvcc")
CASE_BOOK = Path(__file__).parents[3] / "examples" / "casebook" / "kernels.py"
OWN = Path(__file__).parent / "kernels.py"
# Kernels are drawn from here; `CUDA_KERNELS=300` draws so many, `CUDA_SEED=7` from there on.
DRAWN, SEED = int(os.environ.get("CUDA_KERNELS", "6")), int(os.environ.get("CUDA_SEED", "0"))
# Lines of a kernel: half more than those of a study that translated by hand, or what a person would take.
MOST = {
    "copy": 13,
    "copy, 1 warp": 19,
    "copy, 16 warps": 12,
    "loop": 19,
    "matrix": 51,
    "static 1000": 13,
    "static 1002": 13,
    "static 1001": 13,
    "dynamic 1008": 43,
    "split": 54,
    "sum": 46,
    "sum, 1 warp": 46,
    "atomic sum": 61,
    "sigmoid": 13,
    "softmax": 32,
    "layer norm": 52,
    "tiled transpose": 45,
    "ragged": 40,
    "scan of pairs": 120,
    "dot": 60,
    "matmul": 150,
}


@functools.cache
def cases(file: Path) -> dict[str, dict[str, Any]]:
    found: dict[str, dict[str, Any]] = load_file(file).xray_cases()
    return found


@functools.cache
def compiled(file: Path, name: str) -> Compiled:
    case = dict(cases(file)[name])
    return compile_job(make_job(case.pop("kernel"), dict(case.pop("args")), case.pop("constants"), **case))


def names(file: Path) -> list[str]:
    specification = importlib.util.spec_from_file_location("named", file)
    assert specification is not None
    assert specification.loader is not None
    module = importlib.util.module_from_spec(specification)
    specification.loader.exec_module(module)
    return list(module.xray_cases())


ALL = [(CASE_BOOK, n) for n in names(CASE_BOOK)] + [(OWN, n) for n in names(OWN)]


@needs_nvcc
@pytest.mark.parametrize(("file", "name"), ALL, ids=[n for _, n in ALL])
def test_short_and_proven(file: Path, name: str) -> None:
    made = write_form(compiled(file, name))
    assert made.fell_back == ""
    assert made.verdict.proven, made.verdict
    assert made.text.startswith("// Proven: nvcc's PTX of this file stores the same bits as Triton's: ")
    assert made.lines <= MOST.get(name, 60), made.text


@needs_nvcc
@pytest.mark.parametrize("seed", range(SEED, SEED + DRAWN))
def test_drawn_kernels(seed: int, tmp_path: Path) -> None:
    """What is written is proven; what is not says why, and is not wrong."""
    file = tmp_path / "kernel.py"
    file.write_text(source(seed), encoding="utf-8")
    case = dict(load_file(file).xray_cases()["kernel"])
    made = compile_job(make_job(case.pop("kernel"), dict(case.pop("args")), case.pop("constants"), **case))
    try:
        text = readable(made, read_line)
    except UnreadableError as error:
        pytest.skip(str(error))  # the plain form says it
    verdict = prove(made, text)
    assert verdict.proven, (verdict, text)


def lines_of(text: str) -> list[str]:
    return [line.strip() for line in text.splitlines()]


def test_a_masked_copy_reads_as_a_person_writes_it() -> None:
    text = lines_of(readable(compiled(CASE_BOOK, "copy"), lambda path, line: "source"))
    assert "const int offs = (int)(128 * pid + tid);" in text
    assert "float x = offs < n ? x_ptr[offs] : 0.0f;" in text
    assert "if (offs < n) y_ptr[offs] = x;" in text
    assert "// 19: source" in text


def test_a_softmax_has_its_names_and_functions() -> None:
    text = readable(compiled(OWN, "softmax"), read_line)
    assert "float* out_ptr, int out_stride, const float* x_ptr, int x_stride, int n" in text
    assert "numerator[i] = ex2_approx((x[i] - row_max_2) * 1.442695f);" in text
    assert "block_max(row_max, smem)" in text
    assert "goto" not in text


def test_only_standard_headers() -> None:
    for file, name in ALL:
        text = readable(compiled(file, name), read_line)
        included = {line for line in text.splitlines() if line.startswith("#include")}
        assert included <= {"#include <cmath>", "#include <cuda_fp16.h>", "#include <cuda_bf16.h>"}


# ------------------------------------------------------------------------------------------------------ proof
FAULTS = {
    "a barrier is missing": ("tiled transpose", "  __syncthreads();\n", "", 1),
    "a mask lets one more through": ("copy", "if (offs < n)", "if (offs <= n)", 1),
    "a sum goes the other way": ("softmax", "numerator[i + 1]", "numerator[7 - i]", 1),
    "a shuffle is of another lane": ("softmax", "for (int s = 16;", "for (int s = 8;", 1),
    "a vector begins elsewhere": ("split", "4 * tid", "4 * tid + 4", 1),
    "a factor has the other sign": ("scan of pairs", "fmaf(", "1.0f * fmaf(-1.0f * ", 1),
}


@needs_nvcc
@pytest.mark.parametrize("fault", FAULTS)
def test_the_proof_finds_faults(fault: str) -> None:
    name, old, new, times = FAULTS[fault]
    made = compiled(OWN if name in cases(OWN) else CASE_BOOK, name)
    text = readable(made, read_line)
    assert old in text
    verdict = prove(made, text.replace(old, new, times))
    assert not verdict.proven
    assert "stores other bits" in verdict.said or "could not be executed" in verdict.said


@needs_nvcc
def test_a_file_that_nvcc_refuses_is_not_proven() -> None:
    verdict = prove(compiled(CASE_BOOK, "copy"), "void k() { nothing(); }")
    assert not verdict.proven
    assert verdict.said.startswith("nvcc refuses it")


def test_without_nvcc_nothing_is_proven(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("shutil.which", lambda name: None)
    made = write_form(compiled(CASE_BOOK, "copy"))
    assert made.form == "readable"
    assert made.text.startswith("// Not proven: nvcc was not found")


@needs_nvcc
def test_a_wrong_readable_file_gives_way_and_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    def wrong(made: Compiled, lines: object) -> str:
        return readable(made, read_line).replace("if (offs < n)", "if (offs <= n)")

    monkeypatch.setattr("tilefold.xray.cuda.forms.readable", wrong)
    made = write_form(compiled(CASE_BOOK, "copy"))
    assert (made.form, made.verdict.proven) == ("plain", True)
    assert "stores other bits in y_ptr" in made.fell_back
    assert made.text.splitlines()[1].startswith(
        "// The plain form, because of the readable one: it stores other bits"
    )


@needs_nvcc
def test_the_other_forms() -> None:
    made = compiled(CASE_BOOK, "copy")
    assert write_form(made, "ptx").text == made.ptx
    plain = write_form(made, "plain")
    assert (plain.form, plain.fell_back) == ("plain", "")
    assert isinstance(plain.verdict, Verdict)
    assert plain.verdict.proven
