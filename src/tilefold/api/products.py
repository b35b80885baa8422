"""Products of plain tensors: validate, trace the epilogue, make a request, dispatch."""

from __future__ import annotations

import weakref
from collections.abc import Sequence
from typing import Any

import torch

from tilefold.api import dispatch
from tilefold.api.recorded import (
    DIFFERENTIATED,
    is_differentiated,
    is_plainly_differentiated,
    recorded_product,
)
from tilefold.api.requests import Product
from tilefold.errors import ArgumentError
from tilefold.planner.plan import Plan
from tilefold.planner.problem.validate import as_dtype, check_guarantee, check_out, is_abstract
from tilefold.planner.products.cublas import cublas_setting
from tilefold.planner.products.epilogue import make_epilogue, traced_ending
from tilefold.planner.products.operands import (
    as_autocast,
    check_operands,
    check_precision,
    check_row_fits,
    expand_extras,
    result_shape,
)
from tilefold.runtime.modes import check_not_recorded, is_seen
from tilefold.runtime.overrides import listed
from tilefold.runtime.switch import layout
from tilefold.runtime.uncompiled import uncompiled

_PLAIN = frozenset((torch.Tensor, torch.nn.Parameter))


@uncompiled
def multiply(
    a: torch.Tensor, b: torch.Tensor, bias: Any, epilogue: Any, epilogue_args: Any, row: Any, *options: Any
) -> Any:
    """`matmul` of plain tensors, not recorded: validate, trace the epilogue, make a request, dispatch. Arguments as of
    `multiplied`."""
    if row is not None or not (epilogue is None or type(epilogue) is str):
        epilogue, row = _run_once(epilogue, epilogue_args, row)
    made = multiplied(a, b, bias, epilogue, epilogue_args, row, *options)
    return made[0] if row is None else (made[0], row[0].pack(made[1:]))


def multiplied(
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
) -> list[torch.Tensor]:
    """`multiply`, whose functions have been run, without packing: the result, then those of a row's fold."""
    if out is None and torch._C._is_any_autocast_enabled():
        a, b, bias, precision = as_autocast(a, b, bias, precision)
    key = None
    if out is None and type(a) in _PLAIN:
        key = _key(a, b, bias, epilogue_args, epilogue, row, out_dtype, precision, guarantee)
        extras = () if key is None else (*(() if bias is None else (bias,)), *epilogue_args)
        if (made := dispatch.repeated(key, a, b, *extras)) is not None:
            return made
    every = [t for t in (a, b, bias, *listed(epilogue_args)) if isinstance(t, torch.Tensor)]
    if out is None and is_seen(every):
        return _recorded(a, b, bias, epilogue, epilogue_args, row, out_dtype, precision, guarantee)
    request, inputs = _checked(
        a, b, bias, epilogue, epilogue_args, row, out_dtype, precision, guarantee, out is None
    )
    if out is None and is_differentiated(every):
        options = (out_dtype, precision, guarantee)
        if not is_plainly_differentiated(every):
            return _recorded(a, b, bias, epilogue, epilogue_args, row, *options)
        ending, pair = traced_ending(epilogue, len(epilogue_args), row)
        return DIFFERENTIATED["product"](a, b, bias, ending, epilogue_args, pair, *options, key)
    check_not_recorded("matmul", a.is_cuda)
    check_row_fits(None if row is None else row[0], b, request.shape, out, guarantee)
    targets = check_out(out, [request.ending.result], request.shape, inputs, "matmul")
    if any(is_abstract(t) for t in inputs):
        return _abstract(request, inputs) if targets is None else list(targets)
    # A view that negates has no memory of its own values.
    return dispatch.run(request, [t.resolve_neg() if t.is_neg() else t for t in inputs], key, targets)


def _recorded(
    a: torch.Tensor, b: torch.Tensor, bias: Any, epilogue: Any, epilogue_args: Any, row: Any, *options: Any
) -> list[torch.Tensor]:
    """The product as one operation."""
    function, pair = traced_ending(epilogue, len(epilogue_args), row)
    extras = [*([] if bias is None else [bias]), *epilogue_args]
    return recorded_product([a, b], extras, bias is not None, function, pair, *options)


def _run_once(epilogue: Any, epilogue_args: Any, row: Any) -> tuple[Any, Any]:
    """Run a call's functions: their graphs are the key of everything kept. The checks report errors later."""
    if not isinstance(epilogue_args, tuple | list):
        return epilogue, row
    return traced_ending(epilogue, len(epilogue_args), row)


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
    differentiable: bool = False,
) -> tuple[Product, list[torch.Tensor]]:
    """A call that may run, and its inputs: extra tensors in the result's shape."""
    check_operands(a, b, bias, epilogue_args, differentiable)
    check_guarantee(guarantee, "matmul")
    if epilogue is None and epilogue_args:
        raise ArgumentError(
            f"matmul: `epilogue_args` must come with an epilogue that takes them, got {len(epilogue_args)} and none; "
            "give a function of the accumulator and their elements"
        )
    chosen_precision = check_precision(precision, a.dtype)
    dtype = as_dtype(out_dtype, "matmul", name="out_dtype")
    extra_dtypes = tuple(e.dtype for e in epilogue_args)
    ending = make_epilogue(epilogue, None if bias is None else bias.dtype, extra_dtypes, a.dtype, dtype, row)
    shape = result_shape(a, b)
    names = ["`bias`"] * (bias is not None) + [f"`epilogue_args[{i}]`" for i in range(len(epilogue_args))]
    extras = expand_extras([*([] if bias is None else [bias]), *epilogue_args], shape, names)
    return Product(ending, chosen_precision, guarantee, tuple(shape)), [a, b, *extras]


def explain_product(a: torch.Tensor, b: torch.Tensor, **options: Any) -> Plan:
    """`explain_plan` of a product, with the options of `product_request`."""
    return dispatch.plan_for(*product_request(a, b, **options))


def product_request(
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
    out: torch.Tensor | None = None,
) -> tuple[Product, list[torch.Tensor]]:
    """What a product asks for, and its tensors; `out` changes what torch.autocast converts, and nothing else."""
    if out is None:
        a, b, bias, precision = as_autocast(a, b, bias, precision)
    request, inputs = _checked(a, b, bias, epilogue, epilogue_args, row, out_dtype, precision, guarantee)
    check_row_fits(None if row is None else row[0], b, request.shape, None, guarantee)
    return request, [t.resolve_neg() if t.is_neg() else t for t in inputs]


def _abstract(request: Product, inputs: Sequence[torch.Tensor]) -> list[torch.Tensor]:
    """Results without data, of the kind of an input that has none."""
    like = next(t for t in inputs if is_abstract(t))
    return [like.new_empty(shape, dtype=dtype) for shape, dtype in request.results]


def _key(
    a: torch.Tensor, b: Any, bias: Any, extras: Any, epilogue: Any, row: Any, *options: Any
) -> tuple[Any, ...] | None:
    """The key of a plain call; None where the call must be checked every time.

    The key holds no function (they have been run) and no monoid.
    """
    if not isinstance(extras, tuple | list):
        return None
    layouts = [layout(t, True) for t in (a, b, *(() if bias is None else (bias,)), *extras)]
    if None in layouts:
        return None
    folding = None if row is None else (weakref.ref(row[0]), row[1])
    return (*layouts, bias is None, epilogue, folding, cublas_setting(a.dtype), *options)
