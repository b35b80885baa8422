"""The list of planted faults fits the code and the tests that it names; `make mutants` plants them."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from mutants.planted import MUTANTS, Mutant

ROOT = Path(__file__).parents[2]


def named(mutant: Mutant) -> str:
    return mutant.name.replace(" ", "-")


@pytest.mark.parametrize("mutant", MUTANTS, ids=named)
def test_a_fault_fits_its_file_once(mutant: Mutant) -> None:
    source = (ROOT / "src" / "tilefold" / mutant.file).read_text(encoding="utf-8")
    assert source.count(mutant.old) == 1
    assert mutant.new != mutant.old


@pytest.mark.parametrize("mutant", MUTANTS, ids=named)
def test_the_tests_that_must_catch_it_are_there(mutant: Mutant) -> None:
    for test in mutant.tests:
        file, _, name = test.partition("[")[0].partition("::")
        source = (ROOT / file).read_text(encoding="utf-8")
        assert not name or re.search(rf"^def {name}\(", source, re.MULTILINE)


def test_there_are_forty_and_each_has_its_own_name() -> None:
    assert len({m.name for m in MUTANTS}) == len(MUTANTS) >= 40
