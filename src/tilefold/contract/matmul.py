"""`matmul`: validate, trace the epilogue, plan, run."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch

from tilefold.contract.epilogue import Epilogue, make_epilogue
from tilefold.contract.operands import check_operands, check_precision, expand_extras, result_shape
from tilefold.contract.plan import ContractPlan
from tilefold.errors import ArgumentError, BackendError
from tilefold.fold import forced_backend, remember_plan
from tilefold.validate import as_dtype, check_guarantee, check_out, is_abstract


def matmul(
    a: torch.Tensor,
    b: torch.Tensor,
    *,
    bias: torch.Tensor | None = None,
    epilogue: str | Callable[..., Any] | None = None,
    epilogue_args: Sequence[torch.Tensor] = (),
    out_dtype: torch.dtype | None = None,
    precision: str | None = None,
    guarantee: str = "run_to_run",
    out: torch.Tensor | None = None,
) -> torch.Tensor:
    """Multiply matrices, and finish each result in the store that makes it final.

        result[.., m, n] = epilogue(sum over k of a[.., m, k] * b[.., k, n] + bias[n], *epilogue_args[.., m, n])

    Args:
        a: [.., M, K], or a vector [K]; float16, bfloat16, float32, float64, float8 (e4m3fn, e5m2) or int8.
        b: [K, N] or [.., K, N], or a vector [K], of a's dtype. Any strides of both are read in place on a GPU (a CPU's
            product may make temporaries), and any M, N and K: K = 0 leaves zeros to the epilogue.
        bias: a tensor that broadcasts to the result, [N] as a rule, added to the accumulator.
        epilogue: "relu", "gelu" (by erf), "silu", "sigmoid", "tanh", or a function of the accumulator and one element of each
            of `epilogue_args`, written with tilefold.math and traced once: for a residual, a scale of each column, or the
            scales of float8.
        epilogue_args: tensors that broadcast to the result's shape, of any real dtype and strides.
        out_dtype: the result's dtype; by default the operands' for floats, int32 for int8 (float32 where the epilogue makes
            fractions of it).
        precision: of float32 products: "ieee" (the default; true float32) or "tf32" (rounds operands to 11 bits where the
            chip has such products; elsewhere more exact).
        guarantee: "run_to_run": the same bits for the same inputs, layout, chip and versions. "batch_invariant": besides, a
            row's bits depend on no other row and not on M: the plan follows from K, N and the dtype. "none": neither.
        out: a tensor to write the result into, of its shape and dtype.

    Returns:
        A contiguous tensor in torch.matmul's shape. Products are summed in float32 (float64 of float64; int32 of int8, exact
        while sums fit, as they do up to K = 131072) in an order that the plan fixes, and rounded once, after the epilogue.
        Before that, |error| <= gamma_K * (|a| @ |b|), with gamma_K = K u / (1 - K u) and u = 2^-23, since tensor cores
        truncate (2^-53 of float64; with "tf32" 2^-10 * (|a| @ |b|) more).

    Raises:
        ArgumentError, ArityError, DeviceError, DtypeError, KindError, ShapeError, TraceError: the call does not fit.
        BackendError: the backend in force multiplies nothing.
        GradientError: an input requires grad outside `torch.no_grad()`: products have no derivative yet.

    Example:
        >>> a, b = torch.tensor([[1.0, 2.0]]), torch.tensor([[3.0, -1.0], [1.0, -1.0]])
        >>> tilefold.matmul(a, b, epilogue="relu")
        tensor([[5., 0.]])
        >>> tilefold.matmul(a, b, epilogue=lambda x, residual: 2 * x + residual, epilogue_args=(torch.ones(2),))
        tensor([[11., -5.]])

    Source: splitting K into partial products that a second stage sums and finishes is known as Decompose-K.
    """
    check_operands(a, b, bias, epilogue_args)
    check_guarantee(guarantee, "matmul")
    if epilogue is None and epilogue_args:
        raise ArgumentError(
            f"matmul: `epilogue_args` must come with an epilogue that takes them, got {len(epilogue_args)} and none; "
            "give a function of the accumulator and their elements"
        )
    chosen_precision = check_precision(precision, a.dtype)
    dtype = as_dtype(out_dtype, "matmul", name="out_dtype")
    ending = make_epilogue(
        epilogue, None if bias is None else bias.dtype, tuple(e.dtype for e in epilogue_args), a.dtype, dtype
    )
    shape = result_shape(a, b)
    names = [
        *(["`bias`"] * (bias is not None)),
        *(f"`epilogue_args[{i}]`" for i in range(len(epilogue_args))),
    ]
    extras = expand_extras([*([] if bias is None else [bias]), *epilogue_args], shape, names)
    inputs = [a, b, *extras]
    targets = check_out(out, [ending.result], shape, inputs, "matmul")
    if any(is_abstract(t) for t in inputs):
        result = torch.empty(shape, dtype=ending.result, device=a.device)
        return result if targets is None else targets[0]
    left, right, *others = (t.resolve_neg() for t in inputs)
    result = _run(left, right, others, ending, chosen_precision, guarantee, shape)
    return result if targets is None else targets[0].copy_(result)


def _run(
    a: torch.Tensor,
    b: torch.Tensor,
    extras: Sequence[torch.Tensor],
    epilogue: Epilogue,
    precision: str,
    guarantee: str,
    shape: Sequence[int],
) -> torch.Tensor:
    """Choose the backend and run. On a GPU nothing else stands in for Triton and cuBLAS."""
    chosen = forced_backend()
    if chosen in ("triton", "interpret") or (chosen == "auto" and a.is_cuda):
        from tilefold.backends.triton import products

        run = products.interpret if chosen == "interpret" else products.multiply
        result, plan = run(a, b, extras, epilogue, precision, guarantee, shape)
        remember_plan(plan)
        return result
    if chosen not in ("auto", "torch"):
        raise BackendError(
            f'matmul: the backend must be "auto", "torch", "triton" or "interpret", got {chosen!r}; products have no other'
        )
    from tilefold.backends import products as torch_products

    reason = "each row by itself" if guarantee == "batch_invariant" else "then the epilogue"
    remember_plan(ContractPlan("torch", "torch.matmul", guarantee=guarantee, reason=reason))
    return torch_products.multiply(a, b, extras, epilogue, guarantee, shape)
