"""When torch's own product keeps our promises, and when it needs nothing after it."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from tilefold.planner.products.epilogue import Epilogue

Tensor = torch.Tensor


def cublas_setting(dtype: torch.dtype) -> str | bool | None:
    """What torch asks of cuBLAS now for a dtype: the precision of float32 products; whether float16 is summed in float16."""
    # torch's own getters: through its modules this would cost half as much as the rest of a repeated call's key
    if dtype == torch.float32:
        precision = torch._C._get_fp32_precision_getter
        own, general = precision("cuda", "matmul"), precision("generic", "all")
        return "tf32" if (general if own == "none" else own) == "tf32" else "ieee"
    return torch._C._get_cublas_allow_fp16_accumulation() if dtype == torch.float16 else None


def multiplies(dtype: torch.dtype, precision: str) -> bool:
    """Whether torch.matmul sums products of this dtype as precisely as we promise, as torch is set now."""
    setting = cublas_setting(dtype)
    if dtype in (torch.float32, torch.float16):
        return setting == (precision if dtype == torch.float32 else False)
    return dtype in (torch.bfloat16, torch.float64)


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
