"""The one table of chips: limits of an SM, rates of the whole."""

from __future__ import annotations

from dataclasses import dataclass

from tilefold.errors import ArgumentError


@dataclass(frozen=True)
class Chip:
    """A GPU as its vendor describes it. `sms` are streaming multiprocessors; all limits are of one of them.

    `fp32_per_clock` and `fp16_per_clock` count operations an SM and clock (a fused multiply-add is two): vector units,
    and tensor cores with dense 16-bit operands. `clock_mhz` is the clock at which these make the data sheet's rate;
    `gb_per_s` what memory delivers at most. `device` is how a driver names it, where that is known.
    """

    target: str
    name: str
    sms: int
    clock_mhz: int
    gb_per_s: int
    shared_bytes: int
    shared_bytes_block: int
    fp32_per_clock: int
    fp16_per_clock: int
    registers: int = 65536
    warps: int = 64
    blocks: int = 32
    device: str = ""

    @property
    def architecture(self) -> int:
        """90 for sm_90."""
        return int(self.target.removeprefix("sm_"))

    @property
    def bytes_per_clock(self) -> float:
        """Bytes that memory delivers to one SM in a clock, when all SMs ask."""
        return self.gb_per_s * 1e9 / (self.sms * self.clock_mhz * 1e6)


# Limits of the hardware. Sources: NVIDIA's data sheets of A100 80GB SXM, H100 80GB SXM, H200 SXM and B200 (dense rates), and
# the table of limits by compute capability in the CUDA C++ Programming Guide.
ALL = (
    Chip("sm_80", "A100", 108, 1410, 2039, 164 * 1024, 163 * 1024, 128, 2048),
    Chip("sm_90", "H200", 132, 1830, 4800, 228 * 1024, 227 * 1024, 256, 4096, device="NVIDIA H200"),
    Chip("sm_90", "H100", 132, 1830, 3350, 228 * 1024, 227 * 1024, 256, 4096, device="NVIDIA H100 80GB HBM3"),
    Chip("sm_100", "B200", 148, 1850, 8000, 228 * 1024, 227 * 1024, 256, 8192),
)
# By target: where several chips share one, the first of them stands for it.
CHIPS = {target: next(c for c in ALL if c.target == target) for target in ("sm_80", "sm_90", "sm_100")}
NAMED = {chip.name.lower(): chip for chip in ALL}


def chip_of(target: str) -> Chip:
    """The chip that stands for a target, "sm_90", or that of a name in any case of letters, "h100".

    Raises:
        ArgumentError: no such target, and no such chip.
    """
    found = CHIPS.get(target.lower()) or NAMED.get(target.lower())
    if found is None:
        raise ArgumentError(
            f"the chip must be one of {', '.join(CHIPS)}, got {target!r}; take one, or say {', '.join(NAMED)}"
        )
    return found
