"""A fold as one writes it: monoid, shape, dtype, dims, strides."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
import torch

from commands import run
from tilefold import monoids
from tilefold.cli.fold_text import contiguous_strides, monoid_named, read_dims, read_fold, read_shape
from tilefold.errors import ArgumentError, CompileError

MINE = """
import tilefold
from tilefold.math import maximum

largest = tilefold.Monoid(maximum, -float("inf"), dtypes="input", name="largest")
dot = tilefold.Monoid(lambda a, b: a + b, 0, lift=lambda x, y: x * y, name="dot")


def made():
    return largest


def wants(p):
    return largest


number = 3
"""


@pytest.fixture
def mine(tmp_path: Path) -> Path:
    (tmp_path / "mine.py").write_text(MINE)
    return tmp_path / "mine.py"


def test_all_words() -> None:
    fold = read_fold("LogSumExp dim=0,-1 16x8x4 float32 strides=64,4,1 offset=3 guarantee=batch_invariant")
    assert fold.monoid is monoids.LOGSUMEXP
    assert (fold.shape, fold.dtype, fold.dims) == ((16, 8, 4), torch.float32, (0, -1))
    assert (fold.strides, fold.offset, fold.guarantee) == ((64, 4, 1), 3, "batch_invariant")
    (x,) = fold.tensors()
    assert (x.shape, x.stride(), x.storage_offset(), x.data_ptr()) == ((16, 8, 4), (64, 4, 1), 3, 12)


def test_sizes_are_numbers_or_powers() -> None:
    assert [read_shape(text) for text in ("4096", "2^28", "64x2^20", "2^4x3x10^2")] == [
        (4096,), (1 << 28,), (64, 1 << 20), (16, 3, 100),
    ]  # fmt: skip
    assert read_fold("sum dim=1 1x2^28 bf16").shape == (1, 1 << 28)
    for text in ("2^", "^2", "2^2^2", "2^100", "2^-1", "9" * 5000):
        with pytest.raises(ArgumentError, match="sizes joined by x"):
            read_shape(text)


def test_what_is_left_out() -> None:
    fold = read_fold("sum 16x8")
    assert (fold.dtype, fold.dims, fold.strides) == (torch.bfloat16, (-1,), None)
    assert fold.tensors()[0].is_contiguous()
    assert read_fold("16x8 sum dim=all dtype=fp16").dims is None
    assert read_fold("16x8 sum dim=all dtype=fp16").dtype is torch.float16


@pytest.mark.parametrize("shape", [(3,), (4, 8, 2), (5, 1, 1, 7), (2, 0, 3), (0,), ()])
def test_contiguous_strides_are_torchs(shape: tuple[int, ...]) -> None:
    assert contiguous_strides(shape) == torch.empty(shape).stride()


def test_monoids_of_a_file(mine: Path) -> None:
    largest = monoid_named(f"{mine}::largest")
    assert largest.name == "largest"
    assert monoid_named(f"{mine}::made") is largest
    assert len(read_fold(f"{mine}::dot 4x4 fp32").tensors()) == 2


@pytest.mark.parametrize(
    ("name", "rule"),
    [
        ("number", "must be a tilefold.Monoid of its file .* got '.*::number'; it has dot, largest"),
        ("", "must be a tilefold.Monoid of its file"),
        ("nothing", "must be a tilefold.Monoid of its file"),
        ("wants", "must take no arguments, got"),
    ],
)
def test_what_a_file_has_not(mine: Path, name: str, rule: str) -> None:
    with pytest.raises(ArgumentError, match=rule):
        monoid_named(f"{mine}::{name}")


def test_a_file_that_does_not_import(tmp_path: Path) -> None:
    (tmp_path / "broken.py").write_text("raise ValueError('first\\nsecond')")
    with pytest.raises(
        CompileError, match=r"broken.py must import, got ValueError: first second in broken.py:1; run it"
    ):
        monoid_named(f"{tmp_path / 'broken.py'}::x")
    with pytest.raises(ArgumentError, match=r"must name a file, got 'nowhere\.py'"):
        monoid_named("nowhere.py::x")


@pytest.mark.parametrize("text", ["", "x", "4x", "x4", "4×4", "-4", "4.0x2", "²"])
def test_what_is_no_shape(text: str) -> None:
    with pytest.raises(ArgumentError, match=r"a shape must be sizes joined by x, got .*; write it like"):
        read_shape(text)


def test_dims() -> None:
    assert [read_dims(text) for text in ("1", "-1", "0,2", "all")] == [(1,), (-1,), (0, 2), None]
    for text in ("", "x", "1,", "1.0", "0;2"):
        with pytest.raises(ArgumentError, match=r"dim must be whole numbers, got .*; write it like 1 or 0,2"):
            read_dims(text)


@pytest.mark.parametrize("dims", ["0,2", "2,0", "-1,0"])
def test_plan_takes_any_dims_and_any_monoid(mine: Path, dims: str) -> None:
    shown = run(["plan", "64x5x56", "--monoid", f"{mine}::largest", "--dim", dims, "--dtype", "fp32"])
    assert shown.exit_code == 0, shown.stderr
    assert "5 results of 3584 elements" in shown.stdout


def test_plan_takes_chips_strides_and_guarantees() -> None:
    base = ["plan", "256x100000", "--monoid", "sum", "--dim", "1"]
    shown = {
        "h200": run(base).stdout,
        "sm_90": run([*base, "--chip", "sm_90"]).stdout,
        "h100": run([*base, "--chip", "H100"]).stdout,
        "a100": run([*base, "--chip", "a100"]).stdout,
        "invariant": run([*base, "--guarantee", "batch_invariant"]).stdout,
        "columns": run([*base, "--strides", "1,256"]).stdout,
        "a few off": run([*base, "--offset", "3"]).stdout,
    }
    assert shown["h200"] == shown["sm_90"]
    assert "programmatic dependent launch" in shown["h200"]
    assert "programmatic dependent launch" in shown["h100"]
    assert "programmatic dependent launch" not in shown["a100"]
    assert "columns contiguous" in shown["columns"]
    assert len(set(shown.values())) == len(shown) - 1
    assert "aligned" in shown["a few off"]


def test_plan_of_two_inputs(mine: Path) -> None:
    shown = run(["plan", "64x1000", "--monoid", f"{mine}::dot"])
    assert shown.exit_code == 0, shown.stderr


@pytest.mark.parametrize(
    ("arguments", "rule"),
    [
        (
            ["4x4", "--chip", "v100"],
            "plan: --chip: the chip must be one of sm_80, sm_90, sm_100, got 'v100'; take one, or say a100, h200, h100",
        ),
        (["4x4", "--guarantee", "x"], "plan: --guarantee must be one of run_to_run, batch_invariant, none, got 'x'"),
        (["4x4", "--strides", "1"], r"plan: strides must be as many as dims \(2\), got 1; "),
        (["4x4", "--dim", "0,0"], "plan: each dim may be named once"),
        (["4x4", "--offset", "-1"], "plan: .*--offset"),
        ([], "plan: the following arguments are required: SHAPE; tilefold plan --help has all"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else "",
)  # fmt: skip
def test_plan_refuses_in_one_line(arguments: list[str], rule: str) -> None:
    shown = run(["plan", *arguments])
    assert (shown.exit_code, shown.stdout) == (2, "")
    assert re.search(rf"^{rule}", shown.stderr)
    assert len(shown.stderr.splitlines()) == 1
