"""Sums of ragged rows: equal segments of 64 to 4096 elements, and lengths by a power law."""

from __future__ import annotations

import importlib
from collections.abc import Sequence

import torch

import tilefold
from tilefold import monoids
from tilefold.bench import settings, traps
from tilefold.bench.cases import Case, Choice, Suite, Variant
from tilefold.bench.ours import last_plan_note
from tilefold.bench.peers import COMPILE_MODE, cub_call, imported
from tilefold.bench.segment_cases import SegmentCase, segment_case

EACH = (64, 128, 256, 512, 1024, 4096, 0)
ELEMENTS = {"full": 1 << 28, "small": 1 << 16}


def cases(size: str = "full") -> tuple[Case, ...]:
    """Every length in both dtypes."""
    return tuple(segment_case(ELEMENTS[size], each, dtype) for dtype in ("fp32", "bf16") for each in EACH)


def build_ours(case: Case, x: torch.Tensor) -> Sequence[Choice]:
    """`segment_reduce`."""
    assert isinstance(case, SegmentCase)
    offsets = case.offsets(x.device)
    return [Choice("default", lambda x: tilefold.segment_reduce(x, monoids.SUM, offsets))]


def build_scatter(case: Case, x: torch.Tensor) -> Sequence[Choice]:
    """A sum by keys into zeros, compiled: by atomics on a GPU."""
    assert isinstance(case, SegmentCase)
    keys = case.keys(x.device)
    count = case.result_shape[0]

    def scatter(x: torch.Tensor, keys: torch.Tensor) -> torch.Tensor:
        zeros = torch.zeros(count, dtype=torch.float32, device=x.device)
        return zeros.scatter_add_(0, keys, x.float()).to(x.dtype)

    compiled = traps.fresh_compile(scatter, mode=COMPILE_MODE)
    return [Choice("compiled", lambda x: compiled(x, keys))]


def build_cub(case: Case, x: torch.Tensor) -> Sequence[Choice]:
    """CUB's segmented reduction through cuda.compute, float32."""
    assert isinstance(case, SegmentCase)
    if case.dtype != "fp32":
        return []
    compute = imported("cuda.compute")
    numpy = importlib.import_module("numpy")
    offsets, first = case.offsets(x.device), numpy.array([0.0], dtype=numpy.float32)
    borders = {"start_offsets_in": offsets[:-1], "end_offsets_in": offsets[1:]}
    given = {"op": compute.OpKind.PLUS, "h_init": first, **borders}
    count = {"num_segments": case.result_shape[0]}
    return [Choice("make_segmented_reduce", cub_call(compute.make_segmented_reduce, case, x, given, count))]


OURS = Variant("ours", build_ours, warms=True, graphs=True, plan=last_plan_note)
SCATTER = Variant("scatter_add, compiled", build_scatter, gpu_only=True, warms=True, graphs=True)
CUB = Variant("cuda.compute", build_cub, gpu_only=True, asked_only=True)

SUITE = Suite(
    "segment",
    str(__doc__).strip(),
    cases,
    (OURS, SCATTER, CUB, *settings.variants_of(build_ours)),
    against=("torch", "cuda.compute"),
)
