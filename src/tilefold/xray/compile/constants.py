"""Values of `tl.constexpr` parameters as one writes them: read, never evaluated."""

from __future__ import annotations

import ast
import math
from typing import Any

from tilefold.errors import ArgumentError

_NUMBERS = {"inf": math.inf, "nan": math.nan, "pi": math.pi, "e": math.e, "tau": math.tau}
_MODULES = ("tl", "triton.language", "math", "np", "numpy", "torch")
_READ = {"float": float, "int": int}
_WORDS = {"true": "True", "false": "False", "none": "None", "null": "None"}


def constant(text: str) -> Any:
    """A value from text: a Python literal, float("-inf"), a name of triton.language, tuples of these, or the text itself.

    inf, nan and what math calls so are numbers. A word is text; what has quotes, brackets or arithmetic of numbers is no
    word, and neither is "false", which as a text would be true.

    Raises:
        ArgumentError: it is none of these.
    """
    try:
        return ast.literal_eval(text.strip())
    except (SyntaxError, ValueError, TypeError, MemoryError, RecursionError):
        pass
    try:
        return _value(ast.parse(text.strip(), mode="eval").body)
    except (SyntaxError, ValueError, TypeError, OverflowError, MemoryError, RecursionError):
        if _is_word(text):
            return text
    word = _WORDS.get(text.strip().lower())
    fix = f"write {word}" if word else f"write the value itself, or quote a text: {text!r}"
    raise ArgumentError(
        'xray: --const must be a literal, float("-inf"), a name of triton.language, a tuple of these or a word, '
        f"got {text!r}; {fix}"
    )


def _value(node: ast.expr) -> Any:
    """The value of a node.

    Raises:
        ValueError, TypeError: nothing that is read here.
    """
    match node:
        case ast.Constant(None | bool() | int() | float() | str() as value):
            return value
        case ast.UnaryOp(ast.USub(), operand):
            return -_value(operand)
        case ast.UnaryOp(ast.UAdd(), operand):
            return +_value(operand)
        case ast.Tuple(items):
            return tuple(map(_value, items))
        case ast.List(items):
            return [*map(_value, items)]
        case ast.Call(ast.Name(("float" | "int") as kind), [given], []):
            return _READ[kind](_value(given))
        case ast.Name(("inf" | "nan") as name):
            return _NUMBERS[name]
        case ast.Attribute(attr=name) if ast.unparse(node.value) in _MODULES:
            return _attribute(ast.unparse(node.value), name)
    raise ValueError(ast.unparse(node))


def _attribute(module: str, name: str) -> Any:
    """A name of triton.language, or a number that a module calls so."""
    if module not in ("tl", "triton.language"):
        if name in _NUMBERS:
            return _NUMBERS[name]
        raise ValueError(f"{module}.{name}")
    import triton.language as tl

    if name.startswith("_") or not hasattr(tl, name):
        raise ValueError(name)
    return getattr(tl, name)


def _is_word(text: str) -> bool:
    """Whether a text is meant as it stands: no expression, and nothing that others take for a truth value."""
    if text.strip().lower() in _WORDS or any(c in "()[]{}\"'" for c in text):
        return False
    if any(text.strip().startswith(f"{module}.") for module in _MODULES):
        return False
    try:
        tree = ast.parse(text.strip(), mode="eval")
    except (SyntaxError, ValueError):
        return True
    return any(isinstance(node, ast.Name) for node in ast.walk(tree))
