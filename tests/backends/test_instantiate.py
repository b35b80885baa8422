"""Kernels put together with their device functions."""

from __future__ import annotations

import builtins
import dis
import types
from collections.abc import Iterator

import pytest

from tilefold.backends.triton import instantiate

WRITTEN = [
    function
    for module in instantiate._MODULES
    for function in vars(module).values()
    if isinstance(function, types.FunctionType) and function.__module__ == module.__name__
]


def looked_up(code: types.CodeType) -> Iterator[str]:
    """Global names of a function, comprehensions in it too."""
    yield from (
        one.argval for one in dis.get_instructions(code) if one.opname in ("LOAD_GLOBAL", "LOAD_NAME")
    )
    for part in code.co_consts:
        if isinstance(part, types.CodeType):
            yield from looked_up(part)


@pytest.mark.parametrize("function", WRITTEN, ids=lambda f: f"{f.__module__.rsplit('.', 1)[-1]}.{f.__name__}")
def test_kernels_name_what_is_there(function: types.FunctionType) -> None:
    """Beside what is imported: the generated functions, in capitals, and Triton's calls for dependent launches."""
    given = {"gdc_wait", "gdc_launch_dependents"}
    names = {n for n in looked_up(function.__code__) if not n.isupper() and n not in given}
    assert [n for n in sorted(names) if n not in function.__globals__ and not hasattr(builtins, n)] == []
