"""What torch.save wrote, tensor by tensor: structure first, without data, then each storage where it lies.

A pickle lists the tensors, the archive beside it holds the bytes. The pickle is loaded with `weights_only` onto the device
"meta", which allocates nothing, from an archive of our own that holds the pickle and empty records: where torch looks for a
storage's record tells its name. Sizes are then checked against the file's own records. Stored ones are mapped; deflated ones
are inflated in chunks, or once for all of their views. Bytes in another order are put in order part by part. So memory does
not follow from the sizes that a pickle claims. Files from before torch 1.6 are one stream and are read as a whole.
"""

from __future__ import annotations

import collections
import io
import math
import mmap
import pickle
import sys
import warnings
import zipfile
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import torch

from tilefold.checkpoints.file_kinds import LEGACY, kind_of
from tilefold.checkpoints.pickles import check_pickles
from tilefold.checkpoints.streams import (
    CHUNK,
    Coded,
    Entries,
    Load,
    Loaded,
    Stream,
    check_apart,
    named_in_utf8,
    whole_array,
)
from tilefold.checkpoints.summary import negated
from tilefold.errors import FileError

INFLATED = 1 << 28  # bytes of decoded records that are held at once, at most
NAME = 1000  # characters of a tensor's name, at most
AGAIN = 1024  # times that a file's bytes may be looked at, on average, by views that share them
_HEADER = 30  # bytes of a local header before its name
Found = torch.Tensor | torch.TypedStorage | torch.UntypedStorage


def entries(path: Path) -> Entries:
    """The tensors and storages of a file of torch.save, as `tensor_files.tensors_of` gives them.

    Raises:
        FileError: the file holds a program or objects, records that overlap, or a pickle that asks for memory by a number.
    """
    if kind_of(path) == LEGACY:
        yield from _entries_of_stream(path)
        return
    with zipfile.ZipFile(path) as zipped:
        archive = _Archive(path, zipped)
        structure = archive.structure()
        if structure is None:
            yield from _entries_of_whole(path, mapped=archive.all_stored)
            return
        listed = [(name, found, archive.view_of(found)) for name, found in tensors_in(structure)]
        archive.expect({view for _, _, view in listed})
        for name, found, view in listed:
            yield name, Load(partial(archive.read, found, view), view or id(found), partial(_size, found))


def _entries_of_stream(path: Path) -> Entries:
    with path.open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as content:
        check_pickles(content, 5)  # a magic number, versions, the structure, and the storages that come after
    yield from _entries_of_whole(path, mapped=False)


def _entries_of_whole(path: Path, mapped: bool) -> Entries:
    """By torch alone: a file of one stream, or tensors that have no structure without data (quantized ones)."""
    if not mapped and zipfile.is_zipfile(path):
        raise FileError(
            "records of quantized or nested tensors must be stored, got deflated ones; save it with torch.save"
        )
    size, looked = path.stat().st_size, Looked(path.stat().st_size)

    def checked(tensor: torch.Tensor) -> torch.Tensor:
        if tensor.layout == torch.strided and not tensor.is_nested:
            if tensor.untyped_storage().nbytes() > size:
                raise _not_whole()
            looked.add(distinct(tensor.shape, tensor.stride()) * tensor.element_size())
        return tensor

    if mapped:
        with named_in_utf8(path) as file:
            content = _load(file, "cpu", mmap=True)
    else:
        with path.open("rb") as stream:
            content = _load(stream, "cpu")
            behind = size - stream.tell()
        if behind:
            raise FileError(
                f"the file must hold what torch.save wrote once, got {behind} bytes behind it; save each in a file of its own"
            )
    for name, found in tensors_in(content):
        tensor = found
        if isinstance(found, torch.TypedStorage):
            tensor = torch.tensor([], dtype=found.dtype).set_(found._untyped_storage)
        yield name, Load(partial(checked, tensor), id(found), partial(_size, found))


def _size(found: Any) -> int:
    """About how many bytes a tensor or a storage has."""
    return (
        int(found.numel() * found.element_size()) if isinstance(found, torch.Tensor) else int(found.nbytes())
    )


def _load(file: Any, device: str, **options: Any) -> Any:
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # they are about other uses
            return torch.load(file, map_location=device, weights_only=True, **options)
    except pickle.UnpicklingError as error:
        if "GLOBAL" not in str(error) and "Unsupported" not in str(error):
            raise  # bytes that only look like a pickle
        raise FileError(
            f"the file must hold tensors and plain containers only, got {_refused_global(str(error))}, which "
            "would need code to run; save its state_dict()"
        ) from error


def _refused_global(text: str) -> str:
    """The name that `weights_only` refused, from torch's message."""
    words = text.partition("GLOBAL ")[2].split()
    return repr(words[0][:100]) if words else "another object"


class Looked:
    """How many bytes the views of a file looked at: many views of one storage must not take for ever."""

    def __init__(self, size: int) -> None:
        self._left = AGAIN * size + (1 << 30)

    def add(self, count: int) -> None:
        """Count the bytes of one view more.

        Raises:
            FileError: they would be more than `AGAIN` times the file's.
        """
        if count > self._left:
            raise FileError(
                f"tensors that share memory must add up to at most {AGAIN} times the file, got more; save copies of them"
            )
        self._left -= count


@dataclass(frozen=True)
class _View:
    """A tensor's place in a record."""

    record: str
    dtype: torch.dtype
    shape: tuple[int, ...]
    stride: tuple[int, ...]
    offset: int
    negative: bool

    @property
    def reached(self) -> int:
        """Elements of the record up to the view's last."""
        return self.offset + _reach(self.shape, self.stride)

    @property
    def is_dense(self) -> bool:
        """Whether the view is all of the elements between its first and its last, each once."""
        dims = sorted((s, n) for n, s in zip(self.shape, self.stride, strict=True) if n != 1)
        return all(s == math.prod(n for _, n in dims[:i]) for i, (s, _) in enumerate(dims))


def _storage_of(found: Found) -> torch.UntypedStorage:
    if isinstance(found, torch.UntypedStorage):
        return found
    return found._untyped_storage if isinstance(found, torch.TypedStorage) else found.untyped_storage()


def _reach(shape: Sequence[int], stride: Sequence[int]) -> int:
    """Elements of memory from a view's first to its last."""
    return 1 + sum((n - 1) * s for n, s in zip(shape, stride, strict=True))


def distinct(shape: Sequence[int], stride: Sequence[int]) -> int:
    """How many elements of memory a view is of, at most: those that it names again do not count."""
    once = math.prod(n for n, s in zip(shape, stride, strict=True) if s)
    return min(once, _reach(shape, stride)) if 0 not in shape else 0


class _Archive:
    """A zip archive of torch.save."""

    def __init__(self, path: Path, zipped: zipfile.ZipFile) -> None:
        check_apart(zipped)
        self._zipped = zipped
        members = zipped.infolist()
        root = next(m.filename for m in members if m.filename.endswith("data.pkl")).removesuffix("data.pkl")
        self._members = {m.filename.removeprefix(root): m for m in members}
        if "constants.pkl" in self._members:
            raise FileError(
                "the file must hold tensors and plain containers only, got a TorchScript program, which is code; "
                "save its state_dict()"
            )
        if len(self._members) < len(members):
            raise FileError(
                "the records of a file must have names of their own, got one twice; save it again"
            )
        self._size = path.stat().st_size
        with named_in_utf8(path) as name:
            self._mapped = torch.UntypedStorage.from_file(name, False, self._size)
        self._records: dict[int, str] = {}
        # Decoded records, the one used last at the end.
        self._held: dict[tuple[str, int], torch.UntypedStorage] = {}
        self._uses = collections.Counter[str]()
        self._looked = Looked(self._size)
        order = bytes(self._bytes("byteorder")) if "byteorder" in self._members else b"little"
        if order not in (b"little", b"big"):
            raise FileError(
                f"the order of bytes must be little or big, got {order[:20]!r}; save the file again"
            )
        self._swapped = order.decode() != sys.byteorder

    @property
    def all_stored(self) -> bool:
        """Whether nothing is compressed."""
        return all(m.compress_type == zipfile.ZIP_STORED for m in self._members.values())

    def structure(self) -> Any:
        """The pickle's object with tensors without data; None where some tensor needs its data."""
        content = bytes(self._bytes("data.pkl"))
        check_pickles(content)
        buffer = io.BytesIO()
        with zipfile.ZipFile(buffer, "w") as ours:
            ours.writestr("archive/data.pkl", content)
            ours.writestr("archive/version", "3\n")
            for name in self._members:
                if name.startswith("data/"):
                    ours.writestr(f"archive/{name}", b"")
            self._records = {
                m.header_offset + _HEADER + len(m.filename.encode()): m.filename.removeprefix("archive/")
                for m in ours.infolist()
            }
        buffer.seek(0)
        try:
            return _load(buffer, "meta")
        except NotImplementedError:
            return None

    def view_of(self, found: Found) -> _View | None:
        """The place of a tensor or a storage; None where its elements lie in no record."""
        if isinstance(found, torch.Tensor) and (found.layout != torch.strided or found.is_nested):
            return None
        storage = _storage_of(found)
        record = self._records.get(getattr(storage, "_checkpoint_offset", None))  # type: ignore[arg-type]  # torch's own mark
        if record is None:
            return None
        dtype = torch.uint8 if isinstance(found, torch.UntypedStorage) else found.dtype
        if isinstance(found, torch.Tensor):
            place = (tuple(found.shape), tuple(found.stride()), int(found.storage_offset()), found.is_neg())
        else:
            place = ((storage.nbytes() // dtype.itemsize,), (1,), 0, False)
        return _View(record, dtype, *place)

    def expect(self, views: Iterable[_View | None]) -> None:
        """How many views will be read of each record: one of several is inflated once, and held until the last."""
        self._uses.update(view.record for view in views if view is not None)

    def read(self, found: Found, view: _View | None) -> Loaded:
        """A tensor or a storage with its data, at `view`.

        Raises:
            FileError: its record is missing, damaged or shorter than the view.
        """
        if view is None:
            return self._without_record(found)
        if 0 in view.shape:
            return torch.empty(view.shape, dtype=view.dtype)
        if view.reached * view.dtype.itemsize > self._members[view.record].file_size:
            raise _not_whole()
        if view.dtype.is_complex:
            return torch.empty(view.shape, dtype=view.dtype, device="meta")  # has no statistics
        self._looked.add(distinct(view.shape, view.stride) * view.dtype.itemsize)
        with whole_array():
            return self._make(view)

    def _without_record(self, found: Found) -> torch.Tensor:
        """A tensor that the pickle made by itself: without data, or of a length that the pickle names."""
        if isinstance(found, torch.Tensor) and (
            found.layout != torch.strided or found.is_nested or found.is_meta
        ):
            return found
        if _storage_of(found).nbytes() > self._size:
            raise _not_whole()
        return found if isinstance(found, torch.Tensor) else torch.empty(0, dtype=torch.uint8)

    def _make(self, view: _View) -> Loaded:
        deflated = self._members[view.record].compress_type != zipfile.ZIP_STORED
        swapped = self._swapped and view.dtype.itemsize > 1
        held = any(record == view.record for record, _ in self._held)
        alone = not held and (self._uses[view.record] == 1 or self._members[view.record].file_size > INFLATED)
        if deflated and alone and view.is_dense:
            chunks = self._chunks(view)
            for change in [in_order] * swapped + [negated] * view.negative:
                chunks = map(change, chunks)
            return Stream(view.shape, view.dtype, chunks)
        whole = deflated or (swapped and not alone)
        storage = self._decoded(view.record, view.dtype, swapped) if whole else self._bytes(view.record)
        made = torch.empty(0, dtype=view.dtype).set_(storage, view.offset, view.shape, view.stride)
        made = torch._neg_view(made) if view.negative else made
        return made if whole or not swapped else Coded(made, in_order)

    def _decoded(self, record: str, dtype: torch.dtype, swapped: bool) -> torch.UntypedStorage:
        """A record inflated and its bytes put in order, held until its last view was read or others need the room."""
        key = record, dtype.itemsize if swapped else 1
        storage = self._held.pop(key, None)
        if storage is None:
            size = self._members[record].file_size
            while self._held and size + sum(held.nbytes() for held in self._held.values()) > INFLATED:
                self._held.pop(next(iter(self._held)))
            storage = self._bytes(record)
            if swapped:
                self._looked.add(size)
                storage = storage.clone()  # type: ignore[no-untyped-call]  # torch's own
                storage.byteswap(dtype)
        self._uses[record] -= 1
        if self._uses[record] > 0:
            self._held[key] = storage
        return storage

    def _bytes(self, name: str) -> torch.UntypedStorage:
        """A record: mapped where it is stored, else inflated, up to a bound."""
        member = self._members[name]
        if member.compress_type == zipfile.ZIP_STORED:
            start = member.header_offset + _HEADER
            lengths = bytes(self._mapped[start - 4 : start])
            start += int.from_bytes(lengths[:2], "little") + int.from_bytes(lengths[2:], "little")
            if start + member.file_size > self._size or member.compress_size != member.file_size:
                raise _not_whole()
            return self._mapped[start : start + member.file_size]  # type: ignore[no-any-return]  # torch's own
        if member.file_size > INFLATED:
            raise FileError(
                f"a deflated record that is not read in order must have at most {INFLATED} bytes, got {member.file_size}; "
                "save it with torch.save"
            )
        self._looked.add(member.file_size)
        data = self._zipped.read(member)
        if len(data) != member.file_size:
            raise _not_whole()
        return _as_tensor(data, torch.uint8).untyped_storage()

    def _chunks(self, view: _View) -> Iterator[torch.Tensor]:
        """The elements of a view without gaps, inflated a chunk at a time."""
        size = view.dtype.itemsize
        left = (view.reached - view.offset) * size
        self._looked.add(view.offset * size)
        with whole_array():
            file = self._zipped.open(self._members[view.record])
            file.seek(view.offset * size)
        with file:
            while left:
                with whole_array():
                    data = file.read(min(left, CHUNK))
                if not data or len(data) % size:
                    raise _not_whole()
                left -= len(data)
                yield _as_tensor(data, view.dtype)


def _as_tensor(data: bytes, dtype: torch.dtype) -> torch.Tensor:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # that it must not be written
        return torch.frombuffer(data, dtype=dtype) if data else torch.empty(0, dtype=dtype)


def in_order(part: torch.Tensor) -> torch.Tensor:
    """The elements that memory holds with their bytes in the other order, negated where the view negates."""
    own = (torch._neg_view(part) if part.is_neg() else part).clone(memory_format=torch.contiguous_format)
    own.untyped_storage().byteswap(own.dtype)  # type: ignore[no-untyped-call]  # torch's own
    return negated(own) if part.is_neg() else own


def _not_whole() -> FileError:
    return FileError(
        "the tensor must lie in its record, got one that reaches beyond it; download or save the file again"
    )


def tensors_in(content: Any) -> Iterator[tuple[str, Any]]:
    """The tensors and storages in nested containers, by dotted names; a container that occurs twice is walked once.

    A key that holds a tensor is `<key 0>`, its value `<value 0>`; attributes of tensors and ordered dicts are walked, too.
    """
    seen, left = set[int](), [iter([("", content)])]
    while left:
        found = next(left[-1], None)
        if found is None:
            left.pop()
            continue
        name, value = found
        if isinstance(value, torch.Tensor | torch.TypedStorage | torch.UntypedStorage):
            yield name or "tensor", value
        if not isinstance(value, str | bytes | int | float | None) and id(value) not in seen:
            seen.add(id(value))
            left.append(_parts(name, value))


def _parts(name: str, value: Any) -> Iterator[tuple[str, Any]]:
    attributes = getattr(value, "__dict__", None)
    if isinstance(value, dict):
        for number, (key, item) in enumerate(value.items()):
            plain = isinstance(key, str | bytes | int | float | None)
            if not plain:
                yield _joined(name, f"<key {number}>"), key
            yield _joined(name, str(key) if plain else f"<value {number}>"), item
    elif isinstance(value, list | tuple | set | frozenset):
        for number, item in enumerate(value):
            yield _joined(name, str(number)), item
    if isinstance(attributes, dict) and isinstance(value, dict | torch.Tensor):
        for key, item in attributes.items():
            yield _joined(name, str(key)), item


def _joined(name: str, part: str) -> str:
    """A longer name, its middle left out where it grows too long."""
    whole = f"{name}.{part[:NAME]}" if name else part[:NAME]
    return whole if len(whole) <= NAME else f"{whole[: NAME // 2]}…{whole[-NAME // 2 + 1 :]}"
