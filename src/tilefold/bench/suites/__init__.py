"""The suites, one file each: a new file with a `SUITE` is a new suite. `folds` is src/tilefold/bench/suites/folds.py."""

from __future__ import annotations

import importlib
import pkgutil

from tilefold.bench.cases import Suite
from tilefold.errors import ArgumentError


def suite_names() -> list[str]:
    """The suites that there are, as the command line writes them."""
    return sorted(module.name.replace("_", "-") for module in pkgutil.iter_modules(__path__))


def load_suite(name: str) -> Suite:
    """The suite of that name.

    Raises:
        ArgumentError: there is none; the message says which there are.
    """
    there = suite_names()
    if name not in there:
        raise ArgumentError(
            f"bench: SUITE must be one that exists, got {name!r}; there are {', '.join(there)}"
        )
    suite: Suite = importlib.import_module(f"{__name__}.{name.replace('-', '_')}").SUITE
    return suite
