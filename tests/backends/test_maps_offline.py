"""What the compiler made of maps, for the shapes of models: registers, vectors, and the sectors that are moved."""

from __future__ import annotations

import json
import math
import os
import re
import subprocess
from pathlib import Path
from typing import Any

import pytest
import torch
import triton

import tilefold
from asked import asked as asked_of
from asked import by_ptx, run
from tilefold import monoids
from tilefold.api.dispatch import lowered
from tilefold.api.reduce_map import kept
from tilefold.api.requests import RowMap
from tilefold.backends.triton import call as calls
from tilefold.backends.triton.lower import calls_of
from tilefold.functional.normalized import _norms, _shares
from tilefold.planner import blocks, maps, rings, spans
from tilefold.planner.chips import chip_of
from tilefold.planner.device import H200
from tilefold.planner.products.row import make_row_map
from tilefold.xray.compile.folds import job_of
from tilefold.xray.examine import examined
from tilefold.xray.machine.counts import global_cost
from tilefold.xray.machine.races import races
from tilefold.xray.render import words
from tilefold.xray.report import from_json
from xray.running import run_plan

BF16, FP32 = torch.bfloat16, torch.float32
SHAPES = [
    ("softmax", (16384, 8192), BF16, 1),
    ("softmax", (10000, 4099), BF16, 1),
    ("softmax", (2048, 151936), BF16, 1),
    ("softmax", (16384, 8192), BF16, 0),
    ("softmax", (4096, 50257), BF16, 1),
    ("softmax", (4096, 65536), FP32, 0),
    ("softmax", (4096, 65536), BF16, 0),
    ("rms_norm+residual", (16384, 8192), BF16, 1),
    ("rms_norm+residual", (17, 314141), BF16, 1),
    ("layer_norm+residual", (17, 400000), FP32, 1),
]
MORE = [
    (operation, shape, dtype, dim)
    for operation, dim in (("softmax", 1), ("softmax", 0), ("layer_norm+residual", 1), ("rms_norm", 1))
    for shape in ((32768, 256), (32768, 1024), (4096, 65536), (256, 1 << 20), (4096, 50257), (512, 777))
    for dtype in (BF16, FP32)
]


def request_of(
    operation: str, shape: tuple[int, ...], dtype: torch.dtype, dim: int
) -> tuple[RowMap, list[Any]]:
    """A map of tensors without memory."""
    x = torch.empty(shape, dtype=dtype, device="meta")
    if operation == "softmax":
        return asked(*kept(_shares, False), [x], [], dim)
    name, _, residual = operation.partition("+")
    biased = name == "layer_norm"
    weight = torch.empty(shape[-1], dtype=dtype, device="meta").expand(shape)
    norm = kept(_norms, name, shape[-1], 1e-5, (True, biased), bool(residual))
    return asked(*norm, [x] * (1 + bool(residual)), [weight] * (1 + biased), dim)


def asked(
    monoid: Any, apply: Any, tensors: list[Any], extras: list[Any], dim: int
) -> tuple[RowMap, list[Any]]:
    every = [*tensors, *extras]
    row = make_row_map(monoid.total, apply, tuple(t.dtype for t in tensors), tuple(t.dtype for t in extras))
    return RowMap(row, (dim,), "run_to_run", tuple(every[0].shape)), every


@pytest.mark.parametrize(
    ("operation", "shape", "dtype", "dim"),
    [*SHAPES, *(MORE if "TILEFOLD_RANDOM_PLANS" in os.environ else [])],
)
def test_nothing_is_spilled_and_vectors_are_whole(
    operation: str, shape: tuple[int, ...], dtype: torch.dtype, dim: int, tmp_path: Path
) -> None:
    request, tensors = request_of(operation, shape, dtype, dim)
    problem, plan = request.plan(tensors, H200, library=False)
    assert plan.strategy in ("whole", "windows", "fold and map")
    for call in calls_of(plan, problem, request.computation):
        compiled = calls.compile_for(call, 90)
        (tmp_path / "cubin").write_bytes(compiled.asm["cubin"])
        tool = [triton.knobs.nvidia.cuobjdump.path, "-res-usage", str(tmp_path / "cubin")]
        usage = subprocess.run(tool, capture_output=True, text=True, check=True).stdout
        found = re.search(r"STACK:(\d+)", usage)
        assert found is not None, usage
        assert int(found[1]) == 0, call.kernel
        wide = re.findall(r"st\.global[.\w:]*v4\.b32", compiled.asm["ptx"])
        narrow = getattr(plan.stages[0], "neighbours", 0) > 0  # a warp's threads then share a line
        assert wide or narrow or not call.kernel.startswith("map") or shape[-1] % 4, (
            "elements are stored in vectors of 16 bytes"
        )


def small_tiles(monkeypatch: pytest.MonkeyPatch, dtype: torch.dtype, warps: int = 1) -> None:
    """No program holds a row, and those of a cluster are small."""
    monkeypatch.setattr(rings, "ELEMENTS", ())
    monkeypatch.setattr(spans, "ELEMENTS", ())
    monkeypatch.setattr(maps, "THREAD_WORDS", 0)
    monkeypatch.setattr(blocks, "LANES", (32 * warps,))
    monkeypatch.setattr(blocks, "SHARED_LANES", 1)
    monkeypatch.setattr(blocks, "ELEMENTS", 16 if dtype == BF16 else 8)


@pytest.mark.parametrize(
    ("shape", "dtype", "dim", "cluster"),
    [
        ((6, 512), BF16, 1, 1),
        ((3, 1000), FP32, 1, 1),
        ((2, 16, 128), BF16, 1, 1),
        ((3, 1000), FP32, 1, 4),
        ((2, 4096), BF16, 1, 8),
        ((2, 4000), FP32, 1, 16),
    ],
    ids=str,
)
def test_each_sector_is_read_once_and_written_once(
    shape: tuple[int, ...], dtype: torch.dtype, dim: int, cluster: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    if cluster > 1:
        small_tiles(monkeypatch, dtype)
    x = torch.randn(shape).to(dtype)
    request, tensors = asked(*kept(_shares, False), [x], [], dim)
    problem, plan = request.plan(tensors, H200, library=False)
    assert plan.stages[0].splits == cluster
    results = [torch.empty(shape, dtype=dtype)]
    outcomes = run_plan(plan, problem, request.computation, tensors, results, 90)
    sectors = math.ceil(x.nbytes / 32)
    loads = global_cost(a for o in outcomes for a in o.accesses if a.kind != "store")
    stores = global_cost(a for o in outcomes for a in o.accesses if a.kind == "store")
    assert (loads.sectors, stores.sectors) == (sectors, sectors)
    assert not any(race.differing for o in outcomes for race in races(o))


@pytest.mark.parametrize(("length", "cluster"), [(1000, 8), (1024, 8), (2048, 16), (1001, 8)])
def test_clusters_hold_rows_of_whole_numbers(
    length: int, cluster: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Programs send states once all have begun: on the machine it is an error to send them to one that has not."""
    small_tiles(monkeypatch, FP32)
    monkeypatch.setattr(maps, "SHARED_TILES", ((1, 4),))
    x = torch.randint(-1000, 1000, (3, length), dtype=torch.int32)
    request, tensors, plan = asked_of(lambda: tilefold.reduce_map(x, monoids.MAX, lambda x, m: x - m, dim=1))
    assert (plan.stages[0].note[:11], plan.stages[0].splits) == ("shared_rows", cluster)
    assert torch.equal(run(request, tensors).results[0].view(x.shape), x - x.amax(1, True))


@pytest.mark.parametrize("name", ["layer_norm", "rms_norm"])
def test_a_program_may_hold_no_whole_vector(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The last of four has one element, which the first takes: what its own vectors would fold to is nothing."""
    small_tiles(monkeypatch, FP32)
    x, function = torch.randn(2, 769) + 3, getattr(tilefold, name)
    request, tensors, plan = asked_of(lambda: function(x, (769,)))
    assert (plan.stages[0].splits, plan.launched[0].kernel) == (4, "map_blocks")
    want = getattr(torch.nn.functional, name)(x.double(), (769,))
    torch.testing.assert_close(
        run(request, tensors).results[0].view(x.shape).double(), want, rtol=0, atol=1024 * 2.0**-24
    )


def test_the_report_names_clusters(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whole clusters are executed for the first, a middle and the last program, and those alone are counted."""
    small_tiles(monkeypatch, FP32, warps=2)
    request, tensors = request_of("softmax", (5, 1000), FP32, 1)
    problem, plan = request.plan(tensors, H200, library=False)
    (call,) = calls_of(plan, problem, request.computation)
    report = examined(job_of(call, "softmax", chip_of("sm_90"))).report
    assert "grid 6 in clusters of 2," in words.launch(report)
    assert report.programs == ((0, 0, 0), (3, 0, 0), (5, 0, 0))
    # A state of two words, those of both programs, and a barrier: beside what the launch gives.
    assert report.resources.shared >= 8 + 16 + 8
    assert not report.notes
    assert "needless-barrier" not in report.codes()
    document = json.loads(json.dumps(report.as_json()))
    assert from_json(document) == report
    del document["cluster"]
    assert from_json(document).cluster == 1


@pytest.mark.parametrize(
    ("shape", "every", "dims", "steps"),
    [
        ((64, 4096), 1, (0,), (4096, 4096)),
        ((16, 16, 4096), 2, (0, 1), (8192, 4096)),  # one dim, whose elements lie two rows apart
        ((4, 10, 8, 100), 1, (0, 2), ()),
    ],
)
def test_columns_beside_each_other_know_their_steps(
    shape: tuple[int, ...], every: int, dims: tuple[int, ...], steps: tuple[int, ...]
) -> None:
    """From an element to the next one of its row, in the input and the result; rows of several dims have no one step."""
    stored = (shape[0], every * shape[1], *shape[2:])
    x = torch.empty(stored, dtype=BF16, device="meta")[:, ::every]
    monoid, apply = kept(_shares, False)
    row = make_row_map(monoid.total, apply, (BF16,), ())
    request = RowMap(row, dims, "run_to_run", tuple(x.shape))
    _, (call,) = lowered(request, [x], H200)
    constants = dict(call.constants)
    assert constants["NEIGHBOURS"]
    assert constants["STEPS"] == steps


def test_a_row_has_the_same_bits_beside_fewer_rows() -> None:
    """Where a sum could be fused with either of two products, the compiler chose by the number of rows."""
    generator = torch.Generator().manual_seed(0)

    def made(rows: torch.Tensor) -> torch.Tensor:
        return by_ptx(lambda: tilefold.normalize(rows, 3.0, 0, guarantee="batch_invariant"))[0]

    for _ in range(8):
        x = torch.randn(81, generator=generator)[1:].view(5, 1, 8, 2).permute(0, 3, 1, 2)
        assert torch.equal(made(x)[:, :1], made(x[:, :1]))
