"""Operations on scalars that generated functions call by name, where Triton's own operator has not the one answer.

Floats divide by floor from an exact remainder, shifts go as far as they are told, floats become whole numbers within the
dtype's limits, and are rounded to narrow dtypes as torch rounds them. `interpreted` has those that Triton's interpreter
computes otherwise.
"""

import triton.language as tl
from triton.language.extra import libdevice


def remainders(a, b):
    """fmod(a, b), and whether it has the other sign than b. In float64: it is exact there, denormals are not flushed."""
    rest = libdevice.fmod(a.to(tl.float64), b.to(tl.float64)).to(a.dtype)
    return rest, (rest != 0) & ((rest < 0) != (b < 0))


def quotient(a, b):
    """A / b, rounded to nearest."""
    if a.dtype == tl.float32:
        result = tl.div_rn(a, b)
    else:
        result = a / b
    return result


def floor_divide(a, b):
    """A // b of floats."""
    a, b = tl.broadcast(a, b)
    rest, below = remainders(a, b)
    whole = quotient(a - rest, b)
    whole = tl.where(below, whole - 1.0, whole)
    down = tl.floor(whole)
    down = tl.where(whole - down > 0.5, down + 1.0, down)
    by = quotient(a, b)
    down = tl.where(whole == 0, tl.where(is_negative(by), negative_zero(by), 0.0), down)
    return tl.where(b == 0, by, down)


def remainder(a, b):
    """A % b of floats."""
    a, b = tl.broadcast(a, b)
    rest, below = remainders(a, b)
    return tl.where(below, rest + b, rest)


def is_negative(x):
    """Whether the sign is set, of -0.0 too."""
    if x.dtype == tl.float64:
        result = x.to(tl.int64, bitcast=True) < 0
    else:
        result = x.to(tl.int32, bitcast=True) < 0
    return result


def negative_zero(like):
    """-0.0, which is no literal of Triton's, in another value's dtype."""
    return tl.full([], 0.0, like.dtype) * -1.0


def power(x, y):
    """A power of float32. libdevice's takes numbers below the least normal one for 0, and gives 0 for them.

    Of such a base it is (2^24 x)^y / 2^(24 y), and such a result is the square of |x|^(y / 2).
    """
    small = tl.abs(x) < 2.0**-126
    result = libdevice.pow(tl.where(small, x * 2.0**24, x), y)
    result = tl.where(small, result * tl.exp2(y * -24.0), result)
    root = libdevice.pow(tl.abs(x), y * 0.5)
    square = root * root
    return tl.where(result == 0, tl.where(is_negative(result), -square, square), result)


def unit(x):
    """The power of two in units of which squares of magnitudes up to x are added (algebra/units)."""
    if x.dtype == tl.float64:
        result = (x.to(tl.int64, bitcast=True) & (3 << 61) | (256 << 52)).to(tl.float64, bitcast=True)
    else:
        result = (x.to(tl.int32, bitcast=True) & (3 << 29) | (30 << 23)).to(tl.float32, bitcast=True)
    return result


def per_unit(x):
    """1 / x, a power of two; something finite of 0."""
    if x.dtype == tl.float64:
        result = ((2046 << 52) - x.to(tl.int64, bitcast=True)).to(tl.float64, bitcast=True)
    else:
        result = ((254 << 23) - x.to(tl.int32, bitcast=True)).to(tl.float32, bitcast=True)
    return result


def rescale(x, factor):
    """A product that is rounded by itself: the compiler fuses none that says how it rounds."""
    if x.dtype == tl.float64:
        result = tl.inline_asm_elementwise(
            "mul.rn.f64 $0, $1, $2;", "=d,d,d", [x, factor], dtype=tl.float64, is_pure=True, pack=1
        )  # fmt: skip
    else:
        result = tl.inline_asm_elementwise(
            "mul.rn.f32 $0, $1, $2;", "=f,f,f", [x, factor], dtype=tl.float32, is_pure=True, pack=1
        )  # fmt: skip
    return result


def floor_divide_whole(a, b):
    """A // b of signed whole numbers; 0 where b is 0, and what wraps where b is -1."""
    a, b = tl.broadcast(a, b)
    itself = (b == 0) | (b == -1)
    divisor = tl.where(itself, 1, b)
    rest = a % divisor
    crossing = (rest != 0) & ((rest < 0) != (divisor < 0))
    return tl.where(itself, a * b, a // divisor - crossing.to(a.dtype))


def remainder_whole(a, b):
    """A % b of signed whole numbers; 0 where b is 0."""
    a, b = tl.broadcast(a, b)
    divisor = tl.where((b == 0) | (b == -1), 1, b)
    rest = a % divisor
    crossing = (rest != 0) & ((rest < 0) != (divisor < 0))
    return rest + tl.where(crossing, divisor, 0)


def floor_divide_unsigned(a, b):
    """A // b of uint64; 0 where b is 0."""
    return tl.where(b == 0, 0, a // tl.where(b == 0, 1, b))


def remainder_unsigned(a, b):
    """A % b of uint64; 0 where b is 0."""
    return tl.where(b == 0, 0, a % tl.where(b == 0, 1, b))


def shift_left(a, count, BITS: tl.constexpr):
    """A << count; 0 once every bit is gone, or where the count is negative."""
    inside = (count >= 0) & (count < BITS)
    return tl.where(inside, a << tl.where(inside, count, 0), 0)


def shift_right(a, count, BITS: tl.constexpr):
    """A >> count; only the sign is left once every bit is gone, or where the count is negative."""
    inside = (count >= 0) & (count < BITS)
    return a >> tl.where(inside, count, BITS - 1)


def shift_right_unsigned(a, count, BITS: tl.constexpr):
    """A >> count of uint64; 0 once every bit is gone."""
    inside = count < BITS
    return tl.where(inside, a >> tl.where(inside, count, 0), 0)


def convert(x, TYPE: tl.constexpr):
    """X in another dtype: see `powers_of_two`, `whole` and `narrow`; any other cast is Triton's."""
    if x.dtype == tl.float8e4b15 and TYPE != tl.float8e4b15:
        x = powers_of_two(x)
    if x.dtype == TYPE:
        result = x
    elif x.dtype.is_floating() and TYPE.is_int():
        result = whole(x, TYPE)
    elif TYPE.is_floating() and TYPE.primitive_bitwidth < 32:
        result = narrow(x, TYPE)
    elif TYPE == tl.float64 and x.dtype.primitive_bitwidth < 32 and x.dtype.is_floating():
        result = x.to(tl.float32).to(TYPE)  # LLVM has no cast from 8 bits to 64
    else:
        result = x.to(TYPE)
    return result


def powers_of_two(x):
    """The float32 of torch's float8_e8m0fnu: 2^(code - 127), the least one below the normal numbers, and NaN of 255."""
    code = x.to(tl.uint8, bitcast=True).to(tl.int32)
    bits = tl.where(code == 0, 0x400000, code << 23)
    return tl.where(code == 255, 0x7FC00000, bits).to(tl.float32, bitcast=True)


def is_nonzero(x):
    """Which elements are true; Triton does not compare floats of 8 bits."""
    if x.dtype.is_floating() and x.dtype.primitive_bitwidth < 32:
        x = convert(x, tl.float32)
    return x != 0


def whole(x, TYPE: tl.constexpr):
    """A float's whole part: the nearest that the dtype's register holds, 0 for NaN; narrower dtypes keep its low bits.

    The instruction does so, but for NaN among 64 bits; LLVM's cast has no answer beyond the limits.
    """
    if x.dtype.primitive_bitwidth < 32:
        x = x.to(tl.float32)
    if TYPE == tl.uint64:
        if x.dtype == tl.float64:
            part = tl.inline_asm_elementwise("cvt.rzi.u64.f64 $0, $1;", "=l,d", [x], dtype=tl.uint64, is_pure=True, pack=1)
        else:
            part = tl.inline_asm_elementwise("cvt.rzi.u64.f32 $0, $1;", "=l,f", [x], dtype=tl.uint64, is_pure=True, pack=1)
    elif TYPE == tl.int64 or TYPE == tl.uint32:
        if x.dtype == tl.float64:
            part = tl.inline_asm_elementwise("cvt.rzi.s64.f64 $0, $1;", "=l,d", [x], dtype=tl.int64, is_pure=True, pack=1)
        else:
            part = tl.inline_asm_elementwise("cvt.rzi.s64.f32 $0, $1;", "=l,f", [x], dtype=tl.int64, is_pure=True, pack=1)
    else:
        if x.dtype == tl.float64:
            part = tl.inline_asm_elementwise("cvt.rzi.s32.f64 $0, $1;", "=r,d", [x], dtype=tl.int32, is_pure=True, pack=1)
        else:
            part = tl.inline_asm_elementwise("cvt.rzi.s32.f32 $0, $1;", "=r,f", [x], dtype=tl.int32, is_pure=True, pack=1)
    return tl.where(x == x, part, 0).to(TYPE)


def narrow(x, TYPE: tl.constexpr):
    """Rounded to a float of 16 or 8 bits, by way of float32 as torch does.

    Whole numbers become a bfloat16 by the float32's bits: of a truth value's -1 LLVM's own cast makes 1.

    torch's float8_e4m3fn has no infinity: beyond the middle between its greatest number and the next it is the greatest,
    as the instruction has it, or NaN in some versions (E4M3FN_ENDS_IN_NAN).
    """
    from_whole: tl.constexpr = x.dtype.is_int()
    x = x.to(tl.float32)
    if TYPE == tl.float8e5:
        result = codes_e5m2(x).to(TYPE, bitcast=True)
    elif from_whole and TYPE == tl.bfloat16:
        bits = x.to(tl.int32, bitcast=True)
        result = ((bits + 0x7FFF + ((bits >> 16) & 1)) >> 16).to(tl.int16).to(TYPE, bitcast=True)
    else:
        result = x.to(TYPE)
        if TYPE == tl.float8e4nv and E4M3FN_ENDS_IN_NAN:
            codes = tl.where(tl.abs(x) > 464.0, 0x7F, result.to(tl.uint8, bitcast=True).to(tl.int32))
            result = codes.to(tl.uint8).to(TYPE, bitcast=True)
    return result


def codes_e5m2(x):
    """Codes of float8_e5m2, ties to even: Triton's own know no infinity, and before sm_89 no NaN and other ties.

    Added to 128, what is below the least normal number, 2^-14, is rounded to multiples of the least one, 2^-16.
    """
    bits = tl.abs(x).to(tl.int32, bitcast=True)
    normal = ((bits + 0xFFFFF + ((bits >> 21) & 1)) >> 21) - (112 << 2)
    tiny = (tl.abs(x) + 128.0).to(tl.int32, bitcast=True) - 0x43000000
    codes = tl.where(tl.abs(x) < 2.0**-14, tiny, tl.minimum(normal, 0x7C))
    sign = (x.to(tl.int32, bitcast=True) >> 24) & 0x80
    return (tl.where(x == x, codes, 0x7F) | sign).to(tl.uint8)
