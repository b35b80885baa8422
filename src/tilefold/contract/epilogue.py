"""What happens to an accumulated product before it is stored: a traced graph of the accumulator and extra tensors.

    result = epilogue(a @ b + bias, *extras)

The bias is the first extra tensor of the graph, so that no kernel knows of it.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch

from tilefold import math
from tilefold.algebra import typing
from tilefold.algebra.expression import OPS, Graph, trace
from tilefold.algebra.typing import TypedGraph, is_float
from tilefold.errors import ArgumentError, ArityError, KindError, TraceError


def _gelu(x: Any) -> Any:
    return 0.5 * x * (1.0 + math.erf(x * 0.7071067811865476))


NAMED: dict[str, Callable[..., Any]] = {
    "relu": lambda x: math.maximum(x, 0),
    "gelu": _gelu,
    "silu": lambda x: x * math.sigmoid(x),
    "sigmoid": math.sigmoid,
    "tanh": math.tanh,
}


@dataclass(frozen=True)
class Epilogue:
    """A typed graph of (accumulator, *extras) with one output, and the dtype that output is stored in.

    `elements` are the extras' dtypes as loaded. `plain`: the graph hands on the accumulator and nothing else.
    """

    name: str
    typed: TypedGraph
    elements: tuple[torch.dtype, ...]
    result: torch.dtype

    @property
    def plain(self) -> bool:
        """Whether the accumulator is stored as it is."""
        return self.typed.graph.nodes[self.typed.graph.outputs[0]].op == "input" and not self.elements


def accumulator_dtype(operand: torch.dtype) -> torch.dtype:
    """In what products of this dtype are summed: int32 for int8, float64 for float64, else float32."""
    if not is_float(operand):
        return torch.int32
    return torch.float64 if operand == torch.float64 else torch.float32


@functools.lru_cache(maxsize=1024)
def make_epilogue(
    epilogue: str | Callable[..., Any] | None,
    bias: torch.dtype | None,
    extras: tuple[torch.dtype, ...],
    operand: torch.dtype,
    out_dtype: torch.dtype | None,
) -> Epilogue:
    """Trace an epilogue and give it dtypes. Floats come back in the operands' dtype, integers as int32, or as asked.

    Raises:
        ArgumentError, ArityError, KindError, TraceError: it has no such name, or is no function of that many values that
            gives one.
    """
    function, name = _function_of(epilogue)
    _check_takes(function, name, len(extras))
    with_bias = bias is not None

    def after(accumulator: Any, *values: Any) -> Any:
        return function(accumulator + values[0] if with_bias else accumulator, *values[with_bias:])

    graph = trace(_named_like(after, name), 1 + with_bias + len(extras))
    _check_graph(graph, name)
    elements = (*((bias,) if bias is not None else ()), *extras)
    typed = typing.infer(graph, [accumulator_dtype(operand), *map(typing.element_dtype, elements)])
    return Epilogue(name, typed, elements, out_dtype or _result_dtype(operand, typed.output_dtypes[0]))


def _function_of(epilogue: str | Callable[..., Any] | None) -> tuple[Callable[..., Any], str]:
    if epilogue is None:
        return (lambda x: x), "none"
    if isinstance(epilogue, str):
        if epilogue not in NAMED:
            raise ArgumentError(
                f"matmul: a named `epilogue` must be one of {', '.join(NAMED)}, got {epilogue!r}; take one of these, or "
                "write a function with tilefold.math"
            )
        return NAMED[epilogue], epilogue
    if not callable(epilogue):
        raise KindError(
            f"matmul: `epilogue` must be a name, a function or None, got {type(epilogue).__name__}; "
            "write a function of the accumulator and the extra tensors' elements"
        )
    return epilogue, getattr(epilogue, "__name__", "epilogue").strip("<>")


def _named_like(function: Callable[..., Any], name: str) -> Callable[..., Any]:
    """For the messages of `trace`."""
    function.__name__ = name
    return function


def _check_takes(function: Callable[..., Any], name: str, extras: int) -> None:
    try:
        inspect.signature(function).bind(*range(1 + extras))
    except ValueError:  # a builtin without a signature: tracing tells
        return
    except TypeError:
        raise ArityError(
            f"matmul: an epilogue must take the accumulator and each of `epilogue_args`, got {extras} of these for "
            f"{name}{inspect.signature(function)}; pass as many tensors as it takes values after the first"
        ) from None


def _check_graph(graph: Graph, name: str) -> None:
    if len(graph.outputs) != 1:
        raise ArityError(
            f"matmul: an epilogue must return one value, got {len(graph.outputs)} from {name}; return the one to be stored"
        )
    block = next((n.op for n in graph.nodes if n.op in OPS and OPS[n.op].kind == "block"), None)
    if block is not None:
        raise TraceError(
            f"matmul: an epilogue sees one element, got {block}, which folds a block, in {name}; fold the result with "
            "tilefold.reduce"
        )


def _result_dtype(operand: torch.dtype, produced: torch.dtype) -> torch.dtype:
    if produced == torch.bool or not is_float(produced):
        return torch.bool if produced == torch.bool else torch.int32
    return operand if is_float(operand) else produced
