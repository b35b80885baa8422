"""The facts of a chip that planners use, and how they are read from a live device."""

from __future__ import annotations

from dataclasses import dataclass, replace

from tilefold.planner.chips import NAMED, Chip
from tilefold.runtime.caching import kept_outside_modes

PORTABLE = 8  # programs of a cluster that every chip with clusters starts: a limit of the hardware


@dataclass(frozen=True)
class Device:
    """A chip as the planner sees it. `sms` are streaming multiprocessors, `capability` is 90 for sm_90.

    `gb_per_s` is what its memory delivers at most, `shared_bytes` the shared memory of an SM, `cluster` how many programs it
    starts together, on SMs near each other, at most: each may then wait for all the others.
    """

    name: str
    sms: int
    capability: int
    gb_per_s: float = 2000.0
    shared_bytes: int = 100 * 1024
    cluster: int = 1

    @property
    def overlaps(self) -> bool:
        """Whether a dependent launch may start early (programmatic dependent launch: sm_90 and later)."""
        return self.capability >= 90


NOMINAL = Device("nominal", 128, 80)  # a definition: "batch_invariant" plans for this one everywhere


@kept_outside_modes(64)
def device_of(index: int) -> Device:
    """The live CUDA device `index`."""
    import torch

    properties = torch.cuda.get_device_properties(index)
    capability = properties.major * 10 + properties.minor
    kilohertz = getattr(properties, "memory_clock_rate", 0)
    bits = getattr(properties, "memory_bus_width", 0)
    gb_per_s = 2 * kilohertz * bits / 8e6 or Device.gb_per_s  # two transfers a clock
    shared_bytes = properties.shared_memory_per_multiprocessor
    sms = properties.multi_processor_count
    return Device(properties.name, sms, capability, gb_per_s, shared_bytes, cluster_of(capability, sms))


def cluster_of(capability: int, sms: int) -> int:
    """Programs of a cluster at most: `PORTABLE` on every chip that has clusters.

    A whole H100, H200, B200 or their like has room for 16, where a kernel asks for it; a part of one (MIG) may not.
    Source: CUDA C++ Programming Guide, "Thread Block Clusters".
    """
    if capability < 90:
        return 1
    return 16 if capability in (90, 100, 103) and sms >= 128 else PORTABLE


def of_chip(chip: Chip) -> Device:
    """A chip of the table as the planner sees it."""
    cluster = cluster_of(chip.architecture, chip.sms)
    return Device(
        chip.device or chip.name,
        chip.sms,
        chip.architecture,
        float(chip.gb_per_s),
        chip.shared_bytes,
        cluster,
    )


H200 = of_chip(NAMED["h200"])
# By definition programs run one after the other there, and none may wait for a later one.
INTERPRETED = replace(H200, cluster=1)
