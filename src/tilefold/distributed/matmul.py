"""`tilefold.distributed.matmul`: products of which ranks hold parts of K, their sum, and an epilogue after it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import torch
from torch import Tensor
from torch.compiler import is_dynamo_compiling

from tilefold.algebra.expression import trace
from tilefold.algebra.inlined import function_of as replayed
from tilefold.algebra.inlined import inlined
from tilefold.algebra.monoid import Monoid, monoid_of
from tilefold.api import dispatch
from tilefold.api.ends import function_of
from tilefold.api.gradients import converted
from tilefold.api.matmul import matmul as local_matmul
from tilefold.api.parts import Dtypes
from tilefold.api.recorded import asks_gradient, recorded_product
from tilefold.distributed.agreement import asks_gradients, check_ranks
from tilefold.distributed.exchange import Ranks, again, collective, gathered, process_group, ranks_of
from tilefold.distributed.gradient import check_order, check_tangents
from tilefold.distributed.reduce import fold_of_text, fold_shards
from tilefold.distributed.reduce_map import map_shards
from tilefold.errors import ArgumentError, ShapeError, is_function
from tilefold.planner.problem.validate import as_dtype, check_flags, check_guarantee
from tilefold.planner.products.cublas import cublas_setting
from tilefold.planner.products.epilogue import accumulator_dtype, make_epilogue
from tilefold.planner.products.operands import as_autocast, check_operands, expand_extras, result_shape
from tilefold.planner.products.row import check_row, projected, traced_apply
from tilefold.runtime.overrides import listed
from tilefold.runtime.uncompiled import constant_in_graphs

CALL = "distributed.matmul"


def matmul(
    a: Tensor, b: Tensor,
    *, bias: Tensor | None = None, epilogue: str | Callable[..., Any] | None = None, epilogue_args: Sequence[Tensor] = (),
    row: tuple[Monoid, Callable[..., Any] | None] | None = None, scatter: bool = False,
    out_dtype: torch.dtype | None = None, precision: str | None = None, group: Any = None, mesh: Any = None,
    guarantee: str = "run_to_run",
) -> Any:  # fmt: skip
    """Multiply matrices of which each rank of a group holds a part of K: `tilefold.matmul` of the parts side by side.

        result[.., m, n] = epilogue(sum over ranks r of sum over k of a_r[.., m, k] * b_r[.., k, n] + bias[n], *epilogue_args)

    Each rank multiplies its own parts, the accumulators are summed by the group's all-reduce (with `scatter` reduce-scatter),
    and the epilogue is computed once, of the sum. Nothing is rounded before it. Every rank must make the call.

    Args:
        a, b: this rank's parts [.., M, k] and [.., k, N], of k elements, which may be 0 and differ between ranks.
        bias, epilogue, epilogue_args, row, out_dtype, precision: as in `tilefold.matmul`; the same on every rank. The rows
            that are folded are those of the sum's epilogue, in one more read of it, and may have any number of columns.
        scatter: give this rank's rows alone, [.., M / ranks, N], of which `epilogue_args`, and a bias with rows, are then.
        group, mesh: as in `tilefold.distributed.reduce`.
        guarantee: "run_to_run", as far as the group's own sum repeats its bits, or "none".

    Returns:
        The product, the same on every rank; with `scatter` this rank's rows; with `row` it and the fold's results. In the
        dtype and error bound of `tilefold.matmul`, but for the sum over ranks in the accumulator's dtype.

        Gradients: of a result that every rank has, the cotangent must be the same on every rank; each rank gets that of its
        own parts. There is no second derivative.

    Raises:
        As `tilefold.matmul`; and
        ArgumentError: another guarantee is asked for; or, with TILEFOLD_CHECK_RANKS=1 in the environment, ranks disagree.
        ShapeError: `scatter` of rows that the number of ranks does not divide.

    Example:
        >>> tilefold.distributed.matmul(x_shard, w_shard, epilogue="relu", mesh=mesh["tp"])  # doctest: +SKIP
    """
    tensors = [a, b, *([] if bias is None else [bias]), *listed(epilogue_args)]
    key: Any = None
    is_named = row is None and (epilogue is None or type(epilogue) is str)
    if is_named and isinstance(a, Tensor) and not is_dynamo_compiling():
        rest = (bias is None, epilogue, scatter, out_dtype, precision, guarantee, cublas_setting(a.dtype))
        key, known = again(tensors, CALL, None, rest, 0, group, mesh)
        if known is not None:
            return known[0]
    check_flags(CALL, scatter=scatter)
    groups = [process_group(group, mesh, CALL)]

    def run(tensors: Sequence[Tensor]) -> list[Tensor]:
        return multiply_parts(
            a, b, bias, epilogue, epilogue_args, row, out_dtype, precision, guarantee, groups, scatter=scatter
        )

    made = dispatch.replayed(key if key and not asks_gradient(tensors) else None, run, tensors)
    return made[0] if row is None else (made[0], row[0].pack(made[1:]))


def multiply_parts(
    a: Tensor, b: Tensor, bias: Tensor | None, epilogue: Any, epilogue_args: Sequence[Tensor], row: Any,
    out_dtype: torch.dtype | None, precision: str | None, guarantee: str, groups: Sequence[Any],
    *, columns: Any = None, scatter: bool = False,
) -> list[Tensor]:  # fmt: skip
    """`matmul` of parts whose sums are those of each group in turn; scattered over the only one. Without packing.

    `columns` says, as calls of shards take it, which groups divide the rows that are folded.
    """
    check_guarantee(guarantee, CALL)
    row = check_row(row)
    if row is not None and b.ndim < 2:
        raise ShapeError(
            f"{CALL}: with `row` b must have columns, got shape {list(b.shape)}; fold one value with unsqueeze(-1)"
        )
    if groups and guarantee == "batch_invariant":
        raise ArgumentError(
            f"{CALL}: `guarantee` must be run_to_run or none, got batch_invariant; a group's sum follows from the size"
        )
    a, b, bias, precision = as_autocast(a, b, bias, precision)
    check_operands(a, b, bias, epilogue_args, True)
    dtype = as_dtype(out_dtype, CALL, name="out_dtype")
    every = [ranks_of(group, None, CALL) for group in groups]
    extras = [*([] if bias is None else [bias]), *epilogue_args]
    kinds = tuple([t.dtype for t in extras])
    folding = None if row is None else row[0].text
    apply: Any = None if row is None else row[1]
    if is_dynamo_compiling() and is_function(epilogue):
        epilogue = inlined(epilogue, [None] * (1 + len(epilogue_args)), "the epilogue")
    if row is not None and is_dynamo_compiling() and is_function(apply):
        apply = inlined(apply, [None] * (1 + projected(row[0])), "a row's function")
    function, value, result, applied = _ending(
        epilogue, bias is not None, kinds, a.dtype, dtype, folding, apply
    )
    shape = list(result_shape(a, b))
    if not is_dynamo_compiling():
        facts = {
            "shape": shape, "dtype": [a.dtype, *kinds], "epilogue": function, "scatter": scatter, "result dtype": result,
            "row": f"{folding} {applied and applied.text}", "guarantee": guarantee,
            "what requires grad": asks_gradients((a, b)),
        }  # fmt: skip
        check_ranks(facts, groups, CALL)
    if scatter:
        size = every[0].size
        if a.ndim < 2 or b.ndim < 2 or shape[-2] % size:
            raise ShapeError(
                f"{CALL}: rows must be a multiple of {size}, the number of ranks, where they are scattered, got the "
                f"result {shape}; pad them"
            )
        shape[-2] //= size
    if every:
        check_tangents([a, b, *extras], CALL)
    total = _product(a, b, precision, guarantee)
    for ranks in every:
        if asks_gradient([total]):
            total = _Sum.apply(total, ranks, scatter)  # type: ignore[no-untyped-call]  # torch's own
        else:  # accumulators are this call's own
            (total,) = dispatch.noted(partial(_summed, ranks, scatter, not is_dynamo_compiling()), total)
    if function:
        names = ["`bias`"] * (bias is not None) + [f"`epilogue_args[{i}]`" for i in range(len(epilogue_args))]
        given = [total, *expand_extras(extras, tuple(shape), names)]
        kept = result if row is None else value
        asked = kept if kept.is_floating_point else None
        (total,) = fold_of_text(given, function, (), False, asked, None, guarantee)
    if row is None:
        return [converted(total, result)]
    form: dict[str, Any] = {"sharded_dim": None, "guarantee": guarantee, "call": CALL} | (columns or {})
    if apply is None:
        folded = fold_shards([total], row[0], -1, False, **form)
    else:
        total, *folded = map_shards([total], row[0], applied, -1, **form)
        folded = [t.squeeze(-1) for t in folded]
    return [total if total.dtype == result else total.to(result), *folded]


def _product(a: Tensor, b: Tensor, precision: str | None, guarantee: str) -> Tensor:
    """The accumulators of this rank's parts."""
    wide = accumulator_dtype(a.dtype)
    if is_dynamo_compiling():
        return recorded_product([a, b], [], False, None, None, wide, precision, guarantee)[0]
    made: Tensor = local_matmul(a, b, out_dtype=wide, precision=precision, guarantee=guarantee)
    return made


@constant_in_graphs
def _ending(
    epilogue: Any, has_bias: bool, extras: Dtypes, operand: torch.dtype, dtype: torch.dtype | None, folding: str | None,
    apply: Any,
) -> tuple[str, torch.dtype, torch.dtype, Any]:  # fmt: skip
    """What is made of the sum, as text that is empty where it is the sum; its dtype, and the result's; and what is made of it
    and of its row's fold, with the fold's results."""
    epilogue, apply = replayed(epilogue), replayed(apply)  # as torch.compile traced them
    row = None if folding is None else (monoid_of(folding), apply)
    bias = extras[0] if has_bias else None
    made = make_epilogue(epilogue, bias, extras[has_bias:], operand, dtype, row)
    applied = None
    if row is not None and apply is not None:
        n = projected(row[0])
        applied = traced_apply(*row).but(rows=trace(lambda *v: v, n))
    function = "" if made.plain else function_of(made.typed.graph).text
    return function, made.value, made.result, applied


def _summed(ranks: Ranks, scatter: bool, in_place: bool, t: Tensor) -> list[Tensor]:
    """The sum of all ranks' tensors, or this rank's rows of it."""
    if not scatter:
        return [collective("all_reduce_" if in_place else "all_reduce", t, "sum", ranks.name)]
    rows = t.movedim(-2, 0).contiguous()
    made = collective("reduce_scatter_tensor", rows, "sum", ranks.size, ranks.name)
    return [made.movedim(0, -2).contiguous()]


class _Sum(torch.autograd.Function):
    """What autograd sees of it."""

    @staticmethod
    def forward(ctx: Any, t: Tensor, ranks: Ranks, scatter: bool) -> Tensor:
        ctx.ranks, ctx.scatter = ranks, scatter
        return _summed(ranks, scatter, False, t)[0]

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> Any:
        check_order(CALL, "product")
        if not ctx.scatter:
            return g, None, None
        ranks, rows = ctx.ranks, g.movedim(-2, 0).contiguous()
        every = gathered(rows, ranks)
        return every.movedim(0, -2).contiguous(), None, None
