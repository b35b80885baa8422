"""Calls of every kind, and the modes of torch's that they are made in."""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch._subclasses.fake_tensor import FakeTensorMode
from torch._subclasses.functional_tensor import FunctionalTensorMode
from torch.autograd import forward_ad
from torch.fx.experimental.proxy_tensor import make_fx
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode

import tilefold as tf
from tilefold import Monoid, math, monoids
from tilefold.algebra.program import specialize
from tilefold.algebra.proofs import symmetry

INF = float("inf")

# ------------------------------------------------------------------------------------------ what is done in a mode

X, WIDE = torch.linspace(-3, 3, 84).view(4, 21), torch.linspace(-3, 3, 84, dtype=torch.float64).view(4, 21)
COUNTS = torch.arange(84).view(4, 21)
UNSIGNED = (COUNTS * (1 << 58) + 1).view(torch.uint64)
A, B, BIAS = torch.linspace(-1, 1, 60).view(4, 15), torch.linspace(-2, 1, 105).view(15, 7), torch.ones(7)
OFFSETS = torch.tensor([0, 3, 3, 21])
# Constants of every kind: beside elements, chosen between, folded among themselves, of more digits than float32 has.
TILTED = Monoid(
    lambda a, b: a + b, 0, lift=lambda x: math.where(x > 0.1, 0.1, 1 / 3) * x + math.exp(math.cast(2, torch.float64)),
    name="tilted",
)  # fmt: skip
LAST_LARGE = Monoid(
    lambda a, b: math.where(b > 0.7, b, a), 0.1, lift=lambda x: math.where(x > 0.7, x, 0.1), commutative=False,
    name="last large",
)  # fmt: skip


def shifted(a: Any, b: Any) -> Any:
    largest = math.maximum(a.m, b.m)
    safe = math.where(largest == -INF, 0.0, largest)
    return largest, a.s * math.exp(a.m - safe) + b.s * math.exp(b.m - safe)


SHIFTED: dict[str, Any] = {"fields": ("m", "s"), "lift": lambda x: (x, 1.0)}
PAIR = Monoid(shifted, (-INF, 0), name="pair", **SHIFTED)


def made() -> tuple[Any, ...]:
    """A monoid of the caller's: its order and its block form are found out when it is made, and are kept with it."""
    pair = Monoid(shifted, (-INF, 0), **SHIFTED)
    ordered = Monoid(
        lambda a, b: (a.p * b.p, a.q * b.p + b.q), (1, 0), lift=lambda x: (x, 0.5), fields=("p", "q")
    )
    return (
        pair.commutative,
        ordered.commutative,
        pair.algebra.folds_integers,
        tf.reduce(X, pair, 1),
        tf.reduce(X, ordered, 1),
    )


def forced(name: str, call: Callable[[], Any]) -> Callable[[], Any]:
    def inside() -> Any:
        with tf.backend(name):
            return call()

    return inside


FOLDS: dict[str, Callable[[], Any]] = {
    "sum": lambda: tf.sum(X, 1),
    "mean of halves": lambda: tf.mean(X.half()),
    "logsumexp": lambda: tf.logsumexp(X, 1),
    "std with a correction": lambda: tf.std_mean(X, 1, correction=2.5),
    "norm": lambda: tf.norm(X, 2.5, 1),
    "max": lambda: tuple(tf.max(X, 1)),
    "any": lambda: tf.any(X, 1),
    "bitwise_or": lambda: tf.bitwise_or(COUNTS, 1),
    "unsigned": lambda: (tf.reduce(UNSIGNED, monoids.MAX, 1), tf.reduce(UNSIGNED, monoids.SUM, 1)),
    "describe": lambda: tf.reduce(X, monoids.DESCRIBE, 1),
    "a file's statistics": lambda: tuple(vars(describe_tensor()).values()),
    "constants": lambda: tf.reduce(X, TILTED, 1),
    "constants in float64": lambda: tf.reduce(WIDE, TILTED, 1),
    "order": lambda: tf.reduce(X, LAST_LARGE, 1),
    "derived block": lambda: tf.reduce(X.repeat(1, 9), PAIR, 1),
    "nothing": lambda: (tf.reduce(X[:3, :0], LAST_LARGE, 1), tf.logsumexp(X[:3, :0], 1)),
    "batch invariant": lambda: tf.reduce(X, TILTED, 0, guarantee="batch_invariant"),
    "made": made,
    "ordered fields": lambda: symmetry.ordered_fields(specialize(monoids.MAX_WITH_INDEX.total, (torch.float32,))),
    "scan": lambda: tf.scan(X, LAST_LARGE, 1),
    "scan, reversed": lambda: tf.scan(X, PAIR, 1, reverse=True, exclusive=True, return_state=True),
    "scan of columns": lambda: tf.scan(X, TILTED, 0, init=0.5),
    "scan, states": lambda: tf.scan((X, X), monoids.AFFINE, 1),
    "cumsum": lambda: (tf.cumsum(X.half(), 1), tf.logcumsumexp(X, 0), *tf.cummax(X, 1)),
    "softmax": lambda: (tf.softmax(X, 1), tf.log_softmax(X.half(), 0)),
    "norms": lambda: (tf.rms_norm(X, (21,), residual=X), tf.normalize(X, dim=1), tf.layer_norm(X, (21,))),
    "reduce_map": lambda: tf.reduce_map(X, PAIR, lambda x, m, s: (math.exp(x - m) / s + 0.1, x * 2), 1),
    "segments": lambda: tf.segment_reduce(X.mT, TILTED, OFFSETS),
    "topk": lambda: tuple(tf.topk(X, 3, 1)),
    "transpose": lambda: tf.transpose(X, 0, 1),
    "matmul": lambda: tf.matmul(A, B, bias=BIAS, epilogue="gelu"),
    "matmul, traced": lambda: tf.matmul(A, B, epilogue=lambda x: math.where(x > 0.1, 0.1, 1 / 3) * x),
    "matmul, rows": lambda: tf.matmul(A, B, row=(monoids.LOGSUMEXP, lambda x, total: math.exp(x - total) + 0.1)),
}  # fmt: skip
CALLS = FOLDS | {
    f"{name}, {backend}": forced(backend, FOLDS[name])
    for backend, names in {
        "cpu": [
            "sum",
            "logsumexp",
            "any",
            "unsigned",
            "describe",
            "nothing",
            "scan",
            "cumsum",
            "softmax",
            "segments",
        ],
        "reference": ["sum", "constants", "constants in float64", "nothing", "scan", "norms", "topk"],
        "interpret": ["matmul"],
    }.items()
    for name in names
}


def describe_tensor() -> Any:
    from tilefold.checkpoints.describe import describe_tensor

    return describe_tensor("x", X)


# ------------------------------------------------------------------------------------------------------ the modes


class Echo(TorchDispatchMode):
    """Gives every operation's result a class of its own."""

    def __torch_dispatch__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = function(*args, **(kwargs or {}))
        return result.as_subclass(Marked) if type(result) is torch.Tensor else result


class Marked(torch.Tensor):
    """A tensor that nobody but `Echo` and `Marking` makes."""

    __torch_function__ = torch._C._disabled_torch_function_impl


class Marking(TorchFunctionMode):
    """The same of torch's functions, ours among them or not."""

    def __torch_function__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = function(*args, **(kwargs or {}))
        return result.as_subclass(Marked) if type(result) is torch.Tensor else result


Inside = Callable[[Callable[[], Any]], object]


def within(mode: Callable[[], contextlib.AbstractContextManager[Any]]) -> Inside:
    def run(call: Callable[[], Any]) -> None:
        with mode():
            call()

    return run


@contextlib.contextmanager
def threads(number: int) -> Iterator[None]:
    """So many of torch's threads."""
    before = torch.get_num_threads()
    torch.set_num_threads(number)
    try:
        yield
    finally:
        torch.set_num_threads(before)


@contextlib.contextmanager
def default_dtype(dtype: torch.dtype) -> Iterator[None]:
    before = torch.get_default_dtype()
    torch.set_default_dtype(dtype)
    try:
        yield
    finally:
        torch.set_default_dtype(before)


@contextlib.contextmanager
def default_device(device: str) -> Iterator[None]:
    torch.set_default_device(device)
    try:
        yield
    finally:
        torch.set_default_device(None)


@contextlib.contextmanager
def deterministic() -> Iterator[None]:
    torch.use_deterministic_algorithms(True)
    try:
        yield
    finally:
        torch.use_deterministic_algorithms(False)


def after(transform: Callable[..., Callable[..., Any]]) -> Inside:
    """The call in a transformed function that is given another tensor."""

    def run(call: Callable[[], Any]) -> None:
        transform(lambda t: (call(), t * 2)[1])(torch.ones(2))

    return run


def forward_mode(call: Callable[[], Any]) -> None:
    torch.func.jvp(lambda t: (call(), t * 2)[1], (torch.ones(2),), (torch.ones(2),))


def dual_level(call: Callable[[], Any]) -> None:
    with forward_ad.dual_level():
        call()


def recorded(**options: Any) -> Inside:
    return lambda call: make_fx(lambda t: (call(), t * 2)[1], **options)(torch.ones(2))


def compiled(call: Callable[[], Any]) -> None:
    torch._dynamo.reset()
    torch.compile(lambda t: (call(), t * 2)[1], backend="eager")(torch.ones(2))


def exported(call: Callable[[], Any]) -> None:
    class Calls(torch.nn.Module):
        def forward(self, t: torch.Tensor) -> torch.Tensor:
            call()
            return t * 2

    torch.export.export(Calls(), (torch.ones(2),), strict=False)


MODES: dict[str, Inside] = {
    "fake": within(FakeTensorMode),
    "fake among real": within(lambda: FakeTensorMode(allow_non_fake_inputs=True)),
    "functional": within(FunctionalTensorMode),
    "dispatch": within(Echo),
    "functions": within(Marking),
    "meta": within(lambda: torch.device("meta")),
    "default device": within(lambda: default_device("meta")),
    "default float64": within(lambda: default_dtype(torch.float64)),
    "default bfloat16": within(lambda: default_dtype(torch.bfloat16)),
    "inference": within(torch.inference_mode),
    "autocast": within(lambda: torch.autocast("cpu", dtype=torch.bfloat16)),
    "deterministic": within(deterministic),
    "vmap": after(torch.vmap),
    "vmap with randomness": after(functools.partial(torch.vmap, randomness="different")),
    "functionalize": after(torch.func.functionalize),
    "grad": after(lambda f: torch.func.grad(lambda t: f(t).sum())),
    "nested transforms": after(lambda f: torch.vmap(torch.func.functionalize(f))),
    "jvp": forward_mode,
    "dual level": dual_level,
    "make_fx": recorded(),
    "make_fx, fake": recorded(tracing_mode="fake"),
    "make_fx, symbolic": recorded(tracing_mode="symbolic"),
    "make_fx, early": recorded(pre_dispatch=True),
    "export": exported,
    "torch.compile": compiled,
}
