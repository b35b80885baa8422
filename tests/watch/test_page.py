"""The page as a file: one, closed to everything else, whatever names are in it."""

from __future__ import annotations

import base64
import hashlib
import json
import re
from html.parser import HTMLParser
from pathlib import Path

import pytest
import torch

import tilefold
from tilefold import monoids
from tilefold.cli import pages
from tilefold.watch import render_page

EVIL = "</script><img src=x onerror=\"alert('1')\">&amp;<!--"


class Parts(HTMLParser):
    """The elements of a page, and the text within each script, style and title."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.elements: list[tuple[str, dict[str, str | None]]] = []
        self.texts: list[tuple[str, str]] = []
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.elements.append((tag, dict(attrs)))

    def handle_data(self, data: str) -> None:
        self.texts.append((self.elements[-1][0] if self.elements else "", data))

    def text_of(self, tag: str) -> list[str]:
        return [text for at, text in self.texts if at == tag and text.strip()]


def evil() -> tilefold.Monoid:
    return tilefold.Monoid(lambda a, b: a + b, 0, name=EVIL)


def policy_of(parts: Parts) -> dict[str, list[str]]:
    content = next(
        a["content"] for _, a in parts.elements if a.get("http-equiv") == "Content-Security-Policy"
    )
    assert content is not None
    rules = [rule.split() for rule in content.split(";")]
    return {name: values for name, *values in rules}


def hashed(text: str) -> str:
    return "'sha256-" + base64.b64encode(hashlib.sha256(text.encode()).digest()).decode() + "'"


def test_only_its_own_script_and_style_may_run() -> None:
    parts = Parts(render_page(monoids.LOGSUMEXP))
    rules = policy_of(parts)
    assert rules["default-src"] == ["'none'"]
    assert rules["base-uri"] == rules["form-action"] == ["'none'"]
    (style,), (data, script) = parts.text_of("style"), parts.text_of("script")
    assert rules["style-src"] == [hashed(style)]
    assert rules["script-src"] == [hashed(script)]
    assert json.loads(data)["name"] == "logsumexp"


def test_nothing_is_loaded() -> None:
    parts = Parts(render_page(monoids.SUM))
    assert not [
        a
        for _, a in parts.elements
        if {"src", "href", "style"} & set(a) or any(k.startswith("on") for k in a)
    ]
    assert not {"img", "link", "iframe", "object", "base", "form"} & {tag for tag, _ in parts.elements}
    text = "".join(parts.text_of("style"))
    assert not re.search(r"url\(|@import", text)


def test_names_are_text() -> None:
    text = render_page(evil())
    parts = Parts(text)
    assert [tag for tag, _ in parts.elements].count("script") == 2
    assert "img" not in {tag for tag, _ in parts.elements}
    assert parts.text_of("h1") == [EVIL]
    assert parts.text_of("title")[0].startswith(EVIL)
    assert json.loads(parts.text_of("script")[0])["name"] == EVIL
    assert not re.search(r"[<>&]", parts.text_of("script")[0])


def test_the_plots_licence_is_in_the_page() -> None:
    text = render_page(monoids.SUM)
    notice = (Path(pages.__file__).parent / "uplot" / "LICENSE").read_text(encoding="utf-8")
    assert notice.startswith("The MIT License")
    assert notice in text


def test_every_control_has_a_name() -> None:
    parts = Parts(render_page(monoids.SUM))
    buttons = [a["id"] for tag, a in parts.elements if tag == "button"]
    assert buttons == ["reset", "back", "step", "play"]
    assert [text.strip() for text in parts.text_of("label")][:1] == ["Chunk size"]
    assert {a["id"] for tag, a in parts.elements if tag in ("select", "input")} == {"size", "row", "wrong"}
    ids = [a["id"] for _, a in parts.elements if "id" in a]
    assert len(set(ids)) == len(ids)


@pytest.mark.parametrize("monoid", [monoids.SUM, monoids.LOGSUMEXP], ids=["sum", "logsumexp"])
def test_the_lead_says_what_is_rescaled(monoid: tilefold.Monoid) -> None:
    text = re.sub(r"<[^>]*>", "", render_page(monoid))
    assert ("sum is kept relative to max" in text) == (monoid is monoids.LOGSUMEXP)


def test_a_row_of_ones_own() -> None:
    text = render_page(monoids.MAX, [torch.tensor([2**63 - 1, 5])])
    assert "9223372036854775807" in text
    assert "int64 elements" in text
