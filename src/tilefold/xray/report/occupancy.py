"""How many programs an SM holds: the rules of NVIDIA's occupancy calculator."""

from __future__ import annotations

from tilefold.planner.chips import Chip
from tilefold.xray.compile.job import Resources
from tilefold.xray.report.model import Occupancy

_REGISTERS_WARP = 256  # registers are given to warps in such pieces
_SHARED_BLOCK = 1024  # bytes of shared memory that the system takes for itself, a block


def occupancy(chip: Chip, resources: Resources, warps: int) -> Occupancy:
    """Blocks of `warps` warps that an SM holds at once, and the resource that ends first."""
    per_warp = -(-resources.registers * 32 // _REGISTERS_WARP) * _REGISTERS_WARP
    shared = -(-(resources.shared + _SHARED_BLOCK) // 128) * 128
    # Registers lie in four parts of an SM, each with a quarter of the warps.
    by_registers = chip.registers // 4 // max(per_warp, 1) * 4 // warps
    limits = {
        "registers": by_registers,
        "shared memory": chip.shared_bytes // shared,
        "warps": chip.warps // warps,
        "blocks": chip.blocks,
    }
    blocks = min(limits.values())
    limiter = next(name for name, n in limits.items() if n == blocks)
    if blocks * warps >= chip.warps:
        limiter = "nothing"
    return Occupancy(blocks, blocks * warps, chip.warps, tuple(limits.items()), limiter)
