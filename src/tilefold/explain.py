"""`explain_plan`: how a call would run on a GPU, without running it."""

from __future__ import annotations

import inspect
from collections.abc import Sequence
from typing import Any

import torch

from tilefold.algebra.monoid import Monoid
from tilefold.errors import ArgumentError, KindError
from tilefold.fold import explain_fold
from tilefold.multiply import explain_product
from tilefold.planner.device import Device
from tilefold.planner.plan import Plan
from tilefold.product import matmul

# Of `matmul` alone.
OPTIONS = [
    n for n in inspect.signature(explain_product).parameters if n not in ("a", "b", "guarantee", "device")
]


def explain_plan(
    inputs: torch.Tensor | Sequence[torch.Tensor],
    operation: Monoid | Any,
    dim: int | Sequence[int] | None = None,
    *,
    guarantee: str = "run_to_run",
    device: Any = None,
    **options: Any,
) -> Plan:
    """How `reduce` would fold these tensors on a GPU, or `matmul` multiply them, and why, without running anything.

        plan = a pure function of (shape, strides, dtypes, alignment; operation and options; chip and its table; guarantee)

    Args:
        inputs: as in `reduce`, or the two operands of `matmul`; no element is read, so they may live anywhere, also on
            "meta". Any strides.
        operation: what to fold with, or `tilefold.matmul`.
        dim: of a fold: one dim, several, or None for all.
        guarantee: as in the call; "batch_invariant" plans without regard to how many results there are.
        device: a `tilefold.planner.device.Device`; by default the inputs' own chip, or an H200 where they are not on a GPU.
        options: of `matmul`: bias, epilogue, epilogue_args, row, out_dtype, precision and out.

    Returns:
        The plan: frozen, comparable, and readable when printed. Of nothing it has no stages.

    Raises:
        KindError: the operation is neither, `matmul` was given no two operands, or the device is none.
        DimError, ShapeError, DtypeError, DeviceError, ArgumentError, GradientError: the call would be refused.

    Example:
        >>> plan = tilefold.explain_plan(torch.empty(300, 5000, device="meta"), tilefold.monoids.SUM, dim=1)
        >>> plan.backend, plan.guarantee
        ('triton', 'run_to_run')
        >>> a, b = torch.empty(16, 32768, device="meta"), torch.empty(32768, 16, device="meta")
        >>> tilefold.explain_plan((a, b), tilefold.matmul, epilogue="relu").strategy
        'split'
    """
    if device is not None and not isinstance(device, Device):
        raise KindError(
            f"explain_plan: `device` must be a tilefold.planner.device.Device, got {device!r}; take planner.device.H200, or "
            "leave it out"
        )
    if operation is not matmul:
        if options:
            raise ArgumentError(
                f"explain_plan: a fold must come without options of matmul, got {', '.join(options)}; leave them out"
            )
        return explain_fold(inputs, operation, dim, guarantee, device)
    if not isinstance(inputs, tuple | list) or len(inputs) != 2:
        got = f"{len(inputs)} values" if isinstance(inputs, tuple | list) else f"one {type(inputs).__name__}"
        raise KindError(f"explain_plan: matmul must be given two operands, got {got}; write (a, b)")
    if unknown := options.keys() - set(OPTIONS):
        raise ArgumentError(
            f"explain_plan: options of matmul must be of {', '.join(OPTIONS)}, got {', '.join(sorted(unknown))}; "
            "leave that out"
        )
    return explain_product(*inputs, guarantee=guarantee, device=device, **options)
