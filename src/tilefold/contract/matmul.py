"""`matmul`: validate, trace the epilogue, plan, run."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch.autograd import forward_ad

from tilefold.algebra.monoid import Monoid
from tilefold.contract.choose import plan_tensors
from tilefold.contract.cublas import cublas_setting
from tilefold.contract.epilogue import Epilogue, make_epilogue
from tilefold.contract.operands import (
    check_operands,
    check_precision,
    check_row_fits,
    expand_extras,
    result_shape,
)
from tilefold.contract.plan import ContractPlan, nothing
from tilefold.contract.row import check_row
from tilefold.errors import ArgumentError, BackendError
from tilefold.fold import forced_backend, kept, remember_plan
from tilefold.modes import as_given, check_not_recorded, is_recorded
from tilefold.planner.device import Device
from tilefold.uncompiled import uncompiled
from tilefold.validate import as_dtype, check_guarantee, check_out, is_abstract


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
        a: [.., M, K], or a vector [K]; float16, bfloat16, float32, float64, float8 (e4m3fn, e5m2) or int8.
        b: [K, N] or [.., K, N], or a vector [K], of a's dtype. Any strides of both are read in place on a GPU (a CPU's
            product may make temporaries), and any M, N and K: K = 0 leaves zeros to the epilogue.
        bias: a tensor that broadcasts to the result, [N] as a rule, added to the accumulator.
        epilogue: "relu", "gelu" (by erf), "silu", "sigmoid", "tanh", or a function of the accumulator and one element of each
            of `epilogue_args`, written with tilefold.math and traced once: for a residual, a scale of each column, or the
            scales of float8.
        epilogue_args: tensors that broadcast to the result's shape, of any real dtype and strides.
        row: a pair (monoid, apply): each row of values is folded too, in the same store: `(MAX_WITH_INDEX, None)` for a
            router's choice, `(LOGSUMEXP, lambda x, total: exp(x - total))` for softmax. `apply` is traced as the epilogue is;
            None stores the values. The fold sees them before they are rounded to the result's dtype. Rows have at most
            16384 columns, which one program holds, or 1024 where order matters to the monoid or "batch_invariant" is asked
            for; tilefold.reduce folds longer ones.
        out_dtype: the result's dtype; by default the operands' for floats, int32 for int8 (float32 where the epilogue makes
            fractions of it).
        precision: of float32 products: "ieee" (the default; true float32) or "tf32" (rounds operands to 11 bits where the
            chip has such products; elsewhere more exact).
        guarantee: "run_to_run": the same bits for the same inputs, layout, chip and versions. "batch_invariant": besides, a
            row's bits depend on no other row and not on M: the plan follows from K, N and the dtype. "none": neither.
        out: a tensor to write the result into, of its shape and dtype.

    Returns:
        A contiguous tensor in torch.matmul's shape; with `row` that and what the fold gives, in the shape without the last
        dim (floats in the accumulator's dtype, not rounded to the result's). Products are summed in float32 (float64 of
        float64; int32 of int8, exact while sums fit, as they do up to K = 131072) in an order that the plan fixes, and
        rounded once, after the epilogue. Before that, |error| <= gamma_K * (|a| @ |b|), with gamma_K = K u / (1 - K u) and
        u = 2^-23, since tensor cores truncate (2^-53 of float64; with "tf32" 2^-10 * (|a| @ |b|) more, of float8 on a GPU
        2^-13 * (|a| @ |b|) more: its tensor cores keep 14 bits of the sum of an instruction's products).

    Raises:
        ArgumentError, ArityError, DeviceError, DtypeError, KindError, ShapeError, TraceError: the call does not fit.
        BackendError: the backend in force multiplies nothing.
        EmptyError: rows have no columns and their monoid has no identity.
        GradientError: an input requires grad outside `torch.no_grad()`: products have no derivative yet.

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
    if torch.compiler.is_dynamo_compiling() or is_recorded():
        plain = _is_named(epilogue, epilogue_args, row, out_dtype, out)
        if plain and not (torch.is_grad_enabled() and any(_needs_gradient(t) for t in (a, b, bias))):
            from tilefold import inductor  # graphs hold one operation, which Inductor may replace

            return inductor.matmul(a, b, bias, epilogue, precision, guarantee)  # type: ignore[arg-type]  # a name, or None
    return _multiply(a, b, bias, epilogue, epilogue_args, row, out_dtype, precision, guarantee, out)


@uncompiled
def _multiply(
    a: torch.Tensor,
    b: torch.Tensor,
    bias: torch.Tensor | None,
    epilogue: Any,
    epilogue_args: Sequence[torch.Tensor],
    row: Any,
    out_dtype: torch.dtype | None,
    precision: str | None,
    guarantee: str,
    out: torch.Tensor | None,
) -> Any:
    key, ready = None, None
    if out is None and type(a) is torch.Tensor and a.is_cuda:
        key = _key(a, b, bias, epilogue_args, epilogue, row, out_dtype, precision, guarantee)
        ready = _ready.get(key) if key is not None and forced_backend() == "auto" else None
    if ready is not None:
        remember_plan(ready.plan)
        return ready(a, b, *(() if bias is None else (bias,)), *epilogue_args)
    call = _checked(a, b, bias, epilogue, epilogue_args, row, out_dtype, precision, guarantee)
    check_not_recorded("matmul")
    check_row_fits(call.ending.row, a, b, call.shape, out, guarantee)
    targets = check_out(out, [call.ending.result], call.shape, call.inputs, "matmul")
    target = None if targets is None else targets[0]
    if any(is_abstract(t) for t in call.inputs):
        return _abstract(call.ending, call.shape, a.device) if target is None else target
    result = _run(call, guarantee, key, target)
    return result if target is None or result is target else target.copy_(result)


def _needs_gradient(t: torch.Tensor | None) -> bool:
    return t is not None and t.requires_grad


def _is_named(epilogue: Any, extras: Any, row: Any, out_dtype: Any, out: Any) -> bool:
    """Whether a call can be an operation of a graph, whose arguments are tensors, names and numbers."""
    return (epilogue is None or isinstance(epilogue, str)) and not extras and row is out_dtype is out is None


@dataclass(frozen=True)
class _Call:
    """A call that may run: its inputs (extra tensors in the result's shape), what happens to a result, that shape."""

    inputs: list[torch.Tensor]
    ending: Epilogue
    precision: str
    shape: list[int]

    def tensors(self) -> tuple[torch.Tensor, torch.Tensor, list[torch.Tensor]]:
        """a, b and the extra tensors, none of them a view that negates."""
        a, b, *extras = (t.resolve_neg() for t in self.inputs)
        return a, b, extras


def _checked(
    a: Any,
    b: Any,
    bias: Any,
    epilogue: Any,
    epilogue_args: Any,
    row: Any,
    out_dtype: Any,
    precision: Any,
    guarantee: str,
) -> _Call:
    check_operands(a, b, bias, epilogue_args)
    check_guarantee(guarantee, "matmul")
    if epilogue is None and epilogue_args:
        raise ArgumentError(
            f"matmul: `epilogue_args` must come with an epilogue that takes them, got {len(epilogue_args)} and none; "
            "give a function of the accumulator and their elements"
        )
    chosen_precision = check_precision(precision, a.dtype)
    dtype, pair = as_dtype(out_dtype, "matmul", name="out_dtype"), check_row(row)
    extra_dtypes = tuple(e.dtype for e in epilogue_args)
    ending = make_epilogue(epilogue, None if bias is None else bias.dtype, extra_dtypes, a.dtype, dtype, pair)
    shape = result_shape(a, b)
    names = ["`bias`"] * (bias is not None) + [f"`epilogue_args[{i}]`" for i in range(len(epilogue_args))]
    extras = expand_extras([*([] if bias is None else [bias]), *epilogue_args], shape, names)
    return _Call([a, b, *extras], ending, chosen_precision, shape)


def explain_product(
    a: torch.Tensor,
    b: torch.Tensor,
    *,
    bias: torch.Tensor | None = None,
    epilogue: Any = None,
    epilogue_args: Sequence[torch.Tensor] = (),
    row: Any = None,
    out_dtype: torch.dtype | None = None,
    precision: str | None = None,
    guarantee: str = "run_to_run",
    device: Device | None = None,
) -> ContractPlan:
    """`explain_plan` of a product."""
    call = _checked(a, b, bias, epilogue, epilogue_args, row, out_dtype, precision, guarantee)
    check_row_fits(call.ending.row, a, b, call.shape, None, guarantee)
    if 0 in call.shape:
        return nothing(guarantee)
    _, _, extras = call.tensors()
    return plan_tensors(a, b, extras, call.ending, call.precision, guarantee, device)


def _abstract(ending: Epilogue, shape: Sequence[int], device: torch.device) -> Any:
    """Results without data."""
    result = torch.empty(shape, dtype=ending.result, device=device)
    if ending.row is None:
        return result
    outputs = ending.row.program.outputs
    return result, ending.row.monoid.pack([torch.empty(shape[:-1], dtype=d, device=device) for d in outputs])


# Compiled products of repeated GPU calls, by all that a plan and its code depend on.
_ready: dict[Any, Any] = {}


def _key(
    a: torch.Tensor, b: Any, bias: Any, extras: Any, epilogue: Any, *options: Any
) -> tuple[Any, ...] | None:
    """What a plain call on a GPU is known by; None where its tensors must be checked every time."""
    if not isinstance(extras, tuple | list):
        return None
    tensors = (a, b, *(() if bias is None else (bias,)), *extras)
    if (
        forward_ad._current_level >= 0
        or torch._C._len_torch_dispatch_stack()
        or any(type(t) is not torch.Tensor or t.is_neg() for t in tensors)
    ):
        return None
    if torch.is_grad_enabled() and any(t.requires_grad for t in tensors):
        return None
    try:
        layouts = tuple((t.shape, t.stride(), t.dtype, t.data_ptr() & 15, t.device) for t in tensors)
        key = (layouts, bias is None, epilogue, cublas_setting(a.dtype), *options)
        hash(key)
    except (
        RuntimeError,
        TypeError,
    ):  # nested, sparse or mapped; an epilogue that cannot be kept: the checks say so
        return None
    return key


def _run(call: _Call, guarantee: str, key: Any, target: torch.Tensor | None) -> Any:
    """Choose the backend and run. On a GPU nothing else stands in for Triton and cuBLAS."""
    (a, b, extras), chosen = call.tensors(), forced_backend()
    options = (call.ending, call.precision, guarantee, call.shape)
    if chosen in ("triton", "interpret") or (chosen == "auto" and a.is_cuda):
        from tilefold.backends.triton import products

        if chosen == "interpret":
            result, folded, plan = products.interpret(a, b, extras, *options)
            remember_plan(plan)
            return _packed(result, folded, call.ending)
        ready = kept(_ready, key, lambda: products.prepare(a, b, extras, *options))
        remember_plan(ready.plan)
        # a kernel writes into a target of its own layout at once; others are copied to
        direct = target is not None and target.is_contiguous() and target.data_ptr() % 16 == 0
        return ready(a, b, *extras, out=target if direct else None)
    if chosen not in ("auto", "torch"):
        raise BackendError(
            f'matmul: the backend must be "auto", "torch", "triton" or "interpret", got {chosen!r}; products have no other'
        )
    from tilefold.backends import products as torch_products

    reason = "each row by itself" if guarantee == "batch_invariant" else "then the epilogue"
    remember_plan(ContractPlan("torch", "torch.matmul", guarantee=guarantee, reason=reason))
    with as_given(a.device):
        result, folded = torch_products.multiply(a, b, extras, call.ending, guarantee, call.shape)
    return _packed(result, folded, call.ending)


def _packed(result: torch.Tensor, folded: Sequence[torch.Tensor], epilogue: Epilogue) -> Any:
    return result if epilogue.row is None else (result, epilogue.row.monoid.pack(folded))
