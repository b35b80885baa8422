"""Norms in eight bits beside their definition."""

from __future__ import annotations

import torch

Tensor = torch.Tensor
E4M3, E5M2, INT8 = torch.float8_e4m3fn, torch.float8_e5m2, torch.int8
LARGEST = {E4M3: 448.0, E5M2: 57344.0, INT8: 127.0}


def parted(t: Tensor, group: int | None, rank: int) -> Tensor:
    """[.., groups, elements of one]: of a row that is `rank` dims, or of groups along the last."""
    if group is None:
        return t.flatten(-rank)[..., None, :] if rank > 1 else t[..., None, :]
    return t.reshape(*t.shape[:-1], t.shape[-1] // group, group)


def stored(t: Tensor, dtype: torch.dtype) -> Tensor:
    """Rounded to the nearest number of the dtype, ties to even, and none beyond its largest."""
    most = LARGEST[dtype]
    return (t.round() if dtype == INT8 else t).clamp(-most, most).to(dtype)


def check(
    made: tuple[Tensor, ...], x: Tensor, rank: int, weight: Tensor | None, eps: float, residual: Tensor | None,
    dtype: torch.dtype, group: int | None, exact: bool = True,
) -> None:  # fmt: skip
    """What a call made, beside its definition; not `exact`: a chip's quotient may be some units off."""
    q, scale, *total = made
    most, added = LARGEST[dtype], x.float() if residual is None else x.float() + residual.float()
    products = parted(added if weight is None else added * weight.float(), group, rank)
    largest = products.abs().amax(-1, keepdim=True)
    numbers = products * (most / largest.clamp(min=2.0**-110))
    got = parted(q, group, rank)
    off = 0.0 if exact else 2.0**-21
    between = [stored(numbers * (1 + sign * off), dtype).float() for sign in (-1, 1)]
    low, high = torch.minimum(*between), torch.maximum(*between)
    assert q.dtype == dtype
    assert q.shape == x.shape
    assert ((low <= got.float()) & (got.float() <= high)).all(), (got, numbers)
    assert (got.float().abs().amax(-1, keepdim=True)[largest > 0] == most).all()
    wide = x.double() if residual is None else x.double() + residual.double()
    dims = tuple(range(-rank, 0))
    root = (wide.square().mean(dims, keepdim=True) + eps).rsqrt()
    y = wide * root if weight is None else wide * root * weight.double()
    amax = parted(y, group, rank).abs().amax(-1)
    want = torch.where(largest[..., 0] == 0, 1.0, amax / most)
    shape = (*x.shape[:-rank], *[1] * rank) if group is None else (*x.shape[:-1], x.shape[-1] // group)
    assert scale.dtype == torch.float32
    assert scale.shape == shape
    torch.testing.assert_close(scale.double(), want.reshape(shape), rtol=2.0**-19, atol=0)
    if residual is not None:
        sums = torch.promote_types(x.dtype, residual.dtype)
        assert total[0].dtype == sums
        assert torch.equal(total[0], added.to(sums))
    assert len(total) == (residual is not None)
