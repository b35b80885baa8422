"""A launch's arguments as Triton's launcher passes them, flat: for the machine as bits, for a report as `Argument`s."""

from __future__ import annotations

import ctypes
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from tilefold.xray.capture.marks import Addresses
from tilefold.xray.compile.arguments import OF_DTYPE, TYPES, Argument, Storage
from tilefold.xray.machine import TensorMap

_DESCRIBED = re.compile(r"tensordesc(?:_im2col)?<([^[>]*)\[([^\]]*)\]")
LARGEST = 64 << 20  # bytes of a storage that is kept as it was; of larger ones a report reads random values


@dataclass(frozen=True)
class Leaf:
    """One value that reaches a kernel: its name (`inputs.0.1` of tuples), Triton's type, the value; `path` is its place in
    the signature."""

    name: str
    type: str
    value: Any
    path: tuple[int, ...]


def leaves(signature: Mapping[str, Any], values: Sequence[Any], metadata: Any) -> list[Leaf]:
    """The flat arguments of a launch, in the PTX's order."""
    maps = iter(getattr(metadata, "tensordesc_meta", None) or ())
    found: list[Leaf] = []
    for number, ((name, kind), value) in enumerate(zip(signature.items(), values, strict=False)):
        found += _flat(name, kind, value, (number,), maps)
    return found


def _flat(name: str, kind: Any, value: Any, path: tuple[int, ...], maps: Iterator[Any]) -> Iterator[Leaf]:
    if isinstance(kind, tuple):
        for i, (inner, held) in enumerate(zip(kind, value, strict=False)):
            yield from _flat(f"{name}.{i}", inner, held, (*path, i), maps)
    elif kind.startswith("tensordesc"):
        yield from _described(name, kind, value, path, next(maps, None))
    elif kind != "constexpr":
        yield Leaf(name, kind, value, path)


def _described(name: str, kind: str, value: Any, path: tuple[int, ...], meta: Any) -> Iterator[Leaf]:
    """A descriptor made on the host: a map where the chip has them, else pointer, sizes and strides; then these again."""
    found = _DESCRIBED.match(kind)
    assert found is not None, kind
    shape, strides = [int(n) for n in value.shape], [int(n) for n in value.strides]
    numbers = [("shape", "i32", shape), ("strides", "i64", strides)]
    if meta is not None:
        yield Leaf(name, "map", (value.base, tensor_map(value, meta)), path)
    else:
        yield Leaf(name, f"*{found[1]}", value.base, path)
        numbers = [("shape", "i64", shape), ("strides", "i64", strides), *_flags(value), *numbers]
    for what, width, many in numbers:
        yield from (Leaf(f"{name}.{what}.{i}", width, n, path) for i, n in enumerate(many))


def _flags(value: Any) -> list[tuple[str, str, list[int]]]:
    """What a descriptor says of elements outside; since Triton 3.7 also of how floats are rounded."""
    flags = [("padding", "i1", [int(value.padding == "nan")])]
    if hasattr(value, "round_f32_to_tf32"):
        flags.append(("tf32", "i1", [int(value.round_f32_to_tf32)]))
    return flags


def tensor_map(value: Any, meta: Mapping[str, Any]) -> TensorMap:
    """The map of a descriptor, at address 0."""
    shape = [int(n) for n in value.shape]
    if meta.get("fp4_padded"):
        shape[-1] *= 2
    strides = tuple(int(s) * meta["elem_size"] for s in list(value.strides)[-2::-1])
    return TensorMap(
        0, tuple(shape[::-1]), tuple(meta["block_size"][::-1]), strides, meta["elem_type"], meta["swizzle"],
        int(value.padding == "nan"),
    )  # fmt: skip


def address(value: Any) -> int:
    """Where a pointer points: what Triton's launcher asks of a value."""
    if value is None:
        return 0
    return int(value) if isinstance(value, int) else int(value.data_ptr())


def described(leaf: Leaf, divisor: int, addresses: Addresses, keep: bool) -> Argument:
    """A leaf as an argument of a report; `keep` the values that its memory holds now."""
    if leaf.type == "map":
        base, made = leaf.value
        kind = OF_DTYPE[str(base.dtype).removeprefix("torch.")]
        return _pointer(leaf.name, kind, address(base), 16, addresses, keep, made)
    if leaf.type.startswith("*"):
        kind = leaf.type[1:].removeprefix("k")  # a pointer to constant memory
        return _pointer(leaf.name, _NAMES.get(kind, kind), address(leaf.value), divisor, addresses, keep)
    kind = _NAMES.get(leaf.type, leaf.type)
    value = leaf.value if isinstance(leaf.value, float) else kind[0] in "fb" and float(leaf.value)
    return Argument(
        leaf.name, kind, value=value if kind[0] in "fb" else int(leaf.value), divisor=divisor, special=False
    )


_NAMES = {"u1": "i1", "f32": "fp32", "f64": "fp64"}  # types that Triton has two names of


def _pointer(
    name: str,
    kind: str,
    where: int,
    divisor: int,
    addresses: Addresses,
    keep: bool,
    made: TensorMap | None = None,
) -> Argument:
    storage, size = addresses.find(where), np.dtype(TYPES[kind]).itemsize
    if storage is None:
        return Argument(name, kind, True, divisor=divisor, special=False)
    offset = where - storage.data_ptr()
    before = offset // size
    held = (storage.nbytes() - offset % size) // size
    # The storage is not held: launches outlive their tensors, and a launch's own are there all at once.
    found = Argument(
        name, kind, True, size=held - before, divisor=divisor, special=False, before=before,
        storage=Storage((storage.data_ptr(),)), map=made,
    )  # fmt: skip
    if not keep or storage.nbytes() > LARGEST:
        return found
    raw = (ctypes.c_uint8 * (held * size)).from_address(storage.data_ptr() + offset % size)
    return replace(found, data=np.ctypeslib.as_array(raw).copy().view(TYPES[kind]))
