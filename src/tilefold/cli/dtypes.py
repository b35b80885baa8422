"""The spellings of a dtype, taken alike by every command: fp32, f32, float, float32, torch.float32."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from tilefold.errors import ArgumentError

if TYPE_CHECKING:
    import torch

# torch's name of each dtype, and its other names: in Triton, LLVM, numpy, C and papers.
SPELLINGS = {
    "float64": ("fp64", "f64", "double"),
    "float32": ("fp32", "f32", "float"),
    "float16": ("fp16", "f16", "half"),
    "bfloat16": ("bf16",),
    "float8_e5m2": ("fp8e5", "fp8e5m2", "f8e5m2", "e5m2"),
    "float8_e4m3fn": ("fp8e4nv", "fp8e4m3fn", "f8e4m3fn", "e4m3fn", "e4m3"),
    "float8_e5m2fnuz": ("fp8e5b16", "f8e5m2fnuz"),
    "float8_e4m3fnuz": ("fp8e4b8", "f8e4m3fnuz"),
    "float8_e8m0fnu": ("f8e8m0fnu", "e8m0"),
    "int64": ("i64", "long"),
    "int32": ("i32", "int"),
    "int16": ("i16", "short"),
    "int8": ("i8",),
    "uint64": ("u64",),
    "uint32": ("u32",),
    "uint16": ("u16",),
    "uint8": ("u8", "byte"),
    "bool": ("i1", "b1"),
}  # fmt: skip
_NAMES = {word: name for name, others in SPELLINGS.items() for word in (name, *others)}
_MODULES = ("torch.", "tl.", "np.", "numpy.")


def dtype_name(text: str) -> str | None:
    """Torch's name of the dtype that a text spells, in any case of letters; None for a text that spells none.

    Example:
        >>> dtype_name("bf16"), dtype_name("torch.float"), dtype_name("fp33")
        ('bfloat16', 'float32', None)
    """
    word = text.strip().lower()
    for module in _MODULES:
        word = word.removeprefix(module)
    return _NAMES.get(word)


def dtype_of(text: str) -> torch.dtype:
    """The torch dtype that a text spells; besides the names listed here, any dtype by torch's own name.

    Raises:
        ArgumentError: it spells none.
    """
    import torch

    found: Any = getattr(torch, dtype_name(text) or text.removeprefix("torch."), None)
    if not isinstance(found, torch.dtype):
        raise ArgumentError(
            f"a dtype must be one of torch's, got {text!r}; try bf16 (bfloat16) or fp32 (float32)"
        )
    return found
