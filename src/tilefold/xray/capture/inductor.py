"""torch.compile, and operations with a kernel for the device alone."""

from __future__ import annotations

import contextlib
import ctypes
import os
import sys
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch.utils import _python_dispatch

from tilefold.xray.capture import marks
from tilefold.xray.capture.patches import Patches, script_line
from tilefold.xray.capture.tensors import DEVICE, HOST, Standing, faking


def stand_in(patches: Patches, mode: Standing, note: Callable[[str], None]) -> None:
    """Have `torch.compile` make Triton kernels, and collect in `mode.own` what a script registers for the device."""
    register: Any = torch.library.Library.impl
    compile_, own = torch.compile, mode.own

    def impl(self: Any, name: Any, function: Any, dispatch_key: str = "", **given: Any) -> Any:
        if dispatch_key in ("CUDA", "AutogradCUDA") and callable(function):
            full = name if isinstance(name, str) else name._schema.name
            full = full if "::" in full else f"{self.ns}::{full}"
            own[full.partition(".")[0]] = function
        return register(self, name, function, dispatch_key, **given)

    patches.put(torch.library.Library, "impl", impl)

    def compiling(*args: Any, **given: Any) -> Any:
        if not prepared:
            prepared.append(True)
            _prepare(patches, mode, note)
        return compile_(
            *args, **{**given, "fullgraph": False}
        )  # a whole graph or an error leaves nothing to go on with

    prepared: list[bool] = []
    patches.put(torch, "compile", compiling)
    for name in _OF_GRAPHS:
        patches.put(torch._C, name, lambda *given: None)


# What torch's module of CUDA graphs takes from builds with CUDA when it is imported.
_OF_GRAPHS = ("_cuda_CUDAAllocator_AllocatorState", "_set_cached_tensors_enabled")
_APART = torch.device("xla", 0)  # no tensor is there, and autocast for a GPU holds for it, too
_KINDS = 1, 9  # the numbers of CUDA and XLA in c10's list of kinds of devices


def _prepare(patches: Patches, mode: Standing, note: Callable[[str], None]) -> None:
    """What Inductor asks of a device, the first time that a script compiles."""
    from torch._dynamo import device_interface
    from torch._inductor import config
    from torch._inductor.runtime.triton_heuristics import CachingAutotuner
    from torch._subclasses.fake_tensor import FakeTensorMode

    os.environ.setdefault("TORCHINDUCTOR_COMPILE_THREADS", "1")
    for name, value in {
        "compile_threads": 1, "use_static_cuda_launcher": False, "max_autotune": False, "fx_graph_cache": False,
        "shape_padding": False, "triton.cudagraphs": False,
    }.items():  # fmt: skip
        held = config.__getattr__(name.partition(".")[0]) if "." not in name else None
        if "." not in name and hasattr(config, name):
            patches.callback(setattr, config, name, held)
            setattr(config, name, value)
    interface = device_interface.CudaInterface
    said = torch.cuda.get_device_properties
    patches.put(interface.Worker, "get_device_properties", staticmethod(said))
    for name in _OF_CUDA:  # the class has torch.cuda's as they were when it was made
        patches.put(
            interface, name, staticmethod(getattr(torch.cuda, name, None) or getattr(torch.cuda, f"_{name}"))
        )
    patches.put(
        interface,
        "get_compute_capability",
        staticmethod(lambda device=None: int("".join(map(str, torch.cuda.get_device_capability())))),
    )
    patches.put(interface, "get_raw_stream", staticmethod(lambda device: 0))
    patches.put(interface, "is_available", staticmethod(lambda: True))

    patches.put(FakeTensorMode, "avoid_device_init", property(lambda self: True))

    # Of several configurations the first is as fast as all others.
    patches.put(CachingAutotuner, "bench", lambda self, launcher, *args, **given: 1.0)
    _stay(patches, mode)
    _guard(patches)
    _differentiate(patches)
    _go_on(patches, note)

    def empty(size: Any, stride: Any, dtype: Any) -> Any:
        return marks.put_on_device(torch.empty_strided(size, stride, dtype=dtype, device=HOST))

    patches.put(torch._C._dynamo.guards, "_empty_strided_cuda", empty)


_OF_CUDA = (
    "current_device", "set_device", "device_count", "stream", "current_stream", "set_stream", "synchronize",
    "get_device_properties", "exchange_device", "maybe_exchange_device", "memory_allocated",
)  # fmt: skip


def _stay(patches: Patches, mode: Standing) -> None:
    """Where torch leaves all modes for a while, this one stays: without it there is no device."""
    left = _python_dispatch._disable_current_modes

    @contextlib.contextmanager
    def leave_others() -> Iterator[Any]:
        with left() as modes, Standing(mode.tell, mode.own):
            yield modes

    for module in [m for n, m in sys.modules.items() if n.startswith("torch") and m is not None]:
        if vars(module).get("_disable_current_modes") is left:
            patches.put(module, "_disable_current_modes", leave_others)


def _differentiate(patches: Patches) -> None:
    """Have torch's engine of gradients trace graphs of the device.

    It asks for the stream of each gradient on a GPU, which torch without CUDA does not know. So the tensors that it sees
    while it traces (functional ones, around those that the graph is made of) are on a device of a kind that has neither
    streams nor kernels (XLA's); what is made like them is made on the GPU, and autocast takes them for the GPU's.
    """
    from torch._subclasses.functional_tensor import FunctionalTensor, FunctionalTensorMode

    kind: Any = torch.Tensor
    make, trace, grad = (
        kind._make_wrapper_subclass,
        FunctionalTensorMode.__torch_dispatch__,
        torch.autograd.grad,
    )
    cast = torch._C.DispatchKeySet(torch._C.DispatchKey.AutocastCUDA)

    def wrapped(cls: Any, *args: Any, **given: Any) -> Any:
        if cls is FunctionalTensor and args[6].type == "cuda":
            args = (*args[:6], _APART, *args[7:-1], args[-1] | cast)
        return make(cls, *args, **given)

    def traced(self: Any, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        given = dict(kwargs or {})
        if given.get("device") == _APART:
            given["device"] = DEVICE
        return trace(self, function, types, args, given)

    def grad_here(*args: Any, **given: Any) -> Any:
        if not faking():
            return grad(*args, **given)
        with torch.autograd.set_multithreading_enabled(False):  # there is no thread for such a device
            return grad(*args, **given)

    patches.put(kind, "_make_wrapper_subclass", staticmethod(wrapped))
    patches.put(FunctionalTensor, "device", property(lambda self: self.elem.device))
    patches.put(FunctionalTensorMode, "__torch_dispatch__", traced)
    patches.put(torch.autograd, "grad", grad_here)


def _go_on(patches: Patches, note: Callable[[str], None]) -> None:
    """Run what torch does not compile here as without compile, and say so."""
    from torch._dynamo import config, convert_frame, exc

    frames: Any = convert_frame  # which imports the function from another module
    shown: Callable[..., str] = frames.format_error_msg

    def noted(error: Exception, *given: Any) -> str:
        if not isinstance(error, (exc.Unsupported, exc.UserError)):  # where a graph ends, as on a GPU
            said = " ".join(str(error).strip().split("\n")[:2]).strip()
            note(f"{script_line()}: torch.compile does not compile here, and it runs as without ({said})")
        return shown(error, *given)

    patches.put(frames, "format_error_msg", noted)
    patches.callback(setattr, config, "suppress_errors", config.suppress_errors)
    config.suppress_errors = True


def _guard(patches: Patches) -> None:
    """The guard that chooses a device, which torch without CUDA lacks: that of the host, which does nothing, in its place.

    Without one torch cannot trace a slice of a tensor on the device (c10's table of guards, by type of device).
    """
    folder = os.path.join(os.path.dirname(torch.__file__), "lib")
    with contextlib.suppress(OSError, ValueError):
        library = ctypes.CDLL(os.path.join(folder, "libc10.so"))
        table = (ctypes.c_void_p * 10).in_dll(library, "_ZN3c104impl26device_guard_impl_registryE")
        for kind in _KINDS:
            if not table[kind]:
                patches.callback(table.__setitem__, kind, None)
                table[kind] = table[0]
