"""What ranks run: each holds a part of one tensor that all draw, and compares with the fold of the whole."""

from __future__ import annotations

import functools
import os
import random
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
# The function of each element and of its row's results, by the monoid; with what is asked of rows.
MAPS: dict[str, tuple[Any, Any]] = {
    "SUM": (lambda x, total: x / total, lambda total: (total, total * total)),
    "LOGSUMEXP": (lambda x, lse, weight: ((x - lse) * weight, x > lse), None),
    "WELFORD": (
        lambda x, count, mean, squares: (x - mean) * squares / count,
        lambda count, mean, squares: mean,
    ),
    "NORM(2.0)": (lambda x, norm, weight: x * norm * weight + weight, None),
    "MEAN": (lambda x, mean: x - mean, None),
}
UNDERIVED: dict[str, Any] = {
    "MAX": lambda x, largest: (x - largest, x == largest),
    "SHIFTS": lambda x, first, last, total: x * first + last - total,
    "AFFINE": lambda a, b, scale, shift: a * scale + b * shift,
    "BITWISE_XOR": lambda x, every: x ^ every,
}
BITS = ("ANY", "ALL", "BITWISE_AND", "BITWISE_OR", "BITWISE_XOR")


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


def listed(made: Any) -> list[torch.Tensor]:
    return [made] if isinstance(made, torch.Tensor) else list(made)


def same(wanted: Any, got: Any) -> None:
    """Elements are small whole numbers: what rounds is a root, a quotient or an exponential."""
    for a, b in zip(listed(wanted), listed(got), strict=True):
        assert (a.dtype, a.shape) == (b.dtype, b.shape)
        torch.testing.assert_close(
            b, a, rtol=1e-11 if a.dtype == torch.float64 else 1e-5, atol=1e-11, equal_nan=True
        )


def fold(function: Any, tensors: list[torch.Tensor], *arguments: Any, **named: Any) -> Any:
    return function(tensors[0] if len(tensors) == 1 else tensors, *arguments, **named)


def drawn(seed: int, count: int) -> int:
    """Random monoids, shapes, dims and uneven shards. Gives how many folds were compared."""
    groups, done, wrong = groups_of(), 0, list[str]()
    for case in range(seed, seed + count):
        draw = random.Random(case)
        name, size = draw.choice(sorted(CATALOGUE)), draw.choice(list(groups))
        monoid, rank = CATALOGUE[name], dist.get_rank()
        integers = [torch.bool] if name in ("ANY", "ALL") else [torch.int8, torch.int64]
        dtype = draw.choice(integers if name in BITS else [torch.float64, torch.float32, torch.float64])
        axis, ndim = 0, draw.choice([1, 2, 3])
        axis = draw.randrange(ndim)
        sizes = [draw.choice([0, 1, 2, 5]) for _ in range(size)]
        if monoid.algebra.identity is None:
            sizes[draw.randrange(size)] = 3
        shape = [sum(sizes) if d == axis else draw.choice([1, 2, 3]) for d in range(ndim)]
        dims = sorted({axis, *draw.sample(range(ndim), draw.randrange(ndim + 1))})
        keepdim = draw.random() < 0.5
        if rank >= size:
            continue
        generator = torch.Generator().manual_seed(case)
        whole = [
            here(torch.randint(-2, 3, shape, generator=generator).to(dtype))
            for _ in range(monoid.algebra.inputs)
        ]
        own = [t.split(sizes, axis)[rank] for t in whole]
        wanted = fold(tilefold.reduce, whole, monoid, dims, keepdim)
        got = fold(sharded.reduce, own, monoid, dims, keepdim, sharded_dim=axis - ndim, group=groups[size])
        try:
            same(wanted, got)
        except AssertionError as error:  # later, so that ranks stay in step
            wrong.append(f"case {case}: {name} {dtype} {shape} dims {dims} shards {sizes} of {axis}: {error}")
        done += 1
    assert not wrong, "\n".join(wrong)
    return done


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


def selections(seed: int, count: int) -> int:
    """The best of drawn shards, many of them equal: values and positions are the whole's, and each rank has its gradient."""
    groups, rank, wrong = groups_of(), dist.get_rank(), list[str]()
    dtypes = [torch.float32, torch.bfloat16, torch.int64, torch.uint8, torch.bool, torch.float8_e4m3fn]
    for case in range(seed, seed + count):
        draw, generator = random.Random(case), torch.Generator().manual_seed(case)
        size, dtype, largest = draw.choice(list(groups)), draw.choice(dtypes), draw.random() < 0.5
        sizes = [draw.choice([0, 1, 4, 40]) for _ in range(size)]
        sizes[draw.randrange(size)] = 5
        axis, ndim = draw.choice([(0, 1), (0, 2), (1, 2), (1, 3)])
        shape = [sum(sizes) if d == axis else draw.choice([1, 3]) for d in range(ndim)]
        x = torch.randint(0 if dtype == torch.uint8 else -2, 3, shape, generator=generator).float()
        if dtype.is_floating_point and draw.random() < 0.5:
            odd = draw.choice([float("nan"), torch.finfo(dtype).min])
            x = torch.where(torch.rand(shape, generator=generator) < 0.3, odd, x)
        x = here(x.to(dtype))
        k = draw.randint(0, min(shape[axis], 32))
        if rank >= size:
            continue
        derives = dtype in (torch.float32, torch.bfloat16)
        whole = x.clone().requires_grad_(derives)
        own = x.split(sizes, axis)[rank].clone().requires_grad_(derives)
        wanted = tilefold.topk(whole, k, axis, largest)
        got = sharded.topk(own, k, axis, largest, sharded_dim=axis, group=groups[size])
        pairs = [(wanted.values.detach(), got.values.detach()), (wanted.indices, got.indices)]
        if derives:
            g = here(torch.randn(wanted.values.shape, generator=generator)).to(dtype)
            (a,), (b,) = (torch.autograd.grad(m.values, t, g) for m, t in ((wanted, whole), (got, own)))
            pairs.append((a.split(sizes, axis)[rank], b))
        try:
            for a, b in pairs:
                torch.testing.assert_close(b.double(), a.double(), rtol=0, atol=0, equal_nan=True)
        except AssertionError as error:
            wrong.append(f"case {case}: {dtype} {shape} k {k} of shards {sizes}, largest {largest}: {error}")
    assert not wrong, "\n".join(wrong)
    return count


def products(seed: int, count: int) -> int:
    """Drawn products of uneven parts of K, with bias and epilogue: results and gradients are the whole's."""
    groups, rank, wrong = groups_of(), dist.get_rank(), list[str]()
    for case in range(seed, seed + count):
        draw, generator = random.Random(case), torch.Generator().manual_seed(case)
        size = draw.choice(list(groups))
        dtype = draw.choice([torch.float64, torch.float32, torch.bfloat16, torch.int8])
        sizes = [draw.choice([0, 1, 8, 17]) for _ in range(size)]
        sizes[draw.randrange(size)] = 5
        scatter, batch = draw.random() < 0.4, draw.choice([(), (3,)])
        m, n, k = size * draw.choice([1, 4]), draw.choice([1, 6]), sum(sizes)

        def made(*shape: int, generator: Any = generator, dtype: Any = dtype) -> torch.Tensor:
            return here(torch.randn(shape, generator=generator, dtype=torch.float64).mul(3).to(dtype))

        whole = [made(*batch, m, k), made(k, n)]
        named: dict[str, Any] = {"bias": made(n)} if draw.random() < 0.5 else {}
        named["epilogue"] = draw.choice([None, "relu", "gelu", lambda x, y: x + y])
        if callable(named["epilogue"]):
            named["epilogue_args"] = [made(*batch, m, n)]
        if rank >= size:
            continue
        derives = dtype.is_floating_point
        own = [
            t.split(sizes, d)[rank].clone().requires_grad_(derives)
            for t, d in zip(whole, (-1, -2), strict=True)
        ]
        whole = [t.requires_grad_(derives) for t in whole]
        wanted = tilefold.matmul(*whole, **named)
        parts = size if scatter else 1

        def part(t: torch.Tensor, parts: int = parts) -> torch.Tensor:
            return t.chunk(parts, -2)[rank % parts]

        given = named | (
            {"epilogue_args": [part(t) for t in named["epilogue_args"]]} if "epilogue_args" in named else {}
        )
        got = sharded.matmul(*own, scatter=scatter, group=groups[size], **given)
        pairs = [(part(wanted), got)]
        if derives:
            g = made(*wanted.shape)
            of_whole = torch.autograd.grad(wanted, whole, g)
            of_own = torch.autograd.grad(got, own, part(g))
            pairs += [
                (t.split(sizes, d)[rank], o) for t, d, o in zip(of_whole, (-1, -2), of_own, strict=True)
            ]
        try:
            for a, b in pairs:
                largest = float(a.detach().abs().double().max()) if a.numel() else 0.0
                bound = {torch.float64: 1e-12, torch.float32: 1e-5, torch.bfloat16: 1.6e-2}.get(dtype, 0.0)
                assert (a.dtype, a.shape) == (b.dtype, b.shape)
                torch.testing.assert_close(b, a, rtol=bound, atol=bound * largest)
        except AssertionError as error:
            wrong.append(f"case {case}: {dtype} {m} {n} shards {sizes} {named} scatter {scatter}: {error}")
    assert not wrong, "\n".join(wrong)
    return count


def compiled_product() -> None:
    """A product of parts of K as one graph, with the same bits."""
    group, rank = group_of(2), dist.get_rank()
    if rank >= 2:
        return
    torch.compiler.reset()
    torch.manual_seed(rank)
    a, b = (here(torch.randn(4, 4)).requires_grad_() for _ in range(2))

    def call(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
        return sharded.matmul(a, b, epilogue="gelu", group=group)

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
    )
    return [error_of(call, tilefold.errors.TilefoldError) for call in calls]


def too_many() -> str:
    """The error of more elements than all ranks have."""
    return error_of(lambda: sharded.topk(torch.ones(2, 1), 9, sharded_dim=1), tilefold.errors.ShapeError)


def without_dims() -> list[str]:
    """The errors of parts without dims, which are not a rank's own."""
    calls = (
        lambda: sharded.sum(torch.ones(()), sharded_dim=0),
        lambda: sharded.softmax(torch.ones(()), 0, sharded_dim=0),
        lambda: sharded.topk(torch.ones(()), 1, 0, sharded_dim=0),
    )
    return [error_of(call, tilefold.errors.ShapeError) for call in calls]


def losses(seed: int, count: int) -> int:
    """Drawn options, shapes and shards of cross-entropy: loss, log-sum-exp and gradients are the whole one's."""
    groups, rank, wrong = groups_of(), dist.get_rank(), list[str]()
    for case in range(seed, seed + count):
        draw, generator = random.Random(case), torch.Generator().manual_seed(case)
        size, dtype = draw.choice(list(groups)), draw.choice([torch.float64, torch.float32, torch.bfloat16])
        sizes = [draw.choice([0, 1, 3, 6]) for _ in range(size)]
        sizes[draw.randrange(size)] = 5
        if draw.random() < 0.4:
            sizes = [4] * size
        shape = draw.choice([(sum(sizes),), (3, sum(sizes)), (2, sum(sizes), 3)])
        dim = min(1, len(shape) - 1)
        options: dict[str, Any] = {
            "reduction": draw.choice(["mean", "sum", "none"]),
            "label_smoothing": draw.choice([0.0, 0.0, 0.1]),
            "z_loss": draw.choice([0.0, 0.0, 1e-3]),
            "softcap": draw.choice([None, None, 2.0]),
            "return_lse": True,
        }
        x = here(torch.randn(shape, generator=generator, dtype=torch.float64).to(dtype))
        if draw.random() < 0.2:
            x.view(-1)[draw.randrange(x.numel())] = draw.choice([float("nan"), -float("inf")])
        rows = [n for d, n in enumerate(shape) if d != dim]
        soft = draw.random() < 0.3
        if soft:
            target = here(torch.rand(shape, generator=generator, dtype=torch.float64).to(dtype))
        else:
            target = here(torch.randint(0, sum(sizes), rows, generator=generator))
            if target.numel() and draw.random() < 0.3:
                options["ignore_index"] = int(target.view(-1)[0])
        weight = (
            here(torch.rand(sum(sizes), generator=generator, dtype=torch.float64))
            if draw.random() < 0.4
            else None
        )
        if rank >= size:
            continue
        whole = [x.requires_grad_(), *([target.requires_grad_()] if soft else [])]
        wanted = tilefold.cross_entropy(x, target, weight, **options)
        own = [t.detach().split(sizes, dim)[rank].clone().requires_grad_() for t in whole]
        part = None if weight is None else weight.split(sizes)[rank]
        given = None if len(set(sizes)) == 1 and draw.random() < 0.5 else sizes
        got = sharded.cross_entropy(
            own[0], own[1] if soft else target, part, sizes=given, group=groups[size], **options
        )
        seeds = [torch.randn(t.shape, generator=generator, dtype=torch.float64).to(t) for t in wanted]
        of_whole, of_own = (torch.autograd.grad(m, i, seeds) for m, i in ((wanted, whole), (got, own)))
        try:
            close(wanted, got, dtype)
            close([t.split(sizes, dim)[rank] for t in of_whole], of_own, dtype)
        except AssertionError as error:
            wrong.append(f"case {case}: {dtype} {shape} shards {sizes} {options}: {error}")
    assert not wrong, "\n".join(wrong)
    return count


def maps(seed: int, count: int) -> int:
    """Drawn rows, functions and shards: each rank's results and gradients are its part of the whole's."""
    groups, rank, wrong = groups_of(), dist.get_rank(), list[str]()
    for case in range(seed, seed + count):
        draw, generator = random.Random(case), torch.Generator().manual_seed(case)
        size = draw.choice(list(groups))
        dtype = draw.choice([torch.float64, torch.float32, torch.bfloat16])
        ndim = draw.choice([1, 2, 3])
        axis = draw.randrange(ndim)
        sizes = [draw.choice([0, 1, 3, 6]) for _ in range(size)]
        sizes[draw.randrange(size)] = 5
        shape = [sum(sizes) if d == axis else draw.choice([1, 2, 3]) for d in range(ndim)]
        names = ["softmax", "log_softmax", "layer_norm", "rms_norm", "reduce_map", "reduce_map"]
        name, k = draw.choice(names), draw.randint(1, ndim)
        what = draw.choice([*MAPS, *UNDERIVED]) if name == "reduce_map" else name

        def made(shape: Any, generator: Any = generator, dtype: Any = dtype) -> torch.Tensor:
            return here(torch.randn(shape, generator=generator, dtype=torch.float64).to(dtype))

        named, dims = dict[str, Any](), sorted({axis, *draw.sample(range(ndim), draw.randrange(ndim + 1))})
        inputs, beside = [made(shape)], list[torch.Tensor]()
        if name in ("layer_norm", "rms_norm"):
            dims = list(range(ndim - k, ndim))
            beside = [made(shape[ndim - k :]) for _ in range(draw.choice([0, 1, 1 + (name == "layer_norm")]))]
            inputs += [made(shape)] * (draw.random() < 0.3)
        elif name == "reduce_map":
            monoid = sharded.named.MEAN if what == "MEAN" else CATALOGUE[what]
            inputs = [made(shape) for _ in range(monoid.algebra.inputs)]
            beside = [made(shape[axis:])] if what in ("LOGSUMEXP", "NORM(2.0)") else []
            if what == "BITWISE_XOR":
                inputs = [(t * 100).to(torch.int64) for t in inputs]
        elif draw.random() < 0.3:
            named["dtype"] = draw.choice([torch.float32, torch.float64, torch.bfloat16])
        derives = what not in UNDERIVED and draw.random() < 0.8
        if rank >= size:
            continue

        def part(t: torch.Tensor, d: int = axis - ndim, sizes: Any = sizes, n: int = shape[axis]) -> Any:
            return t.split(sizes, d)[rank] if t.ndim >= -d and t.shape[d] == n else t

        def call(
            module: Any, inputs: Any, beside: Any, more: Any, name: str = name, what: str = what, k: int = k,
            dims: Any = dims, ndim: int = ndim, named: Any = named,
        ) -> Any:  # fmt: skip
            x = inputs[0]
            if name == "reduce_map":
                monoid = sharded.named.MEAN if what == "MEAN" else CATALOGUE[what]
                function, rows = MAPS[what] if what in MAPS else (UNDERIVED[what], None)
                return fold(
                    module.reduce_map, inputs, monoid, function, dims, extras=beside, rows=rows, **more
                )
            if name in ("layer_norm", "rms_norm"):
                residual = inputs[1] if len(inputs) > 1 else None
                # so much beside the variance that a gradient of two like elements is no large number
                return getattr(module, name)(
                    x, x.shape[ndim - k :], *beside, eps=0.1, residual=residual, **more
                )
            return getattr(module, name)(x, dims, **named, **more)

        whole = [t.clone().requires_grad_(derives) for t in (*inputs, *beside)]
        own = [part(t).detach().clone().requires_grad_(derives) for t in (*inputs, *beside)]
        m = len(inputs)
        wanted = listed(call(tilefold, whole[:m], whole[m:], {}))
        got = listed(call(sharded, own[:m], own[m:], {"sharded_dim": axis, "group": groups[size]}))
        pairs = [
            (part(a) if a.shape[axis] == shape[axis] else a, b) for a, b in zip(wanted, got, strict=True)
        ]
        if derives:
            floats = [i for i, t in enumerate(wanted) if t.is_floating_point()]
            seeds = [made(wanted[i].shape).to(wanted[i].dtype) for i in floats]
            of_whole = torch.autograd.grad([wanted[i] for i in floats], whole, seeds)
            seeds = [part(s) if s.shape[axis] == shape[axis] else s for s in seeds]
            of_own = torch.autograd.grad([got[i] for i in floats], own, seeds)
            n = len(whole) if axis in dims else m  # of sharded rows, weights have what this rank's rows give
            pairs += [(part(a), b) for a, b in zip(of_whole[:n], of_own[:n], strict=True)]
        try:
            assert [t.requires_grad for t in wanted] == [t.requires_grad for t in got]
            for a, b in pairs:
                close([a], [b], max(dtype, named.get("dtype", dtype), key=lambda d: torch.finfo(d).eps))
        except AssertionError as error:
            wrong.append(
                f"case {case}: {what} {dtype} {shape} dims {dims} shards {sizes} of {axis} {named}: {error}"
            )
    assert not wrong, "\n".join(wrong)
    return count


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
            assert torch.equal(call(x.detach()), call(x))
            made = [
                f(x)
                for f in (
                    call,
                    lambda x: sharded.cross_entropy(x, target, sizes=[2, 3, 3, 3], label_smoothing=0.1),
                )
            ]
            grads = [torch.autograd.grad(m, x)[0] for m in made]
            assert torch.equal(*made)
            assert torch.equal(*grads)
            return None
    except (tilefold.errors.TilefoldError, RuntimeError) as error:
        return str(error)
    return f"nothing on rank {rank}"


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


def on_mesh() -> Any:
    """A mesh of two dims with all ranks, the last two by two."""
    size, kind = dist.get_world_size(), "cuda" if dist.get_backend() == "nccl" else "cpu"
    return dist.device_mesh.init_device_mesh(kind, (size // 2, 2), mesh_dim_names=("data", "model"))


def dtensors() -> int:
    """Plain calls of DTensors, forward and backward, on a mesh of two dims. Gives how many were compared."""
    from torch.distributed.tensor import Replicate, Shard, distribute_tensor

    torch.manual_seed(5)
    mesh, count = on_mesh(), 0
    x, w = here(torch.randn(3, 5, dtype=torch.float64)), here(torch.randn(5, dtype=torch.float64))
    rows = [(name, (1,)) for name in ("softmax", "log_softmax")]
    rows += [("rms_norm", ((5,), w)), ("layer_norm", ((5,), w, w)), ("rms_norm", ((3, 5),))]
    folds = [(name, (3.0, 1) if name == "vector_norm" else (d,)) for name in FOLDS for d in (0, 1)]
    lies = ([Shard(0), Shard(1)], [Replicate(), Shard(1)], [Shard(1), Replicate()], [Shard(0), Replicate()])
    for placements in lies:
        for name, given in [*folds, *rows]:
            if (3, 5) in given and Shard(0) in placements and Shard(1) in placements:
                continue
            along = [Shard(0) if p == Shard(1) else Replicate() for p in placements]
            weighted = any(g is w for g in given)
            for of_weight in ([Replicate(), Replicate()], along) if weighted else (along,):
                whole, own = (
                    x.clone().requires_grad_(),
                    distribute_tensor(x, mesh, placements).requires_grad_(),
                )
                both = [
                    [w.clone().requires_grad_()],
                    [distribute_tensor(w, mesh, of_weight).requires_grad_()],
                ]
                a, b = (
                    getattr(tilefold, name)(t, *[weight[0] if g is w else g for g in given])
                    for t, weight in zip((whole, own), both, strict=True)
                )
                same(a.detach(), b.full_tensor().detach())
                count += 1
                if name.startswith("arg"):
                    continue
                seed = torch.randn_like(a)
                a.backward(seed)
                b.backward(distribute_tensor(seed, mesh, b.placements))
                assert own.grad.placements == own.placements
                for t, spread in ((whole, own), *zip(*both, strict=True)):
                    if t.grad is not None:  # a weight's is Partial where ranks with other rows share it
                        same(t.grad, spread.grad.full_tensor())
    return count


def compiled_dtensors() -> None:
    """A norm and a fold of a sharded dim as one graph."""
    from torch.distributed.tensor import Replicate, Shard, distribute_tensor

    torch.compiler.reset()
    torch.manual_seed(6)
    mesh, x, w = on_mesh(), here(torch.randn(4, 6)), here(torch.randn(6))

    def both(x: Any, w: Any) -> Any:
        return tilefold.logsumexp(tilefold.rms_norm(x, (6,), w), 1)

    own = distribute_tensor(x, mesh, [Shard(0), Shard(1)]).requires_grad_()
    weight = distribute_tensor(w, mesh, [Replicate(), Shard(0)])
    made = [f(own, weight) for f in (both, torch.compile(both, fullgraph=True, backend="aot_eager"))]
    grads = [torch.autograd.grad(m.sum(), own)[0] for m in made]
    same(*(m.full_tensor().detach() for m in made))
    same(*(g.full_tensor() for g in grads))


def refused_dtensors() -> list[str]:
    """The errors of what is not supported."""
    from torch.distributed.tensor import DTensor, Partial, Replicate, Shard, distribute_tensor

    mesh, x = on_mesh(), here(torch.ones(4, 6))
    part = DTensor.from_local(x, mesh, [Partial(), Replicate()], run_check=False)
    both = distribute_tensor(x, mesh, [Shard(0), Shard(1)])
    calls = (
        lambda: tilefold.sum(part, 1),
        lambda: tilefold.sum(both),
        lambda: tilefold.rms_norm(both, (6,), x[0]),
        lambda: tilefold.rms_norm(both, (6,), residual=distribute_tensor(x, mesh, [Shard(1), Shard(0)])),
        lambda: tilefold.reduce(both, monoids.SUM, 1, return_state=True),
        lambda: tilefold.cumsum(both, 1),
        lambda: tilefold.softmax(both, 1, out=both),
        lambda: tilefold.rms_norm(both, (6,), distribute_tensor(x[0], mesh["model"], [Shard(0)])),
        lambda: tilefold.reduce(
            [distribute_tensor(t, mesh, [Replicate()] * 2) for t in (x[:, :1], x[:1])], monoids.AFFINE, 1
        ),
    )
    return [error_of(call, tilefold.errors.TilefoldError) for call in calls]


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
    own = x.split(sizes_of(1500, 7, 1493, 1000), 1)[rank]
    made = [
        sharded.sum(own, 1, sharded_dim=1),
        sharded.logsumexp(own, 1, sharded_dim=1),
        sharded.var(own, sharded_dim=1),
        sharded.softmax(x, 0, sharded_dim=0),
        sharded.rms_norm(x, x.shape[1:], sharded_dim=1),
        sharded.topk(own, 20, 1, sharded_dim=1).indices,
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
        if what == "k":
            return error_of(lambda: sharded.topk(x, 2 if odd else 3, sharded_dim=1))
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
    made = getattr(sharded, name)(x, 0, sharded_dim=0).sum()
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


def killed() -> tuple[float, str]:
    """How long a rank waits for one that is gone, and what it is told."""
    if dist.get_rank() == 1:
        os._exit(1)
    began = time.monotonic()
    error = error_of(lambda: sharded.sum(torch.ones(4), 0, sharded_dim=0), RuntimeError)
    return time.monotonic() - began, error
