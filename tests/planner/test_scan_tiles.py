"""What is planned for scans: tiles of rows and of columns, shares, sums, and vectors of rows that begin anywhere."""

from __future__ import annotations

import itertools
import random
from dataclasses import replace
from typing import Any

import pytest
import torch

import tilefold
from asked import asked
from sanitize import LOOK_BACK, SHARES
from scanned import POSITIONS, from_behind_a_vector
from tilefold import monoids
from tilefold.algebra import program as programs
from tilefold.algebra.monoid import Monoid
from tilefold.planner import scans
from tilefold.planner.device import H200
from tilefold.planner.stages.scans import ScanTile, Work


def tile_of(
    shape: tuple[int, ...],
    dim: int,
    dims: tuple[int, ...] | None = None,
    guarantee: str = "run_to_run",
    monoid: Monoid = monoids.SUM,
) -> ScanTile:
    """The planner's tile of a scan over `dim` of float32 elements, permuted to `dims`."""
    x = torch.empty(shape, device="meta").permute(dims or tuple(range(len(shape))))
    program = programs.specialize(monoid.total, (torch.float32,))
    plan = scans.plan_scan(scans.scan_problem([x], dim, guarantee), program, Work(), H200, guarantee)
    tile = plan.launched[0].settings
    assert isinstance(tile, ScanTile)
    return tile


def test_what_columns_that_begin_between_vectors_and_permuted_inputs_take() -> None:
    assert tile_of((600, 20000, 3), 1).chunk == 1  # a row is less than a sector
    assert tile_of((600, 20000, 11), 1).chunk > 1
    assert tile_of((600, 20000, 4), 1).chunk > 1  # vectors
    assert tile_of((600, 20000, 3), 1, guarantee="batch_invariant").chunk > 1
    assert tile_of((3333, 9001), 0).lines == 128
    assert not tile_of((100, 2000, 333), 1).flat
    assert tile_of((64, 3001, 129), 1).flat  # a third of the lanes would be idle
    assert not tile_of((64, 3001, 128), 1).flat
    assert tile_of((5000, 70, 120), 2, (1, 2, 0)).stored == 16
    assert tile_of((5000, 70, 120), 0).stored == 1
    assert tile_of((300, 70, 120), 0, monoid=monoids.LOGSUMEXP).stored == 8  # chunks of more than 16
    assert tile_of((16, 70, 120), 0, monoid=monoids.LOGSUMEXP).stored == 4
    assert tile_of((5000, 70, 120), 0, monoid=monoids.MAX).stored == 1
    beside = tile_of((60, 128, 5000), 1, (0, 2, 1))
    assert (beside.by_rows, beside.lines, beside.num_warps, beside.shares) == (True, 32, 8, 0)
    odd = tile_of((60, 128, 5001), 1, (0, 2, 1))
    assert (odd.by_rows, odd.lines, odd.length, odd.num_warps) == (True, 8, 512, 4)
    few = tile_of((60, 60, 5000), 1, (0, 2, 1))  # too few for a wide one on each SM
    assert (few.by_rows, few.lines, few.num_warps, few.shares) == (True, 16, 4, 0)
    assert tile_of((2, 20, 1 << 20), 1, (0, 2, 1)).shares > 0
    assert tile_of((60, 128, 5000), 1, (0, 2, 1), "batch_invariant").lines == 1


def test_what_short_columns_take() -> None:
    """Four warps of columns that threads hold whole, several where states are small; one where columns are few."""
    wide = tile_of((14, 5, 345_179), 1)
    assert (wide.lines, wide.length, wide.num_warps, wide.run) == (512, 5, 4, 1)
    assert tile_of((14, 16, 345_179), 1).lines == 256
    assert (tile_of((14, 8, 345_176), 1).lines, tile_of((14, 8, 345_176), 1).run) == (512, 4)
    assert tile_of((14, 5, 345_179), 1, guarantee="batch_invariant").num_warps == 1
    assert tile_of((2, 5, 3001), 1).num_warps == 1
    assert tile_of((29_031, 8, 47), 1).lines == 32  # lanes would idle


def test_whole_columns_are_in_chunks_of_their_length() -> None:
    """Chunks have any size; of few columns fewer are a thread's, or several threads have chunks of each."""
    few = tile_of((19, 100_000), 0)
    assert (few.lines, few.length, few.chunk, few.run, few.shares) == (64, 16, 16, 2, 0)
    assert tile_of((19, 1_000_000), 0).chunk == 16  # a whole one and one in part
    assert tile_of((33, 1_000_000), 0, monoid=monoids.CUMMAX).chunk == 11  # three of a walk
    assert tile_of((99, 1_000_000), 0, monoid=monoids.CUMMAX).chunk == 16
    parted = tile_of((7, 119, 2648), 1)
    assert (parted.lines, parted.length, parted.chunk, parted.shares) == (16, 120, 15, 0)
    assert tile_of((140, 20_000), 0).length == 144
    assert tile_of((119, 20_000), 0, guarantee="batch_invariant").length == 120


def test_rows_whose_results_are_neighbours_along_a_far_dim() -> None:
    """A program then has rows that lie apart and whose results do not."""
    x = torch.empty((6, 40, 9000, 8), device="meta").permute(2, 3, 0, 1)
    assert [d.output for d in scans.scan_problem([x], 1, "run_to_run").output_dims] == [1920, 1]
    assert [d.output for d in scans.scan_problem([x], 1, "batch_invariant").output_dims] == [1, 1920]
    assert tile_of((6, 40, 9000, 8), 1, (2, 3, 0, 1)).lines == 256  # a chunk a thread
    short = torch.empty((6, 40, 9000, 7), device="meta").permute(2, 3, 0, 1)  # less than a sector
    few = torch.empty((7, 9000, 8), device="meta").permute(1, 2, 0)  # neighbours are less than a sector
    for x in (short, few):
        assert scans.scan_problem([x], 1, "run_to_run").output_dims[0].output == 1


def test_short_odd_rows_are_none_of_vectors_where_those_would_double_the_tile() -> None:
    def tile(length: int, dtype: torch.dtype, monoid: Monoid = monoids.SUM) -> ScanTile:
        x = torch.empty((30_000, length), dtype=dtype, device="meta")
        program = programs.specialize(monoid.total, (dtype,))
        problem = scans.scan_problem([x], 1, "run_to_run")
        (found,) = scans.plan_scan(problem, program, Work(), H200, "run_to_run").stages
        assert isinstance(found, ScanTile)
        return found

    for length, align in ((9, 1), (13, 1), (23, 8), (27, 1), (45, 8), (63, 1), (600, 1), (601, 8)):
        assert tile(length, torch.bfloat16).align == align, length
    for dtype, monoid, lines in (
        (torch.int8, monoids.SUM, 512),  # two words a state
        (torch.int8, monoids.MAX, 1024),
        (torch.int16, monoids.SUM, 512),
        (torch.int16, POSITIONS, 256),
    ):
        assert tile(7, dtype, monoid).lines == lines
    for length, align in ((5, 4), (7, 1), (13, 4), (37, 4), (63, 1)):
        assert tile(length, torch.float32).align == align, length
    assert tile(9, torch.bfloat16, monoids.MAX_WITH_INDEX).align == 8
    assert (tile(13, torch.bfloat16).chunk, tile(13, torch.bfloat16, monoids.MAX_WITH_INDEX).chunk) == (8, 16)


def test_columns_of_which_few_are_neighbours_are_counted_across_the_groups() -> None:
    """A thread has one column, of neither vectors nor rows that are less than a sector."""
    for shape, chunk in (
        ((1_000_000, 8, 4), 8),
        ((1_000_000, 3, 2), 3),
        ((500_000, 8, 5), 8),
        ((500_000, 11, 5), 11),
        ((300_000, 16, 16), 16),
    ):
        found = tile_of(shape, 1)
        assert (found.lines, found.length, found.chunk, found.run) == (128, chunk, chunk, 1)
        assert (found.num_warps, found.flat) == (4, True)
    assert not tile_of((29_031, 8, 47), 1).flat
    assert not tile_of((60, 8, 4), 1).flat  # too few programs
    assert not tile_of((200_000, 30, 6), 1).flat  # longer ones take 1.3 times as long so
    assert not tile_of((1_000_000, 8, 4), 1, guarantee="batch_invariant").flat


def test_short_rows_in_groups_of_a_few_are_counted_across_the_groups() -> None:
    few, many = (torch.empty((9000, 300, 16), device="meta")[:, 5 : 5 + n] for n in (19, 128))
    long = torch.empty((9000, 24, 2000), device="meta")[:, 5:13]
    for x, flat in ((few, True), (many, False), (long, False)):
        for guarantee in ("run_to_run", "batch_invariant"):
            problem = scans.scan_problem([x], 2, guarantee)
            assert problem.output_dims[0].size == 9000
            program = programs.specialize(monoids.SUM.total, (torch.float32,))
            assert scans.plan_scan(problem, program, Work(), H200, guarantee).stages[0].flat == flat


def test_what_shared_rows_and_columns_take() -> None:
    def tile(
        rows: int, length: int, dtype: torch.dtype = torch.float32, monoid: Monoid = monoids.SUM, dim: int = 1
    ) -> ScanTile:
        x = torch.empty((rows, length), dtype=dtype, device="meta")
        program = programs.specialize(monoid.total, (dtype,))
        problem = scans.scan_problem([x], dim, "run_to_run")
        found = scans.plan_scan(problem, program, Work(), H200, "run_to_run").stages[0]
        assert isinstance(found, ScanTile)
        return found

    many = tile(2048, 1 << 17)
    assert (many.shares, many.band, many.group, many.groups, many.split) == (16, 4, 128, 1, False)
    assert tile(2048, (1 << 17) + 4).shares == 0  # not whole
    assert tile(2048, 1 << 17, torch.bfloat16).shares == 0
    assert tile(3000, 4096, torch.bfloat16).num_warps == 1
    assert tile(1500, 4096, torch.bfloat16).num_warps == 2  # fewer warps an SM leave memory idle
    assert tile(1500, 4096, torch.bfloat16, monoid=monoids.CUMMAX).num_warps == 1
    assert tile(200, 1 << 15).band == 4
    assert tile(132 * 16, 1 << 14).shares == 0  # few of a row
    assert tile(132, 1 << 17).shares == 0  # few in all
    ragged = tile(100, 500_001)
    assert (ragged.align, ragged.band, ragged.split, ragged.registers) == (4, 4, True, 128)
    lone = tile(5, 4_000_004)
    assert (lone.align, lone.band, lone.split, lone.registers) == (1, 0, True, 0)
    assert not tile(5, 4_000_004, monoid=monoids.CUMMAX).split
    assert (tile(64, 1 << 18, monoid=monoids.CUMMAX).group, tile(64, 1 << 18).band) == (128, 4)
    assert tile(1 << 20, 56, torch.bfloat16, dim=0).lines == 64
    assert tile(1 << 20, 40, torch.bfloat16, dim=0).lines == 16  # lanes would idle
    assert tile(20_000, 64, torch.bfloat16, dim=0).lines == 16  # few shares
    sums = tile(4096, 4096, monoid=monoids.LOGSUMEXP, dim=0)
    assert (sums.lines, sums.num_warps, sums.ahead) == (32, 8, True)  # one program on each SM
    assert not tile(4096, 8192, monoid=monoids.LOGSUMEXP, dim=0).ahead
    narrow = tile(4096, 8192, torch.bfloat16, monoid=monoids.LOGSUMEXP, dim=0)
    assert (narrow.lines, narrow.num_warps, narrow.ahead) == (32, 8, True)
    assert tile(7000, 3000, monoid=monoids.LOGSUMEXP, dim=0).shares == 0  # 94 programs for 132 SMs
    assert tile(7000, 3000, torch.bfloat16, dim=0).shares == 0
    assert tile(7000, 1500, monoid=monoids.LOGSUMEXP, dim=0).lines == 16
    assert tile(7000, 900, monoid=monoids.LOGSUMEXP, dim=0).shares > 0
    few = tile(5, 4_000_000, monoid=monoids.LOGSUMEXP)
    assert (few.length, few.chunk, few.group) == (8192, 16, 128)
    assert tile(64, 1 << 18, torch.bfloat16, monoid=monoids.LOGSUMEXP).group == 128


def test_what_is_planned_as_sums_and_what_is_aligned() -> None:
    def tile(
        shape: tuple[int, ...], dtype: torch.dtype = torch.float32, dim: int = 1, **options: Any
    ) -> ScanTile:
        x = torch.empty(shape, dtype=dtype)[:, : options.pop("columns", None)]
        guarantee = options.pop("guarantee", "run_to_run")
        work = options.pop("work", Work())
        program = programs.specialize(monoids.LOGSUMEXP.total, (dtype,))
        problem = scans.scan_problem([x], dim, guarantee)
        found = scans.plan_scan(problem, program, work, H200, guarantee).stages[0]
        assert isinstance(found, ScanTile)
        return found

    assert tile((8, 1024)).sums
    assert not tile((8, 1024), torch.float64).sums
    assert not tile((8, 1024), work=Work(exclusive=True)).sums
    assert tile((8, 1027)).align == 4
    assert tile((8, 1027), torch.bfloat16).align == 8
    assert tile((8, 1024)).align == 1
    assert tile((8, 1026)).align == 1  # two elements at once
    assert tile((8, 1027), guarantee="batch_invariant").align == 1
    assert tile((8, 1029), columns=1027).align == 1  # results begin elsewhere
    assert tile((1027, 9), dim=0).align == 1


def test_which_rows_are_read_from_behind_vectors() -> None:
    def found(
        shape: tuple[int, int], shift: int, dtype: torch.dtype = torch.bfloat16, **options: Any
    ) -> tuple[int, ...]:
        guarantee = options.pop("guarantee", "run_to_run")
        x = from_behind_a_vector(shape, shift, dtype, **options)
        program = programs.specialize(monoids.SUM.total, (dtype,))
        tile = scans.plan_scan(
            scans.scan_problem([x], 1, guarantee), program, Work(), H200, guarantee
        ).stages[0]
        assert isinstance(tile, ScanTile)
        return tile.align, *(tile.shift or (0,))

    assert found((8, 336), 7) == (1, 7)
    assert found((8, 336), 2) == (1, 2)
    assert found((8, 333), 7) == (8, 7)
    assert found((8, 336), 3, torch.float32) == (1, 3)
    assert found((8, 333), 0) == (8, 0)
    assert found((8, 336), 4) == (1, 0)  # four elements at once
    assert found((8, 336), 7, beside=3) == (1, 0)  # results begin elsewhere
    assert found((8, 336), 7, beside=8) == (1, 7)
    assert found((8, 336), 7, guarantee="batch_invariant") == (1, 0)
    pair = [from_behind_a_vector((8, 336), shift, torch.bfloat16) for shift in (0, 7)]
    summed = tilefold.Monoid(lambda a, b: a + b, 0, lift=lambda x, y: x + y, commutative=True)
    program = programs.specialize(summed.total, (torch.bfloat16,) * 2)
    problem = scans.scan_problem(pair, 1, "run_to_run")
    (both,) = scans.plan_scan(problem, program, Work(), H200, "run_to_run").stages
    assert isinstance(both, ScanTile)
    assert (both.align, both.shift) == (1, (0, 7))


@pytest.mark.parametrize(("which", "shape", "dim"), LOOK_BACK, ids=str)
def test_more_shares_than_a_chip_runs(which: str, shape: tuple[int, ...], dim: int) -> None:
    """What the sanitizer is given of look-back, on the chips that there are: an H200 runs at most 2112 of four warps."""
    monoid = monoids.AFFINE if which == "affine" else monoids.CUMMAX
    tensors = [torch.empty(shape, device="meta")] * monoid.algebra.inputs
    program = programs.specialize(monoid.total, (torch.float32,) * len(tensors))
    problem = scans.scan_problem(tensors, dim, "run_to_run")
    for device in (H200, replace(H200, sms=114), replace(H200, sms=148, capability=100)):
        (found,) = scans.plan_scan(problem, program, Work(), device, "run_to_run").stages
        assert isinstance(found, ScanTile)
        assert found.shares > SHARES


@pytest.mark.parametrize("shape", [(31,), (4, 100), (3, 40, 5), (2, 3000, 70), (5, 9000)], ids=str)
def test_sides_of_tiles_are_powers_of_two_whatever_inputs_have_together(shape: tuple[int, ...]) -> None:
    """Two inputs of other widths: elements of 3, 5, 6 or 9 bytes together."""
    total = tilefold.Monoid(lambda a, b: a + b, 0, lift=lambda x, y: x, commutative=True)
    widths = (torch.bool, torch.bfloat16, torch.float32, torch.float64)
    for dtypes in itertools.product(widths, repeat=2):
        tensors = tuple(torch.empty(shape, dtype=dtype, device="meta") for dtype in dtypes)
        for dim in range(len(shape)):
            plan = asked(lambda tensors=tensors, dim=dim: tilefold.scan(tensors, total, dim))[2]
            sides = [n for t in plan.stages for n in (t.lines, t.length // t.chunk, t.run, t.stored)]
            assert [n for n in sides if n & (n - 1)] == [], plan.note


@pytest.mark.parametrize("monoid", [monoids.SUM, monoids.CUMMAX, monoids.AFFINE], ids=lambda m: m.name)
def test_columns_that_threads_walk_are_held_by_their_registers(monoid: Monoid) -> None:
    """Of results whose neighbours lie along another dim than neighbouring elements do."""
    tiled = 0
    shapes = ((64, 40, 9000, 8), (6, 40, 9000, 8), (500, 7, 300, 32))
    for shape, order in itertools.product(shapes, ((2, 3, 0, 1), (0, 3, 2, 1))):
        x = torch.empty(shape, device="meta").permute(order)
        for dim in range(4):
            plan = asked(lambda x=x, dim=dim: tilefold.scan([x] * monoid.algebra.inputs, monoid, dim))[2]
            for tile in plan.stages:
                if getattr(tile, "near", 0):
                    tiled += 1
                    columns = tile.lines // (32 * tile.num_warps)
                    assert columns in (1, 2, 4)
                    assert tile.chunk * columns <= 48
                    assert tile.chunk <= x.shape[dim]
    assert tiled


def test_a_store_has_no_more_results_of_a_chunk_than_the_kernel_joins() -> None:
    """Bytes whose results lie across them: a chunk of 64 was one store, of which the kernel wrote nothing."""
    draw = random.Random(7)
    seen = set()
    for _ in range(400):
        dims = [draw.choice((1, 3, 5, 17, 64, 130, 300, 1000, 4099)) for _ in range(draw.choice((2, 3)))]
        order = draw.sample(range(len(dims)), len(dims))
        dtype = draw.choice(
            (torch.bool, torch.uint8, torch.int16, torch.bfloat16, torch.float32, torch.int64)
        )
        monoid = draw.choice((monoids.SUM, monoids.MAX, monoids.LOGSUMEXP, monoids.AFFINE))
        dtypes = (dtype,) * monoid.total.inputs
        xs = [torch.empty(dims, dtype=dtype, device="meta").permute(order) for _ in dtypes]
        problem = scans.scan_problem(xs, draw.randrange(len(dims)), "run_to_run")
        program = programs.specialize(monoid.total, dtypes)
        for tile in scans.plan_scan(problem, program, Work(), H200, "run_to_run").stages:
            if isinstance(tile, ScanTile):
                assert 0 < tile.stored <= min(tile.chunk, 63), (dims, order, dtype, monoid)
                seen.add(tile.stored)
    assert 32 in seen
