"""What refusals name instead: torch's own function, `segment_reduce`, the monoid or the name that is meant."""

from __future__ import annotations

import importlib
import warnings
from collections.abc import Callable
from typing import Any

import pytest
import torch

import tilefold as tf
from tilefold import errors, monoids
from tilefold.errors import DtypeError, KindError, MemberError
from tilefold.planner.problem import instead

X = torch.linspace(-2, 3, 24).view(4, 6)
CALLS: dict[str, Callable[[Any], Any]] = {
    **{
        n: getattr(tf, n)
        for n in ("sum", "prod", "mean", "amax", "amin", "max", "min", "aminmax", "var", "std", "var_mean")
    },
    **{
        n: getattr(tf, n)
        for n in ("std_mean", "norm", "vector_norm", "normalize", "argmax", "argmin", "any", "all")
    },
    **{
        n: lambda x, n=n: getattr(tf, n)(x, 1)
        for n in (
            "logsumexp",
            "softmax",
            "log_softmax",
            "cumsum",
            "cumprod",
            "cummax",
            "cummin",
            "logcumsumexp",
        )
    },
    **{n: lambda x, n=n: getattr(tf, n)(x, (6,)) for n in ("layer_norm", "rms_norm")},
    "count_nonzero": tf.count_nonzero,
    "group_norm": lambda x: tf.group_norm(x, 2),
    "topk": lambda x: tf.topk(x, 2),
    "transpose": lambda x: tf.transpose(x, 0, 1),
    "matmul": lambda x: tf.matmul(x, X.mT),
    "reduce": lambda x: tf.reduce(x, monoids.LOGSUMEXP),
    "scan": lambda x: tf.scan(x, monoids.SUM, 1),
    "segment_reduce": lambda x: tf.segment_reduce(x, monoids.MAX, torch.tensor([0, 4])),
    "reduce_map": lambda x: tf.reduce_map(x, monoids.SUM, lambda x, s: x / s, 1),
    "reduce, another": lambda x: tf.reduce(x, monoids.DESCRIBE),
    "explain_plan": lambda x: tf.explain_plan(x, monoids.SUM),
}
DRAWN = torch.randn(9, 2, generator=torch.Generator().manual_seed(0))
ROWS = [t.clone() for t in DRAWN.split([3, 1, 5])]
JAGGED: dict[str, Callable[[Any], Any]] = {
    **{n: CALLS[n] for n in ("sum", "prod", "amax", "amin", "any", "all", "count_nonzero", "argmax", "mean")},
    "logsumexp": CALLS["logsumexp"],
    "softmax": CALLS["softmax"],
    "log_softmax": CALLS["log_softmax"],
}


@pytest.mark.parametrize("name", list(JAGGED))
def test_a_jagged_input_is_told_what_folds_its_rows(name: str) -> None:
    """What the message names gives what torch gives of each row."""
    x = torch.nested.nested_tensor(ROWS, layout=torch.jagged)
    with pytest.raises(DtypeError, match=r"unbind\(\) gives, or all rows at once: ") as caught:
        JAGGED[name](x)
    named = str(caught.value).rpartition("at once: ")[2]
    got = eval(named, {"tilefold": tf, "x": x})  # the message's own code
    for row, want in zip(got.unbind(), ROWS, strict=True):
        torch.testing.assert_close(row, getattr(torch, name)(want, 0))


def test_every_function_refuses_nested_tensors_by_name() -> None:
    jagged = torch.nested.nested_tensor(ROWS, layout=torch.jagged)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # torch calls them a prototype
        strided = torch.nested.nested_tensor(ROWS, layout=torch.strided)
    for x in (jagged, strided):
        for name, call in CALLS.items():
            if name != "segment_reduce":
                with pytest.raises(DtypeError, match=r"got a nested tensor; fold what unbind\(\) gives"):
                    call(x)


@pytest.mark.parametrize("call", [c for c in CALLS if c not in ("transpose",)])
def test_complex_elements_are_told_what_stands_for_them(call: str) -> None:
    with pytest.raises(DtypeError, match=r"torch\.view_as_real\(x\).* or x\.abs\(\)"):
        CALLS[call](X + 0j)


# ------------------------------------------------------------------------------------------------ names


@pytest.mark.parametrize(
    ("module", "name", "meant"),
    [
        ("tilefold", "SUM", "tilefold.monoids.SUM"), ("tilefold", "sums", "tilefold.sum"),
        ("tilefold", "segmentreduce", "tilefold.segment_reduce"), ("tilefold", "layernorm", "tilefold.layer_norm"),
        ("tilefold", "exp2", "tilefold.math.exp2"), ("tilefold", "Linear", "tilefold.nn.Linear"),
        ("tilefold", "log_sum_exp", "tilefold.logsumexp"), ("tilefold", "monoid", "tilefold.Monoid"),
        ("tilefold", "nanmean", "docs/algebra.md"), ("tilefold", "xrays", "tilefold.xray"),
        ("tilefold.monoids", "sum", "tilefold.monoids.SUM"), ("tilefold.monoids", "LOGSUMEXPP", "tilefold.monoids.LOGSUMEXP"),
        ("tilefold.monoids", "Max", "tilefold.monoids.MAX"), ("tilefold.monoids", "ADD", "tilefold.monoids.SUM"),
        ("tilefold.monoids", "MEAN", "tilefold.monoids.WELFORD"), ("tilefold.monoids", "XOR", "tilefold.monoids.BITWISE_XOR"),
        ("tilefold.monoids", "argMax", "tilefold.monoids.ARGMAX"), ("tilefold.monoids", "L2", r"tilefold.monoids.NORM\(2\)"),
        ("tilefold.math", "popcount", "shifts and masks, as docs/algebra.md"), ("tilefold.math", "sqr", "tilefold.math.sqrt"),
        ("tilefold.math", "Exp", "tilefold.math.exp"), ("tilefold.math", "clamp", "tilefold.math.minimum"),
        ("tilefold.nn", "linear", "tilefold.nn.Linear"), ("tilefold.nn", "RmsNorm", "tilefold.nn.RMSNorm"),
        ("tilefold", "swap", "tilefold.nn.swap"), ("tilefold.functional", "soft_max", "tilefold.functional.softmax"),
        ("tilefold.errors", "DTypeError", "tilefold.errors.DtypeError"),
        ("tilefold.errors", "SahpeError", "tilefold.errors.ShapeError"),
        ("tilefold.xray", "explane", "tilefold.xray.explain"),
        ("tilefold.integration.inductor", "ownmatmul", "tilefold.integration.inductor.own_matmul"),
    ],
)  # fmt: skip
def test_a_misspelt_name_says_what_was_meant(module: str, name: str, meant: str) -> None:
    found = importlib.import_module(module)
    with pytest.raises(MemberError, match=f"got .*{name}.*; .*{meant}"):
        getattr(found, name)
    assert not hasattr(found, name)
    assert getattr(found, name, None) is None


def test_a_name_like_none_says_where_to_look() -> None:
    for module in (tf, monoids, tf.nn, errors, tf.functional):
        with pytest.raises(AttributeError, match=r"got 'zzzzzz'; dir\(\) lists"):
            _ = module.zzzzzz
        with pytest.raises(AttributeError, match="has no attribute '__zzzzzz__'"):
            _ = module.__zzzzzz__


def test_every_alias_is_one_of_the_catalogues() -> None:
    for alias, name in monoids.ALIASES.items():
        assert alias == alias.replace("_", "").lower()
        assert name.partition("(")[0] in monoids.__all__
    assert {n.partition("(")[0] for n in instead._OF_ROWS.values()} <= set(monoids.__all__)


@pytest.mark.parametrize(
    ("given", "meant"),
    [
        (monoids.NORM, r"the function NORM, which makes one; call it: tilefold\.monoids\.NORM\(2\)"),
        (tf.Monoid, r"the class itself; make one of it"),
        (torch.sum, r"'sum'; take tilefold\.monoids\.SUM or make one"),
        (tf.logsumexp, r"take tilefold\.monoids\.LOGSUMEXP or"),
        (tf.math.maximum, r"take tilefold\.monoids\.MAX or"),
        ("sum", r"got str 'sum'; take tilefold\.monoids\.SUM or"),
        ("LogSumExpp", r"take tilefold\.monoids\.LOGSUMEXP or"),
        (max, r"take tilefold\.monoids\.MAX or"),
        (lambda a, b: a + b, r"got function; take one of tilefold\.monoids or make one"),
        (3, r"got int; take one of tilefold\.monoids or make one"),
        (None, r"got NoneType; take one of tilefold\.monoids or make one"),
    ],
    ids=lambda value: getattr(value, "__name__", str(value)),
)  # fmt: skip
def test_what_is_no_monoid_names_the_one_that_is_meant(given: Any, meant: str) -> None:
    offsets = torch.tensor([0, 4])
    for call in (
        lambda: tf.reduce(X, given),
        lambda: tf.reduce([X], given),
        lambda: tf.scan(X, given, 0),
        lambda: tf.reduce_map(X, given, lambda x, s: x, 0),
        lambda: tf.segment_reduce(X, given, offsets),
        lambda: tf.matmul(X, X.mT, row=(given, None)),
    ):
        with pytest.raises(KindError, match=meant):
            call()


def test_values_are_shown_on_one_short_line() -> None:
    class Lines:
        def __repr__(self) -> str:
            return "one\n two" + "o" * 200

    class Failing:
        def __repr__(self) -> str:
            raise ValueError

    assert errors.shown(Lines()).startswith("one twooo")
    assert len(errors.shown(Lines())) == 80
    assert errors.shown(Failing()) == "a value of type Failing"
    assert errors.shown(X) == "Tensor of shape [4, 6]"
    assert "\n" not in errors.shown([X])
