"""Files of torch.save: what is seen in them, however it is packed, and what a pickle cannot ask for."""

from __future__ import annotations

import collections
import io
import random
import sys
import warnings
import zipfile
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from tilefold.checkpoints import tensor_files, torch_files
from tilefold.checkpoints.describe import describe_file, describe_tensor
from tilefold.errors import FileError

NAN = float("nan")


def packed(content: Any, how: str) -> bytes:
    """What torch.save makes of it: "stored", "deflated" afterwards, or "old", as before torch 1.6."""
    buffer = io.BytesIO()
    torch.save(content, buffer, _use_new_zipfile_serialization=how != "old")
    return repacked(buffer.getvalue()) if how == "deflated" else buffer.getvalue()


def repacked(
    data: bytes,
    change: Callable[[str, bytes], bytes] = lambda _, b: b,
    compression: int = zipfile.ZIP_DEFLATED,
) -> bytes:
    buffer = io.BytesIO()
    with zipfile.ZipFile(io.BytesIO(data)) as old, zipfile.ZipFile(buffer, "w", compression) as new:
        for member in old.infolist():
            new.writestr(member.filename, change(member.filename, old.read(member)))
    return buffer.getvalue()


def archive(pickled: bytes) -> bytes:
    """An archive of a pickle alone."""
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w") as made:
        made.writestr("a/data.pkl", pickled)
        made.writestr("a/version", "3\n")
    return buffer.getvalue()


PACKED = pytest.mark.parametrize("how", ["stored", "deflated", "old"])


@PACKED
def test_values_do_not_depend_on_how_a_file_is_packed(tmp_path: Path, how: str) -> None:
    x = torch.arange(24.0).reshape(4, 6)
    content = {
        "zeros": torch.zeros(300, 300), "x": x, "t": x.t(), "some": x[1:, ::2], "scalar": x[2, 3],
        "empty": torch.empty(0, 3), "half": x.bfloat16(), "copies": torch.ones(1).expand(5, 7),
        "window": torch.arange(9.0).as_strided((5, 5), (1, 1)), "minus": torch._neg_view(x),
        "parameter": torch.nn.Parameter(x), "u16": torch.tensor([1, 65535], dtype=torch.uint16),
        "f8": x.to(torch.float8_e4m3fn), "flags": torch.tensor([True, False]),
    }  # fmt: skip
    if how == "old":  # torch wrote newer dtypes so, but does not read them
        del content["u16"], content["f8"]
    (tmp_path / "a.pt").write_bytes(packed(content, how))
    report = describe_file(tmp_path / "a.pt")
    assert [t.name for t in report.tensors] == list(content)
    for found, tensor in zip(report.tensors, content.values(), strict=True):
        exact = tensor.detach().double()
        assert (found.shape, found.nans) == (tuple(tensor.shape), 0)
        if tensor.numel():
            assert (found.zeros, found.min, found.max) == ((exact == 0).sum(), exact.min(), exact.max())
            assert found.mean == pytest.approx(exact.mean().item(), rel=1e-6)


@PACKED
def test_nan_is_seen_wherever_tensors_may_be(tmp_path: Path, how: str) -> None:
    bad = torch.tensor([NAN])
    ordered = collections.OrderedDict(a=torch.ones(1))
    ordered.hidden = bad.clone()  # type: ignore[attr-defined]  # as state_dict() keeps its _metadata
    parameter = torch.nn.Parameter(torch.ones(1))
    parameter.note = bad.clone()  # type: ignore[attr-defined]  # tensors have attributes, too
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # typed storages are deprecated, files of them remain
        content = {
            "set": {bad.clone()}, bad.clone(): "value", (1, bad.clone()): {"deep": bad.clone()},
            "storage": bad.clone().storage(), "ordered": ordered, "parameter": parameter, "list": [([bad.clone()],)],
        }  # fmt: skip
        (tmp_path / "a.bin").write_bytes(packed(content, how))
    report = describe_file(tmp_path / "a.bin")
    assert [t.name for t in report.tensors if t.nans] == [
        "set.0", "<key 1>", "<key 2>.1", "<value 2>.deep", "storage", "ordered.hidden", "parameter.note", "list.0.0.0",
    ]  # fmt: skip


def test_untyped_storages_are_bytes(tmp_path: Path) -> None:
    torch.save(torch.tensor([1.0]).untyped_storage(), tmp_path / "a.pt")
    (found,) = describe_file(tmp_path / "a.pt").tensors
    assert (found.dtype, found.count) == ("uint8", 4)


@pytest.mark.parametrize("how", ["stored", "deflated"])
def test_a_record_that_is_too_short(tmp_path: Path, how: str) -> None:
    """It was read on into the next record."""
    compression = zipfile.ZIP_STORED if how == "stored" else zipfile.ZIP_DEFLATED
    cut = repacked(
        packed({"a": torch.ones(100), "b": torch.ones(100)}, "stored"),
        lambda name, data: data[:200] if name.endswith("data/0") else data, compression,
    )  # fmt: skip
    (tmp_path / "a.pt").write_bytes(cut)
    report = describe_file(tmp_path / "a.pt")
    assert [t.name for t in report.tensors] == ["b"]
    assert "must lie in its record, got one that reaches beyond it" in report.refused[0].reason


def test_big_endian_files(tmp_path: Path) -> None:
    x = torch.tensor([1.0, -2.5])

    def swap(name: str, data: bytes) -> bytes:
        if name.endswith("data/0"):
            return data[3::-1] + data[:3:-1]
        return b"big" if name.endswith("byteorder") else data

    swapped = repacked(packed({"a": x, "t": x[1:]}, "stored"), swap, zipfile.ZIP_STORED)
    (tmp_path / "a.pt").write_bytes(swapped)
    assert [(t.min, t.max) for t in describe_file(tmp_path / "a.pt").tensors] == [(-2.5, 1.0), (-2.5, -2.5)]


def test_deflated_records_are_inflated_in_chunks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch_files, "CHUNK", 1000)
    monkeypatch.setattr(torch_files, "INFLATED", 3000)
    x = torch.randn(1000)
    (tmp_path / "a.pt").write_bytes(packed({"x": x, "end": x[900:], "other": x[::2]}, "deflated"))
    report = describe_file(tmp_path / "a.pt")
    assert [t.max for t in report.tensors] == [x.max(), x[900:].max()]
    assert "must have at most 3000 bytes, got 4000" in report.refused[0].reason


def test_a_damaged_deflated_record_is_refused_alone(tmp_path: Path) -> None:
    data = packed({"a": torch.randn(1000), "b": torch.ones(3)}, "deflated")
    with zipfile.ZipFile(io.BytesIO(data)) as zipped:
        at = next(m for m in zipped.infolist() if m.filename.endswith("data/0")).header_offset + 300
    (tmp_path / "a.pt").write_bytes(data[:at] + b"\xff" * 40 + data[at + 40 :])
    report = describe_file(tmp_path / "a.pt")
    assert [t.name for t in report.tensors] == ["b"]
    assert "the array must be whole, got a damaged one" in report.refused[0].reason


def test_quantized_tensors_have_no_structure_without_data(tmp_path: Path) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # quantized tensors are deprecated, files of them remain
        content = {"q": torch.quantize_per_tensor(torch.ones(3), 0.1, 0, torch.qint8), "a": torch.ones(2)}
    (tmp_path / "a.pt").write_bytes(packed(content, "deflated"))
    with pytest.raises(FileError, match=r"quantized or nested tensors must be stored, got deflated ones"):
        describe_file(tmp_path / "a.pt")


def test_views_of_one_storage(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    x = torch.arange(1000.0)
    (tmp_path / "a.pt").write_bytes(packed([x] * 500 + [x[i:] for i in range(4)], "stored"))
    report = describe_file(tmp_path / "a.pt")
    assert (len(report.tensors), report.tensors[499].name, report.tensors[503].min) == (504, "499", 3.0)
    monkeypatch.setattr(torch_files, "AGAIN", 1 - (1 << 30) // (tmp_path / "a.pt").stat().st_size)
    assert "must add up to at most" in describe_file(tmp_path / "a.pt").refused[-1].reason


def test_names_and_depths_are_bounded(tmp_path: Path) -> None:
    deep: Any = torch.ones(1)
    for _ in range(200):
        deep = [deep]
    torch.save({"k" * 100_000: {"a": deep}, "deep": deep}, tmp_path / "a.pt")
    names = [t.name for t in describe_file(tmp_path / "a.pt").tensors]
    assert max(map(len, names)) <= torch_files.NAME
    assert names[0].endswith(".0.0.0")
    (tmp_path / "b.pt").write_bytes(archive(b"\x80\x02" + b"]" * 100_000 + b"a" * 99_999 + b"."))
    assert describe_file(tmp_path / "b.pt").tensors == ()


def big_endian(data: bytes, compression: int) -> bytes:
    """The same file as a machine of the other order of bytes writes it: elements of 4 bytes."""

    def change(name: str, part: bytes) -> bytes:
        if name.endswith("byteorder"):
            return b"big"
        return np.frombuffer(part, "<u4").astype(">u4").tobytes() if "/data/" in name else part

    return repacked(data, change, compression)


PACKINGS: dict[str, Callable[[Any], bytes]] = {
    "stored": lambda content: packed(content, "stored"),
    "deflated": lambda content: packed(content, "deflated"),
    "old": lambda content: packed(content, "old"),
    "big": lambda content: big_endian(packed(content, "stored"), zipfile.ZIP_STORED),
    "big-deflated": lambda content: big_endian(packed(content, "stored"), zipfile.ZIP_DEFLATED),
}


def drawn_view(draw: random.Random, base: torch.Tensor) -> torch.Tensor:
    """A view of some elements: any strides, 0 and overlapping ones among them, negated or not."""
    rank = draw.randrange(4)
    shape = [draw.choice((1, 2, 3, 7)) for _ in range(rank)]
    stride = [draw.choice((0, 1, 1, 2, 50)) for _ in range(rank)]
    reach = sum((n - 1) * s for n, s in zip(shape, stride, strict=True))
    view = base.as_strided(shape, stride, draw.randrange(len(base) - reach))
    return torch._neg_view(view) if draw.random() < 0.3 else view


@pytest.mark.parametrize("how", list(PACKINGS))
def test_any_views_of_one_storage(tmp_path: Path, how: str, monkeypatch: pytest.MonkeyPatch) -> None:
    for seed in range(12):
        draw = random.Random(seed)
        base = torch.randn(1000, generator=torch.Generator().manual_seed(seed))
        base[5], base[6], base[500] = NAN, 0.0, float("inf")
        views = {str(i): drawn_view(draw, base) for i in range(draw.randrange(1, 9))}
        views["imag"] = torch.view_as_complex(base.view(500, 2)).conj().imag
        views["copies"] = views["imag"][:, None].expand(500, 1 << 40)
        monkeypatch.setattr(torch_files, "INFLATED", draw.choice((3000, 4000, 1 << 20)))
        (tmp_path / "a.pt").write_bytes(PACKINGS[how](views))
        report = describe_file(tmp_path / "a.pt")
        if torch_files.INFLATED > 3000 or "deflated" not in how:
            assert not report.refused
        assert all("must have at most 3000 bytes" in r.reason for r in report.refused)
        for found in report.tensors:
            view = views[found.name]
            want = describe_tensor(found.name, view[:, :3] if found.name == "copies" else view.clone())
            if found.name == "copies":
                assert (found.count, found.nans, found.min) == (500 << 40, want.nans // 3 << 40, want.min)
                continue
            assert replace(found, mean=None, std=None) == replace(want, mean=None, std=None)
            assert found.mean == pytest.approx(want.mean, rel=1e-5, abs=1e-6)
            assert found.std == pytest.approx(want.std, rel=1e-5, abs=1e-6)


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="reads /proc")
@pytest.mark.parametrize("how", ["deflated", "big", "big-deflated"])
def test_many_views_of_a_record_take_the_memory_of_one(tmp_path: Path, how: str) -> None:
    x, views = torch.randn(1 << 19), 40
    (tmp_path / "a.pt").write_bytes(
        PACKINGS[how]([x[i::views] for i in range(views)] + [x[i:] for i in range(9)])
    )
    assert peak_growth(lambda: describe_file(tmp_path / "a.pt")) < 8 * x.nbytes  # of 49


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="reads /proc")
@pytest.mark.parametrize("how", list(PACKINGS))
def test_views_are_not_written_out(tmp_path: Path, how: str) -> None:
    x = torch.randn(50, dtype=torch.complex64).conj().imag
    (tmp_path / "a.pt").write_bytes(
        PACKINGS[how]([x[:, None].expand(50, 1 << 20), x.as_strided((25, 1 << 20), (2, 0))])
    )
    report = describe_file(tmp_path / "a.pt")
    assert [t.count for t in report.tensors] == [50 << 20, 25 << 20]
    assert peak_growth(lambda: describe_file(tmp_path / "a.pt")) < 50 << 20  # of 200 MB written out


def peak_growth(function: Callable[[], object]) -> int:
    """How far the resident memory rises above what it is before, in bytes."""

    def kilobytes(key: str) -> int:
        return int(Path("/proc/self/status").read_text().split(key)[1].split()[0])

    Path("/proc/self/clear_refs").write_text("5")  # the peak begins anew
    before = kilobytes("VmRSS:")
    function()
    return 1024 * (kilobytes("VmHWM:") - before)


SCARCE = [
    MemoryError(),
    RuntimeError("[enforce fail at alloc_cpu.cpp:119] DefaultCPUAllocator: not enough memory: tried 9 bytes."),
    OSError(12, "Cannot allocate memory"),
]  # fmt: skip


@pytest.mark.parametrize("scarce", SCARCE, ids=lambda e: type(e).__name__)
@pytest.mark.parametrize(
    "place",
    ["in_order", "_as_tensor", "check_pickles", "_load", "_Archive._bytes", "torch.UntypedStorage.from_file"],
)
@pytest.mark.parametrize("how", list(PACKINGS))
def test_no_memory_is_no_damage(
    tmp_path: Path, how: str, place: str, scarce: Exception, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: object, **__: object) -> object:
        raise scarce

    (tmp_path / "a.pt").write_bytes(PACKINGS[how]({"x": torch.arange(99.0)}))
    monkeypatch.setattr(f"tilefold.checkpoints.torch_files.{place}", refuse)
    try:
        said = [refusal.reason for refusal in describe_file(tmp_path / "a.pt").refused]
    except FileError as error:
        said = [str(error)]
    assert all("must fit into" in line and "use a machine with more" in line for line in said), said
    assert not any("whole" in line or "damaged" in line for line in said)


@pytest.mark.parametrize("how", ["deflated", "big-deflated"])
def test_a_record_is_decoded_once(tmp_path: Path, how: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also where views of several records take turns; with room for one alone, again each time."""
    a, b = torch.randn(1000), torch.randn(1000)
    views = [t[i:] for i in range(5) for t in (a, b)]
    (tmp_path / "a.pt").write_bytes(PACKINGS[how](views))
    inflated, own = list[str](), torch_files._Archive._bytes
    streamed, chunks = list[object](), torch_files._Archive._chunks

    def counted(self: Any, name: str) -> torch.UntypedStorage:
        inflated.append(name)
        return own(self, name)

    monkeypatch.setattr(torch_files._Archive, "_bytes", counted)
    monkeypatch.setattr(
        torch_files._Archive, "_chunks", lambda self, view: streamed.append(view) or chunks(self, view)
    )
    for room, times, last in ((1 << 20, 1, 0), (4000, 4, 1)):  # one last view is read in chunks
        monkeypatch.setattr(torch_files, "INFLATED", room)
        inflated.clear()
        assert not describe_file(tmp_path / "a.pt").refused
        assert len(streamed) == last
        assert [inflated.count(f"data/{i}") for i in range(2)] == [times] * 2


def test_an_order_of_bytes_that_is_none(tmp_path: Path) -> None:
    data = repacked(
        packed(torch.ones(2), "stored"), lambda name, b: b"middle" if name.endswith("order") else b
    )
    (tmp_path / "a.pt").write_bytes(data)
    with pytest.raises(FileError, match=r"the order of bytes must be little or big, got b'middle'; save"):
        describe_file(tmp_path / "a.pt")


@pytest.mark.parametrize("how", ["stored", "deflated"])
@pytest.mark.parametrize("size", [0, 8, 399, 401, 1 << 20, 0xFFFFFFF0])
def test_a_record_whose_declared_size_is_another(tmp_path: Path, how: str, size: int) -> None:
    data = bytearray(packed({"a": torch.ones(100), "b": torch.ones(3)}, how))
    at = data.index(b"/data/0", data.index(b"PK\x01\x02"))
    at = data.rindex(b"PK\x01\x02", 0, at)
    data[at + 24 : at + 28] = size.to_bytes(4, "little")
    (tmp_path / "a.pt").write_bytes(data)
    report = describe_file(tmp_path / "a.pt")
    assert [(t.name, t.max) for t in report.tensors if t.name == "b"] == [("b", 1.0)]
    assert all(t.max == 1.0 and t.count == 100 for t in report.tensors if t.name == "a")
    assert all("must lie in its record" in r.reason for r in report.refused)


def test_records_of_one_name(tmp_path: Path) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # zipfile says that a name is there already
        (tmp_path / "a.pt").write_bytes(packed(torch.ones(2), "stored"))
        with zipfile.ZipFile(tmp_path / "a.pt", "a") as again:
            again.writestr(next(n for n in again.namelist() if n.endswith("data/0")), b"\0" * 8)
    with pytest.raises(FileError, match="must have names of their own, got one twice"):
        describe_file(tmp_path / "a.pt")


@pytest.mark.parametrize("made", ["torch\nFloatTensor", "torch\nTensor", "torch.storage\nUntypedStorage"])
def test_what_a_pickle_makes_itself_is_bounded(tmp_path: Path, made: str) -> None:
    (tmp_path / "a.pt").write_bytes(archive(b"\x80\x02c" + made.encode() + b"\nJ\x00\x00\x00\x10\x85R."))
    (refusal,) = describe_file(tmp_path / "a.pt").refused
    assert "must lie in its record" in refusal.reason


def test_members_that_overlap(tmp_path: Path) -> None:
    data = bytearray(packed({"a": torch.ones(3), "b": torch.ones(3)}, "deflated"))
    with zipfile.ZipFile(io.BytesIO(data)) as zipped:
        first, second = (m for m in zipped.infolist() if "/data/" in m.filename)
    directory = data.index(b"PK\x01\x02")
    entry = data.index(second.filename.encode(), directory) - 46
    data[entry + 42 : entry + 46] = (first.header_offset + 1).to_bytes(4, "little")
    (tmp_path / "a.pt").write_bytes(data)
    with pytest.raises(FileError, match="must lie one after another, got two that overlap"):
        list(tensor_files.tensors_of(tmp_path / "a.pt"))
