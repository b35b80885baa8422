"""Tables of HTML for notebooks: text is text, and every row has its cells."""

from __future__ import annotations

from tilefold.runtime.notebooks import table


def test_all_text_is_escaped() -> None:
    evil = "<script>alert('1')</script>&"
    shown = table(evil, [(evil, evil)], (evil, evil))
    assert "<script>" not in shown
    assert shown.count("&lt;script&gt;alert(&#x27;1&#x27;)&lt;/script&gt;&amp;") == 5


def test_rows_have_a_head_and_cells_with_their_lines() -> None:
    shown = table("t", [("a", 1, "x\ny"), ("b", 2, "")])
    assert (shown.count("<tr>"), shown.count("<th "), shown.count("<td ")) == (2, 2, 4)
    assert "x<br>y" in shown
    assert "<thead>" not in shown
    assert table("t", [], ("a", "b")).count("<th ") == 2
