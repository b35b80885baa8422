"""Floating-point arithmetic with one rounding; approximations of the chip as correctly rounded results."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from tilefold.xray.machine.binding import Binder, Step, unknown
from tilefold.xray.machine.rounding import (
    add_odd,
    canonical,
    directed64,
    flush,
    fma32,
    fma64,
    narrow,
    two_product,
    two_sum,
    widen,
)
from tilefold.xray.machine.types import PACKED, PAIRED, TYPES, Array, Type, halves, joined
from tilefold.xray.ptx.syntax import Instruction

Function = Callable[..., Array]
MODES = ("rn", "rz", "rm", "rp")

_NATIVE: dict[str, Function] = {
    "add": np.add,
    "sub": np.subtract,
    "mul": np.multiply,
    "div": np.divide,
    "sqrt": np.sqrt,
    "rcp": lambda a: a.dtype.type(1) / a,
}
# In float64: add_odd keeps what a later rounding has to know. Products of 24 bits are exact, quotients and roots of 24
# bits are never near enough to a tie for a second rounding to matter.
_WIDE: dict[str, Function] = {
    "add": add_odd,
    "sub": lambda a, b: add_odd(a, -b),
    "mul": np.multiply,
    "div": np.divide,
    "sqrt": np.sqrt,
    "rcp": lambda a: 1.0 / a,
    "fma": lambda a, b, c: add_odd(a * b, c),
}
# Nearest float64 and what it lacks.
_EXACT: dict[str, Callable[[Array, Array], tuple[Array, Array]]] = {
    "add": two_sum,
    "sub": lambda a, b: two_sum(a, -b),
    "mul": two_product,
}
_OF_PAIRS = ("add", "sub", "mul", "fma")
_OF_HALVES = ("add", "sub", "fma")
_APPROXIMATE: dict[str, Function] = {
    "ex2": np.exp2,
    "lg2": np.log2,
    "rcp": lambda a: 1.0 / a,
    "sqrt": np.sqrt,
    "rsqrt": lambda a: 1.0 / np.sqrt(a),
    "sin": np.sin,
    "cos": np.cos,
    "tanh": np.tanh,
    "div": np.divide,
}


def approximate(instruction: Instruction) -> bool:
    """Whether the chip's result is documented by a bound only, so that its bits may differ from the interpreter's."""
    return bool(set(instruction.modifiers) & {"approx", "full"})


def bind(binder: Binder, instruction: Instruction) -> Step | None:
    """The step of a floating-point instruction; None if this is none."""
    last = instruction.modifiers[-1] if instruction.modifiers else ""
    packed = last in ("f16x2", "bf16x2", *PAIRED)
    kind = (PACKED | PAIRED)[last] if packed else TYPES.get(last)
    if kind is None or not kind.floating:
        return None
    if last in PAIRED and instruction.opcode not in _OF_PAIRS:
        raise unknown(instruction)
    if kind.bits == 16 and instruction.opcode in _OF_HALVES and instruction.has("f32"):
        return _of_halves(binder, instruction, kind)
    function = _function(instruction, kind)
    if function is None:
        return None
    function = _flushed(instruction, function)
    count = len(instruction.operands) - 1
    if packed:
        word = TYPES[f"b{2 * kind.bits}"]
        return binder.pure(instruction, _both(function, kind), (word,) * count, word)
    return binder.pure(instruction, function, (kind,) * count, kind)


def _of_halves(binder: Binder, instruction: Instruction, kind: Type) -> Step:
    """`add.f32.bf16` and its like, from compute capability 10.0 on: operands of 16 bits, but for the last one, as float32."""
    single = TYPES["f32"]
    function = _function(instruction, single)
    assert function is not None
    function = _flushed(instruction, function)

    def of_halves(*values: Array) -> Array:
        return function(*[widen(v, kind).astype(np.float32) for v in values[:-1]], values[-1])

    sources = (*(kind,) * (len(instruction.operands) - 2), single)
    return binder.pure(instruction, of_halves, sources, single)


def _function(instruction: Instruction, kind: Type) -> Function | None:
    opcode = instruction.opcode
    mode = next((m for m in instruction.modifiers if m in MODES), "rn")
    if opcode in ("neg", "abs"):
        return _sign(opcode, kind)
    if opcode in ("min", "max"):
        three = len(instruction.operands) == 4 and kind.kind == "f" and kind.bits == 32
        if not (three or len(instruction.operands) == 3) or instruction.has("abs") != instruction.has(
            "xorsign"
        ):
            raise unknown(instruction)
        extreme = _extreme(opcode, kind, instruction.has("NaN"))
        if three:  # from compute capability 10.0 on
            if instruction.has("xorsign"):
                raise unknown(instruction)
            return lambda a, b, c: extreme(extreme(a, b), c)
        return _of_sizes(extreme, kind) if instruction.has("xorsign") else extreme
    if set(instruction.modifiers) & {"relu", "oob"}:
        raise unknown(instruction)
    if approximate(instruction):
        exact = _APPROXIMATE.get(opcode)
        return None if exact is None else _through_float64(exact, kind, "rn")
    if opcode == "copysign":
        return lambda a, b: np.copysign(b, a)
    if opcode == "fma" and kind.bits == 64:
        if mode != "rn":
            raise unknown(instruction)
        return fma64
    if opcode == "fma" and kind.kind == "f" and kind.bits == 32 and mode == "rn":
        return fma32
    if opcode in _NATIVE and kind.kind == "f" and kind.bits >= 32 and mode == "rn":
        native = _NATIVE[opcode]
        return native if kind.bits == 64 else lambda *a: canonical(native(*a))
    if kind.bits == 64 and opcode in _EXACT:
        exact64 = _EXACT[opcode]
        return lambda a, b: directed64(*exact64(a, b), mode)
    wide = _WIDE.get(opcode)
    if wide is None or kind.bits == 64:
        return None
    return _through_float64(wide, kind, mode)


def _through_float64(function: Function, kind: Type, mode: str) -> Function:
    return lambda *values: narrow(function(*[widen(v, kind) for v in values]), kind, mode)


def _flushed(instruction: Instruction, function: Function) -> Function:
    """Subnormals taken and given as zeros, and results kept in [0, 1], where the modifiers say so."""
    result = function
    if instruction.has("ftz") and instruction.modifiers[-1] in ("f32", *PAIRED):

        def result(*values: Array) -> Array:
            return flush(function(*[flush(v) for v in values]))

    if not instruction.has("sat"):
        return result
    inner = result
    return lambda *values: saturate(inner(*values))


def saturate(values: Array) -> Array:
    """Into [0, 1], NaN to 0."""
    one = values.dtype.type(1)
    return np.where(values > 0, np.minimum(values, one), values.dtype.type(0))


def _both(function: Function, kind: Type) -> Function:
    def both(*words: Array) -> Array:
        pairs = [halves(w, kind.dtype) for w in words]
        return joined(function(*[p[0] for p in pairs]), function(*[p[1] for p in pairs]))

    return both


def _sign(opcode: str, kind: Type) -> Function:
    """Sign changes touch one bit, also of a NaN."""
    word = np.dtype(f"u{kind.bits // 8}")
    top = word.type(1 << (kind.bits - 1))
    if opcode == "neg":
        return lambda a: (a.view(word) ^ top).view(a.dtype)
    return lambda a: (a.view(word) & ~top).view(a.dtype)


def _of_sizes(extreme: Function, kind: Type) -> Function:
    """`.xorsign.abs`: of the absolute values, with the product's sign."""
    word = np.dtype(f"u{kind.bits // 8}")
    top = word.type(1 << (kind.bits - 1))

    def of_sizes(a: Array, b: Array) -> Array:
        x, y = a.view(word), b.view(word)
        size = extreme((x & ~top).view(a.dtype), (y & ~top).view(a.dtype)).view(word)
        signed: Array = (size | ((x ^ y) & top)).view(a.dtype)
        return signed

    return of_sizes


def _extreme(opcode: str, kind: Type, propagate: bool) -> Function:
    """Minimum and maximum: -0 is below +0, NaN loses, or wins with `.NaN`."""
    word = np.dtype(f"u{kind.bits // 8}")

    def extreme(a: Array, b: Array) -> Array:
        x, y = widen(a, kind), widen(b, kind)
        left = (x > y) if opcode == "max" else (x < y)
        left |= (x == y) & (np.signbit(y) if opcode == "max" else np.signbit(x))
        left |= np.isnan(y)
        bits = np.where(left, a.view(word), b.view(word))
        lost = (np.isnan(x) | np.isnan(y)) if propagate else (np.isnan(x) & np.isnan(y))
        if lost.any():
            bits = np.where(lost, word.type((1 << (kind.bits - 1)) - 1), bits)
        return bits.view(a.dtype)

    return extreme
