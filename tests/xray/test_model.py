"""A report is plain values: written as JSON and read back it is the same one."""

from __future__ import annotations

import json

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
