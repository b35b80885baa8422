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
    assert total["reported"] == total["tried"]
    assert total["agrees"] >= 45


def test_what_does_not_agree_has_a_reason(page: Any, results: dict[str, Any]) -> None:
    wrong = {(c["package"], c["case"]) for c in results["cases"] if not page.agrees(c)}
    assert wrong == set(page.REASONS)
