"""Launches of atomics: one request each, to places that are given, and larger ones drawn at random."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import torch
import triton
import triton.language as tl

Patterns = dict[str, Callable[[torch.Tensor], torch.Tensor]]
# Where each lane of a warp goes, in elements; below 0: nowhere.
PATTERNS: Patterns = {
    "one place": lambda lane: lane * 0,
    "two places by turns": lambda lane: lane % 2,
    "two places by halves": lambda lane: lane // 16,
    "four neighbours by turns": lambda lane: lane % 4,
    "eight neighbours by turns": lambda lane: lane % 8,
    "eight neighbours by fours": lambda lane: lane // 4,
    "sixteen neighbours by pairs": lambda lane: lane // 2,
    "eight by fours, apart": lambda lane: lane // 4 * 8,
    "eight by turns, apart": lambda lane: lane % 8 * 8,
    "two sectors, eight each by turns": lambda lane: lane % 16,
    "in a row": lambda lane: lane,
    "in a row, from the third": lambda lane: lane + 3,
    "backwards": lambda lane: 31 - lane,
    "every other": lambda lane: 2 * lane,
    "every fourth": lambda lane: 4 * lane,
    "every eighth": lambda lane: 8 * lane,
    "every 64th": lambda lane: 64 * lane,
    "rows mixed": lambda lane: lane * 13 % 32,
    "squares modulo 61": lambda lane: lane * lane % 61,
    "random of 5": lambda lane: _drawn(5),
    "random of 13": lambda lane: _drawn(13),
    "random of 61": lambda lane: _drawn(61),
    "random of 4000": lambda lane: _drawn(4000),
    "first 1": lambda lane: torch.where(lane < 1, lane, -1),
    "first 7": lambda lane: torch.where(lane < 7, lane, -1),
    "first 20 to one place": lambda lane: torch.where(lane < 20, 0, -1),
    "even lanes in a row": lambda lane: torch.where(lane % 2 == 0, lane, -1),
    "even lanes to one place": lambda lane: torch.where(lane % 2 == 0, 5, -1),
}
_OF_OTHERS = ("one place", "eight neighbours by turns", "in a row", "every fourth", "every 64th", "random of 13",
              "random of 61", "sixteen neighbours by pairs")  # fmt: skip
_DRAWN = 24  # launches drawn at random
_WIDE = 40  # the same of one request each, to places in several runs of 128 bytes


def _drawn(below: int, count: int = 32, seed: int = 7) -> torch.Tensor:
    return torch.randint(0, below, (count,), generator=torch.Generator().manual_seed(seed))


@triton.jit
def sent(
    at_ptr,
    out_ptr,
    old_ptr,
    n,
    BLOCK: tl.constexpr,
    OPERATION: tl.constexpr,
    SEM: tl.constexpr,
    KEPT: tl.constexpr,
):
    """An atomic an element to a place that is data; what was there before is stored (KEPT) or not."""
    offs = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    at = tl.load(at_ptr + offs, mask=offs < n, other=-1)
    mask = at >= 0
    one = tl.full((BLOCK,), 1, out_ptr.dtype.element_ty)
    if OPERATION == "add":
        old = tl.atomic_add(out_ptr + at, one, mask=mask, sem=SEM)
    elif OPERATION == "max":
        old = tl.atomic_max(out_ptr + at, one, mask=mask, sem=SEM)
    elif OPERATION == "or":
        old = tl.atomic_or(out_ptr + at, one, mask=mask, sem=SEM)
    elif OPERATION == "xchg":
        old = tl.atomic_xchg(out_ptr + at, one, mask=mask, sem=SEM)
    else:
        old = tl.atomic_cas(out_ptr + at, one, one, sem=SEM)
    if KEPT:
        tl.store(old_ptr + offs, old, mask=mask)


@triton.jit
def in_rows(out_ptr, first, step, BLOCK: tl.constexpr):
    """An atomic an element, side by side or `step` apart, which the compiler knows: elements of a thread may go at once."""
    offs = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.atomic_add(
        out_ptr + first + offs * step, tl.full((BLOCK,), 1, out_ptr.dtype.element_ty), sem="relaxed"
    )


def sends() -> Iterator[tuple[str, Any, Callable[[], dict[str, Any]], dict[str, Any], tuple[int, ...], int]]:
    """Name, kernel, arguments, constants, grid and warps of each launch."""
    i32, f32 = torch.int32, torch.float32
    for name in PATTERNS:
        yield _sent(name, i32)
    for kind in (f32, torch.int64, torch.float64):
        for name in _OF_OTHERS:
            yield _sent(name, kind)
    for how in ({"kept": True}, {"sem": "acq_rel"}, {"operation": "max"}, {"operation": "or", "kept": True},
                {"operation": "xchg", "kept": True}, {"operation": "cas", "kept": True}):  # fmt: skip
        for name in ("one place", "eight neighbours by turns", "in a row", "every fourth", "random of 13"):
            yield _sent(name, i32, **how)
    for kind in (f32, torch.float16, torch.bfloat16, i32, torch.int64):
        for block, first, step in (
            (64, 0, 1),
            (128, 0, 1),
            (128, 4, 1),
            (256, 0, 1),
            (256, 1, 1),
            (128, 0, 2),
        ):
            if kind.itemsize > 2 or (block >= 64 and step == 1 and first != 1):
                yield _row(kind, block, first, step)
    for seed in range(_DRAWN):
        yield _random(seed)
    for seed in range(_WIDE):
        yield _wide(seed)


def _sent(
    pattern: str, kind: torch.dtype, operation: str = "add", sem: str = "relaxed", *, kept: bool = False
) -> Any:
    def make() -> dict[str, Any]:
        at = PATTERNS[pattern](torch.arange(32)).to(torch.int32)
        return {
            "at_ptr": at,
            "out_ptr": torch.zeros(4096, dtype=kind),
            "old_ptr": torch.zeros(32, dtype=kind),
            "n": 32,
        }

    constants = {"BLOCK": 32, "OPERATION": operation, "SEM": sem, "KEPT": kept}
    words = [
        pattern,
        _short(kind),
        operation,
        *([sem] if sem != "relaxed" else []),
        *(["kept"] if kept else []),
    ]
    return f"atomics: {', '.join(words)}", sent, make, constants, (1,), 1


def _row(kind: torch.dtype, block: int, first: int, step: int) -> Any:
    def make() -> dict[str, Any]:
        return {"out_ptr": torch.zeros(4096, dtype=kind), "first": first, "step": step}

    return f"atomics: {block} {_short(kind)} from {first} by {step}", in_rows, make, {"BLOCK": block}, (2,), 1


def _random(seed: int) -> Any:
    """A launch of several warps whose places, types and operations are drawn."""
    generator = torch.Generator().manual_seed(1000 + seed)

    def draw(*of: Any) -> Any:
        return of[int(torch.randint(0, len(of), (1,), generator=generator))]

    kind = draw(torch.int32, torch.float32, torch.int64, torch.float64)
    operation = draw("add", "max") if kind in (torch.int32, torch.int64) else "add"
    kept, block, warps = draw(True, False), draw(64, 128, 256), draw(1, 2, 4)
    n, below = draw(200, 333, 500), draw(2, 6, 16, 61, 97, 300, 4000)
    places = torch.randint(0, below, (1024,), generator=generator)
    places = {"sorted": lambda: places.sort().values, "drawn": lambda: places,
              "spread": lambda: places * 4 % 4096}[draw("sorted", "drawn", "spread")]().to(torch.int32)  # fmt: skip
    places = torch.where(torch.rand(1024, generator=generator) < draw(0.0, 0.0, 0.4), -1, places)

    def make() -> dict[str, Any]:
        return {
            "at_ptr": places,
            "out_ptr": torch.zeros(4096, dtype=kind),
            "old_ptr": torch.zeros(1024, dtype=kind),
            "n": n,
        }

    constants = {"BLOCK": block, "OPERATION": operation, "SEM": "relaxed", "KEPT": kept}
    name = f"atomics: drawn {seed}, {_short(kind)} {operation} below {below}{', kept' if kept else ''}"
    return name, sent, make, constants, (-(-n // block),), warps


def _wide(seed: int) -> Any:
    """One request whose lanes meet in some places of 2 to 24 runs of memory."""
    generator = torch.Generator().manual_seed(2000 + seed)
    runs, each, kind = 2 + seed % 23, 1 + seed % 5, (torch.int32, torch.float32, torch.int64)[seed % 3]
    words = 128 // kind.itemsize
    places = torch.randint(0, runs, (32,), generator=generator) * words
    places += torch.randint(0, each, (32,), generator=generator) * (words // 8)

    def make() -> dict[str, Any]:
        return {"at_ptr": places.to(torch.int32), "out_ptr": torch.zeros(4096, dtype=kind),
                "old_ptr": torch.zeros(32, dtype=kind), "n": 32}  # fmt: skip

    constants = {"BLOCK": 32, "OPERATION": "add", "SEM": "relaxed", "KEPT": False}
    return f"atomics: wide {seed}, {_short(kind)}, {runs} runs", sent, make, constants, (1,), 1


def _short(kind: torch.dtype) -> str:
    return str(kind).removeprefix("torch.")
