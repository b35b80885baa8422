"""Pages as files: closed to everything else, small, quick, and text is text whatever is in it."""

from __future__ import annotations

import json
import re
import time
from dataclasses import replace

import pytest

from tilefold.xray.page import diff_document, document, render_diff, render_index, render_page
from watch.test_page import EVIL, Parts, hashed, policy_of
from xray.page.shown import CASES, made, page_of


def evil_page() -> str:
    """A kernel whose name, file, arguments, observations and notes are markup."""
    held = made("columns")
    report = held.report
    found = tuple(replace(o, evidence=EVIL, change=EVIL, file=f"/x/{EVIL}") for o in report.observations)
    lines = tuple(replace(line, file=f"/x/{EVIL}", text=EVIL) for line in report.lines)
    other = replace(
        report,
        kernel=EVIL,
        arguments=(EVIL,),
        constants=(EVIL,),
        notes=(EVIL,),
        observations=found,
        lines=lines,
    )
    return render_page(document(replace(held, report=other)), "index.html")


@pytest.mark.parametrize("case", list(CASES))
def test_only_its_own_script_and_style_may_run(case: str) -> None:
    parts = Parts(render_page(page_of(case)))
    rules = policy_of(parts)
    (style,), (data, script) = parts.text_of("style"), parts.text_of("script")
    assert rules["default-src"] == ["'none'"]
    assert (rules["style-src"], rules["script-src"]) == ([hashed(style)], [hashed(script)])
    assert json.loads(data)["kernel"] == case
    assert not re.search(r"url\(|@import", style)


@pytest.mark.parametrize("page", ["kernel", "index", "diff"])
def test_markup_is_text(page: str) -> None:
    text = {
        "kernel": evil_page,
        "index": lambda: render_index(
            EVIL,
            EVIL,
            [EVIL, "b"],
            [([EVIL, EVIL], "a.html")],
            tables=[(EVIL, [EVIL], [[EVIL]])],
            notes=[EVIL],
        ),
        "diff": lambda: render_diff(
            [diff_document(*(json.loads(Parts(evil_page()).text_of("script")[0]),) * 2)]
        ),
    }[page]()
    parts = Parts(text)
    tags = [tag for tag, _ in parts.elements]
    assert "img" not in tags
    assert tags.count("script") == (2 if page == "kernel" else 0)
    assert not [
        a for _, attributes in parts.elements for a in attributes if a.startswith("on") or a == "style"
    ]
    assert EVIL in parts.text_of("title")[0]
    if page == "kernel":
        assert not re.search("[<>&]", parts.text_of("script")[0])


def test_a_products_page_is_small_and_quick() -> None:
    held = made("product")
    begun = time.process_time()
    text = render_page(document(held))
    assert time.process_time() - begun < 5
    assert len(text.encode()) < 3e6


def test_an_index_leads_to_its_pages() -> None:
    rows = [(["1", "a"], "x.1.html"), (["2", "b"], "")]
    parts = Parts(render_index("s.py", "2 launches", ["launch", "kernel"], rows))
    assert [a["href"] for tag, a in parts.elements if tag == "a"] == ["x.1.html"]


@pytest.mark.parametrize(
    "pages", [("product", "product"), ("product", "columns")], ids=["two chips", "two kernels"]
)
def test_two_kernels_side_by_side(pages: tuple[str, str]) -> None:
    first, second = page_of(pages[0], "sm_80"), page_of(pages[1])
    found = diff_document(first, second)
    assert not found["same"]
    assert {text["name"] for text in found["texts"]} == {
        "Source",
        "TTIR",
        "TTGIR",
        "LLVM",
        "PTX",
        "SASS",
        "CUDA",
    }
    text = render_diff([found])
    assert "registers a thread" in text
    for one in found["texts"]:
        marks = [mark for mark, _ in one["rows"]]
        assert (marks.count("+"), marks.count("-")) == (one["added"], one["gone"])
    source = next(text for text in found["texts"] if text["name"] == "Source")
    assert bool(source["rows"]) == (pages[0] != pages[1])


def test_a_kernel_beside_itself_is_the_same() -> None:
    found = diff_document(page_of("product"), page_of("product"))
    assert found["same"]
    assert not any(text["rows"] for text in found["texts"])
    assert not found["lines"]
    assert "Nothing differs." in render_diff([found])


def test_reports_without_texts_are_compared_by_their_numbers() -> None:
    a, b = ({"report": made("product", target).report.as_json()} for target in ("sm_80", "sm_90"))
    found = diff_document(a, b)
    assert not found["texts"]
    assert found["lines"]
    assert found["figures"]
