"""Calls on ranks as one graph each, forward and backward."""

from __future__ import annotations

from typing import Any

import torch
import torch.distributed as dist

import tilefold
import tilefold.distributed as sharded
from on_ranks import CATALOGUE, group_of, here, listed, same, sizes_of
from tilefold import monoids


def compiled(names: list[str]) -> None:
    """Forward and backward are one graph each."""
    torch.manual_seed(0)
    group, rank = group_of(2), dist.get_rank()
    for name in names:
        monoid, x = CATALOGUE[name], here(torch.randint(-2, 3, (2, 5)).double())
        if rank >= 2:
            continue
        torch.compiler.reset()
        whole, own = x.clone().requires_grad_(), x.split([3, 2], 1)[rank].clone().requires_grad_()
        call = torch.compile(
            lambda t, m=monoid: sharded.reduce(t, m, 1, sharded_dim=1, group=group),
            fullgraph=True,
            backend="aot_eager",
        )
        wanted, got = listed(tilefold.reduce(whole, monoid, 1)), listed(call(own))
        same([t.detach() for t in wanted], [t.detach() for t in got])
        (of_whole,), (of_own,) = (
            torch.autograd.grad(made[0].sum(), t) for made, t in ((wanted, whole), (got, own))
        )
        same(of_whole.split([3, 2], 1)[rank], of_own)
    if rank < 2:
        torch.compiler.reset()
        x = here(torch.randint(-2, 3, (2, 5)).double())
        whole = x.clone().requires_grad_()
        call = torch.compile(
            lambda t: sharded.scan(t, monoids.SUM, 1, sharded_dim=1, group=group),
            fullgraph=True,
            backend="aot_eager",
        )
        same(x.cumsum(1).split([3, 2], 1)[rank], call(x.split([3, 2], 1)[rank]))
        several = torch.compile(
            lambda t: sharded.scan(t, monoids.LOGSUMEXP, 1, sharded_dim=1, group=group),
            fullgraph=True,
            backend="aot_eager",
        )
        same(x.logcumsumexp(1).split([3, 2], 1)[rank], several(x.split([3, 2], 1)[rank]))
        largest = torch.compile(
            lambda t: sharded.scan(t, monoids.MAX, 1, sharded_dim=1, group=group),
            fullgraph=True,
            backend="aot_eager",
        )
        own, seed = x.split([3, 2], 1)[rank].clone().requires_grad_(), 1 + x.square()
        (a,) = torch.autograd.grad(tilefold.scan(whole, monoids.MAX, 1), whole, seed)
        (b,) = torch.autograd.grad(largest(own), own, seed.split([3, 2], 1)[rank])
        same(a.split([3, 2], 1)[rank], b)
        best = torch.compile(
            lambda t: sharded.topk(t, 3, 1, sharded_dim=1, group=group), fullgraph=True, backend="aot_eager"
        )
        own = x.split([3, 2], 1)[rank].clone().requires_grad_()
        wanted, got = tilefold.topk(whole, 3, 1), best(own)
        assert torch.equal(wanted.indices, got.indices)
        (a,), (b,) = (torch.autograd.grad(m.values.sum(), t) for m, t in ((wanted, whole), (got, own)))
        same(a.split([3, 2], 1)[rank], b)


def compiled_maps() -> None:
    """Forward and backward are one graph each, with the same bits; a weight's gradient is of this rank's part."""
    torch.manual_seed(4)
    group, rank = group_of(2), dist.get_rank()
    x, w = here(torch.randn(3, 5)), here(torch.randn(5))
    if rank >= 2:
        return
    torch.compiler.reset()
    own, weight = (t.split([3, 2], -1)[rank].clone().requires_grad_() for t in (x, w))

    def both(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
        normed = sharded.layer_norm(x, x.shape[1:], w, sharded_dim=1, group=group)
        return sharded.softmax(normed, 1, sharded_dim=1, group=group)

    seed = torch.randn_like(own)
    calls = [both, torch.compile(both, fullgraph=True, backend="aot_eager")]
    plain, graph = (
        [m, *torch.autograd.grad(m, (own, weight), seed)] for m in (f(own, weight) for f in calls)
    )
    assert all(torch.equal(a, b) for a, b in zip(plain, graph, strict=True))


def compiled_segments() -> None:
    """Segments that cross ranks as one graph, forward and backward, with the same bits."""
    torch.manual_seed(15)
    group, rank, sizes = group_of(2), dist.get_rank(), [3, 2]
    x = here(torch.randint(-2, 3, (2, 5)).double())
    offsets = here(torch.tensor([0, 1, 4, 4, 5]))
    if rank >= 2:
        return
    keys = (torch.searchsorted(offsets, torch.arange(5, device=x.device), right=True) - 1).split(sizes)[rank]
    cases: tuple[tuple[Any, dict[str, Any]], ...] = (
        (monoids.LOGSUMEXP, {"lengths": offsets.diff()}),
        (monoids.MAX_WITH_INDEX, {"by": keys, "num_segments": 4}),
    )
    for monoid, given in cases:
        torch.compiler.reset()
        more: dict[str, Any] = {"dim": 1, "sharded_dim": 1, "group": group, **given}

        def call(t: torch.Tensor, monoid: Any = monoid, more: Any = more) -> Any:
            return sharded.segment_reduce(t, monoid, **more)

        whole, own = x.clone().requires_grad_(), x.split(sizes, 1)[rank].clone().requires_grad_()
        wanted = listed(tilefold.segment_reduce(whole, monoid, offsets, dim=1))[0]
        graph = torch.compile(call, fullgraph=True, backend="aot_eager")
        assert torch.equal(listed(graph(own.detach()))[0], listed(call(own.detach()))[0])
        made = listed(graph(own))[0]
        same(wanted.detach(), made.detach())
        seed = torch.arange(wanted.numel(), device=x.device).view_as(wanted).double()
        (a,), (b,) = (torch.autograd.grad(m, t, seed) for m, t in ((wanted, whole), (made, own)))
        same(a.split(sizes, 1)[rank], b)


def compiled_product() -> None:
    """A product of parts of K as one graph, with the same bits."""
    group, rank = group_of(2), dist.get_rank()
    if rank >= 2:
        return
    torch.compiler.reset()
    torch.manual_seed(rank)
    a, b = (here(torch.randn(4, 4)).requires_grad_() for _ in range(2))

    def call(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
        made, lse = sharded.matmul(
            a, b, epilogue="gelu", row=(monoids.LOGSUMEXP, lambda x, lse: x - lse), group=group
        )
        return made + lse.unsqueeze(1)

    plain, graph = (
        [made, *torch.autograd.grad(made.sum(), (a, b))]
        for made in (f(a, b) for f in (call, torch.compile(call, fullgraph=True, backend="aot_eager")))
    )
    same([t.detach() for t in plain], [t.detach() for t in graph])


def symbols(correction: float) -> None:
    """A compiled call's number, which is a symbol under dynamic=True."""
    x, rank = here(torch.arange(21.0).view(3, 7)), dist.get_rank()
    own = x.split(sizes_of(4, 1, 0, 2), 1)[rank]
    compiled = torch.compile(
        lambda t, c: sharded.var(t, 1, correction=c, sharded_dim=1),
        backend="aot_eager",
        dynamic=True,
        fullgraph=True,
    )
    same(tilefold.var(x, 1, correction=correction), compiled(own, correction))
