"""What is observed of the planted kernels: one that means to change it writes it anew (found.py)."""

from __future__ import annotations

import pytest

from xray.observe import found
from xray.versions import TRITON


@pytest.mark.skipif(TRITON != (3, 6), reason="the numbers are of what Triton 3.6 compiles")
def test_observations_are_those_written_down() -> None:
    assert list(found.lines()) == found.WRITTEN.read_text(encoding="utf-8").splitlines()
