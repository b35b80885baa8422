"""Shared parts of file readers: tensors one at a time, in chunks, out of archives."""

from __future__ import annotations

import contextlib
import zipfile
from collections.abc import Callable, Hashable, Iterator
from dataclasses import dataclass
from pathlib import Path

import torch

from tilefold.checkpoints.file_kinds import reason_of
from tilefold.checkpoints.memory import is_out_of_memory
from tilefold.errors import FileError

CHUNK = 1 << 24  # bytes


@dataclass(frozen=True)
class Stream:
    """An array that is read in chunks of its elements, in any order, once."""

    shape: tuple[int, ...]
    dtype: torch.dtype
    chunks: Iterator[torch.Tensor]


@dataclass(frozen=True)
class Coded:
    """A view of memory that holds its elements in another form; `decode` gives those of any part of it."""

    view: torch.Tensor
    decode: Callable[[torch.Tensor], torch.Tensor]


Loaded = torch.Tensor | Stream | Coded


@dataclass(frozen=True)
class Load:
    """Reads a tensor. Two of equal `place`, if it is not None, read the same elements. `size` is about how many bytes."""

    read: Callable[[], Loaded]
    place: Hashable = None
    size: Callable[[], int] = int

    def __call__(self) -> Loaded:
        """The tensor, its chunks, or its memory."""
        return self.read()


Entries = Iterator[tuple[str, Load]]


@contextlib.contextmanager
def named_in_utf8(path: Path) -> Iterator[str]:
    """A name of a file for libraries that take no others: its own, or that of an open descriptor of it."""
    try:
        name = str(path)
        name.encode()
    except UnicodeEncodeError:
        with path.open("rb") as file:
            yield f"/dev/fd/{file.fileno()}"
    else:
        yield name


def check_apart(archive: zipfile.ZipFile) -> None:
    """Refuse bytes before the first member, and members that share bytes: a small file could hold an array a thousand times.

    Raises:
        FileError: two members overlap, or other bytes come first: of two archives in one file only the last is listed.
    """
    members, end = sorted(archive.infolist(), key=lambda m: m.header_offset), 0
    if members and members[0].header_offset:
        raise FileError(
            f"the file must begin with its archive's first member, got {members[0].header_offset} bytes before it; save what "
            "they hold in a file of its own"
        )
    for member in members:
        if member.header_offset < end:
            raise FileError(
                "the members of an archive must lie one after another, got two that overlap; save it again"
            )
        end = member.header_offset + member.compress_size


@contextlib.contextmanager
def whole_array() -> Iterator[None]:
    """One line for the various errors of zipfile, zlib, numpy and torch about one array."""
    try:
        with numpy_refusals():
            yield
    except FileError:
        raise
    except Exception as error:
        if is_out_of_memory(error):
            raise MemoryError from error
        raise FileError(
            f"the array must be whole, got a damaged one ({reason_of(error)}); save it again"
        ) from error


@contextlib.contextmanager
def numpy_refusals() -> Iterator[None]:
    """Arrays of Python objects would need pickle."""
    try:
        yield
    except ValueError as error:
        if "allow_pickle" not in str(error) and "Python objects" not in str(error):
            raise
        raise python_objects() from error


def python_objects() -> FileError:
    """The error for arrays of Python objects."""
    return FileError(
        "the array must hold numbers, got Python objects, which only pickle reads; save it with a number's dtype"
    )
