"""A report is plain values: written as JSON and read back it is the same one."""

from __future__ import annotations

import json
import re
from dataclasses import replace

import pytest

from tilefold import xray
from tilefold.errors import ArgumentError
from tilefold.xray.report import from_json
from xray import kernels

ROWS = {"x_ptr": "*fp32", "y_ptr": "*fp32", "n": 1000}


@pytest.mark.parametrize("run", [True, False], ids=["executed", "compiled"])
def test_the_report_is_plain_values(run: bool) -> None:
    report = xray.explain(kernels.softmax, ROWS, {"BLOCK": 1024}, grid=3, run=run)
    assert report.observations
    assert report.executed == run
    again = from_json(json.loads(json.dumps(report.as_json())))
    assert again == report
    assert hash(again) == hash(report)


def test_a_report_of_another_schema_is_refused() -> None:
    with pytest.raises(ArgumentError, match="schema must be 2"):
        from_json({"schema": 99})
    with pytest.raises(ArgumentError, match="must have all fields"):
        from_json({"schema": 2})


def test_a_notebook_shows_lines_and_observations() -> None:
    report = xray.explain(kernels.softmax, ROWS, {"BLOCK": 1024}, grid=3)
    evil = replace(report, kernel="<b>", lines=tuple(replace(x, text="<i>") for x in report.lines))
    for one in (report, evil):
        shown = one._repr_html_()
        assert not {"<b>", "<i>"} & set(re.findall(r"<\w+>", shown))
        assert shown.count("<table>") == 2
        assert all(o.code in shown for o in one.observations if not o.quiet)
    load = next(x for x in report.lines if x.accesses and x.accesses[0].kind == "load")
    each = load.accesses[0]
    assert each.sectors is not None
    assert f"global load of {each.bytes} bytes: {each.sectors // 3} sectors" in report._repr_html_()
