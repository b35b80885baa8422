"""`torch.cuda` and `torch.accelerator` as they answer for the chosen chip; autocast; what cannot be pretended says so.

Nothing is timed: what asks for a time gets NaN, so that no number of this machine is taken for one of a GPU.
"""

from __future__ import annotations

import contextlib
import inspect
import math
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import torch

from tilefold.planner.chips import Chip
from tilefold.xray.capture import marks
from tilefold.xray.capture.patches import Patches, refuse
from tilefold.xray.capture.tensors import DEVICE, Standing

# Gibibytes of memory, threads an SM, kibibytes of L2 (as their drivers say); shared memory of a block without opting in.
_MEMORY = {"A100": 80, "H100": 80, "H200": 141, "B200": 180}
_L2 = {"A100": 40960, "H100": 51200, "H200": 61440, "B200": 129024}
_SHARED = 49152
# Names that mean nothing here, and give what stands behind them.
_NOTHING = (
    "set_device", "synchronize", "empty_cache", "ipc_collect", "init", "manual_seed", "manual_seed_all", "seed", "seed_all",
    "reset_accumulated_memory_stats",
    "set_stream", "set_per_process_memory_fraction", "set_sync_debug_mode", "reset_accumulated_host_memory_stats",
    "reset_peak_host_memory_stats", "caching_allocator_enable", "_lazy_init", "_lazy_call", "check_error",
)  # fmt: skip
_ZERO = (
    "get_sync_debug_mode", "utilization", "memory_usage", "temperature", "power_draw", "clock_rate", "current_blas_handle",
    "current_solver_handle",
)  # fmt: skip
# What is allocated: of the tensors that stand for the device's.
_NOW = ("memory_allocated", "memory_reserved", "memory_cached", "device_memory_used")
_MOST = ("max_memory_allocated", "max_memory_reserved", "max_memory_cached")
_RESET = ("reset_peak_memory_stats", "reset_max_memory_allocated", "reset_max_memory_cached")


class Stream:
    """A stream: everything on it is done when it is asked."""

    device, device_index, device_type, stream_id, cuda_stream, priority = DEVICE, 0, 1, 0, 0, 0

    def __init__(self, device: Any = None, priority: int = 0, **given: Any) -> None:
        """The parameters are torch's and decide nothing."""

    def __enter__(self) -> Stream:
        return self

    def __exit__(self, *error: Any) -> None:
        """Leave it."""

    def query(self) -> bool:
        """All is done."""
        return True

    def is_capturing(self) -> bool:
        """No graph is recorded."""
        return False

    def record_event(self, event: Any = None) -> Any:
        """The event, or a new one."""
        return event or Event()

    def synchronize(self) -> None:
        """All is done."""

    wait_stream = wait_event = lambda self, other: None


class Event:
    """An event: recorded, it has happened; times between two are not known."""

    device, cuda_event, event_id = DEVICE, 0, 0

    def __init__(self, *args: Any, **given: Any) -> None:
        """The parameters are torch's and decide nothing."""

    def record(self, stream: Any = None) -> None:
        """It has happened."""

    wait = synchronize = record

    def query(self) -> bool:
        """It has happened."""
        return True

    def elapsed_time(self, other: Any) -> float:
        """Unknown: nothing is timed."""
        return math.nan


class Within(contextlib.ContextDecorator):
    """What a script enters to choose a device or a stream, of which there is one."""

    idx, prev_idx = 0, 0

    def __init__(self, *args: Any, **given: Any) -> None:
        """The parameters are torch's and decide nothing."""

    def __enter__(self) -> Within:
        return self

    def __exit__(self, *error: Any) -> None:
        """Leave it."""


class Generator(torch.Generator):
    """A generator of the host that says that it is the device's."""

    _there = False

    def __new__(cls, device: Any = "cpu") -> Any:
        """One of the host, whatever device is asked for."""
        made: Any = super().__new__(cls, device="cpu")  # type: ignore[call-arg]
        made._there = torch.device(device).type == "cuda"
        return made

    @property
    def device(self) -> torch.device:  # type: ignore[override]
        """The device that was asked for."""
        return DEVICE if self._there else torch.device("cpu")


def properties(chip: Chip) -> Any:
    """What a driver says of a chip."""
    return SimpleNamespace(
        name=chip.device or f"NVIDIA {chip.name}", major=chip.architecture // 10, minor=chip.architecture % 10,
        total_memory=_MEMORY.get(chip.name, 80) << 30, multi_processor_count=chip.sms, warp_size=32, is_integrated=0,
        max_threads_per_multi_processor=32 * chip.warps, max_threads_per_block=1024, is_multi_gpu_board=0,
        regs_per_multiprocessor=chip.registers, shared_memory_per_block=_SHARED, clock_rate=1000 * chip.clock_mhz,
        shared_memory_per_block_optin=chip.shared_bytes_block, shared_memory_per_multiprocessor=chip.shared_bytes,
        L2_cache_size=_L2.get(chip.name, 51200) << 10, gcnArchName="", uuid="GPU-00000000", pci_bus_id=0,
        pci_device_id=0, pci_domain_id=0, memory_clock_rate=0, memory_bus_width=0,
    )  # fmt: skip


def stand_in(patches: Patches, chip: Chip, mode: Standing) -> None:
    """Have torch's modules answer for a chip as long as `patches` hold."""
    said, stream, held = properties(chip), Stream(), marks.ALLOCATED
    total = said.total_memory
    answers: dict[str, Any] = {
        **{name: _always(None) for name in _NOTHING},
        **{name: _always(0) for name in _ZERO},
        **{name: lambda device=None, name=name: held.now for name in _NOW},
        **{name: lambda device=None, name=name: held.peak for name in _MOST},
        **{name: lambda device=None, name=name: held.reset() for name in _RESET},
        "is_available": lambda: True, "is_initialized": lambda: True, "_is_compiled": lambda: True,
        "_initialized": True, "_nvml_based_avail": lambda: False, "_is_in_bad_fork": lambda: False,
        "device_count": lambda: 1, "_device_count_nvml": lambda: 1, "current_device": lambda: 0,
        "get_device_properties": lambda device=None: said, "get_device_name": lambda device=None: said.name,
        "get_device_capability": lambda device=None: (said.major, said.minor),
        "get_arch_list": lambda: [chip.target], "get_gencode_flags": lambda: "", "initial_seed": torch.initial_seed,
        "is_bf16_supported": lambda including_emulation=True: True, "is_tf32_supported": lambda: True,
        "is_current_stream_capturing": lambda: False, "can_device_access_peer": lambda *devices: False,
        "current_stream": lambda device=None: stream, "default_stream": lambda device=None: stream,
        "mem_get_info": lambda device=None: (total - held.now, total), "memory_stats": lambda device=None: {},
        "memory_stats_as_nested_dict": lambda device=None: {}, "memory_summary": lambda *args, **given: "",
        "memory_snapshot": lambda *args, **given: [], "list_gpu_processes": lambda device=None: "",
        "get_rng_state": lambda device=None: torch.get_rng_state(),
        "set_rng_state": lambda state, device=None: torch.set_rng_state(state),
        "get_rng_state_all": lambda: [torch.get_rng_state()],
        "set_rng_state_all": lambda states: torch.set_rng_state(states[0]),
        "get_per_process_memory_fraction": lambda device=None: 1.0, "get_allocator_backend": lambda: "native",
        "Stream": Stream, "Event": Event, "ExternalStream": Stream, "stream": Within, "StreamContext": Within,
        "device": Within, "device_of": Within, "_DeviceGuard": Within, "_exchange_device": lambda device: 0,
        "_maybe_exchange_device": lambda device: 0, "default_generators": (torch.default_generator,),
    }  # fmt: skip
    for name in torch.cuda.__all__:
        found = getattr(torch.cuda, name, None)
        if name not in answers and (inspect.isfunction(found) or name in ("graph", "CUDAGraph", "MemPool")):
            answers[name] = refuse(f"torch.cuda.{name}")
    patches.put_all(torch.cuda, answers)
    for module in (torch.cuda.memory, torch.cuda.random, torch.cuda.streams):
        patches.put_all(module, {n: v for n, v in answers.items() if n in vars(module)})
    for name in ("range_push", "range_pop", "range_start", "range_end", "mark"):
        patches.put(torch.cuda.nvtx, name, _always(None))
    patches.put(torch.cuda.nvtx, "range", Within)
    accelerator = {n: _again(answers[n]) for n in torch.accelerator.__all__ if n in answers}
    patches.put_all(torch.accelerator, accelerator | {
        "current_accelerator": lambda check_available=False: torch.device("cuda"), "current_device_index": lambda: 0,
        "current_device_idx": lambda: 0, "set_device_index": _always(None), "set_device_idx": _always(None),
        "get_memory_info": answers["mem_get_info"], "device_index": Within,
    })  # fmt: skip
    patches.put(torch, "Generator", Generator)
    patches.put(torch.version, "cuda", "13.0")
    patches.put(torch.backends.cuda, "is_built", lambda: True)
    patches.put(torch._C, "_cuda_getCurrentRawStream", lambda device: 0)
    patches.put(torch._C, "_cuda_getDeviceCount", lambda: 1)
    _stand_in_autocast(patches)


def _again(function: Any) -> Any:
    """The same answers by a function of its own."""
    return lambda *args, **given: function(*args, **given)


def _always(value: Any) -> Any:
    """A function of its own (Dynamo tells them apart by identity) that answers always the same."""
    return lambda *args, **given: value


def _stand_in_autocast(patches: Patches) -> None:
    """Autocast for the device is the host's as well, since that is where tensors are."""
    kind: Any = torch.amp.autocast_mode.autocast
    enter, leave = kind.__enter__, kind.__exit__

    def begin(self: Any) -> Any:
        self._of_host = torch.is_autocast_enabled("cpu"), torch.get_autocast_dtype("cpu")
        made = enter(self)
        if self.device == "cuda":
            torch.set_autocast_enabled("cpu", self._enabled)
            torch.set_autocast_dtype("cpu", self.fast_dtype)
        return made

    def end(self: Any, *error: Any) -> Any:
        done = leave(self, *error)
        if self.device == "cuda":
            enabled, dtype = self._of_host
            torch.set_autocast_enabled("cpu", enabled)
            torch.set_autocast_dtype("cpu", dtype)
        return done

    patches.put_all(kind, {"__enter__": begin, "__exit__": end})


@contextlib.contextmanager
def quiet() -> Iterator[None]:
    """Within, torch's own caches of what devices there are begin anew, and are forgotten afterwards."""
    from torch.utils import _triton

    cached = [v for v in vars(_triton).values() if hasattr(v, "cache_clear")]
    for function in cached:
        function.cache_clear()
    try:
        yield
    finally:
        for function in cached:
            function.cache_clear()
