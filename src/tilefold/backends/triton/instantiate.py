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
    chosen,
    gathered,
    in_order,
    map_blocks,
    map_groups,
    map_offset,
    map_rings,
    map_spans,
    map_stripes,
    map_windows,
    maps,
    moves,
    product_rows,
    products,
    scalars,
    scans,
    segments,
    selections,
    tables,
    tiles,
)
from tilefold.runtime.caching import kept_outside_modes

# Where kernels are written.
_MODULES = (
    tiles, in_order, gathered, maps, map_blocks, map_groups, map_rings, map_spans, map_offset,
    map_stripes, map_windows, scans, segments, moves, chosen, selections, tables,
    products, product_rows,
)  # fmt: skip


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
        scope |= {"convert": interpreted.convert, "rescale": interpreted.rescale}
    return scope


@kept_outside_modes(2048)
def device_functions(source: str, interpret: bool) -> dict[str, Any]:
    """Compile generated source into jitted functions. The text comes from `emit` alone, never from a user."""
    name = f"<tilefold {hashlib.sha256(source.encode()).hexdigest()[:16]}>"
    linecache.cache[name] = (len(source), None, source.splitlines(keepends=True), name)
    namespace: dict[str, Any] = {**scalar_functions(interpret), "__name__": "tilefold.generated"}
    namespace["UNROLL_OF_RUNS"] = tl.constexpr(axes.UNROLL_OF_RUNS)
    namespace["LANES_OF_BLOCKS"] = tl.constexpr(axes.LANES_OF_BLOCKS)
    exec(compile(source, name, "exec"), namespace)  # noqa: S102  # the one place where generated code becomes functions
    functions = {k: v for k, v in namespace.items() if isinstance(v, types.FunctionType) and k.isupper()}
    for key, function in functions.items():
        namespace[key] = _jit(function, interpret)
    return {key: namespace[key] for key in functions}


@kept_outside_modes(2048)
def kernel(name: str, source: str, interpret: bool) -> Any:
    """The kernel `name` over the device functions in `source`, jitted (or for the interpreter)."""
    module = next(m for m in _MODULES if name in vars(m))
    scope: dict[str, Any] = {**vars(module), **device_functions(source, interpret)}
    scope |= {"gdc_wait": gdc_wait, "gdc_launch_dependents": gdc_launch_dependents}
    scope["LANES_LAST"] = tl.constexpr(axes.LANES_LAST)
    for helper, function in _reached(vars(module)[name]).items():
        scope[helper] = _rebound(function, scope, interpret)
    return scope[name]


def _reached(kernel: types.FunctionType) -> dict[str, types.FunctionType]:
    """A kernel and the functions that it calls, and those that these call, by their names."""
    found, waiting = {kernel.__name__: kernel}, [kernel]
    while waiting:
        function = waiting.pop()
        for name in _names(function.__code__):
            called = function.__globals__.get(name)
            if isinstance(called, types.FunctionType) and name not in found:
                found[name] = called
                waiting.append(called)
    return found


def _names(code: types.CodeType) -> list[str]:
    """The names that code looks up, comprehensions in it too."""
    inner = (part for part in code.co_consts if isinstance(part, types.CodeType))
    return [*code.co_names, *(name for part in inner for name in _names(part))]


def _rebound(function: Any, scope: dict[str, Any], interpret: bool) -> Any:
    """The same code over other globals."""
    copy = types.FunctionType(
        function.__code__, scope, function.__name__, function.__defaults__, function.__closure__
    )
    copy.__annotations__ = function.__annotations__
    copy.__module__ = function.__module__
    copy.__qualname__ = function.__qualname__
    return _jit(copy, interpret)
