"""A chip that packages can ask about where there is none: what they read before a launch, and nothing that executes."""

from __future__ import annotations

import contextlib
import os
from types import SimpleNamespace
from typing import Any

import torch
import triton
from triton.backends.compiler import GPUTarget

# The H200's, but for its cores: wrappers that spread work over cores launch eight programs, which a CPU can execute.
CORES = 8
PROPERTIES = SimpleNamespace(
    name="NVIDIA H200", major=9, minor=0, multi_processor_count=CORES, total_memory=140 << 30, warp_size=32,
    max_threads_per_multi_processor=2048, regs_per_multiprocessor=65536, max_threads_per_block=1024,
    shared_memory_per_block=49152, shared_memory_per_block_optin=232448, shared_memory_per_multiprocessor=233472,
    L2_cache_size=50 << 20, gcnArchName="", uuid="",
)  # fmt: skip


class Driver:
    """What Triton's own code and packages ask of the active driver."""

    utils = SimpleNamespace(
        get_device_properties=lambda device: {
            "max_shared_mem": PROPERTIES.shared_memory_per_block_optin,
            "multiprocessor_count": CORES,
            "warpSize": 32,
            "max_num_regs": 65536,
        }
    )

    def get_current_target(self) -> GPUTarget:
        """The chip."""
        return GPUTarget("cuda", 90, 32)

    def get_current_device(self) -> int:
        """Its number."""
        return 0

    def get_current_stream(self, device: int | None = None) -> int:
        """The default stream."""
        return 0

    def get_active_torch_device(self) -> torch.device:
        """Where tensors are: the host."""
        return torch.device("cpu")

    def get_device_interface(self) -> Any:
        """Torch's module for it."""
        return torch.cuda

    def get_benchmarker(self) -> Any:
        """No time is measured here; every configuration is as fast."""
        return lambda call, **options: [1.0, 1.0, 1.0]


class _Device(contextlib.nullcontext[None]):
    """`torch.cuda.device`: which one is current."""

    idx = 0


def stand_in() -> None:
    """Answer for a chip in this process: before any package is imported, and for good."""
    os.environ["GEMS_VENDOR"] = "nvidia"
    os.environ["TORCHINDUCTOR_COMPILE_THREADS"] = "1"
    triton.runtime.driver.set_active(Driver())
    answers: dict[str, Any] = {
        "is_available": lambda: True,
        "device_count": lambda: 1,
        "current_device": lambda: 0,
        "set_device": lambda device: None,
        "synchronize": lambda device=None: None,
        "get_device_properties": lambda device=None: PROPERTIES,
        "get_device_capability": lambda device=None: (9, 0),
        "get_device_name": lambda device=None: PROPERTIES.name,
        "is_current_stream_capturing": lambda: False,
        "device": _Device,
        "_DeviceGuard": lambda device: contextlib.nullcontext(),
        "current_stream": lambda device=None: SimpleNamespace(cuda_stream=0),
    }
    for name, answer in answers.items():
        setattr(torch.cuda, name, answer)
    torch._C._cuda_getCurrentRawStream = lambda device: 0  # type: ignore[attr-defined]
