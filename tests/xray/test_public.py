"""The committed results of `benchmarks/xray_public`, and the page made of them."""

from __future__ import annotations

import importlib.util
import json
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def page() -> Any:
    spec = importlib.util.spec_from_file_location("public_page", ROOT / "benchmarks/xray_public/page.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture(scope="module")
def results() -> dict[str, Any]:
    found: dict[str, Any] = json.loads((ROOT / "benchmarks/xray_public/results.json").read_text())
    return found


def test_the_page_is_made_of_the_results(page: Any, results: dict[str, Any]) -> None:
    assert (ROOT / "docs/xray-public.md").read_text() == page.page(results)


def test_most_kernels_are_executed_and_right(page: Any, results: dict[str, Any]) -> None:
    total: Counter[str] = sum(page.counts(results).values(), Counter())
    assert total["tried"] >= 60
    # A kernel of Triton 2.0 does not compile with this one.
    assert total["reported"] == total["tried"] - 1
    assert total["agrees"] >= 45


def test_what_does_not_agree_has_a_reason(page: Any, results: dict[str, Any]) -> None:
    wrong = {(c["package"], c["case"]) for c in results["cases"] if not page.agrees(c)}
    assert wrong == set(page.REASONS)


def test_every_claim_about_a_checkout_is_labelled(page: Any, results: dict[str, Any]) -> None:
    """Errors are all true, warnings to 95 %, as they are said now."""
    labels = {page.label_of(x): x for x in results["labels"]}
    now = page.claims(results)
    assert len(now) >= 60
    assert set(now) <= set(labels)
    true = {key: labels[key].get("now", labels[key]["true"]) for key in now}
    assert all(true[key] for key, claim in now.items() if claim["severity"] == "error")
    assert sum(true.values()) >= 0.95 * len(true)
    assert all(x.get("why") for x in labels.values() if not x["true"])


def test_what_is_said_of_kernels_that_nothing_was_made_with_is_true(page: Any) -> None:
    sets = json.loads(page.UNSEEN.read_text())
    for unseen, kernels in zip(sets, (40, 36, 42, 42, 47, 52, 52, 40, 48), strict=True):
        now = [x for x in unseen["labels"] if x.get("after")]  # of sets that were judged again
        assert sum(count for _, _, count in unseen["sources"].values()) == kernels
        assert all(x["true_after"] for x in now if x["severity"] == "error")
        assert sum(x["true_after"] for x in now) >= 0.95 * len(now)
        assert all(x.get("why") for x in unseen["labels"] if not x["true"])


def test_faults_put_into_kernels_of_others_are_found(results: dict[str, Any]) -> None:
    assert len(results["planted"]) >= 12
    assert all(x["found"] and not x["said_of_the_clean_one"] for x in results["planted"])


def test_no_line_of_others_is_kept(results: dict[str, Any]) -> None:
    kept = {"code", "severity", "file", "line", "also", "evidence", "reason", "change"}
    claims = [c for case in results["cases"] for x in case["launches"] for c in x.get("claims", ())]
    assert claims
    assert all(set(c) == kept for c in claims)
