"""The case book is what the X-ray says."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path
from types import ModuleType

import pytest
import triton

FOLDER = Path(__file__).parents[2] / "examples" / "casebook"


@pytest.fixture(scope="module")
def book() -> ModuleType:
    sys.path.insert(0, str(FOLDER))
    for name in ("kernels", "cases"):  # other files of these names may have been imported
        sys.modules.pop(name, None)
    specification = importlib.util.spec_from_file_location("casebook", FOLDER / "book.py")
    assert specification is not None
    assert specification.loader is not None
    module = importlib.util.module_from_spec(specification)
    specification.loader.exec_module(module)
    return module


def test_the_page_is_what_the_xray_says(book: ModuleType) -> None:
    """Its numbers are of one Triton; with another, the answers are still given."""
    page, made = book.PAGE.read_text(encoding="utf-8"), book.book()
    if f"Triton {triton.__version__}." in page:
        assert made == page, "run: make case-book"
    assert made.count("*Now, ") == len(book.CASES) == 18


def test_no_case_has_an_error_and_all_are_executed(book: ModuleType) -> None:
    for case in book.CASES:
        for name, report in book.reports_of(case, "sm_90").items():
            assert report.executed, (name, report.notes)
            assert not [o for o in report.observations if o.severity == "error"], name
