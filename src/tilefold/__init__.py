"""Fold any tensor with any monoid at the speed of memory, and see what the compiler made of it."""

from importlib import import_module as _import_module
from types import ModuleType as _ModuleType

from tilefold import math, monoids, nn
from tilefold.algebra.monoid import Monoid
from tilefold.api.dispatch import last_plan
from tilefold.api.explain import explain_plan
from tilefold.api.matmul import matmul
from tilefold.api.reduce import reduce
from tilefold.api.reduce_map import reduce_map
from tilefold.api.scan import scan
from tilefold.api.segment_reduce import segment_reduce
from tilefold.api.topk import topk
from tilefold.api.transpose import transpose
from tilefold.errors import unknown_name as _unknown_name
from tilefold.functional import (
    all,
    amax,
    amin,
    aminmax,
    any,
    argmax,
    argmin,
    bitwise_and,
    bitwise_or,
    bitwise_xor,
    count_nonzero,
    cummax,
    cummin,
    cumprod,
    cumsum,
    group_norm,
    layer_norm,
    log_softmax,
    logcumsumexp,
    logsumexp,
    max,
    mean,
    min,
    norm,
    normalize,
    prod,
    rms_norm,
    softmax,
    std,
    std_mean,
    sum,
    var,
    var_mean,
    vector_norm,
)
from tilefold.runtime.switch import backend

__version__ = "0.1.0"

__all__ = [
    "Monoid",
    "__version__",
    "all",
    "amax",
    "amin",
    "aminmax",
    "any",
    "argmax",
    "argmin",
    "backend",
    "bitwise_and",
    "bitwise_or",
    "bitwise_xor",
    "count_nonzero",
    "cummax",
    "cummin",
    "cumprod",
    "cumsum",
    "explain_plan",
    "group_norm",
    "last_plan",
    "layer_norm",
    "log_softmax",
    "logcumsumexp",
    "logsumexp",
    "math",
    "matmul",
    "max",
    "mean",
    "min",
    "monoids",
    "nn",
    "norm",
    "normalize",
    "prod",
    "reduce",
    "reduce_map",
    "rms_norm",
    "scan",
    "segment_reduce",
    "softmax",
    "std",
    "std_mean",
    "sum",
    "topk",
    "transpose",
    "var",
    "var_mean",
    "vector_norm",
]

_LATER = ("inductor", "xray")  # with much to import, which most programs do without
_SKIPPING = "tilefold.reduce with a monoid that skips NaN, as docs/algebra.md has it"


def __getattr__(name: str) -> _ModuleType:
    if name in _LATER:
        return _import_module({"inductor": "tilefold.integration.inductor"}.get(name, f"tilefold.{name}"))
    elsewhere = {n: f"{m.__name__}.{n}" for m in (math, nn, monoids) for n in m.__all__}
    lower = {n.replace("_", "").lower(): where for n, where in elsewhere.items()}
    nan = dict.fromkeys(("nansum", "nanmean", "nanmax", "nanmin", "nanargmax", "nanargmin"), _SKIPPING)
    raise _unknown_name(
        "tilefold", name, [*__all__, *_LATER], {**lower, **elsewhere, **nan, "fold": "reduce"}
    )
