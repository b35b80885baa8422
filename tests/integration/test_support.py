"""The page of what each operation does in each of torch's modes is true."""

from __future__ import annotations

import pytest

import support
import tilefold

NO_OPERATIONS = {
    "Monoid",
    "__version__",
    "backend",
    "describe",
    "explain_plan",
    "last_plan",
    "math",
    "monoids",
    "nn",
}
PAGE = support.table(support.PAGE.read_text())


def test_the_page_has_every_public_operation() -> None:
    assert set(support.ROWS) == set(tilefold.__all__) - NO_OPERATIONS
    assert {name for name, _ in PAGE} == set(support.ROWS)


@pytest.mark.parametrize("name", support.ROWS)
def test_an_operation_does_as_the_page_says(name: str) -> None:
    assert {c: support.cell(name, c) for c in support.COLUMNS} == {c: PAGE[name, c] for c in support.COLUMNS}


@pytest.mark.gpu
@pytest.mark.parametrize("name", support.ROWS)
def test_on_a_gpu_it_does_as_the_page_says(name: str) -> None:
    assert {c: support.cell(name, c) for c in support.ON_GPU} == {c: PAGE[name, c] for c in support.ON_GPU}
