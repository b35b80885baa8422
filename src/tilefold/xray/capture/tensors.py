"""Tensors of the host that answer as those of a device: below autograd, so that backward passes see the same.

A mode under all others takes `cuda` out of what an operation is asked to make, and marks what it made; results of marked
tensors are marked. What asks Python for a device (`is_cuda`, `.device`, `.to`) is answered by the marks. Tensors without
memory (FakeTensor) are on the device that they say, and are left alone.
"""

from __future__ import annotations

import functools
import sys
import threading
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch.utils import _device
from torch.utils._python_dispatch import TorchDispatchMode

from tilefold.xray.capture import marks
from tilefold.xray.capture.patches import Patches

DEVICE, HOST = torch.device("cuda", 0), torch.device("cpu")
# Operations that ask what values are. Of unknown ones comparisons and truth values are yes, so that a script goes on; it is
# said. That they are not finite is not.
_COMPARE, _READ = ("aten::equal", "aten::allclose"), ("aten::_local_scalar_dense", "aten::is_nonzero")
_FLAWS = ("aten::isnan", "aten::isinf", "aten::isposinf", "aten::isneginf")
_LIKE = ("empty_like", "zeros_like", "ones_like", "full_like", "rand_like", "randn_like", "randint_like")
_NEW = ("new_empty", "new_zeros", "new_ones", "new_full", "new_empty_strided", "new_tensor")
_MADE = (
    "tensor", "as_tensor", "asarray", "sparse_coo_tensor", "sparse_csr_tensor", "sparse_compressed_tensor", "scalar_tensor",
)  # fmt: skip
# Factories that the mode sees: but a device that is a number alone is refused before, where there is none.
_FACTORIES = (
    "empty", "zeros", "ones", "full", "rand", "randn", "randint", "randperm", "arange", "linspace", "logspace", "eye",
    "empty_strided", "tril_indices", "triu_indices",
)  # fmt: skip
_TENSOR = torch.Tensor
_FUNCTIONS: Any = torch.Tensor  # its methods, without their types
_device_of, _type = _FUNCTIONS.device, _FUNCTIONS.type
_to: Callable[..., torch.Tensor] = _FUNCTIONS.to
Tell = Callable[[str], None]


class Standing(TorchDispatchMode):  # type: ignore[no-untyped-call]  # torch's is not typed
    """The mode under all others; `tell` is told what a script reads of unknown values, `own` has kernels for the device."""

    supports_higher_order_operators = True

    def __init__(self, tell: Tell, own: dict[str, Callable[..., Any]]) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.tell, self.own = tell, own

    @classmethod
    def ignore_compile_internals(cls) -> bool:
        """torch.compile traces as if it were not there."""
        return True

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        """The mode's own code is left as it is: to keep Dynamo out of it would import Dynamo."""
        return False

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        given = dict(kwargs or {})
        if any(_is_fake(kind) for kind in types) or faking():
            return func(*args, **given)
        asked = given.get("device")
        there = asked is not None and torch.device(asked).type == "cuda"
        if there:
            given["device"] = HOST
        pinned = given.pop("pin_memory", None)
        inputs = list(_tensors((*args, *given.values())))
        there = there or any(marks.on_device(t) for t in inputs)
        name = func._schema.name if hasattr(func, "_schema") else ""
        why = next((w for t in inputs if (w := marks.unknown(t))), "")
        if why and name in (*_COMPARE, *_READ):
            self.tell(why)
            if name in _COMPARE or inputs[0].dtype == torch.bool:
                return True
        own = self.own.get(name) if there else None
        if own is not None:
            with self:
                made = own(*args, **given)
        else:
            made = func(*args, **given)
        if why and name in _FLAWS:
            made, why = made.zero_(), ""
        if there or why or pinned:
            self._mark(name, inputs, made, there, why, bool(pinned))
        return made

    def _mark(self, name: str, inputs: list[Any], made: Any, there: bool, why: str, pinned: bool) -> None:
        held = {id(marks.holder(t)) for t in inputs}
        for tensor in _tensors((made,)):
            if id(marks.holder(tensor)) in held:
                if why and not name.startswith(("aten::zero_", "aten::fill_")):
                    marks.forget(marks.holder(tensor), why)
                continue
            if there:
                marks.put_on_device(tensor)
            if why:
                marks.forget(marks.holder(tensor), why)
            if pinned:
                marks.pin(tensor)


def _is_fake(kind: type) -> bool:
    module = sys.modules.get("torch._subclasses.fake_tensor")
    functional = sys.modules.get("torch._subclasses.functional_tensor")
    return (module is not None and issubclass(kind, module.FakeTensor)) or (
        functional is not None and issubclass(kind, functional.FunctionalTensor)
    )


def faking() -> bool:
    """Whether torch traces with tensors that have no memory."""
    return torch._C._get_dispatch_mode(torch._C._TorchDispatchModeKey.FAKE) is not None


def _tensors(values: Any) -> Iterator[torch.Tensor]:
    for value in values:
        if isinstance(value, _TENSOR):
            yield value
        elif isinstance(value, list | tuple):
            yield from _tensors(value)


def _plain(tensor: Any) -> bool:
    """Whether a tensor has memory of the host, and may stand for another."""
    return not _is_fake(type(tensor)) and _device_of.__get__(tensor).type == "cpu"


def device_of(tensor: torch.Tensor) -> torch.device:
    """What a tensor's `.device` answers."""
    real: torch.device = _device_of.__get__(tensor)
    return DEVICE if real.type == "cpu" and marks.on_device(tensor) else real


def placed(device: Any) -> torch.device | None:
    """A device as scripts write it: None, a number, a text; of the chip's there is one.

    Raises:
        RuntimeError: the device has a number that the chip lacks.
    """
    if device is None:
        return None
    found = torch.device("cuda", device) if isinstance(device, int) else torch.device(device)
    if found.type == "cuda" and found.index not in (None, 0):
        raise RuntimeError(
            f"CUDA error: invalid device ordinal (the X-ray stands in for one device, got {found})"
        )
    return found


def moved(tensor: torch.Tensor, *args: Any, **given: Any) -> torch.Tensor:
    """`Tensor.to`, for tensors that stand on the device or go there."""
    if not _plain(tensor) or faking():
        return _to(tensor, *args, **given)
    if args and isinstance(args[0], _TENSOR):
        args = (device_of(args[0]), args[0].dtype, *args[1:])
    if isinstance(other := given.pop("other", None), _TENSOR):
        given |= {"device": device_of(other), "dtype": other.dtype}
    if args and isinstance(args[0], int) and not isinstance(args[0], bool):
        args = (torch.device("cuda", args[0]), *args[1:])
    copy = given.pop("copy", False) or (len(args) > 3 and args[3])
    device, dtype, _, form = torch._C._nn._parse_to(*args[:3], **given)
    wanted = placed(device)
    rest = {} if form is None else {"memory_format": form}
    if wanted is not None and wanted.type not in ("cpu", "cuda"):
        return _to(tensor, *args, **given)
    there = marks.on_device(tensor)
    moves = wanted is not None and (wanted.type == "cuda") != there
    made = _to(tensor, dtype=dtype or tensor.dtype, copy=bool(copy) or moves, **rest)
    return marks.put_on_device(made, not there) if moves else made


def _made_at(original: Callable[..., Any]) -> Callable[..., Any]:
    """A function that makes tensors without asking the mode below, or copies the device of another tensor."""

    @functools.wraps(original)
    def make(*args: Any, **given: Any) -> Any:
        if faking() or any(_is_fake(type(t)) for t in _tensors(args[:1])):
            return original(*args, **given)
        device = placed(given.get("device"))
        if device is None and original.__name__ in _MADE and not any(True for _ in _tensors(args[:1])):
            device = _default_device()
        if device is None or device.type not in ("cpu", "cuda"):
            return original(*args, **given)
        given["device"] = HOST
        pinned = given.pop("pin_memory", False)
        with torch._C.DisableTorchFunction():
            made = original(*args, **given)
        if any(marks.holder(t) is marks.holder(made) for t in _tensors(args[:1])):
            return moved(made, device)
        made = marks.put_on_device(made, device.type == "cuda")
        return marks.pin(made) if pinned else made

    return make


def _default_device() -> torch.device | None:
    """The device that torch is told to take by default."""
    modes: Any = torch.overrides._get_current_function_mode_stack()  # type: ignore[no-untyped-call]
    found = [mode.device for mode in modes if isinstance(mode, _device.DeviceContext)]
    return found[-1] if found else None


def _numbered(original: Callable[..., Any]) -> Callable[..., Any]:
    """A factory that takes a device's number."""

    @functools.wraps(original)
    def make(*args: Any, **given: Any) -> Any:
        if isinstance(given.get("device"), int):
            given["device"] = placed(given["device"])
        return original(*args, **given)

    return make


def _asked_type(tensor: torch.Tensor, dtype: Any = None, *args: Any, **given: Any) -> Any:
    """`Tensor.type`: its name, or the tensor as a type that a text like torch.cuda.HalfTensor names."""
    if dtype is None:
        name = str(_type(tensor))
        return name.replace("torch.", "torch.cuda.") if device_of(tensor) == DEVICE else name
    if isinstance(dtype, str) and dtype.startswith("torch.cuda."):
        return moved(_type(tensor, dtype.replace(".cuda", "")), DEVICE)
    return _type(tensor, dtype, *args, **given)


def stand_in(patches: Patches, addresses: marks.Addresses, mode: Standing) -> None:
    """Have tensors answer for the device as long as `patches` hold."""
    tensor, pointer, module, to_numpy = torch.Tensor, torch.Tensor.data_ptr, torch, torch.Tensor.numpy
    _device._device_constructors()  # torch's list of what a default device is for, kept from now on

    def data_ptr(self: torch.Tensor) -> int:
        if _plain(self):
            addresses.note(self)
        return pointer(self)

    def numpy(self: torch.Tensor, *, force: bool = False) -> Any:
        if self.device.type == "cuda" and not force:
            raise TypeError(
                "can't convert cuda:0 device type tensor to numpy. Use Tensor.cpu() to copy the tensor to host memory first."
            )
        return to_numpy(self, force=force)

    def get_device(self: torch.Tensor) -> int:
        return -1 if (device := self.device).type == "cpu" else device.index or 0

    patches.put_all(tensor, {
        "device": property(device_of),
        "is_cuda": property(lambda self: self.device.type == "cuda"),
        "is_cpu": property(lambda self: self.device.type == "cpu"),
        "get_device": get_device,
        "numpy": numpy,
        "to": moved,
        "cuda": lambda self, device=None, non_blocking=False, memory_format=None: moved(
            self, DEVICE if device is None else device, **({} if memory_format is None else {"memory_format": memory_format})
        ),
        "cpu": lambda self, memory_format=None: moved(
            self, HOST, **({} if memory_format is None else {"memory_format": memory_format})
        ),
        "type": _asked_type,
        "data_ptr": data_ptr,
        "pin_memory": lambda self, device=None: self if marks.is_pinned(self) else marks.pin(self.clone()),
        "is_pinned": lambda self, device=None: marks.is_pinned(self),
        "record_stream": lambda self, stream: None,
        **{n: _made_at(getattr(tensor, n)) for n in _NEW},
    })  # fmt: skip
    patches.put_all(module, {n: _made_at(getattr(module, n)) for n in (*_LIKE, *_MADE)})
    patches.put_all(module, {n: _numbered(getattr(module, n)) for n in _FACTORIES})
    for name in ("nested_tensor", "as_nested_tensor"):
        patches.put(torch.nested, name, _made_at(getattr(torch.nested, name)))
    patches.put(module, "get_device", lambda given: given.get_device())
    _stand_in_storages(patches)
    _stand_in_threads(patches, mode)


def _stand_in_storages(patches: Patches) -> None:
    """Storages move and are copied with their marks, so that models can be copied and loaded."""
    kind: Any = torch.UntypedStorage
    clone, device = kind.clone, kind.device

    def copied(self: Any) -> Any:
        made = kind(self.nbytes())
        made.copy_(self)
        made.__dict__.update(self.__dict__)
        return made

    def sent(self: Any, *args: Any, **given: Any) -> Any:
        asked = placed(given.get("device", args[0] if args else DEVICE))
        made = clone(self)
        if asked is not None and asked.type == "cuda":
            setattr(made, marks._DEVICE, True)
        return made

    def answered(self: Any) -> torch.device:
        return DEVICE if hasattr(self, marks._DEVICE) else device.__get__(self)

    patches.put_all(kind, {"clone": copied, "to": sent, "cuda": sent, "device": property(answered)})


def _stand_in_threads(patches: Patches, mode: Standing) -> None:
    """Threads that a script starts are under the same mode."""
    run = threading.Thread.run

    def under_the_mode(self: threading.Thread) -> None:
        with Standing(mode.tell, mode.own):
            run(self)

    patches.put(threading.Thread, "run", under_the_mode)
