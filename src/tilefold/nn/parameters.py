"""What a module's constructor is given for its parameters."""

from __future__ import annotations

from typing import Any

import torch

from tilefold.errors import ArgumentError, DtypeError, KindError, shown
from tilefold.planner.problem.canonical import whole_number
from tilefold.planner.problem.validate import as_dtype


def check_sizes(call: str, **sizes: Any) -> None:
    """Refuse sizes of parameters that are no sizes.

    Raises:
        KindError, ArgumentError: one is wrong.
    """
    for name, value in sizes.items():
        number = whole_number(value)
        if number is None or not 0 <= number < 2**31:
            kind = KindError if number is None else ArgumentError
            raise kind(
                f"{call}: `{name}` must be an int from 0 to 2**31 - 1, got {shown(value)}; say how many there are"
            )


def check_parameters(call: str, device: Any, dtype: Any, **flags: Any) -> None:
    """Refuse wrong devices, dtypes and truth values that say which parameters there are.

    Raises:
        KindError, DtypeError: one is wrong.
    """
    for name, value in flags.items():
        if value is not None and not isinstance(value, int):  # torch takes these
            raise KindError(f"{call}: `{name}` must be True or False, got {shown(value)}; write bool(...)")
    if device is not None and (isinstance(device, bool) or not isinstance(device, str | int | torch.device)):
        raise KindError(
            f'{call}: `device` must be a torch.device, its name or None, got {shown(device)}; pass "cuda", say'
        )
    if (made := as_dtype(dtype, call)) is not None and not made.is_floating_point:
        raise DtypeError(f"{call}: `dtype` must be of floats, got {made}; parameters are trained")
