"""Softmax and norms of sharded rows: `reduce_map` with the functions of tilefold of the same names.

They take `sharded_dim`, `group`, `mesh` and `guarantee` as `tilefold.distributed.reduce_map` does, and the rest as the
function of tilefold of the same name, whose dtypes, formulas and errors they have. Results, and the gradients that autograd
asks for, are those of this rank's part; a softmax exchanges 8 bytes a row (a maximum and a sum), `layer_norm` 20,
`rms_norm` 12, of float64 twice as many; a backward 4 bytes a row for each sum of its formula.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor
from typing_extensions import Unpack  # torch depends on it

from tilefold.distributed.named import Shards, check_names
from tilefold.distributed.reduce_map import map_shards
from tilefold.functional.arguments import need_float
from tilefold.functional.normalized import Result, checked_shares, norm_of, shares, with_sum


def softmax(
    input: Tensor, dim: int | Sequence[int], dtype: torch.dtype | None = None, **shards: Unpack[Shards]
) -> Tensor:
    """Exponentials as shares of the sum of all ranks'."""
    return _softmax("distributed.softmax", input, dim, dtype, shards)


def log_softmax(
    input: Tensor, dim: int | Sequence[int], dtype: torch.dtype | None = None, **shards: Unpack[Shards]
) -> Tensor:
    """Logarithm of `softmax`."""
    return _softmax("distributed.log_softmax", input, dim, dtype, shards)


def _softmax(
    call: str, x: Tensor, dim: int | Sequence[int], dtype: torch.dtype | None, shards: Shards
) -> Tensor:
    check_names(call, shards)
    dims, dtype = checked_shares(call, x, dim, dtype)
    need_float(dtype or x.dtype, call)
    monoid, apply = shares(call.endswith("log_softmax"))
    return map_shards([x], monoid, apply, dims, convert=dtype, call=call, **shards)[0]


def layer_norm(
    input: Tensor, normalized_shape: Sequence[int], weight: Tensor | None = None, bias: Tensor | None = None,
    eps: float = 1e-5, *, residual: Tensor | None = None, **shards: Unpack[Shards],
) -> Result:  # fmt: skip
    """Elements about their row's mean, by its standard deviation. `normalized_shape` and weights are of this rank's part."""
    return _norm("distributed.layer_norm", input, normalized_shape, weight, bias, eps, residual, shards)


def rms_norm(
    input: Tensor, normalized_shape: Sequence[int], weight: Tensor | None = None, eps: float | None = None,
    *, residual: Tensor | None = None, **shards: Unpack[Shards],
) -> Result:  # fmt: skip
    """Elements by the root of their row's mean square. `normalized_shape` and weight are of this rank's part."""
    return _norm("distributed.rms_norm", input, normalized_shape, weight, None, eps, residual, shards)


def _norm(
    call: str, x: Tensor, normalized_shape: Sequence[int], weight: Tensor | None, bias: Tensor | None, eps: float | None,
    residual: Tensor | None, shards: Shards,
) -> Result:  # fmt: skip
    check_names(call, shards)
    norm = norm_of(call, x, normalized_shape, weight, bias, eps, residual, counts=True)
    made = map_shards(
        norm.tensors,
        norm.monoid,
        norm.apply,
        norm.dims,
        extras=norm.extras,
        call=call,
        names=norm.names,
        **shards,
    )
    return with_sum(made, x, residual, None)
