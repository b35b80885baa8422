"""Every code of an observation is raised by a kernel that has the fault, at its line, and not by its clean twin."""

from __future__ import annotations

import inspect
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tilefold import xray
from tilefold.xray.observe import CODES
from xray.observe.planted import FILLS, PLANTED, XY, Plant, leave_a_part, take_turns
from xray.versions import TRITON

# Later Tritons put barriers of their own around an atomic: beside the kernel's, one of two is needless.
GUARDED = TRITON != (3, 6)
PAGE = Path(__file__).parents[3] / "docs" / "xray.md"


def explain(plant: Plant, **changes: Any) -> xray.Report:
    straight = np.arange(128, dtype=np.int32)
    tables = {"@straight": straight, "@conflict": straight * 32 % 128}
    args = {
        name: tables.get(given, given) if isinstance(given, str) else given
        for name, given in plant.args.items()
    }
    return xray.explain(plant.kernel, args, plant.constants, **{**plant.options, **changes})


def test_every_code_is_planted() -> None:
    assert set(PLANTED) == set(CODES)


@pytest.mark.parametrize("code", sorted(PLANTED))
def test_a_planted_fault_is_found_at_its_line(code: str) -> None:
    plant = PLANTED[code][0]
    report = explain(plant)
    found = [o for o in report.observations if o.code == code]
    assert found, report.notes
    if plant.line:
        lines, first = inspect.getsourcelines(plant.kernel.fn)
        (wanted,) = [first + i for i, text in enumerate(lines) if plant.line in text]
        assert wanted in [line for o in found for line in o.lines]
    for o in found:
        assert o.severity in ("error", "warning", "note")
        assert re.search(r"\d", o.evidence), "evidence is numbers"
        assert o.reason
        assert o.change


@pytest.mark.parametrize("code", sorted(PLANTED))
def test_the_clean_twin_has_no_such_fault(code: str) -> None:
    report = explain(PLANTED[code][1])
    assert code not in report.codes(), [o for o in report.observations if o.code == code]


def test_a_lock_needs_its_order_and_its_barrier() -> None:
    codes = explain_with_place(take_turns, "lock_ptr").codes()
    assert "strong-atomic" not in codes
    assert ("needless-barrier" in codes) == GUARDED


def test_a_counter_may_publish_what_was_stored_before() -> None:
    report = explain_with_place(leave_a_part, "counter_ptr")
    (found,) = [o for o in report.observations if o.code == "strong-atomic"]
    assert found.severity == "note"
    assert "release" in found.change
    assert found.cycles_at_stake == 32 * 4  # an access of memory for each program
    assert ("needless-barrier" in report.codes()) == GUARDED


def explain_with_place(kernel: Any, name: str) -> xray.Report:
    return xray.explain(kernel, {**XY, name: np.zeros(1, np.int32)}, {"BLOCK": 256}, grid=4)


@pytest.mark.parametrize(("plant", "wrong"), FILLS.values(), ids=list(FILLS))
def test_a_fill_is_wrong_if_it_changes_the_result(plant: Plant, wrong: bool) -> None:
    assert ("wrong-fill" in explain(plant, run=False).codes()) == wrong


def test_the_page_documents_the_same_codes() -> None:
    rows = re.findall(r"^\| `([a-z0-9-]+)` \|", PAGE.read_text(encoding="utf-8"), re.MULTILINE)
    assert rows == sorted(CODES)


def test_observations_come_in_order() -> None:
    ranks = [
        ["error", "warning", "note"].index(o.severity) for o in explain(PLANTED["wrong-fill"][0]).observations
    ]
    assert ranks == sorted(ranks)


@pytest.mark.parametrize(
    ("n", "reason"),
    [(1000, r"divisibility: with n a multiple"), (1001, "mask: without it the access is 16 bytes")],
)
def test_why_an_access_is_narrow(n: int, reason: str) -> None:
    found = explain(
        Plant(
            PLANTED["scalar-access"][0].kernel, {**PLANTED["scalar-access"][0].args, "n": n}, {"BLOCK": 1024}
        )
    )
    (one,) = [o for o in found.observations if o.code == "scalar-access"]
    assert re.match(reason, one.reason)
    assert len(one.lines) == 2, "the load and the store have one cause"
