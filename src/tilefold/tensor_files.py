"""The tensors of a file, one at a time: .safetensors, .npy, .npz, and .pt / .pth read with `weights_only`.

Nothing is unpickled but what `weights_only` admits, and no code in a file runs. Files are mapped into memory where their
format allows it, so that only the tensor at hand needs to be there.
"""

from __future__ import annotations

import contextlib
import pickle
import warnings
import zipfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import torch

from tilefold.errors import FileError

Load = Callable[[], torch.Tensor]
Entries = Iterator[tuple[str, Load]]


def tensors_of(path: str | Path) -> Entries:
    """The names of a file's tensors, in the file's order, each with a function that reads it.

    A reader is called at once or not at all: it may no longer work when the next name was asked for.

    Raises:
        FileError: the file is missing, unreadable, truncated, of another format, or needs code to be read. A reader
            raises it too, for a tensor that is no array of numbers.
    """
    path = Path(path)
    check_readable(path)
    try:
        yield from READERS[path.suffix.lower()](path)
    except (FileError, GeneratorExit):
        raise
    except MemoryError as error:
        raise FileError(
            "the file must fit into memory, got no more of it; use a machine with more"
        ) from error
    except Exception as error:  # every reader has its own kinds; one line for all
        raise FileError(
            f"the file must be a whole {path.suffix} file, got one that cannot be read ({reason_of(error)}); "
            "download or save it again"
        ) from error


def check_readable(path: Path) -> None:
    """Refuse what is no file, cannot be opened, or has a format of no reader.

    Raises:
        FileError: see `tensors_of`.
    """
    if path.is_dir():
        raise FileError("the path must name a file, got a directory; name the files in it")
    if not path.exists():
        raise FileError("the file must exist, got nothing there; check the path")
    if not path.is_file():
        raise FileError("the path must name a regular file, got a device or a pipe; save it to a file first")
    if path.suffix.lower() not in READERS:
        raise FileError(
            f"the name must end in {', '.join(READERS)}, got {path.name!r}; convert the file first"
        )
    try:
        path.open("rb").close()
    except OSError as error:
        raise FileError(
            f"the file must be readable, got {error.strerror!r}; change its permissions"
        ) from error


def reason_of(error: BaseException) -> str:
    """A foreign error in a few words on one line."""
    text = " ".join(str(error).split()) or type(error).__name__
    return text if len(text) <= 120 else text[:119].rstrip() + "…"


def payload_bytes(path: str | Path) -> int:
    """About how many bytes of tensors a file holds, for a progress bar; 0 where that cannot be told."""
    path = Path(path)
    try:
        if path.suffix.lower() == ".npz":
            with zipfile.ZipFile(path) as archive:
                return sum(member.file_size for member in archive.infolist())
        return path.stat().st_size
    except (OSError, zipfile.BadZipFile):
        return 0


def _safetensors(path: Path) -> Entries:
    from safetensors import safe_open

    with safe_open(str(path), framework="pt") as file:
        for name in file.keys():  # noqa: SIM118  # not a dict: keys() is its only listing
            yield name, lambda name=name: _safetensor(file, name)  # type: ignore[misc]  # the default binds the name


def _safetensor(file: Any, name: str) -> torch.Tensor:
    try:
        tensor: torch.Tensor = file.get_tensor(name)
    except Exception as error:  # a dtype that this torch lacks, say
        raise FileError(
            f"the tensor must have a dtype that torch {torch.__version__} reads, got {reason_of(error)}; convert it"
        ) from error
    return tensor


def _npy(path: Path) -> Entries:
    import numpy as np

    with _quietly(), _numpy_refusals():
        # Not np.load, which would try other formats, pickle among them.
        array = np.lib.format.open_memmap(path, mode="c")  # type: ignore[no-untyped-call]  # numpy has no types for it
    yield path.stem, lambda: _from_numpy(array)


def _npz(path: Path) -> Entries:
    # Not np.load, which finds members by name: of two with one name it reads the last twice.
    with zipfile.ZipFile(path) as archive:
        for member in archive.infolist():
            name = member.filename.removesuffix(".npy")
            yield name, lambda member=member: _npz_member(archive, member)  # type: ignore[misc]  # the default binds it


def _npz_member(archive: zipfile.ZipFile, member: zipfile.ZipInfo) -> torch.Tensor:
    import numpy as np

    try:
        with archive.open(member) as file:
            if file.read(len(np.lib.format.MAGIC_PREFIX)) != np.lib.format.MAGIC_PREFIX:
                raise FileError("the member must be an .npy array, got something else; save arrays only")
        with archive.open(member) as file, _quietly(), _numpy_refusals():
            array = np.lib.format.read_array(file, allow_pickle=False)  # type: ignore[no-untyped-call]  # numpy's own
    except (FileError, MemoryError):
        raise
    except Exception as error:  # zipfile, zlib and numpy have their own kinds
        raise FileError(
            f"the array must be whole, got a damaged one ({reason_of(error)}); save it again"
        ) from error
    return _from_numpy(array)


@contextlib.contextmanager
def _quietly() -> Iterator[None]:
    """Without the warnings of those who read a file for us: they are not about what is asked here."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield


@contextlib.contextmanager
def _numpy_refusals() -> Iterator[None]:
    """Arrays of Python objects would need pickle."""
    try:
        yield
    except ValueError as error:
        if "allow_pickle" not in str(error) and "Python objects" not in str(error):
            raise
        raise FileError(
            "the array must hold numbers, got Python objects, which only pickle reads; "
            "save it with a number's dtype"
        ) from error


def _from_numpy(array: Any) -> torch.Tensor:
    kind = array.dtype
    try:
        return torch.from_numpy(array if kind.isnative else array.astype(kind.newbyteorder("=")))
    except TypeError as error:
        raise FileError(
            f"the array must have a number's dtype that torch knows, got {kind}; convert it with astype"
        ) from error


def _torch(path: Path) -> Entries:
    zipped = zipfile.is_zipfile(path)
    if zipped and _is_program(path):
        raise FileError(
            "the file must hold tensors and plain containers only, got a TorchScript program, which is code; "
            "save its state_dict()"
        )
    try:
        with _quietly():
            content = torch.load(path, map_location="cpu", weights_only=True, mmap=zipped)
    except pickle.UnpicklingError as error:
        if "GLOBAL" not in str(error) and not (zipped and "Unsupported" in str(error)):
            raise  # bytes that only look like a pickle
        raise FileError(
            f"the file must hold tensors and plain containers only, got {_refused_global(str(error))}, which "
            "would need code to run; save its state_dict()"
        ) from error
    for name, tensor in _flatten("", content, set()):
        yield name, lambda tensor=tensor: tensor  # type: ignore[misc]  # the default binds the tensor


def _is_program(path: Path) -> bool:
    """Whether a zipped file was saved by torch.jit, which alone keeps constants."""
    with zipfile.ZipFile(path) as archive:
        return any(name.endswith("/constants.pkl") for name in archive.namelist())


def _refused_global(text: str) -> str:
    """The name that `weights_only` refused, from torch's message."""
    words = text.partition("GLOBAL ")[2].split()
    return repr(words[0]) if words else "another object"


def _flatten(prefix: str, content: Any, seen: set[int]) -> Iterator[tuple[str, torch.Tensor]]:
    """The tensors in nested containers, by dotted names; a container that occurs twice is walked once."""
    if isinstance(content, torch.Tensor):
        yield prefix or "tensor", content
    elif isinstance(content, dict | list | tuple) and id(content) not in seen:
        seen.add(id(content))
        for key, value in content.items() if isinstance(content, dict) else enumerate(content):
            yield from _flatten(f"{prefix}.{key}" if prefix else str(key), value, seen)


READERS: dict[str, Callable[[Path], Entries]] = {
    ".safetensors": _safetensors,
    ".npy": _npy,
    ".npz": _npz,
    ".pt": _torch,
    ".pth": _torch,
}
