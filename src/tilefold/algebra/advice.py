"""Advice for the words of torch, numpy and Python that a traced value does not know: which function to write instead."""

from __future__ import annotations

import difflib

from tilefold.algebra.operations import OPS

# Of those that the table has an operator for, the power has a function too.
_OPERATORS = {row.name: row.symbol for row in OPS.values() if row.symbol is not None and row.name != "pow"} | {
    "subtract": "-", "multiply": "*", "div": "/", "divide": "/", "true_divide": "/", "floor_divide": "//", "fmod": "%",
    "remainder": "%", "negative": "-", "less": "<", "greater": ">", "equal": "==", "not_equal": "!=", "logical_and": "&",
    "bitwise_and": "&", "logical_or": "|", "bitwise_or": "|", "logical_xor": "^", "bitwise_xor": "^", "logical_not": "~",
    "bitwise_not": "~", "bitwise_left_shift": "<<", "bitwise_right_shift": ">>",
}  # fmt: skip
_LARGER = "use tilefold.math.maximum(a, b) of two values, and in absorb tilefold.math.block_max(x) of a block"
_SMALLER = (
    "use tilefold.math.minimum(a, b) of two values, and in absorb tilefold.math.block_min(x) of a block"
)
_SIZE = "use tilefold.math.block_count(x) in absorb for how many elements a block has; a value is one, without a shape"
_DTYPE = "use tilefold.math.cast(x, dtype) to convert; a value has no dtype before a fold is called"
_NUMBER = "use it in expressions; a value has no number before a fold is called"
_CLAMP = "use tilefold.math.minimum(tilefold.math.maximum(x, low), high)"
_INSTEAD = {
    **dict.fromkeys(("max", "amax", "fmax"), _LARGER),
    **dict.fromkeys(("min", "amin", "fmin"), _SMALLER),
    **dict.fromkeys(("shape", "size", "ndim", "dim", "numel", "stride", "T", "view", "reshape"), _SIZE),
    **dict.fromkeys(("dtype", "type", "to", "astype", "type_as"), _DTYPE),
    **dict.fromkeys(("device", "item", "tolist", "numpy", "cpu", "cuda", "detach", "data", "clone"), _NUMBER),
    **dict.fromkeys(("clamp", "clip"), _CLAMP),
    **{
        name: f"use tilefold.math.cast(x, torch.{dtype})"
        for name, dtype in (
            ("float", "float32"), ("double", "float64"), ("half", "float32"), ("bfloat16", "float32"), ("int", "int32"),
            ("long", "int64"), ("bool", "bool"),
        )
    },
    "argmax": "use index=True and carry the position beside the value, as tilefold.monoids.ARGMAX does",
    "argmin": "use index=True and carry the position beside the value, as tilefold.monoids.ARGMIN does",
    "sum": "use + in combine, and in absorb tilefold.math.block_sum(x) of a block",
    "prod": "use * in combine",
    "mean": "use two fields, a sum and a count, and divide in project",
    "any": "use | of conditions in combine",
    "all": "use & of conditions in combine",
    "relu": "use tilefold.math.maximum(x, 0)",
    "square": "use x * x",
    "reciprocal": "use 1 / x",
    "round": "use tilefold.math.floor(x + 0.5)",
    "trunc": "use tilefold.math.cast(x, torch.int64)",
    "log10": "use tilefold.math.log(x) / tilefold.math.log(10)",
    "absolute": "use tilefold.math.abs(x)",
    "power": "use x ** y",
    **dict.fromkeys(
        ("popcount", "popc", "bit_count", "bitcount"), "add up bits by shifts and masks, as docs/algebra.md does"
    ),
    "tan": "use tilefold.math.sin(x) / tilefold.math.cos(x)",
}  # fmt: skip
_COMPOSED = ("sign",)  # of tilefold.math, and no row
_ARGUMENTS = {1: "x", 2: "a, b", 3: "condition, a, b"}


def instead_of(name: str) -> str:
    """What a monoid's function should say where it says `.name`, or calls a function of that name of another library."""
    name = name if name in OPS or name in _COMPOSED else name.lower()
    if name in _INSTEAD:
        return _INSTEAD[name]
    if name in _OPERATORS:
        return f"use the operator {_OPERATORS[name]}"
    if name in OPS or name in _COMPOSED:
        return f"use {_call(name)}"
    words = [*(op for op in OPS if op not in _OPERATORS), *_COMPOSED, *_INSTEAD]
    close = difflib.get_close_matches(name, words, n=1)
    return (
        instead_of(close[0]) if close else "use operators, Python numbers and the functions of tilefold.math"
    )


def _call(name: str) -> str:
    arity = OPS[name].arity if name in OPS else 1
    arguments = "x, dtype" if name == "cast" else _ARGUMENTS[arity]
    return f"tilefold.math.{name}({arguments})"
