"""The tensors of a file, one at a time, whatever its name: safetensors, npy, npz, and torch.save's read with `weights_only`.

Only objects that `weights_only` admits are unpickled, and no code in a file runs. Files are mapped into memory or read in
chunks, so that only the tensor at hand needs to be there, and of compressed ones a chunk.
"""

from __future__ import annotations

import contextlib
import math
import re
import warnings
import zipfile
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import torch

from tilefold.checkpoints import torch_files
from tilefold.checkpoints.file_kinds import LEGACY, NPY, NPZ, SAFETENSORS, TORCH, WORDS, kind_of, reason_of
from tilefold.checkpoints.memory import is_out_of_memory
from tilefold.checkpoints.streams import (
    CHUNK,
    Entries,
    Load,
    Stream,
    check_apart,
    named_in_utf8,
    numpy_refusals,
    python_objects,
    whole_array,
)
from tilefold.errors import FileError


def tensors_of(path: str | Path) -> Entries:
    """The names of a file's tensors, in the file's order, each with a function that reads it.

    A reader is called at once or not at all: it may no longer work when the next name was asked for.

    Raises:
        FileError: the file is missing, unreadable, truncated, of another format, or needs code to be read. A reader
            raises it too, for a tensor that is not an array of numbers.
    """
    path = Path(path)
    kind = kind_of(path)
    if kind not in READERS:
        raise FileError("the file must hold tensors, got JSON; name the shards of an index, or checkpoints")
    try:
        yield from READERS[kind](path)
    except (FileError, GeneratorExit, KeyboardInterrupt, SystemExit):
        raise
    except (
        BaseException
    ) as error:  # every reader has its own kinds, panics of Rust among them; one line for all
        if not isinstance(error, Exception) and type(error).__name__ != "PanicException":
            raise
        if is_out_of_memory(error):
            raise FileError(
                "the file must fit into memory, got no more of it; use a machine with more"
            ) from error
        raise FileError(
            f"the file must be a whole {WORDS[kind]}, got one that cannot be read ({reason_of(error)}); "
            "download or save it again"
        ) from error


def payload_bytes(path: str | Path) -> int:
    """About how many bytes of tensors a file holds, for a progress bar; 0 where that cannot be told."""
    path = Path(path)
    try:
        if kind_of(path) == NPZ:
            with zipfile.ZipFile(path) as archive:
                return sum(member.file_size for member in archive.infolist())
        return path.stat().st_size
    except (OSError, FileError, zipfile.BadZipFile, ValueError, NotImplementedError):
        return 0


def _safetensors(path: Path) -> Entries:
    try:
        from safetensors import safe_open
    except ImportError:
        raise FileError(
            "the package safetensors must be there to read this file, got none; pip install 'tilefold[cli]'"
        ) from None
    with named_in_utf8(path) as readable, safe_open(readable, framework="pt") as file:
        for name in file.keys():  # noqa: SIM118  # not a dict: keys() is its only listing
            yield name, Load(partial(_safetensor, file, name), size=partial(_size, file, name))


def _size(file: Any, name: str) -> int:
    """The bytes of a tensor: a dtype's name has its bits, but BOOL's."""
    part = file.get_slice(name)
    bits = re.search(r"\d+", part.get_dtype())
    return int(math.prod(part.get_shape()) * (int(bits[0]) if bits else 8) // 8)


def _safetensor(file: Any, name: str) -> torch.Tensor:
    try:
        tensor: torch.Tensor = file.get_tensor(name)
    except Exception as error:  # a dtype that this torch lacks, say
        if is_out_of_memory(error):
            raise MemoryError from error
        raise FileError(
            f"the tensor must have a dtype that torch {torch.__version__} reads, got {reason_of(error)}; convert it"
        ) from error
    return tensor


def _npy(path: Path) -> Entries:
    import numpy as np

    with _quietly(), numpy_refusals():
        # Not np.load, which would try other formats, pickle among them.
        array = np.lib.format.open_memmap(path, mode="r")  # type: ignore[no-untyped-call]  # numpy has no types for it
    behind = path.stat().st_size - array.offset - array.nbytes
    if behind > 0:
        raise FileError(
            f"the file must hold one array, got {behind} bytes behind it; save several in an .npz"
        )
    stream = lambda: Stream(array.shape, _torch_dtype(array.dtype), _chunks_of(array))  # noqa: E731  # one expression
    yield path.stem, Load(stream, size=partial(int, array.nbytes))


def _chunks_of(array: Any) -> Iterator[torch.Tensor]:
    """A mapped array's elements as its memory has them."""
    flat = array.T.reshape(-1) if array.flags.f_contiguous else array.reshape(-1)
    length = max(1, CHUNK // max(1, array.itemsize))
    for start in range(0, flat.size, length):
        yield _from_numpy(flat[start : start + length])


def _npz(path: Path) -> Entries:
    # Not np.load, which finds members by name: of two with one name it reads the last twice.
    with zipfile.ZipFile(path) as archive:
        check_apart(archive)
        for member in archive.infolist():
            name = member.filename.removesuffix(".npy")
            yield name, Load(partial(_npz_member, archive, member), size=partial(int, member.file_size))


def _npz_member(archive: zipfile.ZipFile, member: zipfile.ZipInfo) -> Stream:
    import numpy as np

    if member.compress_type not in (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED):
        raise FileError("the member must be stored or deflated, got another compression; save it with numpy")
    with whole_array():
        file = archive.open(member)
        with _quietly():
            if file.read(len(np.lib.format.MAGIC_PREFIX)) != np.lib.format.MAGIC_PREFIX:
                raise FileError("the member must be an .npy array, got something else; save arrays only")
            file.seek(0)
            version = np.lib.format.read_magic(file)  # type: ignore[no-untyped-call]  # numpy's own
            if version not in ((1, 0), (2, 0)):
                raise FileError(
                    "the array must hold numbers, got names of fields beyond Latin; save its fields apart"
                )
            formats = np.lib.format
            header = formats.read_array_header_1_0 if version == (1, 0) else formats.read_array_header_2_0
            shape, _, kind = header(file)  # type: ignore[no-untyped-call]  # numpy's own
    dtype, count = _torch_dtype(kind), math.prod(shape)
    if member.file_size - file.tell() != count * kind.itemsize:
        raise FileError(
            f"the array must be whole, got {member.file_size - file.tell()} bytes for {count} of {kind}; save it again"
        )
    return Stream(tuple(shape), dtype, _chunks_in(file, kind))


def _chunks_in(file: Any, kind: Any) -> Iterator[torch.Tensor]:
    import numpy as np

    length = max(1, CHUNK // max(1, kind.itemsize)) * kind.itemsize
    with file:
        while True:
            with whole_array():
                data = file.read(length)
            if not data:
                return
            if len(data) % kind.itemsize:
                raise FileError("the array must be whole, got a part of an element at its end; save it again")
            yield _from_numpy(np.frombuffer(data, kind))


@contextlib.contextmanager
def _quietly() -> Iterator[None]:
    """Without the warnings of libraries that read a file: they are about other uses."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield


def _torch_dtype(kind: Any) -> torch.dtype:
    import numpy as np

    if kind.hasobject:
        raise python_objects()
    try:
        return torch.from_numpy(np.empty(0, kind.newbyteorder("="))).dtype
    except TypeError as error:
        raise FileError(
            f"the array must have a number's dtype that torch knows, got {reason_of_dtype(kind)}; convert it with astype"
        ) from error


def reason_of_dtype(kind: Any) -> str:
    """A dtype of numpy's on one line of bounded length."""
    text = " ".join(str(kind).split())
    return text if len(text) <= 60 else text[:59] + "…"


def _from_numpy(array: Any) -> torch.Tensor:
    kind = array.dtype
    with _quietly():  # that it cannot be written
        return torch.from_numpy(array if kind.isnative else array.astype(kind.newbyteorder("=")))


def _torch(path: Path) -> Entries:
    yield from torch_files.entries(path)


READERS: dict[str, Callable[[Path], Entries]] = {
    SAFETENSORS: _safetensors,
    NPY: _npy,
    NPZ: _npz,
    TORCH: _torch,
    LEGACY: _torch,
}
