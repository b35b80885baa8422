"""The bits of a row do not depend on how many others a call has, for 1 to 512 rows, on a CUDA device."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch

import tilefold
from tilefold import functional as tf
from tilefold import monoids

pytestmark = pytest.mark.gpu
ROWS = 512

Operation = Callable[[torch.Tensor], torch.Tensor]


def _summed(x: torch.Tensor) -> torch.Tensor:
    return tilefold.reduce(x, monoids.SUM, 1, guarantee="batch_invariant")


def _log_summed(x: torch.Tensor) -> torch.Tensor:
    return tilefold.reduce(x, monoids.LOGSUMEXP, 1, guarantee="batch_invariant")


def _softmax(x: torch.Tensor) -> torch.Tensor:
    return tf.softmax(x, 1, guarantee="batch_invariant")


def _normed(x: torch.Tensor) -> torch.Tensor:
    weight = torch.linspace(0.5, 1.5, x.shape[1], device=x.device, dtype=x.dtype)
    return tf.layer_norm(x, x.shape[1:], weight, weight, guarantee="batch_invariant")


def _added(x: torch.Tensor) -> torch.Tensor:
    return tf.rms_norm(x, x.shape[1:], x[0] * 0 + 2, 1e-6, residual=x, guarantee="batch_invariant")[0]


def _running(x: torch.Tensor) -> torch.Tensor:
    return tf.logcumsumexp(x, 1, guarantee="batch_invariant")


def _product(x: torch.Tensor) -> torch.Tensor:
    weight = torch.linspace(-1, 1, x.shape[1] * 48, device=x.device, dtype=x.dtype).view(-1, 48)
    return tilefold.matmul(x, weight, guarantee="batch_invariant")


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32], ids=str)
@pytest.mark.parametrize("columns", [96, 1000, 4099, 8192, 65536, 151936])
@pytest.mark.parametrize(
    "operation",
    [_summed, _log_summed, _softmax, _normed, _added, _running, _product],
    ids=lambda f: f.__name__[1:],
)
def test_a_row_among_any_number(operation: Operation, columns: int, dtype: torch.dtype) -> None:
    x = torch.randn(ROWS, columns, device="cuda", generator=torch.Generator("cuda").manual_seed(columns)).to(
        dtype
    )
    every = operation(x)
    differ = [rows for rows in range(1, ROWS) if not torch.equal(operation(x[:rows]), every[:rows])]
    assert not differ, f"other bits beside {differ[:8]} rows, of {len(differ)} counts"
