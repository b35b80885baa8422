"""How arguments of torch's functions are read, and refused in torch's kinds of error."""

from __future__ import annotations

import inspect
import numbers
from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypedDict, TypeVar

import torch
from torch import Tensor

from tilefold.algebra.typing import GIVEN
from tilefold.errors import DtypeError, EmptyError, KindError, shown
from tilefold.planner.problem.canonical import is_listed, whole_number, wrapped_dims
from tilefold.planner.problem.instead import of_complex
from tilefold.runtime.modes import is_known
from tilefold.runtime.overrides import listed, overridden, override
from tilefold.runtime.uncompiled import uncompiled

Result = TypeVar("Result")
Dims = int | Sequence[int] | None
INFINITY = float("inf")
UNSET: Any = type("Unset", (), {"__repr__": lambda self: "None"})()  # tells dim=None from no dim at all
LEFT: Any = type("Left", (), {"__repr__": lambda self: "False"})()  # tells keepdim=False from none at all
NEEDED: Any = type("Needed", (), {"__repr__": lambda self: "..."})()  # a dim to give by one of its names
USUAL: Any = type("Usual", (), {"__repr__": lambda self: "True"})()  # tells unbiased=True from none at all


class NumpyNames(TypedDict, total=False):
    """What torch takes under numpy's names as well: `dim` and `keepdim`."""

    axis: Any
    keepdims: bool


TORCH_NAMES = {"axis": "dim", "keepdims": "keepdim"}


@uncompiled
def redirected(function: Callable[..., Result], names: Mapping[str, Any], *values: Any) -> Result:
    """The call with `axis` as `dim` and `keepdims` as `keepdim`, done as tensors' classes and modes of functions do it.

    `values` are those of the function's own parameters, in order. Functions take numpy's names as further keywords and
    call this where there are any, or where a class or a mode is asked: a plain call pays for two questions.
    """
    parameters = inspect.signature(function).parameters
    arguments = dict(zip(parameters, values, strict=False))  # all but the further keywords themselves
    _rename(function.__name__, names, arguments, parameters)
    relevant = [v for name in _TENSORS if name in arguments for v in listed(arguments[name])]
    if not overridden(*relevant):
        return function(**arguments)
    first, *others = arguments.items()
    given = {name: value for name, value in others if value is not parameters[name].default}
    result: Result = override(function, relevant, first[1], **given)
    return result


_TENSORS = (
    "input", "x", "dim_or_other", "other", "target", "weight", "bias", "linear_weight", "linear_bias", "residual", "out",
)  # fmt: skip


def _rename(
    call: str,
    names: Mapping[str, Any],
    arguments: dict[str, Any],
    parameters: Mapping[str, inspect.Parameter],
) -> None:
    """Move arguments given by numpy's names to torch's."""
    for name, value in names.items():
        meant = TORCH_NAMES.get(name)
        if meant not in arguments:
            raise KindError(
                f"{call}: keywords must be among {', '.join(arguments)} (`axis` is `dim`, `keepdims` is `keepdim`), "
                f"got {name!r}; take one of these"
            )
        if arguments[meant] is not parameters[meant].default:
            raise KindError(f"{call}: `{name}` is another name of `{meant}`, got both; leave one out")
        arguments[meant] = value


def every(dim: Dims) -> Dims:
    """Torch's reading of an empty `dim`: all dims."""
    if dim is None or type(dim) is int:
        return dim
    return None if (type(dim) is tuple or is_listed(dim)) and not dim else dim


def need_elements(x: Tensor, dim: Dims, call: str) -> None:
    """Refuse to choose among no elements: before a dim that is named twice, as in torch, and with torch's own words."""
    if is_known(x.numel() != 0):
        return
    empty = next((d for d in wrapped_dims(dim, x.ndim, call) if is_known(x.shape[d] == 0)), None)
    if empty is not None:
        expected = "be specified for input.numel() == 0" if dim is None else "have non-zero size"
        which = "dim" if dim is None else f"dim {empty}"
        raise EmptyError(
            f"{call}: every reduced dim needs at least one element, got shape {list(x.shape)} (Expected reduction {which} to "
            f"{expected}, as the operation has no identity); fold another dim or give it elements"
        )


def no_dim(keepdim: bool, call: str) -> None:
    """The default `dim` was left: torch does not have this overload with `keepdim`."""
    if keepdim is not LEFT:
        raise KindError(
            f"{call}: `keepdim` needs a `dim`, got keepdim={shown(keepdim)} alone; pass the dims to fold"
        )


def given(keepdim: bool) -> bool:
    """The truth of a `keepdim` that may have been left out."""
    return keepdim is not LEFT and keepdim


def is_whole(number: Any) -> bool:
    """An int, numpy's and others' included, and a 0-d tensor of one; True and False are none."""
    several = isinstance(number, Tensor) and number.ndim > 0
    return not several and whole_number(number) is not None


def asked_dtype(dtype: Any, out: Any) -> Any:
    """The dtype that a call asks for: its `dtype`, or without one its `out`'s, as in torch."""
    if dtype is None and isinstance(out, Tensor) and out.dtype in GIVEN:
        return out.dtype
    return dtype


def as_number(value: Any) -> float | None:
    """A real number, where torch takes one: Python's, numpy's, or that of a 0-d tensor; None for other values."""
    if isinstance(value, Tensor):
        takes = not value.is_nested and value.ndim == 0 and not value.requires_grad and not value.is_complex()
        if not takes:
            return None
    # numpy's bool is a number to torch, and none to `numbers`.
    elif not isinstance(value, numbers.Real) and type(value).__name__ not in ("bool", "bool_"):
        return None
    try:
        return float(value).__float__()  # under torch.compile a symbol becomes a number, which guards
    except OverflowError:  # a whole number that no float holds
        return INFINITY if value > 0 else -INFINITY
    except Exception:  # of a tensor without data; of a class of the caller's
        return None


def is_complex(value: Any) -> bool:
    """Whether a value is a number all the same, one that is not real."""
    return value.is_complex() if isinstance(value, Tensor) else isinstance(value, numbers.Complex)


def one_dim(dim: Any, call: str) -> None:
    """Refuse several dims, and values that are not a dim."""
    if dim is not None and type(dim) is not int and not is_whole(dim):
        raise KindError(f"{call}: `dim` must be one int, got {shown(dim)}; fold one dim at a time")


def need_float(dtype: torch.dtype, call: str) -> None:
    """Refuse elements that are not floats."""
    if not dtype.is_floating_point:
        fix = "convert the input, or pass a float dtype= where it is taken"
        raise DtypeError(
            f"{call}: elements must be floating point, got {dtype}; {of_complex() if dtype.is_complex else fix}"
        )
