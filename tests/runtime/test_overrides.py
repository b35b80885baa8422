"""Classes of tensors and modes of functions: torch's `__torch_function__`, for functions of ours."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from typing import Any, ClassVar, NamedTuple

import pytest
import torch
from torch.overrides import TorchFunctionMode

import tilefold as tf
from tilefold import Monoid, math, monoids
from tilefold.errors import BackendError, KindError
from tilefold.functional.arguments import TORCH_NAMES


class Measured(torch.Tensor):
    """A plain subclass: torch's functions give it back."""


class Other(torch.Tensor):
    """A class that is no `Measured`."""


class Spy(torch.Tensor):
    """Remembers the functions that were called of it, and how."""

    seen: ClassVar[list[tuple[Any, Any, Any]]] = []

    @classmethod
    def __torch_function__(cls, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if getattr(function, "__module__", "").startswith("tilefold"):
            cls.seen.append((function, args, kwargs or {}))
        return super().__torch_function__(function, types, args, kwargs)


class Refusing(torch.Tensor):
    """Takes no function of ours."""

    @classmethod
    def __torch_function__(cls, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if getattr(function, "__module__", "").startswith("tilefold"):
            return NotImplemented
        return super().__torch_function__(function, types, args, kwargs)


class Wrapper(torch.Tensor):
    """A tensor without memory, around one that has some; told of our functions, it calls them of that one."""

    inner: torch.Tensor

    @staticmethod
    def __new__(cls, inner: torch.Tensor) -> Wrapper:
        made = torch.Tensor._make_wrapper_subclass(cls, inner.shape, dtype=inner.dtype)
        made.inner = inner
        return made

    @classmethod
    def __torch_function__(cls, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if not getattr(function, "__module__", "").startswith("tilefold"):
            return super().__torch_function__(function, types, args, kwargs)
        return Wrapper(function(*(a.inner if isinstance(a, Wrapper) else a for a in args), **(kwargs or {})))

    @classmethod
    def __torch_dispatch__(cls, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        raise AssertionError(f"{function} was asked of a tensor that only wraps")


class Lone:
    """No tensor, and decides all the same."""

    @classmethod
    def __torch_function__(cls, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return function.__name__, args, kwargs or {}


class Counting(TorchFunctionMode):
    """Counts calls of our functions."""

    def __init__(self) -> None:
        super().__init__()
        self.called: list[Any] = []

    def __torch_function__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if getattr(function, "__module__", "").startswith("tilefold"):
            self.called.append(function)
        return function(*args, **(kwargs or {}))


class Extent(NamedTuple):
    """What `SPAN` gives."""

    low: torch.Tensor
    high: torch.Tensor


SPAN = Monoid(
    lambda a, b: (math.minimum(a.low, b.low), math.maximum(a.high, b.high)),
    (float("inf"), -float("inf")), lift=lambda x: (x, x), fields=("low", "high"), project=Extent,
)  # fmt: skip
X = torch.linspace(-2, 3, 30).view(5, 6)
WHOLE = torch.arange(30).view(5, 6)
# Every public function of tensors, by its own name: the function and what it is called with, but for the tensor.
NAMES = """
    sum prod mean amax amin max min argmax argmin aminmax any all count_nonzero var std var_mean std_mean logsumexp norm
    vector_norm bitwise_or bitwise_and bitwise_xor
"""
NAMED = {name: getattr(tf, name) for name in NAMES.split()}
CALLS: dict[str, Callable[[torch.Tensor], Any]] = {
    **{
        name: (lambda x, f=f, name=name: f(x, dim=1) if name != "norm" else f(x, 2, 1))
        for name, f in NAMED.items()
    },
    "axis": lambda x: tf.sum(x, axis=1, keepdims=True),
    "max of all": lambda x: tf.max(x),
    "reduce": lambda x: tf.reduce(x, monoids.SUM, 1),
    "reduce, a state": lambda x: tf.reduce(x, monoids.WELFORD, 1),
    "reduce, a user's tuple": lambda x: tf.reduce(x, SPAN, 1),
    "reduce, several": lambda x: tf.reduce([x, X], Monoid(lambda a, b: a + b, 0, lift=lambda x, y: x * y), 1),
    "matmul": lambda x: tf.matmul(x, X.mT),
    "matmul, second": lambda x: tf.matmul(X, x.mT),
    "matmul, bias": lambda x: tf.matmul(X, X.mT, bias=x[0, :5]),
    "matmul, extra": lambda x: tf.matmul(X, X.mT, epilogue=lambda v, e: v + e, epilogue_args=(x[:, :5],)),
    "matmul, rows": lambda x: tf.matmul(x, X.mT, row=(monoids.MAX_WITH_INDEX, None)),
}


def plain_of(name: str) -> torch.Tensor:
    return WHOLE if name.startswith("bitwise") else X


def leaves(value: Any) -> list[Any]:
    return [leaf for each in value for leaf in leaves(each)] if isinstance(value, tuple) else [value]


def structure(value: Any) -> Any:
    return (type(value), [structure(each) for each in value]) if isinstance(value, tuple) else None


@pytest.mark.parametrize("name", list(CALLS))
def test_a_plain_subclass_gets_results_of_its_class(name: str) -> None:
    x, call = plain_of(name), CALLS[name]
    got, want = call(x.as_subclass(Measured)), call(x)
    assert structure(got) == structure(want)
    for one, other in zip(leaves(got), leaves(want), strict=True):
        assert type(one) is Measured
        assert type(other) is torch.Tensor
        assert torch.equal(one.as_subclass(torch.Tensor), other)


@pytest.mark.parametrize("name", list(CALLS))
def test_parameters_and_buffers_give_plain_tensors(name: str) -> None:
    x = plain_of(name)
    for held in (torch.nn.Parameter(x, requires_grad=False), torch.nn.Buffer(x)):
        got, want = CALLS[name](held), CALLS[name](x)
        assert structure(got) == structure(want)
        assert all(type(leaf) is torch.Tensor for leaf in leaves(got))


@pytest.mark.parametrize("name", list(NAMED))
def test_a_class_is_told_which_function_was_called(name: str) -> None:
    Spy.seen.clear()
    x = plain_of(name).as_subclass(Spy)
    CALLS[name](x)
    ((function, args, kwargs),) = Spy.seen
    assert function is NAMED[name]
    assert args == (x,) or args[0] is x
    assert kwargs == ({"dim": 1, "p": 2} if name == "norm" else {"dim": 1})


def test_a_class_is_told_of_reduce_and_of_matmul() -> None:
    Spy.seen.clear()
    x = X.as_subclass(Spy)
    tf.reduce(x, monoids.SUM, 1, guarantee="batch_invariant")
    tf.matmul(X, x.mT, epilogue="relu")
    (first, second) = Spy.seen
    assert first[0] is tf.reduce
    assert first[1][0] is x
    assert first[1][1] is monoids.SUM
    assert first[2]["guarantee"] == "batch_invariant"
    assert second[0] is tf.matmul
    assert second[2] == {"epilogue": "relu"}


@pytest.mark.parametrize("name", list(CALLS))
def test_a_class_may_refuse(name: str) -> None:
    with pytest.raises(TypeError, match="no implementation found for 'tilefold"):
        CALLS[name](plain_of(name).as_subclass(Refusing))


def test_classes_that_know_nothing_of_each_other_are_refused() -> None:
    with pytest.raises(TypeError, match=r"no implementation found for 'tilefold.*matmul'"):
        tf.matmul(X.as_subclass(Measured), X.mT.as_subclass(Other))


def test_a_class_that_wraps_may_take_our_functions() -> None:
    got = tf.sum(Wrapper(X), 1)
    assert type(got) is Wrapper
    assert torch.equal(got.inner, tf.sum(X, 1))


@pytest.mark.parametrize("name", [*NAMED, "axis", "reduce", "reduce, several", "matmul"])
def test_a_class_that_only_wraps_is_refused(name: str) -> None:
    class Blank(Wrapper):
        __torch_function__ = torch.Tensor.__torch_function__

    with pytest.raises(KindError, match="memory of their own, got Blank, which wraps other tensors"):
        CALLS[name](Blank(plain_of(name)))


@pytest.mark.filterwarnings("ignore:The PyTorch API of (Masked|nested)")
def test_torchs_own_classes_are_refused_by_name() -> None:
    masked = torch.masked.masked_tensor(X, X > 0)
    with pytest.raises(KindError, match="memory of their own, got MaskedTensor"):
        tf.sum(masked, 1)
    jagged = torch.nested.nested_tensor([X[0], X[1, :3]], layout=torch.jagged)
    with pytest.raises((RuntimeError, TypeError), match=r"nested|jagged|dense"):
        tf.sum(jagged, 1)
    with pytest.raises(ValueError, match="uninitialized parameter"):
        tf.sum(torch.nn.UninitializedParameter())


def test_a_target_keeps_its_class() -> None:
    out = torch.empty(5).as_subclass(Measured)
    assert tf.sum(X, 1, out=out) is out
    assert torch.equal(out.as_subclass(torch.Tensor), X.sum(1))
    pair = torch.empty(5).as_subclass(Measured), torch.empty(5, dtype=torch.int64)
    values, indices = tf.max(X, 1, out=pair)
    assert values is pair[0]
    assert type(indices) is Measured
    assert tf.reduce(X, monoids.SUM, 1, out=out) is out
    square = torch.empty(5, 5).as_subclass(Measured)
    assert tf.matmul(X, X.mT, out=square) is square


def test_a_target_of_a_class_is_asked_too() -> None:
    Spy.seen.clear()
    tf.sum(X, 1, out=torch.empty(5).as_subclass(Spy))
    tf.max(X, 1, out=(torch.empty(5).as_subclass(Spy), torch.empty(5, dtype=torch.int64)))
    tf.matmul(X, X.mT, out=torch.empty(5, 5).as_subclass(Spy))
    assert [function for function, _, _ in Spy.seen] == [tf.sum, tf.max, tf.matmul]


@pytest.mark.parametrize("name", list(CALLS))
def test_a_mode_of_functions_sees_one_call(name: str) -> None:
    x = plain_of(name)
    with Counting() as mode:
        got = CALLS[name](x)
    assert len(mode.called) == 1
    assert structure(got) == structure(CALLS[name](x))
    assert all(map(torch.equal, leaves(got), leaves(CALLS[name](x))))


def test_recording_is_refused_before_a_mode_is_asked() -> None:
    """An early recording (make_fx, pre_dispatch) hides itself from what its mode of functions calls."""
    from torch.fx.experimental.proxy_tensor import make_fx

    for call in (lambda x: tf.topk(x, 1, out=(x[:, :1].clone(), torch.empty(len(x), 1, dtype=torch.int64))),):
        with pytest.raises(BackendError, match="must be called, not recorded"):
            make_fx(functools.partial(_once, call), pre_dispatch=True)(X)


def _once(call: Callable[[torch.Tensor], Any], x: torch.Tensor) -> Any:
    return call(x)


@pytest.mark.parametrize("name", ["sum", "max", "reduce, a state", "matmul", "matmul, rows"])
def test_compiled_code_keeps_a_class(name: str) -> None:
    torch._dynamo.reset()
    x = X.as_subclass(Measured)
    got = torch.compile(CALLS[name], backend="eager")(x)
    assert all(type(leaf) is Measured for leaf in leaves(got))
    assert all(map(torch.equal, leaves(got), leaves(CALLS[name](x))))


LONE = Lone()
OF_LONE: dict[str, Callable[[], Any]] = {
    "reduce": lambda: tf.reduce(LONE, monoids.SUM, 1),
    "reduce_map": lambda: tf.reduce_map(LONE, monoids.SUM, lambda x, s: x, 1),
    "scan": lambda: tf.scan(LONE, monoids.SUM, 1),
    "segment_reduce": lambda: tf.segment_reduce(LONE, monoids.SUM, torch.tensor([0, 1])),
    "softmax": lambda: tf.softmax(LONE, 1),
    "topk": lambda: tf.topk(LONE, 1),
    "transpose": lambda: tf.transpose(LONE, 0, 1),
    "scan, init": lambda: tf.scan(X, monoids.SUM, 1, init=LONE),
    "reduce_map, extras": lambda: tf.reduce_map(X, monoids.SUM, lambda x, s, e: x, 1, extras=LONE),
    "rms_norm, weight": lambda: tf.rms_norm(X, (6,), LONE),
}


@pytest.mark.parametrize("name", OF_LONE)
def test_what_is_no_tensor_may_take_a_function(name: str) -> None:
    function, args, kwargs = OF_LONE[name]()
    assert function == name.split(",")[0]
    assert LONE in (*args, *kwargs.values())


# Every function with torch's name and arguments, and those of its parameters that may be tensors.
OF_TORCH = {
    name: inspect.signature(f).parameters
    for name, f in vars(tf.functional).items()
    if inspect.isfunction(f) and name in tf.__all__
}
TENSORS = ("input", "x", "dim_or_other", "other", "weight", "bias", "residual", "out")
PAIRS = ("max", "min", "aminmax", "cummax", "cummin", "var_mean", "std_mean")


@pytest.mark.parametrize(
    ("name", "asked"), [(n, p) for n, own in OF_TORCH.items() for p in own if p in TENSORS]
)
def test_any_tensor_of_a_call_is_told_all_its_arguments(name: str, asked: str) -> None:
    first, *others = (n for n, p in OF_TORCH[name].items() if p.kind is not p.VAR_KEYWORD)
    values = LONE if asked == first else X
    given: dict[str, Any] = {p: object() for p in others}
    if asked != first:
        given[asked] = (LONE, None) if asked == "out" and name in PAIRS else LONE
    function, args, kwargs = getattr(tf, name)(values, **given)
    assert (function, kwargs) == (name, given)
    assert args[0] is values


@pytest.mark.parametrize("name", [n for n, own in OF_TORCH.items() if "names" in own])
def test_numpys_names_are_torchs(name: str) -> None:
    named = {numpys: object() for numpys, torchs in TORCH_NAMES.items() if torchs in OF_TORCH[name]}
    _, _, kwargs = getattr(tf, name)(LONE, **named)
    assert kwargs == {TORCH_NAMES[numpys]: value for numpys, value in named.items()}
