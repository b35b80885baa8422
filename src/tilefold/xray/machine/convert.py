"""`cvt`: every pair of integer and float types, with PTX's rounding and saturation."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from tilefold.xray.machine.binding import Binder, Step, unknown
from tilefold.xray.machine.floats import MODES, saturate
from tilefold.xray.machine.fp8 import FORMATS, decode, encode
from tilefold.xray.machine.rounding import flush, narrow, whole_odd, widen
from tilefold.xray.machine.types import PACKED, TYPES, Array, Type, halves, joined
from tilefold.xray.ptx.syntax import Instruction

Function = Callable[..., Array]
_WHOLE: dict[str, Function] = {"rni": np.rint, "rzi": np.trunc, "rmi": np.floor, "rpi": np.ceil}


def bind(binder: Binder, instruction: Instruction) -> Step | None:
    """The step of a conversion; None if this is none."""
    if instruction.opcode != "cvt" or len(instruction.modifiers) < 2:
        return None
    target, source = instruction.modifiers[-2:]
    if target in PACKED and source == "f32":
        return _pack(binder, instruction, PACKED[target])
    if target in FORMATS or source in FORMATS:
        return _eight_bits(binder, instruction, target, source)
    if target == "tf32" and source == "f32":
        return _to_tf32(binder, instruction)
    if target not in TYPES or source not in TYPES:
        return None
    to, of = TYPES[target], TYPES[source]
    return binder.pure(instruction, _function(instruction, to, of), (of,), to)


def _mode(instruction: Instruction) -> str:
    return next((m for m in instruction.modifiers if m in MODES), "rn")


def _function(instruction: Instruction, to: Type, of: Type) -> Function:
    if of.floating and to.floating:
        return _float_to_float(instruction, to, of)
    if of.floating:
        return _float_to_integer(instruction, to, of)
    if to.floating:
        return _integer_to_float(instruction, to, of)
    if instruction.has("sat"):
        info = np.iinfo(to.dtype)
        low, high = info.min, info.max
        return lambda a: np.array([min(max(int(v), low), high) for v in a], to.dtype)
    return lambda a: a.astype(to.dtype)


def _to_tf32(binder: Binder, instruction: Instruction) -> Step:
    """10 bits behind the point in a float32: `.rna` rounds ties away from zero, `.rn` to even."""
    mode, word = instruction.modifiers[0], TYPES["b32"]
    if mode not in ("rna", "rn") or set(instruction.modifiers) & {"relu", "satfinite"}:
        raise unknown(instruction)

    def convert(bits: Array) -> Array:
        half = (
            np.uint32(0x1000) if mode == "rna" else np.uint32(0xFFF) + (bits >> np.uint32(13) & np.uint32(1))
        )
        size = bits & np.uint32(0x7FFFFFFF)
        kept = np.where(size > 0x7F800000, np.uint32(0x7FFFFFFF), bits)
        return np.where(size < 0x7F800000, (bits + half) & np.uint32(0xFFFFE000), kept)

    return binder.pure(instruction, convert, (word,), word)


def _integer_to_float(instruction: Instruction, to: Type, of: Type) -> Function:
    mode = _mode(instruction)
    if of.bits == 64 and to.bits < 64:
        return lambda a: narrow(whole_odd(a), to, mode)
    if of.bits == 64:
        if mode != "rn":
            raise unknown(instruction)
        return lambda a: a.astype(to.dtype)
    return lambda a: narrow(a.astype(np.float64), to, mode)


def _float_to_integer(instruction: Instruction, to: Type, of: Type) -> Function:
    """Out of range gives the nearest end; NaN gives 0, or the top bit alone where 64 bits take part."""
    whole = next((_WHOLE[m] for m in instruction.modifiers if m in _WHOLE), None)
    if whole is None:
        raise unknown(instruction)
    info = np.iinfo(to.dtype)
    top = np.array(1 << (to.bits - 1), f"u{to.bits // 8}").view(to.dtype)
    lost = top if 64 in (to.bits, of.bits) else np.array(0, to.dtype)
    ftz = instruction.has("ftz") and of.bits == 32

    def convert(a: Array) -> Array:
        value = whole(widen(flush(a) if ftz else a, of))
        above, below = value >= 2.0 ** (to.bits - (to.kind == "s")), value < float(info.min)
        inside = np.where(above | below | np.isnan(value), 0.0, value).astype(to.dtype)
        clipped = np.where(above, to.dtype.type(info.max), np.where(below, to.dtype.type(info.min), inside))
        return np.where(np.isnan(value), lost, clipped)

    return convert


def _float_to_float(instruction: Instruction, to: Type, of: Type) -> Function:
    whole = next((_WHOLE[m] for m in instruction.modifiers if m in _WHOLE), None)
    mode, ftz, sat = _mode(instruction), instruction.has("ftz"), instruction.has("sat")
    if set(instruction.modifiers) & {"relu", "satfinite", "rna", "rs"}:
        raise unknown(instruction)

    def convert(a: Array) -> Array:
        value = widen(flush(a) if ftz and of.bits == 32 else a, of)
        value = value if whole is None else whole(value)
        result = narrow(value, to, mode)
        result = flush(result) if ftz and to.name == "f32" else result
        return saturate(result) if sat else result

    return convert


def _pack(binder: Binder, instruction: Instruction, half: Type) -> Step:
    """Two floats into one word: the first operand becomes the upper half."""
    if not half.floating or set(instruction.modifiers) & {"relu", "satfinite", "rs"}:
        raise unknown(instruction)
    mode, single = _mode(instruction), TYPES["f32"]

    def pack(upper: Array, lower: Array) -> Array:
        return joined(narrow(widen(lower, single), half, mode), narrow(widen(upper, single), half, mode))

    return binder.pure(instruction, pack, (single, single), TYPES["b32"])


def _eight_bits(binder: Binder, instruction: Instruction, target: str, source: str) -> Step | None:
    """To and from pairs of fp8 numbers."""
    if instruction.has("relu"):
        raise unknown(instruction)
    single, word, pair = TYPES["f32"], TYPES["b32"], TYPES["b16"]
    half = TYPES["f16"]
    if target in FORMATS and source == "f32":
        return binder.pure(
            instruction, lambda high, low: _encode_pair(low, high, target), (single, single), pair
        )
    if target in FORMATS and source == "f16x2":
        return binder.pure(
            instruction, lambda words: _encode_pair(*halves(words, half.dtype), target), (word,), pair
        )
    if source in FORMATS and target == "f16x2":

        def grow(pairs: Array) -> Array:
            low, high = decode(pairs & np.uint16(255), source), decode(pairs >> np.uint16(8), source)
            return joined(narrow(low, half), narrow(high, half))

        return binder.pure(instruction, grow, (pair,), word)
    return None


def _encode_pair(low: Array, high: Array, name: str) -> Array:
    pair: Array = encode(low.astype(np.float64), name) | (
        encode(high.astype(np.float64), name) << np.uint16(8)
    )
    return pair
