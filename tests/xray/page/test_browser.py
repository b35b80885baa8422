"""A kernel's page in a browser: everything that can be clicked, the keyboard, light and dark, wide and narrow.

Debian has what is needed (apt-get install chromium chromium-driver); elsewhere these are skipped.
"""

from __future__ import annotations

import functools
from collections.abc import Iterator
from typing import Any

import pytest

from browsing import CONTRAST, SCHEMES, WIDTHS, Page, needs_chromium, opened
from tilefold.xray.page import diff_document, render_diff, render_index, render_page
from xray.page.shown import CASES, page_of
from xray.page.test_render import evil_page

pytestmark = needs_chromium


class Shown(Page):
    """The page of a kernel."""

    def lit(self, pane: str) -> list[str]:
        """The texts of the rows of a pane that are lit."""
        script = f"[...document.querySelectorAll('#{pane} .lit code')].map(e => e.textContent.trim())"
        return list(self.run(script))

    def row(self, pane: str, text: str) -> None:
        """Click the first row that has a text."""
        rows = self.driver.find_elements("css selector", f"#{pane} .row[data-key]")
        next(row for row in rows if text in row.text).click()

    def selected(self) -> str:
        return self.text("line-title")


@pytest.fixture(scope="module")
def browser(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Shown]:
    with opened(Shown, tmp_path_factory.mktemp("pages")) as page:
        yield page


@pytest.fixture
def page(browser: Shown) -> Iterator[Shown]:
    """The page of a product; afterwards the console must be empty."""
    browser.open(render_page(page_of("product")))
    yield browser
    assert browser.said() == []


def rows_of(name: str, line: int) -> list[str]:
    """What a text has of a line of the product's source."""
    document: dict[str, Any] = page_of("product")
    (text,) = (text for text in document["texts"] if text["name"] == name)
    return [
        row[2].strip() for row in text["rows"] if row[1] >= 0 and document["keys"][row[1]]["line"] == line
    ]


def test_it_fetches_nothing(page: Shown) -> None:
    assert page.run("performance.getEntriesByType('resource').length") == 0


def test_a_click_on_a_line_lights_up_all_that_was_made_of_it(page: Shown) -> None:
    page.row("source", "tl.dot(")
    line = int(page.selected().split()[1])
    assert page.lit("source") == ["total = tl.dot(a, b, total)"]
    for number, name in enumerate(("TTIR", "TTGIR", "LLVM", "PTX", "SASS", "CUDA")):
        page.click(f"tab-{number}")
        assert page.find(f"tab-{number}").get_attribute("aria-selected") == "true"
        assert page.lit("rows") == rows_of(name, line) != []
        top, bottom, seen = page.run(
            "(() => { const pane = document.getElementById('rows'), row = pane.querySelector('.lit');"
            "return [pane.scrollTop, pane.scrollTop + pane.clientHeight, row.offsetTop]; })()"
        )
        assert top <= seen <= bottom, name


def test_a_click_on_a_row_of_a_text_finds_its_line(page: Shown) -> None:
    page.click("tab-3")
    page.row("rows", "st.global")
    assert any("tl.store(c_ptr" in text for text in page.lit("source"))
    assert "store" in page.text("said")


def test_arrows_move_through_lines_and_texts(page: Shown) -> None:
    page.run("document.getElementById('source').focus()")
    page.press("HOME")
    seen = []
    for _ in range(8):
        page.press("ARROW_DOWN")
        seen.append(page.selected())
    assert len(set(seen)) > 4
    page.press("END")
    assert "tl.store" in page.text("line-code")
    page.run("document.getElementById('tab-1').focus()")
    page.press("ARROW_RIGHT")
    assert page.run("document.activeElement.id") == "tab-2"
    assert page.find("tab-2").get_attribute("aria-selected") == "true"
    page.press("HOME")
    page.press("ARROW_LEFT")
    assert page.run("document.activeElement.id") == "tab-5"
    page.press("TAB")
    assert page.run("document.activeElement.id") == "rows"
    page.press("PAGE_DOWN")
    active = page.find("rows").get_attribute("aria-activedescendant")
    assert int(active.split("-")[1]) > 3


def test_heat_follows_the_number_that_is_chosen(page: Shown) -> None:
    cells = "[...r.querySelectorAll('.cell')].map(c => !!c.style.backgroundColor)"
    heat = f"[...document.querySelectorAll('#source .row')].map(r => {cells})"
    first = page.run(heat)
    assert any(row and row[0] for row in first)
    assert not any(row and row[1] for row in first)
    page.choose("heat", "1")
    assert any(row and row[1] for row in page.run(heat))


def test_a_tile_is_drawn_by_thread_register_and_warp(page: Shown) -> None:
    page.row("source", "tl.store(c_ptr")
    drawing = "document.getElementById('drawing').toDataURL()"
    seen = {page.run(drawing)}
    for by in ("register", "warp"):
        page.choose("colour", by)
        seen.add(page.run(drawing))
    assert len(seen) == 3
    page.choose("colour", "lane")
    page.run("document.getElementById('drawing').focus()")
    assert page.text("element").startswith("element [0, 0]: warp 0, lane 0, register 0")
    page.press("ARROW_RIGHT")
    page.press("ARROW_DOWN")
    page.press("ARROW_UP")
    assert page.text("element").startswith("element [0, 1]: ")


def test_redundancy_is_drawn_and_said(page: Shown) -> None:
    document = page_of("product")
    copies = [
        n for n, tile in enumerate(document["tiles"]) if any(not any(b) for b in tile["lane"] + tile["warp"])
    ]
    key = next(n for n, key in enumerate(document["keys"]) if set(copies) & set(key["tiles"]))
    page.run(f"document.querySelector('#source .row[data-key=\"{key}\"]').click()")
    page.choose("tile", str(next(n for n in document["keys"][key]["tiles"] if n in copies)))
    assert "threads hold each element" in page.text("tile-key")
    assert page.text("element").count("lane") > 1


def test_accesses_are_drawn_lane_by_lane(page: Shown) -> None:
    page.row("source", "a = tl.load(")
    labels = page.run(
        "[...document.querySelectorAll('#accesses svg')].map(s => s.getAttribute('aria-label'))"
    )
    assert any("sectors" in label or "sector" in label for label in labels)
    filled = (
        "[...document.querySelectorAll('#accesses svg')].map(s => s.querySelectorAll('rect[fill]').length)"
    )
    assert min(page.run(filled)) >= 8


def test_passes_go_forth_and_back(page: Shown) -> None:
    document = page_of("product")
    assert not page.find("pass-back").is_enabled()
    for _ in document["passes"][1:]:
        page.click("pass-next")
    assert not page.find("pass-next").is_enabled()
    changed = "[...document.querySelectorAll('#pass-rows .new, #pass-rows .gone')].length"
    last = document["passes"][-1]
    assert page.run(changed) == last["added"] + last["gone"]
    some = page.run("document.querySelectorAll('#pass-rows .row').length")
    page.click("whole")
    assert page.run("document.querySelectorAll('#pass-rows .row').length") == len(last["rows"]) >= some
    page.click("pass-back")
    page.choose("pass", "0")
    assert page.run(changed) == document["passes"][0]["added"] + document["passes"][0]["gone"]


def test_an_observation_leads_to_its_line(browser: Shown) -> None:
    browser.open(render_page(page_of("columns")))
    for found in browser.driver.find_elements("css selector", "details"):
        if found.is_displayed() and not found.get_attribute("open"):
            found.find_element("css selector", "summary").click()
    for button in browser.driver.find_elements("css selector", "button[data-key]"):
        button.click()
        assert browser.selected().startswith(button.text)
        assert browser.run("document.activeElement.id") == "source"
    assert browser.said() == []


@functools.cache
def other_pages() -> dict[str, str]:
    rows = [(["1", "a"], "x.1.html"), (["2", "b"], "")]
    pair = diff_document(page_of("product", "sm_80"), page_of("columns"))
    return {
        "index": render_index(
            "s.py", "2 launches", ["launch", "kernel"], rows, tables=[("t", ["a"], [["b"]])], notes=["n"]
        ),
        "diff": render_diff([pair, pair]),
        "static": render_page(page_of("product", run=False)),
        **{case: render_page(page_of(case)) for case in CASES},
    }


@pytest.mark.parametrize("name", ["product", "columns", "wide", "static", "index", "diff"])
def test_light_and_dark_wide_and_narrow(browser: Shown, name: str) -> None:
    for width in WIDTHS:
        for scheme in SCHEMES:
            browser.open(other_pages()[name], width, scheme)
            browser.run("document.querySelectorAll('details').forEach((d) => { d.open = true; })")
            assert browser.run("document.documentElement.scrollWidth") <= width
            ink, paper = (
                sum(
                    int(part)
                    for part in browser.run(f"getComputedStyle(document.body).{what}")
                    .strip("rgb()")
                    .split(",")
                )
                for what in ("color", "backgroundColor")
            )
            assert (ink < paper) == (scheme == "light")
            assert browser.run(CONTRAST) >= 4.5
            assert browser.violations() == []
            assert browser.said() == []


def test_names_run_nothing(browser: Shown) -> None:
    browser.open(evil_page())
    assert "owned" not in browser.driver.title
    assert browser.run("document.images.length") == 0
    for row in browser.driver.find_elements("css selector", "#source .row[data-key]"):
        row.click()
    assert browser.said() == []


def test_a_pointer_reaches_every_end_of_a_wide_tile(browser: Shown) -> None:
    from selenium.webdriver.common.action_chains import ActionChains

    browser.open(render_page(page_of("wide")), 390)
    browser.row("source", "tl.store(")
    canvas = browser.find("drawing")
    half = canvas.rect["width"] // 2 - 1
    for offset, element in ((-half, 0), (half, 1023)):
        ActionChains(browser.driver).move_to_element_with_offset(canvas, offset, 0).perform()
        said = browser.text("element").removeprefix("element [0, ").split("]")[0]
        assert abs(int(said) - element) < 12
    assert browser.said() == []


@pytest.mark.parametrize("scheme", SCHEMES)
@pytest.mark.parametrize("case", ["product", "columns"])
def test_every_text_and_every_pass_can_be_read(browser: Shown, case: str, scheme: str) -> None:
    browser.open(render_page(page_of(case)), scheme=scheme)
    browser.row("source", "tl.store(")
    for tab in range(5):
        browser.click(f"tab-{tab}")
        assert browser.lit("rows")
        assert browser.run(CONTRAST) >= 4.5, tab
    browser.click("whole")
    for number, _ in enumerate(page_of(case)["passes"]):
        browser.choose("pass", str(number))
        assert browser.run(CONTRAST) >= 4.5, number
    assert browser.violations() == []
    assert browser.said() == []
