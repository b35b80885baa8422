"""Other constants of the planners as variants of a suite, so that one run compares a choice with the one before it.

TILEFOLD_BENCH_SETTINGS names a file of JSON with constants by module, each of its names a variant "ours, NAME":

    {"fewer": {"tilefold.planner.scan_tiles": {"WARPS_AN_SM": 8, "MOST_WARPS": 8}}}

Each variant has executables of its own: the same call, planned and compiled with these constants.
"""

from __future__ import annotations

import contextlib
import functools
import importlib
import json
import os
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any
from unittest import mock

import torch

from tilefold.api import dispatch
from tilefold.bench.cases import Call, Case, Choice, Variant
from tilefold.bench.ours import OURS
from tilefold.errors import ArgumentError

SETTINGS = "TILEFOLD_BENCH_SETTINGS"
# Constants by name, by module.
Constants = Mapping[str, Mapping[str, Any]]
Build = Callable[[Case, torch.Tensor], Sequence[Choice]]
PLANNERS = ("tilefold.planner.",)


@functools.cache
def settings_of(path: str | None) -> Mapping[str, Constants]:
    """The constants of each setting in a file, all of them looked up; none without a file.

    Raises:
        ArgumentError: the file cannot be read, or names a constant that does not exist.
    """
    if not path:
        return {}
    try:
        found: Mapping[str, Constants] = json.loads(Path(path).read_text(encoding="utf-8"))
        for constants in found.values():
            with set_to(constants):
                pass
    except (OSError, ValueError, AttributeError, ImportError, TypeError) as error:
        raise ArgumentError(
            f"bench: {SETTINGS} must name a file of JSON, constants by module by setting, got {path!r} ({error})"
        ) from None
    return found


def variants_of(build: Build) -> tuple[Variant, ...]:
    """The variants of a suite whose own function is called by `build`."""
    settings = settings_of(os.environ.get(SETTINGS))
    return tuple(variant_of(name, constants, build) for name, constants in settings.items())


def variant_of(name: str, constants: Constants, build: Build) -> Variant:
    """Tilefold's function under other constants; it runs only where it is asked for."""

    def under(case: Case, x: torch.Tensor) -> Sequence[Choice]:
        executables: dict[Any, Any] = {}
        return [
            Choice(name, under_constants(choice.call, constants, executables)) for choice in build(case, x)
        ]

    return Variant(f"{OURS.name}, {name}", under, warms=True, plan=OURS.plan, asked_only=True)


def under_constants(call: Call, constants: Constants, executables: dict[Any, Any]) -> Call:
    """The call with other constants, and with executables that no other call finds."""

    def again(x: torch.Tensor) -> Any:
        with set_to(constants), mock.patch.object(dispatch, "_executables", executables):
            if executables:
                return call(x)
            forget_plans()
            try:
                return call(x)
            finally:
                forget_plans()

    return again


@contextlib.contextmanager
def set_to(constants: Constants) -> Iterator[None]:
    """The constants in force within a block. A module or a constant that does not exist is an error."""
    with contextlib.ExitStack() as stack:
        for module, values in constants.items():
            found = importlib.import_module(module)
            for constant, value in values.items():
                stack.enter_context(mock.patch.object(found, constant, value))
        yield


def forget_plans() -> None:
    """Empty the planners' caches by problem."""
    for name, module in tuple(sys.modules.items()):
        if name.startswith(PLANNERS):
            for value in vars(module).values():
                if callable(getattr(value, "cache_clear", None)):
                    value.cache_clear()
