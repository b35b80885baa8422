"""Two reports side by side as one value."""

from __future__ import annotations

from typing import Any


def diff_document(first: Any, second: Any) -> dict[str, Any]:
    return {}
