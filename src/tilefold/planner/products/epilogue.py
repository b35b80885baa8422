"""The function of an accumulated product before it is stored: traced graphs of the accumulator, extra tensors and the row.

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
from tilefold.algebra.algebra import Algebra
from tilefold.algebra.expression import trace
from tilefold.algebra.monoid import Monoid
from tilefold.algebra.typing import TypedGraph, is_float
from tilefold.errors import ArgumentError, KindError, is_function, shown
from tilefold.planner.products.functions import Role, Traced, traced
from tilefold.planner.products.operands import EXACT_IN_FLOAT64
from tilefold.planner.products.row import Row, check_row, make_row, traced_apply
from tilefold.runtime.caching import kept_outside_modes


def _gelu(x: Any) -> Any:
    return 0.5 * x * (1.0 + math.erf(x * 0.7071067811865476))


NAMED: dict[str, Callable[..., Any]] = {
    "relu": lambda x: math.where(x <= 0, 0, x),  # without a slope at 0, as torch has it, which a maximum has
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


_CUTS = trace(NAMED["relu"], 1), trace(lambda x: math.maximum(x, 0), 1)
_ROLE = Role(
    "an epilogue",
    "an epilogue must take the accumulator and each of `epilogue_args`",
    "pass as many tensors as it takes values after the first",
)


@dataclass(frozen=True)
class Epilogue:
    """A typed graph of (accumulator, *extras) with one output, and the dtype that is stored.

    `elements` are the extras' dtypes as loaded. With `row` the graph's output is what each row is folded of.
    """

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

    @property
    def only_relu(self) -> bool:
        """Whether the accumulator is cut at zero, and nothing else."""
        return not self.elements and self.row is None and self.typed.graph in _CUTS


def accumulator_dtype(operand: torch.dtype) -> torch.dtype:
    """The dtype of the sum that an epilogue takes: int32 of int8, int64 of other integers, float64 of float64, or float32."""
    if not is_float(operand):
        return torch.int32 if operand == torch.int8 else torch.int64
    return torch.float64 if operand == torch.float64 else torch.float32


def sums_dtype(operand: torch.dtype) -> torch.dtype:
    """The dtype in which kernels add products: float64 for integers that tensor cores lack, which is exact; else the
    accumulator's."""
    return torch.float64 if operand in EXACT_IN_FLOAT64 else accumulator_dtype(operand)


def make_epilogue(
    epilogue: str | Traced | Callable[..., Any] | None,
    bias: torch.dtype | None,
    extras: tuple[torch.dtype, ...],
    operand: torch.dtype,
    out_dtype: torch.dtype | None,
    row: tuple[Monoid, Traced | Callable[..., Any] | None] | None = None,
) -> Epilogue:
    """Trace an epilogue and a row's fold, where that is still to do, and give them dtypes. Floats come back in the operands'
    dtype, integers too (as int32 of int8 and of floats), or as asked.

    Raises:
        ArgumentError, ArityError, KindError, TraceError: it has no such name, or is no function of that many values that
            gives one.
    """
    function, pair = traced_ending(epilogue, len(extras), row)
    # the algebra alone is kept of the monoid
    folding = None if pair is None else (pair[0].total, pair[1])
    return _typed(function, folding, bias, extras, operand, out_dtype)


def traced_ending(epilogue: Any, extras: int, row: Any) -> tuple[Traced | None, Any]:
    """An epilogue and a row's fold with their functions run; one that has been run stays as it is.

    Raises:
        ArgumentError, ArityError, KindError, TraceError: as `make_epilogue`.
    """
    pair = check_row(row)
    if pair is not None and pair[1] is not None:
        pair = pair[0], traced_apply(*pair)
    if epilogue is None or type(epilogue) is Traced:
        return epilogue, pair
    if isinstance(epilogue, str):
        return _named(str.__str__(epilogue), extras), pair
    if not is_function(epilogue):
        raise KindError(
            f"matmul: `epilogue` must be a name, a function or None, got {type(epilogue).__name__}; "
            "write a function of the accumulator and the extra tensors' elements"
        )
    return traced(epilogue, extras, _ROLE), pair


@kept_outside_modes(256)
def _named(name: str, extras: int) -> Traced:
    if name not in NAMED:
        raise ArgumentError(
            f"matmul: a named `epilogue` must be one of {', '.join(NAMED)}, got {shown(name)}; take one of these, or "
            "write a function with tilefold.math"
        )
    return traced(NAMED[name], extras, _ROLE, name)


@kept_outside_modes(1024)
def _typed(
    epilogue: Traced | None,
    row: tuple[Algebra, Traced | None] | None,
    bias: torch.dtype | None,
    extras: tuple[torch.dtype, ...],
    operand: torch.dtype,
    out_dtype: torch.dtype | None,
) -> Epilogue:
    """The traced graph, with dtypes."""
    with_bias = bias is not None

    def after(accumulator: Any, *values: Any) -> Any:
        sums = accumulator + values[0] if with_bias else accumulator
        return sums if epilogue is None else epilogue.graph(sums, *values[with_bias:])

    graph = trace(after, 1 + with_bias + len(extras))
    elements = (*((bias,) if bias is not None else ()), *extras)
    typed = typing.infer(graph, [accumulator_dtype(operand), *map(typing.element_dtype, elements)])
    folded = None if row is None else make_row(*row, typed.output_dtypes[0])
    produced = (typed if folded is None else folded.apply).output_dtypes[0]
    return Epilogue(typed, elements, out_dtype or _result_dtype(operand, produced), folded)


def _result_dtype(operand: torch.dtype, produced: torch.dtype) -> torch.dtype:
    whole = torch.int32 if is_float(operand) or operand == torch.int8 else operand
    if produced == torch.bool or not is_float(produced):
        return torch.bool if produced == torch.bool else whole
    return operand if is_float(operand) else produced
