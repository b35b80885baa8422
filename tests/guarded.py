"""Under Triton's interpreter every load, store and atomic stays within the tensors that its kernel was given.

The interpreter reads and writes wherever a pointer says: a mask that lets too many elements through reads what lies behind a
tensor in memory, which no result shows. A load may take a whole sector of which a tensor holds a part: on a device those
are aligned, and no memory ends inside one.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
from triton.runtime import interpreter

from tilefold.planner.sizes import SECTOR

# Of the kernel that is running: where its tensors' storages begin and end.
_RANGES: list[tuple[int, int]] = []
# Tensors that kernels are given by their addresses, in tables.
NAMED: list[Any] = []


def guard() -> None:
    """From now on an access outside of a kernel's tensors is an error."""
    executor, builder = interpreter.GridExecutor, interpreter.InterpreterBuilder
    copy = executor._init_args_hst

    def copied(self: Any, args_dev: Sequence[Any], kwargs: dict[str, Any]) -> Any:
        args_hst, kwargs_hst = copy(self, args_dev, kwargs)
        _RANGES[:] = set(_storages((args_hst, tuple(kwargs_hst.values()), NAMED)))
        return args_hst, kwargs_hst

    executor._init_args_hst = copied
    for name, at, mask in (
        ("create_masked_load", 0, 1), ("create_masked_store", 0, 2), ("create_atomic_rmw", 1, 3),
        ("create_atomic_cas", 0, None),
    ):  # fmt: skip
        setattr(builder, name, _checked(getattr(builder, name), name, at, mask))


def _checked(access: Any, name: str, at: int, mask: int | None) -> Any:
    def checked(self: Any, *given: Any) -> Any:
        asked = given[at].data
        if mask is not None:
            asked, kept = np.broadcast_arrays(asked, given[mask].data)
            asked = asked[kept.astype(bool)]
        if asked.size:
            low, high = int(asked.min()), int(asked.max())
            size = given[at].get_element_ty().primitive_bitwidth // 8
            more = SECTOR - 1 if name == "create_masked_load" else 0
            ranges = [(begin - more, end + more) for begin, end in _RANGES]
            if not any(begin <= low and high + size <= end for begin, end in ranges):
                inside = [(begin <= asked) & (asked + size <= end) for begin, end in ranges]
                outside = ~np.logical_or.reduce(inside, axis=0)
                assert not outside.any(), (
                    f"{name} of {outside.sum()} elements outside of all tensors: {asked[outside][:4]}"
                )
        return access(self, *given)

    return checked


def _storages(value: Any) -> Iterator[tuple[int, int]]:
    if isinstance(value, tuple | list):
        for one in value:
            yield from _storages(one)
    elif hasattr(value, "base"):  # a descriptor's tensor
        yield from _storages(value.base)
    elif hasattr(value, "untyped_storage"):
        storage = value.untyped_storage()
        yield storage.data_ptr(), storage.data_ptr() + storage.nbytes()
