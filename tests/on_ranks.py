"""What ranks run: each holds a part of one tensor that all draw, and compares with the fold of the whole."""

from __future__ import annotations

import functools
import os
import time
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist

import tilefold
import tilefold.distributed as sharded
from tilefold import monoids
from tilefold.api import dispatch
from tilefold.api.differentiated import Differentiated
from tilefold.distributed import exchange
from tilefold.distributed.segments import Shards
from tilefold.distributed.topk import Selection

SHIFTS = tilefold.Monoid(  # no identity, does not commute, positions
    lambda a, b: (a.first, b.last, a.sum + b.sum),
    None,
    fields=("first", "last", "sum"),
    lift=lambda x, i: (i, i, x * 1.0),
    index=True,
    name="shifts",
)
CATALOGUE = (
    {name: made for name in monoids.__all__ if isinstance(made := getattr(monoids, name), tilefold.Monoid)}
    | {f"NORM({order})": monoids.NORM(order) for order in (0.0, 1.0, 2.0, 3.0, float("inf"))}
    | {"SHIFTS": SHIFTS}
)
FOLDS = (
    "sum", "prod", "mean", "amax", "amin", "argmax", "argmin", "logsumexp", "var", "std", "vector_norm",
)  # fmt: skip


@functools.cache
def group_of(size: int) -> Any:
    """The first ranks; all of them ask for it."""
    return dist.new_group(list(range(size)), timeout=timedelta(seconds=120))


def here(t: torch.Tensor) -> torch.Tensor:
    """A drawn tensor on this rank's device."""
    return t.cuda() if dist.get_backend() == "nccl" else t


def sizes_of(*sizes: int) -> list[int]:
    """A length a rank: the last one has those of ranks that there are not."""
    n = dist.get_world_size()
    return [*sizes[: n - 1], sum(sizes[n - 1 :])]


def groups_of() -> dict[int, Any]:
    """A group of each size."""
    return {n: group_of(n) for n in range(1, dist.get_world_size() + 1)}


@functools.cache
def on_mesh() -> Any:
    """A mesh of two dims with all ranks, the last two by two."""
    size, kind = dist.get_world_size(), "cuda" if dist.get_backend() == "nccl" else "cpu"
    return dist.device_mesh.init_device_mesh(kind, (size // 2, 2), mesh_dim_names=("data", "model"))


def listed(made: Any) -> list[torch.Tensor]:
    return [made] if isinstance(made, torch.Tensor) else list(made)


def same(wanted: Any, got: Any) -> None:
    """Elements are small whole numbers: what rounds is a root, a quotient or an exponential."""
    bounds = {torch.float64: 1e-11, torch.bfloat16: 2.0**-7, torch.float16: 2.0**-10}
    for a, b in zip(listed(wanted), listed(got), strict=True):
        assert (a.dtype, a.shape) == (b.dtype, b.shape)
        torch.testing.assert_close(b, a, rtol=bounds.get(a.dtype, 1e-5), atol=1e-11, equal_nan=True)


def fold(function: Any, tensors: list[torch.Tensor], *arguments: Any, **named: Any) -> Any:
    return function(tensors[0] if len(tensors) == 1 else tensors, *arguments, **named)


def gradients(names: list[str], tied: bool) -> None:
    """Uneven and empty shards: each rank's gradient is its part of the whole one's."""
    torch.manual_seed(0)
    rank, sizes = dist.get_rank(), sizes_of(3, 0, 2)[:3]
    group = group_of(len(sizes))
    for name in names:
        monoid = CATALOGUE[name]
        for dims in ((1,), (0, 1), None):
            whole = [here(torch.randn(2, 5, 2, dtype=torch.float64)) for _ in range(monoid.algebra.inputs)]
            whole = [(x.round() if tied else x).requires_grad_() for x in whole]
            wanted = listed(fold(tilefold.reduce, whole, monoid, dims))
            seeds = [torch.randn_like(t) if t.requires_grad else None for t in wanted]
            if rank >= len(sizes):
                continue
            own = [t.detach().split(sizes, 1)[rank].clone().requires_grad_() for t in whole]
            got = listed(fold(sharded.reduce, own, monoid, dims, sharded_dim=1, group=group))
            same([t.detach() for t in wanted], [t.detach() for t in got])
            assert [t.requires_grad for t in got] == [t.requires_grad for t in wanted], name
            if not any(s is not None for s in seeds):
                continue
            of_whole, of_own = (
                torch.autograd.grad(
                    [t for t in made if t.requires_grad], inputs, [s for s in seeds if s is not None]
                )
                for made, inputs in ((wanted, whole), (got, own))
            )
            same([t.split(sizes, 1)[rank] for t in of_whole], of_own)


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


def segments_beside(what: str) -> str:
    """The error of segments that do not fit."""
    x, rank = here(torch.ones(2)), dist.get_rank()
    calls: dict[str, Callable[[], Any]] = {
        "by": lambda: sharded.segment_reduce(x, monoids.SUM, by=x.long(), sharded_dim=0),
        "keys": lambda: sharded.segment_reduce(
            x, monoids.SUM, by=torch.full((2,), 3 - rank), num_segments=4, sharded_dim=0
        ),
        "offsets": lambda: sharded.segment_reduce(x, monoids.SUM, torch.tensor([0, 3, 7]), sharded_dim=0),
        "lengths": lambda: sharded.segment_reduce(
            x, monoids.SUM, lengths=torch.tensor([5, 4]), sharded_dim=0
        ),
        "both": lambda: sharded.segment_reduce(x, monoids.SUM, x.long(), by=x.long(), sharded_dim=0),
        "empty": lambda: sharded.segment_reduce(
            x, monoids.FIRST, by=torch.full((2,), 1), num_segments=2, sharded_dim=0
        ),
    }
    return error_of(calls[what], tilefold.errors.TilefoldError)


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


def refused_products() -> list[str]:
    """The errors of what does not fit."""
    x = here(torch.ones(3, 2))
    calls = (
        lambda: sharded.matmul(x, x.T, guarantee="batch_invariant"),
        lambda: sharded.matmul(x, x.T, scatter=True),
        lambda: sharded.matmul(x, x[0], row=(monoids.SUM, None)),
    )
    return [error_of(call, tilefold.errors.TilefoldError) for call in calls]


def too_many() -> str:
    """The error of more elements than all ranks have."""
    return error_of(lambda: sharded.topk(torch.ones(2, 1), 9, sharded_dim=1), tilefold.errors.ShapeError)


def unnamed() -> list[str]:
    """The errors of calls without `sharded_dim`, or with keywords that there are not."""
    x = torch.ones(2, 3)
    calls = (
        lambda: sharded.softmax(x, 1),
        lambda: sharded.sum(x, 1),
        lambda: sharded.rms_norm(x, (3,)),
        lambda: sharded.topk(x, 1),
        lambda: sharded.reduce(x, monoids.SUM, 1),
        lambda: sharded.scan(x, monoids.SUM, 1),
        lambda: sharded.reduce_map(x, monoids.SUM, lambda x, s: x / s, 1),
        lambda: sharded.var(x, 1, unbiased=True, sharded_dim=1),
        lambda: sharded.layer_norm(x, (3,), sharded=1),
    )
    return [error_of(call, TypeError) for call in calls]


def without_dims() -> list[str]:
    """The errors of parts without dims, which are not a rank's own."""
    calls = (
        lambda: sharded.sum(torch.ones(()), sharded_dim=0),
        lambda: sharded.softmax(torch.ones(()), 0, sharded_dim=0),
        lambda: sharded.topk(torch.ones(()), 1, 0, sharded_dim=0),
    )
    return [error_of(call, tilefold.errors.ShapeError) for call in calls]


def close(wanted: Any, got: Any, dtype: torch.dtype) -> None:
    tolerance = {torch.float64: 1e-11, torch.float32: 1e-5, torch.bfloat16: 1e-2}[dtype]
    for a, b in zip(wanted, got, strict=True):
        assert (a.dtype, a.shape) == (b.dtype, b.shape)
        torch.testing.assert_close(b, a, rtol=tolerance, atol=tolerance, equal_nan=True)


def losses_beside(what: str) -> str | None:
    """What is no value: ranks that hold other numbers of classes than they say, sizes of others, a second derivative, a
    target that is no class; and one graph."""
    rank, x = dist.get_rank(), torch.zeros(2, 3 if dist.get_rank() else 2, requires_grad=True)
    target = torch.tensor([0, 7])
    try:
        if what == "uneven":
            sharded.cross_entropy(x, target)
        elif what == "sizes":
            sharded.cross_entropy(x, target, sizes=[2, 3])
        elif what == "target":
            sharded.cross_entropy(x, target + 4, sizes=[2, 3, 3, 3])
        elif what == "second":
            loss = sharded.cross_entropy(x, target, sizes=[2, 3, 3, 3])
            torch.autograd.grad(loss, x, create_graph=True)
        else:
            torch.compiler.reset()
            call = torch.compile(
                lambda x: sharded.cross_entropy(x, target, sizes=[2, 3, 3, 3], label_smoothing=0.1),
                fullgraph=True,
                backend="aot_eager",
            )
            plain = lambda x: sharded.cross_entropy(x, target, sizes=[2, 3, 3, 3], label_smoothing=0.1)  # noqa: E731
            for dtype in (torch.float32, torch.bfloat16):
                own = x.detach().to(dtype).requires_grad_()
                assert torch.equal(call(own.detach()), call(own))
                made = [f(own) for f in (call, plain)]
                grads = [torch.autograd.grad(m, own)[0] for m in made]
                assert torch.equal(*made)
                assert torch.equal(*grads)
            return None
    except (tilefold.errors.TilefoldError, RuntimeError) as error:
        return str(error)
    return f"nothing on rank {rank}"


def chunks() -> None:
    """A stream of sharded chunks: the state after one stands before the next. With positions, which count in each chunk."""
    torch.manual_seed(12)
    sizes, rank = sizes_of(2, 0, 3, 1), dist.get_rank()
    for name in ("SUM", "LOGSUMEXP", "AFFINE", "LAST", "SHIFTS", "MAX_WITH_INDEX"):
        monoid = CATALOGUE[name]
        both = [
            [here(torch.randint(-2, 3, (2, 6)).double()) for _ in range(monoid.algebra.inputs)]
            for _ in range(2)
        ]
        for dims in ((1,), (0, 1)):
            wanted = got = None
            for whole in both:
                own = [t.split(sizes, 1)[rank] for t in whole]
                before = [None if made is None else made[1] for made in (wanted, got)]
                wanted = fold(tilefold.reduce, whole, monoid, dims, init=before[0], return_state=True)
                got = fold(
                    sharded.reduce, own, monoid, dims, init=before[1], return_state=True, sharded_dim=1
                )
                same(listed(wanted[0]) + listed(wanted[1]), listed(got[0]) + listed(got[1]))
    x = here(torch.ones(2, 3)).requires_grad_()
    refused = error_of(
        lambda: sharded.reduce(x, monoids.SUM, 1, sharded_dim=1, init=1.0), tilefold.errors.GradientError
    )
    assert "with `init` or `return_state` has no derivative" in refused


def scans() -> None:
    """Prefixes of each rank's part, with positions and in order."""
    torch.manual_seed(1)
    sizes, rank = sizes_of(2, 0, 3, 1), dist.get_rank()
    for name in ("SUM", "LOGSUMEXP", "AFFINE", "CUMMAX", "LAST", "WELFORD", "SHIFTS"):
        monoid = CATALOGUE[name]
        whole = [here(torch.randint(-2, 3, (2, 6)).double()) for _ in range(monoid.algebra.inputs)]
        own = [t.split(sizes, 1)[rank] for t in whole]
        for reverse in (False, True):
            for exclusive in (False, True) if monoid.algebra.identity is not None else (False,):
                form = {"exclusive": exclusive, "reverse": reverse}
                wanted = listed(fold(tilefold.scan, whole, monoid, 1, **form))
                got = fold(sharded.scan, own, monoid, 1, sharded_dim=1, **form)
                same([t.split(sizes, 1)[rank] for t in wanted], got)
                along_rows = fold(sharded.scan, own, monoid, 0, sharded_dim=1, **form)
                same(
                    [t.split(sizes, 1)[rank] for t in listed(fold(tilefold.scan, whole, monoid, 0, **form))],
                    along_rows,
                )


def named() -> None:
    """The usual folds, of bfloat16 too, whose states are float32."""
    torch.manual_seed(2)
    sizes, rank = sizes_of(4, 1, 0, 2), dist.get_rank()
    for dtype in (torch.float64, torch.bfloat16):
        x = here(torch.randint(-3, 4, (3, 7)).to(dtype))
        own = x.split(sizes, 1)[rank]
        for name in FOLDS:
            order = (3.0,) if name == "vector_norm" else ()
            wanted = getattr(tilefold, name)(x, *order, dim=1)
            same(wanted, getattr(sharded, name)(own, *order, dim=1, sharded_dim=1))
    assert sharded.mean(own, 1, dtype=torch.float32, sharded_dim=1).dtype == torch.float32
    for dtype in (torch.int64, torch.uint8, torch.bool):
        x = here(torch.randint(0, 4, (3, 7)).to(dtype))
        same(tilefold.logsumexp(x, 1), sharded.logsumexp(x.split(sizes, 1)[rank], 1, sharded_dim=1))


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


def meshes() -> None:
    """Sharded over one dim of a mesh of two: the other one's ranks hold other rows."""
    mesh = dist.device_mesh.init_device_mesh("cpu", (2, 2), mesh_dim_names=("data", "model"))
    data, model = mesh.get_coordinate()
    x = torch.arange(24.0).view(4, 6).sin()
    own = x.split(2)[data].split([4, 2], 1)[model]
    same(x.logsumexp(1).split(2)[data], sharded.logsumexp(own, 1, sharded_dim=1, mesh=mesh["model"]))
    same(x.split([4, 2], 1)[model].sum(0), sharded.sum(own, 0, sharded_dim=0, mesh=mesh["data"]))
    assert "mesh['model']" in error_of(lambda: sharded.sum(own, 1, sharded_dim=1, mesh=mesh))
    both = {"mesh": mesh["data"], "group": dist.group.WORLD}
    assert "got both" in error_of(lambda: sharded.sum(own, 1, sharded_dim=1, **both))
    no_mesh = error_of(lambda: sharded.sum(own, 1, sharded_dim=1, mesh="model"), tilefold.errors.KindError)
    assert "must be a DeviceMesh, got 'model'" in no_mesh
    x = torch.arange(24.0).view(4, 6).cos().requires_grad_()
    rows = x.detach().split([3, 1])[data]
    own = rows.split([4, 2], 1)[model].clone().requires_grad_()
    for name in ("logsumexp", "argmax", "var"):
        wanted = getattr(tilefold, name)(x, *[(0, 1)] * (name != "argmax"))
        got = getattr(sharded, name)(own, *[(0, 1)] * (name != "argmax"), sharded_dim=(0, 1), mesh=mesh)
        same(wanted.detach(), got.detach())
        if wanted.requires_grad:
            (a,), (b,) = (torch.autograd.grad(made, t) for made, t in ((wanted, x), (got, own)))
            same(a.split([3, 1])[data].split([4, 2], 1)[model], b)
    x, sizes = x.detach(), [2, 1, 0, 1]
    own, place = x.split(sizes)[2 * data + model], {"sharded_dim": (0, 0), "mesh": mesh}
    for name in ("SUM", "LAST", "CUMMAX"):
        for reverse in (False, True):
            wanted = listed(tilefold.scan(x, CATALOGUE[name], 0, reverse=reverse))
            got = listed(sharded.scan(own, CATALOGUE[name], 0, reverse=reverse, **place))
            same([t.split(sizes)[2 * data + model] for t in wanted], got)
    same(tilefold.reduce(x, SHIFTS, 0), sharded.reduce(own, SHIFTS, 0, **place))
    same(tuple(tilefold.topk(x, 3, 0)), tuple(sharded.topk(own, 3, 0, **place)))
    assert "a `mesh` with as many dims, got 3 dims" in error_of(
        lambda: sharded.sum(own, 0, sharded_dim=(0, 0, 1), mesh=mesh)
    )


def error_of(call: Callable[[], Any], kind: type[Exception] = tilefold.errors.ArgumentError) -> str:
    """What a call is refused with."""
    try:
        call()
    except kind as error:
        return str(error)
    return ""


def exchanged() -> list[int]:
    """The bytes that one rank sends: its states', and 8 where positions are asked."""
    sent, real = list[int](), exchange.gathered

    def counted(t: torch.Tensor, ranks: Any) -> torch.Tensor:
        sent[-1] += t.nbytes
        return real(t, ranks)

    exchange.gathered = counted
    try:
        own = here(torch.ones(5, 3 + dist.get_rank(), dtype=torch.bfloat16))
        for call in (
            lambda: sharded.logsumexp(own, 1, sharded_dim=1),
            lambda: sharded.argmax(own, 1, sharded_dim=1),
            lambda: (
                sharded.any(own)
                if hasattr(sharded, "any")
                else sharded.reduce(own, monoids.ANY, 1, sharded_dim=1)
            ),
            lambda: sharded.sum(own, 0, sharded_dim=1),
            lambda: sharded.sum(own, 1, sharded_dim=None),
            lambda: sharded.softmax(own, 1, sharded_dim=1),
            lambda: sharded.rms_norm(own, own.shape[1:], sharded_dim=1),
            lambda: sharded.layer_norm(own, own.shape[1:], sharded_dim=1),
            lambda: sharded.topk(own, 2, sharded_dim=1),
        ):
            sent.append(0)
            call()
    finally:
        exchange.gathered = real
    return sent


def bits(late: int) -> list[bytes]:
    """Sums of floats whose grouping shows, where one rank comes late."""
    torch.manual_seed(3)
    x, rank = here(torch.randn(8, 4000)), dist.get_rank()
    if rank == late:
        time.sleep(0.2)
    sizes, cuts = sizes_of(1500, 7, 1493, 1000), here(torch.tensor([0, 1499, 1499, 3500, 4000]))
    own = x.split(sizes, 1)[rank]
    made = [
        sharded.sum(own, 1, sharded_dim=1),
        sharded.logsumexp(own, 1, sharded_dim=1),
        sharded.var(own, sharded_dim=1),
        sharded.softmax(x, 0, sharded_dim=0),
        sharded.rms_norm(x, x.shape[1:], sharded_dim=1),
        sharded.topk(own, 20, 1, sharded_dim=1).indices,
        sharded.sum(sharded.scan(own, monoids.LOGSUMEXP, 1, sharded_dim=1), 1, sharded_dim=1),
        sharded.cross_entropy(own, here(torch.arange(8) * 300), sizes=sizes),
        sharded.matmul(own, own.T, epilogue="gelu"),
        sharded.segment_reduce(own, monoids.WELFORD, cuts, dim=1, sharded_dim=1)[2],
    ]
    return [t.cpu().numpy().tobytes() for t in made]


def disagreeing(what: str) -> str:
    """The error of a call that one rank makes otherwise."""
    os.environ["TILEFOLD_CHECK_RANKS"] = "1"
    odd = dist.get_rank() == min(2, dist.get_world_size() - 1)
    x = here(
        torch.ones(
            5 if odd and what == "shape" else 4, 3, dtype=torch.float64 if odd and what == "dtype" else None
        )
    )
    monoid = monoids.MAX if odd and what == "monoid" else monoids.SUM
    guarantee = "batch_invariant" if odd and what == "guarantee" else "run_to_run"
    try:
        return error_of(lambda: sharded.reduce(x, monoid, 1, sharded_dim=1, guarantee=guarantee))
    finally:
        del os.environ["TILEFOLD_CHECK_RANKS"]


def disagreeing_map(what: str) -> str:
    """The error of a softmax or a selection that one rank asks for otherwise."""
    os.environ["TILEFOLD_CHECK_RANKS"] = "1"
    odd = dist.get_rank() == min(2, dist.get_world_size() - 1)
    x = here(torch.ones(4, 3)).requires_grad_(not (odd and what == "what requires grad"))
    try:
        if what == "reverse":
            return error_of(lambda: sharded.scan(x, monoids.SUM, 1, sharded_dim=1, reverse=odd))
        if what == "return_state":
            x = x.detach()
            return error_of(lambda: sharded.reduce(x, monoids.SUM, 1, sharded_dim=1, return_state=odd))
        if what == "k":
            return error_of(lambda: sharded.topk(x, 2 if odd else 3, sharded_dim=1))
        if what == "segments":
            cuts = torch.tensor([0, 3 if odd else 2, 4 * dist.get_world_size()])
            return error_of(lambda: sharded.segment_reduce(x, monoids.SUM, here(cuts), sharded_dim=0))
        if what == "epilogue":
            return error_of(lambda: sharded.matmul(x, x.T, epilogue="relu" if odd else "gelu"))
        if what == "function":
            function = (lambda x, total: x - total) if odd else (lambda x, total: x / total)
            return error_of(lambda: sharded.reduce_map(x, monoids.SUM, function, 1, sharded_dim=1))
        dtype = torch.float64 if odd and what == "read as" else None
        return error_of(lambda: sharded.softmax(x, 1, dtype, sharded_dim=1))
    finally:
        del os.environ["TILEFOLD_CHECK_RANKS"]


def nothing() -> str:
    """The error of a fold of no elements without an identity."""
    return error_of(lambda: sharded.reduce(here(torch.ones(2, 0)), monoids.FIRST, 1, sharded_dim=1))


def second_derivative(name: str) -> str:
    """The error of asking for one."""
    x = here(torch.ones(3)).requires_grad_()
    call = functools.partial(sharded.scan, monoid=monoids.SUM) if name == "cumsum" else getattr(sharded, name)
    made = call(x, dim=0, sharded_dim=0).sum()
    return error_of(lambda: torch.autograd.grad(made, x, create_graph=True), tilefold.errors.GradientError)


def forward_derivative(name: str) -> str:
    """The error of a forward derivative of a sharded row."""
    calls: dict[str, Any] = {
        "softmax": lambda x: sharded.softmax(x, 1, sharded_dim=1),
        "logsumexp": lambda x: sharded.logsumexp(x, 1, sharded_dim=1),
        "scan": lambda x: sharded.scan(x, monoids.SUM, 1, sharded_dim=1),
        "cross_entropy": lambda x: sharded.cross_entropy(x, torch.zeros(2, dtype=torch.int64)),
    }
    x = torch.ones(2, 3)
    return error_of(lambda: torch.func.jvp(calls[name], (x,), (x,)), tilefold.errors.GradientError)


def underived() -> str:
    """The error of asking for a gradient of what is made of a maximum."""
    x = here(torch.ones(3)).requires_grad_()
    call = lambda: sharded.reduce_map(x, monoids.MAX, lambda x, m: x - m, 0, sharded_dim=0)  # noqa: E731  # one call
    return error_of(call, tilefold.errors.GradientError)


def exchanges(x: torch.Tensor) -> dict[str, Callable[[], Any]]:
    """A call of every operation that exchanges something, of a rank's rows of three elements."""
    rows, columns = x.shape[0], 3 * dist.get_world_size()
    target = torch.zeros(rows, dtype=torch.int64, device=x.device)
    return {
        "reduce": lambda: sharded.reduce(x, monoids.LOGSUMEXP, 1, sharded_dim=1),
        "reduce_map": lambda: sharded.softmax(x, 1, sharded_dim=1),
        "scan": lambda: sharded.scan(x, monoids.SUM, 1, sharded_dim=1),
        "topk": lambda: sharded.topk(x, 2, 1, sharded_dim=1),
        "cross_entropy": lambda: sharded.cross_entropy(x, target),
        "matmul": lambda: sharded.matmul(x, x.T, epilogue="relu"),
        "segment_reduce": lambda: sharded.segment_reduce(
            x, monoids.MAX, target.new_tensor([0, 1, columns]), dim=1, sharded_dim=1
        ),
    }


def disagreeing_call(name: str, what: str) -> str:
    """The error of a call whose tensor has another shape or dtype, or is to have no gradient, on one rank."""
    os.environ["TILEFOLD_CHECK_RANKS"] = "1"
    odd = dist.get_rank() == min(2, dist.get_world_size() - 1)
    rows, dtype = 5 if odd and what == "shape" else 4, torch.float64 if odd and what == "dtype" else None
    x = here(torch.ones(rows, 3, dtype=dtype)).requires_grad_(
        what == "no gradient" or (what == "gradient" and not odd)
    )
    try:
        with torch.set_grad_enabled(not (odd and what == "no gradient")):
            return error_of(exchanges(x)[name])
    finally:
        del os.environ["TILEFOLD_CHECK_RANKS"]


def killed() -> dict[str, tuple[float, str]]:
    """How long each call waits for a rank that is gone, and what it is told."""
    if dist.get_rank() == 1:
        os._exit(1)
    found = {}
    for name, call in exchanges(torch.ones(4, 3)).items():
        began = time.monotonic()
        error = error_of(call, RuntimeError)
        found[name] = time.monotonic() - began, error
    return found


def killed_between(name: str) -> tuple[int, float, str]:
    """A call whose second exchange another rank does not reach: how many it begins, how long it waits, what it is told."""
    begun, real = [], exchange.collective

    def dying(*arguments: Any) -> Any:
        begun.append(arguments)
        if dist.get_rank() == 1 and len(begun) == 2:
            os._exit(1)
        return real(*arguments)

    exchange.collective = dying
    x = torch.ones(4, 3)
    calls = exchanges(x) | {"argmax": lambda: sharded.argmax(x, 1, sharded_dim=1)}
    began = time.monotonic()
    error = error_of(calls[name], RuntimeError)
    return len(begun), time.monotonic() - began, error


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


def transformed(name: str) -> str:
    """The error of a gradient that a transform of torch.func asks for."""
    run = lambda x: listed(exchanges(x)[name]())[0].sum()  # noqa: E731  # one call
    return error_of(lambda: torch.func.grad(run)(here(torch.ones(4, 3))), tilefold.errors.GradientError)


def batched(name: str) -> None:
    """Several cotangents at once have the gradients of each, or are refused where a backward exchanges."""
    x = here(torch.rand(4, 3)).requires_grad_()
    made = next(t for t in listed(exchanges(x)[name]()) if t.requires_grad)
    seeds = torch.arange(1.0, 1 + 3 * made.numel(), device=x.device).reshape(3, *made.shape)
    ask = functools.partial(torch.autograd.grad, made, x, retain_graph=True)
    at_once = functools.partial(ask, seeds, is_grads_batched=True)
    if name in ("reduce_map", "scan"):
        assert "an exchange must be of one call" in error_of(at_once, tilefold.errors.BackendError)
    else:
        torch.testing.assert_close(
            at_once()[0], torch.stack([ask(g)[0] for g in seeds]), rtol=1e-5, atol=1e-5
        )
    (again,) = ask(seeds[1])  # an error leaves nothing behind
    assert torch.equal(again, ask(seeds[1])[0])


def mapped() -> list[str]:
    """The errors of calls that torch.vmap makes at once."""
    names = ("reduce", "reduce_map", "scan", "topk", "cross_entropy", "matmul", "segment_reduce")
    x = here(torch.ones(2, 4, 3))
    of = lambda name: torch.func.vmap(lambda x: exchanges(x)[name]())(x)  # noqa: E731  # one call
    return [error_of(functools.partial(of, name), tilefold.errors.BackendError) for name in names]
