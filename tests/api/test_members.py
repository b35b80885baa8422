"""Members of a batch, each with parameters and inputs of its own or shared: transforms of torch.func, eager and compiled.

Answers are those of a Python loop over members in float64, of torch's own functions. `make members` tries every mapping of
every call; without TILEFOLD_MEMBERS one of each is tried, and a few are compiled.
"""

from __future__ import annotations

import itertools
import os
import zlib
from collections.abc import Callable, Sequence
from typing import Any

import pytest
import torch
from torch.func import grad, jacrev, vmap

import tilefold
from tilefold import monoids

Tensor = torch.Tensor
Function = Callable[..., Tensor]
Where = tuple[int | None, ...]
EVERY = bool(os.environ.get("TILEFOLD_MEMBERS"))
MEMBERS, SHAPE = 3, (4, 6)
BORDERS = torch.tensor([0, 1, 4, 4, 6])
DOT = tilefold.Monoid(lambda a, b: a + b, 0, lift=lambda x, w: x * w, name="dot")


def recurrence(a: Tensor, x: Tensor) -> Tensor:
    """h[t] = a[t] h[t - 1] + x[t] along dim 1."""
    a, x = torch.broadcast_tensors(a, x)
    states = [x[:, 0]]
    for t in range(1, x.shape[1]):
        states.append(a[:, t] * states[-1] + x[:, t])
    return torch.stack(states, 1)


def summed_segments(x: Tensor) -> Tensor:
    return torch.stack([x[:, i:j].sum(1) for i, j in itertools.pairwise(BORDERS.tolist())], 1)


def rms(x: Tensor, w: Tensor) -> Tensor:
    return torch.nn.functional.rms_norm(x, (6,), w, 1e-5)


def layer(x: Tensor, w: Tensor, b: Tensor) -> Tensor:
    return torch.nn.functional.layer_norm(x, (6,), w, b)


# Ours, torch's, and the shapes of a member's tensors.
CALLS: dict[str, tuple[Function, Function, Sequence[tuple[int, ...]]]] = {
    "reduce": (lambda x: tilefold.reduce(x, monoids.LOGSUMEXP, 1), lambda x: x.logsumexp(1), [SHAPE]),
    "reduce of all dims": (lambda x: tilefold.var(x), lambda x: x.var(), [SHAPE]),
    "reduce of two": (lambda x, w: tilefold.reduce((x, w), DOT, 1), lambda x, w: (x * w).sum(1), [SHAPE, (6,)]),
    "reduce from a state": (
        lambda x, s: tilefold.reduce(x, monoids.SUM, 1, init=s), lambda x, s: x.sum(1) + s, [SHAPE, (4,)],
    ),
    "scan": (lambda x: tilefold.logcumsumexp(x, 1), lambda x: x.logcumsumexp(1), [SHAPE]),
    "scan of two": (lambda a, x: tilefold.scan((a, x), monoids.AFFINE, 1)[1], recurrence, [(6,), SHAPE]),
    "softmax": (lambda x: tilefold.softmax(x, 1), lambda x: x.softmax(1), [SHAPE]),
    "rms_norm": (lambda x, w: tilefold.rms_norm(x, (6,), w, 1e-5), rms, [SHAPE, (6,)]),
    "rms_norm of a sum": (
        lambda x, r, w: tilefold.rms_norm(x, (6,), w, 1e-5, residual=r)[0], lambda x, r, w: rms(x + r, w),
        [SHAPE, SHAPE, (6,)],
    ),
    "layer_norm": (lambda x, w, b: tilefold.layer_norm(x, (6,), w, b), layer, [SHAPE, (6,), (6,)]),
    "group_norm": (
        lambda x, w: tilefold.group_norm(x, 2, w), lambda x, w: torch.nn.functional.group_norm(x, 2, w), [SHAPE, (6,)],
    ),
    "reduce_map": (
        lambda x, w: tilefold.reduce_map(x, monoids.SUM, lambda v, total, w: v * w + total, 1, extras=w),
        lambda x, w: x * w + x.sum(1, keepdim=True), [SHAPE, (4, 1)],
    ),
    "segment_reduce": (
        lambda x: tilefold.segment_reduce(x, monoids.SUM, BORDERS, dim=1), summed_segments, [SHAPE],
    ),
    "topk": (lambda x: tilefold.topk(x, 2, 1).values, lambda x: x.topk(2, 1).values, [SHAPE]),
    "transpose": (lambda x: tilefold.transpose(x, 0, 1), lambda x: x.mT, [SHAPE]),
    "matmul": (
        lambda x, w, b: tilefold.matmul(x, w, bias=b, epilogue="silu"),
        lambda x, w, b: torch.nn.functional.silu(x @ w + b), [SHAPE, (6, 5), (5,)],
    ),
    "matmul with a row": (
        lambda x, w: tilefold.matmul(x, w, row=(monoids.LOGSUMEXP, None))[1], lambda x, w: (x @ w).logsumexp(1),
        [SHAPE, (6, 5)],
    ),
}  # fmt: skip
COMPILED = ["eager", "aot_eager"]


def mappings(count: int) -> list[Where]:
    """Which tensors have members, and in which dim: every choice, the last dim now and then."""
    chosen = [w for w in itertools.product((0, None), repeat=count) if any(d is not None for d in w)]
    return [*chosen, *[tuple(None if d is None else -1 for d in w) for w in chosen]]


def given(name: str, where: Where) -> list[Tensor]:
    """The tensors of a call, those that are mapped with their members."""
    seeded = torch.Generator().manual_seed(zlib.crc32(name.encode()))
    found = []
    for shape, dim in zip(CALLS[name][2], where, strict=True):
        each = torch.randn(MEMBERS, *shape, dtype=torch.float64, generator=seeded)
        found.append(each[0] if dim is None else each.movedim(0, dim).contiguous())
    return found


def transformed(function: Function, where: Where) -> Callable[..., list[Any]]:
    """Results; gradients of each member; gradients of all; Jacobians of each member, and of all."""
    wrt = tuple(range(len(where)))

    def loss(*tensors: Tensor) -> Tensor:
        return function(*tensors).pow(3).sum()

    def every(*tensors: Tensor) -> list[Any]:
        mapped = vmap(function, in_dims=where, randomness="error")
        return [
            mapped(*tensors),
            vmap(grad(loss, wrt), in_dims=where)(*tensors),
            grad(lambda *t: vmap(loss, in_dims=where)(*t).sum(), wrt)(*tensors),
            vmap(jacrev(function, wrt), in_dims=where)(*tensors),
            jacrev(mapped, wrt)(*tensors),
        ]

    return every


def looped(function: Function, where: Where, tensors: Sequence[Tensor]) -> list[Any]:
    """The same by autograd, one member and one result after another."""

    def member(some: Sequence[Tensor], i: int) -> list[Tensor]:
        return [t if d is None else t.select(d, i) for t, d in zip(some, where, strict=True)]

    def loss(some: Sequence[Tensor]) -> Tensor:
        return function(*some).pow(3).sum()

    def slopes(result: Tensor, wrt: Sequence[Tensor]) -> tuple[Tensor, ...]:
        rows = [torch.autograd.grad(r, wrt, retain_graph=True) for r in result.reshape(-1)]
        return tuple(torch.stack(c).view(*result.shape, *c[0].shape) for c in zip(*rows, strict=True))

    leaves = [[t.clone().requires_grad_() for t in member(tensors, i)] for i in range(MEMBERS)]
    whole = [t.clone().requires_grad_() for t in tensors]
    results = torch.stack([function(*member(whole, i)) for i in range(MEMBERS)])
    grads = [torch.autograd.grad(loss(each), each) for each in leaves]
    jacobians = [slopes(function(*each), each) for each in leaves]
    total = torch.stack([loss(member(whole, i)) for i in range(MEMBERS)]).sum()
    return [
        results.detach(),
        tuple(map(torch.stack, zip(*grads, strict=True))),
        torch.autograd.grad(total, whole),
        tuple(map(torch.stack, zip(*jacobians, strict=True))),
        slopes(results, whole),
    ]


def compare(name: str, where: Where, run: Callable[[Any], Any]) -> None:
    ours, theirs, _ = CALLS[name]
    tensors = given(name, where)
    got, want = run(transformed(ours, where))(*tensors), looped(theirs, where, tensors)
    torch.testing.assert_close(got, want, rtol=1e-9, atol=1e-11)


MAPPED = [(name, where) for name in CALLS for where in mappings(len(CALLS[name][2]))]
# Parameters have members and inputs have none, and the other way.
FEW = [*((n, (*[None] * (len(s) - 1), -1)) for n, (*_, s) in CALLS.items()),
       *((n, (0, *[None] * (len(s) - 1))) for n, (*_, s) in CALLS.items() if len(s) > 1)]  # fmt: skip
GRAPHS = [("rms_norm", (None, 0)), ("matmul", (None, 0, None)), ("matmul with a row", (0, None))]


@pytest.mark.parametrize(("name", "where"), MAPPED if EVERY else FEW, ids=str)
def test_each_member_has_its_own_results_and_derivatives(name: str, where: Where) -> None:
    compare(name, where, lambda function: function)


@pytest.mark.parametrize("backend", COMPILED if EVERY else COMPILED[1:])
@pytest.mark.parametrize(("name", "where"), MAPPED if EVERY else GRAPHS, ids=str)
def test_so_it_has_in_a_compiled_graph(name: str, where: Where, backend: str) -> None:
    torch._dynamo.reset()
    compare(name, where, lambda function: torch.compile(function, fullgraph=True, backend=backend))
