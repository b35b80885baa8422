"""The grid: bytes once and bytes asked of L2, counted by hand, on the SMs that it fills."""

from __future__ import annotations

import math
from typing import Any

import pytest
import triton
import triton.language as tl

from tilefold import xray
from tilefold.xray.machine import chosen_programs
from tilefold.xray.report.model import Roofline
from tilefold.xray.report.traffic import weights
from xray import kernels


def grid_of(kernel: Any, args: dict[str, Any], constants: dict[str, Any], **given: Any) -> Roofline:
    report = xray.explain(kernel, args, constants, **given)
    assert report.roofline is not None, report.notes
    return report.roofline


@triton.jit
def product(a_ptr, b_ptr, c_ptr, M, N, K, B: tl.constexpr, GROUP: tl.constexpr):
    """Programs in groups of rows, as Triton's tutorial has them."""
    pid, wide = tl.program_id(0), tl.cdiv(N, B)
    first = pid // (GROUP * wide) * GROUP
    height = tl.minimum(tl.cdiv(M, B) - first, GROUP)
    row, column = first + pid % (GROUP * wide) % height, pid % (GROUP * wide) // height
    offs_m, offs_n, offs_k = row * B + tl.arange(0, B), column * B + tl.arange(0, B), tl.arange(0, B)
    a, b = a_ptr + offs_m[:, None] * K + offs_k[None, :], b_ptr + offs_k[:, None] * N + offs_n[None, :]
    sums = tl.zeros((B, B), tl.float32)
    for _ in range(0, K, B):
        sums = tl.dot(tl.load(a), tl.load(b), sums)
        a += B
        b += B * N
    tl.store(c_ptr + offs_m[:, None] * N + offs_n[None, :], sums)


@triton.jit
def product_of_boxes(a_ptr, b_ptr, c_ptr, M, N, K, B: tl.constexpr):
    row, column = tl.program_id(0) * B, tl.program_id(1) * B
    a = tl.make_tensor_descriptor(a_ptr, [M, K], [K, 1], [B, B])
    b = tl.make_tensor_descriptor(b_ptr, [K, N], [N, 1], [B, B])
    c = tl.make_tensor_descriptor(c_ptr, [M, N], [N, 1], [B, B])
    sums = tl.zeros((B, B), tl.float32)
    for k in range(0, K, B):
        sums = tl.dot(a.load([row, k]), b.load([k, column]), sums)
    c.store([row, column], sums)


@triton.jit
def normalised(x_ptr, y_ptr, n, BLOCK: tl.constexpr):
    row, offs = tl.program_id(0) * n, tl.arange(0, BLOCK)
    total = tl.zeros([BLOCK], tl.float32)
    for start in range(0, n, BLOCK):
        x = tl.load(x_ptr + row + start + offs)
        total += x * x
    scale = tl.rsqrt(tl.sum(total, 0) / n)
    for start in range(0, n, BLOCK):
        tl.store(y_ptr + row + start + offs, tl.load(x_ptr + row + start + offs) * scale)


@triton.jit
def neighbours(x_ptr, y_ptr, BLOCK: tl.constexpr):
    offs = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(y_ptr + offs, tl.load(x_ptr + offs) + tl.load(x_ptr + offs + BLOCK))


@triton.jit
def gathered(x_ptr, i_ptr, y_ptr, BLOCK: tl.constexpr):
    offs = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(y_ptr + offs, tl.load(x_ptr + tl.load(i_ptr + offs)))


ABC = {"a_ptr": "*fp16", "b_ptr": "*fp16", "c_ptr": "*fp32"}


def test_a_vector_sum_counts_its_last_program_once() -> None:
    found = grid_of(
        kernels.add,
        {"x_ptr": "*fp32", "y_ptr": "*fp32", "z_ptr": "*fp32", "n": 98432},
        {"BLOCK": 1024},
        grid=97,
    )
    assert found.bytes_once == found.bytes_moved == 3 * 98432 * 4
    assert (found.sms, found.bound) == (97, "memory")


def test_operands_of_a_product_are_counted_once_and_asked_of_l2_by_every_program() -> None:
    size = 512
    found = grid_of(product, {**ABC, "M": size, "N": size, "K": size}, {"B": 64, "GROUP": 4}, grid=64)
    assert found.bytes_once == size * size * (2 + 2 + 4)
    assert found.bytes_moved == 64 * 2 * 64 * size * 2 + size * size * 4
    assert found.flops >= 2 * size**3
    assert found.sms == 64


def test_boxes_are_counted_by_their_coordinates() -> None:
    size = 256
    found = grid_of(product_of_boxes, {**ABC, "M": size, "N": size, "K": size}, {"B": 64}, grid=(4, 4))
    assert found.bytes_once == size * size * (2 + 2 + 4)
    assert found.bytes_moved == 16 * 2 * 64 * size * 2 + size * size * 4


def test_a_row_that_is_read_twice_comes_from_memory_once() -> None:
    found = grid_of(normalised, {"x_ptr": "*fp32", "y_ptr": "*fp32", "n": 2048}, {"BLOCK": 1024}, grid=16)
    assert found.bytes_once == 2 * 16 * 2048 * 4
    assert found.bytes_moved == 3 * 16 * 2048 * 4


@triton.jit
def growing(x_ptr, y_ptr, BLOCK: tl.constexpr):
    """A program of row i reads the first i + 1 blocks of its column, as causal attention does."""
    offs = tl.program_id(1) * 65536 + tl.arange(0, BLOCK)
    total = tl.zeros([BLOCK], tl.float32)
    for i in range(tl.program_id(0) + 1):
        total += tl.load(x_ptr + offs + i * BLOCK)
    tl.store(y_ptr + offs + tl.program_id(0) * BLOCK, total)


def test_programs_of_one_begin_share_what_the_longest_touches() -> None:
    found = grid_of(growing, {"x_ptr": "*fp32", "y_ptr": "*fp32"}, {"BLOCK": 128}, grid=(8, 4))
    assert found.bytes_once == (8 + 8) * 4 * 128 * 4


def test_tiles_that_overlap_are_bounded_by_their_span() -> None:
    found = grid_of(neighbours, {"x_ptr": "*fp32", "y_ptr": "*fp32"}, {"BLOCK": 128}, grid=8)
    assert found.bytes_once == (9 + 8) * 128 * 4


def test_where_memory_says_the_place_each_program_counts_for_itself() -> None:
    found = grid_of(gathered, {"x_ptr": "*fp32", "i_ptr": "*i32", "y_ptr": "*fp32"}, {"BLOCK": 128}, grid=8)
    assert 2 * 8 * 128 * 4 < found.bytes_once <= found.bytes_moved


def test_more_programs_than_cores_go_in_turns() -> None:
    args = {"x_ptr": "*fp32", "y_ptr": "*fp32", "z_ptr": "*fp32", "n": 1024 * 133}
    one = grid_of(kernels.add, args, {"BLOCK": 1024}, grid=132)
    two = grid_of(kernels.add, args, {"BLOCK": 1024}, grid=133)
    assert two.compute_us == pytest.approx(2 * one.compute_us, rel=1e-3)
    assert (one.sms, two.sms) == (132, 132)


@pytest.mark.parametrize(
    ("programs", "grid", "wanted"),
    [
        ([(0, 0, 0), (4, 0, 0), (7, 0, 0)], (8, 1, 1), [1, 6, 1]),
        ([(0, 0, 0), (2, 2, 0), (3, 3, 0)], (4, 4, 1), [1, 11, 4]),
        ([(0, 0, 0), (1, 0, 0)], (2, 1, 1), [1, 1]),
        ([(3, 0, 0)], (8, 1, 1), [8]),
    ],
)
def test_programs_stand_for_those_like_them(
    programs: list[tuple[int, int, int]], grid: tuple[int, int, int], wanted: list[float]
) -> None:
    assert weights(programs, grid).tolist() == wanted


@pytest.mark.parametrize(
    ("grid", "alike", "wanted"),
    [
        (
            (2, 6, 1),
            "abb",
            [6, 5, 1],
        ),  # the middle is at the end of the first dim; the second does not matter
        ((8, 2, 1), "abb", [8, 7, 1]),
        ((1, 2, 8), "abb", [8, 7, 1]),
        ((2, 6, 1), "abc", [5.5, 5, 1.5]),  # both matter: the last but along the first dim is like either
        ((8, 1, 1), "aab", [1, 6, 1]),
        ((8, 1, 1), "aaa", [1, 6, 1]),
        ((4, 4, 1), "aab", [1, 11, 4]),
    ],
)
def test_a_dim_of_two_has_its_last_in_the_middle(
    grid: tuple[int, int, int], alike: str, wanted: list[float]
) -> None:
    found = weights(chosen_programs(grid), grid, alike)
    assert found.tolist() == wanted
    assert found.sum() == math.prod(grid)
