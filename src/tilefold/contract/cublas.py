"""When torch's own product keeps our promises, and when it needs nothing after it."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from tilefold.contract.epilogue import Epilogue

Tensor = torch.Tensor


def cublas_settings() -> tuple[str, bool]:
    """What torch asks of cuBLAS now: the precision of float32 products, and whether float16 ones may be summed in float16."""
    own, general = torch.backends.cuda.matmul.fp32_precision, torch.backends.fp32_precision  # type: ignore[attr-defined]  # torch's own
    precision = "tf32" if (general if own == "none" else own) == "tf32" else "ieee"
    return precision, bool(torch.backends.cuda.matmul.allow_fp16_accumulation)


def multiplies(dtype: torch.dtype, precision: str) -> bool:
    """Whether torch.matmul sums products of this dtype as precisely as we promise, as torch is set now."""
    set_precision, short_sums = cublas_settings()
    if dtype == torch.float32:
        return set_precision == precision
    return dtype in (torch.bfloat16, torch.float64) or (dtype == torch.float16 and not short_sums)


def finishes(epilogue: Epilogue, a: Tensor, b: Tensor, extras: Sequence[Tensor]) -> bool:
    """Whether torch's product needs nothing after it: no epilogue, or a bias of columns that it adds itself."""
    if epilogue.result != a.dtype or epilogue.row is not None:
        return False
    if epilogue.plain:
        return True
    return (
        epilogue.only_bias
        and a.ndim == b.ndim == 2
        and extras[0].dtype == a.dtype
        and extras[0].stride() == (0, 1)
    )
