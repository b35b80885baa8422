"""The kind of a file by its first bytes, whatever its name."""

from __future__ import annotations

import zipfile
from pathlib import Path

from tilefold.errors import FileError, printable, without_address

SAFETENSORS, NPY, NPZ, TORCH, LEGACY, INDEX = "safetensors", "npy", "npz", "torch", "legacy torch", "index"
WORDS = {
    SAFETENSORS: ".safetensors file", NPY: ".npy file", NPZ: ".npz file", TORCH: "file of torch.save",
    LEGACY: "file of torch.save", INDEX: "*.index.json",
}  # fmt: skip
KNOWN = "safetensors, npy, npz, torch.save"
_ZIP, _NPY = (b"PK\x03\x04", b"PK\x05\x06"), b"\x93NUMPY"  # an archive of nothing begins with its end
# The pickled number that torch.save began with before it wrote zip archives.
_LEGACY = b"\x8a\x0a\x6c\xfc\x9c\x46\xf9\x20\x6a\xa8\x50\x19."
# Files that people take for checkpoints, and what to do with them.
_FOREIGN = (
    (b"version https://git-lfs", "a pointer of Git LFS; fetch the file with git lfs pull"),
    (b"GGUF", "a GGUF file; describe the checkpoint it was made from"),
    (b"\x89HDF\r\n\x1a\n", "an HDF5 file; save its arrays with numpy.savez"),
    (b"\x1f\x8b", "a gzip archive; unpack it first"),
    (b"7z\xbc\xaf\x27\x1c", "a 7z archive; unpack it first"),
    (b"<!DOCTYPE", "a web page; download the file itself"),
    (b"<html", "a web page; download the file itself"),
    *(
        (
            bytes([0x80, protocol]),
            "a pickle that torch.save did not write, which is code; save its tensors with torch.save",
        )
        for protocol in range(6)
    ),
)
_SUFFIXES = {".safetensors": SAFETENSORS, ".npy": NPY, ".npz": NPZ, ".pt": TORCH, ".pth": TORCH}


def kind_of(path: Path) -> str:
    """The kind of a checkpoint.

    Raises:
        FileError: there is no regular file that can be read, or it is of no kind that is known.
    """
    check_readable(path)
    try:
        with path.open("rb") as file:
            start = file.read(64)
        kind = _kind(path, start)
    except OSError as error:
        raise FileError(f"the file must be readable, got {error.strerror!r}; check the disk") from error
    if kind is None:
        raise _unknown(path, start)
    return kind


def _kind(path: Path, start: bytes) -> str | None:
    if start.startswith(_NPY):
        return NPY
    if start[:1] == b"\x80" and start[2:].startswith(_LEGACY):
        return LEGACY
    if start.startswith(_ZIP):
        return _kind_of_archive(path)
    if start[8:9] == b"{" and int.from_bytes(start[:8], "little") < 1 << 40:
        return SAFETENSORS
    if start.lstrip()[:1] == b"{" and path.name.lower().endswith(".json"):
        return INDEX
    return None


def _kind_of_archive(path: Path) -> str | None:
    """Of a zip archive: torch's holds a pickle, numpy's arrays. One that lost its end is told by its first member."""
    try:
        with zipfile.ZipFile(path) as archive:
            names = archive.namelist()
    except (zipfile.BadZipFile, NotImplementedError, ValueError, EOFError):
        with path.open("rb") as file:
            start = file.read(1024)
        names = [start[30 : 30 + int.from_bytes(start[26:28], "little")].decode("latin-1")]
    if any(name == "data.pkl" or name.endswith("/data.pkl") for name in names):
        return TORCH
    return NPZ if not names or any(name.endswith(".npy") for name in names) else None


def claimed_kind(path: Path) -> str | None:
    """The kind of a file by its name."""
    return _SUFFIXES.get(path.suffix.lower())


def _unknown(path: Path, start: bytes) -> FileError:
    if not start:
        return FileError("the file must hold something, got an empty file; download or save it again")
    for magic, words in _FOREIGN:
        if start.startswith(magic):
            return FileError(f"the file must be one of {KNOWN}, got {words}")
    claimed = claimed_kind(path)
    if claimed is not None:
        return FileError(
            f"the file must be a whole {WORDS[claimed]}, got one that does not begin as such; download or save it again"
        )
    got = "a zip archive of other things" if start.startswith(_ZIP) else "something else"
    return FileError(f"the file must be one of {KNOWN}, got {got}; convert it first")


def check_readable(path: Path) -> None:
    """Refuse a path that is not a regular file or cannot be opened.

    Raises:
        FileError: see `kind_of`.
    """
    try:
        if path.is_dir():
            raise FileError("the path must name a file, got a directory; name the files in it")
        if not path.exists():
            raise FileError("the file must exist, got nothing there; check the path")
        if not path.is_file():
            raise FileError(
                "the path must name a regular file, got a device or a pipe; save it to a file first"
            )
        path.open("rb").close()
    except FileError:
        raise
    except OSError as error:
        raise FileError(
            f"the file must be readable, got {error.strerror!r}; check the path and its permissions"
        ) from error
    except ValueError as error:
        raise FileError(
            "the path must be one of this system, got a character that no name has in it; check the path"
        ) from error


def reason_of(error: BaseException) -> str:
    """A foreign error in a few words on one line; an error without a sentence gets one."""
    text = printable(without_address(" ".join(str(error).split())))
    if len(text.split()) < 3:
        text = "its content contradicts itself"
    return text if len(text) <= 120 else text[:119].rstrip() + "…"
