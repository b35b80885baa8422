"""The state that a fold or a scan begins with, and the one that it gives: numbers and tensors as its fields take them."""

from __future__ import annotations

import functools
import math
import numbers
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from tilefold.algebra.dtypes import integer_limits, is_float
from tilefold.algebra.fields import declared_dtypes
from tilefold.algebra.monoid import Monoid
from tilefold.algebra.numbers import short_text
from tilefold.algebra.program import Program
from tilefold.api import dispatch
from tilefold.errors import ArgumentError, DeviceError, DtypeError, KindError, ShapeError, shown
from tilefold.planner.problem.validate import check_tensors, is_abstract, plain
from tilefold.runtime.switch import is_explaining

State = Tensor | bool | int | float


def fields_of(init: Any) -> list[Any] | None:
    """What was given for each field; one field's value may stand alone. None where no state was given."""
    return None if init is None else list(init) if isinstance(init, tuple | list) else [init]


def tensors_of(init: Sequence[Any] | None) -> list[Tensor]:
    """The fields that are tensors."""
    return [] if init is None else [field for field in init if isinstance(field, Tensor)]


def packed(made: Sequence[Tensor], monoid: Monoid, return_state: bool) -> Any:
    """Results as the user wrote them; with `return_state` a pair of these and of the state, whose fields come last."""
    if not return_state:
        return monoid.pack(made)
    fields = len(monoid.algebra.fields)
    return monoid.pack(made[:-fields]), monoid._state(made[-fields:])


def initial_state(
    init: Sequence[Any], monoid: Monoid, program: Program, rows: Sequence[int], like: Tensor, call: str
) -> list[Tensor]:
    """The state before each row: a tensor of the rows' (or results') shape a field, contiguous.

    A narrow integer is carried in a wider one, and its state must fit the narrow one. A state on a GPU is not checked: it
    wraps.

    Raises:
        ArgumentError, KindError, ShapeError, DtypeError, DeviceError, GradientError: the state does not fit.
    """
    fields = monoid.algebra.fields
    if len(init) != len(fields):
        raise ArgumentError(
            f"{call}: `init` must have one number or tensor for each field of {monoid.name} ({', '.join(fields)}), got "
            f"{len(init)}; give that many"
        )
    declared = declared_dtypes(program.algebra, program.elements)
    made = []
    for value, name, carried, narrow in zip(init, fields, program.state, declared, strict=False):
        held = carried if is_float(carried) else narrow
        field = _field(value, name, held, like, call)
        if field.dtype != held or held != carried:
            (field,) = dispatch.noted(functools.partial(_as_carried, held, carried), field)
        made.append(_of_rows(field, name, rows, call))
    if monoid.algebra.identity is None:
        made.append(_of_rows(like.new_ones((), dtype=torch.bool), "is_present", rows, call))
    return made


def _as_carried(held: torch.dtype, carried: torch.dtype, field: Tensor) -> list[Tensor]:
    return [field.to(held).to(carried)]


def _field(value: Any, name: str, dtype: torch.dtype, like: Tensor, call: str) -> Tensor:
    """A field of this dtype, in the shape that it was given in."""
    if isinstance(value, Tensor):
        check_tensors([value], call, names=("init",))
        if value.device != like.device:
            raise DeviceError(
                f"{call}: `init` must be on the inputs' device {like.device}, got {value.device} for {name}; move it there"
            )
        _check_whole(is_float(value.dtype), "floats", name, dtype, call)
        if (
            value.dtype != dtype
            and value.device.type == "cpu"
            and not (is_explaining() or is_abstract(value))
        ):
            for extreme in _extremes(value):
                _check_held(extreme, name, dtype, call)
        return value
    number = _number(value)
    if number is None:
        raise KindError(
            f"{call}: `init` must be a number or a tensor for each field, got {type(value).__name__} for {name}; "
            "use torch.as_tensor"
        )
    _check_whole(isinstance(number, float), shown(number), name, dtype, call)
    _check_held(number, name, dtype, call)
    return like.new_full((), float(number) if is_float(dtype) else number, dtype=dtype)


def _number(value: Any) -> float | None:
    """A real number as Python has it, a fraction beyond floats as the whole number beside it; None for other values."""
    numpys_bool = type(value).__name__ in ("bool", "bool_")  # none to `numbers`
    if numpys_bool or isinstance(value, numbers.Integral):
        return int(value)
    is_real = isinstance(value, numbers.Real)
    try:
        number = float(value) if is_real else None
    except OverflowError:
        number = math.trunc(value)
    return number


def _check_whole(is_fraction: bool, got: str, name: str, dtype: torch.dtype, call: str) -> None:
    if is_fraction and not is_float(dtype):
        raise DtypeError(
            f"{call}: `init` must be whole for the field {name}, which is {dtype}, got {got}; convert it to an int"
        )


def _extremes(value: Tensor) -> tuple[float, ...]:
    """The least and the greatest finite element."""
    value = plain(value.detach())
    if is_float(value.dtype):
        value = value.double()
        value = value[value.isfinite()]
    if not value.numel():
        return ()
    if value.dtype != torch.uint64:
        low, high = (value if is_float(value.dtype) else value.to(torch.int64)).aminmax()
        return low.item(), high.item()
    # Torch compares no uint64: with its first bit turned, an int64 has the same order.
    low, high = (value.view(torch.int64) ^ -(2**63)).aminmax()
    return int(low) + 2**63, int(high) + 2**63


def _check_held(number: float, name: str, dtype: torch.dtype, call: str) -> None:
    """Refuse a number beyond what the field's dtype holds; an infinity and NaN are left to what floats hold."""
    if isinstance(number, float) and not math.isfinite(number):
        return
    if is_float(dtype):
        least, greatest = -torch.finfo(dtype).max, torch.finfo(dtype).max
    else:
        least, greatest = integer_limits(dtype)
    if not least <= number <= greatest:
        raise ArgumentError(
            f"{call}: `init` must fit the field {name}, which is {dtype}, got {short_text(number)}; give a number in "
            f"[{least}, {greatest}]"
        )


def _of_rows(field: Tensor, name: str, rows: Sequence[int], call: str) -> Tensor:
    """The field of each row, contiguous, as kernels leave states."""
    try:
        return field.expand(tuple(rows)).contiguous()
    except RuntimeError:
        raise ShapeError(
            f"{call}: `init` must broadcast to the rows' shape {list(rows)}, got {list(field.shape)} for {name}; reshape it"
        ) from None
