"""torch's own products on a GPU, with float32 sums whatever torch is set to."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterator
from typing import Any

import torch

from tilefold.planner.products.epilogue import sums_dtype
from tilefold.planner.products.operands import as_matrices
from tilefold.runtime.modes import as_given

Tensor = torch.Tensor

_HALVES = {
    torch.float16: "allow_fp16_reduced_precision_reduction",
    torch.bfloat16: "allow_bf16_reduced_precision_reduction",
}
_settings = threading.Lock()


def finished_product(a: Tensor, b: Tensor, *rest: Tensor) -> None:
    """The product stored in the last tensor; the bias of columns ahead of it, if there is one, is added before the one
    rounding (as given, or seen in the result's shape)."""
    *extras, out = rest
    with as_given(a.device), _full_sums(a.dtype):
        if not extras:
            torch.matmul(a, b, out=out)
            return
        bias = extras[0]
        torch.addmm(bias if bias.ndim == 1 else bias[0], a, b, out=out)


def wide_product(a: Tensor, b: Tensor) -> Tensor:
    """The product with its sums as they are, in their own dtype, contiguous."""
    with as_given(a.device):
        return _wide_product(*as_matrices(a, b), sums_dtype(a.dtype))


def _wide_product(a: Tensor, b: Tensor, dtype: torch.dtype) -> Tensor:
    if a.dtype == dtype:
        return torch.matmul(a, b).contiguous()
    if b.ndim == 2:
        return torch.mm(a.reshape(-1, a.shape[-1]), b, out_dtype=dtype)
    batch = torch.broadcast_shapes(a.shape[:-2], b.shape[:-2])  # type: ignore[no-untyped-call]  # torch's own
    left, right = (t.expand(*batch, *t.shape[-2:]).reshape(-1, *t.shape[-2:]) for t in (a, b))
    return torch.bmm(left, right, out_dtype=dtype)


@contextlib.contextmanager
def _full_sums(dtype: torch.dtype) -> Iterator[None]:
    """Within it, cuBLAS adds its partial sums in float32. By default torch lets it round them to half precision first.

    The setting is the process's: it is put back at once, our own threads take turns, and a product of another thread that
    sees it is the more exact for it.
    """
    name, kept = _HALVES.get(dtype), torch.backends.cuda.matmul
    if name is None or not getattr(kept, name):
        yield
        return
    with _settings:
        before: Any = getattr(torch._C, f"_get_cublas_{name}")()
        setattr(kept, name, False)
        try:
            yield
        finally:
            setattr(kept, name, before)
