"""What torch has switched on around a call: automatic conversions, transforms, and graphs that are recorded."""

from __future__ import annotations

import contextlib

import torch
from torch.autograd import forward_ad

from tilefold.errors import BackendError

# Asked once, at import: Dynamo of torch 2.11 cannot trace the question.
_CONVERTIBLE = frozenset(
    kind
    for kind in ("cpu", "cuda", "xpu", "mps", "hpu", "mtia", "maia", "ipu", "xla")
    if torch.amp.is_autocast_available(kind)
)


def as_given(device: torch.device) -> contextlib.AbstractContextManager[object]:
    """A context in which torch's operations compute in the dtypes they are given, inside torch.autocast too."""
    if is_converted(device):
        return torch.autocast(device.type, enabled=False)
    return contextlib.nullcontext()


def is_converted(device: torch.device) -> bool:
    """Whether torch.autocast converts what products of this device are given."""
    return device.type in _CONVERTIBLE and torch.is_autocast_enabled(device.type)


def is_recorded() -> bool:
    """Whether operations are being recorded in a graph, with or without data: by make_fx, or a torch.export not strict."""
    records = torch._C._TorchDispatchModeKey.PROXY
    early = torch._ops._get_dispatch_mode_pre_dispatch(records)  # type: ignore[no-untyped-call]  # torch's own
    return early is not None or torch._C._get_dispatch_mode(records) is not None


def is_transformed() -> bool:
    """Whether tensors may carry a forward derivative or a dim of torch.vmap; never while Dynamo traces."""
    if torch.compiler.is_dynamo_compiling():
        return False
    return forward_ad._current_level >= 0 or torch._C._functorch.maybe_current_level() is not None


def check_not_recorded(call: str) -> None:
    """Refuse what a recorded graph would hold as memory that nothing was written to.

    Raises:
        BackendError: operations are being recorded.
    """
    if is_recorded():
        raise BackendError(
            f"{call}: a fold must be called, not recorded (make_fx, torch.export), got one that is; use "
            "torch.compile, which calls it between its graphs"
        )
