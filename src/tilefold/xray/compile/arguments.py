"""A kernel's arguments as one writes them: `*fp32`, `*fp32[1000]`, `i32:1000!div16`, `@rows.npy`, or tensors and numbers."""

from __future__ import annotations

import ast
import re
import struct
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np

from tilefold.cli.dtypes import dtype_name
from tilefold.errors import ArgumentError
from tilefold.xray.machine.bulk.tensormap import TensorMap
from tilefold.xray.machine.types import Array

# Triton's name of a type: bytes of an element and the numpy dtype of its bits.
TYPES = {
    "fp64": "f8", "fp32": "f4", "fp16": "f2", "bf16": "u2", "fp8e5": "u1", "fp8e4nv": "u1", "i64": "i8", "i32": "i4",
    "i16": "i2", "i8": "i1", "i1": "u1", "u64": "u8", "u32": "u4", "u16": "u2", "u8": "u1", "fp8e4b15": "u1",
}  # fmt: skip
# The same name of torch's and numpy's types.
OF_DTYPE = {
    "float64": "fp64", "float32": "fp32", "float16": "fp16", "bfloat16": "bf16", "float8_e5m2": "fp8e5",
    "float8_e4m3fn": "fp8e4nv", "int64": "i64", "int32": "i32", "int16": "i16", "int8": "i8", "bool": "i1",
    "uint64": "u64", "uint32": "u32", "uint16": "u16", "uint8": "u8",
}  # fmt: skip
_WRITTEN = re.compile(r"^(\*?)([\w.]+)(?:\[(\d+)\])?(?::([^!]+))?(?:!div(\d+))?$")
_FORM = "write *fp32, *fp32[1000], &other, i32:1000, fp32:1e-6 or @file.npy, with !div16 behind it for what divides it"


@dataclass(frozen=True)
class Storage:
    """Memory that arguments may share: equal where it is the same. `held` is kept, so that nothing else takes its place."""

    key: tuple[Any, ...]
    held: Any = field(default=None, compare=False, repr=False)


@dataclass(frozen=True)
class Argument:
    """One argument of a kernel.

    `type` is Triton's name of the element or number; a pointer has `pointer` set, and `size` elements where somebody said
    how many. `value` is a number's. `divisor` is promised to divide the number or the address. `data` holds the
    elements of a pointer that were given, of which `before` lie before its address. Pointers of one `storage` share their
    memory: a tensor's storage, an array's base, or the name of the argument whose memory this one is said to be. What is
    None has the type "none"; what the kernel declares `do_not_specialize` is not `special`. Of a descriptor that the host
    makes, `map` is what the kernel gets, but for the address.
    """

    name: str
    type: str
    pointer: bool = False
    value: int | float | None = None
    size: int | None = None
    divisor: int = 1
    special: bool = True
    before: int = 0
    data: Array | None = field(default=None, compare=False, repr=False)
    storage: Storage | None = field(default=None, compare=False, repr=False)
    map: TensorMap | None = None

    @property
    def itemsize(self) -> int:
        """Bytes of an element."""
        return np.dtype(TYPES[self.type]).itemsize

    @property
    def shift(self) -> int:
        """By how many bytes the address misses a multiple of 16: as aligned as its elements or as promised, and no more."""
        return max(self.divisor, self.itemsize) if self.divisor < 16 and not self.before else 0

    @property
    def signature(self) -> str:
        """The type as `triton.compile` takes it."""
        return f"*{self.type}" if self.pointer else self.type

    @property
    def constant(self) -> bool:
        """Whether Triton compiles the value in: None, and integers that are 1."""
        number = self.type.startswith(("i", "u")) and self.type != "i1"
        return self.type == "none" or (self.special and not self.pointer and self.value == 1 and number)

    def __str__(self) -> str:
        if self.type == "none":
            return f"{self.name}=None"
        size = "" if self.size is None else f"[{self.size}]"
        value = "" if self.value is None else f":{self.value:g}" if self.type[0] in "fb" else f":{self.value}"
        return f"{self.name}={self.signature}{size}{value}" + (
            f"!div{self.divisor}" if self.divisor > 1 else ""
        )


def arguments(given: Mapping[str, Any]) -> list[Argument]:
    """Arguments by name, each as of `argument`; "&other" is a pointer to where another one points.

    Raises:
        ArgumentError: a text is none of the forms, or names no other pointer.
    """
    named = {n: v[1:].strip() for n, v in given.items() if isinstance(v, str) and v.startswith("&")}
    made = {n: argument(n, v) for n, v in given.items() if n not in named}
    for name, other in named.items():
        held = made.get(other)
        if held is None or not held.pointer or other in named:
            pointers = ", ".join(n for n, a in made.items() if a.pointer and n not in named)
            raise ArgumentError(
                f"xray: argument {name!r} must share the memory of another pointer, got &{other}; "
                f"name one of {pointers or '(none)'}"
            )
        made[other] = held if held.storage else replace(held, storage=Storage((other,)))
        made[name] = replace(made[other], name=name)
    return [made[n] for n in given]


def argument(name: str, given: Any) -> Argument:
    """An argument from text, a number, a numpy array, a tensor or None (of which Triton makes a constant).

    Without `!div`, a number is divided by 16 or not, as its value says, and addresses are multiples of 16: Triton's own
    specialisation, and what torch's allocator gives.

    Raises:
        ArgumentError: the text is none of the forms.
    """
    if isinstance(given, str):
        return _from_file(name, given) if given.startswith("@") else _from_text(name, given)
    if given is None:
        return Argument(name, "none")
    if isinstance(given, bool):
        return Argument(name, "i1", value=int(given))
    if isinstance(given, int):
        kind = "i32" if -(2**31) <= given < 2**31 else "i64" if given < 2**63 else "u64"
        return _number(name, kind, given, None)
    if isinstance(given, float):
        return Argument(name, "fp32", value=given)
    dtype = OF_DTYPE.get(str(getattr(given, "dtype", "")).removeprefix("torch."))
    if dtype is None:
        raise ArgumentError(
            f"xray: argument {name!r} must be text, a number, an array, a tensor or None, got {type(given).__name__}; {_FORM}"
        )
    return _from_array(name, dtype, given)


def _from_text(name: str, text: str) -> Argument:
    plain = _plain(text.strip())
    if not isinstance(plain, str):
        return argument(name, plain)
    found = _WRITTEN.match(text.strip())
    kind = OF_DTYPE.get(dtype_name(found[2]) or "") if found else None
    if found is None or kind is None or (found[1] and found[4]) or (found[3] and not found[1]):
        raise ArgumentError(f"xray: argument {name!r} must be written as a type, got {text!r}; {_FORM}")
    divisor = _promised(name, found[5]) if found[5] else None
    if found[1]:
        size = int(found[3]) if found[3] else None
        return Argument(name, kind, pointer=True, size=size, divisor=divisor or 16)
    return _number(name, kind, None if found[4] is None else _value(name, kind, found[4]), divisor)


def _plain(text: str) -> Any:
    """None, True, False or a number as Python writes them, else the text."""
    try:
        value = ast.literal_eval(text)
    except (SyntaxError, ValueError, TypeError, MemoryError, RecursionError):
        return text
    return value if value is None or isinstance(value, bool | int | float) else text


def _promised(name: str, text: str) -> int:
    """The number behind `!div`."""
    divisor = int(text) if text.isdecimal() else 0
    if divisor < 1 or divisor & (divisor - 1):
        raise ArgumentError(
            f"xray: a divisor must be a power of two, got !div{text} for {name!r}; take 16 or 1"
        )
    return divisor


def _value(name: str, kind: str, text: str) -> int | float:
    try:
        value = float(text) if kind[0] in "fb" else int(text, 0)
    except ValueError:
        raise ArgumentError(
            f"xray: the value of {name!r} must be a number of type {kind}, got {text!r}; {_FORM}"
        ) from None
    if kind[0] in "iu":
        bits = 8 * np.dtype(TYPES[kind]).itemsize if kind != "i1" else 1
        low, high = (-(2 ** (bits - 1)), 2 ** (bits - 1)) if kind[0] == "i" and kind != "i1" else (0, 2**bits)
        if not low <= value < high:
            raise ArgumentError(
                f"xray: the value of {name!r} must fit {kind}, got {text}; write {name}=i64:{text}"
            )
    return value


def _number(name: str, kind: str, value: int | float | None, divisor: int | None) -> Argument:
    if divisor is None:
        divisible = isinstance(value, int) and value % 16 == 0 and kind not in ("i1",)
        divisor = 16 if divisible and kind[0] in "iu" else 1
    return Argument(name, kind, value=value, divisor=divisor)


def _from_file(name: str, text: str) -> Argument:
    path, promises, divisor = text[1:].partition("!div")
    promised = _promised(name, divisor) if promises else 16
    try:
        data = np.load(Path(path), allow_pickle=False)
    except (OSError, ValueError) as error:
        raise ArgumentError(
            f"xray: argument {name!r} must name a .npy file, got {path!r} ({error}); save one with numpy.save"
        ) from None
    if data.dtype.name not in OF_DTYPE:
        raise ArgumentError(
            f"xray: elements of {path!r} must be of a type that Triton has, got {data.dtype}; convert them"
        )
    found = _of_numpy(name, OF_DTYPE[data.dtype.name], np.ascontiguousarray(data))
    return replace(found, divisor=promised, storage=None)


def _from_array(name: str, kind: str, given: Any) -> Argument:
    """A tensor's or an array's elements as they lie in its storage; of a tensor on "meta" only their number."""
    if isinstance(given, np.ndarray):
        return _of_numpy(name, kind, given)
    storage, before = given.untyped_storage(), given.storage_offset()
    key = (storage.data_ptr(),) if storage.data_ptr() else (storage._cdata, "without data")
    size = int(storage.nbytes()) // given.element_size() - before
    divisor = _divisor(before * given.element_size())
    made = Argument(
        name, kind, True, size=size, divisor=divisor, before=before, storage=Storage(key, storage)
    )
    if given.device.type == "meta":
        return made
    import torch

    # A view may be walked backwards: what lies before it in its storage is there, too.
    flat = torch.as_strided(given.detach(), (before + size,), (1,), 0).cpu().clone()
    return replace(made, data=flat.view(torch.uint8).numpy())


def _of_numpy(name: str, kind: str, given: Array) -> Argument:
    """An array with the rest of its base; a copy of its elements where these do not lie in one run that divides so."""
    base = given
    while isinstance(base.base, np.ndarray):
        base = base.base
    at, offset = _address(base), _address(given) - _address(base)
    if base.flags.forc and given.size and base.nbytes % given.itemsize == 0 and offset % given.itemsize == 0:
        held, storage = base.ravel(order="K").view(np.uint8).view(given.dtype), Storage((at,), base)
    else:
        held, offset, storage = np.ascontiguousarray(given).ravel(), 0, Storage((id(given), "copied"), given)
    before = offset // given.itemsize
    return Argument(
        name, kind, True, size=held.size - before, divisor=_divisor(offset), before=before, data=held, storage=storage
    )  # fmt: skip


def _address(array: Array) -> int:
    return int(array.__array_interface__["data"][0])


def _divisor(offset: int) -> int:
    return 16 if offset % 16 == 0 else 1


def held(value: int | float, kind: str) -> int | float:
    """A number as a type like fp32 or bf16 holds it."""
    if kind == "bf16":
        return float(
            struct.unpack(
                "<f", struct.pack("<I", struct.unpack("<I", struct.pack("<f", value))[0] & 0xFFFF0000)
            )[0]
        )
    dtype = {"fp16": "f2", "fp32": "f4", "fp64": "f8"}.get(kind)
    return int(value) if dtype is None else float(np.array(value, dtype))
