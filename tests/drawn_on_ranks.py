"""What ranks run of drawn cases: monoids, shapes, dims and uneven shards, compared with calls of the whole tensors."""

from __future__ import annotations

import itertools
import random
from typing import Any

import torch
import torch.distributed as dist

import tilefold
import tilefold.distributed as sharded
from on_ranks import CATALOGUE, close, error_of, fold, groups_of, here, listed, on_mesh, same

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


def drawn(seed: int, count: int) -> int:
    """Each monoid of the catalogue in turn, of drawn shapes, dtypes, dims and uneven shards, of one dim or by a mesh of two:
    the fold is the whole's, or is refused as it is. Gives how many were compared."""
    groups, names, rank, wrong = groups_of(), sorted(CATALOGUE), dist.get_rank(), list[str]()
    mesh = on_mesh() if dist.get_world_size() % 2 == 0 else None
    for case in range(seed, seed + count):
        draw, name = random.Random(case), names[case % len(names)]
        monoid, ndim, keepdim = CATALOGUE[name], draw.choice([1, 2, 3]), draw.random() < 0.5
        wide = [
            torch.float64,
            torch.float32,
            torch.float64,
            torch.bfloat16,
            torch.float16,
            torch.int32,
            torch.uint8,
        ]
        bits = [torch.bool] if name in ("ANY", "ALL") else [torch.int8, torch.int64]
        dtype = draw.choice(bits if name in BITS else wide)
        least = 1 if monoid.algebra.identity is None else 0
        if mesh is not None and draw.random() < 0.4:
            shards: dict[str, Any] = {"mesh": mesh}
            parts, axes, shape = _parts_by_mesh(draw, mesh, ndim, least)
            shards["sharded_dim"] = tuple(axes)
        else:
            size = draw.choice(list(groups))
            parts, axes, shape = _parts_of_group(draw, size, ndim, least)
            shards = {"sharded_dim": axes[0] - ndim, "group": groups[size]}
        dims = sorted({*axes, *draw.sample(range(ndim), draw.randrange(ndim + 1))})
        if rank >= len(parts):
            continue
        generator = torch.Generator().manual_seed(case)
        low = 0 if dtype == torch.uint8 else -2
        whole = [
            here(torch.randint(low, 3, shape, generator=generator).to(dtype))
            for _ in range(monoid.algebra.inputs)
        ]
        own = [t[parts[rank]] for t in whole]
        asked = (monoid, dims, keepdim)
        try:
            wanted = fold(tilefold.reduce, whole, *asked)
        except tilefold.errors.TilefoldError as error:
            refused = error_of(
                lambda own=own, asked=asked, more=shards: fold(sharded.reduce, own, *asked, **more),
                type(error),
            )
            if not refused:
                wrong.append(f"case {case}: {name} {dtype} is not refused: {error}")
            continue
        got = fold(sharded.reduce, own, *asked, **shards)
        try:
            same(wanted, got)
        except AssertionError as error:  # later, so that ranks stay in step
            wrong.append(f"case {case}: {name} {dtype} {shape} dims {dims} shards {parts} of {axes}: {error}")
    assert not wrong, "\n".join(wrong)
    return count


Part = tuple[slice, ...]


def _along(ndim: int, axis: int, begin: int, size: int) -> Part:
    return tuple(slice(begin, begin + size) if d == axis else slice(None) for d in range(ndim))


def _parts_of_group(
    draw: random.Random, size: int, ndim: int, least: int
) -> tuple[list[Part], list[int], list[int]]:
    """Where each rank's shard of one dim lies, that dim, and the whole shape."""
    axis, sizes = draw.randrange(ndim), [draw.choice([0, 1, 2, 5]) for _ in range(size)]
    sizes[draw.randrange(size)] += 3 * least
    parts = [_along(ndim, axis, sum(sizes[:i]), n) for i, n in enumerate(sizes)]
    return parts, [axis], [sum(sizes) if d == axis else draw.choice([1, 2, 3]) for d in range(ndim)]


def _parts_by_mesh(
    draw: random.Random, mesh: Any, ndim: int, least: int
) -> tuple[list[Part], list[int], list[int]]:
    """The same of what each dim of a mesh divides: two dims, or one twice."""
    rows, columns = mesh.shape
    first, second = draw.randrange(ndim), draw.randrange(ndim)
    outer = [draw.choice([0, 1, 3]) + least for _ in range(rows)]
    inner = [[draw.choice([0, 1, 4]) + least for _ in range(columns)] for _ in range(rows)]
    shape, parts = [draw.choice([1, 2, 3]) for _ in range(ndim)], list[Part]()
    if first == second:
        flat = [n for row in inner for n in row]
        shape[first] = sum(flat)
        parts = [_along(ndim, first, sum(flat[:i]), n) for i, n in enumerate(flat)]
    else:
        shape[first], shape[second] = sum(outer), sum(inner[0])
        for i, j in itertools.product(range(rows), range(columns)):
            own = list(_along(ndim, first, sum(outer[:i]), outer[i]))
            own[second] = slice(sum(inner[0][:j]), sum(inner[0][: j + 1]))
            parts.append(tuple(own))
    return parts, [first, second], shape


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


def segments(seed: int, count: int) -> int:
    """Drawn segments that cross ranks, with empty ones and shards: results and gradients are the whole's."""
    groups, rank, wrong = groups_of(), dist.get_rank(), list[str]()
    for case in range(seed, seed + count):
        draw, generator = random.Random(case), torch.Generator().manual_seed(case)
        name, size = draw.choice(sorted(CATALOGUE)), draw.choice(list(groups))
        monoid, ndim = CATALOGUE[name], draw.choice([1, 2, 3])
        dtype = draw.choice([torch.float64, torch.float32, torch.float64])
        if name in BITS:
            dtype = torch.bool if name in ("ANY", "ALL") else draw.choice([torch.int8, torch.int64])
        axis = draw.randrange(ndim)
        sizes = [draw.choice([0, 1, 2, 7]) for _ in range(size)]
        length, count_of, partial = sum(sizes), draw.choice([0, 1, 2, 5, 9]), draw.random() < 0.3
        shape = [length if d == axis else draw.choice([1, 2, 3]) for d in range(ndim)]
        needs_one = monoid.algebra.identity is None
        if needs_one:
            count_of = min(count_of, length)
        cuts = draw.sample(range(1, length), count_of - 1) if needs_one and count_of else []
        cuts = cuts if needs_one else [draw.randint(0, length) for _ in range(count_of - 1)]
        offsets = torch.tensor(sorted([0, *cuts, length]) if count_of else [0])
        partial = partial or not count_of
        if partial and not needs_one:
            offsets = offsets.clamp(draw.randint(0, length), length).clamp(max=draw.randint(0, length))
        kind, whole_lengths = draw.choice(["offsets", "lengths", "by"]), offsets.diff()
        if kind == "lengths" and int(offsets[0]) > 0:
            kind = "offsets"
        if rank >= size:
            continue
        keys = torch.searchsorted(offsets, torch.arange(length), right=True) - 1
        given: dict[str, Any] = {"offsets": {"offsets": here(offsets)}, "lengths": {"lengths": here(whole_lengths)}}.get(
            kind, {"by": here(keys), "num_segments": count_of}
        )  # fmt: skip
        own_given = given | ({"by": given["by"].split(sizes)[rank]} if kind == "by" else {})
        whole = [
            here(torch.randint(-2, 3, shape, generator=generator).to(dtype))
            for _ in range(monoid.algebra.inputs)
        ]
        derives = dtype.is_floating_point
        whole = [t.requires_grad_(derives) for t in whole]
        own = [t.detach().split(sizes, axis)[rank].clone().requires_grad_(derives) for t in whole]
        form = {"dim": axis - ndim, "partial": partial}
        try:
            wanted = listed(fold(tilefold.segment_reduce, whole, monoid, **form, **given))
            shards = {"sharded_dim": axis, "group": groups[size]}
            got = listed(fold(sharded.segment_reduce, own, monoid, **form, **own_given, **shards))
            same([t.detach() for t in wanted], [t.detach() for t in got])
            moved = [i for i, t in enumerate(wanted) if t.requires_grad]
            assert moved == [i for i, t in enumerate(got) if t.requires_grad]
            if moved:
                seeds = [
                    here(torch.randn(wanted[i].shape, generator=generator, dtype=torch.float64))
                    for i in moved
                ]
                of_whole, of_own = (
                    torch.autograd.grad([made[i] for i in moved], inputs, [s.to(made[0]) for s in seeds])
                    for made, inputs in ((wanted, whole), (got, own))
                )
                close([t.split(sizes, axis)[rank] for t in of_whole], of_own, dtype)
        except (AssertionError, RuntimeError) as error:
            wrong.append(
                f"case {case}: {name} {dtype} {shape} shards {sizes} of {axis} {kind} {offsets.tolist()} {partial}: {error}"
            )
    assert not wrong, "\n".join(wrong)
    return count


def of_rows(made: Any) -> list[torch.Tensor]:
    """A product, and what its rows fold to."""
    return [made] if isinstance(made, torch.Tensor) else [made[0], *listed(made[1])]


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
        if draw.random() < 0.4 and dtype.is_floating_point:
            named["row"] = draw.choice(
                [
                    (CATALOGUE["MAX_WITH_INDEX"], None),
                    (CATALOGUE["LOGSUMEXP"], lambda x, lse: x - lse),
                    (CATALOGUE["WELFORD"], lambda x, count, mean, squares: (x - mean) * count),
                ]
            )
        if rank >= size:
            continue
        derives = dtype.is_floating_point
        own = [
            t.split(sizes, d)[rank].clone().requires_grad_(derives)
            for t, d in zip(whole, (-1, -2), strict=True)
        ]
        whole = [t.requires_grad_(derives) for t in whole]
        wanted = of_rows(tilefold.matmul(*whole, **named))
        parts = size if scatter else 1

        def part(t: torch.Tensor, parts: int = parts, rows: int = -2) -> torch.Tensor:
            return t.chunk(parts, rows)[rank % parts]

        given = named | (
            {"epilogue_args": [part(t) for t in named["epilogue_args"]]} if "epilogue_args" in named else {}
        )
        got = of_rows(sharded.matmul(*own, scatter=scatter, group=groups[size], **given))
        pairs = [
            (part(w, rows=-2 if i == 0 else -1), g) for i, (w, g) in enumerate(zip(wanted, got, strict=True))
        ]
        if derives:
            g = made(*wanted[0].shape)
            of_whole = torch.autograd.grad(wanted[0], whole, g)
            of_own = torch.autograd.grad(got[0], own, part(g))
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
