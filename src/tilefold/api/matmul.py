"""`matmul`: the public function. In a graph it is one operation; of classes of tensors, theirs; else a product."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch

from tilefold.algebra.inlined import Inlined, function_of, inlined
from tilefold.algebra.monoid import Monoid
from tilefold.api.products import multiply
from tilefold.api.recorded import SHARDED, asks_gradient, is_sharded, recorded_product
from tilefold.api.registered import recorded_matmul
from tilefold.errors import is_function
from tilefold.planner.products.epilogue import traced_ending
from tilefold.planner.products.functions import Traced
from tilefold.planner.products.operands import as_autocast
from tilefold.planner.products.row import check_row, projected, traced_row
from tilefold.runtime.modes import is_recorded
from tilefold.runtime.overrides import classed, listed, overridden, override, rebuildable
from tilefold.runtime.uncompiled import constant_in_graphs


def matmul(
    a: torch.Tensor,
    b: torch.Tensor,
    *,
    bias: torch.Tensor | None = None,
    epilogue: str | Callable[..., Any] | None = None,
    epilogue_args: Sequence[torch.Tensor] = (),
    row: tuple[Monoid, Callable[..., Any] | None] | None = None,
    out_dtype: torch.dtype | None = None,
    precision: str | None = None,
    guarantee: str = "run_to_run",
    out: torch.Tensor | None = None,
) -> Any:
    """Multiply matrices, and finish each result in the store that makes it final.

        value[.., m, n]  = epilogue(sum over k of a[.., m, k] * b[.., k, n] + bias[n], *epilogue_args[.., m, n])
        result[.., m, n] = value[.., m, n], or with `row` apply(value[.., m, n], *folded[.., m])
        folded[.., m]    = the fold of value[.., m, :] by the row's monoid

    Args:
        a: [.., M, K], or a vector [K]; float16, bfloat16, float32, float64, float8 (e4m3fn, e5m2), int8,
            uint8, int16, or on a CPU int32 or int64.
        b: [K, N] or [.., K, N], or a vector [K], of a's dtype. Any strides of both are read in place on a GPU (but
            rows that begin between vectors may be copied first, where that is faster; a CPU's product may make temporaries),
            and any M, N and K: K = 0 leaves zeros to the epilogue.
        bias: a tensor that broadcasts to the result, [N] as a rule, added to the accumulator.
        epilogue: "relu", "gelu" (by erf), "silu", "sigmoid", "tanh", or a function of the accumulator and one element of each
            of `epilogue_args`, written with tilefold.math: for a residual, a scale of each column, or the scales of float8.
            It is traced, run once with symbols, in every call, so that it reads current values; not again where
            all that it reads is known to be unchanged. Only its graph is kept.
        epilogue_args: tensors that broadcast to the result's shape, of any real dtype and strides.
        row: a pair (monoid, apply): each row of values is folded too, in the same store: `(MAX_WITH_INDEX, None)` for a
            router's choice, `(LOGSUMEXP, lambda x, total: exp(x - total))` for softmax. `apply` is traced as the epilogue is
            (the monoid was when it was made); None stores the values. The fold sees them before they are rounded to the
            result's dtype. Rows have at most 16384 columns, which one program holds, or 1024 where order matters to the
            monoid or "batch_invariant" is asked for; tilefold.reduce folds longer ones.
        out_dtype: the result's dtype; by default the operands', but int32 for int8, and float32 where an epilogue makes
            fractions of whole numbers.
        precision: of float32 products: "ieee" (the default; true float32) or "tf32" (rounds operands to 11 bits where the
            chip has such products; elsewhere more exact).
        guarantee: "run_to_run": the same bits for the same inputs, layout, chip and versions. "batch_invariant": besides, a
            row's bits depend on no other row and not on M: the plan follows from K, N and the dtype. "none": neither.
        out: a tensor to write the result into, of its shape and dtype.

    Inside torch.autocast a, b and bias are converted first, as torch.matmul and torch.nn.functional.linear convert theirs:
    all floats but float64, to its dtype, which the result then goes by. As there, nothing is converted where `out` is given;
    `epilogue_args` never are.

    Returns:
        A contiguous tensor in torch.matmul's shape; with `row` it and the fold's results, in the shape without the last
        dim (floats in the accumulator's dtype, not rounded to the result's). Products are summed in float32 (float64 of
        float64; int32 of int8, exact while sums fit, as they do below K = 131072; int64 of other integers, which are stored
        modulo the result's width, as torch stores its sums) in an order that the plan fixes, and rounded once, after the
        epilogue. Before that, |error| <= gamma_K * (|a| @ |b|), with gamma_K = K u / (1 - K u) and
        u = 2^-23, since tensor cores truncate (2^-53 of float64; with "tf32" 2^-10 * (|a| @ |b|) more, of float8 on a GPU
        2^-13 * (|a| @ |b|) more: its tensor cores keep 14 bits of the sum of an instruction's products).

    Raises:
        ArgumentError, ArityError, DeviceError, DtypeError, KindError, ShapeError, TraceError: the call does not fit.
        BackendError: "triton" is forced for tensors on a CPU.
        EmptyError: rows have no columns and their monoid has no identity.
        GradientError: `out` is given while a gradient or a forward derivative is asked, or a row's fold has no
            derivative.

    Example:
        >>> a, b = torch.tensor([[1.0, 2.0]]), torch.tensor([[3.0, -1.0], [1.0, -1.0]])
        >>> tilefold.matmul(a, b, epilogue="relu")
        tensor([[5., 0.]])
        >>> tilefold.matmul(a, b, epilogue=lambda x, residual: 2 * x + residual, epilogue_args=(torch.ones(2),))
        tensor([[11., -5.]])
        >>> logits, top = tilefold.matmul(a, b, row=(tilefold.monoids.MAX_WITH_INDEX, None))
        >>> logits, top.values, top.indices
        (tensor([[ 5., -3.]]), tensor([5.]), tensor([0]))

    Source: splitting K into partial products that a second stage sums and finishes is known as Decompose-K.
    """
    if is_sharded([a, b, bias]):
        made = SHARDED["matmul"](
            a, b, bias, epilogue, epilogue_args, row, out_dtype, precision, guarantee, out
        )
        return made[0] if row is None else (made[0], row[0].pack(made[1:]))
    if torch.compiler.is_dynamo_compiling() or is_recorded():
        plain = _is_named(epilogue, epilogue_args, row, out_dtype, out)
        if plain and not (_is_transformed() or asks_gradient([t for t in (a, b, bias) if t is not None])):
            # graphs hold one operation, which Inductor may replace
            return recorded_matmul(a, b, bias, epilogue, precision, guarantee)  # type: ignore[arg-type]  # a name, or None
        if torch.compiler.is_dynamo_compiling() and out is None and isinstance(epilogue_args, (tuple, list)):
            made = _in_a_graph(
                a, b, bias, epilogue, epilogue_args, check_row(row), out_dtype, precision, guarantee
            )
            return made[0] if row is None else (made[0], row[0].pack(made[1:]))
    if overridden(a, b, bias, out) or overridden(*listed(epilogue_args)):
        options = {
            "bias": bias, "epilogue": epilogue, "epilogue_args": epilogue_args, "row": row, "out_dtype": out_dtype,
            "precision": precision, "guarantee": guarantee, "out": out,
        }  # fmt: skip
        defaults = matmul.__kwdefaults__ or {}
        given = {name: value for name, value in options.items() if value is not defaults[name]}
        return override(matmul, [a, b, bias, *listed(epilogue_args), out], a, b, **given)
    made = multiply(a, b, bias, epilogue, epilogue_args, row, out_dtype, precision, guarantee, out)
    return made if row is None or not classed([a, b, bias, *epilogue_args, out]) else rebuildable(made)


def _in_a_graph(
    a: Any, b: Any, bias: Any, epilogue: Any, extras: Sequence[Any], pair: Any, out_dtype: Any, *options: Any
) -> list[torch.Tensor]:
    """A product that torch.compile meets, as one operation. Its functions are traced with the rest of the graph."""
    precision, guarantee = options
    a, b, bias, precision = as_autocast(a, b, bias, precision)
    if is_function(epilogue):
        epilogue = inlined(epilogue, [None] * (1 + len(extras)), "the epilogue")
    ending = _ending(epilogue, len(extras))
    if pair is not None and pair[1] is not None:
        folded = projected(pair[0])
        pair = pair[0], _of_row(inlined(pair[1], [None] * (1 + folded), "a row's function"), folded)
    beside = [*([] if bias is None else [bias]), *extras]
    return recorded_product([a, b], beside, bias is not None, ending, pair, out_dtype, precision, guarantee)


@constant_in_graphs
def _is_transformed() -> bool:
    """Whether a transform of torch.func is on, as while a graph of it is made: that operation has no rules for these."""
    return torch._C._functorch.maybe_current_level() is not None


@constant_in_graphs
def _ending(epilogue: Any, extras: int) -> Traced | None:
    return traced_ending(function_of(epilogue), extras, None)[0]


@constant_in_graphs
def _of_row(apply: Inlined, folded: int) -> Traced:
    return traced_row(function_of(apply), folded)


def _is_named(epilogue: Any, extras: Any, row: Any, out_dtype: Any, out: Any) -> bool:
    """Whether a call can be an operation of a graph, whose arguments are tensors, names and numbers."""
    named = (epilogue is None or isinstance(epilogue, str)) and row is out_dtype is out is None
    return named and isinstance(extras, (tuple, list)) and len(extras) == 0
