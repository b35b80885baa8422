"""The page of documentation, from the results."""

from __future__ import annotations

from typing import Any


def page(results: dict[str, Any]) -> str:
    return str(len(results))
