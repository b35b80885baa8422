"""The X-ray: what the compiler made of a Triton kernel, and a fault that tests on random numbers do not find.

The largest element of each row, where rows end inside a tile. Lanes beyond the end are filled, with a number that a maximum
does not forget: a row of negative numbers comes out as 0. The kernel is compiled for an H200 and executed here,
from its PTX.
"""

from __future__ import annotations

from typing import Any

import triton
import triton.language as tl

from tilefold import xray


# --8<-- the monoid
@triton.jit
def largest(x_ptr, y_ptr, length, BLOCK: tl.constexpr):
    """A program takes the maximum of a row."""
    row = tl.program_id(0)
    place = tl.arange(0, BLOCK)
    x = tl.load(x_ptr + row * length + place, mask=place < length, other=0.0)
    tl.store(y_ptr + row, tl.max(x))


# -->8--


def xray_cases() -> dict[str, dict[str, Any]]:
    """`tilefold xray examples/wrong_fill.py --case largest` shows all of it."""
    args = {"x_ptr": "*fp32", "y_ptr": "*fp32", "length": 1000}
    return {"largest": {"kernel": largest, "args": args, "constants": {"BLOCK": 1024}, "grid": 64}}


def main() -> xray.Report:
    """The report of the kernel."""
    return xray.explain(**xray_cases()["largest"])


if __name__ == "__main__":
    for found in main().observations:
        print(f"{found.severity}: {found.code}, line {found.line}: {found.evidence}")
