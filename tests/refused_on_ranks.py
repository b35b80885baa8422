"""Calls on ranks that are refused, that ranks make unalike, and that a rank dies in: what they say."""

from __future__ import annotations

import functools
import os
import time
from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist

import tilefold
import tilefold.distributed as sharded
from on_ranks import error_of, here, listed
from tilefold import monoids
from tilefold.distributed import exchange


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
            plain = lambda x: sharded.cross_entropy(x, target, sizes=[2, 3, 3, 3], label_smoothing=0.1)  # noqa: E731  # one call
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
