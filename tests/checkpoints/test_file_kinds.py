"""What a file is by its first bytes, whatever its name, and how a path that is no such file is refused."""

from __future__ import annotations

import json
import os
import pickle
import zipfile
from collections.abc import Callable
from pathlib import Path

import numpy
import pytest
import torch
from safetensors.torch import save_file

from tilefold.checkpoints.file_kinds import (
    INDEX,
    LEGACY,
    NPY,
    NPZ,
    SAFETENSORS,
    TORCH,
    check_readable,
    kind_of,
    reason_of,
)
from tilefold.errors import FileError

ONE = torch.ones(3)


def legacy(path: Path) -> None:
    torch.save({"a": ONE}, path, _use_new_zipfile_serialization=False)


def without_its_end(write: Callable[[Path], object]) -> Callable[[Path], object]:
    """A zip archive that lost its directory, as a download that broke off."""

    def cut(path: Path) -> None:
        write(path)
        path.write_bytes(path.read_bytes()[:-60])

    return cut


def archive(*members: str) -> Callable[[Path], None]:
    def write(path: Path) -> None:
        with zipfile.ZipFile(path, "w") as made:
            for name in members:
                made.writestr(name, "text")

    return write


def numpy_file(path: Path) -> None:
    with path.open("wb") as file:
        numpy.save(file, ONE.numpy())


def arrays(path: Path) -> None:
    with path.open("wb") as file:
        numpy.savez(file, a=ONE.numpy())


def index(path: Path) -> None:
    path.write_text(" \n" + json.dumps({"weight_map": {}}))


def content(data: bytes) -> Callable[[Path], object]:
    return lambda path: path.write_bytes(data)


def safetensors(path: Path) -> None:
    save_file({"a": ONE}, path)


def new_torch(path: Path) -> None:
    torch.save({"a": ONE}, path)


@pytest.mark.parametrize("name", ["a.npz", "a.pt", "a.safetensors", "a.JSON", "a"])
@pytest.mark.parametrize(
    ("write", "kind"),
    [(safetensors, SAFETENSORS), (numpy_file, NPY), (arrays, NPZ), (new_torch, TORCH), (legacy, LEGACY),
     (without_its_end(arrays), NPZ), (without_its_end(new_torch), TORCH), (archive(), NPZ)],
    ids=["safetensors", "npy", "npz", "torch", "legacy", "cut npz", "cut torch", "empty npz"],
)  # fmt: skip
def test_a_kind_by_its_bytes_whatever_the_name(
    write: Callable[[Path], object], kind: str, name: str, tmp_path: Path
) -> None:
    write(tmp_path / name)
    assert kind_of(tmp_path / name) == kind


def test_an_index_has_its_name_too(tmp_path: Path) -> None:
    index(tmp_path / "model.Safetensors.Index.JSON")
    assert kind_of(tmp_path / "model.Safetensors.Index.JSON") == INDEX
    index(tmp_path / "model.txt")
    with pytest.raises(FileError, match=r"must be one of safetensors, .*, got something else; convert"):
        kind_of(tmp_path / "model.txt")


@pytest.mark.parametrize(
    ("write", "got"),
    [
        (content(b""), "must hold something, got an empty file; download or save it again"),
        (content(b"version https://git-lfs.github.com/spec/v1\n"), "a pointer of Git LFS; fetch"),
        (content(b"GGUF\x03"), "a GGUF file; "),
        (content(b"\x89HDF\r\n\x1a\n1"), "an HDF5 file; "),
        (content(b"\x1f\x8b\x08"), "a gzip archive; unpack"),
        (content(b"7z\xbc\xaf\x27\x1c"), "a 7z archive; unpack"),
        (content(b"<!DOCTYPE html>"), "a web page; "),
        (content(b"<html>"), "a web page; "),
        *((content(pickle.dumps([1], protocol)), "a pickle that torch.save did not write") for protocol in range(2, 6)),
        (archive("notes.txt"), "a zip archive of other things; convert"),
        (content(b"notes"), "something else; convert"),
        (content((1 << 40).to_bytes(8, "little") + b"{"), "something else; convert"),
    ],
    ids=["empty", "lfs", "gguf", "hdf5", "gzip", "7z", "doctype", "html", "pickle 2", "pickle 3", "pickle 4", "pickle 5",
         "zip", "text", "header too long"],
)  # fmt: skip
def test_another_thing_is_refused_by_what_it_is(
    write: Callable[[Path], object], got: str, tmp_path: Path
) -> None:
    write(tmp_path / "file")
    with pytest.raises(FileError, match=got):
        kind_of(tmp_path / "file")


@pytest.mark.parametrize(
    ("suffix", "words"),
    [("safetensors", ".safetensors file"), ("npy", ".npy file"), ("NPZ", ".npz file"), ("pt", "file of torch.save"),
     ("pth", "file of torch.save")],
)  # fmt: skip
def test_what_claims_a_kind_is_called_broken(suffix: str, words: str, tmp_path: Path) -> None:
    (tmp_path / f"a.{suffix}").write_bytes(b"notes")
    with pytest.raises(FileError, match=f"must be a whole {words}, got one that does not begin as such; "):
        kind_of(tmp_path / f"a.{suffix}")


def test_a_path_that_is_no_file_is_refused_by_what_it_is(tmp_path: Path) -> None:
    (tmp_path / "dir").mkdir()
    os.mkfifo(tmp_path / "pipe")
    for name, got in (
        ("dir", "must name a file, got a directory"), ("none", "must exist, got nothing there"),
        ("pipe", "must name a regular file, got a device or a pipe"), ("a\0b", "must (be one of this system|exist)"),
        ("x" * 5000, "must (be readable, got 'File name too long'; check the path|exist)"),
    ):  # fmt: skip
        with pytest.raises(FileError, match=got):
            check_readable(tmp_path / name)


@pytest.mark.parametrize("refused", [1, 2])
def test_a_file_that_cannot_be_opened_or_read(
    refused: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """At the first opening a permission lacks, at the second the disk fails."""
    safetensors(tmp_path / "a")
    opened = [0]
    right = Path.open

    def refuse(path: Path, *arguments: object) -> object:
        opened[0] += 1
        if opened[0] == refused:
            raise (
                PermissionError(13, "Permission denied") if refused == 1 else OSError(5, "Input/output error")
            )
        return right(path, *arguments)  # type: ignore[call-overload]  # as it was called

    monkeypatch.setattr(Path, "open", refuse)
    got = "'Permission denied'; check the path" if refused == 1 else "'Input/output error'; check the disk"
    with pytest.raises(FileError, match=f"the file must be readable, got {got}"):
        kind_of(tmp_path / "a")


def test_a_foreign_error_in_a_few_words() -> None:
    assert reason_of(ValueError("header  is\ntoo long")) == "header is too long"
    assert reason_of(KeyError("x")) == "its content contradicts itself"
    assert reason_of(ValueError("a b " + "c" * 200)) == "a b " + "c" * 115 + "…"
    assert reason_of(ValueError("a b " + "c" * 116)) == "a b " + "c" * 116
