"""Calls on ranks like earlier ones."""

from __future__ import annotations

import functools
import os
from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist

import tilefold
import tilefold.distributed as sharded
from on_ranks import error_of, group_of, here, listed, same, sizes_of
from refused_on_ranks import nothing
from tilefold import monoids
from tilefold.api import dispatch
from tilefold.api.differentiated import Differentiated
from tilefold.distributed.segments import Shards
from tilefold.distributed.topk import Selection


def again() -> None:
    """Calls like earlier ones, of other elements: results and gradients of the whole, and the same checks."""
    torch.manual_seed(17)
    dispatch._unrepeated.clear()
    dispatch._executables.clear()
    rank, sizes, others = dist.get_rank(), sizes_of(3, 0, 2, 4), sizes_of(3, 1, 1, 4)
    target, cuts = here(torch.tensor([0, 4, 8])), here(torch.tensor([0, 2, 2, 5, 9]))
    keys = here(torch.tensor([0, 0, 0, 1, 3, 3, 3, 3, 4]))
    shards: dict[str, Any] = {"sharded_dim": 1}
    calls: dict[str, tuple[Callable[..., Any], Callable[..., Any], bool]] = {}
    for name in ("sum", "logsumexp", "argmax", "amax", "var"):
        calls[name] = (
            functools.partial(getattr(tilefold, name), dim=1),
            functools.partial(getattr(sharded, name), dim=1, **shards),
            False,
        )
    calls["softmax"] = lambda x: tilefold.softmax(x, 1), lambda x: sharded.softmax(x, 1, **shards), True
    calls["norm"] = (
        lambda x: tilefold.rms_norm(x, (9,)), lambda x: sharded.rms_norm(x, x.shape[1:], **shards), True,
    )  # fmt: skip
    calls["loss"] = (
        lambda x: tilefold.cross_entropy(x, target, label_smoothing=0.1),
        lambda x: sharded.cross_entropy(x, target, label_smoothing=0.1, sizes=lengths),
        False,
    )
    for name, monoid in {
        "scan": monoids.SUM,
        "logsumexp scan": monoids.LOGSUMEXP,
        "last": monoids.LAST,
    }.items():
        calls[name] = (
            lambda x, monoid=monoid: listed(tilefold.scan(x, monoid, 1))[0],
            lambda x, monoid=monoid: listed(sharded.scan(x, monoid, 1, **shards))[0],
            True,
        )
    for name in ("values", "indices"):
        calls[name] = (
            lambda x, name=name: getattr(tilefold.topk(x, 3, 1), name),
            lambda x, name=name: getattr(sharded.topk(x, 3, 1, **shards), name),
            False,
        )
    for name, monoid in {"segments": monoids.MAX, "positions": monoids.ARGMAX}.items():
        calls[name] = (
            lambda x, monoid=monoid: tilefold.segment_reduce(x, monoid, cuts, dim=1),
            lambda x, monoid=monoid: sharded.segment_reduce(x, monoid, cuts, dim=1, **shards),
            False,
        )
    calls["keys"] = (
        lambda x: tilefold.segment_reduce(x, monoids.SUM, by=keys, num_segments=5, dim=1),
        lambda x: sharded.segment_reduce(
            x, monoids.SUM, by=keys.split(lengths)[rank].clone(), num_segments=5, dim=1, **shards
        ),
        False,
    )
    for of_whole, of_own, is_spread in calls.values():
        for turn in range(12):
            # Layouts and gradients change, and other ranks' parts where this one's is as before.
            lengths, asks = (sizes, others)[turn // 6], turn % 6 > 2
            x = here(torch.randn(3, 9, dtype=torch.float64)).requires_grad_(asks)
            own = x.detach().split(lengths, 1)[rank].clone()
            own = (own.T.contiguous().T if turn in (2, 5) else own).requires_grad_(asks)
            wanted, got = of_whole(x), of_own(own)
            assert torch.equal(got, of_own(own))
            same((wanted.split(lengths, 1)[rank] if is_spread else wanted).detach(), got.detach())
            if wanted.requires_grad:
                seed = torch.randn_like(wanted)
                (a,) = torch.autograd.grad(wanted, x, seed)
                (b,) = torch.autograd.grad(
                    got, own, seed.split(lengths, 1)[rank].contiguous() if is_spread else seed
                )
                same(a.split(lengths, 1)[rank], b)
    own, two = here(torch.ones(3, sizes[rank])), group_of(2)
    ends = here(torch.tensor([0, 1, 3])), here(torch.tensor([0, 1, 9]))
    for _ in range(3):
        if rank < 2:
            assert sharded.sum(own, 1, group=two, **shards).tolist() == [3.0] * 3
            made = sharded.segment_reduce(own, monoids.SUM, ends[0], dim=1, group=two, **shards)
            assert made.tolist() == [[1.0, 2.0]] * 3
            assert "at most 3" in error_of(lambda: sharded.topk(own, 4, 1, group=two, **shards))
        assert sharded.sum(own, 1, **shards).tolist() == [9.0] * 3
        made = sharded.segment_reduce(own, monoids.SUM, ends[1], dim=1, **shards)
        assert made.tolist() == [[1.0, 8.0]] * 3
        assert sharded.topk(own, 4, 1, **shards).indices.tolist() == [[0, 1, 2, 3]] * 3
        assert "needs an identity" in nothing()
    changed_arguments(own)
    # None of them is planned each time.
    assert not dispatch._unrepeated
    derived = [d for d in dispatch._executables.values() if isinstance(d, Differentiated)]
    assert all(d._forward is not None for d in derived if type(d.rule) in (Selection, Shards))
    os.environ["TILEFOLD_CHECK_RANKS"] = "1"
    try:
        dtype = torch.float64 if rank == 2 else None
        assert "ranks must agree on read as" in error_of(lambda: sharded.sum(own, 1, dtype=dtype, **shards))
        assert sharded.sum(own, 1, **shards).tolist() == [9.0] * 3
        k, reverse, odd = (3, True, ends[0]) if rank == 2 else (4, False, ends[1])
        for call, what in (
            (lambda: sharded.topk(own, k, 1, **shards), "k"),
            (lambda: sharded.scan(own, monoids.SUM, 1, reverse=reverse, **shards), "reverse"),
            (lambda: sharded.segment_reduce(own, monoids.SUM, odd, dim=1, **shards), "segments"),
        ):
            assert f"ranks must agree on {what}" in error_of(call)
    finally:
        del os.environ["TILEFOLD_CHECK_RANKS"]


def changed_arguments(own: torch.Tensor) -> None:
    """Calls that differ from an earlier one in one argument have their own results, or errors."""
    whole, shards = here(torch.arange(9.0).expand(3, 9).clone()), {"sharded_dim": 1}
    part = whole.split(sizes_of(3, 0, 2, 4), 1)[dist.get_rank()].clone()
    one = torch.tensor(1)
    for _ in range(2):
        for k, largest in ((3, True), (1, True), (3, False)):
            wanted, got = tilefold.topk(whole, k, 1, largest), sharded.topk(part, k, 1, largest, **shards)
            same(tuple(wanted), tuple(got))
        for form in ({}, {"exclusive": True}, {"reverse": True}, {"dtype": torch.float64}):
            wanted = tilefold.scan(whole, monoids.SUM, 1, **form)
            got = sharded.scan(part, monoids.SUM, 1, **form, **shards)
            same(wanted.split(sizes_of(3, 0, 2, 4), 1)[dist.get_rank()], got)
        for numbers in ([0, 1, 9], [0, 8, 9]):  # other numbers in a tensor of the same layout
            cuts = here(torch.tensor(numbers))
            wanted = tilefold.segment_reduce(whole, monoids.SUM, cuts, dim=1)
            same(wanted, sharded.segment_reduce(part, monoids.SUM, cuts, dim=1, **shards))
        for lost in ([0, 1, 8], [0, 9, 1]):
            cuts = here(torch.tensor(lost))
            if not cuts.is_cuda:
                call = functools.partial(sharded.segment_reduce, part, monoids.SUM, cuts, dim=1, **shards)
                assert "segment_reduce: `offsets` must" in error_of(call)
        assert "must be an int" in error_of(lambda: sharded.topk(part, True, 1, **shards))
        assert "True or False" in error_of(lambda: sharded.topk(part, 3, 1, 1, **shards))
    alone, keys = group_of(1), part.new_zeros(part.shape[1], dtype=torch.int64)
    if dist.get_rank() == 0:
        for k in (1, 1, 2):  # in the same tensor
            assert sharded.topk(part, one.fill_(k), 1, group=alone, **shards).values.shape == (3, k)
            by = {"by": keys, "num_segments": one, "dim": 1, "group": alone}
            assert sharded.segment_reduce(part, monoids.SUM, **by, **shards).shape == (3, k)
    part.requires_grad_()
    for twice in (False, False, True):
        made = sharded.topk(part, 3, 1, **shards).values.sum()
        ask = functools.partial(torch.autograd.grad, made, part, create_graph=twice)
        if twice:
            assert "a first derivative alone" in error_of(ask, tilefold.errors.GradientError)
        else:
            ask()
