"""Drawn monoids: wrong ones are refused, right ones accepted, and an order that matters is not declared away.

`make test` draws one of every third kind; `make laws` hundreds, and tries all that are written out here.
"""

from __future__ import annotations

import os

import pytest

from algebra.drawn import COMMUTING, ORDERED, RIGHT, WRONG, Drawn, Kind, draw
from algebra.written_out import RIGHT as WRITTEN_RIGHT
from algebra.written_out import WRONG as WRITTEN_WRONG
from tilefold import Monoid
from tilefold.errors import LawError

MANY = int(os.environ.get("TILEFOLD_DRAWN_MONOIDS", "0"))
SEED = int(os.environ.get("TILEFOLD_DRAWN_SEED", "0"))


def drawn(kinds: dict[str, Kind]) -> list[Drawn]:
    """So many monoids as are asked for, or one of every third kind."""
    return [draw(kinds, SEED, k) for k in (range(MANY) if MANY else range(0, len(kinds), 3))]


def is_refused(one: Drawn, **more: object) -> bool:
    try:
        one.monoid(**more)
    except LawError:
        return True
    return False


def test_wrong_monoids_are_refused() -> None:
    """All of the few that always run, and 99 in a hundred of many."""
    cases = drawn(WRONG)
    accepted = [one for one in cases if not is_refused(one)]
    assert len(accepted) <= len(cases) / 100, accepted


def test_right_monoids_are_accepted() -> None:
    assert [one for one in drawn(RIGHT if MANY else ORDERED) if is_refused(one)] == []


def test_an_order_that_does_not_matter_may_be_declared() -> None:
    assert [one for one in drawn(COMMUTING) if is_refused(one, commutative=True)] == []


def test_an_order_that_matters_is_found_and_may_not_be_declared_away() -> None:
    """The first is known from the check that accepted them."""
    cases = drawn(ORDERED)
    assert [one for one in cases if one.monoid().commutative] == []
    accepted = [one for one in cases if not is_refused(one, commutative=True)]
    assert len(accepted) <= len(cases) / 100, accepted


@pytest.mark.parametrize("name", WRITTEN_WRONG if MANY else list(WRITTEN_WRONG)[::12])
def test_written_wrong_monoids_are_refused(name: str) -> None:
    combine, identity, options = WRITTEN_WRONG[name]
    with pytest.raises(LawError):
        Monoid(combine, identity, **options)


@pytest.mark.parametrize("name", WRITTEN_RIGHT if MANY else list(WRITTEN_RIGHT)[::12])
def test_written_right_monoids_are_accepted(name: str) -> None:
    combine, identity, options = WRITTEN_RIGHT[name]
    Monoid(combine, identity, **options)


def test_draws_repeat_and_vary() -> None:
    assert repr(draw(WRONG, 1, 5)) == repr(draw(WRONG, 1, 5))
    assert repr(draw(WRONG, 1, 5)) != repr(draw(WRONG, 2, 5))
    with pytest.raises(LawError):
        draw(WRONG, 1, 0).monoid()
