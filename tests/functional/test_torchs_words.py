"""Bad calls of torch's own functions: an error of torch's kind, with the words that torch's tests look for.

What is wanted is had by calling torch. `KEYS` are the words that its test_reductions.py, or code that caught its errors, may
look for; a message with none of them is one of its argument parser's, of which only the kind is compared.
"""

from __future__ import annotations

import re
import warnings
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch

import tilefold as tf

INF = float("inf")
X = torch.arange(12.0).reshape(3, 4)
CHOOSING = ("amax", "amin", "max", "min", "argmax", "argmin", "aminmax")
MOMENTS = ("var", "std", "var_mean", "std_mean")
NORMS = ("norm", "vector_norm")
NAMES = ("sum", "prod", "mean", *CHOOSING, "any", "all", "count_nonzero", *MOMENTS, "logsumexp", *NORMS)
FREEDOM = "degrees of freedom is <= 0"

KEYS = [
    "Dimension out of range",
    "appears multiple times in the list of dims",
    "only tensors with up to 64 dims are supported",
    "Expected reduction dim",
    "to be specified for input.numel() == 0",
    "to have non-zero size",
    "has no identity",
    "could not infer output dtype",
    "floating point",
    "not implemented",
    "does not support complex input",
    "only supports bool tensor for result, got",
    "dtype",
    "Expected a non-complex scalar",
    "not supported",
    "refers to a single memory location",
    "cross-device",
]
# Torch says in several ways what is one thing here.
ALIKE = {
    "does not support complex input": "not implemented",
    "does not have an identity": "has no identity",
    "Expected a non-complex scalar": "non-complex scalar",
    "cross-device": "device",
    "can't be cast to the desired output type": "dtype",
}

CALLS: dict[str, tuple[tuple[str, ...], Callable[[Any], Any]]] = {
    "dim-too-large": (NAMES, lambda f: f(X, dim=2)),
    "dim-too-small": (NAMES, lambda f: f(X, dim=-3)),
    "dim-1-of-a-scalar": (NAMES, lambda f: f(torch.tensor(1.0), dim=1)),
    "dim-twice": (NAMES, lambda f: f(X, dim=(0, -2))),
    "dim-of-text": (NAMES, lambda f: f(X, dim="a")),
    "dim-of-a-float": (NAMES, lambda f: f(X, dim=1.5)),
    "65-dims": (NAMES, lambda f: f(torch.ones([1] * 65), dim=0)),
    "of-nothing": (CHOOSING, lambda f: f(torch.empty(0))),
    "of-nothing-along-a-dim": (CHOOSING, lambda f: f(torch.empty(2, 0), dim=1)),
    "of-nothing-along-the-last-dim": (CHOOSING, lambda f: f(torch.empty(2, 0), dim=-1)),
    "of-nothing-along-dims": (("amax", "amin"), lambda f: f(torch.empty(2, 0, 4), dim=(0, 1))),
    "of-nothing-by-dim-none": (("amax", "amin", "argmax", "argmin", "aminmax"), lambda f: f(torch.empty(2, 0), dim=None)),
    "largest-norm-of-nothing": (NORMS, lambda f: f(torch.empty(0), INF)),
    "smallest-norm-of-nothing-along-a-dim": (NORMS, lambda f: f(torch.empty(2, 0), -INF, dim=1)),
    "integers": (("mean", *MOMENTS, *NORMS), lambda f: f(torch.ones(3, dtype=torch.int64))),
    "truths": (("mean", *MOMENTS, *NORMS), lambda f: f(torch.ones(3, dtype=torch.bool), dim=0)),
    "complex-numbers": (CHOOSING, lambda f: f(torch.ones(3, dtype=torch.complex64))),
    "an-integer-dtype": (("mean", *NORMS), lambda f: f(X, dtype=torch.int32)),
    "a-complex-dtype": (NORMS, lambda f: f(X, dtype=torch.complex64)),
    "dtype-of-text": (("sum", "prod", "mean", *NORMS), lambda f: f(X, dtype="f")),
    "out-of-integers": (
        ("mean", "amax", "amin", "argmax", "argmin", "any", "all", "var", "std", *NORMS),
        lambda f: f(X, dim=0, out=torch.empty(4, dtype=torch.int32)),
    ),
    "out-of-a-pair-of-integers": (
        ("max", "min", "aminmax"),
        lambda f: f(X, dim=0, out=(torch.empty(4, dtype=torch.int32), torch.empty(4, dtype=torch.int32))),
    ),
    "out-on-another-device": (
        ("sum", "prod", "mean", "amax", "amin", "var", "std", "logsumexp", *NORMS),
        lambda f: f(X, dim=0, out=torch.empty(4, device="meta")),
    ),
    "out-that-overlaps-itself": (("mean", "logsumexp"), lambda f: f(X, dim=0, out=torch.empty(1).expand(4))),
    "out-of-no-tensor": (("sum", "amax", "argmax", "logsumexp", *NORMS), lambda f: f(X, dim=0, out=3)),
    "keepdim-of-text": (NAMES, lambda f: f(X, dim=0, keepdim="y")),
    "a-keyword-of-none": (NAMES, lambda f: f(X, dim=0, foo=1)),
    "no-tensor": (tuple(n for n in NAMES if n != "norm"), lambda f: f([1.0, 2.0])),  # of norm an AttributeError
    "order-of-text": (NORMS, lambda f: f(X, "bad")),
    "complex-order": (NORMS, lambda f: f(X, 1j)),
    "correction-of-text": (MOMENTS, lambda f: f(X, correction="a")),
    "correction-and-unbiased": (MOMENTS, lambda f: f(X, dim=0, unbiased=True, correction=1)),
}  # fmt: skip
# What torch asks its dispatcher for and finds there is of no kind that Python knows better than a RuntimeError.
KINDS = (IndexError, TypeError, RuntimeError)


def torchs(name: str) -> Callable[..., Any]:
    function: Callable[..., Any] = torch.linalg.vector_norm if name == "vector_norm" else getattr(torch, name)
    return function


def bad_calls() -> Iterator[Any]:
    for what, (names, call) in CALLS.items():
        for name in names:
            yield pytest.param(name, call, id=f"{name}-{what}")


@pytest.mark.parametrize(("name", "call"), [*bad_calls()])
def test_a_bad_call_fails_as_torchs_does(name: str, call: Callable[[Any], Any]) -> None:
    with pytest.raises(Exception) as theirs:  # noqa: PT011  # whatever torch raises is what is wanted
        call(torchs(name))
    kind = next(k for k in KINDS if isinstance(theirs.value, k))
    with pytest.raises(kind) as ours:
        call(getattr(tf, name))
    said = str(theirs.value).partition("\n")[0]
    keys = [key for key in (*KEYS, *ALIKE) if key in said]
    parsed = re.search(
        r"invalid combination of arguments|argument '?\w|positional|keyword|tuple of|has no len", said
    )
    assert keys or parsed, f"torch says something new: {said}"
    for key in keys if not parsed else ():
        assert ALIKE.get(key, key) in str(ours.value)


# --------------------------------------------------------------------------------------------------- warnings


SPREADS: dict[str, tuple[torch.Tensor, dict[str, Any]]] = {
    "one-element": (torch.ones(1), {}),
    "a-scalar": (torch.tensor(2.0), {}),
    "rows-of-one": (torch.ones(3, 1), {"dim": 1}),
    "a-correction-of-all": (X, {"correction": 12}),
    "a-correction-of-a-row": (X, {"dim": -1, "correction": 4}),
    "a-correction-beyond": (X, {"dim": 1, "correction": 4.5}),
    "an-infinite-correction": (X, {"correction": INF}),
    "two-dims-of-one": (torch.ones(1, 1, 3), {"dim": (0, 1)}),
    "nothing": (torch.empty(0), {}),
    "rows-of-nothing": (torch.empty(3, 0), {"dim": 1, "correction": 0}),
    "no-rows": (torch.empty(0, 2), {"dim": 1}),
    "halves": (torch.ones(1, dtype=torch.float16), {}),
    "two-elements": (torch.ones(2), {}),
    "one-uncorrected": (torch.ones(1), {"unbiased": False}),
    "half-a-correction": (torch.ones(1), {"correction": 0.5}),
    "a-correction-of-nan": (torch.ones(2), {"correction": float("nan")}),
    "nothing-with-more": (torch.empty(0), {"correction": -1}),
    "no-data": (torch.ones(1, device="meta"), {}),
}


def warned(
    function: Callable[..., Any], x: torch.Tensor, options: dict[str, Any]
) -> list[warnings.WarningMessage]:
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        function(x, **options)
    return [w for w in caught if FREEDOM in str(w.message)]


@pytest.mark.parametrize("backend", ["auto", "cpu", "reference"])
@pytest.mark.parametrize("case", SPREADS)
@pytest.mark.parametrize("name", MOMENTS)
def test_no_degrees_of_freedom_are_a_warning_where_torch_warns(name: str, case: str, backend: str) -> None:
    theirs = warned(torchs(name), *SPREADS[case])
    with tf.backend(backend):
        ours = warned(getattr(tf, name), *SPREADS[case])
    assert [w.category for w in ours] == [w.category for w in theirs]
    for mine, other in zip(ours, theirs, strict=True):
        assert str(mine.message) == str(other.message).partition(" (Triggered")[0]
        assert mine.filename == __file__  # where the caller is
