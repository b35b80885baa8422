"""The page in a browser: every control, the keyboard, light and dark, wide and narrow; nothing said on the console.

Debian has what is needed (apt-get install chromium chromium-driver); elsewhere these are skipped.
"""

from __future__ import annotations

import math
import shutil
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

import tilefold
from tilefold import monoids
from tilefold.watch import render_page
from watch.test_page import EVIL, evil

webdriver = pytest.importorskip("selenium.webdriver", reason="no selenium")
CHROMIUM, DRIVER = shutil.which("chromium"), shutil.which("chromedriver")
pytestmark = pytest.mark.skipif(not (CHROMIUM and DRIVER), reason="no chromium and chromium-driver")

LENGTH, CHUNK = 57, 8
# The least contrast of a text with what is behind it, as WCAG 2 has it: 4.5 is its level AA.
CONTRAST = """(() => {
  const parts = (text) => text.match(/[\\d.]+/g).map(Number);
  const light = (rgb) => rgb.slice(0, 3).map((v) => v / 255)
    .map((v) => (v <= 0.03928 ? v / 12.92 : ((v + 0.055) / 1.055) ** 2.4))
    .reduce((sum, v, i) => sum + v * [0.2126, 0.7152, 0.0722][i], 0);
  const behind = (e) => {
    const rgb = parts(getComputedStyle(e).backgroundColor);
    return rgb[3] === 0 ? behind(e.parentElement) : rgb;
  };
  const texts = [...document.querySelectorAll("body *")].filter((e) => e.checkVisibility() && !e.disabled
    && !["SCRIPT", "OPTION"].includes(e.tagName) && [...e.childNodes].some((n) => n.nodeType === 3 && n.data.trim()));
  return Math.min(...texts.map((e) => {
    const [a, b] = [light(parts(getComputedStyle(e).color)), light(behind(e))].sort((x, y) => y - x);
    return (a + 0.05) / (b + 0.05);
  }));
})()"""
CHUNKS = math.ceil(LENGTH / CHUNK)


class Page:
    """A page that is open, by the ids of its elements."""

    def __init__(self, driver: Any, folder: Path) -> None:
        self.driver, self.folder = driver, folder

    def open(self, text: str, width: int = 1280, scheme: str = "light") -> None:
        """A new page, of which nothing is known yet."""
        size = {"width": width, "height": 900, "deviceScaleFactor": 1, "mobile": width < 600}
        self.driver.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", size)
        self.prefer(scheme)
        path = self.folder / "page.html"
        path.write_text(text, encoding="utf-8", newline="\n")
        self.driver.get(path.as_uri())

    def prefer(self, scheme: str) -> None:
        preference = {"name": "prefers-color-scheme", "value": scheme}
        self.driver.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": [preference]})

    def find(self, name: str) -> Any:
        return self.driver.find_element("id", name)

    def text(self, name: str) -> str:
        return str(self.find(name).text)

    def click(self, *names: str) -> None:
        for name in names:
            self.find(name).click()

    def choose(self, name: str, value: str) -> None:
        from selenium.webdriver.support.ui import Select

        Select(self.find(name)).select_by_value(value)

    def press(self, key: str) -> None:
        from selenium.webdriver.common.keys import Keys

        self.driver.switch_to.active_element.send_keys(getattr(Keys, key))

    def run(self, script: str) -> Any:
        return self.driver.execute_script(f"return {script}")

    def table(self) -> dict[str, list[str]]:
        """The cells of the step's table by the name of their row, minus signs as in Python."""
        rows = self.run(
            "[...document.querySelectorAll('#cells tr')].map(r => [...r.cells].map(c => c.firstChild?.data ?? ''))"
        )
        return {row[0]: [cell.replace("\u2212", "-") for cell in row[1:]] for row in rows}

    def step(self) -> int:
        return int(self.text("count").split()[1])

    def wait(self, holds: Callable[[], bool], seconds: float = 20.0) -> None:
        end = time.monotonic() + seconds
        while not holds():
            assert time.monotonic() < end, "the page did not get there"
            time.sleep(0.05)

    def said(self) -> list[str]:
        """What the page has put on the console since it was last asked."""
        return [entry["message"] for entry in self.driver.get_log("browser")]


@pytest.fixture(scope="module")
def browser(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Page]:
    from selenium.webdriver.chrome.service import Service

    options = webdriver.ChromeOptions()
    options.binary_location = CHROMIUM
    for flag in (
        "--headless=new",
        "--no-sandbox",
        "--disable-gpu",
        "--disable-dev-shm-usage",
        "--disable-background-networking",
    ):
        options.add_argument(flag)
    options.set_capability("goog:loggingPrefs", {"browser": "ALL"})
    driver = webdriver.Chrome(options=options, service=Service(DRIVER))
    yield Page(driver, tmp_path_factory.mktemp("pages"))
    driver.quit()


@pytest.fixture
def page(browser: Page) -> Iterator[Page]:
    """The online softmax; afterwards the console must be empty."""
    browser.open(render_page(monoids.LOGSUMEXP))
    yield browser
    assert browser.said() == []


def test_it_opens_from_disk_and_fetches_nothing(page: Page) -> None:
    assert page.run("performance.getEntriesByType('resource').length") == 0
    assert page.run("document.querySelectorAll('canvas').length") == 4  # the row, two fields, the result
    assert "identity: max = \u2212\u221e, sum = 0" in page.text("story")
    assert page.table()["sum"] == ["", "", "0", "4.29017"]


def test_steps_go_both_ways_and_reset(page: Page) -> None:
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


def test_the_table_is_the_recurrence(page: Page) -> None:
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


def test_it_plays_to_the_end_pauses_and_starts_again(page: Page) -> None:
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


def test_rows_and_sizes(page: Page) -> None:
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


def test_a_wrong_fill_is_seen(page: Page) -> None:
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


def test_a_wrong_fill_that_is_not_seen_says_where_it_is(page: Page) -> None:
    page.choose("row", "huge")
    page.click("wrong", *["step"] * CHUNKS)
    assert "in others it is wrong: random, rising, falling" in page.text("story")


def test_the_keyboard_is_enough(page: Page) -> None:
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
def test_light_and_dark_wide_and_narrow(browser: Page, width: int, scheme: str) -> None:
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


def test_plots_follow_the_scheme_and_the_width(page: Page) -> None:
    ink = "document.querySelector('#charts canvas').toDataURL()"
    before = page.run(ink)
    page.prefer("dark")
    page.wait(lambda: page.run(ink) != before)
    size = {"width": 390, "height": 900, "deviceScaleFactor": 1, "mobile": True}
    page.driver.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", size)
    page.wait(lambda: page.run("document.querySelector('canvas').getBoundingClientRect().right") <= 390)


def test_names_are_escaped_and_run_nothing(browser: Page) -> None:
    browser.open(render_page(evil()))
    assert browser.run("document.querySelector('h1').textContent") == EVIL
    assert browser.run("document.images.length") == 0
    browser.click("step")
    assert browser.said() == []


def test_nan_infinities_and_64_bits_are_shown(browser: Page) -> None:
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
def test_any_monoid_steps_to_its_end(browser: Page, name: str) -> None:
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
