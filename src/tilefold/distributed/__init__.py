"""Folds of tensors that are spread over the ranks of torch.distributed: states are exchanged, never elements.

    reduce      any monoid; `sum`, `mean`, `argmax` and other usual folds are it with a monoid of the catalogue
    scan        every prefix
    reduce_map  a function of every element and of its row's fold; `softmax`, `log_softmax`, `layer_norm`, `rms_norm`
    segment_reduce  segments that may cross ranks
    topk        the best elements of all shards, with positions in the whole tensor
    matmul      of operands whose K is spread, with an epilogue after the sum
    cross_entropy   of logits whose classes are spread
    partial_reduce  DTensors of states, placed as `Partial(monoid)`, whose exchange waits for `redistribute`

`dtensors` answers plain calls of DTensors: `tilefold.softmax(x, 1)`.

`api.parts` makes two monoids of one: that of a shard's states, and that of their fold. `exchange` gathers states, `gradient`
is a shard's own backward, `agreement` compares what ranks ask for.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from tilefold.distributed import dtensors as dtensors
from tilefold.distributed.losses import cross_entropy as cross_entropy
from tilefold.distributed.matmul import matmul as matmul
from tilefold.distributed.named import amax as amax
from tilefold.distributed.named import amin as amin
from tilefold.distributed.named import argmax as argmax
from tilefold.distributed.named import argmin as argmin
from tilefold.distributed.named import logsumexp as logsumexp
from tilefold.distributed.named import mean as mean
from tilefold.distributed.named import prod as prod
from tilefold.distributed.named import std as std
from tilefold.distributed.named import sum as sum
from tilefold.distributed.named import var as var
from tilefold.distributed.named import vector_norm as vector_norm
from tilefold.distributed.reduce import reduce as reduce
from tilefold.distributed.reduce_map import reduce_map as reduce_map
from tilefold.distributed.rows import layer_norm as layer_norm
from tilefold.distributed.rows import log_softmax as log_softmax
from tilefold.distributed.rows import rms_norm as rms_norm
from tilefold.distributed.rows import softmax as softmax
from tilefold.distributed.scan import scan as scan
from tilefold.distributed.segments import segment_reduce as segment_reduce
from tilefold.distributed.topk import topk as topk

if TYPE_CHECKING:
    from tilefold.distributed.partial import Partial as Partial
    from tilefold.distributed.partial import partial_reduce as partial_reduce
    from tilefold.distributed.partial import project as project

__all__ = [
    "Partial", "amax", "amin", "argmax", "argmin", "cross_entropy", "layer_norm", "log_softmax", "logsumexp", "matmul",
    "mean", "partial_reduce", "prod", "project", "reduce", "reduce_map", "rms_norm", "scan", "segment_reduce", "softmax",
    "std", "sum", "topk", "var", "vector_norm",
]  # fmt: skip


def __getattr__(name: str) -> Any:
    """What is made of DTensor's own classes, which take half a second to import."""
    if name in ("Partial", "partial_reduce", "project"):
        return getattr(import_module("tilefold.distributed.partial"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
