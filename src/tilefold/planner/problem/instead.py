"""What to use instead of a call that is refused: `segment_reduce`, or a monoid that may be meant."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from tilefold import monoids
from tilefold.algebra.monoid import Monoid
from tilefold.errors import nearest, shown

# The monoid that folds each row of a jagged tensor as a function of ours folds a dense one.
_OF_ROWS = {
    "sum": "SUM", "prod": "PROD", "amax": "MAX", "amin": "MIN", "max": "MAX", "min": "MIN", "aminmax": "MINMAX",
    "argmax": "ARGMAX", "argmin": "ARGMIN", "any": "ANY", "all": "ALL", "count_nonzero": "COUNT_NONZERO",
    "bitwise_or": "BITWISE_OR", "bitwise_and": "BITWISE_AND", "bitwise_xor": "BITWISE_XOR", "logsumexp": "LOGSUMEXP",
    "norm": "NORM(p)", "vector_norm": "NORM(p)",
}  # fmt: skip
_ROWS = "tilefold.segment_reduce(x, tilefold.monoids."
_MOMENTS = f"{_ROWS}WELFORD), whose results are count, mean and M2: "
_JAGGED = {
    **{name: f"{_ROWS}{monoid})" for name, monoid in _OF_ROWS.items()},
    "mean": f"{_ROWS}WELFORD).mean",
    "var": f"{_MOMENTS}M2 / (count - 1)",
    "std": f"{_MOMENTS}(M2 / (count - 1)) ** 0.5",
    "var_mean": f"{_MOMENTS}M2 / (count - 1) and mean",
    "std_mean": f"{_MOMENTS}(M2 / (count - 1)) ** 0.5 and mean",
    "softmax": f"(x - {_ROWS}LOGSUMEXP)[:, None]).exp()",
    "log_softmax": f"x - {_ROWS}LOGSUMEXP)[:, None]",
    "reduce": "tilefold.segment_reduce(x, monoid)",
}


def of_nested(t: torch.Tensor, call: str) -> str:
    """What folds a nested tensor: one tensor after another, or of a jagged one the rows at once."""
    at_once = _JAGGED.get(call) if t.layout == torch.jagged else None
    return f"fold what unbind() gives{'' if at_once is None else f', or all rows at once: {at_once}'}"


def of_complex() -> str:
    """What real numbers may stand for complex ones."""
    return "use torch.view_as_real(x) for real and imaginary parts, or x.abs() for magnitudes"


def monoid_meant(value: Any) -> str:
    """The value given as a monoid, and the monoid that may be meant."""
    got = type(value).__name__
    name = value if isinstance(value, str) else getattr(value, "__name__", None)
    if value is Monoid:
        return "the class itself; make one of it: tilefold.Monoid(combine, identity)"
    if isinstance(value, Callable) and getattr(monoids, str(name), None) is value:  # type: ignore[arg-type]  # a class
        return f"the function {name}, which makes one; call it: tilefold.monoids.{name}({'2' if name == 'NORM' else '...'})"
    found = nearest(name, monoids.__all__, monoids.ALIASES) if isinstance(name, str) else None
    given = f"{got} {shown(name)}" if isinstance(name, str) and found else got
    one = f"tilefold.monoids.{found}" if found else "one of tilefold.monoids"
    return f"{given}; take {one} or make one"
