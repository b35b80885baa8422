"""The chip's clock and the reason why it is low, through the driver's own library: read while the device is at work."""

from __future__ import annotations

import ctypes
from dataclasses import dataclass
from typing import Protocol

# nvml.h: NVML_CLOCK_SM, and the reasons that mean heat or power, not idleness or a user's choice.
_SM = 1
_REASONS = {
    0x4: "power cap",
    0x8: "hardware slowdown",
    0x20: "heat",
    0x40: "hardware heat",
    0x80: "power brake",
}


@dataclass(frozen=True)
class Reading:
    """The SM clock in MHz, and why it is held down, where it is."""

    sm_mhz: int
    reasons: tuple[str, ...] = ()


class ClockReader(Protocol):
    """What tells the clock."""

    def read(self) -> Reading | None:
        """The clock now, or None where it cannot be told."""


class DriverClocks:
    """The clock of one GPU by NVML."""

    def __init__(self, library: ctypes.CDLL, handle: ctypes.c_void_p) -> None:
        """Keep an initialized library and a device's handle."""
        self._library, self._handle = library, handle

    def read(self) -> Reading | None:
        """The SM clock and the reasons that hold it down."""
        clock, reasons = ctypes.c_uint(), ctypes.c_ulonglong()
        if self._library.nvmlDeviceGetClockInfo(self._handle, _SM, ctypes.byref(clock)):
            return None
        if self._library.nvmlDeviceGetCurrentClocksThrottleReasons(self._handle, ctypes.byref(reasons)):
            return Reading(clock.value)
        return Reading(clock.value, tuple(name for bit, name in _REASONS.items() if reasons.value & bit))


def clock_reader(device: str) -> ClockReader | None:
    """A reader for `device` ("cpu", "cuda", "cuda:1"), found by its PCI address; None of a CPU, or without NVML."""
    if device == "cpu":
        return None
    import torch

    properties = torch.cuda.get_device_properties(device)
    domain, bus, slot = (getattr(properties, f"pci_{part}_id", 0) for part in ("domain", "bus", "device"))
    address = f"{domain:08x}:{bus:02x}:{slot:02x}.0"
    try:
        library = ctypes.CDLL("libnvidia-ml.so.1")
    except OSError:
        return None
    handle = ctypes.c_void_p()
    if library.nvmlInit_v2() or library.nvmlDeviceGetHandleByPciBusId_v2(
        address.encode(), ctypes.byref(handle)
    ):
        return None
    return DriverClocks(library, handle)


@dataclass
class ClockWatch:
    """Remembers the fastest clock of a run and says when a later one fell below 95 % of it."""

    reader: ClockReader | None
    highest_mhz: int = 0
    lowest_mhz: int = 0
    kept: float = 0.95

    def look(self) -> str | None:
        """What to say of the clock now: None while it holds or cannot be read."""
        now = self.reader.read() if self.reader else None
        if now is None:
            return None
        self.highest_mhz = max(self.highest_mhz, now.sm_mhz)
        self.lowest_mhz = min(self.lowest_mhz or now.sm_mhz, now.sm_mhz)
        if now.sm_mhz >= self.kept * self.highest_mhz:
            return None
        because = f" ({', '.join(now.reasons)})" if now.reasons else ""
        return f"clocks dropped: {now.sm_mhz} MHz after {self.highest_mhz} MHz{because}"
