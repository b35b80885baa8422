"""Tensor types out of an operation's types."""

from __future__ import annotations

import re

from tilefold.xray.ir.syntax import Tensor

_SHAPE = re.compile(r"^((?:\d+x)*)(.*)$", re.DOTALL)


def tensors(types: str) -> tuple[Tensor, ...]:
    """Every tensor type in a text, in order."""
    found, at = [], types.find("tensor<")
    while at >= 0:
        end = _closing(types, at + len("tensor<"))
        found.append(tensor_type(types[at:end]))
        at = types.find("tensor<", end)
    return tuple(found)


def tensor_type(text: str) -> Tensor:
    """`tensor<4x8x!tt.ptr<f32>, #blocked>` as a value."""
    inside = text[len("tensor<") : -1]
    shape = _SHAPE.match(inside)
    assert shape is not None
    element, _, encoding = _at_comma(shape[2])
    return Tensor(tuple(int(n) for n in shape[1].split("x") if n), element, encoding.strip())


def element_bytes(element: str) -> int:
    """Bytes in memory of `f32`, `bf16`, `i1` (one), `f8E4M3FN`."""
    digits = re.search(r"\d+", element)
    return 8 if digits is None else max(8, int(digits[0])) // 8


def _closing(text: str, start: int) -> int:
    depth = 1
    for i in range(start, len(text)):
        depth += (text[i] == "<") - (text[i] == ">" and text[i - 1] != "-")
        if not depth:
            return i + 1
    return len(text)


def _at_comma(text: str) -> tuple[str, str, str]:
    depth = 0
    for i, letter in enumerate(text):
        depth += (letter == "<") - (letter == ">")
        if letter == "," and not depth:
            return text[:i], ",", text[i + 1 :]
    return text, "", ""
