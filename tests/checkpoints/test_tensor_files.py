"""Whatever bytes a file holds: a report or one line, soon and in bounded memory."""

from __future__ import annotations

import io
import random
import zipfile
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import save

from checkpoints.test_torch_files import packed, repacked
from tilefold.checkpoints import tensor_files
from tilefold.checkpoints.describe import describe_file
from tilefold.errors import FileError

MUTANTS = 60  # of each seed; by hand 10,000 were tried


def saved(function: object, *arrays: object, **named: object) -> bytes:
    buffer = io.BytesIO()
    function(buffer, *arrays, **named)  # type: ignore[operator]  # numpy's
    return buffer.getvalue()


def seeds() -> dict[str, bytes]:
    x = torch.arange(50.0)
    content = {
        "x": x, "some": x[5:20:3], "copies": torch.zeros(1).expand(5, 9), "list": [torch.ones(2, 3).t(), {"a": x[3]}],
        "set": {torch.ones(2)}, "window": x.as_strided((20, 20), (1, 1)), "rate": 0.1,
    }  # fmt: skip
    arrays = {"a": np.ones(90), "b": np.arange(4)}
    return {
        "safetensors": save({"a": torch.randn(5, 3), "b": torch.ones(7).half()}),
        "npy": saved(np.save, np.random.default_rng(0).random((5, 4))),
        "npz": saved(np.savez, **arrays),
        "npz-compressed": saved(np.savez_compressed, **arrays),
        **{f"torch-{how}": packed(content, how) for how in ("stored", "deflated", "old")},
    }


def mutant(data: bytes, draw: random.Random) -> bytes:
    """Bits flipped, bytes replaced, parts cut out, doubled, or put in from elsewhere."""
    changed = bytearray(data)
    for _ in range(draw.choice((1, 1, 1, 2, 3, 8))):
        at, length = draw.randrange(len(changed)), draw.randrange(1, 40)
        match draw.randrange(6):
            case 0:
                changed[at] ^= 1 << draw.randrange(8)
            case 1:
                changed[at] = draw.randrange(256)
            case 2:
                del changed[max(at, 1) :]
            case 3:
                del changed[max(at, 1) : at + length]
            case 4:
                changed[at:at] = changed[draw.randrange(len(changed)) :][:length]
            case _:
                changed[at : at + 8] = (1 << draw.randrange(63)).to_bytes(8, "little")
    return bytes(changed)


@pytest.mark.parametrize("kind", list(seeds()))
def test_mutants(tmp_path: Path, kind: str) -> None:
    data, draw = seeds()[kind], random.Random(kind)
    for number in range(MUTANTS):
        changed = mutant(data, draw)
        if kind == "torch-stored" and number % 2:  # the pickle inside, in a sound archive
            changed = repacked(
                data, lambda name, part: mutant(part, draw) if name.endswith(".pkl") else part, zipfile.ZIP_STORED
            )  # fmt: skip
        (tmp_path / "a").write_bytes(changed)
        lines = said_of(tmp_path / "a")
        assert all(len(line.splitlines()) == 1 and "; " in line for line in lines), lines


def said_of(path: Path) -> list[str]:
    """What is said of a file, or of the tensors in it that have no report."""
    try:
        report = describe_file(path)
    except FileError as error:
        return [str(error)]
    report.as_json()
    return [refusal.reason for refusal in report.refused]


@pytest.mark.parametrize(
    "start",
    [b"", b"PK\x03\x04", b"PK\x05\x06", b"\x93NUMPY", b"\x80\x02", b"{}", b"\x08" + b"\0" * 7 + b"{"],
    ids=repr,
)
def test_garbage(tmp_path: Path, start: bytes) -> None:
    (tmp_path / "a").write_bytes(start + random.Random(1).randbytes(500))
    with pytest.raises(FileError, match=r"the file must be .*, got .*; "):
        describe_file(tmp_path / "a")


@pytest.mark.parametrize("kind", list(seeds()))
def test_names_are_not_asked(tmp_path: Path, kind: str) -> None:
    (tmp_path / "pytorch_model.bin").write_bytes(seeds()[kind])
    (tmp_path / "a.npy").write_bytes(seeds()[kind])
    for name in ("pytorch_model.bin", "a.npy"):
        assert describe_file(tmp_path / name).tensors


def test_compressed_arrays_are_read_in_chunks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tensor_files, "CHUNK", 100)
    x = np.random.default_rng(1).standard_normal((40, 7))
    np.savez_compressed(
        tmp_path / "a.npz", x=x, f=np.asfortranarray(x), big=x.astype(">f4"), empty=np.zeros((0, 3))
    )
    np.save(tmp_path / "b.npy", x.astype(">f8"))
    reports = [*describe_file(tmp_path / "a.npz").tensors, *describe_file(tmp_path / "b.npy").tensors]
    for found in reports[:3] + reports[4:]:
        assert found.shape == (40, 7)
        assert found.std == pytest.approx(x.std(ddof=1), rel=1e-6)
    assert reports[3].count == 0


def test_members_of_other_lengths_and_compressions(tmp_path: Path) -> None:
    whole = saved(np.save, np.ones(10))
    with zipfile.ZipFile(tmp_path / "a.npz", "w") as archive:
        archive.writestr("short.npy", whole[:-8])
        archive.writestr("long.npy", whole + b"\0")
        archive.writestr("bz2.npy", whole, zipfile.ZIP_BZIP2)
        archive.writestr("version.npy", whole.replace(b"NUMPY\x01", b"NUMPY\x03"))
    reasons = [r.reason for r in describe_file(tmp_path / "a.npz").refused]
    assert [r.split("; ")[0] for r in reasons[:3]] == [
        "the array must be whole, got 72 bytes for 10 of float64",
        "the array must be whole, got 81 bytes for 10 of float64",
        "the member must be stored or deflated, got another compression",
    ]
    assert "beyond Latin" in reasons[3]
