"""What ranks run of DTensors on a mesh of two dims: plain calls are those of the whole tensors, forward and backward."""

from __future__ import annotations

import copy
import functools
import itertools
import os
import random
from typing import Any

import torch
import torch.distributed as dist
from functorch.compile import make_boxed_func
from torch._dynamo.backends.common import aot_autograd
from torch.distributed.tensor import DTensor, Partial, Replicate, Shard, distribute_tensor

import tilefold
import tilefold.distributed as sharded
from drawn_on_ranks import of_rows
from on_ranks import CATALOGUE, FOLDS, close, error_of, here, listed, on_mesh, same
from tilefold import monoids

LIES = ([Shard(0), Shard(1)], [Replicate(), Shard(1)], [Shard(1), Replicate()], [Shard(0), Replicate()])
TWICE = ([Shard(0), Shard(0)], [Shard(1), Shard(1)], [Shard(1), Shard(0)])


def whole_of(t: Any) -> torch.Tensor:
    return t.full_tensor() if isinstance(t, DTensor) else t


def compared(wanted: Any, got: Any, whole: list[torch.Tensor], own: list[Any], dtype: torch.dtype) -> None:
    """Results, and the gradients of what asks for them, are the whole's; results that move have cotangents."""
    a, b = listed(wanted), listed(got)
    close([t.detach() for t in a], [whole_of(t).detach() for t in b], dtype)
    moved = [i for i, t in enumerate(a) if t.requires_grad]
    assert moved == [i for i, t in enumerate(b) if t.requires_grad]
    if moved:
        generator = torch.Generator().manual_seed(7)
        seeds = [
            here(torch.randn(a[i].shape, generator=generator, dtype=torch.float64)).to(a[i]) for i in moved
        ]
        spread = [
            distribute_tensor(s, b[i].device_mesh, b[i].placements) for i, s in zip(moved, seeds, strict=True)
        ]
        of_whole = torch.autograd.grad([a[i] for i in moved], whole, seeds)
        of_own = torch.autograd.grad([b[i] for i in moved], own, spread)
        close(of_whole, [whole_of(t) for t in of_own], dtype)


def both(x: torch.Tensor, mesh: Any, placements: Any, derives: bool = True) -> tuple[torch.Tensor, Any]:
    """A tensor and the DTensor of it, of which gradients may be asked."""
    derives = derives and x.is_floating_point()
    return x.clone().requires_grad_(derives), distribute_tensor(x, mesh, placements).requires_grad_(derives)


def plain_calls() -> int:
    """Folds, maps and norms. Gives how many were compared."""
    torch.manual_seed(5)
    mesh, count = on_mesh(), 0
    x, w = here(torch.randn(3, 5, dtype=torch.float64)), here(torch.randn(5, dtype=torch.float64))
    rows: list[Any] = [(name, (1,)) for name in ("softmax", "log_softmax")]
    rows += [("rms_norm", ((5,), w)), ("layer_norm", ((5,), w, w)), ("rms_norm", ((3, 5),))]
    folds = [(name, (3.0, 1) if name == "vector_norm" else (d,)) for name in FOLDS for d in (0, 1)]
    every = [("argmax", ()), ("var", ((0, 1),)), ("logsumexp", ((0, 1),)), ("amax", ((0, 1),)), ("max", (1,))]
    for placements in LIES:
        for name, given in [*folds, *rows, *(every if placements is LIES[0] else [])]:
            along = [Shard(0) if p == Shard(1) else Replicate() for p in placements]
            weighted = any(g is w for g in given)
            for of_weight in ([Replicate(), Replicate()], along) if weighted else (along,):
                pair, weights = both(x, mesh, placements), both(w, mesh, of_weight)
                made = [
                    getattr(tilefold, name)(t, *[weight if g is w else g for g in given])
                    for t, weight in zip(pair, weights, strict=True)
                ]
                inputs = [[t, weight] if weighted else [t] for t, weight in zip(pair, weights, strict=True)]
                compared(*made, *inputs, torch.float64)
                count += 1
    return count


def chunks() -> None:
    """A stream of chunks: the state after one stands before the next."""
    torch.manual_seed(12)
    mesh = on_mesh()
    for placements in (LIES[0], LIES[3], TWICE[1]):
        for monoid in (monoids.LOGSUMEXP, monoids.AFFINE, monoids.FIRST):
            whole: Any = None
            spread: Any = None
            for _ in range(2):
                x = [here(torch.randn(4, 6, dtype=torch.float64)) for _ in range(monoid.algebra.inputs)]
                own = [distribute_tensor(t, mesh, placements) for t in x]
                whole, spread = (
                    tilefold.reduce(t, monoid, 1, init=made and made[1], return_state=True)
                    for t, made in ((x, whole), (own, spread))
                )
                for a, b in zip(whole, spread, strict=True):
                    same(a, [whole_of(t) for t in listed(b)])


def several_dims(seed: int, count: int) -> int:
    """Drawn monoids over dims that two dims of the mesh divide, one dim twice too: in order, and with positions."""
    mesh, wrong = on_mesh(), list[str]()
    for case in range(seed, seed + count):
        draw, generator = random.Random(case), torch.Generator().manual_seed(case)
        name = draw.choice([n for n in sorted(CATALOGUE) if n not in ("ANY", "ALL") and "BIT" not in n])
        monoid, placements = (
            CATALOGUE[name],
            draw.choice([*TWICE, [Shard(0), Shard(1)], [Shard(0), Shard(2)]]),
        )
        least = 1 if monoid.algebra.identity is None else 0
        shape = [draw.choice([4, 5, 7] if least else [1, 3, 5]) for _ in range(3)]
        dims = draw.choice([None, (0, 1), (1,), (0,), (1, 2)])
        whole = [
            here(torch.randint(-2, 3, shape, generator=generator).double())
            for _ in range(monoid.algebra.inputs)
        ]
        own = [distribute_tensor(t, mesh, placements) for t in whole]
        one = len(whole) == 1
        try:
            for call in (
                lambda x, m=monoid, d=dims: tilefold.reduce(x, m, d),
                lambda x, m=monoid: tilefold.scan(x, m, 0),
            ):
                made = [listed(call(x[0] if one else x)) for x in (whole, own)]
                same(made[0], [whole_of(t) for t in made[1]])
        except (AssertionError, tilefold.errors.TilefoldError) as error:
            wrong.append(f"case {case}: {name} {shape} dims {dims} as {placements}: {error}")
    assert not wrong, "\n".join(wrong)
    return count


def scans() -> None:
    """Prefixes along sharded dims and others, and their gradients."""
    torch.manual_seed(8)
    mesh, x = on_mesh(), here(torch.randn(5, 6, dtype=torch.float64))
    for placements in (*LIES, *TWICE):
        for name, dim in (("cumsum", 0), ("cummax", 1), ("logcumsumexp", 1), ("cumprod", 0)):
            pair = both(x, mesh, placements)
            made = [getattr(tilefold, name)(t, dim) for t in pair]
            compared(*made, [pair[0]], [pair[1]], torch.float64)
        for reverse in (False, True):
            pairs = [both(x * f, mesh, placements) for f in (0.5, 1.0)]
            whole, own = ([p[i] for p in pairs] for i in (0, 1))
            made = [
                tilefold.scan(t, monoids.AFFINE, 1, reverse=reverse, exclusive=True) for t in (whole, own)
            ]
            compared(*made, whole, own, torch.float64)


def selections() -> None:
    """The best elements, of equal ones the first, with positions in the whole tensor."""
    torch.manual_seed(9)
    mesh, x = on_mesh(), here(torch.randint(-3, 4, (5, 9)).double())
    for placements in (*LIES, *TWICE):
        for dim, k, largest in ((1, 4, True), (0, 3, False)):
            pair = both(x, mesh, placements)
            made = [tilefold.topk(t, k, dim, largest) for t in pair]
            compared(*made, [pair[0]], [pair[1]], torch.float64)


def segments() -> None:
    """Segments that cross ranks, along a dim that one or two dims of the mesh divide, and their gradients."""
    torch.manual_seed(14)
    mesh, x = on_mesh(), here(torch.randn(5, 9, dtype=torch.float64))
    rows, columns = here(torch.tensor([0, 1, 1, 4, 5])), here(torch.tensor([0, 0, 2, 7, 7, 9]))
    for placements in (*LIES, *TWICE):
        for dim, offsets in enumerate((rows, columns)):
            keys = torch.searchsorted(offsets, torch.arange(x.shape[dim], device=x.device), right=True) - 1
            along = [Shard(0) if p == Shard(dim) else Replicate() for p in placements]
            for monoid in (monoids.LOGSUMEXP, monoids.MAX, monoids.MAX_WITH_INDEX, monoids.AFFINE):
                pairs = [both(x * f, mesh, placements) for f in (1.0, 0.5)[: monoid.algebra.inputs]]
                whole, own = ([p[i] for p in pairs] for i in (0, 1))
                given = [(offsets, distribute_tensor(offsets, mesh, [Replicate()] * 2), "offsets", {})]
                number = {"num_segments": len(offsets) - 1}
                given.append((keys, distribute_tensor(keys, mesh, along), "by", number))
                for *numbers, kind, more in given:
                    made = [
                        tilefold.segment_reduce(
                            t[0] if len(t) == 1 else t, monoid, **{kind: n}, dim=dim, **more
                        )
                        for t, n in zip((whole, own), numbers, strict=True)
                    ]
                    compared(*made, whole, own, torch.float64)


def losses(seed: int, count: int) -> int:
    """Cross-entropies of rows and classes that a mesh divides, with drawn options."""
    mesh, wrong = on_mesh(), list[str]()
    for case in range(seed, seed + count):
        draw, generator = random.Random(case), torch.Generator().manual_seed(case)
        shape, dtype = draw.choice([(5, 7), (3, 9, 4), (7,)]), draw.choice([torch.float64, torch.bfloat16])
        dim, soft = min(1, len(shape) - 1), draw.random() < 0.3
        lies = [Replicate(), *(Shard(d) for d in range(len(shape)))]
        placements = [draw.choice(lies), draw.choice(lies)]
        if placements == [Shard(dim)] * 2:
            continue
        options: dict[str, Any] = {
            "reduction": draw.choice(["mean", "sum", "none"]),
            "label_smoothing": draw.choice([0.0, 0.1]),
            "z_loss": draw.choice([0.0, 1e-3]),
            "return_lse": draw.random() < 0.5,
        }
        rows = [n for d, n in enumerate(shape) if d != dim]
        x = here(torch.randn(shape, generator=generator, dtype=torch.float64).to(dtype))
        if soft:
            target = here(torch.rand(shape, generator=generator, dtype=torch.float64).to(dtype))
        else:
            target = here(torch.randint(0, shape[dim], rows, generator=generator))
            options["ignore_index"] = draw.choice([-100, int(target.flatten()[0])])
        weight = here(torch.rand(shape[dim], generator=generator, dtype=torch.float64).to(dtype))
        along = [
            Replicate()
            if not p.is_shard() or (p.dim == dim and not soft)
            else Shard(p.dim - (not soft and p.dim > dim))
            for p in placements
        ]
        of_weight = [Shard(0) if p.is_shard(dim) else Replicate() for p in placements]
        pairs = [both(x, mesh, placements), both(target, mesh, along)]
        beside = both(weight, mesh, of_weight, False) if draw.random() < 0.5 else (None, None)
        whole, own = ([p[i] for p in pairs] for i in (0, 1))
        made = [tilefold.cross_entropy(*t, w, **options) for t, w in zip((whole, own), beside, strict=True)]
        try:
            compared(*made, whole[: 1 + soft], own[: 1 + soft], dtype)
        except AssertionError as error:
            wrong.append(
                f"case {case}: {dtype} {shape} as {placements} {options} weight {beside[0] is not None}: {error}"
            )
    assert not wrong, "\n".join(wrong)
    return count


def plain_targets() -> None:
    """On a mesh of one dim plain targets and weights are every rank's, in calls that come again and in a graph, too."""
    kind = "cuda" if dist.get_backend() == "nccl" else "cpu"
    mesh = dist.device_mesh.init_device_mesh(kind, (dist.get_world_size(),))
    torch.manual_seed(8)
    x, weight = (here(torch.randn(n, dtype=torch.float64)) for n in ((6, 9, 3), 9))
    weight = weight.abs()
    for target in (here(torch.randint(0, 9, (6, 3))), here(torch.rand(6, 9, 3, dtype=torch.float64))):
        for dim, reduction in itertools.product(range(3), ("none", "mean", "sum")):
            whole, own = both(x, mesh, [Shard(dim)])
            call = functools.partial(tilefold.cross_entropy, reduction=reduction)
            for _ in range(3):
                compared(call(whole, target, weight), call(own, target, weight), [whole], [own], x.dtype)
                with torch.no_grad():
                    close([call(whole, target, weight)], [whole_of(call(own, target, weight))], x.dtype)
    compiled = torch.compile(call, fullgraph=True, backend="aot_eager")
    compared(call(whole, target, weight), compiled(own, target, weight), [whole], [own], x.dtype)


def products(seed: int, count: int) -> int:
    """Products of operands whose rows, columns, batches or K a mesh divides."""
    mesh, wrong = on_mesh(), list[str]()
    for case in range(seed, seed + count):
        draw, generator = random.Random(case), torch.Generator().manual_seed(case)
        batch = draw.choice([(), (3,)])
        shapes = [(*batch, 5, 8), draw.choice([(8, 6), (*batch, 8, 6), (8,)])]
        lies: list[tuple[Any, Any]] = []
        for _ in range(2):
            a, b = draw.choice([(None, None), ("m", None), (None, "n"), ("k", "k"), ("k", None)])
            b = None if b == "n" and len(shapes[1]) == 1 else b
            of_a = {"m": Shard(len(batch)), "k": Shard(len(batch) + 1)}.get(a, Replicate())
            k = Shard(max(0, len(shapes[1]) - 2))
            lies.append((of_a, {"n": Shard(len(shapes[1]) - 1), "k": k}.get(b, Replicate())))
        pairs = [
            both(here(torch.randn(s, generator=generator, dtype=torch.float64)), mesh, list(p))
            for s, p in zip(shapes, zip(*lies, strict=True), strict=True)
        ]
        options = draw.choice([{}, {"epilogue": "gelu"}, {"epilogue": "relu", "bias": True}])
        if options.pop("bias", False) and len(shapes[1]) > 1:
            pairs.append(
                both(here(torch.randn(6, generator=generator, dtype=torch.float64)), mesh, [Replicate()] * 2)
            )
        if len(shapes[1]) > 1:
            options = options | draw.choice(
                [{}, {"row": (monoids.LOGSUMEXP, lambda x, lse: x - lse)}, {"row": (monoids.WELFORD, None)}]
            )
        whole, own = ([p[i] for p in pairs] for i in (0, 1))
        made = [
            of_rows(tilefold.matmul(*t[:2], bias=t[2] if len(t) > 2 else None, **options))
            for t in (whole, own)
        ]
        try:
            compared(*made, whole, own, torch.float64)
        except AssertionError as error:
            wrong.append(f"case {case}: {shapes} as {lies} {options}: {error}")
    assert not wrong, "\n".join(wrong)
    return count


def compiled(every: bool) -> None:
    """A norm and a fold as one graph, forward and backward; with `every` scans, selections and losses, too."""
    torch.compiler.reset()
    torch.manual_seed(6)
    mesh, x, w = on_mesh(), here(torch.randn(4, 6)), here(torch.randn(6))
    target = distribute_tensor(here(torch.tensor([0, 5, 2, 1])), mesh, [Shard(0), Replicate()])

    cuts = distribute_tensor(here(torch.tensor([0, 1, 4, 4, 6])), mesh, [Replicate()] * 2)

    def run(x: Any, w: Any) -> Any:
        normed = tilefold.rms_norm(tilefold.cumsum(x, 1) if every else x, (6,), w)
        made = tilefold.logsumexp(normed, (0, 1))
        if every:
            best = tilefold.topk(normed, 2).values
            made = made + tilefold.sum(best, (0, 1)) + tilefold.cross_entropy(normed, target)
            for monoid in (monoids.LOGSUMEXP, monoids.MAX_WITH_INDEX):
                folded = tilefold.segment_reduce(normed, monoid, cuts, dim=1)
                made = made + tilefold.sum(listed(folded)[0], (0, 1))
        return made

    own = distribute_tensor(x, mesh, [Shard(0), Shard(1)]).requires_grad_()
    weight = distribute_tensor(w, mesh, [Replicate(), Shard(0)])
    made = [f(own, weight) for f in (run, torch.compile(run, fullgraph=True, backend="aot_eager"))]
    grads = [torch.autograd.grad(m, own)[0] for m in made]
    same(*(m.full_tensor().detach() for m in made))
    same(*(g.full_tensor() for g in grads))


def refused() -> list[str]:
    """The errors of what is not supported."""
    mesh, x = on_mesh(), here(torch.ones(4, 6))
    part = DTensor.from_local(x, mesh, [Partial(), Replicate()], run_check=False)
    spread = distribute_tensor(x, mesh, [Shard(0), Shard(1)])
    target = distribute_tensor(here(torch.zeros(4, dtype=torch.int64)), mesh, [Replicate()] * 2)
    calls = (
        lambda: tilefold.sum(part, 1),
        lambda: tilefold.rms_norm(spread, (6,), x[0]),
        lambda: tilefold.rms_norm(spread, (6,), residual=distribute_tensor(x, mesh, [Shard(1), Shard(0)])),
        lambda: tilefold.reduce(spread, monoids.SUM, 1, init=x[:, 0]),
        lambda: tilefold.scan(spread, monoids.SUM, 1, init=0.0),
        lambda: tilefold.softmax(spread, 1, out=spread),
        lambda: tilefold.topk(spread, 2, out=(spread, spread)),
        lambda: tilefold.rms_norm(spread, (6,), distribute_tensor(x[0], mesh["model"], [Shard(0)])),
        lambda: tilefold.reduce(
            [distribute_tensor(t, mesh, [Replicate()] * 2) for t in (x[:, :1], x[:1])], monoids.AFFINE, 1
        ),
        lambda: tilefold.cross_entropy(spread, target, inplace_backward=True),
        lambda: tilefold.cross_entropy(distribute_tensor(x, mesh, [Shard(1)] * 2), target),
        lambda: tilefold.matmul(spread, distribute_tensor(x.T, mesh, [Shard(1), Replicate()])),
        lambda: tilefold.reduce(
            distribute_tensor(x, mesh, [Shard(0), Shard(1)]).requires_grad_(), monoids.PROD, (0, 1)
        ),
    )
    return [error_of(call, tilefold.errors.TilefoldError) for call in calls]


def clips(order: float) -> None:
    """The norm of gradients that lie in several ways, one on another mesh and one on none, and what they become."""
    torch.manual_seed(10)
    mesh = on_mesh()
    lies = [
        (mesh, [Shard(0), Shard(1)]), (mesh, [Replicate(), Shard(0)]), (mesh, [Shard(0), Shard(0)]),
        (mesh, [Replicate(), Replicate()]), (mesh["model"], [Shard(0)]), (None, None),
    ]  # fmt: skip
    whole, own = [], []
    for i, (there, placements) in enumerate(lies):
        g = here(torch.randn(5, 3 + i).to(torch.float64 if i % 2 else torch.float32))
        spread = g.clone() if there is None else distribute_tensor(g.clone(), there, placements)
        for t, made in ((g, whole), (spread, own)):
            made.append(torch.nn.Parameter(torch.zeros_like(t)))
            made[-1].grad = t
    totals = [tilefold.clip_grad_norm_(p, 0.5, order) for p in (whole, own)]
    assert type(totals[1]) is torch.Tensor
    torch.testing.assert_close(*totals, rtol=1e-6, atol=0)
    for a, b in zip(whole, own, strict=True):
        torch.testing.assert_close(whole_of(b.grad), a.grad, rtol=1e-6, atol=0)


def unclipped() -> list[str]:
    """The errors of gradients whose norm is not known: parts of a sum; and of ranks that ask for other norms."""
    mesh, x = on_mesh(), here(torch.ones(4, 6))
    p = torch.nn.Parameter(distribute_tensor(x, mesh, [Shard(0), Replicate()]))
    p.grad = DTensor.from_local(x, mesh, [Partial(), Replicate()], run_check=False)
    errors = [error_of(lambda: tilefold.clip_grad_norm_(p, 1.0))]
    p.grad = torch.zeros_like(p)
    os.environ["TILEFOLD_CHECK_RANKS"] = "1"
    try:
        return [*errors, error_of(lambda: tilefold.clip_grad_norm_(p, 1.0, 1.0 + (dist.get_rank() == 1)))]
    finally:
        del os.environ["TILEFOLD_CHECK_RANKS"]


def partials() -> None:
    """States that wait for their exchange: replicated, divided by rows, and back; of every kind of monoid."""
    torch.manual_seed(11)
    mesh = on_mesh()
    for name, monoid in CATALOGUE.items():
        inputs = monoid.algebra.inputs
        dtype = torch.int64 if "BIT" in name or name in ("ANY", "ALL") else torch.float64
        x = [here(torch.randint(-2, 3, (5, 6, 3)).to(dtype)) for _ in range(inputs)]
        one = inputs == 1
        for placements in ([Shard(0), Shard(1)], [Shard(1), Shard(1)]):
            if not monoid.commutative and placements[0] == Shard(1):
                continue
            own = [distribute_tensor(t, mesh, placements) for t in x]
            wanted = listed(tilefold.reduce(x[0] if one else x, monoid, (1, 2)))
            states = sharded.partial_reduce(own[0] if one else own, monoid, (1, 2))
            assert [p.is_partial() for p in states.placements] == [p == Shard(1) for p in placements]
            kept = [p if p.is_shard(0) else Replicate() for p in placements]
            rows = [Shard(0) if p.is_partial() else p for p in states.placements]
            ways = [states, states.redistribute(placements=kept), states.redistribute(placements=rows)]
            for made in ways:
                got = listed(sharded.project(made, monoid, *[dtype] * inputs))
                same(wanted, [t.full_tensor() for t in got])


def refused_partials() -> list[str]:
    """The errors of states that cannot wait."""
    mesh, x = on_mesh(), here(torch.ones(4, 6))
    spread = distribute_tensor(x, mesh, [Shard(0), Shard(1)])
    states = sharded.partial_reduce(spread, monoids.LOGSUMEXP, 1)
    calls = (
        lambda: sharded.partial_reduce(x, monoids.SUM),
        lambda: sharded.partial_reduce(spread, monoids.FIRST),
        lambda: sharded.partial_reduce(spread.detach().requires_grad_(), monoids.SUM),
        lambda: states.redistribute(placements=[Shard(0), Shard(1)]),
        lambda: sharded.project(states, monoids.SUM),
        lambda: sharded.project(x, monoids.SUM),
        lambda: sharded.Partial(sum),
    )
    return [error_of(call, tilefold.errors.TilefoldError) for call in calls]


def fsdp() -> None:
    """A model that FSDP2 divides: its gradients' norm, and what they become, are torch's of the whole model."""
    from torch.distributed.fsdp import fully_shard

    torch.manual_seed(13)
    whole = torch.nn.Sequential(torch.nn.Linear(7, 5), torch.nn.ReLU(), torch.nn.Linear(5, 3))
    own = copy.deepcopy(whole)
    mesh = dist.device_mesh.init_device_mesh("cpu", (dist.get_world_size(),))
    for part in (own[0], own[2], own):
        fully_shard(part, mesh=mesh)
    x = torch.randn(6, 7)
    for model in (whole, own):
        model(x).square().sum().backward()
    wanted = torch.nn.utils.clip_grad_norm_(whole.parameters(), 0.1)
    got = tilefold.clip_grad_norm_(own.parameters(), 0.1)
    torch.testing.assert_close(got, wanted, rtol=1e-5, atol=0)
    for a, b in zip(whole.parameters(), own.parameters(), strict=True):
        torch.testing.assert_close(b.grad.full_tensor(), a.grad, rtol=1e-5, atol=1e-8)


def again() -> None:
    """Calls like earlier ones, of other elements, and of DTensors that lie otherwise."""
    torch.manual_seed(18)
    mesh, w = on_mesh(), here(torch.randn(6, dtype=torch.float64))
    target = here(torch.tensor([0, 5, 2, 1]))
    cuts = [here(torch.tensor(c)) for c in ([0, 1, 1, 4], [0, 2, 3, 4])]
    calls: tuple[Any, ...] = (
        lambda x, w, t, c: tilefold.logsumexp(x, 1),
        lambda x, w, t, c: tilefold.reduce(x, monoids.MAX_WITH_INDEX, 1),
        lambda x, w, t, c: tilefold.rms_norm(x, (6,), w),
        lambda x, w, t, c: tilefold.softmax(x, 1),
        lambda x, w, t, c: tilefold.cumsum(x, 1),
        lambda x, w, t, c: tilefold.topk(x, 3, 1),
        lambda x, w, t, c: tilefold.segment_reduce(x, monoids.MAX, c, dim=1, partial=True),
        lambda x, w, t, c: tilefold.segment_reduce(x, monoids.SUM, c),
        lambda x, w, t, c: tilefold.cross_entropy(x, t),
        lambda x, w, t, c: tilefold.cross_entropy(x, t, reduction="none", return_lse=True),
    )
    for call in calls:
        for turn in range(8):
            x = here(torch.randn(4, 6, dtype=torch.float64))
            lies = LIES[0] if turn % 3 else LIES[1]
            of_target = [Shard(0) if lies is LIES[0] else Replicate(), Replicate()]
            own = distribute_tensor(x, mesh, lies)
            weight = distribute_tensor(w, mesh, [Replicate(), Shard(0)])
            of_all = distribute_tensor(cuts[turn % 2], mesh, [Replicate(), Replicate()])
            made = listed(call(own, weight, distribute_tensor(target, mesh, of_target), of_all))
            wanted = listed(call(x, w, target, cuts[turn % 2]))
            same(wanted, [t.full_tensor() for t in made])
            assert [t.device_mesh for t in made] == [mesh] * len(made)
    x = here(torch.randn(4, 6, dtype=torch.float64))
    for _ in range(3):
        for lies in (LIES[3], LIES[3][::-1]):
            same(
                tilefold.logsumexp(x, 0),
                tilefold.logsumexp(distribute_tensor(x, mesh, lies), 0).full_tensor(),
            )


def in_graph(name: str) -> list[tuple[str, int]]:
    """What a compiled call exchanges over two ranks: operations, and the bytes that this rank gives to each."""
    mesh, sent = on_mesh()["model"], list[tuple[str, int]]()
    shapes = {"x": ((4, 16), 1), "w": ((16,), 0), "b": ((16, 3), 0)}
    x, w, b = (distribute_tensor(here(torch.ones(n)), mesh, [Shard(d)]) for n, d in shapes.values())
    target, cuts = (
        distribute_tensor(here(torch.tensor(t)), mesh, [Replicate()])
        for t in ([0, 15, 3, 3], [0, 3, 3, 10, 16])
    )
    calls = {
        "logsumexp": lambda x: tilefold.logsumexp(x, 1),
        "softmax": lambda x: tilefold.softmax(x, 1),
        "rms_norm": lambda x: tilefold.rms_norm(x, (16,), w),
        "argmax": lambda x: tilefold.argmax(x, 1),
        "topk": lambda x: tilefold.topk(x, 2, 1).indices,
        "cross_entropy": lambda x: tilefold.cross_entropy(x, target),
        "matmul": lambda x: tilefold.matmul(x, b),
        "scan": lambda x: tilefold.cumsum(x, 1),
        "segment_reduce": lambda x: tilefold.segment_reduce(x, monoids.LOGSUMEXP, cuts, dim=1),
    }

    def noted(graph: Any, inputs: Any) -> Any:
        for node in graph.graph.nodes:
            target = str(node.target)
            if target.startswith("_c10d_functional") and "wait_tensor" not in target:
                sent.append((target.split(".")[1], node.args[0].meta["val"].nbytes))
        return make_boxed_func(graph.forward)

    torch.compiler.reset()
    graph = torch.compile(calls[name], fullgraph=True, backend=aot_autograd(fw_compiler=noted))
    same(calls[name](x).full_tensor(), graph(x).full_tensor())
    return sent


def as_operations() -> list[str]:
    """The errors of operations of torch's that get DTensors: called by name, and within transforms."""
    x = distribute_tensor(here(torch.ones(4, 6)), on_mesh(), LIES[0])
    calls = (
        lambda: torch.ops.tilefold.topk([x], 2, 1, True, "run_to_run"),
        lambda: torch.func.vmap(lambda x: tilefold.logsumexp(x, 0))(x),
        lambda: torch.func.grad(lambda x: tilefold.logsumexp(x, 1).sum())(x),
    )
    return [error_of(call, tilefold.errors.KindError) for call in calls]


def batched() -> list[str]:
    """The errors of several cotangents at once, of a call that exchanges states and of one that does not."""
    x = distribute_tensor(here(torch.ones(4, 6)), on_mesh(), LIES[0]).requires_grad_()
    errors = []
    for lies in (LIES[0], LIES[3]):
        made = tilefold.softmax(x.redistribute(placements=lies), 1)
        seeds = torch.stack([torch.ones_like(made)] * 3)
        ask = functools.partial(torch.autograd.grad, made, x, seeds, is_grads_batched=True)
        errors.append(error_of(ask, tilefold.errors.GradientError))
    return errors
