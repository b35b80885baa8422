"""Graphs of tensors whose length their elements decide (`x[x > 0]`): whole, forwards and backwards, for any length."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

import tilefold
from tilefold import monoids

Tensor = torch.Tensor
X = torch.randn(30, 8, dtype=torch.float64, generator=torch.Generator().manual_seed(46))
OFFSETS = torch.tensor([0, 3, 8])
CALLS: dict[str, Callable[[Tensor], Any]] = {
    "sum": lambda x: tilefold.sum(x, 0),
    "mean": lambda x: tilefold.mean(x, 1),
    "logsumexp": lambda x: tilefold.logsumexp(x, 1),
    "amax": lambda x: tilefold.amax(x, 1),
    "max": lambda x: tilefold.max(x, 1).values,
    "argmax": lambda x: tilefold.argmax(x, 1),
    "vector_norm": lambda x: tilefold.vector_norm(x, 2, 0),
    "softmax": lambda x: tilefold.softmax(x, 0),
    "layer_norm": lambda x: tilefold.layer_norm(x, (8,)),
    "group_norm": lambda x: tilefold.group_norm(x, 2),
    "cumsum": lambda x: tilefold.cumsum(x, 0),
    "topk": lambda x: tilefold.topk(x, 2, 1)[0],
    "scan": lambda x: tilefold.scan(x, monoids.LOGSUMEXP, 1),
    "reduce_map": lambda x: tilefold.reduce_map(x, monoids.SUM, lambda v, total: v / total, dim=1),
    "segment_reduce": lambda x: tilefold.segment_reduce(x, monoids.SUM, OFFSETS, dim=1),
    "matmul": lambda x: tilefold.matmul(x, X[:8, :5]),
}


@pytest.mark.parametrize("name", CALLS)
def test_one_graph_serves_every_length(name: str) -> None:
    call = CALLS[name]
    torch._dynamo.reset()
    with torch._dynamo.config.patch(capture_dynamic_output_shape_ops=True, error_on_recompile=True):
        compiled = torch.compile(lambda x, kept: call(x[kept]), backend="aot_eager", fullgraph=True)
        for count in (17, 30, 2, 1, 0):
            kept, slopes = torch.arange(30) < count, []
            for function in (compiled, lambda x, kept: call(x[kept])):
                x = X.clone().requires_grad_()
                made = function(x, kept)
                if made.requires_grad:
                    made.square().sum().backward()
                slopes.append([made.detach(), x.grad])
            torch.testing.assert_close(slopes[0], slopes[1], rtol=1e-12, atol=1e-14, equal_nan=True)
