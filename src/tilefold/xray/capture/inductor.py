"""torch.compile, and operations with a kernel for the device alone."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any

import torch

from tilefold.xray.capture import marks
from tilefold.xray.capture.patches import Patches
from tilefold.xray.capture.tensors import HOST


def stand_in(patches: Patches, own: dict[str, Callable[..., Any]]) -> None:
    """Have `torch.compile` make Triton kernels, and collect in `own` what a script registers for the device."""
    register, compile_ = torch.library.Library.impl, torch.compile

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
            _prepare(patches)
        return compile_(*args, **given)

    prepared: list[bool] = []
    patches.put(torch, "compile", compiling)


def _prepare(patches: Patches) -> None:
    """What Inductor asks of a device, the first time that a script compiles."""
    from torch._dynamo import device_interface
    from torch._inductor import config
    from torch._inductor.codegen import triton_utils as _  # noqa: F401 - imports what is replaced below

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
    patches.put(interface, "get_device_properties", staticmethod(said))
    patches.put(interface, "get_compute_capability", staticmethod(lambda device=None: int("".join(map(str, torch.cuda.get_device_capability())))))
    patches.put(interface, "get_raw_stream", staticmethod(lambda device: 0))
    patches.put(interface, "is_available", staticmethod(lambda: True))

    def empty(size: Any, stride: Any, dtype: Any) -> Any:
        return marks.put_on_device(torch.empty_strided(size, stride, dtype=dtype, device=HOST))

    patches.put(torch._C._dynamo.guards, "_empty_strided_cuda", empty)
