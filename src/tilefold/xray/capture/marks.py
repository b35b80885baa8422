"""What a tensor's memory stands for: the device's, pinned memory of the host, or values that nobody computed.

Marks belong to storages, so that views share them: torch keeps the attributes of a storage's Python object as long as the
storage lives. What has no storage (sparse tensors, wrappers) is marked itself.
"""

from __future__ import annotations

import weakref
from typing import Any

import torch

_DEVICE, _PINNED, _UNKNOWN = "_stands_on_device", "_stands_in_pinned", "_holds_unknown"
_storage = torch.Tensor.untyped_storage


def holder(tensor: torch.Tensor) -> Any:
    """What carries a tensor's marks."""
    try:
        return _storage(tensor)
    except (NotImplementedError, RuntimeError):
        return tensor


def on_device(tensor: torch.Tensor) -> bool:
    """Whether a tensor stands for one of the device."""
    return hasattr(holder(tensor), _DEVICE)


def put_on_device(tensor: torch.Tensor, whether: bool = True) -> torch.Tensor:
    """The tensor, its memory marked as the device's or as the host's."""
    return _mark(tensor, _DEVICE, whether)


def is_pinned(tensor: torch.Tensor) -> bool:
    """Whether its memory is pinned."""
    return hasattr(holder(tensor), _PINNED)


def pin(tensor: torch.Tensor) -> torch.Tensor:
    """The tensor, its memory said to be pinned."""
    return _mark(tensor, _PINNED, True)


def unknown(tensor: torch.Tensor) -> str:
    """Why a tensor's values are unknown; empty where they are known."""
    return unknown_in(holder(tensor))


def unknown_in(storage: Any) -> str:
    """Why a storage's values are unknown; empty where they are known."""
    return getattr(storage, _UNKNOWN, "")


def forget(storage: Any, why: str) -> None:
    """Say that a storage's values are unknown."""
    setattr(storage, _UNKNOWN, why)


class Allocated:
    """Bytes of all storages that stand for the device's, now and at the most."""

    def __init__(self) -> None:
        self.now = self.peak = 0

    def add(self, storage: Any) -> None:
        """Count a storage as long as it lives."""
        size = storage.nbytes()
        self.now += size
        self.peak = max(self.peak, self.now)
        weakref.finalize(storage, self._free, size)

    def _free(self, size: int) -> None:
        self.now -= size

    def reset(self) -> None:
        """The most is what there is now."""
        self.peak = self.now


ALLOCATED = Allocated()


def _mark(tensor: torch.Tensor, name: str, whether: bool) -> torch.Tensor:
    held = holder(tensor)
    if whether:
        if name == _DEVICE and held is not tensor and not hasattr(held, name):
            ALLOCATED.add(held)
        setattr(held, name, True)
    elif hasattr(held, name):
        delattr(held, name)
    return tensor


class Addresses:
    """Storages by address: those whose address left Python by `data_ptr()`, as long as they live."""

    def __init__(self) -> None:
        self._known: dict[int, tuple[int, weakref.ref[Any]]] = {}

    def note(self, tensor: torch.Tensor) -> None:
        """Remember a tensor's storage."""
        held = holder(tensor)
        if held is not tensor and (size := held.nbytes()):
            self._known[held.data_ptr()] = (size, weakref.ref(held))

    def find(self, address: int) -> Any:
        """The storage that an address lies in, or None."""
        for first, (size, reference) in list(self._known.items()):
            held = reference()
            if held is None:
                del self._known[first]
            elif first <= address < first + size:
                return held
        return None
