"""describe: every format, honest refusals, nothing executed, nothing lost."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import save_file
from typer.testing import CliRunner

from tilefold.cli import app, printable
from tilefold.describe import describe_file, describe_tensor, read_tensors
from tilefold.errors import DtypeError, FileError

run = CliRunner().invoke
NAN = float("nan")


@pytest.fixture
def good(tmp_path: Path) -> Path:
    path = tmp_path / "good.safetensors"
    save_file({"w": torch.tensor([[1.0, -3.0], [0.0, 4.0]]), "i": torch.arange(5)}, path)
    return path


def test_statistics() -> None:
    report = describe_tensor("x", torch.tensor([1.0, 2.0, NAN, float("inf"), 0.0, -5.0]))
    assert (report.count, report.nans, report.infs, report.zeros) == (6, 1, 1, 1)
    assert (report.min, report.max, report.absmax, report.mean) == (-5.0, 2.0, 5.0, -0.5)
    assert report.std == pytest.approx(torch.tensor([1.0, 2.0, 0.0, -5.0]).std().item(), rel=1e-6)
    assert not report.finite


def test_nothing_finite_and_nothing_at_all() -> None:
    assert describe_tensor("x", torch.tensor([NAN])).mean is None
    assert describe_tensor("x", torch.empty(0, 3)).count == 0


@pytest.mark.parametrize(
    "dtype", [torch.float16, torch.bfloat16, torch.float64, torch.int8, torch.bool, torch.uint8]
)
def test_dtypes(dtype: torch.dtype) -> None:
    report = describe_tensor("x", torch.tensor([0, 1, 1, 0]).to(dtype))
    assert (report.zeros, report.min, report.max, report.mean) == (2, 0.0, 1.0, 0.5)


def test_complex_has_no_fold() -> None:
    with pytest.raises(DtypeError, match=r"real numbers or bool, got torch\.complex64"):
        describe_tensor("x", torch.zeros(2, dtype=torch.complex64))


def test_every_format(tmp_path: Path, good: Path) -> None:
    np.save(tmp_path / "a.npy", np.ones((2, 3)))
    np.savez(tmp_path / "a.npz", x=np.arange(3), y=np.zeros(2, dtype=">f4"))
    torch.save({"layer": {"w": torch.ones(2)}, "steps": [torch.tensor(1)]}, tmp_path / "a.pt")
    names = {
        p: [n for n, _ in read_tensors(p)]
        for p in (good, *(tmp_path / f"a.{s}" for s in ("npy", "npz", "pt")))
    }
    assert list(names.values()) == [["i", "w"], ["a"], ["x", "y"], ["layer.w", "steps.0"]]


@pytest.mark.parametrize("name", ["cut.safetensors", "cut.npy", "cut.npz", "cut.pt"])
def test_truncated_files(tmp_path: Path, name: str) -> None:
    (tmp_path / name).write_bytes(b"\x80 not a file")
    with pytest.raises(FileError, match="must be a whole"):
        describe_file(tmp_path / name)


def test_missing_and_foreign_files(tmp_path: Path) -> None:
    with pytest.raises(FileError, match="must exist"):
        describe_file(tmp_path / "none.pt")
    with pytest.raises(FileError, match="must end in"):
        describe_file(tmp_path / "notes.txt")


class Evil:
    """Would run code if unpickled."""

    def __reduce__(self) -> tuple[object, tuple[str]]:
        return (print, ("unpickled",))


def test_pickles_are_not_run(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    torch.save({"x": Evil()}, tmp_path / "evil.pt")
    np.save(tmp_path / "evil.npy", np.array([Evil()], dtype=object), allow_pickle=True)
    for name in ("evil.pt", "evil.npy"):
        with pytest.raises(FileError):
            describe_file(tmp_path / name)
    assert "unpickled" not in capsys.readouterr().out


def test_command_goes_on_after_a_bad_file(tmp_path: Path, good: Path) -> None:
    result = run(app, ["describe", str(tmp_path / "none.pt"), str(good), "--json"])
    assert result.exit_code == 2
    assert json.loads(result.stdout)[0]["totals"]["count"] == 9
    assert len(result.stderr.strip().splitlines()) == 1


def test_fail_on_nan(tmp_path: Path, good: Path) -> None:
    bad = tmp_path / "nan.npy"
    np.save(bad, np.array([1.0, NAN]))
    assert run(app, ["describe", str(good), "--fail-on-nan"]).exit_code == 0
    assert run(app, ["describe", str(bad)]).exit_code == 0
    assert run(app, ["describe", str(good), str(bad), "--fail-on-nan"]).exit_code == 1


def test_unknown_device(good: Path) -> None:
    result = run(app, ["describe", str(good), "--device", "nowhere"])
    assert result.exit_code == 2
    assert "--device must name a device" in result.stderr


def test_names_cannot_drive_the_terminal(tmp_path: Path) -> None:
    path = tmp_path / "names.safetensors"
    save_file({"a[red]\x1b[31m": torch.ones(1)}, path)
    result = run(app, ["describe", str(path)])
    assert "\x1b[31m" not in result.stdout
    assert printable("\x1b") == "\\x1b"


def test_plan_command() -> None:
    assert "rows" in run(app, ["plan", "16384x8192"]).stdout
    assert run(app, ["plan", "16384x8192", "--monoid", "nothing"]).exit_code == 2
    assert run(app, ["plan", "axb"]).exit_code == 2
