"""Inductor's choice among our products. How else torch sees tilefold is in `api` (docs/integration.md)."""
