"""What a warp's request of atomics takes, by the places of its lanes: timed on a full GPU."""

from __future__ import annotations

from typing import Any

import torch
import triton
import triton.language as tl
from scattered import PATTERNS

_PROGRAMS, _ROUNDS, _WARPS = 132 * 8, 64, 8
_TIMED = ("one place", "first 1", "two places by turns", "eight neighbours by turns", "eight neighbours by fours",
          "sixteen neighbours by pairs", "eight by turns, apart", "in a row", "every other", "every fourth",
          "every eighth", "every 64th", "random of 13", "random of 61")  # fmt: skip


@triton.jit
def again_and_again(at_ptr, out_ptr, old_ptr, spread, step, ROUNDS, BLOCK: tl.constexpr, KEPT: tl.constexpr):
    """A request a warp and round, to the pattern's places in an area of the program's and the round's own."""
    lanes = tl.arange(0, BLOCK)
    at = tl.load(at_ptr + lanes)
    area = tl.program_id(0).to(tl.int64) * spread
    one = tl.full((BLOCK,), 1, out_ptr.dtype.element_ty)
    kept = one * 0
    for i in range(ROUNDS):
        old = tl.atomic_add(out_ptr + area + i * step + at, one, mask=at >= 0, sem="relaxed")
        if KEPT:
            kept += old
    if KEPT:
        tl.store(old_ptr + lanes, kept)


def costs() -> list[dict[str, Any]]:
    """A row for each type, use, pattern and distance of the programs' areas."""
    clock = torch.cuda.get_device_properties(0).multi_processor_count
    rows = []
    for kind in (torch.int32, torch.float32):
        for kept in (False, True):
            for spread, step in ((0, 0), (4096, 0), (4096, 64)):
                for name in _TIMED:
                    at = PATTERNS[name](torch.arange(32)).to(torch.int32)
                    # Every warp has places of its own, 2048 elements apart at the most.
                    own = torch.arange(_WARPS)[:, None] * (0 if not spread else 128)
                    places = (
                        torch.where(at[None, :] < 0, -1, at[None, :] + own).ravel().to(torch.int32).cuda()
                    )
                    out = torch.zeros(_PROGRAMS * 4096 + 2**16, dtype=kind, device="cuda")
                    old = torch.zeros(32 * _WARPS, dtype=kind, device="cuda")

                    def go(places: Any = places, out: Any = out, old: Any = old, kept: bool = kept,
                           spread: int = spread, step: int = step) -> None:  # fmt: skip
                        again_and_again[(_PROGRAMS,)](places, out, old, spread, step, _ROUNDS, BLOCK=32 * _WARPS,
                                                      KEPT=kept, num_warps=_WARPS)  # fmt: skip

                    us = 1e3 * triton.testing.do_bench(go, warmup=2, rep=8, return_mode="min")
                    requests = _PROGRAMS * _ROUNDS * _WARPS
                    rows.append({"type": str(kind), "kept": kept, "spread": spread, "step": step, "pattern": name,
                                 "us": us, "ns_a_request_and_sm": 1e3 * us * clock / requests})  # fmt: skip
                    print(rows[-1], flush=True)
    return rows
