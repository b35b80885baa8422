"""What happens to an accumulated product before it is stored: traced graphs of the accumulator, extra tensors and the row.

    value  = epilogue(a @ b + bias, *extras)
    result = value, or with a row's fold apply(value, *(fold of the row's values))

The bias is the first extra tensor of the graph, so that no kernel knows of it.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch

from tilefold import math
from tilefold.algebra import typing
from tilefold.algebra.expression import trace
from tilefold.algebra.monoid import Monoid
from tilefold.algebra.typing import TypedGraph, is_float
from tilefold.caching import kept_by_arguments
from tilefold.contract.row import Row, check_gives_one, check_takes, make_row
from tilefold.errors import ArgumentError, KindError


def _gelu(x: Any) -> Any:
    return 0.5 * x * (1.0 + math.erf(x * 0.7071067811865476))


NAMED: dict[str, Callable[..., Any]] = {
    "relu": lambda x: math.maximum(x, 0),
    "gelu": _gelu,
    "silu": lambda x: x * math.sigmoid(x),
    "sigmoid": math.sigmoid,
    "tanh": math.tanh,
}
IN_TORCH: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "relu": torch.relu,
    "gelu": torch.nn.functional.gelu,
    "silu": torch.nn.functional.silu,
    "sigmoid": torch.sigmoid,
    "tanh": torch.tanh,
}


@dataclass(frozen=True)
class Epilogue:
    """A typed graph of (accumulator, *extras) with one output, and the dtype that is stored.

    `elements` are the extras' dtypes as loaded. With `row` the graph's output is what each row is folded of.
    """

    name: str
    typed: TypedGraph
    elements: tuple[torch.dtype, ...]
    result: torch.dtype
    row: Row | None = None

    @property
    def value(self) -> torch.dtype:
        """The dtype of the graph's output, before it is rounded to `result`."""
        return self.typed.output_dtypes[0]

    @property
    def plain(self) -> bool:
        """Whether the accumulator is stored as it is."""
        return self.typed.graph.nodes[self.typed.graph.outputs[0]].op == "input" and not self.elements

    @property
    def only_bias(self) -> bool:
        """Whether one extra tensor is added to the accumulator, and nothing else."""
        return [node.op for node in self.typed.graph.nodes] == ["input", "input", "add"]


def accumulator_dtype(operand: torch.dtype) -> torch.dtype:
    """In what products of this dtype are summed: int32 for int8, float64 for float64, else float32."""
    if not is_float(operand):
        return torch.int32
    return torch.float64 if operand == torch.float64 else torch.float32


@kept_by_arguments
def make_epilogue(
    epilogue: str | Callable[..., Any] | None,
    bias: torch.dtype | None,
    extras: tuple[torch.dtype, ...],
    operand: torch.dtype,
    out_dtype: torch.dtype | None,
    row: tuple[Monoid, Callable[..., Any] | None] | None = None,
) -> Epilogue:
    """Trace an epilogue and a row's fold, and give them dtypes. Floats come back in the operands' dtype, integers as int32,
    or as asked.

    Raises:
        ArgumentError, ArityError, KindError, TraceError: it has no such name, or is no function of that many values that
            gives one.
    """
    function, name = _function_of(epilogue)
    rule = "an epilogue must take the accumulator and each of `epilogue_args`"
    check_takes(function, name, len(extras), rule, "pass as many tensors as it takes values after the first")
    with_bias = bias is not None

    def after(accumulator: Any, *values: Any) -> Any:
        return function(accumulator + values[0] if with_bias else accumulator, *values[with_bias:])

    graph = trace(_named_like(after, name), 1 + with_bias + len(extras))
    check_gives_one(graph, name, "an epilogue")
    elements = (*((bias,) if bias is not None else ()), *extras)
    typed = typing.infer(graph, [accumulator_dtype(operand), *map(typing.element_dtype, elements)])
    folded = None if row is None else make_row(*row, typed.output_dtypes[0])
    produced = (typed if folded is None else folded.apply).output_dtypes[0]
    return Epilogue(name, typed, elements, out_dtype or _result_dtype(operand, produced), folded)


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


def _result_dtype(operand: torch.dtype, produced: torch.dtype) -> torch.dtype:
    if produced == torch.bool or not is_float(produced):
        return torch.bool if produced == torch.bool else torch.int32
    return operand if is_float(operand) else produced
