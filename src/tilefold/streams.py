"""What readers of files hand on, and what they share: tensors one at a time, in chunks, out of archives."""

from __future__ import annotations

import contextlib
import zipfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import torch

from tilefold.errors import FileError
from tilefold.file_kinds import reason_of

CHUNK = 1 << 24  # bytes


@dataclass(frozen=True)
class Stream:
    """An array that is read in chunks of its elements, in any order, once."""

    shape: tuple[int, ...]
    dtype: torch.dtype
    chunks: Iterator[torch.Tensor]


Load = Callable[[], torch.Tensor | Stream]
Entries = Iterator[tuple[str, Load]]


def check_apart(archive: zipfile.ZipFile) -> None:
    """Refuse members that share bytes: a small file could hold the same large array a thousand times.

    Raises:
        FileError: two members overlap.
    """
    end = 0
    for member in sorted(archive.infolist(), key=lambda m: m.header_offset):
        if member.header_offset < end:
            raise FileError(
                "the members of an archive must lie one after another, got two that overlap; save it again"
            )
        end = member.header_offset + member.compress_size


@contextlib.contextmanager
def whole_array() -> Iterator[None]:
    """One line for what zipfile, zlib, numpy and torch raise of one array, each in kinds of its own."""
    try:
        with numpy_refusals():
            yield
    except (FileError, MemoryError):
        raise
    except Exception as error:
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
    """What is said of arrays of Python objects."""
    return FileError(
        "the array must hold numbers, got Python objects, which only pickle reads; save it with a number's dtype"
    )
