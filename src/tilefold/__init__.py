"""Fold any tensor with any monoid at the speed of memory, and see what the compiler made of it."""

import sys as _sys
from importlib import import_module as _import_module
from importlib.util import find_spec as _find_spec
from itertools import pairwise as _pairwise
from pathlib import Path as _Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:  # imported when first asked for: the commands' help needs no torch
    from tilefold import math, monoids, nn
    from tilefold.algebra.monoid import Monoid
    from tilefold.api.dispatch import last_plan
    from tilefold.api.explain import explain_plan
    from tilefold.api.linear_reduce import linear_reduce
    from tilefold.api.matmul import matmul
    from tilefold.api.reduce import reduce
    from tilefold.api.reduce_many import reduce_many
    from tilefold.api.reduce_map import reduce_map
    from tilefold.api.scan import scan
    from tilefold.api.segment_reduce import segment_reduce
    from tilefold.api.topk import topk
    from tilefold.api.transpose import transpose
    from tilefold.checkpoints.live import describe
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
        clip_grad_norm_,
        count_nonzero,
        cross_entropy,
        cummax,
        cummin,
        cumprod,
        cumsum,
        group_norm,
        layer_norm,
        linear_cross_entropy,
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
        rms_norm_quantized,
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

# Each public name, by the module that has it.
_NAMES = {
    "algebra.monoid": "Monoid",
    "api.dispatch": "last_plan",
    "api.explain": "explain_plan",
    "api.linear_reduce": "linear_reduce",
    "api.matmul": "matmul",
    "api.reduce": "reduce",
    "api.reduce_many": "reduce_many",
    "api.reduce_map": "reduce_map",
    "api.scan": "scan",
    "api.segment_reduce": "segment_reduce",
    "api.topk": "topk",
    "api.transpose": "transpose",
    "checkpoints.live": "describe",
    "functional": (
        "all amax amin aminmax any argmax argmin bitwise_and bitwise_or bitwise_xor clip_grad_norm_ count_nonzero "
        "cross_entropy cummax cummin cumprod cumsum group_norm layer_norm linear_cross_entropy log_softmax logcumsumexp "
        "logsumexp max mean min norm normalize prod rms_norm rms_norm_quantized softmax std std_mean sum var var_mean "
        "vector_norm"
    ),
    "runtime.switch": "backend",
}
_LATER = {"inductor": "integration.inductor", "xray": "xray"}
_HOMES = {name: module for module, names in _NAMES.items() for name in names.split()}

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
    "clip_grad_norm_",
    "count_nonzero",
    "cross_entropy",
    "cummax",
    "cummin",
    "cumprod",
    "cumsum",
    "describe",
    "explain_plan",
    "group_norm",
    "last_plan",
    "layer_norm",
    "linear_cross_entropy",
    "linear_reduce",
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
    "reduce_many",
    "reduce_map",
    "rms_norm",
    "rms_norm_quantized",
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

_SKIPPING = "tilefold.reduce with a monoid that skips NaN, as docs/algebra.md has it"


def __dir__() -> list[str]:
    return [*__all__, *_LATER]


if not TYPE_CHECKING:  # a checker knows the names

    def __getattr__(name: str) -> Any:
        if name in _HOMES:
            found = globals()[name] = getattr(_import_module(f"tilefold.{_HOMES[name]}"), name)
            return found
        module = f"tilefold.{_LATER.get(name, name)}"
        if name[0] != "_" and _find_spec(module) is not None:
            return _import_module(module)
        raise _unknown(name)


def _unknown(name: str) -> AttributeError:
    """The name that was meant by an unknown one."""
    from tilefold import math, monoids, nn
    from tilefold.errors import unknown_name

    elsewhere = {n: f"{m.__name__}.{n}" for m in (math, nn, monoids) for n in m.__all__}
    own = {n.replace("_", "") for n in __all__}
    lower = {n.replace("_", "").lower(): where for n, where in elsewhere.items() if n.lower() not in own}
    nan = dict.fromkeys(("nansum", "nanmean", "nanmax", "nanmin", "nanargmax", "nanargmin"), _SKIPPING)
    meant = {**lower, **elsewhere, **nan, "fold": "reduce"}
    return unknown_name("tilefold", name, [*__all__, *_LATER], meant)


def _serves_a_command() -> bool:
    """Whether Python runs `tilefold` itself, whose help and version need no torch."""
    started = _sys.orig_argv
    by_name = ("-m", "tilefold") in _pairwise(started)
    return by_name or _Path([*started, ""][1]).stem == "tilefold"


if not _serves_a_command():  # torch knows the operations: all that a program needs which was exported
    _import_module("tilefold.api")
