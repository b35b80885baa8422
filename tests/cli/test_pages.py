"""Pages as files: nothing in them ends their script, and what cannot be written is one line."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest

from tilefold.cli import pages
from tilefold.errors import ArgumentError


def test_data_in_a_script_ends_nothing() -> None:
    value: Any = {"a": ["</script>", "<!--", "&", "\u2028"]}
    text = pages.json_for_script(value)
    assert not re.search("[<>&\u2028]", text)
    assert json.loads(text) == value


def test_a_page_that_cannot_be_written_is_one_line(tmp_path: Path) -> None:
    with pytest.raises(
        ArgumentError, match=r"watch: --html must be a file that can be written, got .*; choose"
    ):
        pages.write_page(str(tmp_path), "<p>", "watch")
