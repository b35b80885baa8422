"""A model of all public operations is compiled once for all sizes of a batch, whole, and torch has nothing to say of it."""

from __future__ import annotations

import os
import subprocess
import sys

import torch

import support
import tilefold

CODE = f"""
import sys
sys.path.insert(0, {str(support.ROOT / "tests")!r})
import support, torch

def model(*tensors):
    each, made = iter(tensors), []
    for name in support.ROWS:
        row = support.ROWS[name]
        made += support.flat(row.call(*[next(each) for _ in row.shapes]))
    return made

compiled = torch.compile(model, dynamic=True, fullgraph=True, backend="eager")
for rows in range(7, 27):  # a batch of 5 or 6 would be as long as classes and columns are, which graphs hold as numbers
    compiled(*[t for row in support.ROWS.values() for t in support.given(row, rows=rows)])
"""


def test_torch_logs_no_graph_break_and_no_recompilation() -> None:
    logged = {**os.environ, "TORCH_LOGS": "recompiles,graph_breaks"}
    done = subprocess.run(
        [sys.executable, "-c", CODE], env=logged, capture_output=True, text=True, check=True
    )
    assert done.stdout + done.stderr == ""


def test_numbers_that_a_graph_holds_as_symbols() -> None:
    """Under dynamic=True numbers are symbols; what a monoid is made of is a number, which the graph guards."""
    x = torch.randn(4, 8, generator=torch.Generator().manual_seed(46))
    for groups in (2, 4):
        torch._dynamo.reset()

        def call(x: torch.Tensor, groups: int) -> list[torch.Tensor]:
            return [
                tilefold.group_norm(x, groups),
                tilefold.var(x, 1, correction=groups),
                tilefold.topk(x, groups, 1)[0],
            ]

        compiled = torch.compile(call, backend="aot_eager", dynamic=True, fullgraph=True)
        torch.testing.assert_close(compiled(x, groups), call(x, groups), rtol=1e-6, atol=1e-7)
