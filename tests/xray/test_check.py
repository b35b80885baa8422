"""Demands on kernels, and the library's own kernels held to them."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch

from plans import product_calls
from tilefold import xray
from tilefold.planner.chips import chip_of
from tilefold.planner.products.epilogue import make_epilogue
from tilefold.planner.products.operands import canonical_product
from tilefold.planner.products.plan import Candidate, Finish, Tile
from tilefold.xray.check import UnmetError
from tilefold.xray.compile import Job
from tilefold.xray.compile.folds import job_of
from tilefold.xray.examine import examined
from xray.observe import planted

pytest_plugins = ["tilefold.xray.pytest_plugin"]
XY = {"x_ptr": "*fp32", "y_ptr": "*fp32"}


def test_a_kernel_that_meets_all_demands() -> None:
    report = xray.check(
        planted.copy, {**XY, "n": 4096}, {"BLOCK": 1024}, grid=4, vector_bytes=16, no_spill=True, no_conflict=True,
        wasted_sectors=0.0, occupancy=0.5, executed=True, without=("wrong-fill", "scalar-access"),
    )  # fmt: skip
    assert xray.check(report, vector_bytes=16) is report


@pytest.mark.parametrize(
    ("code", "demand", "said"),
    [
        (
            "scalar-access",
            {"vector_bytes": 16},
            r"line \d+: loads of 16 bytes were asked for, got 4 with 32 bytes a thread",
        ),
        ("spill", {"no_spill": True}, r"no spills were allowed, got \d+ bytes a thread"),
        (
            "bank-conflict",
            {"no_conflict": True},
            r"line \d+: no bank conflict was allowed, got \d+ passes where",
        ),
        ("wasted-sectors", {"wasted_sectors": 0.1}, r"at most 10% of sectors might be wasted, got \d+%"),
        (
            "occupancy",
            {"occupancy": 0.5},
            r"at least 50% of an SM's warps were asked for, got \d+%, limited by",
        ),
        ("wrong-fill", {"without": ("wrong-fill",)}, r"line \d+: no wrong-fill was allowed: masked elements"),
    ],
)
def test_an_unmet_demand_is_said(code: str, demand: dict[str, object], said: str) -> None:
    from xray.observe.test_planted import explain

    report = explain(planted.PLANTED[code][0])
    with pytest.raises(UnmetError, match=said) as caught:
        xray.check(report, **demand)
    assert caught.value.report is report


def test_an_execution_that_was_not_possible_is_unmet() -> None:
    with pytest.raises(
        UnmetError, match="programs were to be executed: Not executed: executing needs a value"
    ):
        xray.check(planted.copy, {**XY, "n": "i32"}, {"BLOCK": 128}, executed=True)


def test_the_fixture_shows_the_report(
    xray_check: Callable[..., xray.Report], request: pytest.FixtureRequest
) -> None:
    with pytest.raises(UnmetError, match="got 4 with 32"):
        xray_check(planted.copy, {**XY, "n": 1001}, {"BLOCK": 1024}, vector_bytes=16)
    (section,) = [text for _, name, text in request.node._report_sections if name == "tilefold xray"]
    assert "who holds what" in section
    request.node._report_sections.clear()


# ------------------------------------------------------------------------------------------- the library's kernels

ROWS = ("sum dim=1 16384x8192 bf16", "logsumexp dim=1 16384x8192 bf16", "argmax dim=1 4096x65536 fp32",
        "welford dim=1 32768x1024 bf16", "describe dim=1 4096x65536 fp32", "bitwise_or dim=1 8388608x16 i64",
        "sum dim=1 16777216x8 bf16", "argmax dim=1 1048576x64 bf16", "sum dim=1 301x1001 bf16")  # fmt: skip
COLUMNS = ("sum dim=0 16384x8192 fp32", "max dim=0 32768x1024 bf16")
WRONG = ("wrong-fill", "out-of-bounds", "offset-overflow", "redundant-threads", "idle-warps", "small-axis-shuffles",
         "strong-atomic", "per-element-atomic", "tf32-dot", "scalar-access", "wasted-sectors")  # fmt: skip


@pytest.mark.parametrize("target", ["sm_80", "sm_90"])
@pytest.mark.parametrize("fold", [*ROWS, *COLUMNS])
def test_folds_read_whole_vectors_and_waste_nothing(fold: str, target: str) -> None:
    one = [(0, 0, 0)] if fold in COLUMNS else None  # a program of columns reads hundreds of tiles
    first, *_ = xray.explain_fold(fold, target=target, programs=one)
    xray.check(
        first, vector_bytes=16, no_spill=True, no_conflict=fold in ROWS, wasted_sectors=0.1, occupancy=0.2, executed=True,
        without=WRONG,
    )  # fmt: skip


@pytest.mark.parametrize("fold", [*ROWS, *COLUMNS])
def test_folds_on_the_newest_chip(fold: str) -> None:
    """The static part: nothing of sm_100 is executed here."""
    for report in xray.explain_fold(fold, target="sm_100", run=False):
        xray.check(
            report, no_spill=True, occupancy=0.2, without=("wrong-fill", "offset-overflow", "strong-atomic")
        )


TILES = {
    "split": Candidate("split", Tile(64, 64, 64, 4, 3), 2, Finish(128, 1, 1)),
    "whole": Candidate("whole", Tile(64, 128, 64, 4, 3)),
}


def product_jobs(plan: str, target: str) -> list[Job]:
    """The launches of relu(a @ b) in bf16, a of 64 rows."""
    a, b = (torch.empty(n, m, dtype=torch.bfloat16, device="meta") for n, m in ((64, 512), (512, 256)))
    ending = make_epilogue("relu", None, (), torch.bfloat16, torch.float32)
    made = product_calls(TILES[plan], canonical_product(a, b, []), ending)
    return [job_of(call, f"{plan}, launch {i}", chip_of(target)) for i, call in enumerate(made)]


@pytest.mark.parametrize("target", ["sm_80", "sm_90", "sm_100"])
@pytest.mark.parametrize("plan", list(TILES))
def test_products_run_on_tensor_cores_and_waste_nothing(plan: str, target: str) -> None:
    static = target == "sm_100"
    reports = [examined(job, [(0, 0, 0)], run=not static).report for job in product_jobs(plan, target)]
    for report in reports:
        xray.check(
            report, no_spill=True, wasted_sectors=0.0, executed=not static,
            without=("no-tensor-core", "wrong-fill", "out-of-bounds", "offset-overflow", "strong-atomic",
                     "per-element-atomic", "bank-conflict", "wasted-sectors", "scalar-access"),
        )  # fmt: skip
    if not static:
        assert reports[0].totals.work is not None
        assert reports[0].totals.work.tensor > 0
