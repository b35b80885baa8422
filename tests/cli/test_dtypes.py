"""The spellings of a dtype: one table for plan, xray, bench and describe's tables."""

from __future__ import annotations

import pytest
import torch

from commands import run
from tilefold.bench.cases import DTYPES
from tilefold.bench.selection import known_dtype
from tilefold.checkpoints.tables import short_dtype
from tilefold.cli.dtypes import SPELLINGS, dtype_name, dtype_of
from tilefold.errors import ArgumentError
from tilefold.xray.compile import argument
from tilefold.xray.compile.arguments import OF_DTYPE, TYPES

WORDS = [(word, name) for name, others in SPELLINGS.items() for word in (name, *others)]


@pytest.mark.parametrize(("word", "name"), WORDS)
def test_a_spelling_names_its_dtype_in_any_case_and_module(word: str, name: str) -> None:
    for text in (word, word.upper(), f"torch.{word}", f" {word} "):
        assert dtype_name(text) == name
        assert dtype_of(text) is getattr(torch, name)


def test_no_word_names_two() -> None:
    assert len({word for word, _ in WORDS}) == len(WORDS)


def test_names_that_others_show_are_taken() -> None:
    """What the bench writes, what describe's tables show, and Triton's own names."""
    assert {dtype_of(name) for name in DTYPES} == set(DTYPES.values())
    for name in SPELLINGS:
        if name not in ("float8_e4m3fnuz", "float8_e5m2fnuz", "float8_e8m0fnu"):
            assert dtype_name(short_dtype(name).replace("f8_", "f8")) == name
    kinds = set(TYPES) - {"fp8e4b15"}  # what the library's kernels call powers of two: nobody's spelling
    assert {OF_DTYPE[dtype_name(kind) or ""] for kind in kinds} == kinds


@pytest.mark.parametrize("text", ["fp33", "", "torch", "tensor", "float128", "torch.nn"])
def test_what_is_no_dtype(text: str) -> None:
    assert dtype_name(text) is None
    with pytest.raises(ArgumentError, match=r"a dtype must be one of torch's, got .*; try bf16"):
        dtype_of(text)


def test_others_go_by_torchs_own_name() -> None:
    assert dtype_of("complex64") is torch.complex64
    assert dtype_of("torch.quint8") is torch.quint8


SAME = ("fp32", "f32", "float", "float32", "torch.float32", "FLOAT32")


def test_plan_takes_them_alike() -> None:
    plans = {run(["plan", "64x1024", "--dtype", word]).stdout for word in SAME}
    assert len(plans) == 1
    assert "1024 elements" in plans.pop()


def test_xray_takes_them_alike() -> None:
    assert {argument("x", f"*{word}[8]") for word in SAME} == {argument("x", "*fp32[8]")}
    assert argument("n", "int:1000") == argument("n", "i32:1000")
    pytest.importorskip("triton")
    from tilefold.planner.chips import chip_of
    from tilefold.xray.compile.folds import fold_jobs

    assert {fold_jobs(f"sum dim=0 64x8 {word}", chip_of("h200"))[0].arguments for word in SAME} == {
        fold_jobs("sum dim=0 64x8 fp32", chip_of("sm_90"))[0].arguments
    }


def test_bench_takes_them_alike() -> None:
    assert {known_dtype(word) for word in SAME} == {"fp32"}
    lists = {run(["bench", "host", "--dry-run", "--dtype", word]).stdout for word in SAME}
    assert len(lists) == 1
    assert "sum dim1 32x1024 fp32" in lists.pop()
