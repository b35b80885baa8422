"""Device functions put into the kernels: one set of jitted functions for each source and kernel."""

from __future__ import annotations

import hashlib
import linecache
import types
from typing import Any

import torch
import triton
import triton.language as tl
from triton.language.extra import libdevice
from triton.language.extra.cuda import gdc_launch_dependents, gdc_wait
from triton.runtime.interpreter import InterpretedFunction

from tilefold.backends.triton import axes, interpreted
from tilefold.backends.triton.kernels import (
    atomics,
    in_order,
    product_rows,
    products,
    scalars,
    segments,
    tiles,
)
from tilefold.caching import kept_outside_modes

_OF_PRODUCTS = (
    "outer_offset",
    "load_part",
    "first_tiles",
    "multiply_tiles",
    "program_tile",
    "load_extras",
    "first_splits",
    "load_splits",
    "fold_splits",
)
_OF_FOLDS = ("outer_offset", "folded_offset", "load_tile", "store_results", "program_place", "tree")
_OF_LANES = (
    *_OF_FOLDS,
    "fold_block",
    "tile_places",
    "whole_mask",
    "row_begin",
    "positions_of",
    "begin_tile",
    "begin_masked",
    "absorb_tile",
    "absorb_masked",
)
_HELPERS = {
    tiles: _OF_LANES,
    atomics: _OF_LANES,
    in_order: (
        *_OF_FOLDS,
        "spread_lanes",
        "spread_outputs",
        "lanes_begin",
        "lane_places",
        "as_lanes",
        "lanes_states",
        "identity_lanes",
        "meet_in_order",
        "either",
        "last_lane",
    ),
    products: _OF_PRODUCTS,
    product_rows: (*_OF_PRODUCTS, "tree", "fold_values", "store_rows"),
    segments: (
        "outer_offset",
        "store_results",
        "tree",
        "either",
        "plus",
        "longer",
        "clamped",
        "count_below",
        "last_until",
        "border",
        "last_of",
        "store_state",
        "load_runs",
        "run_places",
        "fold_windows",
        "fold_side",
        "fold_inner",
        "rows_from",
        "fold_rows",
        "store_nothing",
    ),
}


def _jit(function: Any, interpret: bool) -> Any:
    return InterpretedFunction(function) if interpret else triton.JITFunction(function)


@kept_outside_modes(1)
def e4m3fn_ends_in_nan() -> bool:
    """Whether this torch makes NaN of what is beyond float8_e4m3fn's greatest number, which others make that number."""
    return bool(torch.tensor([500.0], device="cpu").to(torch.float8_e4m3fn).float().isnan())


@kept_outside_modes(2)
def scalar_functions(interpret: bool) -> dict[str, Any]:
    """What generated functions may call beside each other: Triton's language, libdevice, and the functions of `scalars`."""
    scope = {**vars(scalars), "libdevice": interpreted if interpret else libdevice}
    scope["E4M3FN_ENDS_IN_NAN"] = tl.constexpr(e4m3fn_ends_in_nan())
    for name, function in vars(scalars).items():
        if isinstance(function, types.FunctionType):
            scope[name] = _rebound(function, scope, interpret)
    if interpret:
        scope["convert"] = interpreted.convert
    return scope


@kept_outside_modes(2048)
def device_functions(source: str, interpret: bool) -> dict[str, Any]:
    """Compile generated source into jitted functions. The text comes from `emit` alone, never from a user."""
    name = f"<tilefold {hashlib.sha256(source.encode()).hexdigest()[:16]}>"
    linecache.cache[name] = (len(source), None, source.splitlines(keepends=True), name)
    namespace: dict[str, Any] = {**scalar_functions(interpret), "__name__": "tilefold.generated"}
    namespace["UNROLL_OF_RUNS"] = tl.constexpr(axes.UNROLL_OF_RUNS)
    exec(compile(source, name, "exec"), namespace)  # noqa: S102  # the one place where generated code becomes functions
    functions = {k: v for k, v in namespace.items() if isinstance(v, types.FunctionType) and k.isupper()}
    for key, function in functions.items():
        namespace[key] = _jit(function, interpret)
    return {key: namespace[key] for key in functions}


@kept_outside_modes(2048)
def kernel(name: str, source: str, interpret: bool) -> Any:
    """The kernel `name` over the device functions in `source`, jitted (or for the interpreter)."""
    module = next(m for m in _HELPERS if name in vars(m))
    scope: dict[str, Any] = {**vars(tiles), **vars(module), **device_functions(source, interpret)}
    scope |= {"gdc_wait": gdc_wait, "gdc_launch_dependents": gdc_launch_dependents}
    scope["LANES_LAST"] = tl.constexpr(axes.LANES_LAST)
    for helper in _HELPERS[module]:
        scope[helper] = _rebound(vars(module).get(helper) or _found(helper), scope, interpret)
    return _rebound(getattr(module, name), scope, interpret)


def _found(helper: str) -> Any:
    """A helper that a module has not itself, in whichever one it is written."""
    return next(vars(m)[helper] for m in _HELPERS if helper in vars(m))


def _rebound(function: Any, scope: dict[str, Any], interpret: bool) -> Any:
    """The same code over other globals."""
    copy = types.FunctionType(
        function.__code__, scope, function.__name__, function.__defaults__, function.__closure__
    )
    copy.__annotations__ = function.__annotations__
    copy.__module__ = function.__module__
    copy.__qualname__ = function.__qualname__
    return _jit(copy, interpret)
