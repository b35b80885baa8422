"""What torch has switched on around a call: automatic conversions, transforms, graphs that are recorded; and leaving them."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch
from torch import Tensor
from torch._functorch.pyfunctorch import temporarily_clear_interpreter_stack
from torch.autograd import forward_ad
from torch.compiler import is_dynamo_compiling
from torch.utils._python_dispatch import _disable_current_modes

from tilefold.errors import BackendError

# Of the vmap that torch.autograd has for itself: a tensor's key, and that of the mode, which refuses random numbers.
_KEYS: list[Any] = [torch._C._parse_dispatch_key(key) for key in ("Batched", "VmapMode")]
_BATCHED, _VMAP_MODE = _KEYS
_set_tracing_state: Any = torch._C._set_tracing_state  # type: ignore[attr-defined]  # in no stub
# Asked once, at import: Dynamo of torch 2.11 cannot trace the question.
_CONVERTIBLE = frozenset(
    kind
    for kind in ("cpu", "cuda", "xpu", "mps", "hpu", "mtia", "maia", "ipu", "xla")
    if torch.amp.is_autocast_available(kind)
)


@contextlib.contextmanager
def outside_modes() -> Iterator[None]:
    """A context in which torch's operations act as if the caller had switched nothing on.

    Values for later calls are made in it: inside the caller's modes they would be a fake tensor, an inference tensor,
    one of a transform, of another device or of another precision, and every later call would get it. Left are modes of
    dispatch (FakeTensorMode, make_fx) and of functions (a default device is one), transforms (vmap, functionalize, grad),
    inference mode, gradients, autocast and torch.jit's trace. The default dtype is no mode but one of the whole process,
    which other threads see: tensors made here name their dtypes.
    """
    with (
        torch._C.DisableTorchFunction(),
        temporarily_clear_interpreter_stack(),
        _disable_current_modes(),
        _outside_autograds_vmap(),
        torch.inference_mode(False),
        torch.no_grad(),
        torch.autocast("cpu", enabled=False),
        _untraced(),
    ):
        yield


def _outside_autograds_vmap() -> contextlib.AbstractContextManager[object]:
    return torch._C._ExcludeDispatchKeyGuard(torch._C.DispatchKeySet(_VMAP_MODE))


def is_batched(t: Tensor) -> bool:
    """Whether a tensor has a dim of torch.autograd's own vmap: of `is_grads_batched` and `vectorize`."""
    return torch._C._dispatch_keys(t).has(_BATCHED)


def of_batches(
    function: Callable[[list[Any]], Sequence[Tensor | None]], tensors: Sequence[Tensor | None]
) -> list[Tensor | None]:
    """A function of tensors of which some are `is_batched`: by torch.vmap, for which operations have rules.

    Raises:
        BackendError: one has several such dims.
    """
    mapped = [t is not None and is_batched(t) for t in tensors]
    given = [
        _unbatched(t) for t, is_mapped in zip(tensors, mapped, strict=True) if t is not None and is_mapped
    ]
    is_made = list[bool]()

    def run(*some: Tensor) -> tuple[Tensor, ...]:
        each = iter(some)
        found = function(
            [next(each) if is_mapped else t for t, is_mapped in zip(tensors, mapped, strict=True)]
        )
        is_made[:] = [t is not None for t in found]
        return (*(t for t in found if t is not None), some[0])

    with _outside_autograds_vmap():
        made = iter(torch.func.vmap(run)(*[t for t, _ in given]))
    return [torch._add_batch_dim(next(made), 0, given[0][1]) if there else None for there in is_made]


def _unbatched(t: Tensor) -> tuple[Tensor, int]:
    """A tensor with its mapped dim in front, and the level of that. A thread of a backward has no count of levels."""
    for level in range(1, 64):
        plain = torch._remove_batch_dim(t, level, 1, 0)  # which leaves a dim of another level as it is
        if not is_batched(plain):
            return plain, level
    raise BackendError(
        "backward: a cotangent must have one dim of `is_grads_batched` or `vectorize`, got several; use torch.func.vmap"
    )


@contextlib.contextmanager
def _untraced() -> Iterator[None]:
    state = torch._C._get_tracing_state()
    # Inside an operation that torch dispatches, the key is excluded: nothing is traced, and torch refuses to set the state.
    if state is None or torch._C._dispatch_tls_is_dispatch_key_excluded("Tracer"):
        yield
        return
    _set_tracing_state(None)
    try:
        yield
    finally:
        _set_tracing_state(state)


def as_given(device: torch.device) -> contextlib.AbstractContextManager[object]:
    """A context in which torch's operations compute in the dtypes they are given, inside torch.autocast too."""
    if is_converted(device):
        return torch.autocast(device.type, enabled=False)
    return contextlib.nullcontext()


def is_converted(device: torch.device) -> bool:
    """Whether torch.autocast converts operands of products on this device."""
    return device.type in _CONVERTIBLE and torch.is_autocast_enabled(device.type)


def is_left(tensors: Sequence[Any]) -> bool:
    """Whether torch.autocast is on and must be left around a call of these tensors: of one on a CPU, if any is there."""
    return torch._C._is_any_autocast_enabled() and any(
        isinstance(t, torch.Tensor) and t.is_cpu for t in tensors
    )


def is_faked() -> bool:
    """Whether operations give tensors without data, whatever they are given: in a FakeTensorMode."""
    return torch._C._get_dispatch_mode(torch._C._TorchDispatchModeKey.FAKE) is not None


# What torch.autocast has computed and returned in float32, by our names; of torch's list in ATen/autocast_mode.h. Torch 2.11
# does not have rms_norm there.
WIDENED = {
    "cpu": frozenset({"prod", "cross_entropy"}),
    "cuda": frozenset(
        {
            "sum", "prod", "cumsum", "cumprod", "logsumexp", "norm", "vector_norm", "softmax", "log_softmax", "layer_norm",
            "group_norm", "normalize", "cross_entropy",
            *(["rms_norm"] if torch._C._dispatch_has_kernel_for_dispatch_key("aten::rms_norm", "AutocastCUDA") else []),
        }
    ),
}  # fmt: skip


def widened(call: str, dtype: torch.dtype, kind: str) -> torch.dtype | None:
    """What torch.autocast, where it is on, has a call of narrow floats compute in and return; None for no other."""
    narrow = dtype.is_floating_point and dtype.itemsize < 4
    return torch.float32 if narrow and call in WIDENED.get(kind, ()) else None


def as_widened(call: str, tensors: Sequence[Any], *asked: Any) -> torch.dtype | None:
    """`widened` of the first tensor, if torch.autocast is on for its device; None where the caller `asked` for an `out` or a
    dtype, or gave no tensor."""
    if not tensors or any(each is not None for each in asked):
        return None
    x = tensors[0]
    is_on = isinstance(x, torch.Tensor) and is_converted(x.device)
    return widened(call, x.dtype, x.device.type) if is_on else None


def converted(t: torch.Tensor) -> torch.Tensor:
    """A tensor as torch.autocast, where it is on, gives it to a product: float64 and dtypes that are not floats stay."""
    stays = t.dtype == torch.float64 or not t.is_floating_point() or not is_converted(t.device)
    return t if stays else t.to(torch.get_autocast_dtype(t.device.type))


def is_recorded() -> bool:
    """Whether operations are being recorded in a graph, with or without data: by make_fx, or a torch.export not strict."""
    records = torch._C._TorchDispatchModeKey.PROXY
    early = torch._ops._get_dispatch_mode_pre_dispatch(records)  # type: ignore[no-untyped-call]  # torch's own
    return early is not None or torch._C._get_dispatch_mode(records) is not None


def is_seen(tensors: Sequence[Any]) -> bool:
    """Whether a call must be one operation of torch's: it is recorded, a tensor has a dim of torch.vmap, or the mode is on in
    which torch.compile looks for writes, whose tensors wrap others."""
    if is_recorded() or torch._C._get_dispatch_mode(torch._C._TorchDispatchModeKey.FUNCTIONAL) is not None:
        return True
    return torch._C._functorch.maybe_current_level() is not None and any(
        isinstance(t, torch.Tensor) and torch._C._functorch.is_batchedtensor(t) for t in tensors
    )


def is_known(condition: Any) -> bool:
    """Whether a condition on sizes holds: in a graph, one on a length that elements decide (`x[x > 0]`) is not known to."""
    if not (is_dynamo_compiling() or isinstance(condition, torch.SymBool)):
        return bool(condition)
    from torch.fx.experimental.symbolic_shapes import guard_or_false  # imports sympy

    return guard_or_false(condition)


def has_none(shape: Sequence[Any]) -> bool:
    """Whether a tensor of that shape is known to have no elements."""
    return any(is_known(n == 0) for n in shape)


def is_plain() -> bool:
    """Whether tensors made now are plain ones: no mode of dispatch or of functions, no transform, no inference
    mode. Only those may be kept for later calls."""
    return not (
        torch.is_inference_mode_enabled()
        or torch._C._len_torch_dispatch_stack()
        or torch._C._len_torch_function_stack()
        or torch._C._functorch.maybe_current_level() is not None
    )


def members(t: Tensor) -> Tensor:
    """What holds the members of a tensor of torch.vmap, or the tensor itself."""
    while torch._C._functorch.is_batchedtensor(t):
        t = torch._C._functorch.get_unwrapped(t)
    return t


def is_dual(t: torch.Tensor) -> bool:
    """Whether a tensor carries a forward derivative. A compiled graph enters torch's one level unseen by Python."""
    if forward_ad._current_level < 0 and torch._C._functorch.maybe_current_level() is None:
        return False
    return forward_ad.unpack_dual(t, level=0).tangent is not None  # type: ignore[no-untyped-call]  # torch's own


def check_not_recorded(call: str, on_gpu: bool = False) -> None:
    """Refuse results that a recorded graph would hold as unwritten memory.

    torch.jit.trace sees nothing of a GPU's folds; of a CPU's see `check_not_traced`.

    Raises:
        BackendError: operations are being recorded.
    """
    if is_recorded() or (on_gpu and torch._C._is_tracing()):
        raise BackendError(
            f"{call}: a fold must be called, not recorded (make_fx, torch.export, torch.jit.trace on a GPU), got one that "
            "is; use torch.compile, which calls it between its graphs"
        )


def check_not_traced(call: str) -> None:
    """Refuse to have a loop of torch's operations recorded by torch.jit.trace.

    The trace would hold the tiles of the tensors at hand, the decisions for their elements, and nothing of the work of other
    threads. It holds a function of torch's own as such.

    Raises:
        BackendError: torch.jit traces.
    """
    if torch._C._is_tracing():
        raise BackendError(
            f"{call}: torch.jit.trace must be given a function of torch's own, got a call that runs as no single one; "
            "use torch.compile, which calls it between its graphs"
        )
