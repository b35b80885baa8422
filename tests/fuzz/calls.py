"""Calls of every public function with arguments that no one should give: each returns, or is refused by an error of ours.

A call is a right one with one to three of its arguments replaced by what does not belong there: None where a number belongs,
truths for numbers, absurd sizes, NaN, text, classes, tensors of other kinds, objects whose own methods fail. Where torch has
the function, what it refuses as being of the wrong kind (TypeError) is refused here too.
"""

from __future__ import annotations

import inspect
import math
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from decimal import Decimal
from fractions import Fraction
from typing import Any

import numpy as np
import torch
from hypothesis import strategies as st

import tilefold
from tilefold import monoids
from tilefold.errors import GradientError, TilefoldError

Tensor = torch.Tensor


class Failing:
    """An object each of whose methods fails."""

    __hash__ = None  # type: ignore[assignment]  # no key of a dictionary

    def _fail(self, *_: object) -> Any:
        raise ValueError("a class of the caller's")

    __index__ = __eq__ = __bool__ = __repr__ = __len__ = __float__ = _fail  # type: ignore[assignment]  # of any kind


class Lines:
    """An object whose text has several lines."""

    def __repr__(self) -> str:
        return "one\ntwo\nthree"


def _around() -> list[Any]:
    around: list[Any] = []
    around.append(around)
    return around


def _x() -> Tensor:
    return torch.linspace(-2, 3, 24).view(4, 6)


# What is given: each made anew, since some calls write into it. Numbers first: a shrunk case has the simplest value.
VALUES: dict[str, Callable[[], Any]] = {
    **{
        repr(value)[:40]: lambda value=value: value
        for value in (
            None, True, False, 0, 1, -1, 7, 0.5, math.nan, math.inf, -math.inf, 1j, 2**31, 2**62, 2**63, -(2**70), 10**400,
            "", "a", "sum", "float32", b"x", (), (0,), (0, 0), (True,), (0.5,), ("a",), (2**64,), [], [None], {}, {"a": 1},
            ..., range(1), slice(0), float, int, complex, str, object, torch.float32, torch.int32, torch.complex64,
            torch.quint8, np.float32, np.int64(1), np.float64("nan"), np.bool_(True), Decimal(1), Fraction(1, 2),
        )
    },
    "more digits than Python writes": lambda: 10**5000,
    "several of these": lambda: (-(10**5000),),
    "{0}": lambda: {0},
    "iterator": lambda: iter([0]),
    "object": object,
    "failing": Failing,
    "lines": Lines,
    "around": _around,
    "memoryview": lambda: memoryview(b"ab"),
    "array of one": lambda: np.array([0]),
    "array": lambda: np.zeros((4, 6), np.float32),
    "array of nothing": lambda: np.array(0),
    "lambda": lambda: lambda *a: 0,
    "torch.sum": lambda: torch.sum,
    "tilefold.sum": lambda: tilefold.sum,
    "a module": lambda: torch.nn.Module,
    "torch": lambda: torch,
    "device": lambda: torch.device("cpu"),
    "SUM": lambda: monoids.SUM,
    "NORM": lambda: monoids.NORM,
    "FIRST": lambda: monoids.FIRST,
    "Monoid": lambda: tilefold.Monoid,
    "scalar": lambda: torch.tensor(0.5),
    "whole": lambda: torch.tensor(2**62),
    "truth": lambda: torch.tensor(True),
    "scalar without data": lambda: torch.tensor(1, device="meta"),
    "x": _x,
    "x, complex": lambda: _x() + 0j,
    "x, int32": lambda: _x().int(),
    "x, float64": lambda: _x().double(),
    "x, bool": lambda: _x().bool(),
    "x, meta": lambda: _x().to("meta"),
    "x, sparse": lambda: _x().to_sparse(),
    "x, requires grad": lambda: _x().requires_grad_(),
    "x, parameter": lambda: torch.nn.Parameter(_x()),
    "x, quantized": lambda: torch.quantize_per_tensor(_x(), 1.0, 0, torch.quint8),
    "x, negated": lambda: torch._neg_view(_x()),
    "row": lambda: _x()[0],
    "no rows": lambda: _x()[:0],
    "65 dims": lambda: torch.ones([1] * 65),
    "huge": lambda: torch.ones(1, device="meta").expand(2**31, 2**31),
    "jagged": lambda: torch.nested.nested_tensor([torch.ones(2), torch.ones(3)], layout=torch.jagged),
    "nested": lambda: torch.nested.nested_tensor([torch.ones(2), torch.ones(3)], layout=torch.strided),
    "x, x": lambda: [_x(), _x()],
    "x, None": lambda: [_x(), None],
    "offsets": lambda: torch.tensor([0, 2, 4]),
    "wrapping": lambda: torch.tensor([2**62] * 3),
}  # fmt: skip


def _reduced(**options: Any) -> Any:
    return tilefold.reduce(_x(), tilefold.Monoid(**options), 1)


def _layered(kind: Callable[..., Any]) -> Callable[..., Any]:
    return lambda x, **options: kind(**options)(x)


def _backend(name: Any) -> None:
    with tilefold.backend(name):
        pass


def _moments(x: Any) -> Any:
    return x, 1


LAYERS: dict[str, dict[str, Any]] = {
    "Linear": {"in_features": 6, "out_features": 3},
    "Softmax": {"dim": 1},
    "LogSoftmax": {"dim": 1},
    "LayerNorm": {"normalized_shape": 6},
    "RMSNorm": {"normalized_shape": 6},
    "GroupNorm": {"num_groups": 2, "num_channels": 6},
}


def _right() -> dict[str, tuple[Callable[..., Any], dict[str, Any], tuple[str, ...]]]:
    """Each function, the arguments of a right call, and the parameters that may be replaced."""
    named = {n: getattr(tilefold, n) for n in tilefold.__all__}
    plain = {n: f for n, f in named.items() if inspect.isfunction(f) and n not in ("backend", "last_plan")}
    first = {n: next(iter(inspect.signature(f).parameters)) for n, f in plain.items()}
    calls: dict[str, tuple[Callable[..., Any], dict[str, Any]]] = {
        n: (f, {first[n]: _x()}) for n, f in plain.items()
    }
    for name in (
        "cumsum",
        "cumprod",
        "cummax",
        "cummin",
        "logcumsumexp",
        "logsumexp",
        "softmax",
        "log_softmax",
    ):
        calls[name][1]["dim"] = 1
    for name in ("bitwise_and", "bitwise_or", "bitwise_xor"):
        calls[name][1]["input"] = _x().int()
    for name in ("layer_norm", "rms_norm", "rms_norm_quantized"):
        calls[name][1]["normalized_shape"] = (6,)
    for name in ("reduce", "scan", "reduce_map", "segment_reduce"):
        calls[name][1]["monoid"] = monoids.SUM
    calls["scan"][1]["dim"] = calls["reduce_map"][1]["dim"] = 1
    calls["reduce_map"][1]["apply"] = lambda x, s: x / s
    calls["group_norm"][1]["num_groups"] = calls["topk"][1]["k"] = 2
    calls["transpose"][1].update(dim0=0, dim1=1)
    calls["cross_entropy"][1]["target"] = torch.tensor([0, 5, 2, 1])
    for name in ("linear_cross_entropy", "linear_reduce"):
        calls[name][1].update(linear_weight=_x()[:3], target=torch.tensor([0, 2, 2, 1]))
    calls["linear_reduce"][1]["monoid"] = monoids.LOGSUMEXP
    calls["reduce_many"] = (tilefold.reduce_many, {"tensors": [_x(), _x()[0]], "monoid": monoids.SUM})
    calls["clip_grad_norm_"] = (tilefold.clip_grad_norm_, {"parameters": [_x()], "max_norm": 1.0})
    calls["describe"][1]["model"] = torch.nn.Linear(2, 3)
    calls["explain_plan"][1]["operation"] = monoids.SUM
    segment = calls.pop("segment_reduce")
    calls["segment_reduce"] = (segment[0], segment[1] | {"offsets": torch.tensor([0, 2, 4])})
    calls["segment_reduce by"] = (
        segment[0],
        segment[1] | {"by": torch.tensor([0, 0, 1, 2]), "num_segments": 3},
    )
    calls["segment_reduce of lengths"] = (segment[0], segment[1] | {"lengths": torch.tensor([1, 3])})
    operands = {"a": _x(), "b": _x().mT}
    calls["matmul"] = (tilefold.matmul, operands)
    calls["matmul, traced"] = (
        tilefold.matmul, operands | {"epilogue": lambda x, r: x + r, "epilogue_args": (torch.ones(4),)}
    )  # fmt: skip
    calls["matmul, row"] = (tilefold.matmul, operands | {"row": (monoids.SUM, None)})
    made = [
        (f, a, tuple(p for p in inspect.signature(f).parameters if p != "names")) for f, a in calls.values()
    ]
    right = dict(zip(calls, made, strict=True))
    monoid = tuple(inspect.signature(tilefold.Monoid).parameters)
    right["Monoid"] = (_reduced, {"combine": lambda a, b: a + b, "identity": 0}, monoid)
    fields = {
        "combine": lambda a, b: (a.s + b.s, a.n + b.n),
        "identity": (0, 0),
        "fields": ("s", "n"),
        "lift": _moments,
    }
    right["Monoid of fields"] = (_reduced, fields | {"project": lambda s, n: s / n}, monoid)
    for layer, sizes in LAYERS.items():
        kind = getattr(tilefold.nn, layer)
        right[layer] = (_layered(kind), {"x": _x(), **sizes}, ("x", *inspect.signature(kind).parameters))
    right["swap"] = (tilefold.nn.swap, {"model": torch.nn.Softmax(0)}, ("model",))
    right["backend"] = (_backend, {"name": "cpu"}, ("name",))
    right["NORM"] = (lambda p: tilefold.reduce(_x(), monoids.NORM(p)), {"p": 2}, ("p",))
    right["cast"] = (tilefold.math.cast, {"x": 1.0, "dtype": torch.float32}, ("dtype",))
    return right


RIGHT = _right()
# torch.maximum and torch.minimum, whose errors are theirs; the caller's own functions, whose errors are theirs too;
# sizes that a machine may hold.
EXCEPT = {
    *((name, argument, None) for name in ("max", "min") for argument in ("other", "dim_or_other")),
    ("explain_plan", "operation", "lambda"),
    ("explain_plan", "operation", "torch.sum"),
    ("explain_plan", "operation", "torch"),
    *((f"segment_reduce{way}", "num_segments", str(2**31)) for way in ("", " by", " of lengths")),
    *((layer, "device", None) for layer in LAYERS),
}
# Names that torch has for something else, or for other parameters.
_OTHERS = (
    "norm",
    "matmul",
    "transpose",
    "topk",
    "segment_reduce",
    "bitwise_and",
    "bitwise_or",
    "bitwise_xor",
)
_TORCHS = {
    **{n: getattr(torch, n) for n in RIGHT if hasattr(torch, n) and n not in _OTHERS},
    **{n: getattr(torch.nn.functional, n) for n in ("layer_norm", "rms_norm", "group_norm", "normalize")},
}  # fmt: skip
# What is taken here and not by torch: whole numbers of other kinds as dims, numbers that are real or beyond 64 bits,
# `unbiased` by the name of `dim`, several dims of a softmax.
WIDER = {
    *(
        ("dim", value)
        for value in ("range(0, 1)", "array of nothing", "True", "False", "None", "()", "(0,)", "[]")
    ),
    *(
        (name, value)
        for name in ("correction", "eps", "p", "ord")
        for value in ("Fraction(1, 2)", repr(10**400)[:40])
    ),
    ("correction", repr(-(2**70))),
    ("dtype", "torch.bool"),
}


@dataclass(frozen=True)
class Call:
    """A function's name, and the arguments that are replaced: (parameter, name of the value)."""

    name: str
    replaced: tuple[tuple[str, str], ...]
    mapped: str | None = None


@st.composite
def calls(draw: st.DrawFn) -> Call:
    """Any call with one to three arguments replaced, or one inside of torch.vmap."""
    name = draw(st.sampled_from(sorted(RIGHT)))
    _, given, parameters = RIGHT[name]
    tensors = [p for p in parameters if isinstance(given.get(p), Tensor)] + ["out"] * ("out" in parameters)
    if tensors and draw(st.integers(0, 9)) == 0:
        return Call(name, (), draw(st.sampled_from(tensors)))
    chosen = draw(st.lists(st.sampled_from(parameters), min_size=1, max_size=3, unique=True))
    replaced = tuple((p, draw(st.sampled_from(list(VALUES)))) for p in chosen)
    return Call(name, replaced)


def check(case: Call) -> None:
    """The call returns or is refused by an error of ours, on one line; what torch takes for the wrong kind is refused."""
    function, given, _ = RIGHT[case.name]
    if any((case.name, p, value) in EXCEPT or (case.name, p, None) in EXCEPT for p, value in case.replaced):
        return
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        if case.mapped is not None:
            _check_mapped(function, given, case.mapped)
            return
        refused = _refused(function, given | {p: VALUES[value]() for p, value in case.replaced})
        torchs = _TORCHS.get(case.name)
        if torchs is None or len(case.replaced) > 1 or set(case.replaced) & WIDER or refused is not None:
            return
        argument, value = case.replaced[0]
        if argument in inspect.signature(function).parameters and argument not in (
            "guarantee",
            "out",
            "residual",
            "other",
        ):
            try:
                torchs(**(given | {argument: VALUES[value]()}))
            except TypeError as error:
                raise AssertionError(f"torch refuses {case}: {error}") from error
            except Exception:  # what torch refuses for what the value is, not for its kind
                return


def _refused(function: Callable[..., Any], arguments: dict[str, Any]) -> TilefoldError | None:
    """The error of ours that a call ends in, if any; any other one goes on."""
    try:
        function(**arguments)
    except TilefoldError as error:
        text = str(error)
        assert "\n" not in text, text
        assert len(text) < 1000, text
        return error
    return None


def _check_mapped(function: Callable[..., Any], given: dict[str, Any], name: str) -> None:
    """torch.vmap over one argument: our error, of torch's kind, until there is a rule."""
    one = given.get(name)
    if one is None:  # an `out` of the result's shape
        made = function(**given)
        made = made[0] if isinstance(made, tuple) else made
        if not isinstance(made, Tensor):
            return
        one = torch.empty_like(made)
    try:
        torch.vmap(lambda t: function(**(given | {name: t})), randomness="same")(torch.stack([one, one]))
    except GradientError:  # of torch's kind, a RuntimeError
        return
    except TilefoldError as error:
        if name != "out":  # one of several results
            raise AssertionError(f"{error} is not about torch.vmap") from error
