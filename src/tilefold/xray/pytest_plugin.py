"""A fixture for tests of Triton kernels. A test suite loads it by `pytest_plugins = ["tilefold.xray.pytest_plugin"]`."""

from __future__ import annotations

import io
from collections.abc import Callable
from typing import Any

import pytest

from tilefold.xray.check import UnmetError, check
from tilefold.xray.report.model import Report


@pytest.fixture
def xray_check(request: pytest.FixtureRequest) -> Callable[..., Report]:
    """`tilefold.xray.check`; where a demand is not met the whole report is shown with the failure."""

    def checked(*arguments: Any, **demands: Any) -> Report:
        try:
            return check(*arguments, **demands)
        except UnmetError as error:
            request.node.add_report_section("call", "tilefold xray", _shown(error.report))
            raise

    return checked


def _shown(report: Report) -> str:
    try:
        from rich.console import Console
    except ImportError:
        from tilefold.xray.render.plain import report_text

        return report_text(report)
    from tilefold.xray.render.terminal import render_report

    console = Console(width=110, file=io.StringIO(), record=True)
    console.print(render_report(report))
    return console.export_text()
