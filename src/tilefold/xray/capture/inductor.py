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

from tilefold.errors import CaptureError
from tilefold.xray.capture import marks
from tilefold.xray.capture.patches import Patches, script_line
from tilefold.xray.capture.tensors import HOST, Standing, faking


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


def _prepare(patches: Patches, mode: Standing, note: Callable[[str], None]) -> None:
    """What Inductor asks of a device, the first time that a script compiles."""
    from torch._dynamo import device_interface
    from torch._inductor import config
    from torch._inductor.runtime.triton_heuristics import CachingAutotuner
    from torch._subclasses.fake_tensor import FakeTensorMode

    os.environ.setdefault("TORCHINDUCTOR_COMPILE_THREADS", "1")
    for name, value in {
        "compile_threads": 1, "use_static_cuda_launcher": False, "max_autotune": False, "fx_graph_cache": False,
        "triton.cudagraphs": False,
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
    # torch's engine has no thread for a device that torch was not built for, so a graph's backward pass is not traced.
    patches.callback(setattr, torch._dynamo.config, "suppress_errors", torch._dynamo.config.suppress_errors)
    torch._dynamo.config.suppress_errors = True
    grad = torch.autograd.grad

    def grad_here(*args: Any, **given: Any) -> Any:
        if faking():
            note(
                f"{script_line()}: torch.compile of what needs a gradient cannot be pretended; it runs as without compile"
            )
            raise CaptureError(
                "xray: a graph that is compiled must need no gradient, got one that does; run it on a GPU"
            )
        return grad(*args, **given)

    patches.put(torch.autograd, "grad", grad_here)

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


def _guard(patches: Patches) -> None:
    """The guard that chooses a device, which torch without CUDA lacks: that of the host, which does nothing, in its place.

    Without one torch cannot trace a slice of a tensor on the device (c10's table of guards, by type of device).
    """
    folder = os.path.join(os.path.dirname(torch.__file__), "lib")
    with contextlib.suppress(OSError, ValueError):
        library = ctypes.CDLL(os.path.join(folder, "libc10.so"))
        table = (ctypes.c_void_p * 2).in_dll(library, "_ZN3c104impl26device_guard_impl_registryE")
        if not table[1]:
            patches.callback(table.__setitem__, 1, None)
            table[1] = table[0]
