"""`explain_plan`: how a call would run on a GPU, without running it."""

from __future__ import annotations

import inspect
from collections.abc import Sequence
from typing import Any

import torch

from tilefold import monoids
from tilefold.algebra.monoid import Monoid
from tilefold.api.dispatch import plan_for
from tilefold.api.matmul import matmul
from tilefold.api.products import product_request
from tilefold.api.reduce import requested
from tilefold.api.requests import Request
from tilefold.errors import ArgumentError, KindError, shown
from tilefold.planner.device import Device
from tilefold.planner.plan import Plan
from tilefold.planner.problem.instead import monoid_meant
from tilefold.runtime.switch import ExplainedError, explaining

# Of `matmul` alone.
OPTIONS = [n for n in inspect.signature(product_request).parameters if n not in ("a", "b", "guarantee")]


def explain_plan(
    inputs: torch.Tensor | Sequence[torch.Tensor],
    operation: Monoid | Any,
    dim: int | Sequence[int] | None = None,
    *,
    guarantee: str = "run_to_run",
    device: Any = None,
    **options: Any,
) -> Plan:
    """How a call would run on a GPU, and why, without running anything: a fold, a map, a scan, a product, any other.

        plan = a pure function of (shape, strides, dtypes, alignment; operation and options; chip and its table; guarantee)

    Args:
        inputs: the first arguments of the call: a tensor, several of `reduce`, `reduce_map`, `scan` and `segment_reduce`, or
            the two operands of `matmul`. No element is read, so they may live anywhere, also on "meta". Any strides.
        operation: a monoid to `reduce` with, or a function of tilefold's: `softmax`, `layer_norm`, `reduce_map`, `scan`,
            `cumsum`, `segment_reduce`, `topk`, `transpose`, `matmul`, `amax` and so on.
        dim: as in the call: one dim, several, or None for all or for a function's own choice.
        guarantee: as in the call; "batch_invariant" plans without regard to how many results there are.
        device: a `tilefold.planner.device.Device`; by default the inputs' own chip, or an H200 where they are not on a GPU.
        options: further arguments of the function, by name: `monoid`, `offsets`, `k`, `normalized_shape`, `epilogue` ...

    Returns:
        The plan: frozen, comparable, and readable when printed (`tilefold plan --help` explains its words). Of nothing it
        has no stages. It tells the chip (`chip`), the bytes that its steps read and write (`moved_bytes`), and the least time
        of these (`least_us`).

    Raises:
        KindError: the operation is no monoid and runs nothing, `matmul` was given no two operands, or the device is none.
        DimError, ShapeError, DtypeError, DeviceError, ArgumentError, GradientError: the call would be refused.

    Example:
        >>> plan = tilefold.explain_plan(torch.empty(300, 5000, device="meta"), tilefold.monoids.SUM, dim=1)
        >>> plan.backend, plan.guarantee
        ('triton', 'run_to_run')
        >>> a, b = torch.empty(16, 32768, device="meta"), torch.empty(32768, 16, device="meta")
        >>> tilefold.explain_plan((a, b), tilefold.matmul, epilogue="relu").strategy
        'split'
        >>> x = torch.empty(16384, 8192, dtype=torch.bfloat16, device="meta")
        >>> plan = tilefold.explain_plan(x, tilefold.softmax, dim=1)
        >>> plan.strategy, plan.moved_bytes
        ('whole', 536870912)
    """
    if device is not None and not isinstance(device, Device):
        raise KindError(
            f"explain_plan: `device` must be a tilefold.planner.device.Device, got {shown(device)}; take "
            "planner.device.H200, or leave it out"
        )
    found = request_of(inputs, operation, dim, guarantee, options)
    if found is None:
        return Plan("triton", guarantee=guarantee, strategy="nothing", reason="no elements")
    return plan_for(*found, device)


def request_of(
    inputs: Any, operation: Any, dim: Any, guarantee: str, options: dict[str, Any]
) -> tuple[Request, list[torch.Tensor]] | None:
    """What a call asks for and of which tensors, as `explain_plan` is given it; None where there are no elements.

    Raises: as `explain_plan`.
    """
    if isinstance(operation, Monoid):
        if options:
            raise ArgumentError(
                f"explain_plan: a fold must come without options, got {', '.join(options)}; leave them out"
            )
        return requested(inputs, operation, dim, guarantee, "explain_plan")
    if operation is not matmul:
        return _request_of_call(inputs, operation, dim, guarantee, options)
    if not isinstance(inputs, tuple | list) or len(inputs) != 2:
        got = f"{len(inputs)} values" if isinstance(inputs, tuple | list) else f"one {type(inputs).__name__}"
        raise KindError(f"explain_plan: matmul must be given two operands, got {got}; write (a, b)")
    if unknown := options.keys() - set(OPTIONS):
        raise ArgumentError(
            f"explain_plan: options of matmul must be of {', '.join(OPTIONS)}, got {', '.join(sorted(unknown))}; "
            "leave that out"
        )
    return product_request(*inputs, guarantee=guarantee, **options)


def _request_of_call(
    inputs: Any, operation: Any, dim: Any, guarantee: str, options: dict[str, Any]
) -> tuple[Request, list[torch.Tensor]] | None:
    """The request of a function: it is called, and asked for its request where it would be planned."""
    if (
        not callable(operation)
        or isinstance(operation, type)
        or getattr(monoids, name_of(operation), 0) is operation
    ):
        raise KindError(
            "explain_plan: `operation` must be a monoid or a function of tilefold's, got "
            f"{monoid_meant(operation)}, or a function: tilefold.softmax, say"
        )
    name = name_of(operation)
    given = dict(options) if dim is None else {"dim": dim, **options}
    if guarantee != "run_to_run":
        given["guarantee"] = guarantee
    _check_arguments(inputs, operation, name, given)
    try:
        with explaining():
            result = operation(inputs, **given)
    except ExplainedError as found:
        return found.request, list(found.tensors)
    tensors = inputs if isinstance(inputs, tuple | list) else [inputs]
    if result is not None and any(isinstance(t, torch.Tensor) and not t.numel() for t in tensors):
        return None
    raise KindError(
        f"explain_plan: `operation` must run on a GPU, got {name}, which ran nothing of tilefold's; take a "
        "function of tilefold's"
    )


def name_of(operation: Any) -> str:
    """A function's name, or a description of the value."""
    return str(getattr(operation, "__name__", type(operation).__name__))


def _check_arguments(inputs: Any, operation: Any, name: str, given: dict[str, Any]) -> None:
    """Refuse arguments that the function does not take, by its own list of parameters."""
    try:
        signature = inspect.signature(operation)
    except ValueError:  # a builtin that does not say
        return
    try:
        signature.bind(inputs, **given)
    except TypeError as error:
        takes = ", ".join(p for p in signature.parameters if p != "names")
        raise ArgumentError(
            f"explain_plan: the arguments must be those of {name} ({takes}), got others ({error}); write them as there"
        ) from None
