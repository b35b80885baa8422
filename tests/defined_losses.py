"""Cross-entropy as torch defines it, and how near results come."""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F

Tensor = torch.Tensor
TOLERANCES = {torch.float64: 1e-11, torch.float32: 2e-5, torch.bfloat16: 3e-2, torch.float16: 4e-3}


def defined(
    x: Tensor, target: Tensor, weight: Tensor | None = None, *, ignore_index: int = -100, reduction: str = "mean",
    label_smoothing: float = 0.0, z_loss: float = 0.0, softcap: float | None = None,
) -> tuple[Tensor, Tensor]:  # fmt: skip
    """Torch's loss of capped logits, with the z-loss, and the log-sum-exp."""
    dim = min(1, x.ndim - 1)
    c = x if softcap is None else softcap * torch.tanh(x / softcap)
    lse = c.logsumexp(dim)
    named: dict[str, Any] = {"ignore_index": ignore_index, "label_smoothing": label_smoothing}
    loss = F.cross_entropy(c, target, weight, reduction=reduction, **named)
    if not z_loss:
        return loss, lse
    soft = target.is_floating_point()
    kept = torch.ones_like(lse) if soft else (target != ignore_index).to(x.dtype)
    squares = z_loss * lse**2 * kept
    if reduction == "none":
        return loss + squares, lse
    total = kept if soft or weight is None else kept * weight[target.clamp(0, x.shape[dim] - 1)]
    return loss + squares.sum() / (total.sum() if reduction == "mean" else 1.0), lse


def near(got: Tensor, want: Tensor, bound: float) -> None:
    """Within so much of the greatest number, NaN and infinities where they are to be: terms cancel in each element."""
    got, want = got.detach().double(), want.detach().double()
    assert got.shape == want.shape
    usual = want.isfinite()
    assert torch.equal(got.isfinite(), usual)
    torch.testing.assert_close(got[~usual], want[~usual], rtol=0, atol=0, equal_nan=True)
    if usual.any():
        assert (got - want)[usual].abs().max() <= bound * want[usual].abs().max(), (got, want)
