"""Which form of a kernel's CUDA is written: what is proven decides, and the first lines say so."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import replace
from typing import Any

import pytest

from tilefold.errors import ArgumentError
from tilefold.xray.compile.job import Compiled
from tilefold.xray.cuda import find_nvcc, forms, write_form
from tilefold.xray.cuda.forms import Written
from tilefold.xray.cuda.proof import Verdict
from tilefold.xray.cuda.readable import Readable, UnreadableError, by_regions
from tilefold.xray.cuda.readable.folds import Folds
from tilefold.xray.cuda.readable.memory import Memory
from tilefold.xray.cuda.readable.tree import Load
from tilefold.xray.cuda.translate import read_line
from xray.cuda.test_readable import CASE_BOOK, OWN, compiled, pinned

needs_nvcc = pytest.mark.skipif(find_nvcc() is None, reason="no nvcc")


def test_without_nvcc_nothing_is_proven(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("shutil.which", lambda name: None)
    made = write_form(compiled(CASE_BOOK, "copy"))
    assert made.form == "readable"
    assert made.text.startswith("// Not proven: nvcc was not found")


@needs_nvcc
def test_a_wrong_readable_file_gives_way_and_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    def wrong(made: Compiled, lines: object, careful: object = ()) -> Readable:
        found = by_regions(made, read_line)
        return replace(found, text=found.text.replace("if (offs < n)", "if (offs <= n)"))

    monkeypatch.setattr("tilefold.xray.cuda.forms.by_regions", wrong)
    made = write_form(compiled(CASE_BOOK, "copy"))
    assert (made.form, made.verdict.proven) == ("plain", True)
    assert "stores other bits in y_ptr" in made.fell_back
    assert made.text.splitlines()[1].startswith(
        "// The plain form, because of the readable one: it stores other bits"
    )


@pinned
@needs_nvcc
def test_a_region_that_loops_say_wrong_stands_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    """One loop's fold is written wrong: its region is said one value after another, all others as before."""
    right = Folds._said

    def wrong(self: Folds, value: Any, name: str, kind: str, taken: Any, head: str) -> str:
        text = right(self, value, name, kind, taken, head)
        return text.replace("+=", "-=").replace("denominator_part +", "denominator_part -")

    monkeypatch.setattr(Folds, "_said", wrong)
    made = write_form(compiled(OWN, "softmax"))
    assert (made.form, made.verdict.proven, made.fell_back) == ("readable", True, "")
    assert "stands alone: one value after another from line 11 on" in made.text.splitlines()[1]
    assert "block_max" not in made.text


@needs_nvcc
@pinned
def test_a_region_that_cannot_be_said_by_loops_stands_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    right = Memory.load

    def refuse(self: Memory, group: tuple[Load, ...]) -> None:
        if len(group) > 1 and self._sheet.region is not self._write.scopes.root:
            raise UnreadableError("cuda: this is refused; take the plain form")
        right(self, group)

    monkeypatch.setattr(Memory, "load", refuse)
    made = write_form(compiled(OWN, "ragged"))
    assert (made.form, made.verdict.proven, made.fell_back) == ("readable", True, "")
    assert "from line 5" in made.text.splitlines()[1]
    assert "block_sum(total, smem)" in made.text, "the rest is as short as before"


@needs_nvcc
def test_the_other_forms() -> None:
    made = compiled(CASE_BOOK, "copy")
    assert write_form(made, "ptx").text == made.ptx
    plain = write_form(made, "plain")
    assert (plain.form, plain.fell_back) == ("plain", "")
    assert isinstance(plain.verdict, Verdict)
    assert plain.verdict.proven


# ------------------------------------------------------------------------------------- by verdicts that are given

WRONG, PROVEN = Verdict(False, "it stores other bits in y_ptr"), Verdict(True, "with random values")
REGIONS = 11


@pytest.fixture
def tried(monkeypatch: pytest.MonkeyPatch) -> Callable[..., tuple[list[tuple[int, ...]], Written]]:
    """Which regions are written with care, each time, and what is written in the end, where these verdicts come of it."""

    def write(
        verdicts: dict[tuple[int, ...], Verdict], otherwise: Verdict = WRONG, first: tuple[int, ...] = ()
    ) -> tuple[list[tuple[int, ...]], Written]:
        asked: list[tuple[int, ...]] = []

        def by(made: Compiled, lines: object, careful: Iterable[int] = ()) -> Readable:
            asked.append(tuple(careful))
            return Readable(f"// {asked[-1]}", tuple(careful) or first, REGIONS, tuple(range(REGIONS)))

        def proven(made: Compiled, text: str) -> Verdict:
            return verdicts.get(asked[-1], otherwise) if text.startswith("// (") else PROVEN

        monkeypatch.setattr(forms, "by_regions", by)
        monkeypatch.setattr(forms, "prove", proven)
        return asked, write_form(compiled(CASE_BOOK, "copy"))

    return write


def test_what_is_proven_is_written_once(tried: Any) -> None:
    asked, made = tried({(): PROVEN})
    assert asked == [()]
    assert (made.form, made.verdict, made.fell_back) == ("readable", PROVEN, "")


@pytest.mark.parametrize("said", ["nvcc was not found", "it could not be executed: a barrier"])
def test_what_cannot_be_decided_is_written_once_and_not_called_proven(said: str, tried: Any) -> None:
    asked, made = tried({}, Verdict(False, said))
    assert asked == [()]
    assert (made.form, made.fell_back) == ("readable", "")
    assert made.text.startswith(f"// Not proven: {said}")


def test_regions_are_tried_one_by_one_until_one_helps(tried: Any) -> None:
    asked, made = tried({(2,): PROVEN})
    assert asked == [(), (0,), (1,), (2,)]
    assert (made.form, made.verdict) == ("readable", PROVEN)
    assert "// (2,)" in made.text


def test_a_region_with_care_from_the_start_stays_so(tried: Any) -> None:
    asked, _ = tried({(1, 3): PROVEN}, first=(1,))
    assert asked == [(), (1, 0), (1, 2), (1, 3)]


@pytest.mark.parametrize("helps", [True, False])
def test_where_no_region_helps_all_are_tried_last(tried: Any, helps: bool) -> None:
    every = tuple(range(REGIONS))
    asked, made = tried({every: PROVEN} if helps else {})
    assert asked == [(), *((k,) for k in range(forms.MOST_TRIES)), every]
    assert (made.form, made.fell_back) == (("readable", "") if helps else ("plain", WRONG.said))
    assert made.verdict == PROVEN


def test_a_refusal_is_the_reason_in_a_few_words(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object) -> Readable:
        raise UnreadableError("cuda: loops must end, got one that does not; take the plain form")

    monkeypatch.setattr(forms, "by_regions", refuse)
    monkeypatch.setattr(forms, "prove", lambda *_: PROVEN)
    made = write_form(compiled(CASE_BOOK, "copy"))
    assert (made.form, made.fell_back) == ("plain", "loops must end, got one that does not")
    assert made.text.splitlines()[1] == f"// The plain form, because of the readable one: {made.fell_back}."


def test_a_form_that_there_is_not() -> None:
    with pytest.raises(ArgumentError, match="a form must be one of readable, plain, ptx, got 'sass'"):
        write_form(compiled(CASE_BOOK, "copy"), "sass")  # type: ignore[arg-type]
