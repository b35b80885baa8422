"""A browser that opens pages: Debian's Chromium (apt-get install chromium chromium-driver), where there is one."""

from __future__ import annotations

import importlib.util
import shutil
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TypeVar

import pytest

webdriver = pytest.importorskip("selenium.webdriver", reason="no selenium")
CHROMIUM, DRIVER = shutil.which("chromium"), shutil.which("chromedriver")
needs_chromium = pytest.mark.skipif(not (CHROMIUM and DRIVER), reason="no chromium and chromium-driver")
SCHEMES, WIDTHS = ("light", "dark"), (1280, 390)
# The least contrast of a text with what is behind it, as WCAG 2 has it: 4.5 is its level AA.
CONTRAST = """(() => {
  const parts = (text) => text.match(/[\\d.]+/g).map(Number);
  const light = (rgb) => rgb.slice(0, 3).map((v) => v / 255)
    .map((v) => (v <= 0.03928 ? v / 12.92 : ((v + 0.055) / 1.055) ** 2.4))
    .reduce((sum, v, i) => sum + v * [0.2126, 0.7152, 0.0722][i], 0);
  const behind = (e) => {
    const rgb = parts(getComputedStyle(e).backgroundColor);
    const alpha = rgb[3] ?? 1;
    return alpha === 1 ? rgb : behind(e.parentElement).slice(0, 3).map((v, i) => v + alpha * (rgb[i] - v));
  };
  const texts = [...document.querySelectorAll("body *")].filter((e) => e.checkVisibility() && !e.disabled
    && !["SCRIPT", "OPTION"].includes(e.tagName) && [...e.childNodes].some((n) => n.nodeType === 3 && n.data.trim()));
  return Math.min(...texts.map((e) => {
    const [a, b] = [light(parts(getComputedStyle(e).color)), light(behind(e))].sort((x, y) => y - x);
    return (a + 0.05) / (b + 0.05);
  }));
})()"""


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

    def wait(self, holds: Callable[[], bool], seconds: float = 20.0) -> None:
        end = time.monotonic() + seconds
        while not holds():
            assert time.monotonic() < end, "the page did not get there"
            time.sleep(0.05)

    def said(self) -> list[str]:
        """What the page has put on the console since it was last asked."""
        return [entry["message"] for entry in self.driver.get_log("browser")]

    def violations(self) -> list[str]:
        """What axe-core finds at the page as it is: rules, and the first element of each."""
        found = importlib.util.find_spec("axe_core_python")
        if found is None or found.origin is None:
            pytest.skip("no axe-core-python")
        self.driver.execute_script((Path(found.origin).parent / "axe.min.js").read_text(encoding="utf-8"))
        said = self.driver.execute_async_script("axe.run().then(arguments[arguments.length - 1])")
        return [f"{one['id']}: {one['nodes'][0]['html'][:200]}" for one in said["violations"]]


Opened = TypeVar("Opened", bound=Page)


@contextmanager
def opened(kind: type[Opened], folder: Path) -> Iterator[Opened]:
    """A browser of its own, as the given kind of page."""
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
    try:
        yield kind(driver, folder)
    finally:
        driver.quit()
