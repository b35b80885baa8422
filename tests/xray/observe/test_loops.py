"""`masked-rounds`: rounds of loops in which no lane is on; `repeated-dot` in and out of loops; folds that may wait."""

from __future__ import annotations

import re
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import triton
import triton.language as tl

from tilefold import xray
from tilefold.xray.ir import read
from tilefold.xray.observe.joined import NARROWED
from tilefold.xray.observe.loops import _shared
from tilefold.xray.observe.wants import wants
from tilefold.xray.ptx import parse
from tilefold.xray.report.model import Access, Observation
from tilefold.xray.report.static import access_of
from xray.observe.planted import XY, total_of_rounds
from xray.snippets import module
from xray.versions import TRITON


@triton.jit
def rounds(x_ptr, y_ptr, n_ptr, low, high, end, HOW: tl.constexpr, B: tl.constexpr):
    """Rounds of B elements up to `end`, of which those from `low` to `high` count."""
    pid, offs = tl.program_id(0), tl.arange(0, B)
    total = tl.full([B], 1.0, tl.float32)
    most = -float("inf")
    if HOW == "ragged":
        high = tl.load(n_ptr + pid)
    pointers = x_ptr + offs
    for start in range(0, end, B):
        at = start + offs
        there = (at >= low) & (at < high)
        if HOW == "copy":
            tl.store(y_ptr + at, 2 * tl.load(x_ptr + at, mask=there), mask=there)
        elif HOW == "maximum":
            most = tl.maximum(most, tl.max(tl.load(x_ptr + at, mask=there, other=-float("inf")), 0))
        elif HOW == "pointers":
            total += tl.load(pointers, mask=there, other=0.0)
            pointers += B
        elif HOW == "decay":
            total = 0.5 * total + tl.load(x_ptr + at, mask=there, other=0.0)
        elif HOW == "fill":
            tl.store(y_ptr + at, tl.load(x_ptr + at, mask=there, other=0.0))
        elif HOW == "atomic":
            tl.atomic_add(y_ptr + at, tl.load(x_ptr + at, mask=there, other=0.0), mask=there, sem="relaxed")
        else:
            total += tl.load(x_ptr + pid * end + at, mask=there, other=0.0)
    tl.store(y_ptr + end + pid * B + offs, total + most)


@triton.jit
def product(a_ptr, b_ptr, c_ptr, K, end, B: tl.constexpr):
    rows, columns = tl.arange(0, B)[:, None], tl.arange(0, B)[None, :]
    total = tl.zeros([B, B], tl.float32)
    for k in range(0, end, B):
        a = tl.load(a_ptr + rows * end + k + columns, mask=k + columns < K, other=0.0)
        b = tl.load(b_ptr + (k + rows) * B + columns, mask=k + rows < K, other=0.0)
        total = tl.dot(a, b, total)
    tl.store(c_ptr + rows * B + columns, total)


LENGTHS = np.array([100, 3000, 900, 50], np.int32)
ABC = {"a_ptr": "*fp16", "b_ptr": "*fp16", "c_ptr": "*fp32"}


def idle(
    how: str, low: int, high: int, end: int, *, lengths: Any = LENGTHS, grid: int = 1
) -> list[Observation]:
    args = {**XY, "n_ptr": lengths, "low": low, "high": high, "end": end}
    report = xray.explain(rounds, args, {"HOW": how, "B": 256}, grid=grid)
    assert report.executed, report.notes
    return [o for o in report.observations if o.code == "masked-rounds"]


@pytest.mark.parametrize(
    ("how", "low", "high"),
    [
        ("sum", 0, 1000), ("copy", 0, 1000), ("maximum", 2000, 2600), ("pointers", 0, 1000), ("atomic", 0, 1000),
        ("sum", 7000, 8192),
    ],
)  # fmt: skip
def test_rounds_in_which_no_lane_is_on(how: str, low: int, high: int) -> None:
    (found,) = idle(how, low, high, 8192)
    left = 32 - (-(-high // 256) - low // 256)
    assert f"in {left} of 32 rounds of a loop no lane of a load or store is on" in found.evidence
    assert dict(found.numbers) == {"rounds": 32, "idle": left}


def test_rows_of_several_lengths() -> None:
    (found,) = idle("ragged", 0, 0, 4096, grid=4)
    assert "in 46 of 64 rounds" in found.evidence
    assert not idle("ragged", 0, 0, 4096, lengths="*i32", grid=4), "by chance"


@pytest.mark.parametrize(
    ("how", "high", "end"),
    [
        ("sum", 1000, 1000),
        ("copy", 1000, 1000),
        ("maximum", 8100, 8192),
        ("decay", 1000, 8192),
        ("fill", 1000, 8192),
    ],
)
def test_rounds_with_a_lane_or_something_else_to_do(how: str, high: int, end: int) -> None:
    """A tail that is masked in part; a variable that decays in every round; what is stored in all of them."""
    assert not idle(how, 0, high, end)


@pytest.mark.parametrize(("k", "found"), [(64, True), (512, False), (500, False)])
def test_rounds_of_a_product_whose_copies_run_ahead(k: int, found: bool) -> None:
    report = xray.explain(product, {**ABC, "K": k, "end": 512}, {"B": 32})
    assert ("masked-rounds" in report.codes()) == found


@triton.jit
def gram(x_ptr, y_ptr, tiles, N: tl.constexpr, D: tl.constexpr):
    rows, columns = tl.arange(0, N)[:, None], tl.arange(0, D)[None, :]
    total = tl.zeros([D, D], tl.float32)
    for tile in range(tiles):
        v = tl.load(x_ptr + tile * N * D + rows * D + columns)
        total += tl.dot(tl.trans(v), v)
    one = tl.arange(0, D)
    tl.store(y_ptr + one[:, None] * D + one[None, :], total)


def repeated(kind: str, constants: dict[str, int], warps: int) -> list[Observation]:
    args = {"x_ptr": kind, "y_ptr": "*fp32", "tiles": 4}
    report = xray.explain(gram, args, constants, num_warps=warps)
    return [o for o in report.observations if o.code == "repeated-dot"]


@pytest.mark.parametrize(
    ("kind", "d", "warps", "copies"),
    [
        ("*fp16", 16, 4, 2), ("*fp16", 16, 8, 4), ("*bf16", 16, 4, 2), ("*fp16", 32, 16, 2), ("*fp32", 16, 4, 2),
        ("*fp16", 16, 16, 8),
    ],
)  # fmt: skip
def test_a_dot_that_several_warps_compute(kind: str, d: int, warps: int, copies: int) -> None:
    (found,) = repeated(kind, {"N": 64, "D": d}, warps)
    assert dict(found.numbers)["copies"] == copies
    assert f"of {d}x{d} is computed {copies} times over by {warps} warps" in found.evidence
    assert f"num_warps={warps // copies}" in found.change


@pytest.mark.parametrize(("d", "warps"), [(16, 1), (16, 2), (32, 4), (32, 8), (64, 4), (128, 4)])
def test_a_dot_that_warps_share(d: int, warps: int) -> None:
    assert not repeated("*fp16", {"N": 32, "D": d}, warps)


@triton.jit
def times_vector(x_ptr, y_ptr, N: tl.constexpr):
    offs = tl.arange(0, N)
    x = tl.load(x_ptr + offs[:, None] * N + offs[None, :])
    v = tl.load(x_ptr + offs[:, None])
    tl.store(y_ptr + offs[:, None], tl.dot(x, tl.broadcast_to(v, (N, 8))).sum(1, keep_dims=True))


@pytest.mark.parametrize(("n", "warps", "found"), [(64, 4, False), (16, 4, True)])
def test_lanes_along_few_columns_repeat_no_dot(n: int, warps: int, found: bool) -> None:
    report = xray.explain(times_vector, {"x_ptr": "*fp16", "y_ptr": "*fp32"}, {"N": n}, num_warps=warps)
    said = [o for o in report.observations if o.code == "repeated-dot"]
    assert bool(said) == found
    assert all("mma issued" in o.change for o in said)


@triton.jit
def online_softmax(x_ptr, y_ptr, n, BLOCK: tl.constexpr):
    offs = tl.arange(0, BLOCK)
    most, total = float("-inf"), 0.0
    for start in range(0, n, BLOCK):
        x = tl.load(x_ptr + start + offs)
        larger = tl.maximum(most, tl.max(x, 0))
        total = total * tl.exp(most - larger) + tl.sum(tl.exp(x - larger), 0)
        most = larger
    tl.store(y_ptr, total)


@triton.jit
def stored_each_round(x_ptr, y_ptr, n, BLOCK: tl.constexpr):
    offs = tl.arange(0, BLOCK)
    total = 0.0
    for start in range(0, n, BLOCK):
        total += tl.sum(tl.load(x_ptr + start + offs), 0)
        tl.store(y_ptr + start, total)


@triton.jit
def stored_before_each_round(x_ptr, y_ptr, n, BLOCK: tl.constexpr):
    offs = tl.arange(0, BLOCK)
    total = 0.0
    for start in range(0, n, BLOCK):
        tl.store(y_ptr + start, total)
        total += tl.sum(tl.load(x_ptr + start + offs), 0)
    tl.store(y_ptr + n, total)


@pytest.mark.parametrize("kernel", [online_softmax, stored_each_round, stored_before_each_round])
def test_a_running_value_that_the_round_reads_cannot_wait(kernel: Any) -> None:
    report = xray.explain(kernel, {**XY, "n": 4096}, {"BLOCK": 512})
    assert "fold-in-loop" not in report.codes()


def test_a_running_value_that_nothing_reads_can() -> None:
    report = xray.explain(total_of_rounds, {**XY, "n": 4096}, {"BLOCK": 512, "WAIT": False})
    assert "fold-in-loop" in report.codes()


@triton.jit
def kept_dims(x_ptr, y_ptr, n, KEEP: tl.constexpr, R: tl.constexpr, C: tl.constexpr):
    """Columns' sums of rounds of rows with the rows' dim kept, or a total as a tile of one element."""
    rows, columns = tl.arange(0, R)[:, None], tl.arange(0, C)[None, :]
    total = tl.zeros([1, C] if KEEP else [1], tl.float32)
    for start in range(0, n, R):
        x = tl.load(x_ptr + (start + rows) * C + columns)
        total += tl.sum(x, axis=0, keep_dims=True) if KEEP else tl.sum(x)
    if KEEP:
        tl.store(y_ptr + columns, total)
    else:
        tl.store(y_ptr + tl.arange(0, 1), total)


@pytest.mark.parametrize("keep", [True, False])
def test_a_fold_that_keeps_its_dim_can_wait(keep: bool) -> None:
    report = xray.explain(kept_dims, {**XY, "n": 512}, {"KEEP": keep, "R": 32, "C": 16})
    (found,) = [o for o in report.observations if o.code == "fold-in-loop"]
    assert "(tried one fold behind the loop: barriers" in found.change


def test_passes_and_barriers_of_copies_are_not_a_layout_s() -> None:
    """A change of layout, twice, with a barrier before each and between its store and its load; then copies, and waiting."""
    change = "bar.sync 0; st.shared.b32 [%r1], %r2; bar.sync 0; ld.shared.b32 %r2, [%r1];"
    copies = "bar.sync 0; cp.async.cg.shared.global [%r1], [%rd1], 16; cp.async.wait_group 0; bar.sync 0;"
    (entry,) = parse(module(change + copies + change + copies, 0, 32)).entries
    costs = [(n, a) for n, i in enumerate(entry.instructions) if (a := access_of(i)) is not None]
    accesses = [
        Access(kind, "shared", size, 1, passes=100 if kind == "copy" else 1) for _, (kind, _, size) in costs
    ]
    line: Any = SimpleNamespace(file="f", line=1, accesses=accesses)
    report: Any = SimpleNamespace(num_warps=2)
    evidence: Any = SimpleNamespace(
        entry=entry,
        at=lambda _: range(len(entry.instructions)),
        ttgir=SimpleNamespace(walk=lambda: iter(())),
        execution=SimpleNamespace(warps=lambda: np.full(len(entry.instructions), 6)),
    )
    assert _shared(line, report, evidence) == (4, 4 * 6 // 2)


ON_TENSOR_CORES = """
#blocked = #ttg.blocked<{sizePerThread = [1, 4], threadsPerWarp = [8, 4], warpsPerCTA = [4, 1], order = [1, 0]}>
#mma = #ttg.nvidia_mma<{versionMajor = 3, versionMinor = 0, warpsPerCTA = [4, 1], instrShape = [16, 64, 16]}>
#loc = loc("k.py":1:0)
module {
  tt.func public @k(%a: SHARED, %c: TILE) attributes {noinline = false} {
    %p = ttng.warp_group_dot %a, %a, %c {inputPrecision = 0 : i32, isAsync = true} : SHARED * SHARED -> TILE loc(#loc9)
    %w:3 = ttng.warp_group_dot_wait %p, %a, %a {pendings = 0 : i32} : TILE, SHARED, SHARED loc(#loc5)
    %x = ttg.convert_layout %w#0 : TILE -> tensor<64x64xf32, #blocked> loc(#loc7)
    %y = ttg.async_copy_global_to_local %x, %a : tensor<64x64xf32, #blocked> -> <64x64xf32> loc(#loc8)
    tt.return loc(#loc)
  } loc(#loc)
} loc(#loc)
#loc5 = loc("k.py":5:0)
#loc7 = loc("k.py":7:0)
#loc8 = loc("k.py":8:0)
#loc9 = loc("k.py":9:0)
""".replace("SHARED", "!ttg.memdesc<64x64xf16>").replace("TILE", "tensor<64x64xf32, #mma>")


def test_a_layout_s_neighbours_are_the_dot_and_the_copy_not_who_waits_for_them() -> None:
    """A loop waits for its product: that stands at the loop's own line, which says nothing."""
    function = read(ON_TENSOR_CORES)
    change = next(o for o in function.walk() if o.name == "ttg.convert_layout")
    evidence: Any = SimpleNamespace(ttgir=function, compiled=SimpleNamespace(num_warps=4))
    said = wants(change, evidence)
    assert said.startswith("the product in line 9 has it as ")
    assert "; the copy to shared memory in line 8 wants " in said


@triton.jit
def in_turns(x_ptr, y_ptr, n_ptr, end, B: tl.constexpr):
    pid, offs = tl.program_id(0), tl.arange(0, B)
    high, total = tl.load(n_ptr + pid), tl.zeros([B], tl.float32)
    for start in range(0, end, B):
        total += tl.load(x_ptr + pid * end + start + offs, mask=start + offs < high, other=0.0)
    tl.store(y_ptr + pid * B + offs, total)


def test_rounds_of_a_small_grid_are_those_of_all_programs() -> None:
    """Only the last program's are all off: of the first, the middle and the last a third, of the grid an eighth."""
    args = {**XY, "n_ptr": np.array([4096] * 7 + [0], np.int32), "end": 4096}
    report = xray.explain(in_turns, args, {"B": 512}, grid=8)
    (found,) = [o for o in report.observations if o.code == "masked-rounds"]
    assert found.evidence.startswith("in 8 of 64 rounds of a loop ")
    assert "in all 8 programs; 8 of 8 in program (7, 0, 0)" in found.evidence


@triton.jit
def columns_of_rounds(x_ptr, y_ptr, n, stride, R: tl.constexpr, C: tl.constexpr):
    rows, columns = tl.arange(0, R), tl.program_id(0) * C + tl.arange(0, C)
    total = tl.zeros([C], tl.float32)
    for start in range(0, n, R):
        x = tl.load(x_ptr + (start + rows)[:, None] * stride + columns[None, :])
        total += tl.sum(x.to(tl.float32), 0)
    tl.store(y_ptr + columns, total)


def test_a_tile_that_does_not_fit_registers_is_not_advised() -> None:
    args = {"x_ptr": "*bf16", "y_ptr": "*fp32", "n": 1024, "stride": 64}
    large, small = (
        [
            o
            for o in xray.explain(columns_of_rounds, args, {"R": rows, "C": 64}).observations
            if o.code == "fold-in-loop"
        ]
        for rows in (512, 32)
    )
    assert all(o.severity == "note" for o in large), large
    assert any("nothing was gained by one fold behind the loop: tried, " in o.change for o in large)
    assert [o.severity for o in small] == ["warning"]


@triton.jit
def summed_products(a_ptr, b_ptr, c_ptr, K, stride_a, stride_b, stride_c, BM: tl.constexpr, BN: tl.constexpr,
                    BK: tl.constexpr):  # fmt: skip
    rows, columns, steps = tl.arange(0, BM)[:, None], tl.arange(0, BN)[None, :], tl.arange(0, BK)
    total = tl.zeros((BM, BN), tl.int32)
    for k in range(0, K, BK):
        a = tl.load(a_ptr + rows * stride_a + (k + steps)[None, :])
        b = tl.load(b_ptr + (k + steps)[:, None] * stride_b + columns)
        total += tl.dot(a, b, out_dtype=tl.int32)
        total -= 3 * tl.sum(a.to(tl.int32), 1)[:, None] + 5 * tl.sum(b.to(tl.int32), 0)[None, :]
    tl.store(c_ptr + rows * stride_c + columns, total.to(tl.int8))


@pytest.mark.skipif(TRITON >= (3, 9), reason="this Triton gives narrow operands other layouts")
@pytest.mark.parametrize("strides", [(136, 100, 100), (140, 72, 104)])
def test_a_layout_of_narrow_accesses_goes_by_divisors_that_the_values_have(
    strides: tuple[int, int, int],
) -> None:
    names = ("stride_a", "stride_b", "stride_c")
    args = {
        "a_ptr": "*i8",
        "b_ptr": "*i8",
        "c_ptr": "*i8",
        "K": 128,
        **dict(zip(names, strides, strict=True)),
    }
    report = xray.explain(summed_products, args, {"BM": 32, "BN": 64, "BK": 32})
    found = [o for o in report.observations if o.code == "layout-in-loop" and o.reason.startswith(NARROWED)]
    assert found
    for o in found:
        told = re.findall(r"(stride_\w) = \1 // (\d+) \* \2", o.change)
        assert told
        assert all(args[name] % int(divisor) == 0 for name, divisor in told), o.change
        # Without the change of layout the kernel has to take fewer clocks.
        before, after = (
            int(n.replace(",", ""))
            for n in re.search(r"clocks of all units ([\d,]+) -> ([\d,]+)", o.change).groups()
        )
        assert after < before or (o.severity, o.change.startswith("nothing was gained")) == ("note", True)
