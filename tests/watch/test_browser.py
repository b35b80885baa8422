"""The page in a browser: every control, the keyboard, light and dark, wide and narrow; nothing said on the console.

Debian has what is needed (apt-get install chromium chromium-driver); elsewhere these are skipped.
"""

from __future__ import annotations

import math
import time
from collections.abc import Iterator

import pytest
import torch

import tilefold
from browsing import CONTRAST, Page, needs_chromium, opened
from tilefold import monoids
from tilefold.watch import render_page
from watch.test_page import EVIL, evil

pytestmark = needs_chromium

LENGTH, CHUNK = 57, 8
CHUNKS = math.ceil(LENGTH / CHUNK)


class Watch(Page):
    """The page of a monoid."""

    def table(self) -> dict[str, list[str]]:
        """The cells of the step's table by the name of their row, minus signs as in Python."""
        rows = self.run(
            "[...document.querySelectorAll('#cells tr')].map(r => [...r.cells].map(c => c.firstChild?.data ?? ''))"
        )
        return {row[0]: [cell.replace("\u2212", "-") for cell in row[1:]] for row in rows}

    def step(self) -> int:
        return int(self.text("count").split()[1])


@pytest.fixture(scope="module")
def browser(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Watch]:
    with opened(Watch, tmp_path_factory.mktemp("pages")) as page:
        yield page


@pytest.fixture
def page(browser: Watch) -> Iterator[Watch]:
    """The online softmax; afterwards the console must be empty."""
    browser.open(render_page(monoids.LOGSUMEXP))
    yield browser
    assert browser.said() == []


def test_it_opens_from_disk_and_fetches_nothing(page: Watch) -> None:
    assert page.run("performance.getEntriesByType('resource').length") == 0
    assert page.run("document.querySelectorAll('canvas').length") == 4  # the row, two fields, the result
    assert "identity: max = \u2212\u221e, sum = 0" in page.text("story")
    assert page.table()["sum"] == ["", "", "0", "4.29017"]


def test_steps_go_both_ways_and_reset(page: Watch) -> None:
    page.click("step", "step", "step")
    assert (page.step(), page.text("count")) == (3, f"chunk 3 of {CHUNKS}")
    assert "elements 16 to 23" in page.text("story")
    assert "max rises from" in page.text("story")
    assert "is multiplied by" in page.text("story")
    page.click("back")
    assert page.step() == 2
    page.click("reset")
    assert page.step() == 0
    assert not page.find("reset").is_enabled()
    assert not page.find("back").is_enabled()


def test_the_table_is_the_recurrence(page: Watch) -> None:
    """new = combine(old, chunk's own), with the numbers that are shown."""
    for _ in range(CHUNKS):
        page.click("step")
        cells = page.table()
        (old_max, own_max, new_max), (old, own, new) = (
            [float(text.replace("\u221e", "inf")) for text in cells[name][:3]] for name in ("max", "sum")
        )
        assert new_max == max(old_max, own_max)
        assert new == pytest.approx(
            old * math.exp(old_max - new_max) + own * math.exp(own_max - new_max), rel=1e-5
        )
    assert cells["sum"][2] == cells["sum"][3]
    assert not page.find("step").is_enabled()
    assert "filled with the identity, which changes nothing" in page.text("story")


def test_it_plays_to_the_end_pauses_and_starts_again(page: Watch) -> None:
    page.choose("size", "4")
    page.click("play")
    assert page.text("play") == "Pause"
    page.wait(lambda: page.step() >= 2)
    page.click("play")
    paused = page.step()
    assert page.text("play") == "Play"
    time.sleep(1.0)
    assert page.step() == paused
    page.choose("size", "32")
    page.click("play")
    page.wait(lambda: page.text("play") == "Play")
    assert page.text("count") == "chunk 2 of 2"
    page.click("play")
    page.wait(lambda: page.step() < 2)
    page.click("reset")


def test_rows_and_sizes(page: Watch) -> None:
    page.choose("row", "rising")
    page.click("step", "step")
    assert "max rises from" in page.text("story")
    page.choose("row", "falling")
    assert page.step() == 2
    assert "max stays at" in page.text("story")
    assert "counts in full" in page.text("story")
    page.choose("size", "4")
    assert page.text("count") == "chunk 4 of 15"  # the 16 elements that were read
    page.choose("row", "huge")
    page.choose("size", "64")
    page.click("reset", "step")
    assert page.text("count") == "chunk 1 of 1"
    assert page.table()["max"][2] == "10000"


def test_a_wrong_fill_is_seen(page: Watch) -> None:
    page.click("wrong")
    assert "7 absent elements will be read as 0" in page.text("story")
    page.run("document.getElementById('step').focus()")
    page.click(*["step"] * CHUNKS)
    assert "The answer is wrong" in page.text("story")
    cells = page.table()
    assert cells["max"][2:] == ["0", "-0.55"]
    assert page.find("wrong-key").is_displayed()
    assert page.driver.find_elements("css selector", "td.is-wrong")
    page.click("wrong")
    assert page.table()["max"][2] == "-0.55"
    assert not page.driver.find_elements("css selector", ".is-wrong")
    page.choose("size", "1")
    page.click("wrong")
    assert "The last chunk is full" in page.text("story")
    page.click("wrong")


def test_a_wrong_fill_that_is_not_seen_says_where_it_is(page: Watch) -> None:
    page.choose("row", "huge")
    page.click("wrong", *["step"] * CHUNKS)
    assert "in others it is wrong: random, rising, falling" in page.text("story")


def test_the_keyboard_is_enough(page: Watch) -> None:
    page.run("document.body.focus()")
    page.press("ARROW_RIGHT")
    page.press("ARROW_RIGHT")
    page.press("ARROW_LEFT")
    assert page.step() == 1
    page.press("SPACE")
    assert page.text("play") == "Pause"
    page.press("SPACE")
    assert page.text("play") == "Play"
    page.press("HOME")
    assert page.step() == 0
    reached = []
    for _ in range(8):
        page.press("TAB")
        reached.append(page.run("document.activeElement.id"))
        width = page.run("getComputedStyle(document.activeElement).outlineWidth")
        assert width == "3px", reached
    assert reached[:5] == ["step", "play", "size", "row", "wrong"]  # reset and back have nothing to do
    page.run("document.getElementById('size').focus()")
    page.press("ARROW_DOWN")  # a list keeps its own keys
    assert page.find("size").get_attribute("value") == "16"
    assert page.step() == 0
    page.run("document.getElementById('wrong').focus()")
    page.press("SPACE")
    assert page.find("wrong").is_selected()
    assert page.text("play") == "Play"


@pytest.mark.parametrize("width", [1280, 390])
@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_light_and_dark_wide_and_narrow(browser: Watch, width: int, scheme: str) -> None:
    browser.open(render_page(monoids.LOGSUMEXP), width, scheme)
    browser.choose("row", "rising")
    browser.click("wrong", *["step"] * CHUNKS)
    assert browser.run("document.documentElement.scrollWidth") <= width
    beyond = "[...document.querySelectorAll('button, select, label, h1, h2, p, figcaption span, canvas, dd')]"
    assert browser.run(f"{beyond}.filter(e => e.getBoundingClientRect().right > {width}).length") == 0
    ink, paper = (
        sum(
            int(part)
            for part in browser.run(f"getComputedStyle(document.body).{what}").strip("rgb()").split(",")
        )
        for what in ("color", "backgroundColor")
    )
    assert (ink < paper) == (scheme == "light")
    assert browser.run(CONTRAST) >= 4.5
    small = "[...document.querySelectorAll('button, select')].map(e => e.getBoundingClientRect().height)"
    assert min(browser.run(small)) >= 36
    assert browser.said() == []


def test_plots_follow_the_scheme_and_the_width(page: Watch) -> None:
    ink = "document.querySelector('#charts canvas').toDataURL()"
    before = page.run(ink)
    page.prefer("dark")
    page.wait(lambda: page.run(ink) != before)
    size = {"width": 390, "height": 900, "deviceScaleFactor": 1, "mobile": True}
    page.driver.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", size)
    page.wait(lambda: page.run("document.querySelector('canvas').getBoundingClientRect().right") <= 390)


def test_names_are_escaped_and_run_nothing(browser: Watch) -> None:
    browser.open(render_page(evil()))
    assert browser.run("document.querySelector('h1').textContent") == EVIL
    assert browser.run("document.images.length") == 0
    browser.click("step")
    assert browser.said() == []


def test_nan_infinities_and_64_bits_are_shown(browser: Watch) -> None:
    values = torch.tensor([1.0, float("nan"), -float("inf"), float("inf"), 2.0])
    browser.open(render_page(monoids.MAX, [values]))
    browser.choose("size", "1")
    browser.click("step", "step")
    assert browser.table()["value"] == ["1", "NaN", "NaN", "NaN"]
    browser.open(render_page(monoids.MIN, [torch.tensor([2**63 - 1, 2**53 + 1, -(2**63)])]))
    browser.choose("size", "1")
    browser.click("step", "step")
    assert browser.table()["value"] == [
        "9223372036854775807",
        "9007199254740993",
        "9007199254740993",
        "-9223372036854775808",
    ]
    browser.click("step")
    assert browser.table()["value"][2] == "-9223372036854775808"
    assert browser.said() == []


@pytest.mark.parametrize("name", ["AFFINE", "ARGMAX", "FIRST", "ALL", "DESCRIBE", "MATMUL2X2", "BITWISE_AND"])
def test_any_monoid_steps_to_its_end(browser: Watch, name: str) -> None:
    monoid: tilefold.Monoid = getattr(monoids, name)
    browser.open(render_page(monoid))
    browser.choose("size", "32")
    browser.click("wrong", "step", "step")
    assert browser.step() == 2
    browser.click("wrong")
    cells = browser.table()
    assert len(cells) >= len(monoid.fields)
    assert all(new for _, _, new, _ in cells.values())
    assert browser.said() == []
