"""Numbers of neighbours as a function of their position: `4 * i + 1`, `i % 4 + 128 * (i / 4)`."""

from __future__ import annotations

from collections.abc import Sequence


class NoFormulaError(Exception):
    """Values that no loop says: their printer tries fewer of them."""


def formula(numbers: Sequence[int], variable: str = "i") -> str:
    """The C++ expression that gives the numbers at 0, 1, 2, ...; a sum, product or one number.

    Raises:
        NoFormulaError: they follow no rule that is short.
    """
    first = numbers[0]
    if all(n == first for n in numbers):
        return str(first)
    step = numbers[1] - first
    if all(n == first + step * k for k, n in enumerate(numbers)):
        return _plus(_times(variable, step), first)
    for period in (2, 4, 8, 16, 32):
        if period < len(numbers) and len(numbers) % period == 0:
            far = numbers[period] - first
            if all(n == first + step * (k % period) + far * (k // period) for k, n in enumerate(numbers)):
                near = [_times(f"{variable} % {period}", step)] if step else []
                return _plus(
                    " + ".join([*near, *([_times(f"({variable} / {period})", far)] if far else [])]), first
                )
    return _by_digits(numbers, variable)


def _by_digits(numbers: Sequence[int], variable: str) -> str:
    """A sum with a term for each of three digits of the position, whose bases are powers of two."""
    count, first = len(numbers), numbers[0]
    bits = count.bit_length() - 1
    if count != 1 << bits or bits < 3:
        raise NoFormulaError
    steps = [numbers[1 << b] - first for b in range(bits)]
    if any(n != first + sum(s for b, s in enumerate(steps) if k >> b & 1) for k, n in enumerate(numbers)):
        raise NoFormulaError
    digits = [0, *(b for b in range(1, bits) if steps[b] != 2 * steps[b - 1])]
    if len(digits) > 3:
        raise NoFormulaError
    terms = []
    for low, high in zip(digits, [*digits[1:], bits], strict=True):
        if steps[low]:
            shifted = f"{variable} / {1 << low}" if low else variable
            digit = f"{shifted} % {1 << (high - low)}" if high < bits else f"({shifted})"
            terms.append(_times(digit, steps[low]))
    return _plus(" + ".join(terms), first)


def _times(text: str, factor: int) -> str:
    if factor == 1:
        return text.strip("()") if "%" not in text else text
    if "%" in text:
        return f"{text} * {factor}"
    return f"{factor} * {text}"


def _plus(text: str, number: int) -> str:
    return text if not number else f"{text} + {number}" if number > 0 else f"{text} - {-number}"
