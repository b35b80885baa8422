"""What to use instead of a call that is refused: torch's own function, `segment_reduce`, or a monoid that may be meant."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from tilefold import monoids
from tilefold.algebra.monoid import Monoid
from tilefold.errors import nearest, shown

_SAME = (
    "sum", "prod", "mean", "logsumexp", "amax", "amin", "max", "min", "aminmax", "var", "std", "var_mean", "std_mean",
    "cumsum", "cumprod", "cummax", "cummin", "logcumsumexp", "softmax", "log_softmax", "topk",
)  # fmt: skip
_LAYERS = ("layer_norm", "rms_norm", "group_norm", "normalize")
# torch's function for a call of ours, with a derivative.
_TORCHS = {
    **{name: f"torch.{name}" for name in _SAME},
    **{name: f"torch.nn.functional.{name}" for name in _LAYERS},
    "norm": "torch.linalg.vector_norm",
    "vector_norm": "torch.linalg.vector_norm",
    "transpose": "torch.transpose and contiguous()",
    "matmul": "tilefold.nn.Linear, or torch.matmul and torch's functions after it,",
}
# The same where a call takes a monoid.
_OF_MONOIDS = {
    "reduce": {
        "SUM": "sum", "PROD": "prod", "MAX": "amax", "MIN": "amin", "MAX_WITH_INDEX": "max", "MIN_WITH_INDEX": "min",
        "MINMAX": "aminmax", "LOGSUMEXP": "logsumexp", "WELFORD": "var_mean",
    },
    "scan": {
        "SUM": "cumsum", "PROD": "cumprod", "CUMMAX": "cummax", "CUMMIN": "cummin", "MAX": "cummax", "MIN": "cummin",
        "LOGSUMEXP": "logcumsumexp",
    },
    "segment_reduce": dict.fromkeys(("SUM", "PROD", "MAX", "MIN"), "segment_reduce"),
}  # fmt: skip
# What torch gives no gradient either: positions, counts and truths.
_FLAT = {
    "argmax", "argmin", "any", "all", "count_nonzero", "ARGMAX", "ARGMIN", "ANY", "ALL", "COUNT_NONZERO",
}  # fmt: skip
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


def where_gradients_are(call: str, monoid: Monoid | None) -> str:
    """What to do about an input that requires grad: torch's own function for this operation, if there is one."""
    if call == "explain_plan":
        return "use torch.no_grad(), since nothing is run"
    if call in _FLAT or _catalogued(monoid) in _FLAT:
        return "use torch.no_grad() or detach(): its result has no gradient in torch either"
    own = torchs_own(call, monoid)
    if own is not None:
        return f"use torch.no_grad() where no gradient is needed, and {own} where one is"
    return (
        "use torch.no_grad() where no gradient is needed; where one is, write it in torch's operations, since torch has no "
        "function of its own for this"
    )


def torchs_own(call: str, monoid: Monoid | None = None) -> str | None:
    """The name of torch's function for a call; None where there is none."""
    known = _OF_MONOIDS.get(call)
    if known is None:
        return _TORCHS.get(call)
    name = known.get(_catalogued(monoid) or "")
    return None if name is None else f"torch.{name}"


def _catalogued(monoid: Monoid | None) -> str | None:
    """The name in the catalogue of one that is there."""
    return next((n for n in monoids.__all__ if getattr(monoids, n) is monoid), None)


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
