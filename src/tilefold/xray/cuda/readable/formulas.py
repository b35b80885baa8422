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
    raise NoFormulaError


def _times(text: str, factor: int) -> str:
    if factor == 1:
        return text.strip("()") if "%" not in text else text
    if "%" in text:
        return f"{text} * {factor}"
    return f"{factor} * {text}"


def _plus(text: str, number: int) -> str:
    return text if not number else f"{text} + {number}" if number > 0 else f"{text} - {-number}"
