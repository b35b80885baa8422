"""What ranks run: each holds a part of one tensor that all draw, and compares with the fold of the whole."""

from __future__ import annotations

import functools
import itertools
import time
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist

import tilefold
import tilefold.distributed as sharded
from tilefold import monoids
from tilefold.distributed import exchange

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


def close(wanted: Any, got: Any, dtype: torch.dtype) -> None:
    tolerance = {torch.float64: 1e-11, torch.float32: 1e-5, torch.bfloat16: 1e-2}[dtype]
    for a, b in zip(wanted, got, strict=True):
        assert (a.dtype, a.shape) == (b.dtype, b.shape)
        torch.testing.assert_close(b, a, rtol=tolerance, atol=tolerance, equal_nan=True)


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


def scan_gradients(names: list[str]) -> None:
    """A rank's part of the whole scan's gradient: of elements that tie, and of NaN on any rank."""
    torch.manual_seed(18)
    sizes, rank = sizes_of(2, 0, 3, 1), dist.get_rank()
    whole = here(torch.randint(-1, 2, (40, 6)).double())
    whole = whole.masked_fill(here(torch.rand(40, 6) < 0.1), float("nan"))
    whole[:6] = here(torch.arange(6.0).masked_fill(torch.eye(6, dtype=torch.bool), float("nan")))
    own, seed = whole.split(sizes, 1)[rank].clone(), here(torch.randint(1, 9, (40, 6)).double())
    of = {**CATALOGUE, "no identity": tilefold.Monoid(tilefold.math.maximum, None)}
    whole.requires_grad_(), own.requires_grad_()
    for name, reverse in itertools.product(names, (False, True)):
        for exclusive in (False, True)[: 1 + (of[name].algebra.identity is not None)]:
            form = {"exclusive": exclusive, "reverse": reverse}
            wanted = listed(tilefold.scan(whole, of[name], 1, **form))
            (of_whole,) = torch.autograd.grad(
                [t for t in wanted if t.requires_grad], whole, seeds_of(wanted, seed)
            )
            for place in ({"sharded_dim": 1}, {"sharded_dim": (1, 1), "mesh": on_mesh()}):
                got = listed(sharded.scan(own, of[name], 1, **form, **place))
                part = seed.split(sizes, 1)[rank]
                (of_own,) = torch.autograd.grad([t for t in got if t.requires_grad], own, seeds_of(got, part))
                same(of_whole.split(sizes, 1)[rank], of_own)


def seeds_of(made: list[torch.Tensor], seed: torch.Tensor) -> list[torch.Tensor]:
    """A cotangent of each result that has one."""
    return [seed * (1 + i) for i, t in enumerate(made) if t.requires_grad]


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
