"""How long Triton takes for kernels: benchmarks/compiling.py."""

from __future__ import annotations

import importlib
import sys
from pathlib import Path
from types import ModuleType

import pytest

BENCHMARKS = str(Path(__file__).parents[2] / "benchmarks")


@pytest.fixture(scope="module")
def compiling() -> ModuleType:
    sys.path.insert(0, BENCHMARKS)
    try:
        return importlib.import_module("compiling")
    finally:
        sys.path.remove(BENCHMARKS)


def test_a_kernel_beyond_the_limit_fails(compiling: ModuleType, capsys: pytest.CaptureFixture[str]) -> None:
    asked = ["--count", "3", "--suites"]
    assert compiling.main(asked) == 0
    said = capsys.readouterr().out
    assert said.startswith("3 kernels for sm_90")
    assert "fold_lanes" in said
    assert "Python" in said
    assert compiling.main([*asked, "--limit", "0.001"]) == 1
    assert (
        "must take Triton at most 0.001 s (and a margin of 1.25), got 3 beyond that"
        in capsys.readouterr().out
    )


def test_kernels_that_are_alike_are_compiled_once(compiling: ModuleType) -> None:
    calls = list(compiling.asked(3, (), 1))
    assert len(compiling.unlike(iter([*calls, *calls]))) == len(compiling.unlike(iter(calls))) == 3


def test_many_places_of_a_column_are_few_loads(compiling: ModuleType) -> None:
    """A chunk of 64 places took 9 s, most of them in Triton's pass that looks at all loads and stores that go together."""
    drawn = compiling.recording.drawn(compiling.recording.PLANS_SEED, 253)
    (_, calls) = compiling.recording._lowered(drawn[1])
    (call,) = calls
    text = compiling.calls.compile_for(call, 90).asm["ttir"]
    assert text.count("tt.load") + text.count("tt.store") <= 40
