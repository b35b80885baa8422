"""`wasted-sectors` names what wastes them: a layout, a stride, a row's begin; and where the rest is found."""

from __future__ import annotations

import re
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import triton
import triton.language as tl

from tilefold import xray
from tilefold.xray.observe.joined import ASTRAY
from tilefold.xray.observe.memory import _why_wasted
from tilefold.xray.report.model import Access, Observation
from xray.observe.planted import XY, copy_column
from xray.versions import TRITON


def wasted(kernel: Any, args: dict[str, Any], constants: dict[str, Any], **given: Any) -> list[Observation]:
    report = xray.explain(kernel, args, constants, **given)
    return [o for o in report.observations if o.code == "wasted-sectors"]


@triton.jit
def mixed(x_ptr, h_ptr, y_ptr, BLOCK: tl.constexpr):
    offs = tl.arange(0, BLOCK)
    h = tl.load(h_ptr + offs)
    x = tl.load(x_ptr + offs)
    tl.store(y_ptr + offs, x + h)


@triton.jit
def pipelined(a_ptr, b_ptr, c_ptr, n, K, BLOCK: tl.constexpr):
    offs = tl.arange(0, BLOCK)
    sums = tl.zeros([BLOCK, BLOCK], tl.float32)
    for k in range(0, K, BLOCK):
        a = tl.load(a_ptr + offs[:, None] * n + k + offs[None, :])
        b = tl.load(b_ptr + (k + offs)[:, None] * n + offs[None, :])
        sums = tl.dot(a, b, sums)
    tl.store(c_ptr + offs[:, None] * BLOCK + offs[None, :], sums)


def test_a_layout_of_a_narrower_neighbour_is_named() -> None:
    """Eight bf16 are 16 bytes a thread; eight float32 are 32, in two loads that take half a sector each."""
    args = {"x_ptr": "*fp32", "h_ptr": "*bf16", "y_ptr": "*bf16"}
    found = wasted(mixed, args, {"BLOCK": 2048})
    assert found
    for o in found:
        assert "each thread holds 32 neighbouring bytes and takes 16 of them at a time" in o.reason
        assert "the layout of the bf16 tile in line" in o.reason
        assert "transpose" not in o.change
        assert o.severity == "note"


def test_a_strided_vector_is_not_to_be_transposed() -> None:
    (found,) = wasted(copy_column, {**XY, "stride": 512}, {"BLOCK": 256})
    assert "every one touches a sector of its own" in found.reason
    assert "transpose" not in found.change


def test_what_copies_leave_comes_from_l2() -> None:
    """Odd rows: each request of a copy reaches into one sector more, and cp.async leaves nothing in L1."""
    args = {"a_ptr": "*fp16", "b_ptr": "*fp16", "c_ptr": "*fp32", "n": "i32:40!div8", "K": 256}
    copies = [o for o in wasted(pipelined, args, {"BLOCK": 32}) if "a copy" in o.evidence]
    assert copies
    assert all("L1" not in o.reason for o in copies)


@triton.jit
def complex_product(x_ptr, y_ptr, BLOCK: tl.constexpr):
    offs = tl.arange(0, BLOCK)
    re = tl.load(x_ptr + 2 * offs)
    im = tl.load(x_ptr + 2 * offs + 1)
    tl.store(y_ptr + 2 * offs, re * re - im * im)
    tl.store(y_ptr + 2 * offs + 1, 2 * re * im)


def test_what_another_load_takes_is_not_wasted() -> None:
    found = wasted(complex_product, XY, {"BLOCK": 1024})
    assert {o.severity for o in found} == {"note"}
    assert {o.line for o in found if "tl.split" in o.change}
    assert {o.line for o in found if "tl.join" in o.change}
    assert all("take most of the rest of these sectors" in o.reason for o in found)


@triton.jit
def strided_rows(x_ptr, y_ptr, SAME: tl.constexpr, BLOCK: tl.constexpr):
    offs = tl.arange(0, BLOCK)
    first = 0 if SAME else tl.program_id(0) * BLOCK * 16
    tl.store(y_ptr + tl.program_id(0) * BLOCK + offs, tl.load(x_ptr + first + offs * 16))


@pytest.mark.parametrize(("grid", "same", "said"), [(4, True, True), (4, False, False), (1, True, False)])
def test_other_programs_share_sectors_where_they_were_executed(grid: int, same: bool, said: bool) -> None:
    """A grid of one program has no others, and rows of whole sectors share none."""
    (found,) = wasted(strided_rows, XY, {"SAME": same, "BLOCK": 256}, grid=grid)
    assert ("other executed programs ask for" in found.reason) == said


@triton.jit
def maxima_of_pairs(x_ptr, y_ptr, BLOCK: tl.constexpr):
    offs = tl.arange(0, BLOCK)
    most = tl.full([BLOCK], float("-inf"), tl.float32)
    for i in tl.static_range(2):
        most = tl.maximum(most, tl.load(x_ptr + 2 * offs + i))
    tl.store(y_ptr + offs, most)


def test_the_loads_of_a_loop_that_is_unrolled_are_not_one() -> None:
    """A thread holds one element of each."""
    (found,) = wasted(maxima_of_pairs, XY, {"BLOCK": 128})
    assert "neighbouring lanes are 8 bytes apart and take 4 of them" in found.reason
    assert "tl.split" in found.change


@triton.jit
def add_all(x_ptr, y_ptr, BLOCK: tl.constexpr):
    offs = tl.arange(0, BLOCK)
    tl.atomic_add(y_ptr + offs, tl.load(x_ptr + offs), sem="relaxed")


@pytest.mark.skipif(TRITON >= (3, 9), reason="this Triton gives atomics one element a lane")
def test_atomics_of_neighbours_go_one_element_a_lane() -> None:
    """A thread holds 2 neighbours of integers; of float32 they go as one vector."""
    (found,) = wasted(add_all, {"x_ptr": "*i32", "y_ptr": "*i32"}, {"BLOCK": 256})
    assert "let a lane hold one element" in found.change
    assert not wasted(add_all, XY, {"BLOCK": 256})


@triton.jit
def taps(x_ptr, w_ptr, y_ptr, stride, n, K: tl.constexpr, B: tl.constexpr):
    row, offs = tl.program_id(1), tl.program_id(0) * B + tl.arange(0, B)
    acc = tl.zeros((B,), tl.float32)
    for k in range(K):
        acc += tl.load(x_ptr + row * stride + offs + k, mask=offs + k < n, other=0.0) * tl.load(w_ptr + k)
    tl.store(y_ptr + row * B * 4 + offs, acc)


@triton.jit
def ragged(x_ptr, begin_ptr, y_ptr, B: tl.constexpr):
    pid, offs = tl.program_id(0), tl.arange(0, B)
    begin, end = tl.load(begin_ptr + pid), tl.load(begin_ptr + pid + 1)
    x = tl.load(x_ptr + begin + offs, mask=begin + offs < end, other=0.0)
    tl.store(y_ptr + pid * B + offs, x)


@triton.jit
def odd_rows(x_ptr, y_ptr, stride, SHIFTS: tl.constexpr, B: tl.constexpr):
    offs, acc = tl.arange(0, B), tl.zeros((B,), tl.float32)
    for row in range(64):
        acc += tl.load(x_ptr + (tl.program_id(0) * 64 + row) * stride + row % SHIFTS + offs)
    tl.store(y_ptr + tl.program_id(0) * B + offs, acc)


@pytest.mark.parametrize(
    ("kernel", "args", "constants", "grid", "severity"),
    [
        (odd_rows, {"stride": 83}, {"SHIFTS": 1, "B": 32}, 9, {"warning"}),
        (odd_rows, {"stride": 83}, {"SHIFTS": 7, "B": 32}, 9, {"note"}),
        (taps, {"w_ptr": "*fp32", "stride": 512, "n": 512}, {"K": 7, "B": 32}, (4, 8), {"note"}),
        (taps, {"w_ptr": "*fp32", "stride": 519, "n": 512}, {"K": 7, "B": 32}, (4, 8), {"note"}),
        (ragged, {"begin_ptr": np.array([0, 101, 230, 331], np.int32)}, {"B": 32}, 3, {"note"}),
    ],
    ids=["rows", "windows of rows", "taps", "taps of odd rows", "ragged"],
)
def test_requests_between_two_sectors_are_a_warning_where_padding_helps(
    kernel: Any, args: dict[str, Any], constants: dict[str, int], grid: Any, severity: set[str]
) -> None:
    """Windows, taps of a convolution and rows that begin anywhere are shifted on purpose."""
    report = xray.explain(
        kernel, {"x_ptr": "*fp16", "y_ptr": "*fp16", **args}, constants, grid=grid, num_warps=1
    )
    found = [o for o in report.observations if o.code == "wasted-sectors" and o.reason.startswith(ASTRAY)]
    assert {o.severity for o in found} == severity
    assert (
        severity == {"note"}
        or "tried with multiples of 32 for stride: sectors beyond the bytes" in found[0].change
    )


@pytest.mark.parametrize(("sectors", "said"), [(28, ASTRAY), (137, "the line has several accesses")])
def test_requests_that_miss_by_more_than_a_sector_are_not_said_to_miss_by_one(
    sectors: int, said: str
) -> None:
    access = Access("load", "global", 2, 4, 10, sectors, None, 18, 640, 2)
    line: Any = SimpleNamespace(file="k.py", line=1)
    nothing: Any = SimpleNamespace(made_by=dict, walk=list, reached_from=set)
    reason, _ = _why_wasted(line, access, SimpleNamespace(), SimpleNamespace(ttir=nothing))
    assert reason.startswith(said)


@triton.jit
def added_along_the_wrong_dim(x_ptr, y_ptr, n, apart, R: tl.constexpr, C: tl.constexpr):
    rows, columns = tl.arange(0, R)[:, None], tl.arange(0, C)[None, :]
    x = tl.load(x_ptr + columns * R + rows)
    tl.atomic_add(y_ptr + rows * n + columns * apart, x, sem="relaxed")


@pytest.mark.skipif(TRITON >= (3, 9), reason="this Triton gives atomics one element a lane")
@pytest.mark.parametrize("apart", [2, 3])
def test_atomics_are_tried_the_other_way_and_what_that_saves_is_at_stake(apart: int) -> None:
    """Along the other dim lanes are `apart` elements from each other: a request still needs more sectors than its bytes."""
    args = {"x_ptr": "*fp32", "y_ptr": "*fp32", "n": 1000, "apart": apart}
    (found,) = wasted(added_along_the_wrong_dim, args, {"R": 32, "C": 64})
    assert found.severity == "warning"
    moved = re.search(
        r"tried transposing the tile: bytes moved ([\d,]+) -> ([\d,]+), and the same", found.change
    )
    assert moved is not None, found.change
    before, after = (int(n.replace(",", "")) for n in moved.groups())
    assert 0 < found.bytes_at_stake <= before - after
