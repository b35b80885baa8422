"""describe: every format, every dtype, honest refusals, nothing executed, nothing lost."""

from __future__ import annotations

import doctest
import math
import os
import sys
import warnings
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import save, save_file

import tilefold.checkpoints.describe
from tilefold.checkpoints.describe import FileReport, describe_file, describe_tensor, totals
from tilefold.checkpoints.tensor_files import payload_bytes, tensors_of
from tilefold.errors import DtypeError, FileError, printable

NAN, INFINITY = float("nan"), float("inf")
NESTED = torch.nested.as_nested_tensor([torch.ones(2), torch.ones(3)], layout=torch.jagged)


@pytest.fixture
def good(tmp_path: Path) -> Path:
    path = tmp_path / "good.safetensors"
    save_file({"w": torch.tensor([[1.0, -3.0], [0.0, 4.0]]), "i": torch.arange(5)}, path)
    return path


def names_of(report: FileReport) -> list[str]:
    return [t.name for t in report.tensors]


# ------------------------------------------------------------------------------------------------- one tensor


def test_statistics() -> None:
    report = describe_tensor("x", torch.tensor([1.0, 2.0, NAN, INFINITY, 0.0, -5.0]))
    assert (report.count, report.nans, report.infs, report.zeros) == (6, 1, 1, 1)
    assert (report.min, report.max, report.absmax, report.mean) == (-5.0, 2.0, 5.0, -0.5)
    assert report.std == pytest.approx(torch.tensor([1.0, 2.0, 0.0, -5.0]).std().item(), rel=1e-6)
    assert not report.finite


def test_nothing_finite_and_nothing_at_all() -> None:
    assert describe_tensor("x", torch.tensor([NAN])).mean is None
    assert describe_tensor("x", torch.empty(0, 3)).count == 0


def test_powers_of_two() -> None:
    codes = torch.tensor([0, 127, 130, 254, 255], dtype=torch.uint8)
    report = describe_tensor("x", codes.view(torch.float8_e8m0fnu))
    assert (report.count, report.nans, report.infs, report.zeros) == (5, 1, 0, 0)
    assert (report.min, report.max) == (2.0**-127, 2.0**127)
    assert report.std == pytest.approx(2.0**126, rel=1e-6)


@pytest.mark.parametrize("name", ["float4_e2m1fn_x2", "bits1x8", "bits4x2"])
def test_bytes_of_several_numbers(name: str) -> None:
    if not hasattr(torch, name):
        pytest.skip(f"this torch has no {name}")
    packed = torch.zeros(4, dtype=torch.uint8).view(getattr(torch, name))
    with pytest.raises(DtypeError, match=rf"got torch.{name}; an element is several numbers: view it as"):
        describe_tensor("x", packed)


FLOATS = ["float16", "bfloat16", "float32", "float64"] + [
    name for name in ("float8_e4m3fn", "float8_e5m2") if hasattr(torch, name)
]
WHOLE = ["bool", "int8", "uint8", "int16", "uint16", "int32", "uint32", "int64", "uint64"]


@pytest.mark.parametrize("name", FLOATS + WHOLE)
def test_dtypes(name: str) -> None:
    report = describe_tensor("x", torch.tensor([0, 1, 1, 0]).to(getattr(torch, name)))
    assert (report.dtype, report.zeros, report.min, report.max, report.mean) == (name, 2, 0, 1, 0.5)
    assert isinstance(report.max, float) == (name in FLOATS)
    assert report.std == pytest.approx(math.sqrt(1 / 3), rel=1e-6)


def test_large_integers_keep_every_digit() -> None:
    report = describe_tensor("x", torch.tensor([2**31 - 1, 2**24 + 1, -(2**53)]))
    assert (report.min, report.max, report.absmax) == (-(2**53), 2**31 - 1, 2**53)


def test_squares_beyond_float32() -> None:
    report = describe_tensor("x", torch.tensor([1e25, 3e25, -1e25]))
    assert report.std == pytest.approx(2e25, rel=1e-6)


@pytest.mark.parametrize(
    ("values", "mean", "std"),
    [
        pytest.param([1e308, -1e308, 1e308], 1e308 / 3, 1e308 * (2 / math.sqrt(3.0)), id="sums-and-squares"),
        pytest.param([1e200, 3e200, 1.0], 4e200 / 3, None, id="squares"),
        pytest.param([1e308, 1e308, NAN, INFINITY], 1e308, 0.0, id="beside-nan-and-inf"),
        pytest.param([1.7e308, -1.7e308], 0.0, INFINITY, id="std-beyond-float64"),
    ],
)
def test_squares_beyond_float64(values: list[float], mean: float, std: float | None) -> None:
    report = describe_tensor("x", torch.tensor(values, dtype=torch.float64))
    assert report.mean == pytest.approx(mean, rel=1e-14, abs=0.0)
    if std is None:
        std = (torch.tensor(values, dtype=torch.float64) * 2.0**-600).std().item() * 2.0**600
    assert report.std == (None if std == INFINITY else pytest.approx(std, rel=1e-14))


def test_an_offset_costs_no_accuracy() -> None:
    x = torch.randn(10_000) + 1e4
    report = describe_tensor("x", x)
    assert report.std == pytest.approx(x.double().std().item(), rel=1e-5)


@pytest.mark.parametrize("layout", ["transposed", "strided", "scalar", "expanded"])
def test_layouts(layout: str) -> None:
    x = torch.arange(24.0).reshape(4, 6)
    views = {"transposed": x.t(), "strided": x[::2, 1::3], "scalar": x[1, 2], "expanded": x[:1].expand(5, 6)}
    report = describe_tensor("x", views[layout])
    assert report.shape == tuple(views[layout].shape)
    assert report.mean == pytest.approx(views[layout].mean().item())


def test_an_input_is_left_as_it_was() -> None:
    x = torch.randn(100, requires_grad=True)
    before = x.detach().clone()
    describe_tensor("x", x)
    assert torch.equal(x.detach(), before)


@pytest.mark.parametrize(
    ("tensor", "rule"),
    [
        pytest.param(torch.zeros(2, dtype=torch.complex64), "real numbers .*complex64; save real and imag", id="complex"),
        pytest.param(torch.zeros(2, 2).to_sparse(), r"must be dense .*got layout .*sparse", id="sparse"),
        pytest.param(torch.zeros(2, device="meta"), r"must be dense .*got no data", id="meta"),
        pytest.param(NESTED, r"must be dense .*got a nested tensor", id="nested"),
    ],
)  # fmt: skip
def test_tensors_without_a_fold(tensor: torch.Tensor, rule: str) -> None:
    with pytest.raises(DtypeError, match=rule):
        describe_tensor("x", tensor)


def test_the_example_in_the_docstring() -> None:
    scope = {"torch": torch, "describe_tensor": describe_tensor}
    assert doctest.testmod(tilefold.checkpoints.describe, extraglobs=scope).failed == 0


# ---------------------------------------------------------------------------------------------------- formats


def test_every_format(tmp_path: Path, good: Path) -> None:
    np.save(tmp_path / "a.npy", np.ones((2, 3)))
    np.savez(tmp_path / "a.npz", x=np.arange(3), y=np.zeros(2, dtype=">f4"))
    torch.save({"layer": {"w": torch.ones(2)}, "steps": [torch.tensor(1)], "lr": 0.1}, tmp_path / "a.pt")
    torch.save(torch.ones(2), tmp_path / "old.pth", _use_new_zipfile_serialization=False)
    expected = {
        good: ["i", "w"],
        tmp_path / "a.npy": ["a"],
        tmp_path / "a.npz": ["x", "y"],
        tmp_path / "a.pt": ["layer.w", "steps.0"],
        tmp_path / "old.pth": ["tensor"],
    }
    assert {path: names_of(describe_file(path)) for path in expected} == expected


@pytest.mark.parametrize(
    "array",
    [np.float32(3), np.zeros((0, 4)), np.asfortranarray(np.ones((3, 2))), np.arange(4, dtype=">i8")],
    ids=["0-d", "empty", "fortran", "big-endian"],
)
def test_npy_arrays_of_every_kind(tmp_path: Path, array: Any) -> None:
    np.save(tmp_path / "a.npy", array)
    report = describe_file(tmp_path / "a.npy").tensors[0]
    assert report.shape == np.shape(array)
    assert report.mean == (pytest.approx(np.mean(array)) if np.size(array) else None)


def test_narrow_floats_and_empty_and_0d_in_safetensors(tmp_path: Path) -> None:
    tensors = {
        "bf16": torch.tensor([1.5, NAN]).bfloat16(),
        "empty": torch.empty(0, 3),
        "flags": torch.tensor([True, False]),
        "fp8": torch.tensor([0.5, 2.0]).to(torch.float8_e4m3fn),
        "scalar": torch.tensor(7, dtype=torch.int32),
    }
    save_file(tensors, tmp_path / "a.safetensors")
    report = describe_file(tmp_path / "a.safetensors")
    assert {t.name: (t.max, t.nans) for t in report.tensors} == {
        "bf16": (1.5, 1), "empty": (None, 0), "flags": (1, 0), "fp8": (2.0, 0), "scalar": (7, 0),
    }  # fmt: skip
    assert [t.bytes for t in sorted(report.tensors, key=lambda t: t.name)] == [4, 0, 2, 2, 4]


def test_one_tensor_without_a_fold_does_not_stop_the_others(tmp_path: Path) -> None:
    save_file({"a": torch.ones(2), "b": torch.zeros(2, dtype=torch.complex64)}, tmp_path / "c.safetensors")
    torch.save({"a": torch.ones(2), "b": torch.zeros(2, 2).to_sparse()}, tmp_path / "c.pt")
    np.savez(tmp_path / "c.npz", a=np.ones(2), b=np.array([object()], dtype=object))
    for name in ("c.safetensors", "c.pt", "c.npz"):
        report = describe_file(tmp_path / name)
        assert names_of(report) == ["a"]
        assert [r.name for r in report.refused] == ["b"]
        assert len(report.refused[0].reason.splitlines()) == 1


@pytest.mark.parametrize(
    ("array", "rule"),
    [
        (np.array(["text"]), "number's dtype that torch knows, got <U4"),
        (np.array([(1, 2.0)], dtype="i4,f8"), "number's dtype that torch knows"),
        (np.array(["2020-01-01"], dtype="datetime64[D]"), "number's dtype that torch knows"),
        (np.ones(2, dtype=np.longdouble), "number's dtype that torch knows"),
    ],
    ids=["text", "record", "date", "longdouble"],
)
def test_npy_arrays_that_are_no_tensors(tmp_path: Path, array: Any, rule: str) -> None:
    np.save(tmp_path / "a.npy", array)
    (refusal,) = describe_file(tmp_path / "a.npy").refused
    assert rule in refusal.reason


def test_a_damaged_member_of_an_npz_is_refused_alone(tmp_path: Path) -> None:
    with zipfile.ZipFile(tmp_path / "a.npz", "w") as archive:
        for name in ("a", "b"):
            np.save(tmp_path / f"{name}.npy", np.full(50, 7.0))
            archive.write(tmp_path / f"{name}.npy", f"{name}.npy")
        archive.writestr("notes.txt", "not an array")
    path, whole = tmp_path / "a.npz", (tmp_path / "a.npz").read_bytes()
    at = whole.index(np.float64(7.0).tobytes())
    path.write_bytes(whole[:at] + b"\x01" + whole[at + 1 :])
    report = describe_file(path)
    assert names_of(report) == ["b"]
    assert [r.name for r in report.refused] == ["a", "notes.txt"]
    assert "must be whole" in report.refused[0].reason


@pytest.mark.parametrize(
    ("name", "save", "rule"),
    [
        ("a.npy", np.save, "must hold one array, got 136 bytes behind it"),
        ("a.npz", np.savez, "must begin with its archive's first member, got"),
        (
            "a.pt",
            lambda file, array: torch.save(torch.tensor(array), file),
            "must begin with its archive's first",
        ),
        (
            "old.pt",
            lambda file, array: torch.save(torch.tensor(array), file, _use_new_zipfile_serialization=False),
            "what torch.save wrote once, got .* bytes behind it",
        ),
    ],
    ids=["npy", "npz", "torch", "legacy"],
)
def test_what_lies_before_or_behind_is_not_left_out(tmp_path: Path, name: str, save: Any, rule: str) -> None:
    """A reader finds one of two that were written into one file; the other may hold the NaN."""
    with (tmp_path / name).open("wb") as file:
        save(file, np.ones((0, 4)))
    assert describe_file(tmp_path / name).tensors[0].shape == (0, 4)
    with (tmp_path / name).open("ab") as file:
        save(file, np.array([NAN]))
    with pytest.raises(FileError, match=rule):
        describe_file(tmp_path / name)


def test_arrays_of_one_name_are_each_described(tmp_path: Path) -> None:
    with zipfile.ZipFile(tmp_path / "a.npz", "w") as archive, warnings.catch_warnings():
        warnings.simplefilter("ignore")  # zipfile says that a name is there already
        for value in (1.0, 2.0, 3.0):
            np.save(tmp_path / "x.npy", np.full(4, value))
            archive.write(tmp_path / "x.npy", "x.npy" if value < 3 else "x")
    report = describe_file(tmp_path / "a.npz")
    assert [(t.name, t.mean) for t in report.tensors] == [("x", 1.0), ("x", 2.0), ("x", 3.0)]


def test_a_compressed_member_that_is_damaged_is_refused_alone(tmp_path: Path) -> None:
    path = tmp_path / "a.npz"
    np.savez_compressed(path, a=np.random.default_rng(0).random(500), b=np.ones(3))
    with zipfile.ZipFile(path) as archive:
        at = archive.infolist()[0].header_offset + 200
    whole = path.read_bytes()
    path.write_bytes(whole[:at] + b"\xff" * 40 + whole[at + 40 :])
    report = describe_file(path)
    assert names_of(report) == ["b"]
    assert "must be whole" in report.refused[0].reason


@pytest.mark.parametrize("name", ["A.NPY", "B.Npz", "C.SafeTensors", "D.PT", "E.PTH"])
def test_suffixes_in_capitals(tmp_path: Path, name: str) -> None:
    lower, path = tmp_path / name.lower(), tmp_path / name
    writers: dict[str, Callable[[], object]] = {
        ".npy": lambda: np.save(lower, np.ones(3)),
        ".npz": lambda: np.savez(lower, x=np.ones(3)),
        ".safetensors": lambda: save_file({"x": torch.ones(3)}, lower),
    }
    writers.get(lower.suffix, lambda: torch.save({"x": torch.ones(3)}, lower))()
    lower.rename(path)
    assert describe_file(path).tensors[0].mean == 1.0
    assert payload_bytes(path) > 0


def test_a_torchscript_file_is_told_apart_from_a_damaged_one(tmp_path: Path) -> None:
    class Scale(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.w = torch.nn.Parameter(torch.ones(2))

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return x * self.w

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # torch.jit is deprecated, its files remain
        torch.jit.trace(Scale(), torch.ones(2)).save(str(tmp_path / "a.pt"))
    with pytest.raises(
        FileError, match=r"tensors and plain containers only, got a TorchScript program.*; save its"
    ):
        describe_file(tmp_path / "a.pt")


def test_warnings_of_those_who_read_are_not_ours(tmp_path: Path) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # quantized tensors are deprecated, files of them remain
        quantized = torch.quantize_per_tensor(torch.ones(3), 0.1, 0, torch.qint8)
        torch.save({"a": torch.ones(2), "q": quantized}, tmp_path / "a.pt")
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        report = describe_file(tmp_path / "a.pt")
    assert said == []
    assert names_of(report) == ["a"]
    assert "real numbers or bool, got torch.qint8" in report.refused[0].reason


def test_containers_that_hold_themselves_and_each_other(tmp_path: Path) -> None:
    loop: dict[str, Any] = {"x": torch.ones(2)}
    loop["again"] = loop
    deep: list[Any] = [torch.ones(1)]
    for _ in range(60):
        deep = [deep, deep]  # 2^60 paths lead to one tensor
    torch.save({"loop": loop, "deep": deep}, tmp_path / "a.pt")
    assert len(describe_file(tmp_path / "a.pt").tensors) == 2


# -------------------------------------------------------------------------------------------------- bad files


def make_directory(path: Path) -> None:
    path.mkdir()


def make_pipe(path: Path) -> None:
    os.mkfifo(path)


def make_empty(path: Path) -> None:
    path.write_bytes(b"")


def make_foreign(path: Path) -> None:
    path.write_bytes(b"\x80 not a file of this kind")


def make_nothing(path: Path) -> None:
    pass


WHOLE_FILES = {
    ".safetensors": "must be a whole .safetensors file",
    ".npy": "must be a whole .npy file",
    ".npz": "must be a whole .npz file",
    ".pt": "must be a whole file of torch.save",
}
SUFFIXES = list(WHOLE_FILES)
BAD = [
    pytest.param("missing.pt", make_nothing, "must exist, got nothing there", id="missing"),
    pytest.param("missing.txt", make_nothing, "must exist, got nothing there", id="missing-foreign"),
    pytest.param("notes.txt", make_empty, "must hold something, got an empty file", id="empty-text"),
    pytest.param("dir.safetensors", make_directory, "must name a file, got a directory", id="directory"),
    pytest.param("pipe.npy", make_pipe, "must name a regular file", id="pipe"),
    *(pytest.param(f"a{s}", make_foreign, rule, id=f"foreign{s}") for s, rule in WHOLE_FILES.items()),
    *(pytest.param(f"a{s}", make_empty, "must hold something, got an empty file", id=f"empty{s}") for s in SUFFIXES),
]  # fmt: skip


@pytest.mark.parametrize(("name", "make", "rule"), BAD)
def test_bad_files(tmp_path: Path, name: str, make: Callable[[Path], None], rule: str) -> None:
    make(tmp_path / name)
    with pytest.raises(FileError) as caught:
        describe_file(tmp_path / name)
    message = str(caught.value)
    assert message.startswith(f"describe: {tmp_path / name}: ")
    assert rule in message
    assert len(message.splitlines()) == 1
    assert "; " in message  # the fix


@pytest.mark.parametrize("suffix", SUFFIXES)
@pytest.mark.parametrize("kept", [0.02, 0.5, 0.99])
def test_truncated_files(tmp_path: Path, suffix: str, kept: float) -> None:
    path, x = tmp_path / f"cut{suffix}", torch.randn(1000)
    writers: dict[str, Callable[[], object]] = {
        ".safetensors": lambda: save_file({"x": x}, path),
        ".npy": lambda: np.save(path, x.numpy()),
        ".npz": lambda: np.savez(path, x=x.numpy()),
        ".pt": lambda: torch.save({"x": x}, path),
    }
    writers[suffix]()
    whole = path.read_bytes()
    path.write_bytes(whole[: int(len(whole) * kept)])
    with pytest.raises(FileError, match=WHOLE_FILES[suffix]):
        describe_file(path)


def test_no_permission(tmp_path: Path, good: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    # Root may read everything, so that a mode of 0 proves nothing where tests run as root.
    def refuse(*_: object) -> None:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(Path, "open", refuse)
    with pytest.raises(FileError, match="must be readable, got 'Permission denied'"):
        describe_file(good)


@pytest.mark.parametrize(
    ("trouble", "rule"),
    [
        (torch.OutOfMemoryError("CUDA out of memory"), "must fit into the memory of cpu"),
        (MemoryError(), "must fit into the memory of cpu"),
        (
            RuntimeError("CUDA error:\nno kernel image"),
            "must be able to fold the tensor, got CUDA error: no kernel image; ",
        ),
    ],
    ids=["device-memory", "memory", "device"],
)
def test_trouble_with_one_tensor_does_not_stop_the_others(
    good: Path, monkeypatch: pytest.MonkeyPatch, trouble: Exception, rule: str
) -> None:
    def scarce(name: str, *rest: Any) -> Any:
        if name == "i":
            raise trouble
        return describe_tensor(name, *rest)

    monkeypatch.setattr(tilefold.checkpoints.describe, "describe_tensor", scarce)
    report = describe_file(good)
    assert names_of(report) == ["w"]
    assert rule in report.refused[0].reason


class Evil:
    """Would run code if unpickled."""

    def __reduce__(self) -> tuple[object, tuple[str]]:
        return (print, ("unpickled",))


def test_pickles_are_not_run(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    torch.save({"x": Evil()}, tmp_path / "evil.pt")
    np.save(tmp_path / "evil.npy", np.array([Evil()], dtype=object), allow_pickle=True)
    np.savez(tmp_path / "evil.npz", x=np.array([Evil()], dtype=object))
    with pytest.raises(
        FileError, match=r"tensors and plain containers only, got '.*print'.*save its state_dict"
    ):
        describe_file(tmp_path / "evil.pt")
    with pytest.raises(FileError, match="must hold numbers, got Python objects"):
        describe_file(tmp_path / "evil.npy")
    assert "must hold numbers, got Python objects" in describe_file(tmp_path / "evil.npz").refused[0].reason
    assert "unpickled" not in capsys.readouterr().out


# -------------------------------------------------------------------------------------- progress, memory, totals


def test_progress_is_told_names_and_bytes(good: Path) -> None:
    calls: list[tuple[str, int]] = []
    describe_file(good, progress=lambda name, done: calls.append((name, done)))
    assert calls == [("i", 0), ("w", 40)]


def test_payload_bytes(tmp_path: Path, good: Path) -> None:
    np.savez_compressed(tmp_path / "a.npz", x=np.zeros(10_000))
    assert payload_bytes(tmp_path / "a.npz") > 80_000
    assert payload_bytes(good) == good.stat().st_size
    assert payload_bytes(tmp_path / "none.npz") == payload_bytes(tmp_path / "none.pt") == 0


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="reads /proc")
def test_one_tensor_at_a_time_is_in_memory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Private memory, that is without pages of the mapped file, which the system drops when it needs them."""
    held: list[int] = []

    def private_bytes() -> int:
        fields = Path("/proc/self/smaps_rollup").read_text().split()
        return 1024 * int(fields[fields.index("Anonymous:") + 1])

    def read_only(name: str, tensor: torch.Tensor, device: object) -> Any:
        tensor.sum()
        held.append(private_bytes() - before)
        return describe_tensor(name, tensor[:1])

    monkeypatch.setattr(tilefold.checkpoints.describe, "describe_tensor", read_only)
    each = 4_000_000
    save_file({f"t{i}": torch.zeros(each) for i in range(8)}, tmp_path / "a.safetensors")
    np.savez(tmp_path / "a.npz", **{f"t{i}": np.zeros(each, np.float32) for i in range(8)})
    for name in ("a.safetensors", "a.npz"):
        before = private_bytes()
        describe_file(tmp_path / name)
    assert max(held) < 3.5 * each * 4  # of 8


def test_what_is_above(tmp_path: Path) -> None:
    tensors = {
        "low": torch.tensor([2.0, -3.0]),
        "high": torch.tensor([1.0, -4.0, INFINITY]),
        "none": torch.tensor([NAN]),
    }
    save_file(tensors, tmp_path / "a.safetensors")
    report = describe_file(tmp_path / "a.safetensors")
    assert [t.name for t in report.above(3.0)] == ["high"]  # not what equals the limit
    assert {t.name for t in report.above(2.9)} == {"low", "high"}
    assert report.above(4.0) == []


HOSTILE = ["\udcff\udcfe", "a\x1b[31m", "a\nb\r", "\u202e\x85\x9b2J", "\x1b]0;x\x07", "a b.npy"]


@pytest.mark.parametrize("name", HOSTILE, ids=ascii)
@pytest.mark.parametrize("suffix", SUFFIXES)
def test_paths_of_any_bytes(tmp_path: Path, name: str, suffix: str) -> None:
    path = tmp_path / (name + suffix)
    writers: dict[str, Callable[[Any], object]] = {
        ".safetensors": lambda file: file.write(
            save({"x": torch.ones(3), "c": torch.ones(1, dtype=torch.complex64)})
        ),
        ".npy": lambda file: np.save(file, np.ones(3)),
        ".npz": lambda file: np.savez(file, x=np.ones(3)),
        ".pt": lambda file: torch.save({"x": torch.ones(3)}, file),
    }
    with path.open("wb") as file:
        writers[suffix](file)
    assert describe_file(path).tensors[0].mean == 1.0
    path.write_bytes(path.read_bytes()[:-9])
    for bad in (path, tmp_path / name, path / "x"):  # cut, missing, below a file
        with pytest.raises(FileError) as caught:
            describe_file(bad)
        assert str(caught.value).isprintable()
        assert str(caught.value).startswith(f"describe: {printable(str(bad))}: the ")


def test_a_name_reaches_no_terminal_through_an_error() -> None:
    for tensor in (torch.zeros(1, dtype=torch.complex64), torch.zeros(2, 2).to_sparse()):
        with pytest.raises(DtypeError) as caught:
            describe_tensor("a\x1b[2J\n", tensor)
        assert str(caught.value).isprintable()
        assert str(caught.value).startswith("describe: a\\x1b[2J\\n: ")


def test_totals(good: Path) -> None:
    report = describe_file(good)
    assert totals(report.tensors) == {"tensors": 2, "bytes": 56, "count": 9, "nans": 0, "infs": 0, "zeros": 2}
    assert report.as_json()["totals"] == totals(report.tensors)


def test_a_reader_serves_its_tensor_at_once(good: Path) -> None:
    assert [load().numel() for _, load in tensors_of(good)] == [5, 4]
