"""Work that several threads of a program do alike."""

from __future__ import annotations

import pytest
import triton
import triton.language as tl

from tilefold import xray
from xray.observe.planted import PLANTED


def test_a_dot_that_warps_share_is_named_by_its_shape_and_copies() -> None:
    plant = PLANTED["repeated-dot"][0]
    report = xray.explain(plant.kernel, plant.args, plant.constants, **plant.options)
    (found,) = [o for o in report.observations if o.code == "repeated-dot"]
    assert found.evidence.startswith("a dot with a result of 16x16 is computed 2 times over by 4 warps: ")
    assert dict(found.numbers)["copies"] == 2
    assert "launch with num_warps=2" in found.change


@triton.jit
def recurrence(x_ptr, y_ptr, n, B: tl.constexpr):
    """Rows that are walked along: a round computes much of what it loads."""
    rows, state = tl.program_id(0) * B + tl.arange(0, B), tl.zeros([B], tl.float32)
    for i in range(n):
        x = tl.load(x_ptr + rows * n + i)
        state = tl.log(tl.exp(state - x) + tl.exp(x) + tl.exp(-x) + 1)
        state = tl.log(tl.exp(state - x) + tl.exp(x) + tl.exp(-x) + 1)
    tl.store(y_ptr + rows, state)


@pytest.mark.parametrize(("rows", "codes"), [(64, ["redundant-threads"]), (128, [])])
def test_what_is_computed_of_a_small_tile_is_repeated_too(rows: int, codes: list[str]) -> None:
    report = xray.explain(recurrence, {"x_ptr": "*fp32", "y_ptr": "*fp32", "n": 40}, {"B": rows}, grid=4)
    found = [o for o in report.observations if o.code in ("redundant-threads", "idle-warps")]
    assert [o.code for o in found] == codes
    assert all("num_warps=2 (tried: instructions issued" in o.change for o in found)
