"""PTX types and what numpy holds them in."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

Array = NDArray[Any]


@dataclass(frozen=True)
class Type:
    """A scalar type: `kind` is b, u, s, f (IEEE), bf (bfloat16) or pred. bfloat16 is held as its 16 bits."""

    name: str
    kind: str
    bits: int

    @property
    def dtype(self) -> np.dtype[Any]:
        """The numpy dtype of a lane's value."""
        if self.kind == "pred":
            return np.dtype(bool)
        letter = {"s": "i", "f": "f"}.get(self.kind, "u")
        return np.dtype(f"{letter}{self.bits // 8}")

    @property
    def floating(self) -> bool:
        """Whether values are floating-point numbers."""
        return self.kind in ("f", "bf")


def _table() -> dict[str, Type]:
    plain = [Type(f"{k}{n}", k, n) for k in "bus" for n in (8, 16, 32, 64)]
    floats = [Type(f"f{n}", "f", n) for n in (16, 32, 64)]
    return {t.name: t for t in (*plain, *floats, Type("bf16", "bf", 16), Type("pred", "pred", 1))}


TYPES = _table()
# Two values in one 32-bit register.
PACKED = {"f16x2": TYPES["f16"], "bf16x2": TYPES["bf16"], "s16x2": TYPES["s16"], "u16x2": TYPES["u16"]}

# Two values in one 64-bit register, from compute capability 10.0 on.
PAIRED = {"f32x2": TYPES["f32"]}


def unsigned(bits: int) -> np.dtype[Any]:
    """The dtype of a register of so many bits."""
    return np.dtype(f"u{bits // 8}")


def halves(words: Array, dtype: np.dtype[Any]) -> tuple[Array, Array]:
    """Lower and upper half of words of twice as many bits as `dtype` has, seen as that."""
    half, bits = unsigned(8 * dtype.itemsize), words.dtype.type(8 * dtype.itemsize)
    low = (words & words.dtype.type(np.iinfo(half).max)).astype(half)
    return low.view(dtype), (words >> bits).astype(half).view(dtype)


def joined(low: Array, high: Array) -> Array:
    """Words of two halves of half as many bits each."""
    bits = 8 * low.dtype.itemsize
    half, word = unsigned(bits), unsigned(2 * bits)
    lower, upper = low.view(half).astype(word), high.view(half).astype(word)
    joined: Array = lower | (upper << word.type(bits))
    return joined
